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

import threading
import time

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE, PyBytes_CheckExact
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

cimport cython

from kstore.record._codec cimport BatchBuffer, OpenBatch, as_bytes, checked_headers, murmur2_of

from kstore.errors import ClosedError
from kstore.producer.records import RecordMetadata
from kstore.record._codec import EncodedBatch

__all__ = ["Account", "Deliveries", "Delivery", "DrainLock", "Failures", "Loan", "PartitionQueue", "ProducerBatch", "SendPath", "TopicQueues", "calling", "checked_record_headers"]

cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
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
    # Estimates of what a batch, and a record in it without key and headers, need besides the value.
    BATCH_OVERHEAD = 61
    RECORD_OVERHEAD = 12


cdef inline int64_t wall_clock_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef inline int32_t size_of(object field) noexcept:
    return -1 if field is None else <int32_t>PyBytes_GET_SIZE(field)


def checked_record_headers(given):
    """Headers as a tuple of pairs, checked. Raises: TypeError, InvalidRecordError."""
    return checked_headers(given)


# --- memory -----------------------------------------------------------------------------------------------------------


@cython.final
cdef class Account:
    """The bytes that a pool may still lend. Each change is one call, so that no interrupt tears it."""

    cdef readonly int64_t available

    def __init__(self, int64_t available):
        self.available = available


@cython.final
@cython.no_gc
cdef class Loan:
    """Bytes out of an account: ``wanted`` of them, all or nothing; ``taken`` so far.

    A loan repays itself when nothing refers to it any more, so an interrupt between the loan and its owner loses no
    memory.
    """

    cdef readonly Account account
    cdef readonly int64_t wanted
    cdef readonly int64_t taken

    def __init__(self, Account account not None, int64_t wanted):
        self.account = account
        self.wanted = wanted

    def __dealloc__(self):
        if self.account is not None:
            self.account.available += self.taken

    def take(self):
        """Takes the bytes; False if too few are available. Does nothing if it has them."""
        if not self.taken:
            if self.account.available < self.wanted:
                return False
            self.account.available -= self.wanted
            self.taken = self.wanted
        return True

    def repay(self):
        """Returns the bytes; a second call does nothing."""
        self.account.available += self.taken
        self.taken = 0


@cython.final
cdef class Failures:
    """Failed deliveries that the program has not examined. Thread-safe under the GIL."""

    cdef int64_t count
    cdef object first

    def add(self, int64_t count, error not None):
        """Counts ``count`` records that failed with ``error`` and have no callback that was called."""
        if count > 0:
            self.count += count
            if self.first is None:
                self.first = error

    def seen(self):
        """Notes that one of them was examined."""
        if self.count:
            self.count -= 1
            if not self.count:
                self.first = None

    def take(self):
        """Returns the count and the first error, and resets both; None if nothing failed."""
        cdef int64_t count = self.count
        cdef object first = self.first
        if first is None:
            return None
        found = (count, first)
        self.count, self.first = 0, None
        return found


# --- batches ----------------------------------------------------------------------------------------------------------


