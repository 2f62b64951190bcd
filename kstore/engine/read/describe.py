"""What a log says of itself: its metrics, its ``repr``, from what is known without a look at the disk, and its table in
a notebook.
"""

from __future__ import annotations

from collections.abc import Mapping

from kstore.engine.read.reads import segment_count_and_size
from kstore.engine.source import LogSource
from kstore.errors import KstoreError
from kstore.metrics import METRICS, MetricValue
from kstore.rules.losses import clipped, holes, joined, span_size
from kstore.rules.notebook import DrawnSegment, html_table, size_text
from kstore.types import RecoveryReport

# With more segments their sizes are not added up.
SEGMENTS_MAX = 1000


def described(source: LogSource | None, path: str, *, closed: bool) -> str:
    """``Log('data/orders-0', offsets 0..4500, 14 segments, 216 kB)``; the last offset is the end, exclusive."""
    if source is None or closed:
        return f"Log({path!r}, closed)"
    ends = source.ends
    segments = source.segments.snapshot.segments
    parts = [repr(path), f"offsets {ends.start_offset}..{ends.end_offset}"]
    parts.append(f"{len(segments)} segment{'' if len(segments) == 1 else 's'}")
    sizes = [segment.known_size for segment in segments[:SEGMENTS_MAX]]
    if len(segments) <= SEGMENTS_MAX and -1 not in sizes:
        parts.append(size_text(sum(sizes)))
    return f"Log({', '.join(parts)})"


def log_html(source: LogSource | None, path: str, *, closed: bool) -> str:
    """The same as a table, with a map of the segments."""
    if source is None or closed:
        return html_table("Log", [("path", path), ("state", "closed")])
    ends, pieces = source.ends, pieces_of(source)
    rows = [
        ("path", path),
        ("offsets", f"{ends.start_offset:,} to {ends.end_offset:,}"),
        ("readable to", f"{ends.high_watermark:,}"),
        ("segments", f"{len(source.segments.snapshot.segments):,}"),
    ]
    if pieces:
        rows.append(("bytes", size_text(sum(piece.size for piece in pieces))))
    return html_table("Log", rows, pieces)


def pieces_of(source: LogSource) -> list[DrawnSegment]:
    """The segments; none if there are too many, or one cannot be found. Their sizes may need a look at the files."""
    segments = source.segments.snapshot.segments
    if len(segments) > SEGMENTS_MAX:
        return []
    try:
        return [DrawnSegment(segment.base_offset, segment.size, segment is segments[-1]) for segment in segments]
    except (KstoreError, OSError):
        return []


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
