"""The topics of a store: which there are, and how they are made, changed and deleted. ``Store`` inherits this."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, NamedTuple
from uuid import UUID

from kstore.config import LogConfig
from kstore.consumer.of_store import forget_offsets
from kstore.errors import (
    ConfigError,
    KstoreError,
    SharedLogError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
)
from kstore.files.paths import METADATA_TOPIC, TopicPartition, validate_topic
from kstore.logs.directory import LogDirectory
from kstore.logs.open_logs import OpenLogs
from kstore.logs.scheduler import Scheduler
from kstore.producer.of_store import StoreHost
from kstore.queue.of_store import StoreQueues, journal_of
from kstore.rules.topics import (
    KEEP_EVERYTHING,
    TopicEntry,
    check_partition_count,
    collision,
    effective_settings,
    kept_settings,
)
from kstore.transactions.placement import TRANSACTION_STATE, is_internal
from kstore.types import Durability

__all__ = ["PartitionDescription", "StoreTopics", "TopicDescription", "TopicSummary"]

logger = logging.getLogger(__name__)

LOG_SETTINGS = frozenset({"durability", *(row.name for row in fields(LogConfig))})


class PartitionDescription(NamedTuple):
    """One partition; ``size`` in bytes of ``.log`` files. ``error`` says why the rest is not known, "" as a rule."""

    partition: int
    start_offset: int = -1
    high_watermark: int = -1
    end_offset: int = -1
    segment_count: int = 0
    size: int = 0
    error: str = ""


class TopicSummary(NamedTuple):
    """A topic, without a look at its logs: ``settings`` are its own."""

    name: str
    topic_id: UUID | None
    partition_count: int
    settings: dict[str, Any]


class TopicDescription(NamedTuple):
    """A topic: ``settings`` are its own, ``config`` and ``durability`` what it goes by."""

    name: str
    topic_id: UUID | None
    settings: dict[str, Any]
    config: LogConfig
    durability: Durability
    partitions: tuple[PartitionDescription, ...]


class StoreTopics:
    """The part of ``Store`` that is about topics, and what of ``Store`` it needs."""

    _directory: LogDirectory
    _logs: OpenLogs
    _scheduler: Scheduler
    _producer_host: StoreHost
    _queues: StoreQueues
    _topics_lock: threading.RLock
    # What topics go by that say nothing of their own.
    _defaults: dict[str, Any]
    _durability: Durability
    # What topics go by, with the entry that it was taken from.
    _effective: dict[str, tuple[TopicEntry, tuple[LogConfig, Durability]]]
    # Logs that were not closed in order, and are not known to be in order since.
    _unclean: set[TopicPartition]

    # --- topics -----------------------------------------------------------------------------------------------------

    def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted; with ``internal`` those too that Kafka and kstore keep for themselves."""
        self._refresh()
        found = (name for name in self._directory.topics if self._directory.numbers(name))
        return sorted(name for name in found if internal or not is_internal(name))

    def partitions(self, name: str) -> list[int]:
        """The partitions of a topic, rising. Raises: TopicNotFoundError."""
        self._refresh()
        return list(self._topic(name)[1])

    @contextmanager
    def _topics_turn(self) -> Iterator[None]:
        """Nobody else changes topics meanwhile, here or in a process that shares the store."""
        with self._topics_lock, self._directory.turn():  # in the order in which all take them
            yield

    def create_topic(self, name: str, partitions: int = 1, **settings: Any) -> None:
        """Makes a topic of empty partitions, durably: after a crash it is there wholly, or not at all.

        ``settings`` are the topic's own, ``durability`` one of them; all others are the store's.

        Raises: TopicExistsError, ConfigError, ReadOnlyError, DiskFullError, StorageError.
        """
        directory = self._writing
        validate_topic(name)
        if name == METADATA_TOPIC:
            raise ConfigError(f"a topic cannot be named {name}: it is a broker's own")
        count = check_partition_count(partitions)
        own = kept_settings(settings)
        self._goes_by(name, own)
        with self._topics_turn():
            if directory.shared:
                directory.look()  # another process may have made it since
            entry = directory.topics.get(name)
            if entry is not None and entry.deleting:
                self._alone("a topic whose deletion was not finished")
                directory.finish_delete(name)  # an error has ended its deletion
            elif directory.numbers(name) or (entry is not None and entry.made):
                raise TopicExistsError(f"there is a topic {name}")
            if (other := collision(name, directory.topics)) is not None:
                raise TopicExistsError(f"topic {name} differs from {other} in '.' and '_' only, which Kafka refuses")
            directory.create(name, TopicEntry(count, 0, None, own))
        self._producer_host.tell(name)

    def add_partitions(self, name: str, total: int) -> None:
        """Makes a topic one of ``total`` partitions, durably. Raises: as ``create_topic``, and TopicNotFoundError."""
        directory = self._writing
        check_partition_count(total)
        with self._topics_lock:
            entry, numbers = self._topic(name)
            count = max(entry.made, numbers[-1] + 1)
            if total <= count:
                raise ConfigError(f"topic {name} has {count} partitions, expected more than that, not {total}")
            directory.create(name, replace(entry, partitions=total, made=count))
        self._producer_host.tell(name)

    def alter_topic(self, name: str, *, reset: Iterable[str] = (), **settings: Any) -> None:
        """Changes settings of a topic, durably; those named in ``reset`` are the store's again.

        They hold from now on, also for logs that are open: what was decided by the old ones stays as it is.

        Raises: TopicNotFoundError, ConfigError, ReadOnlyError, DiskFullError, StorageError.
        """
        directory = self._alone("altering a topic")
        with self._topics_lock:
            entry, numbers = self._topic(name)
            gone = set(reset)
            if unknown := sorted(gone - LOG_SETTINGS):
                raise ConfigError(f"there is no setting {unknown[0]!r} to be reset")
            own = {key: value for key, value in entry.settings.items() if key not in gone} | kept_settings(settings)
            config, durability = self._goes_by(name, own)
            if durability != entry.settings.get("durability", self._durability_of(name)) and self._has_open(name):
                raise ConfigError(f"the durability of {name} cannot change while its logs are open")
            directory.store_topic(name, replace(entry, settings=own, settings_lost=False))
            for number in numbers:
                self._logs.reconfigure(TopicPartition(name, number), config)
        self._producer_host.tell(name)

    def _has_open(self, name: str) -> bool:
        return any(owner.topic == name for owner, _ in self._logs.open_now())

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, durably; its logs are closed, its files removed after ``file_delete_delay_ms``.

        Raises: TopicNotFoundError, LockedError (somebody else writes to one of its logs; the deletion stands, and is
        finished by the next open), ReadOnlyError, StorageError.
        """
        directory = self._alone("deleting a topic")
        with self._queues.ended(name) as journal:
            if journal:
                self.delete_topic(journal)  # first: what it says must not be taken to be of a later topic's items
            with self._topics_lock:
                delay = self._delete(directory, name)
        self._scheduler.wake("removal", delay_seconds=delay)
        self._producer_host.tell(name)

    def _delete(self, directory: LogDirectory, name: str) -> float:
        """Returns after how many seconds its files are removed. Needs the lock."""
        _, numbers = self._topic(name)
        owners = [TopicPartition(name, number) for number in numbers]
        try:
            config, _ = self._settings_of(owners[0])
        except ConfigError:
            config = LogConfig.from_settings(**self._defaults)
        delay = config.file_delete_delay_ms / 1000
        forget_offsets(directory, self._logs, directory.clock, name)
        directory.begin_delete(name)
        self._unclean.difference_update(owners)
        for owner in owners:
            try:
                self._logs.close(owner)
            except StorageError as error:
                logger.warning("%s: closed for its deletion: %s", directory.partition_path(owner), error)
            self._logs.forget(owner)
        directory.finish_delete(name, delay_seconds=delay)
        return delay

    def summary(self, name: str) -> TopicSummary:
        """What a topic is, as far as it is known without opening its logs. Raises: TopicNotFoundError."""
        self._check_open()
        entry, numbers = self._topic(name)
        return TopicSummary(name, entry.topic_id, len(numbers), dict(entry.settings))

    def describe_topic(self, name: str) -> TopicDescription:
        """What a topic has, and goes by. Raises: TopicNotFoundError, StorageError."""
        self._refresh()
        entry, numbers = self._topic(name)
        config, durability = self._settings_of(TopicPartition(name, numbers[0]))
        partitions = tuple(self._describe(TopicPartition(name, number)) for number in numbers)
        return TopicDescription(name, entry.topic_id, dict(entry.settings), config, durability, partitions)

    def _describe(self, owner: TopicPartition) -> PartitionDescription:
        try:
            with self._logs.borrowed(owner) as log:
                segment_count, size = log.segment_count_and_size()
                return PartitionDescription(
                    owner.partition, log.start_offset, log.high_watermark, log.end_offset, segment_count, size
                )
        except KstoreError as error:
            return PartitionDescription(owner.partition, error=str(error))

    def _alone(self, what: str) -> LogDirectory:
        directory = self._writing
        if directory.shared:
            raise SharedLogError(f"{what} needs a store that one process has open")
        return directory

    def _topic(self, name: str) -> tuple[TopicEntry, tuple[int, ...]]:
        """A topic's entry and its partitions. Raises: TopicNotFoundError."""
        entry, numbers = self._directory.topics.get(name), self._directory.numbers(name)
        if not numbers and self._directory.shared:
            self._directory.look()  # another process may have made it
            entry, numbers = self._directory.topics.get(name), self._directory.numbers(name)
        if entry is None or not numbers:
            raise TopicNotFoundError(f"there is no topic {name!r:.300}")
        return entry, numbers

    def _owners(self) -> list[TopicPartition]:
        directory = self._directory
        return [TopicPartition(name, number) for name in directory.topics for number in directory.numbers(name)]

    def _settings_of(self, owner: TopicPartition) -> tuple[LogConfig, Durability]:
        entry, numbers = self._topic(owner.topic)
        if owner.partition not in numbers:
            raise TopicNotFoundError(f"topic {owner.topic} has no partition {owner.partition}")
        known = self._effective.get(owner.topic)
        if known is None or known[0] is not entry:
            known = entry, self._goes_by(owner.topic, entry.settings)
            self._effective[owner.topic] = known
        return known[1]

    def _goes_by(self, name: str, own: Mapping[str, Any]) -> tuple[LogConfig, Durability]:
        """What a topic with settings of its ``own`` goes by. Raises: ConfigError.

        By the store's nothing is deleted of what Kafka and kstore keep for themselves, nor of queues: where they came
        with a broker's directory they have none of their own.
        """
        defaults = {**self._defaults, **KEEP_EVERYTHING} if self._is_kept(name) else self._defaults
        return effective_settings(defaults, own, self._durability_of(name))

    def _is_kept(self, name: str) -> bool:
        """Whether a topic is internal, or a queue's."""
        return is_internal(name) or journal_of(name) in self._directory.topics

    def _durability_of(self, name: str) -> Durability:
        """Of a topic that says nothing of its own. A decision is on disk before it is carried out anywhere."""
        return "sync" if name == TRANSACTION_STATE.name else self._durability

    def _refresh(self) -> None:
        self._check_open()
        if self._directory.read_only or self._directory.shared:
            self._directory.look()

    # --- what ``Store`` has -------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        raise NotImplementedError

    @property
    def _writing(self) -> LogDirectory:
        raise NotImplementedError
