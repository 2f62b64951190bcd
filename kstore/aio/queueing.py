"""``Queue`` for tasks: puts and acks share their syncs, gets wait without a thread, and a cancel loses no item."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Final, NamedTuple, Self, cast

from kstore.aio._line import are_bytes
from kstore.aio.gathering import Gathering, all_but_refused, all_or_one_by_one, one_by_one
from kstore.aio.leasing import Getters, deadline_of
from kstore.aio.opening import Opening, made_by
from kstore.aio.threads import Threads, in_thread
from kstore.aio.waking import LoopWaiter
from kstore.errors import ClosedError, Full, KstoreError, LeaseLostError
from kstore.log import writer_of
from kstore.queue.config import seconds_of
from kstore.queue.items import GivenHeaders, Headers, of_user
from kstore.queue.job import Job as SyncJob
from kstore.queue.look import LeasedItem
from kstore.queue.queue import LOOK_SECONDS, core_of
from kstore.queue.queue import Queue as SyncQueue
from kstore.record._codec import as_headers
from kstore.rules.arguments import as_columns

logger = logging.getLogger(__name__)

# The most that a queue's own headers add to an item with a delay.
MARKS_BYTES_MAX: Final = 64


class _Put(NamedTuple):
    """An item that is more than a small value. ``is_certain``: the queue's log accepts it."""

    item: bytes
    delay: float
    key: bytes | None
    headers: tuple[tuple[str | bytes, bytes | None], ...]
    is_certain: bool


