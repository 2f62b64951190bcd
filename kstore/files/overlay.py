"""A file system whose changes stay in memory: it shows what an operation would do.

    overlay = OverlayFs(SYSTEM_FS)
    load(context over overlay, ...)      # the same code that recovers, but the disk does not change

Reads go to the file system below. Changed pages are kept in an unnamed temporary file, so that memory is bounded. A
handle opened for reading before the first change of its file does not see the changes.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kstore.errors import FileInTheWayError, FileMissingError, PathLike, StorageError
from kstore.files.fs import Advice, File, FileStat, FileSystem
from kstore.files.local import OsFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

PAGE_SIZE = 4096
NO_DEVICE = -1


class _Content:
    """The bytes of one changed file: pages of its own over those of ``base`` below ``base_size``. Thread-safe."""

    def __init__(self, base: File | None, inode: int) -> None:
        self._lock = threading.Lock()
        self._base = base
        self._base_size = self.size = base.size() if base is not None else 0
        self._pages: set[int] = set()
        fd, name = tempfile.mkstemp()
        os.unlink(name)
        self._own = OsFile(fd, name)
        self.mtime_ns = base.stat().mtime_ns if base is not None else time.time_ns()
        self.inode = inode

    def read(self, size: int, position: int) -> bytes:
        with self._lock:
            stop = min(position + size, self.size)
            parts = []
            while position < stop:
                end = min((position // PAGE_SIZE + 1) * PAGE_SIZE, stop)
                parts.append(self._read_in_page(position, end))
                position = end
            return b"".join(parts)

    def _read_in_page(self, start: int, stop: int) -> bytes:
        if start // PAGE_SIZE in self._pages:
            data = self._own.pread(stop - start, start)
        elif self._base is not None and start < self._base_size:
            data = self._base.pread(min(stop, self._base_size) - start, start)
        else:
            data = b""
        return data.ljust(stop - start, b"\0")

    def next_data(self, position: int) -> int:
        """The first position at or after ``position`` that may hold other bytes than zeros."""
        known = getattr(self._base, "next_data", None)
        with self._lock:
            if position >= self.size:
                return position
            if known is not None and position < self._base_size:
                found = min(int(known(position)), self.size)
            else:
                found = position if self._base is not None and known is None else self.size
            own = min((page for page in self._pages if (page + 1) * PAGE_SIZE > position), default=None)
            return found if own is None else min(found, max(own * PAGE_SIZE, position))

    def write(self, data: bytes, position: int) -> None:
        with self._lock:
            at = 0
            while at < len(data):
                start = position + at
                page = start // PAGE_SIZE
                taken = min((page + 1) * PAGE_SIZE - start, len(data) - at)
                if page not in self._pages:
                    whole = self._read_in_page(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
                    self._own.write_all([whole], page * PAGE_SIZE)
                    self._pages.add(page)
                self._own.write_all([data[at : at + taken]], start)
                at += taken
            self.size = max(self.size, position + len(data))
            self.mtime_ns = time.time_ns()

    def truncate(self, size: int) -> None:
        with self._lock:
            if size < self.size:
                # Bytes that are cut off must read as zeros if the file grows again.
                self._base_size = min(self._base_size, size)
                last = size // PAGE_SIZE
                self._pages = {page for page in self._pages if page <= last}
                if last in self._pages:
                    self._own.write_all([bytes((last + 1) * PAGE_SIZE - size)], size)
            self.size = size
            self.mtime_ns = time.time_ns()


class _OverlayFile:
    """``File`` over a content; it needs no closing."""

    def __init__(self, path: str, content: _Content) -> None:
        self.path = path
        self._content = content

    def pread(self, size: int, position: int) -> bytes:
        return self._content.read(size, position)

    def next_data(self, position: int) -> int:
        return self._content.next_data(position)

    def pwrite(self, data: Buffer, position: int) -> int:
        written = bytes(data)
        self._content.write(written, position)
        return len(written)

    def write_all(self, buffers: Sequence[Buffer], position: int) -> None:
        self._content.write(b"".join(buffers), position)

    def write_and_sync(self, buffers: Sequence[Buffer], position: int) -> None:
        self.write_all(buffers, position)

    def send_to(self, socket_fd: int, position: int, size: int) -> int:
        return os.write(socket_fd, self._content.read(size, position))

    def fdatasync(self) -> None:
        """Does nothing: no byte reaches a disk."""

    def fsync(self) -> None:
        """Does nothing: no byte reaches a disk."""

    def truncate(self, size: int) -> None:
        self._content.truncate(size)

    def allocate(self, position: int, size: int) -> bool:
        return True

    def advise(self, position: int, size: int, advice: Advice) -> None:
        """Does nothing: memory needs no advice."""

    def size(self) -> int:
        return self._content.size

    def stat(self) -> FileStat:
        content = self._content
        return FileStat(content.size, content.mtime_ns, content.inode, NO_DEVICE, True, False)

    def inode(self) -> int:
        return self._content.inode

    def map(self, size: int) -> _OverlayMapping:
        if self._content.size < size:
            self._content.truncate(size)
        return _OverlayMapping(self._content, size)

    def fileno(self) -> int:
        raise StorageError(errno.EBADF, "a file in memory has no descriptor", self.path)

    def close(self) -> None:
        """Does nothing: the content lives as long as the overlay."""


class _OverlayMapping:
    """``Mapping`` over a content."""

    def __init__(self, content: _Content, size: int) -> None:
        self._content = content
        self.size = size

    def __getitem__(self, at: slice) -> bytes:
        start, stop, _ = at.indices(self.size)
        return self._content.read(stop - start, start)

    def store(self, position: int, data: bytes) -> None:
        self._content.write(data, position)

    def read(self, position: int, size: int) -> bytes:
        return self._content.read(size, position)

    def sync(self) -> None:
        """Does nothing: no byte reaches a disk."""

    def close(self) -> None:
        """Does nothing: the content lives as long as the overlay."""


class OverlayFs:
    """``FileSystem`` over another one, which it never changes. It cannot create or remove directories."""

    def __init__(self, below: FileSystem) -> None:
        self._below = below
        # By path: the present content, None if it was removed.
        self._changed: dict[str, _Content | None] = {}
        self._next_inode = -2

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> File:
        name = os.fspath(path)
        if create:
            if self.exists(path):
                raise FileInTheWayError(errno.EEXIST, os.strerror(errno.EEXIST), name)
            self._next_inode -= 1
            self._changed[name] = _Content(None, self._next_inode)
        if name not in self._changed:
            if not write:
                return self._below.open(path)
            self._changed[name] = self._content(name)
        content = self._changed[name]
        if content is None:
            raise _missing(name)
        return _OverlayFile(name, content)

    def _content(self, name: str) -> _Content:
        base = self._below.open(name)
        return _Content(base, base.stat().inode)

    def rename(self, source: PathLike, target: PathLike) -> None:
        name = os.fspath(source)
        content = self._changed[name] if name in self._changed else self._content(name)
        if content is None:
            raise _missing(name)
        self._changed[os.fspath(target)] = content
        self._changed[name] = None

    def unlink(self, path: PathLike) -> None:
        if not self.exists(path):
            raise _missing(os.fspath(path))
        self._changed[os.fspath(path)] = None

    def sync_dir(self, path: PathLike) -> None:
        """Does nothing: no name reaches a disk."""

    def list(self, path: PathLike) -> list[str]:
        names = set(self._below.list(path))
        for changed, content in self._changed.items():
            directory, name = os.path.split(changed)
            if directory == os.fspath(path):
                if content is None:
                    names.discard(name)
                else:
                    names.add(name)
        return list(names)

    def stat(self, path: PathLike, *, follow_symlinks: bool = False) -> FileStat:
        name = os.fspath(path)
        if name not in self._changed:
            stat = self._below.stat(path, follow_symlinks=follow_symlinks)
            # A directory's times do not tell of the names that were changed here.
            return stat._replace(ctime_ns=0) if stat.is_dir else stat
        content = self._changed[name]
        if content is None:
            raise _missing(name)
        return _OverlayFile(name, content).stat()

    def exists(self, path: PathLike) -> bool:
        name = os.fspath(path)
        return self._changed[name] is not None if name in self._changed else self._below.exists(path)

    def mkdir(self, path: PathLike, mode: int = 0o700) -> None:
        raise StorageError(errno.ENOTSUP, "an overlay cannot create directories", os.fspath(path))

    def rmdir(self, path: PathLike) -> None:
        raise StorageError(errno.ENOTSUP, "an overlay cannot remove directories", os.fspath(path))

    def set_mtime(self, path: PathLike, mtime_ns: int) -> None:
        """Does nothing: no time reaches a disk."""


def _missing(name: str) -> FileMissingError:
    return FileMissingError(errno.ENOENT, os.strerror(errno.ENOENT), name)
