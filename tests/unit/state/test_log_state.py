"""``kstore.state`` and ``kstore.compaction`` with numbers that no writer writes, but a correct CRC."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import crc32c
import pytest

import kstore
from kstore.errors import UnsupportedFormatError
from kstore.files.fs import FileStat
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.state.compaction_state import CompactionState, read_compaction_state
from kstore.state.log_state import (
    ACCEPTED_MAX,
    CRC,
    FILE_SIZE,
    LOST_MAX,
    SESSION,
    SLOT_SIZE,
    SLOTS_POSITION,
    LogState,
    StateFile,
    read_state,
    state_file_bytes,
)
from kstore.upkeep.verify import verify_log

INT64_MAX = (1 << 63) - 1


def write_slots(path: Path, *states: LogState) -> None:
    slots = b"".join(state.encode().ljust(SLOT_SIZE, b"\0") for state in states)
    path.write_bytes((bytes(SLOTS_POSITION) + slots).ljust(FILE_SIZE, b"\0"))


@pytest.mark.promise("hostile file")
@pytest.mark.parametrize("generation", [INT64_MAX, INT64_MAX - 1, 1 << 62])
def test_a_generation_that_cannot_be_counted_on_is_not_believed(generation: int, tmp_path: Path) -> None:
    path = tmp_path / "kstore.state"
    write_slots(path, LogState(generation=generation, durable_end=99), LogState(generation=7, durable_end=7))
    state = StateFile.open(SYSTEM_FS, path, mode=0o600)
    assert state.current is None
    for number in range(1, 4):
        state.store(LogState(durable_end=number))
        stored = read_state(SYSTEM_FS, path)
        assert stored is not None
        assert stored._replace(session=0) == LogState(generation=number, durable_end=number)
    state.publish_durable_end(12)
    found = read_state(SYSTEM_FS, path)
    assert found is not None
    assert found.durable_end == 12
    state.close()


@pytest.mark.promise("hostile file")
def test_a_log_with_such_a_generation_is_checked_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path) as log:
        log.append_many([b"a", b"b"])
    state = read_state(SYSTEM_FS, path / "kstore.state")
    assert state is not None
    write_slots(path / "kstore.state", LogState(), state._replace(generation=INT64_MAX))
    with Log(path) as log:
        assert log.recovery.notes == ["kstore.state is damaged: the whole log is checked"]
        assert log.append(b"c") == 2
    with Log(path) as log:
        assert log.recovery.clean
        assert [record.value for record in log.read()] == [b"a", b"b", b"c"]


def test_a_generation_below_zero_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "kstore.state"
    write_slots(path, LogState(generation=-5))
    assert read_state(SYSTEM_FS, path) is None


def test_a_clean_mark_holds_whatever_inode_and_time_the_file_has() -> None:
    for inode, mtime_ns in ((1 << 63) + 5, 1), (5, 1 << 63), (5, -1):
        state = LogState(clean=True, clean_base=0, clean_inode=inode, clean_size=9, clean_mtime_ns=mtime_ns)
        found = LogState.decode(state.encode())
        assert found is not None
        assert found.fits(0, FileStat(9, mtime_ns, inode, 1, False, False))
        assert not found.fits(0, FileStat(9, mtime_ns + 1, inode, 1, False, False))
        assert not found.fits(0, FileStat(9, mtime_ns, inode + 1, 1, False, False))


def test_a_log_whose_file_is_from_a_far_future_closes_in_order(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", durability="os")
    log.append(b"a")
    log.flush()
    (segment,) = (tmp_path / "log").glob("*.log")
    os.utime(segment, ns=(1 << 63, 1 << 63))
    if segment.stat().st_mtime_ns != 1 << 63:
        pytest.skip("this file system has no such times")
    log.close()
    with Log(tmp_path / "log") as again:
        assert again.recovery.clean


@pytest.mark.promise("hostile file")
@pytest.mark.parametrize(
    ("first_dirty", "swap", "is_believed"),
    [(INT64_MAX, (), True), (INT64_MAX + 1, (), False), (0, (0, INT64_MAX), True), (0, (0, INT64_MAX + 1), False)],
)
def test_offsets_that_cannot_be_are_no_compaction_state(
    first_dirty: int, swap: tuple[int, ...], is_believed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "kstore.compaction"
    bases = "".join(f" {base}" for base in swap)
    body = f"version 1\nfirst_dirty {first_dirty}\nswap{bases}\n".encode("ascii")
    path.write_bytes(body + b"crc %08x\n" % crc32c.crc32c(body))
    expected = CompactionState(first_dirty, swap) if is_believed else None
    assert read_compaction_state(SYSTEM_FS, path) == expected


def test_as_many_ranges_as_a_record_can_hold_are_read_again() -> None:
    lost = tuple((number * 10, number * 10 + 3) for number in range(LOST_MAX))
    accepted = tuple((number * 7, number * 7) for number in range(ACCEPTED_MAX))
    state = LogState(generation=3, txn_bytes=34, lost=lost, accepted=accepted)
    assert LogState.decode(state.encode().ljust(SLOT_SIZE, b"\0")) == state


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        (((5, 4),), "backwards"),
        (((-1, 4),), "below zero"),
        (((0, 4), (4, 9)), "overlapping"),
        (((8, 9), (1, 2)), "falling"),
    ],
)
def test_a_record_with_ranges_that_no_writer_writes_is_not_believed(
    ranges: tuple[tuple[int, int], ...], problem: str
) -> None:
    good = LogState(lost=tuple((number * 10, number * 10) for number in range(len(ranges)))).encode()
    after = SESSION.size + CRC.size
    body = good[: -after - 16 * len(ranges)] + b"".join(struct.pack(">qq", *each) for each in ranges)
    body += good[-after : -CRC.size]
    assert LogState.decode(good) is not None
    assert LogState.decode(with_crc(body)) is None, problem


def test_fields_of_a_later_release_are_passed_over() -> None:
    state = LogState(generation=3, durable_end=9, lost=((3, 4),))
    body = bytearray(state.encode()[: -CRC.size] + b"a later field")
    struct.pack_into(">H", body, 6, len(body) + CRC.size)
    assert LogState.decode(with_crc(bytes(body))) == state


def later_version() -> bytes:
    body = bytearray(LogState(generation=9).encode()[: -CRC.size] + b"whatever it holds")
    struct.pack_into(">HH", body, 4, 3, len(body) + CRC.size)
    return with_crc(bytes(body))


def with_crc(body: bytes) -> bytes:
    return body + CRC.pack(crc32c.crc32c(body))


@pytest.mark.promise("hostile file")
def test_a_log_of_a_later_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path) as log:
        log.append_many([b"a", b"b"])
    state_path = path / "kstore.state"
    state_path.write_bytes(
        state_file_bytes(LogState(generation=8))[:-SLOT_SIZE] + later_version().ljust(SLOT_SIZE, b"\0")
    )
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    for read_only in (False, True):
        with pytest.raises(UnsupportedFormatError, match=r"kstore\.state: version 3, expected 2 or earlier"):
            Log(path, read_only=read_only)
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before
    assert [finding.severity for finding in verify_log(path).findings] == ["note"]
    torn = bytearray(state_path.read_bytes())
    torn[-SLOT_SIZE + 30] ^= 1
    state_path.write_bytes(torn)
    with Log(path) as log:
        assert log.end_offset == 2, "a torn record of a later version is damage, and the other slot holds"


def test_a_store_opens_beside_a_log_of_a_later_version(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store") as store:
        store.create_topic("orders", partitions=2)
        store.log("orders", 1).append(b"a")
    path = tmp_path / "store" / "orders-0" / "kstore.state"
    path.write_bytes(bytes(SLOTS_POSITION) + later_version())
    with kstore.open(tmp_path / "store") as store:
        assert [record.value for record in store.log("orders", 1).read()] == [b"a"]
        with pytest.raises(UnsupportedFormatError, match="version 3, expected 2"):
            store.log("orders", 0)


def test_a_compaction_state_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kstore.compaction"
    body = b"version 3\nanything at all\n"
    path.write_bytes(body + b"crc %08x\n" % crc32c.crc32c(body))
    with pytest.raises(UnsupportedFormatError, match=r"kstore\.compaction: version 3, expected 2 or earlier"):
        read_compaction_state(SYSTEM_FS, path)
    path.write_bytes(body + b"crc 00000000\n")
    assert read_compaction_state(SYSTEM_FS, path) is None, "without its CRC it is damage"


def test_later_fields_of_a_compaction_state_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "kstore.compaction"
    body = b"version 2\nfirst_dirty 7\nswap 0 5\nlater field 9\n"
    path.write_bytes(body + b"crc %08x\n" % crc32c.crc32c(body))
    assert read_compaction_state(SYSTEM_FS, path) == CompactionState(7, (0, 5))


def test_a_file_cut_short_is_made_whole_before_it_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "kstore.state"
    path.write_bytes(state_file_bytes(LogState(generation=2, durable_end=5))[: SLOTS_POSITION + SLOT_SIZE])
    state = StateFile.open(SYSTEM_FS, path, mode=0o600)
    state.publish_durable_end(12)
    state.close()
    found = read_state(SYSTEM_FS, path)
    assert found is not None
    assert found.durable_end == 12
    assert path.stat().st_size == FILE_SIZE
