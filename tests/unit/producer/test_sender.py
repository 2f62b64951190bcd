"""The sender's rounds: what they write, in which order callbacks run, and that the sender survives every failure."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import (
    ClosedError,
    DeliveryTimeoutError,
    DiskFullError,
    InvalidRecordError,
    KstoreError,
    OutOfOrderSequenceError,
    RecordError,
    RecordTooLargeError,
    StorageError,
    SyncFailedError,
    TopicWaitTimeoutError,
)
from kstore.log import writer_of
from kstore.producer import completions, sender, waiting
from kstore.producer._accumulate import Delivery
from kstore.producer.records import RecordMetadata
from kstore.store import Store, coordinator_of
from kstore.types import Durability
from tests.support.fakes.fake_fs import WRITES, Fault, RecordingFs
from tests.support.lives.producer_helpers import Unthreaded, producer_of, unthreaded

# Only a hang takes longer, even on a busy machine.
SECONDS_MAX = 300.0


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Unthreaded]:
    with unthreaded(tmp_path / "data", partitions=2) as made:
        made.store.log("orders", 0)
        made.store.log("orders", 1)
        yield made


def fail_next(one: Unthreaded, partition: int, *errors: Exception) -> None:
    """Fails the next writes to a partition with ``errors``, one by one."""
    writer = writer_of(one.store.log("orders", partition))
    commit, left = writer.commit_many, list(errors)

    def commit_many(appends: Any) -> None:
        if left:
            raise left.pop(0)
        commit(appends)

    writer.commit_many = commit_many  # type: ignore[method-assign]


# --- what is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durability", "settings", "writes"),
    [("os", {}, 5), ("sync", {}, 1), ("sync", {"buffer_memory": "8MiB"}, 2)],
)
def test_a_write_of_a_log_that_syncs_takes_more(
    tmp_path: Path, durability: Durability, settings: dict[str, Any], writes: int
) -> None:
    fs = RecordingFs()
    with Store(tmp_path / "data", durability=durability, background=False, fs=fs) as store:
        store.create_topic("orders")
        producer = producer_of(store, is_threaded=False, **settings)
        producer.send("orders", b"first")
        producer.flush()
        deliveries = [producer.send("orders", bytes(65_000)) for _ in range(75)]
        before = len(fs.operations)
        producer.flush()
        made = [one for one in fs.operations[before:] if one.kind in WRITES and one.path.endswith(".log")]
        assert len(made) == writes
        assert deliveries[-1].result(0).offset == 75
        producer.close()


# --- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [False, True], ids=["for good", "for a while"])
def test_a_new_id_that_cannot_be_had_holds_nothing_up(one: Unthreaded, kept: bool) -> None:
    one.producer.send("orders", b"a", partition=0)
    one.linger()
    fail_next(one, 0, OutOfOrderSequenceError(1, 0, 5, 1))
    coordinator = coordinator_of(one.store)
    give, refusals = coordinator.init_producer_id, 1 if kept else 99

    def refuse(*args: Any) -> tuple[int, int]:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise DiskFullError(errno.ENOSPC, "full", "ids") if kept else StorageError(errno.EIO, "broken", "ids")
        return give(*args)

    coordinator.init_producer_id = refuse  # type: ignore[method-assign, assignment]
    delivery = one.producer.send("orders", b"b", partition=0)
    one.linger()
    one.clock.advance(2000)
    one.round()
    assert delivery.done()
    if kept:
        assert delivery.result().offset == 1
        assert one.values() == [b"a", b"b"]
    else:
        assert isinstance(delivery.exception(), StorageError)


def test_a_callback_that_ends_the_thread_does_not_end_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def leave(*_: object) -> None:
        raise SystemExit("of a callback")

    told: list[int] = []
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders", 2)
        with store.producer() as producer:
            first = producer.send("orders", b"a", partition=0, on_delivery=leave)
            second = producer.send("orders", b"b", partition=0, on_delivery=lambda at, _: told.append(at.offset))
            assert first.result(SECONDS_MAX).offset == 0
            assert second.result(SECONDS_MAX).offset == 1
            assert producer.send("orders", b"c", partition=1).result(SECONDS_MAX).offset == 0
    assert told == [1]
    assert "of a callback" in caplog.text


def test_a_log_filter_that_raises_ends_neither_the_thread_nor_the_callbacks(tmp_path: Path) -> None:
    told: list[int] = []

    def fail(*_: object) -> None:
        told.append(-1)
        raise KeyError("of a callback")

    def refuse(_: logging.LogRecord) -> bool:
        raise ValueError("of a filter")

    loggers = [logging.getLogger(module.__name__) for module in (sender, completions)]
    for logger in loggers:
        logger.addFilter(refuse)
    try:
        with kstore.open(tmp_path / "data", durability="os", background=False) as store:
            store.create_topic("orders")
            producer = store.producer()
            producer.send("orders", b"a", on_delivery=fail)
            producer.send("orders", b"b", on_delivery=lambda at, _: told.append(at.offset))
            producer.close(SECONDS_MAX)
            assert producer.undelivered() == {}
    finally:
        for logger in loggers:
            logger.removeFilter(refuse)
    assert told == [-1, 1]


def test_a_batch_whose_release_failed_is_released_in_the_next_round(
    one: Unthreaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    delivery = one.producer.send("orders", b"v", partition=0, on_delivery=lambda at, _: told.append(at.offset))
    accumulator = one.producer._outbox.accumulator

    def refuse(_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(waiting, "wake", refuse)
        delivery._batch().tell("a task")
        with pytest.raises(MemoryError):
            one.linger()
    woken: list[object] = []
    monkeypatch.setattr(waiting, "wake", woken.extend)
    one.round()
    assert woken == ["a task"]
    assert told == [0]
    assert one.producer.undelivered() == {}
    assert not accumulator.incomplete


def test_a_recreated_topic_takes_no_records_of_the_old_one_for_repetitions(one: Unthreaded) -> None:
    old = one.producer.send("orders", b"old", partition=0)
    one.store.delete_topic("orders")
    with pytest.raises(TopicWaitTimeoutError):
        one.producer.partitions_for("orders")
    one.store.create_topic("orders", 2)
    new = one.producer.send("orders", b"new", partition=0)
    one.linger()
    one.linger()
    assert isinstance(old.exception(0), kstore.TopicNotFoundError)
    assert new.result(0).offset == 0
    assert one.values() == [b"new"]


# --- callbacks --------------------------------------------------------------------------------------------------------


def test_callbacks_run_in_order_whichever_thread_wrote(tmp_path: Path) -> None:
    """The sending thread writes one batch; before it hands it over, the sender writes the next one."""
    with unthreaded(tmp_path / "data", linger_ms=0) as one:
        sender, told = one.producer._outbox.sender, []

        def tell(metadata: RecordMetadata, _: Exception | None) -> None:
            told.append(metadata.offset)

        one.producer.send("orders", b"a", on_delivery=tell)
        queue = one.producer._metadata.topics["orders"].queue(0)
        release = one.producer._outbox.wakeup.set

        def run_the_sender() -> None:
            one.producer._outbox.wakeup.set = release  # type: ignore[method-assign]
            one.producer.send("orders", b"b", on_delivery=tell)
            one.round()

        one.producer._outbox.wakeup.set = run_the_sender  # type: ignore[method-assign]
        sender.write_here(queue)
        one.round()
        assert told == [0, 1]


# --- topics -----------------------------------------------------------------------------------------------------------


def test_changes_of_topics_without_sends_are_ignored(one: Unthreaded) -> None:
    one.producer.send("orders", b"v")
    one.store.create_topic("others")
    assert not one.producer._metadata.has_news("others")
    assert not one.producer._metadata.stale


def test_a_topic_that_is_altered_is_so_for_its_producers_at_once(one: Unthreaded) -> None:
    one.producer.send("orders", b"v" * 3000, partition=0)
    one.linger()
    one.store.alter_topic("orders", max_message_bytes=2000, message_timestamp_type="LogAppendTime")
    too_large = one.producer.send("orders", b"v" * 3000, partition=0)
    stamped = one.producer.send("orders", b"v", partition=0, timestamp=one.clock.now_ms())
    sent_ms = one.clock.now_ms()
    for _ in range(4):
        one.linger()
    assert isinstance(too_large.exception(0), RecordTooLargeError)
    assert stamped.result(0).timestamp > sent_ms


def test_a_topic_whose_look_up_failed_is_looked_up_again(one: Unthreaded, monkeypatch: pytest.MonkeyPatch) -> None:
    one.producer.send("orders", b"v", partition=0)
    one.linger()
    one.store.alter_topic("orders", max_message_bytes=2000)

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(one.producer._topics, "config", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.producer.send("orders", b"v", partition=0)
    too_large = one.producer.send("orders", b"v" * 3000, partition=0)
    for _ in range(4):
        one.linger()
    assert isinstance(too_large.exception(0), RecordTooLargeError)


def test_a_topic_that_is_gone_leaves_nothing_behind(one: Unthreaded) -> None:
    one.producer.send("orders", b"v")
    one.linger()
    one.store.delete_topic("orders")
    metadata = one.producer._metadata
    assert metadata.has_news("orders")
    one.clock.advance(one.producer.config.metadata_max_idle_ms + 1000)
    metadata.drop_idle(one.producer._outbox.accumulator)
    assert (metadata.topics, metadata.stale, metadata._given_up) == ({}, set(), {})


# --- order, sequences, expiry -----------------------------------------------------------------------------------------


def batches_of(one: Unthreaded, partition: int = 0) -> list[tuple[int, int]]:
    """The first sequence and the number of records of each batch in the log."""
    log = one.store.log("orders", partition)
    return [(batch.base_sequence, batch.record_count) for batch in log.fetch(0, 1 << 20).batches()]


@pytest.mark.parametrize("place", ["note_written", "commit_many", "_succeed"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_a_write_that_is_interrupted_when_it_is_done_is_not_written_again(
    tmp_path: Path, idempotent: bool, error: type[BaseException], place: str
) -> None:
    """A run of more batches than a log remembers of a producer."""
    with unthreaded(tmp_path / "data", batch_size=0, linger_ms=0, enable_idempotence=idempotent) as one:
        writer, sender = writer_of(one.store.log("orders")), one.producer._outbox.sender
        deliveries = [one.producer.send("orders", b"%d" % number) for number in range(12)]
        owners: dict[str, Any] = {
            "note_written": writer.appends._durability,  # the first step after the publication
            "commit_many": writer,
            "_succeed": one.producer._outbox.queue_writer,
        }
        owner = owners[place]
        act = getattr(owner, place)

        def interrupted(*arguments: Any) -> None:
            setattr(owner, place, act)
            if place != "_succeed":
                act(*arguments)
            raise error

        setattr(owner, place, interrupted)
        with suppress(error):
            sender.write_here(one.producer._metadata.topics["orders"].queue(0))
        for _ in range(20):
            one.round()
            one.clock.advance(200)
        assert [delivery.result(0).offset for delivery in deliveries] == list(range(12))
        with suppress(KstoreError):
            one.store.close()  # the log was poisoned when its records were published
    with Store(tmp_path / "data", background=False) as store:
        assert list(store.log("orders").read_values()) == [b"%d" % number for number in range(12)]


def test_the_sequences_of_a_failed_batch_are_used_by_the_next_one(one: Unthreaded) -> None:
    """Kafka: testCorrectHandlingOfOutOfOrderResponses..., testUnresolvedSequencesAreNotFatal, the first batch fails."""
    one.producer.send("orders", b"a", partition=0)
    one.linger()
    fail_next(one, 0, StorageError(errno.EIO, "broken", "orders-0"))
    lost = one.producer.send("orders", b"lost", partition=0)
    one.linger()
    one.producer.send("orders", b"b", partition=0)
    one.linger()
    assert isinstance(lost.exception(0), StorageError)
    assert one.values() == [b"a", b"b"]
    assert batches_of(one) == [(0, 1), (1, 1)]


def test_batches_after_one_that_failed_get_its_sequences(tmp_path: Path) -> None:
    """They were tried, and had sequences, before the first of them finally failed."""
    with unthreaded(tmp_path / "data", batch_size=0) as one:
        one.store.log("orders")
        full = DiskFullError(errno.ENOSPC, "full", "orders-0")
        bad = InvalidRecordError("the record is bad", [RecordError(0, "bad")])
        fail_next(one, 0, full, bad)
        deliveries = [one.producer.send("orders", b"%d" % number) for number in range(3)]
        for _ in range(4):
            one.clock.advance(500)
            one.round()
        assert isinstance(deliveries[0].exception(0), InvalidRecordError)
        assert [delivery.result(0).offset for delivery in deliveries[1:]] == [0, 1]
        assert batches_of(one) == [(0, 1), (1, 1)]


def test_sequences_that_may_be_in_the_log_are_not_used_again(one: Unthreaded) -> None:
    fail_next(one, 0, SyncFailedError(errno.EIO, "a sync failed", "orders-0"))
    lost = one.producer.send("orders", b"lost", partition=0)
    one.linger()
    first = one.producer._transactions.producer
    after = one.producer.send("orders", b"after", partition=0)
    one.linger()
    one.linger()
    assert isinstance(lost.exception(0), SyncFailedError)
    assert after.result(0).offset == 0
    (batch,) = one.store.log("orders").fetch(0, 1 << 20).batches()
    assert (batch.producer_id, batch.base_sequence) != (first[0], 0)


def test_what_a_tried_batch_is_split_into_and_what_is_after_it_follow_each_other(tmp_path: Path) -> None:
    """All already had sequences when the log's limit became smaller."""
    with unthreaded(tmp_path / "data", batch_size=1000) as one:
        one.store.log("orders")
        values = [b"%d" % number + b"v" * 300 for number in range(9)]
        deliveries = [one.producer.send("orders", value) for value in values]
        fail_next(one, 0, DiskFullError(errno.ENOSPC, "full", "orders-0"))
        one.linger()
        one.store.alter_topic("orders", max_message_bytes=800)
        deliveries.append(one.producer.send("orders", b"later"))
        for _ in range(20):
            one.clock.advance(200)
            one.round()
        assert one.producer._counters.splits
        assert [delivery.result(0).offset for delivery in deliveries] == list(range(10))
        assert one.values() == [*values, b"later"]
        sequence = 0
        for first, count in batches_of(one):
            assert first == sequence
            sequence += count


