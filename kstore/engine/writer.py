"""The one writer of a log: the facade of the parts that change it, with the values that only a writer has.

    files       what is open, and what is known of it             flush       putting it on disk
    turn        which thread, or process, may change anything     rolls       the active segment
    durability  when the bytes of an append are on disk           cuts        truncate, delete, swap
    appends     both paths of an append                           retention   deletion by age and size
    growth      threads that wait for more records

A shared log has another turn, another flush and, with "sync", another durability (``shared``); the rest is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from kstore.config import LogConfig
from kstore.engine.append.appends import Appends
from kstore.engine.append.pending import PendingAppend
from kstore.engine.change.cuts import Cuts
from kstore.engine.change.durability import DurabilityStrategy, SyncInWrite, WriteBehind
from kstore.engine.change.flush import BackgroundFlusher, Flush, Flusher, TailFlush, close_in_order
from kstore.engine.change.growth import Growth, wait_beyond
from kstore.engine.change.retention import Retention
from kstore.engine.change.roll import Rolls
from kstore.engine.directory import directory_mode, ensure_log_directory
from kstore.engine.ends import Ends
from kstore.engine.files import Loaded, LogFiles
from kstore.engine.index_repairs import ScannedSegment, replace_indexes
from kstore.engine.open.opening import load
from kstore.engine.producers import LogProducers
from kstore.engine.segments import LogSegments
from kstore.engine.turn import Alone, Turn
from kstore.errors import (
    ClosedError,
    InvalidOffsetError,
    KstoreError,
    LossLimitError,
    OffsetOutOfRangeError,
    SharedLogError,
    StorageError,
    SyncFailedError,
)
from kstore.files._locks import OwnedLock, block
from kstore.files.checkpoint import EpochEntry
from kstore.files.lock import DirectoryLock
from kstore.files.log_lock import WriteLock, lock_in_store, lock_log
from kstore.files.paths import LOG_SUFFIX
from kstore.metrics import MetricValue
from kstore.record._codec import BatchBuffer, EncodedBatch, Record
from kstore.record.builder import build_batch
from kstore.record.control import EndTransactionMarker
from kstore.rules.compact import LastRecord
from kstore.rules.losses import LossRanges, OffsetSpan
from kstore.rules.retain import TrustedClock
from kstore.rules.sequence import KnownProducer
from kstore.segment import LogSegment, SegmentContext
from kstore.state.kafka_marks import KafkaMarks
from kstore.state.log_state import ACCEPTED_MAX
from kstore.types import LOG_APPEND_TIME, RECORD_OFFSET_MAX, Durability, RecoveryReport, RetentionResult

logger = logging.getLogger(__name__)


class Cleanable(NamedTuple):
    """The input of a compaction: the sealed ``segments``, and the limits that it must not pass.

    ``stop_offset`` is the end of the last segment; everything below ``durable_offset`` is on disk and stays there.
    ``last_records`` are those of live producers; unless ``producers_known`` no producers are known.
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
    """The offsets of a log that its store's checkpoints record."""

    first_base_offset: int
    start_offset: int
    recovery_point: int
    high_watermark: int
    end_offset: int


class StoreTies(NamedTuple):
    """A store's services for a log that it opens: it holds the ``root`` lock, has read Kafka's marks, and flushes.

    ``clock`` is the one that retention uses.
    """

    marks: KafkaMarks
    flusher: Callable[[LogWriter], BackgroundFlusher]
    clock: TrustedClock
    root: DirectoryLock


