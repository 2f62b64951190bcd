"""``Budget``: what the requests of all connections may take, beyond what every connection has anyway.

Its halves are lent apart, frames first. With one for both, some requests that have their frames could each wait for
elements until another gives up: forever, if not for the limit of that wait.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import contextmanager

from kstore.door.waiting import Waiter
from kstore.files._locks import OwnedLock

# What connections remember of their last requests, all together.
SEEN_BYTES_MAX = 16 << 20
# This part of a budget may be spare buffers, with sizes in these units: 8 MiB of 256.
SPARE_PART = 32
SPARE_UNIT_BYTES = 64 << 10


class Loan:
    """Memory that one request has; falsy if it got none. For the request's thread."""

    def __init__(self, memory: Memory, size: int) -> None:
        self._memory = memory
        self.size = size

    def __bool__(self) -> bool:
        return self.size > 0

    def keep(self, size: int) -> None:
        """Gives back all but ``size`` bytes."""
        if size < self.size:
            self._memory.give(self.size - size)
            self.size = size


class Memory:
    """One half of a budget: ``total`` bytes. Thread-safe.

    Requests are not served in turn: a small one may pass a large one that waits.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._lock = OwnedLock()
        # Guarded by _lock.
        self._taken = 0
        # Those of the requests that wait; changed with the lock, read as a copy.
        self._waiters: set[Waiter] = set()
        self._is_ended = False

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def is_wanted(self) -> bool:
        """Whether a request waits for what others have."""
        return bool(self._waiters)

    @contextmanager
    def lent(self, size: int, seconds: float) -> Iterator[Loan]:
        """Takes ``size`` bytes for the block, and waits for them at most so long.

        A size above the total waits until it is alone.
        """
        loan = Loan(self, 0)
        try:
            if not self._take(loan, min(size, self.total)):
                self._wait(loan, min(size, self.total), time.monotonic() + seconds)
            yield loan
        finally:
            loan.keep(0)

    def _take(self, loan: Loan, wanted: int) -> bool:
        """Whether there is nothing to wait for: the loan has its bytes, or will never get any."""
        with self._lock:
            if self._is_ended:
                return True
            if self._taken + wanted > self.total:
                return False
            self._taken += wanted
            loan.size = wanted
            return True

    def take_now(self, size: int) -> bool:
        """Takes ``size`` bytes if they are there, until they are given back."""
        with self._lock:
            if self._taken + size > self.total:
                return False
            self._taken += size
            return True

    def _wait(self, loan: Loan, wanted: int, deadline: float) -> None:
        waiter = Waiter()
        with self._lock:
            self._waiters.add(waiter)
        try:
            # Once more after it can be woken.
            while not self._take(loan, wanted) and time.monotonic() < deadline:
                waiter.wait(deadline)
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def give(self, size: int) -> None:
        """Gives back ``size`` bytes."""
        with self._lock:
            self._taken -= size
        self._wake_all()

    def end(self) -> None:
        """Ends all waits, and lends nothing more. Takes no lock, which an interrupted thread may hold."""
        self._is_ended = True
        self._wake_all()

    def _wake_all(self) -> None:
        for waiter in tuple(self._waiters):
            waiter.wake()


def buffer_size(frame_size: int) -> int:
    """The bytes of the buffer for a large frame: those of one client differ by a few bytes, and share one."""
    return -(-frame_size // SPARE_UNIT_BYTES) * SPARE_UNIT_BYTES


class Spares:
    """Buffers of frames that were handled, for the next ones. Thread-safe.

    Large memory that was just given back has to be mapped and zeroed again, which took as long as all else that is
    done with a frame. Kept are the largest buffers, ``total`` bytes at most, and none of more than a quarter of that.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._lock = OwnedLock()
        self._buffers: list[bytearray] = []  # guarded by the lock, the smallest one first

    def take(self, size: int) -> bytearray:
        """A buffer of ``buffer_size(size)`` bytes, with anything in it. Never a larger one, of which slow peers could
        hold more than was counted."""
        wanted = buffer_size(size)
        with self._lock:
            at = bisect_left(self._buffers, wanted, key=len)
            if at < len(self._buffers) and len(self._buffers[at]) == wanted:
                return self._buffers.pop(at)
        return bytearray(wanted)

    def give(self, buffer: bytearray) -> None:
        """Keeps ``buffer`` if there is room: its views must not be used any more."""
        if len(buffer) > self._total // 4:
            return
        with self._lock:
            insort(self._buffers, buffer, key=len)
            while sum(map(len, self._buffers)) > self._total:
                del self._buffers[0]


class Budget:
    """``total`` bytes, half of them for frames, and half for what is parsed of them. Thread-safe.

    Two things are apart from them: ``spares``, and ``seen``, what connections remember of their last request, as long
    as there is room.
    """

    def __init__(self, total: int) -> None:
        self.spares = Spares(total // SPARE_PART)
        self.seen = Memory(SEEN_BYTES_MAX)
        self.frames = Memory(total - total // 2)
        self.elements = Memory(total // 2)

    @property
    def taken(self) -> int:
        return self.frames.taken + self.elements.taken

    def end(self) -> None:
        """See ``Memory.end``."""
        self.frames.end()
        self.elements.end()
