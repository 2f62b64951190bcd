"""A ``Consumer`` that waits on a loop: it looks, in a thread, and says how long there will be nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from kstore.aio.waking import LoopWaiter
from kstore.consumer.consumer import Consumer
from kstore.consumer.of_store import StoreGroups
from kstore.consumer.pieces import Piece
from kstore.files.paths import TopicPartition
from kstore.logs.topics import Topics

__all__ = ["LoopConsumer"]

Found = TypeVar("Found")
Polled = dict[TopicPartition, list[Any]]


class LoopConsumer(Consumer):
    """The consumer behind ``aio.Consumer``. All but ``begin`` and ``told`` is called in threads, one call at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Topics,
        groups: StoreGroups,
        topics: Collection[str],
        **options: Any,
    ) -> None:
        """``options`` are those of ``Consumer``. Raises: as that."""
        self._loop = loop
        super().__init__(store, groups, topics, **options)

    def _made_waiter(self) -> LoopWaiter:
        self._loop_waiter = LoopWaiter(self._clock, self._loop)
        return self._loop_waiter

    # --- on the loop ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """From now on events are noticed; call it before each look."""
        self._loop_waiter.begin()

    async def told(self, seconds: float) -> None:
        """Waits until there may be a record, at most ``seconds``."""
        await self._loop_waiter.told(seconds)

    def wake(self) -> None:
        """Ends a wait: something else has happened."""
        self._loop_waiter.wake()

    # --- in threads -------------------------------------------------------------------------------------------------

    def look(self, find: Callable[[], Found | None]) -> tuple[Found | None, float]:
        """What ``find`` finds; or None, and for how many seconds there will be nothing unless an event comes."""
        with self._used():
            self._recall()
            self._tick()
            found = find()
            if found:
                return found, 0.0
            return None, min(self._loop_waiter.arm(self._has_more), self._wait_seconds())

    def recall(self) -> None:
        """Makes records that an iteration received but did not return available again."""
        with self._used():
            self._recall()

    def _has_more(self) -> bool:
        return any(reader.has_more() for reader in self._reading.ready())

    def look_for_records(self) -> tuple[Piece | None, float]:
        """The next records of an iteration."""
        return self.look(self._take_records)

    def look_for_values(self) -> tuple[Piece | None, float]:
        """The next values of an iteration."""
        return self.look(self._take_values)

    def _take_records(self) -> Piece | None:
        self._piece = self._next_records()
        return self._piece

    def _take_values(self) -> Piece | None:
        self._piece = self._next_values()
        return self._piece

    def look_for_poll(self, count: int) -> tuple[Polled | None, float]:
        """The next records of a poll."""

        def find() -> Polled | None:
            found: Any = self._reading.records(count)
            return self._deserialized(found) if found and not self._deserializers.is_plain else found

        return self.look(find)

    def give_back(self, polled: Polled) -> None:
        """Makes records that a poll has found available to the next poll."""
        with self._used():
            for owner, records in polled.items():
                reader = self._reading.readers.get(owner)
                if reader is not None:
                    reader.seek(records[0].offset)
