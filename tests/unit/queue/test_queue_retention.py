"""The items' log loses its beginning while a call of the queue writes without the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import StorageError
from kstore.queue.job import Job
from kstore.queue.queue import Queue, core_of
from kstore.queue.state import QueueState
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock

CUT = 5


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue that writes its acks without the lock."""
    with Store(tmp_path / "store", clock=ManualClock(), background=False, durability="sync") as store:
        yield store.queue("jobs")


def cut_in(queue: Queue, monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object], *, fails: bool) -> Job:
    """Runs ``act``, deletes the items below ``CUT`` in its call of the journal's ``name``; returns a job got then."""
    core = core_of(queue)
    journal: Any = core.journal
    real = getattr(journal, name)
    others: list[Job] = []

    def append(*arguments: Any) -> Any:
        end = real(*arguments)
        core.items.delete_records(CUT)
        others.extend(queue.get_many(1))
        if fails:
            raise StorageError("the append failed")
        return end

    with monkeypatch.context() as patch:
        patch.setattr(journal, name, append)
        if fails:
            with pytest.raises(StorageError):
                act()
        else:
            act()
    (other,) = others
    return other


def leased(queue: Queue, count: int = 3) -> list[Job]:
    """Leases the first of ten items; the others were not read yet."""
    queue.put_many([b"leased"] * count)
    jobs = queue.get_many(count)
    queue.put_many([b"waits"] * (10 - count), headers=[{"h": b""}] * (10 - count))
    return jobs


def assert_counted(queue: Queue, first: Job) -> None:
    queue.check()
    assert queue.stats().pending == 10 - CUT
    queue.ack_many(queue.get_many(100, block=False))
    assert not queue.join(0)
    assert first.offset == CUT
    queue.ack(first)
    assert queue.join(0)
    queue.check()


@pytest.mark.parametrize("fails", [False, True], ids=["written", "failed"])
def test_an_ack_of_items_that_are_gone_counts_none_of_the_others(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    jobs = leased(queue)
    first = cut_in(queue, monkeypatch, "append_all", lambda: queue.ack_many(jobs), fails=fails)
    assert_counted(queue, first)


def test_an_item_that_is_gone_does_not_come_back(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = leased(queue, 1)
    assert_counted(queue, cut_in(queue, monkeypatch, "append", job.nack, fails=False))


def test_what_is_below_the_floor_is_done_once() -> None:
    state: QueueState[Any, Any] = QueueState()
    state.skip_to(10)
    state.finish_run(7, 1)
    state.finish_run(8, 2)
    state.finish_fast([9, 3])
    assert (state.floor, state.done) == (10, set())
    state.finish_run(9, 3)
    state.finish_fast([14, 8])
    assert (state.floor, state.done) == (12, {14})
