"""Waits until one of many logs grows: by an append of this process, or of another one. No log is held open by it.

A log that this process alone writes to signals each new end; of the others the system reports that their directory has
changed. Such a watch outlives the request: until it fires, the log is as it was at the last look.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from kstore.door.waiting import Waiter
from kstore.engine.change.growth import (
    COSTLY_POLL_SECONDS_MAX,
    NOTIFIED_POLL_SECONDS,
    POLL_COST_FACTOR,
    POLL_SECONDS_MAX,
)
from kstore.engine.source import LogSource
from kstore.engine.writer import LogWriter
from kstore.files.bell import Bell
from kstore.files.watch import DirectoryWatch
from kstore.log import Log


class _News(Bell):
    """Rings when the directory of a log changes; wakes everyone who waits for that."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.waiters: set[Waiter] = set()  # guarded by the lock of the parking, read as a copy
        self.watch: DirectoryWatch = DirectoryWatch(log.path.absolute(), self)
        self.looking: threading.Lock = threading.Lock()
        # Until then the log is as it was at the last look, unless this rings. ``time.monotonic()`` seconds.
        self.known_until = 0.0

    def set(self) -> None:
        super().set()
        for waiter in tuple(self.waiters):
            waiter.wake()


class Parking:
    """What all requests of a door wait for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a finalizer may forget a log inside
        self._news: weakref.WeakKeyDictionary[Log, _News] = weakref.WeakKeyDictionary()  # guarded by the lock

    def has_news(self, log: Log, source: LogSource) -> bool:
        """Whether other processes may have changed the log since the last ``look`` of any request."""
        if not _is_foreign(source):
            return False
        news = self._news.get(log)
        return news is None or news.is_set() or not news.watch.is_armed or time.monotonic() >= news.known_until

    def look(self, log: Log, source: LogSource) -> None:
        """Takes in what other processes have done, and watches for more."""
        if not _is_foreign(source):
            return
        with self._lock:
            news = self._news.get(log)
            if news is None:
                news = self._news[log] = _News(log)
        with news.looking:
            # Until the look is over there are news for all others: the next line may take away what has rung for them.
            news.known_until = 0.0
            began = time.monotonic()
            # Armed first: what comes after the look is reported.
            is_notified = news.watch.arm()
            source.refresh()
            ends = source.ends
            # Of records that become durable no report comes.
            if is_notified and ends.end_offset == ends.high_watermark:
                now = time.monotonic()
                # Where looking at all of them takes long, each is looked at less often: what changes is reported.
                pause = (now - began) * len(self._news) * POLL_COST_FACTOR
                news.known_until = now + min(max(pause, NOTIFIED_POLL_SECONDS), COSTLY_POLL_SECONDS_MAX)

    @contextmanager
    def waiting(self, waiter: Waiter, logs: Iterable[tuple[Log, LogSource]]) -> Iterator[float]:
        """Wakes ``waiter`` when one of the ``logs`` may have grown since the last ``look``; gives the seconds after
        which to look in any case."""
        seconds = NOTIFIED_POLL_SECONDS
        with ExitStack() as stack:
            for log, source in logs:
                if isinstance(source, LogWriter):
                    source.watch_growth(waiter.wake)
                    stack.callback(source.unwatch_growth, waiter.wake)
                if _is_foreign(source):
                    with self._lock:
                        news = self._news.get(log)
                        if news is not None:
                            news.waiters.add(waiter)
                            stack.callback(news.waiters.discard, waiter)
                    if news is None or time.monotonic() >= news.known_until:
                        seconds = POLL_SECONDS_MAX
            yield seconds


def _is_foreign(source: LogSource) -> bool:
    """Whether other processes may write to the log."""
    return not isinstance(source, LogWriter) or source.is_shared
