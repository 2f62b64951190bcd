"""A queue goes on after Ctrl-C at any place of its calls where CPython serves a signal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import kstore.queue
from kstore.errors import Empty, KstoreError
from kstore.files._locks import Attempt, OwnedLock
from kstore.queue.queue import Queue, core_of, give_back
from kstore.store import Store
from kstore.types import Durability
from tests.crash.interrupted_life import InterruptWithin
from tests.crash.queue_memory_life import CALLS, ITEMS, Life
from tests.support.fakes.fake_clock import ManualClock
from tests.unit.engine.test_interrupted_counts import Tried

QUEUE = str(Path(kstore.queue.__file__).parent)
# Two lives in one process have fewer places than this.
PLACES_MAX = 2000


def get_fresh(life: Life) -> Callable[[], object]:
    """Items that were never delivered."""
    life.queue.ack_many(list(life.delivered().values()))
    life.alive.clear()
    life.fill()
    return lambda: life.leased(ITEMS // 2)


def give_back_some(life: Life) -> Callable[[], object]:
    jobs = life.leased(ITEMS // 2)
    return lambda: give_back(life.queue, jobs)


def ack_above(life: Life) -> Callable[[], object]:
    """Acks the first item after later ones are done."""
    ack = CALLS["ack one"](life)
    jobs = life.leased(4)
    life.alive -= {job.offset for job in jobs}
    life.queue.ack_many(jobs)
    return ack


ACTS = {
    **CALLS,
    "get fresh": get_fresh,
    "give back": give_back_some,
    "ack above": ack_above,
}


@pytest.fixture(params=["os", "sync", "shared"])
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Life]:
    durability: Durability = "sync" if request.param == "sync" else "os"
    made = Life(tmp_path / "store", durability, shared=request.param == "shared")
    with made.store:
        yield made


# An interrupt while a generator is dropped: Python cannot raise it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.sampled(4)
def test_an_interrupted_call_loses_no_item_and_leases_none_twice(life: Life, act: str, tried: Tried) -> None:
    core, space = core_of(life.queue), life.queue._space
    for number in count(1):
        assert number < PLACES_MAX
        life.fill()
        call = ACTS[act](life)
        with InterruptWithin(number, QUEUE) as interrupted:
            try:
                call()
            except (KeyboardInterrupt, KstoreError):
                pass
        try:
            assert not core.lock.locked()
            assert not space._at_work.locked()
            assert not core.ledger._writing
            life.queue.check()
            life.look()
            assert not core.state.busy
        except BaseException as error:
            error.add_note(f"interrupted at {interrupted.place} in {interrupted.functions}")
            raise
        if not interrupted.struck:
            break
    tried("faults", number - 1)


def in_new_queues(
    path: Path, prepare: Callable[[Queue], Callable[[], object]], check: Callable[[Queue], None], **settings: Any
) -> int:
    """Interrupts a call at its first place, its second, and so on, each time in a new queue; returns how many."""
    with Store(path, clock=ManualClock(), background=False, durability="os") as store:
        for number in count(1):
            assert number < PLACES_MAX
            queue = store.queue(f"jobs{number}", **settings)
            core = core_of(queue)
            call = prepare(queue)
            with InterruptWithin(number, QUEUE) as interrupted:
                try:
                    call()
                except KeyboardInterrupt:
                    pass
            try:
                assert not core.ledger._writing
                check(queue)
                assert not core.state.busy
                queue.check()
            except BaseException as error:
                error.add_note(f"interrupted at {interrupted.place} in {interrupted.functions[:4]}")
                raise
            if not interrupted.struck:
                return number - 1
    raise AssertionError("unreachable")


@pytest.mark.long
def test_an_interrupted_move_leaves_the_items_to_the_next_get(tmp_path: Path, tried: Tried) -> None:
    def prepare(queue: Queue) -> Callable[[], object]:
        queue.put_many([b"%d" % number + b"." * 1500 for number in range(25)])
        jobs = queue.get_many(25)
        queue.ack_many(jobs[2:])
        give_back(queue, jobs[:2])
        return queue._space.tidy

    def check(queue: Queue) -> None:
        queue._space.tidy()
        jobs = queue.get_many(25, block=False)
        assert sorted((job.value or b"")[:1] for job in jobs) == [b"0", b"1"]
        queue.ack_many(jobs)
        assert queue.join(0)
        assert core_of(queue).items.start_offset > 0

    tried("faults", in_new_queues(tmp_path / "store", prepare, check, segment_bytes=1 << 14))


@pytest.mark.long
def test_an_interrupted_burial_is_made_by_the_next_get(tmp_path: Path, tried: Tried) -> None:
    def prepare(queue: Queue) -> Callable[[], object]:
        queue.dead_letters.qsize()  # it exists
        queue.put(b"dead")
        return queue.get(block=False).nack

    def check(queue: Queue) -> None:
        core_of(queue).clock.advance(60_000)  # type: ignore[attr-defined]  # it is manual
        with pytest.raises(Empty):
            queue.get(block=False)
        assert {item.value for item in queue.dead_letters.peek(9)} == {b"dead"}
        assert queue.join(0)

    tried("faults", in_new_queues(tmp_path / "store", prepare, check, max_deliveries=1))


def tidy(life: Life) -> Callable[[], object]:
    return life.queue._space.tidy


def bury(life: Life) -> Callable[[], object]:
    return lambda: life.queue._space.bury(lambda record, deliveries: None)


def text(life: Life) -> Callable[[], object]:
    return lambda: repr(life.queue)


@pytest.mark.parametrize("act", [tidy, bury, text])
def test_an_interrupt_leaves_no_lock_with_a_thread_that_is_gone(
    life: Life, act: Callable[[Life], Callable[[], object]], tried: Tried
) -> None:
    space = life.queue._space
    locks: list[OwnedLock] = [core_of(life.queue).lock, space._at_work, space._burying]
    for number in count(1):
        with InterruptWithin(number, QUEUE) as interrupted:
            try:
                act(life)()
            except KeyboardInterrupt:
                pass
        left = [lock for lock in locks if lock.locked()]
        for lock in left:
            lock.release()
        assert not left, interrupted.place
        if not interrupted.struck:
            break
    tried("faults", number - 1)


def test_an_attempt_takes_a_lock_that_is_free_and_waits_for_none() -> None:
    lock = threading.Lock()
    with Attempt(lock) as is_mine:
        assert is_mine
        assert lock.locked()
        with Attempt(lock) as is_mine_too:
            assert not is_mine_too
        assert lock.locked()
    assert not lock.locked()
    with pytest.raises(ZeroDivisionError), Attempt(lock):
        raise ZeroDivisionError
    assert not lock.locked()


def test_an_attempt_waits_as_long_as_it_may() -> None:
    lock = OwnedLock()
    found: list[bool] = []

    def attempt(seconds: float) -> None:
        with Attempt(lock, seconds) as is_mine:
            found.append(is_mine)

    for seconds, released in ((0.001, False), (60.0, True)):
        with lock:
            thread = threading.Thread(target=attempt, args=(seconds,))
            thread.start()
            if not released:
                thread.join()
        thread.join()
        assert found.pop() is released
        assert not lock.locked()


def test_an_interrupted_put_keeps_no_space(tmp_path: Path, tried: Tried) -> None:
    """A queue of one item, whose space an interrupted put may have reserved."""
    with kstore.open(tmp_path, durability="os") as store:
        queue = store.queue("jobs", maxsize=1)
        for number in count(1):
            assert number < PLACES_MAX
            with InterruptWithin(number, QUEUE) as interrupted:
                try:
                    queue.put(b"item", block=False)
                except KeyboardInterrupt:
                    pass
            if queue.qsize() == 0:
                queue.put(b"item", block=False)
            queue.get_nowait().ack()
            if not interrupted.struck:
                break
        tried("faults", number - 1)
