"""Finding the slice of a segment that a fetch names."""

from __future__ import annotations

import errno

from kstore.engine.ends import Ends
from kstore.engine.fetch import FetchSlice
from kstore.engine.reader import Readable
from kstore.engine.source import LogSource
from kstore.errors import CorruptBatchError, LogNotFoundError, OffsetOutOfRangeError
from kstore.record.walk import Damage
from kstore.rules.losses import LOST, LossRanges, corrupt_batch_error
from kstore.segment import SHORT_CHUNK_BYTES, START, BatchPosition, Located, LogSegment
from kstore.types import CorruptRange

__all__ = ["fetch_slice"]


def fetch_slice(log: Readable, source: LogSource, offset: int, max_bytes: int, *, committed: bool) -> FetchSlice:
    """A slice that begins with the batch of ``offset``; empty at the end of what can be read.

    Raises: OffsetOutOfRangeError, CorruptBatchError where that batch is damaged, LogNotFoundError (no segment yet),
    FileNotFoundError where a segment has just gone, StorageError.
    """
    while True:
        known = log.truncation_count, log.losses
        try:
            return _slice(log, source, offset, max_bytes, committed=committed)
        except CorruptBatchError:
            log.settle()
            if (log.truncation_count, log.losses) == known:
                raise
            # It was cut, and perhaps written again, while it was looked up; or its loss was just accepted.


def _slice(log: Readable, source: LogSource, offset: int, max_bytes: int, *, committed: bool) -> FetchSlice:
    bound = log.read_bound(committed=committed)
    ends = source.ends
    if not ends.start_offset <= offset <= ends.high_watermark:
        raise OffsetOutOfRangeError(offset, start_offset=ends.start_offset, end_offset=ends.high_watermark)
    found = log.segment_for(offset) if offset < bound.high_watermark else None
    wanted = offset
    while found is not None:
        segment, end = found
        limit = bound.limit_of(segment)
        stop = min(end, bound.high_watermark)
        batch_stop = min(end, bound.end_offset)
        losses = source.losses
        batch = _batch_of(segment, wanted, limit, stop, batch_stop, losses)
        for part in losses.missing(wanted, stop if batch is None else min(batch.base_offset, stop)):
            # What is lost is not passed over.
            position = limit if batch is None else batch.position
            raise corrupt_batch_error(CorruptRange(*part, position, LOST, str(segment.log_file().path)))
        if batch is not None:
            size = min(max(max_bytes, batch.size), _position_of(source, segment, bound, limit) - batch.position)
            if losses.missing(batch.base_offset, stop):
                size = _size_before_loss(segment, batch, size, losses)
            aborted = None
            if committed:
                aborted = log.aborted_transactions(offset, stop)
            return FetchSlice(
                segment.log_file(),
                segment.base_offset,
                batch.position,
                size,
                offset,
                bound.high_watermark,
                aborted,
                source.context.config.max_batch_bytes_uncompressed,
                losses,
                batch_stop,
            )
        wanted = max(wanted, stop)
        found = log.segment_for(end) if end < bound.high_watermark else None
    if not len(source.segments):
        raise LogNotFoundError(errno.ENOENT, "the log has no segment yet", str(source.context.directory))
    last = source.segments.last
    return FetchSlice(last.log_file(), last.base_offset, bound.position, 0, offset, bound.high_watermark)


def _size_before_loss(segment: LogSegment, first: BatchPosition, size: int, losses: LossRanges) -> int:
    """How many of ``size`` bytes, which begin with batch ``first``, lie before offsets that are lost."""
    stop = first.position + size
    next_offset = first.base_offset
    for item in segment.walk_from(Located(first.position, 0, next_offset), stop):
        if isinstance(item, Damage):
            return size  # who reads it finds out
        position, batch = item
        if losses.missing(next_offset, batch.base_offset):
            return position - first.position
        next_offset = batch.last_offset + 1
    return size


def _batch_of(
    segment: LogSegment, offset: int, limit: int, end: int, batch_stop: int, losses: LossRanges
) -> BatchPosition | None:
    """Where the batch of ``offset`` is or, in a gap, the next one; None where ``segment`` ends before.

    No batch up to position ``limit`` ends at or above offset ``batch_stop``.

    Raises: CorruptBatchError where damage stands in the place of that batch: what it held is not passed over, unless
    its loss is accepted.
    """
    located = segment.locate(offset, limit)
    for start in (located, START) if located.position else (START,):
        for item in segment.walk_from(start, limit, offset_stop=batch_stop, chunk_bytes=SHORT_CHUNK_BYTES):
            if not isinstance(item, Damage):
                position, batch = item
                if batch.last_offset >= offset:
                    return BatchPosition(batch.base_offset, position, batch.size)
                continue
            if start is not START:
                break  # a damaged index, or a damaged header on the way from its entry, may have led here
            last = (end if item.next_offset is None else item.next_offset) - 1
            path = str(segment.log_file().path)
            for lost in losses.judged(
                CorruptRange(max(item.first_offset, offset), last, item.position, item.reason, path)
            ):
                raise corrupt_batch_error(lost)
        else:
            return None
    return None


def _position_of(source: LogSource, segment: LogSegment, bound: Ends, limit: int) -> int:
    """Where reading ends in ``segment``: before the first batch at or above the bound's offset."""
    if bound.high_watermark == source.ends.end_offset or segment.base_offset != bound.base_offset:
        return limit
    batch = segment.batch_at(bound.high_watermark, limit)
    return limit if batch is None else batch.position
