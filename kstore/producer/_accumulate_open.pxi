"""Opens a batch of a queue that has none, and takes closed ones from it. Part of _accumulate.pyx."""


cdef class BatchOpener:
    """The fields of a ``RecordAccumulator``, which describes them, that opening a batch needs."""

    cdef readonly dict active
    # A set.
    cdef public object incomplete
    cdef public bint is_closed
    cdef public bint is_paused
    cdef public bint is_transactional
    cdef public int64_t opened_count
    # Monotonic, seconds: how long the sender sleeps, 0 while it is awake, and how long it may overlook a batch.
    cdef public double sleeps_until
    cdef public double patience
    cdef Account account
    cdef object failures
    cdef object hurry
    # The names of topics that must be looked up again.
    cdef public set stale
    # Whether times are the machine's.
    cdef bint is_system_clock

    def __cinit__(self):
        self.active = {}
        self.incomplete = set()
        self.stale = set()

    def _use(self, Account account not None, failures, hurry, *, bint is_system_clock):
        self.account = account
        self.failures = failures
        self.hurry = hurry
        self.is_system_clock = is_system_clock

    cdef bint opens(self, TopicQueues topic, PartitionQueue queue) except -1:
        """Whether a batch of ``queue`` may be opened. Runs no Python code."""
        return not (
            queue.open_batch is not None
            or queue.is_retired
            or self.is_closed
            or self.is_paused
            or self.is_transactional
            # Another thread is about to open, close or take a batch.
            or queue.lock.locked()
            or topic.name in self.stale
        )

    cdef int open(
        self, TopicQueues topic, Py_ssize_t number, Delivery delivery, bytes value, bytes key, int64_t now_ms,
        object callback, bint is_sticky,
    ) except -1:
        """Opens a batch with this record in it. 0, and nothing is done, if anything needs a decision or a wait: then
        ``slow_path`` does it; 2 if the sender must be woken; else 1."""
        cdef PartitionQueue queue = topic.queues[number]
        cdef int64_t size = self.account.buffer_size if self.account is not None else 0
        cdef int64_t record_size = RECORD_SIZE_MAX
        cdef BatchBuffer buffer
        cdef ProducerBatch batch
        cdef double now
        record_size += 0 if value is None else PyBytes_GET_SIZE(value)
        record_size += 0 if key is None else PyBytes_GET_SIZE(key)
        if (
            not self.is_system_clock
            or not topic.is_plain
            or record_size > size
            or (is_sticky and topic.partition_count > 1 and topic.sticky_bytes >= size)
            or not self.opens(topic, queue)
        ):
            return 0
        buffer = self.account.lend_free()
        if buffer is None:
            return 0
        now = monotonic_seconds()
        batch = ProducerBatch(queue.topic, queue.partition, buffer, size, now, self.failures, self.hurry, size)
        if callback is not None:
            batch.callbacks.append(callback)
        # From here on no Python code runs; before, the garbage collector may have.
        if not self.opens(topic, queue) or not append_to(batch, delivery, value, key, (), now_ms):
            batch.abort()
            batch.take_buffer()
            self.account.take_back(buffer, size)
            return 0
        # Before the queue: a batch in it is always listed.
        self.active[queue] = None
        self.incomplete.add(batch)
        queue.open_batch = batch
        topic.sticky_bytes += batch.records.size
        topic.last_used = now
        self.opened_count += 1
        return 2 if self.sleeps_until > now + self.patience else 1


def take_closed(closed not None, list taken not None, int64_t size_max):
    """Moves the first batches of ``closed``, a deque, to ``taken``: up to ``size_max`` bytes in all, but at least one.

    Each is in one of them at any time: a refused allocation leaves a batch in both.
    """
    cdef ProducerBatch batch
    cdef int64_t size = 0
    while closed:
        batch = closed[0]
        if batch is None:
            raise TypeError("None, expected a batch")
        if batch.records is not None:
            size += batch.records.size
        if taken and size > size_max:
            break
        taken.append(batch)
        closed.popleft()


def succeed_all(list batches not None, int64_t first_offset, int64_t append_time_ms):
    """Sets the result of batches that follow one another in the log."""
    cdef ProducerBatch batch
    for batch in batches:
        if batch is None:
            raise TypeError("None, expected a batch")
        batch.succeed(first_offset, append_time_ms)
        if batch.records is not None:
            first_offset += batch.records.record_count
