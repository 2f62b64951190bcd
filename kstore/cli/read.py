"""``kstore read``: the records of a log, as text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.extent import Extent, extent_options
from kstore.cli.options import ISOLATION_LEVEL, ON_CORRUPT, RAW, format_option, tell_lost
from kstore.cli.places import log_places, open_place
from kstore.cli.record_format import LineWriter
from kstore.cli.record_json import compact, line_start, record_fields, record_line
from kstore.cli.terminal import shown_bytes, shown_line
from kstore.log import Log
from kstore.record._codec import Record
from kstore.types import CorruptRange, IsolationLevel, OnCorrupt

EXAMPLES = """
\b
Examples:
  kstore read data/orders-0
  kstore read --follow data/orders-0
  kstore read --since 2026-01-31T09:00:00+01:00 --count 10 --format json data/orders-0
  kstore read --since '1h ago' --until '30min ago' data/orders-0
  kstore read --start -5 data/orders-0                        the records at the last five offsets
  kstore read --isolation-level read_committed --on-corrupt skip data/orders-0

\b
Exit status:
  0  everything requested was printed
  1  the log cannot be read, or damage was skipped (--on-corrupt skip); standard error says where
  2  bad usage
"""


@click.command("read", cls=KstoreCommand, epilog=EXAMPLES, short_help="Print the records of a log.")
@click.argument("directory", type=click.Path(), metavar="PATH")
@extent_options(
    "Start at the first record at or after this time.",
    "End before the first record at or after this time.",
    old_start="--offset",
    old_since="--time",
)
@click.option("--count", type=click.IntRange(0), metavar="N", help="Stop after N records.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more records at the end, until interrupted.")
@format_option("text: the value's bytes and a line break. json: one object a line.")
@click.option("--key-separator", metavar="TEXT", help="In text, print the key and TEXT before the value.")
@ISOLATION_LEVEL
@ON_CORRUPT
@RAW
def command(
    directory: str,
    extent: Extent,
    count: int | None,
    follow: bool,
    form: str,
    key_separator: str | None,
    isolation_level: IsolationLevel,
    on_corrupt: str,
) -> int:
    """Print the records of the log in PATH, kstore's or a Kafka broker's.

    PATH may also hold logs, which are printed one after another (with "log" in JSON), or be a single .log file,
    which is read to its end, or a place of backups or of logs in an object store.

    Nothing is written to the log, and a writer may be at work on it. A null value prints as an empty line in text, and
    as null in JSON, where bytes that are not UTF-8 are in base64 under "value_base64".
    """
    if follow and extent.has_end:
        raise click.UsageError("--follow has no end: it excludes --stop and --until")
    if key_separator is not None and form == "json":
        raise click.UsageError("--key-separator is for text: in JSON the key is a field")
    separator = None if key_separator is None else key_separator.encode("utf-8", "surrogateescape")
    printer = _Printer(sys.stdout.buffer, _text_line(separator))
    places = log_places(directory)
    if follow and (len(places) > 1 or not places[0].can_grow):
        raise click.UsageError("--follow is for one log that may grow: give the directory of a partition")
    for place in places:
        if form == "json":
            printer.to_line = _json_line({"log": str(place.path)} if len(places) > 1 else {})
        with open_place(place) as log:
            _read(log, printer, _Range(extent, count, follow, isolation_level, on_corrupt))
        if printer.is_done(count):
            break
    return DAMAGED if printer.is_damaged else OK


@dataclass(frozen=True, slots=True)
class _Range:
    """Which records to print."""

    extent: Extent
    count: int | None
    follow: bool
    isolation_level: IsolationLevel
    on_corrupt: str


def _read(log: Log, printer: _Printer, wanted: _Range) -> None:
    isolation_level, on_corrupt, count = wanted.isolation_level, wanted.on_corrupt, wanted.count
    # Existing records are printed in large pieces, later ones at once.
    end = log.last_stable_offset if isolation_level == "read_committed" else log.high_watermark
    start, stop = wanted.extent.of(log, end)
    items = log.read(start, stop, isolation_level=isolation_level, on_corrupt=_policy(on_corrupt))
    try:
        printer.print(items, count)
        printer.flush()
        if wanted.follow and not printer.is_done(count):
            items = log.read(stop, isolation_level=isolation_level, on_corrupt=_policy(on_corrupt), follow=True)
            for item in items:
                printer.print(iter([item]), count)
                printer.flush()
                if printer.is_done(count):
                    break
    finally:
        printer.flush()


class _Printer:
    """Writes records in large pieces, and reports damage on standard error."""

    def __init__(self, out: BinaryIO, to_line: Callable[[Record], bytes]) -> None:
        self._lines = LineWriter(out)
        self.flush = self._lines.flush
        self.to_line = to_line
        self._record_count = 0
        self.is_damaged = False

    def is_done(self, count: int | None) -> bool:
        """Whether ``count`` records are printed."""
        return count is not None and self._record_count >= count

    def print(self, items: Iterator[Record | CorruptRange], count: int | None) -> None:
        """Prints records as they arrive, until ``count`` are printed in all."""
        if self.is_done(count):
            return
        to_line, add = self.to_line, self._lines.add
        for item in items:
            if isinstance(item, CorruptRange):
                self._lost(item)
                continue
            add(to_line(item))
            self._record_count += 1
            if self._record_count == count:
                return

    def _lost(self, lost: CorruptRange) -> None:
        self.flush()
        self.is_damaged = True
        tell_lost(lost)


def _policy(on_corrupt: str) -> OnCorrupt:
    # Skipped damage is reported as it is found.
    return "yield" if on_corrupt == "skip" else "raise"


def _json_line(first: dict[str, str]) -> Callable[[Record], bytes]:
    """A function that turns a record into a line of JSON, with the fields of ``first`` before its own."""
    shown = shown_line()
    if shown is not str:
        return lambda record: f"{shown(compact({**first, **record_fields(record)}))}\n".encode("utf-8", "surrogatepass")
    start = line_start(first)
    return lambda record: record_line(record, first, start)


def _text_line(separator: bytes | None) -> Callable[[Record], bytes]:
    """A function that turns a record into a line of text."""
    shown = shown_bytes()
    if shown is not None:
        if separator is None:
            return lambda record: shown(record.value or b"") + b"\n"
        return lambda record: b"".join([shown(record.key or b""), separator, shown(record.value or b""), b"\n"])
    if separator is None:
        return lambda record: (record.value or b"") + b"\n"
    return lambda record: b"".join([record.key or b"", separator, record.value or b"", b"\n"])
