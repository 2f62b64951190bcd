"""What a log's ``repr`` says, from what is known without a look at the disk."""

from __future__ import annotations

from kstore.engine.source import LogSource

__all__ = ["described"]

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
        parts.append(_size_text(sum(sizes)))
    return f"Log({', '.join(parts)})"


def _size_text(size: int) -> str:
    amount, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"