class LogWriter:
    """Everything that changes a log. Thread-safe."""

    def __init__(
        self,
        files: LogFiles,
        turn: Turn,
        flush: Flush,
        durability: DurabilityStrategy,
        report: RecoveryReport,
        ties: StoreTies | None = None,
    ) -> None:
        """``report`` describes the opening."""
        clock = files.context.clock
        self.report = report
        self.files = files
        self.turn = turn
        self._lock = turn.lock
        self._clock = clock
        self.growth: Growth = Growth(files)
        self._rolls = Rolls(files, durability)
        self._cuts = Cuts(files, self._rolls, flush)
        trusted_clock = TrustedClock(clock.now_ms(), clock.monotonic()) if ties is None else ties.clock
        self.retention: Retention = Retention(files, turn, self._rolls, self._cuts, trusted_clock)
        self.appends: Appends = Appends(files, turn, durability, self._rolls, self.retention, self.growth)
        self._flush = flush
        self._flusher: BackgroundFlusher = (
            Flusher(self, files.context.config.flush_ms / 1000) if ties is None else ties.flusher(self)
        )
        flush.flusher = self._flusher
        files.admit_open_tail()
        # Held by a compaction; taken before the log's lock.
        self.compacting: OwnedLock = OwnedLock()
        self._is_closing = False

    # --- what is known of the log -------------------------------------------------------------------------------------

    @property
    def context(self) -> SegmentContext:
        return self.files.context

    @property
    def segments(self) -> LogSegments:
        return self.files.segments

    @property
    def producers(self) -> LogProducers:
        return self.files.producers

    @property
    def ends(self) -> Ends:
        """Where the log begins and ends, as readers see it."""
        return self.files.ends

    @property
    def losses(self) -> LossRanges:
        return self.files.losses

    @property
    def truncation_count(self) -> int:
        """See ``LogSource.truncation_count``."""
        return self.files.truncation_count

    @property
    def cut_count(self) -> int:
        """How often anything was cut: segments may then differ from before, even if they are the same objects."""
        return self.files.cut_count

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to the log."""
        return self.files.others is not None

    @property
    def is_compacted(self) -> bool:
        return self.appends.is_compacted

    @property
    def syncs_appends(self) -> bool:
        """Whether an append waits for the disk."""
        return self.files.is_sync

    @property
    def closed(self) -> bool:
        return self.files.closed is not None

    # --- append -------------------------------------------------------------------------------------------------------

    def commit(self, append: PendingAppend) -> None:
        """See ``Appends.commit``."""
        self.appends.commit(append)

    def commit_many(self, appends: Sequence[PendingAppend]) -> None:
        """See ``Appends.commit_many``."""
        self.appends.commit_many(appends)

    # --- roll ---------------------------------------------------------------------------------------------------------

    def roll_if_idle(self) -> bool:
        """Rolls an active segment without an append for ``segment_ms``; returns whether it did."""
        files = self.files
        with self._lock:
            tail = files.tail
            if files.closed is not None or files.poisoned is not None or tail is None:
                return False
            if not self._rolls.is_idle(tail, self._clock.now_ms()):
                return False
            with files.poisoned_by_syncs():
                self._rolls.roll_now()
            return True

    def roll(self) -> int:
        """Begins a new segment if the active one holds anything; returns the active segment's base offset."""
        with self.turn.lock, self.files.changing():
            if self.files.tail is None:
                self._rolls.begin()
            return self._rolls.roll_now()

    # --- flush --------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Puts everything that is published on disk, and moves the recovery point there."""
        self.roll_if_idle()
        self._flush.flush()

    def flush_sealed(self) -> None:
        """Puts the sealed segments on disk, and moves the recovery point to the start of the active one."""
        self._flush.flush_sealed()

    # --- truncate, delete ---------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """See ``Log.truncate_to``."""
        files = self.files
        if offset < 0:
            raise InvalidOffsetError(f"cannot truncate to offset {offset}, expected at least 0")
        with self._waking_at_cut(), self.turn.lock, files.changing():
            if offset >= files.ends.end_offset:
                return
            if offset < files.segments.first.base_offset:
                self._cuts.start_at(offset)
            else:
                self._cuts.truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes everything, durably; the next record gets ``offset``. Raises: as ``truncate_to``."""
        if not 0 <= offset <= RECORD_OFFSET_MAX:
            raise InvalidOffsetError(f"cannot start at offset {offset}, expected 0 to {RECORD_OFFSET_MAX}")
        with self._waking_at_cut(), self.turn.lock, self.files.changing():
            self._cuts.start_at(offset)

    def delete_records(self, before: int) -> int:
        """See ``Log.delete_records``."""
        files = self.files
        with self._waking_at_cut(), self.turn.lock, files.changing():
            start, end = files.ends.start_offset, files.ends.high_watermark
            if not 0 <= before <= end:
                raise OffsetOutOfRangeError(before, start_offset=start, end_offset=end)
            if before <= start:
                return start
            self._cuts.delete_before(before)
            files.remove_deleted()
            return before

    def remove_deleted(self) -> int:
        """Removes the files of segments that were deleted ``file_delete_delay_ms`` ago; returns the number of
        segments."""
        with self._lock:
            return 0 if self.files.closed is not None else self.files.remove_deleted()

    def apply_retention(self) -> RetentionResult:
        """See ``Log.apply_retention``."""
        with self._waking_at_cut():
            return self.retention.apply()

    @block
    def _waking_at_cut(self) -> Iterator[None]:
        """A block after which followers look again, if it took records away: what they wait for may be among them."""
        before = self.change_count
        try:
            yield
        finally:
            if self.change_count != before:
                self.growth.wake()

    @property
    def change_count(self) -> tuple[int, int]:
        """Changes whenever anything below the end may have changed."""
        return self.files.truncation_count, self.files.ends.start_offset

    def accept_loss(self, first: int, last: int, seen: tuple[int, int]) -> bool:
        """Stores that reads skip offsets ``first`` to ``last``, which the caller found to be damaged or lost.

        Returns False, and does nothing, if ``change_count`` is no longer ``seen``. Raises: LossLimitError.
        """
        files = self.files
        with self.turn.lock, files.changing():
            if self.change_count != seen:
                return False
            losses = files.losses.with_accepted(first, last)
            if len(losses.accepted) > ACCEPTED_MAX:
                raise LossLimitError(ACCEPTED_MAX)
            if losses != files.losses:
                files.change_losses(losses)
            return True

    # --- indexes ------------------------------------------------------------------------------------------------------

    def repairs_index_of(self, segment: LogSegment) -> bool:
        """For ``IndexRepairs``: whether no append goes into the segment."""
        return segment.tail is None and self.files.closed is None

    def write_indexes(self, segment: LogSegment, scanned: ScannedSegment, cut_count: int) -> bool:
        """For ``IndexRepairs``: replaces the old files by rebuilt indexes, unless the segment has changed."""
        files = self.files
        try:
            with self.turn.lock, files.changing():
                here = files.segments.floor(segment.base_offset)
                if (
                    here is None
                    or here.base_offset != segment.base_offset
                    or cut_count != files.cut_count
                    or (here is files.segments.last and self.is_shared)
                    or not replace_indexes(here, scanned)
                ):
                    return False
                here.examined(scanned.rebuilt, scanned.size)
                return True
        except KstoreError as error:
            # Indexes are hints: the lookup continues with those in memory.
            files.counters.index_failures += 1
            logger.warning("%s: its rebuilt indexes were not written: %s", segment.path(LOG_SUFFIX), error)
            return False

    # --- for metrics --------------------------------------------------------------------------------------------------

    def gauges(self) -> dict[str, MetricValue]:
        """The present values that only a writer has."""
        ends = self.files.ends
        return {
            "recovery_point": ends.recovery_point,
            "flush_lag_records": ends.end_offset - ends.durable_end,
            "followers": self.files.follower_count,
            "poisoned": int(self.files.poisoned is not None),
        }

    # --- for the store ------------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> LogOffsets:
        """The log's present offsets."""
        with self._lock:
            ends = self.files.ends
            return LogOffsets(
                self.files.segments.first.base_offset,
                ends.start_offset,
                ends.recovery_point,
                ends.high_watermark,
                ends.end_offset,
            )

    def reconfigure(self, config: LogConfig) -> None:
        """Applies other settings at once; earlier decisions stay as they are."""
        with self._lock:
            self.files.ensure_writable()
            self.files.use(config)
            self.appends.use(config)

    # --- read ---------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Applies the appends of other processes, if there may be any."""
        self.turn.refresh()

    def notice(self) -> None:
        """``refresh``, for what other processes told of."""
        self.turn.notice()

    def settle(self) -> None:
        """Waits until a change of the segments in progress ends."""
        with self._lock:
            pass

    def wait_beyond(self, offset: int, timeout: float | None) -> bool:
        """Waits until the high watermark passes ``offset``; False after ``timeout`` seconds, or if the log closes."""
        watch = self.turn.watch
        if watch is not None:
            return wait_beyond(self, watch, self._clock, offset, timeout)
        files = self.files
        self.growth.wait_for(lambda: files.ends.high_watermark > offset or files.closed is not None, timeout)
        return files.closed is None and files.ends.high_watermark > offset

    def watch_growth(self, grown: Callable[[], None]) -> None:
        """Calls ``grown``, which must be short, after each append, until ``unwatch_growth``."""
        self.growth.watch(grown)

    def unwatch_growth(self, grown: Callable[[], None]) -> None:
        self.growth.unwatch(grown)

    # --- producers ----------------------------------------------------------------------------------------------------

    def end_transaction(
        self, producer_id: int, producer_epoch: int, end: EndTransactionMarker, timestamp: int | None
    ) -> int:
        """Appends the end of a transaction; see ``Log.end_transaction``."""
        if self.is_shared:
            raise SharedLogError("transactions need a log that one process writes to")
        now_ms = self._clock.now_ms()
        time_ms = now_ms if timestamp is None else timestamp
        key, value = end.encode()
        stamped = self.context.config.message_timestamp_type == LOG_APPEND_TIME
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

    def leader_epochs(self) -> Sequence[EpochEntry]:
        """See ``LogSource.leader_epochs``."""
        return self.files.epochs.entries or (EpochEntry(0, self.ends.start_offset),)

    def known_producers(self) -> tuple[KnownProducer, ...]:
        """Every known producer, sorted by id."""
        self.turn.read_producers_ahead()
        with self._lock:
            return self.producers.known(self.ends.end_offset, self.ends.position)

    def expire_producers(self) -> int:
        """Forgets producers that have written nothing for ``producer_id_expiration_ms``; returns how many. One with an
        open transaction is kept. Appends of producers do so too, every ten minutes."""
        self.turn.read_producers_ahead()
        with self._lock:
            self.files.ensure_writable()
            self.producers.up_to(self.ends.end_offset, self.ends.position)
            return self.producers.expire(self._clock.now_ms())

    def last_stable_offset(self) -> int:
        """Where committed reads stop: the first offset of the oldest open transaction, or the high watermark."""
        self.turn.read_producers_ahead()
        with self._lock:
            ends = self.files.ends
            # A marker above the high watermark may still vanish, and has decided nothing yet.
            unstable = self.files.producers.up_to(ends.high_watermark, ends.position).first_unstable_offset
        stable = ends.high_watermark if unstable is None else min(unstable, ends.high_watermark)
        # The start of a transaction may have been deleted.
        return max(min(stable, self.appends.stable_offset_max), ends.start_offset)

    # --- compact ------------------------------------------------------------------------------------------------------

    def cleanable(self, *, with_producers: bool) -> Cleanable:
        """The input of a compaction. If no producer seems to have written, nothing is read to verify that."""
        if self.is_shared:
            raise SharedLogError("a log that several processes write to cannot be compacted: open it in one")
        files = self.files
        with self._lock:
            files.ensure_writable()
            ends, producers = files.ends, files.producers
            last_records: dict[int, LastRecord] = {}
            stable = min(ends.high_watermark, self.appends.stable_offset_max)
            if with_producers or producers.in_use:
                state = producers.up_to(ends.end_offset, ends.position)
                if state.first_unstable_offset is not None:
                    stable = min(stable, state.first_unstable_offset)
                last_records = {
                    producer.producer_id: LastRecord(producer.last_offset, producer.producer_epoch)
                    for producer in state.producers.values()
                }
            active = files.segments.last.base_offset
            return Cleanable(
                tuple(segment for segment in files.segments if segment.base_offset < active),
                files.cut_count,
                active,
                ends.start_offset,
                stable,
                ends.recovery_point,
                last_records,
                with_producers or producers.in_use,
            )

    def open_at_start(self) -> frozenset[int]:
        """The producers with a transaction that began before the first segment and is open there. Raises:
        StorageError."""
        with self._lock:
            return self.producers.open_at(self.segments.bases[0])

    def compaction_stopped(self, start: Cleanable, segments: Iterable[LogSegment]) -> str:
        """Why a compaction that is at ``segments`` must end, "" if it may continue."""
        files = self.files
        if self._is_closing or files.closed is not None:
            return "the log was closed"
        if files.poisoned is not None:
            return "the log is poisoned"
        here = dict(zip(*files.segments.snapshot, strict=True))
        if files.cut_count != start.cut_count or any(here.get(one.base_offset) is not one for one in segments):
            return "segments were truncated or deleted"
        return ""

    def swap(
        self, start: Cleanable, replaced: Sequence[LogSegment], first_dirty: int, unreadable: Sequence[OffsetSpan] = ()
    ) -> str:
        """Replaces ``replaced`` with the segment written as ``.cleaned``; returns "", or why that is no longer
        possible.

        Raises: as ``Cuts.swap``.
        """
        with self._lock:
            stopped = self.compaction_stopped(start, replaced)
            if not stopped:
                with self.files.state_file.renaming():
                    self._cuts.swap(replaced, first_dirty, unreadable)
            return stopped

    def cleaned_to(self, start: Cleanable, offset: int) -> str:
        """Records, durably, that everything below ``offset`` is clean; returns "", or why that is no longer true."""
        with self._lock:
            stopped = self.compaction_stopped(start, ())
            if not stopped:
                self._cuts.remember_dirt(offset)
            return stopped

    # --- close --------------------------------------------------------------------------------------------------------

    def keep_failure(self, error: KstoreError) -> None:
        """Keeps the error of a sync in the background for ``close``, unless another call raises it."""
        if isinstance(error, SyncFailedError):
            with self._lock:
                self.files.keep_failure(error)

    def close(self) -> None:
        """Flushes, marks the log as closed cleanly, and releases it. A second close does nothing.

        Raises: SyncFailedError, StorageError: then the log is closed nevertheless, and recovers when it is next opened.
        """
        self._flusher.stop()
        self._is_closing = True
        try:
            # A compaction stops after its present block.
            with self.compacting, self._lock:
                if self.files.closed is None:
                    self._close()
        except BaseException:
            if self.turn.close_alone():
                # The last process to close the log, or recovery, does the rest.
                with self._lock:
                    if self.files.closed is None:
                        self.files.closed = self._closed_error()
                        self._let_go()
            raise
        finally:
            self.growth.wake()

    def _close(self) -> None:
        files = self.files
        files.closed = self._closed_error()
        try:
            if files.poisoned is None:
                if self.turn.is_last():
                    close_in_order(files, self._flush)
                elif not files.is_sync and files.ends.recovery_point < files.ends.end_offset:
                    # Other processes keep the log open; nothing would ask this one for a flush again. It may have
                    # written what is not on disk even if it has no tail: another one may have rolled since.
                    self._flush.flush_in_turn()
            elif (failed := files.untold) is not None:
                files.untold = None
                reason = f"a sync in the background has failed ({failed}), and what was appended may not be on disk"
                raise SyncFailedError(failed.errno, reason, failed.filename) from failed
        finally:
            try:
                self._let_go()
            except BaseException:
                self._let_go()  # what an interrupt has left to do
                raise

    def _let_go(self) -> None:
        try:
            with suppress(StorageError):
                self.files.remove_deleted(at_once=True)  # the next open removes what stays
        finally:
            try:
                self.turn.leave()
            finally:
                self.files.let_go()
                self.turn.release()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the log {self.context.directory} is closed")


