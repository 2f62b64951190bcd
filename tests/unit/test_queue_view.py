"""What ``peek`` and observers see of a queue: its items, and no leftovers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from kstore.queue.queue import Queue
from kstore.queue.view import QueueView
from kstore.store import Store
from tests.fake_clock import ManualClock

LEASE_SECONDS = 30


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Iterator[Queue]:
    with Store(tmp_path / "store", clock=clock, background=False, durability="os") as store:
        yield store.queue("jobs", lease_seconds=LEASE_SECONDS, max_deliveries=2)


def looked(queue: Queue, path: Path) -> tuple[list[bytes | None], list[bytes | None]]:
    """What ``peek`` shows, and what an observer sees."""
    with Store(path / "store", read_only=True) as store:
        view = QueueView(store.log("jobs"), store.log("__queue_jobs"))
        return [shown.value for shown in queue.peek(100)], [shown.value for shown in view.pending()]


def copied(queue: Queue, offset: int) -> int:
    """A copy that the journal does not know yet."""
    return queue._core.items.append(b"a", headers=(("kstore.moved-from", b"%d" % offset),))


def test_a_copy_that_does_not_count_is_not_shown(queue: Queue, tmp_path: Path) -> None:
    queue.put(b"a")
    copied(queue, 0)
    assert looked(queue, tmp_path) == ([b"a"], [b"a"])
    queue.get_nowait().ack()
    assert looked(queue, tmp_path) == ([], [])


def test_an_item_that_has_moved_is_shown_once(queue: Queue, tmp_path: Path) -> None:
    queue.put_many([b"a", b"b"])
    copy = copied(queue, 0)
    queue._core.leasing.write_moved([(0, copy)], 0)
    assert looked(queue, tmp_path) == ([b"b", b"a"], [b"b", b"a"])
    assert [shown.offset for shown in queue.peek(100)] == [1, copy]


def test_an_item_that_is_moved_during_a_look_is_shown(queue: Queue, tmp_path: Path) -> None:
    queue.put(b"a")
    with Store(tmp_path / "store", read_only=True) as store:
        items, journal = store.log("jobs"), store.log("__queue_jobs")
        moves = mock.PropertyMock(side_effect=lambda: queue._core.leasing.write_moved([(0, copied(queue, 0))], 0) and 1)
        with mock.patch("kstore.log.Log.high_watermark", moves):
            view = QueueView(items, journal)
        assert [shown.value for shown in view.pending()] == [b"a"]


def test_items_of_transactions_that_were_aborted_are_not_shown(queue: Queue, tmp_path: Path) -> None:
    queue.put(b"a")
    with Store(tmp_path / "other", background=False, durability="os") as store:
        other = store.queue("jobs")
        with store.producer(transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("jobs", b"aborted")
            producer.flush()
            producer.abort_transaction()
            producer.begin_transaction()
            producer.send("jobs", b"committed")
            producer.commit_transaction()
        with Store(tmp_path / "other", read_only=True) as reader:
            view = QueueView(reader.log("jobs"), reader.log("__queue_jobs"))
            assert [shown.value for shown in view.pending()] == [b"committed"]
        assert [shown.value for shown in other.peek(9)] == [b"committed"]


def test_what_was_delivered_too_often_is_not_shown(queue: Queue, clock: ManualClock) -> None:
    """Its last lease has expired; the next get makes it a dead letter."""
    queue.put_many([b"a", b"b"])
    queue.get_nowait().nack()
    assert queue.get_nowait().delivery_count == 2
    assert [shown.value for shown in queue.peek(9)] == [b"a", b"b"]
    clock.advance(LEASE_SECONDS * 1000)
    assert [shown.value for shown in queue.peek(9)] == [b"b"]
    assert queue.get_nowait().value == b"b"
    assert [shown.value for shown in queue.dead_letters.peek(9)] == [b"a"]
