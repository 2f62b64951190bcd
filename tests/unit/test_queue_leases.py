"""Leases of a queue that several processes share, and what is left of them when those are gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kstore.errors import Empty
from kstore.queue.queue import Queue
from kstore.store import Store
from tests.fake_clock import ManualClock


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
    """A store that was shared, as it is when who had leased its only item is gone."""
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
    for count in (2, 3):  # said for good: it holds for who comes later too
        with Store(dead, clock=clock, background=False, durability="os", shared=shared) as store:
            job = store.queue("jobs").get_nowait()
            assert (job.value, job.delivery_count) == (b"a", count)


def test_a_lease_of_before_a_restart_lasts_no_longer_than_it_was(tmp_path: Path) -> None:
    dead = a_worker_dies(tmp_path, StartedAnew(100), lease_seconds=60)
    clock = StartedAnew(101)
    with Store(dead, clock=clock, background=False, durability="os", shared=True) as store:
        queue = store.queue("jobs")
        assert values(queue) == []
        clock.advance(60_000)
        assert values(queue) == [b"a"]


def test_who_has_the_store_alone_knows_that_nobody_has_leases(tmp_path: Path, clock: ManualClock) -> None:
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
    one.stats()  # it knows now that its lease is over
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
        again[1].ack()  # tells of the leases that were over
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    with Store(tmp_path / "killed", clock=clock, background=False, durability="os") as store:
        assert values(store.queue("jobs")) == []
