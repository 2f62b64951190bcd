"""Where recovery cuts and what it fences: a pure decision over the findings of a scan of the unflushed segments.

The rule (DESIGN.md, promises), for the first damage in offset order:

    below the recovery point,          never cut: its offsets are fenced, what follows stays
    or the durable end
    above it, a whole batch follows    fenced, unless only a suffix can have been lost: durability was "interval" or
                                       "os" and the machine has restarted since, so that pages reached the disk in any
                                       order. Then everything from the damage on is cut, and so is everything after
                                       a segment that lost its end at the border between two batches, or after
                                       segments that a truncation had removed
    above it, nothing whole follows    cut

A log that ends below its durable end has lost acknowledged records: the missing offsets count as lost and are never
assigned again. What "interval" and "os" lose above it is within their promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kstore.record.walk import Damage
from kstore.rules.losses import OffsetSpan
from kstore.types import OFFSET_MAX, CorruptRange


class SegmentFindings(NamedTuple):
    """The scan's findings in one segment; ``next_offset`` follows its last whole batch (without one: its base).

    ``size_now`` is less than ``size`` if the file became shorter during the scan, as after a failed writeback.
    """

    path: str
    base_offset: int
    size: int
    next_offset: int
    damages: Sequence[Damage]
    batch_count: int
    size_now: int = OFFSET_MAX


class Doubt(NamedTuple):
    """What is known about the last writer.

    ``recovery_point``: everything below was synced. ``durable_end``: everything below was acknowledged as durable.
    ``suffix_only``: durability was weaker than "sync" and the machine has restarted since. ``is_gapless``: no segment
    above the recovery point can begin after missing offsets, as with "sync", where each new segment first moves that
    point.
    """

    recovery_point: int
    durable_end: int
    suffix_only: bool
    is_gapless: bool = False

    @property
    def known_end(self) -> int:
        """Everything below it was durable.

        The recovery point may lie below the durable end: a roll lowers it until the old segment's indexes are on disk.
        """
        return max(self.recovery_point, self.durable_end)


class Decision(NamedTuple):
    """``cut`` is where the cut starts, (index of the segment, position), or None; ``end_offset`` is the next offset.

    ``seal`` says that no batch may be appended to the last segment: it has damage where the next batch would go, or
    ends below ``end_offset``. ``lost`` are offsets of which nothing tells a later reader: those that were durable and
    after which nothing whole follows, whether damaged bytes remain of them or not, and those of which no bytes remain;
    ``fenced`` names them too.

    In ``fenced``, ``is_unconfirmed`` marks offsets above everything that was durable.
    """

    fenced: Sequence[CorruptRange]
    cut: tuple[int, int] | None
    cut_reason: str
    end_offset: int
    seal: bool
    lost: Sequence[OffsetSpan] = ()


def decide(segments: Sequence[SegmentFindings], doubt: Doubt) -> Decision:
    """Decides over ``segments``, those that may not be flushed, in offset order; at least one."""
    fenced: list[CorruptRange] = []
    lost: list[OffsetSpan] = []
    end_offset = segments[0].base_offset
    damaged_end = False
    for number, segment in enumerate(segments):
        damaged_end = False
        if segment.base_offset > end_offset and number:
            # Without syncs, pages are lost in any order; with them, a truncation's unlinks may be.
            is_rest = doubt.suffix_only or (doubt.is_gapless and end_offset >= doubt.durable_end)
            if is_rest and segment.base_offset > doubt.known_end:
                before = segments[number - 1]
                reason = f"offsets {end_offset} to {segment.base_offset - 1} are missing"
                decision = Decision(fenced, (number - 1, before.size), reason, end_offset, False, lost)
                return _ended(decision, before, doubt)
            # Everything was synced, so a compaction, a fenced end or a writer that assigns offsets itself made the gap.
            end_offset = segment.base_offset
        for damage in segment.damages:
            follower = damage.next_offset
            if follower is None:
                follower = _next_batch(segments, number, damage.first_offset)
            durable = damage.first_offset < doubt.known_end
            if not durable and (doubt.suffix_only or follower is None):
                cut = number, damage.position
                return Decision(fenced, cut, damage.reason, damage.first_offset, False, lost)
            last = follower - 1 if follower is not None else max(damage.first_offset, doubt.known_end - 1)
            fenced += _fenced(damage, last, segment.path, doubt.known_end)
            if follower is None or damage.position >= segment.size_now:
                # Readers in other processes could not tell it from a write in progress; or find nothing there.
                lost.append((damage.first_offset, last))
            damaged_end = damage.next_offset is None
            end_offset = max(end_offset, last + 1)
        end_offset = max(end_offset, segment.next_offset)
    return _ended(Decision(fenced, None, "", end_offset, damaged_end, lost), segments[-1], doubt)


def _fenced(damage: Damage, last: int, path: str, known_end: int) -> Iterator[CorruptRange]:
    """The offsets of ``damage`` up to ``last``, those that were durable separate from those above."""
    whole = CorruptRange(damage.first_offset, last, damage.position, damage.reason, path)
    if whole.first < known_end:
        yield whole._replace(last=min(last, known_end - 1))
    if last >= known_end:
        yield whole._replace(first=max(whole.first, known_end), is_unconfirmed=True)


def _ended(decision: Decision, last: SegmentFindings, doubt: Doubt) -> Decision:
    """Adds to ``decision`` the offsets that the log has lost after the end of its ``last`` segment."""
    end_offset, known_end = decision.end_offset, doubt.known_end
    if end_offset >= known_end:
        return decision
    reason = f"the log ends at offset {end_offset}, but {known_end} was durable"
    gone = CorruptRange(end_offset, known_end - 1, last.size, reason, last.path)
    return decision._replace(
        fenced=[*decision.fenced, gone], lost=[*decision.lost, (gone.first, gone.last)], end_offset=known_end, seal=True
    )


def _next_batch(segments: Sequence[SegmentFindings], number: int, offset: int) -> int | None:
    """The base of the first segment after ``number`` with whole batches above ``offset``, or None."""
    for segment in segments[number + 1 :]:
        if segment.batch_count and segment.base_offset > offset:
            return segment.base_offset
    return None
