"""Which item of a queue is next: what was read, who leases it, when it may be delivered. No I/O, no clock, no threads.

Each item below ``position`` that is not done is in one place: ``fresh`` (read, and not delivered here), leased here,
held (``busy``), or ``waiting``: for the next get, for a time of day, or for the end of another process's lease. A fresh
item may wait too, if another process has returned it. A call that fails midway may leave an item in no place;
``lose_order`` notes that, and the next call finds the item again (``_find_order``).

Times: ``now`` is seconds of the monotonic clock, for leases; ``now_ms`` is ms since the epoch, for delays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

from kstore.queue._known import take_free
from kstore.queue.known import KnownItems
from kstore.queue.leases import Item, Lease, Retry
from kstore.queue.waiting import Wait

ItemT = TypeVar("ItemT", bound=Item)
LeaseT = TypeVar("LeaseT", bound=Lease)

# How many expired leases one call ends: about 20 ms, in which every other call waits for the lock.
EXPIRED_MAX = 5000


class QueueState(KnownItems[LeaseT], Generic[ItemT, LeaseT]):
    """The state of one queue. Not thread-safe."""

    def __init__(self, *, max_deliveries: int = 0, is_shared: bool = False) -> None:
        """``max_deliveries``: an item delivered this many times becomes a dead letter; 0 for no limit."""
        super().__init__(is_shared=is_shared)
        self.max_deliveries = max_deliveries
        self.fresh: deque[ItemT] = deque()
        # Items delivered too many times, to be made dead letters.
        self.dead: deque[int] = deque()

    # --- what the items say -----------------------------------------------------------------------------------------

    def offer(self, item: ItemT, *, due_ms: int = 0, count: int = 0, moved_from: int | None = None) -> None:
        """Adds the next read item, delivered ``count`` times before, due at ``due_ms``. Offsets in between hold no
        item."""
        offset = item.offset
        self.skip_to(offset)
        self.position = offset + 1
        if self.is_done(offset):
            return
        known = self.retries.get(offset)
        if known is not None:
            # A process that knows the item only by a claim does not know when it is due.
            count, due_ms = max(count, known.deliveries), max(due_ms, known.due_ms)
        if count or due_ms:
            self.retries[offset] = Retry(count, due_ms)
        if moved_from is not None and offset not in self.moved:
            if offset < self.gap_end:
                self._move(moved_from, offset)
            elif self.is_done(moved_from):
                self.finish((offset,))  # the copy of a process that died before it counted
                return
            else:
                self._doubt(offset, moved_from)
                return
        if count or due_ms:
            self._wait(offset, due_ms)
            if offset in self.claims and offset in self._waits:
                self.waiting.put_claimed(offset, self.claims[offset].expires_ms)
        else:
            self.fresh.append(item)

    def offer_fresh(self, items: Sequence[ItemT]) -> None:
        """``offer``, for items without a gap that were never delivered; nothing may be known of them."""
        assert items[0].offset == self.position
        self.position += len(items)
        self.fresh.extend(items)

    def skip_to(self, offset: int) -> None:
        """Notes that the offsets from the position to ``offset`` hold no item: markers, aborted transactions."""
        if self.position < offset:
            first = self.position
            for unreadable in sorted(each for each in self.damaged if first <= each < offset):
                self.finish_range(first, unreadable)
                first = unreadable + 1
            self.finish_range(first, offset)
            self.position = max(self.position, offset)

    def damage(self, first: int, last: int) -> None:
        """Notes unreadable offsets: they are neither delivered nor done."""
        self.skip_to(first)
        self.damaged.update(offset for offset in range(first, last + 1) if not self.is_done(offset))
        self.position: int = max(self.position, last + 1)

    def give_up_damaged(self, offsets: Iterable[int]) -> None:
        """Marks unreadable items as done."""
        given_up = [offset for offset in offsets if offset in self.damaged]
        self.damaged.difference_update(given_up)
        self.finish(given_up)

    @property
    def is_past_known(self) -> bool:
        """Whether nothing is known of the items from the position on."""
        return self.position >= self._known_stop

    # --- deliver ----------------------------------------------------------------------------------------------------

    def take(self, count: int, now: float, now_ms: int) -> tuple[list[ItemT], list[tuple[int, int]]]:
        """The next ``count`` items that may be delivered: fresh ones, and others as (offset, deliveries so far).

        The caller leases them.
        """
        again: list[tuple[int, int]] = []
        self._find_order()
        if self.leases:
            self.expire(now)
        if self._waits:
            self.waiting.fall_due(now_ms, now * 1000)
            while len(again) < count and (offset := self.waiting.pop()) is not None:
                if self._is_free(offset, now, now_ms):
                    again.append((offset, self.retries.get(offset, Retry(0, 0)).deliveries))
        fresh: list[ItemT] = []
        queue, wanted = self.fresh, count - len(again)
        if not self.is_shared:
            if len(queue) <= wanted:
                fresh = list(queue)
                queue.clear()
            else:
                fresh = [queue.popleft() for _ in range(wanted)]
        elif queue and wanted:
            fresh = take_free(self, queue, wanted, {offset for offset, _ in again}, now, now_ms)
        return fresh, again

    def _is_free(self, offset: int, now: float, now_ms: int) -> bool:
        """Whether an item may be delivered; one that may be later is moved to where it waits."""
        if self.is_done(offset) or offset in self.busy or offset in self.unconfirmed or self.lease_of(offset):
            return False
        claim = self.claims.get(offset)
        if claim is not None and claim.expires_ms > now * 1000:
            self.waiting.put_claimed(offset, claim.expires_ms)
            return False
        retry = self.retries.get(offset)
        if retry is not None:
            if retry.due_ms > now_ms:
                self.waiting.put(offset, retry.due_ms)
                return False
            if self.is_spent(retry.deliveries):
                self._bury(offset)
                return False
        return True

    @property
    def is_fresh_next(self) -> bool:
        """Whether the next item is the first fresh one, if there is a fresh one and no lease is over."""
        return not (self.is_shared or self._waits) and self.waiting.is_whole

    def put_back(self, fresh: Sequence[ItemT], again: Iterable[int]) -> None:
        """Returns items that were taken but not leased."""
        self.fresh.extendleft(reversed(fresh))
        for offset in again:
            # Another process may have finished it in the meantime.
            if not self.is_done(offset):
                self.waiting.put(offset)

    def lose_order(self) -> None:
        """Notes that a call failed midway: an item may be in no place. The next call finds it."""
        self.waiting.is_whole = False

    def _find_order(self) -> None:
        """Rebuilds the order, after a failure left half a change, from the events of the journal."""
        if self.waiting.is_whole:
            return
        self._advance()  # past what the call had marked as done
        elsewhere = {*(item.offset for item in self.fresh), *(lease.offset for lease in self.leases.held())}
        elsewhere |= self.busy | self.damaged | self.unconfirmed.keys()
        waits = []
        for offset in self.undone(self.position):
            if offset not in elsewhere:
                claim = self.claims.get(offset)
                due_ms = self.retries.get(offset, Retry(0, 0)).due_ms
                waits.append(Wait(offset, due_ms, 0 if claim is None else claim.expires_ms))
        self.waiting.restore(waits)

    def lease(self, leases: Sequence[LeaseT], seconds: float) -> None:
        """Leases items that were taken, all for the same time."""
        self.leases.give_all(leases, seconds)

    def lease_again(self, lease: LeaseT) -> None:
        """Resumes a lease that was ended, until its deadline."""
        self.leases.give_again(lease)

    def lease_of(self, offset: int) -> LeaseT | None:
        return self.leases.of(offset)

    def is_leased(self, lease: LeaseT) -> bool:
        """Whether ``lease`` holds: it was not returned, and no other holder has the item."""
        return self.leases.has(lease)

    def may_finish(self, lease: LeaseT) -> bool:
        """Whether the holder of an expired ``lease`` may still finish the item, because it was given to no other."""
        offset = lease.offset
        if self.is_leased(lease):
            return True
        retry = self.retries.get(offset)
        claim = self.claims.get(offset)
        return (
            retry is not None
            and retry.deliveries == lease.delivery_count
            and not self.is_done(offset)
            and offset not in self.busy
            and (claim is None or claim.owner == lease.owner)
            and self.lease_of(offset) is None
        )

    def end_lease(self, lease: LeaseT) -> None:
        self.leases.end(lease)

    def expire(self, now: float) -> int:
        """Ends the expired leases, at most EXPIRED_MAX of them, whose items may be delivered again. Returns their
        number."""
        over = self.leases.over(now, EXPIRED_MAX)
        if not over:
            return 0
        live = [lease for lease in over if not self.is_done(lease.offset)]
        try:
            # First: a call after an interrupt sets them again, and no delivery is forgotten.
            self.retries.update([(lease.offset, Retry(lease.delivery_count, 0)) for lease in live])
            self.unnoted.update([(lease.offset, (lease.delivery_count, lease.owner)) for lease in live])
            self.leases.end_over(over)
            for lease in live if self.max_deliveries else ():
                if self.is_spent(lease.delivery_count):
                    self._bury(lease.offset)
            self.waiting.put_all([lease.offset for lease in live if lease.offset not in self.busy])
        except BaseException:
            self.lose_order()
            raise
        return len(over)

    def give_back(self, offset: int, delivery_count: int, due_ms: int) -> None:
        """Returns a delivered item: it may be delivered again, or becomes a dead letter; nothing if it is done."""
        if self.is_done(offset):
            return
        try:
            self.retries[offset] = Retry(delivery_count, due_ms)
            if self.is_spent(delivery_count):
                self._bury(offset)
            else:
                self._wait(offset, due_ms)
        except BaseException:
            self.lose_order()
            raise

    def is_spent(self, count: int) -> bool:
        """Whether an item that was delivered ``count`` times is a dead letter, if it is not leased at the moment."""
        return 0 < self.max_deliveries <= count

    def _bury(self, offset: int) -> None:
        self.dead.append(offset)
        self.hold((offset,))

    def wait_seconds(self, now: float, now_ms: int) -> float | None:
        """How many seconds until a known item may be delivered; None if only a new one can be."""
        self._find_order()
        waits = [lease.deadline - now for lease in self.leases.first()]
        if (due_ms := self.waiting.next_due_ms) is not None:
            waits.append((due_ms - now_ms) / 1000)
        if (expiry_ms := self.waiting.next_expiry_ms) is not None:
            waits.append(expiry_ms / 1000 - now)
        return max(min(waits), 0.0) if waits else None

    # --- what it has ------------------------------------------------------------------------------------------------

    @property
    def leased_count(self) -> int:
        return self.leases.count

    def pending_count(self, end: int) -> int:
        """Items below ``end`` that are not done, leased ones too; ``end`` is not below ``counted_end``.

        If the log may have markers or aborted transactions, offsets above ``counted_end`` count as items.
        """
        return max(end - self.floor - self.done_count - len(self.absent), 0)

    @property
    def delayed_count(self) -> int:
        """The number of items that were read and wait for a time of day."""
        self._find_order()
        return self.waiting.delayed_count

    def undone(self, stop: int) -> Iterator[int]:
        """The items below ``stop`` and below the position that are not done."""
        gaps = self.done_runs.gaps(self.floor, min(stop, self.position))
        return (offset for first, after in gaps for offset in range(first, after) if offset not in self.done)

    def movable(self, stop: int, count_max: int) -> list[int]:
        """The undone items below ``stop``, if all of them may be copied and they are at most ``count_max``; else []."""
        if stop > self.position:
            return []
        found = list(islice(self.undone(stop), count_max + 1))
        if len(found) > count_max:
            return []
        if found and self.fresh and self.fresh[0].offset <= found[-1]:
            return []  # it is about to be delivered
        for offset in found:
            is_kept = offset in self.busy or offset in self.damaged or offset in self.unconfirmed
            if is_kept or self.lease_of(offset) is not None or offset in self.claims:
                return []
        return found

    def check(self) -> None:
        """Asserts the invariants."""
        self._find_order()
        assert 0 <= self.floor <= self.position, (self.floor, self.position)
        assert all(offset > self.floor for offset in self.done), (self.floor, sorted(self.done)[:3])
        runs = list(self.done_runs)
        assert all(self.floor < first < stop for first, stop in runs), (self.floor, runs[:3])
        assert not any(offset in self.done_runs for offset in self.done), "what is done is counted twice"
        assert not any(self.is_done(offset) for offset in self.absent), "what is done is counted as absent"
        leased = [lease.offset for lease in self.leases.held()]
        assert len(leased) == len(set(leased)), "an item is leased twice"
        assert not any(self.is_done(offset) for offset in leased), "what is done is leased"
        fresh = [item.offset for item in self.fresh]
        assert fresh == sorted(set(fresh)), "fresh items are in order"
        assert self.is_shared or not set(fresh) & set(leased), "what is leased is offered to the next get"
        self.waiting.check()
        waiting = self._waits.keys()
        assert not any(self.is_done(offset) for offset in waiting), "what is done waits"
        assert not waiting & {*leased, *self.busy}, "what is leased or held waits"
        places = {*fresh, *leased, *waiting, *self.busy, *self.unconfirmed, *self.damaged}
        lost = [offset for offset in self.undone(self.position) if offset not in places]
        assert not lost, f"items that no process will deliver: {lost[:5]}"
