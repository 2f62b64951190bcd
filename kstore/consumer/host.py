"""What a consumer asks of the store that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from kstore.clock import Clock
from kstore.consumer.groups import GroupBox
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.transactions.group_offsets import GroupOffsets
from kstore.transactions.group_records import OffsetAndMetadata

__all__ = ["ConsumerHost"]


class ConsumerHost(Protocol):
    """A store, as its consumers see it. Thread-safe."""

    @property
    def path(self) -> Path: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def read_only(self) -> bool: ...

    @property
    def tells_changes(self) -> bool:
        """Whether ``watch`` tells of every change of topics: not where another process makes them."""
        ...

    @property
    def offsets(self) -> GroupOffsets:
        """What groups have committed."""
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        """Commits offsets of a group. Raises: ConfigError, ReadOnlyError, DiskFullError, StorageError."""
        ...

    def topics(self) -> Sequence[str]: ...

    def partitions(self, topic: str) -> Sequence[int]:
        """Raises: TopicNotFoundError."""
        ...

    def log(self, topic: str, partition: int) -> Log:
        """Raises: TopicNotFoundError, and as ``Log``."""
        ...

    def group(self, name: str) -> GroupBox:
        """Where the members of a group meet. Raises: ReadOnlyError."""
        ...

    def watch(self, changed: Callable[[str], None]) -> None:
        """Has ``changed(topic)`` called when a topic was made, deleted, grown or altered, until ``unwatch``."""
        ...

    def unwatch(self, changed: Callable[[str], None]) -> None: ...
