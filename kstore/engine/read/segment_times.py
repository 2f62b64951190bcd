"""The greatest timestamp of each segment, kept in memory, to find the first segment that reaches a time.

Timestamps may fall, so the search is a binary one over the greatest timestamps so far: the first segment at which these
reach a time is the first that has a record of it. A segment that this process has written or looked up knows its own
time. The others do not change once they are sealed, so the last entry of a time index is read once, and believed if it
follows the entry before it, is not below the segment before, and covers most of its segment. Everything else, and the
segment that was sealed last, is checked against the batches. A wrong entry that looks right and is too high is noticed
when a search in its segment finds nothing; one that is too low hides the segment's later records from a search by time,
and ``verify`` finds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from kstore.engine.ends import Ends
from kstore.engine.segments import SegmentSnapshot
from kstore.files.paths import TIME_INDEX_SUFFIX
from kstore.index import TimeIndex
from kstore.indexes.entry_index import INDEX_FAILURES
from kstore.segment import LogSegment
from kstore.types import NO_TIMESTAMP

# Entries that end before the last sixteenth of a segment's offsets are not believed: the index may have lost its end.
UNCOVERED_PART = 16


class _Table(NamedTuple):
    """``times`` has the greatest timestamp of each of ``sealed``, ``so_far`` the greatest up to each, and
    ``change_counts`` those of the segments when they were read. ``last`` is the segment after them, which may grow."""

    snapshot: SegmentSnapshot
    sealed: tuple[LogSegment, ...]
    last: LogSegment | None
    times: list[int]
    so_far: list[int]
    change_counts: list[int]


class SegmentTimes:
    """The greatest timestamps of the segments of one open log. Thread-safe: a table is replaced by one store."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table: _Table | None = None

    def reaching(self, timestamp: int, snapshot: SegmentSnapshot, ends: Ends) -> Iterator[LogSegment]:
        """The segments that have a record at or after ``timestamp``, in order, as far as is known.

        A caller that takes the next one has found no such record in this one, whose known time is then checked.
        Raises: StorageError.
        """
        table = self._table_of(snapshot, ends)
        at = bisect_left(table.so_far, timestamp)
        while at < len(table.sealed):
            if table.times[at] >= timestamp:
                yield table.sealed[at]
                self._check(table, at, ends)
            at += 1
        if table.last is not None and _checked(table.last, ends) >= timestamp:
            yield table.last

    def greatest(self, snapshot: SegmentSnapshot, ends: Ends) -> list[tuple[int, LogSegment]]:
        """The greatest timestamp of each segment, as far as is known. Raises: StorageError."""
        table = self._table_of(snapshot, ends)
        found = list(zip(table.times, table.sealed, strict=True))
        return found if table.last is None else [*found, (_checked(table.last, ends), table.last)]

    def _table_of(self, snapshot: SegmentSnapshot, ends: Ends) -> _Table:
        """The table of the segments that readers see now; what is known of segments that stay is kept."""
        segments = snapshot.range(ends.start_offset, ends.high_watermark)
        table = self._table
        last = segments[-1] if segments else None
        if (
            table is not None
            and table.snapshot is snapshot
            and (table.last, table.sealed[:1], len(table.sealed))
            == (last, segments[:-1][:1], max(len(segments) - 1, 0))
        ):
            return table
        sealed = segments[:-1]
        # Before the times: a segment that changes while they are read is read again.
        counts = [segment.change_count for segment in sealed]
        times = self._times_of(sealed, last.base_offset if last is not None else 0, ends)
        self._table = table = _Table(snapshot, sealed, last, times, list(accumulate(times, max)), counts)
        return table

    def _times_of(self, sealed: Sequence[LogSegment], stop: int, ends: Ends) -> list[int]:
        old = self._table
        known = (
            {} if old is None else dict(zip(old.sealed, zip(old.times, old.change_counts, strict=True), strict=True))
        )
        times = []
        previous = NO_TIMESTAMP
        for segment, following in zip(sealed, [*(one.base_offset for one in sealed[1:]), stop], strict=False):
            if (largest := segment.known_largest) is not None:
                time = largest.timestamp
            elif (found := known.get(segment)) is not None and found[1] == segment.change_count:
                time = found[0]
            else:
                time = _noted(segment, following)
                # A writer in another process adds the last entry after it has created the next segment.
                may_be_rolling = segment is sealed[-1]
                if time < previous or time == NO_TIMESTAMP or may_be_rolling:
                    time = _checked(segment, ends)
            times.append(time)
            previous = time
        return times

    def _check(self, table: _Table, at: int, ends: Ends) -> None:
        """Looks the time of a segment up in its batches."""
        time = _checked(table.sealed[at], ends)
        if time != table.times[at]:
            times = [*table.times[:at], time, *table.times[at + 1 :]]
            self._table = table._replace(times=times, so_far=list(accumulate(times, max)))


def _checked(segment: LogSegment, ends: Ends) -> int:
    return segment.largest_timestamp(ends.limit_of(segment)).timestamp


def _noted(segment: LogSegment, following: int) -> int:
    """The greatest timestamp as the time index ends, unchecked: a read of 24 bytes, for which no handle is kept.

    NO_TIMESTAMP if it must be looked up: the index is missing or empty, its last two entries cannot both be right, or
    many of the offsets up to ``following``, where the next segment begins, come after the last one.
    """
    context, tail = segment.context, segment.tail
    if tail is not None:
        return tail.max_timestamp
    is_kept = context.repairs is not None and context.repairs.kept(segment, TIME_INDEX_SUFFIX) is not None
    if segment.lacks_index or is_kept:
        return NO_TIMESTAMP
    try:
        file = context.fs.open(segment.files.path_text(TIME_INDEX_SUFFIX))
        try:
            timestamp, delta = TimeIndex.last_of(file)
        finally:
            file.close()
    except INDEX_FAILURES:
        return NO_TIMESTAMP
    span = following - segment.base_offset
    return timestamp if span - 1 - delta <= span // UNCOVERED_PART else NO_TIMESTAMP
