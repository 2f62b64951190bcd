"""``kstore append``: appends lines of text or JSON to a log as records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO

import click

from kstore.cli.command import OK, KstoreCommand
from kstore.cli.interrupts import held_interrupts
from kstore.cli.options import DURABILITY, config_option, parse_log_settings
from kstore.cli.record_json import InputError, JsonRecord
from kstore.cli.record_lines import BATCH_RECORDS, FIELDS, Parse, line_batches, line_parser
from kstore.clock import SYSTEM_CLOCK
from kstore.errors import RequestError
from kstore.log import Log
from kstore.types import Durability
from kstore.upkeep.numbers import counted

EXAMPLES = f"""
\b
Examples:
  seq 10 | kstore append data/numbers-0
  kstore append data/orders-0 orders.txt --key-separator :
  echo '{{"key": "k", "value": "v", "headers": {{"trace": "1"}}}}' | kstore append --json data/orders-0
  kstore read --format json data/orders-0 | kstore append --json data/copy-0
  tail -f app.log | kstore append --durability interval --config segment_bytes=64MiB data/app-0

\b
{FIELDS}"""


@click.command("append", cls=KstoreCommand, epilog=EXAMPLES, short_help="Append lines to a log.")
@click.argument("directory", type=click.Path())
@click.argument("file", type=click.File("rb", lazy=False), default="-")
@click.option("--json", "is_json", is_flag=True, help="Each line is a JSON object, with key, value and headers.")
@click.option("--key-separator", metavar="TEXT", help="The text that separates key and value in a line of text.")
@click.option(
    "--batch",
    "batch_records",
    type=click.IntRange(1),
    default=BATCH_RECORDS,
    show_default=True,
    metavar="N",
    help="Append at most N records at a time.",
)
@DURABILITY
@config_option("log", "segment_bytes=64MiB or segment.bytes=67108864", formerly="--set")
@click.option("--quiet", "-q", is_flag=True, help="Do not print the assigned offsets.")
def command(
    directory: str,
    file: BinaryIO,
    is_json: bool,
    key_separator: str | None,
    batch_records: int,
    durability: Durability,
    configs: tuple[str, ...],
    quiet: bool,
) -> int:
    """Append each line of FILE (default: standard input) as a record to the log in DIRECTORY.

    The log is created if it does not exist. Lines are appended as they arrive: a slow writer's at once, a fast one's in
    batches. Without --json a line is a record's value, whatever its bytes, without its line break.
    """
    parse = line_parser(is_json, key_separator)
    given = parse_log_settings(configs)
    with Log(directory, durability=durability, **given) as log, held_interrupts() as interrupts:
        appender = _Appender(log)
        try:
            _append_lines(appender, line_batches(file, interrupts, batch_records), parse)
        finally:
            if not quiet:
                appender.report()
    return OK


class _Appender:
    """Appends records and remembers their offsets."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._first_offset = self._last_offset = -1
        self.record_count = 0

    def append(self, records: Sequence[JsonRecord]) -> None:
        """Appends the records in one call: all of them or, with a KstoreError, none."""
        timestamps = None
        if any(record.timestamp is not None for record in records):
            now_ms = SYSTEM_CLOCK.now_ms()
            timestamps = [now_ms if record.timestamp is None else record.timestamp for record in records]
        info = self._log.append_many(
            [record.value for record in records],
            keys=[record.key for record in records],
            timestamps=timestamps,
            headers=[record.headers for record in records],
        )
        if self.record_count == 0:
            self._first_offset = info.first_offset
        self._last_offset = info.last_offset
        self.record_count += len(records)

    def report(self) -> None:
        """Prints what was appended."""
        if self.record_count:
            print(
                f"appended {counted(self.record_count, 'record')}, offsets {self._first_offset} to {self._last_offset}"
            )
        else:
            print("appended nothing")


def _append_lines(appender: _Appender, batches: Iterable[list[bytes]], parse: Parse) -> None:
    """Appends all lines. After appending the lines before a bad one, raises KstoreError, naming that line."""
    number = 1
    for lines in batches:
        records: list[JsonRecord] = []
        try:
            for line in lines:
                records.append(parse(line))
        except InputError as error:
            _append_batch(appender, records, number)
            raise InputError(f"line {number + len(records)}: {error}") from None
        _append_batch(appender, records, number)
        number += len(lines)


def _append_batch(appender: _Appender, records: Sequence[JsonRecord], number: int) -> None:
    """Appends records, the first from line ``number``; if one is refused, appends those before it."""
    if not records:
        return
    try:
        appender.append(records)
    except RequestError as error:
        if len(records) == 1:
            raise InputError(f"line {number}: {error}") from error
        for index, record in enumerate(records):
            _append_batch(appender, [record], number + index)
