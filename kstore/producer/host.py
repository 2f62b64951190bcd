"""What a producer asks of the store that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from kstore.clock import Clock
from kstore.config import LogConfig
from kstore.engine.writer import LogWriter
from kstore.files.paths import TopicPartition

__all__ = ["Coordinator", "ProducerHost"]


class Coordinator(Protocol):
    """Gives out producer ids, and ends transactions."""

    def init_producer_id(self, transactional_id: str | None, timeout_ms: int = ...) -> tuple[int, int]: ...

    def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> None: ...

    def end(self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool) -> tuple[int, int]:
        """Returns the producer id and epoch of the next transaction."""
        ...

    def add_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        group: str,
        offsets: Mapping[TopicPartition, int],
    ) -> None: ...


class ProducerHost(Protocol):
    """A store, as its producers see it. Thread-safe."""

    @property
    def path(self) -> Path: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def coordinator(self) -> Coordinator: ...

    @property
    def shared(self) -> bool:
        """Whether another process may create a topic."""
        ...

    def topics(self) -> list[str]:
        """The names of all topics that users made."""
        ...

    def partition_count(self, topic: str) -> int:
        """Raises: TopicNotFoundError, ConfigError (no topic can have such a name)."""
        ...

    def topic_config(self, topic: str) -> LogConfig:
        """Raises: TopicNotFoundError."""
        ...

    def writer(self, topic: str, partition: int) -> LogWriter:
        """Raises: TopicNotFoundError, and as ``Log``."""
        ...

    def watch(self, changed: Callable[[str], None]) -> None:
        """Has ``changed(topic)`` called when a topic was made, deleted, grown or altered, until ``unwatch``."""
        ...

    def unwatch(self, changed: Callable[[str], None]) -> None: ...
