"""Puts written data on disk and raises the recovery point: for ``Log.flush``, in the background, and at the close."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Protocol

from kstore.engine.files import LogFiles
from kstore.engine.producers import UnsyncedIndex
from kstore.engine.turn import Turn
from kstore.errors import ClosedError, KstoreError, PoisonedError, StorageError, SyncFailedError, ThreadStartError
from kstore.files.paths import LOG_SUFFIX
from kstore.files.threads import Bell, start_thread
from kstore.segments.tail import SegmentTail

logger = logging.getLogger(__name__)

# The most sealed segments that are not on disk: each has a file open, and after a kill recovery reads all of them.
UNFLUSHED_MAX = 16
# A failed flush that may be repeated is repeated after the usual delay, but at least this many seconds.
RETRY_SECONDS = 1.0


class BackgroundFlusher(Protocol):
    """Flushes a log in the background: a thread of its own, or its store's."""

    def note(self) -> None:
        """Notes that there is something to flush. Raises: ThreadStartError."""
        ...

    def note_sealed(self) -> None:
        """Notes a sealed segment that must be flushed. Raises: ThreadStartError."""
        ...

    def stop(self) -> None:
        """Returns when the log is not being flushed, and will not be flushed any more."""
        ...


class Flush:
    """How a log is put on disk. Syncs outside the turn run alongside appends."""

    # Set after the log is open, because it needs the log.
    flusher: BackgroundFlusher

    def flush(self) -> None:
        """Syncs everything that is published, and moves the recovery point there. Raises: SyncFailedError,
        StorageError."""
        raise NotImplementedError

    def flush_sealed(self) -> None:
        """Syncs the sealed segments; the recovery point moves up to the active one. Raises: as ``flush``."""
        raise NotImplementedError

    def flush_in_turn(self) -> None:
        """``flush``, with the turn."""
        raise NotImplementedError

    def soon(self) -> None:
        """Makes the background thread call ``flush``, or calls it now if that is impossible; with the turn."""
        try:
            self.flusher.note()
        except ThreadStartError:
            self.flush_in_turn()

    def sealed_soon(self, tail: SegmentTail) -> None:
        """Syncs ``tail``, which a roll has sealed, in the background, or now; with the turn."""
        raise NotImplementedError

    def sync_before_cut(self) -> None:
        """Makes what is published as durable as a truncation assumes; with the turn."""
        raise NotImplementedError

    def sync_to_close(self) -> None:
        """Syncs whatever is not on disk when a log is closed cleanly; with the turn."""
        raise NotImplementedError


