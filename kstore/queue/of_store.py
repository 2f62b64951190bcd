"""The queues of a store: each created or opened on first use; one object for all callers."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from kstore.config import LogConfig
from kstore.errors import ConfigError, KstoreError
from kstore.files._locks import block
from kstore.files.paths import TopicPartition, validate_topic
from kstore.logs.topics import Topics
from kstore.queue.config import QueueConfig
from kstore.queue.core import QueueCore
from kstore.queue.journal import SEGMENT_BYTES, Journal
from kstore.queue.leasing import LocalLeasing
from kstore.queue.ledger import Ledger
from kstore.queue.queue import Queue
from kstore.queue.shared import SharedLeasing
from kstore.rules.internal_topics import is_internal, journal_of

logger = logging.getLogger(__name__)

DEAD_SUFFIX = ".dead"
# Kafka's default of max_message_bytes.
MESSAGE_BYTES = LogConfig().max_message_bytes
# Unfinished items must not be deleted, however old; finished ones need not wait for absent readers.
KEPT: dict[str, Any] = {
    "cleanup_policy": "delete",
    "retention_ms": -1,
    "retention_bytes": -1,
    "file_delete_delay_ms": 1000,
}


def _message_bytes(config: QueueConfig) -> dict[str, int]:
    """No batch may be larger than its segment."""
    return {"max_message_bytes": config.segment_bytes} if config.segment_bytes < MESSAGE_BYTES else {}


class StoreQueues:
    """Creates the queues of a store. Thread-safe."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._lock = threading.RLock()
        self._queues: dict[str, Queue] = {}

    def get(self, name: str, settings: dict[str, Any], *, adopt: bool = False) -> Queue:
        """See ``Store.queue``. Raises: ConfigError, StorageError."""
        config = QueueConfig.from_settings(**settings)
        validate_topic(name)
        with self._lock:
            known = self._queues.get(name)
            if known is not None and not known.closed:
                if settings and config != known.config:
                    raise ConfigError(f"the queue {name} is open with other settings: {known.config}")
                return known
            # In the turn: if two processes find the journal ahead of the items, after a power cut, one records it.
            with self._topics.turn():
                self._topics.refresh()
                self._check_kept(name)
                if not adopt and self._is_of_others(name):
                    warnings.warn(
                        f"topic {name} has records and no queue's journal, and a queue deletes what is acked, for all "
                        f"readers: use store.queue({name!r}, adopt=True) if that is meant. The next minor release "
                        "requires it",
                        FutureWarning,
                        stacklevel=3,
                    )
                made = self._queues[name] = self._open(name, config)
            return made

    def _is_of_others(self, name: str) -> bool:
        """Whether the topic has records and was never a queue's."""
        if is_internal(name) or self._topics.count(name) != 1 or self._topics.count(journal_of(name)):
            return False
        log = self._topics.log(name)
        return log.end_offset > log.start_offset

    def _check_kept(self, name: str) -> None:
        """Raises: ConfigError if the topic exists and would lose items that were not acked."""
        if is_internal(name) or not self._topics.count(name):
            return
        settings, _ = self._topics.settings.of(TopicPartition(name, 0))
        for setting in ("cleanup_policy", "retention_ms", "retention_bytes"):
            found, expected = getattr(settings, setting), KEPT[setting]
            if found != expected:
                raise ConfigError(f"topic {name} has {setting} {found!r}, expected {expected!r} for a queue")

    def _open(self, name: str, config: QueueConfig) -> Queue:
        if is_internal(name):
            raise ConfigError(f"{name} is internal, not a queue")
        journal = journal_of(name)
        dead_name = config.dead_letters or name + DEAD_SUFFIX
        if dead_name == name:
            raise ConfigError(f"dead_letters is {name!r}, the queue itself: expected another topic")
        if config.max_deliveries:
            # Checked now: otherwise an item that is delivered too many times could not be kept.
            validate_topic(journal_of(dead_name))
        # Stored permanently: the queue keeps its durability, whatever that of the store is at later opens.
        own = {"durability": config.durability or self._topics.settings.durability}
        if not self._topics.count(name):
            # First: a process that finds the items must find their journal. An existing one belongs to a deleted topic.
            self._ensure(journal, segment_bytes=SEGMENT_BYTES, **own)
            self._ensure(name, segment_bytes=config.segment_bytes, **_message_bytes(config), **own)
        if (count := self._topics.count(name)) != 1:
            raise ConfigError(f"topic {name} has {count} partitions, expected 1 for a queue")
        _, durability = self._topics.settings.of(TopicPartition(name, 0))
        if config.durability and durability != config.durability:
            raise ConfigError(f"the queue {name} has durability {durability!r}, not {config.durability!r}")
        self._ensure(journal, segment_bytes=SEGMENT_BYTES, durability=durability)
        is_sync = durability == "sync"
        ledger = Ledger(
            name,
            self._topics.log(name),
            Journal(self._topics.log(journal), is_sync=is_sync),
            config,
            self._topics.clock,
            is_shared=self._topics.shared,
        )
        leasing = SharedLeasing(ledger) if self._topics.shared else LocalLeasing(ledger)

        def dead_letters(*, create: bool) -> Queue | None:
            if not create and not self._topics.count(dead_name):
                return None
            # Dead letters stay there, however many times they are delivered.
            return self.get(dead_name, {"max_deliveries": 0} if self._is_new(dead_name) else {})

        return Queue(QueueCore(ledger, leasing, is_sync=is_sync), dead_letters)

    def settle(self, topics: Iterable[str]) -> None:
        """Opens once each queue among ``topics`` whose logs were not closed cleanly. The journal's events about items
        that a power cut has taken must be revoked before other items get their offsets."""
        for name in topics:
            if is_internal(name) or not self._topics.count(journal_of(name)):
                continue
            try:
                self._open(name, QueueConfig.from_settings(max_deliveries=0)).close()
            except KstoreError as error:
                logger.warning("the queue %s cannot be checked before it is used: %s", name, error)

    def _is_new(self, name: str) -> bool:
        with self._lock:
            return name not in self._queues

    def _ensure(self, name: str, **settings: Any) -> None:
        self._topics.ensure(name, 1, **{**KEPT, **settings})

    @block
    def ended(self, name: str) -> Iterator[None]:
        """Closes a topic's queue, and opens none, while the topic is deleted."""
        while True:
            with self._lock:
                queue = self._queues.pop(name, None)
                if queue is None:
                    yield
                    return
            # Not under the lock: it waits for threads that may be putting a dead letter into another queue.
            queue.close()

    def close(self) -> None:
        """Closes all queues and wakes every waiting thread. Called before the logs are closed."""
        with self._lock:
            queues = list(self._queues.values())
        for queue in queues:
            queue.close()
