"""``kstore produce``: sends lines of text or JSON to a topic as records, through a producer."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import BinaryIO, Protocol

import click

from kstore.cli.command import FAILED, INTERRUPTED, OK, KstoreCommand
from kstore.cli.interrupts import Interrupts, held_interrupts
from kstore.cli.options import config_option
from kstore.cli.producing import Pace, opened_producer, parse_producer_settings, store_options
from kstore.cli.record_json import InputError, JsonRecord
from kstore.cli.record_lines import BATCH_RECORDS, FIELDS, Parse, line_batches, line_parser
from kstore.cli.terminal import say
from kstore.cli.value_types import RATE
from kstore.errors import DeliveryError, KstoreError
from kstore.producer._accumulate import Deliveries
from kstore.producer.producer import Producer
from kstore.types import Durability
from kstore.upkeep.numbers import counted

# How many failed lines are reported one by one.
REPORTED_MAX = 10
# With a limit of records a second, how many chunks are sent in a second.
PIECES_PER_SECOND = 10

EXAMPLES = f"""
\b
Examples:
  seq 1000 | kstore produce data numbers --create-topic --partitions 4
  kstore produce data orders orders.txt --key-separator : --config linger_ms=50 --config compression.type=zstd
  echo '{{"key": "k", "value": "v", "partition": 2}}' | kstore produce data orders --json
  kstore read --format json data/orders-0 | kstore produce data copy --json
  kstore produce data orders orders.txt --transactional-id import       all lines or, for committed readers, none
  tail -f app.log | kstore produce data app --durability interval --rate 5000

\b
{FIELDS}  partition    a number; if absent, the key's hash decides, and without a key batches take turns

Ctrl-C ends the reading of lines: kstore names the last line it sent, and delivers what it sent. A second Ctrl-C does
not wait for that. With --transactional-id either one aborts the transaction.

\b
Exit status:
  0    every line became a record
  1    a record failed, a line was invalid, or the store or topic cannot be opened; standard error says why
  2    bad usage
  130  interrupted
