"""``kstore export``: a log's records as Parquet, CSV or JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, get_args

import click

from kstore.cli.command import KstoreCommand
from kstore.cli.counted import counted
from kstore.cli.extent import Extent, extent_options
from kstore.cli.options import ISOLATION_LEVEL, ON_CORRUPT, RAW, lost_line
from kstore.cli.progress import progress
from kstore.cli.record_json import line_start, record_line
from kstore.cli.status import DAMAGED, OK
from kstore.cli.table_form import FORMS, form_of
from kstore.cli.terminal import shown_output
from kstore.files.output import output_file
from kstore.log import Log
from kstore.record.columns import COLUMNS
from kstore.types import CorruptRange, IsolationLevel, OnCorrupt
from kstore.upkeep.tables import CSV_COLUMNS, Compression, TableForm, write_table

__all__ = ["command"]

STDOUT = "-"
LINES_AT_ONCE = 1000

EXAMPLES = """
\b
Examples:
  kstore export data/orders-0 orders.parquet
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
@click.argument("directory", type=click.Path())
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--format", "form", type=click.Choice(FORMS), help="Default: by the name of FILE.")
@click.option("--columns", metavar="NAME,...", help=f"For a table, of {', '.join(COLUMNS)}. Default: all.")
@extent_options(
    "Start at the first record at or after this time.", "End before the first record at or after this time."
)
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
    directory: str,
    file: str,
    form: str | None,
    columns: str | None,
    extent: Extent,
    isolation_level: IsolationLevel,
    on_corrupt: OnCorrupt,
    compression: Compression,
    base64: bool,
    safe_formulas: bool,
    force: bool,
) -> int:
    """Write the records of the log in DIRECTORY to FILE ("-": standard output), which appears when it is complete.

    A table has the columns of Spark's Kafka source. CSV has no headers. JSON lines are those of `kstore read`.
    """
    kind = form or form_of(file)
    if kind is None:
        raise click.UsageError(f"what is {file!r}? Name it .parquet, .csv or .jsonl, or give --format")
    if file == STDOUT and kind == "parquet":
        raise click.UsageError("Parquet needs a file: standard output cannot seek")
    if columns is not None and kind == "jsonl":
        raise click.UsageError("--columns is for tables: a JSON line has all fields")
    wanted = tuple(columns.split(",")) if columns is not None else CSV_COLUMNS if kind == "csv" else COLUMNS
    if kind == "csv" and "headers" in wanted:
        raise click.UsageError("CSV has no headers: leave them out, or write Parquet or JSON lines")
    if safe_formulas and kind != "csv":
        raise click.UsageError("--safe-formulas is for CSV")
    if file != STDOUT and not force and Path(file).exists():
        raise click.UsageError(f"{file} exists already: --force replaces it")
    with Log(directory, read_only=True) as log:
        first, end = extent.of(log, log.high_watermark)
        start, stop = first if extent.has_start else None, end if extent.has_end else None
        output = _standard_output() if file == STDOUT else output_file(file)
        with output as out, _progress(file, end - first) as advance:
            if kind == "jsonl":
                reader = log.read(start, stop, isolation_level=isolation_level, on_corrupt=on_corrupt)
                corrupt, count = reader.corrupt, _write_lines(reader, out, advance)
            else:
                batches = log.to_arrow_batches(
                    start, stop, columns=wanted, isolation_level=isolation_level, on_corrupt=on_corrupt
                )
                table: TableForm = "parquet" if kind == "parquet" else "csv"
                count = write_table(
                    batches,
                    batches.schema,
                    out,
                    table,
                    base64=base64,
                    safe_formulas=safe_formulas,
                    compression=compression,
                    advance=advance,
                )
                corrupt = batches.corrupt
    _report(corrupt)
    if file != STDOUT:
        print(f"exported {counted(count, 'record')} to {file}")
    return DAMAGED if corrupt else OK


def _write_lines(records: Iterator[object], out: BinaryIO, advance: Callable[[int], None]) -> int:
    lines: list[bytes] = []
    count, start = 0, line_start({})
    for record in records:
        lines.append(record_line(record, {}, start))  # type: ignore[arg-type]  # nothing else without "yield"
        if len(lines) == LINES_AT_ONCE:
            count += _drain(lines, out, advance)
    return count + _drain(lines, out, advance)


def _drain(lines: list[bytes], out: BinaryIO, advance: Callable[[int], None]) -> int:
    count = len(lines)
    out.write(b"".join(lines))
    advance(count)
    lines.clear()
    return count


@contextmanager
def _standard_output() -> Iterator[BinaryIO]:
    out = shown_output()
    yield out
    out.flush()


def _progress(file: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    # Records on standard output are progress enough.
    return nullcontext(lambda count: None) if file == STDOUT else progress("export", total, unit="records")


def _report(corrupt: list[CorruptRange]) -> None:
    for lost in corrupt:
        print(lost_line(lost), file=sys.stderr)
