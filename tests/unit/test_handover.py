"""Handing logs to a broker and back: what is refused, what is written, and that a crash on the way loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import kstore
from kstore.cli.main import main
from kstore.errors import LockedError, LogNotFoundError, StorageError
from kstore.files.checkpoint import (
    EpochEntry,
    read_broker_epoch,
    read_leader_epochs,
    read_offset_checkpoint,
    read_topic_id,
    write_clean_shutdown,
    write_offset_checkpoint,
    write_topic_id,
)
from kstore.files.local import SYSTEM_FS
from kstore.files.lock import DirectoryLock
from kstore.files.modes import Access
from kstore.files.paths import (
    CLEAN_SHUTDOWN,
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    REPLICATION_OFFSETS,
    TopicPartition,
)
from kstore.log import Log
from kstore.rules.handover import (
    EpochTrack,
    broker_chokes_on,
    choose_topic_ids,
    format_topic_id,
    is_broker_last,
    parse_topic_id,
    sort_store,
)
from kstore.upkeep.handover import HandoverReport, from_broker, to_broker
from kstore.upkeep.handover.report import ForgottenLoss
from tests.evidence import Lost, Wrong
from tests.fake_fs import FailingFs, Fault, RecordingFs
from tests.golden_data import golden_root
from tests.log_cases import lost_in_the_middle

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
ID_A, ID_B = uuid.UUID(int=0xA << 64), uuid.UUID(int=0xB << 64)
IDS = {"a": ID_A, "b": ID_B}
START_A = 7
SEGMENT_BYTES = 1024

Tree = dict[str, tuple[object, ...]]
Rows = list[tuple[int, bytes | None]]


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two logs, closed cleanly: a-0 begins at offset 7, inside a segment; b-0 has several segments."""
    root = tmp_path / "store"
    with Log(root / "a-0") as log:
        for number in range(10):
            log.append_many([b"%d.%d" % (number, part) for part in range(3)])
        log.delete_records(START_A)
    with Log(root / "b-0", segment_bytes=SEGMENT_BYTES) as log:
        for _ in range(12):
            log.append(bytes(300))
    return root


def tree(root: Path) -> Tree:
    """Everything that a write would change: inode, mode, size, time of change, and bytes."""
    seen: Tree = {}
    for path in (root, *sorted(root.rglob("*"))):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        seen[str(path)] = (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, content)
    return seen


def rows(directory: Path) -> Rows:
    with Log(directory, read_only=True) as log:
        return [(record.offset, record.value) for record in log.read()]


def leave_open(directory: Path, source: Path) -> None:
    """Copies a log as a killed writer leaves it."""
    with Log(source) as log:
        log.append(b"unclosed")
        shutil.copytree(source, directory)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


# --- to a broker: what is written -------------------------------------------------------------------------------------


def test_the_broker_finds_all_that_it_wants(store: Path) -> None:
    report = to_broker(store, topic_ids=IDS)
    assert report.is_whole
    assert read_topic_id(SYSTEM_FS, store / "a-0" / PARTITION_METADATA) == ID_A
    assert read_topic_id(SYSTEM_FS, store / "b-0" / PARTITION_METADATA) == ID_B
    assert read_offset_checkpoint(SYSTEM_FS, store / LOG_START_OFFSETS) == {A: START_A}
    assert read_offset_checkpoint(SYSTEM_FS, store / RECOVERY_POINTS) == {A: 30, B: 12}
    assert read_offset_checkpoint(SYSTEM_FS, store / REPLICATION_OFFSETS) == {A: 30, B: 12}
    assert read_leader_epochs(SYSTEM_FS, store / "a-0" / LEADER_EPOCHS) == [(0, START_A)]
    assert read_broker_epoch(SYSTEM_FS, store / CLEAN_SHUTDOWN) == -1
    assert not list(store.rglob(KSTORE_STATE))
    assert not (store / ".lock").exists()
    assert [(one.name, one.start_offset, one.end_offset) for one in report.partitions] == [
        ("a-0", START_A, 30),
        ("b-0", 0, 12),
    ]


