"""Writes the batches of one queue to its log, and reports which have a result. A batch that cannot be written waits, is
split, or fails.

Any thread may hold the queue's ``drain_lock``. However a write ends, no batch is lost or duplicated.
"""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable, Sequence
from typing import Final

from kstore.clock import Clock
from kstore.engine.append.pending import PendingAppend
from kstore.engine.writer import LogWriter
from kstore.errors import (
    ClosedError,
    DeliveryTimeoutError,
    DiskFullError,
    DuplicateSequenceError,
    InvalidRecordError,
    OutOfOrderSequenceError,
    PoisonedError,
    ProducerFencedError,
    RecordTooLargeError,
    ReentrantCallError,
    StorageError,
    SyncFailedError,
)
from kstore.log import writer_of
from kstore.logs.topics import Topics
from kstore.producer._accumulate import ProducerBatch, ReadyWriter, succeed_all
from kstore.producer.accumulator import BatchQueue, CompressionRatios, RecordAccumulator, Topic, retry_delay
from kstore.producer.completions import Completions, without_frames
from kstore.producer.config import ProducerConfig
from kstore.producer.producer_metrics import ProducerCounters
from kstore.producer.transactions import TransactionManager
from kstore.producer.waiting import Wakeup
from kstore.record._codec import BatchBuffer, EncodedBatch, patch_crc, patch_producer
from kstore.record.batch import (
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CRC_START,
    SEQUENCE_COUNT,
    BatchHeader,
    batch_crc,
)
from kstore.record.builder import replace_records
from kstore.record.compression import CODECS_BY_NAME
from kstore.record.parse import parse_batch
from kstore.types import LOG_APPEND_TIME, NO_TIMESTAMP

logger = logging.getLogger(__name__)

# The most bytes in one write to a log that syncs each write. After a sync the writing thread waits up to 5 ms for the
# interpreter's lock while another thread sends; a larger write does so less often.
SYNCED_WRITE_BYTES_MAX: Final = 16 << 20
# At most this share of the memory is written at a time: the senders fill the rest in the meantime.
WRITE_SHARE: Final = 2
# Not EMFILE: every file that could be closed was closed before it was reported, and the program should learn of it
# at once.
RETRIABLE_ERRNOS: Final = frozenset({errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ENOBUFS})


