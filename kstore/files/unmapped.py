"""A file system for logs that several processes write: it maps no indexes, and reserves no blocks ahead.

A mapping of a file that another process cuts ends in a SIGBUS, and blocks beyond a ``.log``'s end belong to one writer.
An apparent mapping here reads and writes the file; everything else goes to the file system below. So does
``kstore.state``, which has a fixed size and is stored to by every append.
"""

from __future__ import annotations

import os
from typing import Any, cast

from kstore.errors import ClosedError, PathLike
from kstore.files.fs import File, FileSystem, Mapping
from kstore.files.paths import KSTORE_STATE


class _FileMapping:
    """The interface of a mapping over a file, which grows with what is stored."""

    __slots__ = ("_file", "size")

    def __init__(self, file: File, size: int) -> None:
        self._file: File | None = file
        self.size = size

    def _open(self) -> File:
        file = self._file
        if file is None:
            raise ClosedError("the mapping is closed")
        return file

    def __getitem__(self, at: slice) -> bytes:
        start, stop, _ = at.indices(self.size)
        return self._open().pread(stop - start, start) if stop > start else b""

    def read(self, position: int, size: int) -> bytes:
        return self[position : position + size]

    def store(self, position: int, data: bytes) -> None:
        """Raises: DiskFullError, StorageError: unlike memory, a file may refuse it."""
        self._open().write_all([data], position)

    def sync(self) -> None:
        self._open().fdatasync()

    def close(self) -> None:
        self._file = None


class UnmappedFile:
    """A ``File`` without a real mapping, and without blocks ahead of its end."""

    def __init__(self, file: File) -> None:
        self.file: File = file
        # What each append calls, as directly as possible.
        self.write_all, self.size, self.pread = file.write_all, file.size, file.pread

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def map(self, size: int) -> Mapping:
        return _FileMapping(self.file, size)

    def allocate(self, position: int, size: int) -> bool:
        return False


class _UnmappedFs:
    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> File:
        file = self._fs.open(path, write=write, create=create, mode=mode)
        if not write or os.path.basename(path) == KSTORE_STATE:
            return file
        return cast("File", UnmappedFile(file))


def unmapped(fs: FileSystem) -> FileSystem:
    """``fs``, whose files are not mapped, except for ``kstore.state``."""
    return cast("FileSystem", _UnmappedFs(fs))
