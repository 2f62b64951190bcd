"""``Store``: many logs in one directory, by topic and partition, with the work that keeps them small and safe.

topics      logs/topics        created, changed, deleted; their settings, and their logs
work        logs/tasks         retention, idle rolls, checkpoints, removal, producers, compaction, on a ``Scheduler``
clients     producer/producer, consumer/consumer, queue/queue
ids, ends   transactions/coordinator
groups      consumer/of_store
"""

from __future__ import annotations

import errno
import gc
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, Unpack

from kstore.archive.places import store_to_read
from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.config import HINTS, RULES, STORE_RULES, StoreConfig
from kstore.consumer.consumer import Consumer, abandon
from kstore.consumer.of_store import StoreGroups
from kstore.consumer.parts import consumer_parts
from kstore.consumer.wanted import RebalanceListener
from kstore.errors import ClosedError, ConfigError, KstoreError, LockedError, not_picklable
from kstore.files.fs import FileSystem
from kstore.files.lifetime import Closing
from kstore.files.local import SYSTEM_FS
from kstore.files.lock import is_held_here
from kstore.files.paths import TopicPartition
from kstore.files.remote import local_path
from kstore.files.threads import closed_elsewhere, side_by_side
from kstore.log import Log
from kstore.logs.clients import LiveClients
from kstore.logs.describe import logs_metrics, store_html, store_metrics
from kstore.logs.scheduler import Scheduler, TaskStatus
from kstore.logs.tasks import StoreTasks
from kstore.logs.topics import PartitionDescription, TopicDescription, Topics, TopicSummary
from kstore.metrics import MetricValue, summed
from kstore.producer.background import deliver_all
from kstore.producer.parts import producer_parts
from kstore.producer.producer import Producer
from kstore.queue.of_store import StoreQueues
from kstore.queue.queue import Queue
from kstore.rules.arguments import one_of
from kstore.rules.deprecated import Deprecated
from kstore.rules.internal_topics import is_internal, journal_of
from kstore.setting_rules import resolved
from kstore.transactions.coordinator import TransactionCoordinator
from kstore.transactions.group_offsets import GroupOffsets
from kstore.transactions.of_store import StoreCoordinator
from kstore.types import DURABILITIES, Durability, RecoveryReport, RetentionResult

if TYPE_CHECKING:
    import pyarrow as pa

    from kstore.backup.replicate import Replicator, ReplicatorSettings
    from kstore.backup.take import BackupResult
    from kstore.engine.read.columns import ReadOptions
    from kstore.settings import ConsumerSettings, ProducerSettings, QueueSettings, StoreSettings, TopicSettings

    class StoreArguments(StoreSettings, total=False):
        """The settings, and what only tests pass: no part of the signature, so that no user meets it."""

        fs: FileSystem
        clock: Clock


__all__ = ["PartitionDescription", "Store", "StoreStatus", "TopicDescription", "TopicSummary", "open"]

# Differences from a lone log: readers get a minute with removed segments, and each log has fewer open files.
LOG_DEFAULTS: dict[str, Any] = {"file_delete_delay_ms": 60_000, "open_files_max": 32}


class StoreStatus(NamedTuple):
    """The state of the background work, and what was found. ``ignored`` are names that kstore does not own."""

    tasks: tuple[TaskStatus, ...]
    open_logs: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]


class StoreParts(NamedTuple):
    """The parts of a store, for layers that compose clients of their own (``kstore.aio``)."""

    topics: Topics
    coordinator: StoreCoordinator
    groups: StoreGroups
    queues: StoreQueues
    producers: LiveClients[Producer]
    consumers: LiveClients[Consumer]


class Attached(Protocol):
    """What serves a store to others, and ends before it (a door)."""

    @property
    def closed(self) -> bool: ...

    def metrics(self) -> dict[str, MetricValue]: ...

    def close(self) -> None: ...


