"""A queue that several processes share: each has its own state, built from the same journal.

A lease is then an event too: to get items, a process appends a claim, and reads the journal up to it. All processes
read the same events in the same order, so the first claim of a free item wins everywhere. The machine's monotonic
clock, which all processes share, decides when a lease expires; so the items of a killed worker come back when its
leases expire. The clock restarts with the machine: the first process to open the queue then records the machine's boot,
which ends all earlier leases.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kstore.errors import OffsetOutOfRangeError
from kstore.files.boot import boot_id
from kstore.queue.core import QueueCore
from kstore.queue.events import ACKED, BOOT, CLAIM, MOVED_BY, RETRY, encode_events
from kstore.queue.job import Job
from kstore.queue.leases import Claim, Retry, numbers_of

__all__ = ["SharedCore"]

# How often a waiting get looks for items that other processes returned, which the items' log does not show.
POLL_SECONDS = 0.05
OWNER_BITS = 62
# Journals are rewritten every few thousand events; a rewrite during this many reads in a row has another cause.
READS_MAX = 20


class SharedCore(QueueCore):
    """``QueueCore`` of one of several processes."""

    def _load(self) -> None:
        self.state.is_shared = True
        self._random = random.SystemRandom()
        super()._load()
        boot = numbers_of(boot_id())
        if self.state.boot != boot:
            self.journal.append(encode_events(BOOT, [boot]))
            self.refresh()

    # --- the journal ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Reads what all processes have written. Needs the lock. Raises: StorageError."""
        if self.journal.end <= self._journal_end:
            return
        self._read_on(self._journal_end)

    def _read_on(self, start: int | None, stop: int | None = None) -> None:
        for _ in range(READS_MAX):
            try:
                super()._read_on(start, stop)
                return
            except OffsetOutOfRangeError:
                start = None  # another process has just rewritten it, and removed the part that was being read
        super()._read_on(start, stop)

    def write_done(self, rows: Sequence[tuple[int, int]], notes: bytes) -> int:
        # The event may come late, after the next holder of an expired lease has moved the item.
        return self.journal.append_rows(ACKED, rows, notes)

    def end_write(self, token: int, end: int = 0) -> None:
        # Written events are applied when they are read, in order with those of other processes.
        super().end_write(token)

    @property
    def applied_end(self) -> int:
        return self._journal_end

    # --- claims -----------------------------------------------------------------------------------------------------

    def is_void(self, claim: Claim) -> bool:
        # If the system does not identify boots, a claim time that the clock has not reached is from an earlier boot.
        # A time that it has reached may be, too; such a claim is over when its lease would be.
        return claim.claimed_ms > int(self.clock.monotonic() * 1000)

    def claim(self, offsets: Sequence[tuple[int, int]], seconds: float) -> int:
        """Claims items, each with its new number of deliveries; returns the owner to look for in ``state.claims``.

        Needs the lock. Raises: DiskFullError, PoisonedError, StorageError.
        """
        owner = self._random.getrandbits(OWNER_BITS) + 1
        now_ms = int(self.clock.monotonic() * 1000)
        expires_ms = now_ms + int(seconds * 1000)
        self.journal.append_rows(CLAIM, [(offset, count, owner, now_ms, expires_ms) for offset, count in offsets])
        self.refresh()
        return owner

    def own(self, jobs: list[Job], seconds: float) -> list[Job]:
        owner = self.claim([(job.offset, job.delivery_count) for job in jobs], seconds)
        owned: list[Job] = []
        for job in jobs:
            claim = self.state.claims.get(job.offset)
            if claim is not None and claim.owner == owner:
                job.owner = owner
                owned.append(job)
            else:
                self.state.put_back((), (job.offset,))  # another process was quicker
        return owned

    def own_all(self, offsets: Sequence[int], seconds: float) -> int | None:
        state = self.state
        owner = self.claim([(offset, _deliveries(state.retries.get(offset))) for offset in offsets], seconds)
        owned = [offset for offset in offsets if (claim := state.claims.get(offset)) and claim.owner == owner]
        if len(owned) == len(offsets):
            return owner
        rows = [(offset, *state.retries.get(offset, Retry(0, 0)), owner) for offset in owned]
        if rows:
            self.journal.append_rows(RETRY, rows)
        return None

    def write_moved(self, rows: Sequence[tuple[int, int]], owner: int) -> int:
        end = self.journal.append(encode_events(MOVED_BY, [(*row, owner) for row in rows]))
        with self.lock:
            self.refresh()  # in order: other processes may have taken the items since
        return end

    def extended(self, job: Job, seconds: float) -> bool:
        now_ms = int(self.clock.monotonic() * 1000)
        row = (job.offset, job.delivery_count, job.owner, now_ms, now_ms + int(seconds * 1000))
        self.journal.append(encode_events(CLAIM, [row]))
        self.refresh()
        return self.state.is_leased(job)

    def nack(self, job: Job, due_ms: int) -> bool:
        # Under the lock: its position among the other events decides whether it came too late.
        state = self.state
        with self.lock:
            self.check_open()
            self.refresh()
            if not job.is_open or not state.is_leased(job):
                return False
            is_leased = True
            try:
                row = (job.offset, job.delivery_count, due_ms, job.owner)
                end = self.journal.append(encode_events(RETRY, [row]))
                self._read_on(self._journal_end, end - 1)
                is_leased = state.is_leased(job)
            finally:
                if is_leased:
                    job.is_open = False
                    state.end_lease(job)
                    state.put_back((), (job.offset,))  # when its claim expires, should no process see this event
            self.refresh()
            if is_leased and state.retries.get(job.offset) == (job.delivery_count, due_ms):
                state.give_back(job.offset, job.delivery_count, due_ms)
            self.wake_getters()
        return is_leased

    # --- wait, end --------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        end = self.items.high_watermark
        # During an open transaction the log ends beyond the readable part, and so will the marker.
        if self.readable_end()[0] > self.state.position:
            return
        self.lock.release()
        try:
            self.items.reads.wait_beyond(end, min(seconds, POLL_SECONDS), committed=False)
        finally:
            self.lock.acquire()

    def held_count(self, now: float) -> int:
        state = self.state
        claimed = sum(
            claim.expires_ms > now * 1000 and offset not in state.busy for offset, claim in state.claims.items()
        )
        return claimed + len(state.busy)

    def leased_now(self, now: float) -> int:
        return sum(claim.expires_ms > now * 1000 for claim in self.state.claims.values())

    def give_up_leases(self) -> None:
        leases = self.state.leases.held()
        if leases:
            self.journal.append_rows(RETRY, [(lease.offset, lease.delivery_count, 0, lease.owner) for lease in leases])


def _deliveries(retry: tuple[int, int] | None) -> int:
    return 0 if retry is None else retry[0]
