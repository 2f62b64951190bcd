"""Looks up records of a log by time."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from kstore.engine.ends import Ends
from kstore.engine.read.reads import looked_up
from kstore.engine.read.segment_times import SegmentTimes
from kstore.engine.source import LogSource
from kstore.errors import CorruptDataError
from kstore.record.walk import Damage
from kstore.rules.arguments import milliseconds
from kstore.segment import LogSegment
from kstore.types import NO_OFFSET, NO_TIMESTAMP, TimestampOffset

TimePoint = int | datetime | Literal["earliest", "latest", "max_timestamp"]


def offset_for_time(source: LogSource, times: SegmentTimes, when: TimePoint) -> int | None:
    """See ``Log.offset_for_time``; ``times`` are those of the log."""
    if when == "earliest" or when == "latest":
        source.refresh()
        return source.ends.start_offset if when == "earliest" else source.ends.high_watermark
    found = record_for_time(source, times, when)
    return None if found is None else found.offset


def record_for_time(
    source: LogSource, times: SegmentTimes, when: int | datetime | Literal["max_timestamp"]
) -> TimestampOffset | None:
    """Timestamp and offset of the first record at or after ``when``, or of the one with the greatest timestamp; None
    without one."""
    source.refresh()
    if when == "max_timestamp":
        return looked_up(source, lambda: _latest_record(source, times, source.ends))
    timestamp_ms = milliseconds(when)
    return looked_up(source, lambda: _first_at(source, times, timestamp_ms, source.ends))


def _first_at(source: LogSource, times: SegmentTimes, timestamp_ms: int, ends: Ends) -> TimestampOffset | None:
    """The first record at or after ``timestamp_ms``, or None. Skips damaged batches."""
    for segment in times.reaching(timestamp_ms, source.segments.snapshot, ends):
        found = find_offset_by_timestamp(segment, timestamp_ms, ends.start_offset, ends.limit_of(segment))
        if found is not None:
            return found if found.offset < ends.high_watermark else None
    return None


def _latest_record(source: LogSource, times: SegmentTimes, ends: Ends) -> TimestampOffset | None:
    """The first record with the greatest timestamp; None if no record has one."""
    start_offset = ends.start_offset
    candidates = times.greatest(source.segments.snapshot, ends)
    latest: TimestampOffset | None = None
    for largest, segment in sorted(candidates, key=lambda candidate: -candidate[0]):
        if largest <= (NO_TIMESTAMP if latest is None else latest.timestamp):
            break
        limit = ends.limit_of(segment)
        found = find_offset_by_timestamp(segment, largest, start_offset, limit)
        if found is None or found.offset >= ends.high_watermark:
            # That time belongs to a deleted record, or to one that may still vanish; or the index is wrong.
            found = _latest_record_in(segment, start_offset, ends.high_watermark, limit)
        if found is not None and (latest is None or found.timestamp > latest.timestamp):
            latest = found
    return latest


def find_offset_by_timestamp(
    segment: LogSegment, timestamp: int, start_offset: int, stop: int
) -> TimestampOffset | None:
    """The first record at or above ``start_offset`` whose timestamp is at least ``timestamp`` (LogSegment).

    Markers count, as in Kafka: a broker's answers are the same. Damaged batches are skipped. None if no record up to
    position ``stop`` fits.
    """
    limit = segment.context.config.max_batch_bytes_uncompressed
    located = segment.locate(max(segment.offset_before_time(timestamp, stop), start_offset), stop)
    for item in segment.walk_from(located, stop):
        if isinstance(item, Damage):
            continue
        _, batch = item
        if batch.max_timestamp < timestamp or batch.last_offset < start_offset:
            continue
        try:
            offsets, timestamps = batch.offsets_and_timestamps(first_offset=start_offset, max_bytes_uncompressed=limit)
        except CorruptDataError:
            continue
        for offset, found in zip(offsets, timestamps, strict=True):
            if found >= timestamp:
                return TimestampOffset(found, offset)
    return None


def _latest_record_in(segment: LogSegment, start_offset: int, stop_offset: int, stop: int) -> TimestampOffset | None:
    """The first of the records with the greatest timestamp, from ``start_offset`` to below ``stop_offset``.

    Walks up to position ``stop``, past damaged batches. None if no record there has a timestamp.
    """
    limit = segment.context.config.max_batch_bytes_uncompressed
    latest = TimestampOffset(NO_TIMESTAMP, NO_OFFSET)
    for item in segment.walk_from(segment.locate(start_offset, stop), stop):
        if isinstance(item, Damage) or item[1].max_timestamp <= latest.timestamp:
            continue
        try:
            pairs = item[1].offsets_and_timestamps(first_offset=start_offset, max_bytes_uncompressed=limit)
        except CorruptDataError:
            continue
        for offset, timestamp in zip(*pairs, strict=True):
            if offset < stop_offset and timestamp > latest.timestamp:
                latest = TimestampOffset(timestamp, offset)
    return latest if latest.offset != NO_OFFSET else None
