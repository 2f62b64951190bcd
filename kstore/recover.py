"""Recovering logs on demand: what opening would do is said, and then done, or only said.

A dry run is the real recovery over a file system that keeps its changes in memory: it cannot say one thing and do
another.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from kstore.clock import SYSTEM_CLOCK
from kstore.config import LogConfig
from kstore.errors import LogNotFoundError, NotALogError
from kstore.files.fs import FileSystem
from kstore.files.handles import HandleCache
from kstore.files.local import SYSTEM_FS
from kstore.files.log_lock import lock_log, probe_log
from kstore.files.overlay import OverlayFs
from kstore.files.paths import classify
from kstore.log_check import CheckedLog, accept_loss, ensure_lost, unreadable
from kstore.log_loader import Loaded, is_log, load
from kstore.log_writer import LogWriter
from kstore.metrics import LogCounters
from kstore.published import Published
from kstore.rules.losses import LossRanges, OffsetSpan, joined
from kstore.segment import SegmentContext
from kstore.segments import LogSegments
from kstore.types import RecoveryReport

__all__ = ["Accept", "plan_recovery", "recover_log"]

Advance = Callable[[int], None]
Accept = Sequence[OffsetSpan] | Literal["all"]


def plan_recovery(
    directory: Path, *, fs: FileSystem = SYSTEM_FS, advance: Advance | None = None, accept: Accept = ()
) -> RecoveryReport:
    """What ``recover_log`` would find and do; nothing is changed, no lock is taken.

    Raises: LockedError where a writer is at work, LogNotFoundError, NotALogError, NotLostError, StorageError.
    """
    context = _context(directory, fs)
    probe_log(context.directory)
    loaded = load(context._replace(fs=OverlayFs(fs)), "sync", advance=advance)
    loaded.state_file.close()
    recovered = _Recovered.of(loaded)
    for first, last in _to_accept(recovered, accept):
        ensure_lost(recovered, first, last)
        _note_accepted(loaded.report, first, last)
    return loaded.report


def recover_log(
    directory: Path, *, fs: FileSystem = SYSTEM_FS, advance: Advance | None = None, accept: Accept = ()
) -> RecoveryReport:
    """Recovers the log where it was not closed in order, and closes it in order, durably.

    Args:
        accept: ranges of damaged or lost offsets that reads are to pass over from now on (``Log.accept_loss``), or
            "all" there are; what is accepted is no damage in the report.

    Raises: LockedError, LogNotFoundError, NotALogError, DiskFullError (no room to set aside what must be cut: nothing
    is cut then), NotLostError and LossLimitError (the log is recovered all the same), StorageError.
    """
    context = _context(directory, fs)
    lock = lock_log(context.directory, mode=context.config.file_mode)
    try:
        writer = LogWriter(load(context, "sync", advance=advance), lock)
    except BaseException:
        lock.release()
        raise
    try:
        for first, last in _to_accept(writer, accept):
            accept_loss(writer, first, last)
            _note_accepted(writer.loaded.report, first, last)
    finally:
        writer.close()
    return writer.loaded.report


class _Recovered(NamedTuple):
    """A log as its recovery has left it."""

    context: SegmentContext
    segments: LogSegments
    start_offset: int
    published: Published
    losses: LossRanges

    @classmethod
    def of(cls, loaded: Loaded) -> _Recovered:
        end, base_offset = loaded.end_offset, loaded.segments.last.base_offset
        published = Published(end, base_offset, loaded.position, end)
        return cls(loaded.context, loaded.segments, loaded.start_offset, published, loaded.losses)


def _to_accept(source: CheckedLog, accept: Accept) -> Sequence[OffsetSpan]:
    if accept != "all":
        return accept
    found = unreadable(source, source.start_offset, source.published.offset)
    ranges = joined((damage.first, damage.last) for damage in found)
    return [part for span in ranges for part in source.losses.unaccepted(*span)]


def _note_accepted(report: RecoveryReport, first: int, last: int) -> None:
    accepted = LossRanges(accepted=((first, last),))
    report.corrupt[:] = [
        damage._replace(first=part[0], last=part[1])
        for damage in report.corrupt
        for part in accepted.unaccepted(damage.first, damage.last)
    ]
    report.notes.append(f"the loss of offsets {first} to {last} is accepted: reads pass over them")


def _context(directory: Path, fs: FileSystem) -> SegmentContext:
    directory = directory.absolute()
    if not fs.exists(directory):
        raise LogNotFoundError(errno.ENOENT, "there is no log", str(directory))
    if not is_log(classify(fs.list(directory))):
        raise NotALogError(errno.ENOTDIR, "not a log", str(directory))
    config = LogConfig()
    return SegmentContext(fs, directory, config, SYSTEM_CLOCK, HandleCache(config.open_files_max), LogCounters())
