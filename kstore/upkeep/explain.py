"""Explaining a lookup: the path from an offset, or a time, to a record, step by step.

It uses the same indexes as a read; nothing is written and no lock is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kstore.engine.ends import Ends
from kstore.engine.read.reads import looked_up
from kstore.engine.read.times import find_offset_by_timestamp
from kstore.errors import CorruptDataError, OffsetOutOfRangeError
from kstore.index import OffsetIndex, TimeIndex
from kstore.indexes.entry_index import INDEX_FAILURES, WARM_BYTES
from kstore.log import Log, reads_of
from kstore.record._codec import Record
from kstore.record.batch import Batch
from kstore.record.walk import Damage
from kstore.segment import LogSegment
from kstore.segments.places import Located
from kstore.types import OFFSET_MAX, TimestampOffset


class Step(NamedTuple):
    """One step: what was examined, and what it showed, in words and as values."""

    what: str
    text: str
    values: dict[str, Any]


@dataclass(slots=True)
class Explanation:
    """The steps of one lookup; ``record`` is None if none was found."""

    steps: list[Step] = field(default_factory=list)
    record: Record | None = None

    def add(self, what: str, text: str, **values: Any) -> None:
        self.steps.append(Step(what, text, values))


def explain_offset(log: Log, offset: int) -> Explanation:
    """How a read of ``offset`` finds its record, or the first one after it.

    Raises: OffsetOutOfRangeError, ClosedError, StorageError.
    """
    return looked_up(reads_of(log).source, lambda: _explained_offset(log, offset))


def _explained_offset(log: Log, offset: int) -> Explanation:
    explanation = Explanation()
    bound = _add_log(explanation, log)
    if not bound.start_offset <= offset <= bound.high_watermark:
        raise OffsetOutOfRangeError(offset, start_offset=bound.start_offset, end_offset=bound.high_watermark)
    for segment, end, limit in _segments(log, bound, offset):
        _add_segment(explanation, segment, limit, f"the last with a base offset <= {offset}", end)
        if _explain_in_segment(explanation, segment, offset, limit, bound.high_watermark):
            return explanation
        explanation.add("next", f"no record at or after {offset} in this segment", segment=segment.base_offset)
        offset = end
    explanation.add("end", f"offset {offset} is the log's end: the next record gets it", offset=offset)
    return explanation


def explain_time(log: Log, timestamp: int) -> Explanation:
    """How a lookup finds the first record at or after ``timestamp``, ms since the epoch.

    Raises: ClosedError, StorageError.
    """
    return looked_up(reads_of(log).source, lambda: _explained_time(log, timestamp))


def _explained_time(log: Log, timestamp: int) -> Explanation:
    explanation = Explanation()
    bound = _add_log(explanation, log)
    for passed, (segment, end, limit) in enumerate(_segments(log, bound, log.start_offset)):
        largest = segment.largest_timestamp(limit)
        if largest.timestamp >= timestamp:
            why = f"the first with a timestamp >= {timestamp}: {largest.timestamp} at offset {largest.offset}"
            if passed:
                why += f"; {passed} before it end earlier"
            _add_segment(explanation, segment, limit, why, end)
            result = find_offset_by_timestamp(segment, timestamp, log.start_offset, limit)
            _add_time_entry(explanation, segment, timestamp, limit)
            if result is not None:
                _explain_in_segment(explanation, segment, result.offset, limit, bound.high_watermark)
                return explanation
    explanation.add("end", f"no record has a timestamp >= {timestamp}", timestamp=timestamp)
    return explanation


def _segments(log: Log, bound: Ends, offset: int) -> Iterator[tuple[LogSegment, int, int]]:
    """The segments from that of ``offset`` on, each with the offset at which it ends, and its readable bytes."""
    while offset < bound.high_watermark and (found := reads_of(log).segment_for(offset)) is not None:
        segment, offset = found
        yield segment, offset, bound.limit_of(segment)


def _add_log(explanation: Explanation, log: Log) -> Ends:
    bound = reads_of(log).read_bound(committed=False)
    start_offset, end_offset = bound.start_offset, log.end_offset
    readable = f"offsets {start_offset} to {bound.high_watermark} can be read"
    explanation.add(
        "log",
        f"{log.path}: {readable}; the log ends at {end_offset}",
        path=str(log.path),
        start_offset=start_offset,
        high_watermark=bound.high_watermark,
        end_offset=end_offset,
    )
    return bound


def _add_segment(explanation: Explanation, segment: LogSegment, limit: int, why: str, end: int) -> None:
    path = segment.log_file().path
    explanation.add(
        "segment",
        f"{path.rpartition('/')[2]}, {limit:,} bytes: {why}",
        path=str(path),
        base_offset=segment.base_offset,
        next_base_offset=end if end < OFFSET_MAX else None,
        size=limit,
    )


def _slot_words(index: OffsetIndex | TimeIndex, slot: int) -> tuple[str, str]:
    """Where the search led, and a description."""
    warm_slot = max(index.entry_count - 1 - WARM_BYTES // index.entry_size, 0)
    if not index.entry_count:
        return "empty", "it has no entries"
    if slot < 0:
        return "warm" if warm_slot == 0 else "cold", f"all {index.entry_count:,} entries are after it"
    section = "warm" if slot >= warm_slot else "cold"
    where = f"the last {WARM_BYTES:,} bytes" if section == "warm" else f"before the last {WARM_BYTES:,} bytes"
    return section, f"slot {slot:,} of {index.entry_count:,}, in the {section} part ({where})"


def _add_time_entry(explanation: Explanation, segment: LogSegment, timestamp: int, limit: int) -> None:
    try:
        index = segment.time_index()
        slot = index.floor_slot(timestamp)
        section, words = _slot_words(index, slot)
        entry = index.entry(slot) if slot >= 0 else TimestampOffset(-1, segment.base_offset)
    except INDEX_FAILURES as error:
        explanation.add("timeindex", f"cannot be used, so the segment is walked from its start: {error}")
        return
    text = f"{words}: no record before offset {entry.offset} is later than {entry.timestamp}" if slot >= 0 else words
    explanation.add("timeindex", text, section=section, slot=slot, timestamp=entry.timestamp, offset=entry.offset)


def _explain_in_segment(
    explanation: Explanation, segment: LogSegment, offset: int, limit: int, stop_offset: int
) -> bool:
    """From the offset index to the record; returns whether one was found."""
    entry_position = 0
    try:
        index = segment.offset_index()
        slot = index.floor_slot(offset)
        section, words = _slot_words(index, slot)
        entry = index.lookup(offset)
        entry_position = entry.position
        text = f"{words}: offset {entry.offset} at position {entry.position:,}" if slot >= 0 else words
        explanation.add("index", text, section=section, slot=slot, offset=entry.offset, position=entry.position)
    except INDEX_FAILURES as error:
        explanation.add("index", f"cannot be used, so the segment is walked from its start: {error}")
    located = segment.locate(offset, limit)
    if located.position < entry_position:
        explanation.add("index", "the data there contradicts the entry, which is ignored", position=entry_position)
        entry_position = 0
    for item in segment.walk_from(Located(entry_position, 0, 0), limit):
        if isinstance(item, Damage):
            explanation.add(
                "damage",
                f"position {item.position:,}: {item.reason}; the read continues at position {item.stop:,}",
                position=item.position,
                stop=item.stop,
                reason=item.reason,
            )
            continue
        position, batch = item
        if batch.last_offset < offset:
            continue
        if batch.is_control:
            explanation.add(
                "marker",
                f"offset {batch.base_offset} is a transaction's marker, which no reader gets",
                offset=batch.base_offset,
            )
            continue
        explanation.add(
            "scan",
            f"{position - entry_position:,} bytes of headers from position {entry_position:,} to {position:,}",
            position=entry_position,
            stop=position,
            size=position - entry_position,
        )
        return _add_batch(explanation, position, batch, offset, stop_offset)
    return False


def _add_batch(explanation: Explanation, position: int, batch: Batch, offset: int, stop_offset: int) -> bool:
    try:
        codec = batch.codec
    except CorruptDataError:
        codec = "unknown codec"
    explanation.add(
        "batch",
        f"offsets {batch.base_offset} to {batch.last_offset} at position {position:,}: {batch.size:,} bytes,"
        f" magic {batch.magic}, {codec}, {batch.record_count:,} records, its CRC holds",
        position=position,
        size=batch.size,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        magic=batch.magic,
        codec=codec,
        record_count=batch.record_count,
    )
    try:
        record = next(iter(batch.records(offset, stop_offset)), None)
    except CorruptDataError as error:
        explanation.add("damage", f"its records cannot be read: {error.reason}", reason=error.reason)
        return True
    if record is None:
        return False
    explanation.record = record
    key = "no key" if record.key is None else f"a key of {len(record.key):,} bytes"
    value = "no value" if record.value is None else f"a value of {len(record.value):,} bytes"
    explanation.add(
        "record",
        f"offset {record.offset}, {record.timestamp_type} {record.timestamp}, {key}, {value},"
        f" {len(record.headers)} headers",
        offset=record.offset,
        timestamp=record.timestamp,
    )
    return True
