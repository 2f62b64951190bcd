"""A queue for tasks: puts and acks go together, gets wait, a cancel loses no item, the loop's thread does nothing."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
import kstore.aio
from kstore.errors import ClosedError, DiskFullError, Empty, Full, LeaseLostError
from kstore.queue.job import Job
from tests.support.fakes.loop_fs import LoopFs
from tests.support.lives.aio_helpers import STEPS, WAIT_SECONDS, Ended, at_every_point, opened, run, stepped, until


def test_items_are_put_got_and_acked(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs")
            assert await queue.put(b"a", key=b"k", headers=(("h", b"1"),)) == 0
            assert await queue.put_many([b"b", b"c"]) == 1
            async with queue.get() as job:
                assert (job.value, job.key, job.headers) == (b"a", b"k", (("h", b"1"),))
                assert (job.offset, job.delivery_count, job.is_open, job.timestamp > 0) == (0, 1, True, True)
            assert not job.is_open
            jobs = await queue.get_many(5)
            assert [job.value for job in jobs] == [b"b", b"c"]
            await jobs[0].extend(60)
            await jobs[0].nack()
            assert (await queue.stats()).leased == 1
            assert [shown.value for shown in await queue.peek(2)] == [b"b", b"c"]
            await jobs[1].ack()
            with pytest.raises(LeaseLostError):
                await jobs[1].ack()
            again = await queue.get(timeout=300)
            assert (again.value, again.delivery_count) == (b"b", 2)
            await queue.ack_many([again])
            assert await queue.join()
            assert await queue.qsize() == 0
            assert await store.queue("jobs") is queue

    run(main())


def test_a_get_waits_for_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs")
            for timeout in (0, 0.02):
                with pytest.raises(Empty):
                    await queue.get(timeout=timeout)
            waiting = [asyncio.ensure_future(queue.get_many(1)) for _ in range(3)]
            asking = asyncio.ensure_future(queue.get_many(1, timeout=0.03, lease_seconds=7))
            with pytest.raises(Empty):
                await asking
            for number in range(3):
                await queue.put(b"%d" % number)
            assert [[job.value for job in jobs] for jobs in await asyncio.gather(*waiting)] == [[b"0"], [b"1"], [b"2"]]
            with pytest.raises(ValueError, match="at least 1"):
                await queue.get_many(0)

    run(main())


def test_a_delayed_item_comes_when_it_is_due(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs")
            begun = time.monotonic()
            await asyncio.gather(queue.put(b"in an hour", delay=3600), queue.put(b"soon", delay=0.05))
            assert (await queue.get()).value == b"soon"
            assert time.monotonic() - begun >= 0.05
            await queue.put(b"now")
            assert (await queue.get()).value == b"now"

    run(main())


def test_an_item_comes_back_after_an_exception(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs", max_deliveries=2)
            await queue.put(b"a")

            async def fail() -> None:
                async with queue.get(timeout=300):
                    raise LookupError

            for _ in range(2):
                with pytest.raises(LookupError):
                    await fail()
            with pytest.raises(Empty):
                await queue.get(timeout=0.01)
            dead = await queue.dead_letters()
            assert (await dead.get(timeout=300)).value == b"a"

    run(main())


def test_a_queue_is_iterated_until_the_store_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        found: Counter[bytes | None] = Counter()

        async with opened(tmp_path) as store:
            queue = await store.queue("jobs")

            async def work() -> None:
                async for job in queue:
                    async with job:
                        found[job.value] += 1

            workers = [asyncio.create_task(work()) for _ in range(5)]
            await asyncio.gather(*(queue.put(b"%d" % number) for number in range(100)))
            assert await queue.join()
        await asyncio.gather(*workers)
        assert found == Counter(b"%d" % number for number in range(100))
        with pytest.raises(ClosedError):
            await queue.put(b"late")

    run(main())


def test_puts_and_acks_of_many_tasks_share_their_syncs(tmp_path: Path) -> None:
    fs = LoopFs()

    async def main() -> tuple[int, int]:
        async with opened(tmp_path, fs=fs) as store:
            queue = await store.queue("jobs")
            await queue.put(b"first")
            before = fs.sync_count
            offsets = await asyncio.gather(*(queue.put(b"%d" % number) for number in range(500)))
            assert list(offsets) == list(range(1, 501))
            puts, before = fs.sync_count - before, fs.sync_count
            jobs = await queue.get_many(501)
            await asyncio.gather(*(job.ack() for job in jobs))
            return puts, fs.sync_count - before

    puts, acks = run(main())
    assert puts < 20
    assert acks < 20


def test_what_is_wrong_with_one_of_many_is_its_own_matter(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs", max_deliveries=0)
            puts = (queue.put(b"a"), queue.put("no bytes"), queue.put(b"c"))  # type: ignore[arg-type]
            results = await asyncio.gather(*puts, return_exceptions=True)
            assert [isinstance(result, Exception) for result in results] == [False, True, False]
            first, second = await queue.get_many(2)
            await first.ack()
            results = await asyncio.gather(first.ack(), second.ack(), return_exceptions=True)  # type: ignore[assignment]
            assert [isinstance(result, LeaseLostError) for result in results] == [True, False]

    run(main())


def test_a_wrong_argument_is_the_matter_of_its_own_task(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs")
            waiting = asyncio.ensure_future(queue.get_many(1))
            await asyncio.sleep(0)
            for seconds, error in ((-1, ValueError), ("long", TypeError)):
                with pytest.raises(error):
                    await queue.get(lease_seconds=seconds)  # type: ignore[arg-type]
            for call in (lambda: queue.get(timeout=-1), lambda: queue.put(b"no", timeout=-1), lambda: queue.join(-1)):
                with pytest.raises(ValueError, match="not negative"):
                    await call()
            await queue.put(b"a")
            assert [job.value for job in await waiting] == [b"a"]

    run(main())


def test_space_freed_while_another_task_begins_to_put_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.aio.queueing.LOOK_SECONDS", WAIT_SECONDS)
    is_full, go_on = threading.Event(), threading.Event()

    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs", maxsize=2)
            await queue.put_many([b"a", b"b"])
            put_many = queue.sync.put_many

            def put_slowly(*arguments: Any, **options: Any) -> int:
                try:
                    return put_many(*arguments, **options)
                except Full:
                    is_full.set()
                    go_on.wait(WAIT_SECONDS)
                    raise

            monkeypatch.setattr(queue.sync, "put_many", put_slowly)
            first = asyncio.create_task(queue.put(b"c"))
            await asyncio.to_thread(is_full.wait, WAIT_SECONDS)
            await queue.get_many(2)
            second = asyncio.create_task(queue.put(b"d"))
            await asyncio.sleep(0)
            go_on.set()
            async with asyncio.timeout(WAIT_SECONDS / 3):
                await asyncio.gather(first, second)

    run(main())


def test_a_put_waits_for_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs", maxsize=3)
            await queue.put_many([b"0", b"1"])
            waiting = [asyncio.create_task(queue.put(b"%d" % number)) for number in (2, 3, 4)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            with pytest.raises(Full):
                await queue.put(b"no", timeout=0)
            with pytest.raises(Full):
                await queue.put_many([b"no"], timeout=0.01)
            found = set()
            for _ in range(5):
                async with queue.get(timeout=300) as job:
                    found.add(job.value)
            await asyncio.gather(*waiting)
            assert found == {b"0", b"1", b"2", b"3", b"4"}
            assert not await asyncio.create_task(_join_late(queue))

    async def _join_late(queue: kstore.aio.Queue) -> bool:
        await queue.put(b"left")
        return await queue.join(0.01)

    run(main())


def test_a_hundred_waiting_tasks_need_no_thread_each(tmp_path: Path) -> None:
    async def main() -> int:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs")
            waiting = [asyncio.ensure_future(queue.get_many(1)) for _ in range(100)]
            await asyncio.sleep(0.05)
            count = threading.active_count()
            await queue.put_many([b"a"] * 100)
            assert len(await asyncio.gather(*waiting)) == 100
            return count

    before = threading.active_count()
    assert run(main()) - before < 15


def test_a_get_cancelled_at_any_point_gives_its_item_back(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    async def main() -> None:
        async with opened(tmp_path, durability="os") as store:
            queue = await store.queue("jobs")
            for steps in range(4 * STEPS):
                await queue.put(b"%d" % steps)
                getting = asyncio.create_task(queue.get_many(1))
                if steps % 2:
                    await asyncio.sleep(0.0001 * (steps % 7))
                await stepped(getting, steps // 4 % 16)
                await asyncio.wait([getting])
                # After a cancel nothing is leased or counted.
                (job,) = await queue.get_many(1, timeout=300) if getting.cancelled() else getting.result()
                assert (job.value, job.delivery_count) == (b"%d" % steps, 1)
                await job.ack()
                tried("faults", 1)
            assert await queue.join(0)

    run(main())


def test_a_get_that_was_given_its_item_and_is_cancelled_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path, durability="os") as store:
            queue = await store.queue("jobs")
            getting = asyncio.create_task(queue.get_many(1))
            await asyncio.sleep(0)
            hand_out = queue._getters._hand_out

            async def hand_out_and_cancel(jobs: list[Job], served: Any) -> None:
                await hand_out(jobs, served)
                if jobs:
                    # The task has the item, and has not run since.
                    getting.cancel()

            monkeypatch.setattr(queue._getters, "_hand_out", hand_out_and_cancel)
            await queue.put(b"a")
            await asyncio.wait([getting])
            monkeypatch.undo()
            assert getting.cancelled()
            job = (await queue.get_many(1, timeout=300))[0]
            assert (job.value, job.delivery_count) == (b"a", 1)

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="stores are shared on Linux")
def test_a_get_is_cancelled_where_its_item_cannot_be_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise DiskFullError(28, "no space left")

    async def main() -> None:
        async with opened(tmp_path, shared=True) as store:
            queue = await store.queue("jobs", lease_seconds=0.2)
            await queue.put(b"a")

            async def get(point: int) -> list[kstore.aio.Job]:
                return await queue.get_many(1)

            async def check(point: int, ended: Ended) -> None:
                assert ended.is_last or ended.is_cancelled

            with monkeypatch.context() as patched:
                patched.setattr(queue.sync, "nack", full)
                await at_every_point("done", get, check)
            assert "could not be returned: " in caplog.text
            # It comes back when its lease is over.
            assert (await queue.get(timeout=300)).value == b"a"

    run(main())


def test_a_put_cancelled_at_any_point_is_put_or_not_and_says_which(
    tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    async def main() -> None:
        expected: list[bytes] = []
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs")

            async def put(item: bytes) -> None:
                try:
                    await queue.put(item)
                except asyncio.CancelledError as error:
                    if error.__notes__ != ["it was done"]:
                        return
                expected.append(item)

            for steps in range(STEPS):
                others = [asyncio.create_task(put(b"%d other %d" % (steps, number))) for number in range(3)]
                putting = asyncio.create_task(put(b"%d" % steps))
                await stepped(putting, steps % 12 + 1)
                await asyncio.wait([putting, *others])
                tried("faults", 1)
            found = [job.value for job in await queue.get_many(1_000)]
            assert Counter(found) == Counter(expected)

    run(main())


def test_an_ack_that_is_cancelled_is_made(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs")
            await queue.put_many([b"a"] * STEPS)
            for steps in range(STEPS):
                job = await queue.get(timeout=300)
                acking = asyncio.create_task(job.ack())
                await stepped(acking, steps % 12 + 1)
                await asyncio.wait([acking])
                assert not job.is_open
                tried("faults", 1)
            assert await queue.join(0)

    run(main())


def test_workers_cancelled_at_any_point_lose_no_item(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    async def main() -> None:
        done: Counter[bytes] = Counter()
        async with opened(tmp_path, durability="os") as store:
            queue = await store.queue("jobs", max_deliveries=0)

            async def work() -> None:
                async for job in queue:
                    async with job:
                        await asyncio.sleep(0)
                        done[job.value or b""] += 1

            await queue.put_many([b"%d" % number for number in range(300)])
            for steps in range(STEPS):
                workers = [asyncio.create_task(work()) for _ in range(3)]
                for number, worker in enumerate(workers):
                    await stepped(worker, steps // 2 + number)
                await asyncio.wait(workers)
                tried("faults", 3)
            workers = [asyncio.create_task(work()) for _ in range(3)]
            assert await queue.join(300)
        await asyncio.gather(*workers)
        # An item that was done when its worker was cancelled is acked: it is not done again.
        assert sorted(done, key=int) == [b"%d" % number for number in range(300)]

    run(main())


def test_a_queue_does_nothing_to_files_on_the_loop_s_thread(tmp_path: Path) -> None:
    fs = LoopFs()

    async def main() -> None:
        async with opened(tmp_path, fs=fs) as store:
            queue = await store.queue("jobs", max_deliveries=2)
            waiting = asyncio.ensure_future(queue.get_many(1))
            await asyncio.gather(*(queue.put(b"%d" % number) for number in range(100)))
            await (await waiting)[0].nack(0.01)
            jobs = await queue.get_many(50)
            await asyncio.gather(*(job.ack() for job in jobs))
            await until(lambda: not queue._getters._waiting)
            await queue.stats()
            await queue.peek()

    run(main())
    assert fs.on_loop == []


OTHER = """
import sys, kstore

