"""The moment of a backup: the state of every log of a store while nothing in the store can change.

The locks of all logs are held at once, while their ends are read in memory and the files that the target lacks are
opened. So the moment is one instant of the whole store, exactly what a kill at that instant would leave, and what
recovers from a kill makes the restored store consistent: no record, decision, commit or event of another instant is in
it. An open file outlives its name, so it can be copied after the locks are released.

In a shared store these locks are the turns of its logs, and before them that of its root, so the same holds for all
processes that share it: each turn begins with what the others have done.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import NamedTuple

from kstore.engine.writer import LogWriter
from kstore.errors import StorageError
from kstore.files._locks import Attempt, block
from kstore.files.checkpoint import EpochEntry
from kstore.files.fs import File
from kstore.files.paths import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    classify,
)
from kstore.files.threads import start_thread
from kstore.log import Log, writer_of
from kstore.logs.topics import Topics
from kstore.rules.losses import LossRanges
from kstore.rules.topics import TopicEntry
from kstore.segment import LogSegment

SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
# All locks are given back and taken again if one of them is not free for this long; it doubles each time.
WAIT_SECONDS = 0.02
WAIT_SECONDS_MAX = 1.0
TRIES = 40
NO_FILES: Mapping[int, Mapping[str, File]] = MappingProxyType({})


class LogMoment(NamedTuple):
    """One log at the moment. ``files`` are the open files of the segments that were not ``copied`` before, by base
    offset and suffix; of the active one, the ``.log`` up to ``position``, and the ``.txnindex`` up to ``end``."""

    writer: LogWriter
    start: int
    end: int
    position: int
    losses: LossRanges
    epochs: tuple[EpochEntry, ...]
    segments: tuple[LogSegment, ...]
    cut_count: int
    snapshots: tuple[int, ...] = ()
    files: Mapping[int, Mapping[str, File]] = NO_FILES

    @property
    def version(self) -> tuple[LogWriter, int]:
        """What stays the same as long as the log is not cut, nor closed and opened again."""
        return self.writer, self.cut_count

    @property
    def is_passed(self) -> bool:
        """Whether anything was appended to it since, or deleted from it."""
        ends = self.writer.ends
        return (ends.start_offset, ends.end_offset, ends.base_offset) != (
            self.start,
            self.end,
            self.segments[-1].base_offset,
        )

    def close(self) -> LogMoment:
        """Closes its files; returns it without them."""
        for files in self.files.values():
            for file in files.values():
                file.close()
        return self._replace(files=NO_FILES)


class Moment(NamedTuple):
    """A store at one instant."""

    time_ms: int
    topics: Mapping[str, TopicEntry]
    logs: Mapping[TopicPartition, LogMoment]


def is_same_segment(writer: LogWriter, known: object, segment: LogSegment) -> bool:
    """Whether ``known``, of a log that was not cut since, is ``segment``, of which nothing but indexes has changed.

    A compaction makes a new object, so the same object is the same segment. A shared log is never compacted, but lists
    its directory again when segments come or go, and has new objects then: the base offset tells which one it is.
    """
    if known is segment:
        return True
    return writer.is_shared and isinstance(known, LogSegment) and known.base_offset == segment.base_offset


def open_files(segment: LogSegment, suffixes: Sequence[str] = SUFFIXES) -> dict[str, File]:
    """The open files of a segment: its ``.log``, the first of ``suffixes``, and of the others those that exist.

    Raises: StorageError.
    """
    files = segment.files
    found = {LOG_SUFFIX: files.fs.open(files.path(LOG_SUFFIX))}
    for suffix in suffixes[1:]:
        try:
            found[suffix] = files.fs.open(files.path(suffix))
        except FileNotFoundError:
            pass
    return found


class BorrowedLogs:
    """All logs of a store, kept open until ``stack`` ends."""

    def __init__(self, topics: Topics, stack: ExitStack) -> None:
        self._topics = topics
        self._logs: dict[TopicPartition, Log] = {}
        # What ends the use of each of them.
        self._held: dict[TopicPartition, ExitStack] = {}
        stack.callback(self._release)
        self._writers: tuple[LogWriter, ...] = ()

    def now(self) -> dict[TopicPartition, LogWriter]:
        """The writers of all existing logs, opened where necessary, as other processes have left them.

        Raises: as ``Log``.
        """
        with self._topics.changing():
            if self._topics.shared:
                self._topics.directory.look()
            owners = sorted(self._topics.directory.owners())
            for owner in owners:
                if owner not in self._logs or self._logs[owner].closed:
                    # Its user has closed it, or the topic was created again: the log before it is given back.
                    before, held = self._held.get(owner), ExitStack()
                    self._logs[owner] = held.enter_context(self._topics.logs.borrowed(owner))
                    self._held[owner] = held
                    if before is not None:
                        before.close()
            found = {owner: writer_of(self._logs[owner]) for owner in owners}
            self._writers = tuple(found.values())
        for writer in self._writers:
            writer.refresh()
        return found

    def _release(self) -> None:
        with ExitStack() as rest:
            for held in self._held.values():
                rest.push(held)

    def end_sum(self) -> int:
        """The ends of all logs at the last ``now``, added up: an append raises it."""
        for writer in self._writers:
            writer.refresh()
        return sum(writer.ends.end_offset for writer in self._writers)

    def at_once(
        self, copied: Mapping[TopicPartition, Mapping[int, object]], before: Mapping[TopicPartition, LogMoment]
    ) -> Moment:
        """The store at one instant. ``copied``: by base offset, the sealed segments whose files are not needed. Logs
        that are still as they were ``before`` are the same objects.

        Raises: PoisonedError, StorageError, TopicNotFoundError.
        """
        found: list[Moment | BaseException] = []

        def take() -> None:
            try:
                found.append(self._take(copied, before))
            except BaseException as error:
                found.append(error)

        # In a thread of its own, because an interrupt must not come between a lock and its release.
        thread = start_thread(take, name="kstore-backup")
        interrupt: BaseException | None = None
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:
                interrupt = error  # the thread uses what is closed next
        if interrupt is not None:
            raise interrupt
        result = found[0]
        if isinstance(result, BaseException):
            raise result
        return result

    def _take(
        self, copied: Mapping[TopicPartition, Mapping[int, object]], before: Mapping[TopicPartition, LogMoment]
    ) -> Moment:
        wait = WAIT_SECONDS
        for _ in range(TRIES):
            with self._topics.turn():  # no topic is created or deleted
                writers = self.now()
                with _all_locked(writers, wait) as is_locked:
                    if is_locked and all(writer.files.closed is None for writer in writers.values()):
                        return Moment(
                            self._topics.clock.now_ms(),
                            dict(self._topics.directory.topics),
                            {
                                owner: _at(writer, copied.get(owner, {}), before.get(owner))
                                for owner, writer in writers.items()
                            },
                        )
            wait = min(2 * wait, WAIT_SECONDS_MAX)
        raise StorageError(errno.EBUSY, "the logs are too busy for a backup", str(self._topics.directory.path))


@block
def _all_locked(writers: Mapping[TopicPartition, LogWriter], wait: float) -> Iterator[bool]:
    """Holds the locks of all logs; False if one was not free in time.

    A thread may hold the lock of one log and wait for that of another, whose tail it closes: without a limit the two
    could wait for each other without end.
    """
    with ExitStack() as held:
        yield all(held.enter_context(Attempt(writer.turn.lock, wait)) for writer in writers.values())


def _at(writer: LogWriter, copied: Mapping[int, object], before: LogMoment | None) -> LogMoment:
    """Needs the log's lock."""
    files = writer.files
    files.ensure_writable()
    ends = files.ends
    segments = tuple(segment for segment in files.segments if segment.base_offset <= ends.base_offset)
    moment = LogMoment(
        writer,
        ends.start_offset,
        ends.end_offset,
        ends.position,
        files.losses.within(ends.start_offset, ends.end_offset),
        tuple(entry for entry in files.epochs.entries if entry.start_offset <= ends.end_offset),
        segments,
        files.cut_count,
    )
    if before is not None and before._replace(snapshots=()) == moment:
        return before
    opened: dict[int, Mapping[str, File]] = {}
    for segment in segments:
        if segment.base_offset == ends.base_offset:
            opened[segment.base_offset] = open_files(segment, (LOG_SUFFIX, TXN_INDEX_SUFFIX))
        elif not is_same_segment(writer, copied.get(segment.base_offset), segment):
            opened[segment.base_offset] = open_files(segment)
    snapshots: tuple[int, ...] = ()
    # Another process may know of producers of which this one knows nothing.
    if files.producers.in_use or writer.is_shared:
        names = classify(files.context.fs.list(files.context.directory))
        snapshots = tuple(at for at in names.bases[SNAPSHOT_SUFFIX] if at <= ends.end_offset)
    return moment._replace(snapshots=snapshots, files=opened)
