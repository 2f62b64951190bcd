"""``Producer`` for tasks: a send waits for memory and topics without stopping the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from kstore.aio.opening import made_by
from kstore.aio.sending import LoopProducer, NoRoomError
from kstore.aio.threads import Threads, in_thread, whole
from kstore.errors import ClosedError, DeliveryError, InvalidRecordError, SerializationError
from kstore.producer._accumulate import Deliveries, Delivery
from kstore.producer.producer import Producer as SyncProducer
from kstore.producer.records import GivenHeaders, RecordMetadata
from kstore.producer.waiting import arrived
from kstore.rules.arguments import as_columns

# The names in ``send_many``, and their names in ``send``.
Columns = Mapping[str, Sequence[Any] | None]
FIELDS: Final = {"keys": "key", "timestamps": "timestamp", "headers": "headers"}
# After this many records the other tasks get their turn on the loop.
CHUNK_RECORDS: Final = 5_000
# A generous estimate of a record's bytes besides key and value.
RECORD_BYTES: Final = 128


class Producer:
    """Sends records to the topics of an ``aio.Store``. Any task of one loop may use it; a thread of its own writes.

    ``async with store.producer() as producer:`` closes it after delivering everything.
    """

    @made_by("store.producer()")
    def __init__(self, producer: LoopProducer, threads: Threads) -> None:
        """See ``Store.producer``."""
        self.sync: SyncProducer = producer.sync
        self._loop_producer = producer
        self._threads = threads
        self._in_thread = threads.run
        # Tasks wait for memory in turn: a later one does not overtake.
        self._turn = asyncio.Lock()
        self._waiting_count = 0

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"

    @property
    def closed(self) -> bool:
        return self.sync.closed

    @property
    def client_id(self) -> str:
        return self.sync.client_id

    # --- send -------------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: GivenHeaders | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Hands over one record; waits only for memory and, like ``kstore.Producer.send``, for its topic.

        Awaiting the returned ``Delivery`` waits until the record has arrived. If cancelled, this call has sent nothing;
        a Delivery that no task awaits any more still arrives. Arguments and errors are those of
        ``kstore.Producer.send``.
        """
        try:
            return self._sent(topic, value, key, headers, timestamp, partition)
        except NoRoomError:
            pass
        return await self._send_later(topic, value, key, headers, timestamp, partition)

    def _sent(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: GivenHeaders | None,
        timestamp: int | datetime | None,
        partition: int | None,
    ) -> Delivery:
        """Hands over one record. Raises: NoRoomError if that would have to wait, and as ``send``."""
        producer = self._loop_producer
        if self._waiting_count or not producer.knows(topic, partition):
            producer.forget_intercepted()
            raise NoRoomError
        return self.sync.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)

    async def _send_later(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: GivenHeaders | None,
        timestamp: int | datetime | None,
        partition: int | None,
    ) -> Delivery:
        """``send`` of a record that ``_sent`` has not handed over."""
        producer = self._loop_producer
        intercepted = producer.intercepted
        error = await producer.topic(topic, partition)
        if error is not None:
            return producer.refuse(topic, partition, error)
        self._waiting_count += 1
        try:
            async with self._turn:
                deadline = asyncio.get_running_loop().time() + producer.max_block_seconds
                while True:
                    # Before the attempt: memory that is freed after it causes a wake-up.
                    freed = producer.freed()
                    try:
                        with producer.trying_again(intercepted):
                            return self.sync.send(
                                topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
                            )
                    except NoRoomError:
                        intercepted = producer.intercepted
                    if not await producer.room(freed, deadline):
                        return producer.refuse(topic, partition, producer.exhausted(_size(value, key)), intercepted)
        finally:
            self._waiting_count -= 1

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: GivenHeaders | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Sends one record, and returns its metadata once it has arrived. Raises: as ``send``, and the record's
        failure.

        If cancelled, a note of the CancelledError says whether the record was sent; to be certain, send and await in
        two steps.
        """
        delivery = None
        try:
            try:
                delivery = self._sent(topic, value, key, headers, timestamp, partition)
            except NoRoomError:
                pass
            if delivery is None:
                delivery = await self._send_later(topic, value, key, headers, timestamp, partition)
            # As ``await delivery``, without another two coroutines for each record.
            loop = asyncio.get_running_loop()
            while (future := delivery._arrival(loop)) is not None:
                await future
            return delivery.result(0)
        except asyncio.CancelledError as error:
            error.add_note("the record was not sent" if delivery is None else "the record was sent, and will arrive")
            raise

    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        timestamps: Iterable[int | datetime | None] | None = None,
        headers: Iterable[GivenHeaders | None] | None = None,
        partition: int | None = None,
    ) -> SentMany:
        """Hands over many records when it is awaited: parallel iterables of one length.

        If cancelled, it has sent the first ``len()`` of them, and none of the others.
        Raises: as ``kstore.Producer.send_many``.
        """
        values, keys, timestamps, headers = as_columns(values, keys, timestamps, headers)
        return SentMany(self, topic, values, {"keys": keys, "timestamps": timestamps, "headers": headers}, partition)

    def _send_at_once(
        self, topic: str, values: Sequence[Any], columns: Columns, partition: int | None
    ) -> Deliveries | None:
        """Hands over all of these records; returns None, and sends none of them, if that could wait."""
        producer = self._loop_producer
        if self._waiting_count or not producer.knows(topic, partition) or not producer.is_simple(topic):
            return None
        size = _size_of(values, columns)
        if size is None or not producer.has_room(producer.room_max(topic, size)):
            return None
        return producer.send_at_once(topic, values, columns, partition)

    async def _send_one(self, topic: str, value: Any, fields: dict[str, Any], partition: int | None) -> Delivery:
        try:
            return await self.send(topic, value, partition=partition, **fields)
        except (SerializationError, InvalidRecordError, TypeError, ValueError) as error:
            if isinstance(error, ClosedError):
                raise
            # One record's error does not affect the others.
            return self._loop_producer.refuse_one(topic, partition, error)

    # --- flush and close --------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Waits until everything sent before has arrived or failed. If cancelled, only the wait ends.

        Raises: DeliveryError for failed records whose deliveries the program has not examined.
        """
        await self._loop_producer.flushed()

    async def close(self, timeout: float | None = None) -> None:
        """Waits until every record is delivered; records not delivered within ``timeout`` seconds fail.

        See ``kstore.Producer.close``. If cancelled, it runs to its end. A second call does nothing.
        Raises: DeliveryError, ValueError.
        """
        if self._threads.forked:
            self.sync.close()  # all of it is the parent's
        if not self.sync.closed:
            await whole(self._close(timeout))

    async def _close(self, timeout: float | None) -> None:
        try:
            if timeout is None and not self.in_transaction:
                # No thread waits for the records.
                await self._loop_producer.drained()
        finally:
            await self._in_thread(partial(self.sync.close, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except DeliveryError:
            # The block's exception comes first; the loss is in the log.
            if error is None:
                raise

    # --- transactions -----------------------------------------------------------------------------------------------

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was started and not ended."""
        return self._loop_producer.in_transaction

    init_transactions = in_thread(SyncProducer.init_transactions)
    begin_transaction = in_thread(SyncProducer.begin_transaction)

    async def commit_transaction(self) -> None:
        """Writes all sent records and ends the transaction. If cancelled, it runs to its end.

        Raises: as ``kstore.Producer.commit_transaction``.
        """
        self._threads.check_fork()
        await whole(self._commit())

    async def _commit(self) -> None:
        await self._in_thread(self._loop_producer.begin_commit)
        # No thread waits for the records.
        await self._loop_producer.drained()
        await self._in_thread(self._loop_producer.end_commit)

    abort_transaction = in_thread(SyncProducer.abort_transaction)
    send_offsets = in_thread(SyncProducer.send_offsets)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """``async with producer.transaction():`` commits at its end; aborts if the block raises, or is cancelled.

        If cancelled while it commits, it has committed. If the commit itself fails, ``commit_transaction`` may be
        called again.
        """
        is_begun = False

        def begin() -> None:
            nonlocal is_begun
            self.sync.begin_transaction()
            is_begun = True

        await self.init_transactions()
        try:
            # A cancel during the start does not undo it.
            await self._in_thread(begin)
            yield self
            await self.commit_transaction()
        except BaseException:
            if is_begun and self._loop_producer.is_abortable and not self.closed:
                await self.abort_transaction()
            raise

    # --- information ------------------------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic; waits for it like ``send``. Raises: TopicNotFoundError, TopicWaitTimeoutError."""
        producer = self._loop_producer
        if not producer.knows(topic, None) and (error := await producer.topic(topic, None)) is not None:
            raise error
        return self.sync.partitions_for(topic)

    def metrics(self) -> dict[str, float]:
        """See ``kstore.Producer.metrics``."""
        return self.sync.metrics()


class SentMany:
    """The records of one ``send_many``: awaiting it hands them over. A sequence of those handed over so far."""

    @made_by("producer.send_many(topic, values)")
    def __init__(
        self,
        producer: Producer,
        topic: str,
        values: Sequence[Any],
        columns: Columns,
        partition: int | None,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._values = values
        self._columns = columns
        self._partition = partition
        self._parts: list[Deliveries] = []
        self._count = 0

    def __len__(self) -> int:
        """How many were handed over, counted from the first."""
        return self._count

    def __repr__(self) -> str:
        return f"SentMany({self._count} of {len(self._values)} records handed over)"

    def __await__(self) -> Generator[Any, None, Self]:
        return self._sent().__await__()

    async def _sent(self) -> Self:
        producer, topic, partition = self._producer, self._topic, self._partition
        while self._count < len(self._values):
            chunk = slice(self._count, self._count + CHUNK_RECORDS)
            values = self._values[chunk]
            columns = {name: None if column is None else column[chunk] for name, column in self._columns.items()}
            part = producer._send_at_once(topic, values, columns, partition)
            if part is not None:
                self._add(part)
            else:
                await self._send_singly(values, columns)
            await asyncio.sleep(0)
        return self

    async def _send_singly(self, values: Sequence[Any], columns: Columns) -> None:
        sent: list[Delivery] = []
        given = [(FIELDS[name], column) for name, column in columns.items() if column is not None]
        try:
            for number, value in enumerate(values):
                fields = {field: column[number] for field, column in given}
                sent.append(await self._producer._send_one(self._topic, value, fields, self._partition))
        finally:
            self._add(Deliveries.of(sent))

    def _add(self, part: Deliveries) -> None:
        self._parts.append(part)
        self._count += len(part)

    async def errors(self) -> dict[int, Exception]:
        """The failures, by index; waits for all that were handed over."""
        found: dict[int, Exception] = {}
        first = 0
        for part in self._parts:
            await _arrived(part)
            found.update((first + index, error) for index, error in part.errors(0).items())
            first += len(part)
        return found

    async def result(self) -> list[int]:
        """The offsets of all that were handed over, in order; waits for them. Raises: the first one's failure."""
        for error in (await self.errors()).values():
            raise error.with_traceback(None)
        return [offset for part in self._parts for offset in part.result(0)]


async def _arrived(part: Deliveries) -> None:
    for delivery in part._one_a_batch():
        await arrived(delivery)


def _size_of(values: Sequence[Any], columns: Columns) -> int | None:
    """A generous estimate of these records' bytes; None if there is no simple one."""
    if columns["headers"] is not None:
        return None
    try:
        keys = columns["keys"] or ()
        return sum(map(_len, values)) + sum(map(_len, keys)) + RECORD_BYTES * len(values)
    except TypeError:
        return None


def _len(field: Any) -> int:
    return 0 if field is None else len(field)


def _size(value: Any, key: Any) -> int:
    """The approximate size, for the error message."""
    return sum(len(field) for field in (value, key) if isinstance(field, (bytes, bytearray, memoryview)))
