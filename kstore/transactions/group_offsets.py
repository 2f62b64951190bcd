"""``__consumer_offsets``: the committed offsets of groups, read as the topic grows, and appended to.

A plain commit counts at once, a commit in a transaction when the transaction commits; if several count, the last one in
the log wins. So reads go up to the high watermark, past open transactions, and learn their outcome from the markers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kstore.clock import Clock
from kstore.errors import (
    ConfigError,
    CorruptBatchError,
    CorruptDataError,
    GroupInUseError,
    LogNotFoundError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from kstore.files._locks import OwnedLock
from kstore.files.paths import TopicPartition
from kstore.log import Log, reads_of
from kstore.messages.primitives import check_string
from kstore.record._codec import Record
from kstore.record.batch import SEQUENCE_COUNT, Batch
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, parse_end_transaction_marker
from kstore.rules.internal_topics import OFFSETS, partition_for
from kstore.transactions.group_records import (
    GroupPartition,
    OffsetAndMetadata,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from kstore.types import OFFSET_MAX

logger = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
# Kafka: offset.metadata.max.bytes.
METADATA_BYTES_MAX = 4096
# A partition is read whole at the first request for one of its groups.
SETTINGS: dict[str, object] = {"cleanup_policy": "compact", "compression_type": "producer", "segment_bytes": 1 << 20}


class _Commit(NamedTuple):
    """One record, at offset ``at``; ``committed`` is None if the committed offset was removed."""

    at: int
    committed: OffsetAndMetadata | None


class TopicLogs(Protocol):
    """The logs of committed offsets: the store's topics, or those borrowed for a while (``logs.topics``)."""

    def log_of(self, owner: TopicPartition) -> Log:
        """Raises: TopicNotFoundError, and as ``Log``."""
        ...

    def count(self, name: str) -> int:
        """How many partitions a topic has, 0 if it does not exist."""
        ...

    def numbers(self, name: str) -> Sequence[int]:
        """The partitions of a topic that are here."""
        ...

    def ensure(self, name: str, partitions: int, /, **settings: object) -> int:
        """Creates a topic unless it exists; returns how many partitions it has. Raises: as ``Store.create_topic``."""
        ...


