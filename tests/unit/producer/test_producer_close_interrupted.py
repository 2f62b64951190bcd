"""Ctrl-C ends a producer's close, or its constructor: the next close continues it, and no record is forgotten."""

from __future__ import annotations

import _thread
import signal
import threading
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import kstore
from kstore.producer._accumulate import Delivery
from kstore.producer.background import _deliver_at_exit
from kstore.producer.interceptors import ProducerInterceptor
from kstore.producer.producer import Producer
from kstore.producer.records import RecordMetadata
from kstore.store import Store
from tests.crash.interrupted_life import InterruptAfterCode, InterruptAt, InterruptWithin
from tests.crash.test_producer_races import until
from tests.support.harness.alarm import alarm
from tests.support.lives.producer_helpers import producer_of
from tests.unit.engine.test_interrupted_counts import Tried

SECONDS_MAX = 300


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kstore.open(tmp_path / "data", durability="os", background=False) as opened:
        opened.create_topic("orders")
        yield opened


def interrupted_close(producer: Producer, number: int) -> InterruptAt:
    with InterruptAfterCode(number) as interrupted:
        try:
            producer.close()
        except KeyboardInterrupt:
            pass
    return interrupted


@pytest.mark.parametrize("transactional_id", [None, "t"], ids=["plain", "in a transaction"])
def test_a_close_that_is_interrupted_anywhere_can_be_completed(
    store: Store, transactional_id: str | None, tried: Tried
) -> None:
    for number in count(1):
        producer = store.producer(linger_ms=600_000, transactional_id=transactional_id)
        watchers = len(producer._topics._watchers)
        if transactional_id is not None:
            producer.init_transactions()
            producer.begin_transaction()
        delivery = producer.send("orders", b"v")
        interrupted = interrupted_close(producer, number)
        producer.close()
        assert producer.closed
        assert not producer._sender.is_running, interrupted.place
        assert delivery.done(), interrupted.place
        # In a transaction that was aborted, it may have been written before.
        assert delivery.exception() is None or transactional_id is not None, interrupted.place
        committed = [*store.log("orders").read(isolation_level="read_committed")]
        assert len(committed) == (number if transactional_id is None else 0), interrupted.place
        assert len(producer._topics._watchers) == watchers - 1, interrupted.place
        assert producer._outbox.pool.available == producer.config.buffer_memory, interrupted.place
        if not interrupted.struck:
            break
    assert number > 30
    tried("faults", number - 1)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_a_close_that_is_interrupted_while_it_waits_waits_again(store: Store) -> None:
    producer = store.producer(linger_ms=0)
    in_callback, may_end = threading.Event(), threading.Event()

    def tell(metadata: RecordMetadata, error: Exception | None) -> None:
        in_callback.set()
        may_end.wait(SECONDS_MAX)

    def interrupt() -> None:
        if producer.closed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    def close() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        producer.close()

    producer.send("orders", b"v", on_delivery=tell)
    assert in_callback.wait(SECONDS_MAX)
    delivery = producer.send("orders", b"w")
    with alarm(interrupt), pytest.raises(KeyboardInterrupt):
        close()
    assert producer._sender.is_running
    assert not delivery.done()
    may_end.set()
    producer.close()
    assert not producer._sender.is_running
    assert delivery.result(0).offset == 1


def closed_by_half(store: Store) -> tuple[Producer, Delivery]:
    """A producer with one record, whose close was interrupted just after it refused further records."""
    for number in count(1):
        producer = store.producer(linger_ms=600_000)
        delivery = producer.send("orders", b"v")
        assert interrupted_close(producer, number).struck
        if producer.closed:
            assert not delivery.done()
            return producer, delivery
        producer.close()
    raise AssertionError("unreachable")


def test_what_an_interrupted_close_left_is_delivered_at_exit(store: Store) -> None:
    producer, delivery = closed_by_half(store)
    _deliver_at_exit()
    assert delivery.done()
    assert not producer._sender.is_running


def test_a_producer_whose_close_was_interrupted_may_be_forgotten(store: Store) -> None:
    producer, delivery = closed_by_half(store)
    thread = producer._sender._thread
    assert thread is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del producer
    assert delivery.result(SECONDS_MAX).offset >= 0
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()


def test_close_in_two_threads_closes_once(store: Store) -> None:
    closed: list[ProducerInterceptor] = []

    class Counting(ProducerInterceptor):
        def close(self) -> None:
            closed.append(self)

    producer = store.producer(interceptors=[Counting()])
    barrier = threading.Barrier(2)

    def close() -> None:
        barrier.wait(SECONDS_MAX)
        producer.close()

    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.close()
    assert len(closed) == 1


# An interrupt after the constructor, and before the close.
@pytest.mark.filterwarnings("ignore:unclosed Producer:ResourceWarning")
def test_a_constructor_that_is_interrupted_anywhere_leaves_no_thread(store: Store, tried: Tried) -> None:
    with producer_of(store) as producer:
        watchers = producer._topics._watchers
        thread_count, watcher_count = _thread._count(), len(watchers)
        for number in count(1):
            # Not in the start of the thread: CPython then leaves a lock held that the thread waits for before it works.
            with InterruptWithin(number, "kstore/producer/") as interrupted:
                try:
                    producer_of(store).close()
                except KeyboardInterrupt:
                    pass
            until(lambda: _thread._count() == thread_count)
            assert len(watchers) == watcher_count, interrupted.place
            if not interrupted.struck:
                break
    assert number > 30
    tried("faults", number - 1)