cdef class ProducerBatch:
    """Records in memory for one partition, and their outcome.

    It accepts records while it ``is_open``. Its result is set once: ``succeed``, ``fail`` or ``split``; ``release``
    then wakes the waiting threads. Records of a split batch are in its ``children``. Thread-safe under the GIL.
    """

    cdef OpenBatch records
    # Made by the first thread that waits.
    cdef object released_event
    cdef int state
    cdef readonly bint is_released
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int64_t base_offset
    # The append time of a log that stamps its records, else -1.
    cdef readonly int64_t append_time_ms
    cdef readonly object error
    # By index in the batch, if the records' errors differ.
    cdef readonly dict record_errors
    cdef readonly list children
    # Pairs of a delivery and the function that is called with its result.
    cdef readonly list callbacks
    # Where unexamined failures are counted; None once they were reported.
    cdef public object failures
    # Called when a thread waits: ``hurry(batch)``.
    cdef readonly object hurry
    # Monotonic, seconds.
    cdef readonly double created_at
    cdef public object buffer
    cdef public object pool_size
    cdef public object encoded
    # The compressed records, kept until they have replaced the others.
    cdef public object compressed
    cdef public int64_t producer_id
    cdef public int32_t producer_epoch
    cdef public int32_t base_sequence
    cdef public int32_t attempts
    cdef public bint is_transactional
    cdef bint is_aborted
    cdef list awaited

    def __init__(
        self,
        str topic not None,
        int32_t partition,
        BatchBuffer buffer,
        int64_t size_max,
        double created_at,
        failures=None,
        hurry=None,
        pool_size=0,
    ):
        """``size_max``: the largest size before compression, header included, bytes; ``buffer`` None: no records."""
        self.topic = topic
        self.partition = partition
        self.buffer = buffer
        self.records = None if buffer is None else OpenBatch(buffer, size_max)
        self.created_at = created_at
        self.failures = failures
        self.hurry = hurry
        self.pool_size = pool_size
        self.callbacks = []
        self.base_offset = -1
        self.append_time_ms = -1
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1

    @property
    def is_open(self):
        return self.records is not None and self.records.is_open

    @property
    def record_count(self):
        return 0 if self.records is None else self.records.record_count

    @property
    def size(self):
        """Bytes so far, header included, before compression."""
        return 0 if self.records is None else self.records.size

    @property
    def is_done(self):
        """Whether its result is set."""
        return self.state != PENDING

    @property
    def has_room(self):
        """Whether it is open, and has space for a record without key and value."""
        return self.is_open and self.records.size_max - self.records.size > 8

    def close(self):
        """Accepts no more records; ``encoded`` is then its content. Does nothing if it is closed.

        After an interrupt a second call finishes this: the EncodedBatch is made by Python code.
        """
        cdef OpenBatch records = self.records
        if records is None or self.is_aborted or self.encoded is not None:
            return
        if records.is_open:
            self.encoded = records.close()
        else:
            self.encoded = EncodedBatch(
                -1,
                records.position,
                records.size,
                records.record_count,
                records.base_timestamp,
                records.max_timestamp,
                records.max_timestamp_delta_offset,
            )

    def abort(self):
        """Accepts no more records, and returns its buffer to the earlier state."""
        if self.records is not None:
            self.is_aborted = True
            self.records.abort()

    def take_buffer(self):
        """Hands over its buffer; None if it has none. It must be closed."""
        buffer, self.buffer = self.buffer, None
        if self.records is not None and not self.records.is_open:
            self.records.buffer = None
        return buffer

    def succeed(self, int64_t base_offset, int64_t append_time_ms=-1):
        """Sets the result; False if it was set before."""
        if self.state != PENDING:
            return False
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self.state = SUCCEEDED
        return True

    def fail(self, error not None, dict record_errors=None):
        """Sets the result; False if it was set before."""
        cdef int64_t told = 0
        if self.failures is not None:
            # First, since it may run Python code: an interrupt there leaves the batch without a result.
            for _, callback in self.callbacks:
                told += not is_bystander(callback)
        if self.state != PENDING:
            return False
        self.error = error
        self.record_errors = record_errors
        self.state = FAILED
        if self.failures is not None:
            self.failures.add(self.record_count - told, error)
        return True

    def split(self, list children not None):
        """Moves its records, with their callbacks, to ``children``, pairs of the first index and a batch; False if it
        has a result. In one step, which no interrupt splits."""
        cdef list callbacks = self.callbacks
        cdef list none = []
        cdef Delivery delivery
        cdef ProducerBatch owner
        cdef tuple pair
        cdef int32_t index
        if self.state != PENDING:
            return False
        self.children = children
        self.callbacks = none
        self.state = SPLIT
        for pair in callbacks:
            delivery = pair[0]
            index = delivery.index
            owner = self.owner_of(&index)
            owner.callbacks.append(pair)
        return True

    def release(self):
        """Wakes the waiting threads; called after the callbacks. After an interrupt a second call finishes this.

        Returns the waiters that ``tell`` has noted, until they were ``woken``, or None.
        """
        self.is_released = True
        if self.released_event is not None:
            self.released_event.set()
        return self.awaited

    def woken(self):
        """Notes that the waiters returned by ``release`` need not be woken again."""
        self.awaited = None

    def tell(self, waiter not None):
        """Adds ``waiter`` to those that ``release`` returns; False if the batch was released."""
        cdef list first = [waiter]
        if self.is_released:
            return False
        if self.awaited is None:
            self.awaited = first
        else:
            self.awaited.append(waiter)
        return True

    def wait(self, timeout=None):
        """Waits until it is released, at most ``timeout`` seconds; returns whether it was. For a split batch: its
        children."""
        if not self.is_released:
            if self.released_event is None:
                event = threading.Event()
                if self.released_event is None:
                    self.released_event = event
            # It may have been released while the event was created.
            if not self.is_released and not self.released_event.wait(timeout):
                return False
        return True

    cdef ProducerBatch owner_of(self, int32_t* index):
        """The batch that now holds record ``index``; ``index`` becomes the one in that batch."""
        cdef ProducerBatch batch = self
        cdef Py_ssize_t at
        while batch.state == SPLIT:
            at = len(batch.children) - 1
            while at > 0 and batch.children[at][0] > index[0]:
                at -= 1
            index[0] -= <int32_t>batch.children[at][0]
            batch = batch.children[at][1]
        return batch

    def append(self, value, key=None, headers=(), int64_t timestamp=-1, on_delivery=None):
        """Appends a record; returns its Delivery, or None if the batch is closed or has no space."""
        cdef bytes checked_value = as_bytes(value, "value")
        cdef bytes checked_key = as_bytes(key, "key")
        cdef tuple pairs = checked_headers(headers)
        cdef Delivery delivery = Delivery.__new__(Delivery)
        cdef object callback = None if on_delivery is None else (delivery, on_delivery)
        if self.records is None or not self.records.is_open:
            return None
        if not append_to(self, delivery, checked_value, checked_key, pairs, timestamp):
            return None
        if callback is not None:
            self.callbacks.append(callback)
        return delivery


