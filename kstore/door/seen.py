"""``Seen``: the partitions at whose end the last Fetch of a connection was, for the next one to look at what changed.

An idle consumer of 1,000 partitions asks for all of them twice a second. To find their logs and their ends took most
of each request, and what was found holds until a log gets other ends. All clients profit, whether they know sessions
(KIP-227) or not, and librdkafka, which does not, asks for its partitions in another order each time.
"""

from __future__ import annotations

from collections.abc import Iterable

from kstore.door.fetch_part import AskedPart
from kstore.door.memory import Memory

# What a partition takes, with its fields.
PART_BYTES = 1 << 10

Key = tuple[str, int]


class Seen:
    """For the thread of one connection. Takes memory if there is some, and remembers nothing if not."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lent = 0
        self._kind = -1, -1
        self._parts: dict[Key, AskedPart] = {}

    def take(self, version: int, level: int) -> dict[Key, AskedPart]:
        """What was seen by a request of this version and isolation level; it is forgotten here."""
        found, self._parts = self._parts, {}
        is_same, self._kind = self._kind == (version, level), (version, level)
        return found if is_same else {}

    def keep(self, parts: Iterable[AskedPart]) -> None:
        """Remembers those of ``parts`` that are at their ends."""
        found = {(part.topic, part.asked["partition"]): part for part in parts if part.is_at_end}
        wanted = len(found) * PART_BYTES
        if wanted > self._lent and not self._memory.take_now(wanted - self._lent):
            found, wanted = {}, 0
        if wanted < self._lent:
            self._memory.give(self._lent - wanted)
        self._lent = wanted
        self._parts = found

    def end(self) -> None:
        """Forgets everything."""
        self.keep(())
