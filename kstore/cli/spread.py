"""Does the same for each of several items, in this process or in several, and gives the results in order.

Spark's jobs have a `spread` of their own (`spark/jobs/spread`). There a task is a group of items, results may be
DataFrames that do not exist yet, and the driver must not do what a task could not: only the name would be shared.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from kstore.cli.places import LogPlace, log_places
from kstore.errors import KstoreError
from kstore.scan.visits import Advance, no_advance

Item = TypeVar("Item")
Result = TypeVar("Result")

# Starting the processes takes as long as reading and checking this many bytes.
BYTES_MIN = 128 << 20
# How often the caller learns of the progress of the others.
ADVANCE_SECONDS = 0.1
# In another process: the count of bytes that all of them share.
_shared: list[Any] = []


def process_count(jobs: int | None, spared_bytes: int, *, most: int | None = None, bytes_min: int | None = None) -> int:
    """How many processes are to work: ``jobs``; None: one a core, if other processes spare this one enough bytes.

    ``most``: the number of items, if there are no more.
    """
    if jobs is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        jobs = cores if spared_bytes >= (BYTES_MIN if bytes_min is None else bytes_min) else 1
    return jobs if most is None else min(jobs, most)


def each_log(
    look: Callable[[LogPlace, Advance], Result],
    places: Sequence[LogPlace],
    sizes: Sequence[int],
    advance: Advance,
    jobs: int | None = None,
) -> Generator[Result, None, None]:
    """The results of ``look``, a function of a module, for each of ``places``, in their order.

    ``sizes`` are their bytes; ``jobs`` as in ``process_count``. Raises: what ``look`` raises.
    """
    processes = process_count(jobs, sum(sizes) - max(sizes, default=0), most=len(places))
    # An open file system stays in its process.
    elsewhere = partial(_look_at, look)
    with closing(
        spread(look, places, processes, pack=attrgetter("text"), elsewhere=elsewhere, advance=advance)
    ) as results:
        yield from (found for _, found in results)


def _look_at(look: Callable[[LogPlace, Advance], Result], text: str, advance: Advance) -> Result:
    (place,) = log_places(text)
    return look(place, advance)


def spread(
    work: Callable[[Item, Advance], Result],
    items: Iterable[Item],
    processes: int,
    *,
    pack: Callable[[Item], Any] | None = None,
    elsewhere: Callable[[Any, Advance], Result] | None = None,
    ahead: int | None = None,
    advance: Advance = no_advance,
) -> Generator[tuple[Item, Result], None, None]:
    """Each of ``items`` with the result of ``work``, a function of a module; in the order of the items.

    What another process cannot do is done again in this one, which meets the error again: ``work`` raised a
    KstoreError there, or the system ended the process, for want of memory perhaps.

    Args:
        processes: how many work; below 2, only this one.
        pack, elsewhere: what other processes get in place of an item, and do in place of ``work``.
        ahead: how many items may have results that were not taken yet; None: all of them.
        advance: receives what ``work`` passes on, here and, while the caller waits for a result, from elsewhere.

    No process remains at the end, also if the generator is closed early. Raises: what ``work`` raises.
    """
    if processes < 2:
        yield from ((item, work(item, advance)) for item in items)
        return
    # A fork is quick, but copies only the thread that calls it.
    can_fork = threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    progress = _Progress(context.Value("q", 0), advance)
    pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(progress.shared,))
    waiting: deque[tuple[Item, Future[tuple[Result] | None] | None]] = deque()
    is_done = False

    def submitted(item: Item) -> Future[tuple[Result] | None] | None:
        try:
            return pool.submit(_attempt, elsewhere or work, item if pack is None else pack(item))
        except BrokenProcessPool:
            return None

    def taken() -> tuple[Item, Result]:
        item, future = waiting.popleft()
        done = None if future is None else _result(future, progress)
        return item, work(item, advance) if done is None else done[0]

    try:
        for item in items:
            waiting.append((item, submitted(item)))
            if ahead is not None and len(waiting) > ahead:
                yield taken()
        while waiting:
            yield taken()
        is_done = True
    finally:
        if not is_done:
            # An interrupt, or the output was closed: what they are doing is no longer wanted.
            for process in multiprocessing.active_children():
                process.terminate()
        pool.shutdown(cancel_futures=True)


def _result(future: Future[tuple[Result] | None], progress: _Progress) -> tuple[Result] | None:
    while not wait([future], ADVANCE_SECONDS).done:
        progress.tell()
    progress.tell()
    try:
        return future.result()
    except BrokenProcessPool:
        return None


class _Progress:
    """What the other processes have done, for the first one."""

    def __init__(self, shared: Any, advance: Advance) -> None:
        self.shared = shared
        self._advance = advance
        self._told = 0

    def tell(self) -> None:
        # Read without its lock, which a process that the system ended may hold.
        done = self.shared.get_obj().value
        if done != self._told:
            self._advance(done - self._told)
            self._told = done


# --- in another process -----------------------------------------------------------------------------------------------


def _begin(shared: Any) -> None:
    # Ctrl-C goes to every process of the terminal.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _shared[:] = [shared]


def _attempt(work: Callable[[Any, Advance], Result], item: Any) -> tuple[Result] | None:
    try:
        return (work(item, _report),)
    except KstoreError:
        return None


def _report(size: int) -> None:
    (shared,) = _shared
    # A process that the system ended may hold the lock: progress is not worth waiting for.
    if shared.get_lock().acquire(timeout=ADVANCE_SECONDS):
        try:
            shared.get_obj().value += size
        finally:
            shared.get_lock().release()
