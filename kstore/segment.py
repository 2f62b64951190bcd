"""One segment: an append-only ``.log`` with the indexes that lead into it.

A segment is *sealed* (its files are opened when first read, through the log's bounded cache of handles) or *active*
(it has a ``SegmentTail``, the writer's open files). Only the log's writer, under the log's lock, changes a segment;
reads take no lock: they use positions that were published before. A reader takes ``tail`` once, because a roll may
remove it between two looks.

An index is a hint. A lookup checks its result against the batch header found there. If an index is missing or wrong,
the lookup has it rebuilt (``engine.index_repairs``); if that fails, it walks the segment from its start. Lookups under
the log's lock pass ``repair=False``: a repair may take that lock, and scans the segment.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.config import LogConfig
from kstore.files.fs import File, FileStat, FileSystem
from kstore.files.handles import HandleCache
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from kstore.index import OffsetIndex, TimeIndex
from kstore.indexes.entry_index import INDEX_FAILURES
from kstore.indexes.rebuild import WALK_INTERVALS, RebuiltIndexes
from kstore.metrics import LogCounters
from kstore.record._runs import CheckedBatches, Run, index_notes, walk_run
from kstore.record.batch import BATCH_HEADER_BYTES, Batch
from kstore.record.heads import StopReason, pass_heads
from kstore.record.scan import RUN_BYTES_FIRST
from kstore.record.walk import Damage, walk, walk_runs
from kstore.segments.files import SUFFIXES, SegmentFiles
from kstore.segments.pin import UNPINNED, FilePin, replaced
from kstore.segments.places import NO_SPANS, START, BatchPosition, CheckedSpans, Located, TimeEntry
from kstore.segments.tail import SegmentTail, TailState
from kstore.types import INT64_MAX, NO_OFFSET, NO_TIMESTAMP, OFFSET_MAX, OffsetPosition, TimestampOffset

__all__ = ["UNINDEXED_BYTES", "LogSegment", "SegmentContext"]

Handle = TypeVar("Handle")
Index = TypeVar("Index", OffsetIndex, TimeIndex)

# One step of a header walk reads this much: a few small batches, or the header of a large one.
HEADER_BLOCK_BYTES = 1024
# A long read; a short one is for a few batches.
CHUNK_BYTES = 1 << 20
SHORT_CHUNK_BYTES = 1 << 14
# The end of the log is known: below it a gap of any size is believed.
KNOWN_STOP = OFFSET_MAX - 1
# Walking this few bytes is faster than opening an index.
UNINDEXED_BYTES = 4096


class Repairs(Protocol):
    """Rebuilds indexes: ``engine.index_repairs.IndexRepairs``, which is built on segments and cannot be imported
    here."""

    def repair(self, segment: LogSegment) -> bool: ...

    def kept(self, segment: LogSegment, suffix: str) -> OffsetIndex | TimeIndex | None: ...

    def forget(self, segment: LogSegment) -> None: ...


class SegmentContext(NamedTuple):
    """The state that all segments of one log share. Without ``repairs`` indexes are never rebuilt."""

    fs: FileSystem
    directory: Path
    config: LogConfig
    clock: Clock
    handles: HandleCache
    counters: LogCounters
    repairs: Repairs | None = None
    # What lookups have checked; None for what looks nothing up.
    checked: CheckedBatches | None = None

    @classmethod
    def alone(
        cls,
        fs: FileSystem,
        directory: Path,
        config: LogConfig | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        open_files_max: int | None = None,
    ) -> SegmentContext:
        """The context of a log that is looked at, or changed, by itself: with handles and counters of its own.

        ``open_files_max``: in place of the ``config``'s.
        """
        config = config or LogConfig()
        return cls(fs, directory, config, clock, HandleCache(open_files_max or config.open_files_max), LogCounters())


class LogSegment:
    """One ``.log`` with its indexes; ``base_offset`` is a lower bound of every offset in it."""

    __slots__ = (
        "_context",
        "_has_damage",
        "_retired",
        "_sealed",
        "_size",
        "base_offset",
        "change_count",
        "checked",
        "contents",
        "is_examined",
        "known_largest",
        "lacks_index",
        "pin",
        "state",
        "tail",
    )

    def __init__(
        self, context: SegmentContext, base_offset: int, *, size: int = -1, state: str = "", lacks_index: bool = False
    ) -> None:
        """``lacks_index``: a listing of the directory shows that one of its two searched indexes is missing."""
        self._context = context
        # Stands for its files in caches: another object once they may be other ones. Its base offset does not, since
        # the segment that replaces it has the same one.
        self.contents: object = object()
        # What need not be checked again before it is sent; holds for the ``contents`` it names.
        self.checked: CheckedSpans = NO_SPANS
        self.lacks_index: bool = lacks_index
        # Whether its indexes were checked against its batches, which is done once. Guarded by the repairs.
        self.is_examined: bool = False
        # Counts the changes that make it another segment, for a scan that is under way.
        self.change_count: int = 0
        self.base_offset: int = base_offset
        # See ``SegmentFiles``.
        self.state: str = state
        self._retired = False
        self.tail: SegmentTail | None = None
        # The tail that was sealed last and still has spare blocks.
        self._sealed: weakref.ref[SegmentTail] | None = None
        self._size = size
        self.known_largest: TimestampOffset | None = None  # as it was sealed, or looked up
        self._has_damage = False
        self.pin: FilePin = UNPINNED

    def __repr__(self) -> str:
        return f"LogSegment({self.path(LOG_SUFFIX)}, active={self.tail is not None})"

    # --- open -------------------------------------------------------------------------------------------------------

    @property
    def files(self) -> SegmentFiles:
        """Its files, by their names."""
        context = self._context
        return SegmentFiles(context.fs, context.directory, self.base_offset, self.state, context.config.file_mode)

    def path(self, suffix: str) -> Path:
        return self.files.path(suffix)

    def create(self) -> None:
        """See ``SegmentFiles.create``."""
        self.files.create()
        self._size = 0

    def begin(self) -> SegmentTail:
        """See ``SegmentTail.create``, also for its errors; the caller syncs the directory."""
        self.tail = tail = SegmentTail.create(*self._tail_parts())
        return tail

    def activate(self, *, empty_indexes: bool = False) -> SegmentTail:
        """Opens the segment for appending, at the end of its file; indexes that do not fit are rebuilt.

        ``empty_indexes`` leaves them empty, for a caller that notes every batch again.
        """
        if self.tail is None:
            tail = SegmentTail.open(*self._tail_parts(), empty_indexes=empty_indexes)
            self._drop_handles()
            self.lacks_index = False
            self.tail = tail
        return self.tail

    def rebuild(self) -> SegmentTail:
        """Opens the segment for appending, with indexes built from the log."""
        assert self.tail is None, "open, with indexes that are in use"
        tail = SegmentTail.open(*self._tail_parts(), empty_indexes=True)
        tail.rebuild()
        self._drop_handles()
        self.tail = tail
        return tail

    def join(self, position: int, known: TailState) -> SegmentTail:
        """Opens the segment for appending alongside other processes: see ``SegmentTail.join``, also for its errors."""
        assert self.tail is None, "an open tail is brought up to date, not joined"
        tail = SegmentTail.join(*self._tail_parts(), position=position, known=known)
        self._drop_handles()
        self.tail = tail
        return tail

    def _tail_parts(self) -> tuple[SegmentFiles, LogConfig, Clock, LogCounters]:
        """What a tail is made of. One that was sealed before leaves the file alone from now on."""
        self.keep_spare()
        context = self._context
        return self.files, context.config, context.clock, context.counters

    @property
    def size(self) -> int:
        """Bytes of whole batches, as far as known."""
        tail = self.tail
        if tail is not None:
            return tail.position
        if self._size < 0:
            self._size = self._stat().size
        return self._size

    @property
    def known_size(self) -> int:
        """``size``, without a look at the file: -1 if that is needed."""
        return self._size if self.tail is None else self.tail.position

    def _stat(self) -> FileStat:
        path = self.files.path_text(LOG_SUFFIX)
        return self.pin.hold(self._context.fs.stat(path), path)

    def mtime_ms(self) -> int:
        """When the ``.log`` was last written to, ms since the epoch."""
        stat = self._stat()
        if self.tail is None and self._size < 0:
            self._size = stat.size
        return stat.mtime_ns // 1_000_000

    def size_in(self, file: File) -> int:
        """``size``, for a caller that has the ``.log`` open: asking an open file is cheaper than by its name."""
        if self.tail is not None or self._size >= 0:
            return self.size
        change_count = self.change_count
        self._size = size = file.size()
        if self.change_count != change_count:
            self._size = -1  # of the file as it was before the change
        return size

    def resize(self, size: int) -> None:
        """Applies the writer process's changes of the file: its size, -1 to look when it is needed."""
        if size != self._size:
            # First: whoever looks the time up in the meantime then drops it.
            self._changed()
            self.known_largest = None
            self.drop_indexes()  # they have grown with it
        self._size = size

    def forget(self) -> None:
        """Drops everything known and open: the file of this name is another one now, or was left unfinished."""
        self._release()
        self._size = -1
        self.known_largest = None
        self.pin.release()

    def log_file(self) -> File:
        """The open ``.log``, which eviction never closes under a caller. Raises: StorageError; also if replaced."""
        tail = self.tail
        if tail is not None and (open_file := tail.open_file) is not None:
            return open_file
        return self.pin.kept(self.named_log_file(), self._context.fs)

    def named_log_file(self) -> File:
        """``log_file`` of a reader that knows that its name still stands for it."""
        return self._context.handles.get((self.contents, LOG_SUFFIX), self._open_log)

    def _open_log(self) -> File:
        return self.pin.opened(self._own(self._context.fs.open(self.files.path_text(LOG_SUFFIX))))

    def offset_index(self) -> OffsetIndex:
        tail = self.tail
        if tail is not None:
            return tail.offset_index
        return self._context.handles.get((self.contents, INDEX_SUFFIX), lambda: self._open_index(OffsetIndex))

    def time_index(self) -> TimeIndex:
        tail = self.tail
        if tail is not None:
            return tail.time_index
        return self._context.handles.get((self.contents, TIME_INDEX_SUFFIX), lambda: self._open_index(TimeIndex))

    def _open_index(self, of: type[Index]) -> Index:
        """The index, or what was rebuilt of it and is kept in memory."""
        context = self._context
        kept = None if context.repairs is None else context.repairs.kept(self, of.suffix)
        if isinstance(kept, of):
            return kept
        path = self.files.path_text(of.suffix)
        return self._own(of.open_read_only(context.fs, path, self.base_offset, live=True))

    def _own(self, opened: Handle) -> Handle:
        """``opened``, unless the segment is retired: then the file may belong to the segment that replaces it.

        Openers call this before the cache gets the handle. If the segment is retired later, the cache does not keep it.
        """
        if self._retired:
            raise replaced(self.files.path_text(LOG_SUFFIX))
        return opened

    def retire(self) -> None:
        """Its names are about to become another segment's: users of its open files continue, but it opens none
        again."""
        # In this order; see ``_own``.
        self._retired = True
        self._drop_handles()

    # --- repair -----------------------------------------------------------------------------------------------------

    @property
    def context(self) -> SegmentContext:
        """The state that it shares with the other segments of its log."""
        return self._context

    def _repair(self) -> bool:
        """Has the indexes examined, and rebuilt if they are wrong; False if that was done before, or is impossible."""
        repairs = self._context.repairs
        if repairs is None or self.is_examined or self.tail is not None:
            return False
        return repairs.repair(self)

    def examined(self, rebuilt: RebuiltIndexes, size: int) -> None:
        """Records that the indexes are right from now on, and what the scan of ``size`` bytes found. For repairs."""
        self.drop_indexes()
        self.is_examined = True
        self.lacks_index = False
        if size == self._size:
            self.known_largest, self._has_damage = rebuilt.largest, rebuilt.has_damage

    def drop_indexes(self) -> None:
        """Makes the next lookup read both indexes again."""
        self._context.handles.drop((self.contents, INDEX_SUFFIX), (self.contents, TIME_INDEX_SUFFIX))

    def _changed(self) -> None:
        """It is no longer the segment that was, or is being, examined."""
        self.change_count += 1
        if self._context.repairs is not None:
            self._context.repairs.forget(self)

    def use(self, context: SegmentContext) -> None:
        """Applies other settings. The caller has the log's lock."""
        self._context = context
        if self.tail is not None:
            self.tail.use(context.config)

    # --- lookup -----------------------------------------------------------------------------------------------------

    def locate(
        self,
        target: int,
        stop: int,
        *,
        use_index: bool = True,
        file: File | None = None,
        repair: bool = True,
        entry: OffsetPosition | None = None,
    ) -> Located:
        """Where a walk meets every batch that ends at or above offset ``target``.

        Walks headers only, from the index entry for ``target`` on, up to position ``stop``, where a batch ends. If a
        header cannot be right the result is the segment's start: no header on the way can be believed without its CRC.

        ``repair``: a missing or wrong index is rebuilt, once, unless the caller holds the log's lock. ``entry`` is the
        index entry for ``target``, of a caller that has it.
        """
        if entry is not None:
            repair = False
        elif target <= self.base_offset and stop > UNINDEXED_BYTES:
            repair = False  # the index has nothing to say, and reading it may be a request
            entry = OffsetPosition(self.base_offset, 0)
        elif use_index and stop > UNINDEXED_BYTES:
            found = self._entry_for(target)
            repair = repair and not self.is_examined and self.tail is None
            if found is None and repair and target > self.base_offset and self._repair():
                repair = False
                found = self._entry_for(target)
            entry = found or OffsetPosition(self.base_offset, 0)
        else:
            if repair and self.lacks_index:
                self._repair()
            repair = False
            entry = OffsetPosition(self.base_offset, 0)
        position = entry.position
        if position >= stop:
            # While a writer is active its entries may be ahead of what was published.
            if repair and position >= self.size and self._repair():
                return self.locate(target, stop, file=file, repair=False)
            return self._locate_unaided(target, stop) if position else Located(stop, 0, target)
        if file is None:
            file = self.log_file()
        walk_stop = position + WALK_INTERVALS * self._context.config.index_interval_bytes if repair else OFFSET_MAX
        size_max = 0
        hinted = position > 0
        expected = self.base_offset
        block_size = HEADER_BLOCK_BYTES
        while position < stop:
            block = file.pread(block_size if block_size < stop - position else stop - position, position)
            indexed = entry.offset if hinted else None
            stopped = pass_heads(block, stop - position, expected=expected, target=target, indexed=indexed)
            expected = stopped.expected
            if stopped.reason is StopReason.DAMAGED:
                if not hinted or stopped.at:
                    return Located(0, 0, self.base_offset)
                # The index was wrong, or the batch there is damaged.
                if repair and self._repair():
                    return self.locate(target, stop, file=file, repair=False)
                return self._locate_unaided(target, stop)
            if stopped.reason is StopReason.FOUND:
                return Located(position + stopped.at, stopped.size, expected)
            if stopped.at == 0:
                # Fewer bytes than a header: legacy messages may be as small.
                return self._locate_unaided(target, stop) if hinted else Located(position, 0, expected)
            hinted = False
            position += stopped.at
            if position > walk_stop:
                size_max = max(size_max, stopped.size)
                if position > walk_stop + size_max and self._repair():
                    return self.locate(target, stop, file=file, repair=False)
            # After a large batch the next one is usually large too: then only its header is read.
            block_size = BATCH_HEADER_BYTES if stopped.at > HEADER_BLOCK_BYTES else HEADER_BLOCK_BYTES
        return Located(stop, 0, expected)

    def _locate_unaided(self, target: int, stop: int) -> Located:
        """``locate`` without the index."""
        return self.locate(target, stop, use_index=False, repair=False)

    def walk_from(
        self, located: Located, stop: int, *, offset_stop: int = KNOWN_STOP, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[int, Batch] | Damage]:
        """Batches and damage from ``located`` on, up to position ``stop`` and below ``offset_stop`` (``walk``)."""
        return walk(
            self.log_file(),
            located.position,
            stop,
            next_offset=max(located.next_offset, self.base_offset),
            offset_stop=offset_stop,
            hints=lambda: self.positions_after(located.position),
            chunk_bytes=chunk_bytes,
        )

    def runs_from(
        self,
        located: Located,
        stop: int,
        *,
        offset_stop: int = KNOWN_STOP,
        base_stop: int = OFFSET_MAX,
        run_batch_bytes: int = INT64_MAX,
        run_bytes: int = RUN_BYTES_FIRST,
        with_compressed: bool = False,
    ) -> Iterator[Run | tuple[int, Batch] | Damage]:
        """As ``walk_from``, with runs of the plain batches that begin below ``base_stop`` (``walk_runs``)."""
        return walk_runs(
            self.log_file(),
            located.position,
            stop,
            next_offset=max(located.next_offset, self.base_offset),
            offset_stop=offset_stop,
            base_stop=base_stop,
            hints=lambda: self.positions_after(located.position),
            chunk_bytes=CHUNK_BYTES,
            run_batch_bytes=run_batch_bytes,
            run_bytes=run_bytes,
            with_compressed=with_compressed,
        )

    def _entry_for(self, target: int) -> OffsetPosition | None:
        """The index entry to begin with, None if there is no readable index."""
        try:
            return self.offset_index().lookup(target)
        except INDEX_FAILURES:
            return None

    def positions_after(self, position: int) -> Sequence[int]:
        """The indexed positions above ``position``: where batches may begin after damage."""
        try:
            return [entry.position for entry in self.offset_index().entries() if entry.position > position]
        except INDEX_FAILURES:
            return ()

    def largest_timestamp(self, stop: int, *, repair: bool = True) -> TimestampOffset:
        """The greatest timestamp up to position ``stop``, -1 for the end, with the last offset of its first batch.

        (NO_TIMESTAMP, NO_OFFSET) if no record has one. Taken from the last time index entry if its batch agrees, and
        from a walk over what it does not cover, which is remembered: while a segment is written to, or if its last
        entry is damaged, later batches have no entry. ``repair`` as in ``locate``, also before a long walk.
        """
        tail = self.tail
        if tail is not None:
            return TimestampOffset(tail.max_timestamp, tail.offset_of_max_timestamp)
        largest = self.known_largest
        if largest is not None:
            return largest
        change_count = self.change_count
        if stop <= UNINDEXED_BYTES:
            file = self._open_log()
            stop = self.size_in(file) if stop < 0 else stop
            if stop <= UNINDEXED_BYTES:
                largest = largest_of_plain(file, stop, self.base_offset)
        if largest is None:
            located = self._last_time(stop, repair=repair)
            if repair and not self.is_examined and self._is_far(located, stop) and self._repair():
                largest = self.known_largest
                located = self._last_time(stop, repair=False) if largest is None else None
            if largest is None:
                largest = self._walk_for_largest(stop, located)
        self.known_largest = largest
        if self.change_count != change_count:
            self.known_largest = None  # see size_in
        return largest

    @property
    def has_damage(self) -> bool:
        """Whether damage hides timestamps: the search for the largest one, or recovery, has met some."""
        tail = self.tail
        return tail.has_damage if tail is not None else self._has_damage

    def _is_far(self, found: TimeEntry | None, stop: int) -> bool:
        """Whether more follows the last time entry, which a sealed segment has at its end, than an index leaves out."""
        left_out = WALK_INTERVALS * self._context.config.index_interval_bytes
        return found is None or stop - found.position > left_out + found.size

    def _last_time(self, stop: int, *, repair: bool) -> TimeEntry | None:
        """The last time index entry, if its batch agrees."""
        try:
            index = self.time_index()
            last = index.last_entry if index.entry_count else None
        except INDEX_FAILURES:
            return None
        return self._bears_out(last, stop, repair=repair) if last is not None else None

    def _bears_out(self, entry: TimestampOffset, stop: int, *, repair: bool) -> TimeEntry | None:
        """Where the batch with the entry's offset is, if it has the entry's timestamp."""
        located = self.locate(entry.offset, stop, repair=repair)
        for item in self.walk_from(located, stop, chunk_bytes=SHORT_CHUNK_BYTES):
            if isinstance(item, Damage):
                return None
            position, batch = item
            if batch.max_timestamp == entry.timestamp and batch.last_offset >= entry.offset:
                return TimeEntry(entry, position, batch.size, located)
            return None
        return None

    def _walk_for_largest(self, stop: int, known: TimeEntry | None) -> TimestampOffset:
        """``known``: an upper bound for the batches before its offset."""
        largest = known.entry if known is not None else TimestampOffset(NO_TIMESTAMP, NO_OFFSET)
        for item in self.walk_from(known.located if known is not None else START, stop):
            if isinstance(item, Damage):
                self._has_damage = True
            elif item[1].max_timestamp > largest.timestamp:
                largest = TimestampOffset(item[1].max_timestamp, item[1].last_offset)
        return largest

    def offset_before_time(self, timestamp: int, stop: int, *, repair: bool = True) -> int:
        """The offset of the greatest time index entry <= ``timestamp`` that its batch agrees with, else the base. Every
        record before it is older."""
        try:
            entry = self.time_index().lookup(timestamp)
        except INDEX_FAILURES:
            return self.base_offset
        if entry.timestamp == NO_TIMESTAMP:
            return self.base_offset
        if self._bears_out(entry, stop, repair=repair) is None:
            if repair and self._repair():
                return self.offset_before_time(timestamp, stop, repair=False)
            return self.base_offset
        return entry.offset

    def batch_at(self, offset: int, stop: int, *, repair: bool = True) -> BatchPosition | None:
        """The position of the batch that holds ``offset``, or else of the next one; None at the end."""
        located = self.locate(offset, stop, repair=repair)
        for item in self.walk_from(located, stop, chunk_bytes=SHORT_CHUNK_BYTES):
            if isinstance(item, Damage):
                if item.next_offset is None:
                    return None
                continue
            position, batch = item
            if batch.last_offset >= offset:
                return BatchPosition(batch.base_offset, position, batch.size, batch.last_offset)
        return None

    # --- change -----------------------------------------------------------------------------------------------------

    def seal(self, *, sync: bool = False, keep_spare: bool = False) -> None:
        """Seals the active segment (``SegmentTail.seal``); readers that have its indexes continue with them. ``sync``:
        a caller that has cleared the segment's doubt never checks the indexes again."""
        tail = self.tail
        if tail is not None:
            self.known_largest = TimestampOffset(tail.max_timestamp, tail.offset_of_max_timestamp)
            self._has_damage = tail.has_damage
            self._size = tail.position
            self._changed()
            if keep_spare:
                self._sealed = weakref.ref(tail)
            tail.seal(sync=sync, keep_spare=keep_spare)
            self.tail = None

    def keep_spare(self) -> None:
        """Lets the tail that was sealed last leave the file alone: another one may write from now on."""
        if self._sealed is not None and (sealed := self._sealed()) is not None:
            sealed.keep_spare()
        self._sealed = None

    def delete(self, suffixes: Sequence[str] = SUFFIXES) -> None:
        """See ``SegmentFiles.delete``."""
        self._release()
        self.files.delete(suffixes)

    def set_aside(self, path: Path) -> None:
        """See ``SegmentFiles.set_aside``."""
        self._release()
        self.files.set_aside(path)

    def rename(self, to_suffix: str, suffixes: Sequence[str] = SUFFIXES) -> None:
        """See ``SegmentFiles.rename``."""
        self._release()
        self.files.rename(to_suffix, suffixes)

    def _release(self) -> None:
        if self.tail is not None:
            self.tail.abandon()
            self.tail = None
        self._drop_handles()

    def forget_contents(self) -> None:
        """Its file was cut: what caches hold of it is not found again."""
        self._drop_handles()

    def _drop_handles(self) -> None:
        contents, self.contents = self.contents, object()
        self._context.handles.drop((contents, LOG_SUFFIX), (contents, INDEX_SUFFIX), (contents, TIME_INDEX_SUFFIX))
        self._changed()

    def check(self) -> None:
        """Asserts the invariants of the segment and its indexes; reads every header, not the records."""
        self.offset_index().check()
        self.time_index().check()
        size = self.size
        for entry in self.offset_index().entries():
            assert entry.position < size, f"{self}: entry {entry} points past the end at {size}"
        if self.tail is not None:
            self.tail.check()


def largest_of_plain(file: File, stop: int, base_offset: int) -> TimestampOffset | None:
    """The greatest timestamp of the batches in the first ``stop`` bytes, which are read at once; every CRC is checked.

    None if one of them needs a decision: then ``walk`` finds it. Raises: StorageError.
    """
    data = file.pread(stop, 0)
    # The end of the log is known: a gap of any size is believed below it.
    run = walk_run(data, 0, stop, 0, base_offset, stop, OFFSET_MAX - 1, 0, OFFSET_MAX, True)
    if run.stop < stop:
        return None
    notes = index_notes(run, NO_TIMESTAMP, NO_OFFSET, 0, INT64_MAX)
    return TimestampOffset(notes.max_timestamp, notes.offset_of_max_timestamp)
