"""The only door to the files of an operating system: three protocols, ``FileSystem``, ``File`` and ``Mapping``.

``kstore.files.local`` opens this machine's disks; tests substitute recording and failing ones. The rules:

- Only regular files are opened, never through a symbolic link as the last component, never inherited by a child.
- An OSError becomes a typed ``StorageError`` that keeps ``errno`` and ``filename``.
- A failed sync differs from a failed write (``SyncFailedError``): after it, what is on disk is unknown.

Unless a docstring says otherwise, a change is in the page cache on return, and on disk after a sync. Positions and
sizes are bytes, counted from the file's start.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from kstore.errors import (
    DiskFullError,
    FileInTheWayError,
    FileMissingError,
    KstoreError,
    PathLike,
    ReadOnlyError,
    StorageError,
    SyncFailedError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

Advice = Literal["normal", "sequential", "random", "willneed", "dontneed"]

# No file that is read whole is larger in a sound log, neither a segment's index nor a snapshot of a million producers.
READ_FILE_SIZE_MAX = 64 << 20

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
REFUSED_ERRNOS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class FileStat(NamedTuple):
    """What the file system reports for a name: ``size`` in bytes; ``mtime_ns`` and ``ctime_ns`` since the epoch.

    ``ctime_ns`` is 0 if the file system does not keep it. ``tag`` is an object store's own mark of the content, which
    every new content changes (an ETag); empty where stores have none.
    """

    size: int
    mtime_ns: int
    inode: int
    device: int
    is_file: bool
    is_dir: bool
    ctime_ns: int = 0
    tag: str = ""


class Mapping(Protocol):
    """The first ``size`` bytes of a file as memory, shared with the page cache; all its blocks are allocated.

    ``mapping[a:b]`` returns bytes. A store is an unsynced write. Concurrent reads and stores do not tear: each is one
    copy under the interpreter's lock. After ``close()`` every use raises ClosedError, also in another thread.
    """

    @property
    def size(self) -> int: ...
    def __getitem__(self, at: slice) -> bytes: ...
    def store(self, position: int, data: bytes) -> None:
        """Copies ``data`` to ``position``; it must fit."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """``size`` bytes from ``position``; fewer at the mapping's end."""
        ...

    def sync(self) -> None:
        """Puts every store on disk. Raises: SyncFailedError."""
        ...

    def close(self) -> None: ...


class File(Protocol):
    """An open regular file. Reads and writes name their position, so threads share it without a lock.

    The descriptor is closed with the last reference. ``close()`` is for a sole owner: no other call may be running; if
    other threads may use the file, drop the reference instead.
    """

    @property
    def path(self) -> str: ...
    def pread(self, size: int, position: int) -> bytes:
        """``size`` bytes from ``position``, fewer only if the file ends.

        Allocates no more than 1 MiB or the file's size, so ``size`` may come from a file. Raises: StorageError.
        """
        ...

    def pwrite(self, data: Buffer, position: int) -> int:
        """One write, which may be short: returns how many bytes were written.

        Raises: DiskFullError, ReadOnlyError, StorageError.
        """
        ...

    def write_all(self, buffers: Sequence[Buffer], position: int) -> None:
        """Writes the buffers one after another from ``position``.

        Raises: DiskFullError, ReadOnlyError, StorageError; then any part of them may be in the file.
        """
        ...

    def write_and_sync(self, buffers: Sequence[Buffer], position: int) -> None:
        """``write_all`` and ``fdatasync`` in one: on return these bytes are on disk.

        Bytes written before need not be.

        Raises: SyncFailedError if the bytes were written but perhaps not synced; else as ``write_all``, without a
        failed sync.
        """
        ...

    def send_to(self, socket_fd: int, position: int, size: int) -> int:
        """Sends up to ``size`` bytes to a socket inside the kernel; returns the number sent, 0 at the file's end.

        Raises: OSError unchanged, since it may be the socket's (BlockingIOError, BrokenPipeError).
        """
        ...

    def fdatasync(self) -> None:
        """Puts the file's bytes and size on disk. Raises: SyncFailedError."""
        ...

    def fsync(self) -> None:
        """Like ``fdatasync``, with times and modes. Raises: SyncFailedError."""
        ...

    def truncate(self, size: int) -> None:
        """Sets the size; growth reads as zeros. Blocks allocated beyond ``size`` are released."""
        ...

    def allocate(self, position: int, size: int) -> bool:
        """Reserves blocks without changing the size; best effort: False if none are available."""
        ...

    def advise(self, position: int, size: int, advice: Advice) -> None:
        """Tells the kernel how the range is used (``size`` 0: to the end); best effort, raises nothing."""
        ...

    def size(self) -> int: ...
    def stat(self) -> FileStat: ...
    def inode(self) -> int:
        """Its number in the file system, which stays the same while it is open: ``stat`` with less work."""
        ...

    def map(self, size: int) -> Mapping:
        """Maps the first ``size`` bytes, growing the file to them, their blocks allocated first.

        Raises: DiskFullError if the blocks are not available: storing to the mapping cannot fail later.
        """
        ...

    def fileno(self) -> int: ...
    def close(self) -> None: ...


