"""Calls are cancelled wherever they wait, in every way: nothing is lost, leased forever, or delivered twice.

``run`` also checks what a cancel leaves: no unretrieved exception, no forgotten task.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
import kstore.aio
from kstore.files.paths import TopicPartition
from tests.support.harness.evidence import Lost, Wrong
from tests.support.lives.aio_helpers import CANCELS, Cancel, Ended, at_every_point, cancelled_at, opened, run, values_in

ORDERS = TopicPartition("orders", 0)

pytestmark = pytest.mark.parametrize("cancel", CANCELS)
Tried = Callable[[str, int], None]


def expect(found: list[Any], expected: list[Any]) -> None:
    """Asserts that each was done as many times as reported, in that order."""
    missing = Counter(expected) - Counter(found)
    if missing:
        raise Lost(f"not there: {list(missing)[:5]}")
    if found != expected:
        raise Wrong(f"{list(Counter(found) - Counter(expected))[:5]} too many, or in another order")


async def left_alone(expected: int = 1) -> None:
    """Asserts that no cancelled task remains."""
    for _ in range(1_000):
        if len(asyncio.all_tasks()) <= expected:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"left over: {asyncio.all_tasks()}")


# --- producers --------------------------------------------------------------------------------------------------------


def test_a_send_that_waits_for_memory(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    sent: list[bytes] = []

    async def main() -> int:
        async with (
            opened(tmp_path, durability="os") as store,
            store.producer(buffer_memory=16 << 10, batch_size=1 << 10, linger_ms=5_000) as producer,
        ):

            async def send(point: int) -> None:
                for number in range(6):
                    value = b"%d %d" % (point, number) + bytes(4_000)
                    await producer.send("orders", value)
                    sent.append(value)

            async def check(point: int, ended: Ended) -> None:
                assert ended.is_cancelled or ended.is_last

            points = await at_every_point(cancel, send, check)
            await left_alone()
            return points

    tried("faults", run(main()))
    expect(values_in(tmp_path), sent)


def test_a_send_that_waits_for_its_topic(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    async def main() -> int:
        async with opened(tmp_path, durability="os") as store, store.producer(max_block_ms=60_000) as producer:
            making: dict[int, asyncio.Task[None]] = {}

            def send(point: int) -> Awaitable[kstore.Delivery]:
                making[point] = asyncio.create_task(store.create_topic(f"topic-{point}"))
                # Nothing else is awaited: a cancel after the send has returned would not be the send's.
                return producer.send(f"topic-{point}", b"a")

            async def check(point: int, ended: Ended) -> None:
                assert ended.is_cancelled or ended.error is None
                if ended.error is None:
                    await ended.result
                await making[point]
                assert (await store.log(f"topic-{point}")).end_offset == (ended.error is None)

            return await at_every_point(cancel, send, check)

    tried("faults", run(main()))


def test_send_and_wait_and_flush(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    sent: list[bytes] = []

    async def main() -> int:
        async with opened(tmp_path, durability="os") as store, store.producer(linger_ms=5_000) as producer:

            async def send(point: int) -> None:
                await producer.send("orders", b"flushed %d" % point)
                sent.append(b"flushed %d" % point)
                await producer.flush()
                await producer.send_and_wait("orders", b"%d" % point)

            async def check(point: int, ended: Ended) -> None:
                if ended.error is None or "the record was sent, and will arrive" in ended.notes:
                    sent.append(b"%d" % point)

            return await at_every_point(cancel, send, check)

    tried("faults", run(main()))
    expect(values_in(tmp_path), sent)


def test_many_sends(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    expected: list[bytes] = []

    async def main() -> int:
        async with (
            opened(tmp_path, durability="os") as store,
            store.producer(buffer_memory=64 << 10, batch_size=4 << 10) as producer,
        ):
            sending: dict[int, kstore.aio.SentMany] = {}

            def send(point: int) -> Awaitable[Any]:
                values = [b"%d %d" % (point, number) + bytes(3_000) for number in range(30)]
                sending[point] = producer.send_many("orders", values)
                return sending[point]

            async def check(point: int, ended: Ended) -> None:
                sent = sending[point]
                expected.extend(b"%d %d" % (point, number) + bytes(3_000) for number in range(len(sent)))
                assert await sent.errors() == {}
                assert len(await sent.result()) == len(sent)

            return await at_every_point(cancel, send, check)

    tried("faults", run(main()))
    expect(values_in(tmp_path), expected)


def test_the_close_of_a_producer(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    sent: list[bytes] = []

    async def main() -> int:
        async with opened(tmp_path, durability="os") as store:
            producers: dict[int, kstore.aio.Producer] = {}

            async def use(point: int) -> None:
                producer = producers[point] = store.producer(linger_ms=5_000)
                async with producer:
                    await producer.send("orders", b"%d" % point)
                    sent.append(b"%d" % point)
                    await producer.send("orders", bytes(2 << 20))  # fails

            async def check(point: int, ended: Ended) -> None:
                assert ended.is_cancelled or isinstance(ended.error, kstore.DeliveryError)
                assert producers[point].closed

            points = await at_every_point(cancel, use, check)
            await left_alone()
            return points

    tried("faults", run(main()))
    expect(values_in(tmp_path), sent)


def test_a_transaction(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    async def main() -> int:
        async with opened(tmp_path) as store, store.producer(transactional_id="t") as producer:
            log = await store.log("orders")
            seen = 0

            async def transact(point: int) -> None:
                async with producer.transaction():
                    await producer.send("orders", b"%d" % point)
                    await (await producer.send("orders", b"%d" % point))
                    await producer.send_offsets({ORDERS: point}, "group")

            async def check(point: int, ended: Ended) -> None:
                nonlocal seen
                assert not producer.in_transaction
                reader = log.read_values(isolation_level="read_committed")
                found = [value async for value in reader][seen:]
                seen += len(found)
                expect(found, [b"%d" % point] * 2 if ended.error is None or found else [])
                async with store.consumer("orders", group="group") as consumer:
                    committed = (await consumer.committed(ORDERS)).get(ORDERS)
                assert (committed is not None and committed.offset == point) == bool(found)

            points = await at_every_point(cancel, transact, check)
            await left_alone()
            return points

    tried("faults", run(main()))


# --- logs and consumers -----------------------------------------------------------------------------------------------


def test_appends_to_a_log(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    appended: list[bytes] = []

    async def main() -> int:
        async with opened(tmp_path, durability="os") as store:
            log = await store.log("orders")

            async def append(point: int) -> None:
                await log.append(b"%d" % point)

            async def check(point: int, ended: Ended) -> None:
                assert ended.is_last or ended.notes in (["it was done"], ["nothing was done"])
                if ended.error is None or ended.notes == ["it was done"]:
                    appended.append(b"%d" % point)

            points = await at_every_point(cancel, append, check)

            async def append_many(point: int) -> None:
                await log.append_many([b"many %d" % point] * 2)

            async def check_many(point: int, ended: Ended) -> None:
                appended.extend([b"many %d" % point] * 2)

            return points + await at_every_point(cancel, append_many, check_many)

    tried("faults", run(main()))
    expect(values_in(tmp_path), appended)


def test_a_reader(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    async def main() -> int:
        async with opened(tmp_path, durability="os") as store:
            log = await store.log("orders")
            reader = log.read_values(follow=True)
            found: list[bytes | None] = []
            sent: list[bytes] = []

            async def read(point: int) -> None:
                appending = asyncio.create_task(append(point))
                try:
                    for _ in range(3):
                        found.append(await anext(reader))
                finally:
                    await asyncio.wait([appending])

            async def append(point: int) -> None:
                for number in range(3):
                    sent.append(b"%d %d" % (point, number))
                    await log.append(sent[-1])

            async def check(point: int, ended: Ended) -> None:
                while asyncio.all_tasks() - {asyncio.current_task()}:
                    await asyncio.sleep(0)
                while len(found) < len(sent):
                    found.append(await anext(reader))

            points = await at_every_point(cancel, read, check)
            expect(found, sent)
            return points

    tried("faults", run(main()))


@pytest.mark.parametrize("way", ["records", "values", "poll"])
def test_a_consumer(tmp_path: Path, cancel: Cancel, way: str, tried: Tried) -> None:
    async def main() -> int:
        async with (
            opened(tmp_path, durability="os") as store,
            store.consumer("orders", group="g", max_poll_records=2) as consumer,
        ):
            log = await store.log("orders")
            found: list[bytes] = []
            sent: list[bytes] = []

            async def next_ones() -> None:
                if way == "poll":
                    found.extend(record.value for record in (await consumer.poll(5)).get(ORDERS, ()))
                elif way == "values":
                    async for value in consumer.values():
                        found.append(value or b"")
                        break
                else:
                    found.append((await anext(consumer)).value)

            async def read(point: int) -> None:
                appending = asyncio.create_task(append(point))
                try:
                    while len(found) < 3 * point:
                        await next_ones()
                    await consumer.commit()
                finally:
                    await asyncio.wait([appending])

            async def append(point: int) -> None:
                for number in range(3):
                    sent.append(b"%d %d" % (point, number))
                    await log.append(sent[-1])

            async def check(point: int, ended: Ended) -> None:
                while len(sent) < 3 * point or log.end_offset < len(sent):
                    await asyncio.sleep(0)
                while len(found) < len(sent):
                    await next_ones()
                await consumer.commit()
                assert (await consumer.committed())[ORDERS].offset == len(found)

            points = await at_every_point(cancel, read, check)
            expect(found, sent)
            return points

    tried("faults", run(main()))


def test_what_is_asked_of_a_consumer_and_its_close(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    async def main() -> int:
        async with opened(tmp_path, durability="os") as store:
            await (await store.log("orders")).append_many([b"%d" % number for number in range(1_000)])
            made: list[kstore.aio.Consumer] = []
            done: list[int] = [0]

            async def use(point: int) -> None:
                async with store.consumer("orders", group="g") as consumer:
                    made.append(consumer)
                    done[-1] = (await anext(consumer)).offset + 1
                    await consumer.commit()
                    await consumer.seek(ORDERS, done[-1])
                    await consumer.pause(ORDERS)
                    await consumer.lag()

            async def check(point: int, ended: Ended) -> None:
                assert all(consumer.closed for consumer in made)
                # It left the group: the next member need not wait until it counts as dead.
                async with store.consumer("orders", group="g") as other:
                    committed = (await other.committed()).get(ORDERS)
                    assert committed is None or committed.offset in (done[-1], done[-1] - 1)
                    assert other.assignment() == {ORDERS}

            points = await at_every_point(cancel, use, check)
            await left_alone()
            return points

    tried("faults", run(main()))


# --- queues -----------------------------------------------------------------------------------------------------------


def test_puts(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    async def main() -> int:
        async with opened(tmp_path, durability="os") as store:
            queue = await store.queue("jobs")
            expected: list[bytes] = []

            async def put(point: int) -> None:
                await queue.put(b"%d" % point)

            async def check(point: int, ended: Ended) -> None:
                assert ended.is_last or ended.notes in (["it was done"], ["nothing was done"])
                if ended.error is None or ended.notes == ["it was done"]:
                    expected.append(b"%d" % point)

            points = await at_every_point(cancel, put, check)

            async def put_many(point: int) -> None:
                await queue.put_many([b"many %d" % point] * 2)

            async def check_many(point: int, ended: Ended) -> None:
                expected.extend([b"many %d" % point] * 2)

            points += await at_every_point(cancel, put_many, check_many)
            expect([job.value for job in await queue.get_many(1_000)], expected)
            return points

    tried("faults", run(main()))


def test_a_put_that_waits_for_room(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    async def main() -> int:
        async with opened(tmp_path, durability="os") as store:
            queue = await store.queue("jobs", maxsize=1)
            expected: list[bytes] = [b"0"]
            found: list[bytes | None] = []
            await queue.put(b"0")

            async def get() -> None:
                async with queue.get(timeout=300) as job:
                    found.append(job.value)

            getting: list[asyncio.Task[None]] = []

            def put(point: int) -> Awaitable[int]:
                getting.append(asyncio.create_task(get()))
                return queue.put(b"%d" % point)

            async def check(point: int, ended: Ended) -> None:
                await getting[-1]
                if ended.error is None or "it was done" in ended.notes:
                    expected.append(b"%d" % point)
                else:
                    await queue.put(b"again")
                    expected.append(b"again")

            points = await at_every_point(cancel, put, check)
            await get()
            expect(found, expected)
            return points

    tried("faults", run(main()))


@pytest.mark.parametrize("is_there", [True, False], ids=["at-once", "later"])
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_gets(tmp_path: Path, cancel: Cancel, is_there: bool, shared: bool, tried: Tried) -> None:
    async def main() -> int:
        async with opened(tmp_path, durability="os", shared=shared) as store:
            queue = await store.queue("jobs", max_deliveries=0)

            putting: set[asyncio.Task[int]] = set()

            def get(point: int) -> Awaitable[kstore.aio.Job]:
                if not is_there:
                    putting.add(asyncio.create_task(queue.put(b"%d" % point)))
                return queue.get()

            async def check(point: int, ended: Ended) -> None:
                # After a cancel nothing is leased and, if that can be checked, nothing counted.
                job = ended.result if ended.error is None else await queue.get(timeout=300)
                if job.value != b"%d" % point or (job.delivery_count != 1 and not shared):
                    raise Wrong(f"{job} for {point}")
                with pytest.raises(kstore.Empty):
                    await queue.get(timeout=0)
                await job.ack()
                if is_there:
                    await queue.put(b"%d" % (point + 1))

            if is_there:
                await queue.put(b"1")
            points = await at_every_point(cancel, get, check)
            await left_alone()
            return points

    tried("faults", run(main()))


JOB_CALLS: dict[str, Callable[[kstore.aio.Queue, kstore.aio.Job], Awaitable[None]]] = {
    "ack": lambda queue, job: job.ack(),
    "ack_many": lambda queue, job: queue.ack_many([job]),
    "nack": lambda queue, job: job.nack(),
    "extend": lambda queue, job: job.extend(60),
}


@pytest.mark.parametrize("call", JOB_CALLS)
def test_what_is_said_of_a_job(tmp_path: Path, cancel: Cancel, call: str, tried: Tried) -> None:
    async def main() -> int:
        async with opened(tmp_path, durability="os") as store:
            queue = await store.queue("jobs", lease_seconds=30)
            point = 0
            while True:
                point += 1
                await queue.put(b"%d" % point)
                job = await queue.get(timeout=300)
                ended = await cancelled_at(point, cancel, JOB_CALLS[call](queue, job))
                assert ended.is_cancelled or ended.is_last
                if call == "nack":
                    job = await queue.get(timeout=300)
                    assert (job.value, job.delivery_count) == (b"%d" % point, 2)
                if call == "extend":
                    assert job.sync.seconds == 60
                if call in ("nack", "extend"):
                    await job.ack()
                assert not job.is_open
                assert await queue.join(0)
                if ended.is_last:
                    return point - 1

    tried("faults", run(main()))


def test_a_worker(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    async def main() -> int:
        done: list[bytes | None] = []
        async with opened(tmp_path, durability="os") as store:
            queue = await store.queue("jobs", max_deliveries=0)

            async def work(point: int) -> None:
                await queue.put_many([b"%d %d" % (point, number) for number in range(2)])
                for _ in range(2):
                    async with queue.get(timeout=300) as job:
                        await asyncio.sleep(0)
                        done.append(job.value)

            async def check(point: int, ended: Ended) -> None:
                # An item that was done when its worker was cancelled is acked: it is not done again.
                while not await queue.join(0):
                    async with queue.get(timeout=300) as job:
                        done.append(job.value)

            points = await at_every_point(cancel, work, check)
            await left_alone()
        expect(done, sorted(done, key=lambda value: [int(part) for part in (value or b"").split()]))
        if len(set(done)) != len(done):
            raise Wrong("an item was done twice")
        return points

    tried("faults", run(main()))


# --- stores -----------------------------------------------------------------------------------------------------------


def test_what_is_opened_and_closed(tmp_path: Path, cancel: Cancel, tried: Tried) -> None:
    async def main() -> int:
        stores: list[kstore.aio.Store] = []

        async def use(point: int) -> None:
            async with kstore.aio.open(tmp_path / "data") as store:
                stores.append(store)
                queue = await store.queue("jobs")
                await queue.put(b"a")
                await store.create_topic(f"topic-{point}")
                async with store.producer() as producer:
                    await producer.send_and_wait(f"topic-{point}", b"a")

        async def check(point: int, ended: Ended) -> None:
            assert ended.is_cancelled or ended.is_last
            assert all(store.closed for store in stores)
            # All of it was closed cleanly, and the lock is free.
            assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
            kstore.open(tmp_path / "data").close()

        points = await at_every_point(cancel, use, check)
        await left_alone()
        return points

    tried("faults", run(main()))