def test_the_logs_are_the_same_afterwards_and_open_without_a_scan(store: Path) -> None:
    before = rows(store / "a-0"), rows(store / "b-0")
    to_broker(store, topic_ids=IDS)
    assert (rows(store / "a-0"), rows(store / "b-0")) == before
    with Log(store / "a-0") as log:
        assert log.recovery.clean
        assert (log.start_offset, log.end_offset) == (START_A, 30)


def test_a_second_handover_changes_no_checkpoint(store: Path) -> None:
    to_broker(store, topic_ids=IDS)
    report = to_broker(store)
    assert report.is_whole
    assert [step.path.rpartition("/")[2] for step in report.steps if step.kind == "write"] == [CLEAN_SHUTDOWN]


def test_entries_of_other_partitions_are_kept(store: Path) -> None:
    other = TopicPartition("elsewhere", 3)
    for name in (LOG_START_OFFSETS, RECOVERY_POINTS, REPLICATION_OFFSETS):
        write_offset_checkpoint(SYSTEM_FS, store / name, {other: 5, B: 3})
    to_broker(store, topic_ids=IDS)
    assert read_offset_checkpoint(SYSTEM_FS, store / LOG_START_OFFSETS) == {other: 5, A: START_A}
    assert read_offset_checkpoint(SYSTEM_FS, store / RECOVERY_POINTS) == {other: 5, A: 30, B: 12}


def test_a_checkpoint_that_cannot_be_read_is_rewritten(store: Path) -> None:
    (store / RECOVERY_POINTS).write_text("0\n7\n")
    report = to_broker(store, topic_ids=IDS)
    assert read_offset_checkpoint(SYSTEM_FS, store / RECOVERY_POINTS) == {A: 30, B: 12}
    assert any("counts as empty" in note for note in report.notes)


def test_the_brokers_epoch_in_the_marker_is_kept(store: Path) -> None:
    write_clean_shutdown(SYSTEM_FS, store / CLEAN_SHUTDOWN, 399)
    to_broker(store, topic_ids=IDS)
    assert read_broker_epoch(SYSTEM_FS, store / CLEAN_SHUTDOWN) == 399


def test_a_topic_id_that_is_there_is_kept_and_one_that_is_given_replaces_it(store: Path) -> None:
    write_topic_id(SYSTEM_FS, store / "a-0" / PARTITION_METADATA, uuid.UUID(int=5))
    assert to_broker(store, topic_ids={"b": ID_B}).is_whole
    assert read_topic_id(SYSTEM_FS, store / "a-0" / PARTITION_METADATA) == uuid.UUID(int=5)
    assert to_broker(store, topic_ids={"a": ID_A}).is_whole
    assert read_topic_id(SYSTEM_FS, store / "a-0" / PARTITION_METADATA) == ID_A


def test_a_log_that_was_not_closed_is_recovered_and_an_untrue_marker_goes_first(store: Path) -> None:
    leave_open(store / "c-0", store / "b-0")
    write_clean_shutdown(SYSTEM_FS, store / CLEAN_SHUTDOWN, 7)
    report = to_broker(store, topic_ids={**IDS, "c": ID_A})
    assert report.is_whole
    assert (report.steps[0].kind, Path(report.steps[0].path).name) == ("remove", CLEAN_SHUTDOWN)
    with Log(store / "c-0") as log:
        assert log.recovery.clean
        assert log.end_offset == 13


def test_a_log_that_was_cut_inside_a_batch_goes_on_in_a_new_segment(store: Path) -> None:
    # A broker goes on at the end of the last batch, and would give out offset 27 again.
    with Log(store / "a-0") as log:
        log.truncate_to(28)
    to_broker(store, topic_ids=IDS)
    assert (store / "a-0" / f"{28:020d}.log").exists()
    assert read_offset_checkpoint(SYSTEM_FS, store / RECOVERY_POINTS)[A] == 28


