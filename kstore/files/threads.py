"""Threads: starting one, waking one, and parallel work that is safe to wait for in a finalizer.

The garbage collector may run a finalizer, and with it a ``close()``, at any allocation, even where the interrupted code
holds a lock of the whole process. Two rules keep such a close from deadlocking:

- ``ThreadPoolExecutor.submit`` holds a lock of all pools while it starts a thread, so nothing that a close needs uses
  one. ``side_by_side`` takes no such lock, even with a ``WorkerPool``, and waits only for threads that are
  already working;
- a thread inside the lock registry (``files.lock``) does not wait for other threads, which may need the registry:
  ``closed_elsewhere`` moves the close to a new thread, and does not wait for its start either.
"""

from __future__ import annotations

import _thread
import errno
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import TypeVar

from kstore.errors import ThreadStartError
from kstore.files._locks import Gate
from kstore.files.lock import is_in_registry

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


class _Thread(threading.Thread):
    """A daemon thread, which an interrupt of its ``join`` leaves alive.

    CPython 3.11 and 3.12 take a thread whose ``join`` was interrupted for ended, although it runs.
    """

    def __init__(self, work: Callable[..., object], arguments: tuple[object, ...], name: str) -> None:
        super().__init__(target=work, args=arguments, name=name, daemon=True)
        self._ended = Gate()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._ended.open()

    def is_alive(self) -> bool:
        return self.ident is not None and not self._ended.is_open

    def join(self, timeout: float | None = None) -> None:
        if self._ended.wait(timeout):
            super().join()


def start_thread(work: Callable[..., object], *arguments: object, name: str) -> threading.Thread:
    """Starts a daemon thread. Raises: ThreadStartError."""
    if sys.is_finalizing():
        # The new thread would never report that it runs, which ``start`` waits for.
        raise ThreadStartError(errno.EAGAIN, f"the thread {name} cannot be started: the interpreter ends")
    thread = _Thread(work, arguments, name)
    try:
        thread.start()
    except RuntimeError as error:
        raise ThreadStartError(errno.EAGAIN, f"the thread {name} cannot be started: {error}") from error
    return thread


class WorkerPool:
    """Threads that stay for more work, for work that is too short to start a thread for. Used by one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()

    def begin(self, work: Callable[[], object], number: int) -> None:
        """Makes one of ``number`` threads call ``work``, which raises nothing. Raises: ThreadStartError."""
        if self._count < number:
            start_thread(_serve, self._calls, name=f"{self._name}-{number}")
            self._count += 1
        self._calls.put(work)

    def close(self) -> None:
        """Ends the threads; does not wait for them."""
        for _ in range(self._count):
            self._calls.put(None)
        self._count = 0


def _serve(calls: SimpleQueue[Callable[[], object] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call


def side_by_side(
    work: Callable[[Item], object], items: Iterable[Item], *, count: int, name: str, workers: WorkerPool | None = None
) -> None:
    """Calls ``work`` for each item, in this thread and in ``count`` - 1 others; returns when all calls have ended.

    The others are new threads called ``name``, or those of ``workers``.

    If no more threads can be started, the existing ones do it all. An exception in one call does not stop the others;
    the first is raised at the end. An interrupt of this thread starts no more calls, and waits for those started; so
    does a second one.
    """
    waiting = deque(items)
    # From the other threads: an entry when one looks for an item, and later its failure, or None.
    begun: deque[None] = deque()
    ended: deque[BaseException | None] = deque()
    bell: SimpleQueue[None] = SimpleQueue()

    def help_out() -> None:
        while waiting:
            # First: a thread with an item is waited for.
            begun.append(None)
            failure: BaseException | None = None
            try:
                item = waiting.popleft()
            except IndexError:
                pass  # another thread was faster
            else:
                try:
                    work(item)
                except BaseException as error:
                    failure = error
            ended.append(failure)
            bell.put(None)

    failures: list[BaseException] = []
    try:
        try:
            for number in range(1, min(count, len(waiting))):
                if workers is not None:
                    workers.begin(help_out, number)
                else:
                    start_thread(help_out, name=f"{name}-{number}")
        except ThreadStartError:
            pass
        while waiting:
            try:
                item = waiting.popleft()
            except IndexError:
                break
            try:
                work(item)
            except Exception as error:
                failures.append(error)
    finally:
        interrupt: BaseException | None = None
        while True:
            try:
                waiting.clear()
                # A thread that has not started yet will find nothing to do, and is not waited for: its start may need a
                # lock of the interpreter that this thread holds.
                while len(ended) < len(begun):
                    bell.get()
                break
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
    failures += [failure for failure in ended if failure is not None]
    if failures:
        raise failures[0]


def closed_elsewhere(close: Callable[[], object], what: object) -> bool:
    """Whether ``close`` was moved to a new thread, because this one is inside the lock registry, where only a finalizer
    can call it. Its exceptions are logged. False: the caller closes."""
    if not is_in_registry():
        return False

    def work() -> None:
        try:
            close()
        except Exception:
            logger.exception("%r: closed by a finalizer", what)

    if sys.is_finalizing():
        return False
    try:
        # Not ``Thread.start``, which waits until the thread runs: a garbage collection there may need the registry.
        _thread.start_new_thread(work, ())
    except RuntimeError:
        return False
    return True


class Bell:
    """An event that code which interrupts the waiting thread itself may set: a signal handler, or a garbage collection.
    ``threading.Event``, whose methods it has, holds a lock for moments of its wait, so such a call would deadlock."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return not self._rings.empty()

    def set(self) -> None:
        if self._rings.empty():
            self._rings.put(None)

    def clear(self) -> None:
        try:
            while True:
                self._rings.get_nowait()
        except Empty:
            pass

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._rings.get(timeout=None if timeout is None else max(timeout, 0.0))
        except Empty:
            return False
        self._rings.put(None)
        return True
