"""``Memory``: one budget for what the requests of all connections take, beyond what every connection has anyway."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Loan", "Memory"]


class Loan:
    """Memory that one request has; falsy if it got none. For the request's thread."""

    def __init__(self, memory: Memory, size: int) -> None:
        self._memory = memory
        self.size = size

    def __bool__(self) -> bool:
        return self.size > 0

    def keep(self, size: int) -> None:
        """Gives back all but ``size`` bytes."""
        if size < self.size:
            self._memory._give(self.size - size)
            self.size = size


class Memory:
    """``total`` bytes. Thread-safe. Requests are not served in turn: a small one may pass a large one that waits."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._taken = 0
        self._is_ended = False

    @property
    def taken(self) -> int:
        return self._taken

    @contextmanager
    def lent(self, size: int, seconds: float) -> Iterator[Loan]:
        """Takes ``size`` bytes for the block, and waits for them at most so long.

        A size above the total waits until it is alone.
        """
        loan = Loan(self, 0)
        try:
            with self._changed:
                wanted = min(size, self.total)
                is_free = self._changed.wait_for(lambda: self._is_ended or self._taken + wanted <= self.total, seconds)
                if is_free and not self._is_ended:
                    self._taken += wanted
                    loan.size = wanted
            yield loan
        finally:
            loan.keep(0)

    def _give(self, size: int) -> None:
        with self._changed:
            self._taken -= size
            self._changed.notify_all()

    def end(self) -> None:
        """Ends all waits, and lends nothing more."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
