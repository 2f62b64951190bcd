"""``kstore transactions``: lists a log's open transactions, and aborts hanging ones."""

from __future__ import annotations

import click

from kstore.cli.command import OK, KstoreCommand
from kstore.cli.json_fields import log_fields
from kstore.cli.options import format_option, renamed_option
from kstore.cli.places import LogPlace, open_place, places_of
from kstore.cli.record_json import compact
from kstore.cli.table import print_table
from kstore.cli.value_types import DURATION, timestamp_text
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.types import OpenTransaction

EXAMPLES = """
\b
Examples:
  kstore transactions data/                                  of every log
  kstore transactions --hanging 15m data/orders-0            whose producers are silent for 15 minutes
  kstore transactions --abort 4711 data/orders-0             without confirmation; its records are never committed

\b
Exit status:
  0  done
  1  the log cannot be read; or, with --abort, a writer has it open, or the producer has no such transaction
  2  bad usage
"""

COLUMNS = ("log", "producer", "epoch", "coordinator", "from offset", "last written", "silent for (s)")
NONE = "-"


@click.command("transactions", cls=KstoreCommand, epilog=EXAMPLES, short_help="List open transactions, or abort one.")
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@renamed_option(
    "--hanging-ms",
    "--hanging",
    "hanging_ms",
    type=DURATION,
    default=0,
    help="Only of producers that have been silent for this long, as 15m.",
    old_attributes={"type": click.IntRange(0)},
)
@click.option(
    "--abort",
    "aborted",
    type=click.IntRange(0),
    multiple=True,
    metavar="PRODUCER_ID",
    help="Abort this producer's transaction; repeatable. No writer may have the log open.",
)
@format_option("text: a table. json: one object a line.")
def command(paths: tuple[str, ...], hanging_ms: int, aborted: tuple[int, ...], form: str) -> int:
    """List the open transactions of the logs in PATHS, kstore's or a Kafka broker's: of each log the oldest first.

    A path is one partition, or holds partitions; --abort is for one.

    Readers of committed records wait for the oldest of them. A producer that is gone for good blocks them forever:
    --abort ends its transaction, as its coordinator would have. With --hanging only a listed transaction can be
    aborted.

    Without --abort nothing is written to the log, and a writer may be at work on it.
    """
    places = places_of(paths)
    if aborted and (len(places) != 1 or places[0].fs is not SYSTEM_FS):
        raise click.UsageError("--abort changes one log: give the directory of a partition")
    found = []
    for place in places:
        with open_place(place) as log:
            found += [(place, transaction) for transaction in log.transactions(hanging_ms=hanging_ms)]
    if not aborted:
        _print(found, form)
        return OK
    # A missing log was refused above, so this creates none.
    (place,) = places
    with Log(place.path) as log:
        for producer_id in dict.fromkeys(aborted):
            offset = log.abort_transaction(producer_id, hanging_ms=hanging_ms)
            if form == "json":
                click.echo(compact({**log_fields(place.text), "aborted": producer_id, "offset": offset}))
            else:
                click.echo(f"aborted the transaction of producer {producer_id}: its end is at offset {offset}")
    return OK


def _print(found: list[tuple[LogPlace, OpenTransaction]], form: str) -> None:
    if form == "json":
        for place, transaction in found:
            click.echo(compact({**log_fields(place.text), **transaction._asdict()}))
        return
    rows = [
        (
            place.text,
            str(transaction.producer_id),
            str(transaction.producer_epoch),
            NONE if transaction.coordinator_epoch < 0 else str(transaction.coordinator_epoch),
            str(transaction.first_offset),
            timestamp_text(transaction.last_timestamp),
            NONE if transaction.age_ms < 0 else f"{transaction.age_ms / 1000:,.1f}",
        )
        for place, transaction in found
    ]
    print_table(COLUMNS, rows)
