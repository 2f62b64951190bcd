"""A log's everyday life: append, read, look up, roll, truncate, delete, reopen."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import (
    BatchTooLargeError,
    ConfigError,
    InvalidOffsetError,
    InvalidRecordError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)
from kstore.log import Log, writer_of
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.log_helpers import TIME

DURABILITIES: list[Durability] = ["sync", "interval", "os"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(TIME)


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with Log(tmp_path / "log", durability="os", clock=clock) as opened:
        yield opened
        opened.check()


def values(log: Log, *bounds: int, **options: Any) -> list[bytes | None]:
    return [record.value for record in log.read(*bounds, **options)]


# --- append and read --------------------------------------------------------------------------------------------------


def test_a_record_comes_back_with_all_its_fields(log: Log) -> None:
    assert log.append(b"hello", key=b"k", headers=[("trace", b"\x01"), ("日志", None)], timestamp=TIME - 5) == 0
    (record,) = log.read()
    assert (record.offset, record.timestamp, record.timestamp_type) == (0, TIME - 5, "CreateTime")
    assert (record.key, record.value, record.leader_epoch) == (b"k", b"hello", 0)
    assert record.headers == (("trace", b"\x01"), ("日志", None))


def test_null_and_empty_values_are_told_apart(log: Log) -> None:
    log.append_many([None, b"", b"x"], keys=[b"", None, b"k"])
    assert [(record.key, record.value) for record in log.read()] == [(b"", None), (None, b""), (b"k", b"x")]


def test_append_many_tells_what_it_did(log: Log) -> None:
    log.append(b"first")
    info = log.append_many([b"a", b"b", b"c"], timestamps=[TIME, TIME + 7, TIME + 3])
    assert (info.first_offset, info.last_offset, info.record_count, info.batch_count) == (1, 3, 3, 1)
    assert (info.max_timestamp, info.offset_of_max_timestamp, info.log_append_time) == (TIME + 7, 2, -1)
    assert info.size == next(iter(log.fetch(1).batches())).size


def test_appending_nothing_does_nothing(log: Log) -> None:
    info = log.append_many([])
    assert (info.first_offset, info.last_offset, info.record_count, log.end_offset) == (0, -1, 0, 0)


def test_many_records_are_split_at_max_message_bytes(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", max_message_bytes=1000) as log:
        info = log.append_many([b"x" * 100] * 50)
        assert info.batch_count > 5
        assert all(batch.size <= 1000 for batch in log.fetch(0, 1 << 20).batches())
        assert len(values(log)) == 50


def test_sequences_of_different_length_are_refused(log: Log) -> None:
    for other in ({"keys": [b"k"]}, {"timestamps": [1]}, {"headers": [()]}):
        with pytest.raises(ValueError):
            log.append_many([b"a", b"b"], **other)
    assert log.end_offset == 0


def test_a_str_is_no_value(log: Log) -> None:
    with pytest.raises(TypeError):
        log.append("text")  # type: ignore[arg-type]
    assert log.end_offset == 0


def test_reads_keep_to_their_range(log: Log) -> None:
    for number in range(10):
        log.append_many([b"%d" % (2 * number), b"%d" % (2 * number + 1)])
    assert values(log, 5, 9) == [b"5", b"6", b"7", b"8"]
    assert values(log, 19) == [b"19"]
    assert values(log, 20) == []
    assert values(log, 3, 3) == []
    assert list(log.read_values(17)) == [b"17", b"18", b"19"]
    assert next(log.read(7)).offset == 7


@pytest.mark.parametrize("offset", [-1, 4])
def test_an_offset_outside_the_log_is_a_lookup_error(log: Log, offset: int) -> None:
    log.append_many([b"a", b"b", b"c"])
    with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} is outside the log, which holds 0 to 3"):
        log.read(offset)
    with pytest.raises(LookupError):
        log.fetch(offset)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_every_codec_is_written_and_read(tmp_path: Path, codec: str) -> None:
    with Log(tmp_path / "log", durability="os", compression_type=codec) as log:  # type: ignore[arg-type]  # a parameter of the test
        info = log.append_many([b"value %d" % number for number in range(500)])
        assert info.target_codec == ("none" if codec == "uncompressed" else codec)
        assert values(log, 250, 252) == [b"value 250", b"value 251"]


def test_an_append_time_log_stamps_its_records(tmp_path: Path, clock: ManualClock) -> None:
    with Log(tmp_path / "log", durability="os", clock=clock, message_timestamp_type="LogAppendTime") as log:
        info = log.append_many([b"a", b"b"], timestamps=[1, 2])
        assert info.log_append_time == TIME
        assert [(r.timestamp, r.timestamp_type) for r in log.read()] == [(TIME, "LogAppendTime")] * 2


def test_timestamps_outside_the_limits_are_refused(tmp_path: Path, clock: ManualClock) -> None:
    limits: dict[str, Any] = {"message_timestamp_before_max_ms": 1000, "message_timestamp_after_max_ms": 1000}
    with Log(tmp_path / "log", durability="os", clock=clock, **limits) as log:
        with pytest.raises(InvalidTimestampError) as caught:
            log.append_many([b"a", b"b", b"c"], timestamps=[TIME, TIME - 1001, TIME + 1001])
        assert [error.index for error in caught.value.record_errors] == [1, 2]
        log.append_many([b"a", b"b"], timestamps=[TIME - 1000, -1])
        assert log.end_offset == 2


def test_a_compacted_log_needs_keys(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", cleanup_policy="compact") as log:
        with pytest.raises(InvalidRecordError, match="record 1 has no key"):
            log.append_many([b"a", b"b"], keys=[b"k", None])
        log.append(b"a", key=b"k")


def test_a_record_that_is_too_large_leaves_nothing(log: Log) -> None:
    with pytest.raises(RecordTooLargeError, match="max_message_bytes"):
        log.append_many([b"small", b"x" * 1_048_600])
    assert log.end_offset == 0
    assert log.append(b"goes on") == 0


def test_a_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", segment_bytes=2000) as log:
        with pytest.raises(BatchTooLargeError, match="segment_bytes"):
            log.append(b"x" * 3000)
        assert log.append(b"goes on") == 0


def test_an_unknown_setting_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="segment_bytes"):
        Log(tmp_path / "log", segment_byte=1)  # type: ignore[call-arg]  # misspelt on purpose
    with pytest.raises(ConfigError, match="durability"):
        Log(tmp_path / "log", durability="always")  # type: ignore[arg-type]
    assert not (tmp_path / "log").exists()


def test_settings_read_sizes_and_times_as_people_write_them(tmp_path: Path) -> None:
    with Log(tmp_path / "log", segment_bytes="64MiB", segment_ms="7d", compression_type="lz4") as log:
        log.append(b"x")


@pytest.mark.parametrize("durability", DURABILITIES)
def test_many_threads_get_offsets_without_gap_or_doubling(tmp_path: Path, durability: Durability) -> None:
    with Log(tmp_path / "log", durability=durability, segment_bytes=4000) as log:
        offsets: list[int] = []

        def work(name: int) -> None:
            for number in range(25):
                offsets.append(log.append(b"%d-%d" % (name, number)))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offsets) == list(range(200))
        found = values(log)
        for name in range(8):
            mine = [value for value in found if value is not None and value.startswith(b"%d-" % name)]
            assert mine == [b"%d-%d" % (name, number) for number in range(25)]
        log.check()


# --- foreign batches --------------------------------------------------------------------------------------------------


def test_a_slice_of_one_log_goes_into_another(log: Log, tmp_path: Path) -> None:
    log.append_many([b"a", b"b"], keys=[b"1", b"2"])
    log.append(b"c", headers=[("h", b"v")])
    with Log(tmp_path / "other", durability="os", compression_type="zstd") as other:
        info = other.append_batches(log.fetch(0).read())
        assert (info.first_offset, info.last_offset, info.target_codec) == (0, 2, "zstd")
        assert [(r.key, r.value, r.headers) for r in other.read()] == [(r.key, r.value, r.headers) for r in log.read()]


def test_batches_may_keep_their_offsets(log: Log, tmp_path: Path) -> None:
    log.append_many([b"a", b"b"])
    log.append_many([b"c", b"d"])
    data = log.fetch(2).read()
    with Log(tmp_path / "other", durability="os") as other:
        info = other.append_batches(data, assign_offsets=False)
        assert (info.first_offset, info.last_offset) == (2, 3)
        assert [record.offset for record in other.read()] == [2, 3]
        with pytest.raises(InvalidOffsetError, match="expected at least 4"):
            other.append_batches(data, assign_offsets=False)
        assert other.append(b"e") == 4


def test_trailing_bytes_that_are_no_batch_are_left_off(log: Log, tmp_path: Path) -> None:
    log.append(b"a")
    data = log.fetch(0).read()
    with Log(tmp_path / "other", durability="os") as other:
        assert other.append_batches(data + data[:30]).record_count == 1
        assert other.append_batches(data[:30]).record_count == 0


def test_a_slice_is_sent_through_a_socket_and_parsed_there(log: Log) -> None:
    for number in range(100):
        log.append_many([b"%d" % number] * 20)
    part = log.fetch(0, 50_000)
    ours, theirs = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        while data := theirs.recv(4096):
            received.extend(data)

    reader = threading.Thread(target=receive)
    reader.start()
    assert part.send_to(ours) == part.size
    ours.close()
    reader.join()
    theirs.close()
    assert bytes(received) == part.read()
    sent = [record for batch in kstore.parse_batches(received) for record in batch.records()]
    assert sent == list(part.records())


def test_a_non_blocking_socket_takes_what_it_can(log: Log) -> None:
    log.append_many([b"x" * 1000] * 900)
    part = log.fetch(0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sent = part.send_to(ours)
        assert 0 < sent < part.size
        received = theirs.recv(1 << 20)
        assert received == part.read()[: len(received)]


# --- times ------------------------------------------------------------------------------------------------------------


def test_offsets_are_found_by_time(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", segment_bytes=1024) as log:
        for number in range(50):
            log.append(b"x" * 50, timestamp=TIME + 10 * number)
        assert log.offset_for_time(TIME + 95) == 10
        assert log.offset_for_time(datetime.fromtimestamp((TIME + 100) / 1000, UTC)) == 10
        assert log.offset_for_time(0) == 0
        assert log.offset_for_time(TIME + 491) is None
        assert (log.offset_for_time("earliest"), log.offset_for_time("latest")) == (0, 50)
        assert log.offset_for_time("max_timestamp") == 49


def test_times_out_of_order_are_found_first_come(log: Log) -> None:
    log.append_many([b"a", b"b", b"c"], timestamps=[TIME + 5, TIME + 50, TIME + 20])
    log.append_many([b"d", b"e"], timestamps=[TIME + 1, TIME + 60])
    assert log.offset_for_time(TIME + 20) == 1
    assert log.offset_for_time(TIME + 51) == 4
    assert log.offset_for_time("max_timestamp") == 4


def test_a_naive_datetime_is_refused(log: Log) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        log.offset_for_time(datetime(2026, 1, 1))  # the point


def test_an_empty_log_has_no_times(log: Log) -> None:
    assert (log.offset_for_time(TIME), log.offset_for_time("max_timestamp")) == (None, None)


# --- roll -------------------------------------------------------------------------------------------------------------


def segment_count(log: Log) -> int:
    return len(list(log.path.glob("*.log")))


def test_a_segment_rolls_by_size(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", segment_bytes=1024) as log:
        for _ in range(10):
            log.append(b"x" * 300)
        assert segment_count(log) == 5
        assert all(path.stat().st_size <= 1024 for path in log.path.glob("*.log"))
        assert len(values(log)) == 10


def test_a_segment_rolls_by_the_time_between_its_records(tmp_path: Path, clock: ManualClock) -> None:
    with Log(tmp_path / "log", durability="os", clock=clock, segment_ms=1000) as log:
        log.append(b"a", timestamp=TIME)
        log.append(b"b", timestamp=TIME + 1000)
        assert segment_count(log) == 1
        log.append(b"c", timestamp=TIME + 1001)
        assert segment_count(log) == 2


def test_a_segment_rolls_when_an_index_is_full(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", segment_index_bytes=48, index_interval_bytes=0) as log:
        for number in range(12):
            log.append(b"x", timestamp=TIME + number)
        assert segment_count(log) > 1
        assert len(values(log)) == 12


def test_a_segment_rolls_when_offsets_get_too_far_from_its_base(log: Log, tmp_path: Path) -> None:
    log.append(b"a")
    data = bytearray(log.fetch(0).read())
    data[0:8] = (2**31 + 5).to_bytes(8, "big")
    log.append_batches(data, assign_offsets=False)
    assert segment_count(log) == 2
    assert [record.offset for record in log.read()] == [0, 2**31 + 5]


def test_an_idle_segment_rolls_on_time(tmp_path: Path, clock: ManualClock) -> None:
    with Log(tmp_path / "log", durability="os", clock=clock, segment_ms=1000) as log:
        log.append(b"a", timestamp=TIME)
        clock.advance(1001)
        log.append(b"b", timestamp=TIME)
        assert segment_count(log) == 2


def test_rolling_by_hand_does_nothing_to_an_empty_segment(log: Log) -> None:
    assert log.roll() == 0
    log.append(b"a")
    assert (log.roll(), log.roll(), segment_count(log)) == (1, 1, 2)
    assert log.append(b"b") == 1


# --- truncate and delete ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
def test_truncating_removes_whole_batches_from_the_end(tmp_path: Path, durability: Durability) -> None:
    with Log(tmp_path / "log", durability=durability, segment_bytes=1024) as log:
        for number in range(10):
            log.append_many([b"%d" % (2 * number) + b"x" * 300, b"y"])
        log.truncate_to(7)
        assert (log.end_offset, log.high_watermark) == (7, 7)
        assert [record.offset for record in log.read()] == [0, 1, 2, 3, 4, 5]
        assert log.append(b"again") == 7
        log.check()
    with Log(tmp_path / "log", read_only=True) as log:
        assert [record.offset for record in log.read()] == [0, 1, 2, 3, 4, 5, 7]


def test_truncating_at_or_above_the_end_does_nothing(log: Log) -> None:
    log.append_many([b"a", b"b"])
    log.truncate_to(2)
    log.truncate_to(100)
    assert log.end_offset == 2
    with pytest.raises(InvalidOffsetError):
        log.truncate_to(-1)


def test_truncating_to_the_start_leaves_an_empty_log(log: Log) -> None:
    log.append_many([b"a", b"b"])
    log.truncate_to(0)
    assert (log.start_offset, log.end_offset, values(log)) == (0, 0, [])
    assert log.append(b"c") == 0


@pytest.mark.parametrize("offset", [0, 3, 1000])
def test_a_log_restarts_at_any_offset(tmp_path: Path, offset: int) -> None:
    with Log(tmp_path / "log", durability="os", segment_bytes=1024) as log:
        for _ in range(6):
            log.append(b"x" * 300)
        writer_of(log).truncate_fully_and_start_at(offset)
        assert (log.start_offset, log.end_offset) == (offset, offset)
        assert log.append(b"new") == offset
        log.check()
    with Log(tmp_path / "log") as log:
        assert [(record.offset, record.value) for record in log.read()] == [(offset, b"new")]


def test_deleting_records_raises_the_start_and_frees_segments(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", segment_bytes=1024) as log:
        for _ in range(10):
            log.append(b"x" * 300)
        before = segment_count(log)
        assert log.delete_records(5) == 5
        assert log.delete_records(3) == 5
        assert segment_count(log) < before
        assert next(log.read()).offset == 5
        with pytest.raises(OffsetOutOfRangeError):
            log.read(4)
        with pytest.raises(OffsetOutOfRangeError):
            log.delete_records(11)
        log.check()
    with Log(tmp_path / "log") as log:
        assert (log.start_offset, log.end_offset) == (5, 10)


# --- reopen, follow ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_closed_log_opens_clean_and_goes_on(tmp_path: Path, durability: Durability) -> None:
    for number in range(4):
        with Log(tmp_path / "log", durability=durability, segment_bytes=1024) as log:
            assert log.recovery.segments_scanned == 0
            assert log.end_offset == 10 * number
            for _ in range(10):
                log.append(b"x" * 90)
            log.check()
    with Log(tmp_path / "log", read_only=True) as log:
        assert len(values(log)) == 40


def test_a_follower_gets_what_is_appended_while_it_waits(log: Log) -> None:
    log.append(b"0")
    got: list[bytes | None] = []
    follower = log.read(follow=True, timeout=300)

    def follow() -> None:
        for record in follower:
            got.append(record.value)
            if len(got) == 4:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(1, 4):
        log.append(b"%d" % number)
    thread.join(300)
    assert got == [b"0", b"1", b"2", b"3"]


def test_a_follower_ends_after_its_timeout_and_when_the_log_closes(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", durability="os")
    log.append(b"0")
    assert values(log, follow=True, timeout=0) == [b"0"]
    follows, ended = threading.Event(), threading.Event()

    def follow() -> None:
        for _ in log.read(follow=True):
            follows.set()
        ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert follows.wait(300)
    log.close()
    assert ended.wait(300)
    thread.join()


def test_a_log_may_have_any_directory_name_and_makes_its_parents(tmp_path: Path) -> None:
    with Log(tmp_path / "a" / "b" / "any name ü") as log:
        log.append(b"x")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "a" / "b" / "any name ü").iterdir())


# --- as a Python object -----------------------------------------------------------------------------------------------


def test_a_log_can_be_iterated_and_indexed(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append_many(b"%d" % number for number in range(5))
        assert [record.value for record in log] == [b"0", b"1", b"2", b"3", b"4"]
        assert [record.offset for record in log] == [0, 1, 2, 3, 4]
        assert log[3] == log.get(3)
        with pytest.raises(TypeError):
            _ = b"0" in log  # type: ignore[operator]


def test_a_tail_is_the_last_records_or_all(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        assert log.tail() == []
        for number in range(20):
            log.append(b"%d" % number)
        assert [record.offset for record in log.tail()] == list(range(10, 20))
        assert [record.offset for record in log.tail(3)] == [17, 18, 19]
        assert [record.offset for record in log.tail(100)] == list(range(20))
        assert [record.offset for record in log.tail(2**70)] == list(range(20))
        assert log.tail(0) == []
        log.delete_records(18)
        assert [record.offset for record in log.tail(3)] == [18, 19]


def test_a_tail_looks_further_where_offsets_are_missing(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", cleanup_policy="compact", segment_bytes=1024) as log:
        for number in range(60):
            log.append(b"%d" % number, key=b"same" if number > 5 else b"%d" % number)
        log.roll()
        log.append(b"end", key=b"end")
        log.compact()
        assert [record.value for record in log.tail(4)] == [record.value for record in log][-4:]
        assert [record.value for record in log.tail(50)] == [record.value for record in log]


def test_times_and_headers_are_accepted_as_people_give_them(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    time_ms = 1_767_312_000_000
    with Log(tmp_path / "log", durability="os") as log:
        log.append(b"a", timestamp=when, headers={"a": b"1"})
        log.append_many(iter([b"b", b"c"]), timestamps=[when, time_ms], headers=[None, {"c": None}])
        log.append_many([b"d", b"e"], keys=iter([b"k", None]), timestamps=iter([when, when]))
        assert {record.timestamp for record in log} == {time_ms}
        assert [record.headers for record in log.read(0, 3)] == [(("a", b"1"),), (), (("c", None),)]
        assert [record.key for record in log.read(3)] == [b"k", None]


def test_a_log_that_stamps_records_accepts_datetimes(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", message_timestamp_type="LogAppendTime") as log:
        log.append_many([b"a", b"b"], timestamps=[datetime(2026, 1, 2, tzinfo=UTC), 5])
        assert log.end_offset == 2


def test_a_path_may_begin_with_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with Log("~/log", durability="os") as log:
        assert log.path == tmp_path / "log"


def test_a_repr_shows_what_is_in_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path, durability="os") as log:
        log.append_many([b"a" * 500] * 4)
        log.roll()
        assert repr(log) == f"Log({str(path)!r}, offsets 0..4, 2 segments, 2.1 kB)"
        assert repr(log.read()) == f"LogReader({str(path)!r})"
        assert repr(log.recovery) == "RecoveryReport(clean=True)"
    assert repr(log) == f"Log({str(path)!r}, closed)"


def test_headers_that_can_be_read_once_are_kept_when_a_batch_is_full(tmp_path: Path) -> None:
    count = 3000
    with Log(tmp_path / "log", durability="os", max_message_bytes=20_000) as log:
        log.append_many([b"value"] * count, headers=[iter([(str(number), b"")]) for number in range(count)])
        assert [record.headers for record in log.read()] == [((str(number), b""),) for number in range(count)]