def test_a_log_that_ends_with_skipped_offsets_is_reported(store: Path) -> None:
    with Log(store / "a-0") as log:
        log.truncate_to(29)
    for dry_run in (True, False, True, False):
        # The second handover finds the new segment of the first.
        notes = to_broker(store, topic_ids=IDS, dry_run=dry_run).notes
        assert [note for note in notes if "no batch holds" in note] == [
            f"{store / 'a-0'}: no batch holds the last offsets, 27 to 28: until the next record is written, a consumer"
            " stays at 27, and one that waits until its position is the end offset, 29, waits for that record"
        ]


def test_a_log_without_a_record_does_not_end_with_skipped_offsets(store: Path) -> None:
    with Log(store / "a-0") as log:
        log.delete_records(log.end_offset)
    assert not [note for note in to_broker(store, topic_ids=IDS).notes if "no batch holds" in note]


@pytest.mark.promise("rebuilt")
def test_an_empty_segment_that_an_older_version_left_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "empty" / "a-0"
    # The log begins at 10, after an empty segment at 0 that is added here.
    with Log(path) as log:
        log.truncate_fully_and_start_at(10)
        log.append(b"v")
    (path / f"{0:020d}.log").touch()
    (path / KSTORE_STATE).unlink()
    report = to_broker(path.parent, topic_ids={"a": ID_A})
    assert not report.refused
    assert [note for note in report.notes if "segment 0 is empty" in note]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["lies", "missing"])
def test_a_wrong_index_is_rebuilt(store: Path, suffix: str, harm: str) -> None:
    index = sorted((store / "b-0").glob(f"*{suffix}"))[0]
    log = index.with_suffix(".log")
    if harm == "lies":
        index.write_bytes((1).to_bytes(4, "big") + (77).to_bytes(4, "big") if suffix == ".index" else bytes(12))
    else:
        index.unlink()
    report = to_broker(store, topic_ids=IDS)
    assert [step.kind for step in report.steps].count("rebuild") == 1
    assert index.exists()
    assert [step.kind for step in to_broker(store).steps].count("rebuild") == 0
    assert log.exists()


def test_an_index_whose_only_entry_has_time_0_is_not_wrong(tmp_path: Path) -> None:
    path = tmp_path / "early" / "a-0"
    with Log(path) as log:
        log.append(b"v", timestamp=0)
        shutil.copytree(path, tmp_path / "killed" / "a-0")
    assert (path / f"{0:020d}.timeindex").read_bytes() == bytes(12)
    for directory in (path, tmp_path / "killed" / "a-0"):
        for dry_run in (True, False, True):
            report = to_broker(directory, topic_ids={"a": ID_A}, dry_run=dry_run)
            assert "rebuild" not in [step.kind for step in report.steps]


def test_leader_epochs_that_contradict_the_batches_are_rewritten(store: Path) -> None:
    (store / "b-0" / LEADER_EPOCHS).write_text("0\n2\n0 0\n4 5\n")
    to_broker(store, topic_ids=IDS)
    assert read_leader_epochs(SYSTEM_FS, store / "b-0" / LEADER_EPOCHS) == [(0, 0)]


def test_modes_are_set_for_all_that_the_broker_must_open(store: Path) -> None:
    assert to_broker(store, topic_ids=IDS, mode=0o660).is_whole
    for path in store.rglob("*"):
        if path != store:
            assert path.stat().st_mode & 0o777 == (0o770 if path.is_dir() else 0o660), path


def test_new_files_have_the_mode_of_the_logs(store: Path) -> None:
    for path in store.rglob("*.log"):
        path.chmod(0o644)
    to_broker(store, topic_ids=IDS)
    for name in (RECOVERY_POINTS, CLEAN_SHUTDOWN, f"a-0/{PARTITION_METADATA}"):
        assert (store / name).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("mode", "user", "may"),
    [
        (0o600, (10, 20), True),
        (0o400, (10, 20), False),
        (0o600, (11, 20), False),
        (0o640, (11, 20), False),
        (0o660, (11, 20), True),
        (0o660, (11, 21), False),
        (0o606, (11, 21), True),
        (0o600, (0, 0), True),
    ],
)
def test_who_may_write_a_file(mode: int, user: tuple[int, int], may: bool) -> None:
    assert Access(10, 20, mode).lets(*user) is may


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_names_that_the_broker_could_not_open_are_reported(store: Path) -> None:
    (store / META_PROPERTIES).write_text("version=1\n")
    os.chown(store / META_PROPERTIES, 1234, 1234)
    assert any("user 1234" in note for note in to_broker(store, topic_ids=IDS).notes)
    for path in (store, *store.rglob("*")):
        os.chown(path, 1234, 1234)
    # What is written now is root's.
    notes = to_broker(store).notes
    assert any(note.startswith("1 names belong to user 0") for note in notes), notes
    assert not any("user 1234" in note for note in to_broker(store, mode=0o666).notes)


