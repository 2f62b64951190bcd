"""How much a micro-batch takes of what is available: limits of offsets and of bytes, divided among the partitions.

A limit is shared in proportion to what each partition has, and each partition with anything to read gets at least one
offset: no partition starves. Nothing is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kstore.clock import Clock
from kstore.files.paths import TopicPartition
from kstore.spark.ranges import Offsets

# The approximate bytes of a partition's log between two offsets.
Measure = Callable[[TopicPartition, int, int], int]


def limit_offsets(limit: int, starts: Mapping[TopicPartition, int], ends: Offsets) -> Offsets:
    """Lowers ``ends`` so that about ``limit`` offsets are taken in all. ``starts`` has every partition."""
    counts = {owner: end - starts[owner] for owner, end in ends.items() if end > starts[owner]}
    total = sum(counts.values())
    if total <= limit:
        return dict(ends)
    return {
        owner: starts[owner] + _share(limit, counts[owner], total) if owner in counts else end
        for owner, end in ends.items()
    }


def limit_bytes(limit: int, starts: Mapping[TopicPartition, int], ends: Offsets, measure: Measure) -> Offsets:
    """Like ``limit_offsets``, for about ``limit`` bytes: whole batches, at least the first of each partition with any.

    ``measure`` counts the batches that end below its second offset. It is called about 60 times a partition.
    """
    sizes = {owner: measure(owner, starts[owner], end) for owner, end in ends.items() if end > starts[owner]}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    found = dict(ends)
    for owner, size in sizes.items():
        budget = _share(limit, size, total) if size else 0
        if size > budget:
            found[owner] = _end_within(budget, starts[owner], ends[owner], partial(measure, owner, starts[owner]))
    return found


def _end_within(budget: int, start: int, end: int, size_to: Callable[[int], int]) -> int:
    """The last offset where a batch starts and ``size_to`` is within ``budget``; at least the second batch's."""
    size = size_to(_last_with(lambda size: size <= budget, start, end, size_to))
    if size == 0:
        return _last_with(lambda size: size <= 0, start, end, size_to) + 1
    return _last_with(lambda smaller: smaller < size, start, end, size_to) + 1


def _last_with(fits: Callable[[int], bool], start: int, end: int, size_to: Callable[[int], int]) -> int:
    """The greatest offset whose size fits, between ``start``, whose size is 0, and ``end``, whose size does not."""
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        if fits(size_to(middle)):
            low = middle
        else:
            high = middle
    return low


def _share(limit: int, part: int, total: int) -> int:
    """The share of ``limit`` for ``part`` of ``total``: rounded down, but at least 1 and at most ``part``."""
    return min(max(limit * part // total, 1), part)


class TriggerDelay:
    """Holds a micro-batch back until there are ``least`` offsets, but not longer than ``delay_ms``.

    The first one does not wait.
    """

    def __init__(self, least: int, delay_ms: int, clock: Clock) -> None:
        self._least = least
        self._delay_ms = delay_ms
        self._clock = clock
        self._last_seconds: float | None = None

    def holds_back(self, starts: Mapping[TopicPartition, int], ends: Offsets) -> bool:
        """Whether to wait for more; if not, the time starts again."""
        now_seconds = self._clock.monotonic()
        count = sum(max(end - starts[owner], 0) for owner, end in ends.items())
        if (
            count < self._least
            and self._last_seconds is not None
            and (now_seconds - self._last_seconds) * 1000 < self._delay_ms
        ):
            return True
        self._last_seconds = now_seconds
        return False
