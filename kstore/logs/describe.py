"""The table of a store in a notebook, from what is known without opening a log."""

from __future__ import annotations

from kstore.engine.read.describe import pieces_of
from kstore.errors import KstoreError
from kstore.log import reads_of
from kstore.logs.topics import Topics
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
