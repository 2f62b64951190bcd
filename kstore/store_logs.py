"""The open logs of a store: each opened when it is first needed, shared, flushed together, and closed together.

A log that somebody asked for stays open until the store is closed, or its topic deleted. One that only background work
needs is closed again behind it: a store may have more logs than a process may have files.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from kstore.clock import Clock
from kstore.config import LogConfig
from kstore.errors import ClosedError, KstoreError, StorageError
from kstore.files.fs import FileSystem
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.log_dir import LogDirectory
from kstore.log_writer import BackgroundFlusher, LogWriter, StoreTies
from kstore.scheduler import Scheduler
from kstore.types import Durability

__all__ = ["FLUSH_TASK", "Flushes", "OpenLogs"]

logger = logging.getLogger(__name__)

FLUSH_TASK = "flush"


@dataclass(slots=True)
class _Entry:
    """A partition's log. ``is_kept``: somebody outside has it; ``user_count``: so many inside are at work on it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    log: Log | None = None
    is_kept: bool = False
    user_count: int = 0


class OpenLogs:
    """The logs of a store, by partition. Thread-safe."""

    def __init__(
        self,
        directory: LogDirectory,
        fs: FileSystem,
        clock: Clock,
        settings_of: Callable[[TopicPartition], tuple[LogConfig, Durability]],
        flushes: Flushes,
    ) -> None:
        """``settings_of`` raises for a partition that there is not."""
        self._directory = directory
        self._fs = fs
        self._clock = clock
        self._settings_of = settings_of
        self._flushes = flushes
        self._mutex = threading.Lock()
        self._entries: dict[TopicPartition, _Entry] = {}
        self._closed = False

    def get(self, owner: TopicPartition) -> Log:
        """The log of ``owner``, opened if need be; it stays open. Raises: as ``Log``."""
        entry = self._entry(owner)
        with entry.lock:
            log = self._opened(owner, entry)
            entry.is_kept = True
            return log

    @contextmanager
    def borrowed(self, owner: TopicPartition) -> Iterator[Log]:
        """The log of ``owner`` for some work; closed behind it, unless somebody else has it. Raises: as ``Log``."""
        entry = self._entry(owner)
        with entry.lock:
            log = self._opened(owner, entry)
            entry.user_count += 1
        try:
            yield log
        finally:
            with entry.lock:
                entry.user_count -= 1
                if not entry.is_kept and not entry.user_count and entry.log is not None:
                    entry.log.close()
                    entry.log = None

    def open_now(self) -> list[tuple[TopicPartition, Log]]:
        """The logs that are open."""
        with self._mutex:
            entries = list(self._entries.items())
        logs = [(owner, entry.log) for owner, entry in entries]
        return [(owner, log) for owner, log in logs if log is not None and not log.closed]

    def is_open(self, owner: TopicPartition) -> bool:
        entry = self._entries.get(owner)
        return entry is not None and entry.log is not None and not entry.log.closed

    def close(self, owner: TopicPartition) -> None:
        """Closes one log, in order; its next user opens it anew. Raises: as ``Log.close``."""
        with self._mutex:
            entry = self._entries.pop(owner, None)
        if entry is not None:
            with entry.lock:
                log, entry.log = entry.log, None
                if log is not None:
                    log.close()

    def shut(self) -> list[TopicPartition]:
        """Opens nothing more; returns the partitions whose logs are to be closed."""
        with self._mutex:
            self._closed = True
            return list(self._entries)

    def _entry(self, owner: TopicPartition) -> _Entry:
        with self._mutex:
            return self._entries.setdefault(owner, _Entry())

    def _opened(self, owner: TopicPartition, entry: _Entry) -> Log:
        """Needs the entry's lock. Asks again whether there is such a partition: it may just have been deleted."""
        if self._closed:
            raise ClosedError(f"the store {self._directory.path} is closed")
        config, durability = self._settings_of(owner)
        if entry.log is None or entry.log.closed:
            entry.log = self._open(owner, config, durability)
            with self._mutex:
                self._entries[owner] = entry  # it may have been taken out meanwhile
        return entry.log

    def _open(self, owner: TopicPartition, config: LogConfig, durability: Durability) -> Log:
        directory = self._directory
        settings = {row.name: getattr(config, row.name) for row in fields(config)}
        path = directory.partition_path(owner)
        if directory.read_only:
            return Log(path, read_only=True, fs=self._fs, clock=self._clock, **settings)

        def flusher(writer: LogWriter) -> BackgroundFlusher:
            return _LogFlusher(self._flushes, writer, config.flush_ms / 1000)

        return Log(
            path,
            durability=durability,
            fs=self._fs,
            clock=self._clock,
            _ties=StoreTies(directory.marks(owner), flusher),
            **settings,
        )


class Flushes:
    """The logs that have something to flush, and when. Thread-safe."""

    def __init__(self, clock: Clock, scheduler: Scheduler) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._due: dict[_LogFlusher, float] = {}

    def note(self, flusher: _LogFlusher, delay_seconds: float) -> None:
        with self._lock:
            self._due[flusher] = self._clock.monotonic() + delay_seconds
        self._scheduler.wake(FLUSH_TASK, delay_seconds=delay_seconds)

    def run(self) -> None:
        """Flushes every log that is due. Raises: the first failure, when all were tried."""
        now = self._clock.monotonic()
        with self._lock:
            due = [flusher for flusher, when in self._due.items() if when <= now]
            for flusher in due:
                del self._due[flusher]
            following = min(self._due.values(), default=None)
        if following is not None:
            self._scheduler.wake(FLUSH_TASK, delay_seconds=max(following - now, 0.0))
        failure: KstoreError | None = None
        for flusher in due:
            try:
                flusher.flush()
            except ClosedError:
                pass  # it was flushed when it was closed
            except (KstoreError, StorageError) as error:
                # A failed sync has poisoned the log, and every later append says so.
                failure = failure or error
        if failure is not None:
            raise failure

    def forget(self, flusher: _LogFlusher) -> None:
        with self._lock:
            self._due.pop(flusher, None)


class _LogFlusher:
    """What a log of a store has in the place of a thread of its own."""

    def __init__(self, flushes: Flushes, writer: LogWriter, delay_seconds: float) -> None:
        self._flushes = flushes
        self._writer = weakref.ref(writer)
        self._delay_seconds = min(delay_seconds, threading.TIMEOUT_MAX)
        self._noted = False
        self._stopped = False
        # Held while the log is flushed.
        self._lock = threading.Lock()

    def note(self) -> None:
        """There is something to flush. Costs next to nothing when that was known."""
        if not self._noted:
            self._noted = True
            self._flushes.note(self, self._delay_seconds)

    def flush(self) -> None:
        with self._lock:
            writer = self._writer()
            if writer is None or self._stopped:
                return
            # Before the flush: an append that comes during it is not covered, and asks again.
            self._noted = False
            writer.flush()

    def stop(self) -> None:
        """Returns when the log is not being flushed any more, and will not be."""
        self._stopped = True
        self._flushes.forget(self)
        with self._lock:
            pass
