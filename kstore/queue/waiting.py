"""Items that were read and wait: for the next get, for a time of day, or until another process's lease ends. No I/O.

Each is in exactly one of three orders, and leaves it when it is leased, done or held. A MemoryError or an interrupt may
leave half a change. Then ``is_whole`` becomes False and the orders no longer change; their owner rebuilds them from the
events of the journal before it uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sortedcontainers import SortedList


class Wait(NamedTuple):
    """An item that may be delivered: now, from ``due_ms``, or when another process's lease ends, at ``expires_ms``."""

    offset: int
    due_ms: int = 0
    expires_ms: int = 0


class ByExpiry:
    """Offsets by the end of another process's lease: those of one call share it, and an entry of the order."""

    __slots__ = ("ends", "groups")

    def __init__(self) -> None:
        self.groups: dict[int, set[int]] = {}
        self.ends: SortedList[int] = SortedList()  # of the groups

    def __bool__(self) -> bool:
        return bool(self.groups)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The keys."""
        return ((expires_ms, offset) for expires_ms in self.ends for offset in self.groups[expires_ms])

    def add(self, key: tuple[int, int]) -> None:
        """``key``: when the lease ends, and the offset."""
        self.add_all(key[0], key[1:])

    def update(self, keys: Iterable[tuple[int, int]]) -> None:
        for key in keys:
            self.add(key)

    def add_all(self, expires_ms: int, offsets: Iterable[int]) -> None:
        group = self.groups.get(expires_ms)
        if group is None:
            self.groups[expires_ms] = group = set()
            self.ends.add(expires_ms)
        group.update(offsets)

    def remove(self, key: tuple[int, int]) -> None:
        expires_ms, offset = key
        group = self.groups[expires_ms]
        group.remove(offset)
        if not group:
            del self.groups[expires_ms]
            self.ends.remove(expires_ms)


class Waiting:
    """The orders. Not thread-safe."""

    def __init__(self) -> None:
        # Which order has an item, and its key there. Always the same object: its owner tests whether it is empty.
        self.places: dict[int, tuple[Any, Any]] = {}
        self.is_whole: bool = True
        self._clear()

    def _clear(self) -> None:
        self.places.clear()
        self._ready = SortedList()  # offsets
        self._delayed = SortedList()  # (due_ms, offset)
        self._claimed = ByExpiry()

    def put(self, offset: int, due_ms: int = 0) -> None:
        """Makes the item wait until ``due_ms``, or with 0 for the next get, wherever it was before."""
        if due_ms:
            self._put(offset, self._delayed, (due_ms, offset))
        else:
            self._put(offset, self._ready, offset)

    def put_all(self, offsets: Sequence[int]) -> None:
        """``put`` of many items for the next get, faster where none of them waits."""
        if not self.places.keys().isdisjoint(offsets):
            for offset in offsets:
                self.put(offset)
        elif self.is_whole:
            self.is_whole = False
            self.places.update((offset, (self._ready, offset)) for offset in offsets)
            self._ready.update(offsets)
            self.is_whole = True

    def put_claimed(self, offset: int, expires_ms: int) -> None:
        """Makes the item wait until another process's lease ends, wherever it was before."""
        self._put(offset, self._claimed, (expires_ms, offset))

    def put_all_claimed(self, offsets: Sequence[int], expires_ms: int) -> None:
        """``put_claimed`` of many items of one call, faster where none of them waits."""
        if not self.places.keys().isdisjoint(offsets):
            for offset in offsets:
                self.put_claimed(offset, expires_ms)
        elif self.is_whole:
            self.is_whole = False
            self.places.update([(offset, (self._claimed, (expires_ms, offset))) for offset in offsets])
            self._claimed.add_all(expires_ms, offsets)
            self.is_whole = True

    def _put(self, offset: int, order: Any, key: Any) -> None:
        if not self.is_whole:
            return
        self.is_whole = False
        place = self.places.get(offset)
        if place is not None:
            place[0].remove(place[1])
        self.places[offset] = (order, key)
        order.add(key)
        self.is_whole = True

    def discard(self, offset: int) -> None:
        """Removes the item, if it waits."""
        if not self.is_whole or offset not in self.places:
            return
        self.is_whole = False
        order, key = self.places.pop(offset)
        order.remove(key)
        self.is_whole = True

    def discard_all(self, offsets: Iterable[int]) -> None:
        """``discard`` of many items."""
        if not self.is_whole:
            return
        self.is_whole = False
        for offset in offsets:
            place = self.places.pop(offset, None)
            if place is not None:
                place[0].remove(place[1])
        self.is_whole = True

    def pop(self) -> int | None:
        """Removes and returns the oldest item that may be delivered now, or None."""
        if not self._ready:
            return None
        offset: int = self._ready[0]
        self.discard(offset)
        return offset

    def fall_due(self, now_ms: int, monotonic_ms: float) -> None:
        """Makes items whose time has come wait for the next get."""
        delayed, claimed = self._delayed, self._claimed
        while self.is_whole and delayed and delayed[0][0] <= now_ms:
            self.put(delayed[0][1])
        while self.is_whole and claimed and claimed.ends[0] <= monotonic_ms:
            for offset in sorted(claimed.groups[claimed.ends[0]]):
                self.put(offset)

    @property
    def next_due_ms(self) -> int | None:
        return self._delayed[0][0] if self._delayed else None

    @property
    def next_expiry_ms(self) -> int | None:
        return self._claimed.ends[0] if self._claimed else None

    @property
    def delayed_count(self) -> int:
        return len(self._delayed)

    def restore(self, waits: Iterable[Wait]) -> None:
        """Rebuilds the orders from these items."""
        self.is_whole = False
        self._clear()
        ready, delayed, claimed = [], [], []
        for wait in waits:
            if wait.expires_ms:
                claimed.append((wait.expires_ms, wait.offset))
            elif wait.due_ms:
                delayed.append((wait.due_ms, wait.offset))
            else:
                ready.append(wait.offset)
        self._ready.update(ready)
        self.places.update((offset, (self._ready, offset)) for offset in ready)
        for order, keys in ((self._delayed, delayed), (self._claimed, claimed)):
            order.update(keys)
            self.places.update((key[1], (order, key)) for key in keys)
        self.is_whole = True

    def check(self) -> None:
        """Asserts the invariants."""
        found = [*self._ready, *(offset for order in (self._delayed, self._claimed) for _, offset in order)]
        assert len(found) == len(set(found)), "an item waits twice"
        assert set(found) == self.places.keys(), "the places and the orders differ"
        assert all(self._claimed.groups.values()), "no item waits for the end of a lease"
        assert self._claimed.groups.keys() == set(self._claimed.ends), "the ends of leases differ"
        for order in (self._ready, self._delayed, self._claimed.ends):
            order._check()
