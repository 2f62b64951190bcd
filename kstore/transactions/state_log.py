"""``__transaction_state``: the metadata of transactional ids, read once and appended to."""

from __future__ import annotations

import logging

from kstore.errors import CorruptDataError, TopicNotFoundError
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.logs.topics import Topics
from kstore.rules.internal_topics import TRANSACTION_STATE, partition_for
from kstore.transactions.metadata import TransactionMetadata
from kstore.transactions.transaction_records import (
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from kstore.types import CorruptRange

logger = logging.getLogger(__name__)

# Read whole at each open: small segments, so that compaction, which skips the last one, keeps it short.
# A decision must be on disk before it is carried out anywhere.
SETTINGS: dict[str, object] = {
    "cleanup_policy": "compact",
    "compression_type": "uncompressed",
    "segment_bytes": 1 << 20,
    "durability": "sync",
}


class StateLog:
    """The log of transactional ids. Thread-safe, except that callers order the records of one id."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        # Markers must not come from an older coordinator than those in the logs; a broker's markers carry the leader
        # epoch of this topic.
        self.epoch: int = 0

    def load(self) -> dict[str, TransactionMetadata]:
        """The metadata of every transactional id; creates no topic. Raises: StorageError."""
        known: dict[str, TransactionMetadata] = {}
        for number in range(self._topics.count(TRANSACTION_STATE.name)):
            owner = TopicPartition(TRANSACTION_STATE.name, number)
            try:
                log = self._topics.log_of(owner)
            except TopicNotFoundError:
                continue  # some partitions of a broker's topic may be on other brokers
            self._read(log, known)
        return known

    def _read(self, log: Log, known: dict[str, TransactionMetadata]) -> None:
        if log.start_offset == log.high_watermark:
            return
        for record in log.read(on_corrupt="yield"):
            if isinstance(record, CorruptRange):
                logger.warning(
                    "%s: offsets %d to %d are damaged: transactions may be lost", log.path, record.first, record.last
                )
                continue
            self.epoch = max(self.epoch, record.leader_epoch)
            try:
                transactional_id = decode_transaction_key(record.key or b"")
                if transactional_id is None:
                    continue
                if record.value is None:
                    known.pop(transactional_id, None)
                else:
                    known[transactional_id] = decode_transaction_value(transactional_id, record.value)
            except CorruptDataError as error:
                logger.warning("%s: the record at offset %d is skipped: %s", log.path, record.offset, error.reason)

    def append(self, metadata: TransactionMetadata) -> None:
        """Writes the metadata of an id; as durable as the topic's setting says, "sync" unless it was changed.

        Raises: DiskFullError, PoisonedError, StorageError, RecordTooLargeError.
        """
        self._log(metadata.transactional_id).append(
            encode_transaction_value(metadata), key=encode_transaction_key(metadata.transactional_id)
        )

    def forget(self, transactional_id: str) -> None:
        """Writes that an id is removed."""
        self._log(transactional_id).append(None, key=encode_transaction_key(transactional_id))

    def _log(self, transactional_id: str) -> Log:
        topic = TRANSACTION_STATE
        count = self._topics.ensure(topic.name, topic.partition_count, **SETTINGS)
        return self._topics.log_of(TopicPartition(topic.name, partition_for(transactional_id, count)))
