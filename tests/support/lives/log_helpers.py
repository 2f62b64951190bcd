"""Segments and logs for tests: small, filled, with their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kstore.config import LogConfig
from kstore.files.handles import HandleCache
from kstore.files.local import SYSTEM_FS
from kstore.metrics import LogCounters
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.scan import parse_batches
from kstore.record.walk import Damage
from kstore.segment import LogSegment, SegmentContext
from kstore.segments.places import START
from tests.support.fakes.fake_clock import ManualClock

TIME = 1_700_000_000_000


def context(directory: Path, **settings: object) -> SegmentContext:
    settings = {"index_interval_bytes": 0, **settings}
    return SegmentContext(
        SYSTEM_FS, directory, LogConfig.from_settings(**settings), ManualClock(TIME), HandleCache(8), LogCounters()
    )


def segment(directory: Path, base_offset: int = 40, **settings: object) -> LogSegment:
    """A new, active, empty segment; every batch but the first gets an index entry."""
    made = LogSegment(context(directory, **settings), base_offset)
    made.create()
    made.activate()
    return made


def append(to: LogSegment, offset: int, values: Sequence[bytes], *, timestamp: int = TIME, **fields: int | bool) -> int:
    """One batch, with a record for each value from ``offset``; returns its position."""
    records = [Record(offset + number, timestamp + number, value=value) for number, value in enumerate(values)]
    data = build_batch(records, **fields)  # type: ignore[arg-type]
    tail = to.activate()
    position = tail.position
    tail.write([data], len(data), sync=False)
    (batch,) = parse_batches(data)
    tail.note(position, len(data), batch.last_offset, batch.max_timestamp)
    return position


def offsets_in(of: LogSegment, start: int = 0) -> list[int]:
    """The offsets of all records from the batch of ``start``; damage is skipped."""
    located = of.locate(start, of.size) if start else START
    steps = of.walk_from(located, of.size)
    return [record.offset for step in steps if not isinstance(step, Damage) for record in step[1].records()]
