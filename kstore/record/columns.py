"""Batches to Arrow columns, and the column definitions. No I/O here; pyarrow is imported only for columns.

key            binary                        null if the record has none
value          binary                        null: a tombstone
offset         int64
timestamp      timestamp[ms, tz=UTC]         -1 ms, a moment before 1970, if the record has none
timestampType  int32                         0 CreateTime, 1 LogAppendTime, -1 none (Kafka's numbers)
headers        list<struct<key: string, value: binary>>, or map<string, binary>; null if the record has none

Keys of headers are text, as in ``Record.headers``, or with ``header_keys="binary"`` binary.

Names and types are those of Spark's Kafka source, which also has topic and partition: the caller knows these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, get_args

from kstore.errors import ConfigError, MissingExtraError
from kstore.record._columns import BytesColumn, ColumnBuffer, ColumnBuilder, HeadersColumn
from kstore.record.batch import ATTRIBUTE_LOG_APPEND_TIME, MAX_BYTES_UNCOMPRESSED, OFFSET_MIN, RecordBatch
from kstore.types import OFFSET_MAX, TIMESTAMP_TYPES

if TYPE_CHECKING:
    from array import array

    import pyarrow as pa

    from kstore.record._runs import Run
    from kstore.record.batch import Batch

COLUMNS = ("key", "value", "offset", "timestamp", "timestampType", "headers")
# A "binary" column of one chunk holds 2 GiB, and a chunk ends before that; "large_binary" has no limit.
BinaryType = Literal["binary", "large_binary"]
HeadersType = Literal["list", "map"]
HeaderKeys = Literal["string", "binary"]
TimestampUnit = Literal["ms", "us"]

# The reach of 32-bit offsets.
CHUNK_BYTES_MAX = 2**31 - 1
RECORDS_MAX = 2**31 - 1
LARGE_CHUNK_BYTES_MAX = 2**62
BATCH_RECORDS = 1 << 16
# The C library keeps buffers of this size for the next batch. Those of 4 MiB went back to the system, and their pages
# were faulted in again for each batch: values of 1 KB took 1.6 times as long.
BATCH_BYTES = 2 << 20
UNIT_FACTORS: dict[TimestampUnit, int] = {"ms": 1, "us": 1000}


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Which columns to build and how; raises ConfigError for an invalid combination.

    A chunk, one ``RecordBatch``, has at most ``max_records`` records and ``max_bytes`` bytes of buffers; a larger
    record is a chunk of its own.
    """

    columns: tuple[str, ...] = COLUMNS
    headers_type: HeadersType = "list"
    header_keys: HeaderKeys = "string"
    binary_type: BinaryType = "binary"
    timestamp_unit: TimestampUnit = "ms"
    max_records: int = BATCH_RECORDS
    max_bytes: int = BATCH_BYTES

    def __post_init__(self) -> None:
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise ConfigError(
                f"columns are {list(self.columns)}, expected one or more of {', '.join(COLUMNS)}, each once"
            )
        for name in self.columns:
            if name not in COLUMNS:
                near = get_close_matches(str(name), COLUMNS, 1, 0)
                raise ConfigError(f"there is no column {name!r}, did you mean {near[0]!r}?")
        _one_of("headers_type", self.headers_type, get_args(HeadersType))
        _one_of("header_keys", self.header_keys, get_args(HeaderKeys))
        _one_of("binary_type", self.binary_type, get_args(BinaryType))
        _one_of("timestamp_unit", self.timestamp_unit, get_args(TimestampUnit))
        bytes_max = LARGE_CHUNK_BYTES_MAX if self.is_large else CHUNK_BYTES_MAX
        for name, value, most in (
            ("max_records", self.max_records, RECORDS_MAX),
            ("max_bytes", self.max_bytes, bytes_max),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise ConfigError(f"{name} is {value!r}, expected 1 to {most}")

    @property
    def is_large(self) -> bool:
        return self.binary_type == "large_binary"

    def schema(self) -> pa.Schema:
        """The columns in the requested order. Raises: MissingExtraError."""
        pa = import_pyarrow()
        types = self._types(pa)
        return pa.schema([pa.field(name, types[name]) for name in self.columns])

    def _types(self, pa: Any) -> dict[str, Any]:
        binary = pa.large_binary() if self.is_large else pa.binary()
        name = binary
        if self.header_keys == "string":
            name = pa.large_string() if self.is_large else pa.string()
        if self.headers_type == "map":
            headers = pa.map_(name, binary)
        else:
            headers = pa.list_(pa.struct([pa.field("key", name), pa.field("value", binary)]))
        return {
            "key": binary,
            "value": binary,
            "offset": pa.int64(),
            "timestamp": pa.timestamp(self.timestamp_unit, tz="UTC"),
            "timestampType": pa.int32(),
            "headers": headers,
        }


def column_options(given: Mapping[str, Any]) -> ColumnOptions:
    """The options by name. Raises: ConfigError, with the nearest name, for one that does not exist."""
    known = [field.name for field in fields(ColumnOptions)]
    for name in given:
        if name not in known:
            known += ["isolation_level", "on_corrupt"]  # of the read itself
            near = get_close_matches(name, known, 1)
            hint = f", did you mean {near[0]!r}?" if near else f": there are {', '.join(known)}"
            raise ConfigError(f"there is no option {name!r}{hint}")
    return ColumnOptions(**given)


class ArrowDecoder:
    """Turns batches into ``pyarrow.RecordBatch``es of the size that the options set. Not thread-safe."""

    def __init__(self, options: ColumnOptions, max_bytes_uncompressed: int = MAX_BYTES_UNCOMPRESSED) -> None:
        """Raises: MissingExtraError."""
        self._pa = import_pyarrow()
        self.options = options
        self.schema: Any = options.schema()
        self._max_bytes_uncompressed = max_bytes_uncompressed
        wanted = set(options.columns)
        self._builder = ColumnBuilder(
            key="key" in wanted,
            value="value" in wanted,
            offset="offset" in wanted,
            timestamp="timestamp" in wanted,
            timestamp_type="timestampType" in wanted,
            headers="headers" in wanted,
            text_keys=options.header_keys == "string",
            large=options.is_large,
            rows_max=options.max_records,
            size_max=options.max_bytes,
            timestamp_factor=UNIT_FACTORS[options.timestamp_unit],
        )

    @property
    def record_count(self) -> int:
        """The number of records that wait for a full chunk."""
        return self._builder.row_count

    def add(
        self, batch: Batch, first_offset: int = OFFSET_MIN, stop_offset: int = OFFSET_MAX
    ) -> Iterator[pa.RecordBatch] | tuple[()]:
        """Adds the records with offsets in [first_offset, stop_offset); yields the chunks that become full.

        The whole batch is checked at once. The chunks are built on demand: consume all of them before adding the next
        batch. Raises: CorruptDataError, and then nothing of the batch is added.
        """
        if not isinstance(batch, RecordBatch):
            return self._add_messages(batch, first_offset, stop_offset)
        header = batch.header
        is_through = self._builder.append(
            *batch.payload(self._max_bytes_uncompressed),
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            header.last_offset_delta,
            bool(header.attributes & ATTRIBUTE_LOG_APPEND_TIME),
            header.max_timestamp,
            first_offset,
            stop_offset,
        )
        return () if is_through else self._rest()

    def add_run(
        self, run: Run, first_offset: int, stop_offset: int, tally: array[int], aborted: array[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """``add`` for the batches of a run; the arguments are those of ``Run.records``.

        They are added as the chunks are consumed: consume all, also if there are none.
        """
        at = run.start
        while at < run.stop:
            at = self._builder.append_run(run.data, at, run.stop, first_offset, stop_offset, tally, aborted)
            if self._builder.is_within_batch:
                yield from self._rest()

    def flush(self) -> pa.RecordBatch | None:
        """The records after the last full chunk, or None."""
        return self._finish() if self._builder.row_count else None

    def _rest(self) -> Iterator[pa.RecordBatch]:
        """The chunks of a batch that does not fit into one."""
        yield self._finish()
        while not self._builder.resume():
            yield self._finish()

    def _add_messages(self, batch: Batch, first_offset: int, stop_offset: int) -> Iterator[pa.RecordBatch]:
        """Versions 0 and 1: they are old and few, and read as objects."""
        records = list(batch.records(first_offset, stop_offset, self._max_bytes_uncompressed))

        def chunks() -> Iterator[pa.RecordBatch]:
            for record in records:
                # A wrapper's messages may be of another version than it.
                kind = TIMESTAMP_TYPES.index(record.timestamp_type)
                message = (record.offset, record.timestamp, kind, record.key, record.value)
                if not self._builder.append_message(*message):
                    yield self._finish()
                    self._builder.append_message(*message)

        return chunks()

    def _finish(self) -> pa.RecordBatch:
        columns = self._builder.finish()
        count = columns.row_count
        found = {
            "key": columns.key,
            "value": columns.value,
            "offset": columns.offset,
            "timestamp": columns.timestamp,
            "timestampType": columns.timestamp_type,
            "headers": columns.headers,
        }
        arrays = [self._array(field.type, count, found[field.name]) for field in self.schema]
        return self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, kind: Any, count: int, column: ColumnBuffer | BytesColumn | HeadersColumn | None) -> Any:
        array, buffer = self._pa.Array, self._buffer
        if isinstance(column, HeadersColumn):
            entries = kind.field(0).type if self.options.headers_type == "list" else self._entries(kind)
            children = [
                self._array(entries.field(0).type, column.entry_count, column.key),
                self._array(entries.field(1).type, column.entry_count, column.value),
            ]
            structs = array.from_buffers(entries, column.entry_count, [None], children=children)
            outer = [buffer(column.validity), buffer(column.offsets)]
            return array.from_buffers(kind, count, outer, column.null_count, children=[structs])
        if isinstance(column, BytesColumn):
            buffers = [buffer(column.validity), buffer(column.offsets), buffer(column.data)]
            return array.from_buffers(kind, count, buffers, column.null_count)
        return array.from_buffers(kind, count, [None, buffer(column)], 0)

    def _entries(self, kind: Any) -> Any:
        """The entries that a map is a list of."""
        return self._pa.struct([kind.key_field, kind.item_field])

    def _buffer(self, buffer: ColumnBuffer | None) -> Any:
        return None if buffer is None else self._pa.py_buffer(buffer)


def import_pyarrow() -> Any:
    """The module. Raises: MissingExtraError if it is not installed."""
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise MissingExtraError("Arrow columns need pyarrow: pip install 'kstore[arrow]'") from error
    return pyarrow


def _one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}, expected one of {', '.join(map(repr, allowed))}")
