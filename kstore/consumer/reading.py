"""The partitions that a consumer reads: their positions, their turns, and where reading begins."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, TypeVar

from kstore.consumer.config import ConsumerConfig
from kstore.consumer.fetching import PartitionReader, ReadingCounters
from kstore.consumer.of_store import StoreGroups
from kstore.consumer.pieces import Lender, LentItems
from kstore.consumer.use import SoleUse
from kstore.consumer.waiting import LogWaiter
from kstore.consumer.wanted import topic_partition
from kstore.errors import ConsumerStateError, NoOffsetError, OffsetOutOfRangeError
from kstore.files.paths import TopicPartition
from kstore.logs.topics import Topics
from kstore.record._codec import ConsumerRecord
from kstore.transactions.group_records import OffsetAndMetadata

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

# The pause while an open transaction decides about an offset: its end causes no notification.
UNSTABLE_WAIT_SECONDS = 0.05

Found = TypeVar("Found")
Taken = TypeVar("Taken", bound=Sized)


class Reading:
    """A consumer's partitions; for one thread."""

    def __init__(self, topics: Topics, groups: StoreGroups, config: ConsumerConfig, group: str | None) -> None:
        self._topics = topics
        self._groups = groups
        self._config = config
        self._group = group
        # In the order of their turns. Ordered by itself, so that one becomes the last in a single call: no interrupt
        # comes between its removal and its return.
        self.readers: OrderedDict[TopicPartition, PartitionReader] = OrderedDict()
        # Whether readers came or went since the last ``count``.
        self.has_changed: bool = False
        self.counters: ReadingCounters = ReadingCounters()
        # Where readers were before the call in progress, or interrupted, that has not returned what it took from them.
        # A call clears it with its last step, as an assignment: CPython serves a signal after a call, not after that.
        self.before: dict[Lender, int] = {}

    # --- which ------------------------------------------------------------------------------------------------------

    def add(self, owners: Iterable[TopicPartition]) -> None:
        """Reads these too; none of them after an error. Raises: TopicNotFoundError, StorageError."""
        config = self._config
        added = {
            owner: PartitionReader(
                owner,
                self._topics.log(*owner),
                config.isolation_level,
                config.on_corrupt,
                config.max_partition_fetch_bytes,
                self.counters,
            )
            for owner in owners
            if owner not in self.readers
        }
        self.has_changed = True
        self.readers.update(added)

    def drop(self, owners: Iterable[TopicPartition]) -> None:
        self.has_changed = True
        for owner in list(owners):
            self.readers.pop(owner, None)

    def count(self) -> None:
        """Tells each reader how many others there are."""
        for reader in self.readers.values():
            reader.sibling_count = len(self.readers) - 1

    def reader(self, owner: TopicPartition) -> PartitionReader:
        """Raises: ConsumerStateError."""
        found = self.readers.get(owner)
        if found is None:
            raise ConsumerStateError(f"{owner} is not one of this consumer's partitions")
        return found

    def chosen(self, owners: Collection[TopicPartition] | None) -> list[PartitionReader]:
        """Those of ``owners``; all if none are given. Raises: ConsumerStateError."""
        if not owners:
            return list(self.readers.values())
        return [self.reader(topic_partition(owner)) for owner in owners]

    # --- where ------------------------------------------------------------------------------------------------------

    def begin(self, reader: PartitionReader) -> bool:
        """Determines where reading begins, unless it is set; False if it is not known yet.

        Raises: NoOffsetError, StorageError.
        """
        if reader.position is not None:
            return True
        if self._group is not None:
            offsets = self._groups.offsets
            if self._config.isolation_level == "read_committed" and reader.owner in offsets.unstable(self._group):
                return False  # it depends on an open transaction
            committed = offsets.committed_at(self._group, reader.owner)
            if committed is not None:
                self._begin_at(reader, committed)
                return True
        self._reset(reader, None)
        return True

    def _begin_at(self, reader: PartitionReader, committed: OffsetAndMetadata) -> None:
        end = reader.log.end_offset
        offset = committed.offset
        if offset > end:
            logger.warning(
                "%s: group %r has committed offset %d, above the end of the log, %d: reading continues there",
                reader.owner,
                self._group,
                offset,
                end,
            )
            offset = end
        reader.committed = committed.offset
        reader.seek(offset)

    def _reset(self, reader: PartitionReader, error: OffsetOutOfRangeError | None) -> None:
        """Moves to where ``auto_offset_reset`` says. Raises: NoOffsetError, or ``error``."""
        reset = self._config.auto_offset_reset
        if reset == "none":
            if error is not None:
                raise error
            raise NoOffsetError(f"there is no committed offset of {reader.owner} in group {self._group!r}")
        offset = reader.log.start_offset if reset == "earliest" else reader.end_offset()
        if error is not None:
            # Above the end "earliest" could bring back nothing: the end is the nearest offset.
            if error.offset >= error.end_offset:
                offset = reader.end_offset()
            logger.warning("%s: %s: reading continues at offset %d", reader.owner, error, offset)
        reader.seek(offset)

    def note(self, reader: Lender) -> None:
        """Call it before something is taken from ``reader``."""
        position = reader.known_position()
        assert position is not None
        self.before.setdefault(reader, position)

    def take_back(self) -> None:
        """What an interrupted call took and did not return comes again."""
        for reader, offset in self.before.items():
            reader.seek(offset)
        self.before = {}

    # --- what -------------------------------------------------------------------------------------------------------

    def ready(self) -> list[PartitionReader]:
        """The partitions that may be read now. Raises: NoOffsetError, StorageError."""
        return [
            reader
            for reader in self.readers.values()
            if not reader.paused and (reader.position is not None or self.begin(reader))
        ]

    def _turns(self) -> Iterator[PartitionReader]:
        """Each partition in turn, and again while some have more; one that had its turn comes last, also the next
        time."""
        for reader in [reader for reader in self.readers.values() if reader.has_turn_ended]:
            # Set by an iteration, which did not look further.
            reader.has_turn_ended = False
            self.readers.move_to_end(reader.owner)
        queue = deque(reader for reader in self.ready() if not reader.is_done)
        while queue:
            reader = queue.popleft()
            yield reader
            if reader.has_turn_ended:
                queue.append(reader)
            if reader.has_turn_ended or not reader.is_ahead:
                reader.has_turn_ended = False
                self.readers.move_to_end(reader.owner)

    def _from(self, reader: PartitionReader, take: Callable[[PartitionReader, int], Found], count: int) -> Found:
        """The result of ``take``, also if the position is out of range."""
        self.note(reader)
        try:
            return take(reader, count)
        except OffsetOutOfRangeError as error:
            reader.stop()
            self._reset(reader, error)
            return take(reader, count)

    def _first(self, take: Callable[[PartitionReader, int], Found], count: int) -> tuple[PartitionReader, Found] | None:
        """What ``take`` finds in the first partition that has something."""
        for reader in self._turns():
            found = self._from(reader, take, count)
            if found:
                return reader, found
        self.before = {}
        return None

    def _all(
        self, take: Callable[[PartitionReader, int], Taken | None], count: int
    ) -> list[tuple[PartitionReader, Taken]]:
        """What ``take`` finds in all partitions in turn, at most ``count`` records."""
        found: list[tuple[PartitionReader, Taken]] = []
        for reader in self._turns():
            while count > 0:
                try:
                    taken = self._from(reader, take, count)
                except Exception:
                    if found:
                        return found  # the records before it come first; the next call comes to the same place
                    self.before = {}
                    raise
                if not taken:
                    break
                found.append((reader, taken))
                count -= len(taken)
            if count <= 0:
                break
        if not found:
            self.before = {}
        return found

    def lent(self, count: int) -> LentItems | None:
        """The next records of one partition, at most ``count``; None if no records are available now."""
        found = self._first(PartitionReader.lend, count)
        return None if found is None else found[1]

    def values(self, count: int) -> LentItems | None:
        """Like ``lent``, for values."""
        found = self._first(PartitionReader.lend_values, count)
        return None if found is None else found[1]

    def piece(self, count: int) -> tuple[PartitionReader, list[ConsumerRecord]] | None:
        """Like ``lent``, as a list of records."""
        return self._first(PartitionReader.take, count)

    def records(self, count: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """The next records, at most ``count`` in all, by partition."""
        found: dict[TopicPartition, list[ConsumerRecord]] = {}
        for reader, taken in self._all(PartitionReader.take, count):
            known = found.setdefault(reader.owner, taken)
            if known is not taken:
                known += taken
        return found

    def columns(self, count: int, options: dict[str, Any]) -> list[tuple[PartitionReader, pa.RecordBatch]]:
        """The next records as columns, at most ``count`` in all."""
        return self._all(lambda reader, rest: reader.take_arrow(rest, options), count)


class Positions:
    """A consumer's progress in each partition, also within what an iteration has handed out. For its thread."""

    def __init__(self, reading: Reading, waiter: LogWaiter, use: SoleUse) -> None:
        self._reading = reading
        self._waiter = waiter
        self._use = use
        # What an iteration has handed out.
        self.piece: LentItems | None = None

    def recall(self) -> None:
        """Takes back what an iteration has not given out, and what an interrupted call has not returned; it is read
        again."""
        if self.piece is not None:
            self.piece.end()
            self.piece = None
        self._reading.take_back()

    def of(self, reader: PartitionReader) -> int:
        """The offset of the next record. Raises: NoOffsetError, WakeupError, StorageError."""
        if (before := self._reading.before.get(reader)) is not None:
            return before
        piece = self.piece
        if piece is not None and piece.reader is reader and (offset := piece.position()) is not None:
            return offset
        while not self._reading.begin(reader):
            self._waiter.wait((), UNSTABLE_WAIT_SECONDS)
            self._use.check_woken()
        assert reader.position is not None
        return reader.position

    def known(self) -> dict[TopicPartition, int]:
        """The positions of all its partitions in which reading has begun."""
        return {
            owner: self.of(reader) for owner, reader in self._reading.readers.items() if reader.position is not None
        }

    def chosen(self, partitions: Collection[TopicPartition]) -> list[PartitionReader]:
        """The readers of ``partitions``, or all; ends what an iteration has handed out.

        Raises: ConsumerStateError.
        """
        self.recall()
        return self._reading.chosen(partitions)

    def close(self) -> None:
        """Releases all partitions."""
        self.piece = None
        self._reading.drop(self._reading.readers.keys())
