"""A producer over more partitions than its memory has full batches for: it waits for memory as little as with few."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import kstore
from kstore.producer.accumulator import MANY_QUEUES_MIN, PEAK_SECONDS, SHARE_BYTES_MIN
from tests.support.lives.producer_helpers import Gathering

VALUE = b"x" * 100
MEMORY = 16 << 20
# 64 KiB for each of them would be more than twice the memory.
MANY = 600


def sent_round_robin(gathering: Gathering, partitions: int, rounds: int) -> int:
    """Sends ``rounds`` records to each of the partitions, and takes all batches; returns how many there were."""
    before = gathering.accumulator.opened_count
    for _ in range(rounds):
        for partition in range(partitions):
            gathering.append(VALUE, partition)
    gathering.clock.advance(60_000)
    for partition in range(partitions):
        for batch in gathering.take(partition, 1 << 30):
            batch.succeed(0)
            gathering.accumulator.release(batch)
        gathering.accumulator.active.pop(gathering.queue(partition), None)  # as the sender does
    return gathering.accumulator.opened_count - before


def test_each_of_many_queues_fills_its_batch_before_the_memory_is_used_up() -> None:
    gathering = Gathering(partitions=MANY, buffer_memory=MEMORY, linger_ms=60_000)
    sent_round_robin(gathering, MANY, 1)  # it learns how many there are
    assert sent_round_robin(gathering, MANY, 20) == MANY
    assert gathering.pool.available == MEMORY


@pytest.mark.parametrize("partitions", [1, MANY_QUEUES_MIN])
def test_batches_of_few_queues_have_their_full_size(partitions: int) -> None:
    gathering = Gathering(partitions=partitions, buffer_memory=64 << 20, linger_ms=60_000)
    for _ in range(2):
        assert sent_round_robin(gathering, partitions, 400) == partitions


def test_a_batch_is_never_smaller_than_its_record_or_the_least_share() -> None:
    gathering = Gathering(partitions=MANY, buffer_memory=MEMORY, linger_ms=60_000)
    sent_round_robin(gathering, MANY, 1)
    gathering.append(b"y" * 50_000, 0)
    available = gathering.pool.available
    assert MEMORY - available >= 50_000
    gathering.append(VALUE, 1)
    assert SHARE_BYTES_MIN <= available - gathering.pool.available <= MEMORY // MANY


def test_batches_grow_again_when_there_were_few_queues_for_a_while() -> None:
    gathering = Gathering(partitions=MANY, buffer_memory=MEMORY, linger_ms=60_000)
    sent_round_robin(gathering, MANY, 1)
    small = sent_round_robin(gathering, 1, 700)
    gathering.clock.advance(int(PEAK_SECONDS * 1000) + 1)
    assert sent_round_robin(gathering, 1, 700) == 2 < small


def test_two_threads_that_wait_for_memory_for_more_queues_than_pieces_deliver_all(tmp_path: Path) -> None:
    partitions, count = 300, 3000
    with kstore.open(tmp_path, durability="os", background=False) as store:
        store.create_topic("orders", partitions)
        with store.producer(buffer_memory=512 * 1024, linger_ms=60_000) as producer:

            def send(first: int) -> None:
                for number in range(count):
                    producer.send("orders", VALUE, partition=(first + number) % partitions)

            threads = [threading.Thread(target=send, args=(first,)) for first in (0, 150)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        ends = [store.log("orders", number).end_offset for number in range(partitions)]
    assert ends == [2 * count // partitions] * partitions
