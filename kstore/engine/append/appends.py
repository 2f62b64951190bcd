"""The append path of a log: batches get their offsets, are written, indexed and published, completely or not at all.

The turn is held for whatever changes the files: patching the headers, the write, the index entries, the roll. Encoding
and the CRC come before it, because the CRC leaves out the base offset. Readers never take it: they see one immutable
value, ``Ends``, which is replaced by one store when an append is complete.

Until an append is published any exception, KeyboardInterrupt included, cuts it back. If that fails, or a sync has
failed, the log is poisoned: it then serves what is known to be durable and accepts no writes.

The steps of an append are compiled (``_path``), and this decides between them. Where there is nothing to decide they
run without it; whatever needs a decision comes to ``_commit``, which takes any number of appends.
``tests/property/test_append_model.py`` holds every way against one plain model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from kstore.config import LogConfig
from kstore.engine.append._group import GroupCommit, PendingSingle
from kstore.engine.append._path import AppendPath, Plan, settle
from kstore.engine.append.pending import PendingAppend, keep_buffer, nothing_appended, spare_buffer
from kstore.engine.change.durability import DurabilityStrategy
from kstore.engine.change.growth import Growth
from kstore.engine.change.retention import Retention
from kstore.engine.change.roll import Rolls
from kstore.engine.files import LogFiles
from kstore.engine.producers import PendingProducers
from kstore.engine.turn import Turn
from kstore.errors import (
    BatchTooLargeError,
    CorruptDataError,
    KstoreError,
    RequestError,
    SharedLogError,
)
from kstore.record._codec import BatchBuffer, EncodedBatch
from kstore.record.builder import build_batches
from kstore.record.heads import leader_epoch_of
from kstore.record.parse import parse_batch
from kstore.rules.arguments import are_timely, as_rows, as_sequence, check_keys, check_timestamps, timestamp_ms
from kstore.types import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_OFFSET,
    OFFSET_MAX,
    TIMESTAMP_TYPES,
    AppendInfo,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kstore.record.rows import TableRows

# More than a batch of one record needs besides key and value.
RECORD_OVERHEAD = 128

Headers: TypeAlias = (
    "Mapping[str, Buffer | None] | Mapping[bytes, Buffer | None] | Iterable[tuple[str | Buffer, Buffer | None]]"
)


class Appends:
    """Appends to one log. Thread-safe."""

    def __init__(
        self,
        files: LogFiles,
        turn: Turn,
        durability: DurabilityStrategy,
        rolls: Rolls,
        retention: Retention,
        growth: Growth,
    ) -> None:
        self._files = files
        self._turn = turn
        self._lock = turn.lock
        self._durability = durability
        self._is_shared = files.others is not None
        self._rolls = rolls
        self._retention = retention
        self._clock = files.context.clock
        self._counters = files.counters
        # Committed reads stop here: above it a transaction index lacks entries that could not be written.
        self.stable_offset_max: int = OFFSET_MAX
        self._group = GroupCommit(self._commit_group, self._clock, turn.lock) if durability.is_sync else None
        self.path: AppendPath = AppendPath(self, files, turn.lock, durability, rolls, growth, self._group)
        self.use(files.context.config)

    def use(self, config: LogConfig) -> None:
        """Caches the settings that every append needs."""
        self._config = config
        self._codec = config.target_codec("none")
        self._level = config.compression_level(self._codec)
        self._timestamp_type = config.message_timestamp_type
        # Compressed data must not exceed what a reader accepts when it decompresses it.
        self._size_max = min(config.max_message_bytes, config.max_batch_bytes_uncompressed)
        self.is_compacted: bool = config.is_compacted
        # A record whose key and value are bytes, together no more than this, is certainly accepted; -1 if none is.
        # Half the limit: what cannot be compressed becomes larger.
        size_max = min(self._size_max, config.segment_bytes)
        self.certain_bytes: int = -1 if config.is_compacted else size_max // 2 - RECORD_OVERHEAD
        # With a sync after the turn there is a group, and no short way into it.
        is_short = self._durability.is_sync is self._durability.syncs_writes
        is_plain = is_short and self._timestamp_type == CREATE_TIME and self._codec == "none"
        self.path.use(min(self._size_max, config.segment_bytes) if is_plain else 0, self.is_compacted)

    # --- append -----------------------------------------------------------------------------------------------------

    def append_many(
        self,
        values: Iterable[Buffer | None],
        keys: Iterable[Buffer | None] | None,
        timestamps: Iterable[int | datetime] | None,
        headers: Iterable[Headers | None] | None,
    ) -> AppendInfo:
        """See ``Log.append_many``."""
        try:
            append = self._checked(values, keys, timestamps, headers)
            return nothing_appended(self._files.ends.end_offset) if append is None else self.commit_built(append)
        except Exception as error:
            self._counters.append_failed(error)
            raise

    def check(
        self, value: Buffer | None, key: Buffer | None, timestamp: int | datetime | None, headers: Headers
    ) -> None:
        """Raises what ``append_many`` of this record raises before it writes, and counts it as failed."""
        keys, timestamps = None if key is None else (key,), None if timestamp is None else (timestamp,)
        try:
            append = self._checked((value,), keys, timestamps, (headers,) if headers else None)
            assert append is not None
            try:
                self._check_sizes(append)
            finally:
                keep_buffer(append.buffer)
        except Exception as error:
            self._counters.append_failed(error)
            raise

    def _checked(
        self,
        values: Iterable[Buffer | None],
        keys: Iterable[Buffer | None] | None,
        timestamps: Iterable[int | datetime] | None,
        headers: Iterable[Headers | None] | None,
    ) -> PendingAppend | None:
        """The encoded records, None for no records."""
        if type(values) is not list:
            values = as_sequence("values", values)
        keys = None if keys is None else as_sequence("keys", keys)
        headers = None if headers is None else as_rows("headers", headers)
        if timestamps is not None:
            timestamps = self._checked_timestamps(as_sequence("timestamps", timestamps))
        if self.is_compacted:
            check_keys(keys, len(values))
        return self._encoded(values, keys, timestamps, headers) if values else None

    def _checked_timestamps(self, timestamps: Sequence[int | datetime]) -> Sequence[int]:
        """Raises: TypeError, ValueError, InvalidTimestampError."""
        config, now_ms = self._config, self._clock.now_ms()
        try:
            if config.message_timestamp_type != LOG_APPEND_TIME or int in map(type, timestamps[:1]):
                # As they are: a look at the type of each would cost more than the check.
                check_timestamps(timestamps, config, now_ms)  # type: ignore[arg-type]
                return timestamps  # type: ignore[return-value]  # the codec refuses other types
        except TypeError:
            pass
        made = [timestamp_ms(one) for one in timestamps]
        check_timestamps(made, config, now_ms)
        return made

    def append_rows(self, rows: TableRows) -> AppendInfo | None:
        """Appends the rows of Arrow columns. Returns None, and has done nothing, if anything needs a decision or is
        wrong: then use ``append_many``."""
        config, now_ms = self._config, self._clock.now_ms()
        if self.is_compacted and not rows.has_every_key:
            return None
        if rows.times is not None and not are_timely(*rows.times, config, now_ms):
            return None
        buffer = spare_buffer()
        batches = rows.build(
            buffer,
            codec=self._codec,
            level=self._level,
            timestamp_type=TIMESTAMP_TYPES.index(self._timestamp_type),
            now_ms=now_ms,
            size_max=self._size_max,
        )
        if not batches:
            return None
        try:
            return self.commit_built(self._pending(buffer, batches, now_ms))
        except Exception as error:
            self._counters.append_failed(error)
            raise

    def _encoded(
        self,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None,
        timestamps: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> PendingAppend:
        buffer = spare_buffer()
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
        return self._pending(buffer, batches, now_ms)

    def append_single(self, value: object, key: object) -> tuple[int, int] | None:
        """Appends one plain record; returns its offset and timestamp. None, and nothing is done, if anything needs a
        decision: then use ``append_many``."""
        return self.path.append(value, key)

    def commit_built(self, append: PendingAppend) -> AppendInfo:
        """``commit``, of an append whose buffer is then used again; returns the result."""
        try:
            self.commit(append)
            # Only now: after an exception a leader may still be writing from the buffer.
            keep_buffer(append.buffer)
        except MemoryError:
            if append.result is None or self._files.poisoned is not None:
                raise
            # It is in the log: an error would let the caller write it again.
        assert append.result is not None
        return append.result

    def _pending(self, buffer: BatchBuffer, batches: list[EncodedBatch], now_ms: int) -> PendingAppend:
        append = PendingAppend(buffer, batches, self._codec)
        if self._timestamp_type == LOG_APPEND_TIME:
            append.append_time_ms = now_ms
        return append

    def commit(self, append: PendingAppend) -> None:
        """Writes ``append``; returns when it is as durable as the log's setting says.

        Raises the errors of this append before it joins other appends, which they must not affect.
        """
        if self._group is not None:
            self._check_sizes(append)
            self._group.submit(append)
            return
        try:
            if not self.path.commit(append):
                self._check_sizes(append)
                self._commit((append,))
        except MemoryError:
            if append.result is None or self._files.poisoned is not None:
                raise
            # As in a group: what has a result is in the log.
        if append.error is not None:
            raise append.error

    def _check_sizes(self, append: PendingAppend) -> None:
        segment_bytes = self._config.segment_bytes
        for batch in append.batches:
            if batch.size > segment_bytes:
                raise BatchTooLargeError(batch.size, segment_bytes)

    def _commit_group(self, group: list[PendingAppend | PendingSingle]) -> None:
        """Commits appends of several threads."""
        if self.path.commit_group(group):
            return
        appends = [self._general(append) for append in group]
        try:
            self._commit([append for append in appends if append is not None])
        finally:
            settle(group, appends)

    def _general(self, append: PendingAppend | PendingSingle) -> PendingAppend | None:
        """``append`` for the general path; None if it is refused, and has its error: it must not affect the others."""
        if isinstance(append, PendingAppend):
            return append
        try:
            return self._encoded((append.value,), None if append.key is None else (append.key,))
        except KstoreError as error:
            append.error = error  # the settings have changed since it was submitted
            return None

    def commit_many(self, appends: Sequence[PendingAppend]) -> None:
        """Writes appends with one call, in their order; each then has a result or an error of its own.

        Raises an error that stopped all of them: then none is in the log.
        """
        if len(appends) != 1 or not self.path.commit(appends[0]):
            self._commit(appends)

    def _commit(self, appends: Sequence[PendingAppend]) -> None:
        files = self._files
        if self._is_shared and any(append.with_producers for append in appends):
            self._turn.read_producers_ahead()
        try:
            with self._lock:
                files.ensure_writable()
                if files.tail is None:
                    with files.poisoned_by_syncs():
                        self._rolls.begin()  # not undone if the append fails
                self._write(appends)
                self._durability.note_written()
            self._durability.make_durable()
        except BaseException:
            self.path.wake()  # the first step: what was published before an interrupt stays
            self._durability.withdraw(appends)
            raise
        self.path.wake()
        if self._group is not None:
            self._counters.group_appends.observe(len(appends))
        if self._rolls.retention_due:
            self._retention.after_roll()

    def _write(self, appends: Sequence[PendingAppend]) -> None:
        """Writes and publishes the appends, as ``AppendPath`` does one, with the decisions that they need."""
        files, path, tail = self._files, self.path, self._files.tail
        assert tail is not None
        now_ms = self._clock.now_ms()
        plan = path.plan(now_ms)
        try:
            checks = None
            if any(append.with_producers for append in appends):
                checks = files.producers.pending(files.ends.end_offset, files.ends.position, now_ms)
            if now_ms - files.last_append_ms > tail.numbers.segment_ms and self._rolls.is_idle(tail, now_ms):
                self._rolls.roll(plan.end)
                path.go_on(plan)
            files.last_append_ms = now_ms
            results = [self._place(append, plan, checks) for append in appends]
            path.write(plan)
            if checks is not None and checks.first_unstable_offset is not None:
                plan.stable_offset = checks.first_unstable_offset
            path.publish(plan, list(appends), results, None if checks is None else checks.batches)
        except BaseException as error:
            path.take_back(plan, error)
            raise

    def _place(self, append: PendingAppend, plan: Plan, checks: PendingProducers | None) -> AppendInfo | None:
        """Adds an append to the plan; returns its result, None if it is refused and has its error."""
        offset = plan.end
        append.error = append.misplaced_at(offset)
        if append.error is not None:
            return None
        if append.with_producers:
            assert checks is not None
            if not self._take_producers(append, checks, offset):
                if not append.repeated:
                    return None
                self._counters.append_duplicates += 1
                return append.info(NO_OFFSET, NO_OFFSET)
            plan.with_producers = True
        kept = append.spans
        first_offset = offset if kept is None else kept[0][0]
        if kept is not None:
            self._note_epochs(append, kept)
        leader_epoch = self._files.leader_epoch if kept is None else None
        buffers = append.buffers
        for number, batch in enumerate(append.batches):
            first, last = (offset, offset + batch.record_count - 1) if kept is None else kept[number]
            buffer = append.buffer if buffers is None else buffers[number]
            if not plan.add(buffer, batch, first, last, leader_epoch):
                self._make_room(plan, batch, first, last)
                plan.add(buffer, batch, first, last, leader_epoch, is_certain=True)
            offset = last + 1
        plan.append_count += 1
        return append.info(first_offset, offset - 1)

    def _make_room(self, plan: Plan, batch: EncodedBatch, first_offset: int, last_offset: int) -> None:
        """Rolls if a batch that the plan does not take for certain goes into a new segment."""
        files, path = self._files, self.path
        assert files.tail is not None
        if plan.indexes_full:
            path.write(plan)  # then it is known how many entries its batches have got
        if self._rolls.is_due(files.tail, plan, batch.size, last_offset, batch.max_timestamp):
            path.write(plan)
            self._rolls.roll(first_offset)
            path.go_on(plan)

    def _take_producers(self, append: PendingAppend, checks: PendingProducers, offset: int) -> bool:
        """Whether to write ``append``: no if it is refused, or if the log has it already."""
        if self._is_shared and _has_transactions(append):
            append.error = SharedLogError("transactions need a log that one process writes to")
            return False
        if checks.take_run(append.run_from(offset)):
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
        self._files.announce()
        for view, (first_offset, _) in zip(append.views(), spans, strict=True):
            epoch = leader_epoch_of(view)
            if epoch >= 0:
                self._files.epochs.assign(epoch, first_offset)


def _has_transactions(append: PendingAppend) -> bool:
    batches = [parse_batch(view, 0) for view in append.views()]
    return any(batch.is_transactional or batch.is_control for batch in batches)
