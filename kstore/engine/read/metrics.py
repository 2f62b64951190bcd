"""A log's present metrics: its counters, and what ``metrics`` measures on request."""

from __future__ import annotations

from collections.abc import Mapping

from kstore.engine.read.reads import segment_count_and_size
from kstore.engine.source import LogSource
from kstore.metrics import METRICS, MetricValue
from kstore.rules.losses import clipped, holes, joined, span_size
from kstore.types import RecoveryReport


def log_metrics(source: LogSource, gauges: Mapping[str, MetricValue]) -> dict[str, MetricValue]:
    """Every metric of ``METRICS`` that the log has, in that order; ``gauges`` are those that only its writer knows.

    Raises: StorageError.
    """
    segment_count, size = segment_count_and_size(source)
    recovery = source.report
    ends = source.ends
    stable_offset = ends.high_watermark
    if source.producers.in_use:
        # Otherwise nothing is read to make sure that there is no transaction: frequent requests must stay cheap.
        stable_offset = source.last_stable_offset()
    known: dict[str, MetricValue] = {
        **source.context.counters.read(),
        "recoveries": int(recovery.bytes_scanned > 0),
        "recovery_seconds": recovery.seconds,
        "recovery_cut_bytes": recovery.bytes_cut,
        "fenced_ranges": len(recovery.corrupt),
        **_loss_gauges(source, recovery),
        "segments": segment_count,
        "size_bytes": size,
        "start_offset": ends.start_offset,
        "end_offset": ends.end_offset,
        "high_watermark": ends.high_watermark,
        "last_stable_offset": stable_offset,
        "open_handles": len(source.context.handles),
        **gauges,
    }
    return {metric.name: known[metric.name] for metric in METRICS if metric.name in known}


def _loss_gauges(source: LogSource, recovery: RecoveryReport) -> dict[str, MetricValue]:
    losses, start, end = source.losses, source.ends.start_offset, source.ends.end_offset
    found = clipped(joined((damage.first, damage.last) for damage in recovery.corrupt), start, end)
    reported = joined(losses.lost, losses.accepted)
    return {
        "fenced_offsets": sum(span_size(holes(*span, reported)) for span in found),
        "lost_offsets": span_size(losses.missing(start, end)),
        "accepted_offsets": span_size(losses.accepted),
    }
