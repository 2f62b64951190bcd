"""Reads one partition from a position on, in pieces of the number of records wanted.

Python runs once for each run of plain batches, or other batch, of the log and once for each piece: what is in between
is compiled. A reader keeps the rest of a run that was not requested yet, up to the end of its turn.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.consumer.pieces import Cursor, CursorPiece, LentItems, ListPiece
from kstore.engine.ends import Ends
from kstore.engine.read.reader import open_reader
from kstore.errors import CorruptBatchError
from kstore.files.paths import TopicPartition
from kstore.log import Log, reads_of, writer_of
from kstore.record._codec import ConsumerRecord, Record, RecordCursor
from kstore.record._runs import Run, RunRecords, RunValues
from kstore.record.batch import Batch, RecordBatch
from kstore.record.scan import RUN_BYTES_MAX
from kstore.types import IsolationLevel, OnCorrupt

if TYPE_CHECKING:
    import pyarrow as pa

# Each open one may keep a megabyte of its log.
OPEN_READERS_MAX = 8

# Runs are read only if a turn holds at least this many: whole runs make it longer than requested by at most one.
TURN_RUNS_MIN = 4


# A way of decoding like the others, but without a function of its own.
_COLUMNS = object()


class _Part(NamedTuple):
    """The wanted part of a run or a batch, of ``size`` bytes; after it reading continues at ``next_offset``."""

    items: Iterable[Any]
    next_offset: int
    size: int
    offsets: Sequence[int] = ()


class ReadingCounters:
    """Those of all partitions that a consumer reads, or has read: updated once per batch and once per piece, never per
    record."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records: int = 0
        self.bytes: int = 0


