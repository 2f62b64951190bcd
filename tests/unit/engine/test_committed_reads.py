"""Readers of committed records, and what they rely on: transaction indexes, snapshots, and markers that may vanish."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.engine.read.reader import Aborted
from kstore.engine.view import LogView
from kstore.engine.writer import LogWriter
from kstore.errors import SyncFailedError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.record.scan import parse_batches
from kstore.types import AbortedTransaction
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.harness.golden_data import copy_partition, golden_root
from tests.support.lives.foreign_batches import tampered
from tests.support.lives.log_cases import data, edit, files, killed, marker, transaction
from tests.support.lives.log_helpers import TIME
from tests.unit.engine.test_log_producers import TXN_INDEX, append, committed, interleaved, snapshot_offsets

# --- transaction indexes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("segment", [4, 8])
@pytest.mark.promise("rebuilt")
def test_a_transaction_index_that_cannot_be_right_is_rebuilt(segment: int, clean: bool, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="sync") as log:
        interleaved(log)
        append(log, marker(3, 11, commit=False))
        before = files(log.path, TXN_INDEX)
        copy = killed(log, tmp_path / "killed")
    path = log.path if clean else copy
    edit(path / f"{segment:020d}{TXN_INDEX}", lambda content: content.__setitem__(0, 7))
    for _ in range(2):
        with Log(path) as again:
            assert committed(again) == [2, 3, 4, 8, 10]
        assert files(path, TXN_INDEX) == before


def test_a_broker_s_transaction_index_that_cannot_be_right_is_rebuilt(tmp_path: Path) -> None:
    directory = copy_partition("clean", "txn-rolled-0", tmp_path)
    for name in ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
        (tmp_path / name).write_bytes((golden_root() / "clean" / name).read_bytes())
    with Log(directory, read_only=True) as view:
        wanted = committed(view)
    before = files(directory, TXN_INDEX)
    index = next(name for name, content in before.items() if content)
    edit(directory / index, lambda content: content.__setitem__(0, 7))
    with Log(directory) as log:
        assert log.recovery.clean
        assert committed(log) == wanted
    assert files(directory, TXN_INDEX) == before


def test_a_reader_of_a_truncated_part_asks_again_what_is_aborted(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        append(log, data(0), transaction(1, 1))
        log.roll()
        append(log, transaction(2, 2), marker(1, 3, commit=True), marker(2, 4, commit=False), data(5))
        reader = log.read(isolation_level="read_committed")
        assert next(reader).offset == 0
        log.truncate_to(1)
        append(log, transaction(1, 1))
        log.roll()
        append(log, transaction(2, 2), marker(1, 3, commit=False), marker(2, 4, commit=True), data(5))
        # It had already read 1, which was committed then.
        assert [record.offset for record in reader] == [1, 2, 5]


def test_no_transaction_is_overlooked_among_many() -> None:
    transactions = [AbortedTransaction(1 + at % 2, at, at + 8, 0) for at in range(0, 400, 20)]
    overlapping = [*transactions, AbortedTransaction(1, 5, 390, 0), AbortedTransaction(1, 5, 7, 0)]
    for known in (transactions, overlapping):
        aborted = Aborted(known)
        for offset in range(420):
            for producer_id in (1, 2, 3):
                (batch,) = parse_batches(transaction(producer_id, offset))
                assert aborted.holds(batch) == any(
                    one.producer_id == producer_id and one.first_offset <= offset <= one.last_offset for one in known
                )


# --- readers beside a writer, and of records that may vanish ----------------------------------------------------------


def test_a_view_knows_the_producers_whose_records_are_deleted(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        append(log, transaction(1, 0, 1), data(2, producer_id=5, producer_epoch=0, base_sequence=9))
        log.roll()
        append(log, data(3), transaction(1, 4, sequence=2))
        log.delete_records(3)
        with Log(log.path, read_only=True) as view:
            assert view.producers() == log.producers()
            assert [producer.producer_id for producer in view.producers()] == [1, 5]
            assert view.transactions()[0].first_offset == 0
            assert (view.last_stable_offset, committed(view)) == (3, [])


def test_a_view_reads_no_more_than_the_snapshots_leave(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        interleaved(log)
    for base_offset in (0, 4):
        edit(
            log.path / f"{base_offset:020d}.log", lambda content: content.__setitem__(slice(None), bytes(len(content)))
        )
    with Log(log.path, read_only=True) as view:
        assert view.last_stable_offset == 9


def test_what_a_marker_decided_that_is_not_durable_is_undecided_when_a_sync_fails(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with Log(tmp_path / "log", durability="os", fs=fs) as log:
        append(log, data(0), transaction(1, 1, 2))
        log.flush()
        append(log, marker(1, 3, commit=True))
        assert committed(log) == [0, 1, 2]
        fs.faults.append(Fault(1, kinds=frozenset({"fdatasync"})))
        with pytest.raises(SyncFailedError):
            log.flush()
        assert (log.high_watermark, log.last_stable_offset, committed(log)) == (3, 1, [0])
        assert len(log.producers()) == 1
        assert log.last_stable_offset == 1


def test_a_view_sees_nothing_decided_by_a_marker_that_is_not_durable(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="sync") as log:
        append(log, data(0), transaction(1, 1, 2))
        append(log, marker(1, 3, commit=True))
        writer = writer_of(log)
        writer.files.state_file.publish_durable_end(3)  # as while the marker is being written
        with Log(log.path, read_only=True) as view:
            assert (view.high_watermark, view.last_stable_offset, committed(view)) == (3, 1, [0])
            writer.files.state_file.publish_durable_end(4)
            assert (view.last_stable_offset, committed(view)) == (4, [0, 1, 2])


def test_a_log_that_continues_without_producers_still_gets_snapshots(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        append(log, transaction(1, 0))
        for offset in range(1, 4):
            log.roll()
            append(log, data(offset))
        assert snapshot_offsets(log.path) == [1, 2, 3]
    assert snapshot_offsets(log.path) == [1, 2, 3, 4]
    with Log(log.path) as log:
        assert log.last_stable_offset == 0
    assert snapshot_offsets(log.path) == [1, 2, 3, 4]


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_transaction_goes_on_hanging_until_it_ends_or_is_truncated(how: str, tmp_path: Path) -> None:
    clock = ManualClock(TIME)
    with Log(tmp_path / "log", durability="os", clock=clock) as log:
        append(log, transaction(1, 0), transaction(2, 1))
        clock.advance(900_000)
        append(log, data(2), transaction(3, 3, timestamp=clock.now_ms()))
        copy = killed(log, tmp_path / "killed")
    with Log(copy if how == "killed" else log.path, durability="os", clock=clock) as again:
        assert [one.producer_id for one in again.transactions(hanging_ms=800_000)] == [1, 2]
        again.truncate_to(1)
        assert [one.producer_id for one in again.transactions(hanging_ms=800_000)] == [1]
        assert again.abort_transaction(1, hanging_ms=800_000) == 1
        assert again.transactions() == []
        writer_of(again).truncate_fully_and_start_at(0)
        assert (again.transactions(), again.producers()) == ([], [])


@pytest.mark.parametrize("epoch", [-1, -(1 << 15)])
def test_a_transaction_of_an_epoch_that_no_writer_uses_can_be_aborted(epoch: int, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(tampered(transaction(1, 0), producer_epoch=epoch))
    with Log(path, durability="os") as log:
        append(log, data(1))
        assert [one.producer_epoch for one in log.transactions()] == [epoch]
        assert log.abort_transaction(1) == 2
        assert (log.transactions(), log.last_stable_offset, committed(log)) == ([], 3, [1])
    with Log(path, read_only=True) as view:
        assert committed(view) == [1]


@pytest.mark.parametrize("rolls", [False, True], ids=["same-segment", "rolled"])
@pytest.mark.parametrize("reads_view", [False, True], ids=["writer", "view"])
@pytest.mark.promise("bytes")
def test_a_committed_reader_passes_over_nothing_that_is_appended_while_it_looks_for_its_end(
    reads_view: bool, rolls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last stable offset is newer than the ends that the reader took: it must not read up to that offset with the
    old position."""
    reading_class = LogView if reads_view else LogWriter
    last_stable_offset = reading_class.last_stable_offset
    with Log(tmp_path / "log", durability="os") as log, Log(log.path, read_only=True) as view:
        log.append_many([b"0", b"1"])
        values = iter([b"2", b"3", b"4"])

        def and_append(source: LogWriter | LogView) -> int:
            if (value := next(values, None)) is not None:
                log.append(value)
                if rolls:
                    log.roll()
                source.refresh()
            return last_stable_offset(source)  # type: ignore[arg-type]  # its own class's

        monkeypatch.setattr(reading_class, "last_stable_offset", and_append)
        reader = (view if reads_view else log).read(0, isolation_level="read_committed", follow=True, timeout=0)
        found = [record.offset for record in reader]
    assert found == list(range(len(found)))
    assert len(found) >= 2
