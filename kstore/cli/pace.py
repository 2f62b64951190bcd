"""A limit for the number of records that a run sends per second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import ConfigError

# A delayed run may catch up on at most this much of what it missed.
CATCH_UP_SECONDS: Final = 0.1


class Pace:
    """Limits a run to a number of records a second; None: no limit. Not thread-safe."""

    def __init__(
        self,
        per_second: float | None,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Raises: ConfigError."""
        if per_second is not None and not per_second > 0:
            raise ConfigError(f"{per_second} records a second, expected more than 0")
        self.per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._due = clock.monotonic()

    def wait_for(self, count: int) -> None:
        """Waits until ``count`` more records may be sent. If it is interrupted, they are not sent."""
        if self.per_second is None:
            return
        due = max(self._due, self._clock.monotonic() - CATCH_UP_SECONDS)
        while (seconds := due - self._clock.monotonic()) > 0:
            self._sleep(seconds)
        self._due = due + count / self.per_second
