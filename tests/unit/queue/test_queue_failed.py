"""Jobs that a user fails, and the list of leased items."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kstore.errors import Empty, LeaseLostError
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock


def test_a_failed_job_is_a_dead_letter_at_once_and_is_not_delivered_again(tmp_path: Path) -> None:
    with Store(tmp_path / "store", background=False, durability="os") as store:
        queue = store.queue("jobs")
        queue.put(b"a", key=b"k", headers=(("h", b"1"),))
        job = queue.get_nowait()
        job.fail()
        assert not job.is_open
        assert (queue.qsize(), queue.stats().leased, queue.stats().dead_letters) == (0, 0, 1)
        dead = queue.dead_letters.get_nowait()
        assert (dead.value, dead.key, dead.headers) == (b"a", b"k", (("h", b"1"),))
        with pytest.raises(LeaseLostError):
            job.fail()
        assert queue.stats().dead_letters == 0  # leased: the second call added nothing


def test_the_end_of_a_block_leaves_a_failed_job_alone(tmp_path: Path) -> None:
    with Store(tmp_path / "store", background=False, durability="os") as store:
        queue = store.queue("jobs")
        queue.put(b"a")
        with queue.get_nowait() as job:
            job.fail()
        assert queue.dead_letters.qsize() == 1


def test_leased_items_are_listed_with_their_age_and_holder(tmp_path: Path) -> None:
    clock = ManualClock()
    with Store(tmp_path / "store", clock=clock, background=False, durability="os") as store:
        queue = store.queue("jobs")
        assert queue.leased() == []
        queue.put_many([b"a", b"b", b"c"])
        queue.get_nowait()
        clock.advance(5000)
        job = queue.get(lease_seconds=100)
        clock.advance(2000)
        first, second = queue.leased()
        assert (first.offset, round(first.age), round(first.rest), first.delivery_count) == (0, 7, 23, 1)
        assert (second.offset, round(second.age), round(second.rest)) == (1, 2, 98)
        assert first.holder == threading.current_thread().name
        job.ack()
        assert [item.offset for item in queue.leased()] == [0]
        clock.advance(30_000)
        assert queue.leased() == []


def test_items_that_another_process_has_leased_are_listed(tmp_path: Path) -> None:
    with (
        Store(tmp_path / "store", background=False, durability="os", shared=True) as one,
        Store(tmp_path / "store", background=False, durability="os", shared=True) as two,
    ):
        queue = one.queue("jobs")
        queue.put(b"a")
        queue.get_nowait()
        other = two.queue("jobs")
        with pytest.raises(Empty):
            other.get_nowait()
        assert [(item.offset, item.holder) for item in other.leased()] == [(0, "another process")]
