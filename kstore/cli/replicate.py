"""``kstore replicate``: backs up a store continuously, until Ctrl-C."""

from __future__ import annotations

import json
import threading

import click

from kstore.backup.replicate import Replicator
from kstore.cli.command import OK, KstoreCommand
from kstore.cli.interrupts import held_interrupts
from kstore.cli.options import SHARED_OPTION, STORAGE_OPTION, format_option
from kstore.cli.value_types import BYTE_RATE_MIB, DURATION_MS, timestamp_text
from kstore.store import Store

EXAMPLES = """
\b
Examples:
  kstore replicate --once data /mnt/replica          what the last replicator could no longer copy
  kstore replicate data s3://bucket/kstore           needs s3fs
  kstore restore /mnt/replica recovered
  kstore backup --verify /mnt/replica

No other process may have DIRECTORY open for writing, unless all of them share it, and this command too (--shared). A
program that has it open alone calls store.replicator(TARGET) itself, because only it has a moment of the whole store.
This command does the store's background work, such as retention, and replicates it. Ctrl-C runs a last round; a kill
is safe.

\b
Exit status:
  0  TARGET has everything
  1  it failed, or another process writes to DIRECTORY
  2  bad usage
"""


@click.command("replicate", cls=KstoreCommand, epilog=EXAMPLES, short_help="Back up a store continuously.")
@click.argument("directory", metavar="DIRECTORY")
@click.argument("target", metavar="TARGET")
@click.option("--every", type=DURATION_MS, default="1s", show_default=True, help="The interval, as 500ms, 10s.")
@click.option(
    "--keep", type=click.IntRange(min=1), default=60, show_default=True, help="The least number of backups to keep."
)
@click.option("--once", is_flag=True, help="Make one backup, and stop.")
@click.option("--hold-retention", is_flag=True, help="Let retention delete only what was copied.")
@click.option("--rate", type=BYTE_RATE_MIB, metavar="SIZE", help="Copy at most this much a second, as 20MiB.")
@SHARED_OPTION
@STORAGE_OPTION
@format_option("text: a line at the start and at the end. json: objects.")
def command(
    directory: str,
    target: str,
    every: int,
    keep: int,
    once: bool,
    hold_retention: bool,
    rate: int | None,
    shared: bool,
    storage_options: dict[str, str],
    form: str,
) -> int:
    """Back up the store in DIRECTORY continuously to TARGET: a directory, hdfs://..., or a URL that fsspec knows.

    What it writes are backups: use restore, and backup --verify, on TARGET.
    """
    with held_interrupts() as interrupts, Store(directory, create=False, background=not once, shared=shared) as store:
        replicator = store.replicator(
            target,
            every=every,
            keep=keep,
            hold_retention=hold_retention,
            storage_options=storage_options,
            bytes_per_second=rate,
        )
        with replicator:
            try:
                with interrupts.allowed():
                    replicator.flush()
                    _report(replicator, form)
                    if not once:
                        _wait()
            except KeyboardInterrupt:
                pass
        if interrupts.came:
            _report(replicator, form)
    return OK


def _wait() -> None:
    threading.Event().wait()


def _report(replicator: Replicator, form: str) -> None:
    time_ms = replicator.last_time_ms
    if form == "json":
        print(json.dumps({"time_ms": time_ms, "target": replicator.target}), flush=True)
    elif time_ms is not None:
        print(f"{replicator.target} has the store as at {timestamp_text(time_ms)}", flush=True)
