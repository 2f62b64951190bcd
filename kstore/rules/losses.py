"""Offsets that a log has lost, and those whose loss its user has accepted: pure functions over values.

    lost       offsets that were durable and that no batch holds any more; a range that was merged with its neighbour
               also spans whole batches, which are served: only offsets that no batch holds count as lost
    fenced     offsets of a damaged batch; they are found in the files, and not stored here
    accepted   fenced or lost offsets that reads skip at the user's request
    unconfirmed  fenced offsets above each durable end that was known when recovery found them: a power cut within a
               write leaves such offsets, but so may damage to acknowledged data; nothing on disk can tell which

A range is ``(first, last)``, both inclusive. Ranges increase and do not touch each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from kstore.errors import CorruptBatchError
from kstore.types import CorruptRange

# First and last offset of a range, both inclusive.
OffsetSpan = tuple[int, int]
UNCONFIRMED = "above every known durable end: may never have been acknowledged"
LOST = "no batch holds these offsets, which were durable: the disk has lost them"
OffsetSpans = tuple[OffsetSpan, ...]


def are_ranges(ranges: Sequence[OffsetSpan], count_max: int) -> bool:
    """Whether these are ranges of offsets, increasing and not overlapping, and not too many."""
    return not ranges or (
        len(ranges) <= count_max
        and all(0 <= first <= last for first, last in ranges)
        and all(one[1] < two[0] for one, two in pairwise(ranges))
    )


def joined(*ranges: Iterable[OffsetSpan]) -> OffsetSpans:
    """The union of ``ranges``; overlapping or adjacent ones become one range. Damage may hold no offset at all."""
    found: list[OffsetSpan] = []
    for first, last in sorted(span for some in ranges for span in some if span[0] <= span[1]):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def clipped(ranges: Iterable[OffsetSpan], start: int, stop: int) -> OffsetSpans:
    """The parts of ``ranges`` from offset ``start`` to below ``stop``."""
    return tuple(
        (max(first, start), min(last, stop - 1)) for first, last in ranges if last >= start and first < stop > start
    )


def holes(first: int, last: int, ranges: Sequence[OffsetSpan]) -> OffsetSpans:
    """The parts of ``first`` to ``last`` outside ``ranges``."""
    found = []
    for inner_first, inner_last in ranges:
        if inner_last < first:
            continue
        if inner_first > last:
            break
        if inner_first > first:
            found.append((first, inner_first - 1))
        first = inner_last + 1
    if first <= last:
        found.append((first, last))
    return tuple(found)


def reduced(ranges: Sequence[OffsetSpan], count_max: int) -> OffsetSpans:
    """At most ``count_max`` ranges that span ``ranges``: while there are more, the two nearest ones become one."""
    found = list(ranges)
    while len(found) > count_max:
        at = min(range(len(found) - 1), key=lambda number: found[number + 1][0] - found[number][1])
        found[at : at + 2] = [(found[at][0], found[at + 1][1])]
    return tuple(found)


def way_on(first: int, last: int) -> str:
    """How reads continue after offsets ``first`` to ``last`` are lost."""
    return f"Log.accept_loss({first}, {last}) or kstore recover --accept-loss {first}-{last} lets reads skip them"


def corrupt_batch_error(lost: CorruptRange) -> CorruptBatchError:
    """The error for a read that reaches ``lost``; names the remedy."""
    return CorruptBatchError(
        lost.reason,
        path=lost.path,
        position=lost.position,
        first_offset=lost.first,
        last_offset=lost.last,
        is_unconfirmed=lost.is_unconfirmed,
        advice=(f"{UNCONFIRMED}; " if lost.is_unconfirmed else "") + way_on(lost.first, lost.last),
    )


def span_size(ranges: Iterable[OffsetSpan]) -> int:
    """The number of offsets in ``ranges``."""
    return sum(last - first + 1 for first, last in ranges)


class LossRanges(NamedTuple):
    """A log's record of its losses, besides the damaged batches themselves; immutable."""

    lost: OffsetSpans = ()
    accepted: OffsetSpans = ()
    unconfirmed: OffsetSpans = ()

    def judged(self, damage: CorruptRange) -> Iterator[CorruptRange]:
        """The parts of ``damage`` whose loss is not accepted, each marked as unconfirmed or not."""
        for first, last, is_unconfirmed in self.told_apart(damage.first, damage.last):
            yield damage._replace(first=first, last=last, is_unconfirmed=is_unconfirmed)

    def told_apart(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """The parts of a damaged range whose loss is not accepted, divided where an unconfirmed range begins or ends;
        each with whether it is unconfirmed."""
        for part_first, part_last in self.unaccepted(first, last):
            known = [(*span, False) for span in holes(part_first, part_last, self.unconfirmed)]
            doubtful = [(*span, True) for span in clipped(self.unconfirmed, part_first, part_last + 1)]
            yield from sorted(known + doubtful)

    def unaccepted(self, first: int, last: int) -> OffsetSpans:
        """The parts of a damaged range whose loss is not accepted."""
        return holes(first, last, self.accepted)

    def missing(self, start: int, stop: int) -> OffsetSpans:
        """The offsets from ``start`` to below ``stop`` that are lost and not accepted, and that no batch holds."""
        if not self.lost:
            return ()
        return tuple(part for span in clipped(self.lost, start, stop) for part in self.unaccepted(*span))

    def end_after(self, end_offset: int, stop: int) -> int:
        """The end of a log, at most ``stop``, whose last batch ends below ``end_offset``: after its losses."""
        for first, last in self.lost:
            if first <= end_offset <= last:
                return max(end_offset, min(last + 1, stop))
        return end_offset

    def with_lost(self, ranges: Iterable[OffsetSpan], count_max: int) -> LossRanges:
        return self._replace(lost=reduced(joined(self.lost, ranges), count_max))

    def with_accepted(self, first: int, last: int) -> LossRanges:
        return self._replace(accepted=joined(self.accepted, ((first, last),)))

    def with_unconfirmed(self, ranges: Iterable[OffsetSpan], count_max: int) -> LossRanges:
        """The losses with more unconfirmed ranges. Above ``count_max`` the first ones go, and count as acknowledged."""
        return self._replace(unconfirmed=joined(self.unconfirmed, ranges)[-count_max:])

    def within(self, start: int, stop: int) -> LossRanges:
        """The losses without the parts below ``start``, or at or above ``stop``, which were deleted or cut."""
        if self == NO_LOSSES:
            return self
        return LossRanges(*(clipped(ranges, start, stop) for ranges in self))

    def after_compaction(self, start: int, stop: int, lost_max: int, *, kept: Sequence[OffsetSpan] = ()) -> LossRanges:
        """The losses after the compaction of ``start`` to below ``stop``: only accepted losses there need no entry.

        ``kept`` are the ranges of unreadable batches that were copied unchanged. A loss that is not accepted keeps its
        entry: no compaction may make it look like removed records.
        """
        gone = [
            (first, last)
            for first, last in self.accepted
            if start <= first and last < stop and not clipped(kept, first, last + 1)
        ]
        lost = tuple(part for span in self.lost for part in holes(*span, gone))
        if len(lost) > lost_max:
            return self
        return self._replace(lost=lost, accepted=tuple(span for span in self.accepted if span not in gone))


NO_LOSSES = LossRanges()
