"""Waits until a log grows: its own writer wakes the followers in this process, and the appends of another process are
looked for when the directory changes, if the system reports that, else at intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kstore.clock import Clock
from kstore.engine._fields import LogFields
from kstore.engine.source import LogSource
from kstore.errors import StorageError
from kstore.files._locks import Condition
from kstore.files.watch import DirectoryWatch

# How long a follower waits before it looks again; doubled after each look that finds nothing. If the system reports
# changes this covers lost reports, and the durable end, which changes soon after the bytes and without a report.
POLL_SECONDS_MIN = 0.001
POLL_SECONDS_MAX = 0.05
NOTIFIED_POLL_SECONDS = 1.0
LAG_POLL_SECONDS = 0.0002
# A long wait lasts this many times as long as the look before it: with ten thousand segments even a listing is slow.
POLL_COST_FACTOR = 100
COSTLY_POLL_SECONDS_MAX = 10.0


class Growth:
    """The followers of one log in this process, counted in ``follower_count`` of its fields. Thread-safe."""

    def __init__(self, fields: LogFields) -> None:
        # Reentrant: a finalizer may close a consumer, which watches, inside.
        self._lock = threading.RLock()
        self._grown = Condition(self._lock)
        self._fields = fields
        self._watchers: list[Callable[[], None]] = []  # guarded by the lock; each counts as a follower

    def wake(self) -> None:
        """Wakes the followers: the log has grown, or is closed."""
        with self._lock:
            self._grown.notify_all()
            for grown in tuple(self._watchers):
                grown()

    def watch(self, grown: Callable[[], None]) -> None:
        """Calls ``grown``, which must be short, after each append and when the log is closed, until ``unwatch``."""
        with self._lock:
            # The count first: a signal handler may run after this. A count that is too high costs time but loses no
            # wake-up.
            self._fields.follower_count += 1
            self._watchers.append(grown)

    def unwatch(self, grown: Callable[[], None]) -> None:
        with self._lock:
            if grown in self._watchers:
                self._watchers.remove(grown)
                self._fields.follower_count -= 1

    def wait_for(self, is_over: Callable[[], bool], timeout: float | None) -> None:
        """Waits until ``is_over()``, at most ``timeout`` seconds."""
        with self._lock:
            self._fields.follower_count += 1
            try:
                # An append before this thread was counted is already published, and is seen here.
                self._grown.wait_for(is_over, timeout)
            finally:
                self._fields.follower_count -= 1


def wait_beyond(log: LogSource, watch: DirectoryWatch, clock: Clock, offset: int, timeout: float | None) -> bool:
    """Waits until the high watermark passes ``offset``, by appends of another process; False after ``timeout`` seconds,
    or if ``log`` is closed.

    Sleeps until the directory changes, if the system reports that; otherwise looks at growing intervals.
    """
    began = clock.monotonic()
    deadline = None if timeout is None else began + timeout
    pause = POLL_SECONDS_MIN
    was_lagging = False
    while not log.closed:
        is_notified = watch.arm()
        try:
            log.refresh()
        except StorageError:
            return False
        ends = log.ends
        if ends.high_watermark > offset:
            return True
        now = clock.monotonic()
        if deadline is not None and now >= deadline:
            return False
        # Whole batches beyond the known durable end: no report comes when they become durable.
        is_lagging = ends.end_offset > max(offset, ends.high_watermark)
        if is_lagging and not was_lagging:
            pause = LAG_POLL_SECONDS
        seconds = pause if is_lagging or not is_notified else NOTIFIED_POLL_SECONDS
        if seconds >= POLL_SECONDS_MAX:
            seconds = max(seconds, min((now - began) * POLL_COST_FACTOR, COSTLY_POLL_SECONDS_MAX))
        pause = min(pause * 2, POLL_SECONDS_MAX)
        was_lagging = is_lagging
        if watch.wait(seconds if deadline is None else min(seconds, deadline - now)):
            was_lagging = False
        began = clock.monotonic()
    return False
