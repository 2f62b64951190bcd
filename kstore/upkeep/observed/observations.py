"""What is learnt about a log while ``upkeep.stats`` counts it: times, transactions, keys. No I/O here."""

from __future__ import annotations

from kstore.record._runs import KeySketch, Run, batch_times, follow_transactions
from kstore.record.batch import Batch, RecordBatch
from kstore.record.control import ControlRecordType, parse_control_type
from kstore.scan.visits import Visitor
from kstore.upkeep.observed.keys import KeySummary
from kstore.upkeep.observed.timeline import Timeline
from kstore.upkeep.observed.transactions import OPEN_MAX, Ended, Transactions

# A message of version 1 without its key and its value.
MESSAGE_HEAD_BYTES = 34
ENDS = {ControlRecordType.COMMIT: True, ControlRecordType.ABORT: False}


class Observations(Visitor):
    """What was observed in one log. Not thread-safe.

    ``with_keys``: records are decoded, and their keys go into a sketch of 1 MiB.
    """

    def __init__(self, *, with_keys: bool) -> None:
        self.timeline = Timeline()
        self.transactions = Transactions()
        self._sketch = KeySketch() if with_keys else None

    @property
    def keys(self) -> KeySummary | None:
        """None without keys."""
        return None if self._sketch is None else KeySummary.of(self._sketch)

    def begin_segment(self, *, is_last: bool) -> None:
        """``is_last``: of its log."""
        if self._sketch is not None:
            # No compaction changes the active segment.
            self._sketch.is_sampling = not is_last

    def note_run(self, run: Run) -> None:
        """Takes plain batches of version 2, counted with their records."""
        timeline = self.timeline
        width_ms = timeline.width_ms
        for number, *counts in batch_times(run, width_ms):
            timeline.add(number * width_ms if number >= 0 else -1, *counts)
        if run.has_producers:
            ended = follow_transactions(run, self.transactions.opened, OPEN_MAX)
            self.transactions.add(map(Ended._make, ended))
        if self._sketch is not None:
            self._sketch.add(run)

    def note(self, position: int, batch: Batch) -> None:
        """Takes any other batch; only its header, unless counting needed more."""
        self.timeline.add(batch.max_timestamp, batch.size, batch.record_count, last_offset=batch.last_offset)
        if not isinstance(batch, RecordBatch):
            self._message_set(batch)
            return
        if batch.is_control:
            for record in batch.records():
                kind = parse_control_type(record.key)
                if kind in ENDS:
                    offset, time_ms = record.offset, batch.max_timestamp
                    self.transactions.end(batch.producer_id, offset, time_ms, is_committed=ENDS[kind])
        elif batch.is_transactional and batch.producer_id >= 0:
            self.transactions.begin(batch.producer_id, batch.base_offset, batch.max_timestamp)

    def note_payload(self, payload: memoryview | bytes, record_count: int, last_offset_delta: int) -> None:
        """Takes the records of the next batch, decompressed, with their count and the batch's last offset delta."""
        if self._sketch is not None:
            self._sketch.add_records(payload, record_count, last_offset_delta)

    def _message_set(self, batch: Batch) -> None:
        if self._sketch is not None:
            for record in batch.records():
                if record.key is not None:
                    size = MESSAGE_HEAD_BYTES + len(record.key) + len(record.value or b"")
                    self._sketch.add_key(record.key, size)
