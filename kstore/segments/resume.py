"""Resuming the active segment: what its last writer knew, from the indexes and a few batches of the ``.log``.

An index entry is believed if the batches agree with it. If entries are missing, or wrong, the indexes must be rebuilt;
that is found within a few intervals of the index, so that the segment is walked once then, not twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kstore.files.fs import File
from kstore.index import OffsetIndex, TimeIndex
from kstore.indexes.rebuild import WALK_INTERVALS
from kstore.record.batch import Batch
from kstore.record.walk import Damage, walk
from kstore.scan.visits import first_timestamp
from kstore.segments._numbers import TailNumbers
from kstore.types import NO_TIMESTAMP, TimestampOffset


class Resumed(NamedTuple):
    """Whether the indexes match the log; and whether it is damaged after their last entry."""

    is_indexed: bool
    has_damage: bool = False


NOT_INDEXED = Resumed(False)


def resume(file: File, numbers: TailNumbers, offsets: OffsetIndex, times: TimeIndex) -> Resumed:
    """Restores the last writer's ``numbers``, if the indexes match the log. Raises: StorageError."""
    last = offsets.last_entry
    start = last.position
    if offsets.entry_count and start >= numbers.position:
        return NOT_INDEXED
    if offsets.was_cut or times.was_cut:
        return NOT_INDEXED  # an entry that is out of order, or half of one: no writer leaves these
    if times.entry_count:
        if not _bears_out(file, numbers, offsets, times.last_entry):
            return NOT_INDEXED
        numbers.max_timestamp, numbers.offset_of_max_timestamp = times.last_entry
    numbers.since_entry = 0
    first = True
    for batch in _indexed(file, numbers, start):
        if isinstance(batch, Damage):
            return Resumed(not first, has_damage=True)  # fenced damage after a good entry is not the index's fault
        if batch is None or (first and start and batch.last_offset != last.offset):
            return NOT_INDEXED
        first = False
        numbers.note_timestamp(batch.last_offset, batch.max_timestamp)
        numbers.since_entry = numbers.position - start
    numbers.first_timestamp = first_timestamp(
        walk(file, 0, numbers.position, next_offset=numbers.base_offset, chunk_bytes=1 << 14)
    )
    if not times.entry_count:
        return Resumed(not offsets.entry_count or numbers.max_timestamp == NO_TIMESTAMP)
    return Resumed(numbers.offset_of_max_timestamp <= max(last.offset, times.last_entry.offset))


def _bears_out(file: File, numbers: TailNumbers, offsets: OffsetIndex, entry: TimestampOffset) -> bool:
    """Whether the batch with the offset of a time index entry has its timestamp.

    An entry that rotted would hide every later time, and retention would take the segment for older than it is.
    """
    for batch in _indexed(file, numbers, offsets.lookup(entry.offset).position):
        if batch is None or isinstance(batch, Damage):
            return False
        if batch.last_offset >= entry.offset:
            return batch.max_timestamp == entry.timestamp
    return False


def _indexed(file: File, numbers: TailNumbers, start: int) -> Iterator[Batch | Damage | None]:
    """The batches from the offset index entry at ``start`` on, or damage. None comes last: as many bytes have passed as
    need one more entry."""
    size_max = 0
    for item in walk(file, start, numbers.position, next_offset=numbers.base_offset, chunk_bytes=1 << 16):
        if isinstance(item, Damage):
            yield item
            continue
        position, batch = item
        if position - start > WALK_INTERVALS * numbers.index_interval_bytes + size_max:
            yield None
            return
        size_max = max(size_max, batch.size)
        yield batch
