"""SIGALRM for tests that interrupt the main thread. It may come late, and is harmless then."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ring: Callable[[], object] | None = None


def _on_alarm(*_: object) -> None:
    if _ring is not None:
        _ring()


@contextmanager
def alarm(ring: Callable[[], object]) -> Iterator[None]:
    """Within the block, the timer ``signal.ITIMER_REAL`` calls ``ring`` in the main thread.

    A test runner has other threads. The main one may notice a signal that they received only after the block. So the
    handler stays installed: without one, a late signal ends the process.
    """
    global _ring
    signal.signal(signal.SIGALRM, _on_alarm)
    _ring = ring
    try:
        yield
    finally:
        _ring = None
        signal.setitimer(signal.ITIMER_REAL, 0)
