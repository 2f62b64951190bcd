"""A producer's counters: updated once per write, wait or failure, never once per record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kstore.clock import Clock
from kstore.engine.pending import PendingAppend
from kstore.files._locks import block
from kstore.producer._accumulate import ProducerBatch

__all__ = ["TRANSACTION_CALLS", "ProducerCounters", "TopicCounters"]

# The calls of a transaction whose time is counted separately.
TRANSACTION_CALLS: Final = ("init", "begin", "send_offsets", "commit", "abort")


class TopicCounters:
    """The written and failed records of one topic."""

    __slots__ = ("bytes", "failed_records", "records", "retries", "uncompressed_bytes")

    def __init__(self) -> None:
        self.records: int = 0
        self.bytes: int = 0
        self.uncompressed_bytes: int = 0
        self.retries: int = 0
        self.failed_records: int = 0


class ProducerCounters:
    """Totals since the producer was created.

    Several threads count without a lock, so every addition uses plain names: see ``metrics.LogCounters``.
    """

    __slots__ = (
        "append_max_seconds",
        "append_seconds",
        "batch_max_bytes",
        "batches",
        "bytes",
        "failed_records",
        "flush_seconds",
        "queue_max_seconds",
        "queue_seconds",
        "records",
        "retries",
        "splits",
        "topics",
        "transaction_seconds",
        "uncompressed_bytes",
        "writes",
    )

    def __init__(self) -> None:
        self.records: int = 0
        self.bytes: int = 0
        self.uncompressed_bytes: int = 0
        self.batches: int = 0
        self.batch_max_bytes: int = 0
        self.writes: int = 0
        self.retries: int = 0
        self.splits: int = 0
        self.failed_records: int = 0
        self.queue_seconds: float = 0.0
        self.queue_max_seconds: float = 0.0
        self.append_seconds: float = 0.0
        self.append_max_seconds: float = 0.0
        self.flush_seconds: float = 0.0
        self.transaction_seconds: dict[str, float] = dict.fromkeys(TRANSACTION_CALLS, 0.0)
        self.topics: dict[str, TopicCounters] = {}

    def wrote(
        self, name: str, batches: Sequence[ProducerBatch], append: PendingAppend, begun: float, now: float
    ) -> None:
        """Counts ``append``, a write of ``batches``, the oldest first, to the topic ``name``, between the two times."""
        result = append.result
        assert result is not None
        created, largest = 0.0, 0
        for batch in batches:
            created += batch.created_at
        for _, _, encoded_size, _, _, _, _ in append.batches:
            if encoded_size > largest:
                largest = encoded_size
        batch_count, records, size = len(batches), result.record_count, result.size
        plain_size = size if append.target_codec == "none" else sum([batch.size for batch in batches])
        waited, longest, took = batch_count * begun - created, begun - batches[0].created_at, now - begun
        topic = self.topics.get(name) or self._topic(name)
        # No call after this line.
        self.records += records
        self.bytes += size
        self.uncompressed_bytes += plain_size
        self.batches += batch_count
        self.writes += 1
        self.queue_seconds += waited
        self.append_seconds += took
        if largest > self.batch_max_bytes:
            self.batch_max_bytes = largest
        if longest > self.queue_max_seconds:
            self.queue_max_seconds = longest
        if took > self.append_max_seconds:
            self.append_max_seconds = took
        topic.records += records
        topic.bytes += size
        topic.uncompressed_bytes += plain_size

    def retried(self, name: str) -> None:
        """Counts a write to a topic that will be retried."""
        topic = self.topics.get(name) or self._topic(name)
        self.retries += 1
        topic.retries += 1

    def failed(self, name: str | None, records: int) -> None:
        """Counts records that failed; None for a topic that does not exist."""
        self.failed_records += records
        if name is not None:
            topic = self.topics.get(name) or self._topic(name)
            topic.failed_records += records

    def flushed(self, seconds: float) -> None:
        """Counts a flush, failed or not."""
        self.flush_seconds += seconds

    @block
    def transaction_call(self, name: str, clock: Clock) -> Iterator[None]:
        """Counts the time of a call of ``TRANSACTION_CALLS``, failed or not."""
        begun = clock.monotonic()
        try:
            yield
        finally:
            seconds = clock.monotonic() - begun
            self.transaction_seconds[name] += seconds

    def _topic(self, name: str) -> TopicCounters:
        return self.topics.setdefault(name, TopicCounters())
