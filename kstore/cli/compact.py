"""``kstore compact``: removes the records whose key has a later one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.json_fields import damage_fields, log_fields
from kstore.cli.options import format_option, renamed_option
from kstore.cli.record_json import compact
from kstore.cli.table import painted
from kstore.cli.value_types import BYTE_RATE, BYTE_RATE_BARE, DURATION_MS, SIZE
from kstore.compaction.blocks import CompactionReport
from kstore.compaction.plan import plan_compaction
from kstore.config import LogConfig
from kstore.log import Log
from kstore.upkeep.verify import find_logs

EXAMPLES = """
\b
Examples:
  kstore compact data/customers-0
  kstore compact --roll data/customers-0            the newest segment too
  kstore compact --delete-retention 0 data/          tombstones go one pass after the one that finds them
  kstore compact --rate 20MiB data/
  kstore compact --dry-run --roll data/customers-0  what it would remove

\b
Exit status:
  0  done
  1  damage was found and its segments were left unchanged; or a log cannot be opened
  2  bad usage
"""


@click.command("compact", cls=KstoreCommand, epilog=EXAMPLES, short_help="Keep the last record of each key.")
@click.argument("directories", nargs=-1, required=True, type=click.Path())
@click.option("--dry-run", is_flag=True, help="Only say what would be removed: change no byte, take no lock.")
@click.option("--roll", is_flag=True, help="First seal the active segment, which is never compacted.")
@click.option("--whole", is_flag=True, help="Compact again what earlier compactions have covered.")
@click.option("--drop-keyless", is_flag=True, help="Remove records without a key; by default they stay.")
@click.option(
    "--delete-retention", type=DURATION_MS, default="1d", show_default=True, help="How long tombstones stay, as 1h, 7d."
)
@click.option("--map-size", type=SIZE, default="128MiB", show_default=True, help="Memory for keys; 24 bytes each.")
@renamed_option(
    "--bytes-per-second",
    "--rate",
    type=BYTE_RATE,
    metavar="SIZE",
    help="Read and write at most this much a second, as 20MiB.",
    old_attributes={"type": BYTE_RATE_BARE},
)
@format_option("text: what was done, in words. json: one object a log.")
def command(
    directories: tuple[str, ...],
    dry_run: bool,
    roll: bool,
    whole: bool,
    drop_keyless: bool,
    delete_retention: int,
    map_size: int,
    rate: int | None,
    form: str,
) -> int:
    """Compact the logs in DIRECTORIES: each is one partition or holds partitions.

    Compaction keeps the last record of each key, with its offset. A null value, a tombstone, marks the key as deleted
    and is itself removed later. A log that another process writes to is refused.

    With --dry-run what would stay is written to unnamed temporary files, which take as much space there (TMPDIR).
    """
    is_damaged = False
    how = _How(roll, whole, not drop_keyless, delete_retention, map_size, rate)
    for directory in directories:
        for path in find_logs(Path(directory)):
            report = _planned(path, how) if dry_run else _compacted(path, how)
            is_damaged |= bool(report.corrupt)
            if form == "json":
                print(compact(_fields(path, report, dry_run)))
            else:
                for line in _lines(path, report, dry_run):
                    print(line)
    return DAMAGED if is_damaged else OK


class _How(NamedTuple):
    """What was asked for."""

    roll: bool
    whole: bool
    keep_keyless: bool
    delete_retention_ms: int
    map_bytes: int
    bytes_per_second: int | None


def _compacted(path: Path, how: _How) -> CompactionReport:
    with Log(path, delete_retention_ms=how.delete_retention_ms) as log:
        if how.roll:
            log.roll()
        return log.compact(
            whole=how.whole,
            keep_keyless=how.keep_keyless,
            map_bytes=how.map_bytes,
            bytes_per_second=how.bytes_per_second,
        )


def _planned(path: Path, how: _How) -> CompactionReport:
    return plan_compaction(
        path,
        LogConfig(delete_retention_ms=how.delete_retention_ms),
        roll=how.roll,
        whole=how.whole,
        keep_keyless=how.keep_keyless,
        map_bytes=how.map_bytes,
        bytes_per_second=how.bytes_per_second,
    )


def _fields(path: Path, report: CompactionReport, dry_run: bool) -> dict[str, Any]:
    return {**log_fields(path), "dry_run": dry_run, "damage": damage_fields(report.corrupt), **asdict(report)}


def _lines(path: Path, report: CompactionReport, dry_run: bool) -> Iterator[str]:
    if report.stop_offset == report.first_dirty and not report.stopped:
        yield f"{path}: {painted('nothing to compact', 'green')}"
        return
    are, stay, became = ("would be", "would stay", "would become") if dry_run else ("are", "stay", "became")
    yield (
        f"{path}: offsets {report.first_dirty} to {report.stop_offset - 1} {are} clean:"
        f" {report.records_kept:,} of {report.records_read:,} records {stay}, {report.keys:,} keys,"
        f" {report.tombstones_kept:,} tombstones"
    )
    yield (
        f"  {report.bytes_before:,} bytes in {report.segments_before:,} segments {became} {report.bytes_after:,}"
        f" in {report.segments_after:,}, in {report.seconds:.2f} s"
    )
    if report.map_full:
        yield f"  {painted('the map of keys was full', 'yellow')}: the next run continues"
    if report.stopped:
        yield f"  {painted('ended early', 'yellow')}: {report.stopped}"
    for lost in report.corrupt:
        yield (
            f"  {painted('damage', 'red')}: {lost.path} at position {lost.position},"
            f" offsets {lost.first} to {lost.last}: {lost.reason}"
        )
    for base_offset in report.left:
        yield f"  left unchanged: segment {base_offset}"
