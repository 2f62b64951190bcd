"""A log as Arrow columns, and columns as records of a log. ``Log`` loads this module on the first use of columns.

Batches become columns in compiled code (record/columns.py). The ordinary reader chooses the batches, so that isolation,
damage and the high watermark are as in ``Log.read``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from kstore.engine.append.appends import Appends
from kstore.engine.read.reader import LogReader, open_reader
from kstore.engine.read.reads import LogReads
from kstore.errors import ConfigError, InvalidRecordError, MissingExtraError
from kstore.record.batch import Batch
from kstore.record.columns import (
    COLUMNS,
    ArrowDecoder,
    BinaryType,
    HeaderKeys,
    HeadersType,
    TimestampUnit,
    column_options,
    import_pyarrow,
)
from kstore.record.rows import table_rows
from kstore.types import AppendInfo, CorruptRange, IsolationLevel, OnCorrupt

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

ON_CORRUPT: tuple[OnCorrupt, ...] = ("raise", "skip")
# The options that do not affect how the columns are built.
READING = ("columns", "isolation_level", "on_corrupt")
# A table's chunks may be larger than the pieces handed on, but above 32 MiB memory comes from the system each time.
TABLE_RECORDS = 1 << 20
TABLE_BYTES = 16 << 20
# Columns that an append assigns itself.
GIVEN_ANEW = ("offset", "timestampType", "topic", "partition")


class ReadOptions(TypedDict, total=False):
    """What to read, and which columns to build of it."""

    columns: Sequence[str] | None
    isolation_level: IsolationLevel
    on_corrupt: OnCorrupt
    headers_type: HeadersType
    header_keys: HeaderKeys
    binary_type: BinaryType
    timestamp_unit: TimestampUnit


class ArrowOptions(ReadOptions, total=False):
    """``ReadOptions``, and the size of the record batches."""

    max_records: int
    max_bytes: int


class ArrowBatches:
    """An iterator of ``pyarrow.RecordBatch``es over a range of a log; for one thread.

    ``schema`` is that of each batch; ``corrupt`` lists what was skipped so far because of damage. DuckDB, Polars and
    others read from it through ``__arrow_c_stream__``.
    """

    def __init__(self, reader: LogReader[Any], decoder: ArrowDecoder) -> None:
        self.schema: Any = decoder.schema
        self.corrupt: list[CorruptRange] = reader.corrupt
        self._batches: Iterator[pa.RecordBatch] = _to_the_end(reader, decoder)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def reader(self) -> pa.RecordBatchReader:
        """The rest as pyarrow's own type of reader."""
        return import_pyarrow().RecordBatchReader.from_batches(self.schema, self._batches)

    def read_all(self) -> pa.Table:
        """The rest as one table."""
        return import_pyarrow().Table.from_batches(list(self._batches), self.schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)


def _to_the_end(reader: LogReader[Any], decoder: ArrowDecoder) -> Iterator[pa.RecordBatch]:
    failure: Exception | None = None
    try:
        yield from reader
    except Exception as error:
        # The records before the error come first, as in ``Log.read``.
        failure = error
    rest = decoder.flush()
    if rest is not None:
        yield rest
    if failure is not None:
        raise failure


