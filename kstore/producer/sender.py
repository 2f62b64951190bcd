"""Writes the waiting batches, in rounds, and reports their outcome (Kafka: Sender).

One thread serves all partitions in turn: it writes up to 1 MiB of batches of each ready one with one call. Logs that
sync every append are written in parallel, in separate threads, because each waits for the disk, and in up to 16 MiB
together: while the disk syncs one half of the memory, the sending threads fill the other.

A thread that sends does not wait for the disk: its batches wait in memory, and only a full pool makes it write or wait.
There is one exception. A busy Python thread releases the interpreter's lock every 5 ms, so one that sends all the time
fills the pool faster than this thread empties it. So the thread that closes the 16th batch of a partition writes them
itself (``write_here``), if no other thread is writing them and one of the partition's last two writes took less than a
millisecond. This thread always makes the first write of a partition, and all retries, expiries and callbacks. The
thread of an event loop never writes, because all its tasks would wait for the disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from kstore.clock import Clock
from kstore.errors import KstoreError
from kstore.files.threads import WorkerPool, side_by_side, start_thread
from kstore.producer.accumulator import BatchQueue, RecordAccumulator
from kstore.producer.completions import Completions
from kstore.producer.config import ProducerConfig
from kstore.producer.queue_writer import QueueWriter
from kstore.producer.waiting import Wakeup, is_on_loop

logger = logging.getLogger(__name__)

# With this many closed batches in a partition, the thread that closed the last one writes them.
INLINE_BATCHES: Final = 16
# The longest wait between two rounds, which bounds how late a batch is that a clock jump has made overdue.
ROUND_SECONDS_MAX: Final = 60.0
# For this many rounds without a new batch it sleeps no longer than a batch may wait: then an occasional send need not
# wake it, which costs more than a write.
WATCHFUL_ROUNDS: Final = 20
PATIENCE_SECONDS: Final = 0.005
# The pause after a round that failed.
FAILED_ROUND_SECONDS: Final = 0.01
SYNC_THREADS_MAX: Final = 8


class Sender:
    """The thread that writes, and its work. ``run_once`` is one round, for tests and without a thread."""

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        clock: Clock,
        queue_writer: QueueWriter,
        completions: Completions,
        *,
        wakeup: Wakeup,
        on_idle: Callable[[], None],
        name: str,
    ) -> None:
        self._accumulator = accumulator
        self._clock = clock
        self._queue_writer = queue_writer
        self._completions = completions
        self._wakeup = wakeup
        # How long it may overlook a batch, seconds: no longer than the batch may wait.
        self.patience: Final = min(config.linger_ms / 1000, PATIENCE_SECONDS)
        accumulator.patience = self.patience
        self._on_idle = on_idle
        self._name = name
        self._thread: threading.Thread | None = None
        # The id of the sender's thread while it runs, else 0: the system gives it to another thread afterwards.
        self._thread_id = 0
        self._workers = WorkerPool(f"{name}-sync")
        # Called by the thread as the last thing that it does.
        self.on_end: Callable[[], None] | None = None

    # --- the thread -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises: ThreadStartError."""
        self._thread = start_thread(self._run, name=self._name)

    @property
    def is_this_thread(self) -> bool:
        return threading.get_ident() == self._thread_id

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        accumulator = self._accumulator
        self._thread_id = threading.get_ident()
        seen_count, idle_rounds = -1, 0
        while True:
            try:
                opened_count = accumulator.opened_count
                idle_rounds = idle_rounds + 1 if opened_count == seen_count else 0
                seen_count = opened_count
                wait = self.run_once()
                if accumulator.is_closed and not accumulator.incomplete and not self._completions.waiting:
                    break
                if wait > 0:
                    if idle_rounds < WATCHFUL_ROUNDS and self.patience > 0:
                        wait = min(wait, self.patience)
                    accumulator.sleeps_until = self._clock.monotonic() + wait
                    # A batch that arrived between the round and here did not wake this thread.
                    self._wakeup.wait(0 if accumulator.opened_count != opened_count else wait)
                    accumulator.sleeps_until = 0.0
                    self._on_idle()
            except BaseException:
                # The thread must not die: batches that cannot be written expire.
                try:
                    self._wakeup.wait(FAILED_ROUND_SECONDS)
                    logger.exception("%s: a round failed", self._name)
                except BaseException:
                    pass  # a filter of the program's log, or a lack of memory
        self._workers.close()
        on_end = self.on_end
        if on_end is not None:
            try:
                on_end()
            except BaseException:
                logger.exception("%s: its end failed", self._name)
        self._thread_id = 0

    def join(self, timeout: float | None) -> bool:
        """Waits for the end of the thread; returns whether it has ended."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        thread.join(timeout)
        return not thread.is_alive()

    def force(self, error: Exception) -> None:
        """Fails everything without a result, except writes in progress; for ``close``."""
        self._queue_writer.forced = error
        self.abandon(error)

    # --- a round ----------------------------------------------------------------------------------------------------

    def run_once(self) -> float:
        """Writes what is ready; returns the seconds until the next batch may be ready."""
        accumulator = self._accumulator
        accumulator.take_over()
        self._completions.run()
        now = self._clock.monotonic()
        wait = ROUND_SECONDS_MAX
        ready: list[BatchQueue] = []
        for queue in list(accumulator.active):
            if (due := accumulator.ready_in(queue, now)) <= 0 and queue.batch_count:
                ready.append(queue)
            elif accumulator.expires_in(queue, now) <= 0:
                self._expire(queue, now)
            elif not queue.batch_count:
                accumulator.rest(queue)
            else:
                wait = min(wait, due, accumulator.expires_in(queue, now))
        if not ready:
            return wait
        self._write_all(ready, now)
        if self._completions.waiting:
            self._completions.run()
            return 0.0
        for queue in ready:
            # Other threads hold these queues, and wake this thread for what they leave.
            if queue.batch_count and not queue.drain_lock.is_held:
                wait = min(wait, max(accumulator.ready_in(queue, now), 0.0))
        return wait

    def _write_all(self, queues: list[BatchQueue], now: float) -> None:
        """Writes queues, in parallel if their logs sync every append."""
        syncing = [queue for queue in queues if self._syncs(queue)] if len(queues) > 1 else []
        if len(syncing) < 2:
            syncing = []
        for queue in queues:
            if queue not in syncing:
                self._write(queue, now)
        if syncing:
            # Not a pool: a finalizer that holds the pools' lock may close the producer, and wait for this thread.
            side_by_side(
                lambda queue: self._write(queue, now),
                syncing,
                count=SYNC_THREADS_MAX,
                name=self._name,
                workers=self._workers,
            )

    def _syncs(self, queue: BatchQueue) -> bool:
        try:
            return self._queue_writer.writer(queue).syncs_appends
        except (KstoreError, OSError):
            return False

    def _write(self, queue: BatchQueue, now: float) -> None:
        """Writes batches of the queue. Does nothing if another thread is writing it."""
        with self._accumulator.writing.entered(), queue.drain_lock.attempt() as is_mine:
            if not is_mine:
                return
            self._queue_writer.fail_expired(queue, now)
            forced = self._queue_writer.forced
            if forced is not None:
                self._queue_writer.abandon(queue, now, forced)
            else:
                self._queue_writer.write_ready(queue, now, self._completions.hand_over)
            self._accumulator.rest(queue)

    def write_here(self, queue: BatchQueue) -> None:
        """Writes what is ready in a queue in the caller's thread, if no other thread writes it and no callback is due.

        On the thread of an event loop it only wakes the sender; so it does in a finalizer or a handler that runs inside
        a write, or inside a change of the log, of the same thread.
        """
        if is_on_loop() or self._accumulator.writing.has_me or queue.is_in_its_log:
            self._wakeup.set()
            return
        is_mine = False
        try:
            with self._accumulator.writing.entered(), queue.drain_lock.attempt() as is_mine:
                if (
                    not is_mine
                    or self._queue_writer.forced is not None
                    or (self._completions.waiting and not self.is_this_thread)
                ):
                    return
                now = self._clock.monotonic()
                if self._accumulator.ready_in(queue, now) <= 0:
                    self._queue_writer.write_ready(queue, now, self._completions.complete_here)
        finally:
            self._accumulator.take_over()
            # After the lock is released: the sender skips queues that other threads hold, and ends with the last batch.
            if is_mine and (queue.batch_count or self._completions.waiting or self._accumulator.is_closed):
                self._wakeup.set()

    def _expire(self, queue: BatchQueue, now: float) -> None:
        with queue.drain_lock.attempt() as is_mine:
            if is_mine:
                self._queue_writer.fail_expired(queue, now)
        self._completions.run()

    def abandon(self, error: Exception) -> None:
        """Fails all waiting batches, except those that follow a write in progress."""
        self._accumulator.take_over()
        for queue in list(self._accumulator.active):
            with queue.drain_lock.attempt() as is_mine:
                if is_mine:
                    self._queue_writer.abandon(queue, self._clock.monotonic(), error)
        self._wakeup.set()

    def give_memory_back(self) -> None:
        """Called by a callback that waits for memory: returns the memory of batches whose callbacks come later."""
        self._completions.give_memory_back()
