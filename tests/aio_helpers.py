"""What the tests of ``kstore.aio`` share: a loop with a time limit, a store with a topic, cancels at any point."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import kstore
import kstore.aio

__all__ = ["STEPS", "WAIT_SECONDS", "opened", "run", "stepped", "until", "values_in"]

Result = TypeVar("Result")

WAIT_SECONDS = 30
# A task is cancelled after each of so many turns of its loop.
STEPS = 60


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs ``main`` on a loop of its own, for a limited time."""

    async def limited() -> Result:
        async with asyncio.timeout(WAIT_SECONDS):
            return await main

    return asyncio.run(limited())


@asynccontextmanager
async def opened(path: Path, **settings: Any) -> AsyncIterator[kstore.aio.Store]:
    """A store with the topic "orders"."""
    async with kstore.aio.open(path / "data", **settings) as store:
        if "orders" not in await store.topics():
            await store.create_topic("orders")
        yield store


def values_in(path: Path, partition: int = 0) -> list[bytes | None]:
    with kstore.open(path / "data", read_only=True) as store:
        return list(store.log("orders", partition).read_values())


async def until(is_so: Callable[[], bool]) -> None:
    """Lets others run until something is so."""
    while not is_so():
        await asyncio.sleep(0.001)


async def stepped(task: asyncio.Task[Any], steps: int) -> None:
    """Lets a task run for so many turns of its loop, and cancels it if it still runs."""
    for _ in range(steps):
        if task.done():
            return
        await asyncio.sleep(0)
    task.cancel()
