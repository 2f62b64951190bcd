"""``Store`` for tasks, and ``open``: what blocks runs in a few threads of the store's own."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Generator, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from kstore.aio.producing import Producer
from kstore.aio.reading import Log
from kstore.aio.sending import LoopProducer
from kstore.aio.threads import THREADS, Threads, to_the_end
from kstore.aio.waking import LoopWaiter
from kstore.metrics import MetricValue
from kstore.store import Store as SyncStore
from kstore.store import StoreStatus, TopicDescription
from kstore.types import RetentionResult

__all__ = ["Store", "open"]

Result = TypeVar("Result")


class Store:
    """An open store, for the tasks of one loop. Made by ``open``.

    What it does not have, ``store.sync`` has, the ``kstore.Store`` behind it::

        await store.run(store.sync.checkpoint)
    """

    def __init__(self, store: SyncStore, threads: Threads) -> None:
        self.sync = store
        self._threads = threads
        self._waiters: weakref.WeakSet[LoopWaiter] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"

    @property
    def closed(self) -> bool:
        return self.sync.closed

    async def run(self, call: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        """What ``call`` returns, or raises, in one of the store's threads. Cancelled, it goes on to its end."""
        return await self._threads.run(partial(call, *arguments, **options))

    # --- topics -----------------------------------------------------------------------------------------------------

    async def topics(self, *, internal: bool = False) -> list[str]:
        """See ``kstore.Store.topics``."""
        return await self.run(self.sync.topics, internal=internal)

    async def partitions(self, name: str) -> list[int]:
        """See ``kstore.Store.partitions``."""
        return await self.run(self.sync.partitions, name)

    async def create_topic(self, name: str, partitions: int = 1, **settings: Any) -> None:
        """See ``kstore.Store.create_topic``."""
        await self.run(self.sync.create_topic, name, partitions, **settings)

    async def add_partitions(self, name: str, total: int) -> None:
        """See ``kstore.Store.add_partitions``."""
        await self.run(self.sync.add_partitions, name, total)

    async def alter_topic(self, name: str, *, reset: Iterable[str] = (), **settings: Any) -> None:
        """See ``kstore.Store.alter_topic``."""
        await self.run(self.sync.alter_topic, name, reset=reset, **settings)

    async def delete_topic(self, name: str) -> None:
        """See ``kstore.Store.delete_topic``."""
        await self.run(self.sync.delete_topic, name)

    async def describe_topic(self, name: str) -> TopicDescription:
        """See ``kstore.Store.describe_topic``."""
        return await self.run(self.sync.describe_topic, name)

    # --- what is in it ----------------------------------------------------------------------------------------------

    async def log(self, topic: str, partition: int = 0) -> Log:
        """The log of a partition, to be read. Raises: as ``kstore.Store.log``."""
        return Log(await self.run(self.sync.log, topic, partition), self._threads, self._waiters.add)

    def producer(self, **settings: Any) -> Producer:
        """A producer for all tasks; ``settings`` are those of ``kstore.Store.producer``. Raises: ConfigError."""
        store = self.sync
        store._writing  # noqa: B018  # open for writing
        return Producer(store._producer_host.made(LoopProducer(store._producer_host, **settings)), self._threads)

    # --- work -------------------------------------------------------------------------------------------------------

    async def apply_retention(self) -> RetentionResult:
        """See ``kstore.Store.apply_retention``."""
        return await self.run(self.sync.apply_retention)

    async def metrics(self) -> dict[str, MetricValue]:
        """See ``kstore.Store.metrics``."""
        return await self.run(self.sync.metrics)

    def status(self) -> StoreStatus:
        """See ``kstore.Store.status``."""
        return self.sync.status()

    # --- close ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes the store, and ends what follows its logs. Cancelled, it goes on to its end. Raises: as
        ``kstore.Store.close``."""
        if self._threads.closed:
            return
        try:
            await self._threads.run(self.sync.close)
        finally:
            self._threads.close()
            for waiter in list(self._waiters):
                waiter.wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Opening:
    """``async with open(...) as store`` and ``store = await open(...)``."""

    def __init__(self, make: Callable[[], SyncStore], threads: int) -> None:
        self._make = make
        self._thread_count = threads
        self._store: Store | None = None

    def __await__(self) -> Generator[Any, None, Store]:
        return self._opened().__await__()

    async def __aenter__(self) -> Store:
        self._store = await self._opened()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._store is not None
        await self._store.close()

    async def _opened(self) -> Store:
        threads = Threads(self._thread_count)
        opened: asyncio.Future[SyncStore] | None = None
        try:
            opened = threads.submit(self._make)
            return Store(await to_the_end(opened), threads)
        except BaseException:
            try:
                if opened is not None and opened.exception() is None:
                    # Cancelled: nobody gets it, and it must not keep its lock.
                    await threads.run(opened.result().close)
            finally:
                threads.close()
            raise


def open(path: str | os.PathLike[str], *, threads: int = THREADS, **settings: Any) -> _Opening:
    """Opens the store in directory ``path``: ``async with kstore.aio.open(path) as store:``, or ``await``.

    Args:
        threads: so many blocking calls run side by side.
        settings: the arguments of ``kstore.open``.

    Raises: as ``kstore.open``, when it is awaited. Cancelled, it waits for the opening to end, and closes what it made.
    """
    return _Opening(partial(SyncStore, path, **settings), threads)
