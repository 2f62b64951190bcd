"""What a send does, in order: what it raises, what fails the delivery instead, and which calls report that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import (
    BufferExhaustedError,
    ClosedError,
    ConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTransactionStateError,
    RecordTooLargeError,
    SerializationError,
    TopicWaitTimeoutError,
    TransactionAbortedError,
)
from kstore.log import writer_of
from kstore.producer.accumulator import Topic
from kstore.producer.interceptors import ProducerInterceptor
from kstore.producer.metadata import TopicMetadata
from kstore.producer.partitioner import partition_for_key
from kstore.producer.producer import Producer
from kstore.producer.records import ProducerRecord, RecordMetadata
from kstore.store import coordinator_of
from tests.support.lives.producer_helpers import Unthreaded, unthreaded

# Only a hang takes longer, even on a busy machine.
SECONDS_MAX = 300.0
Told = list[tuple[RecordMetadata, Exception | None]]


class Spy(ProducerInterceptor):
    def __init__(self) -> None:
        self.sent: list[ProducerRecord] = []
        self.told: Told = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.sent.append(record)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.told.append((metadata, error))


@pytest.fixture
def spy() -> Spy:
    return Spy()


@pytest.fixture
def one(tmp_path: Path, spy: Spy) -> Iterator[Unthreaded]:
    settings: dict[str, Any] = {"interceptors": [spy], "buffer_memory": 40_000, "partitioner": FirstOrNone()}
    with unthreaded(tmp_path / "data", partitions=3, **settings) as made:
        yield made


class FirstOrNone:
    """Chooses partition 1, and a wrong one for a value that requests it."""

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        return -1 if value == b"wrong" else 1


# --- raised, or delivered ---------------------------------------------------------------------------------------------

RAISED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "a value of a wrong type": ({"value": 5}, SerializationError),
    "headers of a wrong type": ({"value": b"v", "headers": [("h", 5)]}, TypeError),
    "a partitioner's wrong answer": ({"value": b"wrong"}, ValueError),
}


@pytest.mark.parametrize("key", [None, 5], ids=["value", "key"])
def test_what_is_no_bytes_is_named_with_its_serializer_though_none_is_plugged_in(tmp_path: Path, key: object) -> None:
    what = "value" if key is None else "key"
    with unthreaded(tmp_path / "data") as one:
        value: Any = "text" if key is None else b"v"
        with pytest.raises(SerializationError, match=f"the {what} for topic orders.*{what}_serializer, 'bytes'"):
            one.producer.send("orders", value, key=key)
        deliveries = one.producer.send_many("orders", [b"v", value], keys=[None, key])
        one.linger()
        assert isinstance(deliveries.errors(0)[1], SerializationError)
        assert one.values() == [b"v"]


@pytest.mark.parametrize("what", RAISED)
def test_an_error_in_the_call_is_raised_and_the_interceptors_are_notified(one: Unthreaded, spy: Spy, what: str) -> None:
    fields, error = RAISED[what]
    with pytest.raises(error):
        one.producer.send("orders", **fields)
    ((metadata, told),) = spy.told
    assert isinstance(told, error)
    assert (metadata.topic, metadata.offset) == ("orders", -1)


def test_interceptors_see_a_record_before_anything_is_checked(one: Unthreaded, spy: Spy) -> None:
    one.producer.close()
    with pytest.raises(ClosedError):
        one.producer.send("orders", b"late")
    assert [record.value for record in spy.sent] == [b"late"]
    assert [type(error) for _, error in spy.told] == [ClosedError]


def test_a_serializer_s_refusal_is_raised(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", value_serializer="str") as one:
        send = one.producer.send
        with pytest.raises(SerializationError, match="value_serializer"):
            send("orders", 5)


DELIVERED: dict[str, tuple[dict[str, Any], type[Exception], int]] = {
    "too large for a request": ({"value": b"x" * (1 << 20)}, RecordTooLargeError, 1),
    "too large for all memory": ({"value": b"x" * 50_000}, RecordTooLargeError, 1),
    "no such topic": ({"topic": "payments", "value": b"v"}, TopicWaitTimeoutError, -1),
    "no such partition": ({"value": b"v", "partition": 9}, TopicWaitTimeoutError, 9),
    "no topic can have that name": ({"topic": "a/b", "value": b"v"}, ConfigError, -1),
    "a time out of bounds": ({"value": b"v", "timestamp": 1 << 60}, InvalidTimestampError, 1),
    "no memory": ({"value": b"x" * 30_000}, BufferExhaustedError, 1),
}


@pytest.mark.parametrize("what", DELIVERED)
def test_what_is_wrong_with_the_record_or_the_moment_fails_the_delivery(one: Unthreaded, spy: Spy, what: str) -> None:
    """The callback and the interceptors get metadata with the known fields."""
    fields, expected, partition = DELIVERED[what]
    one.producer.send("orders", b"x" * 20_000, partition=0)
    told: Told = []
    fields = {"topic": "orders", **fields}
    delivery = one.producer.send(on_delivery=lambda *what: told.append(what), **fields)
    assert delivery.done()
    assert isinstance(delivery.exception(), expected)
    ((metadata, error),) = told
    assert (metadata.topic, metadata.partition, metadata.offset) == (fields["topic"], partition, -1)
    assert error is delivery.exception()
    assert spy.told[-1] == (metadata, error)


def noted_waits(producer: Producer) -> list[float]:
    """How many seconds each request for memory may wait."""
    waits: list[float] = []
    allocate = producer._outbox.pool.allocate

    def noted(size: int, timeout_seconds: float) -> Any:
        waits.append(timeout_seconds)
        return allocate(size, timeout_seconds)

    producer._outbox.pool.take_free = lambda size: None  # type: ignore[method-assign]
    producer._outbox.pool.allocate = noted  # type: ignore[method-assign]
    return waits


@pytest.mark.parametrize("jumps", [(0, 0), (7, 3), (1000, -5000), (-300, 200), (100_000, -200_000)])
def test_values_sent_together_get_the_time_of_their_call(tmp_path: Path, jumps: tuple[int, int]) -> None:
    """Into a batch whose first record has another time: the compiled loop stores the difference."""
    calls: list[list[bytes | None]] = [
        [b"first"],
        [b"", b"a", None, b"b" * 200],
        [None, b"c" * 20_000, bytearray(b"d"), b"e"],  # type: ignore[list-item]  # what a caller may give
    ]
    with unthreaded(tmp_path / "data", linger_ms=60_000, batch_size=1 << 20, buffer_memory=1 << 25) as one:
        expected = []
        for values, jump in zip(calls, (0, *jumps), strict=True):
            one.clock.jump(jump)
            deliveries = one.producer.send_many("orders", values)
            expected += [(one.clock.now_ms(), None if value is None else bytes(value)) for value in values]
        one.producer.flush()
        assert deliveries.result(0) == [5, 6, 7, 8]
        (batch,) = one.store.log("orders").fetch(0, 1 << 20).batches()
        assert [(record.timestamp, record.value) for record in one.store.log("orders").read()] == expected
        assert batch.max_timestamp == max(time_ms for time_ms, _ in expected)


def test_one_time_covers_the_wait_for_the_topic_and_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with unthreaded(tmp_path / "data") as one, one.another(max_block_ms=600, buffer_memory=16384) as producer:
        wait_for = TopicMetadata._wait_for

        def waited(metadata: TopicMetadata, name: str, partition: int | None, timeout: float) -> Topic:
            one.clock.advance(350)
            one.store.create_topic(name)
            return wait_for(metadata, name, partition, timeout)

        monkeypatch.setattr(TopicMetadata, "_wait_for", waited)
        waits = noted_waits(producer)
        producer.send("later", b"v")
        assert waits == [pytest.approx(0.25)]


def test_what_a_serializer_takes_is_no_wait(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data") as one:

        def slow(value: bytes) -> bytes:
            one.clock.advance(5000)
            return value

        with one.another(max_block_ms=1000, value_serializer=slow) as producer:
            waits = noted_waits(producer)
            producer.send("orders", b"v")
            assert waits == [1.0]


# --- partitions -------------------------------------------------------------------------------------------------------


def test_a_partition_that_is_named_wins_over_partitioner_and_key(one: Unthreaded) -> None:
    assert one.producer.send("orders", b"v", key=b"k", partition=2).partition == 2
    assert one.producer.send("orders", b"v", key=b"k").partition == 1


def test_a_key_decides_unless_keys_are_ignored(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", partitions=7) as one:
        keys = [b"%d" % number for number in range(50)]
        expected = [partition_for_key(key, 7) for key in keys]
        assert [one.producer.send("orders", b"v", key=key).partition for key in keys] == expected
        assert [one.producer.send("orders", b"v", key=key, timestamp=one.clock.now_ms()).partition for key in keys] == (
            expected
        )
        many = one.producer.send_many("orders", [b"v"] * 50, keys=keys)
        assert [delivery.partition for delivery in many] == expected
        with one.another(partitioner_ignore_keys=True) as other:
            assert len({other.send("orders", b"v", key=key).partition for key in keys}) == 1


def test_an_empty_key_is_a_key(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", partitions=7) as one:
        assert one.producer.send("orders", b"v", key=b"").partition == partition_for_key(b"", 7)


def test_where_a_record_went_after_a_second_question_is_part_of_its_transaction_and_no_other(tmp_path: Path) -> None:
    """Kafka: testTransactionalMethodThrows..., a partition is added after the append, and only that (KAFKA-13412)."""

    class Moving:
        def __init__(self) -> None:
            self.at = 0

        def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
            return self.at

        def on_new_batch(self, topic: str, partition_count: int, previous: int) -> None:
            self.at = 2

    with unthreaded(tmp_path / "data", partitions=3, transactional_id="t", partitioner=Moving()) as one:
        with one.producer.transaction() as producer:
            assert producer.send("orders", b"v").partition == 2
            one.producer._outbox.drain(None)
            (known,) = coordinator_of(one.store).transactions()
            assert {owner.partition for owner in known.partitions} == {2}
        assert one.values(2) == [b"v"]


# --- transactions -----------------------------------------------------------------------------------------------------


def test_a_commit_does_not_linger(tmp_path: Path) -> None:
    """Kafka: batches are sendable at once when their transaction completes."""
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders", 3)
        started = time.monotonic()
        with store.producer(transactional_id="t", linger_ms=600_000) as producer, producer.transaction():
            for number in range(300):
                producer.send("orders", b"v", partition=number % 3)
        assert time.monotonic() - started < SECONDS_MAX
        assert sum(len(list(store.log("orders", number).read())) for number in range(3)) == 300


def test_an_abort_drops_what_waits_and_waits_for_what_is_being_written(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders", 2)
        with store.producer(transactional_id="t", linger_ms=0) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            writer = writer_of(store.log("orders", 0))
            commit, reached, go_on = writer.commit_many, threading.Event(), threading.Event()

            def slowly(appends: Any) -> None:
                reached.set()
                assert go_on.wait(SECONDS_MAX)
                commit(appends)

            writer.commit_many = slowly  # type: ignore[method-assign]
            written = producer.send("orders", b"being written", partition=0)
            assert reached.wait(SECONDS_MAX)
            waiting = producer.send("orders", b"waiting", partition=1)
            thread = threading.Thread(target=producer.abort_transaction)
            thread.start()
            thread.join(0.05)
            assert thread.is_alive(), "the abort waits for the write"
            go_on.set()
            thread.join(SECONDS_MAX)
            writer.commit_many = commit  # type: ignore[method-assign]
            assert written.result(SECONDS_MAX).offset == 0
            assert isinstance(waiting.exception(SECONDS_MAX), TransactionAbortedError)
        for number in range(2):
            assert list(store.log("orders", number).read(isolation_level="read_committed")) == []
        assert list(store.log("orders", 1).read_values()) == []


def test_outside_of_a_transaction_nothing_is_sent(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", transactional_id="t") as one:
        send = one.producer.send
        for number in range(2):
            with pytest.raises(InvalidTransactionStateError):
                send("orders", b"v")
            with pytest.raises(InvalidTransactionStateError):
                one.producer.send_many("orders", [b"v"])
            if number == 0:
                one.producer.init_transactions()
        with one.producer.transaction():
            send("orders", b"v")
        with pytest.raises(InvalidTransactionStateError):
            send("orders", b"v")
        assert one.values() == [b"v"]


# --- flush and close --------------------------------------------------------------------------------------------------


def test_a_flush_after_close_returns_at_once(one: Unthreaded) -> None:
    one.producer.send("orders", b"v", partition=0)
    one.producer.close()
    one.producer.flush(0)
    assert one.values(0) == [b"v"]


def test_a_flush_covers_what_was_sent_before_and_not_what_comes_later(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", linger_ms=60_000) as one:
        first = one.producer.send("orders", b"a", on_delivery=lambda *_: one.producer.send("orders", b"b"))
        one.producer.flush()
        assert first.done()
        assert one.values() == [b"a"]
        assert one.producer.undelivered() == {"orders-0": 1}


def test_a_bad_record_among_many_fails_alone(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", topic={"cleanup_policy": "compact"}) as one:
        good = [one.producer.send("orders", b"v", key=b"%d" % number) for number in range(3)]
        bad = one.producer.send("orders", b"v")
        one.linger()
        assert isinstance(bad.exception(), InvalidRecordError)
        assert [delivery.result().offset for delivery in good] == [0, 1, 2]


def batch_sizes(one: Unthreaded) -> list[int]:
    """The record counts of the batches of partition 0."""
    return [batch.record_count for batch in one.store.log("orders", 0).fetch(0, 1 << 24).batches()]


def test_what_one_call_sends_shares_a_batch_of_eight_times_the_size_at_most(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", batch_size=1000) as one:
        one.producer.send_many("orders", [b"x" * 100] * 60)
        one.linger()
        assert batch_sizes(one) == [60]
        one.producer.send_many("orders", [b"x" * 100] * 200)
        one.linger()
        assert batch_sizes(one)[:3] == [60, 72, 72]
        assert one.values() == [b"x" * 100] * 260


def test_a_batch_of_one_call_is_no_larger_than_the_log_takes(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", batch_size=1000, topic={"max_message_bytes": 3000}) as one:
        one.producer.send_many("orders", [b"x" * 100] * 60)
        one.linger()
        assert max(batch_sizes(one)) == 26
        assert len(one.values()) == 60


def test_without_batches_each_record_of_a_call_has_its_own(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", batch_size=0) as one:
        one.producer.send_many("orders", [b"x"] * 5)
        one.linger()
        assert batch_sizes(one) == [1] * 5


def test_batches_that_are_written_together_are_known_as_a_replay_would_know_them(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", batch_size=300) as one:
        for number in range(3):
            for _ in range(9):
                one.producer.send("orders", b"x" * (50 + number))
            one.linger()
        log = one.store.log("orders", 0)
        (known,) = log.producers()
        one.store.close()
        for path in (tmp_path / "data" / "orders-0").glob("*.snapshot"):
            path.unlink()
        with kstore.Log(tmp_path / "data" / "orders-0", read_only=True) as view:
            assert view.producers() == [known]


def test_times_and_headers_are_accepted_as_people_give_them(one: Unthreaded) -> None:
    now_ms = one.clock.now_ms()
    when = datetime.fromtimestamp(now_ms / 1000, UTC)
    record = ProducerRecord("orders", b"a", headers={"h": b"1"}, timestamp=when)
    assert (record.headers, record.timestamp) == ((("h", b"1"),), now_ms)
    one.producer.send("orders", b"a", headers={"h": b"1"}, timestamp=when, partition=0)
    one.producer.send_many(
        "orders",
        (value for value in (b"b", bytearray(b"c"))),
        timestamps=iter([when, None]),
        headers=iter([{"h": b"2"}, None]),
        partition=0,
    )
    one.linger()
    found = list(one.store.log("orders", 0).read())
    assert [(record.value, record.headers) for record in found] == [
        (b"a", (("h", b"1"),)),
        (b"b", (("h", b"2"),)),
        (b"c", ()),
    ]
    assert [record.timestamp for record in found[:2]] == [now_ms] * 2


def test_headers_that_can_be_read_once_are_kept_when_a_batch_is_full(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as store:
        store.create_topic("orders")
        with store.producer(batch_size=200) as producer:
            for number in range(50):
                producer.send("orders", b"value", headers=iter([(str(number), b"")]))
        found = [record.headers for record in store.log("orders").read()]
    assert found == [((str(number), b""),) for number in range(50)]


@pytest.mark.parametrize("partition", [-1, -(2**70), 2**31, 2**70])
def test_many_records_to_a_partition_that_cannot_exist_fail_as_one_does(one: Unthreaded, partition: int) -> None:
    expected = ValueError if partition < 0 else TopicWaitTimeoutError
    sent = [one.producer.send("orders", b"x", partition=0)]  # the topic is known, and has an open batch
    failed = one.producer.send_many("orders", [b"a", b"b"], partition=partition)
    assert [type(error) for error in failed.errors(0).values()] == [expected, expected]
    one.linger()
    assert sent[0].result(0).offset == 0


def test_a_partition_may_be_any_integer(one: Unthreaded) -> None:
    class One:
        def __index__(self) -> int:
            return 1

    sent = one.producer.send_many("orders", [b"a", b"b"], partition=One())  # type: ignore[arg-type]
    one.linger()
    assert [delivery.result(0).partition for delivery in sent] == [1, 1]