class Queue:
    """A durable queue of an ``aio.Store``, for all tasks of its loop; closed with the store."""

    @made_by("await store.queue(name)")
    def __init__(self, queue: SyncQueue, threads: Threads, watch: Callable[[LoopWaiter], None]) -> None:
        """See ``Store.queue``."""
        self.sync = queue
        self._threads = threads
        self._in_thread = threads.run
        self._watch = watch
        self._getters = Getters(queue, threads, asyncio.get_running_loop())
        watch(self._getters.waiter)
        self._limits = writer_of(core_of(queue).items).appends
        self._puts: Gathering[bytes | _Put, int] = Gathering(threads, self._put_all)
        self._acks: Gathering[SyncJob, None] = Gathering(threads, self._ack_all, is_decided=True)
        # Set and replaced after tasks took or finished items: a put may find space, and a join may be over.
        self._loop = asyncio.get_running_loop()
        self._changed: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"

    @property
    def name(self) -> str:
        return self.sync.name

    @property
    def closed(self) -> bool:
        return self.sync.closed

    # --- put --------------------------------------------------------------------------------------------------------

    async def put(
        self,
        item: bytes,
        *,
        timeout: float | None = None,
        delay: float = 0,
        key: bytes | None = None,
        headers: GivenHeaders = (),
    ) -> int:
        """Puts an item; returns its offset. On return it is as durable as the queue's setting says.

        With a ``maxsize`` it waits for space, at most ``timeout`` seconds. If cancelled, a note of the CancelledError
        says whether the item was put. See ``kstore.Queue.put``. Raises: Full, and as that.
        """
        put: bytes | _Put
        if not delay and key is None and not headers and type(item) is bytes:
            size = len(item)
            put = item if size <= self._limits.certain_bytes else _Put(item, 0, None, (), False)
        else:
            given, size = of_user(as_headers(headers)), _size_of(item) + _size_of(key)
            is_plain = not given and type(item) is bytes and (key is None or type(key) is bytes)
            is_certain = is_plain and size <= self._limits.certain_bytes - MARKS_BYTES_MAX
            put = _Put(item, seconds_of("delay", delay), key, given, is_certain)
        if self.sync.maxsize or timeout is not None:
            return await self._with_room(lambda: self._puts.add(put, size), timeout)
        # As ``Gathering.add``, without another coroutine for each item.
        puts = self._puts
        entry = puts.join(put, size) or await puts.join_later(put, size)
        try:
            offset: int = await entry.future
            return offset
        except asyncio.CancelledError as error:
            await puts.cancelled(entry, error)

    async def put_nowait(self, item: bytes) -> int:
        """``put`` that does not wait for space, only for the disk. Raises: Full, and as that."""
        return await self.put(item, timeout=0)

    async def put_many(
        self,
        items: Iterable[bytes | None],
        *,
        timeout: float | None = None,
        delay: float = 0,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[GivenHeaders | None] | None = None,
    ) -> int:
        """Puts items in one append; returns the offset of the first. See ``kstore.Queue.put_many``.

        If cancelled after it has started, it runs to its end.
        """
        # As lists, and once: the call is repeated when there is room.
        items, keys, _, headers = as_columns(items, keys, None, headers)
        headers = None if headers is None else [as_headers(own) for own in headers]
        put = partial(self.sync.put_many, items, False, delay=delay, keys=keys, headers=headers)
        return await self._with_room(lambda: self._threads.run(put), timeout)

    async def _with_room(self, put: Callable[[], Awaitable[int]], timeout: float | None) -> int:
        deadline = deadline_of(timeout)
        while True:
            changed = self._changed
            try:
                return await put()
            except Full:
                if not await _is_set(changed, deadline):
                    raise

    def _put_all(self, items: list[bytes | _Put]) -> Sequence[int | Exception]:
        if are_bytes(items):
            values = cast(list[bytes], items)
            if len(values) == 1:
                return [self.sync.put(values[0], False)]
            return all_or_one_by_one(self._put_values, partial(self.sync.put, block=False), values)
        puts = [item if isinstance(item, _Put) else _Put(item, 0, None, (), True) for item in items]
        return all_but_refused(self._refusal, self._put_in_runs, puts)

    def _refusal(self, put: _Put) -> Exception | None:
        """Why the queue's log does not accept an item, which must not affect the others."""
        if put.is_certain:
            return None
        try:
            self._limits.check(put.item, put.key, None, put.headers)
        except Exception as error:
            return error
        return None

    def _put_in_runs(self, puts: Sequence[_Put]) -> list[int | Exception]:
        """Puts items one after the other, with one append for all neighbours that have the same delay."""
        outcomes: list[int | Exception] = []
        for _, run in groupby(puts, lambda put: put.delay):
            neighbours = list(run)
            try:
                outcomes += all_or_one_by_one(self._put_at_once, self._put_one, neighbours)
            except Exception as error:
                outcomes += [error] * len(neighbours)
        return outcomes

    def _put_values(self, values: Sequence[bytes]) -> Sequence[int]:
        first = self.sync.put_many(values, False)
        return range(first, first + len(values))

    def _put_at_once(self, puts: Sequence[_Put]) -> Sequence[int]:
        first = self.sync.put_many(
            [put.item for put in puts],
            False,
            delay=puts[0].delay,
            keys=[put.key for put in puts] if any(put.key is not None for put in puts) else None,
            headers=[put.headers for put in puts] if any(put.headers for put in puts) else None,
        )
        return range(first, first + len(puts))

    def _put_one(self, put: _Put) -> int:
        return self.sync.put(put.item, False, delay=put.delay, key=put.key, headers=put.headers)

    # --- get --------------------------------------------------------------------------------------------------------

    def get(self, *, timeout: float | None = None, lease_seconds: float | None = None) -> Opening[Job]:
        """Leases the next item: ``async with queue.get() as job:`` acks it, or nacks it after an exception; or
        ``job = await queue.get()``.

        Waits at most ``timeout`` seconds, 0 for not at all. If cancelled, it has leased none. Raises: Empty, and as
        ``kstore.Queue.get``.
        """

        async def made() -> Job:
            return (await self.get_many(1, timeout=timeout, lease_seconds=lease_seconds))[0]

        return Opening(made)

    def get_nowait(self) -> Opening[Job]:
        """``get`` that does not wait for an item. Raises: Empty, and as that."""
        return self.get(timeout=0)

    async def get_many(
        self, count: int, *, timeout: float | None = None, lease_seconds: float | None = None
    ) -> list[Job]:
        """Leases up to ``count`` items; waits only if no item is available. If cancelled, it has leased none."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"count is {count!r:.80}, expected at least 1")
        jobs = await self._getters.get(count, timeout, lease_seconds)
        self._change()
        return [Job(self, job) for job in jobs]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job:
        """The next item, leased; ``async with job:`` acks it. The iteration ends when the store is closed."""
        try:
            return await self.get()
        except ClosedError:
            raise StopAsyncIteration from None

    # --- ack, nack, extend ------------------------------------------------------------------------------------------

    async def ack_many(self, jobs: Sequence[Job]) -> None:
        """Acks jobs in one append: all of them, or none. If cancelled, it runs to its end."""
        try:
            await self._in_thread(partial(self.sync.ack_many, [job.sync for job in jobs]))
        finally:
            self._change()

    async def _ack(self, job: SyncJob) -> None:
        try:
            await self._acks.add(job)
        finally:
            self._change()

    def _ack_all(self, jobs: list[SyncJob]) -> list[Exception | None]:
        try:
            self.sync.ack_many(jobs)
        except LeaseLostError:
            # None of them was acked.
            return one_by_one(self.sync.ack, jobs)
        return [None] * len(jobs)

    async def _nack(self, job: SyncJob, delay: float) -> None:
        try:
            await self._in_thread(partial(self.sync.nack, job, delay))
        finally:
            self._change()
            self._getters.waiter.wake()

    async def _fail(self, job: SyncJob) -> None:
        try:
            await self._in_thread(partial(self.sync.fail, job))
        finally:
            self._change()

    # --- inspection -------------------------------------------------------------------------------------------------

    async def join(self, timeout: float | None = None) -> bool:
        """Waits until every item is done; False after ``timeout`` seconds. See ``kstore.Queue.join``."""
        deadline = deadline_of(timeout)
        while True:
            changed = self._changed
            if await self._in_thread(partial(self.sync.join, 0)):
                return True
            if not await _is_set(changed, deadline):
                return False

    def _change(self) -> None:
        # The new one first: after an error here the next call finds one that is not set.
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)

    async def task_done(self, job: Job) -> None:
        """Acks ``job``, as ``kstore.Queue.task_done`` does; a task has to say which."""
        await job.ack()

    @property
    def maxsize(self) -> int:
        """See ``kstore.Queue.maxsize``."""
        return self.sync.maxsize

    empty = in_thread(SyncQueue.empty)
    full = in_thread(SyncQueue.full)

    async def leased(self) -> list[LeasedItem]:
        """See ``kstore.Queue.leased``; the holders are threads of the store."""
        return await self._in_thread(self.sync.leased)

    qsize = in_thread(SyncQueue.qsize)
    stats = in_thread(SyncQueue.stats)

    async def accept_loss(self) -> int:
        """See ``kstore.Queue.accept_loss``."""
        count = await self._in_thread(self.sync.accept_loss)
        self._change()
        return count

    peek = in_thread(SyncQueue.peek)

    async def dead_letters(self) -> Queue:
        """The queue of the items that were delivered too many times."""
        return Queue(await self._in_thread(lambda: self.sync.dead_letters), self._threads, self._watch)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The store closes it."""


