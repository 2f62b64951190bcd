"""Shared logs: a writer that dies in its turn, faults of the disk, and losses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore.engine.append.pending import PendingAppend
from kstore.errors import (
    ClosedError,
    CorruptBatchError,
    DiskFullError,
    PoisonedError,
    StorageError,
    SyncFailedError,
)
from kstore.files.lock import DirectoryLock
from kstore.log import Log, writer_of
from kstore.record._codec import BatchBuffer, Record
from kstore.record.builder import build_batch, build_batches
from kstore.shared import catch_up as log_catch_up
from kstore.state.shared_slot import POSITION, SharedState
from kstore.types import Durability
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.lives.log_cases import data, fenced, state_of, tail_lost
from tests.support.lives.shared_parts import DURABILITIES, others_of, shared, turn_of, two_writers, values

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")


@pytest.fixture(params=DURABILITIES)
def durability(request: pytest.FixtureRequest) -> Durability:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def pair(tmp_path: Path, durability: Durability) -> Iterator[tuple[Log, Log]]:
    yield from two_writers(tmp_path / "log", durability)


# --- a writer that dies in its turn ---------------------------------------------------------------------------------


def test_what_a_dead_writer_left_half_written_is_cut(pair: tuple[Log, Log], tmp_path: Path) -> None:
    one, two = pair
    one.append(b"a")
    with next((tmp_path / "log").glob("*.log")).open("ab") as file:
        file.write(b"torn")
    assert two.append(b"b") == 1
    assert one.append(b"c") == 2
    assert values(one) == values(two) == [b"a", b"b", b"c"]


def test_whole_batches_that_were_not_announced_are_kept(pair: tuple[Log, Log], tmp_path: Path) -> None:
    one, two = pair
    one.append(b"a")
    log_file = next((tmp_path / "log").glob("*.log"))
    data = bytearray(build_batch([Record(0, 1, key=None, value=b"b")]))
    data[:8] = (1).to_bytes(8, "big")
    log_file.write_bytes(log_file.read_bytes() + data + data[:30])
    assert two.append(b"c") == 2
    assert one.append(b"d") == 3
    assert values(one) == values(two) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("how", ["torn", "changing", "zero"])
def test_a_record_that_cannot_be_believed_means_recovery(how: str, pair: tuple[Log, Log], tmp_path: Path) -> None:
    one, two = pair
    for number in range(30):
        pair[number % 2].append(b"%d" % number * 30)
    state_file = tmp_path / "log" / "kstore.state"
    with state_file.open("r+b") as file:
        file.seek(POSITION)
        state = SharedState.decode(file.read(132))
        assert state is not None
        data = state._replace(flags=state.flags | 1).encode()
        file.seek(POSITION)
        file.write({"torn": data[:50] + bytes(82), "changing": data, "zero": bytes(132)}[how])
    # What an unfinished roll leaves.
    (tmp_path / "log" / f"{30:020d}.log").write_bytes(b"half a batch")
    assert two.append(b"thirty") == 30
    assert one.append(b"thirty-one") == 31
    with shared(tmp_path / "log", writer_of(two).files.durability, segment_bytes=1024) as three:
        assert three.append(b"thirty-two") == 32
        for log in (one, two, three):
            assert [record.offset for record in log.read()] == list(range(33))
            log.check()


def test_a_recovery_that_failed_is_done_again(
    pair: tuple[Log, Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    one.append(b"a")
    assert two.end_offset == 1
    # One dies in a roll, after the new file is made.
    turn, others = turn_of(one), others_of(one)
    turn._directory_lock.take_turn()
    others.has_turn = True
    others.announce_change()
    (tmp_path / "log" / f"{1:020d}.log").touch()
    turn._end_turn()
    with monkeypatch.context() as patched:

        def fails(*_: object, **__: object) -> None:
            raise StorageError(5, "not now")

        patched.setattr(log_catch_up, "load", fails)
        with pytest.raises(StorageError, match="not now"):
            two.append(b"b")
    assert two.append(b"b") == 1
    with shared(tmp_path / "log", writer_of(two).files.durability, segment_bytes=1024) as three:
        assert three.append(b"c") == 2
        assert values(three) == [b"a", b"b", b"c"]
        three.check()


def test_a_recovery_in_a_turn_has_no_index_rebuilt_that_needs_a_turn_itself(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with shared(path) as one, shared(path) as two:
        for number in range(10):
            one.append_batches(data(number, size=1000, leader_epoch=3), assign_offsets=False)
        one.roll()
        one.flush()
        assert two.end_offset == 10
        # One dies in a change; all epochs are read from the log again, and a sealed segment has no index.
        (path / "leader-epoch-checkpoint").unlink()
        (path / f"{0:020d}.index").unlink()
        turn, others, rescuer = turn_of(one), others_of(one), writer_of(two)
        turn._directory_lock.take_turn()
        others.has_turn = True
        others.announce_change()
        turn._end_turn()
        in_turns = []

        def write_indexes(*_: object) -> bool:
            in_turns.append(turn_of(two).lock.is_mine)
            return False

        with mock.patch.object(rescuer, "write_indexes", write_indexes):
            assert two.append(b"ten") == 10
        assert in_turns == []
        assert rescuer.files.leader_epoch == 3
        assert one.append(b"eleven") == 11


def test_an_interrupt_between_the_turn_and_the_sync_acknowledges_nothing(tmp_path: Path) -> None:
    """The leader of a group is interrupted: the other threads must not treat unsynced writes as durable."""
    with shared(tmp_path / "log") as log:
        log.append(b"a")
        writer = writer_of(log)
        buffers = [BatchBuffer(), BatchBuffer()]
        options: Any = {"codec": "none", "level": 0, "timestamp_type": "CreateTime", "now_ms": 1, "size_max": 1000}
        group = [
            PendingAppend(buffer, build_batches(buffer, [b"b"], None, None, None, **options), "none")
            for buffer in buffers
        ]
        others_of(log).is_changing = True  # else the turn would end within one compiled call
        with (
            mock.patch("kstore.shared.turn.tell", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            writer.appends._commit(group)
        assert writer.ends.durable_end == 1
        assert [append.result for append in group] == [None, None]
        assert log.append(b"c") == log.end_offset - 1
        log.check()


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_fails_one_append_and_no_other(tmp_path: Path, durability: Durability) -> None:
    fs = FailingFs()
    with (
        Log(tmp_path / "log", shared=True, durability=durability, fs=fs) as one,
        shared(tmp_path / "log", durability) as two,
    ):
        one.append(b"a")
        fs.faults.append(Fault(1, errno=28, written=7, kinds=frozenset({"write_all"}), suffix=".log"))
        with pytest.raises(DiskFullError):
            one.append(b"b")
        assert two.append(b"c") == 1
        assert one.append(b"d") == 2
        assert values(two) == [b"a", b"c", b"d"]


@pytest.mark.parametrize("how", ["others' segments", "the turn"])
def test_a_close_that_fails_lets_go_of_the_log_all_the_same(
    how: str, tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = shared(tmp_path / "log", durability), shared(tmp_path / "log", durability)
    two.append(b"a")
    one.append(b"b")
    one.roll()

    def fails(*_: object, **__: object) -> None:
        raise StorageError(24, "too many open files")

    with monkeypatch.context() as patched:
        if how == "the turn":
            patched.setattr(DirectoryLock, "take_turn", fails)
        else:
            patched.setattr(log_catch_up, "listed", fails)
        with pytest.raises(StorageError, match="too many open files"):
            two.close()
    two.close()
    with pytest.raises(ClosedError):
        two.append(b"c")
    assert one.append(b"c") == 2
    one.close()
    with Log(tmp_path / "log", durability=durability) as alone:
        assert values(alone) == [b"a", b"b", b"c"]
        alone.check()


def test_the_last_one_to_close_may_fail_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = shared(tmp_path / "log", "os")
    log.append(b"a")

    def fails(*_: object) -> None:
        raise StorageError(37, "no locks available")

    others_of(log).seen_data = b""  # this turn is not plain
    with monkeypatch.context() as patched:
        patched.setattr(DirectoryLock, "take_turn", fails)
        with pytest.raises(StorageError, match="no locks"):
            log.close()
    with Log(tmp_path / "log", durability="os") as alone:
        assert values(alone) == [b"a"]
        assert alone.append(b"b") == 1


@pytest.mark.promise("sync fails")
def test_a_failed_sync_poisons_the_log_for_all_processes(tmp_path: Path) -> None:
    fs = FailingFs()
    one, two = Log(tmp_path / "log", shared=True, fs=fs), shared(tmp_path / "log")
    one.append(b"a")
    fs.faults.append(Fault(1, kinds=frozenset({"fdatasync"}), suffix=".log"))
    with pytest.raises(SyncFailedError):
        one.append(b"b")
    with pytest.raises(PoisonedError):
        one.append(b"c")
    with pytest.raises(PoisonedError):
        two.append(b"c")
    assert (one.high_watermark, two.high_watermark) == (1, 1)
    with pytest.raises(PoisonedError):
        shared(tmp_path / "log")
    one.close()
    two.close()
    with shared(tmp_path / "log") as log:
        assert values(log)[0] == b"a"


# --- losses -----------------------------------------------------------------------------------------------------------


def test_what_one_writer_accepts_the_others_pass_over(tmp_path: Path) -> None:
    path = fenced(tmp_path / "log")
    with shared(path) as one, shared(path) as two:
        reader = two.read(0)
        assert [next(reader).offset for _ in range(4)] == [0, 1, 2, 3]
        one.accept_loss(4, 4)
        assert [record.offset for record in reader] == [5, 6, 7, 8, 9]
        assert two.fetch(4).losses.accepted == ((4, 4),)
        two.append(b"10")
        one.roll()
        two.flush()
        assert state_of(path).accepted == ((4, 4),)
        two.delete_records(5)
        assert one.append(b"11") == 11
        one.flush()
        assert state_of(path).accepted == ()


def test_a_loss_is_known_to_every_writer(tmp_path: Path) -> None:
    path = tail_lost(tmp_path / "log")
    with shared(path) as one, shared(path) as two:
        for log in (one, two):
            assert log.end_offset == 11
            with pytest.raises(CorruptBatchError):
                list(log.read(8))
        assert two.append(b"11") == 11
        for log in (one, two):
            assert [record.offset for record in log.read(8, on_corrupt="skip")] == [8, 11]
            with pytest.raises(CorruptBatchError):
                list(log.read(8))
        one.truncate_to(10)
        assert two.append(b"10") == 10
        assert state_of(path).lost == ((9, 9),)
