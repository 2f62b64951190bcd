"""A damaged partition serves all records but the damaged batch's, and never a wrong one."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.errors import CorruptBatchError
from kstore.log import Log
from kstore.record._codec import Record
from kstore.types import CorruptRange
from tests.support.harness.golden_data import golden_partitions, golden_root

# The partition of clean/ that a case was made from; the rest were made from rolled-0.
SOURCES = {
    "timeindex-unordered-0": "unordered-time-0",
    "txnindex-version-0": "txn-0",
    "snapshot-crc-0": "txn-0",
    "gzip-body-0": "gzip-0",
}


def batch_bounds(data: bytes) -> list[tuple[int, int]]:
    """Start and end of each entry of an undamaged .log."""
    at, bounds = 0, []
    while at < len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        bounds.append((at, at + size))
        at += size
    return bounds


def offsets_of(data: bytes, start: int) -> range:
    base = struct.unpack_from(">q", data, start)[0]
    return range(base, base + struct.unpack_from(">i", data, start + 23)[0] + 1)


def lost_offsets(whole: bytes, damaged: bytes) -> set[int]:
    """The offsets of the batches with missing or changed bytes."""
    return {
        offset
        for start, stop in batch_bounds(whole)
        if damaged[start:stop] != whole[start:stop]
        for offset in offsets_of(whole, start)
    }


def whole_records(source: str) -> dict[int, Record]:
    with Log(golden_root() / "clean" / source, read_only=True) as log:
        return {record.offset: record for record in log.read()}


def assert_serves_all_but(log: Log, expected: dict[int, Record], lost: set[int]) -> None:
    reader = log.read(on_corrupt="skip")
    found = {record.offset: record for record in reader}
    assert found == {offset: record for offset, record in expected.items() if offset not in lost}
    said = {offset for gone in reader.corrupt for offset in range(gone.first, gone.last + 1)}
    # The recovery report lists what is cut from the end; for a reader it does not exist yet.
    missing = {offset for offset in lost if offset < log.end_offset}
    assert said == missing
    assert reader.corrupt == [item for item in log.read(on_corrupt="yield") if isinstance(item, CorruptRange)]
    if missing:
        with pytest.raises(CorruptBatchError) as caught:
            list(log.read())
        assert caught.value.first_offset == min(missing)


@pytest.mark.parametrize("name", golden_partitions("damaged"))
@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "writing"])
@pytest.mark.sampled(20)
def test_a_damaged_partition_serves_the_rest(name: str, read_only: bool, tmp_path: Path) -> None:
    source = SOURCES.get(name, "rolled-0")
    partition = golden_root() / "damaged" / name
    clean = golden_root() / "clean" / source
    if not read_only:
        partition = shutil.copytree(partition, tmp_path / name, copy_function=shutil.copyfile)
    lost: set[int] = set()
    present: set[int] = set()
    for path in partition.glob("*.log"):
        whole = (clean / path.name).read_bytes()
        lost |= lost_offsets(whole, path.read_bytes())
        present |= {offset for start, _ in batch_bounds(whole) for offset in offsets_of(whole, start)}
    expected = {offset: record for offset, record in whole_records(source).items() if offset in present}
    with Log(partition, read_only=read_only) as log:
        # A broker's snapshots prove records after those whose segments are here: a writer keeps their offsets.
        after = max(present, default=-1) + 1
        lost |= {offset for found in log.recovery.corrupt for offset in range(max(found.first, after), found.last + 1)}
        assert_serves_all_but(log, expected, lost)
        assert log.verify().clean == (not any(offset < log.end_offset for offset in lost))
        if not read_only:
            log.check()
            end = log.append(b"goes on", key=b"k")
            assert [record.value for record in log.read(end)] == [b"goes on"]


def flip(at: int) -> Callable[[bytearray, int, int], None]:
    def damage(data: bytearray, start: int, stop: int) -> None:
        data[start + at] ^= 0x10

    return damage


def put(at: int, new: bytes) -> Callable[[bytearray, int, int], None]:
    def damage(data: bytearray, start: int, stop: int) -> None:
        data[start + at : start + at + len(new)] = new

    return damage


def zeros(data: bytearray, start: int, stop: int) -> None:
    data[start:stop] = bytes(stop - start)


DAMAGES: dict[str, Callable[[bytearray, int, int], None]] = {
    "flipped-record": flip(80),
    "flipped-crc": flip(18),
    "offset-higher": flip(6),
    "offset-lower": put(0, struct.pack(">q", 5)),
    "length-huge": put(8, struct.pack(">i", 0x7FFFFFFF)),
    "length-larger": put(8, struct.pack(">i", 1000)),
    "length-negative": put(8, struct.pack(">i", -1)),
    "length-zero": put(8, bytes(4)),
    "length-small": put(8, struct.pack(">i", 13)),
    "magic-unknown": put(16, b"\x09"),
    "magic-old": put(16, b"\x01"),
    "codec-unknown": put(22, b"\x07"),
    "count-huge": put(57, struct.pack(">i", 0x7FFFFFFF)),
    "zeros": zeros,
}


@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "writing"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("source", ["rolled-0", "retained-0", "lz4-0", "txn-rolled-0", "plain-0"])
@pytest.mark.sampled(40)
def test_damage_in_the_middle_of_a_log_takes_one_batch(
    source: str, damage: Callable[[bytearray, int, int], None], read_only: bool, tmp_path: Path
) -> None:
    expected = whole_records(source)
    partition = shutil.copytree(golden_root() / "clean" / source, tmp_path / source, copy_function=shutil.copyfile)
    logs = sorted(path for path in partition.glob("*.log") if path.stat().st_size)
    path = logs[len(logs) // 2]
    whole = path.read_bytes()
    bounds = batch_bounds(whole)
    # A data batch: a transaction marker is too short for some of the damage.
    start, stop = next(each for each in bounds[len(bounds) // 2 :] if each[1] - each[0] > 100)
    data = bytearray(whole)
    damage(data, start, stop)
    path.write_bytes(data)
    with Log(partition, read_only=read_only) as log:
        lost = set(offsets_of(whole, start))
        found = {record.offset: record for record in log.read(on_corrupt="skip")}
        assert found == {offset: record for offset, record in expected.items() if offset not in lost}
        assert log.end_offset > max(expected)
        for offset in sorted(expected)[:: max(len(expected) // 50, 1)]:
            if offset not in lost:
                assert next(log.read(offset, on_corrupt="skip")) == expected[offset]


@pytest.mark.parametrize("content", [None, b"", b"\x07" * 50], ids=["lost", "empty", "garbage"])
@pytest.mark.parametrize("partition", ["txn-0", "txn-rolled-0", "crash-txn-0"])
def test_a_damaged_transaction_index_is_rebuilt_to_the_byte(
    partition: str, content: bytes | None, tmp_path: Path
) -> None:
    tree = "recovered" if partition.startswith("crash") else "clean"
    source = golden_root() / tree / partition
    copy = shutil.copytree(source, tmp_path / partition, copy_function=shutil.copyfile)
    indexes = sorted(copy.glob("*.txnindex"))
    assert indexes
    for index in indexes:
        index.unlink()
        if content is not None:
            index.write_bytes(content)
    with Log(copy) as log, Log(source, read_only=True) as whole:
        assert not log.recovery.clean
        expected = list(whole.read(isolation_level="read_committed"))
        assert list(log.read(isolation_level="read_committed")) == expected
    assert [index.read_bytes() for index in indexes] == [(source / index.name).read_bytes() for index in indexes]
