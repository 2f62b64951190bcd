"""Numbers as people read them: bytes, counts, times."""

from __future__ import annotations

from datetime import UTC, datetime

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
NONE = "-"


def size_text(size: int) -> str:
    """``1536`` -> ``"1.50 KiB"``: three digits."""
    value, unit = float(size), 0
    while value >= 1000 and unit < len(UNITS) - 1:
        value /= 1024
        unit += 1
    if unit == 0:
        return f"{size} byte" if size == 1 else f"{size} bytes"
    return f"{value:.{max(3 - len(str(int(value))), 0)}f} {UNITS[unit]}"


def count_text(count: int) -> str:
    """With commas between the thousands."""
    return f"{count:,}"


def time_text(timestamp_ms: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """The time in UTC; the bare number if its year does not have four digits; a dash below 0."""
    if timestamp_ms < 0:
        return NONE
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def duration_text(ms: int) -> str:
    """In the largest unit of which it is exactly one, or at least two: ``"1,102 days"``, ``"90 min"``."""
    for name, size in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= 2 * size or ms == size:
            return f"{ms // size:,} {name}"
    return f"{ms} ms"


def counted(count: int, noun: str) -> str:
    """``count`` and ``noun``, with an "s" unless the count is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
