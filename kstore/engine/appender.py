"""The append path of a log: batches get their offsets, are written, indexed and published, whole or not at all.

One lock is held for what changes the files: patching the headers, the write, the index entries, the roll. Encoding and
the CRC come before it, since the CRC leaves out the base offset. Readers never take it: they see one immutable value,
``Ends``, which is replaced by one store when an append is complete.

Until it is published any exception, KeyboardInterrupt too, cuts an append back. What cannot be cut back, or whose sync
has failed, poisons the log: it then serves what is known to be durable and takes no writes.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from kstore.config import LogConfig
from kstore.engine.ends import Ends, make_ends
from kstore.engine.files import LogFiles
from kstore.engine.group_commit import GroupCommit
from kstore.engine.opening import Loaded
from kstore.engine.pending import PendingAppend
from kstore.engine.producers import PendingProducers
from kstore.errors import (
    BatchTooLargeError,
    CorruptDataError,
    InvalidOffsetError,
    KstoreError,
    PoisonedError,
    RequestError,
    StorageError,
    SyncFailedError,
)
from kstore.files.descriptors import OPEN_TAILS
from kstore.files.log_lock import WriteLock
from kstore.record._codec import BatchBuffer, encode_single, patch_header
from kstore.record.batch import BATCH_HEAD, BATCH_HEADER_BYTES, CRC_START, LOG_OVERHEAD_BYTES, MAGIC_V2
from kstore.record.builder import build_batches
from kstore.record.crc import crc32c
from kstore.record.heads import leader_epoch_of
from kstore.record.parse import parse_batch
from kstore.rules.roll import idle_reason, roll_reason
from kstore.rules.sequence import ProducerBatch
from kstore.segment_tail import SegmentTail
from kstore.types import CREATE_TIME, LOG_APPEND_TIME, NO_OFFSET, OFFSET_MAX, AppendInfo

__all__ = ["Headers", "LogAppender"]

logger = logging.getLogger(__name__)

Headers = Iterable[tuple[str, bytes | None]]

# Larger records alone in their batch are copied less often on the usual way.
SINGLE_BYTES_MAX = 1 << 14
# What a record of such a size has around it at the most: the batch's header, and its own fields and lengths.
SINGLE_OVERHEAD = BATCH_HEADER_BYTES + 16
# Encode buffers kept for reuse; more appends at the same time make their own.
SPARE_BUFFERS_MAX = 16
# A buffer that had to hold more than this is not kept.
SPARE_BUFFER_BYTES_MAX = 4 << 20


class LogAppender(LogFiles):
    """What appends to a log. Thread-safe; the writer, which this is the base of, does all else under the same lock."""

    def __init__(self, loaded: Loaded, lock: WriteLock, *, is_alone: bool) -> None:
        super().__init__(loaded, lock, is_alone=is_alone)
        self._config = loaded.context.config
        self._clock = loaded.context.clock
        # Guards everything that ``LogFiles`` has, and what follows.
        self._own_lock = threading.Lock()
        self._lock: AbstractContextManager[object] = self._own_lock
        # Whether each write is on disk when it returns.
        self._syncs_writes = self._sync
        self._last_append_ms = self._clock.now_ms()
        # Committed reads stop here: behind it a transaction index lacks what could not be written to it.
        self._stable_offset_max = OFFSET_MAX
        # Reentrant: a finalizer may close a consumer, which watches, inside. Nobody enters the condition itself: an
        # interrupt at the end of its ``__enter__``, which is Python, would leave the lock taken.
        self._grown_lock = threading.RLock()
        self._grown = threading.Condition(self._grown_lock)
        self._follower_count = 0  # guarded by _grown; read without it by every append
        self._growth_watchers: list[Callable[[], None]] = []  # the same; each counts as a follower
        self._spare_buffers: deque[BatchBuffer] = deque(maxlen=SPARE_BUFFERS_MAX)
        self._use(self._config)
        self._group = GroupCommit(self._commit, self._clock) if self._sync else None

    def _use(self, config: LogConfig) -> None:
        """Takes what appends ask for every time out of the settings."""
        self._config = config
        self._codec = config.target_codec("none")
        self._level = config.compression_level(self._codec)
        self._timestamp_type = config.message_timestamp_type
        # What is compressed must not grow beyond what a reader takes when it decompresses it.
        self._size_max = min(config.max_message_bytes, config.max_batch_bytes_uncompressed)
        self.is_compacted = config.is_compacted
        is_plain = self._codec == "none" and self._timestamp_type == CREATE_TIME
        self._single_bytes_max = min(self._size_max, config.segment_bytes, SINGLE_BYTES_MAX) if is_plain else 0

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

    def append_single(self, value: bytes, key: bytes | None) -> tuple[int, int] | None:
        """Appends one record in a batch of its own, by the shortest way: its offset and timestamp.

        None, and nothing is done, where anything is to be decided: then ``append_many`` is the way.
        """
        size = len(value) + SINGLE_OVERHEAD if key is None else len(value) + len(key) + SINGLE_OVERHEAD
        if size > self._single_bytes_max or self._sync is not self._syncs_writes:
            return None
        if self._group is not None and self._group.is_busy:
            return None  # it will share a sync with others
        now_ms = self._clock.now_ms()
        body = encode_single(value, key, now_ms)
        if self._group is None:
            offset = self._commit_single(body, crc32c(body), now_ms)
        else:
            offset = self._group.alone(lambda: self._commit_single(body, crc32c(body), now_ms))
        return None if offset is None else (offset, now_ms)

    def _commit_single(self, body: bytes, crc: int, now_ms: int) -> int | None:
        """``_commit`` of what ``encode_single`` gave: its offset; None where that is not plain."""
        size = CRC_START + len(body)
        with self._lock:
            tail, before = self._tail, self.ends
            offset = before.end_offset
            if (
                tail is None
                or self._closed is not None
                or self._poisoned is not None
                or now_ms - self._last_append_ms > tail.idle_ms_max
                or not tail.takes(tail.position, size, offset, now_ms)
            ):
                return None
            position = tail.position
            self._last_append_ms = now_ms
            head = BATCH_HEAD.pack(offset, size - LOG_OVERHEAD_BYTES, self.loaded.leader_epoch, MAGIC_V2, crc)
            try:
                self._write_batches(tail, (head + body,), size)
                tail.note(position, size, offset, now_ms)
                self._publish(offset + 1, tail)
                self.producers.passed(offset, offset + 1)
            except BaseException as error:
                self._undo(before, error)
                raise
            counters = self._counters
            counters.appends += 1
            counters.append_batches += 1
            counters.append_records += 1
            counters.append_bytes += size
        if self._sync:
            counters.group_appends.observe(1)
        if self._follower_count:
            self._wake_followers()
        return offset

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
            before = self.ends
            try:
                self._write(appends, before)
            except BaseException as error:
                self._undo(before, error)
                raise
        if self._sync:
            self._counters.group_appends.observe(len(appends))
        if self._follower_count:
            self._wake_followers()
        if self._retention_due:
            self._retain_after_roll()

    def _wake_followers(self) -> None:
        with self._grown_lock:
            self._grown.notify_all()
            for grown in tuple(self._growth_watchers):
                grown()

    def watch_growth(self, grown: Callable[[], None]) -> None:
        """Has ``grown``, which must be short, called behind each append, until ``unwatch_growth``."""
        with self._grown_lock:
            # The count first: a signal may be served after the call. One that is too high costs time, and no news.
            self._follower_count += 1
            self._growth_watchers.append(grown)

    def unwatch_growth(self, grown: Callable[[], None]) -> None:
        with self._grown_lock:
            if grown in self._growth_watchers:
                self._growth_watchers.remove(grown)
                self._follower_count -= 1

    def _flush_soon(self) -> None:
        """Something was published that is not on disk, in a log that flushes now and then."""

    def _retain_after_roll(self) -> None:
        """A roll is when a log can become too large or too old."""

    # --- park -------------------------------------------------------------------------------------------------------

    @property
    def last_use(self) -> object:
        """See ``files.descriptors.Tail``: each append publishes another value."""
        return self.ends

    def _admit(self) -> None:
        OPEN_TAILS.admit(self)

    def park(self) -> bool:
        """Closes the tail of a log that is not at work now; its next append opens it again, without a scan.

        What was written is on disk then, also with "os": an error of its writeback is told only to descriptors that
        were open. A sync that fails poisons the log. Returns False where the log is at work.
        """
        # Who holds a lock here asks for another one only if that is free now. No circle of waiting can come of it: each
        # lock in it would have been taken after the one before it was.
        # A flush syncs outside the log's lock, and may be what asks here, when it finds no descriptor for a directory.
        if self._own_lock.locked() or self._syncing.locked():
            return False
        with self._own_lock:
            tail = self.segments.last.tail
            if self._closed is not None or tail is None or tail.open_file is None:
                return True
            try:
                self._sync_to_park(tail)
                tail.park(self.context.fs, _admitting(self))
            except StorageError as error:
                logger.debug("%s: not parked: %s", self.context.directory, error)
                return False
            return True

    def _sync_to_park(self, tail: SegmentTail) -> None:
        if self._poisoned is not None:
            return  # never a second sync

        def sync() -> None:
            if not self._sync:
                tail.file.fdatasync()
            self.producers.sync_indexes()

        try:
            self._sync_alone(sync)
        except SyncFailedError as error:
            self._poison(error)

    def _write(self, appends: Sequence[PendingAppend], before: Ends) -> None:
        tail = self._tail or self._begin()
        offset = before.end_offset
        now_ms = self._clock.now_ms()
        if now_ms - self._last_append_ms > tail.idle_ms_max and self._is_idle(tail, now_ms):
            tail = self._roll(offset)
        self._last_append_ms = now_ms
        stable_offset = before.end_offset
        run: list[memoryview] = []
        marks: list[tuple[int, int, int, int]] = []
        written: list[tuple[PendingAppend, int, int]] = []
        position = tail.position
        batch_count = record_count = written_bytes = skipped_count = 0
        checks: PendingProducers | None = None
        for append in appends:
            kept = append.spans
            first_offset = offset if kept is None else kept[0][0]
            if first_offset < offset:
                append.error = InvalidOffsetError(f"the first offset is {first_offset}, expected at least {offset}")
                continue
            if append.with_producers:
                if checks is None:
                    checks = self.producers.pending(before.end_offset, before.position, now_ms)
                    unstable = checks.first_unstable_offset
                    stable_offset = before.end_offset if unstable is None else unstable
                if not self._take_producers(append, checks, offset):
                    written.append((append, NO_OFFSET, NO_OFFSET))
                    skipped_count += 1
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
            if offset != before.end_offset or tail.base_offset != before.base_offset:
                self._publish(offset, tail)
            for append, first_offset, last_offset in written:
                append.finish(first_offset, last_offset)
            counters = self._counters
            counters.appends += len(written) - skipped_count
            counters.append_batches += batch_count
            counters.append_records += record_count
            counters.append_bytes += written_bytes
            if checks is None or not checks.batches:
                self.producers.passed(before.end_offset, offset)
            elif self._poisoned is None:
                self._note_producers(checks.batches, offset, stable_offset)
        except BaseException as error:
            if self.ends.extent != before.extent and any(append.with_producers for append in appends):
                # An interrupt: what is published is not in the transaction index.
                self._stable_offset_max = stable_offset
                self._poison(error)
            if self.ends.extent != before.extent and not isinstance(error, KstoreError):
                # They are in the log: who is not told so writes them again.
                for append, first_offset, last_offset in written:
                    if append.result is None:
                        append.finish(first_offset, last_offset)
            raise

    def _take_producers(self, append: PendingAppend, checks: PendingProducers, offset: int) -> bool:
        """Whether ``append`` is to be written: not where it is refused, or where the log has it already."""
        run = append.run_from(offset)
        if run is not None and checks.take_run(run):
            return True
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
            epoch = leader_epoch_of(view)
            if epoch >= 0:
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
        self._write_batches(tail, run, marks[-1][0] + marks[-1][1] - tail.position)
        for mark in marks:
            tail.note(*mark)
        run.clear()
        marks.clear()

    def _write_batches(self, tail: SegmentTail, batches: Sequence[memoryview | bytes], size: int) -> None:
        if self._syncs_writes:
            started = self._clock.monotonic()
            tail.write(batches, size, sync=True)
            self._counters.sync_seconds.observe(self._clock.monotonic() - started)
        else:
            tail.write(batches, size, sync=False)

    def _publish(self, end_offset: int, tail: SegmentTail) -> None:
        """The one store by which an append becomes visible: the log ends at ``end_offset``, and with ``tail``."""
        start_offset, recovery_point, durable_end, _, _, base_offset, _ = self.ends
        if self._sync:
            if tail.base_offset != base_offset:
                recovery_point = tail.base_offset  # a roll has synced what is below it
            durable_end = end_offset
        self.ends = make_ends(
            (start_offset, recovery_point, durable_end, end_offset, end_offset, tail.base_offset, tail.position)
        )
        if self._sync:
            self._state_file.publish_durable_end(end_offset)
        elif end_offset - recovery_point >= self._config.flush_messages:
            self._flush_locked()
        elif self._durability == "interval":
            self._flush_soon()

    def _undo(self, before: Ends, error: BaseException) -> None:
        """Brings the files back to ``before``, unless the append was published; else the log is poisoned."""
        if isinstance(error, SyncFailedError | PoisonedError):
            self._poison(error)
        if self._poisoned is not None or self.ends.extent != before.extent or self._tail is None:
            return
        try:
            if self._tail.base_offset != before.base_offset or self._tail.position != before.position:
                self._back_to(before)
            # One that was to begin at the end is the one that writes next.
            self.loaded.epochs.truncate_from_end(before.end_offset + 1)
        except BaseException as second:
            self._poison(second)

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


def _admitting(appender: LogAppender) -> Callable[[], None]:
    """Has ``appender`` admitted again; without a reference to it, or the two would keep each other."""
    reference = weakref.ref(appender)

    def admit() -> None:
        found = reference()
        if found is not None:
            found._admit()

    return admit
