"""Producers' races, each one forced, not left to chance."""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import BufferExhaustedError, ClosedError, DeliveryError, DeliveryTimeoutError, DiskFullError
from kstore.log import writer_of
from kstore.producer.producer import Producer
from kstore.producer.sender import ROUND_SECONDS_MAX
from kstore.record._codec import BatchBuffer
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import WRITES, Fault
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries
from tests.support.lives.producer_helpers import producer_of, unthreaded

ROOT = Path(__file__).resolve().parents[2]
# Only a hang takes longer, even on a busy machine.
SECONDS_MAX = 300.0
RECORDS = tries(60_000, quick=20_000)
RECORDS_LONG = 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.open(tmp_path / "data", durability="os", background=False) as made:
        made.create_topic("orders", 2)
        yield made


def values(store: kstore.Store, partition: int) -> list[bytes | None]:
    return list(store.log("orders", partition).read_values())


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not what():
        assert time.monotonic() < deadline, "the race never happened"
        time.sleep(0.0005)


class Paused:
    """Blocks a call until it is released."""

    def __init__(self, inner: Callable[..., object]) -> None:
        self._inner = inner
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *args: object, **options: object) -> object:
        self.reached.set()
        assert self.go_on.wait(SECONDS_MAX)
        return self._inner(*args, **options)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_thread_that_waits_between_the_two_looks_finds_the_other_s_batch(store: kstore.Store) -> None:
    with store.producer(linger_ms=60_000) as producer:
        paused = Paused(producer._outbox.pool.allocate)
        producer._outbox.pool.allocate = paused  # type: ignore[method-assign, assignment]
        first = threading.Thread(target=lambda: producer.send("orders", b"first", partition=0))
        first.start()
        assert paused.reached.wait(SECONDS_MAX)
        producer._outbox.pool.allocate = paused._inner  # type: ignore[method-assign, assignment]
        producer.send("orders", b"second", partition=0)
        paused.go_on.set()
        first.join(SECONDS_MAX)
        available = producer._outbox.pool.available
        producer.flush(SECONDS_MAX)
    assert available == producer.config.buffer_memory - producer.config.batch_size, "one batch, no spare memory kept"
    assert values(store, 0) == [b"second", b"first"]


def test_a_close_wakes_a_thread_that_waits_for_memory(store: kstore.Store) -> None:
    producer = store.producer(linger_ms=0, buffer_memory=16384, batch_size=16384)
    paused = Paused(producer._outbox.queue_writer.writer)
    producer._outbox.queue_writer.writer = paused  # type: ignore[method-assign, assignment]
    producer.send("orders", b"x" * 16000, partition=0)
    assert paused.reached.wait(SECONDS_MAX)
    failures: list[Exception] = []

    def send() -> None:
        try:
            producer.send("orders", b"x" * 16000, partition=1)
        except Exception as error:
            failures.append(error)

    waiter = threading.Thread(target=send)
    waiter.start()
    until(lambda: producer._outbox.pool.waiting_count)
    closer = threading.Thread(target=producer.close)
    closer.start()
    waiter.join(SECONDS_MAX)
    assert [type(error) for error in failures] == [ClosedError]
    paused.go_on.set()
    closer.join(SECONDS_MAX)
    assert values(store, 0) == [b"x" * 16000], "what was sent before the close is delivered"
    assert values(store, 1) == []


def test_a_close_ends_when_the_last_batch_was_written_by_another_thread(store: kstore.Store) -> None:
    producer = store.producer(linger_ms=60_000)
    producer.send("orders", b"first", partition=0).result(SECONDS_MAX)
    outbox, queue = producer._outbox, producer._metadata.topics["orders"].queue(0)
    writer = writer_of(store.log("orders", 0))
    paused = Paused(writer.commit_many)
    writer.commit_many = paused  # type: ignore[method-assign, assignment]
    producer.send("orders", b"second", partition=0)
    # The producer's thread sleeps, so the other one writes.
    until(lambda: outbox.accumulator.sleeps_until > time.monotonic() + 1)
    queue.is_urgent = True
    other = threading.Thread(target=outbox.sender.write_here, args=(queue,))
    other.start()
    assert paused.reached.wait(SECONDS_MAX)
    begun = time.monotonic()
    closer = threading.Thread(target=producer.close)
    closer.start()
    # The producer's thread has seen that it must end, and that this batch has no result, and sleeps again.
    until(lambda: outbox.accumulator.sleeps_until > begun + ROUND_SECONDS_MAX)
    paused.go_on.set()
    other.join(SECONDS_MAX)
    closer.join(ROUND_SECONDS_MAX / 2)
    assert not closer.is_alive()
    assert values(store, 0) == [b"first", b"second"]


