"""A consumer's counters, and the current values of its metrics; any thread may read them."""

from __future__ import annotations

from collections.abc import Collection

from kstore.consumer.fetching import PartitionReader, ReadingCounters
from kstore.errors import KstoreError
from kstore.files.paths import TopicPartition
from kstore.metric_rows import CONSUMER_METRICS


class ConsumerCounters:
    """The counters other than those of reading, updated by the consumer's own thread."""

    def __init__(self, now: float) -> None:
        self.commits = self.commit_errors = self.rebalances = 0
        self.commit_seconds: float = 0.0
        # By the monotonic clock.
        self.asked_at = now


def consumer_metrics(
    counters: ConsumerCounters, read: ReadingCounters, readers: Collection[PartitionReader], now: float
) -> dict[str, float]:
    """Every metric of ``CONSUMER_METRICS``, in that order."""
    lags = [values["lag_records"] for values in partition_metrics(readers).values() if "lag_records" in values]
    known: dict[str, float] = {
        "records": read.records,
        "bytes": read.bytes,
        "commits": counters.commits,
        "commit_errors": counters.commit_errors,
        "commit_seconds": counters.commit_seconds,
        "rebalances": counters.rebalances,
        "partitions": len(readers),
        "lag_records": sum(lags),
        "lag_max_records": max(lags, default=0),
        "last_poll_age_seconds": now - counters.asked_at,
    }
    return {metric.name: known[metric.name] for metric in CONSUMER_METRICS}


def partition_metrics(readers: Collection[PartitionReader]) -> dict[TopicPartition, dict[str, float]]:
    """Every metric of ``CONSUMER_PARTITION_METRICS`` by partition; without those that are closed, or not begun."""
    found: dict[TopicPartition, dict[str, float]] = {}
    for reader in readers:
        position = reader.known_position()
        if position is None:
            continue
        try:
            lag = max(reader.end_offset() - position, 0)
        except KstoreError:
            continue
        found[reader.owner] = {"position": position, "lag_records": lag}
    return found
