"""How a log is read: the read methods that ``Log`` inherits, and those that its readers call.

A read takes no lock: it uses what was published, and looks again if something changed during it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Literal, TypeVar

from kstore.engine.ends import Ends
from kstore.engine.fetch import FetchSlice, fetch_slice
from kstore.engine.reader import MISSING_MAX, LogReader
from kstore.engine.source import LogSource
from kstore.engine.times import first_at, latest_record
from kstore.errors import CorruptIndexError, OffsetOutOfRangeError
from kstore.record._codec import Record
from kstore.record._runs import Run
from kstore.record.batch import Batch
from kstore.rules.arguments import milliseconds, one_of
from kstore.rules.losses import LossRanges
from kstore.segment import LogSegment
from kstore.types import ISOLATION_LEVELS, OFFSET_MAX, AbortedTransaction, IsolationLevel, OnCorrupt

__all__ = ["LogReads", "TimePoint", "looked_up"]

Found = TypeVar("Found")
TimePoint = int | datetime | Literal["earliest", "latest", "max_timestamp"]

FETCH_BYTES = 1 << 20
ON_CORRUPT: tuple[OnCorrupt, ...] = ("raise", "skip", "yield")


class LogReads:
    """The part of ``Log`` that reads records."""

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self._source.ends.start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        source = self._source
        source.refresh()
        return source.ends.end_offset

    @property
    def high_watermark(self) -> int:
        """Where reads stop: records that may still vanish are not read."""
        source = self._source
        source.refresh()
        return source.ends.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Where "read_committed" stops: the first offset of the oldest open transaction, or the high watermark."""
        source = self._source
        source.refresh()
        return source.last_stable_offset()

    # --- read -------------------------------------------------------------------------------------------------------

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        on_corrupt: OnCorrupt = "raise",
        follow: bool = False,
        timeout: float | None = None,
    ) -> LogReader[Record]:
        """An iterator over the records from offset ``start`` (default: the first) to ``stop`` (exclusive).

        It ends at the high watermark of the moment it gets there, or with ``follow`` waits there for more:
        indefinitely, or until ``timeout`` seconds bring nothing. Control records are left out.

        Args:
            isolation_level: "read_committed" leaves out aborted transactions and stops at the last stable offset.
            on_corrupt: at a damaged batch, and at durable records that the disk has lost, "raise" a CorruptBatchError;
                "skip" them, and list them in the iterator's ``corrupt``; or "yield" a ``CorruptRange`` in their place.
                Offsets that ``Log.accept_loss`` has accepted are skipped.

        Raises: OffsetOutOfRangeError at once; CorruptBatchError, StorageError while it runs.
        """
        source = self._source
        limit = source.context.config.max_batch_bytes_uncompressed

        def decode(batch: Batch, first_offset: int, stop_offset: int) -> Iterable[Record]:
            return batch.records(first_offset, stop_offset, limit)

        return self._reader(
            source, decode, start, stop, isolation_level, on_corrupt, follow, timeout, decode_run=Run.records
        )

    def read_values(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        on_corrupt: OnCorrupt = "raise",
        follow: bool = False,
        timeout: float | None = None,
    ) -> LogReader[bytes | None]:
        """Like ``read``, for the values only: the fast path for payloads."""
        source = self._source
        limit = source.context.config.max_batch_bytes_uncompressed

        def decode(batch: Batch, first_offset: int, stop_offset: int) -> Iterable[bytes | None]:
            return batch.values(first_offset, stop_offset, limit)

        return self._reader(
            source, decode, start, stop, isolation_level, on_corrupt, follow, timeout, decode_run=Run.values
        )

    def read_runs(
        self,
        decode: Callable[[Batch, int, int, int], Iterable[Found]],
        start: int,
        stop: int,
        *,
        isolation_level: IsolationLevel,
        on_corrupt: OnCorrupt,
    ) -> LogReader[Found]:
        """Like ``read``, for the results of ``decode``, called with each batch, the offsets wanted of it and its size
        limit.

        For consumers, which must know where each batch ends.
        """
        source = self._source
        limit = source.context.config.max_batch_bytes_uncompressed

        def decode_within(batch: Batch, first_offset: int, stop_offset: int) -> Iterable[Found]:
            return decode(batch, first_offset, stop_offset, limit)

        return self._reader(source, decode_within, start, stop, isolation_level, on_corrupt)

    def _reader(
        self,
        source: LogSource,
        decode: object,
        start: int | None,
        stop: int | None,
        isolation_level: IsolationLevel,
        on_corrupt: OnCorrupt,
        follow: bool = False,
        timeout: float | None = None,
        *,
        decode_run: object = None,
    ) -> LogReader:  # type: ignore[type-arg]  # the two callers name it
        one_of("isolation_level", isolation_level, ISOLATION_LEVELS)
        one_of("on_corrupt", on_corrupt, ON_CORRUPT)
        # What is known is read as it is; the reader itself looks for what came since when it gets there, so that
        # who looks up one record does not pay for a listing of the directory.
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
        counters = source.context.counters
        counters.reads += 1
        return LogReader(
            self,
            decode,  # type: ignore[arg-type]
            decode_run,  # type: ignore[arg-type]
            counters,
            start,
            stop,
            committed=isolation_level == "read_committed",
            on_corrupt=on_corrupt,
            follow=follow,
            timeout=timeout,
            is_current=is_current or stop <= known_end,
        )

    def fetch(
        self,
        offset: int,
        max_bytes: int = FETCH_BYTES,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> FetchSlice:
        """A slice of one segment that begins with the batch of ``offset``, named but not read.

        At most ``max_bytes`` bytes, but always the whole first batch; empty at the high watermark.

        Raises: OffsetOutOfRangeError, CorruptBatchError if the batch of ``offset`` is damaged, or lost, and that is not
        accepted; StorageError.
        """
        source = self._source
        one_of("isolation_level", isolation_level, ISOLATION_LEVELS)
        ends = source.ends
        if not ends.start_offset <= offset < ends.high_watermark:
            source.refresh()
        committed = isolation_level == "read_committed"
        found = looked_up(source, lambda: fetch_slice(self, source, offset, max_bytes, committed=committed))
        source.context.counters.fetched(found.size)
        return found

    def offset_for_time(self, when: TimePoint) -> int | None:
        """The first offset whose record is at or after ``when``; None if there is none.

        ``when`` is ms since the epoch, an aware ``datetime``, or "earliest" (the log's start), "latest" (the high
        watermark), "max_timestamp" (the record with the greatest timestamp). Damaged batches are skipped.
        """
        source = self._source
        source.refresh()
        if when == "earliest":
            return source.ends.start_offset
        if when == "latest":
            return source.ends.high_watermark
        if when == "max_timestamp":
            found = looked_up(source, lambda: latest_record(source, source.ends))
        else:
            timestamp_ms = milliseconds(when)
            found = looked_up(source, lambda: first_at(source, timestamp_ms, source.ends))
        return None if found is None else found.offset

    # --- for readers (reader.Readable) -------------------------------------------------------------------------

    def read_bound(self, *, committed: bool) -> Ends:
        """The log's ends, with the high watermark where a read stops. For readers.

        The files may hold whole batches above it, which are not read, and one that it lies within.
        """
        source = self._source
        ends = source.ends
        if not committed:
            return ends
        return ends._replace(high_watermark=min(source.last_stable_offset(), ends.high_watermark))

    def segment_for(self, offset: int) -> tuple[LogSegment, int] | None:
        """The segment that holds ``offset``, and the offset at which it ends. For readers."""
        source = self._source
        snapshot = source.segments.snapshot
        segment = snapshot.floor(offset)
        if segment is None:
            if not snapshot.segments:
                return None
            segment = snapshot.segments[0]
        following = snapshot.higher(segment.base_offset)
        return segment, following.base_offset if following is not None else OFFSET_MAX

    def aborted_transactions(self, start: int, stop: int) -> Sequence[AbortedTransaction]:
        """The aborted transactions that overlap offsets ``start`` to ``stop``. For readers."""
        source = self._source
        truncation_count = source.truncation_count
        try:
            return source.producers.aborted_transactions(start, stop)
        except (CorruptIndexError, FileNotFoundError):
            source.settle()
            if source.truncation_count == truncation_count:
                raise
            return source.producers.aborted_transactions(start, stop)

    @property
    def losses(self) -> LossRanges:
        """What is known to be lost, and what of all damage is accepted. For readers."""
        return self._source.losses

    @property
    def truncation_count(self) -> int:
        """How often the log's end was cut since it was opened. For readers."""
        return self._source.truncation_count

    def refresh(self) -> None:
        """Looks for what another process has done to the log. For readers."""
        self._source.refresh()

    def settle(self) -> None:
        """Waits for a change of the segments that is under way. For readers."""
        self._source.settle()

    def wait_beyond(self, offset: int, timeout: float | None, *, committed: bool) -> bool:
        """Waits until records at or above ``offset`` may be read. For readers."""
        source = self._source
        if not committed:
            return source.wait_beyond(offset, timeout)
        clock = source.context.clock
        deadline = None if timeout is None else clock.monotonic() + timeout
        while not self.closed:
            if source.last_stable_offset() > offset:
                return True
            # Only an append can end a transaction, and so move the last stable offset.
            rest = None if deadline is None else max(deadline - clock.monotonic(), 0)
            if not source.wait_beyond(source.ends.high_watermark, rest):
                return source.last_stable_offset() > offset
        return False

    # --- what ``Log`` has -------------------------------------------------------------------------------------------

    @property
    def _source(self) -> LogSource:
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        raise NotImplementedError


def looked_up(source: LogSource, look: Callable[[], Found]) -> Found:
    """What ``look`` returns; it looks anew where a segment was removed, or is just coming, in a change that is soon
    over."""
    for _ in range(MISSING_MAX):
        try:
            return look()
        except FileNotFoundError:
            source.settle()
    return look()
