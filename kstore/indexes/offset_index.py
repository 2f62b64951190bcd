"""The offset index of a segment, ``.index``.

    at  size  field
     0     4  delta     int32  last offset of a batch, less the segment's base offset
     4     4  position  int32  where that batch starts in the .log

Kafka 2.0 to 2.8: the last offset of the whole append that starts there. Kafka before 2.0: its first offset. The batch
at position 0 has no entry.
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

from kstore.errors import CorruptIndexError, InvalidOffsetError
from kstore.files.paths import INDEX_SUFFIX
from kstore.indexes._search import entries_around, offset_entries, offset_rows
from kstore.indexes.entry_index import DELTA_MAX, EntryIndex
from kstore.record.scan import Source
from kstore.types import INT32_MAX, OffsetPosition

ENTRY = struct.Struct(">ii")
INT32 = struct.Struct(">i")
TWO_ENTRIES = struct.Struct(">iiii")
# By their number.
ENTRIES = tuple([struct.Struct(f">{2 * count}i") for count in range(4)])
assert ENTRY.size == 8
assert TWO_ENTRIES.size == 2 * ENTRY.size

POSITION_AT = 4
POSITION_MAX = INT32_MAX


class OffsetIndex(EntryIndex[OffsetPosition]):
    """Maps an offset to the position of a batch at or before it (Kafka: OffsetIndex).

    Entries increase strictly in both columns. The offset of an entry is the *last* of the batch at its position.
    """

    suffix = INDEX_SUFFIX
    entry_size = ENTRY.size

    __slots__ = ("_last_delta", "_last_position")

    _last_delta: int
    _last_position: int

    @classmethod
    def _first_disorder(cls, data: bytes) -> int:
        return len(offset_rows(data)) // 2

    def _load_last(self) -> None:
        last = self._entry_bytes(self._count - 1) if self._count else ENTRY.pack(-1, -1)
        self._last_delta, self._last_position = ENTRY.unpack(last)

    @classmethod
    def _is_stored(cls, data: bytes) -> bool:
        return super()._is_stored(data) and any(data[POSITION_AT:])  # the batch at position 0 has no entry

    def append(self, offset: int, position: int) -> None:
        """Adds an entry for the batch at ``position`` (bytes) whose last offset is ``offset``.

        Raises: InvalidOffsetError (not above the last entry, or too far from the base), IndexFullError, ReadOnlyError,
        DiskFullError; then nothing was added.
        """
        delta = offset - self.base_offset
        if not (self._last_delta < delta <= DELTA_MAX and self._last_position < position <= POSITION_MAX):
            raise InvalidOffsetError(
                f"{self.path}: entry of offset {offset}, position {position} does not follow {self.last_entry}"
                f" in an index of base offset {self.base_offset}"
            )
        entries = self._count
        if entries >= self._capacity:
            self._grow()
        assert self._mapping is not None
        self._mapping.store(entries * 8, ENTRY.pack(delta, position))
        self._last_delta = delta
        self._last_position = position
        self._count = entries + 1

    def rows(self) -> array[int]:
        """Delta and position of each entry, one after the other, up to the first that is out of order."""
        return offset_rows(self._read(0, self.size))

    @property
    def room(self) -> int:
        """How many entries can be added before the mapping must grow."""
        return self._capacity - self._count

    def append_rows(self, rows: array[int], start: int, stop: int) -> bool:
        """Adds the entries of rows ``start`` to ``stop`` (``_search.offset_entries``); there is ``room`` for them.

        Their offsets and positions rise. False if one of them does not follow the last entry, or is too far from the
        base: then nothing was added.
        """
        first_delta, first_position = rows[4 * start] - self.base_offset, rows[4 * start + 1]
        last_delta, last_position = rows[4 * stop - 4] - self.base_offset, rows[4 * stop - 3]
        follows = self._last_delta < first_delta and self._last_position < first_position
        if not follows or last_delta > DELTA_MAX or last_position > POSITION_MAX:
            return False
        assert self._mapping is not None, "there is room"
        self._mapping.store(self.size, offset_entries(rows, start, stop, self.base_offset))
        self._last_delta = last_delta
        self._last_position = last_position
        self._count += stop - start
        return True

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry with an offset <= ``offset``, else the segment's start, ``(base_offset, 0)``."""
        return self._entry_or_start(self.floor_slot(offset))

    def floor_slot(self, offset: int) -> int:
        """The slot of that entry, or -1."""
        delta = offset - self.base_offset
        return self._floor_slot(INT32.pack(min(delta, DELTA_MAX)), 0) if delta >= 0 else -1

    def ceiling(self, offset: int) -> tuple[OffsetPosition, int] | None:
        """The first entry with an offset >= ``offset``, and the position of the next entry (0 without one).

        None if no entry is that high. If every batch has an entry, this is the batch that holds ``offset``, and its
        extent.
        """
        below = offset - self.base_offset - 1
        slot = self._floor_slot(INT32.pack(below if below < DELTA_MAX else DELTA_MAX), 0) + 1 if below >= 0 else 0
        count = self._count
        if slot >= count:
            return None
        if slot + 1 < count:
            data = self._read(slot * 8, slot * 8 + 16)
            if len(data) == TWO_ENTRIES.size:
                delta, position, _, behind = TWO_ENTRIES.unpack(data)
                if delta >= 0 and position >= 0:
                    return OffsetPosition(self.base_offset + delta, position), max(behind, 0)
        return self._entry_or_start(slot), 0

    def around(self, offset: int) -> tuple[int, int, int, int, int]:
        """The entries on both sides of ``offset``, as five numbers.

        The first two are the offset and the position of the last entry below it, the next two those of the first entry
        at or above it, and the fifth is the position of the entry after that. A missing entry has offset -1 and
        position 0.
        Raises: CorruptIndexError if they cannot be right, or were just cut.
        """
        source, count = self._source, self._count
        if type(source) is bytes and len(source) >= 8 * count:
            # A sealed index, and an entry in its middle: the case of most lookups.
            span = entries_around(source, count, self.base_offset, offset)
            if span is not None:
                return span
        base = self.base_offset
        below = offset - base - 1
        slot = -1 if below < 0 else self._floor_slot(INT32.pack(min(below, DELTA_MAX)), 0)
        first = slot if slot > 0 else 0
        count = min(slot + 3, self._count) - first
        fields: tuple[int, ...] = ()
        if count > 0:
            data = self._read(first * 8, (first + count) * 8)
            if len(data) != count * 8 or min(fields := ENTRIES[count].unpack(data)) < 0:
                raise CorruptIndexError(f"entries {fields} around offset {offset}, expected {count}", path=self.path)
        none = -1 - base
        fields = (none, 0, *fields, none, 0, 0, 0) if slot < 0 else (*fields, none, 0, 0, 0)
        return base + fields[0], fields[1], base + fields[2], fields[3], fields[5]

    def upper_bound(self, position: int) -> OffsetPosition | None:
        """The first entry at or after ``position`` (bytes), or None (Kafka: fetchUpperBoundOffset)."""
        slot = self._floor_slot(INT32.pack(min(position - 1, POSITION_MAX)), POSITION_AT) + 1 if position > 0 else 0
        if slot >= self._count:
            return None
        found = self._entry_or_start(slot)
        return found if found.position >= position else None

    def truncate_to(self, offset: int) -> None:
        """Keeps the entries below ``offset``: ``[10][20][30]`` at 20 -> ``[10]``. Raises: ReadOnlyError."""
        below = offset - self.base_offset - 1
        self._cut_to(self._floor_slot(INT32.pack(min(below, DELTA_MAX)), 0) + 1 if below >= 0 else 0)

    def _decode(self, data: bytes) -> OffsetPosition:
        delta, position = ENTRY.unpack(data)
        return OffsetPosition(self.base_offset + delta, position)

    def _entry_or_start(self, slot: int) -> OffsetPosition:
        data = self._entry_bytes(slot)
        if len(data) == ENTRY.size:
            delta, position = ENTRY.unpack(data)
            if delta >= 0 and position >= 0:
                return OffsetPosition(self.base_offset + delta, position)
        return OffsetPosition(self.base_offset, 0)


