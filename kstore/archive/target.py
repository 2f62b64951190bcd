"""Where backups are: a directory, or a place that fsspec or HDFS reaches.

backup-<time>.manifest       one backup each; written last, atomically
replica-<time>.manifest      the same, by a replicator, which removes its old ones
<topic>-<partition>/         the files of a log, of all backups together, named by their content
.lock                        in a directory on this machine: held by a running backup or replicator
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from kstore.archive.manifest import (
    Manifest,
    StoredFile,
    decode_manifest,
    encode_manifest,
    is_stored_name,
    manifest_name,
    manifest_time,
)
from kstore.engine.directory import is_log, make_directory
from kstore.errors import (
    CorruptFileError,
    FileInTheWayError,
    LockedError,
    LogNotFoundError,
    PathLike,
    StorageError,
    TruncatedFileError,
)
from kstore.files.copies import FileRange, copy_range, crc_of
from kstore.files.fs import File, FileSystem
from kstore.files.linked import refuse_link
from kstore.files.local import SYSTEM_FS
from kstore.files.lock import DirectoryLock
from kstore.files.paths import (
    KSTORE_STATE,
    META_PROPERTIES,
    TopicPartition,
    classify,
    segment_name,
    topic_partition,
)
from kstore.files.remote import UPLOAD_SUFFIX, Location, new_file, open_remote, put_file
from kstore.record.crc import crc32c
from kstore.rules.topics import KSTORE_TOPICS

CHUNK_BYTES = 1 << 20
DIRECTORY_MODE = 0o700
MANIFEST_SIZE_MAX = 1 << 30

# The targets at URLs to which this process writes: there is no lock there that others could see.
_at_urls: WeakValueDictionary[str, BackupTarget] = WeakValueDictionary()
_at_urls_mutex = threading.Lock()


class BackupTarget:
    """The backups in one place. ``has``, ``put`` and what reads are thread-safe, the rest is not."""

    def __init__(
        self,
        target: PathLike | Location,
        *,
        storage_options: Mapping[str, Any] | None = None,
        fs: FileSystem = SYSTEM_FS,
    ) -> None:
        """Raises: ConfigError, StorageError."""
        if isinstance(target, Location):
            self._at = target
        else:
            self._at = open_remote(target, storage_options=storage_options, local=fs)
        self._lock: DirectoryLock | None = None
        # The sizes of the files of each log, once they were asked for.
        self._present: dict[TopicPartition, dict[str, int]] = {}
        # The files of the manifests that were read: their names are on disk.
        self._durable: set[tuple[TopicPartition, str]] = set()
        # The logs of which this may be untrue for a file that the next manifest names.
        self._unsynced: set[TopicPartition] = set()

    @property
    def url(self) -> str:
        return self._at.url

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine's disks."""
        return self._at.local is not None

    # --- manifests ----------------------------------------------------------------------------------------------------

    def names(self) -> dict[int, str]:
        """The names of all manifests, by their times, which increase. Raises: StorageError."""
        try:
            names = self._at.fs.list(self._at.path)
        except FileNotFoundError:
            return {}
        times = ((manifest_time(name), name) for name in names)
        return dict(sorted((time_ms, name) for time_ms, name in times if time_ms is not None))

    def manifest(self, name: str) -> Manifest:
        """Raises: CorruptFileError, UnsupportedFormatError, FileMissingError, StorageError."""
        at = self._at / name
        opened = at.fs.open(at.path)
        try:
            size = opened.size()
            if size > MANIFEST_SIZE_MAX:
                raise CorruptFileError(f"it has {size} bytes, expected at most {MANIFEST_SIZE_MAX}", path=at.url)
            manifest = decode_manifest(opened.pread(size, 0), at.url)
        finally:
            opened.close()
        if manifest.time_ms != manifest_time(name):
            raise CorruptFileError(f"it is of {manifest.time_ms}, expected {manifest_time(name)}", path=at.url)
        self._durable.update((log.owner, file.name) for log in manifest.logs for file in log.files)
        return manifest

    def last_at(self, at_ms: int | None) -> Manifest:
        """The last backup, of those at or before ``at_ms`` if that is given. Raises: LogNotFoundError."""
        names = [name for time_ms, name in self.names().items() if at_ms is None or time_ms <= at_ms]
        if not names:
            raise LogNotFoundError(
                errno.ENOENT, "there is no backup" + (" so early" if at_ms is not None else ""), self.url
            )
        return self.manifest(names[-1])

    # --- files --------------------------------------------------------------------------------------------------------

    def has(self, owner: TopicPartition, file: StoredFile) -> bool:
        """Whether the file is there, by its name and size. Files of no bytes are never stored."""
        if not file.size:
            return True
        name = file.name
        is_there = self._files_of(owner).get(name) == file.size
        if is_there and (owner, name) not in self._durable:
            # A backup that was killed may have left it there, and its name not on disk.
            self._unsynced.add(owner)
        return is_there

    def _files_of(self, owner: TopicPartition) -> dict[str, int]:
        """The sizes of a log's files, by their names in the target."""
        if owner not in self._present:
            at, found = self._at / str(owner), {}
            if self._at.local is not None:
                refuse_link(self._at.local, at.path)
            with suppress(FileNotFoundError):
                found = self._at.fs.list_stats(at.path)
            if is_log(classify(found)):
                raise FileInTheWayError(errno.EEXIST, "a log, expected the files of backups", at.url)
            self._remove_interrupted(at, found)
            # Not before: after a failure a replicator asks again. Another thread may have asked too, and added files.
            self._present.setdefault(owner, {name: stat.size for name, stat in found.items() if stat.is_file})
        return self._present[owner]

    def _remove_interrupted(self, directory: Location, names: Iterable[str]) -> None:
        """Removes what a backup that was killed was writing; the lock says that no other one is at work."""
        if self._at.local is None or self._lock is None:
            return
        for name in names:
            if name.endswith(UPLOAD_SUFFIX):
                with suppress(StorageError):
                    self._at.local.unlink((directory / name).path)

    def chunks(self, owner: TopicPartition, file: StoredFile) -> Iterator[bytes]:
        """The bytes of a file, checked. Raises: CorruptFileError, TruncatedFileError, StorageError."""
        if not file.size:
            return
        opened = self.open(owner, file)
        try:
            crc = 0
            for position in range(0, file.size, CHUNK_BYTES):
                data = opened.pread(min(CHUNK_BYTES, file.size - position), position)
                crc = crc32c(data, crc)
                yield data
        finally:
            opened.close()
        if crc != file.crc:
            raise CorruptFileError(
                f"its CRC is {crc:08x}, expected {file.crc:08x}", path=self._place_of(owner, file).url
            )

    def open(self, owner: TopicPartition, file: StoredFile) -> File:
        """A file, which is not empty, for reading; only its size is checked. Raises: TruncatedFileError,
        FileMissingError, StorageError."""
        at = self._place_of(owner, file)
        opened = at.fs.open(at.path)
        found = opened.size()
        if found != file.size:
            opened.close()
            raise TruncatedFileError(errno.EIO, f"it has {found} bytes, expected {file.size}", at.url)
        return opened

    def _place_of(self, owner: TopicPartition, file: StoredFile) -> Location:
        return self._at / str(owner) / file.name

    # --- write --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Makes the place ready for a backup.

        Raises: LockedError if another one is running there; FileInTheWayError for a store, a log, and a place inside
        one; StorageError.
        """
        self._check_no_store()
        if self._at.local is None:
            with _at_urls_mutex:
                if _at_urls.setdefault(self.url, self) is not self:
                    raise LockedError(errno.EAGAIN, f"locked by this process ({os.getpid()}) already", self.url)
            self._at.fs.make_dirs(self._at.path)
        else:
            check_outside_stores(self._at.local, self._at.path)
            make_directory(self._at.local, self._at.path, mode=DIRECTORY_MODE)
            self._lock = DirectoryLock(self._at.path, kind="backup")

    def _check_no_store(self) -> None:
        try:
            names = self._at.fs.list(self._at.path)
        except FileNotFoundError:
            return
        # A broker's directory has no kstore.topics.
        is_brokers = META_PROPERTIES in names and not any(manifest_time(name) for name in names)
        if KSTORE_TOPICS in names or is_brokers:
            raise FileInTheWayError(errno.EEXIST, "a store, expected a place for backups alone", self.url)
        if is_log(classify(names)):
            raise FileInTheWayError(errno.EEXIST, "a log, expected a place for backups alone", self.url)

    def put(self, owner: TopicPartition, file: StoredFile, chunks: Iterable[bytes]) -> None:
        """Stores a file: whole, or not at all. Its name is on disk after ``finish``.

        Raises: DiskFullError, StorageError.
        """
        at, local = self._directory_of(owner) / file.name, self._at.local
        if local is None:
            self._at.fs.put(at.path, chunks)
        else:
            put_file(local, at.path, chunks)
        self._note_new(owner, file)

    def copies(self, owner: TopicPartition, base: int, suffix: str, size: int) -> bool:
        """Whether ``copy`` can store such a file: on this machine's disks, if none of its base and size is there."""
        if self._at.local is None:
            return False
        like = StoredFile(base, suffix, size, 0).name.rpartition("-")[0]
        return not any(name.startswith(like) and name.endswith(suffix) for name in self._files_of(owner))

    def copy(
        self,
        owner: TopicPartition,
        base: int,
        suffix: str,
        pieces: Iterable[FileRange],
        *,
        in_steps: Callable[[], bool] = lambda: False,
    ) -> StoredFile:
        """``put`` of a file that is read only once: its copy tells the CRC. A piece is on disk before the next one is
        taken if ``in_steps`` says so. Raises: as ``put``; TruncatedFileError."""
        directory, local = self._directory_of(owner).path, self._at.local
        assert local is not None
        temporary = directory / (segment_name(base, suffix) + UPLOAD_SUFFIX)
        size = crc = 0
        with new_file(local, temporary) as file:
            for piece in pieces:
                copy_range(piece, file)
                crc = crc_of(FileRange(file, size, piece.size), crc)
                # The kernel begins to write, and forgets, what is not read again: the sync has less to wait for.
                file.advise(size, piece.size, "dontneed")
                size += piece.size
                if in_steps():
                    file.fdatasync()
            file.fdatasync()
            file.advise(0, 0, "dontneed")
            stored = StoredFile(base, suffix, size, crc)
            local.rename(temporary, directory / stored.name)
        self._note_new(owner, stored)
        return stored

    def _directory_of(self, owner: TopicPartition) -> Location:
        """The directory of a log's files, which exists on return."""
        directory, local = self._at / str(owner), self._at.local
        if not self._files_of(owner):
            if local is None:
                self._at.fs.make_dirs(directory.path)
            elif not local.exists(directory.path):
                local.mkdir(directory.path)
        return directory

    def _note_new(self, owner: TopicPartition, file: StoredFile) -> None:
        self._files_of(owner)[file.name] = file.size
        self._unsynced.add(owner)

    def finish(self, manifest: Manifest, *, replica: bool = False) -> None:
        """Stores the manifest, which makes what was put a backup. Raises: DiskFullError, StorageError."""
        at, local = self._at / manifest_name(manifest.time_ms, replica=replica), self._at.local
        if local is not None:
            # All names that the manifest relies on, also those that a killed backup has made.
            for owner in sorted(self._unsynced):
                local.sync_dir((self._at / str(owner)).path)
            local.sync_dir(self._at.path)
        self._unsynced.clear()
        self._at.fs.put(at.path, [encode_manifest(manifest)])

    # --- remove -------------------------------------------------------------------------------------------------------

    def remove_replicas(self, times: Iterable[int]) -> None:
        """Removes manifests of a replicator, durably: what only they name may be removed then. Raises: StorageError."""
        for time_ms in times:
            with suppress(FileNotFoundError):
                self._at.fs.unlink((self._at / manifest_name(time_ms, replica=True)).path)
        if self._at.local is not None:
            self._at.local.sync_dir(self._at.path)

    def remove(self, owner: TopicPartition, name: str) -> None:
        """Removes a file that no manifest names. Raises: StorageError."""
        self._files_of(owner).pop(name, None)  # first: a removal that fails may happen all the same
        with suppress(FileNotFoundError):
            self._at.fs.unlink((self._at / str(owner) / name).path)

    def stored(self) -> Iterator[tuple[TopicPartition, str]]:
        """Every file of a log, and what an interrupted upload has left of one. Raises: StorageError."""
        for directory in self._at.fs.list(self._at.path):
            owner = topic_partition(directory)
            for name in self._at.fs.list((self._at / directory).path) if owner is not None else ():
                if owner is not None and (is_stored_name(name) or name.endswith(UPLOAD_SUFFIX)):
                    yield owner, name

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
        with _at_urls_mutex:
            if _at_urls.get(self.url) is self:
                del _at_urls[self.url]


def check_outside_stores(fs: FileSystem, path: Path) -> None:
    """Raises: FileInTheWayError if ``path`` is in the directory of a store or a log, which may hold nothing else."""
    # Where it really is: a link may lead into a store, and ``..`` out of one.
    for parent in Path(os.path.realpath(path)).parents:
        if any(fs.exists(parent / name) for name in (KSTORE_TOPICS, KSTORE_STATE)):
            kind = "store" if fs.exists(parent / KSTORE_TOPICS) else "log"
            raise FileInTheWayError(errno.EEXIST, f"inside the {kind} {parent}, expected a place outside", str(path))
