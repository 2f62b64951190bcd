"""Three writers and a reader of one log: at whatever operation a writer is killed, the reader sees all that the others
append, and every index equals one built from its segment alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.types import Durability
from tests.crash.programs import count_of
from tests.crash.shared_trio import WRITERS

ROOT = Path(__file__).parents[2]
# The distance between operations in ``make test``.
STRIDE = 13

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")
EACH = pytest.mark.parametrize(
    ("durability", "victim"),
    [
        pytest.param(durability, victim, marks=pytest.mark.promise(f"killed: {durability}"))
        for durability in ("sync", "os")
        for victim in range(WRITERS)
    ],
)


def deaths(directory: Path, durability: Durability, victim: int, first: int, step: int) -> int:
    return count_of("shared_trio", directory, durability, victim, first, step)


@EACH
@pytest.mark.long
def test_what_is_appended_beside_a_killed_writer_is_seen_and_indexed(
    durability: Durability, victim: int, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    count = deaths(directory, durability, victim, seed % STRIDE, STRIDE)
    assert count > 5
    tried("kills", count)


@pytest.mark.soak
@EACH
def test_what_is_appended_beside_a_writer_killed_at_any_operation_is_seen_and_indexed(
    durability: Durability, victim: int, directory: Path, tried: Callable[[str, int], None]
) -> None:
    tried("kills", deaths(directory, durability, victim, 0, 1))
