"""The state of a queue's items according to its journal. No I/O, no clock, no threads.

An offset identifies an item. Everything below ``floor`` is done, and above it whatever is in ``done`` or ``done_runs``.
If an item was copied to the end, either the original counts or the copy: the copy does from the event on that says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Generic, TypeVar

from kstore.queue._known import apply_plain, finish_all, forget_run
from kstore.queue.events import (
    ACKED,
    BOOT,
    CLAIM,
    DONE,
    END,
    FLOOR,
    GAP,
    HELD,
    MOVED,
    MOVED_BY,
    RETRY,
    SNAPSHOT,
    Event,
    decode_events,
)
from kstore.queue.leases import Claim, Lease, Leases, Retry
from kstore.queue.offsets import OffsetRuns, OffsetSet
from kstore.queue.waiting import Waiting

# The owner in events of snapshots and late events of a lease: only their counts may change what is known.
OF_SNAPSHOT = 2**64 - 1
NO_BOOT = (0, 0)
# As many items in a row, or more, are a run: what an event says takes little more memory than the event.
RUN_COUNT_MIN = 8

LeaseT = TypeVar("LeaseT", bound=Lease)


class KnownItems(Generic[LeaseT]):
    """What is known about the items of one queue. Not thread-safe."""

    def __init__(self, *, is_shared: bool = False) -> None:
        """``is_shared``: other processes also lease and finish items, and only the journal tells."""
        self.is_shared = is_shared
        self.floor: int = 0
        self.done: set[int] = set()
        # More of them, none of which is in ``done``.
        self.done_runs: OffsetRuns = OffsetRuns()
        # Offsets from the position on that hold no item, such as markers and aborted items; none of them is
        # done. Complete below ``counted_end``.
        self.absent: OffsetSet = OffsetSet()
        self.counted_end: int = 0
        # The offset of the next item to read.
        self.position: int = 0
        self.retries: dict[int, Retry] = {}
        # Copies that count, each with its original; then copies that may count later, by copy and by original.
        self.moved: dict[int, int] = {}
        self.unconfirmed: dict[int, int] = {}
        self._copies: dict[int, set[int]] = {}
        # Unknown copies below it count: the damaged part of the journal may have said so.
        self.gap_end: int = 0
        self.leases: Leases[LeaseT] = Leases()
        self.claims: dict[int, Claim] = {}
        # The boot of the machine to which the claims belong.
        self.boot: tuple[int, int] = NO_BOOT
        # Items that are not available for a while: being acked, moved, or made a dead letter.
        self.busy: set[int] = set()
        # Deliveries that are not in the journal yet, each with the owner of its lease.
        self.unnoted: dict[int, tuple[int, int]] = {}
        # Unreadable offsets.
        self.damaged: set[int] = set()
        # The journal has no events about items from here on.
        self._known_stop = 0
        # Items that were read and may be delivered again, now or later.
        self.waiting: Waiting = Waiting()
        self._waits = self.waiting.places

    # --- events -----------------------------------------------------------------------------------------------------

    def apply(self, kind: bytes, row: Sequence[int]) -> None:
        """Applies one event of the journal."""
        if kind in (BOOT, SNAPSHOT, HELD):
            if kind == BOOT:
                self._begin_boot((row[0], row[1]))
            return
        self._known_stop = max(
            self._known_stop,
            row[0] + (row[1] if kind in (DONE, ACKED) else 1),
            row[1] + 1 if kind in (MOVED, MOVED_BY) else 0,
        )
        if kind == DONE:
            first, count = row
            self.finish_range(first, first + count)
        elif kind == ACKED:
            self._acked(*row)
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
        elif kind == GAP:
            self._count_copies(row[0])

    def apply_record(self, value: bytes) -> bool:
        """Applies the events of one record of the journal; returns whether a GAP is one of them. An interrupt may
        leave some of them: to apply the record again does the rest.

        Raises: CorruptFileError, and nothing is applied.
        """
        if apply_plain(self, value):
            return False
        events = list(decode_events(value))
        has_gap = False
        for kind, row in events:
            self.apply(kind, row)
            has_gap |= kind == GAP
        return has_gap

    def restore(self, events: Iterable[Event]) -> None:
        """Applies a whole snapshot to an empty or an older state."""
        claims, self.claims = self.claims, {}
        for kind, row in events:
            if kind == HELD:
                offset, count, owner, claimed_ms, expires_ms = row
                self._claim(offset, count, owner, claimed_ms, expires_ms)
            elif kind == SNAPSHOT:
                self.boot = (row[4], row[5])
            else:
                self.apply(kind, (*row[:3], 0) if kind == RETRY else row)
        for offset in claims.keys() - self.claims.keys():
            self._set_free(offset)

    def raise_floor(self, floor: int) -> None:
        """Marks everything below ``floor`` as done."""
        if floor <= self.floor:
            return
        self.floor = floor
        self.position = max(self.position, floor)
        for known in (self.done, self.damaged, self.busy):
            known.difference_update([offset for offset in known if offset < floor])
        self.done_runs.keep_from(floor)
        tables: list[dict[int, Any]] = [self.retries, self.moved, self.claims, self.unnoted]
        for table in tables:
            for offset in [offset for offset in table if offset < floor]:
                del table[offset]
        for offset in [offset for offset in self._waits if offset < floor]:
            self.waiting.discard(offset)
        self.leases.forget_below(floor)
        self.absent.keep_from(floor)
        for copy in [copy for copy in self.unconfirmed if copy < floor]:
            self._no_copy(copy)
        self.finish([copy for copy, old in self.unconfirmed.items() if old < floor])

    def cut_to(self, end: int) -> None:
        """The items end at ``end``; other items will get the offsets from there on. Called before anything is read."""
        self.floor = min(self.floor, end)
        self.position = min(self.position, end)
        self.done = {offset for offset in self.done if offset < end}
        self.done_runs.keep_below(end)
        self.absent, self.counted_end = OffsetSet(), 0
        tables: list[dict[int, Any]] = [self.retries, self.moved, self.claims]
        for table in tables:
            for offset in [offset for offset in table if offset >= end]:
                del table[offset]
        for offset in [offset for offset in self._waits if offset >= end]:
            self.waiting.discard(offset)
        self._known_stop = min(self._known_stop, end)
        self.gap_end = min(self.gap_end, end)

    @property
    def known_end(self) -> int:
        """The end of the items that the journal knows."""
        known = max(max(table, default=-1) for table in (self.done, self.retries, self.moved))
        return max(self.floor, self.gap_end, 1 + known, *self.done_runs.borders[-1:])

    # --- leases -----------------------------------------------------------------------------------------------------

    def _retried(self, offset: int, retry: Retry, owner: int) -> None:
        if self.is_done(offset):
            return
        known, claim = self.retries.get(offset), self.claims.get(offset)
        if owner == OF_SNAPSHOT and (known is not None or claim is not None):
            if known is not None and known.deliveries < retry.deliveries:
                self.retries[offset] = Retry(retry.deliveries, known.due_ms)  # it counted leases that were returned
            return
        if claim is not None:
            if owner and claim.owner != owner:
                return  # another holder has it now
            del self.claims[offset]
        elif 0 < owner < OF_SNAPSHOT and known is not None:
            retry = Retry(retry.deliveries, known.due_ms)  # a late event: another holder had the item since
        self.retries[offset] = retry if known is None else Retry(max(known.deliveries, retry.deliveries), retry.due_ms)
        if offset < self.position:
            self._wait(offset, retry.due_ms)

    def _claim(self, offset: int, count: int, owner: int, now_ms: int, expires_ms: int) -> None:
        claim = self.claims.get(offset)
        if self.is_done(offset) or (claim is not None and claim.owner != owner and claim.expires_ms > now_ms):
            return
        self.claims[offset] = Claim(owner, count, expires_ms, now_ms)
        lease = self.leases.of(offset)
        if lease is not None and lease.owner != owner:
            self.leases.end(lease)  # it was over, and another process has the item now
            self.waiting.put_claimed(offset, expires_ms)
        elif offset in self._waits:
            self.waiting.put_claimed(offset, expires_ms)
        known = self.retries.get(offset)
        if known is None or known.deliveries < count:
            self.retries[offset] = Retry(count, 0 if known is None else known.due_ms)

    def _begin_boot(self, boot: tuple[int, int]) -> None:
        """The machine was restarted: all leases are over, and their times mean nothing now."""
        if boot == self.boot:
            return
        self.boot = boot
        claims, self.claims = self.claims, {}
        for offset in claims:
            self._set_free(offset)

    def _set_free(self, offset: int) -> None:
        """Ends every lease of the item."""
        if (lease := self.leases.of(offset)) is not None:
            self.leases.end(lease)
        if offset < self.position and not self.is_done(offset):
            self._wait(offset, self.retries.get(offset, Retry(0, 0)).due_ms)

    def _wait(self, offset: int, due_ms: int) -> None:
        """Makes the item available again, unless it is held or leased here: then it becomes available afterwards."""
        if offset not in self.busy and self.leases.of(offset) is None:
            self.waiting.put(offset, due_ms)

    def hold(self, offsets: Iterable[int]) -> None:
        """Makes items unavailable until ``let_go``, or until they are done."""
        self.busy.update(offsets)
        for offset in offsets if self._waits else ():
            self.waiting.discard(offset)

    def let_go(self, offsets: Iterable[int]) -> None:
        """Makes held items that are not done available to the next get, unless they are leased."""
        self.busy.difference_update(offsets)
        for offset in offsets:
            if not self.is_done(offset) and self.leases.of(offset) is None:
                self.waiting.put(offset)

    # --- copies -----------------------------------------------------------------------------------------------------

    def _move(self, old: int, new: int) -> None:
        self._make_count(((old, new),))

    def _move_by(self, old: int, new: int, owner: int) -> None:
        """``_move`` by the process that leased the item then; the event may come late."""
        claim = self.claims.get(old)
        if self.moved.get(new) == old or (claim is not None and claim.owner != owner):
            return  # known, or another holder has it now: the copy is done when the item is
        if self.is_done(old):
            self.finish((new,))
            return
        if (known := self.retries.get(old)) is not None and not self.is_done(new):
            self.retries[new] = known
        self._move(old, new)

    def _acked(self, first: int, count: int) -> None:
        stop = first + count
        # They were copied in the meantime, because their leases were over.
        late = [new for new, old in self.moved.items() if first <= old < stop and self.is_done(old)]
        if late:
            self.finish(late)
        self.finish_range(first, stop)

    def _make_count(self, moves: Sequence[tuple[int, int]]) -> None:
        """Makes copies count in place of their originals, and wait if they were read. ``moves``: original and copy.

        Each step can be repeated, after an interrupt.
        """
        for old, new in moves:
            if not self.is_done(new):
                self.moved[new] = old
                if new in self.unconfirmed:
                    self._wait(new, self.retries.get(new, Retry(0, 0)).due_ms)
        for old, new in moves:
            if copies := self._copies.get(old):
                copies.discard(new)  # what is left has no effect when the original is done
        self.finish([old for old, _ in moves])
        for old, new in moves:
            self.unconfirmed.pop(new, None)
            self._copies.pop(old, None)  # empty, if the original is below the floor

    def _doubt(self, copy: int, old: int) -> None:
        """Notes a copy that was read and may count later."""
        self.unconfirmed[copy] = old
        copies = self._copies.get(old)
        if copies is None:
            # No ``setdefault``: refused memory there, CPython 3.13 counts an entry that it has not stored.
            copies = self._copies[old] = set()
        copies.add(copy)

    def _no_copy(self, copy: int) -> None:
        """Removes a copy from those that may count later."""
        old = self.unconfirmed.get(copy)
        if old is None:
            return
        if (copies := self._copies.get(old)) is not None:
            copies.discard(copy)
            if not copies:
                self._copies.pop(old, None)
        # Last: the call after an interrupt finds it again.
        self.unconfirmed.pop(copy, None)

    def _count_copies(self, end: int) -> None:
        """It is lost which copies below ``end`` count, so all do: an item may come twice, but none is lost."""
        self.gap_end = max(self.gap_end, end)
        found = [(old, new) for new, old in self.unconfirmed.items() if new < end]
        self._make_count(found)

    # --- done -------------------------------------------------------------------------------------------------------

    def is_done(self, offset: int) -> bool:
        if offset < self.floor or offset in self.done:
            return True
        runs = self.done_runs
        return offset in runs if runs.borders else False

    @property
    def done_count(self) -> int:
        """The number of items above the floor that are done."""
        return len(self.done) + self.done_runs.count

    def is_live(self, offset: int, moved_from: int | None) -> bool:
        """Whether an item is not done, and no copy without effect."""
        return not self.is_done(offset) and (moved_from is None or offset in self.moved or offset < self.gap_end)

    def _knows_more(self) -> bool:
        """Whether more than ``done`` may name an item; the held ones are left out."""
        return bool(self.retries or self.moved or self.claims or self.unconfirmed or self._copies or self._waits)

    def finish(self, offsets: Iterable[int]) -> None:
        """Marks items as done and forgets everything else about them."""
        if finish_all(self, offsets):
            return
        done, runs, absent = self.done, self.done_runs, self.absent
        for offset in offsets:
            if offset >= self.floor:
                if not runs.borders or offset not in runs:
                    done.add(offset)
                if absent:
                    absent.discard(offset)
                if self.busy or self._knows_more():
                    self._forget(offset)
        self._advance()

    def finish_range(self, first: int, stop: int) -> None:
        """``finish``, for the items from ``first`` to below ``stop``, whatever their number."""
        first = max(first, self.floor)
        if stop - first < RUN_COUNT_MIN:
            self.finish(range(first, stop))
            return
        # First: they are done from here on, wherever an interrupt comes. Each step can be repeated.
        self.done_runs.add(first, stop)
        self.done.difference_update(_within(self.done, first, stop))
        if self.absent:
            self.absent.remove_range(first, stop)
        if not (self.moved or self.unconfirmed or self._copies):
            forget_run(self, first, stop)
        elif self.busy or self._knows_more():
            tables: list[Collection[int]] = [self.retries, self.unnoted, self.moved, self.unconfirmed, self._copies]
            tables += [self.claims, self.busy, self._waits]
            for offset in sorted({offset for table in tables for offset in _within(table, first, stop)}):
                self._forget(offset)
        self._advance()

    def finish_fast(self, offsets: Sequence[int]) -> None:
        """``finish``, for many items, none of which is in a run that is done."""
        # The floor may have passed some since they were checked: their log's start has moved.
        is_past = min(offsets, default=self.floor) < self.floor
        if is_past or self.is_shared or self._knows_more():
            self.finish(offsets)
            return
        if self.busy:
            self.busy.difference_update(offsets)
        self.done.update(offsets)
        self._advance()

    def finish_run(self, first: int, count: int) -> None:
        """``finish``, for ``count`` items from ``first`` on, none of which is held or done."""
        is_past = first < self.floor
        if is_past or self.is_shared or self._knows_more():
            self.finish_range(first, first + count)
            return
        if first == self.floor:
            self.floor = first + count
        elif count < RUN_COUNT_MIN:
            self.done.update(range(first, first + count))
        else:
            self.done_runs.add(first, first + count)
        if self.done or self.done_runs.borders or self.absent:
            self._advance()

    def count_gap(self, first: int, stop: int) -> None:
        """Notes that the unread offsets from ``first`` to below ``stop`` hold no items."""
        first = max(first, self.floor)
        if first >= stop:
            return
        self.absent.add_range(first, stop)
        # Another process may have read past them, and marked them as done in a snapshot.
        for offset in _within(self.done, first, stop):
            self.absent.discard(offset)
        for run in self.done_runs:
            self.absent.remove_range(max(run[0], first), min(run[1], stop))
        self._advance()

    def _forget(self, offset: int) -> None:
        self.retries.pop(offset, None)
        self.unnoted.pop(offset, None)
        self.moved.pop(offset, None)
        self._no_copy(offset)
        if self.claims.pop(offset, None) is not None and (lease := self.leases.of(offset)) is not None:
            self.leases.end(lease)
        self.busy.discard(offset)
        self.waiting.discard(offset)
        copies = self._copies.get(offset, set())
        for copy in tuple(copies):
            self.unconfirmed.pop(copy, None)
            if copy >= self.floor:
                # Not ``finish``, which raises the floor: the call after an interrupt would take ``offset`` for done.
                if copy not in self.done_runs:
                    self.done.add(copy)
                self.absent.discard(copy)
                self._forget(copy)
            copies.discard(copy)  # last: the call after an interrupt finds it again
        self._copies.pop(offset, None)

    def _advance(self) -> None:
        floor, done, runs, absent = self.floor, self.done, self.done_runs, self.absent
        while True:
            while floor in done or (absent and floor in absent):
                # The floor comes first: an interrupt is served after a call, and must not undo what is done.
                self.floor = floor + 1
                done.discard(floor)
                floor += 1
            # A run may lie below the floor if an interrupt came before it was removed.
            if not runs.borders or runs.borders[0] > floor:
                break
            self.floor = floor = max(floor, runs.borders[1])
            runs.keep_from(floor)
        if absent:
            absent.keep_from(floor)
        if self.position < floor:
            self.position = floor


def _within(offsets: Collection[int], first: int, stop: int) -> list[int]:
    """Those from ``first`` to below ``stop``; looks at the fewer ones."""
    if stop - first < len(offsets):
        return [offset for offset in range(first, stop) if offset in offsets]
    return [offset for offset in offsets if first <= offset < stop]
