"""When a log begins a new segment and what the old one keeps; flush, close, and readers beside all this."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.engine.producers import LogProducers
from kstore.errors import BatchTooLargeError, ClosedError, DiskFullError, InvalidOffsetError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.segments.tail import SegmentTail
from kstore.state.log_state import LogState, read_state
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs
from tests.support.harness.evidence import Wrong
from tests.support.lives.log_cases import data, files, killed, offsets, segment_bases
from tests.support.lives.log_helpers import TIME

DURABILITIES: list[Durability] = ["sync", "interval", "os"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(TIME)


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with Log(tmp_path / "log", durability="os", clock=clock, segment_bytes=1024, segment_ms=1000) as opened:
        yield opened
        opened.check()


def state(path: Path) -> LogState:
    found = read_state(SYSTEM_FS, path / "kstore.state")
    assert found is not None
    return found


# --- by size ----------------------------------------------------------------------------------------------------------


def test_a_segment_takes_exactly_its_size(tmp_path: Path) -> None:
    with Log(tmp_path / "probe", durability="os") as log:
        size = log.append_many([b"x" * 400]).size
        overhead = size - 400
    with Log(tmp_path / "log", durability="os", segment_bytes=1024) as log:
        log.append(b"x" * (512 - overhead))
        log.append(b"x" * (512 - overhead))
        assert segment_bases(log.path) == [0]
        log.append(b"x")
        assert segment_bases(log.path) == [0, 2]
        assert (log.path / f"{0:020d}.log").stat().st_size == 1024


def test_one_append_may_fill_many_segments(log: Log) -> None:
    batches = b"".join(data(offset, size=300) for offset in range(12))
    assert log.append_batches(batches, assign_offsets=False).batch_count == 12
    assert segment_bases(log.path) == [0, 2, 4, 6, 8, 10]
    assert offsets(log) == list(range(12))


def test_a_batch_that_no_segment_can_take_leaves_the_log_as_it_was(log: Log) -> None:
    log.append(b"x")
    before = files(log.path, ".log")
    with pytest.raises(BatchTooLargeError):
        log.append_batches(data(1) + data(2, size=2000), assign_offsets=False)
    assert (files(log.path, ".log"), log.end_offset) == (before, 1)


# --- by time ----------------------------------------------------------------------------------------------------------


def test_time_is_counted_from_the_segment_s_first_batch(log: Log) -> None:
    log.append_many([b"a", b"b"], timestamps=[TIME, TIME + 500])
    log.append(b"c", timestamp=TIME + 1500)
    assert segment_bases(log.path) == [0]
    log.append(b"d", timestamp=TIME + 1501)
    assert segment_bases(log.path) == [0, 3]
    log.append(b"e", timestamp=TIME + 2501)
    assert segment_bases(log.path) == [0, 3]


def test_records_of_long_ago_do_not_roll(log: Log, clock: ManualClock) -> None:
    log.append(b"a", timestamp=TIME)
    for _ in range(3):
        clock.advance(900)
        log.append(b"old", timestamp=5)
    assert segment_bases(log.path) == [0]


def test_records_without_a_time_roll_by_the_age_of_their_segment(log: Log, clock: ManualClock) -> None:
    log.append(b"a", timestamp=-1)
    clock.advance(700)
    log.append(b"b", timestamp=-1)
    clock.advance(300)
    log.append(b"c", timestamp=-1)
    assert segment_bases(log.path) == [0]
    clock.advance(1)
    log.append(b"d", timestamp=-1)
    assert segment_bases(log.path) == [0, 3]


def test_jitter_only_shortens_the_time(tmp_path: Path, clock: ManualClock) -> None:
    settings: dict[str, Any] = {"segment_ms": 1000, "segment_jitter_ms": 100}
    for number in range(20):
        with Log(tmp_path / f"{number}", durability="os", clock=clock, **settings) as log:
            log.append(b"a", timestamp=TIME)
            log.append(b"b", timestamp=TIME + 900)
            assert segment_bases(log.path) == [0]
            log.append(b"c", timestamp=TIME + 1001)
            assert segment_bases(log.path)[1:] == [2]


def test_time_is_still_counted_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    for durability in DURABILITIES:
        path = tmp_path / durability
        with Log(path, durability=durability, clock=clock) as log:
            log.append(b"a", timestamp=TIME)
            copy = killed(log, tmp_path / f"{durability}-killed")
        for each in (path, copy):
            with Log(each, durability=durability, clock=clock, segment_ms=1000) as log:
                log.append(b"b", timestamp=TIME + 1000)
                log.append(b"c", timestamp=TIME + 1001)
                assert segment_bases(each) == [0, 2]


def test_an_idle_log_rolls_when_it_is_flushed_and_an_empty_one_never(log: Log, clock: ManualClock) -> None:
    log.append(b"a")
    clock.advance(1001)
    log.flush()
    assert segment_bases(log.path) == [0, 1]
    clock.advance(100_000)
    log.flush()
    assert segment_bases(log.path) == [0, 1]
    assert log.append(b"b", timestamp=TIME) == 1


def test_a_clock_that_goes_back_rolls_nothing(log: Log, clock: ManualClock) -> None:
    log.append(b"a", timestamp=-1)
    clock.jump(-3_600_000)
    log.append(b"b", timestamp=-1)
    log.flush()
    assert segment_bases(log.path) == [0]


# --- by offsets -------------------------------------------------------------------------------------------------------


def test_a_new_segment_begins_at_the_first_offset_of_its_first_batch(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", segment_ms=2**63 - 1) as log:
        wanted = [0, 7, 100, 2**31 - 1, 2**31, 2**31 + 5, 2**40]
        for offset in wanted:
            log.append_batches(data(offset, offset + 1) if offset == 7 else data(offset), assign_offsets=False)
        assert segment_bases(log.path) == [0, 2**31, 2**40]
        assert offsets(log) == sorted([*wanted, 8])
        log.check()


def test_offsets_that_go_back_are_refused_and_change_nothing(log: Log) -> None:
    log.append_batches(data(5, 6), assign_offsets=False)
    before = files(log.path, ".log")
    for batches in (data(6), data(0), data(7) + data(7), data(9) + data(8)):
        with pytest.raises(InvalidOffsetError):
            log.append_batches(batches, assign_offsets=False)
    assert (files(log.path, ".log"), log.end_offset) == (before, 7)
    assert log.append_batches(data(7) + data(9), assign_offsets=False).last_offset == 9


# --- what a roll leaves -----------------------------------------------------------------------------------------------


def test_a_sealed_segment_s_indexes_are_as_large_as_their_entries(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", index_interval_bytes=0, segment_index_bytes="1MiB") as log:
        for number in range(20):
            log.append(b"x", timestamp=TIME + number)
        log.roll()
        sizes = {name: len(content) for name, content in files(log.path, ".index", ".timeindex").items()}
        # The first batch has no entry; the last time already has one.
        assert sizes[f"{0:020d}.index"] == 19 * 8
        assert sizes[f"{0:020d}.timeindex"] == 19 * 12
        assert [log.offset_for_time(TIME + number) for number in range(20)] == list(range(20))


def test_an_index_of_a_smaller_limit_rolls_sooner_after_a_restart(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"durability": "os", "index_interval_bytes": 0}
    with Log(tmp_path / "log", **settings) as log:
        for number in range(20):
            log.append(b"x", timestamp=TIME + number)
    with Log(tmp_path / "log", segment_index_bytes=48, **settings) as log:
        log.append(b"x", timestamp=TIME + 20)
        assert segment_bases(log.path) == [0, 20]
    with Log(tmp_path / "log", **settings) as log:
        for number in range(20):
            log.append(b"x", timestamp=TIME + 21 + number)
        assert segment_bases(log.path) == [0, 20]
        assert offsets(log) == list(range(41))
        assert log.offset_for_time(TIME + 33) == 33
        log.check()


@pytest.mark.parametrize("suffixes", [(".log", ".index", ".timeindex", ".txnindex"), (".index",), (".timeindex",)])
def test_files_of_the_new_segment_s_name_are_replaced(suffixes: tuple[str, ...], log: Log) -> None:
    log.append(b"a")
    for suffix in suffixes:
        (log.path / f"{1:020d}{suffix}").write_bytes(b"what a crash left, longer than an entry")
    assert log.roll() == 1
    assert files(log.path, ".txnindex") == {}
    assert (log.append(b"b"), offsets(log)) == (1, [0, 1])
    assert files(log.path, ".index")[f"{1:020d}.index"] == b""


@pytest.mark.usefixtures("unflushed")
def test_a_roll_opens_each_new_file_once_and_removes_nothing(tmp_path: Path) -> None:
    fs = RecordingFs(SYSTEM_FS)
    with Log(tmp_path / "log", durability="os", fs=fs) as log:
        log.append(b"a")
        log.roll()  # the first one also maps kstore.state
        log.append(b"b")
        fs.operations.clear()
        log.roll()
        done = [(operation.kind, Path(operation.path).suffix) for operation in fs.operations]
    created = [("create", ".log"), ("create", ".index"), ("close", ".index"), ("create", ".timeindex")]
    last_time = [("open", ".timeindex"), ("write_all", ".timeindex"), ("close", ".timeindex")]
    assert done == [*created, ("close", ".timeindex"), *last_time, ("store", ".state")]


# --- blocks after the end ---------------------------------------------------------------------------------------------


def blocks(log: Log, base_offset: int = 0) -> int:
    """The bytes of the blocks of a segment's ``.log``."""
    return (log.path / f"{base_offset:020d}.log").stat().st_blocks * 512


