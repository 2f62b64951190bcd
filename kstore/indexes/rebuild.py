"""Rebuilding both searchable indexes of a segment from its batches, and checking the old ones. No I/O here.

The bytes are those that appending writes, with two exceptions: appending adds a time entry at each close of the log,
and Kafka restarts its count of ``index_interval_bytes`` after each start. An old index that leads every lookup
correctly is therefore sound although its bytes differ, and stays.

An old index is sound if its entries agree with the batches, and none is missing: a lookup of any batch walks at most
``WALK_INTERVALS`` intervals and one batch past the entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from kstore.indexes.entry_index import DELTA_MAX, READ_BYTES_MAX
from kstore.indexes.offset_index import ENTRY as OFFSET_ENTRY
from kstore.indexes.offset_index import POSITION_MAX
from kstore.indexes.time_index import ENTRY as TIME_ENTRY
from kstore.record.batch import Batch
from kstore.record.walk import Damage
from kstore.scan.visits import Visitor
from kstore.types import NO_OFFSET, NO_TIMESTAMP, TimestampOffset

# Kafka restarts its count after each start, so two intervals may separate two entries of a sound index.
WALK_INTERVALS = 4


class RebuiltIndexes(NamedTuple):
    """The contents of both files, and whether the old ones are sound.

    ``largest`` is the segment's greatest timestamp, with the last offset of the batch that first had it.
    """

    offsets: bytes
    times: bytes
    has_sound_offsets: bool
    has_sound_times: bool
    largest: TimestampOffset
    has_damage: bool


class IndexBuilder(Visitor):
    """Takes the batches of one segment in order. Not thread-safe."""

    def __init__(
        self,
        base_offset: int,
        *,
        index_interval_bytes: int,
        old_offsets: bytes | None = None,
        old_times: bytes | None = None,
    ) -> None:
        """``old_offsets`` and ``old_times`` are the contents of the existing files, None for a missing one."""
        self._base_offset = base_offset
        self._interval = index_interval_bytes
        self._walk_bytes_max = WALK_INTERVALS * index_interval_bytes
        self._offsets = bytearray()
        self._times = bytearray()
        self._is_full = self._has_damage = False
        self._since_entry = 0
        self._largest = TimestampOffset(NO_TIMESTAMP, NO_OFFSET)
        self._last_time = NO_TIMESTAMP
        self._offset_check = _OffsetCheck(base_offset, old_offsets, self._walk_bytes_max)
        self._time_check = _TimeCheck(base_offset, old_times, self._walk_bytes_max)

    def note(self, position: int, batch: Batch) -> None:
        """Adds the next whole batch (SegmentTail.note)."""
        size, base_offset, last_offset = batch.size, batch.base_offset, batch.last_offset
        max_timestamp = batch.max_timestamp
        self._offset_check.note(position, size, base_offset, last_offset)
        self._time_check.note(position, size, base_offset, last_offset, max_timestamp)
        if max_timestamp > self._largest.timestamp:
            self._largest = TimestampOffset(max_timestamp, last_offset)
        if self._since_entry > self._interval:
            self._add_entry(last_offset, position)
        self._since_entry += size

    def note_damage(self, damage: Damage) -> None:
        """Adds damage: the next batch gets an entry."""
        self._has_damage = True
        self._offset_check.skip(damage.stop)
        self._time_check.skip(damage.stop, damage.next_offset)
        self._since_entry = self._interval + 1

    def _add_entry(self, last_offset: int, position: int) -> None:
        delta = last_offset - self._base_offset
        if delta > DELTA_MAX or position > POSITION_MAX or len(self._offsets) + OFFSET_ENTRY.size > READ_BYTES_MAX:
            # From here a lookup walks from the last entry: nothing later can be stored, or would be read.
            self._is_full = True
        if not self._is_full:
            self._offsets += OFFSET_ENTRY.pack(delta, position)
            self._add_time_entry()
        self._since_entry = 0

    def _add_time_entry(self) -> None:
        timestamp, offset = self._largest
        if timestamp > self._last_time and offset - self._base_offset <= DELTA_MAX:
            self._times += TIME_ENTRY.pack(timestamp, offset - self._base_offset)
            self._last_time = timestamp

    def finish(self) -> RebuiltIndexes:
        """The result, once every batch was noted."""
        self._add_time_entry()
        offsets, times = bytes(self._offsets), bytes(self._times)
        return RebuiltIndexes(
            offsets,
            times,
            self._offset_check.is_sound(offsets),
            self._time_check.is_sound(times, self._largest.timestamp),
            self._largest,
            self._has_damage,
        )


class _OffsetCheck:
    """Checks an old offset index against the batches as they pass."""

    def __init__(self, base_offset: int, data: bytes | None, walk_bytes_max: int) -> None:
        self._data = data
        self._walk_bytes_max = walk_bytes_max
        self._is_wrong = data is None or len(data) % OFFSET_ENTRY.size != 0
        self._entries = _entries(
            OFFSET_ENTRY.iter_unpack((data or b"")[: _whole(data, OFFSET_ENTRY.size)]), base_offset
        )
        self._next = next(self._entries, None)
        self._last_offset = -1
        # Entries that were reached, but whose offset belongs to a later batch.
        self._pending: deque[tuple[int, int]] = deque()
        # Where the lookup of the next batch starts to walk, and the largest batch since.
        self._walk_start = self._largest_size = 0

    def note(self, position: int, size: int, base_offset: int, last_offset: int) -> None:
        if self._is_wrong:
            return
        while self._pending and self._pending[0][0] <= base_offset:
            self._walk_start = self._pending.popleft()[1]
            self._largest_size = position - self._walk_start
        if position - self._walk_start > self._walk_bytes_max + self._largest_size:
            self._is_wrong = True
        self._largest_size = max(self._largest_size, size)
        entry = self._next
        if entry is None or entry[1] > position:
            return
        if entry[1] < position or entry[0] < base_offset or entry[0] <= self._last_offset:
            self._is_wrong = True
        self._last_offset = entry[0]
        self._pending.append(entry)
        self._next = next(self._entries, None)

    def skip(self, stop: int) -> None:
        while self._next is not None and self._next[1] < stop:
            self._last_offset = max(self._last_offset, self._next[0])
            self._next = next(self._entries, None)
        self._pending.clear()
        self._walk_start, self._largest_size = stop, 0

    def is_sound(self, rebuilt: bytes) -> bool:
        return self._data == rebuilt or not (self._is_wrong or self._next is not None)


class _TimeCheck:
    """Checks an old time index against the batches as they pass."""

    def __init__(self, base_offset: int, data: bytes | None, walk_bytes_max: int) -> None:
        self._data = data
        self._walk_bytes_max = walk_bytes_max
        self._is_wrong = data is None or len(data) % TIME_ENTRY.size != 0
        self._entries = _entries(TIME_ENTRY.iter_unpack((data or b"")[: _whole(data, TIME_ENTRY.size)]), 0)
        self._base_offset = base_offset
        self._next = next(self._entries, None)
        self._last = (NO_TIMESTAMP, 0)
        self._largest = NO_TIMESTAMP
        # Where the greatest timestamp rose above the last entry, -1 if it did not, and the largest batch since.
        self._risen_at = -1
        self._largest_size = 0

    def note(self, position: int, size: int, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        if self._is_wrong:
            return
        while self._next is not None and self._next[1] + self._base_offset <= last_offset:
            timestamp, offset = self._next[0], self._next[1] + self._base_offset
            is_rising = timestamp > self._last[0] and self._next[1] >= self._last[1]
            if not is_rising or self._largest >= timestamp or (base_offset <= offset and max_timestamp != timestamp):
                self._is_wrong = True
            self._last = self._next
            self._risen_at = -1
            self._next = next(self._entries, None)
        self._largest = max(self._largest, max_timestamp)
        if self._largest > self._last[0]:
            if self._risen_at < 0:
                self._risen_at, self._largest_size = position, size
            self._largest_size = max(self._largest_size, size)
            if position - self._risen_at > self._walk_bytes_max + self._largest_size:
                self._is_wrong = True

    def skip(self, stop: int, next_offset: int | None) -> None:
        # The contents of the damaged batches are unknown, so they cannot contradict an entry.
        while self._next is not None and (next_offset is None or self._next[1] + self._base_offset < next_offset):
            self._last = max(self._last, self._next)
            self._next = next(self._entries, None)
        self._risen_at = -1

    def is_sound(self, rebuilt: bytes, largest: int) -> bool:
        if self._data == rebuilt:
            return True
        return not (self._is_wrong or self._next is not None or self._last[0] < largest)


def _whole(data: bytes | None, entry_size: int) -> int:
    """Bytes of whole entries."""
    return len(data or b"") // entry_size * entry_size


def _entries(pairs: Iterator[tuple[int, ...]], base_offset: int) -> Iterator[tuple[int, int]]:
    for one, two in pairs:
        yield one + base_offset, two
