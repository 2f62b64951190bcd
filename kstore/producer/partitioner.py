"""Which partition a record goes to that names none: by its key, in turn, or as somebody else decides."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from kstore.record._codec import murmur2

__all__ = ["Partitioner", "RoundRobinPartitioner", "next_partition", "partition_for_key", "partitioner_of"]

# A sign bit is taken off like this, as Java does it; an absolute value would give other partitions.
INT32_MASK = 0x7FFF_FFFF


class Partitioner(Protocol):
    """What chooses partitions in place of the built-in way. May be asked by several threads at once.

    One of the user's need not have ``on_new_batch``, and may have ``close()``.
    """

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """0 to ``partition_count`` (exclusive), for the key and value as serialized."""
        ...

    def on_new_batch(self, topic: str, partition_count: int, previous_partition: int) -> None:
        """The record would open a new batch in the partition just chosen: ``partition`` is asked once more for it."""
        ...


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key, the same as Kafka's own clients choose."""
    return (murmur2(key) & INT32_MASK) % partition_count


def next_partition(batch_counts: Sequence[int], random: Callable[[], float]) -> int:
    """Where records without a key go next, given the batches that wait in each partition (Kafka: BuiltInPartitioner).

    A partition is drawn the more often the fewer wait: with 0, 3 and 1 batches the weights are 4, 1 and 3. ``random()``
    gives 0 to 1 (exclusive).
    """
    most = max(batch_counts)
    weights = list(itertools.accumulate(most + 1 - count for count in batch_counts))
    return bisect_right(weights, int(random() * weights[-1]))


class _AskedOnce:
    """Chooses one partition for a record, though it is asked again where that opens a new batch.

    One that counts would leave out every second partition otherwise (KAFKA-9965).
    """

    def __init__(self, choose: Callable[[str, bytes | None, bytes | None, int], int]) -> None:
        self._choose = choose
        # Of this thread, which asks again at once: topic and partition.
        self._local = threading.local()

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        chosen: tuple[str, int] | None = getattr(self._local, "chosen", None)
        if chosen is not None:
            self._local.chosen = None
            if chosen[0] == topic and chosen[1] < partition_count:
                return chosen[1]
        return self._choose(topic, key, value, partition_count)

    def on_new_batch(self, topic: str, partition_count: int, previous_partition: int) -> None:
        self._local.chosen = (topic, previous_partition)


class RoundRobinPartitioner(_AskedOnce):
    """Each record of a topic to the next partition, whatever its key. Thread-safe."""

    def __init__(self) -> None:
        super().__init__(self._next)
        self._counters: dict[str, Iterator[int]] = {}

    def _next(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        counter = self._counters.get(topic)
        if counter is None:
            # One step, so that two threads get one counter.
            counter = self._counters.setdefault(topic, itertools.count())
        return next(counter) % partition_count


def partitioner_of(setting: Any) -> Partitioner | None:
    """What the setting ``partitioner`` stands for; None for the built-in way, which is compiled into ``send``."""
    if setting == "sticky":
        return None
    if setting == "round_robin":
        return RoundRobinPartitioner()
    if hasattr(setting, "on_new_batch"):
        partitioner: Partitioner = setting
        return partitioner
    return _AskedOnce(getattr(setting, "partition", setting))
