"""Ctrl-C at suitable moments: at once where a command waits, otherwise when it next waits.

with held_interrupts() as interrupts:
    with interrupts.allowed():
        lines = read()          # KeyboardInterrupt here
    send(lines)                 # never here, except for the second Ctrl-C
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupts:
    """Whether Ctrl-C was pressed, and where it may interrupt. For the main thread."""

    def __init__(self) -> None:
        self.came = False
        self._is_allowed = False

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """A block that Ctrl-C interrupts, even if it was pressed before the block."""
        try:
            self._is_allowed = True
            self.check()
            yield
        finally:
            self._is_allowed = False

    def check(self) -> None:
        """Raises: KeyboardInterrupt, if Ctrl-C was pressed."""
        if self.came:
            raise KeyboardInterrupt

    def note(self, *_: object) -> None:
        """Handles Ctrl-C; the second one does not wait."""
        is_second, self.came = self.came, True
        if is_second or self._is_allowed:
            raise KeyboardInterrupt


@contextmanager
def held_interrupts() -> Iterator[Interrupts]:
    """Holds Ctrl-C back while the block runs."""
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        # A shell makes its background jobs ignore it.
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts.note)
    try:
        yield interrupts
    finally:
        # None: the handler was not set from Python, and cannot be set again.
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
