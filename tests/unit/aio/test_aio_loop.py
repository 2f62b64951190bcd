"""The loop of a store for tasks never waits for the disk; and what happens if the loop ends or the process forks."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

import kstore
import kstore.aio
from kstore.errors import ForkedError
from kstore.files.paths import TopicPartition
from tests.support.fakes.fake_fs import SYNCS, Operation
from tests.support.fakes.loop_fs import LoopFs
from tests.support.harness.evidence import Hung
from tests.support.lives.aio_helpers import WAIT_SECONDS, opened, run, values_in

Result = TypeVar("Result")

# A later Python warns of a fork beside threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
@pytest.mark.sampled(1)
def test_nothing_is_done_to_files_on_the_loop_s_thread(tmp_path: Path, durability: str) -> None:
    fs = LoopFs()

    async def main() -> None:
        async with (
            opened(tmp_path, fs=fs, durability=durability, segment_bytes="1MiB") as store,
            store.producer(buffer_memory="2MiB") as producer,
        ):
            await (await producer.send("orders", b"a"))
            sent = await producer.send_many("orders", [bytes(100)] * 50_000)
            for _ in range(10_000):
                await producer.send("orders", bytes(100))
            await producer.flush()
            assert len(await sent.result()) == 50_000
            log = await store.log("orders")
            assert len([value async for value in log.read_values()]) == 60_001
            reader = log.read_values(60_001, follow=True)
            following = asyncio.ensure_future(anext(reader))
            await producer.send("orders", b"last")
            assert await following == b"last"
            async with store.producer(transactional_id="t") as other, other.transaction():
                await other.send("orders", b"b")
                await other.send_offsets({TopicPartition("orders", 0): 1}, "group")
            await store.apply_retention()

    run(main())
    assert fs.on_loop == []
    assert fs.sync_count


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_store_s_own_producer_writes_nothing_on_a_loop_s_thread(tmp_path: Path, durability: Any) -> None:
    fs = LoopFs()

    async def send(producer: kstore.Producer) -> None:
        deliveries = [producer.send("orders", bytes(1_000)) for _ in range(1_000)]
        assert (await deliveries[-1]).offset == 999
        producer.send_many("orders", [bytes(1_000)] * 1_000)
        last: Awaitable[Any] = producer.send("orders", b"last")
        await last

    with kstore.open(tmp_path / "data", fs=fs, durability=durability) as store:
        store.create_topic("orders")
        with store.producer(buffer_memory="16MiB", linger_ms=10_000) as producer:
            run(send(producer))
            assert fs.on_loop == []
    assert len(values_in(tmp_path)) == 2_001


class TurningFs(LoopFs):
    """Its syncs end only after the loop has turned: they never end if the loop waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = threading.Condition()
        self.turns = 0
        self.held: list[str] = []

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind in SYNCS or operation.kind == "write_and_sync":
            with self.turned:
                wanted = self.turns + 2
                if not self.turned.wait_for(lambda: self.turns >= wanted, WAIT_SECONDS / 10):
                    self.held.append(f"{operation.kind} {operation.path}")
        return super().perform(operation, action)

    async def turn(self) -> None:
        while True:
            await asyncio.sleep(0)
            with self.turned:
                self.turns += 1
                self.turned.notify_all()


