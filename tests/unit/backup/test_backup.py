"""Backups of a live store: each restore is the whole store at the backup's moment, or nothing."""

from __future__ import annotations

import errno
import random
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.archive.manifest import manifest_name
from kstore.backup.check import check_backups
from kstore.backup.restore import restore
from kstore.backup.take import BackupResult
from kstore.cli.main import main
from kstore.errors import (
    CorruptFileError,
    FileInTheWayError,
    LockedError,
    LogNotFoundError,
    ReadOnlyError,
    StorageError,
)
from kstore.files.paths import TopicPartition
from kstore.log import Log, writer_of
from kstore.producer.producer import Producer
from kstore.store import Store, coordinator_of
from kstore.store import open as open_store
from kstore.transactions.coordinator import TransactionCoordinator
from kstore.upkeep.verify import verify
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries

SETTINGS: dict[str, Any] = {"background": False, "recovery_threads": 1, "segment_bytes": 2048}
LIVES = tries(60, quick=1)

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


def contents(store: Store, *, internal: bool = False) -> dict[str, Any]:
    """What a user finds in a store: its topics, committed records, and committed offsets."""
    found: dict[str, Any] = {}
    for topic in store.topics():
        if topic == "jobs" and not internal:
            continue
        found[f"settings of {topic}"] = store.summary(topic)
        for partition in store.partitions(topic):
            log = store.log(topic, partition)
            records = [
                (one.offset, one.timestamp, one.key, one.value) for one in log.read(isolation_level="read_committed")
            ]
            found[f"{topic}-{partition}"] = (log.start_offset, records)
    for group in store.consumer_offsets.groups():
        found[f"group {group}"] = store.consumer_offsets.committed(group)
    return found


def waiting(store: Store) -> Counter[bytes]:
    """What the queue ``jobs`` still holds."""
    if "jobs" not in store.topics():
        return Counter()
    queue, found = store.queue("jobs"), Counter[bytes]()
    while queue.qsize():
        job = queue.get(timeout=1)
        found[job.value or b""] += 1
        job.ack()
    return found


def restored(target: Path | str, path: Path, **options: Any) -> Store:
    """A restored store, which must be sound and need no recovery."""
    restore(target, path, **options)
    for log in verify(path):
        if log.findings:
            raise Wrong(f"{log.path}: {log.findings}")
    store = Store(path, **SETTINGS)
    assert not store.notes
    for topic in store.topics(internal=True):
        for partition in store.partitions(topic):
            assert store.log(topic, partition).recovery.clean
    return store


def transactional(store: Store, name: str) -> Producer:
    producer = store.producer(transactional_id=name)
    producer.init_transactions()
    return producer


