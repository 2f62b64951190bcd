"""The findings of a verification, as values and in words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kstore.rules.losses import UNCONFIRMED, LossRanges, OffsetSpan, OffsetSpans, clipped, holes, joined, span_size
from kstore.types import NO_OFFSET, NO_TIMESTAMP

NO_POSITION = -1
# The kinds of damage whose offsets, if they have some, cannot be read.
UNREADABLE = ("batch", "lost", "tail", "state", "checkpoint")
# The values of a finding's fields that say nothing.
ABSENT = {
    "position": NO_POSITION,
    "first": NO_OFFSET,
    "last": NO_OFFSET,
    "after_ms": NO_TIMESTAMP,
    "before_ms": NO_TIMESTAMP,
}

# What damage to files that hold no records means, by kind.
NO_RECORD_IS_LOST = {
    "index": "no record is lost; a lookup by offset may be slow until the index is rebuilt",
    "timeindex": "no record is lost; a search by time may miss records until the index is rebuilt",
    "txnindex": "no record is lost; a committed read may return aborted records until the index is rebuilt",
    "snapshot": "no record is lost; a producer may be refused, or repeat a batch, until the snapshot is replaced",
    "state": "no record is lost; the next open for writing checks the whole log",
    "epochs": "no record is lost; the next open for writing rebuilds the leader epochs",
    "checkpoint": "no record is lost; the store's next writer replaces the checkpoint",
    "name": "it cannot be read, and was not checked",
}
# What to do about damage, by group, in the order in which the groups are shown. A command follows.
ADVICE = {
    "batch": "Restore the log from a copy, or let reads continue without these records",
    "tail": "Restore the log from a copy, or cut what is incomplete, as the next open for writing does",
    "state": "Check the whole log, and store its state",
    "txnindex": "Rebuild the transaction indexes",
    "timeindex": "Rebuild the time indexes",
    "index": "Rebuild the offset indexes",
    "snapshot": "Remove the wrong snapshots",
    "epochs": "Rebuild the leader epochs",
}
# What does not exist any more, in contrast to damaged bytes that are still there.
MISSING = ("lost", "state", "checkpoint")

# "damage": something is lost, or would mislead a reader. "note": worth knowing, and possible after a crash.
Severity = Literal["damage", "note"]


class Finding(NamedTuple):
    """One thing found in ``path``.

    ``kind`` is the subject: "batch", "tail", "lost", "index", "timeindex", "txnindex", "snapshot", "state", "epochs",
    "checkpoint", "name". ``position`` is a byte of the file, NO_POSITION if it concerns no byte; ``first`` and ``last``
    are the offsets concerned, inclusive, or NO_OFFSET. ``after_ms`` is the greatest timestamp before damaged or
    lost batches in their segment, ``before_ms`` that of the batch after them, or NO_TIMESTAMP.
    """

    severity: Severity
    kind: str
    path: str
    reason: str
    position: int = NO_POSITION
    first: int = NO_OFFSET
    last: int = NO_OFFSET
    after_ms: int = NO_TIMESTAMP
    before_ms: int = NO_TIMESTAMP

    @property
    def at_position(self) -> str:
        """In words, after the path; "" without a position."""
        return f" at position {self.position}" if self.position != NO_POSITION else ""

    @property
    def at_offsets(self) -> str:
        """In words, after the position; "" without offsets."""
        if self.first == NO_OFFSET:
            return ""
        is_one = self.last in (NO_OFFSET, self.first)
        return f", offset {self.first}" if is_one else f", offsets {self.first} to {self.last}"

    @property
    def repair(self) -> str:
        """The command that repairs it, or that lets reads continue without the lost records; "" if none is needed or
        possible: the next writer of a store replaces damaged checkpoints itself."""
        return repair_of([self])

    def fields(self) -> dict[str, Any]:
        """The fields that have a value, with ``repair``, by name."""
        told = {name: value for name, value in self._asdict().items() if value != ABSENT.get(name)}
        if self.repair:
            told["repair"] = self.repair
        return told


# By severity and kind: the options of ``kstore recover``.
REPAIRS: dict[tuple[Severity, str], str] = {
    ("damage", "batch"): "--accept-loss {} ",
    ("damage", "lost"): "--accept-loss {} ",
    ("damage", "tail"): "",
    ("damage", "state"): "",
    ("damage", "epochs"): "",
    ("damage", "index"): "--rebuild-indexes ",
    ("damage", "timeindex"): "--rebuild-indexes ",
    ("damage", "txnindex"): "--rebuild-indexes ",
    ("damage", "snapshot"): "--rebuild-indexes ",
}


def repair_of(findings: Sequence[Finding]) -> str:
    """The command that does for all of ``findings``, of one log and one kind of repair, what each one's ``repair``
    does."""
    options: list[str] = []
    for found in findings:
        option = REPAIRS.get((found.severity, found.kind))
        if option is None:
            return ""
        if found.kind in ("batch", "lost"):
            option = option.format(f"{found.first}-{max(found.first, found.last)}" if found.first >= 0 else "all")
        if option not in options:
            options.append(option)
    # Findings about a whole log name its directory, all others a file in it.
    one = findings[0]
    directory = one.path if one.kind == "checkpoint" else str(Path(one.path).parent)
    return f"kstore recover {''.join(options)}{shlex.quote(directory)}"


def accept_command(ranges: Iterable[OffsetSpan], directory: str) -> str:
    """The command that lets reads of the log in ``directory`` pass over ``ranges``."""
    options = "".join(REPAIRS["damage", "lost"].format(f"{first}-{last}") for first, last in ranges)
    return f"kstore recover {options}{shlex.quote(directory)}"


def split_loss(finding: Finding, losses: LossRanges) -> Iterator[Finding]:
    """``finding``, about damaged or lost batches, split where some of it is accepted; accepted parts are notes."""
    last = max(finding.first, finding.last)
    parts = list(losses.told_apart(finding.first, last))
    for first, part_last, is_unconfirmed in parts:
        reason = f"{finding.reason}; {UNCONFIRMED}" if is_unconfirmed else finding.reason
        is_whole = (first, part_last) == (finding.first, last)
        yield finding._replace(reason=reason, first=first, last=finding.last if is_whole else part_last)
    for part in holes(finding.first, last, [(first, part_last) for first, part_last, _ in parts]):
        reason = f"accepted as lost: {finding.reason}"
        yield finding._replace(severity="note", reason=reason, first=part[0], last=part[1])


@dataclass(slots=True)
class LogVerification:
    """The state of one log. End offsets are exclusive, sizes are bytes.

    ``end_offset`` is the offset after the last whole batch; ``last_stable_offset`` is where committed reads stop.
    ``last_ms`` is the greatest timestamp of the last segment that has a batch, or NO_TIMESTAMP.
    """

    path: str
    start_offset: int = 0
    end_offset: int = 0
    last_stable_offset: int = 0
    segment_count: int = 0
    batch_count: int = 0
    record_count: int = 0
    size: int = 0
    last_ms: int = NO_TIMESTAMP
    findings: list[Finding] = field(default_factory=list)

    @property
    def damages(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "damage"]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "note"]

    def add_loss(self, finding: Finding, losses: LossRanges) -> None:
        """Adds damaged or lost batches; accepted ones are notes, not damage."""
        self.findings.extend(split_loss(finding, losses))

    @property
    def unreadable(self) -> OffsetSpans:
        """The offsets, as far as they are known, of records that cannot be read."""
        return joined(
            (found.first, found.last)
            for found in self.damages
            if found.kind in UNREADABLE and NO_OFFSET not in (found.first, found.last)
        )

    @property
    def is_dense(self) -> bool:
        """Whether each offset that can be read has a record; then so had those that cannot, most likely."""
        within = clipped(self.unreadable, self.start_offset, self.end_offset)
        return self.record_count == self.end_offset - self.start_offset - span_size(within)

    @property
    def is_sound(self) -> bool:
        return not self.damages


# --- what a finding means for the log's users, and what they can do: the words around its reason ----------------------


def advice_group(kind: str) -> str:
    """The group of findings of ``kind``, which one command repairs: a key of ``ADVICE`` if there is advice."""
    return "batch" if kind == "lost" else kind


def is_loss(finding: Finding) -> bool:
    """Whether it says that records cannot be read."""
    if finding.severity != "damage":
        return False
    return finding.kind in ("batch", "lost", "tail") or (finding.kind in MISSING and finding.first != NO_OFFSET)


def records_of(first: int, last: int, *, is_dense: bool = False) -> str:
    """The records of offsets ``first`` to ``last``, both inclusive, in words: "41 records, offsets 81 to 121,".

    ``is_dense``: each of them has a record, as is usual in a log that was not compacted.
    """
    if first >= last:
        return f"1 record, offset {first},"
    return f"{'' if is_dense else 'up to '}{last - first + 1:,} records, offsets {first} to {last},"


def consequence(finding: Finding, *, is_dense: bool = False) -> str:
    """One sentence without an end mark; "" for a note, which has none. ``is_dense``: as for ``records_of``."""
    first, last = finding.first, finding.last
    if finding.severity == "note":
        return ""
    if not is_loss(finding):
        return NO_RECORD_IS_LOST[finding.kind]
    if finding.kind == "tail" and last == NO_OFFSET:
        return f"nothing from offset {first} on can be read: the log ends with a batch that is incomplete or damaged"
    if first == NO_OFFSET:
        return "its records cannot be read"
    if last == NO_OFFSET:
        return f"the records from offset {first} on cannot be read"
    verb = "cannot be read" if finding.kind not in MISSING else "is missing" if first >= last else "are missing"
    return f"{records_of(first, last, is_dense=is_dense)} {verb}"


def times_around(finding: Finding, text: Callable[[int], str]) -> str:
    """The times of the records around those that cannot be read, which ``text`` shows; "" if they are not known."""
    after, before = finding.after_ms, finding.before_ms
    if not is_loss(finding) or (after == before == NO_TIMESTAMP):
        return ""
    subject = "it" if finding.kind == "tail" else "them"
    told = [f"up to {text(after)} before {subject}"] if after != NO_TIMESTAMP else []
    if before != NO_TIMESTAMP:
        told.append(f"up to {text(before)} in the batch after {subject}")
    return f"times: {', '.join(told)}"
