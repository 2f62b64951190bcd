# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False
"""The work of every ``send``: a record goes into the open batch of its partition, and the caller gets a Delivery.

The fast path holds no lock. Between the look at the open batch and the last byte of the record it runs no Python code,
so with the interpreter's lock it is one step for every other thread: a batch is open, and accepts the record, or is
closed, and refuses it. Everything that could run foreign code (bytes-like values, allocations, which may start the
garbage collector) comes before that. Whatever the fast path cannot do is left to ``send_slowly``, in Python.

Signals are served between the byte codes of Python functions, never inside a compiled one that calls none. So steps
that a KeyboardInterrupt must not tear, such as changes of the memory's accounts, are compiled too.

A Delivery is only a batch and an index in it: the result of the batch is the result of the record. So there is no
future, event or lock per record, and no work per record when its batch is done.
"""

import os
import threading
import time
from _thread import TIMEOUT_MAX, allocate_lock
from collections import deque
from weakref import ref

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE, PyBytes_CheckExact
from libc.math cimport INFINITY
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

cimport cython

from kstore.engine.append._group cimport PendingBatches
from kstore.record._codec cimport BatchBuffer, OpenBatch, as_bytes, checked_headers, forbid_new, item, murmur2_of, named_tuple, put_crc, put_producer
from kstore.record._layout cimport HEADER_SIZE

from kstore.engine.append.pending import PendingAppend
from kstore.errors import ClosedError, DuplicateSequenceError, KstoreError, TopicNotFoundError
from kstore.files._locks import OwnedLock
from kstore.producer.records import RecordMetadata
from kstore.record._codec import EncodedBatch

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
    # Without an exception class: a number that does not fit becomes the nearest one that does.
    Py_ssize_t PyNumber_AsSsize_t(object, PyObject* error_class) except? -1
    object PySeqIter_New(object)
    bint PyList_CheckExact(object)
    bint PyTuple_CheckExact(object)
    Py_ssize_t PySequence_Fast_GET_SIZE(object)
    PyObject** PySequence_Fast_ITEMS(object)

cdef enum:
    # A batch's result: it is set once.
    PENDING = 0
    SUCCEEDED = 1
    FAILED = 2
    SPLIT = 3
    # An estimate of what a record without key and headers needs besides the value.
    RECORD_OVERHEAD = 12
    # The most that a batch with one record needs besides key and value: see ``accumulator.size_upper_bound``.
    RECORD_SIZE_MAX = HEADER_SIZE + 21 + 3 * 5
    # The index of a field of an EncodedBatch.
    ENCODED_SIZE = 2

assert EncodedBatch._fields[ENCODED_SIZE] == "size", EncodedBatch._fields
assert len(RecordMetadata._fields) == 6, RecordMetadata._fields


cdef inline int64_t wall_clock_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


# How often this process is a child of the one that has loaded this module, or of a child of it.
cdef int forks = 0


def _count_fork():
    global forks
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


cdef inline double monotonic_seconds() noexcept nogil:
    """As ``time.monotonic``."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <double>now.tv_sec + <double>now.tv_nsec * 1e-9


cdef inline int32_t size_of(object field) noexcept:
    return -1 if field is None else <int32_t>PyBytes_GET_SIZE(field)


include "_accumulate_memory.pxi"
include "_accumulate_batch.pxi"
include "_accumulate_delivery.pxi"


# --- queues -----------------------------------------------------------------------------------------------------------


@cython.final
cdef class DrainLock:
    """A lock for which no thread waits: ``with lock.attempt() as is_mine``. No interrupt leaves it held."""

    cdef readonly bint is_held

    def attempt(self):
        cdef DrainAttempt made = DrainAttempt.__new__(DrainAttempt)
        made.lock = self
        return made


@cython.final
cdef class DrainAttempt:
    cdef DrainLock lock
    cdef bint is_mine

    def __enter__(self):
        if not self.lock.is_held:
            self.is_mine = self.lock.is_held = True
        return self.is_mine

    def __exit__(self, *_):
        if self.is_mine:
            self.is_mine = self.lock.is_held = False


cdef class PartitionQueue:
    """The compiled part of a partition's queue: the batch that accepts records, or None."""

    cdef readonly str topic
    cdef readonly int32_t partition
    # The last batch of the queue while it accepts records.
    cdef public ProducerBatch open_batch
    # Held for moments, by a thread that opens, closes or takes batches.
    cdef readonly object lock
    # Closed batches, the oldest first: a deque. Guarded by ``lock``, as ``open_batch``.
    cdef readonly object closed
    # A retired queue accepts no more records.
    cdef public bint is_retired
    # A thread waits for its open batch.
    cdef public bint is_urgent
    # Not before this: monotonic, seconds.
    cdef public double retry_at

    def __init__(self, str topic not None, int32_t partition):
        self.topic = topic
        self.partition = partition
        self.lock = OwnedLock()
        self.closed = deque()

    @property
    def batch_count(self):
        return len(self.closed) + (self.open_batch is not None)

    cpdef close_open(self):
        """Closes the open batch, which then waits after the others. Needs the lock."""
        cdef ProducerBatch batch = self.open_batch
        if batch is not None:
            batch.close()
            # In this order an exception loses no batch: it is then in both places, and is found here again.
            if not self.closed or self.closed[len(self.closed) - 1] is not batch:
                self.closed.append(batch)
            self.open_batch = None


