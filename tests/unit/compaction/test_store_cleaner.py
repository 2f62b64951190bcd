"""A store's cleaner: which log comes first, how far it got, what stops it and what delays it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import kstore.logs.cleaning
from kstore.compaction.blocks import CompactionReport
from kstore.compaction.cleaner import compact
from kstore.compaction.throttle import Throttle
from kstore.engine.writer import LogWriter
from kstore.errors import StorageError
from kstore.files.checkpoint import read_offset_checkpoint, write_offset_checkpoint
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import CLEANER_OFFSETS, TopicPartition
from kstore.log import Log, writer_of
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock

COMPACTED: dict[str, Any] = {"cleanup_policy": "compact", "durability": "os"}


def opened(path: Path, clock: ManualClock | None = None, **settings: Any) -> Store:
    settings = {"segment_bytes": 1024, "index_interval_bytes": 64, **settings}
    return Store(path, background=False, clock=clock or ManualClock(), **settings)


def fill(log: Log, count: int, keys: int = 3, *, since: int = 0) -> None:
    for number in range(since, since + count):
        log.append(b"%d" % number * 20, key=b"key-%d" % (number % keys))
    log.roll()


def keys_and_offsets(log: Log) -> list[tuple[bytes | None, int]]:
    return [(record.key, record.offset) for record in log.read()]


def checkpoint(path: Path) -> dict[TopicPartition, int]:
    return read_offset_checkpoint(SYSTEM_FS, path / CLEANER_OFFSETS)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, CompactionReport]]:
    """The cleaner's passes: the log, and the outcome."""
    made: list[tuple[str, CompactionReport]] = []

    def noting(writer: LogWriter, **options: Any) -> CompactionReport:
        report = compact(writer, **options)
        made.append((writer.context.directory.name, report))
        return report

    monkeypatch.setattr(kstore.logs.cleaning, "compact", noting)
    return made


# --- which ------------------------------------------------------------------------------------------------------------


def test_the_log_with_the_largest_share_of_dirt_comes_first(
    tmp_path: Path, passes: list[tuple[str, CompactionReport]]
) -> None:
    with opened(tmp_path, min_cleanable_dirty_ratio=0.1) as store:
        store.create_topic("t", 3, **COMPACTED)
        for number in range(3):
            fill(store.log("t", number), 60, keys=30)
        store.run_task("cleaner")
        passes.clear()
        for number, count in enumerate((30, 120, 60)):
            fill(store.log("t", number), count, keys=30, since=60)
        store.run_task("cleaner")
        assert [name for name, _ in passes] == ["t-1", "t-2", "t-0"]


def test_only_compacted_logs_that_are_dirty_enough_are_compacted(
    tmp_path: Path, passes: list[tuple[str, CompactionReport]]
) -> None:
    with opened(tmp_path) as store:
        for topic, policy in (("d", "delete"), ("c", "compact"), ("cd", "compact,delete")):
            store.create_topic(topic, cleanup_policy=policy, durability="os")  # type: ignore[arg-type]  # a parameter of the test
            fill(store.log(topic), 60)
        store.create_topic("active", **COMPACTED)
        store.log("active").append(b"1", key=b"a")
        store.run_task("cleaner")
        assert sorted(name for name, _ in passes) == ["c-0", "cd-0"]
        passes.clear()
        store.run_task("cleaner")
        assert passes == []
        assert len(keys_and_offsets(store.log("d"))) == 60


def test_a_log_that_is_not_on_disk_yet_is_synced_and_compacted(
    tmp_path: Path, passes: list[tuple[str, CompactionReport]]
) -> None:
    with opened(tmp_path, flush_ms="1h") as store:
        store.create_topic("t", **COMPACTED)
        log = store.log("t")
        fill(log, 60)
        assert writer_of(log).offsets.recovery_point < 60
        store.run_task("cleaner")
        assert [report.stop_offset for _, report in passes] == [60]


