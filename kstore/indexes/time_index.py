"""The time index of a segment, ``.timeindex``.

    at  size  field
     0     8  timestamp  int64  the greatest timestamp of the segment so far, ms since the epoch
     8     4  delta      int32  last offset of the batch with it, less the segment's base offset

Kafka 2.8 and older: the offset of the record itself, if known.
"""

from __future__ import annotations

import struct
from array import array

from kstore.errors import IndexFullError, InvalidOffsetError, InvalidTimestampError
from kstore.files.fs import File
from kstore.files.paths import TIME_INDEX_SUFFIX
from kstore.indexes._search import time_entries, time_rows
from kstore.indexes.entry_index import DELTA_MAX, EntryIndex
from kstore.types import NO_TIMESTAMP, TIMESTAMP_MAX, TimestampOffset

ENTRY = struct.Struct(">qi")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
assert ENTRY.size == 12

DELTA_AT = 8


class TimeIndex(EntryIndex[TimestampOffset]):
    """Maps a time to an offset before which no record is later (Kafka: TimeIndex).

    Timestamps increase strictly, offsets never decrease. An entry holds the greatest timestamp of the segment so far
    and the last offset of its batch (Kafka 2.8 and older: of its record).
    """

    suffix = TIME_INDEX_SUFFIX
    entry_size = ENTRY.size

    __slots__ = ("_last_delta", "_last_timestamp")

    _last_delta: int
    _last_timestamp: int

    @classmethod
    def last_of(cls, file: File) -> tuple[int, int]:
        """Timestamp and offset delta of the last entry of a sealed index; (NO_TIMESTAMP, 0) if that entry is missing or
        does not follow the one before it."""
        size = file.size()
        data = file.pread(2 * ENTRY.size, max(size - 2 * ENTRY.size, 0))
        if size % ENTRY.size or not data or len(data) % ENTRY.size:
            return NO_TIMESTAMP, 0
        previous = ENTRY.unpack_from(data) if len(data) > ENTRY.size else (NO_TIMESTAMP, 0)
        timestamp, delta = ENTRY.unpack_from(data, len(data) - ENTRY.size)
        return (timestamp, delta) if timestamp > previous[0] and delta >= previous[1] else (NO_TIMESTAMP, 0)

    @classmethod
    def _first_disorder(cls, data: bytes) -> int:
        return len(time_rows(data)) // 2

    def _load_last(self) -> None:
        last = self._entry_bytes(self._count - 1) if self._count else ENTRY.pack(NO_TIMESTAMP, 0)
        self._last_timestamp, self._last_delta = ENTRY.unpack(last)

    @property
    def slots_left(self) -> int:
        """As of any index; one slot is reserved for the roll itself."""
        return super().slots_left - 1

    def maybe_append(self, timestamp: int, offset: int, *, final: bool = False) -> bool:
        """Adds an entry if ``timestamp`` (ms) is greater than the last one's; returns whether it did.

        ``offset`` may equal the last entry's. ``final``: the entry of a roll, which may use the reserved slot.

        Raises: InvalidOffsetError (below the last entry, or too far from the base), IndexFullError, ReadOnlyError,
        DiskFullError; then nothing was added.
        """
        delta = offset - self.base_offset
        if not self._last_delta <= delta <= DELTA_MAX:
            raise InvalidOffsetError(
                f"{self.path}: entry of offset {offset} does not follow {self.last_entry}"
                f" in an index of base offset {self.base_offset}"
            )
        if timestamp <= self._last_timestamp:
            return False
        if timestamp > TIMESTAMP_MAX:
            raise InvalidTimestampError(f"timestamp {timestamp} ms is over {TIMESTAMP_MAX}")
        entries = self._count
        if not final and entries >= self.max_entry_count - 1:
            raise IndexFullError(
                f"{self.path}: {entries} entries are used, the last one of {self.max_entry_count} is reserved"
            )
        if final and self._mapping is None:
            self._write_last(ENTRY.pack(timestamp, delta))
        else:
            if entries >= self._capacity:
                self._grow()
            assert self._mapping is not None
            self._mapping.store(entries * 12, ENTRY.pack(timestamp, delta))
        self._last_timestamp = timestamp
        self._last_delta = delta
        self._count = entries + 1
        return True

    def rows(self) -> array[int]:
        """Timestamp and delta of each entry, one after the other, up to the first that is out of order."""
        return time_rows(self._read(0, self.size))

    @property
    def room(self) -> int:
        """How many entries can be added before the mapping must grow, or the index is full."""
        return min(self._capacity, self.max_entry_count - 1) - self._count

    def takes_rows(self, rows: array[int], start: int, stop: int) -> bool:
        """Whether rows ``start`` to ``stop`` (``_search.time_entries``), whose timestamps never decrease, can be added.

        False if one of them has no timestamp, is below the last entry, or too far from the base.
        """
        first_timestamp, first_delta = rows[4 * start + 2], rows[4 * start + 3] - self.base_offset
        last_timestamp, last_delta = rows[4 * stop - 2], rows[4 * stop - 1] - self.base_offset
        follows = first_timestamp > NO_TIMESTAMP and self._last_delta <= first_delta
        return follows and last_timestamp <= TIMESTAMP_MAX and last_delta <= DELTA_MAX

    def append_rows(self, rows: array[int], start: int, stop: int) -> None:
        """Adds the entries of those rows whose timestamps are greater than the last one's; there is ``room``."""
        entries = time_entries(rows, start, stop, self.base_offset, self._last_timestamp)
        if entries:
            assert self._mapping is not None, "there is room"
            self._mapping.store(self.size, entries)
            self._last_timestamp, self._last_delta = ENTRY.unpack(entries[-ENTRY.size :])
            self._count += len(entries) // ENTRY.size

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry with a timestamp <= ``timestamp`` (ms), else ``(NO_TIMESTAMP, base_offset)``.

        No record before the entry's offset is later than the entry's timestamp.
        """
        return self._entry_or_start(self.floor_slot(timestamp))

    def floor_slot(self, timestamp: int) -> int:
        """The slot of that entry, or -1."""
        return self._floor_slot(INT64.pack(min(timestamp, TIMESTAMP_MAX)), 0) if timestamp >= 0 else -1

    def truncate_to(self, offset: int) -> None:
        """Keeps the entries below ``offset``. Raises: ReadOnlyError."""
        below = offset - self.base_offset - 1
        self._cut_to(self._floor_slot(INT32.pack(min(below, DELTA_MAX)), DELTA_AT) + 1 if below >= 0 else 0)

    def _decode(self, data: bytes) -> TimestampOffset:
        timestamp, delta = ENTRY.unpack(data)
        return TimestampOffset(timestamp, self.base_offset + delta)

    def _entry_or_start(self, slot: int) -> TimestampOffset:
        data = self._entry_bytes(slot)
        if len(data) == ENTRY.size:
            timestamp, delta = ENTRY.unpack(data)
            if timestamp >= 0 and delta >= 0:
                return TimestampOffset(timestamp, self.base_offset + delta)
        return TimestampOffset(NO_TIMESTAMP, self.base_offset)