cdef inline bint append_to(
    ProducerBatch batch, Delivery delivery, bytes value, bytes key, tuple headers, int64_t timestamp
) except -1:
    """Appends a checked record to an open batch; returns whether it fit. Runs no Python code."""
    cdef OpenBatch records = batch.records
    cdef int32_t index = records.record_count
    if not records.append_checked(value, key, headers, timestamp, records.last_offset_delta + 1):
        return False
    delivery.batch = batch
    delivery.index = index
    delivery.create_time_ms = timestamp
    delivery.key_size = size_of(key)
    delivery.value_size = size_of(value)
    return True


# --- deliveries -------------------------------------------------------------------------------------------------------


@cython.final
@cython.no_gc  # one per record: a header for the collector would cost more than all else. A batch never holds one alone
@cython.freelist(4096)
cdef class Delivery:
    """The outcome of one record: whether it has arrived, where, or why not. Thread-safe; cheap to keep.

    ``result()`` waits, and sends the record at once. ``await delivery`` does the same in asyncio.
    """

    cdef ProducerBatch batch
    cdef int32_t index
    cdef int32_t key_size
    cdef int32_t value_size
    cdef bint is_seen
    cdef int64_t create_time_ms

    @staticmethod
    def failed(str topic not None, int32_t partition, error not None, failures=None):
        """A delivery that failed before its record was in a batch; counted in ``failures``."""
        cdef ProducerBatch batch = ProducerBatch(topic, partition, None, 0, 0.0, failures)
        cdef Delivery delivery = Delivery.__new__(Delivery)
        delivery.batch = batch
        delivery.create_time_ms = delivery.key_size = delivery.value_size = -1
        batch.fail(error)
        if failures is not None:
            failures.add(1, error)
        batch.release()
        return delivery

    cdef ProducerBatch settled(self):
        """The batch with the record's result."""
        if self.batch.state == SPLIT:
            self.batch = self.batch.owner_of(&self.index)
        return self.batch

    @property
    def topic(self):
        return self.batch.topic

    @property
    def partition(self):
        return self.batch.partition

    @property
    def offset(self):
        """The record's offset, -1 while it is unknown. Does not wait."""
        cdef ProducerBatch batch = self.settled()
        return batch.base_offset + self.index if batch.base_offset >= 0 else -1

    def done(self):
        """Whether the record has arrived or failed, and its callbacks have run."""
        return self.settled().is_released

    def result(self, timeout=None):
        """The position of the record, a ``RecordMetadata``; waits for it, at most ``timeout`` seconds.

        Raises: TimeoutError, and the record's error.
        """
        error = self.exception(timeout)
        if error is not None:
            # It is raised once for each record of its batch, so it must not collect the frames of all its callers.
            raise error.with_traceback(None)
        return self.metadata()

    def exception(self, timeout=None):
        """The record's error, or None; waits like ``result``. Raises: TimeoutError."""
        return self.seen_error(self.arrived(timeout))

    cdef ProducerBatch arrived(self, timeout):
        """The batch with the record's result, once it exists. Raises: TimeoutError."""
        cdef ProducerBatch batch = self.settled()
        cdef object deadline = None
        cdef object seconds = None
        while not batch.is_released:
            # In a callback of its batch the result is known: waiting for it there would never end.
            if in_callback():
                if batch.state == PENDING:
                    raise RuntimeError("result() in a callback of a delivery would wait for itself")
                if batch.state != SPLIT:
                    break
            if batch.hurry is not None:
                batch.hurry(batch)
            if timeout is not None:
                if deadline is None:
                    deadline = time.monotonic() + timeout
                seconds = max(deadline - time.monotonic(), 0.0)
            if not batch.is_released and not batch.wait(seconds):
                raise TimeoutError(f"no result for a record of {batch.topic}-{batch.partition} after {timeout} s")
            batch = self.settled()
        return batch

    cdef object seen_error(self, ProducerBatch batch):
        if batch.state != FAILED:
            return None
        if not self.is_seen:
            self.is_seen = True
            if batch.failures is not None:
                batch.failures.seen()
        if batch.record_errors is not None:
            return batch.record_errors.get(self.index, batch.error)
        return batch.error

    def metadata(self):
        """What is known now: offset and partition are -1 while unknown."""
        cdef ProducerBatch batch = self.settled()
        cdef int64_t timestamp = self.create_time_ms if batch.append_time_ms < 0 else batch.append_time_ms
        return RecordMetadata(batch.topic, batch.partition, self.offset, timestamp, self.key_size, self.value_size)

    def add_callback(self, callback):
        """Calls ``callback(metadata, error)`` when the record has arrived or failed: on the sender's thread, or at once
        if that has happened. Its exceptions are logged."""
        cdef ProducerBatch batch = self.settled()
        cdef object pair = (self, callback)
        if batch.state == PENDING:
            batch.callbacks.append(pair)
            return
        run_callback(self, callback, batch)

    def call(self, callback):
        """Runs one callback of ``ProducerBatch.callbacks``; the caller handles its exceptions."""
        run_callback(self, callback, self.settled())

    def __await__(self):
        from kstore.producer.waiting import awaited

        return awaited(self).__await__()

    def _batch(self):
        return self.settled()

    def _seen_error(self):
        return self.seen_error(self.settled())

    def __repr__(self):
        cdef ProducerBatch batch = self.settled()
        cdef str state = ("pending", "delivered", "failed", "pending")[batch.state]
        return f"Delivery({batch.topic!r}, {batch.partition}, offset={self.offset}, {state})"


