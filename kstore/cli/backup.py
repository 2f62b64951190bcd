"""``kstore backup``: copies a store, as it is at one moment; or checks the copies."""

from __future__ import annotations

import json

import click

from kstore.backup.check import CheckedBackup, check_backups
from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.options import SHARED_OPTION, STORAGE_OPTION, format_option
from kstore.cli.progress import progress
from kstore.cli.terminal import say
from kstore.cli.value_types import BYTE_RATE_MIB, timestamp_text
from kstore.store import Store
from kstore.upkeep.numbers import counted

EXAMPLES = """
\b
Examples:
  kstore backup data /mnt/backups                    run it again: only what is new is copied
  kstore backup data s3://bucket/kstore              needs s3fs
  kstore backup --verify /mnt/backups                reads every byte of every backup
  kstore restore /mnt/backups restored

No other process may have DIRECTORY open for writing, unless all of them share it, and this command too (--shared). A
program that has it open alone calls store.backup(TARGET) itself.

\b
Exit status:
  0  the backup is complete; with --verify: every backup is sound
  1  it failed; with --verify: a backup is damaged
  2  bad usage
"""


@click.command("backup", cls=KstoreCommand, epilog=EXAMPLES, short_help="Back up a store, or check its backups.")
@click.argument("places", metavar="DIRECTORY TARGET | --verify TARGET", nargs=-1, required=True)
@click.option("--verify", is_flag=True, help="Check every byte of every backup in TARGET; change nothing.")
@click.option("--rate", type=BYTE_RATE_MIB, metavar="SIZE", help="Copy at most this much a second, as 20MiB.")
@SHARED_OPTION
@STORAGE_OPTION
@format_option("text: one line. json: one object.")
def command(
    places: tuple[str, ...], verify: bool, rate: int | None, shared: bool, storage_options: dict[str, str], form: str
) -> int:
    """Back up the store in DIRECTORY to TARGET: a directory, hdfs://..., or a URL that fsspec knows (s3://, ...).

    The backup is the whole store at one moment: records, topics, committed offsets, queues, transactions, producers.
    """
    if len(places) != (1 if verify else 2):
        raise click.UsageError("expected TARGET with --verify, else DIRECTORY and TARGET")
    if verify:
        return _verify(places[0], storage_options, form)
    with (
        Store(places[0], create=False, background=False, shared=shared) as store,
        progress("backup", None) as advance,
    ):
        result = store.backup(
            places[1],
            storage_options=storage_options,
            bytes_per_second=rate,
            progress=advance,
        )
    if form == "json":
        print(json.dumps(result._asdict()))
    else:
        print(
            f"{timestamp_text(result.time_ms)}: {counted(result.log_count, 'log')}, {result.total_bytes:,} bytes,"
            f" of which {result.copied_bytes:,} were copied"
        )
    return OK


def _verify(target: str, storage_options: dict[str, str], form: str) -> int:
    checked = check_backups(target, storage_options=storage_options)
    for one in checked:
        for error in one.errors:
            say(error)
        print(json.dumps(one._asdict()) if form == "json" else _text(one))
    return OK if all(one.ok for one in checked) else DAMAGED


def _text(one: CheckedBackup) -> str:
    state = "sound" if one.ok else counted(len(one.errors), "error")
    files = counted(one.file_count, "file")
    return f"{timestamp_text(one.time_ms)}: {files}, {one.total_bytes:,} bytes, {state}"
