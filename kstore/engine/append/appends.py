"""The append path of a log: batches get their offsets, are written, indexed and published, completely or not at all.

The turn is held for whatever changes the files: patching the headers, the write, the index entries, the roll. Encoding
and the CRC come before it, because the CRC leaves out the base offset. Readers never take it: they see one immutable
value, ``Ends``, which is replaced by one store when an append is complete.

Until an append is published any exception, KeyboardInterrupt included, cuts it back. If that fails, or a sync has
failed, the log is poisoned: it then serves what is known to be durable and accepts no writes.

``_commit`` takes any number of appends. There are shorter paths of the same steps where there is nothing to decide,
all compiled; whatever needs a decision is left to ``_commit``. ``PlacedAppends``: batches of one append that certainly
go into the active segment. ``WrittenAppends``: one plain record that is not synced. ``SyncedAppends``: synced plain
records, of several threads if they append at the same time. ``tests/unit/engine/test_append_placed.py``,
``test_append_single.py`` and ``test_append_synced.py`` compare the paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from kstore.config import LogConfig
from kstore.engine.append._group import GroupCommit
from kstore.engine.append._placed import PlacedAppends
from kstore.engine.append._single import SingleAppends, WrittenAppends, wake_followers
from kstore.engine.append._synced import PendingSingle, SyncedAppends, settle
from kstore.engine.append.pending import PendingAppend, keep_buffer, nothing_appended, spare_buffer
from kstore.engine.change.durability import DurabilityStrategy, SyncInWrite, WriteBehind
from kstore.engine.change.growth import Growth
from kstore.engine.change.retention import Retention
from kstore.engine.change.roll import Rolls
from kstore.engine.ends import Ends
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
from kstore.record._codec import BatchBuffer, EncodedBatch, patch_header
from kstore.record.builder import build_batches
from kstore.record.heads import leader_epoch_of
from kstore.record.parse import parse_batch
from kstore.rules.arguments import are_timely, as_rows, as_sequence, check_keys, check_timestamps, timestamp_ms
from kstore.segments.tail import SegmentTail
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
        self._syncs_writes = durability.syncs_writes
        self._is_shared = files.others is not None
        self._rolls = rolls
        self._retention = retention
        self._growth = growth
        self._clock = files.context.clock
        self._counters = files.counters
        # Committed reads stop here: above it a transaction index lacks entries that could not be written.
        self.stable_offset_max: int = OFFSET_MAX
        # None if appends are synced after their turn, as the next two.
        self._placed: PlacedAppends | None = None
        if durability.is_sync is self._syncs_writes:
            self._placed = PlacedAppends(self, files, turn.lock, durability, rolls, growth)
        self.single: SingleAppends | None = None
        self._synced: SyncedAppends | None = None
        self._group = GroupCommit(self._commit_group, self._clock, turn.lock) if durability.is_sync else None
        if isinstance(durability, WriteBehind):
            self.single = WrittenAppends(files, turn.lock, durability, rolls, growth)
        elif isinstance(durability, SyncInWrite):
            assert self._group is not None
            self.single = self._synced = SyncedAppends(files, turn.lock, durability, rolls, growth, self._group)
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
        if self.single is not None:
            is_plain = self._timestamp_type == CREATE_TIME and self._codec == "none"
            self.single.use(min(self._size_max, config.segment_bytes) if is_plain else 0, self.is_compacted)

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
            return nothing_appended(self._files.ends.end_offset) if append is None else self._commit_built(append)
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
            return self._commit_built(self._pending(buffer, batches, now_ms))
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
        return None if self.single is None else self.single.append(value, key)

    def _commit_built(self, append: PendingAppend) -> AppendInfo:
        try:
            if self._group is not None or not self._commit_placed(append):
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
        self._check_sizes(append)
        if self._group is not None:
            self._group.submit(append)
        else:
            try:
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
        if self._synced is not None and self._synced.commit(group):
            return
        if len(group) == 1 and isinstance(group[0], PendingAppend) and self._commit_placed(group[0]):
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
        if len(appends) != 1 or not self._commit_placed(appends[0]):
            self._commit(appends)

    def _commit_placed(self, append: PendingAppend) -> bool:
        """``_commit`` of one append, also with a producer; False, and nothing is done, if it needs a decision."""
        return self._placed is not None and self._placed.commit(append)

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
                before = files.ends
                try:
                    self._write(appends, before)
                    self._durability.note_written()
                except BaseException as error:
                    files.note_failure(error)
                    self._rolls.undo(before)
                    raise
            self._durability.make_durable()
        except BaseException:
            wake_followers(self._growth)  # the first step: what was published before an interrupt stays
            self._durability.withdraw(appends)
            raise
        wake_followers(self._growth)
        if self._group is not None:
            self._counters.group_appends.observe(len(appends))
        if self._rolls.retention_due:
            self._retention.after_roll()

    def _write(self, appends: Sequence[PendingAppend], before: Ends) -> None:
        files = self._files
        tail = files.tail
        assert tail is not None
        offset = before.end_offset
        now_ms = self._clock.now_ms()
        if now_ms - files.last_append_ms > tail.numbers.segment_ms and self._rolls.is_idle(tail, now_ms):
            tail = self._rolls.roll(offset)
        files.last_append_ms = now_ms
        run: list[memoryview] = []
        marks: list[tuple[int, int, int, int]] = []
        written = _Written()
        position = tail.position
        for append in appends:
            kept = append.spans
            first_offset = offset if kept is None else kept[0][0]
            append.error = append.misplaced_at(offset)
            if append.error is not None:
                continue
            if append.with_producers:
                if written.checks is None:
                    written.checks = files.producers.pending(before.end_offset, before.position, now_ms)
                if not self._take_producers(append, written.checks, offset):
                    written.appends.append((append, NO_OFFSET, NO_OFFSET))
                    written.skipped_count += 1
                    if append.repeated:
                        self._counters.append_duplicates += 1
                    continue
            if kept is not None:
                self._note_epochs(append, kept)
            buffer, buffers = append.buffer, append.buffers
            leader_epoch = files.leader_epoch
            for number, batch in enumerate(append.batches):
                _, start, size, count, _, max_timestamp, _ = batch
                base_offset, last_offset = (offset, offset + count - 1) if kept is None else kept[number]
                if not tail.numbers.takes(position, size, last_offset, max_timestamp) and self._rolls.is_due(
                    tail, position, size, last_offset, max_timestamp
                ):
                    self._write_run(tail, run, marks)
                    tail = self._rolls.roll(base_offset)
                    position = 0
                if buffers is not None:
                    buffer = buffers[number]
                if kept is None:
                    patch_header(buffer, start, base_offset, leader_epoch)
                run.append(buffer.view(start, start + size))
                marks.append((position, size, last_offset, max_timestamp))
                position += size
                offset = last_offset + 1
                written.batch_count += 1
                written.record_count += count
                written.size += size
            written.appends.append((append, first_offset, offset - 1))
        self._write_run(tail, run, marks)
        self._publish(written, tail, offset, before)

    def _publish(self, written: _Written, tail: SegmentTail, end: int, before: Ends) -> None:
        """Publishes what was written: the log then ends at ``end``, in ``tail``. Each append gets its result."""
        files, checks = self._files, written.checks
        stable_offset = before.end_offset
        if checks is not None and checks.first_unstable_offset is not None:
            stable_offset = checks.first_unstable_offset
        try:
            if end != before.end_offset or tail.base_offset != before.base_offset:
                self._durability.publish(end, tail)
            for append, first_offset, last_offset in written.appends:
                append.finish(first_offset, last_offset)
            count = len(written.appends) - written.skipped_count
            self._counters.count_appends(count, written.batch_count, written.record_count, written.size)
            if checks is None or not checks.batches:
                files.producers.passed(before.end_offset, end)
            elif files.poisoned is None:
                self._note_producers(checks, end, stable_offset)
        except BaseException as error:
            has_grown = files.ends.extent != before.extent
            if has_grown and any(append.with_producers for append, _, _ in written.appends):
                # An interrupt: the published batches are not in the transaction index.
                self.stable_offset_max = stable_offset
                files.poison(error)
            if has_grown and not isinstance(error, KstoreError):
                # They are in the log: a caller without an answer would write them again.
                for append, first_offset, last_offset in written.appends:
                    if append.result is None:
                        append.finish(first_offset, last_offset)
            raise

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

    def _note_producers(self, checks: PendingProducers, end: int, stable_offset: int) -> None:
        """Applies the producers of batches that were published.

        If that fails the append stays and the log is poisoned: only recovery can complete the transaction index, and
        until then committed reads end where they ended before.
        """
        files = self._files
        try:
            files.producers.take_in(checks.batches, end)
        except BaseException as error:
            self.stable_offset_max = stable_offset
            files.poison(error)
            if not isinstance(error, Exception):
                raise

    def _write_run(self, tail: SegmentTail, run: list[memoryview], marks: list[tuple[int, int, int, int]]) -> None:
        """Writes all batches of ``run``, which go into one segment, with one call; then their index entries."""
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


class _Written:
    """What one write has put into the log: appends, with the first and last offset of each; how many of them were
    skipped; ``checks`` of their producers, if any has one."""

    __slots__ = ("appends", "batch_count", "checks", "record_count", "size", "skipped_count")

    def __init__(self) -> None:
        self.batch_count: int = 0
        self.record_count: int = 0
        self.size: int = 0
        self.checks: PendingProducers | None = None
        self.appends: list[tuple[PendingAppend, int, int]] = []
        self.skipped_count: int = 0


def _has_transactions(append: PendingAppend) -> bool:
    batches = [parse_batch(view, 0) for view in append.views()]
    return any(batch.is_transactional or batch.is_control for batch in batches)
