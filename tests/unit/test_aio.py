"""A store for tasks: sends, reads, transactions; the loop's thread does nothing, a cancel loses nothing."""

from __future__ import annotations

import asyncio
import re
import runpy
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
import kstore.aio
from kstore.errors import (
    BufferExhaustedError,
    ClosedError,
    CorruptBatchError,
    DeliveryError,
    LockedError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicNotFoundError,
    TopicWaitTimeoutError,
)
from kstore.files.paths import TopicPartition
from kstore.producer.interceptors import ProducerInterceptor
from kstore.producer.records import ProducerRecord, RecordMetadata
from tests.aio_helpers import STEPS, WAIT_SECONDS, opened, run, stepped, until, values_in
from tests.loop_fs import LoopFs

# --- open and close ---------------------------------------------------------------------------------------------------


def test_a_store_is_opened_and_closed_by_its_block(tmp_path: Path) -> None:
    async def main() -> kstore.aio.Store:
        async with opened(tmp_path) as store:
            assert not store.closed
            assert await store.topics() == ["orders"]
            assert await store.partitions("orders") == [0]
        return store

    store = run(main())
    assert store.closed
    kstore.open(tmp_path / "data").close()  # the lock is free


def test_a_store_can_be_awaited_and_closed_twice(tmp_path: Path) -> None:
    async def main() -> None:
        store = await kstore.aio.open(tmp_path / "data")
        await store.close()
        await store.close()
        with pytest.raises(ClosedError):
            await store.topics()

    run(main())


def test_what_an_open_fails_with_is_raised(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(LockedError):
            await kstore.aio.open(tmp_path / "data")

    with kstore.open(tmp_path / "data"):
        run(main())


def test_an_open_that_is_cancelled_leaves_no_store_open(tmp_path: Path) -> None:
    async def main() -> None:
        opening = asyncio.create_task(kstore.aio.open(tmp_path / "data")._make())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    run(main())
    kstore.open(tmp_path / "data").close()


def test_topics_are_made_altered_and_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("more", 2, retention_bytes="1MiB")
            await store.add_partitions("more", 3)
            await store.alter_topic("more", retention_bytes=5)
            described = await store.describe_topic("more")
            assert (len(described.partitions), described.settings) == (3, {"retention_bytes": 5})
            await store.delete_topic("more")
            with pytest.raises(TopicNotFoundError):
                await store.partitions("more")
            assert "open_logs" in await store.metrics()
            await store.run(store.sync.checkpoint)

    run(main())


def test_the_twin_comes_with_kstore_itself() -> None:
    assert kstore.__getattr__("aio") is kstore.aio
    with pytest.raises(AttributeError, match="nothing"):
        kstore.__getattr__("nothing")


# --- sends ------------------------------------------------------------------------------------------------------------


def test_a_record_is_sent_and_its_delivery_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer() as producer:
            delivery = await producer.send("orders", b"a", key=b"k", headers=[("h", b"1")], timestamp=5)
            assert (await delivery).offset == 0
            assert (await producer.send_and_wait("orders", b"b")).offset == 1
            log = await store.log("orders")
            first = await anext(log.read())
            assert (first.key, first.value, first.headers, first.timestamp) == (b"k", b"a", (("h", b"1"),), 5)

    run(main())


def test_many_tasks_share_the_syncs(tmp_path: Path) -> None:
    fs = LoopFs()

    async def main() -> int:
        async with opened(tmp_path, fs=fs) as store, store.producer() as producer:
            await producer.send_and_wait("orders", b"first")
            before = fs.sync_count
            await asyncio.gather(*(producer.send_and_wait("orders", b"%d" % number) for number in range(1000)))
            return fs.sync_count - before

    assert run(main()) < 100
    assert len(values_in(tmp_path)) == 1001


def test_the_loop_is_woken_once_for_each_batch(tmp_path: Path) -> None:
    async def main() -> int:
        async with opened(tmp_path) as store, store.producer(linger_ms=50) as producer:
            await producer.send_and_wait("orders", b"first")
            loop, counts = asyncio.get_running_loop(), [0]
            call_soon_threadsafe = loop.call_soon_threadsafe

            def counting(*arguments: Any, **options: Any) -> Any:
                counts[0] += 1
                return call_soon_threadsafe(*arguments, **options)

            loop.call_soon_threadsafe = counting  # type: ignore[assignment, method-assign]
            deliveries = [await producer.send("orders", b"x" * 100) for _ in range(100)]
            await asyncio.gather(*deliveries)
            return counts[0]

    assert run(main()) <= 3


def test_many_records_are_sent_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer() as producer:
            values = [b"%d" % number for number in range(12_000)]
            sent = await producer.send_many("orders", values, keys=[b"k"] * 12_000)
            assert len(sent) == 12_000
            assert await sent.result() == list(range(12_000))
            assert await sent.errors() == {}
            with pytest.raises(ValueError, match="1 keys for 2 values"):
                producer.send_many("orders", [b"a", b"b"], keys=[b"k"])

    run(main())
    assert values_in(tmp_path) == [b"%d" % number for number in range(12_000)]


@pytest.mark.parametrize("settings", [{}, {"compression_type": "zstd"}, {"value_serializer": "bytes", "acks": 1}])
def test_what_is_wrong_with_one_of_many_is_its_own_matter(tmp_path: Path, settings: dict[str, Any]) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer(**settings) as producer:
            sent = await producer.send_many("orders", [b"a", "no bytes", b"c", bytes(2 << 20), b"e"])
            errors = await sent.errors()
            assert {index: type(error).__name__ for index, error in errors.items()} == {
                1: "SerializationError",
                3: "RecordTooLargeError",
            }
            with pytest.raises(Exception, match="str"):
                await sent.result()

    run(main())
    assert values_in(tmp_path) == [b"a", b"c", b"e"]


def test_a_send_waits_for_memory_and_the_loop_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path, durability="os") as store,
            store.producer(buffer_memory=64 << 10, batch_size=4 << 10, linger_ms=5_000) as producer,
        ):
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            for number in range(2_000):
                await producer.send("orders", b"%04d" % number + bytes(1_000))
            ticking.cancel()
            assert ticks > 10
            await producer.flush()

    run(main())
    found = values_in(tmp_path)
    assert [value[:4] for value in found if value] == [b"%04d" % number for number in range(2_000)]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_many_records_wait_for_memory_too_in_their_order(tmp_path: Path, codec: str) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path, durability="os") as store,
            store.producer(buffer_memory=64 << 10, batch_size=4 << 10, compression_type=codec) as producer,
        ):
            values = [b"%04d" % number + bytes(number % 3_000) for number in range(3_000)]
            sent = await producer.send_many("orders", values)
            assert await sent.result() == list(range(3_000))

    run(main())
    assert [value[:4] for value in values_in(tmp_path) if value] == [b"%04d" % number for number in range(3_000)]


