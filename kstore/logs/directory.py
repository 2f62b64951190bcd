"""The directory of a store: opening it, creating and deleting topics, checkpoints, the clean marker.

One replacement of ``kstore.topics`` decides about the creation or deletion of a topic; after a crash the next store
that opens the directory finishes it.
"""

from __future__ import annotations

import errno
import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kstore.clock import Clock
from kstore.engine.directory import directory_mode, ensure_directory, make_directory
from kstore.errors import (
    ClosedError,
    ConfigError,
    CorruptFileError,
    FileInTheWayError,
    KstoreError,
    LogNotFoundError,
    PoisonedError,
    StorageError,
    SyncFailedError,
    TopicExistsError,
    TopicNotFoundError,
    UnsupportedFormatError,
)
from kstore.files._locks import block
from kstore.files.checkpoint import (
    read_offset_checkpoint,
    replace_file,
    write_clean_shutdown,
    write_offset_checkpoint,
    write_topic_id,
)
from kstore.files.fs import FileSystem
from kstore.files.linked import is_link, link_target
from kstore.files.lock import DirectoryLock
from kstore.files.log_lock import lock_past_lone_writers
from kstore.files.meta import random_id, read_meta_properties, write_meta_properties
from kstore.files.paths import (
    CHECKPOINTS,
    CLEAN_SHUTDOWN,
    DELETE_MARK,
    KSTORE_STATE,
    LOCK,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    METADATA_TOPIC,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    TEMPORARY_SUFFIX,
    TopicPartition,
    marked_dir_name,
)
from kstore.logs.root import RootContents, ensure_root, ensure_unused, segment_ages, was_closed_cleanly
from kstore.rules.retain import SegmentAge
from kstore.rules.topics import KSTORE_TOPICS, TopicEntry, TopicRows
from kstore.state.kafka_marks import KafkaMarks

logger = logging.getLogger(__name__)


class Checkpoints:
    """The offsets of each checkpoint file, as stored: for a broker, and for logs that kstore has not opened yet.

    Not thread-safe: its owner's lock guards it.
    """

    def __init__(self, fs: FileSystem, path: Path, *, file_mode: int) -> None:
        """Nothing is read until ``read``."""
        self._fs = fs
        self._path = path
        self._mode = file_mode
        self._stored: dict[str, dict[TopicPartition, int]] = {name: {} for name in CHECKPOINTS}

    def read(self) -> list[str]:
        """Reads every file; returns a note for each one that is ignored because it is damaged. Raises: StorageError."""
        notes = []
        for name in CHECKPOINTS:
            try:
                self._stored[name] = read_offset_checkpoint(self._fs, self._path / name)
            except CorruptFileError as error:
                self._stored[name] = {}
                notes.append(f"{name} is ignored: {error.reason}")
        return notes

    def recovery_point(self, owner: TopicPartition) -> int | None:
        return self._stored[RECOVERY_POINTS].get(owner)

    def log_start_offset(self, owner: TopicPartition) -> int | None:
        return self._stored[LOG_START_OFFSETS].get(owner)

    def write(
        self, changes: Mapping[str, Mapping[TopicPartition, int | None]], has_log: Callable[[TopicPartition], bool]
    ) -> int:
        """Applies the changes of some logs (None: no entry), and drops entries without a log; returns the number of
        changed files. Raises: StorageError."""
        count = 0
        for name in CHECKPOINTS:
            merged = {**self._stored[name], **changes.get(name, {})}
            wanted = {
                owner: offset
                for owner, offset in merged.items()
                if offset is not None and (owner.topic == METADATA_TOPIC or has_log(owner))
            }
            count += self._store(name, wanted)
        return count

    def forget(self, owners: Iterable[TopicPartition]) -> None:
        """Removes partitions, durably: a later log of the same name must not start with their offsets.

        Raises: StorageError.
        """
        gone = set(owners)
        for name, offsets in self._stored.items():
            self._store(name, {owner: offset for owner, offset in offsets.items() if owner not in gone})

    def _store(self, name: str, offsets: dict[TopicPartition, int]) -> bool:
        """Replaces a file, if that changes it; whether it did."""
        if offsets == self._stored[name]:
            return False
        write_offset_checkpoint(self._fs, self._path / name, offsets, mode=self._mode)
        self._stored[name] = offsets
        return True


