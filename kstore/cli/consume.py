"""``kstore consume``: the records of topics, printed as kcat prints them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO, Literal

import click

from kstore.cli._json_lines import kcat_line
from kstore.cli.command import OK, KstoreCommand
from kstore.cli.names import complete_groups, complete_topics
from kstore.cli.options import ISOLATION_LEVEL, ON_CORRUPT, RAW, durability_option
from kstore.cli.record_format import FormatError, LineWriter, RecordFormat
from kstore.cli.record_json import add_bytes, compact, header_fields, json_line, line_start
from kstore.cli.terminal import say, shown_bytes, shown_line
from kstore.cli.value_types import OffsetType, Place, begin_offset, end_offset
from kstore.consumer.consumer import Consumer
from kstore.files.paths import TopicPartition
from kstore.record._codec import Record
from kstore.store import Store
from kstore.types import CREATE_TIME, LOG_APPEND_TIME, Durability, IsolationLevel

# How long a poll waits; Ctrl-C ends it at once.
POLL_SECONDS = 5.0
POLL_RECORDS = 10_000
TIMESTAMP_TYPES = {CREATE_TIME: "create", LOG_APPEND_TIME: "logappend"}
UNKNOWN_TYPE = "unknown"

Line = Callable[[TopicPartition, Record], bytes]

EXAMPLES = """
\b
Examples:
  kstore consume data orders                                  every record, then new ones as they arrive
  kstore consume -o -5 -e data orders                         the last five of each partition
  kstore consume -o s@1700000000000 -o e@1700003600000 data orders    the records of one hour
  kstore consume -e -f '%t-%p %o %T %k=%s\\n' data orders
  kstore consume -J -c 10 data orders | jq .payload
  kstore consume -G billing -e data orders                    records new to the group; commits them

\b
Values of -o, which may be given twice, for start and end:
  beginning, end    the first record, after the last
  stored            the group's committed offset; the default with -G
  N, -N             an offset; N before the end, in each partition
  s@TIME, e@TIME    from, up to a time: 1700000000000 (ms), 2026-01-31T09:00, '1h ago', yesterday

\b
Placeholders of -f:
  %s value   %S its size, -1 for null   %R the same in 4 bytes
  %k key   %K its size   %h headers   %t topic   %p partition   %o offset
  %T timestamp, ms   %%   \\n \\t \\r \\\\ \\xHH

-J prints an object a line, with kcat's names; bytes that are not UTF-8 are in base64, under key_base64 or
payload_base64.

\b
Exit status:
  0    everything requested was printed
  1    a topic cannot be read; standard error says why
  2    bad usage
  130  interrupted
"""


@click.command("consume", cls=KstoreCommand, epilog=EXAMPLES, short_help="Print the records of topics.")
@click.argument("directory", type=click.Path())
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--offset", "-o", "places", type=OffsetType(), multiple=True, help="Where to start and end: see below.")
@click.option("--partition", "-p", "partitions", type=click.IntRange(0), multiple=True, help="Only this partition.")
@click.option("--count", "-c", type=click.IntRange(0), metavar="N", help="Stop after N records.")
@click.option("--exit", "-e", "exits", is_flag=True, help="Stop at the end, as it was at the start.")
@click.option("--format", "-f", "form", metavar="FORMAT", help="How a record is printed: see below.")
@click.option("--json", "-J", "is_json", is_flag=True, help="One object a line.")
@click.option("--delimiter", "-D", default="\\n", show_default=True, metavar="TEXT", help="Printed after each value.")
@click.option("--key-delimiter", "-K", metavar="TEXT", help="Print the key and TEXT before the value.")
@click.option("--null", "-Z", is_flag=True, help="Print NULL for a null value or key.")
@click.option(
    "--group", "-G", metavar="GROUP", shell_complete=complete_groups, help="Read as a member of this group, and commit."
)
@durability_option("With --group: the durability that the store's other processes use.")
@ISOLATION_LEVEL
@ON_CORRUPT
@RAW
def command(
    directory: str,
    topics: tuple[str, ...],
    places: tuple[Place, ...],
    partitions: tuple[int, ...],
    count: int | None,
    exits: bool,
    form: str | None,
    is_json: bool,
    delimiter: str,
    key_delimiter: str | None,
    null: bool,
    group: str | None,
    durability: Durability,
    isolation_level: IsolationLevel,
    on_corrupt: Literal["raise", "skip"],
) -> int:
    """Print the records of TOPIC in the store, or broker's directory, DIRECTORY.

    Without -G nothing is written, and a writer may be at work. With -G the store is opened for writing alongside other
    processes that share it, printed records are committed, and the group's members share the partitions.
    """
    line = _line(form, is_json, delimiter, key_delimiter, b"NULL" if null else b"")
    begin, until_ms = _places(places)
    if group is not None and (partitions or until_ms is not None or (begin and begin.kind != "stored")):
        raise click.UsageError("with --group, reading starts at the group's offsets, in all assigned partitions")
    if group is None and begin is not None and begin.kind == "stored":
        raise click.UsageError("--offset stored needs --group")
    with (
        _opened(directory, durability, as_member=group is not None) as store,
        store.consumer(group=group, isolation_level=isolation_level, on_corrupt=on_corrupt) as consumer,
    ):
        run = _Run(consumer, line, sys.stdout.buffer, count)
        try:
            if group is not None:
                consumer.subscribe(topics)
                run.as_member(exits)
            else:
                owners = _owners(store, topics, partitions)
                run.read(store, owners, begin or Place("beginning"), until_ms, exits or until_ms is not None)
        finally:
            run.flush()
    return OK


class _Run:
    """One run of the command."""

    def __init__(self, consumer: Consumer, line: Line, out: BinaryIO, count: int | None) -> None:
        self._consumer = consumer
        self._line = line
        self._lines = LineWriter(out)
        self.flush = self._lines.flush
        self._rest = count
        self._is_at_end = False

    def read(self, store: Store, owners: list[TopicPartition], begin: Place, until_ms: int | None, exits: bool) -> None:
        """Prints partitions from ``begin``; to their present end if it ``exits``."""
        consumer = self._consumer
        consumer.assign(owners)
        stops: dict[TopicPartition, int] = {}
        for owner in owners:
            log = store.log(*owner)
            start = begin_offset(log, begin)
            consumer.seek(owner, start)
            if exits:
                stops[owner] = end_offset(log, until_ms)
        while self._rest != 0:
            for owner, stop in stops.items():
                if owner not in consumer.paused() and consumer.position(owner) >= stop:
                    consumer.pause(owner)
            if stops and len(consumer.paused()) == len(stops):
                return
            found = consumer.poll(0 if stops or not self._is_at_end else POLL_SECONDS, self._wanted())
            if stops and not found:
                return  # the rest up to the end is aborted or uncommitted
            if not found:
                self._tell_end()
            for owner, records in found.items():
                self._print(owner, [one for one in records if one.offset < stops.get(owner, one.offset + 1)])
            self.flush()

    def as_member(self, exits: bool) -> None:
        """Prints the records of the member's partitions and commits them."""
        while self._rest != 0:
            found = self._consumer.poll(0 if exits else POLL_SECONDS, self._wanted())
            if not found and not exits and self._consumer.assignment():
                self._tell_end()
            for owner, records in found.items():
                self._print(owner, records)
            self.flush()
            self._consumer.commit()
            if exits and not found:
                return

    def _tell_end(self) -> None:
        """Reports once that all records were printed."""
        if not self._is_at_end:
            self._is_at_end = True
            say("reached the end, waiting for records; Ctrl-C ends")

    def _wanted(self) -> int:
        return POLL_RECORDS if self._rest is None else min(self._rest, POLL_RECORDS)

    def _print(self, owner: TopicPartition, records: Sequence[Record]) -> None:
        if self._rest is not None:
            records = records[: self._rest]
            self._rest -= len(records)
        for record in records:
            self._lines.add(self._line(owner, record))


