"""``Waiter``: how the thread of one connection waits for something, without using a processor.

An event wakes it from any thread, also from a finalizer or a signal handler: ``wake`` takes no lock.
"""

from __future__ import annotations

import time

from kstore.files.threads import Bell


class Waiter:
    """Waits for one request. ``wait`` is for the connection's thread, everything else for any thread."""

    def __init__(self) -> None:
        # Whether the peer has left, or the door closes: there is no one to answer, or no time left to wait.
        self.gone = False
        self._bell = Bell()

    def wait(self, until: float) -> None:
        """Returns when woken since the last ``wait``, when ``gone``, or at ``until`` (``time.monotonic()`` seconds).

        It may also return earlier: look again at what is waited for.
        """
        seconds = until - time.monotonic()
        if self.gone or seconds <= 0:
            return
        if self._bell.wait(seconds):
            self._bell.clear()

    def wake(self) -> None:
        """Ends a ``wait``, now or the next one."""
        self._bell.set()

    def leave(self) -> None:
        """The peer has left, or the door closes."""
        self.gone = True
        self._bell.set()
