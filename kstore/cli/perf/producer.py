"""``kstore perf``: measures how fast producers and consumers are on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from kstore.cli.command import FAILED, INTERRUPTED, OK, KstoreCommand
from kstore.cli.json_fields import old_names
from kstore.cli.options import config_option, format_option
from kstore.cli.perf.consumer import command as consumer
from kstore.cli.perf.producer_run import (
    PERCENTILES,
    PerfReport,
    PerfWindow,
    ProducerPerf,
    payloads_from,
    random_payloads,
)
from kstore.cli.producing import opened_producer, parse_producer_settings, store_options
from kstore.cli.progress import LiveLine
from kstore.cli.record_json import compact
from kstore.cli.terminal import say
from kstore.cli.value_types import RATE_MIN, NumberType
from kstore.errors import ConfigError
from kstore.types import Durability

# As in Kafka's tool; a line that replaces the previous one may come more often.
WINDOW_SECONDS = 5.0
LIVE_SECONDS = 1.0
TRANSACTION_MS = 3000

PRODUCER_EXAMPLES = """
\b
Examples:
  kstore perf producer data bench --create-topic --num-records 1000000 --record-size 100
  kstore perf producer data bench --num-records 50000 --record-size 1000 --throughput 5000
  kstore perf producer data bench --num-records 100000 --payload-file lines.json --config compression.type=zstd
  kstore perf producer data bench --num-records 100000 --record-size 100 --transactional-id t --format json | jq .

The last line is that of kafka-producer-perf-test; a MB is 2**20 bytes, and the rates end when everything is delivered.
Latency is the time from before a send to the callback of its delivery. So that callbacks do not slow down what they
measure, only each 47th record has one, in runs of over 100,000 records each 97th; every record has one in runs of at
most 1,000 records or with a throughput of at most 10,000. JSON reports which (latency_ms.sampled_every).

\b
Exit status:
  0    every record was delivered
  1    a record failed, or the store or topic cannot be opened; standard error says why
  2    bad usage
  130  interrupted; the last line covers what was delivered
