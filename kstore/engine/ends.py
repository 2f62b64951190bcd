"""Where a log begins and ends: one immutable value, replaced by one store.

Readers take no lock: they take one ``Ends`` and work with it. The writer computes the next one, stores first what
lowers a promise, acts, syncs, stores last what raises one, and then publishes the new value. A step that fails before
the act leaves nothing to undo.

The order that always holds::

    start_offset <= high_watermark <= end_offset
    recovery_point <= end_offset        durable_end <= end_offset

=============  =========================================  ==========================================================
               high watermark                             recovery point and durable end
=============  =========================================  ==========================================================
sync           high_watermark == end_offset == durable    the recovery point follows the durable end: it rises with
               end: an append is synced before it is      each roll and each flush
               published
interval, os   high_watermark == end_offset               recovery_point <= durable_end: both rise with each flush
poisoned       the durable end, or the start if that is   they stay as they are: nothing is synced again
               greater: later records may still vanish
shared, sync   the durable end, which another turn moves  the recovery point may be the greater one: a roll syncs
               after the sync                             what it seals, and the durable end follows
shared, else   high_watermark == end_offset               as alone
a view         the durable end that the writer has        not known: the start, and the high watermark
               published, or the end
=============  =========================================  ==========================================================

The start may pass the recovery point and the durable end of a log that does not sync its appends: what is deleted need
not be on disk.
"""

from __future__ import annotations

from typing import NamedTuple

from kstore.engine._ends import EndsMaker
from kstore.files.fs import File
from kstore.segment import LogSegment


class Ends(NamedTuple):
    """All ends of a log at one moment; for their order see the module."""

    # The first offset that can be read: records below it are deleted.
    start_offset: int
    # Recovery need not look below it.
    recovery_point: int
    # Everything below it is on disk.
    durable_end: int
    # Reads stop here: what lies at or above it may still vanish.
    high_watermark: int
    # The offset that the next record gets.
    end_offset: int
    # The active segment, and the byte in it where the log ends.
    base_offset: int
    position: int

    @property
    def extent(self) -> tuple[int, int, int]:
        """The end of the log. Every append changes it, and nothing else that may come within an append does."""
        return self.end_offset, self.base_offset, self.position

    def limit_of(self, segment: LogSegment, file: File | None = None) -> int:
        """The byte at which readers stop in ``segment``: the log's end in the active one, else the segment's size.

        ``file`` is the segment's ``.log``, if the caller has it open.
        """
        if segment.base_offset == self.base_offset:
            return self.position
        return segment.size if file is None else segment.size_in(file)

    def cut_to(self, offset: int, end_in_file: int, end_with_lost: int, base_offset: int, position: int) -> Ends:
        """The values that remain valid while the log is cut at ``position`` of segment ``base_offset``.

        The next record gets ``offset``; the last batch that stays ends at ``end_in_file``, which may be less, and what
        is lost after it at ``end_with_lost``.
        """
        return Ends(
            min(self.start_offset, offset),
            min(self.recovery_point, end_in_file),
            min(self.durable_end, end_with_lost),
            min(self.high_watermark, offset),
            offset,
            base_offset,
            position,
        )

    def poisoned(self) -> Ends:
        """The readable part after a failed sync: only what is known to be durable."""
        return self._replace(high_watermark=max(min(self.durable_end, self.high_watermark), self.start_offset))

    def check(self) -> None:
        """Asserts the order that always holds."""
        assert 0 <= self.start_offset <= self.high_watermark <= self.end_offset, self
        assert self.recovery_point <= self.end_offset, self
        assert self.durable_end <= self.end_offset, self
        assert self.base_offset <= self.end_offset, self
        assert self.position >= 0, self


def ends_of(
    *,
    start_offset: int,
    recovery_point: int,
    durable_end: int,
    end_offset: int,
    base_offset: int,
    position: int,
    is_sync: bool,
) -> Ends:
    """The ends of a log of which these are known; recovery point and durable end may be above what is left of it."""
    durable_end = min(durable_end, end_offset)
    return Ends(
        start_offset,
        min(recovery_point, end_offset),
        durable_end,
        max(durable_end if is_sync else end_offset, start_offset),
        end_offset,
        base_offset,
        position,
    )


# Each append makes one.
ENDS_MAKER = EndsMaker(Ends)
