"""Power cuts at every call of compiled appends, recorded below the C library.

The lives of ``test_power_cut`` run on a file system without descriptors, where compiled code hands its writes over to
Python. Here it writes and syncs itself, as in a user's program: single records, runs, and members of a shared log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstore.types import Durability
from tests.crash.power_cut_lives import DURABILITIES
from tests.crash.power_cuts import SOAK_STATES, cut_power
from tests.crash.recorded_lives import RECORDED_LIVES, compiled_recorder, reason_not_to_record, recorded_lived
from tests.support.fakes.memory_fs import Machine, in_memory
from tests.support.harness.selection import tries

STATES = tries(1000, quick=120)


@pytest.fixture
def machine() -> Iterator[Machine]:
    with in_memory() as machine:
        yield machine


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := reason_not_to_record():
        pytest.skip(reason)
    return compiled_recorder(tmp_path_factory.mktemp("recorder"))


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", RECORDED_LIVES)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "torn tail", "unclean open")
@pytest.mark.sampled(0, keep=("singles-sync", "placed-interval", "shared-interval"))
def test_a_power_cut_at_a_call_of_compiled_code_loses_nothing_that_was_durable(
    name: str, durability: Durability, recorder: Path, machine: Machine, seed: int, tried: Callable[[str, int], None]
) -> None:
    life = recorded_lived(name, durability, recorder)
    calls = Counter(each.kind for each in life.operations if each.path.endswith(".log"))
    assert calls["pwrite"] + calls["write_and_sync"] >= 10, f"the writes are not seen: {calls}"
    tried("states", cut_power(life, machine, count=STATES, seed=seed).states)


@pytest.mark.soak
@pytest.mark.parametrize("variant", range(4))
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("name", RECORDED_LIVES)
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "torn tail", "unclean open")
def test_a_power_cut_at_a_call_of_compiled_code_loses_nothing_that_was_durable_many_times(
    name: str,
    durability: Durability,
    variant: int,
    recorder: Path,
    machine: Machine,
    seed: int,
    tried: Callable[[str, int], None],
) -> None:
    life = recorded_lived(name, durability, recorder, variant)
    tried("states", cut_power(life, machine, count=SOAK_STATES // 50, seed=seed + 1).states)
