"""One batch of a producer: its result is set once, and the parts of a split have everything that it had."""

from __future__ import annotations

import errno
import math
import random
import signal
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kstore.config import LogConfig
from kstore.errors import ClosedError, InvalidRecordError, KstoreError, RecordError, TransactionAbortedError
from kstore.producer._accumulate import Deliveries, Delivery, Failures, ProducerBatch, seal_run
from kstore.producer.accumulator import BatchQueue, CompressionRatios, Topic
from kstore.producer.queue_writer import seal, split
from kstore.producer.records import RecordMetadata
from kstore.record._codec import BatchBuffer
from kstore.record.parse import parse_batch
from kstore.types import NO_TIMESTAMP
from tests.support.fakes.fake_fs import WRITES, Fault
from tests.support.harness.alarm import alarm
from tests.support.harness.selection import tries
from tests.support.lives.producer_helpers import TIME_MS, Unthreaded, records_of, unthreaded

needs_refusals = pytest.mark.skipif(find_spec("_testcapi") is None, reason="no allocation is refused")
SIZE_MAX = 4096
# Only a hang takes longer, even on a busy machine.
SECONDS_MAX = 300.0


def batch_of(*values: bytes, failures: Failures | None = None, **fields: Any) -> tuple[ProducerBatch, list[Delivery]]:
    batch = ProducerBatch("orders", 0, BatchBuffer(), SIZE_MAX, 0.0, failures)
    deliveries = [batch.append(value, timestamp=TIME_MS, **fields) for value in values]
    assert None not in deliveries
    return batch, deliveries  # type: ignore[return-value]


def topic_of(codec: str = "none", **settings: Any) -> Topic:
    config = LogConfig.from_settings(**settings)
    return Topic("orders", [BatchQueue("orders", 0)], config, codec, None, ignores_keys=False)


def sealed(batch: ProducerBatch, topic: Topic) -> None:
    batch.close()
    seal(batch, topic, CompressionRatios(), NO_TIMESTAMP)


# --- its result -------------------------------------------------------------------------------------------------------


def test_a_closed_batch_takes_no_more() -> None:
    batch, (first,) = batch_of(b"a")
    batch.close()
    batch.close()
    assert batch.append(b"b") is None
    assert [record.value for record in records_of(batch)] == [b"a"]
    assert not first.done()


def test_a_batch_that_failed_cannot_succeed_and_keeps_its_first_error() -> None:
    """Kafka: testBatchAbort, testBatchAbortTwice, testBatchCannotCompleteTwice."""
    batch, (first, second) = batch_of(b"a", b"b")
    batch.close()
    abort, late = TransactionAbortedError("aborted"), ClosedError("late")
    assert batch.fail(abort)
    assert not batch.fail(late)
    assert not batch.succeed(500)
    batch.release()
    batch.release()
    for delivery in (first, second):
        assert delivery.exception(0) is abort
        assert delivery.offset == -1


def test_a_batch_that_succeeded_cannot_fail() -> None:
    batch, deliveries = batch_of(b"a", b"b")
    assert batch.succeed(500)
    assert not batch.succeed(700)
    assert not batch.fail(ClosedError("late"))
    assert not batch.split([])
    batch.release()
    assert [delivery.result(0).offset for delivery in deliveries] == [500, 501]


def test_the_result_is_known_before_the_callbacks_and_waiters_wake_after_them() -> None:
    batch, (delivery,) = batch_of(b"a")
    released: list[bool] = []
    waiter = threading.Thread(target=lambda: released.append(delivery.result(SECONDS_MAX).offset == 7))
    waiter.start()
    batch.succeed(7)
    assert delivery.offset == 7
    assert not delivery.done()
    assert released == []
    batch.release()
    waiter.join(SECONDS_MAX)
    assert released == [True]


def test_one_bad_record_has_its_own_error_and_the_others_one_that_says_so() -> None:
    batch, deliveries = batch_of(b"a", b"bad", b"c")
    common = InvalidRecordError("record 1 of 3 is invalid", [RecordError(1, "no key")])
    own = InvalidRecordError("no key", [RecordError(1, "no key")])
    batch.fail(common, {1: own})
    batch.release()
    assert [delivery.exception(0) for delivery in deliveries] == [common, own, common]


