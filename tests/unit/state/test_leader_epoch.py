"""Leader epochs: the first offset of each epoch, and what a truncation keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import StorageError
from kstore.files.checkpoint import EpochEntry, read_leader_epochs
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.state.leader_epoch import LeaderEpochCache
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.lives.log_cases import data, killed

NOTHING = (-1, -1)
LEADER_EPOCHS = "leader-epoch-checkpoint"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / LEADER_EPOCHS


def cache(path: Path, *entries: tuple[int, int]) -> LeaderEpochCache:
    made = LeaderEpochCache(SYSTEM_FS, path)
    for epoch, start_offset in entries:
        made.assign(epoch, start_offset)
    return made


def stored(path: Path) -> list[tuple[int, int]]:
    return [(epoch, start_offset) for epoch, start_offset in read_leader_epochs(SYSTEM_FS, path)]


# --- assign -----------------------------------------------------------------------------------------------------------


def test_an_empty_cache_knows_nothing_and_has_no_file(path: Path) -> None:
    epochs = cache(path)
    assert (epochs.entries, epochs.latest_epoch) == ((), None)
    for epoch in (-1, 0, 5):
        assert epochs.end_offset_for(epoch, 10) == NOTHING
    epochs.truncate_from_end(0)
    epochs.truncate_from_start(5)
    epochs.clear()
    assert not path.exists()


def test_epochs_and_offsets_rise_and_are_stored(path: Path) -> None:
    epochs = cache(path, (2, 6), (3, 8), (4, 11))
    assert stored(path) == [tuple(entry) for entry in epochs.entries] == [(2, 6), (3, 8), (4, 11)]
    assert epochs.latest_epoch == 4
    again = LeaderEpochCache(SYSTEM_FS, path, read_leader_epochs(SYSTEM_FS, path))
    assert again.entries == epochs.entries


def test_the_latest_epoch_keeps_the_start_that_it_has(path: Path) -> None:
    epochs = cache(path, (2, 6))
    assert not epochs.assign(2, 7)
    assert not epochs.assign(2, 6)
    assert epochs.assign(2, 5)
    assert epochs.entries == ((2, 5),)


@pytest.mark.parametrize(
    ("new", "left"),
    [
        ((1, 6), [(1, 6)]),
        ((1, 20), [(1, 20)]),
        ((3, 5), [(3, 5)]),
        ((3, 9), [(2, 6), (3, 9)]),
        ((5, 8), [(2, 6), (5, 8)]),
        ((5, 6), [(5, 6)]),
        ((5, 12), [(2, 6), (4, 8), (5, 12)]),
        ((4, 7), [(2, 6), (4, 7)]),
    ],
)
def test_what_a_new_epoch_contradicts_is_removed(new: tuple[int, int], left: list[tuple[int, int]], path: Path) -> None:
    epochs = cache(path, (2, 6), (4, 8))
    assert epochs.assign(*new)
    assert list(epochs.entries) == left == stored(path)


def test_a_file_that_contradicts_itself_is_believed_from_its_end(path: Path) -> None:
    entries = [EpochEntry(0, 0), EpochEntry(5, 10), EpochEntry(3, 12), EpochEntry(4, 11)]
    assert LeaderEpochCache(SYSTEM_FS, path, entries).entries == ((0, 0), (4, 11))


@pytest.mark.parametrize("bad", [(-1, 0), (0, -1)])
def test_negative_numbers_are_refused(bad: tuple[int, int], path: Path) -> None:
    with pytest.raises(ValueError, match="expected both to be 0 or more"):
        cache(path).assign(*bad)


# --- look up ----------------------------------------------------------------------------------------------------------


def test_an_epoch_ends_where_the_next_one_begins(path: Path) -> None:
    epochs = cache(path, (2, 6), (4, 8), (7, 11))
    assert epochs.end_offset_for(2, 20) == (2, 8)
    assert epochs.end_offset_for(4, 20) == (4, 11)


def test_the_latest_epoch_ends_with_the_log(path: Path) -> None:
    epochs = cache(path, (2, 6), (4, 8))
    assert epochs.end_offset_for(4, 20) == (4, 20)
    assert epochs.end_offset_for(4, 8) == (4, 8)


def test_an_epoch_that_wrote_nothing_stands_for_the_one_before(path: Path) -> None:
    epochs = cache(path, (2, 6), (4, 8), (7, 11))
    assert epochs.end_offset_for(3, 20) == (2, 8)
    assert epochs.end_offset_for(6, 20) == (4, 11)


def test_an_epoch_below_all_ends_where_they_begin(path: Path) -> None:
    epochs = cache(path, (2, 6), (4, 8))
    assert epochs.end_offset_for(0, 20) == (0, 6)
    assert epochs.end_offset_for(1, 20) == (1, 6)


def test_of_an_epoch_above_all_nothing_is_known(path: Path) -> None:
    epochs = cache(path, (2, 6))
    assert epochs.end_offset_for(3, 20) == NOTHING
    assert epochs.end_offset_for(-1, 20) == NOTHING


# --- truncate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end_offset", "left"),
    [
        (0, []),
        (6, []),
        (7, [(2, 6)]),
        (8, [(2, 6)]),
        (9, [(2, 6), (3, 8)]),
        (11, [(2, 6), (3, 8)]),
        (12, [(2, 6), (3, 8), (4, 11)]),
        (99, [(2, 6), (3, 8), (4, 11)]),
    ],
)
def test_what_begins_after_the_end_is_forgotten(end_offset: int, left: list[tuple[int, int]], path: Path) -> None:
    epochs = cache(path, (2, 6), (3, 8), (4, 11))
    epochs.truncate_from_end(end_offset)
    assert list(epochs.entries) == left == stored(path)


@pytest.mark.parametrize(
    ("start_offset", "left"),
    [
        (0, [(2, 6), (3, 8), (4, 11)]),
        (6, [(2, 6), (3, 8), (4, 11)]),
        (7, [(2, 7), (3, 8), (4, 11)]),
        (8, [(3, 8), (4, 11)]),
        (9, [(3, 9), (4, 11)]),
        (11, [(4, 11)]),
        (15, [(4, 15)]),
    ],
)
def test_the_epoch_at_the_start_begins_there(start_offset: int, left: list[tuple[int, int]], path: Path) -> None:
    epochs = cache(path, (2, 6), (3, 8), (4, 11))
    epochs.truncate_from_start(start_offset)
    assert list(epochs.entries) == left == stored(path)


def test_a_cleared_cache_is_empty_on_disk_too(path: Path) -> None:
    epochs = cache(path, (2, 6))
    epochs.clear()
    assert (epochs.entries, stored(path), path.read_text()) == ((), [], "0\n0\n")


def test_what_cannot_be_written_has_not_happened(path: Path) -> None:
    fs = FailingFs(SYSTEM_FS, Fault(1, sticky=True))
    epochs = LeaderEpochCache(fs, path, [EpochEntry(1, 0)])
    changes: list[Callable[[], Any]] = [
        lambda: epochs.assign(2, 5),
        epochs.clear,
        lambda: epochs.truncate_from_start(3),
        lambda: epochs.truncate_from_end(0),
    ]
    for change in changes:
        with pytest.raises(StorageError):
            change()
        assert epochs.entries == ((1, 0),)


# --- in a log ---------------------------------------------------------------------------------------------------------


def kept(log: Log, epoch: int, *offsets: int) -> None:
    log.append_batches(data(*offsets, leader_epoch=epoch), assign_offsets=False)


def epochs_of(log: Log) -> list[int]:
    return [record.leader_epoch for record in log.read()]


def test_kept_batches_bring_their_epochs(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append(b"own")
        assert not (log.path / LEADER_EPOCHS).exists()
        kept(log, 3, 1, 2)
        kept(log, 3, 3)
        both = data(4, leader_epoch=5) + data(5, leader_epoch=5) + data(6, leader_epoch=8)
        log.append_batches(both, assign_offsets=False)
        assert stored(log.path / LEADER_EPOCHS) == [(3, 1), (5, 4), (8, 6)]
        log.append(b"own")
        assert epochs_of(log) == [0, 3, 3, 3, 5, 5, 8, 8]
    with Log(log.path) as again:
        again.append(b"own")
        assert epochs_of(again)[-1] == 8


def test_batches_without_an_epoch_say_nothing(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        kept(log, -1, 0)
        assert not (log.path / LEADER_EPOCHS).exists()


def test_truncations_and_deletions_cut_the_epochs(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        for epoch in range(5):
            kept(log, epoch, 2 * epoch, 2 * epoch + 1)
            log.roll()
        file = log.path / LEADER_EPOCHS
        log.truncate_to(8)
        assert stored(file) == [(0, 0), (1, 2), (2, 4), (3, 6)]
        log.append(b"own")
        assert epochs_of(log)[-1] == 3
        log.delete_records(3)
        assert stored(file) == [(1, 3), (2, 4), (3, 6)]
        writer_of(log).truncate_fully_and_start_at(20)
        assert stored(file) == []


@pytest.mark.parametrize("content", [None, b"", b"0\n1\nxyz\n", b"7\n0\n"], ids=["lost", "empty", "line", "version"])
def test_recovery_rebuilds_the_epochs(content: bytes | None, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="sync") as log:
        kept(log, 3, 0, 1)
        log.roll()
        kept(log, 4, 2)
        log.flush()
        kept(log, 6, 3)
        copy = killed(log, tmp_path / "killed")
    if content is None:
        (copy / LEADER_EPOCHS).unlink()
    else:
        (copy / LEADER_EPOCHS).write_bytes(content)
    with Log(copy) as again:
        assert stored(copy / LEADER_EPOCHS) == [(3, 0), (4, 2), (6, 3)]
        again.append(b"own")
        assert epochs_of(again) == [3, 3, 4, 6, 6]


def test_epochs_of_what_was_lost_are_forgotten(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        kept(log, 3, 0, 1)
        kept(log, 4, 2)
        kept(log, 5, 3, 4)
        copy = killed(log, tmp_path / "killed")
    file = copy / f"{0:020d}.log"
    file.write_bytes(file.read_bytes()[:-5])
    with Log(copy) as again:
        again.append(b"own")
        # An epoch that began at the log's end continues there.
        assert stored(copy / LEADER_EPOCHS) == [(3, 0), (4, 2), (5, 3)]
        assert epochs_of(again) == [3, 3, 4, 5]


def test_an_append_that_fails_leaves_epochs_that_hold(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with Log(tmp_path / "log", durability="os", fs=fs) as log:
        kept(log, 1, 0)
        fs.faults = [Fault(1, suffix=".log")]
        with pytest.raises(StorageError):
            log.append_batches(data(1, leader_epoch=2) + data(2, leader_epoch=3), assign_offsets=False)
        log.append(b"own")
        assert log.end_offset == 2
        entries = stored(log.path / LEADER_EPOCHS)
        assert epochs_of(log) == [1, entries[-1][0]]
        assert entries in ([(1, 0)], [(1, 0), (2, 1)])
