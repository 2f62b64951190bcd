"""Acknowledged records that the disk lost, and continuing after a loss: what reads, verify and the log say."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.cli.main import main
from kstore.errors import (
    CorruptBatchError,
    InvalidOffsetError,
    LossLimitError,
    NotLostError,
    ReadOnlyError,
    StorageError,
)
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.state.log_state import ACCEPTED_MAX, LOST_MAX, StateFile
from kstore.upkeep.stats import log_stats
from kstore.upkeep.verify import verify_log
from tests.support.fakes.fake_fs import SYNCS, WRITES, FailingFs, Fault
from tests.support.lives.log_cases import FIRST, fenced, flip, killed, lost_in_the_middle, offsets, state_of, tail_lost
from tests.support.lives.loss_parts import corrupt_ranges, openings

# --- what is lost -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("damage below")
def test_a_lost_end_is_reported_by_every_read_before_and_after_the_next_append(tmp_path: Path) -> None:
    path = tail_lost(tmp_path / "log")
    with Log(path) as log:
        assert [(gone.first, gone.last) for gone in log.recovery.corrupt] == [(9, 10)]
        for end in (11, 12):
            with Log(path, read_only=True) as view:
                for reader in (log, view):
                    assert (reader.end_offset, reader.high_watermark) == (end, end)
                    with pytest.raises(CorruptBatchError, match="the disk has lost them") as caught:
                        list(reader.read(0))
                    assert (caught.value.first_offset, caught.value.last_offset) == (9, 10)
                    with pytest.raises(CorruptBatchError):
                        list(reader.read(10))
                    with pytest.raises(CorruptBatchError):
                        reader.fetch(9)
                    assert offsets(reader, on_corrupt="skip") == [*range(9), *range(11, end)]
                    assert [(each.first, each.last) for each in corrupt_ranges(reader)] == [(9, 10)]
                    assert offsets(reader, 0, stop=9) == list(range(9))
                    with pytest.raises(CorruptBatchError):
                        reader.to_arrow()
                    assert reader.to_arrow(on_corrupt="skip")["offset"].to_pylist() == [*range(9), *range(11, end)]
            if end == 11:
                assert log.append(b"11") == 11
        log.check()


def test_a_loss_is_remembered_after_a_clean_close(tmp_path: Path) -> None:
    path = lost_in_the_middle(tmp_path / "log")
    assert state_of(path).lost == ((9, 10),)
    for log in openings(path):
        assert log.recovery.clean
        with pytest.raises(CorruptBatchError):
            list(log.read(8))
        assert [(gone.first, gone.last) for gone in log.verify().corrupt] == [(9, 10)]
        assert log.metrics()["lost_offsets"] == 2
    (damage,) = verify_log(path).damages
    assert (damage.kind, damage.first, damage.last) == ("lost", 9, 10)
    stats = log_stats(path)
    assert (stats.lost_count, stats.fenced_count, stats.accepted_count, stats.is_sound) == (2, 0, 0, False)


def test_a_log_that_is_opened_again_before_the_next_append_still_ends_after_its_loss(tmp_path: Path) -> None:
    path = tail_lost(tmp_path / "log")
    for _ in range(3):
        with Log(path) as log:
            assert log.end_offset == 11
            assert [(gone.first, gone.last) for gone in log.recovery.corrupt] == [(9, 10)]
    assert state_of(path).lost == ((9, 10),)
    with Log(path) as log:
        assert log.append(b"11") == 11


@pytest.mark.promise("damage below")
def test_a_spoilt_end_is_reported_by_readers_before_and_after_the_next_append(tmp_path: Path) -> None:
    with Log(tmp_path / "alive") as log:
        for number in range(11):
            log.append(b"%d" % number)
        path = killed(log, tmp_path / "log")
    flip(path / FIRST, (path / FIRST).stat().st_size - 1)
    with Log(path) as log:
        assert [(gone.first, gone.last) for gone in log.recovery.corrupt] == [(10, 10)]
        for end in (11, 12):
            with Log(path, read_only=True) as view:
                for reader in (log, view):
                    assert reader.end_offset == end
                    with pytest.raises(CorruptBatchError) as caught:
                        list(reader.read(0))
                    assert (caught.value.first_offset, caught.value.last_offset) == (10, 10)
                    assert offsets(reader, on_corrupt="skip") == [*range(10), *range(11, end)]
            (damage,) = verify_log(path).damages
            assert (damage.first, damage.last) == (10, 10)
            if end == 11:
                assert log.append(b"11") == 11
        log.accept_loss(10, 10)
        assert offsets(log) == [*range(10), 11]


def restarted(path: Path, **fields: Any) -> None:
    """The machine has restarted since the last writer."""
    file = StateFile.open(SYSTEM_FS, path / "kstore.state", mode=0o600)
    assert file.current is not None
    file.store(file.current._replace(boot_id=b"an earlier boot.", **fields))
    file.close()


def test_what_an_unsynced_log_may_lose_is_no_loss(tmp_path: Path) -> None:
    path = tail_lost(tmp_path / "log", durability="os")
    restarted(path)
    with Log(path, durability="os") as log:
        assert (log.end_offset, offsets(log), log.recovery.corrupt) == (9, list(range(9)), [])
    assert state_of(path).lost == ()


def test_what_an_unsynced_log_had_flushed_is_a_loss_when_it_is_gone(tmp_path: Path) -> None:
    path = tail_lost(tmp_path / "log", durability="os")
    restarted(path, recovery_point=10, durable_end=10)
    with Log(path, durability="os") as log:
        assert log.append(b"next") == 10
        assert offsets(log, on_corrupt="skip") == [*range(9), 10]
        with pytest.raises(CorruptBatchError):
            list(log.read(9))
    assert state_of(path).lost == ((9, 9),)


def test_more_losses_than_are_kept_are_merged_and_hide_no_record(tmp_path: Path) -> None:
    path = tmp_path / "log"
    Log(path).close()
    expected: list[int] = []
    lost: list[int] = []
    for turn in range(LOST_MAX + 4):
        with Log(path) as log:
            first = log.append(b"kept")
            segment = sorted(path.glob("*.log"))[-1]
            size = segment.stat().st_size
            assert log.append(b"lost") == first + 1
            copy = tmp_path / f"copy-{turn}"
            shutil.copytree(path, copy)
        os.truncate(copy / segment.name, size)
        path = copy
        expected.append(first)
        lost.append(first + 1)
    with Log(path) as log:
        assert len(state_of(path).lost) == LOST_MAX
        assert offsets(log, on_corrupt="skip") == expected
        told = corrupt_ranges(log)
        assert [offset for each in told for offset in range(each.first, each.last + 1)] == lost
        assert [(each.first, each.last) for each in told] == [(each.first, each.last) for each in log.verify().corrupt]
        assert log.fetch(0, 1 << 20).fetch_offset == 0


def test_a_merged_range_is_no_reason_to_end_later(tmp_path: Path) -> None:
    path = tail_lost(tmp_path / "log", durability="os")
    # The losses at 3 to 4 and at 20 to 30, merged; and what was not flushed is gone.
    restarted(path, lost=((3, 30),), durable_end=5)
    with Log(path, durability="os") as log:
        assert (log.end_offset, offsets(log)) == (9, list(range(9)))
    assert state_of(path).lost == ((3, 8),)


# --- what may never have been acknowledged ----------------------------------------------------------------------------


def torn_group(path: Path) -> Path:
    """Records 0 to 4, and batches of four from 5, 9 and 13 on, written at once; the power failed within that write.

    A sector of the first of these batches is missing.
    """
    with Log(path.with_name(path.name + "-alive")) as log:
        for number in range(5):
            log.append(b"%d" % number)
        size = (log.path / FIRST).stat().st_size
        shutil.copytree(log.path, path)
        buffer = b"".join(build_batch([Record(at, 0, value=b"x" * 300) for at in range(4)]) for _ in range(3))
        log.append_batches(buffer)
        data = bytearray((log.path / FIRST).read_bytes())
    sector = (size // 512 + 1) * 512
    data[sector : sector + 512] = bytes(512)
    (path / FIRST).write_bytes(data)
    restarted(path)
    return path


@pytest.mark.promise("damage above")
def test_a_torn_write_of_several_batches_may_never_have_been_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = torn_group(tmp_path / "log")
    assert main(["recover", "--dry-run", str(path)]) == 1
    out = capsys.readouterr().out
    assert "may never have been acknowledged" in out
    assert "--accept-loss 5-8" in out
    with Log(path) as log:
        assert [(gone.first, gone.last, gone.is_unconfirmed) for gone in log.recovery.corrupt] == [(5, 8, True)]
        assert "4 of these offsets may never have been acknowledged" in log.recovery.summary()
        assert "Log.accept_loss" in log.recovery.summary()
        assert log.append(b"on") == 17
    for log in openings(path):
        with pytest.raises(
            CorruptBatchError, match=r"may never have been acknowledged; Log.accept_loss\(5, 8\)"
        ) as caught:
            list(log.read())
        assert caught.value.is_unconfirmed
        with pytest.raises(CorruptBatchError) as caught:
            log.fetch(6)
        assert caught.value.is_unconfirmed
        assert [each.is_unconfirmed for each in log.verify().corrupt] == [True]
        assert [each.is_unconfirmed for each in corrupt_ranges(log)] == [True]
    (damage,) = verify_log(path).damages
    assert "may never have been acknowledged" in damage.reason
    with Log(path) as log:
        log.accept_loss(5, 8)
        assert offsets(log) == [*range(5), *range(9, 18)]
        log.truncate_to(5)
        assert state_of(path).unconfirmed == ()


def test_damage_below_a_durable_end_was_acknowledged(tmp_path: Path) -> None:
    path = torn_group(tmp_path / "log")
    restarted(path, durable_end=9)
    with Log(path) as log:
        assert [(gone.first, gone.last, gone.is_unconfirmed) for gone in log.recovery.corrupt] == [(5, 8, False)]
        with pytest.raises(CorruptBatchError) as caught:
            list(log.read())
        assert not caught.value.is_unconfirmed
        assert "acknowledged" not in str(caught.value)
    assert state_of(path).unconfirmed == ()


def test_damage_that_reaches_across_a_durable_end_is_told_apart_there(tmp_path: Path) -> None:
    path = torn_group(tmp_path / "log")
    restarted(path, durable_end=7)
    with Log(path) as log:
        told = [(5, 6, False), (7, 8, True)]
        assert [(gone.first, gone.last, gone.is_unconfirmed) for gone in log.recovery.corrupt] == told
        assert "2 of these offsets may never have been acknowledged" in log.recovery.summary()
    assert state_of(path).unconfirmed == ((7, 8),)
    for log in openings(path):
        assert [(gone.first, gone.last, gone.is_unconfirmed) for gone in corrupt_ranges(log)] == told
        assert [(gone.first, gone.last, gone.is_unconfirmed) for gone in log.verify().corrupt] == told
        for first, last, is_unconfirmed in told:
            with pytest.raises(CorruptBatchError) as caught:
                list(log.read(first))
            found = caught.value
            assert (found.first_offset, found.last_offset, found.is_unconfirmed) == (first, last, is_unconfirmed)
    assert [(each.first, each.last) for each in verify_log(path).damages] == [(5, 6), (7, 8)]
    with Log(path) as log:
        log.accept_loss(5, 6)
        assert [(gone.first, gone.last) for gone in corrupt_ranges(log)] == [(7, 8)]


def test_what_is_unconfirmed_stays_so_when_it_is_recovered_again(tmp_path: Path) -> None:
    path = torn_group(tmp_path / "log")
    with Log(path) as log:
        assert log.recovery.corrupt
        shutil.copytree(path, tmp_path / "again")
    with Log(tmp_path / "again") as log:
        assert [gone.is_unconfirmed for gone in log.recovery.corrupt] == [True]
    assert state_of(tmp_path / "again").unconfirmed == ((5, 8),)


# --- a way on ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lost_in_the_middle, tail_lost, fenced])
def test_reads_pass_over_an_accepted_loss(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path / "log")
    with Log(path) as log:
        (gone,) = log.verify().corrupt
        whole = offsets(log, on_corrupt="skip")
        log.accept_loss(gone.first, gone.last)
        log.accept_loss(gone.first, gone.last)
        assert offsets(log) == whole
        assert offsets(log, gone.first) == [offset for offset in whole if offset > gone.last]
        fetched = log.fetch(gone.first)
        assert [record.offset for record in fetched.records()] == offsets(log, gone.first)
        assert log.verify().clean
        assert log.metrics()["accepted_offsets"] == gone.last - gone.first + 1
        assert log.metrics()["lost_offsets"] == log.metrics()["fenced_offsets"] == 0
    assert state_of(path).accepted == ((gone.first, gone.last),)
    for log in openings(path):
        assert offsets(log) == whole
        assert [record.offset for record in log.fetch(0, 1 << 20).records()][:4] == whole[:4]
        assert (log.recovery.corrupt, log.verify().corrupt) == ([], [])
        assert log.to_arrow()["offset"].to_pylist() == whole
    assert verify_log(path).is_sound
    assert [note.severity for note in verify_log(path).findings if "accepted" in note.reason] == ["note"]
    assert log_stats(path).accepted_count == gone.last - gone.first + 1
    assert log_stats(path, deep=True).is_sound


def test_a_reader_in_another_process_honours_it_at_once(tmp_path: Path) -> None:
    path = lost_in_the_middle(tmp_path / "log")
    with Log(path, read_only=True) as view, Log(path) as log:
        reader = view.read(8)
        assert next(reader).offset == 8
        log.accept_loss(9, 10)
        assert [record.offset for record in reader] == [11, 12, 13]
        assert view.fetch(9).base_offset == 11


def test_only_damaged_or_lost_offsets_are_accepted(tmp_path: Path) -> None:
    path = lost_in_the_middle(tmp_path / "log")
    with Log(path) as log:
        for first, last, whole in ((8, 10, (8, 8)), (9, 12, (11, 12)), (0, 0, (0, 0)), (14, 20, (14, 20))):
            with pytest.raises(NotLostError) as caught:
                log.accept_loss(first, last)
            assert (caught.value.first_offset, caught.value.last_offset) == whole
        for first, last in ((10, 9), (-1, 3)):
            with pytest.raises(InvalidOffsetError):
                log.accept_loss(first, last)
        log.delete_records(11)
        with pytest.raises(NotLostError):
            log.accept_loss(9, 10)
    assert state_of(path).accepted == ()
    with Log(path, read_only=True) as view, pytest.raises(ReadOnlyError):
        view.accept_loss(9, 10)


def test_a_part_of_a_loss_can_be_accepted(tmp_path: Path) -> None:
    with Log(lost_in_the_middle(tmp_path / "log")) as log:
        log.accept_loss(9, 9)
        with pytest.raises(CorruptBatchError) as caught:
            list(log.read(0))
        assert (caught.value.first_offset, caught.value.last_offset) == (10, 10)
        log.accept_loss(9, 10)
        assert state_of(log.path).accepted == ((9, 10),)
        assert offsets(log, 8) == [8, 11, 12, 13]


@pytest.mark.parametrize("kinds", [WRITES, SYNCS], ids=["write", "sync"])
def test_no_read_goes_on_before_the_decision_is_durable(kinds: frozenset[str], tmp_path: Path) -> None:
    path = fenced(tmp_path / "log")
    fs = FailingFs(SYSTEM_FS)
    log = Log(path, fs=fs)
    fs.faults.append(Fault(1, kinds=kinds, suffix="kstore.state"))
    with pytest.raises(StorageError):
        log.accept_loss(4, 4)
    with pytest.raises(CorruptBatchError):
        list(log.read(0))
    assert fs.failures
    log.close()


def test_there_is_a_limit_to_what_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    count = 2 * ACCEPTED_MAX + 4
    with Log(path) as log:
        for _ in range(count):
            log.append(b"x")
        size = (path / FIRST).stat().st_size // count
    for number in range(1, count, 2):
        flip(path / FIRST, number * size + 65)
    with Log(path) as log:
        for number in range(1, 2 * ACCEPTED_MAX, 2):
            log.accept_loss(number, number)
        with pytest.raises(LossLimitError):
            log.accept_loss(2 * ACCEPTED_MAX + 1, 2 * ACCEPTED_MAX + 1)
        log.delete_records(3)
        log.accept_loss(2 * ACCEPTED_MAX + 1, 2 * ACCEPTED_MAX + 1)
        assert len(state_of(path).accepted) == ACCEPTED_MAX


# --- what removes an entry --------------------------------------------------------------------------------------------


def test_a_truncation_of_the_range_removes_it(tmp_path: Path) -> None:
    path = lost_in_the_middle(tmp_path / "log")
    with Log(path) as log:
        log.accept_loss(9, 10)
        log.truncate_to(10)
        state = state_of(path)
        assert (state.lost, state.accepted) == (((9, 9),), ((9, 9),))
        assert log.append(b"new") == 10
        assert offsets(log) == [*range(9), 10]
        log.truncate_to(5)
        assert (state_of(path).lost, state_of(path).accepted) == ((), ())
        for _ in range(6):
            log.append(b"new")
        assert offsets(log) == list(range(11))


@pytest.mark.parametrize("offset", [0, 9, 10, 11, 50])
def test_a_new_start_forgets_every_loss(offset: int, tmp_path: Path) -> None:
    path = lost_in_the_middle(tmp_path / "log")
    with Log(path) as log:
        log.accept_loss(9, 9)
        writer_of(log).truncate_fully_and_start_at(offset)
        assert (state_of(path).lost, state_of(path).accepted) == ((), ())
        assert log.append(b"new") == offset
        assert offsets(log) == [offset]


def test_deleted_records_take_their_loss_along(tmp_path: Path) -> None:
    path = lost_in_the_middle(tmp_path / "log")
    with Log(path) as log:
        log.accept_loss(9, 10)
        log.delete_records(10)
        assert (state_of(path).lost, state_of(path).accepted) == (((10, 10),), ((10, 10),))
        log.delete_records(11)
        assert (state_of(path).lost, state_of(path).accepted) == ((), ())
        assert offsets(log) == [11, 12, 13]


def test_retention_takes_the_loss_along(tmp_path: Path) -> None:
    path = lost_in_the_middle(tmp_path / "log")
    with Log(path, retention_bytes=1) as log:
        log.roll()
        log.apply_retention()
        assert log.start_offset >= 11
    assert state_of(path).lost == ()


def compacted(path: Path) -> Path:
    with Log(tail_lost(path), cleanup_policy="compact") as log:
        for number in range(11, 14):
            log.append(b"%d" % number, key=b"key")
        log.roll()
    return path


def test_compaction_of_the_range_removes_what_was_accepted(tmp_path: Path) -> None:
    path = compacted(tmp_path / "log")
    with Log(path) as log:
        log.accept_loss(9, 10)
        log.compact(whole=True)
        assert (state_of(path).lost, state_of(path).accepted) == ((), ())
        assert offsets(log) == [*range(9), 13]


def test_compaction_leaves_accepted_damage_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path, cleanup_policy="compact") as log:
        for number in range(10):
            log.append(b"%d" % number, key=b"%d" % (number % 8))
        size = (path / FIRST).stat().st_size // 10
        log.roll()
    flip(path / FIRST, 4 * size + 65)
    with Log(path) as log:
        assert log.compact(whole=True).left == [0]
        log.accept_loss(4, 4)
        assert log.compact(whole=True).left == []
        assert offsets(log) == [2, 3, 5, 6, 7, 8, 9]
        assert state_of(path).accepted == ()
    assert verify_log(path).is_sound


def test_compaction_does_not_hide_a_loss_that_was_not_accepted(tmp_path: Path) -> None:
    path = compacted(tmp_path / "log")
    with Log(path) as log:
        log.compact(whole=True)
        assert state_of(path).lost == ((9, 10),)
        with pytest.raises(CorruptBatchError) as caught:
            list(log.read(0))
        assert (caught.value.first_offset, caught.value.last_offset) == (9, 10)
        slices = log.fetch(0, 1 << 20)
        assert [record.offset for record in slices.records()] == list(range(9))
        with pytest.raises(CorruptBatchError):
            log.fetch(9)


# --- the command ------------------------------------------------------------------------------------------------------


def test_recover_accepts_a_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tail_lost(tmp_path / "log")
    assert main(["recover", "--dry-run", "--accept-loss", "9-10", str(path)]) == 0
    assert state_of(path).accepted == ()
    assert main(["recover", str(path)]) == 1
    capsys.readouterr()
    assert main(["recover", "--accept-loss", "8-10", str(path)]) == 1
    assert "offsets 8 to 8 are neither damaged nor lost" in capsys.readouterr().err
    assert main(["recover", "--accept-loss", "9", "--accept-loss", "10-10", str(path)]) == 0
    assert "the loss of offsets 10 to 10 is accepted" in capsys.readouterr().out
    assert state_of(path).accepted == ((9, 10),)
    assert main(["recover", str(path)]) == 0
    assert main(["verify", str(path)]) == 0
    capsys.readouterr()
    assert main(["stats", "--format", "json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["accepted_offsets"] == 2


def test_recover_accepts_all_that_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fenced(tmp_path / "a-0")
    lost_in_the_middle(tmp_path / "b-0")
    shutil.rmtree(tmp_path / "b-0-alive")
    assert main(["recover", "--accept-loss", "4-4", str(tmp_path)]) == 2
    for options, verb in ((["--dry-run"], "would be"), ([], "is")):
        assert main(["recover", "--accept-loss", "all", *options, str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert f"offsets 4 to 4 {verb} accepted" in out
        assert f"offsets 9 to 10 {verb} accepted" in out
    assert (state_of(tmp_path / "a-0").accepted, state_of(tmp_path / "b-0").accepted) == (((4, 4),), ((9, 10),))


@pytest.mark.parametrize("text", ["", "x", "3-", "-3", "3-4-5", "1.5"])
def test_recover_refuses_what_is_no_range(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fenced(tmp_path / "log")
    assert main(["recover", f"--accept-loss={text}", str(tmp_path / "log")]) == 2
    assert "expected FIRST-LAST or all" in capsys.readouterr().err
