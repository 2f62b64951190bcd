"""Compaction: reads the keys of a log's dirty part, and rewrites its segments without outdated records.

    1  the offset map is filled from the dirty part, oldest first, until it is full or the part ends
    2  the segments up to there are rewritten in groups, each as one ``.cleaned`` segment
    3  each group's new segment is swapped in; only this takes the log's lock
    4  the first dirty offset advances

Appends and reads continue during a pass. A truncation or a close ends it: what was swapped in stays, and the next pass
starts where this one did. Segments that are deleted from the log's start are skipped: otherwise retention could end
every pass of a log. A damaged segment is left unchanged, and after it nothing is removed that may still have to hide
records in it: tombstones and markers.

Batches keep their format. Only a compressed message set of version 0 or 1 that loses records is rewritten as a batch of
version 2, the only one that kstore writes.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kstore.compaction.blocks import (
    BlockCleaner,
    CleanedSegment,
    CompactionReport,
    Item,
    NotRewritableError,
    block_batch,
)
from kstore.compaction.dirt import LogDirt, look
from kstore.compaction.throttle import Throttle
from kstore.config import MAP_BYTES
from kstore.engine.open.swap import discard
from kstore.engine.writer import LogWriter
from kstore.errors import CorruptDataError, KstoreError, StorageError
from kstore.files.paths import CLEANED_SUFFIX, LOG_SUFFIX, TXN_INDEX_SUFFIX
from kstore.metrics import MetricValue
from kstore.record._compact import OffsetMap
from kstore.record._runs import Run
from kstore.record.batch import Batch, RecordBatch
from kstore.record.walk import Damage
from kstore.rules.compact import (
    CleanedTransactions,
    Dirt,
    SegmentFacts,
    group_segments,
)
from kstore.scan.visits import whole_batches
from kstore.segment import LogSegment
from kstore.segments.places import START
from kstore.types import CorruptRange

if TYPE_CHECKING:
    from kstore.record._compact import BlockBatch

logger = logging.getLogger(__name__)

# How much is read, decided and written at a time, uncompressed: each is one call without the interpreter's lock.
BLOCK_BYTES = 1 << 20


class _StoppedError(Exception):
    """The pass must end; the message says why."""


class _GoneError(Exception):
    """A segment was deleted during the pass."""


class _ProducersError(Exception):
    """The log seemed to have no producers, but a producer's batch was found."""


def compact(
    writer: LogWriter,
    *,
    whole: bool = False,
    if_due: bool = False,
    keep_keyless: bool | None = None,
    map_bytes: int = MAP_BYTES,
    bytes_per_second: float | None = None,
    stop: threading.Event | None = None,
) -> CompactionReport:
    """Compacts a log that is open for writing; see ``Log.compact``. Ends early when ``stop`` is set."""
    if keep_keyless is None:
        keep_keyless = not writer.is_compacted
    stop = stop or threading.Event()
    with writer.compacting:
        started = writer.context.clock.monotonic()
        if if_due and not (dirt := look(writer, as_if_durable=True)).is_due:
            return _nothing_done(writer, dirt.first_dirty)
        # After that everything sealed is on disk, and missing offsets do not count as lost records.
        writer.flush()
        for with_producers in (False, True):
            dirt = look(writer, whole=whole, with_producers=with_producers)
            report = _nothing_done(writer, dirt.first_dirty)
            work = _Pass(writer, dirt, report, stop, keeps_keyless=keep_keyless, bytes_per_second=bytes_per_second)
            try:
                work.run(map_bytes)
                break
            except _ProducersError:
                continue
        report.seconds = writer.context.clock.monotonic() - started
        if report.stop_offset > report.first_dirty:
            writer.context.counters.compacted(
                read=report.records_read,
                removed=report.records_read - report.records_kept,
                damaged=len(report.left),
                seconds=report.seconds,
                now_ms=writer.context.clock.now_ms(),
            )
            logger.info(
                "%s: compacted up to offset %d: %d of %d records stay, %.1f s",
                writer.context.directory,
                report.stop_offset,
                report.records_kept,
                report.records_read,
                report.seconds,
            )
        return report


