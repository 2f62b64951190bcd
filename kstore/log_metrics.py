"""What a log's metrics are at the moment: its counters, and what is measured when somebody asks (``metrics``)."""

from __future__ import annotations

from collections.abc import Mapping

from kstore.log_source import LogSource
from kstore.metrics import METRICS, MetricValue
from kstore.types import RecoveryReport

__all__ = ["log_metrics"]


def log_metrics(
    source: LogSource,
    recovery: RecoveryReport,
    segment_count: int,
    size: int,
    writer_gauges: Mapping[str, MetricValue],
) -> dict[str, MetricValue]:
    """Every metric of ``METRICS`` that the log has, in that order. Raises: StorageError."""
    published = source.published
    stable_offset = published.high_watermark
    if source.producers.in_use:
        # Else nothing is read to make sure that there is no transaction: who asks often must not pay for that.
        stable_offset = source.last_stable_offset()
    known: dict[str, MetricValue] = {
        **source.context.counters.read(),
        "recoveries": int(recovery.bytes_scanned > 0),
        "recovery_seconds": recovery.seconds,
        "recovery_bytes_cut": recovery.bytes_cut,
        "fenced_ranges": len(recovery.corrupt),
        "segments": segment_count,
        "size_bytes": size,
        "start_offset": source.start_offset,
        "end_offset": published.offset,
        "high_watermark": published.high_watermark,
        "last_stable_offset": stable_offset,
        "open_handles": len(source.context.handles),
        **writer_gauges,
    }
    return {metric.name: known[metric.name] for metric in METRICS if metric.name in known}