def test_one_partition_is_handed_over_without_a_marker_that_others_would_not_keep(store: Path) -> None:
    report = to_broker(store / "a-0", topic_ids={"a": ID_A})
    assert report.is_whole
    assert not (store / CLEAN_SHUTDOWN).exists()
    assert (store / "b-0" / KSTORE_STATE).exists()
    assert read_offset_checkpoint(SYSTEM_FS, store / RECOVERY_POINTS) == {A: 30}
    assert any("no marker" in note for note in report.notes)


def test_one_partition_leaves_a_brokers_marker_standing(store: Path) -> None:
    write_clean_shutdown(SYSTEM_FS, store / CLEAN_SHUTDOWN, 7)
    to_broker(store / "a-0", topic_ids={"a": ID_A})
    assert read_broker_epoch(SYSTEM_FS, store / CLEAN_SHUTDOWN) == 7


def test_a_root_that_no_broker_formatted_is_reported(store: Path) -> None:
    assert any(META_PROPERTIES in note for note in to_broker(store, topic_ids=IDS).notes)
    (store / META_PROPERTIES).write_text("version=1\n")
    assert not any(META_PROPERTIES in note for note in to_broker(store).notes)


# --- to a broker: what is refused -------------------------------------------------------------------------------------


def refused(report: HandoverReport, before: Tree, root: Path, *words: str) -> None:
    assert not report.is_whole
    assert all(any(word in line for line in report.refused) for word in words), report.refused
    assert report.steps == []
    assert {path: known[-1] for path, known in tree(root).items()} == {
        path: known[-1] for path, known in before.items()
    }


@pytest.mark.parametrize("name", ["lost+found", "a-07", "notes", "a-0.deadbeef-delete", "-1"])
def test_a_directory_at_which_a_broker_exits_is_refused(store: Path, name: str) -> None:
    (store / name).mkdir()
    before = tree(store)
    refused(to_broker(store, topic_ids=IDS), before, store, name)


@pytest.mark.parametrize(
    "name",
    ["x.log", "5.log", "x.snapshot", "x.index", "old.timeindex", "x.txnindex", "x.swap", "x.cleaned", "x.deleted"],
)
def test_a_file_that_a_broker_would_choke_on_is_refused(store: Path, name: str) -> None:
    (store / "b-0" / name).write_text("")
    before = tree(store)
    refused(to_broker(store, topic_ids=IDS), before, store, name)


@pytest.mark.parametrize(
    "name", ["00000000000000000000.log.cut-4096", "notes.txt", "x.checkpoint.deleted", "x.log.bak"]
)
def test_a_file_that_a_broker_leaves_alone_is_no_obstacle(store: Path, name: str) -> None:
    (store / "b-0" / name).write_text("")
    assert to_broker(store, topic_ids=IDS).is_whole
    assert (store / "b-0" / name).exists()


@pytest.mark.parametrize("name", ["__cluster_metadata-0", "remote-log-index-cache", f"a-3.{'0' * 32}-delete"])
def test_the_brokers_own_directories_are_left_alone(store: Path, name: str) -> None:
    (store / name).mkdir()
    report = to_broker(store, topic_ids=IDS)
    assert report.is_whole
    assert report.left == [str(store / name)]
    assert list((store / name).iterdir()) == []


def test_a_topic_without_an_id_is_refused_and_the_error_says_what_to_do(store: Path) -> None:
    before = tree(store)
    refused(to_broker(store, topic_ids={"a": ID_A}), before, store, "topic b has no id", "--topic-id b=ID", "-stray")


