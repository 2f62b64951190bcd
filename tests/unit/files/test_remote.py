"""Files on other machines: read in ranges, written whole, with kstore's own errors."""

from __future__ import annotations

import errno
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import ConfigError, FileMissingError, KstoreError, ReadOnlyError, StorageError
from kstore.files import remote_stores
from kstore.files.fs import read_file
from kstore.files.remote import RemoteFiles, is_remote, open_remote
from kstore.log import Log

DATA = bytes(range(256)) * 4096  # 1 MiB


# --- where a URL leads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "remote"),
    [
        ("data/orders-0", False),
        ("/data", False),
        ("file:///data", False),
        ("a:b", False),
        ("s3://bucket/data", True),
        ("hdfs:///data", True),
        ("simplecache::s3://bucket/data", True),
    ],
)
def test_a_url_without_a_scheme_is_local(url: str, remote: bool) -> None:
    assert is_remote(url) is remote


def test_local_paths_lead_to_the_local_file_system(tmp_path: Path) -> None:
    for url in (str(tmp_path), tmp_path, f"file://{tmp_path}"):
        at = open_remote(url)
        assert at.local is not None
        assert at.path == tmp_path
        assert at.url == str(tmp_path)


def test_a_password_is_not_shown(memory: str) -> None:
    files = open_remote("memory://user:secret@host/x")
    assert files.url == "memory://user@host/x"


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        open_remote("nosuch://bucket/x")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(ConfigError, match=r"pip install 'kstore\[hdfs\]'"):
        open_remote("hdfs://name-node/x")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"pip install 'kstore\[remote\]'"):
        open_remote("s3://bucket/x")


# --- whole files out, ranges in ---------------------------------------------------------------------------------------


def every_kind(tmp_path: Path, memory: str) -> list[str]:
    return [str(tmp_path / "there"), memory]


def test_what_is_put_is_there_whole(tmp_path: Path, memory: str) -> None:
    for url in every_kind(tmp_path, memory):
        fs, path, _ = open_remote(url)
        fs.make_dirs(path)
        assert fs.put(path / "a", [DATA[:1000], DATA[1000:]]) == len(DATA)
        assert fs.put(path / "empty", []) == 0
        assert sorted(fs.list(path)) == ["a", "empty"]
        assert fs.open(path / "a").pread(len(DATA), 0) == DATA
        assert fs.open(path / "empty").pread(10, 0) == b""
        assert fs.stat(path / "a").size == len(DATA)
        assert fs.stat(path / "a").is_file
        assert fs.stat(path).is_dir
        assert fs.exists(path / "a")
        assert not fs.exists(path / "b")
        stats = fs.list_stats(path)
        assert {name: stat.size for name, stat in stats.items()} == {"a": len(DATA), "empty": 0}
        assert all(stat.mtime_ns > 1_600_000_000 * 10**9 for stat in stats.values())


def test_a_put_that_fails_leaves_the_name_as_it_was(tmp_path: Path, memory: str) -> None:
    def failing() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    for url in every_kind(tmp_path, memory):
        fs, path, _ = open_remote(url)
        fs.make_dirs(path)
        fs.put(path / "a", [b"old"])
        with pytest.raises(KeyboardInterrupt):
            fs.put(path / "a", failing())
        with pytest.raises(KeyboardInterrupt):
            fs.put(path / "b", failing())
        assert fs.open(path / "a").pread(10, 0) == b"old"
        assert not fs.exists(path / "b")


def test_a_file_is_replaced_renamed_and_removed(tmp_path: Path, memory: str) -> None:
    for url in every_kind(tmp_path, memory):
        fs, path, _ = open_remote(url)
        fs.make_dirs(path)
        fs.put(path / "a", [b"one"])
        fs.put(path / "a", [b"three"])
        fs.put(path / "b", [b"b"])
        fs.rename(path / "a", path / "b")
        assert fs.list(path) == ["b"]
        assert fs.open(path / "b").pread(10, 0) == b"three"
        fs.unlink(path / "b")
        with pytest.raises(FileMissingError):
            fs.unlink(path / "b")
        with pytest.raises(FileMissingError):
            fs.open(path / "b")


