"""Runs work over plain values on the executors: a task for each group of items, and the results as a DataFrame.

It uses ``mapInArrow`` over a small DataFrame, so that it runs wherever Spark runs, including Spark Connect.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TASK_BYTES", "grouped", "spread", "spread_objects"]

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

    ``work`` is a function of a module, or a ``partial`` of one with plain values.
    """
    if not groups:
        return spark.createDataFrame([], schema)
    sent = pa.table(
        {
            "slot": pa.array(range(len(groups)), pa.int32()),
            "items": pa.array([pickle.dumps(list(group)) for group in groups], pa.binary()),
        }
    )
    slots = spark.createDataFrame(sent).repartitionById(len(groups), "slot")
    return slots.mapInArrow(_Work(work), schema)


def spread_objects(
    spark: SparkSession, groups: Sequence[Sequence[Item]], work: Callable[[Item], Result]
) -> list[Result]:
    """The results of ``work`` for every item, in order, in this process."""
    found = spread(spark, _numbered(groups), _Pickled(work), "number int, result binary").collect()
    return [pickle.loads(result) for _, result in sorted((row["number"], bytes(row["result"])) for row in found)]


def _numbered(groups: Sequence[Sequence[Item]]) -> list[list[tuple[int, Item]]]:
    numbered, number = [], 0
    for group in groups:
        numbered.append([(number + at, item) for at, item in enumerate(group)])
        number += len(group)
    return numbered


class _Work:
    """Runs in a task: unpacks the items of the one row that it gets."""

    def __init__(self, work: Callable[[Any], Iterable[pa.RecordBatch]]) -> None:
        self._work = work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column("items").to_pylist():
                for item in pickle.loads(packed):
                    yield from self._work(item)


class _Pickled:
    """An item's result as a row."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def __call__(self, item: tuple[int, Any]) -> Iterator[pa.RecordBatch]:
        number, value = item
        result = pickle.dumps(self._work(value))
        yield pa.record_batch({"number": pa.array([number], pa.int32()), "result": pa.array([result], pa.binary())})
