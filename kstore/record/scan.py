"""Walks the entries of a buffer or file of mixed versions, and reports why it stopped. No I/O here but a Source's.

A scan stops at the first incomplete entry: at the end, where fewer bytes are left than an entry claims ("torn"), or at
bytes that no writer produces ("corrupt"). The caller knows what torn bytes mean: the end of a slice, a crash, or a
damaged length. ``find_next_batch`` then searches for the next whole entry.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from heapq import merge
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from kstore.errors import CorruptBatchError, CorruptDataError
from kstore.record._runs import Run, walk_run
from kstore.record.batch import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC_V2, Batch
from kstore.record.legacy import SIZE_MIN, has_size_of_fields
from kstore.record.parse import MAGIC_POSITION, SIZE_POSITION, entry_size, parse_batch
from kstore.types import INT64_MAX, OFFSET_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Long reads in chunks of this size: a larger one leaves the processor's cache before it is decoded.
CHUNK_BYTES = 1 << 20
# How much is checked for the first run, since a reader may stop after a few records, and for later ones: the
# bytes are read a second time when the records are made, from the processor's cache.
RUN_BYTES_FIRST = 1 << 12
RUN_BYTES_MAX = 1 << 18
# Offset, size, epoch or CRC, and the magic that selects the parser.
PREFIX_BYTES = MAGIC_POSITION + 1
# After damage a batch may start at any byte: this much is searched at a time; less at first, since it may be near.
SEARCH_BYTES = 1 << 20
SEARCH_BYTES_FIRST = 1 << 14
# How many bytes may be checksummed without finding a batch: a multiple of the searched bytes, and a minimum.
SEARCH_PASSES = 4
WASTED_BYTES_MIN = 64 << 20
# How much is read first to see whether bytes are zeros: usually the first ones are not.
ZERO_BYTES_FIRST = 4096
# After the offset; the size counts the bytes after the field, of which a message of version 0 has the fewest.
SIZE_FIELD_MIN = 14
assert SIZE_MIN[0] == SIZE_FIELD_MIN + LOG_OVERHEAD_BYTES
# A size from 14, the least of all versions, to below 128 MiB; zeros, the commonest garbage, do not match.
SIZE_PATTERN = rb"(?:[\x01-\x07].{3}|\x00[\x01-\xff].{2}|\x00\x00[\x01-\xff].|\x00\x00\x00[\x0e-\xff])"
# The magic, after the leader epoch or CRC.
MAGIC_PATTERN = rb".{4}[\x00-\x02]"


class Source(Protocol):
    """What a scan reads from: a file, or a ``BufferSource``."""

    def pread(self, size: int, position: int) -> bytes:
        """``size`` bytes from ``position``, fewer only at the end."""
        ...


@runtime_checkable
class SparseSource(Protocol):
    """A Source that knows its holes."""

    def next_data(self, position: int) -> int:
        """The first position at or after ``position`` that may hold other bytes than zeros."""
        ...


class BufferSource:
    """Bytes as a Source."""

    __slots__ = ("_view",)

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self._view[position : position + size])


class ScanStop(NamedTuple):
    """Why a scan ended at ``position``: ``size_left`` bytes were left of its range.

    ``entry_size`` is the claimed size of the corrupt entry there: this much was read and checksummed for nothing.
    """

    kind: Literal["end", "torn", "corrupt"]
    position: int
    reason: str
    size_left: int
    entry_size: int = 0


class RunBounds(NamedTuple):
    """Which batches may be part of a run: ``offset_stop`` and ``known_end`` as in ``walk``; ``base_stop``: those that
    begin below it; ``with_compressed``: runs of compressed batches too, whose records are not checked."""

    offset_stop: int = OFFSET_MAX
    known_end: int = 0
    base_stop: int = OFFSET_MAX
    with_compressed: bool = False


class _ByteBudget:
    """At most ``size`` bytes that may be checksummed; ``is_spent`` after a request for more."""

    __slots__ = ("_left", "is_spent")

    def __init__(self, size: int) -> None:
        self._left = size
        self.is_spent: bool = False

    def take(self, size: int) -> bool:
        """Whether ``size`` more bytes may be checksummed; after the first refusal always False."""
        if size > self._left:
            self.is_spent = True
        self._left -= size
        return not self.is_spent


class SearchBudget:
    """How many bytes all searches of a range of ``size`` bytes may checksum together.

    The work after real damage is a pass or two. A hostile file may claim at each of its bytes that a batch starts there
    and reaches to its end: without a bound the work would grow with the square of the size. ``entries`` are those at
    which walks stop, ``candidates`` those found by searching, ``hints`` those named by an index; for each of the three
    at most SEARCH_PASSES * size + WASTED_BYTES_MIN bytes are checksummed.
    """

    __slots__ = ("candidates", "entries", "hints")

    def __init__(self, size: int) -> None:
        bytes_max = SEARCH_PASSES * size + WASTED_BYTES_MIN
        self.entries: _ByteBudget = _ByteBudget(bytes_max)
        self.candidates: _ByteBudget = _ByteBudget(bytes_max)
        self.hints: _ByteBudget = _ByteBudget(bytes_max)

    @property
    def is_spent(self) -> bool:
        """Whether anything was left unsearched."""
        return self.entries.is_spent or self.candidates.is_spent or self.hints.is_spent


class BatchScan:
    """An iterator over (position, batch), for one thread; ``stop`` says why it ended, once it has.

    A batch is a view over a chunk of its own, so it may be kept. With ``runs`` its ``steps`` are runs too.
    """

    def __init__(
        self,
        source: Source,
        start: int,
        stop: int,
        *,
        check_crc: bool,
        check_order: bool,
        next_offset: int,
        chunk_bytes: int,
        first_bytes: int,
        runs: RunBounds | None,
        run_batch_bytes: int,
        run_bytes: int,
    ) -> None:
        self.stop: ScanStop | None = None
        self._run_bytes = run_bytes
        self._runs = runs
        self._run_batch_bytes = run_batch_bytes
        self._source = source
        self._position = start
        self._end = stop
        self._check_crc = check_crc
        self._check_order = check_order
        self._next_offset = next_offset
        self._chunk_bytes = chunk_bytes
        self._first_bytes = first_bytes
        self.steps: Generator[tuple[int, Batch] | Run, None, None] = self._scan()

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        return self.steps  # type: ignore[return-value]  # a caller that asked for runs reads the steps

    def __next__(self) -> tuple[int, Batch]:
        return next(self.steps)  # type: ignore[return-value]

    def close(self) -> None:
        """Ends the scan: one that is only dropped keeps its chunk, and its file, until the garbage collector runs."""
        self.steps.close()

    def _scan(self) -> Generator[tuple[int, Batch] | Run, None, None]:
        position, end, check_crc, check_order = self._position, self._end, self._check_crc, self._check_order
        next_offset, pread, wanted = self._next_offset, self._source.pread, self._first_bytes
        runs, run_bytes = self._runs, self._run_bytes
        run_bytes_max = max(RUN_BYTES_MAX, run_bytes)
        while position < end:
            chunk = pread(min(wanted, end - position), position)
            at = 0
            while True:
                if runs is not None and entry_size(chunk, at) <= self._run_batch_bytes:
                    run = walk_run(chunk, at, end - position - at, position, next_offset, run_bytes, *runs)
                    if run.batch_count:
                        yield run
                        next_offset, at = run.next_offset, run.stop
                        run_bytes = min(4 * run_bytes, run_bytes_max)
                        continue
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
                    # The first offset of a compressed message set is known only after decompression.
                    offset = batch.base_offset if batch.magic == MAGIC_V2 else batch.last_offset
                    if check_order and offset < next_offset:
                        raise CorruptBatchError(f"a batch of offset {offset}, expected at least {next_offset}")
                except CorruptDataError as error:
                    self.stop = ScanStop("corrupt", position + at, error.reason, end - position - at, max(needed, 0))
                    return
                yield position + at, batch
                next_offset = batch.last_offset + 1
                at += needed
            # The entry at ``at`` is incomplete in this chunk: it continues after it, or the data ends.
            position += at
            if needed > end - position or not (at or len(chunk) >= min(wanted, end - position)):
                break
            wanted = max(min(2 * wanted, self._chunk_bytes), needed)
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
    check_order: bool = True,
    next_offset: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
    first_bytes: int | None = None,
    runs: RunBounds | None = None,
    run_batch_bytes: int = INT64_MAX,
    run_bytes: int = RUN_BYTES_FIRST,
) -> BatchScan:
    """The batches in bytes ``start`` to ``stop`` of ``source``, starting at an entry.

    Args:
        check_crc: stop at a wrong CRC; without it only headers are checked.
        check_order: stop at a batch below ``next_offset``, and at one that does not follow its predecessor.
        next_offset: where offsets start.
        chunk_bytes: how much is read at a time; a larger entry is read whole.
        first_bytes: how much is read first, if the scan may end early; ``chunk_bytes`` by default.
        runs: make the steps of the result runs where possible; for a scan that checks CRCs and order.
        run_batch_bytes: no run begins with a larger batch.
        run_bytes: the size of the first run; the others grow to it, or to RUN_BYTES_MAX if that is more.

    Raises: errors of the source.
    """
    return BatchScan(
        source,
        start,
        stop,
        check_crc=check_crc,
        check_order=check_order,
        next_offset=next_offset,
        chunk_bytes=chunk_bytes,
        first_bytes=chunk_bytes if first_bytes is None else min(first_bytes, chunk_bytes),
        runs=runs,
        run_batch_bytes=run_batch_bytes,
        run_bytes=run_bytes,
    )


def find_next_batch(
    source: Source,
    position: int,
    stop: int,
    *,
    next_offset: int,
    last_offset_max: int = OFFSET_MAX,
    hints: Sequence[int] = (),
    entry_stop: int = -1,
    budget: SearchBudget | None = None,
) -> int | None:
    """The position of the next whole batch at or after ``position``, or None up to ``stop``.

    Whole means a possible header, a correct CRC, and offsets in ``next_offset`` to ``last_offset_max``. ``hints`` are
    possible starts of batches (index entries), in order: the first whole one bounds the search. ``entry_stop``, where
    the damaged entry claims to end, is another. A batch found by searching must be followed by another fitting header,
    or end where the range ends or the hint starts: the records of a damaged batch may contain bytes that form a batch.

    ``budget`` covers all searches of one walk; without it the search has its own. When it is spent the search ends: at
    the hint, if a whole batch is there.
    """
    if budget is None:
        budget = SearchBudget(stop - position)
    matcher = _BatchMatcher(source, next_offset, last_offset_max)
    bound = stop
    indexed = (hints[number] for number in range(bisect_left(hints, position), len(hints)))
    for hint in merge(indexed, (entry_stop,) if entry_stop >= position else ()):
        if hint >= stop or budget.hints.is_spent:
            break
        head = matcher.header(hint, stop)
        if head is not None and budget.hints.take(head.size) and matcher.is_whole(hint, head):
            bound = hint
            break
    candidates = _candidate_pattern(next_offset)
    at, search_bytes = position, SEARCH_BYTES_FIRST
    while at < bound and not budget.candidates.is_spent:
        window = source.pread(min(search_bytes + PREFIX_BYTES - 1, bound - at), at)
        # Zeros, the commonest garbage, are skipped at memory speed: no entry has a size and magic of zeros.
        is_all_zeros = window == bytes(len(window))
        zero_count = len(window) - (0 if is_all_zeros else len(window.lstrip(b"\0")))
        for candidate in candidates.finditer(window, max(zero_count - PREFIX_BYTES, 0)):
            start = at + candidate.start()
            head = matcher.header(start, bound, window, at)
            # Cheap checks come first: a CRC may cost as much as the whole file.
            if head is None or not matcher.has_its_size(start, head):
                continue
            following = start + head.size
            is_torn = bound == stop and bound - following < BATCH_HEADER_BYTES
            if not is_torn and not matcher.is_followed(following, bound, head.last_offset, window, at):
                continue
            if not budget.candidates.take(head.size):
                break
            if matcher.is_whole(start, head):
                return start
        at += search_bytes
        if is_all_zeros and isinstance(source, SparseSource):
            # A file that was allocated ahead may end with gigabytes of hole; a batch may begin with its last zeros.
            at = max(at, source.next_data(at) - PREFIX_BYTES + 1)
        search_bytes = min(2 * search_bytes, SEARCH_BYTES)
    return bound if bound < stop else None


def offset_after_damage(next_offset: int) -> int:
    """The least base offset of a batch after damaged bytes, before which offset ``next_offset`` was expected.

    Bytes at the start of a log held offset 0 at least. No CRC covers the base offset: if a torn write leaves zeros in
    place of all bytes before the rest of a header, the batch seems to start at 0.
    """
    return max(next_offset, 1)


def _candidate_pattern(next_offset: int) -> re.Pattern[bytes]:
    """Where a batch may start: an offset that fits a segment with ``next_offset``, a size and a magic.

    A look-ahead, since candidates may overlap. The offsets of one segment are within 2^31, so their four high bytes are
    almost fixed.
    """
    high = next_offset >> 32
    highs = b"|".join(re.escape(value.to_bytes(4, "big")) for value in (high, high + 1) if value < 1 << 31)
    return re.compile(b"(?=(?:" + highs + b").{4}" + SIZE_PATTERN + MAGIC_PATTERN + b")", re.DOTALL)


class _BatchMatcher:
    """Decides whether a batch that fits begins at a position."""

    __slots__ = ("_last_offset_max", "_next_offset", "_source")

    def __init__(self, source: Source, next_offset: int, last_offset_max: int) -> None:
        self._source = source
        self._next_offset = next_offset
        self._last_offset_max = last_offset_max

    def header(self, position: int, stop: int, window: bytes = b"", window_start: int = 0) -> Batch | None:
        """The header at ``position``, if one fits there, or None; ``window`` holds bytes that were read already."""
        head = self._parse(position, stop, window, window_start)
        if head is None or head.size > stop - position:
            return None
        if not self._next_offset <= head.last_offset <= self._last_offset_max:
            return None
        return None if head.magic == MAGIC_V2 and head.base_offset < self._next_offset else head

    def has_its_size(self, position: int, head: Batch) -> bool:
        """False if the fields of an old message contradict its size: nearly any bytes look like its header."""
        if head.magic == MAGIC_V2:
            return True
        return has_size_of_fields(self._source.pread, position, magic=head.magic, size=head.size)

    def is_whole(self, position: int, head: Batch) -> bool:
        """Whether the CRC of the batch with that header is correct."""
        try:
            return parse_batch(self._source.pread(head.size, position)).is_valid()
        except CorruptDataError:
            return False

    def is_followed(self, position: int, stop: int, last_offset: int, window: bytes, window_start: int) -> bool:
        """Whether the range ends at ``position``, or another fitting header is there."""
        if position == stop:
            return True
        head = self._parse(position, stop, window, window_start)
        return head is not None and head.last_offset > last_offset

    def _parse(self, position: int, stop: int, window: bytes, window_start: int) -> Batch | None:
        at = position - window_start
        if not 0 <= at <= len(window) - BATCH_HEADER_BYTES:
            window, at = self._source.pread(min(BATCH_HEADER_BYTES, stop - position), position), 0
        try:
            return parse_batch(window, at, header_only=True)
        except CorruptDataError:
            return None


def parse_batches(buffer: Buffer) -> Iterator[Batch]:
    """The batches in ``buffer``: the receiving side of a slice, from a file or a socket.

    Checks CRCs and the order of offsets: they increase, as in a log, or every batch starts at offset 0, as a client
    sends them. A batch that is cut off at the end is omitted. The batches keep what they need of the buffer.

    Raises: CorruptBatchError at the first damage.
    """
    view = memoryview(buffer).cast("B")
    scanned = scan(BufferSource(view), 0, view.nbytes, check_order=False)
    order = _Order()
    for position, batch in scanned:
        order.take(batch, position)
        yield batch
    stop = scanned.stop
    assert stop is not None
    if stop.kind == "corrupt":
        raise CorruptBatchError(stop.reason, position=stop.position)
    if stop.kind == "torn":
        check_size_field(view, stop.position)


def is_zero(source: Source, start: int, stop: int) -> bool:
    """Whether all bytes from ``start`` to ``stop`` are zeros, at least one; holes of a file are not read."""
    size, position = ZERO_BYTES_FIRST, start
    while position < stop:
        data = source.pread(min(size, stop - position), position)
        if not data or data.count(0) != len(data):
            return False
        position += len(data)
        if position < stop and isinstance(source, SparseSource):
            position = source.next_data(position)
        size = CHUNK_BYTES
    return stop > start


def check_size_field(data: Buffer, position: int) -> None:
    """Checks the size of the entry that is cut off at ``position``, if its size field is there.

    Raises: CorruptBatchError if no entry has that size (Kafka: ByteBufferLogInputStream).
    """
    field = bytes(memoryview(data)[position + SIZE_POSITION : position + LOG_OVERHEAD_BYTES])
    size = int.from_bytes(field, "big", signed=True)
    if len(field) == LOG_OVERHEAD_BYTES - SIZE_POSITION and size < SIZE_FIELD_MIN:
        raise CorruptBatchError(f"a size field of {size}, expected at least {SIZE_FIELD_MIN}", position=position)


class _Order:
    """The offsets of batches that were sent or fetched: they increase, or each batch starts at 0."""

    __slots__ = ("_all_begin_at_0", "_has_repeated", "_next_offset")

    def __init__(self) -> None:
        self._next_offset = 0
        self._all_begin_at_0 = True
        self._has_repeated = False

    def take(self, batch: Batch, position: int) -> None:
        """Raises: CorruptBatchError."""
        first_offset = batch.base_offset if batch.magic == MAGIC_V2 else batch.last_offset
        if self._all_begin_at_0:
            # This decompresses a compressed message set, at most once in a fetched slice.
            self._all_begin_at_0 = batch.base_offset == 0
        if first_offset < self._next_offset or (self._has_repeated and not self._all_begin_at_0):
            if not self._all_begin_at_0:
                expected = "0" if self._has_repeated else f"at least {self._next_offset}"
                raise CorruptBatchError(
                    f"a batch of offset {batch.base_offset}, expected {expected}", position=position
                )
            self._has_repeated = True
        self._next_offset = batch.last_offset + 1
