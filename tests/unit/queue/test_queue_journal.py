"""The journal of a queue: snapshots beside working processes, damage, and power cuts that it survives."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest

from kstore.errors import Empty, LeaseLostError
from kstore.queue.events import DONE, MOVED, SNAPSHOT, Event
from kstore.queue.journal import last_snapshot
from kstore.queue.ledger import Ledger
from kstore.queue.queue import Queue, core_of
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def opened(path: Path, clock: ManualClock, *, shared: bool = False) -> Store:
    return Store(path / "store", clock=clock, background=False, durability="os", shared=shared)


def values(queue: Queue) -> list[bytes | None]:
    try:
        return [job.value for job in queue.get_many(100, block=False)]
    except Empty:
        return []


# --- snapshots beside working processes -------------------------------------------------------------------------------


def test_a_claim_that_lost_after_a_snapshot_has_lost_for_later_processes_too(
    tmp_path: Path, clock: ManualClock
) -> None:
    stores = [opened(tmp_path, clock, shared=True) for _ in range(2)]
    one, other = [store.queue("jobs", lease_seconds=30) for store in stores]
    one.put(b"a")
    job = one.get_nowait()
    with one._core.lock:
        snapshot, first_needed = one._core.ledger.snapshot()
    with other._core.lock:  # it looked before, and comes too late
        assert other._core.leasing.own_all([0], 60.0) is None
    one._core.journal.append_many(snapshot)
    one._core.journal.log.delete_records(first_needed)
    stores.append(opened(tmp_path, clock, shared=True))
    later = stores[-1].queue("jobs", lease_seconds=30)
    assert later._core.state.claims == one._core.state.claims
    clock.advance(29_000)
    job.extend(300)
    clock.advance(32_000)
    assert values(later) == []
    for store in stores:
        store.close()


def test_a_lease_that_was_returned_after_a_snapshot_stays_returned(tmp_path: Path, clock: ManualClock) -> None:
    stores = [opened(tmp_path, clock, shared=True) for _ in range(2)]
    one, other = [store.queue("jobs", lease_seconds=600) for store in stores]
    one.put(b"a")
    job = one.get_nowait()
    with one._core.lock:
        snapshot, first_needed = one._core.ledger.snapshot()
    job.nack()
    one._core.journal.append_many(snapshot)
    assert values(other) == [b"a"]
    one._core.journal.log.delete_records(first_needed)
    stores.append(opened(tmp_path, clock, shared=True))
    assert values(stores[-1].queue("jobs")) == values(one) == []
    for store in stores:
        store.close()


def test_a_late_move_after_a_snapshot_revives_nothing(tmp_path: Path, clock: ManualClock) -> None:
    """The item was done before the snapshot, which is written after the move."""
    stores = [opened(tmp_path, clock, shared=True) for _ in range(2)]
    one, other = [store.queue("jobs", lease_seconds=30) for store in stores]
    one.put(b"a")
    with one._core.lock:
        one._core.fill()
        owner = one._core.leasing.own_all([0], 10.0)
    assert owner is not None
    clock.advance(20_000)  # it pauses until another worker has the item
    job = other.get_nowait()
    copy = one._core.items.append(b"a", headers=(("kstore.moved-from", b"0"),))
    job.ack()
    with other._core.lock:
        other._core.ledger.refresh()
        snapshot, first_needed = other._core.ledger.snapshot()
    one._core.leasing.write_moved([(0, copy)], owner)
    other._core.journal.append_many(snapshot)
    other._core.journal.log.delete_records(first_needed)
    stores.append(opened(tmp_path, clock, shared=True))
    later = stores[-1].queue("jobs")
    assert [values(queue) for queue in (later, one, other)] == [[], [], []]
    assert later.stats().pending == 0
    for store in stores:
        store.close()


def test_an_ack_after_a_move_is_one_of_the_copy(tmp_path: Path, clock: ManualClock) -> None:
    """The acking worker pauses between its check of the lease and its event, until the item has moved."""
    stores = [opened(tmp_path, clock, shared=True) for _ in range(2)]
    worker, mover = [store.queue("jobs", lease_seconds=30) for store in stores]
    worker.put(b"a")
    job = worker.get_nowait()
    append = worker._core.journal.append_all

    def late(records: Sequence[bytes]) -> int:
        clock.advance(31_000)
        with mover._core.lock:
            mover._core.ledger.refresh()
            owner = mover._core.leasing.own_all([0], 60.0)
        assert owner is not None
        copy = mover._core.items.append(b"a", headers=(("kstore.moved-from", b"0"),))
        mover._core.leasing.write_moved([(0, copy)], owner)
        return append(records)

    with mock.patch.object(worker._core.journal, "append_all", late):
        job.ack()
    clock.advance(100_000)
    assert values(mover) == values(worker) == []
    for store in stores:
        store.close()


def test_an_ack_after_the_lease_fails_while_another_process_moves_the_item(tmp_path: Path, clock: ManualClock) -> None:
    """The move leaves the number of deliveries as it is; the acked item would be there twice."""
    stores = [opened(tmp_path, clock, shared=True) for _ in range(2)]
    worker, mover = [store.queue("jobs", lease_seconds=30) for store in stores]
    worker.put(b"a")
    job = worker.get_nowait()
    clock.advance(31_000)
    with mover._core.lock:
        mover._core.ledger.refresh()
        owner = mover._core.leasing.own_all([0], 60.0)
    assert owner is not None
    with worker._core.lock:  # it has looked since, and its own lease is over
        worker._core.ledger.refresh()
        worker._core.state.expire(clock.monotonic())
    with pytest.raises(LeaseLostError):
        job.ack()
    for store in stores:
        store.close()


def test_a_process_that_falls_behind_the_journal_knows_where_items_moved(tmp_path: Path, clock: ManualClock) -> None:
    """It has read a copy that did not count yet; only a snapshot has the event that makes it count."""
    stores = [opened(tmp_path, clock, shared=True) for _ in range(2)]
    mover, reader = [store.queue("jobs", lease_seconds=30) for store in stores]
    mover.put(b"first", delay=3600)
    mover.put(b"a")
    with mover._core.lock:
        mover._core.fill()
        owner = mover._core.leasing.own_all([1], 60.0)
    assert owner is not None
    copy = mover._core.items.append(b"a", headers=(("kstore.moved-from", b"1"),))
    assert values(reader) == []
    assert reader._core.state.unconfirmed == {copy: 1}
    mover._core.leasing.write_moved([(1, copy)], owner)
    with mover._core.lock:
        snapshot, first_needed = mover._core.ledger.snapshot()
    mover._core.journal.append_many(snapshot)
    mover._core.journal.log.delete_records(first_needed)
    assert values(reader) == [b"a"]
    for store in stores:
        store.close()


def test_an_open_while_items_are_moved_finds_their_copies(tmp_path: Path, clock: ManualClock) -> None:
    """The move is recorded, and the original deleted, between its reads of the journal and the log."""
    stores = [opened(tmp_path, clock, shared=True) for _ in range(2)]
    mover = stores[0].queue("jobs", lease_seconds=30, segment_bytes=1 << 14)
    mover.put(b"a")
    with mover._core.lock:
        mover._core.fill()
        owner = mover._core.leasing.own_all([0], 60.0)
    assert owner is not None
    copy = mover._core.items.append(b"a", headers=(("kstore.moved-from", b"0"),))

    read_on = Ledger.read_on

    def moves_then(ledger: Ledger, start: int | None, *stop: int | None) -> None:
        read_on(ledger, start, *stop)
        if start is None:
            mover._core.leasing.write_moved([(0, copy)], owner)
            mover._core.items.delete_records(1)

    with mock.patch.object(Ledger, "read_on", moves_then):
        reader = stores[1].queue("jobs")
    assert values(reader) == [b"a"]
    for store in stores:
        store.close()


def test_the_latest_snapshot_that_is_whole_is_taken() -> None:
    def part(as_of: int, name: int, number: int, count: int) -> list[Event]:
        return [(SNAPSHOT, (as_of, name, number, count, 0, 0)), (DONE, (as_of, 1))]

    records: list[list[Event]] = [
        part(5, 1, 0, 2),
        part(6, 2, 0, 1),
        part(5, 1, 1, 2),
        [],
        [(DONE, (1, 1))],
        part(9, 3, 0, 2),
    ]
    found = last_snapshot(records, 0)
    assert found is not None
    assert (found[0], len(found[1])) == (6, 2)
    found = last_snapshot([*records[:1], *records[2:]], 0)
    assert found is not None
    assert (found[0], [row for kind, row in found[1] if kind == DONE]) == (5, [(5, 1), (5, 1)])
    assert last_snapshot(records, 7) is None


# --- damage -----------------------------------------------------------------------------------------------------------


def with_a_moved_item(path: Path, clock: ManualClock) -> None:
    """A store whose queue holds one item, as a moved copy."""
    with opened(path, clock) as store:
        queue = store.queue("jobs", segment_bytes=1 << 14)
        queue.put(b"old", delay=3600)
        for _ in range(60):
            queue.put(b"x" * 1000)
            queue.get_nowait().ack()
        assert (queue.stats().pending, core_of(queue).items.start_offset > 0) == (1, True)


def damage_moves(path: Path) -> int:
    """Flips a byte of each journal record that moves an item."""
    count = 0
    for file in (path / "store" / "__queue_jobs-0").glob("*.log"):
        data = bytearray(file.read_bytes())
        at = 0
        while at + 61 < len(data):
            size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
            if MOVED + b"\0\0\0\1" in data[at : at + size]:
                data[at + size - 3] ^= 0xFF
                count += 1
            at += size
        file.write_bytes(data)
    return count


def test_an_item_whose_move_is_damaged_is_delivered(tmp_path: Path, clock: ManualClock) -> None:
    with_a_moved_item(tmp_path, clock)
    assert damage_moves(tmp_path) > 0
    for _ in range(2):
        with opened(tmp_path, clock) as store:
            queue = store.queue("jobs")
            assert [shown.value for shown in queue.peek(100)] == [b"old"]
            queue._space.rewrite()
            queue.check()
    clock.advance(2 * HOUR_MS)
    with opened(tmp_path, clock) as store:
        job = store.queue("jobs").get_nowait()
        assert job.value == b"old"
        job.ack()
    with opened(tmp_path, clock) as store:
        assert values(store.queue("jobs")) == []


@pytest.mark.parametrize("is_emptied", [False, True], ids=["gone", "without its start"])
def test_a_moved_item_outlives_the_journal(tmp_path: Path, clock: ManualClock, is_emptied: bool) -> None:
    with_a_moved_item(tmp_path, clock)
    with opened(tmp_path, clock) as store:
        if is_emptied:
            journal = store.log("__queue_jobs")
            journal.delete_records(journal.end_offset)
        else:
            store.delete_topic("__queue_jobs")
    clock.advance(2 * HOUR_MS)
    with opened(tmp_path, clock) as store:
        assert b"old" in values(store.queue("jobs", adopt=not is_emptied))


def test_damage_is_reported_once(tmp_path: Path, clock: ManualClock) -> None:
    """Copies from later crashes do not count as affected by the damage."""
    with_a_moved_item(tmp_path / "0", clock)
    damage_moves(tmp_path / "0")
    ends = []
    for number in range(3):
        path = tmp_path / str(number)
        with opened(path, clock) as store:
            queue = store.queue("jobs")
            ends.append(queue._core.state.gap_end)
            queue.put(b"more")
            shutil.copytree(path, tmp_path / str(number + 1))  # it is killed
    assert len(set(ends)) == 1


def test_an_end_that_cannot_be_read_any_more_still_holds(tmp_path: Path, clock: ManualClock) -> None:
    """Items at the offsets of items that a power cut took are not done."""
    with opened(tmp_path, clock) as store:
        queue = store.queue("jobs")
        queue.put_many([b"a", b"b", b"c"])
        queue.ack_many(queue.get_many(3))
    with opened(tmp_path, clock) as store:
        store.log("jobs").truncate_to(0)
    with opened(tmp_path, clock) as store:
        queue = store.queue("jobs")
        queue.put(b"new")
    for file in (tmp_path / "store" / "__queue_jobs-0").glob("*.log"):
        data = bytearray(file.read_bytes())
        at = data.index(b"E\0\0\0\1" + bytes(8))
        data[at + 2] ^= 0xFF
        file.write_bytes(data)
    with opened(tmp_path, clock) as store:
        assert values(store.queue("jobs")) == [b"new"]
