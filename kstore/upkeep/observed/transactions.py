"""The transactions of a log, in fixed memory: how many ended, when, how, how long they took, and which are open.

No I/O here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, NamedTuple

from kstore.upkeep.distribution import Distribution, distribution_fields
from kstore.upkeep.observed.timeline import Timeline

# More open transactions than these are not followed: a damaged or hostile log may have any number of producers.
OPEN_MAX = 10_000
OPEN_LISTED_MAX = 100
LONGEST_MAX = 10
NONE = -1


class Ended(NamedTuple):
    """A transaction, from the greatest time of its first batch to that of its marker, in ms."""

    producer_id: int
    is_committed: bool
    first_offset: int
    first_timestamp: int
    last_offset: int
    last_timestamp: int

    @property
    def duration_ms(self) -> int:
        """NONE if its beginning, or a time, is not known."""
        known = self.first_offset >= 0 and 0 <= self.first_timestamp <= self.last_timestamp
        return self.last_timestamp - self.first_timestamp if known else NONE

    def fields(self) -> dict[str, Any]:
        """For the document."""
        return {
            "producer_id": self.producer_id,
            "committed": self.is_committed,
            "first": self.first_offset,
            "last": self.last_offset,
            "began": self.first_timestamp,
            "ended": self.last_timestamp,
        }


class Transactions:
    """What becomes of the transactions of one log, or of several after ``merge``. Not thread-safe."""

    __slots__ = ("aborted_count", "committed_count", "durations", "longest", "opened", "times")

    def __init__(self) -> None:
        # The first offset and the time of each open one, by producer id.
        self.opened: dict[int, tuple[int, int]] = {}
        self.committed_count = self.aborted_count = 0
        self.durations = Distribution()
        self.longest: list[tuple[int, Ended]] = []
        # By the time of the marker: commits in place of bytes, and aborts in place of records.
        self.times = Timeline()

    def begin(self, producer_id: int, offset: int, timestamp: int) -> None:
        """A transactional batch of a producer; only the first one begins a transaction."""
        if producer_id not in self.opened and len(self.opened) < OPEN_MAX:
            self.opened[producer_id] = (offset, timestamp)

    def end(self, producer_id: int, offset: int, timestamp: int, *, is_committed: bool) -> None:
        """A marker."""
        first = self.opened.pop(producer_id, (NONE, NONE))
        self.add((Ended(producer_id, is_committed, *first, offset, timestamp),))

    def add(self, ended: Iterable[Ended]) -> None:
        for one in ended:
            self.committed_count += one.is_committed
            self.aborted_count += not one.is_committed
            self.times.add(one.last_timestamp, int(one.is_committed), int(not one.is_committed))
            duration_ms = one.duration_ms
            if duration_ms != NONE:
                self.durations.add(duration_ms)
                self._keep(duration_ms, one)

    def merge(self, other: Transactions) -> None:
        """Adds what ended in another log."""
        self.committed_count += other.committed_count
        self.aborted_count += other.aborted_count
        self.durations.merge(other.durations)
        self.times.merge(other.times)
        for duration_ms, one in other.longest:
            self._keep(duration_ms, one)

    def _keep(self, duration_ms: int, one: Ended) -> None:
        if len(self.longest) < LONGEST_MAX:
            heapq.heappush(self.longest, (duration_ms, one))
        elif duration_ms > self.longest[0][0]:
            heapq.heapreplace(self.longest, (duration_ms, one))

    def fields(self) -> dict[str, Any]:
        """For the document. ``times``: rows of (start, commits, aborts)."""
        return {
            "committed": self.committed_count,
            "aborted": self.aborted_count,
            "open": len(self.opened),
            "open_list": [
                {"producer_id": producer_id, "first": offset, "began": timestamp}
                for producer_id, (offset, timestamp) in sorted(self.opened.items(), key=lambda item: item[1])[
                    :OPEN_LISTED_MAX
                ]
            ],
            "duration_ms": distribution_fields(self.durations),
            "longest": [one.fields() for _, one in sorted(self.longest, reverse=True)],
            "width": self.times.width_ms,
            "times": [list(bucket[:3]) for bucket in self.times.buckets()],
        }
