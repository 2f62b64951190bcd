"""What a log's ``repr`` says, from what is known without a look at the disk, and its table in a notebook."""

from __future__ import annotations

from kstore.engine.source import LogSource
from kstore.errors import KstoreError
from kstore.rules.notebook import DrawnSegment, html_table, size_text

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
