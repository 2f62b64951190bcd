"""Builds record batches of version 2 in a given buffer. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from kstore.errors import RecordTooLargeError
from kstore.record._codec import BatchBuffer, EncodedBatch, OpenBatch, encode_batch, patch_crc
from kstore.record.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CRC_START,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    batch_crc,
)
from kstore.record.compression import CODECS_BY_NAME
from kstore.types import CREATE_TIME, INT32_MAX, NO_TIMESTAMP, TIMESTAMP_TYPES, TimestampType

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kstore.record._codec import Headers

# The largest value of a batch's size field, plus its 12 bytes of overhead.
BATCH_BYTES_MAX = INT32_MAX


class RecordLike(Protocol):
    """What ``build_batch`` reads of a record: a ``Record``, or any object with these attributes."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def header_bytes(self) -> Iterable[tuple[bytes, bytes | None]]: ...


def build_batches(
    buffer: BatchBuffer,
    values: Sequence[Buffer | None],
    keys: Sequence[Buffer | None] | None = None,
    timestamps: Sequence[int | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    *,
    codec: str = "none",
    level: int | None = None,
    timestamp_type: TimestampType = CREATE_TIME,
    now_ms: int,
    size_max: int,
) -> list[EncodedBatch]:
    """Appends the records to ``buffer`` in as few batches as fit into ``size_max`` bytes each, before compression.

    Arguments are parallel lists or tuples as in ``encode_batch``; ``now_ms`` is the timestamp of records without one,
    and with LogAppendTime that of the batches. A batch that compression would make larger than ``size_max`` stays
    uncompressed.

    Each batch is complete, CRC included, except for the two fields outside the CRC that ``patch_header`` sets: base
    offset and leader epoch. Raises RecordTooLargeError if a single record does not fit, TypeError, ValueError,
    InvalidRecordError; the buffer is then unchanged.
    """
    type_index = TIMESTAMP_TYPES.index(timestamp_type)
    start, count = 0, len(values)
    size_before = buffer.size
    batches: list[EncodedBatch] = []
    try:
        while start < count:
            batch = encode_batch(
                buffer, values, keys, timestamps, headers, start, now_ms, size_max, type_index, codec == "none"
            )
            if batch.stop == start:
                raise RecordTooLargeError(batch.size, size_max, f"record {start} in a batch of its own,")
            start = batch.stop
            if codec != "none":
                batch = compress_batch(buffer, batch, codec, level, size_max)
                position = batch.position
                patch_crc(buffer, position, batch_crc(buffer.view(position + CRC_START)))
            batches.append(batch)
    except BaseException:
        buffer.truncate(size_before)
        raise
    return batches


def build_batch(
    records: Iterable[RecordLike],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    codec: str = "none",
    level: int | None = None,
    log_append_time: int | None = None,
    max_timestamp: int = NO_TIMESTAMP,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """One whole batch of ``records`` with their own offsets and timestamps.

    Args:
        base_offset: the first record's offset unless given; an empty batch must have one.
        last_offset: the last record's unless given: compaction keeps the offset of a last record that it removed.
        log_append_time: ms; makes the timestamp type LogAppendTime. None: CreateTime.
        max_timestamp: ms, of an empty batch only (Kafka: DefaultRecordBatch.writeEmptyHeader).
        delete_horizon_ms: when tombstones and markers in the batch may be removed (KIP-534).

    Raises ValueError for producer fields that exclude each other and for offsets that do not increase from
    ``base_offset`` to ``last_offset``, RecordTooLargeError for a batch over 2 GiB.
    """
    _check_producer(producer_id, producer_epoch, base_sequence, is_transactional, is_control)
    records = list(records)
    if base_offset is None:
        if not records:
            raise ValueError("a batch without records needs a base_offset")
        base_offset = records[0].offset
    buffer = BatchBuffer()
    batch = OpenBatch(buffer, BATCH_BYTES_MAX, delete_horizon_ms)
    for record in records:
        fits = batch.append(
            record.value, record.key, record.header_bytes, record.timestamp, record.offset - base_offset
        )
        if not fits:
            raise RecordTooLargeError(batch.size, BATCH_BYTES_MAX)
    encoded = batch.close()
    if codec != "none" and records:
        encoded = compress_batch(buffer, encoded, codec, level, BATCH_BYTES_MAX)
    written = BatchHeader._make(BATCH_HEADER.unpack_from(buffer))
    if last_offset is None:
        last_offset = base_offset + max(written.last_offset_delta, 0)
    elif last_offset < base_offset + max(written.last_offset_delta, 0):
        raise ValueError(f"last offset {last_offset}, expected at least the last record's")
    attributes = (
        written.attributes
        | (ATTRIBUTE_LOG_APPEND_TIME if log_append_time is not None else 0)
        | (ATTRIBUTE_TRANSACTIONAL if is_transactional else 0)
        | (ATTRIBUTE_CONTROL if is_control else 0)
        | (ATTRIBUTE_DELETE_HORIZON if delete_horizon_ms is not None else 0)
    )
    if records:
        max_timestamp = written.max_timestamp
    if log_append_time is not None:
        max_timestamp = log_append_time
    header = written._replace(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last_offset - base_offset,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    BATCH_HEADER.pack_into(buffer, 0, *header)
    patch_crc(buffer, 0, batch_crc(buffer.view(CRC_START)))
    return bytes(buffer)


def _check_producer(
    producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool, is_control: bool
) -> None:
    """Kafka: MemoryRecordsBuilder's validation of the producer's state."""
    if producer_id < 0:
        if is_transactional:
            raise ValueError(f"a transactional batch of producer id {producer_id}, expected 0 or more")
        return
    if producer_epoch < 0:
        raise ValueError(f"a producer epoch of {producer_epoch} for producer id {producer_id}, expected 0 or more")
    if base_sequence < 0 and not is_control:
        raise ValueError(f"a base sequence of {base_sequence} for producer id {producer_id}, expected 0 or more")


def compress_batch(
    buffer: BatchBuffer, batch: EncodedBatch, codec_name: str, level: int | None, size_max: int
) -> EncodedBatch:
    """Replaces the records of the last batch in ``buffer`` with their compressed stream, if that fits ``size_max``."""
    codec = CODECS_BY_NAME[codec_name]
    compressed = codec.compress(buffer.view(batch.position + BATCH_HEADER_BYTES), level)
    if BATCH_HEADER_BYTES + len(compressed) > size_max:
        return batch
    return replace_records(buffer, batch, codec_name, compressed)


def replace_records(buffer: BatchBuffer, batch: EncodedBatch, codec_name: str, compressed: bytes) -> EncodedBatch:
    """Replaces the records of the last batch in ``buffer`` with ``compressed``; idempotent."""
    codec = CODECS_BY_NAME[codec_name]
    records_start = batch.position + BATCH_HEADER_BYTES
    size = BATCH_HEADER_BYTES + len(compressed)
    header = BatchHeader._make(BATCH_HEADER.unpack_from(buffer, batch.position))
    buffer.truncate(records_start)
    buffer.extend(compressed)
    header = header._replace(batch_length=size - LOG_OVERHEAD_BYTES, attributes=header.attributes | codec.id)
    BATCH_HEADER.pack_into(buffer, batch.position, *header)
    return batch._replace(size=size)
