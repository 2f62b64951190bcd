"""``Sending``: a record's way into the memory of its partition, and who writes it from there.

The compiled ``send`` (_accumulate) does what most records need; here is all else: waits, serializers, partitioners,
what is wrong with a record, and the moment at which the thread that sends writes a batch itself.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kstore.clock import SystemClock
from kstore.errors import (
    BufferExhaustedError,
    ClosedError,
    ConfigError,
    InvalidRecordError,
    RecordError,
    RecordTooLargeError,
    SerializationError,
    TopicNotFoundError,
    TopicWaitTimeoutError,
)
from kstore.files.fork import ForkGuard
from kstore.logs.topics import Topics
from kstore.producer._accumulate import Deliveries, Delivery, Failures, ProducerBatch, SendPath, checked_record_headers
from kstore.producer.accumulator import RUN_BATCHES, Queue, RecordAccumulator, RecordHeaders, Topic, size_upper_bound
from kstore.producer.buffer_pool import BufferPool
from kstore.producer.config import ProducerConfig, next_client_id
from kstore.producer.counters import ProducerCounters
from kstore.producer.interceptors import Interceptors
from kstore.producer.metadata import TopicMetadata
from kstore.producer.partitioner import partitioner_of
from kstore.producer.records import Callback, ProducerRecord, unknown_metadata
from kstore.producer.sender import INLINE_BATCHES, Sender
from kstore.producer.serializers import Serializers
from kstore.producer.transactions import TransactionManager
from kstore.producer.waiting import Wakeup
from kstore.record._codec import murmur2
from kstore.rules.arguments import check_timestamps
from kstore.transactions.of_store import StoreCoordinator

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Sending"]

logger = logging.getLogger(__name__)

# What is wrong with one record, or with the moment: it fails the delivery, and not the call.
DELIVERED_ERRORS: Final = (
    RecordTooLargeError,
    TopicNotFoundError,
    TopicWaitTimeoutError,
    ConfigError,
    BufferExhaustedError,
    InvalidRecordError,
)


class Sending(SendPath):
    """What a ``Producer`` sends with: its parts, put together, and ``send_many``, ``send_arrow`` beside ``send``."""

    def __init__(self, topics: Topics, coordinator: StoreCoordinator, *, is_threaded: bool, **settings: Any) -> None:
        """Nothing runs yet. Raises: ConfigError."""
        self._closed = True  # until it is open
        self.config = config = ProducerConfig.from_settings(**settings)
        self.client_id = next_client_id(config)
        self.counters = ProducerCounters()
        self._topics = topics
        self._guard = ForkGuard()
        self._clock = clock = topics.clock
        # An exclusive store knows at once that a topic does not exist.
        waits = topics.shared or "max_block_ms" in settings
        self._metadata = TopicMetadata(config, topics, waits=waits)
        super().__init__(self._metadata.topics, None if _is_system(clock) else clock.now_ms)
        self._failures = Failures()
        self._wakeup = Wakeup()
        self._pool = BufferPool(
            config.buffer_memory, max(config.batch_size, 1), clock, on_wait=_weakly(self, type(self)._make_room)
        )
        self._accumulator = RecordAccumulator(
            config, self._pool, clock, hurry=_weakly(self, Sending._hurry), failures=self._failures
        )
        self._transactions = TransactionManager(config, coordinator.get, clock)
        self.sender = Sender(
            config,
            self._accumulator,
            clock,
            topics=topics,
            topic_of=self._metadata.known,
            ids=self._transactions,
            counters=self.counters,
            wakeup=self._wakeup,
            on_idle=partial(self._metadata.drop_idle, self._accumulator),
            name=f"kstore-{self.client_id}",
        )
        self._serializers = Serializers(config.key_serializer, config.value_serializer)
        self._partitioner = partitioner_of(config.partitioner)
        self._on_new_batch = getattr(self._partitioner, "on_new_batch", None)
        self._interceptors = Interceptors(config.interceptors)
        self._max_block = config.max_block_ms / 1000
        # Beyond it a record is looked at more closely.
        self._plain_size_max = min(config.batch_size, config.max_request_size, config.buffer_memory) // 2
        self.run_bytes_max = self._accumulator.run_bytes_max
        self._is_plain_now = (
            not config.interceptors
            and self._partitioner is None
            and self._serializers.is_plain
            and config.transactional_id is None
        )
        self._accumulator.is_transactional = self._accumulator.is_paused = config.transactional_id is not None
        self._is_threaded = is_threaded

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        timestamps: Sequence[int | None] | None = None,
        headers: Sequence[Iterable[tuple[str, bytes | None]] | None] | None = None,
        partition: int | None = None,
    ) -> Deliveries:
        """Hands over many records at once: parallel lists or tuples, of one length.

        Returns what became, or becomes, of each. What is wrong with a record fails its delivery, and no other.
        Raises: as ``send`` what is wrong with the call; ValueError where the lengths differ.
        """
        for name, others in (("keys", keys), ("timestamps", timestamps), ("headers", headers)):
            if others is not None and len(others) != len(values):
                raise ValueError(f"{len(others)} {name} for {len(values)} values")
        self._check_open()
        self._transactions.check_send()
        if self.is_plain and values:
            found = self._metadata.topics.get(topic)
            if found is None or self._metadata.has_news(topic):
                try:
                    found = self._metadata.get(topic, partition, self.config.max_block_ms / 1000)
                except DELIVERED_ERRORS as error:
                    return Deliveries.of([self._refused(topic, partition, error, None) for _ in values])
            if partition is None or partition < found.partition_count:
                return self._send_plain_many(
                    found, _listed(values) or (), _listed(keys), _listed(timestamps), _listed(headers), partition
                )
        return Deliveries.of(
            [
                self._send_one(
                    topic,
                    value,
                    None if keys is None else keys[number],
                    None if headers is None else headers[number],
                    None if timestamps is None else timestamps[number],
                    partition,
                )
                for number, value in enumerate(values)
            ]
        )

    def _send_one(self, topic: str, value: Any, key: Any, headers: Any, timestamp: int | None, partition: int | None):  # type: ignore[no-untyped-def]
        try:
            return self.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
        except (SerializationError, InvalidRecordError, TypeError, ValueError) as error:
            if isinstance(error, ClosedError):
                raise
            return self._refused(topic, partition, error, None)

    def send_arrow(self, topic: str, batch: pyarrow.RecordBatch | pyarrow.Table, **options: Any) -> Deliveries:
        """Sends the rows of an Arrow batch: columns ``value``, and as there are ``key``, ``timestamp`` (ms) and
        ``headers`` (maps of strings to binaries, or lists of them).

        ``options`` are those of ``send_many``. Raises: as ``send_many``; ValueError without a column ``value``.
        """
        names = batch.schema.names
        if "value" not in names:
            raise ValueError(f"columns {', '.join(names)}, expected 'value' among them")
        columns = {
            name: batch.column(name).to_pylist() for name in ("value", "key", "timestamp", "headers") if name in names
        }
        return self.send_many(
            topic,
            columns["value"],
            keys=columns.get("key"),
            timestamps=columns.get("timestamp"),
            headers=columns.get("headers"),
            **options,
        )

    def _send_slowly(
        self,
        topic: Any,
        value: Any,
        key: Any,
        headers: Any,
        timestamp: int | None,
        partition: int | None,
        on_delivery: Callback | None,
    ) -> Delivery:
        """All that the compiled ``send`` does not do: waits, full batches, and whatever is to be asked or called."""
        record = ProducerRecord(topic, value, key, headers or (), timestamp, partition)
        if self._interceptors:
            record = self._interceptors.on_send(record)
            on_delivery = self._interceptors.told_with(on_delivery, record.headers)
        chosen = record.partition
        try:
            self._check_open()
            self._transactions.check_send()
        except Exception as error:
            self._interceptors.on_send_error(record, error, chosen)
            raise
        try:
            deadline = self._clock.monotonic() + self._max_block
            found = self._metadata.get(record.topic, chosen, self._max_block)
            # What serializers and partitioners take does not count.
            left = deadline - self._clock.monotonic()
            key_bytes, value_bytes, given = self._serializers.serialize(
                record.topic, record.key, record.value, record.headers
            )
            record_headers = checked_record_headers(given)
            if chosen is None:
                chosen = self._partition(found, record, key_bytes, value_bytes)
            self._check(found, record, record_headers, key_bytes, value_bytes)
            time_ms = self._clock.now_ms() if record.timestamp is None else record.timestamp
            # A partitioner that wants to know is asked again where a batch would be opened (KIP-480).
            may_open = record.partition is not None or self._on_new_batch is None
            deadline = self._clock.monotonic() + left
            while True:
                remaining = max(deadline - self._clock.monotonic(), 0.0)
                done = self._accumulator.append(
                    found, chosen, value_bytes, key_bytes, record_headers, time_ms, on_delivery, remaining,
                    may_open=may_open,
                )  # fmt: skip
                if done is not None:
                    break
                if not may_open:
                    may_open = True
                    assert self._on_new_batch is not None
                    self._on_new_batch(found.name, found.partition_count, chosen)
                    chosen = self._partition(found, record, key_bytes, value_bytes)
                else:
                    self._metadata.note_change(found.name)
                    found = self._metadata.get(record.topic, chosen, remaining)
            delivery, queue = done
        except DELIVERED_ERRORS as error:
            self._transactions.record_failed(error)
            return self._refused(record.topic, chosen, error, on_delivery)
        except BaseException as error:
            if self._interceptors and isinstance(error, Exception):
                self._interceptors.on_send_error(record, error, chosen)
            raise
        self._after_append(queue)
        return delivery

    def _send_next(
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
        """What the compiled ``send`` asks for where a batch is full: the record opens the next one.

        None where there is more to be looked at, for ``_send_slowly`` to do.
        """
        size = (0 if value is None else len(value)) + (0 if key is None else len(key))
        if size > self._plain_size_max or headers or self._metadata.has_news(topic.name):
            return None
        try:
            done = self._accumulator.append(
                topic, partition, value, key, headers, time_ms, on_delivery, self._max_block, run_bytes=run_bytes
            )
        except DELIVERED_ERRORS as error:
            return self._refused(topic.name, partition, error, on_delivery)
        if done is None:
            return None
        # Of the larger batches of ``send_many`` fewer are as much.
        is_large = run_bytes >= self.run_bytes_max
        self._after_append(done[1], INLINE_BATCHES // RUN_BATCHES if is_large else INLINE_BATCHES)
        return done[0]

    def _after_append(self, queue: Queue, inline_batches: int = INLINE_BATCHES) -> None:
        if not self._is_threaded:
            return
        if len(queue.closed) >= inline_batches and queue.is_fast and not self.sender.is_this_thread:
            self.sender.write_here(queue)
            return
        # The sender looks at what it did not know of within a linger, unless it is woken.
        if self.sender.sleeps_until > self._clock.monotonic() + self.sender.patience:
            self._wakeup.set()

    def _partition(self, topic: Topic, record: ProducerRecord, key: bytes | None, value: bytes | None) -> int | None:
        """The partition of a record that names none; None: where those without a key go now."""
        if self._partitioner is not None:
            number = self._partitioner.partition(topic.name, key, value, topic.partition_count)
            if not 0 <= number < topic.partition_count:
                raise ValueError(f"the partitioner chose {number}, expected 0 to {topic.partition_count - 1}")
            return number
        if key is None or topic.ignores_keys:
            return None
        return (murmur2(key) & 0x7FFFFFFF) % topic.partition_count

    def _check(
        self,
        topic: Topic,
        record: ProducerRecord,
        headers: RecordHeaders,
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        """Raises: RecordTooLargeError, InvalidRecordError, InvalidTimestampError."""
        size = size_upper_bound(value, key, headers)
        if size > self.config.max_request_size:
            raise RecordTooLargeError(size, self.config.max_request_size, setting="max_request_size")
        if size > self.config.buffer_memory:
            raise RecordTooLargeError(size, self.config.buffer_memory, setting="buffer_memory")
        if key is None and topic.is_compacted:
            message = f"a record without a key, which the compacted topic {topic.name} does not take"
            raise InvalidRecordError(message, [RecordError(0, message)])
        if record.timestamp is not None:
            check_timestamps((record.timestamp,), topic.config, now_ms=self._clock.now_ms())

    def _refused(self, topic: str, partition: int | None, error: Exception, on_delivery: Callback | None) -> Delivery:
        """A record that failed before it was in a batch."""
        number = -1 if partition is None else partition
        has_callback = on_delivery is not None and not getattr(on_delivery, "is_bystander", False)
        delivery = Delivery.failed(topic, number, error, None if has_callback else self._failures)
        self.counters.failed(topic if topic in self._metadata.topics else None, 1)
        if on_delivery is not None:
            try:
                on_delivery(unknown_metadata(topic, partition), error)
            except Exception:
                logger.exception("%s: a callback failed", self.client_id)
        return delivery

    def _hurry(self, batch: ProducerBatch) -> None:
        """Somebody waits for a batch: it goes at once, if it can by this thread."""
        if self._guard.forked:
            self._guard.check(f"the producer {self.client_id}")
        if batch.is_done:
            return
        topic = self._metadata.topics.get(batch.topic)
        if topic is None or batch.partition >= topic.partition_count:
            self._wakeup.set()
            return
        queue = topic.queue(batch.partition)
        queue.is_urgent = True
        if self._is_threaded and not self.sender.is_this_thread:
            self.sender.write_here(queue)
        if not batch.is_done:
            self._wakeup.set()

    def _make_room(self) -> None:
        """Who is about to wait for memory writes what holds it, as far as nobody else does."""
        self._wakeup.set()
        if self._is_threaded:
            for queue in list(self._accumulator.active):
                if not self._pool.waiting_count:
                    break  # what was written is enough
                self.sender.write_here(queue)
            if self.sender.is_this_thread:
                # A callback sends: what gives the memory back is behind it.
                self.sender.give_memory_back()

    def _check_open(self) -> None:
        if self._guard.forked:
            self._guard.check(f"the producer {self.client_id}")
        if self._closed:
            raise ClosedError(f"the producer {self.client_id} is closed")


def _listed(values: Any) -> Any:
    """A list or tuple, which the compiled loop looks into."""
    return values if values is None or isinstance(values, (list, tuple)) else list(values)


def _is_system(clock: object) -> bool:
    return isinstance(clock, SystemClock)


def _weakly(sending: Sending, method: Any) -> Any:
    """A method that does not keep its producer alive: batches outlive it."""
    reference = weakref.ref(sending)

    def call(*arguments: Any) -> None:
        alive = reference()
        if alive is not None:
            method(alive, *arguments)

    return call
