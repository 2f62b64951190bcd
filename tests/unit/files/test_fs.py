"""The door to the operating system: what it opens, what it writes, and the name of each refusal."""

from __future__ import annotations

import errno
import gc
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kstore.errors import (
    ClosedError,
    DiskFullError,
    FileInTheWayError,
    FileMissingError,
    ReadOnlyError,
    StorageError,
    SyncFailedError,
)
from kstore.files import platform
from kstore.files._direct import is_named
from kstore.files.fs import Advice, read_file, storage_error
from kstore.files.local import SYSTEM_FS, OsFile
from kstore.files.unmapped import UnmappedFile
from tests.support.fakes.fake_fs import RecordingFs
from tests.support.harness.size_limit import size_limit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def file(path: Path) -> OsFile:
    return SYSTEM_FS.open(path, write=True, create=True)


def descriptor_is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


# --- opening ----------------------------------------------------------------------------------------------------------


def test_open_of_a_missing_file_is_typed(path: Path) -> None:
    with pytest.raises(FileMissingError) as caught:
        SYSTEM_FS.open(path)
    assert isinstance(caught.value, FileNotFoundError)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(path))


def test_create_refuses_a_name_that_is_taken(file: OsFile, path: Path) -> None:
    with pytest.raises(FileInTheWayError):
        SYSTEM_FS.open(path, write=True, create=True)


def test_create_gives_the_mode_that_was_asked_for(tmp_path: Path) -> None:
    SYSTEM_FS.open(tmp_path / "private", write=True, create=True)
    SYSTEM_FS.open(tmp_path / "shared", write=True, create=True, mode=0o640)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o640


def test_a_symbolic_link_is_not_followed(file: OsFile, path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(StorageError, match="symbolic link"):
        SYSTEM_FS.open(tmp_path / "link")


def test_a_fifo_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StorageError, match="not a regular file"):
        SYSTEM_FS.open(tmp_path / "fifo")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="not a regular file"):
        SYSTEM_FS.open(tmp_path)
    with pytest.raises(StorageError):
        SYSTEM_FS.open(tmp_path, write=True)


def test_the_descriptor_is_not_inherited(file: OsFile) -> None:
    assert not os.get_inheritable(file.fileno())


# --- life of a descriptor ---------------------------------------------------------------------------------------------


def test_the_descriptor_goes_with_the_last_reference(path: Path, file: OsFile) -> None:
    other = SYSTEM_FS.open(path)
    fd = other.fileno()
    kept = other
    del other
    assert descriptor_is_open(fd)
    del kept
    gc.collect()
    assert not descriptor_is_open(fd)


def test_close_twice_closes_once(file: OsFile, path: Path) -> None:
    fd = file.fileno()
    file.close()
    other = SYSTEM_FS.open(path)
    assert other.fileno() == fd, "the number is free again"
    file.close()
    assert other.pread(1, 0) == b""


