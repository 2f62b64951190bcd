"""The sorted map from base offset to segment.

The log's writer changes the map, under the log's lock; each change publishes an immutable snapshot by one store.
Readers take the snapshot and bisect it without a lock: a SortedDict read while it changes can give a wrong floor.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sortedcontainers import SortedDict

from kstore.segment import LogSegment

__all__ = ["LogSegments", "SegmentSnapshot"]


class SegmentSnapshot(NamedTuple):
    """The map at one moment: ``bases`` rising, ``segments`` beside them. Immutable, so any thread may keep it."""

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


EMPTY = SegmentSnapshot((), ())


class LogSegments:
    """The map. Changes need the log's lock; every lookup works on the published snapshot."""

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._map: SortedDict[int, LogSegment] = SortedDict((segment.base_offset, segment) for segment in segments)
        self.snapshot = EMPTY
        self._publish()

    def _publish(self) -> None:
        self.snapshot = SegmentSnapshot(tuple(self._map.keys()), tuple(self._map.values()))

    def add(self, segment: LogSegment) -> LogSegment | None:
        """Puts ``segment`` under its base offset; returns the one that stood there."""
        replaced: LogSegment | None = self._map.get(segment.base_offset)
        self._map[segment.base_offset] = segment
        self._publish()
        return replaced

    def remove(self, base_offsets: Iterable[int]) -> None:
        """Takes segments out, all in one published change; a base that is not there is ignored."""
        for base_offset in base_offsets:
            self._map.pop(base_offset, None)
        self._publish()

    def replace(self, segments: Iterable[LogSegment]) -> None:
        """Takes ``segments`` in place of all that is there, in one published change."""
        self._map = SortedDict((segment.base_offset, segment) for segment in segments)
        self._publish()

    def __len__(self) -> int:
        return len(self.snapshot.bases)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self.snapshot.segments)

    def __contains__(self, base_offset: object) -> bool:
        return base_offset in self._map

    @property
    def bases(self) -> tuple[int, ...]:
        return self.snapshot.bases

    @property
    def first(self) -> LogSegment:
        """The segment with the least base. A log always has one; IndexError says that this map is empty."""
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

    def check(self) -> None:
        """Asserts the map's invariants."""
        bases, segments = self.snapshot
        assert list(bases) == sorted(set(bases)), f"bases out of order: {bases}"
        assert [segment.base_offset for segment in segments] == list(bases), "a segment stands under another's base"
        assert tuple(self._map.keys()) == bases, "the published snapshot is not the map"
