"""An event that a finalizer and a signal handler may set."""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Bell:
    """An event that code which interrupts the waiting thread itself may set: a signal handler, or a garbage collection.
    ``threading.Event``, whose methods it has, holds a lock for moments of its wait, so such a call would deadlock."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return not self._rings.empty()

    def set(self) -> None:
        if self._rings.empty():
            self._rings.put(None)

    def clear(self) -> None:
        try:
            while True:
                self._rings.get_nowait()
        except Empty:
            pass

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._rings.get(timeout=None if timeout is None else max(timeout, 0.0))
        except Empty:
            return False
        self._rings.put(None)
        return True