"""


@click.group("perf", short_help="Measure how fast producers and consumers are.")
def command() -> None:
    """Measure how fast this machine is."""


command.add_command(consumer)


@command.command("producer", cls=KstoreCommand, epilog=PRODUCER_EXAMPLES, short_help="Records/s, MB/s and latency.")
@click.argument("directory", type=click.Path())
@click.argument("topic")
@click.option("--num-records", type=click.IntRange(1), required=True, metavar="N", help="Send N records.")
@click.option("--record-size", type=click.IntRange(1), metavar="BYTES", help="Values of this many random letters.")
@click.option(
    "--payload-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Values from this file, in random order, repeatedly.",
)
@click.option(
    "--payload-delimiter",
    default="\\n",
    show_default=True,
    metavar="TEXT",
    help="The text that separates the values in the file.",
)
@click.option(
    "--throughput",
    type=NumberType(),
    default=-1.0,
    metavar="N",
    help="Send about N records a second; -1, the default, as fast as possible.",
)
@config_option("producer", "linger_ms=50 or linger.ms=50", formerly="--producer-config")
@click.option("--transactional-id", metavar="ID", help="Send in transactions.")
@click.option(
    "--transaction-duration-ms",
    type=click.IntRange(1),
    metavar="MS",
    help=f"Commit a transaction at this age; {TRANSACTION_MS} by default.",
)
@store_options
@format_option("text: Kafka's line. json: one object, with more data.")
def producer(
    directory: str,
    topic: str,
    num_records: int,
    record_size: int | None,
    payload_file: Path | None,
    payload_delimiter: str,
    throughput: float,
    configs: tuple[str, ...],
    transactional_id: str | None,
    transaction_duration_ms: int | None,
    create_topic: bool,
    partitions: int | None,
    durability: Durability,
    form: str,
) -> int:
    """Send records to TOPIC of the store in DIRECTORY, and report the speed.

    While it runs, a line on standard error shows the progress every 5 seconds; on a terminal every second, in place.
    """
    payloads = _payloads(record_size, payload_file, payload_delimiter)
    if throughput != -1 and throughput < RATE_MIN:
        raise click.UsageError(f"--throughput {throughput:g}: expected {RATE_MIN} or more, or -1")
    if transactional_id is not None:
        configs += (f"transactional_id={transactional_id}",)
    settings = parse_producer_settings(configs)
    if transaction_duration_ms is not None and "transactional_id" not in settings:
        raise click.UsageError("--transaction-duration-ms needs --transactional-id")
    is_transactional = "transactional_id" in settings
    line = LiveLine()
    with opened_producer(
        directory, topic, settings, create_topic=create_topic, partitions=partitions, durability=durability
    ) as (made, _):
        run = ProducerPerf(
            made,
            topic,
            payloads,
            num_records,
            per_second=None if throughput == -1 else throughput,
            transaction_seconds=(transaction_duration_ms or TRANSACTION_MS) / 1000 if is_transactional else None,
            on_window=lambda window: line.show(_window_line(window), "red" if window.failed else None),
            window_seconds=LIVE_SECONDS if line.is_in_place else WINDOW_SECONDS,
        )
        status = OK
        try:
            report = run.run()
        except KeyboardInterrupt:
            status = INTERRUPTED
            report = run.report()
        finally:
            line.end()
    print(_json(report) if form == "json" else _total_line(report))
    if report.failed:
        say(f"{report.failed} records failed; the first: {report.first_error}")
    return status or (FAILED if report.failed else OK)


def _payloads(record_size: int | None, file: Path | None, delimiter: str) -> list[bytes]:
    if (record_size is None) == (file is None):
        raise click.UsageError("--record-size or --payload-file: give one of them")
    if record_size is not None:
        return random_payloads(record_size)
    assert file is not None
    if not delimiter:
        raise click.UsageError("--payload-delimiter is empty")
    try:
        return payloads_from(file.read_bytes(), delimiter.replace("\\n", "\n").encode("utf-8", "surrogateescape"))
    except ConfigError as error:
        raise click.UsageError(f"{file}: {error}") from None


def _window_line(window: PerfWindow) -> str:
    failed = f" {window.failed} failed." if window.failed else ""
    rate = f"{window.records_per_second:.1f} records/sec ({window.mb_per_second:.2f} MB/sec)"
    return (
        f"{window.records} records sent, {rate},"
        f" {window.latencies.mean_ms:.1f} ms avg latency, {window.latencies.max_ms:.1f} ms max latency.{failed}"
    )


def _total_line(report: PerfReport) -> str:
    """The last line of Kafka's tool, to the letter: its percentiles are whole numbers."""
    latencies = report.latencies
    percentiles = ", ".join(
        f"{round(ms)} ms {percent:g}th" for percent, ms in zip(PERCENTILES, latencies.percentiles_ms, strict=True)
    )
    return (
        f"{report.records} records sent, {report.records_per_second:f} records/sec ({report.mb_per_second:.2f} MB/sec),"
        f" {latencies.mean_ms:.2f} ms avg latency, {latencies.max_ms:.2f} ms max latency, {percentiles}."
    )


def _json(report: PerfReport) -> str:
    latencies = report.latencies
    percentiles = {
        f"p{percent:g}": round(ms, 3) for percent, ms in zip(PERCENTILES, latencies.percentiles_ms, strict=True)
    }
    return compact(
        old_names(
            "perf",
            {
                "record_count": report.records,
                "failed_count": report.failed,
                "size": report.bytes,
                "seconds": round(report.seconds, 6),
                "records_per_second": round(report.records_per_second, 3),
                "mb_per_second": round(report.mb_per_second, 3),
                "latency_ms": {
                    "mean": round(latencies.mean_ms, 3),
                    "max": round(latencies.max_ms, 3),
                    **percentiles,
                    "samples": latencies.count,
                    "sampled_every": report.sampled_every,
                },
                "first_error": None if report.first_error is None else str(report.first_error),
            },
        )
    )
