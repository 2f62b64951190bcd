"""What the threads of a process share of a queue: items are read and leased here, and threads wait here.

What became of the items is in the ``ledger``; how they are leased depends on whether other processes use the queue
(``leasing``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import cast

from kstore.clock import Clock
from kstore.engine.read.reader import LogReader, open_reader
from kstore.errors import ClosedError, CorruptBatchError, KstoreError, OffsetOutOfRangeError
from kstore.files._locks import Condition, OwnedLock, Released, block
from kstore.log import Log, reads_of, writer_of
from kstore.queue._jobs import (
    close_all,
    done_if_held,
    end_all,
    end_one,
    held_offsets,
    lease_first,
    made_records,
    new_jobs,
)
from kstore.queue._known import offer_known
from kstore.queue.config import QueueConfig
from kstore.queue.events import DONE
from kstore.queue.items import Marks, marks_of
from kstore.queue.job import Job, Leaser
from kstore.queue.journal import Journal, done_values
from kstore.queue.leasing import Leasing
from kstore.queue.ledger import Ledger
from kstore.queue.state import QueueState
from kstore.record._codec import Record
from kstore.record.batch import MAGIC_V2, Batch
from kstore.types import CorruptRange

logger = logging.getLogger(__name__)

# Items are read ahead in chunks of this many, and about this many bytes.
CHUNK_COUNT_MIN, CHUNK_COUNT_MAX = 16, 2048
CHUNK_BYTES = 1 << 20
# How many batches are counted before others get the lock.
COUNTED_BATCHES = 1024
# While at most this many items wait, gets receive items that were just put without reading them again.
HANDED_COUNT_MAX = 4096
# Less than this before its end a lease may be over for another process, which counts in milliseconds.
CLOCK_SECONDS = 0.01
# How often a waiting get looks for items that other processes returned, which the items' log does not show.
POLL_SECONDS = 0.05


class QueueCore:
    """Takes items and waits for them. ``lock`` guards ``state`` and everything documented as needing it."""

    def __init__(self, ledger: Ledger, leasing: Leasing, *, is_sync: bool) -> None:
        self.ledger = ledger
        self.leasing = leasing
        self.is_sync = is_sync
        # The ledger's own.
        self.name: str = ledger.name
        self.items: Log = ledger.items
        self._appends = writer_of(ledger.items).appends
        self.journal: Journal = ledger.journal
        self.config: QueueConfig = ledger.config
        self.clock: Clock = ledger.clock
        self.lock: OwnedLock = ledger.lock
        self.state: QueueState[Record, Job] = ledger.state
        # Three conditions with one lock: an item may be available; a put may find space; all items may be done.
        self.available: Condition = Condition(self.lock)
        self.room: Condition = Condition(self.lock)
        self.all_done: Condition = Condition(self.lock)
        self.getter_count = self.putter_count = self.joiner_count = 0
        self.is_closed: bool = False
        self._reader: LogReader[Record] | None = None
        self._bound = 0  # where _reader ends
        self._chunk_count = CHUNK_COUNT_MIN

    def check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"the queue {self.name} is closed")

    # --- read items -------------------------------------------------------------------------------------------------

    def take(self, queue: Leaser, count: int, seconds: float) -> list[Job]:
        """Leases up to ``count`` items; none if none may be delivered now. Needs the lock. Raises: StorageError."""
        state = self.state
        self.ledger.refresh()
        now, now_ms = self.clock.monotonic(), self.clock.now_ms()
        jobs: list[Job] = []
        try:
            while True:
                fresh, again = state.take(count - len(jobs), now, now_ms)
                if fresh or again:
                    jobs += self._leased(queue, fresh, again, seconds, now)
                    if len(jobs) < count:
                        continue  # other processes got some of these items first
                if len(jobs) == count or not self.fill():
                    return jobs
        except BaseException:
            state.lose_order()
            raise

    def take_one(self, queue: Leaser, seconds: float) -> Job | None:
        """Leases one item by a short path; None if ``take`` is needed. Needs the lock."""
        state = self.state
        if state.is_shared:
            jobs = self.take(queue, 1, seconds)
            return jobs[0] if jobs else None
        if self.config.note_deliveries or not state.is_fresh_next:
            return None
        try:
            return lease_first(
                Job, queue, state.fresh, state.leases, seconds, self.clock.monotonic(), threading.get_ident()
            )
        except BaseException:
            state.lose_order()
            raise

    def _leased(
        self, queue: Leaser, fresh: Sequence[Record], again: Sequence[tuple[int, int]], seconds: float, now: float
    ) -> list[Job]:
        me = threading.get_ident()
        deadline = now + seconds
        jobs: list[Job] = []
        try:
            for offset, count in again:
                record = self.read_one(offset)
                if record is not None:
                    jobs.append(Job(queue, record, count + 1, seconds, deadline, me))
            jobs += new_jobs(Job, queue, fresh, seconds, deadline, me)
            if jobs:
                jobs = self.leasing.own(jobs, seconds)
                self.state.lease(jobs, seconds)
        except BaseException:
            # First: an item that is offered to the next get must not be leased.
            for job in jobs:
                if self.state.is_leased(job):
                    self.state.end_lease(job)
            self.state.put_back(fresh, [offset for offset, _ in again])
            raise
        return jobs

    def read_one(self, offset: int) -> Record | None:
        """Reads an item again; None if it is unreadable, which is recorded. Needs the lock."""
        try:
            record = self.items.get(offset)
            if record is not None:
                return record
        except CorruptBatchError as error:
            self._damaged(offset, offset, error.reason)
            return None
        except OffsetOutOfRangeError:
            self.ledger.refresh()  # a process that moves an item records that before it deletes the original
        self.state.finish((offset,))
        return None

    def fill(self) -> bool:
        """Reads ahead; False if there is nothing new. Needs the lock. Raises: StorageError."""
        state = self.state
        try:
            if self._reader is None and not self._open_reader():
                return False
            chunk = list(islice(self._reader, self._chunk_count)) if self._reader is not None else []
        except OffsetOutOfRangeError:
            self._reader = None  # another process has deleted the segment; the start has moved
            self._raise_floor()
            return True
        except BaseException:
            self._reader = None
            raise
        if chunk:
            try:
                self._offer(chunk)
            except BaseException:
                # The next read begins with the first item that was not offered: otherwise it would count as done.
                self._reader = None
                state.lose_order()
                raise
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
        """Whether there is anything new to read."""
        state, items = self.state, self.items
        if state.position < items.start_offset:
            self._raise_floor()
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

    def _raise_floor(self) -> None:
        """Marks everything below the log's start as done, after reading where the journal moved it."""
        start = self.items.start_offset
        self.ledger.refresh()
        self.state.raise_floor(start)

    def readable_end(self) -> tuple[int, bool]:
        """The end of the deliverable items, and whether there may be transactions among them."""
        items = self.items
        end = items.high_watermark
        # A log without producers has no transactions. Checked after the end was taken.
        committed = writer_of(items).producers.in_use
        return (items.last_stable_offset if committed else end), committed

    def _offer(self, chunk: Sequence[Record | CorruptRange]) -> None:
        state = self.state
        first = state.position
        if CorruptRange not in map(type, chunk):
            records = cast(Sequence[Record], chunk)
            is_dense = records[0].offset == first and records[-1].offset - first + 1 == len(records)
            if is_dense and not any(record.headers for record in records):
                if state.is_past_known:
                    state.offer_fresh(records)
                else:
                    offer_known(state, records)
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

    def put_one(self, item: bytes) -> int:
        """Puts an item without a delay, a key or headers; returns its offset. Takes the lock. Raises: as
        ``Log.append``."""
        self.lock.refuse_inside()  # it is needed once the item is in the log
        offset, time_ms = self._appends.append_single(item, None) or self.items.append_many((item,))[:3:2]
        with self.lock:
            self.hand_over(offset, time_ms, None, (item,))
            if self.getter_count:
                self.available.notify()
        return offset

    def hand_over(
        self, first: int, time_ms: int, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None]
    ) -> None:
        """Offers items that were just put without a delay, from offset ``first`` on: gets that reach them next need
        not read them. Needs the lock."""
        state = self.state
        if (
            first == state.position
            and self._reader is None
            and len(state.fresh) < HANDED_COUNT_MAX
            and state.is_past_known
        ):
            try:
                records = made_records(first, time_ms, keys, values)
                if records is not None:
                    state.offer_fresh(records)
            except MemoryError:
                state.lose_order()  # the items are in the log, and only the shortcut is lost
            except BaseException:
                state.lose_order()
                raise

    # --- return -------------------------------------------------------------------------------------------------------

    def ack_one(self, job: Job) -> bool:
        """``ack_now`` of one job."""
        state, journal = self.state, self.journal
        if state.is_shared:
            return self.ack_now([job])
        if self.is_sync or state.unnoted or self.is_closed:
            return False
        leases = state.leases
        value = done_if_held(leases, job, DONE)
        if value is None:
            return False
        end = journal.append(value)
        try:
            end_one(leases, job)
            state.finish_run(job.offset, 1)
        except BaseException:
            state.lose_order()
            raise
        self.ledger.applied(end)
        job.is_open = False
        if self.joiner_count:
            self.note_done()
        return True

    def ack_now(self, jobs: list[Job]) -> bool:
        """Acks leased jobs by a short path, or does nothing and returns False. Needs the lock: an append that does not
        wait for the disk may run under it. Raises: as ``Journal.append``, and nothing is acked."""
        state, ledger = self.state, self.ledger
        if self.is_sync or self.is_closed:
            return False
        leases = state.leases
        offsets = held_offsets(leases, jobs)
        # Another process may have an item whose lease is over.
        if state.is_shared and (len(jobs) != 1 or self.clock.monotonic() > jobs[0].deadline - CLOCK_SECONDS):
            ledger.refresh()
            offsets = held_offsets(leases, jobs)
        if not offsets or state.unnoted:
            return False
        values = done_values(self.leasing.done_kind, offsets)
        end = self.journal.append_all(values)
        try:
            end_all(leases, jobs)
            first, count = offsets[0], len(offsets)
            if ledger.takes_in(values, end):
                pass
            elif offsets[-1] - first + 1 == count:
                state.finish_run(first, count)
            else:
                state.finish_fast(offsets)
        except BaseException:
            state.lose_order()
            raise
        ledger.applied(end)
        close_all(jobs)
        if self.joiner_count:
            self.note_done()
        return True

    def give_back(self, jobs: Sequence[Job]) -> list[Job]:
        """Ends leases of items that no caller has seen: these deliveries do not count. Needs the lock.

        Returns those that must be announced to other processes, which cannot subtract a delivery.
        """
        state = self.state
        leased = [job for job in jobs if job.is_open and state.is_leased(job)]
        if state.is_shared or self.is_closed:
            return [] if self.is_closed else leased
        try:
            for job in leased:
                state.end_lease(job)
                job.is_open = False
                state.give_back(job.offset, job.delivery_count - 1, 0)
        except BaseException:
            state.lose_order()
            raise
        self.wake_getters(len(leased))
        return []

    def end_write(
        self, token: object, end: int, finish: Callable[[Sequence[int]], None], offsets: Sequence[int]
    ) -> None:
        """Calls ``finish``, which marks ``offsets`` as done, if the journal has that, up to ``end``. Takes the lock. An
        interrupt may end this anywhere; a second call does the rest."""
        with self.lock:
            if self.ledger.is_writing(token):
                if end:
                    finish(offsets)
                    self.note_done()
                self.ledger.end_write(token, end)

    # --- wait -------------------------------------------------------------------------------------------------------

    def wait_seconds(self) -> float | None:
        """How many seconds until an existing item may be delivered; None if no item waits."""
        with self.lock:
            return self.state.wait_seconds(self.clock.monotonic(), self.clock.now_ms())

    def wake_getters(self, count: int = 1) -> None:
        """Needs the lock."""
        if self.getter_count:
            self.available.notify(count)

    def pending(self) -> int:
        """How many items are not done. Items of open transactions do not count yet. Needs the lock.

        Raises: StorageError.
        """
        self.ledger.refresh()
        while self._count_on():
            pass
        return self.state.pending_count(self.readable_end()[0])

    def count_all(self) -> None:
        """Does most of the work of ``pending``, and releases the lock in between.

        Raises: ClosedError, StorageError.
        """
        more = True
        while more:
            with self.lock:
                self.check_open()
                more = self._count_on()

    def _count_on(self) -> bool:
        """Counts a chunk of the offsets above the position that hold no item; returns whether there is more to count.

        These are markers, aborted items and lost ones: the batches show them without decoding a record. Needs the lock.
        Raises: StorageError.
        """
        state, items = self.state, self.items
        end, committed = self.readable_end()
        at = max(state.counted_end, state.position, items.start_offset)
        if not committed or at >= end:
            return False
        try:
            reader = open_reader(reads_of(items), _extents, at, end, "read_committed", "yield")
            extents = list(islice(reader, COUNTED_BATCHES))
        except OffsetOutOfRangeError:
            self._raise_floor()  # another process has deleted part of the log
            return True
        for first, last, *_ in extents:  # damaged offsets count as items that are not done
            state.count_gap(at, first)
            at = last + 1
        if len(extents) < COUNTED_BATCHES:
            state.count_gap(at, end)
            at = end
        state.counted_end = at
        return at < end

    def note_done(self) -> None:
        """Called after items are done. Needs the lock."""
        if self.joiner_count:
            state = self.state
            # The join counts later items itself: an ack must not fail because they are unreadable.
            committed = writer_of(self.items).producers.in_use
            known_end = max(state.counted_end, state.position) if committed else self.items.high_watermark
            if not state.pending_count(known_end):
                self.all_done.notify_all()

    def waiting_count(self) -> int:
        """About how many items wait to be delivered, due or not. Needs the lock. Raises: StorageError."""
        state = self.state
        pending = self.pending() - len(state.unconfirmed) - len(state.damaged)
        return max(pending - self.leasing.held_count(self.clock.monotonic()), 0)

    def nack(self, job: Job, due_ms: int) -> bool:
        """Returns a leased item, which may be delivered again from ``due_ms``. Returns whether it was still leased.

        Takes the lock. Raises: ClosedError, and as ``Journal.append``: the item comes back in any case.
        """
        self.check_open()
        try:
            return self.leasing.nack(job, due_ms)
        finally:
            with self.lock:
                self.wake_getters()

    def wait(self, seconds: float) -> None:
        """Waits until there may be an item, at most ``seconds``. Needs the lock, and releases it during the wait."""
        if not self.state.is_shared:
            self.available.wait(seconds)
            return
        # Only the log shows what other processes put.
        end = self.items.high_watermark
        # During an open transaction the log ends beyond the readable part, and so will the marker.
        if self.readable_end()[0] > self.state.position:
            return
        with Released(self.lock):
            reads_of(self.items).wait_beyond(end, min(seconds, POLL_SECONDS), committed=False)

    def close(self) -> None:
        """Wakes every waiting thread. Needs no lock."""
        with self.lock:
            self.is_closed = True
            for condition in (self.available, self.room, self.all_done):
                condition.notify_all()

    @block
    def counted(self, what: str) -> Iterator[None]:
        """Counts one more waiting thread. Needs the lock."""
        setattr(self, what, getattr(self, what) + 1)
        try:
            yield
        finally:
            setattr(self, what, getattr(self, what) - 1)

    def report(self, what: str, error: KstoreError) -> None:
        logger.warning("%s: %s: %s", self.name, what, error)


def _extents(batch: Batch, first_offset: int, stop_offset: int, limit: int) -> Sequence[tuple[int, int]]:
    """The ranges of offsets, ends included, that hold the wanted records of ``batch``."""
    if batch.magic == MAGIC_V2 and batch.record_count == batch.last_offset - batch.base_offset + 1:
        return ((max(batch.base_offset, first_offset), min(batch.last_offset, stop_offset - 1)),)
    return [(record.offset, record.offset) for record in batch.records(first_offset, stop_offset, limit)]
