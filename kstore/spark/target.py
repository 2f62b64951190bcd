"""The target of a write: the store, opened when no other process has it, and its topics as tasks need to know them."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.config import LogConfig
from kstore.errors import (
    ConfigError,
    CorruptFileError,
    LockedError,
    LogNotFoundError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
)
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.lock import probe_lock
from kstore.files.meta import MetaProperties, read_meta_properties
from kstore.files.paths import META_PROPERTIES
from kstore.rules.topics import effective_settings
from kstore.spark.write_options import WriteOptions, check_topic
from kstore.store import LOG_DEFAULTS, Store

Result = TypeVar("Result")

# How often a held lock is checked.
LOCK_POLL_SECONDS = 0.05


class TopicTarget(NamedTuple):
    """A topic, as a task needs to know it: how its batches are made."""

    partition_count: int
    codec: str
    level: int | None
    size_max: int


class StoreTarget(NamedTuple):
    """A store, as a task needs to know it. ``identity`` tells it from any other at the same path on another machine.

    ``new`` is the template for topics that do not exist yet; None if they are not created.
    """

    path: str
    identity: MetaProperties | None
    topics: dict[str, TopicTarget]
    new: TopicTarget | None

    def topic(self, name: str | None) -> TopicTarget:
        """Raises: TopicNotFoundError, ConfigError."""
        if name is None:
            raise ConfigError("null topic present in the data. Use the topic option for setting a default topic.")
        found = self.topics.get(name)
        if found is None:
            check_topic(name)
            found = self.new
        if found is None:
            raise TopicNotFoundError(
                f"there is no topic {name!r} in {self.path}: create it, or set the option partitions to have it created"
            )
        return found


def plan_target(options: WriteOptions, *, fs: FileSystem = SYSTEM_FS, clock: Clock = SYSTEM_CLOCK) -> StoreTarget:
    """Checks the store before any task runs; creates it, and the topic of the options, if ``partitions`` is set.

    Raises: LogNotFoundError, NotALogError, TopicNotFoundError; LockedError if another process has it open for writing.
    """
    path = Path(options.path)
    new = None if options.partitions is None else _topic_target(options, options.partitions, {})
    if not fs.exists(path):
        if new is None:
            raise LogNotFoundError(
                errno.ENOENT,
                "there is no store: set the option partitions to have it created, with its topics",
                options.path,
            )
        open_store(options, fs=fs, clock=clock).close()
    topics = _topics(options, fs, clock)
    if options.topic is not None and options.topic not in topics and new is not None:
        with open_store(options, fs=fs, clock=clock) as store:
            make_topic(store, options, options.topic)
        topics = _topics(options, fs, clock)
    target = StoreTarget(options.path, identity_of(fs, path), topics, new)
    if options.topic is not None:
        target.topic(options.topic)
    # Better now than after all tasks have run.
    _when_free(options, lambda: probe_lock(path))
    return target


def make_topic(store: Store, options: WriteOptions, name: str) -> None:
    """Creates a missing topic. Raises: TopicNotFoundError without the option; as ``Store.create_topic``."""
    if options.partitions is None:
        raise TopicNotFoundError(f"there is no topic {name!r} in {options.path} any more")
    check_topic(name)
    with suppress(TopicExistsError):
        store.create_topic(name, options.partitions)


def _topics(options: WriteOptions, fs: FileSystem, clock: Clock) -> dict[str, TopicTarget]:
    with Store(options.path, read_only=True, fs=fs, clock=clock) as store:
        names = store.topics()
        if options.topic is not None:
            names = [name for name in names if name == options.topic]
        found = {}
        for name in names:
            summary = store.summary(name)
            found[name] = _topic_target(options, summary.partition_count, summary.settings)
        return found


def _topic_target(options: WriteOptions, partition_count: int, settings: dict[str, object]) -> TopicTarget:
    config: LogConfig = effective_settings(LOG_DEFAULTS, settings, "sync")[0]
    codec = config.target_codec(options.codec)
    size_max = min(config.max_message_bytes, config.max_batch_bytes_uncompressed, config.segment_bytes)
    return TopicTarget(partition_count, codec, config.compression_level(codec), size_max)


def identity_of(fs: FileSystem, path: Path) -> MetaProperties | None:
    try:
        return read_meta_properties(fs, path / META_PROPERTIES)
    except CorruptFileError:
        return None  # the store leaves it unchanged, and reports it


def check_is_seen(target: StoreTarget, *, fs: FileSystem = SYSTEM_FS) -> None:
    """In a task: checks that this machine sees the store that the driver has seen. Raises: StorageError."""
    path, host = Path(target.path), socket.gethostname()
    shared = "the store must be on a file system that the driver and all executors share"
    if not fs.exists(path):
        raise LogNotFoundError(errno.ENOENT, f"the executor on {host} does not see the store: {shared}", target.path)
    if target.identity is not None and identity_of(fs, path) != target.identity:
        raise StorageError(
            errno.ESTALE, f"the executor on {host} sees another store than the driver: {shared}", target.path
        )


def open_store(options: WriteOptions, *, fs: FileSystem = SYSTEM_FS, clock: Clock = SYSTEM_CLOCK) -> Store:
    """The store, open for writing for a moment, without background work.

    Raises: LockedError if another process has it for longer than ``lockTimeout``; as ``Store``.
    """
    return _when_free(options, lambda: Store(options.path, background=False, fs=fs, clock=clock))


def _when_free(options: WriteOptions, attempt: Callable[[], Result]) -> Result:
    due = time.monotonic() + options.lock_timeout_ms / 1000
    while True:
        try:
            return attempt()
        except LockedError as error:
            if time.monotonic() >= due:
                raise LockedError(
                    error.errno,
                    f"{error.strerror}: a Spark write needs the store for itself while it is committed. Close it "
                    f"there (waited {options.lock_timeout_ms} ms: lockTimeout)",
                    error.filename,
                ) from error
            time.sleep(LOCK_POLL_SECONDS)
