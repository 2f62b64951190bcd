"""The files of this machine's disks: the real ``FileSystem``.

``platform`` has the differences between operating systems.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stat_module
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from kstore.errors import ClosedError, KstoreError, PathLike
from kstore.files import platform
from kstore.files._memory import SharedMemory
from kstore.files.descriptors import relieved
from kstore.files.fs import Advice, FileStat, storage_error, sync_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

# O_NONBLOCK: opening a FIFO in the file's place must not hang; it changes nothing for a regular file.
OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

# A read of up to this size goes to the kernel as requested; a larger one is first compared with the file's size,
# because the buffer for it is allocated before a byte is read.
READ_SIZE_UNCHECKED = 1 << 20

# The kernel accepts at most IOV_MAX buffers in one vectored write; 1,024 on Linux and macOS.
BUFFERS_PER_WRITE = 1024

UNSUPPORTED_ERRNOS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})

# What a call raises if there is no memory for its outcome. Not all exceptions: a signal's handler may raise any.
NO_MEMORY = (MemoryError, SystemError)


class OsMapping:
    """``Mapping`` over shared memory. It keeps no descriptor, and is freed with the last reference."""

    __slots__ = ("_memory", "_path", "size")

    def __init__(self, file: OsFile, size: int) -> None:
        self._path = file.path
        self.size: int = size
        self._memory = SharedMemory(file.fileno(), size)

    def __getitem__(self, at: slice) -> bytes:
        start, stop, _ = at.indices(self.size)
        try:
            return self._memory.read(start, stop)
        except ValueError as error:
            raise self._closed() from error

    def store(self, position: int, data: bytes) -> None:
        try:
            self._memory.store(position, data)
        except ValueError as error:
            raise self._closed() from error

    def read(self, position: int, size: int) -> bytes:
        try:
            return self._memory.read(position, position + size)
        except ValueError as error:
            raise self._closed() from error

    def sync(self) -> None:
        try:
            self._memory.sync()
            if not platform.MSYNC_REACHES_DISK:
                fd = os.open(self._path, OPEN_FLAGS | os.O_RDONLY)
                try:
                    platform.sync_data(fd)
                finally:
                    os.close(fd)
        except ValueError as error:
            raise self._closed() from error
        except OSError as error:
            raise sync_error(error, self._path) from error

    def close(self) -> None:
        self._memory.close()

    def _closed(self) -> ClosedError:
        return ClosedError(f"{self._path}: the mapping is closed")


class OsFile:
    """``File`` over a descriptor, which it owns."""

    __slots__ = ("__weakref__", "_fd", "_has_failed_sync", "_inode", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._inode: int | None = None
        self._has_failed_sync = False
        self.path: str = path

    def __repr__(self) -> str:
        return f"OsFile({self.path!r}, fd={self._fd})"

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:  # else it may not be fully constructed
            self.close()

    def pread(self, size: int, position: int) -> bytes:
        if size > READ_SIZE_UNCHECKED:
            size = max(min(size, self.size() - position), 0)
        try:
            data = os.pread(self._fd, size, position)
            if len(data) == size or not data:
                return data
            # A short read inside a file is legal (a signal, the 2 GiB limit of a call): only an empty read is the end.
            parts = [data]
            got = len(data)
            while got < size and (data := os.pread(self._fd, size - got, position + got)):
                parts.append(data)
                got += len(data)
            return b"".join(parts)
        except OSError as error:
            raise self._error(error) from error

    def pwrite(self, data: Buffer, position: int) -> int:
        try:
            return os.pwrite(self._fd, data, position)
        except OSError as error:
            raise self._error(error, writing=True) from error

    def write_all(self, buffers: Sequence[Buffer], position: int) -> None:
        count = len(buffers)
        try:
            if count == 1:
                buffer = buffers[0]
                written = os.pwrite(self._fd, buffer, position)
                if written == (len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes):
                    return
            else:
                written = os.pwritev(self._fd, buffers, position) if count <= BUFFERS_PER_WRITE else 0
        except OSError as error:
            raise self._error(error, writing=True) from error
        if written != _total_size(buffers):
            self._write_rest(buffers, position, written, flags=0)

    def write_and_sync(self, buffers: Sequence[Buffer], position: int) -> None:
        if not platform.DSYNC_FLAG or len(buffers) > BUFFERS_PER_WRITE:
            self._write_then_sync(buffers, position)
            return
        try:
            # One call releases the interpreter's lock once; a write and a sync would release it twice.
            written = os.pwritev(self._fd, buffers, position, platform.DSYNC_FLAG)
        except OSError as error:
            self._has_failed_sync = True  # the first step, as in ``_sync``
            if error.errno in UNSUPPORTED_ERRNOS:
                self._has_failed_sync = False
                self._write_then_sync(buffers, position)
                return
            raise self._write_or_sync_error(error, position) from error
        except NO_MEMORY as error:
            self._has_failed_sync = True
            self._raise_unnamed(error, position)
        if written != _total_size(buffers):
            self._write_rest(buffers, position, written, flags=platform.DSYNC_FLAG)

    def _write_then_sync(self, buffers: Sequence[Buffer], position: int) -> None:
        """The substitute where the system has no durable write."""
        self.write_all(buffers, position)
        self.fdatasync()

    def _write_rest(self, buffers: Sequence[Buffer], position: int, written: int, *, flags: int) -> None:
        """Continues after the ``written`` bytes of a short write."""
        # The views are released even if this raises: a stored exception must not pin the caller's buffer.
        with contextlib.ExitStack() as views:
            left = [views.enter_context(memoryview(buffer).cast("B")) for buffer in buffers]
            idle = 0
            skip = written
            position += written
            while True:
                while left and skip >= len(left[0]):
                    skip -= len(left.pop(0))
                if not left:
                    return
                if skip:
                    left[0] = views.enter_context(left[0][skip:])
                try:
                    skip = os.pwritev(self._fd, left[:BUFFERS_PER_WRITE], position, flags)
                except OSError as error:
                    if flags:
                        self._has_failed_sync = True
                        raise self._write_or_sync_error(error, position) from error
                    raise self._error(error, writing=True) from error
                except NO_MEMORY as error:
                    if flags:
                        self._has_failed_sync = True
                        self._raise_unnamed(error, position)
                    raise
                position += skip
                idle = 0 if skip else idle + 1
                if idle == 2:
                    stuck = OSError(errno.EIO, f"two writes at {position} took no byte, {len(left)} buffers are left")
                    raise self._error(stuck, writing=True)

    def _write_or_sync_error(self, error: OSError, position: int) -> KstoreError:
        """Determines which half of a synced write at ``position`` failed.

        A failed write adds no byte. If only the sync fails, the file has grown, and only then is the error a sync's; if
        the file already reached beyond ``position``, a failed sync is assumed: the worse of the two. The caller has
        noted a failed sync; if no sync failed, this takes the note back.
        """
        try:
            grown = os.fstat(self._fd).st_size > position
        except OSError:
            grown = self._fd >= 0
        if grown:
            return sync_error(error, self.path)
        self._has_failed_sync = False
        return self._error(error, writing=True)

    def _raise_unnamed(self, error: Exception, position: int) -> NoReturn:
        """After a synced write at ``position`` without an errno: memory lacked for its outcome, or for the call."""
        failed = self._write_or_sync_error(OSError(errno.EIO, f"unknown outcome: {error!r}"), position)
        raise failed if self._has_failed_sync else error

    def send_to(self, socket_fd: int, position: int, size: int) -> int:
        return os.sendfile(socket_fd, self._fd, position, size)

    def fdatasync(self) -> None:
        self._sync(platform.sync_data)

    def fsync(self) -> None:
        self._sync(platform.sync_all)

    def _sync(self, sync: Callable[[int], None]) -> None:
        if self._has_failed_sync:
            failed = OSError(errno.EIO, "a sync of this file has failed before, and is not repeated")
            raise sync_error(failed, self.path)
        fd = self.fileno()
        try:
            sync(fd)
        except OSError as error:
            # The first step, before any call: the system reports a failure once, and a signal that arrived during the
            # sync is handled at the next call. Its exception would replace the sync's.
            self._has_failed_sync = True
            raise sync_error(error, self.path) from error
        except NO_MEMORY:
            self._has_failed_sync = True  # there was no memory for the error: a success needs none
            raise

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._error(error, writing=True) from error

    def allocate(self, position: int, size: int) -> bool:
        return platform.reserve(self._fd, position, size)

    def advise(self, position: int, size: int, advice: Advice) -> None:
        platform.advise(self._fd, position, size, advice)

    def size(self) -> int:
        try:
            # Not by fstat: after a program reads a file's times, Linux gives it new ones at the next write. Nothing
            # uses the position that this moves.
            return os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            raise self._error(error) from error

    def next_data(self, position: int) -> int:
        """The first position at or after ``position`` that is not in a hole; the size if the rest is one."""
        try:
            return platform.seek_data(self._fd, position)
        except OSError as error:
            raise self._error(error) from error

    def stat(self) -> FileStat:
        try:
            return _file_stat(os.fstat(self._fd))
        except OSError as error:
            raise self._error(error) from error

    def inode(self) -> int:
        if self._inode is None:
            self._inode = self.stat().inode
        return self._inode

    def map(self, size: int) -> OsMapping:
        try:
            platform.fill(self._fd, size)
            return OsMapping(self, size)
        except OSError as error:
            raise self._error(error, writing=True) from error

    def fileno(self) -> int:
        if self._fd < 0:
            raise self._closed()
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError:
                # The descriptor is closed whatever close returned, and its error does not concern synced bytes.
                pass

    def _error(self, error: OSError, *, writing: bool = False) -> KstoreError:
        return self._closed() if self._fd < 0 else storage_error(error, self.path, writing=writing)

    def _closed(self) -> ClosedError:
        return ClosedError(f"{self.path}: the file is closed")


class OsFileSystem:
    """``FileSystem`` over the operating system."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> OsFile:
        assert write or not create, "a file is created to be written"
        flags = OPEN_FLAGS | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT | os.O_EXCL if create else 0)
        name = os.fspath(path)
        try:
            fd = relieved(os.open, name, flags, mode)
            file = OsFile(fd, name)
            stat = os.fstat(fd)
            if stat_module.S_ISREG(stat.st_mode):
                file._inode = stat.st_ino
                return file
            file.close()
            raise OSError(errno.EINVAL, "not a regular file")
        except OSError as error:
            raise storage_error(error, name, writing=write) from error

    def rename(self, source: PathLike, target: PathLike) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            raise storage_error(error, source, writing=True) from error

    def unlink(self, path: PathLike) -> None:
        try:
            os.unlink(path)
        except OSError as error:
            raise storage_error(error, path, writing=True) from error

    def sync_dir(self, path: PathLike) -> None:
        try:
            fd = relieved(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise storage_error(error, path) from error
        try:
            platform.sync_all(fd)
        except OSError as error:
            # EINVAL: this file system cannot sync a directory, so nothing more is possible.
            if error.errno != errno.EINVAL:
                raise sync_error(error, path) from error
        finally:
            os.close(fd)

    def list(self, path: PathLike) -> list[str]:
        try:
            return relieved(os.listdir, path)
        except OSError as error:
            raise storage_error(error, path) from error

    def stat(self, path: PathLike, *, follow_symlinks: bool = False) -> FileStat:
        try:
            return _file_stat(os.stat(path, follow_symlinks=follow_symlinks))
        except OSError as error:
            raise storage_error(error, path) from error

    def exists(self, path: PathLike) -> bool:
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise storage_error(error, path) from error
        return True

    def mkdir(self, path: PathLike, mode: int = 0o700) -> None:
        try:
            os.mkdir(path, mode)
        except OSError as error:
            raise storage_error(error, path, writing=True) from error

    def rmdir(self, path: PathLike) -> None:
        try:
            os.rmdir(path)
        except OSError as error:
            raise storage_error(error, path, writing=True) from error

    def set_mtime(self, path: PathLike, mtime_ns: int) -> None:
        try:
            os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)
        except OSError as error:
            raise storage_error(error, path, writing=True) from error


SYSTEM_FS = OsFileSystem()


def _total_size(buffers: Sequence[Buffer]) -> int:
    return sum([memoryview(buffer).nbytes for buffer in buffers])


def _file_stat(stat: os.stat_result) -> FileStat:
    mode = stat.st_mode
    return FileStat(
        stat.st_size,
        stat.st_mtime_ns,
        stat.st_ino,
        stat.st_dev,
        stat_module.S_ISREG(mode),
        stat_module.S_ISDIR(mode),
        stat.st_ctime_ns,
    )
