"""The values that a queue's state is made of. No I/O here."""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["Claim", "Item", "Lease", "Retry"]


class Item(Protocol):
    """A record, as far as it matters here."""

    @property
    def offset(self) -> int: ...


class Lease(Protocol):
    """Who has an item, and until when; leases of as many ``seconds`` are given in the order of their deadlines."""

    @property
    def offset(self) -> int: ...

    @property
    def delivery_count(self) -> int: ...

    @property
    def owner(self) -> int:
        """By which the journal tells it from other leases of the item; 0 where it is not in the journal."""
        ...

    seconds: float
    deadline: float


class Retry(NamedTuple):
    """An item that was delivered so often, or waits until ``due_ms``."""

    deliveries: int
    due_ms: int


class Claim(NamedTuple):
    """The lease of an item as the journal has it, of processes that share a queue; times are of the monotonic clock."""

    owner: int
    deliveries: int
    expires_ms: int
    claimed_ms: int
