"""``kstore export``: a log's records as Parquet, CSV or JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, get_args

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.export_run import OWNER_COLUMNS, Export, TableOptions
from kstore.cli.extent import Extent, extent_options
from kstore.cli.options import FORMS, ISOLATION_LEVEL, ON_CORRUPT, RAW, form_of, tell_lost
from kstore.cli.places import LogPlace, Selection, log_places, selection_options
from kstore.cli.progress import progress
from kstore.cli.terminal import shown_output
from kstore.files.output import output_file
from kstore.record.columns import COLUMNS
from kstore.types import IsolationLevel, OnCorrupt
from kstore.upkeep.numbers import counted
from kstore.upkeep.tables import CSV_COLUMNS, Compression, TableForm

STDOUT = "-"

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
