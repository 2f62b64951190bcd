"""A queue that several processes share: how a process applies its own events, and those of others between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.errors import Empty, StorageError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.queue.queue import Queue, core_of
from kstore.shared.catch_up import CatchUp
from kstore.store import Store
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import WRITES, FailingFs, Fault, RecordingFs

JOURNAL = "__queue_jobs-0/00000000000000000000.log"
DURABILITIES: list[Durability] = ["os", "sync"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def opened(tmp_path: Path, clock: ManualClock) -> Iterator[Callable[..., Queue]]:
    """Opens the queue once more, as another process would."""
    stores: list[Store] = []

    def open_queue(durability: Durability = "os", fs: FileSystem = SYSTEM_FS, **settings: Any) -> Queue:
        stores.append(
            Store(tmp_path / "store", clock=clock, background=False, durability=durability, shared=True, fs=fs)
        )
        return stores[-1].queue("jobs", lease_seconds=30, **settings)

    yield open_queue
    for store in stores:
        store.close()


def known(queue: Queue) -> tuple[object, ...]:
    """All that the journal has told a process, after it has applied the whole journal."""
    core = core_of(queue)
    with core.lock:
        core.ledger.refresh()
        state = core.state
        done = {*state.done, *(offset for first, stop in state.done_runs for offset in range(first, stop))}
        return state.floor, done, state.retries, state.claims, state.moved, core.ledger._end


# --- the steps of a call ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("count", [1, 20])
def test_a_get_and_its_ack_do_not_read_the_journal_back(
    opened: Callable[..., Queue], durability: Durability, count: int
) -> None:
    fs = RecordingFs()
    queue = opened(durability, fs=fs)
    queue.put_many([b"x"] * (count * 12))
    queue.ack_many(queue.get_many(count, block=False))
    for _ in range(10):
        del fs.operations[:]
        jobs = queue.get_many(count, block=False)
        queue.ack_many(jobs)
        done = [operation.kind for operation in fs.operations if operation.path.endswith(JOURNAL)]
        assert "pread" not in done
        assert sum(kind in WRITES for kind in done) == 2


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("is_alone", [True, False], ids=["own rows come next", "others come first"])
def test_processes_agree_whether_they_wrote_an_event_or_read_it(
    opened: Callable[..., Queue], durability: Durability, is_alone: bool, clock: ManualClock
) -> None:
    one, other = opened(durability), opened(durability)
    one.put_many([b"%d" % number for number in range(60)])
    for _ in range(3):
        jobs = one.get_many(12, block=False)
        if not is_alone:
            other.ack_many(other.get_many(3, block=False))
        one.ack_many(jobs[:8])
        if not is_alone:
            other.get(block=False).nack()
        jobs[8].nack(5)
        jobs[9].extend(300)
        jobs[10].ack()
        clock.advance(31_000)
    third = opened(durability)
    assert known(one)[0] == known(other)[0]
    assert known(one) == known(other) == known(third)
    for queue in (one, other, third):
        queue.check()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_get_and_its_ack_ask_for_no_size_to_learn_what_others_did(
    opened: Callable[..., Queue], durability: Durability
) -> None:
    queue = opened(durability)
    queue.put_many([b"x"] * 3)
    queue.get(block=False).ack()
    asked: list[str] = []
    is_due = CatchUp.is_due

    def asks(catch_up: CatchUp) -> bool:
        asked.append(catch_up._files.context.directory.name)
        return is_due(catch_up)

    with mock.patch.object(CatchUp, "is_due", asks):
        queue.get(block=False).ack()
    assert "__queue_jobs-0" not in asked


# --- others' events come between --------------------------------------------------------------------------------------


def test_a_claim_after_that_of_another_process_gets_nothing(opened: Callable[..., Queue]) -> None:
    one, other = opened(), opened()
    one.put(b"a")
    append = core_of(one).journal.append_all
    got: list[bytes | None] = []

    def late(values: Any) -> int:
        got.append(other.get(block=False).value)
        return append(values)

    with mock.patch.object(core_of(one).journal, "append_all", late), pytest.raises(Empty):
        one.get(block=False)
    assert got == [b"a"]
    assert known(one) == known(other)
    assert core_of(one).state.leased_count == 0


def test_an_event_of_another_process_is_applied_before_the_own_one_after_it(opened: Callable[..., Queue]) -> None:
    one, other = opened(), opened()
    one.put_many([b"a", b"b"])
    mine, others = one.get(block=False), other.get(block=False)
    journal = core_of(one).journal
    append = journal.append

    def late(value: bytes) -> int:
        others.ack()
        return append(value)

    replay = mock.patch.object(journal, "replay", wraps=journal.replay)
    with mock.patch.object(journal, "append", late), replay as read:
        mine.nack()
        assert read.call_count == 1
    assert not others.is_open
    assert known(one) == known(other)
    assert one.qsize() == 1


# --- a call that fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_append_that_fails_leases_nothing_and_finishes_nothing(
    opened: Callable[..., Queue], durability: Durability, clock: ManualClock
) -> None:
    fs = FailingFs()
    one, other = opened(durability, fs=fs), opened(durability)
    one.put_many([b"a", b"b"])
    job = one.get(block=False)
    before = known(other)
    for call in (job.ack, lambda: one.get(block=False), lambda: job.nack(0)):
        fs.faults = [Fault(1, kinds=WRITES, suffix=JOURNAL, sticky=True)]
        with pytest.raises(StorageError):
            call()
        fs.faults = []
        assert known(one) == known(other) == before
    clock.advance(31_000)
    assert sorted(job.value or b"" for job in one.get_many(9, block=False)) == [b"a", b"b"]


def test_what_an_interrupt_leaves_between_an_append_and_its_state_is_read_back(opened: Callable[..., Queue]) -> None:
    one, other = opened(), opened()
    one.put_many([b"a", b"b"])
    job = one.get(block=False)
    for call in (job.ack, lambda: one.get(block=False)):
        with (
            mock.patch.object(core_of(one).state, "apply_record", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            call()
        assert known(one) == known(other)
        one.check()
    assert core_of(one).state.floor == 1
