"""``store.queue``: the contract of ``queue.Queue``, and what leases add to it."""

from __future__ import annotations

import queue as standard
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import ClosedError, ConfigError, Empty, Full, LeaseLostError, ReadOnlyError
from kstore.log import Log
from kstore.queue.journal import Journal
from kstore.queue.queue import Queue, core_of
from kstore.store import Store, parts_of
from kstore.types import AppendInfo
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.log_cases import flip

Opened = Callable[..., Queue]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def opened(tmp_path: Path, clock: ManualClock) -> Iterator[Opened]:
    """Opens the queue "jobs" with a clock that stands still; closes an open one first."""
    stores: list[Store] = []

    def made(name: str = "jobs", **settings: Any) -> Queue:
        while stores:
            stores.pop().close()
        stores.append(Store(tmp_path / "store", clock=clock, background=False, durability="os"))
        return stores[-1].queue(name, **settings)

    yield made
    while stores:
        stores.pop().close()


def values(queue: Queue, count: int = 100) -> list[bytes | None]:
    try:
        return [job.value for job in queue.get_many(count, block=False)]
    except Empty:
        return []


def test_items_come_in_the_order_in_which_they_were_put(opened: Opened) -> None:
    queue = opened()
    queue.put(b"a")
    queue.put_many([b"b", b"c"])
    assert [queue.get_nowait().value for _ in range(3)] == [b"a", b"b", b"c"]


def test_an_empty_queue_raises_what_queue_raises(opened: Opened) -> None:
    queue = opened()
    with pytest.raises(standard.Empty):
        queue.get(block=False)
    with pytest.raises(Empty, match="jobs"):
        queue.get_many(3, timeout=0)


def test_a_full_queue_raises_what_queue_raises(opened: Opened) -> None:
    queue = opened(maxsize=2)
    queue.put_many([b"a", b"b"])
    assert queue.full()
    with pytest.raises(standard.Full):
        queue.put(b"c", block=False)
    with pytest.raises(Full):
        queue.put(b"c", timeout=0)
    queue.get_nowait()
    queue.put_nowait(b"c")
    with pytest.raises(ConfigError, match="maxsize"):
        queue.put_many([b"."] * 3)


