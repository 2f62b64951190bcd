"""The end of the active segment: the writer's open ``.log`` and its two growing indexes.

Everything here happens under the log's lock. An index that cannot be written never fails an append: it is not written
again until the segment is reopened, and readers work without its last entries.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from kstore.clock import Clock
from kstore.config import LogConfig
from kstore.errors import (
    FileMissingError,
    IndexFullError,
    InvalidOffsetError,
    PoisonedError,
    StorageError,
    SyncFailedError,
)
from kstore.files._locks import OwnedLock
from kstore.files.fs import File, FileSystem, sync_error
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from kstore.index import OffsetIndex, TimeIndex
from kstore.metrics import LogCounters
from kstore.record._runs import Run, index_notes
from kstore.record.batch import Batch
from kstore.record.walk import Damage, walk_runs
from kstore.rules.roll import jitter_ms, segment_ms_max
from kstore.scan.visits import Visitor, visit
from kstore.segments._numbers import TailNumbers
from kstore.segments.files import SegmentFiles
from kstore.segments.resume import resume
from kstore.types import NO_TIMESTAMP

logger = logging.getLogger(__name__)

# What a shared log's record says about a tail: its first timestamp; the greatest one, and the last offset of the batch
# with it; the bytes since the last index entry; the entries of the offset index, and of the time index.
TailState = tuple[int, int, int, int, int, int]

# The .log gets blocks this far ahead of its end (its size stays exact): a write then need not search for space.
ALLOCATE_BYTES = 4 << 20
# A new or reopened file gets no blocks ahead before it has grown by this much, because it may soon be sealed or parked,
# which would release them: that takes longer than the reservation saves.
UNALLOCATED_BYTES = 64 << 10


class _Parked(NamedTuple):
    """How a parked tail is opened again: the ``.log`` must be the same file."""

    fs: FileSystem
    path: str
    inode: int
    admit: Callable[[], None]


class Indexing(Visitor):
    """Gives both indexes of a tail the entries of what a scan finds."""

    def __init__(self, tail: SegmentTail) -> None:
        self._tail = tail

    def note(self, position: int, batch: Batch) -> None:
        self._tail.note(position, batch.size, batch.last_offset, batch.max_timestamp)

    def note_run(self, run: Run) -> None:
        self._tail.note_run(run)

    def note_damage(self, damage: Damage) -> None:
        self._tail.note_damage()


class SegmentTail:
    """The writable end of one segment. Not thread-safe: the log's lock guards it, except for what readers look up."""

    __slots__ = (
        "__weakref__",
        "_counters",
        "_has_spare",
        "_owes_spare",
        "_parked",
        "_spare_lock",
        "base_offset",
        "created_ms",
        "has_damage",
        "has_unsynced_indexes",
        "index_failed",
        "is_doubtful",
        "jitter_ms",
        "numbers",
        "offset_index",
        "open_file",
        "time_index",
    )

    def __init__(
        self,
        base_offset: int,
        file: File,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        *,
        position: int,
        config: LogConfig,
        counters: LogCounters,
        created_ms: int,
    ) -> None:
        self.base_offset: int = base_offset
        self.numbers: TailNumbers = TailNumbers(base_offset, position)
        # The ``.log``; None while the tail is parked: ``_parked`` then says how to continue. Readers have no lock.
        self.open_file: File | None = file
        self._parked: _Parked | None = None
        self.offset_index: OffsetIndex = offset_index
        self.time_index: TimeIndex = time_index
        self.created_ms: int = created_ms
        # Whether batches that are damaged, or come after damage, may be missing from the greatest timestamp.
        self.has_damage: bool = False
        self.index_failed: bool = False
        # Whether the sync of an index has failed: after a power cut it may hold anything.
        self.has_unsynced_indexes: bool = False
        # Whether a failed write may have left something after the end.
        self.is_doubtful: bool = False
        # Whether there are blocks after the end.
        self._has_spare = False
        # Whether they are to be released after the seal. The lock guards this, and is held while it is done.
        self._owes_spare = False
        self._spare_lock = OwnedLock()
        self._counters = counters
        self._indexes_changed()
        self.use(config)

    def use(self, config: LogConfig) -> None:
        """Uses other settings from now on; the indexes may not exceed their first maximum."""
        numbers = self.numbers
        self.jitter_ms: int = jitter_ms(config)
        numbers.index_interval_bytes = config.index_interval_bytes
        numbers.segment_bytes = config.segment_bytes
        numbers.segment_ms = segment_ms_max(config) - self.jitter_ms

    # --- open -------------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, files: SegmentFiles, config: LogConfig, clock: Clock, counters: LogCounters) -> SegmentTail:
        """Creates the files of a segment, the ``.log`` first: an index without a log is removed at the next open.

        Raises: FileInTheWayError, DiskFullError, StorageError; then some of the files may exist.
        """
        base_offset, size_max, mode = files.base_offset, config.segment_index_bytes, config.file_mode
        tail = cls(
            base_offset,
            files.open_new(),
            OffsetIndex.create(
                files.fs, files.path_text(INDEX_SUFFIX), base_offset, index_bytes_max=size_max, mode=mode
            ),
            TimeIndex.create(
                files.fs, files.path_text(TIME_INDEX_SUFFIX), base_offset, index_bytes_max=size_max, mode=mode
            ),
            position=0,
            config=config,
            counters=counters,
            created_ms=clock.now_ms(),
        )
        tail.numbers.allocated = UNALLOCATED_BYTES
        return tail

    @classmethod
    def open(
        cls, files: SegmentFiles, config: LogConfig, clock: Clock, counters: LogCounters, *, empty_indexes: bool = False
    ) -> SegmentTail:
        """Opens the files at their ends. Indexes whose last entries do not match the log are rebuilt."""
        base_offset = files.base_offset
        fs, path = files.fs, files.path_text
        file = fs.open(path(LOG_SUFFIX), write=True)
        size_max, mode = config.segment_index_bytes, config.file_mode
        # Entries of indexes that must become empty are not read.
        count = 0 if empty_indexes else None
        tail = cls(
            base_offset,
            file,
            OffsetIndex.open_writable(
                fs, path(INDEX_SUFFIX), base_offset, index_bytes_max=size_max, entry_count=count, mode=mode
            ),
            TimeIndex.open_writable(
                fs, path(TIME_INDEX_SUFFIX), base_offset, index_bytes_max=size_max, entry_count=count, mode=mode
            ),
            position=file.size(),
            config=config,
            counters=counters,
            created_ms=clock.now_ms(),
        )
        if not empty_indexes and not tail._resume():
            tail.rebuild()
        return tail

    @classmethod
    def join(
        cls,
        files: SegmentFiles,
        config: LogConfig,
        clock: Clock,
        counters: LogCounters,
        *,
        position: int,
        known: TailState,
    ) -> SegmentTail:
        """Opens the files of a segment that other processes write to, at the end that they announce.

        No file is changed, and the amount read does not grow with the segment.

        Raises: CorruptIndexError, FileMissingError if an index does not match ``known``; StorageError.
        """
        base_offset, size_max = files.base_offset, config.segment_index_bytes
        fs, path = files.fs, files.path_text
        offset_count, time_count = known[-2:]
        tail = cls(
            base_offset,
            fs.open(path(LOG_SUFFIX), write=True),
            OffsetIndex.join(fs, path(INDEX_SUFFIX), base_offset, index_bytes_max=size_max, entry_count=offset_count),
            TimeIndex.join(fs, path(TIME_INDEX_SUFFIX), base_offset, index_bytes_max=size_max, entry_count=time_count),
            position=position,
            config=config,
            counters=counters,
            created_ms=clock.now_ms(),
        )
        tail.take_in(position, known)
        return tail

    def _resume(self) -> bool:
        """Restores the state of the last writer from the indexes; False if they do not match the log."""
        found = resume(self.file, self.numbers, self.offset_index, self.time_index)
        self.has_damage = found.has_damage
        return found.is_indexed

    def reset(self) -> None:
        """Empties both indexes, before a rebuild notes every batch again."""
        self.offset_index.truncate()
        self.time_index.truncate()
        self._indexes_changed()
        numbers = self.numbers
        numbers.clear_timestamps()
        numbers.first_timestamp = NO_TIMESTAMP
        numbers.since_entry = 0
        self.index_failed = self.has_damage = False

    def rebuild(self) -> None:
        """Builds both indexes again from the log."""
        self.reset()
        walked = walk_runs(self.file, 0, self.position, next_offset=self.base_offset)
        visit(walked, Indexing(self), base_offset=self.base_offset)

    # --- append -----------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Where the segment ends, in bytes."""
        return self.numbers.position

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch."""
        return self.numbers.first_timestamp

    @property
    def max_timestamp(self) -> int:
        return self.numbers.max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the batch with the greatest timestamp."""
        return self.numbers.offset_of_max_timestamp

    # --- park -------------------------------------------------------------------------------------------------------

    @property
    def file(self) -> File:
        """The ``.log``, reopened if the tail is parked. Raises: StorageError."""
        return self.open_file or self._reopen()

    def park(self, fs: FileSystem, admit: Callable[[], None]) -> None:
        """Closes the ``.log``, which is completely synced. The tail's state stays, and its indexes stay mapped; the
        next write reopens the file, after ``admit()``. Readers that hold the file continue with it.

        Raises: StorageError; then it is open as before.
        """
        file = self.open_file
        if file is not None:
            self._release_spare(file)
            self._parked = _Parked(fs, file.path, file.stat().inode, admit)
            self.open_file = None

    def _reopen(self) -> File:
        parked = self._parked
        assert parked is not None, "a tail is open or parked"
        parked.admit()
        file = parked.fs.open(parked.path, write=True)
        found = file.stat()
        if (found.inode, found.size) != (parked.inode, self.position):
            raise StorageError(
                None,
                f"another program changed it while it was closed: it has {found.size} bytes and inode {found.inode},"
                f" expected {self.position} and {parked.inode}",
                parked.path,
            )
        # Blocks ahead of the end only if the file is written to for a while.
        self.numbers.allocated = self.position + UNALLOCATED_BYTES
        self.open_file = file
        return file

    def _release_spare(self, file: File) -> None:
        numbers = self.numbers
        if self._has_spare and numbers.allocated > numbers.position:
            file.truncate(numbers.position)
        self._has_spare = False
        numbers.allocated = numbers.position

    def give_back_spare(self) -> None:
        """Releases the spare blocks that ``seal`` has kept, if it has; without the log's lock. Raises: StorageError."""
        with self._spare_lock:
            if self._owes_spare and self.open_file is not None:
                self._release_spare(self.open_file)
            self._owes_spare = False

    def keep_spare(self) -> None:
        """After this, ``give_back_spare`` does not change the file."""
        with self._spare_lock:
            self._owes_spare = False

    def write(self, buffers: Sequence[memoryview | bytes], size: int, *, sync: bool) -> None:
        """Writes ``size`` bytes at the end; on return they are in the page cache, with ``sync`` on disk.

        On any failure the file is cut back to its last whole batch before the exception is raised, with ``sync`` also
        on disk; if that fails too the outcome is unknown, and PoisonedError or SyncFailedError says so.
        """
        file, numbers = self.open_file or self._reopen(), self.numbers
        position = numbers.position
        end = position + size
        if end > numbers.allocated:
            self._allocate(file, position, size)
        try:
            if sync:
                file.write_and_sync(buffers, position)
            else:
                file.write_all(buffers, position)
            numbers.position = end
        except BaseException as error:
            self.is_doubtful = True  # the first step: an interrupt may come before the next one
            # An interrupt may have come after the sync: a power cut would bring back what was cut.
            self.cut_back(sync=sync and not isinstance(error, SyncFailedError))
            raise

    def _allocate(self, file: File, position: int, size: int) -> None:
        numbers = self.numbers
        ahead = max(min(ALLOCATE_BYTES, numbers.segment_bytes - position), size)  # not beyond where it will roll
        had_spare, self._has_spare = self._has_spare, True
        # If it is refused, as always where several processes write, the next request comes after ``ahead`` bytes.
        self._has_spare = file.allocate(position, ahead) or had_spare
        numbers.allocated = position + ahead

    def cut_unsynced(self, code: int) -> NoReturn:
        """Removes what a write left whose sync has failed. Raises: SyncFailedError; PoisonedError as ``cut_back``."""
        try:
            raise sync_error(OSError(code, os.strerror(code)), self.file.path)
        except BaseException:
            self.cut_back()
            raise

    def cut_back(self, *, sync: bool = False) -> None:
        """Removes what a failed write left after the last whole batch, with ``sync`` also on disk.

        Raises: PoisonedError if that fails too, SyncFailedError.
        """
        try:
            file = self.file
            file.truncate(self.position)
            size = file.size()
        except OSError as error:
            why = f"a failed write could not be cut back: {error}"
            raise PoisonedError(error.errno, why, error.filename) from error
        self.numbers.allocated = self.position
        self._has_spare = False
        if size != self.position:
            raise PoisonedError(None, f"a failed write was cut back to {size} bytes, expected {self.position}")
        if sync:
            file.fdatasync()
        self.is_doubtful = False

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Counts one written batch, and gives it an index entry if one is due (LogSegment.append)."""
        numbers = self.numbers
        if numbers.note(position, size, last_offset, max_timestamp):
            self._add_entry(last_offset, position)
            numbers.since_entry += size

    def note_run(self, run: Run) -> None:
        """As ``note`` of every batch of ``run``."""
        numbers = self.numbers
        notes = index_notes(
            run,
            numbers.max_timestamp,
            numbers.offset_of_max_timestamp,
            numbers.since_entry,
            numbers.index_interval_bytes,
        )
        if run.position + run.start == 0:
            numbers.first_timestamp = notes.first_timestamp
        if self.index_failed:
            numbers.since_entry += run.stop - run.start
        else:
            added_to = self._add_entries(notes.entries)
            numbers.since_entry = run.position + run.stop - added_to if self.index_failed else notes.since_entry
        numbers.max_timestamp, numbers.offset_of_max_timestamp = notes.max_timestamp, notes.offset_of_max_timestamp

    def _add_entries(self, rows: array[int]) -> int:
        """Adds the entries of ``rows`` to both indexes (``_search.offset_entries``), up to the first that fails.

        As many at a time as fit the mappings: what is stored, and when a file grows, is as with one after another.
        Returns the position of the last one.
        """
        offsets, times, numbers = self.offset_index, self.time_index, self.numbers
        count = len(rows) // 4
        number = 0
        while number < count and not self.index_failed:
            stop = min(count, number + offsets.room, number + times.room)
            if stop > number and times.takes_rows(rows, number, stop) and offsets.append_rows(rows, number, stop):
                times.append_rows(rows, number, stop)
                self._indexes_changed()
                number = stop
            else:
                last_offset, position, numbers.max_timestamp, numbers.offset_of_max_timestamp = rows[
                    4 * number : 4 * number + 4
                ]
                self._add_entry(last_offset, position)
                number += 1
        return rows[4 * number - 3] if number else 0

    def note_damage(self) -> None:
        """Gives the next batch an index entry: if more damage follows, nothing else confirms that batch."""
        self.numbers.since_entry = self.numbers.index_interval_bytes + 1
        self.has_damage = True

    def _add_entry(self, last_offset: int, position: int) -> None:
        if self.index_failed:
            return
        try:
            self.offset_index.append(last_offset, position)
            self._add_time_entry()
        except (StorageError, IndexFullError, InvalidOffsetError) as error:
            self.index_failed = True
            self._counters.index_failures += 1
            logger.warning("%s: no longer indexed until it is reopened: %s", self.offset_index.path, error)
        self._indexes_changed()
        self.numbers.since_entry = 0

    def _add_time_entry(self, *, final: bool = False) -> None:
        numbers = self.numbers
        if numbers.max_timestamp != NO_TIMESTAMP:
            self.time_index.maybe_append(numbers.max_timestamp, numbers.offset_of_max_timestamp, final=final)

    def _indexes_changed(self) -> None:
        """Follows every change of the number of their entries."""
        self.numbers.entry_room = self.entry_room

    @property
    def entry_room(self) -> int:
        """How many entries more both indexes have room for: without any, the next batch needs a new segment."""
        return min(self.offset_index.slots_left, self.time_index.slots_left)

    # --- others -----------------------------------------------------------------------------------------------------

    @property
    def known(self) -> TailState:
        """The input of ``take_in``, except the position."""
        numbers = self.numbers
        return (
            numbers.first_timestamp,
            numbers.max_timestamp,
            numbers.offset_of_max_timestamp,
            numbers.since_entry,
            self.offset_index.entry_count,
            self.time_index.entry_count,
        )

    def take_in(self, position: int, known: TailState) -> None:
        """Continues where another process has stopped appending.

        Raises: CorruptIndexError if an index lacks entries that it should have: the tail is then unusable.
        """
        offset_count, time_count = known[-2:]
        self.offset_index.take_in(offset_count)
        self.time_index.take_in(time_count)
        self._indexes_changed()
        numbers = self.numbers
        numbers.position = position
        numbers.first_timestamp, numbers.max_timestamp, numbers.offset_of_max_timestamp, numbers.since_entry = known[:4]

    # --- truncate, flush, close -------------------------------------------------------------------------------------

    def truncate_to(self, offset: int, position: int) -> None:
        """Cuts the log at ``position``, where the batch with ``offset`` begins, and removes index entries from
        there."""
        file, numbers = self.file, self.numbers
        file.truncate(position)
        file.fdatasync()
        numbers.position = numbers.allocated = position
        self._has_spare = False
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self._indexes_changed()
        numbers.clear_timestamps()
        self.has_damage = False
        if not self._resume():
            self.rebuild()

    def seal(self, *, sync: bool, keep_spare: bool = False) -> None:
        """Adds the last time entry, trims the indexes to their entries, and releases spare blocks.

        The indexes stay readable: readers, which have no lock, may have found them before. Each is in memory now.

        ``sync``: also puts the indexes on disk if possible. They are hints, so a failure is only noted.
        ``keep_spare``: the blocks stay until ``give_back_spare``.
        """
        try:
            self._add_time_entry(final=True)
        except (StorageError, IndexFullError, InvalidOffsetError) as error:
            self._counters.index_failures += 1
            logger.warning("%s: no last entry: %s", self.time_index.path, error)
        for index in (self.offset_index, self.time_index):
            try:
                index.seal(sync=sync)
            except StorageError as error:
                self.has_unsynced_indexes |= sync
                self._counters.index_failures += 1
                logger.warning("%s: not trimmed: %s", index.path, error)
        if keep_spare:
            self._owes_spare = True
        elif self.open_file is not None:
            self._release_spare(self.open_file)

    def sync_indexes(self, fs: FileSystem) -> None:
        """Puts the indexes of a tail that was sealed without a sync on disk, if possible; they are hints."""
        for index in (self.offset_index, self.time_index):
            try:
                fs.open(index.path).fdatasync()
            except FileMissingError:
                pass  # a truncation has removed the segment in the meantime
            except StorageError as error:
                self.has_unsynced_indexes = True
                logger.warning("%s: not synced: %s", index.path, error)

    def abandon(self) -> None:
        """Drops the files unchanged. Readers that hold the ``.log`` continue with it, but without the indexes."""
        self.offset_index.close(trim=False)
        self.time_index.close(trim=False)

    def check(self) -> None:
        file = self.open_file
        if file is not None:
            assert file.size() == self.position, f"{file.path}: {file.size()} bytes, known {self.position}"
        for position, entry in ((e.position, e) for e in self.offset_index.entries()):
            assert position < self.position, f"{self.offset_index.path}: {entry} points past the log's end"
        assert self.numbers.entry_room == self.entry_room, f"{self.offset_index.path}: changed without a note of it"
