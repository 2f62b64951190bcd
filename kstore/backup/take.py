"""``back_up``: copies a live store, as it is at one moment, to a target.

1. Everything sealed that the target lacks is copied, while the store stays in use.
2. The moment (``moment``). Little is left to copy then: the active segments, and what was sealed in the meantime.
3. That is copied, from files that were open at the moment; logs are flushed that may hold what is not on disk. If
   the target has the first part of a segment, only the rest is copied, as one more piece (``plan``).
4. The manifest is written.

Alongside appends, a backup to this machine's disks works for a sixteenth of the time, so that they keep most of their
speed: it copies a MiB, syncs it, and waits. To an object store, and to HDFS, up to ``UPLOADS_MAX`` segments or
logs are copied at a time: a request takes longer than its bytes do.

A kill, or an error, before the end of step 4 leaves files that no manifest names, and the next backup uses them.
``Copier`` does the first three steps; a replicator repeats them with the same one.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from kstore.archive.manifest import TIME_MS_MAX, LogEntry, Manifest, SegmentEntry, StoredFile
from kstore.archive.target import BackupTarget
from kstore.backup.moment import BorrowedLogs, LogMoment, Moment, is_same_segment, open_files
from kstore.backup.plan import kept_count
from kstore.compaction.throttle import Throttle
from kstore.engine.writer import LogWriter
from kstore.errors import (
    ClosedError,
    CorruptFileError,
    DivergedError,
    FileMissingError,
    PathLike,
    TruncatedFileError,
)
from kstore.files.copies import PIECE_BYTES, FileRange, crc_of
from kstore.files.fs import File, read_file
from kstore.files.paths import LOG_SUFFIX, META_PROPERTIES, PRODUCER_IDS, SNAPSHOT_SUFFIX, TopicPartition, segment_name
from kstore.files.threads import side_by_side
from kstore.indexes.transaction_index import TransactionIndex
from kstore.logs.topics import Topics
from kstore.record.crc import crc32c
from kstore.rules.topics import decode_topics, encode_topics
from kstore.segment import LogSegment

Item = TypeVar("Item")

# How many segments may be left to copy at the moment: their files stay open until then.
OPEN_SEGMENTS_MAX = 64
ROUNDS = 5
# What the kernel copies in one call, if the rate is not limited.
COPY_BYTES = 16 << 20
# Less alongside appends: an append waits for the sync of what was copied. For each second of work the backup then waits
# PAUSE_SECONDS, but for one piece at most PAUSE_SECONDS_MAX.
BESIDE_BYTES = 1 << 20
PAUSE_SECONDS = 15.0
PAUSE_SECONDS_MAX = 1.0
# What one call sends to an object store, or to HDFS: each call is a thread with a time limit.
UPLOAD_BYTES = 8 << 20
# How many uploads run at a time. Each holds one such piece, and what the library keeps of it.
UPLOADS_MAX = 4
# A file that was written so recently may change once more without a change of its time.
SETTLED_NS = 2_000_000_000
ROOT_FILES = (META_PROPERTIES, PRODUCER_IDS)


class BackupResult(NamedTuple):
    """A finished backup. ``time_ms`` names it; it is that of its moment, unless an earlier backup has that one.

    ``copied_bytes`` of ``total_bytes`` were not in the target before.
    """

    time_ms: int
    log_count: int
    file_count: int
    copied_count: int
    copied_bytes: int
    total_bytes: int


def back_up(
    topics: Topics,
    target: PathLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    bytes_per_second: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> BackupResult:
    """See ``Store.backup``."""
    topics.check_writable()
    throttle = Throttle(bytes_per_second, topics.clock, threading.Event().wait, lambda: False)
    place = BackupTarget(target, storage_options=storage_options, fs=topics.directory.fs)
    try:
        place.begin()
        with ExitStack() as stack:
            copier = Copier(topics, place, stack, throttle, progress, makes_way=bytes_per_second is None)
            manifest = copier.copy()
            place.finish(manifest)
    finally:
        place.close()
    files = [file for log in manifest.logs for file in log.files]
    return BackupResult(
        manifest.time_ms,
        len(manifest.logs),
        len(files),
        copier.copied_count,
        copier.copied_bytes,
        sum(file.size for file in files),
    )


class Copier:
    """Copies what a target lacks of a store, again and again. Not thread-safe."""

    def __init__(
        self,
        topics: Topics,
        target: BackupTarget,
        stack: ExitStack,
        throttle: Throttle,
        progress: Callable[[int], None] | None = None,
        *,
        makes_way: bool = False,
    ) -> None:
        """Keeps all logs open until ``stack`` ends. ``makes_way``: makes pauses alongside appends, if the
        target is on this machine's disks.

        Raises: DivergedError, CorruptFileError, UnsupportedFormatError, StorageError.
        """
        self._topics = topics
        self._target = target
        self._logs = BorrowedLogs(topics, stack)
        topics.refresh()
        self._throttle = throttle
        self._progress = progress
        self._uploads = 1 if target.is_local or throttle.is_limited else UPLOADS_MAX
        self._may_make_way = makes_way and target.is_local
        self._makes_way = False
        self._wait = threading.Event().wait
        # Whether something was appended at the last look, and then; and since when the copier works without a pause.
        self._is_beside = False
        self._appended = 0
        self._working_since = topics.clock.monotonic()
        self._has_failed = False
        # Guards the counters; ``progress`` is called within it, one call at a time.
        self._counting = threading.RLock()
        self.copied_count = self.copied_bytes = 0
        # By base offset: the sealed segments whose files the target has.
        self._sealed: dict[TopicPartition, dict[int, LogSegment]] = {}
        # By base offset: what the target has of each segment, as far as known.
        self._entries: dict[TopicPartition, dict[int, SegmentEntry]] = {}
        # The writer of each log, and how often it had been cut, when its sealed segments were copied: a cut changes
        # files in place, and the writer of a log that was closed and opened again does not know of earlier cuts.
        self._versions: dict[TopicPartition, tuple[LogWriter, int]] = {}
        # The inodes of sealed segments whose time could not be believed yet, by log and base offset.
        self._unsettled: dict[tuple[TopicPartition, int], int] = {}
        # The logs at the last moment of which all was copied, and what its manifest says of them.
        self._before: dict[TopicPartition, LogMoment] = {}
        self._said: dict[TopicPartition, LogEntry] = {}
        names = target.names()
        self._last_time = max(names, default=0)
        self._check_time()
        for time_ms in sorted(names, reverse=True):
            # Next to a damaged one an older one tells whose backups these are; everything is read again.
            with suppress(CorruptFileError, FileMissingError):
                last = target.manifest(names[time_ms])
                self._check_same_store(last)
                if time_ms == self._last_time:
                    for log in last.logs:
                        self._entries[log.owner] = {segment.base: segment for segment in log.segments}
                break

    def _check_time(self) -> None:
        """Raises: CorruptFileError if the next manifest could not be named."""
        if self._last_time >= TIME_MS_MAX:
            raise CorruptFileError(
                f"it has a manifest of {self._last_time}, which leaves no later time: move that one away",
                path=self._target.url,
            )

    def _check_same_store(self, last: Manifest) -> None:
        """Raises: DivergedError if the target has backups of another store, of which a restore takes the last one."""
        there = {entry.topic_id for entry in decode_topics(last.topics, self._target.url).values()} - {None}
        here = {entry.topic_id for entry in self._topics.directory.topics.values()}
        is_same = last.root.get(META_PROPERTIES) == self._root().get(META_PROPERTIES)
        if there and not (is_same or there & here):
            raise DivergedError(
                f"{self._target.url} has backups of another store, which has no topic in common with"
                f" {self._topics.path}: choose another place for those of this store"
            )

    def writers(self) -> list[LogWriter]:
        """The writers of all logs, opened where necessary. Raises: as ``Log``."""
        return list(self._logs.now().values())

    def is_behind(self) -> bool:
        """Whether the last ``copy`` lacks anything that other processes have done since; True before the first."""
        writers = self._logs.now()
        return writers.keys() != self._before.keys() or any(
            log.is_passed or log.writer is not writers[owner] for owner, log in self._before.items()
        )

    def copied(self) -> dict[LogWriter, int]:
        """Up to which offset the target had each log after the last ``copy``."""
        return {log.writer: log.end for log in self._before.values()}

    def copy(self) -> Manifest:
        """The manifest of a moment after the call, when the target has all that it names.

        An entry of a log that is still as at the moment before is the same object. Raises: PoisonedError,
        DiskFullError, StorageError; FileMissingError, TruncatedFileError if the store changes faster than it is copied.
        """
        for attempt in range(ROUNDS):
            try:
                return self._copy_once()
            except (FileMissingError, TruncatedFileError):
                # Retention or a truncation was faster.
                if attempt + 1 == ROUNDS:
                    raise
        raise AssertionError("the last round returns or raises")

    def _copy_once(self) -> Manifest:
        self._check_time()
        for number in range(ROUNDS):
            # In the first one only: alongside fast appends, more and more would be left for the next ones.
            if self._copy_sealed(makes_way=number == 0) <= OPEN_SEGMENTS_MAX:
                break
        moment = self._logs.at_once(self._sealed, self._before)
        try:
            self._begin(makes_way=True)
            logs = self._copy_logs(moment)
            for owner, log in moment.logs.items():
                if log is not self._before.get(owner) and (log.writer.is_shared or not log.writer.syncs_appends):
                    # In a shared log this also learns of cuts, and in "sync" an append may not be on disk yet.
                    self._flush(owner, log.writer)
                # A truncation changes files in place, of those copied before the moment too.
                if log.writer.files.cut_count != log.cut_count or self._versions.get(owner, log.version) != log.version:
                    raise TruncatedFileError(errno.EAGAIN, "it was truncated during the backup", str(owner))
            time_ms = max(moment.time_ms, self._last_time + 1)
            manifest = Manifest(time_ms, self._topics_of(moment), self._root(), tuple(logs.values()))
        finally:
            closed = {owner: log.close() for owner, log in moment.logs.items()}
        # All of this is in the target, whether or not the manifest gets there.
        for owner, log in closed.items():
            if log is not self._before.get(owner):
                self._entries[owner] = {entry.base: entry for entry in logs[owner].segments}
                self._versions[owner] = log.version
                self._sealed[owner] = {segment.base_offset: segment for segment in log.segments[:-1]}
        for known in (self._entries, self._sealed, self._versions):
            for owner in known.keys() - closed.keys():
                del known[owner]
        self._before, self._said = closed, logs
        self._last_time = time_ms
        return manifest

    def _flush(self, owner: TopicPartition, writer: LogWriter) -> None:
        try:
            writer.flush()
        except ClosedError as error:
            # A topic that was deleted after the moment, durably, needs nothing on disk. Any other is looked up again.
            if owner in self._topics.directory.owners():
                raise FileMissingError(errno.EAGAIN, "it was closed during the backup", str(owner)) from error

    def _topics_of(self, moment: Moment) -> bytes:
        counts: dict[str, int] = {}
        for owner in moment.logs:
            counts[owner.topic] = max(counts.get(owner.topic, 0), owner.partition + 1)
        return encode_topics(
            {
                name: replace(entry, partitions=counts[name], made=counts[name])
                for name, entry in moment.topics.items()
                if name in counts and not entry.deleting
            }
        )

    def _root(self) -> dict[str, bytes]:
        """Read after the moment: more producer ids may be reserved than the logs hold, never fewer."""
        directory = self._topics.directory
        found = {}
        for name in ROOT_FILES:
            with suppress(FileNotFoundError):
                found[name] = read_file(directory.fs, directory.path / name)
        return found

    # --- sealed segments ----------------------------------------------------------------------------------------------

    def _copy_sealed(self, *, makes_way: bool) -> int:
        """Copies the sealed segments that the target lacks; returns how many were looked at."""
        missing: list[_Sealed] = []
        for owner, writer in self._logs.now().items():
            known = self._sealed.setdefault(owner, {})
            active = writer.ends.base_offset
            cut_count = writer.files.cut_count
            version = writer, cut_count
            if self._versions.setdefault(owner, version) != version:
                known.clear()
                self._versions[owner] = version
            missing += (
                _Sealed(owner, writer, segment, cut_count)
                for segment in tuple(writer.segments)
                if segment.base_offset < active and not is_same_segment(writer, known.get(segment.base_offset), segment)
            )
        self._begin(makes_way=makes_way)
        self._side_by_side(self._copy_one_sealed, missing)
        return len(missing)

    def _copy_one_sealed(self, sealed: _Sealed) -> None:
        owner, writer, segment, cut_count = sealed
        try:
            files = open_files(segment)
        except FileNotFoundError:
            return  # it is being removed, or replaced
        try:
            entry = self._copy_segment(owner, segment, files, self._same_bytes(owner, writer, segment))
        finally:
            for file in files.values():
                file.close()
        if self._is_unchanged(writer, segment, cut_count):
            # The entry comes first: the next manifest names it for each segment that counts as copied.
            self._entries.setdefault(owner, {})[segment.base_offset] = entry
            self._sealed[owner][segment.base_offset] = segment

    def _is_unchanged(self, writer: LogWriter, segment: LogSegment, cut_count: int) -> bool:
        """Whether what was just copied is the segment: a compaction may have replaced its files on the way."""
        writer.refresh()
        found = writer.segments.floor(segment.base_offset)
        return is_same_segment(writer, found, segment) and writer.files.cut_count == cut_count

    # --- one log ------------------------------------------------------------------------------------------------------

    def _copy_logs(self, moment: Moment) -> dict[TopicPartition, LogEntry]:
        entries = {owner: self._said[owner] for owner, log in moment.logs.items() if log is self._before.get(owner)}

        def copy(owner: TopicPartition) -> None:
            entries[owner] = self._copy_log(owner, moment.logs[owner])

        self._side_by_side(copy, [owner for owner in moment.logs if owner not in entries])
        return {owner: entries[owner] for owner in moment.logs}

    def _copy_log(self, owner: TopicPartition, log: LogMoment) -> LogEntry:
        segments = []
        for segment in log.segments:
            files = log.files.get(segment.base_offset)
            if files is None:
                segments.append(self._settled(owner, self._entries[owner][segment.base_offset]))
            else:
                active = log if segment is log.segments[-1] else None
                same = self._same_bytes(owner, log.writer, segment)
                segments.append(self._copy_segment(owner, segment, files, same, active))
        return LogEntry(
            owner, log.start, log.end, log.losses, log.epochs, tuple(segments), tuple(self._snapshots(owner, log))
        )

    def _same_bytes(self, owner: TopicPartition, writer: LogWriter, segment: LogSegment) -> int:
        """How many bytes of the ``.log`` are known to be as they were when they were copied."""
        before = self._before.get(owner)
        if before is None or before.version != (writer, writer.files.cut_count):
            return 0
        return before.position if is_same_segment(writer, before.segments[-1], segment) else 0

    def _settled(self, owner: TopicPartition, entry: SegmentEntry) -> SegmentEntry:
        """The entry of a sealed segment that has not changed since it was copied, with the inode as soon as its time
        can be believed."""
        if entry.inode or not self._is_settled(max(entry.mtime_ns, entry.index_ns)):
            return entry
        return entry._replace(inode=self._unsettled.pop((owner, entry.base), 0))

    def _is_settled(self, mtime_ns: int) -> bool:
        return mtime_ns < self._topics.clock.now_ms() * 1_000_000 - SETTLED_NS

    def _snapshots(self, owner: TopicPartition, log: LogMoment) -> Iterator[StoredFile]:
        context = log.writer.context
        for offset in log.snapshots:
            file = context.fs.open(context.directory / segment_name(offset, SNAPSHOT_SUFFIX))
            try:
                yield self._copy(owner, offset, SNAPSHOT_SUFFIX, FileRange(file, 0, file.size()))
            finally:
                file.close()

    def _copy_segment(
        self,
        owner: TopicPartition,
        segment: LogSegment,
        files: Mapping[str, File],
        same: int,
        active: LogMoment | None = None,
    ) -> SegmentEntry:
        """``same`` bytes of its ``.log`` need not be compared with the target; ``active``: its log, if the segment is
        the active one of it."""
        base, log = segment.base_offset, files[LOG_SUFFIX]
        stat = log.stat()
        # Indexes change without the log, if they are rebuilt.
        index_ns = max((file.stat().mtime_ns for suffix, file in files.items() if suffix != LOG_SUFFIX), default=0)
        size = stat.size if active is None else active.position
        before = self._entries.get(owner, {}).get(base)
        if (
            before is not None
            and (before.inode, before.mtime_ns, before.log_size) == (stat.inode, stat.mtime_ns, size)
            and before.index_ns == index_ns
            and size == stat.size
            and {file.suffix for file in before.files} == files.keys()
            and all(self._target.has(owner, file) for file in before.files)
        ):
            return before
        pieces = [] if before is None else self._sound_pieces(owner, before, log, same, size)
        pieces = pieces[: kept_count(pieces, size, is_sealed=active is None)]
        position = pieces[-1].stop if pieces else 0
        if position < size or not pieces:
            pieces.append(self._copy(owner, base, LOG_SUFFIX, FileRange(log, position, size - position)))
        others = []
        for suffix, file in files.items():
            if suffix != LOG_SUFFIX:
                index_size = file.size() if active is None else TransactionIndex.size_below(file, active.end)
                others.append(self._copy(owner, base, suffix, FileRange(file, 0, index_size)))
        is_settled = self._is_settled(max(stat.mtime_ns, index_ns))
        if active is None and not is_settled:
            self._unsettled[owner, base] = stat.inode
        return SegmentEntry(base, stat.inode if is_settled else 0, stat.mtime_ns, (*pieces, *others), index_ns)

    def _sound_pieces(
        self, owner: TopicPartition, before: SegmentEntry, log: File, same: int, size: int
    ) -> list[StoredFile]:
        """The pieces in the target that are the first bytes of a ``.log`` of ``size`` bytes."""
        sound = []
        for piece in before.pieces:
            if not piece.size or piece.stop > size or not self._target.has(owner, piece):
                break
            if piece.stop > same and crc_of(FileRange(log, piece.position, piece.size)) != piece.crc:
                break
            sound.append(piece)
        return sound

    # --- one file -----------------------------------------------------------------------------------------------------

    def _copy(self, owner: TopicPartition, base: int, suffix: str, part: FileRange) -> StoredFile:
        _, position, size = part
        if size and not position and self._target.copies(owner, base, suffix, size):
            ranges = self._ranges(part.file, size)
            stored = self._target.copy(owner, base, suffix, ranges, in_steps=lambda: self._is_beside)
        else:
            stored = StoredFile(base, suffix, size, crc_of(part), position)
            if self._target.has(owner, stored):
                return stored
            self._target.put(owner, stored, self._paced(part, stored))
        with self._counting:
            self.copied_count += 1
            self.copied_bytes += size
        return stored

    def _ranges(self, file: File, size: int) -> Iterator[FileRange]:
        """What to copy, at the requested pace."""
        position = 0
        while position < size:
            piece = FileRange(file, position, min(self._step(COPY_BYTES), size - position))
            yield piece
            self._note_copied(piece.size)
            position += piece.size

    def _paced(self, part: FileRange, stored: StoredFile) -> Iterator[bytes]:
        """The bytes to copy. They are read a second time: their CRC is in the name. Raises: TruncatedFileError."""
        crc = 0
        for _, data in part.pieces(self._step(UPLOAD_BYTES)):
            if self._has_failed:
                raise _StoppedError
            crc = crc32c(data, crc)
            yield data
            self._note_copied(len(data))
        if crc != stored.crc:
            raise TruncatedFileError(errno.EAGAIN, "it changed while it was copied", part.file.path)

    def _step(self, size: int) -> int:
        """How many bytes to copy at a time: few if a rate limits the copying, or alongside appends."""
        if self._is_beside:
            return BESIDE_BYTES
        return PIECE_BYTES if self._throttle.is_limited else size

    def _note_copied(self, size: int) -> None:
        self._throttle.note(size)
        if self._makes_way:
            self._make_way()
        if self._progress is not None:
            with self._counting:
                self._progress(size)

    def _begin(self, *, makes_way: bool) -> None:
        """``makes_way``: for appends that come from now on, if it may."""
        # In small steps until the first look: there may be appends already.
        self._makes_way = self._is_beside = makes_way and self._may_make_way
        self._appended, self._working_since = self._logs.end_sum(), self._topics.clock.monotonic()

    def _make_way(self) -> None:
        """Waits, if anything was appended since the last look."""
        appended = self._logs.end_sum()
        self._is_beside = appended != self._appended
        if self._is_beside:
            self._appended = appended
            seconds = self._topics.clock.monotonic() - self._working_since
            self._wait(min(PAUSE_SECONDS * seconds, PAUSE_SECONDS_MAX))
        self._working_since = self._topics.clock.monotonic()

    # --- several at a time --------------------------------------------------------------------------------------------

    def _side_by_side(self, work: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Calls ``work`` for each item; the first failure, or an interrupt, stops them all."""
        self._has_failed = False

        def unless_stopped(item: Item) -> None:
            if self._has_failed:
                return
            try:
                work(item)
            except _StoppedError:
                pass
            except BaseException:
                self._has_failed = True
                raise

        side_by_side(unless_stopped, items, count=self._uploads, name="kstore-upload")


class _Sealed(NamedTuple):
    """A sealed segment to copy, of a log that had been cut ``cut_count`` times."""

    owner: TopicPartition
    writer: LogWriter
    segment: LogSegment
    cut_count: int


class _StoppedError(Exception):
    """Ends an upload alongside which another one has failed."""