cdef class TopicQueues:
    """The queues of a topic, and the present partition of records without a key (Kafka: BuiltInPartitioner)."""

    cdef readonly str name
    # A PartitionQueue for each of its ``partition_count`` partitions.
    cdef readonly tuple queues
    cdef readonly Py_ssize_t partition_count
    cdef public Py_ssize_t sticky_partition
    # The bytes appended to it since it became the present one.
    cdef public int64_t sticky_bytes
    # Set if the fast path must leave records with a key, or those without one, to ``slow_path``.
    cdef readonly bint ignores_keys
    cdef readonly bint is_compacted
    # Whether its batches are neither compressed nor stamped.
    cdef public bint is_plain
    # Monotonic, seconds.
    cdef public double last_used

    def __init__(self, str name not None, queues, *, bint ignores_keys=False, bint is_compacted=False):
        cdef tuple kept = tuple(queues)
        cdef bint is_sound = len(kept) > 0
        for queue in kept:
            is_sound = is_sound and isinstance(queue, PartitionQueue)
        if not is_sound:
            raise TypeError(f"queues of {name} are {kept!r:.80}, expected a PartitionQueue for each partition")
        self.name = name
        self.queues = kept
        self.partition_count = len(kept)
        self.ignores_keys = ignores_keys
        self.is_compacted = is_compacted