def test_a_rename_of_what_is_not_there_leaves_its_target(tmp_path: Path, memory: str) -> None:
    for url in every_kind(tmp_path, memory):
        fs, path, _ = open_remote(url)
        fs.make_dirs(path)
        fs.put(path / "b", [b"b"])
        with pytest.raises(FileMissingError):
            fs.rename(path / "a", path / "b")
        assert fs.open(path / "b").pread(10, 0) == b"b"


def test_reads_of_any_range_give_the_bytes(memory: str) -> None:
    fs, path, _ = open_remote(memory)
    fs.put(path / "a", [DATA])
    file = fs.open(path / "a")
    for position in (0, 1, 65_535, 65_536, 65_537, 500_000, 3, len(DATA) - 1, len(DATA), len(DATA) + 5):
        for size in (0, 1, 100, 65_536, 300_000):
            assert file.pread(size, position) == DATA[position : position + size]


def test_a_walk_reads_ahead_in_growing_steps_and_nothing_twice(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[tuple[int, int]] = []
    read_range = RemoteFiles.read_range

    def watched(self: RemoteFiles, path: str, start: int, stop: int) -> bytes:
        ranges.append((start, stop))
        return read_range(self, path, start, stop)

    monkeypatch.setattr(RemoteFiles, "read_range", watched)
    fs, path, _ = open_remote(memory)
    fs.put(path / "a", [DATA])
    file = fs.open(path / "a")
    for position in range(0, len(DATA), 1000):
        assert file.pread(1000, position) == DATA[position : position + 1000]
    assert sum(stop - start for start, stop in ranges) == len(DATA)
    assert len(ranges) < 8


def test_a_file_that_grows_is_read_to_its_new_end(memory: str) -> None:
    fs, path, _ = open_remote(memory)
    fs.put(path / "a", [b"one"])
    file = fs.open(path / "a")
    assert file.pread(100, 0) == b"one"
    fs.put(path / "a", [b"one two"])
    assert file.pread(100, 0) == b"one two"
    assert file.size() == 7


def test_nothing_is_changed_in_place(memory: str) -> None:
    fs, path, _ = open_remote(memory)
    fs.put(path / "a", [b"one"])
    assert isinstance(fs, RemoteFiles)
    file = fs.open(path / "a")
    refused: list[Callable[[], object]] = [
        lambda: fs.open(path / "a", write=True),
        lambda: fs.open(path / "b", write=True, create=True),
        lambda: fs.mkdir(path / "d"),
        lambda: fs.rmdir(path),
        lambda: fs.sync_dir(path),
        lambda: fs.set_mtime(path, 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.write_all([b"x"], 0),
        lambda: file.write_and_sync([b"x"], 0),
        lambda: file.truncate(0),
        lambda: file.fdatasync(),
        lambda: file.fsync(),
        lambda: file.map(10),
    ]
    for action in refused:
        with pytest.raises(ReadOnlyError):
            action()
    assert file.pread(9, 0) == b"one"


def test_a_log_opens_for_reading_there(memory: str, tmp_path: Path) -> None:
    with Log(tmp_path / "a-0", segment_bytes=2000) as log:
        for number in range(50):
            log.append(b"%d" % number * 20)
    fs, path, _ = open_remote(memory)
    assert isinstance(fs, RemoteFiles)
    for file in (tmp_path / "a-0").iterdir():
        fs.put(path / "a-0" / file.name, [file.read_bytes()])
    with Log(path / "a-0", read_only=True, fs=fs) as copy:
        assert copy.end_offset == 50
        assert list(copy.read_values(30)) == [b"%d" % number * 20 for number in range(30, 50)]


# --- errors and time limits -------------------------------------------------------------------------------------------


def test_what_a_library_raises_is_typed() -> None:
    cases: list[tuple[Exception, int]] = [
        (FileNotFoundError("x"), errno.ENOENT),
        (PermissionError("x"), errno.EACCES),
        (TimeoutError(), errno.ETIMEDOUT),
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (OSError(16, "404 Not Found"), 16),
        (OSError(99_999, "the library's own"), errno.EIO),
        (RuntimeError("no"), errno.EIO),
        (ValueError("no"), errno.EIO),
    ]
    for error, code in cases:

        def failing(error: Exception = error) -> None:
            raise error

        with pytest.raises(StorageError) as caught:
            remote_stores.limited(failing, "s3://bucket/x")
        assert caught.value.errno == code
        assert caught.value.filename == "s3://bucket/x"


def test_a_token_in_a_librarys_message_is_not_shown() -> None:
    def failing() -> None:
        raise RuntimeError("404 Not Found for url: http://host/v1/x?user=me&delegation=secret at once")

    with pytest.raises(StorageError, match="http://host/v1/x at once") as caught:
        remote_stores.limited(failing, "webhdfs://host/x")
    assert "secret" not in str(caught.value)


BLOCK = (
    'LocatedBlockProto { b: ExtendedBlockProto { pool_id: "BP-{1}\\"}", block_id: 1073741825, generation_stamp: 1001,'
    ' num_bytes: Some(5) }, offset: 0, locs: [DatanodeInfoProto { id: DatanodeIdProto { ip_addr: "127.0.0.1" } }] }'
)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("All DataNodes failed: no", "All DataNodes failed: no"),
        (f"blocks not found for {BLOCK}", "blocks not found for LocatedBlock of block 1073741825"),
        (
            f"read of {BLOCK}, then {BLOCK}: gone",
            "read of LocatedBlock of block 1073741825, then LocatedBlock of block 1073741825: gone",
        ),
        ("lost [DatanodeInfoProto { id: 1 }, Other { a: 2 }]", "lost [DatanodeInfo, Other]"),
        (
            "pretty LocatedBlockProto {\n    block_id: 7,\n    locs: [],\n}, at once\nmore",
            "pretty LocatedBlock of block 7, at once",
        ),
        ("cut short LocatedBlockProto { b: Extended", "cut short LocatedBlock"),
        ("fatal RPC error: org.apache.hadoop.X: no\n\tat java.lang.Thread", "fatal RPC error: org.apache.hadoop.X: no"),
        ("x" * 600, "x" * 500 + " ..."),
        ("", ""),
    ],
)
def test_a_librarys_error_is_one_sentence_without_dumps(said: str, shown: str) -> None:
    assert remote_stores.plain_sentence(said) == shown


