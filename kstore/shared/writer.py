"""One of several writers of a log: how it appends, changes segments, syncs and closes, beside the others.

All of it happens in turns (``shared.turn``), which begin with what the others did (``catch_up``). The sync of
durability "sync" comes when the turn is given up, and shares the disk's work with that of others; then one more turn
moves the durable end. Where a sync has failed the record says so, and nobody writes any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kstore.engine.ends import Ends, make_ends
from kstore.engine.following import wait_beyond
from kstore.engine.opening import Loaded
from kstore.engine.pending import PendingAppend
from kstore.engine.producers import PendingProducers
from kstore.engine.writer import Cleanable, StoreTies
from kstore.errors import ClosedError, SharedLogError, StorageError, SyncFailedError
from kstore.files.fs import File
from kstore.files.lock import DirectoryLock
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from kstore.files.watch import DirectoryWatch
from kstore.record.control import EndTransactionMarker
from kstore.record.parse import parse_batch
from kstore.rules.losses import LossRanges
from kstore.rules.sequence import Producer
from kstore.segment import LogSegment
from kstore.segment_tail import SegmentTail
from kstore.shared.catch_up import CatchingUp
from kstore.state.shared_slot import SharedSlot, SharedState
from kstore.types import OFFSET_MAX

__all__ = ["SharedWriter"]

logger = logging.getLogger(__name__)

# So many offsets that producers may have written to are read in the turn; more are read before it, and if the others
# have appended as many meanwhile, again, but not for ever.
LEFT_FOR_THE_TURN = 1000
READS_AHEAD_MAX = 8


class SharedWriter(CatchingUp):
    """One of the writers of a log. Thread-safe."""

    _shares_last_segment = True

    def __init__(
        self, loaded: Loaded, lock: DirectoryLock, slot: SharedSlot, seen: SharedState | None, ties: StoreTies | None
    ) -> None:
        super().__init__(loaded, lock, slot, seen, ties)
        self._watch = DirectoryWatch(loaded.context.directory)
        # What was appended last, to be synced: the file, where it ends, and the ``cut_count`` of then.
        self._written: tuple[File, int, int] | None = None
        self._syncs_writes = False

    # --- append -------------------------------------------------------------------------------------------------------

    def _commit(self, appends: Sequence[PendingAppend]) -> None:
        for append in appends:
            if append.with_producers:
                self._read_producers_ahead()
                break
        super()._commit(appends)
        if not self._sync:
            return
        try:
            self._make_durable()
        except BaseException:
            for append in appends:
                append.result = None  # nobody knows whether it will be there
            raise

    def _write(self, appends: Sequence[PendingAppend], before: Ends) -> None:
        super()._write(appends, before)
        tail = self._tail
        if self._sync and tail is not None:
            self._written = tail.file, self.ends.end_offset, self._seen.cut_count

    def _publish(self, end_offset: int, tail: SegmentTail) -> None:
        if not self._sync:
            super()._publish(end_offset, tail)
            return
        start, recovery_point, durable_end, high_watermark, _, base_offset, _ = self.ends
        if tail.base_offset != base_offset:
            recovery_point = tail.base_offset  # a roll has synced what is below it
        # It is synced when the turn is given up, and readers wait for that.
        self.ends = make_ends(
            (start, recovery_point, durable_end, high_watermark, end_offset, tail.base_offset, tail.position)
        )

    def _make_durable(self) -> None:
        """Syncs what was written, outside the turn of the processes, and then says so."""
        # What another thread has written since is in it too.
        written = self._written
        if written is None or written[1] <= self.ends.durable_end:
            return
        file, target, cut_count = written
        started = self._clock.monotonic()
        try:
            self._sync_alone(file.fdatasync)
        except SyncFailedError as error:
            with self._lock:
                self._poison(error)
            raise
        self._counters.sync_seconds.observe(self._clock.monotonic() - started)
        with self._lock:
            if self._closed is not None:
                return  # which has synced all there was
            if self._poisoned is not None:
                self.ensure_writable()
            if self._seen.cut_count != cut_count:
                # What was synced need not be what is there now.
                with self._poisoned_by_syncs():
                    self._sync_segments(self._unsynced())
                target = self.ends.end_offset
            if target > self.ends.durable_end:
                self._show_durable(target)

    def _show_durable(self, durable_end: int) -> None:
        self.ends = self.ends._replace(durable_end=durable_end, high_watermark=durable_end)
        self._state_file.publish_durable_end(durable_end)

    def _take_producers(self, append: PendingAppend, checks: PendingProducers, offset: int) -> bool:
        for view in append.views():
            batch = parse_batch(view, 0)
            if batch.is_transactional or batch.is_control:
                append.error = SharedLogError("transactions need a log that one process writes to")
                return False
        return super()._take_producers(append, checks, offset)

    # --- producers ----------------------------------------------------------------------------------------------------

    def known_producers(self) -> tuple[Producer, ...]:
        """See ``LogWriter.known_producers``."""
        self._read_producers_ahead()
        return super().known_producers()

    def expire_producers(self) -> int:
        """See ``LogWriter.expire_producers``."""
        self._read_producers_ahead()
        return super().expire_producers()

    def last_stable_offset(self) -> int:
        """See ``LogWriter.last_stable_offset``."""
        self._read_producers_ahead()
        return super().last_stable_offset()

    def _read_producers_ahead(self) -> None:
        """Reads outside the turn what producers have written, so that in it little is left to be read: all other
        processes wait meanwhile, and a process that joins may have the whole log to read."""
        for _ in range(READS_AHEAD_MAX):
            data = self._slot.read()
            told = None if data == self._seen_data else SharedState.decode(data)
            end = self.ends.end_offset if told is None else told.end_offset
            if end - self.producers.known_to <= LEFT_FOR_THE_TURN:
                return
            with self._lock:
                if self._closed is not None or self._poisoned is not None:
                    return
                producers, ends, cut_count = self.producers, self.ends, self.cut_count
            ahead = producers.apart()
            try:
                ahead.up_to(ends.end_offset, ends.position)
            except StorageError as error:
                logger.debug("%s: producers are read again: %s", self.context.directory, error)
                continue  # segments were deleted or cut
            with self._lock:
                if self.producers is producers and self.cut_count == cut_count:
                    producers.adopt(ahead)

    # --- what changes the segments ------------------------------------------------------------------------------------

    def _roll(self, base_offset: int) -> SegmentTail:
        self._begin_change()
        return super()._roll(base_offset)

    def _replace_active(self, old: LogSegment, new: LogSegment) -> SegmentTail:
        if self._sync and old.tail is not None:
            # Nobody syncs it any more when it is sealed.
            file = old.tail.file
            self._sync_alone(file.fdatasync)
        return super()._replace_active(old, new)

    def _truncate(self, offset: int) -> None:
        if self._tail is None:
            self._begin()  # while what was told of the tail holds
        self._begin_change(cuts=True)
        self._sync_before_cut()
        super()._truncate(offset)

    def _start_at(self, offset: int) -> None:
        self._begin_change(cuts=True)
        super()._start_at(offset)

    def _sync_before_cut(self) -> None:
        """What stays counts as durable when the rest is cut: ``_truncate`` takes everything published to be so."""
        self._sync_segments(self._unsynced())
        self.ends = self.ends._replace(durable_end=self.ends.end_offset)

    def _back_to(self, before: Ends) -> None:
        self._begin_change()
        super()._back_to(before)

    def _delete_before(self, before: int) -> None:
        self._announce(moves_files=True)
        super()._delete_before(before)

    def _remove_deleted(self, *, at_once: bool = False) -> int:
        if self._deleted:
            self._announce()
        return super()._remove_deleted(at_once=at_once)

    def _note_epochs(self, append: PendingAppend, spans: Sequence[tuple[int, int]]) -> None:
        self._announce()
        super()._note_epochs(append, spans)

    def _store_state(
        self, ends: Ends, *, clean: bool = False, losses: LossRanges | None = None, **clean_mark: Any
    ) -> None:
        # A record that the others do not know of would make readers ignore the durable end that they publish.
        self._announce()
        super()._store_state(ends, clean=clean, losses=losses, **clean_mark)

    # --- flush --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """See ``LogWriter.flush``; also what others have written."""
        self.roll_if_idle()
        with self._changing():
            target, cut_count = self.ends.end_offset, self._seen.cut_count
            segments = self._unsynced()
        self._sync_segments(segments)
        with self._lock, self._poisoned_by_syncs():
            if self._closed is None and self._poisoned is None and self._seen.cut_count == cut_count:
                self._flushed(target, (), ())
                self._show_durable_if_sync()

    def _flush_locked(self) -> None:
        self._sync_segments(self._unsynced())
        self._flushed(self.ends.end_offset, (), ())
        self._show_durable_if_sync()

    def _flush_sealed_soon(self) -> None:
        # What a flush syncs are all segments from the recovery point on, by name: no file is kept open for it.
        self._unflushed.clear()
        self._flush_soon()

    def _show_durable_if_sync(self) -> None:
        if self._sync:
            self._show_durable(self.ends.durable_end)

    def _unsynced(self) -> list[tuple[Path, SegmentTail | None]]:
        """Whatever may not be on disk, no matter who wrote it."""
        return [
            (segment.path(LOG_SUFFIX), segment.tail)
            for segment in self.segments.range(self.ends.recovery_point, OFFSET_MAX)
        ]

    def _sync_segments(self, segments: Iterable[tuple[Path, SegmentTail | None]]) -> None:
        fs = self.context.fs
        try:
            for path, tail in segments:
                try:
                    file = tail.file if tail is not None else fs.open(path, write=True)
                except FileNotFoundError:
                    continue  # deleted since
                self._sync_alone(file.fdatasync)
                if tail is None:
                    self._sync_indexes_of(path)
            fs.sync_dir(self.context.directory)
        except SyncFailedError as error:
            if self._turn.is_mine:
                self._poison(error)
            else:
                with self._lock:
                    self._poison(error)
            raise

    def _sync_indexes_of(self, path: Path) -> None:
        """Puts the indexes of a sealed segment on disk, whoever sealed it, as far as they can be: they are hints."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            try:
                self.context.fs.open(path.with_suffix(suffix), write=True).fdatasync()
            except StorageError as error:
                logger.warning("%s: not synced: %s", path.with_suffix(suffix), error)

    # --- read ---------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes in what other processes have appended."""
        if self._closed is None and self._poisoned is None and self._is_behind():
            with self._lock:
                pass

    def _is_behind(self) -> bool:
        """Whether others have done something, or are about to tell of it: who is woken by a write waits for that."""
        if self._slot.read() != self._seen_data:
            return True
        try:
            return self._active_size() != self._seen.position
        except FileNotFoundError:
            return True

    def wait_beyond(self, offset: int, timeout: float | None) -> bool:
        """See ``LogWriter.wait_beyond``; also for what others append."""
        return wait_beyond(self, self._watch, self._clock, offset, timeout)

    # --- what needs a writer that is alone ----------------------------------------------------------------------------

    def end_transaction(
        self, producer_id: int, producer_epoch: int, end: EndTransactionMarker, timestamp: int | None
    ) -> int:
        raise SharedLogError("transactions need a log that one process writes to")

    def cleanable(self, *, with_producers: bool) -> Cleanable:
        raise SharedLogError("a log that several processes write to cannot be compacted: open it in one")

    # --- close --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """See ``LogWriter.close``; the log is closed as well where what the others did cannot be taken in."""
        self._watch.close()
        try:
            super().close()
        except BaseException:
            self._close_alone()
            raise
        finally:
            self._slot.close()

    def _close_alone(self) -> None:
        """Lets go of the log if that was not come to; the last one to close it, or recovery, does the rest."""
        self._closes_alone = threading.get_ident()
        with self._lock:
            if self._closed is None:
                self._closed = ClosedError(f"the log {self.context.directory} is closed")
                self._let_go()

    def _close_in_order(self) -> None:
        if self._directory_lock.others_live():
            # Theirs is the end; what was appended here is as durable as it will be asked to be.
            if self._tail is not None and not self._sync:
                self._flush_locked()
            return
        state = self._state_file.current
        if self._tail is None and (state is None or not state.clean) and not self._seal_before_append:
            self._tail = self.segments.last.activate()
        if self._tail is not None:
            # Of whoever wrote here and has gone, too.
            self._sync_segments(self._unsynced())
        super()._close_in_order()

    def _let_go(self) -> None:
        try:
            if self._has_turn:
                with suppress(StorageError):
                    self._remove_deleted(at_once=True)
                self._tell()
        finally:
            self._has_turn = False  # which goes with the directory's lock
            super()._let_go()
