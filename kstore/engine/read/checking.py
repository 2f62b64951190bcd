"""How much of a slice may be served without a check by its receiver: the batches that this process has checked.

A reader of records checks each batch that it reads. Bytes that are sent as they lie were never read, so they are
checked once: CRCs and the order of offsets, as in every read. The segment remembers the range until its file may have
changed.
"""

from __future__ import annotations

from kstore.errors import CorruptBatchError
from kstore.record._runs import Run
from kstore.record.scan import RUN_BYTES_MAX
from kstore.record.walk import Damage
from kstore.segment import LogSegment
from kstore.segments.places import BatchPosition, CheckedSpan, CheckedSpans, Located

# A slice that is checked to this part of what was wanted is not worth another read.
ENOUGH_OF = 8


def checked_size(
    segment: LogSegment, contents: object, first: BatchPosition, size: int, limit: int, batch_stop: int
) -> int:
    """How many of ``size`` bytes, which begin with batch ``first``, hold no damage; at least that batch.

    The caller has just checked that batch itself, and ``contents`` are those that the segment had before. Up to
    position ``limit`` of ``segment``, no batch ends at or above offset ``batch_stop``.

    Raises: CorruptBatchError if ``first`` is not there any more; StorageError.
    """
    known = segment.checked
    if known.contents is not contents:
        known = CheckedSpans(contents)
    wanted, first_stop = first.position + size, first.position + first.size
    before = known.holding(first.position)
    span = known.with_batch(first) if before is None else before
    if span.stop < wanted:
        enough = max(wanted - size // ENOUGH_OF, first_stop)
        span = _grown(segment, known, span, wanted, enough, limit, batch_stop)
    if before is None or span.stop > before.stop:
        segment.checked = known.joined(span)
    if span.stop < first_stop:
        raise CorruptBatchError(
            f"{span.stop - first.position} bytes, expected the {first.size} of the batch that was found there",
            path=str(segment.log_file().path),
            position=first.position,
        )
    return min(span.stop, wanted) - first.position


def _grown(
    segment: LogSegment, known: CheckedSpans, span: CheckedSpan, wanted: int, enough: int, limit: int, batch_stop: int
) -> CheckedSpan:
    """``span``, grown by the batches after it: to ``enough`` at least, unless damage or ``limit`` comes first."""
    while span.stop < min(enough, limit):
        before = span
        # To the limit, not to ``wanted``: an offset is confirmed by the batch that follows.
        walked = segment.runs_from(
            Located(span.stop, 0, span.next_offset),
            limit,
            offset_stop=batch_stop,
            run_bytes=min(RUN_BYTES_MAX, wanted - span.stop),
            with_compressed=True,
        )
        for item in walked:
            if isinstance(item, Damage):
                return span
            if isinstance(item, Run):
                span = span._replace(stop=item.position + item.stop, next_offset=item.next_offset)
            else:
                position, batch = item
                span = span._replace(stop=position + batch.size, next_offset=batch.last_offset + 1)
            if span.stop >= enough:
                return span
            after = known.beginning(span.stop)
            if after is not None and after.first_offset >= span.next_offset:
                span = span._replace(stop=after.stop, next_offset=after.next_offset)
                break
        if span.stop == before.stop:
            break
    return span
