"""Finalizers that close stores, logs, producers and consumers wherever the garbage collector may run them.

The collector may run at any allocation, even while the interrupted thread holds a lock. Here a finalizer runs each time
an operation reaches a new line of kstore.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any
from weakref import WeakSet

import pytest

import kstore
import kstore.store  # now, since the finalizers of these tests may run during a later import
from kstore.engine.change import flush as flushers
from kstore.engine.change.flush import Flusher
from kstore.errors import ClosedError, KstoreError
from kstore.files import descriptors, handles, lock
from kstore.files import threads as thread_module
from kstore.files import watch as watches
from kstore.files.lock import DirectoryLock
from kstore.files.threads import Bell, WorkerPool, closed_elsewhere, side_by_side
from kstore.files.watch import DirectoryWatch
from kstore.log import writer_of

PACKAGE = str(Path(kstore.__file__).parent)
# These act on the whole process: finalizers run at all of their lines.
OF_THE_PROCESS = {str(module.__file__) for module in (descriptors, handles, lock, thread_module, watches)}
# A deadlock lasts forever; a busy machine may be slow.
LONG = 120.0


# How many stores are opened in advance, for the lines of the registry.
AHEAD = 30


class Interrupted:
    """Runs operations in a thread; at each new line one of ``finalizers`` runs, until there are no more.

    They are made outside the registry of locks, ``ahead`` of them, because they may open stores, which waits for
    threads. If none is left for a line of the registry, that line gets one when it runs again. ``places`` are prefixes
    of the names of the files whose lines count.
    """

    def __init__(
        self, finalizers: Iterator[Callable[[], object]], *places: str, one_in: int = 1, ahead: int = 1
    ) -> None:
        self._finalizers = finalizers
        self._places = places or (PACKAGE,)
        self._one_in = one_in
        self._ahead_count = ahead
        self._ahead: deque[Callable[[], object]] = deque()
        self._seen: set[tuple[str, int]] = set()
        self._is_finalizing = False
        self.count = 0

    def run(self, operation: Callable[[], object]) -> None:
        failures: list[BaseException] = []

        def work() -> None:
            sys.settrace(self._trace)
            try:
                operation()
            except BaseException as error:
                failures.append(error)
            finally:
                sys.settrace(None)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        seen = -1
        while thread.is_alive() and seen != self.count:
            seen = self.count
            thread.join(LONG)
        if thread.is_alive():
            faulthandler.dump_traceback()
            pytest.fail(f"a deadlock after {self.count} finalizers")
        if failures:
            raise failures[0]

    def end(self) -> None:
        """Runs the finalizers that were made but not run."""
        while self._ahead:
            self._ahead.popleft()()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if self._is_finalizing or not name.startswith(self._places):
            return None
        at = (name, frame.f_lineno)
        if at not in self._seen:
            self._seen.add(at)
            if (name in OF_THE_PROCESS or len(self._seen) % self._one_in == 0) and not self._finalize():
                self._seen.discard(at)
        return self._trace

    def _finalize(self) -> bool:
        """Whether no finalizer is left, or one ran."""
        self._is_finalizing = True
        try:
            if not lock.is_in_registry():
                self._ahead.extend(itertools.islice(self._finalizers, self._ahead_count - len(self._ahead)))
            elif not self._ahead:
                return False
            if self._ahead:
                self._ahead.popleft()()
                self.count += 1
            return True
        finally:
            self._is_finalizing = False


# --- stores, producers, consumers -------------------------------------------------------------------------------------


def closes_of_stores(directory: Path) -> Iterator[Callable[[], object]]:
    """The closes of stores with two logs each, which are closed in parallel."""
    for number in itertools.count():
        store = kstore.open(directory / f"victim-{number}", durability="os")
        store.create_topic("a", 2)
        for partition in range(2):
            store.log("a", partition).append(b"v")
        yield store.close


def life(path: Path) -> None:
    """A program's use of a store."""
    with kstore.open(path, durability="os") as store:
        store.create_topic("orders", 2)
        with store.producer() as producer:
            producer.send("orders", b"v", partition=0).result(LONG)
        with store.consumer("orders", group="g") as consumer:
            consumer.poll(timeout=1)
            consumer.commit()
        queue = store.queue("jobs")
        queue.put(b"job")
        queue.get().ack()
    with kstore.open(path, shared=True, durability="os") as store:
        store.log("orders").append(b"w")
        with kstore.open(path, read_only=True) as reader:
            assert len(list(reader.log("orders").read(0, 1))) == 1
            assert list(reader.log("orders").read(2, follow=True, timeout=0.01)) == []


