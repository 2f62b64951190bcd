"""Leases, claims and other values that a queue's state consists of. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from sortedcontainers import SortedList

from kstore.queue._jobs import count_over, end_over, first_leases, lease_all, over_leases

# How many groups of leases of one length are kept; leases of all other lengths share one more group.
GROUPS_MAX = 8
OTHERS = -1.0


class Item(Protocol):
    """The part of a record that matters here."""

    @property
    def offset(self) -> int: ...


class Lease(Protocol):
    """The holder of an item, and its deadline. Leases of the same ``seconds`` come in the order of their deadlines."""

    @property
    def offset(self) -> int: ...

    @property
    def delivery_count(self) -> int: ...

    @property
    def owner(self) -> int:
        """Distinguishes it in the journal from other leases of the item; 0 if it is not in the journal."""
        ...

    seconds: float
    deadline: float


class Retry(NamedTuple):
    """An item that was delivered ``deliveries`` times, or that waits until ``due_ms``."""

    deliveries: int
    due_ms: int


class Claim(NamedTuple):
    """A lease of an item in the journal of a shared queue; times are of the monotonic clock."""

    owner: int
    deliveries: int
    expires_ms: int
    claimed_ms: int


LeaseT = TypeVar("LeaseT", bound=Lease)


class ByDeadline(dict[int, LeaseT]):
    """Leases by offset, given in any order; ``values()`` yields them by deadline."""

    def __init__(self) -> None:
        super().__init__()
        self._order = SortedList()  # (deadline, offset)
        # False during a change, and after a change that a MemoryError or an interrupt cut short.
        self._is_ordered = True

    def __setitem__(self, offset: int, lease: LeaseT) -> None:
        if offset in self:
            del self[offset]
        is_ordered, self._is_ordered = self._is_ordered, False
        super().__setitem__(offset, lease)
        if is_ordered:
            self._order.add((lease.deadline, offset))
            self._is_ordered = True

    def __delitem__(self, offset: int) -> None:
        is_ordered, self._is_ordered = self._is_ordered, False
        deadline = self[offset].deadline
        super().__delitem__(offset)
        if is_ordered:
            self._order.remove((deadline, offset))
            self._is_ordered = True

    def values(self) -> Iterator[LeaseT]:  # type: ignore[override]  # an iterator is all that its users need
        if not self._is_ordered:
            self._order = SortedList((lease.deadline, offset) for offset, lease in self.items())
            self._is_ordered = True
        return (self[offset] for _, offset in self._order)


class Leases(dict[float, dict[int, LeaseT]]):
    """The leases of this process: groups of one length each, in the order in which they end."""

    def give(self, lease: LeaseT) -> None:
        """Adds a lease that begins now."""
        self._group(lease.seconds)[lease.offset] = lease

    def give_all(self, leases: Sequence[LeaseT], seconds: float) -> None:
        """Adds leases of ``seconds`` that begin now; a refused allocation may leave some of them."""
        group = self._group(seconds)
        if type(group) is dict:
            lease_all(group, leases)
        else:
            for lease in leases:
                group[lease.offset] = lease

    def _group(self, seconds: float) -> dict[int, LeaseT]:
        """Where a new lease of ``seconds`` belongs."""
        group = self.get(seconds)
        if group is None:
            if len(self) >= GROUPS_MAX:
                return self._others()
            # Not by ``setdefault``: if CPython 3.13 is refused memory there, it counts an entry that it has not stored.
            group = self[seconds] = {}
        return group

    def give_again(self, lease: LeaseT) -> None:
        """Adds a lease that began before others of its length."""
        self._others()[lease.offset] = lease

    def _others(self) -> dict[int, LeaseT]:
        group = self.get(OTHERS)
        if group is None:
            group = self[OTHERS] = ByDeadline()
        return group

    def of(self, offset: int) -> LeaseT | None:
        """The lease of an item."""
        for group in self.values():
            if (lease := group.get(offset)) is not None:
                return lease
        return None

    def has(self, lease: LeaseT) -> bool:
        """Whether exactly this ``lease`` is present."""
        group, offset = self.get(lease.seconds), lease.offset
        if group is not None and group.get(offset) is lease:
            return True
        group = self.get(OTHERS)
        return group is not None and group.get(offset) is lease

    def end(self, lease: LeaseT) -> None:
        seconds, offset = lease.seconds, lease.offset
        group = self.get(seconds)
        if group is None or group.get(offset) is not lease:
            seconds = OTHERS
            group = self[seconds]
        del group[offset]
        if not group and len(self) > 1:
            del self[seconds]

    def forget_below(self, floor: int) -> None:
        for group in self.values():
            for offset in [offset for offset in group if offset < floor]:
                del group[offset]

    def first(self) -> list[LeaseT]:
        """From each group, the lease that ends first."""
        return first_leases(self)

    def over(self, now: float, count_max: int) -> list[LeaseT]:
        """The leases whose deadline has passed, at most ``count_max`` of them."""
        return over_leases(self, now, count_max)

    def end_over(self, over: list[LeaseT]) -> None:
        """``end`` of all that ``over`` has just returned."""
        end_over(self, over)

    def over_count(self, now: float) -> int:
        """How many have passed their deadline without being ended."""
        return count_over(self, now)

    def held(self) -> list[LeaseT]:
        return [lease for group in self.values() for lease in group.values()]

    @property
    def count(self) -> int:
        return sum(map(len, self.values()))


def numbers_of(boot: bytes) -> tuple[int, int]:
    """The id of a boot of the machine, as stored in the journal."""
    return int.from_bytes(boot[:8], "big"), int.from_bytes(boot[8:], "big")
