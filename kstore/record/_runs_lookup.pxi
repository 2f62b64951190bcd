"""One record by its offset: headers only up to its batch, that batch's CRC, and the record. Part of _runs.pyx."""


def find_batch(
    bytes data not None,
    Py_ssize_t size_left,
    int64_t target,
    int64_t next_offset,
    int64_t offset_stop,
    int64_t first_indexed=-1,
    int64_t indexed=-1,
    Py_ssize_t indexed_at=-1,
):
    """Where the batch of offset ``target`` begins in ``data``, at whose first byte a batch begins.

    Returns its position and size, of which ``data`` may hold less; None if a header or an offset on the way needs a
    decision, or if no plain batch in ``data`` holds the offset. Its CRC is not checked, only the headers up to it.

    Args:
        size_left: bytes up to where the last batch ends, which may lie after ``data``.
        next_offset: no batch begins below it.
        offset_stop: as in ``walk``.
        first_indexed: the last offset of the first batch by its index entry, -1 if it has none.
        indexed: the last offset of the batch at byte ``indexed_at``, by its index entry.
    """
    cdef RunWalk walk
    cdef Head head
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef bint is_believed
    if next_offset < 0:
        raise ValueError(f"next_offset {next_offset}, expected 0 or more")
    walk.data = <const uint8_t*>PyBytes_AS_STRING(data)
    walk.at = 0
    walk.stop = min(size, size_left)
    walk.end = size_left
    walk.next_offset = next_offset
    walk.offset_stop = offset_stop
    walk.known_end = 0
    while walk.stop - walk.at >= HEADER_SIZE:
        if walk.data[walk.at + MAGIC_POSITION] != MAGIC or not read_head(walk.data + walk.at, &head):
            return None
        if head.size > walk.end - walk.at or head.last_offset >= offset_stop:
            return None
        if not walk.next_offset <= head.base_offset <= target:
            return None
        is_believed = head.base_offset == walk.next_offset or (walk.at == indexed_at and head.last_offset == indexed)
        if first_indexed >= 0:
            # Header and index entry agree, or neither is believed.
            if head.last_offset != first_indexed:
                return None
            is_believed = True
            first_indexed = -1
        if head.last_offset >= target:
            if not is_believed and (head.size > walk.stop - walk.at or judge_gap(&walk, &head) != DATA_END):
                return None
            return walk.at, head.size
        if head.size > walk.stop - walk.at:
            return None
        walk.next_offset = head.last_offset + 1
        walk.at += head.size
    return None


cdef bint pass_records(Walk* walk, int32_t wanted) noexcept nogil:
    """Passes the records below offset delta ``wanted``; False if there is no such record, or a size cannot be right."""
    cdef RecordView record
    cdef const uint8_t* at
    if walk.count <= walk.last_offset_delta:
        # Compacted: only the records tell which offsets are left.
        while walk.index < walk.count:
            at = walk.at
            if not next_record(walk, &record):
                return False
            if record.offset_delta == wanted:
                walk.at = at
                walk.index -= 1
                walk.previous_delta = wanted - 1
                return True
        return False
    if not pass_sizes(walk, wanted, walk.stop):
        return False
    walk.previous_delta = wanted - 1
    return True


cdef bint pass_sizes(Walk* walk, int32_t wanted, const uint8_t* limit) noexcept nogil:
    """Passes the records below index ``wanted`` that end at or before ``limit``; False if a size cannot be right."""
    cdef const uint8_t* at = walk.at
    cdef const uint8_t* first
    cdef int32_t index = walk.index
    cdef int32_t size = 0
    cdef Py_ssize_t step, rest
    cdef uint32_t lead, mask
    while index < wanted:
        first = get_varint(at, walk.stop, &size)
        if unlikely(first == NULL or size < RECORD_SIZE_MIN - 1 or size > walk.stop - first):
            return False
        if size > limit - first:
            break
        step = first + size - at
        index += 1
        if first - at > 4:
            at += step
            continue
        # The bytes of its size. A record has more than four bytes.
        mask = <uint32_t>0xFFFFFFFF << (32 - 8 * (first - at))
        lead = big_endian_32(at) & mask
        at += step
        rest = min(limit - at, (<int64_t>wanted - index) * step)
        while rest >= step and big_endian_32(at) & mask == lead:
            # As large as the record before: the processor guesses so, and reads on before it has the bytes of the size.
            at += step
            rest -= step
            index += 1
    walk.at, walk.index = at, index
    return True


