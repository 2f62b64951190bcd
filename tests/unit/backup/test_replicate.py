"""A replicator: each restore is the store at one of its rounds, and a round costs only what is new."""

from __future__ import annotations

import errno
import json
import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.archive.manifest import Manifest
from kstore.archive.target import BackupTarget
from kstore.backup.check import check_backups
from kstore.backup.replicate import Replicator
from kstore.cli.main import main
from kstore.errors import (
    ClosedError,
    ConfigError,
    DivergedError,
    LockedError,
    ReadOnlyError,
    StorageError,
    UnsupportedFormatError,
)
from kstore.files.paths import TopicPartition
from kstore.log import writer_of
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Lost
from tests.support.harness.selection import tries
from tests.unit.backup.test_backup import SETTINGS, Life, contents, fill, restored, waiting

UNREACHABLE = mock.patch.object(BackupTarget, "finish", side_effect=StorageError(errno.EIO, "unreachable"))
LIVES = tries(40, quick=1)

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store(tmp_path / "store", clock=clock, **SETTINGS) as store:
        yield store


def pieces(target: Path, partition: int = 0) -> list[tuple[int, int]]:
    """Position and size of the pieces of ``orders`` in the target that the last manifest names."""
    place = BackupTarget(target)
    logs = place.last_at(None).logs
    (log,) = (one for one in logs if one.owner == TopicPartition("orders", partition))
    return [(piece.position, piece.size) for segment in log.segments for piece in segment.pieces]


def manifests(target: Path) -> list[str]:
    return sorted(path.name for path in target.glob("*.manifest"))


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_a_restore_is_the_store_at_the_last_round(store: Store, tmp_path: Path) -> None:
    fill(store)
    with store.replicator(tmp_path / "target") as replicator:
        store.run_due_tasks()
        fill(store, 5)
        replicator.flush()
        before = contents(store)
        fill(store, 3)
        with UNREACHABLE, pytest.raises(StorageError):
            replicator.close()
    with restored(tmp_path / "target", tmp_path / "new") as new:
        assert contents(new) == before


def test_a_round_copies_what_an_active_segment_has_gained(store: Store, tmp_path: Path) -> None:
    store.create_topic("orders", segment_bytes=1 << 20)
    log = store.log("orders")
    with store.replicator(tmp_path / "target") as replicator:
        sizes = []
        for _ in range(3):
            log.append(b"x" * 1000)
            replicator.flush()
            sizes.append(writer_of(log).ends.position)
        assert pieces(tmp_path / "target") == [
            (0, sizes[0]),
            (sizes[0], sizes[1] - sizes[0]),
            (sizes[1], sizes[2] - sizes[1]),
        ]
    assert all(one.ok for one in check_backups(tmp_path / "target"))


def test_a_sealed_segment_is_one_file_in_the_end(store: Store, tmp_path: Path) -> None:
    store.create_topic("orders", segment_bytes=1 << 20)
    log = store.log("orders")
    with store.replicator(tmp_path / "target") as replicator:
        for _ in range(3):
            log.append(b"x" * 1000)
            replicator.flush()
        size = writer_of(log).ends.position
        writer_of(log).roll()
        replicator.flush()
        assert pieces(tmp_path / "target") == [(0, size), (0, 0)]


def test_many_rounds_leave_few_pieces(store: Store, tmp_path: Path) -> None:
    store.create_topic("orders", segment_bytes=1 << 20)
    with store.replicator(tmp_path / "target", keep=1) as replicator:
        for number in range(60):
            store.log("orders").append(b"%d" % number)
            replicator.flush()
        assert len(pieces(tmp_path / "target")) <= 7
    with restored(tmp_path / "target", tmp_path / "new") as new:
        assert [one.value for one in new.log("orders").read()] == [b"%d" % number for number in range(60)]


def test_nothing_new_makes_no_manifest_and_no_request(store: Store, tmp_path: Path, clock: ManualClock) -> None:
    fill(store)
    with store.replicator(tmp_path / "target") as replicator:
        replicator.flush()
        before = manifests(tmp_path / "target")
        with mock.patch.object(BackupTarget, "finish", side_effect=AssertionError):
            for _ in range(3):
                clock.advance(60_000)
                store.run_due_tasks()
            replicator.flush()
        assert manifests(tmp_path / "target") == before
        assert replicator.lag_seconds == 0


