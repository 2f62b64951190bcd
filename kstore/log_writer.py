"""The one writer of a log: it assigns offsets, rolls, flushes, truncates and publishes.

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
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kstore.errors import (
    BatchTooLargeError,
    ClosedError,
    InvalidOffsetError,
    OffsetOutOfRangeError,
    PoisonedError,
    StorageError,
    SyncFailedError,
)
from kstore.files.boot import boot_id
from kstore.files.lock import DirectoryLock
from kstore.files.paths import LOG_SUFFIX
from kstore.flusher import Flusher
from kstore.group_commit import GroupCommit, Pending
from kstore.index import TransactionIndex
from kstore.log_loader import Loaded
from kstore.record._codec import BatchBuffer, EncodedBatch, patch_header
from kstore.record.builder import build_batches
from kstore.record.walk import OFFSET_MAX
from kstore.rules.roll import idle_reason, roll_reason
from kstore.segment import LogSegment
from kstore.segment_tail import SegmentTail
from kstore.state.log_state import LogState
from kstore.types import LOG_APPEND_TIME, NO_OFFSET, NO_TIMESTAMP, AppendInfo

__all__ = ["LogWriter", "PendingAppend", "Published"]

logger = logging.getLogger(__name__)

Headers = Iterable[tuple[str, bytes | None]]

# Encode buffers kept for reuse; more appends at the same time make their own.
SPARE_BUFFERS_MAX = 16
# A buffer that had to hold more than this is not kept.
SPARE_BUFFER_BYTES_MAX = 4 << 20


class Published(NamedTuple):
    """What readers see: the log ends at ``offset``, in segment ``base_offset`` at byte ``position``.

    ``high_watermark`` is where reads stop; it is below ``offset`` only in a poisoned log.
    """

    offset: int
    base_offset: int
    position: int
    high_watermark: int


class PendingAppend(Pending[AppendInfo]):
    """One append: encoded batches in ``buffer``; their offsets are assigned when it is committed.

    ``spans`` gives the first and last offset of each batch where they keep the offsets that they have.
    ``append_time_ms`` is NO_TIMESTAMP unless the log stamps; ``with_producers``: a batch has a producer id.
    """

    __slots__ = (
        "append_time_ms",
        "batches",
        "buffer",
        "offsets_monotonic",
        "source_codec",
        "spans",
        "target_codec",
        "with_producers",
    )

    def __init__(
        self,
        buffer: BatchBuffer,
        batches: Sequence[EncodedBatch],
        codec: str,
        *,
        append_time_ms: int = NO_TIMESTAMP,
        source_codec: str = "",
        spans: Sequence[tuple[int, int]] | None = None,
        offsets_monotonic: bool = True,
        with_producers: bool = False,
    ) -> None:
        super().__init__()
        self.buffer = buffer
        self.batches = batches
        self.append_time_ms = append_time_ms
        self.source_codec = source_codec or codec
        self.target_codec = codec
        self.spans = spans
        self.offsets_monotonic = offsets_monotonic
        self.with_producers = with_producers

    def finish(self, first_offset: int, last_offset: int) -> None:
        """Sets the result, now that the append is published."""
        base_offset = first_offset
        record_count = size = 0
        max_timestamp, offset_of_max = NO_TIMESTAMP, NO_OFFSET
        for number, batch in enumerate(self.batches):
            _, _, batch_size, count, _, timestamp, delta = batch
            if self.spans is not None:
                base_offset = self.spans[number][0]
            if timestamp > max_timestamp:
                max_timestamp, offset_of_max = timestamp, base_offset + delta
            record_count += count
            size += batch_size
            base_offset += count
        if self.append_time_ms != NO_TIMESTAMP:
            offset_of_max = last_offset  # all have the same time; Kafka names the last
        self.result = AppendInfo(
            first_offset,
            last_offset,
            max_timestamp,
            offset_of_max,
            self.append_time_ms,
            self.source_codec,
            self.target_codec,
            len(self.batches),
            record_count,
            size,
            self.offsets_monotonic,
        )


class LogWriter:
    """Everything that changes a log. Thread-safe."""

    def __init__(self, loaded: Loaded, lock: DirectoryLock) -> None:
        self.loaded = loaded
        self._directory_lock = lock
        self.context = loaded.context
        self.segments = loaded.segments
        self.producers = loaded.producers
        self.start_offset = loaded.start_offset
        self.published = Published(
            loaded.end_offset, loaded.segments.last.base_offset, loaded.position, loaded.end_offset
        )
        self._config = loaded.context.config
        self._clock = loaded.context.clock
        self._durability = loaded.durability
        self._sync = loaded.durability == "sync"
        self._lock = threading.Lock()
        self._grown = threading.Condition(threading.Lock())
        self._follower_count = 0  # guarded by _grown; read without it by every append
        self._tail: SegmentTail | None = None  # guarded by _lock, as all below
        self._seal_before_append = loaded.seal
        self._state_file = loaded.state_file
        self._recovery_point = loaded.recovery_point
        self._durable_end = loaded.end_offset
        # Sealed since the last flush: the descriptors that wrote are kept, since a failed writeback is told to them.
        self._unflushed: list[SegmentTail] = []
        # Counts on before anything is cut: a reader that met half of it knows by that what it met.
        self.truncation_count = 0
        self._last_append_ms = self._clock.now_ms()
        self._closed: Exception | None = None
        self._poisoned: Exception | None = None
        # Committed reads stop here: behind it a transaction index lacks what could not be written to it.
        self._stable_offset_max = OFFSET_MAX
        self._spare_buffers: deque[BatchBuffer] = deque(maxlen=SPARE_BUFFERS_MAX)
        self._codec = self._config.target_codec("none")
        self._level = self._config.compression_level(self._codec)
        self._timestamp_type = self._config.message_timestamp_type
        # What is compressed must not grow beyond what a reader takes when it decompresses it.
        self._size_max = min(self._config.max_message_bytes, self._config.max_batch_bytes_uncompressed)
        self.is_compacted = self._config.is_compacted
        self._group = GroupCommit(self._commit, self._clock) if self._sync else None
        self._flusher = Flusher(self, self._config.flush_ms / 1000)

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
        if self._follower_count:
            with self._grown:
                self._grown.notify_all()

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
        for append in appends:
            kept = append.spans
            first_offset = offset if kept is None else kept[0][0]
            if first_offset < offset:
                append.error = InvalidOffsetError(f"the first offset is {first_offset}, expected at least {offset}")
                continue
            if append.with_producers:
                unstable = self.producers.up_to(before.offset, before.position).first_unstable_offset
                stable_offset = before.offset if unstable is None else unstable
            buffer = append.buffer
            for number, batch in enumerate(append.batches):
                _, start, size, count, _, max_timestamp, _ = batch
                base_offset, last_offset = (offset, offset + count - 1) if kept is None else kept[number]
                if not tail.takes(position, size, last_offset, max_timestamp) and self._roll_due(
                    tail, position, size, last_offset, max_timestamp
                ):
                    self._write_run(tail, run, marks)
                    tail = self._roll(base_offset)
                    position = 0
                if kept is None:
                    patch_header(buffer, start, base_offset, self.loaded.leader_epoch)
                run.append(buffer.view(start, start + size))
                marks.append((position, size, last_offset, max_timestamp))
                position += size
                offset = last_offset + 1
            written.append((append, first_offset, offset - 1))
        self._write_run(tail, run, marks)
        self._publish(Published(offset, tail.base_offset, tail.position, offset))
        for append, first_offset, last_offset in written:
            append.finish(first_offset, last_offset)
            if append.with_producers and self._poisoned is None:
                self._note_producers(last_offset + 1, tail.position, stable_offset)

    def _note_producers(self, end: int, position: int, stable_offset: int) -> None:
        """Takes in the producers of what was published.

        Where that fails the append stands and the log is poisoned: only recovery can make the transaction index whole,
        and until then committed reads end where they ended before.
        """
        try:
            self.producers.extend_to(end, position)
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
        tail.write(run, size, sync=self._sync)
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
        if self.published is not before or self._tail is None:
            return
        if isinstance(error, SyncFailedError | PoisonedError):
            self._poison(error)
            return
        try:
            if self._tail.base_offset != before.base_offset or self._tail.position != before.position:
                self._back_to(before)
        except Exception as second:
            self._poison(second)

    def _back_to(self, before: Published) -> None:
        """Removes the segments that a failed append has rolled into, and cuts the one that it began in."""
        for segment in reversed(self.segments.range(before.base_offset, 2**63 - 1)):
            if segment.base_offset > before.base_offset:
                segment.delete()
                self.segments.remove([segment.base_offset])
        self._unflushed = [tail for tail in self._unflushed if tail.base_offset < before.base_offset]
        self._tail = self.segments.last.activate()
        self._tail.truncate_to(before.offset, before.position)

    def catch_up(self) -> None:
        """Takes in what other processes have appended: nothing, since a log has one writer."""

    # --- roll -------------------------------------------------------------------------------------------------------

    def _begin(self) -> SegmentTail:
        """Opens the active segment for appending; from here on the log on disk counts as not closed in order."""
        self._store_state()
        if self._seal_before_append:
            # Fenced damage, or missing offsets, stand where the next batch would go: it goes into a segment of its own.
            return self._roll(self.published.offset)
        self._tail = self.segments.last.activate()
        if self._tail.position != self.published.position:
            raise StorageError(
                None,
                f"the log ends at {self._tail.position} bytes, expected {self.published.position}",
                str(self._tail.file.path),
            )
        return self._tail

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
            self._roll_now()
            return True

    def _roll_now(self) -> int:
        tail = self._roll(self.published.offset)
        self.published = self.published._replace(base_offset=tail.base_offset, position=tail.position)
        return tail.base_offset

    def _roll(self, base_offset: int) -> SegmentTail:
        """Seals the active segment and begins one at ``base_offset``, which follows all that is in the log.

        The new file comes first: where there is no room for it, the old segment just goes on.
        """
        old = self.segments.last
        if old.base_offset == base_offset and old.size == 0:
            self._tail = old.activate()
            return self._tail
        new = LogSegment(self.context, base_offset)
        new.delete()  # a crash may have left files of this name; the map does not know them, so nothing can be in them
        new.create()
        if self._sync:
            # Until then a crash may lose the new file's name, with what was acknowledged in it.
            self.context.fs.sync_dir(self.context.directory)
        tail = new.activate()
        sealed = old.tail
        # Indexes are hints, but below the recovery point nothing looks after them any more.
        old.seal(sync=self._sync)
        if (old.base_offset, old.size) == (self.published.base_offset, self.published.position):
            # Within an append the producers are only known up to where it began, and that is not ``base_offset``.
            self.producers.snapshot(base_offset)
        if self._sync:
            self._sync_indexes(self.producers.take_unsynced())
        self.segments.add(new)
        self._tail = tail
        self._seal_before_append = False
        if self._sync:
            self._recovery_point = base_offset
            self._store_state()
        elif sealed is not None:
            self._unflushed.append(sealed)
            self._flusher.note()
        return tail

    def roll(self) -> int:
        """Begins a new segment, if the active one holds anything; returns the active segment's base offset."""
        with self._lock:
            self.ensure_writable()
            if self._tail is None:
                self._begin()
            return self._roll_now()

    # --- flush ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Everything that is published to disk, and the recovery point with it."""
        self.roll_if_idle()
        with self._lock:
            self.ensure_writable()
            target = self.published
            tails = self._dirty_tails()
            indexes = self.producers.take_unsynced()
        self._sync_tails(tails, indexes)
        with self._lock:
            if self._closed is None and self._poisoned is None:
                self._flushed(target, tails)

    def _flush_locked(self) -> None:
        tails = self._dirty_tails()
        self._sync_tails(tails, self.producers.take_unsynced())
        self._flushed(self.published, tails)

    def _dirty_tails(self) -> list[SegmentTail]:
        return [*self._unflushed, *([self._tail] if self._tail is not None else [])]

    def _sync_indexes(self, indexes: Sequence[TransactionIndex]) -> None:
        """Unlike the other indexes, those of transactions are believed, so they are as durable as the log."""
        for index in indexes:
            index.flush()
        if indexes:
            self.context.fs.sync_dir(self.context.directory)

    def _sync_tails(self, tails: Sequence[SegmentTail], indexes: Sequence[TransactionIndex]) -> None:
        try:
            for tail in tails:
                tail.file.fdatasync()
                if tail is not self._tail:
                    tail.sync_indexes(self.context.fs)
            self._sync_indexes(indexes)
            self.context.fs.sync_dir(self.context.directory)
        except SyncFailedError as error:
            self._poison(error)
            raise

    def _flushed(self, target: Published, tails: Sequence[SegmentTail]) -> None:
        self._unflushed = [tail for tail in self._unflushed if tail not in tails]
        self._durable_end = max(self._durable_end, target.offset)
        self._recovery_point = max(self._recovery_point, min(target.offset, self.published.offset))
        self._store_state()

    def _store_state(self, *, clean: bool = False, durable_end: int | None = None, **clean_mark: int) -> None:
        if durable_end is None:
            durable_end = min(self._durable_end, self.published.offset)
        self._state_file.store(
            LogState(
                durability=self._durability,
                clean=clean,
                recovery_point=min(self._recovery_point, self.published.offset),
                log_start_offset=self.start_offset,
                durable_end=durable_end,
                boot_id=boot_id(),
                **clean_mark,
            )
        )

    def _poison(self, error: BaseException) -> None:
        """No more writes, no second sync, and reads up to the durable end only."""
        if self._poisoned is None:
            self._poisoned = error if isinstance(error, Exception) else StorageError(str(error))
            durable_end = min(self._durable_end, self.published.offset)
            self.published = self.published._replace(high_watermark=durable_end)
            logger.error("%s: poisoned: %s; reads end at offset %d", self.context.directory, error, durable_end)

    # --- truncate ---------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """See ``Log.truncate_to``."""
        if offset < 0:
            raise InvalidOffsetError(f"cannot truncate to offset {offset}, expected at least 0")
        with self._lock:
            self.ensure_writable()
            if offset >= self.published.offset:
                return
            if offset < self.segments.first.base_offset:
                self._start_at(offset)
                return
            self._truncate(offset)

    def _truncate(self, offset: int) -> None:
        if self._tail is None:
            self._begin()
        keep = self.segments.floor(offset)
        assert keep is not None
        found = keep.batch_at(offset, keep.size)
        position = keep.size if found is None else found.position
        end_in_file = min(keep.end(position).offset, offset)
        # What is known of the end is lowered first: a crash on the way leaves more than asked, never less.
        self.truncation_count += 1
        self.start_offset = min(self.start_offset, offset)
        self._durable_end = min(self._durable_end, end_in_file)
        self._recovery_point = min(self._recovery_point, keep.base_offset)
        self.published = Published(offset, keep.base_offset, position, min(offset, self.published.high_watermark))
        self._store_state(durable_end=end_in_file)
        try:
            self.producers.truncate_to(end_in_file)
            dropped = [segment for segment in self.segments if segment.base_offset > keep.base_offset]
            self._drop(reversed(dropped))
            self._tail = keep.activate()
            self._tail.truncate_to(offset, position)
            keep.truncate_transactions_to(offset)
            self._seal_before_append = False
            if end_in_file < offset:
                # A batch went as a whole: the offsets of its first part are not given out again, and the name of the
                # next segment is what remembers that.
                self._roll_now()
        except BaseException as error:
            self._poison(error)
            raise
        self._durable_end = offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """See ``Log.truncate_fully_and_start_at``."""
        if offset < 0:
            raise InvalidOffsetError(f"cannot start at offset {offset}, expected at least 0")
        with self._lock:
            self.ensure_writable()
            self._start_at(offset)

    def _start_at(self, offset: int) -> None:
        self.truncation_count += 1
        self.start_offset = offset
        self._recovery_point = self._durable_end = offset
        self.published = Published(offset, offset, 0, offset)
        self._store_state()
        try:
            dropped = list(self.segments)
            segment = LogSegment(self.context, offset, size=0)
            # At once: readers never meet a map without segments.
            self.segments.replace([segment])
            self._unflushed.clear()
            for old in reversed(dropped):
                old.delete()
            segment.create()
            self.context.fs.sync_dir(self.context.directory)
            self._tail = segment.activate()
            self.producers.truncate_to(-1)
        except BaseException as error:
            self._poison(error)
            raise
        self._seal_before_append = False

    def delete_records(self, before: int) -> int:
        """See ``Log.delete_records``."""
        with self._lock:
            self.ensure_writable()
            end = self.published.high_watermark
            if not 0 <= before <= end:
                raise OffsetOutOfRangeError(before, start_offset=self.start_offset, end_offset=end)
            if before <= self.start_offset:
                return self.start_offset
            self.start_offset = before
            self._recovery_point = max(self._recovery_point, min(before, self._durable_end))
            self._store_state()
            if self._tail is None:
                self._begin()
            bases = self.segments.bases
            self.producers.secure(max(base for base in bases if base <= before))
            # Oldest first, so that a crash leaves no hole; what is left below the start is removed at the next open.
            ends = zip(self.segments, bases[1:], strict=False)
            self._drop(segment for segment, next_base in ends if next_base <= before)
            self.producers.delete_before(self.segments.first.base_offset)
            return before

    def _drop(self, segments: object) -> None:
        dropped = list(segments)  # type: ignore[call-overload]
        self.segments.remove([segment.base_offset for segment in dropped])
        for segment in dropped:
            self._unflushed = [tail for tail in self._unflushed if tail.base_offset != segment.base_offset]
            segment.delete()
        if dropped:
            self.context.fs.sync_dir(self.context.directory)

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

    def last_stable_offset(self) -> int:
        """Where committed reads stop: the first offset of the oldest open transaction, or the high watermark."""
        with self._lock:
            published = self.published
            unstable = self.producers.up_to(published.offset, published.position).first_unstable_offset
        stable = published.high_watermark if unstable is None else min(unstable, published.high_watermark)
        # What a transaction began with may have been deleted.
        return max(min(stable, self._stable_offset_max), self.start_offset)

    # --- close ------------------------------------------------------------------------------------------------------

    def ensure_writable(self) -> None:
        """Raises what stands against a write: ClosedError, ForkedError, PoisonedError."""
        if self._closed is not None:
            raise self._closed
        if self._poisoned is not None:
            raise PoisonedError(
                getattr(self._poisoned, "errno", None),
                f"no writes since a failure of unknown outcome ({self._poisoned}): reopen the log to recover",
                str(self.context.directory),
            ) from self._poisoned

    def close(self) -> None:
        """Flushes, marks the log as closed in order, and lets go of it. A second close does nothing.

        Raises: SyncFailedError, StorageError: then the log is closed all the same, and recovers when it is next opened.
        """
        self._flusher.stop()
        with self._lock:
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

    def _close_in_order(self) -> None:
        current = self._state_file.current
        last = self.segments.last
        if current is not None and current.clean and last.tail is None:
            return  # nothing has changed since the last clean close
        if last.tail is not None and self._tail is None:
            self._tail = last.tail  # recovery left it open
        if not self._sync or self._tail is None:
            self._sync_tails(self._dirty_tails(), ())
        self.producers.snapshot(self.published.offset)
        self._sync_indexes(self.producers.take_unsynced())
        last.seal(sync=True)
        self._unflushed.clear()
        self._durable_end = self._recovery_point = self.published.offset
        if self._seal_before_append:
            return  # the end is fenced damage: only recovery knows that nothing may be appended behind it
        stat = self.context.fs.stat(last.path(LOG_SUFFIX))
        self._store_state(
            clean=True,
            clean_base=last.base_offset,
            clean_inode=stat.inode,
            clean_size=stat.size,
            clean_mtime_ns=stat.mtime_ns,
        )

    def _let_go(self) -> None:
        self._tail = None
        for segment in self.segments:
            if segment.tail is not None:
                segment.tail.abandon()
                segment.tail = None
        self.context.handles.clear()
        self._state_file.close()
        self._directory_lock.release()