def test_items_are_delivered_as_they_were_put_though_the_lists_change_meanwhile(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = opened()
    items, keys = [b"a", b"b"], [b"k", b"l"]
    append_many = Log.append_many

    def append_and_change(log: Log, *given: Any, **named: Any) -> AppendInfo:
        done = append_many(log, *given, **named)
        items[0] = b"other"
        keys.clear()
        return done

    monkeypatch.setattr(Log, "append_many", append_and_change)
    queue.put_many(items, keys=keys)
    assert [(job.key, job.value) for job in queue.get_many(2)] == [(b"k", b"a"), (b"l", b"b")]


def test_an_acked_item_never_comes_back(opened: Opened) -> None:
    queue = opened()
    queue.put_many([b"a", b"b"])
    with queue.get_nowait() as job:
        assert job.value == b"a"
    assert values(opened()) == [b"b"]


def test_an_item_that_is_not_acked_comes_back_when_the_queue_is_opened_again(opened: Opened) -> None:
    queue = opened()
    queue.put(b"a", key=b"k", headers=(("trace", b"1"),))
    queue.get_nowait()
    job = opened().get_nowait()
    assert (job.value, job.key, job.headers, job.delivery_count) == (b"a", b"k", (("trace", b"1"),), 2)


def test_an_exception_gives_the_item_back(opened: Opened) -> None:
    queue = opened()
    queue.put(b"a")
    with pytest.raises(ZeroDivisionError), queue.get_nowait():
        1 / 0  # noqa: B018  # the exception is what is wanted
    assert queue.get_nowait().delivery_count == 2


def test_a_lease_that_is_over_is_given_to_the_next(opened: Opened, clock: ManualClock) -> None:
    queue = opened(lease_seconds=10)
    queue.put(b"a")
    first = queue.get_nowait()
    clock.advance(9_999)
    assert values(queue) == []
    clock.advance(1)
    second = queue.get_nowait()
    assert (second.value, second.delivery_count) == (b"a", 2)
    for action in (first.ack, first.nack, first.extend):
        with pytest.raises(LeaseLostError, match="delivered again"):
            action()
    second.ack()
    assert queue.join(timeout=0)


def test_an_ack_after_the_end_of_the_lease_counts_while_no_other_worker_has_the_item(
    opened: Opened, clock: ManualClock
) -> None:
    queue = opened(lease_seconds=10)
    queue.put(b"a")
    job = queue.get_nowait()
    clock.advance(60_000)
    assert queue.stats().leased == 0
    job.ack()
    assert values(queue) == []


def test_a_lease_is_extended(opened: Opened, clock: ManualClock) -> None:
    queue = opened(lease_seconds=10)
    queue.put_many([b"a", b"b"])
    first, second = queue.get_many(2)
    clock.advance(9_000)
    first.extend()
    second.extend(60)
    clock.advance(9_000)
    assert values(queue) == []
    clock.advance(1_000)
    assert values(queue) == [b"a"]
    second.ack()


def test_a_nack_may_delay_the_item(opened: Opened, clock: ManualClock) -> None:
    queue = opened()
    queue.put(b"a")
    queue.get_nowait().nack(delay=5)
    queue.put(b"b")
    assert values(queue) == [b"b"]
    queue = opened()
    assert values(queue) == [b"b"]
    clock.advance(5_000)
    job = queue.get_nowait()
    assert (job.value, job.delivery_count) == (b"a", 2)


def test_a_delayed_item_is_not_delivered_early(opened: Opened, clock: ManualClock) -> None:
    queue = opened()
    queue.put(b"late", delay=60)
    queue.put(b"soon")
    assert values(queue) == [b"soon"]
    assert queue.stats().delayed == 1
    queue = opened()
    clock.advance(59_999)
    assert values(queue) == [b"soon"]
    clock.advance(1)
    job = queue.get_nowait()
    assert (job.value, job.headers, job.delivery_count) == (b"late", (), 1)


def test_an_item_that_is_delivered_too_often_is_a_dead_letter(opened: Opened, clock: ManualClock) -> None:
    queue = opened(max_deliveries=3, lease_seconds=10)
    queue.put_many([b"bad", b"good"])
    for _ in range(2):
        queue.get_nowait().nack()
    assert queue.get_nowait().value == b"bad"
    clock.advance(10_000)
    assert values(queue) == [b"good"]
    assert [(shown.value, shown.headers) for shown in queue.dead_letters.peek(9)] == [(b"bad", ())]
    assert queue.stats().dead_letters == 1
    queue = opened(max_deliveries=3)
    assert queue.retry_dead() == 1
    assert queue.dead_letters.qsize() == 0
    assert sorted(filter(None, values(queue))) == [b"bad", b"good"]


@pytest.mark.parametrize("noted", [False, True])
def test_an_item_that_kills_its_process_is_counted_where_that_was_asked_for(tmp_path: Path, noted: bool) -> None:
    for number in range(3):
        with kstore.open(tmp_path / str(number), durability="os") as store:
            queue = store.queue("jobs", max_deliveries=2, note_deliveries=noted)
            if number == 0:
                queue.put_many([b"bad", b"good"])
            job = queue.get()
            assert job.value == (b"good" if noted and number == 2 else b"bad")
            assert job.delivery_count == (number + 1 if noted and number < 2 else 1)
            shutil.copytree(tmp_path / str(number), tmp_path / str(number + 1))  # as a kill leaves it
            queue.check()


def test_no_dead_letters_where_there_is_no_limit(opened: Opened) -> None:
    queue = opened(max_deliveries=0)
    queue.put(b"a")
    for count in range(50):
        job = queue.get_nowait()
        assert job.delivery_count == count + 1
        job.nack()


def test_task_done_and_join_are_those_of_queue(opened: Opened) -> None:
    queue = opened()
    queue.put_many([b"a", b"b"])
    assert not queue.join(timeout=0)
    queue.get_nowait()
    job = queue.get_nowait()
    queue.task_done()
    assert [shown.value for shown in queue.peek(9)] == [b"b"]
    queue.task_done(job)
    with pytest.raises(ValueError, match="task_done"):
        queue.task_done()
    assert queue.join(timeout=0)


def test_qsize_leaves_out_what_is_leased(opened: Opened) -> None:
    queue = opened()
    queue.put_many([b"a", b"b", b"c"])
    queue.get_nowait()
    assert (queue.qsize(), len(queue), queue.empty()) == (2, 2, False)
    queue.get_many(2)
    assert (queue.qsize(), queue.empty()) == (0, True)


def test_an_ack_twice_is_refused(opened: Opened) -> None:
    queue = opened()
    queue.put(b"a")
    job = queue.get_nowait()
    job.ack()
    with pytest.raises(LeaseLostError, match="acked or nacked before"):
        job.ack()


def test_acks_of_many_are_all_or_none(opened: Opened) -> None:
    queue = opened()
    queue.put_many([b"a", b"b"])
    first, second = queue.get_many(2)
    second.nack()
    with pytest.raises(LeaseLostError):
        queue.ack_many([first, second])
    first.ack()
    assert values(queue) == [b"b"]


def test_an_ack_that_fails_leaves_the_lease(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = opened()
    queue.put(b"a")
    job = queue.get_nowait()

    def fails(*_: object) -> int:
        raise kstore.DiskFullError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", fails)
        with pytest.raises(kstore.DiskFullError):
            job.ack()
        assert values(queue) == []
    job.ack()
    assert queue.join(timeout=0)
    queue.check()


def test_space_comes_back(opened: Opened) -> None:
    queue = opened(segment_bytes=1 << 16)
    for _ in range(40):
        queue.put_many([b"x" * 1000] * 60)
        queue.ack_many(queue.get_many(60))
    assert queue.stats().size < 3 * (1 << 16)


def test_a_few_old_items_do_not_hold_space_back(opened: Opened, clock: ManualClock) -> None:
    queue = opened(segment_bytes=1 << 16)
    queue.put(b"first", delay=3600, headers=[(b"\xff", b"h")])
    for _ in range(40):
        queue.put_many([b"x" * 1000] * 60)
        queue.ack_many(queue.get_many(60))
    assert queue.stats().size < 4 * (1 << 16)
    assert queue.stats().pending == 1
    clock.advance(3_600_000)
    job = queue.get_nowait()
    assert (job.value, job.headers, job.delivery_count) == (b"first", (("\ufffd", b"h"),), 1)
    assert job.offset > 0, "it was copied"
    assert job.record.header_bytes[0] == (b"\xff", b"h")
    job.ack()
    queue.check()
    assert values(opened()) == []


def test_items_of_a_producer_are_delivered_when_its_transaction_commits(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os") as store:
        queue = store.queue("jobs")
        with store.producer(transactional_id="p") as producer:
            producer.init_transactions()
            for value, commit in ((b"no", False), (b"yes", True)):
                producer.begin_transaction()
                producer.send("jobs", value)
                producer.flush()
                with pytest.raises(Empty):
                    queue.get_nowait()
                producer.commit_transaction() if commit else producer.abort_transaction()
        with queue.get(timeout=300) as job:
            assert job.value == b"yes"
        assert queue.join(timeout=300)


def test_a_recreated_topic_that_was_a_queue_has_all_its_items(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os") as store:
        queue = store.queue("jobs")
        queue.put_many([b"a"] * 10)
        queue.ack_many(queue.get_many(10))
        store.delete_topic("jobs")
        with pytest.raises(ClosedError):
            queue.put(b"late")
        store.create_topic("jobs")
        store.log("jobs").append_many([b"b"] * 20)
        assert len(store.queue("jobs", adopt=True).get_many(100)) == 20
        assert store.topics() == ["jobs"]


def test_a_topic_that_was_not_made_as_a_queue_warns_once_unless_it_is_adopted(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os", retention_ms=-1, background=False) as store:
        for name in ("empty", "orders", "bills"):
            store.create_topic(name)
        store.queue("empty").put(b"x")
        for name in ("orders", "bills"):
            store.log(name).append(b"x")
        with pytest.warns(FutureWarning, match=r"use store.queue\('orders', adopt=True\) if that is meant") as caught:
            store.queue("orders")
        assert caught[0].filename == __file__
        store.queue("bills", adopt=True)
    with kstore.open(tmp_path / "store", durability="os", background=False) as store:
        for name in ("empty", "orders", "bills"):
            assert store.queue(name).get_nowait().value == b"x"


def test_a_warning_that_is_an_error_leaves_the_topic_as_it_was(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os", retention_ms=-1, background=False) as store:
        store.create_topic("orders")
        store.log("orders").append(b"x")
        for _ in range(2):
            with pytest.raises(FutureWarning):
                store.queue("orders")
        assert not (tmp_path / "store" / "__queue_orders-0").exists()


def test_a_queue_that_is_opened_while_its_topic_is_deleted_is_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kstore.open(tmp_path / "store", durability="os") as store:
        queue = store.queue("jobs")
        queue.put_many([b"a"] * 10)
        queue.ack_many(queue.get_many(10))
        opened: list[Queue] = []
        thread = threading.Thread(target=lambda: opened.append(store.queue("jobs")))
        tell = parts_of(store).topics.tell

        def told(topic: str) -> None:
            tell(topic)
            if topic == "__queue_jobs" and not thread.ident:
                # The journal is gone, the items not yet.
                thread.start()
                thread.join(0.2)

        monkeypatch.setattr(parts_of(store).topics, "tell", told)
        store.delete_topic("jobs")
        thread.join()
        opened[0].put_many([b"b"] * 20)
        assert len(opened[0].get_many(100)) == 20


def test_a_queue_is_not_its_own_dead_letters(tmp_path: Path) -> None:
    """Putting them again would never end."""
    with kstore.open(tmp_path / "store", durability="os") as store:
        with pytest.raises(ConfigError, match="the queue itself"):
            store.queue("jobs", dead_letters="jobs")
        assert store.topics() == []


def test_a_store_gives_one_object_for_all(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os") as store:
        assert store.queue("jobs", lease_seconds=5) is store.queue("jobs")
        with pytest.raises(ConfigError, match="other settings"):
            store.queue("jobs", lease_seconds=6)
        with pytest.raises(ConfigError, match="lease_seconds"):
            store.queue("others", lease_second=6)  # type: ignore[call-arg]  # misspelt on purpose
        with pytest.raises(ConfigError, match="internal"):
            store.queue("__queue_jobs")
        store.create_topic("wide", 3)
        with pytest.raises(ConfigError, match="3 partitions"):
            store.queue("wide")
    with kstore.open(tmp_path / "store", read_only=True) as store, pytest.raises(ReadOnlyError):
        store.queue("jobs")


def test_what_is_appended_after_a_power_cut_is_not_taken_for_items_that_were_done(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os", background=False) as store:
        queue = store.queue("jobs")
        for number in range(5):
            queue.put(b"old %d" % number)
        for job in queue.get_many(5):
            job.ack()
        sizes = [batch.size for batch in store.log("jobs").fetch(0).batches()]
        shutil.copytree(tmp_path / "store", tmp_path / "cut")
    log = tmp_path / "cut" / "jobs-0" / "00000000000000000000.log"
    with log.open("r+b") as file:
        file.truncate(sum(sizes[:2]))
    with kstore.open(tmp_path / "cut", durability="os", background=False) as store:
        assert store.log("jobs").append_many([b"new 2", b"new 3"]).first_offset == 2
        assert values(store.queue("jobs")) == [b"new 2", b"new 3"]


def damaged_item(opened: Opened, tmp_path: Path, **settings: Any) -> Queue:
    """Items "0" to "9" in batches of one; "4" cannot be read."""
    queue = opened(**settings)
    for number in range(10):
        queue.put(b"%d" % number)
    opened().close()
    (path,) = (tmp_path / "store" / "jobs-0").glob("*.log")
    size = path.stat().st_size // 10
    flip(path, 4 * size + 65)
    return opened(**settings)


def test_a_queue_can_be_told_to_go_on_without_the_items_that_cannot_be_read(opened: Opened, tmp_path: Path) -> None:
    queue = damaged_item(opened, tmp_path)
    assert queue.accept_loss() == 0  # it has not reached it yet
    for job in queue.get_many(100, block=False):
        job.ack()
    assert (queue.stats().pending, queue.stats().damaged) == (1, 1)
    assert queue.accept_loss() == 1
    assert (queue.stats().pending, queue.stats().damaged) == (0, 0)
    assert queue.join(timeout=0)
    queue.check()
    assert queue.accept_loss() == 0
    queue = opened()
    assert (queue.stats().pending, queue.stats().damaged, queue.stats().first_offset) == (0, 0, 10)
    queue.put(b"more")
    assert values(queue) == [b"more"]


def test_a_loss_that_was_accepted_in_the_log_is_no_item_at_the_next_open(opened: Opened, tmp_path: Path) -> None:
    queue = damaged_item(opened, tmp_path)
    core_of(queue).items.accept_loss(4, 4)
    assert values(queue) == [b"%d" % number for number in range(10) if number != 4]
    assert queue.stats().damaged == 0
    queue.check()


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_timeout_that_no_clock_has_is_refused_though_an_item_waits(timeout: float, opened: Opened) -> None:
    queue = opened()
    queue.put(b"a")
    for get in (queue.get, lambda timeout: queue.get_many(1, timeout=timeout)):
        with pytest.raises(ValueError, match=f"timeout is {timeout}, expected a number that is not negative"):
            get(timeout=timeout)
    assert queue.get(False, -1).value == b"a"


def test_headers_are_a_mapping_or_pairs_and_many_items_any_iterable(opened: Opened) -> None:
    queue = opened()
    queue.put(b"a", headers={"h": b"1", "n": None})
    queue.put(b"b", headers=(pair for pair in [("h", b"2")]), delay=0.001)
    queue.put_many((b"%d" % number for number in range(2)), keys=iter([b"k", None]), headers=[{"h": b"3"}, None])
    assert [(shown.value, shown.key, shown.headers) for shown in queue.peek(4)] == [
        (b"a", None, (("h", b"1"), ("n", None))),
        (b"b", None, (("h", b"2"),)),
        (b"0", b"k", (("h", b"3"),)),
        (b"1", None, ()),
    ]
    with pytest.raises(ValueError, match="2 keys for 1 values"):
        queue.put_many([b"a"], keys=[b"k", b"l"])
    with pytest.raises(TypeError, match="an iterable with an item for each record, not bytes"):
        queue.put_many(b"abc")  # type: ignore[arg-type]
    for bad, reason in (
        ([b"h"], "a header must be a"),
        ([(1, b"1")], "key must be str or bytes"),
        ({"h": 1}, "a header's value"),
    ):
        for delay in (0, 60):
            with pytest.raises(TypeError, match=reason):
                queue.put(b"a", headers=bad, delay=delay)  # type: ignore[arg-type]
