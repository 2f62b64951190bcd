"""Mirrors one log, or all of a directory's: compares, decides, copies what is missing, and resumes.

Batches are checked when they are copied; damage is copied unchanged, and reported. A segment that is kept is not read
again. The source is never written to.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kstore.engine.directory import is_log
from kstore.errors import (
    ConfigError,
    DivergedError,
    FileMissingError,
    KstoreError,
    NotALogError,
    PathLike,
    StorageError,
)
from kstore.files.fs import FileStat, FileSystem
from kstore.files.linked import directories_of
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX, SNAPSHOT_SUFFIX, classify, segment_name, topic_partition
from kstore.files.remote import Location, open_remote
from kstore.record.walk import Damage
from kstore.rules.mirror import Matching, SegmentFile, Verdict, losses_of_target, match_segments, start_of_target
from kstore.scan.visits import Advance, no_advance
from kstore.state.log_state import ACCEPTED_MAX, LOST_MAX, UNCONFIRMED_MAX, losses_of
from kstore.types import OFFSET_MAX, CorruptRange
from kstore.upkeep.mirror.compare import checked_chunks, end_offset, ends_equal, fit, plain_chunks
from kstore.upkeep.mirror.source import INDEXES, NamedFile, SourceLog
from kstore.upkeep.mirror.target import LocalTarget, RemoteTarget, Target, files_of, leftovers, snapshots_from

# Retention may remove a file during its copy, or a writer truncate the log: then it is examined again.
TRIES = 5


@dataclass(slots=True)
class MirroredLog:
    """One log: how much was copied, or would be with ``dry_run``. ``bytes_copied`` counts every file.

    ``segments_extended`` grew in place. ``damage`` was found in what was copied, and was copied unchanged. ``error``
    ended the log; what was copied before stays, and the next run continues from there.
    """

    name: str
    source: str
    target: str
    start_offset: int = 0
    end_offset: int = 0
    segments_copied: int = 0
    segments_extended: int = 0
    segments_skipped: int = 0
    segments_deleted: int = 0
    bytes_copied: int = 0
    dry_run: bool = False
    active_left_out: bool = False
    damage: list[CorruptRange] = field(default_factory=list)
    error: KstoreError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and not self.damage


class Options(NamedTuple):
    """The caller's options for a mirror."""

    delete: bool
    force: bool
    dry_run: bool


class SegmentStep(NamedTuple):
    """What to do for one segment: "keep" it, "settle" it, "copy" it, or "extend" it from ``position``."""

    segment: SegmentFile
    kind: str
    position: int
    next_offset: int


def mirror(
    source: PathLike,
    target: PathLike,
    *,
    delete: bool = False,
    force: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    fs: FileSystem = SYSTEM_FS,
    advance: Advance = no_advance,
) -> Iterator[MirroredLog]:
    """Copies the log in ``source``, or every log of a directory, to ``target``; yields a result for each.

    Both may be local paths or URLs (``files/remote``). A local target gets everything readable of the source, also
    while a writer is open; an object store gets only sealed segments. Nothing is copied twice.

    Args:
        delete: remove from the target what retention has removed from the source.
        force: where the target differs from the source, remove it from there and copy again.
        dry_run: change nothing; report what would be done.
        storage_options: for fsspec or HDFS.
        fs: the local disks, for tests.
        advance: receives the bytes of ``size_of(source)`` as they are processed.

    Raises: ConfigError, NotALogError, LogNotFoundError, StorageError for ``source`` and ``target`` as a whole; the
    error that ends one of many logs is in its ``error``, also DivergedError and LockedError.
    """
    origin = open_remote(source, storage_options=storage_options, local=fs)
    copy = open_remote(target, storage_options=storage_options, local=fs)
    if origin.url == copy.url or _is_same(origin, copy):
        raise ConfigError(f"{origin.url} cannot be mirrored onto itself")
    options = Options(delete, force, dry_run)
    names = _logs_in(origin)
    if names is None:
        yield _mirror_log(origin, copy, options, advance)
        return
    for name in names:
        yield _mirror_log(origin / name, copy / name, options, advance)


