"""``kstore restore``: makes a new store from a backup."""

from __future__ import annotations

import json
import re

import click

from kstore.backup.restore import restore
from kstore.cli.command import OK, KstoreCommand
from kstore.cli.options import STORAGE_OPTION, format_option, renamed_option
from kstore.cli.progress import progress
from kstore.cli.value_types import TIME_EXAMPLES, TimeType, timestamp_text
from kstore.files.paths import TopicPartition, topic_partition
from kstore.upkeep.numbers import counted

# At most as many digits as the greatest offset has: int() refuses thousands.
OFFSET = re.compile(r"[0-9]{1,19}", re.ASCII)

EXAMPLES = """
\b
Examples:
  kstore restore /mnt/backups restored
  kstore restore s3://bucket/kstore restored --time 2026-01-31T12:00:00Z
  kstore restore /mnt/backups restored --stop orders-0=42     without offset 42 and later
  kstore verify restored

\b
Exit status:
  0  DIRECTORY is the store at the backup's moment
  1  the backup is damaged, or could not be restored: nothing is left in DIRECTORY
  2  bad usage
"""


def partition_offsets(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[TopicPartition, int]:
    """The pairs of ``--stop TOPIC-PARTITION=OFFSET``."""
    offsets: dict[TopicPartition, int] = {}
    for value in values:
        name, _, number = value.rpartition("=")
        owner = topic_partition(name)
        if owner is None or not OFFSET.fullmatch(number):
            raise click.BadParameter(f"{value!r}, expected TOPIC-PARTITION=OFFSET, such as orders-0=42")
        if owner in offsets:
            raise click.BadParameter(f"{value!r}: {owner} is given twice")
        offsets[owner] = int(number)
    return offsets


@click.command("restore", cls=KstoreCommand, epilog=EXAMPLES, short_help="Make a new store from a backup.")
@click.argument("target", metavar="TARGET")
@click.argument("directory", metavar="DIRECTORY")
@renamed_option(
    "--at", "--time", "at_ms", type=TimeType(), help=f"Take the last backup at or before this time: {TIME_EXAMPLES}."
)
@renamed_option(
    "--at-offset",
    "--stop",
    "at_offsets",
    multiple=True,
    metavar="TOPIC-PARTITION=OFFSET",
    callback=partition_offsets,
    help="End this partition before OFFSET; may be given more than once. A transaction that this cuts is aborted in all"
    " partitions, and committed offsets are lowered. Not for queues and internal topics.",
)
@STORAGE_OPTION
@format_option("text: one line. json: one object.")
def command(
    target: str,
    directory: str,
    at_ms: int | None,
    at_offsets: dict[TopicPartition, int],
    storage_options: dict[str, str],
    form: str,
) -> int:
    """Restore the last backup in TARGET to DIRECTORY, which must be missing or empty: the whole store, or nothing.

    Transactions that were not decided when the backup was made are aborted.
    """
    with progress("restore", None) as advance:
        result = restore(
            target, directory, at_ms=at_ms, at_offsets=at_offsets, storage_options=storage_options, progress=advance
        )
    if form == "json":
        print(json.dumps(result._asdict()))
    else:
        print(
            f"{directory}: the store of {timestamp_text(result.time_ms)},"
            f" {counted(result.log_count, 'log')}, {result.total_bytes:,} bytes"
        )
    return OK
