"""The open logs of a store: each opened on first use, shared, flushed together, and closed together.

A log that a user requested stays open until the store is closed, or its topic deleted. One that only background work
needs is closed again afterwards: a store may have more logs than a process may have files.
"""

from __future__ import annotations

import errno
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from kstore.clock import Clock
from kstore.config import LogConfig
from kstore.engine.change.flush import BackgroundFlusher
from kstore.engine.read.lookup import CHECKED_BYTES_MAX
from kstore.engine.writer import LogOffsets, LogWriter, StoreTies
from kstore.errors import ClosedError, KstoreError, PoisonedError, SyncFailedError, ThreadStartError
from kstore.files._locks import OwnedLock, block
from kstore.files.paths import TopicPartition
from kstore.log import Log, writer_of
from kstore.logs.directory import LogDirectory
from kstore.logs.scheduler import Scheduler
from kstore.logs.topic_settings import EffectiveSettings
from kstore.metrics import LogCounters
from kstore.record._runs import CheckedMemory
from kstore.rules.retain import TrustedClock
from kstore.types import Durability, RecoveryReport

FLUSH_TASK = "flush"


@dataclass(slots=True)
class _Entry:
    """A partition's log. ``is_kept``: the store's user has it; ``user_count``: the number of internal users.

    ``writer`` is the log's own, which knows the log's offsets even after its user has closed it.
    """

    lock: OwnedLock = field(default_factory=OwnedLock)
    log: Log | None = None
    writer: LogWriter | None = None
    is_kept: bool = False
    user_count: int = 0
    # They continue from their values when the log is reopened.
    counters: LogCounters = field(default_factory=LogCounters)


