"""Recovering logs on demand: what opening would do is said, and then done, or only said.

A dry run is the real recovery over a file system that keeps its changes in memory: it cannot say one thing and do
another.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from kstore.clock import SYSTEM_CLOCK
from kstore.config import LogConfig
from kstore.errors import LogNotFoundError, NotALogError
from kstore.files.fs import FileSystem
from kstore.files.handles import HandleCache
from kstore.files.local import SYSTEM_FS
from kstore.files.log_lock import lock_log, probe_log
from kstore.files.overlay import OverlayFs
from kstore.files.paths import classify
from kstore.log_loader import is_log, load
from kstore.log_writer import LogWriter
from kstore.metrics import LogCounters
from kstore.segment import SegmentContext
from kstore.types import RecoveryReport

__all__ = ["plan_recovery", "recover_log"]

Advance = Callable[[int], None]


def plan_recovery(directory: Path, *, fs: FileSystem = SYSTEM_FS, advance: Advance | None = None) -> RecoveryReport:
    """What ``recover_log`` would find and do; nothing is changed, no lock is taken.

    Raises: LockedError where a writer is at work, LogNotFoundError, NotALogError, StorageError.
    """
    context = _context(directory, fs)
    probe_log(context.directory)
    loaded = load(context._replace(fs=OverlayFs(fs)), "sync", advance=advance)
    loaded.state_file.close()
    return loaded.report


def recover_log(directory: Path, *, fs: FileSystem = SYSTEM_FS, advance: Advance | None = None) -> RecoveryReport:
    """Recovers the log where it was not closed in order, and closes it in order, durably.

    Raises: LockedError, LogNotFoundError, NotALogError, DiskFullError (no room to set aside what must be cut: nothing
    is cut then), StorageError.
    """
    context = _context(directory, fs)
    lock = lock_log(context.directory, mode=context.config.file_mode)
    try:
        writer = LogWriter(load(context, "sync", advance=advance), lock)
    except BaseException:
        lock.release()
        raise
    writer.close()
    return writer.loaded.report


def _context(directory: Path, fs: FileSystem) -> SegmentContext:
    directory = directory.absolute()
    if not fs.exists(directory):
        raise LogNotFoundError(errno.ENOENT, "there is no log", str(directory))
    if not is_log(classify(fs.list(directory))):
        raise NotALogError(errno.ENOTDIR, "not a log", str(directory))
    config = LogConfig()
    return SegmentContext(fs, directory, config, SYSTEM_CLOCK, HandleCache(config.open_files_max), LogCounters())