def test_an_error_that_is_raised_for_each_record_gathers_no_frames() -> None:
    batch, deliveries = batch_of(*[b"v"] * 50)
    error = KstoreError("for all of them")
    batch.fail(error)
    batch.release()
    for delivery in deliveries:
        with pytest.raises(KstoreError):
            delivery.result(0)
    depth, trace = 0, error.__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 5


def test_failures_count_the_records_without_a_callback() -> None:
    failures = Failures()
    batch, (first, *_) = batch_of(b"a", b"b", b"c", failures=failures)
    first.add_callback(lambda metadata, error: None)
    batch.fail(ClosedError("closed"))
    assert failures.take() == (2, batch.error)


# --- memory ---------------------------------------------------------------------------------------------------------

# More allocations than a call makes.
ALLOCATIONS_MAX = 30


@needs_refusals
def test_a_record_whose_callback_finds_no_memory_is_not_sent(tried: Callable[[str, int], None]) -> None:
    from tests.crash.refusals import refused

    faults = 0
    # The list of callbacks grows at some of these.
    for count in range(20):
        for number in range(ALLOCATIONS_MAX):
            batch, _ = batch_of(*[b"v"] * count, on_delivery=print)
            error = refused(lambda batch=batch: batch.append(b"w", on_delivery=print), number)  # type: ignore[misc]
            assert error is None or isinstance(error, MemoryError)
            expected = count + (error is None)
            assert (batch.record_count, len(batch.callbacks)) == (expected, expected)
            faults += error is not None
    assert faults >= 4  # the list grows as often
    tried("faults", faults)


@needs_refusals
def test_a_split_that_finds_no_memory_leaves_the_batch_as_it_was(tried: Callable[[str, int], None]) -> None:
    from tests.crash.refusals import refused

    faults = 0
    for number in range(ALLOCATIONS_MAX):
        batch, deliveries = batch_of(*[b"v"] * 20, on_delivery=print)
        children = [(first, batch_of(*[b"v"] * 10)[0]) for first in (0, 10)]
        error = refused(lambda batch=batch, children=children: batch.split(children), number)  # type: ignore[misc]
        if error is not None:
            assert isinstance(error, MemoryError)
            assert (batch.is_done, batch.children, len(batch.callbacks)) == (False, None, 20)
            assert batch.split(children)
            faults += 1
        assert [[pair[0] for pair in child.callbacks] for _, child in children] == [deliveries[:10], deliveries[10:]]
    assert faults >= 2
    tried("faults", faults)


# --- split ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "snappy", "zstd"])
def test_what_a_batch_was_split_into_has_its_records_headers_times_and_codec(codec: str) -> None:
    """Kafka: testSplitPreservesHeaders, testSplitPreservesMagicAndCompressionType."""
    topic = topic_of(codec)
    values = [b"%03d" % number * 100 for number in range(10)]
    batch, _ = batch_of(*values, key=b"k", headers=[("h", b"1"), ("n", None)])
    batch.is_transactional = True
    sealed(batch, topic)
    children = split(batch, 1000)
    assert len(children) > 3
    records = []
    for child in children:
        assert child.is_transactional
        assert child.created_at == batch.created_at
        sealed(child, topic)
        assert child.buffer is not None
        parsed = parse_batch(child.buffer, 0)
        assert (parsed.magic, parsed.codec) == (2, codec)
        records += list(parsed.records())
    assert [record.value for record in records] == values
    assert {(record.key, record.headers, record.timestamp) for record in records} == {
        (b"k", (("h", b"1"), ("n", None)), TIME_MS)
    }


def test_deliveries_and_callbacks_follow_the_records_through_splits_of_splits() -> None:
    topic, told = topic_of(), []
    batch, deliveries = batch_of(*[b"%03d" % number * 30 for number in range(20)])
    for delivery in deliveries:
        delivery.add_callback(lambda metadata, error: told.append(metadata.offset))
    sealed(batch, topic)
    leaves = []
    for child in split(batch, 1000):
        sealed(child, topic)
        leaves += split(child, 300)
    batch.release()
    offset = 100
    for leaf in leaves:
        leaf.succeed(offset)
        offset += leaf.record_count
        for delivery, callback in leaf.callbacks:
            delivery.call(callback)
        leaf.release()
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(100, 120))
    assert told == list(range(100, 120))


