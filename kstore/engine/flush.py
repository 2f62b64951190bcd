"""Puts written data on disk and raises the recovery point, for ``Log.flush`` and in the background."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from kstore.engine.files import LogFiles
from kstore.engine.flusher import BackgroundFlusher
from kstore.engine.producers import UnsyncedIndex
from kstore.engine.turn import Turn
from kstore.errors import StorageError, SyncFailedError, ThreadStartError
from kstore.segments.tail import SegmentTail

__all__ = ["UNFLUSHED_MAX", "Flush", "TailFlush", "flushed", "sync_indexes"]

logger = logging.getLogger(__name__)


class Flush(Protocol):
    """How a log is put on disk. Syncs outside the turn run beside appends."""

    # Set after the log is open, because it needs the log.
    flusher: BackgroundFlusher

    def flush(self) -> None:
        """Syncs everything that is published, and moves the recovery point there. Raises: SyncFailedError,
        StorageError."""
        ...

    def flush_sealed(self) -> None:
        """Syncs the sealed segments; the recovery point moves up to the active one. Raises: as ``flush``."""
        ...

    def flush_in_turn(self) -> None:
        """``flush``, with the turn."""
        ...

    def soon(self) -> None:
        """Makes the background thread call ``flush``, or calls it now if that is impossible; with the turn."""
        ...

    def sealed_soon(self, tail: SegmentTail) -> None:
        """Syncs ``tail``, which a roll has sealed, in the background, or now; with the turn."""
        ...

    def sync_before_cut(self) -> None:
        """Makes what is published as durable as a truncation assumes; with the turn."""
        ...

    def sync_to_close(self) -> None:
        """Syncs whatever is not on disk when a log is closed cleanly; with the turn."""
        ...


# The most sealed segments that are not on disk: each has a file open, and after a kill recovery reads all of them.
UNFLUSHED_MAX = 16


class TailFlush:
    """Syncs through the descriptors that wrote: a failed writeback is reported to them, and to no later ones."""

    flusher: BackgroundFlusher

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
        """Syncs ``tails`` outside the log's lock, beside appends; the ``sealed`` ones among them grow no more."""
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

    def soon(self) -> None:
        try:
            self.flusher.note()
        except ThreadStartError:
            self.flush_in_turn()

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
    files.unflushed = [tail for tail in files.unflushed if tail not in sealed]
    ends = files.ends
    # During an append the segments extend past the published end.
    target = min(target, ends.end_offset)
    # True even if it cannot be stored: an older record only makes recovery check more.
    files.ends = ends._replace(
        recovery_point=max(ends.recovery_point, target), durable_end=max(ends.durable_end, target)
    )
    files.store(files.ends)
