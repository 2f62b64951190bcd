"""Finding offsets by time, and slices by offset."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kstore.errors import CorruptBatchError, OffsetOutOfRangeError
from kstore.log import Log, writer_of
from kstore.segment import UNINDEXED_BYTES, LogSegment, largest_of_plain
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation, WatchedFs
from tests.support.lives.log_cases import data, edit, marker, offsets, segment_bases, transaction
from tests.support.lives.log_helpers import TIME

Result = TypeVar("Result")

# --- the greatest time ------------------------------------------------------------------------------------------------


def test_the_greatest_time_is_that_of_a_record_that_is_left(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", clock=ManualClock(TIME)) as log:
        log.append_many([b"x"] * 4, timestamps=[TIME + 50, TIME + 10, TIME + 30, TIME + 30])
        log.delete_records(1)
        assert log.offset_for_time("max_timestamp") == 2
        log.roll()
        log.append_many([b"x"] * 2, timestamps=[TIME + 20, TIME + 30])
        assert log.offset_for_time("max_timestamp") == 2


@pytest.mark.parametrize("size", [10, 2 * UNINDEXED_BYTES], ids=["small", "walked"])
def test_the_greatest_time_that_is_remembered_is_not_from_before_an_append_in_another_process(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Log(tmp_path / "log", durability="os", clock=ManualClock(TIME)) as log,
        Log(tmp_path / "log", read_only=True) as view,
    ):
        log.append(b"x" * size, timestamp=TIME + 1)
        ends: list[int] = []

        def grows_after(look: Callable[..., Any]) -> Callable[..., Any]:
            def looked(*arguments: Any) -> Any:
                found = look(*arguments)
                if not ends:
                    log.append(b"x", timestamp=TIME + 2)
                    ends.append(view.end_offset)  # as another thread that looks for the end
                return found

            return looked

        monkeypatch.setattr("kstore.segment.largest_of_plain", grows_after(largest_of_plain))
        monkeypatch.setattr(LogSegment, "_walk_for_largest", grows_after(LogSegment._walk_for_largest))
        assert view.offset_for_time(TIME + 1) == 0
        assert ends == [2]
        assert view.offset_for_time(TIME + 2) == 1


def test_the_end_of_a_transaction_counts_as_a_record_as_at_a_broker(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append_batches(transaction(7, 0, 1), assign_offsets=False)
        log.append_batches(marker(7, 2, commit=True), assign_offsets=False)
        assert log.offset_for_time(TIME + 2) == 2
        assert log.offset_for_time("max_timestamp") == 2


def test_the_first_of_equal_times_counts(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", clock=ManualClock(TIME)) as log:
        for times in ([TIME, TIME + 9], [TIME + 9, TIME + 9], [TIME + 1]):
            log.append_many([b"x"] * len(times), timestamps=times)
            log.roll()
        assert log.offset_for_time("max_timestamp") == 1


# --- a time -----------------------------------------------------------------------------------------------------------


def unordered(path: Path, **settings: Any) -> tuple[Log, list[int]]:
    """A log of segments with times in no order; also the times, by offset."""
    times = [TIME + 1000 * ((number * 7) % 11) + number for number in range(60)]
    log = Log(path, durability="os", clock=ManualClock(TIME), segment_bytes=1024, index_interval_bytes=0, **settings)
    for number in range(0, 60, 2):
        log.append_many([b"x" * 80] * 2, timestamps=times[number : number + 2])
    assert len(segment_bases(path)) > 5
    return log, times


def first_at(times: list[int], when: int, start: int = 0) -> int | None:
    return next((offset for offset, time in enumerate(times) if offset >= start and time >= when), None)


@pytest.mark.parametrize("start", [0, 25])
def test_any_time_finds_the_first_record_at_or_after_it(
    start: int, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    log, times = unordered(tmp_path / "log")
    with log:
        log.delete_records(start)
        with Log(log.path, read_only=True) as view:
            for when in sorted({time + step for time in times for step in (-1, 0, 1)}):
                expected = first_at(times, when, start)
                assert (log.offset_for_time(when), view.offset_for_time(when)) == (expected, expected)
                tried("reads", 2)


@pytest.mark.parametrize(
    "content", [None, b"", bytes(120), b"\x00\x00\x7f" * 40], ids=["lost", "empty", "zeros", "junk"]
)
def test_a_time_is_found_without_the_time_index(content: bytes | None, tmp_path: Path) -> None:
    log, times = unordered(tmp_path / "log")
    log.close()
    for path in log.path.glob("*.timeindex"):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    for read_only in (True, False):
        with Log(log.path, read_only=read_only) as again:
            for when in (0, TIME + 3000, TIME + 10_001, max(times), max(times) + 1):
                assert again.offset_for_time(when) == first_at(times, when)


def test_a_time_finds_a_record_within_a_compressed_batch(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", clock=ManualClock(TIME), compression_type="zstd") as log:
        for number in range(4):
            log.append_many([b"x"] * 5, timestamps=[TIME + 10 * number + at for at in range(5)])
        assert [log.offset_for_time(TIME + when) for when in (0, 3, 5, 13, 34, 35)] == [0, 3, 5, 8, 19, None]


def test_the_log_s_own_times_are_looked_up(tmp_path: Path) -> None:
    clock = ManualClock(TIME)
    with Log(tmp_path / "log", durability="os", clock=clock, message_timestamp_type="LogAppendTime") as log:
        log.append_many([b"a", b"b"], timestamps=[TIME + 500, 0])
        clock.advance(10)
        log.append(b"c", timestamp=0)
        assert [log.offset_for_time(TIME + when) for when in (0, 1, 10, 11)] == [0, 2, 2, None]
        # All records of a batch have one time.
        assert log.offset_for_time("max_timestamp") == 2


def test_records_without_a_time_are_never_found_by_one(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", clock=ManualClock(TIME)) as log:
        log.append_many([b"a", b"b"], timestamps=[-1, -1])
        assert (log.offset_for_time(0), log.offset_for_time("max_timestamp")) == (None, None)
        log.append_many([b"c", b"d"], timestamps=[-1, TIME])
        assert (log.offset_for_time(0), log.offset_for_time("max_timestamp")) == (3, 3)


def test_the_two_ends_of_a_log_are_times_too(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", clock=ManualClock(TIME)) as log:
        assert (log.offset_for_time("earliest"), log.offset_for_time("latest")) == (0, 0)
        for _ in range(5):
            log.append(b"x")
            log.roll()
        log.delete_records(2)
        assert (log.offset_for_time("earliest"), log.offset_for_time("latest")) == (2, 5)
        writer_of(log).truncate_fully_and_start_at(9)
        assert (log.offset_for_time("earliest"), log.offset_for_time("latest")) == (9, 9)


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log, pytest.raises(ValueError, match="'earliest', 'latest'"):
        log.offset_for_time("newest")  # type: ignore[arg-type]


def test_damaged_batches_have_no_time(tmp_path: Path) -> None:
    log, times = unordered(tmp_path / "log")
    log.close()
    when = max(times)
    found = first_at(times, when)
    assert found is not None
    with Log(log.path, read_only=True) as view:
        part = view.fetch(found)
        batch = next(part.batches())
    edit(part.path, lambda content: content.__setitem__(part.position + 70, content[part.position + 70] ^ 1))
    with Log(log.path, read_only=True) as view:
        assert batch.base_offset <= found <= batch.last_offset
        assert view.offset_for_time(when) is None


# --- slices -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("damage below")
@pytest.mark.parametrize("interval", [0, 4096])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_slice_of_a_damaged_batch_is_an_error_and_not_the_next_batch(
    interval: int, read_only: bool, tmp_path: Path
) -> None:
    with Log(tmp_path / "log", durability="os", index_interval_bytes=interval) as log:
        for _ in range(50):
            log.append_many([b"x" * 100] * 2)
        middle, last = log.fetch(40).position, log.fetch(90).position
        path = log.fetch(0).path
    edit(path, lambda content: content.__setitem__(middle + 70, content[middle + 70] ^ 1))
    edit(path, lambda content: content.__setitem__(last + 70, content[last + 70] ^ 1))
    with Log(tmp_path / "log", read_only=read_only) as log:
        for offset, damaged, position in ((40, 41, middle), (41, 41, middle), (90, 91, last), (91, 91, last)):
            with pytest.raises(CorruptBatchError) as raised:
                log.fetch(offset)
            error = raised.value
            assert (error.first_offset, error.last_offset, error.position) == (offset, damaged, position)
        for offset in (0, 39, 42, 92):
            assert next(log.fetch(offset).records()).offset == offset
        assert log.fetch(100).size == 0


def test_every_offset_is_fetched_up_to_the_end(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    log, times = unordered(tmp_path / "log")
    with log:
        for offset in range(60):
            part = log.fetch(offset)
            bases = [base for base in segment_bases(log.path) if base <= offset]
            # A slice never continues into the next segment.
            last = min([base for base in segment_bases(log.path) if base > offset], default=60)
            assert part.base_offset == bases[-1]
            assert [record.offset for record in part.records()] == list(range(offset, last))
            tried("reads", 1)
        end = log.fetch(60)
        assert (end.size, end.read(), list(end.records())) == (0, b"", [])
        for offset in (-1, 61):
            with pytest.raises(OffsetOutOfRangeError):
                log.fetch(offset)
        assert len(times) == 60


def test_a_slice_holds_at_least_one_batch_and_as_many_bytes_as_asked_for(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        for _ in range(5):
            log.append(b"x" * 100)
        size = log.fetch(4).size
        for asked, given in ((0, size), (1, size), (size, size), (size + 1, size + 1), (10 * size, 5 * size)):
            assert log.fetch(0, asked).size == given
        # A partial batch is not read.
        assert [record.offset for record in log.fetch(0, 2 * size + 20).records()] == [0, 1]


def test_a_fetch_in_a_gap_begins_with_the_next_batch(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append_batches(data(0, 1), assign_offsets=False)
        log.append_batches(data(10, 11), assign_offsets=False)
        log.roll()
        log.append_batches(data(2**32, 2**32 + 1), assign_offsets=False)
        for offset in range(2, 10):
            assert next(log.fetch(offset).records()).offset == 10
        for offset in (12, 1000, 2**31, 2**32):
            assert next(log.fetch(offset).records()).offset == 2**32
            assert offsets(log, offset) == [2**32, 2**32 + 1]


def test_an_empty_log_has_an_empty_slice(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        assert (log.fetch(0).size, list(log.fetch(0).batches())) == (0, [])
        log.append(b"x")
        log.roll()
        assert (log.fetch(1).size, log.fetch(1).base_offset) == (0, 1)


def test_a_search_by_time_in_a_log_that_is_rolling_finds_the_records_without_an_entry(tmp_path: Path) -> None:
    with Log(tmp_path / "log", clock=ManualClock(TIME), durability="os", index_interval_bytes=0) as log:
        for number in range(64):
            log.append(b"x" * 100, timestamp=TIME + number)
        log.roll()
        log.append(b"next", timestamp=TIME + 100)
        index = log.path / f"{0:020d}.timeindex"
        # The next segment exists, but this one's last entry is not written yet.
        os.truncate(index, index.stat().st_size - 12)
        with Log(log.path, read_only=True) as view:
            assert [view.offset_for_time(TIME + number) for number in (62, 63, 64)] == [62, 63, 64]


class _OpenedFs(WatchedFs):
    """Counts what is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind == "open":
            self.opened.append(operation.path)
        return action()


def test_the_first_search_by_time_opens_no_file_of_a_segment_that_this_process_has_written(tmp_path: Path) -> None:
    fs = _OpenedFs()
    with Log(tmp_path / "log", fs=fs, clock=ManualClock(TIME), durability="os") as log:
        for number in range(50):
            log.append(b"x", timestamp=TIME + number)
            log.roll()
        fs.opened.clear()
        assert (log.offset_for_time(TIME + 50), fs.opened) == (None, [])
    with Log(tmp_path / "log", fs=fs, clock=ManualClock(TIME), durability="os") as log:
        fs.opened.clear()
        assert log.offset_for_time(TIME + 50) is None
        assert len([path for path in fs.opened if path.endswith(".timeindex")]) >= 49  # the others are counted
