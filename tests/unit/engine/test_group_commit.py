"""Group commit: the queue of waiting appends and their leader, without a log."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kstore.engine.append._group import GroupCommit, Pending
from kstore.errors import StorageError
from tests.support.fakes.fake_clock import ManualClock

WAIT_SECONDS = 300


class Heard(Pending):
    pass


class Commits:
    """Groups that were committed. In the first commit, ``meet`` is called."""

    def __init__(self, meet: Callable[[], None] = lambda: None) -> None:
        self.groups: list[list[Heard]] = []
        self.meet = meet
        self.group = GroupCommit(self.commit, ManualClock())

    def commit(self, group: list[Any]) -> None:
        self.groups.append(list(group))
        if len(self.groups) == 1:
            self.meet()
        for item in group:
            item.result = "done"


def waiting(group: GroupCommit, items: list[Heard], ended: list[object]) -> list[threading.Thread]:
    """Threads that have submitted ``items``, in their order, and wait; ``ended`` gets their errors."""

    def submit(item: Heard) -> None:
        try:
            group.submit(item)
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    threads = []
    for item in items:
        count = group.waiting_count
        threads.append(threading.Thread(target=submit, args=(item,), daemon=True))
        threads[-1].start()
        while group.waiting_count == count:
            threads[-1].join(0.0001)
    return threads


def joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def test_appends_that_arrive_during_a_commit_are_the_next_group() -> None:
    others = [Heard() for _ in range(3)]
    threads: list[threading.Thread] = []
    ended: list[object] = []

    def meet() -> None:
        threads.extend(waiting(commits.group, others, ended))

    commits = Commits(meet)
    first = Heard()
    commits.group.submit(first)
    joined(threads)
    assert commits.groups == [[first], others]
    assert [item.result for item in (first, *others)] == ["done"] * 4
    assert ended == [None] * 3
    assert commits.group.waiting_count == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ValueError])
def test_a_commit_that_fails_wakes_its_group_and_the_next_one_leads(error: type[BaseException]) -> None:
    others, last = [Heard() for _ in range(2)], [Heard()]
    threads: list[threading.Thread] = []
    ended: list[object] = []

    def commit(group: list[Any]) -> None:
        if not threads:
            threads.extend(waiting(pending, others, ended))
        elif len(group) == 2:
            threads.extend(waiting(pending, last, ended))
            raise error
        for item in group:
            item.result = "done"

    pending = GroupCommit(commit, ManualClock())
    pending.submit(Heard())
    joined(threads)
    assert len(ended) == 3
    assert ended.count(None) == 1
    assert last[0].result == "done"
    kinds = {type(each) for each in ended if each is not None}
    assert kinds == ({KeyboardInterrupt, StorageError} if error is KeyboardInterrupt else {error})
    again = Heard()
    pending.submit(again)
    assert again.result == "done"


def test_a_leader_that_is_interrupted_before_it_has_a_group_passes_the_lead_on() -> None:
    other = Heard()
    threads: list[threading.Thread] = []
    ended: list[object] = []

    class Interrupting(ManualClock):
        def monotonic(self) -> float:
            if not threads:
                threads.extend(waiting(group, [other], ended))
                raise KeyboardInterrupt
            return super().monotonic()

    commits = Commits()
    group = commits.group = GroupCommit(commits.commit, Interrupting())
    with pytest.raises(KeyboardInterrupt):
        group.submit(Heard())
    joined(threads)
    assert commits.groups == [[other]]
    assert ended == [None]


def test_an_item_has_its_own_error() -> None:
    def commit(group: list[Any]) -> None:
        group[0].error = StorageError("refused")

    with pytest.raises(StorageError, match="refused"):
        GroupCommit(commit, ManualClock()).submit(Heard())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_interrupted_wait_withdraws_the_append(place: int) -> None:
    """The main thread waits at ``place`` among three; Ctrl-C ends its wait, and the others are committed."""
    main = threading.get_ident()
    has_begun, may_end = threading.Event(), threading.Event()
    others = [Heard() for _ in range(2)]
    ended: list[object] = []

    def meet() -> None:
        has_begun.set()
        assert may_end.wait(WAIT_SECONDS)

    commits = Commits(meet)
    first = waiting_leader = threading.Thread(target=commits.group.submit, args=(Heard(),))
    waiting_leader.start()
    assert has_begun.wait(WAIT_SECONDS)
    threads = waiting(commits.group, others[:place], ended)

    def interrupt() -> None:
        while commits.group.waiting_count == place:
            pass
        threads.extend(waiting(commits.group, others[place:], ended))
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    mine = Heard()
    with pytest.raises(KeyboardInterrupt):
        commits.group.submit(mine)
    helper.join(WAIT_SECONDS)
    assert commits.group.waiting_count == 2
    may_end.set()
    joined([first, *threads])
    assert mine.result is None
    assert commits.groups[1:] == [others]
    assert ended == [None, None]


def test_many_threads_and_many_rounds_lose_nothing() -> None:
    commits = Commits()
    done: list[str] = []

    def work() -> None:
        for _ in range(300):
            item = Heard()
            commits.group.submit(item)
            done.append(item.result)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    joined(threads)
    assert done == ["done"] * 2400
    assert sum(map(len, commits.groups)) == 2400
