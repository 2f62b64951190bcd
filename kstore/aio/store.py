"""``Store`` for tasks, and ``open``: blocking work runs in a few threads of the store's own."""

from __future__ import annotations

import asyncio
import os
import re
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from kstore.aio.consuming import Consumer
from kstore.aio.log import Log
from kstore.aio.opening import Opening, made_by
from kstore.aio.polling import LoopConsumer
from kstore.aio.producing import Producer
from kstore.aio.queueing import Queue
from kstore.aio.sending import LoopProducer
from kstore.aio.threads import THREADS, Threads, in_thread
from kstore.aio.waking import LoopWaiter
from kstore.consumer.wanted import RebalanceListener
from kstore.log import Log as SyncLog
from kstore.store import Store as SyncStore
from kstore.store import StoreStatus, parts_of
from kstore.store import open as open_store
from kstore.types import Durability, RecoveryReport

if TYPE_CHECKING:
    from kstore.settings import ConsumerSettings, ProducerSettings, QueueSettings
    from kstore.store import StoreArguments

Result = TypeVar("Result")


class Store:
    """An open store, for the tasks of one loop. Created by ``open``.

    For the methods it lacks, use ``store.sync``, the underlying ``kstore.Store``::

        await store.run(store.sync.checkpoint)
    """

    @made_by("kstore.aio.open(path)")
    def __init__(self, store: SyncStore, threads: Threads) -> None:
        self.sync = store
        self._threads = threads
        self._in_thread = threads.run
        self._logs: weakref.WeakValueDictionary[SyncLog, Log] = weakref.WeakValueDictionary()
        self._queues: dict[str, Queue] = {}
        self._waiters: weakref.WeakSet[LoopWaiter] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"

    @property
    def closed(self) -> bool:
        return self.sync.closed

    async def run(self, call: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        """What ``call`` returns, or raises, in one of the store's threads. If cancelled, it runs to its end."""
        return await self._in_thread(partial(call, *arguments, **options))

    # --- topics -----------------------------------------------------------------------------------------------------

    topics = in_thread(SyncStore.topics)
    partitions = in_thread(SyncStore.partitions)
    create_topic = in_thread(SyncStore.create_topic)
    topic = in_thread(SyncStore.topic)
    add_partitions = in_thread(SyncStore.add_partitions)
    alter_topic = in_thread(SyncStore.alter_topic)
    delete_topic = in_thread(SyncStore.delete_topic)
    describe_topic = in_thread(SyncStore.describe_topic)
    # --- what is in it ----------------------------------------------------------------------------------------------

    async def log(self, topic: str, partition: int = 0) -> Log:
        """The log of a partition: one object for all tasks, closed with the store. Raises: as ``kstore.Store.log``."""
        log = await self.run(self.sync.log, topic, partition)
        known = self._logs.get(log)
        if known is None:
            known = self._logs[log] = Log(log, self._threads, self._waiters.add)
        return known

    to_arrow = in_thread(SyncStore.to_arrow)

    def producer(self, **settings: Unpack[ProducerSettings]) -> Producer:
        """A producer for all tasks; ``settings`` are those of ``kstore.Store.producer``. Raises: ConfigError."""
        parts = parts_of(self.sync)
        parts.topics.check_writable()
        producer = LoopProducer(parts.topics, parts.coordinator, **settings)
        parts.producers.add(producer.sync)
        return Producer(producer, self._threads)

    def consumer(
        self,
        *topics: str,
        group: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Opening[Consumer]:
        """A consumer: ``async with store.consumer("orders", group="billing") as consumer:``, or ``await``.

        The arguments and errors are those of ``kstore.Store.consumer``.
        """
        parts = parts_of(self.sync)

        async def made() -> Consumer:
            loop = asyncio.get_running_loop()

            def make() -> LoopConsumer:
                consumer = LoopConsumer(
                    loop, parts.topics, parts.groups, topics, group, settings, pattern=pattern, listener=listener
                )
                parts.consumers.add(consumer.sync)
                return consumer

            return Consumer(await self._threads.made(make, LoopConsumer.close), self._threads)

        return Opening(made)

    def queue(self, name: str, *, adopt: bool = False, **settings: Unpack[QueueSettings]) -> Opening[Queue]:
        """The queue of topic ``name``, created if it does not exist: ``queue = await store.queue("jobs")``.

        One object for all tasks, closed with the store. ``adopt``, ``settings`` and errors are those of
        ``kstore.Store.queue``.
        """

        async def made() -> Queue:
            queue = await self.run(self.sync.queue, name, adopt=adopt, **settings)
            known = self._queues.get(name)
            if known is None or known.sync is not queue:
                known = self._queues[name] = Queue(queue, self._threads, self._waiters.add)
            return known

        return Opening(made)

    # --- work -------------------------------------------------------------------------------------------------------

    apply_retention = in_thread(SyncStore.apply_retention)
    metrics = in_thread(SyncStore.metrics)

    @property
    def recovery(self) -> dict[str, RecoveryReport]:
        """See ``kstore.Store.recovery``."""
        return self.sync.recovery

    def status(self) -> StoreStatus:
        """See ``kstore.Store.status``."""
        return self.sync.status()

    # --- close ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes the store, and ends the followers of its logs. If cancelled, it runs to its end. Raises: as
        ``kstore.Store.close``."""
        if self._threads.closed:
            return
        if self._threads.forked:
            self.sync.close()  # everything belongs to the parent
            self._threads.close()
            return
        try:
            await self._in_thread(self.sync.close)
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


def open(
    path: str | os.PathLike[str],
    *,
    threads: int = THREADS,
    read_only: bool = False,
    shared: bool = False,
    create: bool = True,
    durability: Durability = "sync",
    background: bool = True,
    **settings: Unpack[StoreArguments],
) -> Opening[Store]:
    """Opens the store in directory ``path``: ``async with kstore.aio.open(path) as store:``, or ``await``.

    Args:
        threads: how many blocking calls run in parallel.
        settings: the arguments of ``kstore.open``.

    Raises: as ``kstore.open``, when awaited. If cancelled, it waits for the open to end, and closes the result.
    """

    async def made() -> Store:
        pool = Threads(threads)
        try:
            return Store(
                await pool.made(
                    partial(
                        open_store,
                        path,
                        read_only=read_only,
                        shared=shared,
                        create=create,
                        durability=durability,
                        background=background,
                        **settings,
                    ),
                    SyncStore.close,
                ),
                pool,
            )
        except BaseException:
            pool.close()
            raise

    return Opening(made)
