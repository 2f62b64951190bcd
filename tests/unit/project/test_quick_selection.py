"""`make test` omits long tests, but keeps a test for each promise and each planted bug."""

from __future__ import annotations

import pytest

from tests.promises import PROMISES
from tests.support.harness.catalogue import Listed
from tools.crash.mutant import Mutant
from tools.crash.planted_bugs import MUTANTS

POWER_CUTS = "tests/crash/test_power_cut.py::test_a_power_cut_loses_nothing_that_was_durable"
# One test of each kind, by the beginning of its name.
KEPT = {
    "a read in Spark": "tests/spark/test_batch_read.py::test_a_broker_directory_is_what_its_consumers_read",
    "a write in Spark": "tests/spark/test_write.py::test_a_batch_write_is_read_back",
    "a stream in Spark": "tests/spark/test_stream_read.py::test_limits_divide_it_and_a_checkpoint_goes_on",
    "a kill loop of a log": "tests/crash/test_kill_loop.py::test_what_was_acknowledged_is_there_after_every_kill",
    "a kill loop of a queue": "tests/crash/test_queue_kills.py::test_a_queue_of_eight_processes_survives_kills",
    "a kill loop of a group": "tests/crash/test_group_kills.py::test_killed_members_lose_nothing",
    "power cuts in sync": f"{POWER_CUTS}[appends-sync]",
    "power cuts in interval": f"{POWER_CUTS}[appends-interval]",
    "power cuts in os": f"{POWER_CUTS}[appends-os]",
    "two processes": "tests/crash/test_shared_kills.py::test_two_writers_and_a_follower",
    "simulated lives": "tests/simulation/test_simulation.py::test_a_long_life_loses_nothing_that_was_promised",
}


@pytest.fixture(scope="module")
def quick(catalogue: list[Listed]) -> list[Listed]:
    return [test for test in catalogue if test.is_quick]


@pytest.mark.parametrize("name", PROMISES)
def test_a_quick_run_has_a_test_for_each_promise(quick: list[Listed], name: str) -> None:
    assert [test.nodeid for test in quick if name in test.promises]


@pytest.mark.parametrize("kind", KEPT)
def test_a_quick_run_has_one_of_each_kind(quick: list[Listed], kind: str) -> None:
    assert [test.nodeid for test in quick if test.nodeid.startswith(KEPT[kind])]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_quick_run_has_a_test_that_is_to_catch_each_planted_bug(quick: list[Listed], mutant: Mutant) -> None:
    named = tuple(mutant.tests.split())
    assert [test.nodeid for test in quick if test.nodeid.startswith(named)]
