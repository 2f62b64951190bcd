"""A producer's counters: updated once per write, wait or failure, never once per record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kstore.clock import Clock
from kstore.engine.append.pending import PendingAppend
from kstore.files._locks import block
from kstore.producer._accumulate import ProducerBatch, WriteCounts, WrittenCounts

# The calls of a transaction whose time is counted separately.
TRANSACTION_CALLS: Final = ("init", "begin", "send_offsets", "commit", "abort")


class TopicCounters(WrittenCounts):
    """The written and failed records of one topic."""

    __slots__ = ("failed_records", "retries")

    def __init__(self) -> None:
        self.retries: int = 0
        self.failed_records: int = 0


class ProducerCounters(WriteCounts):
    """Totals since the producer was created.

    Several threads count without a lock, so every addition uses plain names: see ``metrics.LogCounters``.
    """

    __slots__ = ("failed_records", "flush_seconds", "retries", "splits", "topics", "transaction_seconds")

    def __init__(self) -> None:
        self.retries: int = 0
        self.splits: int = 0
        self.failed_records: int = 0
        self.flush_seconds: float = 0.0
        self.transaction_seconds: dict[str, float] = dict.fromkeys(TRANSACTION_CALLS, 0.0)
        self.topics: dict[str, TopicCounters] = {}

    def wrote(self, name: str, batches: list[ProducerBatch], append: PendingAppend, begun: float, now: float) -> None:
        """Counts ``append``, a write of ``batches``, the oldest first, to the topic ``name``, between the two times."""
        result = append.result
        assert result is not None
        self.count_write(
            self.topics.get(name) or self._topic(name),
            batches,
            append.batches,
            result.record_count,
            result.size,
            begun,
            now,
            is_compressed=append.target_codec != "none",
        )

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
