"""What retention may delete: decisions over values, Kafka's rules (UnifiedLog.deleteOldSegments) and guards.

Oldest first, up to the first segment that is kept:

    log start    the segment is wholly below the log's start offset
    size         without it the log still holds at least ``retention_bytes``
    time         its greatest timestamp is more than ``retention_ms`` ago

Only segments below the high watermark are deleted and, if retention waits for consumer groups or replicators, only
those that all of them have passed. A segment whose records have no time is as old as its file, and one with damage,
which hides the times of some of its records, is no older than its file. Guards: a time in the future does not keep a
segment forever, its file's time counts instead; and a clock that jumps ahead deletes nothing early (``TrustedClock``).
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeVar

from kstore.config import NO_LIMIT, LogConfig
from kstore.types import NO_TIMESTAMP

Owner = TypeVar("Owner", bound=Hashable)

# A clock correction of less than this does not count as a jump.
JUMP_MS_MAX = 60_000
# Records may be ahead of this machine's clock by this much.
FUTURE_MS_MAX = 3_600_000


class SegmentAge(NamedTuple):
    """One segment: offsets below ``stop_offset``, ``size`` in bytes, greatest timestamp and file time in ms.

    The file time may be 0 unless it is needed (``needs_file_time``), because it takes a look at the file.
    ``has_damage``: the greatest timestamp leaves out unreadable batches.
    """

    stop_offset: int
    size: int
    largest_timestamp: int
    mtime_ms: int
    has_damage: bool = False


def passed_by_all(groups: Iterable[str], committed: Callable[[str], int | None]) -> int:
    """The offset that all of ``groups`` have passed, by what each has ``committed``, or None."""
    return min((committed(group) or 0 for group in groups), default=0)


def deletable_count(
    segments: Iterable[SegmentAge],
    config: LogConfig,
    *,
    size: int,
    start_offset: int,
    high_watermark: int,
    now_ms: int,
    passed: int | None = None,
) -> int:
    """How many of ``segments``, all of a log's in order, may be deleted; the last one is the active one.

    Reads no segment after the successor of the first kept one, because finding an age may take a read. ``size`` is that
    of all segments. ``passed``: the offset that all have passed that retention waits for; None if it waits for none.
    """
    surplus = size - config.retention_bytes
    by_policy = "delete" in config.cleanup_policy
    count = 0
    for segment, following in pairwise(chain(segments, [None])):
        assert segment is not None
        is_empty_end = following is None and segment.size == 0
        if segment.stop_offset > high_watermark or is_empty_end:
            break
        is_below = segment.stop_offset <= start_offset
        is_surplus = by_policy and config.retention_bytes != NO_LIMIT and surplus >= segment.size
        if not is_below and passed is not None and segment.stop_offset > passed:
            break
        if not (is_below or is_surplus or (by_policy and _is_expired(segment, config.retention_ms, now_ms))):
            break
        surplus -= segment.size
        count += 1
    return count


def needs_file_time(largest_timestamp: int, now_ms: int, *, has_damage: bool) -> bool:
    """Whether the age of a segment depends on its file's time."""
    return has_damage or largest_timestamp == NO_TIMESTAMP or largest_timestamp > now_ms + FUTURE_MS_MAX


def _is_expired(segment: SegmentAge, retention_ms: int, now_ms: int) -> bool:
    if retention_ms == NO_LIMIT:
        return False
    written_ms = segment.largest_timestamp
    if needs_file_time(written_ms, now_ms, has_damage=False):
        written_ms = segment.mtime_ms
    elif segment.has_damage:
        written_ms = max(written_ms, segment.mtime_ms)
    return now_ms - written_ms > retention_ms


def over_total(logs: Mapping[Owner, Sequence[SegmentAge]], surplus: int) -> dict[Owner, int]:
    """How many segments each log gives up to free ``surplus`` bytes; logs that give up none are omitted.

    The segments written longest ago go first, whatever the times of their records. Active segments, the last of each
    log, stay.
    """
    counts: dict[Owner, int] = {}
    # The number decides between logs of the same age.
    heads = [(ages[0].mtime_ms, number, owner) for number, (owner, ages) in enumerate(logs.items()) if len(ages) > 1]
    heapq.heapify(heads)
    while surplus > 0 and heads:
        _, number, owner = heapq.heappop(heads)
        ages, count = logs[owner], counts.get(owner, 0) + 1
        surplus -= ages[count - 1].size
        counts[owner] = count
        if count + 1 < len(ages):
            heapq.heappush(heads, (ages[count].mtime_ms, number, owner))
    return counts


class TrustedClock:
    """A wall clock that advances no faster than time passes: it ignores a jump ahead, but follows a jump back.

    It cannot detect a clock that was wrong from the start. The logs of a store share one, so a log that is opened after
    a jump does not believe it. Thread-safe.
    """

    def __init__(self, now_ms: int, monotonic: float) -> None:
        """``now_ms`` of the wall clock, ``monotonic`` in seconds of a clock that is never set."""
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._monotonic = monotonic

    def now_ms(self, now_ms: int, monotonic: float) -> int:
        """The time to use when the wall clock says ``now_ms``."""
        with self._lock:
            passed_ms = round((monotonic - self._monotonic) * 1000)
            believed_ms = min(now_ms, self._now_ms + passed_ms + JUMP_MS_MAX)
            # The allowance is for small corrections: it applies once, not with every call.
            if now_ms <= self._now_ms + passed_ms:
                self._now_ms, self._monotonic = now_ms, monotonic
            return believed_ms
