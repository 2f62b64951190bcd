"""``TransactionCoordinator``: producer ids and epochs, and transactions that end in all their partitions or in none.

Each step is a record of ``__transaction_state``, on disk before the next one starts:

    1  Ongoing                      before anything is written to a partition: names the partition
    2  PrepareCommit, PrepareAbort  before the first marker: the decision, final
    3  a marker in each partition   in any order, repeated if necessary: a second one has no effect
    4  CompleteCommit, ...Abort

A process that finds step 2 continues with 3; one that finds only step 1, without a live producer, aborts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kstore.errors import (
    ClosedError,
    ConfigError,
    InvalidProducerIdMappingError,
    InvalidTransactionStateError,
    KstoreError,
    ProducerFencedError,
    TopicNotFoundError,
    TransactionCoordinatorFencedError,
)
from kstore.files._locks import Attempt, OwnedLock
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.logs.topics import Topics
from kstore.messages.primitives import check_string
from kstore.transactions.group_offsets import GroupOffsets
from kstore.transactions.group_records import OffsetAndMetadata
from kstore.transactions.metadata import TransactionMetadata, TransactionState
from kstore.transactions.producer_ids import NO_ID, ProducerIds
from kstore.transactions.state_log import StateLog

logger = logging.getLogger(__name__)

TIMEOUT_MS_MAX = 2**31 - 1
# Kafka: transactional.id.expiration.ms. An id that is unused for this long is forgotten.
EXPIRATION_MS = 7 * 86_400_000


@dataclass(slots=True)
class _Entry:
    """One transactional id; the lock guards the rest, and is held during a step.

    ``metadata`` is the stored one. ``unmarked``: the partitions of a decided transaction that still lack a marker.
    ``began``: when the open transaction started, monotonic.
    """

    lock: OwnedLock = field(default_factory=OwnedLock)
    metadata: TransactionMetadata | None = None
    unmarked: set[TopicPartition] = field(default_factory=set)
    began: float = 0.0


class TransactionCoordinator:
    """The coordinator of one store. Thread-safe: calls for the same transactional id wait for each other."""

    def __init__(self, topics: Topics, ids: ProducerIds, offsets: GroupOffsets) -> None:
        """Reads the known transactional ids; writes nothing (``recover`` does).

        Args:
            topics: the store's.
            ids: the source of producer ids.
            offsets: the committed offsets of groups.

        Raises: StorageError.
        """
        self._topics = topics
        self._clock = topics.clock
        self._ids = ids
        self._state_log = StateLog(topics)
        self._offsets = offsets
        # Guards the map, not its contents.
        self._mutex = OwnedLock()
        self._entries: dict[str, _Entry] = {}
        for name, metadata in self._state_log.load().items():
            unmarked = set(metadata.partitions) if metadata.state.is_prepared else set()
            self._entries[name] = _Entry(metadata=metadata, unmarked=unmarked)

    def _highest_owner(self) -> int:
        """The highest id in a record of a transaction. May read a record that is being replaced."""
        known = [entry.metadata for _, entry in self._all()]
        return max(
            (max(one.producer_id, one.previous_producer_id, one.next_producer_id) for one in known if one is not None),
            default=NO_ID,
        )

    # --- producers --------------------------------------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int = 60_000, *, producer: tuple[int, int] | None = None
    ) -> tuple[int, int]:
        """Assigns a producer id and an epoch, with which no other producer writes from now on.

        Without a transactional id: a new one. With it: its present id, in the next epoch; its earlier producers are
        fenced, their decided transaction is completed, their open one aborted. After its last epoch the transactional
        id gets a new producer id. ``producer``, an id and an epoch, identifies a caller that wants to continue, and is
        refused if fenced. A transaction that is open for longer than ``timeout_ms`` is aborted.

        Raises: ConfigError, ProducerFencedError, DiskFullError, PoisonedError, StorageError; then another call would
        fence again whatever was fenced.
        """
        if transactional_id is None:
            return self._ids.take(self._highest_owner), 0
        check_string("transactional_id", transactional_id)
        if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int) or not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise ConfigError(f"timeout_ms is {timeout_ms!r:.80}, expected an int from 1 to {TIMEOUT_MS_MAX}")
        entry = self._entry(transactional_id)
        with entry.lock:
            if producer is not None:
                self._checked(transactional_id, entry, *producer)
            self._finish(entry)
            # Looked up again: the end of a transaction may have changed it.
            found = entry.metadata
            now_ms = self._clock.now_ms()
            if found is None:
                made = TransactionMetadata(
                    transactional_id, self._ids.take(self._highest_owner), 0, timeout_ms, last_update_timestamp=now_ms
                )
            elif found.is_epoch_exhausted:
                made = found.rotated(self._ids.take(self._highest_owner), timeout_ms, now_ms)
            else:
                made = found.next_instance(timeout_ms, now_ms)
            self._move(entry, made)
            return made.producer_id, made.producer_epoch

    def _finish(self, entry: _Entry) -> None:
        """Completes a decided transaction, aborts an open one and fences its producer. Needs the lock."""
        metadata = entry.metadata
        if metadata is None or metadata.state.is_idle:
            return
        if not metadata.state.is_prepared:
            self._decide(entry, metadata, commit=False)
        self._complete(entry)

    def _decide(self, entry: _Entry, metadata: TransactionMetadata, *, commit: bool) -> None:
        following = self._ids.take(self._highest_owner) if metadata.is_epoch_exhausted else NO_ID
        self._move(entry, metadata.prepared(self._clock.now_ms(), commit=commit, next_producer_id=following))

    # --- transactions -----------------------------------------------------------------------------------------------

    def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> None:
        """Adds partitions to the producer's transaction, before it writes to them; the first ones start it.

        Raises: ProducerFencedError, InvalidProducerIdMappingError, InvalidTransactionStateError (the last transaction
        has not ended everywhere: repeat ``end``), DiskFullError, PoisonedError, StorageError.
        """
        entry = self._entry(transactional_id)
        with entry.lock:
            self._add(entry, self._checked(transactional_id, entry, producer_id, producer_epoch), partitions)

    def _add(self, entry: _Entry, metadata: TransactionMetadata, partitions: Iterable[TopicPartition]) -> None:
        wanted = frozenset(TopicPartition(*owner) for owner in partitions)
        is_open = metadata.state == TransactionState.ONGOING
        if not wanted or (is_open and wanted <= metadata.partitions):
            return
        if not is_open:
            entry.began = self._clock.monotonic()  # an interrupt may end the next call after it has done everything
        self._move(entry, metadata.with_partitions(wanted, self._clock.now_ms()))

    def end(self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> tuple[int, int]:
        """Ends the producer's transaction; returns the producer id and epoch of its next one.

        On return its records are committed, or aborted, in every partition.

        After an exception the same call may be repeated any number of times; after a ``StorageError`` of the decision
        itself, the opposite one too. Once decided, a repetition completes the transaction, and so do the store's task
        and the next open. Partitions that were deleted since are skipped. A transaction without partitions is unknown
        here, so there is nothing to end.

        Raises: ProducerFencedError, InvalidProducerIdMappingError, InvalidTransactionStateError (none is open, or it
        was decided otherwise), DiskFullError, PoisonedError, StorageError.
        """
        entry = self._entry(transactional_id)
        with entry.lock:
            metadata = entry.metadata
            if metadata is None or not metadata.is_end_of(producer_id, producer_epoch):
                self._decide(entry, self._checked(transactional_id, entry, producer_id, producer_epoch), commit=commit)
            elif metadata.state not in DECISIONS[commit]:
                raise InvalidTransactionStateError(
                    f"the transaction of {transactional_id!r} is in state {metadata.state}, which is final"
                )
            if entry.metadata is not None and entry.metadata.state.is_prepared:
                self._complete(entry)
            assert entry.metadata is not None
            return entry.metadata.producer_id, entry.metadata.producer_epoch

    def _complete(self, entry: _Entry) -> None:
        """Carries out the decision. Needs the lock. Raises: the first failure, after trying all partitions."""
        metadata = entry.metadata
        assert metadata is not None
        assert metadata.state.is_prepared
        failure: KstoreError | None = None
        for owner in sorted(entry.unmarked):
            try:
                self._mark(owner, metadata)
            except KstoreError as error:
                failure = failure or error
            else:
                entry.unmarked.discard(owner)
        if failure is not None:
            raise failure
        self._move(entry, metadata.completed(self._clock.now_ms()))

    def _mark(self, owner: TopicPartition, metadata: TransactionMetadata) -> None:
        """Writes the end of the transaction to one partition, unless that has been deleted."""
        for attempt in range(2):
            try:
                log = self._topics.log_of(owner)
            except TopicNotFoundError:
                logger.warning("%s was deleted: %s ends without it", owner, metadata.transactional_id)
                return
            try:
                self._write_marker(log, metadata)
                return
            except ClosedError:
                # Deleted, or closed and reopened, since it was looked up.
                if attempt:
                    raise

    def _write_marker(self, log: Log, metadata: TransactionMetadata) -> None:
        commit = metadata.state == TransactionState.PREPARE_COMMIT
        producer_id, epoch = metadata.producer_id, metadata.producer_epoch
        try:
            try:
                log.end_transaction(producer_id, epoch, commit=commit, coordinator_epoch=self._state_log.epoch)
            except TransactionCoordinatorFencedError:
                # An earlier coordinator has ended it; no other one exists now.
                known = [info for info in log.producers() if info.producer_id == producer_id]
                log.end_transaction(producer_id, epoch, commit=commit, coordinator_epoch=known[0].coordinator_epoch)
        except ProducerFencedError as error:
            # A caller has ended it with a later epoch without the coordinator.
            logger.warning("%s: the transaction of %s is ended: %s", log.path, metadata.transactional_id, error)

    def _move(self, entry: _Entry, metadata: TransactionMetadata) -> None:
        """Writes the next step, then adopts it; if it cannot be written, nothing changes. Needs the lock."""
        unmarked = set(metadata.partitions) if metadata.state.is_prepared else set()
        self._state_log.append(metadata)
        # No call between the two: a decision that is adopted without its partitions would be completed without markers.
        entry.metadata = metadata
        entry.unmarked = unmarked

    def _entry(self, transactional_id: str) -> _Entry:
        with self._mutex:
            entry = self._entries.get(transactional_id)
            if entry is None:
                # No ``setdefault``: refused memory there, CPython 3.13 counts an entry that it has not stored.
                entry = self._entries[transactional_id] = _Entry()
            return entry

    def _checked(
        self, transactional_id: str, entry: _Entry, producer_id: int, producer_epoch: int
    ) -> TransactionMetadata:
        """The metadata of the calling producer. Needs the lock. Raises: ProducerFencedError."""
        metadata = entry.metadata
        if metadata is None:
            raise InvalidProducerIdMappingError(transactional_id, producer_id, producer_epoch, "the id is not known")
        if producer_id != metadata.producer_id or producer_epoch > metadata.producer_epoch:
            found = f"its producer is {metadata.producer_id}, epoch {metadata.producer_epoch}"
            raise InvalidProducerIdMappingError(transactional_id, producer_id, producer_epoch, found)
        if producer_epoch < metadata.producer_epoch:
            raise ProducerFencedError(producer_id, producer_epoch, metadata.producer_epoch)
        return metadata

    # --- groups -----------------------------------------------------------------------------------------------------

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Commits offsets of a group: the next record to read in each partition. All of them or none.

        On return they are as durable as ``__consumer_offsets``, which uses the store's setting.

        Raises: ConfigError, GroupInUseError, RecordTooLargeError, DiskFullError, PoisonedError, StorageError.
        """
        check_string("group", group)
        if offsets:
            self._offsets.commit(group, offsets)

    def add_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
    ) -> None:
        """Commits offsets as part of the producer's transaction: they count when it commits, and never if it aborts.

        Raises: as ``add_partitions`` and ``commit_offsets``.
        """
        check_string("group", group)
        if not offsets:
            return
        entry = self._entry(transactional_id)
        with entry.lock:
            # The transaction must not end before they are written.
            metadata = self._checked(transactional_id, entry, producer_id, producer_epoch)
            self._add(entry, metadata, [self._offsets.place(group)])
            self._offsets.commit(group, offsets, producer=(producer_id, producer_epoch))

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that a group has committed, for all or the given partitions; partitions without one are omitted.

        Raises: StorageError.
        """
        found = self._offsets.committed(group)
        return found if partitions is None else {owner: found[owner] for owner in partitions if owner in found}

    def unstable(self, group: str) -> set[TopicPartition]:
        """The partitions whose offsets an open transaction will change, if it commits."""
        return self._offsets.unstable(group)

    def groups(self) -> list[str]:
        """The groups that have committed offsets, sorted. Opens every partition of the topic."""
        return self._offsets.groups()

    # --- background work -------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Called at the open: completes decided transactions, and aborts open ones, whose producers are gone.

        Failures are logged and retried: by the task, and when the transactional id is used.
        """
        for name, entry in self._all():
            with entry.lock:
                self._attempt(name, lambda entry=entry: self._finish(entry))  # type: ignore[misc]

    def run_due(self) -> None:
        """Aborts transactions that are open for too long, completes decided ones, forgets unused ids.

        Raises: the first failure, after trying all.
        """
        failure: BaseException | None = None
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for name, entry in self._all():
            with Attempt(entry.lock) as is_mine:
                if is_mine:  # else another call is working on it
                    failed = self._attempt(name, lambda: self._look_after(name, entry, now, now_ms))  # noqa: B023
                    failure = failure or failed
        if failure is not None:
            raise failure

    def _look_after(self, name: str, entry: _Entry, now: float, now_ms: int) -> None:
        metadata = entry.metadata
        if metadata is None:
            return
        if metadata.state.is_prepared:
            self._complete(entry)
        elif metadata.state == TransactionState.ONGOING:
            if (now - entry.began) * 1000 >= metadata.timeout_ms:
                logger.warning(
                    "the transaction of %r is aborted: it was open for over %d ms", name, metadata.timeout_ms
                )
                self._finish(entry)
        elif now_ms - metadata.last_update_timestamp >= EXPIRATION_MS:
            self._state_log.forget(name)
            entry.metadata = None

    def close(self) -> None:
        """Aborts open transactions, completes decided ones. Raises: the first failure, after trying all."""
        failure: BaseException | None = None
        for name, entry in self._all():
            with entry.lock:
                failed = self._attempt(name, lambda entry=entry: self._finish(entry))  # type: ignore[misc]
            failure = failure or failed
        if failure is not None:
            raise failure

    def _attempt(self, name: str, action: Callable[[], object]) -> KstoreError | None:
        try:
            action()
        except KstoreError as error:
            logger.warning("the transaction of %r cannot be ended now: %s", name, error)
            return error
        return None

    def transactions(self) -> list[TransactionMetadata]:
        """All transactional ids with their metadata, sorted."""
        found = [entry.metadata for _, entry in self._all()]
        return sorted((one for one in found if one is not None), key=lambda one: one.transactional_id)

    def _all(self) -> list[tuple[str, _Entry]]:
        with self._mutex:
            return list(self._entries.items())


# By whether it is a commit: the states of the decision and of its end.
DECISIONS = {
    True: (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
    False: (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
}
