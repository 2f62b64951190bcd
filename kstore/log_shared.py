"""A log that several processes append to: the writer of each, and what it does before and behind every change.

One short lock (byte 2 of ``.lock``) is held around each change, so that what the others did is taken in first, and
what was done is told last, by one record in memory that all of them map (``shared_slot``):

    take the lock; the record is as it was, and the ``.log`` as long as it says: nothing to take in
    the end has moved: so do the tail and what is published; no file is read
    segments came or went (``change_count``): the directory is listed again
    the record is not whole, or says that a change was under way, or the ``.log`` has another length: its writer died
    while it had the lock, and the log is recovered, as when it is opened after a crash

The sync of durability "sync" comes when the lock is given up, and shares the disk's work with that of others; then the
lock is taken once more to move the durable end. Where a sync has failed the record says so, and nobody writes any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from kstore.errors import ClosedError, ConfigError, PoisonedError, SharedLogError, StorageError, SyncFailedError
from kstore.files.fs import File
from kstore.files.lock import DirectoryLock, probe_lock
from kstore.files.paths import KSTORE_STATE, LEADER_EPOCHS, LOG_SUFFIX, SNAPSHOT_SUFFIX, classify
from kstore.files.unmapped import unmapped
from kstore.files.watch import DirectoryWatch
from kstore.log_following import wait_beyond
from kstore.log_loader import Loaded, ensure_log_or_empty, load, make_directory, read_epochs
from kstore.log_producers import LogProducers, PendingProducers
from kstore.log_writer import Cleanable, LogWriter, StoreTies, directory_mode
from kstore.pending_append import PendingAppend
from kstore.published import Published
from kstore.record.control import EndTransactionMarker
from kstore.record.parse import parse_batch
from kstore.segment import LogSegment, SegmentContext
from kstore.segment_tail import SegmentTail
from kstore.segments import LogSegments
from kstore.state.leader_epoch import LeaderEpochCache
from kstore.state.log_state import StateFile
from kstore.state.shared_slot import CHANGING, POISONED, SEALED, TAIL_KNOWN, SharedSlot, SharedState
from kstore.types import Durability, RecoveryReport

__all__ = ["SharedWriter", "open_shared_writer"]

logger = logging.getLogger(__name__)

# Further than changes were counted while one process was not looking.
LEAP = 1 << 32


class _SharedLock:
    """The log's lock: that of the threads, and in it the one of the processes."""

    def __init__(self, writer: SharedWriter) -> None:
        self._writer = writer
        self._mutex = threading.Lock()
        self._owner = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner == me:
            self.__exit__()  # an interrupt came before it could be given back
        self._mutex.acquire()
        try:
            self._owner = me
            self._writer._enter()
        except BaseException:
            self._owner = 0
            self._mutex.release()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._writer._leave()
        finally:
            self._owner = 0
            self._mutex.release()


