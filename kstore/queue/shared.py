"""Leases of a queue that several processes share: each has its own state, built from the same journal.

A lease is then an event too: to get items, a process appends a claim, and applies the journal up to it. All processes
apply the same events in the same order, so the first claim of a free item wins everywhere. The machine's monotonic
clock, which all processes share, decides when a lease expires; so the items of a killed worker come back when its
leases expire. The clock restarts with the machine: the first process to open the queue then records the machine's boot,
which ends all earlier leases.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count

from kstore.queue._jobs import claim_values, owned_jobs
from kstore.queue.events import ACKED, CLAIM, MOVED_BY, RETRY, ROWS_MAX, encode_events
from kstore.queue.job import Job
from kstore.queue.journal import row_values
from kstore.queue.leases import Retry
from kstore.queue.ledger import Ledger

OWNER_BITS = 62


class SharedLeasing:
    """See ``Leasing``. The leases of one of several processes."""

    # It may come late, after the next holder of an expired lease has moved the item.
    done_kind = ACKED

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # The owners of leases, each with the next number: no other process begins near it.
        self._owners = count(random.SystemRandom().getrandbits(OWNER_BITS) + 1)

    # --- claims -----------------------------------------------------------------------------------------------------

    def _times(self, seconds: float) -> tuple[int, int]:
        """When a lease of ``seconds`` begins, which is now, and when it ends: ms of the monotonic clock."""
        now_ms = int(self._ledger.clock.monotonic() * 1000)
        return now_ms, now_ms + int(seconds * 1000)

    def own(self, jobs: list[Job], seconds: float) -> list[Job]:
        ledger, owner = self._ledger, next(self._owners)
        state = ledger.state
        ledger.append(claim_values(CLAIM, jobs, owner, *self._times(seconds), ROWS_MAX))
        owned = owned_jobs(jobs, state.claims, owner)
        if len(owned) < len(jobs):
            # Another process was quicker.
            state.put_back((), {job.offset for job in jobs} - {job.offset for job in owned})
        return owned

    def own_all(self, offsets: Sequence[int], seconds: float) -> int | None:
        ledger, owner = self._ledger, next(self._owners)
        state = ledger.state
        now_ms, expires_ms = self._times(seconds)
        rows = [(offset, _deliveries(state.retries.get(offset)), owner, now_ms, expires_ms) for offset in offsets]
        ledger.append(row_values(CLAIM, rows))
        owned = [offset for offset in offsets if (claim := state.claims.get(offset)) and claim.owner == owner]
        if len(owned) == len(offsets):
            return owner
        if owned:
            returned = [(offset, *state.retries.get(offset, Retry(0, 0)), owner) for offset in owned]
            ledger.append(row_values(RETRY, returned))
        return None

    def extend(self, job: Job, seconds: float) -> bool:
        ledger = self._ledger
        row = (job.offset, job.delivery_count, job.owner, *self._times(seconds))
        ledger.append((encode_events(CLAIM, [row]),))
        return ledger.state.is_leased(job)

    # --- done, moved, returned ----------------------------------------------------------------------------------------

    def write_moved(self, rows: Sequence[tuple[int, int]], owner: int) -> int:
        ledger = self._ledger
        value = encode_events(MOVED_BY, [(*row, owner) for row in rows])
        end = ledger.journal.append(value)
        with ledger.lock:
            if not ledger.takes_in((value,), end):
                ledger.refresh()  # in order: other processes may have taken the items since
        return end

    def nack(self, job: Job, due_ms: int) -> bool:
        # Under the lock: its position among the other events decides whether it came too late.
        ledger, state = self._ledger, self._ledger.state
        with ledger.lock:
            ledger.refresh()
            if not job.is_open or not state.is_leased(job):
                return False
            is_leased = True
            try:
                value = encode_events(RETRY, [(job.offset, job.delivery_count, due_ms, job.owner)])
                end = ledger.journal.append(value)
                ledger.refresh_to(end - 1)
                is_leased = state.is_leased(job)
            finally:
                if is_leased:
                    job.is_open = False
                    try:
                        state.end_lease(job)
                        state.put_back((), (job.offset,))  # when its claim expires, should no process see this event
                    except BaseException:
                        state.lose_order()
                        raise
            if not ledger.takes_in((value,), end):
                ledger.refresh()
            if is_leased and state.retries.get(job.offset) == (job.delivery_count, due_ms):
                state.give_back(job.offset, job.delivery_count, due_ms)
        return is_leased

    # --- count, end ---------------------------------------------------------------------------------------------------

    def held_count(self, now: float) -> int:
        state = self._ledger.state
        claimed = sum(
            claim.expires_ms > now * 1000 and offset not in state.busy for offset, claim in state.claims.items()
        )
        return claimed + len(state.busy)

    def leased_count(self, now: float) -> int:
        return sum(claim.expires_ms > now * 1000 for claim in self._ledger.state.claims.values())

    def give_up(self) -> None:
        leases = self._ledger.state.leases.held()
        if leases:
            rows = [(lease.offset, lease.delivery_count, 0, lease.owner) for lease in leases]
            self._ledger.journal.append_all(row_values(RETRY, rows))


def _deliveries(retry: tuple[int, int] | None) -> int:
    return 0 if retry is None else retry[0]