def test_batches_that_wait_to_be_tried_again_expire_in_order(tmp_path: Path) -> None:
    """Kafka: testExpiryOfBatches..., testWhenFirstBatchExpireNoSendSecondBatchIfGuaranteeOrder."""
    with unthreaded(tmp_path / "data", batch_size=0, delivery_timeout_ms=1000, retry_backoff_ms=400) as one:
        one.store.log("orders")
        told: list[int] = []
        one.fs.faults.append(Fault(1, errno.ENOSPC, sticky=True, kinds=WRITES, suffix=".log"))
        deliveries = []
        for number in range(3):
            deliveries.append(
                one.producer.send("orders", b"%d" % number, on_delivery=lambda *_, number=number: told.append(number))
            )
            one.round()
            one.clock.advance(100)
        one.clock.advance(720)
        one.round()
        assert told == [0]
        one.fs.faults.clear()
        assert not deliveries[1].done(), "what follows waits for its own time"
        one.clock.advance(2000)
        one.round()
        assert told == [0, 1, 2]
        assert one.values() == []


def test_the_sender_sleeps_until_the_next_batch_is_due_or_expires(tmp_path: Path) -> None:
    """Kafka: testNextReadyCheckDelay, testSoonToExpireBatchesArePickedUpForExpiry, testResetNextBatchExpiry."""
    with unthreaded(tmp_path / "data", partitions=2, linger_ms=1000, delivery_timeout_ms=5000) as one:
        one.store.log("orders", 0)
        one.producer.send("orders", b"a", partition=0)
        one.clock.advance(400)
        one.producer.send("orders", b"b", partition=1)
        assert one.round() == pytest.approx(0.6)
        one.clock.advance(600)
        one.fs.faults.append(Fault(1, errno.ENOSPC, sticky=True, kinds=WRITES, suffix=".log"))
        assert 0 < one.round() <= 0.4
        one.fs.faults.clear()
        one.clock.advance(1000)
        assert one.round() == 0, "it looks for more at once"
        assert one.round() == 60


