"""A consumer for tasks: iteration, polls, groups; a cancel loses no record, the loop's thread does nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
import kstore.aio
from kstore.errors import ClosedError, ConfigError, ConsumerStateError
from kstore.files.paths import TopicPartition
from tests.support.fakes.loop_fs import LoopFs
from tests.support.lives.aio_helpers import STEPS, opened, run, stepped

ORDERS = TopicPartition("orders", 0)


async def fill(store: kstore.aio.Store, count: int, first: int = 0) -> None:
    async with store.producer() as producer:
        await producer.send_many("orders", [b"%d" % number for number in range(first, first + count)])


def test_a_consumer_is_iterated_and_its_group_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await fill(store, 2_000)
            found = []
            async with store.consumer("orders", group="g", iteration_timeout_ms=0) as consumer:
                async for record in consumer:
                    found.append(record.value)
                    if len(found) == 700:
                        assert consumer.current == ORDERS
                        await consumer.commit()
                        break
                assert (await consumer.committed())[ORDERS].offset == 700
                assert await consumer.position(ORDERS) == 700
                assert await consumer.lag() == {ORDERS: 1_300}
            async with store.consumer("orders", group="g", iteration_timeout_ms=0) as consumer:
                found += [value async for value in consumer.values()]
            assert found == [b"%d" % number for number in range(2_000)]

    run(main())


def test_a_consumer_waits_for_what_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path) as store,
            store.producer() as producer,
            store.consumer("orders", group="g") as consumer,
        ):
            for number in range(20):
                waiting = asyncio.ensure_future(anext(consumer))
                await asyncio.sleep(0)
                await producer.send("orders", b"%d" % number)
                assert (await waiting).offset == number

    run(main())


def test_a_poll_waits_for_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path) as store,
            store.consumer("orders") as consumer,
        ):
            assert await consumer.poll() == {}
            assert await consumer.poll(0.01) == {}
            waiting = asyncio.ensure_future(consumer.poll(None, 3))
            await fill(store, 5)
            assert [record.offset for record in (await waiting)[ORDERS]] == [0, 1, 2]
            assert [record.offset for record in (await consumer.poll())[ORDERS]] == [3, 4]
            for count in (0, True, "many"):
                with pytest.raises(ConfigError):
                    await consumer.poll(0, count)  # type: ignore[arg-type]

    run(main())


def test_a_consumer_seeks_where_it_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await fill(store, 10)
            consumer = await store.consumer()
            with pytest.raises(ConsumerStateError):
                await consumer.poll()
            await consumer.assign([ORDERS])
            assert consumer.assignment() == {ORDERS}
            await consumer.seek(ORDERS, 7)
            assert (await anext(consumer)).offset == 7
            await consumer.seek_to_beginning()
            assert (await anext(consumer)).offset == 0
            assert await anext(consumer.values()) == b"1"
            assert (await anext(consumer)).offset == 2
            await consumer.seek_to_time("latest")
            assert await consumer.poll() == {}
            await consumer.seek_to_end()
            await consumer.pause()
            assert consumer.paused() == {ORDERS}
            await fill(store, 1, 10)
            assert await consumer.poll() == {}
            await consumer.resume()
            assert [record.offset for record in (await consumer.poll())[ORDERS]] == [10]
            assert await consumer.beginning_offsets([ORDERS]) == {ORDERS: 0}
            assert await consumer.end_offsets([ORDERS]) == {ORDERS: 11}
            assert await consumer.offsets_for_times({ORDERS: "earliest"}) == {ORDERS: 0}
            await consumer.seek_to_beginning()
            assert (await consumer.to_arrow()).num_rows == 11
            await consumer.unsubscribe()
            await consumer.subscribe(pattern="ord.*")
            assert consumer.assignment() == {ORDERS}
            await consumer.close()
            await consumer.close()
            with pytest.raises(ClosedError):
                await anext(consumer)

    run(main())


def test_members_of_a_group_share_the_partitions(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer() as producer:
            await store.create_topic("many", 4)
            found: list[tuple[int, int]] = []
            done = asyncio.Event()

            async def consume() -> None:
                async with store.consumer("many", group="g") as consumer:
                    async for record in consumer:
                        assert consumer.current is not None
                        found.append((consumer.current.partition, record.offset))
                        await consumer.commit()
                        if len(found) == 400:
                            done.set()

            members = [asyncio.create_task(consume()) for _ in range(3)]
            for number in range(400):
                await producer.send("many", b"%d" % number, partition=number % 4)
            await done.wait()
            for member in members:
                member.cancel()
            await asyncio.wait(members)
            assert sorted(found) == [(partition, offset) for partition in range(4) for offset in range(100)]

    run(main())


def test_a_transaction_commits_what_a_group_has_read_with_what_it_made_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer(transactional_id="t") as producer:
            await store.create_topic("made")
            await fill(store, 5)
            async with store.consumer("orders", group="g") as consumer:
                async with producer.transaction():
                    record = await anext(consumer)
                    await producer.send("made", record.value)
                    await consumer.commit(producer=producer)
                assert (await consumer.committed(ORDERS))[ORDERS].offset == 1

    run(main())


def test_fifty_consumers_that_wait_need_no_thread_each(tmp_path: Path) -> None:
    async def main() -> int:
        async with opened(tmp_path) as store:
            consumers = [await store.consumer("orders") for _ in range(50)]
            waiting = [asyncio.ensure_future(anext(consumer)) for consumer in consumers]
            await asyncio.sleep(0.05)
            count = threading.active_count()
            await fill(store, 1)
            assert [record.offset for record in await asyncio.gather(*waiting)] == [0] * 50
            for consumer in consumers:
                await consumer.close()
            return count

    before = threading.active_count()
    assert run(main()) - before < 15


def test_a_waiting_call_ends_when_the_consumer_or_the_store_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            first, second = await store.consumer("orders"), await store.consumer("orders")
            waiting = asyncio.ensure_future(anext(first)), asyncio.ensure_future(anext(second))
            await asyncio.sleep(0.02)
            await first.close()
            with pytest.raises(ClosedError):
                await waiting[0]
        with pytest.raises(ClosedError):
            await waiting[1]

    run(main())


def test_a_consumer_cancelled_at_any_point_loses_no_record(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path, durability="os") as store,
            store.producer() as producer,
            store.consumer("orders", group="g") as consumer,
        ):
            found: list[int] = []
            sent = 0

            async def iterate() -> None:
                async for record in consumer:
                    found.append(record.offset)

            async def iterate_values() -> None:
                async for value in consumer.values():
                    found.append(int(value or b""))

            async def poll() -> None:
                while True:
                    for records in (await consumer.poll(None, 2)).values():
                        found.extend(record.offset for record in records)

            for steps in range(STEPS):
                task = asyncio.create_task((iterate, iterate_values, poll)[steps % 3]())
                for _ in range(3):
                    await producer.send("orders", b"%d" % sent)
                    sent += 1
                await stepped(task, steps // 3)
                await asyncio.wait([task])
                if steps % 4 == 0:
                    await consumer.commit()
                    assert (await consumer.committed()).get(ORDERS, (len(found),))[0] == len(found)
                tried("faults", 1)
            while len(found) < sent:
                found.append((await anext(consumer)).offset)
            assert found == list(range(sent))

    run(main())


def test_a_consumer_does_nothing_to_files_on_the_loop_s_thread(tmp_path: Path) -> None:
    fs = LoopFs()

    async def main() -> None:
        async with opened(tmp_path, fs=fs) as store, store.producer() as producer:
            await fill(store, 1_000)
            async with store.consumer("orders", group="g", enable_auto_commit=True) as consumer:
                for _ in range(1_000):
                    await anext(consumer)
                await consumer.commit()
                waiting = asyncio.ensure_future(anext(consumer))
                await producer.send("orders", b"last")
                assert (await waiting).value == b"last"

    run(main())
    assert fs.on_loop == []
