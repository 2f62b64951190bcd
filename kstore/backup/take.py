"""``back_up``: copies a live store, as it is at one moment, to where its backups are.

1. Everything sealed that the target lacks is copied, while the store stays in use.
2. The moment (``moment``). Little is left to copy then: the active segments, and what was sealed meanwhile.
3. That is copied, from files that were open at the moment; logs that do not sync their appends are flushed.
4. The manifest is written.

A kill, or an error, before the end of step 4 leaves files that no manifest names, and the next backup uses them.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from kstore.backup.manifest import LogEntry, Manifest, SegmentEntry, StoredFile
from kstore.backup.moment import BorrowedLogs, LogMoment, Moment, open_files
from kstore.backup.target import BackupTarget
from kstore.compaction.throttle import Throttle
from kstore.engine.writer import LogWriter
from kstore.errors import FileMissingError, KstoreError, PathLike, TruncatedFileError
from kstore.files.copies import PIECE_BYTES, FileRange, crc_of
from kstore.files.fs import File, read_file
from kstore.files.paths import LOG_SUFFIX, META_PROPERTIES, PRODUCER_IDS, SNAPSHOT_SUFFIX, TopicPartition, segment_name
from kstore.logs.topics import Topics
from kstore.record.crc import crc32c
from kstore.rules.topics import encode_topics
from kstore.segment import LogSegment

__all__ = ["BackupResult", "back_up"]

# How many segments may be left to copy at the moment: their files stay open until then.
OPEN_SEGMENTS_MAX = 64
ROUNDS = 5
# What the kernel copies in one call, if the rate is not limited.
COPY_BYTES = 16 << 20
# What one call sends to an object store, or to HDFS: each call is a thread with a time limit.
UPLOAD_BYTES = 8 << 20
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
    topics.check_alone("a backup")
    throttle = Throttle(bytes_per_second, topics.clock, threading.Event().wait, lambda: False)
    place = BackupTarget(target, storage_options=storage_options, fs=topics.directory.fs)
    try:
        place.begin()
        for attempt in range(ROUNDS):
            with ExitStack() as stack:
                try:
                    return _Run(topics, place, stack, throttle, progress).run()
                except (FileMissingError, TruncatedFileError):
                    # Retention or a truncation was faster.
                    if attempt + 1 == ROUNDS:
                        raise
        raise AssertionError("the last round returns or raises")
    finally:
        place.close()


class _Run:
    """One attempt."""

    def __init__(
        self,
        topics: Topics,
        target: BackupTarget,
        stack: ExitStack,
        throttle: Throttle,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._topics = topics
        self._target = target
        self._logs = BorrowedLogs(topics, stack)
        self._throttle = throttle
        self._progress = progress
        self._copied_count = self._copied_bytes = 0
        # By base offset: the sealed segments whose files the target has, and what the manifest says of them.
        self._sealed: dict[TopicPartition, dict[int, LogSegment]] = {}
        self._entries: dict[TopicPartition, dict[int, SegmentEntry]] = {}
        # How often each log had been cut when its sealed segments were copied: a cut changes files in place.
        self._cut_counts: dict[TopicPartition, int] = {}
        self._before: dict[TopicPartition, dict[int, SegmentEntry]] = {}
        times = target.times()
        self._last_time = times[-1] if times else 0
        with suppress(KstoreError):  # then everything is read again
            for log in target.manifest(times[-1]).logs if times else ():
                self._before[log.owner] = {segment.base: segment for segment in log.segments}

    def run(self) -> BackupResult:
        for _ in range(ROUNDS):
            if self._copy_sealed() <= OPEN_SEGMENTS_MAX:
                break
        moment = self._logs.at_once(self._sealed)
        logs = tuple(self._copy_log(owner, log) for owner, log in moment.logs.items())
        for owner, log in moment.logs.items():
            if not log.writer.syncs_appends:
                log.writer.flush()
            # A truncation changes files in place, of those copied before the moment too.
            if not log.writer.files.cut_count == log.cut_count == self._cut_counts.get(owner, log.cut_count):
                raise TruncatedFileError(errno.EAGAIN, "it was truncated during the backup", str(owner))
        manifest = Manifest(max(moment.time_ms, self._last_time + 1), self._topics_of(moment), self._root(), logs)
        self._target.finish(manifest)
        files = [file for log in logs for file in log.files]
        return BackupResult(
            manifest.time_ms,
            len(logs),
            len(files),
            self._copied_count,
            self._copied_bytes,
            sum(file.size for file in files),
        )

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

    def _copy_sealed(self) -> int:
        """Copies the sealed segments that the target lacks; returns how many were copied."""
        count = 0
        for owner, writer in self._logs.now().items():
            known = self._sealed.setdefault(owner, {})
            active = writer.ends.base_offset
            cut_count = writer.files.cut_count
            if self._cut_counts.setdefault(owner, cut_count) != cut_count:
                known.clear()
                self._cut_counts[owner] = cut_count
            for segment in tuple(writer.segments):
                if segment.base_offset >= active or known.get(segment.base_offset) is segment:
                    continue
                try:
                    files = open_files(segment)
                except FileNotFoundError:
                    continue  # it is being removed, or replaced
                try:
                    before = self._copied_count
                    entry = self._copy_segment(owner, segment.base_offset, files, -1)
                    count += self._copied_count > before
                finally:
                    for file in files.values():
                        file.close()
                if self._is_unchanged(writer, segment, cut_count):
                    known[segment.base_offset] = segment
                    self._entries.setdefault(owner, {})[segment.base_offset] = entry
        return count

    def _is_unchanged(self, writer: LogWriter, segment: LogSegment, cut_count: int) -> bool:
        """Whether what was just copied is the segment: a compaction may have replaced its files on the way."""
        found = writer.segments.floor(segment.base_offset)
        return found is segment and writer.files.cut_count == cut_count

    # --- one log ------------------------------------------------------------------------------------------------------

    def _copy_log(self, owner: TopicPartition, log: LogMoment) -> LogEntry:
        segments = []
        for segment in log.segments:
            base = segment.base_offset
            files = log.files.get(base)
            if files is None:
                segments.append(self._entries[owner][base])
            else:
                size = log.position if segment is log.segments[-1] else -1
                segments.append(self._copy_segment(owner, base, files, size))
        return LogEntry(
            owner, log.start, log.end, log.losses, log.epochs, tuple(segments), tuple(self._snapshots(owner, log))
        )

    def _snapshots(self, owner: TopicPartition, log: LogMoment) -> Iterator[StoredFile]:
        context = log.writer.context
        for offset in log.snapshots:
            file = context.fs.open(context.directory / segment_name(offset, SNAPSHOT_SUFFIX))
            try:
                yield self._copy(owner, offset, SNAPSHOT_SUFFIX, file, file.size())
            finally:
                file.close()

    def _copy_segment(self, owner: TopicPartition, base: int, files: Mapping[str, File], size: int) -> SegmentEntry:
        """``size`` of its ``.log``; -1: all of it."""
        stat = files[LOG_SUFFIX].stat()
        size = stat.size if size < 0 else size
        before = self._before.get(owner, {}).get(base)
        if (
            before is not None
            and (before.inode, before.mtime_ns, before.log_size) == (stat.inode, stat.mtime_ns, size)
            and size == stat.size
            and {file.suffix for file in before.files} == files.keys()
            and all(self._target.has(owner, file) for file in before.files)
        ):
            return before
        is_settled = stat.mtime_ns < self._topics.clock.now_ms() * 1_000_000 - SETTLED_NS
        found = tuple(
            self._copy(owner, base, suffix, file, size if suffix == LOG_SUFFIX else file.size())
            for suffix, file in files.items()
        )
        return SegmentEntry(base, stat.inode if is_settled else 0, stat.mtime_ns, found)

    # --- one file -----------------------------------------------------------------------------------------------------

    def _copy(self, owner: TopicPartition, base: int, suffix: str, file: File, size: int) -> StoredFile:
        if size and self._target.copies(owner, base, suffix, size):
            stored = self._target.copy(owner, base, suffix, self._ranges(file, size))
        else:
            stored = StoredFile(base, suffix, size, crc_of(FileRange(file, 0, size)))
            if self._target.has(owner, stored):
                return stored
            self._target.put(owner, stored, self._paced(file, stored))
        self._copied_count += 1
        self._copied_bytes += size
        return stored

    def _ranges(self, file: File, size: int) -> Iterator[FileRange]:
        """What to copy, at the pace that is asked for."""
        step = self._step(COPY_BYTES)
        for position in range(0, size, step):
            piece = FileRange(file, position, min(step, size - position))
            yield piece
            self._note_copied(piece.size)

    def _paced(self, file: File, stored: StoredFile) -> Iterator[bytes]:
        """The bytes to copy. They are read a second time: their CRC is in the name. Raises: TruncatedFileError."""
        crc = 0
        for _, data in FileRange(file, 0, stored.size).pieces(self._step(UPLOAD_BYTES)):
            crc = crc32c(data, crc)
            yield data
            self._note_copied(len(data))
        if crc != stored.crc:
            raise TruncatedFileError(errno.EAGAIN, "it changed while it was copied", file.path)

    def _step(self, size: int) -> int:
        """Of how many bytes a piece is: small ones are for a rate."""
        return PIECE_BYTES if self._throttle.is_limited else size

    def _note_copied(self, size: int) -> None:
        self._throttle.note(size)
        if self._progress is not None:
            self._progress(size)