def test_what_is_in_other_hands_is_left_alone(one: Unthreaded) -> None:
    """Kafka: testMutedPartitions: neither ready nor drained."""
    one.producer.send("orders", b"a", partition=0)
    one.producer.send("orders", b"b", partition=1)
    queue = one.producer._metadata.topics["orders"].queue(0)
    with queue.drain_lock.attempt() as is_mine:
        assert is_mine
        one.linger()
        assert (one.values(0), one.values(1)) == ([], [b"b"])
        one.clock.advance(200_000)
        one.round()
        assert queue.batch_count == 1, "it does not expire either"
    one.round()
    assert queue.batch_count == 0
    assert one.producer._outbox.failures.take() is not None


def test_an_abandoned_queue_keeps_the_batches_being_written(one: Unthreaded) -> None:
    """Kafka: testAbortUnsentIncompleteBatches."""
    kept = one.producer.send("orders", b"kept", partition=0)
    lost = one.producer.send("orders", b"lost", partition=1)
    queue = one.producer._metadata.topics["orders"].queue(0)
    with queue.drain_lock.attempt():
        one.producer._outbox.sender.abandon(ClosedError("for the test"))
    one.linger()
    assert kept.result(0).offset == 0
    assert isinstance(lost.exception(0), ClosedError)
    one.producer._outbox.failures.take()