def test_directories_of_one_topic_with_different_ids_are_refused(store: Path) -> None:
    (store / "b-0").rename(store / "a-1")
    write_topic_id(SYSTEM_FS, store / "a-0" / PARTITION_METADATA, ID_A)
    write_topic_id(SYSTEM_FS, store / "a-1" / PARTITION_METADATA, ID_B)
    before = tree(store)
    refused(to_broker(store), before, store, format_topic_id(ID_A))
    assert to_broker(store, topic_ids={"a": ID_B}).is_whole


def test_one_partitions_id_serves_for_the_others_of_the_topic(store: Path) -> None:
    (store / "b-0").rename(store / "a-1")
    write_topic_id(SYSTEM_FS, store / "a-0" / PARTITION_METADATA, ID_A)
    assert to_broker(store).is_whole
    assert read_topic_id(SYSTEM_FS, store / "a-1" / PARTITION_METADATA) == ID_A


def test_an_id_for_a_topic_that_is_not_there_is_refused(store: Path) -> None:
    before = tree(store)
    refused(to_broker(store, topic_ids={**IDS, "c": ID_A}), before, store, "c")


def test_a_directory_with_a_partitions_name_and_no_log_is_refused(store: Path) -> None:
    (store / "photos-1").mkdir()
    (store / "photos-1" / "one.jpg").write_text("")
    before = tree(store)
    refused(to_broker(store, topic_ids={**IDS, "photos": ID_A}), before, store, "not a log")


def test_a_log_whose_name_is_no_partitions_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path / "mylog") as log:
        log.append(b"x")
    before = tree(tmp_path)
    refused(to_broker(tmp_path / "mylog"), before, tmp_path, "mylog")


def test_an_empty_directory_is_refused_and_a_missing_one_an_error(tmp_path: Path) -> None:
    refused(to_broker(tmp_path), tree(tmp_path), tmp_path, "no directory named")
    with pytest.raises(LogNotFoundError):
        to_broker(tmp_path / "none")


@pytest.mark.promise("damage below")
def test_damage_is_refused_and_a_marker_that_is_true_stays(store: Path) -> None:
    write_clean_shutdown(SYSTEM_FS, store / CLEAN_SHUTDOWN, 7)
    first = sorted((store / "b-0").glob("*.log"))[0]
    flip(first, 100)
    stat = first.stat()
    report = to_broker(store, topic_ids=IDS)
    assert not report.is_whole
    assert "damaged" in report.refused[0]
    assert [(found.first, found.last) for found in report.damage] == [(0, 0)]
    # Without it a broker that starts now would recover, and cut the log at the damage.
    assert (store / CLEAN_SHUTDOWN).exists()
    assert (store / "b-0" / KSTORE_STATE).exists()
    assert not (store / RECOVERY_POINTS).exists()
    assert first.stat().st_size == stat.st_size


def test_damage_is_handed_over_by_force_and_still_reported(store: Path) -> None:
    flip(sorted((store / "b-0").glob("*.log"))[0], 100)
    report = to_broker(store, topic_ids=IDS, force=True)
    assert report.refused == []
    assert not report.is_whole
    assert (store / CLEAN_SHUTDOWN).exists()


def test_damage_at_the_end_is_closed_off_by_a_new_segment_when_forced(store: Path) -> None:
    newest = sorted((store / "b-0").glob("*.log"))[-1]
    flip(newest, newest.stat().st_size - 10)
    assert not to_broker(store, topic_ids=IDS).is_whole
    report = to_broker(store, topic_ids=IDS, force=True)
    assert report.refused == []
    assert (store / "b-0" / f"{12:020d}.log").stat().st_size == 0
    assert read_offset_checkpoint(SYSTEM_FS, store / RECOVERY_POINTS)[B] == 12


