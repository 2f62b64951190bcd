"""A store's background work against obstacles: failing tasks, impossible settings, jumping clocks."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kstore.errors import (
    ConfigError,
    PoisonedError,
    StorageError,
    SyncFailedError,
    TopicExistsError,
    UnsupportedFormatError,
)
from kstore.files.checkpoint import read_offset_checkpoint
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_START_OFFSETS, RECOVERY_POINTS, TopicPartition
from kstore.log import writer_of
from kstore.logs.scheduler import Scheduler
from kstore.rules.topics import TopicEntry, TopicRows, decode_topics, encode_topics
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault

SMALL: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64}
DAY = 86_400_000
TOPICS = "kstore.topics"


def opened(path: Path, clock: ManualClock | None = None, **settings: Any) -> Store:
    return Store(path, background=False, clock=clock or ManualClock(), **{**SMALL, **settings})


def fill(store: Store, topic: str, count: int = 30) -> None:
    for number in range(count):
        store.log(topic).append(b"%d" % number * 50)


@pytest.mark.promise("clock")
def test_a_log_that_is_opened_after_a_jump_of_the_clock_does_not_believe_it(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock) as store:
        store.create_topic("orders", retention_ms=10 * DAY)
        fill(store, "orders")
    with opened(tmp_path / "s", clock) as store:
        clock.jump(400 * DAY)
        assert store.apply_retention().segment_count == 0
        clock.jump(-400 * DAY)
        clock.advance(11 * DAY)
        assert store.apply_retention().segment_count > 0


def test_a_task_that_fails_is_shown_and_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()
    fs = FailingFs(SYSTEM_FS)
    with opened(tmp_path / "s", clock, fs=fs) as store:
        store.create_topic("orders")
        store.create_topic("jobs")
        fill(store, "orders", 1)
        fs.faults.append(Fault(1, kinds=frozenset({"create"}), suffix=RECOVERY_POINTS + ".tmp"))
        clock.advance(60_000)
        store.run_due_tasks()
        status = {task.name: task for task in store.status().tasks}["checkpoints"]
        assert "Input/output" in status.error
        clock.advance(60_000)
        store.run_due_tasks()
        status = {task.name: task for task in store.status().tasks}["checkpoints"]
        assert (status.error, status.error_count) == ("", 1)
        assert TopicPartition("orders", 0) in read_offset_checkpoint(SYSTEM_FS, tmp_path / "s" / RECOVERY_POINTS)


@pytest.mark.parametrize("way", ["store", "queue", "heard before"])
def test_a_close_says_that_a_flush_in_the_background_has_failed(tmp_path: Path, way: str) -> None:
    clock, fs = ManualClock(), FailingFs(SYSTEM_FS)
    store = opened(tmp_path / "s", clock, fs=fs, durability="interval")
    if way == "queue":
        store.queue("orders").put(b"x")
    else:
        store.create_topic("orders")
        fill(store, "orders", 1)
    fs.faults.append(Fault(1, kinds=frozenset({"fdatasync"}), suffix=".log"))
    clock.advance(60_000)
    store.run_due_tasks()
    assert fs.failures
    if way == "heard before":
        with pytest.raises(PoisonedError):
            store.log("orders").append(b"y")
        store.close()
    else:
        with pytest.raises(SyncFailedError, match="in the background"):
            store.close()
    assert fs.second_syncs == []
    with opened(tmp_path / "s") as again:
        assert [record.value for record in again.log("orders").read()]


def test_a_topic_whose_settings_cannot_be_stops_no_other(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("bad", max_compaction_lag_ms=1000)
        store.create_topic("orders", retention_bytes=2000)
        fill(store, "orders")
        fill(store, "bad")
    with opened(tmp_path / "s", min_compaction_lag_ms=2000, retention_bytes_total=0) as store:
        with pytest.raises(ConfigError, match="min_compaction_lag_ms"):
            store.apply_retention()
        assert store.log("orders").start_offset > 0
        with pytest.raises(ConfigError, match="min_compaction_lag_ms"):
            store.log("bad")
        store.alter_topic("bad", reset=["max_compaction_lag_ms"])
        assert store.log("bad").end_offset == 30
        store.alter_topic("orders", max_compaction_lag_ms=3000)
    with opened(tmp_path / "s", min_compaction_lag_ms=4000) as store:
        store.delete_topic("orders")
        assert store.topics() == ["bad"]


def test_the_checkpoints_know_where_logs_are_that_only_background_work_has_opened(tmp_path: Path) -> None:
    orders = TopicPartition("orders", 0)
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        fill(store, "orders")
        log = store.log("orders")
        log.delete_records(2)
        log.close()  # by its user
        store.checkpoint()
        assert read_offset_checkpoint(SYSTEM_FS, tmp_path / "s" / LOG_START_OFFSETS) == {orders: 2}
        store.alter_topic("orders", retention_bytes=0)
        store.apply_retention()
        assert store.status().open_logs == ()
    start = {orders: 30}
    assert read_offset_checkpoint(SYSTEM_FS, tmp_path / "s" / RECOVERY_POINTS) == start
    assert read_offset_checkpoint(SYSTEM_FS, tmp_path / "s" / LOG_START_OFFSETS) == {}


def test_settings_change_under_a_log_that_is_flushed(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock, durability="interval", flush_ms=60_000) as store:
        store.create_topic("orders")
        log = store.log("orders")
        store.alter_topic("orders", flush_ms=100)
        log.append(b"x")
        clock.advance(100)
        store.run_due_tasks()
        assert writer_of(log).offsets.recovery_point == 1


def test_a_broker_s_own_name_and_what_is_there_already_make_no_topic(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        with pytest.raises(ConfigError, match="broker"):
            store.create_topic("__cluster_metadata")
        somebodys = tmp_path / "s/orders-1"
        somebodys.mkdir()
        (somebodys / "partition.metadata").write_text("mine")
        with pytest.raises(TopicExistsError, match="exists already"):
            store.create_topic("orders", 3)
        assert (somebodys / "partition.metadata").read_text() == "mine"
        assert store.topics() == []
        assert sorted(each.name for each in (tmp_path / "s").glob("orders-*")) == ["orders-1"]


def test_what_could_not_be_made_can_be_made_again(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with opened(tmp_path / "s", fs=fs) as store:
        store.create_topic("jobs", 2)
        # The topic can neither be created nor undone.
        fs.faults.append(Fault(2, kinds=frozenset({"mkdir"}), sticky=True))
        fs.faults.append(Fault(1, kinds=frozenset({"rmdir"}), sticky=True))
        with pytest.raises(StorageError):
            store.create_topic("orders", 5)
        fs.faults[0].seen = 0
        with pytest.raises(StorageError):
            store.add_partitions("jobs", 6)
        assert store.topics() == ["jobs"]
        assert store.partitions("jobs") == [0, 1]
        fs.faults.clear()
        store.create_topic("orders", 2)
        store.add_partitions("jobs", 3)
    with opened(tmp_path / "s") as store:
        assert store.partitions("orders") == [0, 1]
        assert store.partitions("jobs") == [0, 1, 2]
        assert store.notes == []


def test_a_name_as_long_as_names_may_be_is_made_and_deleted(tmp_path: Path) -> None:
    name = "x" * 249
    with opened(tmp_path / "s", file_delete_delay_ms=0) as store:
        store.create_topic(name, 12)
        store.log(name, 11).append(b"x")
        store.delete_topic(name)
        store.run_task("removal")
    assert not list((tmp_path / "s").glob("x*"))


def test_settings_of_a_later_version_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    opened(tmp_path / "s").close()
    data = encode_topics({"orders": TopicEntry(1, 1)}).replace(b"kstore.topics 1", b"kstore.topics 2")
    (tmp_path / "s" / TOPICS).write_bytes(data)
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        opened(tmp_path / "s")
    assert (tmp_path / "s" / TOPICS).read_bytes() == data


@pytest.mark.promise("rebuilt")
def test_any_damage_to_the_settings_is_damage_and_costs_no_record(tmp_path: Path) -> None:
    entry = TopicEntry(2, 1, settings={"retention_ms": 5}, deleting=True, settings_lost=True)
    data = encode_topics({"orders": entry, "a.b": TopicEntry(1, 1)})
    assert decode_topics(data, "x") == {"a.b": TopicEntry(1, 1), "orders": entry}
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        fill(store, "orders")
    path = tmp_path / "s" / TOPICS
    sound = path.read_bytes()
    hostile = [b"", b"\0" * 4096, sound[:-1], sound[:20], sound + b" ", b"[" * 100_000, b"\xff" * 99]
    hostile += [bytes([*sound[:at], sound[at] ^ 1, *sound[at + 1 :]]) for at in range(16, len(sound), 7)]
    for content in hostile:
        path.write_bytes(content)
        with opened(tmp_path / "s", retention_bytes=0) as store:
            assert store.apply_retention().segment_count == 0
            assert len(list(store.log("orders").read())) == 30
            assert store.notes


def test_rows_that_are_kept_make_the_same_file_as_those_that_are_new() -> None:
    rows = TopicRows()
    topics: dict[str, TopicEntry] = {}
    changes: list[tuple[str, TopicEntry | None]] = [
        ("b", TopicEntry(4, 0)),
        ("b", TopicEntry(4, 4, UUID(int=7))),
        ("a.b-c", TopicEntry(1, 1, settings={"retention_ms": 5, "cleanup_policy": "compact"})),
        ("a.b-c", TopicEntry(1, 1, settings={"retention_ms": 6}, settings_lost=True)),
        ("B", TopicEntry(1, 1, deleting=True)),
        ("b", None),
        ("b", TopicEntry(2, 2)),
        ("B", None),
        ("a.b-c", None),
        ("b", None),
    ]
    for name, entry in changes:
        topics.pop(name, None)
        if entry is not None:
            topics[name] = entry
        data = rows.encoded(dict(topics))
        assert data == encode_topics(topics)
        assert decode_topics(data, "x") == topics
        # The form that every release has written.
        body = data.partition(b"\n")[2]
        assert body == json.dumps(json.loads(body), indent=1, sort_keys=True).encode() + b"\n"


def test_a_topic_in_creation_that_has_no_id_gets_one(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        fill(store, "orders")
    (tmp_path / "s" / TOPICS).write_bytes(encode_topics({"orders": TopicEntry(3, 1)}))
    with opened(tmp_path / "s") as store:
        assert len(list(store.log("orders").read())) == 30
        assert store.log("orders", 2).append(b"x") == 0
    entry = decode_topics((tmp_path / "s" / TOPICS).read_bytes(), "x")["orders"]
    assert (entry.made, entry.partitions) == (3, 3)
    assert entry.topic_id is not None


def test_a_thread_that_cannot_be_started_is_shown_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = threading.Event()
    scheduler = Scheduler(ManualClock())
    scheduler.add("flush", ran.set, interval_seconds=None)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        scheduler.start()
        scheduler.wake("flush")
    assert "can't start" in scheduler.status()[0].error
    scheduler.wake("flush", delay_seconds=-1)
    assert ran.wait(300)
    scheduler.stop()
    assert scheduler.status()[0].error == ""
