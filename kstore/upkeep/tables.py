"""Arrow batches to files that other programs read, and back: Parquet and CSV.

Parquet keeps everything. CSV has no headers (a cell holds one value), and its keys and values are text, or base64 in
columns named ``key_base64`` and ``value_base64``; an empty cell without quotes is null.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

from kstore.errors import InvalidRecordError
from kstore.record.columns import import_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

TableForm = Literal["parquet", "csv"]
Compression = Literal["none", "snappy", "gzip", "lz4", "zstd"]
CSV_COLUMNS = ("offset", "timestamp", "timestampType", "key", "value")
BYTES_COLUMNS = ("key", "value")
BASE64 = "_base64"
# The columns of a record to append; the append assigns the rest of a table.
RECORD_COLUMNS = ("key", "value", "timestamp", "headers")
BATCH_RECORDS = 1 << 16
CSV_BLOCK_BYTES = 4 << 20
# What spreadsheets take for a formula, or skip before one (OWASP, CSV injection).
FORMULA_START = r"\A([=+\-@\t\r\n])"


class _Writer(Protocol):
    def write_batch(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...


def write_table(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    out: BinaryIO,
    form: TableForm,
    *,
    base64: bool = False,
    safe_formulas: bool = False,
    compression: Compression = "zstd",
    advance: Callable[[int], None] = lambda count: None,
) -> int:
    """Writes the batches as one table; returns the number of rows. ``advance`` receives the rows as they are written.

    ``safe_formulas``: in CSV without ``base64``, a key or value that a spreadsheet would run gets a ' before it.

    Raises: InvalidRecordError for bytes that are not text in CSV without ``base64``.
    """
    writer = _parquet_writer(out, schema, compression) if form == "parquet" else _csv_writer(out, schema, base64)
    count = 0
    try:
        for batch in batches:
            writer.write_batch(batch if form == "parquet" else _as_text(batch, base64, safe_formulas))
            count += batch.num_rows
            advance(batch.num_rows)
    finally:
        writer.close()
    return count


def table_rows(file: BinaryIO, form: TableForm) -> int | None:
    """The number of rows in the table in ``file``, if the format gives it in advance."""
    if form != "parquet":
        return None
    with _only_tables(form):
        rows: int = _parquet().ParquetFile(file).metadata.num_rows
    file.seek(0)
    return rows


def read_table(file: BinaryIO, form: TableForm) -> Iterator[pa.RecordBatch]:
    """The columns of a table that records have: value and, if present, key, timestamp and headers.

    Raises: InvalidRecordError for a file that is not such a table, MissingExtraError.
    """
    with _only_tables(form):
        yield from (_read_parquet if form == "parquet" else _read_csv)(file)


@contextmanager
def _only_tables(form: TableForm) -> Iterator[None]:
    """Raises: InvalidRecordError if Arrow cannot read the data, or a column's name is not UTF-8."""
    pa = import_pyarrow()
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError) as error:
        name = "Parquet" if form == "parquet" else "CSV"
        raise InvalidRecordError(f"this is not {name} of records: {error}") from None


def _parquet() -> Any:
    import_pyarrow()
    import pyarrow.parquet

    return pyarrow.parquet


def _csv() -> Any:
    import_pyarrow()
    import pyarrow.csv

    return pyarrow.csv


def _compute() -> Any:
    import_pyarrow()
    import pyarrow.compute

    return pyarrow.compute


def _parquet_writer(out: BinaryIO, schema: pa.Schema, compression: Compression) -> _Writer:
    writer: _Writer = _parquet().ParquetWriter(out, schema, compression=compression)
    return writer


def _read_parquet(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    table = _parquet().ParquetFile(file)
    names = [name for name in table.schema_arrow.names if name in RECORD_COLUMNS]
    yield from table.iter_batches(BATCH_RECORDS, columns=names)


def _csv_writer(out: BinaryIO, schema: pa.Schema, base64: bool) -> _Writer:
    pa = import_pyarrow()
    fields = []
    for field in schema:
        is_bytes = field.name in BYTES_COLUMNS
        name = field.name + BASE64 if is_bytes and base64 else field.name
        fields.append(pa.field(name, pa.string() if is_bytes else field.type))
    writer: _Writer = _csv().CSVWriter(out, pa.schema(fields))
    return writer


def _as_text(batch: pa.RecordBatch, base64: bool, safe_formulas: bool) -> pa.RecordBatch:
    pa = import_pyarrow()
    arrays, names = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in BYTES_COLUMNS and base64:
            name += BASE64
            column = pa.array([each if each is None else b64encode(each).decode() for each in column.to_pylist()])
            column = column.cast(pa.string())
        elif name in BYTES_COLUMNS:
            try:
                column = column.cast(pa.string())
            except pa.ArrowInvalid:
                raise InvalidRecordError(f"a {name} has bytes that are not UTF-8: CSV needs base64 for these") from None
            if safe_formulas:
                column = _compute().replace_substring_regex(column, FORMULA_START, r"'\1")
        arrays.append(column)
        names.append(name)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _read_csv(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    pa, csv = import_pyarrow(), _csv()
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "key" + BASE64: pa.string(),
        "value" + BASE64: pa.string(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
    }
    reader = csv.open_csv(
        file,
        read_options=csv.ReadOptions(block_size=CSV_BLOCK_BYTES),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    for batch in reader:
        columns = {name: batch.column(name) for name in batch.schema.names if name in types}
        for name in BYTES_COLUMNS:
            encoded = columns.pop(name + BASE64, None)
            if encoded is not None:
                columns[name] = pa.array([_decoded(each) for each in encoded.to_pylist()], pa.binary())
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _decoded(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidRecordError(f"not base64: {error}") from None
