"""``Producer``: puts records into memory; a background thread writes them to the logs.

send         _accumulate    compiled: into the open batch of the partition; slow_path does the rest
batches      outbox         accumulator has one queue a partition; buffer_pool lends the memory
writes       sender         a thread that writes what is ready; queue_writer writes one queue
ends         background     keeps what was accepted until it is delivered, also without its producer
ids          transactions   producer ids, and the state of a transaction; the stamps of batches
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from kstore.clock import SystemClock
from kstore.errors import ClosedError, DeliveryError, InvalidRecordError, SerializationError, not_picklable
from kstore.files._locks import block
from kstore.files.paths import TopicPartition
from kstore.files.threads import closed_elsewhere
from kstore.producer._accumulate import Deliveries, SendPath
from kstore.producer.background import Background
from kstore.producer.config import ProducerConfig
from kstore.producer.parts import ProducerParts
from kstore.producer.producer_metrics import producer_metrics, topic_metrics
from kstore.producer.records import GivenHeaders
from kstore.producer.slow_path import DELIVERED_ERRORS
from kstore.rules.arguments import as_columns

if TYPE_CHECKING:
    import pyarrow


class Producer(SendPath):
    """Sends records to the topics of a store. Thread-safe: sharing one between all threads is the fastest.

    ``with store.producer() as producer:`` closes it, which waits until everything is delivered.
    """

    def __init__(self, parts: ProducerParts) -> None:
        """See ``Store.producer``."""
        if not isinstance(parts, ProducerParts):
            raise TypeError("a Producer belongs to a store: use kstore.open(path).producer(linger_ms=5)")
        self._life = parts.life
        self.config: ProducerConfig = parts.config
        self.client_id: str = parts.client_id
        self._counters = parts.counters
        self._topics = parts.topics
        self._clock = parts.clock
        self._metadata = parts.metadata
        self._transactions = parts.transactions
        self._outbox = parts.outbox
        self._slow_path = parts.slow_path
        self._sender = parts.outbox.sender
        now_ms = None if isinstance(self._clock, SystemClock) else self._clock.now_ms
        super().__init__(self._metadata.topics, self._slow_path, now_ms)
        self._run_bytes_max = self._outbox.accumulator.run_bytes_max
        self._opener = self._outbox.accumulator
        self._background = Background(parts)
        self._background.begin()
        self._is_plain = self._slow_path.is_plain
        _live.add(self)

    def __repr__(self) -> str:
        return f"Producer({self.client_id!r}{', closed' if self.closed else ''})"

    def __reduce__(self) -> NoReturn:
        raise not_picklable("Producer", "open the store in the other process with shared=True, and make one there")

    @property
    def closed(self) -> bool:
        return self._life.closed

    @property
    def store_path(self) -> Path:
        """The directory of its store."""
        return self._topics.path

    # --- send -------------------------------------------------------------------------------------------------------

    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        timestamps: Iterable[int | datetime | None] | None = None,
        headers: Iterable[GivenHeaders | None] | None = None,
        partition: int | None = None,
    ) -> Deliveries:
        """Hands over many records at once: parallel iterables, of one length.

        Returns the delivery of each. A bad record fails only its own delivery. Raises: as ``send`` for errors in the
        call; TypeError for a single text in place of the values; ValueError if the lengths differ.
        """
        if not isinstance(topic, str):
            raise TypeError(f"a topic of type {type(topic).__name__}, expected a str")
        if partition is not None:
            if not hasattr(partition, "__index__"):
                raise TypeError(f"a partition of type {type(partition).__name__}, expected an int or None")
            partition = index(partition)
        values, keys, timestamps, headers = as_columns(values, keys, timestamps, headers)
        self._slow_path.check_open()
        self._transactions.check_send()
        if self._is_plain and values:
            found = self._metadata.topics.get(topic)
            if found is None or self._metadata.has_news(topic):
                try:
                    found = self._metadata.get(topic, partition, self.config.max_block_ms / 1000)
                except DELIVERED_ERRORS as error:
                    return Deliveries.of([self._slow_path.refused(topic, partition, error, None) for _ in values])
            if partition is None or 0 <= partition < found.partition_count:
                return self._send_plain_many(found, values, keys, timestamps, headers, partition)
        return Deliveries.of(
            [
                self._send_one(
                    topic,
                    value,
                    None if keys is None else keys[number],
                    None if headers is None else headers[number],
                    None if timestamps is None else timestamps[number],
                    partition,
                )
                for number, value in enumerate(values)
            ]
        )

    def _send_one(self, topic: str, value: Any, key: Any, headers: Any, timestamp: int | None, partition: int | None):  # type: ignore[no-untyped-def]
        try:
            return self.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
        except (SerializationError, InvalidRecordError, TypeError, ValueError) as error:
            if isinstance(error, ClosedError):
                raise
            return self._slow_path.refused(topic, partition, error, None)

    def send_arrow(self, topic: str, batch: pyarrow.RecordBatch | pyarrow.Table, **options: Any) -> Deliveries:
        """Sends the rows of an Arrow batch: columns ``value``, and optionally ``key``, ``timestamp`` (ms) and
        ``headers`` (maps of strings to binaries, or lists of them).

        ``options`` are those of ``send_many``. Raises: as ``send_many``; ValueError without a column ``value``.
        """
        if not hasattr(batch, "schema"):
            raise TypeError(f"a batch of type {type(batch).__name__}, expected a pyarrow.RecordBatch or Table")
        names = batch.schema.names
        if "value" not in names:
            raise ValueError(f"columns {', '.join(names)}, expected 'value' among them")
        columns = {
            name: batch.column(name).to_pylist() for name in ("value", "key", "timestamp", "headers") if name in names
        }
        return self.send_many(
            topic,
            columns["value"],
            keys=columns.get("key"),
            timestamps=columns.get("timestamp"),
            headers=columns.get("headers"),
            **options,
        )

    # --- topics -----------------------------------------------------------------------------------------------------

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic; waits for it like ``send``. Raises: TopicNotFoundError, TopicWaitTimeoutError."""
        self._slow_path.check_open()
        if not isinstance(topic, str):
            raise TypeError(f"a topic of type {type(topic).__name__}, expected a str")
        return list(range(self._metadata.get(topic, None, self.config.max_block_ms / 1000).partition_count))

    # --- transactions -----------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Replaces any producer with the same ``transactional_id``, and ends its open transaction.

        ``transaction`` calls it by itself. Raises: InvalidTransactionStateError, StorageError.
        """
        self._slow_path.check_open()
        with self._counters.transaction_call("init", self._clock):
            self._transactions.init()

    def begin_transaction(self) -> None:
        """Makes the following records part of a transaction. Raises: InvalidTransactionStateError,
        ProducerFencedError."""
        self._slow_path.check_open()
        with self._counters.transaction_call("begin", self._clock):
            self._transactions.begin()
            self._outbox.accumulator.is_paused = False

    def commit_transaction(self) -> None:
        """Writes all sent records and ends the transaction: on return every partition has committed it.

        If this raises, the transaction is unchanged, and the call may be repeated; after the loss of a record only
        ``abort_transaction`` remains. Raises: what a record failed with, InvalidTransactionStateError,
        ProducerFencedError, StorageError.
        """
        self._slow_path.check_open()
        self._refuse_in_callback("commit_transaction()")
        with self._counters.transaction_call("commit", self._clock):
            self._transactions.begin_end(commit=True)
            # A concurrent send is either in the transaction or refused.
            self._outbox.accumulator.is_paused = True
            self._outbox.drain(None)
            self._transactions.end(commit=True)

    def abort_transaction(self) -> None:
        """Ends the transaction: its written records are never read as committed; those not yet written fail.

        Raises: InvalidTransactionStateError, ProducerFencedError, StorageError.
        """
        self._slow_path.check_open()
        self._refuse_in_callback("abort_transaction()")
        self._transactions.begin_end(commit=False)
        self._background.abort()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Commits a consumer group's offsets with the transaction: the next offsets to read, by partition.

        Raises: InvalidTransactionStateError, ValueError, StorageError.
        """
        self._slow_path.check_open()
        with self._counters.transaction_call("send_offsets", self._clock):
            self._transactions.add_offsets(offsets, group)

    @block
    def transaction(self) -> Iterator[Self]:
        """``with producer.transaction():`` commits at the end of the block; aborts if the block raises.

        If the commit itself fails, as on a full disk, ``commit_transaction`` may be called again.
        """
        self.init_transactions()
        is_begun = False
        try:
            self.begin_transaction()
            is_begun = True
            yield self
            self.commit_transaction()
        except BaseException as error:
            # Ctrl-C may come just after the begin.
            if (is_begun or not isinstance(error, Exception)) and self._transactions.is_abortable and not self.closed:
                self.abort_transaction()
            raise

    # --- flush and close --------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Waits up to ``timeout`` seconds until every record sent before has arrived or failed.

        Raises: TimeoutError; DeliveryError for failed records whose deliveries the program has not examined;
        RuntimeError in a callback, where it would wait for itself.
        """
        self._life.check_fork()
        if timeout is not None and not isinstance(timeout, int | float):
            raise TypeError(f"timeout is {timeout!r:.80}, expected seconds, or None")
        self._refuse_in_callback("flush()")
        started = self._clock.monotonic()
        try:
            if not self._outbox.drain(timeout):
                raise TimeoutError(f"not all records were delivered within {timeout} s")
        finally:
            self._counters.flushed(self._clock.monotonic() - started)
        self._outbox.report_failures()

    def _refuse_in_callback(self, what: str) -> None:
        if self._sender.is_this_thread:
            raise RuntimeError(f"{what} in a callback of a delivery would wait for itself")

    def close(self, timeout: float | None = None) -> None:
        """Accepts no more records, and waits until all are delivered; the rest fails after ``timeout`` seconds.

        An open transaction is aborted. In a callback it does not wait. A second call does nothing, unless Ctrl-C ended
        the first: it continues.
        Raises: DeliveryError as ``flush``; ValueError for a negative ``timeout``.
        """
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"a timeout of {timeout} s, expected at least 0")
        if self._life.forked:
            self._life.closed = True
            return  # everything belongs to the parent
        if closed_elsewhere(lambda: self.close(timeout), self):
            return
        self._is_plain = False
        self._background.close(timeout)

    def undelivered(self) -> dict[str, int]:
        """How many records have no result yet, by partition."""
        return self._outbox.undelivered()

    def metrics(self) -> dict[str, float]:
        """Its counters and current values: see ``kstore.metrics.PRODUCER_METRICS``."""
        return producer_metrics(
            self._counters,
            self._outbox.pool,
            waiting_batches=len(self._outbox.accumulator.incomplete),
            metadata_wait_seconds=self._metadata.wait_seconds,
        )

    def topic_metrics(self) -> dict[str, dict[str, float]]:
        """Its counters by topic: see ``kstore.metrics.PRODUCER_TOPIC_METRICS``; without topics that were deleted."""
        return topic_metrics(self._counters, self._topics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except DeliveryError:
            # The block's own error comes first; the loss is in the log.
            if error is None:
                raise

    def __del__(self) -> None:
        background = getattr(self, "_background", None)  # None if its parts could not be made
        if background is None or background.is_ended or self._life.forked:
            return
        try:
            if not self.closed:  # else its close was interrupted
                warnings.warn(
                    f"unclosed {self!r}: it is closed now, and delivers what it has", ResourceWarning, stacklevel=2
                )
        finally:
            background.drop()


# --- forks ------------------------------------------------------------------------------------------------------------

_live: weakref.WeakSet[Producer] = weakref.WeakSet()


def _refuse_in_child() -> None:
    for producer in list(_live):
        # ``send`` then takes the slow path, which raises the error.
        producer._is_plain = False


os.register_at_fork(after_in_child=_refuse_in_child)
