"""Finding the slice of a segment that a fetch names."""

from __future__ import annotations

import errno

from kstore.errors import LogNotFoundError, OffsetOutOfRangeError
from kstore.fetch import FetchSlice
from kstore.log_reader import Readable, ReadBound
from kstore.log_source import LogSource
from kstore.segment import LogSegment

__all__ = ["fetch_slice"]


def fetch_slice(log: Readable, source: LogSource, offset: int, max_bytes: int, *, committed: bool) -> FetchSlice:
    """A slice that begins with the batch of ``offset``; empty at the end of what can be read.

    Raises: OffsetOutOfRangeError, LogNotFoundError (no segment yet), FileNotFoundError where a segment has just gone,
    StorageError.
    """
    bound = log.read_bound(committed=committed)
    if not source.start_offset <= offset <= source.published.high_watermark:
        raise OffsetOutOfRangeError(
            offset, start_offset=source.start_offset, end_offset=source.published.high_watermark
        )
    found = log.segment_for(offset) if offset < bound.offset else None
    while found is not None:
        segment, end = found
        limit = bound.position if segment.base_offset == bound.base_offset else segment.size
        batch = segment.batch_at(offset, limit)
        if batch is not None:
            size = min(max(max_bytes, batch.size), _position_of(source, segment, bound, limit) - batch.position)
            aborted = None
            if committed:
                aborted = log.aborted_transactions(offset, min(end, bound.offset))
            return FetchSlice(
                segment.log_file(),
                segment.base_offset,
                batch.position,
                size,
                offset,
                bound.offset,
                aborted,
                source.context.config.max_batch_bytes_uncompressed,
            )
        found = log.segment_for(end) if end < bound.offset else None
    if not len(source.segments):
        raise LogNotFoundError(errno.ENOENT, "the log has no segment yet", str(source.context.directory))
    last = source.segments.last
    return FetchSlice(last.log_file(), last.base_offset, bound.position, 0, offset, bound.offset)


def _position_of(source: LogSource, segment: LogSegment, bound: ReadBound, limit: int) -> int:
    """Where reading ends in ``segment``: before the first batch at or above the bound's offset."""
    if bound.offset == source.published.offset or segment.base_offset != bound.base_offset:
        return limit
    batch = segment.batch_at(bound.offset, limit)
    return limit if batch is None else batch.position