def test_every_use_of_a_closed_file_says_so(file: OsFile) -> None:
    file.close()
    uses: list[Callable[[], object]] = [
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.write_all([b"x"], 0),
        lambda: file.write_and_sync([b"x"], 0),
        file.fdatasync,
        file.fsync,
        file.size,
        file.stat,
        file.fileno,
        lambda: file.truncate(0),
        lambda: file.map(1),
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()


# --- reading ----------------------------------------------------------------------------------------------------------


def test_pread_is_short_only_at_the_end(file: OsFile) -> None:
    file.write_all([b"0123456789"], 0)
    assert file.pread(4, 3) == b"3456"
    assert file.pread(100, 7) == b"789"
    assert file.pread(4, 10) == b""
    assert file.pread(0, 0) == b""


def test_pread_goes_on_after_a_short_read(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_all([b"0123456789"], 0)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: pread(fd, min(size, 3), position))
    assert file.pread(8, 1) == b"12345678"
    assert file.pread(100, 1) == b"123456789"


def test_a_huge_pread_allocates_no_more_than_the_file_has(file: OsFile) -> None:
    file.write_all([b"abc"], 0)
    assert file.pread(1 << 60, 0) == b"abc"
    assert file.pread(1 << 60, 10) == b""


def test_read_file_stops_at_its_limit(file: OsFile, path: Path) -> None:
    file.write_all([b"0123456789"], 0)
    assert read_file(SYSTEM_FS, path, 100) == b"0123456789"
    assert read_file(SYSTEM_FS, path, 4) == b"0123"


# --- writing ----------------------------------------------------------------------------------------------------------

WRITERS = pytest.mark.parametrize("writer", ["write_all", "write_and_sync"])


@WRITERS
@pytest.mark.parametrize(
    "buffers",
    [[b"abcdef"], [b"abc", b"", b"def"], [bytearray(b"ab"), memoryview(b"cdef")], [b"a", *[b"b"] * 3000, b"c"]],
    ids=["one", "several", "kinds of buffer", "more than one call takes"],
)
def test_buffers_are_written_one_after_the_other(file: OsFile, writer: str, buffers: Sequence[bytes]) -> None:
    getattr(file, writer)(buffers, 3)
    assert file.pread(10_000, 0) == b"\0\0\0" + b"".join(bytes(buffer) for buffer in buffers)


@WRITERS
def test_a_short_write_is_gone_on_with(file: OsFile, writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev = os.pwritev
    flags_seen = set()

    def short(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        flags_seen.add(flags)
        return pwritev(fd, [b"".join(bytes(buffer) for buffer in buffers)[:2]], position, flags)

    monkeypatch.setattr(os, "pwritev", short)
    getattr(file, writer)([b"abc", b"defgh", b"i"], 0)
    assert file.pread(100, 0) == b"abcdefghi"
    assert flags_seen == {platform.DSYNC_FLAG if writer == "write_and_sync" else 0}, "every part is a durable one"


@WRITERS
def test_a_write_that_makes_no_progress_ends(file: OsFile, writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def stuck(*args: object) -> int:
        calls.append(args)
        return 0

    monkeypatch.setattr(os, "pwritev", stuck)
    monkeypatch.setattr(os, "pwrite", stuck)
    with pytest.raises(StorageError, match="took no byte"):
        getattr(file, writer)([b"abc"], 0)
    assert len(calls) == 3


@WRITERS
def test_the_file_size_limit_is_a_full_disk(file: OsFile, writer: str) -> None:
    with size_limit(1000), pytest.raises(DiskFullError) as caught:
        getattr(file, writer)([b"x" * 1500], 0)
    assert caught.value.errno == errno.EFBIG
    assert file.size() == 1000, "what fitted was written first"


@WRITERS
def test_a_failed_write_does_not_keep_the_callers_buffer(file: OsFile, writer: str) -> None:
    buffer = bytearray(b"x" * 1500)
    with size_limit(1000), pytest.raises(DiskFullError) as caught:
        getattr(file, writer)([buffer], 0)
    buffer.extend(b"a buffer that was exported could not grow")
    assert caught.value.errno == errno.EFBIG


def test_a_sync_that_fails_after_the_write_is_told_apart(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev = os.pwritev

    def write_then_fail(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        pwritev(fd, buffers, position)
        raise OSError(errno.ENOSPC, "delayed allocation found no space")

    monkeypatch.setattr(os, "pwritev", write_then_fail)
    with pytest.raises(SyncFailedError) as caught:
        file.write_and_sync([b"abc"], 0)
    assert caught.value.errno == errno.ENOSPC
    assert not isinstance(caught.value, DiskFullError)


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, StorageError)],
    ids=["no space", "quota", "device"],
)
def test_a_synced_write_that_wrote_nothing_is_a_failed_write(
    file: OsFile, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[StorageError]
) -> None:
    def fail(*args: object) -> int:
        raise OSError(code, "injected")

    file.write_all([b"before"], 0)
    monkeypatch.setattr(os, "pwritev", fail)
    with pytest.raises(expected) as caught:
        file.write_and_sync([b"abc"], 6)
    assert type(caught.value) is expected


def test_a_file_system_without_durable_writes_gets_a_write_and_a_sync(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    pwritev = os.pwritev

    def refuse_flags(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "injected")
        return pwritev(fd, buffers, position)

    monkeypatch.setattr(os, "pwritev", refuse_flags)
    monkeypatch.setattr(platform, "sync_data", synced.append)
    file.write_and_sync([b"abc", b"def"], 0)
    assert file.pread(10, 0) == b"abcdef"
    assert synced == [file.fileno()]


@pytest.mark.parametrize(("method", "call"), [("fdatasync", "sync_data"), ("fsync", "sync_all")])
def test_a_failed_sync_has_its_own_error(file: OsFile, monkeypatch: pytest.MonkeyPatch, method: str, call: str) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EDQUOT, "injected")

    monkeypatch.setattr(platform, call, fail)
    with pytest.raises(SyncFailedError) as caught:
        getattr(file, method)()
    assert caught.value.errno == errno.EDQUOT
    assert caught.value.filename == file.path


def test_a_write_to_a_file_opened_for_reading_is_refused(file: OsFile, path: Path) -> None:
    reader = SYSTEM_FS.open(path)
    with pytest.raises(StorageError) as caught:
        reader.pwrite(b"x", 0)
    assert caught.value.errno == errno.EBADF


# --- size and blocks --------------------------------------------------------------------------------------------------


def test_truncate_grows_with_zeros_and_cuts(file: OsFile) -> None:
    file.write_all([b"abc"], 0)
    file.truncate(5)
    assert file.pread(10, 0) == b"abc\0\0"
    file.truncate(2)
    assert file.stat().size == file.size() == 2


def test_allocate_keeps_the_size_and_truncate_gives_the_blocks_back(file: OsFile) -> None:
    file.write_all([b"abc"], 0)
    if not file.allocate(0, 1 << 20):
        pytest.skip("this file system reserves no blocks")
    assert file.size() == 3
    assert Path(file.path).stat().st_blocks * 512 >= 1 << 20
    file.truncate(3)
    assert Path(file.path).stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize(
    ("position", "size"), [(-1, 10), (0, 0), (0, 1 << 64), ((1 << 63) - 1, 1)], ids=["negative", "none", "huge", "end"]
)
def test_allocate_of_a_range_that_no_file_has_is_refused(file: OsFile, position: int, size: int) -> None:
    assert not file.allocate(position, size)


def test_allocate_of_a_closed_file_is_refused(file: OsFile) -> None:
    file.close()
    assert not file.allocate(0, 10)


@pytest.mark.parametrize("advice", ["normal", "sequential", "random", "willneed", "dontneed"])
def test_advice_changes_no_byte_and_raises_nothing(file: OsFile, advice: Advice) -> None:
    file.write_all([b"abc"], 0)
    file.advise(0, 0, advice)
    assert file.pread(3, 0) == b"abc"
    file.close()
    file.advise(0, 0, advice)


def test_send_to_hands_a_range_to_a_socket(file: OsFile) -> None:
    file.write_all([b"0123456789"], 0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert file.send_to(ours.fileno(), 2, 5) == 5
        assert theirs.recv(100) == b"23456"
        assert file.send_to(ours.fileno(), 10, 5) == 0


# --- mappings ---------------------------------------------------------------------------------------------------------


def test_a_mapping_shows_the_file_and_changes_it(file: OsFile) -> None:
    file.write_all([b"abcdef"], 0)
    mapping = file.map(4096)
    assert (mapping.size, file.size()) == (4096, 4096)
    mapping.store(2, b"XY")
    assert mapping[0:8] == b"abXYef\0\0"
    assert mapping.read(4094, 10) == b"\0\0"
    assert file.pread(6, 0) == b"abXYef"
    mapping.sync()


def test_a_second_mapping_shows_what_the_first_one_stores(file: OsFile) -> None:
    small = file.map(4096)
    large = file.map(8192)
    small.store(0, b"one")
    large.store(8000, b"two")
    assert large[0:3] == b"one"


def test_the_blocks_of_a_mapping_are_there_before_it(file: OsFile) -> None:
    file.truncate(1 << 20)
    file.map(1 << 20)
    assert Path(file.path).stat().st_blocks * 512 >= 1 << 20


def test_a_mapping_without_space_is_a_full_disk(file: OsFile) -> None:
    with size_limit(4096), pytest.raises(DiskFullError):
        file.map(8192)


def test_a_closed_mapping_says_so(file: OsFile) -> None:
    mapping = file.map(4096)
    mapping.close()
    mapping.close()
    with pytest.raises(ClosedError):
        mapping[0:1]
    with pytest.raises(ClosedError):
        mapping.store(0, b"x")


def test_filling_by_writing_keeps_the_bytes_and_allocates_the_rest(file: OsFile) -> None:
    file.write_all([b"abc"], 0)
    file.truncate(100_000)
    file.write_all([b"xyz"], 70_000)
    platform.fill_by_writing(file.fileno(), 150_000)
    expected = bytearray(150_000)
    expected[0:3] = b"abc"
    expected[70_000:70_003] = b"xyz"
    assert file.pread(200_000, 0) == expected
    assert Path(file.path).stat().st_blocks * 512 >= 150_000


def test_a_c_library_that_cannot_fill_has_a_substitute(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, position: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "injected")

    monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
    assert file.map(4096)[0:1] == b"\0"


# --- names ------------------------------------------------------------------------------------------------------------


def test_rename_replaces_the_target(tmp_path: Path) -> None:
    for name in ("a", "b"):
        SYSTEM_FS.open(tmp_path / name, write=True, create=True).write_all([name.encode()], 0)
    SYSTEM_FS.rename(tmp_path / "a", tmp_path / "b")
    assert SYSTEM_FS.list(tmp_path) == ["b"]
    assert read_file(SYSTEM_FS, tmp_path / "b", 10) == b"a"


def test_names_that_are_missing_are_typed(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for use in (
        lambda: SYSTEM_FS.rename(missing, tmp_path / "b"),
        lambda: SYSTEM_FS.unlink(missing),
        lambda: SYSTEM_FS.list(missing),
        lambda: SYSTEM_FS.stat(missing),
        lambda: SYSTEM_FS.rmdir(missing),
        lambda: SYSTEM_FS.sync_dir(missing),
        lambda: SYSTEM_FS.set_mtime(missing, 0),
        lambda: SYSTEM_FS.mkdir(missing / "below"),
    ):
        with pytest.raises(FileMissingError):
            use()
    assert not SYSTEM_FS.exists(missing)
    assert not SYSTEM_FS.exists(missing / "below")


def test_a_dangling_link_exists_and_is_neither_file_nor_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert SYSTEM_FS.exists(tmp_path / "link")
    stat = SYSTEM_FS.stat(tmp_path / "link")
    assert (stat.is_file, stat.is_dir) == (False, False)


def test_stat_follows_a_link_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert not SYSTEM_FS.stat(tmp_path / "link").is_dir
    assert SYSTEM_FS.stat(tmp_path / "link", follow_symlinks=True).is_dir


def test_directories_are_made_private_and_removed(tmp_path: Path) -> None:
    SYSTEM_FS.mkdir(tmp_path / "d")
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileInTheWayError):
        SYSTEM_FS.mkdir(tmp_path / "d")
    SYSTEM_FS.sync_dir(tmp_path)
    SYSTEM_FS.rmdir(tmp_path / "d")
    assert SYSTEM_FS.list(tmp_path) == []


def test_a_directory_that_can_never_be_synced_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [errno.EINVAL, errno.EIO]

    def fail(fd: int) -> None:
        raise OSError(codes.pop(0), "injected")

    monkeypatch.setattr(platform, "sync_all", fail)
    SYSTEM_FS.sync_dir(tmp_path)
    with pytest.raises(SyncFailedError):
        SYSTEM_FS.sync_dir(tmp_path)


def test_mtime_is_set_to_the_nanosecond(file: OsFile) -> None:
    SYSTEM_FS.set_mtime(file.path, 1_234_567_890_123_456_789)
    assert file.stat().mtime_ns == 1_234_567_890_123_456_789


def test_stat_of_a_name_and_of_its_file_are_the_same(file: OsFile) -> None:
    file.write_all([b"abc"], 0)
    stat = SYSTEM_FS.stat(file.path)
    assert stat == file.stat()
    assert (stat.size, stat.is_file, stat.is_dir) == (3, True, False)


def test_a_file_is_named_until_its_name_stands_for_another_one(file: OsFile, path: Path) -> None:
    inode = file.inode()
    assert is_named(file, inode)
    assert is_named(UnmappedFile(file), inode)
    assert not is_named(file, inode + 1)
    path.rename(path.with_name("elsewhere"))
    assert not is_named(file, inode)
    path.symlink_to("elsewhere")
    assert not is_named(file, inode)
    path.unlink()
    path.write_bytes(b"")
    assert not is_named(file, inode)


@pytest.mark.parametrize("name", [b"h\xc3\xa9", b"\xff\xfe"])
def test_a_file_is_named_by_any_bytes(tmp_path: Path, name: bytes) -> None:
    file = SYSTEM_FS.open(tmp_path / os.fsdecode(name), write=True, create=True)
    assert is_named(file, file.inode())


def test_whether_a_file_of_another_file_system_is_named_is_not_told(file: OsFile, path: Path) -> None:
    other = RecordingFs(SYSTEM_FS).open(path)
    assert not is_named(other, file.inode())


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "writing", "expected"),
    [
        (errno.ENOSPC, True, DiskFullError),
        (errno.EDQUOT, True, DiskFullError),
        (errno.EFBIG, True, DiskFullError),
        (errno.EROFS, True, ReadOnlyError),
        (errno.EACCES, True, ReadOnlyError),
        (errno.EPERM, True, ReadOnlyError),
        (errno.EACCES, False, StorageError),
        (errno.EIO, True, StorageError),
        (errno.EMFILE, False, StorageError),
        (errno.ENOENT, False, FileMissingError),
        (errno.EEXIST, True, FileInTheWayError),
    ],
    ids=[
        "no space",
        "quota",
        "file size limit",
        "read-only file system",
        "no permission",
        "not permitted",
        "no permission to read",
        "device",
        "descriptors",
        "missing",
        "taken",
    ],
)
def test_each_errno_has_its_type_and_keeps_its_facts(code: int, writing: bool, expected: type[StorageError]) -> None:
    error = storage_error(OSError(code, "what it said"), Path("/a/b"), writing=writing)
    assert type(error) is expected
    assert (error.errno, error.strerror, error.filename) == (code, "what it said", "/a/b")
