"""``Outbox``: the batches that wait to be written, their memory, and which thread writes them.

The sender's thread writes what is ready. A thread that waits for a batch, for memory, or for all batches makes them
ready sooner, and writes them itself if no other thread is writing them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

from kstore.errors import ClosedError, DeliveryError, ReentrantCallError
from kstore.files.lifetime import Lifetime
from kstore.logs.topics import Topics
from kstore.producer._accumulate import Failures, ProducerBatch, WeakCall
from kstore.producer.accumulator import BatchQueue, RecordAccumulator
from kstore.producer.buffer_pool import BufferPool
from kstore.producer.completions import Completions
from kstore.producer.config import ProducerConfig
from kstore.producer.metadata import TopicMetadata
from kstore.producer.producer_metrics import ProducerCounters
from kstore.producer.queue_writer import QueueWriter
from kstore.producer.sender import INLINE_BATCHES, Sender
from kstore.producer.transactions import TransactionManager
from kstore.producer.waiting import Hurry, Wakeup

logger = logging.getLogger(__name__)


class Outbox:
    """A producer's undelivered batches. Thread-safe."""

    def __init__(
        self,
        config: ProducerConfig,
        topics: Topics,
        metadata: TopicMetadata,
        transactions: TransactionManager,
        counters: ProducerCounters,
        life: Lifetime,
        *,
        client_id: str,
        is_threaded: bool,
    ) -> None:
        """Starts nothing. ``is_threaded``: False in tests, which then call ``sender.run_once``."""
        self._client_id = client_id
        self.is_threaded = is_threaded
        self._clock = clock = topics.clock
        self._metadata = metadata
        # Called before a thread waits for memory; an exception from it ends the attempt. None means no check.
        self.before_wait: Callable[[], None] | None = None
        self.failures: Failures = Failures()
        self.wakeup: Wakeup = Wakeup()
        self.pool: BufferPool = BufferPool(
            config.buffer_memory, max(config.batch_size, 1), clock, on_wait=WeakCall(self, Outbox._make_room)
        )
        self.accumulator: RecordAccumulator = RecordAccumulator(
            config, self.pool, clock, hurry=Hurry(WeakCall(self, Outbox.hurry), life), failures=self.failures
        )
        completions = Completions(self.accumulator)
        self.accumulator.stale = metadata.stale
        self.queue_writer: QueueWriter = QueueWriter(
            config,
            self.accumulator,
            clock,
            topics=topics,
            topic_of=metadata.known,
            ids=transactions,
            counters=counters,
            completions=completions,
            wakeup=self.wakeup,
        )
        self.sender: Sender = Sender(
            config,
            self.accumulator,
            clock,
            self.queue_writer,
            completions,
            wakeup=self.wakeup,
            on_idle=partial(metadata.drop_idle, self.accumulator),
            name=f"kstore-{client_id}",
        )

    # --- who writes -------------------------------------------------------------------------------------------------

    def appended(self, queue: BatchQueue, inline_batches: int = INLINE_BATCHES) -> None:
        """Called when a record opened a batch of ``queue``; this thread writes if ``inline_batches`` are closed."""
        if not self.is_threaded:
            return
        if len(queue.closed) >= inline_batches and queue.is_fast and not self.sender.is_this_thread:
            self.sender.write_here(queue)
            return
        # Without a wake-up the sender notices the new batch within a linger.
        if self.accumulator.sleeps_until > self._clock.monotonic() + self.sender.patience:
            self.wakeup.set()

    def hurry(self, batch: ProducerBatch) -> None:
        """Called by a thread that waits for a batch: writes it at once, in this thread if possible."""
        if batch.is_done:
            return
        self._refuse_inside()
        topic = self._metadata.topics.get(batch.topic)
        if topic is None or batch.partition >= topic.partition_count:
            self.wakeup.set()
            return
        queue: BatchQueue = topic.queues[batch.partition]
        queue.is_urgent = True
        if self.is_threaded and not self.sender.is_this_thread:
            self.sender.write_here(queue)
        if not batch.is_done:
            self.wakeup.set()

    def _make_room(self) -> None:
        """Called before a thread waits for memory: writes the batches that hold it, unless another thread does."""
        if self.before_wait is not None:
            self.before_wait()
        self.wakeup.set()
        if self.is_threaded:
            for queue in list(self.accumulator.active):
                if not self.pool.waiting_count:
                    break  # enough was written
                self.sender.write_here(queue)
            if self.sender.is_this_thread:
                # This is a callback that sends: the memory would be returned only after it.
                self.sender.give_memory_back()

    # --- all of it --------------------------------------------------------------------------------------------------

    def _refuse_inside(self) -> None:
        """Raises: ReentrantCallError, in a finalizer or a handler inside a call of the same thread that has batches in
        its hands: a wait for them would not end."""
        if self.accumulator.appending.has_me or self.accumulator.writing.has_me:
            raise ReentrantCallError(f"{self._client_id}: this thread is inside a send, and cannot wait for its end")

    def drain(self, timeout: float | None) -> bool:
        """Waits until every present batch has a result; returns whether all have."""
        self._refuse_inside()
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        who = object()
        try:
            batches = self.accumulator.begin_hurry(who)
            self.wakeup.set()
            while batches:
                batch = batches.pop()
                if not self.is_threaded:
                    while not batch.is_released:
                        self.sender.run_once()
                remaining = None if deadline is None else max(deadline - self._clock.monotonic(), 0.0)
                if not batch.wait(remaining):
                    return False
                batches += [child for _, child in batch.children or ()]
            return True
        finally:
            self.accumulator.end_hurry(who)

    def begin_last_hurry(self) -> None:
        """Makes all batches ready, now and in future; does not wait."""
        self.accumulator.begin_hurry(self)
        self.wakeup.set()

    def undelivered(self) -> dict[str, int]:
        """How many records have no result yet, by partition."""
        counts: Counter[str] = Counter()
        for batch in list(self.accumulator.incomplete):
            counts[f"{batch.topic}-{batch.partition}"] += batch.record_count
        return dict(counts)

    def report_failures(self) -> None:
        """Raises: DeliveryError for failed records whose deliveries the program has not examined."""
        found = self.failures.take()
        if found is not None:
            error = DeliveryError(*found)
            logger.error("%s: %s", self._client_id, error)
            raise error

    def close(self, timeout: float | None, grace: float) -> None:
        """Accepts no more batches, and waits until all are delivered; the rest fails after ``timeout`` seconds. Then it
        waits up to ``grace`` seconds for writes in progress."""
        self._refuse_inside()
        self.accumulator.is_closed = True
        self.pool.close()
        self.wakeup.set()
        if not self.is_threaded:
            self.drain(None)
        elif not self.sender.join(timeout):
            self.sender.force(ClosedError(f"the producer {self._client_id} was closed before they were written"))
            if not self.sender.is_this_thread:
                self.sender.join(grace)

    def abandon(self) -> None:
        """Accepts no more batches; the sender's thread delivers the existing ones, and ends. Takes no lock."""
        self.accumulator.is_closed = True
        self.wakeup.set()
