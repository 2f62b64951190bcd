"""How a shared log is put on disk: by name, whichever process wrote it; with "sync" after the turn, so that no process
waits for the disk in its turn."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from kstore.engine.change.durability import DurabilityStrategy, HasResult, raise_recovery_point
from kstore.engine.change.flush import Flush, flushed
from kstore.engine.files import LogFiles
from kstore.engine.others import Others
from kstore.errors import StorageError, SyncFailedError
from kstore.files.fs import File
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from kstore.segments.tail import SegmentTail
from kstore.shared.turn import SharedTurn
from kstore.types import OFFSET_MAX

logger = logging.getLogger(__name__)


class NameFlush(Flush):
    """Syncs every segment that may not be on disk, by name: another process may have written it."""

    def __init__(self, files: LogFiles, others: Others, turn: SharedTurn) -> None:
        self._files = files
        self._others = others
        self._turn = turn

    def flush(self) -> None:
        files = self._files
        with self._turn.lock, files.changing():
            target, cut_count = files.ends.end_offset, self._others.seen.cut_count
            segments = self._unsynced()
        self._sync_segments(segments)
        with self._turn.lock, files.poisoned_by_syncs():
            if files.closed is None and files.poisoned is None and self._others.seen.cut_count == cut_count:
                self._flushed(target)

    def flush_sealed(self) -> None:
        """Does nothing: a flush syncs sealed segments too."""
        self.flush()

    def flush_in_turn(self) -> None:
        self.sync_all()
        self._flushed(self._files.ends.end_offset)

    def sealed_soon(self, tail: SegmentTail) -> None:
        """Does nothing: a flush finds the segment by its name."""
        self.soon()

    def sync_before_cut(self) -> None:
        """Syncs everything published: a truncation assumes that it is durable."""
        self.sync_all()
        files = self._files
        files.publish(files.ends._replace(durable_end=files.ends.end_offset))

    def sync_to_close(self) -> None:
        """Syncs everything, including what ended processes have written."""
        self.sync_all()

    def sync_all(self) -> None:
        """Syncs everything that may not be on disk; with the turn. Raises: SyncFailedError, and the log is poisoned."""
        self._sync_segments(self._unsynced())

    def _flushed(self, target: int) -> None:
        files = self._files
        flushed(files, target, (), ())
        if files.is_sync:
            show_durable(files, files.ends.durable_end)

    def _unsynced(self) -> list[tuple[Path, SegmentTail | None]]:
        """Every file that may not be on disk, whichever process wrote it."""
        files = self._files
        return [
            (segment.path(LOG_SUFFIX), segment.tail)
            for segment in files.segments.range(files.ends.recovery_point, OFFSET_MAX)
        ]

    def _sync_segments(self, segments: Iterable[tuple[Path, SegmentTail | None]]) -> None:
        files = self._files
        fs = files.context.fs
        try:
            for path, tail in segments:
                try:
                    file = tail.file if tail is not None else fs.open(path, write=True)
                except FileNotFoundError:
                    continue  # deleted in the meantime
                files.syncs.alone(file.fdatasync)
                if tail is None:
                    self._sync_indexes_of(path)
            files.syncs.alone(lambda: fs.sync_dir(files.context.directory))
        except SyncFailedError as error:
            if self._turn.lock.is_mine:
                files.poison(error)
            else:
                with self._turn.lock:
                    files.poison(error)
            raise

    def _sync_indexes_of(self, path: Path) -> None:
        """Puts the indexes of a sealed segment on disk if possible; they are only hints."""
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            try:
                self._files.context.fs.open(path.with_suffix(suffix), write=True).fdatasync()
            except StorageError as error:
                logger.warning("%s: not synced: %s", path.with_suffix(suffix), error)


class SyncAfterTurn(DurabilityStrategy):
    """With "sync", the sync follows the turn, so that processes share the disk's work; one more turn then moves the
    durable end. After a failed sync the record says so, and no process writes any more."""

    is_sync = True
    syncs_writes = False

    def __init__(self, files: LogFiles, others: Others, turn: SharedTurn, flush: NameFlush) -> None:
        self._files = files
        self._others = others
        self._turn = turn
        self._flush = flush
        # The last append that must be synced: the file, its end, and the ``cut_count`` at that time.
        self._written: tuple[File, int, int] | None = None

    def rolled(self, sealed: SegmentTail | None, base_offset: int, *, was_flushed: bool) -> None:
        raise_recovery_point(self._files, base_offset)

    def note_written(self) -> None:
        tail = self._files.tail
        if tail is not None:
            self._written = tail.file, self._files.ends.end_offset, self._others.seen.cut_count

    def withdraw(self, appends: Sequence[HasResult]) -> None:
        for append in appends:
            append.result = None  # it may not survive

    def make_durable(self) -> None:
        """Syncs what was written, outside the turn of the processes, and then records the durable end."""
        files = self._files
        # Includes what other threads have written since.
        written = self._written
        if written is None or written[1] <= files.ends.durable_end:
            return
        file, target, cut_count = written
        clock = files.context.clock
        started = clock.monotonic()
        try:
            files.syncs.alone(file.fdatasync)
        except SyncFailedError as error:
            with self._turn.lock:
                files.poison(error)
            raise
        files.counters.sync_seconds.observe(clock.monotonic() - started)
        with self._turn.lock:
            if files.closed is not None:
                return  # the close has synced everything
            if files.poisoned is not None:
                files.ensure_writable()
            if self._others.seen.cut_count != cut_count:
                # What was synced may differ from what is there now.
                with files.poisoned_by_syncs():
                    self._flush.sync_all()
                target = files.ends.end_offset
            if target > files.ends.durable_end:
                show_durable(files, target)


def show_durable(files: LogFiles, durable_end: int) -> None:
    """Tells readers, also in other processes, that everything below ``durable_end`` is on disk."""
    files.publish(files.ends._replace(durable_end=durable_end, high_watermark=durable_end))
    files.state_file.publish_durable_end(durable_end)
