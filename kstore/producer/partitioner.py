"""Chooses the partition of a record that names none: by its key, in turn, or with a custom partitioner."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from kstore.record._codec import murmur2

# Java clears the sign bit this way; an absolute value would give other partitions.
INT32_MASK = 0x7FFF_FFFF


class Partitioner(Protocol):
    """Replaces the built-in choice of partitions. Several threads may call it at once.

    It may also have ``on_new_batch(topic, partition_count, previous_partition)``: that is called when the record would
    open a new batch in the chosen partition, and then ``partition`` is called once more. And ``close()``.
    """

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """0 to ``partition_count`` (exclusive), for the key and value as serialized."""
        ...


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key, the same one that Kafka's own clients choose."""
    return (murmur2(key) & INT32_MASK) % partition_count


def next_partition(batch_counts: Sequence[int], random: Callable[[], float]) -> int:
    """The next partition for records without keys, given the batches that wait in each (Kafka: BuiltInPartitioner).

    A partition with fewer waiting batches is likelier: with 0, 3 and 1 batches the weights are 4, 1 and 3. ``random()``
    gives 0 to 1 (exclusive).
    """
    most = max(batch_counts)
    weights = list(itertools.accumulate(most + 1 - count for count in batch_counts))
    return bisect_right(weights, int(random() * weights[-1]))


class RoundRobinPartitioner:
    """Sends each record of a topic to the next partition, whatever its key. Thread-safe.

    It has no ``on_new_batch``: two calls per record would skip every second partition (KAFKA-9965).
    """

    def __init__(self) -> None:
        self._counters: dict[str, Iterator[int]] = {}

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        counter = self._counters.get(topic)
        if counter is None:
            # One step, so that two threads cannot get the same counter.
            counter = self._counters.setdefault(topic, itertools.count())
        return next(counter) % partition_count


class _FunctionPartitioner:
    """Wraps a function as a partitioner."""

    def __init__(self, function: Callable[[str, bytes | None, bytes | None, int], int]) -> None:
        self._function = function

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        return self._function(topic, key, value, partition_count)


def partitioner_of(setting: Any) -> Partitioner | None:
    """The partitioner for the setting ``partitioner``; None for the built-in way, which is compiled into ``send``."""
    if setting == "sticky":
        return None
    if setting == "round_robin":
        return RoundRobinPartitioner()
    partitioner: Partitioner = setting if hasattr(setting, "partition") else _FunctionPartitioner(setting)
    return partitioner
