"""What a mirror does with each segment: a pure decision over two listings.

A segment that the target has with the same size, and that has not changed since it was copied, is kept. A copy on a
local disk has the time of its source; one in an object store has the time of its upload, which must not be earlier. If
the times are inconclusive, the bytes are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from kstore.rules.losses import LossRanges, joined, reduced

Verdict = Literal["copy", "keep", "compare"]


class SegmentFile(NamedTuple):
    """A ``.log``: its size in bytes and modification time. ``sealed``: nothing more will be appended to it."""

    base_offset: int
    size: int
    mtime_ns: int
    sealed: bool = True


class Matching(NamedTuple):
    """What to do for each base offset of the source.

    ``old`` are the target's segments below the source's first, which retention has removed there; also if only the
    active segment is left, and it is not copied. ``foreign`` are other segments that the source lacks: it was truncated
    or compacted, or is another log.
    """

    verdicts: dict[int, Verdict]
    old: list[int]
    foreign: list[int]


def match_segments(
    source: Sequence[SegmentFile], target: Sequence[SegmentFile], *, same_times: bool, source_end: int = 0
) -> Matching:
    """Both in increasing order of base offsets. ``same_times``: a copy has its source's time, otherwise that of its
    upload. ``source_end`` is the first offset of what is not copied yet, if nothing else is left of the source."""
    there = {file.base_offset: file for file in target}
    verdicts = {file.base_offset: _verdict(file, there.get(file.base_offset), same_times) for file in source}
    first = source[0].base_offset if source else source_end
    rest = [base for base in there if base not in verdicts]
    return Matching(
        verdicts, old=[base for base in rest if base < first], foreign=[base for base in rest if base >= first]
    )


def _verdict(source: SegmentFile, target: SegmentFile | None, same_times: bool) -> Verdict:
    if target is None:
        return "copy"
    if not source.sealed or source.size != target.size or not source.mtime_ns:
        return "compare"
    unchanged = target.mtime_ns == source.mtime_ns if same_times else target.mtime_ns >= source.mtime_ns
    return "keep" if unchanged else "compare"


def start_of_target(source_start: int, *, before: int | None, old: Sequence[int], delete: bool) -> int:
    """The log start offset of the target; ``before`` is its old one, None for a new target.

    Without ``delete``, whatever was readable there stays readable.
    """
    if delete:
        return source_start
    if before is not None:
        return min(before, source_start)
    return min([source_start, *old])


def losses_of_target(
    source: LossRanges,
    before: LossRanges,
    *,
    source_start: int,
    start: int,
    lost_max: int,
    accepted_max: int,
    unconfirmed_max: int,
) -> LossRanges:
    """The losses of the target, which starts at ``start``: its source's, and below the source its own from ``before``.

    If too many are accepted, the first ones are dropped: their losses are reported again.
    """
    own = before.within(start, source_start)
    accepted = joined(own.accepted, source.accepted)[-accepted_max:]
    lost = reduced(joined(own.lost, source.lost), lost_max)
    return LossRanges(lost, accepted, own.unconfirmed).with_unconfirmed(source.unconfirmed, unconfirmed_max)
