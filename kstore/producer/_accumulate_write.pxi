"""The steps of every write of a queue's batches. Part of _accumulate.pyx."""

cdef enum:
    WRITE_BYTES_MAX = 1 << 20


cdef class ReadyWriter:
    """The part of a ``QueueWriter``, which describes it, that every write passes.

    Signals are served in the Python functions that it calls, and not between its steps.
    """

    cdef BatchOpener accumulator
    cdef object clock, topic_of, ids, counters, wakeup
    # What logs that sync each append are given at a time, together.
    cdef int64_t synced_bytes_max
    cdef bint has_no_acks

    def _use(
        self,
        BatchOpener accumulator not None,
        clock,
        topic_of,
        ids,
        counters,
        wakeup,
        *,
        int64_t synced_bytes_max,
        bint has_no_acks,
    ):
        self.accumulator = accumulator
        self.clock, self.topic_of, self.ids = clock, topic_of, ids
        self.counters, self.wakeup = counters, wakeup
        self.synced_bytes_max = synced_bytes_max
        self.has_no_acks = has_no_acks

    def write_ready(self, PartitionQueue queue not None, double now, complete not None):
        """Writes what is ready, and hands over the batches that then have a result. However it ends, no batch is lost
        or changes its place. Needs the queue's ``drain_lock``."""
        cdef list taken = []
        cdef list appends = []
        cdef int64_t size_max = WRITE_BYTES_MAX
        try:
            writer = queue.writer
            if writer is not None and writer.syncs_appends:
                # Logs that sync are written at the same time.
                size_max = max(size_max, self.synced_bytes_max // max(<int64_t>len(self.accumulator.active), 1))
            if queue.careful_count:
                queue.careful_count -= 1
                size_max = 1
            self.accumulator.take(queue, size_max, now, taken=taken)
            if taken:
                complete(self.write(queue, taken, now, appends))
        except BaseException:
            self._restore(queue, taken, appends)
            raise

    cdef list write(self, PartitionQueue queue, list batches, double now, list appends):
        """Writes batches of one partition to its log; returns those that have a result. Needs the queue's
        ``drain_lock``.

        Afterwards, batches that may be retried are back in the queue, in order, with their sequences. Each write is
        first put into ``appends``: after an interrupt, that shows what is in the log.
        """
        cdef PendingBatches append = None
        cdef TopicQueues topic
        cdef double begun = now
        cdef double ended
        try:
            topic = self.topic_of(queue.topic)
            if not 0 <= queue.partition < topic.partition_count or topic.queues[queue.partition] is not queue:
                raise TopicNotFoundError(f"topic {queue.topic} was deleted; there is another of its name")
            writer = queue.writer
            if writer is None or writer.closed:
                writer = self.writer(queue)
            append = self.sealed(queue, topic, batches, self.ids.for_partition(queue.topic, queue.partition))
            # One is too large: its parts, and the batches after it, are in the queue again.
            batches = batches[:len(append.batches)]
            if not batches:
                return []
            if self.has_no_acks:
                for batch in batches:
                    (<ProducerBatch?>batch).succeed(-1)
            appends.append(append)
            queue.write_seconds_before, queue.write_seconds = queue.write_seconds, INFINITY
            begun = self.clock.monotonic()
            writer.commit_many((append,))
            if append.error is not None:
                raise append.error
        except DuplicateSequenceError as error:
            if len(batches) == 1:
                return self._failed(queue, batches, error, now)
            # Some of them are in the log already: written one by one, each finds out about itself.
            queue.careful_count = len(batches)
            self.accumulator.put_back(queue, batches)
            self.wakeup.set()
            return []
        except BaseException as error:
            if append is None or append.result is None or isinstance(error, KstoreError):
                return self._failed(queue, batches, error, now)
            if not isinstance(error, Exception):
                raise
            # No memory for the work after a write, but the records are in the log.
        queue.retry_count = 0
        queue.is_doubtful = False
        ended = self.clock.monotonic()
        queue.write_seconds = ended - begun
        self._succeed(batches, append)
        self.counters.wrote(queue.topic, batches, append, begun, ended)
        return batches

    cdef PendingBatches sealed(self, PartitionQueue queue, TopicQueues topic, list batches, tuple producer):
        """Seals batches up to the first that is too large, which is split."""
        cdef ProducerBatch first = batches[0]
        if queue.producer != producer:
            queue.producer, queue.next_sequence = producer, 0
        if topic.is_plain:
            run = seal_run(batches, queue, producer[0], producer[1], topic.size_max)
            if run is not None:
                made, filled, is_run = run
                stamp = (producer[0], producer[1], first.base_sequence, False) if is_run else None
                return PendingAppend(
                    filled[0], made, "none", with_producers=producer[0] >= 0, buffers=filled, stamp=stamp
                )
        return self._seal(queue, topic, batches, producer)
