"""The libraries that ``remote`` uses, each an ``ObjectStore``: fsspec and hdfs-native, imported when a URL needs them.

Not all of them give up on a silent server, so every call goes through ``limited``, which has a time limit and turns a
library's exceptions into a typed ``StorageError``.
"""

from __future__ import annotations

import errno
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kstore.errors import ConfigError, KstoreError, StorageError
from kstore.files.fs import FileStat, storage_error
from kstore.files.threads import start_thread

if TYPE_CHECKING:
    from typing_extensions import Buffer

Result = TypeVar("Result")

# hdfs-native retries a silent address forever, and webhdfs waits forever for a response.
READ_SECONDS_MAX = 60.0
# A name node responds at once or is unreachable.
CONNECT_SECONDS_MAX = 10.0
# A write sends a part of some MiB; the last one completes the file.
WRITE_SECONDS_MAX = 600.0

# One name node; without a port it is the name of a service, which the configuration resolves.
ADDRESS = re.compile(r"hdfs://(?:[^@]*@)?\[?([^\]]+)\]?:(\d+)")
PASSWORD = re.compile(r":[^@/]*@")
# The query of a URL in a message: it may hold a token.
QUERY = re.compile(r"(?<=\S)\?\S+")
# hdfs-native prints Hadoop's messages whole: LocatedBlockProto { b: ExtendedBlockProto { pool_id: "...", ... } ... }
DUMP = re.compile(r"\b(\w+?)(?:Proto)? \{")
DUMP_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
BLOCK_ID = re.compile(r"\bblock_id: ([0-9]+)")
# The most characters of a library's message that are shown.
SAID_MAX = 500

# A part of an upload to S3, in memory until it is sent; s3fs would keep 50 MiB. A segment has at most 2 GiB, S3 allows
# 10,000 parts.
S3_PART_BYTES = 16 << 20

# What a store may serve a moment later: an error of its own, which libraries report as any OSError, or of the network.
TRANSIENT_ERRNOS = frozenset(
    {
        errno.EIO,
        errno.EBUSY,
        errno.EPIPE,
        errno.ETIMEDOUT,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        # What s3fs makes of an answer 500, where the system has it.
        getattr(errno, "EREMOTEIO", errno.EIO),
    }
)
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 1.0

# Options of the libraries: their own time limits, where they have some.
DEFAULT_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 30}, "default_block_size": S3_PART_BYTES},
    "s3a": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 30}, "default_block_size": S3_PART_BYTES},
    "gs": {"requests_timeout": 30},
    "gcs": {"requests_timeout": 30},
    "abfs": {"connection_timeout": 10, "read_timeout": 30},
    "abfss": {"connection_timeout": 10, "read_timeout": 30},
    "az": {"connection_timeout": 10, "read_timeout": 30},
    "hdfs": {"dfs.client.socket-timeout": "30000"},
}

# For errors of a library that have only a type.
ERRNO_BY_TYPE: tuple[tuple[type[BaseException], int], ...] = (
    (FileNotFoundError, errno.ENOENT),
    (FileExistsError, errno.EEXIST),
    (IsADirectoryError, errno.EISDIR),
    (NotADirectoryError, errno.ENOTDIR),
    (PermissionError, errno.EACCES),
    (TimeoutError, errno.ETIMEDOUT),
    (ConnectionError, errno.ECONNABORTED),
)

# The stores' names for the mark of a content.
TAG_KEYS = ("ETag", "etag", "generation")
# The stores' names for the time of a file's last change.
MTIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modificationTime", "modified", "created")


