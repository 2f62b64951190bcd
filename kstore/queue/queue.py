"""``Queue``: the contract of ``queue.Queue`` over a log, with leases. The public interface of a queue.

what is next       state    pure
on disk            items    the topic's log, an item a record       journal  what became of them
shared by threads  ledger   the state, as the journal tells it       core     taking items, waiting
leases             leasing  of one process, or of several (``shared``)
space              space    segments, copies, dead letters
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol

from kstore.errors import ConfigError, Empty, Full, LeaseLostError, not_picklable
from kstore.files.lifetime import ForkGuard
from kstore.queue._jobs import close_all, end_all, held_offsets
from kstore.queue.config import QueueConfig, check_timeout, deadline_of, seconds_of
from kstore.queue.core import QueueCore
from kstore.queue.events import ranges_of
from kstore.queue.items import NOTHING, GivenHeaders, Marks, Shown, of_user, with_marks
from kstore.queue.job import Job
from kstore.queue.journal import done_values
from kstore.queue.look import LeasedItem, QueueStats, leased_items, peeked, queue_html, queue_text, stats_of
from kstore.queue.space import QueueSpace
from kstore.record._codec import Record, as_headers
from kstore.rules.arguments import as_columns

# How often a waiting get looks for items that were not put through this queue.
LOOK_SECONDS = 0.25
# Items of a larger call are not kept in memory for the next get.
HANDED_AT_ONCE_MAX = 1024
# How many dead letters are put again at a time.
RETRY_COUNT = 500


class DeadLetters(Protocol):
    """Gets the queue of dead letters, created on first use: from ``of_store``, which is built on this module."""

    def __call__(self, *, create: bool) -> Queue | None: ...


class Queue:
    """A durable queue. Thread-safe; one object for all callers of the store, closed with the store.

    An item is delivered at least once: to one worker at a time, again if it was not acked, and never after an ack.
    """

    def __init__(self, core: QueueCore, dead_letters: DeadLetters | None = None) -> None:
        if not isinstance(core, QueueCore) or dead_letters is None:
            raise TypeError("a Queue belongs to a store: use kstore.open(path).queue(name)")
        self._guard = ForkGuard()
        self._of_process = core
        self._space = QueueSpace(core)
        self._dead_letters = dead_letters
        self._reserved: dict[object, int] = {}  # space of the puts in progress, by token; under the core's lock
        self.name: str = core.name
        self.config: QueueConfig = core.config

    @property
    def _core(self) -> QueueCore:
        """What the queue's threads share. Raises: ForkedError, before it waits for a lock that a fork may have left
        held."""
        if self._guard.forked:
            self._guard.check(f"the queue {self.name}")
        return self._of_process

    @property
    def maxsize(self) -> int:
        """A put waits while this many items wait; 0 means no limit."""
        return self.config.maxsize

    @property
    def dead_letters(self) -> Queue:
        """The queue of the items that were delivered too many times. Raises: StorageError if it cannot be created."""
        found = self._dead_letters(create=True)
        assert found is not None
        return found

    # --- put --------------------------------------------------------------------------------------------------------

    def put(
        self,
        item: bytes,
        block: bool = True,
        timeout: float | None = None,
        *,
        delay: float = 0,
        key: bytes | None = None,
        headers: GivenHeaders = (),
    ) -> int:
        """Puts an item; returns its offset. On return it is as durable as the queue's setting says.

        ``delay``: it is delivered at the earliest after this many seconds. ``headers``: a mapping or pairs of str to
        bytes or None; names ``kstore.…`` are the queue's own.

        Raises: Full (``maxsize`` was reached for ``timeout`` seconds, or at all if ``block`` is False), and as
        ``Log.append``.
        """
        core = self._core if self._guard.forked else self._of_process
        if not delay and not headers and key is None and not core.config.maxsize and not core.is_closed:
            return core.put_one(item)
        return self.put_many(
            (item,),
            block,
            timeout,
            delay=delay,
            keys=None if key is None else (key,),
            headers=(headers,) if headers else None,
        )

    def put_nowait(self, item: bytes) -> int:
        """``put`` without waiting for space."""
        return self.put(item, block=False)

    def put_many(
        self,
        items: Iterable[bytes | None],
        block: bool = True,
        timeout: float | None = None,
        *,
        delay: float = 0,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[GivenHeaders | None] | None = None,
    ) -> int:
        """Puts items in one append; returns the offset of the first. A failed call puts none, a crash may put a prefix.
        ``keys`` and ``headers``: one for each item.

        Raises: ConfigError for more than ``maxsize`` items, and as ``put``.
        """
        core = self._core
        core.lock.refuse_inside()
        items, keys, _, headers = as_columns(items, keys, None, headers)
        count = len(items)
        now_ms = core.clock.now_ms()
        if delay:
            marks = Marks(due_ms=now_ms + round(seconds_of("delay", delay) * 1000))
            headers = [with_marks(as_headers(own), marks) for own in headers or [None] * count]
        elif headers is not None:
            headers = [of_user(as_headers(own)) for own in headers]
        if not count:
            core.check_open()
            return core.items.end_offset
        is_handed = headers is None and count < HANDED_AT_ONCE_MAX
        if is_handed:
            # Copies: another thread may change the lists while they are appended.
            items, keys = tuple(items), None if keys is None else tuple(keys)
        token = object()
        try:
            if core.config.maxsize:
                self._reserve(token, count, block, timeout)
            elif core.is_closed:
                core.check_open()
            stamps = [now_ms] * count
            first = core.items.append_many(items, keys=keys, timestamps=stamps, headers=headers).first_offset
        finally:
            if core.config.maxsize:
                try:
                    self._release(token)
                except BaseException:
                    self._release(token)  # an interrupt came before the end of the first call
                    raise
        with core.lock:
            if is_handed:
                core.hand_over(first, now_ms, keys, items)
            core.wake_getters(count)
        return first

    def _take_in(self, record: Record, delivery_count: int, dead_from: str) -> None:
        """Puts a dead letter, always on disk: its original queue is about to forget it."""
        core = self._core
        core.check_open()
        core.items.append_many(
            (record.value,),
            keys=None if record.key is None else (record.key,),
            headers=(with_marks(record.header_bytes, NOTHING, f"{dead_from} after {delivery_count} deliveries"),),
        )
        if not core.is_sync:
            core.items.flush()
        with core.lock:
            core.wake_getters()

    def _release(self, token: object) -> None:
        """Ends a reservation, if it was made: its items are in the log, or were not put."""
        with self._core.lock:
            self._reserved.pop(token, None)

    def _reserve(self, token: object, count: int, block: bool, timeout: float | None) -> None:
        core = self._core
        maxsize = core.config.maxsize
        if count > maxsize:
            raise ConfigError(f"{count} items at once, expected up to {maxsize} (maxsize)")
        deadline = deadline_of(timeout if block else None, core.clock)
        core.count_all()
        with core.lock, core.counted("putter_count"):
            while (waiting_count := core.waiting_count()) + sum(self._reserved.values()) + count > maxsize:
                core.check_open()
                rest = None if deadline is None else deadline - core.clock.monotonic()
                if not block or (rest is not None and rest <= 0):
                    raise Full(f"{self.name} holds {waiting_count} waiting items, expected fewer than {maxsize}")
                # Other processes that share the queue may make space without notifying this one.
                core.room.wait(LOOK_SECONDS if rest is None else min(rest, LOOK_SECONDS))
            core.check_open()
            self._reserved[token] = count

    # --- get --------------------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None, *, lease_seconds: float | None = None) -> Job:
        """Leases the next item for ``lease_seconds`` (default: the queue's setting).

        Raises: Empty (nothing could be delivered for ``timeout`` seconds, or at all if ``block`` is False),
        ClosedError, StorageError.
        """
        core = self._core if self._guard.forked else self._of_process
        if block and timeout is not None:
            check_timeout(timeout)
        if lease_seconds is None and not core.putter_count and not core.is_closed:
            with core.lock:
                job = core.take_one(self, core.config.lease_seconds)
            if job is not None:
                if core.state.dead:
                    self._bury_all()
                return job
        return self.get_many(1, block, timeout, lease_seconds=lease_seconds)[0]

    def get_nowait(self) -> Job:
        """``get`` without waiting."""
        return self.get(block=False)

    def get_many(
        self, count: int, block: bool = True, timeout: float | None = None, *, lease_seconds: float | None = None
    ) -> list[Job]:
        """Leases up to ``count`` available items; waits only if none is available. Raises: as ``get``."""
        core = self._core
        seconds = core.config.lease_seconds if lease_seconds is None else seconds_of("lease_seconds", lease_seconds)
        if not isinstance(count, int) or count < 1:
            raise ConfigError(f"count is {count!r:.80}, expected an int, at least 1")
        check_timeout(timeout if block else None)
        deadline: float | None = None
        is_first = True
        while True:
            core.check_open()
            with core.lock:
                jobs = core.take(self, count, seconds)
                if jobs and core.putter_count:
                    core.room.notify(len(jobs))
                has_dead = bool(core.state.dead)
                if not jobs and not (has_dead and is_first):
                    if block and is_first and timeout is not None:
                        deadline = deadline_of(timeout, core.clock)
                    is_first = False
                    rest = None if deadline is None else deadline - core.clock.monotonic()
                    if not block or (rest is not None and rest <= 0):
                        raise Empty(f"{self.name} has no item that may be delivered now")
                    self._wait(rest)
            if has_dead and (jobs or is_first):
                self._bury_all()
                is_first = False
                if block and timeout is not None:
                    deadline = deadline_of(timeout, core.clock)
            if jobs:
                return jobs

    def _wait(self, rest: float | None) -> None:
        """Needs the lock."""
        core = self._core
        if core.is_closed:
            return
        due = core.state.wait_seconds(core.clock.monotonic(), core.clock.now_ms())
        waits = [LOOK_SECONDS, *(wait for wait in (rest, due) if wait is not None)]
        with core.counted("getter_count"):
            core.wait(min(waits))

    # --- ack, nack, extend ------------------------------------------------------------------------------------------

    def ack(self, job: Job) -> None:
        """See ``Job.ack``."""
        core = self._core if self._guard.forked else self._of_process
        with core.lock:
            is_acked = core.ack_one(job)
            is_due = is_acked and self._space.is_due
        if not is_acked:
            self.ack_many((job,))
        elif is_due:
            self._space.tidy()

    def ack_many(self, jobs: Sequence[Job]) -> None:
        """Acks jobs in one append: all of them, or none. Raises: as ``Job.ack``."""
        core, jobs = self._core, list(jobs)
        with core.lock:
            is_acked = core.ack_now(jobs)
            is_due = self._space.is_due
        if not is_acked:
            is_due = self._ack_in_steps(core, jobs)
        if is_due:
            self._space.tidy()

    def _ack_in_steps(self, core: QueueCore, jobs: list[Job]) -> bool:
        """Acks ``jobs``, without the lock during the append. Returns whether there may be something to tidy."""
        state = core.state
        token, end = object(), 0
        leased, offsets, values = jobs, None, []
        try:
            with core.lock:
                core.check_open()
                core.ledger.refresh()
                offsets = held_offsets(state.leases, jobs)
                is_plain = offsets is not None
                if offsets is None:
                    for job in jobs:
                        if not job.is_open or not state.may_finish(job):
                            raise _lost(job)
                    leased = [job for job in dict.fromkeys(jobs) if state.is_leased(job)]
                    offsets = [job.offset for job in jobs]
                notes = core.ledger.notes()
                core.ledger.begin_write(token)
                if is_plain:
                    end_all(state.leases, jobs)
                else:
                    for job in leased:
                        state.end_lease(job)
                state.hold(offsets)
            values = done_values(core.leasing.done_kind, offsets if is_plain else sorted(set(offsets)), notes)
            end = core.journal.append_all(values)
        finally:
            try:
                is_due = self._end_ack(token, end, values, jobs, leased, offsets or ())
            except BaseException:
                self._end_ack(token, end, values, jobs, leased, offsets or ())
                raise
        return is_due

    def _end_ack(
        self,
        token: object,
        end: int,
        values: Sequence[bytes],
        jobs: list[Job],
        leased: Iterable[Job],
        offsets: Sequence[int],
    ) -> bool:
        """Marks ``jobs`` as done if the journal has ``values``, up to ``end``; else they are leased as before, and the
        other items wait. Returns whether there may be something to tidy.

        An interrupt may end this anywhere; a second call does the rest.
        """
        core, state = self._core, self._core.state
        with core.lock:
            if not core.ledger.is_writing(token):
                return False  # it did not begin, or it has ended
            try:
                if end:
                    if not core.ledger.takes_in(values, end):
                        state.finish_fast(offsets)
                    close_all(jobs)
                    if core.joiner_count:
                        core.note_done()
                else:
                    for job in leased:
                        if state.lease_of(job.offset) is None and not state.is_done(job.offset):
                            state.lease_again(job)
                    state.let_go(offsets)
            except BaseException:
                state.busy.difference_update(offsets)
                state.lose_order()
                raise
            core.ledger.end_write(token, end)
            return self._space.is_due

    def nack(self, job: Job, delay: float = 0) -> None:
        """See ``Job.nack``."""
        core = self._core
        seconds = seconds_of("delay", delay)
        if not core.nack(job, core.clock.now_ms() + round(seconds * 1000) if seconds else 0):
            raise _lost(job)
        with core.lock:
            has_dead = bool(core.state.dead)
        if has_dead:
            self._bury_all()
        if self._space.is_due:
            self._space.tidy()

    def fail(self, job: Job) -> None:
        """See ``Job.fail``."""
        core = self._core
        with core.lock:
            core.check_open()
            if not job.is_open or not core.state.is_leased(job):
                raise _lost(job)
        # First: a crash in between must not lose the item.
        self._put_aside(job.record, job.delivery_count)
        self.ack(job)

    def leased(self) -> list[LeasedItem]:
        """The items that are leased now, the longest first. Raises: ClosedError."""
        core = self._core
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        with core.lock:
            core.check_open()
            now = core.clock.monotonic()
            return leased_items(core, now, names)

    def extend(self, job: Job, seconds: float | None = None) -> None:
        """See ``Job.extend``."""
        core, state = self._core, self._core.state
        wanted = job.seconds if seconds is None else seconds_of("seconds", seconds)
        with core.lock:
            core.check_open()
            if not job.is_open or not state.is_leased(job):
                raise _lost(job)
            deadline = core.clock.monotonic() + wanted
            if not core.leasing.extend(job, wanted):
                raise _lost(job)
            try:
                state.end_lease(job)
                job.seconds, job.deadline = wanted, deadline
                state.lease((job,), wanted)
            except BaseException:
                state.lose_order()
                raise

    def _bury_all(self) -> None:
        """Makes dead letters of the items that were delivered too many times. A later get retries what failed."""
        self._space.bury(self._put_aside)

    def _put_aside(self, record: Record, delivery_count: int) -> None:
        dead = self._dead_letters(create=True)
        if dead is not None:
            dead._take_in(record, delivery_count, f"{self.name}:{record.offset}")

    # --- the rest of queue.Queue ------------------------------------------------------------------------------------

    def task_done(self, job: Job | None = None) -> None:
        """Acks ``job``, or the oldest one that this thread got and has neither acked nor nacked.

        Raises: ValueError if it has none, and as ``Job.ack``.
        """
        if job is None:
            me = threading.get_ident()
            with self._core.lock:
                mine = [held for held in self._core.state.leases.held() if held.thread == me]
            if not mine:
                raise ValueError("task_done() was called more times than this thread got items")
            job = min(mine, key=lambda held: held.offset)
        self.ack(job)

    def join(self, timeout: float | None = None) -> bool:
        """Waits until every item is done; False after ``timeout`` seconds. Raises: ClosedError, StorageError.

        It does not wait for items of an open transaction, which do not count yet.
        """
        core = self._core
        deadline = deadline_of(timeout, core.clock)
        core.count_all()
        with core.lock, core.counted("joiner_count"):
            while core.pending():
                core.check_open()
                rest = None if deadline is None else deadline - core.clock.monotonic()
                if rest is not None and rest <= 0:
                    return False
                # An ack by another process, or the end of a transaction, wakes no thread here.
                core.all_done.wait(LOOK_SECONDS if rest is None else min(rest, LOOK_SECONDS))
            core.check_open()
            return True

    def qsize(self) -> int:
        """About how many items wait to be delivered: delayed ones count, leased ones do not.

        Markers of transactions, aborted items and items of open transactions do not count. If the log may have some,
        the first call reads everything that waits, and each later one what was put since. Raises: ClosedError,
        StorageError.
        """
        core = self._core
        core.count_all()
        with core.lock:
            core.check_open()
            return core.waiting_count()

    def __len__(self) -> int:
        return self.qsize()

    def empty(self) -> bool:
        """Whether no item waits."""
        return not self.qsize()

    def full(self) -> bool:
        """Whether a put would wait."""
        return 0 < self.maxsize <= self.qsize()

    # --- inspection -------------------------------------------------------------------------------------------------

    def stats(self) -> QueueStats:
        """The present state. Raises: StorageError."""
        dead = self._dead_letters(create=False)
        return stats_of(self._core, 0 if dead is None else dead.qsize())

    def peek(self, count: int = 1) -> list[Shown]:
        """The oldest items that are not done, without leasing them. Raises: StorageError."""
        return peeked(self._core, count)

    def accept_loss(self) -> int:
        """Gives up the unreadable items that ``stats().damaged`` counts; returns their number.

        Their loss is accepted in the items' log (``Log.accept_loss``), durably, and they are done, as if acked, as
        durably as the queue's setting says. After a crash in between they stay given up. Thread-safe.

        Raises: LossLimitError, and as ``Job.ack``.
        """
        core, state = self._core, self._core.state
        with core.lock:
            core.check_open()
            core.ledger.refresh()
            offsets = sorted(state.damaged)
        ranges = ranges_of(offsets)
        for first, count in ranges:
            core.items.accept_loss(first, first + count - 1)
        if not ranges:
            return 0
        token, end = object(), 0
        try:
            with core.lock:
                core.ledger.begin_write(token)
            end = core.journal.append_all(done_values(core.leasing.done_kind, offsets))
        finally:
            try:
                core.end_write(token, end, state.give_up_damaged, offsets)
            except BaseException:
                core.end_write(token, end, state.give_up_damaged, offsets)
                raise
        self._space.tidy()
        return len(offsets)

    @property
    def closed(self) -> bool:
        return self._core.is_closed

    def retry_dead(self, count: int | None = None) -> int:
        """Puts dead letters, all or ``count`` but no more than fit, into the queue as new items; returns their number.

        A crash in between may leave some in both. Raises: as ``put``.
        """
        dead = self._dead_letters(create=False)
        moved = 0
        while dead is not None:
            wanted = RETRY_COUNT if count is None else min(RETRY_COUNT, count - moved)
            if self.maxsize:
                wanted = min(wanted, self.maxsize - self.qsize())
            if wanted <= 0:
                break
            try:
                jobs = dead.get_many(wanted, block=False)
            except Empty:
                break
            try:
                self.put_many(
                    [job.value for job in jobs],
                    block=False,
                    keys=[job.key for job in jobs],
                    headers=[of_user(job.record.header_bytes) for job in jobs],
                )
                if not self._core.is_sync:
                    self._core.items.flush()
            except BaseException as error:
                give_back(dead, jobs)
                if isinstance(error, Full):
                    break  # another process was quicker
                raise
            dead.ack_many(jobs)
            moved += len(jobs)
        return moved

    def check(self) -> None:
        """Asserts that its state is consistent; for tests."""
        with self._core.lock:
            self._core.state.check()

    def close(self) -> None:
        """Ends its use: every waiting call gets a ClosedError, and leased items come back. Called by the store."""
        self._core.close()
        self._space.close()

    def __repr__(self) -> str:
        return queue_text(self._of_process, is_closed=self._guard.forked)

    def _repr_html_(self) -> str:
        return queue_html(self._of_process, is_closed=self._guard.forked)

    def __reduce__(self) -> NoReturn:
        raise not_picklable("Queue", "open its store in the other process with shared=True, and get the queue there")


# --- for kstore's own use ---------------------------------------------------------------------------------------------


def core_of(queue: Queue) -> QueueCore:
    """What the queue's threads share, for callers that wait in another way, such as tasks. Raises: ForkedError."""
    return queue._core


def give_back(queue: Queue, jobs: Sequence[Job]) -> None:
    """Ends leases of items that no caller has seen: these deliveries do not count. Raises: as ``nack``."""
    core = queue._core
    with core.lock:
        told = core.give_back(jobs)
    for job in told:
        queue.nack(job)


def _lost(job: Job) -> LeaseLostError:
    why = "its lease expired, and it was delivered again" if job.is_open else "it was acked or nacked before"
    return LeaseLostError(f"item {job.offset}: {why}")
