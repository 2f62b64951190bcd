"""``to_arrow`` of a consumer and of a topic: pieces of several partitions as one table with the origin of each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.record.columns import column_options, import_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

    from kstore.engine.read.columns import ReadOptions

OFFSET = "offset"
# What a log reads, not which columns it makes.
READING = ("isolation_level", "on_corrupt")


def reading_options(options: dict[str, Any]) -> dict[str, Any]:
    """The columns to request from the logs: always the offsets, which become the positions."""
    columns = options.get("columns")
    if columns is None or OFFSET in columns:
        return options
    return {**options, "columns": [*columns, OFFSET]}


def table_of(pieces: Iterable[tuple[TopicPartition, pa.RecordBatch]], options: Mapping[str, Any]) -> pa.Table:
    """Columns topic and partition, and the requested ones."""
    pa = import_pyarrow()
    schema = column_options({name: _value(name, value) for name, value in options.items()}).schema()
    topic = pa.field("topic", pa.dictionary(pa.int32(), pa.string()))
    whole = pa.schema([topic, pa.field("partition", pa.int32()), *schema])
    batches = []
    for (name, number), batch in pieces:
        rows = batch.num_rows
        topics = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()).take(_zeros(pa, rows)), pa.array([name]))
        numbers = pa.array([number], pa.int32()).take(_zeros(pa, rows))
        columns = [topics, numbers, *(batch.column(field.name) for field in schema)]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=whole))
    return pa.Table.from_batches(batches, whole)


def topic_table(logs: Mapping[TopicPartition, Log], options: ReadOptions) -> pa.Table:
    """See ``Store.to_arrow``."""
    pieces = [(owner, batch) for owner, log in logs.items() for batch in log.to_arrow(**options).to_batches()]
    return table_of(
        pieces, {name: value for name, value in options.items() if name not in READING and value is not None}
    )


def _zeros(pa: Any, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])


def _value(name: str, value: Any) -> Any:
    return tuple(value) if name == "columns" and not isinstance(value, str) else value