def test_a_wait_for_a_record_covers_the_parts_of_its_split_batch() -> None:
    """Kafka: FutureRecordMetadataTest, testFutureGetWithSeconds and its chained future."""
    topic = topic_of()
    batch, deliveries = batch_of(*[b"%03d" % number * 30 for number in range(4)])
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(deliveries[3].result(SECONDS_MAX).offset))
    waiter.start()
    sealed(batch, topic)
    *others, last = split(batch, 200)
    batch.release()
    for number, child in enumerate(others):
        child.succeed(number)
        child.release()
    with pytest.raises(TimeoutError):
        deliveries[3].result(0.01)
    assert got == []
    last.succeed(50)
    last.release()
    waiter.join(SECONDS_MAX)
    assert got == [50 + last.record_count - 1]


def test_a_callback_added_to_a_record_of_a_split_batch_is_called_once() -> None:
    topic, told = topic_of(), []
    batch, (delivery,) = batch_of(b"v")
    sealed(batch, topic)
    (child,) = split(batch, 1000)

    def tell(metadata: RecordMetadata, error: Exception | None) -> None:
        told.append(metadata.offset)

    delivery.add_callback(tell)
    child.succeed(3)
    ((added, callback),) = child.callbacks
    added.call(callback)
    child.release()
    delivery.add_callback(tell)
    assert told == [3, 3]


# --- seal -------------------------------------------------------------------------------------------------------------


def test_a_batch_is_compressed_once_however_often_it_is_written() -> None:
    topic = topic_of("lz4")
    batch, _ = batch_of(b"a" * 2000, b"b" * 500)
    sealed(batch, topic)
    assert batch.buffer is not None
    once = bytes(batch.buffer)
    sealed(batch, topic)
    assert bytes(batch.buffer) == once
    assert [record.value for record in parse_batch(batch.buffer, 0).records()] == [b"a" * 2000, b"b" * 500]


def test_what_does_not_get_smaller_is_not_compressed() -> None:
    topic = topic_of("zstd")
    batch, _ = batch_of(b"x")
    sealed(batch, topic)
    assert batch.buffer is not None
    assert parse_batch(batch.buffer, 0).codec == "none"


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Unthreaded]:
    with unthreaded(tmp_path / "data") as made:
        yield made


def test_an_error_keeps_nothing_of_what_was_to_be_written(one: Unthreaded) -> None:
    """A buffer cannot grow while a view of it is alive, and the next batch in it may have to."""
    one.store.log("orders")
    one.fs.faults.append(Fault(1, errno.EIO, kinds=WRITES, suffix=".log"))
    failed = one.producer.send("orders", b"v")
    one.linger()
    assert failed.exception(0) is not None
    (buffer,) = one.producer._outbox.pool.account.free
    buffer.extend(b"x" * (buffer.capacity + 1))


# --- compression ------------------------------------------------------------------------------------------------------


def test_few_batches_are_split_whatever_mix_of_good_and_bad_there_is(tmp_path: Path, seed: int) -> None:
    """Kafka: testSplitFrequency: less than a tenth, for 99 mixes of values that compress well and badly."""
    with unthreaded(
        tmp_path / "data", topic={"max_message_bytes": 1024}, batch_size=1024, compression_type="gzip", linger_ms=60_000
    ) as one:
        for good in range(1, 100, tries(1, quick=11)):
            generator = random.Random(f"{seed} {good}")
            one.producer._outbox.accumulator.ratios.reset("orders", "gzip", 1.0)
            before, splits = one.producer._counters.batches, one.producer._counters.splits
            for _ in range(400):
                size = generator.randrange(1, 300)
                is_good = generator.randrange(100) < good
                one.producer.send("orders", generator.randbytes(1) * size if is_good else generator.randbytes(size))
                one.round()
            one.producer.flush()
            batch_count = one.producer._counters.batches - before
            assert (one.producer._counters.splits - splits) / batch_count < 0.1, f"{good} in a hundred are good"


def test_a_split_that_is_short_of_memory_at_its_end_is_completed(one: Unthreaded) -> None:
    class Short(set[ProducerBatch]):
        refused = False

        def discard(self, batch: object, /) -> None:
            if not self.refused:
                self.refused = True
                raise MemoryError
            super().discard(batch)

    accumulator = one.producer._outbox.accumulator
    deliveries = [one.producer.send("orders", b"v" * 300) for _ in range(3)]
    one.store.alter_topic("orders", max_message_bytes=500)
    accumulator.incomplete = short = Short(accumulator.incomplete)
    for _ in range(9):
        one.linger()
    assert short.refused
    assert not short
    assert [delivery.result(0).offset for delivery in deliveries] == [0, 1, 2]