def size_of(source: PathLike, *, storage_options: Mapping[str, Any] | None = None, fs: FileSystem = SYSTEM_FS) -> int:
    """The bytes of all segments in ``source``, from its listings. Raises: as ``mirror``."""
    origin = open_remote(source, storage_options=storage_options, local=fs)
    names = _logs_in(origin)
    logs = [origin] if names is None else [origin / name for name in names]
    return sum(
        stat.size for log in logs for name, stat in log.fs.list_stats(log.path).items() if name[20:] == LOG_SUFFIX
    )


def _is_same(one: Location, other: Location) -> bool:
    if one.local is None or other.local is None:
        return False
    return os.path.realpath(one.path) == os.path.realpath(other.path)


def _logs_in(at: Location) -> list[str] | None:
    """The names of the logs in a directory of logs, None if it is a log itself."""
    stats = at.fs.list_stats(at.path)
    if is_log(classify(stats)):
        return None
    owned = {name: stat for name, stat in stats.items() if topic_partition(name) is not None}
    names = sorted(directories_of(at.reading, at.path, owned).names)
    if not names:
        raise NotALogError(errno.ENOTDIR, "neither a log nor a directory of <topic>-<partition>", at.url)
    return names


def _mirror_log(origin: Location, copy: Location, options: Options, advance: Advance) -> MirroredLog:
    for attempt in range(TRIES):
        result = MirroredLog(origin.path.name, origin.url, copy.url, dry_run=options.dry_run)
        job = _LogMirror(origin, copy, options, advance, result)
        try:
            job.run()
        except FileMissingError as error:
            result.error = error
            job.is_outdated |= str(error.filename).startswith(origin.url)
        except KstoreError as error:
            result.error = error
        if not job.is_outdated or attempt + 1 == TRIES:
            return result
    raise AssertionError("the last try returns")