def test_the_loop_goes_on_while_the_disk_is_waited_for(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    fs = TurningFs()

    async def main() -> None:
        turning = asyncio.create_task(fs.turn())
        async with opened(tmp_path, fs=fs, segment_bytes="32KiB") as store:
            queue, log = await store.queue("jobs"), await store.log("orders")

            async def use(number: int) -> None:
                await queue.put(b"%d" % number)
                async with queue.get():
                    await log.append(b"%d" % number)
                await producer.send_and_wait("orders", b"%d" % number)
                await producer.send("orders", bytes(20_000))

            async with store.producer(buffer_memory="64KiB") as producer:
                for _ in range(5):
                    await asyncio.gather(*(use(number) for number in range(20)))
                    await asyncio.gather(producer.flush(), log.flush(), queue.stats(), store.metrics())
            async with store.producer(transactional_id="t") as other, other.transaction():
                await other.send("orders", b"b")
            async with store.consumer("orders", group="g") as consumer:
                await anext(consumer)
                await consumer.commit()
        turning.cancel()

    run(main())
    if fs.held:
        raise Hung(f"the loop stood still for {fs.held[:5]}")
    assert fs.on_loop == []
    assert fs.sync_count > 20
    tried("faults", fs.sync_count)


# --- loops that end, and several of them ------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 20, 60])
def test_what_waits_when_its_loop_ends_is_done_or_not_and_the_store_closes(tmp_path: Path, turns: int) -> None:
    said: list[bytes] = []

    async def main() -> kstore.aio.Store:
        # It is not closed on the loop.
        store = await kstore.aio.open(tmp_path / "data", durability="os")
        await store.create_topic("orders")
        queue, log = await store.queue("jobs"), await store.log("orders")
        consumer = await store.consumer("orders", group="g")
        sender, other = store.producer(linger_ms=5_000, client_id="sender"), store.producer(transactional_id="t")
        await queue.put(b"first")
        job = await queue.get()

        async def put(value: bytes) -> None:
            try:
                await queue.put(value)
            except asyncio.CancelledError as error:
                if error.__notes__ != ["it was done"]:
                    raise
            said.append(value)

        async def transact() -> None:
            async with other.transaction():
                await other.send_and_wait("orders", b"in a transaction")

        async def send() -> None:
            await sender.send("orders", b"a")
            await sender.flush()

        waits: tuple[Awaitable[Any], ...] = (
            *(put(b"%d" % number) for number in range(3)),
            *(queue.get_many(1, lease_seconds=seconds) for seconds in (30, 40)),
            *(job.ack(), queue.join(), anext(consumer), log.append(b"a"), transact(), send()),
            *(anext(log.read(follow=True)) for _ in range(2)),
        )
        tasks.extend(asyncio.ensure_future(wait) for wait in waits)
        for _ in range(turns):
            await asyncio.sleep(0)
        producers.extend((sender, other))
        consumers.append(consumer)  # closed with the store
        return store

    tasks: list[asyncio.Future[Any]] = []
    producers: list[kstore.aio.Producer] = []
    consumers: list[kstore.aio.Consumer] = []
    store = run(main())
    assert all(task.done() for task in tasks)
    assert not [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    for producer in producers:
        producer.sync.close()
    store.sync.close()
    assert consumers[0].closed
    with kstore.open(tmp_path / "data") as again:
        left = {shown.value for shown in again.queue("jobs").peek(100)}
    got = {job.value for task in tasks[3:5] if not task.cancelled() for job in task.result()}
    assert set(said) <= left | got
    assert b"first" not in left


def test_a_commit_ends_although_its_loop_ends(tmp_path: Path) -> None:
    ending = threading.Event()

    async def until_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()

    async def main() -> kstore.aio.Store:
        store = await kstore.aio.open(tmp_path / "data", durability="os")  # closed below
        await store.create_topic("orders")
        # The commit does not wait for its linger time.
        producer = store.producer(transactional_id="t", linger_ms=3_600_000)
        loop, is_written = asyncio.get_running_loop(), asyncio.Event()

        def hold(_: object, __: object) -> None:
            loop.call_soon_threadsafe(is_written.set)
            ending.wait()

        async def transact() -> None:
            async with producer.transaction():
                (await producer.send("orders", b"a")).add_callback(hold)

        tasks.extend(asyncio.ensure_future(work) for work in (transact(), until_the_end()))
        await is_written.wait()
        producers.append(producer)
        return store

    tasks: list[asyncio.Future[None]] = []
    producers: list[kstore.aio.Producer] = []
    store = run(main())
    assert tasks[0].cancelled()
    assert not producers[0].in_transaction
    producers[0].sync.close()
    store.sync.close()
    with kstore.open(tmp_path / "data", read_only=True) as again:
        assert list(again.log("orders").read_values(isolation_level="read_committed")) == [b"a"]


def test_loops_in_several_threads_share_a_store(tmp_path: Path) -> None:
    async def work(producer: kstore.Producer, number: int) -> None:
        """A result from a store for threads reaches the loop that awaits it."""
        deliveries = [producer.send("orders", b"%d %d" % (number, count)) for count in range(200)]
        await asyncio.gather(*deliveries)

    async def own(number: int) -> None:
        (tmp_path / f"own-{number}").mkdir()
        async with opened(tmp_path / f"own-{number}", durability="os") as store:
            queue, log = await store.queue("jobs"), await store.log("orders")
            await asyncio.gather(*(queue.put(b"%d" % count) for count in range(100)))
            await asyncio.gather(*(log.append(b"%d" % count) for count in range(100)))
            jobs = await queue.get_many(100)
            await asyncio.gather(*(job.ack() for job in jobs))
            assert await queue.join(WAIT_SECONDS)
            assert [value async for value in log.read_values()] == [b"%d" % count for count in range(100)]

    with kstore.open(tmp_path / "data", durability="os") as store, ThreadPoolExecutor(4) as pool:
        store.create_topic("orders")
        with store.producer() as producer:
            done = [pool.submit(run, work(producer, number)) for number in range(2)]
            done += [pool.submit(run, own(number)) for number in range(2)]
            for future in done:
                future.result(WAIT_SECONDS)
    for number in range(2):
        found = [value for value in values_in(tmp_path) if value is not None and value.startswith(b"%d " % number)]
        assert found == [b"%d %d" % (number, count) for count in range(200)]


# --- forks ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("fork")
def test_in_the_child_of_a_fork_all_that_waits_says_so_and_the_parent_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            producer, queue, log = store.producer(), await store.queue("jobs"), await store.log("orders")
            consumer, following = await store.consumer("orders"), log.read(follow=True)
            await queue.put_many([b"a", b"b"])
            job = await queue.get()
            # The child finds these half done, by tasks and threads that it does not have.
            waiting: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(anext(consumer)),
                asyncio.ensure_future(anext(following)),
                asyncio.ensure_future(queue.put(b"c")),
                asyncio.ensure_future(log.append(b"c")),
                asyncio.ensure_future(queue.get_many(5, lease_seconds=7)),
            ]
            await asyncio.sleep(0)
            refused: dict[str, Callable[[], Any]] = {
                "topics": store.topics,
                "send": lambda: producer.send("orders", b"b"),
                "send_many": lambda: producer.send_many("orders", [b"b"]),
                "flush": producer.flush,
                "commit_transaction": producer.commit_transaction,
                "append": lambda: log.append(b"b"),
                "append_many": lambda: log.append_many([b"b"]),
                "read": lambda: anext(following),
                "consume": lambda: anext(consumer),
                "poll": consumer.poll,
                "commit": consumer.commit,
                "put": lambda: queue.put(b"b"),
                "get": lambda: queue.get(),
                "ack": job.ack,
            }

            async def child() -> list[str]:
                found = []
                for name, call in refused.items():
                    try:
                        async with asyncio.timeout(WAIT_SECONDS):
                            await call()
                    except ForkedError:
                        continue
                    except BaseException as error:
                        found.append(f"{name}: {error!r}")
                    else:
                        found.append(f"{name} was done")
                for closed in (producer, consumer, store):
                    await closed.close()
                return found

            pid = os.fork()
            if not pid:
                # As in a child of multiprocessing, which runs in no loop.
                status = 1
                try:
                    asyncio._set_running_loop(None)
                    found = asyncio.run(child())
                    print("\n".join(found), file=sys.stderr)
                    status = bool(found)
                finally:
                    os._exit(status)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            assert status == 0
            await waiting[2]
            assert await waiting[4]
            assert await waiting[3] == 0
            assert [(await task).value for task in waiting[:2]] == [b"c", b"c"]
            await producer.close()

    run(main())