# --- where the entries of a file end ----------------------------------------------------------------------------------

ENTRY_SIZE = OffsetIndex.entry_size
# Far away a smaller read takes as long.
WINDOW_BYTES = 64 << 10
assert WINDOW_BYTES % ENTRY_SIZE == 0


class StoredEntries(NamedTuple):
    """The number of entries before the zeros, and the last one that is whole; the segment's start without any."""

    entry_count: int
    last: OffsetPosition


def stored_entries(source: Source, size: int, base_offset: int, *, log_size: int) -> StoredEntries:
    """The entries in an index of ``size`` bytes, of a segment of ``log_size`` bytes, found by a few small reads.

    A broker allocates the file of its active segment ahead: nearly all of its 10 MiB are zeros. The second read is
    where the entries of the first one let expect the end; then the rest is halved. Raises: StorageError.
    """
    # Entries are used below ``low``, and zeros from ``high`` on: both as bytes.
    low, high = 0, size - size % ENTRY_SIZE
    at, last = 0, OffsetPosition(base_offset, 0)
    while low < high:
        data = source.pread(min(WINDOW_BYTES, high - at), at)
        if not data:
            high = at  # the file has become shorter
        else:
            index = OffsetIndex.from_bytes(data, base_offset, live=True)
            if index.entry_count:
                last = index.last_entry
            used = -(-len(data.rstrip(b"\0")) // ENTRY_SIZE) * ENTRY_SIZE
            if used < len(data):
                high = at + used
            if used:
                low = at + used
        if at == 0 and last.position:
            at = low * log_size // last.position - WINDOW_BYTES // 2
        else:
            at = (low + high - WINDOW_BYTES) // 2
        at = max(min(at - at % ENTRY_SIZE, high - WINDOW_BYTES), low)
    return StoredEntries(low // ENTRY_SIZE, last)
