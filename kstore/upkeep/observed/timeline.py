"""Bytes and records by time, in fixed memory whatever the times are. No I/O here.

Times are those of batches, which producers may choose: some lie years before the others, some are -1. So only times
that occur take memory, and the axis of a picture has breaks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

BUCKETS_MAX = 128
FIRST_WIDTH_MS = 1000
# The axis of a picture has at most this many breaks.
BREAKS_MAX = 3


class Bucket(NamedTuple):
    """What batches have a time from ``start`` on, in ms, for the width of a bucket.

    ``last_offset`` is the greatest of them; -1 if they are of several logs.
    """

    start: int
    size: int
    record_count: int
    batch_count: int
    last_offset: int = -1


class Timeline:
    """Counts batches by their greatest time; a bucket's width doubles when there are too many. Not thread-safe."""

    __slots__ = ("_buckets", "untimed", "width_ms")

    def __init__(self) -> None:
        self.width_ms = FIRST_WIDTH_MS
        self.untimed = Bucket(-1, 0, 0, 0)
        self._buckets: dict[int, tuple[int, int, int, int]] = {}

    def add(self, timestamp: int, size: int, record_count: int, batch_count: int = 1, last_offset: int = -1) -> None:
        """Counts batches of ``size`` bytes in all; a time below 0 counts as unknown."""
        if timestamp < 0:
            _, sizes, records, batches, last = self.untimed
            counts = (sizes + size, records + record_count, batches + batch_count, max(last, last_offset))
            self.untimed = Bucket(-1, *counts)
            return
        number = timestamp // self.width_ms
        sizes, records, batches, last = self._buckets.get(number, (0, 0, 0, -1))
        counts = (sizes + size, records + record_count, batches + batch_count, max(last, last_offset))
        self._buckets[number] = counts
        while len(self._buckets) > BUCKETS_MAX:
            self._widen(2 * self.width_ms)

    def merge(self, other: Timeline) -> None:
        """Adds the batches of another log; their offsets mean nothing here."""
        self.add(*other.untimed[:4])
        self._widen(max(self.width_ms, other.width_ms))
        for bucket in other.buckets():
            self.add(*bucket[:4])

    def buckets(self) -> list[Bucket]:
        """Those with batches, by time."""
        return [Bucket(number * self.width_ms, *counts) for number, counts in sorted(self._buckets.items())]

    def fields(self) -> dict[str, Any]:
        """For the document."""
        return {
            "width": self.width_ms,
            "buckets": [list(bucket) for bucket in self.buckets()],
            "untimed": list(self.untimed[1:4]),
        }

    def _widen(self, width_ms: int) -> None:
        if width_ms == self.width_ms:
            return
        narrow, self._buckets = self.buckets(), {}
        self.width_ms = width_ms
        for start, *counts in narrow:
            self.add(start, *counts)


def clusters_of(buckets: list[Bucket], width_ms: int) -> list[list[Bucket]]:
    """``buckets``, which are in order, split at gaps that would take more than half of the picture.

    Records of 2023 among those of today make two clusters; without gaps there is one.
    """
    gaps = [(two.start - one.start, place + 1) for place, (one, two) in enumerate(pairwise(buckets))]
    span = sum(gap for gap, _ in gaps) + width_ms
    places = []
    for gap, place in sorted(gaps, reverse=True)[:BREAKS_MAX]:
        if 2 * gap <= span or gap <= 4 * width_ms:
            break
        places.append(place)
        span -= gap
    borders = [0, *sorted(places), len(buckets)]
    return [buckets[start:stop] for start, stop in pairwise(borders) if start < stop]


def usual_times(fields: dict[str, Any], share: float = 0.05) -> tuple[int, int] | None:
    """The times between which the records are but for ``share`` at each end, as near as the buckets tell.

    None if no record has a time. A few records with a time of years ago do not count.
    """
    buckets = [Bucket._make(each) for each in fields["buckets"]]
    total = sum(bucket.record_count for bucket in buckets)
    low, high, seen = None, None, 0
    for bucket in buckets:
        if low is None and seen + bucket.record_count > share * total:
            low = bucket.start
        if seen < (1 - share) * total:
            high = bucket.start + fields["width"]
        seen += bucket.record_count
    return None if low is None or high is None else (low, high)
