"""``Topics``: which topics a store has, their settings and their logs; how they are created, changed and deleted.

directory    the root's contents, which decide whether a topic exists
settings     the settings in effect for each topic (topic_settings)
logs         the open logs (open_logs)

Everything that works with topics builds on this: the background work, the coordinator, producers, consumers, queues.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from kstore.clock import Clock
from kstore.config import RULES, LogConfig
from kstore.engine.read.reads import segment_count_and_size
from kstore.errors import (
    ConfigError,
    KstoreError,
    ReadOnlyError,
    SharedLogError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
)
from kstore.files._locks import block
from kstore.files.fs import FileSystem, size_of_files
from kstore.files.lifetime import Lifetime
from kstore.files.paths import KSTORE_STATE, METADATA_TOPIC, TopicPartition, validate_topic
from kstore.files.threads import side_by_side
from kstore.log import Log, reads_of
from kstore.logs.directory import LogDirectory
from kstore.logs.open_logs import Flushes, OpenLogs
from kstore.logs.root import ensure_store
from kstore.logs.scheduler import Scheduler
from kstore.logs.topic_settings import EffectiveSettings
from kstore.rules.internal_topics import is_internal
from kstore.rules.topics import TopicEntry, check_partition_count, collision, kept_settings
from kstore.setting_rules import snake_case
from kstore.state.kafka_marks import elsewhere, read_log_starts, remote_start
from kstore.types import Durability

logger = logging.getLogger(__name__)

LOG_SETTINGS = frozenset({"durability", *(row.name for row in fields(LogConfig))})


class PartitionDescription(NamedTuple):
    """One partition; ``size`` in bytes of ``.log`` files. ``error`` says why the rest is unknown, usually "".

    ``elsewhere`` says which records below ``start_offset`` a broker keeps in remote storage, usually "".
    """

    partition: int
    start_offset: int = -1
    high_watermark: int = -1
    end_offset: int = -1
    segment_count: int = 0
    size: int = 0
    error: str = ""
    elsewhere: str = ""


class TopicSummary(NamedTuple):
    """A topic, without reading its logs: ``settings`` are its own."""

    name: str
    topic_id: UUID | None
    partition_count: int
    settings: dict[str, Any]


class TopicDescription(NamedTuple):
    """A topic: ``settings`` are its own, ``config`` and ``durability`` those in effect."""

    name: str
    topic_id: UUID | None
    settings: dict[str, Any]
    config: LogConfig
    durability: Durability
    partitions: tuple[PartitionDescription, ...]


class Topics:
    """The topics of one open store. Thread-safe.

    After the end of its ``life`` each call for a user is refused; ``log_of``, ``count`` and ``ensure`` are for parts of
    the store, and work until the logs and the directory are closed.
    """

    def __init__(
        self,
        path: Path,
        defaults: Mapping[str, Any],
        durability: Durability,
        scheduler: Scheduler,
        *,
        read_only: bool,
        shared: bool,
        create: bool,
        fs: FileSystem,
        clock: Clock,
    ) -> None:
        """Opens the directory; see ``Store``. ``defaults`` are the settings of topics without their own.

        Raises: LogNotFoundError, NotALogError, LockedError, ConfigError, ReadOnlyError, StorageError.
        """
        self.life: Lifetime = Lifetime(f"the store {path}")
        self.path = path
        self.clock = clock
        config = LogConfig.from_settings(**defaults)
        if not create:
            ensure_store(fs, path)
        flushes = Flushes(clock, scheduler)
        # Held while topics are created, changed and deleted.
        self._lock = threading.RLock()
        self.directory: LogDirectory = LogDirectory(
            fs, path.absolute(), clock, file_mode=config.file_mode, read_only=read_only, shared=shared
        )
        try:
            if not read_only:
                flushes.begin()
            self.settings: EffectiveSettings = EffectiveSettings(self.directory, defaults, durability)
            self.logs: OpenLogs = OpenLogs(self.directory, self.settings, flushes)
            # Logs that were not closed cleanly, and are not known to be sound since.
            self._unclean: set[TopicPartition] = set()
            # Reentrant: the collection of a producer during a call takes it again.
            self._watching = threading.RLock()
            self._watchers: list[Callable[[str], None]] = []  # guarded by _watching
            # Called with a topic whose deletion is decided, before its name is free: removes what belongs to it
            # elsewhere, of which a later topic of that name must find nothing. May be called again.
            self.before_end: Callable[[str], None] = lambda name: None
        except BaseException:
            self.directory.close()  # at once: a stored exception keeps it
            raise
        self.life.closed = False

    # --- what is allowed -------------------------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        return self.directory.read_only

    @property
    def shared(self) -> bool:
        """Whether another process may create a topic."""
        return self.directory.shared

    def check_writable(self) -> None:
        """Raises: ReadOnlyError, ClosedError, ForkedError."""
        self.life.check()
        if self.directory.read_only:
            raise ReadOnlyError(None, "the store is open for reading", str(self.path))

    def check_alone(self, what: str) -> None:
        """Checks that no other process has the store open, for ``what``. Raises: SharedLogError, as
        ``check_writable``."""
        self.check_writable()
        if self.directory.shared:
            raise SharedLogError(f"{what} needs a store that one process has open")

    def changing(self) -> threading.RLock:
        """A lock: no other thread creates, changes or deletes topics while it is held."""
        return self._lock

    @block
    def turn(self) -> Iterator[None]:
        """Like ``changing``, and no process that shares the store changes topics either."""
        with self._lock, self.directory.turn():  # in the order in which all take them
            yield

    # --- which topics exist -------------------------------------------------------------------------------------------

    def names(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, sorted; ``internal``: also those reserved for Kafka and kstore."""
        self.refresh()
        found = (name for name in self.directory.topics if self.directory.numbers(name))
        return sorted(name for name in found if internal or not is_internal(name))

    def partitions(self, name: str) -> list[int]:
        """The partitions of a topic, increasing. Raises: TopicNotFoundError."""
        self.refresh()
        return list(self.directory.topic(name)[1])

    def partition_count(self, name: str) -> int:
        """How many partitions a topic has. Raises: TopicNotFoundError, ConfigError (no topic can have such a name)."""
        validate_topic(name)
        return self.partitions(name)[-1] + 1

    def config(self, name: str) -> LogConfig:
        """The settings in effect for a topic. Raises: TopicNotFoundError."""
        return self.settings.of(TopicPartition(name, self.partitions(name)[0]))[0]

    def summary(self, name: str) -> TopicSummary:
        """See ``Store.summary``."""
        self.life.check()
        entry, numbers = self.directory.topic(name)
        return TopicSummary(name, entry.topic_id, len(numbers), dict(entry.settings))

    def describe(self, name: str) -> TopicDescription:
        """See ``Store.describe_topic``."""
        self.refresh()
        entry, numbers = self.directory.topic(name)
        config, durability = self.settings.of(TopicPartition(name, numbers[0]))
        starts = read_log_starts(self.directory.fs, self.directory.path)
        partitions = tuple(self._describe(TopicPartition(name, number), starts) for number in numbers)
        return TopicDescription(name, entry.topic_id, dict(entry.settings), config, durability, partitions)

    def disk_usage(self) -> dict[TopicPartition, int]:
        """See ``Store.disk_usage``."""
        self.refresh()
        directory = self.directory
        return {owner: size_of_files(directory.fs, directory.partition_path(owner)) for owner in directory.owners()}

    def _describe(self, owner: TopicPartition, starts: Mapping[TopicPartition, int]) -> PartitionDescription:
        try:
            with self.logs.borrowed(owner) as log:
                segment_count, size = segment_count_and_size(reads_of(log).source)
                start = log.start_offset
                directory = self.directory
                has_state = directory.fs.exists(directory.partition_path(owner) / KSTORE_STATE)
                below = remote_start(starts.get(owner), start, has_state=has_state)
                return PartitionDescription(
                    owner.partition,
                    start,
                    log.high_watermark,
                    log.end_offset,
                    segment_count,
                    size,
                    elsewhere="" if below is None else elsewhere(below, start),
                )
        except KstoreError as error:
            return PartitionDescription(owner.partition, error=str(error))

    def refresh(self) -> None:
        """Looks for topics that other processes have made. Raises: ClosedError, ForkedError, StorageError."""
        self.life.check()
        if self.directory.read_only or self.directory.shared:
            self.directory.look()

    # --- their logs -------------------------------------------------------------------------------------------------

    def log(self, topic: str, partition: int = 0) -> Log:
        """The log of a partition, for a user; it stays open. Raises: TopicNotFoundError, and as ``Log``."""
        self.life.check()
        if self.directory.read_only and partition not in self.directory.numbers(topic):
            self.directory.look()
        return self.logs.get(TopicPartition(topic, partition))

    def log_of(self, owner: TopicPartition) -> Log:
        """Like ``log``, for a part of the store that works while the store is being closed."""
        return self.logs.get(owner)

    def count(self, name: str) -> int:
        """How many partitions a topic has, 0 if it does not exist; also while the store is being closed."""
        directory = self.directory
        numbers = directory.numbers(name)
        if not numbers and (directory.read_only or directory.shared):
            directory.look()  # another process may have created it since
            numbers = directory.numbers(name)
        return directory.topics[name].partitions if numbers else 0

    def numbers(self, name: str) -> Sequence[int]:
        """The partitions of a topic that are here, as ``count``."""
        return self.directory.numbers(name)

    # --- create, change, delete -------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Any) -> None:
        """See ``Store.create_topic``."""
        self.check_writable()
        directory = self.directory
        entry = self._requested(name, partitions, settings)
        with self.telling(name), self.turn():
            if directory.shared:
                directory.look()  # another process may have created it since
            found = directory.topics.get(name)
            if found is not None and found.deleting:
                self.check_alone("a topic whose deletion was not finished")
                self._finish_delete(name)  # an error has interrupted its deletion
            elif directory.numbers(name) or (found is not None and found.made):
                if exist_ok:
                    self._warn_of_others(name, entry)
                    return
                raise TopicExistsError(f"there is a topic {name}")
            if (other := collision(name, directory.topics)) is not None:
                raise TopicExistsError(f"topic {name} differs from {other} only in '.' and '_', which Kafka refuses")
            directory.create(name, entry)

    def _requested(self, name: str, partitions: int, settings: Mapping[str, Any]) -> TopicEntry:
        """A topic that is to be created. Raises: ConfigError."""
        validate_topic(name)
        if name == METADATA_TOPIC:
            raise ConfigError(f"a topic cannot be named {name}: it is a broker's own")
        own = kept_settings(settings)
        self.settings.effective(name, own)
        return TopicEntry(check_partition_count(partitions), 0, None, own)

    def get_or_create(self, name: str, partitions: int, **settings: Any) -> TopicSummary:
        """See ``Store.topic``."""
        self.refresh()
        wanted = self._requested(name, partitions, settings)  # a mistake is an error at every call, not only the first
        try:
            found = self.summary(name)
        except TopicNotFoundError:
            self.create(name, partitions, exist_ok=True, **settings)
            return self.summary(name)
        if not self.read_only:
            self._warn_of_others(name, wanted)
        return found

    def _warn_of_others(self, name: str, wanted: TopicEntry) -> None:
        """Warns of what an existing topic keeps though ``wanted`` differs."""
        entry, numbers = self.directory.topic(name)
        config, durability = self.settings.effective(name, entry.settings)
        for setting, value in wanted.settings.items():
            found = durability if setting == "durability" else getattr(config, setting)
            if found != value:
                warnings.warn(
                    f"topic {name} exists and keeps {setting} {found!r}, not {value!r}: "
                    f"store.alter_topic({name!r}, {setting}={value!r}) changes it",
                    stacklevel=4,
                )
        if wanted.partitions > (count := max(entry.made, len(numbers))):
            warnings.warn(
                f"topic {name} exists and keeps its {count} partitions, not {wanted.partitions}: "
                f"store.add_partitions({name!r}, {wanted.partitions}) adds them",
                stacklevel=4,
            )

    def ensure(self, name: str, partitions: int, /, **settings: Any) -> int:
        """Creates a topic unless it exists; returns how many partitions it has. Raises: as ``create``."""
        if count := self.count(name):
            return count
        try:
            self.create(name, partitions, **settings)
        except TopicExistsError:
            if not self.count(name):  # otherwise another thread or process was faster
                raise
        return self.count(name)

    def grow(self, name: str, total: int) -> None:
        """See ``Store.add_partitions``."""
        self.check_writable()
        check_partition_count(total)
        with self.telling(name), self._lock:
            entry, numbers = self.directory.topic(name)
            count = max(entry.made, numbers[-1] + 1)
            if total <= count:
                raise ConfigError(f"topic {name} has {count} partitions, expected more than that, not {total}")
            self.directory.create(name, replace(entry, partitions=total, made=count))

    def alter(self, name: str, *, reset: Iterable[str] = (), **settings: Any) -> None:
        """See ``Store.alter_topic``."""
        self.check_alone("altering a topic")
        if isinstance(reset, str) or not isinstance(reset, Iterable):
            raise ConfigError(f"reset is {reset!r:.80}, expected names of settings")
        with self.telling(name), self._lock:
            entry, numbers = self.directory.topic(name)
            gone = {snake_case(one, RULES) for one in reset}
            if unknown := sorted(gone - LOG_SETTINGS):
                raise ConfigError(f"there is no setting {unknown[0]!r} to reset")
            own = {key: value for key, value in entry.settings.items() if key not in gone} | kept_settings(settings)
            config, durability = self.settings.effective(name, own)
            before = entry.settings.get("durability", self.settings.default_durability(name))
            if durability != before and self._has_open(name):
                raise ConfigError(f"the durability of {name} cannot change while its logs are open")
            self.directory.store_topic(name, replace(entry, settings=own, settings_lost=False))
            for number in numbers:
                self.logs.reconfigure(TopicPartition(name, number), config)

    def _has_open(self, name: str) -> bool:
        return any(owner.topic == name for owner, _ in self.logs.open_now())

    def delete(self, name: str) -> float:
        """Deletes a topic, durably, and closes its logs; returns after how many seconds its files are due for removal.

        For a block of ``telling``. Raises: TopicNotFoundError, LockedError, ReadOnlyError, StorageError.
        """
        self.check_alone("deleting a topic")
        directory = self.directory
        with self._lock:
            entry = directory.topics.get(name)
            is_decided = entry is not None and entry.deleting  # by a call that an interrupt, or an error, ended
            if entry is None or not is_decided:
                entry, _ = directory.topic(name)
            try:
                config, _ = self.settings.effective(name, entry.settings)
            except ConfigError:
                config = self.settings.defaults
            delay = config.file_delete_delay_ms / 1000
            if not is_decided:
                directory.begin_delete(name)
            self._finish_delete(name, delay_seconds=delay)
            return delay

    def _finish_delete(self, name: str, *, delay_seconds: float = 0.0) -> None:
        """Closes the logs of a topic whose deletion is decided, and deletes it; after an exception it may be called
        again."""
        directory = self.directory
        self.before_end(name)
        owners = [TopicPartition(name, number) for number in directory.partitions.get(name, ())]
        self._unclean.difference_update(owners)
        for owner in owners:
            try:
                self.logs.close(owner)
            except StorageError as error:
                logger.warning("%s: closed for its deletion: %s", directory.partition_path(owner), error)
            self.logs.forget(owner)
        directory.finish_delete(name, delay_seconds=delay_seconds)

    def finish_deletions(self) -> None:
        """Continues deletions that an error, or a crash, interrupted. Raises: the first failure, after trying all."""
        failure: KstoreError | None = None
        with self._lock:
            for name in [name for name, entry in self.directory.topics.items() if entry.deleting]:
                try:
                    self._finish_delete(name)
                except KstoreError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    # --- changes ------------------------------------------------------------------------------------------------------

    @property
    def tells_changes(self) -> bool:
        """Whether ``watch`` reports every change of topics, except those by another process."""
        return not (self.directory.read_only or self.directory.shared)

    def watch(self, changed: Callable[[str], None]) -> None:
        """Calls ``changed(topic)`` when a topic was created, deleted, grown or altered, until ``unwatch``."""
        with self._watching:
            self._watchers.append(changed)

    def unwatch(self, changed: Callable[[str], None]) -> None:
        with self._watching:
            if changed in self._watchers:
                self._watchers.remove(changed)

    @block
    def telling(self, topic: str) -> Iterator[None]:
        """A block that may create, delete, grow or alter a topic: reported at its end, also if that is an error or an
        interrupt, which may come after the change."""
        try:
            yield
        finally:
            try:
                self.tell(topic)
            except BaseException:
                self.tell(topic)  # an interrupt came before the end of the first call
                raise

    def tell(self, topic: str) -> None:
        """Reports that a topic was created, deleted, grown or altered; a second report of a change does no harm."""
        with self._watching:
            watchers = list(self._watchers)
        for changed in watchers:
            changed(topic)

    # --- open and close ---------------------------------------------------------------------------------------------

    def recover(self, thread_count: int) -> set[TopicPartition]:
        """Opens every log that was not closed cleanly, and closes it again; returns which. If one fails, its next use
        retries."""
        directory = self.directory
        unclean = [owner for owner in directory.owners() if not directory.is_clean(owner)]
        self._unclean = set(unclean)

        def recover(owner: TopicPartition) -> None:
            try:
                with self.logs.borrowed(owner):
                    pass
            except KstoreError as error:
                logger.warning("%s: cannot be recovered: %s", directory.partition_path(owner), error)

        if unclean:
            side_by_side(recover, unclean, count=thread_count, name="kstore-recovery")
        return set(unclean)

    def mark_clean(self, closed: Iterable[TopicPartition]) -> None:
        """Records, durably, that every log was closed cleanly, if those ``closed`` now and those recovered were."""
        directory = self.directory
        doubtful = {owner for owner in {*closed, *self._unclean} if owner.partition in directory.numbers(owner.topic)}
        if all(directory.is_clean(owner) for owner in doubtful):
            directory.mark_clean()


class BorrowedTopics:
    """Topics whose logs are closed with ``stack``, unless they are in use. Empty logs stay closed; none is created."""

    def __init__(self, topics: Topics, stack: ExitStack) -> None:
        self._topics = topics
        self._stack = stack

    def log_of(self, owner: TopicPartition) -> Log:
        """Raises: TopicNotFoundError if there is no log, or an empty one; and as ``Log``."""
        if not any(segment.size for segment in self._topics.directory.segment_ages(owner)):
            raise TopicNotFoundError(f"{owner} holds nothing")
        return self._stack.enter_context(self._topics.logs.borrowed(owner))

    def count(self, name: str) -> int:
        return self._topics.count(name)

    def numbers(self, name: str) -> Sequence[int]:
        return self._topics.numbers(name)

    def ensure(self, name: str, partitions: int, /, **settings: Any) -> int:
        """Raises: TopicNotFoundError if the topic does not exist."""
        if count := self.count(name):
            return count
        raise TopicNotFoundError(f"there is no topic {name}")
