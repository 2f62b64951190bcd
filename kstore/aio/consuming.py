"""``Consumer`` for tasks: ``async for`` over topics. It waits without a thread, and a cancel loses no record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kstore.aio.opening import made_by
from kstore.aio.polling import LoopConsumer
from kstore.aio.producing import Producer
from kstore.aio.threads import Threads, in_thread, whole
from kstore.consumer.consumer import Consumer as SyncConsumer
from kstore.consumer.next_records import Polled
from kstore.consumer.offsets import Offsets
from kstore.consumer.pieces import LentItems
from kstore.consumer.place import GroupMetadata
from kstore.errors import ConfigError
from kstore.files.paths import TopicPartition
from kstore.record._codec import ConsumerRecord
from kstore.setting_rules import UNLIMITED

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")
Look = Callable[[], tuple[LentItems | None, float]]


class Consumer:
    """Reads records of an ``aio.Store``'s topics. For one task at a time; calls of other tasks wait their turn.

    A cancel while it waits loses nothing: what was read for the cancelled task comes next. A rebalance listener is
    called in one of the store's threads.
    """

    @made_by("store.consumer(topic, group=...)")
    def __init__(self, consumer: LoopConsumer, threads: Threads) -> None:
        """See ``Store.consumer``."""
        self.sync: SyncConsumer = consumer.sync
        self._loop_consumer = consumer
        self._threads = threads
        self._turn = asyncio.Lock()
        # The items that an iteration is in the middle of, and the function that produced them.
        self._items: Iterator[Any] = iter(())
        self._for_records: Look = consumer.look_for_records
        self._for_values: Look = consumer.look_for_values
        self._look = self._for_records
        # Lookups in threads, for an iteration and for a poll; they survive a cancel of the waiting task.
        self._piece: asyncio.Future[tuple[LentItems | None, float]] | None = None
        self._poll: asyncio.Future[tuple[Polled | None, float]] | None = None

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"

    @property
    def closed(self) -> bool:
        return self.sync.closed

    # --- read -------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record, or the end if none came for ``iteration_timeout_ms``. See ``kstore.Consumer``."""
        item: ConsumerRecord
        if self._look is self._for_records:
            for item in self._items:
                return item
        item = await self._next(self._for_records)
        return item

    async def values(self) -> AsyncIterator[bytes | None]:
        """Like iteration, for the values only: the fast path for payloads."""
        while True:
            if self._look is self._for_values:
                for value in self._items:
                    yield value
            try:
                value = await self._next(self._for_values)
            except StopAsyncIteration:
                return
            yield value

    async def _next(self, look: Look) -> Any:
        """The first of the next items, which are then in ``_items``. Raises: StopAsyncIteration."""
        timeout_ms = self.sync.config.iteration_timeout_ms
        deadline = self._deadline(None if timeout_ms == UNLIMITED else timeout_ms / 1000)
        while True:
            self._threads.check_fork()
            async with self._turn:
                await self._settle_poll()
                if self._look is not look:
                    await self._settle_piece()
                    # Items of one kind that were not returned come again as the other kind.
                    self._piece, self._look = None, look
                if self._piece is None:
                    self._loop_consumer.begin()
                    self._piece = self._threads.submit(look)
                await asyncio.wait([self._piece])
                done, self._piece = self._piece, None
                piece, seconds = done.result()
                if piece is not None:
                    self._items = piece.items
                    # Nothing remains of a cancelled iteration's work: another call has recalled it since.
                    for item in self._items:
                        return item
                    continue
            if not await self._told(seconds, deadline):
                raise StopAsyncIteration

    async def poll(self, timeout: float | None = 0.0, max_records: int | None = None) -> Polled:
        """The next records, by partition. See ``kstore.Consumer.poll``. If cancelled, it has taken none."""
        count = self.sync.config.max_poll_records if max_records is None else max_records
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"max_records is {max_records!r:.80}, expected an int, at least 1")
        deadline = self._deadline(timeout)
        while True:
            self._threads.check_fork()
            async with self._turn:
                await self._settle_piece()
                await self._settle_poll()
                self._loop_consumer.begin()
                self._poll = self._threads.submit(partial(self._loop_consumer.look_for_poll, count))
                await asyncio.wait([self._poll])
                done, self._poll = self._poll, None
                found, seconds = done.result()
            if found:
                # The last step: what a poll does not return comes again.
                self._loop_consumer.reading.before = {}
                return found
            if not await self._told(seconds, deadline):
                return {}

    async def to_arrow(self, max_records: int = 65_536, **options: Any) -> pa.Table:
        """The next available records as a ``pyarrow.Table``. See ``kstore.Consumer.to_arrow``."""
        return await self._in_thread(partial(self.sync.to_arrow, max_records, 0.0, **options))

    @property
    def current(self) -> TopicPartition | None:
        """The partition of the record that an iteration returned last."""
        return self.sync.current

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else asyncio.get_running_loop().time() + timeout

    async def _told(self, seconds: float, deadline: float | None) -> bool:
        """Waits until there may be a record; False at the deadline."""
        if deadline is not None:
            seconds = min(seconds, rest := deadline - asyncio.get_running_loop().time())
            if rest <= 0:
                return False
        if seconds > 0:
            await self._loop_consumer.told(seconds)
        return True

    async def _settle_piece(self) -> None:
        """Waits for what a cancelled iteration has started. The consumer knows that none of it was returned."""
        if self._piece is not None:
            await asyncio.wait([self._piece])

    async def _settle_poll(self) -> None:
        """Waits for what a cancelled poll has started. The consumer knows that none of it was returned."""
        if self._poll is not None:
            await asyncio.wait([self._poll])
            done, self._poll = self._poll, None
            done.exception()  # it ended with the cancelled poll

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        """Makes another call in a thread, when it is this consumer's turn. If cancelled, even before, it still runs."""
        self._threads.check_fork()
        return await whole(self._called(call))

    async def _called(self, call: Callable[[], Result]) -> Result:
        async with self._turn:
            await self._settle_piece()
            await self._settle_poll()
            return await self._threads.run(call)

    # --- what it reads ----------------------------------------------------------------------------------------------

    subscribe = in_thread(SyncConsumer.subscribe)
    assign = in_thread(SyncConsumer.assign)
    unsubscribe = in_thread(SyncConsumer.unsubscribe)

    def assignment(self) -> set[TopicPartition]:
        """Its partitions; in a group they may change after each wait."""
        return self.sync.assignment()

    def group_metadata(self) -> GroupMetadata:
        """See ``kstore.Consumer.group_metadata``."""
        return self.sync.group_metadata()

    # --- where it is ------------------------------------------------------------------------------------------------

    position = in_thread(SyncConsumer.position)
    seek = in_thread(SyncConsumer.seek)
    skip_damage = in_thread(SyncConsumer.skip_damage)
    seek_to_beginning = in_thread(SyncConsumer.seek_to_beginning)
    seek_to_end = in_thread(SyncConsumer.seek_to_end)
    seek_to_time = in_thread(SyncConsumer.seek_to_time)
    seek_to_committed = in_thread(SyncConsumer.seek_to_committed)
    pause = in_thread(SyncConsumer.pause)
    resume = in_thread(SyncConsumer.resume)

    def paused(self) -> set[TopicPartition]:
        return self.sync.paused()

    lag = in_thread(SyncConsumer.lag)
    beginning_offsets = in_thread(SyncConsumer.beginning_offsets)
    end_offsets = in_thread(SyncConsumer.end_offsets)
    offsets_for_times = in_thread(SyncConsumer.offsets_for_times)
    # --- commit -----------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Offsets | None = None, *, producer: Producer | None = None) -> None:
        """Commits the group's position: after the returned records. See ``kstore.Consumer.commit``.

        If cancelled, it runs to its end.
        """
        sender = None if producer is None else producer.sync
        await self._in_thread(partial(self.sync.commit, offsets, producer=sender))

    committed = in_thread(SyncConsumer.committed)
    # --- close ------------------------------------------------------------------------------------------------------

    async def close(self, *, commit: bool = True) -> None:
        """See ``kstore.Consumer.close``. If cancelled, it runs to its end."""
        if self._threads.forked:
            self.sync.close()  # its place in the group is the parent's
        elif not self.closed:
            try:
                await self._in_thread(partial(self.sync.close, commit=commit))
            finally:
                self._loop_consumer.wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a failure the returned records may not be processed: they are not committed, and come again.
        await self.close(commit=error is None)
