"""What a queue knows of its items: which are done, which are leased, and which is next. No I/O, no clock, no threads.

An item is known by its offset. Everything below ``floor`` is done, and above it what is in ``done``. Each other item
below ``position`` is in one place: ``fresh`` (read, and never delivered), leased here, or in one of three heaps: those
that may be delivered again, those that wait for a time of day, those that somebody else leases. The heaps may name an
item that is not theirs any more; it is passed over when it is its turn.

Times: ``now`` is seconds of the monotonic clock, for leases; ``now_ms`` is ms since the epoch, for delays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Generic, TypeVar

from kstore.queue.events import CLAIM, DONE, END, FLOOR, MOVED, MOVED_BY, RETRY, ROWS_MAX, encode_events, ranges_of
from kstore.queue.leases import Claim, Item, Lease, Retry

__all__ = ["OF_SNAPSHOT", "QueueState"]

# The owner that a snapshot, or a late word of a lease, names: all but the count yields to what is known.
OF_SNAPSHOT = 2**64 - 1


ItemT = TypeVar("ItemT", bound=Item)
LeaseT = TypeVar("LeaseT", bound=Lease)


class QueueState(Generic[ItemT, LeaseT]):
    """The state of one queue. Not thread-safe."""

    def __init__(self, *, max_deliveries: int = 0, is_shared: bool = False) -> None:
        """``max_deliveries``: so often an item is delivered before it is a dead letter; 0 for no limit.

        ``is_shared``: items are also leased, and done, by others, who say so in the journal only.
        """
        self.max_deliveries = max_deliveries
        self.is_shared = is_shared
        self.floor = 0
        self.done: set[int] = set()
        # The next offset that was not read yet.
        self.position = 0
        self.fresh: deque[ItemT] = deque()
        self.retries: dict[int, Retry] = {}
        # Copies that count, each with the item that it is of; and those of which that is not known yet.
        self.moved: dict[int, int] = {}
        self.unconfirmed: dict[int, int] = {}
        # By how long they are, in the order in which they end.
        self.leases: dict[float, dict[int, LeaseT]] = {}
        self.claims: dict[int, Claim] = {}
        # What is out of reach for a while: being acknowledged, moved, or made a dead letter.
        self.busy: set[int] = set()
        # Delivered too often, for whoever makes dead letters of them.
        self.dead: deque[int] = deque()
        # Deliveries that the journal does not know of yet, each with the owner of its lease.
        self.unnoted: dict[int, tuple[int, int]] = {}
        # Offsets that cannot be read.
        self.damaged: set[int] = set()
        # The journal says nothing of what lies from here on.
        self._known_stop = 0
        self._again: list[int] = []
        self._delayed: list[tuple[int, int]] = []
        self._claimed: list[tuple[int, int]] = []

    # --- what the journal says --------------------------------------------------------------------------------------

    def apply(self, kind: bytes, row: Sequence[int]) -> None:
        """Takes in one event of the journal."""
        self._known_stop = max(
            self._known_stop, row[0] + (row[1] if kind == DONE else 1), row[1] if kind in (MOVED, MOVED_BY) else 0
        )
        if kind == DONE:
            first, count = row
            self.finish(range(first, first + count))
        elif kind == RETRY:
            offset, count, due_ms, owner = row
            self._retried(offset, Retry(count, due_ms), owner)
        elif kind == MOVED:
            self._move(*row)
        elif kind == MOVED_BY:
            self._move_by(*row)
        elif kind == CLAIM:
            self._claim(*row)
        elif kind == FLOOR:
            self.raise_floor(row[0])
        elif kind == END:
            self.cut_to(row[0])

    def raise_floor(self, floor: int) -> None:
        """Everything below ``floor`` is done."""
        if floor <= self.floor:
            return
        self.floor = floor
        self.position = max(self.position, floor)
        for known in (self.done, self.damaged, self.busy):
            known.difference_update([offset for offset in known if offset < floor])
        tables: list[dict[int, Any]] = [self.retries, self.moved, self.unconfirmed, self.claims, self.unnoted]
        for table in [*tables, *self.leases.values()]:
            for offset in [offset for offset in table if offset < floor]:
                del table[offset]
        self._advance()

    def cut_to(self, end: int) -> None:
        """The items end at ``end``: offsets from there on will be those of other items. Before anything is read."""
        self.floor = min(self.floor, end)
        self.position = min(self.position, end)
        self.done = {offset for offset in self.done if offset < end}
        tables: list[dict[int, Any]] = [self.retries, self.moved, self.claims]
        for table in tables:
            for offset in [offset for offset in table if offset >= end]:
                del table[offset]
        self._known_stop = min(self._known_stop, end)

    @property
    def known_end(self) -> int:
        """The end of what the journal speaks of."""
        return max(self.floor, 1 + max(max(table, default=-1) for table in (self.done, self.retries, self.moved)))

    def _retried(self, offset: int, retry: Retry, owner: int) -> None:
        if self.is_done(offset):
            return
        known, claim = self.retries.get(offset), self.claims.get(offset)
        if owner == OF_SNAPSHOT and (known is not None or claim is not None):
            if known is not None and known.deliveries < retry.deliveries:
                self.retries[offset] = Retry(retry.deliveries, known.due_ms)  # it counted leases that were given up
            return
        if claim is not None:
            if owner and claim.owner != owner:
                return  # somebody else has it since
            del self.claims[offset]
        elif 0 < owner < OF_SNAPSHOT and known is not None:
            retry = Retry(retry.deliveries, known.due_ms)  # it comes late: somebody else has had it since
        self.retries[offset] = retry if known is None else Retry(max(known.deliveries, retry.deliveries), retry.due_ms)
        if offset < self.position:
            self._wait(offset, retry.due_ms)

    def _claim(self, offset: int, count: int, owner: int, now_ms: int, expires_ms: int) -> None:
        claim = self.claims.get(offset)
        if self.is_done(offset) or (claim is not None and claim.owner != owner and claim.expires_ms > now_ms):
            return
        # A snapshot has the time with a minus, by which it is void beside any other claim.
        self.claims[offset] = Claim(owner, count, expires_ms, abs(now_ms))
        lease = self.lease_of(offset)
        if lease is not None and lease.owner != owner:
            self.end_lease(lease)  # it was over, and somebody else has the item now
            heappush(self._claimed, (expires_ms, offset))
        known = self.retries.get(offset)
        if known is None or known.deliveries < count:
            self.retries[offset] = Retry(count, 0 if known is None else known.due_ms)

    def _move(self, old: int, new: int) -> None:
        # First: copies of an item that is done do not count.
        was_read = self.unconfirmed.pop(new, None) is not None
        if not self.is_done(new):
            self.moved[new] = old
        self.finish((old,))
        if was_read:
            self._wait(new, self.retries.get(new, Retry(0, 0)).due_ms)

    def _move_by(self, old: int, new: int, owner: int) -> None:
        """As ``_move``, by who leased the item then, and may say so late."""
        claim = self.claims.get(old)
        if self.moved.get(new) == old or (claim is not None and claim.owner != owner):
            return  # known, or somebody else has it since: the copy is done when the item is
        if self.is_done(old):
            self.finish((new,))
            return
        if (known := self.retries.get(old)) is not None and not self.is_done(new):
            self.retries[new] = known
        self._move(old, new)

    def snapshot(self) -> list[bytes]:
        """All that the journal has to say of items that are not done: what came before is not needed behind it."""
        groups: list[tuple[bytes, Sequence[tuple[int, ...]]]] = [
            (FLOOR, [(self.floor,)]),
            (DONE, ranges_of(self.done)),
            (MOVED, sorted((old, new) for new, old in self.moved.items())),
            (
                RETRY,
                sorted(
                    (offset, *retry, OF_SNAPSHOT) for offset, retry in self.retries.items() if not self.is_done(offset)
                ),
            ),
            (
                CLAIM,
                [
                    (offset, claim.deliveries, claim.owner, -claim.claimed_ms, claim.expires_ms)
                    for offset, claim in self.claims.items()
                ],
            ),
        ]
        return [
            encode_events(kind, rows[at : at + ROWS_MAX])
            for kind, rows in groups
            for at in range(0, len(rows), ROWS_MAX)
        ]

    # --- what the items say -----------------------------------------------------------------------------------------

    def offer(self, item: ItemT, *, due_ms: int = 0, count: int = 0, moved_from: int | None = None) -> None:
        """The next item was read; it was delivered ``count`` times, or is due later. Missing offsets are no items."""
        offset = item.offset
        self.skip_to(offset)
        self.position = offset + 1
        if self.is_done(offset):
            return
        known = self.retries.get(offset)
        if known is not None:
            # Who knows of it by a claim only does not know when it is due.
            count, due_ms = max(count, known.deliveries), max(due_ms, known.due_ms)
        if count or due_ms:
            self.retries[offset] = Retry(count, due_ms)
        if moved_from is not None and offset not in self.moved:
            if self.is_done(moved_from):
                self.finish((offset,))  # the copy of somebody who died before it counted
            else:
                self.unconfirmed[offset] = moved_from
        elif count or due_ms:
            self._wait(offset, due_ms)
        else:
            self.fresh.append(item)

    def offer_fresh(self, items: Sequence[ItemT]) -> None:
        """As ``offer``, of items without any gap that were never delivered; nothing may be known of them."""
        assert items[0].offset == self.position
        self.position += len(items)
        self.fresh.extend(items)

    def skip_to(self, offset: int) -> None:
        """What lies from the position to ``offset`` is no item: markers, aborted transactions."""
        if self.position < offset:
            self.finish(gap for gap in range(self.position, offset) if gap not in self.damaged)
            self.position = max(self.position, offset)

    def damage(self, first: int, last: int) -> None:
        """Offsets that cannot be read: they are not delivered, and not done either."""
        self.skip_to(first)
        self.damaged.update(offset for offset in range(first, last + 1) if not self.is_done(offset))
        self.position = max(self.position, last + 1)

    @property
    def is_fresh_from_here(self) -> bool:
        """Whether nothing is known of the items that come next."""
        return self.position >= self._known_stop

    # --- deliver ----------------------------------------------------------------------------------------------------

    def take(self, count: int, now: float, now_ms: int) -> tuple[list[ItemT], list[tuple[int, int]]]:
        """The next ``count`` items that may be delivered: fresh ones, and others as (offset, deliveries so far).

        The caller leases them.
        """
        again: list[tuple[int, int]] = []
        if self.leases:
            self.expire(now)
        if self._delayed or self._claimed:
            self._fall_due(now, now_ms)
        while self._again and len(again) < count:
            offset = heappop(self._again)
            if self._is_free(offset, now, now_ms):
                again.append((offset, self.retries.get(offset, Retry(0, 0)).deliveries))
                self.busy.add(offset)  # the heap may name it twice
        fresh: list[ItemT] = []
        queue, wanted = self.fresh, count - len(again)
        if not self.is_shared:
            fresh = [queue.popleft() for _ in range(min(wanted, len(queue)))]
        while queue and len(fresh) < wanted:
            item = queue.popleft()
            if self._is_free(item.offset, now, now_ms):
                fresh.append(item)
        if again:
            self.busy.difference_update(offset for offset, _ in again)
        return fresh, again

    def _is_free(self, offset: int, now: float, now_ms: int) -> bool:
        """Whether an item may be delivered; one that may be later is put where it waits."""
        if self.is_done(offset) or offset in self.busy or offset in self.unconfirmed or self.lease_of(offset):
            return False
        claim = self.claims.get(offset)
        if claim is not None and claim.expires_ms > now * 1000:
            heappush(self._claimed, (claim.expires_ms, offset))
            return False
        retry = self.retries.get(offset)
        if retry is not None:
            if retry.due_ms > now_ms:
                heappush(self._delayed, (retry.due_ms, offset))
                return False
            if self._is_spent(retry.deliveries):
                self._bury(offset)
                return False
        return True

    def take_one(self, now: float) -> ItemT | None:
        """The next item where that is simple: it is fresh, and nothing else could come before it; else None."""
        if self.is_shared or self._again or self._delayed or not self.fresh:
            return None
        for group in self.leases.values():
            for lease in group.values():
                if lease.deadline <= now:
                    return None
                break
        return self.fresh.popleft()

    def put_back(self, fresh: Sequence[ItemT], again: Iterable[int]) -> None:
        """Items that were taken are not leased after all."""
        self.fresh.extendleft(reversed(fresh))
        for offset in again:
            heappush(self._again, offset)

    def lease(self, leases: Sequence[LeaseT], seconds: float) -> None:
        """Items that were taken are leased, for as long each."""
        group = self.leases.get(seconds)
        if group is None:
            group = self.leases[seconds] = {}
        for lease in leases:
            group[lease.offset] = lease

    def lease_of(self, offset: int) -> LeaseT | None:
        for group in self.leases.values():
            if (lease := group.get(offset)) is not None:
                return lease
        return None

    def is_leased(self, lease: LeaseT) -> bool:
        """Whether ``lease`` holds: it was not given back, and nobody else has the item."""
        group = self.leases.get(lease.seconds)
        return group is not None and group.get(lease.offset) is lease

    def may_finish(self, lease: LeaseT) -> bool:
        """Whether who had ``lease`` may still say that the item is done: it is over, but nobody was given the item."""
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
        group = self.leases[lease.seconds]
        del group[lease.offset]
        if not group and len(self.leases) > 1:
            del self.leases[lease.seconds]

    def expire(self, now: float) -> int:
        """Ends the leases that are over; their items may be delivered again. Returns how many."""
        count = 0
        for group in list(self.leases.values()):
            while group:
                lease = next(iter(group.values()))
                if lease.deadline > now:
                    break
                self.end_lease(lease)
                self.give_back(lease.offset, lease.delivery_count, 0)
                self.unnoted[lease.offset] = (lease.delivery_count, lease.owner)
                count += 1
        return count

    def give_back(self, offset: int, delivery_count: int, due_ms: int) -> None:
        """An item that was delivered is not done: it may be delivered again, or is a dead letter."""
        self.retries[offset] = Retry(delivery_count, due_ms)
        if self._is_spent(delivery_count):
            self._bury(offset)
        else:
            self._wait(offset, due_ms)

    def _is_spent(self, count: int) -> bool:
        return 0 < self.max_deliveries <= count

    def _bury(self, offset: int) -> None:
        self.busy.add(offset)
        self.dead.append(offset)

    def _wait(self, offset: int, due_ms: int) -> None:
        if due_ms:
            heappush(self._delayed, (due_ms, offset))
        else:
            heappush(self._again, offset)

    def _fall_due(self, now: float, now_ms: int) -> None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            heappush(self._again, heappop(self._delayed)[1])
        while self._claimed and self._claimed[0][0] <= now * 1000:
            heappush(self._again, heappop(self._claimed)[1])

    def wait_seconds(self, now: float, now_ms: int) -> float | None:
        """How long until something that is known may be delivered; None where only something new can be."""
        waits = [next(iter(group.values())).deadline - now for group in self.leases.values() if group]
        if self._delayed:
            waits.append((self._delayed[0][0] - now_ms) / 1000)
        if self._claimed:
            waits.append(self._claimed[0][0] / 1000 - now)
        return max(min(waits), 0.0) if waits else None

    # --- done -------------------------------------------------------------------------------------------------------

    def is_done(self, offset: int) -> bool:
        return offset < self.floor or offset in self.done

    def finish(self, offsets: Iterable[int]) -> None:
        """Items are done; what is known of them is forgotten."""
        done = self.done
        for offset in offsets:
            if offset >= self.floor:
                done.add(offset)
                if self.retries or self.moved or self.claims or self.busy or self.unconfirmed:
                    self._forget(offset)
        self._advance()

    def finish_fast(self, offsets: Sequence[int]) -> None:
        """As ``finish``, for many items."""
        # Where it is shared the journal may have been read meanwhile, and the floor be above them.
        if self.is_shared or self.retries or self.moved or self.claims or self.unconfirmed:
            self.finish(offsets)
            return
        if self.busy:
            self.busy.difference_update(offsets)
        self.done.update(offsets)
        self._advance()

    def finish_one(self, offset: int) -> None:
        """As ``finish``, for one that was busy."""
        if self.retries or self.moved or self.claims or self.unconfirmed:
            self.finish((offset,))
            return
        self.busy.discard(offset)
        if offset != self.floor:
            self.done.add(offset)
            return
        self.floor = offset + 1
        if self.done:
            self._advance()

    def _forget(self, offset: int) -> None:
        self.retries.pop(offset, None)
        self.unnoted.pop(offset, None)
        self.moved.pop(offset, None)
        self.unconfirmed.pop(offset, None)
        if self.claims.pop(offset, None) is not None and (lease := self.lease_of(offset)) is not None:
            self.end_lease(lease)
        self.busy.discard(offset)
        for copy in [copy for copy, old in self.unconfirmed.items() if old == offset]:
            del self.unconfirmed[copy]
            self.finish((copy,))

    def _advance(self) -> None:
        floor, done = self.floor, self.done
        while floor in done:
            done.discard(floor)
            floor += 1
        self.floor = floor
        if self.position < floor:
            self.position = floor

    # --- what it has ------------------------------------------------------------------------------------------------

    @property
    def leased_count(self) -> int:
        return sum(map(len, self.leases.values()))

    def pending_count(self, end: int) -> int:
        """Items below ``end`` that are not done, leased ones too."""
        return end - self.floor - len(self.done)

    @property
    def delayed_count(self) -> int:
        """Items that were read and wait for a time of day."""
        return len({offset for due_ms, offset in self._delayed if self.retries.get(offset, Retry(0, 0))[1] == due_ms})

    def undone(self, stop: int) -> Iterator[int]:
        """The items below ``stop``, and the position, that are not done."""
        return (offset for offset in range(self.floor, min(stop, self.position)) if offset not in self.done)

    def movable(self, stop: int, count_max: int) -> list[int]:
        """The undone items below ``stop``, if they may all be copied and are no more than ``count_max``; else []."""
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
        """Asserts what must be so."""
        assert 0 <= self.floor <= self.position, (self.floor, self.position)
        assert all(offset > self.floor for offset in self.done), (self.floor, sorted(self.done)[:3])
        leased = [offset for group in self.leases.values() for offset in group]
        assert len(leased) == len(set(leased)), "an item is leased twice"
        assert not any(self.is_done(offset) for offset in leased), "what is done is leased"
        fresh = [item.offset for item in self.fresh]
        assert fresh == sorted(set(fresh)), "fresh items are in order"
        places: set[Any] = {*fresh, *leased, *self._again, *self.busy, *self.unconfirmed, *self.damaged}
        places |= {offset for _, offset in (*self._delayed, *self._claimed)}
        lost = [offset for offset in self.undone(self.position) if offset not in places]
        assert not lost, f"items that nobody will deliver: {lost[:5]}"
