"""Whether a producer's batch may be appended, and the producer's state afterwards: pure, over values.

A producer counts its records, per partition, from 0 to 2^31 - 1 and then from 0 again; a batch carries the sequence of
its first record. This reveals retries and losses (Kafka: ProducerAppendInfo, ProducerStateEntry):

    1  the epoch and exactly the sequences of one of the last five batches: a repetition, not appended again
    2  an older epoch: refused, another instance has replaced the producer
    3  a newer epoch: its first sequence is 0
    4  the same epoch: its first sequence follows the last one
    5  a producer that the log does not know, or knows no longer: any sequence
    6  inside a transaction: only transactional batches

The end of a transaction is refused for an older epoch, and for a coordinator of an older epoch than that of the last
end. A batch that was accepted elsewhere (replication, recovery) is not checked; the state follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kstore.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TransactionCoordinatorFencedError,
)
from kstore.record.batch import SEQUENCE_COUNT, Batch, decrement_sequence, increment_sequence
from kstore.record.control import EndTransactionMarker, parse_end_transaction_marker
from kstore.types import NO_OFFSET, NO_TIMESTAMP

# As many batches as a producer may have in flight at a time.
REMEMBERED_MAX = 5
NO_EPOCH = -1
NO_SEQUENCE = -1


class RememberedBatch(NamedTuple):
    """One of a producer's last batches (Kafka: BatchMetadata); ``timestamp`` (ms) is the batch's greatest."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return decrement_sequence(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class KnownProducer(NamedTuple):
    """A producer's state in a log (Kafka: ProducerStateEntry). -1 means none, ``timestamp`` is in ms.

    ``batches`` are its last ones, at most five, the newest last; all have ``producer_epoch``.
    """

    producer_id: int
    producer_epoch: int = NO_EPOCH
    batches: tuple[RememberedBatch, ...] = ()
    timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = -1
    current_txn_first_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    @property
    def offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    @property
    def is_in_transaction(self) -> bool:
        return self.current_txn_first_offset != NO_OFFSET


class SequencedBatch(NamedTuple):
    """The producer's fields of a batch. ``end``: the marker in a control batch, or None.

    It may stand for several data batches with contiguous sequences and offsets: ``run`` then has the last ones to
    remember.
    """

    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int
    is_transactional: bool
    is_control: bool
    end: EndTransactionMarker | None
    run: tuple[RememberedBatch, ...] = ()


def producer_batch(batch: Batch, first_offset: int | None = None) -> SequencedBatch:
    """The fields of ``batch``; ``first_offset`` replaces its own, which may not be assigned yet.

    Raises: CorruptDataError for a control batch whose marker cannot be read.
    """
    if first_offset is None:
        first_offset = batch.base_offset
    end = None
    is_control = batch.is_control
    if is_control:
        # Compaction leaves empty control batches, and other kinds of control records exist.
        record = next(iter(batch.records()), None)
        end = None if record is None else parse_end_transaction_marker(record.key, record.value)
    return SequencedBatch(
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
        first_offset,
        first_offset + batch.last_offset - batch.base_offset,
        batch.max_timestamp,
        batch.is_transactional,
        is_control,
        end,
    )


def repeats(known: KnownProducer | None, batch: SequencedBatch) -> RememberedBatch | None:
    """The remembered batch that ``batch`` repeats, if any."""
    if known is None or known.producer_epoch != batch.producer_epoch:
        return None
    for seen in known.batches:
        if seen.last_sequence == batch.last_sequence and seen.first_sequence == batch.first_sequence:
            return seen
    return None


def check_next(known: KnownProducer | None, batch: SequencedBatch) -> None:
    """Checks a data batch that is not a repetition.

    Raises: InvalidProducerEpochError, OutOfOrderSequenceError, DuplicateSequenceError (it precedes the remembered
    ones), InvalidTransactionStateError.
    """
    if known is None or known.producer_epoch == NO_EPOCH:
        return
    if batch.producer_epoch < known.producer_epoch:
        raise InvalidProducerEpochError(batch.producer_id, batch.producer_epoch, known.producer_epoch)
    if batch.producer_epoch > known.producer_epoch:
        if batch.first_sequence != 0:
            raise OutOfOrderSequenceError(batch.producer_id, batch.producer_epoch, batch.first_sequence, 0)
    else:
        _check_follows(known, batch)
    if known.is_in_transaction and not batch.is_transactional:
        raise InvalidTransactionStateError(
            f"a batch of producer {batch.producer_id} outside of transactions, expected a transactional one:"
            f" its transaction from offset {known.current_txn_first_offset} is open"
        )


