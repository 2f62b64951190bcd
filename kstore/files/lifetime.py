"""Whether something may still be used: it is open, and this is the process that opened it.

A fork copies every open log into the child, which must not use them: two writers would share one file and one lock.
Objects that must not cross a fork remember the generation they were created in and compare it before they write, which
costs less than reading the process id.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from kstore.errors import ClosedError, ForkedError

_generation = 0


def _count_child() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_count_child)


class ForkGuard:
    """Knows the process it was created in. Thread-safe."""

    __slots__ = ("_generation",)

    def __init__(self) -> None:
        self._generation = _generation

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that created the guard."""
        return self._generation != _generation

    def check(self, what: str) -> None:
        """Raises: ForkedError, in a child."""
        if self._generation != _generation:
            raise ForkedError(f"{what} was opened before this process was forked; it only works in the parent")


class Closing:
    """``with`` closes it at the end of the block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Lifetime:
    """The state of a store, a producer or a consumer; its owner sets ``closed``. For any thread."""

    def __init__(self, what: str) -> None:
        """``what`` is closed until its owner says that it is open."""
        self.closed = True
        self._what = what
        self._guard = ForkGuard()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened it."""
        return self._guard.forked

    def check(self) -> None:
        """Raises: ClosedError, ForkedError."""
        if self.closed:
            raise ClosedError(f"{self._what} is closed")
        self.check_fork()

    def check_fork(self) -> None:
        """Raises: ForkedError."""
        if self._guard.forked:
            self._guard.check(self._what)