class PartitionReader:
    """One partition of a consumer; for one thread. ``position`` is the offset of the next record, None: not known yet.

    ``has_turn_ended``: it has given the amount of one turn.
    """

    __slots__ = (
        "_arrow",
        "_columns",
        "_counters",
        "_decode",
        "_done_at",
        "_end",
        "_files",
        "_items",
        "_lent",
        "_lent_from",
        "_next_offset",
        "_offsets",
        "_options",
        "_parts",
        "_size",
        "_whole",
        "_with_runs",
        "committed",
        "has_turn_ended",
        "isolation_level",
        "log",
        "on_corrupt",
        "owner",
        "paused",
        "position",
        "sibling_count",
        "turn_bytes",
    )

    def __init__(
        self,
        owner: TopicPartition,
        log: Log,
        isolation_level: IsolationLevel,
        on_corrupt: OnCorrupt,
        turn_bytes: int,
        counters: ReadingCounters,
    ) -> None:
        self.owner: TopicPartition = owner
        self._counters = counters
        self.log: Log = log
        writer = None if log.read_only else writer_of(log)
        # Known if only this process writes to the log: then each change of its ends puts another object there.
        self._files = None if writer is None or writer.is_shared else writer.files
        # The ends at which the last look found nothing.
        self._done_at: Ends | None = None
        self.isolation_level = isolation_level
        self.on_corrupt = on_corrupt
        self.turn_bytes: int = turn_bytes
        self.paused: bool = False
        # How many other partitions its consumer reads.
        self.sibling_count: int = 0
        self.position: int | None = None
        # The last committed offset.
        self.committed: int | None = None
        self.has_turn_ended: bool = False
        self._size = 0
        # The rest of a part, after which reading continues at _next_offset; the offsets of values.
        self._items: Iterator[Any] | None = None
        self._offsets: Sequence[int] = ()
        # The values of a part from which none was given yet, if they are a list.
        self._whole: Any = None
        # The source of items of that part that were lent.
        self._lent: Cursor | None = None
        self._lent_from = 0
        self._decode: Any = None
        self._next_offset = 0
        self._parts: Iterator[_Part] | None = None
        self._with_runs = turn_bytes >= TURN_RUNS_MIN * RUN_BYTES_MAX
        self._end = 0
        # Columns: the rest of a piece, and the options they were requested with.
        self._arrow: Iterator[pa.RecordBatch] | None = None
        self._columns: pa.RecordBatch | None = None
        self._options: dict[str, Any] = {}

    # --- where it is ------------------------------------------------------------------------------------------------

    def seek(self, offset: int | None) -> None:
        self.position = offset
        self.stop()

    def leave(self, offset: int, unused_count: int = 0) -> None:
        """The records below ``offset``, lent or given, were used; reading continues there."""
        lent = self._lent
        self.seek(offset)
        if lent is not None:
            self._counters.records += _given(lent, offset) - self._lent_from
        self._counters.records -= unused_count

    def known_position(self) -> int | None:
        """The position, even within lent records; any thread may ask."""
        cursor = self._lent
        return self.position if cursor is None else cursor.next_offset

    def stop(self) -> None:
        """Drops what was read ahead; reading continues at ``position``."""
        self._items = self._whole = self._lent = self._parts = self._arrow = self._columns = None
        self._done_at = None
        self._size = 0

    def end_offset(self) -> int:
        """Where reading ends now. Raises: StorageError."""
        return self.log.last_stable_offset if self.isolation_level == "read_committed" else self.log.high_watermark

    @property
    def is_done(self) -> bool:
        """Whether a look is certain to find nothing: the last one did, and the log is as it was. Costs a tenth of it.

        A consumer of a thousand partitions thus looks only at those that have grown.
        """
        files = self._files
        return files is not None and files.ends is self._done_at and files.closed is None

    def has_more(self) -> bool:
        """Whether there is something to read, as far as is known without reading it."""
        if self.is_done:
            return False
        return self.is_ahead or (self.position is not None and self.end_offset() > self.position)

    @property
    def is_ahead(self) -> bool:
        """Whether there is something to give without a look at the log."""
        return any(ahead is not None for ahead in (self._items, self._parts, self._arrow, self._columns))

    # --- records ----------------------------------------------------------------------------------------------------

    def take(self, count: int) -> list[ConsumerRecord]:
        """The next records, at most ``count``, of at most one run; none at the end of what can be read.

        Raises: OffsetOutOfRangeError, CorruptBatchError, StorageError: the position stays where it is.
        """
        try:
            return self._take(count)
        except BaseException:
            # Items may have left their source without being returned.
            self.stop()
            raise

    def _take(self, count: int) -> list[ConsumerRecord]:
        while True:
            if self._items is not None and self._decode is _records:
                found: list[ConsumerRecord] = list(islice(self._items, count))
                self._counters.records += len(found)
                if len(found) < count:
                    self._items = None
                    self.position = self._next_offset
                else:
                    self.position = found[-1].offset + 1
                if found:
                    return found
            if not self._open_part(_records):
                return []

    def lend(self, count: int) -> LentItems | None:
        """Like ``take``, for records that are made only on request: see ``settle``."""
        self.settle()
        if self._items is None and not self._open_part(_records):
            return None
        if isinstance(self._items, RecordCursor | RunRecords):
            return self._lend(self._items, count)
        # Message sets of versions 0 and 1.
        records = self.take(count)
        return ListPiece(self, records) if records else None

    def _lend(self, cursor: Cursor, count: int) -> LentItems:
        self._lent = cursor
        self._lent_from = _given(cursor, cursor.next_offset)
        is_all = count >= self._next_offset - cursor.next_offset
        return CursorPiece(self, cursor, None if is_all else count)

    def settle(self) -> None:
        """Moves the position to where the user of lent records has come."""
        cursor, self._lent = self._lent, None
        if cursor is not None:
            self.position = cursor.next_offset
            if not cursor.has_more:
                self._items = None
                self.position = self._next_offset
            self._counters.records += _given(cursor, cursor.next_offset) - self._lent_from

    def lend_values(self, count: int) -> LentItems | None:
        """Like ``lend``, for the values only."""
        self.settle()
        if (self._items is None or self._decode is not _values) and not self._open_part(_values):
            return None
        if isinstance(self._items, RunValues):
            return self._lend(self._items, count)
        found, offsets = self._take_values(count)
        return ListPiece(self, found, offsets) if found else None

    def _take_values(self, count: int) -> tuple[list[bytes | None], Sequence[int]]:
        try:
            return self._next_values(count)
        except BaseException:
            self.stop()
            raise

    def _next_values(self, count: int) -> tuple[list[bytes | None], Sequence[int]]:
        while True:
            if self._items is not None and self._decode is _values:
                if self._whole is not None and len(self._whole) <= count:
                    whole, offsets = self._whole, self._offsets
                    self._counters.records += len(whole)
                    self._items = self._whole = None
                    self.position = self._next_offset
                    return whole, offsets
                self._whole = None
                found: list[bytes | None] = list(islice(self._items, count))
                offsets, self._offsets = self._offsets[: len(found)], self._offsets[len(found) :]
                self._counters.records += len(found)
                if len(found) < count:
                    self._items = None
                    self.position = self._next_offset
                else:
                    self.position = offsets[-1] + 1
                if found:
                    return found, offsets
            if not self._open_part(_values):
                return [], ()

    def _switch_to(self, decode: object) -> None:
        """What was read ahead in another way is read again."""
        if self._decode is not decode:
            self.stop()
            self._decode = decode

    def _open_part(self, decode: Any) -> bool:
        """Continues with the next part; False if there is none now, or the turn has ended."""
        self._switch_to(decode)
        if self._parts is not None and self._size >= self.turn_bytes and self.sibling_count:
            # Others come first. What it had read ahead is read again later, if many are read.
            if self.sibling_count >= OPEN_READERS_MAX:
                self._parts = None
            self._size = 0
            self.has_turn_ended = True
            return False
        part = self._next_part(decode)
        if part is None:
            return False
        items = iter(part.items)
        if decode is _records:
            if isinstance(items, RecordCursor | RunRecords):
                items.origin = self.owner
            else:
                items = (_with_origin(self.owner, record) for record in items)
        self._items, self._offsets, self._next_offset = items, part.offsets, part.next_offset
        self._whole = part.items if isinstance(part.items, list) and part.items else None
        self._size += part.size
        self._counters.bytes += part.size
        return True

    def _next_part(self, decode: Any) -> _Part | None:
        """The next run or batch; None if there is none now."""
        for _ in range(2):
            if self._parts is None:
                if self._is_at_end():
                    return None
                self._parts = open_reader(
                    reads_of(self.log),
                    decode,
                    self.position,
                    self._end,
                    self.isolation_level,
                    self.on_corrupt,
                    decode_run=DECODE_RUN[decode] if self._with_runs else None,
                )
            try:
                part = next(self._parts, None)
            except CorruptBatchError as error:
                # The records before the damage have been given: a seek skips only the damage.
                if error.first_offset > self.position:  # type: ignore[operator]
                    self.position = error.first_offset
                self._parts = None
                raise
            except BaseException:
                self._parts = None
                raise
            if part is not None:
                return part
            self._parts = None
            self._next_offset = self.position = max(self.position or 0, self._end)
        return None

    def _is_at_end(self) -> bool:
        """Looks where reading ends now; whether that is where it is."""
        files = self._files
        ends = None if files is None else files.ends  # before the look: what comes after it is another
        self._end = self.end_offset()
        assert self.position is not None
        is_at_end = self.position == self._end
        self._done_at = ends if is_at_end else None
        return is_at_end

    # --- columns ----------------------------------------------------------------------------------------------------

    def take_arrow(self, count: int, options: dict[str, Any]) -> pa.RecordBatch | None:
        """The next records as columns, at most ``count``; None at the end of what can be read, or of the turn."""
        try:
            return self._take_arrow(count, options)
        except BaseException:
            self.stop()
            raise

    def _take_arrow(self, count: int, options: dict[str, Any]) -> pa.RecordBatch | None:
        self._switch_to(_COLUMNS)
        batch = self._columns if self._options == options else None
        self._columns = None
        if batch is None:
            batch = self._next_columns(options)
            if batch is None:
                return None
        if batch.num_rows > count:
            batch, self._columns = batch.slice(0, count), batch.slice(count)
        self._counters.records += batch.num_rows
        self.position = batch.column("offset")[-1].as_py() + 1
        return batch

    def _next_columns(self, options: dict[str, Any]) -> pa.RecordBatch | None:
        if self._size >= self.turn_bytes and self.sibling_count:
            self._size = 0
            self.has_turn_ended = True
            return None
        if self._arrow is None or self._options != options:
            if self._is_at_end():
                return None
            self._options = options
            self._arrow = self.log.to_arrow_batches(
                self.position, self._end, isolation_level=self.isolation_level, on_corrupt=self.on_corrupt, **options
            )
        try:
            batch = next(self._arrow, None)
        except BaseException:
            self._arrow = None
            raise
        if batch is None:
            self._arrow = None
            # Not back, if it lies after what an open transaction holds up.
            self.position = max(self.position or 0, self._end)
            return None
        self._size += batch.nbytes
        self._counters.bytes += batch.nbytes
        return batch


