"""Filled stores, and a stand-in for a cluster, for tests of the Spark jobs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kstore
from kstore.spark.jobs.plain import from_json, item_type, result_type, to_json
from tests.support.lives.log_helpers import TIME

DAY_MS = 86_400_000


def here(spark: Any, groups: Sequence[Sequence[Any]], work: Callable[[Any], Any]) -> list[Any]:
    """As ``spread_objects``, in this process: items and results travel as JSON, the function as Spark sends it."""
    work = pickle.loads(pickle.dumps(work))
    kind, result_kind = item_type(work), result_type(work)
    items = [from_json(to_json(item, kind), kind) for group in groups for item in group]
    return [from_json(to_json(work(item), result_kind), result_kind) for item in items]


def filled(path: Path, count: int = 400, *, partitions: int = 2, start: int = 0, step_ms: int = DAY_MS // 100) -> Path:
    """Fills the topic ``orders`` of a store, new or not, in small segments; the values are the records' numbers."""
    with kstore.open(path, segment_bytes=2000, durability="os") as store:
        if "orders" not in store.topics():
            store.create_topic("orders", partitions)
        for number in range(start, start + count):
            log = store.log("orders", number % partitions)
            key = b"k%d" % (number % 17) if number % 5 else None
            log.append(b"%d" % number, key=key, timestamp=TIME + number * step_ms)
    return path
