"""Fetch: the records of many partitions, as they lie on disk, sent from the files; waits while there are too few.

A slice is held only while its answer is sent. A request that waits remembers sizes, and looks at what
has changed.
Sessions (KIP-227) are not kept: each answer says so, and clients send whole requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from kstore.door import errors
from kstore.door.call import Call, Message, Reply
from kstore.door.errors import code_of
from kstore.door.fetch_reply import FetchedPart, FetchReply
from kstore.door.parking import News, seconds_until_look
from kstore.door.parts import READ_COMMITTED, READ_UNCOMMITTED, Part, epoch_error, part_of
from kstore.engine.ends import Ends
from kstore.engine.source import LogSource
from kstore.errors import CorruptDataError, KstoreError, OffsetOutOfRangeError, TopicNotFoundError
from kstore.state.leader_epoch import end_offset_for

logger = logging.getLogger(__name__)

# A broker's fetch.max.bytes, whatever a client asks for.
RESPONSE_BYTES_MAX: Final = 57_671_680
# An epoch of a session that exists only where sessions are kept is above these.
NEW_SESSION: Final = 0
ZSTD_SINCE: Final = 10


def fetch(call: Call) -> Message | Reply:
    """Answers Fetch."""
    if call.body["sessionEpoch"] > NEW_SESSION:
        return {"errorCode": errors.FETCH_SESSION_ID_NOT_FOUND}
    request = _Fetch(call)
    request.look()
    deadline = time.monotonic() + call.body["maxWaitMs"] / 1000
    if not request.is_ready() and deadline > time.monotonic():
        _wait(call, request, deadline)
        request.look(is_final=True)
    return request.reply()


def _wait(call: Call, request: _Fetch, deadline: float) -> None:
    """Waits until ``request`` is ready, until ``deadline``, or until its peer is gone."""
    waiter = call.waiter()
    request.release()
    logs = request.logs()
    known = [news for _, news in logs if news is not None]
    with call.door.parking.waiting(waiter, logs):
        # Look once more after arming: what came before that has woken no one.
        while not waiter.gone and (now := time.monotonic()) < deadline:
            request.look()
            request.release()
            if request.is_ready():
                return
            waiter.wait(min(deadline, now + seconds_until_look(known)))


class _Fetch:
    """One request, for one thread."""

    def __init__(self, call: Call) -> None:
        body = call.body
        self._call = call
        self._bytes_min: int = body["minBytes"]
        self._bytes_max: int = max(min(body["maxBytes"], RESPONSE_BYTES_MAX), 0)
        self._topics: list[tuple[str, list[_Asked]]] = [
            (topic["topic"], [_Asked(call, topic["topic"], asked) for asked in topic["partitions"]])
            for topic in body["topics"]
        ]
        parts = [part for _, asked in self._topics for part in asked]
        # One further each time, so that the first partitions do not take everything (KIP-74).
        start = next(call.door.turns) % len(parts) if parts else 0
        self._parts: Sequence[_Asked] = parts[start:] + parts[:start]

    def look(self, *, is_final: bool = False) -> None:
        """Looks at the partitions that may have changed; ``is_final``: also for the slices that were released."""
        left = self._bytes_max
        is_first = True
        for part in self._parts:
            if part.is_due(needs_slice=is_final):
                part.look(left, is_first=is_first)
            left -= part.found.size
            is_first = is_first and not part.found.size

    def release(self) -> None:
        """Lets go of all slices, with their files."""
        for part in self._parts:
            if part.found.slice is not None:
                part.found = part.found._replace(slice=None)

    def logs(self) -> list[tuple[LogSource, News | None]]:
        return [(part.part.source, part.news) for part in self._parts if part.part is not None]

    def is_ready(self) -> bool:
        """Whether there is enough to answer, or nothing to wait for."""
        if not self._parts:
            return True
        if any(part.found.error or part.found.diverging for part in self._parts):
            return True
        return sum(part.found.size for part in self._parts) >= self._bytes_min

    def reply(self) -> FetchReply:
        return FetchReply(
            self._call.version, [(topic, [part.found for part in parts]) for topic, parts in self._topics]
        )


class _Asked:
    """One partition of a request, and what was found there."""

    __slots__ = ("_asked", "_call", "_ends", "_topic", "found", "news", "part")

    def __init__(self, call: Call, topic: str, asked: Message) -> None:
        self._call = call
        self._topic = topic
        self._asked = asked
        self._ends: Ends | None = None
        self.part: Part | None = None
        self.news: News | None = None
        self.found: FetchedPart = FetchedPart(asked["partition"])

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
        index = self._asked["partition"]
        try:
            self.found = self._found(index, bytes_left, is_first=is_first)
        except TopicNotFoundError as error:
            self.found = FetchedPart(index, code_of(error), aborted=())  # as a broker answers
        except KstoreError as error:
            self.found = FetchedPart(index, code_of(error))
            if isinstance(error, CorruptDataError):
                where = f"{self._topic}-{index}"
                if self._call.door.damage_lines.is_due(where):
                    logger.warning(
                        "%s: a fetch at offset %d meets damage: %s", where, self._asked["fetchOffset"], error
                    )

    def _found(self, index: int, bytes_left: int, *, is_first: bool) -> FetchedPart:
        call, asked = self._call, self._asked
        level = call.body["isolationLevel"]
        self.part = None
        if level not in (READ_UNCOMMITTED, READ_COMMITTED):
            return FetchedPart(index, errors.UNKNOWN_SERVER_ERROR)
        part = part_of(call.door, self._topic, index)
        log, source = part.log, part.source
        if call.version < ZSTD_SINCE and source.context.config.compression_type == "zstd":
            return FetchedPart(index, errors.UNSUPPORTED_COMPRESSION_TYPE)
        if error := epoch_error(part, asked["currentLeaderEpoch"]):
            return FetchedPart(index, error)
        self.news = news = call.door.parking.of(log, source)
        if news is not None and news.is_due():
            call.door.parking.look(news, source)
        committed = level == READ_COMMITTED
        offset: int = asked["fetchOffset"]
        # Before what is derived of them: a change that comes in between is another look.
        self._ends = ends = source.ends
        self.part = part
        if offset < 0 or not ends.start_offset <= offset <= ends.high_watermark:
            raise OffsetOutOfRangeError(offset, start_offset=ends.start_offset, end_offset=ends.high_watermark)
        stable = min(source.last_stable_offset(), ends.high_watermark)
        found = FetchedPart(
            index,
            high_watermark=ends.high_watermark,
            last_stable_offset=stable,
            log_start_offset=ends.start_offset,
            aborted=() if committed else None,
        )
        if asked["lastFetchedEpoch"] >= 0:
            end = end_offset_for(part.epochs(), asked["lastFetchedEpoch"], ends.end_offset)
            if end.epoch < asked["lastFetchedEpoch"] or end.start_offset < offset:
                return found._replace(diverging=end)
        if offset >= (stable if committed else ends.high_watermark):
            return found  # no look at a file
        wanted = max(min(asked["partitionMaxBytes"], bytes_left), 0)
        part_slice = log.fetch(
            offset, wanted, isolation_level="read_committed" if committed else "read_uncommitted", checked=True
        )
        if not part_slice.size or (part_slice.size > wanted and not is_first):
            return found
        if part_slice.aborted is not None:
            found = found._replace(aborted=[(one.producer_id, one.first_offset) for one in part_slice.aborted])
        return found._replace(size=part_slice.size, slice=part_slice)
