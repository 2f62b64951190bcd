"""What was appended since a known end of a log, without the machinery of a long read: one read, one compiled check.

It is for a caller that comes back often, for a few small records each time. Only what needs no decision is read here,
as in ``lookup``. The caller takes the general path for anything else: a roll, a cut, a gap, damage, a compressed batch.
"""

from __future__ import annotations

from kstore.engine.ends import Ends
from kstore.engine.read.reads import LogReads
from kstore.errors import StorageError
from kstore.record._runs import walk_run

# At most this much is read at once.
READ_BYTES_MAX = 1 << 16


class Onward:
    """Reads on from an end of the log that it has noted. Not thread-safe."""

    def __init__(self, log: LogReads) -> None:
        self._log = log
        self._from: Ends | None = None
        # As it was when that end was noted.
        self._cut_count = 0

    def note(self, offset: int) -> None:
        """Notes where the log ends, if it ends at ``offset``, which is then the first one to be read."""
        source = self._log.source
        # First: an end from before a cut must not count as one from after it.
        cut_count, ends = source.cut_count, source.ends
        if ends.end_offset == offset:
            self._from, self._cut_count = ends, cut_count

    def values(self, start: int, stop: int) -> list[bytes | None] | None:
        """The values of the records from ``start`` to below ``stop``; None if the general path must read them.

        Raises: ClosedError, ForkedError.
        """
        source = self._log.source
        began, ends = self._from, source.ends
        if (
            began is None
            or not began.end_offset <= start < stop <= ends.high_watermark
            or began.base_offset != ends.base_offset
            or not 0 < ends.position - began.position <= READ_BYTES_MAX
        ):
            return None
        holding = source.segments.holding(start)
        if holding is None or holding[0].base_offset != ends.base_offset:
            return None
        size = ends.position - began.position
        try:
            data = holding[0].log_file().pread(size, began.position)
        except StorageError:
            return None
        if source.cut_count != self._cut_count:
            return None
        run = walk_run(
            data, 0, size, began.position, began.end_offset, size, ends.end_offset + 1, 0, max(stop, began.end_offset)
        )
        if run.has_gap or run.next_offset < stop:
            return None
        counters = source.context.counters
        found = list(run.values(start, stop, counters.delivered))
        if len(found) != stop - start:
            return None
        counters.reads += 1
        if run.next_offset == ends.end_offset:
            self._from = ends
        return found
