"""The records of ``__transaction_state``, as Kafka 4 writes them. No I/O here.

    key       int16 0 | string transactional id
    value     int16 1 | int64 producer id | int16 epoch | int32 timeout ms | int8 state |
              compact array of (compact string topic, compact array of int32, tagged), null in state Empty |
              int64 last update ms | int64 start ms |
              tagged: 0 int64 previous producer id  1 int64 next producer id  2 int16 client's transaction version
                      3 int16 next epoch

Without a value the transactional id is removed. Version 0 of the value, from older brokers, is read: it has fixed
lengths and no tags.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NotRequired, TypedDict, cast

from kstore.errors import CorruptRecordError, UnsupportedFormatError
from kstore.files.paths import TopicPartition
from kstore.messages._wire import MessageReader
from kstore.messages.primitives import INT16
from kstore.messages.schema import load_messages
from kstore.rules.sequence import NO_EPOCH
from kstore.transactions.metadata import NO_PRODUCER_ID, TransactionMetadata, TransactionState

KEY_TYPE = 0
VERSION = 1
# The others are Kafka's, in memory only.
STORED_STATES = frozenset(TransactionState) - {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE}


class _Key(TypedDict):
    """The field of a TransactionLogKey."""

    transactionalId: str


class _Partitions(TypedDict):
    """The partitions of one topic in a transaction."""

    topic: str
    partitionIds: list[int]


class _Value(TypedDict):
    """The fields of a TransactionLogValue; optional ones are tagged, and absent if they have their defaults."""

    producerId: int
    previousProducerId: NotRequired[int]
    nextProducerId: NotRequired[int]
    producerEpoch: int
    nextProducerEpoch: NotRequired[int]
    transactionTimeoutMs: int
    transactionStatus: int
    transactionPartitions: list[_Partitions] | None
    transactionLastUpdateTimestampMs: int
    transactionStartTimestampMs: int
    clientTransactionVersion: NotRequired[int]


def encode_transaction_key(transactional_id: str) -> bytes:
    """Raises: ValueError for an id that cannot have such a key."""
    fields = _Key(transactionalId=transactional_id)
    return INT16.pack(KEY_TYPE) + load_messages("transaction")["TransactionLogKey"].write(fields, 0)


def encode_transaction_value(metadata: TransactionMetadata) -> bytes:
    is_empty = metadata.state == TransactionState.EMPTY
    fields = _Value(
        producerId=metadata.producer_id,
        previousProducerId=metadata.previous_producer_id,
        nextProducerId=metadata.next_producer_id,
        producerEpoch=metadata.producer_epoch,
        nextProducerEpoch=metadata.next_producer_epoch,
        transactionTimeoutMs=metadata.timeout_ms,
        transactionStatus=metadata.state,
        transactionPartitions=None if is_empty else _by_topic(metadata.partitions),
        transactionLastUpdateTimestampMs=metadata.last_update_timestamp,
        transactionStartTimestampMs=metadata.start_timestamp,
        clientTransactionVersion=metadata.client_transaction_version,
    )
    return INT16.pack(VERSION) + load_messages("transaction")["TransactionLogValue"].write(fields, VERSION)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[_Partitions]:
    by_topic: dict[str, list[int]] = {}
    for owner in sorted(partitions):
        by_topic.setdefault(owner.topic, []).append(owner.partition)
    return [_Partitions(topic=topic, partitionIds=numbers) for topic, numbers in by_topic.items()]


def decode_transaction_key(key: bytes) -> str | None:
    """The transactional id; None for a record of another type. Raises: CorruptRecordError."""
    reader = MessageReader(key)
    if reader.int16() != KEY_TYPE:
        return None
    return cast(_Key, load_messages("transaction")["TransactionLogKey"].read(reader, 0))["transactionalId"]


def decode_transaction_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """Raises: CorruptRecordError; UnsupportedFormatError for a later version."""
    reader = MessageReader(value)
    version = reader.int16()
    if not 0 <= version <= VERSION:
        raise UnsupportedFormatError(f"a transaction's record of version {version}, expected 0 to {VERSION}")
    fields = cast(_Value, load_messages("transaction")["TransactionLogValue"].read(reader, version))
    number = fields["transactionStatus"]
    if number not in STORED_STATES:
        raise CorruptRecordError(f"a transaction in state {number}, expected 0 to {max(STORED_STATES):d}")
    producer_id, epoch = fields["producerId"], fields["producerEpoch"]
    next_producer_id = fields.get("nextProducerId", NO_PRODUCER_ID)
    # No marker could be written with these: the transaction would never end.
    if producer_id < 0 or epoch < 0 or next_producer_id < NO_PRODUCER_ID:
        raise CorruptRecordError(
            f"a transaction of producer {producer_id}, epoch {epoch}, next producer {next_producer_id}: negative"
        )
    return TransactionMetadata(
        transactional_id,
        producer_id,
        epoch,
        fields["transactionTimeoutMs"],
        TransactionState(number),
        frozenset(
            TopicPartition(of_topic["topic"], partition)
            for of_topic in fields["transactionPartitions"] or ()
            for partition in of_topic["partitionIds"]
        ),
        fields["transactionLastUpdateTimestampMs"],
        fields["transactionStartTimestampMs"],
        fields.get("previousProducerId", NO_PRODUCER_ID),
        next_producer_id,
        fields.get("nextProducerEpoch", NO_EPOCH),
        fields.get("clientTransactionVersion", 0),
    )