def dirt_of(writer: LogWriter) -> tuple[Dirt, bool]:
    """How much there is to clean, and whether it is due. Raises: StorageError."""
    dirt = look(writer, as_if_durable=True)
    return dirt.dirt, dirt.is_due


def dirt_gauges(writer: LogWriter) -> dict[str, MetricValue]:
    """The metrics of what there is to clean; none if the log accepts no compaction: it is poisoned, or just closed."""
    try:
        dirt, _ = dirt_of(writer)
    except KstoreError:
        return {}
    return {"dirty_bytes": dirt.cleanable_bytes, "dirty_ratio": dirt.ratio}


def _nothing_done(writer: LogWriter, first_dirty: int) -> CompactionReport:
    count, size = _count_and_size(writer)
    return CompactionReport(first_dirty, first_dirty, count, count, size, size)


def _count_and_size(writer: LogWriter) -> tuple[int, int]:
    """The number of segments that a log has now, and their size."""
    count = size = 0
    for segment in writer.segments:
        with suppress(FileNotFoundError):  # it was just deleted
            size += segment.size
            count += 1
    return count, size


class _Pass:
    """One pass over one log. Not thread-safe."""

    def __init__(
        self,
        writer: LogWriter,
        what: LogDirt,
        report: CompactionReport,
        stop: threading.Event,
        *,
        keeps_keyless: bool,
        bytes_per_second: float | None,
    ) -> None:
        self.writer = writer
        self.what = what
        self.start = what.start
        self.context = writer.context
        self.config = writer.context.config
        self.stop = stop
        self.throttle = Throttle(bytes_per_second, self.context.clock, stop.wait, lambda: bool(self._stopped()))
        self.segments = what.segments
        self.facts = what.facts
        self.first_dirty = what.first_dirty
        self.uncleanable = what.uncleanable
        self.report = report
        self.left: set[int] = set()
        self.blocks = BlockCleaner(
            self.config,
            report,
            last_records=what.start.last_records,
            keeps_keyless=keeps_keyless,
            now_ms=what.now_ms,
        )

    def run(self, map_bytes: int) -> None:
        """The whole pass. Raises: _ProducersError if the pass must start again; StorageError."""
        report = self.report
        if self.first_dirty >= self.uncleanable:
            return
        try:
            report.stop_offset = self._read_keys(map_bytes)
            self._write_groups(report.stop_offset)
            if stopped := self.writer.cleaned_to(self.start, report.stop_offset):
                raise _StoppedError(stopped)
        except _StoppedError as error:
            report.stopped = str(error)
            report.stop_offset = self.first_dirty
            logger.info("%s: the compaction ended early: %s", self.context.directory, report.stopped)
        report.left = sorted(self.left)
        report.segments_after, report.bytes_after = _count_and_size(self.writer)

    def _transactions(self, start: int, stop: int) -> CleanedTransactions:
        if not self.start.producers_known:
            return CleanedTransactions(())
        aborted = self.writer.producers.aborted_transactions(start, stop)
        return CleanedTransactions(sorted(aborted, key=lambda transaction: transaction.first_offset))

    def _pieces(self, segment: LogSegment, start: int, stop_offset: int) -> Iterator[Run | list[Item]]:
        """The batches of a segment from offset ``start``, about 1 MiB of records at a time: runs of plain batches that
        have no producers, and blocks of all others.

        Raises: NotRewritableError; _GoneError or FileNotFoundError if it was deleted since; _StoppedError.
        """
        size = segment.size
        located = segment.locate(start, size) if start > segment.base_offset else START
        block: list[Item] = []
        block_bytes = 0
        for item in segment.runs_from(located, size, offset_stop=stop_offset, run_bytes=BLOCK_BYTES):
            if isinstance(item, Damage):
                path = str(segment.path(LOG_SUFFIX))
                last = item.next_offset - 1 if item.next_offset is not None else stop_offset - 1
                if not self.writer.losses.unaccepted(item.first_offset, last):
                    continue  # its loss is accepted: it is not written
                lost = CorruptRange(item.first_offset, last, item.position, item.reason, path)
                if lost not in self.report.corrupt:
                    self.report.corrupt.append(lost)
                raise NotRewritableError(segment)
            if isinstance(item, Run) and not item.has_producers:
                if block:
                    yield block
                self._pause(segment, block_bytes + item.stop - item.start)
                yield item
                block, block_bytes = [], 0
                continue
            for position, batch in item.batches() if isinstance(item, Run) else (item,):
                if batch.producer_id >= 0 and not self.start.producers_known:
                    raise _ProducersError
                block.append(self.blocks.item(segment, position, batch))
                block_bytes += max(batch.size, len(block[-1].payload))
                if block_bytes >= BLOCK_BYTES:
                    self._pause(segment, block_bytes)
                    yield block
                    block, block_bytes = [], 0
        self._pause(segment, block_bytes)
        if block:
            yield block

    def _pause(self, segment: LogSegment, size: int) -> None:
        """Between two blocks: waits if requested. Raises: _StoppedError if the pass must end, _GoneError."""
        self.throttle.note(size)
        self._ensure_there((segment,))

    def _stopped(self) -> str:
        """Why the pass must end, "" if it may continue."""
        if self.stop.is_set():
            return "it was told to stop"
        return self.writer.compaction_stopped(self.start, ())

    def _ensure_there(self, segments: Iterable[LogSegment]) -> None:
        """Raises: _StoppedError if the pass must end, _GoneError if only some of ``segments`` were deleted."""
        if stopped := self._stopped():
            raise _StoppedError(stopped)
        if self.writer.compaction_stopped(self.start, segments):
            raise _GoneError

    def _note_gone(self, error: Exception, segments: Iterable[LogSegment]) -> None:
        """Ignores an error that comes from the deletion of some of ``segments``.

        Raises: ``error`` if they were not deleted; _StoppedError.
        """
        try:
            self._ensure_there(segments)
        except _GoneError:
            return
        raise error

    # --- the keys ---------------------------------------------------------------------------------------------------

    def _read_keys(self, map_bytes: int) -> int:
        """Fills the map; returns the offset up to which it has every key."""
        self.map = self.blocks.map = OffsetMap(min(map_bytes, sys.maxsize), self.uncleanable - self.first_dirty)
        transactions = self._transactions(self.first_dirty, self.uncleanable)
        for facts in self.facts:
            if facts.stop_offset <= self.first_dirty:
                continue
            if facts.base_offset >= self.uncleanable:
                break
            segment = self.segments[facts.base_offset]
            before = transactions.copy()
            try:
                try:
                    refused = self._read_segment(segment, facts, transactions)
                except NotRewritableError:
                    self._leave(facts.base_offset)
                    transactions = before  # all its batches come again
                    refused = self._read_around(segment, facts, transactions)
            except (FileNotFoundError, _GoneError) as error:
                # The keys that the map has from it are older than all remaining ones.
                self._note_gone(error, (segment,))
                continue
            if refused >= 0:
                self.report.map_full = True
                self.report.keys = len(self.map)
                return refused
        self.report.keys = len(self.map)
        return self.uncleanable

    def _read_segment(self, segment: LogSegment, facts: SegmentFacts, transactions: CleanedTransactions) -> int:
        """Adds the keys of a segment to the map; returns the offset at which it was full, -1 if it is not.

        Raises: NotRewritableError, after some of its batches.
        """
        for piece in self._pieces(segment, max(self.first_dirty, facts.base_offset), facts.stop_offset):
            if isinstance(piece, Run):
                refused = self.map.put_run(piece.data, piece.start, piece.stop, self.first_dirty, self.uncleanable)
            else:
                refused = self._read_block(segment, piece, transactions)
            if refused >= 0:
                return refused
        return -1

    def _read_around(self, segment: LogSegment, facts: SegmentFacts, transactions: CleanedTransactions) -> int:
        """Adds the keys of the whole batches of a damaged segment; keys that were already read change nothing."""
        size = segment.size
        start = max(self.first_dirty, facts.base_offset)
        located = segment.locate(start, size) if start > facts.base_offset else START
        for item in whole_batches(segment.walk_from(located, size, offset_stop=facts.stop_offset)):
            refused = self._read_block(segment, [self.blocks.item(segment, *item)], transactions)
            if refused >= 0:
                return refused
        return -1

    def _read_block(self, segment: LogSegment, block: Sequence[Item], transactions: CleanedTransactions) -> int:
        """Adds the keys of a block to the map; returns the offset at which it was full, -1 if it is not."""
        batches: list[BlockBatch] = []
        for position, batch, payload, is_readable in block:
            if batch.last_offset < self.first_dirty:
                continue
            if batch.last_offset >= self.uncleanable:
                break
            try:
                discardable = transactions.is_discardable(batch)
                if batch.is_control or discardable or not is_readable:
                    continue
                if isinstance(batch, RecordBatch):
                    batches.append(block_batch(batch, payload, 0))
                    continue
                # The order of keys does not matter, but a full map must not have only the later ones.
                refused, _ = self.map.put_block(batches, self.first_dirty)
                batches = []
                refused = refused if refused >= 0 else self._read_legacy(batch)
                if refused >= 0:
                    return refused
            except CorruptDataError as error:
                self.blocks.note_unreadable(batch, position, segment, error.reason)
        refused, _ = self.map.put_block(batches, self.first_dirty)
        return refused

    def _read_legacy(self, batch: Batch) -> int:
        records = batch.records(self.first_dirty, max_bytes_uncompressed=self.config.max_batch_bytes_uncompressed)
        for record in records:
            if record.key is not None and not self.map.put(record.key, record.offset):
                return record.offset
        return -1

    # --- the segments -----------------------------------------------------------------------------------------------

    def _leave(self, base_offset: int) -> None:
        if base_offset not in self.left:
            self.left.add(base_offset)
            self.blocks.deletes_expire = False
            logger.warning(
                "%s: segment %d cannot be rewritten and is left unchanged", self.context.directory, base_offset
            )

    def _write_groups(self, stop_offset: int) -> None:
        """Rewrites every segment that starts below ``stop_offset``."""
        self.blocks.map_end = stop_offset - 1
        self.blocks.uncleanable = self.uncleanable
        facts = []
        for one in self.facts:
            if one.base_offset < stop_offset:
                try:
                    facts.append(self.what.sized(one))
                except FileNotFoundError as error:
                    self._note_gone(error, (self.segments[one.base_offset],))
        if not facts:
            return
        clean = [one for one in facts if one.stop_offset <= self.first_dirty]
        # Tombstones of versions 0 and 1 have no times of their own; they use that of the last clean segment.
        self.legacy_horizon = clean[-1].mtime_ms - self.config.delete_retention_ms if clean else 0
        transactions = self._transactions(facts[0].base_offset, facts[-1].stop_offset)
        if self.start.producers_known:
            transactions.open_before = self.writer.open_at_start()
        while facts:
            here = 0
            while here < len(facts) and facts[here].base_offset not in self.left:
                here += 1
            if not here:
                self._pass_by(facts.pop(0), transactions)
                continue
            group = group_segments(
                facts[:here],
                segment_bytes=self.config.segment_bytes,
                segment_index_bytes=self.config.segment_index_bytes,
            )[0]
            before = transactions.copy()
            try:
                self._write_group(group, transactions)
            except NotRewritableError as damaged:
                # The segments before it are grouped again, and what the pass has noted of it is dropped.
                self._leave(damaged.segment.base_offset)
                transactions = before
                continue
            except (FileNotFoundError, _GoneError) as error:
                self._note_gone(error, [self.segments[one.base_offset] for one in group])
                transactions = before
                facts = self._still_there(facts)
                continue
            del facts[: len(group)]

    def _still_there(self, facts: Iterable[SegmentFacts]) -> list[SegmentFacts]:
        """``facts`` without the segments that were deleted since."""
        there = set(self.writer.segments)
        return [one for one in facts if self.segments[one.base_offset] in there]

    def _pass_by(self, facts: SegmentFacts, transactions: CleanedTransactions) -> None:
        """Notes the transactions with data in a segment that is left unchanged."""
        segment = self.segments[facts.base_offset]
        try:
            for _, batch in whole_batches(segment.walk_from(START, segment.size, offset_stop=facts.stop_offset)):
                with suppress(CorruptDataError):
                    transactions.is_discardable(batch)
        except FileNotFoundError as error:
            self._note_gone(error, (segment,))
        transactions.take_kept()

    def _write_group(self, group: Sequence[SegmentFacts], transactions: CleanedTransactions) -> None:
        """Writes a group's segments as one, and swaps it in if that changes anything."""
        base_offset = group[0].base_offset
        segments = [self.segments[facts.base_offset] for facts in group]
        fs, directory = self.context.fs, self.context.directory
        discard(fs, directory, base_offset, CLEANED_SUFFIX)
        counts = (
            self.report.records_read,
            self.report.records_kept,
            self.report.tombstones_kept,
            self.report.keyless_dropped,
        )
        output = CleanedSegment(fs, LogSegment(self.context, base_offset, state=CLEANED_SUFFIX))
        try:
            for facts, segment in zip(group, segments, strict=True):
                for piece in self._pieces(segment, facts.base_offset, facts.stop_offset):
                    self.blocks.legacy_deletes_expire = facts.mtime_ms <= self.legacy_horizon
                    if not isinstance(piece, Run):
                        size = self.blocks.write(segment, piece, transactions, output)
                    elif not (size := self.blocks.write_run(piece, output)):
                        block = [self.blocks.item(segment, *item) for item in piece.batches()]
                        size = self.blocks.write(segment, block, transactions, output)
                    self.throttle.note(size)
            if len(group) == 1 and not output.is_changed:
                transactions.take_kept()
                output.abandon()
                discard(fs, directory, base_offset, CLEANED_SUFFIX)
                return
            has_index = any(fs.exists(segment.path(TXN_INDEX_SUFFIX)) for segment in segments)
            kept = transactions.take_kept()
            # The rest was copied unchanged, without a check.
            after = [one for one in transactions.aborted if self.uncleanable <= one.last_offset < group[-1].stop_offset]
            kept += sorted(after, key=lambda transaction: transaction.last_offset)
            output.finish(group[-1].mtime_ms, kept if kept or has_index else None)
            fs.sync_dir(directory)
            self._ensure_there(segments)
            unreadable = [(lost.first, lost.last) for lost in self.report.corrupt]
            if stopped := self.writer.swap(self.start, segments, self.first_dirty, unreadable):
                self._ensure_there(segments)
                raise _StoppedError(stopped)
            for facts in group:
                del self.segments[facts.base_offset]
        except BaseException as error:
            output.abandon()
            if isinstance(error, NotRewritableError | _GoneError | FileNotFoundError):
                report = self.report
                report.records_read, report.records_kept, report.tombstones_kept, report.keyless_dropped = counts
            with suppress(StorageError):
                discard(fs, directory, base_offset, CLEANED_SUFFIX)
            raise