def test_memory_comes_back_from_every_kind_of_end(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data", buffer_memory=65536, delivery_timeout_ms=1000, linger_ms=0) as one:
        pool = one.producer._outbox.pool
        one.store.log("orders")
        one.producer.send("orders", b"delivered")
        one.round()
        one.fs.faults.append(Fault(1, errno.ENOSPC, sticky=True, kinds=WRITES, suffix=".log"))
        expired = one.producer.send("orders", b"expired")
        one.round()
        one.clock.advance(2000)
        one.round()
        one.fs.faults.clear()
        one.fs.faults.append(Fault(1, errno.EIO, kinds=WRITES, suffix=".log"))
        failed = one.producer.send("orders", b"failed")
        one.round()
        large = one.producer.send("orders", b"x" * 50_000)
        refused = one.producer.send("orders", b"x" * 60_000)
        one.round()
        one.round()
        assert isinstance(expired.exception(), DeliveryTimeoutError)
        assert isinstance(failed.exception(), OSError)
        assert large.result().offset == 1
        assert isinstance(refused.exception(), BufferExhaustedError)
        assert pool.available == 65536
        assert pool.waiting_count == 0


def test_a_batch_that_is_being_written_keeps_its_buffer_however_long_it_takes(tmp_path: Path) -> None:
    """KAFKA-19012: a batch that expired in flight gave its buffer back, and was written with another batch's bytes."""
    clock = ManualClock()
    with (
        kstore.open(tmp_path / "data", durability="os", background=False, clock=clock) as store,
        store.producer(linger_ms=0, delivery_timeout_ms=100, buffer_memory=32768) as producer,
    ):
        store.create_topic("orders", 2)
        store.log("orders", 0)
        paused = Paused(writer_of(store.log("orders", 0)).commit_many)
        writer_of(store.log("orders", 0)).commit_many = paused  # type: ignore[method-assign, assignment]
        slow = producer.send("orders", b"slow" * 1000, partition=0)
        assert paused.reached.wait(SECONDS_MAX)
        clock.advance(250)
        others = [producer.send("orders", b"other" * 1000, partition=1) for _ in range(5)]
        assert [delivery.result(SECONDS_MAX).partition for delivery in others] == [1] * 5
        assert not slow.done(), "its result is not known yet"
        paused.go_on.set()
        assert slow.result(SECONDS_MAX).offset == 0
        assert values(store, 0) == [b"slow" * 1000]
        assert values(store, 1) == [b"other" * 1000] * 5


def test_a_million_sends_make_no_new_buffer_and_no_work_for_the_collector(store: kstore.Store) -> None:
    made: list[int] = []
    with store.producer(acks=1, buffer_memory=4 << 20) as producer:
        for _ in range(60_000):
            producer.send("orders", b"v" * 100)
        producer.flush()
        lent = producer._outbox.pool.free_count
        gc.collect()
        before = gc.get_stats()[2]["collections"]
        allocate = producer._outbox.pool.allocate

        def counted(size: int, timeout_seconds: float) -> BatchBuffer:
            free = producer._outbox.pool.free_count
            buffer = allocate(size, timeout_seconds)
            made.append(free == 0)
            return buffer

        producer._outbox.pool.allocate = counted  # type: ignore[method-assign]
        for _ in range(1_000_000):
            producer.send("orders", b"v" * 100)
        producer.flush()
        full_collections = gc.get_stats()[2]["collections"] - before
    assert lent > 0
    assert sum(made) <= (4 << 20) // producer.config.batch_size, "no more than fits the pool"
    assert full_collections <= 1


# --- many threads -----------------------------------------------------------------------------------------------------


def hammer(store: kstore.Store, record_count: int, thread_count: int = 10, **settings: Any) -> None:
    """Threads send through a tiny pool; nothing may be lost, doubled, or out of order within a partition."""
    per_thread = record_count // thread_count

    def send(producer: Producer, thread: int) -> None:
        for number in range(per_thread):
            producer.send("orders", b"%d %d" % (thread, number), partition=(thread + number) % 2)

    with store.producer(buffer_memory=10 * 1024, batch_size=1024, **settings) as producer:
        threads = [threading.Thread(target=send, args=(producer, number)) for number in range(thread_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(SECONDS_MAX)
        assert producer._outbox.pool.available == 10 * 1024
    for partition in range(2):
        seen = [-2] * thread_count
        count = 0
        for value in store.log("orders", partition).read_values():
            assert value is not None
            sender, number = map(int, value.split())
            if 0 <= seen[sender] != number - 2:
                verdict = Wrong if number < seen[sender] + 2 else Lost
                raise verdict(f"thread {sender}: {number} after {seen[sender]}")
            seen[sender] = number
            count += 1
        if count != record_count // 2:
            raise Lost(f"{count} records in partition {partition}, expected {record_count // 2}")


@pytest.mark.parametrize("settings", [{"acks": 1}, {"acks": "all"}, {"compression_type": "lz4"}], ids=str)
def test_ten_threads_and_memory_for_ten_batches_lose_nothing(store: kstore.Store, settings: dict[str, Any]) -> None:
    hammer(store, RECORDS, **settings)


@pytest.mark.soak
@pytest.mark.parametrize("settings", [{"acks": 1}, {"acks": "all"}], ids=str)
def test_a_million_records_of_ten_threads(store: kstore.Store, settings: dict[str, Any]) -> None:
    hammer(store, RECORDS_LONG, **settings)


def test_flushes_of_many_threads_wait_for_what_each_has_sent(store: kstore.Store) -> None:
    problems: list[str] = []

    def run(producer: Producer) -> None:
        for _ in range(100):
            delivery = producer.send("orders", b"v")
            producer.flush(SECONDS_MAX)
            if not delivery.done():
                problems.append("flush returned before what was sent")

    with store.producer(linger_ms=60_000) as producer:
        threads = [threading.Thread(target=run, args=(producer,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)
    assert problems == []
    assert len(values(store, 0)) + len(values(store, 1)) == 600


def test_topics_that_come_and_go_while_others_are_sent_to(store: kstore.Store) -> None:
    store.create_topic("kept")
    stop = threading.Event()
    with store.producer(linger_ms=0, max_block_ms=1000) as producer:

        def churn() -> None:
            while not stop.is_set():
                store.create_topic("passing")
                producer.send("passing", b"v").exception(SECONDS_MAX)
                store.delete_topic("passing")

        thread = threading.Thread(target=churn)
        thread.start()
        deliveries = [producer.send("kept", b"%d" % number) for number in range(20_000)]
        stop.set()
        thread.join(SECONDS_MAX)
        assert [delivery.result(SECONDS_MAX).offset for delivery in deliveries] == list(range(20_000))


# --- interrupts -------------------------------------------------------------------------------------------------------


def interrupted(script: str, tmp_path: Path) -> str:
    """Runs a script that says "waiting" and then waits; interrupts it there; returns its output."""
    process = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + script, str(tmp_path / "data")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said == "waiting\n", said + process.communicate()[1]
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out


PREAMBLE = """
import errno, signal, sys, threading, time
import kstore
from tests.support.fakes.fake_fs import WRITES, FailingFs, Fault
signal.signal(signal.SIGINT, signal.default_int_handler)
fs = FailingFs()
store = kstore.Store(sys.argv[1], durability="os", background=False, fs=fs)
store.create_topic("orders")
store.log("orders")
full = Fault(1, errno.ENOSPC, sticky=True, kinds=WRITES, suffix=".log")
def wait(call):
    print("waiting", flush=True)
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""

WAITS = {
    "send that waits for memory": """
producer = store.producer(buffer_memory=16384, linger_ms=0)
fs.faults.append(full)
producer.send("orders", b"first" * 3000)
wait(lambda: producer.send("orders", b"second" * 2500))
fs.faults.clear()
""",
    "send that waits for its topic": """
producer = store.producer(max_block_ms=60_000)
wait(lambda: producer.send("unknown", b"v"))
""",
    "result": """
producer = store.producer()
fs.faults.append(full)
delivery = producer.send("orders", b"v")
wait(delivery.result)
fs.faults.clear()
""",
    "flush": """
producer = store.producer()
fs.faults.append(full)
producer.send("orders", b"v")
wait(producer.flush)
fs.faults.clear()
""",
    "close": """
producer = store.producer()
fs.faults.append(full)
producer.send("orders", b"v")
threading.Timer(1.0, fs.faults.clear).start()
wait(producer.close)
while producer.undelivered():
    time.sleep(0.01)
""",
}


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.sampled(2)
def test_every_wait_ends_with_ctrl_c_and_nothing_is_lost(name: str, tmp_path: Path) -> None:
    script = (
        WAITS[name]
        + "producer.close()\nprint(store.log('orders').end_offset, producer._outbox.pool.available)\nstore.close()\n"
    )
    out = interrupted(script, tmp_path)
    total = 16384 if "memory" in name else 32 << 20
    assert out == f"interrupted\n{0 if 'topic' in name else 1} {total}\n"


# --- fork, exit, asyncio ----------------------------------------------------------------------------------------------


def run_script(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    # CPython 3.12 and later warn of each fork beside threads.
    warnings = ("-W", "error::ResourceWarning", "-W", "ignore:This process:DeprecationWarning")
    command = [sys.executable, *warnings, "-c", PREAMBLE + script, str(tmp_path / "data")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX)


def test_a_child_has_nothing_of_a_producer_with_full_batches_and_the_parent_all(tmp_path: Path) -> None:
    run = run_script(
        """
import os
producer = store.producer(linger_ms=60_000)
for number in range(1000):
    delivery = producer.send("orders", b"%d" % number)
child = os.fork()
if child == 0:
    for call in (lambda: producer.send("orders", b"child"), lambda: producer.send_many("orders", [b"child"]),
                 producer.flush, lambda: producer.partitions_for("orders"), delivery.result):
        try:
            call()
        except kstore.ForkedError:
            continue
        os._exit(1)
    producer.close()
    del producer
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
producer.send("orders", b"parent")
producer.close()
print(len(list(store.log("orders").read())))
store.close()
""",
        tmp_path,
    )
    assert (run.stdout, run.stderr) == ("1001\n", "")


def test_what_is_in_memory_when_the_interpreter_ends_is_delivered(tmp_path: Path) -> None:
    run = run_script(
        """
producer = store.producer(linger_ms=60_000)
for number in range(1000):
    producer.send("orders", b"%d" % number)
""",
        tmp_path,
    )
    assert run.returncode == 0
    with kstore.Log(tmp_path / "data" / "orders-0", durability="os") as log:
        assert log.end_offset == 1000


def test_logs_that_sync_are_written_at_the_end_of_the_interpreter_though_there_are_no_more_threads(
    tmp_path: Path,
) -> None:
    run = run_script(
        """
store.close()
store = kstore.open(sys.argv[1], background=False)
store.create_topic("payments", 3)
producer = store.producer(linger_ms=60_000)
for number in range(300):
    producer.send("payments", b"%d" % number, partition=number % 3)
""",
        tmp_path,
    )
    assert "lost" not in run.stderr
    with kstore.open(tmp_path / "data", background=False) as store:
        assert [len(list(store.log("payments", number).read())) for number in range(3)] == [100, 100, 100]


def test_what_is_lost_at_the_end_of_the_interpreter_is_said(tmp_path: Path) -> None:
    run = run_script(
        """
import logging
import kstore.producer.producer as module
module.EXIT_SECONDS = 0.2
logging.basicConfig()
producer = store.producer()
fs.faults.append(full)
for number in range(1000):
    producer.send("orders", b"%d" % number)
""",
        tmp_path,
    )
    assert "1000 of orders-0" in run.stderr


def test_deliveries_can_be_awaited_each_and_together(store: kstore.Store) -> None:
    async def main(producer: Producer) -> list[int]:
        first = await producer.send("orders", b"v", partition=0)
        rest = await asyncio.gather(*(one(producer, number) for number in range(500)))
        cancelled = asyncio.ensure_future(one(producer, 500))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        return [first.offset, *rest]

    async def one(producer: Producer, number: int) -> int:
        return (await producer.send("orders", b"%d" % number, partition=0)).offset

    with store.producer(linger_ms=1) as producer:
        offsets = asyncio.run(main(producer))
    assert offsets == list(range(501))
    assert store.log("orders", 0).end_offset == 502, "a cancelled wait takes nothing back"


def test_an_awaited_delivery_that_failed_raises(tmp_path: Path) -> None:
    with unthreaded(tmp_path / "data") as one:
        producer = producer_of(one.store, max_block_ms=0, retries=0)
        one.store.log("orders")
        one.fs.faults.append(Fault(1, errno.ENOSPC, sticky=True, kinds=WRITES, suffix=".log"))

        async def main() -> None:
            await producer.send("orders", b"v")

        with pytest.raises(DiskFullError):
            asyncio.run(main())
        one.fs.faults.clear()
        producer.close()


def _all_longer(lists: list[list[kstore.Delivery]], length: int) -> bool:
    return all(len(one) > length for one in lists)


def test_close_in_the_middle_of_many_sends_loses_nothing_that_was_confirmed(store: kstore.Store) -> None:
    for _ in range(5):
        producer = store.producer()
        sent: list[list[kstore.Delivery]] = [[], []]

        def send(mine: list[kstore.Delivery], producer: Producer = producer) -> None:
            try:
                while True:
                    mine.append(producer.send("orders", b"v"))
            except ClosedError:
                pass

        threads = [threading.Thread(target=send, args=(mine,)) for mine in sent]
        for thread in threads:
            thread.start()
        until(partial(_all_longer, sent, 2000))
        try:
            producer.close()
        except DeliveryError as error:
            raise Lost(str(error)) from error
        for thread in threads:
            thread.join(SECONDS_MAX)
        for delivery in (delivery for mine in sent for delivery in mine):
            assert delivery.done()
            assert delivery.offset >= 0