class ObjectStore(Protocol):
    """What a library must provide for ``RemoteFiles``; ``name`` is a path as the library writes it."""

    def info(self, name: str) -> FileStat: ...
    def entries(self, name: str) -> dict[str, FileStat]: ...
    def tree(self, name: str) -> dict[str, FileStat] | None:
        """The files at any depth below ``name``, by their paths from there; None if that takes a request for each
        directory."""
        ...

    def read(self, name: str, start: int, stop: int) -> bytes: ...
    def write(self, name: str) -> Upload: ...
    def move(self, source: str, target: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def make_dirs(self, name: str) -> None: ...


class Upload(Protocol):
    """A file that is being written."""

    def write(self, data: Buffer) -> object: ...
    def complete(self) -> None: ...
    def abandon(self) -> None:
        """Ends it so that nothing appears, or remains, under the file's name, as far as the store can."""
        ...


class FsspecStore:
    """Whatever fsspec reaches."""

    def __init__(self, prefix: str, options: Mapping[str, Any]) -> None:
        scheme = prefix.partition("://")[0]
        fsspec = _import("fsspec.core", f"{scheme}:// needs fsspec and its library for {scheme}", "kstore[remote]")
        try:
            self._fs = limited(
                lambda: fsspec.url_to_fs(prefix, **options)[0],
                without_password(prefix),
                passing=(ImportError, TypeError, ValueError),
            )
        except ImportError as error:
            raise ConfigError(f"{scheme}:// needs a library that is not installed: {error}") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{without_password(prefix)}: {error}") from error
        self._prefix = prefix
        self._reads_ranges = _overrides(self._fs, "cat_file")
        self._finds = _finds(self._fs)

    def native(self, path: str) -> str:
        return str(self._fs._strip_protocol(self._prefix + path))

    def info(self, name: str) -> FileStat:
        # Listings are cached: without this a new file would be missing.
        self._fs.invalidate_cache(name)
        return _fsspec_stat(self._fs.info(name))

    def entries(self, name: str) -> dict[str, FileStat]:
        self._fs.invalidate_cache(name)
        found = {}
        is_there = False
        for entry in self._fs.ls(name, detail=True):
            last = str(entry["name"]).rstrip("/").rpartition("/")[2]
            if str(entry["name"]).strip("/") != name.strip("/"):
                found[last] = _fsspec_stat(entry)
            else:
                # An object store's mark of the directory itself, or a file.
                is_there = entry.get("type") == "directory"
        # Some list what does not exist, and a file, as if it were an empty directory.
        if not found and not is_there and not self._fs.isdir(name):
            # Not whether it exists: another upload may have made the directory since.
            raise NotADirectoryError(name) if self._fs.isfile(name) else FileNotFoundError(name)
        return found

    def tree(self, name: str) -> dict[str, FileStat] | None:
        if not self._finds:
            return None
        self._fs.invalidate_cache(name)
        top = name.strip("/") + "/"
        found = {}
        for path, entry in self._fs.find(name, detail=True).items():
            below = str(path).strip("/")
            if below.startswith(top):  # not the mark of the directory itself
                found[below[len(top) :]] = _fsspec_stat(entry)
        return found

    def read(self, name: str, start: int, stop: int) -> bytes:
        if self._reads_ranges:
            return bytes(self._fs.cat_file(name, start=start, end=stop))
        # Without an extra request for a range, and without a second cache.
        with self._fs.open(name, "rb", cache_type="none") as file:
            file.seek(start)
            return bytes(file.read(stop - start))

    def write(self, name: str) -> Upload:
        return _FsspecUpload(self._fs, name)

    def move(self, source: str, target: str) -> None:
        # Not all of them replace an existing file, and not all report that they did not, or that the source is missing.
        self._fs.invalidate_cache(source)
        if not self._fs.exists(source):
            raise FileNotFoundError(source)
        if self._fs.exists(target):
            self._fs.rm_file(target)
        self._fs.mv(source, target)
        self._fs.invalidate_cache(target)

    def remove(self, name: str) -> None:
        self._fs.invalidate_cache(name)
        if not self._fs.exists(name):
            raise FileNotFoundError(name)
        self._fs.rm_file(name)

    def make_dirs(self, name: str) -> None:
        self._fs.makedirs(name, exist_ok=True)


class _FsspecUpload:
    """A file of fsspec's that only ``complete`` closes: closing one makes the bytes written so far the file."""

    def __init__(self, fs: Any, name: str) -> None:
        self._fs = fs
        self._name = name
        self._file = fs.open(name, "wb")

    def write(self, data: Buffer) -> object:
        return self._file.write(data)

    def complete(self) -> None:
        self._file.close()
        self._fs.invalidate_cache(self._name)

    def abandon(self) -> None:
        with suppress(Exception):
            self._file.discard()  # removes the sent parts, if the library can
        # Otherwise its collection would complete it.
        with suppress(AttributeError):
            self._file.closed = True


class HdfsStore:
    """HDFS, by hdfs-native: no Java."""

    def __init__(self, prefix: str, options: Mapping[str, Any]) -> None:
        hdfs = _import("hdfs_native", "hdfs:// needs hdfs-native", "kstore[hdfs]")
        config = {key: str(value) for key, value in options.items()}
        self._write_options = hdfs.WriteOptions
        self._client = limited(lambda: self._connect(hdfs, prefix, config), without_password(prefix))

    def _connect(self, hdfs: Any, prefix: str, config: dict[str, str]) -> Any:
        address = ADDRESS.fullmatch(prefix)
        if address is not None:
            import socket

            # hdfs-native silently retries a refused connection forever.
            socket.create_connection((address[1], int(address[2])), CONNECT_SECONDS_MAX).close()
        return hdfs.Client(None if prefix == "hdfs://" else prefix, config)

    def info(self, name: str) -> FileStat:
        return _hdfs_stat(self._client.get_file_info(name))

    def entries(self, name: str) -> dict[str, FileStat]:
        found = {}
        for entry in self._client.list_status(name):
            path = str(entry.path)
            if path.rstrip("/") == name.rstrip("/"):
                raise NotADirectoryError(name)  # a file is listed as itself
            found[path.rpartition("/")[2]] = _hdfs_stat(entry)
        return found

    def tree(self, name: str) -> dict[str, FileStat] | None:
        return None

    def read(self, name: str, start: int, stop: int) -> bytes:
        reader = self._client.read(name)
        # Fewer than the name node says, if the file is open for writing: hdfs-native reads none of the block that is
        # being written, and panics beyond its end.
        stop = min(stop, len(reader))
        return bytes(reader.read_range(start, stop - start)) if start < stop else b""

    def write(self, name: str) -> Upload:
        return _HdfsUpload(self._client.create(name, self._write_options(overwrite=True, create_parent=True)))

    def move(self, source: str, target: str) -> None:
        self._client.rename(source, target, True)

    def remove(self, name: str) -> None:
        if not self._client.delete(name, False):
            raise FileNotFoundError(name)

    def make_dirs(self, name: str) -> None:
        self._client.mkdirs(name, 0o755, True)


class _HdfsUpload:
    """A file on HDFS; it has its name, a temporary one, from the start."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, data: Buffer) -> object:
        return self._writer.write(bytes(data))

    def complete(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        # Closed, so that the name node ends the writer's lease; the next upload replaces it.
        self._writer.close()


def _import(module: str, what_for: str, install: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"{what_for}: pip install '{install}'") from error


def _overrides(fs: Any, method: str) -> bool:
    """Whether a file system of fsspec's has its own ``method``; an asynchronous one derives it from its twin."""
    spec = import_module("fsspec.spec")
    return bool(getattr(fs, "async_impl", False)) or getattr(type(fs), method) is not getattr(
        spec.AbstractFileSystem, method
    )


def _finds(fs: Any) -> bool:
    """Whether a file system of fsspec's lists a tree at once; those without a way of their own walk through it."""
    spec, asyn = import_module("fsspec.spec"), import_module("fsspec.asyn")
    walking = {spec.AbstractFileSystem.find, asyn.AsyncFileSystem.find, asyn.AsyncFileSystem._find}
    own = getattr(type(fs), "_find", None) if getattr(fs, "async_impl", False) else type(fs).find
    return own is not None and own not in walking


def _fsspec_stat(entry: Mapping[str, Any]) -> FileStat:
    is_dir = entry.get("type") == "directory"
    mtime = next((entry[key] for key in MTIME_KEYS if entry.get(key)), None)
    tag = next((str(entry[key]) for key in TAG_KEYS if entry.get(key)), "")
    return FileStat(int(entry.get("size") or 0), _nanoseconds(mtime), 0, 0, not is_dir, is_dir, tag=tag)


def _nanoseconds(when: object) -> int:
    """A library's time: seconds, ms (webhdfs), a ``datetime``, or ISO text; 0 for none."""
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            return 0
    if isinstance(when, datetime):
        return round(when.timestamp() * 1e6) * 1000
    if isinstance(when, (int, float)):
        # No file is from after the year 5000, and no count of ms is from before 1971.
        return round(when * 1e6) * 1000 if when < 1e11 else round(when) * 1_000_000
    return 0


def _hdfs_stat(status: Any) -> FileStat:
    is_dir = bool(status.isdir)
    return FileStat(int(status.length), int(status.modification_time) * 1_000_000, 0, 0, not is_dir, is_dir)


# --- time limits and errors -------------------------------------------------------------------------------------------


def limited(
    action: Callable[[], Result],
    url: str,
    *,
    writing: bool = False,
    slow: bool = False,
    passing: tuple[type[Exception], ...] = (),
) -> Result:
    """Runs ``action`` in a thread of its own, which is abandoned when its time is up: later for a ``slow`` one.

    Raises: StorageError for a library's exceptions, with ETIMEDOUT when the time is up; ``passing`` unchanged.
    """
    seconds = WRITE_SECONDS_MAX if writing or slow else READ_SECONDS_MAX
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    start_thread(work, name="kstore-remote").join(seconds)
    if results:
        return results[0]
    if not errors:
        raise StorageError(errno.ETIMEDOUT, f"no answer in {seconds:g} s", url)
    error = errors[0]
    if isinstance(error, (KstoreError, *passing)) or not isinstance(error, Exception):
        raise error
    raise _typed(error, url, writing=writing) from error


def retried(request: Callable[[], Result], seconds: float, *, sleep: Callable[[float], object] = time.sleep) -> Result:
    """Makes a request that changes nothing, again and again as long as the store fails to serve it, for ``seconds``.

    The pauses double, and are of random length, so that many readers do not come back together. A request that is
    refused (what it names does not exist, or must not be read) is not made again. Raises: as ``request``.
    """
    end = time.monotonic() + seconds
    pause = RETRY_SECONDS_MIN
    while True:
        try:
            return request()
        except StorageError as error:
            if not _is_transient(error) or time.monotonic() + pause > end:
                raise
        sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, RETRY_SECONDS_MAX)


