"""``kstore recover``: repairs logs that were not closed cleanly, and reports what that took."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.finding_text import INDENTS, command_lines, painted_lines, records
from kstore.cli.json_fields import damage_fields, log_fields
from kstore.cli.options import format_option
from kstore.cli.places import LogPlace, log_bytes
from kstore.cli.progress import progress
from kstore.cli.record_json import compact
from kstore.cli.table import painted, wrapped
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX
from kstore.rules.losses import UNCONFIRMED, joined, span_size
from kstore.scan.visits import Advance
from kstore.types import RecoveryReport
from kstore.upkeep.recover import Accept, Rebuild, plan_recovery, recover_log
from kstore.upkeep.verify import find_logs, verify_log
from kstore.upkeep.verify.findings import ADVICE, accept_command, records_of

# What a note says was done, and how a plan says it. A loss that was accepted before is shown with its reason.
DONE = re.compile(r"\b(?:is |are |(?<=and ))(rebuilt|kept|removed|split)\b")
ACCEPTED = ("is accepted: reads skip", "would be accepted: reads would skip")

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


# --- as text: what cannot be read, then each step -------------------------------------------------------------------


def as_plan(note: str) -> str:
    """The note of a recovery that was not carried out."""
    return DONE.sub(r"would be \1", note.replace(*ACCEPTED))


def recovery_lines(log: Path, report: RecoveryReport, *, is_plan: bool) -> Iterator[str]:
    """The lines about ``log``, whose files they show by their names. ``is_plan``: nothing was changed."""
    would = "would be " if is_plan else ""
    if report.clean:
        text = painted("closed cleanly", "green")
        if not report.rebuilt:
            text += f", nothing to {'recover' if report.notes else 'do'}"
        yield f"{log}: {text}"
    else:
        yield from _summary(log, report, is_plan=is_plan)
    for lost in report.corrupt:
        offsets = records_of(lost.first, lost.last)
        verb = "would be" if is_plan else "is" if lost.first >= lost.last else "are"
        yield from painted_lines(
            f"{INDENTS[0]}{offsets} cannot be read, and {verb} fenced: reads stop there", INDENTS[1], "red"
        )
        yield from wrapped(f"{INDENTS[1]}{_name(lost.path)} at position {lost.position}: {lost.reason}", INDENTS[2])
        known = UNCONFIRMED if lost.is_unconfirmed else "acknowledged, as far as is known"
        yield from wrapped(INDENTS[1] + known, INDENTS[2])
    if report.corrupt:
        yield from wrapped(f"{INDENTS[0]}{ADVICE['batch']}:", INDENTS[1])
        ranges = [(one.first, one.last) for one in report.corrupt]
        yield from command_lines(accept_command(ranges, str(log)), INDENTS[1])
    for cut in report.cut:
        kept = f"; a copy {would or 'is '}kept as {_name(cut.saved_as)}" if cut.saved_as else ""
        lost_batch = "which hold a whole batch" if cut.saved_as else "in which there is no whole batch"
        yield from painted_lines(
            f"{INDENTS[0]}{would}cut: {cut.size:,} bytes at the end, {lost_batch}{kept}",
            INDENTS[1],
            "red" if cut.saved_as else "yellow",
        )
        yield from wrapped(f"{INDENTS[1]}{_name(cut.path)} from position {cut.position}: {cut.reason}", INDENTS[2])
    for gone in report.skipped:
        count = gone.last - gone.first + 1
        offsets = f"{count:,} offsets, {gone.first} to {gone.last}" if count > 1 else f"1 offset, {gone.first}"
        again = f"they {'would not be' if is_plan else 'are not'} used again"
        yield from wrapped(
            f"{INDENTS[0]}{painted(f'{would}skipped', 'yellow')}: {offsets}: {gone.reason}; {again}", INDENTS[1]
        )
    for path in report.rebuilt:
        what = "the indexes of " if path.endswith(LOG_SUFFIX) else ""
        yield f"{INDENTS[0]}{would}rebuilt: {what}{_name(path)}"
    for note in report.notes:
        yield from wrapped(f"{INDENTS[0]}{painted('note', 'yellow')}: {note}", INDENTS[1])
    if report.clean:
        return
    for name in report.ignored:
        yield f"{INDENTS[0]}ignored: {name}"


def _summary(log: Path, report: RecoveryReport, *, is_plan: bool) -> Iterator[str]:
    lost = span_size(joined((one.first, one.last) for one in report.corrupt))
    has_cut = any(cut.saved_as for cut in report.cut)
    if lost:
        yield from painted_lines(f"{log}: up to {records(lost)} cannot be read", INDENTS[0], "red")
    elif has_cut:
        yield from painted_lines(f"{log}: whole batches {'would be' if is_plan else 'were'} cut", INDENTS[0], "red")
    elif report.cut or report.skipped:
        yield f"{log}: {painted('no record that is known to be durable is lost', 'green')}"
    elif any(ACCEPTED[0] in note or ACCEPTED[1] in note for note in report.notes):
        yield f"{log}: nothing is lost but what {'would be' if is_plan else 'is'} accepted"
    else:
        yield f"{log}: {painted('nothing was lost', 'green')}"
    yield from wrapped(
        f"{INDENTS[0]}checked: {records(report.records_scanned)} in {report.batches_scanned:,} batches of"
        f" {report.segments_scanned:,} segments, {report.bytes_scanned:,} bytes in {report.seconds:.2f} s",
        INDENTS[1],
    )


def _name(path: str) -> str:
    """Its name: all files are in the log's directory."""
    return Path(path).name
