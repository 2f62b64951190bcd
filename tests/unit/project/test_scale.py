"""The steps of an operation do not grow with what is there already, beyond what docs/scale.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.scale.cost import FLAT_STEPS, Cost, cost_of, costs_of, growth_of
from tools.scale.scenes import SCENES

# Enough that a step for each of them shows.
COUNTS = {
    "records": (1_000, 100_000),
    "segments": (10, 300),
    "other files in a log's directory": (10, 300),
    "partitions": (3, 60),
    "topics": (3, 60),
    "groups": (3, 30),
    "finished transactions": (10, 300),
    "open transactions": (2, 20),
    "idempotent producers": (3, 30),
    "items that wait in a queue": (2_000, 40_000),
    "items that were acked": (1_000, 40_000),
    "leases": (1_000, 20_000),
    "dead letters": (100, 1_000),
    "damaged places": (3, 30),
}
# By the things there are of: what must look at each of them, or does so at a cost that docs/scale.md gives.
GROWS = {
    "records": {"Log.verify"},
    "segments": {"Log.verify", "Log, read-only, open and close"},
    "other files in a log's directory": {"Log.verify", "Log, read-only, open and close"},
    "partitions": {
        "Store.metrics",
        "Store.apply_retention",
        "Consumer.poll, one record",
        "Consumer.commit, one partition",
        "Consumer.lag",
    },
    "topics": {"Store.topics", "Store.metrics", "Store.apply_retention"},
    "groups": {"Store.metrics"},
    "open transactions": {"Store.create_topic"},
    "leases": {"Queue.leased"},
    "damaged places": {"Log.verify"},
}
# A lookup searches, and a checkpoint may be due.
NOISE_STEPS = 40


@pytest.mark.parametrize("things", COUNTS)
def test_an_operation_takes_as_many_steps_when_there_is_more(things: str, tmp_path: Path) -> None:
    scene = next(scene for scene in SCENES if scene.things == things)
    grown = {
        name: (few.steps, many.steps)
        for name, (few, many) in costs_of(scene, tmp_path, COUNTS[things]).items()
        if many.steps > FLAT_STEPS * few.steps + NOISE_STEPS
    }
    assert grown.keys() <= GROWS.get(things, set()), grown


def test_each_thing_is_tried() -> None:
    assert {scene.things for scene in SCENES} - COUNTS.keys() == {"earlier backups", "members of a group"}
    assert GROWS.keys() <= COUNTS.keys()


def test_steps_count_the_calls_of_the_work_alone() -> None:
    def work() -> None:
        for _ in range(100):
            len("")

    assert 100 <= cost_of(work).steps < 105


@pytest.mark.parametrize(
    ("last", "growth"),
    [
        (Cost(100, 20), "flat"),
        (Cost(140, 29), "flat"),
        (Cost(160, 10), "below linear"),
        (Cost(100, 300), "below linear"),
        (Cost(9_000, 10), "linear"),
        (Cost(100, 1_000), "linear"),
        (Cost(20_000, 10), "**above linear**"),
    ],
)
def test_growth_is_told_by_steps_and_by_time(last: Cost, growth: str) -> None:
    assert growth_of([Cost(100, 10), Cost(0, 0), last]) == growth
