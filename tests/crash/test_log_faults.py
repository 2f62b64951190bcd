"""Every file operation of a log's life fails, once and for good: what was acknowledged is there, and nothing else."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import KstoreError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.types import Durability
from tests.fake_clock import ManualClock
from tests.fake_fs import FailingFs, Fault, RecordingFs, WatchedFs

SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64}
ERRNOS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS, "EMFILE": errno.EMFILE}


class Life:
    """One log's life over ``fs``; ``acknowledged`` maps each offset that an append gave out to its value."""

    def __init__(self, path: Path, fs: WatchedFs, durability: Durability) -> None:
        self.path = path
        self.fs = fs
        self.durability = durability
        self.acknowledged: dict[int, bytes] = {}
        self.attempted: set[bytes] = set()
        # Offsets at or above it may be gone: a truncation was asked for.
        self.truncated_from: int | None = None
        self.deleted_below = 0
        self.count = 0

    def append(self, log: Log, records: int = 3, size: int = 60) -> None:
        values = [f"{self.count + number}-".encode().ljust(size, b"x") for number in range(records)]
        self.count += records
        self.attempted.update(values)
        info = log.append_many(values)
        self.acknowledged.update(zip(range(info.first_offset, info.last_offset + 1), values, strict=True))

    def live(self) -> None:
        with Log(self.path, fs=self.fs, clock=ManualClock(), durability=self.durability, **SETTINGS) as log:
            for _ in range(8):
                self.append(log)
            log.flush()
            self.deleted_below = 6
            log.delete_records(6)
            self.append(log)
            middle = log.end_offset - 4
            self.truncated_from = middle
            self.acknowledged = {offset: value for offset, value in self.acknowledged.items() if offset < middle - 3}
            log.truncate_to(middle)
            self.truncated_from = None
            self.append(log)
        with Log(self.path, fs=self.fs, clock=ManualClock(), durability=self.durability, **SETTINGS) as log:
            self.append(log)
            log.roll()
            self.append(log, records=1)

    def assert_survived(self) -> None:
        """Reopened without faults: everything acknowledged is there, in order, and nothing that was never written."""
        with Log(self.path, durability=self.durability, **SETTINGS) as log:
            found = {record.offset: record.value for record in log.read(on_corrupt="skip")}
            for offset, value in self.acknowledged.items():
                if offset >= max(self.deleted_below, log.start_offset):
                    assert found.get(offset) == value, f"offset {offset}: {found.get(offset)!r}, expected {value!r}"
            assert set(found.values()) <= self.attempted
            assert not log.recovery.corrupt
            log.check()
            end = log.end_offset
            assert log.append(b"goes on") == end
        with Log(self.path, read_only=True) as log:
            assert log.recovery.clean
            assert next(log.read(end)).value == b"goes on"


def operation_count(tmp_path: Path, durability: Durability) -> int:
    recording = RecordingFs(SYSTEM_FS)
    life = Life(tmp_path / "whole", recording, durability)
    life.live()
    life.assert_survived()
    return len(recording.operations)


@contextlib.contextmanager
def allowed_errors() -> Iterator[None]:
    """What a user may see when the disk fails: the package's own errors, and nothing else."""
    with contextlib.suppress(KstoreError):
        yield


def each_operation(
    tmp_path: Path, durability: Durability, step: int, faults: Callable[[int], Fault]
) -> Iterator[tuple[int, Life, FailingFs]]:
    for number in range(1, operation_count(tmp_path, durability) + 1, step):
        fs = FailingFs(SYSTEM_FS, faults(number))
        yield number, Life(tmp_path / f"at-{number}", fs, durability), fs


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a log whose opening or closing failed is just dropped
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("name", ERRNOS)
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_an_operation_that_fails_loses_nothing_acknowledged(
    durability: Durability, name: str, lasting: bool, tmp_path: Path
) -> None:
    tried = 0
    for _number, life, fs in each_operation(
        tmp_path, durability, 3, lambda number: Fault(number, errno=ERRNOS[name], sticky=lasting)
    ):
        with allowed_errors():
            life.live()
        fs.faults.clear()
        life.assert_survived()
        tried += 1
    assert tried > 40


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("written", [0, 1, 100, None], ids=["nothing", "a-byte", "a-part", "all"])
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_write_that_stops_half_way_leaves_whole_batches(
    durability: Durability, written: int | None, tmp_path: Path
) -> None:
    tried = 0
    for _number, life, fs in each_operation(
        tmp_path, durability, 4, lambda number: Fault(number, errno=errno.EDQUOT, written=written)
    ):
        with allowed_errors():
            life.live()
        fs.faults.clear()
        life.assert_survived()
        tried += 1
    assert tried > 30


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("written", [0, 100, None], ids=["nothing", "a-part", "all"])
@pytest.mark.parametrize("durability", ["sync", "os"])
def test_an_interrupt_in_any_operation_leaves_whole_batches(
    durability: Durability, written: int | None, tmp_path: Path
) -> None:
    tried = 0
    for _number, life, fs in each_operation(
        tmp_path, durability, 4, lambda number: Fault(number, written=written, raising=KeyboardInterrupt())
    ):
        with contextlib.suppress(KstoreError, KeyboardInterrupt):
            life.live()
        fs.faults.clear()
        life.assert_survived()
        tried += 1
    assert tried > 30
