"""A log opened for reading: it takes no lock, writes nothing, repairs nothing, and can follow a live writer.

It learns everything from the files. It lists the directory until the listing is stable, walks the last segment from its
last believable index entry, and ends where nothing whole follows: with a live writer that means "not yet", with a dead
one it is what recovery would cut. If the writer is kstore with durability "sync", in this boot of the machine, reads
end at the durable end in ``kstore.state``. If whole batches end below a durable end given there, the offsets between
are lost: recovery would fence them, and reads raise for them.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from typing import NamedTuple

from kstore.engine.change.growth import wait_beyond
from kstore.engine.directory import OWN_NAMES, is_log
from kstore.engine.ends import Ends
from kstore.engine.head_search import HeadSearch
from kstore.engine.index_repairs import ScannedSegment
from kstore.engine.known_names import LISTINGS_MAX, KnownNames
from kstore.engine.open.segment_end import SegmentEnd, segment_end
from kstore.engine.open.swap import replaced_by, swapped_bases
from kstore.engine.producers import LogProducers
from kstore.engine.segments import LogSegments
from kstore.errors import CorruptDataError, NotALogError
from kstore.files._locks import OwnedLock
from kstore.files.checkpoint import EpochEntry, read_leader_epochs
from kstore.files.fs import File, FileStat
from kstore.files.paths import (
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    DirectoryNames,
    classify,
    segment_name,
)
from kstore.files.platform import boot_id
from kstore.files.remote import RemoteFiles
from kstore.files.watch import DirectoryWatch
from kstore.record.batch import BATCH_HEADER_BYTES
from kstore.record.parse import parse_batch
from kstore.record.walk import walk
from kstore.rules.losses import NO_LOSSES, LossRanges, OffsetSpans, joined
from kstore.rules.sequence import KnownProducer
from kstore.scan.visits import whole_batches
from kstore.segment import LogSegment, SegmentContext
from kstore.segments.pin import FilePin
from kstore.state.compaction_state import KSTORE_COMPACTION
from kstore.state.kafka_marks import read_kafka_marks
from kstore.state.leader_epoch import rising
from kstore.state.log_state import LOST_MAX, LogState, StateLook, losses_of, read_state
from kstore.types import RecoveryReport

# A broker creates the offset index of its active segment with the first entry (LazyIndex): until then there may be one
# batch without it. A larger segment than this, which is above the size of any batch by default, has no writer.
ACTIVE_UNINDEXED_BYTES_MAX = 2 << 20


# A last batch up to this size is compared as a whole, in one read with what follows it.
QUIET_READ_BYTES_MAX = 4096


class TailMark(NamedTuple):
    """The last batch that was seen, in segment ``base_offset``; ``end`` is its end."""

    base_offset: int
    end: SegmentEnd


class _SearchedTail(NamedTuple):
    """The bytes after ``end`` to the end of the file in ``stat``, in which no whole batch is.

    They begin with ``head``, which is no batch's. The next batch is written there: so it is noticed even if the time of
    its write is that of the write before it.
    """

    base_offset: int
    end: SegmentEnd
    stat: FileStat
    head: bytes


class _Quiet(NamedTuple):
    """What stays as it is while a log of kstore's does not change: if it does, a look finds nothing new.

    A log that was closed cleanly is in ``clean_stat``, that of its last ``.log``. In every other one, an append changes
    the bytes after the last batch, and a truncation those of the batch: both are in ``pieces`` of position, size and
    bytes.
    """

    state_data: bytes
    clean_stat: FileStat | None
    pieces: tuple[tuple[int, int, bytes], ...]


class _ChangedError(Exception):
    """Parts of the log that were read at different moments contradict each other."""


class LogView:
    """The readable part of a log at one moment. Thread-safe: ``refresh`` is guarded, and publishes by one store."""

    def __init__(self, context: SegmentContext, *, known_end: int | None = None) -> None:
        """``known_end``: an end that the log had. A reader of what comes before it need not search the last segment for
        the end that it has now, unless it reads that segment, or suspects something."""
        self.context = context
        self._known_end = known_end
        self.report: RecoveryReport = RecoveryReport()
        self._lock = OwnedLock()
        self._mark: TailMark | None = None
        self._searched: _SearchedTail | None = None
        # Two counters that reveal truncations; only together are they conclusive. The state gets a new record before
        # every cut, but also for other reasons. The files show a cut only after it was made.
        self._generation = self._cut_count = 0
        self._inode = 0
        # The segments that were being swapped in at the last look.
        self._swapping: list[int] = []
        self._names = KnownNames(context)
        self._quiet: _Quiet | None = None
        # Whether the last look came to its end, and the listing it used, if a file system keeps listings for a moment.
        self._is_whole = False
        self._listing: object = None
        self._closed = False
        self._watch = DirectoryWatch(context.directory)
        self.segments: LogSegments = LogSegments()
        self.ends: Ends = Ends(0, 0, 0, 0, 0, 0, 0)
        self.losses: LossRanges = NO_LOSSES
        # Durable offsets that neither the files nor the losses in the state have. Kept as long as the state's record
        # stays the same: a read that meets them must not find them forgotten.
        self._missing: OffsetSpans = ()
        self.producers: LogProducers = LogProducers(context, self.segments, (), shows_expired=True)
        self.refresh()

    def search_by_heads(self, search: HeadSearch) -> None:
        """For a reader that asks only for the last stable offset and for aborted transactions: finds them without
        reading records."""
        self.producers.search = search

    def refresh(self) -> None:
        """Looks for changes by the writer. Raises: LogNotFoundError, NotALogError, StorageError."""
        self._refresh(is_suspicious=False)

    def _refresh(self, *, is_suspicious: bool) -> None:
        """``is_suspicious``: compares every segment with its file, even if the directory seems unchanged."""
        with self._lock:
            if is_suspicious:
                self._ask_again()
            elif self._is_whole and self._listing is not None and self._listing is self._listed():
                return  # it was looked at in this moment
            for _ in range(LISTINGS_MAX):
                try:
                    self._look()
                    break
                except (FileNotFoundError, _ChangedError):
                    # Retention, a roll or a truncation changed the files between the listing and the look.
                    self._ask_again()
            else:
                self._look(is_last=True)
            self._listing = self._listed()

    def _listed(self) -> object:
        """What a remote file system still knows from its last listing; None if it lists again.

        None for a broker's log too: where that starts is in a file outside of its directory.
        """
        fs = self.context.fs
        listed = fs.listed(self.context.directory) if isinstance(fs, RemoteFiles) else None
        return listed if listed is not None and KSTORE_STATE in listed else None

    def _ask_again(self) -> None:
        """The next look lists the directory, and takes no name for unchanged."""
        fs = self.context.fs
        if isinstance(fs, RemoteFiles):
            fs.ask_again(self.context.directory)
        self._names.forget()
        self._known_end = None

    def repairs_index_of(self, segment: LogSegment) -> bool:
        """Not in the last segment, which a writer may be using, unless the log was closed cleanly or the segment has
        grown without its indexes, as in a copy of the ``.log`` alone; and not in a remote log, where every reader would
        have to fetch the whole segment."""
        if isinstance(self.context.fs, RemoteFiles):
            return False
        if self.report.clean or segment is not self.segments.last:
            return True
        return segment.lacks_index and segment.size > ACTIVE_UNINDEXED_BYTES_MAX

    def write_indexes(self, segment: LogSegment, scanned: ScannedSegment, cut_count: int) -> bool:
        """Returns False: a view writes nothing, so a rebuilt index stays in memory."""
        return False

    @property
    def cut_count(self) -> int:
        """How many times the log turned out to have been cut or replaced."""
        return self._cut_count

    @property
    def truncation_count(self) -> int:
        """Changes whenever the writer may have cut something; may also change without a cut."""
        return self._generation + self._cut_count

    def notice(self) -> None:
        """Does nothing: a listing costs much more than a lookup, and the file of each segment that is read is compared
        with its name."""

    def settle(self) -> None:
        """Reads a change of the segments that was in progress, and finds every segment that was replaced.

        This is the second look that every reader takes before it believes in damage, or in a gap at a segment's end: a
        broker may have compacted the segment since. If it did, ``truncation_count`` is another one afterwards and
        the reader looks up its offset again. If neither the file nor its neighbours have changed, the damage is real.
        """
        self._refresh(is_suspicious=True)

    def _look(self, *, is_last: bool = False) -> None:
        """Raises: _ChangedError, unless it ``is_last``."""
        was_whole, self._is_whole = self._is_whole, False
        if not was_whole:
            # The last look was interrupted, or met a change: the names may be known, and not the segments.
            self._names.forget()
        look = self._names.look()
        if look.begun is not None:
            assert look.shown is not None
            is_quiet = not look.begun and self._is_quiet(look.shown)
            if is_quiet or self._follow(look.names, look.shown, is_last=is_last):
                self._is_whole = True
                return
            # More has changed than the names show.
            self._names.forget()
            look = self._names.look()
        self._look_at_all(look.names, is_same_directory=look.is_same, is_last=is_last)
        self._is_whole = True

    def _is_quiet(self, shown: StateLook) -> bool:
        """Whether the log, whose names have not changed, is as the last look left it."""
        quiet = self._quiet
        if quiet is None or quiet.state_data != shown.data:
            return False
        if quiet.clean_stat is not None:
            path = self.segments.last.files.path_text(LOG_SUFFIX)
            return self.context.fs.stat(path) == quiet.clean_stat
        file = self.segments.last.named_log_file()
        return all(file.pread(size, position) == data for position, size, data in quiet.pieces)

    def _follow(self, names: DirectoryNames, shown: StateLook, *, is_last: bool) -> bool:
        """Takes in what has come to the end of the log; ``names`` have new segments there, if any.

        Returns False if something else has changed. Raises: as ``_look``.
        """
        state, segments, context = shown.state, self.segments, self.context
        self._quiet = None
        if state is None or not len(segments):
            return False
        bases = names.bases[LOG_SUFFIX]
        new = bases[bisect_right(bases, segments.last.base_offset) :]
        base = new[-1] if new else segments.last.base_offset
        stat = context.fs.stat(context.directory / segment_name(base, LOG_SUFFIX))
        is_clean = state.fits(base, stat)
        generation_before = self._generation
        if not (new or stat.inode == self._inode) or not self._mark_holds(generation_before, is_clean=is_clean):
            return False
        missing = self._take_record(state)
        for each in new:
            segments.last.resize(-1)  # it may have grown before it was sealed
            segments.add(self._segment(each))
        self._inode = stat.inode
        segments.last.resize(stat.size)
        self._set_ends(shown, bases, state.log_start_offset, stat, missing, is_last=is_last)
        return True

    def _look_at_all(self, names: DirectoryNames, *, is_same_directory: bool, is_last: bool) -> None:
        """Compares everything that is known with the ``names``, which were just listed. Raises: as ``_look``."""
        context = self.context
        self._quiet = None
        if not is_log(names):
            raise NotALogError(errno.ENOTDIR, "not a log: it holds no segment", str(context.directory))
        swapped = self._swapped(names)
        self.producers.note_snapshots(names.bases[SNAPSHOT_SUFFIX])
        shown = self._names.state() if KSTORE_STATE in names.others else None
        state = shown.state if shown is not None else None
        if state is not None:
            start_offset: int | None = state.log_start_offset
        else:
            start_offset = read_kafka_marks(context.fs, context.directory).log_start_offset
        generation_before = self._generation
        missing = self._take_record(state)
        self.report.ignored = sorted(name for name in names.others if name not in OWN_NAMES)
        bases = names.bases[LOG_SUFFIX]
        if not bases:
            self._show_empty(names, start_offset or 0)
            return
        stat = context.fs.stat(context.directory / segment_name(bases[-1], LOG_SUFFIX))
        is_clean = state is not None and state.fits(bases[-1], stat)
        known = self._still_known(
            names, swapped, generation_before, is_clean=is_clean, is_same_directory=is_same_directory
        )
        self._take_segments(names, swapped, known, stat)
        self._set_ends(shown, bases, start_offset, stat, missing, is_last=is_last)

    def _take_record(self, state: LogState | None) -> OffsetSpans:
        """Takes the generation and the losses of the record, before anything else is published: readers must not
        silently skip lost offsets. Returns the durable offsets that are still missing."""
        generation_before = self._generation
        if state is not None:
            self._generation = state.generation
        missing = self._missing if self._generation == generation_before else ()
        self.losses = losses_of(state).with_lost(missing, LOST_MAX)
        return missing

    def _show_empty(self, names: DirectoryNames, start: int) -> None:
        """Shows a log without a segment: its creation or its emptying has not finished."""
        if len(self.segments):
            # New files may have old names, and even the same inode.
            self._forget(names)
        self.segments.replace([])
        self._missing = ()
        self._publish(start, start, start, start, 0)

    def _still_known(
        self,
        names: DirectoryNames,
        swapped: Sequence[int],
        generation_before: int,
        *,
        is_clean: bool,
        is_same_directory: bool,
    ) -> dict[int, LogSegment]:
        """The segments of which what is known still holds, by their bases; counts a cut if others were replaced."""
        known = dict(zip(self.segments.bases, self.segments, strict=True))
        if not self._mark_holds(generation_before, is_clean=is_clean):
            # Truncated since, and perhaps written again: nothing known of the tail and its producers holds.
            known.clear()
            self._forget(names)
        if self._was_compacted(names, generation_before) or swapped != self._swapping:
            # A sealed segment may have been replaced by another one of the same name.
            self._swapping = list(swapped)
            known.clear()
            self.context.handles.clear()
            self._cut_count += 1
        if self._drop_replaced(known, names.bases[LOG_SUFFIX], is_same_directory=is_same_directory):
            self._cut_count += 1
        return known

    def _take_segments(
        self, names: DirectoryNames, swapped: Sequence[int], known: Mapping[int, LogSegment], stat: FileStat
    ) -> None:
        """Makes the map of segments: those that are ``known``, and new ones. ``stat`` is that of the last ``.log``."""
        bases = names.bases[LOG_SUFFIX]
        last = known.get(bases[-1]) or self._segment(bases[-1], lacks_index=bases[-1] not in names.indexed)
        if stat.inode != self._inode:
            # A different file with the same name: nothing known of it holds.
            last.forget()
            self._inode = stat.inode
            self._cut_count += 1
        last.resize(stat.size)
        if list(known) == bases and list(known.values()) == list(self.segments):
            return
        # After a crash in a swap, the indexes may have either name.
        indexed = names.indexed.union(swapped)
        for base, segment in known.items():
            if base != bases[-1]:
                segment.resize(-1)  # it may have grown before it was sealed
        sealed = (
            known.get(base)
            or self._segment(base, state=SWAP_SUFFIX if base in swapped else "", lacks_index=base not in indexed)
            for base in bases[:-1]
        )
        self.segments.replace([*sealed, last])

    def _publish(self, start: int, high_watermark: int, end_offset: int, base_offset: int, position: int) -> None:
        """Shows readers where the log begins and ends, by one store."""
        # Recovery belongs to the writer: a view knows only that it need not look below the start.
        self.ends = Ends(start, start, high_watermark, high_watermark, end_offset, base_offset, position)

    def _set_ends(
        self,
        shown: StateLook | None,
        bases: Sequence[int],
        start_offset: int | None,
        stat: FileStat,
        missing: OffsetSpans,
        *,
        is_last: bool,
    ) -> None:
        """Finds where the log ends and shows it to readers. ``stat`` is that of the last segment's ``.log``."""
        self._quiet = None
        state = shown.state if shown is not None else None
        start = max(start_offset or 0, bases[0])
        last = self.segments.last
        if self._known_end is not None and self._known_end <= bases[-1]:
            # A segment follows the end, so it was sealed there, and a reader up to it needs no other end.
            self._missing, self._mark, end = missing, None, max(start, bases[-1])
            self._publish(start, end, end, bases[-1], 0)
            return
        is_clean = state is not None and state.fits(bases[-1], stat)
        if is_clean:
            assert state is not None
            end_offset, position = state.durable_end, stat.size
            self._mark = None
        else:
            end_offset, position = self._find_end(last, stat, state.durable_end if state is not None else 0)
            if state is not None:
                end_offset = losses_of(state).end_after(end_offset, state.durable_end)
                if max(end_offset, start) < state.durable_end:
                    if self._is_unchanged(state, bases[-1], stat):
                        missing = joined(missing, [(max(end_offset, start), state.durable_end - 1)])
                        self.losses = losses_of(state).with_lost(missing, LOST_MAX)
                        end_offset = state.durable_end
                    elif not is_last:
                        raise _ChangedError
        self._missing = missing
        self.report.clean = is_clean
        high_watermark = end_offset
        if state is not None and not state.clean and state.durability == "sync" and state.boot_id == boot_id():
            high_watermark = min(end_offset, state.durable_end)
        high_watermark = max(high_watermark, start)
        self._publish(start, high_watermark, max(end_offset, start), bases[-1], position)
        if state is not None and not missing:
            assert shown is not None
            pieces = () if is_clean else self._pieces(last, stat.size)
            if is_clean or pieces:
                self._quiet = _Quiet(shown.data, stat if is_clean else None, pieces)

    def _is_unchanged(self, state: LogState, last_base: int, stat: FileStat) -> bool:
        """Whether ``state`` and the listing show the same moment: no roll and no truncation came between them.

        Nor an append, if ``stat`` of the last ``.log`` may come from a listing that was made before.
        """
        fs = self.context.fs
        if self._listed() is not None:
            self._ask_again()
            if fs.stat(self.context.directory / segment_name(last_base, LOG_SUFFIX)) != stat:
                return False
        names = classify(self._names.list())
        now = read_state(self.context.fs, self.context.directory / KSTORE_STATE)
        bases = names.bases[LOG_SUFFIX]
        return now is not None and now.generation == state.generation and bool(bases) and bases[-1] == last_base

    def _segment(self, base: int, *, state: str = "", lacks_index: bool = False) -> LogSegment:
        segment = LogSegment(self.context, base, state=state, lacks_index=lacks_index)
        segment.pin = FilePin(is_active=not isinstance(self.context.fs, RemoteFiles))
        return segment

    def _is_lost(self, segment: LogSegment) -> bool:
        pin = segment.pin
        return pin.is_held and pin.is_lost(self.context.fs, segment.files.path_text(LOG_SUFFIX))

    def _drop_replaced(self, known: dict[int, LogSegment], bases: list[int], *, is_same_directory: bool) -> bool:
        """Removes from ``known`` the segments that another program has replaced; returns whether there were any.

        A broker's cleaner leaves no record of its work. Its files show it: a name belongs to another file now, or a
        segment no longer ends where it did. Raises: FileMissingError if a name has gone since the listing.
        """
        old = list(known)
        follows = dict(pairwise(bases))
        replaced = []
        for base, following in zip_longest(old, old[1:]):
            if base not in follows:
                continue  # it is gone, or is the last one
            has_moved = following is not None and following != follows[base]
            if has_moved or not (is_same_directory or not self._is_lost(known[base])):
                replaced.append(base)
        for base in replaced:
            # A reader that has it open may finish: that file holds all of its records.
            known.pop(base).retire()
        return bool(replaced)

    def _swapped(self, names: DirectoryNames) -> list[int]:
        """The segments that are being swapped in; they count as present, and the segments they replace as gone."""
        context, present = self.context, names.bases[LOG_SUFFIX]
        # The last segment is never compacted: a swap that would replace it cannot be believed.
        swapped = [base for base in swapped_bases(names) if present and base < present[-1]]
        for base in swapped:
            gone = set(replaced_by(context, base, present))
            present[:] = sorted({base, *present} - (gone - {base}))
        return swapped

    def _was_compacted(self, names: DirectoryNames, generation_before: int) -> bool:
        """Whether a swap may have happened since the last look: each one gives the state a new generation."""
        return KSTORE_COMPACTION in names.others and self._generation != generation_before

    def _forget(self, names: DirectoryNames) -> None:
        """Drops what is known of a log that was cut."""
        self._mark = self._searched = None
        self._cut_count += 1
        self.context.handles.clear()
        snapshots = names.bases[SNAPSHOT_SUFFIX]
        search = self.producers.search
        self.producers = LogProducers(self.context, self.segments, snapshots, shows_expired=True, search=search)

    def _find_end(self, segment: LogSegment, stat: FileStat, known_end: int) -> tuple[int, int]:
        """The offset and position after the last whole batch; continues from the last look.

        A tail without a whole batch, as in a file that a broker has allocated ahead, is searched once, and again when
        the file changes.
        """
        mark, searched, size = self._mark, self._searched, stat.size
        file = segment.log_file()
        if searched is not None and (searched.base_offset, searched.stat) == (segment.base_offset, stat):
            end = searched.end
            if file.pread(BATCH_HEADER_BYTES, end.position) == searched.head:
                return end.offset, end.position
        if mark is None or mark.base_offset != segment.base_offset or mark.end.position > size:
            end = segment_end(segment, size, known_end=known_end)
        else:
            end = mark.end
            for item in whole_batches(walk(file, end.position, size, next_offset=end.offset, known_end=known_end)):
                end = SegmentEnd.after(*item)
        # Not the present content: another batch may have been written there since the walk.
        self._mark = TailMark(segment.base_offset, end) if end.batch_head else None
        self._searched = _searched_tail(segment.base_offset, end, stat, file)
        return end.offset, end.position

    def _pieces(self, segment: LogSegment, size: int) -> tuple[tuple[int, int, bytes], ...]:
        """What to look at before the log counts as unchanged; none if its tail may be a batch that is being written."""
        mark, searched = self._mark, self._searched
        end = SegmentEnd(segment.base_offset, 0, 0) if mark is None else mark.end
        if end.position >= size:
            tail = b""
        elif searched is not None:
            tail = searched.head
        else:
            return ()
        head, head_at, end_at = end.batch_head, end.batch_position, end.position
        if end_at - head_at > QUIET_READ_BYTES_MAX:
            return (head_at, len(head), head), (end_at, BATCH_HEADER_BYTES, tail)
        both_size = end_at - head_at + BATCH_HEADER_BYTES
        both = segment.named_log_file().pread(both_size, head_at)
        if not both.startswith(head) or both[end_at - head_at :] != tail:
            return ()  # it has changed since
        return ((head_at, both_size, both),)

    def _mark_holds(self, generation_before: int, *, is_clean: bool) -> bool:
        """Whether the last batch that was seen is still in its place.

        An empty segment has no batch. A cleanly closed log stays as it is, so the state is enough: it gets a new record
        before every cut. Below an empty segment the whole log may have been replaced.
        """
        mark = self._mark
        if mark is None:
            if not len(self.segments):
                return True  # nothing was known
            return self._generation == generation_before and (
                self.ends.position == 0 or (self.report.clean and is_clean)
            )
        try:
            head = mark.end.batch_head
            return self._file_now(mark.base_offset).pread(len(head), mark.end.batch_position) == head
        except FileNotFoundError:
            return False

    def _file_now(self, base_offset: int) -> File:
        """A segment's ``.log`` as its name leads there now."""
        context, last = self.context, self.segments.last
        if isinstance(context.fs, RemoteFiles) and base_offset == last.base_offset:
            # The walk that follows uses what this reads ahead, and nothing that was read before.
            context.handles.drop((last.contents, LOG_SUFFIX))
            return last.named_log_file()
        return context.fs.open(context.directory / segment_name(base_offset, LOG_SUFFIX))

    @property
    def closed(self) -> bool:
        return self._closed

    def wait_beyond(self, offset: int, timeout: float | None) -> bool:
        """Waits until the high watermark passes ``offset``; False after ``timeout`` seconds, or if it is closed."""
        return wait_beyond(self, self._watch, self.context.clock, offset, timeout)

    def last_stable_offset(self) -> int:
        """See ``LogWriter.last_stable_offset``."""
        for _ in range(LISTINGS_MAX):
            try:
                return self._last_stable_offset()
            except FileNotFoundError:
                self.refresh()  # a segment was removed in the meantime
        return self._last_stable_offset()

    def _last_stable_offset(self) -> int:
        with self._lock:
            ends = self.ends
            unstable = self.producers.up_to(ends.high_watermark, ends.position).first_unstable_offset
        if unstable is None:
            return ends.high_watermark
        return max(min(unstable, ends.high_watermark), ends.start_offset)

    def leader_epochs(self) -> Sequence[EpochEntry]:
        """See ``LogSource.leader_epochs``: those of the file as it is now. A damaged one counts as missing."""
        with suppress(CorruptDataError):
            if entries := rising(read_leader_epochs(self.context.fs, self.context.directory / LEADER_EPOCHS)):
                return entries
        return (EpochEntry(0, self.ends.start_offset),)

    def known_producers(self) -> tuple[KnownProducer, ...]:
        """See ``LogWriter.known_producers``."""
        for _ in range(LISTINGS_MAX):
            try:
                return self._known_producers()
            except FileNotFoundError:
                self.refresh()  # a segment was removed in the meantime
        return self._known_producers()

    def _known_producers(self) -> tuple[KnownProducer, ...]:
        with self._lock:
            return self.producers.known(self.ends.end_offset, self.ends.position)

    def close(self) -> None:
        self._closed = True
        self._watch.close()
        self.context.handles.clear()


def _searched_tail(base_offset: int, end: SegmentEnd, stat: FileStat, file: File) -> _SearchedTail | None:
    """What to remember of a search; None if the tail is empty, or may be a batch that is being written."""
    if end.position >= stat.size:
        return None
    head = file.pread(BATCH_HEADER_BYTES, end.position)
    try:
        parse_batch(head, header_only=True)
    except CorruptDataError:
        return _SearchedTail(base_offset, end, stat, head)
    return None
