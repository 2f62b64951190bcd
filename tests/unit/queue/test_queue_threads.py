"""Threads and processes that share one queue: waiting and waking, one worker for each item, forks and closes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import ClosedError, LeaseLostError
from kstore.files._locks import Condition
from kstore.queue.queue import core_of


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_a_waiting_thread_is_woken(tmp_path: Path, shared: bool) -> None:
    with kstore.open(tmp_path / "store", durability="os", shared=shared) as store:
        queue = store.queue("jobs", maxsize=1)
        got: list[bytes | None] = []

        def work() -> None:
            for _ in range(50):
                with queue.get(timeout=300) as job:
                    got.append(job.value)

        thread = threading.Thread(target=work)
        thread.start()
        for number in range(50):
            queue.put(b"%d" % number, timeout=300)
        thread.join(300)
        assert got == [b"%d" % number for number in range(50)]
        assert queue.join(timeout=300)


def test_a_child_s_queue_is_dead_and_says_so(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os") as store:
        queue = store.queue("jobs")
        queue.put(b"a")
        job = queue.get()
        with queue._core.lock:  # as some other thread may have it
            pid = os.fork()
            if pid == 0:
                try:
                    for action in (lambda: queue.put(b"b"), queue.get, job.ack, queue.qsize, queue.join):
                        with pytest.raises(kstore.ForkedError):
                            action()
                    os._exit(0)
                finally:
                    os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        job.ack()
        assert queue.join(timeout=0)


def test_a_close_ends_all_waiting(tmp_path: Path) -> None:
    store = kstore.open(tmp_path / "store", durability="os")
    queue = store.queue("jobs", maxsize=1)
    queue.put(b"a")
    errors: list[BaseException] = []

    def wait(action: Callable[[], object]) -> None:
        try:
            action()
        except ClosedError as error:
            errors.append(error)

    held = queue.get()
    queue.put(b"b")
    queue.get_nowait()
    queue.put(b"c")
    threads = [threading.Thread(target=wait, args=(action,)) for action in (lambda: queue.put(b"d"), queue.join)]
    for thread in threads:
        thread.start()
    while queue._core.putter_count + queue._core.joiner_count < 2:
        threading.Event().wait(0.001)
    store.close()
    for thread in threads:
        thread.join(300)
    assert len(errors) == 2
    with pytest.raises(ClosedError):
        held.ack()


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_many_threads_put_get_and_ack_each_item_once(tmp_path: Path, durability: Any) -> None:
    with kstore.open(tmp_path / "store", durability=durability) as store:
        queue = store.queue("jobs", segment_bytes=1 << 14)
        count, thread_count = 60, 4
        got: list[bytes | None] = []

        def produce(number: int) -> None:
            for at in range(count):
                queue.put(b"%d-%d" % (number, at))

        def work() -> None:
            while True:
                with queue.get(timeout=300) as job:
                    if job.value == b"end":
                        return
                    got.append(job.value)

        producers = [threading.Thread(target=produce, args=(number,)) for number in range(thread_count)]
        workers = [threading.Thread(target=work) for _ in range(thread_count)]
        for thread in producers + workers:
            thread.start()
        for thread in producers:
            thread.join()
        queue.put_many([b"end"] * thread_count)
        for thread in workers:
            thread.join()
        assert len(got) == len(set(got)) == count * thread_count
        assert queue.join(timeout=0)
        queue.check()


def test_two_stores_that_share_a_queue_give_an_item_to_one(tmp_path: Path) -> None:
    with (
        kstore.open(tmp_path / "store", durability="os", shared=True) as first,
        kstore.open(tmp_path / "store", durability="os", shared=True) as second,
    ):
        one, other = first.queue("jobs", lease_seconds=600), second.queue("jobs", lease_seconds=600)
        one.put_many([b"%d" % number for number in range(10)])
        jobs = [*one.get_many(4), *other.get_many(4), *one.get_many(4)]
        assert [job.value for job in jobs] == [b"%d" % number for number in range(10)]
        assert other.stats().leased == 10
        for job in jobs[:9]:
            job.ack()
        jobs[9].extend()
        jobs[9].nack()
        again = other.get(timeout=300)
        assert (again.value, again.delivery_count) == (b"9", 2)
        with pytest.raises(LeaseLostError):
            jobs[9].ack()
        again.ack()
        assert one.join(timeout=300)
        one.check()
        other.check()


def test_room_that_another_process_makes_is_found(tmp_path: Path) -> None:
    with (
        kstore.open(tmp_path / "store", durability="os", shared=True) as first,
        kstore.open(tmp_path / "store", durability="os", shared=True) as second,
    ):
        one, other = first.queue("jobs", maxsize=1), second.queue("jobs")
        one.put(b"a")
        thread = threading.Thread(target=lambda: one.put(b"b", timeout=300))
        thread.start()
        other.get(timeout=300).ack()
        thread.join(300)
        assert other.get(timeout=300).value == b"b"


def test_leases_of_a_process_that_closes_come_back_at_once(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os", shared=True) as first:
        one = first.queue("jobs", lease_seconds=600)
        with kstore.open(tmp_path / "store", durability="os", shared=True) as second:
            second.queue("jobs").put(b"a")
            second.queue("jobs").get()
        assert one.get(timeout=300).delivery_count == 2


WAITS: dict[str, Callable[[kstore.Queue], object]] = {
    "get": lambda queue: queue.get(timeout=300),
    "put": lambda queue: queue.put(b"c", timeout=300),
    "join": lambda queue: queue.join(300),
}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_an_interrupted_wait_leaves_the_lock_to_the_thread_that_has_it(tmp_path: Path, wait: str, shared: bool) -> None:
    with kstore.open(tmp_path / "store", durability="os", shared=shared) as store:
        queue = store.queue("jobs", maxsize=1)
        if wait != "get":
            queue.put(b"a")
        core = core_of(queue)
        found: list[bool] = []

        def work() -> None:
            while not core.getter_count + core.putter_count + core.joiner_count:
                pause(0.001)
            with core.lock:
                pause(0.6)  # longer than it waits without looking: now it waits for the lock
                for _ in range(3):
                    os.kill(os.getpid(), signal.SIGINT)
                    pause(0.05)
                    found.append(core.lock.locked())

        thread = threading.Thread(target=work)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            WAITS[wait](queue)
        thread.join(300)
        assert found == [True] * 3
        assert not core.lock.locked()
        assert core.getter_count + core.putter_count + core.joiner_count == 0


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_a_condition_wakes_as_many_as_it_is_told() -> None:
    lock = threading.Lock()
    condition = Condition(lock)
    woken: list[bool] = []

    def work() -> None:
        with lock:
            woken.append(condition.wait(300))

    with lock:
        assert not condition.wait(0)
        assert not condition.wait(-1)
        condition.notify()  # no thread waits
    threads = [threading.Thread(target=work) for _ in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        while lock.locked() or len(condition) <= number:
            pause(0.001)
    for count, left in ((2, 3), (1, 2), (9, 0)):
        with lock:
            condition.notify(count)
            assert len(condition) == left
    for thread in threads:
        thread.join(300)
    assert woken == [True] * 5
    with lock:
        condition.notify_all()


def test_a_condition_waits_for_what_is_told_at_most_for_a_time() -> None:
    lock = threading.RLock()
    condition = Condition(lock)
    done: list[int] = []

    def work() -> None:
        for number in range(3):
            with lock:
                done.append(number)
                condition.notify_all()

    with lock:
        assert not condition.wait_for(lambda: False, 0)
        assert not condition.wait_for(lambda: False, 1e-6)
        assert condition.wait_for(lambda: True, 0)
        assert len(condition) == 0
        thread = threading.Thread(target=work)
        thread.start()
        assert condition.wait_for(lambda: len(done) == 3)
    thread.join(300)


@pytest.mark.parametrize("name", ["kstore.queue.core.made_records", "kstore.queue.state.QueueState.offer_fresh"])
def test_a_put_that_cannot_hand_its_items_over_has_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*arguments: object) -> None:
        raise MemoryError

    with kstore.open(tmp_path / "store", durability="os") as store:
        queue = store.queue("jobs")
        with monkeypatch.context() as patch:
            patch.setattr(name, refuse)
            assert queue.put(b"a") == 0
            assert queue.put_many([b"b", b"c"]) == 1
        assert [job.value for job in queue.get_many(9)] == [b"a", b"b", b"c"]
        queue.check()
