"""The counts of working and waiting threads if Ctrl-C comes at any place where CPython serves a signal."""

from __future__ import annotations

import math
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

import kstore
from kstore.backup import moment
from kstore.consumer.consumer import Consumer
from kstore.consumer.groups import MemoryGroup
from kstore.engine._fields import LogFields
from kstore.engine.append.appends import Headers
from kstore.engine.change.growth import Growth
from kstore.errors import TopicWaitTimeoutError
from kstore.files import watch as watches
from kstore.files._locks import Gate
from kstore.files.threads import start_thread
from kstore.files.watch import DirectoryWatch
from kstore.log import writer_of
from kstore.shared._turn import SharedTurnLock
from kstore.store import coordinator_of
from kstore.types import Durability
from kstore.ui.survey import Survey
from tests.crash.interrupted_life import InterruptAfterCode
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.alarm import alarm
from tests.support.lives.consumer_helpers import T0, T1, consumer, fill, opened

Tried = Callable[[str, int], None]


def at_every_place(act: Callable[[], object], check: Callable[[], None], tried: Tried) -> None:
    """Interrupts ``act`` at its first place, its second, and so on; checks after each."""
    for number in count(1):
        with InterruptAfterCode(number) as interrupted:
            try:
                act()
            except KeyboardInterrupt:
                pass
        try:
            check()
        except AssertionError as error:
            error.add_note(f"interrupted at {interrupted.place}")
            raise
        if not interrupted.struck:
            break
    assert number > 2
    tried("faults", number - 1)


def test_a_commit_of_a_group_ends_however_it_is_interrupted(tried: Tried) -> None:
    box = MemoryGroup("g", ManualClock())

    def commit() -> None:
        with box.committing():
            pass

    def check() -> None:
        assert not box._committing

    at_every_place(commit, check, tried)


def test_a_log_never_counts_fewer_followers_than_watch_it(tmp_path: Path, tried: Tried) -> None:
    with kstore.Log(tmp_path / "orders-0", durability="os") as log:
        writer = cast(Any, writer_of(log))

        def told() -> None:
            pass

        def follow() -> None:
            writer.watch_growth(told)
            writer.unwatch_growth(told)

        def check() -> None:
            assert writer.files.follower_count >= len(writer.growth._watchers)
            if writer.growth._watchers:
                writer.unwatch_growth(told)

        at_every_place(follow, check, tried)


def test_waking_followers_leaves_the_lock_to_other_threads(tmp_path: Path, tried: Tried) -> None:
    with kstore.Log(tmp_path / "orders-0", durability="os") as log:
        writer = cast(Any, writer_of(log))
        taken: list[bool] = []

        def take() -> None:
            is_mine = writer.growth._lock.acquire(blocking=False)
            taken.append(is_mine)
            if is_mine:
                writer.growth._lock.release()

        def check() -> None:
            thread = threading.Thread(target=take)
            thread.start()
            thread.join()
            assert taken.pop(), "the interrupted thread still has it"

        at_every_place(writer.growth.wake, check, tried)


def hears_of_every_record(log: kstore.Log, headers: Headers, tried: Tried) -> None:
    """Interrupts an append to ``log`` everywhere; its follower is told each time a record was left."""
    log.append(b"the first one opens the segment")
    writer = writer_of(log)
    told = [writer.ends.high_watermark]
    writer.watch_growth(lambda: told.append(writer.ends.high_watermark))

    def check() -> None:
        assert max(told) == writer.ends.high_watermark

    at_every_place(lambda: log.append(b"x", headers=headers), check, tried)


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
@pytest.mark.parametrize("headers", [(), [("h", b"x")]], ids=["short path", "general path"])
def test_a_follower_hears_of_each_record_that_an_interrupted_append_has_left(
    tmp_path: Path, durability: Durability, headers: Headers, tried: Tried
) -> None:
    with kstore.Log(tmp_path / "orders-0", durability=durability) as log:
        hears_of_every_record(log, headers, tried)


@pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")
def test_a_follower_hears_of_each_record_that_an_interrupted_append_to_a_shared_log_has_left(
    tmp_path: Path, tried: Tried
) -> None:
    with kstore.Log(tmp_path / "orders-0", shared=True) as log:
        hears_of_every_record(log, (), tried)


# --- locks that are only tried ----------------------------------------------------------------------------------------


FREE_SECONDS_MAX = 60


def is_free(lock: Any) -> bool:
    """Whether another thread gets it, at the latest when one of kstore's own threads releases it."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(lock.acquire(timeout=FREE_SECONDS_MAX))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_a_watch_that_ends_leaves_the_others_to_their_thread(tmp_path: Path, tried: Tried) -> None:
    assert DirectoryWatch(tmp_path).arm()
    hub = watches._the_hub
    assert hub is not None

    def check() -> None:
        assert is_free(hub.mutex)

    at_every_place(lambda: hub.forget(-1, -1), check, tried)


def test_the_work_on_transactions_leaves_each_of_them_free(tmp_path: Path, tried: Tried) -> None:
    with kstore.open(tmp_path / "data", background=False) as store:
        coordinator: Any = coordinator_of(store)
        coordinator.init_producer_id("x", 60_000)
        ((_, entry),) = coordinator._all()

        def check() -> None:
            was_free = is_free(entry.lock)
            if not was_free:
                entry.lock.release()  # for the store's close
            assert was_free

        at_every_place(coordinator.run_due, check, tried)


# An interrupt while a generator is dropped: Python cannot raise it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("take", [lambda reading: reading.positions(), lambda reading: next(reading)])
def test_a_call_of_a_consumer_leaves_it_to_other_threads(
    tmp_path: Path, take: Callable[[Consumer], object], tried: Tried
) -> None:
    with opened(tmp_path / "data") as store:
        for _ in range(100):
            fill(store, T0, 1)
        with consumer(store) as reading:
            reading.assign([T0])
            use: Any = reading._use

            def act() -> None:
                take(reading)
                take(reading)

            def check() -> None:
                assert is_free(use.lock)
                reading.seek(T0, 0)

            at_every_place(act, check, tried)


def test_a_backup_leaves_its_logs_to_other_threads(tmp_path: Path, tried: Tried) -> None:
    with opened(tmp_path / "data") as store:
        writers = {owner: writer_of(store.log(*owner)) for owner in (T0, T1)}
        locks = [cast(Any, writer.turn).lock for writer in writers.values()]

        def act() -> None:
            with moment._all_locked(writers, 1.0) as is_complete:
                assert is_complete

        def check() -> None:
            stuck = [lock for lock in locks if not is_free(lock)]
            for lock in stuck:
                lock.release()  # for the store's close
            assert stuck == []

        at_every_place(act, check, tried)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_a_thread_runs_although_the_wait_for_its_end_was_interrupted() -> None:
    may_end = threading.Event()
    thread = start_thread(may_end.wait, 300, name="test")

    def interrupt() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    def wait() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        thread.join()

    with alarm(interrupt), pytest.raises(KeyboardInterrupt):
        wait()
    thread.join(0)
    assert thread.is_alive()
    may_end.set()
    thread.join(math.inf)
    assert not thread.is_alive()


def test_a_gate_that_opens_lets_all_through() -> None:
    gate, passed = Gate(), list[bool]()
    assert not gate.is_open
    assert not gate.wait(0)
    threads = [start_thread(lambda: passed.append(gate.wait()), name="test") for _ in range(3)]
    gate.open()
    gate.open()
    for thread in threads:
        thread.join()
    assert passed == [True] * 3
    assert gate.is_open
    assert gate.wait(-1)


def test_no_lock_is_tried_by_a_call() -> None:
    """CPython serves a signal at the end of the call: the lock is then held, and no code will release it."""
    tried = re.compile(r"(lock|mutex)\.acquire\((blocking=)?False\)")
    # The queue's locks are tried elsewhere.
    found = [path for path in Path(kstore.__file__).parent.rglob("*.py") if tried.search(path.read_text())]
    assert [path for path in found if "queue" not in path.parts] == []


# --- waits ------------------------------------------------------------------------------------------------------------


def test_an_interrupted_wait_for_growth_leaves_the_lock_to_other_threads(tried: Tried) -> None:
    fields = LogFields()
    growth = Growth(fields)

    def check() -> None:
        assert fields.follower_count == 0
        assert is_free(growth._lock)

    at_every_place(lambda: growth.wait_for(lambda: False, 1e-6), check, tried)


def test_an_interrupted_wait_for_a_topic_leaves_the_lock_to_other_threads(tmp_path: Path, tried: Tried) -> None:
    with kstore.open(tmp_path / "data", background=False) as store, store.producer(max_block_ms=1) as producer:
        metadata = producer._outbox._metadata

        def act() -> None:
            with suppress(TopicWaitTimeoutError):
                metadata.get("missing", None, 0.001)

        def check() -> None:
            assert is_free(metadata._lock)

        at_every_place(act, check, tried)


def test_an_interrupted_wait_for_counts_leaves_the_lock_to_other_threads(tmp_path: Path, tried: Tried) -> None:
    survey = Survey([tmp_path])

    def check() -> None:
        assert is_free(survey._lock)

    at_every_place(lambda: survey.wait(1e-6), check, tried)


def test_an_interrupted_wait_for_commits_leaves_the_group_to_other_members(tried: Tried) -> None:
    box = MemoryGroup("g", ManualClock())
    members: list[threading.Thread] = []

    def commit(begun: threading.Event) -> None:
        with box.committing():
            begun.set()
            threading.Event().wait(0.001)

    def act() -> None:
        begun = threading.Event()
        members.append(threading.Thread(target=commit, args=[begun]))
        members[-1].start()
        begun.wait(FREE_SECONDS_MAX)
        with box.changing():
            pass

    def check() -> None:
        members.pop().join(FREE_SECONDS_MAX)
        assert not box._changing_count
        assert not box._committing
        assert is_free(box._lock)

    at_every_place(act, check, tried)


def test_no_thread_waits_for_a_condition_of_the_standard_library() -> None:
    """Its methods are Python. An interrupt in ``__enter__`` leaves the lock taken forever. After one in ``wait`` no
    thread has the lock, so its release raises RuntimeError."""
    package = Path(kstore.__file__).parent
    found = {path.relative_to(package) for path in package.rglob("*.py") if "threading.Condition(" in path.read_text()}
    # This one is neither entered nor waited for.
    assert found == {Path("files/lock.py")}


class _Alone:
    """A writer that shares nothing."""

    def take_turn(self) -> None: ...

    def leave_turn(self) -> None: ...


class _Interrupting:
    """A lock that another thread holds, and an interrupted wait for it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self) -> None:
        raise KeyboardInterrupt

    def release(self) -> None:
        self._lock.release()


def test_a_wait_for_the_turn_that_is_interrupted_leaves_the_turn_to_its_owner() -> None:
    alone: Any = _Alone()
    turn = SharedTurnLock(alone, alone, alone, alone)
    has_turn, may_end, found = threading.Event(), threading.Event(), list[bool]()

    def own() -> None:
        with turn:
            has_turn.set()
            may_end.wait(300)
            found.append(turn.is_mine)
            turn._mutex = lock

    lock = turn._mutex
    owner = threading.Thread(target=own)
    owner.start()
    assert has_turn.wait(300)
    turn._mutex = cast(Any, _Interrupting(lock))
    with pytest.raises(KeyboardInterrupt):
        turn.__enter__()
    may_end.set()
    owner.join(300)
    assert found == [True]
