"""Staged files: what a task has encoded, beside the logs that it is for, until the driver's commit takes it.

    kstore.staged-<writer>-<batch>-<partition>-<attempt>-<random>.tmp      in the store's own directory

They are files and not a directory, since a broker exits at an unknown directory, and end in ``.tmp``, which a store and
a broker ignore. ``<writer>`` is a hash of the writer's name, the rest are Spark's numbers; the random part separates a
new driver's files from those of an old one that has not died yet. A file holds whole batches of all the task's
partitions, in the order in which they became full; the places of the batches, and a checksum, travel to the driver in
the ``StagedFile``. Nothing is synced: Spark repeats a commit that does not find its files, with all its tasks.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from kstore.errors import CorruptFileError, FileMissingError, KstoreError, StorageError
from kstore.files.fs import File, FileSystem
from kstore.files.paths import TopicPartition
from kstore.record._codec import EncodedBatch
from kstore.record.batch import batch_crc

__all__ = [
    "Span",
    "StagedFile",
    "StagedName",
    "StagingFile",
    "open_staged",
    "read_span",
    "remove",
    "staged_name",
    "sweep",
]

logger = logging.getLogger(__name__)

NAME = re.compile(
    r"kstore\.staged-(?P<writer>[0-9a-f]{16})-(?P<batch>0|[1-9][0-9]{0,18})-(?P<partition>[0-9]{1,10})"
    r"-(?P<attempt>[0-9]{1,19})-[0-9a-f]{12}\.tmp",
    re.ASCII,
)
# How much is gathered before it is written.
WRITE_BYTES = 1 << 20


class StagedName(NamedTuple):
    """The parts of a staged file's name."""

    writer: str
    batch_id: int
    partition: int
    attempt: int


class Span(NamedTuple):
    """One batch in a staged file; ``crc`` covers all its bytes.

    ``max_timestamp_delta`` is the offset of the record with the greatest timestamp, relative to the first record's.
    """

    position: int
    size: int
    record_count: int
    crc: int
    max_timestamp_delta: int


class StagedFile(NamedTuple):
    """What a task has staged: the batches of each partition, in order. ``name`` is in the store's directory.

    ``times`` are the least and greatest timestamp of all records (ms).
    """

    name: str
    host: str
    size: int
    spans: dict[TopicPartition, list[Span]]
    times: tuple[int, int]
    has_every_key: bool


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
    """A staged file that is being written. Created with its first batch; ``discard`` removes it. Not thread-safe."""

    def __init__(self, fs: FileSystem, directory: Path, name: str) -> None:
        self._fs = fs
        self._path = directory / name
        self._file: File | None = None
        self._size = 0
        self._written = 0
        self._waiting: list[bytes] = []
        self._spans: dict[TopicPartition, list[Span]] = {}
        self._times: tuple[int, int] | None = None
        self._has_every_key = True

    def note(self, times: tuple[int, int], *, has_every_key: bool) -> None:
        """Notes the least and greatest timestamp of some rows (ms), and whether each of them has a key."""
        known = self._times or times
        self._times = min(known[0], times[0]), max(known[1], times[1])
        self._has_every_key = self._has_every_key and has_every_key

    def add(self, owner: TopicPartition, data: bytes, batch: EncodedBatch) -> None:
        """Adds a whole batch. Raises: DiskFullError, StorageError."""
        crc = batch_crc(memoryview(data))
        span = Span(self._size, len(data), batch.record_count, crc, batch.max_timestamp_delta_offset)
        self._spans.setdefault(owner, []).append(span)
        self._waiting.append(data)
        self._size += len(data)
        if self._size - self._written >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._file is None:
            self._file = self._fs.open(self._path, write=True, create=True)
        self._file.write_all(self._waiting, self._written)
        self._written = self._size
        self._waiting.clear()

    def close(self) -> StagedFile | None:
        """What was staged; None if that is nothing, and no file exists. Raises: DiskFullError, StorageError."""
        if self._waiting:
            self._write()
        if self._file is None:
            return None
        # On a network file system this makes the bytes visible elsewhere.
        self._file.close()
        self._file = None
        assert self._times is not None
        return StagedFile(
            self._path.name, socket.gethostname(), self._size, self._spans, self._times, self._has_every_key
        )

    def discard(self) -> None:
        """Removes the file, as far as possible."""
        if self._file is not None:
            self._file.close()
            self._file = None
            remove(self._fs, self._path.parent, [self._path.name])


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


def read_span(file: File, span: Span) -> bytes:
    """One staged batch. Raises: CorruptFileError, StorageError."""
    data = file.pread(span.size, span.position)
    if len(data) != span.size or batch_crc(memoryview(data)) != span.crc:
        raise CorruptFileError("not the batch that was staged", path=file.path, position=span.position)
    return data


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
