"""A tail without a whole batch, as in a file that a broker preallocated: it is read once, and its holes never."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.files.local import SYSTEM_FS, OsFile
from kstore.files.overlay import OverlayFs
from kstore.files.paths import KSTORE_STATE, LOG_SUFFIX, segment_name
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.upkeep.recover import plan_recovery
from kstore.upkeep.stats import log_stats
from kstore.upkeep.verify import verify

TAIL = 3 << 20
# A check reads some headers; a search reads the tail.
LOOK_BYTES = 1 << 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A broker's log of three records, not closed."""
    path = tmp_path / "t-0"
    with Log(path, durability="os") as log:
        for number in range(3):
            log.append(b"%d" % number, timestamp=number)
    (path / KSTORE_STATE).unlink()
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads of files."""
    sizes: list[int] = []
    real = OsFile.pread

    def pread(file: OsFile, size: int, position: int) -> bytes:
        data = real(file, size, position)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(OsFile, "pread", pread)
    return sizes


def log_of(path: Path) -> Path:
    return path / segment_name(0, LOG_SUFFIX)


def add(path: Path, tail: bytes) -> int:
    size = log_of(path).stat().st_size
    with log_of(path).open("ab") as file:
        file.write(tail)
    return size


def write_at(path: Path, position: int, offset: int) -> int:
    """Writes one batch where a broker would, and keeps the file's time; returns the batch's end."""
    before = log_of(path).stat()
    data = build_batch([Record(offset, offset, value=b"%d" % offset)])
    with log_of(path).open("r+b") as file:
        file.seek(position)
        file.write(data)
    os.utime(log_of(path), ns=(before.st_mtime_ns, before.st_mtime_ns))
    return position + len(data)


@pytest.mark.parametrize("tail", [bytes(TAIL), b"\xff" * TAIL, b"\0" * 5000 + b"garbage " * (TAIL // 8)])
def test_a_tail_is_searched_once_while_the_file_does_not_change(tail: bytes, path: Path, reads: list[int]) -> None:
    add(path, tail)
    with Log(path, read_only=True) as log:
        reads.clear()
        for _ in range(3):
            assert log.end_offset == 3
            assert [record.offset for record in log.read(0)] == [0, 1, 2]
        assert sum(reads) < LOOK_BYTES


def test_a_batch_in_the_tail_is_seen_even_if_the_files_time_does_not_change(path: Path) -> None:
    position = add(path, bytes(TAIL))
    with Log(path, read_only=True) as log:
        for offset in range(3, 8):
            assert log.end_offset == offset
            position = write_at(path, position, offset)
            assert [record.offset for record in log.read(0)] == list(range(offset + 1))


def test_an_empty_segment_that_was_allocated_is_searched_once_too(path: Path, reads: list[int]) -> None:
    log_of(path).write_bytes(bytes(TAIL))
    with Log(path, read_only=True) as log:
        assert log.end_offset == 0
        reads.clear()
        assert log.end_offset == 0
        assert sum(reads) < LOOK_BYTES
        write_at(path, 0, 0)
        assert log.end_offset == 1


def test_holes_are_not_read(path: Path, reads: list[int]) -> None:
    size = log_of(path).stat().st_size
    os.truncate(log_of(path), size + (1 << 40))
    if log_of(path).stat().st_blocks > 64:
        pytest.skip("the file system has no holes")
    with Log(path, read_only=True) as log:
        assert log.end_offset == 3
        for offset in range(3, 6):
            size = write_at(path, size, offset)
            assert log.end_offset == offset + 1
    (result,) = verify(path)
    assert result.end_offset == 6
    assert sum(reads) < 32 << 20


def counted(path: Path) -> int:
    return log_stats(path).record_count


def planned(path: Path) -> int:
    report = plan_recovery(path)
    assert report.cut[0].position < 1 << 20
    return report.records_scanned


def recovered(path: Path) -> int:
    with Log(path) as log:
        return log.end_offset


@pytest.mark.parametrize("use", [counted, planned, recovered])
def test_no_command_reads_holes(use: Callable[[Path], int], path: Path, reads: list[int]) -> None:
    os.truncate(log_of(path), 1 << 32)
    if log_of(path).stat().st_blocks > 64:
        pytest.skip("the file system has no holes")
    assert use(path) == 3
    assert sum(reads) < 32 << 20


def test_what_an_overlay_has_written_into_a_hole_is_no_hole(path: Path) -> None:
    """As the dry run of a recovery sees a file."""
    os.truncate(log_of(path), 1 << 30)
    file = OverlayFs(SYSTEM_FS).open(log_of(path), write=True)
    assert file.next_data(1 << 20) == 1 << 30  # type: ignore[attr-defined]
    file.pwrite(b"x", (1 << 25) + 5)
    for position, found in ((1 << 20, 1 << 25), ((1 << 25) + 7, (1 << 25) + 7), ((1 << 25) + 4096, 1 << 30)):
        assert file.next_data(position) == found  # type: ignore[attr-defined]
    file.truncate(1 << 21)
    assert file.next_data(1 << 20) == 1 << 21  # type: ignore[attr-defined]


@pytest.mark.parametrize("shift", [0, 1, 7, 16, 17, 100])
def test_a_batch_after_a_hole_is_found_wherever_it_begins(shift: int, path: Path) -> None:
    """Its first bytes may be zeros, and so part of the hole."""
    size = log_of(path).stat().st_size
    position = (size // 4096 + 4096) * 4096 - shift
    with log_of(path).open("r+b") as file:
        file.truncate(position)
    write_at(path, position, 70)
    with Log(path, read_only=True) as log:
        assert log.end_offset == 71
