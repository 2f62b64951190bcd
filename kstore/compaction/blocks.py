"""Which part of a block of batches stays, and the new segment to which it is written."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kstore.config import LogConfig
from kstore.errors import CorruptDataError, StorageError
from kstore.files.fs import FileSystem
from kstore.files.paths import LOG_SUFFIX
from kstore.indexes.offset_index import POSITION_MAX
from kstore.record._compact import FilteredBatch, OffsetMap
from kstore.record._runs import Run
from kstore.record.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CRC_START,
    LOG_OVERHEAD_BYTES,
    Batch,
    RecordBatch,
    batch_crc,
)
from kstore.record.builder import build_batch
from kstore.record.compression import CODECS_BY_NAME
from kstore.record.parse import parse_batch
from kstore.rules.compact import BatchVerdict, CleanedTransactions, LastRecord, batch_verdict, keeps_empty
from kstore.segment import LogSegment
from kstore.types import LOG_APPEND_TIME as TYPE_LOG_APPEND_TIME
from kstore.types import NO_TIMESTAMP, RELATIVE_OFFSET_MAX, TIMESTAMP_MAX, AbortedTransaction, CorruptRange

if TYPE_CHECKING:
    from kstore.record._compact import BlockBatch

# The flags of a batch for ``OffsetMap.filter_block``.
KEEP_ALL, DROP_TOMBSTONES, HAS_HORIZON, NEEDS_HORIZON, LOG_APPEND_TIME, KEEP_KEYLESS = 1, 2, 4, 8, 16, 32
# The attributes that a batch keeps when it loses its last record.
EMPTY_ATTRIBUTES = ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL


@dataclass(slots=True)
class CompactionReport:
    """The results of a compaction. Offsets, counts, bytes of ``.log`` files.

    The pass cleaned the offsets from ``first_dirty`` to ``stop_offset``. ``stopped`` says why it ended early, "" if it
    did not; what it had swapped in by then counts. ``left`` are segments that were not rewritten: they are damaged, or
    have messages of versions 0 and 1 that no batch of version 2 can hold.
    """

    first_dirty: int = 0
    stop_offset: int = 0
    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_read: int = 0
    records_kept: int = 0
    tombstones_kept: int = 0
    keyless_dropped: int = 0
    keys: int = 0
    map_full: bool = False
    corrupt: list[CorruptRange] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    stopped: str = ""
    seconds: float = 0.0


class NotRewritableError(Exception):
    """A segment must stay as it is."""

    def __init__(self, segment: LogSegment) -> None:
        self.segment = segment


class Item(NamedTuple):
    """A batch, and its records uncompressed; those of versions 0 and 1 have none here."""

    position: int
    batch: Batch
    payload: memoryview | bytes
    is_readable: bool


class BlockCleaner:
    """Decides about blocks of batches. Not thread-safe.

    The pass sets these as it proceeds: the ``map`` of keys and ``map_end``, the last offset that it covers;
    ``deletes_expire``, False after a segment that could not be cleaned; ``legacy_deletes_expire`` for a segment's
    tombstones of versions 0 and 1, which have no horizon.
    """

    def __init__(
        self,
        config: LogConfig,
        report: CompactionReport,
        *,
        last_records: dict[int, LastRecord],
        keeps_keyless: bool,
        now_ms: int,
    ) -> None:
        self._config = config
        self._report = report
        self._last_records = last_records
        self._keeps_keyless = keeps_keyless
        self._now_ms = now_ms
        self._horizon = min(now_ms + config.delete_retention_ms, TIMESTAMP_MAX)
        self.map = OffsetMap(0)
        self.map_end = -1
        self.uncleanable = 0
        self.deletes_expire = True
        self.legacy_deletes_expire = False

    def item(self, segment: LogSegment, position: int, batch: Batch) -> Item:
        if not isinstance(batch, RecordBatch):
            return Item(position, batch, b"", True)
        try:
            data, start, stop = batch.payload(self._config.max_batch_bytes_uncompressed)
        except CorruptDataError as error:
            self.note_unreadable(batch, position, segment, error.reason)
            return Item(position, batch, b"", False)
        return Item(position, batch, memoryview(data)[start:stop], True)

    def note_unreadable(self, batch: Batch, position: int, segment: LogSegment, reason: str) -> None:
        path = str(segment.path(LOG_SUFFIX))
        lost = CorruptRange(batch.base_offset, batch.last_offset, position, reason, path)
        if lost not in self._report.corrupt:
            self._report.corrupt.append(lost)

    def write(
        self,
        segment: LogSegment,
        block: Sequence[Item],
        transactions: CleanedTransactions,
        output: CleanedSegment,
    ) -> int:
        """Decides about a block, and writes the part that stays; returns the number of bytes.

        Raises: NotRewritableError.
        """
        batches: list[BlockBatch] = []
        # For each batch: its number among ``batches``, or None; and what to do with it.
        plans: list[tuple[Batch, int | None, BatchVerdict | bytes]] = []
        for position, batch, payload, is_readable in block:
            if batch.base_offset >= self.uncleanable:
                plans.append((batch, None, BatchVerdict.KEEP))
                continue
            try:
                discardable = transactions.is_discardable(batch)
                verdict = batch_verdict(
                    batch, discardable=discardable, deletes_expire=self.deletes_expire, now_ms=self._now_ms
                )
                if verdict == BatchVerdict.DROP:
                    self._report.records_read += batch.record_count
                    plans.append((batch, None, verdict))
                elif not is_readable:
                    # Its CRC and its offsets are correct: it was written like this, and stays.
                    plans.append((batch, None, BatchVerdict.KEEP))
                elif isinstance(batch, RecordBatch):
                    plans.append((batch, len(batches), verdict))
                    flags = self._flags(batch, verdict, discardable)
                    batches.append(block_batch(batch, payload, flags))
                else:
                    plans.append((batch, None, self._filter_legacy(segment, batch)))
            except CorruptDataError as error:
                plans.append((batch, None, BatchVerdict.KEEP))
                self.note_unreadable(batch, position, segment, error.reason)
        results, rewritten = self.map.filter_block(batches, self.map_end, self._horizon)
        for item, (batch, number, what) in zip(block, plans, strict=True):
            if number is not None:
                result = results[number]
                if result.damage:
                    self.note_unreadable(batch, item.position, segment, result.damage)
                    output.add(batch.data, batch)
                    continue
                self._count(result)
                assert isinstance(batch, RecordBatch)
                if result.rewritten:
                    output.add(_rebuilt(batch, result, rewritten), batch, result.max_timestamp)
                    continue
                if result.kept_count:
                    output.add(batch.data, batch)
                    continue
            elif isinstance(what, bytes):
                if what:
                    # Not the original batch: the rest of old messages may end before them.
                    output.add(what, parse_batch(what))
                    continue
            elif what == BatchVerdict.KEEP:
                output.add(batch.data, batch)
                continue
            self._add_emptied(batch, output)
        return output.write(memoryview(rewritten))

    def write_run(self, run: Run, output: CleanedSegment) -> int:
        """Writes a run without producers, if all of it stays as it is; returns the number of bytes, else 0."""
        if run.next_offset > self.uncleanable:
            return 0
        flags = (KEEP_KEYLESS if self._keeps_keyless else 0) | (DROP_TOMBSTONES if self.deletes_expire else 0)
        tombstones = self.map.keeps_run(run.data, run.start, run.stop, self.map_end, self._now_ms, flags)
        if tombstones < 0:
            return 0
        report = self._report
        report.records_read += run.record_count
        report.records_kept += run.record_count
        report.tombstones_kept += tombstones
        return output.write_run(run)

    def _flags(self, batch: RecordBatch, verdict: BatchVerdict, discardable: bool) -> int:
        flags = KEEP_ALL if verdict == BatchVerdict.KEEP else 0
        if self._keeps_keyless:
            flags |= KEEP_KEYLESS
        horizon = batch.delete_horizon_ms
        if horizon is not None:
            flags |= HAS_HORIZON
            if horizon <= self._now_ms and self.deletes_expire:
                flags |= DROP_TOMBSTONES
        elif batch.is_control and discardable:
            flags |= NEEDS_HORIZON
        if batch.attributes & ATTRIBUTE_LOG_APPEND_TIME:
            flags |= LOG_APPEND_TIME
        return flags

    def _count(self, result: FilteredBatch) -> None:
        report = self._report
        report.records_read += result.record_count
        report.records_kept += result.kept_count
        report.tombstones_kept += result.tombstone_count
        report.keyless_dropped += result.keyless_count

    def _filter_legacy(self, segment: LogSegment, batch: Batch) -> bytes:
        """The remaining part of messages of version 0 or 1: the messages unchanged, a batch of version 2, or nothing.

        Raises: CorruptDataError; NotRewritableError if a batch cannot hold what remains.
        """
        report = self._report
        expire = self.deletes_expire and self.legacy_deletes_expire
        records = list(batch.records(max_bytes_uncompressed=self._config.max_batch_bytes_uncompressed))
        kept = []
        for record in records:
            if record.offset > self.map_end or (record.key is None and self._keeps_keyless):
                kept.append(record)
            elif record.key is None:
                report.keyless_dropped += 1
            elif record.offset >= self.map.get(record.key) and not (record.value is None and expire):
                kept.append(record)
        report.records_read += len(records)
        report.records_kept += len(kept)
        report.tombstones_kept += sum(record.value is None for record in kept)
        if len(kept) == len(records):
            return bytes(batch.data)
        if not kept:
            return b""
        is_far = kept[-1].offset - kept[0].offset > RELATIVE_OFFSET_MAX
        if is_far or any(record.timestamp < NO_TIMESTAMP for record in kept):
            # To keep the messages here is no way out: a tombstone that hides one of them may expire. After a segment
            # that stays as it is, none does.
            raise NotRewritableError(segment)
        append_time = batch.max_timestamp if batch.timestamp_type == TYPE_LOG_APPEND_TIME else None
        return build_batch(kept, codec=batch.codec, log_append_time=append_time)

    def _add_emptied(self, batch: Batch, output: CleanedSegment) -> None:
        """A batch without remaining records: its header stays if it is still needed."""
        if not keeps_empty(batch, self._last_records, self.uncleanable):
            output.is_changed = True
            return
        if isinstance(batch, RecordBatch) and batch.record_count == 0:
            output.add(batch.data, batch)
            return
        output.add(_emptied(batch), batch)


class CleanedSegment:
    """The new segment: batches are collected, and written a block at a time."""

    def __init__(self, fs: FileSystem, segment: LogSegment) -> None:
        self.segment = segment
        self.is_changed = False
        self._fs = fs
        segment.create()
        self._tail = segment.activate()
        self._buffers: list[memoryview | bytes | tuple[int, int]] = []
        self._marks: list[tuple[int, int, int, int]] = []
        self._position = 0

    def add(self, data: memoryview | bytes | tuple[int, int], batch: Batch, max_timestamp: int | None = None) -> None:
        """Adds a batch: its bytes, or its range in the block's rewritten bytes."""
        size = data[1] - data[0] if isinstance(data, tuple) else len(data)
        self.is_changed = self.is_changed or not isinstance(data, memoryview)
        self._ensure_room(size)
        self._buffers.append(data)
        timestamp = batch.max_timestamp if max_timestamp is None else max_timestamp
        self._marks.append((self._position, size, batch.last_offset, timestamp))
        self._position += size

    def _ensure_room(self, size: int) -> None:
        if self._position + size > POSITION_MAX:
            raise StorageError(None, "a compacted segment would be larger than a segment can be", str(self.segment))

    def write_run(self, run: Run) -> int:
        """Writes a run unchanged; returns the number of bytes. Whatever was added before is written."""
        assert not self._buffers, "a block is written before a run"
        size = run.stop - run.start
        self._ensure_room(size)
        self._tail.write([memoryview(run.data)[run.start : run.stop]], size, sync=False)
        self._tail.note_run(run.moved_to(self._position))
        self._position += size
        return size

    def write(self, rewritten: memoryview) -> int:
        """Writes what was added; returns the number of bytes. The ranges refer to ``rewritten``."""
        buffers = [rewritten[one[0] : one[1]] if isinstance(one, tuple) else one for one in self._buffers]
        size = self._position - self._tail.position
        if size:
            self._tail.write(buffers, size, sync=False)
        for mark in self._marks:
            self._tail.note(*mark)
        self._buffers.clear()
        self._marks.clear()
        return size

    def finish(self, mtime_ms: int, aborted: Sequence[AbortedTransaction] | None) -> None:
        """Puts the segment on disk, with the time of its last source segment."""
        self._tail.file.fsync()
        self.segment.seal(sync=True)
        if self._tail.has_unsynced_indexes:
            # What it would replace has sound indexes.
            raise StorageError(errno.EIO, "an index of the compacted segment cannot be synced", self._tail.file.path)
        self._fs.set_mtime(self.segment.path(LOG_SUFFIX), mtime_ms * 1_000_000)
        if aborted is not None:
            self.segment.files.replace_transaction_index(aborted)

    def abandon(self) -> None:
        """Closes the files."""
        if self.segment.tail is not None:
            self.segment.tail.abandon()
            self.segment.tail = None


