"""Reads a log from end to end to find what is unreadable, and accepts its loss."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

from kstore.config import LogConfig
from kstore.engine.ends import Ends
from kstore.engine.read.reads import looked_up
from kstore.engine.segments import LogSegments
from kstore.engine.source import LogSource
from kstore.engine.writer import LogWriter
from kstore.errors import CorruptDataError, InvalidOffsetError, NotLostError
from kstore.record._runs import Run
from kstore.record.batch import Batch
from kstore.record.walk import Damage
from kstore.rules.losses import LOST, LossRanges, holes, joined
from kstore.segment import LogSegment, SegmentContext
from kstore.segments.places import START
from kstore.types import OFFSET_MAX, CorruptRange, RecoveryReport

# Long sequential reads drop what they have read from the page cache in steps of this size.
DROP_BYTES = 8 << 20


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

    A segment that is compacted, cut or deleted meanwhile is looked up again; what was read of it counts in the report
    too.
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
    ends, losses = source.ends, source.losses
    stop = min(stop, ends.end_offset)
    for segment in source.segments.range(start, stop):
        following = source.segments.higher(segment.base_offset)
        end = min(following.base_offset if following is not None else OFFSET_MAX, ends.end_offset)
        limit = ends.limit_of(segment)
        found = _unreadable_in(segment, limit, end, source.context.config, losses, report or RecoveryReport())
        for damage in found:
            if damage.last >= start and damage.first < stop:
                yield damage._replace(first=max(damage.first, start), last=min(damage.last, stop - 1))


def _unreadable_in(
    segment: LogSegment, limit: int, end: int, config: LogConfig, losses: LossRanges, report: RecoveryReport
) -> Iterator[CorruptRange]:
    file = segment.log_file()
    path = str(file.path)
    dropped = 0
    next_offset = segment.base_offset
    for item in segment.runs_from(START, limit, offset_stop=end, base_stop=OFFSET_MAX):
        if isinstance(item, Damage):
            next_offset = item.next_offset if item.next_offset is not None else end
            yield CorruptRange(item.first_offset, next_offset - 1, item.position, item.reason, path)
            continue
        position = item.position + item.start if isinstance(item, Run) else item[0]
        if position - dropped >= DROP_BYTES and segment.tail is None:
            # Data that is read once must not push data that others read often out of memory.
            file.advise(dropped, position - dropped, "dontneed")
            dropped = position
        if isinstance(item, Run) and not (item.has_gap and losses.lost):
            # All of it was checked, including the records.
            next_offset = item.next_offset
            report.batches_scanned += item.batch_count
            report.records_scanned += item.record_count
            continue
        for at, batch in item.batches() if isinstance(item, Run) else (item,):
            if batch.base_offset > next_offset:
                yield from _lost(losses, next_offset, batch.base_offset, at, path)
            next_offset = batch.last_offset + 1
            reason = _unreadable_records(batch, config)
            if reason:
                yield CorruptRange(batch.base_offset, batch.last_offset, at, reason, path)
            report.batches_scanned += 1
            report.records_scanned += batch.record_count
    yield from _lost(losses, next_offset, end, limit, path)
    report.segments_scanned += 1
    report.bytes_scanned += limit


def _unreadable_records(batch: Batch, config: LogConfig) -> str:
    try:
        batch.check(config.max_batch_bytes_uncompressed)
    except CorruptDataError as error:
        return error.reason
    return ""


def _lost(losses: LossRanges, start: int, stop: int, position: int, path: str) -> Iterator[CorruptRange]:
    """The losses in a gap between batches; ``position`` is where their records would be."""
    for first, last in LossRanges(losses.lost).missing(start, stop):
        yield CorruptRange(first, last, position, LOST, path)


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
