"""What is counted where a consumer reads: once a batch and once a piece, never record by record."""

from __future__ import annotations

__all__ = ["ReadingCounters"]


class ReadingCounters:
    """Of all partitions that a consumer reads, or has read."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = self.bytes = 0
