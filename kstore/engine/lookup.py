"""One record by its offset, with no machinery of a long read: two index entries, one read or two, one compiled call.

Only what needs no decision is found here. For anything else (no index, an old version, a compressed batch, a header or
CRC that is wrong, a gap that the next batch does not confirm, a segment that is being removed) the caller takes the
general path, which has the rules and the errors.
"""

from __future__ import annotations

from typing import TypeAlias

from kstore.engine.reads import LogReads
from kstore.errors import OffsetOutOfRangeError, StorageError
from kstore.files.fs import File
from kstore.indexes.entry_index import INDEX_FAILURES
from kstore.record._codec import Record
from kstore.record._runs import find_batch, record_at
from kstore.record.batch import BATCH_HEADER_BYTES
from kstore.segment import UNINDEXED_BYTES, LogSegment

__all__ = ["FoundBatch", "batch_of", "record_of"]

# Bytes that hold the batch whole, and where it begins in them; its CRC is not checked. A named tuple takes 0.3 us more.
FoundBatch: TypeAlias = tuple[bytes, int]

# Entries that are this close hold small batches between them, or one that is not large: all are read together.
NEAR_BYTES = 1 << 13
# At most this much is read without knowing that it is one batch.
READ_BYTES_MAX = 1 << 18


def record_of(log: LogReads, offset: int) -> Record | None:
    """The record with ``offset``; None if the general path must look for it.

    Raises: OffsetOutOfRangeError, ClosedError, ForkedError.
    """
    source = log.source
    source.notice()
    ends = source.ends
    if not ends.start_offset <= offset < ends.high_watermark:
        source.refresh()
        ends = source.ends
        if not ends.start_offset <= offset < ends.high_watermark:
            raise OffsetOutOfRangeError(offset, start_offset=ends.start_offset, end_offset=ends.high_watermark)
    holding = source.segments.holding(offset)
    if holding is None:
        return None
    segment, offset_stop = holding
    try:
        file = segment.log_file()
        found = batch_of(segment, offset, ends.limit_of(segment, file), offset_stop, file)
    except StorageError:
        return None
    if found is None:
        return None
    counters = source.context.counters
    data, at = found
    record = record_at(data, at, offset, counters.delivered)
    if record is not None:
        counters.reads += 1
    return record


def batch_of(segment: LogSegment, offset: int, stop: int, offset_stop: int, file: File) -> FoundBatch | None:
    """The batch of ``segment`` that holds ``offset``, in at most two reads; None if it needs more, or a decision.

    Args:
        stop: the position where the last batch ends.
        offset_stop: the offset below which it ends.
        file: the ``.log``.

    Raises: StorageError.
    """
    base_offset = segment.base_offset
    if stop <= UNINDEXED_BYTES:
        if segment.lacks_index:
            return None
        data = file.pread(stop, 0)
        found = find_batch(data, stop, offset, base_offset, offset_stop)
        return (data, found[0]) if found is not None and sum(found) <= len(data) else None
    try:
        floor_offset, floor, ceiling_offset, ceiling, after = segment.offset_index().around(offset)
    except INDEX_FAILURES:
        return None
    if not floor <= ceiling < stop:
        # There is no second entry, or a writer has stored it since the end was published.
        ceiling_offset, ceiling, after = -1, 0, 0
    if not ceiling < after < stop:
        after = stop
    if floor >= stop:
        return None
    may_read_again = True
    if ceiling - floor > NEAR_BYTES:
        # Batches are large, or few have an entry. Most likely each of them has one: then this is the batch.
        size = after - ceiling
        data = file.pread(size if size <= READ_BYTES_MAX else BATCH_HEADER_BYTES, ceiling)
        found = find_batch(data, stop - ceiling, offset, base_offset, offset_stop, ceiling_offset)
        if found is not None:
            return _whole(data, *found, ceiling, file)
        size = ceiling + BATCH_HEADER_BYTES - floor
        if size > READ_BYTES_MAX:
            return None
        may_read_again = False
    else:
        size = min(after - floor, 2 * NEAR_BYTES)
    data = file.pread(min(size, stop - floor), floor)
    found = find_batch(
        data, stop - floor, offset, base_offset, offset_stop, floor_offset, ceiling_offset, ceiling - floor
    )
    if found is None or not (may_read_again or sum(found) <= len(data)):
        return None
    return _whole(data, *found, floor, file)


def _whole(data: bytes, at: int, size: int, position: int, file: File) -> FoundBatch | None:
    """The batch of ``size`` bytes at byte ``at`` of ``data``, read again if that ends within it."""
    if at + size <= len(data):
        return data, at
    again = file.pread(size, position + at)
    # Another history may have been written there meanwhile.
    return (again, 0) if again.startswith(data[at : at + BATCH_HEADER_BYTES]) else None
