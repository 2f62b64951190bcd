"""``kstore verify``: checks that everything in a log, or in a directory of logs, is as it was written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from kstore.archive.view import place_to_read
from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.finding_text import damage_lines, headline, note_line, painted_lines
from kstore.cli.json_fields import old_names, owner_fields
from kstore.cli.options import JOBS, format_option
from kstore.cli.places import LogPlace, is_file, log_bytes, log_places
from kstore.cli.progress import progress
from kstore.cli.record_json import compact
from kstore.cli.spread import each_log
from kstore.cli.table import painted, table, wrapped
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX
from kstore.files.remote import is_remote
from kstore.scan.visits import Advance
from kstore.upkeep.verify import LogVerification, verify_present, verify_store_files
from kstore.upkeep.verify.findings import consequence

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
@click.argument("directories", nargs=-1, required=True, type=click.Path(), metavar="PATHS...")
@format_option('text: what is damaged, then a table. json: one object a line, of type "log" or "finding".')
@click.option("--notes", is_flag=True, help="Also show notes, which are no damage. Text only counts them otherwise.")
@click.option("--quiet", "-q", is_flag=True, help="Report only damage, not mere notes.")
@JOBS
def command(directories: tuple[str, ...], form: str, notes: bool, quiet: bool, jobs: int | None) -> int:
    """Read every file of the logs in PATHS, kstore's or a Kafka broker's, and compare them with each other.

    A path is one partition, or holds partitions, or is a single .log file, without indexes, or a place of backups or of
    logs in an object store. kstore checks every batch's CRC and records, the order of offsets within and across
    segments, every entry of every index, producer snapshots and transaction indexes against the batches, leader epochs,
    checkpoints, and that everything durable exists.

    What cannot be read comes first, then why, then the command that repairs it, if one does; for lost records it is the
    command that lets reads continue without them. The times around lost records are those of what is left.

    Several logs are checked on all cores. Nothing is written, no lock is taken, and a writer may be at work. Unlike
    "kstore read" it also checks what is not known to be durable. A half-written batch at the end of a log is damage,
    unless a writer is at work.
    """
    logs = [log for directory in directories for log in log_places(directory)]
    printer = _TextPrinter(notes, quiet) if form == "text" else _JsonPrinter(quiet)
    is_damaged = False
    sizes = [log_bytes(log) for log in logs]
    with progress("verify", sum(sizes)) as advance:
        for log in _verifications(directories, logs, sizes, advance, jobs):
            is_damaged |= not log.is_sound
            printer.log(log)
    printer.end()
    return DAMAGED if is_damaged else OK


def _verifications(
    directories: Iterable[str], logs: Sequence[LogPlace], sizes: Sequence[int], advance: Advance, jobs: int | None
) -> Iterable[LogVerification]:
    for directory in directories:
        if is_remote(directory) or is_file(directory) or place_to_read(directory)[0] is not SYSTEM_FS:
            continue
        store = verify_store_files(Path(directory))
        if store.findings:
            yield store
    # Without those that have been deleted since they were found.
    yield from filter(None, each_log(_verified, logs, sizes, advance, jobs))


def _verified(log: LogPlace, advance: Advance) -> LogVerification | None:
    found = verify_present(log.path, fs=log.fs, advance=advance)
    if log.is_stray and found is not None:
        # Files that a copied file came without do not count as damage.
        found.findings[:] = [each for each in found.findings if each.path.endswith(LOG_SUFFIX)]
    return found


def _fields(log: LogVerification) -> dict[str, Any]:
    return {
        "log": log.path,
        "segment_count": log.segment_count,
        "batch_count": log.batch_count,
        "record_count": log.record_count,
        "size": log.size,
        "start_offset": log.start_offset,
        "last_stable_offset": log.last_stable_offset,
        "end_offset": log.end_offset,
        "damage_count": len(log.damages),
        "note_count": len(log.notes),
    }


class _JsonPrinter:
    """One object a line."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def log(self, log: LogVerification) -> None:
        print(compact(old_names("verify", {"type": "log", **_fields(log), **owner_fields(Path(log.path).name)})))
        for finding in log.damages if self._quiet else log.findings:
            means = consequence(finding, is_dense=log.is_dense)
            print(compact({"type": "finding", **finding.fields(), **({"consequence": means} if means else {})}))

    def end(self) -> None:
        """There is no more output."""


class _TextPrinter:
    """What cannot be read, and why; then a table of the logs."""

    def __init__(self, notes: bool, quiet: bool) -> None:
        self._shows_notes = notes
        self._quiet = quiet
        self._logs: list[LogVerification] = []

    def log(self, log: LogVerification) -> None:
        self._logs.append(log)

    def end(self) -> None:
        damaged = [log for log in self._logs if not log.is_sound]
        if len(self._logs) > 1 and damaged:
            text = f"{len(damaged)} of {len(self._logs)} logs are damaged: {headline(self._logs)}"
            _print(painted_lines(text, "  ", "red"))
            print()
        for log in damaged:
            _print(painted_lines(f"{log.path}: {headline([log])}", "  ", "red"))
            _print(damage_lines(log.findings, log.path, is_dense=log.is_dense))
            print()
        _print(table(COLUMNS, [tuple(_fields(log).values()) for log in self._logs]))
        notes = [note for log in self._logs for note in log.notes]
        if self._shows_notes:
            for note in notes:
                _print(wrapped(note_line(note), "  "))
        elif notes and not self._quiet:
            print(f"notes: {len(notes)}; --notes shows them")
        damage_count = sum(len(log.damages) for log in self._logs)
        print()
        print(painted(f"damage: {damage_count}", "red") if damage_count else painted("sound", "green"), flush=True)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