class GroupOffsets:
    """The committed offsets of all groups of a store. Thread-safe."""

    def __init__(self, topics: TopicLogs, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._mutex = OwnedLock()
        self._partitions: dict[int, _Partition] = {}
        # Replaced as a whole, under the mutex.
        self._claimed: frozenset[str] = frozenset()

    # --- claims -----------------------------------------------------------------------------------------------------

    def claim(self, group: str) -> None:
        """From now on only calls with ``is_claimant`` change the group's offsets, and ``check_free`` refuses it."""
        with self._mutex:
            self._claimed |= {group}

    def unclaim(self, group: str) -> None:
        """Ends a claim."""
        with self._mutex:
            self._claimed -= {group}

    def check_free(self, group: str) -> None:
        """Raises: GroupInUseError for a claimed group."""
        if group in self._claimed:
            raise GroupInUseError(group)

    def _check_group(self, group: str, *, is_claimant: bool) -> None:
        if is_claimant and not group:
            return  # Kafka's clients may commit without a group's name
        check_string("group", group)
        if not is_claimant:
            self.check_free(group)

    # --- commit -----------------------------------------------------------------------------------------------------

    def place(self, group: str) -> TopicPartition:
        """The partition that keeps a group's offsets; creates the topic if necessary."""
        count = self._topics.ensure(OFFSETS.name, OFFSETS.partition_count, **SETTINGS)
        return TopicPartition(OFFSETS.name, partition_for(group, count))

    def found_place(self, group: str) -> TopicPartition | None:
        """``place``, or None if the topic does not exist."""
        count = self._topics.count(OFFSETS.name)
        return TopicPartition(OFFSETS.name, partition_for(group, count)) if count else None

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        producer: tuple[int, int] | None = None,
        is_claimant: bool = False,
    ) -> None:
        """Appends committed offsets in one batch, in a producer's transaction if one is given.

        Raises: ConfigError, RecordTooLargeError, DiskFullError, StorageError; GroupInUseError for a claimed group,
        unless ``is_claimant``; the log's errors of producers.
        """
        self._check_group(group, is_claimant=is_claimant)
        now_ms = self._clock.now_ms()
        rows: list[tuple[bytes, bytes | None]] = []
        for owner, given in offsets.items():
            check_string("topic", owner[0])
            committed = _checked(given)
            if committed.commit_timestamp < 0:
                committed = committed._replace(commit_timestamp=now_ms)
            rows.append((encode_offset_key(group, TopicPartition(*owner)), encode_offset_value(committed)))
        self._append(group, rows, now_ms, producer)

    def forget(self, group: str, partitions: Iterable[TopicPartition], *, is_claimant: bool = False) -> None:
        """Removes committed offsets. Raises: as ``commit``."""
        self._check_group(group, is_claimant=is_claimant)
        rows: list[tuple[bytes, bytes | None]] = [
            (encode_offset_key(group, TopicPartition(*owner)), None) for owner in partitions
        ]
        if rows:
            self._append(group, rows, self._clock.now_ms(), None)

    def _append(
        self, group: str, rows: list[tuple[bytes, bytes | None]], now_ms: int, producer: tuple[int, int] | None
    ) -> None:
        owner = self.place(group)
        records = [Record(number, now_ms, key=key, value=value) for number, (key, value) in enumerate(rows)]
        if producer is None:
            # One batch, so that a crash leaves all of it or nothing.
            self._topics.log_of(owner).append_batches(build_batch(records))
            return
        producer_id, epoch = producer
        with self._partition(owner.partition).appending:
            log = self._topics.log_of(owner)
            sequence = _next_sequence(log, producer_id, epoch)
            log.append_batches(
                build_batch(
                    records,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                    is_transactional=True,
                )
            )

    # --- read -------------------------------------------------------------------------------------------------------

    def committed(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group."""
        partition = self._looked_up(group)
        if partition is None:
            return {}
        with partition.lock:
            return {
                owner: commit.committed
                for owner, commit in partition.groups.get(group, {}).items()
                if commit.committed is not None
            }

    def committed_at(self, group: str, owner: TopicPartition) -> OffsetAndMetadata | None:
        """A group's committed offset for one partition; copies nothing, for callers with many requests."""
        partition = self._looked_up(group)
        if partition is None:
            return None
        with partition.lock:
            commit = partition.groups.get(group, {}).get(owner)
            return None if commit is None else commit.committed

    def offset_at(self, group: str, owner: TopicPartition) -> int | None:
        """``committed_at``, without the metadata."""
        found = self.committed_at(group, owner)
        return None if found is None else found.offset

    def unstable(self, group: str) -> set[TopicPartition]:
        """The partitions with an offset in an open transaction."""
        partition = self._looked_up(group)
        if partition is None:
            return set()
        with partition.lock:
            return {kept.owner for pending in partition.pending.values() for kept in pending if kept.group == group}

    def groups(self) -> list[str]:
        """All groups with committed offsets."""
        found: set[str] = set()
        for number in range(self._topics.count(OFFSETS.name)):
            partition = self._caught_up(number)
            if partition is not None:
                with partition.lock:
                    found.update(
                        group
                        for group, commits in partition.groups.items()
                        if any(commit.committed is not None for commit in commits.values())
                    )
        return sorted(found)

    def unseen(self) -> str:
        """What a broker's directory lacks of the topic, in words; "" if nothing shows that it lacks any.

        A broker may have several disks (``log.dirs``), and a cluster several brokers: each directory then holds some of
        the partitions. A missing number below that of a partition which is here shows it, and so does a group that
        would belong elsewhere if the partitions here were all. Reads nothing: it knows the groups that were read.
        """
        count = self._topics.count(OFFSETS.name)
        gone_count = count - len(self._topics.numbers(OFFSETS.name))
        if count and gone_count:
            what = f"{gone_count} of the partitions 0 to {count - 1} of {OFFSETS.name} are not in this directory"
        elif count and self._has_strangers(count):
            what = f"{OFFSETS.name} has more than the {count} partitions in this directory"
        else:
            return ""
        return f"{what}: groups that a broker keeps on another disk (log.dirs), or another broker keeps, are not shown"

    def _has_strangers(self, count: int) -> bool:
        """Whether a partition that was read has a group that ``count`` partitions would keep in another one."""
        for number, partition in list(self._partitions.items()):
            with partition.lock:
                if any(partition_for(group, count) != number for group in partition.groups):
                    return True
        return False

    def _looked_up(self, group: str) -> _Partition | None:
        count = self._topics.count(OFFSETS.name)
        found = None if count == 0 else self._caught_up(partition_for(group, count))
        if found is not None and group in found.groups:
            return found
        # In a part of a broker's topic the count is not known; a group is where it was found.
        for number, partition in list(self._partitions.items()):
            if group in partition.groups:
                return self._caught_up(number)
        return found

    def _partition(self, number: int) -> _Partition:
        with self._mutex:
            partition = self._partitions.get(number)
            if partition is None:
                # No ``setdefault``: refused memory there, CPython 3.13 counts an entry that it has not stored.
                partition = self._partitions[number] = _Partition()
            return partition

    def _caught_up(self, number: int) -> _Partition | None:
        """The state of one partition, up to its high watermark; None if the partition does not exist here."""
        try:
            log = self._topics.log_of(TopicPartition(OFFSETS.name, number))
        except (TopicNotFoundError, LogNotFoundError):
            return None
        partition = self._partition(number)
        with partition.lock:
            partition.catch_up(log)
        return partition


class _Partition:
    """The contents of one partition, up to ``position``; ``lock`` guards everything.

    ``appending`` is held while a producer's batch gets its sequence and is appended.
    """

    def __init__(self) -> None:
        self.lock = OwnedLock()
        self.appending = OwnedLock()
        self.position = 0
        # The log whose contents these are, and its ``cut_count`` when they were read.
        self._log: Log | None = None
        self._cut_count = 0
        self.groups: dict[str, dict[TopicPartition, _Commit]] = {}
        # By producer id: the commits of its open transaction, the last for each partition.
        self.pending: dict[int, dict[GroupPartition, _Commit]] = {}

    def _restart(self) -> None:
        self.groups.clear()
        self.pending.clear()
        # Last: the call after an interrupt finds the old position, and restarts again.
        self.position = 0

    def catch_up(self, log: Log) -> None:
        """Reads new records. Raises: StorageError."""
        end = log.high_watermark
        # Before anything is read: the call after a cut that comes in the meantime restarts.
        cut_count = reads_of(log).source.cut_count
        if log is not self._log or cut_count != self._cut_count or end < self.position:
            # The log was cut, or is another one of the same name. Either may have grown beyond the old position.
            self._restart()
            self._log, self._cut_count = log, cut_count
        self.position = max(self.position, log.start_offset)
        while self.position < end:
            before = self.position
            try:
                for batch in log.fetch(self.position, FETCH_BYTES).batches():
                    if batch.base_offset >= end:
                        break
                    self._take_in_if_readable(batch, log)
                    self.position = batch.last_offset + 1
            except CorruptBatchError as error:
                logger.warning("%s: committed offsets are skipped: %s", log.path, error)
                self.position = max(error.last_offset, self.position) + 1
            except OffsetOutOfRangeError:
                self._restart()
                self.position = log.start_offset
            if self.position <= before:
                return  # no whole batch yet

    def _take_in_if_readable(self, batch: Batch, log: Log) -> None:
        try:
            self._take_in(batch, log)
        except CorruptDataError as error:
            # Its CRC is right, so no fetch ends at it: it would be in the way of every call.
            logger.warning(
                "%s: the committed offsets in the batch at offset %d are skipped: %s",
                log.path,
                batch.base_offset,
                error,
            )

    def _take_in(self, batch: Batch, log: Log) -> None:
        if batch.is_control:
            for record in batch.records():
                self._end(batch.producer_id, record)
            return
        for record in batch.records(first_offset=self.position):
            try:
                kept = decode_offset_key(record.key or b"")
                if kept is None:
                    continue
                committed = None if record.value is None else decode_offset_value(record.value)
            except CorruptDataError as error:
                logger.warning("%s: the record at offset %d is skipped: %s", log.path, record.offset, error.reason)
                continue
            commit = _Commit(record.offset, committed)
            if batch.is_transactional:
                pending = self.pending.get(batch.producer_id)
                if pending is None:
                    pending = self.pending[batch.producer_id] = {}
                pending[kept] = commit
            else:
                self._set(kept, commit)

    def _end(self, producer_id: int, record: Record) -> None:
        marker = parse_end_transaction_marker(record.key, record.value)
        if marker is None:
            return
        if marker.type == ControlRecordType.COMMIT:
            for kept, commit in self.pending.get(producer_id, {}).items():
                self._set(kept, commit)
        # Last: after a failure the marker is read again.
        self.pending.pop(producer_id, None)

    def _set(self, kept: GroupPartition, commit: _Commit) -> None:
        commits = self.groups.get(kept.group)
        if commits is None:
            commits = self.groups[kept.group] = {}
        before = commits.get(kept.owner)
        if before is None or before.at < commit.at:
            commits[kept.owner] = commit


def _next_sequence(log: Log, producer_id: int, epoch: int) -> int:
    """The sequence that the log expects next from a producer."""
    for info in log.producers():
        if info.producer_id == producer_id and info.producer_epoch == epoch:
            return (info.last_sequence + 1) % SEQUENCE_COUNT
    return 0


def _checked(given: OffsetAndMetadata | int) -> OffsetAndMetadata:
    """Raises: ConfigError."""
    committed = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
    if isinstance(committed.offset, bool) or not isinstance(committed.offset, int):
        raise ConfigError(f"a committed offset is {committed.offset!r:.80}, expected an int")
    if not 0 <= committed.offset <= OFFSET_MAX:
        raise ConfigError(f"a committed offset is {committed.offset}, expected 0 to {OFFSET_MAX}")
    if committed.metadata != "":
        check_string("the metadata of a committed offset", committed.metadata)
        if len(committed.metadata.encode("utf-8")) > METADATA_BYTES_MAX:
            raise ConfigError(f"the metadata of a committed offset is over {METADATA_BYTES_MAX} bytes")
    return committed
