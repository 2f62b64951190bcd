"""The index of aborted transactions, which committed readers rely on (Kafka: TransactionIndexTest)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.errors import (
    ClosedError,
    CorruptIndexError,
    DiskFullError,
    InvalidOffsetError,
    ReadOnlyError,
    StorageError,
    SyncFailedError,
)
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.index import TransactionIndex
from kstore.types import AbortedTransaction
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs

FOUR = [
    AbortedTransaction(0, 0, 10, 11),
    AbortedTransaction(1, 5, 15, 13),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.txnindex"


@pytest.fixture
def index(path: Path) -> TransactionIndex:
    return open_index(path)


def open_index(path: Path, *, base_offset: int = 0, fs: FileSystem = SYSTEM_FS) -> TransactionIndex:
    return TransactionIndex.open(fs, path, base_offset, writable=True)


def fill(index: TransactionIndex) -> None:
    for transaction in FOUR:
        index.append(transaction)


def encoded(*transactions: AbortedTransaction, version: int = 0) -> bytes:
    return b"".join(
        version.to_bytes(2, "big", signed=True)
        + b"".join(field.to_bytes(8, "big", signed=True) for field in transaction)
        for transaction in transactions
    )


# --- format and append ------------------------------------------------------------------------------------------------


def test_an_entry_is_stored_as_kafka_stores_it(path: Path, index: TransactionIndex) -> None:
    index.append(AbortedTransaction(983493, 137, 299, 200))
    assert path.read_bytes() == bytes.fromhex(
        "0000 00000000000f01c5 0000000000000089 000000000000012b 00000000000000c8"
    )


def test_the_file_exists_from_the_first_entry_on(path: Path, index: TransactionIndex) -> None:
    assert index.collect_aborted(0, 100) == ([], False)
    assert list(index.entries()) == []
    index.check()
    index.flush()
    index.truncate_to(0)
    index.truncate()
    assert not path.exists()
    index.append(FOUR[0])
    assert path.stat().st_size == 34
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_index_opened_again_goes_on_at_its_end(path: Path, index: TransactionIndex) -> None:
    fill(index)
    index.close()
    again = open_index(path)
    assert (again.entry_count, again.size, again.last_offset) == (4, 136, 50)
    later = AbortedTransaction(3, 32, 60, 40)
    again.append(later)
    assert list(again.entries()) == [*FOUR, later]


@pytest.mark.parametrize("last_offset", [10, 9], ids=["the same", "a lower one"])
def test_last_offsets_rise(index: TransactionIndex, last_offset: int) -> None:
    index.append(FOUR[0])
    with pytest.raises(InvalidOffsetError, match="last offset 10"):
        index.append(AbortedTransaction(1, 5, last_offset, 13))
    assert index.entry_count == 1


@pytest.mark.parametrize(
    "transaction",
    [AbortedTransaction(1, 5, 99, 100), AbortedTransaction(1, 120, 110, 100), AbortedTransaction(1, -1, 110, 100)],
    ids=["before the segment", "ends before it begins", "begins before the log"],
)
def test_what_a_reader_would_refuse_is_not_written(path: Path, transaction: AbortedTransaction) -> None:
    index = open_index(path, base_offset=100)
    with pytest.raises(InvalidOffsetError):
        index.append(transaction)
    assert not path.exists()


def test_a_full_disk_leaves_the_index_as_it_was(path: Path) -> None:
    fs = FailingFs(SYSTEM_FS, Fault(at=2, errno=errno.ENOSPC, kinds=frozenset({"write_all"}), written=20))
    index = open_index(path, fs=fs)
    index.append(FOUR[0])
    with pytest.raises(DiskFullError):
        index.append(FOUR[1])
    assert list(index.entries()) == FOUR[:1]
    index.append(FOUR[1])
    index.check()
    assert path.read_bytes() == encoded(*FOUR[:2])


# --- collect ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "stop", "found", "is_complete"),
    [
        (0, 100, FOUR, False),
        (0, 32, FOUR[:3], True),
        (0, 35, FOUR, True),
        (10, 35, FOUR, True),
        (11, 35, FOUR[1:], True),
        (20, 41, FOUR[2:], False),
        (0, 0, [], True),
        (51, 100, [], False),
    ],
    ids=[
        "everything",
        "up to a first offset",
        "up to a stable offset",
        "from a last offset",
        "behind a last offset",
        "the end",
        "nothing",
        "behind everything",
    ],
)
def test_a_range_collects_the_transactions_that_overlap_it(
    index: TransactionIndex, start: int, stop: int, found: list[AbortedTransaction], is_complete: bool
) -> None:
    fill(index)
    assert index.collect_aborted(start, stop) == (found, is_complete)


def test_a_long_index_is_read_in_pieces(path: Path) -> None:
    many = [AbortedTransaction(slot, slot * 10, slot * 10 + 5, slot * 10) for slot in range(2500)]
    path.write_bytes(encoded(*many))
    fs = RecordingFs()
    index = TransactionIndex.open(fs, path, 0)
    assert list(index.entries()) == many
    assert max(operation.size for operation in fs.operations) <= 64 * 1024
    fs.operations.clear()
    assert index.collect_aborted(0, 20) == (many[:2], True)
    assert len(fs.operations) == 1, "it stops when no later entry can belong to the range"


# --- truncate ---------------------------------------------------------------------------------------------------------


def test_truncation_keeps_the_entries_that_ended_below_the_offset(path: Path, index: TransactionIndex) -> None:
    fill(index)
    index.truncate_to(51)
    assert list(index.entries()) == FOUR
    index.truncate_to(50)
    assert list(index.entries()) == FOUR[:3]
    assert index.last_offset == 35
    index.append(FOUR[3])
    index.truncate_to(0)
    assert list(index.entries()) == []
    assert index.last_offset == -1
    assert path.stat().st_size == 0


def test_a_whole_index_can_be_emptied(path: Path, index: TransactionIndex) -> None:
    fill(index)
    index.truncate()
    index.append(FOUR[0])
    assert path.read_bytes() == encoded(FOUR[0])


def test_an_index_that_makes_no_sense_can_be_emptied(path: Path) -> None:
    path.write_bytes(b"\xff" * 100)
    index = open_index(path)
    with pytest.raises(CorruptIndexError):
        index.truncate_to(0)
    index.truncate()
    fill(index)
    index.check()


# --- check ------------------------------------------------------------------------------------------------------------

DAMAGED: dict[str, tuple[bytes, str]] = {
    "half an entry": (encoded(*FOUR) + b"\0" * 5, "141 bytes, expected a multiple of 34"),
    "a later version": (encoded(FOUR[0], version=0x0100), "version 1, expected 0"),
    "a negative version": (encoded(FOUR[0], version=-1), "version -1, expected 0"),
    "the same again": (encoded(FOUR[0], FOUR[0]), "last offset 10, expected one above 10"),
    "falling": (encoded(FOUR[1], FOUR[0]), "last offset 10, expected one above 15"),
    "zeros": (bytes(68), "last offset 0, expected one above 0"),
    "ends before it begins": (encoded(AbortedTransaction(1, 20, 10, 5)), "first offset 20"),
    "noise": (random.Random(1).randbytes(340), "version"),
}


@pytest.mark.parametrize(("content", "reason"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_check_finds_each_kind_of_damage(path: Path, content: bytes, reason: str) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptIndexError, match=reason):
        TransactionIndex.open(SYSTEM_FS, path, 0).check()
    assert path.read_bytes() == content


def test_of_the_version_only_the_first_byte_is_read_as_kafka_does(path: Path) -> None:
    path.write_bytes(encoded(*FOUR, version=0x0010))
    assert list(TransactionIndex.open(SYSTEM_FS, path, 0).entries()) == FOUR


def test_a_check_refuses_entries_of_an_earlier_segment(path: Path, index: TransactionIndex) -> None:
    fill(index)
    index.check()
    with pytest.raises(CorruptIndexError, match="expected at least 100") as caught:
        TransactionIndex.open(SYSTEM_FS, path, 100).check()
    assert caught.value.position == 0


def test_damage_is_not_passed_over_by_a_reader_of_committed_records(path: Path) -> None:
    path.write_bytes(encoded(FOUR[0]) + bytes(34) + encoded(FOUR[2]))
    with pytest.raises(CorruptIndexError) as caught:
        TransactionIndex.open(SYSTEM_FS, path, 0).collect_aborted(0, 100)
    assert caught.value.position == 34


def test_half_an_entry_hides_nothing_from_a_reader_and_takes_no_append(path: Path) -> None:
    path.write_bytes(encoded(*FOUR)[:-1])
    index = open_index(path)
    with pytest.raises(CorruptIndexError):
        index.collect_aborted(0, 5)
    with pytest.raises(CorruptIndexError):
        index.append(AbortedTransaction(4, 60, 70, 71))
    index.truncate()
    fill(index)
    assert path.read_bytes() == encoded(*FOUR)


def test_an_append_that_fails_half_way_leaves_readers_no_half_entry(path: Path) -> None:
    fs = FailingFs()
    index = TransactionIndex.open(fs, path, 0, writable=True)
    index.append(FOUR[0])
    fs.faults.append(Fault(1, 28, written=17, kinds=frozenset({"write_all"})))
    with pytest.raises(DiskFullError):
        index.append(FOUR[1])
    assert TransactionIndex.open(SYSTEM_FS, path, 0).collect_aborted(0, 5).transactions == [FOUR[0]]
    index.append(FOUR[1])
    assert path.read_bytes() == encoded(*FOUR[:2])


def test_a_giant_index_of_zeros_ends_at_once(path: Path) -> None:
    path.touch()
    with path.open("r+b") as file:
        file.truncate(34 << 30)
    with pytest.raises(CorruptIndexError):
        TransactionIndex.open(SYSTEM_FS, path, 0).collect_aborted(0, 100)


def test_a_file_that_became_shorter_is_damage(path: Path, index: TransactionIndex) -> None:
    fill(index)
    with path.open("r+b") as file:
        file.truncate(40)
    with pytest.raises(CorruptIndexError, match="ends at 40, expected 136 bytes"):
        index.check()


# --- life -------------------------------------------------------------------------------------------------------------


def test_an_index_goes_on_under_a_new_name(path: Path, index: TransactionIndex) -> None:
    fill(index)
    renamed = path.with_name("renamed")
    SYSTEM_FS.rename(path, renamed)
    index.path = renamed
    index.append(AbortedTransaction(4, 60, 70, 71))
    assert renamed.stat().st_size == 5 * 34
    assert not path.exists()


def test_an_index_without_a_file_creates_it_under_its_new_name(
    tmp_path: Path, path: Path, index: TransactionIndex
) -> None:
    (tmp_path / "moved").mkdir()
    index.path = tmp_path / "moved" / path.name
    index.append(FOUR[0])
    assert (tmp_path / "moved" / path.name).exists()


def test_a_flush_syncs_the_entries(path: Path) -> None:
    fs = RecordingFs()
    index = open_index(path, fs=fs)
    index.append(FOUR[0])
    index.flush()
    assert fs.kinds() == ["create", "write_all", "fdatasync"]
    failing = FailingFs(SYSTEM_FS, Fault(at=1, kinds=frozenset({"fdatasync"})))
    with pytest.raises(SyncFailedError):
        open_index(path, fs=failing).flush()


def test_a_deleted_index_is_read_by_those_that_had_it_open(path: Path, index: TransactionIndex) -> None:
    fill(index)
    SYSTEM_FS.unlink(path)
    assert list(index.entries()) == FOUR
    index.close()
    assert not path.exists()


def test_a_sealed_index_is_read_and_not_written(index: TransactionIndex) -> None:
    fill(index)
    index.seal()
    assert not index.writable
    assert list(index.entries()) == FOUR
    changes: list[Callable[[], None]] = [
        lambda: index.append(AbortedTransaction(4, 60, 70, 71)),
        lambda: index.truncate_to(0),
        index.truncate,
    ]
    for change in changes:
        with pytest.raises(ReadOnlyError):
            change()


def test_a_closed_index_says_so(index: TransactionIndex) -> None:
    fill(index)
    index.close()
    index.close()
    uses: list[Callable[[], object]] = [
        lambda: index.append(AbortedTransaction(4, 60, 70, 71)),
        lambda: index.collect_aborted(0, 100),
        index.truncate,
        index.check,
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()


def test_a_reader_keeps_its_entries_when_the_index_is_closed(index: TransactionIndex) -> None:
    fill(index)
    entries = index.entries()
    assert next(entries) == FOUR[0]
    index.close()
    assert list(entries) == FOUR[1:]


def test_opening_for_reading_changes_nothing(path: Path) -> None:
    fs = RecordingFs()
    TransactionIndex.open(fs, path, 0).close()
    assert not path.exists()
    path.write_bytes(encoded(*FOUR) + b"\0")
    TransactionIndex.open(fs, path, 0).close()
    assert fs.kinds() == []


def test_a_read_error_is_no_damage(path: Path, index: TransactionIndex) -> None:
    fill(index)
    fs = FailingFs(SYSTEM_FS)
    reader = TransactionIndex.open(fs, path, 0)
    fs.faults.append(Fault(at=1, errno=errno.EIO, kinds=frozenset({"pread"})))
    with pytest.raises(StorageError) as caught:
        reader.collect_aborted(0, 100)
    assert caught.value.errno == errno.EIO
