"""What a verification holds against the batches of a run, beyond the batches themselves. Part of _runs.pyx."""

from kstore.record.control import ControlRecordType as _ControlRecordType

cdef object COMMIT_TYPE = _ControlRecordType.COMMIT


cdef Py_ssize_t pair_count(array.array rows) except -1:
    if rows.ob_descr.typecode != c"q":
        raise ValueError("rows are an array('q')")
    return len(rows) // 2


cdef const int64_t* pairs_of(array.array rows, Py_ssize_t count) except? NULL:
    """The numbers of ``rows``; ValueError if it has become shorter than ``count`` pairs."""
    if len(rows) // 2 < count:
        raise ValueError(f"{len(rows) // 2} entries, expected the {count} there were")
    return <const int64_t*>rows.data.as_longlongs


@cython.final
cdef class OffsetCheck:
    """The entries of an offset index, held against the batches of its segment as these pass. Not thread-safe.

    ``rows`` (``OffsetIndex.rows``) are delta and position of each, both rising; ``base_offset`` is the segment's.
    A contradiction is a tuple (slot, what, base offset, last offset). ``what`` is "no start" if no batch starts at the
    entry's position, "above" if the batch there begins above the entry's offset, "first" if that batch begins with the
    entry's offset, as in the indexes of Kafka before 2.0, "no end" if no batch ends with it otherwise.
    """

    cdef array.array rows
    cdef int64_t base_offset
    cdef Py_ssize_t count
    # The slots up to which positions, and offsets, were held against batches.
    cdef readonly Py_ssize_t position_slot
    cdef Py_ssize_t offset_slot

    def __cinit__(self, array.array rows not None, int64_t base_offset):
        self.rows = rows
        self.base_offset = base_offset
        self.count = pair_count(rows)

    cdef int note(self, int64_t position, int64_t base_delta, int64_t last_delta, list found) except -1:
        cdef const int64_t* rows = pairs_of(self.rows, self.count)
        cdef Py_ssize_t slot
        while self.position_slot < self.count and rows[2 * self.position_slot + 1] <= position:
            slot = self.position_slot
            self.position_slot += 1
            if rows[2 * slot + 1] < position:
                found.append((slot, "no start", 0, 0))
            elif base_delta > rows[2 * slot]:
                found.append((slot, "above", self.base_offset + base_delta, self.base_offset + last_delta))
        while self.offset_slot < self.count and rows[2 * self.offset_slot] <= last_delta:
            slot = self.offset_slot
            self.offset_slot += 1
            if rows[2 * slot] < last_delta and slot < self.position_slot:
                is_first = rows[2 * slot] == base_delta and rows[2 * slot + 1] == position
                found.append((slot, "first" if is_first else "no end", 0, 0))
        return 0

    def add(self, int64_t position, int64_t base_offset, int64_t last_offset):
        """What a batch contradicts; no later one begins before it."""
        cdef list found = []
        # The first offset of an old compressed batch may be anything up to its last one.
        self.note(position, max(base_offset, self.base_offset) - self.base_offset, last_offset - self.base_offset, found)
        return found

    def add_run(self, Run run not None):
        """What the batches of a run contradict, in order."""
        cdef Head head
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(run.data)
        cdef const uint8_t* at = data + run.start
        cdef const uint8_t* stop = data + run.stop
        cdef const uint8_t* following
        cdef list found = []
        while at < stop:
            following = next_head(at, stop, &head)
            self.note(
                run.position + (at - data), head.base_offset - self.base_offset, head.last_offset - self.base_offset, found
            )
            at = following
        return found

    def skip(self, int64_t start, int64_t stop):
        """Passes over the entries with positions below ``stop``; returns the contradictions of those below ``start``.

        Nothing is known of the bytes from ``start`` on.
        """
        cdef const int64_t* rows = pairs_of(self.rows, self.count)
        cdef list found = []
        while self.position_slot < self.count and rows[2 * self.position_slot + 1] < stop:
            if rows[2 * self.position_slot + 1] < start:
                found.append((self.position_slot, "no start", 0, 0))
            self.position_slot += 1
        self.offset_slot = max(self.offset_slot, self.position_slot)
        return found