def test_an_append_begins_a_round_at_most_once_an_interval(store: Store, tmp_path: Path, clock: ManualClock) -> None:
    fill(store)
    with store.replicator(tmp_path / "target", every="2s") as replicator:
        store.run_due_tasks()
        first = replicator.last_time_ms
        clock.advance(500)
        store.log("orders").append(b"soon")
        store.run_due_tasks()
        assert replicator.last_time_ms == first
        assert replicator.lag_seconds == 0
        clock.advance(1500)
        assert replicator.lag_seconds == 1.5
        assert store.metrics()["replication_lag_seconds"] == {replicator.target: 1.5}
        store.run_due_tasks()
        assert replicator.last_time_ms != first
        assert replicator.lag_seconds == 0


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda store: store.log("orders").delete_records(5), id="delete records"),
        pytest.param(lambda store: store.log("orders").truncate_to(5), id="truncate"),
        pytest.param(lambda store: store.create_topic("other"), id="create a topic"),
        pytest.param(lambda store: store.delete_topic("orders"), id="delete a topic"),
        pytest.param(lambda store: store.alter_topic("orders", retention_bytes=10**9), id="alter a topic"),
    ],
)
def test_what_is_no_append_is_found_within_a_minute(
    change: Callable[[Store], object], store: Store, tmp_path: Path, clock: ManualClock
) -> None:
    fill(store)
    store.create_topic("rest")
    with store.replicator(tmp_path / "target") as replicator:
        replicator.flush()
        change(store)
        clock.advance(60_000)
        store.run_due_tasks()
        before = contents(store)
        with restored(tmp_path / "target", tmp_path / "new") as new:
            assert contents(new) == before


def test_rounds_run_in_the_background(tmp_path: Path) -> None:
    ended = threading.Event()
    finish = BackupTarget.finish

    def finished(target: BackupTarget, manifest: Manifest, *, replica: bool = False) -> None:
        finish(target, manifest, replica=replica)
        if sum(log.end for log in manifest.logs) == 2:
            ended.set()

    with Store(tmp_path / "store", **{**SETTINGS, "background": True}) as store:
        store.create_topic("orders")
        with mock.patch.object(BackupTarget, "finish", finished):
            replicator = store.replicator(tmp_path / "target", every=1)
            for _ in range(2):
                store.log("orders").append(b"x")
            assert ended.wait(60)
        replicator.close()
        assert not [one for one in store.status().tasks if one.name.startswith("replicate")]
        with pytest.raises(ClosedError):
            replicator.flush()
        replicator.close()


def test_a_log_that_its_user_closes_and_reopens_is_still_followed(
    store: Store, tmp_path: Path, clock: ManualClock
) -> None:
    fill(store)
    with store.replicator(tmp_path / "target") as replicator:
        store.run_due_tasks()
        for number in range(2):
            clock.advance(1000)
            store.log("orders").append(b"%d" % number)
            store.log("orders").close()
            store.run_due_tasks()
        assert replicator.lag_seconds == 0
        with restored(tmp_path / "target", tmp_path / "new") as new:
            assert new.log("orders").end_offset == 32


def test_a_truncation_in_the_active_segment_replaces_what_was_copied(store: Store, tmp_path: Path) -> None:
    store.create_topic("orders", segment_bytes=1 << 20)
    log = store.log("orders")
    with store.replicator(tmp_path / "target") as replicator:
        for number in range(5):
            log.append(b"%d" % number)
            replicator.flush()
        log.truncate_to(3)
        for _ in range(2):
            log.append(b"x")  # as long as the old one
        replicator.flush()
    with restored(tmp_path / "target", tmp_path / "new") as new:
        assert [one.value for one in new.log("orders").read()] == [b"0", b"1", b"2", b"x", b"x"]


def test_a_topic_that_is_created_again_is_copied_from_its_start(store: Store, tmp_path: Path) -> None:
    store.create_topic("rest")
    with store.replicator(tmp_path / "target") as replicator:
        for value in (b"old", b"new, and longer"):
            store.create_topic("orders")
            for _ in range(3):
                store.log("orders").append(value)
            replicator.flush()
            before = contents(store)
            store.delete_topic("orders")
    with restored(tmp_path / "target", tmp_path / "new", at_ms=replicator_time(tmp_path / "target", -2)) as new:
        assert contents(new) == before


def replicator_time(target: Path, number: int) -> int:
    return list(BackupTarget(target).names())[number]


def test_the_next_replicator_continues_where_the_last_one_ended(store: Store, tmp_path: Path) -> None:
    store.create_topic("orders", segment_bytes=1 << 20)
    log = store.log("orders")
    for _ in range(2):
        log.append(b"x" * 1000)
        with store.replicator(tmp_path / "target") as replicator:
            replicator.flush()
    assert [position for position, _ in pieces(tmp_path / "target")] == [0, 1070]
    assert len(manifests(tmp_path / "target")) == 2
    with store.replicator(tmp_path / "target"):
        pass
    assert len(manifests(tmp_path / "target")) == 2


