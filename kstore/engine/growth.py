"""Waits in the writer's process until a log grows, and wakes the log's followers."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Growth"]


class Growth:
    """The followers of one log in this process. Thread-safe."""

    def __init__(self) -> None:
        # Reentrant: a finalizer may close a consumer, which watches, inside. The condition itself is never entered: an
        # interrupt at the end of its ``__enter__``, which is Python code, would leave the lock taken.
        self._lock = threading.RLock()
        self._grown = threading.Condition(self._lock)
        # Guarded by the lock; each append reads it without.
        self.follower_count: int = 0
        self._watchers: list[Callable[[], None]] = []  # guarded and read as above; each counts as a follower

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
            self.follower_count += 1
            self._watchers.append(grown)

    def unwatch(self, grown: Callable[[], None]) -> None:
        with self._lock:
            if grown in self._watchers:
                self._watchers.remove(grown)
                self.follower_count -= 1

    def wait_for(self, is_over: Callable[[], bool], timeout: float | None) -> None:
        """Waits until ``is_over()``, at most ``timeout`` seconds."""
        with self._lock:
            self.follower_count += 1
            try:
                # An append before this thread was counted is already published, and is seen here.
                self._grown.wait_for(is_over, timeout)
            finally:
                self.follower_count -= 1