def lone_writer(loaded: Loaded, lock: WriteLock, ties: StoreTies | None = None) -> LogWriter:
    """The writer of a log that was ``loaded`` and that only this process writes to; it takes over ``lock``."""
    turn = Alone(lock)
    # A store handles the clean marker of a broker's store around the log.
    files = LogFiles(loaded, parks_under=turn.lock, has_kafka_marks=ties is None)
    flush = TailFlush(files, turn)
    durability = (
        SyncInWrite(files) if files.is_sync else WriteBehind(files, flush, is_prompt=files.durability == "interval")
    )
    return LogWriter(files, turn, flush, durability, loaded.report, ties)


def open_writer(context: SegmentContext, durability: Durability, ties: StoreTies | None = None) -> LogWriter:
    """The writer of the log in ``context.directory``, which is created or recovered as needed.

    ``ties`` connect it to the store that opens it.

    Raises: NotALogError, LockedError, ReadOnlyError, DiskFullError, StorageError.
    """
    fs, directory = context.fs, context.directory
    mode = context.config.file_mode
    # Before the lock is taken: a foreign directory stays as it is.
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
        writer = lone_writer(loaded, lock, ties)
        logger.debug("%s: open, durability %s, next offset %d", directory, durability, writer.ends.end_offset)
        return writer
    except BaseException:
        lock.release()
        raise
