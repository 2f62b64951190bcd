"""A fetch: one slice of one segment, named but not yet read.

Every read of the log builds on it. A slice begins with the batch that holds the requested offset, so it may hold
earlier records, and it may end within a batch. A slice keeps its file open, so it stays readable after retention
unlinks the file.

A reader of records checks each batch that it reads. Bytes that are sent as they lie were never read, so they are
checked once: CRCs and the order of offsets, as in every read. The segment remembers the range until its file may have
changed.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kstore.engine.ends import Ends
from kstore.engine.read.reads import LogReads, looked_up
from kstore.engine.source import LogSource
from kstore.errors import CorruptBatchError, LogNotFoundError, OffsetOutOfRangeError, TruncatedFileError
from kstore.files.fs import File
from kstore.record._codec import Record
from kstore.record._runs import Run
from kstore.record.batch import Batch
from kstore.record.scan import RUN_BYTES_MAX
from kstore.record.walk import OFFSET_COUNT_MAX, Damage, walk
from kstore.rules.arguments import one_of
from kstore.rules.losses import LOST, NO_LOSSES, LossRanges, corrupt_batch_error
from kstore.segment import SHORT_CHUNK_BYTES, LogSegment
from kstore.segments.places import START, BatchPosition, CheckedSpan, CheckedSpans, Located
from kstore.types import ISOLATION_LEVELS, OFFSET_MAX, AbortedTransaction, CorruptRange, IsolationLevel

if TYPE_CHECKING:
    import socket

FETCH_BYTES = 1 << 20


class FetchSlice(NamedTuple):
    """``size`` bytes from ``position`` of ``file``, the segment with base ``base_offset``.

    ``fetch_offset`` is the requested offset, ``next_offset`` the least offset that any batch in the slice may have,
    ``stop_offset`` where reading must end (exclusive). ``aborted`` lists the aborted transactions that overlap, for
    isolation level "read_committed"; None for "read_uncommitted". No batch in the slice ends at or above
    ``batch_stop``.
    """

    file: File
    base_offset: int
    position: int
    size: int
    fetch_offset: int
    stop_offset: int = OFFSET_MAX
    aborted: Sequence[AbortedTransaction] | None = None
    max_batch_bytes_uncompressed: int = 64 << 20
    losses: LossRanges = NO_LOSSES
    batch_stop: int = OFFSET_MAX

    @property
    def path(self) -> Path:
        return Path(self.file.path)

    def read(self) -> bytes:
        """The bytes. Raises TruncatedFileError if the file has become shorter."""
        data = self.file.pread(self.size, self.position)
        if len(data) != self.size:
            raise _shrunk(self.file, self.position + self.size, self.position + len(data))
        return data

    def batches(self) -> Iterator[Batch]:
        """The whole batches of the slice, CRC and offsets checked.

        Raises CorruptBatchError at damage whose loss is not accepted.
        """
        stop = self.position + self.size
        # The batch that holds ``stop_offset`` may extend beyond it.
        offset_stop = min(self.stop_offset + OFFSET_COUNT_MAX, self.batch_stop)
        for item in walk(self.file, self.position, stop, next_offset=self.base_offset, offset_stop=offset_stop):
            if isinstance(item, Damage):
                if item.torn and item.stop == stop:
                    return  # the slice ends within a batch
                last = item.next_offset - 1 if item.next_offset is not None else item.first_offset
                path = str(self.file.path)
                for lost in self.losses.judged(CorruptRange(item.first_offset, last, item.position, item.reason, path)):
                    raise corrupt_batch_error(lost)
                continue
            yield item[1]

    def records(self) -> Iterator[Record]:
        """The records of the whole batches, from ``fetch_offset`` to ``stop_offset``, without control records."""
        for batch in self.batches():
            if batch.base_offset >= self.stop_offset:
                return
            if not batch.is_control and batch.last_offset >= self.fetch_offset:
                yield from batch.records(
                    first_offset=self.fetch_offset,
                    stop_offset=self.stop_offset,
                    max_bytes_uncompressed=self.max_batch_bytes_uncompressed,
                )

    def send_to(self, target: socket.socket, *, start: int = 0, count: int | None = None) -> int:
        """Sends the slice's bytes from ``start`` on through ``target`` with sendfile, without copying them here.

        A blocking socket, with or without a timeout, gets all ``count`` bytes (default: the rest of the slice). A
        non-blocking one gets what it accepts at once: the result is the number of bytes; 0 if it accepts none now.
        Nothing is checked here: the receiver must do that (``kstore.parse_batches``), unless the slice is ``checked``.

        Raises: TruncatedFileError if the file has become shorter; TimeoutError; OSError of the socket.
        """
        rest = self.size - start if count is None else count
        if start < 0 or rest < 0 or start + rest > self.size:
            raise ValueError(f"bytes {start} to {start + rest} are outside a slice of {self.size} bytes")
        sent = 0
        timeout = target.gettimeout()
        while sent < rest:
            try:
                done = os.sendfile(target.fileno(), self.file.fileno(), self.position + start + sent, rest - sent)
            except BlockingIOError:
                if timeout == 0:
                    return sent
                # Not ``select.select``, which fails for a descriptor of 1,024 or more.
                poll = select.poll()
                poll.register(target, select.POLLOUT)
                if not poll.poll(None if timeout is None else timeout * 1000):
                    raise TimeoutError(f"the socket took {sent} of {rest} bytes within {timeout} s") from None
                continue
            if done == 0:
                end = self.position + start + sent
                raise _shrunk(self.file, self.position + self.size, end)
            sent += done
            if timeout == 0:
                return sent
        return sent


def _shrunk(file: File, expected: int, found: int) -> TruncatedFileError:
    return TruncatedFileError(
        None, f"the file ends at {found} bytes, expected at least {expected}: it was truncated", str(file.path)
    )


# --- find the slice ---------------------------------------------------------------------------------------------------


def fetch(
    log: LogReads, offset: int, max_bytes: int, isolation_level: IsolationLevel, *, checked: bool = False
) -> FetchSlice:
    """See ``Log.fetch``."""
    source = log.source
    one_of("isolation_level", isolation_level, ISOLATION_LEVELS)
    source.notice()
    ends = source.ends
    # What was checked is worth nothing after a cut by another process, of which only a refresh tells.
    if checked or not ends.start_offset <= offset < ends.high_watermark:
        source.refresh()
    committed = isolation_level == "read_committed"
    found = looked_up(
        source, lambda: _settled_slice(log, source, offset, max_bytes, committed=committed, checked=checked)
    )
    source.context.counters.fetched(found.size)
    return found


def _settled_slice(
    log: LogReads, source: LogSource, offset: int, max_bytes: int, *, committed: bool, checked: bool
) -> FetchSlice:
    """A slice that begins with the batch of ``offset``; empty at the end of the readable part.

    Raises: OffsetOutOfRangeError; CorruptBatchError if that batch is damaged; LogNotFoundError without a segment;
    FileNotFoundError if a segment was just removed; StorageError.
    """
    while True:
        known = source.truncation_count, source.losses
        try:
            found = _slice(log, source, offset, max_bytes, committed=committed, checked=checked)
            if not checked or source.truncation_count == known[0]:
                return found
            # A cut came between the look-up of the batch and what was known of the bytes there.
        except CorruptBatchError:
            source.settle()
            if (source.truncation_count, source.losses) == known:
                raise
            # It was cut, and perhaps written again, while it was looked up; or its loss was just accepted.


def _slice(
    log: LogReads, source: LogSource, offset: int, max_bytes: int, *, committed: bool, checked: bool
) -> FetchSlice:
    bound = log.read_bound(committed=committed)
    ends = source.ends
    if not ends.start_offset <= offset <= ends.high_watermark:
        raise OffsetOutOfRangeError(offset, start_offset=ends.start_offset, end_offset=ends.high_watermark)
    found = source.segments.holding(offset) if offset < bound.high_watermark else None
    wanted = offset
    while found is not None:
        segment, end = found
        limit = bound.limit_of(segment)
        stop = min(end, bound.high_watermark)
        batch_stop = min(end, bound.end_offset)
        losses = source.losses
        contents = segment.contents  # before any byte is read: a cut that comes between makes what is checked worthless
        batch = _batch_of(segment, wanted, limit, stop, batch_stop, losses)
        for part in losses.missing(wanted, stop if batch is None else min(batch.base_offset, stop)):
            # Reads must not skip lost offsets.
            position = limit if batch is None else batch.position
            raise corrupt_batch_error(CorruptRange(*part, position, LOST, str(segment.log_file().path)))
        if batch is not None:
            position_stop = _position_of(source, segment, bound, limit)
            if position_stop < batch.position:
                reason = f"the read ends at position {position_stop}, before the batch of offset {wanted}"
                raise CorruptBatchError(reason, path=str(segment.log_file().path), position=batch.position)
            size = min(max(max_bytes, batch.size), position_stop - batch.position)
            if losses.missing(batch.base_offset, stop):
                size = _size_before_loss(segment, batch, size, losses)
            if checked:
                size = checked_size(segment, contents, batch, size, limit, batch_stop)
            aborted = None
            if committed:
                aborted = log.aborted_transactions(offset, stop)
            return FetchSlice(
                segment.log_file(),
                segment.base_offset,
                batch.position,
                size,
                offset,
                bound.high_watermark,
                aborted,
                source.context.config.max_batch_bytes_uncompressed,
                losses,
                batch_stop,
            )
        wanted = max(wanted, stop)
        found = source.segments.holding(end) if end < bound.high_watermark else None
    if not len(source.segments):
        raise LogNotFoundError(errno.ENOENT, "the log has no segment yet", str(source.context.directory))
    last = source.segments.last
    return FetchSlice(last.log_file(), last.base_offset, bound.position, 0, offset, bound.high_watermark)


def _size_before_loss(segment: LogSegment, first: BatchPosition, size: int, losses: LossRanges) -> int:
    """How many of ``size`` bytes, which begin with batch ``first``, are before lost offsets."""
    stop = first.position + size
    next_offset = first.base_offset
    for item in segment.walk_from(Located(first.position, 0, next_offset), stop):
        if isinstance(item, Damage):
            return size  # the reader finds the damage
        position, batch = item
        if losses.missing(next_offset, batch.base_offset):
            return position - first.position
        next_offset = batch.last_offset + 1
    return size


def _batch_of(
    segment: LogSegment, offset: int, limit: int, end: int, batch_stop: int, losses: LossRanges
) -> BatchPosition | None:
    """The position of the batch with ``offset``, or of the next one if it is in a gap; None at the end of ``segment``.

    No batch up to position ``limit`` ends at or above offset ``batch_stop``.

    Raises: CorruptBatchError if damage is found instead of that batch: it is not skipped unless its loss is
    accepted.
    """
    located = segment.locate(offset, limit)
    for start in (located, START) if located.position else (START,):
        for item in segment.walk_from(start, limit, offset_stop=batch_stop, chunk_bytes=SHORT_CHUNK_BYTES):
            if not isinstance(item, Damage):
                position, batch = item
                if batch.last_offset >= offset:
                    return BatchPosition(batch.base_offset, position, batch.size, batch.last_offset)
                continue
            if start is not START:
                break  # a damaged index, or a damaged header after its entry, may have led here
            last = (end if item.next_offset is None else item.next_offset) - 1
            path = str(segment.log_file().path)
            for lost in losses.judged(
                CorruptRange(max(item.first_offset, offset), last, item.position, item.reason, path)
            ):
                raise corrupt_batch_error(lost)
        else:
            return None
    return None


def _position_of(source: LogSource, segment: LogSegment, bound: Ends, limit: int) -> int:
    """The position at which reading ends in ``segment``: before the first batch at or above the bound's offset."""
    if bound.high_watermark == source.ends.end_offset or segment.base_offset != bound.base_offset:
        return limit
    batch = segment.batch_at(bound.high_watermark, limit)
    return limit if batch is None else batch.position


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
