"""Shared by the tests of ``kstore.aio``: a loop with a time limit, a store with a topic, cancels at any point."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import kstore
import kstore.aio
from tests.support.fakes.fake_fs import SYNCS, Operation
from tests.support.fakes.loop_fs import LoopFs

Result = TypeVar("Result")

# Only a hang takes longer, even on a busy machine.
WAIT_SECONDS = 300
# A task is cancelled after each of this many turns of its loop.
STEPS = 60


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs ``main`` on its own loop for a limited time; checks that the loop reports nothing, such as an
    exception that was never retrieved."""
    complaints: list[dict[str, Any]] = []

    async def limited() -> Result:
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        async with asyncio.timeout(WAIT_SECONDS):
            return await main

    try:
        return asyncio.run(limited())
    finally:
        gc.collect(1)
        assert complaints == []


class HeldFs(LoopFs):
    """Its writes to the logs whose paths contain ``held`` wait until they are let go."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self.held = held
        self.is_held = False
        self.reached = threading.Event()
        self.go = threading.Event()

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        is_write = operation.kind in SYNCS or operation.kind == "write_and_sync"
        if self.is_held and is_write and self.held in str(operation.path):
            self.reached.set()
            assert self.go.wait(WAIT_SECONDS)
        return super().perform(operation, action)


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
    """Lets others run until a condition holds."""
    while not is_so():
        await asyncio.sleep(0.001)


async def stepped(task: asyncio.Task[Any], steps: int) -> None:
    """Lets a task run for the given turns of its loop, and cancels it if it still runs."""
    for _ in range(steps):
        if task.done():
            return
        await asyncio.sleep(0)
    task.cancel()


# --- cancels at every point -------------------------------------------------------------------------------------------

# While the awaited call is not done; when it is done but the task has not continued yet; and again wherever it
# waits from then on.
Cancel = Literal["waiting", "done", "again and again"]
CANCELS = get_args(Cancel)


class Ended(NamedTuple):
    """How a call ended that was cancelled, or finished first: with ``error`` or with ``result``."""

    result: Any
    error: BaseException | None
    # The cancel came too late.
    is_last: bool

    @property
    def is_cancelled(self) -> bool:
        return isinstance(self.error, asyncio.CancelledError)

    @property
    def notes(self) -> list[str]:
        return getattr(self.error, "__notes__", [])


class _CancelledAt:
    """Awaits ``what``, and cancels the task at the ``point``-th time that it waits."""

    def __init__(self, what: Awaitable[Any], point: int, cancel: Cancel) -> None:
        self._what = what
        self._point = point
        self._cancel = cancel
        self.is_reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        steps, error = self._what.__await__(), None
        for point in count(1):
            try:
                future = next(steps) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value
            if point == self._point or (self.is_reached and self._cancel == "again and again"):
                self.is_reached = True
                if self._cancel == "done" and future is not None:
                    # Before the task is notified.
                    future.add_done_callback(lambda _: task.cancel())
                else:
                    loop.call_soon(task.cancel)
            error = None
            try:
                yield future
            except BaseException as thrown:
                error = thrown


async def cancelled_at(point: int, cancel: Cancel, awaitable: Awaitable[Any]) -> Ended:
    """Awaits something in a task, and cancels the task at the ``point``-th time that it waits."""
    what = _CancelledAt(awaitable, point, cancel)

    async def wait() -> Any:
        return await what

    task = asyncio.create_task(wait())
    await asyncio.wait([task])
    try:
        return Ended(task.result(), None, not what.is_reached)
    except (Exception, asyncio.CancelledError) as error:
        return Ended(None, error, not what.is_reached)


async def at_every_point(
    cancel: Cancel, begin: Callable[[int], Awaitable[Any]], check: Callable[[int, Ended], Awaitable[object]]
) -> int:
    """Starts something again for each point at which it waits, cancels it there, and checks the outcome.

    Returns the number of points.
    """
    point = 0
    while True:
        point += 1
        ended = await cancelled_at(point, cancel, begin(point))
        await check(point, ended)
        if ended.is_last:
            return point - 1
