"""``Consumer``: reads topics of a store, alone or as a member of a group, and keeps its positions.

who           use            one thread at a time; any thread may wake it
which         sharing        wanted is the request; place is the membership; groups and group_state share partitions
reads         next_records   what comes next, and the wait for it; reading has a reader (fetching) for each partition
positions     positions      the progress; pieces holds the records that an iteration has handed out
offsets       commits        in __consumer_offsets, where a broker keeps them (offsets)
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from kstore.consumer.config import ConsumerConfig
from kstore.consumer.consumer_metrics import consumer_metrics, partition_metrics
from kstore.consumer.fetching import PartitionReader
from kstore.consumer.offsets import Offsets
from kstore.consumer.parts import ConsumerParts
from kstore.consumer.pieces import LentItems
from kstore.consumer.place import GroupMetadata
from kstore.consumer.wanted import RebalanceListener, topic_partition, topic_partitions
from kstore.engine.read.times import TimePoint
from kstore.errors import ConfigError, ConsumerStateError, CorruptBatchError, not_picklable
from kstore.files.paths import TopicPartition
from kstore.files.threads import closed_elsewhere
from kstore.producer.producer import Producer
from kstore.record._codec import ConsumerRecord
from kstore.transactions.group_records import OffsetAndMetadata
from kstore.types import OFFSET_MAX

if TYPE_CHECKING:
    import pyarrow as pa

# How often an iteration checks for other work: after this time, and this many pieces.
QUIET_SECONDS = 0.002
QUIET_PIECES = 64


class Consumer:
    """Reads records in the order of their offsets, per partition. For one thread; ``wakeup`` is for any.

    ``with store.consumer("orders", group="billing") as consumer:`` closes it.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        topics: Collection[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """See ``Store.consumer``. Raises: ConfigError, TopicNotFoundError, ReadOnlyError."""
        if not isinstance(parts, ConsumerParts):
            raise TypeError("a Consumer belongs to a store: use kstore.open(path).consumer(topic, group=...)")
        self._use = parts.use
        self._life = parts.use.life
        self.config: ConsumerConfig = parts.config
        self.group: str | None = parts.place.group
        self.client_id: str = parts.client_id
        self._topics = parts.topics
        self._clock = parts.topics.clock
        self._counters = parts.counters
        self._waiter = parts.waiter
        self._deserializers = parts.deserializers
        self._reading = parts.reading
        self._positions = parts.positions
        self._place = parts.place
        self._commits = parts.commits
        self._sharing = parts.sharing
        self._next = parts.next
        try:
            self._sharing.begin()
            self._life.closed = False
            if topics or pattern is not None:
                self.subscribe(topics, pattern=pattern, listener=listener)
        except BaseException:
            self._place.abandon()
            self._end()
            raise

    # --- what it reads ----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads these topics from now on, or those whose whole name matches ``pattern``, including later ones.

        Without a group this consumer gets all partitions. In a group the members share them: a member keeps its
        partitions until its next poll or iteration.

        Raises: ConfigError, TopicNotFoundError, ConsumerStateError (partitions are assigned: ``unsubscribe`` first),
        ReadOnlyError (a group's members must be able to commit).
        """
        with self._use.alone():
            self._sharing.subscribe(topics, pattern, listener)

    def assign(self, partitions: Collection[tuple[str, int]]) -> None:
        """Reads exactly these partitions from now on, nothing if empty; the group's other members do not matter.

        Partitions that stay keep their position. Raises: ConfigError, TopicNotFoundError, ConsumerStateError.
        """
        with self._use.alone():
            self._sharing.assign(partitions)

    def unsubscribe(self) -> None:
        """Stops reading, and leaves the group."""
        with self._use.alone():
            self._sharing.unsubscribe()

    def subscription(self) -> set[str]:
        """The subscribed topics that exist now."""
        return self._sharing.subscription()

    def assignment(self) -> set[TopicPartition]:
        """Its partitions; in a group they may change at each poll."""
        return set(self._reading.readers)

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Every partition of a topic. Raises: TopicNotFoundError."""
        return [TopicPartition(topic, number) for number in self._topics.partitions(topic)]

    def group_metadata(self) -> GroupMetadata:
        """Raises: ConsumerStateError without a group."""
        return self._place.metadata()

    # --- read -------------------------------------------------------------------------------------------------------

    def poll(
        self, timeout: float | None = 0.0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """The next records, by partition, at most ``max_records`` (default: ``max_poll_records``).

        Waits up to ``timeout`` seconds for the first of them, indefinitely with None; {} if none came.

        Raises: ConsumerStateError (no subscription or assignment), WakeupError, NoOffsetError, OffsetOutOfRangeError,
        RecordDeserializationError, CorruptBatchError, StorageError: records before the damage came first.
        """
        count = _count(self.config.max_poll_records if max_records is None else max_records)
        _check_timeout(timeout)
        with self._use.alone():
            found = self._next.awaited(lambda: self._next.polled(count), timeout)
        # Nothing can interrupt from here on.
        self._reading.before = {}
        return found or {}

    def to_arrow(self, max_records: int = 65_536, timeout: float | None = 0.0, **options: Any) -> pa.Table:
        """The next records as a ``pyarrow.Table``, instead of ``poll``: columns topic, partition and those of a log.

        ``options`` are those of ``Log.to_arrow``, without those that choose what is read. Deserializers are not called.

        Raises: MissingExtraError without pyarrow, and as ``poll``.
        """
        from kstore.consumer.columns import reading_options, table_of

        count = _count(max_records)
        _check_timeout(timeout)
        with self._use.alone():
            wanted = reading_options(options)
            pieces = self._next.awaited(lambda: self._reading.columns(count, wanted), timeout)
            table = table_of(((reader.owner, batch) for reader, batch in pieces or ()), options)
        # Nothing can interrupt from here on.
        self._reading.before = {}
        return table

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """The next records, until the caller stops or none came for ``iteration_timeout_ms``.

        Partitions take turns; a record names its ``topic`` and ``partition``. A ``commit`` during iteration commits
        what was handed out, including the last record. Raises: as ``poll``.
        """
        # The chain itself, so that a for loop stays in compiled code from one record to the next.
        return chain.from_iterable(self._pieces(self._next.records, self._deserializers.is_plain))

    def values(self) -> Iterator[bytes | None]:
        """Like iteration, for the values only: the fast path for payloads.

        A later iteration over records, or ``next``, continues after the last value that was handed out, and ends this
        one.
        """
        return chain.from_iterable(self._pieces(self._next.values, True))

    def __next__(self) -> ConsumerRecord:
        """The next record: after a partly used ``values()`` too. Raises: StopIteration when iteration would end, and as
        ``poll``."""
        piece = self._positions.piece
        item: ConsumerRecord
        if piece is not None and piece.is_of_values:
            with self._use.alone():
                self._positions.recall()
            piece = None
        while True:
            if piece is not None:
                for item in piece.items:
                    return item
            piece = self._next.piece_after(piece, self._next.records)
            if piece is None:
                raise StopIteration

    @property
    def current(self) -> TopicPartition | None:
        """The partition of the last record of an iteration."""
        piece = self._positions.piece
        return None if piece is None else piece.reader.owner

    def _pieces(self, look: Callable[[], LentItems | None], is_plain: bool) -> Iterator[Iterator[Any]]:
        # A generator method, so that an iterator in use keeps the consumer from being collected.
        with self._use.alone():
            self._positions.recall()
        piece: LentItems | None = None
        while True:
            piece = self._next.piece_after(piece, look)
            if piece is None:
                return
            yield piece.items
            if is_plain:
                # For a short time after each look, no other partition is worth one.
                until, count = self._clock.monotonic() + QUIET_SECONDS, 0
                while count < QUIET_PIECES and (more := self._next.piece_at_once(piece, until)) is not None:
                    piece = more
                    yield piece.items
                    count += 1

    # --- where it is ------------------------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, int]:
        """The positions of all its partitions in which reading has begun."""
        with self._use.alone():
            return self._positions.known()

    def position(self, partition: tuple[str, int]) -> int:
        """The offset of the next record of a partition.

        Raises: ConsumerStateError, NoOffsetError, StorageError; WakeupError while the position depends on an open
        transaction.
        """
        with self._use.alone():
            return self._positions.of(self._reading.reader(topic_partition(partition)))

    def seek(self, partition: tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Continues at ``offset`` in a partition. See also ``seek_to_time``.

        The next poll checks the offset: if it does not exist, ``auto_offset_reset`` decides.
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

        Records that an aborted transaction has read are then read again. Raises: ConsumerStateError.
        """
        self._place.required_group()
        for reader in self._chosen(partitions):
            reader.seek(None)

    def _chosen(self, partitions: Sequence[TopicPartition]) -> list[PartitionReader]:
        with self._use.alone():
            return self._positions.chosen(partitions)

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
        with self._use.alone():
            ready, readers = self._reading.ready(), self._reading.readers
            if len(ready) == len(readers) and self._waiter.is_quiet(ready):
                return dict.fromkeys(readers, 0)
            return {
                owner: 0 if reader.is_done else max(reader.end_offset() - self._positions.of(reader), 0)
                for owner, reader in list(readers.items())
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
        """The first offset at or after a time, by partition; None if no record has one. See ``Log.offset_for_time``."""
        if not isinstance(times, Mapping):
            raise ConfigError(f"times are {times!r:.80}, expected a mapping of partitions to times")
        return {
            topic_partition(owner): self._log(topic_partition(owner)).offset_for_time(when)
            for owner, when in times.items()
        }

    def _log(self, owner: tuple[str, int]) -> Any:
        self._life.check()
        return self._topics.log(*owner)

    # --- commit -----------------------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets | None = None, *, producer: Producer | None = None) -> None:
        """Commits the group's positions: after what was handed out of each partition, or the given ``offsets``.

        On return they are as durable as the store's setting says; all of them or none. With a ``producer`` they are
        part of its transaction, and take effect when that commits.

        Raises: ConsumerStateError (no group, or not its partition), CommitFailedError (the group has assigned them to
        others), GroupInUseError (its members are clients of a door), ReadOnlyError, ConfigError, DiskFullError,
        StorageError.
        """
        with self._use.alone():
            self._commits.commit(offsets, producer=producer)

    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets of these partitions, or of all that this consumer has; partitions without one
        are left out. Raises: ConsumerStateError without a group, StorageError."""
        self._life.check()
        group = self._place.required_group()
        wanted = topic_partitions(partitions) if partitions else list(self._reading.readers)
        return self._commits.committed(group, wanted)

    # --- metrics ----------------------------------------------------------------------------------------------------

    @property
    def store_path(self) -> Path:
        """The directory of its store."""
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
        self._use.is_woken = True
        self._waiter.wake()

    @property
    def closed(self) -> bool:
        return self._life.closed

    def close(self, *, commit: bool = True) -> None:
        """Leaves the group; with ``enable_auto_commit`` commits first, unless ``commit`` is False.

        A second call does nothing. Raises: StorageError: it is closed nevertheless.
        """
        if self._life.closed:
            return
        if self._life.forked:
            self._life.closed = True
            return  # its place in the group belongs to the parent
        if closed_elsewhere(lambda: self.close(commit=commit), self):
            return
        with self._use.alone():
            try:
                if commit:
                    self._commits.auto_commit()
                self._place.leave()
            finally:
                # After an interrupt: else the others would wait for this member until it has been silent for too long.
                self._place.abandon()
                self._end()
                self._deserializers.close()

    def _end(self) -> None:
        self._life.closed = True
        self._sharing.end()
        self._positions.close()
        self._waiter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Records handed out before an error may not be processed: they are not committed, and are read again.
        self.close(commit=error is None)

    def __repr__(self) -> str:
        partitions = ", ".join(map(str, self._reading.readers)) or "no partitions"
        return f"Consumer({self.client_id!r}, group={self.group!r}, {'closed' if self.closed else partitions})"

    def __reduce__(self) -> NoReturn:
        raise not_picklable("Consumer", "open the store in the other process, and make one there")

    def __del__(self) -> None:
        life = getattr(self, "_life", None)
        if life is not None and not life.closed and not life.forked:
            message = f"unclosed {self!r}"
            abandon(self)
            warnings.warn(message, ResourceWarning, stacklevel=2)


def abandon(consumer: Consumer) -> None:
    """The store is closed, or the object was dropped: it reads nothing, and its place in the group is free."""
    consumer._life.closed = True
    consumer._sharing.end()
    consumer._place.abandon()
    consumer._waiter.wake()


def _count(max_records: int) -> int:
    """Raises: ConfigError."""
    if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
        raise ConfigError(f"max_records is {max_records!r:.80}, expected an int from 1 on")
    return max_records


def _check_timeout(timeout: float | None) -> None:
    """Raises: ConfigError."""
    if timeout is not None and (not isinstance(timeout, (int, float)) or timeout != timeout):
        raise ConfigError(f"timeout is {timeout!r:.80}, expected seconds, or None for no limit")
