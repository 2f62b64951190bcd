"""``kstore verify``: checks that everything in a log, or in a directory of logs, is as it was written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from kstore.archive.view import place_to_read
from kstore.cli.command import KstoreCommand
from kstore.cli.each_log import each_log
from kstore.cli.options import format_option
from kstore.cli.places import LogPlace, is_file, log_bytes, log_places
from kstore.cli.progress import progress
from kstore.cli.record_json import compact
from kstore.cli.status import DAMAGED, OK
from kstore.cli.table import painted, table
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX
from kstore.files.remote import is_remote
from kstore.types import NO_OFFSET
from kstore.upkeep.verify import Finding, LogVerification, verify_present, verify_store_files
from kstore.upkeep.verify.findings import NO_POSITION, Advance

__all__ = ["command", "finding_line"]

EXAMPLES = """
\b
Examples:
  kstore verify data/orders-0
  kstore verify data/ /var/lib/kafka/data
  kstore verify --format json data/ | jq 'select(.type == "finding" and .severity == "damage")'

\b
Exit status:
  0  everything is as it was written
  1  damage: a batch, an index entry, a snapshot, a checkpoint, or records that are missing
  2  bad usage
"""

COLUMNS = ("log", "segments", "batches", "records", "bytes", "start", "stable", "end", "damage", "notes")


@click.command("verify", cls=KstoreCommand, epilog=EXAMPLES, short_help="Check every batch, index entry and snapshot.")
@click.argument("directories", nargs=-1, required=True, type=click.Path())
@format_option('text: a table, then what was found. json: one object a line, of type "log" or "finding".')
@click.option("--quiet", "-q", is_flag=True, help="Report only damage, not mere notes.")
def command(directories: tuple[str, ...], form: str, quiet: bool) -> int:
    """Read every file of the logs in DIRECTORIES, kstore's or a Kafka broker's, and compare them with each other.

    A path is one partition, or holds partitions, or is a single .log file, without indexes, or a place of backups or of
    logs in an object store. kstore checks every batch's CRC and records, the order of offsets within and across
    segments, every entry of every index, producer snapshots and transaction indexes against the batches, leader epochs,
    checkpoints, and that everything durable exists.

    Each finding names the command that repairs it, if one does; for lost records it is the command that lets reads
    continue without them.

    Several logs are checked on all cores. Nothing is written, no lock is taken, and a writer may be at work. Unlike
    "kstore read" it also checks what is not known to be durable. A half-written batch at the end of a log is damage,
    unless a writer is at work.
    """
    logs = [log for directory in directories for log in log_places(directory)]
    printer = _TablePrinter(quiet) if form == "text" else _JsonPrinter(quiet)
    is_damaged = False
    sizes = [log_bytes(log) for log in logs]
    with progress("verify", sum(sizes)) as advance:
        for log in _verifications(directories, logs, sizes, advance):
            is_damaged |= not log.is_sound
            printer.log(log)
    printer.end()
    return DAMAGED if is_damaged else OK


def _verifications(
    directories: Iterable[str], logs: Sequence[LogPlace], sizes: Sequence[int], advance: Advance
) -> Iterable[LogVerification]:
    for directory in directories:
        if is_remote(directory) or is_file(directory) or place_to_read(directory)[0] is not SYSTEM_FS:
            continue
        store = verify_store_files(Path(directory))
        if store.findings:
            yield store
    # Without those that have been deleted since they were found.
    yield from filter(None, each_log(_verified, logs, sizes, advance))


def _verified(log: LogPlace, advance: Advance) -> LogVerification | None:
    found = verify_present(log.path, fs=log.fs, advance=advance)
    if log.is_stray and found is not None:
        # Files that a copied file came without do not count as damage.
        found.findings[:] = [each for each in found.findings if each.path.endswith(LOG_SUFFIX)]
    return found


def _fields(log: LogVerification) -> dict[str, Any]:
    return {
        "log": log.path,
        "segments": log.segment_count,
        "batches": log.batch_count,
        "records": log.record_count,
        "bytes": log.size,
        "start": log.start_offset,
        "stable": log.last_stable_offset,
        "end": log.end_offset,
        "damage": len(log.damages),
        "notes": len(log.notes),
    }


class _JsonPrinter:
    """One object a line."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def log(self, log: LogVerification) -> None:
        print(compact({"type": "log", **_fields(log)}))
        for finding in log.damages if self._quiet else log.findings:
            print(compact({"type": "finding", **finding.fields()}))

    def end(self) -> None:
        """There is no more output."""


class _TablePrinter:
    """A table of the logs, then the findings."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._logs: list[LogVerification] = []

    def log(self, log: LogVerification) -> None:
        self._logs.append(log)

    def end(self) -> None:
        for line in table(COLUMNS, [tuple(_fields(log).values()) for log in self._logs]):
            print(line)
        for log in self._logs:
            for finding in log.damages if self._quiet else log.findings:
                print(finding_line(finding))
        damage_count = sum(len(log.damages) for log in self._logs)
        print()
        print(painted(f"damage: {damage_count}", "red") if damage_count else painted("sound", "green"), flush=True)


def finding_line(finding: Finding) -> str:
    severity = painted(finding.severity, "red" if finding.severity == "damage" else "yellow")
    where = f" at position {finding.position}" if finding.position != NO_POSITION else ""
    offsets = ""
    if finding.first != NO_OFFSET:
        offsets = f", offset {finding.first}"
        if finding.last not in (NO_OFFSET, finding.first):
            offsets = f", offsets {finding.first} to {finding.last}"
    repair = f"; repair: {finding.repair}" if finding.repair else ""
    return f"{severity}: {finding.path}{where}{offsets}: {finding.reason}{repair}"
