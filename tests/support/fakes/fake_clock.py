"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """``Clock`` with two hands that a test moves; not thread-safe."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 1000.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, ms: int) -> None:
        """Lets time pass."""
        assert ms >= 0, "time passes forwards; see jump()"
        self._now_ms += ms
        self._monotonic += ms / 1000

    def jump(self, ms: int) -> None:
        """Sets the wall clock, forwards or back, while no time passes."""
        self._now_ms += ms
