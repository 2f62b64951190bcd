"""The times and the transactions of a run's batches, for reports. Part of _runs.pyx."""


def batch_times(Run run not None, int64_t width_ms):
    """Rows of (number, size, record count, batch count, last offset): the batches by their greatest timestamp.

    ``number`` counts spans of ``width_ms`` from 1970 on; it is -1 for batches whose timestamp is below 0. Neighbouring
    batches of one span share a row.
    """
    cdef Head head
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.start
    cdef const uint8_t* stop = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.stop
    cdef const uint8_t* following
    cdef int64_t timestamp
    # The span [low, high) of the row that is being added up.
    cdef int64_t low = 0
    cdef int64_t high = 0
    cdef int64_t number = -1
    cdef int64_t size = 0
    cdef int64_t record_count = 0
    cdef int64_t batch_count = 0
    cdef int64_t last_offset = -1
    cdef list rows = []
    if width_ms < 1:
        raise ValueError(f"a width of {width_ms} ms, expected at least 1")
    while at < stop:
        following = next_head(at, stop, &head)
        timestamp = max(<int64_t>big_endian_64(at + 35), <int64_t>-1)
        if batch_count and not low <= timestamp <= high:
            rows.append((number, size, record_count, batch_count, last_offset))
            size = record_count = batch_count = 0
        if not batch_count:
            number = timestamp // width_ms if timestamp >= 0 else -1
            low = number * width_ms if number >= 0 else -1
            high = -1 if number < 0 else low + min(width_ms - 1, INT64_MAX - low)
        size += head.size
        record_count += head.record_count
        batch_count += 1
        last_offset = head.last_offset
        at = following
    if batch_count:
        rows.append((number, size, record_count, batch_count, last_offset))
    return rows


def follow_transactions(Run run not None, dict open_transactions not None, Py_ssize_t count_max):
    """The transactions that end in a run, as rows of (producer id, whether it committed, its first offset, the greatest
    timestamp of its first batch, the marker's offset and timestamp). A marker that ends nothing has the first offset -1.

    ``open_transactions``: the first offset and time of each by producer id, brought up to date; at most ``count_max``.
    """
    cdef Head head
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.start
    cdef const uint8_t* stop = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.stop
    cdef const uint8_t* following
    cdef int64_t producer_id
    cdef int64_t known = -1
    cdef int32_t coordinator_epoch = 0
    cdef int kind
    cdef list ended = []
    while at < stop:
        following = next_head(at, stop, &head)
        producer_id = <int64_t>big_endian_64(at + 43)
        if head.attributes & ATTRIBUTE_CONTROL:
            kind = read_marker(at, &head, &coordinator_epoch) if head.record_count == 1 else UNREADABLE
            if kind == ABORT or kind == COMMIT:
                first_offset, first_timestamp = open_transactions.pop(producer_id, (-1, -1))
                ended.append((
                    producer_id, kind == COMMIT, first_offset, first_timestamp, head.base_offset,
                    <int64_t>big_endian_64(at + 35),
                ))
                known = -1
        elif head.attributes & ATTRIBUTE_TRANSACTIONAL and producer_id >= 0 and producer_id != known:
            if producer_id in open_transactions:
                known = producer_id
            elif len(open_transactions) < count_max:
                open_transactions[producer_id] = (head.base_offset, <int64_t>big_endian_64(at + 35))
                known = producer_id
        at = following
    return ended
