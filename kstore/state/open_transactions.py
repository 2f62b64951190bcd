"""Which transactions of a log are open, the oldest first. No I/O here.

Each marker of an abort asks for the oldest one, and a foreign log may hold any number of them: so that takes the same
time for one as for a million.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import merge

# The offset of its first batch, and its producer's id.
OpenTransaction = tuple[int, int]


class OpenTransactions:
    """The open transactions of one log. Not thread-safe."""

    __slots__ = ("_begun", "_given")

    def __init__(self, given: Iterable[OpenTransaction] = ()) -> None:
        # Both in order. What begins later has a greater offset, except than what a wrong snapshot gives.
        self._given: OrderedDict[OpenTransaction, None] = OrderedDict.fromkeys(sorted(given))
        self._begun: OrderedDict[OpenTransaction, None] = OrderedDict()

    def copy(self) -> OpenTransactions:
        other = OpenTransactions()
        other._given, other._begun = self._given.copy(), self._begun.copy()
        return other

    def __len__(self) -> int:
        return len(self._given) + len(self._begun)

    def __contains__(self, transaction: object) -> bool:
        return transaction in self._begun or transaction in self._given

    def __iter__(self) -> Iterator[OpenTransaction]:
        """The oldest first."""
        return merge(self._given, self._begun)

    @property
    def first_offset(self) -> int | None:
        """Where the oldest one begins, None if none is open."""
        for first_offset, _ in self:
            return first_offset
        return None

    def begin(self, transaction: OpenTransaction) -> None:
        """Adds one, whose offset is above those that began before. After a lack of memory nothing has changed."""
        if self._begun and transaction < next(reversed(self._begun)):
            # Segments overlap.
            self._given, self._begun = OrderedDict.fromkeys(self), OrderedDict()
        self._begun[transaction] = None

    def end(self, transaction: OpenTransaction) -> None:
        """Removes one, if it is there. Needs no memory."""
        if transaction in self._begun:
            del self._begun[transaction]
        elif transaction in self._given:
            del self._given[transaction]
