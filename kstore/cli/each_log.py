"""Does the same for each of several logs, on all cores: one process takes one log at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from kstore.cli.places import LogPlace, log_places
from kstore.errors import KstoreError
from kstore.files.local import SYSTEM_FS
from kstore.upkeep.verify.findings import Advance

__all__ = ["each_log"]

Result = TypeVar("Result")

# Starting the processes takes as long as checking this many bytes.
BYTES_MIN = 128 << 20


def each_log(
    look: Callable[[LogPlace, Advance], Result], places: Sequence[LogPlace], sizes: Sequence[int], advance: Advance
) -> Generator[Result, None, None]:
    """The results of ``look``, a function of a module, for each of ``places``, in their order.

    ``sizes`` are their bytes. Other processes work if that is worth it; none remains at the end.

    Raises: what ``look`` raises.
    """
    count = min(len(places), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if count < 2 or sum(sizes) - max(sizes) < BYTES_MIN:
        for place in places:
            yield look(place, advance)
        return
    # A fork is quick, but copies only the thread that calls it.
    can_fork = threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_die_on_interrupts)
    is_done = False
    try:
        futures = [pool.submit(_look, look, str(place.path), place.is_stray) for place in places]
        for place, size, future in zip(places, sizes, futures, strict=True):
            try:
                result = future.result()
            except BrokenProcessPool:
                result = None  # the system has ended a process, for want of memory perhaps
            if result is None:
                yield look(place, advance)
            else:
                advance(size)
                yield result[0]
        is_done = True
    finally:
        if not is_done:
            # An interrupt, or the output was closed: what they are doing is no longer wanted.
            for process in multiprocessing.active_children():
                process.terminate()
        pool.shutdown(cancel_futures=True)


def _die_on_interrupts() -> None:
    # Ctrl-C goes to every process of the terminal.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _look(look: Callable[[LogPlace, Advance], Result], path: str, is_stray: bool) -> tuple[Result] | None:
    """In another process. None for an error: the first process meets it again, and reports it."""
    place = log_places(path)[0] if is_stray else LogPlace(Path(path), SYSTEM_FS)
    try:
        return (look(place, _no_advance),)
    except KstoreError:
        return None


def _no_advance(size: int) -> None:
    """The first process reports the progress, a log at a time."""
