"""Limits kstore's share of a process's open descriptors, and closes some when none are left.

A tail is the end of a log's active segment, which an append leaves open for the next one. All tails of the process
together may use half of the soft limit. Opening one more *parks* the least recently used one: it is synced and closed,
and its next append opens it again. The limit is read each time, because a program may change it.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

# Without a limit, and beyond this one, other limits bound what is kept.
LIMIT_MAX = 1 << 20
RAISED_LIMIT = 1 << 16
TAILS_SHARE = 2
# How many tails are parked when the process has no descriptor left.
RELIEF_COUNT = 8

UNSEEN = object()

# No descriptor is left, in this process or in the system.
EXHAUSTED_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def soft_limit() -> int:
    """How many descriptors this process may have open now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if limit == resource.RLIM_INFINITY else min(limit, LIMIT_MAX)


def raise_soft_limit() -> None:
    """Raises the soft limit as far as the hard one allows, for kstore's own programs: a library must not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = RAISED_LIMIT if hard == resource.RLIM_INFINITY else min(hard, RAISED_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # the limit of macOS may be lower than the one that it reports


class Tail(Protocol):
    """A log whose tail may be open: ``engine.files.LogFiles``, which is above this layer."""

    @property
    def last_use(self) -> object:
        """A different object after each use."""
        ...

    def park(self) -> bool:
        """Syncs and closes the tail; False if it is busy and nothing was done. Must not wait for the caller."""
        ...


class OpenTails:
    """The logs whose tails may be open, roughly by last use. Thread-safe.

    A use costs nothing here: a tail used since the last check gets a second chance.

    There is no lock: a garbage collection may close a log in the middle of any method, and wait for other threads that
    close logs too. Each change is one call of the dictionary, which the interpreter's lock makes atomic, and every
    lookup of a tail expects that it may be gone.
    """

    def __init__(self, limit: Callable[[], int] = soft_limit) -> None:
        self._limit = limit
        # In the order of examination, with the last use that was seen.
        self._tails: OrderedDict[weakref.ref[Any], object] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tails)

    @property
    def count_max(self) -> int:
        return max(self._limit() // TAILS_SHARE, 1)

    def admit(self, tail: Tail) -> None:
        """Counts ``tail``, which is about to be opened, and parks others if there would be too many.

        Busy tails are skipped: then the bound is exceeded by one for each such thread.
        """
        self._look_later(weakref.ref(tail), tail.last_use)
        self._park_beyond(self.count_max, tail)

    def forget(self, tail: object) -> None:
        """Removes ``tail``, which is closed and will stay so; does nothing if it was never admitted."""
        self._tails.pop(weakref.ref(tail), None)

    def relieve(self) -> bool:
        """Parks a few tails, for a process without free descriptors; returns whether any was parked."""
        before = len(self._tails)
        self._park_beyond(max(before - RELIEF_COUNT, 0), None)
        return len(self._tails) < before

    def _park_beyond(self, count_max: int, kept: Tail | None) -> None:
        looks = 2 * len(self._tails)
        while looks and (tail := self._candidate(count_max, kept)) is not None:
            looks -= 1
            reference = weakref.ref(tail)
            is_parked = False
            try:
                # Before it is parked: once it is, another thread may open it again, and count it.
                self._tails.pop(reference, None)
                is_parked = tail.park()
            finally:
                if not is_parked:
                    self._tails.setdefault(reference, tail.last_use)

    def _candidate(self, count_max: int, kept: Tail | None) -> Tail | None:
        """The next tail to park; None if there are few enough, or none can be parked."""
        for _ in range(2 * len(self._tails)):
            if len(self._tails) <= count_max:
                return None
            try:
                reference = next(iter(self._tails))
            except (StopIteration, RuntimeError):
                continue  # another thread has changed it
            tail: Tail | None = reference()
            if tail is None:
                self._tails.pop(reference, None)
                continue
            last_use = tail.last_use
            is_unused = self._tails.get(reference, UNSEEN) is last_use
            self._look_later(reference, last_use)
            if is_unused and tail is not kept:
                return tail
        return None

    def _look_later(self, reference: weakref.ref[Any], last_use: object) -> None:
        self._tails[reference] = last_use
        try:
            self._tails.move_to_end(reference)
        except KeyError:
            pass  # another thread has removed it

    def _forget_all(self) -> None:
        """In a forked child: the logs belong to the parent."""
        self._tails.clear()


# One for the process, like its descriptors.
OPEN_TAILS = OpenTails()

_relievers: list[Callable[[], bool]] = [OPEN_TAILS.relieve]
_relieving = threading.local()


def relieved(action: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Calls ``action``, and again after ``relieve`` if it found no descriptor left. Raises: what it raises."""
    try:
        return action(*args, **kwargs)
    except OSError as error:
        if error.errno not in EXHAUSTED_ERRNOS or not relieve():
            raise
    return action(*args, **kwargs)


def add_reliever(reliever: Callable[[], bool]) -> None:
    """Registers ``reliever``, which is called when no descriptor is left: it closes what it can, and returns if it
    did."""
    _relievers.append(reliever)


def relieve() -> bool:
    """Closes cached files if the process has no descriptor left; returns whether any was closed."""
    if getattr(_relieving, "active", False):
        return False  # closing them needs a descriptor itself
    _relieving.active = True
    try:
        closed_any = False
        for reliever in _relievers:
            closed_any = reliever() or closed_any
        return closed_any
    finally:
        _relieving.active = False


os.register_at_fork(after_in_child=OPEN_TAILS._forget_all)
