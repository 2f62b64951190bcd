"""Which bytes of a segment this process has checked, so that they may leave it without being read again. No I/O here.

A span is forgotten with the ``contents`` it was checked in, which a segment replaces when its file may be another one,
or was cut.
"""

from __future__ import annotations

from typing import NamedTuple

from kstore.segments.places import BatchPosition

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