class _LogMirror:
    """One examination of one log, and its consequences."""

    def __init__(
        self, origin: Location, copy: Location, options: Options, advance: Advance, result: MirroredLog
    ) -> None:
        self._origin = origin
        self._copy = copy
        self._options = options
        self._advance = advance
        self._result = result
        # Whether the source was cut, or segments of it were replaced, in the meantime: then the copy is a mixture.
        self.is_outdated = False

    def run(self) -> None:
        copy, dry_run = self._copy, self._options.dry_run
        source = SourceLog(self._origin, with_active=copy.local is not None)
        try:
            target: Target
            if copy.local is not None:
                target = LocalTarget(copy.local, copy.path, dry_run=dry_run)
            else:
                target = RemoteTarget(copy, dry_run=dry_run)
            try:
                self._mirror(source, target)
                self.is_outdated = source.was_cut()
            except StorageError:
                self.is_outdated = source.was_cut()
                raise
            finally:
                target.close()
        finally:
            source.close()

    def _mirror(self, source: SourceLog, target: Target) -> None:
        options, result = self._options, self._result
        there = target.files()
        names = classify(there)
        segments = [
            SegmentFile(base, stat.size, stat.mtime_ns)
            for base in names.bases[LOG_SUFFIX]
            for stat in (there[segment_name(base, LOG_SUFFIX)],)
        ]
        matching = match_segments(source.segments, segments, same_times=target.same_times, source_end=source.end_offset)
        steps, diverged = self._steps(source, target, matching, segments)
        before = target.before.log_start_offset if target.before is not None else None
        start = start_of_target(source.start_offset, before=before, old=matching.old, delete=options.delete)
        result.active_left_out = source.active_left_out
        gone = [base for base in names.bases[LOG_SUFFIX] if diverged is not None and base >= diverged]
        end = source.end_offset
        kept = [segment for segment in segments if segment.base_offset not in gone]
        if kept and not source.segments and not options.delete:
            # What retention removed before it was copied is not in the copy, and no segment follows to say so.
            end = min(end, self._end_of(target, kept[-1]))
        result.start_offset, result.end_offset = start, end
        if not options.dry_run:
            target.remove(leftovers(there))
            if diverged is not None:
                # Newest first: a crash leaves a prefix.
                target.begin(start, durable_end=diverged)
                target.remove(snapshots_from(there, diverged))
                for base in reversed(gone):
                    target.remove(files_of(base))
        gone_names = {name for base in gone for name in files_of(base)}
        left = {name: stat for name, stat in there.items() if name not in gone_names}
        result.segments_deleted += len(gone)
        for step in steps:
            self._do(step, source, target, left, start)
        self._finish(source, target, left, matching, start, end)

    # --- compare ----------------------------------------------------------------------------------------------------

    def _steps(
        self, source: SourceLog, target: Target, matching: Matching, there: list[SegmentFile]
    ) -> tuple[list[SegmentStep], int | None]:
        """What to do for each segment, and the base offset from which the target diverges.

        Raises: DivergedError, unless forced.
        """
        sizes = {segment.base_offset: segment.size for segment in there}
        steps: list[SegmentStep] = []
        diverged: int | None = None
        reason = ""
        if matching.foreign:
            diverged = matching.foreign[0]
            reason = f"segment {diverged} is not in the source, which ends at offset {source.end_offset}"
        elif matching.old and matching.old[-1] == there[-1].base_offset:
            # Nothing follows it there, so its end is not known by a name.
            end = self._end_of(target, there[-1])
            first = source.segments[0].base_offset if source.segments else source.end_offset
            if end > first:
                diverged = there[-1].base_offset
                reason = f"segment {diverged} ends at offset {end}, but the source begins at offset {first}"
        for segment in source.segments:
            base = segment.base_offset
            if diverged is not None and base >= diverged:
                break
            verdict: Verdict = matching.verdicts[base]
            if verdict != "compare":
                steps.append(SegmentStep(segment, verdict, 0, base))
                continue
            step = self._compare(source, target, segment, sizes[base], is_last=base == there[-1].base_offset)
            if step is None:
                diverged, reason = base, f"segment {base} differs from its source"
                break
            steps.append(step)
        if diverged is None:
            return steps, None
        if not self._options.force:
            raise DivergedError(
                f"{self._copy.url}: {reason}: the source was truncated or compacted, or is another log, or the copy"
                " was written to"
            )
        rest = source.segments[len(steps) :]
        return steps + [SegmentStep(segment, "copy", 0, segment.base_offset) for segment in rest], diverged

    def _end_of(self, target: Target, segment: SegmentFile) -> int:
        copy = target.open(segment_name(segment.base_offset, LOG_SUFFIX))
        try:
            return end_offset(copy, segment.size, segment.base_offset)
        finally:
            copy.close()

    def _compare(
        self, source: SourceLog, target: Target, segment: SegmentFile, size: int, *, is_last: bool
    ) -> SegmentStep | None:
        name = segment_name(segment.base_offset, LOG_SUFFIX)
        origin, copy = source.open(name), target.open(name)
        try:
            if not target.same_times and size == segment.size and ends_equal(origin, copy, size):
                return SegmentStep(segment, "settle", size, segment.base_offset)
            end = target.before.durable_end if target.before is not None and is_last else None
            if (
                end is not None
                and segment.base_offset <= end
                and size <= segment.size
                and source.position_of(segment.base_offset, end, segment.size) == size
                and ends_equal(origin, copy, size)
            ):
                # As far as the state says that the copy is durable, but no further.
                return SegmentStep(segment, "settle" if size == segment.size else "extend", size, end)
            if not self._options.dry_run:
                target.sync(segment)
            found = fit(origin, segment.size, copy, size, segment.base_offset)
        finally:
            origin.close()
            copy.close()
        if found.kind == "diverged":
            return None
        return SegmentStep(segment, "settle" if found.kind == "same" else "extend", found.position, found.next_offset)

    # --- copy -------------------------------------------------------------------------------------------------------

    def _do(
        self, step: SegmentStep, source: SourceLog, target: Target, there: Mapping[str, FileStat], start_offset: int
    ) -> None:
        segment, kind, position, next_offset = step
        result, dry_run = self._result, self._options.dry_run
        if kind == "extend" and not target.same_times:
            kind, position, next_offset = "copy", 0, segment.base_offset
        for file in source.indexes(segment):
            self._put(file, source, target, there)
        if kind in ("keep", "settle"):
            result.segments_skipped += 1
            self._advance(segment.size)
            if kind == "settle" and not dry_run:
                target.settle(segment)
            return
        if kind == "extend":
            result.segments_extended += 1
            self._advance(position)
        else:
            result.segments_copied += 1
        if dry_run:
            result.bytes_copied += segment.size - position
            self._advance(segment.size - position)
            return
        chunks = self._chunks(source, segment, position, next_offset)
        if kind == "extend":
            target.begin(start_offset)
            target.extend(segment, position, chunks)
        else:
            target.put_segment(segment, chunks, start_offset)

    def _chunks(self, source: SourceLog, segment: SegmentFile, position: int, next_offset: int) -> Iterator[bytes]:
        file = source.open(segment_name(segment.base_offset, LOG_SUFFIX))
        offset_stop = source.offset_stop(segment.base_offset)
        path = self._origin.fs.url_of(file.path)

        def note(damage: Damage) -> None:
            if damage.is_space and offset_stop == OFFSET_MAX:
                return
            behind = damage.next_offset if damage.next_offset is not None else min(offset_stop, source.end_offset)
            last = max(behind - 1, damage.first_offset)
            lost = CorruptRange(damage.first_offset, last, damage.position, damage.reason, path)
            self._result.damage.extend(source.losses.judged(lost))

        try:
            for chunk in checked_chunks(
                file, position, segment.size, next_offset=next_offset, offset_stop=offset_stop, found=note
            ):
                yield chunk
                self._result.bytes_copied += len(chunk)
                self._advance(len(chunk))
        finally:
            file.close()

    def _put(self, file: NamedFile, source: SourceLog, target: Target, there: Mapping[str, FileStat]) -> None:
        """Copies a small file whole, unless one with the same size and time exists."""
        found = there.get(file.name)
        if found is not None and found.size == file.size:
            since = found.mtime_ns - file.mtime_ns
            unchanged = bool(file.mtime_ns) and (since == 0 if target.same_times else since >= 0)
            if unchanged or self._has_same_bytes(file, source, target):
                return
        self._result.bytes_copied += file.size
        if not self._options.dry_run:
            opened = source.open(file.name)
            try:
                # An index is trimmed just after its segment was sealed, and an epochs' checkpoint is replaced by one of
                # another size: then the next run finds another size.
                size = file.size if file.name.endswith(INDEXES) else opened.size()
                chunks = plain_chunks(opened, 0, size, all_of_them=False)
                target.put_file(file.name, chunks, file.mtime_ns)
            finally:
                opened.close()

    def _has_same_bytes(self, file: NamedFile, source: SourceLog, target: Target) -> bool:
        one, other = source.open(file.name), target.open(file.name)
        try:
            return one.pread(file.size, 0) == other.pread(file.size, 0)
        finally:
            one.close()
            other.close()

    def _finish(
        self,
        source: SourceLog,
        target: Target,
        there: Mapping[str, FileStat],
        matching: Matching,
        start_offset: int,
        end_offset: int,
    ) -> None:
        options, result = self._options, self._result
        snapshots = source.snapshots()
        for file in [*snapshots, *source.small_files()]:
            self._put(file, source, target, there)
        if options.delete:
            result.segments_deleted += len(matching.old)
            kept = {file.name for file in snapshots}
            stale = [name for name in there if name.endswith(SNAPSHOT_SUFFIX) and name not in kept]
        if options.dry_run:
            return
        # The start first: if the segments went before it is stored, it would promise missing data.
        before = losses_of(target.before)
        losses = losses_of_target(
            source.losses,
            before,
            source_start=source.start_offset,
            start=start_offset,
            lost_max=LOST_MAX,
            accepted_max=ACCEPTED_MAX,
            unconfirmed_max=UNCONFIRMED_MAX,
        )
        target.finish(source.segments, start_offset, end_offset, losses)
        if options.delete:
            for base in matching.old:
                target.remove(files_of(base))
            target.remove(stale)