def test_a_batch_that_expires_while_it_is_written_takes_the_result_of_the_write(one: Unthreaded) -> None:
    """Kafka: testInflightBatchesExpire...; here no batch expires during its write."""
    writer = writer_of(one.store.log("orders", 0))
    commit = writer.commit_many

    def slowly(appends: Any) -> None:
        one.clock.advance(500_000)
        commit(appends)

    writer.commit_many = slowly  # type: ignore[method-assign]
    delivery = one.producer.send("orders", b"v", partition=0)
    one.linger()
    assert delivery.result(0).offset == 0


def test_a_callback_of_a_batch_that_expired_may_send(tmp_path: Path) -> None:
    """Kafka: testAppendInExpiryCallback: no deadlock."""
    with unthreaded(tmp_path / "data", delivery_timeout_ms=1000, buffer_memory=16384) as one:
        one.store.log("orders")
        again: list[Delivery] = []

        def send_again(metadata: RecordMetadata, error: Exception | None) -> None:
            assert isinstance(error, DeliveryTimeoutError)
            again.append(one.producer.send("orders", b"again"))

        one.fs.faults.append(Fault(1, errno.ENOSPC, sticky=True, kinds=WRITES, suffix=".log"))
        one.producer.send("orders", b"v", on_delivery=send_again)
        one.linger()
        one.clock.advance(5000)
        one.fs.faults.clear()
        one.round()
        one.linger()
        assert isinstance(again[0].exception(0), kstore.BufferExhaustedError), "there is memory after its callbacks"
        assert one.producer.send("orders", b"w").exception is not None


