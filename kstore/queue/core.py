"""What the threads of a process share of a queue: its two logs, its state, and the lock around that.

Reading items and deciding who gets which happens under the lock; appending, which may wait for the disk, outside it.
What is written is taken into the state behind that. So a snapshot of the state may lack what is being written:
``applied_end`` says up to where the journal is in the state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, cast

from kstore.clock import Clock
from kstore.errors import ClosedError, CorruptBatchError, KstoreError, OffsetOutOfRangeError
from kstore.log import Log
from kstore.log_reader import LogReader
from kstore.queue.config import QueueConfig
from kstore.queue.events import END, MOVED, RETRY, ROWS_MAX, encode_events
from kstore.queue.items import Marks, marks_of
from kstore.queue.job import Job
from kstore.queue.journal import Journal
from kstore.queue.leases import Claim, Retry
from kstore.queue.state import OF_SNAPSHOT, QueueState
from kstore.record._codec import Record
from kstore.types import CorruptRange

if TYPE_CHECKING:
    from kstore.queue.queue import Queue

__all__ = ["QueueCore"]

logger = logging.getLogger(__name__)

# Items are read ahead in chunks of so many, and about so many bytes.
CHUNK_COUNT_MIN, CHUNK_COUNT_MAX = 16, 2048
CHUNK_BYTES = 1 << 20
# Items just put are handed to who gets without being read again, while no more than so many wait.
HANDED_COUNT_MAX = 4096
HANDED_BYTES_MAX = 1 << 16


class QueueCore:
    """The state of a queue and how it is kept. ``lock`` guards ``state`` and what is said to be under it."""

    def __init__(
        self, name: str, items: Log, journal: Journal, config: QueueConfig, clock: Clock, *, is_sync: bool
    ) -> None:
        """Reads the journal. Raises: StorageError."""
        self.name = name
        self.items = items
        self.journal = journal
        self.config = config
        self.clock = clock
        self.is_sync = is_sync
        self.lock = threading.Lock()
        # All of them with the one lock: something may be got; there may be room; nothing may be left to do.
        self.available = threading.Condition(self.lock)
        self.room = threading.Condition(self.lock)
        self.all_done = threading.Condition(self.lock)
        self.getter_count = self.putter_count = self.joiner_count = 0
        self.state: QueueState[Record, Job] = QueueState(max_deliveries=config.max_deliveries)
        self.is_closed = False
        self._reader: LogReader[Record] | None = None
        self._bound = 0  # where _reader ends
        self._chunk_count = CHUNK_COUNT_MIN
        # What is being written to the journal: where that ended when it was begun.
        self._writing: dict[int, int] = {}
        self._write_count = 0
        self._journal_end = 0
        self._load()

    def _load(self) -> None:
        state = self.state
        self._read_on(None)
        end = self.items.high_watermark
        if state.known_end > end:
            # A power cut took items that were not on disk yet, or the topic was made anew. Others will have their
            # offsets, of which nothing is known: that must be said before the first is put.
            logger.warning("%s: the journal knows items to %d, the log ends at %d", self.name, state.known_end, end)
            state.cut_to(end)
            self.journal.append(encode_events(END, [(end,)]))
            self.journal.flush()
        state.raise_floor(self.items.start_offset)
        self._void_claims()

    def _void_claims(self) -> None:
        """Says of the leases of those who are gone that they are over, each by its owner: newer ones hold."""
        claims, retries = self.state.claims, self.state.retries
        rows = [
            (offset, claim.deliveries, retries.get(offset, Retry(0, 0)).due_ms, claim.owner)
            for offset, claim in claims.items()
            if self.is_void(claim)
        ]
        if rows:
            self.journal.append_rows(RETRY, rows)
            self._read_on(self._journal_end)

    def is_void(self, claim: Claim) -> bool:
        """Whether who had it is gone for sure: nobody else has the store now."""
        return True

    def _read_on(self, start: int | None) -> None:
        """Takes in the journal from ``start`` on; what comes while it is read is not skipped."""
        for offset, kind, row in self.journal.read(start):
            self.state.apply(kind, row)
            self._journal_end = offset + 1

    def check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"the queue {self.name} is closed")

    # --- write the journal ------------------------------------------------------------------------------------------

    def begin_write(self) -> int:
        """Something is about to be appended to the journal: a token for ``end_write``. Needs the lock."""
        self._write_count = token = self._write_count + 1
        self._writing[token] = self._journal_end
        return token

    def end_write(self, token: int, end: int = 0) -> None:
        """What was appended, up to ``end``, is in the state. Needs the lock."""
        del self._writing[token]
        self.applied(end)

    def applied(self, end: int) -> None:
        """Everything up to ``end`` that was appended here is in the state. Needs the lock."""
        if end > self._journal_end:
            self._journal_end = end

    @property
    def applied_end(self) -> int:
        """Everything in the journal below it is in the state. Needs the lock."""
        return min(self._writing.values(), default=self._journal_end)

    def notes(self) -> bytes:
        """Deliveries that nobody has written down yet, for the next record. Needs the lock."""
        unnoted = self.state.unnoted
        if not unnoted:
            return b""
        rows = [
            (offset, count, 0, owner or OF_SNAPSHOT) for offset, (count, owner) in islice(unnoted.items(), ROWS_MAX)
        ]
        for offset, *_ in rows:
            del unnoted[offset]
        return encode_events(RETRY, rows)

    # --- read items -------------------------------------------------------------------------------------------------

    def take(self, queue: Queue, count: int, seconds: float) -> list[Job]:
        """Leases up to ``count`` items; none where none may be delivered now. Needs the lock. Raises: StorageError."""
        state = self.state
        self.refresh()
        now, now_ms = self.clock.monotonic(), self.clock.now_ms()
        jobs: list[Job] = []
        while True:
            fresh, again = state.take(count - len(jobs), now, now_ms)
            if fresh or again:
                jobs += self._leased(queue, fresh, again, seconds, now)
                if len(jobs) < count:
                    continue  # of those that were taken others may have been quicker
            if len(jobs) == count or not self.fill():
                return jobs

    def take_one(self, queue: Queue, seconds: float) -> Job | None:
        """As ``take``, of one item, where that is simple; else None. Needs the lock."""
        now = self.clock.monotonic()
        record = None if self.config.note_deliveries else self.state.take_one(now)
        if record is None:
            return None
        job = Job(queue, record, 1, seconds, now + seconds, threading.get_ident())
        leases = self.state.leases
        try:
            leases[seconds][record.offset] = job
        except KeyError:
            leases[seconds] = {record.offset: job}
        return job

    def _leased(
        self, queue: Queue, fresh: Sequence[Record], again: Sequence[tuple[int, int]], seconds: float, now: float
    ) -> list[Job]:
        me = threading.get_ident()
        deadline = now + seconds
        try:
            jobs = []
            for offset, count in again:
                record = self.read_one(offset)
                if record is not None:
                    jobs.append(Job(queue, record, count + 1, seconds, deadline, me))
            jobs += [Job(queue, record, 1, seconds, deadline, me) for record in fresh]
            if jobs:
                jobs = self.own(jobs, seconds)
                self.state.lease(jobs, seconds)
        except BaseException:
            self.state.put_back(fresh, [offset for offset, _ in again])
            raise
        return jobs

    def read_one(self, offset: int) -> Record | None:
        """An item, read again; None for one that cannot be read, which is known from then on. Needs the lock."""
        try:
            for record in self.items.read(offset, offset + 1):
                return record
        except CorruptBatchError as error:
            self._damaged(offset, offset, error.reason)
            return None
        except OffsetOutOfRangeError:
            pass
        self.state.finish((offset,))  # somebody has deleted it
        return None

    def fill(self) -> bool:
        """Reads on; False where there is nothing new. Needs the lock. Raises: StorageError."""
        state = self.state
        try:
            if self._reader is None and not self._open_reader():
                return False
            chunk = list(islice(self._reader, self._chunk_count)) if self._reader is not None else []
        except OffsetOutOfRangeError:
            self._reader = None  # somebody has deleted what was to be read; the start has moved
            state.raise_floor(self.items.start_offset)
            return True
        except BaseException:
            self._reader = None
            raise
        if chunk:
            self._offer(chunk)
        if len(chunk) < self._chunk_count:
            self._reader = None
            if state.position < self._bound:
                state.skip_to(self._bound)
        elif chunk:
            size = max(sum([len(record.value or b"") for record in chunk if isinstance(record, Record)]), 1)
            wanted = min(CHUNK_BYTES * len(chunk) // size, 2 * self._chunk_count)
            self._chunk_count = max(CHUNK_COUNT_MIN, min(wanted, CHUNK_COUNT_MAX))
        return True

    def _open_reader(self) -> bool:
        """Whether there is something new to be read."""
        state, items = self.state, self.items
        if state.position < items.start_offset:
            state.raise_floor(items.start_offset)
        bound, committed = self.readable_end()
        if bound <= state.position:
            return False
        self._bound = bound
        self._reader = items.read(
            state.position,
            bound,
            isolation_level="read_committed" if committed else "read_uncommitted",
            on_corrupt="yield",
        )
        return True

    def readable_end(self) -> tuple[int, bool]:
        """Where items end that may be delivered, and whether there may be transactions among them."""
        items = self.items
        # Where no producer ever wrote there are no transactions to look for.
        committed = items.writer.producers.in_use
        return (items.last_stable_offset if committed else items.high_watermark), committed

    def _offer(self, chunk: Sequence[Record | CorruptRange]) -> None:
        state = self.state
        first = state.position
        if state.is_fresh_from_here and CorruptRange not in map(type, chunk):
            records = cast(Sequence[Record], chunk)
            is_dense = records[0].offset == first and records[-1].offset - first + 1 == len(records)
            if is_dense and not any(record.headers for record in records):
                state.offer_fresh(records)
                return
        for record in chunk:
            if isinstance(record, CorruptRange):
                self._damaged(record.first, record.last, record.reason)
            elif record.offset >= state.position:
                marks = marks_of(record) if record.headers else Marks()
                state.offer(record, due_ms=marks.due_ms, count=marks.delivery_count, moved_from=marks.moved_from)

    def _damaged(self, first: int, last: int, reason: str) -> None:
        logger.warning("%s: items %d to %d cannot be read, and stay where they are: %s", self.name, first, last, reason)
        self.state.damage(first, last)

    def hand_over(self, records: Sequence[Record]) -> None:
        """Items just put, without a delay: who gets need not read them, if they come next. Needs the lock."""
        state = self.state
        if (
            records[0].offset == state.position
            and self._reader is None
            and len(state.fresh) < HANDED_COUNT_MAX
            and state.is_fresh_from_here
        ):
            state.offer_fresh(records)

    # --- give back --------------------------------------------------------------------------------------------------

    def give_back(self, jobs: Sequence[Job]) -> list[Job]:
        """Ends leases of items that nobody has seen: these deliveries were none. Returns those of which other
        processes must hear, who know no way to count a delivery less. Needs the lock."""
        state = self.state
        leased = [job for job in jobs if job.is_open and state.is_leased(job)]
        if state.is_shared or self.is_closed:
            return [] if self.is_closed else leased
        for job in leased:
            state.end_lease(job)
            job.is_open = False
            state.give_back(job.offset, job.delivery_count - 1, 0)
        self.wake_getters(len(leased))
        return []

    # --- wait -------------------------------------------------------------------------------------------------------

    def wake_getters(self, count: int = 1) -> None:
        """Needs the lock."""
        if self.getter_count:
            self.available.notify(count)

    def pending(self) -> int:
        """How many items are not done. Needs the lock."""
        self.refresh()
        return self.state.pending_count(self.items.high_watermark)

    def note_done(self) -> None:
        """Items were done. Needs the lock."""
        if self.joiner_count and not self.pending():
            self.all_done.notify_all()

    @property
    def waiting_count(self) -> int:
        """About how many items wait, due or not. Needs the lock."""
        state = self.state
        pending = state.pending_count(self.items.high_watermark)
        return max(pending - self.leased_count - len(state.busy) - len(state.unconfirmed), 0)

    # --- where several processes share it (``shared``) --------------------------------------------------------------

    def refresh(self) -> None:
        """Takes in what others have written. Needs the lock."""

    def own(self, jobs: list[Job], seconds: float) -> list[Job]:
        """Those of ``jobs`` that nobody else got. Needs the lock. Raises: as ``Journal.append``."""
        if self.config.note_deliveries:
            rows = [(job.offset, job.delivery_count, 0, 0) for job in jobs]
            self._journal_end = max(self._journal_end, self.journal.append_rows(RETRY, rows))
            self.state.retries.update({job.offset: Retry(job.delivery_count, 0) for job in jobs})
        return jobs

    def own_all(self, offsets: Sequence[int], seconds: float) -> int | None:
        """Keeps items from others for some time; the owner for ``write_moved``, None where not all of them could be
        had. Needs the lock."""
        return 0

    def write_moved(self, rows: Sequence[tuple[int, int]], owner: int) -> int:
        """Items live on in their copies; returns the journal's end behind that. Raises: as ``Journal.append``."""
        end = self.journal.append(encode_events(MOVED, rows))
        self.journal.flush()
        with self.lock:
            for row in rows:
                self.state.apply(MOVED, row)
        return end

    def extended(self, job: Job, seconds: float) -> bool:
        """Tells others that a lease goes on; whether it does. Needs the lock."""
        return True

    def wait(self, seconds: float) -> None:
        """Waits until something may be got, at most so long. Needs the lock, which it gives up meanwhile."""
        self.available.wait(seconds)

    @property
    def leased_count(self) -> int:
        return self.state.leased_count

    def give_up_leases(self) -> None:
        """At the end: what is leased here may be delivered again, by others too. Needs the lock."""
        for group in self.state.leases.values():
            for lease in group.values():
                self.state.retries[lease.offset] = Retry(lease.delivery_count, 0)

    def close(self) -> None:
        """Whoever waits is told. Needs no lock."""
        with self.lock:
            self.is_closed = True
            for condition in (self.available, self.room, self.all_done):
                condition.notify_all()

    @contextmanager
    def counted(self, what: str) -> Iterator[None]:
        """One more thread that waits. Needs the lock."""
        setattr(self, what, getattr(self, what) + 1)
        try:
            yield
        finally:
            setattr(self, what, getattr(self, what) - 1)

    def report(self, what: str, error: KstoreError) -> None:
        logger.warning("%s: %s: %s", self.name, what, error)