class SharedWriter(LogWriter):
    """One of the writers of a log. Thread-safe."""

    def __init__(
        self, loaded: Loaded, lock: DirectoryLock, slot: SharedSlot, seen: SharedState | None, ties: StoreTies | None
    ) -> None:
        """``seen``: what the slot says, if ``loaded`` was made of that; the caller has the turn."""
        super().__init__(loaded, lock, ties)
        self._slot = slot
        self._watch = DirectoryWatch(loaded.context.directory)
        # The record that was last read or stored, and its bytes.
        self._seen = seen or SharedState()
        self._seen_data = self._seen.encode()
        self._has_turn = True
        self._is_changing = seen is None
        # What was appended last, to be synced: the file, where it ends, and the ``cut_count`` of then.
        self._written: tuple[File, int, int] | None = None
        self._syncs_writes = False
        # The thread that closes it without the turn, which could not be had.
        self._closes_alone = 0
        if seen is not None:
            self._durable_end = seen.durable_end
            self._show(seen)
        self._lock = _SharedLock(self)

    # --- the turn -----------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        if self._closed is not None or self._closes_alone == threading.get_ident():
            return  # there is nothing any more that is shared
        self._directory_lock.take_turn()
        try:
            self._has_turn = True
            if self._poisoned is None:
                self.catch_up()
        except BaseException:
            self._has_turn = False
            self._directory_lock.end_turn()
            raise

    def _leave(self) -> None:
        if not self._has_turn:
            return
        try:
            self._tell()
        finally:
            self._has_turn = False
            self._directory_lock.end_turn()

    def _tell(self) -> None:
        """Stores the record, if anything has changed."""
        published, before, tail = self.published, self._seen, self._tail
        state = self._state_file.current
        flags = (POISONED if self._poisoned is not None else 0) | (SEALED if self._seal_before_append else 0)
        if tail is None:
            is_same = before.base_offset == published.base_offset and not self._is_changing
            flags |= before.flags & TAIL_KNOWN if is_same else 0
            known = before[9:15] if is_same else SharedState()[9:15]
        else:
            flags |= TAIL_KNOWN
            known = tail.known
        now = SharedState(
            flags,
            before.change_count + self._is_changing,
            before.cut_count,
            state.generation if state is not None else 0,
            -1 if self.loaded.epochs.latest_epoch is None else self.loaded.epochs.latest_epoch,
            published.offset,
            published.base_offset,
            published.position,
            min(self._durable_end, published.offset),
            *known,
            self._last_append_ms,
        )
        if now != before or self._is_changing:
            data = now.encode()
            self._slot.store(data)
            self._seen, self._seen_data = now, data
            self._is_changing = False

    def _begin_change(self, *, cuts: bool = False) -> None:
        """Says that segments are about to come or go: should this process die now, the next one recovers."""
        self._is_changing = True
        if cuts:
            self._seen = self._seen._replace(cut_count=self._seen.cut_count + 1)
        self._seen_data = self._seen._replace(flags=self._seen.flags | CHANGING).encode()
        self._slot.store(self._seen_data)

    # --- what the others did ------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Takes in what other processes have done since the lock was last given back. Needs the turn."""
        data = self._slot.read()
        if data != self._seen_data:
            seen = SharedState.decode(data)
            if seen is not None and seen.flags & POISONED:
                if seen.change_count == self._seen.change_count:
                    self._take_in(seen)  # what is durable may still be read
                self._seen, self._seen_data = seen, data
                self._poison(StorageError("another process that shares the log was poisoned"))
                return
            if seen is None or seen.flags & CHANGING:
                self._recover("a change of it was not brought to its end")
                return
            if seen.change_count != self._seen.change_count:
                self._attach(seen)
            else:
                self._take_in(seen)
            self._seen, self._seen_data = seen, data
        size = self._active_size()
        if size != self._seen.position:
            self._recover(f"its active segment has {size} bytes, expected {self._seen.position}")

    def _active_size(self) -> int:
        if self._tail is not None:
            return self._tail.file.size()
        return self.context.fs.stat(self.segments.last.path(LOG_SUFFIX)).size

    def _take_in(self, seen: SharedState) -> None:
        """The end has moved, in the same segment."""
        if seen.generation != self._seen.generation:
            self._reload_state()
        if seen.epoch != self._seen.epoch:
            self.loaded.epochs = _epochs(self.context)
        tail = self._tail
        if tail is None:
            self._drop_tail()  # which recovery left open
            self.segments.last.resize(seen.position)
        elif seen.flags & TAIL_KNOWN:
            tail.take_in(seen.position, seen[9:15])
        else:
            self._drop_tail()
        self._last_append_ms = max(self._last_append_ms, seen.last_append_ms)
        self._durable_end = seen.durable_end
        self._show(seen)

    def _show(self, seen: SharedState) -> None:
        end = seen.end_offset
        high_watermark = min(seen.durable_end, end) if self._sync else end
        self.published = Published(end, seen.base_offset, seen.position, max(high_watermark, self.start_offset))

    def _reload_state(self) -> None:
        self._state_file.reload()
        state = self._state_file.current
        if state is None:
            raise StorageError(None, "its record cannot be read any more", str(self._state_file.path))
        self.start_offset, self._recovery_point = state.log_start_offset, state.recovery_point

    def _drop_tail(self) -> None:
        """Forgets the open end; who reads from it goes on, and the files are closed behind the last of them."""
        last = self.segments.last
        if last.tail is not None:
            last.tail = None
            last.resize(-1)
        self._tail = None

    def _attach(self, seen: SharedState) -> None:
        """Segments have come or gone: looks for them."""
        loaded = _listed(self.context, self._durability, seen)
        loaded.report = self.loaded.report
        self._adopt(loaded, cuts=seen.cut_count != self._seen.cut_count)
        self._durable_end = seen.durable_end
        self._last_append_ms = max(self._last_append_ms, seen.last_append_ms)
        self._show(seen)

    def _recover(self, why: str) -> None:
        """A writer died while it had the lock: what it was about may be half done."""
        logger.warning("%s: a process that shares the log died: %s", self.context.directory, why)
        self._leap()
        self._begin_change(cuts=True)
        # Should what follows fail: in its next turn this process, too, finds that the change has no end.
        self._seen_data = b""
        self._drop_tail()
        loaded = load(self.context, self._durability)
        if lost := loaded.report.summary():
            logger.warning("%s: recovery: %s", self.context.directory, lost)
        self._adopt(loaded, cuts=True)
        self._durable_end = loaded.end_offset
        self.published = Published(
            loaded.end_offset, loaded.segments.last.base_offset, loaded.position, loaded.end_offset
        )
        self._tell()

    def _leap(self) -> None:
        """Counts on from where nobody has counted to: what the record said may be lost."""
        told = SharedState.decode(self._slot.read()) or self._seen
        count = max(told.change_count, told.cut_count, self._seen.change_count, self._clock.now_ms() << 20) + LEAP
        self._seen = self._seen._replace(change_count=count, cut_count=count)

    def _adopt(self, loaded: Loaded, *, cuts: bool) -> None:
        # Before and behind it: a reader that meets half of it knows by that what it met.
        self.truncation_count += cuts
        self._drop_tail()
        self.context.handles.clear()
        self._state_file.close()
        self.loaded, self.segments, self.producers = loaded, loaded.segments, loaded.producers
        self._state_file = loaded.state_file
        self.start_offset, self._recovery_point = loaded.start_offset, loaded.recovery_point
        self._seal_before_append = loaded.seal
        self._unflushed.clear()
        self.truncation_count += cuts
        self.cut_count += cuts

    # --- append -------------------------------------------------------------------------------------------------------

    def _commit(self, appends: Sequence[PendingAppend]) -> None:
        super()._commit(appends)
        if not self._sync:
            return
        try:
            self._make_durable()
        except BaseException:
            for append in appends:
                append.result = None  # nobody knows whether it will be there
            raise

    def _write(self, appends: Sequence[PendingAppend], before: Published) -> None:
        super()._write(appends, before)
        tail = self._tail
        if self._sync and tail is not None:
            self._written = tail.file, self.published.offset, self._seen.cut_count

    def _publish(self, published: Published) -> None:
        if self._sync:
            self.published = published._replace(high_watermark=min(self._durable_end, published.offset))
        else:
            super()._publish(published)

    def _make_durable(self) -> None:
        """Syncs what was written, outside the turn of the processes, and then says so."""
        # What another thread has written since is in it too.
        written = self._written
        if written is None or written[1] <= self._durable_end:
            return
        file, target, cut_count = written
        started = self._clock.monotonic()
        try:
            file.fdatasync()
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
                target = self.published.offset
            if target > self._durable_end:
                self._durable_end = target
                self._show_durable()

    def _show_durable(self) -> None:
        published = self.published
        self.published = published._replace(high_watermark=min(self._durable_end, published.offset))
        self._state_file.publish_durable_end(self._durable_end)

    def _take_producers(self, append: PendingAppend, checks: PendingProducers, offset: int) -> bool:
        for view in append.views():
            batch = parse_batch(view, 0)
            if batch.is_transactional or batch.is_control:
                append.error = SharedLogError("transactions need a log that one process writes to")
                return False
        return super()._take_producers(append, checks, offset)

    # --- what changes the segments ------------------------------------------------------------------------------------

    def _replace_active(self, old: LogSegment, new: LogSegment) -> SegmentTail:
        self._begin_change()
        if self._sync and old.tail is not None:
            # Nobody syncs it any more when it is sealed.
            old.tail.file.fdatasync()
        return super()._replace_active(old, new)

    def _truncate(self, offset: int) -> None:
        self._begin_change(cuts=True)
        self._sync_before_cut()
        super()._truncate(offset)

    def _start_at(self, offset: int) -> None:
        self._begin_change(cuts=True)
        super()._start_at(offset)

    def _sync_before_cut(self) -> None:
        """What stays counts as durable when the rest is cut: ``_truncate`` takes everything published to be so."""
        self._sync_segments(self._unsynced())

    def _delete_before(self, before: int) -> None:
        self._begin_change()
        super()._delete_before(before)

    # --- flush --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """See ``LogWriter.flush``; also what others have written."""
        self.roll_if_idle()
        with self._changing():
            target, cut_count = self.published, self._seen.cut_count
            segments = self._unsynced()
        self._sync_segments(segments)
        with self._lock, self._poisoned_by_syncs():
            if self._closed is None and self._poisoned is None and self._seen.cut_count == cut_count:
                self._flushed(target, ())
                self._show_durable_if_sync()

    def _flush_locked(self) -> None:
        self._sync_segments(self._unsynced())
        self._flushed(self.published, ())
        self._show_durable_if_sync()

    def _show_durable_if_sync(self) -> None:
        if self._sync:
            self._show_durable()

    def _unsynced(self) -> list[tuple[Path, SegmentTail | None]]:
        """Whatever may not be on disk, no matter who wrote it."""
        return [
            (segment.path(LOG_SUFFIX), segment.tail) for segment in self.segments.range(self._recovery_point, 2**63 - 1)
        ]

    def _sync_segments(self, segments: Iterable[tuple[Path, SegmentTail | None]]) -> None:
        fs = self.context.fs
        try:
            for path, tail in segments:
                try:
                    file = tail.file if tail is not None else fs.open(path, write=True)
                except FileNotFoundError:
                    continue  # deleted since
                file.fdatasync()
            fs.sync_dir(self.context.directory)
        except SyncFailedError as error:
            if self._has_turn:
                self._poison(error)
            else:
                with self._lock:
                    self._poison(error)
            raise

    # --- read ---------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Takes in what other processes have appended."""
        if self._closed is None and self._poisoned is None and self._slot.read() != self._seen_data:
            with self._lock:
                pass

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
                self._tell()
        finally:
            self._has_turn = False  # which goes with the directory's lock
            super()._let_go()