class TailFlush(Flush):
    """Syncs through the descriptors that wrote: a failed writeback is reported to them, and to no later ones."""

    def __init__(self, files: LogFiles, turn: Turn) -> None:
        self._files = files
        self._turn = turn

    def flush(self) -> None:
        files = self._files
        with self._turn.lock, files.changing():
            target, tails, sealed = files.ends.end_offset, self._dirty_tails(), tuple(files.unflushed)
            truncation_count, indexes = files.truncation_count, files.producers.unsynced()
        self._flush_to(target, tails, sealed, indexes, truncation_count)

    def flush_sealed(self) -> None:
        files = self._files
        with self._turn.lock, files.changing():
            if not files.unflushed:
                return
            target, sealed = files.segments.last.base_offset, tuple(files.unflushed)
            truncation_count, indexes = files.truncation_count, files.producers.unsynced()
        self._flush_to(target, sealed, sealed, indexes, truncation_count)

    def _flush_to(
        self,
        target: int,
        tails: Sequence[SegmentTail],
        sealed: Sequence[SegmentTail],
        indexes: Sequence[UnsyncedIndex],
        truncation_count: int,
    ) -> None:
        """Syncs ``tails`` outside the log's lock, alongside appends; the ``sealed`` ones among them grow no more."""
        files = self._files
        try:
            self._sync_tails(tails, indexes)
        except SyncFailedError as error:
            with self._turn.lock:
                files.poison(error)
            raise
        with self._turn.lock, files.poisoned_by_syncs():
            # A part that was cut in the meantime, and written again, is not the part that was synced.
            if files.closed is None and files.poisoned is None and files.truncation_count == truncation_count:
                flushed(files, target, sealed, indexes)

    def flush_in_turn(self) -> None:
        files = self._files
        sealed, indexes = tuple(files.unflushed), files.producers.unsynced()
        self._sync_in_turn(self._dirty_tails(), indexes)
        flushed(files, files.ends.end_offset, sealed, indexes)

    def sealed_soon(self, tail: SegmentTail) -> None:
        files = self._files
        files.unflushed.append(tail)
        if len(files.unflushed) < UNFLUSHED_MAX:
            try:
                self.flusher.note_sealed()
                return
            except ThreadStartError:
                pass
        sealed, indexes = tuple(files.unflushed), files.producers.unsynced()
        self._sync_in_turn(sealed, indexes)
        flushed(files, files.segments.last.base_offset, sealed, indexes)

    def sync_before_cut(self) -> None:
        """Does nothing with appends that sync; otherwise the durable end says how far the log is on disk."""

    def sync_to_close(self) -> None:
        files = self._files
        if not files.is_sync or files.tail is None:
            self._sync_in_turn(self._dirty_tails(), ())
        else:
            # The names of indexes: the next open trusts a cleanly closed log.
            files.context.fs.sync_dir(files.context.directory)

    def _dirty_tails(self) -> list[SegmentTail]:
        files = self._files
        return [*files.unflushed, *([files.tail] if files.tail is not None else [])]

    def _sync_tails(self, tails: Sequence[SegmentTail], indexes: Sequence[UnsyncedIndex]) -> None:
        """Syncs files, with or without the turn. Raises: SyncFailedError; then the caller poisons the log."""
        files = self._files
        fs, clock = files.context.fs, files.context.clock

        def sync() -> None:
            for tail in tails:
                try:
                    tail.give_back_spare()
                except StorageError as error:
                    logger.warning("%s: its spare blocks stay: %s", tail.offset_index.path, error)
                started = clock.monotonic()
                file = tail.open_file
                if file is not None:  # else it was synced when it was parked
                    file.fdatasync()
                    files.counters.sync_seconds.observe(clock.monotonic() - started)
                if tail is not files.tail:
                    tail.sync_indexes(fs)
            sync_indexes(files, indexes)
            fs.sync_dir(files.context.directory)

        files.syncs.alone(sync)

    def _sync_in_turn(self, tails: Sequence[SegmentTail], indexes: Sequence[UnsyncedIndex]) -> None:
        """``_sync_tails``, with the turn; a failure poisons the log."""
        with self._files.poisoned_by_syncs():
            self._sync_tails(tails, indexes)


def sync_indexes(files: LogFiles, indexes: Sequence[UnsyncedIndex]) -> None:
    """Unlike the other indexes, those of transactions are trusted, so they are as durable as the log."""
    for index, _ in indexes:
        index.flush()
    if indexes:
        files.context.fs.sync_dir(files.context.directory)


def flushed(files: LogFiles, target: int, sealed: Sequence[SegmentTail], indexes: Sequence[UnsyncedIndex]) -> None:
    """Notes that everything below offset ``target`` is on disk, with ``indexes`` and with the tails that were
    ``sealed`` when the sync began: one that was sealed since may have grown after its sync. Stores that; with the
    turn."""
    files.producers.synced(indexes)
    for tail in sealed:
        files.note_sealed(tail)
    files.unflushed = [tail for tail in files.unflushed if tail not in sealed]
    ends = files.ends
    # During an append the segments extend past the published end.
    target = min(target, ends.end_offset)
    # True even if it cannot be stored: an older record only makes recovery check more.
    files.publish(
        ends._replace(recovery_point=max(ends.recovery_point, target), durable_end=max(ends.durable_end, target))
    )
    files.store(files.ends)


def close_in_order(files: LogFiles, flush: Flush) -> None:
    """Puts everything on disk, and stores the clean mark last; with the turn.

    Raises: SyncFailedError, StorageError.
    """
    current, last = files.state_file.current, files.segments.last
    is_clean = current is not None and current.clean
    if files.others is not None and files.tail is None and not is_clean and not files.seal_before_append:
        # Records of other processes are sealed too.
        files.tail = last.activate()
    is_same = current is not None and current.txn_bytes == files.transaction_index_bytes(files.ends, clean=True)
    if current is not None and current.clean and last.tail is None and is_same:
        return  # nothing changed since the last clean close
    if last.tail is not None and files.tail is None:
        files.tail = last.tail  # recovery left it open
    flush.sync_to_close()
    files.producers.snapshot_at_close(files.ends.end_offset, files.ends.position)
    files.syncs.alone(lambda: sync_indexes(files, files.producers.unsynced()))
    tail = last.tail
    last.seal(sync=True)
    files.note_sealed(tail)
    files.unflushed.clear()
    end = files.ends.end_offset
    files.publish(files.ends._replace(recovery_point=end, durable_end=end))
    if files.seal_before_append:
        return  # the log ends with fenced damage: only recovery knows that nothing may be appended after it
    stat = files.context.fs.stat(last.files.path_text(LOG_SUFFIX))
    files.store(
        files.ends,
        clean=True,
        clean_base=last.base_offset,
        clean_inode=stat.inode,
        clean_size=stat.size,
        clean_mtime_ns=stat.mtime_ns,
    )


