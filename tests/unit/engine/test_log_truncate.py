"""What a log keeps and forgets when it is truncated or restarted, or when its first records are deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kstore.errors import InvalidOffsetError, OffsetOutOfRangeError, StorageError, TruncatedFileError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.state.log_state import read_state
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, WRITES, FailingFs, Fault
from tests.support.fakes.meddling_fs import MeddlingFs
from tests.support.lives.log_cases import data, files, killed, offsets, segment_bases
from tests.support.lives.log_helpers import TIME

DURABILITIES: list[Durability] = ["sync", "interval", "os"]
INDEXES = (".log", ".index", ".timeindex")


def fill(log: Log, batches: range) -> None:
    """Batches of three records, 3n to 3n+2, with rising times; four of them fill a segment of 1 KiB."""
    for number in batches:
        times = [TIME + 3 * number + at for at in range(3)]
        log.append_many([b"%d" % (3 * number + at) + b"." * 50 for at in range(3)], timestamps=times)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Thirty records in ten batches, in segments at 0, 12 and 24."""
    clock = ManualClock(TIME)
    with Log(tmp_path / "log", durability="os", clock=clock, segment_bytes=1024, index_interval_bytes=0) as opened:
        fill(opened, range(10))
        assert segment_bases(opened.path) == [0, 12, 24]
        yield opened
        opened.check()


# --- truncate_to ------------------------------------------------------------------------------------------------------


