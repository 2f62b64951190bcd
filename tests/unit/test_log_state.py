"""``kstore.state`` and ``kstore.compaction`` with numbers that no writer has written, though their CRC is right."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import crc32c
import pytest

from kstore.files.fs import FileStat
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.state.compaction_state import CompactionState, read_compaction_state
from kstore.state.log_state import FILE_SIZE, SLOT_SIZE, LogState, StateFile, read_state

INT64_MAX = (1 << 63) - 1


def write_slots(path: Path, *states: LogState) -> None:
    path.write_bytes(b"".join(state.encode().ljust(SLOT_SIZE, b"\0") for state in states).ljust(FILE_SIZE, b"\0"))


@pytest.mark.promise("hostile file")
@pytest.mark.parametrize("generation", [INT64_MAX, INT64_MAX - 1, 1 << 62])
def test_a_generation_that_cannot_be_counted_on_is_not_believed(generation: int, tmp_path: Path) -> None:
    path = tmp_path / "kstore.state"
    write_slots(path, LogState(generation=generation, durable_end=99), LogState(generation=7, durable_end=7))
    state = StateFile.open(SYSTEM_FS, path, mode=0o600)
    assert state.current is None
    for number in range(1, 4):
        state.store(LogState(durable_end=number))
        assert read_state(SYSTEM_FS, path) == LogState(generation=number, durable_end=number)
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
    write_slots(path / "kstore.state", LogState(), replace(state, generation=INT64_MAX))
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
