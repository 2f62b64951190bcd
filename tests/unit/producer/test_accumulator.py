"""Where records wait in batches: when they are ready, their order, their memory (Kafka's test)."""

from __future__ import annotations

import itertools
import random
import threading

import pytest

from kstore.errors import BufferExhaustedError, ClosedError, RecordTooLargeError
from kstore.producer.accumulator import MARGIN, CompressionRatios, retry_delay, size_upper_bound
from kstore.producer.config import ProducerConfig
from kstore.record._codec import BatchBuffer
from kstore.record.batch import BATCH_HEADER_BYTES
from tests.support.lives.producer_helpers import Gathering, values_of

VALUE = b"v" * 100


def fill(gathering: Gathering, partition: int = 0) -> int:
    """Appends until a batch is closed; returns how many records that took."""
    count = 0
    while not gathering.queue(partition).closed:
        gathering.append(VALUE, partition)
        count += 1
    return count


# --- ready ------------------------------------------------------------------------------------------------------------


def test_a_full_batch_is_ready_and_holds_what_was_appended_in_order() -> None:
    gathering = Gathering(batch_size=1024, linger_ms=60_000)
    values = [b"%d" % number for number in range(200)]
    for value in values:
        gathering.append(value)
    assert gathering.ready() == [0]
    batches = [batch for _ in range(10) for batch in gathering.take()]
    gathered = [value for batch in batches for value in values_of(batch)]
    assert gathered == values[: len(gathered)]
    assert all(batch.size <= 1024 for batch in batches)


def test_a_record_larger_than_a_batch_gets_one_of_its_own() -> None:
    gathering = Gathering(batch_size=512, linger_ms=60_000)
    gathering.append(b"small")
    gathering.append(b"x" * 4096)
    gathering.append(b"small again")
    batches = gathering.take() + gathering.accumulator.take(gathering.queue(), 1 << 20, gathering.now(), all_now=True)
    assert [values_of(batch) for batch in batches] == [[b"small"], [b"x" * 4096], [b"small again"]]
    assert batches[1].pool_size >= 4096


def test_a_batch_is_due_when_it_has_lingered() -> None:
    gathering = Gathering(linger_ms=10)
    gathering.append(VALUE)
    assert gathering.ready() == []
    assert gathering.accumulator.ready_in(gathering.queue(), gathering.now()) == pytest.approx(0.010)
    gathering.clock.advance(9)
    assert gathering.ready() == []
    assert gathering.take() == []
    gathering.clock.advance(1)
    assert gathering.ready() == [0]
    assert [values_of(batch) for batch in gathering.take()] == [[VALUE]]


def test_without_linger_a_batch_is_due_at_once() -> None:
    gathering = Gathering(linger_ms=0)
    gathering.append(VALUE)
    assert gathering.ready() == [0]


def test_everything_is_ready_while_a_thread_waits_for_memory() -> None:
    gathering = Gathering(linger_ms=60_000, buffer_memory=16384, batch_size=16384, partitions=2)
    gathering.append(VALUE, 0)
    waiter = threading.Thread(target=lambda: gathering.append(VALUE, 1, timeout=300))
    waiter.start()
    while not gathering.pool.waiting_count:
        pass
    assert gathering.ready() == [0]
    (batch,) = gathering.take(0)
    gathering.pool.deallocate(batch.buffer, batch.pool_size)
    waiter.join(300)
    assert not waiter.is_alive()


def test_everything_is_ready_during_a_flush_and_only_then() -> None:
    gathering = Gathering(linger_ms=60_000, partitions=3)
    for partition in range(3):
        gathering.append(VALUE, partition)
    assert gathering.ready() == []
    waited_for = gathering.accumulator.begin_hurry("somebody")
    assert gathering.ready() == [0, 1, 2]
    assert len(waited_for) == 3
    gathering.accumulator.end_hurry("somebody")
    assert not gathering.accumulator.hurries
    assert gathering.ready() == []


