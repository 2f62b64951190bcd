"""Files on HDFS, in object stores, and wherever fsspec reaches: read in ranges, and written as a whole.

``open_remote(url)`` returns a ``Location``: a file system and the path in it. The file system has ``FileSystem``'s
methods, so the same code reads a log there; whatever would change a file in place raises ``ReadOnlyError``. It adds
``put``: a file appears under its name completely, or not at all.

    no scheme, file://      this machine's disks
    hdfs://                 hdfs-native                       (kstore[hdfs])
    any other               fsspec and what it needs for it   (fsspec; s3fs, gcsfs, adlfs ...)

Their errors become a typed ``StorageError``, and every call has a time limit (``remote_stores``).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from kstore.errors import ConfigError, KstoreError, PathLike, ReadOnlyError, StorageError
from kstore.files.ahead import PIECE_BYTES, PiecesAhead
from kstore.files.fs import File, FileStat, FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.moment import SMALL_BYTES_MAX, Moment, parent
from kstore.files.read_only import ReadOnlyFile, ReadOnlyFiles
from kstore.files.remote_stores import (
    DEFAULT_OPTIONS,
    FsspecStore,
    HdfsStore,
    ObjectStore,
    limited,
    retried,
    without_password,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

Result = TypeVar("Result")

# A file that is being written has its name plus this: neither kstore nor a broker treats it as a segment.
UPLOAD_SUFFIX = ".mirror"

# What a first read fetches; each one that continues the last fetches twice as much, up to the maximum.
READ_AHEAD_MIN = 1 << 16
READ_AHEAD_MAX = 8 << 20

# Pieces of 8 MiB on their way to a reader of many bytes, besides the one that it uses.
PIECES_AHEAD = 4

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*)://([^/]*)(/.*)?", re.DOTALL)
# What Kafka's clients call bootstrap servers.
BROKERS = re.compile(r"[\w.-]+:\d{1,5}(,[\w.-]+:\d{1,5})*")

# Object stores: a file appears when its upload is complete, and directories are only parts of names.
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "r2"})


class RemoteReading(NamedTuple):
    """How a reader of many bytes, or of many files, asks a store that is not local.

    ``moment`` belongs to that store: what was listed in it is not asked again. About ``expected_bytes`` of a file will
    be read in order, by one thread: pieces of them are fetched ahead, several at a time. A request that the store
    fails to serve is made again until ``retry_seconds`` have passed.
    """

    moment: Moment | None = None
    expected_bytes: int = 0
    retry_seconds: float = 0.0


class Location(NamedTuple):
    """A ``path`` in a file system ``fs``. ``local`` is the same file system if it is this machine's, else None."""

    fs: RemoteFileSystem
    path: Path
    local: FileSystem | None

    @property
    def reading(self) -> FileSystem:
        """The file system for readers of a log: everything but reading fails if it is not local."""
        if self.local is not None:
            return self.local
        assert isinstance(self.fs, RemoteFiles)
        return self.fs

    @property
    def url(self) -> str:
        """For people: without passwords."""
        return self.fs.url_of(self.path)

    def __truediv__(self, name: str) -> Location:
        return self._replace(path=self.path / name)


class RemoteFileSystem(Protocol):
    """The part of ``FileSystem`` that every store has, and ``put``. Thread-safe."""

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> File: ...
    def list(self, path: PathLike) -> list[str]: ...
    def stat(self, path: PathLike, *, follow_symlinks: bool = False) -> FileStat: ...
    def exists(self, path: PathLike) -> bool: ...
    def rename(self, source: PathLike, target: PathLike) -> None: ...
    def unlink(self, path: PathLike) -> None: ...
    def list_stats(self, path: PathLike) -> dict[str, FileStat]:
        """``list`` and ``stat`` in one: the stats of a directory's names, in one request if the store can."""
        ...

    def put(self, path: PathLike, chunks: Iterable[Buffer]) -> int:
        """Writes a whole file from ``chunks``, replacing the file of that name; returns its size.

        If it ends early, also because of the chunks, the name stays as it was.
        """
        ...

    def make_dirs(self, path: PathLike) -> None:
        """Creates the directory with its parents; does nothing if it exists, or if a store has none."""
        ...

    def url_of(self, path: PathLike) -> str:
        """The path as people write it, without a password."""
        ...


def is_remote(url: str) -> bool:
    """Whether ``url`` names anything but this machine's disks."""
    match = SCHEME.fullmatch(url)
    return match is not None and match[1] != "file"


