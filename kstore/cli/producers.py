"""``kstore producers``: what a log knows about its producers."""

from __future__ import annotations

from typing import Any

import click

from kstore.cli.command import OK, KstoreCommand
from kstore.cli.json_fields import log_fields, old_names
from kstore.cli.options import format_option
from kstore.cli.places import LogPlace, open_place, places_of
from kstore.cli.record_json import compact
from kstore.cli.table import print_table
from kstore.cli.value_types import timestamp_text
from kstore.types import ProducerInfo

EXAMPLES = """
\b
Examples:
  kstore producers data/orders-0
  kstore producers data/                 of every log
  kstore producers --format json /var/lib/kafka/orders-0 | jq 'select(.first_offset)'

\b
Exit status:
  0  done
  1  the log cannot be read
  2  bad usage
"""

COLUMNS = ("log", "producer", "epoch", "sequence", "offset", "last written", "coordinator", "transaction from")
NONE = "-"


@click.command("producers", cls=KstoreCommand, epilog=EXAMPLES, short_help="List a log's idempotent producers.")
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@format_option("text: a table. json: one object a line.")
def command(paths: tuple[str, ...], form: str) -> int:
    """List the idempotent and transactional producers that the logs in PATHS, kstore's or a Kafka broker's, know.

    A path is one partition, or holds partitions.

    For each: its epoch, the sequence and offset of its last record, its last write, the epoch of the coordinator that
    last ended one of its transactions, and the start of its open transaction. Producers that have not written for a
    long time are forgotten.

    Nothing is written to the log, and a writer may be at work on it.
    """
    found = []
    for place in places_of(paths):
        with open_place(place) as log:
            found += [(place, producer) for producer in log.producers()]
    if form == "json":
        for place, producer in found:
            click.echo(compact(_fields(place, producer)))
        return OK
    rows = [
        (
            place.text,
            str(producer.producer_id),
            str(producer.producer_epoch),
            NONE if producer.last_sequence < 0 else str(producer.last_sequence),
            NONE if producer.last_offset < 0 else str(producer.last_offset),
            timestamp_text(producer.last_timestamp),
            NONE if producer.coordinator_epoch < 0 else str(producer.coordinator_epoch),
            NONE if producer.transaction_start is None else str(producer.transaction_start),
        )
        for place, producer in found
    ]
    print_table(COLUMNS, rows)
    return OK


def _fields(place: LogPlace, producer: ProducerInfo) -> dict[str, Any]:
    fields = producer._asdict()
    fields["first_offset"] = fields.pop("transaction_start")
    return old_names("producers", {**log_fields(place.text), **fields})
