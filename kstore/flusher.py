"""The one lazy thread of a log that flushes in the background.

It is started by the first append that wants it, sleeps until there is something to flush, and ends when the log is
closed or forgotten: it holds the log weakly.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Protocol

from kstore.errors import KstoreError
from kstore.files.bell import Bell

__all__ = ["Flusher"]

logger = logging.getLogger(__name__)


class Flushable(Protocol):
    def flush(self) -> None: ...


class Flusher:
    """Calls ``log.flush()`` at most ``delay_seconds`` after ``note()`` was called first. Thread-safe."""

    def __init__(self, log: Flushable, delay_seconds: float) -> None:
        self._log = weakref.ref(log)
        # Never, as Kafka says it, is more than the interpreter can wait for.
        self._delay_seconds = min(delay_seconds, threading.TIMEOUT_MAX)
        self._noted = False
        self._wake = Bell()
        self._stop = Bell()
        self._thread: threading.Thread | None = None

    def note(self) -> None:
        """There is something to flush. Costs next to nothing when that was known."""
        if self._noted:
            return
        self._noted = True
        if self._thread is None:
            self._thread = threading.Thread(
                target=_run,
                args=(self._log, self._wake, self._stop, self._delay_seconds, weakref.ref(self)),
                name="kstore-flusher",
                daemon=True,
            )
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread, without a last flush; returns when it is not in the log any more."""
        self._stop.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()

    def __del__(self) -> None:
        self._stop.set()
        self._wake.set()


def _run(
    log: weakref.ref[Flushable],
    wake: Bell,
    stop: Bell,
    delay_seconds: float,
    owner: weakref.ref[Flusher],
) -> None:
    while not stop.is_set():
        wake.wait()
        wake.clear()
        if stop.wait(delay_seconds):
            return
        flusher = owner()
        if flusher is None:
            return
        # Before the flush: an append that comes during it is not covered, and asks again.
        flusher._noted = False
        del flusher
        target = log()
        if target is None:
            return
        try:
            target.flush()
        except KstoreError as error:
            # A failed sync has poisoned the log, and every later append says so; a closed log needs no flush.
            logger.warning("the background flush ended: %s", error)
            return
        del target