def test_a_long_dump_costs_one_pass() -> None:
    assert remote_stores.plain_sentence("lost " + "A { " * 50_000) == "lost A"


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_stores, "READ_SECONDS_MAX", 0.01)
    answer = threading.Event()
    with pytest.raises(StorageError) as caught:
        remote_stores.limited(lambda: answer.wait(30), "hdfs://nowhere/x")
    answer.set()
    assert caught.value.errno == errno.ETIMEDOUT
    assert isinstance(caught.value, KstoreError)


def test_an_address_where_no_name_node_listens_is_reported_at_once() -> None:
    pytest.importorskip("hdfs_native")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"hdfs://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(StorageError) as caught:
            open_remote(f"{url}/x")
    assert caught.value.errno == errno.ECONNREFUSED
    assert caught.value.filename == url


# --- HDFS -------------------------------------------------------------------------------------------------------------


class PanicError(BaseException):
    """As hdfs-native's, which is no Exception."""


class HdfsReader:
    """A reader of ``hdfs_native``; ``open_bytes`` at the end are in a block that is being written."""

    open_bytes = 0

    def __init__(self, data: bytes) -> None:
        self._data = data[: len(data) - self.open_bytes]

    def __len__(self) -> int:
        return len(self._data)

    def read_range(self, start: int, size: int) -> bytes:
        if start + size > len(self._data):
            raise PanicError("Cannot read past end of the file")
        return self._data[start : start + size]


class FakeHdfs:
    """What kstore uses of ``hdfs_native.Client``, over a dict."""

    files: dict[str, bytes]

    def __init__(self, url: str | None, config: dict[str, str]) -> None:
        self.url = url
        self.config = config
        self.files = {}
        self.dirs = {"/"}

    def get_file_info(self, path: str) -> Any:
        if path in self.dirs:
            return types.SimpleNamespace(path=path, length=0, isdir=True, modification_time=0)
        if path not in self.files:
            raise FileNotFoundError(path)
        size = len(self.files[path])
        return types.SimpleNamespace(path=path, length=size, isdir=False, modification_time=1_700_000_000_000)

    def list_status(self, path: str) -> Iterator[Any]:
        if path in self.files:
            yield self.get_file_info(path)
        for name in (*self.dirs, *self.files):
            if name != "/" and name.rpartition("/")[0] == path.rstrip("/"):
                yield self.get_file_info(name)

    def read(self, path: str) -> Any:
        return HdfsReader(self.files[path])

    def create(self, path: str, options: Any) -> Any:
        assert options.overwrite
        self.files[path] = b""

        def write(data: bytes) -> int:
            self.files[path] += data
            return len(data)

        return types.SimpleNamespace(write=write, close=lambda: None)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        assert overwrite or target not in self.files
        self.files[target] = self.files.pop(source)

    def delete(self, path: str, recursive: bool) -> bool:
        return self.files.pop(path, None) is not None

    def mkdirs(self, path: str, mode: int, parents: bool) -> None:
        self.dirs.update(str(parent) for parent in (Path(path), *Path(path).parents))


