"""Who may write to one log: a lone writer, which locks its directory, or a store, which locks the directory above.

A store that has its directory alone does not keep the locks of its partitions: each costs a descriptor. It passes
through the lock of a partition when it opens it, which shows a lone writer that is there already. Two rules then keep
the two apart, whichever comes first:

    a store          locks its root, then looks at the partition's lock
    a lone writer    locks the partition, then looks at the root's lock

Each writes its own mark before it reads the other's, so that at least one of them sees the other. If both do, the lone
writer gives way: it looked at the root before it changed anything, and releases the partition at once, while the store
tries again for a moment. A broker locks the root only, and is seen by the same look.

A lone writer looks at the root of the directory's path as it was given and of its real path: either may be the store's.
A partition that a store reaches through a link has another real root, so the store keeps its lock; so do those who
share a store, since the root's lock does not keep the others out.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

from kstore.errors import LockedError
from kstore.files.lock import DirectoryLock, probe_lock

__all__ = ["WriteLock", "lock_in_store", "lock_log", "probe_log"]

# A lone writer that finds a store's root locked has held the partition for microseconds, unless it was descheduled.
GIVING_WAY_RETRIES = 50
GIVING_WAY_SECONDS = 0.004


class WriteLock(Protocol):
    """The right to write to a log: its own lock, or a share of its store's."""

    def release(self) -> None: ...


def lock_log(directory: Path, *, kind: str = "log", mode: int = 0o600, shared: bool = False) -> DirectoryLock:
    """The lock of the log in ``directory``, for a writer that is no store; ``kind``, ``mode``, ``shared`` as there.

    Raises: LockedError, naming the holder, also of a store above; ReadOnlyError, FileMissingError, StorageError.
    """
    # Before anything is created in a directory that a store has.
    _probe_above(directory, shared=shared)
    try:
        lock = DirectoryLock(directory, kind=kind, mode=mode, shared=shared)
    except LockedError:
        _probe_above(directory, shared=shared)  # if a store has just been opened, it is the one to be named
        raise
    try:
        _probe_above(directory, shared=shared)
    except BaseException:
        lock.release()
        raise
    return lock


def lock_in_store(directory: Path, root: DirectoryLock, *, kind: str = "log", mode: int, shared: bool) -> WriteLock:
    """The right to write to a partition of the store that holds ``root``: a share of it, so that it stays locked for
    as long as the log is open, or the partition's own lock where that alone keeps others out.

    Raises: LockedError, naming the lone writer; ReadOnlyError, FileMissingError, StorageError.
    """
    lock = lock_past_lone_writers(directory, kind=kind, mode=mode, shared=shared)
    if shared or os.path.islink(directory):
        return lock
    try:
        return root.share()
    finally:
        lock.release()


def lock_past_lone_writers(directory: Path, *, kind: str = "log", mode: int, shared: bool = False) -> DirectoryLock:
    """The lock of a partition, for whoever holds the root's: lone writers that are giving way are waited for.

    Raises: as ``DirectoryLock``.
    """
    for _ in range(GIVING_WAY_RETRIES):
        try:
            return DirectoryLock(directory, kind=kind, mode=mode, shared=shared)
        except LockedError:
            time.sleep(GIVING_WAY_SECONDS)
    return DirectoryLock(directory, kind=kind, mode=mode, shared=shared)


def probe_log(directory: Path) -> None:
    """Looks whether anyone may be writing to the log in ``directory``; creates and keeps nothing.

    Raises: LockedError; StorageError where that cannot be found out.
    """
    _probe_above(directory, shared=False)
    probe_lock(directory)


def _probe_above(directory: Path, *, shared: bool) -> None:
    for root in {os.path.dirname(directory), os.path.dirname(os.path.realpath(directory))}:
        probe_lock(root, shared=shared)