with kstore.open(sys.argv[1], shared=True) as store:
    queue, log = store.queue("jobs"), store.log("orders")
    for number in range(30):
        queue.put(b"%d" % number)
        log.append(b"%d" % number)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="stores are shared on Linux")
def test_what_another_process_puts_and_appends_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, shared=True) as store:
            queue = await store.queue("jobs")
            log = await store.log("orders")

            async def got() -> list[int]:
                values = []
                for _ in range(30):
                    async with queue.get() as job:
                        values.append(int(job.value or b""))
                return values

            async def followed() -> list[int]:
                return [int(value or b"") async for value in log.read_values(0, 30, follow=True)]

            async def consumed() -> list[int]:
                async with store.consumer("orders", group="g") as consumer:
                    return [int((await anext(consumer)).value) for _ in range(30)]

            other = await asyncio.create_subprocess_exec(sys.executable, "-c", OTHER, str(tmp_path / "data"))
            found = await asyncio.gather(got(), followed(), consumed())
            assert await other.wait() == 0
            assert list(found) == [list(range(30))] * 3
            # A cancelled get gives its item back to all processes.
            for steps in range(20):
                getting = asyncio.create_task(queue.get_many(1))
                await queue.put(b"a")
                await stepped(getting, steps)
                await asyncio.wait([getting])
                (job,) = await queue.get_many(1, timeout=300) if getting.cancelled() else getting.result()
                await job.ack()
            assert await queue.join(300)

    run(main())


