"""Whether a producer's batch may be appended, as a decision over values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.engine.append._path import continued
from kstore.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TransactionCoordinatorFencedError,
)
from kstore.record._codec import EncodedBatch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.record.parse import parse_batch
from kstore.rules.sequence import (
    KnownProducer,
    RememberedBatch,
    SequencedBatch,
    after,
    check_end,
    check_next,
    follows,
    is_expired,
    producer_batch,
    repeats,
    run_of,
)
from tests.support.lives.log_cases import data, marker, transaction

LAST = 2**31 - 1


def batch(
    first: int, last: int | None = None, *, epoch: int = 0, at: int = 0, transactional: bool = False
) -> SequencedBatch:
    last = first if last is None else last
    return SequencedBatch(7, epoch, first, last, at, at + (last - first) % 2**31, 1000 + at, transactional, False, None)


def end(*, epoch: int = 0, at: int = 0, coordinator: int = 0, commit: bool = True) -> SequencedBatch:
    kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    return SequencedBatch(7, epoch, -1, -1, at, at, 1000 + at, True, True, EndTransactionMarker(kind, coordinator))


def known(*batches: SequencedBatch) -> KnownProducer:
    producer: KnownProducer | None = None
    for each in batches:
        producer = after(producer, each)
    assert producer is not None
    return producer


# --- sequences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1, 57, LAST])
def test_an_unknown_producer_may_begin_with_any_sequence(first: int) -> None:
    check_next(None, batch(first))
    check_next(KnownProducer(7), batch(first))


def test_the_next_sequence_is_one_more() -> None:
    producer = known(batch(0, 4))
    check_next(producer, batch(5, 9))
    for first in (6, 100, 2**30):
        with pytest.raises(OutOfOrderSequenceError) as caught:
            check_next(producer, batch(first))
        assert (caught.value.producer_id, caught.value.sequence, caught.value.expected) == (7, first, 5)
        assert type(caught.value) is OutOfOrderSequenceError
        assert isinstance(caught.value, ValueError)


def test_sequences_continue_from_zero_after_the_highest() -> None:
    check_next(known(batch(LAST)), batch(0))
    wrapped = known(batch(LAST - 2, 1, at=10))
    assert (wrapped.batches[0].first_sequence, wrapped.last_sequence, wrapped.last_offset) == (LAST - 2, 1, 14)
    check_next(wrapped, batch(2))
    with pytest.raises(DuplicateSequenceError):
        check_next(wrapped, batch(LAST))
    assert repeats(wrapped, batch(LAST - 2, 1)) == wrapped.batches[0]


def test_a_batch_after_the_last_one_differs_from_one_that_leaves_a_gap() -> None:
    producer = known(batch(0, 9))
    for first, last in ((0, 4), (3, 9), (9, 9)):
        with pytest.raises(DuplicateSequenceError):
            check_next(producer, batch(first, last))
    with pytest.raises(OutOfOrderSequenceError) as caught:
        check_next(producer, batch(8, 12))
    assert not isinstance(caught.value, DuplicateSequenceError)


def test_the_last_five_batches_are_remembered() -> None:
    producer = known(*(batch(10 * number, 10 * number + 9, at=100 * number) for number in range(7)))
    assert [seen.first_sequence for seen in producer.batches] == [20, 30, 40, 50, 60]
    assert repeats(producer, batch(20, 29)) == RememberedBatch(29, 209, 9, 1200)
    assert repeats(producer, batch(60, 69)) == RememberedBatch(69, 609, 9, 1600)
    for other in (batch(10, 19), batch(20, 28), batch(21, 29), batch(20, 29, epoch=1), batch(70, 79)):
        assert repeats(producer, other) is None
    assert repeats(None, batch(0)) is None


# --- epochs -----------------------------------------------------------------------------------------------------------


def test_a_new_epoch_begins_with_sequence_zero_and_remembers_nothing_older() -> None:
    producer = known(batch(0, 4), batch(5, 9, at=5))
    check_next(producer, batch(0, epoch=1))
    with pytest.raises(OutOfOrderSequenceError, match="has sequence 10, expected 0"):
        check_next(producer, batch(10, epoch=1))
    bumped = after(producer, batch(0, epoch=1, at=10))
    assert (bumped.producer_epoch, len(bumped.batches)) == (1, 1)
    assert repeats(bumped, batch(5, 9)) is None


def test_an_older_epoch_is_fenced() -> None:
    producer = known(batch(0, epoch=3))
    with pytest.raises(InvalidProducerEpochError) as caught:
        check_next(producer, batch(1, epoch=2))
    assert isinstance(caught.value, ProducerFencedError)
    assert (caught.value.producer_epoch, caught.value.latest_epoch) == (2, 3)
    with pytest.raises(ProducerFencedError):
        check_end(producer, end(epoch=2))
    check_end(producer, end(epoch=3))
    check_end(producer, end(epoch=4))


def test_a_marker_of_a_newer_epoch_fences_and_asks_for_sequence_zero() -> None:
    producer = known(batch(0, 4, transactional=True), end(epoch=1, at=5))
    assert (producer.producer_epoch, producer.batches, producer.is_in_transaction) == (1, (), False)
    with pytest.raises(InvalidProducerEpochError):
        check_next(producer, batch(5, transactional=True))
    with pytest.raises(OutOfOrderSequenceError):
        check_next(producer, batch(5, epoch=1))
    check_next(producer, batch(0, epoch=1))


def test_a_marker_of_the_same_epoch_keeps_sequences_and_what_is_remembered() -> None:
    producer = known(batch(0, 4, transactional=True), end(at=5))
    check_next(producer, batch(5))
    assert repeats(producer, batch(0, 4)) is not None
    assert (producer.last_offset, producer.timestamp) == (4, 1005)


def test_what_is_not_checked_may_go_back() -> None:
    producer = known(batch(5, epoch=3), batch(100, epoch=1, at=1))
    assert (producer.producer_epoch, producer.last_sequence, len(producer.batches)) == (1, 100, 1)


# --- transactions -----------------------------------------------------------------------------------------------------


def test_a_transaction_begins_with_its_first_batch_and_ends_with_its_marker() -> None:
    producer = known(batch(0, at=10, transactional=True), batch(1, at=20, transactional=True))
    assert producer.current_txn_first_offset == 10
    assert not known(batch(0, transactional=True), end()).is_in_transaction


def test_inside_a_transaction_every_batch_is_transactional() -> None:
    producer = known(batch(0, transactional=True))
    with pytest.raises(InvalidTransactionStateError):
        check_next(producer, batch(1))
    check_next(producer, batch(1, transactional=True))
    with pytest.raises(InvalidTransactionStateError):
        check_next(producer, batch(0, epoch=1))
    check_next(known(batch(0, transactional=True), end()), batch(1))


def test_a_coordinator_of_an_older_epoch_is_fenced() -> None:
    producer = known(batch(0, transactional=True), end(coordinator=5))
    for coordinator in (5, 6):
        check_end(producer, end(coordinator=coordinator))
    with pytest.raises(TransactionCoordinatorFencedError, match="epoch 4, expected at least 5"):
        check_end(producer, end(coordinator=4))
    check_end(None, end(coordinator=0))


def test_a_control_batch_without_a_marker_changes_nothing() -> None:
    producer = known(batch(0, transactional=True))
    empty = end()._replace(end=None)
    check_end(producer, empty)
    assert after(producer, empty) == producer


def test_a_producer_expires_when_it_is_silent_and_has_no_transaction_open() -> None:
    producer = known(batch(0, at=500))
    assert not is_expired(producer, 1500 + 99, 100)
    assert is_expired(producer, 1500 + 100, 100)
    assert not is_expired(known(batch(0, transactional=True)), 2**60, 100)


# --- what a batch says ------------------------------------------------------------------------------------------------


def test_a_batch_is_read_with_the_offsets_that_it_will_have() -> None:
    sent = producer_batch(parse_batch(transaction(9, 0, 1, 2, sequence=LAST)), 40)
    assert (sent.producer_id, sent.first_sequence, sent.last_sequence) == (9, LAST, 1)
    assert (sent.first_offset, sent.last_offset, sent.is_transactional, sent.end) == (40, 42, True, None)
    assert producer_batch(parse_batch(data(5, producer_id=1, producer_epoch=0, base_sequence=0))).first_offset == 5


def test_a_marker_is_read() -> None:
    sent = producer_batch(parse_batch(marker(9, 4, commit=False)))
    assert sent.end == EndTransactionMarker(ControlRecordType.ABORT, 0)


# --- runs -------------------------------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    first=st.sampled_from([0, 1, LAST - 7, LAST]),
    before=st.integers(0, 7),
    transactional=st.booleans(),
)
def test_a_run_leaves_the_producer_as_its_batches_one_by_one_do(
    sizes: list[int], first: int, before: int, transactional: bool
) -> None:
    producer = None
    for number in range(before):
        at = (first - before + number) % 2**31
        producer = after(producer, batch(at, at=number, transactional=transactional))
    times = [1000 - number for number in range(len(sizes))]
    run = run_of((7, 0, first, transactional), list(zip(sizes, times, strict=True)), before)
    one_by_one, sequence, offset = producer, first, before
    for size, time_ms in zip(sizes, times, strict=True):
        each = batch(sequence, (sequence + size - 1) % 2**31, at=offset, transactional=transactional)
        one_by_one = after(one_by_one, each._replace(timestamp=time_ms))
        sequence, offset = (sequence + size) % 2**31, offset + size
    assert after(producer, run) == one_by_one
    assert follows(producer, run) == (before > 0)
    assert (run.last_offset, run.last_sequence) == (offset - 1, (sequence - 1) % 2**31)


def test_a_run_that_is_not_beyond_doubt_is_looked_at_batch_by_batch() -> None:
    run = run_of((7, 0, 4, False), [(2, 1000)], 10)
    assert follows(known(batch(0, 3)), run)
    assert not follows(None, run)
    assert not follows(known(batch(0, 2)), run), "a gap"
    assert not follows(known(batch(0, 4)), run), "a repetition"
    assert not follows(known(batch(0, 3, epoch=1)), run)
    assert not follows(known(batch(0, 3, transactional=True)), run), "inside its transaction"


def test_a_producer_continues_only_with_its_next_sequence_and_outside_of_transactions() -> None:
    producer, written = known(batch(0, 3)), [EncodedBatch(-1, 0, 100, 2, 0, 1000, 0)]
    expected = after(producer, run_of((7, 0, 4, False), [(2, 1000)], 10))
    assert continued(producer, (7, 0, 4, False), written, 10) == expected
    assert continued(producer, (7, 0, 5, False), written, 10) is None, "a gap"
    assert continued(producer, (7, 0, 3, False), written, 10) is None, "a repetition"
    assert continued(producer, (7, 1, 4, False), written, 10) is None, "another epoch"
    assert continued(producer, (7, 0, 4, True), written, 10) is None, "in a transaction"
    assert continued(known(batch(0, 3, transactional=True)), (7, 0, 4, False), written, 10) is None


@given(
    st.lists(st.tuples(st.integers(1, 2**20), st.integers(-1, 2**40)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(1, 2**20), st.integers(-1, 2**40)), max_size=12),
    st.sampled_from([0, 5, LAST - 3, LAST]),
    st.sampled_from([0, 0, 0, 1, 2**31 - 1]),
    st.sampled_from([7, 7, 7, 8]),
    st.booleans(),
    st.booleans(),
)
def test_a_producer_that_continues_is_as_after_its_run(
    written: list[tuple[int, int]],
    before: list[tuple[int, int]],
    first: int,
    skew: int,
    epoch: int,
    is_transactional: bool,
    is_in_transaction: bool,
) -> None:
    producer = KnownProducer(7, 7, (), 0, 3)
    if before:
        producer = after(producer, run_of((7, 7, first, is_in_transaction), before, 100))
    offset = 1 + producer.last_offset
    stamp = (7, epoch, (producer.last_sequence + 1 + skew) % 2**31, is_transactional)
    batches = [EncodedBatch(-1, 0, 100, count, 0, timestamp, 0) for count, timestamp in written]
    run = run_of(stamp, written, offset)
    expected = None
    if follows(producer, run) and not is_transactional and not producer.is_in_transaction:
        expected = after(producer, run)
    assert continued(producer, stamp, batches, offset) == expected
