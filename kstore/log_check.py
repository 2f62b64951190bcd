"""Reading a log from end to end, to see whether every batch and record of it can be read."""

from __future__ import annotations

from kstore.config import LogConfig
from kstore.errors import CorruptDataError
from kstore.log_source import LogSource
from kstore.record.walk import OFFSET_MAX, Damage
from kstore.segment import START, LogSegment
from kstore.types import CorruptRange, RecoveryReport

__all__ = ["check_batches"]

# Long sequential work lets go of what it has read in steps of this size.
DROP_BYTES = 8 << 20


def check_batches(source: LogSource) -> RecoveryReport:
    """What is damaged in what ``source`` has published. Raises: StorageError."""
    published = source.published
    report = RecoveryReport()
    for segment in source.segments.range(source.start_offset, published.offset):
        following = source.segments.higher(segment.base_offset)
        end = following.base_offset if following is not None else OFFSET_MAX
        limit = published.position if segment.base_offset == published.base_offset else segment.size
        _check_segment(segment, limit, min(end, published.offset), source.context.config, report)
    report.clean = not report.corrupt
    return report


def _check_segment(segment: LogSegment, limit: int, end: int, config: LogConfig, report: RecoveryReport) -> None:
    file = segment.log_file()
    path = str(file.path)
    dropped = 0
    for item in segment.walk_from(START, limit, offset_stop=end):
        if isinstance(item, Damage):
            last = item.next_offset - 1 if item.next_offset is not None else end - 1
            report.corrupt.append(CorruptRange(item.first_offset, last, item.position, item.reason, path))
            continue
        position, batch = item
        if position - dropped >= DROP_BYTES and segment.tail is None:
            # What is read once, from end to end, should not push out of memory what others read often.
            file.advise(dropped, position - dropped, "dontneed")
            dropped = position
        try:
            batch.check(config.max_batch_bytes_uncompressed)
        except CorruptDataError as error:
            report.corrupt.append(CorruptRange(batch.base_offset, batch.last_offset, position, error.reason, path))
        report.batches_scanned += 1
        report.records_scanned += batch.record_count
    report.segments_scanned += 1
    report.bytes_scanned += limit
