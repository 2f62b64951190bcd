"""The counts of working and waiting threads, when Ctrl-C comes at any place where CPython serves a signal."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

import kstore
from kstore.consumer.groups import MemoryGroup
from kstore.log import writer_of
from kstore.shared.turn import SharedTurn, TurnLock
from tests.crash.interrupted_life import InterruptAfterCode
from tests.fake_clock import ManualClock

Tried = Callable[[str, int], None]


def at_every_place(act: Callable[[], object], check: Callable[[], None], tried: Tried) -> None:
    """Interrupts ``act`` at its first place, its second, and so on; checks after each."""
    for number in count(1):
        with InterruptAfterCode(number) as interrupted:
            try:
                act()
            except KeyboardInterrupt:
                pass
        try:
            check()
        except AssertionError as error:
            error.add_note(f"interrupted at {interrupted.place}")
            raise
        if not interrupted.struck:
            break
    assert number > 3
    tried("faults", number - 1)


def test_a_commit_of_a_group_ends_however_it_is_interrupted(tried: Tried) -> None:
    box = MemoryGroup("g", ManualClock())

    def commit() -> None:
        with box.committing():
            pass

    def check() -> None:
        assert not box._committing

    at_every_place(commit, check, tried)


def test_a_log_never_counts_fewer_followers_than_watch_it(tmp_path: Path, tried: Tried) -> None:
    with kstore.Log(tmp_path / "orders-0", durability="os") as log:
        writer = cast(Any, writer_of(log))

        def told() -> None:
            pass

        def follow() -> None:
            writer.watch_growth(told)
            writer.unwatch_growth(told)

        def check() -> None:
            assert writer.growth.follower_count >= len(writer.growth._watchers)
            if writer.growth._watchers:
                writer.unwatch_growth(told)

        at_every_place(follow, check, tried)


def test_waking_followers_leaves_the_lock_to_other_threads(tmp_path: Path, tried: Tried) -> None:
    with kstore.Log(tmp_path / "orders-0", durability="os") as log:
        writer = cast(Any, writer_of(log))
        taken: list[bool] = []

        def take() -> None:
            is_mine = writer.growth._lock.acquire(blocking=False)
            taken.append(is_mine)
            if is_mine:
                writer.growth._lock.release()

        def check() -> None:
            thread = threading.Thread(target=take)
            thread.start()
            thread.join()
            assert taken.pop(), "the thread that was interrupted still has it"

        at_every_place(writer.growth.wake, check, tried)


def test_no_condition_is_entered() -> None:
    """``Condition.__enter__`` is Python: a signal that is served at its end leaves the lock taken, with nobody to
    release it. The lock's own ``with`` has no such place."""
    condition = re.compile(r"(\w+) = threading\.Condition\(")
    entered = []
    for path in Path(kstore.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for name in condition.findall(text):
            entered += [f"{path}: {name}" for _ in re.findall(rf"with [^\n]*\b{name}\b *[:,]", text)]
    assert entered == []


class _Alone:
    """A writer that shares nothing."""

    def take_turn(self) -> None: ...

    def leave_turn(self) -> None: ...


class _Interrupting:
    """A lock that another thread holds, and an interrupted wait for it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self) -> None:
        raise KeyboardInterrupt

    def release(self) -> None:
        self._lock.release()


def test_a_wait_for_the_turn_that_is_interrupted_leaves_the_turn_to_its_owner() -> None:
    turn = TurnLock(cast(SharedTurn, _Alone()))
    has_turn, may_end, found = threading.Event(), threading.Event(), list[bool]()

    def own() -> None:
        with turn:
            has_turn.set()
            may_end.wait(300)
            found.append(turn.is_mine)
            turn._mutex = lock

    lock = turn._mutex
    owner = threading.Thread(target=own)
    owner.start()
    assert has_turn.wait(300)
    turn._mutex = cast(Any, _Interrupting(lock))
    with pytest.raises(KeyboardInterrupt):
        turn.__enter__()
    may_end.set()
    owner.join(300)
    assert found == [True]
