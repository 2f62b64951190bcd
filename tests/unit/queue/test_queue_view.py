"""What ``peek`` and observers see of a queue: its items, and no leftovers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from kstore.queue.queue import Queue
from kstore.queue.view import QueueView
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.meddling_fs import MeddlingFs
from tests.support.harness.evidence import Hung
from tests.support.harness.selection import tries

LEASE_SECONDS = 30
# A change comes before every operation, or every twelfth.
STRIDE = tries(1, quick=12)
OPERATIONS_MAX = 1000
# Two items to a segment.
COUNT = 14
SEGMENT_BYTES = 16 << 10
ITEM_BYTES = 6000


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


# --- another process uses the queue meanwhile -------------------------------------------------------------------------


def finish(queue: Queue) -> None:
    """Finishes five items; the segments before the next one go."""
    for _ in range(5):
        queue.get_nowait().ack()
    queue._space.tidy()


def finish_all(queue: Queue) -> None:
    while queue.stats().pending:
        queue.get_nowait().ack()
    queue._space.tidy()


def move(queue: Queue) -> None:
    """Finishes all near the oldest item, which is copied to the end, and whose segment goes."""
    first, *others = [queue.get_nowait() for _ in range(8)]
    for job in others:
        job.ack()
    first.nack()
    queue._space.tidy()


def rewrite(queue: Queue) -> None:
    """A snapshot replaces the journal's earlier segments."""
    queue._core.journal.log.roll()
    queue._space.rewrite()


def move_and_rewrite(queue: Queue) -> None:
    move(queue)
    rewrite(queue)


def numbers(values: Iterator[bytes | None]) -> list[int]:
    return [int((value or b"").split(b" ")[0]) for value in values]


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize(
    "change", [finish, finish_all, move, rewrite, move_and_rewrite], ids=lambda each: each.__name__
)
@pytest.mark.sampled(4)
def test_an_observer_sees_each_item_once_whatever_is_done_between_two_of_its_reads(
    change: Callable[[Queue], None], shared: bool, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    for number in itertools.count(0, STRIDE):
        fs = MeddlingFs()
        path = tmp_path / str(number)
        with (
            Store(path, background=False, durability="os", shared=shared, file_delete_delay_ms=0) as store,
            Store(path, read_only=True, fs=fs) as reader,
        ):
            queue = store.queue("jobs", segment_bytes=SEGMENT_BYTES, max_deliveries=9)
            for value in range(COUNT):
                queue.put((b"%d " % value).ljust(ITEM_BYTES))
            for _ in range(2):
                queue.get_nowait().ack()
            before = set(numbers(item.value for item in queue.peek(COUNT)))
            fs.before(number, partial(change, queue))
            seen = numbers(item.value for item in QueueView(reader.log("jobs"), reader.log("__queue_jobs")).pending())
            if not fs.is_past():
                tried("states", number)
                return
            after = set(numbers(item.value for item in queue.peek(COUNT)))
            assert len(seen) == len(set(seen)), f"an item twice, before operation {number}"
            assert after <= set(seen) <= before, f"before operation {number}"
        assert number < OPERATIONS_MAX, Hung(f"more than {OPERATIONS_MAX} operations")
