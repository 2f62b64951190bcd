"""Appends and puts of tasks: threads write what waits in lines, and no log or loop waits for another."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import kstore.aio
from kstore.aio import threads as aio_threads
from kstore.aio._line import Entry, Line, Lines, settle
from kstore.aio.gathering import GATHERED_MAX, WAITING_BYTES_MAX, Gathering
from kstore.errors import ClosedError, RecordTooLargeError, ThreadStartError
from kstore.files.lifetime import ForkGuard
from tests.support.fakes.loop_fs import LoopFs
from tests.support.lives.aio_helpers import WAIT_SECONDS, HeldFs, opened, run, until, values_in


class Writers:
    """The threads that have begun to write for tasks since this was made."""

    def __init__(self) -> None:
        self._before = set(self._all())

    def _all(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "kstore-aio-writer"]

    def __call__(self) -> list[threading.Thread]:
        return [thread for thread in self._all() if thread not in self._before]


@pytest.fixture
def writers() -> Writers:
    return Writers()


# --- the lines --------------------------------------------------------------------------------------------------------


def line(size_max: int = 1 << 30, start: Callable[[Lines], object] = lambda _: None) -> Line:
    """A line that no thread serves."""
    return Line(Lines(ForkGuard(), start, 4), lambda: None, size_max)


def test_a_line_is_in_order_of_arrival_without_what_was_withdrawn() -> None:
    chance = random.Random(7)

    async def main() -> None:
        tried, expected, count = line(), deque[Entry](), 0
        for _ in range(20_000):
            step = chance.random()
            if step < 0.5:
                entry = tried.join(count, 10)
                assert entry is not None
                expected.append(entry)
                count += 1
            elif step < 0.8 and expected:
                entry = chance.choice(expected)
                assert tried.withdraw(entry)
                assert not tried.withdraw(entry)
                expected.remove(entry)
            elif step > 0.97:
                taken = tried.take(chance.randrange(1, 40), 1 << 30)
                assert taken == [expected.popleft() for _ in taken]
                assert not any(tried.withdraw(entry) for entry in taken)
                assert taken or not expected
            assert tried.size >= 10 * len(expected)
        assert tried.take(1 << 30, 1 << 30) == list(expected)
        assert tried.size == 0

    run(main())


def test_a_line_gives_one_item_that_is_larger_than_what_a_call_takes() -> None:
    async def main() -> None:
        tried = line()
        for size in (5_000, 10, 10):
            tried.join(size, size)
        assert [entry.item for entry in tried.take(10, 100)] == [5_000]
        assert [entry.item for entry in tried.take(1, 10_000)] == [10]

    run(main())


def test_a_long_line_can_be_dropped() -> None:
    async def main() -> None:
        tried: Line | None = line()
        assert tried is not None
        for _ in range(200_000):
            tried.join(b"", 0)
        tried = None

    run(main())
    gc.collect()


class RefusingFuture(asyncio.Future[object]):
    def set_result(self, result: object) -> None:
        raise TypeError(f"not {result!r}")


def test_a_result_that_a_future_refuses_ends_the_wait_nevertheless() -> None:
    async def main() -> None:
        tried = line()
        first, second = (tried.join(number, 0) for number in range(2))
        assert first is not None
        assert second is not None
        first.future = RefusingFuture()
        taken = tried.take(10, 10_000)
        with pytest.raises(TypeError, match="not 4"):
            settle(asyncio.get_running_loop(), deque([(taken, [4, 5])]), tried)
        assert isinstance(first.future.exception(), TypeError)
        assert second.future.result() == 5

    run(main())


# --- writes -----------------------------------------------------------------------------------------------------------


def test_the_next_write_begins_while_the_loop_does_something_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, durability="os") as store:
            log = await store.log("orders")
            count = GATHERED_MAX * 2 + 1
            appends = [asyncio.create_task(log.append(b"a")) for _ in range(count)]
            await asyncio.sleep(0)
            # The loop stands still here until all of them are written.
            assert sum(1 for _ in log.sync.read(0, count, follow=True, timeout=WAIT_SECONDS)) == count
            assert not any(append.done() for append in appends)
            assert await asyncio.gather(*appends) == list(range(count))

    run(main())


def test_an_error_of_one_append_costs_the_others_no_write(tmp_path: Path) -> None:
    fs = LoopFs()

    async def main() -> int:
        async with opened(tmp_path, fs=fs, max_message_bytes=10_000) as store:
            log, queue = await store.log("orders"), await store.queue("jobs")
            await log.append(b"first")
            await queue.put(b"first")
            before = fs.sync_count
            values: list[Any] = [b"a"] * 50 + [bytes(20_000), "text"] + [b"b"] * 50
            done = await asyncio.gather(*map(log.append, values), *map(queue.put, values), return_exceptions=True)
            for found in (done[:102], done[102:]):
                assert [type(one) for one in found if not isinstance(one, int)] == [RecordTooLargeError, TypeError]
                assert [one for one in found if isinstance(one, int)] == list(range(1, 101))
            assert log.sync.end_offset == 101
            return fs.sync_count - before

    # A write takes what is there when it begins.
    assert run(main()) <= 40


def test_what_waits_is_bounded_and_a_cancelled_task_leaves_without_a_trace(tmp_path: Path) -> None:
    fs = HeldFs("orders-0")
    size = 1 << 20
    count = 2 * WAITING_BYTES_MAX // size

    async def main() -> None:
        async with opened(tmp_path, fs=fs, max_message_bytes="8MiB") as store:
            log = await store.log("orders")
            await log.append(b"first")
            fs.is_held = True
            held = asyncio.create_task(log.append(b"held"))
            await until(fs.reached.is_set)
            appends = [asyncio.create_task(log.append(b"%03d" % number + bytes(size))) for number in range(count)]
            await asyncio.sleep(0)
            assert WAITING_BYTES_MAX <= log._appends._line.size <= WAITING_BYTES_MAX + 2 * size
            # One in the line, and one that waits for room.
            for left in (appends.pop(5), appends.pop(-5)):
                left.cancel()
                with pytest.raises(asyncio.CancelledError) as cancelled:
                    await left
                assert cancelled.value.__notes__ == ["nothing was done"]
            fs.is_held = False
            fs.go.set()
            assert await held == 1
            assert await asyncio.gather(*appends) == list(range(2, count))
            assert log._appends._line.size == 0

    run(main())
    expected = [b"%03d" % number for number in range(count) if number not in (5, count - 5)]
    assert [value[:3] for value in values_in(tmp_path)[2:] if value is not None] == expected


def test_a_task_that_waits_for_room_gets_that_of_cancelled_ones() -> None:
    async def main() -> None:
        # No thread comes for the line.
        with mock.patch.object(aio_threads, "start_thread"):
            threads = aio_threads.Threads()
            gathering = Gathering[int, int](threads, lambda items: items)
            adding = [asyncio.create_task(gathering.add(number, WAITING_BYTES_MAX)) for number in range(3)]
            for number in range(2):
                await until(lambda: gathering._line.size > 0)
                adding[number].cancel()
                await asyncio.wait([adding[number]])
            await until(lambda: gathering._line.size > 0)
            taken = gathering._line.take(10, 1 << 30)
            assert [entry.item for entry in taken] == [2]
            settle(asyncio.get_running_loop(), deque([(taken, [5])]), gathering._line)
            assert await adding[2] == 5
            threads.close()

    run(main())


def test_one_log_does_not_wait_for_the_disk_of_another(tmp_path: Path, writers: Writers) -> None:
    fs = HeldFs("orders-0")

    async def main() -> None:
        async with opened(tmp_path, fs=fs) as store:
            await store.topic("others")
            log, other, queue = await store.log("orders"), await store.log("others"), await store.queue("jobs")
            assert await log.append(b"first") == 0
            assert len(writers()) == 1
            fs.is_held = True
            held = asyncio.create_task(log.append(b"held"))
            await until(fs.reached.is_set)
            assert list(await asyncio.gather(other.append(b"a"), other.append(b"b"), queue.put(b"c"))) == [0, 1, 0]
            assert not held.done()
            fs.go.set()
            assert await held == 1
            assert 2 <= len(writers()) <= aio_threads.THREADS

    run(main())


def test_one_busy_log_needs_one_thread(tmp_path: Path, writers: Writers) -> None:
    async def main() -> None:
        async with opened(tmp_path, durability="os") as store:
            log = await store.log("orders")

            async def append() -> None:
                for _ in range(100):
                    await log.append(b"a")

            await asyncio.gather(*(append() for _ in range(20)))
            assert len(writers()) == 1

    run(main())
    for thread in writers():
        thread.join(WAIT_SECONDS)
    assert writers() == []


# --- threads that end, or cannot start --------------------------------------------------------------------------------


def test_an_append_says_that_no_thread_can_be_started_and_the_next_one_is_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, durability="os") as store:
            log, queue = await store.log("orders"), await store.queue("jobs")
            error = ThreadStartError(11, "no more")
            with mock.patch.object(aio_threads, "start_thread", side_effect=error), pytest.raises(ThreadStartError):
                await log.append(b"a")
            with (
                mock.patch.object(aio_threads, "start_thread", side_effect=KeyboardInterrupt),
                pytest.raises(asyncio.CancelledError),
            ):
                await asyncio.gather(interrupted(log))
            assert await log.append(b"b") == 0
            with mock.patch.object(aio_threads, "start_thread", side_effect=error):
                # The one that runs does it.
                await asyncio.gather(log.append(b"c"), queue.put(b"c"))

    async def interrupted(log: kstore.aio.Log) -> None:
        """An interrupt that ended the loop would say nothing of the threads."""
        try:
            await log.append(b"b")
        except KeyboardInterrupt:
            raise asyncio.CancelledError from None

    run(main())
    assert values_in(tmp_path)[-1] == b"c"


def test_the_threads_of_a_dropped_store_end(tmp_path: Path, writers: Writers) -> None:
    async def main() -> kstore.Store:
        store = await kstore.aio.open(tmp_path / "data", durability="os")
        await store.topic("orders")
        await (await store.log("orders")).append(b"a")
        assert len(writers()) == 1
        return store.sync

    store = run(main())
    for thread in writers():
        while thread.is_alive():
            gc.collect()  # it may still be on its way from the append
            thread.join(0.01)
    store.close()


# --- the end of a loop, and of a store --------------------------------------------------------------------------------


def test_a_loop_that_is_closed_while_its_appends_are_written_stops_no_later_loop(tmp_path: Path) -> None:
    fs = HeldFs("orders-0")
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[kstore.aio.Store, kstore.aio.Log]:
        store = await kstore.aio.open(tmp_path / "data", fs=fs)
        await store.topic("orders")
        log = await store.log("orders")
        await log.append(b"first")
        fs.is_held = True
        tasks.append(asyncio.create_task(log.append(b"in flight")))
        await until(fs.reached.is_set)
        tasks.append(asyncio.create_task(log.append(b"in the line")))
        await asyncio.sleep(0)
        return store, log

    tasks: list[asyncio.Task[int]] = []
    store, log = loop.run_until_complete(begin())
    loop.close()
    fs.is_held = False
    fs.go.set()

    async def go_on() -> None:
        assert await log.append(b"of the next loop") == 3
        await store.close()
        with pytest.raises(ClosedError):
            await log.append(b"late")

    asyncio.run(go_on())
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    assert values_in(tmp_path) == [b"first", b"in flight", b"in the line", b"of the next loop"]


def test_appends_beside_the_close_of_their_store_are_done_or_say_that_it_is_closed(tmp_path: Path) -> None:
    async def main() -> list[int | BaseException]:
        async with opened(tmp_path, durability="os") as store:
            log = await store.log("orders")
            appends = [asyncio.create_task(log.append(b"%d" % number)) for number in range(3_000)]
            await asyncio.sleep(0)
        return await asyncio.gather(*appends, return_exceptions=True)

    found = run(main())
    done = [one for one in found if isinstance(one, int)]
    assert all(isinstance(one, ClosedError) for one in found if not isinstance(one, int))
    assert values_in(tmp_path) == [b"%d" % number for number in range(len(done))]