def _opened(directory: str, durability: Durability, *, as_member: bool) -> Store:
    if as_member:
        return Store(directory, shared=True, durability=durability, create=False)
    return Store(directory, read_only=True, create=False)


def _places(places: tuple[Place, ...]) -> tuple[Place | None, int | None]:
    begins = [place for place in places if place.kind != "until"]
    ends = [place for place in places if place.kind == "until"]
    if len(begins) > 1 or len(ends) > 1:
        raise click.UsageError("--offset: give one start and one end")
    return (begins[0] if begins else None), (ends[0].number if ends else None)


def _owners(store: Store, topics: tuple[str, ...], partitions: tuple[int, ...]) -> list[TopicPartition]:
    owners = [
        TopicPartition(topic, number)
        for topic in dict.fromkeys(topics)
        for number in dict.fromkeys(partitions or store.partitions(topic))
    ]
    for owner in owners:
        store.log(*owner)  # reports a missing partition at once
    return owners


def _line(form: str | None, is_json: bool, delimiter: str, key_delimiter: str | None, null: bytes) -> Line:
    if is_json:
        if form is not None or key_delimiter is not None:
            raise click.UsageError("--json has its own format: it excludes --format and --key-delimiter")
        return _JsonLines(shown_line())
    text = form
    if text is None:
        key = "" if key_delimiter is None else "%k" + key_delimiter.replace("%", "%%")
        text = f"{key}%s{delimiter.replace('%', '%%')}"
    try:
        return RecordFormat(text, null=null, shown=shown_bytes())
    except FormatError as error:
        raise click.UsageError(f"--format: {error}") from None


class _JsonLines:
    """Makes the lines of records, with kcat's names."""

    def __init__(self, shown: Callable[[str], str]) -> None:
        self._shown = shown
        # How the lines of a partition begin.
        self._starts: dict[TopicPartition, bytes] = {}

    def __call__(self, owner: TopicPartition, record: Record) -> bytes:
        if self._shown is not str:
            return f"{self._shown(compact(_json_fields(owner, record)))}\n".encode("utf-8", "surrogatepass")
        start = self._starts.get(owner)
        if start is None:
            start = self._starts[owner] = line_start({"topic": owner.topic, "partition": owner.partition})
        line = kcat_line(record, start, TIMESTAMP_TYPES.get(record.timestamp_type, UNKNOWN_TYPE).encode())
        return json_line(_json_fields(owner, record)) if line is None else line


def _json_fields(owner: TopicPartition, record: Record) -> dict[str, object]:
    fields: dict[str, object] = {
        "topic": owner.topic,
        "partition": owner.partition,
        "offset": record.offset,
        "tstype": TIMESTAMP_TYPES.get(record.timestamp_type, UNKNOWN_TYPE),
        "ts": record.timestamp,
        "headers": header_fields(record.headers),
    }
    add_bytes(fields, "key", record.key)
    add_bytes(fields, "payload", record.value)
    return fields