def test_a_closed_log_is_checked_once_an_hour(tmp_path: Path, passes: list[tuple[str, CompactionReport]]) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock) as store:
        store.create_topic("t", **COMPACTED, min_compaction_lag_ms="30m")
        fill(store.log("t"), 60)
    with opened(tmp_path, clock) as store:
        store.run_task("cleaner")
        clock.advance(3_599_000)
        store.run_task("cleaner")
        assert passes == []
        clock.advance(1_000)
        store.run_task("cleaner")
        assert [name for name, _ in passes] == ["t-0"]
        assert not store.status().open_logs


def test_what_waits_for_longer_than_the_longest_lag_is_compacted_however_clean_the_log_is(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock) as store:
        store.create_topic("t", **COMPACTED, max_compaction_lag_ms="10m", min_cleanable_dirty_ratio=1.0)
        log = store.log("t")
        for number in range(2):
            log.append(b"%d" % number, key=b"a")
        clock.advance(600_000)
        store.run_task("idle roll")
        store.run_task("cleaner")
        assert len(keys_and_offsets(log)) == 2
        clock.advance(1)
        store.run_task("idle roll")
        store.run_task("cleaner")
        assert keys_and_offsets(log) == [(b"a", 1)]


def test_a_map_that_was_full_has_the_log_compacted_again_at_once(
    tmp_path: Path, passes: list[tuple[str, CompactionReport]]
) -> None:
    with opened(tmp_path, cleaner_map_bytes=1024, min_cleanable_dirty_ratio=0.0) as store:
        store.create_topic("t", **COMPACTED)
        log = store.log("t")
        fill(log, 200, keys=80)
        store.run_task("cleaner")
        assert [report.map_full for _, report in passes][:2] == [True, True]
        assert passes[-1][1].stop_offset == 200
        assert dict(keys_and_offsets(log))[b"key-0"] == 160


# --- how far it got ---------------------------------------------------------------------------------------------------


