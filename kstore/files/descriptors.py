"""What kstore keeps open of a process's descriptors: at most a share of its limit, and less when there are none left.

A tail is the end of a log's active segment, which an append leaves open for the next one. All tails of the process
together may take half of the soft limit; one more *parks* the least recently used one: it is synced and closed, and its
next append opens it again. The limit is read each time, since a program may change it.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = [
    "OPEN_TAILS",
    "OpenTails",
    "Tail",
    "add_reliever",
    "raise_soft_limit",
    "relieve",
    "relieved",
    "soft_limit",
]

# Without a limit, and beyond it, others bound what is kept.
LIMIT_MAX = 1 << 20
RAISED_LIMIT = 1 << 16
TAILS_SHARE = 2
# Parked at once when the process has no descriptor left.
RELIEF_COUNT = 8

EXHAUSTED_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})

Result = TypeVar("Result")


def soft_limit() -> int:
    """How many descriptors this process may have open now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if limit == resource.RLIM_INFINITY else min(limit, LIMIT_MAX)


def raise_soft_limit() -> None:
    """Raises the soft limit as far as the hard one lets it, for a program that is kstore's own: a library must not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = RAISED_LIMIT if hard == resource.RLIM_INFINITY else min(hard, RAISED_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # macOS has a limit of its own below the one that it reports


class Tail(Protocol):
    """A log whose tail may be open."""

    @property
    def last_use(self) -> object:
        """Another object after each use."""
        ...

    def park(self) -> bool:
        """Syncs and closes the tail; False where it is at work and nothing was done. Must not wait for the caller."""
        ...


class OpenTails:
    """The logs whose tails may be open, roughly by their last use. Thread-safe.

    A use costs nothing here: a tail that was used since this last looked at it gets a second chance.
    """

    def __init__(self, limit: Callable[[], int] = soft_limit) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        # By ``id``, in the order in which they are looked at, with the last use that was seen. Guarded by the lock.
        self._tails: OrderedDict[int, tuple[weakref.ref[Tail], object]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tails)

    @property
    def count_max(self) -> int:
        return max(self._limit() // TAILS_SHARE, 1)

    def admit(self, tail: Tail) -> None:
        """Counts ``tail``, which is about to be opened, and parks others where there would be too many.

        Those that are at work are passed over: then there are more than the bound, by one for each such thread.
        """
        with self._lock:
            self._tails[id(tail)] = weakref.ref(tail), tail.last_use
            self._tails.move_to_end(id(tail))
        self._park_beyond(self.count_max, tail)

    def forget(self, tail: object) -> None:
        """``tail`` is closed for good; nothing if it was never admitted."""
        with self._lock:
            found = self._tails.get(id(tail))
            if found is not None and found[0]() is tail:
                del self._tails[id(tail)]

    def relieve(self) -> bool:
        """Parks a few, for a process that has no descriptor left; whether any was parked."""
        before = len(self._tails)
        self._park_beyond(max(before - RELIEF_COUNT, 0), None)
        return len(self._tails) < before

    def _park_beyond(self, count_max: int, kept: Tail | None) -> None:
        looks = 2 * len(self._tails)
        while looks and (found := self._candidate(count_max, kept)) is not None:
            looks -= 1
            key, tail = found
            if tail.park():
                with self._lock:
                    entry = self._tails.get(key)
                    if entry is not None and entry[0]() is tail:
                        del self._tails[key]

    def _candidate(self, count_max: int, kept: Tail | None) -> tuple[int, Tail] | None:
        """The next one to be parked; None where there are few enough, or none can be."""
        with self._lock:
            for _ in range(2 * len(self._tails)):
                if len(self._tails) <= count_max:
                    return None
                key = next(iter(self._tails))
                tail_ref, seen = self._tails[key]
                tail = tail_ref()
                if tail is None:
                    del self._tails[key]
                    continue
                self._tails.move_to_end(key)
                last_use = tail.last_use
                if tail is kept:
                    continue
                if last_use is seen:
                    return key, tail
                self._tails[key] = tail_ref, last_use
            return None

    def _forget_all(self) -> None:
        """In a forked child: the logs are the parent's."""
        self._lock = threading.Lock()
        self._tails.clear()


# Of the process, as its descriptors are.
OPEN_TAILS = OpenTails()

_relievers: list[Callable[[], bool]] = [OPEN_TAILS.relieve]
_relieving = threading.local()


def relieved(action: Callable[[], Result]) -> Result:
    """``action()``; done once more, after ``relieve``, where it found no descriptor left. Raises: what it raises."""
    try:
        return action()
    except OSError as error:
        if error.errno not in EXHAUSTED_ERRNOS or not relieve():
            raise
    return action()


def add_reliever(reliever: Callable[[], bool]) -> None:
    """Has ``reliever`` asked, too, when there is no descriptor left: it closes what it can, and says if it did."""
    _relievers.append(reliever)


def relieve() -> bool:
    """Closes files that are kept open for speed, where the process has no descriptor left; whether any was closed."""
    if getattr(_relieving, "active", False):
        return False  # what closes them needs a descriptor itself
    _relieving.active = True
    try:
        closed_any = False
        for reliever in _relievers:
            closed_any = reliever() or closed_any
        return closed_any
    finally:
        _relieving.active = False


os.register_at_fork(after_in_child=OPEN_TAILS._forget_all)