class Rows(NamedTuple):
    """Arguments of ``Log.append_many``."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    timestamps: Sequence[int] | None
    headers: Sequence[Sequence[tuple[str | bytes, bytes | None]] | None] | None


def arrow_batches(log: LogReads, start: int | None, stop: int | None, options: ArrowOptions) -> ArrowBatches:
    """See ``Log.to_arrow_batches``."""
    isolation_level = options.get("isolation_level", "read_uncommitted")
    on_corrupt = options.get("on_corrupt", "raise")
    if on_corrupt not in ON_CORRUPT:
        raise ConfigError(f"on_corrupt is {on_corrupt!r}, expected one of {', '.join(map(repr, ON_CORRUPT))}")
    columns = options.get("columns")
    building: dict[str, Any] = {name: value for name, value in options.items() if name not in READING}
    wanted = column_options({"columns": COLUMNS if columns is None else _names(columns), **building})
    decoder = ArrowDecoder(wanted, log.source.context.config.max_batch_bytes_uncompressed)

    def decode(batch: Batch, first_offset: int, stop_offset: int, _: int) -> Iterable[pa.RecordBatch]:
        return decoder.add(batch, first_offset, stop_offset)  # it knows the limit

    reader = open_reader(log, decode, start, stop, isolation_level, on_corrupt, decode_run=decoder.add_run)
    return ArrowBatches(reader, decoder)


def arrow_table(log: LogReads, start: int | None, stop: int | None, options: ReadOptions) -> pa.Table:
    """See ``Log.to_arrow``."""
    return arrow_batches(
        log, start, stop, {**options, "max_records": TABLE_RECORDS, "max_bytes": TABLE_BYTES}
    ).read_all()


def to_pandas(log: LogReads, start: int | None, stop: int | None, options: ReadOptions) -> pd.DataFrame:
    """See ``Log.to_pandas``. Raises: MissingExtraError without pandas, before anything is read."""
    try:
        import pandas  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("a pandas DataFrame needs pandas: pip install pandas") from error
    return arrow_table(log, start, stop, options).to_pandas()


def to_polars(log: LogReads, start: int | None, stop: int | None, options: ReadOptions) -> pl.DataFrame:
    """See ``Log.to_polars``. Raises: MissingExtraError without polars, before anything is read."""
    try:
        import polars
    except ModuleNotFoundError as error:
        raise MissingExtraError("a Polars DataFrame needs polars: pip install polars") from error
    return polars.DataFrame(arrow_table(log, start, stop, options))


class ArrowRows:
    """The rows of Arrow data, for ``Log.append_arrow``, which lists the types. Raises: InvalidRecordError."""

    def __init__(self, data: Any, now_ms: Callable[[], int]) -> None:
        table = _as_table(data)
        unknown = set(table.column_names) - {"key", "value", "timestamp", "headers", *GIVEN_ANEW}
        if unknown:
            raise InvalidRecordError(f"there is no column {min(unknown)!r}, expected value, key, timestamp and headers")
        if "value" not in table.column_names:
            raise InvalidRecordError(f"columns {', '.join(table.column_names)}, expected value among them")
        self._table = table
        self._now_ms = now_ms
        # Most tables need no object for a value; the others, and whatever is wrong, are taken value by value.
        self._plain = table_rows(table, now_ms()) if table.num_rows else None
        self._objects = _objects_of(table, now_ms) if self._plain is None else None

    def append_to(self, appends: Appends) -> AppendInfo:
        """Appends the rows. Raises: as ``Log.append_many``."""
        info = None if self._plain is None else appends.append_rows(self._plain)
        if info is not None:
            return info
        rows = self._objects or _objects_of(self._table, self._now_ms)
        return appends.append_many(rows.values, rows.keys, rows.timestamps, rows.headers)


def _objects_of(table: pa.Table, now_ms: Callable[[], int]) -> Rows:
    return Rows(
        _bytes(table, "value"),
        keys=_bytes(table, "key") if "key" in table.column_names else None,
        timestamps=_timestamps(table, now_ms) if "timestamp" in table.column_names else None,
        headers=_headers(table) if "headers" in table.column_names else None,
    )


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _as_table(data: Any) -> pa.Table:
    pa = import_pyarrow()
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    raise TypeError(
        f"data must be a pyarrow.RecordBatch or Table, or have Arrow's C interface, not {type(data).__name__}"
    )


def _bytes(table: pa.Table, name: str) -> list[bytes | None]:
    pa = import_pyarrow()
    column = table.column(name)
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    if pa.types.is_null(kind):
        return [None] * len(column)
    if not _is_bytes(kind):
        raise InvalidRecordError(f"column {name!r} is {column.type}, expected binary or string")
    found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return found


def _is_bytes(kind: Any) -> bool:
    types = import_pyarrow().types
    names = ("binary", "large_binary", "fixed_size_binary", "binary_view", "string", "large_string", "string_view")
    return any(getattr(types, f"is_{name}", lambda _: False)(kind) for name in names)


def _timestamps(table: pa.Table, now_ms: Callable[[], int]) -> list[int] | None:
    """Timestamps in ms, rounded down."""
    pa = import_pyarrow()
    column = table.column("timestamp")
    if pa.types.is_null(column.type):
        return None
    if pa.types.is_timestamp(column.type):
        per_ms = {"s": None, "ms": 1, "us": 1000, "ns": 1_000_000}[column.type.unit]
        found: list[int | None] = [
            each if each is None else each * 1000 if per_ms is None else each // per_ms
            for each in column.cast(pa.int64()).to_pylist()
        ]
    elif pa.types.is_integer(column.type):
        found = column.to_pylist()
    else:
        raise InvalidRecordError(f"column 'timestamp' is {column.type}, expected a timestamp, or ms as whole numbers")
    now = now_ms() if column.null_count else 0
    return [now if each is None else each for each in found]


def _headers(table: pa.Table) -> list[list[tuple[str | bytes, bytes | None]] | None] | None:
    pa = import_pyarrow()
    column = table.column("headers")
    kind = column.type
    if pa.types.is_null(kind):
        return None
    is_map = pa.types.is_map(kind)
    if is_map:
        fields = {"key": kind.key_type, "value": kind.item_type}
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(kind.value_type):
        fields = {field.name: field.type for field in kind.value_type}
    else:
        fields = {}
    is_known = fields.keys() == {"key", "value"} and all(
        _is_bytes(each) or pa.types.is_null(each) for each in fields.values()
    )
    if not is_known:
        raise InvalidRecordError(f"column 'headers' is {kind}, expected a list of structs of key and value, or a map")
    pairs: list[list[tuple[str | bytes, bytes | None]] | None] = []
    try:
        rows = column.to_pylist()
    except UnicodeDecodeError:
        raise InvalidRecordError("a header's key is a string that is not UTF-8, expected binary") from None
    for listed in rows:
        if listed is None:
            pairs.append(None)
        elif is_map:
            pairs.append([(_named(key), _encoded(value)) for key, value in listed])
        else:
            pairs.append([_header(header) for header in listed])
    return pairs


def _header(header: dict[str, Any] | None) -> tuple[str | bytes, bytes | None]:
    if header is None:
        raise InvalidRecordError("a header that is null, expected a struct of key and value")
    return _named(header["key"]), _encoded(header["value"])


def _named(key: str | bytes | None) -> str | bytes:
    if key is None:
        raise InvalidRecordError("a header without a key")
    return key


def _encoded(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
