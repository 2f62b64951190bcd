"""Makes Python objects of the records of a payload: Records, values, columns. Part of _codec.pyx."""

cdef array.array INT64_TEMPLATE = _array("q")


cdef inline int64_t relative(int64_t offset, int64_t base_offset) noexcept nogil:
    """``offset`` relative to ``base_offset`` (0 or more), never negative."""
    return offset - base_offset if offset > base_offset else 0


cdef int check_base(int64_t base_offset, int32_t last_offset_delta) except -1:
    # The end offset after the last record is an offset too.
    if not 0 <= base_offset < INT64_MAX - max(last_offset_delta, 0):
        raise CorruptRecordError(f"base offset {base_offset} + {last_offset_delta}, expected 0 to 2^63 - 2")
    return 0


cdef int check_timestamp_type(int timestamp_type) except -1:
    if not 0 <= timestamp_type < len(TIMESTAMP_TYPES):
        raise ValueError(f"timestamp type {timestamp_type}, expected an index into TIMESTAMP_TYPES")
    return 0


@cython.final
cdef class RecordCursor:
    """An iterator of the Records of one batch whose offsets are in [first_offset, stop_offset). Not thread-safe.

    The whole payload is checked before the first record is returned, whatever the window (``check_records``).

    Arguments: the payload is bytes ``position`` to ``stop`` of ``data`` with ``count`` records; ``timestamp_type``
    is an index into TIMESTAMP_TYPES; with LogAppendTime every record has ``append_time`` (ms).
    Raises CorruptRecordError.
    """

    cdef Py_buffer view
    cdef Walk walk
    cdef int64_t first_delta
    cdef int64_t stop_delta
    cdef int64_t base_offset
    cdef int64_t base_timestamp
    cdef int64_t append_time
    cdef int32_t leader_epoch
    cdef int8_t timestamp_type
    cdef bint is_reading
    # Whether a record's object is being made: still set after a failure, and then the next call starts from ``before``.
    cdef bint is_making
    cdef Place before
    # After the last returned record; initially where it begins. It moves only when the record's object exists.
    cdef readonly int64_t next_offset
    cdef tuple _origin

    def __cinit__(
        self,
        data,
        Py_ssize_t position,
        Py_ssize_t stop,
        int32_t count,
        int64_t base_offset,
        int64_t base_timestamp,
        int32_t last_offset_delta,
        int timestamp_type,
        int64_t append_time,
        int32_t leader_epoch,
        int64_t first_offset=INT64_MIN,
        int64_t stop_offset=INT64_MAX,
    ):
        cdef Walk walk
        check_base(base_offset, last_offset_delta)
        check_timestamp_type(timestamp_type)
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        begin_walk(&walk, &self.view, position, stop, count, last_offset_delta)
        self.first_delta = relative(first_offset, base_offset)
        self.stop_delta = relative(stop_offset, base_offset)
        check_walk_from(&walk, self.first_delta, &self.walk)
        self.base_offset = base_offset
        self.base_timestamp = base_timestamp
        self.append_time = append_time
        self.leader_epoch = leader_epoch
        self.timestamp_type = timestamp_type
        self.next_offset = max(first_offset, base_offset)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    @property
    def has_more(self):
        """Whether another record remains, as far as is known without examining it."""
        return self.is_making or self.walk.index < self.walk.count

    @property
    def origin(self):
        """The topic and partition, for ConsumerRecords; None for Records."""
        return self._origin

    @origin.setter
    def origin(self, given):
        self._origin = checked_origin(given)

    def end(self):
        """Returns no more records."""
        self.finish()

    cdef int finish(self) except -1:
        """Releases the buffer: an exhausted cursor must not keep a bytearray from being resized."""
        self.walk.count = 0
        self.is_making = False
        # Making header objects may run the garbage collector, and with it any code, even this cursor's __next__.
        if not self.is_reading:
            PyBuffer_Release(&self.view)
        return 0

    cdef tuple headers(self, RecordView* record):
        if self.is_reading:
            raise RuntimeError("a RecordCursor was used while it was making a record")
        self.is_reading = True
        try:
            return header_objects(record)
        finally:
            self.is_reading = False

    def __iter__(self):
        return self

    def __next__(self):
        cdef RecordView view
        cdef Record record
        if unlikely(self.is_making):
            step_back(&self.walk, &self.before)
            self.is_making = False
        while self.walk.index < self.walk.count:
            note_place(&self.before, &self.walk)
            if unlikely(not next_record(&self.walk, &view)):
                # Only a buffer that was changed after the constructor's check leads here.
                error = corrupt(&self.walk, &view)
                self.finish()
                raise error
            if view.offset_delta >= self.stop_delta:
                break
            if view.offset_delta < self.first_delta:
                continue
            self.is_making = True
            if self._origin is None:
                record = Record.__new__(Record)
            else:
                record = ConsumerRecord.__new__(ConsumerRecord)
                record.origin = self._origin
            record.offset = self.base_offset + view.offset_delta
            record.timestamp_type_index = self.timestamp_type
            if self.timestamp_type == LOG_APPEND_TIME:
                record.timestamp = self.append_time
            else:
                record.timestamp = timestamp_of(self.base_timestamp, &view)
            record.leader_epoch = self.leader_epoch
            record.key = field_object(view.key, view.key_size)
            record.value = field_object(view.value, view.value_size)
            record.stored_headers = () if view.header_count == 0 else self.headers(&view)
            self.is_making = False
            self.next_offset = max(self.next_offset, record.offset + 1)
            return record
        self.finish()
        raise StopIteration


