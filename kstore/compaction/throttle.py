"""A limit for the bytes per second that background work reads and writes."""

from __future__ import annotations

from collections.abc import Callable

from kstore.clock import Clock
from kstore.errors import ConfigError

# Waits are cut into pieces of this length, so that an end is noticed; shorter ones accumulate.
WAIT_SECONDS_MAX = 0.1
WAIT_SECONDS_MIN = 0.05


class Throttle:
    """Limits work to a number of bytes a second; None: no limit. Not thread-safe."""

    def __init__(
        self,
        bytes_per_second: float | None,
        clock: Clock,
        wait: Callable[[float], object],
        has_ended: Callable[[], bool],
    ) -> None:
        """``wait`` waits for the given seconds, or less; ``has_ended`` says that no more waiting is needed."""
        is_number = isinstance(bytes_per_second, int | float)
        if bytes_per_second is not None and not (is_number and bytes_per_second > 0):
            raise ConfigError(f"bytes_per_second is {bytes_per_second!r:.80}, expected a number above 0")
        self._rate = bytes_per_second
        self._clock = clock
        self._wait = wait
        self._has_ended = has_ended
        self._free_at = clock.monotonic()

    def note(self, size: int) -> None:
        """Waits until ``size`` more bytes are within the limit, or until it has ended."""
        if self._rate is None:
            return
        self._free_at = max(self._free_at, self._clock.monotonic()) + size / self._rate
        if self._seconds_left < WAIT_SECONDS_MIN:
            return
        while (seconds := self._seconds_left) > 0 and not self._has_ended():
            self._wait(min(seconds, WAIT_SECONDS_MAX))

    @property
    def is_limited(self) -> bool:
        return self._rate is not None

    @property
    def _seconds_left(self) -> float:
        return self._free_at - self._clock.monotonic()
