"""What a log knows of its producers: who wrote last, and which transactions are open.

Built from the batches as they pass, in offset order, starting from the newest snapshot (ProducerStateManager). Not
thread-safe: the log's lock guards it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import merge

from kstore.record._runs import Run, follow_producers
from kstore.record.batch import Batch, RecordBatch
from kstore.record.control import ControlRecordType
from kstore.rules.sequence import (
    KnownProducer,
    RememberedBatch,
    SequencedBatch,
    after,
    is_expired,
    producer_batch,
    remembered,
)
from kstore.state.producer_snapshot import ProducerEntry
from kstore.types import AbortedTransaction

# The offset of its first batch, and its producer's id.
OpenTransaction = tuple[int, int]


class OpenTransactions:
    """The open transactions of one log, the oldest first. Not thread-safe.

    Each marker of an abort asks for the oldest one, and a foreign log may hold any number of them: so that takes the
    same time for one as for a million.
    """

    __slots__ = ("_begun", "_given")

    def __init__(self, given: Iterable[OpenTransaction] = ()) -> None:
        # Both in order. What begins later has a greater offset, except than what a wrong snapshot gives.
        self._given: OrderedDict[OpenTransaction, None] = OrderedDict.fromkeys(sorted(given))
        self._begun: OrderedDict[OpenTransaction, None] = OrderedDict()

    def copy(self) -> OpenTransactions:
        other = OpenTransactions()
        other._given, other._begun = self._given.copy(), self._begun.copy()
        return other

    def __len__(self) -> int:
        return len(self._given) + len(self._begun)

    def __contains__(self, transaction: object) -> bool:
        return transaction in self._begun or transaction in self._given

    def __iter__(self) -> Iterator[OpenTransaction]:
        """The oldest first."""
        return merge(self._given, self._begun)

    @property
    def first_offset(self) -> int | None:
        """Where the oldest one begins, None if none is open."""
        for first_offset, _ in self:
            return first_offset
        return None

    def begin(self, transaction: OpenTransaction) -> None:
        """Adds one, whose offset is above those that began before. After a lack of memory nothing has changed."""
        if self._begun and transaction < next(reversed(self._begun)):
            # Segments overlap.
            self._given, self._begun = OrderedDict.fromkeys(self), OrderedDict()
        self._begun[transaction] = None

    def end(self, transaction: OpenTransaction) -> None:
        """Removes one, if it is there. Needs no memory."""
        if transaction in self._begun:
            del self._begun[transaction]
        elif transaction in self._given:
            del self._given[transaction]


class ProducerState:
    """The producers of one log, by their ids."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.producers: dict[int, KnownProducer] = {entry.producer_id: to_producer(entry) for entry in entries}
        self._open: OpenTransactions = self._opened()

    def _opened(self) -> OpenTransactions:
        """The open transactions, by what is known of the producers."""
        return OpenTransactions(
            (producer.current_txn_first_offset, producer.producer_id)
            for producer in self.producers.values()
            if producer.is_in_transaction
        )

    def copy(self) -> ProducerState:
        """The same at this moment; changes of one are not changes of the other."""
        other = ProducerState()
        other.producers, other._open = self.producers.copy(), self._open.copy()
        return other

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest open transaction, None if none is open."""
        return self._open.first_offset

    @property
    def has_open_transactions(self) -> bool:
        return bool(self._open)

    @property
    def open_transactions(self) -> Iterator[KnownProducer]:
        """The producers with an open transaction, the oldest transaction first."""
        return (self.producers[producer_id] for _, producer_id in self._open)

    def entries(self) -> list[ProducerEntry]:
        """The contents of a snapshot: the newest of each producer's batches."""
        return [to_entry(producer) for producer in self.producers.values()]

    def update(self, batch: Batch) -> AbortedTransaction | None:
        """Adds ``batch``, unchecked, like ``apply``.

        Raises: CorruptDataError for a control batch whose marker cannot be read; then nothing has changed.
        """
        return None if batch.producer_id < 0 else self.apply(producer_batch(batch))

    def update_run(
        self, run: Run, first: int = -1, last: int = -1
    ) -> tuple[list[AbortedTransaction], list[RecordBatch]]:
        """As ``update`` of every batch of ``run``: the aborted transactions, and the markers that cannot be read.

        ``first``, ``last``: places in its data, for the batches between them alone. After an error nothing has changed.
        """
        open_count = len(self._open)
        changed, aborted, unreadable = follow_producers(run, self.producers, iter(self._open), first, last)
        found = list(map(AbortedTransaction._make, aborted)), unreadable
        producers = [
            (producer_id, KnownProducer(producer_id, epoch, tuple(map(RememberedBatch._make, batches)), *others))
            for producer_id, epoch, batches, *others in changed
        ]
        were = [self.producers.get(producer_id) for producer_id, _ in producers]
        moves = [
            (_transaction_of(known), _transaction_of(producer))
            for known, (_, producer) in zip(were, producers, strict=True)
        ]
        ended = [before for before, now in moves if before is not None and before != now]
        begun = sorted([now for before, now in moves if now is not None and before != now])
        # Only the dict, and what begins, may need memory from here on; what puts it back needs none.
        before = zip(were, producers, strict=True)
        undone = iter(begun)
        try:
            for transaction in begun:
                self._open.begin(transaction)
            for producer_id, producer in producers:
                self.producers[producer_id] = producer
            for transaction in ended:
                self._open.end(transaction)
        except BaseException:
            for known, (producer_id, _) in before:
                if known is not None:
                    self.producers[producer_id] = known
                else:
                    self.producers.pop(producer_id, None)
            for transaction in undone:
                self._open.end(transaction)
            if len(self._open) != open_count:  # an interrupt came while they ended
                self._open = self._opened()
            raise
        return found

    def apply(self, batch: SequencedBatch) -> AbortedTransaction | None:
        """Adds ``batch``; returns the entry that an abort marker adds to the transaction index, if it is one."""
        if batch.is_control and batch.end is None:
            return None
        producer_id = batch.producer_id
        known = self.producers.get(producer_id)
        changed = self.producers[producer_id] = after(known, batch)
        before, now = _transaction_of(known), _transaction_of(changed)
        if now is not None:
            if now != before:
                self._open.begin(now)
            return None
        if before is None:
            return None
        self._open.end(before)
        if batch.end is None or batch.end.type != ControlRecordType.ABORT:
            return None
        still_open = self.first_unstable_offset
        last_stable_offset = still_open if still_open is not None else batch.last_offset + 1
        return AbortedTransaction(producer_id, before[0], batch.last_offset, last_stable_offset)

    def recall(self, producer_id: int, earlier: Iterable[RememberedBatch]) -> None:
        """Adds batches of a known producer that precede the remembered ones."""
        known = self.producers[producer_id]
        self.producers[producer_id] = known._replace(batches=remembered((*earlier, *known.batches)))

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drops producers that have written nothing for ``expiration_ms``; returns their number."""
        gone = [
            producer.producer_id for producer in self.producers.values() if is_expired(producer, now_ms, expiration_ms)
        ]
        for producer_id in gone:
            del self.producers[producer_id]
        return len(gone)


def _transaction_of(producer: KnownProducer | None) -> OpenTransaction | None:
    """The open transaction of a producer that may not be known."""
    if producer is None or not producer.is_in_transaction:
        return None
    return producer.current_txn_first_offset, producer.producer_id


def to_entry(producer: KnownProducer) -> ProducerEntry:
    """The entry of a producer in a snapshot."""
    return ProducerEntry(
        producer.producer_id,
        producer.producer_epoch,
        producer.last_sequence,
        producer.last_offset,
        producer.offset_delta,
        producer.timestamp,
        producer.coordinator_epoch,
        producer.current_txn_first_offset,
    )


def to_producer(entry: ProducerEntry) -> KnownProducer:
    """The producer of a snapshot's entry."""
    batches: tuple[RememberedBatch, ...] = ()
    if entry.last_offset >= 0:
        batches = (RememberedBatch(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp),)
    return KnownProducer(
        entry.producer_id,
        entry.producer_epoch,
        batches,
        entry.timestamp,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )
