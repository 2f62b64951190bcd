"""A batch: open for records, closed, then done. Part of _accumulate.pyx."""


cdef class ProducerBatch:
    """Records in memory for one partition, and their outcome.

    It accepts records while it ``is_open``. Its result is set once: ``succeed``, ``fail`` or ``split``; ``release``
    then wakes the waiting threads. Records of a split batch are in its ``children``. Thread-safe under the GIL.
    """

    cdef OpenBatch records
    # A lock, made by the first thread that waits; held until the release. It is no ``threading.Event``, whose lock an
    # interrupt may leave held forever.
    cdef object gate
    cdef bint is_gate_open
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
    # 1 + ``forks`` of the process in which a task's wait has made it ready; 0 before.
    cdef int hurried_in

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

    @cython.boundscheck(True)
    @cython.nonecheck(True)
    def split(self, list children not None):
        """Moves its records, with their callbacks, to ``children``, pairs of the first index and a batch; False if it
        has a result. In one step, which no interrupt splits; after a lack of memory nothing has changed."""
        cdef list callbacks = self.callbacks
        cdef list none = []
        cdef Delivery delivery
        cdef ProducerBatch owner
        cdef tuple pair
        cdef int32_t index
        if self.state != PENDING:
            return False
        if not children:
            raise ValueError("no children, expected a batch for each record")
        self.children = children
        self.callbacks = none
        self.state = SPLIT
        try:
            for pair in callbacks:
                delivery = pair[0]
                index = delivery.index
                owner = self.owner_of(&index)
                owner.callbacks.append(pair)
        except MemoryError:
            for pair in children:
                owner = pair[1]
                owner.callbacks.clear()
            self.children, self.callbacks, self.state = None, callbacks, PENDING
            raise
        return True

    def release(self):
        """Wakes the waiting threads; called after the callbacks. After an interrupt a second call finishes this.

        Returns the waiters that ``tell`` has noted, until they were ``woken``, or None.
        """
        self.is_released = True
        if self.gate is not None and not self.is_gate_open:
            self.is_gate_open = True
            self.gate.release()
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
            if self.gate is None:
                gate = allocate_lock()
                gate.acquire()
                if self.gate is None:
                    self.gate = gate
            # It may have been released while the lock was made.
            if not self.is_released:
                if not self.gate.acquire(True, -1 if timeout is None else min(timeout, TIMEOUT_MAX)):
                    return False
                # For the next thread; no signal is served in between.
                self.gate.release()
        return True

    @cython.boundscheck(True)
    @cython.nonecheck(True)
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
        if not append_with(self, delivery, checked_value, checked_key, pairs, timestamp, callback):
            return None
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


cdef inline bint append_with(
    ProducerBatch batch, Delivery delivery, bytes value, bytes key, tuple headers, int64_t timestamp, object callback
) except -1:
    """``append_to`` of a record with the callback, or None. The record is there with it or not at all: a caller to whom
    an error is raised sends it again."""
    cdef bint is_appended = False
    if callback is None:
        return append_to(batch, delivery, value, key, headers, timestamp)
    batch.callbacks.append(callback)
    try:
        is_appended = append_to(batch, delivery, value, key, headers, timestamp)
    finally:
        if not is_appended:
            batch.callbacks.pop()
    return is_appended


def seal_run(list batches not None, queue not None, int64_t producer_id, int32_t producer_epoch, int64_t size_max):
    """Writes the producer and the CRC of closed batches of ``queue`` that need nothing else, and counts the attempt.

    They are neither compressed, nor in a transaction, nor stamped by the log. A batch that has no stamp of the producer
    yet gets the next sequence; ``producer_id`` -1 means none. Returns the EncodedBatches, their buffers, and whether
    the sequences follow one another; None, and does nothing, if a batch needs more or is larger than ``size_max``
    bytes.
    """
    cdef ProducerBatch batch
    cdef list encoded = []
    cdef list buffers = []
    cdef bint is_run = producer_id >= 0
    cdef int64_t next_sequence
    cdef OpenBatch records
    for batch in batches:
        if batch is None:
            raise TypeError("None, expected a batch")
        records = batch.records
        if (
            batch.encoded is None
            or batch.buffer is None
            or records is None
            or batch.is_transactional
            or batch.compressed is not None
            or records.size > size_max
            or <int64_t>batch.encoded.size != records.size
        ):
            return None
    next_sequence = queue.next_sequence
    for batch in batches:
        records = batch.records
        if producer_id >= 0:
            if batch.producer_id != producer_id or batch.producer_epoch != producer_epoch:
                batch.base_sequence = <int32_t>next_sequence
                batch.producer_id, batch.producer_epoch = producer_id, producer_epoch
            elif buffers and batch.base_sequence != next_sequence:
                is_run = False
            # A batch may have been stamped before: what replaces or follows it continues from its sequence.
            next_sequence = (batch.base_sequence + <int64_t>records.record_count) & INT32_MAX
            queue.next_sequence = next_sequence
        batch.attempts += 1
        if batch.producer_id >= 0:
            put_producer(
                batch.buffer, records.position, batch.producer_id, <int16_t>batch.producer_epoch, batch.base_sequence
            )
        put_crc(batch.buffer, records.position, records.size)
        encoded.append(batch.encoded)
        buffers.append(batch.buffer)
    return encoded, buffers, is_run
