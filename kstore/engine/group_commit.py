"""Group commit: appends that wait at the same time share one write and one sync.

One of the waiting threads leads: it takes all queued appends and commits them with a single call, then wakes the other
threads. A lone thread always leads, and pays two uncontended locks for that. The next leader first gathers: it waits,
for at most a share of what a sync costs on this disk, until as many appends wait as the last group held, because those
threads were just woken and will append again soon (measured: without it a fast disk makes half as many syncs again).
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kstore.clock import Clock
from kstore.errors import StorageError

__all__ = ["GroupCommit", "Pending"]

# A leader waits for others for at most this share of a sync's usual time; a longer wait costs more than it saves.
GATHER_SHARE = 0.5
# Below this a sync is cheaper than waking threads for it.
GATHER_SECONDS_MIN = 20e-6
GATHER_SECONDS_MAX = 2e-3
# The weight of the newest measurement in the running mean of the duration of a commit.
MEAN_WEIGHT = 0.2

Result = TypeVar("Result")


class Pending(Generic[Result]):
    """One append in progress; the commit sets ``result`` or ``error``."""

    __slots__ = ("error", "leads", "result", "wake")

    def __init__(self) -> None:
        self.result: Result | None = None
        self.error: Exception | None = None
        self.leads: bool = False
        self.wake: _thread.LockType | None = None


Item = TypeVar("Item", bound=Pending)  # type: ignore[type-arg]  # any result will do


class GroupCommit(Generic[Item]):
    """The queue of waiting appends, and the leader. Thread-safe; ``commit`` runs in one thread at a time.

    ``commit(group)`` sets each item's result or error; an exception from it goes to every item without one.
    """

    def __init__(self, commit: Callable[[Sequence[Item]], None], clock: Clock) -> None:
        self._commit = commit
        self._clock = clock
        self._mutex = _thread.allocate_lock()
        self._queue: deque[Item] = deque()  # guarded by _mutex, like all below
        self._leading = False
        self._last_count = 1
        self._commit_seconds = 0.0
        self._gather_count = 0
        self._gathered: _thread.LockType | None = None
        # The next leader, not woken yet.
        self._heir: Item | None = None

    def submit(self, item: Item) -> None:
        """Returns when ``item`` is committed; raises its error.

        An exception from outside during the wait (KeyboardInterrupt) withdraws the item if no leader has taken it yet;
        otherwise it is committed although no thread waits for it.
        """
        try:
            with self._mutex:
                self._queue.append(item)
                if self._leading:
                    item.wake = _thread.allocate_lock()
                    item.wake.acquire()
                    if self._gathered is not None and len(self._queue) >= self._gather_count:
                        self._gathered.release()
                        self._gathered = None
                else:
                    item.leads = self._leading = True
            if item.wake is not None:
                item.wake.acquire()
            if item.leads:
                self._lead(item)
        except BaseException:
            with self._mutex:
                if item in self._queue:
                    self._queue.remove(item)
                self._pass_on(item)
            raise
        if item.error is not None:
            raise item.error

    @property
    def is_busy(self) -> bool:
        """Whether a thread commits, or others are about to append; may be slightly out of date."""
        return self._leading or self._last_count > 1

    def alone(self, commit: Callable[[], Result | None]) -> Result | None:
        """The result of ``commit()``, which commits one append; None, without a call, if another thread commits.

        Appends that arrive in that time are committed after it.
        """
        leader: Pending[Result] = Pending()
        has_led = False
        started = self._clock.monotonic()
        try:
            with self._mutex:
                # After a group the other threads are about to append: then a leader gathers.
                if not self._leading and self._last_count <= 1:
                    has_led = leader.leads = self._leading = True
            return commit() if leader.leads else None
        finally:
            # Nothing comes before the try: an interrupt there would leave no leader.
            try:
                if has_led:
                    self._end_alone(leader, started)
            except BaseException:
                if has_led:
                    self._end_alone(leader, started)
                raise

    def _end_alone(self, leader: Pending[Result], started: float) -> None:
        """Passes the lead on. An interrupt may end this anywhere; a second call does the rest."""
        took = self._clock.monotonic() - started
        with self._mutex:
            self._commit_seconds += MEAN_WEIGHT * (took - self._commit_seconds)
            self._pass_on(leader)

    def _lead(self, leader: Item) -> None:
        group: list[Item] = []
        started = self._clock.monotonic()
        try:
            self._gather()
            with self._mutex:
                # Both calls come before both stores, and no signal is served between the stores: every item is in one
                # of them.
                group, self._queue = list(self._queue), deque()
            started = self._clock.monotonic()
            self._commit(group)
        except Exception as error:
            if not group:
                raise  # nothing was taken: all items, the leader's too, are still in the queue
            self._fail(group, error)
        finally:
            # Also if the leader is interrupted: the others must not wait for a leader that is gone.
            if group:
                try:
                    self._end(group, leader, started)
                except BaseException:
                    self._end(group, leader, started)
                    raise

    def _end(self, group: Sequence[Item], leader: Item, started: float) -> None:
        """Passes the lead on, and wakes the group. An interrupt may end this anywhere; a second call does the rest."""
        took = self._clock.monotonic() - started
        self._fail(group, StorageError("the append was abandoned: the thread that committed it was interrupted"))
        with self._mutex:
            self._last_count = len(group)
            self._commit_seconds += MEAN_WEIGHT * (took - self._commit_seconds)
            self._pass_on(leader)
        for item in group:
            if item is not leader:
                _wake(item)

    def _fail(self, group: Sequence[Item], error: Exception) -> None:
        """Gives ``error`` to every item that has neither a result nor an error yet."""
        for item in group:
            if item.result is None and item.error is None:
                item.error = error

    def _pass_on(self, leader: Pending[Result]) -> None:
        """If ``leader`` leads, the first of the waiting threads leads next. Needs the mutex."""
        if leader.leads:
            if self._queue:
                self._heir = self._queue[0]
                self._heir.leads, leader.leads = True, False
            else:
                self._leading, leader.leads = False, False
        if self._heir is not None:
            _wake(self._heir)
            self._heir = None

    def _gather(self) -> None:
        if self._last_count <= 1:
            return
        seconds = min(self._commit_seconds * GATHER_SHARE, GATHER_SECONDS_MAX)
        if seconds < GATHER_SECONDS_MIN:
            return
        with self._mutex:
            if len(self._queue) >= self._last_count:
                return
            self._gather_count = self._last_count
            gathered = self._gathered = _thread.allocate_lock()
            gathered.acquire()
        gathered.acquire(True, seconds)
        with self._mutex:
            self._gathered = None


def _wake(item: Pending[Result]) -> None:
    """Lets ``item``'s thread continue; does nothing if that was done before, or if it never waited."""
    if item.wake is not None and item.wake.locked():
        item.wake.release()
