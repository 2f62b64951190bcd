"""A producer's counters, updated once per write, wait or failure, never once per record; and its present metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from kstore.clock import Clock
from kstore.engine.append.pending import PendingAppend
from kstore.errors import ClosedError, TopicNotFoundError
from kstore.files._locks import block
from kstore.logs.topics import Topics
from kstore.metrics import PRODUCER_METRICS, PRODUCER_TOPIC_METRICS
from kstore.producer._accumulate import ProducerBatch, WriteCounts, WrittenCounts
from kstore.producer.buffer_pool import BufferPool

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


def producer_metrics(
    counters: ProducerCounters, pool: BufferPool, *, waiting_batches: int, metadata_wait_seconds: float
) -> dict[str, float]:
    """Every metric of ``PRODUCER_METRICS``, in that order; an average of nothing is 0."""
    known: dict[str, float] = {
        "records": counters.records,
        "bytes": counters.bytes,
        "batches": counters.batches,
        "writes": counters.writes,
        "records_per_write": _ratio(counters.records, counters.writes),
        "batch_avg_bytes": _ratio(counters.bytes, counters.batches),
        "batch_max_bytes": counters.batch_max_bytes,
        "compression_ratio": _ratio(counters.bytes, counters.uncompressed_bytes, 1.0),
        "queue_seconds": counters.queue_seconds,
        "queue_avg_seconds": _ratio(counters.queue_seconds, counters.batches),
        "queue_max_seconds": counters.queue_max_seconds,
        "append_seconds": counters.append_seconds,
        "append_avg_seconds": _ratio(counters.append_seconds, counters.writes),
        "append_max_seconds": counters.append_max_seconds,
        "retries": counters.retries,
        "splits": counters.splits,
        "failed_records": counters.failed_records,
        "flush_seconds": counters.flush_seconds,
        **{f"transaction_{name}_seconds": counters.transaction_seconds[name] for name in TRANSACTION_CALLS},
        "metadata_wait_seconds": metadata_wait_seconds,
        "buffer_total_bytes": pool.total_bytes,
        "buffer_available_bytes": pool.available,
        "buffer_waiting_threads": pool.waiting_count,
        "buffer_exhausted": pool.exhausted_total,
        "buffer_wait_seconds": pool.wait_ns_total / 1e9,
        "waiting_batches": waiting_batches,
    }
    return {metric.name: known[metric.name] for metric in PRODUCER_METRICS}


def topic_metrics(counters: ProducerCounters, topics: Topics) -> dict[str, dict[str, float]]:
    """Every metric of ``PRODUCER_TOPIC_METRICS`` by topic; drops the counters of deleted topics."""
    found: dict[str, dict[str, float]] = {}
    for name, topic in sorted(counters.topics.copy().items()):
        try:
            with suppress(ClosedError):
                topics.partition_count(name)
        except TopicNotFoundError:
            counters.topics.pop(name, None)
            continue
        known = {
            "records": topic.records,
            "bytes": topic.bytes,
            "retries": topic.retries,
            "failed_records": topic.failed_records,
            "compression_ratio": _ratio(topic.bytes, topic.uncompressed_bytes, 1.0),
        }
        found[name] = {metric.name: known[metric.name] for metric in PRODUCER_TOPIC_METRICS}
    return found


def _ratio(total: float, count: float, of_nothing: float = 0.0) -> float:
    return total / count if count else of_nothing
