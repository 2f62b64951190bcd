"""An embedded, durable, append-only log with Apache Kafka's exact file format.

``import kstore`` loads the errors and the compiled codec. Every other public name loads its module on first use, so
that a program pays only for the logs, producers, consumers and event loops that it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kstore import compiled  # noqa: F401  # first: it says what to do if the modules are not built
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
    GroupInUseError,
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
    ReentrantCallError,
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
from kstore.record._codec import Record
from kstore.types import AppendInfo, CorruptRange, CutRange, OpenTransaction, ProducerInfo, RecoveryReport

if TYPE_CHECKING:  # the same names as in LAZY, for type checkers and editors
    from kstore import aio as aio
    from kstore.backup.check import CheckedBackup, check_backups
    from kstore.backup.replicate import Replicator
    from kstore.backup.restore import RestoreResult, restore
    from kstore.backup.take import BackupResult
    from kstore.consumer.consumer import Consumer
    from kstore.door.door import Door
    from kstore.engine.read.fetch import FetchSlice
    from kstore.files.paths import TopicPartition
    from kstore.log import Log, TimePoint
    from kstore.producer._accumulate import Deliveries, Delivery
    from kstore.producer.mock import MockProducer
    from kstore.producer.producer import Producer
    from kstore.producer.records import ProducerRecord, RecordMetadata
    from kstore.queue.job import Job
    from kstore.queue.look import LeasedItem, QueueStats
    from kstore.queue.queue import Queue
    from kstore.record._codec import ConsumerRecord
    from kstore.record.scan import parse_batches
    from kstore.reports.report import Report, report
    from kstore.store import PartitionDescription, Store, StoreStatus, TopicDescription, TopicSummary, open
    from kstore.transactions.group_records import OffsetAndMetadata

__all__ = [
    "AppendInfo",
    "BackupResult",
    "BatchTooLargeError",
    "BufferExhaustedError",
    "CheckedBackup",
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
    "Door",
    "DuplicateSequenceError",
    "Empty",
    "FetchSlice",
    "FileInTheWayError",
    "FileMissingError",
    "ForkedError",
    "Full",
    "GroupInUseError",
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
    "LeasedItem",
    "LockedError",
    "Log",
    "LogNotFoundError",
    "LossLimitError",
    "MissingExtraError",
    "MockProducer",
    "NoOffsetError",
    "NotALogError",
    "NotLostError",
    "OffsetAndMetadata",
    "OffsetOutOfRangeError",
    "OpenTransaction",
    "OutOfOrderSequenceError",
    "PartitionDescription",
    "PoisonedError",
    "Producer",
    "ProducerFencedError",
    "ProducerInfo",
    "ProducerRecord",
    "Queue",
    "QueueStats",
    "ReadOnlyError",
    "Record",
    "RecordDeserializationError",
    "RecordError",
    "RecordMetadata",
    "RecordTooLargeError",
    "RecoveryReport",
    "ReentrantCallError",
    "Replicator",
    "Report",
    "RequestError",
    "RestoreResult",
    "SerializationError",
    "SharedLogError",
    "StorageError",
    "Store",
    "StoreStatus",
    "SyncFailedError",
    "ThreadStartError",
    "TimePoint",
    "TopicDescription",
    "TopicExistsError",
    "TopicNotFoundError",
    "TopicPartition",
    "TopicSummary",
    "TopicWaitTimeoutError",
    "TransactionAbortedError",
    "TransactionCoordinatorFencedError",
    "TruncatedFileError",
    "UnsupportedCodecError",
    "UnsupportedFormatError",
    "WakeupError",
    "__version__",
    "check_backups",
    "open",
    "parse_batches",
    "report",
    "restore",
]

# The one place of the version: pyproject.toml reads it from here.
__version__ = "0.3.0"

# The modules that are attributes without an import of their own.
MODULES = frozenset(("aio", "config", "index", "log", "metrics", "segment", "store"))

# The module of each public name that is loaded on first use.
LAZY = {
    "BackupResult": "kstore.backup.take",
    "CheckedBackup": "kstore.backup.check",
    "Consumer": "kstore.consumer.consumer",
    "ConsumerRecord": "kstore.record._codec",
    "Deliveries": "kstore.producer._accumulate",
    "Delivery": "kstore.producer._accumulate",
    "Door": "kstore.door.door",
    "FetchSlice": "kstore.engine.read.fetch",
    "Job": "kstore.queue.job",
    "LeasedItem": "kstore.queue.look",
    "Log": "kstore.log",
    "MockProducer": "kstore.producer.mock",
    "OffsetAndMetadata": "kstore.transactions.group_records",
    "PartitionDescription": "kstore.store",
    "Producer": "kstore.producer.producer",
    "ProducerRecord": "kstore.producer.records",
    "Queue": "kstore.queue.queue",
    "QueueStats": "kstore.queue.look",
    "RecordMetadata": "kstore.producer.records",
    "Report": "kstore.reports.report",
    "Replicator": "kstore.backup.replicate",
    "RestoreResult": "kstore.backup.restore",
    "Store": "kstore.store",
    "StoreStatus": "kstore.store",
    "TopicDescription": "kstore.store",
    "TimePoint": "kstore.log",
    "TopicPartition": "kstore.files.paths",
    "TopicSummary": "kstore.store",
    "check_backups": "kstore.backup.check",
    "open": "kstore.store",
    "parse_batches": "kstore.record.scan",
    "report": "kstore.reports.report",
    "restore": "kstore.backup.restore",
}


if not TYPE_CHECKING:  # otherwise a misspelt name would pass

    def __getattr__(name: str) -> Any:
        """Loads a public name on first use; later uses find it in the module."""
        if name in MODULES:
            return import_module(f"kstore.{name}")
        if name not in LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(LAZY[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *MODULES})
