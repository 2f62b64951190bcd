"""What a log knows of its producers: who wrote last, and which transactions are open.

Kept from the batches as they pass, in the order of their offsets, from the newest snapshot on (ProducerStateManager).
Not thread-safe: the log's lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kstore.record.batch import Batch
from kstore.record.control import ControlRecordType, parse_end_transaction_marker
from kstore.state.producer_snapshot import ProducerEntry
from kstore.types import NO_OFFSET, AbortedTransaction

__all__ = ["ProducerState"]


class ProducerState:
    """The producers of one log."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.entries: dict[int, ProducerEntry] = {entry.producer_id: entry for entry in entries}
        self._open: dict[int, int] = {
            entry.producer_id: entry.current_txn_first_offset
            for entry in self.entries.values()
            if entry.current_txn_first_offset != NO_OFFSET
        }

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest open transaction, None where none is open."""
        return min(self._open.values(), default=None)

    def update(self, batch: Batch) -> AbortedTransaction | None:
        """Takes ``batch`` into account; returns what its abort marker adds to the transaction index, if it is one.

        Raises: CorruptDataError for a control batch whose marker cannot be read.
        """
        if batch.producer_id < 0:
            return None
        if batch.is_control:
            return self._end(batch)
        first_offset = self._open.get(batch.producer_id, NO_OFFSET)
        if batch.is_transactional and first_offset == NO_OFFSET:
            first_offset = self._open[batch.producer_id] = batch.base_offset
        known = self.entries.get(batch.producer_id)
        self.entries[batch.producer_id] = ProducerEntry(
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            last_sequence=batch.last_sequence,
            last_offset=batch.last_offset,
            offset_delta=batch.last_offset - batch.base_offset,
            timestamp=batch.max_timestamp,
            coordinator_epoch=known.coordinator_epoch if known else -1,
            current_txn_first_offset=first_offset,
        )
        return None

    def _end(self, batch: Batch) -> AbortedTransaction | None:
        marker = next(iter(batch.records()), None)
        if marker is None:
            return None  # compaction leaves empty control batches behind
        end = parse_end_transaction_marker(marker.key, marker.value)
        if end is None:
            return None  # a control record of another kind
        first_offset = self._open.pop(batch.producer_id, NO_OFFSET)
        known = self.entries.get(batch.producer_id)
        if known is None or known.producer_epoch != batch.producer_epoch:
            known = ProducerEntry(batch.producer_id, batch.producer_epoch, -1, NO_OFFSET, 0, 0, -1, NO_OFFSET)
        self.entries[batch.producer_id] = known._replace(
            timestamp=batch.max_timestamp, coordinator_epoch=end.coordinator_epoch, current_txn_first_offset=NO_OFFSET
        )
        if end.type != ControlRecordType.ABORT or first_offset == NO_OFFSET:
            return None
        still_open = self.first_unstable_offset
        last_stable_offset = still_open if still_open is not None else batch.last_offset + 1
        return AbortedTransaction(batch.producer_id, first_offset, batch.last_offset, last_stable_offset)