def test_who_waits_for_memory_in_vain_is_told_by_the_delivery(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path) as store,
            store.producer(buffer_memory=64 << 10, batch_size=4 << 10, max_block_ms=20) as producer,
        ):
            delivery = await producer.send("orders", b"a")
            await delivery
            blocked = threading.Event()
            # As long as its callback runs a batch keeps its memory.
            held = [await producer.send("orders", bytes(30_000)) for _ in range(2)]
            held[0].add_callback(lambda *_: blocked.wait(WAIT_SECONDS) and None)
            refused = await producer.send("orders", bytes(30_000))
            with pytest.raises(BufferExhaustedError, match="20 ms"):
                await refused
            blocked.set()
            await asyncio.gather(*held)

    run(main())


def test_interceptors_see_a_record_that_waits_for_memory_once(tmp_path: Path) -> None:
    seen: list[bytes] = []
    failed: list[Exception] = []

    class Seeing(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            seen.append(record.value[:4])
            return record

        def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
            if error is not None:
                failed.append(error)

    async def main() -> None:
        async with (
            opened(tmp_path, durability="os") as store,
            store.producer(buffer_memory=16 << 10, batch_size=1 << 10, interceptors=(Seeing(),)) as producer,
        ):
            sends = [producer.send("orders", b"%04d" % number + bytes(3_000)) for number in range(200)]
            await asyncio.gather(*sends)

    run(main())
    values = [value[:4] for value in values_in(tmp_path) if value is not None]
    assert values == seen == [b"%04d" % number for number in range(200)]
    assert not failed


def test_a_send_waits_for_its_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer() as producer:
            waiting = asyncio.create_task(producer.send_and_wait("later", b"a", partition=1))
            await asyncio.sleep(0)
            assert (await producer.send_and_wait("orders", b"meanwhile")).offset == 0
            await store.create_topic("later")
            await store.add_partitions("later", 2)
            assert (await waiting).partition == 1
            assert await producer.partitions_for("later") == [0, 1]

    run(main())


@pytest.mark.parametrize("max_block_ms", [0, 20])
def test_a_topic_that_does_not_come_fails_the_delivery(tmp_path: Path, max_block_ms: int) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer(max_block_ms=max_block_ms) as producer:
            delivery = await producer.send("never", b"a")
            with pytest.raises(TopicWaitTimeoutError):
                await delivery
            with pytest.raises(TopicWaitTimeoutError):
                await producer.partitions_for("never")
            odd = await producer.send("no/topic", b"a")
            with pytest.raises(kstore.ConfigError):
                await odd
            with pytest.raises(TypeError):
                await producer.send(5, b"a")  # type: ignore[arg-type]

    run(main())


def test_failures_that_nobody_looked_at_are_raised_by_flush(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            producer = store.producer()
            await producer.send("orders", bytes(2 << 20))
            with pytest.raises(DeliveryError):
                await producer.flush()
            await producer.send("orders", bytes(2 << 20))
            with pytest.raises(DeliveryError):
                await producer.close()
            assert producer.closed
            await producer.close()
            with pytest.raises(ClosedError):
                await producer.send("orders", b"a")
            with pytest.raises(ClosedError):
                await producer.send_many("orders", [b"a"])

    run(main())


# --- transactions -----------------------------------------------------------------------------------------------------


def test_a_transaction_is_committed_or_aborted_as_a_whole(tmp_path: Path) -> None:
    async def main() -> list[bytes | None]:
        async with opened(tmp_path) as store, store.producer(transactional_id="t") as producer:
            async with producer.transaction():
                await producer.send("orders", b"a")
                await producer.send_offsets({TopicPartition("orders", 0): 7}, "group")

            async def fail() -> None:
                async with producer.transaction():
                    await producer.send("orders", b"no")
                    raise LookupError

            async def lose() -> None:
                async with producer.transaction():
                    await producer.send("orders", bytes(2 << 20))

            with pytest.raises(LookupError):
                await fail()
            with pytest.raises(RecordTooLargeError):
                await lose()
            assert not producer.in_transaction
            async with producer.transaction():
                await (await producer.send_many("orders", [b"b", b"c"])).result()
            log = await store.log("orders")
            return [value async for value in log.read_values(isolation_level="read_committed")]

    assert run(main()) == [b"a", b"b", b"c"]


# --- read -------------------------------------------------------------------------------------------------------------


def test_a_log_is_read_with_async_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer() as producer:
            log = await store.log("orders")
            assert [record async for record in log.read()] == []
            await (await producer.send_many("orders", [b"%d" % number for number in range(25_000)])).result()
            assert [record.offset async for record in log.read()] == list(range(25_000))
            assert [record.offset async for record in log.read(3, 9)] == [3, 4, 5, 6, 7, 8]
            assert [value async for value in log.read_values(24_998)] == [b"24998", b"24999"]
            assert [value async for value in log.read_values(5, 5)] == []
            with pytest.raises(OffsetOutOfRangeError):
                await anext(log.read(25_001))
            assert (log.start_offset, await log.high_watermark(), await log.last_stable_offset()) == (0, 25_000, 25_000)
            assert await log.offset_for_time("latest") == 25_000

    run(main())


def test_damage_is_raised_left_out_or_shown_where_it_lies(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data") as writing:
        writing.create_topic("orders")
        for number in range(3):
            writing.log("orders").append(b"value %d" % number)
    segment = tmp_path / "data" / "orders-0" / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes().replace(b"value 1", b"value X"))

    async def main() -> None:
        async with kstore.aio.open(tmp_path / "data", read_only=True) as store:
            log = await store.log("orders")
            reader = log.read_values()
            assert await anext(reader) == b"value 0"
            with pytest.raises(CorruptBatchError):
                await anext(reader)
            with pytest.raises(StopAsyncIteration):
                await anext(reader)
            skipping = log.read_values(on_corrupt="skip")
            assert [value async for value in skipping] == [b"value 0", b"value 2"]
            assert [(lost.first, lost.last) for lost in skipping.corrupt] == [(1, 1)]
            shown = [item async for item in log.read(on_corrupt="yield")]
            assert [isinstance(item, kstore.CorruptRange) for item in shown] == [False, True, False]
            with pytest.raises(kstore.ConfigError):
                await anext(log.read(on_corrupt="ignore"))  # type: ignore[arg-type]
            closed = log.read(follow=True)
            closed.close()
            assert [record async for record in closed] == []

    run(main())


def test_a_follower_overtaken_by_retention_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer() as producer:
            log = await store.log("orders")
            await (await producer.send_many("orders", [b"a"] * 10)).result()
            reader = log.read_values(follow=True)
            assert [await anext(reader) for _ in range(10)] == [b"a"] * 10
            await store.run(log.sync.truncate_fully_and_start_at, 50)
            await producer.send_and_wait("orders", b"b")
            with pytest.raises(OffsetOutOfRangeError):
                await anext(reader)

    run(main())


def test_who_follows_gets_what_comes_and_ends_after_the_timeout(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer() as producer:
            log = await store.log("orders")
            reader = log.read_values(follow=True)
            for number in range(50):
                await producer.send("orders", b"%d" % number)
                assert await anext(reader) == b"%d" % number
            began = asyncio.get_running_loop().time()
            assert [value async for value in log.read_values(50, follow=True, timeout=0.05)] == []
            assert [value async for value in log.read_values(49, follow=True, timeout=0.05)] == [b"49"]
            assert asyncio.get_running_loop().time() - began >= 0.1
            assert [value async for value in log.read_values(49, 50, follow=True)] == [b"49"]

    run(main())


def test_who_follows_committed_records_gets_them_when_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer(transactional_id="t") as producer:
            log = await store.log("orders")
            reader = log.read_values(follow=True, isolation_level="read_committed")
            for number in range(3):
                following = asyncio.ensure_future(anext(reader))
                async with producer.transaction():
                    await (await producer.send("orders", b"%d" % number))
                    assert not following.done()
                assert await following == b"%d" % number

    run(main())


def test_who_follows_another_process_s_log_gets_what_comes(tmp_path: Path) -> None:
    async def main() -> None:
        with kstore.open(tmp_path / "data") as writing:
            writing.create_topic("orders")
            writing.log("orders").append(b"0")
            async with kstore.aio.open(tmp_path / "data", read_only=True) as store:
                reader = (await store.log("orders")).read_values(follow=True)
                assert await anext(reader) == b"0"
                for number in range(1, 20):
                    following = asyncio.ensure_future(anext(reader))
                    await asyncio.to_thread(writing.log("orders").append, b"%d" % number)
                    assert await following == b"%d" % number

    run(main())


def test_a_hundred_followers_need_no_thread_each(tmp_path: Path) -> None:
    async def main() -> int:
        async with opened(tmp_path) as store, store.producer() as producer:
            log = await store.log("orders")
            followers = [asyncio.ensure_future(anext(log.read_values(follow=True))) for _ in range(100)]
            await asyncio.sleep(0.05)
            count = threading.active_count()
            await producer.send("orders", b"a")
            assert await asyncio.gather(*followers) == [b"a"] * 100
            return count

    before = threading.active_count()
    assert run(main()) - before < 15


def test_a_follower_ends_when_the_store_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            log = await store.log("orders")

            async def follow() -> list[bytes | None]:
                return [value async for value in log.read_values(follow=True)]

            following = asyncio.create_task(follow())
            await asyncio.sleep(0.02)
        assert await following == []
        with pytest.raises(ClosedError):
            await anext(log.read())

    run(main())


def test_a_follower_that_is_forgotten_is_not_told_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            log = await store.log("orders")
            reader = log.read(follow=True, timeout=60)
            waiting = asyncio.ensure_future(anext(reader))
            await until(lambda: bool(log.sync.writer._growth_watchers))
            waiting.cancel()
            await asyncio.wait([waiting])
            del reader, waiting
            await until(lambda: not log.sync.writer._growth_watchers)

    run(main())


# --- cancelled --------------------------------------------------------------------------------------------------------


def test_a_reader_cancelled_at_any_point_loses_no_record(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    async def main() -> None:
        async with opened(tmp_path, durability="os") as store, store.producer() as producer:
            log = await store.log("orders")
            reader = log.read_values(follow=True)
            found: list[bytes | None] = []
            sent = 0

            async def read() -> None:
                async for value in reader:
                    found.append(value)

            for steps in range(STEPS):
                reading = asyncio.create_task(read())
                for _ in range(3):
                    await producer.send("orders", b"%d" % sent)
                    sent += 1
                await stepped(reading, steps)
                with pytest.raises(asyncio.CancelledError):
                    await reading
                tried("faults", 1)
            while len(found) < sent:
                found.append(await anext(reader))
            assert found == [b"%d" % number for number in range(sent)]

    run(main())


def test_a_send_cancelled_at_any_point_is_sent_or_not_and_says_which(
    tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    async def main() -> list[bytes]:
        expected = []
        async with (
            opened(tmp_path, durability="os") as store,
            store.producer(buffer_memory=16 << 10, batch_size=1 << 10, linger_ms=1) as producer,
        ):
            for steps in range(STEPS):
                sent: list[bytes] = []
                single = b"single %d" % steps

                async def send(sent: list[bytes] = sent, steps: int = steps) -> None:
                    for number in range(5):
                        value = b"%d %d" % (steps, number) + bytes(4_000)
                        await producer.send("orders", value)
                        sent.append(value)

                async def send_and_wait(sent: list[bytes] = sent, single: bytes = single) -> None:
                    try:
                        await producer.send_and_wait("orders", single)
                    except asyncio.CancelledError as error:
                        if "the record was sent, and will arrive" not in error.__notes__:
                            return
                    sent.append(single)

                sending, waiting = asyncio.create_task(send()), asyncio.create_task(send_and_wait())
                await stepped(sending, steps)
                await stepped(waiting, 1)
                await asyncio.wait([sending, waiting])
                expected += sent
                tried("faults", 1)
        return expected

    expected = run(main())
    assert sorted(expected) == sorted(value for value in values_in(tmp_path) if value is not None)


def test_many_sends_cancelled_at_any_point_have_sent_the_first(
    tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    async def main() -> list[bytes]:
        expected: list[bytes] = []
        async with (
            opened(tmp_path, durability="os") as store,
            store.producer(buffer_memory=16 << 10, batch_size=1 << 10) as producer,
        ):
            for steps in range(STEPS):
                values = [b"%d %d" % (steps, number) + bytes(3_000) for number in range(20)]
                sent = producer.send_many("orders", values)
                sending = asyncio.ensure_future(sent._sent())
                await stepped(sending, steps)
                await asyncio.gather(sending, return_exceptions=True)
                expected += values[: len(sent)]
                assert await sent.errors() == {}
                tried("faults", 1)
        return expected

    assert run(main()) == values_in(tmp_path)


def test_a_transaction_cancelled_at_any_point_is_there_whole_or_not_at_all(
    tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    async def main() -> tuple[list[bytes | None], set[int], set[int]]:
        done: set[int] = set()
        undone: set[int] = set()
        async with opened(tmp_path) as store, store.producer(transactional_id="t") as producer:
            for steps in range(STEPS):

                async def transact(steps: int = steps) -> None:
                    async with producer.transaction():
                        await producer.send("orders", b"%d" % steps)
                        await (await producer.send("orders", b"%d" % steps))

                task = asyncio.create_task(transact())
                # Threads are at work meanwhile: turns of the loop alone would end before the first of them has.
                for _ in range(steps // 4):
                    await asyncio.sleep(0.0005)
                await stepped(task, steps % 4)
                results = await asyncio.gather(task, return_exceptions=True)
                assert not producer.in_transaction
                (undone if isinstance(results[0], BaseException) else done).add(steps)
                tried("faults", 1)
            log = await store.log("orders")
            found = [value async for value in log.read_values(isolation_level="read_committed")]
        return found, done, undone

    found, done, undone = run(main())
    for steps in done:
        assert found.count(b"%d" % steps) == 2
    for steps in undone:
        assert found.count(b"%d" % steps) in (0, 2)


# --- the loop's thread ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
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


# --- docs/asyncio.md --------------------------------------------------------------------------------------------------


def test_the_guide_s_examples_say_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "asyncio.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text("\n\n".join(blocks), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path("example.py")
    said = re.findall(r"# -> (.*)", "\n".join(blocks))
    assert len(said) == sum(block.count("print(") for block in blocks) > 0
    assert capsys.readouterr().out.splitlines() == said
