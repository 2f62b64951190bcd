"""A KeyboardInterrupt or a MemoryError anywhere in a producer's call: nothing waits forever or arrives twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.interrupted_producer import CALLS
from tests.crash.programs import count_of
from tests.support.harness.selection import tries

ERRORS = ("KeyboardInterrupt", "MemoryError")
# The distance between lines in ``make test``.
FEWER = tries(1, quick=5)
SAMPLE_STEP = {
    "send": 9 * FEWER,
    "send-into-another-batch": 23 * FEWER,
    "send-many": 43 * FEWER,
    "abandon": 17 * FEWER,
}
SAMPLE_STEP_LONG = 131 * FEWER
# How many times more places lie within lines.
CODES = 5


def interrupt_all(directory: Path, error: str, call: str, first: int, step: int, between: str = "lines") -> int:
    """Interrupts every ``step``-th line from ``first`` on; returns how many it interrupted."""
    return count_of("interrupted_producer", directory, error, call, first, step, between)


@pytest.mark.promise("whole or absent")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.sampled(2)
def test_an_interrupted_producer_goes_on(
    call: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    step = SAMPLE_STEP.get(call, SAMPLE_STEP_LONG)
    tried("faults", interrupt_all(directory, ERRORS[(seed + len(call)) % 2], call, 1 + seed % step, step))


@pytest.mark.promise("whole or absent")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.sampled(1)
def test_a_producer_that_is_interrupted_in_the_middle_of_a_line_goes_on(
    call: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    step = SAMPLE_STEP.get(call, SAMPLE_STEP_LONG) * CODES
    tried("faults", interrupt_all(directory, "KeyboardInterrupt", call, 1 + seed % step, step, "codes"))


@pytest.mark.soak
@pytest.mark.promise("whole or absent")
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_a_producer_that_is_interrupted_at_any_line_goes_on(
    call: str, error: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    tried("faults", interrupt_all(directory, error, call, 1, 1 if call in SAMPLE_STEP else 5))


@pytest.mark.soak
@pytest.mark.promise("whole or absent")
@pytest.mark.parametrize("call", CALLS)
def test_a_producer_that_is_interrupted_wherever_that_is_possible_goes_on(
    call: str, directory: Path, tried: Callable[[str, int], None]
) -> None:
    tried("faults", interrupt_all(directory, "KeyboardInterrupt", call, 1, 1 if call in SAMPLE_STEP else 5, "codes"))
