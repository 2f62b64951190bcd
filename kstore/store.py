"""``Store``: many logs in one directory, by topic and partition, with the work that keeps them small and safe.

topics   store_topics     made, changed, deleted; logs/directory what lies in the root; rules/topics what exists
logs     logs/open_logs   opened when first needed, shared, flushed and closed together
work     logs/tasks       retention, idle rolls, checkpoints, removal, producers, compaction, on a ``Scheduler``
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.config import LogConfig, StoreConfig
from kstore.consumer.consumer import Consumer
from kstore.consumer.group_files import FileGroup, group_directory
from kstore.consumer.of_store import StoreConsumers, set_back_offsets
from kstore.consumer.wanted import RebalanceListener
from kstore.errors import (
    ClosedError,
    ConfigError,
    KstoreError,
    LogNotFoundError,
    ReadOnlyError,
)
from kstore.files.fork import ForkGuard
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.files.threads import closed_elsewhere, side_by_side
from kstore.log import Log
from kstore.logs.directory import LogDirectory
from kstore.logs.metrics import logs_metrics, store_metrics
from kstore.logs.open_logs import FLUSH_TASK, Flushes, OpenLogs
from kstore.logs.scheduler import Scheduler, TaskStatus
from kstore.logs.tasks import StoreTasks
from kstore.metrics import MetricValue, summed
from kstore.producer.of_store import StoreHost
from kstore.producer.producer import Producer
from kstore.queue.of_store import StoreQueues
from kstore.queue.queue import Queue
from kstore.rules.arguments import one_of
from kstore.store_topics import PartitionDescription, StoreTopics, TopicDescription, TopicSummary
from kstore.transactions.coordinator import TransactionCoordinator
from kstore.transactions.group_offsets import GroupOffsets
from kstore.transactions.of_store import StoreCoordinator
from kstore.types import DURABILITIES, Durability, RetentionResult

__all__ = ["PartitionDescription", "Store", "StoreStatus", "TopicDescription", "TopicSummary", "open"]

logger = logging.getLogger(__name__)

# What differs from a lone log: readers get a minute with what retention removes, and each log has fewer open files.
LOG_DEFAULTS: dict[str, Any] = {"file_delete_delay_ms": 60_000, "open_files_max": 32}
STORE_SETTINGS = frozenset(row.name for row in fields(StoreConfig))
# Work of a store that one process has.
ALONE_TASKS = frozenset({"checkpoints", "cleaner"})


class StoreStatus(NamedTuple):
    """How the background work goes, and what was found. ``ignored`` are names that are somebody else's."""

    tasks: tuple[TaskStatus, ...]
    open_logs: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]