class Store(Closing):
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
        **settings: Unpack[StoreArguments],
    ) -> None:
        """Opens the store in directory ``path``; creates it if the path is missing.

        Logs that were not closed cleanly are recovered before this returns, several at a time; all other logs are
        opened on first use.

        Args:
            path: a directory of ``<topic>-<partition>`` directories, kstore's or a Kafka broker's.
            read_only: take no lock and never write; the store must exist. A writer or a broker may be at work.
            shared: write alongside other processes that share it too (see ``Log``). Topics can be created, but not
                changed or deleted; nothing is compacted, there are no transactions, and no checkpoints are written.
            create: whether to create a missing store; otherwise that is a LogNotFoundError.
            durability: the default for topics (see ``Log``).
            background: whether background work runs in threads; without them ``run_due_tasks`` does it.
            settings: the defaults of topics (``LogConfig``), and those of the store (``StoreConfig``).

        Raises: LogNotFoundError, NotALogError, LockedError, ConfigError, ReadOnlyError, StorageError.
        """
        one_of("durability", durability, DURABILITIES)
        if shared and read_only:
            raise ConfigError("shared is for writers: a store that is read_only needs no lock")
        self.path: Path = local_path(path, "a store")
        fs, clock = settings.pop("fs", SYSTEM_FS), settings.pop("clock", SYSTEM_CLOCK)
        given = resolved(settings, {**RULES, **STORE_RULES}, " of a store", HINTS)
        self.config: StoreConfig = StoreConfig(**{name: given.pop(name) for name in STORE_RULES.keys() & given.keys()})
        self._is_closing = False
        self._is_released = False
        self._scheduler = Scheduler(clock, threads=background and not read_only)
        open_topics = partial(
            Topics,
            self.path,
            {**LOG_DEFAULTS, **given},
            durability,
            self._scheduler,
            read_only=read_only,
            shared=shared,
            create=create,
            fs=fs,
            clock=clock,
        )
        try:
            self._topics = open_topics()
        except LockedError:
            _wait_for_dropped(self.path.absolute())
            self._topics = open_topics()
        try:
            self._coordinator = StoreCoordinator(self._topics, self._scheduler)
            self._tasks = StoreTasks(self._topics, self._scheduler, self.config, self._coordinator.offsets.offset_at)
            self._groups = StoreGroups(self._topics, self._coordinator.offsets)
            self._queues = StoreQueues(self._topics)
            self._topics.before_end = partial(_forget_deleted, self._topics, self._groups)
            self._producers: LiveClients[Producer] = LiveClients()
            self._consumers: LiveClients[Consumer] = LiveClients()
            self._replicators: list[Replicator] = []
            self._attached: list[Attached] = []
            if not read_only:
                self._begin()
        except BaseException:
            self._topics.life.closed = self._is_released = True
            self._scheduler.stop()
            self._topics.directory.close()
            raise

    def _begin(self) -> None:
        """Recovers what was not closed cleanly; then the background work starts."""
        topics = self._topics
        unclean: set[TopicPartition] = set()
        if topics.directory.is_first:
            try:
                topics.finish_deletions()
            except KstoreError as error:
                topics.directory.note(f"a topic stays half deleted: {error}")
            unclean = topics.recover(self.config.recovery_threads)
            for one in self._groups.set_back(unclean):
                topics.directory.notes.append(str(one))
        self._tasks.begin()
        self._coordinator.begin()
        self._queues.settle(sorted({owner.topic for owner in unclean}))

    # --- state -------------------------------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        return self._topics.read_only

    @property
    def closed(self) -> bool:
        return self._topics.life.closed

    @property
    def ignored(self) -> list[str]:
        """Names in the directory that are neither kstore's nor a partition's; they are left alone."""
        return list(self._topics.directory.ignored)

    @property
    def notes(self) -> list[str]:
        """Problems found when the store was opened, or read."""
        return list(self._topics.directory.notes)

    @property
    def recovery(self) -> dict[str, RecoveryReport]:
        """What the store found and did in each log that was not closed cleanly before, by ``<topic>-<partition>``.

        The log's own ``recovery`` shows the same. Empty if the store is read-only. Thread-safe.
        """
        return {str(owner): report for owner, report in self._topics.logs.recovery().items()}

    def status(self) -> StoreStatus:
        """The result of each background task, the open logs, and the findings in the directory."""
        return StoreStatus(
            self._scheduler.status(),
            tuple(sorted(str(owner) for owner, _ in self._topics.logs.open_now())),
            tuple(self._topics.directory.ignored),
            tuple(self._topics.directory.notes),
        )

    def metrics(self) -> dict[str, MetricValue]:
        """The sums over its logs (``log_metrics``), without offsets, and its own: see ``kstore.metrics``."""
        return {**summed(self.log_metrics().values()), **self.own_metrics()}

    def log_metrics(self) -> dict[TopicPartition, dict[str, MetricValue]]:
        """The metrics of every log opened so far; for a closed one its counters."""
        self._topics.life.check()
        return logs_metrics(self._topics.logs)

    def own_metrics(self) -> dict[str, MetricValue]:
        """The store's own (``kstore.metrics.STORE_METRICS``), for the directory and the background work."""
        self._topics.life.check()
        lags = {one.target: one.lag_seconds for one in self._replicators if not one.closed}
        return store_metrics(self._topics.directory, self._topics.logs, self._scheduler.status(), lags)

    def door_metrics(self) -> dict[str, MetricValue]:
        """What the store's open door counts (``kstore.metrics.DOOR_METRICS``); empty without one."""
        self._topics.life.check()
        return next((one.metrics() for one in self._attached if not one.closed), {})

    def __repr__(self) -> str:
        if self.closed:
            return f"Store({str(self.path)!r}, closed)"
        topics, logs = len(self._topics.directory.topics), len(self._topics.logs.open_now())
        return f"Store({str(self.path)!r}, {topics} topic{'' if topics == 1 else 's'}, {logs} open)"

    def _repr_html_(self) -> str:
        return store_html(self._topics, str(self.path))

    def __reduce__(self) -> NoReturn:
        raise not_picklable("Store", "open it in the other process, with read_only=True or shared=True")

    # --- topics -----------------------------------------------------------------------------------------------------

    def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted; with ``internal`` also those reserved for Kafka and kstore."""
        return self._topics.names(internal=internal)

    def partitions(self, name: str) -> list[int]:
        """The partitions of a topic, increasing. Raises: TopicNotFoundError."""
        return self._topics.partitions(name)

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> None:
        """Creates a topic of empty partitions, durably: after a crash it exists wholly, or not at all.

        Args:
            name: Kafka's rules for names apply.
            partitions: how many partitions it gets.
            exist_ok: do nothing if the topic exists. It keeps its own partitions and settings, whatever the arguments
                say; ``add_partitions`` and ``alter_topic`` change them.
            settings: the topic's own, ``durability`` among them; the store's apply to all others.

        Raises: TopicExistsError (also with ``exist_ok``, if the name differs from another topic's in '.' and '_' only),
        ConfigError, ReadOnlyError, DiskFullError, StorageError.
        """
        self._topics.create(name, partitions, exist_ok=exist_ok, **settings)

    def topic(self, name: str, partitions: int = 1, **settings: Unpack[TopicSettings]) -> TopicSummary:
        """Gets a topic, or creates it as ``create_topic`` does if it does not exist; returns its summary.

        An existing topic keeps its own partitions and settings: a UserWarning names those that differ, and what changes
        them. In a shared store several processes may call this at once. A store that is open for reading only gets.

        Raises: as ``create_topic``; ReadOnlyError only if the topic does not exist.
        """
        return self._topics.get_or_create(name, partitions, **settings)

    def add_partitions(self, name: str, total: int) -> None:
        """Grows a topic to ``total`` partitions, durably. Raises: as ``create_topic``, and TopicNotFoundError."""
        self._topics.grow(name, total)

    def alter_topic(self, name: str, *, reset: Iterable[str] = (), **settings: Unpack[TopicSettings]) -> None:
        """Changes settings of a topic, durably; those named in ``reset`` become the store's again.

        They apply from now on, also to open logs: earlier decisions stay.

        Raises: TopicNotFoundError, ConfigError, ReadOnlyError, DiskFullError, StorageError.
        """
        self._topics.alter(name, reset=reset, **settings)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, durably; its logs are closed, its files removed after ``file_delete_delay_ms``.
        After an error a second call continues.

        Raises: TopicNotFoundError, LockedError (another process writes to one of its logs; the deletion stands, and the
        next open finishes it), ReadOnlyError, StorageError.
        """
        self._topics.check_alone("deleting a topic")
        with self._topics.telling(name), self._queues.ended(name), self._topics.changing():
            delay_seconds = self._topics.delete(name)
        self._tasks.remove_after(delay_seconds)

    def summary(self, name: str) -> TopicSummary:
        """A topic's description, as far as known without opening its logs. Raises: TopicNotFoundError."""
        return self._topics.summary(name)

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic's partitions and settings. Raises: TopicNotFoundError, StorageError."""
        return self._topics.describe(name)

    def disk_usage(self) -> dict[TopicPartition, int]:
        """The bytes of the files of each partition, of internal topics too: segments, indexes, and deleted
        files until they are removed. No log is opened. Raises: StorageError."""
        return self._topics.disk_usage()

    # --- logs -------------------------------------------------------------------------------------------------------

    def log(self, topic: str, partition: int = 0) -> Log:
        """The log of a partition: one object for all callers, closed with the store, and not by a ``with`` block.

        Raises: TopicNotFoundError, and as ``Log``.
        """
        return self._topics.log(topic, partition)

    def to_arrow(self, topic: str, **options: Unpack[ReadOptions]) -> pa.Table:
        """All records of a topic as a ``pyarrow.Table``: columns topic and partition, then those of ``Log.to_arrow``,
        whose ``options`` it takes. One partition follows the other, each in the order of its offsets.

        Raises: TopicNotFoundError, and as ``Log.to_arrow``.
        """
        from kstore.consumer.columns import topic_table

        owners = [TopicPartition(topic, number) for number in self.partitions(topic)]
        return topic_table({owner: self.log(*owner) for owner in owners}, options)

    # --- producers --------------------------------------------------------------------------------------------------

    def producer(self, **settings: Unpack[ProducerSettings]) -> Producer:
        """A producer of this store, with its own thread. Close it before the store, which waits for it at most 10 s.

        ``settings`` are Kafka's producer settings in snake_case: see ``ProducerConfig``. Raises: ConfigError.
        """
        given: Mapping[str, Any] = settings  # with Kafka's dotted names, which the type does not have
        if given.get("transactional_id", given.get("transactional.id")) is not None:
            self._topics.check_alone("a transaction")
        self._topics.check_writable()
        producer = Producer(producer_parts(self._topics, self._coordinator, **settings))
        self._producers.add(producer)
        return producer

    def live_producers(self) -> dict[str, Producer]:
        """The open producers of this store, by client id; the second one with the same id gets the suffix ``#2``."""
        return self._producers.open()

    def live_consumers(self) -> dict[str, Consumer]:
        """The open consumers of this store, named like ``live_producers``."""
        return self._consumers.open()

    # --- consumers --------------------------------------------------------------------------------------------------

    def consumer(
        self,
        *topics: str,
        group: str | None = None,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Consumer:
        """A consumer of this store, for one thread; close it before the store.

        Args:
            topics, pattern, listener: the arguments of ``Consumer.subscribe``; without topics and a pattern it reads
                what ``subscribe`` or ``assign`` selects later.
            group: it continues from this group's committed offsets, and shares the partitions with its other members.
            settings: Kafka's consumer settings in snake_case: see ``ConsumerConfig``.

        Raises: ConfigError, TopicNotFoundError; ReadOnlyError for topics with a group, if the store is read-only.
        """
        self._topics.life.check()
        parts = consumer_parts(self._topics, self._groups, group, settings)
        consumer = Consumer(parts, topics, pattern=pattern, listener=listener)
        self._consumers.add(consumer)
        return consumer

    def group_members(self, group: str) -> dict[TopicPartition, str]:
        """The present members of a group and their partitions: in this process, or in all that share the store."""
        self._topics.life.check()
        return self._groups.members(group)

    @property
    def consumer_offsets(self) -> GroupOffsets:
        """What groups have committed, here or through a broker; also in a read-only store."""
        return self._groups.offsets

    # --- queues -----------------------------------------------------------------------------------------------------

    def queue(self, name: str, *, adopt: bool = False, **settings: Unpack[QueueSettings]) -> Queue:
        """The queue of topic ``name``, created if it does not exist: one object for all callers, closed with the store.

        A queue deletes what is acked. A topic with records that was not made as a queue becomes one with ``adopt``;
        without it that is a FutureWarning, and an error in the next minor release.

        ``settings`` are those of ``QueueConfig``. Raises: ConfigError, ReadOnlyError, StorageError.
        """
        self._topics.check_writable()
        return self._queues.get(name, dict(settings), adopt=adopt)

    # --- work -------------------------------------------------------------------------------------------------------

    def run_due_tasks(self) -> int:
        """Does the background work that is due, in this thread; returns the number of tasks. Failures are in
        ``status()``. For stores without ``background`` threads."""
        self._topics.life.check()
        return self._scheduler.run_due()

    def run_task(self, name: str) -> None:
        """Does one task now, whenever it is due. Raises: the task's exception; ConfigError for an unknown task."""
        self._topics.check_writable()
        names = [task.name for task in self._scheduler.status()]
        one_of("task", name, names)
        self._scheduler.run(name)

    def apply_retention(self) -> RetentionResult:
        """Applies retention to all logs now; ``start_offset`` of the result has no meaning.

        Raises: the first failure, after trying all logs.
        """
        self._topics.check_writable()
        return self._tasks.retain()

    def checkpoint(self) -> None:
        """Writes the checkpoint files now. Raises: StorageError."""
        self._topics.check_alone("writing checkpoints")
        self._tasks.checkpoint()

    def backup(
        self,
        target: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        bytes_per_second: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> BackupResult:
        """Copies the store, as it is at one moment, to ``target``: a directory, or a URL; see docs/backup.md.

        Other threads continue; only the moment itself delays them. Files of earlier backups in ``target`` are not
        copied again. On return the backup is complete and on disk; after an error or a kill, it does not exist.

        Args:
            target: neither a store or a log nor inside one.
            storage_options: those of fsspec, or of HDFS.
            bytes_per_second: copy no faster. Without it, a backup to this machine's disks pauses for appends.
            progress: called with the number of bytes that were just copied.

        In a shared store the moment is one of all its processes.

        Raises: ReadOnlyError, LockedError (another backup is running there), FileInTheWayError (a store or a log is
        there), DivergedError (backups of another store are there), PoisonedError, ConfigError, DiskFullError,
        StorageError.
        """
        from kstore.backup.take import back_up

        return back_up(
            self._topics, target, storage_options=storage_options, bytes_per_second=bytes_per_second, progress=progress
        )

    def replicator(self, target: str | os.PathLike[str], **settings: Unpack[ReplicatorSettings]) -> Replicator:
        """Follows the store in the background: takes what is new to ``target`` until it, or the store, is closed.

        A restore from ``target`` then loses at most the interval, and the time of a round; see docs/backup.md. The
        replicator keeps all logs open.

        Args:
            target: a directory, or a URL, where backups may be too; of this store only, and not inside it.
            settings: ``every``, the interval (1 s); ``keep``, how many of its manifests stay at least (60);
                ``hold_retention``, to delete only what was copied; ``storage_options`` and ``bytes_per_second`` as for
                ``backup``.

        Raises: as ``backup``; LockedError also if another replicator is at work there, DivergedError if the target has
        another store, UnsupportedFormatError if a later version has written there, SharedLogError for
        ``hold_retention`` in a shared store.
        """
        from kstore.backup.replicate import Replicator

        others = [one for one in self._replicators if not one.closed]
        replicator = Replicator(self._topics, self._scheduler, target, **settings)
        self._replicators = [*others, replicator]
        return replicator

    # --- close ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes all logs cleanly, writes the checkpoints, and records the clean close. A second call does nothing,
        unless Ctrl-C ended the first: it continues, and the store recovers when it is next opened.

        Raises: the first failure: the store is closed anyway, and recovers when it is next opened.
        """
        if self._is_released or closed_elsewhere(self.close, self):
            return
        # Nothing from here to the ``try`` can run a signal handler or another thread.
        if self._is_closing:
            return
        self._is_closing = True
        try:
            if not self._topics.life.forked:  # else everything belongs to the parent
                self._close()
            self._is_released = True
        except Exception:
            self._is_released = True
            raise
        finally:
            self._topics.life.closed = True
            self._is_closing = False

    def _close(self) -> None:
        """Every step can be repeated, after an interrupt."""
        topics = self._topics
        failures: list[BaseException] = []

        def attempt(action: Callable[[], object]) -> None:
            try:
                action()
            except BaseException as error:
                failures.append(error)

        for one in self._attached:
            attempt(one.close)
        if not topics.life.closed:
            attempt(lambda: deliver_all(topics, "when their store was closed"))
        is_first, topics.life.closed = not topics.life.closed, True
        try:
            # Running tasks continue: a compaction ends when its log is closed, and the rest finds no more logs.
            self._scheduler.end()
            for consumer in self._consumers.open().values():
                attempt(partial(abandon, consumer))
            attempt(self._queues.close)
            attempt(self._coordinator.close)
            for replicator in self._replicators:
                attempt(replicator.close_with_store)
            owners = topics.logs.shut()
            attempt(
                lambda: side_by_side(
                    lambda owner: attempt(lambda: topics.logs.close(owner)),
                    owners,
                    count=self.config.recovery_threads,
                    name="kstore-close",
                )
            )
            for owner in owners:
                # Only those that an interrupt has left open.
                attempt(partial(topics.logs.close, owner))
            self._scheduler.stop()
            # Waits for a topic that is being created or deleted.
            with topics.changing():
                # An interrupted first call has released the directory.
                if is_first and not topics.read_only and not failures:
                    attempt(lambda: self._close_in_order(owners))
                topics.directory.close()
        finally:
            topics.directory.close()
        if failures:
            raise failures[0]

    def _close_in_order(self, owners: Iterable[TopicPartition]) -> None:
        if not self._topics.shared:  # the state of the others is unknown here
            self._tasks.checkpoint()
            self._topics.mark_clean(owners)

    def __del__(self) -> None:
        topics = getattr(self, "_topics", None)  # None if the directory could not be opened
        if topics is not None and not (topics.life.closed or topics.read_only or topics.life.forked):
            # It takes no lock: the garbage collector may have come inside one.
            _dropped.add(topics.directory.path)
            warnings.warn(f"unclosed {self!r}: the next open has to recover its logs", ResourceWarning, stacklevel=2)

    if not TYPE_CHECKING:
        coordinator = Deprecated(
            lambda store: coordinator_of(store), "use producer(transactional_id=...), and Log.transactions"
        )


def _forget_deleted(topics: Topics, groups: StoreGroups, name: str) -> None:
    """Removes what a topic whose deletion is decided has in other topics. Not earlier: if a power cut undoes the
    decision, the topic is whole. Not later: a topic of this name must not get another's offsets, or its items' events.
    """
    journal = journal_of(name)
    if not is_internal(name) and topics.count(journal):
        with topics.telling(journal):
            topics.delete(journal)
    groups.forget(name)


# --- stores that were dropped -----------------------------------------------------------------------------------------

# How long an open waits until a store of the same directory, which this process has dropped, is released.
DROPPED_SECONDS = 10.0
# The directories of stores that were dropped without close().
_dropped: set[Path] = set()


def _wait_for_dropped(path: Path) -> None:
    """Waits until the garbage of this process no longer locks ``path``: a store that was dropped is released when it is
    collected, after its producers have delivered. Returns at once if anything else has the lock."""
    deadline = time.monotonic() + DROPPED_SECONDS
    gc.collect()
    while path in _dropped and is_held_here(path) and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    _dropped.discard(path)


# --- for kstore's own use ---------------------------------------------------------------------------------------------


def coordinator_of(store: Store) -> TransactionCoordinator:
    """Producer ids, transactions, committed offsets. Raises: StorageError, on first use."""
    return store._coordinator.get()


def parts_of(store: Store) -> StoreParts:
    """The parts of an open store; they end with it."""
    return StoreParts(
        store._topics, store._coordinator, store._groups, store._queues, store._producers, store._consumers
    )


def attach(store: Store, served: Attached) -> None:
    """``close`` of the store closes this first. Raises: ClosedError; LockedError if something else is attached."""
    with store._topics.changing():
        store._topics.life.check()
        if any(not one.closed for one in store._attached):
            raise LockedError(errno.EAGAIN, "the store has a door already", str(store.path))
        store._attached = [served]
        if store._is_closing:  # it may not have seen this one
            raise ClosedError(f"the store {store.path} is being closed")


def open(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    shared: bool = False,
    create: bool = True,
    durability: Durability = "sync",
    background: bool = True,
    **settings: Unpack[StoreArguments],
) -> Store:
    """Opens the store in directory ``path``: see ``Store``. With ``read_only``, ``path`` may also be a URL, a
    directory of backups, or one of their manifests: the store is then that of the last backup, or of that manifest."""
    if read_only:
        settings["fs"], path = store_to_read(path, settings.get("fs", SYSTEM_FS))
    flags = {"read_only": read_only, "shared": shared, "create": create, "background": background}
    return Store(path, durability=durability, **flags, **settings)
