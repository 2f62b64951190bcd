"""Reads a log from end to end to find what is unreadable, and accepts its loss."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

from kstore.engine.ends import Ends
from kstore.engine.read.reads import looked_up
from kstore.engine.segments import LogSegments
from kstore.engine.source import LogSource
from kstore.engine.writer import LogWriter
from kstore.errors import InvalidOffsetError, NotLostError
from kstore.record.batch import Batch
from kstore.record.walk import Damage
from kstore.rules.losses import LOST, LossRanges, holes, joined
from kstore.scan.visits import Lost, Progress, RecordCheck, Visitor, visit
from kstore.segment import LogSegment, SegmentContext
from kstore.segments.places import START
from kstore.types import OFFSET_MAX, CorruptRange, RecoveryReport


class CheckedLog(Protocol):
    """A log that can be read from end to end: a writer, a view, or a log that was just recovered."""

    @property
    def context(self) -> SegmentContext: ...
    @property
    def segments(self) -> LogSegments: ...
    @property
    def ends(self) -> Ends: ...
    @property
    def losses(self) -> LossRanges: ...


def check_batches(source: LogSource) -> RecoveryReport:
    """Reports the damage and losses in everything that ``source`` has published. Raises: StorageError.

    A segment that is compacted, cut or deleted in the meantime is looked up again; what was read of it counts in the
    report too.
    """
    report = RecoveryReport()
    losses = source.losses
    at, stop = source.ends.start_offset, source.ends.end_offset
    while at < stop:
        truncation_count = source.truncation_count
        found, after = looked_up(source, partial(_unreadable_in_next, source, at, stop, report))
        if found:
            # In the middle of a cut, what is sound looks damaged.
            source.settle()
            if source.truncation_count != truncation_count:
                stop = min(stop, source.ends.end_offset)
                continue
        at = after
        for damage in found:
            report.corrupt += losses.judged(damage)
            if losses.unaccepted(damage.first, damage.last) != ((damage.first, damage.last),):
                accepted = f"the loss of offsets in {damage.first} to {damage.last} is accepted: {damage.reason}"
                report.notes.append(accepted)
    report.clean = not report.corrupt
    return report


def _unreadable_in_next(
    source: LogSource, at: int, stop: int, report: RecoveryReport
) -> tuple[list[CorruptRange], int]:
    """What is ``unreadable`` from ``at`` to the end of its segment, and the offset to go on from."""
    at = max(at, source.ends.start_offset)
    held = source.segments.holding(at)
    end = stop if held is None else min(held[1], stop)
    return list(unreadable(source, at, end, report=report)), end


def check_invariants(source: CheckedLog) -> None:
    """Asserts what holds between the log's ends, its segments and their indexes: see ``Log.check``."""
    ends, segments = source.ends, source.segments
    segments.check()
    ends.check()
    assert segments.bases[-1] == ends.base_offset, f"{segments.bases[-1]}, {ends}"
    assert segments.last.size == ends.position, f"{segments.last.size}, {ends}"
    for segment in segments:
        segment.check()


def unreadable(
    source: CheckedLog, start: int, stop: int, *, report: RecoveryReport | None = None
) -> Iterator[CorruptRange]:
    """The damaged or lost offsets from ``start`` to below ``stop``, accepted or not; counts in ``report``.

    Whole segments are read. Raises: StorageError.
    """
    ends = source.ends
    stop = min(stop, ends.end_offset)
    for segment in source.segments.range(start, stop):
        following = source.segments.higher(segment.base_offset)
        end = min(following.base_offset if following is not None else OFFSET_MAX, ends.end_offset)
        found = _unreadable_in(segment, ends.limit_of(segment), end, source, report or RecoveryReport())
        for damage in found:
            if damage.last >= start and damage.first < stop:
                yield damage._replace(first=max(damage.first, start), last=min(damage.last, stop - 1))


def _unreadable_in(
    segment: LogSegment, limit: int, end: int, source: CheckedLog, report: RecoveryReport
) -> list[CorruptRange]:
    file = segment.log_file()
    gone = _Gone(str(file.path), end)
    check = RecordCheck(source.context.config.max_batch_bytes_uncompressed, gone.add_unreadable)
    try:
        visit(
            segment.runs_from(START, limit, offset_stop=end),
            gone,
            check,
            base_offset=segment.base_offset,
            offset_stop=end,
            size=limit,
            losses=source.losses,
            progress=Progress(dropped_from=file if segment.tail is None else None),
        )
    finally:
        report.batches_scanned += check.batch_count
        report.records_scanned += check.record_count
    report.segments_scanned += 1
    report.bytes_scanned += limit
    return gone.found


class _Gone(Visitor):
    """What is damaged or lost in one segment, up to offset ``end``."""

    def __init__(self, path: str, end: int) -> None:
        self._path = path
        self._end = end
        self.found: list[CorruptRange] = []

    def note_damage(self, damage: Damage) -> None:
        last = (self._end if damage.next_offset is None else damage.next_offset) - 1
        self.found.append(CorruptRange(damage.first_offset, last, damage.position, damage.reason, self._path))

    def note_lost(self, lost: Lost) -> None:
        self.found.append(CorruptRange(lost.first, lost.last, lost.position, LOST, self._path))

    def add_unreadable(self, position: int, batch: Batch, reason: str) -> None:
        """Adds a batch with records that cannot be read."""
        self.found.append(CorruptRange(batch.base_offset, batch.last_offset, position, reason, self._path))


def ensure_lost(source: CheckedLog, first: int, last: int) -> None:
    """Raises: NotLostError if any of offsets ``first`` to ``last`` is neither damaged nor lost; InvalidOffsetError,
    StorageError."""
    if not 0 <= first <= last:
        raise InvalidOffsetError(f"offsets {first} to {last}, expected a range of offsets from 0 on")
    found = unreadable(source, max(first, source.ends.start_offset), last + 1)
    lost = joined((damage.first, damage.last) for damage in found)
    for whole in holes(first, last, joined(lost, source.losses.accepted)):
        raise NotLostError(*whole)


def accept_loss(writer: LogWriter, first: int, last: int) -> None:
    """Makes reads skip offsets ``first`` to ``last``, durably: see ``Log.accept_loss``."""
    while True:
        # Read without the log's lock, so that appends continue.
        writer.refresh()
        seen = writer.change_count
        try:
            ensure_lost(writer, first, last)
        except FileNotFoundError:
            if writer.change_count == seen:
                raise
            continue  # deleted or compacted in the meantime
        if writer.accept_loss(first, last, seen):
            return