# --- sealed together --------------------------------------------------------------------------------------------------


def closed(*sizes: int) -> list[ProducerBatch]:
    batches = []
    for size in sizes:
        batch = batch_of(*[b"v" * (number % 90) for number in range(size)])[0]
        batch.close()
        batches.append(batch)
    return batches


def queue_at(sequence: int) -> BatchQueue:
    queue = BatchQueue("orders", 0)
    queue.next_sequence = sequence
    return queue


@pytest.mark.parametrize("producer", [(-1, -1), (7, 3)])
def test_batches_sealed_together_are_those_sealed_one_by_one(producer: tuple[int, int]) -> None:
    together, apart = closed(1, 20, 3), closed(1, 20, 3)
    queue = queue_at(2**31 - 5)
    sealed = seal_run(together, queue, *producer, SIZE_MAX)
    assert sealed is not None
    encoded, buffers, is_run = sealed
    assert is_run is (producer[0] >= 0)
    sequence = 2**31 - 5
    for batch in apart:
        if is_run:
            batch.producer_id, batch.producer_epoch, batch.base_sequence = *producer, sequence
        seal(batch, topic_of(), CompressionRatios(), NO_TIMESTAMP)
        sequence = (sequence + batch.record_count) % 2**31
    assert encoded == [batch.encoded for batch in apart]
    assert [bytes(buffer) for buffer in buffers] == [bytes(batch.buffer) for batch in apart]  # type: ignore[arg-type]
    for buffer in buffers:
        parse_batch(bytes(buffer)).ensure_valid()
    assert queue.next_sequence == (sequence if is_run else 2**31 - 5)
    assert [batch.attempts for batch in together] == [1, 1, 1]


def test_a_batch_keeps_the_sequence_of_its_first_attempt() -> None:
    batches = closed(2, 3, 4)
    first, _, last = batches
    first.producer_id, first.producer_epoch, first.base_sequence = 7, 3, 100
    queue = queue_at(0)
    sealed = seal_run(batches, queue, 7, 3, SIZE_MAX)
    assert sealed is not None
    assert sealed[2]
    assert [batch.base_sequence for batch in batches] == [100, 102, 105]
    last.base_sequence = 200
    sealed = seal_run(batches, queue, 7, 3, SIZE_MAX)
    assert sealed is not None
    assert not sealed[2]
    assert queue.next_sequence == 204


def test_a_batch_that_needs_more_than_a_producer_and_a_crc_is_sealed_alone() -> None:
    batches = closed(1, 20)
    queue = queue_at(5)
    assert seal_run(batches, queue, 7, 3, 100) is None  # the second is larger
    batches[1].is_transactional = True
    assert seal_run(batches, queue, 7, 3, SIZE_MAX) is None
    batches[1].is_transactional = False
    batches[1].compressed = b"half done"
    assert seal_run(batches, queue, 7, 3, SIZE_MAX) is None
    assert seal_run([*batches[:1], batch_of(b"open")[0]], queue, 7, 3, SIZE_MAX) is None
    assert (queue.next_sequence, batches[0].attempts, batches[0].producer_id) == (5, 0, -1)


def test_the_offsets_of_many_records_are_those_of_each() -> None:
    batches = [batch_of(b"a", b"b", b"c"), batch_of(b"d")]
    made = [delivery for _, deliveries in batches for delivery in deliveries]
    for (batch, _), offset in zip(batches, (10, -1), strict=True):
        batch.succeed(offset)
        batch.release()
    deliveries = Deliveries.of(made)
    assert deliveries.result() == [delivery.offset for delivery in made] == [10, 11, 12, -1]


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
@pytest.mark.parametrize("timeout", [math.inf, 1e12])
def test_a_wait_may_be_longer_than_the_system_can_wait(timeout: float) -> None:
    batch, _ = batch_of(b"a")
    batch.close()
    batch.succeed(0)
    with alarm(batch.release):
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        assert batch.wait(timeout)