@pytest.mark.parametrize("one_in", [pytest.param(40, id="some"), pytest.param(1, id="all", marks=pytest.mark.soak)])
@pytest.mark.long
def test_a_finalizer_closes_another_store_at_any_line(one_in: int, tmp_path: Path) -> None:
    interrupted = Interrupted(closes_of_stores(tmp_path), one_in=one_in, ahead=AHEAD)
    interrupted.run(lambda: life(tmp_path / "store"))
    interrupted.end()
    assert interrupted.count > 100


@pytest.mark.long
def test_a_finalizer_closes_a_store_wherever_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of open files covers the whole process, and every close updates it."""
    monkeypatch.setattr(descriptors.OPEN_TAILS, "_limit", lambda: 4)
    monkeypatch.setattr(handles, "KEPT_SHARE", 1 << 30)

    def use_many_files() -> None:
        with kstore.open(tmp_path / "store", durability="os", background=False) as store:
            store.create_topic("orders", 4)
            for _ in range(3):
                for number in range(4):
                    store.log("orders", number).append(b"v")
                    store.log("orders", number).roll()
                    assert len(list(store.log("orders", number).read(0, 1))) == 1
            assert descriptors.relieve()

    interrupted = Interrupted(closes_of_stores(tmp_path), str(descriptors.__file__), str(handles.__file__), ahead=AHEAD)
    interrupted.run(use_many_files)
    interrupted.end()
    assert interrupted.count > 60


@pytest.mark.parametrize("what", ["store", "producer"])
def test_a_finalizer_closes_something_while_a_pool_starts_a_thread(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector runs in ``ThreadPoolExecutor.submit``, which holds a lock of all pools."""
    with kstore.open(tmp_path / "store", durability="sync") as store:
        store.create_topic("orders", 8)
        if what == "store":
            close = next(closes_of_stores(tmp_path))
        else:
            # Its sender has several partitions, which it syncs in parallel.
            producer = store.producer(linger_ms=10**6)
            deliveries = [producer.send("orders", b"v", partition=number) for number in range(8)]
            close = producer.close
        init = threading.Thread.__init__

        def collecting(thread: threading.Thread, *arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(threading.Thread, "__init__", init)
            close()
            init(thread, *arguments, **options)

        def submit() -> None:
            with ThreadPoolExecutor(1) as pool:
                monkeypatch.setattr(threading.Thread, "__init__", collecting)
                assert pool.submit(int).result(LONG) == 0

        Interrupted(iter(())).run(submit)
        if what == "producer":
            assert all(delivery.done() for delivery in deliveries)


@pytest.mark.parametrize("kind", ["producer-closed", "producer-forgotten", "consumer-closed", "consumer-forgotten"])
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_finalizer_ends_a_producer_or_a_consumer_of_the_same_store(kind: str, tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os") as store:
        store.create_topic("orders", 2)

        def ends() -> Iterator[Callable[[], object]]:
            for made in [made_one() for _ in range(60)]:
                if kind.endswith("closed"):
                    yield made.close
                else:
                    holder = [made]
                    del made
                    yield holder.clear

        def made_one() -> Any:
            if kind.startswith("producer"):
                return store.producer()
            consumer = store.consumer("orders", group="other")
            consumer.poll(timeout=0)
            return consumer

        def use() -> None:
            with store.producer() as producer:
                producer.send("orders", b"v", partition=0).result(LONG)
            with store.consumer("orders", group="g") as consumer:
                consumer.poll(timeout=1)
                consumer.commit()
            queue = store.queue("jobs")
            queue.put(b"job")
            queue.get().ack()
            store.create_topic("more")
            store.metrics()

        finalizers = ends()
        first = next(finalizers)  # all of them are made before
        interrupted = Interrupted(itertools.chain([first], finalizers), one_in=70)
        interrupted.run(use)
        assert interrupted.count > 20


def test_a_finalizer_closes_a_consumer_that_an_append_wakes(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os") as store:
        store.create_topic("orders")
        log = store.log("orders")
        for number in itertools.count():
            consumer = store.consumer("orders")
            consumer.poll(timeout=0.001)
            interrupted = Interrupted(itertools.chain([lambda: None] * number, [consumer.close]))
            interrupted.run(writer_of(log).growth.wake)
            consumer.close()
            if interrupted.count <= number:
                break
        assert number > 1


# --- threads and locks ------------------------------------------------------------------------------------------------


def test_a_close_inside_the_lock_registry_is_done_by_another_thread(tmp_path: Path) -> None:
    store_lock = DirectoryLock(tmp_path)
    released = threading.Event()

    def close() -> None:
        # Another thread releases the lock, and this one waits.
        helper = threading.Thread(target=store_lock.release)
        helper.start()
        helper.join()
        released.set()

    def finalize() -> None:
        assert closed_elsewhere(close, store_lock)

    with lock._mutex:
        finalize()
        assert not released.is_set()
    assert released.wait(LONG)
    assert not closed_elsewhere(close, store_lock)


def test_a_thread_for_a_close_inside_the_lock_registry_may_need_the_registry_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a new thread the collector runs before the thread reports that it runs, and finds a share of a lock."""
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def collecting(thread: threading.Thread) -> None:
        with lock._mutex:
            pass
        bootstrap(thread)

    closed = threading.Event()

    def close_in_registry() -> None:
        with lock._mutex:
            assert closed_elsewhere(closed.set, tmp_path)

    monkeypatch.setattr(threading.Thread, "_bootstrap_inner", collecting)
    threading.Thread(target=close_in_registry, daemon=True).start()
    assert closed.wait(LONG)


def test_work_is_done_side_by_side() -> None:
    together = threading.Barrier(4)
    side_by_side(lambda _: together.wait(LONG), range(4), count=4, name="test")


@pytest.mark.parametrize("startable", [0, 1])
def test_work_is_done_where_few_threads_can_be_started(startable: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start, left = threading.Thread.start, [None] * startable

    def refusing(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", refusing)
    side_by_side(done.append, range(9), count=4, name="test")
    assert sorted(done) == list(range(9))


def test_a_crew_stays_for_more_work_and_ends() -> None:
    crew = WorkerPool("crew")
    used: set[threading.Thread] = set()
    together = threading.Barrier(4)

    def work(item: int) -> None:
        together.wait(LONG)
        used.add(threading.current_thread())

    for _ in range(3):
        side_by_side(work, range(4), count=4, name="work", workers=crew)
    assert len(used) == 4
    crew.close()
    for thread in used - {threading.current_thread()}:
        thread.join(LONG)
        assert not thread.is_alive()


def test_all_work_is_done_before_a_failure_is_raised() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        if number == 3:
            raise ClosedError("the third")

    with pytest.raises(ClosedError, match="the third"):
        side_by_side(work, range(9), count=3, name="test")
    assert sorted(done) == list(range(9))


def test_an_interrupt_waits_for_what_was_begun() -> None:
    begun, ended = threading.Barrier(2), threading.Event()
    caller = threading.current_thread()

    def work(_: int) -> None:
        begun.wait(LONG)
        if threading.current_thread() is caller:
            raise KeyboardInterrupt
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        side_by_side(work, range(2), count=2, name="test")
    assert ended.is_set()


def test_a_second_interrupt_waits_for_what_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, ended = threading.Barrier(2), threading.Event(), threading.Event()
    caller = threading.current_thread()

    class ImpatientBell(SimpleQueue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            if not may_end.is_set():
                may_end.set()
                raise KeyboardInterrupt("the second")
            super().get(block, timeout)

    def work(_: int) -> None:
        begun.wait(LONG)
        if threading.current_thread() is caller:
            raise KeyboardInterrupt
        may_end.wait(LONG)
        ended.set()

    monkeypatch.setattr(thread_module, "SimpleQueue", ImpatientBell)
    with pytest.raises(KeyboardInterrupt, match="the second"):
        side_by_side(work, range(2), count=2, name="test")
    assert ended.is_set()


# --- events that a finalizer sets -------------------------------------------------------------------------------------


def test_a_bell_may_be_set_at_any_line_of_its_own_wait() -> None:
    bell = Bell()
    interrupted = Interrupted(itertools.repeat(bell.set), PACKAGE, str(threading.__file__))
    interrupted.run(lambda: bell.wait(LONG))
    interrupted.run(bell.clear)
    assert interrupted.count > 2


class Flushed:
    def flush(self) -> None:
        """Nothing."""

    def flush_sealed(self) -> None:
        """Nothing."""

    def keep_failure(self, error: KstoreError) -> None:
        """Nothing."""


def test_a_flusher_may_be_collected_in_its_own_thread() -> None:
    log = Flushed()
    for number in itertools.count():
        flusher = Flusher(log, 0)
        flusher._due = time.monotonic() + 0.001
        # Its thread finds it once, waits, and then finds it gone.
        owners = iter([flusher])
        arguments = flusher._log, flusher._wake, flusher._stop, partial(next, owners, None)
        finalizers = itertools.chain([lambda: None] * number, [flusher.__del__])
        interrupted = Interrupted(finalizers, PACKAGE, str(threading.__file__))
        interrupted.run(lambda: flushers._run(*arguments))  # type: ignore[arg-type]  # noqa: B023
        if interrupted.count <= number:
            break
    assert number > 5


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_watches_may_be_collected_and_closed_inside_the_hub(tmp_path: Path) -> None:
    hub = watches._hub()
    assert hub is not None
    watched, others = tmp_path / "watched", tmp_path / "others"
    prefix = os.fsencode(tmp_path)
    watched.mkdir()
    others.mkdir()

    def forgotten() -> Generator[Callable[[], object], None, None]:
        for number in itertools.count():
            (others / str(number)).mkdir()
            for directory in (watched, others / str(number)):
                closed, collected = DirectoryWatch(directory), [DirectoryWatch(directory)]
                assert closed.arm()
                assert collected[0].arm()
                yield closed.close
                yield collected.clear

    def use() -> None:
        kept = DirectoryWatch(watched)
        assert kept.arm()
        (watched / "new").touch()
        assert kept.wait(LONG)
        assert kept.arm()
        hub.tell(None)
        assert kept.wait(0)
        assert kept.arm()
        assert kept.is_armed
        hub.tell(kept._number)
        assert kept.wait(0)
        kept.close()

    finalizers = forgotten()
    interrupted = Interrupted(finalizers, str(watches.__file__))
    interrupted.run(use)
    assert interrupted.count > 30
    finalizers.close()
    gc.collect()
    assert not hub._forgotten
    assert not [watch for waiting in hub._waiting.values() for watch in waiting if watch._path.startswith(prefix)]


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_a_watch_may_be_collected_while_the_hub_tells_all(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    kept, collected = DirectoryWatch(tmp_path / "a"), [DirectoryWatch(tmp_path / "b")]
    assert kept.arm()
    assert collected[0].arm()
    hub = watches._hub()
    assert hub is not None

    class Collecting(WeakSet[DirectoryWatch]):
        def __iter__(self) -> Iterator[DirectoryWatch]:
            collected.clear()
            return super().__iter__()

    assert kept._number is not None
    hub._waiting[kept._number] = Collecting([kept])
    hub.tell(None)
    assert kept.wait(0)
