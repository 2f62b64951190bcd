"""``Consumer``: reads topics of a store, alone or as a member of a group, and keeps its positions.

what          wanted       names, a pattern, or partitions; groups and group_state share them
reads         reading      fetching reads one partition; pieces holds what an iteration has handed out
offsets       offsets      in __consumer_offsets, where a broker keeps them
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kstore.consumer.consumer_metrics import consumer_metrics, partition_metrics
from kstore.consumer.fetching import PartitionReader
from kstore.consumer.of_store import StoreGroups
from kstore.consumer.offsets import Offsets
from kstore.consumer.pieces import ListPiece, Piece
from kstore.consumer.sharing import UNSTABLE_WAIT_SECONDS, WAIT_SECONDS_MAX, Sharing
from kstore.consumer.wanted import RebalanceListener, topic_partition, topic_partitions
from kstore.engine.reads import TimePoint
from kstore.errors import ClosedError, ConfigError, ConsumerStateError, CorruptBatchError, OffsetOutOfRangeError
from kstore.files.paths import TopicPartition
from kstore.files.threads import closed_elsewhere
from kstore.logs.topics import Topics
from kstore.producer.producer import Producer
from kstore.record._codec import Record
from kstore.setting_rules import UNLIMITED
from kstore.transactions.group_records import OffsetAndMetadata
from kstore.types import INT32_MAX, OFFSET_MAX

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Consumer"]


# The shortest interval between two looks for new topics.
METADATA_SECONDS_MIN = 0.01

# How often an iteration checks anything other than its records: after this time, and this many pieces.
QUIET_SECONDS = 0.002
QUIET_PIECES = 64


Found = TypeVar("Found")
Partitions = Collection[TopicPartition]


class Consumer(Sharing):
    """Reads records in the order of their offsets, per partition. For one thread; ``wakeup`` is for any.

    ``with store.consumer("orders", group="billing") as consumer:`` closes it.
    """

    def __init__(
        self,
        store: Topics,
        groups: StoreGroups,
        topics: Collection[str] = (),
        *,
        group: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
        **settings: Any,
    ) -> None:
        """See ``Store.consumer``. Raises: ConfigError, TopicNotFoundError, ReadOnlyError."""
        self._closed = True  # until it is open
        super().__init__(store, groups, group=group, **settings)
        try:
            if topics or pattern is not None:
                self.subscribe(topics, pattern=pattern, listener=listener)
        except BaseException:
            if self._membership is not None:
                self._membership.abandon()
            self._end()
            raise

    # --- read -------------------------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = 0.0, max_records: int | None = None) -> dict[TopicPartition, list[Any]]:
        """The next records, by partition, at most ``max_records`` (default: ``max_poll_records``).

        Waits up to ``timeout`` seconds for the first of them, indefinitely with None; {} if none came. They are
        ``Record``s, and with deserializers ``ConsumerRecord``s.

        Raises: ConsumerStateError (no subscription or assignment), WakeupError, NoOffsetError, OffsetOutOfRangeError,
        RecordDeserializationError, CorruptBatchError, StorageError: records before the damage came first.
        """
        count = _count(self.config.max_poll_records if max_records is None else max_records)
        _check_timeout(timeout)
        with self._used():
            found: Any = self._awaited(lambda: self._reading.records(count), timeout)
            if found and not self._deserializers.is_plain:
                return self._deserialized(found)
            return found or {}

    def _deserialized(self, found: dict[TopicPartition, list[Record]]) -> dict[TopicPartition, list[Any]]:
        made: dict[TopicPartition, list[Any]] = {}
        failure: Exception | None = None
        for owner, records in found.items():
            reader = self._reading.readers[owner]
            done, wrong = self._deserializers.records(owner, records)
            if wrong is not None:
                reader.seek(wrong.offset)
                failure = failure or wrong
            if done:
                made[owner] = done
        if failure is not None and not made:
            raise failure
        return made

    def to_arrow(self, max_records: int = 65_536, timeout: float | None = 0.0, **options: Any) -> pa.Table:
        """The next records as a ``pyarrow.Table``, instead of ``poll``: columns topic, partition and those of a log.

        ``options`` are those of ``Log.to_arrow``, without those that choose what is read. Deserializers are not called.

        Raises: MissingExtraError without pyarrow, and as ``poll``.
        """
        from kstore.consumer.columns import reading_options, table_of

        count = _count(max_records)
        _check_timeout(timeout)
        with self._used():
            wanted = reading_options(options)
            pieces = self._awaited(lambda: self._reading.columns(count, wanted), timeout)
            return table_of(pieces or [], options)

    def __iter__(self) -> Iterator[Any]:
        """The next records, until the caller stops or none came for ``iteration_timeout_ms``.

        Partitions take turns; ``current`` has the origin of the last record. A ``commit`` during iteration commits what
        was handed out, including the last record. Raises: as ``poll``.
        """
        # The chain itself, so that a for loop stays in compiled code from one record to the next.
        return chain.from_iterable(self._pieces(self._next_records, self._deserializers.is_plain))

    def values(self) -> Iterator[bytes | None]:
        """Like iteration, for the values only: the fast path for payloads."""
        return chain.from_iterable(self._pieces(self._next_values, True))

    def __next__(self) -> Any:
        piece = self._piece
        while True:
            if piece is not None:
                for item in piece.items:
                    return item
            piece = self._next_piece(self._next_records, piece)
            if piece is None:
                raise StopIteration

    @property
    def current(self) -> TopicPartition | None:
        """The origin of the last record of an iteration."""
        return None if self._piece is None else self._piece.reader.owner

    def _pieces(self, following: Callable[[], Piece | None], is_plain: bool) -> Iterator[Iterator[Any]]:
        with self._used():
            self._recall()
        piece: Piece | None = None
        while True:
            piece = self._next_piece(following, piece)
            if piece is None:
                return
            yield piece.items
            if is_plain:
                # For a moment after each look, no other partition can be worth one.
                until, count = self._clock.monotonic() + QUIET_SECONDS, 0
                while count < QUIET_PIECES and (more := self._more(piece, until)) is not None:
                    piece = more
                    yield piece.items
                    count += 1

    def _more(self, before: Piece, until: float) -> Piece | None:
        """The same partition's next piece after ``before``; None if only a full look can find it."""
        reader = before.reader
        if self._piece is not before or self._woken or reader.paused or self._clock.monotonic() >= until:
            return None
        if not self._in_use.acquire(False):
            return None
        try:
            following = before.following(self._piece_records)
        except OffsetOutOfRangeError:
            reader.stop()
            return None
        finally:
            self._in_use.release()
        if following is not None:
            self._piece = following
        return following

    def _next_piece(self, following: Callable[[], Piece | None], before: Piece | None) -> Piece | None:
        """The piece after ``before``, all of which was given out."""
        with self._used():
            if self._piece is not None and self._piece is before:
                self._piece = None
                before.reader.settle()
            timeout_ms = self.config.iteration_timeout_ms
            self._piece = self._awaited(following, None if timeout_ms == UNLIMITED else timeout_ms / 1000)
            return self._piece

    @property
    def _piece_records(self) -> int:
        """How many records an iteration hands out before it checks anything else; at most one batch."""
        # A member of a group must request more in time.
        return INT32_MAX if self._membership is None else self.config.max_poll_records

    def _next_records(self) -> Piece | None:
        count = self._piece_records
        if self._deserializers.is_plain:
            return self._reading.lent(count)
        found = self._reading.piece(count)
        if found is None:
            return None
        reader, records = found
        made, failure = self._deserializers.records(reader.owner, records)
        if failure is not None:
            reader.seek(failure.offset)
            if not made:
                raise failure
        return ListPiece(reader, made)

    def _next_values(self) -> Piece | None:
        return self._reading.values(self._piece_records)

    def _awaited(self, look: Callable[[], Found], timeout: float | None) -> Found | None:
        """The result of ``look``, once it finds something; None after ``timeout`` seconds."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        self._recall()
        may_find = True
        while True:
            self._tick()
            try:
                found = look() if may_find else None
            except ClosedError:
                # A topic was deleted after the tick: the next one handles that.
                if self._closed or self._assigned is not None or not self._news.has_changed:
                    raise
                continue
            if found:
                return found
            rest = WAIT_SECONDS_MAX if deadline is None else deadline - self._clock.monotonic()
            if rest <= 0:
                return None
            may_find = self._waiter.wait(self._reading.ready(), min(rest, self._wait_seconds()))

    def _wait_seconds(self) -> float:
        """How long there is nothing else to do."""
        seconds = WAIT_SECONDS_MAX
        if not self._topics.tells_changes:
            seconds = max(min(self.config.metadata_max_age_ms / 1000, seconds), METADATA_SECONDS_MIN)
        if any(reader.position is None and not reader.paused for reader in self._reading.readers.values()):
            seconds = UNSTABLE_WAIT_SECONDS
        return seconds if self._membership is None else min(self._membership.wait_seconds, seconds)

    def _tick(self) -> None:
        """The work before each look for records."""
        self._check_woken()
        if self._assigned is None and not self._wanted:
            raise ConsumerStateError("nothing to read: subscribe to topics, or assign partitions")
        now = self._counters.asked_at = self._clock.monotonic()
        if self.config.enable_auto_commit and now >= self._commit_due:
            self._auto_commit()
        if self._assigned is None:
            self._share()

    # --- where it is ------------------------------------------------------------------------------------------------

    def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record of a partition.

        Raises: ConsumerStateError, NoOffsetError, StorageError; WakeupError where an open transaction has to decide.
        """
        with self._used():
            return self._position(self._reading.reader(topic_partition(partition)))

    def seek(self, partition: tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Continues at ``offset`` in a partition. See also ``seek_to_time``.

        The next poll checks it first: if there is no such offset, ``auto_offset_reset`` decides.
        Raises: ConsumerStateError, ConfigError.
        """
        number = offset.offset if isinstance(offset, OffsetAndMetadata) else offset
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= OFFSET_MAX:
            raise ConfigError(f"an offset to seek is {offset!r:.80}, expected an int from 0 to {OFFSET_MAX}")
        for reader in self._chosen([topic_partition(partition)]):
            reader.seek(number)

    def skip_damage(self, error: CorruptBatchError) -> TopicPartition:
        """Continues after the damaged or lost records that ``error``, raised by this consumer, is about.

        Returns their partition. Affects only this consumer, until its next commit makes it the group's;
        ``Log.accept_loss`` affects every reader. Raises: ConsumerStateError if the error is about none of its
        partitions.
        """
        directory = None if error.path is None else Path(error.path).parent
        for reader in self._chosen(()):
            if reader.log.path.absolute() == directory:
                if reader.position is None or reader.position <= error.last_offset:
                    reader.seek(error.last_offset + 1)
                return reader.owner
        raise ConsumerStateError(f"{error.path} is in no partition of this consumer")

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continues at the first record of these partitions, of all if none are given."""
        for reader in self._chosen(partitions):
            reader.seek(reader.log.start_offset)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continues after the last record of these partitions, of all if none are given."""
        for reader in self._chosen(partitions):
            reader.seek(reader.end_offset())

    def seek_to_time(self, when: TimePoint, *partitions: TopicPartition) -> None:
        """Continues at the first record at or after ``when`` (see ``Log.offset_for_time``), or at the end."""
        for reader in self._chosen(partitions):
            found = reader.log.offset_for_time(when)
            reader.seek(reader.end_offset() if found is None else min(found, reader.end_offset()))

    def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Continues from the committed offsets of these partitions, of all if none are given: as after a restart.

        So what an aborted transaction had read is read again. Raises: ConsumerStateError.
        """
        self._required_group()
        for reader in self._chosen(partitions):
            reader.seek(None)

    def _chosen(self, partitions: Sequence[TopicPartition]) -> list[PartitionReader]:
        with self._used():
            self._recall()
            return self._reading.chosen(partitions)

    def pause(self, *partitions: TopicPartition) -> None:
        """Reads nothing from these partitions, from all if none are given, until ``resume``; they stay assigned."""
        for reader in self._chosen(partitions):
            reader.paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Reads paused partitions again."""
        for reader in self._chosen(partitions):
            reader.paused = False

    def paused(self) -> set[TopicPartition]:
        return {owner for owner, reader in self._reading.readers.items() if reader.paused}

    def lag(self) -> dict[TopicPartition, int]:
        """The number of unread offsets in each of its partitions. Raises: as ``position``."""
        with self._used():
            return {
                owner: max(reader.end_offset() - self._position(reader), 0)
                for owner, reader in list(self._reading.readers.items())
            }

    def beginning_offsets(self, partitions: Collection[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The first offset of any partitions. Raises: TopicNotFoundError, StorageError."""
        return {owner: self._log(owner).start_offset for owner in topic_partitions(partitions)}

    def end_offsets(self, partitions: Collection[tuple[str, int]]) -> dict[TopicPartition, int]:
        """The ends of any partitions: their high watermark, with "read_committed" their last stable offset."""
        committed = self.config.isolation_level == "read_committed"
        return {
            owner: self._log(owner).last_stable_offset if committed else self._log(owner).high_watermark
            for owner in topic_partitions(partitions)
        }

    def offsets_for_times(self, times: Mapping[TopicPartition, TimePoint]) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time, by partition; None where there is none. See ``Log.offset_for_time``."""
        return {
            topic_partition(owner): self._log(topic_partition(owner)).offset_for_time(when)
            for owner, when in times.items()
        }

    def _log(self, owner: tuple[str, int]) -> Any:
        self._check_open()
        return self._topics.log(*owner)

    # --- commit -----------------------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets | None = None, *, producer: Producer | None = None) -> None:
        """Commits the group's positions: after what was handed out of each partition, or the given ``offsets``.

        On return they are as durable as the store's setting says; all of them or none. With a ``producer`` they are
        part of its transaction, and take effect when that commits.

        Raises: ConsumerStateError (no group, or not its partition), CommitFailedError (the group has assigned them to
        others), ReadOnlyError, ConfigError, DiskFullError, StorageError.
        """
        with self._used():
            self._commit(offsets, None, producer)

    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets: of these partitions, of its own if none are given; those without one are left
        out. Raises: ConsumerStateError without a group, StorageError."""
        self._check_open()
        found = self._groups.offsets.committed(self._required_group())
        wanted = topic_partitions(partitions) if partitions else list(self._reading.readers)
        return {owner: found[owner] for owner in wanted if owner in found}

    # --- metrics ----------------------------------------------------------------------------------------------------

    @property
    def store_path(self) -> Path:
        return self._topics.path

    def metrics(self) -> dict[str, float]:
        """Its counters and current values: see ``kstore.metrics.CONSUMER_METRICS``. For any thread."""
        readers = list(self._reading.readers.values())
        return consumer_metrics(self._counters, self._reading.counters, readers, self._clock.monotonic())

    def partition_metrics(self) -> dict[TopicPartition, dict[str, float]]:
        """The same for each partition: see ``kstore.metrics.CONSUMER_PARTITION_METRICS``. For any thread."""
        return partition_metrics(list(self._reading.readers.values()))

    # --- end --------------------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """Makes the poll or iteration that waits, or else the next one, raise WakeupError.

        For any thread, and for signal handlers.
        """
        self._woken = True
        self._waiter.wake()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, *, commit: bool = True) -> None:
        """Leaves the group; with ``enable_auto_commit`` commits first, unless ``commit`` is False.

        A second call does nothing. Raises: StorageError: it is closed nevertheless.
        """
        if self._closed:
            return
        if self._guard.forked:
            self._closed = True
            return  # its place in the group belongs to the parent
        if closed_elsewhere(lambda: self.close(commit=commit), self):
            return
        with self._used():
            try:
                if commit:
                    self._auto_commit()
                if self._membership is not None:
                    self._membership.leave()
            finally:
                self._end()
                self._deserializers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Records handed out before an error may not be processed: they are not committed, and are read again.
        self.close(commit=error is None)

    def __repr__(self) -> str:
        return f"Consumer(group={self.group!r}, client_id={self.client_id!r}, closed={self._closed})"

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._guard.forked:
            self.abandon()
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2)


def _count(max_records: int) -> int:
    """Raises: ConfigError."""
    if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
        raise ConfigError(f"max_records is {max_records!r:.80}, expected an int from 1 on")
    return max_records


def _check_timeout(timeout: float | None) -> None:
    """Raises: ConfigError."""
    if timeout is not None and (not isinstance(timeout, (int, float)) or timeout != timeout):
        raise ConfigError(f"timeout is {timeout!r:.80}, expected seconds, or None for no limit")
