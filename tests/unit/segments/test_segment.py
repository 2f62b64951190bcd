"""One segment: lookups in an empty one, in gaps and at the ends, times, truncation, rebuilt indexes, names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kstore.engine.open.segment_end import segment_end
from kstore.engine.read.times import find_offset_by_timestamp
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from kstore.record.walk import walk
from kstore.segment import LogSegment
from kstore.segments import resume
from kstore.types import NO_TIMESTAMP, TimestampOffset
from tests.support.lives.log_helpers import TIME, append, context, offsets_in, segment


def filled(directory: Path) -> LogSegment:
    """Offsets 50-51, 52-53, 60-61 in a segment with base 40; a gap before 60."""
    made = segment(directory)
    append(made, 50, [b"a", b"b"], timestamp=TIME)
    append(made, 52, [b"c", b"d"], timestamp=TIME + 10)
    append(made, 60, [b"e", b"f"], timestamp=TIME + 20)
    return made


def sealed(made: LogSegment) -> LogSegment:
    made.seal()
    return made


def reopened(made: LogSegment, directory: Path) -> LogSegment:
    made.seal()
    return LogSegment(context(directory), made.base_offset)


def test_a_lookup_in_an_empty_segment_finds_nothing(tmp_path: Path) -> None:
    made = segment(tmp_path)
    assert made.batch_at(40, made.size) is None
    assert offsets_in(made) == []
    assert segment_end(made, made.size)[:2] == (40, 0)


def test_a_read_below_the_first_offset_begins_with_the_first_batch(tmp_path: Path) -> None:
    assert offsets_in(filled(tmp_path), 41)[0] == 50


def test_a_read_within_a_batch_begins_with_the_batch(tmp_path: Path) -> None:
    assert offsets_in(filled(tmp_path), 53)[:2] == [52, 53]


def test_a_read_in_a_gap_returns_the_next_batch(tmp_path: Path) -> None:
    assert offsets_in(filled(tmp_path), 55) == [60, 61]


def test_a_read_after_the_last_offset_returns_nothing(tmp_path: Path) -> None:
    made = filled(tmp_path)
    assert made.batch_at(62, made.size) is None


@pytest.mark.parametrize("active", [True, False], ids=["active", "sealed"])
def test_every_offset_is_located_with_and_without_the_index(active: bool, tmp_path: Path) -> None:
    made = filled(tmp_path)
    if not active:
        made = reopened(made, tmp_path)
    expected = {50: 50, 51: 50, 52: 52, 53: 52, 54: 60, 59: 60, 60: 60, 61: 60}
    for offset, base in expected.items():
        found = made.batch_at(offset, made.size)
        assert found is not None
        assert found.base_offset == base
        assert made.locate(offset, made.size).position == made.locate(offset, made.size, use_index=False).position


def test_reads_stop_at_the_position_they_are_given(tmp_path: Path) -> None:
    made = filled(tmp_path)
    second = made.batch_at(52, made.size)
    assert second is not None
    assert segment_end(made, second.position)[:2] == (52, second.position)
    assert made.batch_at(52, second.position) is None


# --- truncate ---------------------------------------------------------------------------------------------------------


def truncate(made: LogSegment, offset: int) -> None:
    found = made.batch_at(offset, made.size)
    made.activate().truncate_to(offset, made.size if found is None else found.position)


def test_truncating_removes_the_whole_batch_that_holds_the_offset(tmp_path: Path) -> None:
    made = filled(tmp_path)
    truncate(made, 53)
    assert offsets_in(made) == [50, 51]
    assert [entry.offset for entry in made.offset_index().entries()] == []
    made.check()


def test_truncating_above_the_end_changes_nothing(tmp_path: Path) -> None:
    made = filled(tmp_path)
    truncate(made, 100)
    assert offsets_in(made) == [50, 51, 52, 53, 60, 61]


def test_truncating_in_a_gap_keeps_what_is_below(tmp_path: Path) -> None:
    made = filled(tmp_path)
    truncate(made, 57)
    assert offsets_in(made) == [50, 51, 52, 53]


def test_truncating_everything_leaves_a_segment_that_can_be_appended_to(tmp_path: Path) -> None:
    made = filled(tmp_path)
    truncate(made, 0)
    assert (made.size, offsets_in(made)) == (0, [])
    append(made, 40, [b"again"])
    assert offsets_in(made) == [40]


def test_the_greatest_timestamp_is_found_again_after_a_truncation(tmp_path: Path) -> None:
    made = filled(tmp_path)
    assert made.largest_timestamp(made.size) == TimestampOffset(TIME + 21, 61)
    truncate(made, 60)
    assert made.largest_timestamp(made.size) == TimestampOffset(TIME + 11, 53)
    truncate(made, 0)
    assert made.largest_timestamp(made.size).timestamp == NO_TIMESTAMP


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("active", [True, False], ids=["active", "sealed"])
def test_records_are_found_by_their_time(active: bool, tmp_path: Path) -> None:
    made = filled(tmp_path)
    if not active:
        made = reopened(made, tmp_path)
    find = partial(find_offset_by_timestamp, made)
    assert find(TIME - 5, 0, made.size) == TimestampOffset(TIME, 50)
    assert find(TIME + 1, 0, made.size) == TimestampOffset(TIME + 1, 51)
    assert find(TIME + 5, 0, made.size) == TimestampOffset(TIME + 10, 52)
    assert find(TIME + 21, 0, made.size) == TimestampOffset(TIME + 21, 61)
    assert find(TIME + 22, 0, made.size) is None
    assert find(TIME, 53, made.size) == TimestampOffset(TIME + 11, 53)


def test_the_first_batch_s_time_is_what_the_segment_rolls_by(tmp_path: Path) -> None:
    made = filled(tmp_path)
    assert made.activate().first_timestamp == TIME + 1
    assert reopened(made, tmp_path).activate().first_timestamp == TIME + 1


def test_an_index_that_lies_about_times_is_passed_over(tmp_path: Path) -> None:
    made = sealed(filled(tmp_path))
    path = made.path(TIME_INDEX_SUFFIX)
    data = bytearray(path.read_bytes())
    data[7] ^= 0x40
    path.write_bytes(data)
    made = LogSegment(context(tmp_path), 40)
    for offset, time in ((50, TIME), (52, TIME + 10), (61, TIME + 21)):
        assert find_offset_by_timestamp(made, time, 0, made.size) == TimestampOffset(time, offset)


# --- indexes ----------------------------------------------------------------------------------------------------------


def index_files(made: LogSegment) -> tuple[bytes, bytes]:
    return made.path(INDEX_SUFFIX).read_bytes(), made.path(TIME_INDEX_SUFFIX).read_bytes()


@pytest.mark.parametrize("interval", [0, 100, 4096])
def test_a_rebuild_makes_the_bytes_that_appending_made(interval: int, tmp_path: Path) -> None:
    made = segment(tmp_path, index_interval_bytes=interval)
    for number in range(60):
        append(made, 40 + 2 * number, [b"x" * 50, b"y" * (number % 7)], timestamp=TIME + number * (-1) ** number)
    made.seal()
    appended = index_files(made)
    tail = made.activate()
    tail.rebuild()
    made.seal()
    assert index_files(made) == appended


DAMAGES = {
    "lost": None,
    "empty": b"",
    "zeros": bytes(240),
    "garbage": bytes(range(1, 241)),
    "ragged": bytes(13),
}


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_INDEX_SUFFIX], ids=["index", "timeindex"])
def test_a_damaged_index_is_rebuilt_and_misleads_no_reader(suffix: str, content: bytes | None, tmp_path: Path) -> None:
    made = sealed(filled(tmp_path))
    whole = index_files(made)
    path = made.path(suffix)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    reading = LogSegment(context(tmp_path), 40)
    assert [reading.batch_at(o, reading.size).base_offset for o in (50, 53, 55, 61)] == [50, 52, 60, 60]  # type: ignore[union-attr]
    assert find_offset_by_timestamp(reading, TIME + 10, 0, reading.size) == TimestampOffset(TIME + 10, 52)
    assert reading.largest_timestamp(reading.size) == TimestampOffset(TIME + 21, 61)
    writing = LogSegment(context(tmp_path), 40)
    writing.activate().rebuild()
    writing.check()
    writing.seal()
    assert index_files(writing) == whole


def test_a_lost_index_is_noticed_after_a_few_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = segment(tmp_path)
    for number in range(200):
        append(made, 40 + number, [b"x"], timestamp=TIME + number)
    whole = index_files(sealed(made))
    made.path(INDEX_SUFFIX).unlink()
    passed = []

    def watched(*arguments: Any, **options: Any) -> Iterator[Any]:
        for item in walk(*arguments, **options):
            passed.append(item)
            yield item

    monkeypatch.setattr(resume, "walk", watched)
    writing = LogSegment(context(tmp_path), 40)
    writing.activate()
    assert 0 < len(passed) < 20
    writing.check()
    assert index_files(sealed(writing)) == whole


def test_a_corrupt_message_hides_no_other(tmp_path: Path) -> None:
    made = sealed(filled(tmp_path))
    data = bytearray(made.path(LOG_SUFFIX).read_bytes())
    data[70] ^= 1
    made.path(LOG_SUFFIX).write_bytes(data)
    assert offsets_in(LogSegment(context(tmp_path), 40)) == [52, 53, 60, 61]


def test_a_small_interval_gives_every_batch_but_the_first_an_entry(tmp_path: Path) -> None:
    made = filled(tmp_path)
    assert [entry.offset for entry in made.offset_index().entries()] == [53, 61]


def test_full_indexes_say_so(tmp_path: Path) -> None:
    made = segment(tmp_path, segment_index_bytes=36)
    assert made.activate().entry_room > 0
    for number in range(4):
        append(made, 40 + number, [b"x"], timestamp=TIME + number)
    assert made.activate().entry_room == 0


# --- files ------------------------------------------------------------------------------------------------------------


def test_renaming_takes_all_files_along(tmp_path: Path) -> None:
    made = filled(tmp_path)
    made.rename(".deleted")
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{40:020d}{suffix}.deleted" for suffix in (".log", ".index", ".timeindex")
    }


def test_deleting_twice_is_no_error(tmp_path: Path) -> None:
    made = filled(tmp_path)
    made.delete()
    made.delete()
    assert list(tmp_path.iterdir()) == []


def test_a_reader_goes_on_with_a_file_that_was_deleted(tmp_path: Path) -> None:
    made = sealed(filled(tmp_path))
    file = made.log_file()
    made.delete()
    assert len(file.pread(1 << 20, 0)) == made.size


def test_a_sealed_segment_has_no_spare_bytes_or_blocks(tmp_path: Path) -> None:
    made = filled(tmp_path)
    size = made.size
    made.seal()
    stat = made.path(LOG_SUFFIX).stat()
    assert stat.st_size == size
    assert stat.st_blocks * 512 <= 64 * 1024
    assert made.path(INDEX_SUFFIX).stat().st_size == 16
    assert made.path(TIME_INDEX_SUFFIX).stat().st_size == 24
