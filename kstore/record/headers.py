"""A walk over the batch headers of one segment that does not read the records: for counting, not for serving.

A header is accepted if a writer can have written it, if its offsets increase, and if another header, or the end,
follows. Otherwise the walk searches for the next whole batch, as ``walk`` does, and reports what it skipped. Its reads
are bounded, whatever the bytes: a header's chunk at a time, no batch above ``READ_BATCH_BYTES_MAX``, and for all
searches together only a few passes over the segment.
"""

from __future__ import annotations

from collections.abc import Iterator

from kstore.errors import CorruptDataError
from kstore.record.batch import BATCH_HEADER_BYTES, MAGIC_V2, Batch
from kstore.record.parse import parse_batch
from kstore.record.scan import Source, SparseSource, find_next_batch, offset_after_damage
from kstore.record.walk import OFFSET_COUNT_MAX, Damage, is_far, last_damage
from kstore.types import OFFSET_MAX

# Small batches are read many at a time. After a larger one only a header is read: a call costs less than its bytes.
CHUNK_BYTES = 64 << 10
LARGE_BATCH_BYTES = 8 << 10
# A larger batch is never read as a whole.
READ_BATCH_BYTES_MAX = 64 << 20
# How much all searches after damage may read: this many times the segment, plus a batch.
SEARCH_PASSES = 8
# A smaller read counts as this much: bytes that look like headers everywhere must not all be examined.
READ_BYTES_MIN = 4 << 10


class _SpentError(Exception):
    """The searches have used up their budget."""


class _Bounded:
    """A source for searches: it ends them when they exceed their budget, and hides batches that are too large."""

    def __init__(self, source: Source, size_left: int) -> None:
        self._source = source
        self._size_left = size_left

    def pread(self, size: int, position: int) -> bytes:
        if size > READ_BATCH_BYTES_MAX:
            return b""
        if self._size_left <= 0:
            raise _SpentError
        data = self._source.pread(size, position)
        self._size_left -= max(len(data), READ_BYTES_MIN)
        return data

    def next_data(self, position: int) -> int:
        return self._source.next_data(position) if isinstance(self._source, SparseSource) else position


def walk_headers(
    source: Source, stop: int, *, next_offset: int, offset_stop: int = OFFSET_MAX, start: int = 0
) -> Iterator[tuple[int, Batch] | Damage]:
    """Yields (position, batch) and, between them, ``Damage``, over bytes ``start`` to ``stop`` of ``source``.

    Only the headers of the batches need to exist.

    Args:
        next_offset: no batch may start below it.
        offset_stop: no batch may end at or above it: the next segment's base.
    """
    bounded = _Bounded(source, SEARCH_PASSES * stop + READ_BATCH_BYTES_MAX)
    chunk, chunk_start = b"", 0
    position = start
    # The previous batch, which counts once a header is found after it, and the offset expected at its start.
    held: tuple[int, Batch] | None = None
    held_from = next_offset
    while position < stop:
        at = position - chunk_start
        if not 0 <= at <= len(chunk) - BATCH_HEADER_BYTES:
            wanted = CHUNK_BYTES if held is None or held[1].size < LARGE_BATCH_BYTES else BATCH_HEADER_BYTES
            chunk, chunk_start, at = source.pread(min(wanted, stop - position), position), position, 0
        torn = False
        try:
            batch = parse_batch(chunk, at, header_only=True)
            # The first offset of a compressed message set is known only after decompression.
            offset = batch.base_offset if batch.magic == MAGIC_V2 else batch.last_offset
            torn = batch.size > stop - position
            reason = _misplaced(batch, offset, next_offset, offset_stop, stop - position)
        except CorruptDataError as error:
            reason = error.reason
            offset = -1
        if not reason:
            if held is not None:
                yield held
            held, held_from = (position, batch), next_offset
            next_offset = batch.last_offset + 1
            position += batch.size
            continue
        if held is not None and not torn and held_from <= offset < next_offset:
            # No CRC covers a base offset: this header proves that the previous one is wrong.
            first, last = held_from, offset
            lying = f"offsets {held[1].last_offset} and more, where the next batch starts at {offset}"
            yield Damage(held[0], position, first, last, lying, False)
            held, next_offset = None, held_from
            continue
        damaged_from = position
        if held is not None:
            # A wrong size leads to a place without a header.
            try:
                is_held_whole = not is_far(held[1].last_offset, held_from, offset_stop) and _is_whole(bounded, *held)
            except _SpentError:
                is_held_whole = True
            if is_held_whole:
                yield held
            else:
                damaged_from, next_offset = held[0], held_from
            held = None
        try:
            found = find_next_batch(
                bounded,
                damaged_from + 1,
                stop,
                next_offset=offset_after_damage(next_offset),
                last_offset_max=offset_stop - 1 if offset_stop < OFFSET_MAX else next_offset + OFFSET_COUNT_MAX - 1,
            )
        except _SpentError:
            found = None
            reason += "; there is so much damage that the rest was not searched"
        if found is None:
            yield last_damage(source, damaged_from, stop, next_offset, reason, torn)
            return
        try:
            header = parse_batch(source.pread(min(BATCH_HEADER_BYTES, stop - found), found), header_only=True)
        except CorruptDataError:
            yield last_damage(source, damaged_from, stop, next_offset, reason, torn)
            return  # the file was cut there since it was found
        after = header.base_offset if header.magic == MAGIC_V2 else max(next_offset, 0)
        yield Damage(damaged_from, found, next_offset, after, reason, False)
        position, next_offset = found, after
    if held is not None and is_far(held[1].last_offset, held_from, offset_stop):
        reason = f"a batch up to offset {held[1].last_offset}, expected {held_from}, and no batch follows"
        yield Damage(held[0], stop, held_from, None, reason, False)
    elif held is not None:
        yield held


def _misplaced(batch: Batch, offset: int, next_offset: int, offset_stop: int, size_left: int) -> str:
    """Why a possible header cannot be in this place, or ""."""
    if batch.size > size_left:
        return f"{size_left} bytes, expected the {batch.size} of a whole batch"
    if offset < next_offset:
        return f"a batch of offset {offset}, expected at least {next_offset}"
    if batch.last_offset >= offset_stop:
        return f"a batch up to offset {batch.last_offset}, expected below {offset_stop}"
    return ""


def _is_whole(source: Source, position: int, header: Batch) -> bool:
    try:
        return parse_batch(source.pread(header.size, position)).is_valid()
    except CorruptDataError:
        # If a batch is too large, only its header is checked.
        return header.size > READ_BATCH_BYTES_MAX
