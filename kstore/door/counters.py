"""What a door counts: requests, answers and refusals; and the line in the log that a refusal gets."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

__all__ = ["Counters", "Refusals"]

logger = logging.getLogger(__name__)

# A peer gets at most one line in the log within this time, and so do all peers after as many of them.
LINE_SECONDS = 1.0
PEERS_MAX = 1000


class Counters:
    """Sums since the door opened. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self.requests: Counter[str] = Counter()
        self.errors: Counter[tuple[str, int]] = Counter()
        self.seconds: Counter[str] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0

    def answered(self, api: str, seconds: float, size: int, answer_size: int, *, error: int = 0) -> None:
        with self._lock:
            self.requests[api] += 1
            self.seconds[api] += seconds  # type: ignore[assignment]  # a Counter sums any numbers
            self.bytes_in += size
            self.bytes_out += answer_size
            if error:
                self.errors[api, error] += 1


class Refusals:
    """Connections that were closed for what they sent. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._lock = threading.Lock()
        # By peer, the time of its last line. Guarded by _lock, as ``count``.
        self._lines: dict[str, float] = {}

    def note(self, peer: str, reason: str) -> None:
        """Counts a refusal, and says why in the log, at most once a second for a peer."""
        now = self._clock()
        with self._lock:
            self.count += 1
            if now - self._lines.get(peer, -LINE_SECONDS) < LINE_SECONDS:
                return
            if len(self._lines) >= PEERS_MAX:
                self._lines.clear()
            self._lines[peer] = now
        logger.warning("a connection from %s is closed: %.300s", peer, reason)