@pytest.mark.promise("one writer")
@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("name", ["", "a-0"])
def test_a_writer_or_a_broker_at_work_is_an_error(store: Path, name: str, dry_run: bool) -> None:
    with DirectoryLock(store / name):
        before = tree(store)
        with pytest.raises(LockedError):
            to_broker(store, topic_ids=IDS, dry_run=dry_run)
        with pytest.raises(LockedError):
            from_broker(store, dry_run=dry_run)
        if dry_run:
            assert tree(store) == before
    assert (store / "a-0" / KSTORE_STATE).exists()


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
    # As when directories were copied to a broker by hand: kstore.state went along, and the broker appended.
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


# --- dry runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["to", "from"])
@pytest.mark.parametrize("kind", ["closed", "unclosed", "damaged", "handed over"])
def test_a_dry_run_changes_not_one_byte_and_foretells_the_steps(store: Path, way: str, kind: str) -> None:
    if kind == "unclosed":
        leave_open(store / "a-1", store / "b-0")
    elif kind == "damaged":
        flip(sorted((store / "b-0").glob("*.log"))[0], 100)
    elif kind == "handed over":
        to_broker(store, topic_ids=IDS)

    def handover(*, dry_run: bool) -> HandoverReport:
        if way == "from":
            return from_broker(store, dry_run=dry_run)
        return to_broker(store, topic_ids=IDS, mode=0o640, dry_run=dry_run)

    before = tree(store)
    foretold = handover(dry_run=True)
    assert tree(store) == before
    done = handover(dry_run=False)
    assert foretold.steps == done.steps
    assert (foretold.partitions, foretold.refused, foretold.left) == (done.partitions, done.refused, done.left)


def test_a_dry_run_over_a_brokers_store_changes_nothing(brokers: Path) -> None:
    before = tree(brokers)
    foretold = [from_broker(brokers, dry_run=True), to_broker(brokers, dry_run=True)]
    assert tree(brokers) == before
    assert all(report.is_whole for report in foretold)
    assert foretold[0].steps == from_broker(brokers).steps


# --- crashes on the way -----------------------------------------------------------------------------------------------


def is_marked_rightly(root: Path) -> bool:
    """Whether an existing marker is true: the checkpoints have the end of every log."""
    if not (root / CLEAN_SHUTDOWN).exists():
        return True
    ends = read_offset_checkpoint(SYSTEM_FS, root / RECOVERY_POINTS)
    starts = read_offset_checkpoint(SYSTEM_FS, root / LOG_START_OFFSETS)
    return ends == {A: 30, B: 12} and starts == {A: START_A} and not list(root.rglob(KSTORE_STATE))


@pytest.mark.promise("rebuilt")
@pytest.mark.parametrize("sticky", [True, False], ids=["from then on", "once"])
@pytest.mark.parametrize("way", ["to", "to, unclosed", "from"])
@pytest.mark.sampled(1)
def test_a_failure_at_any_step_loses_nothing_and_leaves_no_untrue_marker(
    store: Path, tmp_path: Path, tried: Callable[[str, int], None], way: str, sticky: bool
) -> None:
    expected = rows(store / "a-0"), rows(store / "b-0")
    if way == "from":
        to_broker(store, topic_ids=IDS)

    def handover(root: Path, fs: FailingFs) -> bool:
        try:
            report = from_broker(root, fs=fs) if way == "from" else to_broker(root, topic_ids=IDS, fs=fs)
        except StorageError:
            return False
        assert report.is_whole
        return True

    for at in count(1):
        root = tmp_path / f"{at}"
        shutil.copytree(store, root)  # other inodes: kstore.state does not hold for the copy
        if way == "to":
            for name in ("a-0", "b-0"):
                Log(root / name).close()
        fault = Fault(at=at, sticky=sticky)
        done = handover(root, FailingFs(SYSTEM_FS, fault))
        if fault.seen < at:
            break
        tried("faults", 1)
        if way != "from" and not is_marked_rightly(root):
            raise Wrong(f"fault {at}: a marker that is not true")
        if (rows(root / "a-0"), rows(root / "b-0")) != expected:
            raise Lost(f"fault {at}: records, to a reader")
        with Log(root / "a-0") as log:
            if (log.start_offset, log.end_offset) != (START_A, 30):
                raise Lost(f"fault {at}: the log is {log.start_offset} to {log.end_offset}")
            assert log.recovery.clean or not done, f"fault {at}: not closed, and nobody was told"
        assert handover(root, FailingFs())
        if (rows(root / "a-0"), rows(root / "b-0")) != expected:
            raise Lost(f"fault {at}: records, after a second handover")
        shutil.rmtree(root)
    assert at > 10


