"""The metadata of one transactional id, and its transactions: values and their transitions. No I/O here.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing ...

A transaction is decided by its Prepare record alone: from then on it can only be completed. The decision uses the next
epoch, as in Kafka 4 (KIP-890): the markers carry it, so no batch of the transaction can come after them, and the next
transaction uses it. After the last epoch the decision names the next producer id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from kstore.errors import InvalidTransactionStateError
from kstore.files.paths import TopicPartition
from kstore.rules.sequence import NO_EPOCH
from kstore.types import NO_TIMESTAMP

NO_PRODUCER_ID = -1
# Kafka's transaction.version 2: each transaction has its own epoch.
CLIENT_TRANSACTION_VERSION = 2
# The last epoch is reserved for the end of a transaction: no producer writes with it.
EPOCH_MAX = 2**15 - 1


class TransactionState(IntEnum):
    """Kafka's states, by their numbers in a record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    def __str__(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Decided, but not carried out everywhere."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """No transaction is open."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


_IDLE = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
# By state: its possible predecessors.
VALID_PREVIOUS: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: _IDLE,
    TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.ONGOING}),
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _IDLE,
    # Kafka's, in memory only: here the fence is the epoch of PrepareAbort.
    TransactionState.PREPARE_EPOCH_FENCE: frozenset(),
}


def is_valid_move(before: TransactionState, after: TransactionState) -> bool:
    return before in VALID_PREVIOUS[after]


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """One record of ``__transaction_state`` (Kafka: TransactionMetadata). Times in ms; -1 means none.

    ``partitions`` are those of the open, or decided, transaction; an idle id has none. ``next_*`` is the producer that
    takes over when the transaction is complete, if the epochs are used up.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_timestamp: int = NO_TIMESTAMP
    start_timestamp: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    client_transaction_version: int = CLIENT_TRANSACTION_VERSION

    def is_end_of(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether this is the decision, or the end, of that producer's transaction: the case of a repeated call."""
        if self.state in (TransactionState.EMPTY, TransactionState.ONGOING):
            return False
        if self.producer_id == producer_id:
            return self.producer_epoch == producer_epoch + 1
        # It was that producer's last epoch.
        return self.previous_producer_id == producer_id and self.producer_epoch == 0 and producer_epoch == EPOCH_MAX - 1

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the epoch is the last one with which a producer writes."""
        return self.producer_epoch >= EPOCH_MAX - 1

    def _moved(
        self, state: TransactionState, now_ms: int, partitions: frozenset[TopicPartition]
    ) -> TransactionMetadata:
        if not is_valid_move(self.state, state):
            raise InvalidTransactionStateError(
                f"transactional id {self.transactional_id!r} is in state {self.state}, from which it cannot be {state}"
            )
        return replace(self, state=state, last_update_timestamp=now_ms, partitions=partitions)

    def next_instance(self, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """The metadata for a new producer of this id, which fences all earlier ones; not if the epoch is exhausted."""
        assert not self.is_epoch_exhausted
        moved = self._moved(TransactionState.EMPTY, now_ms, frozenset())
        return replace(
            moved, producer_epoch=self.producer_epoch + 1, timeout_ms=timeout_ms, start_timestamp=NO_TIMESTAMP
        )

    def rotated(self, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """The metadata with a new producer id, whose epochs start again."""
        moved = self._moved(TransactionState.EMPTY, now_ms, frozenset())
        return replace(
            moved,
            producer_id=producer_id,
            producer_epoch=0,
            previous_producer_id=self.producer_id,
            timeout_ms=timeout_ms,
            start_timestamp=NO_TIMESTAMP,
        )

    def with_partitions(self, partitions: Iterable[TopicPartition], now_ms: int) -> TransactionMetadata:
        """The metadata with more partitions; the first ones start a transaction."""
        moved = self._moved(TransactionState.ONGOING, now_ms, self.partitions.union(partitions))
        is_new = self.state != TransactionState.ONGOING
        return replace(moved, start_timestamp=now_ms if is_new else self.start_timestamp)

    def prepared(self, now_ms: int, *, commit: bool, next_producer_id: int = NO_PRODUCER_ID) -> TransactionMetadata:
        """The decided transaction, in the next epoch; after an exhausted one it continues under
        ``next_producer_id``."""
        state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        return replace(
            self._moved(state, now_ms, self.partitions),
            producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX),
            next_producer_id=next_producer_id,
            next_producer_epoch=NO_EPOCH if next_producer_id == NO_PRODUCER_ID else 0,
            client_transaction_version=CLIENT_TRANSACTION_VERSION,
        )

    def completed(self, now_ms: int) -> TransactionMetadata:
        """The transaction, carried out everywhere."""
        is_commit = self.state == TransactionState.PREPARE_COMMIT
        state = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
        moved = self._moved(state, now_ms, frozenset())
        if self.next_producer_id == NO_PRODUCER_ID:
            return moved
        return replace(
            moved,
            producer_id=self.next_producer_id,
            producer_epoch=max(self.next_producer_epoch, 0),
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_EPOCH,
        )


assert set(VALID_PREVIOUS) == set(TransactionState)
