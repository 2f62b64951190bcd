"""A stream's executors and drivers are killed again and again: each row is there once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kstore.store import Store
from tests.crash.sink_processes import PARTITIONS, TASKS, Sink, values_of
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries
from tests.support.lives.spark_sink import committed_values, staged_names


def committed_batches(store: Path) -> set[int]:
    """How many batches a committed reader sees in each partition: whole ones, the first, each once."""
    counts = set()
    for partition, found in committed_values(store).items():
        count = 0
        while found:
            expected = [value for task in range(TASKS) for value in values_of(count, task, partition)]
            if found[: len(expected)] != expected:
                raise Wrong(f"partition {partition}: batch {count} is {found[: len(expected)]}")
            del found[: len(expected)]
            count += 1
        counts.add(count)
    return counts


@pytest.mark.promise("killed: sync", "whole or absent")
def test_killed_executors_and_drivers_leave_each_row_once(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    store = tmp_path / "store"
    with Store(store, background=False) as made:
        made.create_topic("orders", PARTITIONS)
    sink = Sink(store, random.Random(seed))
    # The first one is not killed, and tells how long each process takes.
    sink.finish_batch(0, lambda: None, is_safe=True)
    batch_id = 0

    def look() -> None:
        if not (found := committed_batches(store)) <= {batch_id, batch_id + 1}:
            raise Wrong(f"{found} batches are there, and {batch_id} or one more were committed")
        # Whoever opens the store next completes what was decided, and aborts what was not.
        Store(store, background=False).close()
        if len(found := committed_batches(store)) != 1:
            raise Wrong(f"a batch is in some partitions only: {found}")

    while sink.kills < tries(200, quick=1):
        batch_id += 1
        sink.finish_batch(batch_id, look)
    tried("kills", sink.kills)
    batch_id += 1
    sink.finish_batch(batch_id, look, is_safe=True)
    if (found := committed_batches(store)) != {batch_id + 1}:
        raise Lost(f"{found} batches are there, and {batch_id + 1} were committed")
    assert staged_names(store) == []