class FileSystem(Protocol):
    """Names and files. Thread-safe. Every method raises StorageError, or the named subclass."""

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> File:
        """Opens a regular file; ``create`` makes it with ``mode``, and needs ``write``.

        Raises: FileMissingError, FileInTheWayError (``create`` and the name is taken), ReadOnlyError.
        """
        ...

    def rename(self, source: PathLike, target: PathLike) -> None:
        """Gives the file its new name, in place of what had it. Durable after ``sync_dir``."""
        ...

    def unlink(self, path: PathLike) -> None:
        """Takes the name away. Raises: FileMissingError."""
        ...

    def sync_dir(self, path: PathLike) -> None:
        """Puts the directory's names on disk. Raises: SyncFailedError."""
        ...

    def list(self, path: PathLike) -> list[str]:
        """The names in a directory, in no order, without their paths."""
        ...

    def stat(self, path: PathLike, *, follow_symlinks: bool = False) -> FileStat:
        """Raises: FileMissingError."""
        ...

    def exists(self, path: PathLike) -> bool:
        """Whether the name exists; also for a symbolic link that leads nowhere."""
        ...

    def mkdir(self, path: PathLike, mode: int = 0o700) -> None:
        """Raises: FileInTheWayError, FileMissingError (no parent)."""
        ...

    def rmdir(self, path: PathLike) -> None:
        """Removes an empty directory."""
        ...

    def set_mtime(self, path: PathLike, mtime_ns: int) -> None:
        """Sets the modification time, and the access time with it."""
        ...


def plain_text(error: Exception) -> str:
    """What an error says, with the file's name first and without the system's error number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def storage_error(error: OSError, path: PathLike, *, writing: bool = False) -> StorageError:
    """The typed error for a system error about ``path``; ``writing``: bytes or names were to change."""
    code = error.errno or errno.EIO
    text = error.strerror or str(error)
    name = os.fspath(path)
    if code in FULL_ERRNOS:
        return DiskFullError(code, text, name)
    if writing and code in REFUSED_ERRNOS:
        return ReadOnlyError(code, text, name)
    if code == errno.ENOENT:
        return FileMissingError(code, text, name)
    if code == errno.EEXIST:
        return FileInTheWayError(code, text, name)
    if code == errno.ELOOP:
        return StorageError(code, "a symbolic link, where a regular file was expected", name)
    return StorageError(code, text, name)


def sync_error(error: OSError, path: PathLike) -> SyncFailedError:
    """The error of a failed sync, whatever its number: even ENOSPC may come from a sync."""
    return SyncFailedError(error.errno or errno.EIO, f"sync failed: {error.strerror or error}", os.fspath(path))


def replaced_failed_sync(error: BaseException, outer: BaseException | None) -> bool:
    """Whether ``error``, of something that syncs, came while the error of a failed sync was handled.

    An interrupt has what it replaced as its context, up to ``outer``: what was handled before. An OSError that no layer
    has given its type yet may be a sync's, unless it names a file: a sync has only a descriptor.
    """
    each = error.__context__
    while each is not None and each is not outer:
        if isinstance(each, SyncFailedError):
            return True
        if isinstance(each, OSError) and not isinstance(each, KstoreError) and each.filename is None:
            return True
        each = each.__context__
    return False


def read_file(fs: FileSystem, path: PathLike, size_max: int = READ_FILE_SIZE_MAX) -> bytes:
    """The first ``size_max`` bytes of a file, or all of a smaller one. Raises: FileMissingError, StorageError."""
    return fs.open(path).pread(size_max, 0)


def size_of_files(fs: FileSystem, directory: Path) -> int:
    """The bytes of all files in ``directory``; 0 if it does not exist. Files that disappear in the meantime
    are left out.

    Raises: StorageError.
    """
    size = 0
    try:
        for name in fs.list(directory):
            try:
                found = fs.stat(directory / name)
            except FileMissingError:
                continue
            size += found.size if found.is_file else size_of_files(fs, directory / name) if found.is_dir else 0
    except FileMissingError:
        pass
    return size
