"""A producer for tasks: sends and transactions; it waits without stopping the loop, and a cancel loses nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import kstore
import kstore.aio
from kstore.errors import (
    BufferExhaustedError,
    ClosedError,
    DeliveryError,
    DiskFullError,
    ForkedError,
    RecordTooLargeError,
    TopicWaitTimeoutError,
)
from kstore.files.paths import TopicPartition
from kstore.producer.interceptors import ProducerInterceptor
from kstore.producer.records import ProducerRecord, RecordMetadata
from kstore.store import coordinator_of
from tests.support.fakes.loop_fs import LoopFs
from tests.support.lives.aio_helpers import STEPS, WAIT_SECONDS, HeldFs, opened, run, stepped, until, values_in


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


def test_tasks_that_wait_for_one_batch_ask_for_its_write_once(tmp_path: Path) -> None:
    async def main() -> int:
        async with opened(tmp_path, durability="os") as store, store.producer(linger_ms=3_600_000) as producer:
            deliveries = [await producer.send("orders", b"%d" % number) for number in range(100)]
            sender = producer._loop_producer._outbox.sender
            with mock.patch.object(sender, "write_here", wraps=sender.write_here) as asked:
                await asyncio.gather(*map(whole, deliveries))
            assert [delivery.offset for delivery in deliveries] == list(range(100))
            return asked.call_count

    async def whole(delivery: kstore.Delivery) -> None:
        await delivery

    assert run(main()) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_does_not_wait_for_a_batch_that_the_parent_waits_for(tmp_path: Path) -> None:
    fs = HeldFs("orders-0")

    async def main() -> None:
        async with opened(tmp_path, fs=fs) as store, store.producer() as producer:
            await producer.send_and_wait("orders", b"first")
            fs.is_held = True
            delivery = await producer.send("orders", b"held")

            async def wait() -> RecordMetadata:
                return await delivery

            waiting = asyncio.create_task(wait())
            await until(fs.reached.is_set)
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    asyncio._set_running_loop(None)
                    asyncio.run(asyncio.wait_for(wait(), WAIT_SECONDS))
                except ForkedError:
                    status = 0
                finally:
                    os._exit(status)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            fs.go.set()
            assert status == 0
            assert (await waiting).offset == 1

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
            store.producer(buffer_memory=64 << 10, batch_size=4 << 10, compression_type=codec) as producer,  # type: ignore[arg-type]  # a parameter of the test
        ):
            values = [b"%04d" % number + bytes(number % 3_000) for number in range(3_000)]
            sent = await producer.send_many("orders", values)
            assert await sent.result() == list(range(3_000))

    run(main())
    assert [value[:4] for value in values_in(tmp_path) if value] == [b"%04d" % number for number in range(3_000)]


def test_a_wait_for_memory_in_vain_fails_the_delivery(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path) as store,
            store.producer(buffer_memory=64 << 10, batch_size=4 << 10, max_block_ms=20) as producer,
        ):
            delivery = await producer.send("orders", b"a")
            await delivery
            blocked = threading.Event()
            # A batch keeps its memory while its callback runs.
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
        async with opened(tmp_path) as store, store.producer(max_block_ms=60_000) as producer:
            waiting = asyncio.create_task(producer.send_and_wait("later", b"a", partition=1))
            await asyncio.sleep(0)
            assert (await producer.send_and_wait("orders", b"meanwhile")).offset == 0
            await store.create_topic("later")
            await store.add_partitions("later", 2)
            assert (await waiting).partition == 1
            assert await producer.partitions_for("later") == [0, 1]

    run(main())


def test_a_store_of_its_own_fails_an_unknown_topic_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer() as producer:
            with pytest.raises(kstore.TopicNotFoundError, match=r"no topic order, did you mean orders"):
                await (await producer.send("order", b"a"))
            sent = await producer.send_many("order", [b"a"])
            assert isinstance((await sent.errors())[0], kstore.TopicNotFoundError)
            with pytest.raises(kstore.TopicNotFoundError):
                await producer.partitions_for("order")

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


def test_unexamined_failures_are_raised_by_flush(tmp_path: Path) -> None:
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


def test_a_cancelled_close_says_what_it_failed_with(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            producer = store.producer()
            await producer.send("orders", bytes(2 << 20))
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await closing
            assert producer.closed
            assert "1 record was not delivered" in cancelled.value.__notes__[0]

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


def test_a_commit_at_the_end_of_a_block_that_fails_says_why_and_can_be_continued(tmp_path: Path) -> None:
    async def main() -> list[bytes | None]:
        async with opened(tmp_path) as store, store.producer(transactional_id="t") as producer:
            coordinator = coordinator_of(store.sync)
            end = coordinator.end

            def fail(*_: object, **__: object) -> tuple[int, int]:
                raise DiskFullError(errno.ENOSPC, "for the test", "file")

            async def send() -> None:
                async with producer.transaction():
                    await producer.send("orders", b"v")
                    coordinator.end = fail  # type: ignore[method-assign]

            with pytest.raises(DiskFullError):
                await send()
            coordinator.end = end  # type: ignore[method-assign]
            await producer.commit_transaction()
            log = await store.log("orders")
            return [value async for value in log.read_values(isolation_level="read_committed")]

    assert run(main()) == [b"v"]


# --- cancelled --------------------------------------------------------------------------------------------------------


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
                # Threads work meanwhile: turns of the loop alone would be over before the first thread is done.
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
