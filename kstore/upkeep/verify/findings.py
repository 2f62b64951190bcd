"""The findings of a verification, as values."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kstore.rules.losses import UNCONFIRMED, LossRanges, holes
from kstore.types import NO_OFFSET

__all__ = ["NO_POSITION", "Advance", "Finding", "LogVerification", "Severity", "split_loss"]

NO_POSITION = -1

# "damage": something is lost, or would mislead a reader. "note": worth knowing, and possible after a crash.
Severity = Literal["damage", "note"]

# Receives the number of further bytes examined.
Advance = Callable[[int], None]


class Finding(NamedTuple):
    """One thing found in ``path``.

    ``kind`` is the subject: "batch", "tail", "lost", "index", "timeindex", "txnindex", "snapshot", "state", "epochs",
    "checkpoint", "name". ``position`` is a byte of the file, NO_POSITION if it concerns no byte; ``first`` and ``last``
    are the offsets concerned, inclusive, or NO_OFFSET.
    """

    severity: Severity
    kind: str
    path: str
    reason: str
    position: int = NO_POSITION
    first: int = NO_OFFSET
    last: int = NO_OFFSET

    @property
    def repair(self) -> str:
        """The command that repairs it, or that lets reads continue without the lost records; "" if none is needed or
        possible: the next writer of a store replaces damaged checkpoints itself."""
        options = REPAIRS.get((self.severity, self.kind))
        if options is None:
            return ""
        if self.kind in ("batch", "lost"):
            options = options.format(f"{self.first}-{max(self.first, self.last)}" if self.first >= 0 else "all")
        # Findings about a whole log name its directory, all others a file in it.
        directory = self.path if self.kind == "checkpoint" else str(Path(self.path).parent)
        return f"kstore recover {options}{shlex.quote(directory)}"

    def fields(self) -> dict[str, Any]:
        """The fields that have a value, with ``repair``, by name."""
        told = {name: value for name, value in self._asdict().items() if name not in ("position", "first", "last")}
        if self.position != NO_POSITION:
            told["position"] = self.position
        if self.first != NO_OFFSET:
            told["first"] = self.first
        if self.last != NO_OFFSET:
            told["last"] = self.last
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
    """

    path: str
    start_offset: int = 0
    end_offset: int = 0
    last_stable_offset: int = 0
    segment_count: int = 0
    batch_count: int = 0
    record_count: int = 0
    size: int = 0
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
    def is_sound(self) -> bool:
        return not self.damages
