"""Counts the records that failed and that nobody has asked after: ``flush`` and ``close`` report them."""

from __future__ import annotations

import threading

__all__ = ["Failures", "without_frames"]


def without_frames(error: BaseException) -> BaseException:
    """The error, and what caused it, without the frames that they came through: those hold what was to be written,
    for as long as somebody keeps the error. A pooled buffer with a view of it alive cannot grow."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


class Failures:
    """Failed deliveries that nobody has looked at. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._first: Exception | None = None

    def add(self, count: int, error: Exception) -> None:
        """``count`` records failed with ``error``, and have no callback that was told."""
        if count > 0:
            with self._lock:
                self._count += count
                self._first = self._first or error

    def seen(self) -> None:
        """Somebody has looked at one of them."""
        with self._lock:
            if self._count:
                self._count -= 1
                if not self._count:
                    self._first = None

    def take(self) -> tuple[int, Exception] | None:
        """How many there are, and the first; they are reported with that, and counted no more."""
        with self._lock:
            count, first, self._count, self._first = self._count, self._first, 0, None
        return None if first is None else (count, first)
