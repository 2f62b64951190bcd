"""A store: topics that are created, changed and deleted; shared logs; background work."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import (
    ClosedError,
    ConfigError,
    LockedError,
    LogNotFoundError,
    NotALogError,
    ReadOnlyError,
    TopicExistsError,
    TopicNotFoundError,
)
from kstore.files.checkpoint import read_offset_checkpoint, read_topic_id
from kstore.files.fs import size_of_files
from kstore.files.local import SYSTEM_FS, OsFileSystem
from kstore.files.paths import (
    CLEAN_SHUTDOWN,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    REPLICATION_OFFSETS,
    TopicPartition,
)
from kstore.log import reads_of, writer_of
from kstore.logs.directory import LogDirectory
from kstore.rules.topics import KSTORE_TOPICS
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import RecordingFs
from tests.support.harness.golden_data import golden_root

SMALL: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64}
ORDERS = TopicPartition("orders", 0)


def opened(path: Path, clock: ManualClock | None = None, **settings: Any) -> Store:
    return Store(path, background=False, clock=clock or ManualClock(), **{**SMALL, **settings})


def fill(store: Store, topic: str = "orders", partition: int = 0, count: int = 40) -> None:
    log = store.log(topic, partition)
    for number in range(count):
        log.append(b"%d" % number * 50)


def values(store: Store, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    return list(store.log(topic, partition).read_values())


# --- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_keeps_its_records_and_its_settings(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders", 3, retention_bytes="10MiB", durability="os")
        store.log("orders", 2).append(b"hello")
    with opened(tmp_path / "s") as store:
        assert store.topics() == ["orders"]
        assert store.partitions("orders") == [0, 1, 2]
        assert values(store, partition=2) == [b"hello"]
        topic = store.describe_topic("orders")
        assert topic.settings == {"retention_bytes": 10 << 20, "durability": "os"}
        assert topic.durability == "os"
        assert topic.config.segment_bytes == 1024
        assert [partition.end_offset for partition in topic.partitions] == [0, 0, 1]
        assert read_topic_id(SYSTEM_FS, tmp_path / "s/orders-1/partition.metadata") == topic.topic_id


def test_all_callers_share_one_log(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        assert store.log("orders") is store.log("orders", 0)
    with pytest.raises(ClosedError):
        store.log("orders")


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_partitions_whose_creation_was_undone_do_not_exist(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the error came just after they counted."""
    real = LogDirectory._make

    def interrupted(self: LogDirectory, *arguments: Any) -> None:
        real(self, *arguments)
        raise error

    with kstore.open(tmp_path, durability="os") as store:
        store.create_topic("t", partitions=2)
        with monkeypatch.context() as patch:
            patch.setattr(LogDirectory, "_make", interrupted)
            with pytest.raises(error):
                store.add_partitions("t", 3)
            with pytest.raises(error):
                store.create_topic("new")
        assert store.partitions("t") == [0, 1]
        assert store.topics() == ["t"]
        assert sorted(path.name for path in tmp_path.glob("*-[0-9]")) == ["t-0", "t-1"]
        store.add_partitions("t", 3)
        store.create_topic("new")
    with kstore.open(tmp_path, durability="os") as store:
        assert store.partitions("t") == [0, 1, 2]
        assert store.partitions("new") == [0]


def test_more_partitions_come_later(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders", 2)
        store.add_partitions("orders", 5)
        with pytest.raises(ConfigError, match="more than that"):
            store.add_partitions("orders", 5)
        store.log("orders", 4).append(b"x")
    with opened(tmp_path / "s") as store:
        assert store.partitions("orders") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250])
