"""A ``Producer`` for the thread of an event loop: it raises where the ordinary one waits for memory or a topic.

All its calls come from one loop's thread, so memory that one step finds free is still free in the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kstore.errors import BufferExhaustedError, ConfigError, TopicNotFoundError, TopicWaitTimeoutError
from kstore.logs.topics import Topics
from kstore.producer._accumulate import Deliveries, Delivery, ProducerBatch
from kstore.producer.interceptors import Interceptors
from kstore.producer.parts import producer_parts
from kstore.producer.producer import Producer
from kstore.producer.records import ProducerRecord
from kstore.producer.waiting import is_on_loop, wake
from kstore.transactions.of_store import StoreCoordinator


class NoRoomError(BaseException):
    """The record was not accepted: no memory is free for it now. Not a failure: interceptors do not see it."""


class _OnceInterceptors(Interceptors):
    """Let interceptors see each record once, however many times it is tried."""

    # The intercepted form of the last tried record, and whether it is being retried.
    record: ProducerRecord | None = None
    is_again = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        if not self.is_again or self.record is None:
            self.record = super().on_send(record)
        return self.record


class _NoWaiting:
    """Refuses to wait for memory on the loop's thread, unless ``may_wait`` is set. Raises: NoRoomError."""

    may_wait = False

    def __call__(self) -> None:
        if is_on_loop() and not self.may_wait:
            raise NoRoomError


