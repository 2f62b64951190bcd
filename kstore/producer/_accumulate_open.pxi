"""Opens a batch of a queue that has none, takes those that are due, and releases those that are done. Part of
_accumulate.pyx."""


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
    # A BufferPool.
    cdef public object pool
    cdef Account account
    cdef object failures
    cdef object hurry
    # Seconds.
    cdef double linger
    # The threads in a hurry: while any is, all batches are ready. Flushes, and ends of transactions.
    cdef readonly set hurries
    # The names of topics that must be looked up again.
    cdef public set stale
    # The most queues that had batches lately. If there are more than ``queues_max``, now or lately, ``slow_path``
    # decides how large a batch is.
    cdef public Py_ssize_t queue_peak
    cdef Py_ssize_t queues_max
    # Whether times are the machine's.
    cdef bint is_system_clock

    def __cinit__(self):
        self.active = {}
        self.incomplete = set()
        self.stale = set()
        self.hurries = set()

    def _use(
        self, Account account not None, failures, hurry, *, double linger, bint is_system_clock, Py_ssize_t queues_max
    ):
        self.account = account
        self.failures = failures
        self.hurry = hurry
        self.linger = linger
        self.is_system_clock = is_system_clock
        self.queues_max = queues_max

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
            or len(self.active) > self.queues_max
            or self.queue_peak > self.queues_max
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
        if (
            not self.opens(topic, queue)
            or not append_to(batch, delivery, value, key, (), now_ms)
            or not self.put_open(topic, queue, batch, now)
        ):
            batch.abort()
            batch.take_buffer()
            self.account.take_back(buffer, size)
            return 0
        return 2 if self.sleeps_until > now + self.patience else 1

    def _put_open(
        self, TopicQueues topic not None, PartitionQueue queue not None, ProducerBatch batch not None, double now
    ):
        """``put_open``, for the batches that ``RecordAccumulator`` makes."""
        return self.put_open(topic, queue, batch, now)

    cdef bint put_open(self, TopicQueues topic, PartitionQueue queue, ProducerBatch batch, double now) except -1:
        """Makes a batch with its first record the open one of ``queue``. False, and nothing is done, if no more records
        are accepted. Needs the queue's lock, or runs where no other thread can. Runs no Python code.

        A thread that closes, or ends a transaction, sets its flag before it looks for batches.
        """
        if self.is_closed or self.is_paused:
            return False
        # Before the queue: a batch in it is always listed.
        self.active[queue] = None
        try:
            self.incomplete.add(batch)
        except BaseException:
            # A set that has no memory to grow keeps what was added.
            self.incomplete.discard(batch)
            raise
        queue.open_batch = batch
        topic.sticky_bytes += batch.records.size
        topic.last_used = now
        self.opened_count += 1
        return True

    def end_hurry(self, who):
        """See ``RecordAccumulator.begin_hurry``. Compiled, since a signal may be served at the start of a function."""
        self.hurries.discard(who)

    def ready_in(self, PartitionQueue queue not None, double now):
        """Seconds until the queue's first batch is due; 0 or less means now. Needs no lock."""
        if queue.retry_at > now:
            return queue.retry_at - now
        return 0.0 if queue.closed else self.open_due_in(queue, now)

    cdef double open_due_in(self, PartitionQueue queue, double now) except? -1:
        cdef ProducerBatch batch = queue.open_batch
        if batch is None:
            return self.linger
        if queue.is_urgent or self.hurries or self.is_closed or self.account.waiting or not batch.is_open:
            return 0.0
        return batch.created_at + self.linger - now

    def take(self, PartitionQueue queue not None, int64_t size_max, double now, *, bint all_now=False, list taken=None):
        """Takes batches of the queue, in order, up to ``size_max`` bytes but at least one.

        With ``all_now`` the open batch is included even if it is not due. Needs the queue's ``drain_lock``. Fills and
        returns ``taken``: after an exception ``restore`` puts its content back. A batch is in one of them at any time; a
        refused allocation leaves it in both.
        """
        cdef ProducerBatch batch
        cdef int64_t size = 0
        if taken is None:
            taken = []
        with queue.lock:
            if queue.open_batch is not None and (all_now or queue.is_urgent or self.open_due_in(queue, now) <= 0):
                queue.is_urgent = False
                queue.close_open()
            while queue.closed:
                batch = <ProducerBatch?>queue.closed[0]
                if batch.records is not None:
                    size += batch.records.size
                if taken and size > size_max:
                    break
                taken.append(batch)
                queue.closed.popleft()
        return taken

    def release(self, ProducerBatch batch not None):
        """Returns the batch's memory, and wakes the threads that wait for it; a second call does nothing."""
        try:
            self.return_memory(batch)
        finally:
            awaited = batch.release()
            if awaited is not None:
                from kstore.producer.waiting import wake

                wake(awaited)
                batch.woken()
            # Last: until then an interrupted release is repeated.
            self.incomplete.discard(batch)

    def give_back(self, ProducerBatch batch not None):
        """Returns the batch's memory; a second call does nothing."""
        self.return_memory(batch)

    cdef int return_memory(self, ProducerBatch batch) except -1:
        buffer = batch.take_buffer()
        if buffer is not None and batch.pool_size:
            self.account.take_back(buffer, batch.pool_size)
            # A request is in ``waiting`` before it looks for memory for the last time.
            if self.account.waiting or self.account.freed:
                self.pool.serve()
        return 0


def succeed_all(list batches not None, int64_t first_offset, int64_t append_time_ms):
    """Sets the result of batches that follow one another in the log."""
    cdef ProducerBatch batch
    for batch in batches:
        if batch is None:
            raise TypeError("None, expected a batch")
        batch.succeed(first_offset, append_time_ms)
        if batch.records is not None:
            first_offset += batch.records.record_count
