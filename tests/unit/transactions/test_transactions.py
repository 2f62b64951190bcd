"""Idempotent and transactional appends: repetitions, fences, ends of transactions, and listings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import (
    CorruptDataError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    PoisonedError,
    ProducerFencedError,
    ReadOnlyError,
    StorageError,
    TransactionCoordinatorFencedError,
)
from kstore.files.local import SYSTEM_FS
from kstore.log import Log, reads_of, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.state.producer_snapshot import decode_snapshot
from kstore.types import AbortedTransaction, AppendInfo, Durability, OpenTransaction, ProducerInfo
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import READS, FailingFs, Fault
from tests.support.lives.log_cases import data, files, killed, marker, offsets, transaction
from tests.support.lives.log_helpers import TIME

LAST = 2**31 - 1
DAY_MS = 86_400_000


def sent(
    sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, time: int = TIME, **fields: Any
) -> bytes:
    """A batch as a producer sends it, with base offset 0."""
    return build_batch(
        [Record(number, time + number, value=b"%d" % (sequence + number)) for number in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        **fields,
    )


def begun(sequence: int, count: int = 1, **fields: Any) -> bytes:
    return sent(sequence, count, is_transactional=True, **fields)


def committed(log: Log) -> list[int]:
    return offsets(log, isolation_level="read_committed")


def span(info: AppendInfo) -> tuple[int, int, bool]:
    return info.first_offset, info.last_offset, info.is_duplicate


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(TIME)


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with Log(tmp_path / "log", durability="os", clock=clock) as opened:
        yield opened


# --- repetitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_a_repetition_is_answered_with_the_old_offsets(durability: Durability, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability=durability, clock=ManualClock(TIME)) as log:
        log.append(b"before")
        first = log.append_batches(sent(0, 3))
        log.append(b"between")
        second = log.append_batches(sent(3, 2))
        size = files(log.path, ".log")
        for batch, before in ((sent(0, 3), first), (sent(3, 2), second), (sent(0, 3), first)):
            again = log.append_batches(batch)
            assert again == before._replace(is_duplicate=True)
        assert not first.is_duplicate
        assert files(log.path, ".log") == size
        assert (log.end_offset, span(log.append_batches(sent(5)))) == (7, (7, 7, False))


def test_what_lies_before_the_last_five_batches_is_refused(log: Log) -> None:
    for number in range(6):
        log.append_batches(sent(number))
    for number in range(1, 6):
        assert span(log.append_batches(sent(number))) == (number, number, True)
    with pytest.raises(DuplicateSequenceError, match="producer 7, epoch 0, has sequence 0, expected 6"):
        log.append_batches(sent(0))
    assert log.end_offset == 6


def test_a_batch_that_overlaps_is_no_repetition(log: Log) -> None:
    log.append_batches(sent(0, 4))
    for batch in (sent(0, 3), sent(1, 3), sent(2, 2)):
        with pytest.raises(DuplicateSequenceError):
            log.append_batches(batch)
    with pytest.raises(OutOfOrderSequenceError):
        log.append_batches(sent(2, 4))
    assert log.end_offset == 4


def test_many_batches_are_repeated_as_a_whole_or_refused(log: Log) -> None:
    assert span(log.append_batches(sent(0, 2) + sent(2, 3))) == (0, 4, False)
    assert span(log.append_batches(sent(0, 2) + sent(2, 3))) == (0, 4, True)
    for mixed in (sent(2, 3) + sent(5), data(0) + sent(2, 3), sent(5) + sent(5)):
        with pytest.raises(DuplicateSequenceError):
            log.append_batches(mixed)
    with pytest.raises(OutOfOrderSequenceError):
        log.append_batches(sent(5) + sent(7))
    assert log.end_offset == 5
    log.append_batches(sent(5) + sent(6, producer_id=8) + sent(6))


def test_a_repetition_in_a_log_that_stamps_has_the_old_time(tmp_path: Path, clock: ManualClock) -> None:
    with Log(tmp_path / "log", clock=clock, message_timestamp_type="LogAppendTime") as log:
        first = log.append_batches(sent(0, 2))
        clock.advance(50)
        again = log.append_batches(sent(0, 2))
        assert again == first._replace(is_duplicate=True)
        assert (again.log_append_time, again.max_timestamp) == (TIME, TIME)


# --- sequences and epochs ---------------------------------------------------------------------------------------------


def test_a_gap_in_the_sequences_is_refused_and_changes_nothing(log: Log) -> None:
    log.append_batches(sent(0, 2))
    with pytest.raises(OutOfOrderSequenceError, match="sequence 3, expected 2"):
        log.append_batches(sent(3))
    assert (log.end_offset, span(log.append_batches(sent(2)))) == (2, (2, 2, False))


def test_sequences_wrap_around(log: Log) -> None:
    log.append_batches(sent(LAST - 1, 4))
    assert span(log.append_batches(sent(LAST - 1, 4))) == (0, 3, True)
    assert log.producers()[0].last_sequence == 1
    log.append_batches(sent(2, 2))
    assert span(log.append_batches(sent(LAST - 1, 4))) == (0, 3, True)


def test_a_new_epoch_starts_again_and_fences_the_old_one(log: Log) -> None:
    log.append_batches(sent(0) + sent(1))
    with pytest.raises(OutOfOrderSequenceError):
        log.append_batches(sent(2, epoch=1))
    log.append_batches(sent(0, epoch=1))
    for old in (sent(2), sent(1)):
        with pytest.raises(InvalidProducerEpochError, match="producer 7 has epoch 0, expected at least 1"):
            log.append_batches(old)
    assert span(log.append_batches(sent(0, epoch=1))) == (2, 2, True)


def test_what_keeps_its_offsets_is_not_checked(log: Log) -> None:
    for offset, (sequence, epoch) in enumerate([(5, 3), (5, 3), (90, 3), (7, 1)]):
        assert not log.append_batches(
            transaction(1, offset, epoch=epoch, sequence=sequence), assign_offsets=False
        ).is_duplicate
    (producer,) = log.producers()
    assert (producer.producer_epoch, producer.last_sequence, producer.transaction_start) == (1, 7, 0)


def test_a_marker_that_cannot_be_read_is_refused_and_the_log_goes_on(log: Log) -> None:
    for key in (b"\0", b"\xff\xff\0\0"):
        bad = build_batch(
            [Record(0, TIME, key=key, value=b"")],
            producer_id=1,
            producer_epoch=0,
            is_transactional=True,
            is_control=True,
        )
        with pytest.raises(CorruptDataError):
            log.append_batches(bad, assign_offsets=False)
    assert log.append(b"x") == 0


@pytest.mark.parametrize("how", ["closed", "killed", "no snapshot"])
def test_repetitions_are_known_after_a_restart(how: str, tmp_path: Path, clock: ManualClock) -> None:
    with Log(tmp_path / "log", durability="os", clock=clock) as log:
        for number in range(3):
            log.append_batches(sent(2 * number, 2) + sent(number, producer_id=8))
        log.roll()
        for number in range(3, 6):
            log.append_batches(sent(2 * number, 2) + sent(number, producer_id=8))
        copy = killed(log, tmp_path / "killed")
    path = copy if how == "killed" else log.path
    if how == "no snapshot":
        for snapshot in path.glob("*.snapshot"):
            snapshot.unlink()
    with Log(path, durability="os", clock=clock) as again:
        for number in (5, 1, 3, 2, 4):
            assert span(again.append_batches(sent(2 * number, 2))) == (3 * number, 3 * number + 1, True)
            assert span(again.append_batches(sent(number, producer_id=8))) == (3 * number + 2, 3 * number + 2, True)
        for batch in (sent(0, 2), sent(0, producer_id=8)):
            with pytest.raises(DuplicateSequenceError):
                again.append_batches(batch)
        with pytest.raises(OutOfOrderSequenceError):
            again.append_batches(sent(13))
        assert span(again.append_batches(sent(12))) == (18, 18, False)


def test_a_search_for_old_batches_that_fails_is_repeated(tmp_path: Path, clock: ManualClock) -> None:
    """A snapshot has only the last batch of a producer; the others were not looked for again, and counted as lost."""
    with Log(tmp_path / "log", durability="os", clock=clock) as log:
        for number in range(3):
            log.append_batches(sent(number))
    failures = 0
    for at in range(1, 30):
        fs = FailingFs(SYSTEM_FS)
        with Log(tmp_path / "log", durability="os", clock=clock, fs=fs) as log:
            fs.faults.append(Fault(at, kinds=READS))
            try:
                again = log.append_batches(sent(0))
            except StorageError:
                failures += 1
                fs.faults.clear()
                again = log.append_batches(sent(0))
            fs.faults.clear()
            assert (span(again), log.end_offset) == ((0, 0, True), 3), f"read {at} failed"
    assert failures >= 1


def test_a_truncated_batch_is_no_repetition(log: Log) -> None:
    log.append_batches(sent(0) + sent(1) + sent(2))
    log.truncate_to(1)
    assert span(log.append_batches(sent(0))) == (0, 0, True)
    assert span(log.append_batches(sent(1))) == (1, 1, False)


def test_sequences_go_on_where_all_records_are_deleted(log: Log) -> None:
    log.append_batches(sent(0) + sent(1))
    log.roll()
    log.append(b"x")
    log.delete_records(2)
    assert span(log.append_batches(sent(1))) == (1, 1, True)
    with pytest.raises(OutOfOrderSequenceError):
        log.append_batches(sent(3))
    log.append_batches(sent(2))


def test_a_silent_producer_is_forgotten(log: Log, clock: ManualClock) -> None:
    log.append_batches(sent(0))
    log.append_batches(begun(0, producer_id=8))
    clock.advance(DAY_MS - 1)
    assert (writer_of(log).expire_producers(), len(log.producers())) == (0, 2)
    clock.advance(600_000)
    log.append_batches(sent(0, producer_id=9, time=clock.now_ms()))
    assert [producer.producer_id for producer in log.producers()] == [8, 9]
    log.append_batches(sent(50, time=clock.now_ms()))
    clock.advance(DAY_MS)
    assert (writer_of(log).expire_producers(), [producer.producer_id for producer in log.producers()]) == (2, [8])


def test_a_setting_says_when_a_producer_is_forgotten(tmp_path: Path, clock: ManualClock) -> None:
    with Log(tmp_path / "log", clock=clock, producer_id_expiration_ms="1h") as log:
        log.append_batches(sent(0))
        clock.advance(3_600_000)
        writer_of(log).expire_producers()
    (path,) = (tmp_path / "log").glob("*.snapshot")
    assert decode_snapshot(path.read_bytes()) == []


def test_a_forgotten_producer_does_not_come_back_from_a_snapshot(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "log"
    with Log(path, clock=clock, durability="os") as log:
        log.append_batches(sent(0))
        log.append_batches(begun(0, producer_id=8))
    clock.advance(DAY_MS - 1)
    with Log(path, clock=clock, durability="os") as log:
        assert [producer.producer_id for producer in log.producers()] == [7, 8]
    clock.advance(1)
    with Log(path, clock=clock, read_only=True) as view:  # which shows what the files say
        assert [producer.producer_id for producer in view.producers()] == [7, 8]
    with Log(path, clock=clock, durability="os") as log:
        assert [producer.producer_id for producer in log.producers()] == [8]  # its transaction is open
        log.append_batches(sent(50, time=clock.now_ms()))  # any sequence


# --- transactions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
def test_a_transaction_is_read_when_it_is_committed(durability: Durability, tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability=durability, clock=ManualClock(TIME)) as log:
        log.append_batches(begun(0, 2))
        log.append(b"x")
        assert (log.last_stable_offset, committed(log)) == (0, [])
        assert log.end_transaction(7, 0, commit=True) == 3
        assert (log.last_stable_offset, committed(log), offsets(log)) == (4, [0, 1, 2], [0, 1, 2])
        log.append_batches(begun(2, 2))
        assert log.end_transaction(7, 0, commit=False, coordinator_epoch=4) == 6
        assert (log.last_stable_offset, committed(log)) == (7, [0, 1, 2])
        assert reads_of(log).aborted_transactions(0, 7) == [AbortedTransaction(7, 4, 6, 7)]
    with Log(log.path, durability=durability) as again:
        assert (again.recovery.clean, committed(again)) == (True, [0, 1, 2])


def test_a_repetition_begins_no_transaction(log: Log) -> None:
    log.append_batches(begun(0))
    log.end_transaction(7, 0, commit=True)
    assert span(log.append_batches(begun(0))) == (0, 0, True)
    assert log.transactions() == []
    log.append_batches(begun(1))
    assert len(log.transactions()) == 1


def test_a_batch_outside_of_the_open_transaction_is_refused(log: Log) -> None:
    log.append_batches(begun(0))
    with pytest.raises(InvalidTransactionStateError):
        log.append_batches(sent(1))
    log.append_batches(sent(1, producer_id=8))
    log.end_transaction(7, 0, commit=True)
    log.append_batches(sent(1))


def test_a_fenced_producer_writes_no_more(log: Log) -> None:
    log.append_batches(begun(0))
    log.end_transaction(7, 1, commit=False)
    with pytest.raises(InvalidProducerEpochError):
        log.append_batches(begun(1))
    with pytest.raises(ProducerFencedError):
        log.end_transaction(7, 0, commit=True)
    log.append_batches(begun(0, epoch=1))
    assert (log.end_offset, committed(log)) == (3, [])


def test_a_fenced_coordinator_ends_nothing(log: Log) -> None:
    log.append_batches(begun(0))
    log.end_transaction(7, 0, commit=True, coordinator_epoch=5)
    log.append_batches(begun(1))
    with pytest.raises(TransactionCoordinatorFencedError):
        log.end_transaction(7, 0, commit=False, coordinator_epoch=4)
    assert len(log.transactions()) == 1
    log.end_transaction(7, 0, commit=True, coordinator_epoch=5)


def test_the_end_of_no_transaction_ends_nothing(log: Log) -> None:
    assert log.end_transaction(7, 0, commit=False) == 0
    assert (log.last_stable_offset, files(log.path, ".txnindex")) == (1, {})


def test_a_marker_is_a_broker_s(log: Log, clock: ManualClock) -> None:
    clock.advance(5)
    log.end_transaction(3, 2, commit=True, coordinator_epoch=0, timestamp=TIME)
    (stored,) = files(log.path, ".log").values()
    assert stored == marker(3, 0, commit=True, epoch=2).replace(b"\xff\xff\xff\xff\x02", b"\0\0\0\0\x02", 1)


def test_a_marker_in_a_log_that_stamps_has_its_time(tmp_path: Path, clock: ManualClock) -> None:
    with Log(tmp_path / "log", clock=clock, message_timestamp_type="LogAppendTime") as log:
        log.end_transaction(3, 0, commit=True, timestamp=5)
        assert log.producers()[0].last_timestamp == TIME


@pytest.mark.parametrize(
    "bad",
    [(-1, 0, 0), (2**63, 0, 0), (0, -1, 0), (0, 2**15, 0), (0, 0, -1), (0, 0, 2**31)],
)
def test_an_end_that_no_marker_can_say_is_refused(bad: tuple[int, int, int], log: Log) -> None:
    producer_id, epoch, coordinator = bad
    with pytest.raises(ValueError, match="expected 0 to"):
        log.end_transaction(producer_id, epoch, commit=True, coordinator_epoch=coordinator)
    with pytest.raises(TypeError):
        log.end_transaction("7", 0, commit=True)  # type: ignore[arg-type]
    assert log.end_offset == 0


def test_a_view_lists_and_ends_nothing(log: Log) -> None:
    log.append_batches(begun(0))
    with Log(log.path, read_only=True) as view:
        assert len(view.transactions()) == 1
        with pytest.raises(ReadOnlyError):
            view.end_transaction(7, 0, commit=True)
        with pytest.raises(ReadOnlyError):
            writer_of(view).expire_producers()


# --- what is listed ---------------------------------------------------------------------------------------------------


def test_producers_and_transactions_are_listed(log: Log, clock: ManualClock) -> None:
    assert (log.producers(), log.transactions()) == ([], [])
    log.append_batches(sent(4, 2, producer_id=9))
    log.append_batches(begun(0, producer_id=8, time=TIME + 10))
    log.append_batches(begun(0, 2, producer_id=3, epoch=6, time=TIME + 500))
    log.end_transaction(3, 6, commit=True, coordinator_epoch=2, timestamp=TIME + 600)
    log.append_batches(begun(2, producer_id=3, epoch=6, time=TIME + 700))
    clock.advance(1_000)
    producers = [
        ProducerInfo(3, 6, 2, 6, TIME + 700, 2, 6),
        ProducerInfo(8, 0, 0, 2, TIME + 10, -1, 2),
        ProducerInfo(9, 0, 5, 1, TIME + 1, -1, None),
    ]
    open_ones = [OpenTransaction(8, 0, -1, 2, TIME + 10, 990), OpenTransaction(3, 6, 2, 6, TIME + 700, 300)]
    with Log(log.path, read_only=True, clock=clock) as view:
        for reader in (log, view):
            assert reader.producers() == producers
            assert reader.transactions() == open_ones
            assert reader.transactions(hanging_ms=301) == open_ones[:1]
            assert reader.transactions(hanging_ms=991) == []


# --- between processes and failures -----------------------------------------------------------------------------------


def test_a_log_with_producers_never_closes_without_a_snapshot(tmp_path: Path, clock: ManualClock) -> None:
    """To a broker, a cleanly closed log without snapshots has no producers."""
    with Log(tmp_path / "log", durability="os", clock=clock) as log:
        log.append_batches(begun(0))
        copy = killed(log, tmp_path / "killed")
    Log(copy, durability="os", clock=clock).close()
    (snapshot,) = copy.glob("*.snapshot")
    assert (snapshot.stem, len(decode_snapshot(snapshot.read_bytes()))) == (f"{1:020d}", 1)


def test_a_poisoned_log_takes_no_repetition(log: Log) -> None:
    log.append_batches(sent(0))
    writer = writer_of(log)
    writer.files.poison(OSError("unplugged"))
    with pytest.raises(PoisonedError):
        log.append_batches(sent(0))


def test_appends_without_producers_between_are_not_read_again(log: Log) -> None:
    log.append_batches(sent(0))
    writer = writer_of(log)
    for number in range(1, 4):
        log.append(b"x")
        writer.producers._segments = None  # type: ignore[assignment]  # what reads the log again fails
        log.append_batches(sent(number))
    writer.producers._segments = writer.segments
