"""Opening a log: what is believed, what is read again, and what happens to files that do not belong.

Damaged tails, cuts and fences are in test_log_recovery.py; transactions and snapshots in test_log_producers.py.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

import pytest

from kstore.engine.directory import make_directory
from kstore.errors import NotALogError, StorageError, SyncFailedError
from kstore.files.checkpoint import write_clean_shutdown, write_offset_checkpoint
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.record.builder import build_batch
from kstore.store import Store
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, SYNCS, Operation, RecordingFs, WatchedFs
from tests.support.harness.evidence import Wrong
from tests.support.harness.selection import tries
from tests.support.lives.log_cases import data, edit, files, killed, offsets, segment_bases
from tests.support.lives.log_helpers import TIME

pytestmark = pytest.mark.usefixtures("unflushed")

INDEXES = (".index", ".timeindex")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")

Result = TypeVar("Result")


def filled(path: Path, *, durability: Durability = "os", count: int = 30) -> Log:
    """An open log of single records with rising times, five in a segment; every batch but the first has an entry."""
    log = Log(path, durability=durability, clock=ManualClock(TIME), segment_bytes=1024, index_interval_bytes=0)
    for number in range(count):
        log.append(b"%d" % number + b"." * 100, timestamp=TIME + number)
    return log


# --- a directory that several processes create ----------------------------------------------------------------------


class QuickerFs(WatchedFs):
    """Another process makes each directory just before this one, and has not synced its name yet."""

    def __init__(self, inner: FileSystem) -> None:
        super().__init__(inner)
        self.made: list[str] = []

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind == "mkdir":
            self.made.append(operation.path)
            SYSTEM_FS.mkdir(operation.path)
        return action()


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=LINUX)])
def test_a_directory_that_another_process_makes_first_is_used_and_its_names_are_synced(
    shared: bool, tmp_path: Path
) -> None:
    recording = RecordingFs()
    fs = QuickerFs(recording)
    with Log(tmp_path / "a" / "b", shared=shared, fs=fs) as log:
        assert log.append(b"x") == 0
    assert [Path(path).name for path in fs.made] == ["a", "b"]
    synced = [operation.path for operation in recording.operations if operation.kind == "sync_dir"]
    assert synced[:3] == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a")]


def test_the_name_of_an_empty_directory_is_synced_before_a_log_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()  # perhaps by a process that has not synced its name yet
    recording = RecordingFs()
    Log(tmp_path / "log", fs=recording).close()
    kinds = [(operation.kind, operation.path) for operation in recording.operations]
    created = next(number for number, (kind, _) in enumerate(kinds) if kind == "create")
    assert ("sync_dir", str(tmp_path)) in kinds[:created]
    recording.operations.clear()
    Log(tmp_path / "log", fs=recording).close()
    assert ("sync_dir", str(tmp_path)) not in [(operation.kind, operation.path) for operation in recording.operations]


@pytest.mark.parametrize(("code", "fails"), [(errno.EACCES, False), (errno.EROFS, False), (errno.EIO, True)])
def test_a_parent_that_cannot_be_synced_matters_where_names_may_be_lost(code: int, fails: bool, tmp_path: Path) -> None:
    class Failing(WatchedFs):
        def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
            if operation.kind == "sync_dir":
                kind = StorageError if code == errno.EACCES else SyncFailedError
                raise kind(code, "no", operation.path)
            return action()

    (tmp_path / "log").mkdir()
    with pytest.raises(SyncFailedError) if fails else nullcontext():
        make_directory(Failing(SYSTEM_FS), tmp_path / "log", mode=0o700)


def test_a_file_that_another_process_makes_first_is_no_directory(tmp_path: Path) -> None:
    class Filing(WatchedFs):
        def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
            if operation.kind == "mkdir":
                Path(operation.path).touch()
            return action()

    with pytest.raises(NotALogError):
        Log(tmp_path / "log", fs=Filing(SYSTEM_FS))


# --- the end of the writer --------------------------------------------------------------------------------------------


def test_a_log_closed_in_order_is_not_scanned(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    with Log(tmp_path / "log") as log:
        assert (log.recovery.clean, log.recovery.bytes_scanned, log.recovery.rebuilt) == (True, 0, [])
        assert offsets(log) == list(range(30))


def test_the_mark_of_an_orderly_close_counts_once(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    with Log(tmp_path / "log") as log:
        log.append(b"x")
        copy = killed(log, tmp_path / "killed")
    with Log(copy) as log:
        assert not log.recovery.clean
        assert log.end_offset == 31


@pytest.mark.parametrize(("durability", "scanned"), [("sync", 1), ("os", 5)])
def test_recovery_reads_what_is_not_known_to_be_on_disk(durability: Durability, scanned: int, tmp_path: Path) -> None:
    with filled(tmp_path / "log", durability=durability, count=22) as log:
        assert len(segment_bases(log.path)) == 5 - (22 % 5 == 0)
        copy = killed(log, tmp_path / "killed")
    with Log(copy, durability=durability) as log:
        assert log.recovery.segments_scanned == scanned
        assert offsets(log) == list(range(22))


def test_recovery_begins_at_the_last_flush(tmp_path: Path) -> None:
    with filled(tmp_path / "log", count=22) as log:
        log.flush()
        log.append(b"x")
        copy = killed(log, tmp_path / "killed")
    for path in sorted(copy.glob("*.log"))[:-1]:
        # This part is not checked: flushed data is believed until it is read.
        edit(path, lambda content: content.__setitem__(70, content[70] ^ 1))
    with Log(copy) as log:
        assert (log.recovery.segments_scanned, log.recovery.corrupt) == (1, [])
        assert log.end_offset == 23
        assert len(log.verify().corrupt) == 4


def test_an_empty_active_segment_is_recovered(tmp_path: Path) -> None:
    with filled(tmp_path / "log", count=7) as log:
        log.roll()
        copy = killed(log, tmp_path / "killed")
    for path in (copy, log.path):
        with Log(path) as again:
            assert segment_bases(path) == [0, 5, 7]
            assert again.append(b"x") == 7
            assert offsets(again) == list(range(8))
            again.check()


def test_a_log_killed_before_its_first_append_is_empty(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        copy = killed(log, tmp_path / "killed")
    with Log(copy) as again:
        assert (again.start_offset, again.end_offset, again.recovery.corrupt) == (0, 0, [])
        assert again.append(b"x") == 0


def test_a_log_that_lost_every_segment_begins_where_it_ended(tmp_path: Path) -> None:
    filled(tmp_path / "log", durability="sync").close()
    for path in (tmp_path / "log").glob("*.log"):
        path.unlink()
    with Log(tmp_path / "log") as log:
        assert (offsets(log, on_corrupt="skip"), log.end_offset) == ([], 30)
        assert sum(gone.last - gone.first + 1 for gone in log.recovery.corrupt) == 30
        assert log.append(b"x") == 30
    assert not list((tmp_path / "log").glob(f"{5:020d}.*"))


def test_a_log_that_ends_below_its_start_goes_on_at_its_start(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        log.delete_records(28)
        copy = killed(log, tmp_path / "killed")
    last = max(copy.glob("*.log"))
    edit(last, lambda content: content.__delitem__(slice(2 * len(content) // 5, None)))
    with Log(copy) as again:
        assert again.start_offset == 28
        assert again.end_offset >= 28
        found = offsets(again, on_corrupt="skip")
        assert found == []
        first = again.append(b"x")
        assert (first >= 28, offsets(again, on_corrupt="skip")) == (True, [first])


# --- a broker's directory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [30, 25, 31, None])
def test_a_broker_s_clean_marker_counts_if_the_log_ends_there(point: int | None, tmp_path: Path) -> None:
    store = tmp_path / "store"
    path = store / "orders-0"
    filled(path).close()
    (path / "kstore.state").unlink()
    (path / ".lock").unlink(missing_ok=True)
    if point is not None:
        points = {TopicPartition("orders", 0): point}
        write_offset_checkpoint(SYSTEM_FS, store / "recovery-point-offset-checkpoint", points)
    write_clean_shutdown(SYSTEM_FS, store / ".kafka_cleanshutdown", 1)
    with Log(path) as log:
        assert log.recovery.clean is (point == 30)
        assert log.recovery.records_scanned == (0 if point == 30 else 30)
        # A recovery point above the end proves a loss.
        assert [(gone.first, gone.last) for gone in log.recovery.corrupt] == ([(30, 30)] if point == 31 else [])
        assert offsets(log, on_corrupt="skip") == list(range(30))


def test_a_broker_s_clean_marker_goes_before_a_log_beside_it_changes(tmp_path: Path) -> None:
    marker, path = tmp_path / "store" / ".kafka_cleanshutdown", tmp_path / "store" / "orders-0"
    filled(path).close()
    write_clean_shutdown(SYSTEM_FS, marker, 1)
    with Log(path) as log:
        assert marker.exists()
    assert marker.exists(), "nothing has changed"
    fs = RecordingFs(SYSTEM_FS)
    with Log(path, fs=fs) as log:
        log.append(b"x")
        assert not marker.exists()
    done = [(operation.kind, operation.path) for operation in fs.operations if operation.kind in CHANGES]
    gone = done.index(("unlink", str(marker)))
    assert done[gone + 1] == ("sync_dir", str(marker.parent))
    assert all("orders-0" not in path or kind == "create" for kind, path in done[:gone]), "before anything else"


# --- indexes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, b"", b"\x00" * 96, b"\x11" * 96, b"\x7f" * 13], ids=repr)
def test_recovery_rebuilds_every_index(content: bytes | None, tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        copy = killed(log, tmp_path / "killed")
    whole = files(log.path, *INDEXES)
    for suffix in INDEXES:
        for path in copy.glob(f"*{suffix}"):
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
    with Log(copy, index_interval_bytes=0) as again:
        assert not again.recovery.clean
        assert len(again.recovery.rebuilt) == len(segment_bases(copy))
        assert [again.offset_for_time(TIME + number) for number in range(30)] == list(range(30))
        again.check()
    assert files(copy, *INDEXES) == whole


@pytest.mark.parametrize("content", [None, b"", b"\x00" * 96, b"\x11" * 96, b"\x7f" * 13], ids=repr)
def test_a_closed_log_with_damaged_indexes_reads_and_goes_on(content: bytes | None, tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    for suffix in INDEXES:
        for path in (tmp_path / "log").glob(f"*{suffix}"):
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
    with Log(tmp_path / "log", durability="os") as log:
        assert log.recovery.clean
        assert all(next(log.read(offset)).offset == offset for offset in range(30))
        assert [log.offset_for_time(TIME + number) for number in range(30)] == list(range(30))
        assert log.append(b"x", timestamp=TIME + 30) == 30
        assert log.offset_for_time(TIME + 30) == 30


def test_indexes_without_a_log_are_removed(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    for base in (3, 900):
        for suffix in (*INDEXES, ".txnindex"):
            (tmp_path / "log" / f"{base:020d}{suffix}").write_bytes(bytes(24))
    with Log(tmp_path / "log") as log:
        assert offsets(log) == list(range(30))
    assert {int(Path(name).stem) for name in files(tmp_path / "log", *INDEXES, ".txnindex")} == {0, 5, 10, 15, 20, 25}


# --- leftovers --------------------------------------------------------------------------------------------------------


def test_what_was_on_its_way_out_is_removed(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    path = tmp_path / "log"
    for suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
        (path / f"{5:020d}{suffix}.deleted").write_bytes(b"old")
        (path / f"{5:020d}{suffix}.cleaned").write_bytes(b"half")
    with Log(path) as log:
        assert offsets(log) == list(range(30))
    assert not [each.name for each in path.iterdir() if each.suffix in (".deleted", ".cleaned")]


def test_a_damaged_swap_of_another_program_is_left_to_that_program(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    swap = tmp_path / "log" / f"{7:020d}.log.swap"
    swap.write_bytes(b"whole")
    with pytest.raises(StorageError, match="left from a compaction that did not end"):
        Log(tmp_path / "log")
    assert swap.read_bytes() == b"whole"


def test_a_damaged_swap_goes_where_what_it_would_replace_is_still_there(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    swap = tmp_path / "log" / f"{5:020d}.log.swap"
    swap.write_bytes(b"whole")
    with Log(tmp_path / "log") as log:
        assert offsets(log) == list(range(30))
    assert not swap.exists()


def test_a_broker_s_own_files_stay_as_they_are(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    own = {
        "partition.metadata": b"version: 0\ntopic_id: bKQR1IP1TQ6Jv4XtLi2kvA\n",
        "leader-epoch-checkpoint": b"0\n2\n3 0\n5 20\n",
    }
    for name, content in own.items():
        (tmp_path / "log" / name).write_bytes(content)
    with Log(tmp_path / "log", durability="os") as log:
        assert log.recovery.ignored == []
        log.append(b"x")
        assert next(log.fetch(30).batches()).leader_epoch == 5
        log.truncate_to(25)
    assert {name: (tmp_path / "log" / name).read_bytes() for name in own} == own


@pytest.mark.parametrize("content", [b"0\n", b"0\n1\nfive 0\n", b"\xff\xfe"], ids=["short", "word", "bytes"])
def test_a_damaged_epoch_checkpoint_is_rebuilt(content: bytes, tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    (tmp_path / "log" / "leader-epoch-checkpoint").write_bytes(content)
    with Log(tmp_path / "log", durability="os") as log:
        assert any("leader-epoch-checkpoint is rebuilt" in note for note in log.recovery.notes)
        log.append(b"x")
        assert next(log.fetch(30).batches()).leader_epoch == 0


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.promise("rebuilt")
def test_a_lost_epoch_checkpoint_is_rebuilt_from_the_log(closed: bool, tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        for epoch in (3, 5):
            log.append_batches(data(log.end_offset, leader_epoch=epoch), assign_offsets=False)
        log.roll()
        copy = killed(log, tmp_path / "killed")
    path = tmp_path / "log" if closed else copy
    checkpoint = path / "leader-epoch-checkpoint"
    content = checkpoint.read_bytes()
    checkpoint.unlink()
    with Log(path) as log:
        assert any("leader-epoch-checkpoint is lost" in note for note in log.recovery.notes)
        assert checkpoint.read_bytes() == content
        log.append(b"next")
        assert next(log.fetch(2).batches()).leader_epoch == 5
    with Log(path) as log:
        assert log.recovery.notes == []


# --- offsets with gaps, and far apart ---------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_compacted_log_is_opened_with_its_gaps(clean: bool, tmp_path: Path) -> None:
    kept = [(0, 4, 9), (15,), (16, 22), (100,), (101, 2000), (2001,)]
    with Log(tmp_path / "log", durability="os") as log:
        for number, wanted in enumerate(kept):
            log.append_batches(data(*wanted), assign_offsets=False)
            if number % 2:
                log.roll()
        # An emptied batch keeps its offsets.
        log.append_batches(
            build_batch([], base_offset=2002, last_offset=2009, producer_id=1, producer_epoch=0, base_sequence=0),
            assign_offsets=False,
        )
        copy = killed(log, tmp_path / "killed")
    with Log(log.path if clean else copy) as again:
        assert (again.recovery.clean, again.recovery.corrupt, again.recovery.cut) == (clean, [], [])
        wanted_all = [offset for wanted in kept for offset in wanted]
        assert offsets(again) == wanted_all
        for start in (1, 10, 17, 50, 101, 102, 2002, 2009):
            assert offsets(again, start) == [offset for offset in wanted_all if offset >= start]
        assert again.append(b"x") == 2010
        again.check()


def test_a_segment_may_begin_below_its_first_batch(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(data(50, 51))
    (path / f"{100:020d}.log").write_bytes(data(170))
    with Log(path) as log:
        assert (log.start_offset, log.end_offset, offsets(log)) == (0, 171, [50, 51, 170])
        assert log.recovery.corrupt == []
        for start in (0, 49, 52, 99, 100, 169):
            assert offsets(log, start) == [offset for offset in (50, 51, 170) if offset >= start]


# --- damage at random -------------------------------------------------------------------------------------------------


@pytest.mark.promise("unclean open")
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_damage_anywhere_loses_no_batch_but_those_it_lies_in(
    clean: bool, seed: int, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    rng = random.Random(seed)
    with filled(tmp_path / "log") as log:
        source = killed(log, tmp_path / "killed")
    values = [b"%d" % number + b"." * 100 for number in range(30)]
    for number in range(tries(40, quick=10)):
        copy = tmp_path / f"{number}"
        if clean:
            shutil.copytree(log.path, copy)
            os.utime(copy)
        else:
            shutil.copytree(source, copy)
        path = rng.choice(sorted(copy.glob("*.log")))
        content = bytearray(path.read_bytes())
        at = rng.randrange(len(content))
        count = rng.choice([1, 1, 8, 64])
        damage = rng.randbytes(len(content[at : at + count]))
        content[at : at + count] = damage
        path.write_bytes(content)
        size = path.stat().st_size // 5
        base = int(path.stem)
        touched = {base + place // size for place in (at, min(at + count, len(content)) - 1)}
        with Log(copy) as again:
            found = [(record.offset, record.value) for record in again.read(on_corrupt="skip")]
            for offset, value in found:
                if value != values[offset]:
                    raise Wrong(f"offset {offset} has {value!r}")
            missing = set(range(30)) - {offset for offset, _ in found}
            assert missing <= touched, f"{missing} of {path.name}, damaged at {at}"
            again.append(b"on")
        tried("flips", 1)


def test_a_log_opened_again_and_again_keeps_all(tmp_path: Path) -> None:
    end = 0
    path = tmp_path / "log"
    for number in range(8):
        with Log(path, durability="os", segment_bytes=1024) as log:
            assert log.end_offset == end
            for _ in range(7):
                log.append(b"x" * 150)
            if number % 3 == 2:
                log.truncate_to(log.end_offset - 4)
            end = log.end_offset
            copy = killed(log, tmp_path / f"{number}")
        if number % 2:
            path = copy
    with Log(path) as log:
        assert offsets(log) == list(range(end))
        log.check()


# --- a new log --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_a_new_log_takes_its_first_record_after_two_syncs_and_no_scan(tmp_path: Path, durability: Durability) -> None:
    fs = RecordingFs()
    with Store(tmp_path / "s", fs=fs, durability=durability, background=False) as store:
        store.create_topic("t")
        fs.operations.clear()
        log = store.log("t")
        assert log.recovery.clean
        log.append(b"x")
        done = [(operation.kind, Path(operation.path).name) for operation in fs.operations]
    written = [("write_and_sync", f"{0:020d}.log")] if durability == "sync" else []
    syncs = [one for one in done if one[0] in SYNCS | {"write_and_sync"}]
    assert syncs == [("fdatasync", "kstore.state"), ("sync_dir", "t-0"), *written]
    assert done.index(("create", f"{0:020d}.index")) < done.index(("sync_dir", "t-0"))
    assert not [name for kind, name in done if kind == "pread" and name.endswith(".log")]


def test_a_log_that_was_killed_before_its_first_record_is_a_new_one(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", durability="os")
    copy = killed(log, tmp_path / "copy")
    log.close()
    with Log(copy, durability="os") as again:
        assert again.recovery.notes == []
        assert again.append(b"x") == 0
