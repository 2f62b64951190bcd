"""What a door counts: requests, answers and refusals; and the line in the log that a refusal gets."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from kstore.metric_rows import MetricValue

logger = logging.getLogger(__name__)

# Each subject gets at most one line in the log within this time, and so do all again after as many of them.
LINE_SECONDS = 1.0
PEERS_MAX = 1000


class Counters:
    """Sums since the door opened. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self.requests: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
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
                self.errors[str(error)] += 1

    def read(self) -> dict[str, MetricValue]:
        """The counters by their names in ``DOOR_METRICS``."""
        with self._lock:
            return {
                "requests": dict(self.requests),
                "request_seconds": dict(self.seconds),
                "errors": dict(self.errors),
                "received_bytes": self.bytes_in,
                "sent_bytes": self.bytes_out,
            }


class Lines:
    """Which lines the log gets: at most one a second about the same thing. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By subject, the time of its last line. Guarded by _lock.
        self._times: dict[str, float] = {}

    def is_due(self, subject: str) -> bool:
        """Whether to write a line about ``subject`` now; that counts as written."""
        now = self._clock()
        with self._lock:
            if now - self._times.get(subject, -LINE_SECONDS) < LINE_SECONDS:
                return False
            if len(self._times) >= PEERS_MAX:
                self._times.clear()
            self._times[subject] = now
            return True


class Refusals:
    """Connections that were closed for what they sent. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self.count = 0  # guarded by _lock
        self._lines = Lines(clock)

    def note(self, peer: str, reason: str) -> None:
        """Counts a refusal, and says why in the log, at most once a second for a peer."""
        with self._lock:
            self.count += 1
        if self._lines.is_due(peer):
            logger.warning("a connection from %s is closed: %.300s", peer, reason)
