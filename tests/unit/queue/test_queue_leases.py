"""Leases of a queue that several processes share, and what remains of them after those processes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.engine.read.reads import LogReads
from kstore.errors import ConfigError, DiskFullError, Empty, LeaseLostError
from kstore.queue.leases import GROUPS_MAX
from kstore.queue.queue import Queue
from kstore.queue.state import QueueState
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.unit.queue.test_queue_state import Held, Item


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def values(queue: Queue, count: int = 100) -> list[bytes | None]:
    try:
        return [job.value for job in queue.get_many(count, block=False)]
    except Empty:
        return []


class StartedAnew(ManualClock):
    """The clock of a machine that has been up for ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._monotonic = seconds


def a_worker_dies(path: Path, clock: ManualClock, *, lease_seconds: float, is_rewritten: bool = False) -> Path:
    """A shared store after the death of the process that had leased its only item."""
    with Store(path / "store", clock=clock, background=False, durability="os", shared=True) as store:
        queue = store.queue("jobs", lease_seconds=lease_seconds)
        queue.put(b"a")
        queue.get_nowait()
        if is_rewritten:
            queue._space.rewrite()
        return shutil.copytree(path / "store", path / "dead")


@pytest.mark.parametrize("is_rewritten", [False, True], ids=["journal", "snapshot"])
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_a_restart_of_the_machine_ends_all_leases(tmp_path: Path, shared: bool, is_rewritten: bool) -> None:
    dead = a_worker_dies(tmp_path, StartedAnew(30 * 86_400), lease_seconds=600, is_rewritten=is_rewritten)
    clock = StartedAnew(10)
    for count in (2, 3):  # recorded, so it holds for later processes too
        with Store(dead, clock=clock, background=False, durability="os", shared=shared) as store:
            job = store.queue("jobs").get_nowait()
            assert (job.value, job.delivery_count) == (b"a", count)


def test_a_restart_of_the_machine_is_recognised_by_its_id(tmp_path: Path) -> None:
    """The clock has already reached its value at the machine's crash."""
    dead = a_worker_dies(tmp_path, StartedAnew(100), lease_seconds=600)
    clock = StartedAnew(101)
    with mock.patch("kstore.queue.ledger.boot_id", return_value=b"the next boot..."):
        stores = [Store(dead, clock=clock, background=False, durability="os", shared=True) for _ in range(3)]
        one, other = [store.queue("jobs", lease_seconds=30) for store in stores[:2]]
        job = one.get_nowait()
        assert (job.value, job.delivery_count) == (b"a", 2)
        one._space.rewrite()
        # It ends the leases from before, and no others.
        assert values(other) == values(stores[2].queue("jobs")) == []
        job.ack()
        for store in stores:
            store.close()


def test_a_lease_from_before_an_unnoticed_restart_lasts_no_longer_than_its_time(tmp_path: Path) -> None:
    dead = a_worker_dies(tmp_path, StartedAnew(100), lease_seconds=60)
    clock = StartedAnew(101)
    with Store(dead, clock=clock, background=False, durability="os", shared=True) as store:
        queue = store.queue("jobs")
        assert values(queue) == []
        clock.advance(60_000)
        assert values(queue) == [b"a"]


def test_a_process_that_has_the_store_alone_knows_that_no_lease_exists(tmp_path: Path, clock: ManualClock) -> None:
    dead = a_worker_dies(tmp_path, clock, lease_seconds=3600)
    with Store(dead, clock=clock, background=False, durability="os") as store:
        assert values(store.queue("jobs")) == [b"a"]
        store.queue("jobs").check()
    with Store(dead, clock=clock, background=False, durability="os", shared=True) as store:
        assert values(store.queue("jobs")) == [b"a"]


def shared_by(path: Path, clock: ManualClock, count: int) -> list[Store]:
    return [Store(path / "store", clock=clock, background=False, durability="os", shared=True) for _ in range(count)]


@pytest.mark.parametrize("is_nacked", [False, True], ids=["leased", "delayed"])
def test_the_late_word_of_a_lease_leaves_the_next_one_alone(
    tmp_path: Path, clock: ManualClock, is_nacked: bool
) -> None:
    stores = shared_by(tmp_path, clock, 3)
    one, other, third = [store.queue("jobs", lease_seconds=30) for store in stores]
    one.put(b"a")
    one.get_nowait()
    clock.advance(31_000)
    one._core.state.expire(clock.monotonic())
    job = other.get_nowait()
    if is_nacked:
        job.nack(delay=60)
    one.put(b"b")
    one.get_nowait().ack()  # says so
    assert values(third) == []
    if not is_nacked:
        job.ack()
    for store in stores:
        store.close()


