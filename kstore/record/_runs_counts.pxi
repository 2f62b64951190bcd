"""Counts of batches and records, for statistics. Part of _runs.pyx."""

cdef enum:
    # As in upkeep.distribution: two neighbouring buckets differ by at most 1/16.
    BUCKET_BITS = 4
    # That of 2^63 - 1 is the last one.
    BUCKET_COUNT = 960

# A distribution of values, 0 and above.
cdef struct Spread:
    int64_t count
    int64_t sum
    int64_t minimum
    int64_t maximum
    int64_t[BUCKET_COUNT] counts


cdef inline void spread(Spread* values, int64_t value) noexcept nogil:
    cdef int shift = 59 - __builtin_clzll(<uint64_t>value | 1)
    if shift < 0:
        shift = 0
    values.count += 1
    values.sum += value
    if value > values.maximum:
        values.maximum = value
    if value < values.minimum:
        values.minimum = value
    values.counts[(shift << BUCKET_BITS) + (value >> shift)] += 1


cdef tuple spread_fields(Spread* values):
    cdef Py_ssize_t bucket
    counts = {bucket: values.counts[bucket] for bucket in range(BUCKET_COUNT) if values.counts[bucket]}
    return values.count, values.sum, values.minimum, values.maximum, counts


@cython.final
@cython.no_gc
cdef class RunCounts:
    """What ``upkeep.stats`` counts of batches and their records. Not thread-safe."""

    # Batches, markers included.
    cdef readonly int64_t batch_count
    cdef readonly int64_t size
    cdef readonly int64_t record_count
    cdef readonly int64_t empty_batch_count
    cdef readonly int64_t producer_batch_count
    cdef readonly int64_t transactional_batch_count
    cdef readonly int64_t commit_count
    cdef readonly int64_t abort_count
    # ms; -1 without any.
    cdef readonly int64_t first_timestamp
    cdef readonly int64_t last_timestamp
    # Bytes of the records of batches, without markers.
    cdef readonly int64_t records_size
    # Records, without markers.
    cdef readonly int64_t counted_count
    cdef readonly int64_t keyed_count
    cdef readonly int64_t tombstone_count
    cdef readonly int64_t header_count
    cdef Spread _batch_sizes
    cdef Spread _batch_records
    cdef Spread _key_sizes
    cdef Spread _value_sizes

    def __cinit__(self):
        self.first_timestamp = self.last_timestamp = -1
        self._batch_sizes.minimum = self._batch_records.minimum = INT64_MAX
        self._key_sizes.minimum = self._value_sizes.minimum = INT64_MAX

    def spreads(self):
        """The distributions of batch sizes, records in a batch, key sizes and value sizes: for each the count, sum,
        least and greatest value, and the counts by bucket."""
        return (
            spread_fields(&self._batch_sizes), spread_fields(&self._batch_records),
            spread_fields(&self._key_sizes), spread_fields(&self._value_sizes),
        )

    def add(self, Run run not None):
        """Counts the batches of a run that is not compressed. Returns the places in its data of those that it leaves
        out: control batches that are not one marker of a transaction."""
        cdef Head head
        cdef Walk walk
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(run.data)
        cdef const uint8_t* at = data + run.start
        cdef const uint8_t* stop = data + run.stop
        cdef const uint8_t* following
        cdef int32_t coordinator_epoch = 0
        cdef int kind
        cdef list left_out = []
        if run.is_compressed:
            raise ValueError("a compressed run, expected a plain one")
        while at < stop:
            following = next_head(at, stop, &head)
            if head.attributes & ATTRIBUTE_CONTROL:
                kind = read_marker(at, &head, &coordinator_epoch) if head.record_count == 1 else UNREADABLE
                if kind != COMMIT and kind != ABORT:
                    left_out.append(at - data)
                    at = following
                    continue
                self.commit_count += kind == COMMIT
                self.abort_count += kind == ABORT
            else:
                self.records_size += head.size - HEADER_SIZE
                if not begin_records(&walk, at, &head) or not self._count(&walk):
                    raise CorruptRecordError("a batch changed while it was read")
            self._note(at, &head)
            at = following
        return left_out

    def add_records(self, payload not None, int32_t count, int32_t last_offset_delta):
        """Counts the ``count`` records of a batch in ``payload``; False, and none is counted, if they are not sound."""
        cdef Py_buffer view
        cdef Walk walk
        cdef RecordView record
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if count < 0 or count > view.len // RECORD_SIZE_MIN:
                return False
            walk.buffer = walk.at = <const uint8_t*>view.buf
            walk.stop = walk.at + view.len
            walk.index = 0
            walk.count = count
            walk.previous_delta = -1
            walk.last_offset_delta = last_offset_delta
            while walk.index < count:
                if not next_record(&walk, &record):
                    return False
            if walk.at != walk.stop:
                return False
            walk.at = <const uint8_t*>view.buf
            walk.index = 0
            walk.previous_delta = -1
            return self._count(&walk)
        finally:
            PyBuffer_Release(&view)

    cdef bint _count(self, Walk* walk) noexcept:
        """Counts the records of a walk."""
        cdef RecordView record
        while walk.index < walk.count:
            if unlikely(not next_record(walk, &record)):
                return False
            self.counted_count += 1
            self.header_count += record.header_count
            if record.key_size >= 0:
                self.keyed_count += 1
                self.tombstone_count += record.value_size < 0
                spread(&self._key_sizes, record.key_size)
            if record.value_size >= 0:
                spread(&self._value_sizes, record.value_size)
        return True

    cdef void _note(self, const uint8_t* batch, Head* head) noexcept:
        """Counts a batch by its header."""
        cdef int64_t last = <int64_t>big_endian_64(batch + 35)
        cdef int64_t first = last
        if not head.attributes & (ATTRIBUTE_DELETE_HORIZON | ATTRIBUTE_LOG_APPEND_TIME):
            first = <int64_t>big_endian_64(batch + 27)
        self.batch_count += 1
        self.size += head.size
        self.record_count += head.record_count
        self.empty_batch_count += head.record_count == 0
        self.producer_batch_count += <int64_t>big_endian_64(batch + 43) >= 0
        self.transactional_batch_count += (head.attributes & ATTRIBUTE_TRANSACTIONAL) != 0
        spread(&self._batch_sizes, head.size)
        spread(&self._batch_records, head.record_count)
        if first >= 0 and (self.first_timestamp < 0 or first < self.first_timestamp):
            self.first_timestamp = first
        if last > self.last_timestamp:
            self.last_timestamp = last
