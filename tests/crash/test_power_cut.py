"""Power cuts at every file operation of a log's life, after which none, all or some of the unsynced bytes are on disk.

``KSTORE_SOAK_STATES`` says how many states the soak tests try in all, with those of stores and compactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kstore.types import Durability
from tests.crash.power_cut_lives import DURABILITIES, LIVES, indexes_that_grow_early, lived
from tests.crash.power_cuts import SOAK_STATES, cut_power
from tests.support.fakes.memory_fs import Machine, in_memory
from tests.support.harness.selection import tries

STATES = tries(1700, quick=90)
VARIANTS = range(4)
# Each of them catches a planted bug (tools/crash/planted_bugs.py).
KEPT = (
    *(f"appends-{durability}" for durability in DURABILITIES),
    *(f"deletions-{durability}" for durability in DURABILITIES),
    "truncations-sync",
    "truncations-os",
    "retention-os",
)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine, indexes_that_grow_early():
        yield machine


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", LIVES)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "torn tail", "unclean open", "rebuilt")
@pytest.mark.sampled(3, keep=KEPT)
def test_a_power_cut_loses_nothing_that_was_durable(
    name: str, durability: Durability, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(lived(name, durability), machine, count=STATES, seed=seed)
    assert counts.states > STATES // 2
    assert counts.of_recoveries > counts.states // 10
    tried("states", counts.states)


@pytest.mark.soak
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", LIVES)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "torn tail", "unclean open", "rebuilt")
def test_a_power_cut_loses_nothing_that_was_durable_many_times(
    name: str, durability: Durability, variant: int, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(lived(name, durability, variant), machine, count=SOAK_STATES // 50, seed=seed + 1)
    tried("states", counts.states)
