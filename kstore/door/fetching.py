"""Fetch: the records of many partitions, as they lie on disk, sent from the files; waits while there are too few.

A slice is held only while its answer is sent. A request that waits remembers sizes, and looks at what
has changed; so does the next request of its connection.
Sessions (KIP-227) are not kept: each answer says so, and clients send whole requests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from kstore.door import errors
from kstore.door.call import Call, Message
from kstore.door.fetch_part import AskedPart, Key
from kstore.door.fetch_reply import FetchReply
from kstore.door.frames import RESPONSE_BYTES_MAX
from kstore.door.parking import News, seconds_until_look
from kstore.door.reply import Reply
from kstore.door.served import READ_COMMITTED, READ_UNCOMMITTED
from kstore.engine.source import LogSource

# An epoch of a session that exists only where sessions are kept is above these.
NEW_SESSION: Final = 0


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
    call.seen.keep(request.parts)
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
        self._bytes_max: int = min(body["maxBytes"], RESPONSE_BYTES_MAX)
        seen = call.seen.take(call.version, body["isolationLevel"])
        self._topics: list[tuple[str, list[AskedPart]]] = [
            (topic["topic"], [self._part(seen, topic["topic"], asked) for asked in topic["partitions"]])
            for topic in body["topics"]
        ]
        parts = [part for _, asked in self._topics for part in asked]
        # One further each time, so that the first partitions do not take everything (KIP-74).
        start = next(call.door.turns) % len(parts) if parts else 0
        self.parts: Sequence[AskedPart] = parts[start:] + parts[:start]

    def _part(self, seen: dict[Key, AskedPart], topic: str, asked: Message) -> AskedPart:
        part = seen.pop((topic, asked["partition"]), None)
        if part is not None and part.asked == asked:
            return part
        call = self._call
        return AskedPart(call.door, topic, asked, level=call.body["isolationLevel"])

    def look(self, *, is_final: bool = False) -> None:
        """Looks at the partitions that may have changed; ``is_final``: also for the slices that were released."""
        left = self._bytes_max
        is_first = True
        for part in self.parts:
            if part.is_due(needs_slice=is_final):
                part.look(left, is_first=is_first)
            left -= part.found.size
            is_first = is_first and not part.found.size

    def release(self) -> None:
        """Lets go of all slices, with their files."""
        for part in self.parts:
            if part.found.slice is not None:
                part.found = part.found._replace(slice=None)

    def logs(self) -> list[tuple[LogSource, News | None]]:
        return [(part.part.source, part.news) for part in self.parts if part.part is not None]

    def is_ready(self) -> bool:
        """Whether there is enough to answer, or nothing to wait for."""
        if not self.parts:
            return True
        # A broker looks only at partitions that exist, and answers at once if none does.
        known = [part.found for part in self.parts if part.found.error != errors.UNKNOWN_TOPIC_OR_PARTITION]
        if not known or any(found.error or found.diverging for found in known):
            return True
        return sum(part.found.size for part in self.parts) >= self._bytes_min

    def reply(self) -> FetchReply:
        is_wrong = self._call.body["isolationLevel"] not in (READ_UNCOMMITTED, READ_COMMITTED)
        return FetchReply(
            self._call.version,
            [(topic, [part.found for part in parts]) for topic, parts in self._topics],
            error=errors.UNKNOWN_SERVER_ERROR if is_wrong else errors.NONE,
        )
