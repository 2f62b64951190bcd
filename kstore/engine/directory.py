"""The directory of a log: what may be one, what is one, and making one."""

from __future__ import annotations

import errno
from pathlib import Path

from kstore.errors import (
    FileInTheWayError,
    FileMissingError,
    LogNotFoundError,
    NotALogError,
    StorageError,
    SyncFailedError,
)
from kstore.files.fs import FileSystem
from kstore.files.paths import (
    KSTORE_GROUPS,
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOCK,
    LOG_SUFFIX,
    PARTITION_METADATA,
    DirectoryNames,
    classify,
)
from kstore.state.compaction_state import KSTORE_COMPACTION

# Names that make a directory a log even without a segment: creating one may have been interrupted.
MARKS = (KSTORE_STATE, PARTITION_METADATA, LEADER_EPOCHS)
OWN_NAMES = {*MARKS, LOCK, KSTORE_COMPACTION, KSTORE_GROUPS}


def is_log(names: DirectoryNames) -> bool:
    """Whether a listing is that of a log; an empty directory is not one."""
    return bool(names.bases[LOG_SUFFIX]) or any(name in names.others for name in MARKS)


def is_marked(fs: FileSystem, path: Path) -> bool:
    """Whether ``path`` is certainly a log: one that kstore has opened, or a broker's. It is not listed."""
    return any(fs.exists(path / name) for name in MARKS)


def ensure_directory(fs: FileSystem, path: Path) -> None:
    """Raises: NotALogError for anything but a directory."""
    if not fs.stat(path, follow_symlinks=True).is_dir:
        raise NotALogError(errno.ENOTDIR, "not a directory", str(path))


def ensure_present(fs: FileSystem, path: Path) -> None:
    """Raises: LogNotFoundError if the path does not exist, NotALogError for anything but a directory."""
    try:
        ensure_directory(fs, path)
    except FileMissingError:
        if not fs.exists(path):
            raise LogNotFoundError(errno.ENOENT, "there is no log", str(path)) from None
        ensure_directory(fs, path)  # another process has just made it; or it is a link that leads nowhere


def ensure_log_directory(fs: FileSystem, directory: Path, *, mode: int, is_lone: bool) -> None:
    """Makes sure that ``directory`` exists, with a durable name, and is a log or may become one.

    ``is_lone`` is False for a partition, whose directory the store has made and synced.

    Raises: NotALogError for anything else; StorageError.
    """
    if fs.exists(directory / KSTORE_STATE):
        return  # the common case, and no second listing of thousands of names
    if is_lone or not fs.exists(directory):
        make_directory(fs, directory, mode=mode)
    ensure_directory(fs, directory)
    names = classify(fs.list(directory))
    foreign = sorted(name for name in names.others if name != LOCK)
    if foreign and not is_log(names):
        held = ", ".join(foreign[:3])
        raise NotALogError(errno.ENOTDIR, f"not a log: it holds {held}, and no segment", str(directory))


def make_directory(fs: FileSystem, directory: Path, *, mode: int) -> None:
    """Creates ``directory`` with its missing parents. All their names are durable on return.

    Several processes may do this at the same time. The name of an existing directory is synced too: the process
    that has just created it may not have synced it yet.
    """
    missing = []
    path = directory
    while not fs.exists(path):
        missing.append(path)
        path = path.parent
    try:
        fs.sync_dir(path.parent)
    except StorageError as error:
        # If this process cannot open or change the parent, neither it nor a process like it has created a name there.
        if isinstance(error, SyncFailedError) and error.errno != errno.EROFS:
            raise
    for path in reversed(missing):
        try:
            fs.mkdir(path, mode)
        except FileInTheWayError:
            ensure_directory(fs, path)  # another process was quicker
        # Until the parent is synced too, a crash may lose the new directory with all that is in it.
        fs.sync_dir(path.parent)


def directory_mode(file_mode: int) -> int:
    """The mode of a directory whose files have ``file_mode``: users who may read the files may search it."""
    return file_mode | (file_mode & 0o444) >> 2