def fill(store: Store, count: int = 60) -> None:
    store.topic("orders", 2, retention_ms=10**12)
    for number in range(count):
        store.log("orders", number % 2).append(b"%d" % number * 20, key=b"k%d" % (number % 7))


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_a_restore_is_the_store_at_the_moment_of_the_backup(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        coordinator_of(store).commit_offsets("billing", {TopicPartition("orders", 0): 7})
        store.log("orders", 1).delete_records(5)
        before = contents(store)
        result = store.backup(tmp_path / "backups")
        fill(store)
    assert result.copied_bytes == result.total_bytes > 0
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert contents(new) == before


def test_what_an_earlier_backup_has_is_not_copied_again(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        store.backup(tmp_path / "backups")
        assert store.backup(tmp_path / "backups").copied_count == 0
        store.log("orders", 0).append(b"one more")
        assert store.backup(tmp_path / "backups").copied_count == 1
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert [one.value for one in new.log("orders", 0).read(30)] == [b"one more"]


def test_a_restore_takes_the_last_backup_at_or_before_a_time(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders")
        times = []
        for number in range(3):
            store.log("orders").append(b"%d" % number)
            times.append(store.backup(tmp_path / "backups").time_ms)
    for number, at_ms in enumerate(times):
        with restored(tmp_path / "backups", tmp_path / f"new{number}", at_ms=at_ms) as new:
            assert new.log("orders").end_offset == number + 1
    with pytest.raises(LogNotFoundError):
        restore(tmp_path / "backups", tmp_path / "none", at_ms=times[0] - 1)


def test_an_open_transaction_is_aborted(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders")
        with transactional(store, "t") as producer:
            producer.begin_transaction()
            producer.send("orders", b"open")
            producer.flush()
            store.backup(tmp_path / "backups")
            producer.commit_transaction()
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert list(new.log("orders").read(isolation_level="read_committed")) == []
        assert new.log("orders").last_stable_offset == new.log("orders").end_offset


def test_a_decided_transaction_gets_its_missing_markers(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.create_topic("orders", 2)
        with transactional(store, "t") as producer:
            producer.begin_transaction()
            for partition in range(2):
                producer.send("orders", b"decided", partition=partition)
            producer.flush()
            with mock.patch.object(TransactionCoordinator, "_complete", side_effect=StorageError(errno.EIO, "no")):
                with pytest.raises(StorageError):
                    producer.commit_transaction()
                store.backup(tmp_path / "backups")
            producer.commit_transaction()
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        for partition in range(2):
            log = new.log("orders", partition)
            assert [one.value for one in log.read(isolation_level="read_committed")] == [b"decided"]


def test_a_damaged_batch_stays_damaged_and_an_accepted_loss_accepted(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
    path = min((tmp_path / "store" / "orders-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    with Store(tmp_path / "store", **SETTINGS) as store:
        store.log("orders").accept_loss(0, 0)
        expected = [one.offset for one in store.log("orders").read()]
        store.backup(tmp_path / "backups")
    restore(tmp_path / "backups", tmp_path / "new")
    with Store(tmp_path / "new", **SETTINGS) as new:
        assert [one.offset for one in new.log("orders").read()] == expected
        assert expected[0] == 1


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_what_is_not_synced_yet_is_flushed(durability: Any, tmp_path: Path) -> None:
    with Store(tmp_path / "store", durability=durability, **SETTINGS) as store:
        fill(store)
        before = contents(store)
        store.backup(tmp_path / "backups")
        assert writer_of(store.log("orders")).ends.durable_end == store.log("orders").end_offset
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert contents(new) == before


def test_a_backup_goes_to_an_object_store_and_comes_back(memory: str, tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        before = contents(store)
        store.backup(memory)
        assert store.backup(memory).copied_count == 0
    assert all(one.ok for one in check_backups(memory))
    with restored(memory, tmp_path / "new") as new:
        assert contents(new) == before


@pytest.mark.parametrize("rate", [None, 1e12], ids=["no limit", "a limit"])
def test_progress_counts_each_copied_byte_once(rate: float | None, memory: str, tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        for target in (tmp_path / "backups", memory):
            sizes: list[int] = []
            result = store.backup(target, bytes_per_second=rate, progress=sizes.append)
            assert sum(sizes) == result.copied_bytes == result.total_bytes


# --- beside writers ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_backups_beside_transactions_have_all_or_nothing_of_each(tmp_path: Path) -> None:
    """Each transaction writes its number to two partitions, and commits it as an offset."""
    with Store(tmp_path / "store", **{**SETTINGS, "segment_bytes": 1 << 20}) as store:
        store.create_topic("orders", 2)
        ended = threading.Event()

        def write(name: str) -> None:
            with transactional(store, name) as producer:
                number = 0
                while not ended.is_set():
                    producer.begin_transaction()
                    for partition in range(2):
                        producer.send("orders", f"{name} {number}".encode(), partition=partition)
                    producer.send_offsets({TopicPartition("orders", 0): number + 1}, name)
                    producer.commit_transaction()
                    number += 1

        writers = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
        for writer in writers:
            writer.start()
        try:
            results = [store.backup(tmp_path / "backups") for _ in range(tries(40, quick=2))]
        finally:
            ended.set()
            for writer in writers:
                writer.join()
    for number, result in enumerate(results):
        with restored(tmp_path / "backups", tmp_path / f"new{number}", at_ms=result.time_ms) as new:
            found = [
                Counter(one.value for one in new.log("orders", partition).read(isolation_level="read_committed"))
                for partition in range(2)
            ]
            assert found[0] == found[1]
            for name in ("a", "b"):
                committed = new.consumer_offsets.offset_at(name, TopicPartition("orders", 0)) or 0
                assert committed == sum(value.decode().startswith(name) for value in found[0] if value)


def test_retention_during_a_backup_does_not_hurt_it(tmp_path: Path) -> None:
    with Store(tmp_path / "store", file_delete_delay_ms=0, **SETTINGS) as store:
        fill(store, 200)
        log = store.log("orders")

        def remove(size: int) -> None:
            if log.start_offset + 10 < log.end_offset:
                log.delete_records(log.start_offset + 10)

        store.backup(tmp_path / "backups", progress=remove)
        end = store.log("orders", 1).end_offset
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert new.log("orders", 1).end_offset == end
        assert [one.offset for one in new.log("orders").read()] == list(range(new.log("orders").start_offset, 100))


def test_a_truncation_during_a_backup_makes_it_start_again(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        log, cuts = store.log("orders"), [25]

        def truncate(size: int) -> None:
            if cuts:
                log.truncate_to(cuts.pop())

        store.backup(tmp_path / "backups", progress=truncate)
        before = contents(store)
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert contents(new) == before


def test_a_sealed_segment_that_is_cut_and_sealed_again_before_the_moment_is_copied_again(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        log, cuts = store.log("orders"), [3]
        copied: list[int] = []

        def truncate(size: int) -> None:
            copied.append(size)
            if cuts and len(copied) > 3:  # the first segment of orders-0 is in the target
                log.truncate_to(cuts.pop())
                log.append(b"another")
                writer_of(log).roll()

        store.backup(tmp_path / "backups", progress=truncate)
        assert not cuts
        before = contents(store)
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert contents(new) == before


@pytest.mark.parametrize("recreated", [False, True], ids=["deleted", "recreated"])
def test_a_topic_that_is_deleted_during_a_backup_does_not_hurt_it(recreated: bool, tmp_path: Path) -> None:
    with Store(tmp_path / "store", durability="os", **SETTINGS) as store:
        for name in ("orders", "short"):
            store.create_topic(name)
            store.log(name).append(b"first")
        topics = ["short"]

        def delete(size: int) -> None:
            if topics:
                store.delete_topic(topics.pop())
                if recreated:
                    store.create_topic("short")
                    store.log("short").append(b"second")

        store.backup(tmp_path / "backups", progress=delete)
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert [one.value for one in new.log("orders").read()] == [b"first"]
        expected = [b"second"] if recreated else [b"first"]
        assert [one.value for one in new.log("short").read()] == expected


# --- a model ----------------------------------------------------------------------------------------------------------


class Life:
    """A random life of a store, with backups; ``models`` are the contents at each of them."""

    def __init__(self, path: Path, generator: random.Random) -> None:
        self.path = path
        self.generator = generator
        self.models: list[tuple[BackupResult, dict[str, Any], Counter[bytes]]] = []
        self.jobs: Counter[bytes] = Counter()
        self.serial = 0

    def run(self, step_count: int) -> None:
        draw = self.generator
        store = Store(self.path / "store", durability=draw.choice(("sync", "interval", "os")), **SETTINGS)
        durability = store._topics.settings.default_durability("orders")
        store.create_topic("orders", 2)
        store.create_topic("table", cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
        for _ in range(step_count):
            step = draw.choice(("append", "append", "table", "transaction", "commit", "queue", "cut", "backup", "work"))
            if draw.random() < 0.05:
                store.close()
                store = Store(self.path / "store", durability=durability, **SETTINGS)
            getattr(self, step)(store)
        self.backup(store)
        store.close()

    def value(self) -> bytes:
        self.serial += 1
        return b"%d " % self.serial + b"x" * self.generator.choice((0, 30, 200))

    def append(self, store: Store) -> None:
        count = self.generator.randint(1, 12)
        store.log("orders", self.generator.randrange(2)).append_many([self.value() for _ in range(count)])

    def table(self, store: Store) -> None:
        for _ in range(10):
            store.log("table").append(self.value(), key=b"%d" % self.generator.randrange(5))

    def transaction(self, store: Store) -> None:
        with transactional(store, "t") as producer:
            producer.begin_transaction()
            for _ in range(3):
                producer.send("orders", self.value(), partition=self.generator.randrange(2))
            producer.send_offsets({TopicPartition("orders", 1): self.serial}, "in transactions")
            if self.generator.random() < 0.3:
                producer.flush()
                self.backup(store)
            producer.commit_transaction() if self.generator.random() < 0.7 else producer.abort_transaction()

    def commit(self, store: Store) -> None:
        end = store.log("orders", 0).end_offset
        coordinator_of(store).commit_offsets("plain", {TopicPartition("orders", 0): self.generator.randint(0, end)})

    def queue(self, store: Store) -> None:
        queue = store.queue("jobs")
        for _ in range(self.generator.randint(0, 5)):
            value = self.value()
            queue.put(value)
            self.jobs[value] += 1
        for _ in range(self.generator.randint(0, 3)):
            if queue.qsize():
                job = queue.get(timeout=1)
                job.ack()
                self.jobs -= Counter([job.value or b""])

    def cut(self, store: Store) -> None:
        log = store.log("orders", 0)
        if self.generator.random() < 0.5:
            log.delete_records(self.generator.randint(log.start_offset, log.high_watermark))
        else:
            writer_of(log).roll()

    def work(self, store: Store) -> None:
        store.run_task(self.generator.choice(("cleaner", "retention", "removal", "checkpoints")))

    def backup(self, store: Store) -> None:
        expected = contents(store)
        self.models.append((store.backup(self.path / "backups"), expected, Counter(self.jobs)))


def test_each_restore_of_a_random_life_equals_the_model_at_its_moment(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    for number in range(LIVES):
        path = tmp_path / "life"
        life = Life(path, random.Random(f"backup {seed} {number}"))
        path.mkdir()
        life.run(tries(25, quick=14))
        for result, expected, jobs in life.models:
            with open_store(path / "backups" / manifest_name(result.time_ms), read_only=True) as shown:
                if contents(shown) != expected:
                    raise Lost(f"life {number}, backup {result.time_ms} in place: {contents(shown)}, not {expected}")
            with restored(path / "backups", path / "new", at_ms=result.time_ms) as new:
                if contents(new) != expected:
                    raise Lost(f"life {number}, backup {result.time_ms}: {contents(new)}, expected {expected}")
                if (left := waiting(new)) != jobs:
                    raise Lost(f"life {number}, backup {result.time_ms}: {left} in the queue, expected {jobs}")
            shutil.rmtree(path / "new")
            tried("states", 1)
        assert all(one.ok for one in check_backups(path / "backups"))
        shutil.rmtree(path)


# --- refusals and faults ----------------------------------------------------------------------------------------------


def test_a_read_only_store_refuses(tmp_path: Path) -> None:
    Store(tmp_path / "store", **SETTINGS).close()
    with Store(tmp_path / "store", read_only=True, **SETTINGS) as store, pytest.raises(ReadOnlyError):
        store.backup(tmp_path / "backups")


def test_one_backup_at_a_time_runs_in_a_directory(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        refused = []

        def again(size: int) -> None:
            with pytest.raises(LockedError):
                store.backup(tmp_path / "backups")
            refused.append(size)

        store.backup(tmp_path / "backups", progress=again)
    assert refused


def test_a_restore_never_writes_over_anything(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        store.backup(tmp_path / "backups")
        with pytest.raises(FileInTheWayError):
            restore(tmp_path / "backups", tmp_path / "store")
    (tmp_path / "empty").mkdir()
    restored(tmp_path / "backups", tmp_path / "empty").close()


def test_a_damaged_backup_is_found_and_not_restored(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        store.backup(tmp_path / "backups")
    path = sorted((tmp_path / "backups" / "orders-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert [len(one.errors) for one in check_backups(tmp_path / "backups")] == [1]
    with pytest.raises(CorruptFileError):
        restore(tmp_path / "backups", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backups", "store"]


def test_a_backup_after_a_damaged_file_was_removed_is_whole(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        before = contents(store)
        store.backup(tmp_path / "backups")
        for path in (tmp_path / "backups").glob("orders-*/*"):
            path.unlink()
            assert not check_backups(tmp_path / "backups")[-1].ok
            store.backup(tmp_path / "backups")
            assert check_backups(tmp_path / "backups")[-1].ok
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert contents(new) == before


def test_a_backup_removes_what_a_killed_one_was_writing(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        store.backup(tmp_path / "backups")
        left = tmp_path / "backups" / "orders-0" / "00000000000000000077.log.mirror"
        left.write_bytes(b"half")
        assert check_backups(tmp_path / "backups")[0].ok
        assert left.exists()
        store.backup(tmp_path / "backups")
        assert not left.exists()


def test_a_log_that_ends_elsewhere_than_the_backup_says_is_not_restored(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        store.backup(tmp_path / "backups")
    with mock.patch.object(Log, "end_offset", 5), pytest.raises(CorruptFileError, match="expected 0 to 30"):
        restore(tmp_path / "backups", tmp_path / "new")
    assert not (tmp_path / "new").exists()


# --- the guide, and the command line ----------------------------------------------------------------------------------


def test_the_code_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs" / "backup.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, "docs/backup.md", "exec"), {})
    assert (tmp_path / "earlier").is_dir()


def test_the_commands_back_up_verify_and_restore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        before = contents(store)
    target, new = str(tmp_path / "backups"), str(tmp_path / "new")
    assert main(["backup", str(tmp_path / "store"), target]) == 0
    assert main(["backup", "--verify", target]) == 0
    assert main(["restore", target, new]) == 0
    assert main(["restore", target, new]) == 1
    output = capsys.readouterr()
    assert "bytes, sound" in output.out
    assert "never writes over anything" in output.err
    with Store(tmp_path / "new", **SETTINGS) as store:
        assert contents(store) == before
    next((tmp_path / "backups" / "orders-0").glob("*.log")).unlink()
    capsys.readouterr()
    assert main(["backup", "--verify", target]) == 1
    output = capsys.readouterr()
    assert output.out.endswith("bytes, 1 error\n")
    assert output.err.startswith(f"kstore: {target}/orders-0/")
    assert output.err.endswith(".log: No such file or directory\n")
    assert main(["backup", target]) == 2
