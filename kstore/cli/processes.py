"""Work on several tasks at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from kstore.errors import KstoreError

Task = TypeVar("Task")
Result = TypeVar("Result")

# Starting the processes takes as long as reading and checking this many bytes.
BYTES_MIN = 128 << 20
# How often the caller learns of the progress of the others.
ADVANCE_SECONDS = 0.1
# In another process: the count of bytes that all of them share.
_shared: list[Any] = []


def _nothing(size: int) -> None:
    """No caller wants to know the progress."""


def processor_count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    count: int,
    *,
    ahead: int,
    advance: Callable[[int], None] = _nothing,
) -> Generator[tuple[Task, tuple[Result] | None], None, None]:
    """Each of ``tasks`` with the result of ``work``, a function of a module, in a tuple; in the order of the tasks.

    None in place of a result: ``work`` raised a KstoreError, or the system ended its process, for want of memory
    perhaps. The caller does the task itself, and meets the error again.

    ``count`` processes work; they have at most ``ahead`` tasks whose results were not taken yet. None of them remains
    at the end, also if the generator is closed early. ``advance`` is called, while the caller waits for a result, with
    what ``work`` has given to ``report_progress``. Raises: what ``work`` raises, if it is no KstoreError.
    """
    # A fork is quick, but copies only the thread that calls it.
    can_fork = threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    progress = _Progress(context.Value("q", 0), advance)
    pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(progress.shared,))
    waiting: deque[tuple[Task, Future[tuple[Result] | None] | None]] = deque()
    is_done = False
    try:
        for task in tasks:
            waiting.append((task, _submitted(pool, work, task)))
            if len(waiting) > ahead:
                yield _taken(*waiting.popleft(), progress)
        while waiting:
            yield _taken(*waiting.popleft(), progress)
        is_done = True
    finally:
        if not is_done:
            # An interrupt, or the output was closed: what they are doing is no longer wanted.
            for process in multiprocessing.active_children():
                process.terminate()
        pool.shutdown(cancel_futures=True)


def _submitted(
    pool: ProcessPoolExecutor, work: Callable[[Task], Result], task: Task
) -> Future[tuple[Result] | None] | None:
    try:
        return pool.submit(_attempt, work, task)
    except BrokenProcessPool:
        return None


def _taken(
    task: Task, future: Future[tuple[Result] | None] | None, progress: _Progress
) -> tuple[Task, tuple[Result] | None]:
    if future is None:
        return task, None
    while not wait([future], ADVANCE_SECONDS).done:
        progress.tell()
    progress.tell()
    try:
        return task, future.result()
    except BrokenProcessPool:
        return task, None


class _Progress:
    """What the other processes have done, for the first one."""

    def __init__(self, shared: Any, advance: Callable[[int], None]) -> None:
        self.shared = shared
        self._advance = advance
        self._told = 0

    def tell(self) -> None:
        # Read without its lock, which a process that the system ended may hold.
        done = self.shared.get_obj().value
        if done != self._told:
            self._advance(done - self._told)
            self._told = done


def _begin(shared: Any) -> None:
    """In another process."""
    # Ctrl-C goes to every process of the terminal.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _shared[:] = [shared]


def report_progress(size: int) -> None:
    """Adds to the bytes that are done; in another process."""
    (shared,) = _shared
    # A process that the system ended may hold the lock: progress is not worth waiting for.
    if shared.get_lock().acquire(timeout=ADVANCE_SECONDS):
        try:
            shared.get_obj().value += size
        finally:
            shared.get_lock().release()


def _attempt(work: Callable[[Task], Result], task: Task) -> tuple[Result] | None:
    """In another process."""
    try:
        return (work(task),)
    except KstoreError:
        return None
