"""Items that were read and wait: for the next get, for a time of day, or until another process's lease ends. No I/O.

Each is in exactly one of three orders, and leaves it when it is leased, done or held. A MemoryError or an interrupt may
leave half a change. Then ``is_whole`` becomes False and the orders no longer change; their owner rebuilds them from the
events of the journal before it uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sortedcontainers import SortedList

__all__ = ["Wait", "Waiting"]


class Wait(NamedTuple):
    """An item that may be delivered: now, from ``due_ms``, or when another process's lease ends, at ``expires_ms``."""

    offset: int
    due_ms: int = 0
    expires_ms: int = 0


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
        self._claimed = SortedList()  # (expires_ms, offset)

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

    def pop(self) -> int | None:
        """Removes and returns the oldest item that may be delivered now, or None."""
        if not self._ready:
            return None
        offset: int = self._ready[0]
        self.discard(offset)
        return offset

    def fall_due(self, now_ms: int, monotonic_ms: float) -> None:
        """Makes items whose time has come wait for the next get."""
        for order, now in ((self._delayed, now_ms), (self._claimed, monotonic_ms)):
            while self.is_whole and order and order[0][0] <= now:
                self.put(order[0][1])

    @property
    def next_due_ms(self) -> int | None:
        return self._delayed[0][0] if self._delayed else None

    @property
    def next_expiry_ms(self) -> int | None:
        return self._claimed[0][0] if self._claimed else None

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
        for order in (self._ready, self._delayed, self._claimed):
            order._check()
