"""Where something is in a segment: values of offsets and positions. No I/O here."""

from __future__ import annotations

from typing import NamedTuple

from kstore.types import TimestampOffset


class Located(NamedTuple):
    """A position to read from, where no batch can begin below ``next_offset``.

    ``size`` is that of the batch there, if its offsets follow those before it; 0 if that is not certain.
    """

    position: int
    size: int
    next_offset: int


START = Located(0, 0, 0)


class BatchPosition(NamedTuple):
    """A whole batch: its base offset, its position in the ``.log``, its size in bytes, and its last offset."""

    base_offset: int
    position: int
    size: int
    last_offset: int


class TimeEntry(NamedTuple):
    """A time index entry that its batch confirms: ``size`` bytes at ``position``, reached from ``located``."""

    entry: TimestampOffset
    position: int
    size: int
    located: Located