def block_batch(batch: RecordBatch, payload: memoryview | bytes, flags: int) -> BlockBatch:
    header = batch.header
    return (
        payload,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        flags,
    )


def _emptied(batch: Batch) -> bytes:
    """The header of a batch, without records."""
    if not isinstance(batch, RecordBatch):
        return build_batch(
            (),
            # Only the last offset matters. The first one may be further away than a batch can say.
            base_offset=max(batch.base_offset, batch.last_offset - RELATIVE_OFFSET_MAX),
            last_offset=batch.last_offset,
            log_append_time=batch.max_timestamp if batch.timestamp_type == TYPE_LOG_APPEND_TIME else None,
            max_timestamp=batch.max_timestamp,
        )
    # Its other fields stay, whatever they are: ``build_batch`` refuses those that no writer produces.
    header = batch.header._replace(
        batch_length=BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES,
        attributes=batch.header.attributes & EMPTY_ATTRIBUTES,
        base_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    data = BATCH_HEADER.pack(*header)
    return BATCH_HEADER.pack(*header._replace(crc=batch_crc(memoryview(data)[CRC_START:])))


def _rebuilt(batch: RecordBatch, result: FilteredBatch, rewritten: bytearray) -> bytes | tuple[int, int]:
    """The batch with the remaining records; uncompressed it is in ``rewritten``, which has space for its header."""
    header = batch.header
    attributes = header.attributes & 0x3F | (ATTRIBUTE_DELETE_HORIZON if result.has_horizon else 0)
    codec = CODECS_BY_NAME[batch.codec]
    start = result.start - BATCH_HEADER_BYTES
    stop = result.stop
    target = rewritten
    if codec.id:
        packed = codec.compress(memoryview(rewritten)[result.start : stop], None)
        target = bytearray(BATCH_HEADER_BYTES) + packed
        start, stop = 0, len(target)
    header = header._replace(
        batch_length=stop - start - LOG_OVERHEAD_BYTES,
        attributes=attributes,
        base_timestamp=result.base_timestamp,
        max_timestamp=result.max_timestamp,
        record_count=result.kept_count,
    )
    BATCH_HEADER.pack_into(target, start, *header)
    crc = batch_crc(memoryview(target)[start + CRC_START : stop])
    target[start + CRC_START - 4 : start + CRC_START] = crc.to_bytes(4, "big")
    return bytes(target) if codec.id else (start, stop)