class Flushable(Protocol):
    """The ``LogWriter``, which is built on a flusher and cannot be imported here."""

    def flush(self) -> None: ...

    def flush_sealed(self) -> None: ...

    def keep_failure(self, error: KstoreError) -> None: ...


class Flusher:
    """A log's own thread: calls ``log.flush()`` at most ``delay_seconds`` after the first ``note()``, and
    ``log.flush_sealed()`` as soon as possible after ``note_sealed()``. Thread-safe; one call at a time.

    The first append or roll that needs the thread starts it. It sleeps until there is something to flush, and ends when
    the log is closed or dropped: it holds the log weakly.
    """

    def __init__(self, log: Flushable, delay_seconds: float) -> None:
        self._log = weakref.ref(log)
        # Kafka's "never" is more than the interpreter can wait for.
        self._delay_seconds = min(delay_seconds, threading.TIMEOUT_MAX / 2)
        # When to flush, by ``time.monotonic``; None if no flush is due.
        self._due: float | None = None
        self._has_sealed = False
        self._wake = Bell()
        self._stop = Bell()
        self._thread: threading.Thread | None = None

    def note(self) -> None:
        """Notes that there is something to flush; almost free if that was noted before. Raises: ThreadStartError."""
        if self._due is None:
            self._begin()
            try:
                self._due = time.monotonic() + self._delay_seconds
                self._wake.set()
            except BaseException:
                self._due = None  # an interrupt: the thread may not have been woken, so the next call wakes it
                raise

    def note_sealed(self) -> None:
        """Notes a sealed segment that must be flushed. Raises: ThreadStartError."""
        if not self._has_sealed:
            self._begin()
            try:
                self._has_sealed = True
                self._wake.set()
            except BaseException:
                self._has_sealed = False  # as in ``note``
                raise

    def _begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = start_thread(
                _run, self._log, self._wake, self._stop, weakref.ref(self), name="kstore-flusher"
            )

    def stop(self) -> None:
        """Ends the thread, without a last flush; returns when it no longer uses the log."""
        self._stop.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()

    def __del__(self) -> None:
        self._stop.set()
        self._wake.set()

    def _seconds_left(self) -> float | None:
        """How many seconds until a flush is due; None if none is."""
        if self._has_sealed:
            return 0.0
        return None if self._due is None else max(self._due - time.monotonic(), 0.0)

    def _work(self, log: Flushable) -> None:
        # Before each flush: whatever arrives during it is not covered, and notes it again.
        if self._has_sealed:
            self._has_sealed = False
            log.flush_sealed()
        if self._due is not None and self._due <= time.monotonic():
            self._due = None
            log.flush()

    def _try_again(self) -> None:
        """Schedules a failed flush again: otherwise it would wait for the next append or roll."""
        if self._due is None:
            self._due = time.monotonic() + max(self._delay_seconds, RETRY_SECONDS)


def _run(log: weakref.ref[Flushable], wake: Bell, stop: Bell, owner: weakref.ref[Flusher]) -> None:
    while True:
        try:
            if stop.is_set() or not _work_when_due(log, wake, owner):
                return
        except MemoryError:
            # Between the flushes, for instance in the wait. What is due is still noted, and no append notes it again.
            continue


def _work_when_due(log: weakref.ref[Flushable], wake: Bell, owner: weakref.ref[Flusher]) -> bool:
    """Waits, or flushes if that is due; False if nothing is to be flushed any more."""
    flusher = owner()
    if flusher is None:
        return False
    seconds = flusher._seconds_left()
    if seconds is None or seconds > 0:
        del flusher
        wake.wait(seconds)
        wake.clear()
        return True
    target = log()
    if target is None:
        return False
    try:
        flusher._work(target)
    except (ClosedError, PoisonedError, SyncFailedError) as error:
        # A failed sync has poisoned the log: a later append, or the close, raises it. A closed log needs no flush.
        target.keep_failure(error)
        logger.warning("the background flush ended: %s", error)
        return False
    except KstoreError as error:
        flusher._try_again()
        logger.warning("a background flush failed, and is tried again: %s", error)
    except Exception:
        # Out of memory, or a defect. Without this thread nothing would be flushed until the next append.
        flusher._try_again()
        logger.exception("a background flush failed in a way that was not expected, and is tried again")
    return True
