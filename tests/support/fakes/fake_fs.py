"""File systems for tests: one that records its requests, one that fails on demand.

Both wrap another file system and can be stacked. An operation is described before it is done::

    fs = RecordingFs(SYSTEM_FS)                     # fs.operations: what was done, with every byte written
    fs = FailingFs(SYSTEM_FS, Fault(at=3))          # the third operation that changes something fails with EIO
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

from kstore.errors import PathLike
from kstore.files.fs import Advice, File, FileStat, FileSystem, Mapping, storage_error, sync_error
from kstore.files.local import SYSTEM_FS

if TYPE_CHECKING:
    from typing_extensions import Buffer

Result = TypeVar("Result")

WRITES = frozenset({"pwrite", "write_all", "write_and_sync"})
SYNCS = frozenset({"fdatasync", "fsync", "sync_dir", "sync_mapping"})
READS = frozenset({"open", "pread", "list", "stat"})
# Stores to a mapping cannot fail: their blocks were allocated first.
CHANGES = WRITES | SYNCS | {"create", "truncate", "allocate", "map", "rename", "unlink", "mkdir", "rmdir", "set_mtime"}

NO_INODE = 0


@dataclass(frozen=True, slots=True)
class Operation:
    """One request to a file system: ``size`` and ``position`` in bytes, ``data`` what was written or stored.

    ``mtime_ns`` is the file's afterwards, if a recording has it.
    """

    kind: str
    path: str
    inode: int = NO_INODE
    position: int = 0
    size: int = 0
    data: bytes = b""
    target: str = ""
    mtime_ns: int = 0


class WatchedFs:
    """Passes every operation on, through ``perform``."""

    def __init__(self, inner: FileSystem = SYSTEM_FS) -> None:
        self.inner = inner

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        """Does ``action``; a subclass observes, or does something else."""
        return action()

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> File:
        name = os.fspath(path)
        opened: list[File] = []

        def action() -> int:
            opened.append(self.inner.open(path, write=write, create=create, mode=mode))
            return opened[0].stat().inode

        inode = self.perform(Operation("create" if create else "open", name), action)
        return WatchedFile(self, opened[0], inode)

    def rename(self, source: PathLike, target: PathLike) -> None:
        operation = Operation("rename", os.fspath(source), target=os.fspath(target))
        self.perform(operation, lambda: self.inner.rename(source, target))

    def unlink(self, path: PathLike) -> None:
        self.perform(Operation("unlink", os.fspath(path)), lambda: self.inner.unlink(path))

    def sync_dir(self, path: PathLike) -> None:
        self.perform(Operation("sync_dir", os.fspath(path)), lambda: self.inner.sync_dir(path))

    def list(self, path: PathLike) -> list[str]:
        return self.perform(Operation("list", os.fspath(path)), lambda: self.inner.list(path))

    def stat(self, path: PathLike, *, follow_symlinks: bool = False) -> FileStat:
        operation = Operation("stat", os.fspath(path))
        return self.perform(operation, lambda: self.inner.stat(path, follow_symlinks=follow_symlinks))

    def exists(self, path: PathLike) -> bool:
        return self.perform(Operation("stat", os.fspath(path)), lambda: self.inner.exists(path))

    def mkdir(self, path: PathLike, mode: int = 0o700) -> None:
        self.perform(Operation("mkdir", os.fspath(path)), lambda: self.inner.mkdir(path, mode))

    def rmdir(self, path: PathLike) -> None:
        self.perform(Operation("rmdir", os.fspath(path)), lambda: self.inner.rmdir(path))

    def set_mtime(self, path: PathLike, mtime_ns: int) -> None:
        self.perform(Operation("set_mtime", os.fspath(path)), lambda: self.inner.set_mtime(path, mtime_ns))


class WatchedFile:
    """A file whose operations go through its file system's ``perform``."""

    def __init__(self, fs: WatchedFs, inner: File, inode: int) -> None:
        self._fs = fs
        self.inner = inner
        self.number = inode

    @property
    def path(self) -> str:
        return self.inner.path

    def _perform(
        self, kind: str, action: Callable[[], Result], *, position: int = 0, size: int = 0, data: bytes = b""
    ) -> Result:
        return self._fs.perform(Operation(kind, self.path, self.number, position, size, data), action)

    def pread(self, size: int, position: int) -> bytes:
        return self._perform("pread", lambda: self.inner.pread(size, position), position=position, size=size)

    def pwrite(self, data: Buffer, position: int) -> int:
        written = bytes(data)
        return self._perform("pwrite", lambda: self.inner.pwrite(data, position), position=position, data=written)

    def write_all(self, buffers: Sequence[Buffer], position: int) -> None:
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._perform("write_all", lambda: self.inner.write_all(buffers, position), position=position, data=data)

    def write_and_sync(self, buffers: Sequence[Buffer], position: int) -> None:
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._perform(
            "write_and_sync", lambda: self.inner.write_and_sync(buffers, position), position=position, data=data
        )

    def send_to(self, socket_fd: int, position: int, size: int) -> int:
        return self.inner.send_to(socket_fd, position, size)

    def fdatasync(self) -> None:
        self._perform("fdatasync", self.inner.fdatasync)

    def fsync(self) -> None:
        self._perform("fsync", self.inner.fsync)

    def truncate(self, size: int) -> None:
        self._perform("truncate", lambda: self.inner.truncate(size), size=size)

    def allocate(self, position: int, size: int) -> bool:
        return self._perform("allocate", lambda: self.inner.allocate(position, size), position=position, size=size)

    def advise(self, position: int, size: int, advice: Advice) -> None:
        self._perform("advise", lambda: self.inner.advise(position, size, advice), position=position, size=size)

    def size(self) -> int:
        return self.inner.size()

    def stat(self) -> FileStat:
        return self.inner.stat()

    def inode(self) -> int:
        return self.inner.inode()

    def map(self, size: int) -> Mapping:
        return WatchedMapping(self, self._perform("map", lambda: self.inner.map(size), size=size))

    def fileno(self) -> int:
        return self.inner.fileno()

    def close(self) -> None:
        self._perform("close", self.inner.close)


