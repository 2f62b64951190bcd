"""Writing as Spark does, without Spark: a writer's tasks, its commit, and what a committed reader then finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

from kstore.spark.staging import parse_name
from kstore.spark.writer import BATCH_ID, QUERY_ID, KStoreStreamWriter, KStoreWriter, Staged
from kstore.store import Store

QUERY = "8b1f0c1e-0000-4000-8000-000000000001"

SPARK_TYPES = {
    "value": BinaryType(),
    "key": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
ARROW_TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
}


def schema_of(*names: str) -> StructType:
    return StructType([StructField(name, SPARK_TYPES[name]) for name in names or ("value",)])


def batch_of(values: Sequence[bytes | None], **columns: Sequence[Any]) -> pa.RecordBatch:
    given: dict[str, Sequence[Any]] = {"value": values, **columns}
    return pa.record_batch({name: pa.array(list(column), ARROW_TYPES[name]) for name, column in given.items()})


class _Context(TaskContext):
    """A task's own view of itself."""

    def __new__(cls, *_: Any) -> _Context:
        return object.__new__(cls)

    def __init__(self, partition: int, attempt: int, properties: dict[str, str]) -> None:
        self._numbers = (partition, attempt)
        self._properties = properties

    def partitionId(self) -> int:
        return self._numbers[0]

    def taskAttemptId(self) -> int:
        return self._numbers[1]

    def getLocalProperty(self, key: str) -> str | None:
        return self._properties.get(key)


@contextmanager
def as_task(partition: int = 0, attempt: int = 0, *, query: str = QUERY, batch_id: int | None = None) -> Iterator[None]:
    """Code in the block believes that it is a Spark task."""
    properties = {} if batch_id is None else {QUERY_ID: query, BATCH_ID: str(batch_id)}
    before = TaskContext._taskContext
    TaskContext._taskContext = _Context(partition, attempt, properties)
    try:
        yield
    finally:
        TaskContext._taskContext = before


def write_batch(
    options: dict[str, str], tasks: Sequence[pa.RecordBatch], *, overwrite: bool = False, commit: bool = True
) -> list[Staged]:
    """A batch write with the given number of tasks."""
    writer = KStoreWriter(schema_of(*tasks[0].schema.names), options, overwrite)
    messages = []
    for number, rows in enumerate(tasks):
        with as_task(number, number):
            message = writer.write(iter([rows]))
            assert isinstance(message, Staged)
            messages.append(message)
    if commit:
        writer.commit(messages)
    return messages


def stream_batch(
    options: dict[str, str],
    batch_id: int,
    tasks: Iterable[pa.RecordBatch],
    *,
    query: str = QUERY,
    overwrite: bool = False,
    attempt: int = 0,
) -> list[Staged]:
    """The staged results of one batch of a stream; another object commits them."""
    messages = []
    for number, rows in enumerate(tasks):
        writer = KStoreStreamWriter(schema_of(*rows.schema.names), options, overwrite)
        with as_task(number, attempt, query=query, batch_id=batch_id):
            message = writer.write(iter([rows]))
            assert isinstance(message, Staged)
            messages.append(message)
    return messages


def stream_commit(
    options: dict[str, str], batch_id: int, messages: Sequence[Staged], *, overwrite: bool = False
) -> None:
    KStoreStreamWriter(schema_of(), options, overwrite).commit(messages, batch_id)


def committed_values(path: Path, topic: str = "orders") -> dict[int, list[bytes | None]]:
    """What a committed reader finds, by partition."""
    with Store(path, read_only=True) as store:
        return {
            number: [record.value for record in store.log(topic, number).read(isolation_level="read_committed")]
            for number in store.partitions(topic)
        }


def staged_names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if parse_name(each.name) is not None)
