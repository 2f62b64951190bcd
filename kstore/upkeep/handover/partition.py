"""One partition at a handover: opened and closed cleanly, read whole, and its indexes checked against its batches.

A broker that finds the marker of a clean stop trusts every index: a wrong one makes it skip records silently. So each
entry is checked, and the indexes of a segment with a wrong one are rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kstore.clock import Clock
from kstore.config import LogConfig
from kstore.engine.open.opening import load
from kstore.engine.open.segment_end import segment_end
from kstore.engine.view import LogView
from kstore.engine.writer import LogWriter, lone_writer
from kstore.errors import CorruptDataError, FileMissingError, LockedError, StorageError
from kstore.files.fs import FileSystem
from kstore.files.lock import DirectoryLock
from kstore.files.log_lock import lock_past_lone_writers
from kstore.files.paths import (
    INDEX_SUFFIX,
    KSTORE_STATE,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    classify,
)
from kstore.index import TimeIndex
from kstore.record.batch import Batch
from kstore.record.walk import Damage
from kstore.rules.handover import EpochTrack
from kstore.scan.visits import RecordCheck, Visitor, visit
from kstore.segment import LogSegment, SegmentContext
from kstore.segments.places import START
from kstore.state.kafka_marks import KafkaMarks, read_kafka_marks
from kstore.state.log_state import LogState, losses_of, read_state
from kstore.types import NO_TIMESTAMP, CorruptRange, RecoveryReport, TimestampOffset
from kstore.upkeep.handover.store import ForgottenLoss

LOCK_KIND = "handover"
OPEN_FILES_MAX = 8


class Facts(NamedTuple):
    """The contents of a log that was read whole.

    ``whole_end`` is the offset after the last batch of the last segment, or its base: where a broker continues.
    ``batch_end`` is the offset after the last batch of all, or the log's start: a consumer's position gets no further.
    ``misindexed`` are the bases of the segments whose indexes are wrong or missing. ``empty`` are those of the segments
    before the last that hold nothing.
    """

    first_base: int
    start_offset: int
    end_offset: int
    whole_end: int
    batch_end: int
    damage: list[CorruptRange]
    epochs: EpochTrack
    misindexed: list[int]
    empty: list[int]


class Partition:
    """The log in ``path``; nothing stays open between two calls."""

    def __init__(self, fs: FileSystem, clock: Clock, owner: TopicPartition, path: Path, mode: int) -> None:
        self.owner = owner
        self.path = path
        config = LogConfig(file_mode=mode)
        self._context = SegmentContext.alone(fs, path, config, clock=clock, open_files_max=OPEN_FILES_MAX)
        self.names = classify(fs.list(path))

    # --- what is known about it --------------------------------------------------------------------------------------

    def state(self) -> LogState | None:
        return read_state(self._context.fs, self.path / KSTORE_STATE)

    def losses(self) -> list[ForgottenLoss]:
        """The losses that only ``kstore.state`` records."""
        losses, name = losses_of(self.state()), str(self.owner)
        lost = [ForgottenLoss(name, *part, False) for span in losses.lost for part in losses.unaccepted(*span)]
        return sorted(lost + [ForgottenLoss(name, *span, True) for span in losses.accepted])

    def marks(self) -> KafkaMarks:
        return read_kafka_marks(self._context.fs, self.path)

    def state_fits(self) -> bool:
        """Whether kstore closed the log cleanly, and no other program has written to it since."""
        state, last = self.state(), self._last_segment()
        return (
            state is not None
            and last is not None
            and state.fits(last.base_offset, self._context.fs.stat(last.path(LOG_SUFFIX)))
        )

    def end_in_files(self) -> int | None:
        """The offset after the last batch, if the files end with a whole one."""
        last = self._last_segment()
        if last is None:
            return None
        try:
            end = segment_end(last, last.size)
            return end.offset if end.position == last.size else None
        finally:
            self._context.handles.clear()

    def is_closed(self) -> bool:
        """Whether the last writer, kstore or a broker, closed it cleanly: opening it scans nothing."""
        if self._context.fs.exists(self.path / KSTORE_STATE):
            return self.state_fits()
        marks = self.marks()
        return marks.clean and marks.recovery_point is not None and marks.recovery_point == self.end_in_files()

    def _last_segment(self) -> LogSegment | None:
        bases = classify(self._context.fs.list(self.path)).bases[LOG_SUFFIX]
        return LogSegment(self._context, bases[-1]) if bases else None

    def look(self) -> tuple[int, int]:
        """The start and the end offset that a reader sees."""
        view = LogView(self._context)
        try:
            return view.ends.start_offset, view.ends.end_offset
        finally:
            view.close()

    # --- what changes it --------------------------------------------------------------------------------------------

    def open_and_close(self, action: Callable[[LogWriter], object] | None = None) -> RecoveryReport:
        """Opens the log for writing, which recovers it, runs ``action`` on it, and closes it cleanly.

        The caller holds the store's lock: ``Log`` would check it, and refuse. Raises: as ``Log``.
        """
        lock = lock_past_lone_writers(self.path, kind=LOCK_KIND, mode=self._context.config.file_mode)
        try:
            writer = lone_writer(load(self._context, "sync"), lock)
        except BaseException:
            lock.release()
            raise
        try:
            if action is not None:
                action(writer)
        finally:
            writer.close()
        return writer.report

    def take(self, end_offset: int) -> DirectoryLock:
        """The lock of the log, which must still end at ``end_offset``, cleanly closed. Raises: LockedError."""
        lock = lock_past_lone_writers(self.path, kind=LOCK_KIND, mode=self._context.config.file_mode)
        state = self.state()
        if state is None or state.durable_end != end_offset or not self.state_fits():
            lock.release()
            raise LockedError(None, "another program wrote to it during the handover", str(self.path))
        return lock

    def sync(self) -> None:
        """Puts every file of every segment on disk: the marker will make readers trust them.

        Raises: SyncFailedError, StorageError.
        """
        fs = self._context.fs
        for base_offset in classify(fs.list(self.path)).bases[LOG_SUFFIX]:
            segment = LogSegment(self._context, base_offset)
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                with suppress(FileMissingError):
                    file = fs.open(segment.path(suffix), write=True)
                    file.fdatasync()
                    file.close()
        fs.sync_dir(self.path)

    def rebuild_indexes(self, base_offset: int) -> None:
        """Rebuilds the offset and the time index of a segment."""
        segment = LogSegment(self._context, base_offset)
        segment.activate(empty_indexes=True).rebuild()
        segment.seal()

    # --- what is in it ----------------------------------------------------------------------------------------------

    def read_through(self) -> Facts:
        """Checks every batch, record and index entry; changes nothing.

        At the end of a log that no writer closed it ignores what recovery would cut. Raises: StorageError.
        """
        state = self.state()
        closed = self.is_closed()
        view = LogView(self._context)
        try:
            ends = view.ends
            segments = list(view.segments)
            contents = _Contents(self._context.config.max_batch_bytes_uncompressed)
            whole_end, batch_end = ends.end_offset, ends.start_offset
            for segment, stop in zip(segments, [*(each.base_offset for each in segments[1:]), None], strict=False):
                whole_end = contents.read(segment, ends.end_offset if stop is None else stop, is_last=stop is None)
                if whole_end > segment.base_offset:
                    batch_end = max(batch_end, whole_end)
            damage, misindexed = contents.damage, contents.misindexed
            if not closed and segments and misindexed[-1:] == [segments[-1].base_offset]:
                misindexed.pop()  # a killed writer did not finish them; the next open does
            if damage and not closed and damage[-1].last >= ends.end_offset:
                known_end = state.durable_end if state is not None else 0
                if damage[-1].first >= known_end:
                    damage.pop()
            first_base = segments[0].base_offset if segments else ends.start_offset
            empty = [segment.base_offset for segment in segments[:-1] if not segment.size]
            return Facts(
                first_base,
                ends.start_offset,
                ends.end_offset,
                whole_end,
                batch_end,
                damage,
                contents.epochs,
                misindexed,
                empty,
            )
        finally:
            view.close()


class _Contents(Visitor):
    """What the segments of a log hold, read one after the other."""

    def __init__(self, max_bytes_uncompressed: int) -> None:
        self.damage: list[CorruptRange] = []
        self.epochs = EpochTrack()
        # The bases of the segments with a wrong index.
        self.misindexed: list[int] = []
        self._check = RecordCheck(max_bytes_uncompressed, self._refuse)

    def read(self, segment: LogSegment, stop: int, *, is_last: bool) -> int:
        """Reads a segment, which ends before offset ``stop``; returns the offset after its last batch."""
        self._path, self._stop, self._is_last = str(segment.path(LOG_SUFFIX)), stop, is_last
        indexes = _IndexCheck(segment)
        # To the end of the file: in a log that is not closed, a view skips what is unreadable there.
        size = segment.context.fs.stat(segment.path(LOG_SUFFIX)).size
        walk = segment.walk_from(START, size, offset_stop=stop)
        end = visit(walk, self._check, self, indexes, base_offset=segment.base_offset)
        if not indexes.hold():
            self.misindexed.append(segment.base_offset)
        return end

    def _refuse(self, position: int, batch: Batch, reason: str) -> None:
        self.damage.append(CorruptRange(batch.base_offset, batch.last_offset, position, reason, self._path))

    def note(self, position: int, batch: Batch) -> None:
        self.epochs.note(batch.magic, batch.leader_epoch, batch.base_offset)

    def note_damage(self, damage: Damage) -> None:
        if damage.is_space and self._is_last:
            return
        first, last = damage.first_offset, (self._stop if damage.next_offset is None else damage.next_offset) - 1
        self.damage.append(CorruptRange(first, max(last, first), damage.position, damage.reason, self._path))


class _IndexCheck(Visitor):
    """Checks the two indexes of one segment against its batches, which are noted in order.

    Does not check whether they are what kstore would have written, only whether a lookup can skip a record.
    """

    def __init__(self, segment: LogSegment) -> None:
        self._holds = True
        self._largest = NO_TIMESTAMP
        try:
            segment.offset_index().check()
            segment.time_index().check()
            self._by_position = {entry.position: entry.offset for entry in segment.offset_index().entries()}
            self._times = list(segment.time_index().entries()) or _zero_entry(segment)
        except (StorageError, CorruptDataError):
            self._holds = False
            self._by_position, self._times = {}, []
        self._next_time = 0

    def note(self, position: int, batch: Batch) -> None:
        offset = self._by_position.pop(position, None)
        if offset is not None and offset < batch.base_offset:
            self._holds = False
        while self._next_time < len(self._times) and self._times[self._next_time].offset <= batch.last_offset:
            # Everything before this batch is below the entry's offset.
            if self._largest > self._times[self._next_time].timestamp:
                self._holds = False
            self._next_time += 1
        self._largest = max(self._largest, batch.max_timestamp)

    def hold(self) -> bool:
        """Whether every entry points at the start of a batch, and the last time is that of the latest record."""
        latest = self._times[-1].timestamp if self._times else NO_TIMESTAMP
        return self._holds and not self._by_position and self._next_time == len(self._times) and latest >= self._largest


def _zero_entry(segment: LogSegment) -> list[TimestampOffset]:
    """The entry of a time index that has a single one, of time 0 and the base offset: its bytes are zeros, which
    otherwise are space for entries to come."""
    size = segment.context.fs.stat(segment.path(TIME_INDEX_SUFFIX)).size
    return [TimestampOffset(0, segment.base_offset)] if size == TimeIndex.entry_size else []