cdef bint is_bystander(object callback):
    """Whether the callback does not belong to the record's sender, who must then still learn of a failure."""
    return getattr(callback, "is_bystander", False)


cdef object run_callback(Delivery delivery, object callback, ProducerBatch batch):
    cdef bint is_seen = delivery.is_seen
    cdef object error
    if batch.state == FAILED:
        # A failure that a callback receives was never counted as unexamined.
        delivery.is_seen = True
    error = delivery.seen_error(batch)
    if is_bystander(callback):
        delivery.is_seen = is_seen
    callback(delivery.metadata(), error)


_calling = threading.local()


cdef bint in_callback() except -1:
    return getattr(_calling, "depth", 0) > 0


class calling:
    """Entered while callbacks run: a wait for a batch with a result must not wait for its release then."""

    def __enter__(self):
        _calling.depth = getattr(_calling, "depth", 0) + 1

    def __exit__(self, *_):
        _calling.depth -= 1


@cython.final
cdef class Deliveries:
    """The deliveries of one ``send_many``, by the records' indexes: a sequence that makes each Delivery on request.

    ``result(timeout)`` waits for all. Thread-safe.
    """

    cdef list batches
    cdef int32_t* at  # of each record: its batch, its index there
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    # Existing deliveries, by index: those of records that were in no batch, and those that were requested.
    cdef dict others

    def __cinit__(self, Py_ssize_t capacity=0):
        self.batches = []
        self.others = {}
        self.capacity = capacity
        self.at = <int32_t*>PyMem_RawMalloc(max(capacity, 1) * 2 * sizeof(int32_t))
        if self.at == NULL:
            raise MemoryError(f"no memory for the deliveries of {capacity} records")

    def __dealloc__(self):
        PyMem_RawFree(self.at)

    @staticmethod
    def of(list deliveries not None):
        """The sequence of existing deliveries."""
        cdef Deliveries self = Deliveries(len(deliveries))
        for delivery in deliveries:
            self.note_delivery(delivery)
        return self

    cdef int note(self, ProducerBatch batch, int32_t index) except -1:
        cdef Py_ssize_t last = len(self.batches) - 1
        if last < 0 or self.batches[last] is not batch:
            self.batches.append(batch)
            last += 1
        self.at[2 * self.count] = <int32_t>last
        self.at[2 * self.count + 1] = index
        self.count += 1
        return 0

    cdef int note_run(self, ProducerBatch batch, int32_t first, Py_ssize_t count) except -1:
        cdef Py_ssize_t i
        self.note(batch, first)
        for i in range(1, count):
            self.at[2 * self.count] = self.at[2 * self.count - 2]
            self.at[2 * self.count + 1] = first + <int32_t>i
            self.count += 1
        return 0

    cdef int note_delivery(self, Delivery delivery) except -1:
        self.others[self.count] = delivery
        self.at[2 * self.count] = -1
        self.count += 1
        return 0

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t index):
        cdef Delivery delivery
        if index < 0:
            index += self.count
        if not 0 <= index < self.count:
            raise IndexError(f"delivery {index} of {self.count}")
        delivery = self.delivery_of(index)
        if delivery.batch.state != SUCCEEDED:
            # It knows whether its failure was examined, so there must be only one.
            self.others[index] = delivery
            self.at[2 * index] = -1
        return delivery

    cdef Delivery delivery_of(self, Py_ssize_t index):
        cdef Delivery delivery
        if self.at[2 * index] < 0:
            return self.others[index]
        delivery = Delivery.__new__(Delivery)
        delivery.batch = self.batches[self.at[2 * index]]
        delivery.index = self.at[2 * index + 1]
        delivery.create_time_ms = delivery.key_size = delivery.value_size = -1
        return delivery

    def __iter__(self):
        return (self[index] for index in range(self.count))

    def done(self):
        """Whether every record has arrived or failed."""
        return all(delivery.done() for delivery in self._one_a_batch())

    def errors(self, timeout=None):
        """The errors, by index; waits for all records, ``timeout`` seconds for each batch. Raises: TimeoutError."""
        cdef Delivery delivery
        found = {}
        for delivery in self._one_a_batch():
            # Only waits: each failure is examined once, below.
            delivery.arrived(timeout)
        for index in range(self.count):
            if self.at[2 * index] < 0 or (<ProducerBatch>self.batches[self.at[2 * index]]).state in (FAILED, SPLIT):
                error = self[index].exception(timeout)
                if error is not None:
                    found[index] = error
        return found

    def result(self, timeout=None):
        """The offsets of all records, in order; waits for them. Raises: TimeoutError, and the first record's error."""
        errors = self.errors(timeout)
        for error in errors.values():
            raise error.with_traceback(None)
        return [self[index].offset for index in range(self.count)]

    def _one_a_batch(self):
        cdef int32_t last = -1
        for index in range(self.count):
            if self.at[2 * index] < 0 or self.at[2 * index] > last:
                last = max(last, self.at[2 * index])
                yield self.delivery_of(index)


