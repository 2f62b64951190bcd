"""``kstore delete-records``: raises the start of a partition."""

from __future__ import annotations

import click

from kstore.cli.command import OK, KstoreCommand
from kstore.cli.json_fields import old_names
from kstore.cli.names import complete_partitions
from kstore.cli.options import format_option, renamed_option
from kstore.cli.record_json import compact
from kstore.engine.read.reads import segment_count_and_size
from kstore.files.paths import topic_partition
from kstore.log import reads_of
from kstore.store import Store

EXAMPLES = """
\b
Examples:
  kstore delete-records data/ orders-0 --stop 1000        removes offsets 0 to 999
  kstore delete-records data/ orders-0 --stop -1          removes all records

\b
Exit status:
  0  done
  1  no such partition or offset, or another process writes to the store
  2  bad usage
"""


@click.command("delete-records", cls=KstoreCommand, epilog=EXAMPLES, short_help="Delete the oldest records of a log.")
@click.argument("directory", type=click.Path())
@click.argument("owner", metavar="TOPIC-PARTITION", shell_complete=complete_partitions)
@renamed_option(
    "--before", "--stop", type=int, metavar="OFFSET", help="The first offset that stays; -1 for the high watermark."
)
@format_option("text: a sentence. json: one object.")
def command(directory: str, owner: str, stop: int | None, form: str) -> int:
    """Delete the records below an offset from TOPIC-PARTITION of the store in DIRECTORY, durably.

    Whole segments below it are removed; the rest below it is never read again.
    """
    partition = topic_partition(owner)
    if partition is None:
        raise click.UsageError(f"{owner}: expected <topic>-<partition>, as orders-0")
    if stop is None or stop < -1:
        raise click.UsageError("--stop: expected an offset, or -1 for the high watermark")
    with Store(directory, create=False, background=False, file_delete_delay_ms=0) as store:
        log = store.log(*partition)
        size_before = segment_count_and_size(reads_of(log).source)[1]
        low_watermark = log.delete_records(log.high_watermark if stop == -1 else stop)
        freed = size_before - segment_count_and_size(reads_of(log).source)[1]
    if form == "json":
        print(
            compact(
                old_names(
                    "delete-records",
                    {**partition._asdict(), "start_offset": low_watermark, "bytes_removed": freed},
                )
            )
        )
    else:
        print(f"{owner} starts at offset {low_watermark:,}; {freed:,} bytes were removed")
    return OK
