"""A broker's store, handed over to kstore."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kstore
from kstore.files.checkpoint import (
    write_clean_shutdown,
    write_offset_checkpoint,
)
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import (
    CLEAN_SHUTDOWN,
    KSTORE_STATE,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    REPLICATION_OFFSETS,
)
from kstore.log import Log
from kstore.upkeep.handover import from_broker, to_broker
from tests.support.harness.golden_data import golden_root
from tests.support.lives.handover_parts import IDS, A, B, flip, rows, two_logs


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return two_logs(tmp_path / "store")


# --- from a broker ----------------------------------------------------------------------------------------------------


@pytest.fixture
def brokers(tmp_path: Path) -> Path:
    """A store that a broker closed cleanly."""
    return Path(shutil.copytree(golden_root() / "clean", tmp_path / "brokers", copy_function=shutil.copyfile))


def test_a_brokers_store_is_kstores_without_a_scan(brokers: Path) -> None:
    before = {path.name: rows(path) for path in brokers.glob("*-[0-9]") if path.name != "__cluster_metadata-0"}
    report = from_broker(brokers)
    assert report.is_whole
    assert not (brokers / CLEAN_SHUTDOWN).exists()
    assert {one.name for one in report.partitions} == set(before)
    for name, found in before.items():
        with Log(brokers / name) as log:
            assert log.recovery.clean
        assert rows(brokers / name) == found
    by_name = {one.name: one for one in report.partitions}
    assert by_name["deleted-records-0"].start_offset == 437
    assert by_name["retained-0"].start_offset == 1517
    assert all(one.topic_id for one in report.partitions)


def test_a_brokers_own_files_stay_and_unknown_ones_are_listed(brokers: Path) -> None:
    (brokers / "notes.txt").write_text("")
    (brokers / "plain-0" / "odd.bin").write_text("")
    kept = {name: (brokers / name).read_bytes() for name in (RECOVERY_POINTS, REPLICATION_OFFSETS, META_PROPERTIES)}
    report = from_broker(brokers)
    assert {name: (brokers / name).read_bytes() for name in kept} == kept
    assert f"{brokers / 'notes.txt'}: unknown" in report.left
    assert f"{brokers / 'plain-0' / 'odd.bin'}: unknown" in report.left
    assert f"{brokers / '__cluster_metadata-0'}: the broker's" in report.left
    assert f"{brokers / REPLICATION_OFFSETS}: the broker's" in report.left


def test_what_kstore_keeps_beside_a_broker_s_files_is_not_unknown(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os") as opened:
        opened.create_topic("t")
        with opened.producer(transactional_id="x") as producer, producer.transaction():
            producer.send("t", b"x")
    with (
        kstore.open(tmp_path / "s", durability="os", shared=True) as opened,
        opened.consumer("t", group="g") as consumer,
    ):
        consumer.poll()
        consumer.commit()
    assert [line for line in from_broker(tmp_path / "s").left if "unknown" in line] == []


def test_what_a_broker_indexed_and_counted_needs_no_change_on_the_way_back(brokers: Path) -> None:
    from_broker(brokers)
    report = to_broker(brokers)
    assert report.is_whole
    written = [step.path for step in report.steps if step.kind in ("write", "rebuild", "roll")]
    assert written == [str(brokers / CLEAN_SHUTDOWN)]


def test_a_state_from_before_the_brokers_time_is_not_believed(store: Path) -> None:
    # As after a copy of directories to a broker by hand: kstore.state was copied too, and the broker appended.
    old = (store / "b-0" / KSTORE_STATE).read_bytes()
    with Log(store / "b-0") as log:
        log.append(b"the broker's")
    (store / "b-0" / KSTORE_STATE).write_bytes(old)
    write_offset_checkpoint(SYSTEM_FS, store / RECOVERY_POINTS, {A: 30, B: 13})
    write_offset_checkpoint(SYSTEM_FS, store / LOG_START_OFFSETS, {B: 9})
    write_clean_shutdown(SYSTEM_FS, store / CLEAN_SHUTDOWN)
    report = from_broker(store)
    assert report.is_whole
    assert ("b-0", 9, 13) in [one[:3] for one in report.partitions]
    with Log(store / "b-0") as log:
        assert log.recovery.clean
        assert (log.start_offset, log.end_offset) == (9, 13)


def test_records_that_the_broker_deleted_stay_deleted_though_it_appended_nothing(store: Path) -> None:
    write_offset_checkpoint(SYSTEM_FS, store / LOG_START_OFFSETS, {A: 20})
    from_broker(store)
    with Log(store / "a-0") as log:
        assert (log.start_offset, log.end_offset) == (20, 30)


def test_a_store_that_was_not_stopped_in_order_is_recovered(tmp_path: Path) -> None:
    crashed = Path(shutil.copytree(golden_root() / "crashed", tmp_path / "crashed", copy_function=shutil.copyfile))
    report = from_broker(crashed)
    assert all("recover" in step.detail for step in report.steps)
    assert report.is_whole
    with Log(crashed / "crash-0") as log:
        assert log.recovery.clean


def test_damage_in_a_brokers_log_is_reported(store: Path) -> None:
    to_broker(store, topic_ids=IDS)
    (store / CLEAN_SHUTDOWN).unlink()
    flip(sorted((store / "b-0").glob("*.log"))[0], 100)
    report = from_broker(store)
    assert [(found.first, found.last) for found in report.damage] == [(0, 0)]
    assert not report.is_whole