def test_hdfs_is_read_and_written_through_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    options = types.SimpleNamespace
    module = types.SimpleNamespace(Client=FakeHdfs, WriteOptions=options)
    monkeypatch.setitem(sys.modules, "hdfs_native", module)
    fs, path, local = open_remote("hdfs://name-service/kafka", storage_options={"dfs.replication": 2})
    assert local is None
    fs.make_dirs(path)
    fs.put(path / "a", [DATA[:10], DATA[10:]])
    assert fs.list(path) == ["a"]
    assert read_file(fs, path / "a", len(DATA)) == DATA  # type: ignore[arg-type]
    assert fs.stat(path / "a").mtime_ns == 1_700_000_000 * 10**9
    with pytest.raises(StorageError, match="Not a directory"):
        fs.list(path / "a")
    fs.rename(path / "a", path / "b")
    fs.unlink(path / "b")
    with pytest.raises(FileMissingError):
        fs.unlink(path / "b")


@pytest.mark.parametrize("open_bytes", [5, len(DATA)])
def test_a_file_that_is_open_for_writing_ends_where_hdfs_native_stops(
    open_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name node counts bytes of the block that is being written."""
    module = types.SimpleNamespace(Client=FakeHdfs, WriteOptions=types.SimpleNamespace)
    monkeypatch.setitem(sys.modules, "hdfs_native", module)
    monkeypatch.setattr(HdfsReader, "open_bytes", open_bytes)
    fs, path, _ = open_remote("hdfs://name-service/kafka")
    fs.put(path / "a", [DATA])
    assert fs.stat(path / "a").size == len(DATA)
    file = fs.open(path / "a")
    assert file.pread(len(DATA), 0) == DATA[: len(DATA) - open_bytes]
    assert file.pread(3, len(DATA) - 3) == b""


@pytest.mark.parametrize("lists_what_is_missing", [False, True])
def test_a_missing_directory_and_a_file_are_told_apart(
    lists_what_is_missing: bool, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = open_remote(memory) / "orders-0"
    store: Any = type(pytest.importorskip("fsspec").filesystem("memory"))
    ls = store.ls

    def lenient(files: Any, path: str, **options: Any) -> Any:
        try:
            return ls(files, path, **options)
        except (FileNotFoundError, NotADirectoryError):
            return []

    if lists_what_is_missing:
        monkeypatch.setattr(store, "ls", lenient)
    with pytest.raises(FileMissingError):
        at.fs.list_stats(at.path)
    at.fs.put(at.path / "0", [b"of a file"])
    assert list(at.fs.list_stats(at.path)) == ["0"]
    with pytest.raises(StorageError) as raised:
        at.fs.list_stats(at.path / "0")
    assert raised.value.errno == errno.ENOTDIR


def test_a_directory_that_an_upload_makes_during_its_listing_is_not_taken_for_a_file(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store's directory is there as soon as another thread's first object in it is."""
    at = open_remote(memory) / "orders-0"
    store: Any = type(pytest.importorskip("fsspec").filesystem("memory"))
    isdir, ls = store.isdir, store.ls

    def empty(files: Any, path: str, **options: Any) -> Any:
        """As stores that list what does not exist."""
        try:
            return ls(files, path, **options)
        except FileNotFoundError:
            return []

    def late(files: Any, path: str) -> bool:
        found = bool(isdir(files, path))
        if not found:
            files.pipe_file(f"{path}/0", b"of another thread")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(store, "ls", empty)
        patch.setattr(store, "isdir", late)
        with pytest.raises(FileMissingError):
            at.fs.list_stats(at.path)
    assert list(at.fs.list_stats(at.path)) == ["0"]
    with pytest.raises(StorageError) as raised:
        at.fs.list_stats(at.path / "0")
    assert raised.value.errno == errno.ENOTDIR
