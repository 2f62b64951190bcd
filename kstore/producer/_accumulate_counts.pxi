"""The counts of a producer's writes. Part of _accumulate.pyx."""


cdef class WrittenCounts:
    """What was written, of one topic or of all: records, and their bytes after and before compression."""

    cdef readonly int64_t records
    cdef readonly int64_t bytes
    cdef readonly int64_t uncompressed_bytes

    cdef void add(self, int64_t records, int64_t size, int64_t plain_size) noexcept:
        self.records += records
        self.bytes += size
        self.uncompressed_bytes += plain_size


cdef class WriteCounts(WrittenCounts):
    """All writes of a producer."""

    cdef readonly int64_t batches
    cdef readonly int64_t batch_max_bytes
    cdef readonly int64_t writes
    # The time that batches waited, and that writes took.
    cdef readonly double queue_seconds
    cdef readonly double queue_max_seconds
    cdef readonly double append_seconds
    cdef readonly double append_max_seconds

    def count_write(
        self,
        WrittenCounts topic not None,
        list batches not None,
        list encoded not None,
        int64_t records,
        int64_t size,
        double begun,
        double ended,
        *,
        bint is_compressed,
    ):
        """Counts a write of ``batches``, the oldest first, as they were ``encoded``. In one step, which no interrupt
        splits."""
        cdef ProducerBatch batch
        cdef double created = 0
        cdef int64_t plain_size = 0
        cdef int64_t largest = self.batch_max_bytes
        cdef int64_t encoded_size
        if not batches:
            raise ValueError("no batches, expected at least one")
        for one in encoded:
            encoded_size = one[ENCODED_SIZE]
            largest = max(largest, encoded_size)
        for batch in batches:
            if batch is None:
                raise TypeError("None, expected a batch")
            created += batch.created_at
            plain_size += batch.records.size if batch.records is not None else 0
        batch = batches[0]
        if not is_compressed:
            plain_size = size
        self.add(records, size, plain_size)
        topic.add(records, size, plain_size)
        self.batches += PyList_GET_SIZE(batches)
        self.batch_max_bytes = largest
        self.writes += 1
        self.queue_seconds += PyList_GET_SIZE(batches) * begun - created
        self.queue_max_seconds = max(self.queue_max_seconds, begun - batch.created_at)
        self.append_seconds += ended - begun
        self.append_max_seconds = max(self.append_max_seconds, ended - begun)
