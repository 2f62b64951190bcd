"""The records of ``__transaction_state``, as Kafka 4 writes them. No I/O here.

    key       int16 0 | string transactional id
    value     int16 1 | int64 producer id | int16 epoch | int32 timeout ms | int8 state |
              compact array of (compact string topic, compact array of int32, tagged), null in state Empty |
              int64 last update ms | int64 start ms |
              tagged: 0 int64 previous producer id  1 int64 next producer id  2 int16 client's transaction version
                      3 int16 next epoch

No value: the transactional id is forgotten. Version 0 of the value, of older brokers, is read: fixed lengths, no tags.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kstore.errors import CorruptRecordError, UnsupportedFormatError
from kstore.files.paths import TopicPartition
from kstore.transactions.metadata import NO_EPOCH, NO_PRODUCER_ID, TransactionMetadata, TransactionState
from kstore.transactions.wire import Reader, compact_length, compact_string, string, tagged_fields

__all__ = ["decode_transaction_key", "decode_transaction_value", "encode_transaction_key", "encode_transaction_value"]

KEY_TYPE = 0
VERSION = 1
HEAD = struct.Struct(">hqhib")
TIMES = struct.Struct(">qq")
INT16, INT32, INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
# The number of a tagged field, its form, its default.
PREVIOUS_PRODUCER_ID = (0, INT64, NO_PRODUCER_ID)
NEXT_PRODUCER_ID = (1, INT64, NO_PRODUCER_ID)
CLIENT_VERSION = (2, INT16, 0)
NEXT_PRODUCER_EPOCH = (3, INT16, NO_EPOCH)


def encode_transaction_key(transactional_id: str) -> bytes:
    """Raises: ValueError for an id that has no such key."""
    return INT16.pack(KEY_TYPE) + string(transactional_id)


def encode_transaction_value(metadata: TransactionMetadata) -> bytes:
    head = HEAD.pack(VERSION, metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, metadata.state)
    values = (
        (PREVIOUS_PRODUCER_ID, metadata.previous_producer_id),
        (NEXT_PRODUCER_ID, metadata.next_producer_id),
        (CLIENT_VERSION, metadata.client_transaction_version),
        (NEXT_PRODUCER_EPOCH, metadata.next_producer_epoch),
    )
    tagged = {tag: form.pack(value) for (tag, form, default), value in values if value != default}
    is_empty = metadata.state == TransactionState.EMPTY
    partitions = compact_length(-1) if is_empty else _encode_partitions(metadata.partitions)
    times = TIMES.pack(metadata.last_update_timestamp, metadata.start_timestamp)
    return head + partitions + times + tagged_fields(tagged)


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for owner in sorted(partitions):
        by_topic.setdefault(owner.topic, []).append(owner.partition)
    rows = [
        compact_string(topic) + compact_length(len(numbers)) + b"".join(map(INT32.pack, numbers)) + tagged_fields({})
        for topic, numbers in by_topic.items()
    ]
    return compact_length(len(rows)) + b"".join(rows)


def decode_transaction_key(key: bytes) -> str | None:
    """The transactional id; None for a record of another type. Raises: CorruptRecordError."""
    reader = Reader(key)
    return reader.string() if reader.int16() == KEY_TYPE else None


def decode_transaction_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """Raises: CorruptRecordError; UnsupportedFormatError for a later version."""
    reader = Reader(value)
    version = reader.int16()
    if not 0 <= version <= VERSION:
        raise UnsupportedFormatError(f"a transaction's record of version {version}, expected 0 to {VERSION}")
    is_flexible = version > 0
    producer_id, epoch, timeout_ms, number = reader.int64(), reader.int16(), reader.int32(), reader.int8()
    if number not in TransactionState.__members__.values():
        raise CorruptRecordError(f"a transaction in state {number}, expected 0 to {max(TransactionState):d}")
    partitions = _decode_partitions(reader, is_flexible=is_flexible)
    last_update, start = reader.int64(), reader.int64()
    tagged = reader.tagged() if is_flexible else {}
    return TransactionMetadata(
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        TransactionState(number),
        partitions,
        last_update,
        start,
        _tagged(tagged, *PREVIOUS_PRODUCER_ID),
        _tagged(tagged, *NEXT_PRODUCER_ID),
        _tagged(tagged, *NEXT_PRODUCER_EPOCH),
        _tagged(tagged, *CLIENT_VERSION),
    )


def _decode_partitions(reader: Reader, *, is_flexible: bool) -> frozenset[TopicPartition]:
    found = set()
    for _ in range(reader.count(is_flexible=is_flexible)):
        topic = reader.string(is_flexible=is_flexible)
        for _ in range(reader.count(is_flexible=is_flexible)):
            found.add(TopicPartition(topic, reader.int32()))
        if is_flexible:
            reader.tagged()
    return frozenset(found)


def _tagged(fields: dict[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    data = fields.get(tag)
    if data is None:
        return default
    if len(data) != form.size:
        raise CorruptRecordError(f"tagged field {tag} has {len(data)} bytes, expected {form.size}")
    value: int = form.unpack(data)[0]
    return value