cdef bint has_right_crc(bytes data, Py_ssize_t at, Py_ssize_t size) except -1:
    """Whether the CRC of the batch at byte ``at``, which ``data`` holds whole, is right."""
    cdef const uint8_t* batch = <const uint8_t*>PyBytes_AS_STRING(data) + at
    cdef uint32_t crc
    if size >= SIZE_WITHOUT_GIL and HAS_INSTRUCTION:
        with nogil:
            crc = small_crc(batch + CRC_START, size - CRC_START)
        return crc == big_endian_32(batch + 17)
    if size < LARGE_SIZE or HAS_INSTRUCTION:
        return small_crc(batch + CRC_START, size - CRC_START) == big_endian_32(batch + 17)
    return <uint32_t>batch_crc(memoryview(data)[at + CRC_START : at + size]) == big_endian_32(batch + 17)


cdef bint is_plain_batch(bytes data, Py_ssize_t at, int64_t target, Head* head) noexcept:
    """Whether a batch that spans offset ``target``, of version 2 and neither compressed nor a control batch, is whole at
    byte ``at``."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef const uint8_t* batch
    if not 0 <= at <= size - HEADER_SIZE:
        return False
    batch = <const uint8_t*>PyBytes_AS_STRING(data) + at
    if batch[MAGIC_POSITION] != MAGIC or not read_head(batch, head) or head.size > size - at:
        return False
    if head.attributes & (ATTRIBUTE_CODEC | ATTRIBUTE_CONTROL):
        return False
    return head.base_offset <= target <= head.last_offset


def batch_run(bytes data not None, Py_ssize_t at, int64_t target, int64_t offset_stop, Py_ssize_t size_max):
    """The plain batch at byte ``at`` of ``data`` as a Run, checked as by ``walk_run``; None if it is not plain.

    Also None if it does not span offset ``target``, ends at or above ``offset_stop``, or has more than ``size_max``
    bytes.
    """
    cdef Head head
    if not is_plain_batch(data, at, target, &head) or head.last_offset >= offset_stop or head.size > size_max:
        return None
    if not has_right_crc(data, at, head.size):
        return None
    if not has_whole_records(<const uint8_t*>PyBytes_AS_STRING(data) + at, &head):
        return None
    return one_batch(data, at, &head)


def record_at(bytes data not None, Py_ssize_t at, int64_t target, array.array tally not None):
    """The Record with offset ``target`` from the plain batch at byte ``at`` of ``data``, whose CRC is checked.

    None if the batch is compressed, a control batch, not whole or damaged, or has no such record. Only the sizes
    of the records before it are read, unless some are missing, and nothing of those after it. ``tally`` as in ``Run.records``.
    """
    cdef Head head
    if not is_plain_batch(data, at, target, &head):
        return None
    return record_of_plain(data, at, target, &head, tally)


cdef Record record_of_plain(bytes data, Py_ssize_t at, int64_t target, Head* head, array.array tally):
    cdef Walk walk
    if not begin_records(&walk, <const uint8_t*>PyBytes_AS_STRING(data) + at, head):
        return None
    if not has_right_crc(data, at, head.size):
        return None
    return record_of_walk(&walk, target, <const uint8_t*>PyBytes_AS_STRING(data) + at, head, tally)


cdef Record record_of_walk(Walk* walk, int64_t target, const uint8_t* header, Head* head, array.array tally):
    """The Record with offset ``target``, which is at or after where ``walk`` is; None if it does not exist."""
    cdef RecordView view
    cdef RunRecords cursor
    cdef Record record
    cdef int32_t delta = <int32_t>(target - head.base_offset)
    if not pass_records(walk, delta) or not next_record(walk, &view) or view.offset_delta != delta:
        return None
    cursor = RunRecords.__new__(RunRecords)
    cursor.describe(header, head)
    record = make_record(cursor, &view, None)
    # Once the record is made, which may fail.
    note_window(tally, head, target, target + 1)
    return record


cdef Run one_batch(bytes data, Py_ssize_t at, Head* head):
    cdef const uint8_t* batch = <const uint8_t*>PyBytes_AS_STRING(data) + at
    cdef Run run = Run.__new__(Run)
    run.data = data
    run.position = 0
    run.start = at
    run.stop = at + head.size
    run.base_offset = head.base_offset
    run.next_offset = head.last_offset + 1
    run.batch_count = 1
    run.record_count = head.record_count
    run.has_gap = run.is_compressed = False
    run.has_producers = <int64_t>big_endian_64(batch + 43) >= 0
    run.leader_epoch_max = max(<int32_t>big_endian_32(batch + 12), <int32_t>-1)
    run.reason_index = SIZE_LIMIT
    return run
