"""Finding offsets by their time, and slices by their offset."""

from __future__ import annotations

from pathlib import Path

from kstore.log import Log
from tests.fake_clock import ManualClock
from tests.log_cases import marker, transaction
from tests.log_helpers import TIME

# --- the greatest time ------------------------------------------------------------------------------------------------


def test_the_greatest_time_is_that_of_a_record_that_is_left(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", clock=ManualClock(TIME)) as log:
        log.append_many([b"x"] * 4, timestamps=[TIME + 50, TIME + 10, TIME + 30, TIME + 30])
        log.delete_records(1)
        assert log.offset_for_time("max_timestamp") == 2
        log.roll()
        log.append_many([b"x"] * 2, timestamps=[TIME + 20, TIME + 30])
        assert log.offset_for_time("max_timestamp") == 2


def test_the_greatest_time_is_no_marker_s(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append_batches(transaction(7, 0, 1), assign_offsets=False)
        log.append_batches(marker(7, 2, commit=True), assign_offsets=False)
        assert log.offset_for_time("max_timestamp") == 1
