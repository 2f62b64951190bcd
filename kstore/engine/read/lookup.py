"""One record by its offset, with no machinery of a long read: two index entries, a read or two, one compiled call.

A batch that is large, or compressed, is kept once it is checked (``CheckedBatches``). The next lookup finds its place
as ever, reads its header and a piece of it, and compares both with what was checked. Only the bytes of a large
compressed batch are not read again: its records are in memory. Scans neither use nor fill this.

Only what needs no decision is found here. For anything else (no index, an old version, a compressed batch, a header or
CRC that is wrong, a gap that the next batch does not confirm, a segment that is being removed) the caller takes the
general path, which has the rules and the errors.
"""

from __future__ import annotations

from typing import TypeAlias

from kstore.engine.read.reads import LogReads
from kstore.errors import CorruptDataError, CorruptRecordError, OffsetOutOfRangeError, StorageError
from kstore.files.fs import File
from kstore.indexes.entry_index import INDEX_FAILURES
from kstore.record._codec import Record
from kstore.record._runs import CheckedBatch, CheckedBatches, find_batch, record_at
from kstore.record.batch import ATTRIBUTE_CODEC, BATCH_HEADER_BYTES, parse_v2
from kstore.segment import UNINDEXED_BYTES, LogSegment, SegmentContext

# Bytes that hold the batch whole, where it begins in them, where they begin in the file, and its place for
# ``CheckedBatches``; its CRC is not checked. The last one is the batch if it was kept: then the bytes hold its header,
# or there are none. A named tuple takes 0.3 us more.
FoundBatch: TypeAlias = tuple[bytes, int, int, int, CheckedBatch | None]

# The memory for kept batches in a store, or in a log without one: about 1.5 KiB for each MiB of log.
CHECKED_BYTES_MAX = 8 << 20

# The byte of the attributes that names the codec.
ATTRIBUTES_AT = 22

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
    context = source.context
    checked, counters = context.checked, context.counters
    # Before the file is opened: what is read may be of a later state, and is then not found again.
    contents = segment.contents
    try:
        file = segment.log_file()
        found = batch_of(segment, offset, ends.limit_of(segment, file), offset_stop, file, checked)
        if found is None:
            return None
        data, at, position, place, known = found
        if checked is None:
            record = record_at(data, at, offset, counters.delivered)
        elif known is None:
            position += at
            record = checked.record_at(data, at, offset, counters.delivered, contents, place, position)
            if record is None and data[at + ATTRIBUTES_AT] & ATTRIBUTE_CODEC:
                record = _decompressed_record(context, checked, data, at, offset, contents, place, position)
        else:
            try:
                record = known.record(file, offset, counters.delivered, data, at)
            except CorruptRecordError:
                checked.drop(known)
                return None
    except (CorruptDataError, StorageError):
        return None  # the general path finds out what it means
    if record is not None:
        counters.reads += 1
    return record


def _decompressed_record(
    context: SegmentContext,
    checked: CheckedBatches,
    data: bytes,
    at: int,
    offset: int,
    contents: object,
    place: int,
    position: int,
) -> Record | None:
    """The record with ``offset`` of the compressed batch at byte ``at`` of ``data``, which is kept if it was not.

    Raises: CorruptDataError.
    """
    delivered = context.counters.delivered
    known = checked.find(contents, place)
    if known is not None:
        try:
            return known.record_in(data, at, offset, delivered)
        except CorruptRecordError:
            checked.drop(known)
    batch = parse_v2(data, at)
    if batch.is_control:
        return None
    batch.ensure_valid()
    payload, _, _ = batch.payload(context.config.max_batch_bytes_uncompressed)
    assert isinstance(payload, bytes), "decompressed"
    known = checked.keep_payload(data, at, payload, contents, place, position)
    return None if known is None else known.kept_record(offset, delivered)


def batch_of(
    segment: LogSegment, offset: int, stop: int, offset_stop: int, file: File, checked: CheckedBatches | None = None
) -> FoundBatch | None:
    """The batch of ``segment`` that holds ``offset``, in at most three reads; None if it needs more, or a decision.

    Args:
        stop: the position where the last batch ends.
        offset_stop: the offset below which it ends.
        file: the ``.log``.
        checked: a batch in it is not read whole again.

    Raises: StorageError.
    """
    base_offset = segment.base_offset
    if stop <= UNINDEXED_BYTES:
        if segment.lacks_index:
            return None
        data = file.pread(stop, 0)
        found = find_batch(data, stop, offset, base_offset, offset_stop)
        return (data, found[0], 0, found[0], None) if found is not None and sum(found) <= len(data) else None
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
    is_far = ceiling - floor > NEAR_BYTES
    if is_far:
        # Batches are large, or few have an entry. Most likely each of them has one: then this is the batch.
        if checked is not None:
            lowest = max(base_offset, floor_offset + 1)
            known = checked.find(segment.contents, ceiling)
            # As ``find_batch`` decides: header and index entry agree.
            if (
                known is not None
                and lowest <= known.base_offset <= offset <= known.last_offset == ceiling_offset < offset_stop
                and known.size <= stop - ceiling
            ):
                return b"", 0, ceiling, ceiling, known
            known = checked.find(segment.contents, ~floor)
            if (
                known is not None
                and lowest <= known.base_offset <= offset <= known.last_offset < offset_stop
                and floor <= known.position <= ceiling - known.size
            ):
                return b"", 0, known.position, ~floor, known
        size = after - ceiling
        data = file.pread(size if size <= READ_BYTES_MAX else BATCH_HEADER_BYTES, ceiling)
        found = find_batch(data, stop - ceiling, offset, base_offset, offset_stop, ceiling_offset)
        if found is not None:
            return _whole(data, *found, ceiling, ceiling, file)
        # The first batch of a segment has no entry, nor has one that soon follows an entry.
        size = ceiling + BATCH_HEADER_BYTES - floor
        if size > READ_BYTES_MAX:
            size = 2 * NEAR_BYTES
    else:
        size = min(after - floor, 2 * NEAR_BYTES)
    data = file.pread(min(size, stop - floor), floor)
    found = find_batch(
        data, stop - floor, offset, base_offset, offset_stop, floor_offset, ceiling_offset, ceiling - floor
    )
    if found is None:
        return None
    at, size = found
    if is_far and floor + at + size > ceiling:
        return None  # the entry there contradicts it
    if at + size <= len(data):
        # After a look at the ceiling only the entries lead there: the headers are not read again.
        return data, at, floor, ~floor if is_far else floor + at, None
    if checked is not None and not is_far:
        known = checked.find(segment.contents, floor + at)
        if known is not None:
            return data, at, floor, floor + at, known
    return _whole(data, at, size, floor, ~floor if is_far else floor + at, file)


def _whole(data: bytes, at: int, size: int, position: int, place: int, file: File) -> FoundBatch | None:
    """The batch of ``size`` bytes at byte ``at`` of ``data``, read again if that ends within it."""
    if at + size <= len(data):
        return data, at, position, place, None
    again = file.pread(size, position + at)
    # Another history may have been written there in the meantime.
    return (again, 0, position + at, place, None) if again.startswith(data[at : at + BATCH_HEADER_BYTES]) else None
