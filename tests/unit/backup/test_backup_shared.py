"""Backups of a store that several processes share: here several stores in one process, whose locks work the same."""

from __future__ import annotations

import errno
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.backup import moment
from kstore.backup.check import check_backups
from kstore.cli.main import main
from kstore.errors import LockedError, SharedLogError, StorageError
from kstore.files.paths import TopicPartition
from kstore.log import Log, writer_of
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries
from tests.unit.backup.test_backup import SETTINGS, Life, contents, fill, restored, waiting

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's"),
    pytest.mark.usefixtures("abandons_logs"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LIVES = tries(40, quick=1)
OWNER = TopicPartition("orders", 0)


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pair(tmp_path: Path, clock: ManualClock) -> Iterator[tuple[Store, Store]]:
    options: dict[str, Any] = {**SETTINGS, "shared": True, "clock": clock}
    with Store(tmp_path / "store", **options) as one, Store(tmp_path / "store", **options) as two:
        yield one, two


def values(store: Store, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in store.log("orders", partition).read()]


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_a_backup_has_what_the_other_process_did(pair: tuple[Store, Store], tmp_path: Path) -> None:
    one, two = pair
    fill(two)
    two.consumer_offsets.commit("billing", {OWNER: 7})
    two.log("orders", 1).delete_records(5)
    two.queue("jobs").put(b"a job")
    expected = contents(two)
    one.backup(tmp_path / "backups")
    fill(two)
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert contents(new) == expected
        assert waiting(new) == {b"a job": 1}


def test_what_an_earlier_backup_has_is_not_copied_again(pair: tuple[Store, Store], tmp_path: Path) -> None:
    one, two = pair
    fill(two, 400)
    first = one.backup(tmp_path / "backups")
    assert one.backup(tmp_path / "backups").copied_count == 0
    two.log("orders", 0).append(b"one more")
    assert two.backup(tmp_path / "backups").copied_count == 1
    writer_of(two.log("orders", 0)).roll()
    two.log("orders", 0).append(b"another")
    assert one.backup(tmp_path / "backups").copied_bytes < first.copied_bytes / 10
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert values(new)[-2:] == [b"one more", b"another"]


def test_a_segment_that_the_other_process_rolls_is_not_read_again(pair: tuple[Store, Store], tmp_path: Path) -> None:
    """Another process lists the segments again after a roll, and has other objects for them."""
    one, two = pair
    fill(two, 400)
    with one.replicator(tmp_path / "target") as replicator:
        replicator.flush()
        copier = replicator._copier
        known = dict(copier._sealed[OWNER])
        writer_of(two.log("orders", 0)).roll()
        two.log("orders", 0).append(b"x")
        with mock.patch.object(copier, "_copy_one_sealed", wraps=copier._copy_one_sealed) as copied:
            replicator.flush()
        assert len(known) > 3
        assert copied.call_count <= 1  # the one that was rolled


def test_a_topic_that_the_other_process_makes_is_in_the_next_backup(pair: tuple[Store, Store], tmp_path: Path) -> None:
    one, two = pair
    one.backup(tmp_path / "backups")
    two.create_topic("orders", 2)
    two.log("orders", 1).append(b"new")
    one.backup(tmp_path / "backups")
    two.add_partitions("orders", 3)
    two.log("orders", 2).append(b"newer")
    one.backup(tmp_path / "backups")
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert [values(new, partition) for partition in range(3)] == [[], [b"new"], [b"newer"]]


def test_what_the_other_process_cuts_meanwhile_starts_the_backup_again(
    pair: tuple[Store, Store], tmp_path: Path
) -> None:
    one, two = pair
    fill(two, 200)
    log, cut = two.log("orders", 0), list[int]()

    def truncate(size: int) -> None:
        if not cut:
            cut.append(size)
            log.truncate_to(50)
            for number in range(60):
                log.append(b"after %d" % number)

    one.backup(tmp_path / "backups", progress=truncate)
    assert cut
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert values(new) == values(two)


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_a_backup_holds_only_what_is_on_disk(durability: Any, tmp_path: Path) -> None:
    """In "sync" another process may have written, and not synced yet."""
    options: dict[str, Any] = {**SETTINGS, "shared": True, "durability": durability}
    with Store(tmp_path / "store", **options) as one, Store(tmp_path / "store", **options) as two:
        two.create_topic("orders")
        durable: Any = writer_of(two.log("orders")).appends._durability
        with mock.patch.object(durable, "make_durable", create=durability != "sync"):
            two.log("orders").append(b"not synced")
        assert writer_of(two.log("orders")).ends.durable_end == 0
        one.backup(tmp_path / "backups")
        assert writer_of(one.log("orders")).ends.durable_end == 1
    with restored(tmp_path / "backups", tmp_path / "new") as new:
        assert values(new) == [b"not synced"]


class SharedLife(Life):
    """Each step is done by one of two processes."""

    def run(self, step_count: int) -> None:
        draw = self.generator
        options: dict[str, Any] = {**SETTINGS, "shared": True, "durability": draw.choice(("sync", "interval", "os"))}
        stores = [Store(self.path / "store", **options) for _ in range(2)]
        stores[0].create_topic("orders", 2)
        for _ in range(step_count):
            store = draw.choice(stores)
            step = draw.choice(("append", "append", "append", "commit", "queue", "cut", "backup", "work"))
            if draw.random() < 0.05:
                store.close()
                stores[stores.index(store)] = store = Store(self.path / "store", **options)
            getattr(self, step)(store)
        self.backup(draw.choice(stores))
        for store in stores:
            store.close()

    def commit(self, store: Store) -> None:
        end = store.log("orders", 0).end_offset
        store.consumer_offsets.commit("plain", {OWNER: self.generator.randint(0, end)})

    def cut(self, store: Store) -> None:
        log = store.log("orders", 0)
        if self.generator.random() < 0.2:
            log.truncate_to(self.generator.randint(log.start_offset, log.high_watermark))
        else:
            super().cut(store)

    def work(self, store: Store) -> None:
        store.run_task(self.generator.choice(("retention", "removal")))


@pytest.mark.long
def test_each_restore_of_a_random_life_is_the_store_at_that_moment(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    generator = random.Random(seed)
    for number in range(LIVES):
        life = SharedLife(tmp_path / f"life{number}", generator)
        life.run(tries(25, quick=14))
        for index, (result, expected, jobs) in enumerate(life.models):
            with restored(life.path / "backups", life.path / f"new{index}", at_ms=result.time_ms) as new:
                if (found := contents(new)) != expected:
                    raise Wrong(f"life {number}, backup {result.time_ms}: {found}, expected {expected}")
                if (left := waiting(new)) != jobs:
                    raise Lost(f"life {number}, backup {result.time_ms}: {left} in the queue, expected {jobs}")
            tried("states", 1)
        assert all(one.ok for one in check_backups(life.path / "backups"))


# --- the moment -------------------------------------------------------------------------------------------------------


def lock_of(log: Log) -> Any:
    return writer_of(log).turn.lock


def is_free(log: Log) -> bool:
    if lock_of(log).acquire(True, 0):
        lock_of(log).release()
        return True
    return False


def test_no_process_changes_anything_at_the_moment(pair: tuple[Store, Store], tmp_path: Path) -> None:
    one, two = pair
    fill(two)
    logs = [two.log("orders", number) for number in range(2)]
    root: Any = two._topics.directory.root_lock
    assert root.try_turn()
    root.end_turn()
    at, found = moment._at, list[Any]()

    def noted(*arguments: Any) -> Any:
        found.append(([is_free(log) for log in logs], root.try_turn()))
        return at(*arguments)

    with mock.patch.object(moment, "_at", noted):
        one.backup(tmp_path / "backups")
    assert found == [([False, False], False)] * 2
    assert [is_free(log) for log in logs] == [True, True]
    two.create_topic("later")


def test_a_log_that_stays_busy_ends_the_backup_and_all_others_are_free(
    pair: tuple[Store, Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance, a process was stopped in its turn."""
    one, two = pair
    fill(two)
    for number in range(2):
        one.log("orders", number)  # to open one waits for the turn
    one.backup(tmp_path / "backups")
    monkeypatch.setattr(moment, "TRIES", 3)
    monkeypatch.setattr(moment, "WAIT_SECONDS", 0.001)
    with lock_of(two.log("orders", 1)):
        with pytest.raises(StorageError) as raised:
            one.backup(tmp_path / "backups")
        assert raised.value.errno == errno.EBUSY
        assert two.log("orders", 0).append(b"free") == 30
    assert one.backup(tmp_path / "backups").copied_count == 1


def test_a_backup_that_fails_at_the_moment_frees_all_logs(pair: tuple[Store, Store], tmp_path: Path) -> None:
    one, two = pair
    fill(two)
    with mock.patch.object(moment, "_at", side_effect=StorageError(errno.EIO, "no")), pytest.raises(StorageError):
        one.backup(tmp_path / "backups")
    for number in range(2):
        assert is_free(two.log("orders", number))
    assert one.backup(tmp_path / "backups").log_count >= 2


def test_two_processes_make_backups_at_the_same_time(pair: tuple[Store, Store], tmp_path: Path) -> None:
    fill(pair[0], 200)
    failures = list[BaseException]()

    def back_up(store: Store, target: str) -> None:
        try:
            for number in range(10):
                store.backup(tmp_path / target)
                store.log("orders", 0).append(b"%d" % number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=back_up, args=(store, name)) for store, name in zip(pair, "ab", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for name in "ab":
        assert all(one.ok for one in check_backups(tmp_path / name))
        pair[0].backup(tmp_path / name)
        with restored(tmp_path / name, tmp_path / f"new-{name}") as new:
            assert values(new) == values(pair[0])

    def again(size: int) -> None:
        with pytest.raises(LockedError):
            pair[1].backup(tmp_path / "a")

    pair[1].log("orders", 0).append(b"one more")
    pair[0].backup(tmp_path / "a", progress=again)


# --- replicators ------------------------------------------------------------------------------------------------------


def test_a_replicator_finds_what_the_other_process_did_within_an_interval(
    pair: tuple[Store, Store], tmp_path: Path, clock: ManualClock
) -> None:
    one, two = pair
    fill(two)
    with one.replicator(tmp_path / "target", every="10s") as replicator:
        one.run_due_tasks()
        first = replicator.last_time_ms
        two.log("orders", 0).append(b"of the other")
        clock.advance(9_000)
        one.run_due_tasks()
        assert replicator.last_time_ms == first
        clock.advance(1_000)
        one.run_due_tasks()
        assert replicator.last_time_ms != first
        assert replicator.lag_seconds == 0
        two.create_topic("later")
        two.log("later").append(b"of the other")
        clock.advance(10_000)
        one.run_due_tasks()
        with restored(tmp_path / "target", tmp_path / "new") as new:
            assert values(new) == values(two)
            assert new.log("later").end_offset == 1


def test_an_idle_store_costs_a_replicator_a_look_and_no_round(
    pair: tuple[Store, Store], tmp_path: Path, clock: ManualClock
) -> None:
    one, two = pair
    fill(two)
    with one.replicator(tmp_path / "target") as replicator:
        one.run_due_tasks()
        with mock.patch.object(replicator._copier, "copy", wraps=replicator._copier.copy) as copy:
            for _ in range(59):
                clock.advance(1_000)
                one.run_due_tasks()
            assert copy.call_count == 0
            clock.advance(1_000)
            one.run_due_tasks()
            assert copy.call_count == 1  # what only removes
            assert replicator.lag_seconds == 0


def test_a_failed_round_is_repeated_after_its_pause(
    pair: tuple[Store, Store], tmp_path: Path, clock: ManualClock
) -> None:
    one, two = pair
    fill(two)
    with one.replicator(tmp_path / "target") as replicator:
        one.run_due_tasks()
        two.log("orders", 0).append(b"of the other")
        error = StorageError(errno.EIO, "unreachable")
        with mock.patch.object(replicator._copier, "copy", side_effect=error) as copy:
            for _ in range(16):
                clock.advance(1_000)
                one.run_due_tasks()
            assert copy.call_count == 5  # after 1, 1, 2, 4 and 8 s
        assert replicator.lag_seconds >= 16
        clock.advance(16_000)
        one.run_due_tasks()
        assert replicator.lag_seconds == 0


def test_a_replicator_cannot_hold_the_other_process_s_retention(pair: tuple[Store, Store], tmp_path: Path) -> None:
    with pytest.raises(SharedLogError):
        pair[0].replicator(tmp_path / "target", hold_retention=True)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_commands_join_the_processes_that_share_a_store(
    pair: tuple[Store, Store], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(pair[0])
    path, backups = str(tmp_path / "store"), str(tmp_path / "backups")
    assert main(["backup", path, backups]) == 1
    assert "locked" in capsys.readouterr().err
    assert main(["backup", "--shared", path, backups]) == 0
    pair[1].log("orders", 0).append(b"later")
    assert main(["replicate", "--shared", "--once", path, backups]) == 0
    with restored(backups, tmp_path / "new") as new:
        assert values(new) == values(pair[0])