class Store(StoreTopics):
    """An open store. Thread-safe. ``with kstore.open(path) as store:`` closes it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        shared: bool = False,
        create: bool = True,
        durability: Durability = "sync",
        background: bool = True,
        fs: FileSystem = SYSTEM_FS,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        """Opens the store in directory ``path``; creates it where the path is missing.

        What was not closed in order is recovered before this returns, several logs at a time; all other logs are
        opened when they are first asked for.

        Args:
            path: a directory of ``<topic>-<partition>`` directories, kstore's or a Kafka broker's.
            read_only: take no lock and never write; the store must exist. A writer or a broker may be at work.
            shared: write beside other processes that share it too (see ``Log``). Topics can be made, but not changed
                or deleted; nothing is compacted, there are no transactions, and no checkpoints are written.
            create: whether a store is made where the path is missing; else LogNotFoundError.
            durability: of topics that do not say otherwise (see ``Log``).
            background: whether work goes on in threads; without them it is done by ``run_due_tasks``.
            fs, clock: for tests.
            settings: the defaults of topics (``LogConfig``), and those of the store (``StoreConfig``).

        Raises: LogNotFoundError, NotALogError, LockedError, ConfigError, ReadOnlyError, StorageError.
        """
        self._closed = True  # until it is open
        self._guard = ForkGuard()
        self.path = Path(path)
        one_of("durability", durability, DURABILITIES)
        if shared and read_only:
            raise ConfigError("shared is for writers: a store that is read_only needs no lock")
        self.config = StoreConfig(**{name: settings.pop(name) for name in STORE_SETTINGS & settings.keys()})
        self._defaults = {**LOG_DEFAULTS, **settings}
        config = LogConfig.from_settings(**self._defaults)
        self._durability = durability
        self._fs = fs
        if not create and not fs.exists(self.path):
            raise LogNotFoundError(errno.ENOENT, "there is no store", str(self.path))
        # Held while topics are made, changed and deleted.
        self._topics_lock = threading.RLock()
        self._directory = LogDirectory(
            fs, self.path.absolute(), clock, file_mode=config.file_mode, read_only=read_only, shared=shared
        )
        self._producer_host = StoreHost(
            self.path,
            clock,
            shared=shared,
            topics=self.topics,
            partitions=self.partitions,
            config_of=lambda owner: self._settings_of(owner)[0],
            log=self.log,
            coordinator=lambda: self.coordinator,
        )
        self._scheduler = Scheduler(clock, threads=background and not read_only)
        self._flushes = Flushes(clock, self._scheduler)
        self._logs = OpenLogs(self._directory, fs, clock, self._settings_of, self._flushes)
        self._tasks = StoreTasks(
            self._directory,
            self._logs,
            clock,
            self.config,
            self._settings_of,
            self._committed,
            is_kept=self._is_kept,
        )
        self._coordinator = StoreCoordinator(self._directory, self._logs, clock, self._scheduler, self.create_topic)
        self._consumer_host = StoreConsumers(
            self.path,
            clock,
            read_only=read_only,
            shared=shared,
            group_files=self._group_files,
            topics=self.topics,
            partitions=self.partitions,
            log=self.log,
            offsets=lambda: self.consumer_offsets,
            news=self._producer_host,
        )
        self._queues = StoreQueues(
            self.log,
            self.partitions,
            self.create_topic,
            self._settings_of,
            clock,
            self._topics_turn,
            durability,
            shared=shared,
        )
        self._effective = {}
        self._unclean = set()
        self._closed = False
        try:
            if not read_only:
                # What is written from here on may ask for it.
                self._scheduler.add(FLUSH_TASK, self._flushes.run, interval_seconds=None, lane="flush")
                unclean: set[TopicPartition] = set()
                if self._directory.is_first:
                    self._recover()
                    unclean |= self._unclean
                    for one in set_back_offsets(self._directory, self._logs, clock, unclean):
                        self._directory.notes.append(str(one))
                self._begin_work()
                self._coordinator.begin()
                self._queues.settle(sorted({owner.topic for owner in unclean}))
        except BaseException:
            self._closed = True
            self._scheduler.stop()
            self._directory.close()
            raise

    def _recover(self) -> None:
        """Opens every log that was not closed in order, and closes it again. What fails is tried anew at its use."""
        unclean = [owner for owner in self._owners() if not self._directory.is_clean(owner)]
        self._unclean = set(unclean)
        if not unclean:
            return

        def recover(owner: TopicPartition) -> None:
            try:
                with self._logs.borrowed(owner):
                    pass
            except KstoreError as error:
                logger.warning("%s: cannot be recovered: %s", self._directory.partition_path(owner), error)

        side_by_side(recover, unclean, count=self.config.recovery_threads, name="kstore-recovery")

    def _begin_work(self) -> None:
        add, config = self._scheduler.add, self.config
        first = config.initial_delay_ms / 1000
        for name, run, interval_ms, lane in (
            ("retention", self._tasks.retain, config.retention_check_interval_ms, "work"),
            ("idle roll", self._tasks.roll_idle, config.retention_check_interval_ms, "work"),
            ("checkpoints", self._checkpoint, config.checkpoint_interval_ms, "work"),
            ("removal", self._remove_deleted, config.checkpoint_interval_ms, "work"),
            ("producers", self._tasks.expire_producers, config.producer_check_interval_ms, "work"),
            ("cleaner", self._tasks.clean, config.cleaner_interval_ms, "cleaner"),
        ):
            if not (self._directory.shared and name in ALONE_TASKS):
                add(name, run, interval_seconds=interval_ms / 1000, delay_seconds=first, lane=lane)
        self._scheduler.start()

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        return self._directory.read_only

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def ignored(self) -> list[str]:
        """Names in the directory that are neither kstore's nor a partition's; they are left alone."""
        return list(self._directory.ignored)

    @property
    def notes(self) -> list[str]:
        """What was found amiss when the store was opened, or looked at."""
        return list(self._directory.notes)

    def status(self) -> StoreStatus:
        """How each background task went, which logs are open, and what was found in the directory."""
        return StoreStatus(
            self._scheduler.status(),
            tuple(sorted(str(owner) for owner, _ in self._logs.open_now())),
            tuple(self._directory.ignored),
            tuple(self._directory.notes),
        )

    def metrics(self) -> dict[str, MetricValue]:
        """The sums over its logs (``log_metrics``), offsets left out, and its own: see ``kstore.metrics``."""
        return {**summed(self.log_metrics().values()), **self.own_metrics()}

    def log_metrics(self) -> dict[TopicPartition, dict[str, MetricValue]]:
        """The metrics of every log that was opened; of one that is closed what was counted of it."""
        self._check_open()
        return logs_metrics(self._logs)

    def own_metrics(self) -> dict[str, MetricValue]:
        """The store's own (``kstore.metrics.STORE_METRICS``), of the directory and the background work."""
        self._check_open()
        return store_metrics(self._directory, self._logs, self._scheduler.status())

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, closed={self._closed})"

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the store {self.path} is closed")
        if self._guard.forked:
            self._guard.check(f"the store {self.path}")

    @property
    def _writing(self) -> LogDirectory:
        self._check_open()
        if self._directory.read_only:
            raise ReadOnlyError(None, "the store is open for reading", str(self.path))
        return self._directory

    # --- logs -------------------------------------------------------------------------------------------------------

    def log(self, topic: str, partition: int = 0) -> Log:
        """The log of a partition: one object for all who ask, closed with the store.

        Raises: TopicNotFoundError, and as ``Log``.
        """
        self._check_open()
        owner = TopicPartition(topic, partition)
        if self._directory.read_only and partition not in self._directory.numbers(topic):
            self._directory.look()
        return self._logs.get(owner)

    # --- producers --------------------------------------------------------------------------------------------------

    def producer(self, **settings: Any) -> Producer:
        """A producer of this store, with its own thread; close it before the store.

        ``settings`` are Kafka's producer settings in snake_case: see ``ProducerConfig``. Raises: ConfigError.
        """
        if settings.get("transactional_id") is not None:
            self._alone("a transaction")
        self._writing  # noqa: B018  # open for writing
        return self._producer_host.made(Producer(self._producer_host, **settings))

    def live_producers(self) -> dict[str, Producer]:
        """The open producers of this store, by client id; the second with the same one has ``#2`` behind it."""
        return self._producer_host.live_producers()

    def live_consumers(self) -> dict[str, Consumer]:
        """The open consumers of this store, named as ``live_producers`` are."""
        return self._consumer_host.live_consumers()

    # --- consumers --------------------------------------------------------------------------------------------------

    def consumer(
        self,
        *topics: str,
        group: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
        **settings: Any,
    ) -> Consumer:
        """A consumer of this store, for one thread; close it before the store.

        Args:
            topics, pattern, listener: what ``Consumer.subscribe`` takes; without topics and a pattern it reads what
                ``subscribe`` or ``assign`` says later.
            group: whose committed offsets it goes on from, and with whose other members it shares the partitions.
            settings: Kafka's consumer settings in snake_case: see ``ConsumerConfig``.

        Raises: ConfigError, TopicNotFoundError; ReadOnlyError for topics with a group, where the store is read-only.
        """
        self._check_open()
        return self._consumer_host.made(
            Consumer(self._consumer_host, topics, group=group, pattern=pattern, listener=listener, **settings)
        )

    def _committed(self, group: str, owner: TopicPartition) -> int | None:
        found = self._coordinator.offsets.committed_at(group, owner)
        return None if found is None else found.offset

    def group_members(self, group: str) -> dict[TopicPartition, str]:
        """Who of a group reads which partitions now: members in this process, or in all that share the store."""
        self._check_open()
        return self._consumer_host.members(group)

    def _group_files(self, name: str, create: bool) -> FileGroup | None:
        offsets = self.consumer_offsets
        place = offsets.place(name) if create else offsets.found_place(name)
        if place is None:
            return None
        path = group_directory(self._directory.partition_path(place), name)
        if not create and not self._fs.exists(path):
            return None
        mode = LogConfig.from_settings(**self._defaults).file_mode
        return FileGroup(self._fs, path, name, self._directory.clock, file_mode=mode, create=create)

    @property
    def consumer_offsets(self) -> GroupOffsets:
        """What groups have committed, here or through a broker; of a read-only store, too."""
        self._check_open()
        return self._coordinator.offsets

    # --- queues -----------------------------------------------------------------------------------------------------

    def queue(self, name: str, **settings: Any) -> Queue:
        """The queue of topic ``name``, made if there is none: one object for all who ask, closed with the store.

        ``settings`` are those of ``QueueConfig``. Raises: ConfigError, ReadOnlyError, StorageError.
        """
        self._writing  # noqa: B018  # open for writing
        return self._queues.get(name, settings)

    @property
    def coordinator(self) -> TransactionCoordinator:
        """Producer ids, transactions, committed offsets. Raises: StorageError, when it is first asked for."""
        self._check_open()
        return self._coordinator.get()

    # --- work -------------------------------------------------------------------------------------------------------

    def run_due_tasks(self) -> int:
        """Does the background work that is due, in this thread; returns how many tasks ran. What fails is in
        ``status()``. For stores without ``background`` threads."""
        self._check_open()
        return self._scheduler.run_due()

    def run_task(self, name: str) -> None:
        """Does one task now, whenever it is due. Raises: what the task raises; ConfigError for one there is not."""
        self._writing  # noqa: B018  # open for writing
        names = [task.name for task in self._scheduler.status()]
        one_of("task", name, names)
        self._scheduler.run(name)

    def apply_retention(self) -> RetentionResult:
        """Deletes now what retention gives up in any log; ``start_offset`` of the result is of no meaning.

        Raises: the first failure, when all logs were tried.
        """
        self._writing  # noqa: B018  # open for writing
        return self._tasks.retain()

    def checkpoint(self) -> None:
        """Writes the checkpoint files now. Raises: StorageError."""
        self._alone("writing checkpoints")
        self._checkpoint()

    def _checkpoint(self) -> None:
        with self._topics_lock:
            self._tasks.checkpoint()

    def _remove_deleted(self) -> None:
        try:
            with self._topics_lock:
                if not self._directory.shared:
                    self._directory.finish_deletions()
        finally:
            self._tasks.remove_deleted()

    # --- close ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes all logs in order, writes the checkpoints, and says that all is in order. A second call does nothing.

        Raises: the first failure: the store is closed all the same, and recovers when it is next opened.
        """
        if self._closed or closed_elsewhere(self.close, self):
            return
        self._closed = True
        if self._guard.forked:
            return  # all of it is the parent's
        # What is running goes on: a compaction ends when its log is closed, and the rest finds no more logs.
        self._scheduler.end()
        failures: list[BaseException] = []

        def attempt(action: Callable[[], object]) -> None:
            try:
                action()
            except BaseException as error:
                failures.append(error)

        try:
            self._consumer_host.close()
            attempt(self._queues.close)
            attempt(self._coordinator.close)
            owners = self._logs.shut()
            side_by_side(
                lambda owner: attempt(lambda: self._logs.close(owner)),
                owners,
                count=self.config.recovery_threads,
                name="kstore-close",
            )
            self._scheduler.stop()
            # A topic that is just being made or deleted is waited for.
            with self._topics_lock:
                if not self._directory.read_only and not failures:
                    attempt(lambda: self._close_in_order(owners))
                self._directory.close()
        finally:
            self._directory.close()
        if failures:
            raise failures[0]

    def _close_in_order(self, owners: Iterable[TopicPartition]) -> None:
        directory = self._directory
        if directory.shared:
            return  # what the others do is not known here
        doubtful = {owner for owner in {*owners, *self._unclean} if owner.partition in directory.numbers(owner.topic)}
        self._tasks.checkpoint()
        if all(directory.is_clean(owner) for owner in doubtful):
            directory.mark_clean()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._directory.read_only and not self._guard.forked:
            warnings.warn(f"unclosed {self!r}: the next open has to recover its logs", ResourceWarning, stacklevel=2)


def open(
    path: str | os.PathLike[str], *, read_only: bool = False, durability: Durability = "sync", **settings: Any
) -> Store:
    """Opens the store in directory ``path``: see ``Store``."""
    return Store(path, read_only=read_only, durability=durability, **settings)
