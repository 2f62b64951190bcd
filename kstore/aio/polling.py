"""A consumer that waits on a loop: it looks in a thread, and says how long to wait if nothing was found."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from kstore.aio.waking import LoopWaiter
from kstore.consumer.consumer import Consumer
from kstore.consumer.next_records import Polled
from kstore.consumer.of_store import StoreGroups
from kstore.consumer.parts import consumer_parts
from kstore.consumer.pieces import LentItems
from kstore.consumer.reading import Reading
from kstore.consumer.wanted import RebalanceListener
from kstore.logs.topics import Topics

Found = TypeVar("Found")


class LoopConsumer:
    """The consumer that ``aio.Consumer`` uses. All but ``begin`` and ``told`` run in threads, one call at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        topics: Topics,
        groups: StoreGroups,
        names: Collection[str],
        group: str | None,
        settings: Mapping[str, Any],
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads the topics ``names``. Raises: as ``Consumer``."""
        self._waiter = LoopWaiter(topics.clock, loop)
        parts = consumer_parts(topics, groups, group, settings, waiter=self._waiter)
        self._use = parts.use
        self.reading: Reading = parts.reading
        self._positions = parts.positions
        self._next = parts.next
        self.sync: Consumer = Consumer(parts, names, pattern=pattern, listener=listener)

    def close(self) -> None:
        """See ``Consumer.close``."""
        self.sync.close()

    # --- on the loop ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts to note events; call it before each look."""
        self._waiter.begin()

    async def told(self, seconds: float) -> None:
        """Waits until there may be a record, at most ``seconds``."""
        await self._waiter.told(seconds)

    def wake(self) -> None:
        """Ends a wait."""
        self._waiter.wake()

    # --- in threads -------------------------------------------------------------------------------------------------

    def _look(self, find: Callable[[], Found | None]) -> tuple[Found | None, float]:
        """What ``find`` finds; or None, and how many seconds to wait unless an event comes."""
        with self._use.alone():
            self._positions.recall()
            self._next.tick()
            found = find()
            if found:
                return found, 0.0
            return None, min(self._waiter.arm(self._has_more), self._next.wait_seconds)

    def _has_more(self) -> bool:
        return any(reader.has_more() for reader in self.reading.ready())

    def look_for_records(self) -> tuple[LentItems | None, float]:
        """The next records of an iteration."""
        return self._look(self._next.records)

    def look_for_values(self) -> tuple[LentItems | None, float]:
        """The next values of an iteration."""
        return self._look(self._next.values)

    def look_for_poll(self, count: int) -> tuple[Polled | None, float]:
        """The next records of a poll, which comes again unless the caller clears ``reading.before``."""
        return self._look(partial(self._next.polled, count))