def test_every_offset_can_be_truncated_to(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    for offset in range(31):
        path = tmp_path / str(offset)
        with Log(path, durability="os", segment_bytes=1024, index_interval_bytes=0) as log:
            fill(log, range(10))
            log.truncate_to(offset)
            whole = list(range(offset - offset % 3))
            # Without a record the log starts where it ends.
            assert (log.start_offset, log.end_offset, log.high_watermark) == (0 if whole else offset, offset, offset)
            assert offsets(log) == whole
            assert all(offsets(log, start) == whole[start:] for start in range(len(whole)))
            copy = killed(log, tmp_path / f"{offset}-killed")
            log.check()
            assert log.append(b"next") == offset
        with Log(path) as log:
            assert log.recovery.clean
            assert offsets(log) == [*whole, offset]
            log.check()
        with Log(copy) as log:
            # Nothing was between the last whole batch and the requested end.
            assert offsets(log) == whole
            assert not log.recovery.corrupt
        tried("states", 2)


def test_a_truncated_log_has_the_files_of_one_that_never_held_more(tmp_path: Path) -> None:
    for name, truncates in (("truncated", True), ("straight", False)):
        with Log(tmp_path / name, durability="os", segment_bytes=1024, index_interval_bytes=0) as log:
            fill(log, range(10 if truncates else 5))
            log.truncate_to(15)
            fill(log, range(5, 7))
    assert files(tmp_path / "truncated", *INDEXES) == files(tmp_path / "straight", *INDEXES)


def test_the_segments_after_a_truncation_are_gone(log: Log) -> None:
    kept = files(log.path, *INDEXES)
    log.truncate_to(12)
    assert segment_bases(log.path) == [0, 12]
    left = files(log.path, ".log")
    assert left == {f"{0:020d}.log": kept[f"{0:020d}.log"], f"{12:020d}.log": b""}
    assert not [name for name in files(log.path, ".index", ".timeindex") if name.startswith(f"{24:020d}")]
    assert log.roll() == 12


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(("offset", "bases"), [(1, [1]), (13, [0, 13]), (25, [0, 12, 25])])
def test_no_segment_is_left_empty_before_the_active_one(
    offset: int, bases: list[int], durability: Durability, tmp_path: Path
) -> None:
    with Log(tmp_path / "log", durability=durability, segment_bytes=1024, index_interval_bytes=0) as log:
        fill(log, range(10))
        log.truncate_to(offset)
        kept = offset - offset % 3
        assert segment_bases(log.path) == bases
        assert (log.start_offset, log.end_offset) == (offset if bases[0] else 0, offset)
        copy = killed(log, tmp_path / "killed")
        for path in (log.path, copy):
            with Log(path, read_only=True) as view:
                assert (view.start_offset, view.end_offset, offsets(view)) == (log.start_offset, offset, [*range(kept)])
        assert log.append(b"next", timestamp=TIME + 1000) == offset
        assert log.offset_for_time(TIME + 1000) == offset
        log.check()
    with Log(copy) as again:
        assert (again.recovery.corrupt, again.recovery.cut) == ([], [])
        assert again.append(b"next") == offset
        assert offsets(again) == [*range(kept), offset]


def test_a_truncation_may_go_below_the_log_s_start(log: Log) -> None:
    log.delete_records(14)
    log.truncate_to(13)
    assert (log.start_offset, log.end_offset, offsets(log)) == (13, 13, [])
    assert log.append(b"next") == 13
    assert offsets(log) == [13]


def test_a_truncation_below_every_segment_restarts_the_log(log: Log) -> None:
    log.delete_records(14)
    log.truncate_to(5)
    assert (log.start_offset, log.end_offset, segment_bases(log.path)) == (5, 5, [5])
    assert log.append(b"next") == 5


def test_a_truncation_in_a_gap_keeps_what_is_below(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        for batch in (data(0, 1), data(10, 11), data(20, 21)):
            log.append_batches(batch, assign_offsets=False)
        log.truncate_to(15)
        assert (offsets(log), log.end_offset) == ([0, 1, 10, 11], 15)
        assert log.append(b"next") == 15
        log.check()
    with Log(tmp_path / "log") as log:
        assert offsets(log) == [0, 1, 10, 11, 15]


def test_the_greatest_time_is_found_again_after_a_truncation(log: Log) -> None:
    assert log.offset_for_time("max_timestamp") == 29
    log.truncate_to(13)
    assert log.offset_for_time("max_timestamp") == 11
    assert log.offset_for_time(TIME + 12) is None
    log.append(b"next", timestamp=TIME + 5)
    assert log.offset_for_time("max_timestamp") == 11
    assert log.offset_for_time(TIME + 11) == 11


def test_a_log_opened_again_can_be_truncated(log: Log, tmp_path: Path) -> None:
    copy = killed(log, tmp_path / "copy")
    for clean in (False, True):
        with Log(copy, durability="os", segment_bytes=1024) as again:
            assert again.recovery.clean is clean
            end = again.end_offset
            again.truncate_to(end - 6)
            assert offsets(again) == list(range(end - 6))
            again.check()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_what_was_truncated_is_not_missed_after_a_kill(durability: Durability, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability=durability, segment_bytes=1024) as log:
        fill(log, range(10))
        log.flush()
        log.truncate_to(12)
        copy = killed(log, tmp_path / "killed")
        state = read_state(SYSTEM_FS, copy / "kstore.state")
    assert state is not None
    assert (state.durable_end, state.recovery_point <= 12) == (12, True)
    with Log(copy) as log:
        assert (log.recovery.corrupt, log.recovery.cut, log.end_offset) == ([], [], 12)


@pytest.mark.parametrize("is_flushed", [False, True], ids=["", "flushed"])
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_cut_batch_is_no_loss_whatever_write_fails_although_it_reached_the_disk(
    durability: Durability, is_flushed: bool, tmp_path: Path
) -> None:
    """Only the next segment's name tells that the offsets before it were cut."""
    failed = set()
    for at in range(1, 40):
        path, fs = tmp_path / f"{at}", FailingFs()
        log = Log(path, durability=durability, fs=fs)
        for _ in range(3):
            log.append_many([b"v"] * 10)
        if is_flushed:
            log.flush()
        log.truncate_to(25)
        fs.faults.append(Fault(at, kinds=WRITES, written=None))
        with suppress(StorageError):
            log.truncate_to(13)
        fs.faults.clear()
        with suppress(StorageError):
            log.close()
        with Log(path, durability=durability) as log:
            assert [record.offset for record in log.read()][:10] == list(range(10))
            assert log.verify().clean
        failed |= {Path(operation.path).name for operation in fs.failures}
        if not fs.failures:
            break
    assert "kstore.state" in failed


def test_a_reader_during_a_truncation_reaches_the_new_end(log: Log) -> None:
    reader = log.read()
    assert [next(reader).offset for _ in range(3)] == [0, 1, 2]
    log.truncate_to(15)
    assert [record.offset for record in reader] == list(range(3, 15))


def test_a_reader_that_began_in_a_truncation_that_failed_sees_no_damage(tmp_path: Path) -> None:
    for number in range(10):
        meddling = MeddlingFs(CHANGES)
        fs = FailingFs(meddling)
        log = Log(tmp_path / str(number), durability="os", fs=fs)
        for _ in range(12):
            log.append_many([bytes(200_000)] * 2)
        fs.faults.append(Fault(1, kinds=frozenset({"create"})))
        readers: list[Iterator[Record]] = []
        read: list[int] = []

        def begin(log: Log = log, readers: list[Iterator[Record]] = readers, read: list[int] = read) -> None:
            readers.append(log.read())
            read.extend(next(readers[0]).offset for _ in range(3))

        meddling.before(number, begin)
        with suppress(StorageError):
            log.truncate_to(9)
        if meddling.is_past():
            assert read + [record.offset for record in readers[0]] == list(range(8))
        with suppress(StorageError):
            log.close()
        if not readers:
            break
    assert number


def test_a_slice_of_what_was_truncated_says_so(log: Log) -> None:
    last = log.fetch(27)
    log.truncate_to(26)
    with pytest.raises(TruncatedFileError, match="expected at least"):
        last.read()


def test_a_truncation_changes_nothing_at_the_end_or_beyond(log: Log) -> None:
    before = files(log.path, *INDEXES)
    for offset in (30, 31, 1 << 40):
        log.truncate_to(offset)
    assert (log.end_offset, files(log.path, *INDEXES)) == (30, before)


@pytest.mark.parametrize("lost", [(), (".index",), (".index", ".timeindex")], ids=str)
def test_an_emptied_segment_that_a_power_cut_brought_back_goes_at_the_next_open(
    lost: tuple[str, ...], log: Log, tmp_path: Path
) -> None:
    log.truncate_to(25)
    assert segment_bases(log.path) == [0, 12, 25]
    copy = killed(log, tmp_path / "killed")
    for suffix in {*INDEXES} - {*lost}:
        (copy / f"{24:020d}{suffix}").touch()
    with Log(copy) as again:
        again.check()
        assert (again.end_offset, again.recovery.corrupt, again.recovery.cut) == (25, [], [])
        assert (segment_bases(copy), offsets(again)) == ([0, 12, 25], list(range(24)))


# --- truncate_fully_and_start_at --------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 5, 12, 30, 1000])
def test_a_restarted_log_holds_no_earlier_records(offset: int, log: Log, tmp_path: Path) -> None:
    writer_of(log).truncate_fully_and_start_at(offset)
    assert (log.start_offset, log.high_watermark, log.end_offset) == (offset, offset, offset)
    assert segment_bases(log.path) == [offset]
    assert (offsets(log), log.offset_for_time(0), log.offset_for_time("max_timestamp")) == ([], None, None)
    copy = killed(log, tmp_path / "killed")
    assert log.append(b"next") == offset
    with Log(copy) as again:
        assert (again.start_offset, again.end_offset, again.recovery.corrupt) == (offset, offset, [])


def test_a_log_cannot_begin_below_zero(log: Log) -> None:
    with pytest.raises(InvalidOffsetError, match="cannot start at offset -1"):
        writer_of(log).truncate_fully_and_start_at(-1)
    assert log.end_offset == 30


# --- delete_records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "bases"),
    [(0, [0, 12, 24]), (1, [0, 12, 24]), (11, [0, 12, 24]), (12, [12, 24]), (25, [24]), (30, [24])],
)
def test_deleting_removes_the_segments_wholly_below(before: int, bases: list[int], log: Log, tmp_path: Path) -> None:
    assert log.delete_records(before) == before
    assert segment_bases(log.path) == bases
    assert offsets(log) == list(range(before, 30))
    assert (log.offset_for_time("earliest"), log.end_offset) == (before, 30)
    copy = killed(log, tmp_path / "killed")
    for path in (copy, log.path):
        with Log(path, read_only=True) as view:
            assert (view.start_offset, offsets(view)) == (before, list(range(before, 30)))
    with Log(copy) as again:
        assert (again.start_offset, offsets(again)) == (before, list(range(before, 30)))
        assert segment_bases(copy) == bases


def test_a_log_whose_records_are_all_deleted_goes_on(log: Log) -> None:
    log.delete_records(log.end_offset)
    assert (offsets(log), log.offset_for_time(0)) == ([], None)
    assert log.append(b"next") == 30
    assert offsets(log) == [30]


def test_only_what_is_there_can_be_deleted(log: Log) -> None:
    for before in (-1, 31):
        with pytest.raises(OffsetOutOfRangeError):
            log.delete_records(before)
    assert log.delete_records(7) == 7
    assert log.delete_records(3) == 7
    assert log.start_offset == 7


def test_a_deleted_record_cannot_be_asked_for(log: Log) -> None:
    log.delete_records(14)
    for ask in (log.read, log.fetch):
        with pytest.raises(OffsetOutOfRangeError, match="offset 13 is outside the log, which holds 14 to 30"):
            ask(13)
    # A slice begins with the whole batch, its records do not.
    assert next(record.offset for record in log.fetch(14).records()) == 14


def test_times_of_deleted_records_are_not_found(log: Log) -> None:
    log.delete_records(14)
    assert log.offset_for_time(0) == 14
    assert log.offset_for_time(TIME + 13) == 14
    assert log.offset_for_time(TIME + 20) == 20