cdef inline Py_ssize_t partition_of(TopicQueues queues, bytes key) noexcept:
    """The partition of a record with this key (Kafka: BuiltInPartitioner.partitionForKey)."""
    cdef int32_t number = murmur2_of(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & INT32_MAX
    return number % queues.partition_count if queues.partition_count else -1


cdef inline ProducerBatch accepting_batch(TopicQueues queues, Py_ssize_t number):
    """The open batch of partition ``number``; None without one, or without such a partition. Runs no Python code."""
    cdef ProducerBatch batch
    if not 0 <= number < queues.partition_count:
        return None
    batch = (<PartitionQueue>queues.queues[number]).open_batch
    return batch if batch is not None and batch.records is not None and batch.records.is_open else None


include "_accumulate_open.pxi"
include "_accumulate_counts.pxi"
include "_accumulate_write.pxi"


# --- the path of a send -----------------------------------------------------------------------------------------------


cdef class SendPath:
    """``send`` and ``send_many``; the rest is left to ``slow_path``: its ``send_next``, ``send_slowly``, ``opened`` and
    ``refused``.

    ``_is_plain``: a record needs no lookup and no call: no interceptors, serializers or partitioner, no transaction, not
    closed, not forked.
    """

    cdef dict topic_queues
    cdef object slow_path
    cdef public bint _is_plain
    # The bytes of one ``send_many`` that go into one batch, if that is more than a batch's size.
    cdef public Py_ssize_t _run_bytes_max
    # ``now_ms()``; None for the machine's clock.
    cdef object now_ms
    # Opens batches; None leaves that to ``slow_path``.
    cdef public BatchOpener _opener

    def __init__(self, dict topic_queues not None, slow_path not None, now_ms=None):
        self.topic_queues = topic_queues
        self.slow_path = slow_path
        self.now_ms = now_ms

    cdef int64_t time_ms(self) except? -1:
        return wall_clock_ms() if self.now_ms is None else self.now_ms()

    def send(
        self, topic, value=None, *, key=None, headers=None, timestamp=None, partition=None, on_delivery=None
    ):
        """Hands over one record; waits only for memory and, if the store is shared or ``max_block_ms`` is given, for a
        topic that does not exist yet.

        Args:
            topic: its name.
            value, key: bytes-like or None, or what the serializers take.
            headers: pairs of a str and bytes or None.
            timestamp: ms since the epoch; now by default.
            partition: a number; by default the key's hash decides, and without a key the batches go to each in turn.
            on_delivery: ``on_delivery(metadata, error)`` is called on the sender's thread, in the order of the sends.

        Returns a Delivery. A problem of the record (too large, no such topic, no memory within ``max_block_ms``) fails
        the Delivery.
        Raises: ClosedError, SerializationError, ForkedError, InvalidTransactionStateError, ProducerFencedError,
        TypeError, ValueError.
        """
        cdef Delivery delivery
        cdef TopicQueues queues
        cdef ProducerBatch batch
        cdef PyObject* found
        cdef Py_ssize_t number
        cdef Py_ssize_t size_before
        cdef int64_t now
        cdef tuple pairs = ()
        cdef object callback
        cdef bint is_sticky
        cdef int opened
        if (
            not self._is_plain
            or timestamp is not None
            or type(topic) is not str
            or (partition is not None and type(partition) is not int)
        ):
            return self.slow_path.send_slowly(topic, value, key, headers, timestamp, partition, on_delivery)
        if (value is not None and not PyBytes_CheckExact(value)) or (key is not None and not PyBytes_CheckExact(key)):
            try:
                value, key = as_bytes(value, "value"), as_bytes(key, "key")
            except TypeError:
                # The serializer "bytes" raises the error.
                return self.slow_path.send_slowly(topic, value, key, headers, timestamp, partition, on_delivery)
        if headers is not None:
            # Both ways to send read them, and an iterator can be read only once.
            headers = pairs = checked_headers(headers)
        number = -1 if partition is None else PyNumber_AsSsize_t(partition, NULL)
        now = self.time_ms()
        delivery = Delivery.__new__(Delivery)
        callback = None if on_delivery is None else (delivery, on_delivery)
        # From here to the end of the append no Python code runs.
        found = PyDict_GetItemWithError(self.topic_queues, topic)
        if found != NULL:
            queues = <TopicQueues>found
            if partition is None:
                if key is None:
                    number = -1 if queues.is_compacted else queues.sticky_partition
                elif queues.ignores_keys:
                    number = queues.sticky_partition
                else:
                    number = partition_of(queues, <bytes>key)
            elif key is None and queues.is_compacted:
                number = -1
            if 0 <= number < queues.partition_count:
                batch = accepting_batch(queues, number)
                if batch is not None:
                    size_before = batch.records.size
                    if append_with(batch, delivery, <bytes>value, <bytes>key, pairs, now, callback):
                        queues.sticky_bytes += batch.records.size - size_before
                        return delivery
                is_sticky = partition is None and (key is None or queues.ignores_keys)
                if batch is None and self._opener is not None and not pairs:
                    opened = self._opener.open(
                        queues, number, delivery, <bytes>value, <bytes>key, now, callback, is_sticky
                    )
                    if opened:
                        if opened == 2:
                            self.slow_path.opened(queues.queues[number])
                        return delivery
                next_one = self.slow_path.send_next(
                    queues, None if is_sticky else number, value, key, pairs, now, on_delivery
                )
                if next_one is not None:
                    return next_one
        return self.slow_path.send_slowly(topic, value, key, headers, timestamp, partition, on_delivery)

    def _send_plain_many(self, TopicQueues queues not None, values not None, keys, timestamps, headers, partition):
        """``send_many`` of checked arguments: lists or tuples of one length. When a batch is full it continues with
        ``send_slowly``. Raises: ValueError for a partition that the topic does not have; RuntimeError if a list has
        become shorter."""
        cdef Py_ssize_t count, number
        cdef Py_ssize_t i = 0
        cdef Deliveries deliveries
        cdef Delivery delivery
        # Without keys and other fields, all values that fit go in one run.
        cdef bint in_runs = keys is None and timestamps is None and headers is None and not queues.is_compacted
        cdef int64_t now = self.time_ms()
        number = -1 if partition is None else PyNumber_AsSsize_t(partition, NULL)
        if partition is not None and not 0 <= number < queues.partition_count:
            raise ValueError(f"partition {partition}, expected 0 to {queues.partition_count - 1}")
        for column in (values, keys, timestamps, headers):
            if column is not None and not isinstance(column, (list, tuple)):
                raise TypeError(f"a column of type {type(column).__name__}, expected a list or a tuple")
        count = PySequence_Fast_GET_SIZE(values)
        deliveries = Deliveries(count)
        while i < count:
            if in_runs:
                i = append_run(queues, deliveries, values, i, now, number)
                if i == count:
                    break
            try:
                delivery = self.send_one(
                    queues,
                    deliveries,
                    item(values, i, "values"),
                    None if keys is None else item(keys, i, "keys"),
                    None if timestamps is None else item(timestamps, i, "timestamps"),
                    None if headers is None else item(headers, i, "headers"),
                    partition,
                    number,
                    now,
                    bytes_of_run(values, i, self._run_bytes_max) if in_runs else 0,
                )
                if delivery is not None and self.now_ms is None:
                    now = wall_clock_ms()
            except (TypeError, ValueError) as error:
                # A problem of a record fails only that record; one of the producer fails the call.
                if isinstance(error, ClosedError):
                    raise
                delivery = self.slow_path.refused(queues.name, partition, error, None)
            if delivery is not None:
                deliveries.note_delivery(delivery)
            i += 1
        return deliveries

    cdef Delivery send_one(
        self,
        TopicQueues queues,
        Deliveries deliveries,
        value,
        key,
        timestamp,
        headers,
        partition,
        Py_ssize_t number,
        int64_t now,
        Py_ssize_t run_bytes,
    ):
        """Sends a record: noted in ``deliveries``, and None, or its delivery. ``number``: of ``partition``, or -1;
        ``run_bytes``: the bytes that follow it."""
        cdef Py_ssize_t size_before
        cdef ProducerBatch batch
        cdef OpenBatch records
        cdef Delivery delivery
        cdef bytes checked_value, checked_key
        cdef tuple pairs = () if headers is None else checked_headers(headers)
        cdef bint is_sticky = partition is None and (key is None or queues.ignores_keys)
        if (value is not None and not PyBytes_CheckExact(value)) or (key is not None and not PyBytes_CheckExact(key)):
            try:
                value, key = as_bytes(value, "value"), as_bytes(key, "key")
            except TypeError:
                return self.slow_path.send_slowly(queues.name, value, key, pairs, timestamp, partition, None)
        checked_value, checked_key = value, key
        if timestamp is None and not (checked_key is None and queues.is_compacted):
            if is_sticky:
                number = queues.sticky_partition
            elif partition is None:
                number = partition_of(queues, checked_key)
            batch = accepting_batch(queues, number)
            if batch is not None:
                records = batch.records
                size_before = records.size
                if records.append_checked(checked_value, checked_key, pairs, now, records.last_offset_delta + 1):
                    queues.sticky_bytes += records.size - size_before
                    deliveries.note(batch, records.record_count - 1)
                    return None
            delivery = self.slow_path.send_next(
                queues, None if is_sticky else number, checked_value, checked_key, pairs, now, None, run_bytes
            )
            if delivery is not None:
                return delivery
        return self.slow_path.send_slowly(queues.name, checked_value, checked_key, pairs, timestamp, partition, None)


cdef Py_ssize_t bytes_of_run(object values, Py_ssize_t start, Py_ssize_t size_max) except -1:
    """An estimate of the size of a batch with values[start:], at most ``size_max``."""
    cdef Py_ssize_t size = HEADER_SIZE
    cdef Py_ssize_t i
    for i in range(start, PySequence_Fast_GET_SIZE(values)):
        value = <object>PySequence_Fast_ITEMS(values)[i]
        if PyBytes_CheckExact(value):
            size += PyBytes_GET_SIZE(value)
        size += RECORD_OVERHEAD
        if size >= size_max:
            return size_max
    return size


cdef Py_ssize_t append_run(
    TopicQueues queues, Deliveries deliveries, object values, Py_ssize_t start, int64_t now, Py_ssize_t partition
) except -1:
    """Appends values[start:] to the open batch while they are bytes and fit; returns the index of the first that is not
    or does not. Runs no Python code."""
    cdef ProducerBatch batch = accepting_batch(queues, queues.sticky_partition if partition < 0 else partition)
    # Another thread may have made ``values`` longer since memory was reserved for the deliveries, or shorter than
    # ``start``.
    cdef Py_ssize_t count = min(PySequence_Fast_GET_SIZE(values), deliveries.capacity)
    cdef PyObject** items = PySequence_Fast_ITEMS(values)
    cdef Py_ssize_t i = start
    cdef Py_ssize_t size_before
    cdef OpenBatch records
    if batch is None:
        return start
    records = batch.records
    size_before = records.size
    while True:
        i = records.append_values(values, i, count, now)
        if i >= count or not (<object>items[i] is None or PyBytes_CheckExact(<object>items[i])):
            break
        # A null, or no space: the buffer may have to grow.
        if not records.append_checked(<bytes>items[i], None, (), now, records.last_offset_delta + 1):
            break
        i += 1
    queues.sticky_bytes += records.size - size_before
    if i > start:
        deliveries.note_run(batch, records.record_count - <int32_t>(i - start), i - start)
    return i


forbid_new(DrainAttempt)
forbid_new(Delivery)