@pytest.fixture
def spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Log, SegmentTail]]:
    """A log with a sealed segment that still has spare blocks, and that segment's tail."""
    monkeypatch.setattr("kstore.segments.tail.ALLOCATE_BYTES", 4 << 20)
    with Log(tmp_path / "log", durability="os") as log:
        for _ in range(3):
            log.append(bytes(50_000))
        tail = writer_of(log).segments.last.tail
        assert tail is not None
        log.roll()
        if blocks(log) < 1 << 20:
            pytest.skip("this file system reserves no blocks")
        yield log, tail


@pytest.mark.usefixtures("unflushed")
def test_a_flush_releases_the_spare_blocks_of_a_sealed_segment(spared: tuple[Log, SegmentTail]) -> None:
    log, _ = spared
    log.flush()
    assert blocks(log) < 1 << 20
    assert offsets(log) == [0, 1, 2]


@pytest.mark.usefixtures("unflushed")
def test_closing_releases_the_spare_blocks_of_a_sealed_segment(spared: tuple[Log, SegmentTail]) -> None:
    log, _ = spared
    log.close()
    assert blocks(log) < 1 << 20


@pytest.mark.usefixtures("unflushed")
def test_a_flush_that_is_late_cuts_nothing_that_was_appended_after_a_truncation(
    spared: tuple[Log, SegmentTail],
) -> None:
    log, tail = spared
    log.truncate_to(2)
    for _ in range(3):
        log.append(bytes(50_000))
    tail.give_back_spare()
    assert offsets(log) == [0, 1, 2, 3, 4]
    log.check()


