"""A store's present metrics: its own, and those of its logs (``metrics``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kstore.errors import KstoreError
from kstore.files.paths import TopicPartition
from kstore.logs.directory import LogDirectory
from kstore.logs.open_logs import OpenLogs
from kstore.logs.scheduler import TaskStatus
from kstore.metrics import STORE_METRICS, MetricValue


def logs_metrics(logs: OpenLogs) -> dict[TopicPartition, dict[str, MetricValue]]:
    """By partition, for every log opened so far: all metrics while it is open, else its counters."""
    known: dict[TopicPartition, dict[str, MetricValue]] = {}
    open_now = dict(logs.open_now())
    for owner, counters in sorted(logs.counters().items()):
        try:
            known[owner] = open_now[owner].metrics()
        except (KeyError, KstoreError):
            known[owner] = counters.read()  # it is closed, or being closed
    return known


def store_metrics(
    directory: LogDirectory, logs: OpenLogs, tasks: Sequence[TaskStatus], lags: Mapping[str, float]
) -> dict[str, MetricValue]:
    """Every metric of ``STORE_METRICS``. ``lags``: by target, those of the replicators."""
    partition_counts = [len(directory.numbers(name)) for name in directory.topics]
    known: dict[str, MetricValue] = {
        "topics": len(partition_counts) - partition_counts.count(0),
        "partitions": sum(partition_counts),
        "open_logs": len(logs.open_now()),
        "task_runs": {task.name: task.run_count for task in tasks},
        "task_errors": {task.name: task.error_count for task in tasks},
        "task_last_run_seconds": {task.name: task.last_seconds for task in tasks},
        "task_last_run_timestamp_seconds": {task.name: (task.last_run_ms or 0) / 1000 for task in tasks},
        "replication_lag_seconds": dict(lags),
        "ignored_names": len(directory.ignored),
        "notes": len(directory.notes),
    }
    return {metric.name: known[metric.name] for metric in STORE_METRICS}
