"""Wakes threads of a producer, and tasks of asyncio.

Tasks: each batch wakes a loop once, however many of its records are awaited.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kstore.files.lifetime import Lifetime
from kstore.producer._accumulate import Delivery, ProducerBatch, WeakCall
from kstore.producer.records import RecordMetadata

if TYPE_CHECKING:
    import asyncio

# A loop, and the future that its tasks await.
Awaited = tuple["asyncio.AbstractEventLoop", "asyncio.Future[None]"]


class Wakeup:
    """One thread waits for it, and others set it. ``set`` takes no lock, because the garbage collector may call it in
    any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Ends the current wait, or the next one."""
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:
                pass  # another thread was faster

    def wait(self, timeout: float) -> bool:
        """Waits until it is set, up to ``timeout`` seconds; then clears it."""
        return self._lock.acquire(timeout=timeout)


class Hurry:
    """What a batch calls when a thread waits for it. In a forked child it raises an error, also without the producer:
    no thread delivers the batch there."""

    def __init__(self, call: WeakCall, life: Lifetime) -> None:
        self._call = call
        self._life = life

    def __call__(self, batch: ProducerBatch) -> None:
        """Raises: ForkedError."""
        self.check_fork()
        self._call(batch)

    def check_fork(self) -> None:
        """Raises: ForkedError."""
        self._life.check_fork()


def is_on_loop() -> bool:
    """Whether an event loop runs in this thread, which then must not wait for a disk or a lock."""
    # A loop runs only in a program that has imported asyncio. Another thread may be importing it now.
    running_loop = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return running_loop is not None and running_loop() is not None


async def awaited(delivery: Delivery) -> RecordMetadata:
    """The position of the record; waits for it, and sends it at once. Raises: what the record failed with."""
    await arrived(delivery)
    return delivery.result(0)


async def arrived(delivery: Delivery) -> None:
    """Waits until the record has arrived or failed, and sends it at once. Does not check which."""
    import asyncio

    loop = asyncio.get_running_loop()
    while (future := delivery._arrival(loop)) is not None:
        await future


def wake(waiters: Iterable[Awaited]) -> None:
    """Wakes the tasks that await a batch that was released."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiters:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, futures)
        except RuntimeError:
            pass  # the loop is closed, and with it all its tasks


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
