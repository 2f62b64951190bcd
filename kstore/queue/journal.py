"""The journal of a queue: a log of what happened to its items, short because it is rewritten from time to time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from kstore.engine.append import Appends
from kstore.errors import CorruptFileError
from kstore.log import Log, reads_of, writer_of
from kstore.queue._jobs import encode_runs
from kstore.queue.events import GAP, ROWS_MAX, Event, decode_events, encode_events
from kstore.queue.known import KnownItems
from kstore.queue.leases import Lease
from kstore.queue.snapshot import last_snapshot
from kstore.types import CorruptRange

__all__ = ["SEGMENT_BYTES", "Journal", "Replayed"]

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 1 << 20
# An estimate of the bytes that a batch and a record add to a value.
BATCH_BYTES = 75

LeaseT = TypeVar("LeaseT", bound=Lease)


class Replayed(NamedTuple):
    """Where the replayed events end, and whether some are unreadable and no event has recorded that yet."""

    end: int
    is_damaged: bool


class Journal:
    """Appends events, and reads them. Thread-safe."""

    def __init__(self, log: Log, *, is_sync: bool) -> None:
        self.log = log
        self._is_sync = is_sync
        # The log's, once there was an append: a log that is open for reading has none.
        self._appends: Appends | None = None
        # An estimate of the bytes since the last snapshot; unguarded: only the time of the next snapshot depends on it.
        self.size: int = 0

    @property
    def end(self) -> int:
        return self.log.high_watermark

    def append(self, value: bytes) -> int:
        """Appends one record; returns the offset after it. As durable as the log's setting. Raises: as ``Log``."""
        self.size += len(value) + BATCH_BYTES
        appends = self._appends
        if appends is None:
            appends = self._appends = writer_of(self.log).appends
        single = appends.append_single(value, None)
        return (self.log.append(value) if single is None else single[0]) + 1

    def append_done(self, kind: bytes, offsets: list[int], notes: bytes = b"") -> int:
        """Appends that items are done, by events of ``kind``, and ``notes``. As ``append_rows``; ``offsets`` rise."""
        values = encode_runs(kind, offsets, ROWS_MAX)
        if len(values) == 1:
            return self.append(values[0] + notes if notes else values[0])
        return self._append_all(values, notes)

    def append_rows(self, kind: bytes, rows: Sequence[tuple[int, ...]], notes: bytes = b"") -> int:
        """Appends events of one kind; if they need several records, a crash may leave only the first of them."""
        if len(rows) <= ROWS_MAX:
            return self.append(encode_events(kind, rows) + notes)
        values = [encode_events(kind, rows[at : at + ROWS_MAX]) for at in range(0, len(rows), ROWS_MAX)]
        return self._append_all(values, notes)

    def _append_all(self, values: Sequence[bytes], notes: bytes) -> int:
        self.size += sum(map(len, values))
        return self.append_many([*values, notes] if notes else values)

    def append_many(self, values: Sequence[bytes]) -> int:
        """Appends records; a crash leaves a prefix of them."""
        return self.log.append_many(values).last_offset + 1

    def flush(self) -> None:
        """Puts on disk what must be there before something else is removed."""
        if not self._is_sync:
            self.log.flush()

    def read(self, start: int) -> Iterator[tuple[int, list[Event] | None]]:
        """The events from ``start``: those of each record, with its offset; None for unreadable records, with the
        offset of the last of them. Raises: OffsetOutOfRangeError, StorageError."""
        expected = start
        for record in self.log.read(start, on_corrupt="yield"):
            if isinstance(record, CorruptRange):
                logger.warning("%s: offsets %d to %d are damaged", self.log.path, record.first, record.last)
                expected = record.last + 1
                yield record.last, None
                continue
            if record.offset != expected:
                logger.warning("%s: offsets %d to %d are missing", self.log.path, expected, record.offset - 1)
                yield record.offset - 1, None
            expected = record.offset + 1
            try:
                events = list(decode_events(record.value or b""))
            except CorruptFileError as error:
                logger.warning("%s: the record at offset %d is skipped: %s", self.log.path, record.offset, error)
                yield record.offset, None
            else:
                yield record.offset, events

    def replay(self, state: KnownItems[LeaseT], start: int | None = None, stop: int | None = None) -> Replayed:
        """Adds the events from ``start`` to ``state``, or everything needed, from the last snapshot on.

        Raises: OffsetOutOfRangeError, StorageError.
        """
        end, is_damaged = start or 0, False
        if start is None:
            end = self.log.start_offset
            found = last_snapshot((events or () for _, events in self.read(end)), end)
            if found is not None:
                end, snapshot = found
                state.restore(snapshot)
            # Records are removed only after a snapshot.
            is_damaged = found is None and end > 0
        for offset, events in self.read(end):
            if stop is not None and offset >= stop:
                break
            for kind, row in events or ():
                state.apply(kind, row)
                if kind == GAP:
                    is_damaged = False  # the process that found it has recorded it
            is_damaged |= events is None
            end = offset + 1
        return Replayed(end, is_damaged)

    def rewrite(self, values: Sequence[bytes], first_needed: int) -> None:
        """Appends a snapshot, and removes the segments below ``first_needed``, which it replaces."""
        self.append_many(values)
        self.size = 0
        found = reads_of(self.log).segment_for(self.log.start_offset)
        if found is not None and found[1] <= first_needed:
            self.flush()
            self.log.delete_records(first_needed)
