"""A count with its noun: ``1 record``, ``2 records``."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """``count`` and ``noun``, with an "s" unless the count is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
