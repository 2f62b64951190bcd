"""A backup as a file system: it shows the store that a restore would make, and copies nothing.

    fs, path = shown_backup("s3://bucket/backups")
    Store(path, read_only=True, fs=fs)

A ``.log`` in pieces is one file. What a restore computes, such as the state of each log, is in memory. Two things
differ from a restored store: transactions that were not decided at the backup's moment stay open, so readers of
committed records end before them; and the offset index and time index of an active segment are built, in memory, when
they are first used.
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from kstore.archive.manifest import (
    LogEntry,
    Manifest,
    SegmentEntry,
    StoredFile,
    is_stored_name,
    manifest_time,
)
from kstore.archive.restored import ROOT_FILES, restored_state
from kstore.archive.target import BackupTarget
from kstore.config import LogConfig
from kstore.engine.index_repairs import built_indexes
from kstore.errors import (
    CorruptDataError,
    CorruptFileError,
    FileMissingError,
    PathLike,
    ReadOnlyError,
    StorageError,
    TruncatedFileError,
)
from kstore.files.checkpoint import encode_leader_epochs, encode_topic_id
from kstore.files.fs import File, FileStat, FileSystem, plain_text
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import (
    INDEX_SUFFIX,
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    MANIFEST,
    PARTITION_METADATA,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    segment_name,
    topic_partition,
)
from kstore.files.read_only import ReadOnlyFile, ReadOnlyFiles, missing
from kstore.files.remote import SCHEME, Location, is_remote, open_remote
from kstore.indexes.rebuild import IndexBuilder
from kstore.rules.topics import KSTORE_TOPICS, TopicEntry, decode_topics
from kstore.state.log_state import state_file_bytes

NO_DEVICE = -1
NANOSECONDS = 1_000_000
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
# A path that cannot be listed as a directory holds no backups.
NO_LISTING_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM})


class _Stored(NamedTuple):
    """A file in the target: a ``.log`` in pieces that follow one another, or any other one in one piece."""

    stat: FileStat
    owner: TopicPartition
    pieces: tuple[StoredFile, ...]


def shown_backup(path: PathLike, fs: FileSystem = SYSTEM_FS) -> tuple[BackupFs, Path] | None:
    """The backup that ``path`` leads to, and the place in it; None if it leads to none.

        backups                         the store of the last backup
        backups/orders-0                a log of it
        backups/backup-<...>.manifest   the store of this backup; it may be followed by the name of a log too

    A log, or anything else, that really is at ``path`` is no place in a backup.

    Raises: CorruptFileError, UnsupportedFormatError for the manifest; ConfigError, StorageError.
    """
    at = open_remote(_absolute(path), local=fs)
    shown = _shown_at(at, fs)
    if shown is not None:
        return shown, shown.root
    name = at.path.name
    if topic_partition(name) is None or not all(map(is_stored_name, _names_in(at))):
        return None
    shown = _shown_at(at._replace(path=at.path.parent), fs)
    return None if shown is None else (shown, shown.root / name)


def _absolute(path: PathLike) -> str:
    """Does not expand ``~``: a shell expands it where a user means a home directory."""
    text = os.fspath(path)
    return text if is_remote(text) or text.startswith("file://") else os.fspath(Path(text).absolute())


def _names_in(at: Location) -> Sequence[str]:
    """The names in a directory; none if it is missing, is a file, or may not be listed."""
    try:
        return at.fs.list(at.path)
    except StorageError as error:
        if error.errno in NO_LISTING_ERRNOS:
            return ()
        raise


def _shown_at(at: Location, fs: FileSystem) -> BackupFs | None:
    is_manifest = MANIFEST.fullmatch(at.path.name) is not None
    directory = at._replace(path=at.path.parent) if is_manifest else at
    names = _names_in(directory)
    manifests = [name for name in names if MANIFEST.fullmatch(name)]
    if not manifests or KSTORE_TOPICS in names:
        return None
    name = at.path.name if is_manifest else max(manifests, key=lambda name: manifest_time(name) or 0)
    return _backup(id(fs), directory.url, name, at.fs.stat(directory.path / name), at.path, _Place(directory))


@dataclass(frozen=True)
class _Place:
    """A location that is not compared, as an argument of a cached function."""

    location: Location = field(compare=False)


@lru_cache(2)
def _backup(fs_id: int, url: str, name: str, stat: FileStat, root: Path, directory: _Place) -> BackupFs:
    """The backup of a manifest, decoded once as long as the file stays the same: a command asks for each log.

    ``fs_id``: of a local file system, which the cached result keeps.
    """
    target = BackupTarget(directory.location)
    return BackupFs(target, target.manifest(name), root)


def place_to_read(path: PathLike, fs: FileSystem = SYSTEM_FS) -> tuple[FileSystem, Path]:
    """Where ``path`` leads to, for reading: to a place on this machine, at a URL, or in a backup (``shown_backup``).

    Raises: as ``shown_backup``.
    """
    shown = shown_backup(path, fs)
    if shown is not None:
        return shown
    location = open_remote(_absolute(path), local=fs)
    if location.local is None:
        return location.reading, location.path
    return fs, Path(path) if SCHEME.fullmatch(os.fspath(path)) is None else location.path


class BackupFs(ReadOnlyFiles):
    """The store of one backup, for reading; ``root`` is its directory. Thread-safe."""

    def __init__(self, target: BackupTarget, manifest: Manifest, root: Path) -> None:
        """Raises: CorruptFileError for the manifest's topics."""
        self._target = target
        self.root: Path = root
        self.time_ms: int = manifest.time_ms
        self._stored: dict[str, _Stored] = {}
        # The content of what is not in the target; guarded by the lock for indexes, which are built when they are used.
        self._made: dict[str, bytes] = {}
        self._lock = threading.Lock()
        # By the path of an index: its segment, and the topic.
        self._indexes: dict[str, tuple[SegmentEntry, TopicEntry]] = {}
        # By directory, what is in it.
        self._names: dict[str, list[str]] = {str(self.root): []}
        topics = decode_topics(manifest.topics, f"{target.url}: {KSTORE_TOPICS}")
        self._make(self.root / KSTORE_TOPICS, manifest.topics)
        for name in ROOT_FILES & manifest.root.keys():
            self._make(self.root / name, manifest.root[name])
        for log in manifest.logs:
            self._show_log(log, topics[log.owner.topic])

    def _show_log(self, log: LogEntry, entry: TopicEntry) -> None:
        directory = self.root / str(log.owner)
        self._names[str(self.root)].append(str(log.owner))
        self._names[str(directory)] = []
        for segment in log.segments:
            suffixes = {file.suffix for file in segment.files}
            for suffix in suffixes:
                pieces = tuple(file for file in segment.files if file.suffix == suffix)
                self._store(directory, log.owner, pieces, segment.mtime_ns)
            for suffix in INDEX_SUFFIXES:
                path = directory / segment_name(segment.base, suffix)
                self._indexes[str(path)] = segment, entry
                if suffix not in suffixes:
                    self._names[str(directory)].append(path.name)
        for snapshot in log.snapshots:
            self._store(directory, log.owner, (snapshot,), 0)
        if log.epochs:
            self._make(directory / LEADER_EPOCHS, encode_leader_epochs(log.epochs))
        if entry.topic_id is not None:
            self._make(directory / PARTITION_METADATA, encode_topic_id(entry.topic_id))
        active = log.segments[-1].base
        stat = self._stored[str(directory / segment_name(active, LOG_SUFFIX))].stat
        # Closed cleanly: no reader need look for the end.
        state = restored_state(self, directory, log, active)._replace(
            clean=True,
            clean_base=active,
            clean_inode=stat.inode,
            clean_size=stat.size,
            clean_mtime_ns=stat.mtime_ns,
        )
        self._make(directory / KSTORE_STATE, state_file_bytes(state))

    def _store(self, directory: Path, owner: TopicPartition, pieces: tuple[StoredFile, ...], mtime_ns: int) -> None:
        name = segment_name(pieces[0].base, pieces[0].suffix)
        path = str(directory / name)
        self._stored[path] = _Stored(self._stat(path, pieces[-1].stop, mtime_ns), owner, pieces)
        self._names[str(directory)].append(name)

    def _make(self, path: Path, data: bytes) -> None:
        self._made[str(path)] = data
        self._names[str(path.parent)].append(path.name)

    def _stat(self, path: str, size: int, mtime_ns: int = 0) -> FileStat:
        inode = int.from_bytes(blake2b(path.encode("utf-8", "surrogateescape"), digest_size=7).digest(), "big")
        return FileStat(size, mtime_ns or self.time_ms * NANOSECONDS, inode, NO_DEVICE, True, False)

    # --- contents -----------------------------------------------------------------------------------------------------

    def _content(self, path: str) -> bytes | None:
        """The checked content of any file but a ``.log``; None if it does not exist. Raises: CorruptFileError,
        StorageError."""
        if path in self._made:
            return self._made[path]
        if (stored := self._stored.get(path)) is not None:
            try:
                return b"".join(self._target.chunks(stored.owner, stored.pieces[0]))
            except (CorruptDataError, FileMissingError, TruncatedFileError) as error:
                if path not in self._indexes:
                    raise _lost(stored.pieces[0], error) from error
        if path not in self._indexes:
            return None
        with self._lock:
            if path not in self._made:
                self._build(Path(path).parent, *self._indexes[path])
            return self._made[path]

    def _build(self, directory: Path, segment: SegmentEntry, entry: TopicEntry) -> None:
        interval = entry.settings.get("index_interval_bytes", LogConfig().index_interval_bytes)
        log = self.open(directory / segment_name(segment.base, LOG_SUFFIX))
        built = built_indexes(
            IndexBuilder(segment.base, index_interval_bytes=interval), log, segment.log_size, segment.base
        )
        for suffix, data in zip(INDEX_SUFFIXES, (built.offsets, built.times), strict=True):
            self._made[str(directory / segment_name(segment.base, suffix))] = data

    def _piece(self, owner: TopicPartition, piece: StoredFile) -> File:
        """Raises: CorruptFileError if the target has lost it, or a part of it; StorageError."""
        try:
            return self._target.open(owner, piece)
        except (FileMissingError, TruncatedFileError) as error:
            raise _lost(piece, error) from error

    # --- FileSystem ---------------------------------------------------------------------------------------------------

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> File:
        if write or create:
            raise self.refused(path)
        name = os.fspath(path)
        stored = self._stored.get(name)
        if stored is not None and name.endswith(LOG_SUFFIX):
            return _LogFile(name, stored, partial(self._piece, stored.owner))
        data = self._content(name)
        if data is None:
            raise missing(path)
        return _MadeFile(name, self._stat(name, len(data)), data)

    def list(self, path: PathLike) -> list[str]:
        names = self._names.get(os.fspath(path))
        if names is None:
            raise missing(path)
        return list(names)

    def stat(self, path: PathLike, *, follow_symlinks: bool = False) -> FileStat:
        """An index that is not in the target has no bytes here."""
        name = os.fspath(path)
        if name in self._names:
            return FileStat(0, self.time_ms * NANOSECONDS, 0, NO_DEVICE, False, True)
        if name in self._stored:
            return self._stored[name].stat
        if name in self._indexes or name in self._made:
            return self._stat(name, 0 if name in self._indexes else len(self._made[name]))
        raise missing(path)

    def exists(self, path: PathLike) -> bool:
        return any(os.fspath(path) in known for known in (self._names, self._stored, self._indexes, self._made))

    def refused(self, path: PathLike) -> ReadOnlyError:
        return _read_only(path)