# --- queues -----------------------------------------------------------------------------------------------------------


@cython.final
cdef class DrainLock:
    """A lock for which no thread waits: ``with lock.attempt() as is_mine``. No interrupt leaves it held."""

    cdef readonly bint is_held

    def attempt(self):
        cdef Attempt made = Attempt.__new__(Attempt)
        made.lock = self
        return made


@cython.final
cdef class Attempt:
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

    def __init__(self, str topic not None, int32_t partition):
        self.topic = topic
        self.partition = partition


cdef class TopicQueues:
    """The queues of a topic, and the present partition of records without a key (Kafka: BuiltInPartitioner)."""

    cdef readonly str name
    cdef readonly list queues
    cdef readonly Py_ssize_t partition_count
    cdef public Py_ssize_t sticky_partition
    # The bytes appended to it since it became the present one.
    cdef public int64_t sticky_bytes
    # Set if the fast path must leave records with a key, or those without one, to ``slow_path``.
    cdef readonly bint ignores_keys
    cdef readonly bint is_compacted

    def __init__(self, str name not None, list queues not None, *, bint ignores_keys=False, bint is_compacted=False):
        self.name = name
        self.queues = queues
        self.partition_count = len(queues)
        self.ignores_keys = ignores_keys
        self.is_compacted = is_compacted


# --- the path of a send -----------------------------------------------------------------------------------------------


