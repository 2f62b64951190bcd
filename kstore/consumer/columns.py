"""The result of ``Consumer.to_arrow``: pieces of several partitions as one table with the origin of each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kstore.consumer.fetching import PartitionReader
from kstore.record.columns import ColumnOptions, import_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["reading_options", "table_of"]

OFFSET = "offset"


def reading_options(options: dict[str, Any]) -> dict[str, Any]:
    """The columns to request from the logs: always the offsets, which become the positions."""
    columns = options.get("columns")
    if columns is None or OFFSET in columns:
        return options
    return {**options, "columns": [*columns, OFFSET]}


def table_of(pieces: Sequence[tuple[PartitionReader, pa.RecordBatch]], options: dict[str, Any]) -> pa.Table:
    """Columns topic and partition, and the requested ones."""
    pa = import_pyarrow()
    schema = ColumnOptions(**{name: _value(name, value) for name, value in options.items()}).schema()
    topic = pa.field("topic", pa.dictionary(pa.int32(), pa.string()))
    whole = pa.schema([topic, pa.field("partition", pa.int32()), *schema])
    batches = []
    for reader, batch in pieces:
        name, number = reader.owner
        rows = batch.num_rows
        topics = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()).take(_zeros(pa, rows)), pa.array([name]))
        numbers = pa.array([number], pa.int32()).take(_zeros(pa, rows))
        columns = [topics, numbers, *(batch.column(field.name) for field in schema)]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=whole))
    return pa.Table.from_batches(batches, whole)


def _zeros(pa: Any, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])


def _value(name: str, value: Any) -> Any:
    return tuple(value) if name == "columns" and not isinstance(value, str) else value