def store_of(url: str) -> str | None:
    """The part of a URL that names the store, without the path; None for a local path."""
    match = SCHEME.fullmatch(url)
    return f"{match[1]}://{match[2]}" if match is not None and match[1] != "file" else None


def path_in_store(url: str) -> Path:
    """The path of a URL, as ``Location`` has it."""
    match = SCHEME.fullmatch(url)
    return Path((match[3] if match is not None else None) or "/")


def local_path(path: PathLike, what: str) -> Path:
    """``path`` with ``~`` expanded; ``what`` is to be there.

    Raises: ConfigError for a URL of another place, a broker's address, and the home of a user who has none. A name that
    exists is a path, whatever it looks like.
    """
    text = os.fspath(path)
    if is_remote(text):
        raise ConfigError(
            f"{without_password(text)}: {what} is on this machine's disks; kstore.open reads a URL with read_only=True"
        )
    match = SCHEME.fullmatch(text)
    if match:
        return Path(match[2] + (match[3] or "/"))
    first = text.partition("/")[0]
    if BROKERS.fullmatch(text) and not os.path.exists(text):
        raise ConfigError(f"{text} is an address, and {what} is a directory: write ./{text} for one of that name")
    if not first.startswith("~"):
        return Path(text)
    if first != "~":
        if os.path.exists(first):
            return Path(text)
        if not os.path.isdir(os.path.expanduser(first)):
            raise ConfigError(f"{text}: {first[1:]} has no home here; write ./{text} for a directory of that name")
    return Path(text).expanduser()


def open_remote(
    url: PathLike,
    *,
    storage_options: Mapping[str, Any] | None = None,
    local: FileSystem = SYSTEM_FS,
    reading: RemoteReading | None = None,
) -> Location:
    """The place of ``url``, or of a local path; nothing need exist there. ``storage_options`` are the library's.

    Raises: ConfigError for a missing library, or options that it does not accept; StorageError.
    """
    text = os.fspath(url)
    match = SCHEME.fullmatch(text)
    if match is None or match[1] == "file":
        return Location(_LocalFiles(local), local_path(text, "it").absolute(), local)
    scheme, authority = match[1], match[2]
    prefix = f"{scheme}://{authority}"
    options = {**DEFAULT_OPTIONS.get(scheme, {}), **(storage_options or {})}
    store: ObjectStore
    if scheme == "hdfs":
        store = HdfsStore(prefix, options)
        files = RemoteFiles(store, prefix, native=lambda path: path, atomic=False, reading=reading)
    else:
        store = FsspecStore(prefix, options)
        files = RemoteFiles(store, prefix, native=store.native, atomic=scheme in OBJECT_STORES, reading=reading)
    return Location(files, Path(match[3] or "/"), None)


@contextmanager
def new_file(fs: FileSystem, path: PathLike, *, mode: int = 0o600) -> Iterator[File]:
    """A new file to write, in place of one that was left there. An error within the block removes it.

    Raises: StorageError.
    """
    with suppress(FileNotFoundError):
        fs.unlink(path)
    file = fs.open(path, write=True, create=True, mode=mode)
    try:
        yield file
    except BaseException:
        with suppress(StorageError):
            fs.unlink(path)
        raise
    finally:
        file.close()


def put_file(fs: FileSystem, path: PathLike, chunks: Iterable[Buffer], *, mode: int = 0o600, mtime_ns: int = 0) -> int:
    """``put`` for a local file system: the bytes are on disk under the name, which is durable after ``sync_dir``.

    The file gets ``mtime_ns`` as its modification time, if it is not 0, before it has the name.
    """
    name = os.fspath(path)
    temporary = name + UPLOAD_SUFFIX
    size = 0
    with new_file(fs, temporary, mode=mode) as file:
        for chunk in chunks:
            file.write_all([chunk], size)
            size += memoryview(chunk).nbytes
        file.fdatasync()
        if mtime_ns:
            fs.set_mtime(temporary, mtime_ns)
        fs.rename(temporary, name)
    return size