def test_a_batch_that_a_thread_waits_for_is_ready_and_those_after_it_are_not() -> None:
    gathering = Gathering(linger_ms=60_000)
    gathering.append(b"waited for")
    gathering.queue().is_urgent = True
    assert gathering.ready() == [0]
    assert [values_of(batch) for batch in gathering.take()] == [[b"waited for"]]
    gathering.append(b"later")
    assert gathering.ready() == []


def test_a_closed_accumulator_gives_all_and_takes_nothing() -> None:
    gathering = Gathering(linger_ms=60_000)
    gathering.append(VALUE)
    gathering.accumulator.is_closed = True
    assert gathering.ready() == [0]
    with pytest.raises(ClosedError):
        gathering.append(VALUE)


def test_what_is_tried_again_waits_for_its_time_and_then_comes_first() -> None:
    gathering = Gathering(linger_ms=0)
    gathering.append(b"first")
    taken = gathering.take()
    gathering.queue().retry_at = gathering.now() + 0.1
    gathering.accumulator.put_back(gathering.queue(), taken)
    gathering.append(b"second")
    assert gathering.ready() == []
    assert gathering.accumulator.ready_in(gathering.queue(), gathering.now()) == pytest.approx(0.1)
    gathering.clock.advance(100)
    assert [values_of(batch) for batch in gathering.take()] == [[b"first"], [b"second"]]


# --- take -------------------------------------------------------------------------------------------------------------


def test_no_more_is_taken_than_asked_for_but_one_batch_always() -> None:
    gathering = Gathering(batch_size=1024, linger_ms=60_000)
    for _ in range(40):
        gathering.append(VALUE)
    assert len(gathering.queue().closed) > 3
    assert len(gathering.take(size_max=1)) == 1
    assert len(gathering.take(size_max=2048)) == 2


def test_partitions_with_batches_are_served_in_the_order_in_which_they_got_some() -> None:
    gathering = Gathering(partitions=4, linger_ms=0)
    for partition in (2, 0, 3, 2):
        gathering.append(VALUE, partition)
    assert [queue.partition for queue in gathering.accumulator.active] == [2, 0, 3]
    for queue in list(gathering.accumulator.active):
        gathering.take(queue.partition)
        gathering.accumulator.rest(queue)
    assert not gathering.accumulator.active
    gathering.append(VALUE, 0)
    assert [queue.partition for queue in gathering.accumulator.active] == [0]


def test_batches_that_are_too_old_are_taken_from_the_front_alone() -> None:
    gathering = Gathering(batch_size=512, linger_ms=60_000, delivery_timeout_ms=60_000)
    fill(gathering)
    gathering.clock.advance(30_000)
    old = gathering.queue().batch_count
    gathering.append(b"x" * 500)
    gathering.append(VALUE)
    assert gathering.accumulator.expires_in(gathering.queue(), gathering.now()) == pytest.approx(30)
    gathering.clock.advance(30_000)
    expired = gathering.accumulator.take_expired(gathering.queue(), gathering.now())
    assert len(expired) == old
    assert gathering.queue().batch_count == 2


def test_an_open_batch_expires_too() -> None:
    gathering = Gathering(linger_ms=60_000, delivery_timeout_ms=60_000)
    gathering.append(VALUE)
    gathering.clock.advance(60_000)
    assert [values_of(batch) for batch in gathering.accumulator.take_expired(gathering.queue(), gathering.now())] == [
        [VALUE]
    ]


def test_the_longest_delivery_timeout_is_no_overflow() -> None:
    gathering = Gathering(delivery_timeout_ms=2**31 - 1)
    gathering.append(VALUE)
    assert gathering.accumulator.expires_in(gathering.queue(), gathering.now()) == pytest.approx((2**31 - 1) / 1000)


# --- append -----------------------------------------------------------------------------------------------------------


def test_a_batch_that_another_thread_opened_meanwhile_is_used_and_the_spare_memory_given_back() -> None:
    gathering = Gathering(linger_ms=60_000, buffer_memory=32768)
    allocate = gathering.pool.allocate

    def allocate_late(size: int, timeout_seconds: float) -> BatchBuffer:
        buffer = allocate(size, timeout_seconds)
        gathering.pool.allocate = allocate  # type: ignore[method-assign]
        other = threading.Thread(target=gathering.append, args=(b"the other's",))
        other.start()
        other.join()
        return buffer

    gathering.pool.allocate = allocate_late  # type: ignore[method-assign]
    gathering.append(b"mine")
    gathering.clock.advance(60_000)
    (batch,) = gathering.take()
    assert values_of(batch) == [b"the other's", b"mine"]
    assert gathering.pool.available == 32768 - 16384


