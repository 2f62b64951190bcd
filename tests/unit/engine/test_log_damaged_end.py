"""A last batch that is damaged or has a wrong base offset, before and after a recovery."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import (
    CorruptBatchError,
    DiskFullError,
    StorageError,
)
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import segment_name
from kstore.log import Log
from kstore.state.log_state import LIVE_POSITION
from kstore.types import Durability
from kstore.upkeep.verify import verify_log
from tests.support.fakes.fake_fs import WRITES, FailingFs, Fault
from tests.support.lives.log_cases import FIRST, data, edit, flip, killed, lost_in_the_middle, offsets, tail_lost
from tests.support.lives.loss_parts import corrupt_ranges, openings

# --- before a recovery ------------------------------------------------------------------------------------------------


def flip_base(path: Path, position: int, *, bit: int = 10) -> None:
    """Flips a bit of the base offset of the batch at ``position`` of the first segment; no CRC covers it."""

    def change(data: bytearray) -> None:
        base_offset = int.from_bytes(data[position : position + 8], "big") ^ (1 << bit)
        data[position : position + 8] = base_offset.to_bytes(8, "big")

    edit(path / FIRST, change)


def unclean_with_last(path: Path, change: Callable[[Path, int], None], **settings: Any) -> Path:
    """A killed log of records 0 to 8 and a batch of 9 to 11, changed by ``change``."""
    with Log(path.with_name(path.name + "-alive"), **settings) as log:
        for number in range(9):
            log.append(b"%d" % number)
        position = (log.path / FIRST).stat().st_size
        log.append_many([b"9", b"10", b"11"])
        log.flush()
        killed(log, path)
    change(path, position)
    return path


def rot(path: Path, position: int) -> None:
    flip(path / FIRST, position + 65)


LAST = [
    pytest.param(flip_base, id="far"),
    pytest.param(lambda path, position: flip_base(path, position, bit=1), id="near"),
    pytest.param(lambda path, position: flip_base(path, position, bit=3), id="below"),
    pytest.param(lambda path, position: flip_base(path, position, bit=40), id="beyond the indexes"),
    pytest.param(rot, id="rot"),
]


@pytest.mark.promise("damage below")
@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("change", LAST)
def test_a_last_batch_whose_offsets_cannot_be_right_is_fenced_after_a_kill(
    tmp_path: Path, change: Callable[[Path, int], None], durability: Durability
) -> None:
    path = unclean_with_last(tmp_path / "log", change, durability=durability)
    with Log(path, durability=durability) as log:
        assert [(gone.first, gone.last, gone.is_unconfirmed) for gone in log.recovery.corrupt] == [(9, 11, False)]
        assert (log.end_offset, log.recovery.cut) == (12, [])
        assert log.append(b"12") == 12
        assert offsets(log, on_corrupt="skip") == [*range(9), 12]
        log.check()
    with Log(path, read_only=True) as view:
        with pytest.raises(CorruptBatchError):
            list(view.read(0))
        assert offsets(view, on_corrupt="skip") == [*range(9), 12]


@pytest.mark.promise("damage below")
@pytest.mark.parametrize("change", LAST)
def test_a_reader_raises_at_a_damaged_end_that_was_durable_before_anything_recovers_it(
    tmp_path: Path, change: Callable[[Path, int], None]
) -> None:
    path = unclean_with_last(tmp_path / "log", change)
    with Log(path, read_only=True) as view:
        assert (view.end_offset, view.high_watermark) == (12, 12)
        for _ in range(2):
            with pytest.raises(CorruptBatchError) as caught:
                list(view.read(0))
            assert (caught.value.first_offset, caught.value.last_offset) == (9, 11)
            view.refresh()
        with pytest.raises(CorruptBatchError):
            view.fetch(9)
        with pytest.raises(CorruptBatchError):
            view.to_arrow()
        assert offsets(view, on_corrupt="skip") == list(range(9))
        assert [(each.first, each.last) for each in corrupt_ranges(view)] == [(9, 11)]


@pytest.mark.parametrize("change", LAST)
def test_verify_names_a_damaged_end_that_was_durable(tmp_path: Path, change: Callable[[Path, int], None]) -> None:
    path = unclean_with_last(tmp_path / "log", change)
    found = verify_log(path)
    assert [(each.kind, each.first, each.last) for each in found.damages] == [("tail", 9, 11), ("state", 9, 11)]
    assert found.end_offset == 9


@pytest.mark.parametrize("change", LAST)
def test_a_damaged_end_of_a_log_that_was_closed_is_found_by_every_read(
    tmp_path: Path, change: Callable[[Path, int], None]
) -> None:
    path = tmp_path / "log"
    with Log(path) as log:
        for number in range(9):
            log.append(b"%d" % number)
        position = (path / FIRST).stat().st_size
        log.append_many([b"9", b"10", b"11"])
    status = (path / FIRST).stat()
    change(path, position)
    os.utime(path / FIRST, ns=(status.st_atime_ns, status.st_mtime_ns))
    for log in openings(path):
        assert log.recovery.clean
        with pytest.raises(CorruptBatchError):
            list(log.read(0))
        with pytest.raises(CorruptBatchError):
            list(log.fetch(0).records())
        with pytest.raises(CorruptBatchError):
            list(log.fetch(9).records())
        with pytest.raises(CorruptBatchError):
            log.to_arrow()
        assert offsets(log, on_corrupt="skip") == list(range(9))
    with Log(path) as log:
        assert log.append(b"12") == 12
        killed(log, tmp_path / "killed")
    with Log(tmp_path / "killed") as log:
        assert [(gone.first, gone.last) for gone in log.recovery.corrupt] == [(9, 11)]
        assert offsets(log, on_corrupt="skip") == [*range(9), 12]


def test_a_writer_that_continues_after_a_damaged_end_does_not_hide_it_from_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path) as log:
        for number in range(9):
            log.append(b"%d" % number)
        position = (path / FIRST).stat().st_size
        log.append_many([b"9", b"10", b"11"])
        flip_base(path, position)
        with Log(path, read_only=True) as view:
            reader = view.read(0)
            assert [next(reader).offset for _ in range(9)] == list(range(9))
            log.append(b"12")
            with pytest.raises(CorruptBatchError) as caught:
                next(reader)
            assert (caught.value.first_offset, caught.value.last_offset) == (9, 11)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_gap_that_no_durable_end_contradicts_is_believed(tmp_path: Path, is_killed: bool) -> None:
    path = tmp_path / "log"
    with Log(path, durability="os") as log:
        log.append(b"0")
        log.flush()
        log.append_batches(data(5), assign_offsets=False)
        log.flush()
        log.append_batches(data(40), assign_offsets=False)
        if is_killed:
            path = killed(log, tmp_path / "killed")
    with Log(path, read_only=True) as view:
        assert offsets(view) == [0, 5, 40]
    with Log(path, durability="os") as log:
        assert (log.recovery.corrupt, offsets(log)) == ([], [0, 5, 40])


@pytest.mark.parametrize("offset", [9, 10])
@pytest.mark.parametrize("opening", [tail_lost, lost_in_the_middle], ids=["at the end", "in the middle"])
@pytest.mark.sampled(2)
def test_a_truncation_into_lost_offsets_that_fails_anywhere_leaves_what_was_or_what_was_asked_for(
    tmp_path: Path, offset: int, opening: Callable[[Path], Path]
) -> None:
    path = opening(tmp_path / "log")
    with Log(path) as log:
        end = log.end_offset
    for at in range(1, 100):
        copy = shutil.copytree(path, tmp_path / f"{at}")
        fs = FailingFs(SYSTEM_FS)
        left = tmp_path / f"{at}-left"
        with Log(copy, fs=fs) as log:
            fs.faults.append(Fault(at, sticky=True))
            try:
                log.truncate_to(offset)
            except StorageError:
                killed(log, left)
            fs.faults.clear()
        if not left.exists():
            break
        with Log(left) as log:
            assert log.end_offset in (offset, end)
            log.check()
            assert [(one.first, one.last) for one in corrupt_ranges(log)] == (
                [(9, min(log.end_offset, 11) - 1)] if log.end_offset > 9 else []
            )
    else:
        raise AssertionError("it never succeeds")
    assert at > 3


# --- appends after it -------------------------------------------------------------------------------------------------


def full_for(base_offset: int) -> FailingFs:
    """The disk is full at the first write to the segment at ``base_offset``."""
    return FailingFs(SYSTEM_FS, Fault(1, errno.ENOSPC, kinds=WRITES, suffix=segment_name(base_offset, ".log")))


def test_after_a_failed_append_the_next_one_goes_into_a_new_segment_too(tmp_path: Path) -> None:
    with Log(tail_lost(tmp_path / "log"), fs=full_for(11)) as log:
        with pytest.raises(DiskFullError):
            log.append(b"no space")
        assert log.append(b"11") == 11
        log.check()
        killed(log, tmp_path / "cut")

    def forget(data: bytearray) -> None:
        data[LIVE_POSITION : LIVE_POSITION + 512] = bytes(512)

    # In a power cut: nothing that is stored there is ever synced.
    edit(tmp_path / "cut" / "kstore.state", forget)
    with Log(tmp_path / "cut") as log:
        assert offsets(log, on_corrupt="skip") == [*range(9), 11]


def test_a_failed_append_after_the_deletion_of_all_records_leaves_the_log_usable(tmp_path: Path) -> None:
    with Log(tail_lost(tmp_path / "log"), fs=full_for(11)) as log:
        log.delete_records(log.end_offset)
        log.check()
        with pytest.raises(DiskFullError):
            log.append(b"no space")
        assert log.append(b"11") == 11
        log.check()


# --- the beginning of a log -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("follows", [False, True], ids=["last", "not the last"])
def test_a_batch_behind_lost_bytes_does_not_become_the_first(follows: bool, tmp_path: Path) -> None:
    """A torn write lost all sectors up to one that begins after a batch's base offset, which no CRC covers."""
    with Log(tmp_path / "log", durability="os") as log:
        log.append_many([b"0", b"1"])
        position = (log.path / FIRST).stat().st_size
        log.append_many([b"2", b"3"])
        if follows:
            log.append_many([b"4", b"5"])

    def lose(data: bytearray) -> None:
        data[: position + 8] = bytes(position + 8)

    edit(tmp_path / "log" / FIRST, lose)
    with Log(tmp_path / "log", read_only=True) as log, pytest.raises(CorruptBatchError):
        list(log.read())
    with Log(tmp_path / "log", read_only=True) as log:
        found = [(record.offset, record.value) for record in log.read(on_corrupt="skip")]
    assert found == ([(4, b"4"), (5, b"5")] if follows else [])
    (headers,) = verify_log(tmp_path / "log").damages[:1]
    assert headers.position == 0
