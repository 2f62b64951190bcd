"""Time as a value that is passed in, so that tests control it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What kstore needs of time. Implementations are thread-safe."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back. For measuring intervals."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "SystemClock()"

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Not a method around it: it is called several times for each write.
    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK = SystemClock()