"""


@click.command("produce", cls=KstoreCommand, epilog=EXAMPLES, short_help="Send lines to a topic.")
@click.argument("directory", type=click.Path())
@click.argument("topic")
@click.argument("file", type=click.File("rb", lazy=False), default="-")
@click.option("--json", "is_json", is_flag=True, help="Each line is a JSON object, with key, value and headers.")
@click.option("--key-separator", metavar="TEXT", help="The text that separates key and value in a line of text.")
@click.option("--rate", type=RATE, metavar="N", help="Send at most N records a second.")
@click.option("--transactional-id", metavar="ID", help="Send all lines in one transaction of this producer.")
@config_option("producer", "linger_ms=50 or linger.ms=50")
@store_options
@click.option("--quiet", "-q", is_flag=True, help="Do not print how many records were sent.")
def command(
    directory: str,
    topic: str,
    file: BinaryIO,
    is_json: bool,
    key_separator: str | None,
    rate: float | None,
    transactional_id: str | None,
    configs: tuple[str, ...],
    create_topic: bool,
    partitions: int | None,
    durability: Durability,
    quiet: bool,
) -> int:
    """Send each line of FILE (default: standard input) as a record to TOPIC of the store in DIRECTORY.

    Lines are sent as they arrive, and gathered into batches for linger_ms. Without --json a line is a record's value,
    whatever its bytes, without its line break. A failed record is reported by its line and the others continue; an
    invalid line ends the run after the lines before it are delivered.
    """
    parse = line_parser(is_json, key_separator, takes_partition=True)
    if transactional_id is not None:
        configs += (f"transactional_id={transactional_id}",)
    settings = parse_producer_settings(configs)
    with opened_producer(
        directory, topic, settings, create_topic=create_topic, partitions=partitions, durability=durability
    ) as (producer, partition_count):
        run = _Run(producer, topic, partition_count, parse, Pace(rate), quiet)
        return run.produce(file)


class _Run:
    """One run of the command."""

    def __init__(
        self, producer: Producer, topic: str, partition_count: int, parse: Parse, pace: Pace, is_quiet: bool
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partition_count = partition_count
        self._parse = parse
        self._pace = pace
        self._is_quiet = is_quiet
        self._is_transactional = producer.config.transactional_id is not None
        self._sender = LineSender(producer, topic, self._tell_failure)
        # The last line whose record was sent.
        self._last_line = 0
        self._reported_count = 0
        self._is_aborted = False

    def produce(self, file: BinaryIO) -> int:
        """Sends all lines, and reports the outcome; the exit status."""
        started = time.monotonic()
        try:
            with held_interrupts() as interrupts:
                status = self._send_and_end(file, interrupts)
        except KeyboardInterrupt:
            return self._give_up()
        if not self._is_quiet:
            self._report(time.monotonic() - started)
        return status

    def _send_and_end(self, file: BinaryIO, interrupts: Interrupts) -> int:
        if self._is_transactional:
            self._producer.init_transactions()
            self._producer.begin_transaction()
        status = OK
        try:
            self._send_lines(file, interrupts)
        except KstoreError as error:
            status = FAILED
            say(str(error))
        except KeyboardInterrupt:
            status = INTERRUPTED
        if self._is_transactional:
            return self._end_transaction(status)
        if status == INTERRUPTED:
            say(f"interrupted after line {self._last_line}; what was sent is being delivered")
        self._sender.settle()
        self._producer.flush()
        return FAILED if status == OK and self._sender.failed_count else status

    # --- lines ------------------------------------------------------------------------------------------------------

    def _send_lines(self, file: BinaryIO, interrupts: Interrupts) -> None:
        """Sends the lines of ``file`` and waits until they are delivered.

        Raises: InputError, naming the line, after sending those before it; KeyboardInterrupt.
        """
        for lines in line_batches(file, interrupts):
            records: list[JsonRecord] = []
            broken: InputError | None = None
            try:
                for line in lines:
                    records.append(self._checked(self._parse(line)))
            except InputError as error:
                broken = InputError(f"line {self._last_line + len(records) + 1}: {error}")
            for piece in self._pieces(records):
                with interrupts.allowed():
                    self._pace.wait_for(len(piece))
                self._sender.send(piece, self._last_line + 1)
                self._last_line += len(piece)
            if broken is not None:
                raise broken
            if self._is_transactional and self._sender.failed_count:
                return  # it can only be aborted
        with interrupts.allowed():
            self._sender.settle()

    def _pieces(self, records: Sequence[JsonRecord]) -> Iterator[Sequence[JsonRecord]]:
        rate = self._pace.per_second
        size = BATCH_RECORDS if rate is None else max(1, min(BATCH_RECORDS, int(rate / PIECES_PER_SECOND)))
        return (records[start : start + size] for start in range(0, len(records), size))

    def _checked(self, record: JsonRecord) -> JsonRecord:
        if record.partition is not None and not 0 <= record.partition < self._partition_count:
            # The producer would wait for the partition, which no process can create in the meantime.
            raise InputError(f"partition {record.partition}, expected 0 to {self._partition_count - 1}")
        if record.timestamp is not None and record.timestamp < 0:
            raise InputError(f"timestamp {record.timestamp}, expected at least 0")
        return record

    # --- what became of them ----------------------------------------------------------------------------------------

    def _end_transaction(self, status: int) -> int:
        """Commits if every record succeeded, else aborts; the exit status."""
        if status == OK and not self._sender.failed_count:
            try:
                self._producer.commit_transaction()
                return OK
            except KstoreError as error:
                say(str(error))
        self._sender.settle_done()
        self._is_aborted = True
        self._producer.abort_transaction()
        # They failed with the transaction, and were reported with it.
        self._sender.settle()
        interrupted = "interrupted: " if status == INTERRUPTED else ""
        say(f"{interrupted}the transaction was aborted: committed readers see none of the lines")
        return status or FAILED

    def _give_up(self) -> int:
        lost_count = sum(self._producer.undelivered().values())
        try:
            self._producer.close(0)
        except DeliveryError:
            pass  # as many as were counted
        say(f"interrupted again: {lost_count} of {self._sender.sent_count} records are not known to be delivered")
        return INTERRUPTED

    def _tell_failure(self, line: int, error: Exception) -> None:
        if self._is_aborted or self._reported_count > (0 if self._is_transactional else REPORTED_MAX):
            return  # the others of a transaction fail with the first
        self._reported_count += 1
        say(
            f"line {line}: {error}" if self._reported_count <= REPORTED_MAX else "further failed lines are only counted"
        )

    def _report(self, seconds: float) -> None:
        if self._is_aborted:
            return
        sender = self._sender
        failed = f", {sender.failed_count} failed" if sender.failed_count else ""
        together = " in one transaction" if self._is_transactional else ""
        produced = counted(sender.sent_count - sender.failed_count, "record")
        print(f"produced {produced} to {self._topic}{together} in {seconds:.2f} s{failed}", file=sys.stderr)


# --- records, and the failures of their lines ----------------------------------------------------------------------


class Sends(Protocol):
    """What it needs of a producer."""

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int | None] | None = None,
        headers: Sequence[Iterable[tuple[str, bytes | None]] | None] | None = None,
        partition: int | None = None,
    ) -> Deliveries: ...


class LineSender:
    """Sends records to one topic. ``on_failure(line, error)`` is called for each failed one, in the order of lines."""

    def __init__(self, producer: Sends, topic: str, on_failure: Callable[[int, Exception], object]) -> None:
        self._producer = producer
        self._topic = topic
        self._on_failure = on_failure
        # Sends whose results have not been checked yet, each with the line of its first record.
        self._pending: deque[tuple[int, Deliveries]] = deque()
        self.sent_count = 0
        self.failed_count = 0

    def send(self, records: Sequence[JsonRecord], line: int) -> None:
        """Sends records from consecutive lines, the first from ``line``. Raises: as ``send``."""
        for partition, group in groupby(records, lambda record: record.partition):
            together = list(group)
            deliveries = self._producer.send_many(
                self._topic,
                [record.value for record in together],
                keys=[record.key for record in together],
                timestamps=[record.timestamp for record in together],
                headers=[record.headers for record in together],
                partition=partition,
            )
            self._pending.append((line, deliveries))
            self.sent_count += len(together)
            line += len(together)
        self.settle_done()

    def settle_done(self) -> None:
        """Reports the failures so far."""
        while self._pending and self._pending[0][1].done():
            self._settle_next()

    def settle(self) -> None:
        """Waits until every record has arrived or failed."""
        while self._pending:
            self._settle_next()

    def _settle_next(self) -> None:
        line, deliveries = self._pending[0]
        errors = deliveries.errors()
        self._pending.popleft()
        self.failed_count += len(errors)
        for index, error in errors.items():
            self._on_failure(line + index, error)
