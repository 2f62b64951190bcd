"""Staged files: what a task has encoded, next to the logs that it is for, until the driver's commit takes it.

    kstore.staged-<writer>-<batch>-<partition>-<attempt>-<random>.tmp      in the store's own directory

They are files and not a directory, since a broker exits at an unknown directory, and end in ``.tmp``, which a store and
a broker ignore. ``<writer>`` is a hash of the writer's name, the rest are Spark's numbers; the random part separates a
new driver's files from those of an old one that has not died yet. The layout, with the highest byte first::

    batches       whole batches, those of a partition together for every 32 MiB that the task wrote
    rows          one for each batch, those of a partition together, in the order in which they are appended
         8 position   4 size   4 number of records   4 delta of the greatest timestamp   4 the batch's CRC
    head          4 "KSTG"   2 layout, 1   4 number of partitions; then for each partition, in the order of its rows:
         2 size of the topic   topic   4 partition   4 number of batches   4 CRC-32C of its rows

The head's size and CRC travel to the driver in the ``StagedFile``, with the file's size. They confirm the head, it
confirms the rows, and they confirm the batches: so a message stays small, whatever was staged. A task reads what it
has staged once more, as the commit will, and has it on disk before it answers.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kstore.errors import ConfigError, CorruptFileError, FileMissingError, KstoreError, StorageError
from kstore.files.fs import File, FileSystem
from kstore.files.paths import TopicPartition
from kstore.record._codec import BatchBuffer, EncodedBatch
from kstore.record.crc import crc32c
from kstore.spark._staged import ROW_BYTES, take

logger = logging.getLogger(__name__)

NAME = re.compile(
    r"kstore\.staged-(?P<writer>[0-9a-f]{16})-(?P<batch>0|[1-9][0-9]{0,18})-(?P<partition>[0-9]{1,10})"
    r"-(?P<attempt>[0-9]{1,19})-[0-9a-f]{12}\.tmp",
    re.ASCII,
)
# How much a task gathers before it writes it, partition after partition: the more, the larger what a commit reads at
# once.
GROUP_BYTES = 32 << 20
# What one call of the system takes.
PARTS_PER_WRITE = 1024
# How much a task reads at a time when it checks its file.
CHECK_BYTES = 1 << 20

ROW = struct.Struct(">qiiiI")
HEAD = struct.Struct(">4sHI")
TOPIC_SIZE = struct.Struct(">H")
ENTRY = struct.Struct(">iiI")
MAGIC = b"KSTG"
LAYOUT = 1
assert ROW.size == ROW_BYTES
# Where a batch's header has its CRC.
CRC_AT = slice(17, 21)


class StagedName(NamedTuple):
    """The parts of a staged file's name."""

    writer: str
    batch_id: int
    partition: int
    attempt: int


class Rows(NamedTuple):
    """Where the rows of a partition are in a staged file, and the CRC-32C of them."""

    position: int
    size: int
    crc: int


class StagedFile(NamedTuple):
    """A file that a task has staged: its message to the driver. ``name`` is in the store's directory.

    ``times`` are the least and greatest timestamp of all records (ms). The last two have a default because an executor
    with an earlier release names none: see ``check_release``.
    """

    name: str
    host: str
    size: int
    head_size: int
    times: tuple[int, int]
    has_every_key: bool
    head_crc: int = -1
    record_count: int = -1


