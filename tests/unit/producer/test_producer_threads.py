"""What threads, callbacks, forks and the collector do to a producer."""

from __future__ import annotations

import dataclasses
import errno
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

import kstore
from kstore.log import writer_of
from kstore.producer.interceptors import ProducerInterceptor
from kstore.producer.records import ProducerRecord, RecordMetadata
from tests.crash.test_producer_races import until
from tests.support.fakes.fake_fs import WRITES, Fault, Operation, WatchedFs
from tests.support.harness.evidence import Hung
from tests.support.lives.producer_helpers import Unthreaded, full_disk, producer_of, unthreaded

Result = TypeVar("Result")

# Only a hang takes longer, even on a busy machine.
SECONDS_MAX = 300.0


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Unthreaded]:
    with unthreaded(tmp_path / "data", partitions=2) as made:
        yield made


# --- callbacks that misbehave -----------------------------------------------------------------------------------------


def test_a_callback_that_sends_without_memory_writes_what_holds_it(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders")
        started, sent = time.monotonic(), []
        with store.producer(linger_ms=0, buffer_memory=4096, batch_size=1024, max_block_ms=600_000) as producer:
            gate = threading.Event()

            def send_more(*_: object) -> None:
                gate.wait(SECONDS_MAX)
                sent.append(producer.send("orders", b"x" * 900))

            first = producer.send("orders", b"v", on_delivery=send_more)
            for _ in range(3):
                producer.send("orders", b"x" * 900, on_delivery=lambda *_: None)
            gate.set()
            first.result(SECONDS_MAX)
            assert sent[0].result(SECONDS_MAX).offset == 4
        assert time.monotonic() - started < SECONDS_MAX, "max_block_ms is ten minutes"


def test_a_callback_cannot_end_a_transaction(tmp_path: Path) -> None:
    raised: list[type[Exception]] = []
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders")
        with store.producer(transactional_id="t") as producer, producer.transaction():

            def end(*_: object) -> None:
                for call in (producer.commit_transaction, producer.abort_transaction, producer.flush):
                    try:
                        call()
                    except Exception as error:
                        raised.append(type(error))

            producer.send("orders", b"v", on_delivery=end).result(SECONDS_MAX)
        assert raised == [RuntimeError] * 3
        assert list(store.log("orders").read_values()) == [b"v"]


# --- transactions and sends at the same time --------------------------------------------------------------------------


def test_a_send_that_is_under_way_when_its_transaction_ends_is_in_it_or_refused(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", transactional_id="t", max_block_ms=60_000) as one:
        producer = one.producer
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"in it")
        allocate, errors = producer._outbox.pool.allocate, []
        reached, go_on = threading.Event(), threading.Event()

        def paused(size: int, timeout_seconds: float) -> Any:
            reached.set()
            assert go_on.wait(SECONDS_MAX)
            return allocate(size, timeout_seconds)

        producer._outbox.pool.allocate = paused  # type: ignore[method-assign]

        def late() -> None:
            try:
                producer.send("orders", b"x" * 70_000)
            except kstore.InvalidTransactionStateError as error:
                errors.append(error)

        thread = threading.Thread(target=late)
        thread.start()
        assert reached.wait(SECONDS_MAX)
        producer.commit_transaction()
        go_on.set()
        thread.join(SECONDS_MAX)
        assert len(errors) == 1
        assert one.values() == [b"in it"]
        assert producer._outbox.pool.available == producer.config.buffer_memory
        assert one.store.log("orders").transactions() == []


def test_close_gives_up_a_transaction_within_its_time(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data") as one:
        producer = producer_of(one.store, transactional_id="t", max_block_ms=0)
        producer.init_transactions()
        producer.begin_transaction()
        one.store.log("orders")
        one.fs.faults.append(Fault(1, errno.ENOSPC, sticky=True, kinds=WRITES, suffix=".log"))
        producer.send("orders", b"v")
        started = time.monotonic()
        producer.close(0.2)
        assert time.monotonic() - started < SECONDS_MAX
        one.fs.faults.clear()


# --- what is never held -----------------------------------------------------------------------------------------------


def test_a_producer_is_collected_in_a_thread_that_holds_any_of_its_locks(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders")
        made = [store.producer(linger_ms=60_000)]
        made[0].send("orders", b"v")
        pool, metadata, topics = made[0]._outbox.pool, made[0]._metadata, made[0]._topics
        queue = metadata.topics["orders"].queue(0)
        ended = threading.Event()

        def collect() -> None:
            with queue.lock, pool._lock, topics._watching, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made.clear()
            ended.set()

        threading.Thread(target=collect, daemon=True).start()
        assert ended.wait(SECONDS_MAX)
        until(lambda: store.log("orders").end_offset == 1)


def test_without_a_thread_there_is_no_producer_and_nothing_of_it(
    one: Unthreaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    watchers = len(one.producer._topics._watchers)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        producer_of(one.store)
    assert len(one.producer._topics._watchers) == watchers


def test_logs_are_written_one_after_the_other_where_there_are_no_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unthreaded(tmp_path / "data", partitions=3, topic={"durability": "sync"}) as one:
        deliveries = [one.producer.send("orders", b"v", partition=number) for number in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(ThreadPoolExecutor, "submit", _refuse)
            one.linger()
        assert [delivery.result(0).offset for delivery in deliveries] == [0, 0, 0]


def _refuse(*_: object) -> None:
    raise RuntimeError("cannot schedule new futures after interpreter shutdown")


def test_two_loops_await_one_batch(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data") as one:
        delivery = one.producer.send("orders", b"v")
        batch = delivery._batch()
        assert batch.tell("first")
        assert batch.tell("second")
        assert batch.release() == ["first", "second"]
        assert not batch.tell("third")
        assert batch.release() == ["first", "second"], "an interrupt may have come before they were woken"
        batch.woken()
        assert batch.release() is None
        one.linger()


class Watching(ProducerInterceptor):
    """Two records are in ``on_send`` at the same time, or it fails; notes the calling threads."""

    def __init__(self) -> None:
        self.both = threading.Barrier(2, timeout=SECONDS_MAX)
        self.sending: list[threading.Thread] = []
        self.telling: list[threading.Thread] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.sending.append(threading.current_thread())
        self.both.wait()
        return dataclasses.replace(record, value=b"of both")

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.telling.append(threading.current_thread())


def test_interceptors_see_records_in_the_threads_that_send_and_results_in_the_sender_s(tmp_path: Path) -> None:
    watching = Watching()
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("orders")
        with store.producer(interceptors=[watching]) as producer:
            threads = [threading.Thread(target=producer.send, args=("orders", b"v")) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SECONDS_MAX)
            producer.flush(SECONDS_MAX)
            sender = producer._outbox.sender._thread
        assert list(store.log("orders").read_values()) == [b"of both"] * 2
    assert set(watching.sending) == set(threads)
    assert watching.telling == [sender, sender]


# --- which thread writes ----------------------------------------------------------------------------------------------


class HeldFs(WatchedFs):
    """Writes to logs wait while ``is_held``; those of the ``sender``, the test's own thread, are counted instead."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.may_write.set()
        self.sender = threading.current_thread()
        self.held_count = 0

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind in WRITES and operation.path.endswith(".log") and not self.may_write.is_set():
            if threading.current_thread() is self.sender:
                self.held_count += 1
            elif not self.may_write.wait(SECONDS_MAX):
                raise Hung("the test does not go on")
        return action()


@pytest.mark.parametrize("is_known", [False, True], ids=["a new partition", "after slow writes"])
@pytest.mark.parametrize("way", ["send", "send_many"])
def test_a_thread_that_sends_does_not_wait_for_a_slow_disk_until_the_memory_is_full(
    tmp_path: Path, way: str, is_known: bool
) -> None:
    fs = HeldFs()
    value, count = bytes(1_000), 7_000
    with kstore.open(tmp_path / "data", fs=fs, durability="os") as store:
        store.create_topic("orders")
        with store.producer(buffer_memory="8MiB") as producer:
            if is_known:
                producer.send("orders", b"first").result()
                queue = producer._metadata.topics["orders"].queue(0)
                queue.write_seconds = queue.write_seconds_before = 0.05
            fs.may_write.clear()
            if way == "send":
                for _ in range(count):
                    producer.send("orders", value)
            else:
                for _ in range(count // 100):
                    producer.send_many("orders", [value] * 100)
            assert producer._outbox.pool.available < 2 << 20
            fs.may_write.set()
            producer.flush()
        assert fs.held_count == 0
        assert store.log("orders").end_offset == count + is_known


@pytest.mark.parametrize("left", [0, 3])
def test_a_list_that_becomes_shorter_while_it_is_sent_is_an_error(tmp_path: Path, left: int) -> None:
    values = [b"x" * 1_000] * 200
    sent: list[object] = []
    errors: list[str] = []

    def send() -> None:
        try:
            sent.append(producer.send_many("orders", values))
        except RuntimeError as error:
            errors.append(str(error))

    with kstore.open(tmp_path / "data", durability="os") as store:
        store.create_topic("orders")
        with store.producer(batch_size=1 << 14, buffer_memory=1 << 15) as producer:
            with writer_of(store.log("orders")).turn.lock:
                thread = threading.Thread(target=send)
                thread.start()
                until(lambda: producer._outbox.pool.waiting_count == 1)
                del values[left:]
            thread.join(SECONDS_MAX)
            assert (sent, errors) == ([], ["values changed their size while they were read"])
            assert producer.send("orders", b"last").result().offset > 0


def test_a_partition_is_fast_while_one_of_its_last_two_writes_was(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", linger_ms=0) as one:
        took_ms, perform = [0], one.fs.perform

        def slow(operation: Operation, action: Callable[[], Result]) -> Result:
            if operation.kind in WRITES and operation.path.endswith(".log"):
                one.clock.advance(took_ms[0])
            return perform(operation, action)

        one.fs.perform = slow  # type: ignore[method-assign]
        one.producer.send("orders", b"v")
        queue = one.producer._metadata.topics["orders"].queue(0)
        assert not queue.is_fast, "nothing is known of it"
        found = []
        for took_ms[0] in (0, 50, 50, 50, 0, 0):
            one.producer.send("orders", b"v")
            one.round()
            found.append(queue.is_fast)
        assert found == [True, True, False, False, True, True]
        one.fs.faults.append(full_disk(sticky=False))
        one.producer.send("orders", b"v")
        one.round()
        one.clock.advance(1_000)
        assert queue.is_fast
        one.fs.faults.append(full_disk(sticky=False))
        one.round()
        assert not queue.is_fast, "the last two writes failed"
        one.clock.advance(2_000)  # the next try is due
