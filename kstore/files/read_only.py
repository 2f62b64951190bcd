"""What is only read: a file made of ranges that come from elsewhere, and a file system that changes nothing.

A store at a URL, a backup and a single segment are shown this way. Each subclass reads; what only a disk does is here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kstore.errors import FileMissingError, PathLike, ReadOnlyError, StorageError
from kstore.files.fs import Advice, FileStat, Mapping

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ReadOnlyFile:
    """A ``File`` that cannot be written. Its bytes are on no descriptor of this process."""

    path: str

    def pread(self, size: int, position: int) -> bytes:
        """``size`` bytes from ``position``, fewer only if the file ends. Raises: StorageError."""
        raise NotImplementedError

    def stat(self) -> FileStat:
        raise NotImplementedError

    def _refused(self) -> ReadOnlyError:
        """The error of what would change it."""
        raise NotImplementedError

    def size(self) -> int:
        return self.stat().size

    def inode(self) -> int:
        return self.stat().inode

    def send_to(self, socket_fd: int, position: int, size: int) -> int:
        return os.write(socket_fd, self.pread(size, position))

    def advise(self, position: int, size: int, advice: Advice) -> None:
        """Does nothing: the bytes may be on another machine."""

    def close(self) -> None:
        """Does nothing: other threads may read it."""

    def fileno(self) -> int:
        raise StorageError(errno.EBADF, "this file has no descriptor", self._refused().filename)

    # --- what only a disk does ----------------------------------------------------------------------------------------

    def pwrite(self, data: Buffer, position: int) -> int:
        raise self._refused()

    def write_all(self, buffers: Sequence[Buffer], position: int) -> None:
        raise self._refused()

    def write_and_sync(self, buffers: Sequence[Buffer], position: int) -> None:
        raise self._refused()

    def fdatasync(self) -> None:
        raise self._refused()

    def fsync(self) -> None:
        raise self._refused()

    def truncate(self, size: int) -> None:
        raise self._refused()

    def allocate(self, position: int, size: int) -> bool:
        return False

    def map(self, size: int) -> Mapping:
        raise self._refused()


class ReadOnlyFiles:
    """The changes that a ``FileSystem`` refuses whose files are only read."""

    def refused(self, path: PathLike) -> ReadOnlyError:
        """The error of what would change ``path``."""
        raise NotImplementedError

    def rename(self, source: PathLike, target: PathLike) -> None:
        raise self.refused(source)

    def unlink(self, path: PathLike) -> None:
        raise self.refused(path)

    def sync_dir(self, path: PathLike) -> None:
        raise self.refused(path)

    def mkdir(self, path: PathLike, mode: int = 0o700) -> None:
        raise self.refused(path)

    def rmdir(self, path: PathLike) -> None:
        raise self.refused(path)

    def set_mtime(self, path: PathLike, mtime_ns: int) -> None:
        raise self.refused(path)


def missing(path: PathLike) -> FileMissingError:
    """The error of a path at which nothing is."""
    return FileMissingError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
