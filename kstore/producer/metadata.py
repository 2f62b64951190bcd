"""What a producer knows of topics: looked up at the first send, kept, and awaited if they do not exist yet."""

from __future__ import annotations

import threading
from difflib import get_close_matches
from typing import Final

from kstore.config import LogConfig
from kstore.errors import TopicNotFoundError, TopicWaitTimeoutError
from kstore.files._locks import Condition
from kstore.logs.topics import Topics
from kstore.producer.accumulator import BatchQueue, RecordAccumulator, Topic
from kstore.producer.config import ProducerConfig

IDLE_CHECK_SECONDS: Final = 1.0
# A message names at most this many similar topics.
NEAR_TOPICS_MAX: Final = 3


class TopicMetadata:
    """The topics that a producer sends to. Thread-safe; ``send`` reads ``topics`` without a lock."""

    def __init__(self, config: ProducerConfig, store: Topics, *, waits: bool = True) -> None:
        """``store``: its topics. ``waits``: False if ``get`` does not wait for a topic that does not exist."""
        self.topics: dict[str, Topic] = {}
        # Counts lookups that found something new.
        self.version: int = 0
        # The time spent on lookups and on waits for topics.
        self.wait_seconds: float = 0.0
        self.waits = waits
        self._config = config
        self._store = store
        self._idle_seconds = config.metadata_max_idle_ms / 1000
        self._lock = threading.RLock()
        self._changed = Condition(self._lock)
        # Guarded by _changed: topics to look up again, and a count of the changes.
        self.stale: set[str] = set()
        self._news_count = 0
        self._looked_at = 0.0
        # Queues of idle topics, kept for their sequences.
        self._given_up: dict[tuple[str, int], BatchQueue] = {}

    def note_change(self, name: str) -> None:
        """Notes that a topic was created, deleted, extended or altered."""
        with self._lock:
            if name in self.topics:
                self.stale.add(name)
            self._news_count += 1
            self._changed.notify_all()

    def has_news(self, name: str) -> bool:
        """Whether a topic must be looked up again."""
        return name in self.stale

    def get(self, name: str, partition: int | None, timeout: float) -> Topic:
        """The current topic; waits up to ``timeout`` seconds for it, and for its ``partition``.

        Raises: TopicWaitTimeoutError; TopicNotFoundError at once, if it does not wait; ConfigError (no topic can have
        such a name).
        """
        topic = self.topics.get(name)
        if topic is not None and name not in self.stale and (partition is None or partition < topic.partition_count):
            return topic
        begun = self._store.clock.monotonic()
        try:
            return self._wait_for(name, partition, timeout)
        finally:
            seconds = self._store.clock.monotonic() - begun
            self.wait_seconds += seconds

    def _wait_for(self, name: str, partition: int | None, timeout: float) -> Topic:
        clock = self._store.clock
        deadline = clock.monotonic() + timeout
        while True:
            news_count = self._news_count
            topic = self.topics.get(name)
            if topic is None or name in self.stale:
                topic = self._look_up(name)
            if topic is not None and (partition is None or partition < topic.partition_count):
                return topic
            if not self.waits:
                raise TopicNotFoundError(self.missing(name, partition))
            with self._lock:
                remaining = deadline - clock.monotonic()
                if remaining <= 0:
                    raise TopicWaitTimeoutError(f"{self.missing(name, partition)}, after {round(timeout * 1000)} ms")
                if self._news_count == news_count:
                    self._changed.wait(remaining)

    def missing(self, name: str, partition: int | None) -> str:
        """The message for a topic or partition that does not exist, with similarly named topics."""
        topic = self.topics.get(name)
        if topic is not None:
            return f"there is no partition {partition} of topic {name}, which has {topic.partition_count} partitions"
        nearest = get_close_matches(name, self._store.names(), n=NEAR_TOPICS_MAX)
        hint = f", did you mean {' or '.join(nearest)}?" if nearest else ""
        return f"there is no topic {name}{hint}"

    def known(self, name: str) -> Topic:
        """The topic, without waiting for it. Raises: TopicNotFoundError."""
        topic = self.topics.get(name)
        if topic is None or name in self.stale:
            topic = self._look_up(name)
        if topic is None:
            raise TopicNotFoundError(f"there is no topic {name} any more")
        return topic

    def _look_up(self, name: str) -> Topic | None:
        name = str.__str__(name)  # of an enum, perhaps
        with self._lock:
            before = self.topics.get(name)
            try:
                # Before the look: it may find another change, and note it.
                self.stale.discard(name)
                try:
                    count, config = self._store.partition_count(name), self._store.config(name)
                except TopicNotFoundError:
                    self.topics.pop(name, None)
                    self._forget(name)
                    return None
                topic = self._topic(name, count, config, before)
                # A finalizer in this thread may have looked it up during that. No signal is served before the store.
                if name in self.topics and self.topics[name] is not before:
                    return self.topics[name]
                self.topics[name] = topic
                self.version += 1
                return topic
            except BaseException:
                if before is not None:
                    self.stale.add(name)
                raise

    def _topic(self, name: str, count: int, config: LogConfig, before: Topic | None) -> Topic:
        """A topic that keeps the queues of known partitions."""
        queues = [] if before is None else [queue for queue in before.queues[:count] if not queue.is_retired]
        kept = {queue.partition: queue for queue in queues}
        queues = [kept.get(number) or self._queue(name, number) for number in range(count)]
        codec = config.target_codec(self._config.compression_type)
        # A codec that the topic sets has the topic's level.
        chooser = self._config if codec == self._config.compression_type else config
        level = chooser.compression_level(codec)
        topic = Topic(name, queues, config, codec, level, ignores_keys=self._config.partitioner_ignore_keys)
        topic.last_used = self._store.clock.monotonic()
        if before is not None:
            topic.sticky_partition = min(before.sticky_partition, count - 1)
            topic.sticky_bytes = before.sticky_bytes
        return topic

    def _queue(self, name: str, number: int) -> BatchQueue:
        """A new queue that continues the sequence of the one before it: the log would take other records with a reused
        sequence for a repetition."""
        queue = BatchQueue(name, number)
        if (before := self._given_up.get((name, number))) is not None:
            queue.producer, queue.next_sequence = before.producer, before.next_sequence
        return queue

    def drop_idle(self, accumulator: RecordAccumulator) -> None:
        """Drops topics without a send for ``metadata_max_idle_ms``."""
        now = self._store.clock.monotonic()
        if now - self._looked_at < IDLE_CHECK_SECONDS:
            return
        self._looked_at = now
        for topic in list(self.topics.values()):
            if now - topic.last_used >= self._idle_seconds:
                with self._lock:
                    self._drop(topic, accumulator)

    def _drop(self, topic: Topic, accumulator: RecordAccumulator) -> None:
        """Needs the lock."""
        name = topic.name
        # First: no failure loses the sequences of a retired queue. Those of a queue in use are not read.
        self._given_up.update(((name, queue.partition), queue) for queue in topic.queues)
        is_retired = False
        # Hide it from ``send`` before: a later send finds that its queues are not used any more, and looks the topic up
        # again.
        self.topics.pop(name, None)
        try:
            is_retired = accumulator.retire(topic)
        finally:
            if not is_retired:
                self.topics[name] = topic
        if is_retired:
            self.stale.discard(name)
        if not self._is_there(name):
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Drops the sequences of a deleted topic."""
        self._given_up = {place: queue for place, queue in self._given_up.items() if place[0] != name}

    def _is_there(self, name: str) -> bool:
        try:
            return self._store.partition_count(name) > 0
        except TopicNotFoundError:
            return False
