"""Holds the end of a log without ``kstore.state`` against what its small files prove beyond its batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kstore.clock import SYSTEM_CLOCK
from kstore.config import LogConfig
from kstore.engine.open.evidence import find_evidence
from kstore.engine.segments import LogSegments
from kstore.files.fs import FileSystem
from kstore.files.handles import HandleCache
from kstore.files.paths import LOG_SUFFIX, classify, segment_name
from kstore.metrics import LogCounters
from kstore.rules.losses import holes, joined
from kstore.segment import LogSegment, SegmentContext
from kstore.types import NO_TIMESTAMP
from kstore.upkeep.verify.findings import Finding, LogVerification, Severity


def add_evidence(
    fs: FileSystem,
    directory: Path,
    bases: Sequence[int],
    snapshots: Sequence[int],
    recovery_point: int | None,
    log: LogVerification,
) -> None:
    """Adds what recovery would call lost, or skip, in a log that no program is writing. Raises: StorageError."""
    if classify(fs.list(directory)).unfinished:
        return  # the next open first ends what a crash has interrupted: its files are not those of whole segments yet
    config = LogConfig()
    context = SegmentContext(fs, directory, config, SYSTEM_CLOCK, HandleCache(config.open_files_max), LogCounters())
    segments = LogSegments(LogSegment(context, base) for base in bases)
    evidence = find_evidence(context, segments, snapshots, recovery_point)
    told = joined((found.first, found.last) for found in log.damages if found.kind in ("batch", "lost"))

    def add(first: int, last: int, base: int, reason: str, *, is_damage: bool) -> None:
        path = str(directory / segment_name(base, LOG_SUFFIX))
        severity: Severity = "damage" if is_damage else "note"
        after = log.last_ms if first >= log.end_offset else NO_TIMESTAMP
        for part in holes(max(first, log.start_offset), last, told):
            log.findings.append(Finding(severity, "lost", path, reason, first=part[0], last=part[1], after_ms=after))

    for first, last, base, what in evidence.holes:
        add(first, last, base, f"the segment ends at offset {first}, but {what} shows more", is_damage=True)
    end = max(evidence.log_end, log.start_offset)
    reason = (
        f"the log ends at offset {end}, but {evidence.proof} proves that it was durable up to {evidence.proven_end}"
    )
    add(end, evidence.proven_end - 1, bases[-1], reason, is_damage=True)
    for first, last in evidence.untold:
        count = last - max(first, end) + 1
        reason = f"{count:,} offsets were used, as {evidence.sign} shows, and nothing shows that they were durable"
        add(max(first, end), last, bases[-1], reason, is_damage=False)
    if evidence.untold and not evidence.is_loss:
        _excuse_entries(log, segment_name(bases[-1], ""))


def _excuse_entries(log: LogVerification, last_segment: str) -> None:
    """Makes notes of the index entries of the last segment that lie beyond its batches: the next open removes them.
    The notes say what they show."""
    log.findings[:] = [
        found._replace(severity="note")
        if found.kind in ("index", "timeindex")
        and Path(found.path).name.startswith(f"{last_segment}.")
        and "after the last batch" in found.reason
        else found
        for found in log.findings
    ]
