"""``Producer``: hands records over to memory, from where they are written in the background.

send         _accumulate    compiled: into the open batch of the partition
batches      accumulator    one queue a partition; buffer_pool lends the memory
writes       sender         a thread that writes what is ready; transactions stamps it
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from kstore.errors import (
    BufferExhaustedError,
    ClosedError,
    ConfigError,
    DeliveryError,
    InvalidRecordError,
    KstoreError,
    RecordError,
    RecordTooLargeError,
    SerializationError,
    TopicNotFoundError,
    TopicWaitTimeoutError,
    TransactionAbortedError,
)
from kstore.files.fork import ForkGuard
from kstore.files.paths import TopicPartition
from kstore.producer._accumulate import Deliveries, Delivery, ProducerBatch, SendPath, checked_record_headers
from kstore.producer.accumulator import Queue, RecordAccumulator, RecordHeaders, Topic, size_upper_bound
from kstore.producer.buffer_pool import BufferPool
from kstore.producer.config import ProducerConfig, next_client_id
from kstore.producer.counters import ProducerCounters
from kstore.producer.failures import Failures
from kstore.producer.host import ProducerHost
from kstore.producer.interceptors import Interceptors
from kstore.producer.metadata import TopicMetadata
from kstore.producer.partitioner import partitioner_of
from kstore.producer.producer_metrics import producer_metrics, topic_metrics
from kstore.producer.records import Callback, ProducerRecord, unknown_metadata
from kstore.producer.sender import INLINE_BATCHES, Sender
from kstore.producer.serializers import Serializers
from kstore.producer.transactions import TransactionManager
from kstore.producer.waiting import Wakeup
from kstore.record._codec import murmur2
from kstore.rules.arguments import check_timestamps

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Producer"]

logger = logging.getLogger(__name__)

# What the interpreter's exit waits for what is still in memory.
EXIT_SECONDS: Final = 10.0
# A sender that will look by itself within this time is not woken for a batch: waking costs more.
PATIENCE_SECONDS: Final = 0.005
# What is wrong with one record, or with the moment: it fails the delivery, and not the call.
DELIVERED_ERRORS: Final = (
    RecordTooLargeError,
    TopicNotFoundError,
    TopicWaitTimeoutError,
    ConfigError,
    BufferExhaustedError,
    InvalidRecordError,
)


class Producer(SendPath):
    """Sends records to the topics of a store. Thread-safe: one for all threads is the fastest.

    ``with store.producer() as producer:`` closes it, which waits until everything is delivered.
    """

    def __init__(self, host: ProducerHost, *, is_threaded: bool = True, **settings: Any) -> None:
        """See ``Store.producer``. ``is_threaded``: False in tests, which then call ``sender.run_once``.

        Raises: ConfigError.
        """
        self._closed = True  # until it is open
        self.config = config = ProducerConfig.from_settings(**settings)
        self.client_id = next_client_id(config)
        self.counters = ProducerCounters()
        self._host = host
        self._guard = ForkGuard()
        self._clock = clock = host.clock
        self._metadata = TopicMetadata(config, host)
        super().__init__(self._metadata.topics, None if _is_system(clock) else clock.now_ms)
        self._failures = Failures()
        self._wakeup = Wakeup()
        self._pool = BufferPool(
            config.buffer_memory, max(config.batch_size, 1), clock, on_wait=_weakly(self, Producer._make_room)
        )
        self._accumulator = RecordAccumulator(
            config, self._pool, clock, hurry=_weakly(self, Producer._hurry), failures=self._failures
        )
        self._transactions = TransactionManager(config, host)
        self.sender = Sender(
            config,
            self._accumulator,
            clock,
            writer_of=host.writer,
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
        self._patience = min(config.linger_ms / 1000, PATIENCE_SECONDS)
        self._closing = threading.Lock()
        self._is_plain_now = (
            not config.interceptors
            and self._partitioner is None
            and self._serializers.is_plain
            and config.transactional_id is None
        )
        self._accumulator.is_transactional = self._accumulator.is_paused = config.transactional_id is not None
        self._is_threaded = is_threaded
        host.watch(self._metadata.note_change)
        try:
            if is_threaded:
                self.sender.start()
        except BaseException:
            host.unwatch(self._metadata.note_change)
            raise
        self._closed = False
        self.is_plain = self._is_plain_now
        _live.add(self)

    def __repr__(self) -> str:
        return f"Producer({self.client_id!r}, closed={self._closed})"

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def store_path(self) -> Path:
        return self._host.path

    # --- send -------------------------------------------------------------------------------------------------------

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
            deadline = self._clock.monotonic() + self.config.max_block_ms / 1000
            found = self._metadata.get(record.topic, chosen, self.config.max_block_ms / 1000)
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
    ) -> Delivery | None:
        """What the compiled ``send`` asks for where a batch is full: the record opens the next one.

        None where there is more to be looked at, for ``_send_slowly`` to do.
        """
        size = (0 if value is None else len(value)) + (0 if key is None else len(key))
        if size > self._plain_size_max or headers or self._metadata.has_news(topic.name):
            return None
        try:
            done = self._accumulator.append(
                topic, partition, value, key, headers, time_ms, on_delivery, self._max_block
            )
        except DELIVERED_ERRORS as error:
            return self._refused(topic.name, partition, error, on_delivery)
        if done is None:
            return None
        self._after_append(done[1])
        return done[0]

    def _after_append(self, queue: Queue) -> None:
        if not self._is_threaded:
            return
        if len(queue.closed) >= INLINE_BATCHES and not self.sender.is_this_thread:
            self.sender.write_here(queue)
            return
        # The sender looks at what it did not know of within a linger, unless it is woken.
        if self.sender.sleeps_until > self._clock.monotonic() + self._patience:
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
        is_told = on_delivery is not None and not getattr(on_delivery, "is_bystander", False)
        delivery = Delivery.failed(topic, number, error, None if is_told else self._failures)
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
        queue.is_hurried = True
        if self._is_threaded and not self.sender.is_this_thread:
            self.sender.write_here(queue)
        if not batch.is_done:
            self._wakeup.set()

    def _make_room(self) -> None:
        """Who is about to wait for memory writes what holds it, as far as nobody else does."""
        self._wakeup.set()
        if self._is_threaded:
            for queue in list(self._accumulator.active):
                self.sender.write_here(queue)
            if self.sender.is_this_thread:
                # A callback sends: what gives the memory back is behind it.
                self.sender.give_memory_back()

    def _check_open(self) -> None:
        if self._guard.forked:
            self._guard.check(f"the producer {self.client_id}")
        if self._closed:
            raise ClosedError(f"the producer {self.client_id} is closed")

    # --- topics -----------------------------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic; waits for it ``max_block_ms`` at most. Raises: TopicWaitTimeoutError."""
        self._check_open()
        if not isinstance(topic, str):
            raise TypeError(f"a topic of type {type(topic).__name__}, expected a str")
        return list(range(self._metadata.get(topic, None, self.config.max_block_ms / 1000).partition_count))

    # --- transactions -----------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Takes the place of any producer with the same ``transactional_id``, and ends what that left open.

        ``transaction`` does it by itself. Raises: InvalidTransactionStateError, StorageError.
        """
        self._check_open()
        with self.counters.transaction_call("init", self._clock):
            self._transactions.init()

    def begin_transaction(self) -> None:
        """From now on records belong to a transaction. Raises: InvalidTransactionStateError, ProducerFencedError."""
        self._check_open()
        with self.counters.transaction_call("begin", self._clock):
            self._transactions.begin()
            self._accumulator.is_paused = False

    def commit_transaction(self) -> None:
        """Writes all that was sent and ends the transaction: on return it is there, in every partition, for good.

        Where this raises the transaction is as it was; the same call may be made again, and where a record was lost
        ``abort_transaction`` is all that is left.
        Raises: what a record failed with, InvalidTransactionStateError, ProducerFencedError, StorageError.
        """
        self._check_open()
        self._refuse_in_callback("commit_transaction()")
        with self.counters.transaction_call("commit", self._clock):
            self._transactions.begin_end(commit=True)
            # A send that was under way is in the transaction, or is refused.
            self._accumulator.is_paused = True
            self._drain(None)
            self._transactions.end(commit=True)

    def abort_transaction(self) -> None:
        """Ends the transaction: what was sent in it is never read as committed; what was not written yet fails.

        Raises: InvalidTransactionStateError, ProducerFencedError, StorageError.
        """
        self._check_open()
        self._refuse_in_callback("abort_transaction()")
        self._transactions.begin_end(commit=False)
        self._abort()

    def _abort(self, timeout: float | None = None) -> None:
        """Raises: TimeoutError, and as ``abort_transaction``."""
        self._accumulator.is_paused = True
        cause = self._transactions.error
        error = TransactionAbortedError("the transaction was aborted") if cause is None else cause
        with self.counters.transaction_call("abort", self._clock):
            self.sender.abandon(error)
            if not self._drain(timeout):
                raise TimeoutError(f"not all records were given up within {timeout} s")
            self._transactions.end(commit=False)
        # Whoever aborts knows that its records are lost.
        self._failures.take()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Commits what a group of consumers has done, with the transaction: the next offsets to read, by partition.

        Raises: InvalidTransactionStateError, ValueError, StorageError.
        """
        self._check_open()
        with self.counters.transaction_call("send_offsets", self._clock):
            self._transactions.add_offsets(offsets, group)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """``with producer.transaction():`` commits at its end; aborts where the block raises."""
        self.init_transactions()
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            if self._transactions.is_open and not self._closed:
                self.abort_transaction()
            raise
        try:
            self.commit_transaction()
        except Exception:
            if self._transactions.is_open:
                self.abort_transaction()
            raise

    # --- flush and close --------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything that was sent before has arrived or failed, ``timeout`` seconds at most.

        Raises: TimeoutError; DeliveryError for records that failed and whose deliveries nobody has looked at;
        RuntimeError in a callback, where it would wait for itself.
        """
        if self._guard.forked:
            self._guard.check(f"the producer {self.client_id}")
        self._refuse_in_callback("flush()")
        started = self._clock.monotonic()
        try:
            if not self._drain(timeout):
                raise TimeoutError(f"not all records were delivered within {timeout} s")
        finally:
            self.counters.flushed(self._clock.monotonic() - started)
        self._report_failures()

    def _refuse_in_callback(self, what: str) -> None:
        if self.sender.is_this_thread:
            raise RuntimeError(f"{what} in a callback of a delivery would wait for itself")

    def _drain(self, timeout: float | None) -> bool:
        """Waits until every batch there is now has a result; whether all have."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        who = object()
        try:
            batches = self._accumulator.begin_hurry(who)
            self._wakeup.set()
            while batches:
                batch = batches.pop()
                if not self._is_threaded:
                    while not batch.is_released:
                        self.sender.run_once()
                remaining = None if deadline is None else max(deadline - self._clock.monotonic(), 0.0)
                if not batch.wait(remaining):
                    return False
                batches += [child for _, child in batch.children or ()]
            return True
        finally:
            self._accumulator.end_hurry(who)

    def _report_failures(self) -> None:
        found = self._failures.take()
        if found is not None:
            count, first = found
            logger.error("%s: %d records were not delivered; the first: %r", self.client_id, count, first)
            raise DeliveryError(count, first)

    def close(self, timeout: float | None = None) -> None:
        """Takes no more records, and waits until all are delivered; what is not within ``timeout`` seconds fails.

        An open transaction is aborted. In a callback it does not wait. A second call does nothing.
        Raises: DeliveryError as ``flush``; ValueError for a negative ``timeout``.
        """
        if timeout is not None and timeout < 0:
            raise ValueError(f"a timeout of {timeout} s, expected at least 0")
        if self._guard.forked:
            self._closed = True
            return  # all of it is the parent's
        with self._closing:
            if self._closed:
                return
            self.is_plain = False
            self._closed = True
        _live.discard(self)
        if self.sender.is_this_thread:
            timeout = 0.0
        try:
            self._close(timeout)
        finally:
            self._host.unwatch(self._metadata.note_change)
            self._interceptors.close()
            self._serializers.close()
            _close_quietly(self._partitioner)
        self._report_failures()

    def _close(self, timeout: float | None) -> None:
        started = self._clock.monotonic()
        if self._transactions.is_open:
            try:
                self._transactions.begin_end(commit=False)
                if timeout != 0:
                    self._abort(timeout)
            except (KstoreError, OSError) as error:
                logger.warning(
                    "%s: its transaction is aborted when the store is next opened: %s", self.client_id, error
                )
        self._accumulator.is_closed = True
        self._pool.close()
        self._wakeup.set()
        if not self._is_threaded:
            self._drain(None)
            return
        remaining = None if timeout is None else max(timeout - (self._clock.monotonic() - started), 0.0)
        if not self.sender.join(remaining):
            self.sender.force(ClosedError(f"the producer {self.client_id} was closed before they were written"))
            if not self.sender.is_this_thread:
                self.sender.join(1.0)

    def undelivered(self) -> dict[str, int]:
        """How many records have no result yet, by partition."""
        counts: Counter[str] = Counter()
        for batch in list(self._accumulator.incomplete):
            counts[f"{batch.topic}-{batch.partition}"] += batch.record_count
        return dict(counts)

    def metrics(self) -> dict[str, float]:
        """What it has counted, and what it holds now: see ``kstore.metrics.PRODUCER_METRICS``."""
        return producer_metrics(
            self.counters,
            self._pool,
            waiting_batches=len(self._accumulator.incomplete),
            metadata_wait_seconds=self._metadata.wait_seconds,
        )

    def topic_metrics(self) -> dict[str, dict[str, float]]:
        """What it has counted by topic: see ``kstore.metrics.PRODUCER_TOPIC_METRICS``; not of topics deleted since."""
        return topic_metrics(self.counters, self._host)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except DeliveryError:
            # What went wrong in the block comes first; the loss is in the log.
            if error is None:
                raise

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._guard.forked:
            return
        warnings.warn(f"unclosed {self!r}: it is closed now, and delivers what it has", ResourceWarning, stacklevel=2)
        # Its thread goes on until all is delivered, and ends. No lock is taken here: the collector comes in any thread,
        # also in one that holds it.
        self._closed = True
        self._accumulator.is_closed = True
        self._wakeup.set()
        self._host.unwatch(self._metadata.note_change)


