"""MockProducer: users' tests rely on it, so it must answer like the producer itself."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from kstore.errors import (
    ClosedError,
    ConfigError,
    DeliveryError,
    InvalidTransactionStateError,
    ProducerFencedError,
    SerializationError,
    TopicWaitTimeoutError,
    TransactionAbortedError,
)
from kstore.files.paths import TopicPartition
from kstore.producer.interceptors import ProducerInterceptor
from kstore.producer.mock import CALLS, MockProducer
from kstore.producer.producer import Producer
from kstore.producer.records import ProducerRecord, RecordMetadata
from kstore.producer.transactions import TransactionPhase
from tests.support.fakes.fake_clock import ManualClock

FIRST = ProducerRecord("topic", b"value1", b"key1")
SECOND = ProducerRecord("topic", b"value2", b"key2")
ZERO, ONE, TWO = (TopicPartition("topic", number) for number in range(3))


def send(producer: MockProducer, record: ProducerRecord) -> Any:
    return producer.send(record.topic, record.value, key=record.key)


def send_and_flush(producer: MockProducer, record: ProducerRecord) -> None:
    send(producer, record)
    producer.flush()


def transactional(**options: Any) -> MockProducer:
    """A producer that has begun a transaction."""
    producer = MockProducer(transactional_id="tx", **options)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


# --- deliveries -------------------------------------------------------------------------------------------------------


def test_a_record_arrives_as_soon_as_it_is_sent() -> None:
    producer = MockProducer(clock=ManualClock(5))
    delivery = send(producer, FIRST)
    assert delivery.done()
    assert delivery.result(0) == RecordMetadata("topic", 0, 0, 5, 4, 6)
    assert send(producer, SECOND).offset == 1
    assert producer.history == [FIRST, SECOND]
    producer.clear()
    assert producer.history == []
    assert send(producer, FIRST).offset == 0


def test_records_wait_for_the_test_to_say_what_becomes_of_them() -> None:
    producer = MockProducer(auto_complete=False)
    first, second = send(producer, FIRST), send(producer, SECOND)
    assert (first.done(), second.done(), producer.pending_count) == (False, False, 2)
    assert producer.complete_next()
    assert (first.done(), first.exception(0), second.done()) == (True, None, False)
    error = ValueError("blah")
    assert producer.error_next(error)
    with pytest.raises(ValueError, match="blah") as caught:
        second.result(0)
    assert caught.value is error
    assert (second.offset, second.metadata()) == (-1, RecordMetadata("topic", 0, -1, second.metadata().timestamp, 4, 6))
    assert not producer.complete_next()
    assert not producer.error_next(error)
    third, fourth = send(producer, FIRST), send(producer, SECOND)
    assert not third.done()
    assert not fourth.done()
    producer.flush()
    # Failed records took no offset.
    assert (third.offset, fourth.offset) == (1, 2)


def test_a_delivery_that_is_never_settled_times_out() -> None:
    producer = MockProducer(auto_complete=False)
    with pytest.raises(TimeoutError):
        send(producer, FIRST).result(0.001)


def test_a_delivery_can_be_awaited() -> None:
    async def run() -> int:
        producer = MockProducer(auto_complete=False)
        delivery = send(producer, FIRST)
        asyncio.get_running_loop().call_soon(producer.complete_next)
        metadata: RecordMetadata = await delivery
        return metadata.offset

    assert asyncio.run(run()) == 0


def test_callbacks_run_in_order_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[int, int, Exception | None]] = []

    def tell(metadata: RecordMetadata, error: Exception | None) -> None:
        told.append((metadata.partition, metadata.offset, error))
        raise RuntimeError("no")

    producer = MockProducer(auto_complete=False, partitions=2)
    for partition in (1, 0, 1):
        producer.send("topic", b"v", partition=partition, on_delivery=tell)
    error = ValueError("blah")
    producer.complete_next()
    producer.error_next(error)
    producer.complete_next()
    assert told == [(1, 0, None), (0, -1, error), (1, 1, None)]
    assert "topic-0: a callback failed" in caplog.text
    # A callback counts as a look.
    producer.flush()


def test_unexamined_failures_are_raised_once() -> None:
    producer = MockProducer(auto_complete=False)
    send(producer, FIRST)
    error = ValueError("blah")
    producer.error_next(error)
    with pytest.raises(DeliveryError, match="1 record was not delivered; the first: ValueError: blah") as caught:
        producer.flush()
    assert (caught.value.count, caught.value.first) == (1, error)
    producer.flush()
    producer.close()


def test_many_records_are_sent_at_once() -> None:
    producer = MockProducer(auto_complete=False)
    deliveries = producer.send_many("topic", [b"a", None, 5, b"d"], keys=[b"k", None, None, None], partition=0)
    while producer.complete_next():
        pass
    errors = deliveries.errors(0)
    assert list(errors) == [2]
    assert isinstance(errors[2], SerializationError)
    assert [delivery.offset for delivery in deliveries] == [0, 1, -1, 2]
    assert [record.value for record in producer.history] == [b"a", None, b"d"]
    with pytest.raises(ValueError, match="1 keys for 2 values"):
        producer.send_many("topic", [b"a", b"b"], keys=[b"k"])


# --- partitions -------------------------------------------------------------------------------------------------------


def test_a_key_goes_to_its_partition_and_none_to_the_first() -> None:
    producer = MockProducer(partitions=2, key_serializer="str", value_serializer="str")
    assert producer.send("topic", "value", key="key").partition == 1
    assert producer.send("topic", "value").partition == 0
    assert producer.send("topic", "value", partition=1).partition == 1
    assert producer.partitions_for("topic") == [0, 1]


def test_a_partitioner_of_ones_own_is_asked() -> None:
    chosen: list[int] = [1, 2, -1]
    producer = MockProducer(partitions=3, partitioner=lambda topic, key, value, count: chosen.pop(0))
    assert [producer.send("topic", b"v").partition for _ in range(2)] == [1, 2]
    with pytest.raises(ValueError, match="the partitioner chose -1, expected 0 to 2"):
        producer.send("topic", b"v")


@pytest.mark.parametrize(("topic", "partition"), [("other", None), ("topic", 2)])
def test_a_topic_or_partition_that_there_is_not_fails_the_delivery(topic: str, partition: int | None) -> None:
    producer = MockProducer(partitions={"topic": 2})
    delivery = producer.send(topic, b"v", partition=partition)
    assert isinstance(delivery.exception(0), TopicWaitTimeoutError)
    told: list[tuple[RecordMetadata, Exception | None]] = []
    producer.send(topic, b"v", partition=partition, on_delivery=lambda *what: told.append(what))
    ((metadata, error),) = told
    assert metadata == RecordMetadata(topic, -1 if partition is None else partition)
    assert isinstance(error, TopicWaitTimeoutError)
    with pytest.raises(TopicWaitTimeoutError):
        producer.partitions_for("other")


# --- what is plugged in -----------------------------------------------------------------------------------------------


def test_a_value_of_the_wrong_type_is_refused() -> None:
    producer = MockProducer(key_serializer=lambda number: number.to_bytes(4, "big"), value_serializer="str")
    with pytest.raises(SerializationError, match="the key for topic topic, a str"):
        producer.send("topic", "value1", key="key1")
    assert producer.history == []


def test_interceptors_change_records_and_are_notified() -> None:
    class Renaming(ProducerInterceptor):
        told: list[tuple[int, Exception | None]]

        def __init__(self) -> None:
            self.told = []

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return ProducerRecord("renamed", record.value)

        def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
            self.told.append((metadata.offset, error))

    renaming = Renaming()
    producer = MockProducer(interceptors=[renaming])
    assert send(producer, FIRST).topic == "renamed"
    error = ValueError("blah")
    producer.fail("send", error)
    with pytest.raises(ValueError, match="blah"):
        send(producer, FIRST)
    assert renaming.told == [(0, None), (-1, error)]


# --- transactions -----------------------------------------------------------------------------------------------------


def test_transactions_are_initialized_and_begun() -> None:
    producer = MockProducer(transactional_id="tx")
    states = [producer.transaction_state]
    producer.init_transactions()
    states.append(producer.transaction_state)
    assert states == [TransactionPhase.UNINITIALIZED, TransactionPhase.READY]
    # A second call does nothing: ``transaction()`` calls it each time.
    producer.init_transactions()
    producer.begin_transaction()
    assert producer.in_transaction


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda producer: producer.begin_transaction(), id="begin"),
        pytest.param(lambda producer: producer.send_offsets({ZERO: 1}, "group"), id="send-offsets"),
        pytest.param(lambda producer: producer.commit_transaction(), id="commit"),
        pytest.param(lambda producer: producer.abort_transaction(), id="abort"),
        pytest.param(lambda producer: producer.fence(), id="fence"),
        pytest.param(lambda producer: send(producer, FIRST), id="send"),
    ],
)
def test_what_needs_the_init_says_so(call: Callable[[MockProducer], object]) -> None:
    with pytest.raises(InvalidTransactionStateError, match="not initialized"):
        call(MockProducer(transactional_id="tx"))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda producer: producer.send_offsets({ZERO: 1}, "group"), id="send-offsets"),
        pytest.param(lambda producer: producer.commit_transaction(), id="commit"),
        pytest.param(lambda producer: producer.abort_transaction(), id="abort"),
        pytest.param(lambda producer: send(producer, FIRST), id="send"),
    ],
)
def test_what_needs_a_transaction_says_so(call: Callable[[MockProducer], object]) -> None:
    producer = MockProducer(transactional_id="tx")
    producer.init_transactions()
    with pytest.raises(InvalidTransactionStateError, match="is ready, expected"):
        call(producer)


def test_a_transaction_within_another_is_refused() -> None:
    with pytest.raises(InvalidTransactionStateError, match="begin_transaction: the producer is in a transaction"):
        transactional().begin_transaction()


def test_a_producer_without_a_transactional_id_has_none() -> None:
    with pytest.raises(InvalidTransactionStateError, match="without transactional_id"):
        MockProducer().init_transactions()


@pytest.mark.parametrize("ends_well", [True, False])
def test_an_empty_transaction_can_be_ended(ends_well: bool) -> None:
    producer = transactional()
    if ends_well:
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    assert not producer.in_transaction
    assert (producer.commit_count, producer.abort_count) == ((1, 0) if ends_well else (0, 1))


def test_committed_and_aborted_transactions_are_counted_apart() -> None:
    producer = transactional()
    assert producer.commit_count == 0
    producer.abort_transaction()
    producer.begin_transaction()
    producer.commit_transaction()
    assert (producer.commit_count, producer.abort_count) == (1, 1)


def test_records_are_in_the_history_once_they_are_committed() -> None:
    producer = transactional()
    send(producer, FIRST)
    send(producer, SECOND)
    assert (producer.history, producer.uncommitted) == ([], [FIRST, SECOND])
    producer.commit_transaction()
    assert (producer.history, producer.uncommitted) == ([FIRST, SECOND], [])


def test_a_commit_lets_arrive_what_waits() -> None:
    producer = transactional(auto_complete=False)
    deliveries = [send(producer, FIRST), send(producer, SECOND)]
    assert not any(delivery.done() for delivery in deliveries)
    producer.commit_transaction()
    assert [delivery.result(0).offset for delivery in deliveries] == [0, 1]


def test_an_abort_drops_what_was_sent() -> None:
    producer = transactional()
    send(producer, FIRST)
    producer.abort_transaction()
    producer.begin_transaction()
    producer.commit_transaction()
    assert producer.history == []


def test_an_abort_fails_what_waits_and_that_is_no_loss() -> None:
    producer = transactional(auto_complete=False)
    delivery = send(producer, FIRST)
    send(producer, SECOND)
    producer.abort_transaction()
    assert isinstance(delivery.exception(0), TransactionAbortedError)
    producer.close()


def test_an_abort_leaves_what_was_committed() -> None:
    producer = transactional()
    send(producer, FIRST)
    send(producer, SECOND)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.abort_transaction()
    assert producer.history == [FIRST, SECOND]


def test_a_transaction_with_a_lost_record_can_only_be_aborted() -> None:
    producer = transactional(auto_complete=False)
    delivery = send(producer, FIRST)
    error = TimeoutError("slow")
    producer.error_next(error)
    with pytest.raises(TimeoutError, match="slow"):
        producer.commit_transaction()
    with pytest.raises(TimeoutError, match="slow"):
        send(producer, SECOND)
    producer.abort_transaction()
    assert delivery.exception(0) is error
    assert producer.history == []


def test_a_block_commits_at_its_end_and_aborts_where_it_raises() -> None:
    producer = MockProducer(transactional_id="tx")
    with producer.transaction() as same:
        assert same is producer
        send(producer, FIRST)
    error = ValueError("blah")
    producer.fail("flush", error)
    with pytest.raises(ValueError, match="blah"), producer.transaction():
        send_and_flush(producer, SECOND)
    assert producer.history == [FIRST]
    assert (producer.commit_count, producer.abort_count, producer.in_transaction) == (1, 1, False)


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_offsets_are_in_the_history_once_they_are_committed() -> None:
    producer = transactional()
    producer.send_offsets({ZERO: 42, ONE: 73}, "g1")
    producer.send_offsets({ZERO: 101, ONE: 21}, "g2")
    assert producer.offsets_history == []
    producer.commit_transaction()
    assert producer.offsets_history == [{"g1": {ZERO: 42, ONE: 73}, "g2": {ZERO: 101, ONE: 21}}]


def test_of_several_offsets_of_a_group_the_last_counts() -> None:
    producer = transactional()
    producer.send_offsets({ZERO: 42, ONE: 73}, "g")
    producer.send_offsets({ONE: 101, TWO: 21}, "g")
    assert producer.offsets_history == []
    producer.commit_transaction()
    assert producer.offsets_history == [{"g": {ZERO: 42, ONE: 101, TWO: 21}}]


def test_an_abort_drops_offsets_and_leaves_those_committed() -> None:
    producer = transactional()
    producer.send_offsets({ZERO: 42, ONE: 73}, "g")
    producer.abort_transaction()
    producer.begin_transaction()
    producer.commit_transaction()
    assert producer.offsets_history == []
    producer.begin_transaction()
    producer.send_offsets({ZERO: 42, ONE: 73}, "g")
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send_offsets({TWO: 53}, "g2")
    producer.abort_transaction()
    assert producer.offsets_history == [{"g": {ZERO: 42, ONE: 73}}]


@pytest.mark.parametrize("group", ["", None])
def test_offsets_need_a_group(group: Any) -> None:
    with pytest.raises(ConfigError, match=r"group is (''|None),"):
        transactional().send_offsets({}, group)


def test_no_offsets_are_none_sent() -> None:
    producer = transactional()
    producer.send_offsets({}, "group")
    assert not producer.sent_offsets


def test_only_a_new_transaction_forgets_that_offsets_were_sent() -> None:
    producer = transactional()
    assert not producer.sent_offsets
    for _ in range(2):
        producer.send_offsets({ZERO: 42}, "group")
        assert producer.sent_offsets
        producer.commit_transaction()
        assert producer.sent_offsets
        producer.begin_transaction()
        assert not producer.sent_offsets


# --- fenced, closed, failing ------------------------------------------------------------------------------------------

CALL: dict[str, Callable[[MockProducer], object]] = {
    "send": lambda producer: send(producer, FIRST),
    "flush": lambda producer: producer.flush(),
    "close": lambda producer: producer.close(),
    "partitions_for": lambda producer: producer.partitions_for("topic"),
    "init_transactions": lambda producer: producer.init_transactions(),
    "begin_transaction": lambda producer: producer.begin_transaction(),
    "send_offsets": lambda producer: producer.send_offsets({ZERO: 1}, "group"),
    "commit_transaction": lambda producer: producer.commit_transaction(),
    "abort_transaction": lambda producer: producer.abort_transaction(),
}


@pytest.mark.parametrize(
    "call", ["send", "begin_transaction", "send_offsets", "commit_transaction", "abort_transaction"]
)
@pytest.mark.parametrize("begun", [True, False])
def test_a_fenced_producer_says_so(call: str, begun: bool) -> None:
    producer = MockProducer(transactional_id="tx")
    producer.init_transactions()
    if begun:
        producer.begin_transaction()
    producer.fence()
    with pytest.raises(ProducerFencedError, match="producer 0 has epoch 0, expected at least 1"):
        CALL[call](producer)
    assert producer.transaction_state is TransactionPhase.FATAL_ERROR


def test_a_fenced_producer_can_be_flushed_and_closed() -> None:
    producer = transactional(auto_complete=False)
    delivery = send(producer, FIRST)
    producer.fence()
    producer.flush()
    assert delivery.done()
    producer.close()
    assert producer.closed


@pytest.mark.parametrize("call", [call for call in CALLS if call != "close"])
def test_a_closed_producer_says_so(call: str) -> None:
    producer = transactional()
    producer.close()
    with pytest.raises(ClosedError, match="the producer producer-tx is closed"):
        CALL[call](producer)
    with pytest.raises(ClosedError):
        producer.fence()


def test_closing_lets_arrive_what_waits_and_aborts_a_transaction() -> None:
    producer = MockProducer(auto_complete=False)
    delivery = send(producer, FIRST)
    with producer:
        pass
    assert delivery.result(0).offset == 0
    producer.close()
    with transactional(auto_complete=False) as other:
        delivery = send(other, FIRST)
    assert isinstance(delivery.exception(0), TransactionAbortedError)
    with pytest.raises(ValueError, match="a timeout of -1 s"):
        MockProducer().close(-1)


@pytest.mark.parametrize("call", CALLS)
def test_every_call_can_be_made_to_fail(call: str) -> None:
    producer = transactional()
    error = OSError("broken")
    producer.fail(call, error)
    for _ in range(2):
        with pytest.raises(OSError, match="broken") as caught:
            CALL[call](producer)
        assert caught.value is error
    producer.fail(call, None)
    if call not in ("init_transactions", "begin_transaction"):
        CALL[call](producer)


def test_a_call_that_there_is_not_cannot_fail() -> None:
    with pytest.raises(ValueError, match="call 'sent', expected one of send, flush"):
        MockProducer().fail("sent", ValueError())


@pytest.mark.parametrize("auto_complete", [True, False])
def test_what_waits_is_counted(auto_complete: bool) -> None:
    producer = MockProducer(auto_complete=auto_complete)
    assert producer.pending_count == 0
    send(producer, FIRST)
    assert producer.pending_count == (0 if auto_complete else 1)
    producer.flush()
    assert producer.pending_count == 0


# --- as Producer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [*(call for call in CALLS if call != "send"), "send_many", "transaction"])
def test_it_is_called_as_the_producer_itself(call: str) -> None:
    def shape(method: Callable[..., object]) -> list[tuple[str, Any, Any]]:
        return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]

    assert shape(getattr(MockProducer, call)) == shape(getattr(Producer, call))


def test_settings_are_the_producer_s() -> None:
    producer = MockProducer(client_id="payments", acks=1)
    assert (producer.client_id, producer.config.enable_idempotence) == ("payments", False)
