"""The memory of a producer: buffers for batches out of one bounded total, and a queue of those who wait for some.

Buffers of the one poolable size are used again; others are made and given up. Memory is made when it is first needed.
Who waits is served strictly in turn, and a newcomer stands behind all of them: so a large request gets its memory as
soon as enough was given back, and nothing is ever half served.

A buffer may be given back only when nobody reads it any more: the next batch is written over it at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import BufferExhaustedError, ClosedError, RecordTooLargeError
from kstore.record._codec import BatchBuffer

__all__ = ["BufferPool"]


class _Claim:
    """One request: what it has taken so far, all or nothing. Guarded by the pool's lock but for ``ready``."""

    __slots__ = ("buffer", "ready", "size", "taken")

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self.buffer: BatchBuffer | None = None
        # Held while the request waits.
        self.ready: threading.Lock | None = None


class BufferPool:
    """Buffers of ``total_bytes`` in all (Kafka: BufferPool). Thread-safe; a wait can be interrupted by a signal.

    Whatever ends a request, an interrupt or a lack of real memory too, its bytes are given back.

    Args:
        poolable_bytes: the size that is kept for the next batch: batch_size.
        on_wait: is called, in the waiting thread and without a lock, before it waits.
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
        # Time that requests spent waiting, and how many of them waited in vain.
        self.wait_ns_total = 0
        self.exhausted_total = 0
        self._clock = clock
        self._on_wait = on_wait
        # A buffer is never smaller than some, so that not every one has just the poolable size.
        self._pooled_capacity = max(poolable_bytes, BatchBuffer().capacity)
        self._lock = threading.Lock()
        # Guarded by _lock: bytes that nobody has, those of the free buffers included.
        self._available = total_bytes
        self._free: list[BatchBuffer] = []
        self._lent: dict[BatchBuffer, int] = {}
        self._waiting: deque[_Claim] = deque()
        self._freed: list[Callable[[], object]] = []
        self._is_closed = False

    @property
    def available(self) -> int:
        """Bytes that could be allocated now, if nobody waited."""
        return self._available

    @property
    def free_count(self) -> int:
        """Buffers of the poolable size that wait to be used again."""
        return len(self._free)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def allocate(self, size: int, timeout_seconds: float) -> BatchBuffer:
        """A buffer, empty, that ``size`` bytes fit into; waits for it if need be.

        Raises: BufferExhaustedError after ``timeout_seconds``, RecordTooLargeError for what the pool can never have,
        ClosedError, MemoryError.
        """
        if size > self.total_bytes:
            raise RecordTooLargeError(size, self.total_bytes, "a buffer", setting="buffer_memory")
        claim = _Claim(size)
        try:
            with self._lock:
                self._refuse_closed()
                if self._waiting or self._available < size:
                    claim.ready = threading.Lock()
                    claim.ready.acquire()
                    self._waiting.append(claim)
                else:
                    self._grant(claim)
            if claim.ready is not None:
                self._wait(claim, claim.ready, timeout_seconds)
            if claim.buffer is None:
                claim.buffer = BatchBuffer(size)
            self._lent[claim.buffer] = size
            return claim.buffer
        except BaseException:
            try:
                self._withdraw(claim)
            finally:
                # Once more, in case an interrupt came into that: a dead request at the head would stop all others.
                self._withdraw(claim)
            raise

    def take_free(self, size: int) -> BatchBuffer | None:
        """A buffer of the poolable size that is free and that nobody waits for; None where there is none. No wait."""
        if size != self.poolable_bytes or not self._free:
            return None
        with self._lock:
            if self._waiting or self._is_closed or not self._free:
                return None
            buffer = self._free.pop()
            # In one step, so that no interrupt comes between.
            self._available, self._lent[buffer] = self._available - size, size
            return buffer

    def deallocate(self, buffer: BatchBuffer | None, size: int | None = None) -> None:
        """Takes a buffer back, whose content is gone; None is none. A closed pool takes buffers back too.

        Raises: ValueError for one that is not lent, and where it was not lent for ``size`` bytes; BufferError while a
        batch in it is open.
        """
        if buffer is None:
            return
        with self._lock:
            lent = self._lent.get(buffer)
            if lent is None:
                raise ValueError("a buffer that the pool has not lent, or that was given back already")
            if size is not None and size != lent:
                raise ValueError(f"a buffer of {size} bytes given back, expected the {lent} that it was allocated for")
            buffer.clear()
            # In one step, so that no interrupt comes between.
            self._available += self._lent.pop(buffer)
            # One that grew, for a large record or in compression, would keep more than is counted.
            if lent == self.poolable_bytes and buffer.capacity <= self._pooled_capacity:
                self._free.append(buffer)
            self._serve()
            if self._freed:
                self._tell_freed()

    def when_freed(self, freed: Callable[[], object]) -> None:
        """Has ``freed``, which must be short and not raise, called once: when memory comes back, or the pool closes.

        For who cannot wait in ``allocate``, as no thread of an event loop can.
        """
        with self._lock:
            self._freed.append(freed)
            if self._is_closed:
                self._tell_freed()

    def close(self) -> None:
        """Lets go all who wait, with a ClosedError, and lends nothing more."""
        with self._lock:
            self._is_closed = True
            for claim in self._waiting:
                _wake(claim)
            self._waiting.clear()
            self._free.clear()
            self._tell_freed()

    def _wait(self, claim: _Claim, ready: threading.Lock, timeout_seconds: float) -> None:
        if self._on_wait is not None:
            self._on_wait()
        started = self._clock.monotonic()
        try:
            ready.acquire(timeout=min(max(timeout_seconds, 0.0), threading.TIMEOUT_MAX))
        finally:
            waited_ns = int((self._clock.monotonic() - started) * 1e9)
            with self._lock:
                self.wait_ns_total += waited_ns
        with self._lock:
            if claim.taken:
                return
            self._refuse_closed()
            self.exhausted_total += 1
            raise BufferExhaustedError(
                wanted=claim.size,
                waited_ms=round(timeout_seconds * 1000),
                total_bytes=self.total_bytes,
                available=self._available,
                poolable_bytes=self.poolable_bytes,
            )

    def _withdraw(self, claim: _Claim) -> None:
        """Gives back what a request has, and its place in the queue; again does nothing."""
        with self._lock:
            if claim in self._waiting:
                self._waiting.remove(claim)
            if claim.buffer is not None:
                self._lent.pop(claim.buffer, None)
            self._available, claim.taken = self._available + claim.taken, 0
            self._serve()

    # --- under the lock -----------------------------------------------------------------------------------------------

    def _tell_freed(self) -> None:
        told, self._freed = self._freed, []
        for freed in told:
            freed()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise ClosedError("the producer was closed, and its memory with it")

    def _grant(self, claim: _Claim) -> None:
        # In one step, so that no interrupt comes between.
        claim.taken, self._available = claim.size, self._available - claim.size
        if claim.size == self.poolable_bytes and self._free:
            claim.buffer = self._free.pop()
        # The memory of free buffers counts as available: what is taken of it must be given up.
        while len(self._free) * self.poolable_bytes > self._available:
            self._free.pop()

    def _serve(self) -> None:
        """Gives what there is to those who wait, in turn."""
        while self._waiting and self._waiting[0].size <= self._available:
            claim = self._waiting.popleft()
            self._grant(claim)
            _wake(claim)


def _wake(claim: _Claim) -> None:
    assert claim.ready is not None
    claim.ready.release()
