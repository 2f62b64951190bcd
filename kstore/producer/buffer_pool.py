"""The memory of a producer: buffers for batches out of one bounded total, and a queue of requests for it.

Buffers of the poolable size are reused; others are made and dropped. Memory is allocated on first use. Requests are
served strictly in turn: a large request gets its memory as soon as enough is returned, and no request is served in
part. While none waits, memory is lent and returned without the lock.

A buffer may be returned only when no other thread reads it any more: the next batch overwrites it at once.

No interrupt loses memory. What a request has taken is a ``Loan``, which repays itself when nothing refers to it any
more. A lent buffer keeps its loan, so a buffer that is dropped anywhere between the pool and a batch is returned.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import BufferExhaustedError, ClosedError, RecordTooLargeError
from kstore.files._locks import OwnedLock
from kstore.producer._accumulate import Account, Loan
from kstore.record._codec import BatchBuffer

# How often a waiting request checks again: a loan that repays itself wakes no thread.
LOOK_AGAIN_SECONDS: Final = 0.5


class _Claim:
    """One request. Guarded by the pool's lock except for ``ready``."""

    __slots__ = ("buffer", "loan", "ready")

    def __init__(self, account: Account, size: int) -> None:
        self.loan = Loan(account, size)
        self.buffer: BatchBuffer | None = None
        # Held while the request waits.
        self.ready: threading.Lock | None = None