class OpenLogs:
    """The logs of a store, by partition. Thread-safe."""

    def __init__(self, directory: LogDirectory, settings: EffectiveSettings, flushes: Flushes) -> None:
        self._directory = directory
        self._settings = settings
        self._flushes = flushes
        # One for all: a log that is opened after a jump of the clock must not believe it.
        clock = directory.clock
        self._retention_clock = TrustedClock(clock.now_ms(), clock.monotonic())
        # What lookups in any of them have checked.
        self._checked = CheckedMemory(CHECKED_BYTES_MAX)
        self._mutex = OwnedLock()
        self._entries: dict[TopicPartition, _Entry] = {}
        # The offsets of logs at their close, for the checkpoints.
        self._closed_at: dict[TopicPartition, LogOffsets] = {}
        # The replicators that retention waits for. Replaced by one store.
        self._held_for: frozenset[str] = frozenset()
        # What opening logs found and did, unless they were closed cleanly: the recovery comes before a user opens one.
        self._recovery: dict[TopicPartition, RecoveryReport] = {}
        self._closed = False

    def get(self, owner: TopicPartition) -> Log:
        """The log of ``owner``, opened if necessary; it stays open. Raises: as ``Log``."""
        self._settings.of(owner)  # raises if the partition does not exist
        entry = self._entries.get(owner)
        # Without a lock, so in this order: a log that is opened for some work is stored after ``is_kept`` is False.
        if entry is not None and (log := entry.log) is not None and entry.is_kept and not (log.closed or self._closed):
            return log
        with self._held(owner) as entry:
            log = self._opened(owner, entry)
            entry.is_kept = True
            return log

    @block
    def borrowed(self, owner: TopicPartition) -> Iterator[Log]:
        """The log of ``owner`` for some work; closed afterwards, unless it is in use elsewhere. Raises: as ``Log``."""
        is_counted = False
        try:
            with self._held(owner) as entry:
                log = self._opened(owner, entry)
                # Nothing between these two statements can run a signal handler.
                entry.user_count += 1
                is_counted = True
            yield log
        finally:
            if is_counted:
                with entry.lock:
                    entry.user_count -= 1
                    if not entry.is_kept and not entry.user_count:
                        self._close_log(owner, entry)

    def open_now(self) -> list[tuple[TopicPartition, Log]]:
        """The logs that are open."""
        with self._mutex:
            entries = list(self._entries.items())
        logs = [(owner, entry.log) for owner, entry in entries]
        return [(owner, log) for owner, log in logs if log is not None and not log.closed]

    def recovery(self) -> dict[TopicPartition, RecoveryReport]:
        """The reports of the logs that were not closed cleanly when this store first opened them, or opened again."""
        with self._mutex:
            return dict(sorted(self._recovery.items()))

    def counters(self) -> dict[TopicPartition, LogCounters]:
        """The counters of every log opened so far."""
        with self._mutex:
            return {owner: entry.counters for owner, entry in self._entries.items()}

    def is_open(self, owner: TopicPartition) -> bool:
        entry = self._entries.get(owner)
        return entry is not None and entry.log is not None and not entry.log.closed

    def close(self, owner: TopicPartition) -> None:
        """Closes one log cleanly; its next user reopens it. Raises: as ``Log.close``."""
        entry = self._entries.get(owner)
        if entry is not None:
            with entry.lock:
                self._close_log(owner, entry)

    def reconfigure(self, owner: TopicPartition, config: LogConfig) -> None:
        """Applies other settings to the log, if it is open; waits for one that is being opened."""
        entry = self._entries.get(owner)
        if entry is not None:
            with entry.lock, suppress(ClosedError, PoisonedError):
                if entry.writer is not None:
                    entry.writer.reconfigure(config)

    def hold_retention(self, name: str) -> None:
        """Retention deletes nothing of any log, also of one that is opened later, before the replicator ``name`` says
        that it has copied it."""
        self._held_for |= {name}
        self._hold(name, 0)

    def release_retention(self, name: str) -> None:
        """Retention waits for the replicator ``name`` no longer."""
        self._held_for -= {name}
        self._hold(name, None)

    def _hold(self, name: str, copied_to: int | None) -> None:
        with self._mutex:
            entries = list(self._entries.values())
        for entry in entries:
            with entry.lock:
                if entry.writer is not None:
                    entry.writer.retention.hold(name, copied_to)

    def shut(self) -> list[TopicPartition]:
        """Opens nothing more; returns the partitions whose logs must be closed."""
        with self._mutex:
            self._closed = True
            return list(self._entries)

    def offsets(self) -> dict[TopicPartition, LogOffsets]:
        """The offsets of open logs, and those of others at their close, unless they were ``noted``."""
        with self._mutex:
            offsets = dict(self._closed_at)
            writers = [(owner, entry.writer) for owner, entry in self._entries.items()]
        for owner, writer in writers:
            if writer is not None:
                offsets[owner] = writer.offsets
        return offsets

    def noted(self, offsets: Mapping[TopicPartition, LogOffsets]) -> None:
        """Records that ``offsets`` are in the checkpoints."""
        with self._mutex:
            for owner, known in offsets.items():
                if self._closed_at.get(owner) == known:
                    del self._closed_at[owner]

    def forget(self, owner: TopicPartition) -> None:
        """Records that the partition no longer exists."""
        with self._mutex:
            self._entries.pop(owner, None)
            self._closed_at.pop(owner, None)
            self._recovery.pop(owner, None)

    @block
    def _held(self, owner: TopicPartition) -> Iterator[_Entry]:
        """The entry of ``owner``, locked. Raises: TopicNotFoundError, ClosedError."""
        while True:
            self._settings.of(owner)  # no entries for partitions that do not exist
            with self._mutex:
                entry = self._entries.get(owner)
                if entry is None:
                    # No ``setdefault``: refused memory there, CPython 3.13 counts an entry that it has not stored.
                    entry = self._entries[owner] = _Entry()
            with entry.lock:
                # After a wait this may be the entry of a deleted partition, next to which there is a new one.
                if self._entries.get(owner) is entry:
                    yield entry
                    return

    def _opened(self, owner: TopicPartition, entry: _Entry) -> Log:
        """Needs the entry's lock. Checks again that the partition exists: it may just have been deleted."""
        if self._closed:
            raise ClosedError(f"the store {self._directory.path} is closed")
        config, durability = self._settings.of(owner)
        if entry.log is None or entry.log.closed:
            entry.is_kept = False  # its user has closed it
            if entry.log is not None:
                # Another thread may still be doing so: a second writer must not meet the files of the first.
                entry.log.close()
            entry.log = self._open(owner, config, durability, entry.counters)
            entry.writer = None if self._directory.read_only else writer_of(entry.log)
            if entry.writer is not None:
                self._note_recovery(owner, entry.writer)
            for name in self._held_for:
                writer_of(entry.log).retention.hold(name, 0)
        return entry.log

    def _note_recovery(self, owner: TopicPartition, writer: LogWriter) -> None:
        """Keeps the report of an open that had work to do; a clean one shows the report that is kept."""
        with self._mutex:
            if writer.report.clean:
                writer.report = self._recovery.get(owner, writer.report)
            else:
                self._recovery[owner] = writer.report

    def _close_log(self, owner: TopicPartition, entry: _Entry) -> None:
        """Needs the entry's lock."""
        log, writer = entry.log, entry.writer
        entry.is_kept = False
        if log is None:
            return
        try:
            log.close()
        finally:
            if writer is not None:
                offsets = writer.offsets
                with self._mutex:
                    self._closed_at[owner] = offsets
            # Last: the next call continues a close that an interrupt ended early.
            if writer is None or writer.closed:
                entry.log = entry.writer = None

    def _open(self, owner: TopicPartition, config: LogConfig, durability: Durability, counters: LogCounters) -> Log:
        directory = self._directory
        path = directory.partition_path(owner)
        if directory.read_only:
            return Log(
                path,
                read_only=True,
                fs=directory.fs,
                clock=directory.clock,
                _counters=counters,
                _config=config,
                _checked=self._checked,
            )

        def flusher(writer: LogWriter) -> BackgroundFlusher:
            return _LogFlusher(self._flushes, writer)

        return Log(
            path,
            shared=directory.shared,
            durability=durability,
            fs=directory.fs,
            clock=directory.clock,
            _ties=StoreTies(directory.marks(owner), flusher, self._retention_clock, directory.root_lock),
            _counters=counters,
            _config=config,
            _checked=self._checked,
        )