def open_shared_writer(context: SegmentContext, durability: Durability, ties: StoreTies | None = None) -> SharedWriter:
    """One more writer of the log in ``context.directory``, which is created or recovered as needed.

    Raises: as ``open_writer``; LockedError while somebody has it alone, ConfigError where the others have it with
    another durability, PoisonedError where a sync has failed one of them.
    """
    context = context._replace(fs=unmapped(context.fs))
    fs, directory = context.fs, context.directory
    if fs.exists(directory):
        ensure_log_or_empty(fs, directory)
    else:
        make_directory(fs, directory, mode=directory_mode(context.config.file_mode))
    if ties is None:
        probe_lock(directory.parent, shared=True)
    lock = DirectoryLock(directory, kind="shared-log", mode=context.config.file_mode, shared=True)
    try:
        lock.take_turn()
        writer = _first(context, durability, lock, ties) if not lock.others_live() else None
        if writer is None:
            writer = _next(context, durability, lock, ties)
        lock.go_live()
        writer._leave()
        return writer
    except BaseException:
        lock.release()
        raise


def _first(
    context: SegmentContext, durability: Durability, lock: DirectoryLock, ties: StoreTies | None
) -> SharedWriter:
    """Nobody has it open: as when it is opened alone."""
    loaded = load(context, durability, marks=None if ties is None else ties.marks)
    if lost := loaded.report.summary():
        logger.warning("%s: recovery: %s", context.directory, lost)
    writer = SharedWriter(loaded, lock, SharedSlot(context.fs, context.directory / KSTORE_STATE), None, ties)
    # What the mark says is not so any more as soon as another one appends.
    writer._store_state()
    return writer