class _LocalFiles:
    """This machine's disks as a ``RemoteFileSystem``."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner
        self.open = inner.open
        self.list = inner.list
        self.stat = inner.stat
        self.exists = inner.exists
        self.rename = inner.rename
        self.unlink = inner.unlink

    def list_stats(self, path: PathLike) -> dict[str, FileStat]:
        found = {}
        for name in self._inner.list(path):
            with suppress(FileNotFoundError):  # it disappeared since the listing
                found[name] = self._inner.stat(f"{os.fspath(path)}/{name}")
        return found

    def put(self, path: PathLike, chunks: Iterable[Buffer]) -> int:
        size = put_file(self._inner, path, chunks)
        self._inner.sync_dir(os.path.dirname(os.fspath(path)) or ".")
        return size

    def make_dirs(self, path: PathLike) -> None:
        missing = []
        directory = Path(path)
        while not self._inner.exists(directory):
            missing.append(directory)
            directory = directory.parent
        for directory in reversed(missing):
            self._inner.mkdir(directory)
            self._inner.sync_dir(directory.parent)

    def url_of(self, path: PathLike) -> str:
        return os.fspath(path)


class RemoteFiles(ReadOnlyFiles):
    """An ``ObjectStore`` as a ``FileSystem``: paths are those after the URL's authority, and start with a slash."""

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        *,
        native: Callable[[str], str],
        atomic: bool,
        reading: RemoteReading | None = None,
    ) -> None:
        """``atomic``: the store shows a file only when its upload is complete."""
        self.reading: RemoteReading = reading or RemoteReading()
        self._moment = self.reading.moment
        self._store = store
        self._prefix = prefix
        self._native = native
        self._atomic = atomic

    def __repr__(self) -> str:
        return f"RemoteFiles({self.url_of('/')!r})"

    def url_of(self, path: PathLike) -> str:
        return without_password(self._prefix) + os.fspath(path)

    def _do(
        self, path: PathLike, action: Callable[[ObjectStore, str], Result], *, writing: bool = False, slow: bool = False
    ) -> Result:
        """``slow``: it is many requests."""
        name = self._native(os.fspath(path))
        if writing:
            self.ask_again(parent(os.fspath(path)))
        retry_seconds = 0.0 if writing else self.reading.retry_seconds
        with_limit = partial(limited, lambda: action(self._store, name), self.url_of(path), writing=writing, slow=slow)
        return retried(with_limit, retry_seconds) if retry_seconds else with_limit()

    # --- read -------------------------------------------------------------------------------------------------------

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> File:
        if write or create:
            raise self.refused(path)
        found = self.stat(path)
        if not found.is_file:
            raise StorageError(errno.EISDIR, "a directory, where a file was expected", self.url_of(path))
        return RemoteFile(self, os.fspath(path), found)

    def list(self, path: PathLike) -> list[str]:
        return list(self.list_stats(path))

    def list_stats(self, path: PathLike) -> dict[str, FileStat]:
        known = self.listed(path)
        if known is not None:
            return dict(known)
        found = self._do(path, lambda store, name: store.entries(name))
        if self._moment is not None:
            self._moment.note(path, found)
        return found

    def list_tree(self, path: PathLike) -> bool:
        """Lists everything below a directory for the moment, in few requests; False if the store cannot."""
        found = self._do(path, lambda store, name: store.tree(name), slow=True)
        if found is None or self._moment is None:
            return False
        self._moment.note_tree(path, found)
        return True

    def listed(self, path: PathLike) -> Mapping[str, FileStat] | None:
        """What the moment knows of a directory: the same object as long as nothing asks again; None without it."""
        return None if self._moment is None else self._moment.listing(path)

    def ask_again(self, path: PathLike) -> None:
        """The listing of a directory may be older than what was read since: the next one is new."""
        if self._moment is not None:
            self._moment.forget(path)

    def stat(self, path: PathLike, *, follow_symlinks: bool = False) -> FileStat:
        known = None if self._moment is None else self._moment.stat(path)
        return known or self._do(path, lambda store, name: store.info(name))

    def exists(self, path: PathLike) -> bool:
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop`` of a file, fewer only if it ends."""
        try:
            return self._do(path, lambda store, name: store.read(name, start, stop))
        except FileNotFoundError:
            self.ask_again(parent(path))
            raise

    def read_small(self, path: str, found: FileStat) -> bytes:
        """All of a file of a few bytes, which the moment may have."""
        data = None if self._moment is None else self._moment.content(path, found)
        if data is None:
            data = self.read_range(path, 0, found.size)
            if self._moment is not None:
                self._moment.keep(path, found, data)
        return data

    # --- whole files out --------------------------------------------------------------------------------------------

    def put(self, path: PathLike, chunks: Iterable[Buffer]) -> int:
        name = os.fspath(path)
        url = self.url_of(name)
        written_as = name if self._atomic else name + UPLOAD_SUFFIX
        upload = self._do(written_as, lambda store, native: store.write(native), writing=True)
        size = 0
        try:
            for chunk in chunks:
                limited(partial(upload.write, chunk), url, writing=True)
                size += memoryview(chunk).nbytes
            limited(upload.complete, url, writing=True)
        except BaseException:
            with suppress(KstoreError):
                limited(upload.abandon, url, writing=True)
                if not self._atomic:
                    self.unlink(written_as)
            raise
        if not self._atomic:
            self.rename(written_as, name)
        # Some stores refuse only with a response that no library checks.
        found = self.stat(path).size
        if found != size:
            raise StorageError(errno.EIO, f"{found} bytes arrived, expected {size}", self.url_of(path))
        return size

    def rename(self, source: PathLike, target: PathLike) -> None:
        native = self._native(os.fspath(target))
        self._do(source, lambda store, name: store.move(name, native), writing=True)

    def unlink(self, path: PathLike) -> None:
        self._do(path, lambda store, name: store.remove(name), writing=True)

    def make_dirs(self, path: PathLike) -> None:
        if not self._atomic:
            self._do(path, lambda store, name: store.make_dirs(name), writing=True)

    def refused(self, path: PathLike) -> ReadOnlyError:
        return ReadOnlyError(errno.EROFS, "files there can only be read, or written whole", self.url_of(path))


class RemoteFile(ReadOnlyFile):
    """A file in a store, open for reading: each read is a range, and the next bytes are fetched ahead. Thread-safe."""

    def __init__(self, fs: RemoteFiles, path: str, found: FileStat) -> None:
        self._fs = fs
        self.path = path
        self._size = found.size
        # The size at opening holds for the first read; a later one beyond it asks again, since the file may grow.
        self._fresh = True
        # Position and bytes of the last fetch, replaced in one store: at worst threads fetch it twice.
        self._window = (0, b"")
        self._found = found
        self._ahead: PiecesAhead | None = None
        # Up to where pieces are fetched ahead; -1 before the first read.
        self._ahead_stop = -1

    def __repr__(self) -> str:
        return f"RemoteFile({self._fs.url_of(self.path)!r})"

    @property
    def opened_size(self) -> int:
        """The bytes that it had when it was opened."""
        return self._found.size

    def fetch(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` to ``stop``, in one request that brings no others; fewer if the file ends."""
        stop = min(stop, self._size)
        return self._fs.read_range(self.path, start, stop) if start < stop else b""

    def pread(self, size: int, position: int) -> bytes:
        stop = position + size
        if stop > self._size and not self._fresh:
            self.size()
        self._fresh = False
        stop = min(stop, self._size)
        if position >= stop:
            return b""
        start, data = self._window
        end = start + len(data)
        if not start <= position <= stop <= end:
            ahead = min(max(2 * len(data), READ_AHEAD_MIN), READ_AHEAD_MAX) if start <= position <= end else 0
            # The part that was fetched already is not fetched again.
            kept = data[position - start :] if start <= position < end else b""
            fetched_stop = min(max(stop, position + max(ahead, READ_AHEAD_MIN)), self._size)
            if fetched_stop <= SMALL_BYTES_MAX and fetched_stop == self._found.size:
                start, data = 0, self._fs.read_small(self.path, self._found)
            elif self._fs.reading.expected_bytes:
                start, data = position, self._read_ahead(position, stop, kept)
            else:
                start, data = position, kept + self._fs.read_range(self.path, position + len(kept), fetched_stop)
            # A large read is passed on, not kept.
            self._window = (start, data) if len(data) <= 2 * READ_AHEAD_MAX else (start + len(data), b"")
        return data[position - start : stop - start]

    def _read_ahead(self, position: int, stop: int, kept: bytes) -> bytes:
        """The bytes from ``position`` to at least ``stop``, of which ``kept`` are there; and the next pieces begin to
        come."""
        if self._ahead is None or self._ahead_stop <= position:
            self._ahead = PiecesAhead(partial(self._fs.read_range, self.path), count=PIECES_AHEAD)
            self._ahead_stop = min(position + max(self._fs.reading.expected_bytes, READ_AHEAD_MIN), self._size)
        data, at = [kept], position + len(kept)
        while at < stop:
            piece = self._ahead.take(at)
            if piece is None:
                piece_stop = min(max(stop, min(at + PIECE_BYTES, self._ahead_stop)), self._size)
                self._ahead.begin(piece_stop, self._ahead_stop)
                piece = self._fs.read_range(self.path, at, piece_stop)
            if not piece:
                break  # the file is shorter now
            data.append(piece)
            at += len(piece)
        self._ahead.begin(at, self._ahead_stop)
        return b"".join(data)

    def size(self) -> int:
        self._size = self.stat().size
        return self._size

    def stat(self) -> FileStat:
        return self._fs.stat(self.path)

    def close(self) -> None:
        self._window = (0, b"")

    def _refused(self) -> ReadOnlyError:
        return self._fs.refused(self.path)