def test_the_late_word_of_a_lease_leaves_a_delay_alone(tmp_path: Path, clock: ManualClock) -> None:
    with Store(tmp_path / "store", clock=clock, background=False, durability="os") as store:
        queue = store.queue("jobs", lease_seconds=30)
        queue.put_many([b"a", b"b"])
        queue.get_many(2)
        clock.advance(31_000)
        again = queue.get_many(2)
        again[0].nack(delay=60)
        again[1].ack()  # reports the leases that had expired
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    with Store(tmp_path / "killed", clock=clock, background=False, durability="os") as store:
        assert values(store.queue("jobs")) == []


@pytest.mark.parametrize(
    "setting", [{"retention_ms": 1000}, {"retention_bytes": 10_000}, {"cleanup_policy": "compact"}], ids=str
)
def test_a_topic_that_loses_items_is_no_queue(tmp_path: Path, setting: dict[str, Any]) -> None:
    with Store(tmp_path / "store", background=False, durability="os") as store:
        kept: dict[str, Any] = {"retention_ms": -1, "retention_bytes": -1}
        store.create_topic("jobs", **{**kept, **setting})
        (name, value), *_ = setting.items()
        with pytest.raises(ConfigError, match=f"jobs has {name} {value!r}, expected"):
            store.queue("jobs")
        store.create_topic("kept", **kept)
        store.queue("kept").put(b"a")


@pytest.mark.parametrize("is_all", [True, False])
def test_items_held_for_a_while_keep_their_delays(tmp_path: Path, clock: ManualClock, is_all: bool) -> None:
    """As for a move whose process dies, or gives up because another process has one of them."""
    stores = shared_by(tmp_path, clock, 3)
    mover, worker, third = [store.queue("jobs", lease_seconds=600) for store in stores]
    mover.put(b"a")
    mover.put(b"b", delay=3600)
    job = worker.get_nowait()
    with mover._core.lock:
        mover._core.fill()
        owned = mover._core.leasing.own_all([1] if is_all else [0, 1], 60.0)
    assert (owned is not None) == is_all
    clock.advance(61_000)
    assert values(third) == []
    job.ack()
    clock.advance(3_600_000)
    assert values(third) == [b"b"]
    for store in stores:
        store.close()


def test_a_put_that_does_not_wait_knows_of_room_that_others_have_made(tmp_path: Path, clock: ManualClock) -> None:
    stores = shared_by(tmp_path, clock, 2)
    one, other = [store.queue("jobs", maxsize=1) for store in stores]
    one.put(b"a")
    other.get_nowait().ack()
    one.put_nowait(b"b")
    for store in stores:
        store.close()


def test_a_get_beside_an_open_transaction_sleeps(tmp_path: Path, clock: ManualClock) -> None:
    with Store(tmp_path / "alone", clock=clock, background=False, durability="os") as store:
        store.queue("jobs")
        producer = store.producer(transactional_id="t")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("jobs", b"a")
        producer.flush()
        shutil.copytree(tmp_path / "alone", tmp_path / "store")
        producer.abort_transaction()
        producer.close()
    (store,) = shared_by(tmp_path, clock, 1)
    with store:
        core = store.queue("jobs")._core
        waited: list[int] = []
        with core.lock, mock.patch.object(LogReads, "wait_beyond", lambda _, end, *__, **___: waited.append(end)):
            assert core.take(store.queue("jobs"), 1, 1.0) == []
            core.wait(1.0)
        assert waited == [1]


def no_space(*_: object, **__: object) -> int:
    raise DiskFullError(28, "no space", "a file")


@pytest.mark.parametrize("is_acked", [False, True], ids=["has it", "has acked it"])
def test_a_nack_of_an_item_that_another_worker_has_is_refused(
    tmp_path: Path, clock: ManualClock, is_acked: bool
) -> None:
    stores = shared_by(tmp_path, clock, 2)
    one, other = [store.queue("jobs", lease_seconds=30) for store in stores]
    one.put(b"a")
    job = one.get_nowait()
    clock.advance(31_000)
    taken = other.get_nowait()
    if is_acked:
        taken.ack()
    with pytest.raises(LeaseLostError, match="its lease expired"):
        job.nack(delay=60)
    one.check()
    assert (one._core.state.retries == {}) == is_acked
    if not is_acked:
        taken.nack()
        assert values(one) == [b"a"]
    for store in stores:
        store.close()


