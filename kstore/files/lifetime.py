"""``Lifetime``: whether something is open, in the process that opened it."""

from __future__ import annotations

from kstore.errors import ClosedError
from kstore.files.fork import ForkGuard


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
