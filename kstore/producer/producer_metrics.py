"""The current metrics of a producer: its counters, and values that are measured on request (``metrics``)."""

from __future__ import annotations

from contextlib import suppress

from kstore.errors import ClosedError, TopicNotFoundError
from kstore.logs.topics import Topics
from kstore.metrics import PRODUCER_METRICS, PRODUCER_TOPIC_METRICS
from kstore.producer.buffer_pool import BufferPool
from kstore.producer.counters import TRANSACTION_CALLS, ProducerCounters


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