cdef class SendPath:
    """``send`` and ``send_many``; the rest is left to ``slow_path``: its ``send_next``, ``send_slowly`` and
    ``refused``.

    ``is_plain``: a record needs no lookup and no call: no interceptors, serializers or partitioner, no transaction, not
    closed, not forked.
    """

    cdef dict topic_queues
    cdef object slow_path
    cdef public bint is_plain
    # The bytes of one ``send_many`` that go into one batch, if that is more than a batch's size.
    cdef public Py_ssize_t run_bytes_max
    # ``now_ms()``; None for the machine's clock.
    cdef object now_ms

    def __init__(self, dict topic_queues not None, slow_path not None, now_ms=None):
        self.topic_queues = topic_queues
        self.slow_path = slow_path
        self.now_ms = now_ms

    cdef int64_t time_ms(self) except -1:
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
        if not self.is_plain or timestamp is not None or type(topic) is not str:
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
        number = -1 if partition is None else partition
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
                    number = (
                        murmur2_of(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & INT32_MAX
                    ) % queues.partition_count
            elif key is None and queues.is_compacted:
                number = -1
            if 0 <= number < queues.partition_count:
                batch = (<PartitionQueue>queues.queues[number]).open_batch
                if batch is not None and batch.records.is_open:
                    size_before = batch.records.size
                    if append_to(batch, delivery, <bytes>value, <bytes>key, pairs, now):
                        queues.sticky_bytes += batch.records.size - size_before
                        if callback is not None:
                            batch.callbacks.append(callback)
                        return delivery
                is_sticky = partition is None and (key is None or queues.ignores_keys)
                next_one = self.slow_path.send_next(
                    queues, None if is_sticky else number, value, key, pairs, now, on_delivery
                )
                if next_one is not None:
                    return next_one
        return self.slow_path.send_slowly(topic, value, key, headers, timestamp, partition, on_delivery)

    def _send_plain_many(self, TopicQueues queues not None, values, keys, timestamps, headers, partition):
        """``send_many`` of checked arguments: lists or tuples of one length. When a batch is full it continues with
        ``send_slowly``."""
        cdef Py_ssize_t count = len(values)
        cdef Py_ssize_t i = 0
        cdef Deliveries deliveries = Deliveries(count)
        cdef Delivery delivery
        # Without keys and other fields, all values that fit go in one run.
        cdef bint in_runs = keys is None and timestamps is None and headers is None and not queues.is_compacted
        cdef int64_t now = self.time_ms()
        while i < count:
            if in_runs:
                i = append_run(queues, deliveries, values, i, now, -1 if partition is None else partition)
                if i == count:
                    break
            try:
                delivery = self.send_one(
                    queues,
                    deliveries,
                    values[i],
                    None if keys is None else keys[i],
                    None if timestamps is None else timestamps[i],
                    None if headers is None else headers[i],
                    partition,
                    now,
                    bytes_of_run(values, i, self.run_bytes_max) if in_runs else 0,
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
        int64_t now,
        Py_ssize_t run_bytes,
    ):
        """Sends a record: noted in ``deliveries``, and None, or its delivery. ``run_bytes``: the bytes that follow
        it."""
        cdef Py_ssize_t number, size_before
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
            elif partition is not None:
                number = partition
            else:
                number = (
                    murmur2_of(<const uint8_t*>PyBytes_AS_STRING(checked_key), PyBytes_GET_SIZE(checked_key))
                    & INT32_MAX
                ) % queues.partition_count
            batch = (<PartitionQueue>queues.queues[number]).open_batch
            if batch is not None and batch.records.is_open:
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
    cdef Py_ssize_t size = BATCH_OVERHEAD
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
    cdef Py_ssize_t number = queues.sticky_partition if partition < 0 else partition
    cdef ProducerBatch batch = (<PartitionQueue>queues.queues[number]).open_batch
    # Another thread may have made ``values`` longer since memory was reserved for the deliveries.
    cdef Py_ssize_t count = min(PySequence_Fast_GET_SIZE(values), deliveries.capacity)
    cdef PyObject** items = PySequence_Fast_ITEMS(values)
    cdef Py_ssize_t i = start
    cdef Py_ssize_t size_before
    cdef OpenBatch records
    if batch is None or not batch.records.is_open:
        return start
    records = batch.records
    size_before = records.size
    while i < count and (<object>items[i] is None or PyBytes_CheckExact(<object>items[i])):
        if not records.append_checked(<bytes>items[i], None, (), now, records.last_offset_delta + 1):
            break
        i += 1
    queues.sticky_bytes += records.size - size_before
    if i > start:
        deliveries.note_run(batch, records.record_count - <int32_t>(i - start), i - start)
    return i
