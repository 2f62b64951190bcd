"""The sorted map from base offset to segment.

The map is one immutable snapshot. The log's writer makes the next one, under the log's lock, and publishes it by one
store: a failure before that, even a refused allocation, leaves the map unchanged. Readers bisect it without a lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kstore.segment import LogSegment
from kstore.types import OFFSET_MAX


class SegmentSnapshot(NamedTuple):
    """The map at one moment: ``bases`` rising, ``segments`` parallel to them. Immutable, so any thread may keep it."""

    bases: tuple[int, ...]
    segments: tuple[LogSegment, ...]

    def floor(self, offset: int) -> LogSegment | None:
        """The segment with the greatest base <= ``offset``."""
        at = bisect_right(self.bases, offset)
        return self.segments[at - 1] if at else None

    def lower(self, offset: int) -> LogSegment | None:
        """The segment with the greatest base < ``offset``."""
        at = bisect_left(self.bases, offset)
        return self.segments[at - 1] if at else None

    def higher(self, offset: int) -> LogSegment | None:
        """The segment with the least base > ``offset``."""
        at = bisect_right(self.bases, offset)
        return self.segments[at] if at < len(self.segments) else None

    def range(self, start: int, stop: int) -> tuple[LogSegment, ...]:
        """The segments that can hold offsets of [start, stop): from the floor of ``start`` on, bases < ``stop``.

        ``[0][10][20]`` with (12, 20) -> ``[10]``; with (12, 21) -> ``[10][20]``.
        """
        first = max(bisect_right(self.bases, start) - 1, 0)
        return self.segments[first : max(bisect_left(self.bases, stop), first)]


def _snapshot_of(segments: Iterable[LogSegment]) -> SegmentSnapshot:
    """The snapshot of segments in any order; of two with the same base the later one counts."""
    known = {segment.base_offset: segment for segment in segments}
    bases = tuple(sorted(known))
    return SegmentSnapshot(bases, tuple(known[base] for base in bases))


class LogSegments:
    """The map. Changes need the log's lock; every lookup works on the published snapshot."""

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self.snapshot: SegmentSnapshot = _snapshot_of(segments)
        # The bytes of all but the last of these segments, which stay as long as the map does.
        self._sealed: tuple[SegmentSnapshot, int] = SegmentSnapshot((), ()), 0

    def count_and_size(self) -> tuple[int, int]:
        """How many segments there are, and the bytes of their ``.log`` files. Raises: StorageError."""
        snapshot = self.snapshot
        if not snapshot.segments:
            return 0, 0
        known, size = self._sealed
        if known is not snapshot:
            size = sum(segment.size for segment in snapshot.segments[:-1])
            self._sealed = snapshot, size
        return len(snapshot.segments), size + snapshot.segments[-1].size

    def add(self, segment: LogSegment) -> LogSegment | None:
        """Puts ``segment`` at its base offset; returns the one that was there."""
        bases, segments = self.snapshot
        if not bases or bases[-1] < segment.base_offset:
            # A roll: one copy, not three.
            self.snapshot = SegmentSnapshot(bases + (segment.base_offset,), segments + (segment,))  # noqa: RUF005
            return None
        at = bisect_left(bases, segment.base_offset)
        after = bisect_right(bases, segment.base_offset)
        replaced = segments[at] if at < after else None
        self.snapshot = SegmentSnapshot(
            (*bases[:at], segment.base_offset, *bases[after:]), (*segments[:at], segment, *segments[after:])
        )
        return replaced

    def remove(self, base_offsets: Iterable[int]) -> None:
        """Removes segments, in one published change; ignores unknown bases.

        Those that retention and truncation remove are next to one another, so that the rest is copied as a whole.
        """
        bases, segments = self.snapshot
        places = [
            at for base in sorted(set(base_offsets)) if (at := bisect_left(bases, base)) < bisect_right(bases, base)
        ]
        if not places:
            return
        first, after = places[0], places[-1] + 1
        gone = set(places)
        kept = [at for at in range(first, after) if at not in gone]
        self.snapshot = SegmentSnapshot(
            (*bases[:first], *(bases[at] for at in kept), *bases[after:]),
            (*segments[:first], *(segments[at] for at in kept), *segments[after:]),
        )

    def replace(self, segments: Iterable[LogSegment]) -> None:
        """Replaces all segments by ``segments``, in one published change."""
        self.snapshot = _snapshot_of(segments)

    def __len__(self) -> int:
        return len(self.snapshot.bases)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self.snapshot.segments)

    def __contains__(self, base_offset: object) -> bool:
        return base_offset in self.snapshot.bases

    @property
    def bases(self) -> tuple[int, ...]:
        return self.snapshot.bases

    @property
    def first(self) -> LogSegment:
        """The segment with the least base. A log always has one; IndexError means that this map is empty."""
        return self.snapshot.segments[0]

    @property
    def last(self) -> LogSegment:
        """The active segment: the one with the greatest base."""
        return self.snapshot.segments[-1]

    def floor(self, offset: int) -> LogSegment | None:
        return self.snapshot.floor(offset)

    def lower(self, offset: int) -> LogSegment | None:
        return self.snapshot.lower(offset)

    def higher(self, offset: int) -> LogSegment | None:
        return self.snapshot.higher(offset)

    def range(self, start: int, stop: int) -> tuple[LogSegment, ...]:
        return self.snapshot.range(start, stop)

    def holding(self, offset: int) -> tuple[LogSegment, int] | None:
        """The segment that holds ``offset`` or, below the first, that one; with the offset at which it ends."""
        bases, segments = self.snapshot
        if not segments:
            return None
        at = bisect_right(bases, offset) or 1
        return segments[at - 1], bases[at] if at < len(bases) else OFFSET_MAX

    def check(self) -> None:
        """Asserts the map's invariants."""
        bases, segments = self.snapshot
        assert list(bases) == sorted(set(bases)), f"bases out of order: {bases}"
        assert [segment.base_offset for segment in segments] == list(bases), "a segment stands under another's base"
