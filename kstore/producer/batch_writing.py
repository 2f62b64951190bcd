"""Makes a closed batch ready for the log, and splits a batch that is too large for it."""

from __future__ import annotations

from kstore.errors import RecordTooLargeError
from kstore.producer._accumulate import ProducerBatch
from kstore.producer.accumulator import CompressionRatios, Topic
from kstore.record._codec import BatchBuffer, EncodedBatch, patch_crc, patch_producer
from kstore.record.batch import (
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CRC_START,
    BatchHeader,
    batch_crc,
)
from kstore.record.builder import replace_records
from kstore.record.compression import CODECS_BY_NAME
from kstore.record.parse import parse_batch
from kstore.types import NO_TIMESTAMP


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
