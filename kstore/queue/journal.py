"""The journal of a queue: a log of what happened to its items, short because it is rewritten from time to time."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from kstore.engine.append.appends import Appends
from kstore.engine.read.onward import Onward
from kstore.errors import CorruptFileError
from kstore.log import Log, reads_of, writer_of
from kstore.queue._jobs import encode_runs
from kstore.queue.events import (
    COUNT_MAX,
    DONE,
    FLOOR,
    GAP,
    HELD,
    MOVED,
    RETRY,
    ROWS_MAX,
    SNAPSHOT,
    Event,
    decode_events,
    encode_events,
    ranges_of,
)
from kstore.queue.known import OF_SNAPSHOT, KnownItems
from kstore.queue.leases import Lease
from kstore.types import CorruptRange

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
        self._reads = reads_of(log)
        self._onward = Onward(self._reads)
        # An estimate of the bytes since the last snapshot; unguarded: only the time of the next snapshot depends on it.
        self.size: int = 0

    @property
    def end(self) -> int:
        """Where it ends now. Each append of another process that has returned was told of: it takes no system call to
        look at that."""
        source = self._reads.source
        source.notice()
        return source.ends.high_watermark

    def append(self, value: bytes) -> int:
        """Appends one record; returns the offset after it. As durable as the log's setting. Raises: as ``Log``."""
        self.size += len(value) + BATCH_BYTES
        appends = self._appends
        if appends is None:
            appends = self._appends = writer_of(self.log).appends
        single = appends.append_single(value, None)
        return (self.log.append(value) if single is None else single[0]) + 1

    def append_all(self, values: Sequence[bytes]) -> int:
        """``append`` of one record or more; of several a crash may leave only the first ones."""
        if len(values) == 1:
            return self.append(values[0])
        self.size += sum(map(len, values))
        return self.append_many(values)

    def append_many(self, values: Sequence[bytes]) -> int:
        """Appends records; a crash leaves a prefix of them."""
        return self.log.append_many(values).last_offset + 1

    def note_end(self, end: int) -> None:
        """Notes that all below ``end`` is known, for ``news``, if the journal ends there. Only one thread at a time may
        call either."""
        self._onward.note(end)

    def news(self, start: int, stop: int) -> list[bytes | None] | None:
        """The values of the records from ``start`` to below ``stop``, if they are read in a moment; else None."""
        return self._onward.values(start, stop)

    def flush(self) -> None:
        """Puts on disk what must be there before something else is removed."""
        if not self._is_sync:
            self.log.flush()

    def read(self, start: int) -> Iterator[tuple[int, list[Event] | None]]:
        """The events from ``start``: those of each record, with its offset; None for unreadable records, with the
        offset of the last of them. Raises: OffsetOutOfRangeError, StorageError."""
        for offset, value in self._values(start):
            events: list[Event] | None = None
            if value is not None:
                try:
                    events = list(decode_events(value))
                except CorruptFileError as error:
                    self._skipped(offset, error)
            yield offset, events

    def _skipped(self, offset: int, error: CorruptFileError) -> None:
        logger.warning("%s: the record at offset %d is skipped: %s", self.log.path, offset, error)

    def _values(self, start: int, stop: int | None = None) -> Iterator[tuple[int, bytes | None]]:
        """The values of the records from ``start`` to below ``stop``; else as ``read``."""
        expected = start
        for record in self.log.read(start, stop, on_corrupt="yield"):
            if isinstance(record, CorruptRange):
                logger.warning("%s: offsets %d to %d are damaged", self.log.path, record.first, record.last)
                expected = record.last + 1
                yield record.last, None
                continue
            if record.offset != expected:
                logger.warning("%s: offsets %d to %d are missing", self.log.path, expected, record.offset - 1)
                yield record.offset - 1, None
            expected = record.offset + 1
            yield record.offset, record.value or b""

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
        for offset, value in self._values(end, stop):
            is_readable = value is not None
            if value is not None:
                try:
                    if state.apply_record(value):
                        is_damaged = False  # the process that found the damage has recorded it
                except CorruptFileError as error:
                    self._skipped(offset, error)
                    is_readable = False
            is_damaged |= not is_readable
            end = offset + 1
        return Replayed(end, is_damaged)

    def rewrite(self, values: Sequence[bytes], first_needed: int) -> None:
        """Appends a snapshot, and removes the segments below ``first_needed``, which it replaces."""
        self.append_many(values)
        self.size = 0
        found = self._reads.segment_for(self.log.start_offset)
        if found is not None and found[1] <= first_needed:
            self.flush()
            self.log.delete_records(first_needed)


def done_values(kind: bytes, offsets: list[int], notes: bytes = b"") -> list[bytes]:
    """The records that say, by events of ``kind``, that items are done, and ``notes``. ``offsets`` rise."""
    values = encode_runs(kind, offsets, ROWS_MAX)
    if not notes:
        return values
    return [values[0] + notes] if len(values) == 1 else [*values, notes]


def row_values(kind: bytes, rows: Sequence[tuple[int, ...]]) -> list[bytes]:
    """The records with events of ``kind``."""
    return [encode_events(kind, rows[at : at + ROWS_MAX]) for at in range(0, len(rows), ROWS_MAX)]


# --- snapshots --------------------------------------------------------------------------------------------------------

# A snapshot is one record or more; each starts with an event that names its snapshot (``S``).


def snapshot_of(state: KnownItems[LeaseT], as_of: int) -> list[bytes]:
    """All events about items that are not done; ``state`` contains the journal below ``as_of``."""
    # First which copies count: a copy of a done item does not, unless an earlier event says so.
    groups: list[tuple[bytes, Sequence[tuple[int, ...]]]] = [
        (MOVED, sorted((old, new) for new, old in state.moved.items())),
        (FLOOR, [(state.floor,)]),
        (DONE, sorted([*ranges_of(state.done), *_rows_of(state.done_runs)])),
        (GAP, [(state.gap_end,)] if state.gap_end else []),
        (
            RETRY,
            sorted(
                (offset, *retry, OF_SNAPSHOT) for offset, retry in state.retries.items() if not state.is_done(offset)
            ),
        ),
        (
            HELD,
            [
                (offset, claim.deliveries, claim.owner, claim.claimed_ms, claim.expires_ms)
                for offset, claim in state.claims.items()
            ],
        ),
    ]
    values = [
        encode_events(kind, rows[at : at + ROWS_MAX]) for kind, rows in groups for at in range(0, len(rows), ROWS_MAX)
    ]
    name = random.getrandbits(63)
    return [
        encode_events(SNAPSHOT, [(as_of, name, part, len(values), *state.boot)]) + value
        for part, value in enumerate(values)
    ]


def _rows_of(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, stop in runs:
        for at in range(first, stop, COUNT_MAX):
            yield at, min(stop - at, COUNT_MAX)


def last_snapshot(records: Iterable[Sequence[Event]], start: int) -> tuple[int, list[Event]] | None:
    """The latest whole snapshot among ``records`` that is of ``start`` or later: its offset, and its events."""
    latest: tuple[int, list[Event]] | None = None
    parts: dict[int, list[Event]] = {}
    for events in records:
        if not events or events[0][0] != SNAPSHOT:
            continue
        as_of, name, part, count, *_ = events[0][1]
        if as_of < start or (part and name not in parts):
            continue
        found = parts.setdefault(name, [])
        found += events
        is_whole = part == count - 1 and sum(kind == SNAPSHOT for kind, _ in found) == count
        if is_whole and (latest is None or latest[0] <= as_of):
            latest = as_of, found
    return latest
