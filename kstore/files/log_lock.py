"""The right to write to one log: for a lone writer, which locks its directory, or a store, which locks the one above.

A store that has its directory alone does not keep the locks of its partitions, because each costs a descriptor. When it
opens a partition it takes and releases that lock, which reveals an existing lone writer. Two rules then keep the two
apart, whichever comes first:

    a store          locks its root, then checks the partition's lock
    a lone writer    locks the partition, then checks the root's lock

Each writes its own mark before it reads the other's, so at least one of them sees the other. If both do, the lone
writer gives way: it checked the root before it changed anything, and releases the partition at once, while the store
retries for a moment. A broker locks only the root, and the same check finds it.

A lone writer checks the root of the directory's path as given and, if the directory is reached through a link, of its
real path: either may be the store's. A partition that a store reaches through a link has another real root, so the
store keeps its lock; so do processes that share a store, since the root's lock does not keep the others out.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

from kstore.errors import LockedError
from kstore.files.lock import DirectoryLock, probe_lock

# A lone writer that finds a store's root locked has held the partition for microseconds, unless it was descheduled.
GIVING_WAY_RETRIES = 50
GIVING_WAY_SECONDS = 0.004
# Last parts of a path that do not name the directory in the one above it.
NO_NAMES = frozenset({"", os.pardir})


class WriteLock(Protocol):
    """The right to write to a log: its own lock, or a share of its store's."""

    def release(self) -> None: ...


def lock_log(directory: Path, *, kind: str = "log", mode: int = 0o600, shared: bool = False) -> DirectoryLock:
    """The lock of the log in ``directory``, for a writer without a store; arguments as of ``DirectoryLock``.

    Raises: LockedError, naming the holder, also of a store above; ReadOnlyError, FileMissingError, StorageError.
    """
    # Before anything is created in a directory that belongs to a store.
    _probe_above(directory, shared=shared)
    try:
        lock = DirectoryLock(directory, kind=kind, mode=mode, shared=shared)
    except LockedError:
        _probe_above(directory, shared=shared)  # if a store has just been opened, the error names it
        raise
    try:
        _probe_above(directory, shared=shared)
    except BaseException:
        lock.release()
        raise
    return lock


def lock_in_store(directory: Path, root: DirectoryLock, *, kind: str = "log", mode: int, shared: bool) -> WriteLock:
    """The right to write to a partition of the store that holds ``root``: a share of ``root``, so that it stays locked
    while the log is open, or the partition's own lock if only that keeps other writers out.

    Raises: LockedError, naming the lone writer; ReadOnlyError, FileMissingError, StorageError.
    """
    lock = lock_past_lone_writers(directory, kind=kind, mode=mode, shared=shared)
    kept: WriteLock = lock
    try:
        if os.path.islink(directory):
            # Its own lock excludes every writer except a store that owns the directory to which the link leads.
            above = os.path.dirname(os.path.realpath(directory))
            if not os.path.samefile(above, os.path.dirname(directory)):
                probe_lock(above, shared=shared)
        elif not shared:
            kept = root.share()
            lock.release()
        return kept
    except BaseException:
        lock.release()
        kept.release()
        raise


def lock_past_lone_writers(directory: Path, *, kind: str = "log", mode: int, shared: bool = False) -> DirectoryLock:
    """The lock of a partition, for the holder of the root's: waits for lone writers that are giving way.

    Raises: as ``DirectoryLock``.
    """
    for _ in range(GIVING_WAY_RETRIES):
        try:
            return DirectoryLock(directory, kind=kind, mode=mode, shared=shared)
        except LockedError:
            time.sleep(GIVING_WAY_SECONDS)
    return DirectoryLock(directory, kind=kind, mode=mode, shared=shared)


def probe_log(directory: Path) -> None:
    """Checks whether a process may be writing to the log in ``directory``; creates and keeps nothing.

    Raises: LockedError; StorageError if that cannot be determined.
    """
    _probe_above(directory, shared=False)
    probe_lock(directory)


def _probe_above(directory: Path, *, shared: bool) -> None:
    probe_lock(os.path.dirname(directory), shared=shared)
    # Links above the directory need no second look: the system follows them to the same root.
    if directory.name in NO_NAMES or os.path.islink(directory):
        probe_lock(os.path.dirname(os.path.realpath(directory)), shared=shared)