@cython.final
cdef class TimeCheck:
    """The entries of a time index, held against the batches of its segment as these pass. Not thread-safe.

    ``rows`` (``TimeIndex.rows``) are timestamp and delta of each. A contradiction is a tuple (slot, what, timestamp).
    ``what`` is "earlier" if an earlier batch already has the entry's timestamp or a greater one, "other" if the greatest
    timestamp of the entry's own batch differs.
    """

    cdef array.array rows
    cdef int64_t base_offset
    cdef Py_ssize_t count
    # How many were held against batches.
    cdef readonly Py_ssize_t slot
    # The greatest timestamp of the batches that passed, -1 without any, and whether no entry can hold an offset.
    cdef readonly int64_t max_timestamp
    cdef readonly bint is_far

    def __cinit__(self, array.array rows not None, int64_t base_offset):
        self.rows = rows
        self.base_offset = base_offset
        self.count = pair_count(rows)
        self.max_timestamp = -1

    cdef int note(self, int64_t base_delta, int64_t last_delta, int64_t timestamp, list found) except -1:
        cdef const int64_t* rows = pairs_of(self.rows, self.count)
        cdef Py_ssize_t slot
        while self.slot < self.count and rows[2 * self.slot + 1] <= last_delta:
            slot = self.slot
            self.slot += 1
            if self.max_timestamp >= rows[2 * slot]:
                found.append((slot, "earlier", self.max_timestamp))
            elif base_delta <= rows[2 * slot + 1] and timestamp != rows[2 * slot]:
                found.append((slot, "other", timestamp))
        self.max_timestamp = max(self.max_timestamp, timestamp)
        self.is_far |= last_delta > INT32_MAX
        return 0

    def add(self, int64_t base_offset, int64_t last_offset, int64_t max_timestamp):
        """What a batch contradicts."""
        cdef list found = []
        self.note(
            max(base_offset, self.base_offset) - self.base_offset, last_offset - self.base_offset, max_timestamp, found
        )
        return found

    def add_run(self, Run run not None):
        """What the batches of a run contradict, in order."""
        cdef Head head
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.start
        cdef const uint8_t* stop = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.stop
        cdef const uint8_t* following
        cdef list found = []
        while at < stop:
            following = next_head(at, stop, &head)
            self.note(
                head.base_offset - self.base_offset, head.last_offset - self.base_offset,
                <int64_t>big_endian_64(at + 35), found,
            )
            at = following
        return found

    def replace(self, array.array rows not None):
        """Takes other entries for those that no batch has come to."""
        if pair_count(rows) < self.slot:
            raise ValueError(f"{pair_count(rows)} entries, expected at least {self.slot}")
        self.rows = rows
        self.count = pair_count(rows)


def falling_epoch(Run run not None, int64_t latest):
    """The first batch of a run whose epoch is below an earlier one: (its leader epoch, its base offset, the greatest
    epoch before it), or None. ``latest`` is the greatest epoch before the run. Negative epochs do not count."""
    cdef Head head
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.start
    cdef const uint8_t* stop = <const uint8_t*>PyBytes_AS_STRING(run.data) + run.stop
    cdef const uint8_t* following
    cdef int64_t epoch
    while at < stop:
        following = next_head(at, stop, &head)
        epoch = <int32_t>big_endian_32(at + 12)
        if 0 <= epoch < latest:
            return epoch, head.base_offset, latest
        latest = max(latest, epoch)
        at = following
    return None


def pass_producers(
    Run run not None,
    Py_ssize_t start,
    int64_t next_offset,
    int64_t gap_end,
    int64_t snapshot_offset,
    int64_t visible_offset,
    dict open_records not None,
    dict ends not None,
    dict last_ends not None,
):
    """Passes the batches of a run from place ``start`` in its data on, by the rules of ``ProducerCheck.note``.

    Stops before a batch that needs more: an abort marker, a compressed control batch, a producer's batch at or above
    ``snapshot_offset``, and one that ends at or above ``visible_offset`` after others did not. Returns the place of that
    batch, and ``next_offset`` and ``gap_end`` there. It records in the three dicts what the producers' batches change;
    ``follow_producers`` does the rest.
    """
    cdef Head head
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(run.data)
    cdef const uint8_t* at
    cdef const uint8_t* stop = data + run.stop
    cdef const uint8_t* following
    cdef int64_t producer_id
    cdef int32_t coordinator_epoch = 0
    cdef int kind
    cdef bint is_visible, was_visible = False
    if not run.start <= start <= run.stop:
        raise ValueError(f"start {start}, expected {run.start} to {run.stop}")
    at = data + start
    while at < stop:
        following = next_head(at, stop, &head)
        is_visible = head.last_offset >= visible_offset
        if at == data + start:
            was_visible = is_visible
        producer_id = <int64_t>big_endian_64(at + 43)
        kind = NO_MARKER
        if producer_id >= 0:
            if head.attributes & ATTRIBUTE_CONTROL:
                if head.attributes & ATTRIBUTE_CODEC:
                    break
                kind = read_marker(at, &head, &coordinator_epoch)
            if kind == ABORT or head.base_offset >= snapshot_offset or is_visible != was_visible:
                break
        if head.base_offset > next_offset or head.record_count == 0:
            gap_end = head.last_offset
        next_offset = head.last_offset + 1
        if producer_id >= 0:
            if kind == COMMIT:
                ends[head.last_offset] = (producer_id, COMMIT_TYPE)
                open_records.pop(producer_id, None)
                last_ends[producer_id] = head.last_offset
            elif (
                is_visible
                and head.attributes & (ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL) == ATTRIBUTE_TRANSACTIONAL
                and head.record_count
            ):
                open_records[producer_id] = head.last_offset
        at = following
    return at - data, next_offset, gap_end