class Flushes:
    """The logs with something to flush, and when. Thread-safe."""

    def __init__(self, clock: Clock, scheduler: Scheduler) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._lock = OwnedLock()
        self._due: dict[_LogFlusher, float] = {}

    def begin(self) -> None:
        """Called before the first write."""
        self._scheduler.add(FLUSH_TASK, self.run, interval_seconds=None, lane="flush")

    def note(self, flusher: _LogFlusher, delay_seconds: float) -> None:
        """Makes ``flusher`` flush after ``delay_seconds``. Raises: ThreadStartError."""
        with self._lock:
            self._due[flusher] = self._clock.monotonic() + delay_seconds
        if not self._scheduler.wake(FLUSH_TASK, delay_seconds=delay_seconds):
            self.forget(flusher)
            raise ThreadStartError(errno.EAGAIN, "the thread that flushes logs cannot be started")

    def run(self) -> None:
        """Flushes every log that is due. Raises: the first failure, after trying all."""
        now = self._clock.monotonic()
        with self._lock:
            due = [flusher for flusher, when in self._due.items() if when <= now]
            for flusher in due:
                del self._due[flusher]
            following = min(self._due.values(), default=None)
        if following is not None:
            self._scheduler.wake(FLUSH_TASK, delay_seconds=max(following - now, 0.0))
        failure: Exception | None = None
        for flusher in due:
            try:
                flusher.flush()
            except ClosedError:
                pass  # it was flushed when it was closed
            except (PoisonedError, SyncFailedError) as error:
                failure = failure or error  # every later append raises it, or the log's close
            except Exception as error:
                # No error prevents the flush of another log, or the next attempt for this one.
                failure = failure or error
                with suppress(KstoreError):
                    flusher.note()
        if failure is not None:
            raise failure

    def forget(self, flusher: _LogFlusher) -> None:
        with self._lock:
            self._due.pop(flusher, None)


class _LogFlusher:
    """Replaces a log's own flushing thread in a store."""

    def __init__(self, flushes: Flushes, writer: LogWriter) -> None:
        self._flushes = flushes
        self._writer = weakref.ref(writer)
        self._noted = False
        self._stopped = False
        # Held while the log is flushed.
        self._lock = OwnedLock()

    def note(self) -> None:
        """Notes that there is something to flush; almost free if that was noted before. Raises: ThreadStartError."""
        if not self._noted and (writer := self._writer()) is not None:
            try:
                self._noted = True
                # Read each time: the setting may change while the log is open.
                self._flushes.note(self, min(writer.context.config.flush_ms / 1000, threading.TIMEOUT_MAX))
            except BaseException:
                self._noted = False  # after an interrupt, too, the next append requests it again
                raise

    note_sealed = note

    def flush(self) -> None:
        with self._lock:
            writer = self._writer()
            if writer is None or self._stopped:
                return
            # Before the flush: an append during it is not covered, and requests another.
            self._noted = False
            try:
                writer.flush()
            except KstoreError as error:
                # With the lock: a close that waits for it must find the failure.
                writer.keep_failure(error)
                raise

    def stop(self) -> None:
        """Returns when the log is not being flushed, and will not be flushed any more."""
        self._stopped = True
        self._flushes.forget(self)
        with self._lock:
            pass
