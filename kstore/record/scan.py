"""Walks the entries of a buffer or file of mixed versions, and says why it stopped. No I/O here but a Source's.

A scan stops at the first entry that is not whole: at the end, where fewer bytes are left than an entry says it has
("torn"), or at what no writer can have written ("corrupt"). What torn bytes mean the caller knows: the end of a slice,
a crash, or a damaged length. ``find_next_batch`` then looks for the next whole entry behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from kstore.errors import CorruptBatchError, CorruptDataError
from kstore.record.batch import LOG_OVERHEAD_BYTES, OFFSET_MAX, Batch
from kstore.record.parse import MAGIC_POSITION, parse_batch

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BatchScan", "BufferSource", "ScanStop", "Source", "find_next_batch", "parse_batches", "scan"]

# Long reads in pieces of this size: a larger one leaves the processor's cache before it is decoded.
CHUNK_BYTES = 1 << 20
# Offset, size, epoch or CRC, and the magic that chooses the parser.
PREFIX_BYTES = MAGIC_POSITION + 1
HEADER_BYTES = 61
# Behind damage, a batch may begin at any byte: so much is searched at a time.
SEARCH_BYTES = 1 << 20
MAGIC_V2 = 2
# A size from 14, the least of all versions, to below 128 MiB; zeros, the commonest of all garbage, are none.
SIZE_PATTERN = rb"(?:[\x01-\x07].{3}|\x00[\x01-\xff].{2}|\x00\x00[\x01-\xff].|\x00\x00\x00[\x0e-\xff])"
# The magic, behind the leader epoch or CRC.
MAGIC_PATTERN = rb".{4}[\x00-\x02]"


class Source(Protocol):
    """What a scan reads from: a file, or a ``BufferSource``."""

    def pread(self, size: int, position: int) -> bytes:
        """``size`` bytes from ``position``, fewer only at the end."""
        ...


class BufferSource:
    """Bytes as a Source."""

    __slots__ = ("_view",)

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self._view[position : position + size])


class ScanStop(NamedTuple):
    """Why a scan ended at ``position``: ``size_left`` bytes were left of its range."""

    kind: Literal["end", "torn", "corrupt"]
    position: int
    reason: str
    size_left: int


class BatchScan:
    """An iterator over (position, batch), for one thread; ``stop`` says why it ended, once it has.

    A batch is a view over a chunk that belongs to it alone, so it may be kept.
    """

    def __init__(
        self, source: Source, start: int, stop: int, *, check_crc: bool, next_offset: int, chunk_bytes: int
    ) -> None:
        self.stop: ScanStop | None = None
        self._source = source
        self._position = start
        self._end = stop
        self._check_crc = check_crc
        self._next_offset = next_offset
        self._chunk_bytes = chunk_bytes
        self._steps = self._scan()

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        return self._steps

    def __next__(self) -> tuple[int, Batch]:
        return next(self._steps)

    def _scan(self) -> Iterator[tuple[int, Batch]]:
        position, end, check_crc = self._position, self._end, self._check_crc
        next_offset, pread, wanted = self._next_offset, self._source.pread, self._chunk_bytes
        while position < end:
            chunk = pread(min(wanted, end - position), position)
            at = 0
            while True:
                rest = len(chunk) - at
                needed = PREFIX_BYTES
                if rest < needed:
                    break
                needed = int.from_bytes(chunk[at + 8 : at + 12], "big", signed=True) + LOG_OVERHEAD_BYTES
                if needed > rest and needed > PREFIX_BYTES:
                    break
                try:
                    batch = parse_batch(chunk, at)
                    if check_crc:
                        batch.ensure_valid()
                    # Of a compressed message set the first offset is known only when it is decompressed.
                    offset = batch.base_offset if batch.magic == MAGIC_V2 else batch.last_offset
                    if offset < next_offset:
                        raise CorruptBatchError(f"a batch of offset {offset}, expected at least {next_offset}")
                except CorruptDataError as error:
                    self.stop = ScanStop("corrupt", position + at, error.reason, end - position - at)
                    return
                yield position + at, batch
                next_offset = batch.last_offset + 1
                at += needed
            # What begins at ``at`` is not whole in this chunk: it goes on behind it, or there is no more of it.
            position += at
            if needed > end - position or not (at or len(chunk) >= min(wanted, end - position)):
                break
            wanted = max(self._chunk_bytes, needed)
        left = end - position
        self.stop = (
            ScanStop("torn", position, f"{left} bytes, expected the {needed} of a whole batch", left)
            if left
            else ScanStop("end", position, "the end", 0)
        )


def scan(
    source: Source,
    start: int,
    stop: int,
    *,
    check_crc: bool = True,
    next_offset: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
) -> BatchScan:
    """The batches in bytes ``start`` to ``stop`` of ``source``, where an entry begins.

    Args:
        check_crc: stop at a wrong CRC; without it nothing but headers is checked.
        next_offset: stop at a batch below it, and at each that does not follow the one before it.
        chunk_bytes: how much is read at a time; an entry that is larger is read as a whole.

    Raises: what reading the source raises.
    """
    return BatchScan(source, start, stop, check_crc=check_crc, next_offset=next_offset, chunk_bytes=chunk_bytes)


def find_next_batch(
    source: Source,
    position: int,
    stop: int,
    *,
    next_offset: int,
    last_offset_max: int = OFFSET_MAX,
    hints: Iterable[int] = (),
) -> int | None:
    """The position of the next whole batch at or behind ``position``, None where there is none up to ``stop``.

    Whole: a header that can be, a CRC that holds, and offsets in ``next_offset`` to ``last_offset_max``. ``hints`` are
    positions where one may begin (index entries): the first that is whole bounds the search. A batch that is found by
    searching must be followed by another header that fits, or end where the range or the hint begins: the records of a
    damaged batch may hold bytes that are a batch.
    """
    bound = stop
    for hint in sorted(hints):
        if position <= hint < stop and _whole(source, hint, stop, next_offset, last_offset_max) is not None:
            bound = hint
            break
    candidates = _candidate_pattern(next_offset)
    at = position
    while at < bound:
        window = source.pread(min(SEARCH_BYTES + PREFIX_BYTES - 1, bound - at), at)
        # Zeros, the commonest garbage, go by at memory speed: no entry has its size and magic among them.
        zero_count = len(window) - len(window.lstrip(b"\0"))
        for candidate in candidates.finditer(window, max(zero_count - PREFIX_BYTES, 0)):
            start = at + candidate.start()
            batch = _whole(source, start, bound, next_offset, last_offset_max)
            if batch is not None and _is_followed(source, start + batch.size, bound, batch.last_offset):
                return start
        at += SEARCH_BYTES
    return bound if bound < stop else None


def _candidate_pattern(next_offset: int) -> re.Pattern[bytes]:
    """Where a batch may begin: an offset that fits a segment in which ``next_offset`` is, a size and a magic.

    A look-ahead, since candidates may overlap. The offsets of one segment lie within 2^31, so that their four high
    bytes are all but given.
    """
    high = next_offset >> 32
    highs = b"|".join(re.escape(value.to_bytes(4, "big")) for value in (high, high + 1) if value < 1 << 31)
    return re.compile(b"(?=(?:" + highs + b").{4}" + SIZE_PATTERN + MAGIC_PATTERN + b")", re.DOTALL)


def _whole(source: Source, position: int, stop: int, next_offset: int, last_offset_max: int) -> Batch | None:
    try:
        head = parse_batch(source.pread(min(HEADER_BYTES, stop - position), position), header_only=True)
        if head.size > stop - position or head.last_offset < next_offset or head.last_offset > last_offset_max:
            return None
        if head.magic == MAGIC_V2 and head.base_offset < next_offset:
            return None
        batch = parse_batch(source.pread(head.size, position))
        return batch if batch.is_valid() else None
    except CorruptDataError:
        return None


def _is_followed(source: Source, position: int, stop: int, last_offset: int) -> bool:
    """Whether the range ends at ``position``, or another header that fits stands there, or too few bytes for one."""
    if stop - position < HEADER_BYTES:
        return True
    try:
        return parse_batch(source.pread(HEADER_BYTES, position), header_only=True).last_offset > last_offset
    except CorruptDataError:
        return False


def parse_batches(buffer: Buffer) -> Iterator[Batch]:
    """The batches in ``buffer``: the receiving side of a slice, from a file or a socket.

    CRC and the order of offsets are checked; a batch that is cut off at the end is left out. The batches keep what they
    need of the buffer.

    Raises: CorruptBatchError at the first damage.
    """
    view = memoryview(buffer).cast("B")
    scanned = scan(BufferSource(view), 0, view.nbytes)
    for _, batch in scanned:
        yield batch
    assert scanned.stop is not None
    if scanned.stop.kind == "corrupt":
        raise CorruptBatchError(scanned.stop.reason, position=scanned.stop.position)
