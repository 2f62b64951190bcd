"""A queue as its files show it: for observers, while another process may be using it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from kstore.engine.read.reads import segment_count_and_size
from kstore.errors import OffsetOutOfRangeError
from kstore.files.platform import boot_id
from kstore.log import Log, reads_of
from kstore.queue.events import GAP
from kstore.queue.items import Shown, marks_of, of_user
from kstore.queue.journal import Journal
from kstore.queue.leases import Retry, numbers_of
from kstore.queue.ledger import READS_MAX
from kstore.queue.state import QueueState
from kstore.record._codec import Record
from kstore.types import CorruptRange


class QueueCounts(NamedTuple):
    """The number of items that are not done, and how many of these are delayed, leased by processes that share the
    queue, were delivered before, and are unreadable. ``size`` is bytes of both logs; ``oldest_ms`` is when the oldest
    was put, or -1."""

    pending: int
    delayed: int
    leased: int
    retried: int
    damaged: int
    size: int
    oldest_ms: int


class _Examined(NamedTuple):
    """The last offset that was examined, and the item there if it is not done."""

    last: int
    item: Shown | None


class QueueView:
    """The contents of a queue. A process that uses it alone keeps its leases in memory, so they are unknown here."""

    def __init__(self, items: Log, journal: Log | None) -> None:
        """``journal`` is None if no item has an event yet. Raises: StorageError."""
        self._items = items
        self._journal = journal
        self._damaged = 0
        # First: items that are put from now on are not examined, but those that become done are noticed.
        self._end = items.high_watermark
        self._state: QueueState[Record, None] = QueueState(is_shared=True)  # type: ignore[type-var]  # it leases none
        self._learn()
        self._has_leases = self._state.boot == numbers_of(boot_id())

    def _learn(self) -> None:
        """Adds what the journal has now."""
        if self._journal is None:
            return
        journal = Journal(self._journal, is_sync=True)
        for number in range(READS_MAX + 1):
            try:
                replayed = journal.replay(self._state)  # type: ignore[type-var]  # as above
                break
            except OffsetOutOfRangeError:
                # Another process has just rewritten it, and removed the part that was being read.
                if number == READS_MAX:
                    raise
        # Items that were moved in the meantime are at their new place.
        self._end = max(self._end, *(copy + 1 for copy in self._state.moved), 0)
        if replayed.is_damaged or (self._items.start_offset > 0 and not replayed.end):
            self._state.apply(GAP, (self._end,))

    def pending(self) -> Iterator[Shown]:
        """The items that are not done, oldest first. Raises: StorageError."""
        state = self._state
        start, next_offset = state.floor, 0
        # Copies of items that were examined at their old place.
        again: set[int] = set()
        while start < self._end:
            try:
                for shown in self._examined(start):
                    next_offset = shown.last + 1
                    if shown.item is not None and shown.item.offset not in again:
                        yield shown.item
                return
            except OffsetOutOfRangeError as error:
                if error.offset >= error.start_offset:
                    raise
                # What was removed in the meantime is done, or has been moved.
                end = self._end
                self._learn()
                for copy in sorted(state.moved):
                    if copy >= end and (state.moved[copy] < next_offset or state.moved[copy] in again):
                        again.add(copy)
                start = max(next_offset, state.floor, error.start_offset)

    def _examined(self, start: int) -> Iterator[_Examined]:
        """What is at the offsets from ``start`` on. Raises: OffsetOutOfRangeError, StorageError."""
        state = self._state
        now_ms, mono_ms = time.time_ns() // 1_000_000, int(time.monotonic() * 1000)
        for record in self._items.read(start, self._end, isolation_level="read_committed", on_corrupt="yield"):
            if isinstance(record, CorruptRange):
                self._damaged += record.last - record.first + 1
                yield _Examined(record.last, None)
                continue
            marks = marks_of(record)
            offset = record.offset
            if not state.is_live(offset, marks.moved_from):
                yield _Examined(offset, None)
                continue
            count, due_ms = state.retries.get(offset) or Retry(marks.delivery_count, marks.due_ms)
            claim = state.claims.get(offset)
            item = Shown(
                offset,
                record.timestamp,
                record.key,
                record.value,
                of_user(record.headers),
                count,
                due_ms if due_ms > now_ms else 0,
                self._has_leases and claim is not None and claim.expires_ms > mono_ms,
            )
            yield _Examined(offset, item)

    def counts(self) -> QueueCounts:
        """The number of items of each kind; reads all that are not done. Raises: StorageError."""
        pending = delayed = leased = retried = 0
        oldest_ms = -1
        for shown in self.pending():
            pending += 1
            delayed += shown.due_ms > 0
            leased += shown.is_leased
            retried += shown.delivery_count > 0
            oldest_ms = shown.timestamp if oldest_ms < 0 else min(oldest_ms, shown.timestamp)
        logs = [self._items] if self._journal is None else [self._items, self._journal]
        size = sum(segment_count_and_size(reads_of(log).source)[1] for log in logs)
        return QueueCounts(pending, delayed, leased, retried, self._damaged, size, oldest_ms)