def writer_hash(writer_id: str) -> str:
    return hashlib.sha256(writer_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def staged_name(writer_id: str, batch_id: int, partition: int, attempt: int) -> str:
    """A name that no other file has."""
    return f"kstore.staged-{writer_hash(writer_id)}-{batch_id}-{partition}-{attempt}-{secrets.token_hex(6)}.tmp"


def parse_name(name: str) -> StagedName | None:
    match = NAME.fullmatch(name)
    if match is None:
        return None
    return StagedName(match["writer"], int(match["batch"]), int(match["partition"]), int(match["attempt"]))


class StagingFile:
    """A staged file that is being written. Created with its first write; ``discard`` removes it. Not thread-safe."""

    def __init__(self, fs: FileSystem, directory: Path, name: str, *, group_bytes: int = GROUP_BYTES) -> None:
        self._fs = fs
        self._path = directory / name
        self._group_bytes = group_bytes
        self._file: File | None = None
        self._is_created = False
        self._size = 0
        self._record_count = 0
        # The batches that wait, in the order in which they became full. The memory is used again for each group: fresh
        # memory takes twice the time.
        self._group = BatchBuffer()
        # Where each of them is in there, and what its row says besides its position in the file.
        self._waiting: dict[TopicPartition, list[tuple[int, tuple[int, int, int, int]]]] = {}
        self._rows: dict[TopicPartition, bytearray] = {}
        self._times: tuple[int, int] | None = None
        self._has_every_key = True

    def note(self, times: tuple[int, int], *, has_every_key: bool) -> None:
        """Notes the least and greatest timestamp of some rows (ms), and whether each of them has a key."""
        known = self._times or times
        self._times = min(known[0], times[0]), max(known[1], times[1])
        self._has_every_key = self._has_every_key and has_every_key

    def add(self, owner: TopicPartition, data: bytes, batch: EncodedBatch) -> None:
        """Adds a whole batch. Raises: DiskFullError, StorageError."""
        crc = int.from_bytes(data[CRC_AT], "big")
        row = len(data), batch.record_count, batch.max_timestamp_delta_offset, crc
        self._waiting.setdefault(owner, []).append((self._group.size, row))
        self._group.extend(data)
        self._record_count += batch.record_count
        if self._group.size >= self._group_bytes:
            self._write_group()

    def _write_group(self) -> None:
        """Writes what waits, the batches of each partition together."""
        parts = []
        position = self._size
        for owner in sorted(self._waiting):
            rows = self._rows.setdefault(owner, bytearray())
            for start, row in self._waiting[owner]:
                rows += ROW.pack(position, *row)
                position += row[0]
                parts.append(self._group.view(start, start + row[0]))
        self._append(parts)
        self._waiting.clear()
        self._group.clear()

    def _append(self, parts: Sequence[bytes | memoryview]) -> None:
        if self._file is None:
            self._file = self._fs.open(self._path, write=True, create=True)
            self._is_created = True
        for start in range(0, len(parts), PARTS_PER_WRITE):
            some = parts[start : start + PARTS_PER_WRITE]
            self._file.write_all(some, self._size)
            self._size += sum(map(len, some))

    def close(self) -> StagedFile | None:
        """What was staged, on disk; None if that is nothing, and no file exists.

        Raises: DiskFullError, StorageError; CorruptFileError if the file does not hold what was written to it.
        """
        if self._waiting:
            self._write_group()
        if self._file is None:
            return None
        head = self._head()
        self._append([*(bytes(self._rows[owner]) for owner in sorted(self._rows)), head])
        self._file.fdatasync()
        # On a network file system this makes the bytes visible elsewhere.
        self._file.close()
        self._file = None
        assert self._times is not None
        staged = StagedFile(
            self._path.name,
            socket.gethostname(),
            self._size,
            len(head),
            self._times,
            self._has_every_key,
            crc32c(head),
            self._record_count,
        )
        _check(self._fs, self._path.parent, staged)
        self._fs.sync_dir(self._path.parent)
        return staged

    def _head(self) -> bytes:
        head = bytearray(HEAD.pack(MAGIC, LAYOUT, len(self._rows)))
        for owner in sorted(self._rows):
            topic, rows = owner.topic.encode(), bytes(self._rows[owner])
            head += TOPIC_SIZE.pack(len(topic)) + topic
            head += ENTRY.pack(owner.partition, len(rows) // ROW.size, crc32c(rows))
        return bytes(head)

    def discard(self) -> None:
        """Removes the file, as far as possible."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._is_created:
            remove(self._fs, self._path.parent, [self._path.name])


def check_release(staged: StagedFile) -> None:
    """Raises: ConfigError if the file was staged by a release that lays it out otherwise."""
    if staged.record_count < 1:
        raise ConfigError(
            f"an executor on {staged.host} has staged its rows with an earlier release of kstore: the driver and all "
            "executors need the same one"
        )


def open_staged(fs: FileSystem, directory: Path, staged: StagedFile) -> File:
    """Opens what a task has staged. Raises: StorageError, FileMissingError with the reason; CorruptFileError."""
    path = directory / staged.name
    if parse_name(staged.name) is None:
        raise CorruptFileError("not the name of a staged file", path=path)
    try:
        file = fs.open(path)
    except FileMissingError as error:
        raise FileMissingError(
            error.errno,
            f"the driver on {socket.gethostname()} cannot see what an executor on {staged.host} has staged: the store "
            "must be on a file system that the driver and all executors share",
            str(path),
        ) from error
    size = file.size()
    if size != staged.size:
        file.close()
        raise CorruptFileError(f"a staged file of {size} bytes, expected the {staged.size} that were staged", path=path)
    return file


def read_head(file: File, staged: StagedFile) -> dict[TopicPartition, Rows]:
    """Where the rows of each partition are. Raises: CorruptFileError, StorageError."""
    start = staged.size - staged.head_size
    head = file.pread(staged.head_size, start) if 0 <= start < staged.size else b""
    if not head or len(head) != staged.head_size or crc32c(head) != staged.head_crc:
        raise CorruptFileError("not the table that was staged", path=file.path, position=max(start, 0))
    try:
        entries = list(_entries(head))
    except (struct.error, ValueError) as error:
        raise CorruptFileError(f"not the head of a staged file: {error}", path=file.path, position=start) from error
    position = start - sum(size for _, size, _ in entries)
    found = {}
    for owner, size, crc in entries:
        found[owner] = Rows(position, size, crc)
        position += size
    return found


def _entries(head: bytes) -> Iterator[tuple[TopicPartition, int, int]]:
    magic, layout, count = HEAD.unpack_from(head)
    if (magic, layout) != (MAGIC, LAYOUT):
        raise ValueError(f"it starts with {magic!r} and layout {layout}, expected {MAGIC!r} and {LAYOUT}")
    at = HEAD.size
    for _ in range(count):
        (size,) = TOPIC_SIZE.unpack_from(head, at)
        at += TOPIC_SIZE.size + size
        partition, batch_count, crc = ENTRY.unpack_from(head, at)
        yield TopicPartition(head[at - size : at].decode(), partition), batch_count * ROW.size, crc
        at += ENTRY.size


def read_rows(file: File, rows: Rows) -> bytes:
    """The rows of a partition, at least one. Raises: CorruptFileError, StorageError."""
    data = file.pread(rows.size, rows.position) if rows.size > 0 <= rows.position else b""
    if not data or len(data) != rows.size or crc32c(data) != rows.crc:
        raise CorruptFileError("not the rows that were staged", path=file.path, position=max(rows.position, 0))
    return data


def _check(fs: FileSystem, directory: Path, staged: StagedFile) -> None:
    """Reads a file as a commit will. Raises: CorruptFileError, StorageError."""
    file = open_staged(fs, directory, staged)
    buffer = BatchBuffer(CHECK_BYTES)
    batches: list[EncodedBatch] = []
    codecs: set[int] = set()
    try:
        for rows in read_head(file, staged).values():
            data, index = read_rows(file, rows), 0
            while index * ROW.size < len(data):
                index, _ = take(file, data, index, CHECK_BYTES, buffer, batches, codecs, 0, 0, 0)
                buffer.clear()
                batches.clear()
    finally:
        file.close()


def remove(fs: FileSystem, directory: Path, names: Iterable[str]) -> None:
    """Removes staged files; what cannot be removed is left to the next sweep."""
    for name in names:
        try:
            if parse_name(name) is not None:
                fs.unlink(directory / name)
        except FileMissingError:
            pass
        except StorageError as error:
            logger.warning("a staged file remains: %s", error)


def sweep(fs: FileSystem, directory: Path, *, writer_id: str, committed: int, now_ms: int, retention_ms: int) -> int:
    """Removes files that no commit needs any more: those of the writer's batches up to ``committed``, and any writer's
    that are older than ``retention_ms``. Returns their number."""
    own = writer_hash(writer_id)
    doomed = []
    try:
        for name, found in _staged_in(fs, directory):
            is_done = found.writer == own and found.batch_id <= committed
            if is_done or now_ms - _mtime_ms(fs, directory / name, now_ms) > retention_ms:
                doomed.append(name)
    except KstoreError as error:
        logger.warning("staged files were not swept: %s", error)
    remove(fs, directory, doomed)
    return len(doomed)


def _staged_in(fs: FileSystem, directory: Path) -> Iterator[tuple[str, StagedName]]:
    for name in sorted(fs.list(directory)):
        found = parse_name(name)
        if found is not None:
            yield name, found


def _mtime_ms(fs: FileSystem, path: Path, missing: int) -> int:
    try:
        return fs.stat(path).mtime_ns // 1_000_000
    except FileMissingError:
        return missing