def test_a_large_record_that_waits_for_memory_does_not_stop_a_small_one() -> None:
    gathering = Gathering(linger_ms=60_000, buffer_memory=32768)
    gathering.append(b"opens a batch")
    waiter = threading.Thread(target=lambda: gathering.append(b"x" * 20_000, timeout=300))
    waiter.start()
    while not gathering.pool.waiting_count:
        pass
    # The large record closed the batch: the next small one also needs memory, in its turn.
    assert gathering.queue().lock.acquire(timeout=300)
    gathering.queue().lock.release()
    (batch,) = gathering.take()
    gathering.pool.deallocate(batch.buffer, batch.pool_size)
    waiter.join(300)
    assert not waiter.is_alive()


def test_without_memory_an_append_fails_and_leaves_nothing_behind() -> None:
    gathering = Gathering(linger_ms=60_000, buffer_memory=16384, partitions=2)
    gathering.append(VALUE, 0)
    with pytest.raises(BufferExhaustedError, match="buffer_memory"):
        gathering.append(VALUE, 1)
    assert gathering.queue(1).batch_count == 0
    with pytest.raises(RecordTooLargeError):
        gathering.append(b"x" * 20_000, 1)


def test_an_append_that_may_not_open_a_batch_says_so() -> None:
    gathering = Gathering(linger_ms=60_000)
    accumulator = gathering.accumulator
    asked = (gathering.topic, 0, VALUE, None, (), 0, None, 0.0)
    assert accumulator.append(*asked, may_open=False) is None
    gathering.append(VALUE)
    assert accumulator.append(*asked, may_open=False) is not None


