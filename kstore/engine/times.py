"""Looks up records of a log by time."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from kstore.engine.ends import Ends
from kstore.engine.reads import looked_up
from kstore.engine.source import LogSource
from kstore.rules.arguments import milliseconds
from kstore.segment import LogSegment
from kstore.types import NO_TIMESTAMP, TimestampOffset

__all__ = ["TimePoint", "offset_for_time"]

TimePoint = int | datetime | Literal["earliest", "latest", "max_timestamp"]


def offset_for_time(source: LogSource, when: TimePoint) -> int | None:
    """See ``Log.offset_for_time``."""
    source.refresh()
    if when == "earliest":
        return source.ends.start_offset
    if when == "latest":
        return source.ends.high_watermark
    if when == "max_timestamp":
        found = looked_up(source, lambda: _latest_record(source, source.ends))
    else:
        timestamp_ms = milliseconds(when)
        found = looked_up(source, lambda: _first_at(source, timestamp_ms, source.ends))
    return None if found is None else found.offset


def _first_at(source: LogSource, timestamp_ms: int, ends: Ends) -> TimestampOffset | None:
    """The first record at or after ``timestamp_ms``, or None. Skips damaged batches."""
    start_offset = ends.start_offset
    for segment in source.segments.range(start_offset, ends.high_watermark):
        limit = ends.limit_of(segment)
        if segment.largest_timestamp(limit).timestamp >= timestamp_ms:
            found = segment.find_offset_by_timestamp(timestamp_ms, start_offset, limit)
            if found is not None:
                return found if found.offset < ends.high_watermark else None
    return None


def _latest_record(source: LogSource, ends: Ends) -> TimestampOffset | None:
    """The first record with the greatest timestamp; None if no record has one."""
    start_offset = ends.start_offset
    candidates: list[tuple[int, LogSegment, int]] = []
    for segment in source.segments.range(start_offset, ends.high_watermark):
        limit = ends.limit_of(segment)
        candidates.append((segment.largest_timestamp(limit).timestamp, segment, limit))
    latest: TimestampOffset | None = None
    for largest, segment, limit in sorted(candidates, key=lambda candidate: -candidate[0]):
        if largest <= (NO_TIMESTAMP if latest is None else latest.timestamp):
            break
        found = segment.find_offset_by_timestamp(largest, start_offset, limit)
        if found is None or found.offset >= ends.high_watermark:
            # That time belongs to a marker, to a deleted record, or to one that may still vanish.
            found = segment.latest_record(start_offset, ends.high_watermark, limit)
        if found is not None and (latest is None or found.timestamp > latest.timestamp):
            latest = found
    return latest
