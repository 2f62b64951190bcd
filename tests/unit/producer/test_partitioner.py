"""Where records go: by key, to less busy partitions, in turn, or as the user says."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from kstore.producer.config import ProducerConfig
from kstore.producer.partitioner import (
    Partitioner,
    RoundRobinPartitioner,
    next_partition,
    partition_for_key,
    partitioner_of,
)
from kstore.record._codec import murmur2


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_a_key_goes_where_kafkas_clients_send_it(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed
    for count in (1, 2, 3, 7, 100):
        # Not the absolute value, which would give another partition for -973932308.
        assert partition_for_key(key, count) == (hashed & 0x7FFFFFFF) % count


def drawn(batch_counts: Sequence[int]) -> list[int]:
    """The partition for every eighth of the range of ``random``, with eight weights in total."""
    return [next_partition(batch_counts, lambda eighth=eighth: eighth / 8) for eighth in range(8)]  # type: ignore[misc]


def test_a_partition_is_drawn_the_more_often_the_fewer_batches_wait() -> None:
    assert drawn([0, 3, 1]) == [0, 0, 0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("batch_counts", [[0, 0], [7, 7], [2, 2, 2, 2]])
def test_partitions_that_are_equally_busy_are_drawn_equally(batch_counts: list[int]) -> None:
    times = 8 // len(batch_counts)
    assert Counter(drawn(batch_counts)) == dict.fromkeys(range(len(batch_counts)), times)


@pytest.mark.parametrize("batch_counts", [[0], [5]])
def test_one_partition_is_always_drawn(batch_counts: list[int]) -> None:
    assert set(drawn(batch_counts)) == {0}


def test_a_topic_s_records_spread_as_the_queues_say(seed: int) -> None:
    draw = random.Random(seed)
    batch_counts = [0, 3, 1, 10, 0]
    weights = [11, 8, 10, 1, 11]
    count = 41_000
    found = Counter(next_partition(batch_counts, draw.random) for _ in range(count))
    for partition, weight in enumerate(weights):
        assert found[partition] == pytest.approx(count * weight / sum(weights), rel=0.15)


# --- in turn ----------------------------------------------------------------------------------------------------------


def test_round_robin_goes_round_each_topic_whatever_the_key() -> None:
    partitioner = RoundRobinPartitioner()
    found = [
        (partitioner.partition("one", key, b"v", 3), partitioner.partition("two", None, b"v", 2))
        for key in (None, b"a", b"a", None, b"b", b"")
    ]
    assert found == [(0, 0), (1, 1), (2, 0), (0, 1), (1, 0), (2, 1)]


def test_round_robin_gives_every_partition_as_many() -> None:
    partitioner = RoundRobinPartitioner()
    found = Counter(partitioner.partition("t", str(number).encode(), None, 5) for number in range(500))
    assert found == dict.fromkeys(range(5), 100)


def test_round_robin_is_not_asked_twice_for_a_record_that_opens_a_batch() -> None:
    """It would skip every second partition (KAFKA-9965)."""
    assert not hasattr(partitioner_of("round_robin"), "on_new_batch")


def test_round_robin_counts_right_in_many_threads() -> None:
    partitioner = RoundRobinPartitioner()
    found: list[int] = []

    def run() -> None:
        found.extend([partitioner.partition("t", None, None, 4) for _ in range(1000)])

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(found) == dict.fromkeys(range(4), 1000)


# --- settings ---------------------------------------------------------------------------------------------------------


class ByLength:
    """The user's own partitioner."""

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        return len(value or b"") % partition_count

    def on_new_batch(self, topic: str, partition_count: int, previous_partition: int) -> None:
        pass


def test_the_setting_selects_the_partitioner() -> None:
    own = ByLength()
    assert partitioner_of(ProducerConfig().partitioner) is None
    assert isinstance(partitioner_of(ProducerConfig(partitioner="round_robin").partitioner), RoundRobinPartitioner)
    assert partitioner_of(ProducerConfig(partitioner=own).partitioner) is own


def test_a_plain_function_may_choose() -> None:
    asked: list[tuple[object, ...]] = []

    def last(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        asked.append((topic, key, value, partition_count))
        return partition_count - 1

    partitioner: Partitioner | None = partitioner_of(ProducerConfig(partitioner=last).partitioner)
    assert partitioner is not None
    assert partitioner.partition("t", b"k", None, 4) == 3
    assert asked == [("t", b"k", None, 4)]