class _Deleted(NamedTuple):
    """A directory to be removed: its name, and the ``monotonic`` time from which it may be removed."""

    name: str
    due: float


class LogDirectory:
    """The root of a store: its contents, and their changes. Thread-safe."""

    def __init__(
        self, fs: FileSystem, path: Path, clock: Clock, *, file_mode: int, read_only: bool = False, shared: bool = False
    ) -> None:
        """Opens the directory. For writing it is created if missing, and changes that a crash interrupted are finished,
        unless the directory is ``shared`` and another process has it open.

        Raises: LogNotFoundError, NotALogError (a file, or one log), LockedError, ReadOnlyError, StorageError.
        """
        self.fs = fs
        self.path = path
        self.clock = clock
        self.read_only = read_only
        self.shared = shared
        # As last read, or changed. Replaced as a whole, so that they may be read without a lock.
        self.topics: Mapping[str, TopicEntry] = {}
        self.partitions: Mapping[str, tuple[int, ...]] = {}
        self._rows = TopicRows()
        self.ignored: list[str] = []
        self.notes: list[str] = []
        self.was_clean: bool = False
        # Whether no other process had it open.
        self.is_first: bool = True
        self._mode = file_mode
        # Guards every change of the contents.
        self._mutex = threading.RLock()
        self._checkpoints = Checkpoints(fs, path, file_mode=file_mode)
        self._lock: DirectoryLock | None = None
        # The turn does for the processes that share the directory what the mutex does for threads.
        self._has_turn = False
        self._failed: BaseException | None = None
        self._deleted: list[_Deleted] = []
        if read_only:
            if not fs.exists(path):
                raise LogNotFoundError(errno.ENOENT, "there is no store", str(path))
            self.look()
            return
        is_new = not fs.exists(path / META_PROPERTIES)
        if is_new:
            make_directory(fs, path, mode=directory_mode(file_mode))
        ensure_root(fs, path)
        if is_new:
            ensure_unused(fs, path)  # before the lock is taken: a foreign directory stays as it is
        self._lock = DirectoryLock(path, kind="shared-store" if shared else "store", mode=file_mode, shared=shared)
        try:
            with self.turn():
                self.is_first = not (shared and self._lock.others_live())
                if self.is_first:
                    self._begin()
                else:
                    self.look()
                    self._read_checkpoints()
                if shared:
                    self._lock.go_live()
        except BaseException:
            self._lock.release()
            raise

    def _begin(self) -> None:
        fs, path = self.fs, self.path
        marker = path / CLEAN_SHUTDOWN
        self.was_clean = fs.exists(marker)
        contents = self.look()
        self._read_checkpoints()
        self._deleted = [_Deleted(name, 0.0) for name in contents.deleted]
        try:
            if read_meta_properties(fs, path / META_PROPERTIES) is None:
                write_meta_properties(fs, path / META_PROPERTIES, mode=self._mode)
        except CorruptFileError as error:
            self.note(f"{META_PROPERTIES} is left unchanged: {error.reason}")
        if self.was_clean:
            # Durably, before anything is written: it would tell a broker that the logs have not changed.
            fs.unlink(marker)
            fs.sync_dir(path)
        if contents.entries_lost:
            # From now on the entries decide.
            self._store_topics(self.topics)
        # Deletions go on once the logs can be opened: ``Topics.finish_deletions``.
        for name, entry in list(self.topics.items()):
            if entry.deleting or entry.is_made:
                continue
            try:
                with self._changing():
                    if entry.topic_id is None:  # kstore gives one before anything is made
                        entry = replace(entry, topic_id=random_id())
                        self.store_topic(name, entry)
                    self._make(name, entry, range(entry.made, entry.partitions))
            except KstoreError as error:
                # The next open continues it; until then its state is unchanged.
                self.note(f"topic {name} stays half created: {error}")

    def _read_checkpoints(self) -> None:
        for note in self._checkpoints.read():
            self.note(note)

    def note(self, text: str) -> None:
        """Records, and logs, a problem that was found when the store was opened."""
        self.notes.append(text)
        logger.warning("%s: %s", self.path, text)

    # --- the contents -------------------------------------------------------------------------------------------------

    def look(self) -> RootContents:
        """Reads the directory again. Raises: LogNotFoundError, NotALogError, StorageError."""
        if self.read_only:
            ensure_root(self.fs, self.path)
        with self._mutex:
            contents = RootContents(self.fs, self.path, read_only=self.read_only)
            self.notes = contents.notes
            self.ignored = contents.ignored
            self.topics = contents.topics
            self.partitions = contents.partitions
            return contents

    def numbers(self, topic: str) -> tuple[int, ...]:
        """The usable partitions of a topic: those that exist, completely created."""
        entry = self.topics.get(topic)
        if entry is None or entry.deleting:
            return ()
        found = self.partitions.get(topic, ())
        if entry.is_made:
            return found  # no copy: there may be thousands, and each access to a log asks
        making = range(entry.made, entry.partitions)
        return tuple(number for number in found if number not in making)

    def owners(self) -> list[TopicPartition]:
        """Every usable partition."""
        return [TopicPartition(name, number) for name in self.topics for number in self.numbers(name)]

    def partition_path(self, owner: TopicPartition) -> Path:
        return self.path / str(owner)

    def is_used(self, topic: str) -> bool:
        """Whether the topic was created here, or one of its logs written to; otherwise it is as a broker left it."""
        entry = self.topics.get(topic)
        if entry is None or entry.settings:
            return entry is not None
        paths = (self.partition_path(TopicPartition(topic, number)) / KSTORE_STATE for number in self.numbers(topic))
        return any(map(self.fs.exists, paths))

    def is_clean(self, owner: TopicPartition) -> bool:
        """Whether the log of a partition is known to be cleanly closed, so that opening it scans nothing."""
        believed = self.was_clean and self._checkpoints.recovery_point(owner) is not None
        try:
            return was_closed_cleanly(self.fs, self.partition_path(owner), if_never_opened=believed)
        except (StorageError, UnsupportedFormatError):
            return False  # opening it reports the error

    def segment_ages(self, owner: TopicPartition) -> list[SegmentAge]:
        """See the function of this name. Raises: StorageError."""
        return segment_ages(self.fs, self.partition_path(owner))

    def marks(self, owner: TopicPartition) -> KafkaMarks:
        """The contents of the store's files about a log when it was opened."""
        checkpoints = self._checkpoints
        return KafkaMarks(self.was_clean, checkpoints.recovery_point(owner), checkpoints.log_start_offset(owner))

    # --- the right to change it ---------------------------------------------------------------------------------------

    @property
    def root_lock(self) -> DirectoryLock:
        """The lock of the directory. Raises: ClosedError."""
        if self._lock is None or not self._lock.held:
            raise ClosedError(f"the store {self.path} is closed")
        return self._lock

    @block
    def turn(self) -> Iterator[None]:
        """A block in which no other sharing process reads or changes the contents."""
        with self._mutex:
            lock = self._lock
            if not self.shared or self._has_turn or lock is None:
                yield
                return
            try:
                lock.take_turn()
                self._has_turn = True
                yield
            finally:
                try:
                    self._end_turn(lock)
                except BaseException:
                    self._end_turn(lock)  # an interrupt came before the turn ended
                    raise

    def _end_turn(self, lock: DirectoryLock) -> None:
        """Lets other processes have the turn; a second call does nothing."""
        self._has_turn = False
        if lock.held:
            lock.end_turn()

    # --- topics -----------------------------------------------------------------------------------------------------

    @block
    def _changing(self) -> Iterator[None]:
        """The right to change the root's contents; a sync that fails inside ends all changes."""
        with self._mutex:
            self.root_lock  # noqa: B018  # raises if the store is closed
            if self.shared and not self._has_turn:
                with self.turn():
                    self.look()  # another process may have changed it
                    with self._changing():
                        yield
                return
            if self._failed is not None:
                raise PoisonedError(
                    None, f"no changes since a sync of the directory failed ({self._failed})", str(self.path)
                ) from self._failed
            try:
                yield
            except SyncFailedError as error:
                self._failed = error
                raise

    def topic(self, name: str) -> tuple[TopicEntry, tuple[int, ...]]:
        """A topic's entry, and its usable partitions. Raises: TopicNotFoundError, ConfigError (it is not text)."""
        if not isinstance(name, str):
            raise ConfigError(f"a topic is {name!r:.80}, expected a name")
        entry, numbers = self.topics.get(name), self.numbers(name)
        if not numbers and self.shared:
            self.look()  # another process may have created it
            entry, numbers = self.topics.get(name), self.numbers(name)
        if entry is None or not numbers:
            raise TopicNotFoundError(f"there is no topic {name!r:.300}")
        return entry, numbers

    def store_topic(self, name: str, entry: TopicEntry | None) -> None:
        """Replaces the entry of a topic, durably; None removes it."""
        with self._changing():
            topics = {**self.topics, name: entry}
            self._store_topics({name: entry for name, entry in topics.items() if entry is not None})

    def replace_file(self, name: str, data: bytes) -> None:
        """Replaces a file in the root, durably. Raises: ClosedError, and as the function of this name."""
        with self._changing():
            replace_file(self.fs, self.path / name, data, mode=self._mode)

    def _store_topics(self, topics: Mapping[str, TopicEntry]) -> None:
        try:
            replace_file(self.fs, self.path / KSTORE_TOPICS, self._rows.encoded(topics), mode=self._mode)
            self.topics = topics
        except (KeyboardInterrupt, MemoryError):
            # The file decides: a topic that it says is deleted must not take records.
            with suppress(KstoreError):
                self.look()
            raise

    def create(self, name: str, entry: TopicEntry) -> None:
        """Creates the partitions from ``entry.made`` to ``entry.partitions`` of a new topic, or of one that grows.

        Durable on return. After an exception the topic is unchanged, unless the disk fails completely: then the next
        open may find it created.
        """
        with self._changing():
            before = self.topics.get(name)
            if before is not None and not before.is_made:
                before = self._unmade(name, before)
            numbers = range(entry.made, entry.partitions)
            for number in numbers:
                path = self.partition_path(TopicPartition(name, number))
                if self.fs.exists(path):
                    # It appeared after the directory was read: it does not belong to kstore.
                    raise TopicExistsError(f"{path} exists already: reopen the store to see its contents")
            # A new topic must not start with checkpoints of an earlier one of its name.
            self._checkpoints.forget(TopicPartition(name, number) for number in numbers)
            if entry.topic_id is None:
                entry = replace(entry, topic_id=random_id())
            self.store_topic(name, entry)
            try:
                self._make(name, entry, ())
            except SyncFailedError:
                # What is on disk is unknown: perhaps that the topic exists. The next open checks.
                raise
            except BaseException:
                try:
                    self._unmade(name, replace(before or entry, partitions=entry.partitions, made=entry.made))
                except StorageError as error:
                    logger.warning("%s: topic %s is left half created: %s", self.path, name, error)
                raise

    def _make(self, name: str, entry: TopicEntry, taken: Collection[int]) -> None:
        """The directories that ``entry`` promises; those ``taken`` may exist, left by a crash."""
        assert entry.topic_id is not None
        numbers = range(entry.made, entry.partitions)
        for number in numbers:
            path = self.partition_path(TopicPartition(name, number))
            try:
                self.fs.mkdir(path, directory_mode(self._mode))
            except FileInTheWayError:
                if number not in taken:
                    raise
                ensure_directory(self.fs, path)
            write_topic_id(self.fs, path / PARTITION_METADATA, entry.topic_id, mode=self._mode)
        self.fs.sync_dir(self.path)
        self.store_topic(name, replace(entry, made=entry.partitions))
        there = set(self.partitions.get(name, ())) | set(numbers)
        self.partitions = {**self.partitions, name: tuple(sorted(there))}

    def _unmade(self, name: str, entry: TopicEntry) -> TopicEntry | None:
        """Reverts a creation: first the unused directories, then the promise of them.

        Returns the rest: the topic before it grew, None for a new one.
        """
        for number in range(entry.made, entry.partitions):
            path = self.partition_path(TopicPartition(name, number))
            # Only what was created: foreign contents keep their directory.
            for inner in (PARTITION_METADATA + TEMPORARY_SUFFIX, PARTITION_METADATA):
                with suppress(FileNotFoundError):
                    self.fs.unlink(path / inner)
            with suppress(FileNotFoundError):
                self.fs.rmdir(path)
        # After an interrupt the partitions may count already.
        gone = range(entry.made, entry.partitions)
        kept = tuple(number for number in self.partitions.get(name, ()) if number not in gone)
        self.partitions = {**self.partitions, name: kept}
        self.fs.sync_dir(self.path)
        left = replace(entry, partitions=entry.made) if entry.made else None
        self.store_topic(name, left)
        return left

    def begin_delete(self, name: str) -> None:
        """Decides, durably, that the topic is deleted. Then close its logs, and call ``finish_delete``."""
        self.store_topic(name, replace(self.topics[name], deleting=True))

    def finish_delete(self, name: str, *, delay_seconds: float = 0.0) -> None:
        """Renames the directories of a topic, whose logs are closed, to be removed after a delay. Durable on return.

        After an exception it may be called again.
        """
        with self._changing():
            owners = [TopicPartition(name, number) for number in self.partitions.get(name, ())]
            due = self.clock.monotonic() + delay_seconds
            for owner in owners:
                path = self.partition_path(owner)
                if not self.fs.exists(path):
                    continue  # an earlier call has done that
                going = marked_dir_name(owner, uuid.uuid4().hex, DELETE_MARK)
                # First: after an interrupt just after the rename, nothing else here would remember it.
                self._deleted.append(_Deleted(going, due))
                with lock_past_lone_writers(path, mode=self._mode):
                    if is_link(self.fs, path):
                        logger.warning("%s is a link, and deleted; the data stays in %s", path, link_target(path))
                    self.fs.rename(path, self.path / going)
            # Before the entry goes: a directory without one would be a topic again.
            self.fs.sync_dir(self.path)
            self.partitions = {topic: numbers for topic, numbers in self.partitions.items() if topic != name}
            self._checkpoints.forget(owners)
            self.store_topic(name, None)

    def remove_deleted(self, *, at_once: bool = False) -> int:
        """Removes what was deleted long enough ago; returns the number of directories. Raises: StorageError."""
        now = self.clock.monotonic()
        with self._mutex:
            due = [gone for gone in self._deleted if at_once or gone.due <= now]
        failure: StorageError | None = None
        count = 0
        for gone in due:
            try:
                self._remove_tree(self.path / gone.name)
                count += 1
            except FileNotFoundError:
                pass  # another program removed it
            except StorageError as error:
                failure = failure or error
                continue
            with self._mutex:
                self._deleted.remove(gone)
        if failure is not None:
            raise failure
        return count

    def _remove_tree(self, path: Path) -> None:
        fs = self.fs
        if not fs.stat(path).is_dir:
            fs.unlink(path)  # a link: what it leads to is not the store's
            return
        # The files that make a directory a log go last: half of one is still recognised.
        for name in sorted(fs.list(path), key=lambda name: (name == LOCK, name == PARTITION_METADATA)):
            inner = path / name
            self._remove_tree(inner)
        fs.rmdir(path)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def write_checkpoints(self, changes: Mapping[str, Mapping[TopicPartition, int | None]]) -> int:
        """Adds the changes of some logs (None: no entry), drops entries without a log; returns the number of changed
        files."""
        with self._changing():
            return self._checkpoints.write(changes, self._has_log)

    def _has_log(self, owner: TopicPartition) -> bool:
        return owner.partition in self.partitions.get(owner.topic, ())

    # --- close ------------------------------------------------------------------------------------------------------

    def mark_clean(self) -> None:
        """Records, durably, that every log was closed cleanly."""
        with self._changing():
            write_clean_shutdown(self.fs, self.path / CLEAN_SHUTDOWN, mode=self._mode)

    def close(self) -> None:
        """Releases the directory, or leaves it to logs that could not be closed; writes nothing."""
        with self._mutex:
            if self._lock is not None:
                self._lock.release()
