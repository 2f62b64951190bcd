"""``kstore export``: a log's records as Parquet, CSV or JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, get_args

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.extent import Extent, extent_options
from kstore.cli.options import FORMS, ISOLATION_LEVEL, ON_CORRUPT, RAW, form_of, tell_lost
from kstore.cli.places import LogPlace, Selection, log_places, open_place, selection_options
from kstore.cli.progress import progress
from kstore.cli.record_json import line_start, record_line
from kstore.cli.terminal import shown_output
from kstore.errors import ConfigError
from kstore.files.output import output_file
from kstore.files.paths import topic_partition
from kstore.record.columns import COLUMNS, ColumnOptions, import_pyarrow
from kstore.types import CorruptRange, IsolationLevel, OnCorrupt
from kstore.upkeep.numbers import counted
from kstore.upkeep.tables import CSV_COLUMNS, Compression, TableForm, write_table

if TYPE_CHECKING:
    import pyarrow as pa

STDOUT = "-"
OWNER_COLUMNS = ("topic", "partition")
LINES_AT_ONCE = 1000

EXAMPLES = """
\b
Examples:
  kstore export data/orders-0 orders.parquet
  kstore export --topic orders data/ orders.parquet      every partition, in one file
  kstore export --columns offset,timestamp,value data/orders-0 orders.csv
  kstore export --start 1000 --stop 2000 --format jsonl data/orders-0 - | jq .
  kstore export --isolation-level read_committed --on-corrupt skip data/orders-0 orders.parquet

\b
Exit status:
  0  done
  1  the log cannot be read, and no file is left; or damage was skipped (--on-corrupt skip)
  2  bad usage
