"""An embedded, durable, append-only log with Apache Kafka's exact file format."""

from typing import TYPE_CHECKING, Any

from kstore.consumer.consumer import Consumer
from kstore.consumer.deserializers import ConsumerRecord
from kstore.engine.fetch import FetchSlice
from kstore.errors import (
    BatchTooLargeError,
    BufferExhaustedError,
    ClosedError,
    CommitFailedError,
    ConfigError,
    ConsumerStateError,
    CorruptBatchError,
    CorruptDataError,
    CorruptFileError,
    CorruptIndexError,
    CorruptRecordError,
    DeliveryError,
    DeliveryTimeoutError,
    DiskFullError,
    DivergedError,
    DuplicateSequenceError,
    Empty,
    FileInTheWayError,
    FileMissingError,
    ForkedError,
    Full,
    IndexFullError,
    InvalidOffsetError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTransactionStateError,
    JavaNotFoundError,
    KstoreError,
    LeaseLostError,
    LockedError,
    LogNotFoundError,
    LossLimitError,
    MissingExtraError,
    NoOffsetError,
    NotALogError,
    NotLostError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PoisonedError,
    ProducerFencedError,
    ReadOnlyError,
    RecordDeserializationError,
    RecordError,
    RecordTooLargeError,
    RequestError,
    SerializationError,
    SharedLogError,
    StorageError,
    SyncFailedError,
    ThreadStartError,
    TopicExistsError,
    TopicNotFoundError,
    TopicWaitTimeoutError,
    TransactionAbortedError,
    TransactionCoordinatorFencedError,
    TruncatedFileError,
    UnsupportedCodecError,
    UnsupportedFormatError,
    WakeupError,
)
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.producer._accumulate import Deliveries, Delivery
from kstore.producer.producer import Producer
from kstore.producer.records import ProducerRecord, RecordMetadata
from kstore.queue.job import Job
from kstore.queue.queue import Queue
from kstore.record._codec import Record
from kstore.record.scan import parse_batches
from kstore.store import Store, open
from kstore.transactions.group_records import OffsetAndMetadata
from kstore.types import AppendInfo, CorruptRange, CutRange, OpenTransaction, ProducerInfo, RecoveryReport

if TYPE_CHECKING:
    from kstore import aio as aio

__all__ = [
    "AppendInfo",
    "BatchTooLargeError",
    "BufferExhaustedError",
    "ClosedError",
    "CommitFailedError",
    "ConfigError",
    "Consumer",
    "ConsumerRecord",
    "ConsumerStateError",
    "CorruptBatchError",
    "CorruptDataError",
    "CorruptFileError",
    "CorruptIndexError",
    "CorruptRange",
    "CorruptRecordError",
    "CutRange",
    "Deliveries",
    "Delivery",
    "DeliveryError",
    "DeliveryTimeoutError",
    "DiskFullError",
    "DivergedError",
    "DuplicateSequenceError",
    "Empty",
    "FetchSlice",
    "FileInTheWayError",
    "FileMissingError",
    "ForkedError",
    "Full",
    "IndexFullError",
    "InvalidOffsetError",
    "InvalidProducerEpochError",
    "InvalidProducerIdMappingError",
    "InvalidRecordError",
    "InvalidTimestampError",
    "InvalidTransactionStateError",
    "JavaNotFoundError",
    "Job",
    "KstoreError",
    "LeaseLostError",
    "LockedError",
    "Log",
    "LogNotFoundError",
    "LossLimitError",
    "MissingExtraError",
    "NoOffsetError",
    "NotALogError",
    "NotLostError",
    "OffsetAndMetadata",
    "OffsetOutOfRangeError",
    "OpenTransaction",
    "OutOfOrderSequenceError",
    "PoisonedError",
    "Producer",
    "ProducerFencedError",
    "ProducerInfo",
    "ProducerRecord",
    "Queue",
    "ReadOnlyError",
    "Record",
    "RecordDeserializationError",
    "RecordError",
    "RecordMetadata",
    "RecordTooLargeError",
    "RecoveryReport",
    "RequestError",
    "SerializationError",
    "SharedLogError",
    "StorageError",
    "Store",
    "SyncFailedError",
    "ThreadStartError",
    "TopicExistsError",
    "TopicNotFoundError",
    "TopicPartition",
    "TopicWaitTimeoutError",
    "TransactionAbortedError",
    "TransactionCoordinatorFencedError",
    "TruncatedFileError",
    "UnsupportedCodecError",
    "UnsupportedFormatError",
    "WakeupError",
    "__version__",
    "open",
    "parse_batches",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``kstore.aio`` is imported when it is first asked for."""
    if name == "aio":
        from importlib import import_module

        return import_module("kstore.aio")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
