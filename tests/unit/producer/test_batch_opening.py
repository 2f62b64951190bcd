"""The compiled ``send`` opens the first batch of a queue; whatever needs a decision or a wait it leaves to Python."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from kstore.clock import SYSTEM_CLOCK
from kstore.config import LogConfig
from kstore.producer._accumulate import Delivery, Failures, SendPath
from kstore.producer.accumulator import BatchQueue, RecordAccumulator, Topic
from kstore.producer.buffer_pool import BufferPool
from kstore.producer.config import ProducerConfig
from tests.crash.refusals import refused

BATCH_SIZE = 1024
MEMORY = 8 * BATCH_SIZE
Tried = Callable[[str, int], None]


class Slow:
    """Notes what the compiled part leaves to Python."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def send_next(self, *_: Any) -> None:
        self.calls.append("send_next")

    def send_slowly(self, *_: Any) -> None:
        self.calls.append("send_slowly")

    def opened(self, queue: BatchQueue) -> None:
        self.calls.append("opened")


class Sending:
    """A compiled send into an accumulator with one free buffer."""

    def __init__(self, partitions: int = 1, codec: str = "none", **config: Any) -> None:
        settings = ProducerConfig.from_settings(buffer_memory=MEMORY, batch_size=BATCH_SIZE)
        self.pool = BufferPool(MEMORY, BATCH_SIZE)
        self.pool.deallocate(self.pool.allocate(BATCH_SIZE, 0))
        self.accumulator = RecordAccumulator(
            settings, self.pool, SYSTEM_CLOCK, hurry=lambda batch: None, failures=Failures()
        )
        queues = [BatchQueue("orders", number) for number in range(partitions)]
        self.topic = Topic("orders", queues, LogConfig(**config), codec, None, ignores_keys=False)
        self.topic.sticky_partition = 0
        self.queue = self.topic.queue(0)
        self.slow = Slow()
        self.path = SendPath({"orders": self.topic}, self.slow)
        self.path._is_plain = True
        self.path._opener = self.accumulator

    def send(self, value: bytes = b"value", **fields: Any) -> Delivery | None:
        return self.path.send("orders", value, **fields)

    def hold_nothing_opened(self) -> None:
        assert (self.queue.open_batch, self.accumulator.incomplete, self.accumulator.active) == (None, set(), {})
        assert (self.pool.available, self.accumulator.opened_count) == (MEMORY, 0)


@pytest.fixture
def one() -> Iterator[Sending]:
    made = Sending()
    yield made
    if made.queue.lock.locked():
        made.queue.lock.release()


def test_the_first_record_opens_a_batch_as_the_slow_path_does(one: Sending) -> None:
    told: list[Any] = []
    delivery = one.send(b"value", key=b"key", on_delivery=lambda *result: told.append(result))
    assert one.slow.calls == []
    batch = one.queue.open_batch
    assert batch is not None
    assert delivery is not None
    assert (batch.record_count, batch.pool_size, batch.is_open, batch.is_transactional) == (1, BATCH_SIZE, True, False)
    assert (one.accumulator.incomplete, one.accumulator.active) == ({batch}, {one.queue: None})
    assert (one.pool.available, one.accumulator.opened_count) == (MEMORY - BATCH_SIZE, 1)
    assert one.topic.sticky_bytes == batch.size
    assert one.topic.last_used == batch.created_at
    assert abs(SYSTEM_CLOCK.monotonic() - batch.created_at) < 300
    assert [each for each, _ in batch.callbacks] == [delivery]
    assert one.send() is not None
    assert (batch.record_count, one.accumulator.opened_count) == (2, 1)


def test_a_sender_that_sleeps_long_is_told(one: Sending) -> None:
    one.accumulator.patience = 0.005
    one.accumulator.sleeps_until = SYSTEM_CLOCK.monotonic() + 3600
    assert one.send() is not None
    assert one.slow.calls == ["opened"]


def closed(one: Sending) -> None:
    one.accumulator.is_closed = True


def paused(one: Sending) -> None:
    one.accumulator.is_paused = True


def in_transaction(one: Sending) -> None:
    one.accumulator.is_transactional = True


def held(one: Sending) -> None:
    one.queue.lock.acquire()


def retired(one: Sending) -> None:
    one.queue.is_retired = True


def stale(one: Sending) -> None:
    one.accumulator.stale.add("orders")


def without_free_memory(one: Sending) -> None:
    one.pool.account.pop_free()


def with_a_request(one: Sending) -> None:
    one.pool._waiting.append(object())  # type: ignore[arg-type]


def closed_pool(one: Sending) -> None:
    one.pool.account.is_closed = True


@pytest.mark.parametrize(
    "prepare",
    [closed, paused, in_transaction, held, retired, stale, without_free_memory, with_a_request, closed_pool],
)
def test_what_needs_a_decision_is_left_to_python(one: Sending, prepare: Callable[[Sending], None]) -> None:
    prepare(one)
    assert one.send() is None
    assert one.slow.calls == ["send_next", "send_slowly"]
    one.hold_nothing_opened()


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({}, {"value": bytes(BATCH_SIZE)}),
        ({}, {"value": bytes(BATCH_SIZE - 96)}),
        ({}, {"value": b"v", "headers": [("name", b"content")]}),
        ({"codec": "gzip"}, {"value": b"v"}),
        ({"message_timestamp_type": "LogAppendTime"}, {"value": b"v"}),
    ],
)
def test_records_and_topics_that_need_more_are_left_to_python(settings: dict[str, Any], fields: dict[str, Any]) -> None:
    one = Sending(**settings)
    assert one.send(**fields) is None
    assert one.slow.calls == ["send_next", "send_slowly"]
    one.hold_nothing_opened()


def test_the_largest_record_that_fits_is_sent() -> None:
    one = Sending()
    assert one.send(bytes(BATCH_SIZE - 97)) is not None


def test_a_change_of_the_partition_is_left_to_python() -> None:
    one = Sending(partitions=2)
    one.topic.sticky_bytes = BATCH_SIZE
    assert one.send() is None
    assert one.send(partition=0) is not None
    assert one.slow.calls == ["send_next", "send_slowly"]


def test_a_batch_that_the_garbage_collector_opens_meanwhile_stays(one: Sending) -> None:
    """A finalizer may send: it runs where the new batch is allocated."""
    inner: list[Delivery | None] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and not inner:
            inner.append(None)
            one.pool.deallocate(one.pool.allocate(BATCH_SIZE, 0))  # one more is free
            inner[0] = one.send(b"inner")

    thresholds = gc.get_threshold()
    gc.callbacks.append(collected)
    try:
        gc.set_threshold(1)
        outer = one.send(b"outer")
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collected)
    batch = one.queue.open_batch
    assert batch is not None
    assert inner[0] is not None
    assert one.accumulator.incomplete == {batch}
    # The outer one was sent after it, into the same batch, or was left to Python and has opened nothing.
    assert batch.record_count == (2 if outer is not None else 1)
    assert one.pool.available == MEMORY - BATCH_SIZE


def test_a_refused_allocation_opens_nothing_and_keeps_no_memory(tried: Tried) -> None:
    for number in count():
        one = Sending()
        error = refused(one.send, number)
        if error is None:
            break
        assert isinstance(error, MemoryError)
        del error
        one.hold_nothing_opened()
    assert one.queue.open_batch is not None
    assert number > 3
    tried("faults", number)
