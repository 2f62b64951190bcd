"""Wakes a task when a log has grown: no thread waits for it.

A log's own writer signals after each append. The system signals what other processes write, if it can. If it cannot,
and for data not yet known to be durable, the task checks again after an interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kstore.clock import Clock
from kstore.consumer.waiting import LogWaiter
from kstore.engine.change.growth import NOTIFIED_POLL_SECONDS, POLL_SECONDS_MAX, POLL_SECONDS_MIN
from kstore.files.threads import Bell

# How long to wait, in seconds, if no further check is needed.
FOREVER: Final = 3600.0


class LoopEvent(Bell):
    """An event that any thread sets, for a task of one loop too. The loop is woken once for each wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._told: asyncio.Future[None] = loop.create_future()
        self._is_telling = False

    def set(self) -> None:
        super().set()
        if not self._is_telling:
            self._is_telling = True
            try:
                self._loop.call_soon_threadsafe(self._tell)
            except RuntimeError:
                pass  # the loop is closed, and so is everything that waited

    def _tell(self) -> None:
        if not self._told.done():
            self._told.set_result(None)

    def begin(self) -> None:
        """Starts to note signals; call it on the loop, before checking the awaited condition."""
        if self._told.done():
            self._told = self._loop.create_future()
        self._is_telling = False

    async def told(self, seconds: float) -> bool:
        """Whether it was set since ``begin``, or is within ``seconds``."""
        # Not asyncio.timeout: if a loop is closed under its tasks, Python 3.11 can crash when it collects these
        # objects.
        done, _ = await asyncio.wait([self._told], timeout=seconds)
        return bool(done)


class LoopWaiter(LogWaiter):
    """Wakes tasks of one loop, and no thread. Its user first calls ``begin``, on the loop; then it checks and, if it
    finds nothing, calls ``arm``, both in any thread; then it awaits ``told`` for as long as ``arm`` says."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(clock)
        self._loop = loop
        self._event = self._loop_event = LoopEvent(loop)
        self._pause = POLL_SECONDS_MIN

    def begin(self) -> None:
        self._is_woken = False
        self._loop_event.begin()

    async def told(self, seconds: float) -> bool:
        """Whether something has happened since ``begin``, or does within ``seconds``."""
        return await self._loop_event.told(seconds)

    def arm(self, has_more: Callable[[], bool]) -> float:
        """Signals every later change. Returns the seconds after which to check anyway; 0: now."""
        is_notified = self._arm()
        if self._is_woken or has_more():
            self._pause = POLL_SECONDS_MIN
            return 0.0
        if all(watch is None for _, watch in self._heard.values()):
            return FOREVER
        if is_notified and not self._is_lagging():
            self._pause = POLL_SECONDS_MIN
            return NOTIFIED_POLL_SECONDS
        pause, self._pause = self._pause, min(self._pause * 2, POLL_SECONDS_MAX)
        return pause

    def close_soon(self) -> None:
        """Makes the loop close it; takes no lock."""
        try:
            self._loop.call_soon_threadsafe(self.close)
        except RuntimeError:
            self._heard.clear()  # the loop is closed
