"""Where the entries of an offset index end, found by a few small reads: a broker allocates the file of its active
segment ahead, 10 MiB of which nearly all are zeros. No I/O but a Source's.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kstore.indexes.offset_index import OffsetIndex
from kstore.types import OffsetPosition

ENTRY_SIZE = OffsetIndex.entry_size
# Far away a smaller read takes as long.
WINDOW_BYTES = 64 << 10
assert WINDOW_BYTES % ENTRY_SIZE == 0


class Source(Protocol):
    def pread(self, size: int, position: int) -> bytes: ...


class StoredEntries(NamedTuple):
    """The number of entries before the zeros, and the last one that is whole; the segment's start without any."""

    entry_count: int
    last: OffsetPosition


def stored_entries(source: Source, size: int, base_offset: int, *, log_size: int) -> StoredEntries:
    """The entries in an index of ``size`` bytes, of a segment of ``log_size`` bytes.

    The second read is where the entries of the first one let expect the end; then the rest is halved. Raises:
    StorageError.
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
