"""``SlowPath``: the part of ``send`` that the compiled part (_accumulate) leaves to Python.

The compiled part handles most records. The rest is here: waits, serializers, partitioners, interceptors, bad records,
and the record that opens the next batch.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from kstore.clock import Clock
from kstore.errors import (
    BufferExhaustedError,
    ConfigError,
    InvalidRecordError,
    RecordError,
    RecordTooLargeError,
    TopicNotFoundError,
    TopicWaitTimeoutError,
)
from kstore.files.lifetime import Lifetime
from kstore.producer._accumulate import Delivery
from kstore.producer.accumulator import RUN_BATCHES, BatchQueue, RecordHeaders, Topic, size_upper_bound
from kstore.producer.config import ProducerConfig
from kstore.producer.interceptors import Interceptors
from kstore.producer.metadata import TopicMetadata
from kstore.producer.outbox import Outbox
from kstore.producer.partitioner import partitioner_of
from kstore.producer.producer_metrics import ProducerCounters
from kstore.producer.records import Callback, ProducerRecord, unknown_metadata
from kstore.producer.sender import INLINE_BATCHES
from kstore.producer.serializers import Serializers
from kstore.producer.transactions import TransactionManager
from kstore.record._codec import as_headers, murmur2
from kstore.rules.arguments import check_timestamps

logger = logging.getLogger(__name__)

# Errors of one record, or transient ones: they fail the delivery, not the call.
DELIVERED_ERRORS: Final = (
    RecordTooLargeError,
    TopicNotFoundError,
    TopicWaitTimeoutError,
    ConfigError,
    BufferExhaustedError,
    InvalidRecordError,
)


class SlowPath:
    """Puts records into the memory of their partition, with all the lookups and calls this may need. Thread-safe."""

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        metadata: TopicMetadata,
        transactions: TransactionManager,
        outbox: Outbox,
        counters: ProducerCounters,
        life: Lifetime,
        *,
        client_id: str,
    ) -> None:
        """Raises: ConfigError."""
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._transactions = transactions
        self._outbox = outbox
        self._counters = counters
        self._life = life
        self._client_id = client_id
        self._serializers = Serializers(config.key_serializer, config.value_serializer)
        self._partitioner = partitioner_of(config.partitioner)
        self._on_new_batch = getattr(self._partitioner, "on_new_batch", None)
        self.interceptors: Interceptors = Interceptors(config.interceptors)
        # How long a record waits for its topic and for memory.
        self.max_block_seconds: float = config.max_block_ms / 1000
        # Larger records are checked more closely.
        self._plain_size_max = min(config.batch_size, config.max_request_size, config.buffer_memory) // 2
        # Whether a record needs no lookups or calls.
        self.is_plain: bool = (
            not config.interceptors
            and self._partitioner is None
            and self._serializers.is_plain
            and config.transactional_id is None
        )

    def send_slowly(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        timestamp: int | None,
        partition: int | None,
        on_delivery: Callback | None,
    ) -> Delivery:
        """The general ``send``: waits, full batches, and all lookups and calls."""
        record = ProducerRecord(topic, value, key, headers or (), timestamp, partition)
        if self.interceptors:
            record = self.interceptors.on_send(record)
            on_delivery = self.interceptors.told_with(on_delivery, record.headers)
        chosen = record.partition
        try:
            self.check_open()
            self._transactions.check_send()
        except Exception as error:
            self.interceptors.on_send_error(record, error, chosen)
            raise
        try:
            deadline = self._clock.monotonic() + self.max_block_seconds
            found = self._metadata.get(record.topic, chosen, self.max_block_seconds)
            # The time in serializers and partitioners is not counted.
            left = deadline - self._clock.monotonic()
            key_bytes, value_bytes, given = self._serializers.serialize(
                record.topic, record.key, record.value, record.headers
            )
            record_headers = as_headers(given)
            if chosen is None:
                chosen = self._partition(found, key_bytes, value_bytes)
            self._check(found, record, record_headers, key_bytes, value_bytes)
            time_ms = self._clock.now_ms() if record.timestamp is None else record.timestamp
            # A partitioner with ``on_new_batch`` is called again before a batch would be opened (KIP-480).
            may_open = record.partition is not None or self._on_new_batch is None
            deadline = self._clock.monotonic() + left
            while True:
                remaining = max(deadline - self._clock.monotonic(), 0.0)
                done = self._outbox.accumulator.append(
                    found, chosen, value_bytes, key_bytes, record_headers, time_ms, on_delivery, remaining,
                    may_open=may_open,
                )  # fmt: skip
                if done is not None:
                    break
                if not may_open:
                    may_open = True
                    assert self._on_new_batch is not None
                    self._on_new_batch(found.name, found.partition_count, chosen)
                    chosen = self._partition(found, key_bytes, value_bytes)
                else:
                    self._metadata.note_change(found.name)
                    found = self._metadata.get(record.topic, chosen, remaining)
            delivery, queue = done
        except DELIVERED_ERRORS as error:
            self._transactions.record_failed(error)
            return self.refused(record.topic, chosen, error, on_delivery)
        except BaseException as error:
            if self.interceptors and isinstance(error, Exception):
                self.interceptors.on_send_error(record, error, chosen)
            raise
        self._outbox.appended(queue)
        return delivery

    def send_next(
        self,
        topic: Topic,
        partition: int | None,
        value: bytes | None,
        key: bytes | None,
        headers: RecordHeaders,
        time_ms: int,
        on_delivery: Callback | None,
        run_bytes: int = 0,
    ) -> Delivery | None:
        """Called by the compiled ``send`` when a batch is full: the record opens the next one.

        Returns None if more checks are needed, which ``send_slowly`` does.
        """
        size = (0 if value is None else len(value)) + (0 if key is None else len(key))
        if size > self._plain_size_max or headers or self._metadata.has_news(topic.name):
            return None
        try:
            done = self._outbox.accumulator.append(
                topic, partition, value, key, headers, time_ms, on_delivery, self.max_block_seconds, run_bytes=run_bytes
            )
        except DELIVERED_ERRORS as error:
            return self.refused(topic.name, partition, error, on_delivery)
        if done is None:
            return None
        # The larger batches of ``send_many`` hold as much in a smaller number.
        is_large = run_bytes >= self._outbox.accumulator.run_bytes_max
        self._outbox.appended(done[1], INLINE_BATCHES // RUN_BATCHES if is_large else INLINE_BATCHES)
        return done[0]

    def opened(self, queue: BatchQueue) -> None:
        """Called by the compiled ``send`` when it has opened a batch and the sender sleeps."""
        self._outbox.appended(queue)

    def _partition(self, topic: Topic, key: bytes | None, value: bytes | None) -> int | None:
        """The partition of a record that names none; None: the current one for records without keys."""
        if self._partitioner is not None:
            number = self._partitioner.partition(topic.name, key, value, topic.partition_count)
            if not 0 <= number < topic.partition_count:
                raise ValueError(f"the partitioner chose {number}, expected 0 to {topic.partition_count - 1}")
            return number
        if key is None or topic.ignores_keys:
            return None
        return (murmur2(key) & 0x7FFFFFFF) % topic.partition_count

    def _check(
        self, topic: Topic, record: ProducerRecord, headers: RecordHeaders, key: bytes | None, value: bytes | None
    ) -> None:
        """Raises: RecordTooLargeError, InvalidRecordError, InvalidTimestampError."""
        size = size_upper_bound(value, key, headers)
        if size > self._config.max_request_size:
            raise RecordTooLargeError(size, self._config.max_request_size, setting="max_request_size")
        if size > self._config.buffer_memory:
            raise RecordTooLargeError(size, self._config.buffer_memory, setting="buffer_memory")
        if key is None and topic.is_compacted:
            message = f"a record without a key, which the compacted topic {topic.name} does not take"
            raise InvalidRecordError(message, [RecordError(0, message)])
        if record.timestamp is not None:
            check_timestamps((record.timestamp,), topic.config, now_ms=self._clock.now_ms())

    def refused(self, topic: str, partition: int | None, error: Exception, on_delivery: Callback | None) -> Delivery:
        """The delivery of a record that failed before it was in a batch."""
        topic = str.__str__(topic)  # of an enum, perhaps
        metadata = unknown_metadata(topic, partition)
        has_callback = on_delivery is not None and not getattr(on_delivery, "is_bystander", False)
        delivery = Delivery.failed(topic, metadata.partition, error, None if has_callback else self._outbox.failures)
        self._counters.failed(topic if topic in self._metadata.topics else None, 1)
        if on_delivery is not None:
            try:
                on_delivery(metadata, error)
            except MemoryError:
                raise  # perhaps before the callback ran: the caller has to know
            except Exception:
                logger.exception("%s: a callback failed", self._client_id)
        return delivery

    def check_open(self) -> None:
        """Raises: ForkedError, ClosedError."""
        self._life.check_fork()
        self._life.check()

    def close(self) -> None:
        """Closes interceptors, serializers and the partitioner; their exceptions are logged."""
        self.interceptors.close()
        self._serializers.close()
        close = getattr(self._partitioner, "close", None)
        if callable(close):
            try:
                close()
            except Exception:
                logger.exception("close() of %r failed", self._partitioner)
