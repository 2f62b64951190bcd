"""What the one writer of a log does to its files: begin, roll, flush, truncate, delete, close.

Each step is in an order that a crash may cut anywhere; DESIGN.md says why. A step whose outcome is not known poisons
the log: it then serves what is known to be durable and takes no writes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kstore.config import NO_LIMIT
from kstore.engine.ends import Ends
from kstore.engine.opening import Loaded
from kstore.engine.producers import UnsyncedIndex
from kstore.engine.swap import begin_swap, complete_swap, discard, swapped_index_bytes
from kstore.errors import PoisonedError, StorageError, SyncFailedError
from kstore.files.boot import boot_id
from kstore.files.descriptors import OPEN_TAILS
from kstore.files.log_lock import WriteLock
from kstore.files.paths import CLEANED_SUFFIX, DELETED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, segment_name
from kstore.rules.losses import LossRanges, OffsetSpan
from kstore.rules.retain import SegmentAge, deletable_count
from kstore.segment import LogSegment
from kstore.segment_tail import SegmentTail
from kstore.state.compaction_state import (
    KSTORE_COMPACTION,
    CompactionState,
    remembered_dirt,
    write_compaction_state,
)
from kstore.state.kafka_marks import forget_clean_shutdown
from kstore.state.log_state import LOST_MAX, LogState
from kstore.types import NO_TIMESTAMP, OFFSET_MAX, RetentionResult

__all__ = ["LogFiles"]

logger = logging.getLogger(__name__)


class LogFiles:
    """The files of one log, open for writing. Not thread-safe: the writer, which this is the base of, has the lock."""

    def __init__(self, loaded: Loaded, lock: WriteLock, *, is_alone: bool = True) -> None:
        self.loaded = loaded
        self.context = loaded.context
        self.segments = loaded.segments
        self.producers = loaded.producers
        # Both are replaced by one store: readers look at them without a lock.
        self.ends = loaded.ends
        self.losses = loaded.losses
        # Counts on before anything is cut, and again when it is: a reader that met half of it knows by that what it
        # met, even if it came in the middle.
        self.truncation_count = 0
        # Counts what was really cut: then segments are not what they were, though they may be the same objects.
        self.cut_count = 0
        self._counters = loaded.context.counters
        self._directory_lock = lock
        self._durability = loaded.durability
        self._sync = loaded.durability == "sync"
        self._tail: SegmentTail | None = None
        self._seal_before_append = loaded.seal
        self._state_file = loaded.state_file
        # Nobody but this log looks after the clean marker of a broker's store that it may lie in.
        self._has_kafka_marks = is_alone
        # Sealed since the last flush: the descriptors that wrote are kept, since a failed writeback is told to them.
        self._unflushed: list[SegmentTail] = []
        # Held while files are synced outside the log's lock, or inside: taken after it, never before.
        self._syncing = threading.Lock()
        self._sync_failure: SyncFailedError | None = None  # guarded by _syncing
        self._closed: Exception | None = None
        self._poisoned: Exception | None = None
        # Below it the groups that retention is bound to are done, as the store knew when it last looked.
        self.passed_by_groups = 0
        # A roll has made of the last segment one that retention may take.
        self._retention_due = False
        # Deleted segments under their other name, and the ``monotonic`` time from which they may be removed.
        self._deleted: deque[tuple[float, LogSegment]] = deque()

    def _flush_sealed_soon(self) -> None:
        """A segment was sealed that is not on disk."""

    def _admit(self) -> None:
        """A tail of this log is about to be opened."""

    def _activate(self, segment: LogSegment) -> SegmentTail:
        self._admit()
        return segment.activate()

    # --- roll ---------------------------------------------------------------------------------------------------------

    def _begin(self) -> SegmentTail:
        """Opens the active segment for appending; from here on the log on disk counts as not closed in order."""
        self._store_state(self.ends, if_changed=True)
        if self._seal_before_append:
            # Fenced damage, or missing offsets, stand where the next batch would go: it goes into a segment of its own.
            return self._roll(self.ends.end_offset)
        tail = self._activate(self.segments.last)
        self._check_end(tail)
        self._tail = tail
        return tail

    def _check_end(self, tail: SegmentTail) -> None:
        """Raises: StorageError where a tail that was just opened does not end where the log does."""
        if tail.position != self.ends.position:
            raise StorageError(
                None, f"the log ends at {tail.position} bytes, expected {self.ends.position}", str(tail.file.path)
            )

    def _roll_now(self) -> int:
        tail = self._roll(self.ends.end_offset)
        self.ends = self._rolled(self.ends, tail)
        return tail.base_offset

    def _roll(self, base_offset: int) -> SegmentTail:
        """Seals the active segment and begins one at ``base_offset``, which follows all that is in the log.

        The new file comes first: where there is no room for it, the old segment just goes on.
        """
        old = self.segments.last
        if old.base_offset == base_offset and old.size == 0:
            self._tail = self._activate(old)
            return self._tail
        new = LogSegment(self.context, base_offset)
        new.delete()  # a crash may have left files of this name; the map does not know them, so nothing can be in them
        try:
            return self._replace_active(old, new)
        except BaseException as error:
            self._go_on_with(old, new, error)
            raise

    def _replace_active(self, old: LogSegment, new: LogSegment) -> SegmentTail:
        base_offset = new.base_offset
        is_flushed = self.ends.recovery_point >= base_offset
        if is_flushed:
            # Should it end before the old segment's indexes are on disk, recovery must look at them.
            self._change(self.ends._replace(recovery_point=old.base_offset))
        new.create()
        if self._sync or is_flushed:
            # Until then a crash may lose the new file's name, with what was acknowledged in it; and the recovery point
            # must not stand in a segment that may be gone.
            self.context.fs.sync_dir(self.context.directory)
        tail = self._activate(new)
        sealed = old.tail
        # Indexes are hints, but below the recovery point nothing looks after them any more.
        old.seal(sync=self._sync or is_flushed)
        if (old.base_offset, old.size) == (self.ends.base_offset, self.ends.position):
            # Within an append the producers are only known up to where it began, and that is not ``base_offset``.
            self.producers.snapshot(base_offset)
        if self._sync:
            indexes = self.producers.unsynced()
            self._sync_alone(lambda: self._sync_indexes(indexes))
            self.producers.synced(indexes)
        self.segments.add(new)
        self._tail = tail
        if self._sync or is_flushed:
            # Within an append the log ends where that began, until it is published.
            risen = self.ends._replace(recovery_point=min(base_offset, self.ends.end_offset))
            if self._sync:
                self._change(risen)
            else:
                self.ends = risen
        if not self._sync and sealed is not None:
            self._unflushed.append(sealed)
            self._flush_sealed_soon()
        self._seal_before_append = False
        self._retention_due = True
        self._counters.rolls += 1
        logger.debug("%s: segment %d begins", self.context.directory, base_offset)
        return tail

    def _rolled(self, ends: Ends, tail: SegmentTail) -> Ends:
        """``ends`` of a log whose active segment has become that of ``tail``."""
        # Where appends are synced a roll has synced all below the new segment, its indexes too.
        recovery_point = max(ends.recovery_point, tail.base_offset) if self._sync else ends.recovery_point
        return ends._replace(recovery_point=recovery_point, base_offset=tail.base_offset, position=tail.position)

    def _go_on_with(self, old: LogSegment, new: LogSegment, error: BaseException) -> None:
        """After a roll that failed ``old`` is the active segment again; where it cannot be, the log is poisoned."""
        try:
            if isinstance(error, SyncFailedError):
                raise error
            self.segments.remove([new.base_offset])
            new.delete()
            self._unflushed = [tail for tail in self._unflushed if tail.base_offset != old.base_offset]
            old.forget()
            self._tail = None if self._seal_before_append else self._activate(old)
        except Exception as failure:
            self._poison(failure)

    def _back_to(self, before: Ends) -> None:
        """Removes the segments that a failed append has rolled into, and cuts the one that it began in."""
        for segment in reversed(self.segments.range(before.base_offset, OFFSET_MAX)):
            if segment.base_offset > before.base_offset:
                segment.delete()
                self.segments.remove([segment.base_offset])
        self._unflushed = [tail for tail in self._unflushed if tail.base_offset < before.base_offset]
        self._tail = self._activate(self.segments.last)
        self._tail.truncate_to(before.end_offset, before.position)

    # --- flush --------------------------------------------------------------------------------------------------------

    def _flush_locked(self) -> None:
        sealed, indexes = tuple(self._unflushed), self.producers.unsynced()
        self._sync_tails_locked(self._dirty_tails(), indexes)
        self._flushed(self.ends.end_offset, sealed, indexes)

    def _flush_sealed_locked(self) -> None:
        """Puts the sealed segments on disk, within a roll."""
        sealed, indexes = tuple(self._unflushed), self.producers.unsynced()
        self._sync_tails_locked(sealed, indexes)
        self._flushed(self.segments.last.base_offset, sealed, indexes)

    def _dirty_tails(self) -> list[SegmentTail]:
        return [*self._unflushed, *([self._tail] if self._tail is not None else [])]

    def _sync_indexes(self, indexes: Sequence[UnsyncedIndex]) -> None:
        """Unlike the other indexes, those of transactions are believed, so they are as durable as the log."""
        for index, _ in indexes:
            index.flush()
        if indexes:
            self.context.fs.sync_dir(self.context.directory)

    def _sync_alone(self, sync: Callable[[], None]) -> None:
        """Calls ``sync``: one at a time, and none after one that failed. A failed writeback is reported once to each
        descriptor, so a sync beside the one that fails would take it that everything is on disk.

        It takes a call, and is no context manager made of a generator: an interrupt on the way into one of these leaves
        the lock held for as long as its traceback lives.

        Raises: what ``sync`` raises; SyncFailedError after a failure.
        """
        with self._syncing:
            before = self._sync_failure
            if before is not None:
                reason = "a sync has failed before, and is not repeated"
                raise SyncFailedError(before.errno, reason, before.filename) from before
            try:
                sync()
            except SyncFailedError as error:
                self._sync_failure = error
                raise

    def _sync_tails(self, tails: Sequence[SegmentTail], indexes: Sequence[UnsyncedIndex]) -> None:
        """Syncs files, with or without the log's lock. Raises: SyncFailedError; then the caller poisons the log."""
        clock = self.context.clock

        def sync() -> None:
            for tail in tails:
                started = clock.monotonic()
                file = tail.open_file
                if file is not None:  # else it was synced when it was parked
                    file.fdatasync()
                    self._counters.sync_seconds.observe(clock.monotonic() - started)
                if tail is not self._tail:
                    tail.sync_indexes(self.context.fs)
            self._sync_indexes(indexes)
            self.context.fs.sync_dir(self.context.directory)

        self._sync_alone(sync)

    def _sync_tails_locked(self, tails: Sequence[SegmentTail], indexes: Sequence[UnsyncedIndex]) -> None:
        """``_sync_tails``, with the log's lock; a failure poisons the log."""
        try:
            self._sync_tails(tails, indexes)
        except SyncFailedError as error:
            self._poison(error)
            raise

    def _flushed(self, target: int, sealed: Sequence[SegmentTail], indexes: Sequence[UnsyncedIndex]) -> None:
        """Everything below offset ``target`` is on disk, with ``indexes`` and with the tails that were ``sealed`` when
        the sync began: one that was sealed since may have grown after its sync."""
        self.producers.synced(indexes)
        self._unflushed = [tail for tail in self._unflushed if tail not in sealed]
        # Within an append that is not published yet the segments reach further than the log.
        ends = self.ends
        target = min(target, ends.end_offset)
        self._change(
            ends._replace(recovery_point=max(ends.recovery_point, target), durable_end=max(ends.durable_end, target))
        )

    def _store_losses(self, losses: LossRanges) -> None:
        """Stores ``losses``, durably, and only then shows them to readers. Raises: StorageError; nothing is changed."""
        current = self._state_file.current
        if current is not None and current.clean:
            # Nothing was written since the log was closed in order, so that its mark still holds.
            self._state_file.store(replace(current, **losses._asdict()))
            self.losses = losses
        else:
            self._change(self.ends, losses)

    def _change(self, ends: Ends, losses: LossRanges | None = None) -> None:
        """Stores ``ends`` and ``losses``, durably, and only then shows them to readers.

        Raises: StorageError; then nothing is changed.
        """
        self._store_state(ends, losses=losses)
        # In this order: an interrupt between the two must not hide a loss above the start.
        self.ends = ends
        if losses is not None:
            self.losses = losses

    def _store_state(
        self,
        ends: Ends,
        *,
        clean: bool = False,
        losses: LossRanges | None = None,
        if_changed: bool = False,
        **clean_mark: Any,
    ) -> None:
        lost, accepted, unconfirmed = self.losses if losses is None else losses
        if not clean and self._has_kafka_marks:
            forget_clean_shutdown(self.context.fs, self.context.directory)
            self._has_kafka_marks = False
        state = LogState(
            durability=self._durability,
            clean=clean,
            recovery_point=ends.recovery_point,
            log_start_offset=ends.start_offset,
            durable_end=ends.durable_end,
            boot_id=boot_id(),
            lost=lost,
            accepted=accepted,
            unconfirmed=unconfirmed,
            has_epochs=bool(self.loaded.epochs.entries),
            txn_bytes=self._transaction_index_bytes(ends, clean=clean),
            **clean_mark,
        )
        if not (if_changed and self._state_file.says(state)):
            self._state_file.store(state)

    def _transaction_index_bytes(self, ends: Ends, *, clean: bool) -> int:
        """What the next open finds, or has to rebuild: of all segments, or of those that recovery does not look at."""
        recovery_point = None if clean else ends.recovery_point
        return self.producers.index_sizes.total(self.segments.bases, ends.start_offset, recovery_point)

    def _poison(self, error: BaseException) -> None:
        """No more writes, no second sync, and reads up to the durable end only."""
        if self._poisoned is None:
            self._poisoned = error if isinstance(error, Exception) else StorageError(str(error))
            self.ends = self.ends.poisoned()
            end = self.ends.high_watermark
            logger.error("%s: poisoned: %s; reads end at offset %d", self.context.directory, error, end)

    # --- truncate, delete ---------------------------------------------------------------------------------------------

    def _truncate(self, offset: int) -> None:
        if self._tail is None:
            self._begin()
        keep = self.segments.floor(offset)
        assert keep is not None
        found = keep.batch_at(offset, keep.size, repair=False)
        position = keep.size if found is None else found.position
        last = keep.end(position)
        end_in_file = min(last.offset, offset)
        if last.position < position:
            # Damage is the last thing that stays: its offsets reach as far as they can, and count as they did.
            end_in_file = offset if found is None else min(found.base_offset, offset)
        self.truncation_count += 1
        self.cut_count += 1
        self._lower_dirt(offset)
        # What is known of the end is lowered first: a crash on the way leaves more than asked, never less.
        lowered = self.ends.cut_to(offset, end_in_file, keep.base_offset, position)
        self._store_state(lowered)
        try:
            self.ends = lowered
            self.producers.truncate_to(end_in_file)
            self.loaded.epochs.truncate_from_end(offset)
            dropped = [segment for segment in self.segments if segment.base_offset > keep.base_offset]
            self._drop(reversed(dropped))
            self._tail = self._activate(keep)
            self._tail.truncate_to(offset, position)
            self.producers.index_sizes.note(keep.base_offset, keep.truncate_transactions_to(offset))
            self._seal_before_append = False
            self._forget_losses(offset)
            if last.offset < offset:
                # A batch went as a whole: the offsets of its first part are not given out again, and the name of the
                # next segment is what remembers that.
                self._roll_now()
        except BaseException as error:
            self._poison(error)
            raise
        if self._sync:
            self.ends = self.ends._replace(durable_end=offset)
        self.truncation_count += 1
        self._counters.truncations += 1

    def _start_at(self, offset: int) -> None:
        self.truncation_count += 1
        self.cut_count += 1
        self._lower_dirt(offset)
        lowered = Ends(offset, offset, offset, offset, offset, base_offset=offset, position=0)
        self._store_state(lowered)
        try:
            self.ends = lowered
            dropped = list(self.segments)
            self.producers.index_sizes.drop(self.segments.bases)
            segment = LogSegment(self.context, offset, size=0)
            # At once: readers never meet a map without segments.
            self.segments.replace([segment])
            self._unflushed.clear()
            for old in reversed(dropped):
                old.delete()
            segment.create()
            self.context.fs.sync_dir(self.context.directory)
            self._tail = self._activate(segment)
            self.producers.truncate_to(-1)
            self.loaded.epochs.clear()
            self._forget_losses(offset)
        except BaseException as error:
            self._poison(error)
            raise
        self._seal_before_append = False
        self.truncation_count += 1
        self._counters.truncations += 1
        self._counters.segments_deleted += len(dropped)

    def _forget_losses(self, stop: int) -> None:
        """Drops the losses from ``stop`` on, which were just cut.

        Not before the cut: a crash then leaves a log that has lost them. And before an offset is given out again: what
        is accepted must not be of what is written then.
        """
        within = self.losses.within(self.ends.start_offset, stop)
        if within != self.losses:
            self._change(self.ends, within)

    def _delete_before(self, before: int) -> None:
        ends = self.ends
        recovery_point = max(ends.recovery_point, min(before, ends.durable_end))
        self._change(
            ends._replace(start_offset=before, recovery_point=recovery_point),
            self.losses.within(before, ends.end_offset),
        )
        if self._tail is None:
            self._begin()
        bases = self.segments.bases
        self.producers.secure(max(base for base in bases if base <= before))
        # Oldest first, so that a crash leaves no hole; what is left below the start is removed at the next open.
        stops = zip(self.segments, bases[1:], strict=False)
        delay_ms = self.context.config.file_delete_delay_ms
        if not self._sync:
            # The names of what stays, before those of what goes: else a crash may leave a log that begins too late.
            self.context.fs.sync_dir(self.context.directory)
        self._drop((segment for segment, next_base in stops if next_base <= before), delay_ms=delay_ms)
        self.producers.delete_before(self.segments.first.base_offset)
        self.loaded.epochs.truncate_from_start(before)

    def _retain(self, now_ms: int) -> RetentionResult:
        """Deletes what ``rules.retain`` gives up; the active segment only behind a new one."""
        config = self.context.config
        segments = tuple(self.segments)
        count = deletable_count(
            self._ages(with_times=config.retention_ms != NO_LIMIT),
            config,
            size=sum(segment.size for segment in segments) if config.retention_bytes != NO_LIMIT else 0,
            start_offset=self.ends.start_offset,
            high_watermark=self.ends.high_watermark,
            now_ms=now_ms,
            passed=self.passed_by_groups if config.retention_groups else None,
        )
        gone = segments[:count]
        size = sum(segment.size for segment in gone)
        if gone:
            stop_offset = segments[count].base_offset if count < len(segments) else self.ends.end_offset
            if count == len(segments):
                if self._tail is None:
                    self._begin()
                self._roll_now()
            self._delete_before(max(stop_offset, self.ends.start_offset))
            begin = "%s: retention deleted %d segments, %d bytes; the log begins at offset %d"
            logger.info(begin, self.context.directory, count, size, self.ends.start_offset)
        self._counters.retained(count, size)
        return RetentionResult(count, size, self.ends.start_offset)

    def _ages(self, *, with_times: bool, repair: bool = False) -> Iterator[SegmentAge]:
        """The segments as retention sees them, one after the other; where no time counts nobody looks for one."""
        stops = [*self.segments.bases[1:], self.ends.end_offset]
        for segment, stop_offset in zip(self.segments, stops, strict=True):
            largest, mtime_ms = NO_TIMESTAMP, 0
            if with_times:
                mtime_ms = segment.mtime_ms()
                largest = segment.largest_timestamp(segment.size, repair=repair).timestamp
            yield SegmentAge(stop_offset, segment.size, largest, mtime_ms)

    def _drop(self, segments: Iterable[LogSegment], *, delay_ms: int = 0) -> None:
        """Takes segments out; with a delay their files get another name first, under which readers go on."""
        dropped = list(segments)
        gone = {segment.base_offset for segment in dropped}
        self.segments.remove(gone)
        self.producers.index_sizes.drop(gone)
        self._unflushed = [tail for tail in self._unflushed if tail.base_offset not in gone]
        due = self.context.clock.monotonic() + delay_ms / 1000
        for segment in dropped:
            if delay_ms:
                segment.rename(DELETED_SUFFIX)
                segment.state = DELETED_SUFFIX
                self._deleted.append((due, segment))
            else:
                segment.delete()
        self._counters.segments_deleted += len(dropped)
        if dropped:
            self.context.fs.sync_dir(self.context.directory)

    def _remove_deleted(self, *, at_once: bool = False) -> int:
        """Removes the files of segments that were deleted long enough ago; returns how many segments."""
        now = self.context.clock.monotonic()
        count = 0
        while self._deleted and (at_once or self._deleted[0][0] <= now):
            self._deleted[0][1].delete()
            self._deleted.popleft()
            count += 1
        return count

    # --- compact ------------------------------------------------------------------------------------------------------

    def _swap(self, replaced: Sequence[LogSegment], first_dirty: int, unreadable: Sequence[OffsetSpan]) -> None:
        """Puts the segment that was written as ``.cleaned`` in the place of ``replaced``; it has the first one's base.

        ``unreadable`` are offsets of batches that were copied as they are, since they cannot be read.

        Raises: StorageError. Before the new segment is committed nothing has changed then; behind that the log is
        poisoned, readable as before, and the next open finishes what was begun.
        """
        fs, directory = self.context.fs, self.context.directory
        bases = [segment.base_offset for segment in replaced]
        base_offset = bases[0]
        # A reader that meets what is half done knows by this that it is no damage.
        self.truncation_count += 1
        self._remember_dirt(first_dirty, bases)
        try:
            begin_swap(fs, directory, base_offset)
        except BaseException as error:
            if fs.exists(directory / segment_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX)):
                self._poison(error)
            else:
                discard(fs, directory, base_offset, SWAP_SUFFIX)
                discard(fs, directory, base_offset, CLEANED_SUFFIX)
            raise
        for segment in replaced:
            segment.retire()
        state = ""
        # What follows the last of them begins there.
        following = self.segments.higher(bases[-1])
        stop_offset = following.base_offset if following is not None else self.ends.end_offset
        # The swap is committed: what is read from here on is the new segment.
        self.losses = self.losses.after_compaction(base_offset, stop_offset, LOST_MAX, kept=unreadable)
        try:
            self.producers.index_sizes.drop(bases)
            self.producers.index_sizes.note(base_offset, swapped_index_bytes(fs, directory, base_offset))
            # Readers in other processes know by the new record that what they knew of the names has changed. Nothing
            # of the old segments has gone yet: should this process die, ``load`` knows by the record's generation
            # whether its sum is that of the old segments or of the new one.
            self._store_state(self.ends)
            complete_swap(fs, directory, base_offset, bases)
            self._counters.segments_compacted += len(bases)
        except BaseException as error:
            self._poison(error)
            if fs.exists(directory / segment_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX)):
                state = SWAP_SUFFIX
            raise
        finally:
            gone = set(bases)
            kept = [segment for segment in self.segments if segment.base_offset not in gone]
            self.segments.replace([*kept, LogSegment(self.context, base_offset, state=state)])

    def _remember_dirt(self, first_dirty: int, swap: Sequence[int] = ()) -> None:
        path = self.context.directory / KSTORE_COMPACTION
        record = self._state_file.current if swap else None
        state = CompactionState(first_dirty, tuple(swap), -1 if record is None else record.generation)
        write_compaction_state(self.context.fs, path, state, mode=self.context.config.file_mode)

    def _lower_dirt(self, offset: int) -> None:
        """What comes in the place of what is cut from ``offset`` on was never cleaned."""
        first_dirty = remembered_dirt(self.context.fs, self.context.directory)
        if first_dirty is not None and first_dirty > offset:
            self._remember_dirt(offset)

    # --- close --------------------------------------------------------------------------------------------------------

    def ensure_writable(self) -> None:
        """Raises what stands against a write: ClosedError, ForkedError, PoisonedError."""
        if self._closed is not None:
            raise self._closed
        if self._poisoned is not None:
            raise PoisonedError(
                getattr(self._poisoned, "errno", None),
                f"no writes since a failure of unknown outcome ({self._poisoned}): reopen the log to recover",
                str(self.context.directory),
            ) from self._poisoned

    def _close_in_order(self) -> None:
        current = self._state_file.current
        last = self.segments.last
        is_same = current is not None and current.txn_bytes == self._transaction_index_bytes(self.ends, clean=True)
        if current is not None and current.clean and last.tail is None and is_same:
            return  # nothing has changed since the last clean close
        if last.tail is not None and self._tail is None:
            self._tail = last.tail  # recovery left it open
        if not self._sync or self._tail is None:
            self._sync_tails_locked(self._dirty_tails(), ())
        else:
            # The names of indexes: what is closed in order is believed when it is opened.
            self.context.fs.sync_dir(self.context.directory)
        self.producers.snapshot_at_close(self.ends.end_offset, self.ends.position)
        self._sync_alone(lambda: self._sync_indexes(self.producers.unsynced()))
        last.seal(sync=True)
        self._unflushed.clear()
        end = self.ends.end_offset
        self.ends = self.ends._replace(recovery_point=end, durable_end=end)
        if self._seal_before_append:
            return  # the end is fenced damage: only recovery knows that nothing may be appended behind it
        stat = self.context.fs.stat(last.path(LOG_SUFFIX))
        self._store_state(
            self.ends,
            clean=True,
            clean_base=last.base_offset,
            clean_inode=stat.inode,
            clean_size=stat.size,
            clean_mtime_ns=stat.mtime_ns,
        )

    def _let_go(self) -> None:
        with suppress(StorageError):
            self._remove_deleted(at_once=True)  # what stays goes at the next open
        self._tail = None
        for segment in self.segments:
            if segment.tail is not None:
                segment.tail.abandon()
                segment.tail = None
        OPEN_TAILS.forget(self)
        self.context.handles.clear()
        self._state_file.close()
        self._directory_lock.release()
