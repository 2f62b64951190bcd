"""A file system in memory: for tests that open a log thousands of times, each time on another disk.

    fs = MemoryFs(root, image)                  # ``image`` as of ``crash_states.Disk``
    with in_memory() as machine:
        Log(root / "log", fs=fs)
        machine.restart()                       # the boot is another one

Files have the inodes and times of the image, so that a cleanly closed log is recognised. Locks are the operating
system's: ``in_memory`` replaces them with ones that are always free.
"""

from __future__ import annotations

import errno
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar
from uuid import UUID, uuid4

from kstore import store
from kstore.archive import target as backup_target
from kstore.engine import writer as log_writer
from kstore.errors import ClosedError, PathLike
from kstore.files import platform
from kstore.files.fs import Advice, FileStat, FileSystem, storage_error
from kstore.logs import directory as log_dir
from kstore.shared import opening as log_shared_open
from tests.support.fakes.crash_states import Image, Stored
from tests.support.fakes.fake_fs import Operation, RecordingFs, Result
from tests.support.fakes.without_flusher import NoFlusher
from tests.support.harness.replaced import replaced

if TYPE_CHECKING:
    from typing_extensions import Buffer

Item = TypeVar("Item")

DEVICE = 1
# The manual clock's first moment: times of files are near those of records.
FIRST_MTIME_NS = 1_700_000_000_000_000_000
TICK_NS = 1_000


class _Inode:
    """A file: ``data`` is bytes until it is first changed, so that a disk costs only the files that are changed."""

    __slots__ = ("data", "mtime_ns", "number")

    def __init__(self, number: int, data: bytes, mtime_ns: int) -> None:
        self.number = number
        self.data: bytes | bytearray = data
        self.mtime_ns = mtime_ns

    def changing(self) -> bytearray:
        if isinstance(self.data, bytes):
            self.data = bytearray(self.data)
        return self.data

    def write(self, data: bytes, position: int) -> None:
        own = self.changing()
        if len(own) < position:
            own.extend(bytes(position - len(own)))
        own[position : position + len(data)] = data

    def resize(self, size: int) -> None:
        own = self.changing()
        del own[size:]
        own.extend(bytes(size - len(own)))

    def stat(self) -> FileStat:
        return FileStat(len(self.data), self.mtime_ns, self.number, DEVICE, True, False)


class MemoryMapping:
    """``Mapping`` over an inode."""

    def __init__(self, path: str, inode: _Inode, size: int) -> None:
        self._path = path
        self._inode: _Inode | None = inode
        self.size = size

    def _mapped(self) -> _Inode:
        if self._inode is None:
            raise ClosedError(f"{self._path}: the mapping is closed")
        return self._inode

    def __getitem__(self, at: slice) -> bytes:
        start, stop, _ = at.indices(self.size)
        return bytes(self._mapped().data[start:stop])

    def read(self, position: int, size: int) -> bytes:
        return self[position : position + size]

    def store(self, position: int, data: bytes) -> None:
        assert position + len(data) <= self.size, "a store past the mapping"
        self._mapped().write(data, position)

    def sync(self) -> None:
        self._mapped()

    def close(self) -> None:
        self._inode = None


class MemoryFile:
    """``File`` over an inode; it needs no closing."""

    def __init__(self, fs: MemoryFs, path: str, inode: _Inode, *, write: bool) -> None:
        self.path = path
        self._fs = fs
        self._inode: _Inode | None = inode
        self._write = write

    def _opened(self, *, writing: bool = False) -> _Inode:
        if self._inode is None:
            raise ClosedError(f"{self.path}: the file is closed")
        if writing:
            assert self._write, f"{self.path} is open for reading"
            self._inode.mtime_ns = self._fs.tick()
        return self._inode

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self._opened().data[position : position + size])

    def pwrite(self, data: Buffer, position: int) -> int:
        written = bytes(data)
        self._opened(writing=True).write(written, position)
        return len(written)

    def write_all(self, buffers: Sequence[Buffer], position: int) -> None:
        self._opened(writing=True).write(b"".join(buffers), position)

    write_and_sync = write_all

    def send_to(self, socket_fd: int, position: int, size: int) -> int:
        return os.write(socket_fd, self.pread(size, position))

    def fdatasync(self) -> None:
        self._opened()

    fsync = fdatasync

    def truncate(self, size: int) -> None:
        self._opened(writing=True).resize(size)

    def allocate(self, position: int, size: int) -> bool:
        return True

    def advise(self, position: int, size: int, advice: Advice) -> None:
        """Nothing to advise."""

    def size(self) -> int:
        return len(self._opened().data)

    def stat(self) -> FileStat:
        return self._opened().stat()

    def inode(self) -> int:
        return self._opened().number

    def map(self, size: int) -> MemoryMapping:
        inode = self._opened(writing=True)
        if len(inode.data) < size:
            inode.resize(size)
        return MemoryMapping(self.path, inode, size)

    def fileno(self) -> int:
        raise AssertionError("a file in memory has no descriptor")

    def close(self) -> None:
        self._inode = None


