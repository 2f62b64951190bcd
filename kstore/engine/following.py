"""Waits for appends of another process: sleeps until the directory changes, if the system reports that."""

from __future__ import annotations

from kstore.clock import Clock
from kstore.engine.source import LogSource
from kstore.errors import StorageError
from kstore.files.watch import DirectoryWatch

__all__ = ["NOTIFIED_POLL_SECONDS", "POLL_SECONDS_MAX", "POLL_SECONDS_MIN", "wait_beyond"]

# How long a follower waits before it looks again; doubled after each look that finds nothing. If the system reports
# changes this covers lost reports, and the durable end, which changes soon after the bytes and without a report.
POLL_SECONDS_MIN = 0.001
POLL_SECONDS_MAX = 0.05
NOTIFIED_POLL_SECONDS = 1.0
LAG_POLL_SECONDS = 0.0002
# A long wait lasts this many times as long as the look before it: with ten thousand segments even a listing is slow.
POLL_COST_FACTOR = 100
COSTLY_POLL_SECONDS_MAX = 10.0


def wait_beyond(log: LogSource, watch: DirectoryWatch, clock: Clock, offset: int, timeout: float | None) -> bool:
    """Waits until the high watermark passes ``offset``; False after ``timeout`` seconds, or if ``log`` is closed.

    Sleeps until the directory changes, if the system reports that; otherwise looks at growing intervals.
    """
    began = clock.monotonic()
    deadline = None if timeout is None else began + timeout
    pause = POLL_SECONDS_MIN
    was_lagging = False
    while not log.closed:
        is_notified = watch.arm()
        try:
            log.refresh()
        except StorageError:
            return False
        ends = log.ends
        if ends.high_watermark > offset:
            return True
        now = clock.monotonic()
        if deadline is not None and now >= deadline:
            return False
        # Whole batches beyond the known durable end: no report comes when they become durable.
        is_lagging = ends.end_offset > max(offset, ends.high_watermark)
        if is_lagging and not was_lagging:
            pause = LAG_POLL_SECONDS
        seconds = pause if is_lagging or not is_notified else NOTIFIED_POLL_SECONDS
        if seconds >= POLL_SECONDS_MAX:
            seconds = max(seconds, min((now - began) * POLL_COST_FACTOR, COSTLY_POLL_SECONDS_MAX))
        pause = min(pause * 2, POLL_SECONDS_MAX)
        was_lagging = is_lagging
        if watch.wait(seconds if deadline is None else min(seconds, deadline - now)):
            was_lagging = False
        began = clock.monotonic()
    return False