def test_closing_the_store_does_the_last_round(tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
        replicator = store.replicator(tmp_path / "target")
        before = contents(store)
    assert replicator.closed
    with pytest.raises(ClosedError):
        replicator.flush()
    with restored(tmp_path / "target", tmp_path / "new") as new:
        assert contents(new) == before


def test_a_target_that_cannot_be_reached_leaves_the_store_in_order(store: Store, tmp_path: Path) -> None:
    fill(store)
    store.replicator(tmp_path / "target")
    with UNREACHABLE:
        store.close()
    with Store(tmp_path / "store", **SETTINGS) as again:
        assert again.log("orders").recovery.clean


def test_a_failed_round_is_repeated_after_a_pause(store: Store, tmp_path: Path, clock: ManualClock) -> None:
    fill(store)
    replicator = store.replicator(tmp_path / "target")
    with UNREACHABLE:
        for _ in range(3):
            store.run_due_tasks()
            clock.advance(10_000)
    assert replicator.lag_seconds == 30
    assert [one.error for one in store.status().tasks if one.name.startswith("replicate")] != [""]
    store.run_due_tasks()
    assert replicator.lag_seconds == 0
    assert len(manifests(tmp_path / "target")) == 1


@pytest.mark.parametrize("limit", [{"retention_bytes": 0}, {"retention_bytes_total": 0}], ids=["of a log", "of all"])
def test_retention_waits_for_a_replicator_that_holds_it(limit: dict[str, Any], tmp_path: Path) -> None:
    with Store(tmp_path / "store", **SETTINGS, **limit, file_delete_delay_ms=0) as store:
        store.create_topic("orders")
        log = store.log("orders")
        with store.replicator(tmp_path / "target", hold_retention=True) as replicator:
            log.append(b"copied")
            replicator.flush()
            writer_of(log).roll()
            log.append(b"not copied")
            writer_of(log).roll()
            log.append(b"active")
            store.apply_retention()
            assert log.start_offset == 1
        log.append(b"later")
        store.apply_retention()
        assert log.start_offset > 1


@pytest.mark.parametrize("is_damaged", [False, True], ids=["a backup", "a damaged one"])
def test_a_store_as_at_its_last_round_gets_a_manifest_if_another_one_is_newer(
    is_damaged: bool, store: Store, tmp_path: Path
) -> None:
    fill(store)
    target = tmp_path / "target"
    with store.replicator(target):
        pass
    store.create_topic("passing")
    if is_damaged:
        with store.replicator(target):
            pass
        (target / manifests(target)[-1]).write_bytes(b"damaged")
    else:
        store.backup(target)
    store.delete_topic("passing")
    with store.replicator(target):
        before = contents(store)
    with restored(target, tmp_path / "new") as new:
        assert contents(new) == before


def test_a_store_as_at_its_last_round_gets_a_manifest_if_one_may_have_arrived(store: Store, tmp_path: Path) -> None:
    fill(store)
    finish = BackupTarget.finish

    def unheard(target: BackupTarget, manifest: Manifest, *, replica: bool = False) -> None:
        finish(target, manifest, replica=replica)
        raise StorageError(errno.EIO, "the answer was lost")

    with store.replicator(tmp_path / "target") as replicator:
        replicator.flush()
        store.create_topic("passing")
        with mock.patch.object(BackupTarget, "finish", unheard), pytest.raises(StorageError):
            replicator.flush()
        store.delete_topic("passing")
        replicator.flush()
        before = contents(store)
        with restored(tmp_path / "target", tmp_path / "new") as new:
            assert contents(new) == before


# --- a model ----------------------------------------------------------------------------------------------------------


class ReplicatedLife(Life):
    """A random life of a store, with rounds of a replicator; the models are the contents at each of them."""

    replicator: Replicator | None = None
    rounds: list[tuple[int, dict[str, Any], Counter[bytes]]]

    def backup(self, store: Store) -> None:
        if self.replicator is None or self.replicator.closed:
            self.replicator = store.replicator(self.path / "backups", keep=1000)
        expected = contents(store)
        self.rounds.append((self.replicator.flush(), expected, Counter(self.jobs)))
        if self.generator.random() < 0.1:
            self.replicator.close()

    def cut(self, store: Store) -> None:
        super().cut(store)
        # Without transactions: a marker that is cut off would leave one open.
        store.topic("plain")
        log = store.log("plain")
        log.append_many([self.value() for _ in range(self.generator.randint(1, 12))])
        if self.generator.random() < 0.6:
            log.truncate_to(max(log.end_offset - self.generator.randrange(20), log.start_offset))


@pytest.mark.long
def test_each_restore_of_a_random_life_equals_the_model_at_its_round(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    for number in range(LIVES):
        path = tmp_path / "life"
        life = ReplicatedLife(path, random.Random(f"replicate {seed} {number}"))
        life.rounds = []
        path.mkdir()
        life.run(tries(40, quick=8))
        for time_ms, expected, jobs in life.rounds:
            with restored(path / "backups", path / "new", at_ms=time_ms) as new:
                if contents(new) != expected:
                    raise Lost(f"life {number}, round {time_ms}: {contents(new)!r:.2000}, expected {expected!r:.2000}")
                if (left := waiting(new)) != jobs:
                    raise Lost(f"life {number}, round {time_ms}: {left} in the queue, expected {jobs}")
            shutil.rmtree(path / "new")
            tried("states", 1)
        assert all(one.ok for one in check_backups(path / "backups"))
        shutil.rmtree(path)


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_command_takes_what_a_replicator_could_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = str(tmp_path / "store"), str(tmp_path / "target")
    with Store(source, **SETTINGS) as store:
        fill(store)
        before = contents(store)
        assert main(["replicate", "--once", source, target]) == 1
    assert main(["replicate", "--once", "--format", "json", source, target]) == 0
    assert main(["replicate", "--every", "soon", source, target]) == 2
    output = capsys.readouterr()
    (line,) = output.out.splitlines()
    assert json.loads(line)["target"] == target
    assert "expected a duration such as" in output.err
    with restored(target, tmp_path / "new") as new:
        assert contents(new) == before


def test_the_command_replicates_until_it_is_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(tmp_path / "store", **SETTINGS) as store:
        fill(store)
    target = str(tmp_path / "target")
    with mock.patch("kstore.cli.replicate._wait", side_effect=lambda: signal.raise_signal(signal.SIGINT)):
        assert main(["replicate", str(tmp_path / "store"), target]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" has the store as at ")[0] for line in lines] == [target] * 2


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_read_only_store_refuses(tmp_path: Path) -> None:
    Store(tmp_path / "store", **SETTINGS).close()
    with Store(tmp_path / "store", read_only=True, **SETTINGS) as store, pytest.raises(ReadOnlyError):
        store.replicator(tmp_path / "target")


def test_one_replicator_or_backup_at_a_time_is_at_work_in_a_directory(store: Store, tmp_path: Path) -> None:
    with store.replicator(tmp_path / "target"), pytest.raises(LockedError):
        store.backup(tmp_path / "target")
    store.backup(tmp_path / "target")
    with store.replicator(tmp_path / "target"), pytest.raises(ConfigError, match="already"):
        store.replicator(tmp_path / "target")


def test_a_new_store_does_not_replace_the_moments_of_a_lost_one(store: Store, tmp_path: Path) -> None:
    fill(store)
    with store.replicator(tmp_path / "target"):
        pass
    for name, topics in (("empty", []), ("another", ["orders"])):
        with Store(tmp_path / name, **SETTINGS) as new:
            for topic in topics:
                new.create_topic(topic)
            with pytest.raises(DivergedError, match="no topic in common"):
                new.replicator(tmp_path / "target")
    with restored(tmp_path / "target", tmp_path / "new") as new, new.replicator(tmp_path / "target") as replicator:
        new.log("orders").append(b"later")
        replicator.flush()
    assert all(one.ok for one in check_backups(tmp_path / "target"))


@pytest.mark.parametrize("settings", [{"every": 0}, {"every": "soon"}, {"keep": 0}, {"keep": "all"}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected"):
        store.replicator(tmp_path / "target", **settings)
    assert not (tmp_path / "target").exists()


def test_a_target_of_a_later_version_is_refused(store: Store, tmp_path: Path) -> None:
    fill(store)
    store.backup(tmp_path / "target")
    path = tmp_path / "target" / manifests(tmp_path / "target")[0]
    path.write_bytes(path.read_bytes().replace(b"kstore-backup 1 ", b"kstore-backup 3 "))
    with pytest.raises(UnsupportedFormatError, match="version 3, expected 1 to 2"):
        store.replicator(tmp_path / "target")
    store.backup(tmp_path / "other")  # the lock is free again