class _MadeFile(ReadOnlyFile):
    """``File`` in memory."""

    def __init__(self, path: str, stat: FileStat, data: bytes) -> None:
        self.path = path
        self._stat = stat
        self._data = data

    def pread(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]

    def stat(self) -> FileStat:
        return self._stat

    def _refused(self) -> ReadOnlyError:
        return _read_only(self.path)


class _LogFile(_MadeFile):
    """A ``.log`` of a backup; its pieces in the target are opened when they are read. Thread-safe."""

    def __init__(self, path: str, stored: _Stored, opener: Callable[[StoredFile], File]) -> None:
        super().__init__(path, stored.stat, b"")
        self._pieces = stored.pieces
        self._opener = opener
        self._starts = [piece.position for piece in stored.pieces]
        # By piece; two threads may open one at once, and one of the two files is closed with its last reference.
        self._open: dict[int, File] = {}

    def pread(self, size: int, position: int) -> bytes:
        stop = min(position + size, self._stat.size)
        parts = []
        while position < stop:
            at = bisect_right(self._starts, position) - 1
            piece = self._pieces[at]
            wanted = min(stop, piece.stop) - position
            data = self._opened(at).pread(wanted, position - piece.position)
            if len(data) < wanted:
                raise CorruptFileError(f"{piece.name} of the backup ends early", path=self.path)
            parts.append(data)
            position += wanted
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _opened(self, at: int) -> File:
        opened = self._open.get(at)
        if opened is None:
            opened = self._open[at] = self._opener(self._pieces[at])
        return opened


def _lost(piece: StoredFile, error: Exception) -> CorruptFileError:
    return CorruptFileError(f"a file of the backup is damaged or missing: {plain_text(error)}", path=piece.name)


def _read_only(path: PathLike) -> ReadOnlyError:
    return ReadOnlyError(errno.EROFS, "a backup is only read", os.fspath(path))
