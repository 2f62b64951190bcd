"""Small files: Kafka's text, replaced as a whole, and read whatever they contain."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.errors import CorruptFileError, DiskFullError, FileMissingError, StorageError, SyncFailedError
from kstore.files.checkpoint import (
    EpochEntry,
    read_broker_epoch,
    read_leader_epochs,
    read_offset_checkpoint,
    read_small_file,
    read_topic_id,
    replace_file,
    write_clean_shutdown,
    write_leader_epochs,
    write_offset_checkpoint,
    write_topic_id,
)
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs

TOPIC_ID = uuid.UUID("11223344-5566-7788-99aa-bbccddeeff00")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


# --- replacing --------------------------------------------------------------------------------------------------------


def test_a_replacement_is_durable_step_by_step(path: Path) -> None:
    fs = RecordingFs()
    replace_file(fs, path, b"new")
    assert [(op.kind, op.path, op.target) for op in fs.operations] == [
        ("create", f"{path}.tmp", ""),
        ("write_all", f"{path}.tmp", ""),
        ("fsync", f"{path}.tmp", ""),
        ("close", f"{path}.tmp", ""),
        ("rename", f"{path}.tmp", str(path)),
        ("sync_dir", str(path.parent), ""),
    ]
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_replacement_takes_the_place_of_what_a_crash_left(path: Path) -> None:
    path.write_bytes(b"old")
    path.with_name("file.tmp").write_bytes(b"half of someth")
    replace_file(SYSTEM_FS, path, b"new", mode=0o640)
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(at=1, errno=errno.ENOSPC, kinds=frozenset({"create"})), DiskFullError),
        (Fault(at=1, errno=errno.ENOSPC, kinds=frozenset({"write_all"}), written=1), DiskFullError),
        (Fault(at=1, kinds=frozenset({"fsync"})), SyncFailedError),
        (Fault(at=1, kinds=frozenset({"rename"})), StorageError),
    ],
    ids=["create", "write", "sync", "rename"],
)
def test_a_replacement_that_fails_leaves_the_old_file_and_no_litter(
    path: Path, fault: Fault, expected: type[StorageError]
) -> None:
    path.write_bytes(b"old")
    with pytest.raises(expected):
        replace_file(FailingFs(SYSTEM_FS, fault), path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_name_that_may_not_last_is_an_error(path: Path) -> None:
    fs = FailingFs(SYSTEM_FS, Fault(at=1, kinds=frozenset({"sync_dir"})))
    with pytest.raises(SyncFailedError):
        replace_file(fs, path, b"new")


def test_a_file_without_a_directory_in_its_path_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    replace_file(SYSTEM_FS, "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_file_that_is_too_large_is_not_read(path: Path) -> None:
    path.write_bytes(b"x" * 101)
    assert len(read_small_file(SYSTEM_FS, path, 101)) == 101
    with pytest.raises(CorruptFileError, match="over 100 bytes"):
        read_small_file(SYSTEM_FS, path, 100)


# --- offset checkpoints (Kafka: OffsetCheckpointFileTest) -------------------------------------------------------------


def test_offsets_are_written_and_overwritten(path: Path) -> None:
    first = {TopicPartition("foo", 1): 5, TopicPartition("bar", 2): 10}
    write_offset_checkpoint(SYSTEM_FS, path, first)
    assert path.read_bytes() == b"0\n2\nbar 2 10\nfoo 1 5\n"
    assert read_offset_checkpoint(SYSTEM_FS, path) == first
    second = {TopicPartition("foo", 2): 15, TopicPartition("bar", 3): 20}
    write_offset_checkpoint(SYSTEM_FS, path, second)
    assert read_offset_checkpoint(SYSTEM_FS, path) == second


def test_a_store_of_many_partitions_fits_its_checkpoint(path: Path) -> None:
    offsets = {TopicPartition("topic-of-some-length", partition): partition * 7 for partition in range(3000)}
    write_offset_checkpoint(SYSTEM_FS, path, offsets)
    assert path.stat().st_size > 64 * 1024
    assert read_offset_checkpoint(SYSTEM_FS, path) == offsets


@pytest.mark.parametrize("content", [b"", b"0\n0\n"], ids=["new", "rewritten"])
def test_a_checkpoint_without_entries_has_none(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_offset_checkpoint(SYSTEM_FS, path) == {}
    assert read_leader_epochs(SYSTEM_FS, path) == []
    write_offset_checkpoint(SYSTEM_FS, path, {})
    assert path.read_bytes() == b"0\n0\n"


def test_a_missing_checkpoint_has_no_entries(path: Path) -> None:
    assert read_offset_checkpoint(SYSTEM_FS, path) == {}
    assert read_leader_epochs(SYSTEM_FS, path) == []


def test_a_missing_directory_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError):
        write_offset_checkpoint(SYSTEM_FS, tmp_path / "missing" / "file", {})


def test_line_ends_of_another_platform_are_read(path: Path) -> None:
    path.write_bytes(b"0\r\n1\r\nfoo 1 5\r\n")
    assert read_offset_checkpoint(SYSTEM_FS, path) == {TopicPartition("foo", 1): 5}


DAMAGED_HEADS = {
    "unknown version": b"1\n1\nfoo 1 5\n",
    "no version": b"\n1\nfoo 1 5\n",
    "version that is no number": b"x\n1\nfoo 1 5\n",
    "no count": b"0\n",
    "count that is no number": b"0\none\nfoo 1 5\n",
    "negative count": b"0\n-1\n",
    "count above the entries": b"0\n2\nfoo 1 5\n",
    "count below the entries": b"0\n1\nfoo 1 5\nfoo 2 5\n",
    "huge count": b"0\n99999999999999999999\nfoo 1 5\n",
    "zeros": bytes(512),
    "zeros behind": b"0\n1\nfoo 1 5\n" + bytes(100),
    "not UTF-8": b"0\n1\n\xff\xfe 1 5\n",
}
DAMAGED_OFFSETS = {
    "two fields": b"0\n1\nfoo 5\n",
    "four fields": b"0\n1\nfoo 1 5 6\n",
    "offset that is no number": b"0\n1\nfoo 1 five\n",
    "negative offset": b"0\n1\nfoo 1 -5\n",
    "offset above 63 bits": b"0\n1\nfoo 1 9223372036854775808\n",
    "partition above 31 bits": b"0\n1\nfoo 2147483648 5\n",
    "partition that is no number": b"0\n1\nfoo x 5\n",
    "digits of another script": "0\n1\nfoo 1 \u0665\n".encode(),
    "topic that is a path": b"0\n1\n../foo 1 5\n",
    "empty line": b"0\n1\n\n",
}


@pytest.mark.parametrize(
    "content", (DAMAGED_HEADS | DAMAGED_OFFSETS).values(), ids=(DAMAGED_HEADS | DAMAGED_OFFSETS).keys()
)
def test_a_damaged_offset_checkpoint_is_one_typed_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptFileError) as caught:
        read_offset_checkpoint(SYSTEM_FS, path)
    assert caught.value.path == path


def test_every_truncation_of_a_checkpoint_is_damage_or_a_shorter_number(path: Path) -> None:
    whole = b"0\n2\nbar 2 10\nfoo 1 500\n"
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        try:
            offsets = read_offset_checkpoint(SYSTEM_FS, path)
        except CorruptFileError:
            continue
        # The format has no end mark: at worst the last number has lost digits.
        assert offsets[TopicPartition("bar", 2)] == 10
        assert "500".startswith(str(offsets[TopicPartition("foo", 1)]))


# --- leader epochs (Kafka: LeaderEpochCheckpointFileTest) -------------------------------------------------------------


def test_leader_epochs_are_written_and_overwritten(path: Path) -> None:
    first = [EpochEntry(0, 1), EpochEntry(1, 2), EpochEntry(2, 3)]
    write_leader_epochs(SYSTEM_FS, path, first)
    assert path.read_bytes() == b"0\n3\n0 1\n1 2\n2 3\n"
    assert read_leader_epochs(SYSTEM_FS, path) == first
    second = [EpochEntry(3, 4), EpochEntry(5, 6)]
    write_leader_epochs(SYSTEM_FS, path, second)
    assert read_leader_epochs(SYSTEM_FS, path) == second


def test_a_partition_may_have_had_thousands_of_leaders(path: Path) -> None:
    entries = [EpochEntry(epoch, 1_000_000_000_000 + 7 * epoch) for epoch in range(10_000)]
    write_leader_epochs(SYSTEM_FS, path, entries)
    assert read_leader_epochs(SYSTEM_FS, path) == entries


@pytest.mark.parametrize(
    "content",
    [
        *DAMAGED_HEADS.values(),
        b"0\n1\n1\n",
        b"0\n1\n1 2 3\n",
        b"0\n1\n-1 2\n",
        b"0\n1\n2147483648 2\n",
        b"0\n1\n1 9223372036854775808\n",
    ],
    ids=[*DAMAGED_HEADS, "one field", "three fields", "negative", "epoch above 31 bits", "offset above 63 bits"],
)
def test_damaged_leader_epochs_are_one_typed_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptFileError):
        read_leader_epochs(SYSTEM_FS, path)


# --- partition.metadata (Kafka: PartitionMetadataFileTest) ------------------------------------------------------------


def test_a_topic_id_is_written_as_kafka_writes_it(path: Path) -> None:
    write_topic_id(SYSTEM_FS, path, TOPIC_ID)
    assert path.read_bytes() == b"version: 0\ntopic_id: ESIzRFVmd4iZqrvM3e7_AA"
    assert read_topic_id(SYSTEM_FS, path) == TOPIC_ID


def test_a_later_version_of_the_metadata_is_read(path: Path) -> None:
    path.write_bytes(b"version: 7\ntopic_id: ESIzRFVmd4iZqrvM3e7_AA\n")
    assert read_topic_id(SYSTEM_FS, path) == TOPIC_ID


DAMAGED_METADATA = {
    "empty": b"",
    "zero id": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
    "negative version": b"version: -1\ntopic_id: ESIzRFVmd4iZqrvM3e7_AA",
    "no version": b"topic_id: ESIzRFVmd4iZqrvM3e7_AA",
    "no id": b"version: 0\n",
    "short id": b"version: 0\ntopic_id: ESIzRFVmd4iZqrvM3e7_A",
    "long id": b"version: 0\ntopic_id: ESIzRFVmd4iZqrvM3e7_AAA",
    "other letters": b"version: 0\ntopic_id: ESIzRFVmd4iZqrvM3e7/AA",
    "another line": b"version: 0\ntopic_id: ESIzRFVmd4iZqrvM3e7_AA\nx: y",
    "not UTF-8": b"version: 0\ntopic_id: \xff\xfezRFVmd4iZqrvM3e7_AA",
    "zeros": bytes(43),
    "huge": b"version: 0\n" * 10_000,
}


@pytest.mark.parametrize("content", DAMAGED_METADATA.values(), ids=DAMAGED_METADATA.keys())
def test_damaged_metadata_is_one_typed_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptFileError):
        read_topic_id(SYSTEM_FS, path)


def test_missing_metadata_says_so(path: Path) -> None:
    with pytest.raises(FileMissingError):
        read_topic_id(SYSTEM_FS, path)


# --- the clean-shutdown marker (Kafka: CleanShutdownFileHandlerTest) --------------------------------------------------


def test_a_clean_marker_is_written_as_kafka_writes_it(path: Path) -> None:
    write_clean_shutdown(SYSTEM_FS, path, 399)
    assert path.read_bytes() == b'{"version":0,"brokerEpoch":399}'
    assert read_broker_epoch(SYSTEM_FS, path) == 399


def test_no_marker_is_no_clean_stop(path: Path) -> None:
    assert read_broker_epoch(SYSTEM_FS, path) is None


MARKERS: dict[str, tuple[bytes, int]] = {
    "of older releases": (b"", -1),
    "with a field that is not known": (b'{"version":1,"brokerEpoch":7,"later":[1]}', 7),
    "without an epoch": (b'{"version":0}', -1),
    "with an epoch that is no number": (b'{"brokerEpoch":"7"}', -1),
    "with an epoch that is a truth": (b'{"brokerEpoch":true}', -1),
    "that is no object": (b"[1]", -1),
    "that is no JSON": (b"{", -1),
    "that is no text": (b"\xff\xfe\xfd", -1),
    "that is nested too deep": (b"[" * 60_000, -1),
    "that is too large": (b" " * 100_000, -1),
}


@pytest.mark.parametrize(("content", "epoch"), MARKERS.values(), ids=MARKERS.keys())
def test_a_marker_counts_whatever_is_in_it(path: Path, content: bytes, epoch: int) -> None:
    path.write_bytes(content)
    assert read_broker_epoch(SYSTEM_FS, path) == epoch


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        lambda fs, path: read_offset_checkpoint(fs, path),
        lambda fs, path: read_leader_epochs(fs, path),
        lambda fs, path: read_topic_id(fs, path),
        lambda fs, path: read_broker_epoch(fs, path),
    ],
    ids=["offsets", "epochs", "topic id", "marker"],
)
def test_a_read_error_is_no_damage(path: Path, read: Callable[[FailingFs, Path], object]) -> None:
    path.write_bytes(b"0\n0\n")
    fs = FailingFs(SYSTEM_FS, Fault(at=1, errno=errno.EIO, kinds=frozenset({"pread"})))
    with pytest.raises(StorageError) as caught:
        read(fs, path)
    assert caught.value.errno == errno.EIO