def _with_origin(owner: TopicPartition, record: Record) -> ConsumerRecord:
    """A record of a message set of version 0 or 1, which no cursor makes."""
    return ConsumerRecord(
        *owner,
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        record.headers,
        record.leader_epoch,
    )


def _given(cursor: Cursor, next_offset: int) -> int:
    """How many items a cursor has given, counted from anywhere; it has come to ``next_offset``."""
    return next_offset if isinstance(cursor, RecordCursor) else cursor.given_count


def _records(batch: Batch, first_offset: int, stop_offset: int, limit: int) -> Iterable[_Part]:
    next_offset = min(batch.last_offset + 1, stop_offset)
    return (_Part(batch.records(first_offset, stop_offset, limit), next_offset, batch.size),)


def _values(batch: Batch, first_offset: int, stop_offset: int, limit: int) -> Iterable[_Part]:
    next_offset = min(batch.last_offset + 1, stop_offset)
    first = max(batch.base_offset, first_offset)
    if isinstance(batch, RecordBatch) and batch.record_count == batch.last_offset - batch.base_offset + 1:
        offsets: Sequence[int] = range(first, next_offset)
        return (_Part(batch.values(first_offset, stop_offset, limit), next_offset, batch.size, offsets),)
    # Compacted: only the records tell which offsets are left.
    records = list(batch.records(first_offset, stop_offset, limit))
    found = [record.value for record in records], [record.offset for record in records]
    return (_Part(found[0], next_offset, batch.size, found[1]),)


def _records_of_run(
    run: Run, first_offset: int, stop_offset: int, tally: array[int], aborted: array[int] | None
) -> Iterable[_Part]:
    items = run.records(first_offset, stop_offset, tally, aborted)
    return (_Part(items, min(run.next_offset, stop_offset), run.stop - run.start),)


def _values_of_run(
    run: Run, first_offset: int, stop_offset: int, tally: array[int], aborted: array[int] | None
) -> Iterable[_Part]:
    items = run.values(first_offset, stop_offset, tally, aborted)
    return (_Part(items, min(run.next_offset, stop_offset), run.stop - run.start),)


DECODE_RUN = {_records: _records_of_run, _values: _values_of_run}
