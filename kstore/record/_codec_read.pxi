"""Reads the records of a payload, checking every length, without making objects. Part of each module that reads records."""

cdef enum:
    BAD_VARINT = 1
    BAD_RECORD_SIZE
    BAD_OFFSET
    BAD_FIELD_SIZE
    BAD_HEADER_COUNT
    BAD_HEADER_KEY_SIZE
    BAD_END

cdef dict PROBLEMS = {
    BAD_VARINT: "a varint is longer than its type allows, or than the bytes that remain",
    BAD_RECORD_SIZE: "record size {found}, expected 6 to the {limit} bytes that remain",
    BAD_OFFSET: "offset delta {found}, expected more than the one before and at most {limit}",
    BAD_FIELD_SIZE: "a field of {found} bytes, expected at most the {limit} that remain of the record",
    BAD_HEADER_COUNT: "{found} headers, expected 0 to what {limit} bytes can hold",
    BAD_HEADER_KEY_SIZE: "a header key of {found} bytes, expected 0 to the {limit} that remain of the record",
    BAD_END: "its fields leave {found} bytes of the record, expected none",
}

# The fields of one record, pointing into the payload, or its problem. A size of -1 is null.
cdef struct RecordView:
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t header_count
    Py_ssize_t key_size
    Py_ssize_t value_size
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers
    const uint8_t* stop
    int problem
    int64_t found
    int64_t limit
    const uint8_t* problem_at


# The progress of a pass over a payload.
cdef struct Walk:
    const uint8_t* buffer
    const uint8_t* at
    const uint8_t* stop
    int32_t index
    int32_t count
    int32_t previous_delta
    int32_t last_offset_delta


# Where a pass was before a record.
cdef struct Place:
    const uint8_t* at
    int32_t index
    int32_t previous_delta


cdef const uint8_t* fail(
    RecordView* record, int problem, const uint8_t* at, int64_t found, int64_t limit
) noexcept nogil:
    record.problem = problem
    record.problem_at = at
    record.found = found
    record.limit = limit
    return NULL


cdef inline const uint8_t* get_field(
    RecordView* record, const uint8_t* at, const uint8_t* stop, const uint8_t** data, Py_ssize_t* size
) noexcept nogil:
    """The position after a nullable field, or NULL. Kafka reads any negative size as null."""
    cdef int32_t field_size = 0
    cdef const uint8_t* start = get_varint(at, stop, &field_size)
    if unlikely(start == NULL):
        return fail(record, BAD_VARINT, at, 0, 0)
    data[0] = start
    if field_size < 0:
        size[0] = -1
        return start
    if unlikely(field_size > stop - start):
        return fail(record, BAD_FIELD_SIZE, at, field_size, stop - start)
    size[0] = field_size
    return start + field_size


cdef const uint8_t* get_headers(RecordView* record, const uint8_t* at, const uint8_t* stop) noexcept nogil:
    """The position after ``header_count`` headers, each of them checked, or NULL."""
    cdef int32_t i, key_size = 0
    cdef const uint8_t* key
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t value_size = 0
    for i in range(record.header_count):
        key = get_varint(at, stop, &key_size)
        if key == NULL:
            return fail(record, BAD_VARINT, at, 0, 0)
        if key_size < 0 or key_size > stop - key:
            return fail(record, BAD_HEADER_KEY_SIZE, at, key_size, stop - key)
        at = get_field(record, key + key_size, stop, &value, &value_size)
        if at == NULL:
            return NULL
    return at


cdef inline const uint8_t* get_small(const uint8_t* at, uint32_t* value) noexcept nogil:
    """The position after a number of one or two groups, which are there; NULL if it has more."""
    cdef uint32_t second
    if at[0] < 0x80:
        value[0] = at[0]
        return at + 1
    second = at[1]
    value[0] = (at[0] & 0x7F) | second << 7
    return at + 2 if second < 0x80 else NULL


cdef inline bint next_small_record(Walk* walk, RecordView* record) noexcept nogil:
    """``next_record`` for a record whose numbers are small, without headers; False, and nothing set, for any other.

    It takes half as long: it looks at the ends of the record, not at that of each number.
    """
    cdef const uint8_t* at = walk.at
    cdef const uint8_t* stop
    cdef const uint8_t* key
    cdef uint32_t number = 0, time, key_size = 0
    cdef int32_t delta
    # Size, attributes, time, offset delta and the size of the key take up to ten bytes here.
    if unlikely(walk.stop - at < 10):
        return False
    at = get_small(at, &number)
    if unlikely(at == NULL or number & 1 or number >> 1 < RECORD_SIZE_MIN - 1 or number >> 1 > walk.stop - at):
        return False
    stop = at + (number >> 1)
    # The time has at most three groups.
    time = at[1] & 0x7F
    if at[1] >= 0x80:
        time |= <uint32_t>(at[2] & 0x7F) << 7
        if at[2] >= 0x80:
            if unlikely(at[3] >= 0x80):
                return False
            time |= <uint32_t>at[3] << 14
            at += 1
        at += 1
    at = get_small(at + 2, &number)
    if unlikely(at == NULL or number & 1):
        return False
    delta = number >> 1
    if unlikely(delta <= walk.previous_delta or delta > walk.last_offset_delta):
        return False
    key = get_small(at, &key_size)
    if unlikely(key == NULL):
        return False
    # An odd number is a negative size, which is null.
    at = key + (0 if key_size & 1 else key_size >> 1)
    # The size of the value, and the count of headers, which is 0 in the last byte.
    if unlikely(stop - at < 2):
        return False
    at = get_small(at, &number)
    if unlikely(at == NULL or at + (0 if number & 1 else number >> 1) != stop - 1 or (stop - 1)[0] != 0):
        return False
    record.timestamp_delta = <int32_t>((time >> 1) ^ (0 - (time & 1)))
    record.offset_delta = delta
    record.key = key
    record.key_size = -1 if key_size & 1 else <Py_ssize_t>(key_size >> 1)
    record.value = at
    record.value_size = -1 if number & 1 else <Py_ssize_t>(number >> 1)
    record.header_count = 0
    record.headers = record.stop = stop
    walk.at = stop
    walk.index += 1
    walk.previous_delta = delta
    return True


