"""Runs work over plain values on the executors: a task for each group of items, and the results as a DataFrame.

It uses ``mapInArrow`` over a small DataFrame, so that it runs wherever Spark runs, including Spark Connect. Items and
results travel as JSON (``plain``); only the function itself is sent as Spark sends functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from kstore.spark.jobs.plain import from_json, item_type, result_type, to_json
from kstore.spark.sentences import without_causes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")

# A task costs 30 to 40 ms, and a failed one reads its data again.
TASK_BYTES = 128 << 20
# A task opens a file for each item: at most this many small items form one task.
TASK_ITEMS = 64


def grouped(items: Iterable[Item], size_of: Callable[[Item], int], size_max: int = TASK_BYTES) -> list[list[Item]]:
    """The items in order, grouped up to ``size_max`` bytes, and at least one."""
    groups: list[list[Item]] = []
    room = 0
    for item in items:
        size = size_of(item)
        if not groups or size > room or len(groups[-1]) == TASK_ITEMS:
            groups.append([])
            room = size_max
        groups[-1].append(item)
        room -= size
    return groups


def spread(
    spark: SparkSession,
    groups: Sequence[Sequence[Item]],
    work: Callable[[Item], Iterable[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """The results of ``work`` for every item, a Spark task for each group; ``schema`` is Spark's text for it.

    ``work`` is a function of a module, or a ``partial`` of one with plain values; it declares the type of its items.
    Raises: ConfigError for an item that JSON cannot express.
    """
    return _spread(spark, groups, item_type(work), _Work(work), schema)


def _spread(
    spark: SparkSession,
    groups: Sequence[Sequence[Any]],
    kind: Any,
    run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    if not groups:
        return spark.createDataFrame([], schema)
    firsts = [0, *accumulate(len(group) for group in groups)]
    sent = pa.table(
        {
            "slot": pa.array(range(len(groups)), pa.int32()),
            "first": pa.array(firsts[:-1], pa.int32()),
            "items": pa.array([to_json(list(group), list[kind]) for group in groups], pa.string()),
        }
    )
    slots = spark.createDataFrame(sent).repartitionById(len(groups), "slot")
    return slots.mapInArrow(run, schema)


def spread_objects(
    spark: SparkSession, groups: Sequence[Sequence[Item]], work: Callable[[Item], Result]
) -> list[Result]:
    """The results of ``work`` for every item, in order, in this process. Raises: as ``spread``."""
    found = _spread(spark, groups, item_type(work), _Results(work), "number int, result string").collect()
    kind = result_type(work)
    return [from_json(result, kind) for _, result in sorted((row["number"], row["result"]) for row in found)]


def _received(batches: Iterator[pa.RecordBatch], kind: Any) -> Iterator[tuple[int, Any]]:
    """In a task: the items that it was sent, each with its number."""
    for batch in batches:
        for first, items in zip(batch.column("first").to_pylist(), batch.column("items").to_pylist(), strict=True):
            yield from enumerate(from_json(items, list[kind]), first)


class _Work:
    """Runs in a task: yields what ``work`` yields for each item."""

    def __init__(self, work: Callable[[Any], Iterable[pa.RecordBatch]]) -> None:
        self._work = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _, item in _received(batches, item_type(self._work)):
            with without_causes():
                yield from self._work(item)


class _Results:
    """Runs in a task: yields each item's result as a row."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kind = result_type(self._work)
        for number, item in _received(batches, item_type(self._work)):
            with without_causes():
                result = to_json(self._work(item), kind)
            yield pa.record_batch({"number": pa.array([number], pa.int32()), "result": pa.array([result], pa.string())})
