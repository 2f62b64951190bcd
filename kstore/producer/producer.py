"""``Producer``: hands records over to memory, from where they are written in the background.

send         _accumulate    compiled: into the open batch of the partition; sending does what that does not
batches      accumulator    one queue a partition; buffer_pool lends the memory
writes       sender         a thread that writes what is ready; transactions stamps it
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kstore.errors import ClosedError, DeliveryError, KstoreError, TransactionAbortedError
from kstore.files.paths import TopicPartition
from kstore.files.threads import closed_elsewhere
from kstore.logs.topics import Topics
from kstore.producer.producer_metrics import producer_metrics, topic_metrics
from kstore.producer.sending import Sending
from kstore.transactions.of_store import StoreCoordinator

__all__ = ["Producer"]

logger = logging.getLogger(__name__)

# What the interpreter's exit waits for what is still in memory.
EXIT_SECONDS: Final = 10.0


class Producer(Sending):
    """Sends records to the topics of a store. Thread-safe: one for all threads is the fastest.

    ``with store.producer() as producer:`` closes it, which waits until everything is delivered.
    """

    def __init__(
        self, topics: Topics, coordinator: StoreCoordinator, *, is_threaded: bool = True, **settings: Any
    ) -> None:
        """See ``Store.producer``. ``is_threaded``: False in tests, which then call ``sender.run_once``.

        Raises: ConfigError.
        """
        self._closed = True  # until it is open
        super().__init__(topics, coordinator, is_threaded=is_threaded, **settings)
        self._closing = threading.Lock()
        topics.watch(self._metadata.note_change)
        try:
            if is_threaded:
                self.sender.start()
        except BaseException:
            topics.unwatch(self._metadata.note_change)
            raise
        self._closed = False
        self.is_plain = self._is_plain_now
        _live.add(self)

    def __repr__(self) -> str:
        return f"Producer({self.client_id!r}, closed={self._closed})"

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def store_path(self) -> Path:
        return self._topics.path

    # --- topics -----------------------------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic; waits for it as ``send``. Raises: TopicNotFoundError, TopicWaitTimeoutError."""
        self._check_open()
        if not isinstance(topic, str):
            raise TypeError(f"a topic of type {type(topic).__name__}, expected a str")
        return list(range(self._metadata.get(topic, None, self.config.max_block_ms / 1000).partition_count))

    # --- transactions -----------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Takes the place of any producer with the same ``transactional_id``, and ends what that left open.

        ``transaction`` does it by itself. Raises: InvalidTransactionStateError, StorageError.
        """
        self._check_open()
        with self.counters.transaction_call("init", self._clock):
            self._transactions.init()

    def begin_transaction(self) -> None:
        """From now on records belong to a transaction. Raises: InvalidTransactionStateError, ProducerFencedError."""
        self._check_open()
        with self.counters.transaction_call("begin", self._clock):
            self._transactions.begin()
            self._accumulator.is_paused = False

    def commit_transaction(self) -> None:
        """Writes all that was sent and ends the transaction: on return it is there, in every partition, for good.

        Where this raises the transaction is as it was; the same call may be made again, and where a record was lost
        ``abort_transaction`` is all that is left.
        Raises: what a record failed with, InvalidTransactionStateError, ProducerFencedError, StorageError.
        """
        self._check_open()
        self._refuse_in_callback("commit_transaction()")
        with self.counters.transaction_call("commit", self._clock):
            self._transactions.begin_end(commit=True)
            # A send that was under way is in the transaction, or is refused.
            self._accumulator.is_paused = True
            self._drain(None)
            self._transactions.end(commit=True)

    def abort_transaction(self) -> None:
        """Ends the transaction: what was sent in it is never read as committed; what was not written yet fails.

        Raises: InvalidTransactionStateError, ProducerFencedError, StorageError.
        """
        self._check_open()
        self._refuse_in_callback("abort_transaction()")
        self._transactions.begin_end(commit=False)
        self._abort()

    def _abort(self, timeout: float | None = None) -> None:
        """Raises: TimeoutError, and as ``abort_transaction``."""
        self._accumulator.is_paused = True
        cause = self._transactions.error
        error = TransactionAbortedError("the transaction was aborted") if cause is None else cause
        with self.counters.transaction_call("abort", self._clock):
            self.sender.abandon(error)
            if not self._drain(timeout):
                raise TimeoutError(f"not all records were given up within {timeout} s")
            self._transactions.end(commit=False)
        # Whoever aborts knows that its records are lost.
        self._failures.take()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Commits what a group of consumers has done, with the transaction: the next offsets to read, by partition.

        Raises: InvalidTransactionStateError, ValueError, StorageError.
        """
        self._check_open()
        with self.counters.transaction_call("send_offsets", self._clock):
            self._transactions.add_offsets(offsets, group)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """``with producer.transaction():`` commits at its end; aborts where the block raises."""
        self.init_transactions()
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            if self._transactions.is_open and not self._closed:
                self.abort_transaction()
            raise
        try:
            self.commit_transaction()
        except Exception:
            if self._transactions.is_open:
                self.abort_transaction()
            raise

    # --- flush and close --------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything that was sent before has arrived or failed, ``timeout`` seconds at most.

        Raises: TimeoutError; DeliveryError for records that failed and whose deliveries nobody has looked at;
        RuntimeError in a callback, where it would wait for itself.
        """
        if self._guard.forked:
            self._guard.check(f"the producer {self.client_id}")
        self._refuse_in_callback("flush()")
        started = self._clock.monotonic()
        try:
            if not self._drain(timeout):
                raise TimeoutError(f"not all records were delivered within {timeout} s")
        finally:
            self.counters.flushed(self._clock.monotonic() - started)
        self._report_failures()

    def _refuse_in_callback(self, what: str) -> None:
        if self.sender.is_this_thread:
            raise RuntimeError(f"{what} in a callback of a delivery would wait for itself")

    def _drain(self, timeout: float | None) -> bool:
        """Waits until every batch there is now has a result; whether all have."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        who = object()
        try:
            batches = self._accumulator.begin_hurry(who)
            self._wakeup.set()
            while batches:
                batch = batches.pop()
                if not self._is_threaded:
                    while not batch.is_released:
                        self.sender.run_once()
                remaining = None if deadline is None else max(deadline - self._clock.monotonic(), 0.0)
                if not batch.wait(remaining):
                    return False
                batches += [child for _, child in batch.children or ()]
            return True
        finally:
            self._accumulator.end_hurry(who)

    def _report_failures(self) -> None:
        found = self._failures.take()
        if found is not None:
            count, first = found
            logger.error("%s: %d records were not delivered; the first: %r", self.client_id, count, first)
            raise DeliveryError(count, first)

    def close(self, timeout: float | None = None) -> None:
        """Takes no more records, and waits until all are delivered; what is not within ``timeout`` seconds fails.

        An open transaction is aborted. In a callback it does not wait. A second call does nothing.
        Raises: DeliveryError as ``flush``; ValueError for a negative ``timeout``.
        """
        if timeout is not None and timeout < 0:
            raise ValueError(f"a timeout of {timeout} s, expected at least 0")
        if self._guard.forked:
            self._closed = True
            return  # all of it is the parent's
        if closed_elsewhere(lambda: self.close(timeout), self):
            return
        with self._closing:
            if self._closed:
                return
            self.is_plain = False
            self._closed = True
        _live.discard(self)
        if self.sender.is_this_thread:
            timeout = 0.0
        try:
            self._close(timeout)
        finally:
            self._topics.unwatch(self._metadata.note_change)
            self._interceptors.close()
            self._serializers.close()
            _close_quietly(self._partitioner)
        self._report_failures()

    def _close(self, timeout: float | None) -> None:
        started = self._clock.monotonic()
        if self._transactions.is_open:
            try:
                self._transactions.begin_end(commit=False)
                if timeout != 0:
                    self._abort(timeout)
            except (KstoreError, OSError) as error:
                logger.warning(
                    "%s: its transaction is aborted when the store is next opened: %s", self.client_id, error
                )
        self._accumulator.is_closed = True
        self._pool.close()
        self._wakeup.set()
        if not self._is_threaded:
            self._drain(None)
            return
        remaining = None if timeout is None else max(timeout - (self._clock.monotonic() - started), 0.0)
        if not self.sender.join(remaining):
            self.sender.force(ClosedError(f"the producer {self.client_id} was closed before they were written"))
            if not self.sender.is_this_thread:
                self.sender.join(1.0)

    def undelivered(self) -> dict[str, int]:
        """How many records have no result yet, by partition."""
        counts: Counter[str] = Counter()
        for batch in list(self._accumulator.incomplete):
            counts[f"{batch.topic}-{batch.partition}"] += batch.record_count
        return dict(counts)

    def metrics(self) -> dict[str, float]:
        """What it has counted, and what it holds now: see ``kstore.metrics.PRODUCER_METRICS``."""
        return producer_metrics(
            self.counters,
            self._pool,
            waiting_batches=len(self._accumulator.incomplete),
            metadata_wait_seconds=self._metadata.wait_seconds,
        )

    def topic_metrics(self) -> dict[str, dict[str, float]]:
        """What it has counted by topic: see ``kstore.metrics.PRODUCER_TOPIC_METRICS``; not of topics deleted since."""
        return topic_metrics(self.counters, self._topics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except DeliveryError:
            # What went wrong in the block comes first; the loss is in the log.
            if error is None:
                raise

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._guard.forked:
            return
        warnings.warn(f"unclosed {self!r}: it is closed now, and delivers what it has", ResourceWarning, stacklevel=2)
        # Its thread goes on until all is delivered, and ends. No lock is taken here: the collector comes in any thread,
        # also in one that holds it.
        self._closed = True
        self._accumulator.is_closed = True
        self._wakeup.set()
        self._topics.unwatch(self._metadata.note_change)


def _close_quietly(part: object) -> None:
    close = getattr(part, "close", None)
    if callable(close):
        try:
            close()
        except Exception:
            logger.exception("close() of %r failed", part)


# --- forks, and the end of the process --------------------------------------------------------------------------------

_live: weakref.WeakSet[Producer] = weakref.WeakSet()


def _refuse_in_child() -> None:
    for producer in list(_live):
        # ``send`` then goes the slow way, which says so.
        producer.is_plain = False


os.register_at_fork(after_in_child=_refuse_in_child)


@atexit.register
def _deliver_at_exit() -> None:
    """What is still in memory is delivered, for a while; what is lost is said."""
    for producer in list(_live):
        if producer.closed or producer._guard.forked:
            continue
        lost: dict[str, int] = {}
        try:
            if not producer._drain(EXIT_SECONDS):
                lost = producer.undelivered()
            producer.close(0 if lost else EXIT_SECONDS)
        except DeliveryError as error:
            logger.error("%s: at exit: %s", producer.client_id, error)
        except Exception:
            logger.exception("%s: at exit", producer.client_id)
        if lost:
            counts = ", ".join(f"{count} of {name}" for name, count in sorted(lost.items()))
            logger.error("%s: records were lost at exit: %s", producer.client_id, counts)
