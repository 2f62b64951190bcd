"""Reading a range of offsets: the iterators behind ``Log.read``, ``Log.read_values`` and ``Log.tail``.

The per-record work is compiled: a run of plain batches becomes one compiled cursor; any other batch becomes a cursor
(or a list of values) of its own. ``itertools.chain`` strings them together, so that Python runs once a run. A reader
takes no lock. It works on what was published when it last looked, and looks again when it has read that far.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, NoReturn, TypeAlias, TypedDict, TypeVar

from kstore.engine.ends import Ends
from kstore.engine.read.lookup import batch_of
from kstore.engine.read.reads import MISSING_MAX, LogReads
from kstore.errors import ClosedError, CorruptDataError, OffsetOutOfRangeError, StorageError
from kstore.files.remote import RemoteFiles
from kstore.metrics import DELIVERED_BATCHES, DELIVERED_BYTES, DELIVERED_RECORDS
from kstore.record._codec import Record
from kstore.record._runs import Run, batch_run
from kstore.record.batch import MAGIC_V2, Batch
from kstore.record.compression import NO_CODEC
from kstore.record.parse import parse_batch
from kstore.record.walk import Damage
from kstore.rules.arguments import offset_number, one_of
from kstore.rules.losses import LOST, corrupt_batch_error
from kstore.segment import LogSegment, SegmentContext
from kstore.segments.places import START
from kstore.types import ISOLATION_LEVELS, OFFSET_MAX, AbortedTransaction, CorruptRange, IsolationLevel, OnCorrupt

Item = TypeVar("Item")
# Decodes a run: ``Run.records`` or ``Run.values``.
RunDecoder: TypeAlias = "Callable[[Run, int, int, array[int], array[int] | None], Iterable[Item]]"

# Where offsets are missing (compaction, markers, aborted transactions), each further look for the last records covers
# this many times more.
GROWTH = 8
# A larger batch is decoded alone, in one pass; a run takes two.
RUN_BATCH_BYTES = 1 << 16
# The first batch of a read up to this size is checked as a run: a lookup of one record ends in it.
FIRST_BATCH_BYTES = 1 << 18
ON_CORRUPT: tuple[OnCorrupt, ...] = ("raise", "skip", "yield")


class _TruncatedError(Exception):
    """The log was truncated while it was read."""


def open_reader(
    log: LogReads,
    decode: Callable[[Batch, int, int, int], Iterable[Item]],
    start: int | None,
    stop: int | None,
    isolation_level: IsolationLevel,
    on_corrupt: OnCorrupt,
    follow: bool = False,
    timeout: float | None = None,
    *,
    decode_run: RunDecoder[Item] | None = None,
) -> LogReader[Item]:
    """See ``Log.read``; of each batch it gives what ``decode`` returns for the offsets wanted and the size limit.

    ``decode_run`` returns the same for a run of plain batches; without it each of them is decoded.
    """
    source = log.source
    one_of("isolation_level", isolation_level, ISOLATION_LEVELS)
    one_of("on_corrupt", on_corrupt, ON_CORRUPT)
    start = None if start is None else offset_number("start", start)
    stop = None if stop is None else offset_number("stop", stop)
    if timeout is not None and not isinstance(timeout, int | float):
        raise TypeError(f"timeout is {timeout!r:.80}, expected seconds, or None")
    # The known ends, without a refresh: the reader itself looks for newer records when it has read that far, so a
    # lookup of one record does not pay for a listing of the directory.
    source.notice()
    ends = source.ends
    is_current = start is None or not ends.start_offset <= start < ends.high_watermark
    if is_current:
        source.refresh()
        ends = source.ends
    known_end = ends.high_watermark
    if start is None:
        start = ends.start_offset
    elif not ends.start_offset <= start <= known_end:
        raise OffsetOutOfRangeError(start, start_offset=ends.start_offset, end_offset=known_end)
    if stop is None:
        stop = OFFSET_MAX
    source.context.counters.reads += 1
    plan = _ReadPlan(
        log,
        decode,
        decode_run,
        source.context,
        start,
        stop,
        committed=isolation_level == "read_committed",
        on_corrupt=on_corrupt,
        follow=follow,
        timeout=timeout,
        is_current=is_current or stop <= known_end,
    )
    return LogReader(plan, str(source.context.directory))


class _RunOptions(TypedDict):
    """Arguments of ``LogSegment.runs_from``."""

    offset_stop: int
    base_stop: int
    run_batch_bytes: int
    with_compressed: bool


class LogReader(Generic[Item]):
    """An iterator over records, or values; for one thread.

    ``corrupt`` lists what damage made it leave out, as it comes to it.
    """

    __slots__ = ("_items", "_path", "corrupt")

    def __init__(self, plan: _ReadPlan[Item], path: str) -> None:
        self.corrupt: list[CorruptRange] = plan.corrupt
        self._path = path
        # The plan must not know its reader: a cycle would keep the batch that was read last until the garbage
        # collector runs, and with it the memory that the next lookup would take, still warm.
        self._items: Iterator[Item] = chain.from_iterable(plan.runs())

    def __repr__(self) -> str:
        return f"LogReader({self._path!r})"

    def __array__(self, *_: object, **options: object) -> NoReturn:
        """Refuses: numpy, and ``pandas.DataFrame(log.read())``, would make one column of objects."""
        raise TypeError("records are no array: use log.to_pandas(start, stop), log.to_polars or log.to_arrow")

    def __iter__(self) -> Iterator[Item]:
        # The chain itself, so that a for loop stays in compiled code from one record to the next.
        return self._items

    def __next__(self) -> Item:
        return next(self._items)


class _ReadPlan(Generic[Item]):
    """What one reader still has to read, and the steps from one batch to the next."""

    __slots__ = (
        "_committed",
        "_counters",
        "_decode",
        "_decode_run",
        "_follow",
        "_is_current",
        "_is_remote",
        "_limit",
        "_log",
        "_offset",
        "_on_corrupt",
        "_stop",
        "_timeout",
        "_truncation_count",
        "corrupt",
    )

    def __init__(
        self,
        log: LogReads,
        decode: Callable[[Batch, int, int, int], Iterable[Item]],
        decode_run: RunDecoder[Item] | None,
        context: SegmentContext,
        start: int,
        stop: int,
        *,
        committed: bool,
        on_corrupt: OnCorrupt,
        follow: bool,
        timeout: float | None,
        is_current: bool,
    ) -> None:
        """``decode_run`` returns for a run what ``decode`` returns for its batches; None: only ``decode`` is used.

        ``is_current``: the end that is known now is recent enough to stop at; otherwise the reader looks again after
        the first batch."""
        self.corrupt: list[CorruptRange] = []
        self._log = log
        self._decode = decode
        self._decode_run = decode_run
        self._counters = context.counters
        self._limit = context.config.max_batch_bytes_uncompressed
        self._offset = start
        self._stop = stop
        self._committed = committed
        self._on_corrupt = on_corrupt
        self._follow = follow
        self._timeout = timeout
        self._is_current = is_current
        self._is_remote = isinstance(context.fs, RemoteFiles)
        self._truncation_count = 0

    def runs(self) -> Iterator[Iterable[Item]]:
        # Not where each look at an index is a request, and where reads are of many records.
        if not (self._committed or self._is_remote):
            first = self._first_run()
            if first is not None:
                yield first
            # Otherwise the records of the first batch would live as long as the reader.
            del first
        try:
            if not self._is_current and self._offset < self._stop:
                self._log.refreshed()
            while True:
                yield from self._to_the_end()
                if self._offset >= self._stop or not self._follow:
                    return
                if not self._log.wait_beyond(self._offset, self._timeout, committed=self._committed):
                    return
        except ClosedError:
            if not (self._follow and self._log.closed):
                raise
            # The reader has followed the log until it was closed, which is the end of the read.

    def _first_run(self) -> Iterable[Item] | None:
        """The batch that holds the first offset, by the shortest path; None if anything about it is not plain.

        A lookup of one record reads only its batch, without the machinery of a long read.
        """
        source = self._log.source
        bound = source.ends
        found = source.segments.holding(self._offset) if self._offset < min(self._stop, bound.high_watermark) else None
        if found is None:
            return None
        segment, end = found
        try:
            file = segment.log_file()
            limit = bound.limit_of(segment, file)
            whole = batch_of(segment, self._offset, limit, end, file)
            if whole is not None and self._decode_run is not None:
                checked = batch_run(whole[0], whole[1], self._offset, end, FIRST_BATCH_BYTES)
                if checked is not None:
                    stop = min(self._stop, bound.high_watermark)
                    records = self._decode_run(checked, self._offset, stop, self._counters.delivered, None)
                    self._offset = min(checked.next_offset, stop)
                    return records
            if whole is not None:
                batch = parse_batch(whole[0], whole[1])
            else:
                position, size, _ = segment.locate(self._offset, limit, file=file)
                if not size:
                    return None
                batch = parse_batch(file.pread(size, position))
            if batch.is_control or not batch.base_offset <= self._offset <= batch.last_offset < end:
                return None
            batch.ensure_valid()
            stop = _stop_in(batch, min(self._stop, bound.high_watermark))
            run = self._decode(batch, self._offset, stop, self._limit)
        except (CorruptDataError, StorageError):
            return None  # the walk finds out what it means
        self._count(batch, stop)
        self._offset = min(batch.last_offset + 1, stop)
        return run

    def _to_the_end(self) -> Iterator[Iterable[Item]]:
        """Everything up to the end that the log has when this is called."""
        # Read before the bound: if a truncation removes anything below the bound, the count differs.
        self._truncation_count = self._log.truncation_count
        bound, stop, aborted = self._bounds()
        missing_count = 0
        while self._offset < stop:
            # What was just read may be from after a cut in another process, and the next segment from before it.
            self._log.source.notice()
            if self._log.truncation_count != self._truncation_count:
                # The batches that follow may be other ones, of which other transactions were aborted.
                self._truncation_count = self._log.truncation_count
                bound, stop, aborted = self._bounds()
                continue
            found = self._log.segment_for(self._offset)
            if found is None:
                return
            segment, segment_end = found
            if segment.base_offset > self._offset:
                # The records that came next when this read began have been deleted since: they must not be skipped
                # silently.
                raise self._out_of_range()
            try:
                yield from self._segment(segment, min(segment_end, bound.end_offset), stop, bound, aborted)
            except (FileNotFoundError, _TruncatedError) as error:
                # The segment was removed, replaced or cut after it was looked up.
                self._log.settle()
                is_unchanged = self._log.truncation_count == self._truncation_count
                missing_count = missing_count + 1 if is_unchanged and isinstance(error, FileNotFoundError) else 0
                self._truncation_count = self._log.truncation_count
                if self._offset < self._log.start_offset:
                    raise self._out_of_range() from None
                if missing_count > MISSING_MAX:
                    raise
                bound, stop, aborted = self._bounds()
                continue
            after = min(segment_end, stop)
            if self._offset < min(after, self._log.start_offset):
                # Retention may have deleted part of it since, and may not be done with the segments below it.
                raise self._out_of_range()
            self._offset = max(self._offset, after)

    def _out_of_range(self) -> OffsetOutOfRangeError:
        """The error if the next record is gone. Its offsets are the present ones: the log may have a new start."""
        ends = self._log.source.ends
        return OffsetOutOfRangeError(self._offset, start_offset=ends.start_offset, end_offset=ends.high_watermark)

    def _bounds(self) -> tuple[Ends, int, Aborted | None]:
        """Where reading stops for now, and the transactions that were aborted below that."""
        bound = self._log.read_bound(committed=self._committed)
        stop = min(self._stop, bound.high_watermark)
        return bound, stop, Aborted(self._log.aborted_transactions(self._offset, stop)) if self._committed else None

    def _segment(
        self, segment: LogSegment, end: int, stop: int, bound: Ends, aborted: Aborted | None
    ) -> Iterator[Iterable[Item]]:
        """The runs of one segment, from ``self._offset`` on; offsets at or above ``end`` are not in it."""
        limit = bound.limit_of(segment)
        path = segment.log_file().path
        checked: object = None
        has_losses = False
        for item in self._walk(segment, limit, end, stop):
            if isinstance(item, Damage):
                last = item.next_offset - 1 if item.next_offset is not None else end - 1
                lost = CorruptRange(max(item.first_offset, self._offset), last, item.position, item.reason, str(path))
                yield from self._leave_out(lost, stop)
                continue
            run: Run | None = None
            batches: Iterable[tuple[int, Batch]]
            if isinstance(item, Run):
                run, batches, has_gap = item, item.batches(), item.has_gap
            else:
                batches, has_gap = (item,), item[1].base_offset > self._offset
            if has_gap:
                # There is no record, or it was cut during this read. A chunk is a state of one moment, so one check
                # covers each chunk of a compacted log.
                chunk = item.data if isinstance(item, Run) else item[1].data.obj
                if chunk is not checked:
                    self._log.refreshed()
                    self._ensure_not_cut()
                    checked = chunk
                    has_losses = bool(self._log.losses.lost)
            is_plain = run is not None and not run.is_compressed and not (has_gap and has_losses)
            if run is not None and is_plain and self._decode_run is not None:
                rows = aborted.rows if aborted is not None else None
                yield self._decode_run(run, self._offset, stop, self._counters.delivered, rows)
                self._offset = max(self._offset, min(run.next_offset, stop))
                continue
            for position, batch in batches:
                if has_losses and batch.base_offset > self._offset:
                    yield from self._leave_out_missing(min(batch.base_offset, stop), position, path)
                if batch.base_offset >= stop:
                    self._offset = stop
                    return
                wanted = batch.last_offset >= self._offset and not batch.is_control
                if wanted and not (aborted is not None and aborted.holds(batch)):
                    yield from self._whole(position, batch, stop, path)
                # The end may be within a batch: if the log starts again there, another batch follows later.
                self._offset = max(self._offset, min(batch.last_offset + 1, stop))
        if self._offset < min(end, stop):
            # In the middle of a cut the segments may be the new ones already, and the bound still the old one.
            self._log.settle()
            self._ensure_not_cut()
            yield from self._leave_out_missing(min(end, stop), limit, path)

    def _leave_out_missing(self, stop: int, position: int, path: object) -> Iterator[Iterable[Item]]:
        """What is lost of the offsets up to ``stop``, of which no batch was found before ``position``."""
        for first, last in self._log.losses.missing(self._offset, stop):
            yield from self._leave_out(CorruptRange(first, last, position, LOST, str(path)), stop)

    def _ensure_not_cut(self) -> None:
        """Raises: _TruncatedError if the log was cut, and perhaps written again, while it was read."""
        if self._log.truncation_count != self._truncation_count:
            raise _TruncatedError

    def _walk(self, segment: LogSegment, limit: int, end: int, stop: int) -> Iterator[Run | tuple[int, Batch] | Damage]:
        # A read that comes from the previous segment needs no index, and does not wait until one is rebuilt.
        located = segment.locate(self._offset, limit, repair=self._offset > segment.base_offset)
        options = _RunOptions(offset_stop=end, base_stop=stop, run_batch_bytes=RUN_BATCH_BYTES, with_compressed=True)
        items = segment.runs_from(located, limit, **options)
        first = next(items, None)
        if isinstance(first, Damage) and located.position:
            # A damaged index, or a damaged header on the way from its entry, may have led here: walk from the start.
            items = segment.runs_from(START, limit, **options)
            first = next(items, None)
        if first is not None:
            yield first
            yield from items

    def _whole(self, position: int, batch: Batch, stop: int, path: object) -> Iterator[Iterable[Item]]:
        try:
            run = self._decode(batch, self._offset, _stop_in(batch, stop), self._limit)
        except CorruptDataError as error:
            # The CRC is right, so it was written like this; still, nothing of it can be served.
            # The first offset of a compressed message set is then unknown.
            first = max(batch.base_offset, self._offset) if batch.magic == MAGIC_V2 else self._offset
            lost = CorruptRange(first, batch.last_offset, position, error.reason, str(path))
            yield from self._leave_out(lost, stop)
        else:
            self._count(batch, stop)
            yield run

    def _count(self, batch: Batch, stop: int) -> None:
        """Counts a batch of which the records from ``self._offset`` to below ``stop`` are handed out."""
        count = stop - self._offset
        if count > 1:
            last = batch.last_offset
            if batch.magic == MAGIC_V2 or batch.codec == NO_CODEC:
                count, first = batch.record_count, batch.base_offset
                if first < self._offset or last >= stop:
                    count = min(count, min(last + 1, stop) - max(first, self._offset))
            else:
                # The count of a compressed message set of version 0 or 1 is known only after another decompression.
                count = min(last + 1, stop) - self._offset
        delivered, size = self._counters.delivered, batch.size
        delivered[DELIVERED_BATCHES] += 1
        delivered[DELIVERED_RECORDS] += count
        delivered[DELIVERED_BYTES] += size

    def _leave_out(self, lost: CorruptRange, stop: int) -> Iterator[Iterable[Item]]:
        """Raises, reports or skips damage, as requested; damage outside the range that is read does not count."""
        lost = lost._replace(last=min(lost.last, stop - 1))
        if lost.last >= lost.first:
            # It may look like damage in the middle of a cut.
            self._log.settle()
            self._ensure_not_cut()
            for part in self._log.losses.judged(lost):
                self._offset = part.first
                self._counters.corrupt_ranges += 1
                if self._on_corrupt == "raise":
                    raise corrupt_batch_error(part)
                self.corrupt.append(part)
                if self._on_corrupt == "yield":
                    yield (part,)  # type: ignore[misc]  # the one case in which a reader yields something else
        self._offset = max(self._offset, lost.last + 1)


def records_of(batch: Batch, first_offset: int, stop_offset: int, limit: int) -> Iterable[Record]:
    """Decodes the records of one batch; its kind decides how."""
    return batch.records(first_offset, stop_offset, limit)


def values_of(batch: Batch, first_offset: int, stop_offset: int, limit: int) -> Iterable[bytes | None]:
    """Decodes the values of one batch."""
    return batch.values(first_offset, stop_offset, limit)


def _stop_in(batch: Batch, stop: int) -> int:
    """``stop``, or less where the messages in a compressed one may claim offsets that belong to others."""
    return stop if batch.magic == MAGIC_V2 else min(stop, batch.last_offset + 1)


class Aborted:
    """Which batches belong to aborted transactions; ``transactions`` are those that overlap the range read."""

    def __init__(self, transactions: Sequence[AbortedTransaction]) -> None:
        # By producer: the first offsets, increasing, and for each the greatest last offset so far.
        self._by_producer: dict[int, tuple[list[int], list[int]]] = {}
        for _, producer_id, first_offset, last_offset in sorted((one.first_offset, *one[:3]) for one in transactions):
            firsts, lasts = self._by_producer.setdefault(producer_id, ([], []))
            firsts.append(first_offset)
            lasts.append(max(last_offset, lasts[-1]) if lasts else last_offset)
        # The same for compiled code (``Run.records``).
        self.rows: array[int] = array("q")
        for producer_id in sorted(self._by_producer):
            for first, last in zip(*self._by_producer[producer_id], strict=True):
                self.rows.extend((producer_id, first, last))

    def holds(self, batch: Batch) -> bool:
        """Whether ``batch`` is data of one of them."""
        if not batch.is_transactional or batch.producer_id not in self._by_producer:
            return False
        firsts, lasts = self._by_producer[batch.producer_id]
        begun_count = bisect_right(firsts, batch.base_offset)
        return begun_count > 0 and lasts[begun_count - 1] >= batch.base_offset


def last_records(log: LogReads, count: int, isolation_level: IsolationLevel) -> list[Record]:
    """See ``Log.tail``."""
    count = offset_number("count", count)
    if count < 0:
        raise ValueError(f"count is {count}, expected at least 0")
    source = log.refreshed()
    ends = source.ends
    stop = source.last_stable_offset() if isolation_level == "read_committed" else ends.high_watermark
    width = count
    while True:
        start = max(stop - width, ends.start_offset)
        reader = open_reader(log, records_of, start, stop, isolation_level, "raise", decode_run=Run.records)
        # There are no more in that range, and a deque has its limit.
        found = deque(reader, maxlen=min(count, stop - start))
        if len(found) == count or start == ends.start_offset:
            return list(found)
        width *= GROWTH
