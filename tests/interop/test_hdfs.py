"""Logs on a real HDFS, by hdfs-native and over WebHDFS: files, logs and mirrors."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.cli.main import main
from kstore.errors import CorruptBatchError, FileMissingError, LogNotFoundError, ReadOnlyError, StorageError
from kstore.files.remote import Location, open_remote
from tests.interop.on_hdfs import PARTITIONS, files_of, put_broker_s, put_files
from tests.support.harness.golden_data import golden_root
from tools.interop.dfs import Dfs

pytestmark = pytest.mark.interop

DATA = random.Random(7).randbytes(3 << 20)


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_are_put_listed_replaced_and_removed(at: Location) -> None:
    fs, path, _ = at
    assert fs.put(path / "a", [DATA[:1000], DATA[1000:]]) == len(DATA)
    assert fs.put(path / "empty", []) == 0
    assert {name: stat.size for name, stat in fs.list_stats(path).items()} == {"a": len(DATA), "empty": 0}
    assert fs.stat(path / "a").mtime_ns > 1_600_000_000 * 10**9
    assert fs.stat(path).is_dir
    fs.put(path / "a", [b"new"])
    assert fs.open(path / "a").pread(10, 0) == b"new"
    fs.rename(path / "a", path / "empty")
    assert fs.list(path) == ["empty"]
    assert fs.open(path / "empty").pread(10, 0) == b"new"
    fs.unlink(path / "empty")
    assert fs.list(path) == []


def test_reads_of_any_range_give_the_bytes(at: Location) -> None:
    fs, path, _ = at
    fs.put(path / "a", [DATA])
    file = fs.open(path / "a")
    for position in (0, 1, 65_535, 65_536, 2_000_000, 3, len(DATA) - 1, len(DATA), len(DATA) + 5):
        for size in (0, 1, 100, 65_536, 1_300_000):
            assert file.pread(size, position) == DATA[position : position + size]


def test_a_put_that_fails_leaves_the_name_as_it_was(at: Location) -> None:
    def failing() -> Iterator[bytes]:
        yield b"new" * 100_000
        raise KeyboardInterrupt

    fs, path, _ = at
    fs.put(path / "a", [b"old"])
    for name in ("a", "b"):
        with pytest.raises(KeyboardInterrupt):
            fs.put(path / name, failing())
    assert fs.list(path) == ["a"]
    assert fs.open(path / "a").pread(10, 0) == b"old"


def test_what_is_not_there_is_a_typed_error(at: Location) -> None:
    fs, path, _ = at
    fs.put(path / "b", [b"b"])
    for action in (
        lambda: fs.open(path / "a"),
        lambda: fs.list(path / "a"),
        lambda: fs.unlink(path / "a"),
        lambda: fs.rename(path / "a", path / "b"),
    ):
        with pytest.raises(FileMissingError):
            action()
    with pytest.raises(LogNotFoundError):
        kstore.Log(path / "a", read_only=True, fs=at.reading)
    with pytest.raises(StorageError, match="Not a directory"):
        fs.list(path / "b")
    with pytest.raises(StorageError) as caught:
        fs.open(path)
    assert caught.value.errno == errno.EISDIR
    with pytest.raises(ReadOnlyError):
        fs.open(path / "b", write=True)
    assert fs.open(path / "b").pread(10, 0) == b"b"


# --- logs -------------------------------------------------------------------------------------------------------------


def test_a_broker_s_log_reads_there_as_it_does_here(at: Location) -> None:
    source = put_broker_s(at)
    for partition in PARTITIONS:
        with (
            kstore.Log(source / partition, read_only=True) as here,
            kstore.Log(at.path / partition, read_only=True, fs=at.reading) as there,
        ):
            assert (there.start_offset, there.end_offset) == (here.start_offset, here.end_offset)
            assert there.last_stable_offset == here.last_stable_offset
            middle = (here.start_offset + here.end_offset) // 2
            for level in ("read_uncommitted", "read_committed"):
                for start in (here.start_offset, middle):
                    assert list(there.read(start, isolation_level=level)) == list(
                        here.read(start, isolation_level=level)
                    )
            assert there.to_arrow() == here.to_arrow()


def test_damage_names_the_file_there(at: Location) -> None:
    source = golden_root() / "clean" / "plain-0"
    put_files(source, at / "plain-0")
    name = next(path.name for path in source.iterdir() if path.suffix == ".log")
    data = bytearray((source / name).read_bytes())
    data[len(data) // 2] ^= 0xFF
    at.fs.put(at.path / "plain-0" / name, [data])
    with (
        kstore.Log(at.path / "plain-0", read_only=True, fs=at.reading) as log,
        pytest.raises(CorruptBatchError, match=name),
    ):
        list(log.read(log.start_offset))


def test_a_log_that_grows_there_is_read_to_its_new_end(at: Location, tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "a-0") as log:
        log.append(b"one")
        put_files(tmp_path / "a-0", at / "a-0")
        with kstore.Log(at.path / "a-0", read_only=True, fs=at.reading) as reader:
            assert list(reader.read_values(0)) == [b"one"]
            log.append(b"two")
            put_files(tmp_path / "a-0", at / "a-0")
            assert list(reader.read_values(0)) == [b"one", b"two"]


# --- mirrors ----------------------------------------------------------------------------------------------------------


def test_a_mirror_goes_there_and_comes_back_byte_for_byte(
    at: Location, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with kstore.Log(tmp_path / "data" / "a-0", segment_bytes=200_000) as log:
        for number in range(20):
            log.append_many([b"%06d" % number * 20] * 500)
        log.roll()
    url = at.fs.url_of(at.path / "copy")
    assert main(["mirror", str(tmp_path / "data"), url]) == 0
    first = capfd.readouterr().out
    assert main(["mirror", str(tmp_path / "data"), url]) == 0
    assert " 0 segments copied" in capfd.readouterr().out
    assert " 0 segments copied" not in first
    assert main(["mirror", url, str(tmp_path / "back")]) == 0
    with kstore.Log(tmp_path / "data" / "a-0", read_only=True) as log:
        rows = list(log.read(0))
    with kstore.Log(tmp_path / "back" / "a-0", read_only=True) as copy:
        assert list(copy.read(0)) == rows
    wanted = {
        name: data for name, data in files_of(tmp_path / "data" / "a-0").items() if name.endswith(".log") and data
    }
    found = files_of(tmp_path / "back" / "a-0")
    assert {name: found[name] for name in wanted} == wanted


def test_the_same_files_are_seen_in_both_ways(dfs: Dfs) -> None:
    one, other = open_remote(f"{dfs.hdfs}/both"), open_remote(f"{dfs.webhdfs}/both")
    one.fs.make_dirs(one.path)
    one.fs.put(one.path / "a", [DATA])
    assert other.fs.open(other.path / "a").pread(len(DATA), 0) == DATA
    other.fs.put(other.path / "b", [DATA[:10]])
    assert one.fs.list_stats(one.path).keys() == other.fs.list_stats(other.path).keys() == {"a", "b"}


def test_a_log_whose_last_file_is_open_for_writing_ends_with_what_can_be_read(dfs: Dfs) -> None:
    """hdfs-native reads nothing of a block that is being written; WebHDFS reads what was synced."""
    import hdfs_native

    source = golden_root() / "clean" / "rolled-0"
    files = files_of(source)
    last = max(name for name in files if name.endswith(".log"))
    with kstore.Log(source, read_only=True) as log:
        offsets = [record.offset for record in log]
    client = hdfs_native.Client(dfs.hdfs)
    at = open_remote(f"{dfs.hdfs}/open/rolled-0")
    at.fs.make_dirs(at.path)
    for name, data in files.items():
        if name != last:
            at.fs.put(at.path / name, [data])
    writer = client.create(str(at.path / last), hdfs_native.WriteOptions())
    writer.write(files[last])
    writer.hsync()
    assert at.fs.stat(at.path / last).size == len(files[last])
    with kstore.Log(at.url, read_only=True) as log:
        assert [record.offset for record in log] == [offset for offset in offsets if offset < int(last[:20])]
    with kstore.Log(f"{dfs.webhdfs}/open/rolled-0", read_only=True) as log:
        assert [record.offset for record in log] == offsets
    writer.close()
    with kstore.Log(at.url, read_only=True) as log:
        assert [record.offset for record in log] == offsets