def test_everything_is_written_when_a_flush_begins_in_the_order_of_the_sends(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", batch_size=200, linger_ms=60_000) as one:
        for number in range(100):
            one.producer.send("orders", b"%d" % number)
        one.producer.flush()
        assert one.values() == [b"%d" % number for number in range(100)]


def test_flush_waits_for_what_batches_are_split_into(tmp_path: Path) -> None:
    """Kafka completed the parent at the split, so a flush could return early."""
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders", max_message_bytes=500)
        with store.producer(linger_ms=60_000) as producer:
            for _ in range(20):
                deliveries = [producer.send("orders", b"v" * 100) for _ in range(30)]
                producer.flush(SECONDS_MAX)
                assert all(delivery.done() and delivery.offset >= 0 for delivery in deliveries)
            assert producer._counters.splits >= 20


def test_a_record_is_read_as_soon_as_it_is_acknowledged(tmp_path: Path) -> None:
    for durability in ("sync", "interval", "os"):
        with kstore.open(tmp_path / durability, durability=durability, background=False) as store:
            store.create_topic("orders")
            with store.producer() as producer:
                seen: list[bool] = []

                def look(
                    metadata: RecordMetadata, _: Exception | None, store: kstore.Store = store, seen: Any = seen
                ) -> None:
                    (record,) = store.log("orders").read(metadata.offset)
                    seen.append(record.offset == metadata.offset)

                for number in range(50):
                    offset = producer.send("orders", b"%d" % number, on_delivery=look).result(SECONDS_MAX).offset
                    (record,) = store.log("orders").read(offset)
                    assert record.value == b"%d" % number
            assert seen == [True] * 50
