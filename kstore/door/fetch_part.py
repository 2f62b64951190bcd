"""``AskedPart``: one partition of a Fetch, what was found there, and whether another look may find something else.

``Seen`` keeps those at whose end the last Fetch of a connection was, and the next Fetch looks at what changed. An idle
consumer of 1,000 partitions asks for all of them twice a second. To find their logs and their ends took most of each
request, and what was found holds until a log gets other ends. All clients profit, whether they know sessions (KIP-227)
or not, and librdkafka, which does not, asks for its partitions in another order each time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from kstore.door import errors
from kstore.door.errors import code_of
from kstore.door.fetch_reply import FetchedPart
from kstore.door.memory import Memory
from kstore.door.parking import News
from kstore.door.served import READ_COMMITTED, READ_UNCOMMITTED, Part, Served, epoch_error, part_of
from kstore.engine.ends import Ends
from kstore.errors import CorruptDataError, KstoreError, OffsetOutOfRangeError, TopicNotFoundError
from kstore.state.leader_epoch import UNDEFINED_EPOCH, end_offset_for

logger = logging.getLogger(__name__)

# What a partition that is kept takes, with its fields.
PART_BYTES = 1 << 10

Key = tuple[str, int]


class AskedPart:
    """For one thread. ``asked`` are the fields of the request for this partition."""

    __slots__ = ("_door", "_ends", "_level", "asked", "found", "is_at_end", "news", "part", "topic")

    def __init__(self, door: Served, topic: str, asked: dict[str, Any], *, level: int) -> None:
        self._door = door
        self._level = level
        self._ends: Ends | None = None
        self.topic = topic
        self.asked = asked
        self.part: Part | None = None
        self.news: News | None = None
        self.found: FetchedPart = FetchedPart(asked["partition"])
        # Whether there was nothing to read, whatever the limits.
        self.is_at_end = False

    def is_due(self, *, needs_slice: bool) -> bool:
        """Whether another look may find something else."""
        part, found = self.part, self.found
        if part is None:
            return not found.error
        return (
            part.source.ends is not self._ends
            or part.log.closed
            or (needs_slice and found.size > 0 and found.slice is None)
            or (self.news is not None and self.news.is_due())
        )

    def look(self, bytes_left: int, *, is_first: bool) -> None:
        """Looks once; ``is_first``: a first batch is taken whole, whatever the limits."""
        index = self.asked["partition"]
        self.is_at_end = False
        try:
            self.found = self._found(index, bytes_left, is_first=is_first)
        except TopicNotFoundError as error:
            self.found = FetchedPart(index, code_of(error), aborted=())  # as a broker answers
        except KstoreError as error:
            self.found = FetchedPart(index, code_of(error))
            if isinstance(error, CorruptDataError):
                where = f"{self.topic}-{index}"
                if self._door.damage_lines.is_due(where):
                    logger.warning("%s: a fetch at offset %d meets damage: %s", where, self.asked["fetchOffset"], error)

    def _found(self, index: int, bytes_left: int, *, is_first: bool) -> FetchedPart:
        door, asked, level = self._door, self.asked, self._level
        self.part = None
        if level not in (READ_UNCOMMITTED, READ_COMMITTED):
            return FetchedPart(index, errors.UNKNOWN_SERVER_ERROR, aborted=())
        part = part_of(door, self.topic, index)
        log, source = part.log, part.source
        if error := epoch_error(part, asked["currentLeaderEpoch"]):
            return FetchedPart(index, error)
        self.news = news = door.parking.of(log, source)
        if news is not None and news.is_due():
            door.parking.look(news, source)
        committed = level == READ_COMMITTED
        offset: int = asked["fetchOffset"]
        # Before what is derived of them: a change that comes in between is another look.
        self._ends = ends = source.ends
        self.part = part
        is_within = ends.start_offset <= offset <= ends.high_watermark
        diverging = None
        if (last_epoch := asked["lastFetchedEpoch"]) >= 0:
            end = end_offset_for(part.epochs(), last_epoch, ends.end_offset)
            if end.epoch == UNDEFINED_EPOCH:
                is_within = False  # an epoch that this log does not know yet
            elif end.epoch < last_epoch or end.start_offset < offset:
                diverging = end
        if diverging is None and not is_within:
            raise OffsetOutOfRangeError(offset, start_offset=ends.start_offset, end_offset=ends.high_watermark)
        stable = min(source.last_stable_offset(), ends.high_watermark)
        found = FetchedPart(
            index,
            high_watermark=ends.high_watermark,
            last_stable_offset=stable,
            log_start_offset=ends.start_offset,
            aborted=() if committed else None,
        )
        if diverging is not None:
            return found._replace(diverging=diverging)
        if offset >= (stable if committed else ends.high_watermark):
            self.is_at_end = True
            return found  # no look at a file
        wanted = min(asked["partitionMaxBytes"], bytes_left)
        if is_first and wanted < 0:
            return FetchedPart(index, errors.UNKNOWN_SERVER_ERROR)
        wanted = max(wanted, 0)
        part_slice = log.fetch(
            offset, wanted, isolation_level="read_committed" if committed else "read_uncommitted", checked=True
        )
        if not part_slice.size or (part_slice.size > wanted and not is_first):
            return found
        if part_slice.aborted is not None:
            found = found._replace(aborted=[(one.producer_id, one.first_offset) for one in part_slice.aborted])
        return found._replace(size=part_slice.size, slice=part_slice)


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