class QueueWriter(ReadyWriter):
    """Writes batches of queues; uses the part of a queue that its ``drain_lock`` guards."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        clock: Clock,
        *,
        topics: Topics,
        topic_of: Callable[[str], Topic],
        ids: TransactionManager,
        counters: ProducerCounters,
        completions: Completions,
        wakeup: Wakeup,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._clock = clock
        self._topics = topics
        self._ids = ids
        self._counters = counters
        self._acks = config.acks
        self._wakeup = wakeup
        self._completions = completions
        self._use(
            accumulator,
            clock,
            topic_of,
            ids,
            counters,
            wakeup,
            synced_bytes_max=min(SYNCED_WRITE_BYTES_MAX, config.buffer_memory // WRITE_SHARE),
            has_no_acks=config.acks == 0,
        )
        # The error for everything that is written from now on.
        self.forced: Exception | None = None

    def writer(self, queue: BatchQueue) -> LogWriter:
        """The writer of the queue's log; fetched again if the log was closed. Raises: as ``Store.log``."""
        writer = queue.writer
        if writer is None or writer.closed:
            writer = queue.writer = writer_of(self._topics.log(queue.topic, queue.partition))
        return writer

    def _restore(self, queue: BatchQueue, taken: list[ProducerBatch], appends: Sequence[PendingAppend] = ()) -> None:
        """After an interrupt, completes batches with a result and batches in the log; puts the others back."""
        queue.is_doubtful = True
        for append in appends:
            if append.result is not None:
                # Otherwise it would be written again, and the log recognises by their sequences only the last five
                # batches.
                self._succeed(taken[: len(append.batches)], append)
        incomplete, completions = self._accumulator.incomplete, self._completions
        completions.hand_over(
            [batch for batch in taken if batch.is_done and batch in incomplete and batch not in completions]
        )
        self._accumulator.restore(queue, [pending for batch in taken for pending in _pending_of(batch)])
        self._wakeup.set()

    # --- append -----------------------------------------------------------------------------------------------------

    def _succeed(self, batches: list[ProducerBatch], append: PendingAppend) -> None:
        result = append.result
        assert result is not None
        if append.repeated:
            for batch, repeated in zip(batches, append.repeated, strict=True):
                batch.succeed(repeated.first_offset, append.append_time_ms)
        else:
            succeed_all(batches, result.first_offset, append.append_time_ms)

    def _seal(
        self, queue: BatchQueue, topic: Topic, batches: list[ProducerBatch], producer: tuple[int, int]
    ) -> PendingAppend:
        """As ``sealed``, for batches that need more than ``seal_run`` does: a codec, a time, a transaction, a split."""
        accumulator = self._accumulator
        stamps = topic.config.message_timestamp_type == LOG_APPEND_TIME
        append_time_ms = self._clock.now_ms() if stamps else NO_TIMESTAMP
        sealed: list[EncodedBatch] = []
        buffers: list[BatchBuffer] = []
        is_run = producer[0] >= 0
        for number, batch in enumerate(batches):
            if producer[0] >= 0:
                if (batch.producer_id, batch.producer_epoch) != producer:
                    batch.base_sequence = queue.next_sequence
                    batch.producer_id, batch.producer_epoch = producer
                elif number and batch.base_sequence != queue.next_sequence:
                    is_run = False
                # A batch may have been stamped before: what replaces or follows it continues from its sequence.
                queue.next_sequence = (batch.base_sequence + batch.record_count) % SEQUENCE_COUNT
            try:
                sealed.append(seal(batch, topic, accumulator.ratios, append_time_ms))
                assert batch.buffer is not None
                buffers.append(batch.buffer)
            except RecordTooLargeError as error:
                if producer[0] >= 0:
                    queue.next_sequence = batch.base_sequence
                if batch.record_count == 1:
                    accumulator.put_back(queue, batches[number + 1 :])
                    self._forget_sequences(queue)
                    self._fail(batch, error)
                    self._completions.hand_over([batch])
                else:
                    self._split(queue, topic, batch, batches[number + 1 :])
                break
        return PendingAppend(
            buffers[0] if buffers else BatchBuffer(),
            sealed,
            topic.codec,
            append_time_ms=append_time_ms,
            with_producers=producer[0] >= 0,
            buffers=buffers,
            stamp=(*producer, batches[0].base_sequence, batches[0].is_transactional) if is_run else None,
        )

    def _split(self, queue: BatchQueue, topic: Topic, batch: ProducerBatch, behind: list[ProducerBatch]) -> None:
        accumulator = self._accumulator
        encoded = batch.encoded
        assert encoded is not None
        ratio = encoded.size / max(batch.size, 1)
        if topic.codec != "none":
            accumulator.ratios.reset(topic.name, topic.codec, ratio)
        size_max = min(topic.config.max_message_bytes, max(self._config.batch_size, 1), topic.config.segment_bytes)
        children = split(batch, min(size_max, max(batch.size // 2, 1 << 7)))
        accumulator.incomplete.update(children)
        accumulator.put_back(queue, [*children, *behind])
        self._counters.splits += 1
        accumulator.release(batch)

    # --- what fails -------------------------------------------------------------------------------------------------

    def _failed(
        self, queue: BatchQueue, batches: list[ProducerBatch], error: BaseException, now: float
    ) -> list[ProducerBatch]:
        """Puts batches that are not in the log back into the queue, or fails them. All of them, to keep the order."""
        if not isinstance(error, Exception):
            # Ctrl-C in a thread that writes for itself: the batches did not cause it.
            raise error
        if self._acks == 0 and all(batch.is_done for batch in batches):
            logger.warning("%s-%d: records were lost, as acks=0 allows: %s", queue.topic, queue.partition, error)
            self._counters.failed(queue.topic, sum(batch.record_count for batch in batches))
            return batches
        # The parts of a split are back already, unless there was no memory for that.
        incomplete = self._accumulator.incomplete
        self._completions.hand_over(batch for batch in batches if batch.children is not None and batch in incomplete)
        batches = [pending for batch in batches for pending in _pending_of(batch) if pending not in queue.closed]
        incomplete.update(batches)
        if not batches:
            return []
        first = batches[0]
        queue.last_error = repr(error)
        if isinstance(error, (OutOfOrderSequenceError, DuplicateSequenceError)) and not first.is_transactional:
            stamp = (first.producer_id, first.producer_epoch)
            try:
                if first.attempts <= 2 and self._ids.renew(stamp):
                    self._accumulator.put_back(queue, batches)
                    return []
            except Exception as refusal:
                first.attempts -= 1
                error = refusal
        if isinstance(error, ReentrantCallError):
            # A finalizer inside a change of the log: another thread writes them later.
            self._accumulator.put_back(queue, batches)
            return []
        if self._can_retry(queue, error):
            queue.retry_at = now + retry_delay(self._config, queue.retry_count, random.uniform)
            queue.retry_count += 1
            self._counters.retried(queue.topic)
            self._accumulator.put_back(queue, batches)
            return []
        lost = batches
        if isinstance(error, InvalidRecordError):
            # The error concerns only the first one.
            lost, rest = batches[:1], batches[1:]
            self._accumulator.put_back(queue, rest)
        self._lose(queue, lost, error)
        return lost

    def _lose(self, queue: BatchQueue, lost: list[ProducerBatch], error: Exception) -> None:
        """Fails batches that are no longer in the queue. Needs its ``drain_lock``."""
        is_doubtful = queue.is_doubtful or isinstance(error, (SyncFailedError, PoisonedError))
        if lost and lost[0].base_sequence >= 0 and not is_doubtful:
            # Known not to be in the log, so the next batch reuses the sequences. Otherwise they are not reused: the
            # following batches have others or, if the log misses them, a new producer id.
            queue.next_sequence = lost[0].base_sequence
            self._forget_sequences(queue)
        for batch in lost:
            self._fail(batch, error)

    def _forget_sequences(self, queue: BatchQueue) -> None:
        for batch in list(queue.closed):
            batch.producer_id = batch.producer_epoch = batch.base_sequence = -1

    def _can_retry(self, queue: BatchQueue, error: Exception) -> bool:
        if self.forced is not None or queue.retry_count >= self._config.retries:
            return False
        if isinstance(error, (SyncFailedError, PoisonedError, ProducerFencedError, ClosedError)):
            return False
        return isinstance(error, DiskFullError) or (isinstance(error, StorageError) and error.errno in RETRIABLE_ERRNOS)

    def _fail(self, batch: ProducerBatch, error: Exception) -> None:
        record_errors: dict[int, Exception] | None = None
        if isinstance(error, InvalidRecordError):
            record_errors = {one.index: InvalidRecordError(one.message, [one]) for one in error.record_errors}
        without_frames(error)
        if batch.fail(error, record_errors):
            self._counters.failed(batch.topic, batch.record_count)
            self._ids.failed(batch, error)

    def fail_expired(self, queue: BatchQueue, now: float) -> None:
        """Fails batches that have waited too long. Needs the queue's ``drain_lock``."""
        expired: list[ProducerBatch] = []
        try:
            self._accumulator.take_expired(queue, now, expired)
            self._fail_all_expired(queue, expired, now)
        except BaseException:
            self._restore(queue, expired)
            raise

    def _fail_all_expired(self, queue: BatchQueue, expired: list[ProducerBatch], now: float) -> None:
        if expired and expired[0].base_sequence >= 0 and not queue.is_doubtful:
            queue.next_sequence = expired[0].base_sequence
            self._forget_sequences(queue)
        for batch in expired:
            waited_ms = round((now - batch.created_at) * 1000)
            reason = f": the last try failed with {queue.last_error}" if batch.attempts else ""
            self._fail(
                batch,
                DeliveryTimeoutError(
                    f"{batch.record_count} records for {batch.topic}-{batch.partition} expired: {waited_ms} ms have "
                    f"passed since their batch was made, expected at most {self._config.delivery_timeout_ms}{reason}"
                ),
            )
        self._completions.hand_over(expired)

    def abandon(self, queue: BatchQueue, now: float, error: Exception) -> None:
        """Fails all batches of the queue. Needs its ``drain_lock``."""
        taken: list[ProducerBatch] = []
        try:
            self._accumulator.take(queue, 1 << 62, now, all_now=True, taken=taken)
            self._lose(queue, taken, error)
            self._completions.hand_over(taken)
        except BaseException:
            self._restore(queue, taken)
            raise


def _pending_of(batch: ProducerBatch) -> list[ProducerBatch]:
    """The parts of a batch without a result: the batch itself, or those into which it was split."""
    if batch.children is not None:
        return [pending for _, child in batch.children for pending in _pending_of(child)]
    return [] if batch.is_done else [batch]


# --- a batch as the log takes it --------------------------------------------------------------------------------------


def seal(batch: ProducerBatch, topic: Topic, ratios: CompressionRatios, append_time_ms: int) -> EncodedBatch:
    """Compresses a closed batch, once, and writes its producer and CRC.

    ``append_time_ms`` is NO_TIMESTAMP if the log does not stamp.

    Raises: RecordTooLargeError if the log accepts no batch that large.
    """
    config, encoded, buffer = topic.config, batch.encoded, batch.buffer
    assert encoded is not None, "the batch is closed"
    assert buffer is not None, "it has no result"
    at = encoded.position
    if topic.codec != "none" and not batch.attempts:
        batch.encoded = encoded = _compressed(batch, buffer, encoded, topic, ratios)
    batch.attempts += 1
    batch.compressed = None
    size_max = min(config.max_message_bytes, config.segment_bytes)
    if encoded.size > size_max:
        raise RecordTooLargeError(encoded.size, size_max)
    if append_time_ms != NO_TIMESTAMP or batch.is_transactional:
        header = BatchHeader._make(BATCH_HEADER.unpack_from(buffer, at))
        if batch.is_transactional:
            header = header._replace(attributes=header.attributes | ATTRIBUTE_TRANSACTIONAL)
        if append_time_ms != NO_TIMESTAMP:
            attributes = header.attributes | ATTRIBUTE_LOG_APPEND_TIME
            header = header._replace(attributes=attributes, max_timestamp=append_time_ms)
            encoded = encoded._replace(max_timestamp=append_time_ms, max_timestamp_delta_offset=0)
        BATCH_HEADER.pack_into(buffer, at, *header)
    if batch.producer_id >= 0:
        patch_producer(buffer, at, batch.producer_id, batch.producer_epoch, batch.base_sequence)
    patch_crc(buffer, at, batch_crc(buffer.view(at + CRC_START)))
    return encoded


def _compressed(
    batch: ProducerBatch, buffer: BatchBuffer, encoded: EncodedBatch, topic: Topic, ratios: CompressionRatios
) -> EncodedBatch:
    """Compresses a batch in its buffer. After an interrupt, a second call does all of it again."""
    compressed = batch.compressed
    if compressed is None:
        codec = CODECS_BY_NAME[topic.codec]
        compressed = codec.compress(buffer.view(encoded.position + BATCH_HEADER_BYTES), topic.level)
        size = BATCH_HEADER_BYTES + len(compressed)
        if size > encoded.size:
            ratios.observe(topic.name, topic.codec, 1.0)
            return encoded
        ratios.observe(topic.name, topic.codec, size / encoded.size)
        # From here on the buffer holds neither version completely.
        batch.compressed = compressed
    return replace_records(buffer, encoded, topic.codec, compressed)


def split(batch: ProducerBatch, size_max: int) -> list[ProducerBatch]:
    """Moves the records of a batch that the log refused into smaller ones of at most ``size_max`` bytes.

    The deliveries and callbacks move with them; the new batches keep the age of the old one. Their memory is not the
    pool's.
    """
    encoded, buffer = batch.encoded, batch.buffer
    assert encoded is not None, "the batch is closed"
    assert buffer is not None, "it has no result"
    patch_crc(buffer, encoded.position, batch_crc(buffer.view(encoded.position + CRC_START)))
    records = list(parse_batch(buffer, encoded.position).records())
    children: list[tuple[int, ProducerBatch]] = []
    for index, record in enumerate(records):
        if children:
            fields = (record.value, record.key, record.header_bytes, record.timestamp)
            if children[-1][1].append(*fields) is not None:
                continue
            children[-1][1].close()
        child = _child(batch, size_max)
        children.append((index, child))
        delivery = child.append(record.value, record.key, record.header_bytes, record.timestamp)
        if delivery is None:
            # A single record is larger: it gets a batch of its own, and only it is refused.
            child.abort()
            child = _child(batch, encoded.size + BATCH_HEADER_BYTES + size_max)
            children[-1] = (index, child)
            child.append(record.value, record.key, record.header_bytes, record.timestamp)
            child.close()
    children[-1][1].close()
    batch.split(children)
    return [child for _, child in children]


def _child(batch: ProducerBatch, size_max: int) -> ProducerBatch:
    child = ProducerBatch(
        batch.topic, batch.partition, BatchBuffer(), size_max, batch.created_at, batch.failures, batch.hurry
    )
    child.is_transactional = batch.is_transactional
    return child