def test_the_checkpoint_says_at_once_how_far_a_log_is_clean(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", 2, **COMPACTED)
        fill(store.log("t", 1), 60)
        store.run_task("cleaner")
        assert checkpoint(tmp_path) == {TopicPartition("t", 1): 60}
        assert (tmp_path / CLEANER_OFFSETS).read_text() == "0\n1\nt 1 60\n"


def test_a_truncation_lowers_the_checkpoint_and_a_deleted_topic_leaves_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", 2, **COMPACTED)
        store.create_topic("u", **COMPACTED)
        for log in (store.log("t", 0), store.log("t", 1), store.log("u")):
            fill(log, 60)
        store.run_task("cleaner")
        store.log("t", 1).truncate_to(30)
        store.delete_topic("u")
        store.checkpoint()
        assert checkpoint(tmp_path) == {TopicPartition("t", 0): 60, TopicPartition("t", 1): 30}


def broker_s(path: Path, first_dirty: int) -> Path:
    """A log of 60 records that a broker has cleaned up to an offset."""
    with Log(path / "t-0", durability="os", segment_bytes=1024) as log:
        fill(log, 60)
    write_offset_checkpoint(SYSTEM_FS, path / CLEANER_OFFSETS, {TopicPartition("t", 0): first_dirty}, mode=0o600)
    return path / "t-0"


@pytest.mark.parametrize(("first_dirty", "wanted"), [(20, 20), (61, 0), (0, 0)])
def test_it_goes_on_where_a_broker_has_stopped_if_that_is_in_the_log(
    first_dirty: int, wanted: int, tmp_path: Path
) -> None:
    with Log(broker_s(tmp_path, first_dirty), durability="os") as log:
        assert log.compact().first_dirty == wanted


def test_a_damaged_checkpoint_is_none(tmp_path: Path) -> None:
    path = broker_s(tmp_path, 20)
    (tmp_path / CLEANER_OFFSETS).write_bytes(b"nonsense")
    with Log(path, durability="os") as log:
        assert log.compact().first_dirty == 0


def test_what_a_truncation_has_cut_is_dirty_again_though_a_broker_had_cleaned_it(tmp_path: Path) -> None:
    """Otherwise a tombstone written there would seem to hide nothing, and go before what it hides."""
    clock = ManualClock()
    with Log(broker_s(tmp_path, 60), durability="os", segment_bytes=1024, clock=clock, delete_retention_ms=0) as log:
        log.truncate_to(30)
        log.append(None, key=b"key-1")
        fill(log, 40, keys=1, since=31)
        for _ in range(3):
            log.compact()
            log.append(b"new", key=b"other")
            log.roll()
            clock.advance(1)
        assert b"key-1" not in {record.key for record in log.read()}


# --- what stops and what delays it ------------------------------------------------------------------------------------


def test_a_log_whose_compaction_fails_does_not_keep_it_from_the_others_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    tried: list[str] = []

    def failing(writer: LogWriter, **options: Any) -> CompactionReport:
        tried.append(writer.context.directory.name)
        if writer.context.directory.name == "a-0":
            raise StorageError(5, "broken", "disk")
        return compact(writer, **options)

    monkeypatch.setattr(kstore.logs.cleaning, "compact", failing)
    with opened(tmp_path, clock) as store:
        for topic in "ab":
            store.create_topic(topic, **COMPACTED)
            fill(store.log(topic), 60)
        with pytest.raises(StorageError):
            store.run_task("cleaner")
        assert sorted(tried) == ["a-0", "b-0"]
        assert [task.name for task in store.status().tasks if "broken" in task.error] == ["cleaner"]
        tried.clear()
        for wait_ms in (60_000, 120_000, 240_000):
            clock.advance(wait_ms - 1)
            store.run_task("cleaner")
            assert tried == []
            clock.advance(1)
            with pytest.raises(StorageError):
                store.run_task("cleaner")
            assert tried == ["a-0"]
            tried.clear()


@pytest.mark.parametrize("rate", [100_000, 7_000])
def test_a_throttle_holds_the_rate(rate: int) -> None:
    clock = ManualClock()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(max(round(seconds * 1000), 1))

    throttle = Throttle(rate, clock, wait, lambda: False)
    started = clock.monotonic()
    for _ in range(100):
        throttle.note(1000)
    assert clock.monotonic() - started == pytest.approx(100_000 / rate, abs=0.1)
    assert max(waits) <= 0.1


def test_a_throttle_without_a_rate_never_waits_and_one_of_nothing_is_refused() -> None:
    def wait(_: float) -> None:
        raise AssertionError("waited")

    Throttle(None, ManualClock(), wait, lambda: False).note(1 << 40)
    with pytest.raises(kstore.ConfigError, match="bytes_per_second is 0"):
        Throttle(0, ManualClock(), wait, lambda: False)


def test_a_throttled_pass_ends_when_its_log_is_closed(tmp_path: Path) -> None:
    reports: list[CompactionReport] = []
    is_waiting = threading.Event()

    class Waiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            is_waiting.set()
            return super().wait(timeout)

    log = Log(tmp_path / "log", durability="os", segment_bytes=1024)
    fill(log, 60)
    # At this rate the pass takes a day.
    worker = threading.Thread(
        target=lambda: reports.append(compact(writer_of(log), bytes_per_second=0.05, stop=Waiting())), daemon=True
    )
    worker.start()
    assert is_waiting.wait(300)
    log.close()
    worker.join(300)
    assert [report.stopped for report in reports] == ["the log was closed"]


def test_a_throttled_pass_ends_on_request(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with Log(tmp_path / "log", durability="os", segment_bytes=1024) as log:
        fill(log, 60)
        report = compact(writer_of(log), bytes_per_second=0.05, stop=stop)
        assert (report.stopped, report.stop_offset) == ("it was told to stop", 0)
        assert len(keys_and_offsets(log)) == 60