def test_a_nack_that_arrives_too_late_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    stores = shared_by(tmp_path, clock, 2)
    one, other = [store.queue("jobs", lease_seconds=30) for store in stores]
    one.put(b"a")
    job = one.get_nowait()
    append = one._core.journal.append
    taken = []

    def late(value: bytes) -> int:
        clock.advance(31_000)
        taken.append(other.get_nowait())
        return append(value)

    with mock.patch.object(one._core.journal, "append", late), pytest.raises(LeaseLostError):
        job.nack()
    assert values(one) == []
    taken[0].ack()
    for store in stores:
        store.close()


def test_a_nack_that_fails_gives_the_item_back_when_its_lease_is_over(tmp_path: Path, clock: ManualClock) -> None:
    (store,) = shared_by(tmp_path, clock, 1)
    with store:
        queue = store.queue("jobs", lease_seconds=30)
        queue.put(b"a")
        job = queue.get_nowait()
        with mock.patch.object(queue._core.journal, "append", no_space), pytest.raises(DiskFullError):
            job.nack()
        queue.check()
        assert values(queue) == []
        clock.advance(30_000)
        assert values(queue) == [b"a"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_lease_ends_in_time_though_its_ack_failed(tmp_path: Path, clock: ManualClock, count: int) -> None:
    with Store(tmp_path / "store", clock=clock, background=False, durability="os") as store:
        queue = store.queue("jobs", lease_seconds=10)
        queue.put_many([b"a", b"b", b"c"])
        jobs = queue.get_many(count)
        clock.advance(9000)
        later = queue.get_nowait()
        journal = queue._core.journal
        with (
            mock.patch.object(journal, "append", no_space),
            mock.patch.object(journal, "append_all", no_space),
            pytest.raises(DiskFullError),
        ):
            jobs[0].ack() if count == 1 else queue.ack_many(jobs)
        clock.advance(1000)
        assert [job.delivery_count for job in queue.get_many(count)] == [2] * count
        later.ack()


def test_leases_count_until_their_deadlines_whatever_their_lengths(tmp_path: Path, clock: ManualClock) -> None:
    with Store(tmp_path / "store", clock=clock, background=False, durability="os") as store:
        queue = store.queue("jobs", lease_seconds=10)
        queue.put_many([b"x"] * 9)
        later = [queue.get_many(2, lease_seconds=20), queue.get_many(3), queue.get_many(3, lease_seconds=5)]
        later[1][0].extend(30)
        later[0][1].ack()
        found = []
        for seconds in (0, 5, 4, 1, 9, 1, 9, 1):  # at 0, 5, 9, 10, 19, 20, 29 and 30
            clock.advance(seconds * 1000)
            found.append(queue.stats().leased)
        assert found == [7, 4, 4, 2, 2, 1, 1, 0]


def test_dead_letters_are_put_again_as_far_as_there_is_room(tmp_path: Path, clock: ManualClock) -> None:
    with Store(tmp_path / "store", clock=clock, background=False, durability="os") as store:
        queue = store.queue("jobs", max_deliveries=1, maxsize=2)
        for number in range(5):
            queue.put(b"%d" % number)
            queue.get_nowait().nack()
        assert (queue.retry_dead(), queue.retry_dead(), queue.dead_letters.stats().leased) == (2, 0, 0)
        assert values(queue) == [b"0", b"1"]
        assert queue.retry_dead(1) == 1
        with mock.patch.object(queue._core.items, "append_many", no_space), pytest.raises(DiskFullError):
            queue.retry_dead()
        assert (queue.dead_letters.stats().leased, queue.retry_dead()) == (0, 1)
        assert values(queue) == [b"2", b"3"]


def test_leases_of_any_length_end_in_their_order() -> None:
    state: QueueState[Item, Held] = QueueState()
    generator = random.Random(1)
    held = [Held(offset, generator.uniform(0, 100)) for offset in range(300)]
    for lease in held:
        lease.seconds = lease.deadline
        state.offer(Item(lease.offset))
    state.take(300, 0, 0)
    for lease in held:
        state.lease([lease], lease.seconds)
    assert len(state.leases) <= GROUPS_MAX + 1
    for lease in held[::3]:
        state.end_lease(lease)
    for lease in held[::6]:
        state.lease_again(lease)
    left = [lease for number, lease in enumerate(held) if number % 3 or number % 6 == 0]
    assert all(state.is_leased(lease) and state.lease_of(lease.offset) is lease for lease in left)
    for now in range(0, 101, 5):
        expected = [lease for lease in left if lease.deadline > now]
        state.expire(now)
        assert state.leased_count == len(expected)
        assert state.wait_seconds(now, 0) == (min(lease.deadline for lease in expected) - now if expected else None)
