"""The counters of a consumer's reading: updated once per batch and once per piece, never per record."""

from __future__ import annotations


class ReadingCounters:
    """For all partitions that a consumer reads, or has read."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records: int = 0
        self.bytes: int = 0
