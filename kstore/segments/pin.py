"""Which file a segment's name stood for when a reader first used it.

A broker's cleaner, or kstore's in another process, gives the name to another file. What was learned from one file must
not be applied to the other: a position, a size, an index.
"""

from __future__ import annotations

import errno

from kstore.errors import FileMissingError
from kstore.files._direct import is_named
from kstore.files.fs import File, FileStat, FileSystem


class FilePin:
    """The inode of one segment's ``.log``, once it is known. Remote files have none, and are never replaced in place.

    Thread-safe: threads that race hold the same file, or one of them fails.
    """

    __slots__ = ("_inode", "_is_active")

    def __init__(self, *, is_active: bool = True) -> None:
        self._is_active = is_active
        self._inode: int | None = None

    def hold(self, stat: FileStat, path: str) -> FileStat:
        """``stat``, if it is that of the file seen first, or is the first. Raises: FileMissingError."""
        if self._is_active:
            self._hold(stat.inode, path)
        return stat

    def opened(self, file: File) -> File:
        """``file``, as ``hold``. Raises: FileMissingError."""
        if self._is_active:
            self._hold(file.inode(), file.path)
        return file

    def _hold(self, inode: int, path: str) -> None:
        if self._inode is None:
            self._inode = inode
        if self._inode != inode:
            raise replaced(path)

    def kept(self, file: File, fs: FileSystem) -> File:
        """``file``, which is open, if its name still stands for it. Raises: FileMissingError."""
        if self._inode is None or is_named(file, self._inode):
            return file
        path = str(file.path)
        if self.is_lost(fs, path):
            raise replaced(path)
        return file

    def release(self) -> None:
        """Lets the next file be the first."""
        self._inode = None

    @property
    def is_held(self) -> bool:
        """Whether the file is known."""
        return self._inode is not None

    def is_lost(self, fs: FileSystem, path: str) -> bool:
        """Whether ``path`` names another file now. Raises: FileMissingError if it names none."""
        return self._inode is not None and fs.stat(path).inode != self._inode


def replaced(path: str) -> FileMissingError:
    """The error for a segment whose ``.log`` at ``path`` is another file now."""
    return FileMissingError(errno.ENOENT, "the segment was replaced by another one", path)


# For the segments of a writer, which knows what it replaces.
UNPINNED = FilePin(is_active=False)
