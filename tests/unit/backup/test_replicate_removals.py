"""A replicator removes from its target what no manifest names, and nothing that is not kstore's. Retention removes from
the store only what was copied, if the replicator holds it back."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest import mock

import pytest

from kstore.archive.target import BackupTarget
from kstore.backup.check import check_backups
from kstore.errors import StorageError
from kstore.files.paths import LOG_SUFFIX
from kstore.log import writer_of
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.unit.backup.test_backup import fill
from tests.unit.backup.test_replicate import UNREACHABLE, manifests
from tests.unit.backup.test_replicate import clock as clock
from tests.unit.backup.test_replicate import store as store
from tests.unit.backup.test_replicate import tmp_path as tmp_path

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def test_old_manifests_are_removed_and_an_hour_later_what_only_they_name(
    store: Store, tmp_path: Path, clock: ManualClock
) -> None:
    target = tmp_path / "target"
    store.create_topic("orders", segment_bytes=1 << 20)
    kept = store.backup(target)
    with store.replicator(target, keep=4) as replicator:
        for number in range(20):
            store.log("orders").append(b"%d" % number)
            replicator.flush()
            assert 1 <= sum(name.startswith("replica") for name in manifests(target)) <= 5
        count = len(list(target.glob("orders-0/*.log")))
        clock.advance(3_600_000)
        store.run_due_tasks()
        named = {
            file.name
            for name in manifests(target)
            for log in BackupTarget(target).manifest(name).logs
            for file in log.files
        }
        found = {path.name for path in target.glob("orders-0/*")}
        assert found <= named
        assert len(found) < count
    assert all(one.ok for one in check_backups(target))
    assert kept.time_ms in [one.time_ms for one in check_backups(target)]


def test_what_a_failed_round_has_left_is_removed(store: Store, tmp_path: Path, clock: ManualClock) -> None:
    target = tmp_path / "target"
    store.create_topic("orders", segment_bytes=1 << 20)
    replicator = store.replicator(target)
    replicator.flush()
    with UNREACHABLE:
        for end in (replicator.flush, replicator.close):
            store.log("orders").append(b"x")
            with pytest.raises(StorageError):
                end()
    (target / "orders-0" / "notes.txt").write_text("not kstore's")
    store.log("orders").truncate_to(0)
    with store.replicator(target) as replicator:
        replicator.flush()
        assert list(target.glob("orders-0/*.log"))
        clock.advance(3_600_000)
        store.run_due_tasks()
        assert [path.name for path in target.glob("orders-0/*")] == ["notes.txt"]


def test_nothing_is_searched_for_beside_a_damaged_manifest(store: Store, tmp_path: Path, clock: ManualClock) -> None:
    target = tmp_path / "target"
    fill(store)
    store.backup(target)
    left = target / "orders-0" / f"{9:020d}-1-00000000{LOG_SUFFIX}"
    left.write_bytes(b"x")
    (target / manifests(target)[0]).write_bytes(b"damaged")
    with store.replicator(target) as replicator:
        replicator.flush()
        clock.advance(3_600_000)
        store.run_due_tasks()
        assert left.exists()


def test_a_target_that_refuses_removals_still_gets_each_round(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.create_topic("orders")
    refused = mock.patch.object(BackupTarget, "remove_replicas", side_effect=StorageError(errno.EACCES, "no"))
    with refused, store.replicator(tmp_path / "target", keep=1) as replicator:
        for number in range(5):
            store.log("orders").append(b"%d" % number)
            replicator.flush()
    assert len(manifests(tmp_path / "target")) == 5
    assert caplog.text.count("what is no longer needed stays") == 1
    with store.replicator(tmp_path / "target", keep=1) as replicator:
        replicator.flush()
    assert len(manifests(tmp_path / "target")) == 1


@pytest.mark.parametrize("is_new", [True, False], ids=["created", "opened again"])
def test_retention_waits_for_a_replicator_that_has_not_seen_the_log_yet(
    store: Store, tmp_path: Path, is_new: bool
) -> None:
    store.create_topic("orders", retention_bytes=0)
    store.log("orders").append(b"copied")
    with store.replicator(tmp_path / "target", hold_retention=True) as replicator:
        replicator.flush()
        if is_new:
            store.create_topic("others", retention_bytes=0)
        else:
            store.log("orders").close()
        log = store.log("others" if is_new else "orders")
        start = log.end_offset
        log.append(b"not copied")
        writer_of(log).roll()
        store.apply_retention()
        assert log.start_offset <= start
        replicator.flush()
        store.apply_retention()
        assert log.start_offset > start
        log.append(b"not copied")
        store.apply_retention()
        assert log.start_offset == start + 1
    store.apply_retention()
    assert log.start_offset == start + 2
