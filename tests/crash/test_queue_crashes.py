"""Put items are there, and done items stay done, after power cuts and kills at any operation of a queue's life."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import product

import pytest

from kstore.types import Durability
from tests.crash.power_cuts import ROOT, SOAK_STATES, cut_power
from tests.crash.queue_life import QueueLife, RewritingLife, SharedQueueLife, small
from tests.support.fakes.crash_states import Choice, Disk, everything, nothing
from tests.support.fakes.fake_fs import CHANGES
from tests.support.fakes.memory_fs import Machine, MemoryFs, in_memory
from tests.support.harness.evidence import shuffled
from tests.support.harness.selection import tries

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
LIVES = {"alone": QueueLife, "shared": SharedQueueLife}
STATES = tries(300, quick=40)


def cases(chosen: Iterable[tuple[str, Durability]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("name", "durability"),
        [
            pytest.param(name, durability, marks=pytest.mark.promise(f"power cut: {durability}"))
            for name, durability in chosen
        ],
    )


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine, small():
        yield machine


def lived(name: str, durability: Durability) -> QueueLife:
    life = LIVES[name](durability)
    life.live()
    return life


@cases([("alone", "sync"), ("alone", "os"), ("shared", "sync"), ("shared", "interval")])
@pytest.mark.sampled(0, keep=("alone-sync", "alone-os"))
def test_a_power_cut_loses_no_item_and_brings_none_back(
    name: str, durability: Durability, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(lived(name, durability), machine, count=STATES, seed=seed)
    assert counts.states > STATES * 0.8
    tried("states", counts.states)


@pytest.mark.soak
@cases(product(LIVES, DURABILITIES))
def test_many_power_cuts_lose_no_item_and_bring_none_back(
    name: str, durability: Durability, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(lived(name, durability), machine, count=SOAK_STATES // 200, seed=seed + 1)
    tried("states", counts.states)


def end(life: QueueLife, numbers: Collection[int] | None, left: Choice) -> int:
    """Ends the life after each of these changes of the disk (None: all); returns how many there were.

    A killed process leaves ``everything``; the harshest power cut leaves ``nothing`` that was not synced.
    """
    disk = Disk(ROOT, image=life.before)
    count = 0
    for number, operation in enumerate(life.operations):
        disk.apply(operation)
        if operation.kind in CHANGES | {"store"} and (numbers is None or number in numbers):
            life.survive(MemoryFs(ROOT, disk.image(left)), number + 1, number + 1)
            count += 1
    return count


@pytest.mark.promise("power cut: interval")
def test_a_power_cut_brings_back_nothing_that_was_on_disk_before_the_journal_was_rewritten(
    machine: Machine, tried: Callable[[str, int], None]
) -> None:
    life = RewritingLife("interval")
    life.live()
    machine.restart()
    tried("states", end(life, life.rewriting, nothing))


@pytest.mark.promise("killed: sync")
@pytest.mark.sampled(2)
def test_a_kill_after_an_operation_loses_no_item_and_brings_none_back(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    life = lived("alone", "sync")
    tried("kills", end(life, set(shuffled(range(len(life.operations)), seed, tries(250, quick=50))), everything))


@pytest.mark.soak
@pytest.mark.promise("killed: sync")
def test_a_kill_after_any_operation_loses_no_item_and_brings_none_back(
    machine: Machine, tried: Callable[[str, int], None]
) -> None:
    tried("kills", end(lived("alone", "sync"), None, everything))
