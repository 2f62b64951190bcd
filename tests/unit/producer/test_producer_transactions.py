"""Transactions as a user sees them: wholly committed or aborted in all partitions, fenced (Kafka's own cases)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import (
    DiskFullError,
    InvalidTransactionStateError,
    ProducerFencedError,
    RecordTooLargeError,
    StorageError,
    TransactionAbortedError,
)
from kstore.files.paths import TopicPartition
from kstore.log import writer_of
from kstore.producer.producer import Producer
from kstore.producer.transactions import TransactionPhase
from kstore.store import coordinator_of
from tests.crash.interrupted_life import InterruptWithin
from tests.support.fakes.fake_fs import WRITES, Fault
from tests.support.lives.producer_helpers import Unthreaded, unthreaded
from tests.unit.engine.test_interrupted_counts import Tried


@pytest.fixture
def one(tmp_path: Path):  # type: ignore[no-untyped-def]
    with unthreaded(tmp_path / "data", partitions=3, transactional_id="t", max_block_ms=1000) as made:
        yield made


def committed(one: Unthreaded) -> list[bytes | None]:
    """What a committed reader sees, by partition."""
    return [
        record.value
        for number in range(3)
        for record in one.store.log("orders", number).read(isolation_level="read_committed")
    ]


def send_to_all(producer: Producer, value: bytes) -> None:
    for number in range(3):
        producer.send("orders", value, partition=number)


# --- committed and aborted --------------------------------------------------------------------------------------------


def test_a_transaction_is_there_in_all_its_partitions_when_it_is_committed(one: Unthreaded) -> None:
    with one.producer.transaction() as producer:
        send_to_all(producer, b"a")
        one.producer._outbox.drain(None)
        assert committed(one) == []
        assert [one.values(number) for number in range(3)] == [[b"a"]] * 3
    assert committed(one) == [b"a"] * 3
    with one.producer.transaction() as producer:
        producer.send("orders", b"b", partition=1)
    assert committed(one) == [b"a", b"a", b"b", b"a"]


def test_a_block_that_raises_aborts_and_nothing_of_it_is_committed(one: Unthreaded) -> None:
    def fail(producer: Producer) -> None:
        with producer.transaction():
            send_to_all(producer, b"never")
            producer._outbox.drain(None)
            raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        fail(one.producer)
    assert committed(one) == []
    with one.producer.transaction() as producer:
        send_to_all(producer, b"after")
    assert committed(one) == [b"after"] * 3
    assert all(one.store.log("orders", number).transactions() == [] for number in range(3))


def test_an_abort_drops_what_was_not_written(one: Unthreaded) -> None:
    one.producer.init_transactions()
    one.producer.begin_transaction()
    delivery = one.producer.send("orders", b"v")
    one.producer.abort_transaction()
    assert isinstance(delivery.exception(), TransactionAbortedError)
    assert [one.values(number) for number in range(3)] == [[]] * 3


def test_a_transaction_without_records_leaves_no_trace(one: Unthreaded) -> None:
    one.producer.init_transactions()
    ends = [one.store.log("orders", number).end_offset for number in range(3)]
    for _ in range(3):
        with one.producer.transaction():
            pass
    one.producer.begin_transaction()
    one.producer.abort_transaction()
    assert [one.store.log("orders", number).end_offset for number in range(3)] == ends


def test_many_transactions_of_one_producer_follow_each_other(one: Unthreaded) -> None:
    for number in range(20):
        if number % 3 == 2:
            one.producer.begin_transaction()
            send_to_all(one.producer, b"aborted")
            one.producer._outbox.drain(None)
            one.producer.abort_transaction()
        else:
            with one.producer.transaction() as producer:
                send_to_all(producer, b"%d" % number)
    expected = [b"%d" % number for number in range(20) if number % 3 != 2]
    assert committed(one) == expected * 3


# --- what is not allowed ----------------------------------------------------------------------------------------------


def test_each_step_needs_the_one_before_it(one: Unthreaded) -> None:
    producer = one.producer
    steps: tuple[Callable[[], Any], ...] = (
        lambda: producer.send("orders", b"v"),
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send_offsets({TopicPartition("orders", 0): 1}, "group"),
    )
    for step in steps:
        with pytest.raises(InvalidTransactionStateError):
            step()
    producer.init_transactions()
    producer.init_transactions()
    for step in (steps[0], *steps[2:]):
        with pytest.raises(InvalidTransactionStateError):
            step()
    producer.begin_transaction()
    with pytest.raises(InvalidTransactionStateError, match="in a transaction"):
        producer.begin_transaction()
    producer.send("orders", b"v")
    producer.commit_transaction()
    with pytest.raises(InvalidTransactionStateError):
        producer.commit_transaction()


def test_a_producer_without_an_id_has_no_transactions(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data") as one, pytest.raises(InvalidTransactionStateError, match="transactional_id"):
        one.producer.init_transactions()


# --- what fails -------------------------------------------------------------------------------------------------------


def test_a_record_that_was_lost_makes_the_commit_raise_and_only_an_abort_is_left(one: Unthreaded) -> None:
    producer = one.producer
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"kept", partition=0)
    large = producer.send("orders", b"x" * (2 << 20), partition=1)
    assert isinstance(large.exception(), RecordTooLargeError)
    for step in (producer.commit_transaction, lambda: producer.send("orders", b"v")):
        with pytest.raises(RecordTooLargeError):
            step()
    producer.abort_transaction()
    assert committed(one) == []
    with producer.transaction():
        producer.send("orders", b"after", partition=0)
    assert committed(one) == [b"after"]


def test_a_write_that_fails_in_the_commit_makes_it_raise(one: Unthreaded) -> None:
    one.producer.init_transactions()
    one.store.log("orders", 1)
    one.producer.begin_transaction()
    send_to_all(one.producer, b"v")
    one.fs.faults.append(Fault(1, errno.EIO, kinds=WRITES, suffix="orders-1/00000000000000000000.log"))
    with pytest.raises(StorageError):
        one.producer.commit_transaction()
    one.producer.abort_transaction()
    assert committed(one) == []


def test_a_marker_that_cannot_be_written_is_written_by_the_same_call_again(one: Unthreaded) -> None:
    one.producer.init_transactions()
    one.producer.begin_transaction()
    send_to_all(one.producer, b"v")
    one.producer._outbox.drain(None)
    one.fs.faults.append(Fault(1, errno.ENOSPC, sticky=True, kinds=WRITES, suffix="orders-2/00000000000000000000.log"))
    with pytest.raises(DiskFullError):
        one.producer.commit_transaction()
    one.fs.faults.clear()
    one.producer.commit_transaction()
    assert committed(one) == [b"v"] * 3


@pytest.mark.parametrize("suffix", ["orders-2/00000000000000000000.log", ".log"], ids=["marker", "decision"])
def test_a_commit_at_the_end_of_a_block_that_fails_says_why_and_can_be_continued(one: Unthreaded, suffix: str) -> None:
    def send() -> None:
        with one.producer.transaction() as producer:
            send_to_all(producer, b"v")
            producer._outbox.drain(None)
            one.fs.faults.append(Fault(1, errno.ENOSPC, sticky=True, kinds=WRITES, suffix=suffix))

    with pytest.raises(DiskFullError):
        send()
    one.fs.faults.clear()
    one.producer.commit_transaction()
    assert committed(one) == [b"v"] * 3
    with one.producer.transaction() as producer:
        send_to_all(producer, b"w")
    assert sorted(committed(one)) == [b"v"] * 3 + [b"w"] * 3  # type: ignore[type-var]


def test_a_block_whose_begin_or_end_is_interrupted_is_aborted_or_in_its_commit(one: Unthreaded, tried: Tried) -> None:
    producer, expected = one.producer, [b"v"]
    with producer.transaction():
        producer.send("orders", b"v", partition=0)
    for number in count(1):
        # Not in the writes of records and of the coordinator, which have tests of their own.
        with InterruptWithin(number, "producer/producer.py", "producer/transactions.py") as interrupted:
            try:
                with producer.transaction():
                    producer.send("orders", b"%d" % number, partition=0)
            except KeyboardInterrupt:
                pass
        state = producer._transactions.state
        assert state in (TransactionPhase.READY, TransactionPhase.COMMITTING), interrupted.place
        if state is TransactionPhase.COMMITTING:
            producer.commit_transaction()
        expected += [value for value in [b"%d" % number] if value in committed(one)]
        if not interrupted.struck:
            break
    assert number > 20
    assert committed(one) == expected
    tried("faults", number - 1)


def test_a_newer_producer_with_the_same_id_fences_the_older_one_and_aborts_what_it_left(one: Unthreaded) -> None:
    old = one.producer
    old.init_transactions()
    old.begin_transaction()
    old.send("orders", b"of the old one", partition=0)
    old._outbox.drain(None)
    new = one.another(transactional_id="t")
    try:
        with new.transaction():
            new.send("orders", b"of the new one", partition=0)
        late = old.send("orders", b"late", partition=1)
        with pytest.raises(ProducerFencedError):
            old.commit_transaction()
        assert isinstance(late.exception(), ProducerFencedError)
        with pytest.raises(ProducerFencedError):
            old.abort_transaction()
        with pytest.raises(ProducerFencedError):
            old.begin_transaction()
        assert committed(one) == [b"of the new one"]
    finally:
        new.close()


def test_close_aborts_an_open_transaction(one: Unthreaded) -> None:
    with one.another(transactional_id="u") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"v", partition=0)
        producer._outbox.drain(None)
    assert committed(one) == []
    assert one.store.log("orders", 0).transactions() == []


def test_what_a_killed_process_left_open_is_aborted_by_the_next_open(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders", 2)
        producer = store.producer(transactional_id="t")
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(2):
            producer.send("orders", b"open", partition=number)
        producer._outbox.drain(None)
        # As if the process ended here.
        producer._transactions.state = type(producer._transactions.state).FATAL_ERROR
        producer.close()
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        coordinator_of(store).recover()
        for number in range(2):
            log = store.log("orders", number)
            assert log.transactions() == []
            assert log.last_stable_offset == log.end_offset
            assert list(log.read(isolation_level="read_committed")) == []


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_offsets_are_committed_with_their_transaction_or_not_at_all(one: Unthreaded) -> None:
    orders = TopicPartition("orders", 0)
    with one.producer.transaction() as producer:
        producer.send_offsets({orders: 5}, "billing")
        assert coordinator_of(one.store).committed("billing") == {}
    assert coordinator_of(one.store).committed("billing")[orders].offset == 5
    one.producer.begin_transaction()
    one.producer.send_offsets({orders: 9}, "billing")
    one.producer.abort_transaction()
    assert coordinator_of(one.store).committed("billing")[orders].offset == 5
    with one.producer.transaction() as producer:
        producer.send_offsets({}, "billing")
        with pytest.raises(ValueError, match="group"):
            producer.send_offsets({orders: 9}, "")
        with pytest.raises(ValueError, match="expected a mapping of partitions to offsets"):
            producer.send_offsets([orders], "billing")  # type: ignore[arg-type]
        producer.send("orders", b"v")  # neither has spoiled the transaction


# --- idempotence ------------------------------------------------------------------------------------------------------


def test_sequences_count_on_over_batches_and_partitions(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", partitions=2) as one:
        for count in (3, 2):
            for number in range(2):
                for _ in range(count):
                    one.producer.send("orders", b"v", partition=number)
            one.producer.flush()
        for number in range(2):
            batches = list(one.store.log("orders", number).fetch(0, 1 << 20).batches())
            assert [(batch.base_sequence, batch.record_count) for batch in batches] == [(0, 3), (3, 2)]
            assert {(batch.producer_id, batch.producer_epoch) for batch in batches} == {
                one.producer._transactions.producer
            }


def test_sequences_wrap(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data") as one:
        one.producer.send("orders", b"first")
        one.producer.flush()
        log = one.store.log("orders")
        queue = one.producer._metadata.topics["orders"].queue(0)
        log.truncate_to(0)
        queue.next_sequence = 2**31 - 2
        for _ in range(2):
            for _ in range(4):
                one.producer.send("orders", b"v")
            one.producer.flush()
        batches = list(log.fetch(0, 1 << 20).batches())
        assert [batch.base_sequence for batch in batches] == [2**31 - 2, 2]
        assert one.producer._counters.failed_records == 0


def test_without_idempotence_batches_have_no_producer(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", enable_idempotence=False) as one:
        one.producer.send("orders", b"v")
        one.producer.flush()
        (batch,) = one.store.log("orders").fetch(0, 1 << 20).batches()
        assert (batch.producer_id, batch.base_sequence) == (-1, -1)


def test_a_log_that_has_lost_sequences_gets_them_under_a_new_id(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data") as one:
        for value in (b"a", b"b"):
            one.producer.send("orders", value)
            one.producer.flush()
        first = one.producer._transactions.producer
        one.store.log("orders").truncate_to(1)
        one.producer.send("orders", b"c")
        one.producer.flush()
        assert one.values() == [b"a", b"c"]
        assert one.producer._transactions.producer != first


def test_an_id_that_one_partition_has_renewed_does_for_the_others(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", partitions=2) as one:
        ids = one.producer._transactions
        first = ids.for_partition("orders", 0)
        assert ids.renew(first)
        second = ids.producer
        assert ids.renew(first)
        assert ids.producer == second != first


def test_two_producers_have_different_ids(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data") as one, one.another() as other:
        for producer in (one.producer, other):
            producer.send("orders", b"v")
            producer.flush()
        assert one.producer._transactions.producer[0] != other._transactions.producer[0]


def test_batches_of_which_the_log_has_some_are_not_doubled(tmp_path: Path) -> None:
    """As after an interrupt between the write and its report to the writer."""
    with unthreaded(tmp_path / "data", batch_size=0) as one:
        deliveries = [one.producer.send("orders", b"%d" % number) for number in range(5)]
        queue = one.producer._metadata.topics["orders"].queue(0)
        queue_writer, writer = one.producer._outbox.queue_writer, writer_of(one.store.log("orders"))
        batches = list(queue.closed)[:2]
        topic, ids = one.producer._metadata.topics["orders"], one.producer._transactions.for_partition("orders", 0)
        writer.commit_many([queue_writer._seal(queue, topic, batches, ids)])
        for _ in range(8):
            one.round()
        assert one.values() == [b"%d" % number for number in range(5)]
        assert [delivery.result(0).offset for delivery in deliveries] == list(range(5))


@pytest.mark.parametrize("timeout_ms", [60_000, 2_000_000_000], ids=["timed-out", "replaced"])
def test_a_producer_that_was_fenced_and_forgotten_in_a_pause_appends_no_more(tmp_path: Path, timeout_ms: int) -> None:
    settings: dict[str, Any] = {"transactional_id": "t", "max_block_ms": 1000, "transaction_timeout_ms": timeout_ms}
    with unthreaded(tmp_path / "data", partitions=2, **settings) as one:
        one.producer.init_transactions()
        one.producer.begin_transaction()
        one.producer.send("orders", b"before", partition=0)
        one.producer._outbox.drain(None)
        one.clock.advance(60_000)
        if timeout_ms == 60_000:
            coordinator_of(one.store).run_due()
        else:
            with one.another(**settings) as other:
                other.init_transactions()
        one.clock.advance(86_400_000)
        log = one.store.log("orders", 0)
        assert (writer_of(log).expire_producers(), log.producers()) == (1, [])
        end = log.end_offset
        late = one.producer.send("orders", b"late", partition=0)
        one.producer._outbox.drain(None)
        assert isinstance(late.exception(), ProducerFencedError)
        assert (log.end_offset, log.transactions()) == (end, [])


def test_a_long_transaction_goes_on_after_a_pause(one: Unthreaded) -> None:
    one.producer.init_transactions()
    one.producer.begin_transaction()
    for value in (b"a", b"b", b"c"):
        one.producer.send("orders", value, partition=1)
        one.producer._outbox.drain(None)
        one.clock.advance(20_000)
    one.producer.commit_transaction()
    assert committed(one) == [b"a", b"b", b"c"]
