"""A KeyboardInterrupt at or within any line of a call: an append is whole or absent, and the log goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.types import Durability
from tests.crash.interrupted_life import STEPS
from tests.crash.programs import count_of
from tests.support.harness.selection import tries

# The distance between lines in ``make test``.
SAMPLE_STEP = tries(11, quick=61)
SAMPLE_STEP_CODES = tries(53, quick=307)
CASES = pytest.mark.parametrize(
    ("durability", "name"), [(durability, name) for durability in ("sync", "os") for name in STEPS]
)


def interrupt_all(
    directory: Path, durability: Durability, name: str, first: int, step: int, between: str = "lines"
) -> int:
    """Interrupts every ``step``-th line from ``first`` on; returns how many it interrupted."""
    return count_of("interrupted_life", directory, durability, name, first, step, between)


@pytest.mark.promise("whole or absent")
@CASES
@pytest.mark.sampled(2)
def test_an_interrupt_leaves_all_or_nothing(
    durability: Durability, name: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("faults", interrupt_all(directory, durability, name, 1 + seed % SAMPLE_STEP, SAMPLE_STEP))


@pytest.mark.promise("whole or absent")
@CASES
@pytest.mark.sampled(1)
def test_an_interrupt_in_the_middle_of_a_line_leaves_all_or_nothing(
    durability: Durability, name: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    first, step = 1 + seed % SAMPLE_STEP_CODES, SAMPLE_STEP_CODES
    tried("faults", interrupt_all(directory, durability, name, first, step, "codes"))


@pytest.mark.soak
@pytest.mark.promise("whole or absent")
@CASES
def test_an_interrupt_at_any_line_leaves_all_or_nothing(
    durability: Durability, name: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    tried("faults", interrupt_all(directory, durability, name, 1, 1))


@pytest.mark.soak
@pytest.mark.promise("whole or absent")
@CASES
def test_an_interrupt_wherever_one_is_served_leaves_all_or_nothing(
    durability: Durability, name: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    tried("faults", interrupt_all(directory, durability, name, 1, 1, "codes"))