def _check_follows(known: KnownProducer, batch: SequencedBatch) -> None:
    # 0 comes after 2^31 - 1, and also first.
    expected = increment_sequence(known.last_sequence, 1)
    if batch.first_sequence == expected:
        return
    behind = (known.last_sequence - batch.last_sequence) % SEQUENCE_COUNT
    is_behind = bool(known.batches) and behind < SEQUENCE_COUNT // 2
    error = DuplicateSequenceError if is_behind else OutOfOrderSequenceError
    raise error(batch.producer_id, batch.producer_epoch, batch.first_sequence, expected)


def follows(known: KnownProducer | None, batch: SequencedBatch) -> bool:
    """Whether a data batch, or a run of them, certainly comes next, so that ``check_next`` would accept it."""
    return (
        known is not None
        and known.producer_epoch == batch.producer_epoch
        and batch.first_sequence == increment_sequence(known.last_sequence, 1)
        and (batch.is_transactional or not known.is_in_transaction)
    )


def run_of(stamp: tuple[int, int, int, bool], batches: Sequence[tuple[int, int]], first_offset: int) -> SequencedBatch:
    """The run of data batches that starts at ``first_offset``; each has a record count and a greatest timestamp (ms).

    ``stamp``: producer id, epoch, the first sequence, whether they are transactional.
    """
    producer_id, epoch, first_sequence, is_transactional = stamp
    count = sum([each[0] for each in batches])
    last_sequence, last_offset = increment_sequence(first_sequence, count - 1), first_offset + count - 1
    sequence, offset = last_sequence, last_offset
    run = []
    for record_count, timestamp in reversed(batches[-REMEMBERED_MAX:]):
        run.append(RememberedBatch(sequence, offset, record_count - 1, timestamp))
        sequence, offset = decrement_sequence(sequence, record_count), offset - record_count
    return SequencedBatch(
        producer_id,
        epoch,
        first_sequence,
        last_sequence,
        first_offset,
        last_offset,
        run[0].timestamp,
        is_transactional,
        is_control=False,
        end=None,
        run=tuple(reversed(run)),
    )


def check_end(known: KnownProducer | None, batch: SequencedBatch) -> None:
    """Checks the end of a transaction. Raises: ProducerFencedError, TransactionCoordinatorFencedError."""
    if known is None or batch.end is None:
        return
    if batch.producer_epoch < known.producer_epoch:
        raise ProducerFencedError(batch.producer_id, batch.producer_epoch, known.producer_epoch)
    if batch.end.coordinator_epoch < known.coordinator_epoch:
        raise TransactionCoordinatorFencedError(
            f"the end of a transaction of producer {batch.producer_id} comes from coordinator epoch"
            f" {batch.end.coordinator_epoch}, expected at least {known.coordinator_epoch}"
        )


def after(known: KnownProducer | None, batch: SequencedBatch) -> KnownProducer:
    """The state of the producer once ``batch`` is in the log. A control batch without a marker changes nothing."""
    if known is None:
        known = KnownProducer(batch.producer_id)
    if batch.is_control and batch.end is None:
        return known
    batches = known.batches if known.producer_epoch == batch.producer_epoch else ()
    if batch.end is not None:
        return known._replace(
            producer_epoch=batch.producer_epoch,
            batches=batches,
            timestamp=batch.timestamp,
            coordinator_epoch=batch.end.coordinator_epoch,
            current_txn_first_offset=NO_OFFSET,
        )
    first_offset = known.current_txn_first_offset
    if batch.is_transactional and first_offset == NO_OFFSET:
        first_offset = batch.first_offset
    return KnownProducer(
        known.producer_id,
        batch.producer_epoch,
        remembered((*batches, *(batch.run or (seen(batch),)))),
        batch.timestamp,
        known.coordinator_epoch,
        first_offset,
    )


def seen(batch: SequencedBatch) -> RememberedBatch:
    """The part of a data batch that is remembered."""
    return RememberedBatch(
        batch.last_sequence, batch.last_offset, batch.last_offset - batch.first_offset, batch.timestamp
    )


def remembered(batches: Sequence[RememberedBatch]) -> tuple[RememberedBatch, ...]:
    """The ``batches`` to remember: the last ones."""
    return tuple(batches[-REMEMBERED_MAX:])


def is_expired(known: KnownProducer, now_ms: int, expiration_ms: int) -> bool:
    """Whether the producer has been silent long enough to be dropped; never inside a transaction."""
    return not known.is_in_transaction and now_ms - known.timestamp >= expiration_ms
