"""``MockProducer``: a producer without a store, for tests of programs that send.

    producer = MockProducer(auto_complete=False)
    program(producer)
    producer.complete_next()                    # the first record arrives
    producer.error_next(TimeoutError("slow"))   # the second one fails
    assert producer.history == [ProducerRecord("orders", b"...", b"key"), ...]

It behaves like ``Producer``: the same settings, serializers, partitioners and interceptors, the same deliveries and the
same transaction states. It writes nothing, and does nothing at random.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import (
    ClosedError,
    DeliveryError,
    InvalidTransactionStateError,
    ProducerFencedError,
    TopicWaitTimeoutError,
    TransactionAbortedError,
)
from kstore.files.paths import TopicPartition
from kstore.producer._accumulate import Deliveries, Delivery, Failures, ProducerBatch, calling
from kstore.producer.accumulator import RecordHeaders, size_upper_bound
from kstore.producer.completions import log_callback
from kstore.producer.config import ProducerConfig, next_client_id
from kstore.producer.interceptors import Interceptors
from kstore.producer.partitioner import partition_for_key, partitioner_of
from kstore.producer.records import Callback, GivenHeaders, ProducerRecord, unknown_metadata
from kstore.producer.serializers import Serializers
from kstore.producer.transactions import TransactionManager, TransactionPhase
from kstore.producer.waiting import wake
from kstore.record._codec import BatchBuffer, as_headers
from kstore.rules.arguments import as_columns

logger = logging.getLogger(__name__)

# The calls that can be told to fail.
CALLS: Final = (
    "send",
    "flush",
    "close",
    "partitions_for",
    "init_transactions",
    "begin_transaction",
    "send_offsets",
    "commit_transaction",
    "abort_transaction",
)
# The id of the only producer; its epoch increases when another one fences it.
PRODUCER: Final = (0, 0)

Offsets = dict[str, dict[TopicPartition, int]]


class MockProducer:
    """Records what is sent to it. Thread-safe."""

    def __init__(
        self,
        *,
        auto_complete: bool = True,
        partitions: int | Mapping[str, int] = 1,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        """A producer of topics that need no store.

        Args:
            auto_complete: whether a record arrives as soon as it is sent; else ``complete_next``, ``error_next`` and
                ``flush`` decide.
            partitions: the number of partitions of every topic; or the existing topics, each with its number.
            settings: those of ``Store.producer``; ``transactional_id`` for transactions.

        A record without a key goes to partition 0, unless a partitioner is set. Raises: ConfigError.
        """
        self.config: ProducerConfig = ProducerConfig.from_settings(**settings)
        config = self.config
        self.client_id: str = next_client_id(config)
        self.auto_complete = auto_complete
        self.closed: bool = False
        # Ends of transactions so far.
        self.commit_count: int = 0
        self.abort_count: int = 0
        # Whether offsets were sent in this transaction.
        self.sent_offsets: bool = False
        self._partitions = partitions
        self._clock = clock
        self._serializers = Serializers(config.key_serializer, config.value_serializer)
        self._partitioner = partitioner_of(config.partitioner)
        self._interceptors = Interceptors(config.interceptors)
        self._failures = Failures()
        self._errors: dict[str, Exception] = {}
        coordinator = _Coordinator(self._note_offsets)
        self._transactions = TransactionManager(config, lambda: coordinator, clock)
        self._lock = threading.Lock()
        # Guarded by the lock:
        self._pending: deque[ProducerBatch] = deque()
        self._next_offsets: Counter[tuple[str, int]] = Counter()
        self._history: list[ProducerRecord] = []
        self._uncommitted: list[ProducerRecord] = []
        self._offsets_history: list[Offsets] = []
        self._uncommitted_offsets: Offsets = {}

    # --- what a test reads and sets -----------------------------------------------------------------------------------

    @property
    def history(self) -> list[ProducerRecord]:
        """The records that were sent, in order, unchanged; those of a transaction once it is committed."""
        return list(self._history)

    @property
    def uncommitted(self) -> list[ProducerRecord]:
        """The records of the open transaction."""
        return list(self._uncommitted)

    @property
    def offsets_history(self) -> list[Offsets]:
        """For each committed transaction with offsets: group, partition, and the next offset to read."""
        return list(self._offsets_history)

    @property
    def pending_count(self) -> int:
        """Records that have neither arrived nor failed."""
        return len(self._pending)

    @property
    def transaction_state(self) -> TransactionPhase:
        return self._transactions.state

    @property
    def in_transaction(self) -> bool:
        return self._transactions.is_open

    def clear(self) -> None:
        """Forgets all records, sent and waiting."""
        with self._lock:
            self._pending.clear()
            self._next_offsets.clear()
            self._history.clear()
            self._uncommitted.clear()
            self._offsets_history.clear()
            self._uncommitted_offsets.clear()

    def complete_next(self) -> bool:
        """Lets the first waiting record arrive; False if none waits."""
        return self._settle_next(None)

    def error_next(self, error: Exception) -> bool:
        """Lets the first waiting record fail with ``error``; False if none waits."""
        return self._settle_next(error)

    def fail(self, call: str, error: Exception | None) -> None:
        """Makes ``call``, one of ``CALLS``, raise ``error`` from now on; with None it works again."""
        if call not in CALLS:
            raise ValueError(f"call {call!r}, expected one of {', '.join(CALLS)}")
        if error is None:
            self._errors.pop(call, None)
        else:
            self._errors[call] = error

    def fence(self) -> None:
        """Replaces this producer by another one. Raises: InvalidTransactionStateError before the init."""
        self._check_open()
        if self._transactions.state is TransactionPhase.UNINITIALIZED:
            raise InvalidTransactionStateError("fence: the producer is not initialized, expected init_transactions")
        self._transactions.record_failed(ProducerFencedError(*PRODUCER, PRODUCER[1] + 1))

    # --- what Producer has --------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: GivenHeaders | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        on_delivery: Callback | None = None,
    ) -> Delivery:
        """Like ``Producer.send``."""
        record = ProducerRecord(topic, value, key, headers or (), timestamp, partition)
        if self._interceptors:
            record = self._interceptors.on_send(record)
            on_delivery = self._interceptors.told_with(on_delivery, record.headers)
        chosen = record.partition
        try:
            self._begin_call("send")
            self._transactions.check_send()
            count = self._partition_count(record.topic, chosen)
            key_bytes, value_bytes, given = self._serializers.serialize(
                record.topic, record.key, record.value, record.headers
            )
            if chosen is None:
                chosen = self._partition(record.topic, key_bytes, value_bytes, count)
            time_ms = self._clock.now_ms() if record.timestamp is None else record.timestamp
            record_headers = as_headers(given)
            batch, delivery = self._batch(
                record.topic, chosen, key_bytes, value_bytes, record_headers, time_ms, on_delivery
            )
        except TopicWaitTimeoutError as error:
            self._transactions.record_failed(error)
            return self._refused(record.topic, chosen, error, on_delivery)
        except Exception as error:
            self._interceptors.on_send_error(record, error, chosen)
            raise
        with self._lock:
            (self._uncommitted if self._transactions.is_open else self._history).append(record)
            self._pending.append(batch)
        if self.auto_complete:
            self.complete_next()
        return delivery

    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        timestamps: Iterable[int | datetime | None] | None = None,
        headers: Iterable[GivenHeaders | None] | None = None,
        partition: int | None = None,
    ) -> Deliveries:
        """Like ``Producer.send_many``."""
        values, keys, timestamps, headers = as_columns(values, keys, timestamps, headers)
        self._check_open()
        return Deliveries.of(
            [
                self._send_one(
                    topic,
                    value,
                    key=None if keys is None else keys[number],
                    headers=None if headers is None else headers[number],
                    timestamp=None if timestamps is None else timestamps[number],
                    partition=partition,
                )
                for number, value in enumerate(values)
            ]
        )

    def partitions_for(self, topic: str) -> list[int]:
        """Like ``Producer.partitions_for``, except that it never waits."""
        self._begin_call("partitions_for")
        return list(range(self._partition_count(topic, None)))

    def flush(self, timeout: float | None = None) -> None:
        """Lets all waiting records arrive. Raises: DeliveryError like ``Producer.flush``."""
        self._begin_call("flush")
        self._settle_all(None)
        self._report_failures()

    def close(self, timeout: float | None = None) -> None:
        """Aborts an open transaction, and lets all other waiting records arrive. Raises: DeliveryError like
        ``Producer.close``."""
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"a timeout of {timeout} s, expected at least 0")
        if self.closed:
            return
        self._begin_call("close")
        if self._transactions.is_open:
            self._abort()
        self.closed = True
        self._settle_all(None)
        self._interceptors.close()
        self._serializers.close()
        close = getattr(self._partitioner, "close", None)
        if close is not None:
            close()
        self._report_failures()

    def init_transactions(self) -> None:
        self._begin_call("init_transactions")
        self._transactions.init()

    def begin_transaction(self) -> None:
        self._begin_call("begin_transaction")
        self._transactions.begin()
        self.sent_offsets = False

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        self._begin_call("send_offsets")
        self._transactions.add_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Lets all waiting records arrive; then the transaction's records and offsets are in the histories."""
        self._begin_call("commit_transaction")
        self._transactions.begin_end(commit=True)
        self._settle_all(None)
        self._transactions.end(commit=True)
        with self._lock:
            self._history += self._uncommitted
            if self._uncommitted_offsets:
                self._offsets_history.append(self._uncommitted_offsets)
            self._uncommitted, self._uncommitted_offsets = [], {}
        self.commit_count += 1

    def abort_transaction(self) -> None:
        """Fails all waiting records, and drops the transaction's records and offsets."""
        self._begin_call("abort_transaction")
        self._abort()

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Like ``Producer.transaction``."""
        self.init_transactions()
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            if self._transactions.is_abortable and not self.closed:
                self.abort_transaction()
            raise
        try:
            self.commit_transaction()
        except Exception:
            if self._transactions.is_abortable:
                self.abort_transaction()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except DeliveryError:
            # The block's own error comes first.
            if error is None:
                raise

    # --- inside -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"the producer {self.client_id} is closed")

    def _begin_call(self, call: str) -> None:
        self._check_open()
        if call in self._errors:
            raise self._errors[call]

    def _partition_count(self, topic: str, partition: int | None) -> int:
        """Raises: TopicWaitTimeoutError, which ``Producer`` raises later."""
        count = self._partitions if isinstance(self._partitions, int) else self._partitions.get(topic, 0)
        if count == 0:
            raise TopicWaitTimeoutError(f"there is no topic {topic}, expected one of {self._partitions}")
        if partition is not None and partition >= count:
            raise TopicWaitTimeoutError(f"there is no partition {partition} of topic {topic}, which has {count}")
        return count

    def _partition(self, topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        if self._partitioner is not None:
            number = self._partitioner.partition(topic, key, value, count)
            if not 0 <= number < count:
                raise ValueError(f"the partitioner chose {number}, expected 0 to {count - 1}")
            return number
        return 0 if key is None or self.config.partitioner_ignore_keys else partition_for_key(key, count)

    def _batch(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        timestamp: int,
        on_delivery: Callback | None,
    ) -> tuple[ProducerBatch, Delivery]:
        """A batch with only this record, which gives a real delivery."""
        size = size_upper_bound(value, key, headers)
        batch = ProducerBatch(topic, partition, BatchBuffer(size), size, self._clock.monotonic(), self._failures)
        delivery = batch.append(value, key, headers, timestamp, on_delivery)
        assert delivery is not None, "the first record finds room"
        batch.is_transactional = self._transactions.is_open
        return batch, delivery

    def _send_one(self, topic: str, value: Any, **options: Any) -> Delivery:
        try:
            return self.send(topic, value, **options)
        except (TypeError, ValueError) as error:
            if isinstance(error, ClosedError | InvalidTransactionStateError | ProducerFencedError):
                raise
            return self._refused(topic, options["partition"], error, None)

    def _refused(self, topic: str, partition: int | None, error: Exception, on_delivery: Callback | None) -> Delivery:
        metadata = unknown_metadata(topic, partition)
        if on_delivery is None:
            return Delivery.failed(topic, metadata.partition, error, self._failures)
        try:
            on_delivery(metadata, error)
        except Exception:
            logger.exception("%s: a callback failed", self.client_id)
        return Delivery.failed(topic, metadata.partition, error)

    def _settle_next(self, error: Exception | None) -> bool:
        with self._lock:
            if not self._pending:
                return False
            batch = self._pending.popleft()
            if error is None:
                partition = (batch.topic, batch.partition)
                batch.succeed(self._next_offsets[partition])
                self._next_offsets[partition] += 1
            else:
                batch.fail(error)
        if error is not None:
            self._transactions.failed(batch, error)
        with calling():
            for delivery, on_delivery in batch.callbacks:
                failure = delivery.call(on_delivery)
                if isinstance(failure, Exception):
                    log_callback(batch, failure)
                elif failure is not None:
                    raise failure
        batch.callbacks.clear()
        batch.buffer = None
        awaited = batch.release()
        if awaited:
            wake(awaited)
            batch.woken()
        return True

    def _settle_all(self, error: Exception | None) -> None:
        while self._settle_next(error):
            pass

    def _abort(self) -> None:
        self._transactions.begin_end(commit=False)
        cause = self._transactions.error
        for batch in self._pending:
            batch.failures = None  # the caller requested it
        self._settle_all(TransactionAbortedError("the transaction was aborted") if cause is None else cause)
        self._transactions.end(commit=False)
        with self._lock:
            self._uncommitted, self._uncommitted_offsets = [], {}
        self.abort_count += 1

    def _report_failures(self) -> None:
        found = self._failures.take()
        if found is not None:
            raise DeliveryError(*found)

    def _note_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            self._uncommitted_offsets.setdefault(group, {}).update(offsets)
        self.sent_offsets = True


class _Coordinator:
    """Replaces the store's coordinator; keeps only the offsets."""

    def __init__(self, note_offsets: Callable[[str, Mapping[TopicPartition, int]], None]) -> None:
        self._note_offsets = note_offsets

    def init_producer_id(self, transactional_id: str | None, timeout_ms: int = 0) -> tuple[int, int]:
        return PRODUCER

    def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> None:
        pass

    def end(self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> tuple[int, int]:
        return PRODUCER

    def add_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        group: str,
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        self._note_offsets(group, offsets)
