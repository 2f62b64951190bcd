"""The possible contents of a disk after a power cut, made from the recorded file operations of a run.

    disk = Disk(root)                              # as it is before the run
    for operation in recording.operations[:k]:
        disk.apply(operation)
    disk.image(choose)                             # the run died here; ``choose`` says which unsynced parts persisted

The model is strict. A sync of a file makes its bytes and its size certain, not its name. A sync of a directory makes
the names in it certain. Any part of the rest may persist: each write in any of its 512-byte sectors, a sector up
to any byte, the size with or without the bytes, then with zeros or with garbage; each change of a name, in any order
(``names_in_order``: in the order of the changes, as in a journal). Where a write does not persist, the bytes that it
overwrote are still there. A store to a mapping is an unsynced write. Nothing that a failed sync should have saved is
ever certain.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from kstore.files import platform
from tests.support.fakes.fake_fs import Operation
from tests.support.harness.replaced import replaced

SECTOR_SIZE = 512
NOISE = random.Random(512).randbytes(SECTOR_SIZE)


class Torn(NamedTuple):
    """A sector whose first ``share`` persisted. ``filler`` is what the file grew by anyway.

    "": it did not grow; "zeros"; "noise"; "stale": the file's beginning again, so whole batches in a wrong place.
    """

    share: float
    filler: str


# Whether a unit persisted. A name that is "torn" did.
Fate = bool | Torn
# For ``count`` units that may or may not have persisted: the fate of each.
Choice = Callable[[int], Sequence[Fate]]


def nothing(count: int) -> list[bool]:
    """The harshest disk: what was not synced is gone."""
    return [False] * count


def everything(count: int) -> list[bool]:
    """The kindest disk; the state after a killed process."""
    return [True] * count


def all_but(number: int) -> Choice:
    """Everything persisted but one unit: the ``number``-th that is requested."""
    return one_is(number, False, others=True)


def only(number: int) -> Choice:
    """Only one unsynced unit persisted: the ``number``-th that is requested."""
    return one_is(number, True, others=False)


def one_is(number: int, fate: Fate, *, others: bool) -> Choice:
    """The ``number``-th requested unit has this fate; all others persisted, or none did."""
    asked = 0

    def choose(count: int) -> list[Fate]:
        nonlocal asked
        first, asked = asked, asked + count
        return [fate if at == number else others for at in range(first, asked)]

    return choose


def subset(bits: int) -> Choice:
    """The units whose bits are set persisted; bits follow the order of requests."""
    asked = 0

    def choose(count: int) -> list[bool]:
        nonlocal asked
        first, asked = asked, asked + count
        return [bool(bits >> at & 1) for at in range(first, asked)]

    return choose


def some(generator: random.Random, *, torn: bool = False) -> Choice:
    """A disk that wrote back some units, in no order; with ``torn`` also parts of sectors."""

    def choose(count: int) -> list[Fate]:
        likely = generator.choice((0.1, 0.5, 0.9))
        return [
            _any_fate(generator) if torn and generator.random() < 0.2 else generator.random() < likely
            for _ in range(count)
        ]

    return choose


def _any_fate(generator: random.Random) -> Fate:
    return Torn(generator.choice((0.0, generator.random())), generator.choice(("", "zeros", "noise", "stale")))


class Stored(NamedTuple):
    """A file as it is on disk."""

    data: bytes
    inode: int = 0
    mtime_ns: int = 0


# Paths below a root to contents, None for a directory; a directory comes before its contents.
Image = dict[str, Stored | None]


@dataclass(slots=True)
class _Unit:
    """The smallest unsynced change of a file: bytes within one sector or, without bytes, a new size.

    ``lost``: a sync of it has failed, and no later one makes it certain.
    """

    position: int
    data: bytes | None
    lost: bool = False


def _units(position: int, data: bytes) -> Iterator[_Unit]:
    """The parts of a write that may persist one without the other."""
    at, stop = 0, len(data)
    while at < stop:
        size = min(SECTOR_SIZE - (position + at) % SECTOR_SIZE, stop - at)
        yield _Unit(position + at, data[at : at + size])
        at += size


def _outside(unit: _Unit, position: int, size: int) -> Iterator[_Unit]:
    """The parts of ``unit`` that a later write of ``size`` bytes at ``position`` does not overwrite."""
    if unit.data is None:
        yield unit
        return
    start, stop = position - unit.position, position + size - unit.position
    if start > 0:
        yield _Unit(unit.position, unit.data[:start], unit.lost)
    if stop < len(unit.data):
        begin = max(stop, 0)
        yield _Unit(unit.position + begin, unit.data[begin:], unit.lost)


def _apply(content: bytearray, unit: _Unit) -> None:
    if unit.data is None:
        del content[unit.position :]
        content.extend(bytes(unit.position - len(content)))
        return
    content.extend(bytes(max(unit.position - len(content), 0)))
    content[unit.position : unit.position + len(unit.data)] = unit.data


def _apply_torn(content: bytearray, unit: _Unit, torn: Torn) -> None:
    if unit.data is None:
        _apply(content, unit)
        return
    stop = unit.position + len(unit.data)
    kept = unit.data[: int(len(unit.data) * torn.share)]
    head = bytes(content[:SECTOR_SIZE])
    if kept or torn.filler:
        _apply(content, _Unit(unit.position, kept))
    if torn.filler and len(content) < stop:
        missing = stop - len(content)
        source = {"zeros": b"", "noise": NOISE, "stale": head}[torn.filler]
        content.extend((source[:missing]).ljust(missing, b"\0"))


@dataclass(slots=True)
class _File:
    durable: bytearray
    number: int
    mtime_ns: int = 0
    pending: list[_Unit] = field(default_factory=list)
    # ``durable`` as bytes, as long as it stays the same.
    _known: bytes | None = None

    def change(self, units: Sequence[_Unit]) -> None:
        for unit in units:
            _apply(self.durable, unit)
        self._known = None

    def sync(self) -> None:
        self.sync_sizes()
        pending, self.pending = self.pending, []
        for unit in pending:
            if unit.lost:
                self.pending.append(unit)
            else:
                assert unit.data is not None, "the sizes are synced"
                self.settle(unit.position, unit.data)

    def settle(self, position: int, data: bytes) -> None:
        """These bytes are certain: no earlier write, lost or unsynced, comes back over them."""
        self.change(list(_units(position, data)))
        self.pending = [rest for unit in self.pending for rest in _outside(unit, position, len(data))]

    def sync_sizes(self) -> None:
        """Sizes persist in order: a certain one makes the earlier ones certain."""
        pending, self.pending = self.pending, []
        for unit in pending:
            if unit.data is not None or unit.lost:
                self.pending.append(unit)
                continue
            self.change([unit])
            self.pending = [
                _Unit(before.position, before.data and before.data[: unit.position - before.position], before.lost)
                for before in self.pending
                if before.position < unit.position
            ]

    def content(self, choose: Choice) -> bytes:
        if self.pending:
            content = bytearray(self.durable)
            for unit, fate in zip(self.pending, choose(len(self.pending)), strict=True):
                if isinstance(fate, Torn):
                    _apply_torn(content, unit, fate)
                elif fate:
                    _apply(content, unit)
            return bytes(content)
        if self._known is None:
            self._known = bytes(self.durable)
        return self._known


@dataclass(slots=True)
class _Directory:
    """``seen`` is what the running process sees; ``pending`` are changes; each changes all its names or none."""

    durable: dict[str, _Node] = field(default_factory=dict)
    seen: dict[str, _Node] = field(default_factory=dict)
    pending: list[dict[str, _Node | None]] = field(default_factory=list)

    def change(self, names: dict[str, _Node | None]) -> None:
        _set(self.seen, names)
        self.pending.append(names)

    def sync(self) -> None:
        for names in self.pending:
            _set(self.durable, names)
        self.pending = []


_Node = _File | _Directory


def _set(directory: dict[str, _Node], names: dict[str, _Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            directory.pop(name, None)
        else:
            directory[name] = node


class Disk:
    """Files and names, certain and pending, below one directory. Changes outside of it are ignored."""

    def __init__(
        self, root: Path, *, is_empty: bool = False, image: Image | None = None, names_in_order: bool = False
    ) -> None:
        """The disk with the present contents of ``root``, or empty, or with ``image``."""
        self._root_parts = root.parts
        self._root = _Directory()
        self._files: dict[int, _File] = {}
        self._names_in_order = names_in_order
        if image is None:
            image = {} if is_empty else _image_of(root)
        for path, stored in image.items():
            directory, name = self._place(root / path)
            assert directory is not None
            node: _Node = _Directory() if stored is None else self._file(stored)
            directory.durable[name] = directory.seen[name] = node

    def _file(self, stored: Stored) -> _File:
        file = self._files[stored.inode] = _File(bytearray(stored.data), stored.inode, stored.mtime_ns)
        return file

    def _place(self, path: str | Path) -> tuple[_Directory | None, str]:
        """The directory of a path, as the process sees it, and the name in it."""
        parts = Path(path).parts
        depth = len(self._root_parts)
        if parts[:depth] != self._root_parts or len(parts) == depth:
            return None, ""
        directory = self._root
        for name in parts[depth:-1]:
            inner = directory.seen[name]
            assert isinstance(inner, _Directory)
            directory = inner
        return directory, parts[-1]

    def apply(self, operation: Operation) -> None:
        """Adds the next operation."""
        handler = getattr(self, f"_{operation.kind}", None)
        if handler is not None:
            handler(operation)
            if operation.mtime_ns and operation.inode in self._files:
                self._files[operation.inode].mtime_ns = operation.mtime_ns

    @contextmanager
    def within(self, operation: Operation) -> Iterator[None]:
        """Inside, a write that syncs has started: any part of it may have persisted."""
        assert operation.kind == "write_and_sync"
        file = self._files[operation.inode]
        before = list(file.pending)
        self._write(operation)
        yield
        file.pending = before

    def _create(self, operation: Operation) -> None:
        # The number of a deleted file may be used again.
        directory, name = self._place(operation.path)
        if directory is not None:
            directory.change({name: self._file(Stored(b"", operation.inode))})

    def _mkdir(self, operation: Operation) -> None:
        directory, name = self._place(operation.path)
        if directory is not None:
            directory.change({name: _Directory()})

    def _unlink(self, operation: Operation) -> None:
        directory, name = self._place(operation.path)
        if directory is not None:
            directory.change({name: None})

    _rmdir = _unlink

    def _rename(self, operation: Operation) -> None:
        directory, name = self._place(operation.path)
        parent, target = self._place(operation.target)
        assert directory is not None
        assert directory is parent, "a move to another directory"
        directory.change({name: None, target: directory.seen[name]})

    def _sync_dir(self, operation: Operation) -> None:
        parent, _ = self._place(f"{operation.path}/.-")
        if parent is not None:
            parent.sync()

    def _write(self, operation: Operation) -> None:
        self._files[operation.inode].pending += _units(operation.position, operation.data)

    _pwrite = _write_all = _store = _write

    def _write_and_sync(self, operation: Operation) -> None:
        file = self._files[operation.inode]
        file.sync_sizes()
        # The size that these bytes need is certain, too. Others may still be pending, also in the same sectors.
        file.settle(operation.position, operation.data)

    def _truncate(self, operation: Operation) -> None:
        self._files[operation.inode].pending.append(_Unit(operation.size, None))

    def _map(self, operation: Operation) -> None:
        file = self._files[operation.inode]
        if len(file.content(everything)) < operation.size:
            file.pending.append(_Unit(operation.size, None))

    def _fsync(self, operation: Operation) -> None:
        self._files[operation.inode].sync()

    _fdatasync = _sync_mapping = _fsync

    def lose_sync(self, operation: Operation) -> None:
        """A sync of a file has failed: no later sync saves what it should have saved."""
        if operation.kind == "write_and_sync":
            self._write(operation)
        for unit in self._files[operation.inode].pending if operation.inode in self._files else ():
            unit.lost = True

    def rot(self, number: int, at: int, byte: int) -> None:
        """Byte ``at`` of the file with this inode, which was synced, has changed."""
        self._files[number].change([_Unit(at, bytes([byte]))])

    def drop_lost(self, choose: Choice, number: int | None = None) -> dict[int, bytes]:
        """The page cache drops what failed syncs left in it: only the part that ``choose`` selects was written.

        ``number``: only for this inode. Returns the contents of these files by inode, as every process sees them from
        now on.
        """
        seen = {}
        chosen = self._files if number is None else {number: self._files[number]}
        for number, file in chosen.items():
            lost = [unit for unit in file.pending if unit.lost]
            if lost:
                file.pending = [unit for unit in file.pending if not unit.lost]
                file.change([unit for unit, fate in zip(lost, choose(len(lost)), strict=True) if fate is True])
                seen[number] = file.content(everything)
        return seen

    def unit_count(self) -> int:
        """How many units may or may not have persisted."""
        return sum(self._unit_counts(self._root))

    def _unit_counts(self, directory: _Directory) -> Iterator[int]:
        yield len(directory.pending)
        nodes = {id(node): node for names in (directory.durable, directory.seen) for node in names.values()}
        for node in nodes.values():
            if isinstance(node, _Directory):
                yield from self._unit_counts(node)
            else:
                yield len(node.pending)

    def image(self, choose: Choice) -> Image:
        """One of the possible states of the disk."""
        image: Image = {}
        self._collect(self._root, "", choose, image, {})
        return image

    def _collect(
        self, directory: _Directory, prefix: str, choose: Choice, image: Image, read: dict[int, Stored]
    ) -> None:
        names = directory.durable
        if directory.pending:
            names = dict(names)
            fates = [bool(fate) for fate in choose(len(directory.pending))]
            if self._names_in_order:
                fates.sort(reverse=True)
            for change, is_kept in zip(directory.pending, fates, strict=True):
                if is_kept:
                    _set(names, change)
        for name in sorted(names):
            node = names[name]
            if isinstance(node, _Directory):
                image[prefix + name] = None
                self._collect(node, f"{prefix}{name}/", choose, image, read)
                continue
            # A file with two names, because only half of a rename persisted, has one content.
            if node.number not in read:
                read[node.number] = Stored(node.content(choose), node.number, node.mtime_ns)
            image[prefix + name] = read[node.number]

    def state(self, choose: Choice) -> dict[str, bytes | None]:
        """``image`` without what a copy lacks: paths below the root to contents, None for a directory."""
        image = self.image(choose)
        return {path: None if stored is None else stored.data for path, stored in image.items()}

    def write_to(self, target: Path, choose: Choice) -> None:
        """Writes one of the possible states of the disk to ``target``, a directory in place of the root."""
        write_state(self.state(choose), target)


def _image_of(root: Path) -> Image:
    image: Image = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        image[name] = None if path.is_dir() else Stored(path.read_bytes(), path.stat().st_ino)
    return image


def write_state(state: Mapping[str, bytes | None], target: Path) -> None:
    """Writes the result of ``Disk.state`` to the directory ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    for name, content in state.items():
        path = target / name
        if content is None:
            path.mkdir(exist_ok=True)
        elif path.parent.is_dir():
            path.write_bytes(content)


@contextmanager
def another_boot(directory: Path) -> Iterator[None]:
    """The machine has restarted: inside, the boot is another one. ``directory`` keeps its name."""
    path = directory / "boot_id"
    path.write_text(str(uuid4()))
    with replaced(platform, "LINUX_BOOT_ID", path):
        platform.boot_id.cache_clear()
        try:
            yield
        finally:
            platform.boot_id.cache_clear()
