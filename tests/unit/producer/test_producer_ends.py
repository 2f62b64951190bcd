"""How deliveries and producers end: callbacks, failures, flush and close (KafkaProducerTest, SenderTest)."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import Future, wait
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import (
    ClosedError,
    DeliveryError,
    DeliveryTimeoutError,
    DiskFullError,
    RecordTooLargeError,
    SerializationError,
    StorageError,
    TopicWaitTimeoutError,
)
from kstore.producer._accumulate import Delivery
from kstore.producer.interceptors import ProducerInterceptor
from kstore.producer.producer import Producer
from kstore.producer.records import RecordMetadata
from tests.crash.interrupted_life import InterruptAtStart
from tests.support.fakes.fake_fs import WRITES, Fault
from tests.support.lives.producer_helpers import Unthreaded, full_disk, producer_of, unthreaded

Told = list[tuple[RecordMetadata, Exception | None]]


@pytest.fixture
def one(tmp_path: Path):  # type: ignore[no-untyped-def]
    with unthreaded(tmp_path / "data") as made:
        yield made


# --- callbacks --------------------------------------------------------------------------------------------------------


def test_callbacks_run_in_the_order_of_the_sends_and_one_that_fails_stops_no_other(
    one: Unthreaded, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []

    def tell(metadata: RecordMetadata, error: Exception | None) -> None:
        told.append(metadata.offset)
        if metadata.offset == 1:
            raise RuntimeError("of a callback")

    for _ in range(4):
        one.producer.send("orders", b"v", on_delivery=tell)
    one.linger()
    assert told == [0, 1, 2, 3]
    assert "of a callback" in caplog.text


def test_a_callback_may_be_added_before_and_after_the_delivery(one: Unthreaded) -> None:
    told: list[int] = []
    delivery = one.producer.send("orders", b"v")
    delivery.add_callback(lambda metadata, error: told.append(metadata.offset))
    assert told == []
    one.linger()
    delivery.add_callback(lambda metadata, error: told.append(metadata.offset + 10))
    assert told == [0, 10]


def test_a_callback_that_is_added_after_the_delivery_and_fails_is_logged(
    one: Unthreaded, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = one.producer.send("orders", b"v")
    one.linger()

    def fail(error: BaseException) -> None:
        raise error

    delivery.add_callback(lambda metadata, _: fail(KeyError("of a callback")))
    assert "of a callback" in caplog.text
    with pytest.raises(KeyboardInterrupt):
        delivery.add_callback(lambda metadata, _: fail(KeyboardInterrupt()))


def test_a_future_of_a_delivery_is_one_of_concurrent_futures(one: Unthreaded) -> None:
    sent = [one.producer.send("orders", b"a", partition=0), one.producer.send("orders", b"b", partition=7)]
    futures = [delivery.future() for delivery in sent]
    called: list[Future[RecordMetadata]] = []
    futures[0].add_done_callback(called.append)
    assert not futures[0].cancel()
    one.linger()
    assert called == futures[:1]
    done, rest = wait([*futures, sent[0].future()], timeout=60)
    assert (len(done), rest) == (3, set())
    assert futures[0].result() == sent[0].result(0)
    assert futures[1].exception() is sent[1].exception(0)
    assert isinstance(futures[1].exception(), TopicWaitTimeoutError)


def test_a_future_raises_without_a_growing_traceback(one: Unthreaded) -> None:
    future = one.producer.send("orders", b"b", partition=7).future()
    lengths = []
    for _ in range(3):
        with pytest.raises(TopicWaitTimeoutError) as caught:
            future.result()
        lengths.append(len(caught.traceback))
    assert len(set(lengths)) == 1


def test_an_error_of_a_future_counts_as_examined_when_the_program_asks_for_it(one: Unthreaded) -> None:
    asked, dropped = (one.producer.send("orders", b"b", partition=7).future() for _ in range(2))
    assert isinstance(asked.exception(), TopicWaitTimeoutError)
    with pytest.raises(DeliveryError, match="1 record"):
        one.producer.flush()
    assert isinstance(dropped.exception(), TopicWaitTimeoutError)


def test_concurrent_futures_say_how_to_get_a_future(one: Unthreaded) -> None:
    deliveries = one.producer.send_many("orders", [b"a", b"b"])
    assert repr(deliveries) == "Deliveries(2 records, pending)"
    for given in (deliveries, [deliveries[0]]):
        with pytest.raises(AttributeError, match=r"give it delivery\.future\(\)"):
            wait(given)  # type: ignore[arg-type]
    one.linger()
    assert repr(deliveries) == "Deliveries(2 records, done)"


def test_a_callback_may_send_and_ask_for_its_own_result_but_not_flush(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as store, store.producer(linger_ms=0) as producer:
        store.create_topic("orders")
        seen: list[object] = []
        sent: list[Delivery] = []

        def tell(metadata: RecordMetadata, error: Exception | None) -> None:
            sent.append(producer.send("orders", b"from the callback"))
            seen.append(delivery.result())
            for call in (producer.flush, sent[0].result):
                try:
                    call()
                except RuntimeError as raised:
                    seen.append(raised)

        gate = threading.Event()

        def tell_later(metadata: RecordMetadata, error: Exception | None) -> None:
            gate.wait(300)
            tell(metadata, error)

        delivery = producer.send("orders", b"v", on_delivery=tell_later)
        gate.set()
        assert delivery.result(300).offset == 0
        producer.flush(10)
        assert seen[0] == delivery.result()
        assert [type(error) for error in seen[1:]] == [RuntimeError, RuntimeError]
        assert sent[0].result(300).offset == 1


# --- what fails -------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_waited_for(one: Unthreaded) -> None:
    one.store.log("orders")
    one.fs.faults.append(full_disk(sticky=False))
    delivery = one.producer.send("orders", b"first")
    one.linger()
    assert not delivery.done()
    later = one.producer.send("orders", b"second")
    one.clock.advance(50)
    one.round()
    assert not delivery.done(), "it waits for its time"
    one.clock.advance(100)
    one.round()
    assert (delivery.result().offset, later.result().offset) == (0, 1)
    assert one.values() == [b"first", b"second"]
    assert one.producer._counters.retries == 1


def test_a_final_failure_fails_the_records_and_those_in_the_same_batch(one: Unthreaded) -> None:
    one.store.log("orders")
    one.fs.faults.append(Fault(1, errno.EIO, kinds=WRITES, suffix=".log"))
    deliveries = [one.producer.send("orders", b"v") for _ in range(3)]
    one.linger()
    for delivery in deliveries:
        with pytest.raises(StorageError):
            delivery.result()
    after = one.producer.send("orders", b"after")
    one.linger()
    assert after.result().offset == 0
    assert one.values() == [b"after"]


def test_no_more_is_tried_than_retries_allow(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", retries=2, retry_backoff_ms=10) as one:
        one.store.log("orders")
        one.fs.faults.append(full_disk())
        delivery = one.producer.send("orders", b"v")
        for _ in range(5):
            one.clock.advance(100)
            one.round()
        with pytest.raises(DiskFullError):
            delivery.result()
        assert one.producer._counters.retries == 2


def test_records_that_cannot_be_written_expire_with_the_reason(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", delivery_timeout_ms=5000) as one:
        one.store.log("orders")
        one.fs.faults.append(full_disk())
        delivery = one.producer.send("orders", b"v")
        for _ in range(8):
            one.clock.advance(1000)
            one.round()
        with pytest.raises(DeliveryTimeoutError, match=r"orders-0 expired.*DiskFullError"):
            delivery.result()
        one.fs.faults.clear()
        after = one.producer.send("orders", b"after")
        one.linger()
        assert after.result().offset == 0, "it takes the sequence of the expired one"


def test_a_batch_that_is_too_large_for_its_log_is_split(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", topic={"max_message_bytes": 2000}, linger_ms=1000) as one:
        told: list[bytes] = []

        def told_of(value: bytes, metadata: RecordMetadata, error: Exception | None) -> None:
            told.append(value)

        values = [b"%03d" % number * 100 for number in range(20)]
        deliveries = [one.producer.send("orders", value, on_delivery=partial(told_of, value)) for value in values]
        one.producer.flush()
        assert one.values() == told == values
        assert [delivery.result().offset for delivery in deliveries] == list(range(20))
        assert one.producer._counters.splits >= 1
        assert one.producer._outbox.pool.available == one.producer.config.buffer_memory


def test_a_record_too_large_for_its_log_alone_fails_when_its_batch_is_split(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", topic={"max_message_bytes": 2000}, linger_ms=1000) as one:
        before, large, behind = (one.producer.send("orders", value) for value in (b"a", b"x" * 5000, b"b"))
        with pytest.raises(DeliveryError):
            one.producer.flush()
        assert isinstance(large.exception(), RecordTooLargeError)
        assert (before.result().offset, behind.result().offset) == (0, 1)


def test_unexamined_failures_make_flush_raise_once(one: Unthreaded, caplog: pytest.LogCaptureFixture) -> None:
    one.store.log("orders")
    one.fs.faults.append(Fault(1, errno.EIO, kinds=WRITES, suffix=".log"))
    deliveries = [one.producer.send("orders", b"v") for _ in range(5)]
    one.linger()
    assert deliveries[0].exception() is not None
    with pytest.raises(DeliveryError) as raised:
        one.producer.flush()
    assert raised.value.count == 4
    assert isinstance(raised.value.first, StorageError)
    assert caplog.text.count("4 records were not delivered") == 1
    one.producer.flush()


def test_failures_that_a_callback_received_are_not_raised_again(one: Unthreaded) -> None:
    told: Told = []
    one.producer.send("orders", b"x" * (1 << 20), on_delivery=lambda *what: told.append(what))
    one.producer.flush()
    assert len(told) == 1


def test_an_interceptor_that_was_notified_is_not_the_sender(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", interceptors=[ProducerInterceptor()]) as one:
        one.store.log("orders")
        one.fs.faults.append(Fault(1, errno.EIO, kinds=WRITES, suffix=".log"))
        one.producer.send("orders", b"v")
        one.producer.send("orders", b"x" * (1 << 20))
        with pytest.raises(DeliveryError, match="2 records"):
            one.producer.flush()


def test_a_value_of_a_wrong_type_fails_alone_among_many(one: Unthreaded) -> None:
    wrong: list[Any] = [b"a", "text", b"b", 5, bytearray(b"c")]
    deliveries = one.producer.send_many("orders", wrong)
    keyed = one.producer.send_many("orders", [b"d", b"e"], keys=[b"k", 5])
    with pytest.raises(DeliveryError, match="3 records"):
        one.producer.flush()
    assert {index: type(error) for index, error in deliveries.errors().items()} == {
        1: SerializationError,
        3: SerializationError,
    }
    assert list(keyed.errors()) == [1]
    assert one.values() == [b"a", b"b", b"c", b"d"]
    one.producer.close()
    with pytest.raises(ClosedError):
        one.producer.send_many("orders", [b"a"])


# --- flush and close --------------------------------------------------------------------------------------------------


def test_flush_waits_for_all_that_was_sent_and_does_not_linger(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as store, store.producer(linger_ms=600_000) as producer:
        store.create_topic("orders", 3)
        deliveries = [producer.send("orders", b"v", key=b"%d" % number) for number in range(100)]
        producer.flush(20)
        assert all(delivery.done() for delivery in deliveries)
        assert producer.metrics()["flush_seconds"] > 0


def test_records_linger_after_an_interrupted_flush(one: Unthreaded) -> None:
    one.producer.send("orders", b"v")
    one.linger()
    for number in count(1):
        one.producer.send("orders", b"v")
        with InterruptAtStart(number, "/producer/") as interrupted:
            try:
                one.producer.flush()
            except KeyboardInterrupt:
                pass
        one.linger()
        assert not one.producer._outbox.accumulator.hurries, interrupted.place
        if not interrupted.struck:
            break
    assert number > 10


def test_a_waiter_makes_its_batch_go_at_once(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as store, store.producer(linger_ms=600_000) as producer:
        store.create_topic("orders")
        assert producer.send("orders", b"v").result(300).offset == 0
        delivery = producer.send("orders", b"v")
        assert delivery.result(300).offset == 1


def test_a_waiter_gives_up_after_its_time(one: Unthreaded) -> None:
    delivery = one.producer.send("orders", b"v")
    with pytest.raises(TimeoutError, match="orders-0"):
        delivery.result(0)
    one.round()
    assert delivery.result(0).offset == 0, "it was asked to go at once"


def test_close_delivers_what_is_there_and_can_be_called_again(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as store:
        store.create_topic("orders")
        producer = store.producer(linger_ms=600_000)
        delivery = producer.send("orders", b"v")
        producer.close()
        producer.close()
        assert producer.closed
        assert delivery.result().offset == 0
        for call in (lambda: producer.send("orders", b"v"), lambda: producer.send_many("orders", [b"v"])):
            with pytest.raises(ClosedError):
                call()
        assert producer._outbox.pool.available == producer.config.buffer_memory


def test_close_with_a_timeout_fails_what_it_cannot_deliver(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data") as one:
        producer = producer_of(one.store, max_block_ms=0)
        one.store.log("orders")
        one.fs.faults.append(full_disk())
        delivery = producer.send("orders", b"v")
        with pytest.raises(ValueError, match="-1"):
            producer.close(-1)
        with pytest.raises(DeliveryError):
            producer.close(0.1)
        assert isinstance(delivery.exception(), (ClosedError, DiskFullError))


def test_close_in_a_callback_does_not_wait_for_itself(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as store:
        store.create_topic("orders")
        producer = store.producer(linger_ms=0)
        closed = threading.Event()

        def tell(metadata: RecordMetadata, error: Exception | None) -> None:
            producer.close()
            closed.set()

        producer.send("orders", b"v", on_delivery=tell)
        assert closed.wait(300)


def test_a_producer_that_is_forgotten_warns_and_delivers_all_the_same(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as store:
        store.create_topic("orders")
        producer = store.producer(linger_ms=600_000)
        delivery = producer.send("orders", b"v")
        with pytest.warns(ResourceWarning, match="unclosed Producer"):
            del producer
        assert delivery.result(300).offset == 0


def test_an_error_in_the_block_is_not_hidden_by_lost_records(tmp_path: Path) -> None:
    def fail(producer: Producer) -> None:
        with producer:
            assert producer.send("orders", b"x" * (1 << 20)) is not None
            raise KeyError("of the user")

    with unthreaded(tmp_path / "data") as one, pytest.raises(KeyError):
        fail(one.another())