def test_every_name_is_durable_before_the_marker_is_written(store: Path) -> None:
    fs = RecordingFs()
    to_broker(store, topic_ids=IDS, fs=fs)
    changes = [operation for operation in fs.operations if operation.kind in ("rename", "unlink", "create", "sync_dir")]
    *before, marker, last = changes[:-1]
    assert (marker.kind, Path(marker.target).name, last.kind) == ("rename", CLEAN_SHUTDOWN, "sync_dir")
    unsynced: set[Path] = set()
    for operation in before[:-1]:  # the marker's own temporary file comes last
        if operation.kind == "sync_dir":
            unsynced.discard(Path(operation.path))
        else:
            unsynced.add(Path(operation.target or operation.path).parent)
    assert unsynced == set()


# --- the rules --------------------------------------------------------------------------------------------------------


def test_a_stores_directories_are_sorted_out() -> None:
    delete = f"x-1.{'a' * 32}-delete"
    names = sort_store(["b-1", "b-0", "lost+found", "remote-log-index-cache", "__cluster_metadata-0", delete])
    assert names == ([("b", 0), ("b", 1)], [delete], ["__cluster_metadata-0", "remote-log-index-cache"], ["lost+found"])


def test_names_that_a_broker_chokes_on() -> None:
    assert len(broker_chokes_on(["x.log", "y.snapshot", "z.deleted"])) == 3
    assert broker_chokes_on([PARTITION_METADATA, LEADER_EPOCHS, KSTORE_STATE, ".lock", "x.checkpoint.deleted"]) == []


@pytest.mark.parametrize("text", ["", "A" * 22, "short", "a" * 23, "a" * 21 + "=", "é" * 22, "a/" * 11])
def test_what_is_no_topic_id_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        parse_topic_id(text)


def test_a_topic_id_is_read_as_it_is_printed() -> None:
    topic_id = uuid.uuid4()
    assert parse_topic_id(format_topic_id(topic_id)) == topic_id


def test_a_given_id_goes_before_one_that_is_found() -> None:
    assert choose_topic_ids(["a"], {"a": ID_B}, {A: ID_A}).ids == {"a": ID_B}
    assert choose_topic_ids(["a"], {}, {A: ID_A}).ids == {"a": ID_A}
    assert choose_topic_ids(["a"], {}, {B: ID_B}).problems


def test_a_state_is_old_only_where_a_broker_closed_the_log_since() -> None:
    assert is_broker_last(state_fits=False, marker=True, recovery_point=5, end_offset=5)
    assert not is_broker_last(state_fits=True, marker=True, recovery_point=5, end_offset=5)
    assert not is_broker_last(state_fits=False, marker=False, recovery_point=5, end_offset=5)
    assert not is_broker_last(state_fits=False, marker=True, recovery_point=5, end_offset=6)
    assert not is_broker_last(state_fits=False, marker=True, recovery_point=None, end_offset=None)


