"""Verification: each kind of damage to kstore's own files, and a working writer."""

from __future__ import annotations

import errno
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from kstore.errors import NotALogError, StorageError
from kstore.files.checkpoint import write_leader_epochs
from kstore.files.fs import storage_error
from kstore.files.local import SYSTEM_FS
from kstore.files.remote import open_remote
from kstore.log import Log, writer_of
from kstore.state.producer_snapshot import decode_snapshot, encode_snapshot
from kstore.upkeep.stats import log_stats
from kstore.upkeep.verify import Finding, find_logs, verify, verify_log
from kstore.upkeep.verify.changing import is_live
from tests.support.fakes.fake_fs import Operation, WatchedFs
from tests.support.lives.log_cases import data, marker, transaction

Result = TypeVar("Result")

T = 1_700_000_000_000


def filled(path: Path, batches: int = 12, **settings: object) -> Path:
    settings = {"segment_bytes": 1024, "index_interval_bytes": 64, **settings}
    with Log(path, **settings) as log:  # type: ignore[arg-type]
        for number in range(batches):
            log.append_many([b"x" * 40] * 3, timestamps=[T + 10 * number + delta for delta in range(3)])
    return path


def damages(path: Path) -> list[Finding]:
    return verify_log(path).damages


def poke(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_a_sound_log_is_counted_and_nothing_is_said(tmp_path: Path) -> None:
    log = verify_log(filled(tmp_path / "log"))
    assert (log.findings, log.is_sound) == ([], True)
    assert (log.start_offset, log.last_stable_offset, log.end_offset) == (0, 36, 36)
    assert (log.batch_count, log.record_count, log.segment_count) == (12, 36, 3)
    assert log.size == sum(file.stat().st_size for file in (tmp_path / "log").glob("*.log"))


def test_a_log_that_a_killed_writer_left_is_sound(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", durability="os", index_interval_bytes=64)
    log.append_many([b"x"] * 10)
    log.append_many([b"x"] * 10)
    found = verify_log(tmp_path / "log")
    assert found.is_sound
    assert found.end_offset == 20
    log.close()


def test_a_tail_is_damage_unless_a_writer_is_at_work(tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    segment = max(path.glob("*.log"))
    with segment.open("ab") as file:
        file.write(b"\1" * 30)
    (found,) = damages(path)
    assert (found.kind, found.position, found.first) == ("tail", segment.stat().st_size - 30, 36)
    (path / "kstore.state").unlink()
    with Log(path) as log:
        log.append(b"live")
        with max(path.glob("*.log")).open("ab") as file:
            file.write(b"\1" * 30)
        assert [finding.severity for finding in verify_log(path).findings if finding.kind == "tail"] == ["note"]
        writer_of(log).truncate_fully_and_start_at(0)


def test_missing_records_are_found_though_every_batch_is_whole(tmp_path: Path) -> None:
    path = filled(tmp_path / "log", segment_bytes=1 << 20)
    (segment,) = path.glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2 // 209 * 209)
    assert {finding.kind for finding in damages(path)} >= {"state"}
    lost = next(finding for finding in damages(path) if finding.kind == "state")
    assert lost.last == 35


def test_an_index_entry_that_would_mislead_is_found(tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    index = min(path.glob("*.index"))
    delta, position = struct.unpack(">ii", index.read_bytes()[:8])
    poke(index, 0, struct.pack(">ii", delta, position + 1))
    (found,) = damages(path)
    assert (found.kind, found.position) == ("index", 0)
    poke(index, 0, struct.pack(">ii", delta - 1, position))
    assert "no batch ends there" in damages(path)[0].reason
    poke(index, 0, struct.pack(">ii", 0, position))
    assert [finding.kind for finding in damages(path)] == ["index"]


def foreign(path: Path) -> Path:
    """A log of three segments with ten records each, as without kstore's own files."""
    with Log(path, durability="os") as log:
        for _ in range(3):
            log.append_many([b"x"] * 10)
            log.roll()
    for name in (".lock", "kstore.state", *(f"{30:020d}{suffix}" for suffix in (".log", ".index", ".timeindex"))):
        (path / name).unlink()
    return path


@pytest.mark.parametrize("bases", [[0], [0, 10], [10]], ids=str)
def test_a_segment_whose_swap_a_crash_has_interrupted_counts_as_a_read_counts_it(
    bases: list[int], tmp_path: Path
) -> None:
    path = foreign(tmp_path / "log")
    for base in bases:
        for file in path.glob(f"{base:020d}.*"):
            file.rename(f"{file}.swap")
    before = sorted(path.iterdir())
    with Log(path, read_only=True) as log:
        assert [record.offset for record in log] == list(range(30))
    verified, stats = verify_log(path), log_stats(path)
    assert (verified.record_count, verified.start_offset, verified.end_offset) == (30, 0, 30)
    assert (stats.record_count, stats.start_offset, stats.end_offset) == (30, 0, 30)
    assert [note.reason for note in verified.notes] != []
    assert (verified.damages, sorted(path.iterdir())) == ([], before)


def test_a_time_entry_followed_by_earlier_records_is_found(tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    index = min(path.glob("*.timeindex"))
    timestamp, delta = struct.unpack(">qi", index.read_bytes()[:12])
    poke(index, 0, struct.pack(">qi", timestamp - 100, delta))
    (found,) = damages(path)
    assert (found.kind, found.position) == ("timeindex", 0)


def test_a_missing_segment_in_the_middle_shows_only_in_its_offsets(tmp_path: Path) -> None:
    # Compaction leaves gaps between segments too, so a gap is not damage.
    path = filled(tmp_path / "log")
    middle = sorted(path.glob("*.log"))[1]
    for suffix in (".log", ".index", ".timeindex"):
        middle.with_suffix(suffix).unlink()
    assert verify_log(path).record_count < 36


def test_epochs_that_fall_are_found(tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    write_leader_epochs(SYSTEM_FS, path / "leader-epoch-checkpoint", [(3, 0), (2, 10)])  # type: ignore[list-item]
    assert [finding.kind for finding in damages(path)] == ["epochs"]


def test_a_state_without_a_good_record_is_found(tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    (path / "kstore.state").write_bytes(b"\xff" * 4096)
    assert [finding.kind for finding in damages(path)] == ["state"]


def test_foreign_names_are_worth_a_note(tmp_path: Path) -> None:
    path = filled(tmp_path / "log")
    (path / "notes.txt").write_text("mine")
    (path / f"{5:020d}.log.cut-100").write_bytes(b"x")
    (path / f"{7:020d}.index").write_bytes(b"")
    log = verify_log(path)
    assert log.is_sound
    assert [finding.kind for finding in log.notes] == ["name"] * 3


def test_a_directory_of_logs_and_its_checkpoints(tmp_path: Path) -> None:
    filled(tmp_path / "a-0")
    filled(tmp_path / "b-0")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nnonsense\n")
    assert find_logs(tmp_path) == [tmp_path / "a-0", tmp_path / "b-0"]
    store, first, second = verify(tmp_path)
    assert [finding.kind for finding in store.damages] == ["checkpoint"]
    assert first.is_sound
    assert second.is_sound
    with pytest.raises(NotALogError):
        find_logs(tmp_path / "lost+found")


class Changing(WatchedFs):
    """Calls ``before`` with the path of each directory that is about to be listed or looked at."""

    def __init__(self, before: Callable[[str, str], None]) -> None:
        super().__init__()
        self._before = before

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        self._before(operation.kind, operation.path)
        return action()


@pytest.mark.parametrize("kind", ["stat", "list"])
def test_a_log_that_is_deleted_while_its_store_is_listed_is_left_out(kind: str, tmp_path: Path) -> None:
    for name in ("a-0", "b-0", "c-0"):
        filled(tmp_path / name)

    def delete(found: str, path: str) -> None:
        if found == kind and path.endswith("b-0"):
            shutil.rmtree(path, ignore_errors=True)

    assert [log.name for log in find_logs(tmp_path, fs=Changing(delete))] == ["a-0", "c-0"]


def test_a_log_that_is_deleted_before_it_is_verified_is_left_out(tmp_path: Path) -> None:
    for name in ("a-0", "b-0", "c-0"):
        filled(tmp_path / name)
    logs = verify(tmp_path)
    assert Path(next(logs).path).name == "a-0"
    shutil.rmtree(tmp_path / "b-0")
    assert [Path(log.path).name for log in logs] == ["c-0"]


def test_a_directory_beside_the_logs_need_not_be_readable(tmp_path: Path) -> None:
    filled(tmp_path / "a-0")
    (tmp_path / "lost+found").mkdir()
    filled(tmp_path / "b-0")

    def refused(name: str) -> Changing:
        def refuse(kind: str, path: str) -> None:
            if kind == "list" and path.endswith(name):
                raise storage_error(OSError(errno.EACCES, "Permission denied"), path)

        return Changing(refuse)

    assert len(find_logs(tmp_path, fs=refused("lost+found"))) == 2
    with pytest.raises(StorageError, match="Permission denied"):
        find_logs(tmp_path, fs=refused("b-0"))


def test_progress_adds_up_to_the_bytes_of_the_log(tmp_path: Path) -> None:
    steps: list[int] = []
    log = verify_log(filled(tmp_path / "log"), advance=steps.append)
    assert sum(steps) == log.size


def test_a_log_in_a_store_is_not_taken_for_the_one_at_the_same_path_of_this_machine(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    with Log(directory):
        location = open_remote(f"memory://{directory}")
        assert is_live(SYSTEM_FS, directory)
        assert not is_live(location.reading, location.path)


@pytest.mark.parametrize("is_missing", [True, False], ids=["a gap", "no gap"])
def test_a_marker_with_the_next_epoch_may_have_been_compacted(tmp_path: Path, is_missing: bool) -> None:
    with Log(tmp_path / "t-0", durability="os") as log:
        log.append_batches(transaction(7, 0), assign_offsets=False)
        log.append_batches(marker(7, 1, commit=True, epoch=1), assign_offsets=False)
        log.append_batches(data(3 if is_missing else 2), assign_offsets=False)
        log.roll()
        log.append(b"x")
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        (entry,) = decode_snapshot(path.read_bytes())
        assert (entry.producer_epoch, entry.last_offset) == (1, -1)
        path.write_bytes(encode_snapshot([entry._replace(producer_epoch=2)]))
    assert [found.kind for found in verify_log(tmp_path / "t-0").damages] == ([] if is_missing else ["snapshot"] * 2)