class MemoryFs:
    """``FileSystem`` in memory, below ``root``, which exists. Not thread-safe."""

    def __init__(self, root: Path, image: Image | None = None) -> None:
        self._root = str(root)
        # None is a directory.
        self._nodes: dict[str, _Inode | None] = {str(path): None for path in (root, *root.parents)}
        self._last_number = 0
        self._now_ns = FIRST_MTIME_NS
        self._by_number: dict[int, _Inode] = {}
        for name, stored in (image or {}).items():
            node = None
            if stored is not None:
                node = self._by_number.get(stored.inode) or self._new(stored.inode, stored.data, stored.mtime_ns)
                self._last_number = max(self._last_number, stored.inode)
                self._now_ns = max(self._now_ns, stored.mtime_ns)
            self._nodes[f"{self._root}/{name}"] = node

    def image(self) -> Image:
        """The present contents."""
        return {
            path.removeprefix(f"{self._root}/"): Stored(bytes(node.data), node.number, node.mtime_ns) if node else None
            for path, node in sorted(self._nodes.items())
            if path.startswith(f"{self._root}/")
        }

    def tick(self) -> int:
        self._now_ns += TICK_NS
        return self._now_ns

    def _new(self, number: int, data: bytes, mtime_ns: int) -> _Inode:
        inode = self._by_number[number] = _Inode(number, data, mtime_ns)
        return inode

    def mtime_ns_of(self, number: int) -> int:
        """For the file with this inode, even if its name is gone."""
        return self._by_number[number].mtime_ns

    def put_back(self, number: int, data: bytes) -> None:
        """Gives the file with this inode this content, with its old time."""
        self._by_number[number].data = data

    def _error(self, code: int, path: PathLike) -> Exception:
        return storage_error(OSError(code, os.strerror(code)), path, writing=True)

    def _inode(self, path: PathLike) -> _Inode:
        node = self._node(path)
        if node is None:
            raise self._error(errno.EISDIR, path)
        return node

    def _node(self, path: PathLike) -> _Inode | None:
        try:
            return self._nodes[os.fspath(path)]
        except KeyError:
            raise self._error(errno.ENOENT, path) from None

    def _ensure_free(self, path: PathLike) -> str:
        name = os.fspath(path)
        if name in self._nodes:
            raise self._error(errno.EEXIST, path)
        if self._node(Path(name).parent) is not None:
            raise self._error(errno.ENOTDIR, path)
        return name

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> MemoryFile:
        if create:
            name = self._ensure_free(path)
            self._last_number += 1
            self._nodes[name] = self._new(self._last_number, b"", self.tick())
        return MemoryFile(self, os.fspath(path), self._inode(path), write=write)

    def rename(self, source: PathLike, target: PathLike) -> None:
        old, new = os.fspath(source), os.fspath(target)
        node = self._node(source)
        if node is None:
            self._ensure_free(target)
            for path in [path for path in self._nodes if path.startswith(f"{old}/")]:
                self._nodes[new + path.removeprefix(old)] = self._nodes.pop(path)
        self._nodes[new] = node
        if new != old:
            del self._nodes[old]

    def unlink(self, path: PathLike) -> None:
        self._inode(path)
        del self._nodes[os.fspath(path)]

    def sync_dir(self, path: PathLike) -> None:
        if self._node(path) is not None:
            raise self._error(errno.ENOTDIR, path)

    def list(self, path: PathLike) -> list[str]:
        self.sync_dir(path)
        prefix = f"{os.fspath(path)}/"
        at = len(prefix)
        return [name[at:] for name in self._nodes if name.startswith(prefix) and "/" not in name[at:]]

    def stat(self, path: PathLike, *, follow_symlinks: bool = False) -> FileStat:
        node = self._node(path)
        return FileStat(0, 0, 0, DEVICE, False, True) if node is None else node.stat()

    def exists(self, path: PathLike) -> bool:
        return os.fspath(path) in self._nodes

    def mkdir(self, path: PathLike, mode: int = 0o700) -> None:
        self._nodes[self._ensure_free(path)] = None

    def rmdir(self, path: PathLike) -> None:
        if self.list(path):
            raise self._error(errno.ENOTEMPTY, path)
        del self._nodes[os.fspath(path)]

    def set_mtime(self, path: PathLike, mtime_ns: int) -> None:
        self._inode(path).mtime_ns = mtime_ns


