"""What a recovery did, or would do, as text: what cannot be read, then each step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kstore.cli.finding_text import INDENTS, command_lines, painted_lines, records
from kstore.cli.table import painted, wrapped
from kstore.files.paths import LOG_SUFFIX
from kstore.rules.losses import UNCONFIRMED, joined, span_size
from kstore.types import RecoveryReport
from kstore.upkeep.verify.consequences import ADVICE, records_of
from kstore.upkeep.verify.findings import accept_command

# What a note says was done, and how a plan says it. A loss that was accepted before is shown with its reason.
DONE = re.compile(r"\b(?:is |are |(?<=and ))(rebuilt|kept|removed|split)\b")
ACCEPTED = ("is accepted: reads skip", "would be accepted: reads would skip")


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
