"""``kstore producers``: what a log knows about its producers."""

from __future__ import annotations

import click

from kstore.cli.command import KstoreCommand
from kstore.cli.options import format_option
from kstore.cli.record_json import compact
from kstore.cli.status import OK
from kstore.cli.table import table
from kstore.cli.time_type import timestamp_text
from kstore.log import Log

__all__ = ["command"]

EXAMPLES = """
\b
Examples:
  kstore producers data/orders-0
  kstore producers --format json /var/lib/kafka/orders-0 | jq 'select(.transaction_start)'

\b
Exit status:
  0  done
  1  the log cannot be read
  2  bad usage
"""

COLUMNS = ("producer", "epoch", "sequence", "offset", "last written", "coordinator", "transaction from")
NONE = "-"


@click.command("producers", cls=KstoreCommand, epilog=EXAMPLES, short_help="List a log's idempotent producers.")
@click.argument("directory", type=click.Path())
@format_option("text: a table. json: one object a line.")
def command(directory: str, form: str) -> int:
    """List the idempotent and transactional producers that the log in DIRECTORY, kstore's or a Kafka broker's, knows.

    For each: its epoch, the sequence and offset of its last record, its last write, the epoch of the coordinator that
    last ended one of its transactions, and the start of its open transaction. Producers that have not written for a
    long time are forgotten.

    Nothing is written to the log, and a writer may be at work on it.
    """
    with Log(directory, read_only=True) as log:
        producers = log.producers()
    if form == "json":
        for producer in producers:
            click.echo(compact(producer._asdict()))
        return OK
    rows = [
        (
            str(producer.producer_id),
            str(producer.producer_epoch),
            NONE if producer.last_sequence < 0 else str(producer.last_sequence),
            NONE if producer.last_offset < 0 else str(producer.last_offset),
            timestamp_text(producer.last_timestamp),
            NONE if producer.coordinator_epoch < 0 else str(producer.coordinator_epoch),
            NONE if producer.transaction_start is None else str(producer.transaction_start),
        )
        for producer in producers
    ]
    for line in table(COLUMNS, rows):
        click.echo(line)
    return OK
