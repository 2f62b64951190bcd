"""The headers of batches in a run. Part of _runs.pyx, _columns.pyx and _compact.pyx."""


# The fields of a header that its batch is known by.
cdef struct Head:
    int64_t base_offset
    int64_t last_offset
    int64_t size
    int32_t last_offset_delta
    int32_t record_count
    int16_t attributes


cdef inline uint64_t big_endian_64(const uint8_t* at) noexcept nogil:
    return (
        <uint64_t>at[0] << 56 | <uint64_t>at[1] << 48 | <uint64_t>at[2] << 40 | <uint64_t>at[3] << 32
        | <uint64_t>at[4] << 24 | <uint64_t>at[5] << 16 | <uint64_t>at[6] << 8 | <uint64_t>at[7]
    )


cdef inline uint32_t big_endian_32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3]


cdef inline bint read_head(const uint8_t* at, Head* head) noexcept nogil:
    """Reads the 61 bytes of a header; False if no writer produces them (``batch.parse_v2``)."""
    head.size = <int64_t><int32_t>big_endian_32(at + 8) + LOG_OVERHEAD
    head.base_offset = <int64_t>big_endian_64(at)
    head.attributes = <int16_t>(<uint32_t>at[21] << 8 | at[22])
    head.last_offset_delta = <int32_t>big_endian_32(at + 23)
    head.record_count = <int32_t>big_endian_32(at + 57)
    if unlikely(
        head.size < HEADER_SIZE
        or head.base_offset < 0
        or head.last_offset_delta < 0
        or head.base_offset >= INT64_MAX - head.last_offset_delta
        or head.record_count < 0
        or head.record_count > <int64_t>head.last_offset_delta + 1
    ):
        return False
    head.last_offset = head.base_offset + head.last_offset_delta
    return True


cdef inline bint begin_records(Walk* walk, const uint8_t* batch, Head* head) noexcept nogil:
    """Begins a pass over the records of a plain batch; False if its bytes cannot hold as many as it counts."""
    walk.buffer = batch
    walk.at = batch + HEADER_SIZE
    walk.stop = batch + head.size
    walk.index = 0
    walk.count = head.record_count
    walk.previous_delta = -1
    walk.last_offset_delta = head.last_offset_delta
    return head.record_count <= (head.size - HEADER_SIZE) // RECORD_SIZE_MIN


cdef bint is_aborted(array.array aborted, const uint8_t* batch, Head* head) noexcept:
    """Whether a batch is data of one of the ``aborted`` transactions (``RunCursor``)."""
    cdef const long long* rows = aborted.data.as_longlongs
    cdef int64_t producer_id = <int64_t>big_endian_64(batch + 43)
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = len(aborted) // 3
    cdef Py_ssize_t middle
    if not head.attributes & ATTRIBUTE_TRANSACTIONAL:
        return False
    # The last row at or below (producer id, base offset).
    while low < high:
        middle = (low + high) // 2
        if rows[3 * middle] < producer_id or (
            rows[3 * middle] == producer_id and rows[3 * middle + 1] <= head.base_offset
        ):
            low = middle + 1
        else:
            high = middle
    return low > 0 and rows[3 * low - 3] == producer_id and rows[3 * low - 1] >= head.base_offset


cdef int note_window(array.array tally, Head* head, int64_t offset, int64_t stop_offset) except -1:
    """Adds a batch, its records with offsets in [offset, stop_offset), and its bytes to a ``tally`` of three."""
    cdef long long* numbers
    cdef int64_t count = stop_offset - offset
    if count > 1:
        count = head.record_count
        if head.base_offset < offset or head.last_offset >= stop_offset:
            count = min(count, min(head.last_offset + 1, stop_offset) - max(head.base_offset, offset))
    # An array that was made shorter since has no room for it.
    if len(tally) == 3:
        numbers = tally.data.as_longlongs
        numbers[0] += 1
        numbers[1] += count
        numbers[2] += head.size
    return 0