class WatchedMapping:
    """A mapping whose stores are seen as unsynced writes."""

    def __init__(self, file: WatchedFile, inner: Mapping) -> None:
        self._file = file
        self.inner = inner

    @property
    def size(self) -> int:
        return self.inner.size

    def __getitem__(self, at: slice) -> bytes:
        return self.inner[at]

    def store(self, position: int, data: bytes) -> None:
        self._file._perform("store", lambda: self.inner.store(position, data), position=position, data=bytes(data))

    def read(self, position: int, size: int) -> bytes:
        return self.inner.read(position, size)

    def sync(self) -> None:
        self._file._perform("sync_mapping", self.inner.sync)

    def close(self) -> None:
        self.inner.close()


class RecordingFs(WatchedFs):
    """Keeps what was done, in order, without failures."""

    def __init__(self, inner: FileSystem = SYSTEM_FS) -> None:
        super().__init__(inner)
        self.operations: list[Operation] = []

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        result = action()
        if operation.kind in ("create", "open"):
            assert isinstance(result, int)
            operation = Operation(operation.kind, operation.path, inode=result)
        self.operations.append(operation)
        return result

    def mark(self, what: str, number: int = 0) -> None:
        """Puts a mark between the operations: "from here on, offset ``number`` is acknowledged"."""
        self.operations.append(Operation(f"mark {what}", "", position=number))

    def kinds(self, *, of: frozenset[str] = CHANGES | {"store"}) -> list[str]:
        """The kinds of operations, by default of those that change something, in order."""
        return [operation.kind for operation in self.operations if operation.kind in of]


@dataclass(slots=True)
class Fault:
    """Which operation fails, and how.

    The ``at``-th (from 1) of those whose kind is in ``kinds`` and whose path ends with ``suffix`` fails with ``errno``,
    or with ``raising``; with ``sticky`` every later one too. The first ``written`` bytes of a failed write reach the
    file (a function returns how many). ``write_and_sync`` with ``written`` None writes all and fails in its sync.
    ``allocate`` just reports False.
    """

    at: int
    errno: int = errno.EIO
    sticky: bool = False
    written: int | Callable[[int], int] | None = 0
    kinds: frozenset[str] = CHANGES
    suffix: str = ""
    raising: BaseException | None = None
    seen: int = field(default=0, init=False)

    def strikes(self, operation: Operation) -> bool:
        if operation.kind not in self.kinds or not operation.path.endswith(self.suffix):
            return False
        self.seen += 1
        return self.seen == self.at or (self.sticky and self.seen > self.at)


class FailingFs(WatchedFs):
    """Fails according to its ``faults``; ``failures`` are the failed operations. Faults may be added at any time.

    ``second_syncs`` are the syncs of a file or directory that were requested after one of it had failed.
    """

    def __init__(self, inner: FileSystem = SYSTEM_FS, *faults: Fault) -> None:
        super().__init__(inner)
        self.faults = list(faults)
        self.failures: list[Operation] = []
        self.second_syncs: list[Operation] = []
        self._unsyncable: set[str] = set()

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind in SYNCS | {"write_and_sync"} and operation.path in self._unsyncable:
            self.second_syncs.append(operation)
        striking = [fault for fault in self.faults if fault.strikes(operation)]
        if not striking:
            result = action()
            # A new file of an old name has had no failed sync.
            if operation.kind in ("create", "unlink"):
                self._unsyncable.discard(operation.path)
            return result
        self.failures.append(operation)
        if operation.kind == "allocate":
            return cast(Result, False)
        raise self._failure(striking[0], operation)

    def forget_syncs(self) -> None:
        """The process that saw syncs fail is gone: the next one reads the disk before it trusts anything."""
        self._unsyncable.clear()

    def _failure(self, fault: Fault, operation: Operation) -> BaseException:
        if operation.kind in WRITES:
            written, size = fault.written, len(operation.data)
            self._write_part(operation, size if written is None else written(size) if callable(written) else written)
        if fault.raising is not None:
            return fault.raising
        error = OSError(fault.errno, os.strerror(fault.errno))
        if operation.kind in SYNCS or (operation.kind == "write_and_sync" and fault.written is None):
            self._unsyncable.add(operation.path)
            return sync_error(error, operation.path)
        return storage_error(error, operation.path, writing=operation.kind not in READS)

    def _write_part(self, operation: Operation, size: int) -> None:
        if size:
            file = self.inner.open(operation.path, write=True)
            file.write_all([operation.data[:size]], operation.position)