def test_a_look_for_items_that_ends_with_its_getters_is_not_started_again(tmp_path: Path) -> None:
    """As at the end of a loop, which cancels all tasks in no order."""

    async def main() -> None:
        async with opened(tmp_path, durability="os") as store:
            queue = await store.queue("jobs")
            getters, started = queue._getters, 0
            look_for_all = getters._look_for_all

            async def counted() -> None:
                nonlocal started
                started += 1
                await look_for_all()

            getters._look_for_all = counted  # type: ignore[method-assign]
            for steps in range(STEPS):
                started = 0
                getting = asyncio.create_task(queue.get())
                for _ in range(steps):
                    await asyncio.sleep(0)
                looking = getters._looking
                if looking is not None:
                    looking.cancel()
                getting.cancel()
                await asyncio.wait([getting] if looking is None else [getting, looking])
                await until(lambda: getters._looking is None)
                assert started <= 1
            for steps in range(STEPS):
                getting = asyncio.create_task(queue.get())
                while getters._looking is None:
                    await asyncio.sleep(0)
                looking = getters._looking
                for _ in range(steps):
                    await asyncio.sleep(0)
                looking.cancel()  # and not the getter
                await queue.put(b"%d" % steps)
                await (await getting).ack()

    run(main())


def test_the_rest_of_the_interface_of_a_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs", maxsize=2)
            assert (queue.maxsize, await queue.empty(), await queue.full()) == (2, True, False)
            await queue.put_nowait(b"a")
            await queue.put_nowait(b"b")
            assert await queue.full()
            with pytest.raises(Full):
                await queue.put_nowait(b"c")
            job = await queue.get_nowait()
            assert [item.offset for item in await queue.leased()] == [job.offset]
            await queue.task_done(job)
            async with queue.get_nowait() as job:
                await job.fail()
            with pytest.raises(Empty):
                await queue.get_nowait()
            assert await (await queue.dead_letters()).qsize() == 1

    run(main())


def test_headers_are_a_mapping_or_pairs_and_many_items_any_iterable(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            queue = await store.queue("jobs", maxsize=3)
            puts = [queue.put(b"a", headers={"h": b"1"}), queue.put(b"b", headers=(one for one in [("h", b"2")]))]
            assert sorted(await asyncio.gather(*puts)) == [0, 1]
            rows: list[Any] = [{"h": b"3"}, iter([("h", b"4")])]
            many = asyncio.ensure_future(queue.put_many((b"%d" % at for at in range(2)), headers=iter(rows)))
            await queue.ack_many(await queue.get_many(2))
            assert await many == 2
            assert [dict(shown.headers) for shown in await queue.peek(4)] == [{"h": b"3"}, {"h": b"4"}]

    run(main())
