"""Power cuts in a store's life: topics are created, grown, altered and deleted wholly or not at all, records stay.

The steps and their model are those of ``store_life``; here the disk is examined after each of their operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.crash.power_cut_lives import indexes_that_grow_early
from tests.crash.power_cuts import SOAK_STATES, cut_power
from tests.faults.recorded_store import StoreLife
from tests.support.fakes.memory_fs import Machine, in_memory
from tests.support.harness.selection import tries


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine, indexes_that_grow_early():
        yield machine


def lived() -> StoreLife:
    life = StoreLife()
    life.live()
    return life


@pytest.mark.promise("power cut: sync", "rebuilt")
def test_a_power_cut_leaves_every_topic_whole_or_not_there(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(lived(), machine, count=tries(1500, quick=80), seed=seed)
    assert counts.states > tries(1000, quick=50)
    tried("states", counts.states)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(4))
@pytest.mark.promise("power cut: sync", "rebuilt")
def test_a_power_cut_leaves_every_topic_whole_or_not_there_many_times(
    number: int, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("states", cut_power(lived(), machine, count=SOAK_STATES // 200, seed=seed + number).states)