cdef bint next_any_record(Walk* walk, RecordView* record) noexcept nogil:
    cdef const uint8_t* at = walk.at
    cdef const uint8_t* stop = walk.stop
    cdef const uint8_t* behind
    cdef int32_t size = 0
    behind = get_varint(at, stop, &size)
    if unlikely(behind == NULL):
        return fail(record, BAD_VARINT, at, 0, 0) != NULL
    if unlikely(size < RECORD_SIZE_MIN - 1 or size > stop - behind):
        return fail(record, BAD_RECORD_SIZE, at, size, stop - behind) != NULL
    stop = behind + size
    # The attributes byte exists (the size was checked) and has no meaning yet.
    at = behind + 1
    behind = get_varlong(at, stop, &record.timestamp_delta)
    if unlikely(behind == NULL):
        return fail(record, BAD_VARINT, at, 0, 0) != NULL
    at = behind
    behind = get_varint(at, stop, &record.offset_delta)
    if unlikely(behind == NULL):
        return fail(record, BAD_VARINT, at, 0, 0) != NULL
    if unlikely(record.offset_delta <= walk.previous_delta or record.offset_delta > walk.last_offset_delta):
        return fail(record, BAD_OFFSET, at, record.offset_delta, walk.last_offset_delta) != NULL
    at = get_field(record, behind, stop, &record.key, &record.key_size)
    if unlikely(at == NULL):
        return False
    at = get_field(record, at, stop, &record.value, &record.value_size)
    if unlikely(at == NULL):
        return False
    behind = get_varint(at, stop, &record.header_count)
    if unlikely(behind == NULL):
        return fail(record, BAD_VARINT, at, 0, 0) != NULL
    # A header has at least two bytes.
    if unlikely(record.header_count < 0 or record.header_count > (stop - behind) // 2):
        return fail(record, BAD_HEADER_COUNT, at, record.header_count, stop - behind) != NULL
    record.headers = at = behind
    if record.header_count:
        at = get_headers(record, at, stop)
        if unlikely(at == NULL):
            return False
    if unlikely(at != stop):
        return fail(record, BAD_END, at, stop - at, 0) != NULL
    record.stop = stop
    walk.at = stop
    walk.index += 1
    walk.previous_delta = record.offset_delta
    return True


cdef inline bint next_record(Walk* walk, RecordView* record) noexcept nogil:
    """Reads the next record and checks every field of it; False with ``record.problem`` set."""
    return next_small_record(walk, record) or next_any_record(walk, record)


cdef inline void note_place(Place* place, Walk* walk) noexcept nogil:
    place.at, place.index, place.previous_delta = walk.at, walk.index, walk.previous_delta


cdef inline void step_back(Walk* walk, Place* place) noexcept nogil:
    walk.at, walk.index, walk.previous_delta = place.at, place.index, place.previous_delta


cdef object corrupt(Walk* walk, RecordView* record):
    """The error for the problem that ``next_record`` found."""
    reason = PROBLEMS[record.problem].format(found=record.found, limit=record.limit)
    return CorruptRecordError(f"record {walk.index}: {reason}", position=record.problem_at - walk.buffer)


cdef int begin_walk(
    Walk* walk, Py_buffer* data, Py_ssize_t position, Py_ssize_t stop, int32_t count, int32_t last_offset_delta
) except -1:
    """Begins a pass over ``count`` records in bytes ``position`` to ``stop``, after checking that this is possible."""
    if not 0 <= position <= stop <= data.len:
        raise CorruptRecordError(f"records up to byte {stop}, expected at most {data.len}", position=position)
    if not 0 <= count <= <int64_t>last_offset_delta + 1:
        raise CorruptRecordError(
            f"a record count of {count}, expected 0 to {<int64_t>last_offset_delta + 1}", position=position
        )
    # No input can make this allocate for records that do not exist.
    if count > (stop - position) // RECORD_SIZE_MIN:
        raise CorruptRecordError(
            f"a record count of {count}, expected at most what {stop - position} bytes can hold", position=position
        )
    walk.buffer = <const uint8_t*>data.buf
    walk.at = walk.buffer + position
    walk.stop = walk.buffer + stop
    walk.index = 0
    walk.count = count
    walk.previous_delta = -1
    walk.last_offset_delta = last_offset_delta
    return 0


cdef int end_walk(Walk* walk) except -1:
    if walk.at != walk.stop:
        raise CorruptRecordError(
            f"{walk.stop - walk.at} bytes left behind {walk.count} records, expected none",
            position=walk.at - walk.buffer,
        )
    return 0


cdef inline int64_t timestamp_of(int64_t base_timestamp, RecordView* record) noexcept nogil:
    """Wraps around as in Java if two foreign numbers have a sum beyond 64 bits."""
    return <int64_t>(<uint64_t>base_timestamp + <uint64_t>record.timestamp_delta)