class MemoryRecording(RecordingFs):
    """Records what is done in memory, with the times that files then have."""

    def __init__(self, memory: MemoryFs, inner: FileSystem | None = None) -> None:
        """``inner`` is between this one and ``memory``."""
        super().__init__(inner or memory)
        self.memory = memory

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        result = super().perform(operation, action)
        done = self.operations[-1]
        number, mtime_ns = done.inode, 0
        if done.kind == "set_mtime":
            stat = self.memory.stat(done.path)
            number, mtime_ns = stat.inode, stat.mtime_ns
        elif number:
            mtime_ns = self.memory.mtime_ns_of(number)
        self.operations[-1] = replace(done, inode=number, mtime_ns=mtime_ns)
        return result


class _FreeLock:
    """Replaces ``DirectoryLock``: a disk in memory has one user."""

    def __init__(self, directory: PathLike, *, kind: str = "log", mode: int = 0o600, shared: bool = False) -> None:
        assert not shared, "a disk in memory has one user"
        self.directory = directory
        self.held = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def release(self) -> None:
        self.held = False

    def check(self) -> None:
        assert self.held


class _FreeSharedLock(_FreeLock):
    """Replaces a shared lock: its turn is always free, since one thread does everything; it knows its users."""

    live: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, directory: PathLike, *, kind: str = "log", mode: int = 0o600, shared: bool = False) -> None:
        assert shared
        super().__init__(directory)
        self._name = os.fspath(directory)
        self._has_turn = False

    def take_turn(self) -> None:
        self._has_turn = True

    def try_turn(self) -> bool:
        self._has_turn = True
        return True

    def end_turn(self) -> None:
        self._has_turn = False

    def go_live(self) -> None:
        assert self._has_turn
        self.live.append((self._name, id(self)))

    def others_live(self) -> bool:
        return any(name == self._name and who != id(self) for name, who in self.live)

    def release(self) -> None:
        super().release()
        self.live[:] = [one for one in self.live if one != (self._name, id(self))]


def _free_lock(directory: PathLike, *, kind: str = "log", mode: int = 0o600, shared: bool = False) -> _FreeLock:
    """The lock of a store."""
    return (_FreeSharedLock if shared else _FreeLock)(directory, kind=kind, mode=mode, shared=shared)


def _in_turn(work: Callable[[Item], object], items: Iterable[Item], *, count: int, name: str) -> None:
    """Replaces ``side_by_side``: one item after another, in the same order each time."""
    for item in items:
        work(item)


class Machine:
    """The machine of the tests' logs: it restarts on command."""

    def __init__(self, generator: random.Random | None = None) -> None:
        """``generator``: the source of boot names; by default they differ each time."""
        self._generator = generator
        self._boot_id = self._new_id()

    def _new_id(self) -> str:
        return str(uuid4() if self._generator is None else UUID(int=self._generator.getrandbits(128)))

    def end_processes(self) -> None:
        """No process has a log open any more, however it ended."""
        _FreeSharedLock.live.clear()

    def restart(self) -> None:
        self.end_processes()
        self._boot_id = self._new_id()
        platform.boot_id.cache_clear()

    def read_text(self, encoding: str) -> str:
        """The content of the file that identifies the boot."""
        return self._boot_id


@contextmanager
def in_memory(generator: random.Random | None = None) -> Iterator[Machine]:
    """Inside, logs and stores lock nothing, log nothing, have no threads, and the machine can be restarted.

    ``generator``: see ``Machine``.
    """
    machine = Machine(generator)
    package = logging.getLogger("kstore")
    level = package.level
    with ExitStack() as stack:
        for module, name, fake in (
            (log_writer, "Flusher", NoFlusher),
            (log_writer, "lock_log", _FreeLock),
            (log_writer, "lock_in_store", lambda directory, root, **how: _FreeLock(directory, **how)),
            (log_shared_open, "lock_log", _FreeSharedLock),
            (log_shared_open, "lock_past_lone_writers", _FreeSharedLock),
            (log_dir, "DirectoryLock", _free_lock),
            (backup_target, "DirectoryLock", _free_lock),
            (log_dir, "lock_past_lone_writers", _free_lock),
            (store, "side_by_side", _in_turn),
            (platform, "LINUX_BOOT_ID", machine),
        ):
            stack.enter_context(replaced(module, name, fake))
        platform.boot_id.cache_clear()
        # Otherwise each of thousands of recoveries would log itself.
        package.setLevel(logging.CRITICAL)
        try:
            yield machine
        finally:
            package.setLevel(level)
            platform.boot_id.cache_clear()
