"""Eight processes create the same log, topic, queue or group at the same instant, and some are killed meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.programs import count_of
from tests.crash.shared_creation import KINDS
from tests.support.harness.selection import tries

ROOT = Path(__file__).parents[2]
ROUNDS, SOAK_ROUNDS = tries(20, quick=2), 1000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")
EACH = pytest.mark.parametrize("kind", KINDS)


def create_together(directory: Path, kind: str, rounds: int, seed: int) -> int:
    """How many processes were killed."""
    return count_of("shared_creation", directory, kind, rounds, seed)


@EACH
@pytest.mark.sampled(2)
def test_what_several_processes_create_at_the_same_instant_is_there_for_all(
    kind: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    killed = create_together(directory, kind, ROUNDS, seed)
    assert killed
    tried("kills", killed)


@pytest.mark.soak
@EACH
def test_what_several_processes_create_at_the_same_instant_is_there_a_thousand_times(
    kind: str, directory: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("kills", create_together(directory, kind, SOAK_ROUNDS, seed + 1))
