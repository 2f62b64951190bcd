"""What a store says of itself, without opening a log: its metrics, those of its logs, and its table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kstore.engine.read.describe import pieces_of
from kstore.errors import KstoreError
from kstore.files.paths import TopicPartition
from kstore.log import reads_of
from kstore.logs.directory import LogDirectory
from kstore.logs.open_logs import OpenLogs
from kstore.logs.scheduler import TaskStatus
from kstore.logs.topics import Topics
from kstore.metrics import STORE_METRICS, MetricValue
from kstore.rules.notebook import DrawnSegment, html_table, size_text

ROWS_MAX = 20


def store_html(topics: Topics, path: str) -> str:
    """The topics with their partitions, and of the logs that are open the bytes, with a map of their segments."""
    if topics.life.closed:
        return html_table("Store", [("path", path), ("state", "closed")])
    pieces: list[DrawnSegment] = []
    sizes: dict[str, int] = {}
    for owner, log in sorted(topics.logs.open_now()):
        try:
            found = pieces_of(reads_of(log).source)
        except KstoreError:
            continue  # closed at this moment
        pieces += found
        sizes[owner.topic] = sizes.get(owner.topic, 0) + sum(piece.size for piece in found)
    names = sorted(topics.directory.topics)
    rows = [("topic", "partitions", "bytes of open logs")]
    for name in names[:ROWS_MAX]:
        size = size_text(sizes[name]) if name in sizes else "not open"
        rows.append((name, f"{len(topics.directory.numbers(name)):,}", size))
    if len(names) > ROWS_MAX:
        rows.append((f"{len(names) - ROWS_MAX:,} more", "", ""))
    return html_table(f"Store {path}", rows, pieces)


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
