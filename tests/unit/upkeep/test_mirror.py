"""Mirrors: the same bytes at the same offsets, brought up to date, resumed after any failure, and never misled."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from kstore.errors import ConfigError, DivergedError, KstoreError, LockedError, NotALogError, SyncFailedError
from kstore.files.checkpoint import EpochEntry, read_leader_epochs, write_leader_epochs
from kstore.files.fs import sync_error
from kstore.files.local import SYSTEM_FS
from kstore.files.lock import DirectoryLock
from kstore.files.paths import LEADER_EPOCHS
from kstore.files.remote import open_remote
from kstore.log import Log, writer_of
from kstore.record.walk import Damage
from kstore.upkeep.mirror import mirror, size_of
from kstore.upkeep.mirror.compare import checked_chunks, fit
from tests.support.fakes.crash_states import Disk, another_boot, nothing
from tests.support.fakes.fake_fs import CHANGES, FailingFs, Fault, Operation, RecordingFs, WatchedFs
from tests.support.harness.evidence import Lost, Untyped, Wrong, shuffled
from tests.support.harness.golden_data import golden_partitions, golden_root
from tests.support.lives.mirror_parts import SEGMENT_BYTES, Tried, fill, run, segment_files, truncate, value, values

Result = TypeVar("Result")


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


# --- local to local ---------------------------------------------------------------------------------------------------


def test_a_copy_has_the_same_bytes_and_reads_equal(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "copy" / "a-0"
    fill(source, 0, 100)
    result = run(source, target)
    assert result.ok
    assert result.segments_copied == len(list(source.glob("*.log")))
    assert (result.start_offset, result.end_offset) == (0, 100)
    assert segment_files(target) == segment_files(source)
    assert values(target) == [value(number) for number in range(100)]
    with Log(target) as log:
        assert (log.start_offset, log.end_offset) == (0, 100)
        assert not log.recovery.corrupt
        assert not log.recovery.cut
        assert log.recovery.segments_scanned == 1
        log.check()


def test_nothing_is_copied_twice(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 100)
    run(source, target)
    fs = RecordingFs()
    result = run(source, target, fs=fs)
    assert (result.segments_copied, result.segments_extended, result.bytes_copied) == (0, 0, 0)
    assert set(fs.kinds()) <= {"sync_dir"}


def test_a_copy_follows_appends_and_rolls(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    end = 0
    for step in (1, 3, 40, 1, 17, 60, 2):
        fill(source, end, end + step)
        end += step
        before = {path.name: path.stat().st_ino for path in target.glob("*.log")} if target.exists() else {}
        result = run(source, target)
        assert result.end_offset == end
        assert segment_files(target) == segment_files(source)
        assert values(target) == [value(number) for number in range(end)]
        # Existing files grew in place, or are untouched.
        assert {path.name: path.stat().st_ino for path in target.glob("*.log")}.items() >= before.items()


def test_a_copy_that_was_opened_and_closed_is_brought_up_to_date(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 30)
    for end in (50, 51, 90):
        run(source, target)
        assert len(values(target, read_only=False)) > 0
        with Log(source, read_only=True) as log:
            start = log.end_offset
        fill(source, start, end)
        run(source, target)
        assert values(target, read_only=False) == [value(number) for number in range(end)]


@pytest.mark.long
def test_a_live_writer_is_mirrored_up_to_its_high_watermark(tmp_path: Path, tried: Tried) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    done = threading.Event()
    with Log(source, segment_bytes=20_000, durability="os") as log:

        def write() -> None:
            number = 0
            while not done.is_set() and number < 20_000:
                log.append(value(number))
                number += 1

        writer = threading.Thread(target=write)
        log.append(value(0))
        log.truncate_to(0)
        writer.start()
        end = 0
        try:
            for _ in range(20):
                result = run(source, target)
                if result.end_offset < end:
                    raise Lost(f"the copy ended at {end}, now at {result.end_offset}")
                end = result.end_offset
                if values(target) != [value(number) for number in range(end)]:
                    raise Wrong(f"the copy up to {end} reads differently")
                tried("reads", 1)
        finally:
            done.set()
            writer.join()
    run(source, target)
    assert values(target, read_only=False) == values(source)
    assert {n: d for n, d in segment_files(target).items() if n.endswith(".log")} == {
        name: data for name, data in segment_files(source).items() if name.endswith(".log")
    }


def test_readers_of_the_copy_know_the_aborted_transactions(tmp_path: Path) -> None:
    for partition in golden_partitions("clean"):
        source = golden_root() / "clean" / partition
        if not any(source.glob("*.txnindex")):
            continue
        run(source, tmp_path / partition)
        with Log(source, read_only=True) as one, Log(tmp_path / partition, read_only=True) as other:
            assert list(other.read(isolation_level="read_committed")) == list(
                one.read(other.start_offset, isolation_level="read_committed")
            )


@pytest.mark.parametrize("tree", ["clean", "crashed", "recovered", "old", "damaged"])
@pytest.mark.sampled(1, keep=("damaged",))
def test_a_broker_log_is_mirrored_and_reads_equal(tree: str, tmp_path: Path, tried: Tried) -> None:
    copies = tmp_path / tree
    results = list(mirror(golden_root() / tree, copies))
    assert [result.name for result in results] == golden_partitions(tree)
    for result in results:
        assert result.error is None
        with (
            Log(result.source, read_only=True) as one,
            Log(result.target, read_only=True) as other,
            Log(shutil.copytree(result.target, tmp_path / "opened" / result.name)) as opened,
        ):
            expected = list(one.read(on_corrupt="skip"))
            assert list(other.read(on_corrupt="skip")) == expected
            assert list(opened.read(on_corrupt="skip")) == expected
            assert one.start_offset == other.start_offset == opened.start_offset
            assert one.high_watermark == other.high_watermark
        tried("reads", 2)
        names = {name for name in segment_files(Path(result.target)) if name.endswith((".log", ".snapshot"))}
        for name in names:
            copied = (Path(result.target) / name).read_bytes()
            assert (Path(result.source) / name).read_bytes()[: len(copied)] == copied
        for name in ("leader-epoch-checkpoint", "partition.metadata"):
            if (Path(result.source) / name).exists():
                assert (Path(result.target) / name).read_bytes() == (Path(result.source) / name).read_bytes()
    if tree == "damaged":
        assert any(result.damage for result in results)


class GrowingEpochs(WatchedFs):
    """Whenever the checkpoint of epochs is opened, its writer has just added one."""

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind == "open" and operation.path.endswith(LEADER_EPOCHS):
            epochs = read_leader_epochs(SYSTEM_FS, operation.path)
            write_leader_epochs(SYSTEM_FS, operation.path, [*epochs, EpochEntry(len(epochs), 10 * len(epochs))])
        return action()


def test_a_checkpoint_that_is_replaced_after_it_was_listed_is_copied_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 30)
    write_leader_epochs(SYSTEM_FS, source / LEADER_EPOCHS, [EpochEntry(0, 0)])
    run(source, target, fs=GrowingEpochs())
    assert read_leader_epochs(SYSTEM_FS, target / LEADER_EPOCHS) == [EpochEntry(0, 0), EpochEntry(1, 10)]
    run(source, target)
    assert run(source, target).bytes_copied == 0


# --- start, deletion --------------------------------------------------------------------------------------------------


def test_the_start_inside_a_segment_comes_along(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 100)
    with Log(source) as log:
        log.delete_records(33)
    run(source, target)
    assert values(target) == [value(number) for number in range(33, 100)]
    assert values(target, read_only=False) == [value(number) for number in range(33, 100)]


def test_what_retention_removes_stays_unless_it_is_to_be_deleted(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 100)
    run(source, target)
    with Log(source) as log:
        log.delete_records(50)
    fill(source, 100, 120)
    result = run(source, target)
    assert (result.start_offset, result.segments_deleted) == (0, 0)
    assert values(target, read_only=False) == [value(number) for number in range(120)]
    dry = run(source, target, delete=True, dry_run=True)
    assert dry.segments_deleted > 0
    result = run(source, target, delete=True)
    assert result.segments_deleted == dry.segments_deleted
    assert values(target) == [value(number) for number in range(50, 120)]
    assert {path.name for path in target.glob("*.log")} == {path.name for path in source.glob("*.log")}
    assert values(target, read_only=False) == [value(number) for number in range(50, 120)]


def test_retention_past_the_copy_leaves_a_gap_that_reads_pass_over(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 40)
    run(source, target)
    fill(source, 40, 100)
    with Log(source) as log:
        log.delete_records(80)
    run(source, target)
    found = values(target, read_only=False)
    assert found[:40] == [value(number) for number in range(40)]
    assert found[-20:] == [value(number) for number in range(80, 100)]


# --- divergence -------------------------------------------------------------------------------------------------------


def replace(path: Path) -> None:
    shutil.rmtree(path)
    with Log(path, segment_bytes=SEGMENT_BYTES) as log:
        for number in range(200):
            log.append(b"another" * 10 + b"%d" % number)


def rewrite_end(path: Path) -> None:
    truncate(path)
    with Log(path, segment_bytes=SEGMENT_BYTES) as log:
        for number in range(60, 140):
            log.append(b"other" * 18 + b"%d" % number)


@pytest.mark.parametrize("change", [truncate, replace, rewrite_end])
def test_a_source_that_does_not_continue_its_copy_is_refused(change: Callable[[Path], None], tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 100)
    run(source, target)
    change(source)
    before = segment_files(target)
    with pytest.raises(DivergedError):
        run(source, target)
    assert segment_files(target) == before
    assert run(source, target, force=True, dry_run=True).segments_deleted > 0
    assert segment_files(target) == before
    run(source, target, force=True)
    assert segment_files(target) == segment_files(source)
    assert values(target, read_only=False) == values(source)


def test_a_source_that_begins_anew_within_the_last_segment_of_its_copy_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 100)
    run(source, target)
    with Log(source) as log:
        writer_of(log).truncate_fully_and_start_at(99)
        log.append(b"new")
    with pytest.raises(DivergedError, match="ends at offset 100, but the source begins at offset 99"):
        run(source, target)
    run(source, target, force=True)
    *_, last = values(target, read_only=False)
    assert last == b"new"


def test_a_copy_that_was_written_to_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 100)
    run(source, target)
    fill(target, 100, 101)
    with pytest.raises(DivergedError):
        run(source, target)
    with Log(source, segment_bytes=SEGMENT_BYTES) as log:
        log.append(b"x" * len(value(0)))
    with pytest.raises(DivergedError):
        run(source, target)
    run(source, target, force=True)
    assert values(target) == values(source)


def test_a_locked_target_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "a-0"
    fill(source, 0, 10)
    with Log(tmp_path / "b-0"), pytest.raises(LockedError):
        run(source, tmp_path / "b-0")
    (tmp_path / "store").mkdir()
    with DirectoryLock(tmp_path / "store"), pytest.raises(LockedError):
        run(source, tmp_path / "store" / "b-0")


def test_a_target_with_other_things_in_it_is_left_untouched(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 0, 10)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(NotALogError):
        run(tmp_path / "a-0", tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["letter.txt"]


def test_a_log_is_not_mirrored_onto_itself(tmp_path: Path) -> None:
    fill(tmp_path / "a-0", 0, 10)
    (tmp_path / "link").symlink_to(tmp_path / "a-0")
    for target in (tmp_path / "a-0", f"file://{tmp_path}/a-0", tmp_path / "link"):
        with pytest.raises(ConfigError):
            run(tmp_path / "a-0", target)


def test_a_source_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KstoreError):
        run(tmp_path / "missing", tmp_path / "b-0")
    with pytest.raises(NotALogError):
        run(tmp_path, tmp_path / "b-0")
    assert not (tmp_path / "b-0").exists()


def test_one_log_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    for name in ("a-0", "b-0", "c-0"):
        fill(tmp_path / "data" / name, 0, 10)
    fill(tmp_path / "copy" / "b-0", 0, 20)
    results = list(mirror(tmp_path / "data", tmp_path / "copy"))
    assert [(result.name, type(result.error)) for result in results] == [
        ("a-0", type(None)),
        ("b-0", DivergedError),
        ("c-0", type(None)),
    ]
    assert len(values(tmp_path / "copy" / "c-0")) == 10


# --- damage -----------------------------------------------------------------------------------------------------------


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_damage_is_copied_as_it_is_and_reported(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 100)
    log = sorted(source.glob("*.log"))[2]
    base = int(log.stem)
    flip(log, 200)
    result = run(source, target)
    assert [(lost.first, lost.path) for lost in result.damage] == [(base + 1, str(log))]
    assert not result.ok
    assert segment_files(target) == segment_files(source)
    with Log(target) as copy:
        found = list(copy.read_values(on_corrupt="skip"))
    assert found == [value(number) for number in range(100) if number != base + 1]
    assert run(source, target).ok  # existing files are not read again


def test_chunks_are_all_the_bytes_whatever_is_damaged(tmp_path: Path, seed: int, tried: Tried) -> None:
    fill(tmp_path / "a-0", 0, 19)
    whole = sorted((tmp_path / "a-0").glob("*.log"))[0].read_bytes()
    path = tmp_path / "x"
    local = open_remote(tmp_path).fs
    for position in shuffled(range(len(whole)), seed, 150):
        path.write_bytes(whole)
        flip(path, position)
        damaged = path.read_bytes()
        found: list[Damage] = []
        data = b"".join(checked_chunks(local.open(path), 0, len(whole), next_offset=0, found=found.append))
        if data != damaged:
            raise Wrong(f"other bytes with byte {position} flipped")
        tried("flips", 1)


def test_a_torn_copy_continues_after_its_last_whole_batch(tmp_path: Path, seed: int, tried: Tried) -> None:
    fill(tmp_path / "a-0", 0, 10)
    source = sorted((tmp_path / "a-0").glob("*.log"))[0]
    data = source.read_bytes()
    path = tmp_path / "x"
    local = open_remote(tmp_path).fs
    for size in shuffled(range(len(data)), seed, 100):
        for tail in (b"", bytes(50), b"\xff" * 70):
            path.write_bytes(data[:size] + tail)
            found = fit(local.open(source), len(data), local.open(path), size + len(tail), 0)
            assert found.kind == "behind"
            assert found.position <= size
            assert size - found.position < 200
            tried("truncations", 1)


# --- resuming ---------------------------------------------------------------------------------------------------------


def prepare(tmp_path: Path) -> Path:
    """A source, and an earlier copy ``before``: since then it has rolled, and its active segment has grown."""
    source = tmp_path / "a-0"
    fill(source, 0, 25)
    run(source, tmp_path / "before")
    fill(source, 25, 70)
    return source


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("written", [0, 40])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.promise("whole or absent")
@pytest.mark.sampled(1)
def test_a_mirror_that_fails_anywhere_goes_on(
    started: bool, written: int, opened: bool, tmp_path: Path, tried: Tried
) -> None:
    source = prepare(tmp_path)
    expected = [value(number) for number in range(70)]
    at = 0
    while True:
        at += 1
        target = tmp_path / f"copy-{at}"
        if started:
            shutil.copytree(tmp_path / "before", target)
        fs = FailingFs(RecordingFs(), Fault(at, errno=errno.EIO, kinds=CHANGES, written=written, sticky=True))
        (result,) = mirror(source, target, fs=fs)
        if not fs.failures:
            assert result.error is None
            break
        if not isinstance(result.error, KstoreError):
            raise Untyped(f"{result.error!r} at operation {at}")
        tried("faults", 1)
        if target.exists():
            _check_part(target, expected, opened, at)
        result = run(source, target)
        if values(target) != expected:
            raise Wrong(f"after a failure of operation {at} the copy reads differently")
        if segment_files(target) != segment_files(source):
            raise Wrong(f"after a failure of operation {at} the copy has other bytes")
        assert not list(target.glob("*.mirror"))
        assert run(source, target).bytes_copied == 0
        shutil.rmtree(target)
    assert at > 20


def _check_part(target: Path, expected: list[bytes], opened: bool, at: int) -> None:
    """An interrupted run leaves a prefix, even for a process that opens it."""
    try:
        found = values(target, read_only=not opened)
    except (FileNotFoundError, NotADirectoryError):
        return  # not a log yet
    if found != expected[: len(found)]:
        raise Wrong(f"after a failure of operation {at} the copied part is not a prefix")


def test_a_power_cut_while_a_segment_grows_leaves_holes_that_are_filled(tmp_path: Path) -> None:
    source, target = prepare(tmp_path), tmp_path / "before"
    grown = sorted(target.glob("*.log"))[-1]
    size = grown.stat().st_size
    whole = (source / grown.name).read_bytes()
    # The size and the last page reached the disk; the pages in the middle did not.
    grown.write_bytes(whole[:size] + bytes(len(whole) - size - 300) + whole[-300:])
    run(source, target)
    assert segment_files(target) == segment_files(source)


def test_what_a_killed_mirror_left_in_memory_is_on_disk_before_the_copy_promises_it(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 50)
    run(source, target)
    fill(source, 50, 53)
    disk, recording = Disk(target), RecordingFs()
    killed = FailingFs(recording, Fault(1, kinds=frozenset({"fdatasync"}), suffix=".log", raising=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(source, target, fs=killed)
    assert run(source, target, fs=recording).end_offset == 53
    for operation in recording.operations:
        disk.apply(operation)
    disk.write_to(tmp_path / "after", nothing)
    with another_boot(tmp_path):
        assert values(tmp_path / "after", read_only=False) == [value(number) for number in range(53)]


class LostPages(WatchedFs):
    """The first sync of a ``.log`` fails, and what it should have saved is only in memory from then on: once that is
    dropped, the file has the bytes that it had ``before``."""

    def __init__(self, before: bytes) -> None:
        super().__init__()
        self._before = before
        self._failed = ""

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind == "fdatasync" and operation.path.endswith(".log") and not self._failed:
            self._failed = operation.path
            raise sync_error(OSError(errno.EIO, "lost"), operation.path)
        if operation.kind == "advise" and operation.path == self._failed:
            Path(operation.path).write_bytes(self._before)
        return action()


def test_what_a_failed_sync_has_lost_is_copied_again(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 50)
    run(source, target)
    active = max(target.glob("*.log"))
    fs = LostPages(active.read_bytes())
    fill(source, 50, 53)
    with pytest.raises(SyncFailedError):
        run(source, target, fs=fs)
    assert active.read_bytes() == (source / active.name).read_bytes()
    assert run(source, target, fs=fs).segments_extended == 1
    assert active.read_bytes() == (source / active.name).read_bytes()


def test_a_whole_batch_that_the_source_does_not_have_is_never_cut(tmp_path: Path) -> None:
    source, target = prepare(tmp_path), tmp_path / "before"
    grown = sorted(target.glob("*.log"))[-1]
    size = grown.stat().st_size
    fill(tmp_path / "other", 0, 100)
    batch = (tmp_path / "other" / sorted(target.glob("*.log"))[-1].name).read_bytes()[:size]
    grown.write_bytes(grown.read_bytes() + bytes(20) + batch)
    with pytest.raises(DivergedError):
        run(source, target)


# --- what it says -----------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "a-0", tmp_path / "b-0"
    fill(source, 0, 60)
    dry = run(source, target, dry_run=True)
    assert not target.exists()
    wet = run(source, target)
    assert (dry.segments_copied, dry.bytes_copied, dry.end_offset) == (
        wet.segments_copied,
        wet.bytes_copied,
        wet.end_offset,
    )
    fill(source, 60, 90)
    before = segment_files(target)
    dry = run(source, target, dry_run=True)
    assert segment_files(target) == before
    wet = run(source, target)
    assert (dry.segments_copied, dry.segments_extended, dry.bytes_copied) == (
        wet.segments_copied,
        wet.segments_extended,
        wet.bytes_copied,
    )


def test_progress_comes_to_the_size_of_the_source(tmp_path: Path) -> None:
    for name in ("a-0", "b-0"):
        fill(tmp_path / "data" / name, 0, 40)
    for _ in range(2):
        steps: list[int] = []
        list(mirror(tmp_path / "data", tmp_path / "copy", advance=steps.append))
        assert sum(steps) == size_of(tmp_path / "data")
