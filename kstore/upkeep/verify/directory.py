"""Verifies a whole directory: one log, or a store of many, with the checkpoints next to them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from kstore.config import LogConfig
from kstore.engine.directory import is_log
from kstore.errors import CorruptDataError, FileMissingError, NotALogError, StorageError
from kstore.files.checkpoint import read_offset_checkpoint
from kstore.files.fs import FileSystem
from kstore.files.linked import directories_in, is_directory
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import CHECKPOINTS, classify, topic_partition
from kstore.scan.visits import Advance, no_advance
from kstore.upkeep.verify.findings import Finding, LogVerification
from kstore.upkeep.verify.partition import verify_log

REFUSALS = frozenset({errno.EACCES, errno.EPERM})


def find_logs(path: Path, *, fs: FileSystem = SYSTEM_FS) -> list[Path]:
    """``path`` itself if it is a log, else the logs that are directories in it, or links to some, by name.

    Raises: NotALogError if it finds none; StorageError, also for two names of one log.
    """
    names = fs.list(path)
    if is_log(classify(names)):
        return [path]
    logs = [name for name in sorted(names) if is_log_in(path, name, fs=fs)]
    found = [path / name for name in directories_in(fs, path, logs).names]
    if not found:
        raise NotALogError(errno.ENOTDIR, "neither a log nor a directory of logs", str(path))
    return found


def is_log_in(path: Path, name: str, *, fs: FileSystem = SYSTEM_FS) -> bool:
    """Whether ``name`` in the directory ``path`` is a log; not if it has been deleted since it was listed.

    Raises: StorageError.
    """
    inner = path / name
    try:
        return is_directory(fs, inner) and is_log(classify(fs.list(inner)))
    except FileMissingError:
        return False
    except StorageError as error:
        # The contents of a directory that is no partition's, such as the lost+found of a disk, do not matter.
        if error.errno in REFUSALS and topic_partition(name) is None:
            return False
        raise


def verify_store_files(path: Path, *, fs: FileSystem = SYSTEM_FS) -> LogVerification:
    """The problems of the checkpoints of the store in ``path``, and its partitions that are links to nothing; none if
    it is a log."""
    store = LogVerification(str(path))
    try:
        names = fs.list(path)
    except FileMissingError:
        return store  # a log that has been deleted since it was found
    for name in directories_in(fs, path, filter(topic_partition, names)).broken:
        reason = "a symbolic link that leads to no directory: the partition was not examined"
        store.findings.append(Finding("damage", "name", str(path / name), reason))
    for name in CHECKPOINTS:
        try:
            read_offset_checkpoint(fs, path / name)
        except (CorruptDataError, StorageError) as error:
            store.findings.append(Finding("damage", "checkpoint", str(path / name), str(error)))
    return store


def verify(
    path: Path, *, fs: FileSystem = SYSTEM_FS, config: LogConfig | None = None, advance: Advance = no_advance
) -> Iterator[LogVerification]:
    """Verifies the log in ``path``, or all logs in it, one after another (``verify_log``). A log that is deleted
    meanwhile is left out.

    Problems of a store's checkpoints come first, as findings about ``path`` itself.

    Raises: NotALogError, StorageError.
    """
    logs = find_logs(path, fs=fs)
    store = verify_store_files(path, fs=fs)
    if store.findings:
        yield store
    for log in logs:
        found = verify_present(log, fs=fs, config=config, advance=advance)
        if found is not None:
            yield found


def verify_present(
    log: Path, *, fs: FileSystem = SYSTEM_FS, config: LogConfig | None = None, advance: Advance = no_advance
) -> LogVerification | None:
    """``verify_log``; None if the log has been deleted since it was found. Raises: StorageError."""
    try:
        return verify_log(log, fs=fs, config=config, advance=advance)
    except FileMissingError:
        if fs.exists(log):
            raise
        return None
