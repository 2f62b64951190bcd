"""What was put is there, and what was done is done: after power cuts and kills at any operation of a queue's life."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import pytest

from kstore.types import Durability
from tests.crash.power_cuts import ROOT, SOAK_STATES, cut_power
from tests.crash.queue_life import QueueLife, small
from tests.crash_states import Disk, everything
from tests.evidence import shuffled
from tests.fake_fs import CHANGES
from tests.memory_fs import Machine, MemoryFs, in_memory

DURABILITIES: tuple[Durability, ...] = ("sync", "os")


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine, small():
        yield machine


def lived(durability: Durability) -> QueueLife:
    life = QueueLife(durability)
    life.live()
    return life


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.promise("power cut: sync", "power cut: os")
def test_a_power_cut_loses_no_item_and_brings_none_back(
    durability: Durability, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(lived(durability), machine, count=300, seed=seed)
    assert counts.states > 250
    tried("states", counts.states)


@pytest.mark.soak
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.promise("power cut: sync", "power cut: os")
def test_many_power_cuts_lose_no_item_and_bring_none_back(
    durability: Durability, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(lived(durability), machine, count=SOAK_STATES // 100, seed=seed + 1)
    tried("states", counts.states)


def kill(numbers: Collection[int] | None, life: QueueLife) -> int:
    """Kills the process behind each of these changes of the disk (None: all); returns how many these were."""
    disk = Disk(ROOT, image=life.before)
    kills = 0
    for number, operation in enumerate(life.operations):
        disk.apply(operation)
        if operation.kind in CHANGES | {"store"} and (numbers is None or number in numbers):
            life.survive(MemoryFs(ROOT, disk.image(everything)), number + 1, number + 1)
            kills += 1
    return kills


@pytest.mark.promise("killed: sync")
def test_a_kill_behind_an_operation_loses_no_item_and_brings_none_back(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    life = lived("sync")
    tried("kills", kill(set(shuffled(range(len(life.operations)), seed, 250)), life))


@pytest.mark.soak
@pytest.mark.promise("killed: sync")
def test_a_kill_behind_any_operation_loses_no_item_and_brings_none_back(
    machine: Machine, tried: Callable[[str, int], None]
) -> None:
    tried("kills", kill(None, lived("sync")))
