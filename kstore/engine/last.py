"""The last records of a log, without reading it from the start."""

from __future__ import annotations

from collections import deque

from kstore.engine.reader import open_reader, records_of
from kstore.engine.reads import LogReads
from kstore.record._codec import Record
from kstore.record._runs import Run
from kstore.rules.arguments import offset_number
from kstore.types import IsolationLevel

__all__ = ["last_records"]

# If offsets are missing (compaction, markers, aborted transactions), each further look covers this many times more.
GROWTH = 8


def last_records(log: LogReads, count: int, isolation_level: IsolationLevel) -> list[Record]:
    """See ``Log.tail``."""
    count = offset_number("count", count)
    if count < 0:
        raise ValueError(f"count is {count}, expected at least 0")
    source = log.refreshed()
    ends = source.ends
    stop = source.last_stable_offset() if isolation_level == "read_committed" else ends.high_watermark
    width = count
    while True:
        start = max(stop - width, ends.start_offset)
        reader = open_reader(log, records_of, start, stop, isolation_level, "raise", decode_run=Run.records)
        # There are no more in that range, and a deque has its limit.
        found = deque(reader, maxlen=min(count, stop - start))
        if len(found) == count or start == ends.start_offset:
            return list(found)
        width *= GROWTH