async def _is_set(changed: asyncio.Future[None], deadline: float | None) -> bool:
    """Waits until it is set, or until there may be an unannounced change; False at the deadline."""
    rest = LOOK_SECONDS if deadline is None else deadline - asyncio.get_running_loop().time()
    if rest > 0:
        await asyncio.wait([changed], timeout=min(rest, LOOK_SECONDS))
    return rest > 0


def _size_of(field: object) -> int:
    # The queue reports an invalid one.
    return len(field) if isinstance(field, bytes) else 0


class Job:
    """An item that a task has leased. ``async with job:`` acks it, or nacks it after an exception or a cancel."""

    @made_by("await queue.get()")
    def __init__(self, queue: Queue, job: SyncJob) -> None:
        self.sync = job
        self._queue = queue

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"

    @property
    def value(self) -> bytes | None:
        return self.sync.value

    @property
    def key(self) -> bytes | None:
        return self.sync.key

    @property
    def headers(self) -> Headers:
        return self.sync.headers

    @property
    def offset(self) -> int:
        return self.sync.offset

    @property
    def timestamp(self) -> int:
        return self.sync.timestamp

    @property
    def delivery_count(self) -> int:
        return self.sync.delivery_count

    @property
    def is_open(self) -> bool:
        """Neither acked nor nacked."""
        return self.sync.is_open

    async def ack(self) -> None:
        """See ``kstore.Job.ack``. If cancelled, it runs to its end."""
        await self._queue._ack(self.sync)

    async def nack(self, delay: float = 0) -> None:
        """See ``kstore.Job.nack``. If cancelled, it runs to its end."""
        await self._queue._nack(self.sync, delay)

    async def fail(self) -> None:
        """See ``kstore.Job.fail``. If cancelled, it runs to its end."""
        await self._queue._fail(self.sync)

    async def extend(self, seconds: float | None = None) -> None:
        """See ``kstore.Job.extend``."""
        await self._queue._threads.run(partial(self.sync.extend, seconds))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_open:
            return
        if kind is None:
            await self.ack()
            return
        try:
            await self.nack()
        except LeaseLostError:
            pass  # another worker has it already
        except KstoreError as failure:
            # The caller must get the first error; the item comes back when its lease expires.
            logger.warning("item %d could not be returned: %s", self.offset, failure)