def epochs(*batches: tuple[int, int]) -> EpochTrack:
    track = EpochTrack()
    for epoch, base_offset in batches:
        track.note(2, epoch, base_offset)
    return track


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ([], [(0, 0), (3, 20)]),
        ([(0, 0), (3, 20)], [(0, 0), (3, 20)]),
        ([(0, 0), (2, 15), (3, 18)], [(0, 0), (2, 15), (3, 18)]),  # batches of epoch 2 were compacted away
        ([(0, 0), (3, 20), (5, 40)], [(0, 0), (3, 20), (5, 40)]),  # a leader that has not written yet
        ([(0, 0), (3, 20), (5, 41)], [(0, 0), (3, 20)]),  # beyond the log's end
        ([(0, 0), (3, 30)], [(0, 0), (3, 20)]),
        ([(0, 0), (3, 20), (4, 30)], [(0, 0), (3, 20)]),  # a batch at 35 is of epoch 3
        ([(0, 5), (3, 20)], [(0, 0), (3, 20)]),
        ([(3, 0)], [(0, 0), (3, 20)]),
        ([(3, 20), (0, 0)], [(0, 0), (3, 20)]),
    ],
)
def test_leader_epochs_are_kept_where_the_batches_agree(
    stored: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    track = epochs((0, 0), (0, 10), (3, 20), (3, 35))
    assert track.entries(0, 40, [EpochEntry(*entry) for entry in stored]) == expected


def test_leader_epochs_begin_at_the_logs_start() -> None:
    track = epochs((0, 0), (1, 10), (3, 20))
    assert track.entries(15, 30, []) == [(1, 15), (3, 20)]
    assert track.entries(15, 30, [EpochEntry(1, 15), EpochEntry(3, 20)]) == [(1, 15), (3, 20)]


def test_old_formats_and_batches_without_an_epoch_have_none() -> None:
    track = epochs((2, 0), (-1, 5))
    track.note(1, -1, 10)
    assert track.entries(0, 20, []) == []
    track.note(2, 4, 12)
    assert track.entries(0, 20, []) == [(4, 12)]


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_does_as_text(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = [f"--topic-id={topic}={format_topic_id(topic_id)}" for topic, topic_id in IDS.items()]
    assert main(["handover", str(store), "--to-broker", "--dry-run", *options]) == 0
    assert f"would write {store / CLEAN_SHUTDOWN}" in capfd.readouterr().out
    assert main(["handover", str(store), "--to-broker", "--mode", "0640", *options]) == 0
    out = capfd.readouterr().out
    assert "partition a-0: offsets 7 to 30 (exclusive), topic id " in out
    assert "mode 0640 lets only the owner write" in out
    assert out.endswith("handed over (to-broker)\n")
    assert main(["handover", str(store), "--from-broker"]) == 0
    assert f"remove {store / CLEAN_SHUTDOWN}" in capfd.readouterr().out


def test_losses_that_a_broker_does_not_know_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "store"
    path = lost_in_the_middle(root / "a-0")
    shutil.rmtree(root / "a-0-alive")
    with Log(path) as log:
        log.accept_loss(9, 9)
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {format_topic_id(ID_A)}\n")
    expected = [ForgottenLoss("a-0", 9, 9, True), ForgottenLoss("a-0", 10, 10, False)]
    assert to_broker(root, dry_run=True).losses == expected
    assert main(["handover", str(root), "--to-broker"]) == 0
    out = capfd.readouterr().out
    assert (
        "forgotten a-0: offsets 9 to 9 whose loss was accepted, as kstore.state said: a broker passes over them" in out
    )
    assert "forgotten a-0: offsets 10 to 10 are lost, as kstore.state said: a broker passes over them" in out
    report = from_broker(root)
    assert (report.losses, report.damage) == ([], [])


def test_the_command_says_what_it_does_as_json(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["handover", str(store), "--to-broker", "--format", "json"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert told["ok"] is False
    assert "topic a has no id" in told["refused"][0]
    assert main(["handover", str(store), "--from-broker", "--format", "json", "--dry-run"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["partitions"][0] == {"name": "a-0", "start_offset": 7, "end_offset": 30, "topic_id": ""}
    assert told["dry_run"] is True


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--to-broker", "--topic-id", "a"],
        ["--to-broker", "--topic-id", "a=short"],
        ["--to-broker", "--mode", "0440"],
        ["--to-broker", "--mode", "rw"],
        ["--from-broker", "--force"],
        ["--from-broker", "--mode", "0640"],
    ],
)
def test_bad_usage_has_a_status_of_its_own(store: Path, arguments: list[str]) -> None:
    assert main(["handover", str(store), *arguments]) == 2


def test_a_store_that_is_in_use_is_one_line_on_standard_error(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with DirectoryLock(store):
        assert main(["handover", str(store), "--from-broker"]) == 1
    assert "locked" in capfd.readouterr().err
