"""Waits until one of many logs grows: by an append of this process, or of another one. No log is held open by it.

A log that this process alone writes to signals each new end; of the others the system reports that their directory has
changed. Such a watch outlives the request: until it fires, the log is as it was at the last look.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kstore.door.waiting import Waiter
from kstore.engine.change.growth import (
    COSTLY_POLL_SECONDS_MAX,
    NOTIFIED_POLL_SECONDS,
    POLL_COST_FACTOR,
    POLL_SECONDS_MAX,
)
from kstore.engine.source import LogSource
from kstore.engine.writer import LogWriter
from kstore.files.threads import Bell
from kstore.files.watch import DirectoryWatch
from kstore.log import Log


class News(Bell):
    """Rings when other processes change the directory of a log, and wakes everyone who waits for that."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.waiters: set[Waiter] = set()  # guarded by the lock of the parking, read as a copy
        self.watch: DirectoryWatch = DirectoryWatch(log.path.absolute(), self)
        self.looking: threading.Lock = threading.Lock()
        # Until then the log is as it was at the last look, unless this rings. ``time.monotonic()`` seconds.
        self.known_until = 0.0

    def is_due(self) -> bool:
        """Whether other processes may have changed the log since the last ``look`` of any request."""
        return self.is_set() or not self.watch.is_armed or time.monotonic() >= self.known_until

    def set(self) -> None:
        super().set()
        for waiter in tuple(self.waiters):
            waiter.wake()


class Parking:
    """What all requests of a door wait for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a finalizer may forget a log inside
        self._news: weakref.WeakKeyDictionary[Log, News] = weakref.WeakKeyDictionary()  # guarded by the lock

    def of(self, log: Log, source: LogSource) -> News | None:
        """What is known of other processes; None if this one alone writes to the log."""
        if isinstance(source, LogWriter) and not source.is_shared:
            return None
        with self._lock:
            news = self._news.get(log)
            if news is None:
                news = self._news[log] = News(log)
            return news

    def look(self, news: News, source: LogSource) -> None:
        """Takes in what other processes have done, and watches for more."""
        with news.looking:
            # Until the look is over there are news for all others: the next line may take away what has rung for them.
            news.known_until = 0.0
            began = time.monotonic()
            # Armed first: what comes after the look is reported.
            is_notified = news.watch.arm()
            source.refresh()
            ends = source.ends
            # Nothing reports that records become durable.
            if is_notified and ends.end_offset == ends.high_watermark:
                now = time.monotonic()
                # Where looking at all of them takes long, each is looked at less often: what changes is reported.
                pause = (now - began) * len(self._news) * POLL_COST_FACTOR
                # To the next whole second, so that one look serves many logs.
                news.known_until = math.ceil(now + min(max(pause, NOTIFIED_POLL_SECONDS), COSTLY_POLL_SECONDS_MAX))

    @contextmanager
    def waiting(self, waiter: Waiter, logs: Iterable[tuple[LogSource, News | None]]) -> Iterator[None]:
        """A block in which ``waiter`` is woken when one of the ``logs`` may have grown since the last ``look``."""
        # No stack of callbacks, which would take longer than all of it: an idle client asks for thousands of logs.
        wake = waiter.wake
        writers: list[LogWriter] = []
        known: list[News] = []
        try:
            for source, news in logs:
                if isinstance(source, LogWriter):
                    writers.append(source)
                    source.watch_growth(wake)
                if news is not None:
                    known.append(news)
                    with self._lock:
                        news.waiters.add(waiter)
            yield
        finally:
            for writer in writers:
                writer.unwatch_growth(wake)
            for news in known:
                news.waiters.discard(waiter)


def seconds_until_look(known: Iterable[News]) -> float:
    """How long a request may wait, at most, before it looks again at logs that other processes write to."""
    until = min((news.known_until for news in known), default=math.inf)
    return min(max(until - time.monotonic(), POLL_SECONDS_MAX), NOTIFIED_POLL_SECONDS)
