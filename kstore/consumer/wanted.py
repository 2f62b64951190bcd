"""What a consumer requests: topics, by name or pattern, or assigned partitions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Protocol

from kstore.errors import ConfigError, TopicNotFoundError
from kstore.files.paths import TopicPartition
from kstore.logs.topics import Topics


class RebalanceListener(Protocol):
    """Called in the consumer's thread when its partitions change; may commit and seek in it."""

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """They are about to move to others: the last moment to commit."""
        ...

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """They belong to this consumer from now on."""
        ...

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """They have already moved to others: they cannot be committed."""
        ...


def topic_partition(owner: tuple[str, int]) -> TopicPartition:
    """Raises: ConfigError."""
    is_one = isinstance(owner, tuple) and len(owner) == 2 and isinstance(owner[0], str)
    if not is_one or isinstance(owner[1], bool) or not isinstance(owner[1], int):
        raise ConfigError(f"a partition is {owner!r:.80}, expected a TopicPartition: a topic and a number")
    return TopicPartition(*owner)


def topic_partitions(owners: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    """Raises: ConfigError."""
    if not isinstance(owners, Iterable):
        raise ConfigError(f"partitions are {owners!r:.80}, expected TopicPartitions: topics and numbers")
    return [topic_partition(owner) for owner in owners]


class Wanted:
    """Topics, or a pattern of them, or partitions: one of the three, or nothing."""

    def __init__(self, topics: Collection[str] = (), pattern: str | re.Pattern[str] | None = None) -> None:
        """Raises: ConfigError."""
        if isinstance(topics, str):
            topics = (topics,)
        for topic in topics:
            if not isinstance(topic, str) or not topic.strip():
                raise ConfigError(f"a topic is {topic!r:.80}, expected a name")
        self._topics = tuple(dict.fromkeys(topics))
        try:
            self.pattern: re.Pattern[str] | None = re.compile(pattern) if pattern is not None else None
        except (re.error, TypeError) as error:
            raise ConfigError(f"pattern is {pattern!r:.80}, expected a regular expression: {error}") from None

    def __bool__(self) -> bool:
        return bool(self._topics) or self.pattern is not None

    def topics(self, store: Topics) -> tuple[str, ...]:
        """The topics that exist now, sorted. A named one that was deleted is left out."""
        if self.pattern is not None:
            return tuple(topic for topic in store.names() if self.pattern.fullmatch(topic))
        return tuple(sorted(self._topics))

    def partitions(self, store: Topics) -> list[TopicPartition]:
        """Every partition of these topics."""
        found = []
        for topic in self.topics(store):
            with suppress(TopicNotFoundError):
                found += [TopicPartition(topic, number) for number in store.partitions(topic)]
        return found

    def ensure_found(self, store: Topics) -> None:
        """Raises: TopicNotFoundError for a named topic that does not exist."""
        for topic in self._topics:
            store.partitions(topic)
