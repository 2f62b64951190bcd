"""Where something is in a segment: values of offsets and positions. No I/O here.

A reader also notes which bytes it has checked, so that they may leave the process without being read again. Such a
span is forgotten with the ``contents`` it was checked in, which a segment replaces when its file may be another one, or
was cut.
"""

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


# Consumers at this many distant places of one segment keep what was checked for each.
SPANS_MAX = 16


class CheckedSpan(NamedTuple):
    """Whole batches from position ``start`` to below ``stop``, of which CRCs and the order of offsets are right.

    They begin at ``first_offset``; no batch at ``stop`` begins below ``next_offset``.
    """

    start: int
    stop: int
    first_offset: int
    next_offset: int


class CheckedSpans(NamedTuple):
    """The spans of one segment whose ``contents`` are these: disjoint, the last one that grew at the end. Immutable."""

    contents: object
    spans: tuple[CheckedSpan, ...] = ()

    def holding(self, position: int) -> CheckedSpan | None:
        """The span that holds the byte at ``position``."""
        for span in self.spans:
            if span.start <= position < span.stop:
                return span
        return None

    def with_batch(self, batch: BatchPosition) -> CheckedSpan:
        """A span that ends with ``batch``, which no span holds: that of the batches before it, or a new one."""
        start, first_offset = batch.position, batch.base_offset
        for span in self.spans:
            if span.stop == batch.position and span.next_offset <= batch.base_offset:
                start, first_offset = span.start, span.first_offset
        return CheckedSpan(start, batch.position + batch.size, first_offset, batch.last_offset + 1)

    def beginning(self, position: int) -> CheckedSpan | None:
        """The span that begins at ``position``."""
        for span in self.spans:
            if span.start == position:
                return span
        return None

    def joined(self, grown: CheckedSpan) -> CheckedSpans:
        """With ``grown`` in the place of all spans that it covers; the one that grew least recently may go."""
        kept = [span for span in self.spans if span.stop <= grown.start or span.start >= grown.stop]
        return CheckedSpans(self.contents, (*kept[-(SPANS_MAX - 1) :], grown))


NO_SPANS = CheckedSpans(None)
