"""Awaits a delivery in asyncio: one wake-up of a loop for each batch, however many of its records are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kstore.producer._accumulate import Delivery
from kstore.producer.records import RecordMetadata

__all__ = ["Awaited", "awaited", "wake"]

# A loop, and what its tasks wait for.
Awaited = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


async def awaited(delivery: Delivery) -> RecordMetadata:
    """Where the record is; waits for it, and makes it go at once. Raises: what the record failed with."""
    while not delivery.done():
        batch = delivery._batch()
        if batch.hurry is not None and not batch.is_done:
            batch.hurry(batch)
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        # The list is replaced by one store, when the batch is released: what comes later sees that it is.
        waiters = batch.awaited
        if waiters is None:
            waiters = batch.awaited = []
        waiters.append((loop, future))
        if batch.is_released:
            break
        await future
    return delivery.result(0)


def wake(waiters: Iterable[Awaited]) -> None:
    """Goes on with those that await a batch that was released."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiters:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, futures)
        except RuntimeError:
            pass  # the loop is closed, and with it all that waited


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