def _is_transient(error: StorageError) -> bool:
    # Without credentials a library cannot even ask.
    return error.errno in TRANSIENT_ERRNOS and "Credential" not in type(error.__cause__).__name__


def _typed(error: Exception, url: str, *, writing: bool) -> StorageError:
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(number, int) and number in errno.errorcode:
        # Some libraries put their own numbers there; the system's have a name.
        return storage_error(OSError(number, os.strerror(number)), url, writing=writing)
    code = next((number for kind, number in ERRNO_BY_TYPE if isinstance(error, kind)), errno.EIO)
    text = plain_sentence(str(error))
    plain = code in (errno.ENOENT, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)
    said = os.strerror(code) if plain or not text else f"{type(error).__name__}: {text}"
    return storage_error(OSError(code, said), url, writing=writing)


def plain_sentence(text: str) -> str:
    """The first line of a library's error, without tokens; of each dump only its name and that of its block."""
    found = []
    at = 0
    while (dump := DUMP.search(text, at)) is not None:
        stop = _dump_stop(text, dump.end())
        block = BLOCK_ID.search(text, dump.end(), stop)
        found += [text[at : dump.start()], dump[1], f" of block {block[1]}" if block else ""]
        at = stop
    line = QUERY.sub("", ("".join(found) + text[at:]).partition("\n")[0])
    return line if len(line) <= SAID_MAX else line[:SAID_MAX] + " ..."


def _dump_stop(text: str, start: int) -> int:
    """Where the dump ends whose first brace is before ``start``: after its last brace, or at the end of the text."""
    depth = 1
    for part in DUMP_PART.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(part[0], 0)
        if depth == 0:
            return part.end()
    return len(text)


def without_password(url: str) -> str:
    """``url`` as it may be shown."""
    return PASSWORD.sub("@", url)
