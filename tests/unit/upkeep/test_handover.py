"""Handing logs to a broker and back: what is refused, what is written, and that a crash in between loses nothing."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kstore.errors import LockedError, LogNotFoundError, StorageError
from kstore.files.checkpoint import (
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
from kstore.log import Log, writer_of
from kstore.rules.handover import format_topic_id
from kstore.upkeep.handover import HandoverReport, from_broker, to_broker
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.golden_data import golden_root
from tests.support.harness.selection import tries
from tests.support.lives.handover_parts import ID_A, ID_B, IDS, START_A, A, B, flip, refused, rows, tree, two_logs


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return two_logs(tmp_path / "store")


def leave_open(directory: Path, source: Path) -> None:
    """Copies a log as a killed writer leaves it."""
    with Log(source) as log:
        log.append(b"unclosed")
        shutil.copytree(source, directory)


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
    # A broker would continue at the end of the last batch, and assign offset 27 again.
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
    # The log begins at 10; the empty segment at 0 is added here.
    with Log(path) as log:
        writer_of(log).truncate_fully_and_start_at(10)
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
    # New files belong to root.
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
    # Without the marker a broker would now recover, and cut the log at the damage.
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


@pytest.fixture
def brokers(tmp_path: Path) -> Path:
    """A store that a broker closed cleanly."""
    return Path(shutil.copytree(golden_root() / "clean", tmp_path / "brokers", copy_function=shutil.copyfile))


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


# --- crashes in between -----------------------------------------------------------------------------------------------


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

    for at in count(1, tries(1, quick=3)):
        root = tmp_path / f"{at}"
        shutil.copytree(store, root)  # other inodes: kstore.state does not match the copy
        if way == "to":
            for name in ("a-0", "b-0"):
                Log(root / name).close()
        fault = Fault(at=at, sticky=sticky)
        done = handover(root, FailingFs(SYSTEM_FS, fault))
        if fault.seen < at:
            break
        tried("faults", 1)
        if way != "from" and not is_marked_rightly(root):
            raise Wrong(f"fault {at}: an untrue marker")
        if (rows(root / "a-0"), rows(root / "b-0")) != expected:
            raise Lost(f"fault {at}: records, to a reader")
        with Log(root / "a-0") as log:
            if (log.start_offset, log.end_offset) != (START_A, 30):
                raise Lost(f"fault {at}: the log is {log.start_offset} to {log.end_offset}")
            assert log.recovery.clean or not done, f"fault {at}: not closed, and not reported"
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