def test_the_upper_bound_of_a_record_holds(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        value, key = (rng.choice([None, rng.randbytes(rng.choice([0, 5, 63, 64, 9000]))]) for _ in range(2))
        headers = tuple(
            (chr(rng.randrange(32, 0x4E00)) * rng.randrange(20), rng.choice([None, b"x"])) for _ in range(3)
        )
        gathering = Gathering(batch_size=1, buffer_memory=1 << 20)
        done = gathering.accumulator.append(gathering.topic, 0, value, key, headers, 2**62, None, 0.0)
        assert done is not None
        (batch,) = gathering.queue().closed
        assert batch.size <= size_upper_bound(value, key, headers)


# --- where records without a key go -----------------------------------------------------------------------------------


def test_records_without_a_key_stay_in_a_partition_for_a_batch_and_then_go_to_another() -> None:
    gathering = Gathering(partitions=3, batch_size=1024, linger_ms=60_000)
    partitions = [gathering.append(VALUE, None).partition for _ in range(300)]
    runs = [1]
    for before, after in itertools.pairwise(partitions):
        if before == after:
            runs[-1] += 1
        else:
            runs.append(1)
    assert set(partitions) == {0, 1, 2}
    # 1,024 bytes hold nine records of 100 bytes, and a run may go on in the same partition by chance.
    assert all(run % 8 == 0 or run % 9 == 0 for run in runs[1:-1])


def test_batches_that_lingered_do_not_make_a_partition_lose_its_turn() -> None:
    gathering = Gathering(partitions=2, batch_size=1024, linger_ms=5)
    first = gathering.append(VALUE, None).partition
    gathering.clock.advance(5)
    gathering.take(first)
    assert gathering.append(VALUE, None).partition == first


def test_where_many_batches_wait_fewer_records_go() -> None:
    gathering = Gathering(partitions=2, batch_size=256, linger_ms=60_000, buffer_memory=16 << 20)
    for _ in range(400):
        gathering.append(VALUE, 0)
    chosen = []
    for _ in range(40):
        gathering.topic.sticky_bytes = 1 << 20
        gathering.accumulator._switches(gathering.topic)
        chosen.append(gathering.topic.sticky_partition)
    assert chosen.count(1) > 30


# --- compressed -------------------------------------------------------------------------------------------------------


def test_the_estimate_follows_what_was_seen_fast_upwards_and_slowly_downwards() -> None:
    ratios = CompressionRatios()
    assert ratios.estimate("t", "lz4") == pytest.approx(MARGIN)
    ratios.observe("t", "lz4", 0.5)
    assert ratios.estimate("t", "lz4") == pytest.approx(0.995 * MARGIN)
    for _ in range(200):
        ratios.observe("t", "lz4", 0.5)
    assert ratios.estimate("t", "lz4") == pytest.approx(0.5 * MARGIN)
    ratios.observe("t", "lz4", 0.52)
    assert ratios.estimate("t", "lz4") == pytest.approx(0.55 * MARGIN)
    ratios.observe("t", "lz4", 0.9)
    assert ratios.estimate("t", "lz4") == pytest.approx(0.9 * MARGIN)
    assert ratios.estimate("t", "zstd") == pytest.approx(MARGIN)
    ratios.reset("t", "lz4", 0.7)
    assert ratios.estimate("t", "lz4") == pytest.approx(MARGIN)


def test_a_batch_to_be_compressed_takes_as_much_as_comes_out_near_the_batch_size() -> None:
    gathering = Gathering(codec="lz4", batch_size=1024, linger_ms=60_000)
    for _ in range(400):
        gathering.accumulator.ratios.observe("orders", "lz4", 0.25)
    gathering.append(VALUE)
    batch = gathering.queue().open_batch
    assert batch is not None
    assert batch.pool_size == BATCH_HEADER_BYTES + int((1024 - BATCH_HEADER_BYTES) / (0.25 * MARGIN))


# --- tries ------------------------------------------------------------------------------------------------------------


def test_the_time_to_the_next_try_doubles_up_to_a_limit_with_jitter() -> None:
    config = ProducerConfig(retry_backoff_ms=100, retry_backoff_max_ms=1000)
    assert [retry_delay(config, count, lambda low, high: 1.0) for count in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]
    for count in range(3):
        delays = [retry_delay(config, count, random.uniform) for _ in range(100)]
        assert min(delays) >= 0.08 * 2**count
        assert max(delays) <= 0.12 * 2**count
    assert retry_delay(config, 10**6, random.uniform) == 1.0
    assert retry_delay(ProducerConfig(retry_backoff_ms=500, retry_backoff_max_ms=50), 3, random.uniform) == 0.05


# --- many threads -----------------------------------------------------------------------------------------------------


def test_threads_that_append_while_others_take_lose_nothing(seed: int) -> None:
    """Kafka's testStressfulSituation: 5 threads, 2 partitions, memory for ten batches."""
    gathering = Gathering(partitions=2, batch_size=1024, linger_ms=60_000, buffer_memory=10 * 1024)
    per_thread, done = 2000, threading.Event()
    taken: dict[int, list[bytes | None]] = {0: [], 1: []}

    def drain() -> None:
        while not done.is_set() or any(queue.batch_count for queue in gathering.topic.queues):
            for partition in (0, 1):
                queue = gathering.queue(partition)
                with queue.drain_lock.attempt():
                    for batch in gathering.accumulator.take(queue, 4096, gathering.now(), all_now=done.is_set()):
                        taken[partition] += values_of(batch)
                        buffer, batch.buffer = batch.buffer, None
                        gathering.pool.deallocate(buffer, batch.pool_size)

    def send(thread: int) -> None:
        for number in range(per_thread):
            gathering.append(b"%d %d" % (thread, number), number % 2, timeout=60)

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(5)]
    drainer = threading.Thread(target=drain)
    for thread in (*threads, drainer):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    drainer.join()
    for partition in (0, 1):
        for number in range(5):
            mine = [value for value in taken[partition] if value is not None and value.startswith(b"%d " % number)]
            assert mine == [b"%d %d" % (number, at) for at in range(partition, per_thread, 2)]
    assert gathering.pool.available == 10 * 1024
