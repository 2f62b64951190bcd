"""asyncio: sends, appends, a consumer and a queue beside a thread's; and how long the disk delays a loop."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import kstore
import kstore.aio
from kstore.types import Durability
from tools.bench.logs import fresh, values
from tools.bench.measure import Line, Run, all_in_turn, percentile, seconds_of
from tools.bench.slow_fs import SlowSyncFs

TOPIC = "orders"
GATHERED = 1_000
CONSUMED = 200_000
QUEUED = 2_000
# The loop's ticks, the extra time of a slow disk's syncs, and the number of tasks that wait for it in turn.
TICK_SECONDS = 0.001
SYNC_SECONDS = 0.05
TASKS, SENDS = 50, 20


class Case(NamedTuple):
    """The same work, of ``size`` records or items, for tasks and for a thread."""

    name: str
    unit: str
    size: int
    durability: Durability
    awaited: Callable[[kstore.aio.Store], Coroutine[Any, Any, object]]
    blocking: Callable[[kstore.Store], object]
    blocking_name: str
    fill: Callable[[kstore.Store], object] | None = None


# --- sends and appends ------------------------------------------------------------------------------------------------


async def gather_sends(store: kstore.aio.Store) -> None:
    async with store.producer() as producer:
        await asyncio.gather(*(producer.send_and_wait(TOPIC, value) for value in values(GATHERED)))


def all_sends(store: kstore.Store) -> None:
    with store.producer() as producer:
        for delivery in [producer.send(TOPIC, value) for value in values(GATHERED)]:
            delivery.result()


async def gather_appends(store: kstore.aio.Store) -> None:
    log = await store.log(TOPIC)
    await asyncio.gather(*(log.append(value) for value in values(GATHERED)))


def one_append(store: kstore.Store) -> None:
    store.log(TOPIC).append_many(values(GATHERED))


# --- a consumer and a queue -------------------------------------------------------------------------------------------


def fill_log(store: kstore.Store) -> None:
    for _ in range(CONSUMED // 1_000):
        store.log(TOPIC).append_many(values())


async def consume_awaited(store: kstore.aio.Store) -> None:
    async with store.consumer(TOPIC, iteration_timeout_ms=0) as consumer:
        async for _ in consumer:
            pass


def consume(store: kstore.Store) -> None:
    with store.consumer(TOPIC, iteration_timeout_ms=0) as consumer:
        for _ in consumer:
            pass


def fill_queue(store: kstore.Store) -> None:
    store.queue("jobs").put_many(values(QUEUED))


async def work_awaited(store: kstore.aio.Store) -> None:
    queue = await store.queue("jobs")
    left = QUEUED

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            async with queue.get():
                pass

    await asyncio.gather(*(work() for _ in range(100)))


def work(store: kstore.Store) -> None:
    queue = store.queue("jobs")
    for _ in range(QUEUED):
        with queue.get():
            pass


CASES = (
    # Name, unit, size, durability; the work for tasks, the work for a thread, and its name.
    Case("asyncio, 1,000 sends awaited, fsync", "records", GATHERED, "sync", gather_sends, all_sends, "one thread"),
    Case(
        "asyncio, 1,000 appends awaited, fsync", "records", GATHERED, "sync", gather_appends, one_append, "append_many"
    ),
    Case("asyncio, async for over a consumer", "records", CONSUMED, "os", consume_awaited, consume, "for", fill_log),
    Case("asyncio, get + ack by 100 tasks", "items", QUEUED, "os", work_awaited, work, "one thread", fill_queue),
)


def aio(run: Run) -> list[Line]:
    return [_line(run, case) for case in CASES]


def _line(run: Run, case: Case) -> Line:
    def blocking() -> float:
        with fresh(run.root, "aio") as path, _filled(path, case) as store:
            return case.size / seconds_of(lambda: case.blocking(store))

    async def timed(path: Path) -> float:
        async with kstore.aio.open(path, durability=case.durability) as store:
            started = time.perf_counter()
            await case.awaited(store)
            return case.size / (time.perf_counter() - started)

    def awaited() -> float:
        with fresh(run.root, "aio") as path:
            _filled(path, case).close()
            return asyncio.run(timed(path))

    rate, beside = (statistics.median(rates) for rates in all_in_turn((awaited, blocking), rounds=run.rounds))
    limit = f"{case.blocking_name} {beside:,.0f}/s"
    return Line(case.name, f"{rate:,.0f} {case.unit}/s", limit, f"{rate / beside:.2f}", "", None)


def _filled(path: Path, case: Case) -> kstore.Store:
    store = kstore.open(path, durability=case.durability)
    store.create_topic(TOPIC)
    if case.fill is not None:
        case.fill(store)
    return store


# --- the loop ---------------------------------------------------------------------------------------------------------


def aio_loop(run: Run) -> list[Line]:
    """How long the loop is away from its ticks while tasks wait for a disk whose syncs are slow."""
    rounds = [_gaps(run.root) for _ in range(run.rounds)]
    gaps = [gap for taken in rounds for gap in taken]
    # The median of the longest ones: on a busy machine any thread stalls now and then.
    median, high, longest = percentile(gaps, 0.5), percentile(gaps, 0.99), statistics.median(map(max, rounds))
    figure = f"p50 {median * 1e3:.1f} ms, p99 {high * 1e3:.1f} ms, longest {longest * 1e3:.1f} ms"
    name = f"asyncio, a tick of {TICK_SECONDS * 1e3:.0f} ms beside {TASKS * SENDS:,} synced sends and appends"
    limit = f"one sync {SYNC_SECONDS * 1e3:.0f} ms"
    return [Line(name, figure, limit, f"{longest / SYNC_SECONDS:.2f}", "shorter than a sync", longest < SYNC_SECONDS)]


def _gaps(root: Path) -> list[float]:
    """Seconds from each tick to the next."""
    gaps: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    async def main(path: Path) -> None:
        async with kstore.aio.open(path, fs=SlowSyncFs(SYNC_SECONDS)) as store:
            await store.create_topic(TOPIC)
            log = await store.log(TOPIC)
            async with store.producer() as producer:
                await producer.send_and_wait(TOPIC, b"first")

                async def send(number: int) -> None:
                    for value in values(SENDS):
                        await (producer.send_and_wait(TOPIC, value) if number % 2 else log.append(value))

                ticking = asyncio.create_task(tick())
                await asyncio.gather(*(send(number) for number in range(TASKS)))
                ticking.cancel()

    with fresh(root, "aio") as path:
        asyncio.run(main(path))
    return gaps
