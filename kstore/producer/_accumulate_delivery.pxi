"""The results of records, one by one and of many. Part of _accumulate.pyx."""


@cython.final
@cython.no_gc  # one per record: a header for the collector would cost more than all else. A batch never holds one alone
@cython.freelist(4096)
cdef class Delivery:
    """The outcome of one record: whether it has arrived, where, or why not. Thread-safe; cheap to keep.

    ``result()`` waits, and sends the record at once. ``await delivery`` does the same in asyncio. ``future()`` is for
    ``concurrent.futures.wait`` and whatever else takes futures.
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
        return named_tuple(
            RecordMetadata, (batch.topic, batch.partition, self.offset, timestamp, self.key_size, self.value_size)
        )

    def add_callback(self, callback):
        """Calls ``callback(metadata, error)`` when the record has arrived or failed: on the sender's thread, or at once
        if that has happened. Its exceptions are logged."""
        cdef ProducerBatch batch = self.settled()
        cdef object pair = (self, callback)
        cdef object failure
        if batch.state == PENDING:
            batch.callbacks.append(pair)
            return
        if not is_bystander(callback):
            # It was counted as unexamined when it failed without this callback.
            self.seen_error(batch)
        failure = run_callback(self, callback, batch)
        if failure is not None:
            if not isinstance(failure, Exception):
                raise failure
            from kstore.producer.completions import log_callback

            log_callback(batch, failure)

    def call(self, callback):
        """Runs one callback of ``ProducerBatch.callbacks``; returns the exception that it raised, or None.

        Raises: MemoryError, and then it did not run.
        """
        return run_callback(self, callback, self.settled())

    def future(self):
        """A ``concurrent.futures.Future`` of the record's ``RecordMetadata``, or error. It cannot be cancelled.

        Unlike ``result`` it does not send the record at once.
        """
        from kstore.producer.future import RecordFuture

        return RecordFuture(self)

    @property
    def _condition(self):
        # The first attribute that concurrent.futures asks for. Not there for hasattr. Raises: AttributeError.
        raise AttributeError("a Delivery is lighter than a future of concurrent.futures: give it delivery.future()")

    @property
    def add_done_callback(self):
        # Not there for hasattr: a loop would take the delivery for a future. Raises: AttributeError.
        raise AttributeError("a Delivery has add_callback(callback); delivery.future() has add_done_callback")

    def __await__(self):
        from kstore.producer.waiting import awaited

        return awaited(self).__await__()

    def _batch(self):
        return self.settled()

    def _arrival(self, loop not None):
        """A future of ``loop`` that is set when the record has arrived, or may have; None if it has. Sends it at once.

        Raises: ForkedError.
        """
        cdef ProducerBatch batch = self.settled()
        if batch.is_released:
            return None
        if batch.hurried_in != forks + 1:
            if batch.hurry is not None:
                batch.hurry(batch)
            # It stays ready: once is enough for all that wait.
            batch.hurried_in = forks + 1
        future = loop.create_future()
        return future if batch.tell((loop, future)) else None

    def _seen_error(self):
        return self.seen_error(self.settled())

    def __repr__(self):
        cdef ProducerBatch batch = self.settled()
        cdef str state = ("pending", "delivered", "failed", "pending")[batch.state]
        return f"Delivery({batch.topic!r}, {batch.partition}, offset={self.offset}, {state})"


@cython.final
cdef class WeakCall:
    """Calls ``function(target, ...)`` while the target lives: batches outlive their producer, and must not keep it."""

    cdef object reference, function

    def __init__(self, target not None, function not None):
        self.reference = ref(target)
        self.function = function

    def __call__(self, *arguments):
        target = self.reference()
        if target is not None:
            self.function(target, *arguments)


cdef bint is_bystander(object callback):
    """Whether the callback is not that of the record's sender: the sender must still learn of a failure."""
    return getattr(callback, "is_bystander", False)


cdef object run_callback(Delivery delivery, object callback, ProducerBatch batch):
    """Returns the exception of the callback, or None. Raises: MemoryError, and then it did not run."""
    cdef bint is_seen = delivery.is_seen
    cdef object metadata = delivery.metadata()
    cdef object error
    if batch.state == FAILED:
        # A failure that a callback receives was never counted as unexamined.
        delivery.is_seen = True
    error = delivery.seen_error(batch)
    try:
        if is_bystander(callback):
            delivery.is_seen = is_seen
        callback(metadata, error)
    except BaseException as failure:
        return failure
    return None


_calling = threading.local()
# In all threads together: while it is 0 none has to look for its own.
cdef Py_ssize_t calling_count = 0


cdef bint in_callback() except -1:
    return calling_count > 0 and getattr(_calling, "depth", 0) > 0


class calling:
    """Entered while callbacks run: a wait for a batch with a result must not wait for its release then."""

    def __enter__(self):
        global calling_count
        _calling.depth = getattr(_calling, "depth", 0) + 1
        calling_count += 1

    def __exit__(self, *_):
        global calling_count
        calling_count -= 1
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
            if not isinstance(delivery, Delivery):
                raise TypeError(f"a {type(delivery).__name__}, expected a Delivery")
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

    def __getitem__(self, given):
        cdef Delivery delivery
        cdef Py_ssize_t index = PyNumber_AsSsize_t(given, NULL)
        if index < 0:
            index += self.count
        if not 0 <= index < self.count:
            raise IndexError(f"delivery {given} of {self.count}")
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
        return PySeqIter_New(self)

    def __repr__(self):
        return f"Deliveries({self.count} records, {'done' if self.done() else 'pending'})"

    def done(self):
        """Whether every record has arrived or failed."""
        cdef Py_ssize_t index = -1
        cdef int32_t last = -1
        while self.enter_next_batch(&index, &last):
            if not self.delivery_of(index).done():
                return False
        return True

    def errors(self, timeout=None):
        """The errors, by index; waits for all records, ``timeout`` seconds for each batch. Raises: TimeoutError."""
        cdef Delivery delivery
        cdef Py_ssize_t index
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
        cdef dict errors = self.errors(timeout)
        cdef list offsets = []
        cdef ProducerBatch batch
        cdef Py_ssize_t index
        for error in errors.values():
            raise error.with_traceback(None)
        for index in range(self.count):
            if self.at[2 * index] >= 0:
                batch = self.batches[self.at[2 * index]]
                if batch.state == SUCCEEDED and batch.base_offset >= 0:
                    offsets.append(batch.base_offset + self.at[2 * index + 1])
                    continue
            offsets.append(self[index].offset)
        return offsets

    def _one_a_batch(self):
        """A delivery of each batch, and those of records without one."""
        cdef Py_ssize_t index = -1
        cdef int32_t last = -1
        found = []
        while self.enter_next_batch(&index, &last):
            found.append(self.delivery_of(index))
        return found

    cdef bint enter_next_batch(self, Py_ssize_t* index, int32_t* last) noexcept:
        """Moves ``index`` on to the first record of the next batch, or to the next record without a batch; False after
        the last. ``last`` is the last batch that was entered. Both begin at -1."""
        cdef Py_ssize_t at
        for at in range(index[0] + 1, self.count):
            if self.at[2 * at] < 0 or self.at[2 * at] > last[0]:
                last[0] = max(last[0], self.at[2 * at])
                index[0] = at
                return True
        return False
