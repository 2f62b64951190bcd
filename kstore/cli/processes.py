"""Work on several tasks at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from kstore.errors import KstoreError

__all__ = ["BYTES_MIN", "in_order", "processor_count"]

Task = TypeVar("Task")
Result = TypeVar("Result")

# Starting the processes takes as long as reading and checking this many bytes.
BYTES_MIN = 128 << 20


def processor_count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[Task], Result], tasks: Iterable[Task], count: int, *, ahead: int
) -> Generator[tuple[Task, tuple[Result] | None], None, None]:
    """Each of ``tasks`` with the result of ``work``, a function of a module, in a tuple; in the order of the tasks.

    None in place of a result: ``work`` raised a KstoreError, or the system ended its process, for want of memory
    perhaps. The caller does the task itself, and meets the error again.

    ``count`` processes work; they have at most ``ahead`` tasks whose results were not taken yet. None of them remains
    at the end, also if the generator is closed early. Raises: what ``work`` raises, if it is no KstoreError.
    """
    # A fork is quick, but copies only the thread that calls it.
    can_fork = threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_die_on_interrupts)
    waiting: deque[tuple[Task, Future[tuple[Result] | None] | None]] = deque()
    is_done = False
    try:
        for task in tasks:
            waiting.append((task, _submitted(pool, work, task)))
            if len(waiting) > ahead:
                yield _taken(*waiting.popleft())
        while waiting:
            yield _taken(*waiting.popleft())
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


def _taken(task: Task, future: Future[tuple[Result] | None] | None) -> tuple[Task, tuple[Result] | None]:
    try:
        return task, None if future is None else future.result()
    except BrokenProcessPool:
        return task, None


def _die_on_interrupts() -> None:
    # Ctrl-C goes to every process of the terminal.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _attempt(work: Callable[[Task], Result], task: Task) -> tuple[Result] | None:
    """In another process."""
    try:
        return (work(task),)
    except KstoreError:
        return None
