"""Holds records in batches, per partition, until a writer takes them (Kafka: RecordAccumulator).

An append that finds no space closes the open batch of its partition and opens another: it checks, requests memory from
the pool without any lock, and checks again, because another thread may have opened a batch since. So a large record
that waits for memory does not stop the small ones, and no two half-empty batches are made.

A queue has two locks. ``lock`` is held for moments, by a thread that opens, closes or takes batches. ``drain_lock`` is
held by the thread that writes the queue's batches, from before it takes them until they are done or put back. So they
are written in order, and no two threads have the same batch.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from kstore.clock import Clock, SystemClock
from kstore.config import LogConfig
from kstore.engine.writer import LogWriter
from kstore.errors import BufferExhaustedError, ClosedError, InvalidTransactionStateError, ReentrantCallError
from kstore.files._locks import Presence
from kstore.producer._accumulate import (
    BatchOpener,
    Delivery,
    DrainLock,
    Failures,
    Loan,
    PartitionQueue,
    ProducerBatch,
    TopicQueues,
)
from kstore.producer.buffer_pool import BufferPool
from kstore.producer.config import ProducerConfig
from kstore.producer.partitioner import next_partition
from kstore.producer.records import Callback
from kstore.record._codec import BatchBuffer
from kstore.record.batch import BATCH_HEADER_BYTES
from kstore.types import LOG_APPEND_TIME

# As ``checked_headers`` returns them.
RecordHeaders = tuple[tuple[str | bytes, bytes | None], ...]
# A record on its way into a batch: value, key, headers, timestamp in ms, and what is called when it has arrived.
_Fields = tuple[bytes | None, bytes | None, RecordHeaders, int, Callback | None]

# Length, attributes, timestamp delta and offset delta of a record, at most (Kafka: DefaultRecord.MAX_RECORD_OVERHEAD).
RECORD_OVERHEAD_MAX: Final = 21
VARINT_BYTES_MAX: Final = 5
RETRY_JITTER: Final = 0.2
# Records of one call may share a batch this many times the size of others: no thread waits for it to fill.
RUN_BATCHES: Final = 8
# Batches are of their full size with up to this many queues, whatever memory there is.
MANY_QUEUES_MIN: Final = 16
# For this long as many queues are expected as there were.
PEAK_SECONDS: Final = 60.0
# What the batch of one of very many queues may always take.
SHARE_BYTES_MIN: Final = 2048
# Records of finalizers and signal handlers that wait until the call that they came into goes on.
ASIDE_MAX: Final = 1000
# A write that takes less costs the sending thread no more than waiting for the interpreter's lock.
FAST_WRITE_SECONDS: Final = 0.001


class BatchQueue(PartitionQueue):
    """The batches of one partition, the oldest first: ``closed``, then the open one."""

    __slots__ = (
        "careful_count",
        "drain_lock",
        "is_doubtful",
        "last_error",
        "next_sequence",
        "producer",
        "retry_count",
        "write_seconds",
        "write_seconds_before",
        "writer",
    )

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(topic, partition)
        self.drain_lock: DrainLock = DrainLock()
        # Guarded by ``drain_lock``, like all below and ``retry_at``.
        self.retry_count: int = 0
        # The log's writer, after the first write.
        self.writer: LogWriter | None = None
        # How long the last two writes took; infinite before the first and after a failure.
        self.write_seconds: float = math.inf
        self.write_seconds_before: float = math.inf
        # Whether an interrupt occurred during a write: batches without a result may be in the log.
        self.is_doubtful: bool = False
        self.last_error: str = ""
        # How many batches are written one by one.
        self.careful_count: int = 0
        # The id and epoch of ``producer``.
        self.next_sequence: int = 0
        self.producer: tuple[int, int] = (-1, -1)

    @property
    def is_fast(self) -> bool:
        """Whether recent writes were fast enough for the sending thread to write. Needs no lock.

        One slow write does not decide: a busy machine delays one now and then.
        """
        return min(self.write_seconds, self.write_seconds_before) < FAST_WRITE_SECONDS

    @property
    def is_in_its_log(self) -> bool:
        """Whether this thread is inside a change of the log: as a finalizer it cannot write there."""
        return self.writer is not None and self.writer.turn.lock.is_mine


class Topic(TopicQueues):
    """A topic as of its last lookup, with the queues of its partitions."""

    __slots__ = ("codec", "config", "level", "size_max")

    def __init__(
        self,
        name: str,
        queues: list[BatchQueue],
        config: LogConfig,
        codec: str,
        level: int | None,
        *,
        ignores_keys: bool,
    ) -> None:
        super().__init__(name, queues, ignores_keys=ignores_keys, is_compacted=config.is_compacted)
        self.config: LogConfig = config
        self.codec: str = codec
        self.level: int | None = level
        # The most bytes of a batch in the log.
        self.size_max: int = min(config.max_message_bytes, config.segment_bytes)
        self.is_plain: bool = codec == "none" and config.message_timestamp_type != LOG_APPEND_TIME
        self.sticky_partition: int = random.randrange(len(queues))

    def queue(self, partition: int) -> BatchQueue:
        found: BatchQueue = self.queues[partition]
        return found


def size_upper_bound(value: bytes | None, key: bytes | None, headers: RecordHeaders) -> int:
    """The most that a batch with only this record takes, bytes (Kafka:
    AbstractRecords.estimateSizeInBytesUpperBound)."""
    size = BATCH_HEADER_BYTES + RECORD_OVERHEAD_MAX + 3 * VARINT_BYTES_MAX
    size += (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
    for name, content in headers:
        size += 2 * VARINT_BYTES_MAX + len(name if isinstance(name, bytes) else name.encode())
        size += len(content) if content is not None else 0
    return size


def retry_delay(config: ProducerConfig, retry_count: int, random_factor: Callable[[float, float], float]) -> float:
    """Seconds before the next attempt, exponential with jitter (Kafka: ExponentialBackoff)."""
    first, most = config.retry_backoff_ms, max(config.retry_backoff_max_ms, config.retry_backoff_ms)
    if config.retry_backoff_max_ms < first:
        return config.retry_backoff_max_ms / 1000
    factor = random_factor(1 - RETRY_JITTER, 1 + RETRY_JITTER)
    return min(most, first * factor * 2.0 ** min(retry_count, 62)) / 1000


class RecordAccumulator(BatchOpener):
    """All queues of a producer. Thread-safe.

    ``active``: queues with batches, in the order in which they got their first one: a writer serves them in turn.
    ``incomplete``: batches without a result. Between transactions it ``is_paused`` and accepts nothing; while it
    ``is_transactional``, batches that are opened belong to a transaction. ``opened_count`` batches were opened.
    """

    def __init__(
        self,
        config: ProducerConfig,
        pool: BufferPool,
        clock: Clock,
        *,
        hurry: Callable[[ProducerBatch], None],
        failures: Failures,
    ) -> None:
        """``hurry`` is called when a thread waits for a batch."""
        self.pool = pool
        # The threads that are in ``append``, and those that write batches: what they have taken only they give back.
        self.appending: Presence = Presence()
        self.writing: Presence = Presence()
        # Batches of one record each, with their queues, which could not be put into these: see ``_set_aside``.
        self._aside: deque[tuple[BatchQueue, ProducerBatch]] = deque()
        linger = config.linger_ms / 1000
        self._batch_size = max(config.batch_size, 1)
        # With more queues than this, a batch of each would take over half of the memory.
        self._many = max(MANY_QUEUES_MIN, pool.total_bytes // (2 * self._batch_size))
        # When about as many queues as ``queue_peak`` last had batches; monotonic, seconds.
        self._peak_seen = 0.0
        self._use(
            pool.account,
            failures,
            hurry,
            linger=linger,
            is_system_clock=isinstance(clock, SystemClock),
            queues_max=self._many,
        )
        self.ratios: CompressionRatios = CompressionRatios()
        self._config = config
        self._clock = clock
        self._hurry = hurry
        self._failures = failures
        self._timeout = config.delivery_timeout_ms / 1000
        self.run_bytes_max: int = min(
            self._batch_size * RUN_BATCHES, config.max_request_size, self.pool.total_bytes // RUN_BATCHES
        )

    # --- append -----------------------------------------------------------------------------------------------------

    def append(
        self,
        topic: Topic,
        partition: int | None,
        value: bytes | None,
        key: bytes | None,
        headers: RecordHeaders,
        timestamp: int,
        on_delivery: Callback | None,
        timeout: float,
        *,
        may_open: bool = True,
        run_bytes: int = 0,
    ) -> tuple[Delivery, BatchQueue] | None:
        """Appends a record, to the topic's sticky partition if ``partition`` is None; waits for memory.

        A batch that it opens has space for at least ``run_bytes``, if the log allows that. Returns None if the queue is
        no longer used, or if a batch would have to be opened and ``may_open`` is False. Raises: BufferExhaustedError
        after ``timeout`` seconds, RecordTooLargeError, ClosedError.

        A finalizer or a signal handler may call this inside a call of the same thread. Then it waits neither for memory
        nor for a lock: the record is set aside, and the outer call takes it over.
        """
        record = value, key, headers, timestamp, on_delivery
        with self.appending.entered() as is_outermost:
            is_inner = self.writing.has_me or not is_outermost
            try:
                return self._append(
                    topic, partition, record, timeout, may_open=may_open, run_bytes=run_bytes, is_inner=is_inner
                )
            except ReentrantCallError:
                return self._set_aside(topic, partition, record)
            finally:
                if self._aside and is_outermost:
                    self.take_over()

    def _append(
        self,
        topic: Topic,
        partition: int | None,
        record: _Fields,
        timeout: float,
        *,
        may_open: bool,
        run_bytes: int,
        is_inner: bool,
    ) -> tuple[Delivery, BatchQueue] | None:
        buffer = None
        size = self._size_max(topic, record)
        if run_bytes > size:
            config = topic.config
            size = max(size, min(run_bytes, self.run_bytes_max, config.max_message_bytes, config.segment_bytes))
        is_opened = False
        try:
            while True:
                queue: BatchQueue = topic.queues[topic.sticky_partition if partition is None else partition]
                with queue.lock:
                    if queue.is_retired:
                        return None
                    delivery = self._try(topic, queue, record)
                    if delivery is not None:
                        return delivery, queue
                    if not may_open:
                        return None
                    is_elsewhere = partition is None and self._switches(topic)
                    if not is_elsewhere:
                        if buffer is None:
                            buffer = self.pool.take_free(size)
                        if buffer is not None:
                            delivery = self._open(topic, queue, buffer, size, record)
                            is_opened = True
                            return delivery, queue
                if not is_elsewhere:
                    if is_inner:
                        raise ReentrantCallError("only the outer call can return memory")
                    buffer = self.pool.allocate(size, timeout)
        finally:
            # After an interrupt the memory may belong to a batch.
            if buffer is not None and not is_opened and all(one.buffer is not buffer for one in list(self.incomplete)):
                self.pool.deallocate(buffer, size)

    def _set_aside(self, topic: Topic, partition: int | None, record: _Fields) -> tuple[Delivery, BatchQueue] | None:
        """Makes a batch of one record, which ``take_over`` puts into its queue. Takes no lock. Raises:
        BufferExhaustedError at once, ClosedError, InvalidTransactionStateError."""
        if self.is_closed or self.is_paused:
            raise self._refusal()
        queue: BatchQueue = topic.queues[topic.sticky_partition if partition is None else partition]
        if queue.is_retired:
            return None
        size = size_upper_bound(*record[:3])
        loan = Loan(self.pool.account, size)
        if len(self._aside) >= ASIDE_MAX or not loan.take():
            pool = self.pool
            self.pool.exhausted_total += 1
            raise BufferExhaustedError(
                wanted=size,
                waited_ms=0,
                total_bytes=pool.total_bytes,
                available=pool.available,
                poolable_bytes=pool.poolable_bytes,
            )
        buffer = BatchBuffer(size)
        buffer.loan = loan
        now = self._clock.monotonic()
        batch = ProducerBatch(queue.topic, queue.partition, buffer, size, now, self._failures, self._hurry, size)
        batch.is_transactional = self.is_transactional
        delivery = batch.append(*record)
        assert delivery is not None, "the first record finds room"
        self.incomplete.add(batch)
        self._aside.append((queue, batch))
        self.opened_count += 1
        return delivery, queue

    def take_over(self) -> None:
        """Puts what finalizers and signal handlers have set aside into its queues, in order.

        After an interrupt the next call continues."""
        while self._aside:
            try:
                queue, batch = self._aside[0]
            except IndexError:
                return  # another thread was faster
            try:
                with queue.lock:
                    if not self._aside or self._aside[0][1] is not batch:
                        continue  # another thread was faster
                    queue.close_open()
                    self.active[queue] = None
                    batch.close()
                    if not queue.closed or queue.closed[-1] is not batch:
                        queue.closed.append(batch)
                    self._aside.popleft()
            except ReentrantCallError:
                return  # the outer call does it

    def _try(self, topic: Topic, queue: BatchQueue, record: _Fields) -> Delivery | None:
        """Appends to the open batch; closes it if that is not possible. Needs the queue's lock."""
        if self.is_closed or self.is_paused:
            raise self._refusal()
        batch = queue.open_batch
        if batch is None:
            return None
        size = batch.size
        delivery = batch.append(*record)
        if delivery is None:
            queue.close_open()
        else:
            topic.sticky_bytes += batch.size - size
        return delivery

    def _open(self, topic: Topic, queue: BatchQueue, buffer: BatchBuffer, size: int, record: _Fields) -> Delivery:
        """Opens a batch with this record in it. Needs the queue's lock."""
        now = self._clock.monotonic()
        batch = ProducerBatch(queue.topic, queue.partition, buffer, size, now, self._failures, self._hurry, size)
        batch.is_transactional = self.is_transactional
        is_opened = False
        try:
            delivery = batch.append(*record)
            assert delivery is not None, "the first record finds room"
            is_opened = self._put_open(topic, queue, batch, now)
        finally:
            if not is_opened and queue.open_batch is not batch:
                batch.abort()
        if not is_opened:
            raise self._refusal()
        if batch.size >= self._batch_size and topic.codec == "none":
            # Full with one record: it does not linger.
            queue.close_open()
        return delivery

    def _size_max(self, topic: Topic, record: _Fields) -> int:
        """The size of a new batch before compression, bytes: large enough to compress to about ``batch_size``.

        It is smaller while very many queues have batches. Otherwise these would take all the memory before they are
        full, and each send would write another queue's batch to get some.
        """
        size = self._batch_size
        if max(len(self.active), self.queue_peak) > self._many:
            pool = self.pool
            # While it is not known yet how many there will be, each takes a small part of what is left.
            share = min(pool.total_bytes // (2 * self._expected_queues()), pool.available // (2 * self._many))
            size = min(size, max(share, SHARE_BYTES_MIN))
        if topic.codec != "none":
            ratio = self.ratios.estimate(topic.name, topic.codec)
            compressible = BATCH_HEADER_BYTES + int((size - BATCH_HEADER_BYTES) / ratio)
            size = min(max(size, compressible), topic.config.max_batch_bytes_uncompressed, self.pool.total_bytes)
        # The compiled send checks only for space: a second record that is too large must not find any.
        return max(min(size, self._config.max_request_size), size_upper_bound(*record[:3]))

    def _expected_queues(self) -> int:
        """How many queues may have batches soon: the most that had some in the last PEAK_SECONDS."""
        count, now = len(self.active), self._clock.monotonic()
        if count >= self.queue_peak or now - self._peak_seen > PEAK_SECONDS:
            self.queue_peak = count
        if count * 2 >= self.queue_peak:
            self._peak_seen = now
        return max(self.queue_peak, 1)

    def _switches(self, topic: Topic) -> bool:
        """Whether the next records without a key go to another partition: after a batch's worth of records, and more
        often to a partition in which fewer batches wait."""
        if topic.sticky_bytes < self._batch_size or topic.partition_count == 1:
            return False
        counts = [topic.queue(number).batch_count for number in range(topic.partition_count)]
        if not self._config.partitioner_adaptive_partitioning_enable:
            counts = [0] * len(counts)
        topic.sticky_bytes = 0
        before, topic.sticky_partition = topic.sticky_partition, next_partition(counts, random.random)
        return topic.sticky_partition != before

    def _refusal(self) -> Exception:
        if self.is_closed:
            return ClosedError("the producer is closed")
        return InvalidTransactionStateError("send: the transaction has ended")

    # --- ready ------------------------------------------------------------------------------------------------------

    def put_back(self, queue: BatchQueue, batches: Iterable[ProducerBatch]) -> None:
        """Puts batches that were taken, or the parts that they were split into, back to the front. Needs the
        ``drain_lock``."""
        with queue.lock:
            queue.closed.extendleft(reversed(list(batches)))
            self.active[queue] = None

    def restore(self, queue: BatchQueue, batches: Iterable[ProducerBatch]) -> None:
        """Like ``put_back``, after an interrupt: some of the batches may be in the queue."""
        with queue.lock:
            missing = [batch for batch in batches if batch not in queue.closed]
            queue.closed.extendleft(reversed(missing))
            self.incomplete.update(missing)
            self.active[queue] = None

    def take_expired(
        self, queue: BatchQueue, now: float, expired: list[ProducerBatch] | None = None
    ) -> list[ProducerBatch]:
        """Takes batches that have waited ``delivery_timeout_ms``, from the front, like ``take``."""
        expired = [] if expired is None else expired
        with queue.lock:
            open_batch = queue.open_batch
            if open_batch is not None and (
                not open_batch.is_open or (not queue.closed and self._is_expired(open_batch, now))
            ):
                queue.close_open()
            while queue.closed and self._is_expired(queue.closed[0], now):
                expired.append(queue.closed[0])
                queue.closed.popleft()
        return expired

    def _is_expired(self, batch: ProducerBatch, now: float) -> bool:
        return now - batch.created_at >= self._timeout

    def expires_in(self, queue: BatchQueue, now: float) -> float:
        """Seconds until the queue's first batch expires."""
        batch = queue.closed[0] if queue.closed else queue.open_batch
        return self._timeout if batch is None else batch.created_at + self._timeout - now

    def rest(self, queue: BatchQueue) -> None:
        """Takes an empty queue off the list until it gets batches."""
        with queue.lock:
            if not queue.batch_count:
                self.active.pop(queue, None)

    # --- in a hurry -------------------------------------------------------------------------------------------------

    def begin_hurry(self, who: object) -> list[ProducerBatch]:
        """Makes all batches ready until ``end_hurry``; returns those without a result."""
        self.hurries.add(who)
        return list(self.incomplete)

    # --- topics -----------------------------------------------------------------------------------------------------

    def retire(self, topic: Topic) -> bool:
        """Stops using the queues of a topic that are empty and have no batch in flight; returns whether that was all of
        them."""
        for number in range(topic.partition_count):
            queue = topic.queue(number)
            if queue.is_retired:
                continue
            with queue.drain_lock.attempt() as is_mine:
                if not is_mine:
                    return False
                with queue.lock:
                    if queue.batch_count:
                        return False
                    queue.is_retired = True
                    # After the mark: a finalizer in this thread may set records aside at any time.
                    if any(one is queue for one, _ in list(self._aside)):
                        queue.is_retired = False
                        return False
        return True


# An estimate that is too low makes batches too large: it rises fast and falls slowly.
STEP_UP: Final = 0.05
STEP_DOWN: Final = 0.005
# The margin on top of the estimate (Kafka: COMPRESSION_RATE_ESTIMATION_FACTOR).
MARGIN: Final = 1.05
# A batch of zeros would make the next one unbounded.
RATIO_MIN: Final = 0.02


class CompressionRatios:
    """Compressed by uncompressed size, by topic and codec, as observed (Kafka: CompressionRatioEstimator).

    Thread-safe under the GIL: each value is one store.
    """

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, str], float] = {}

    def estimate(self, topic: str, codec: str) -> float:
        """The ratio expected for the next batch's records, with a margin."""
        return max(self._ratios.get((topic, codec), 1.0), RATIO_MIN) * MARGIN

    def observe(self, topic: str, codec: str, ratio: float) -> None:
        """Notes that a batch compressed to ``ratio`` of its size."""
        last = self._ratios.get((topic, codec), 1.0)
        step = STEP_UP if ratio > last else -STEP_DOWN
        self._ratios[topic, codec] = max(last + step, ratio)

    def reset(self, topic: str, codec: str, ratio: float) -> None:
        """Notes that a batch was too large, at ``ratio``, and was split."""
        self._ratios[topic, codec] = max(1.0, ratio)
