"""``kstore recover``: repairs logs that were not closed cleanly, and reports what that took."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.json_fields import damage_fields, log_fields
from kstore.cli.options import format_option
from kstore.cli.places import LogPlace, log_bytes
from kstore.cli.progress import progress
from kstore.cli.record_json import compact
from kstore.cli.recovery_text import as_plan, recovery_lines
from kstore.files.local import SYSTEM_FS
from kstore.scan.visits import Advance
from kstore.types import RecoveryReport
from kstore.upkeep.recover import Accept, Rebuild, plan_recovery, recover_log
from kstore.upkeep.verify import find_logs, verify_log

EXAMPLES = """
\b
Examples:
  kstore recover --dry-run data/           what would be cut, fenced and rebuilt; changes nothing
  kstore recover data/orders-0
  kstore recover --format json data/ | jq .
  kstore recover --rebuild-indexes data/   also repairs indexes and snapshots that "kstore verify" reports
  kstore recover --accept-loss 120-129 data/orders-0    reads skip these damaged or lost offsets
  kstore recover --accept-loss all --dry-run data/      lists damaged or lost offsets; reads every segment

\b
Exit status:
  0  nothing is lost
  1  damage: records are fenced, or bytes that held a whole batch are cut and set aside; or a log cannot be opened
  2  bad usage
"""


@click.command("recover", cls=KstoreCommand, epilog=EXAMPLES, short_help="Recover logs after an unclean end.")
@click.argument("directories", nargs=-1, required=True, type=click.Path())
@click.option("--dry-run", is_flag=True, help="Only print the steps: change no byte, take no lock.")
@click.option(
    "--accept-loss",
    "accept",
    multiple=True,
    metavar="FIRST-LAST",
    help="Let reads skip these offsets, both inclusive, which must be damaged or lost; 'all' accepts all such"
    " offsets. Repeatable. The decision is stored in kstore.state.",
)
@click.option(
    "--rebuild-indexes",
    is_flag=True,
    help="Read every segment, and rebuild each missing or wrong index; wrong producer snapshots are removed.",
)
@click.option(
    "--index-interval-bytes",
    type=click.IntRange(0, 2**31 - 1),
    metavar="N",
    help="The value with which the logs were written. Default: that of the store's topics, else 4096.",
)
@format_option("text: what was done, in words. json: one object a log.")
def command(
    directories: tuple[str, ...],
    dry_run: bool,
    accept: tuple[str, ...],
    rebuild_indexes: bool,
    index_interval_bytes: int | None,
    form: str,
) -> int:
    """Recover the logs in DIRECTORIES: each is one partition or holds partitions.

    Opening a log for writing does the same. A torn tail is cut; a damaged batch with whole ones after it is fenced: it
    stays and is never served. Cut bytes that held a whole batch are kept next to the log, as <base>.log.cut-<position>.
    Indexes are rebuilt. A cleanly closed log is left unchanged, except for indexes that --rebuild-indexes finds missing
    or wrong; a sound one keeps its bytes.

    Reads raise an error at fenced records and at records that the disk lost, until their loss is accepted.
    """
    is_damaged = False
    logs = [log for directory in directories for log in find_logs(Path(directory))]
    ranges = _ranges(accept)
    if ranges and ranges != "all" and len(logs) != 1:
        raise click.UsageError(f"--accept-loss names offsets of one log, but {len(logs)} logs are given")
    sizes = [log_bytes(LogPlace(log, SYSTEM_FS, str(log))) for log in logs]
    with progress("recover", sum(sizes)) as advance:
        for log, size in zip(logs, sizes, strict=True):
            part = _Part(advance, size)
            rebuild = _rebuild(log, index_interval_bytes) if rebuild_indexes else None
            with _unlogged() if dry_run else nullcontext():
                report = (plan_recovery if dry_run else recover_log)(
                    log, advance=part.advance, accept=ranges, rebuild=rebuild
                )
            if dry_run:
                report.notes[:] = map(as_plan, report.notes)
            part.end()
            is_damaged |= bool(report.corrupt) or any(cut.saved_as for cut in report.cut)
            if form == "json":
                print(compact(_fields(log, report, dry_run)))
            else:
                for line in recovery_lines(log, report, is_plan=dry_run):
                    print(line)
    return DAMAGED if is_damaged else OK


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keeps from standard error that a dry run has "rebuilt" what it only rebuilt in memory: the report has it."""
    logger = logging.getLogger("kstore")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _fields(log: Path, report: RecoveryReport, dry_run: bool) -> dict[str, Any]:
    return {
        **log_fields(log),
        "dry_run": dry_run,
        "damage": damage_fields(report.corrupt),
        "bytes_cut": report.bytes_cut,
        **asdict(report),
    }


class _Part:
    """A log's share of the bar: what recovery need not read counts when the log is done."""

    def __init__(self, advance: Advance, size: int) -> None:
        self._advance = advance
        self._rest = size

    def advance(self, size: int) -> None:
        """Advances the bar by ``size`` bytes, to the end of the share at most."""
        step = min(size, self._rest)
        self._rest -= step
        self._advance(step)

    def end(self) -> None:
        """Advances the bar to the end of the share."""
        self.advance(self._rest)


def _rebuild(log: Path, index_interval_bytes: int | None) -> Rebuild:
    """What to rebuild: only a verification finds wrong transaction indexes and snapshots."""
    found = verify_log(log).damages
    damaged = tuple(damage.path for damage in found if damage.kind in ("txnindex", "snapshot"))
    return Rebuild(damaged, index_interval_bytes)


def _ranges(accept: tuple[str, ...]) -> Accept:
    """The ranges of ``--accept-loss``."""
    if "all" in accept:
        return "all"
    found = []
    for text in accept:
        first, separator, last = text.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if separator else not last)):
            raise click.UsageError(f"--accept-loss is {text!r}, expected FIRST-LAST or all")
        found.append((int(first), int(last or first)))
    return found
