"""Checks all records of a payload without making objects. Part of _codec.pyx."""

RecordsSummary = namedtuple(
    "RecordsSummary",
    "first_offset_delta last_offset_delta max_timestamp max_timestamp_offset_delta min_timestamp null_key_count",
    module=__name__,
)


cdef struct Summary:
    int32_t first_delta
    int32_t last_delta
    int32_t max_timestamp_offset_delta
    int32_t null_key_count
    int64_t max_timestamp
    int64_t min_timestamp


cdef int check_walk(Walk* walk, int64_t base_timestamp, Summary* summary) except -1:
    """Checks every record up to the end of the payload."""
    cdef RecordView record
    cdef int32_t index, null_key_count = 0, max_timestamp_offset_delta = -1
    cdef int64_t timestamp, max_timestamp = INT64_MIN, min_timestamp = INT64_MAX
    summary.first_delta = -1
    for index in range(walk.count):
        if unlikely(not next_record(walk, &record)):
            raise corrupt(walk, &record)
        if index == 0:
            summary.first_delta = record.offset_delta
        null_key_count += record.key_size < 0
        timestamp = timestamp_of(base_timestamp, &record)
        if timestamp > max_timestamp or index == 0:
            max_timestamp = timestamp
            max_timestamp_offset_delta = record.offset_delta
        min_timestamp = min(min_timestamp, timestamp)
    end_walk(walk)
    summary.last_delta = walk.previous_delta
    summary.null_key_count = null_key_count
    summary.max_timestamp = max_timestamp if walk.count else -1
    summary.max_timestamp_offset_delta = max_timestamp_offset_delta
    summary.min_timestamp = min_timestamp if walk.count else -1
    return 0


cdef int check_walk_from(Walk* walk, int64_t first_delta, Walk* found) except -1:
    """Checks every record; ``found`` becomes the pass as it was before the first one at or above ``first_delta``."""
    cdef RecordView record
    found[0] = walk[0]
    while walk.index < walk.count:
        if unlikely(not next_record(walk, &record)):
            raise corrupt(walk, &record)
        if record.offset_delta < first_delta:
            found.at, found.index, found.previous_delta = walk.at, walk.index, walk.previous_delta
    return end_walk(walk)


def check_records(
    data, Py_ssize_t position, Py_ssize_t stop, int32_t count, int32_t last_offset_delta, int64_t base_timestamp=0
):
    """Checks the structure of all ``count`` records in bytes ``position`` to ``stop`` of ``data``; makes no objects.

    It compares every length with the remaining bytes and varints with their types; offset deltas must rise to at most
    ``last_offset_delta``, and records and bytes must end together.

    Returns a RecordsSummary: its timestamps are ``base_timestamp`` + delta, the offset of the largest is that of the
    first record with it, and without records all but the count are -1. Raises CorruptRecordError with the position
    in ``data``.
    """
    cdef Py_buffer view
    cdef Walk walk
    cdef Summary summary
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        begin_walk(&walk, &view, position, stop, count, last_offset_delta)
        check_walk(&walk, base_timestamp, &summary)
    finally:
        PyBuffer_Release(&view)
    return RecordsSummary(
        summary.first_delta,
        summary.last_delta,
        summary.max_timestamp,
        summary.max_timestamp_offset_delta,
        summary.min_timestamp,
        summary.null_key_count,
    )