def test_a_name_that_kafka_refuses_is_refused(name: str, tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        with pytest.raises(ConfigError, match="topic name"):
            store.create_topic(name)
        assert store.topics() == []


def test_a_topic_is_made_once_and_beside_none_of_nearly_its_name(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("a.b")
        with pytest.raises(TopicExistsError, match=r"there is a topic a\.b"):
            store.create_topic("a.b")
        with pytest.raises(TopicExistsError, match=r"differs from a\.b"):
            store.create_topic("a_b")


def test_a_topic_that_exists_may_be_asked_for_again(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        made = store.topic("orders", partitions=2, retention_ms="7d")
        assert (made.name, made.partition_count, made.settings) == ("orders", 2, {"retention_ms": 604_800_000})
        store.log("orders", 1).append(b"x")
        # What exists overrides what is requested.
        keeps = r"keeps retention_ms 604800000, not 86400000: store.alter_topic\('orders', retention_ms=86400000\)"
        with pytest.warns(UserWarning, match=keeps) as created:
            store.create_topic("orders", exist_ok=True, retention_ms="1d")
        with pytest.warns(UserWarning, match=keeps) as found:
            assert store.topic("orders", retention_ms="1d") == made
        assert created[0].filename == found[0].filename == __file__
        with pytest.warns(UserWarning, match="keeps durability 'sync', not 'os'"):
            store.topic("orders", durability="os")
        with pytest.warns(UserWarning, match=r"keeps its 2 partitions, not 5: store.add_partitions\('orders', 5\)"):
            store.topic("orders", partitions=5)
        # What agrees, and what is not named, is no news; and a topic may have grown.
        assert store.topic("orders", retention_ms=604_800_000, durability="sync") == made == store.topic("orders")
        assert store.log("orders", 1).end_offset == 1
        with pytest.raises(TopicExistsError):
            store.create_topic("orders", partitions=2, retention_ms="7d")
    with Store(tmp_path / "store", read_only=True) as reader:
        assert reader.topic("orders") == made
        with pytest.raises(ReadOnlyError):
            reader.topic("bills")
        with pytest.raises(ReadOnlyError):
            reader.create_topic("orders", exist_ok=True)


def test_a_mistake_is_an_error_also_if_the_topic_exists(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        store.topic("a.b")
        for wrong in ({"retention_mss": 1}, {"partitions": 0}, {"segment_bytes": "1 kB."}):
            with pytest.raises(ConfigError):
                store.topic("a.b", **wrong)
            with pytest.raises(ConfigError):
                store.create_topic("a.b", exist_ok=True, **wrong)
        for call in (store.topic, partial(store.create_topic, exist_ok=True)):
            with pytest.raises(TopicExistsError, match=r"differs from a\.b"):
                call("a_b")
        assert store.topics() == ["a.b"]


@pytest.mark.parametrize("count", [0, -1, True, 1.5, 100_001])
def test_a_count_of_partitions_that_cannot_be_is_refused(count: Any, tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store, pytest.raises(ConfigError, match="partitions"):
        store.create_topic("orders", count)


def test_an_unknown_setting_is_an_error_and_makes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        with pytest.raises(ConfigError, match="retention_bytes"):
            store.create_topic("orders", retention_byte=1)  # type: ignore[call-arg]  # misspelt on purpose
        assert store.topics() == []


def test_what_there_is_not_says_so(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        for missing in (lambda: store.log("none"), lambda: store.log("orders", 1), lambda: store.delete_topic("none")):
            with pytest.raises(TopicNotFoundError):
                missing()


def test_settings_change_under_an_open_log(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        fill(store)
        before = store.describe_topic("orders").partitions[0].segment_count
        store.alter_topic("orders", retention_bytes=1024, segment_bytes="1MiB", compression_type="gzip")
        assert store.apply_retention().segment_count > 0
        fill(store)
        after = store.describe_topic("orders")
        assert after.partitions[0].segment_count < before
        assert next(iter(store.log("orders").fetch(store.log("orders").end_offset - 1).batches())).codec == "gzip"
        store.alter_topic("orders", reset=["retention_bytes"])
    with opened(tmp_path / "s") as store:
        assert store.describe_topic("orders").settings == {"segment_bytes": 1 << 20, "compression_type": "gzip"}


def test_the_renamed_directories_of_a_deleted_topic_are_on_disk_before_its_entry_goes(tmp_path: Path) -> None:
    fs = RecordingFs()
    with Store(tmp_path / "store", fs=fs, background=False) as store:
        store.create_topic("orders", 2)
        before = len(fs.operations)
        store.delete_topic("orders")
        done = [(one.kind, Path(one.path).name, Path(one.target or "").name) for one in fs.operations[before:]]
    renamed = max(at for at, (kind, name, _) in enumerate(done) if kind == "rename" and name.startswith("orders-"))
    gone = max(at for at, (kind, _, target) in enumerate(done) if kind == "rename" and target == KSTORE_TOPICS)
    assert ("sync_dir", "store", "") in done[renamed:gone]


def test_a_deleted_topic_is_gone_and_its_files_go_after_the_delay(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock) as store:
        store.create_topic("orders", 2)
        store.create_topic("other")
        log = store.log("orders", 1)
        fill(store, partition=1)
        store.delete_topic("orders")
        assert store.topics() == ["other"]
        assert log.closed
        going = [path.name for path in (tmp_path / "s").glob("orders-*")]
        assert len(going) == 2
        assert all(name.endswith("-delete") for name in going)
        clock.advance(59_000)
        store.run_due_tasks()
        assert list((tmp_path / "s").glob("orders-*"))
        clock.advance(61_000)
        store.run_due_tasks()
        assert not list((tmp_path / "s").glob("orders-*"))
        assert store.status().tasks[4].error == ""


def test_a_recreated_topic_begins_with_nothing_of_the_old_one(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        fill(store)
        store.log("orders").delete_records(33)
        store.checkpoint()
        assert read_offset_checkpoint(SYSTEM_FS, tmp_path / "s" / LOG_START_OFFSETS)[ORDERS] == 33
        old_id = store.describe_topic("orders").topic_id
        store.delete_topic("orders")
        assert ORDERS not in read_offset_checkpoint(SYSTEM_FS, tmp_path / "s" / RECOVERY_POINTS)
        store.create_topic("orders")
        assert store.describe_topic("orders").topic_id != old_id
    with opened(tmp_path / "s") as store:
        assert store.log("orders").start_offset == store.log("orders").end_offset == 0


# --- what is in the directory -----------------------------------------------------------------------------------------


def test_lone_logs_are_topics_of_the_store_that_finds_them(tmp_path: Path) -> None:
    for number in (0, 2):
        with kstore.Log(tmp_path / f"orders-{number}") as log:
            log.append(b"%d" % number)
    with opened(tmp_path) as store:
        assert store.partitions("orders") == [0, 2]
        assert values(store, partition=2) == [b"2"]
        assert store.notes == []


def test_foreign_names_are_left_alone_and_listed(tmp_path: Path) -> None:
    for name in ("lost+found", "orders", "orders-01", "__cluster_metadata-0"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    with opened(tmp_path) as store:
        store.create_topic("jobs")
        assert store.ignored == ["__cluster_metadata-0", "lost+found", "notes.txt", "orders", "orders-01"]
        assert store.topics() == ["jobs"]


def test_a_broker_s_identity_is_kept_and_kstore_makes_its_own(tmp_path: Path) -> None:
    brokers = b"#\n#Sat Nov 21\nnode.id=1\nversion=1\ncluster.id=fSAR0CgoRry3aVKoRAIuRw\n"
    (tmp_path / META_PROPERTIES).write_bytes(brokers)
    opened(tmp_path).close()
    assert (tmp_path / META_PROPERTIES).read_bytes() == brokers
    opened(tmp_path / "new").close()
    assert b"made by kstore" in (tmp_path / "new" / META_PROPERTIES).read_bytes()


def test_damaged_settings_are_set_aside_and_nothing_is_deleted_because_of_it(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders", retention_bytes=1_000_000)
        fill(store)
    path = tmp_path / "s/kstore.topics"
    path.write_bytes(path.read_bytes().replace(b"1000000", b"1000"))
    strict: dict[str, Any] = {"retention_bytes": 0, "retention_bytes_total": 0, "cleanup_policy": "compact,delete"}
    for attempt in range(3):
        if attempt == 1:
            (tmp_path / "s/kstore.topics").unlink()  # a crash between setting it aside and rewriting it
        with opened(tmp_path / "s", **strict) as store:
            assert store.topics() == ["orders"]
            assert store.apply_retention().segment_count == 0
            store.run_task("cleaner")
            assert len(values(store)) == 40
            assert any("lost its settings" in note for note in store.notes)
            assert attempt or "CRC" in store.notes[0]
    assert (tmp_path / "s/kstore.topics.damaged").exists()
    with opened(tmp_path / "s", **strict) as store:
        store.alter_topic("orders", reset=["retention_bytes", "retention_ms", "cleanup_policy"])
        assert store.apply_retention().segment_count > 0
    with opened(tmp_path / "s") as store:
        assert store.notes == []


def test_a_lost_partition_is_missed_and_not_created_again(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders", 3)
    shutil.rmtree(tmp_path / "s/orders-1")
    with opened(tmp_path / "s") as store:
        assert store.partitions("orders") == [0, 2]
        assert store.notes == ["topic orders has lost its partitions 1"]
        with pytest.raises(TopicNotFoundError):
            store.log("orders", 1)


def test_one_log_is_no_store(tmp_path: Path) -> None:
    kstore.Log(tmp_path / "orders-0").close()
    with pytest.raises(NotALogError, match="open it with Log"):
        opened(tmp_path / "orders-0")


def test_the_logs_of_a_broker_are_read_in_place() -> None:
    with kstore.open(golden_root() / "clean", read_only=True) as store:
        topics = store.topics()
        assert topics
        assert "__cluster_metadata" not in topics
        for name in topics:
            for partition in store.describe_topic(name).partitions:
                assert partition.error == ""


# --- locks ------------------------------------------------------------------------------------------------------------


def test_one_store_or_lone_logs_write_and_never_both(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders", 2)
        with pytest.raises(LockedError):
            opened(tmp_path / "s")
        with pytest.raises(LockedError):
            kstore.Log(tmp_path / "s/orders-0")
        store.log("orders").append(b"x")
    with kstore.Log(tmp_path / "s/orders-0") as lone:
        lone.append(b"y")
        with opened(tmp_path / "s") as store:
            with pytest.raises(LockedError):
                store.log("orders", 0)
            store.log("orders", 1).append(b"z")


def test_a_reader_takes_no_lock_and_sees_what_comes(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        with kstore.open(tmp_path / "s", read_only=True) as reader:
            store.log("orders").append(b"x")
            assert values(reader) == [b"x"]
            store.create_topic("jobs", 2)
            assert reader.topics() == ["jobs", "orders"]
            for change in (
                lambda: reader.create_topic("more"),
                lambda: reader.delete_topic("jobs"),
                lambda: reader.log("jobs").append(b"x"),
            ):
                with pytest.raises(ReadOnlyError):
                    change()
    with pytest.raises(LogNotFoundError):
        kstore.open(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


# --- work -------------------------------------------------------------------------------------------------------------


def test_a_store_deletes_nothing_unless_it_is_asked_to(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock) as store:
        store.create_topic("orders")
        fill(store)
        clock.advance(10**12)
        store.run_due_tasks()
        assert len(values(store)) == 40


def test_retention_runs_over_all_logs_and_removes_their_files_later(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock, retention_ms="1d") as store:
        store.create_topic("orders", 2)
        store.create_topic("kept", retention_ms=-1)
        fill(store, "orders", 0)
        fill(store, "kept")
    with opened(tmp_path / "s", clock, retention_ms="1d") as store:
        clock.advance(2 * 86_400_000)
        store.run_due_tasks()
        assert values(store) == []
        assert len(values(store, "kept")) == 40
        assert store.log("orders").start_offset == 40


def test_readers_go_on_with_what_was_deleted_until_the_delay_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock) as store:
        store.create_topic("orders")
        fill(store)
        log = store.log("orders")
        deleted = log.delete_records(40)
        assert deleted == 40
        assert list((tmp_path / "s/orders-0").glob("*.log.deleted"))
        clock.advance(100_000)
        store.run_due_tasks()
        assert not list((tmp_path / "s/orders-0").glob("*.deleted"))


def test_a_limit_for_the_whole_store_takes_the_oldest_of_all_logs(tmp_path: Path) -> None:
    with opened(tmp_path / "s", retention_bytes_total=12_000) as store:
        for name in ("old", "new", "compacted"):
            store.create_topic(name, cleanup_policy="compact" if name == "compacted" else "delete")
        for name in ("old", "new"):
            fill(store, name)
        for path in (tmp_path / "s/old-0").glob("*.log"):
            SYSTEM_FS.set_mtime(path, 10**18)
        store.run_task("retention")
        total = sum(path.stat().st_size for path in (tmp_path / "s").glob("*-0/*.log"))
        assert total <= 12_000
        assert store.log("old").start_offset > 0
        assert store.log("new").start_offset < store.log("old").start_offset


def test_a_limit_for_the_whole_store_leaves_what_a_queue_holds(tmp_path: Path) -> None:
    with opened(tmp_path / "s", retention_bytes_total=12_000, durability="os") as store:
        jobs = store.queue("jobs", segment_bytes=1 << 14)
        for number in range(60):
            jobs.put(b"%03d" % number * 400)
        store.run_task("retention")
        assert store.log("jobs").start_offset == 0
        store.create_topic("orders")
        fill(store, "orders")
        store.run_task("retention")
        assert store.log("orders").start_offset > 0
    with opened(tmp_path / "s") as store:
        assert len(store.queue("jobs").get_many(100)) == 60


def test_queues_and_topics_are_made_at_the_same_time(tmp_path: Path) -> None:
    with opened(tmp_path / "s", durability="os") as store, ThreadPoolExecutor(2) as pool:
        made = [pool.submit(store.queue if number % 2 else store.create_topic, f"t{number}") for number in range(40)]
        for each in made:
            each.result(timeout=300)
        assert len(store.topics()) == 40


def test_an_interval_log_is_flushed_by_the_store(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path / "s", clock, durability="interval", flush_ms=500) as store:
        store.create_topic("orders")
        log = store.log("orders")
        log.append(b"x")
        assert writer_of(log).offsets.recovery_point == 0
        clock.advance(500)
        store.run_due_tasks()
        assert writer_of(log).offsets.recovery_point == 1
        log.append(b"y")
        clock.advance(500)
        store.run_due_tasks()
        assert writer_of(log).offsets.recovery_point == 2


def test_the_threads_of_a_store_do_its_work(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_interval_ms": 5, "initial_delay_ms": 0, "cleaner_interval_ms": 5}
    with kstore.open(tmp_path / "s", durability="interval", flush_ms=5, **settings) as store:
        store.create_topic("orders", cleanup_policy="compact")
        log = store.log("orders")
        log.append(b"x", key=b"k")
        names = {"flush", "checkpoints", "cleaner", "retention"}
        deadline = 2000
        while deadline and not names <= {task.name for task in store.status().tasks if task.run_count}:
            reads_of(log).wait_beyond(log.end_offset, 0.01, committed=False)
            deadline -= 1
        tasks = store.status().tasks
    assert names <= {task.name for task in tasks if task.run_count}
    assert [task.error for task in tasks] == [""] * len(tasks)


# --- checkpoints and the clean marker ---------------------------------------------------------------------------------


def test_an_orderly_close_says_so_and_an_open_takes_it_back(tmp_path: Path) -> None:
    marker = tmp_path / "s" / CLEAN_SHUTDOWN
    with opened(tmp_path / "s") as store:
        assert not marker.exists()
        store.create_topic("orders")
        fill(store)
        store.log("orders").delete_records(2)
    assert marker.exists()
    for name, offset in ((RECOVERY_POINTS, 40), (REPLICATION_OFFSETS, 40), (LOG_START_OFFSETS, 2)):
        assert read_offset_checkpoint(SYSTEM_FS, tmp_path / "s" / name) == {ORDERS: offset}
    with opened(tmp_path / "s"):
        assert not marker.exists()
    assert marker.exists()


def test_a_log_that_is_not_in_order_is_recovered_at_the_open(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders", 2)
        fill(store)
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    last = sorted((tmp_path / "killed/orders-0").glob("*.log"))[-1]
    with last.open("ab") as file:
        file.write(b"torn" * 9)
    with opened(tmp_path / "killed") as store:
        assert store.status().open_logs == ()
        assert [cut.size for cut in store.log("orders").recovery.cut] == [36]
        assert len(values(store)) == 40
    assert (tmp_path / "killed" / CLEAN_SHUTDOWN).exists()


def test_the_disk_usage_is_that_of_the_files_of_each_partition(tmp_path: Path) -> None:
    with Store(tmp_path / "data", background=False, durability="os") as store:
        store.create_topic("orders", 2)
        store.log("orders", 1).append(b"x" * 1000)
        store.log("orders", 1).flush()
        found = store.disk_usage()
        sizes = {
            owner: sum(path.stat().st_size for path in (tmp_path / "data" / str(owner)).iterdir()) for owner in found
        }
        assert found == sizes
        assert found[TopicPartition("orders", 1)] > 1000 > found[TopicPartition("orders", 0)]


def test_the_disk_usage_leaves_out_what_disappears_meanwhile(tmp_path: Path) -> None:
    class Vanishing(OsFileSystem):
        def list(self, path: Any) -> list[str]:
            return [*super().list(path), "00000000000000000000.log.deleted"]

    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"d")
    assert size_of_files(Vanishing(), tmp_path) == 4
    assert size_of_files(Vanishing(), tmp_path / "gone") == 0
