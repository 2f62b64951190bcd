"""How a process leases items, returns them and marks them as done; here for a queue that no other process uses.

LocalLeasing    a lease is known to this process only: its end ends all of them
SharedLeasing   (``shared``) several processes share the queue, and a lease is an event of the journal
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kstore.queue.events import DONE, MOVED, RETRY, encode_events
from kstore.queue.job import Job
from kstore.queue.journal import row_values
from kstore.queue.leases import Retry
from kstore.queue.ledger import Ledger


class Leasing(Protocol):
    """Needs the ledger's lock, except for methods that append to the journal outside it, which take it themselves.

    What writes raises DiskFullError, PoisonedError, StorageError.
    """

    @property
    def done_kind(self) -> bytes:
        """The kind of the events that mark leased items as done."""
        ...

    def own(self, jobs: list[Job], seconds: float) -> list[Job]:
        """Those of ``jobs`` that no other process has taken."""
        ...

    def own_all(self, offsets: Sequence[int], seconds: float) -> int | None:
        """Keeps items from other processes for some time.

        Returns the owner for ``write_moved``, or None if not all of the items were free.
        """
        ...

    def extend(self, job: Job, seconds: float) -> bool:
        """Announces a longer lease; returns whether the lease still holds."""
        ...

    def write_moved(self, rows: Sequence[tuple[int, int]], owner: int) -> int:
        """Replaces items by their copies; returns the journal's end afterwards. Takes the lock."""
        ...

    def nack(self, job: Job, due_ms: int) -> bool:
        """Returns a leased item, which may be delivered again from ``due_ms``. Returns whether it was still leased.

        Takes the lock. If it raises, the item comes back nevertheless.
        """
        ...

    def held_count(self, now: float) -> int:
        """How many items are leased, by unexpired leases, or busy."""
        ...

    def leased_count(self, now: float) -> int:
        """How many items are leased, by unexpired leases."""
        ...

    def give_up(self) -> None:
        """Called at the end: the items leased here may be delivered again, by other processes too."""
        ...


class LocalLeasing:
    """The leases of the only process that uses the queue."""

    done_kind = DONE

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def own(self, jobs: list[Job], seconds: float) -> list[Job]:
        ledger = self._ledger
        if ledger.config.note_deliveries:
            rows = [(job.offset, job.delivery_count, 0, 0) for job in jobs]
            ledger.applied(ledger.journal.append_all(row_values(RETRY, rows)))
            ledger.state.retries.update({job.offset: Retry(job.delivery_count, 0) for job in jobs})
        return jobs

    def own_all(self, offsets: Sequence[int], seconds: float) -> int | None:
        return 0  # there is no other process, and the events of this one name no owner

    def extend(self, job: Job, seconds: float) -> bool:
        return True  # the deadline of the job is the whole lease

    def write_moved(self, rows: Sequence[tuple[int, int]], owner: int) -> int:
        ledger = self._ledger
        end = 0
        try:
            end = ledger.journal.append(encode_events(MOVED, rows))
        finally:
            if end:
                try:
                    self._apply_moved(rows)
                except BaseException:
                    self._apply_moved(rows)
                    raise
        return end

    def _apply_moved(self, rows: Sequence[tuple[int, int]]) -> None:
        ledger = self._ledger
        with ledger.lock:
            for row in rows:
                ledger.state.apply(MOVED, row)

    def nack(self, job: Job, due_ms: int) -> bool:
        ledger, state = self._ledger, self._ledger.state
        token, end = object(), 0
        try:
            with ledger.lock:
                if not job.is_open or not state.is_leased(job):
                    return False
                ledger.begin_write(token)
                state.end_lease(job)
                state.hold((job.offset,))
                job.is_open = False
            end = ledger.journal.append(encode_events(RETRY, [(job.offset, job.delivery_count, due_ms, 0)]))
        finally:
            try:
                self._end_nack(token, end, job, due_ms)
            except BaseException:
                self._end_nack(token, end, job, due_ms)
                raise
        return True

    def _end_nack(self, token: object, end: int, job: Job, due_ms: int) -> None:
        """Returns the item, if its lease was ended. An interrupt may end this anywhere; a second call does the rest."""
        ledger, state = self._ledger, self._ledger.state
        with ledger.lock:
            if not ledger.is_writing(token):
                return
            if not state.is_leased(job):
                job.is_open = False
                state.busy.discard(job.offset)
                state.give_back(job.offset, job.delivery_count, due_ms)
            ledger.end_write(token, end)

    def held_count(self, now: float) -> int:
        return self.leased_count(now) + len(self._ledger.state.busy)

    def leased_count(self, now: float) -> int:
        state = self._ledger.state
        return state.leased_count - state.leases.over_count(now)

    def give_up(self) -> None:
        state = self._ledger.state
        for lease in state.leases.held():
            state.retries[lease.offset] = Retry(lease.delivery_count, 0)
