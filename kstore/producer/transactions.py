"""A producer's id and the state of its transaction (Kafka: TransactionManager).

uninitialized -> ready <-> in transaction -> committing | aborting -> ready
                              |-> failed (a record was lost, only an abort remains) -> aborting
any -> fatal (another producer has replaced this one)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Protocol

from kstore.clock import Clock
from kstore.errors import ConfigError, InvalidTransactionStateError, ProducerFencedError
from kstore.files.paths import TopicPartition
from kstore.messages.primitives import check_string
from kstore.producer._accumulate import ProducerBatch
from kstore.producer.config import ProducerConfig

NO_PRODUCER = (-1, -1)
# How long the coordinator's answer is valid. Much less than the time after which a log forgets a fenced producer.
ANSWER_MS = 1000


class TransactionPhase(Enum):
    UNINITIALIZED = "not initialized"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that can only be aborted"
    FATAL_ERROR = "fenced"


State = TransactionPhase
# In these a transaction may be aborted. In COMMITTING the decision may be on disk.
ABORTABLE = (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING)


class Coordinator(Protocol):
    """Assigns producer ids, and ends transactions: a store's, or a mock's."""

    def init_producer_id(self, transactional_id: str | None, timeout_ms: int = ...) -> tuple[int, int]: ...

    def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> None: ...

    def end(self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> tuple[int, int]:
        """Ends the transaction; returns the producer id and epoch of the next one."""
        ...

    def add_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        group: str,
        offsets: Mapping[TopicPartition, int],
    ) -> None: ...


class TransactionManager:
    """The id of a producer's batches, and the state of its transaction. Thread-safe."""

    def __init__(self, config: ProducerConfig, coordinator: Callable[[], Coordinator], clock: Clock) -> None:
        """``coordinator`` returns it on first use: many producers need none. It raises ClosedError, StorageError."""
        self.state: TransactionPhase = State.UNINITIALIZED
        self.error: Exception | None = None
        self._config = config
        self._coordinator = coordinator
        self._clock = clock
        self._id = config.transactional_id
        self._lock = threading.RLock()
        # Guarded by the lock, like the state.
        self._producer = NO_PRODUCER
        self._added: set[tuple[str, int]] = set()
        self._has_offsets = False
        # By the monotonic clock, the last successful call of the coordinator.
        self._asked = 0.0

    @property
    def is_transactional(self) -> bool:
        return self._id is not None

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch, or -1 and -1."""
        return self._producer

    # --- for the sender ---------------------------------------------------------------------------------------

    def for_partition(self, topic: str, partition: int) -> tuple[int, int]:
        """Producer id and epoch for a partition. In a transaction the partition is first added to it, durably, because
        after a crash the coordinator must know where to end it.

        The coordinator is asked again after ``ANSWER_MS``, because it may have ended the transaction since. A log
        refuses records after that end only until it forgets the producer (``producer_id_expiration_ms``).

        Raises: what the coordinator raises.
        """
        if not self._config.enable_idempotence:
            return NO_PRODUCER
        producer = self._producer
        if self._id is None and producer != NO_PRODUCER:
            return producer
        with self._lock:
            if self._producer == NO_PRODUCER:
                self._producer = self._coordinator().init_producer_id(self._id, self._config.transaction_timeout_ms)
            if self._id is not None:
                now = self._clock.monotonic()
                if (topic, partition) not in self._added or (now - self._asked) * 1000 >= ANSWER_MS:
                    self._coordinator().add_partitions(self._id, *self._producer, [TopicPartition(topic, partition)])
                    self._added.add((topic, partition))
                    self._asked = now
            return self._producer

    def renew(self, after: tuple[int, int]) -> bool:
        """Gives a producer without transactions another id; returns whether its id now differs from ``after``."""
        with self._lock:
            if self._id is not None:
                return False
            if self._producer == after:
                self._producer = self._coordinator().init_producer_id(None, self._config.transaction_timeout_ms)
            return True

    def failed(self, batch: ProducerBatch, error: Exception) -> None:
        """Notes that records of a batch are lost: a transaction with them cannot be committed."""
        if batch.is_transactional:
            self.record_failed(error)

    def record_failed(self, error: Exception) -> None:
        """Notes that a record of the transaction is lost."""
        if self._id is None:
            return
        with self._lock:
            if isinstance(error, ProducerFencedError):
                self._fail_for_good(error)
            elif self.state in (State.IN_TRANSACTION, State.COMMITTING):
                self.state, self.error = State.ABORTABLE_ERROR, error

    # --- for the user -----------------------------------------------------------------------------------------

    def init(self) -> None:
        """Replaces any producer with the same transactional id, and ends its open transaction."""
        with self._lock:
            transactional_id = self._required()
            if self.state is State.READY:
                return
            self._expect("init_transactions", State.UNINITIALIZED)
            self._producer = self._coordinator().init_producer_id(transactional_id, self._config.transaction_timeout_ms)
            self.state = State.READY

    def begin(self) -> None:
        with self._lock:
            self._required()
            self._expect("begin_transaction", State.READY)
            self.state, self.error = State.IN_TRANSACTION, None
            self._added.clear()
            self._has_offsets = False

    def check_send(self) -> None:
        """Raises: InvalidTransactionStateError outside a transaction; the error that stops the transaction."""
        # Without the lock: the sender may hold it while the coordinator waits for the disk.
        if self._id is None or self.state is State.IN_TRANSACTION:
            return
        with self._lock:
            self._expect("send", State.IN_TRANSACTION)

    def begin_end(self, *, commit: bool) -> None:
        """Makes the transaction accept no more records."""
        with self._lock:
            self._required()
            if commit:
                self._expect("commit_transaction", State.IN_TRANSACTION, State.COMMITTING)
                self.state = State.COMMITTING
            else:
                self._expect("abort_transaction", *ABORTABLE, raises_error=False)
                self.state = State.ABORTING

    def end(self, *, commit: bool) -> None:
        """Ends the transaction, once each of its records has a result. May be repeated after a failure.

        Raises: the error of failed records; as the coordinator.
        """
        with self._lock:
            if commit:
                self._expect("commit_transaction", State.COMMITTING)
            if self._added or self._has_offsets:
                transactional_id = self._required()
                try:
                    self._producer = self._coordinator().end(transactional_id, *self._producer, commit=commit)
                except ProducerFencedError as error:
                    self._fail_for_good(error)
                    raise
            self.state, self.error = State.READY, None
            self._added.clear()
            self._has_offsets = False

    def add_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Makes a group's offsets part of the transaction."""
        with self._lock:
            transactional_id = self._required()
            self._expect("send_offsets", State.IN_TRANSACTION)
            check_string("group", group)
            if not isinstance(offsets, Mapping):
                raise ConfigError(f"offsets are {offsets!r:.80}, expected a mapping of partitions to offsets")
            if not offsets:
                return
            self._has_offsets = True
            try:
                self._coordinator().add_offsets(transactional_id, *self._producer, group, offsets)
            except ProducerFencedError as error:
                self._fail_for_good(error)
                raise
            except Exception as error:
                self.record_failed(error)
                raise

    @property
    def is_open(self) -> bool:
        """Whether a transaction was begun and not ended."""
        return self.state is State.COMMITTING or self.is_abortable

    @property
    def is_abortable(self) -> bool:
        """Whether a transaction was begun, and no call has begun to commit it."""
        return self.state in ABORTABLE

    # --- inside -----------------------------------------------------------------------------------------------------

    def _required(self) -> str:
        if self._id is None:
            raise InvalidTransactionStateError("a producer without transactional_id has no transactions")
        return self._id

    def _fail_for_good(self, error: Exception) -> None:
        self.state, self.error = State.FATAL_ERROR, error

    def _expect(self, what: str, *states: TransactionPhase, raises_error: bool = True) -> None:
        if self.state in states:
            return
        if self.error is not None and (raises_error or self.state is State.FATAL_ERROR):
            raise self.error
        expected = " or ".join(state.value for state in states)
        raise InvalidTransactionStateError(f"{what}: the producer is {self.state.value}, expected {expected}")