def _listed(values: Any) -> Any:
    """A list or tuple, which the compiled loop looks into."""
    return values if values is None or isinstance(values, (list, tuple)) else list(values)


def _is_system(clock: object) -> bool:
    from kstore.clock import SystemClock

    return isinstance(clock, SystemClock)


def _weakly(producer: Producer, method: Any) -> Any:
    """A method that does not keep its producer alive: batches outlive it."""
    reference = weakref.ref(producer)

    def call(*arguments: Any) -> None:
        alive = reference()
        if alive is not None:
            method(alive, *arguments)

    return call


def _close_quietly(part: object) -> None:
    close = getattr(part, "close", None)
    if callable(close):
        try:
            close()
        except Exception:
            logger.exception("close() of %r failed", part)


# --- forks, and the end of the process --------------------------------------------------------------------------------

_live: weakref.WeakSet[Producer] = weakref.WeakSet()


def _refuse_in_child() -> None:
    for producer in list(_live):
        # ``send`` then goes the slow way, which says so.
        producer.is_plain = False


os.register_at_fork(after_in_child=_refuse_in_child)


@atexit.register
def _deliver_at_exit() -> None:
    """What is still in memory is delivered, for a while; what is lost is said."""
    for producer in list(_live):
        if producer.closed or producer._guard.forked:
            continue
        lost: dict[str, int] = {}
        try:
            if not producer._drain(EXIT_SECONDS):
                lost = producer.undelivered()
            producer.close(0 if lost else EXIT_SECONDS)
        except DeliveryError as error:
            logger.error("%s: at exit: %s", producer.client_id, error)
        except Exception:
            logger.exception("%s: at exit", producer.client_id)
        if lost:
            counts = ", ".join(f"{count} of {name}" for name, count in sorted(lost.items()))
            logger.error("%s: records were lost at exit: %s", producer.client_id, counts)
