"""``offset_for_time`` over logs whose timestamps come in any order, against a search through all records."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TIME_INDEX_SUFFIX, segment_name
from kstore.log import Log
from kstore.upkeep.verify import verify_log
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation, WatchedFs
from tests.support.harness.selection import tries
from tests.support.lives.log_cases import edit, segment_bases
from tests.support.lives.log_helpers import TIME

Result = TypeVar("Result")

# The times of each segment's batches; many are equal, and in few segments they rise.
BATCHES = st.lists(st.sampled_from(range(0, 31, 2)), min_size=1, max_size=4)
SEGMENTS = st.lists(st.lists(BATCHES, min_size=1, max_size=3), max_size=6)
ASKED = range(-1, 33, 2)


def written(path: Path, segments: list[list[list[int]]]) -> Log:
    log = Log(path, durability="os", clock=ManualClock(TIME), index_interval_bytes=0)
    for batches in segments:
        for times in batches:
            log.append_many([b"x"] * len(times), timestamps=[TIME + time for time in times])
        log.roll()
    return log


def assert_exact(log: Log, times: list[int], first: int = 0) -> None:
    for asked in ASKED:
        expected = next((at for at, time in enumerate(times) if at >= first and time >= asked), None)
        assert log.offset_for_time(TIME + asked) == expected, asked
    greatest = max(times[first:], default=None)
    assert log.offset_for_time("max_timestamp") == (None if greatest is None else times.index(greatest, first))


@given(SEGMENTS, st.data())
@settings(max_examples=tries(100, quick=10), deadline=None)
def test_shuffled_times_are_found_exactly(segments: list[list[list[int]]], data: st.DataObject) -> None:
    times = [time for batches in segments for batch in batches for time in batch]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        with written(path, segments) as log:
            assert_exact(log, times)
            log.append(b"x", timestamp=TIME + 7)
            assert_exact(log, [*times, 7])
            log.truncate_to(len(times))
            log.roll()
            if times:
                ends = accumulate(len(batch) for batches in segments for batch in batches)
                kept = data.draw(st.sampled_from([0, *ends]))
                log.truncate_to(kept)
                assert_exact(log, times[:kept])
                log.append(b"x", timestamp=TIME + 31)
                log.roll()
                assert_exact(log, [*times[:kept], 31])
                start = data.draw(st.integers(0, kept))
                log.delete_records(start)
                assert_exact(log, [*times[:kept], 31], start)
        with Log(path, read_only=True) as view:
            assert view.offset_for_time("max_timestamp") is not None or not times


@pytest.fixture
def rising(tmp_path: Path) -> Path:
    """Ten segments of 20 records, a millisecond each."""
    with written(tmp_path / "log", [[[number * 20 + at] for at in range(20)] for number in range(10)]):
        pass
    return tmp_path / "log"


def test_a_first_search_reads_only_the_end_of_each_time_index(rising: Path) -> None:
    read: list[str] = []

    class ReadFs(WatchedFs):
        def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
            if operation.kind == "pread":
                read.append(operation.path[-len(segment_name(0, TIME_INDEX_SUFFIX)) :])
            return super().perform(operation, action)

    with Log(rising, fs=ReadFs(SYSTEM_FS), read_only=True) as log:
        read.clear()
        assert log.offset_for_time(TIME + 150) == 150
        times = {segment_name(base, TIME_INDEX_SUFFIX) for base in segment_bases(rising)[:-2]}
        assert times <= set(read)
        # The other reads: the view reads the log's state and its end, checks the segment sealed last, and searches one
        # segment.
        assert len(read) <= len(times) + 10
        read.clear()
        assert log.offset_for_time(TIME + 30) == 30
        assert len(set(read) & times) <= 1


def spoil_last(path: Path, base: int, timestamp: int) -> None:
    def change(data: bytearray) -> None:
        struct.pack_into(">q", data, len(data) - 12, timestamp)

    edit(path / segment_name(base, TIME_INDEX_SUFFIX), change)


@pytest.mark.parametrize("timestamp", [TIME - 5, TIME + 38, TIME + 500], ids=["lowest", "below the last", "too high"])
def test_a_wrong_last_entry_that_can_be_noticed_changes_no_answer(timestamp: int, rising: Path) -> None:
    """It is below its predecessor, or below the previous segment, or so high that a search finds nothing."""
    spoil_last(rising, 40, timestamp)
    with Log(rising, durability="os") as log:
        for _ in range(2):
            assert [log.offset_for_time(TIME + at) for at in range(0, 201, 3)] == [*range(0, 200, 3)]


def test_a_lost_end_of_a_time_index_is_noticed(rising: Path) -> None:
    index = rising / segment_name(40, TIME_INDEX_SUFFIX)
    index.write_bytes(index.read_bytes()[: 12 * 12])
    assert [found.kind for found in verify_log(rising).damages] == ["timeindex"]
    with Log(rising, durability="os") as log:
        assert log.offset_for_time(TIME + 58) == 58


def test_verify_finds_a_last_entry_that_hides_records(rising: Path) -> None:
    data = (rising / segment_name(40, TIME_INDEX_SUFFIX)).read_bytes()
    (rising / segment_name(40, TIME_INDEX_SUFFIX)).write_bytes(data[:-12])
    with Log(rising, durability="os") as log:
        assert log.offset_for_time(TIME + 59) == 60, "believed: most of the segment is covered"
    found = verify_log(rising).damages
    assert [(each.kind, "greatest timestamp" in each.reason) for each in found] == [("timeindex", True)]