"""


@click.command("export", cls=KstoreCommand, epilog=EXAMPLES, short_help="Write a log's records as Parquet, CSV, JSON.")
@click.argument("path", type=click.Path())
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--format", "form", type=click.Choice(FORMS), help="Default: by the name of FILE.")
@click.option(
    "--columns", metavar="NAME,...", help=f"For a table, of {', '.join((*COLUMNS, *OWNER_COLUMNS))}. Default: all."
)
@extent_options(
    "Start at the first record at or after this time.", "End before the first record at or after this time."
)
@selection_options
@ISOLATION_LEVEL
@ON_CORRUPT
@click.option(
    "--compression",
    type=click.Choice(list(get_args(Compression))),
    default="zstd",
    show_default=True,
    help="The codec of Parquet.",
)
@click.option("--base64", is_flag=True, help="In CSV, keys and values in base64; else they must be UTF-8.")
@click.option(
    "--safe-formulas",
    is_flag=True,
    help="In CSV, put ' before keys and values that a spreadsheet would run: those that start with = + - @, a tab or a"
    " carriage return.",
)
@RAW
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def command(
    path: str,
    file: str,
    form: str | None,
    columns: str | None,
    extent: Extent,
    selection: Selection,
    isolation_level: IsolationLevel,
    on_corrupt: OnCorrupt,
    compression: Compression,
    base64: bool,
    safe_formulas: bool,
    force: bool,
) -> int:
    """Write the records of the log in PATH to FILE ("-": standard output), which appears when it is complete.

    PATH may also hold logs, which are written one after the other, each record with its topic and partition; or be a
    single .log file, or a place of backups or of logs in an object store. A table has the columns of Spark's Kafka
    source. CSV has no headers. JSON lines are those of `kstore read`.
    """
    kind = form or form_of(file)
    if kind is None:
        raise click.UsageError(f"what is {file!r}? Name it .parquet, .csv or .jsonl, or give --format")
    if file == STDOUT and kind == "parquet":
        raise click.UsageError("Parquet needs a file: standard output cannot seek")
    if columns is not None and kind == "jsonl":
        raise click.UsageError("--columns is for tables: a JSON line has all fields")
    has_owners, places = _places(path, selection)
    default = (*(OWNER_COLUMNS if has_owners else ()), *(CSV_COLUMNS if kind == "csv" else COLUMNS))
    wanted = default if columns is None else tuple(columns.split(","))
    if kind == "csv" and "headers" in wanted:
        raise click.UsageError("CSV has no headers: leave them out, or write Parquet or JSON lines")
    if safe_formulas and kind != "csv":
        raise click.UsageError("--safe-formulas is for CSV")
    if file != STDOUT and not force and Path(file).exists():
        raise click.UsageError(f"{file} exists already: --force replaces it")
    export = Export(places, extent, with_owners=has_owners, isolation_level=isolation_level, on_corrupt=on_corrupt)
    output = _standard_output() if file == STDOUT else output_file(file)
    with output as out, _progress(file, export.record_count) as advance:
        if kind == "jsonl":
            count = export.write_lines(out, advance)
        else:
            form_of_table: TableForm = "parquet" if kind == "parquet" else "csv"
            options = TableOptions(form_of_table, wanted, base64, safe_formulas, compression)
            count = export.write_table(out, options, advance)
    for lost in export.corrupt:
        tell_lost(lost)
    if file != STDOUT:
        print(f"exported {counted(count, 'record')} to {file}")
    return DAMAGED if export.corrupt else OK


def _places(path: str, selection: Selection) -> tuple[bool, list[LogPlace]]:
    """Whether ``path`` holds logs, and is not one, and the chosen ones."""
    found = log_places(path)
    is_log = len(found) == 1 and (found[0].text == path.rstrip("/") or found[0].path == Path(path))
    chosen = [log for log in found if selection.takes(log, path)]
    if not chosen:
        raise click.UsageError(f"{path} has none of the wanted topics and partitions")
    return not is_log, chosen


@contextmanager
def _standard_output() -> Iterator[BinaryIO]:
    out = shown_output()
    yield out
    out.flush()


def _progress(file: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    # Records on standard output are progress enough.
    return nullcontext(lambda count: None) if file == STDOUT else progress("export", total, unit="records")


# --- the records of one log, or of several, one after the other, as one file ------------------------------------------


class TableOptions(NamedTuple):
    """How a table is written; see ``write_table``."""

    form: TableForm
    columns: tuple[str, ...]
    base64: bool
    safe_formulas: bool
    compression: Compression


class _Part(NamedTuple):
    """Records of a log: from ``start``, None for the first, to before ``stop``, None for the end; about
    ``record_count``."""

    place: LogPlace
    start: int | None
    stop: int | None
    record_count: int


class Export:
    """The records of ``places`` within ``extent``. ``corrupt`` is the damage that was skipped. Not thread-safe."""

    def __init__(
        self,
        places: Sequence[LogPlace],
        extent: Extent,
        *,
        with_owners: bool,
        isolation_level: IsolationLevel,
        on_corrupt: OnCorrupt,
    ) -> None:
        """``with_owners``: a line names its topic and partition, and a log may end before ``extent`` starts.

        Raises: as ``Log``, for a log that cannot be opened; StorageError.
        """
        self._with_owners = with_owners
        self._isolation_level: IsolationLevel = isolation_level
        self._on_corrupt: OnCorrupt = on_corrupt
        self._parts = [_part(place, extent, clips=with_owners) for place in places]
        self.record_count = sum(part.record_count for part in self._parts)
        self.corrupt: list[CorruptRange] = []

    def write_lines(self, out: BinaryIO, advance: Callable[[int], None]) -> int:
        """Writes JSON lines; returns their number. Raises: as a read."""
        count = 0
        for part in self._parts:
            first = _owner(part.place) if self._with_owners else {}
            with open_place(part.place) as log:
                reader = log.read(
                    part.start, part.stop, isolation_level=self._isolation_level, on_corrupt=self._on_corrupt
                )
                count += _write_lines(reader, first, out, advance)
                self.corrupt += reader.corrupt
        return count

    def write_table(self, out: BinaryIO, options: TableOptions, advance: Callable[[int], None]) -> int:
        """Writes a table; returns the number of rows. Raises: as ``Log.to_arrow_batches`` and ``write_table``."""
        # Without a column of the log nothing would tell how many rows there are.
        own = tuple(name for name in options.columns if name not in OWNER_COLUMNS) or ("offset",)
        schema = _schema(options.columns, own)
        with closing(self._batches(schema, own)) as batches:
            return write_table(
                batches,
                schema,
                out,
                options.form,
                base64=options.base64,
                safe_formulas=options.safe_formulas,
                compression=options.compression,
                advance=advance,
            )

    def _batches(self, schema: pa.Schema, own: tuple[str, ...]) -> Generator[pa.RecordBatch, None, None]:
        is_plain = tuple(schema.names) == own
        for part in self._parts:
            with open_place(part.place) as log:
                batches = log.to_arrow_batches(
                    part.start,
                    part.stop,
                    columns=own,
                    isolation_level=self._isolation_level,
                    on_corrupt=self._on_corrupt,
                )
                for batch in batches:
                    yield batch if is_plain else _with_owner(batch, schema, part.place)
                self.corrupt += batches.corrupt


def _part(place: LogPlace, extent: Extent, *, clips: bool) -> _Part:
    with open_place(place) as log:
        high_watermark = log.high_watermark
        first, end = extent.of(log, high_watermark)
        if clips:
            first, end = min(max(first, log.start_offset), high_watermark), min(end, high_watermark)
    return _Part(place, first if extent.has_start else None, end if extent.has_end else None, max(end - first, 0))


def _owner(place: LogPlace) -> dict[str, str | int | None]:
    owner = topic_partition(place.path.name)
    return {"topic": place.path.name, "partition": None} if owner is None else owner._asdict()


def _schema(columns: tuple[str, ...], own: tuple[str, ...]) -> pa.Schema:
    if len(set(columns)) < len(columns):
        raise ConfigError(f"columns are {list(columns)}, expected each once")
    schema = ColumnOptions(columns=own).schema()
    pa = import_pyarrow()
    owners = {"topic": pa.field("topic", pa.string()), "partition": pa.field("partition", pa.int32())}
    return pa.schema([owners[name] if name in owners else schema.field(name) for name in columns])


def _with_owner(batch: pa.RecordBatch, schema: pa.Schema, place: LogPlace) -> pa.RecordBatch:
    pa, owner = import_pyarrow(), _owner(place)
    columns = [
        pa.repeat(pa.scalar(owner[field.name], field.type), batch.num_rows)
        if field.name in owner
        else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _write_lines(
    records: Iterator[object], first: dict[str, str | int | None], out: BinaryIO, advance: Callable[[int], None]
) -> int:
    lines: list[bytes] = []
    count, start = 0, line_start(first)
    for record in records:
        lines.append(record_line(record, first, start))  # type: ignore[arg-type]  # nothing else without "yield"
        if len(lines) == LINES_AT_ONCE:
            count += _drain(lines, out, advance)
    return count + _drain(lines, out, advance)


def _drain(lines: list[bytes], out: BinaryIO, advance: Callable[[int], None]) -> int:
    count = len(lines)
    out.write(b"".join(lines))
    advance(count)
    lines.clear()
    return count