def _next(context: SegmentContext, durability: Durability, lock: DirectoryLock, ties: StoreTies | None) -> SharedWriter:
    slot = SharedSlot(context.fs, context.directory / KSTORE_STATE)
    seen = SharedState.decode(slot.read())
    if seen is None or seen.flags & CHANGING:
        loaded, seen = load(context, durability), None
    elif seen.flags & POISONED:
        raise PoisonedError(
            None, "a sync has failed one of those who share it: all must close it", str(context.directory)
        )
    else:
        loaded = _listed(context, durability, seen)
    writer = SharedWriter(loaded, lock, slot, seen, ties)
    if seen is None:
        writer._leap()
    else:
        writer.catch_up()
    return writer


def _listed(context: SegmentContext, durability: Durability, seen: SharedState) -> Loaded:
    """The log as its files have it, and as the others say that it ends. Needs the turn."""
    fs, directory = context.fs, context.directory
    names = classify(fs.list(directory))
    state_file = StateFile.open(fs, directory / KSTORE_STATE, mode=context.config.file_mode)
    state = state_file.current
    bases = names.bases[LOG_SUFFIX]
    if state is None or not bases or bases[-1] != seen.base_offset:
        state_file.close()
        last = bases[-1] if bases else "none"
        raise StorageError(None, f"its last segment is {last}, expected {seen.base_offset}", str(directory))
    if state.durability != durability:
        state_file.close()
        raise ConfigError(f"durability is {durability!r}, expected {state.durability!r}, as others have it open")
    segments = LogSegments(LogSegment(context, base) for base in bases)
    segments.last.resize(seen.position)
    return Loaded(
        context=context,
        durability=durability,
        segments=segments,
        producers=LogProducers(context, segments, names.bases[SNAPSHOT_SUFFIX]),
        state_file=state_file,
        start_offset=max(state.log_start_offset, bases[0]),
        end_offset=seen.end_offset,
        position=seen.position,
        recovery_point=state.recovery_point,
        epochs=_epochs(context),
        seal=bool(seen.flags & SEALED),
        report=RecoveryReport(),
    )


def _epochs(context: SegmentContext) -> LeaderEpochCache:
    entries = read_epochs(context, RecoveryReport()) or ()
    return LeaderEpochCache(context.fs, context.directory / LEADER_EPOCHS, entries, mode=context.config.file_mode)
