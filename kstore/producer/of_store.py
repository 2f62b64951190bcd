"""A store as its producers see it: topics, logs, who gives out producer ids, and news of topics."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kstore.clock import Clock
from kstore.config import LogConfig
from kstore.engine.writer import LogWriter
from kstore.files.paths import TopicPartition, validate_topic
from kstore.log import Log
from kstore.producer.host import Coordinator
from kstore.producer.producer import Producer

__all__ = ["StoreHost"]

AnyProducer = TypeVar("AnyProducer", bound=Producer)


class StoreHost:
    """What a store is to its producers (``producer.host.ProducerHost``). Thread-safe."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        shared: bool,
        topics: Callable[[], list[str]],
        partitions: Callable[[str], list[int]],
        config_of: Callable[[TopicPartition], LogConfig],
        log: Callable[[str, int], Log],
        coordinator: Callable[[], Coordinator],
    ) -> None:
        self.path = path
        self.clock = clock
        self.shared = shared
        self._topics = topics
        self._partitions = partitions
        self._config_of = config_of
        self._log = log
        self._coordinator = coordinator
        # A producer that is collected meanwhile takes it once more.
        self._lock = threading.RLock()
        self._watchers: list[Callable[[str], None]] = []  # guarded by _lock
        self._naming = threading.Lock()
        # Guarded by _naming.
        self._producers: weakref.WeakValueDictionary[str, Producer] = weakref.WeakValueDictionary()

    @property
    def coordinator(self) -> Coordinator:
        return self._coordinator()

    def topics(self) -> list[str]:
        return self._topics()

    def partition_count(self, topic: str) -> int:
        validate_topic(topic)
        return self._partitions(topic)[-1] + 1

    def topic_config(self, topic: str) -> LogConfig:
        return self._config_of(TopicPartition(topic, self._partitions(topic)[0]))

    def writer(self, topic: str, partition: int) -> LogWriter:
        return self._log(topic, partition).writer

    def made(self, producer: AnyProducer) -> AnyProducer:
        """Keeps in mind a producer of the store, as long as it lives."""
        with self._naming:
            open_now = self._open_producers()
            name, number = producer.client_id, 1
            while name in open_now:
                number += 1
                name = f"{producer.client_id}#{number}"
            self._producers[name] = producer
        return producer

    def live_producers(self) -> dict[str, Producer]:
        """The open producers, by names that no two of them have: the client id, and a number if that was taken."""
        with self._naming:
            return self._open_producers()

    def _open_producers(self) -> dict[str, Producer]:
        return {name: producer for name, producer in list(self._producers.items()) if not producer.closed}

    def watch(self, changed: Callable[[str], None]) -> None:
        with self._lock:
            self._watchers.append(changed)

    def unwatch(self, changed: Callable[[str], None]) -> None:
        with self._lock:
            if changed in self._watchers:
                self._watchers.remove(changed)

    def tell(self, topic: str) -> None:
        """A topic was made, deleted, grown or altered."""
        with self._lock:
            watchers = list(self._watchers)
        for changed in watchers:
            changed(topic)
