"""Which partition a record goes to that names none: by its key, in turn, or as somebody else decides."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from kstore.record._codec import murmur2

__all__ = ["Partitioner", "RoundRobinPartitioner", "next_partition", "partition_for_key", "partitioner_of"]

# A sign bit is taken off like this, as Java does it; an absolute value would give other partitions.
INT32_MASK = 0x7FFF_FFFF


class Partitioner(Protocol):
    """What chooses partitions in place of the built-in way. May be asked by several threads at once.

    It may have ``on_new_batch(topic, partition_count, previous_partition)`` too: that is called when the record would
    open a new batch in the partition just chosen, and then it is asked once more. And ``close()``.
    """

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """0 to ``partition_count`` (exclusive), for the key and value as serialized."""
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


class RoundRobinPartitioner:
    """Each record of a topic to the next partition, whatever its key. Thread-safe.

    It has no ``on_new_batch``: asked twice for one record it would leave out every second partition (KAFKA-9965).
    """

    def __init__(self) -> None:
        self._counters: dict[str, Iterator[int]] = {}

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        counter = self._counters.get(topic)
        if counter is None:
            # One step, so that two threads get one counter.
            counter = self._counters.setdefault(topic, itertools.count())
        return next(counter) % partition_count


class _FunctionPartitioner:
    """A function in a partitioner's place."""

    def __init__(self, function: Callable[[str, bytes | None, bytes | None, int], int]) -> None:
        self._function = function

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        return self._function(topic, key, value, partition_count)


def partitioner_of(setting: Any) -> Partitioner | None:
    """What the setting ``partitioner`` stands for; None for the built-in way, which is compiled into ``send``."""
    if setting == "sticky":
        return None
    if setting == "round_robin":
        return RoundRobinPartitioner()
    partitioner: Partitioner = setting if hasattr(setting, "partition") else _FunctionPartitioner(setting)
    return partitioner