class LoopProducer:
    """The producer that ``aio.Producer`` uses. ``sync.send`` raises NoRoomError instead of waiting for memory."""

    def __init__(self, topics: Topics, coordinator: StoreCoordinator, **settings: Any) -> None:
        """Raises: ConfigError."""
        parts = producer_parts(topics, coordinator, **settings)
        self._parts = parts
        self._metadata = parts.metadata
        self._outbox = parts.outbox
        self._no_waiting = self._outbox.before_wait = _NoWaiting()
        self._path = parts.slow_path
        self._once = self._path.interceptors = _OnceInterceptors(parts.config.interceptors)
        self.max_block_seconds: float = self._path.max_block_seconds
        # Only awaited calls wait.
        self._path.max_block_seconds = 0.0
        self.sync: Producer = Producer(parts)

    @property
    def closed(self) -> bool:
        return self.sync.closed

    @property
    def intercepted(self) -> ProducerRecord | None:
        """The intercepted form of the last tried record."""
        return self._once.record

    def forget_intercepted(self) -> None:
        """The next record has not been tried."""
        self._once.record = None

    @contextmanager
    def trying_again(self, intercepted: ProducerRecord | None) -> Iterator[None]:
        """Sends the record inside this block again, if interceptors have seen it."""
        self._once.record, self._once.is_again = intercepted, intercepted is not None
        try:
            yield
        finally:
            self._once.is_again = False

    def send_at_once(
        self, topic: str, values: Sequence[Any], columns: Mapping[str, Sequence[Any] | None], partition: int | None
    ) -> Deliveries:
        """``send_many``, once there is space for it."""
        self._no_waiting.may_wait, self._path.max_block_seconds = True, self.max_block_seconds
        try:
            return self.sync.send_many(topic, values, partition=partition, **columns)
        finally:
            self._no_waiting.may_wait, self._path.max_block_seconds = False, 0.0

    def refuse(
        self, topic: str, partition: int | None, error: Exception, intercepted: ProducerRecord | None = None
    ) -> Delivery:
        """A failed delivery, after a wait that timed out."""
        self._parts.transactions.record_failed(error)
        if intercepted is not None:
            self._once.on_send_error(intercepted, error, partition)
        return self.refuse_one(topic, partition, error)

    def refuse_one(self, topic: str, partition: int | None, error: Exception) -> Delivery:
        """A failed delivery, for an invalid record among many."""
        return self._path.refused(topic, partition, error, None)

    # --- topics -----------------------------------------------------------------------------------------------------

    def knows(self, topic: str, partition: int | None) -> bool:
        """Whether a record for this topic need not wait for it. Raises: TypeError."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic of type {type(topic).__name__}, expected a str")
        metadata = self._metadata
        found = metadata.topics.get(topic)
        if found is None or topic in metadata.stale:
            return False
        return partition is None or partition < found.partition_count

    async def topic(self, topic: str, partition: int | None) -> Exception | None:
        """Waits for a topic as ``TopicMetadata.get`` does; returns the error if it, or its ``partition``, does not
        exist.

        Raises: ClosedError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.max_block_seconds
        while True:
            self._path.check_open()
            told = _Signal(loop)
            # Before the look, so that no change is missed.
            self._parts.topics.watch(told)
            try:
                self._parts.metadata.get(topic, partition, 0.0)
                return None
            except (ConfigError, TopicNotFoundError) as error:
                return error  # no topic can have such a name, or the call does not wait
            except TopicWaitTimeoutError as error:
                if not await told.wait(deadline):
                    if self.max_block_seconds == 0:
                        return error
                    missing = self._parts.metadata.missing(topic, partition)
                    return TopicWaitTimeoutError(f"{missing}, after {self._parts.config.max_block_ms} ms")
            finally:
                self._parts.topics.unwatch(told)

    # --- memory -----------------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Whether ``size`` bytes of memory are free."""
        return self._outbox.pool.available >= size and not self._outbox.pool.waiting_count

    def is_simple(self, topic: str) -> bool:
        """Whether the records of a topic need exactly the memory of their sizes: nothing transforms them first."""
        found = self._parts.metadata.topics.get(topic)
        return self._parts.slow_path.is_plain and found is not None and found.codec == "none"

    def room_max(self, topic: str, size: int) -> int:
        """The most memory that records of ``size`` bytes in total need in a simple topic.

        Each batch of a partition but the last is closed because it was too small with the next one's first record: so
        all of them together are less than three times their contents.
        """
        return (
            3 * size
            + self._parts.metadata.topics[topic].partition_count * self._parts.config.batch_size
            + self._outbox.accumulator.run_bytes_max
        )

    def freed(self) -> _Signal:
        """Signals when memory is freed next; registered before the attempt that may fail."""
        told = _Signal(asyncio.get_running_loop())
        self._outbox.pool.when_freed(told)
        return told

    async def room(self, freed: _Signal, deadline: float) -> bool:
        """Waits for memory, and writes now whatever holds some. False at ``deadline``, by the loop's clock."""
        who = object()
        self._outbox.accumulator.begin_hurry(who)
        try:
            self._outbox.wakeup.set()
            return await freed.wait(deadline)
        finally:
            self._outbox.accumulator.end_hurry(who)

    def exhausted(self, size: int) -> BufferExhaustedError:
        pool = self._outbox.pool
        return BufferExhaustedError(
            wanted=size,
            waited_ms=self._parts.config.max_block_ms,
            total_bytes=pool.total_bytes,
            available=pool.available,
            poolable_bytes=pool.poolable_bytes,
        )

    # --- flush ------------------------------------------------------------------------------------------------------

    async def drained(self) -> None:
        """Waits until every present batch has a result."""
        who = object()
        batches = self._outbox.accumulator.begin_hurry(who)
        try:
            self._outbox.wakeup.set()
            while batches:
                batch = batches.pop()
                await _released(batch)
                batches += [child for _, child in batch.children or ()]
        finally:
            self._outbox.accumulator.end_hurry(who)

    async def flushed(self) -> None:
        """``flush``, for the loop. Raises: DeliveryError, ForkedError."""
        self._parts.life.check_fork()
        clock = self._parts.clock
        started = clock.monotonic()
        try:
            await self.drained()
        finally:
            self._parts.counters.flushed(clock.monotonic() - started)
        self._outbox.report_failures()

    # --- transactions -----------------------------------------------------------------------------------------------

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was started and not ended."""
        return self._parts.transactions.is_open

    @property
    def is_abortable(self) -> bool:
        """Whether a transaction was started, and no call has begun to commit it."""
        return self._parts.transactions.is_abortable

    def begin_commit(self) -> None:
        """The first half of ``commit_transaction``, before the sent records are ``drained``. Raises: as that."""
        self._path.check_open()
        self._parts.transactions.begin_end(commit=True)
        self._outbox.accumulator.is_paused = True

    def end_commit(self) -> None:
        """The second half of ``commit_transaction``. Raises: as that."""
        with self._parts.counters.transaction_call("commit", self._parts.clock):
            self._parts.transactions.end(commit=True)


class _Signal:
    """A signal that any thread gives once, and a task of a loop waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] = loop.create_future()

    def __call__(self, *_: object) -> None:
        wake([(self._loop, self._future)])

    async def wait(self, deadline: float) -> bool:
        """Whether it was given before ``deadline``, by the loop's clock."""
        remaining = deadline - self._loop.time()
        if remaining <= 0:
            return self._future.done()
        done, _ = await asyncio.wait([self._future], timeout=remaining)
        return bool(done)


async def _released(batch: ProducerBatch) -> None:
    """Waits until a batch has a result."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    if not batch.is_released and batch.tell((loop, future)):
        await future
