"""``Replicator``: follows a live store, and copies what is new to where its backups are, again and again.

A round is a backup (``take``) by a copier that remembers the one before, so it costs what has changed since: of an
active segment one more piece. It ends with a manifest, unless that would say the same as the last one. Then the oldest
manifests of the replicator are removed, and an hour later the files that only they have named: a restore that has read
a manifest has that long.

A round begins when a log grows, at most once an interval. Each log reports only its first append after a round began,
so all others cost no more than without a replicator. What only removes is not reported: a look in memory, once a
minute, finds it. In a shared store other processes report nothing: a look in memory, once an interval, finds what they
have done.

A kill, or a failed request, at any step leaves what a failed backup leaves: files that no manifest names. The next
complete round looks for them, and they are removed an hour later too.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, TypedDict

from kstore.archive.manifest import Manifest, is_replica
from kstore.archive.target import BackupTarget
from kstore.backup.plan import NamedFiles
from kstore.backup.take import Copier
from kstore.compaction.throttle import Throttle
from kstore.engine.change.growth import Growth
from kstore.engine.writer import LogWriter
from kstore.errors import (
    ClosedError,
    ConfigError,
    CorruptFileError,
    DivergedError,
    KstoreError,
    PathLike,
    ThreadStartError,
)
from kstore.files.lifetime import Closing
from kstore.files.paths import TopicPartition
from kstore.logs.scheduler import Scheduler
from kstore.logs.topics import Topics
from kstore.rules.topics import decode_topics
from kstore.setting_rules import COUNT, TIME, Rule, shown, within

logger = logging.getLogger(__name__)

# How often a round looks for what no log reports; and the longest pause after failed ones.
LOOK_SECONDS = 60.0
# How long a file stays that no manifest names.
REMOVAL_SECONDS = 3600.0
EVERY = within(1, 86_400_000, TIME, "", "")
KEEP = within(1, 100_000, COUNT, "", "")


class ReplicatorSettings(TypedDict, total=False):
    """Settings of a replicator; see ``Store.replicator``."""

    every: int | str | timedelta
    keep: int
    hold_retention: bool
    storage_options: Mapping[str, Any] | None
    bytes_per_second: float | None


class Replicator(Closing):
    """Keeps backups of a store's latest moments in a target, until it or the store is closed. Thread-safe."""

    def __init__(
        self,
        topics: Topics,
        scheduler: Scheduler,
        target: PathLike,
        *,
        every: int | str | timedelta = 1000,
        keep: int = 60,
        hold_retention: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        bytes_per_second: float | None = None,
    ) -> None:
        """See ``Store.replicator``."""
        topics.check_writable()
        if hold_retention:
            topics.check_alone("hold_retention")  # it holds back that of this process only
        topics.refresh()
        self._every_seconds = _parsed("every", EVERY, every) / 1000
        self._keep = _parsed("keep", KEEP, keep)
        self._holds_retention = hold_retention
        self._topics = topics
        self._clock = topics.clock
        self._scheduler = scheduler
        self._is_closing = False
        throttle = Throttle(bytes_per_second, self._clock, threading.Event().wait, lambda: self._is_closing)
        self._target = BackupTarget(target, storage_options=storage_options, fs=topics.directory.fs)
        self._task = f"replicate {self._target.url}"
        self._lock = threading.Lock()  # held during a round; guards what follows
        # No round begins any more; and nothing is left of it.
        self._closed = self._is_ended = False
        self._stack = ExitStack()
        self._ears: dict[LogWriter, _Ear] = {}
        self._named = NamedFiles()
        # The newest one in the target, unless it is damaged.
        self._last: Manifest | None = None
        # The times of manifests that may be in the target, or not.
        self._doubtful: set[int] = set()
        # The manifests that must go, and what only they have named; then since when no manifest names a file, rising.
        self._old: list[int] = []
        self._gone: list[tuple[TopicPartition, str]] = []
        self._unnamed: OrderedDict[tuple[TopicPartition, str], float] = OrderedDict()
        self._tidy_at = 0.0
        # Whether the target was searched for files that no manifest names; None if that cannot be known.
        self._is_swept: bool | None = False
        self._pause_seconds = 0.0
        # When the last round began, and since when the target lacks something: before that round, and after it.
        self._began = -self._every_seconds
        self._copied_since: float | None = None
        self._grown_since: float | None = self._clock.monotonic()
        # When it last looked for what other processes have done.
        self._looked = self._grown_since
        if any(task.name == self._task for task in scheduler.status()):
            raise ConfigError(f"there is a replicator to {self._target.url} already")
        try:
            self._target.begin()
            self._look_at_target()
            self._copier = Copier(topics, self._target, self._stack, throttle)
        except BaseException:
            self._target.close()
            raise
        try:
            scheduler.add(self._task, self._run, interval_seconds=self._look_seconds, delay_seconds=0, lane=self._task)
            topics.watch(self._ring_for)
            if hold_retention:
                topics.logs.hold_retention(self._task)
            if not scheduler.wake(self._task):
                raise ThreadStartError(errno.EAGAIN, f"no thread for a replicator to {self._target.url}")
        except BaseException:
            self._is_closing = True
            with self._lock:
                self._end()
            raise

    def _look_at_target(self) -> None:
        """Raises: DivergedError, UnsupportedFormatError, StorageError."""
        readable = None
        for name in self._target.names().values():
            try:
                manifest = self._target.manifest(name)
            except CorruptFileError as error:
                logger.warning("no file is removed from %s that no manifest names: %s", self._target.url, error)
                self._is_swept = None
                self._last = None
                continue
            self._last = readable = manifest
            if is_replica(name):
                self._named.add(manifest)
            else:
                self._named.keep(manifest)
        if readable is not None:
            self._check_same_store(readable)

    def _check_same_store(self, last: Manifest) -> None:
        """Raises: DivergedError if the last moment in the target is of another store: in time, this one's moments would
        replace those of a store that was lost."""
        there = {entry.topic_id for entry in decode_topics(last.topics, self._target.url).values()} - {None}
        here = {entry.topic_id for entry in self._topics.directory.topics.values()}
        if there and not there & here:
            raise DivergedError(
                f"{self._target.url} has backups of another store, which has no topic in common with"
                f" {self._topics.path}: restore that store and continue with it, or choose another place"
            )

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def target(self) -> str:
        """The target's URL, without a password."""
        return self._target.url

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def last_time_ms(self) -> int | None:
        """The time of the last manifest, which names it for a restore; None before the first."""
        return None if self._last is None else self._last.time_ms

    @property
    def lag_seconds(self) -> float:
        """For how long the target has lacked something, as far as known; 0 if it lacks nothing."""
        since = [one for one in (self._copied_since, self._grown_since) if one is not None]
        return max(self._clock.monotonic() - min(since), 0.0) if since else 0.0

    def __repr__(self) -> str:
        return f"Replicator({self._target.url!r}{', closed' if self._closed else ''})"

    # --- rounds -------------------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Returns when the target has everything that was appended before the call: the time of the manifest.

        Raises: ClosedError, PoisonedError, DiskFullError, StorageError.
        """
        self._topics.life.check_fork()
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self!r} is closed")
            return self._replicate().time_ms

    def _run(self) -> None:
        """The task."""
        with self._lock:
            if self._closed:
                return
            try:
                if not self._is_due():
                    return
                self._replicate()
            except BaseException:
                self._pause_seconds = min(max(2 * self._pause_seconds, self._every_seconds), LOOK_SECONDS)
                self._scheduler.wake(self._task, delay_seconds=self._pause_seconds)
                raise
            self._pause_seconds = 0.0

    @property
    def _look_seconds(self) -> float:
        """How often the task runs although no log has reported anything."""
        return min(self._every_seconds, LOOK_SECONDS) if self._topics.shared else LOOK_SECONDS

    def _is_due(self) -> bool:
        """Whether a round may find anything. Needs the lock."""
        now = self._clock.monotonic()
        looked, self._looked = self._looked, now
        if not self._topics.shared:
            return True
        if now < self._began + self._pause_seconds:
            return False
        if self._grown_since is not None or self._copied_since is not None or now >= self._began + LOOK_SECONDS:
            return True
        if not self._copier.is_behind():
            return False
        self._grown_since = looked  # at the earliest
        return True

    def _replicate(self) -> Manifest:
        """One round. Needs the lock."""
        self._began = self._clock.monotonic()
        # Listening comes before the moment, and the moment before what is heard after this.
        self._listen()
        if self._copied_since is None:
            self._copied_since = self._grown_since
        self._grown_since = None
        try:
            manifest = self._copier.copy()
            if not self._says_the_last(manifest):
                # Before it is written: a write that fails may have arrived, and what it names must stay then too.
                self._named.add(manifest)
                self._doubtful.add(manifest.time_ms)
                self._target.finish(manifest, replica=True)
                # First: until then the newest one in the target may say something else than this.
                self._last = manifest
                self._doubtful.discard(manifest.time_ms)
            if self._holds_retention:
                for writer, offset in self._copier.copied().items():
                    writer.retention.hold(self._task, offset)
        except BaseException:
            self._is_swept = self._is_swept and False
            raise
        assert self._last is not None
        self._copied_since = None
        if self._clock.monotonic() >= self._tidy_at:
            try:
                self._tidy()
            except KstoreError as error:
                # The round is complete, and the next one must not wait for this.
                self._tidy_at = self._clock.monotonic() + LOOK_SECONDS
                logger.warning("what is no longer needed stays in %s: %s", self._target.url, error)
        return self._last

    def _tidy(self) -> None:
        """Removes what is not needed any more: manifests, several at a time, and for at most an interval files."""
        if self._kept_count > self._keep + self._keep // 4:
            while self._kept_count > self._keep:
                # First: whatever comes next, the manifest goes before any file that it names.
                self._old.append(self._named.oldest_time)
                self._doubtful.discard(self._old[-1])
                self._gone += self._named.drop_oldest()
        now = self._clock.monotonic()
        if self._old:
            # Durably, before a file that they name is removed.
            self._target.remove_replicas(self._old)
            for key in self._gone:
                self._unnamed[key] = now
                self._unnamed.move_to_end(key)
            self._old, self._gone = [], []
        if self._is_swept is False:
            for key in self._target.stored():
                if key not in self._named:
                    self._unnamed.setdefault(key, now)
            self._is_swept = True
        while self._unnamed and self._clock.monotonic() <= now + self._every_seconds:
            (owner, name), since = next(iter(self._unnamed.items()))
            if since + REMOVAL_SECONDS > now:
                break
            if (owner, name) not in self._named:  # it may be named again
                self._target.remove(owner, name)
            del self._unnamed[owner, name]

    def _says_the_last(self, manifest: Manifest) -> bool:
        """Whether a restore of the newest manifest in the target gives the same store."""
        last = self._last
        if last is None or last.time_ms < max(self._doubtful, default=0):
            return False
        return manifest._replace(time_ms=last.time_ms) == last

    @property
    def _kept_count(self) -> int:
        return self._named.replica_count - len(self._doubtful)

    # --- what has changed ---------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """From now on each log reports its next append. Needs the lock."""
        writers = self._copier.writers()
        for writer in self._ears.keys() - set(writers):
            self._ears.pop(writer).stop()
        for writer in writers:
            if writer not in self._ears:
                self._ears[writer] = _Ear(writer.growth, self)
            self._ears[writer].listen()

    def ring(self) -> None:
        """Makes a round begin as soon as the interval allows; for any thread."""
        now = self._clock.monotonic()
        if self._grown_since is None:
            self._grown_since = now
        delay = max(self._began + self._every_seconds - now, self._pause_seconds, 0.0)
        self._scheduler.wake(self._task, delay_seconds=delay)

    def _ring_for(self, topic: str) -> None:
        self.ring()

    # --- close --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Does a last round, without a limit of its rate, and ends. A second call does nothing.

        Raises: as ``flush``; the replicator has ended anyway.
        """
        if self._topics.life.forked:  # it is the parent's
            return
        self._is_closing = True
        try:
            with self._lock:
                if self._is_ended:
                    return
                try:
                    if not self._closed:
                        self._replicate()
                finally:
                    self._end()
        except BaseException:
            # An interrupt while it waited for a round: the replicator goes on.
            self._is_closing = self._closed
            raise

    def close_with_store(self) -> None:
        """``close`` for the store: it is in order even if the target cannot be reached."""
        try:
            self.close()
        except KstoreError as error:
            logger.warning("%s lacks the last records of %s: %s", self._target.url, self._topics.path, error)

    def _end(self) -> None:
        """May be repeated after an interrupt. Needs the lock."""
        self._closed = True
        self._topics.unwatch(self._ring_for)
        self._scheduler.remove(self._task)
        for ear in self._ears.values():
            ear.stop()
        if self._holds_retention:
            self._topics.logs.release_retention(self._task)
        try:
            self._stack.close()
        finally:
            self._target.close()
        self._is_ended = True


class _Ear:
    """Reports the next append to a log, once."""

    __slots__ = ("_growth", "_is_listening", "_replicator")

    def __init__(self, growth: Growth, replicator: Replicator) -> None:
        self._growth = growth
        self._replicator = replicator
        self._is_listening = False

    def listen(self) -> None:
        if not self._is_listening:
            self._is_listening = True
            try:
                self._growth.watch(self._hear)
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        # In this order: an interrupt may leave an append that is reported twice, but none that is not reported.
        self._is_listening = False
        self._growth.unwatch(self._hear)

    def _hear(self) -> None:
        # An append that comes before the next round listens again is found by that round, which this orders.
        self.stop()
        self._replicator.ring()


def _parsed(name: str, rule: Rule, value: object) -> int:
    try:
        number = rule.parse(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {shown(value)}, expected {rule.expected}") from None
    assert isinstance(number, int)
    return number
