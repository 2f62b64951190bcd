"""``kstore import``: appends the rows of Parquet, CSV or JSON lines to a log as records."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import click

from kstore.cli.append import command as append_command
from kstore.cli.command import OK, KstoreCommand
from kstore.cli.options import DURABILITY, FORMS, config_option, form_of, parse_log_settings
from kstore.cli.progress import progress
from kstore.log import Log
from kstore.types import Durability
from kstore.upkeep.numbers import counted
from kstore.upkeep.tables import TableForm, read_table, table_rows

if TYPE_CHECKING:
    from typing_extensions import Buffer

EXAMPLES = """
\b
Examples:
  kstore import data/orders-0 orders.parquet
  kstore import --durability os --config compression_type=zstd data/orders-0 orders.csv
  kstore export data/a-0 - --format jsonl > a.jsonl; kstore import data/b-0 a.jsonl

\b
Exit status:
  0  all rows are appended
  1  a row is refused; the rows before its batch are appended, and the output gives their number
  2  bad usage
"""


@click.command("import", cls=KstoreCommand, epilog=EXAMPLES, short_help="Append the rows of Parquet, CSV, JSON.")
@click.argument("directory", type=click.Path())
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--format", "form", type=click.Choice(FORMS), help="Default: by the name of FILE.")
@DURABILITY
@config_option("log", "segment_bytes=64MiB or segment.bytes=67108864", formerly="--set")
def command(directory: str, file: str, form: str | None, durability: Durability, configs: tuple[str, ...]) -> int:
    """Append the rows of FILE to the log in DIRECTORY, which is created if it does not exist.

    A table has a column value and may have key, timestamp and headers; a JSON line is one of `kstore read`. New offsets
    are assigned.
    """
    kind = form or form_of(file)
    if kind is None:
        raise click.UsageError(f"what is {file!r}? Name it .parquet, .csv or .jsonl, or give --format")
    given = parse_log_settings(configs)
    with Path(file).open("rb") as source:
        if kind == "jsonl":
            with progress("import", os.fstat(source.fileno()).st_size) as advance:
                lines = cast(BinaryIO, io.BufferedReader(_Watched(source, advance)))
                return _append_lines(directory, lines, durability, configs)
        with Log(directory, durability=durability, **given) as log:
            _append_table(log, source, "parquet" if kind == "parquet" else "csv")
    return OK


def _append_table(log: Log, source: BinaryIO, form: TableForm) -> None:
    count, first, last = 0, -1, -1
    try:
        with progress("import", table_rows(source, form), unit="records") as advance:
            for batch in read_table(source, form):
                info = log.append_arrow(batch)
                if count == 0:
                    first = info.first_offset
                last = info.last_offset
                count += batch.num_rows
                advance(batch.num_rows)
    finally:
        print(f"appended {counted(count, 'record')}, offsets {first} to {last}" if count else "appended nothing")


def _append_lines(directory: str, lines: BinaryIO, durability: str, configs: tuple[str, ...]) -> int:
    """Like `kstore append --json`."""
    append = append_command.callback
    assert append is not None
    status: int = append(
        directory,
        lines,
        is_json=True,
        key_separator=None,
        batch_records=1000,
        durability=durability,
        configs=configs,
        quiet=False,
    )
    return status


class _Watched(io.RawIOBase):
    """A file that reports how much of it was read."""

    def __init__(self, source: BinaryIO, advance: Callable[[int], None]) -> None:
        self._source = source
        self._advance = advance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        data = self._source.read(memoryview(buffer).nbytes)
        memoryview(buffer).cast("B")[: len(data)] = data
        self._advance(len(data))
        return len(data)
