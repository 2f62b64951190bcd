"""A log's own thread for background flushes.

The first append or roll that needs it starts it. It sleeps until there is something to flush, and ends when the log is
closed or dropped: it holds the log weakly.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Protocol

from kstore.errors import ClosedError, KstoreError, PoisonedError, SyncFailedError
from kstore.files.bell import Bell
from kstore.files.threads import start_thread

__all__ = ["BackgroundFlusher", "Flusher"]

logger = logging.getLogger(__name__)

# A failed flush that may be repeated is repeated after the usual delay, but at least this many seconds.
RETRY_SECONDS = 1.0


class Flushable(Protocol):
    """The ``LogWriter``, which is built on a flusher and cannot be imported here."""

    def flush(self) -> None: ...

    def flush_sealed(self) -> None: ...


class BackgroundFlusher(Protocol):
    """Flushes a log in the background: a thread of its own, or its store's."""

    def note(self) -> None:
        """Notes that there is something to flush. Raises: ThreadStartError."""
        ...

    def note_sealed(self) -> None:
        """Notes a sealed segment that must be flushed. Raises: ThreadStartError."""
        ...

    def stop(self) -> None:
        """Returns when the log is not being flushed, and will not be flushed any more."""
        ...


class Flusher:
    """Calls ``log.flush()`` at most ``delay_seconds`` after the first ``note()``, and ``log.flush_sealed()`` as soon as
    possible after ``note_sealed()``. Thread-safe; one call at a time."""

    def __init__(self, log: Flushable, delay_seconds: float) -> None:
        self._log = weakref.ref(log)
        # Kafka's "never" is more than the interpreter can wait for.
        self._delay_seconds = min(delay_seconds, threading.TIMEOUT_MAX / 2)
        # When to flush, by ``time.monotonic``; None if no flush is due.
        self._due: float | None = None
        self._has_sealed = False
        self._wake = Bell()
        self._stop = Bell()
        self._thread: threading.Thread | None = None

    def note(self) -> None:
        """Notes that there is something to flush; almost free if that was noted before. Raises: ThreadStartError."""
        if self._due is None:
            self._begin()
            try:
                self._due = time.monotonic() + self._delay_seconds
                self._wake.set()
            except BaseException:
                self._due = None  # an interrupt: the thread may not have been woken, so the next call wakes it
                raise

    def note_sealed(self) -> None:
        """Notes a sealed segment that must be flushed. Raises: ThreadStartError."""
        if not self._has_sealed:
            self._begin()
            try:
                self._has_sealed = True
                self._wake.set()
            except BaseException:
                self._has_sealed = False  # as in ``note``
                raise

    def _begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = start_thread(
                _run, self._log, self._wake, self._stop, weakref.ref(self), name="kstore-flusher"
            )

    def stop(self) -> None:
        """Ends the thread, without a last flush; returns when it no longer uses the log."""
        self._stop.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()

    def __del__(self) -> None:
        self._stop.set()
        self._wake.set()

    def _seconds_left(self) -> float | None:
        """How many seconds until a flush is due; None if none is."""
        if self._has_sealed:
            return 0.0
        return None if self._due is None else max(self._due - time.monotonic(), 0.0)

    def _work(self, log: Flushable) -> None:
        # Before each flush: whatever arrives during it is not covered, and notes it again.
        if self._has_sealed:
            self._has_sealed = False
            log.flush_sealed()
        if self._due is not None and self._due <= time.monotonic():
            self._due = None
            log.flush()

    def _try_again(self) -> None:
        """Schedules a failed flush again: otherwise it would wait for the next append or roll."""
        if self._due is None:
            self._due = time.monotonic() + max(self._delay_seconds, RETRY_SECONDS)


def _run(log: weakref.ref[Flushable], wake: Bell, stop: Bell, owner: weakref.ref[Flusher]) -> None:
    while not stop.is_set():
        flusher = owner()
        if flusher is None:
            return
        seconds = flusher._seconds_left()
        del flusher
        if seconds is None or seconds > 0:
            wake.wait(seconds)
            wake.clear()
            continue
        flusher, target = owner(), log()
        if flusher is None or target is None:
            return
        try:
            flusher._work(target)
        except (ClosedError, PoisonedError, SyncFailedError) as error:
            # A failed sync has poisoned the log, so every later append raises it; a closed log needs no flush.
            logger.warning("the background flush ended: %s", error)
            return
        except KstoreError as error:
            logger.warning("a background flush failed, and is tried again: %s", error)
            flusher._try_again()
        except Exception:
            # Out of memory, or a defect. Without this thread nothing would be flushed until the next append.
            logger.exception("a background flush failed in a way that was not expected, and is tried again")
            flusher._try_again()
        del flusher, target