@pytest.mark.usefixtures("unflushed")
def test_a_flush_that_is_late_cuts_nothing_that_was_appended_after_a_failed_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append(bytes(100_000))
        tail = writer_of(log).segments.last.tail
        assert tail is not None

        def failing(*_: Any) -> None:
            raise DiskFullError(errno.ENOSPC, "no space", "")

        with monkeypatch.context() as patch:
            patch.setattr(LogProducers, "snapshot", failing)
            with pytest.raises(DiskFullError):
                log.roll()
        log.append(b"b")
        tail.give_back_spare()
        assert offsets(log) == [0, 1]
        log.check()


@pytest.mark.usefixtures("unflushed")
def test_a_flush_that_ends_after_the_close_changes_no_file(
    spared: tuple[Log, SegmentTail], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, tail = spared
    monkeypatch.setattr(SegmentTail, "give_back_spare", lambda tail: None)
    log.close()
    monkeypatch.undo()
    size = tail.position
    path = log.path / f"{0:020d}.log"
    with path.open("ab") as file:
        file.write(b"of another writer")
    tail.give_back_spare()
    assert path.stat().st_size > size


def test_a_small_segment_gets_no_blocks_ahead(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", segment_bytes="1MiB") as log:
        log.append(bytes(1000))
        log.roll()
        log.append(bytes(1000))
        assert blocks(log, 1) <= 64 * 1024
        log.append(bytes(100_000))
        assert blocks(log, 1) <= (1 << 20) + 64 * 1024, "no further than the segment's end"


@pytest.mark.parametrize("durability", DURABILITIES)
def test_rolling_an_empty_segment_keeps_it(durability: Durability, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability=durability) as log:
        assert [log.roll(), log.roll()] == [0, 0]
        log.append(b"a")
        assert [log.roll(), log.roll()] == [1, 1]
        assert segment_bases(log.path) == [0, 1]
    with Log(tmp_path / "log", durability=durability) as log:
        assert log.roll() == 1
        assert log.append(b"b") == 1


# --- flush and close --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unflushed")
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_flush_moves_the_recovery_point_to_the_end(durability: Durability, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability=durability, flush_ms="1d") as log:
        log.append(b"a")
        log.roll()
        log.append(b"b")
        # A segment that was sealed in "sync" is already on disk.
        assert state(log.path).recovery_point == (1 if durability == "sync" else 0)
        log.flush()
        assert (state(log.path).recovery_point, state(log.path).durable_end) == (2, 2)
        log.flush()
        assert not state(log.path).clean
    assert (state(log.path).recovery_point, state(log.path).clean) == (2, True)


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_flush_messages_bounds_what_is_not_on_disk(durability: Durability, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability=durability, flush_messages=3, flush_ms="1d") as log:
        ends = []
        for _ in range(7):
            log.append(b"x")
            ends.append(state(log.path).durable_end)
        assert ends == [0, 0, 3, 3, 3, 6, 6]


def test_the_indexes_of_a_segment_that_was_truncated_away_need_no_sync(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Log(tmp_path / "log", durability="os", clock=ManualClock(TIME)) as log:
        log.append(b"first")
        log.roll()
        log.append(b"second")
        tail = writer_of(log).files.tail
        assert tail is not None
        log.truncate_to(0)
        tail.sync_indexes(SYSTEM_FS)  # as by a flush that began before the truncation
    assert not caplog.records


def test_closing_twice_and_without_a_change_writes_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.append(b"x")
    log.close()
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in log.path.iterdir()}
    log.close()
    with Log(tmp_path / "log") as again:
        assert offsets(again) == [0]
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in log.path.iterdir()}
    before.pop(".lock", None)
    after.pop(".lock", None)
    assert after == before


def test_an_append_after_the_close_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.append(b"x")
    log.close()
    for append in (lambda: log.append(b"y"), lambda: log.append_batches(data(1), assign_offsets=False), log.roll):
        with pytest.raises(ClosedError):
            append()
    assert [len(content) > 0 for content in files(log.path, ".log").values()] == [True]


# --- readers beside a writer ------------------------------------------------------------------------------------------


@pytest.mark.promise("high watermark")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("segment_bytes", [1 << 20, 1024], ids=["no-rolls", "many-rolls"])
@pytest.mark.sampled(3)
def test_readers_see_every_record_once_and_none_before_its_append(
    durability: Durability, segment_bytes: int, tmp_path: Path, tried: Any
) -> None:
    count = 150 if durability == "sync" else 500
    errors: list[BaseException] = []
    seen: list[int] = []

    def follow(log: Log) -> None:
        try:
            expected = 0
            for record in log.read(follow=True, timeout=300):
                if (record.offset, record.value) != (expected, b"%d" % expected * 20):
                    raise Wrong(f"{record}, expected offset {expected}")
                if record.offset >= log.high_watermark:
                    raise Wrong(f"offset {record.offset} was read, the high watermark is {log.high_watermark}")
                expected += 1
                if expected == count:
                    break
            seen.append(expected)
        except BaseException as error:
            errors.append(error)

    with (
        Log(tmp_path / "log", durability=durability, segment_bytes=segment_bytes) as writer,
        Log(tmp_path / "log", read_only=True) as view,
    ):
        threads = [threading.Thread(target=follow, args=(log,)) for log in (writer, writer, view)]
        for thread in threads:
            thread.start()
        end = 0
        while end < count:
            end = writer.append_many([b"%d" % (end + at) * 20 for at in range(5)]).last_offset + 1
        for thread in threads:
            thread.join(300)
        assert errors == []
        assert seen == [count] * 3
        assert (len(segment_bases(writer.path)) > 10) is (segment_bytes == 1024)
    tried("reads", 3 * count)


def test_a_roll_without_space_does_not_read_the_old_segment_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuilt: list[SegmentTail] = []
    monkeypatch.setattr(SegmentTail, "rebuild", rebuilt.append)
    fs = FailingFs(SYSTEM_FS)
    with Log(tmp_path / "log", fs=fs, durability="os", segment_bytes=1 << 14, index_interval_bytes=256) as log:
        for _ in range(14):
            log.append(b"x" * 1000)
        end_offset = log.end_offset
        fs.faults.append(Fault(1, errno=errno.ENOSPC, kinds=frozenset({"create"}), sticky=True))
        for _ in range(3):
            with pytest.raises(DiskFullError):
                log.append(b"x" * 2000)
        fs.faults.clear()
        assert log.append(b"x" * 2000) == end_offset
    assert not rebuilt
