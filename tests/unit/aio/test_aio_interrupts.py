"""An interrupt, or a lack of memory, in a callback of the loop beside combined calls: no task waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore import aio
from kstore.aio import gathering
from kstore.errors import StorageError
from kstore.log import Log
from tests.crash.interrupted_life import InterruptWithin
from tests.support.harness.evidence import Hung

# Where an interrupt comes between a coroutine and its first step.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

PLACES_MAX = 200


async def opened(path: Path) -> tuple[aio.Store, aio.Log]:
    store = await aio.open(path, background=False, durability="os")
    await store.create_topic("orders")
    return store, await store.log("orders")


async def first_of(log: aio.Log, appends: list[asyncio.Task[int]]) -> int:
    """The offset of one more append. Raises: Hung if a task waits in vain."""
    task = asyncio.create_task(log.append(b"later"))
    # Every round of the loop, and of the thread, brings one of them on, until the last one is done.
    _, waiting = await asyncio.wait([task, *appends], timeout=10)
    if waiting:
        raise Hung(f"{waiting}")
    return task.result()


def test_appends_after_an_interrupted_one_are_done(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    struck = 0
    for number in count(1):
        assert number < PLACES_MAX
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            store, log = loop.run_until_complete(opened(tmp_path / str(number)))
            appends = [loop.create_task(log.append(b"%d" % each)) for each in range(3)]
            with InterruptWithin(number, "aio/gathering.py") as interrupted:
                try:
                    loop.run_until_complete(asyncio.wait(appends))
                except KeyboardInterrupt:
                    pass
            # The interrupted run may have left a request to stop.
            loop.call_soon(loop.stop)
            loop.run_forever()
            # In a task, the interrupt ends it; elsewhere all tasks learn of it.
            offset = loop.run_until_complete(first_of(log, appends))
            loop.run_until_complete(store.close())
        with Log(tmp_path / str(number) / "orders-0", read_only=True) as written:
            values = [record.value for record in written.read()]
        assert values[offset] == b"later", interrupted.place
        assert len(set(values)) == len(values), interrupted.place
        for each, append in enumerate(appends):
            if not isinstance(append.exception(), KeyboardInterrupt | StorageError):
                assert values[append.result()] == b"%d" % each, interrupted.place
        if not interrupted.struck:
            break
        struck += 1
    tried("faults", struck)


def test_a_lack_of_memory_fails_the_appends_that_it_met(tmp_path: Path) -> None:
    async def run() -> None:
        store, log = await opened(tmp_path)
        async with store:
            with mock.patch.object(gathering, "items_of", side_effect=MemoryError), pytest.raises(MemoryError):
                await asyncio.wait_for(log.append(b"one"), 30)
            assert await asyncio.wait_for(log.append(b"two"), 30) == 0

    asyncio.run(run())


def test_a_lack_of_memory_after_a_write_repeats_no_append(tmp_path: Path) -> None:
    async def run() -> None:
        store, log = await opened(tmp_path)
        async with store:

            def without_memory(append: Callable[..., object]) -> Callable[..., None]:
                def append_without_memory(*values: Any, **columns: Any) -> None:
                    append(*values, **columns)
                    raise MemoryError

                return append_without_memory

            # The two are written together, or one after the other.
            with (
                mock.patch.object(log.sync, "append_many", without_memory(log.sync.append_many)),
                mock.patch.object(log.sync, "append", without_memory(log.sync.append)),
            ):
                found = await asyncio.gather(log.append(b"one"), log.append(b"two"), return_exceptions=True)
            assert [type(error) for error in found] == [MemoryError, MemoryError]
            assert [value async for value in log.read_values()] == [b"one", b"two"]

    asyncio.run(run())


def test_a_queue_goes_on_after_a_lack_of_memory_beside_an_ack(tmp_path: Path) -> None:
    async def run() -> None:
        async with aio.open(tmp_path, background=False, durability="os") as store:
            queue = await store.queue("jobs")
            await queue.put_many([b"one", b"two"])
            with mock.patch.object(queue._loop, "create_future", side_effect=MemoryError), pytest.raises(MemoryError):
                queue._change()
            for value in (b"one", b"two"):
                async with queue.get(timeout=30) as job:
                    assert job.value == value
            assert await queue.join(timeout=30)

    asyncio.run(run())
