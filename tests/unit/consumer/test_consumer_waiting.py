"""Consumers that wait, wake up and end, beside other threads and processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

import kstore
from kstore import (
    ClosedError,
    ConsumerStateError,
    WakeupError,
)
from kstore.clock import SYSTEM_CLOCK
from kstore.consumer.fetching import PartitionReader, ReadingCounters
from kstore.consumer.waiting import LogWaiter
from kstore.store import Store, coordinator_of
from tests.support.harness.alarm import alarm
from tests.support.lives.consumer_helpers import T0, T1, T2, consumer, fill, offsets, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "data") as store:
        yield store


def test_a_store_that_is_open_for_reading_has_consumers_that_commit_nothing(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as writing:
        writing.create_topic("t", partitions=3)
        fill(writing, T0, 10)
        coordinator_of(writing).commit_offsets("g", {T0: 4})
        with kstore.open(tmp_path / "data", read_only=True) as store:
            with consumer(store, "t", metadata_max_age_ms=0) as reading:
                assert sum(1 for _ in reading) == 10
                fill(writing, T0, 1)
                assert offsets(reading.poll(timeout=300)) == {T0: [10]}
                writing.add_partitions("t", 4)
                assert reading.poll() == {}
                assert len(reading.assignment()) == 4
            with consumer(store, group="g") as reading:
                reading.assign([T0])
                assert next(reading).offset == 4
                with pytest.raises(kstore.ReadOnlyError, match="open for reading"):
                    reading.commit()
            with pytest.raises(kstore.ReadOnlyError, match="its members need a store that writes"):
                consumer(store, "t", group="g")


def test_a_reader_of_another_process_is_woken_by_what_is_appended(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data") as writing:
        writing.create_topic("t", partitions=3)
        with kstore.open(tmp_path / "data", read_only=True) as store, consumer(store, "t") as reading:
            assert reading.poll() == {}
            appender = threading.Timer(0.05, lambda: fill(writing, T1, 2))
            appender.start()
            assert offsets(reading.poll(timeout=300))[T1][0] == 0
            appender.join()


def test_a_wakeup_ends_a_wait_or_the_next_one(store: Store) -> None:
    with consumer(store, "t") as reading:
        reading.wakeup()
        with pytest.raises(WakeupError):
            reading.poll(timeout=300)
        assert reading.poll() == {}
        waker = threading.Timer(0.05, reading.wakeup)
        waker.start()
        with pytest.raises(WakeupError):
            reading.poll(timeout=None)
        waker.join()


def test_another_thread_may_only_wake_it(store: Store) -> None:
    with consumer(store, "t") as reading:
        is_waiting = threading.Event()

        def wait() -> None:
            is_waiting.set()
            with pytest.raises(WakeupError):
                reading.poll(timeout=300)

        thread = threading.Thread(target=wait)
        thread.start()
        is_waiting.wait()
        refused = False
        while not refused:
            try:
                reading.positions()
            except ConsumerStateError as error:
                refused = "used by another thread" in str(error)
        reading.wakeup()
        thread.join()


def test_a_closed_consumer_says_so(store: Store) -> None:
    reading = consumer(store, "t", group="g")
    reading.close()
    reading.close()
    assert reading.closed
    for call in (reading.poll, reading.commit, reading.unsubscribe, reading.positions, lambda: next(reading)):
        with pytest.raises(ClosedError, match="consumer-g-"):
            call()


def test_a_store_that_is_closed_ends_its_consumers(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data") as store:
        store.create_topic("t")
        reading = consumer(store, "t", group="g")
    with pytest.raises(ClosedError):
        reading.poll()


def test_a_consumer_that_is_forgotten_warns(store: Store) -> None:
    forgotten = [consumer(store, "t", group="g")]
    with pytest.warns(ResourceWarning, match="unclosed Consumer"):
        forgotten.clear()


def test_no_listener_is_left_behind(store: Store) -> None:
    log = store.log("t", 0)
    with consumer(store, "t"):
        assert log.metrics()["followers"] == 1
    assert log.metrics()["followers"] == 0


@pytest.mark.parametrize("shared", [False, True])
def test_a_child_has_nothing_of_its_parents_consumers(tmp_path: Path, shared: bool) -> None:
    if shared and sys.platform != "linux":
        pytest.skip("writers share a store on Linux only")
    with kstore.open(tmp_path / "data", shared=shared, background=False) as store:
        store.create_topic("t", partitions=3)
        with consumer(store, "t", group="g") as reading:
            reading.poll()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    reading.poll()
                except kstore.ForkedError:
                    reading.close()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            fill(store, T0, 1)
            assert offsets(reading.poll()) == {T0: [0]}
            reading.commit()
            assert store.group_members("g").keys() == {T0, T1, T2}


# --- what wakes it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", ["its own store", "another process's"])
@pytest.mark.parametrize("how", ["records", "offset"])
def test_the_end_of_a_transaction_wakes_the_waiting_reader(
    store: Store, reads: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.consumer.waiting.NOTIFIED_POLL_SECONDS", 3600.0)
    waits, wait = threading.Event(), LogWaiter.wait

    def begin_to_wait(waiter: LogWaiter, readers: Iterable[PartitionReader], seconds: float) -> bool:
        waits.set()
        return wait(waiter, readers, seconds)

    monkeypatch.setattr(LogWaiter, "wait", begin_to_wait)
    fill(store, T0, 2)
    with (
        store.producer(transactional_id="x", linger_ms=0) as producer,
        kstore.open(store.path, read_only=True) if reads != "its own store" else nullcontext(store) as other,
        consumer(other, group="g", isolation_level="read_committed") as reading,
    ):
        producer.init_transactions()
        reading.assign([T0])
        reading.poll()
        for commits in (True, False, True):
            with suppress(KeyError), producer.transaction():
                if how == "records":
                    producer.send("t", b"x", partition=0)
                    producer.flush()
                else:
                    producer.send_offsets({T0: 1}, "g")
                    reading.seek(T0, 0)
                    reading._reading.readers[T0].seek(None)
                assert reading.poll() == {}
                found: list[object] = []
                waits.clear()
                thread = threading.Thread(target=lambda got=found: got.append(reading.poll(timeout=300)))
                thread.start()
                while not waits.wait(0.1):
                    assert thread.is_alive(), "it did not wait"
                if not commits:
                    raise KeyError
            if not commits:
                fill(store, T0, 1)
            thread.join()
            assert found not in ([], [{}]), "its time was over"


def test_a_late_wake_lets_no_thread_wait_in_vain_or_poll_without_a_pause(store: Store) -> None:
    """One thread ended the wait, and another one sets the event later."""
    waiter = LogWaiter(SYSTEM_CLOCK)
    log = store.log("t", 0)
    waiter.listen([log])
    looks = 0

    class Looking(PartitionReader):
        def has_more(self) -> bool:
            nonlocal looks
            looks += 1
            return super().has_more()

    reader = Looking(T0, log, "read_uncommitted", "raise", 1 << 20, ReadingCounters())
    reader.seek(0)
    waiter._event.set()
    waiter.wait([reader], 0.2)
    assert looks <= 3
    waiter.wake()
    waiter.wait([reader], 60)
    waiter.close()


def test_waits_in_short_turns_look_at_the_logs_once(store: Store) -> None:
    """A member checks its group ten times a second, and may have a thousand partitions."""
    waiter = LogWaiter(SYSTEM_CLOCK)
    logs = [store.log("t", 0), store.log("t", 1)]
    waiter.listen(logs)
    looks = 0

    class Looking(PartitionReader):
        def has_more(self) -> bool:
            nonlocal looks
            looks += 1
            return super().has_more()

    readers = [Looking(T0, log, "read_uncommitted", "raise", 1 << 20, ReadingCounters()) for log in logs]
    for reader in readers:
        reader.seek(0)
    assert [waiter.wait(readers, 0.001) for _ in range(20)] == [False] * 20
    # The first turn looks again at its end, unless a busy machine ends it at once.
    assert len(readers) <= looks <= 2 * len(readers)
    # It looks at other readers, and after new records.
    assert not waiter.wait(readers[:1], 0.001)
    assert not waiter.wait(readers, 0.001)
    fill(store, T0, 1)
    assert waiter.wait(readers, 60)
    waiter.close()


def test_a_watch_that_tells_while_the_others_are_armed_is_armed_again(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("nobody tells")
    waiter = LogWaiter(SYSTEM_CLOCK)
    with opened(tmp_path / "o") as store, kstore.open(store.path, read_only=True) as others:
        waiter.listen(others.log("t", number) for number in range(3))
        watches = [watch for _, watch in waiter._heard.values() if watch is not None]
        assert waiter._arm()
        first, last = next(iter(waiter._heard)), list(waiter._heard)[-1]
        arm, has_told = watches[-1].arm, threading.Event()

        class Between:
            is_armed = property(lambda self: watches[-1].is_armed)

            def arm(self) -> bool:
                if not has_told.is_set():
                    has_told.set()
                    (first.path / "x").touch()
                    while watches[0].is_armed:
                        pass
                return arm()

            def close(self) -> None:
                watches[-1].close()

        waiter._heard[last] = None, Between()  # type: ignore[assignment]
        assert waiter._arm()
        assert all(watch.is_armed for watch in watches)
        waiter.close()


def test_a_wakeup_ends_a_wait_for_a_position_too(store: Store) -> None:
    fill(store, T0, 2)
    with (
        store.producer(transactional_id="x") as producer,
        consumer(store, group="g", isolation_level="read_committed") as reading,
    ):
        producer.init_transactions()
        reading.assign([T0])
        with producer.transaction():
            producer.send_offsets({T0: 1}, "g")
            reading.wakeup()
            with pytest.raises(WakeupError):
                reading.position(T0)
        assert reading.position(T0) == 1


def test_a_signal_handler_may_wake_it(store: Store) -> None:
    """At any point of the wait, even while it holds its own lock."""
    with consumer(store, "t") as reading, alarm(reading.wakeup):
        for number in range(1_500):
            # So soon that it may come anywhere. A signal just before the sleep is handled after it.
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number % 100))
            woken = False
            while not woken:
                try:
                    reading.poll(timeout=0.01)
                except WakeupError:
                    woken = True