class BufferPool:
    """Buffers of ``total_bytes`` in all (Kafka: BufferPool). Thread-safe; a wait can be interrupted by a signal.

    However a request ends, even by an interrupt or a lack of real memory, its bytes are returned.

    Args:
        poolable_bytes: the size of the buffers that are kept for the next batch: batch_size.
        on_wait: called in the waiting thread, without a lock, before it waits.
    """

    def __init__(
        self,
        total_bytes: int,
        poolable_bytes: int,
        clock: Clock = SYSTEM_CLOCK,
        *,
        on_wait: Callable[[], object] | None = None,
    ) -> None:
        self.total_bytes = total_bytes
        self.poolable_bytes = poolable_bytes
        # The time that requests spent waiting, and how many of them timed out.
        self.wait_ns_total: int = 0
        self.exhausted_total: int = 0
        self._clock = clock
        self._on_wait = on_wait
        self._lock = OwnedLock()
        # Guarded by _lock, as ``account.freed``.
        self._waiting: deque[_Claim] = deque()
        # Bytes that are not lent, including those of the free buffers. A buffer always has a minimum capacity, so that
        # not every buffer has exactly the poolable size.
        self.account: Account = Account(
            total_bytes, poolable_bytes, max(poolable_bytes, BatchBuffer().capacity), self._waiting
        )

    @property
    def available(self) -> int:
        """Bytes that could be allocated now, if no request waited."""
        return self.account.available

    @property
    def free_count(self) -> int:
        """Buffers of the poolable size that are free."""
        return len(self.account.free)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def allocate(self, size: int, timeout_seconds: float) -> BatchBuffer:
        """An empty buffer with room for ``size`` bytes; waits for it if necessary.

        Raises: BufferExhaustedError after ``timeout_seconds``, RecordTooLargeError for more than the pool can ever
        have, ClosedError, MemoryError.
        """
        if size > self.total_bytes:
            raise RecordTooLargeError(size, self.total_bytes, "a buffer", setting="buffer_memory")
        claim = _Claim(self.account, size)
        try:
            with self._lock:
                self._refuse_closed()
                if self._waiting or not self._grant(claim):
                    claim.ready = threading.Lock()
                    claim.ready.acquire()
                    self._waiting.append(claim)
                    # Memory that was returned in the meantime: nothing else would tell.
                    self._serve()
            if claim.ready is not None:
                self._wait(claim, claim.ready, timeout_seconds)
            buffer = claim.buffer
            if buffer is None:
                buffer = BatchBuffer(size)
            buffer.loan = claim.loan
            return buffer
        except BaseException:
            try:
                self._withdraw(claim)
            finally:
                # Again, in case an interrupt came during that: a dead request at the head would block all others.
                self._withdraw(claim)
            raise

    def take_free(self, size: int) -> BatchBuffer | None:
        """A buffer of the poolable size, if one is free and no request waits for it; else None. Never waits."""
        return self.account.lend_free() if size == self.poolable_bytes else None

    def deallocate(self, buffer: BatchBuffer | None, size: int | None = None) -> None:
        """Takes a buffer back, whose content is lost; None does nothing. A closed pool takes buffers back too.

        Raises: ValueError for one that is not lent, or was not lent for ``size`` bytes; BufferError while a batch in it
        is open.
        """
        if buffer is None:
            return
        self.account.take_back(buffer, size)
        # A request is in ``_waiting`` before it looks for memory for the last time.
        if self._waiting or self.account.freed:
            self.serve()

    def serve(self) -> None:
        """Gives memory that was returned to the requests that wait for it."""
        with self._lock:
            self._serve()
            if self.account.freed:
                self._tell_freed()

    def when_freed(self, freed: Callable[[], object]) -> None:
        """Calls ``freed`` when memory is returned or the pool closes: once, but for an interrupt. It must be short and
        not raise.

        For callers that cannot wait in ``allocate``, such as the thread of an event loop.
        """
        with self._lock:
            self.account.freed.append(freed)
            if self.account.is_closed:
                self._tell_freed()

    def close(self) -> None:
        """Ends all waits with a ClosedError, and lends nothing more."""
        with self._lock:
            self.account.is_closed = True
            for claim in self._waiting:
                _wake(claim)
            self._waiting.clear()
            while self.account.pop_free() is not None:
                pass
            self._tell_freed()

    def _wait(self, claim: _Claim, ready: threading.Lock, timeout_seconds: float) -> None:
        if self._on_wait is not None:
            self._on_wait()
        started = self._clock.monotonic()
        try:
            remaining = min(max(timeout_seconds, 0.0), threading.TIMEOUT_MAX)
            while not ready.acquire(timeout=min(remaining, LOOK_AGAIN_SECONDS)):
                remaining -= LOOK_AGAIN_SECONDS
                with self._lock:
                    self._serve()
                if remaining <= 0:
                    break
        finally:
            waited_ns = int((self._clock.monotonic() - started) * 1e9)
            with self._lock:
                self.wait_ns_total += waited_ns
        with self._lock:
            if claim.loan.taken:
                if claim in self._waiting:
                    self._waiting.remove(claim)  # it was served, but not removed
                return
            self._refuse_closed()
            self.exhausted_total += 1
            raise BufferExhaustedError(
                wanted=claim.loan.wanted,
                waited_ms=round(timeout_seconds * 1000),
                total_bytes=self.total_bytes,
                available=self.account.available,
                poolable_bytes=self.poolable_bytes,
            )

    def _withdraw(self, claim: _Claim) -> None:
        """Returns a request's memory, and removes it from the queue; a second call does nothing."""
        with self._lock:
            if claim in self._waiting:
                self._waiting.remove(claim)
            claim.loan.repay()
            self._serve()

    # --- under the lock -----------------------------------------------------------------------------------------------

    def _tell_freed(self) -> None:
        while self.account.freed:
            self.account.freed[0]()
            # Afterwards: after an interrupt it is called again.
            del self.account.freed[0]

    def _refuse_closed(self) -> None:
        if self.account.is_closed:
            raise ClosedError("the producer was closed, and its memory with it")

    def _grant(self, claim: _Claim) -> bool:
        """Gives a request its memory, if there is enough; a second call does nothing."""
        if not claim.loan.take():
            return False
        if claim.buffer is None and claim.loan.wanted == self.poolable_bytes:
            claim.buffer = self.account.pop_free()
        # The memory of free buffers counts as available: any part taken from it must be dropped.
        self.account.drop_excess()
        return True

    def _serve(self) -> None:
        """Gives the available memory to the waiting requests, in turn. After an interrupt the next call continues."""
        while self._waiting:
            claim = self._waiting[0]
            if not self._grant(claim):
                return
            _wake(claim)
            # Last: waking a thread twice does no harm, but one that is never woken waits forever.
            del self._waiting[0]


def _wake(claim: _Claim) -> None:
    """Lets a request continue; does nothing the second time."""
    if claim.ready is not None and claim.ready.locked():
        claim.ready.release()
