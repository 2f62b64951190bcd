"""Recovers logs on demand: reports what an open would do, and does it, or only reports it.

A dry run is the real recovery over a file system that keeps its changes in memory: it cannot report one thing and do
another.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from kstore.config import LogConfig
from kstore.engine.directory import is_log
from kstore.engine.ends import Ends
from kstore.engine.files import Loaded
from kstore.engine.index_repairs import replace_indexes, scan_segment
from kstore.engine.open.opening import LACKING_INDEX, load
from kstore.engine.open.transaction_rebuild import rebuild_transaction_indexes
from kstore.engine.over.check import CheckedLog, accept_loss, ensure_lost, unreadable
from kstore.engine.producers import LogProducers
from kstore.engine.segments import LogSegments
from kstore.engine.writer import lone_writer
from kstore.errors import CorruptDataError, FileMissingError, LogNotFoundError, NotALogError
from kstore.files.fs import FileSystem, read_file
from kstore.files.local import SYSTEM_FS
from kstore.files.log_lock import lock_log, probe_log
from kstore.files.overlay import OverlayFs
from kstore.files.paths import (
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    classify,
    parse_segment_name,
    segment_name,
    topic_partition,
)
from kstore.rules.losses import LossRanges, OffsetSpan, joined
from kstore.rules.topics import KSTORE_TOPICS, TOPICS_SIZE_MAX, decode_topics
from kstore.scan.visits import Advance
from kstore.segment import SegmentContext
from kstore.types import OFFSET_MAX, RecoveryReport

Accept = Sequence[OffsetSpan] | Literal["all"]


class Rebuild(NamedTuple):
    """What to rebuild besides what recovery rebuilds: every missing or wrong ``.index`` and ``.timeindex``, and the
    files ``damaged``, transaction indexes and producer snapshots that a verification has found wrong.

    ``index_interval_bytes`` is the setting with which the log was written; None: that of its store, else Kafka's 4096.
    """

    damaged: Sequence[str] = ()
    index_interval_bytes: int | None = None


def plan_recovery(
    directory: Path,
    *,
    fs: FileSystem = SYSTEM_FS,
    advance: Advance | None = None,
    accept: Accept = (),
    rebuild: Rebuild | None = None,
) -> RecoveryReport:
    """What ``recover_log`` would find and do; changes nothing and takes no lock.

    Raises: LockedError if a writer is open, LogNotFoundError, NotALogError, NotLostError, StorageError.
    """
    context = _context(directory, fs, rebuild)
    probe_log(context.directory)
    loaded = load(context._replace(fs=OverlayFs(fs)), "sync", advance=advance)
    loaded.state_file.close()
    recovered = _Recovered.of(loaded)
    for first, last in _to_accept(recovered, accept):
        ensure_lost(recovered, first, last)
        _note_accepted(loaded.report, first, last)
    if rebuild is not None:
        _rebuild_indexes(loaded.segments, loaded.producers, loaded.report, rebuild, advance)
    return loaded.report


def recover_log(
    directory: Path,
    *,
    fs: FileSystem = SYSTEM_FS,
    advance: Advance | None = None,
    accept: Accept = (),
    rebuild: Rebuild | None = None,
) -> RecoveryReport:
    """Recovers the log if it was not closed cleanly, and closes it cleanly, durably.

    Args:
        accept: ranges of damaged or lost offsets that reads will skip (``Log.accept_loss``), or "all"; accepted ones
            are not damage in the report.
        rebuild: what to rebuild, also in a cleanly closed log; durable on return.

    Raises: LockedError, LogNotFoundError, NotALogError, DiskFullError (no space to set aside what must be cut: then
    nothing is cut), NotLostError and LossLimitError (the log is recovered anyway), StorageError.
    """
    context = _context(directory, fs, rebuild)
    lock = lock_log(context.directory, mode=context.config.file_mode)
    try:
        writer = lone_writer(load(context, "sync", advance=advance), lock)
    except BaseException:
        lock.release()
        raise
    try:
        for first, last in _to_accept(writer, accept):
            accept_loss(writer, first, last)
            _note_accepted(writer.report, first, last)
        if rebuild is not None:
            _rebuild_indexes(writer.segments, writer.producers, writer.report, rebuild, advance)
    finally:
        writer.close()
    return writer.report


class _Recovered(NamedTuple):
    """A log after its recovery."""

    context: SegmentContext
    segments: LogSegments
    ends: Ends
    losses: LossRanges

    @classmethod
    def of(cls, loaded: Loaded) -> _Recovered:
        return cls(loaded.context, loaded.segments, loaded.ends, loaded.losses)


def _to_accept(source: CheckedLog, accept: Accept) -> Sequence[OffsetSpan]:
    if accept != "all":
        return accept
    found = unreadable(source, source.ends.start_offset, source.ends.end_offset)
    ranges = joined((damage.first, damage.last) for damage in found)
    return [part for span in ranges for part in source.losses.unaccepted(*span)]


def _note_accepted(report: RecoveryReport, first: int, last: int) -> None:
    accepted = LossRanges(accepted=((first, last),))
    report.corrupt[:] = [
        damage._replace(first=part[0], last=part[1])
        for damage in report.corrupt
        for part in accepted.unaccepted(damage.first, damage.last)
    ]
    report.notes.append(f"the loss of offsets {first} to {last} is accepted: reads skip them")


def _rebuild_indexes(
    segments: LogSegments, producers: LogProducers, report: RecoveryReport, rebuild: Rebuild, advance: Advance | None
) -> None:
    """Needs the log's lock, or a file system of its own. Raises: StorageError."""
    damaged = {Path(path).name for path in rebuild.damaged}
    report.notes[:] = [note for note in report.notes if not note.endswith(LACKING_INDEX)]
    for segment, stop in zip(segments, [*segments.bases[1:], OFFSET_MAX], strict=True):
        transactions = segment_name(segment.base_offset, TXN_INDEX_SUFFIX)
        if transactions in damaged:
            rebuild_transaction_indexes(producers, segments, (segment,))
            report.rebuilt.append(str(segment.path(TXN_INDEX_SUFFIX)))
        if segment.tail is not None:
            continue  # recovery has just rebuilt its indexes
        scanned = scan_segment(segment, stop)
        if scanned.replaced and replace_indexes(segment, scanned):
            segment.examined(scanned.rebuilt, scanned.size)
            report.rebuilt += [str(segment.path(suffix)) for suffix in scanned.replaced]
        segment.lacks_index = False
        if advance is not None:
            advance(scanned.size)
    for name in sorted(damaged):
        parsed = parse_segment_name(name)
        if parsed is None or (parsed.suffix, parsed.state) != (SNAPSHOT_SUFFIX, ""):
            continue
        # Recovery has removed those that describe what it has cut.
        if producers.remove_snapshot(parsed.base_offset):
            report.notes.append(f"{name} was wrong, and is removed: the log has its contents")


def topic_index_interval(directory: Path, *, fs: FileSystem = SYSTEM_FS) -> int:
    """``index_interval_bytes`` of the topic to which partition ``directory`` belongs, if its store's file has it."""
    default = LogConfig().index_interval_bytes
    owner = topic_partition(directory.name)
    path = directory.parent / KSTORE_TOPICS
    try:
        entry = decode_topics(read_file(fs, path, TOPICS_SIZE_MAX), path).get(owner.topic) if owner else None
    except (CorruptDataError, FileMissingError):
        return default
    return int(entry.settings.get("index_interval_bytes", default)) if entry is not None else default


def _context(directory: Path, fs: FileSystem, rebuild: Rebuild | None) -> SegmentContext:
    directory = directory.absolute()
    if not fs.exists(directory):
        raise LogNotFoundError(errno.ENOENT, "there is no log", str(directory))
    if not is_log(classify(fs.list(directory))):
        raise NotALogError(errno.ENOTDIR, "not a log", str(directory))
    interval = (rebuild.index_interval_bytes if rebuild is not None else None) or topic_index_interval(directory, fs=fs)
    return SegmentContext.alone(fs, directory, LogConfig(index_interval_bytes=interval))
