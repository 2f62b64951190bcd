"""Kafka's error codes, and the code of each error that kstore raises. No I/O here."""

from __future__ import annotations

from typing import Final

from kstore import errors

UNKNOWN_SERVER_ERROR: Final = -1
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
MESSAGE_TOO_LARGE: Final = 10
OFFSET_METADATA_TOO_LARGE: Final = 12
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
INVALID_TOPIC_EXCEPTION: Final = 17
RECORD_LIST_TOO_LARGE: Final = 18
INVALID_REQUIRED_ACKS: Final = 21
ILLEGAL_GENERATION: Final = 22
INCONSISTENT_GROUP_PROTOCOL: Final = 23
INVALID_GROUP_ID: Final = 24
UNKNOWN_MEMBER_ID: Final = 25
INVALID_SESSION_TIMEOUT: Final = 26
REBALANCE_IN_PROGRESS: Final = 27
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
INVALID_TIMESTAMP: Final = 32
UNSUPPORTED_SASL_MECHANISM: Final = 33
ILLEGAL_SASL_STATE: Final = 34
UNSUPPORTED_VERSION: Final = 35
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_REPLICATION_FACTOR: Final = 38
INVALID_REPLICA_ASSIGNMENT: Final = 39
INVALID_CONFIG: Final = 40
INVALID_REQUEST: Final = 42
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
DUPLICATE_SEQUENCE_NUMBER: Final = 46
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTION_COORDINATOR_FENCED: Final = 52
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
OPERATION_NOT_ATTEMPTED: Final = 55
KAFKA_STORAGE_ERROR: Final = 56
SASL_AUTHENTICATION_FAILED: Final = 58
UNKNOWN_PRODUCER_ID: Final = 59
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
FETCH_SESSION_ID_NOT_FOUND: Final = 70
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
OFFSET_NOT_AVAILABLE: Final = 78
MEMBER_ID_REQUIRED: Final = 79
GROUP_MAX_SIZE_REACHED: Final = 81
FENCED_INSTANCE_ID: Final = 82
GROUP_SUBSCRIBED_TO_TOPIC: Final = 86
INVALID_RECORD: Final = 87
UNSTABLE_OFFSET_COMMIT: Final = 88
PRODUCER_FENCED: Final = 90
UNKNOWN_TOPIC_ID: Final = 100
MISMATCHED_ENDPOINT_TYPE: Final = 114
UNSUPPORTED_ENDPOINT_TYPE: Final = 115

# The nearest class of an error decides. Not here: what only kstore's own consumers, queues and formats raise, whose
# code is that of a request that cannot be met, or of a disk that fails.
CODES: dict[type[BaseException], int] = {
    BaseException: UNKNOWN_SERVER_ERROR,
    # The disk, or a client's bytes, lied.
    errors.CorruptDataError: KAFKA_STORAGE_ERROR,
    errors.CorruptBatchError: CORRUPT_MESSAGE,
    errors.CorruptRecordError: INVALID_RECORD,
    errors.UnsupportedFormatError: INVALID_RECORD,
    errors.UnsupportedCodecError: UNSUPPORTED_COMPRESSION_TYPE,
    # The system refused. All may go away: clients try again.
    errors.StorageError: KAFKA_STORAGE_ERROR,
    # Trying again is in vain.
    errors.ReadOnlyError: POLICY_VIOLATION,
    # The request is impossible.
    errors.RequestError: INVALID_REQUEST,
    errors.ConfigError: INVALID_CONFIG,
    errors.OffsetOutOfRangeError: OFFSET_OUT_OF_RANGE,
    errors.DataLossError: OFFSET_OUT_OF_RANGE,
    errors.NoOffsetError: OFFSET_OUT_OF_RANGE,
    errors.RecordTooLargeError: MESSAGE_TOO_LARGE,
    errors.BatchTooLargeError: RECORD_LIST_TOO_LARGE,
    errors.InvalidRecordError: INVALID_RECORD,
    errors.InvalidTimestampError: INVALID_TIMESTAMP,
    errors.ProducerFencedError: PRODUCER_FENCED,
    errors.InvalidProducerIdMappingError: INVALID_PRODUCER_ID_MAPPING,
    errors.InvalidProducerEpochError: INVALID_PRODUCER_EPOCH,
    errors.OutOfOrderSequenceError: OUT_OF_ORDER_SEQUENCE_NUMBER,
    # Not DUPLICATE_SEQUENCE_NUMBER, which clients take for a success: the batch is not known.
    errors.DuplicateSequenceError: OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.InvalidTransactionStateError: INVALID_TXN_STATE,
    errors.TransactionCoordinatorFencedError: TRANSACTION_COORDINATOR_FENCED,
    errors.TransactionAbortedError: INVALID_TXN_STATE,
    errors.TopicExistsError: TOPIC_ALREADY_EXISTS,
    errors.TopicNotFoundError: UNKNOWN_TOPIC_OR_PARTITION,
    errors.LogNotFoundError: UNKNOWN_TOPIC_OR_PARTITION,
    errors.NotALogError: KAFKA_STORAGE_ERROR,
    errors.CommitFailedError: ILLEGAL_GENERATION,
    errors.GroupInUseError: UNKNOWN_MEMBER_ID,
    errors.BufferExhaustedError: REQUEST_TIMED_OUT,
    errors.DeliveryTimeoutError: REQUEST_TIMED_OUT,
    errors.TopicWaitTimeoutError: REQUEST_TIMED_OUT,
    # The store or the log was closed under the request: a client that asks again finds out what came after.
    errors.ClosedError: NOT_LEADER_OR_FOLLOWER,
    errors.ForkedError: NOT_LEADER_OR_FOLLOWER,
}


def code_of(error: BaseException) -> int:
    """Kafka's code for an error, by the nearest of its classes that has one."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
