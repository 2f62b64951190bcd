"""The one writer of a log: all that changes it beside appends, and the answers that only a writer has.

It rolls, flushes, truncates, deletes, applies retention, ends transactions, swaps in what was compacted, and closes,
under the one lock of the append path (``appender``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from kstore.config import NO_LIMIT, LogConfig
from kstore.engine.appender import LogAppender
from kstore.engine.flusher import Flusher
from kstore.engine.index_repairs import ScannedSegment, replace_indexes
from kstore.engine.opening import Loaded, ensure_log_directory, load
from kstore.engine.pending import PendingAppend
from kstore.engine.producers import UnsyncedIndex
from kstore.errors import (
    ClosedError,
    InvalidOffsetError,
    KstoreError,
    LossLimitError,
    OffsetOutOfRangeError,
    SyncFailedError,
    ThreadStartError,
)
from kstore.files.lock import DirectoryLock
from kstore.files.log_lock import WriteLock, lock_in_store, lock_log
from kstore.files.paths import LOG_SUFFIX
from kstore.metrics import MetricValue
from kstore.record._codec import BatchBuffer, EncodedBatch, Record
from kstore.record.builder import build_batch
from kstore.record.control import EndTransactionMarker
from kstore.rules.compact import LastRecord
from kstore.rules.losses import OffsetSpan
from kstore.rules.retain import TrustedClock
from kstore.rules.sequence import Producer
from kstore.segment import LogSegment, SegmentContext
from kstore.segment_tail import SegmentTail
from kstore.state.kafka_marks import KafkaMarks
from kstore.state.log_state import ACCEPTED_MAX
from kstore.types import LOG_APPEND_TIME, Durability, RetentionResult

__all__ = ["Cleanable", "LogOffsets", "LogWriter", "StoreTies", "directory_mode", "open_writer"]

logger = logging.getLogger(__name__)

# Sealed segments that are not on disk, at most: each has a file open, and after a kill recovery reads all of them.
UNFLUSHED_MAX = 16


class Cleanable(NamedTuple):
    """What a compaction begins with: the sealed ``segments``, and what it must not go beyond.

    ``stop_offset`` is where the last of them ends, ``durable_offset`` up to where all is on disk and stays there.
    ``last_records`` are those of live producers; unless ``producers_known`` there seem to be none.
    """

    segments: tuple[LogSegment, ...]
    cut_count: int
    stop_offset: int
    start_offset: int
    stable_offset: int
    durable_offset: int
    last_records: dict[int, LastRecord]
    producers_known: bool


class LogOffsets(NamedTuple):
    """Where a log is: what its store's checkpoints say of it."""

    first_base_offset: int
    start_offset: int
    recovery_point: int
    high_watermark: int
    end_offset: int


class BackgroundFlusher(Protocol):
    def note(self) -> None:
        """There is something to flush. Raises: ThreadStartError."""
        ...

    def note_sealed(self) -> None:
        """There is a sealed segment to flush. Raises: ThreadStartError."""
        ...

    def stop(self) -> None:
        """Returns when the log is not being flushed any more, and will not be."""
        ...


class StoreTies(NamedTuple):
    """What a store that opens a log does for it: it holds the ``root`` lock, has read Kafka's marks, and flushes.

    ``clock`` is the one that retention goes by.
    """

    marks: KafkaMarks
    flusher: Callable[[LogWriter], BackgroundFlusher]
    clock: TrustedClock
    root: DirectoryLock


