"""What a disk may hold after a power cut, made from the recorded file operations of a run.

    disk = Disk(root)                              # as it is before the run
    for operation in recording.operations[:k]:
        disk.apply(operation)
    disk.write_to(target, choose)                  # the run died there; ``choose`` says what of the unsynced persisted

The model is strict. A sync of a file makes its bytes and its size certain, not its name. A sync of a directory makes
the names in it certain. Of everything else any part may be there: each write in any of its 512-byte sectors, the size
with or without the bytes. Changes of names in one directory persist in their order, as journals do it. A store to a
mapping is a write that nobody has synced.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock
from uuid import uuid4

from kstore.files import boot
from tests.fake_fs import NO_INODE, Operation

__all__ = ["Choice", "Disk", "all_but", "another_boot", "everything", "nothing", "only", "some", "write_state"]

SECTOR_SIZE = 512

# Of ``count`` units that may or may not have persisted: which did. Names take the first so many, in their order.
Choice = Callable[[int], list[bool]]


def nothing(count: int) -> list[bool]:
    """The harshest disk: what was not synced is gone."""
    return [False] * count


def everything(count: int) -> list[bool]:
    """The kindest disk; what a process that was killed leaves."""
    return [True] * count


def all_but(number: int) -> Choice:
    """Everything persisted but one unit: the ``number``-th that is asked for."""
    return _single(number, is_kept=False)


def only(number: int) -> Choice:
    """Of all that was not synced one unit persisted: the ``number``-th that is asked for."""
    return _single(number, is_kept=True)


def _single(number: int, *, is_kept: bool) -> Choice:
    asked = 0

    def choose(count: int) -> list[bool]:
        nonlocal asked
        first, asked = asked, asked + count
        return [(at == number) == is_kept for at in range(first, asked)]

    return choose


def some(generator: random.Random) -> Choice:
    """A disk that wrote back some of it, in no order."""

    def choose(count: int) -> list[bool]:
        likely = generator.choice((0.1, 0.5, 0.9))
        return [generator.random() < likely for _ in range(count)]

    return choose


@dataclass(slots=True)
class _Change:
    """One unsynced change of a file: bytes at a position or, without bytes, a new size."""

    position: int
    data: bytes | None


@dataclass(slots=True)
class _Inode:
    durable: bytearray
    pending: list[_Change] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def sync_sizes(self) -> None:
        """Sizes persist in their order: one that is certain makes those before it certain."""
        pending, self.pending = self.pending, []
        for change in pending:
            if change.data is not None:
                self.pending.append(change)
                continue
            _apply(self.durable, change)
            self.pending = [
                _Change(before.position, before.data[: change.position - before.position])
                for before in self.pending
                if before.data is not None and before.position < change.position
            ]

    def content(self, choose: Choice) -> bytes:
        content = bytearray(self.durable)
        units = [unit for change in self.pending for unit in _units(change)]
        for unit, is_kept in zip(units, choose(len(units)), strict=True):
            if is_kept:
                _apply(content, unit)
        return bytes(content)


def _apply(content: bytearray, change: _Change) -> None:
    if change.data is None:
        del content[change.position :]
        content.extend(bytes(change.position - len(content)))
        return
    content.extend(bytes(max(change.position - len(content), 0)))
    content[change.position : change.position + len(change.data)] = change.data


def _units(change: _Change) -> Iterator[_Change]:
    """The parts of a change that may persist one without the other: its size, and each sector of it."""
    if change.data is None:
        yield change
        return
    at, stop = 0, len(change.data)
    while at < stop:
        size = min(SECTOR_SIZE - (change.position + at) % SECTOR_SIZE, stop - at)
        yield _Change(change.position + at, change.data[at : at + size])
        at += size


class Disk:
    """Files and names, certain and pending, below one directory."""

    def __init__(self, root: Path, *, is_empty: bool = False) -> None:
        """The disk as it is below ``root`` now or, with ``is_empty``, with nothing there."""
        self._root = root
        self._inodes: dict[int, _Inode] = {}
        # What is on disk for sure, and what the running process sees: paths to inodes, None for a directory.
        self._durable: dict[str, int | None] = {}
        self._pending: dict[str, list[tuple[str, int | None, bool]]] = {}
        self._seen: dict[str, int | None] = {}
        for path in () if is_empty else sorted(root.rglob("*")):
            if path.is_dir():
                self._durable[str(path)] = None
            else:
                inode = path.stat().st_ino
                self._inodes[inode] = _Inode(bytearray(path.read_bytes()))
                self._durable[str(path)] = inode
        self._seen.update(self._durable)

    def apply(self, operation: Operation) -> None:
        """Takes in the next thing that was done."""
        handler = getattr(self, f"_{operation.kind}", None)
        if handler is not None:
            handler(operation)

    def _name(self, path: str, inode: int | None, is_there: bool) -> None:
        if is_there:
            self._seen[path] = inode
        else:
            self._seen.pop(path, None)
        self._pending.setdefault(str(Path(path).parent), []).append((path, inode, is_there))

    def _create(self, operation: Operation) -> None:
        # A number that a deleted file had may come again.
        self._inodes[operation.inode] = _Inode(bytearray())
        self._name(operation.path, operation.inode, True)

    def _mkdir(self, operation: Operation) -> None:
        self._name(operation.path, None, True)

    def _unlink(self, operation: Operation) -> None:
        self._name(operation.path, self._seen.get(operation.path), False)

    def _rename(self, operation: Operation) -> None:
        inode = self._seen[operation.path]
        pending = self._pending.setdefault(str(Path(operation.path).parent), [])
        self._seen.pop(operation.path)
        self._seen[operation.target] = inode
        # Atomic: both names change, or none.
        pending.append((operation.path, inode, False))
        pending.append((operation.target, inode, True))

    def _sync_dir(self, operation: Operation) -> None:
        for path, inode, is_there in self._pending.pop(operation.path, []):
            _set(self._durable, path, inode, is_there)

    def _write(self, operation: Operation) -> None:
        self._inodes[operation.inode].pending.append(_Change(operation.position, operation.data))

    _pwrite = _write_all = _store = _write

    def _write_and_sync(self, operation: Operation) -> None:
        inode = self._inodes[operation.inode]
        inode.sync_sizes()
        # These bytes are certain, and the size that they need; others may still be pending.
        _apply(inode.durable, _Change(operation.position, operation.data))

    def _truncate(self, operation: Operation) -> None:
        self._inodes[operation.inode].pending.append(_Change(operation.size, None))

    def _map(self, operation: Operation) -> None:
        inode = self._inodes[operation.inode]
        if len(inode.content(everything)) < operation.size:
            inode.pending.append(_Change(operation.size, None))

    def _fsync(self, operation: Operation) -> None:
        self._inodes[operation.inode].sync()

    _fdatasync = _sync_mapping = _fsync

    def unit_count(self) -> int:
        """How many units may or may not have persisted."""
        sectors = sum(len(list(_units(change))) for inode in self._inodes.values() for change in inode.pending)
        return sectors + sum(map(len, self._pending.values()))

    def state(self, choose: Choice) -> dict[str, bytes | None]:
        """One of the states that the disk may be in: paths below the root to contents, None for a directory."""
        names = dict(self._durable)
        for changes in self._pending.values():
            kept = sum(choose(len(changes)))
            if 0 < kept < len(changes) and changes[kept - 1][1] == changes[kept][1] and not changes[kept - 1][2]:
                kept -= 1  # half a rename
            for path, inode, is_there in changes[:kept]:
                _set(names, path, inode, is_there)
        root = f"{self._root}/"
        return {
            path.removeprefix(root): None if inode is None else self._inodes[inode].content(choose)
            for path, inode in sorted(names.items())
            if path.startswith(root)
        }

    def write_to(self, target: Path, choose: Choice) -> None:
        """Writes one of the states that the disk may be in to ``target``, a directory in place of the root."""
        write_state(self.state(choose), target)


def write_state(state: dict[str, bytes | None], target: Path) -> None:
    """Writes what ``Disk.state`` gave to the directory ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    for name, content in state.items():
        path = target / name
        if content is None:
            path.mkdir(exist_ok=True)
        elif path.parent.is_dir():
            path.write_bytes(content)


def _set(names: dict[str, int | None], path: str, inode: int | None, is_there: bool) -> None:
    if is_there:
        names[path] = inode
    else:
        names.pop(path, None)


@contextmanager
def another_boot(directory: Path) -> Iterator[None]:
    """The machine has restarted: inside, the boot is another one. ``directory`` keeps its name."""
    path = directory / "boot_id"
    path.write_text(str(uuid4()))
    with mock.patch.object(boot, "LINUX_BOOT_ID", path):
        boot.boot_id.cache_clear()
        try:
            yield
        finally:
            boot.boot_id.cache_clear()


assert NO_INODE == 0
