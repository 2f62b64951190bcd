"""Tasks that wait for items of a queue: one of them looks in a thread, for all of them. No leased item is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from kstore.aio.threads import Threads
from kstore.aio.waking import LoopWaiter
from kstore.clock import SYSTEM_CLOCK
from kstore.errors import ClosedError, Empty, KstoreError
from kstore.queue.config import seconds_of
from kstore.queue.job import Job
from kstore.queue.queue import LOOK_SECONDS, Queue, core_of, give_back

logger = logging.getLogger(__name__)

# The largest number of items leased at once for all waiting tasks.
LEASED_MAX: Final = 1_000


class _Getter:
    """A task that waits for up to ``count`` items, until ``deadline`` by the loop's clock."""

    def __init__(self, count: int, seconds: float | None, deadline: float | None) -> None:
        self.count = count
        self.seconds = seconds
        self.deadline = deadline
        self.future: asyncio.Future[list[Job]] = asyncio.get_running_loop().create_future()


class Getters:
    """The waiting tasks, in order of arrival."""

    def __init__(self, queue: Queue, threads: Threads, loop: asyncio.AbstractEventLoop) -> None:
        self.waiter: LoopWaiter = LoopWaiter(SYSTEM_CLOCK, loop)
        self._queue = queue
        self._threads = threads
        self._loop = loop
        self._waiting: list[_Getter] = []
        self._looking: asyncio.Task[None] | None = None
        self._is_listening = False

    async def get(self, count: int, timeout: float | None, seconds: float | None) -> list[Job]:
        """Leases up to ``count`` items for ``seconds``; waits at most ``timeout`` seconds.

        If cancelled, it has leased none: items it was just given are returned. Raises: Empty, and as
            ``Queue.get_many``.
        """
        self._threads.check_fork()
        if seconds is not None:
            # Here, since it concerns only this task.
            seconds = seconds_of("lease_seconds", seconds)
        deadline = deadline_of(timeout)
        getter = _Getter(count, seconds, deadline)
        self._waiting.append(getter)
        if self._looking is None:
            self._begin_to_look()
        else:
            self.waiter.wake()
        try:
            return await getter.future
        except asyncio.CancelledError:
            if getter in self._waiting:
                self._waiting.remove(getter)
                self.waiter.wake()
            if getter.future.done() and not getter.future.cancelled() and getter.future.exception() is None:
                await self._give_back(getter.future.result())
            raise

    def _begin_to_look(self) -> None:
        self._looking = self._loop.create_task(self._look_for_all())
        # Not at the end of the task: one that is cancelled before its first step never reaches it.
        self._looking.add_done_callback(self._looked)

    def _looked(self, _: asyncio.Task[None]) -> None:
        self._looking = None
        if any(not getter.future.done() for getter in self._waiting) and not self._loop.is_closed():
            # The task was cancelled, but the getters were not.
            self._begin_to_look()

    async def _look_for_all(self) -> None:
        try:
            while self._waiting:
                first = self._waiting[0]
                # Getters with the same lease time are served together.
                served = [getter for getter in self._waiting if getter.seconds == first.seconds]
                wanted = min(sum(getter.count for getter in served), LEASED_MAX)
                self.waiter.begin()
                looking = self._threads.submit(partial(self._look, wanted, first.seconds))
                await self._finished(looking)
                jobs, wait_seconds = looking.result()
                await self._hand_out(jobs, served)
                now = self._loop.time()
                for getter in served:
                    if getter in self._waiting and getter.deadline is not None and getter.deadline <= now:
                        self._end(getter, Empty(f"{self._queue.name} has no item that may be delivered now"))
                if jobs or len(served) < len(self._waiting):
                    # The others look for themselves; then the longest wait comes first again.
                    self._waiting = [getter for getter in self._waiting if getter not in served] + [
                        getter for getter in served if getter in self._waiting
                    ]
                if not jobs and self._waiting:
                    deadlines = [getter.deadline - now for getter in self._waiting if getter.deadline is not None]
                    await self.waiter.told(max(min(wait_seconds, *deadlines, LOOK_SECONDS), 0.0))
        except Exception as error:
            for getter in list(self._waiting):
                self._end(getter, error)

    async def _finished(self, looking: asyncio.Future[tuple[list[Job], float]]) -> None:
        try:
            await asyncio.wait([looking])
        except asyncio.CancelledError:
            await asyncio.wait([looking])
            if looking.exception() is None:
                await self._give_back(looking.result()[0])
            raise

    async def _hand_out(self, jobs: list[Job], served: Sequence[_Getter]) -> None:
        for getter in served:
            if not jobs:
                return
            if getter in self._waiting:
                self._waiting.remove(getter)
                if not getter.future.done():
                    getter.future.set_result(jobs[: getter.count])
                    jobs = jobs[getter.count :]
        if jobs:
            # Their getter was cancelled.
            await self._give_back(jobs)

    def _end(self, getter: _Getter, error: Exception) -> None:
        self._waiting.remove(getter)
        if not getter.future.done():
            getter.future.set_exception(error)

    # --- in threads -------------------------------------------------------------------------------------------------

    def _look(self, count: int, seconds: float | None) -> tuple[list[Job], float]:
        """Some items; or none, and how many seconds to wait unless a wake-up comes."""
        queue = self._queue
        if not self._is_listening:
            self._is_listening = True
            self.waiter.listen([core_of(queue).items])
        # Before the look, so that later changes cause a wake-up.
        wait_seconds = self.waiter.arm(lambda: False)
        try:
            return queue.get_many(count, False, lease_seconds=seconds), 0.0
        except Empty:
            due = core_of(queue).wait_seconds()
            return [], wait_seconds if due is None else min(wait_seconds, due)

    async def _give_back(self, jobs: list[Job]) -> None:
        try:
            await self._threads.run(partial(give_back, self._queue, jobs))
        except ClosedError:
            pass  # and with it their leases
        except KstoreError as failure:
            # The cancelled task must get its CancelledError; these items come back when their leases expire.
            logger.warning("%s: %d items could not be returned: %s", self._queue.name, len(jobs), failure)
        self.waiter.wake()


def deadline_of(timeout: float | None) -> float | None:
    """By the loop's clock. Raises: ValueError."""
    if timeout is None:
        return None
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout}, expected a number that is not negative")
    return asyncio.get_running_loop().time() + timeout
