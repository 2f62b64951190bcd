"""A log for tasks: appends that share their syncs, and ``async for`` over records; a cancel loses nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
import kstore.aio
from kstore.errors import (
    ClosedError,
    CorruptBatchError,
    OffsetOutOfRangeError,
)
from kstore.log import writer_of
from tests.support.fakes.loop_fs import LoopFs
from tests.support.lives.aio_helpers import STEPS, opened, run, stepped, until

# --- append -----------------------------------------------------------------------------------------------------------


def test_records_are_appended(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            log = await store.log("orders")
            assert await log.append(b"a", key=b"k", headers=[("h", b"1")], timestamp=5) == 0
            info = await log.append_many([b"b", None], keys=[None, b"k"], timestamps=[6, 7])
            assert (info.first_offset, info.last_offset, log.end_offset) == (1, 2, 3)
            await log.flush()
            found = [(r.key, r.value, r.headers, r.timestamp) async for r in log.read()]
            assert found == [(b"k", b"a", (("h", b"1"),), 5), (None, b"b", (), 6), (b"k", None, (), 7)]
            assert await store.log("orders") is log

    run(main())


def test_appends_of_many_tasks_share_their_syncs_and_keep_their_order(tmp_path: Path) -> None:
    fs = LoopFs()

    async def main() -> int:
        async with opened(tmp_path, fs=fs) as store:
            log = await store.log("orders")
            await log.append(b"first")
            before = fs.sync_count
            values = [b"%d" % number for number in range(1_000)]
            keyed = (log.append(value, key=value, headers=((h, value) for h in "ab")) for value in values[:500])
            stamped = (log.append(value, timestamp=number) for number, value in enumerate(values[500:]))
            assert await asyncio.gather(*keyed, *stamped) == list(range(1, 1_001))
            assert [value async for value in log.read_values(1)] == values
            assert [record.timestamp async for record in log.read(501)] == list(range(500))
            return fs.sync_count - before

    assert run(main()) < 50
    assert fs.on_loop == []


def test_what_is_wrong_with_one_append_is_its_own_matter(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, max_message_bytes=10_000) as store:
            log = await store.log("orders")
            wrong = ("no bytes", bytes(20_000))
            appends = [log.append(value) for value in (b"a", *wrong, b"b")]  # type: ignore[arg-type]
            headers = log.append(b"c", headers=(pair for pair in [("h", b"1")]))
            results = await asyncio.gather(*appends, headers, log.append(b"d", timestamp=-9), return_exceptions=True)
            assert [type(result).__name__ for result in results] == [
                "int",
                "TypeError",
                "RecordTooLargeError",
                "int",
                "int",
                "InvalidTimestampError",
            ]
            found = [(record.value, record.headers) async for record in log.read()]
            assert found == [(b"a", ()), (b"b", ()), (b"c", (("h", b"1"),))]
        with pytest.raises(ClosedError):
            await log.append(b"late")
        async with kstore.aio.open(tmp_path / "data", read_only=True) as store:
            with pytest.raises(kstore.ReadOnlyError):
                await (await store.log("orders")).append(b"no")

    run(main())


# --- read -------------------------------------------------------------------------------------------------------------


def test_tasks_share_a_reader(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            log = await store.log("orders")
            reader, found = log.read_values(0, 3_000, follow=True), []

            async def read() -> None:
                async for value in reader:
                    found.append(value)
                    await asyncio.sleep(0)

            tasks = [asyncio.create_task(read()) for _ in range(3)]
            for number in range(3):
                await log.append_many([b"%d" % value for value in range(1_000 * number, 1_000 * (number + 1))])
            await asyncio.gather(*tasks)
            assert found == [b"%d" % value for value in range(3_000)]

    run(main())


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
            assert await log.get(24_999) == log.sync.get(24_999) is not None

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


def test_a_follower_overtaken_by_retention_gets_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store, store.producer() as producer:
            log = await store.log("orders")
            await (await producer.send_many("orders", [b"a"] * 10)).result()
            reader = log.read_values(follow=True)
            assert [await anext(reader) for _ in range(10)] == [b"a"] * 10
            await store.run(writer_of(log.sync).truncate_fully_and_start_at, 50)
            await producer.send_and_wait("orders", b"b")
            with pytest.raises(OffsetOutOfRangeError):
                await anext(reader)

    run(main())


def test_a_follower_gets_new_records_and_ends_after_the_timeout(tmp_path: Path) -> None:
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


def test_a_follower_gets_committed_records_when_they_are_committed(tmp_path: Path) -> None:
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


def test_a_follower_of_another_process_s_log_gets_new_records(tmp_path: Path) -> None:
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


def test_a_dropped_follower_is_not_notified_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            log = await store.log("orders")
            reader = log.read(follow=True, timeout=300)
            waiting = asyncio.ensure_future(anext(reader))
            await until(lambda: bool(writer_of(log.sync).growth._watchers))
            waiting.cancel()
            await asyncio.wait([waiting])
            del reader, waiting
            await until(lambda: not writer_of(log.sync).growth._watchers)

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
