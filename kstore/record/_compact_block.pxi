"""The records of a block of batches, one entry each. Part of _compact.pyx."""


# One record of a block; without a key there is no hash. Small, because there may be one for every 7 bytes.
cdef struct Entry:
    uint64_t first
    uint64_t second
    int64_t offset
    int64_t timestamp_delta
    # Where it begins in the batch's records; its offset delta, which is stored from there on; and its end.
    uint32_t start
    uint32_t rest
    uint32_t stop
    uint8_t has_key
    uint8_t is_tombstone
    uint8_t is_kept


cdef struct Span:
    Py_buffer view
    const uint8_t* stop
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int32_t last_offset_delta
    int32_t count
    int flags
    Walk walk
    RecordView problem
    bint is_damaged
    bint has_leftover
    # Its entries in the block.
    Py_ssize_t entry
    int32_t kept_count
    int32_t tombstone_count
    int32_t keyless_count
    bint is_rewritten
    bint has_horizon
    int64_t new_base
    int64_t new_max
    Py_ssize_t out_start
    Py_ssize_t out_stop


cdef class Block:
    """The batches of one call, with their buffers held, and an entry for each of their records."""

    cdef Span* spans
    cdef Entry* entries
    cdef Py_ssize_t span_count
    cdef Py_ssize_t held_count
    cdef Py_ssize_t entry_count
    cdef Py_ssize_t entry_max

    def __cinit__(self, list batches not None):
        cdef Py_ssize_t number, size
        cdef Span* span
        # What converts a number may be the caller's code.
        cdef tuple kept = tuple(batches)
        self.spans = NULL
        self.entries = NULL
        self.span_count = len(kept)
        self.held_count = self.entry_count = self.entry_max = 0
        if not self.span_count:
            return
        self.spans = <Span*>PyMem_RawCalloc(self.span_count, sizeof(Span))
        if self.spans == NULL:
            raise MemoryError(f"no memory for {self.span_count} batches")
        for number in range(self.span_count):
            span = &self.spans[number]
            (
                data, span.count, span.base_offset, span.last_offset_delta, span.base_timestamp, span.max_timestamp,
                span.flags,
            ) = kept[number]
            PyObject_GetBuffer(data, &span.view, PyBUF_SIMPLE)
            self.held_count += 1
            size = span.view.len
            # Impossible batches are skipped: no input can make this allocate for records that do not exist.
            if (
                not 0 <= span.count <= <int64_t>span.last_offset_delta + 1
                or span.count > size // RECORD_SIZE_MIN
                or size > INT32_MAX
            ):
                span.is_damaged = span.has_leftover = True
                continue
            span.walk.buffer = span.walk.at = <const uint8_t*>span.view.buf
            span.walk.stop = span.walk.buffer + size
            span.walk.index = 0
            span.walk.count = span.count
            span.walk.previous_delta = -1
            span.walk.last_offset_delta = span.last_offset_delta
            self.entry_max += span.count
        self.entries = <Entry*>PyMem_RawMalloc(max(self.entry_max, 1) * sizeof(Entry))
        if self.entries == NULL:
            raise MemoryError(f"no memory for {self.entry_max} records")

    def __dealloc__(self):
        cdef Py_ssize_t number
        for number in range(self.held_count):
            PyBuffer_Release(&self.spans[number].view)
        PyMem_RawFree(self.spans)
        PyMem_RawFree(self.entries)

    cdef void read(self, const uint64_t* secret) noexcept nogil:
        """Makes an entry for each record of every readable batch."""
        cdef Py_ssize_t number
        cdef Span* span
        for number in range(self.span_count):
            span = &self.spans[number]
            span.entry = self.entry_count
            if not span.is_damaged and not self.read_batch(span, secret):
                span.is_damaged = True
                self.entry_count = span.entry

    cdef bint read_batch(self, Span* span, const uint64_t* secret) noexcept nogil:
        cdef RecordView record
        cdef Entry* entry
        cdef const uint8_t* start
        cdef const uint8_t* at
        cdef int32_t index
        cdef int32_t size = 0
        cdef int64_t delta = 0
        for index in range(span.count):
            start = span.walk.at
            if unlikely(not next_record(&span.walk, &record)):
                span.problem = record
                return False
            entry = &self.entries[self.entry_count]
            self.entry_count += 1
            entry.start = <uint32_t>(start - span.walk.buffer)
            # After the length, the attributes and the time, which were all checked.
            at = get_varint(start, span.walk.stop, &size)
            entry.rest = <uint32_t>(get_varlong(at + 1, span.walk.stop, &delta) - span.walk.buffer)
            entry.stop = <uint32_t>(record.stop - span.walk.buffer)
            entry.timestamp_delta = record.timestamp_delta
            entry.offset = span.base_offset + record.offset_delta
            entry.has_key = record.key_size >= 0
            entry.is_tombstone = record.value_size < 0
            if entry.has_key:
                hash_key(record.key, record.key_size, secret, &entry.first, &entry.second)
        if unlikely(span.walk.at != span.walk.stop):
            span.has_leftover = True
            return False
        return True

    cdef str damage(self, Span* span):
        """What is wrong with a batch; "" for a sound one."""
        if not span.is_damaged:
            return ""
        if span.has_leftover:
            return f"{span.view.len} bytes that do not hold the {span.count} records of the header"
        return str(corrupt(&span.walk, &span.problem).reason)
