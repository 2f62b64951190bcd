"""The one writer of a log: it takes appends, assigns offsets, decides when to roll, and publishes.

One lock is held for what changes the files: patching the headers, the write, the index entries, the roll. Encoding and
the CRC come before it, since the CRC leaves out the base offset. Readers never take it: they see one immutable value,
``Published``, which is replaced by one store when an append is complete.

An append is whole or absent: until it is published any exception, KeyboardInterrupt too, cuts it back. What cannot be
cut back, or whose sync has failed, poisons the log: it then serves what is known to be durable and takes no writes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from kstore.config import NO_LIMIT, LogConfig
from kstore.errors import (
    BatchTooLargeError,
    ClosedError,
    CorruptDataError,
    InvalidOffsetError,
    KstoreError,
    OffsetOutOfRangeError,
    PoisonedError,
    RequestError,
    SyncFailedError,
)
from kstore.files.lock import DirectoryLock, probe_lock
from kstore.flusher import Flusher
from kstore.group_commit import GroupCommit
from kstore.kafka_marks import KafkaMarks
from kstore.log_files import LogFiles
from kstore.log_loader import Loaded, ensure_log_or_empty, load, make_directory
from kstore.log_producers import PendingProducers
from kstore.metrics import MetricValue
from kstore.pending_append import PendingAppend
from kstore.published import Published
from kstore.record._codec import BatchBuffer, EncodedBatch, Record, patch_header
from kstore.record.batch import MAGIC
from kstore.record.builder import build_batch, build_batches
from kstore.record.control import EndTransactionMarker
from kstore.record.parse import MAGIC_POSITION, parse_batch
from kstore.record.walk import OFFSET_MAX
from kstore.rules.compact import LastRecord
from kstore.rules.retain import TrustedClock
from kstore.rules.roll import idle_reason, roll_reason
from kstore.rules.sequence import Producer, ProducerBatch
from kstore.segment import LogSegment, SegmentContext
from kstore.segment_tail import SegmentTail
from kstore.types import LOG_APPEND_TIME, NO_OFFSET, AppendInfo, Durability, RetentionResult

__all__ = ["Cleanable", "LogOffsets", "LogWriter", "StoreTies", "directory_mode", "open_writer"]

logger = logging.getLogger(__name__)

Headers = Iterable[tuple[str, bytes | None]]

# In a batch of version 2, bytes from its start.
LEADER_EPOCH_POSITION = 12
# Encode buffers kept for reuse; more appends at the same time make their own.
SPARE_BUFFERS_MAX = 16
# A buffer that had to hold more than this is not kept.
SPARE_BUFFER_BYTES_MAX = 4 << 20


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
        """There is something to flush."""
        ...

    def stop(self) -> None:
        """Returns when the log is not being flushed any more, and will not be."""
        ...


class StoreTies(NamedTuple):
    """What a store that opens a log does for it: it holds the lock above, has read Kafka's marks, and flushes.

    ``clock`` is the one that retention goes by.
    """

    marks: KafkaMarks
    flusher: Callable[[LogWriter], BackgroundFlusher]
    clock: TrustedClock


class LogWriter(LogFiles):
    """Everything that changes a log. Thread-safe."""

    def __init__(self, loaded: Loaded, lock: DirectoryLock, ties: StoreTies | None = None) -> None:
        super().__init__(loaded, lock, is_alone=ties is None)
        self._config = loaded.context.config
        self._clock = loaded.context.clock
        # Guards everything that ``LogFiles`` has, and what follows.
        self._lock = threading.Lock()
        self._last_append_ms = self._clock.now_ms()
        # Committed reads stop here: behind it a transaction index lacks what could not be written to it.
        self._stable_offset_max = OFFSET_MAX
        self._grown = threading.Condition(threading.Lock())
        self._follower_count = 0  # guarded by _grown; read without it by every append
        self._spare_buffers: deque[BatchBuffer] = deque(maxlen=SPARE_BUFFERS_MAX)
        self._use(self._config)
        self._group = GroupCommit(self._commit, self._clock) if self._sync else None
        self._flusher: BackgroundFlusher = (
            Flusher(self, self._config.flush_ms / 1000) if ties is None else ties.flusher(self)
        )
        self._trusted_clock = (
            TrustedClock(self._clock.now_ms(), self._clock.monotonic()) if ties is None else ties.clock
        )
        # Held by whoever compacts; taken before the log's lock.
        self.compacting = threading.Lock()
        self._is_closing = False

    def _use(self, config: LogConfig) -> None:
        """Takes what appends ask for every time out of the settings."""
        self._config = config
        self._codec = config.target_codec("none")
        self._level = config.compression_level(self._codec)
        self._timestamp_type = config.message_timestamp_type
        # What is compressed must not grow beyond what a reader takes when it decompresses it.
        self._size_max = min(config.max_message_bytes, config.max_batch_bytes_uncompressed)
        self.is_compacted = config.is_compacted
        self._has_retention = (config.retention_ms, config.retention_bytes) != (NO_LIMIT, NO_LIMIT)

    def _flush_soon(self) -> None:
        self._flusher.note()

    # --- append -----------------------------------------------------------------------------------------------------

    def append_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        timestamps: Sequence[int] | None,
        headers: Sequence[Headers | None] | None,
    ) -> AppendInfo:
        """Encodes the records into batches and commits them; see ``Log.append_many``."""
        try:
            buffer = self._spare_buffers.pop()
        except IndexError:
            buffer = BatchBuffer()
        now_ms = self._clock.now_ms()
        batches = build_batches(
            buffer,
            values,
            keys,
            timestamps,
            headers,
            codec=self._codec,
            level=self._level,
            timestamp_type=self._timestamp_type,
            now_ms=now_ms,
            size_max=self._size_max,
        )
        append = PendingAppend(buffer, batches, self._codec)
        if self._timestamp_type == LOG_APPEND_TIME:
            append.append_time_ms = now_ms
        self.commit(append)
        # Only now: after an exception a leader may still be writing from it.
        if buffer.capacity <= SPARE_BUFFER_BYTES_MAX:
            buffer.clear()
            self._spare_buffers.append(buffer)
        assert append.result is not None
        return append.result

    def commit(self, append: PendingAppend) -> None:
        """Writes ``append``; returns when it is as durable as the log's setting says.

        Raises what is wrong with this append alone before it joins others, whose own it must not spoil.
        """
        segment_bytes = self._config.segment_bytes
        for batch in append.batches:
            if batch.size > segment_bytes:
                raise BatchTooLargeError(batch.size, segment_bytes)
        if self._group is not None:
            self._group.submit(append)
        else:
            self._commit((append,))
            if append.error is not None:
                raise append.error

    @property
    def syncs_appends(self) -> bool:
        """Whether an append waits for the disk."""
        return self._sync

    def commit_many(self, appends: Sequence[PendingAppend]) -> None:
        """Writes appends with one call, in their order; each has a result or an error of its own then.

        Raises what stopped all of them: then none is in the log.
        """
        self._commit(appends)

    def _commit(self, appends: Sequence[PendingAppend]) -> None:
        with self._lock:
            self.ensure_writable()
            self.catch_up()
            before = self.published
            try:
                self._write(appends, before)
            except BaseException as error:
                self._undo(before, error)
                raise
        if self._sync:
            self._counters.group_appends.observe(len(appends))
        if self._follower_count:
            with self._grown:
                self._grown.notify_all()
        if self._retention_due:
            self._retain_after_roll()

    def _retain_after_roll(self) -> None:
        """A roll is when a log can become too large or too old. What fails here is tried again at the next one."""
        self._retention_due = False
        if not self._has_retention:
            return
        try:
            self.apply_retention()
        except KstoreError as error:
            logger.warning("%s: retention: %s", self.context.directory, error)

    def _write(self, appends: Sequence[PendingAppend], before: Published) -> None:
        tail = self._tail or self._begin()
        offset = before.offset
        now_ms = self._clock.now_ms()
        if now_ms - self._last_append_ms > tail.idle_ms_max and self._is_idle(tail, now_ms):
            tail = self._roll(offset)
        self._last_append_ms = now_ms
        stable_offset = before.offset
        run: list[memoryview] = []
        marks: list[tuple[int, int, int, int]] = []
        written: list[tuple[PendingAppend, int, int]] = []
        position = tail.position
        batch_count = record_count = written_bytes = untaken_count = 0
        checks: PendingProducers | None = None
        for append in appends:
            kept = append.spans
            first_offset = offset if kept is None else kept[0][0]
            if first_offset < offset:
                append.error = InvalidOffsetError(f"the first offset is {first_offset}, expected at least {offset}")
                continue
            if append.with_producers:
                if checks is None:
                    checks = self.producers.pending(before.offset, before.position, now_ms)
                    unstable = checks.first_unstable_offset
                    stable_offset = before.offset if unstable is None else unstable
                if not self._take_producers(append, checks, offset):
                    written.append((append, NO_OFFSET, NO_OFFSET))
                    untaken_count += 1
                    if append.repeated:
                        self._counters.append_duplicates += 1
                    continue
            if kept is not None:
                self._note_epochs(append, kept)
            buffer, buffers = append.buffer, append.buffers
            leader_epoch = self.loaded.leader_epoch
            for number, batch in enumerate(append.batches):
                _, start, size, count, _, max_timestamp, _ = batch
                base_offset, last_offset = (offset, offset + count - 1) if kept is None else kept[number]
                if not tail.takes(position, size, last_offset, max_timestamp) and self._roll_due(
                    tail, position, size, last_offset, max_timestamp
                ):
                    self._write_run(tail, run, marks)
                    tail = self._roll(base_offset)
                    position = 0
                if buffers is not None:
                    buffer = buffers[number]
                if kept is None:
                    patch_header(buffer, start, base_offset, leader_epoch)
                run.append(buffer.view(start, start + size))
                marks.append((position, size, last_offset, max_timestamp))
                position += size
                offset = last_offset + 1
                batch_count += 1
                record_count += count
                written_bytes += size
            written.append((append, first_offset, offset - 1))
        self._write_run(tail, run, marks)
        try:
            published = Published(offset, tail.base_offset, tail.position, offset)
            if published != before:
                self._publish(published)
            for append, first_offset, last_offset in written:
                append.finish(first_offset, last_offset)
            counters = self._counters
            counters.appends += len(written) - untaken_count
            counters.append_batches += batch_count
            counters.append_records += record_count
            counters.append_bytes += written_bytes
            if checks is None or not checks.batches:
                self.producers.passed(before.offset, offset)
            elif self._poisoned is None:
                self._note_producers(checks.batches, offset, stable_offset)
        except BaseException as error:
            if self.published is not before and any(append.with_producers for append in appends):
                # An interrupt: what is published is not in the transaction index.
                self._stable_offset_max = stable_offset
                self._poison(error)
            raise

    def _take_producers(self, append: PendingAppend, checks: PendingProducers, offset: int) -> bool:
        """Whether ``append`` is to be written: not where it is refused, or where the log has it already."""
        batches = [parse_batch(view, 0) for view in append.views()]
        try:
            append.repeated = checks.take(batches, append.spans_from(offset), checked=append.spans is None)
        except (RequestError, CorruptDataError) as error:
            append.error = error
            return False
        return not append.repeated

    def _note_epochs(self, append: PendingAppend, spans: Sequence[tuple[int, int]]) -> None:
        """Notes the leader epochs of batches that keep theirs, before they are written."""
        for view, (first_offset, _) in zip(append.views(), spans, strict=True):
            head = view[LEADER_EPOCH_POSITION : MAGIC_POSITION + 1]
            epoch = int.from_bytes(head[:4], "big", signed=True)
            if head[-1] >= MAGIC and epoch >= 0:
                self.loaded.epochs.assign(epoch, first_offset)

    def _note_producers(self, batches: Sequence[ProducerBatch], end: int, stable_offset: int) -> None:
        """Takes in the producers of what was published.

        Where that fails the append stands and the log is poisoned: only recovery can make the transaction index whole,
        and until then committed reads end where they ended before.
        """
        try:
            self.producers.take_in(batches, end)
        except BaseException as error:
            self._stable_offset_max = stable_offset
            self._poison(error)
            if not isinstance(error, Exception):
                raise

    def _write_run(self, tail: SegmentTail, run: list[memoryview], marks: list[tuple[int, int, int, int]]) -> None:
        """One write for all batches of ``run``, which go into one segment; then their index entries."""
        if not run:
            return
        size = marks[-1][0] + marks[-1][1] - tail.position
        if self._sync:
            started = self._clock.monotonic()
            tail.write(run, size, sync=True)
            self._counters.sync_seconds.observe(self._clock.monotonic() - started)
        else:
            tail.write(run, size, sync=False)
        for mark in marks:
            tail.note(*mark)
        run.clear()
        marks.clear()

    def _publish(self, published: Published) -> None:
        """The one store by which an append becomes visible."""
        if self._sync:
            self._durable_end = published.offset
            self.published = published
            self._state_file.publish_durable_end(published.offset)
            return
        self.published = published
        if published.offset - self._recovery_point >= self._config.flush_messages:
            self._flush_locked()
        elif self._durability == "interval":
            self._flusher.note()

    def _undo(self, before: Published, error: BaseException) -> None:
        """Brings the files back to ``before``, unless the append was published; else the log is poisoned."""
        if isinstance(error, SyncFailedError | PoisonedError):
            self._poison(error)
        if self._poisoned is not None or self.published is not before or self._tail is None:
            return
        try:
            if self._tail.base_offset != before.base_offset or self._tail.position != before.position:
                self._back_to(before)
            # One that was to begin at the end is the one that writes next.
            self.loaded.epochs.truncate_from_end(before.offset + 1)
        except BaseException as second:
            self._poison(second)

    def catch_up(self) -> None:
        """Takes in what other processes have appended: nothing, since a log has one writer."""

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """The lock, for what changes the files of a log that takes writes."""
        with self._lock, self._poisoned_by_syncs():
            self.ensure_writable()
            yield

    @contextmanager
    def _poisoned_by_syncs(self) -> Iterator[None]:
        """A sync that fails in here poisons the log, whatever was synced. Needs the lock."""
        try:
            yield
        except SyncFailedError as error:
            self._poison(error)
            raise

    # --- roll -------------------------------------------------------------------------------------------------------

    def _roll_due(self, tail: SegmentTail, position: int, size: int, last_offset: int, max_timestamp: int) -> bool:
        """Whether a batch that the segment does not take without a thought goes into a new one."""
        config = self._config
        if position == 0:
            return last_offset - tail.base_offset > 2**31 - 1
        reason = roll_reason(
            config,
            position=position,
            size=size,
            base_offset=tail.base_offset,
            last_offset=last_offset,
            first_timestamp=tail.first_timestamp,
            max_timestamp=max_timestamp,
            created_ms=tail.created_ms,
            now_ms=self._clock.now_ms(),
            jitter_ms=tail.jitter_ms,
            indexes_full=tail.indexes_full,
        )
        return reason is not None

    def _is_idle(self, tail: SegmentTail, now_ms: int) -> bool:
        reason = idle_reason(
            self._config,
            position=tail.position,
            first_timestamp=tail.first_timestamp,
            last_append_ms=self._last_append_ms,
            now_ms=now_ms,
            jitter_ms=tail.jitter_ms,
        )
        return reason is not None

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
            target = self.published
            truncation_count = self.truncation_count
            tails = self._dirty_tails()
            indexes = self.producers.take_unsynced()
        self._sync_tails(tails, indexes)
        with self._lock, self._poisoned_by_syncs():
            # What was cut meanwhile, and written again, is not what was synced.
            if self._closed is None and self._poisoned is None and self.truncation_count == truncation_count:
                self._flushed(target, tails)

    # --- truncate ---------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """See ``Log.truncate_to``."""
        if offset < 0:
            raise InvalidOffsetError(f"cannot truncate to offset {offset}, expected at least 0")
        with self._changing():
            if offset >= self.published.offset:
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
            end = self.published.high_watermark
            if not 0 <= before <= end:
                raise OffsetOutOfRangeError(before, start_offset=self.start_offset, end_offset=end)
            if before <= self.start_offset:
                return self.start_offset
            self._delete_before(before)
            self._remove_deleted()
            return before

    def remove_deleted(self) -> int:
        """Removes the files of segments that were deleted ``file_delete_delay_ms`` ago; returns how many segments."""
        with self._lock:
            return 0 if self._closed is not None else self._remove_deleted()

    def apply_retention(self) -> RetentionResult:
        """See ``Log.apply_retention``."""
        with self._changing():
            self._remove_deleted()
            return self._retain(self._trusted_clock.now_ms(self._clock.now_ms(), self._clock.monotonic()))

    # --- what metrics ask -------------------------------------------------------------------------------------------

    def gauges(self) -> dict[str, MetricValue]:
        """What only a writer knows, as it is now."""
        end, durable_end = self.published.offset, self._durable_end
        return {
            "recovery_point": min(self._recovery_point, end),
            "flush_lag_records": max(end - durable_end, 0),
            "followers": self._follower_count,
            "poisoned": int(self._poisoned is not None),
        }

    # --- what a store asks ------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> LogOffsets:
        """Where the log is now."""
        with self._lock:
            published = self.published
            return LogOffsets(
                self.segments.first.base_offset,
                self.start_offset,
                min(self._recovery_point, published.offset),
                published.high_watermark,
                published.offset,
            )

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
        with self._grown:
            self._follower_count += 1
            try:
                # An append that came before this thread was counted has published already, and is seen here.
                self._grown.wait_for(
                    lambda: self.published.high_watermark > offset or self._closed is not None, timeout
                )
            finally:
                self._follower_count -= 1
        return self._closed is None and self.published.high_watermark > offset

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
            published = self.published
            return self.producers.known(published.offset, published.position)

    def expire_producers(self) -> int:
        """Forgets producers that have written nothing for ``producer_id_expiration_ms``; how many these were."""
        with self._lock:
            self.ensure_writable()
            published = self.published
            self.producers.up_to(published.offset, published.position)
            return self.producers.expire(self._clock.now_ms())

    def last_stable_offset(self) -> int:
        """Where committed reads stop: the first offset of the oldest open transaction, or the high watermark."""
        with self._lock:
            published = self.published
            # A marker behind the high watermark, which may still vanish, has decided nothing yet.
            unstable = self.producers.up_to(published.high_watermark, published.position).first_unstable_offset
        stable = published.high_watermark if unstable is None else min(unstable, published.high_watermark)
        # What a transaction began with may have been deleted.
        return max(min(stable, self._stable_offset_max), self.start_offset)

    # --- compact ----------------------------------------------------------------------------------------------------

    def cleanable(self, *, with_producers: bool) -> Cleanable:
        """What there is to compact. Where no producer seems to have written, nothing is read to make sure of it."""
        with self._lock:
            self.ensure_writable()
            published = self.published
            last_records: dict[int, LastRecord] = {}
            stable = min(published.high_watermark, self._stable_offset_max)
            if with_producers or self.producers.in_use:
                state = self.producers.up_to(published.offset, published.position)
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
                self.start_offset,
                stable,
                self._recovery_point,
                last_records,
                with_producers or self.producers.in_use,
            )

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

    def swap(self, start: Cleanable, replaced: Sequence[LogSegment], first_dirty: int) -> str:
        """Puts the segment written as ``.cleaned`` in the place of ``replaced``; "" or why that cannot be any more.

        Raises: as ``LogFiles._swap``.
        """
        with self._lock:
            stopped = self.compaction_stopped(start, replaced)
            if not stopped:
                self._swap(replaced, first_dirty)
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
        # A compaction stops at its next block.
        with self.compacting, self._lock:
            if self._closed is not None:
                return
            self._closed = ClosedError(f"the log {self.context.directory} is closed")
            try:
                if self._poisoned is None:
                    self._close_in_order()
            finally:
                self._let_go()
        with self._grown:
            self._grown.notify_all()


def open_writer(context: SegmentContext, durability: Durability, ties: StoreTies | None = None) -> LogWriter:
    """The writer of the log in ``context.directory``, which is created or recovered as needed.

    ``ties`` are those to the store that opens it.

    Raises: NotALogError, LockedError, ReadOnlyError, DiskFullError, StorageError.
    """
    fs, directory = context.fs, context.directory
    if fs.exists(directory):
        # Looked at before the lock is taken: nothing is left behind in a directory that is somebody else's.
        ensure_log_or_empty(fs, directory)
    else:
        make_directory(fs, directory, mode=directory_mode(context.config.file_mode))
    if ties is None:
        probe_lock(directory.parent)
    lock = DirectoryLock(directory, mode=context.config.file_mode)
    try:
        loaded = load(context, durability, marks=None if ties is None else ties.marks)
        if lost := loaded.report.summary():
            logger.warning("%s: recovery: %s", directory, lost)
        elif scanned := loaded.report.bytes_scanned:
            logger.info("%s: recovery: %d bytes were checked, nothing was lost", directory, scanned)
        writer = LogWriter(loaded, lock, ties)
        logger.debug("%s: open, durability %s, next offset %d", directory, durability, writer.published.offset)
        return writer
    except BaseException:
        lock.release()
        raise


def directory_mode(file_mode: int) -> int:
    """The mode of a directory whose files have ``file_mode``: who may read them may also look through it."""
    return file_mode | (file_mode & 0o444) >> 2