class LogWriter(LogAppender):
    """Everything that changes a log. Thread-safe."""

    # Whether others may be appending to the last segment, and to its indexes, while no tail is open here.
    _shares_last_segment = False

    def __init__(self, loaded: Loaded, lock: WriteLock, ties: StoreTies | None = None) -> None:
        super().__init__(loaded, lock, is_alone=ties is None)
        self._flusher: BackgroundFlusher = (
            Flusher(self, self._config.flush_ms / 1000) if ties is None else ties.flusher(self)
        )
        self._trusted_clock = (
            TrustedClock(self._clock.now_ms(), self._clock.monotonic()) if ties is None else ties.clock
        )
        if loaded.segments.last.tail is not None:
            self._admit()  # recovery has left it open
        # Held by whoever compacts; taken before the log's lock.
        self.compacting = threading.Lock()
        self._is_closing = False

    def _use(self, config: LogConfig) -> None:
        super()._use(config)
        self._has_retention = (config.retention_ms, config.retention_bytes) != (NO_LIMIT, NO_LIMIT)

    def _flush_soon(self) -> None:
        try:
            self._flusher.note()
        except ThreadStartError:
            self._flush_locked()

    def _flush_sealed_soon(self) -> None:
        if len(self._unflushed) < UNFLUSHED_MAX:
            try:
                self._flusher.note_sealed()
                return
            except ThreadStartError:
                pass
        self._flush_sealed_locked()

    def _retain_after_roll(self) -> None:
        """A roll is when a log can become too large or too old. What fails here is tried again at the next one."""
        self._retention_due = False
        if not self._has_retention:
            return
        try:
            self.apply_retention()
        except KstoreError as error:
            logger.warning("%s: retention: %s", self.context.directory, error)

    # --- roll ---------------------------------------------------------------------------------------------------------

    def roll_if_idle(self) -> bool:
        """Rolls an active segment that nobody has appended to for ``segment_ms``; whether it did."""
        with self._lock:
            tail = self._tail
            if self._closed is not None or self._poisoned is not None or tail is None:
                return False
            if not self._is_idle(tail, self._clock.now_ms()):
                return False
            with self._poisoned_by_syncs():
                self._roll_now()
            return True

    def roll(self) -> int:
        """Begins a new segment, if the active one holds anything; returns the active segment's base offset."""
        with self._changing():
            if self._tail is None:
                self._begin()
            return self._roll_now()

    # --- flush ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Everything that is published to disk, and the recovery point with it."""
        self.roll_if_idle()
        with self._changing():
            target, tails, sealed = self.ends.end_offset, self._dirty_tails(), tuple(self._unflushed)
            truncation_count, indexes = self.truncation_count, self.producers.unsynced()
        self._flush_to(target, tails, sealed, indexes, truncation_count)

    def flush_sealed(self) -> None:
        """The sealed segments to disk, and the recovery point to where the active one begins."""
        with self._changing():
            if not self._unflushed:
                return
            target, sealed = self.segments.last.base_offset, tuple(self._unflushed)
            truncation_count, indexes = self.truncation_count, self.producers.unsynced()
        self._flush_to(target, sealed, sealed, indexes, truncation_count)

    def _flush_to(
        self,
        target: int,
        tails: Sequence[SegmentTail],
        sealed: Sequence[SegmentTail],
        indexes: Sequence[UnsyncedIndex],
        truncation_count: int,
    ) -> None:
        """Syncs ``tails`` outside the log's lock, beside appends; of them the ``sealed`` ones grow no more."""
        try:
            self._sync_tails(tails, indexes)
        except SyncFailedError as error:
            with self._lock:
                self._poison(error)
            raise
        with self._lock, self._poisoned_by_syncs():
            # What was cut meanwhile, and written again, is not what was synced.
            if self._closed is None and self._poisoned is None and self.truncation_count == truncation_count:
                self._flushed(target, sealed, indexes)

    # --- truncate ---------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """See ``Log.truncate_to``."""
        if offset < 0:
            raise InvalidOffsetError(f"cannot truncate to offset {offset}, expected at least 0")
        with self._changing():
            if offset >= self.ends.end_offset:
                return
            if offset < self.segments.first.base_offset:
                self._start_at(offset)
                return
            self._truncate(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """See ``Log.truncate_fully_and_start_at``."""
        if offset < 0:
            raise InvalidOffsetError(f"cannot start at offset {offset}, expected at least 0")
        with self._changing():
            self._start_at(offset)

    def delete_records(self, before: int) -> int:
        """See ``Log.delete_records``."""
        with self._changing():
            ends = self.ends
            end = ends.high_watermark
            if not 0 <= before <= end:
                raise OffsetOutOfRangeError(before, start_offset=ends.start_offset, end_offset=end)
            if before <= ends.start_offset:
                return ends.start_offset
            self._delete_before(before)
            self._remove_deleted()
            return before

    @property
    def change_count(self) -> tuple[int, int]:
        """Differs from what it was whenever anything below the end may not be what it was."""
        return self.truncation_count, self.ends.start_offset

    def accept_loss(self, first: int, last: int, seen: tuple[int, int]) -> bool:
        """Stores that reads pass over offsets ``first`` to ``last``, which the caller has found to be damaged or lost.

        False, with nothing done, where the log was changed since ``change_count`` was ``seen``. Raises: LossLimitError.
        """
        with self._changing():
            if self.change_count != seen:
                return False
            losses = self.losses.with_accepted(first, last)
            if len(losses.accepted) > ACCEPTED_MAX:
                raise LossLimitError(ACCEPTED_MAX)
            if losses != self.losses:
                self._store_losses(losses)
            return True

    def remove_deleted(self) -> int:
        """Removes the files of segments that were deleted ``file_delete_delay_ms`` ago; returns how many segments."""
        with self._lock:
            return 0 if self._closed is not None else self._remove_deleted()

    def apply_retention(self) -> RetentionResult:
        """See ``Log.apply_retention``."""
        self._look_up_ages()
        with self._changing():
            self._remove_deleted()
            return self._retain(self._trusted_clock.now_ms(self._clock.now_ms(), self._clock.monotonic()))

    def _look_up_ages(self) -> None:
        """Has the ages that retention asks for looked up before it takes the lock: a lost index makes that long."""
        config = self.context.config
        if config.retention_ms == NO_LIMIT:
            return
        now_ms = self._clock.now_ms()
        try:
            is_kept = False
            for age in self._ages(with_times=True, repair=True):
                # Retention asks for the first segment that it keeps, and for the one after it.
                if is_kept:
                    return
                is_kept = now_ms - age.largest_timestamp <= config.retention_ms
        except (KstoreError, ValueError):
            pass  # what cannot be read, or is just changing, is met again under the lock

    # --- indexes ----------------------------------------------------------------------------------------------------

    def repairs_index_of(self, segment: LogSegment) -> bool:
        """For ``IndexRepairs``: not while appends go into it."""
        return segment.tail is None and self._closed is None

    def write_indexes(self, segment: LogSegment, scanned: ScannedSegment, cut_count: int) -> bool:
        """For ``IndexRepairs``: puts rebuilt indexes in place of the old files, unless the segment has changed."""
        try:
            with self._changing():
                here = self.segments.floor(segment.base_offset)
                if (
                    here is None
                    or here.base_offset != segment.base_offset
                    or cut_count != self.cut_count
                    or (here is self.segments.last and self._shares_last_segment)
                    or not replace_indexes(here, scanned)
                ):
                    return False
                here.examined(scanned.rebuilt.largest, scanned.size)
                return True
        except KstoreError as error:
            # Indexes are hints: the lookup goes on with what is in memory.
            self.context.counters.index_failures += 1
            logger.warning("%s: its rebuilt indexes were not written: %s", segment.path(LOG_SUFFIX), error)
            return False

    # --- what metrics ask -------------------------------------------------------------------------------------------

    def gauges(self) -> dict[str, MetricValue]:
        """What only a writer knows, as it is now."""
        ends = self.ends
        return {
            "recovery_point": ends.recovery_point,
            "flush_lag_records": ends.end_offset - ends.durable_end,
            "followers": self._follower_count,
            "poisoned": int(self._poisoned is not None),
        }

    # --- what a store asks ------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> LogOffsets:
        """Where the log is now."""
        with self._lock:
            ends = self.ends
            return LogOffsets(
                self.segments.first.base_offset,
                ends.start_offset,
                ends.recovery_point,
                ends.high_watermark,
                ends.end_offset,
            )

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def reconfigure(self, config: LogConfig) -> None:
        """Goes on by other settings, at once; what was decided by the old ones stays as it is."""
        with self._lock:
            self.ensure_writable()
            context = self.context._replace(config=config)
            self.context = self.loaded.context = context
            self.producers.use(context)
            for segment in self.segments:
                segment.use(context)
            self._use(config)

    # --- read -------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Nothing to look for: what is published is all there is."""

    def settle(self) -> None:
        """Waits for a change of the segments that is under way."""
        with self._lock:
            pass

    def wait_beyond(self, offset: int, timeout: float | None) -> bool:
        """Waits for the high watermark to pass ``offset``; False after ``timeout`` seconds, or when the log closes."""
        with self._grown_lock:
            self._follower_count += 1
            try:
                # An append that came before this thread was counted has published already, and is seen here.
                self._grown.wait_for(lambda: self.ends.high_watermark > offset or self._closed is not None, timeout)
            finally:
                self._follower_count -= 1
        return self._closed is None and self.ends.high_watermark > offset

    # --- producers --------------------------------------------------------------------------------------------------

    def end_transaction(
        self, producer_id: int, producer_epoch: int, end: EndTransactionMarker, timestamp: int | None
    ) -> int:
        """Appends the end of a transaction; see ``Log.end_transaction``."""
        now_ms = self._clock.now_ms()
        time_ms = now_ms if timestamp is None else timestamp
        key, value = end.encode()
        stamped = self._timestamp_type == LOG_APPEND_TIME
        data = build_batch(
            [Record(0, time_ms, key=key, value=value)],
            log_append_time=now_ms if stamped else None,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=True,
            is_control=True,
        )
        buffer = BatchBuffer(len(data))
        buffer.extend(data)
        batch = EncodedBatch(1, 0, len(data), 1, time_ms, now_ms if stamped else time_ms, 0)
        append = PendingAppend(buffer, [batch], "none", with_producers=True)
        self.commit(append)
        assert append.result is not None
        return append.result.first_offset

    def known_producers(self) -> tuple[Producer, ...]:
        """What is known of every producer, in the order of their ids."""
        with self._lock:
            return self.producers.known(self.ends.end_offset, self.ends.position)

    def expire_producers(self) -> int:
        """Forgets producers that have written nothing for ``producer_id_expiration_ms``; how many these were."""
        with self._lock:
            self.ensure_writable()
            self.producers.up_to(self.ends.end_offset, self.ends.position)
            return self.producers.expire(self._clock.now_ms())

    def last_stable_offset(self) -> int:
        """Where committed reads stop: the first offset of the oldest open transaction, or the high watermark."""
        with self._lock:
            ends = self.ends
            # A marker behind the high watermark, which may still vanish, has decided nothing yet.
            unstable = self.producers.up_to(ends.high_watermark, ends.position).first_unstable_offset
        stable = ends.high_watermark if unstable is None else min(unstable, ends.high_watermark)
        # What a transaction began with may have been deleted.
        return max(min(stable, self._stable_offset_max), ends.start_offset)

    # --- compact ----------------------------------------------------------------------------------------------------

    def cleanable(self, *, with_producers: bool) -> Cleanable:
        """What there is to compact. Where no producer seems to have written, nothing is read to make sure of it."""
        with self._lock:
            self.ensure_writable()
            ends = self.ends
            last_records: dict[int, LastRecord] = {}
            stable = min(ends.high_watermark, self._stable_offset_max)
            if with_producers or self.producers.in_use:
                state = self.producers.up_to(ends.end_offset, ends.position)
                if state.first_unstable_offset is not None:
                    stable = min(stable, state.first_unstable_offset)
                last_records = {
                    producer.producer_id: LastRecord(producer.last_offset, producer.producer_epoch)
                    for producer in state.producers.values()
                }
            active = self.segments.last.base_offset
            return Cleanable(
                tuple(segment for segment in self.segments if segment.base_offset < active),
                self.cut_count,
                active,
                ends.start_offset,
                stable,
                ends.recovery_point,
                last_records,
                with_producers or self.producers.in_use,
            )

    def open_at_start(self) -> frozenset[int]:
        """The producers whose transaction began before the first segment, and is open there. Raises: StorageError."""
        with self._lock:
            return self.producers.open_at(self.segments.bases[0])

    def compaction_stopped(self, start: Cleanable, segments: Iterable[LogSegment]) -> str:
        """Why a compaction that is at ``segments`` has to end, "" where it may go on."""
        if self._is_closing or self._closed is not None:
            return "the log was closed"
        if self._poisoned is not None:
            return "the log is poisoned"
        here = dict(zip(*self.segments.snapshot, strict=True))
        if self.cut_count != start.cut_count or any(here.get(one.base_offset) is not one for one in segments):
            return "segments were truncated or deleted"
        return ""

    def swap(
        self, start: Cleanable, replaced: Sequence[LogSegment], first_dirty: int, unreadable: Sequence[OffsetSpan] = ()
    ) -> str:
        """Puts the segment written as ``.cleaned`` in the place of ``replaced``; "" or why that cannot be any more.

        Raises: as ``LogFiles._swap``.
        """
        with self._lock:
            stopped = self.compaction_stopped(start, replaced)
            if not stopped:
                self._swap(replaced, first_dirty, unreadable)
            return stopped

    def cleaned_to(self, start: Cleanable, offset: int) -> str:
        """Remembers, durably, that everything below ``offset`` is clean; "" or why that is not so any more."""
        with self._lock:
            stopped = self.compaction_stopped(start, ())
            if not stopped:
                self._remember_dirt(offset)
            return stopped

    # --- close ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flushes, marks the log as closed in order, and lets go of it. A second close does nothing.

        Raises: SyncFailedError, StorageError: then the log is closed all the same, and recovers when it is next opened.
        """
        self._flusher.stop()
        self._is_closing = True
        try:
            # A compaction stops at its next block.
            with self.compacting, self._lock:
                if self._closed is not None:
                    return
                self._closed = ClosedError(f"the log {self.context.directory} is closed")
                try:
                    if self._poisoned is None:
                        self._close_in_order()
                finally:
                    try:
                        self._let_go()
                    except BaseException:
                        self._let_go()  # what an interrupt has left
                        raise
        finally:
            with self._grown_lock:
                self._grown.notify_all()


def open_writer(context: SegmentContext, durability: Durability, ties: StoreTies | None = None) -> LogWriter:
    """The writer of the log in ``context.directory``, which is created or recovered as needed.

    ``ties`` are those to the store that opens it.

    Raises: NotALogError, LockedError, ReadOnlyError, DiskFullError, StorageError.
    """
    fs, directory = context.fs, context.directory
    mode = context.config.file_mode
    # Before the lock is taken: nothing is left behind in a directory that is somebody else's.
    ensure_log_directory(fs, directory, mode=directory_mode(mode), is_lone=ties is None)
    lock: WriteLock
    if ties is None:
        lock = lock_log(directory, mode=mode)
    else:
        lock = lock_in_store(directory, ties.root, mode=mode, shared=False)
    try:
        loaded = load(context, durability, marks=None if ties is None else ties.marks)
        if lost := loaded.report.summary():
            logger.warning("%s: recovery: %s", directory, lost)
        elif scanned := loaded.report.bytes_scanned:
            logger.info("%s: recovery: %d bytes were checked, nothing was lost", directory, scanned)
        writer = LogWriter(loaded, lock, ties)
        logger.debug("%s: open, durability %s, next offset %d", directory, durability, writer.ends.end_offset)
        return writer
    except BaseException:
        lock.release()
        raise


def directory_mode(file_mode: int) -> int:
    """The mode of a directory whose files have ``file_mode``: who may read them may also look through it."""
    return file_mode | (file_mode & 0o444) >> 2
