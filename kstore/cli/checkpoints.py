"""``kstore checkpoints``: the four checkpoint files of a store, side by side."""

from __future__ import annotations

from pathlib import Path

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.json_fields import old_names
from kstore.cli.options import format_option
from kstore.cli.record_json import compact
from kstore.cli.table import print_table
from kstore.cli.terminal import say
from kstore.errors import CorruptFileError
from kstore.files.checkpoint import read_offset_checkpoint
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    REPLICATION_OFFSETS,
    TopicPartition,
)

# Column, and field in JSON, by the file's name.
FILES = {
    RECOVERY_POINTS: "recovery point",
    LOG_START_OFFSETS: "log start",
    REPLICATION_OFFSETS: "high watermark",
    CLEANER_OFFSETS: "first dirty",
}

KEYS = {"log start": "start_offset"}

EXAMPLES = """
\b
Examples:
  kstore checkpoints data/
  kstore checkpoints data/ --format json | jq .

\b
Exit status:
  0  all of them were read; a missing one counts as empty
  1  one of them is damaged, or the directory cannot be read
  2  bad usage
"""


@click.command("checkpoints", cls=KstoreCommand, epilog=EXAMPLES, short_help="Print the checkpoints of a store.")
@click.argument("directory", type=click.Path())
@format_option("text: a table. json: one object a partition.")
def command(directory: str, form: str) -> int:
    """Print what the checkpoint files in DIRECTORY, kstore's or a Kafka broker's, say about each partition.

    Nothing is written, and no lock is taken. For kstore's own logs, kstore.state is authoritative.
    """
    root = Path(directory)
    SYSTEM_FS.list(root)  # reports a problem with the directory itself
    is_damaged = False
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for name in FILES:
        try:
            offsets[name] = read_offset_checkpoint(SYSTEM_FS, root / name)
        except CorruptFileError as error:
            is_damaged = True
            offsets[name] = {}
            say(str(error))
    owners = sorted({owner for found in offsets.values() for owner in found})
    if form == "json":
        for owner in owners:
            row = {
                KEYS.get(column, column.replace(" ", "_")): offsets[name].get(owner) for name, column in FILES.items()
            }
            print(compact(old_names("checkpoints", {**owner._asdict(), **row})))
        return DAMAGED if is_damaged else OK
    rows = [(str(owner), *(offsets[name].get(owner, "-") for name in FILES)) for owner in owners]
    print_table(("partition", *FILES.values()), rows)
    print(f"closed cleanly: {'yes' if SYSTEM_FS.exists(root / CLEAN_SHUTDOWN) else 'no'}")
    return DAMAGED if is_damaged else OK
