"""Power cuts in the life of a log that two writers share: acknowledged records are there at each later open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from kstore.types import Durability
from tests.crash.log_life import DURABILITIES
from tests.crash.power_cut_lives import indexes_that_grow_early
from tests.crash.power_cuts import SOAK_STATES, cut_power
from tests.crash.shared_power_lives import SHARED_LIVES, shared_lived
from tests.support.fakes.memory_fs import Machine, in_memory
from tests.support.harness.selection import tries

# Writers that were killed are not closed.
pytestmark = [
    pytest.mark.usefixtures("abandons_logs"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

STATES = {"sync": tries(600, quick=80), "interval": tries(200, quick=50), "os": tries(200, quick=50)}
RACE_STATES = 200
VARIANTS = range(2)


def cases(*chosen: tuple[str, Durability]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("name", "durability"),
        [
            pytest.param(name, durability, marks=pytest.mark.promise(f"power cut: {durability}"))
            for name, durability in chosen
        ],
    )


EACH = tuple(product(SHARED_LIVES, DURABILITIES))


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine, indexes_that_grow_early():
        yield machine


@cases(*EACH)
@pytest.mark.sampled(2)
def test_a_power_cut_takes_nothing_that_was_acknowledged_to_any_writer(
    name: str, durability: Durability, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(shared_lived(name, durability), machine, count=STATES[durability], seed=seed)
    assert counts.states > STATES[durability] // 2
    tried("states", counts.states)


@pytest.mark.promise("power cut: sync")
def test_a_power_cut_takes_nothing_that_another_writer_has_left_behind_unsynced(
    machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(shared_lived("racing", "sync"), machine, count=RACE_STATES, seed=seed)
    assert counts.states > RACE_STATES // 2
    tried("states", counts.states)


@pytest.mark.soak
@cases(*EACH, ("racing", "sync"))
@pytest.mark.parametrize("variant", VARIANTS)
def test_many_power_cuts_take_nothing_that_was_acknowledged_to_any_writer(
    name: str, durability: Durability, variant: int, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    counts = cut_power(shared_lived(name, durability, variant), machine, count=SOAK_STATES // 100, seed=seed + 1)
    tried("states", counts.states)
