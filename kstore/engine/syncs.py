"""Syncing a log's files: one sync at a time, and none after one that failed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kstore.errors import SyncFailedError

__all__ = ["Syncs"]


class Syncs:
    """Thread-safe. The lock is held while files are synced. Where the log's lock is held too, it is taken first."""

    def __init__(self) -> None:
        self.lock: threading.Lock = threading.Lock()
        self._failure: SyncFailedError | None = None  # guarded by the lock

    def alone(self, sync: Callable[[], None]) -> None:
        """Calls ``sync``. The system reports a failed writeback once to each descriptor, so a concurrent sync would
        conclude that everything is on disk.

        A call, and no context manager made of a generator: an interrupt on the way into one of these leaves the lock
        held for as long as its traceback lives.

        Raises: what ``sync`` raises; SyncFailedError after a failure.
        """
        with self.lock:
            before = self._failure
            if before is not None:
                reason = "a sync has failed before, and is not repeated"
                raise SyncFailedError(before.errno, reason, before.filename) from before
            try:
                sync()
            except SyncFailedError as error:
                self._failure = error
                raise
