"""Retention of a log: what goes, what stays, and when."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import OffsetOutOfRangeError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs
from tests.support.lives.log_cases import flip, killed, transaction

DAY = 86_400_000


def opened(path: Path, clock: ManualClock, **settings: Any) -> Log:
    settings = {"segment_bytes": 1024, "segment_ms": 10**15, "message_timestamp_after_max_ms": None, **settings}
    return Log(path, clock=clock, durability="os", **settings)


def append(log: Log, clock: ManualClock, count: int, *, step_ms: int = 0) -> None:
    for _ in range(count):
        log.append(b"x" * 100, timestamp=clock.now_ms())
        clock.advance(step_ms)


def bases(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in path.glob("*.log"))


def test_a_log_without_settings_keeps_everything(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "log", clock) as log:
        append(log, clock, 20, step_ms=DAY)
        assert log.apply_retention() == (0, 0, 0)
        assert len(list(log.read())) == 20


def test_a_log_that_rolls_keeps_to_its_size(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "log", clock, retention_bytes=3000) as log:
        append(log, clock, 100)
        sizes = sum(file.stat().st_size for file in log.path.glob("*.log"))
        assert 3000 <= sizes <= 5000
        assert log.start_offset == bases(log.path)[0] > 0
        with pytest.raises(OffsetOutOfRangeError):
            log.read(log.start_offset - 1)
        log.check()
        start = log.start_offset
    with opened(tmp_path / "log", clock) as log:
        assert (log.start_offset, log.end_offset) == (start, 100)


def test_old_segments_go_and_the_active_one_after_a_new_one(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "log", clock) as log:
        append(log, clock, 20, step_ms=DAY)
    with opened(tmp_path / "log", clock, retention_ms=10 * DAY) as log:
        found = log.apply_retention()
        assert found.segment_count > 0
        assert found.start_offset == log.start_offset == bases(log.path)[0]
        assert min(record.timestamp for record in log.read()) >= clock.now_ms() - 14 * DAY
        clock.advance(30 * DAY)
        log.apply_retention()
        assert (log.start_offset, log.end_offset, list(log.read())) == (20, 20, [])
        assert log.append(b"goes on", timestamp=clock.now_ms()) == 20
    with Log(tmp_path / "log", read_only=True) as log:
        assert [record.offset for record in log.read()] == [20]


@pytest.mark.promise("clock")
def test_a_clock_that_jumps_ahead_deletes_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "log", clock, retention_ms=10 * DAY) as log:
        append(log, clock, 20)
        clock.jump(400 * DAY)
        assert log.apply_retention().segment_count == 0
        clock.jump(-400 * DAY)
        clock.advance(11 * DAY)
        assert log.apply_retention().segment_count > 0


def old_segment_with_a_young_end(path: Path, clock: ManualClock) -> Path:
    """A sealed segment, ten days old except for its last batch, and one more. The last batch is damaged, and the
    ``.log`` has its time."""
    with opened(path, clock) as log:
        append(log, clock, 3)
        clock.advance(9 * DAY)
        append(log, clock, 1)
        log.roll()
        append(log, clock, 1)
    damage_the_end(path, clock)
    return path


def damage_the_end(path: Path, clock: ManualClock) -> None:
    first = path / f"{0:020d}.log"
    flip(first, first.stat().st_size - 1)
    os.utime(first, (clock.now_ms() / 1000,) * 2)


def without_indexes(path: Path) -> None:
    for suffix in ("index", "timeindex"):
        (path / f"{0:020d}.{suffix}").unlink()


@pytest.mark.parametrize("byte", range(8))
def test_no_bit_that_rots_in_the_last_time_of_an_index_makes_a_segment_older(tmp_path: Path, byte: int) -> None:
    clock = ManualClock()
    with opened(tmp_path / "log", clock, index_interval_bytes=1) as log:
        append(log, clock, 4, step_ms=DAY)
        log.append(b"an older one", timestamp=clock.now_ms() - 3 * DAY)
    times = tmp_path / "log" / f"{0:020d}.timeindex"
    flip(times, times.stat().st_size - 12 + byte)
    with opened(tmp_path / "log", clock, retention_ms=10 * DAY) as log:
        log.append(b"an old one", timestamp=clock.now_ms() - 4 * DAY)
        log.roll()
        # The file's time counts if the records' times are in the future, which they are not.
        os.utime(times.with_suffix(".log"), (0, 0))
        clock.advance(9 * DAY)
        assert (log.apply_retention().segment_count, len(list(log.read()))) == (0, 6)
        assert log.offset_for_time(clock.now_ms() - 10 * DAY) == 3
        clock.advance(DAY + 1)
        assert log.apply_retention().segment_count == 1


@pytest.mark.parametrize("prepare", [lambda path: None, without_indexes], ids=["indexed", "without-indexes"])
def test_a_segment_whose_youngest_batch_is_damaged_is_as_old_as_its_file(
    tmp_path: Path, prepare: Callable[[Path], None]
) -> None:
    clock = ManualClock()
    path = old_segment_with_a_young_end(tmp_path / "log", clock)
    prepare(path)
    with opened(path, clock, retention_ms=10 * DAY) as log:
        for day in range(9, 19):
            assert (day, log.apply_retention().segment_count) == (day, 0)
            clock.advance(DAY)
        clock.advance(DAY)
        assert log.apply_retention().segment_count == 2


def test_a_segment_whose_damaged_end_recovery_has_fenced_is_as_old_as_its_file(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "log", clock) as log:
        append(log, clock, 3)
        clock.advance(9 * DAY)
        append(log, clock, 1)
        log.flush()
        path = killed(log, tmp_path / "killed")
    damage_the_end(path, clock)
    with opened(path, clock, retention_ms=10 * DAY) as log:
        assert [(lost.first, lost.last) for lost in log.recovery.corrupt] == [(3, 3)]
        os.utime(path / f"{0:020d}.log", (clock.now_ms() / 1000,) * 2)
        clock.advance(5 * DAY)
        assert log.apply_retention().segment_count == 0
        append(log, clock, 1)
        assert bases(path) == [0, 4]
        os.utime(path / f"{0:020d}.log", (clock.now_ms() / 1000 - 5 * 86_400,) * 2)
        assert log.apply_retention().segment_count == 0
        clock.advance(6 * DAY)
        assert log.apply_retention().segment_count == 1


def test_a_torn_tail_that_recovery_has_cut_says_nothing_of_a_segment_s_age(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "log", clock) as log:
        append(log, clock, 3)
        path = killed(log, tmp_path / "killed")
    with (path / f"{0:020d}.log").open("ab") as file:
        file.write(b"torn")
    with opened(path, clock, retention_ms=10 * DAY) as log:
        assert len(log.recovery.cut) == 1
        clock.advance(11 * DAY)
        assert log.apply_retention().segment_count == 1


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_the_age_of_a_small_segment_takes_one_look_at_its_file(codec: str, tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "log", clock, compression_type=codec) as log:
        append(log, clock, 40, step_ms=DAY)
        assert len(bases(log.path)) > 3
    fs = RecordingFs(SYSTEM_FS)
    with opened(tmp_path / "log", clock, fs=fs, retention_ms=2 * DAY) as log:
        fs.operations.clear()
        count = log.apply_retention().segment_count
        assert count >= 3
        done = [(each.kind, Path(each.path).name) for each in fs.operations]
        first = [(kind, name[20:]) for kind, name in done if name.startswith("0" * 20)]
        unlinks = [("unlink", ".log"), ("unlink", ".index"), ("unlink", ".timeindex")]
        assert first == [("open", ".log"), ("pread", ".log"), *unlinks]


def test_retention_takes_a_transaction_index_along(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "log", clock, retention_ms=DAY, file_delete_delay_ms=1000) as log:
        log.append_batches(transaction(7, 0), assign_offsets=False)
        log.end_transaction(7, 0, commit=False)
        log.roll()
        clock.advance(10 * DAY)
        log.append(b"x", timestamp=clock.now_ms())
        assert log.start_offset == 2, "the append after the roll has applied retention"
        names = {file.name for file in log.path.iterdir() if file.name.startswith("0" * 20)}
        assert names == {f"{0:020d}.{kind}.deleted" for kind in ("log", "index", "timeindex", "txnindex")}
        clock.advance(2000)
        log.apply_retention()
        assert not [file.name for file in log.path.iterdir() if file.name.startswith("0" * 20)]


def test_retention_that_fails_stops_no_append(tmp_path: Path) -> None:
    clock = ManualClock()
    fs = FailingFs(SYSTEM_FS, Fault(1, kinds=frozenset({"unlink"}), suffix=f"{0:020d}.log", sticky=True))
    with Log(
        tmp_path / "log",
        fs=fs,
        clock=clock,
        durability="os",
        segment_bytes=1024,
        segment_ms=10**15,
        retention_bytes=1200,
    ) as log:
        append(log, clock, 30)
        assert log.end_offset == 30
        fs.faults.clear()
        append(log, clock, 10)
        assert len(bases(log.path)) < 8
