"""``kstore perf consumer``: measures how fast the records of topics are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import click

from kstore.cli.command import FAILED, OK, KstoreCommand
from kstore.cli.json_fields import old_names
from kstore.cli.options import format_option
from kstore.cli.record_json import compact
from kstore.cli.terminal import say
from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.consumer.consumer import Consumer
from kstore.setting_rules import KIB, MIB
from kstore.store import Store

KINDS = ("records", "values", "arrow")
ARROW_RECORDS = 65_536
COLUMNS = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)

EXAMPLES = """
\b
Examples:
  kstore perf consumer data bench --messages 1000000
  kstore perf consumer data bench --messages 1000000 --as values
  kstore perf consumer data bench --messages 1000000 --as arrow --format json | jq .records_per_second

The lines are those of kafka-consumer-perf-test; a MB is 2**20 bytes, of values. Nothing is written, or committed.

\b
Exit status:
  0    all records were read
  1    there were fewer, or the store or topic cannot be opened; standard error says why
  2    bad usage
"""


@click.command("consumer", cls=KstoreCommand, epilog=EXAMPLES, short_help="Records/s and MB/s.")
@click.argument("directory", type=click.Path())
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--messages", type=click.IntRange(1), required=True, metavar="N", help="Read N records.")
@click.option(
    "--as",
    "kind",
    type=click.Choice(KINDS),
    default="records",
    show_default=True,
    help="The form in which records are read.",
)
@click.option(
    "--timeout", type=click.IntRange(0), default=0, show_default=True, metavar="MS", help="Wait this long for a record."
)
@click.option(
    "--fetch-size",
    type=click.IntRange(KIB),
    default=MIB,
    metavar="BYTES",
    help="The consumer's max_partition_fetch_bytes; 1 MiB.",
)
@click.option("--hide-header", is_flag=True, help="Do not print the column names.")
@format_option()
def command(
    directory: str,
    topics: tuple[str, ...],
    messages: int,
    kind: str,
    timeout: int,
    fetch_size: int,
    hide_header: bool,
    form: str,
) -> int:
    """Read records of TOPIC in the store, or broker's directory, DIRECTORY, and report the speed."""
    with Store(directory, read_only=True) as store:
        report = measure(
            lambda: store.consumer(*topics, iteration_timeout_ms=timeout, max_partition_fetch_bytes=fetch_size),
            messages,
            kind=kind,
        )
    if form == "json":
        click.echo(_json(report, kind))
    else:
        if not hide_header:
            click.echo(COLUMNS)
        click.echo(_line(report))
    if report.records < messages:
        say(f"there were {report.records} records, expected {messages}")
        return FAILED
    return OK


def _line(report: ConsumerPerfReport) -> str:
    """The line as Kafka's tool prints it."""
    whole, fetch = report.seconds or 1e-9, report.fetch_seconds or 1e-9
    return (
        f"{_time(report.start_ms)}, {_time(report.end_ms)}, {report.mb:.4f}, {report.mb / whole:.4f}, "
        f"{report.records}, {report.records / whole:.4f}, {report.join_seconds * 1000:.0f}, {fetch * 1000:.0f}, "
        f"{report.mb / fetch:.4f}, {report.records / fetch:.4f}"
    )


def _time(time_ms: int) -> str:
    local = datetime.fromtimestamp(time_ms / 1000)
    return f"{local:%Y-%m-%d %H:%M:%S}:{time_ms % 1000:03}"


def _json(report: ConsumerPerfReport, kind: str) -> str:
    fetch = report.fetch_seconds or 1e-9
    return compact(
        old_names(
            "perf",
            {
                "as": kind,
                "record_count": report.records,
                "size": report.size,
                "seconds": round(report.seconds, 6),
                "fetch_seconds": round(report.fetch_seconds, 6),
                "records_per_second": round(report.records / fetch, 3),
                "mb_per_second": round(report.mb / fetch, 3),
            },
        )
    )


# --- the run: records and bytes a second, as kafka-consumer-perf-test measures them -----------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerPerfReport:
    """The results of a run. ``size`` is the bytes of the values; times are ms since the epoch, or seconds."""

    start_ms: int
    end_ms: int
    records: int
    size: int
    join_seconds: float
    fetch_seconds: float

    @property
    def seconds(self) -> float:
        return self.join_seconds + self.fetch_seconds

    @property
    def mb(self) -> float:
        """In units of 2**20 bytes, as in Kafka's tool."""
        return self.size / (1 << 20)


def measure(
    make: Callable[[], Consumer], count: int, *, kind: str = "records", clock: Clock = SYSTEM_CLOCK
) -> ConsumerPerfReport:
    """Reads ``count`` records, or fewer if none arrives for the consumer's ``iteration_timeout_ms``."""
    start_ms, started = clock.now_ms(), clock.monotonic()
    with make() as consumer:
        joined = clock.monotonic()
        records, size = _READERS[kind](consumer, count)
        ended = clock.monotonic()
    return ConsumerPerfReport(start_ms, clock.now_ms(), records, size, joined - started, ended - joined)


def _records(consumer: Consumer, count: int) -> tuple[int, int]:
    records = size = 0
    for record in consumer:
        records += 1
        size += len(record.value or b"")
        if records >= count:
            break
    return records, size


def _values(consumer: Consumer, count: int) -> tuple[int, int]:
    records = size = 0
    for value in consumer.values():
        records += 1
        size += len(value or b"")
        if records >= count:
            break
    return records, size


def _arrow(consumer: Consumer, count: int) -> tuple[int, int]:
    records = size = 0
    timeout = consumer.config.iteration_timeout_ms / 1000
    while records < count:
        table = consumer.to_arrow(min(ARROW_RECORDS, count - records), timeout)
        if not table.num_rows:
            break
        records += table.num_rows
        size += table.column("value").nbytes
    return records, size


_READERS: dict[str, Callable[[Consumer, int], tuple[int, int]]] = {
    "records": _records,
    "values": _values,
    "arrow": _arrow,
}
