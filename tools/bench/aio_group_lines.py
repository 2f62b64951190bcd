"""asyncio: tasks that each wait for one durable record, beside a group commit made by hand over ``append_many``.

The group made by hand is what a program without ``kstore.aio`` does: a thread takes all that waits, appends it with one
call, and wakes the loop once. It checks nothing, and its tasks cannot be cancelled.
"""

from __future__ import annotations

import asyncio
import queue
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import kstore
import kstore.aio
from tools.bench.logs import fresh, values
from tools.bench.measure import Line, Run, all_in_turn, percentile

TOPIC = "orders"
VALUE_BYTES = 200
SECONDS = 0.5
# How many tasks, and the share of the group's rate that is asked.
TASKS = ((1, 0.9), (32, 0.85), (256, 0.85))
TICK_SECONDS, LATE_SECONDS_MAX = 0.001, 0.005

Call = Callable[[bytes], Awaitable[object]]
Opened = Callable[[Path], AbstractAsyncContextManager[Call]]


class Driven(NamedTuple):
    """Calls a second, and by how many seconds the ticks beside them were late."""

    rate: float
    late: list[float]


def aio_group(run: Run) -> list[Line]:
    """Each way beside the group made by hand, in turn; and a timer beside the most tasks."""
    lines = []
    for tasks, share in TASKS:
        ways = [partial(_driven, run.root, opened, tasks) for opened in (by_hand, *WAYS.values())]
        results = all_in_turn(ways, rounds=run.rounds)
        by_hand_rates = [driven.rate for driven in results[0]]
        for name, found in zip(WAYS, results[1:], strict=True):
            rate = statistics.median(driven.rate for driven in found)
            # Of each round: a slow spell of the disk hits both.
            ratio = statistics.median(driven.rate / beside for driven, beside in zip(found, by_hand_rates, strict=True))
            lines.append(
                Line(
                    f"asyncio, {name} by {'one task' if tasks == 1 else f'{tasks} tasks'}, fsync",
                    f"{rate:,.0f}/s",
                    f"a group by hand {statistics.median(by_hand_rates):,.0f}/s",
                    f"{ratio:.2f}",
                    f"{share} of it",
                    ratio >= share,
                )
            )
    # Of the most tasks.
    by_hand_high, high = (_high(driven) for driven in results[:2])
    lines.append(
        Line(
            f"asyncio, a timer of {TICK_SECONDS * 1e3:.0f} ms beside {TASKS[-1][0]} tasks that append, fsync",
            f"p99 {high * 1e3:.1f} ms late",
            f"a group by hand {by_hand_high * 1e3:.1f} ms",
            f"{high / by_hand_high:.2f}",
            f"below {LATE_SECONDS_MAX * 1e3:.0f} ms",
            high < LATE_SECONDS_MAX,
        )
    )
    return lines


def _high(rounds: list[Driven]) -> float:
    return percentile([late for driven in rounds for late in driven.late], 0.99)


def _driven(root: Path, opened: Opened, tasks: int) -> Driven:
    (value,) = values(1, VALUE_BYTES)

    async def main(path: Path) -> Driven:
        async with opened(path) as call:
            await call(value)
            count, late = 0, list[float]()
            end = time.perf_counter() + SECONDS

            async def work() -> None:
                nonlocal count
                while time.perf_counter() < end:
                    await call(value)
                    count += 1

            async def tick() -> None:
                while (begun := time.perf_counter()) < end:
                    await asyncio.sleep(TICK_SECONDS)
                    late.append(time.perf_counter() - begun - TICK_SECONDS)

            begun = time.perf_counter()
            await asyncio.gather(tick(), *(work() for _ in range(tasks)))
            return Driven(count / (time.perf_counter() - begun), late)

    with fresh(root, "aio-group") as path:
        return asyncio.run(main(path))


# --- the ways ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def by_hand(path: Path) -> AsyncIterator[Call]:
    """A thread, a queue and ``append_many``."""
    loop = asyncio.get_running_loop()
    waiting: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()

    def wake(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            if not future.done():
                future.set_result(None)

    def write() -> None:
        while True:
            found = [waiting.get()]
            try:
                while True:
                    found.append(waiting.get_nowait())
            except queue.Empty:
                pass
            pairs = [pair for pair in found if pair is not None]
            if pairs:
                log.append_many([value for value, _ in pairs])
                loop.call_soon_threadsafe(wake, [future for _, future in pairs])
            if len(pairs) < len(found):
                return

    async def append(value: bytes) -> None:
        future: asyncio.Future[None] = loop.create_future()
        waiting.put((value, future))
        await future

    with kstore.Log(path) as log:
        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield append
        finally:
            waiting.put(None)
            thread.join()


@asynccontextmanager
async def log_append(path: Path) -> AsyncIterator[Call]:
    async with kstore.aio.open(path) as store:
        await store.topic(TOPIC)
        yield (await store.log(TOPIC)).append


@asynccontextmanager
async def producer_send(path: Path) -> AsyncIterator[Call]:
    async with kstore.aio.open(path) as store:
        await store.topic(TOPIC)
        async with store.producer() as producer:
            yield lambda value: producer.send_and_wait(TOPIC, value)


@asynccontextmanager
async def queue_put(path: Path) -> AsyncIterator[Call]:
    async with kstore.aio.open(path) as store:
        yield (await store.queue("jobs")).put


# The first one is timed.
WAYS: dict[str, Opened] = {"log.append": log_append, "producer.send_and_wait": producer_send, "queue.put": queue_put}