def decode_values(
    data,
    Py_ssize_t position,
    Py_ssize_t stop,
    int32_t count,
    int64_t base_offset,
    int32_t last_offset_delta,
    int64_t first_offset=INT64_MIN,
    int64_t stop_offset=INT64_MAX,
):
    """The values (bytes or None) of the records whose offsets are in [first_offset, stop_offset), as a list.

    The whole payload is checked, whatever the window; CorruptRecordError as in ``check_records``.
    """
    cdef Py_buffer view
    cdef Walk walk
    cdef RecordView record
    cdef Py_ssize_t taken = 0
    cdef int64_t first_delta, stop_delta
    cdef bytes value
    cdef list values
    check_base(base_offset, last_offset_delta)
    first_delta, stop_delta = relative(first_offset, base_offset), relative(stop_offset, base_offset)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        begin_walk(&walk, &view, position, stop, count, last_offset_delta)
        values = PyList_New(count)
        while walk.index < count:
            if unlikely(not next_record(&walk, &record)):
                raise corrupt(&walk, &record)
            if first_delta <= record.offset_delta < stop_delta:
                value = field_object(record.value, record.value_size)
                Py_INCREF(value)
                PyList_SET_ITEM(values, taken, value)
                taken += 1
        end_walk(&walk)
    finally:
        PyBuffer_Release(&view)
    if taken < count:
        del values[taken:]
    return values


def decode_offsets_timestamps(
    data,
    Py_ssize_t position,
    Py_ssize_t stop,
    int32_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    int32_t last_offset_delta,
    int timestamp_type,
    int64_t append_time,
    int64_t first_offset=INT64_MIN,
    int64_t stop_offset=INT64_MAX,
):
    """(offsets, timestamps in ms), two ``array('q')``, of the records with offsets in [first_offset, stop_offset).

    The whole payload is checked, whatever the window; CorruptRecordError as in ``check_records``.
    """
    cdef Py_buffer view
    cdef Walk walk
    cdef RecordView record
    cdef Py_ssize_t taken = 0
    cdef int64_t first_delta, stop_delta
    cdef array.array offsets, timestamps
    check_base(base_offset, last_offset_delta)
    check_timestamp_type(timestamp_type)
    first_delta, stop_delta = relative(first_offset, base_offset), relative(stop_offset, base_offset)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        begin_walk(&walk, &view, position, stop, count, last_offset_delta)
        offsets = array.clone(INT64_TEMPLATE, count, False)
        timestamps = array.clone(INT64_TEMPLATE, count, False)
        while walk.index < count:
            if unlikely(not next_record(&walk, &record)):
                raise corrupt(&walk, &record)
            if first_delta <= record.offset_delta < stop_delta:
                offsets.data.as_longlongs[taken] = base_offset + record.offset_delta
                if timestamp_type == LOG_APPEND_TIME:
                    timestamps.data.as_longlongs[taken] = append_time
                else:
                    timestamps.data.as_longlongs[taken] = timestamp_of(base_timestamp, &record)
                taken += 1
        end_walk(&walk)
    finally:
        PyBuffer_Release(&view)
    array.resize(offsets, taken)
    array.resize(timestamps, taken)
    return offsets, timestamps
