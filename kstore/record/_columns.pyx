# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Decodes batches straight into the buffers of Arrow columns: no Python object for a record. No I/O here, no pyarrow.

    bytes      validity bitmap (none without nulls) | offsets int32, or int64 if large | data
    numbers    int64 or int32, never null
    headers    validity | offsets int32 | of all headers together: key as bytes or as text, value as bytes

Columns that are not requested are neither copied nor allocated, but they are checked like the rest: every record goes
through the codec's own walk (_codec_read.pxi), and nothing of an unreadable batch stays in the columns.

A chunk ends before the record that would exceed its limits, also within a batch. Then the rest of the batch is checked
at once, so that it is known to be whole, and ``resume`` continues where the chunk ended.
"""

from collections import namedtuple

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cimport cython

from kstore.record._layout cimport (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_SIZE,
    LOG_OVERHEAD,
    RECORD_SIZE_MIN,
)

from kstore.errors import CorruptRecordError

cdef extern from *:
    int __builtin_clzll(uint64_t value) nogil
    bint unlikely(bint condition) nogil

cdef enum:
    LOG_APPEND_TIME = 1
    NO_TIMESTAMP_TYPE = 2
    # Kafka's number for a timestamp without a type.
    NO_TIMESTAMP_TYPE_ID = -1
    CAPACITY_MIN = 64

include "_codec_varint.pxi"
include "_codec_read.pxi"
include "_codec_text.pxi"
include "_runs_head.pxi"

# The buffers of one chunk; a column that was not requested is None, and so is a validity bitmap without nulls.
BytesColumn = namedtuple("BytesColumn", "validity null_count offsets data", module=__name__)
HeadersColumn = namedtuple("HeadersColumn", "validity null_count offsets entry_count key value", module=__name__)
Columns = namedtuple("Columns", "row_count size key value offset timestamp timestamp_type headers", module=__name__)


include "_columns_memory.pxi"


@cython.final
cdef class ColumnBuilder:
    """Collects the records of batches as the buffers of Arrow columns, chunk after chunk. Not thread-safe.

    Arguments: the requested columns; with ``text_keys`` what is not UTF-8 in a header's key becomes U+FFFD, as in
    ``Record.headers``; ``large`` for 64-bit offsets; a chunk has at most ``rows_max`` records and, if it
    has more than one, at most ``size_max`` bytes, so that 32-bit offsets reach all of its data. Timestamps are ms times
    ``timestamp_factor``, cut to 64 bits.
    """

    cdef readonly Py_ssize_t row_count
    # The bytes of the chunk's buffers.
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t rows_max
    cdef Py_ssize_t size_max
    cdef Py_ssize_t row_size
    cdef int64_t timestamp_factor
    cdef bint has_key
    cdef bint has_value
    cdef bint has_offset
    cdef bint has_timestamp
    cdef bint has_timestamp_type
    cdef bint has_headers
    cdef bint text_keys
    cdef bint large
    cdef Bytes key
    cdef Bytes value
    cdef Memory offset
    cdef Memory timestamp
    cdef Memory timestamp_type
    cdef Memory header_validity
    cdef Memory header_offsets
    cdef Py_ssize_t headerless_count
    cdef Py_ssize_t header_count
    cdef Bytes header_key
    cdef Bytes header_value
    # The batch in which a chunk ended.
    cdef readonly bint is_within_batch
    cdef Py_buffer view
    cdef Walk walk
    cdef int64_t first_delta
    cdef int64_t stop_delta
    cdef int64_t base_offset
    cdef int64_t base_timestamp
    cdef int64_t append_time
    cdef int type_index

    def __cinit__(
        self,
        *,
        bint key=False,
        bint value=False,
        bint offset=False,
        bint timestamp=False,
        bint timestamp_type=False,
        bint headers=False,
        bint text_keys=True,
        bint large=False,
        Py_ssize_t rows_max=INT32_MAX,
        Py_ssize_t size_max=INT32_MAX,
        int64_t timestamp_factor=1,
    ):
        cdef Py_ssize_t width = 8 if large else 4
        if not 1 <= rows_max <= INT32_MAX:
            raise ValueError(f"rows_max {rows_max}, expected 1 to {INT32_MAX}")
        if size_max < 1 or (size_max > INT32_MAX and not large):
            raise ValueError(f"size_max {size_max}, expected 1 to {INT32_MAX}, or more with large offsets")
        if timestamp_factor < 1:
            raise ValueError(f"timestamp_factor {timestamp_factor}, expected 1 or more")
        self.has_key, self.has_value, self.has_offset = key, value, offset
        self.has_timestamp, self.has_timestamp_type, self.has_headers = timestamp, timestamp_type, headers
        self.text_keys = text_keys
        self.large = large
        self.rows_max = rows_max
        self.size_max = size_max
        self.timestamp_factor = timestamp_factor
        self.row_size = width * (key + value) + 8 * (offset + timestamp) + 4 * (timestamp_type + headers)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)
        free_bytes(&self.key)
        free_bytes(&self.value)
        free_bytes(&self.header_key)
        free_bytes(&self.header_value)
        PyMem_RawFree(self.offset.data)
        PyMem_RawFree(self.timestamp.data)
        PyMem_RawFree(self.timestamp_type.data)
        PyMem_RawFree(self.header_validity.data)
        PyMem_RawFree(self.header_offsets.data)

    def append(
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
        int64_t first_offset=INT64_MIN,
        int64_t stop_offset=INT64_MAX,
    ):
        """Adds the records of a batch whose offsets are in [first_offset, stop_offset).

        The whole payload is checked, whatever the window; arguments and errors as of a ``RecordCursor``. After an error
        the columns are as they were. False: the chunk is full, and ``finish`` and ``resume`` must come next.
        """
        cdef Walk rest
        cdef RecordView record
        cdef bint is_through = False
        self.refuse_within_batch()
        # The end offset after the last record is an offset too.
        if not 0 <= base_offset < INT64_MAX - max(last_offset_delta, 0):
            raise CorruptRecordError(f"base offset {base_offset} + {last_offset_delta}, expected 0 to 2^63 - 2")
        if not 0 <= timestamp_type <= NO_TIMESTAMP_TYPE:
            raise ValueError(f"timestamp type {timestamp_type}, expected an index into TIMESTAMP_TYPES")
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.is_within_batch = True
        try:
            begin_walk(&self.walk, &self.view, position, stop, count, last_offset_delta)
            self.first_delta = first_offset - base_offset if first_offset > base_offset else 0
            self.stop_delta = stop_offset - base_offset if stop_offset > base_offset else 0
            self.base_offset = base_offset
            self.base_timestamp = base_timestamp
            self.append_time = append_time
            self.type_index = timestamp_type
            is_through = self.fill(True)
        except:
            self.leave_batch()
            raise
        if is_through:
            self.leave_batch()
        return is_through

    def resume(self):
        """Continues the batch in which the previous chunk ended; False: this chunk is full too."""
        cdef bint is_through
        if not self.is_within_batch:
            return True
        try:
            is_through = self.fill(False)
        except CorruptRecordError:
            # Only a buffer that was changed after its first check leads here.
            self.leave_batch()
            raise
        if is_through:
            self.leave_batch()
        return is_through

    def append_run(
        self,
        bytes data not None,
        Py_ssize_t start,
        Py_ssize_t stop,
        int64_t first_offset,
        int64_t stop_offset,
        array.array tally not None,
        array.array aborted=None,
    ):
        """Adds the records of a run's batches, those in bytes ``start`` to ``stop`` of ``data``, as ``Run.records``
        gives them, and counts them in ``tally``.

        Returns where it stopped. If ``is_within_batch`` is set then, the chunk is full: ``finish`` and ``resume``, and
        then this for the rest, come next. Raises CorruptRecordError only if the bytes are no run.
        """
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef Head head
        cdef int64_t offset
        self.refuse_within_batch()
        if not 0 <= start <= stop <= PyBytes_GET_SIZE(data):
            raise ValueError(f"bytes {start} to {stop}, expected 0 to the {PyBytes_GET_SIZE(data)} there are")
        if tally.ob_descr.typecode != c"q" or len(tally) != 3:
            raise ValueError("a tally is an array('q') of three numbers")
        if aborted is not None and (aborted.ob_descr.typecode != c"q" or len(aborted) % 3):
            raise ValueError("aborted transactions are an array('q') of rows of three numbers")
        at = <const uint8_t*>PyBytes_AS_STRING(data) + start
        end = <const uint8_t*>PyBytes_AS_STRING(data) + stop
        while at < end and first_offset < stop_offset:
            if unlikely(end - at < HEADER_SIZE or not read_head(at, &head) or head.size > end - at):
                raise CorruptRecordError("a batch changed while it was read")
            offset = first_offset
            if head.last_offset >= offset:
                first_offset = head.last_offset + 1
                if not head.attributes & ATTRIBUTE_CONTROL and (aborted is None or not is_aborted(aborted, at, &head)):
                    self.append_batch(data, at, &head, offset, stop_offset)
                    note_window(tally, &head, offset, stop_offset)
            at += head.size
            if self.is_within_batch:
                return at - <const uint8_t*>PyBytes_AS_STRING(data)
        return stop

    cdef int append_batch(
        self, bytes data, const uint8_t* batch, Head* head, int64_t first_offset, int64_t stop_offset
    ) except -1:
        """``append`` of a plain batch of version 2 in ``data``, whose header was checked."""
        cdef bint is_through = False
        if unlikely(not begin_records(&self.walk, batch, head)):
            raise CorruptRecordError(f"a record count of {head.record_count} in a batch of {head.size} bytes")
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.is_within_batch = True
        try:
            self.first_delta = first_offset - head.base_offset if first_offset > head.base_offset else 0
            self.stop_delta = stop_offset - head.base_offset if stop_offset > head.base_offset else 0
            self.base_offset = head.base_offset
            self.base_timestamp = <int64_t>big_endian_64(batch + 27)
            self.append_time = <int64_t>big_endian_64(batch + 35)
            self.type_index = LOG_APPEND_TIME if head.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0
            is_through = self.fill(True)
        except:
            self.leave_batch()
            raise
        if is_through:
            self.leave_batch()
        return 0

    def append_message(self, int64_t offset, int64_t timestamp, int timestamp_type, bytes key, bytes value):
        """Adds one record without headers; returns False, and adds nothing, if the chunk is full."""
        cdef Py_ssize_t key_size = -1 if key is None else PyBytes_GET_SIZE(key)
        cdef Py_ssize_t value_size = -1 if value is None else PyBytes_GET_SIZE(value)
        cdef Py_ssize_t wanted = self.row_size, row = self.row_count
        self.refuse_within_batch()
        if not 0 <= timestamp_type <= NO_TIMESTAMP_TYPE:
            raise ValueError(f"timestamp type {timestamp_type}, expected an index into TIMESTAMP_TYPES")
        if self.has_key and key_size > 0:
            wanted += key_size
        if self.has_value and value_size > 0:
            wanted += value_size
        if row == self.rows_max or (row and wanted > self.size_max - self.size):
            return False
        self.reserve_rows(1, max(key_size, value_size))
        if self.has_key:
            put_bytes(&self.key, row, NULL if key is None else <uint8_t*>PyBytes_AS_STRING(key), key_size, self.large)
        if self.has_value:
            put_bytes(
                &self.value, row, NULL if value is None else <uint8_t*>PyBytes_AS_STRING(value), value_size, self.large
            )
        if self.has_offset:
            (<int64_t*>self.offset.data)[row] = offset
        if self.has_timestamp:
            (<int64_t*>self.timestamp.data)[row] = scaled(timestamp, self.timestamp_factor)
        if self.has_timestamp_type:
            (<int32_t*>self.timestamp_type.data)[row] = (
                NO_TIMESTAMP_TYPE_ID if timestamp_type == NO_TIMESTAMP_TYPE else timestamp_type
            )
        if self.has_headers:
            self.put_no_headers(row)
        self.row_count += 1
        self.size += wanted
        return True

    def finish(self):
        """The chunk as ``Columns``; the next one gets its own memory. After an error the chunk is as it was."""
        cdef Py_ssize_t count = self.row_count
        key = value = offset = timestamp = timestamp_type = headers = None
        self.reserve_rows(0, 0)
        if self.has_key:
            key = column_for(&self.key, count, self.large)
        if self.has_value:
            value = column_for(&self.value, count, self.large)
        if self.has_offset:
            offset = buffer_for(&self.offset, 8 * count)
        if self.has_timestamp:
            timestamp = buffer_for(&self.timestamp, 8 * count)
        if self.has_timestamp_type:
            timestamp_type = buffer_for(&self.timestamp_type, 4 * count)
        if self.has_headers:
            headers = HeadersColumn(
                buffer_for_validity(&self.header_validity, count, self.headerless_count),
                self.headerless_count,
                buffer_for(&self.header_offsets, 4 * (count + 1)),
                self.header_count,
                column_for(&self.header_key, self.header_count, self.large),
                column_for(&self.header_value, self.header_count, self.large),
            )
        columns = Columns(count, self.size, key, value, offset, timestamp, timestamp_type, headers)
        # All that may fail is done: the memory changes hands.
        if self.has_key:
            take_bytes(key, &self.key)
        if self.has_value:
            take_bytes(value, &self.value)
        take_memory(offset, &self.offset)
        take_memory(timestamp, &self.timestamp)
        take_memory(timestamp_type, &self.timestamp_type)
        if self.has_headers:
            take_memory(<object>PyTuple_GET_ITEM(headers, 0), &self.header_validity)
            take_memory(<object>PyTuple_GET_ITEM(headers, 2), &self.header_offsets)
            take_bytes(<object>PyTuple_GET_ITEM(headers, 4), &self.header_key)
            take_bytes(<object>PyTuple_GET_ITEM(headers, 5), &self.header_value)
        self.row_count = self.size = self.headerless_count = self.header_count = 0
        return columns

    cdef int refuse_within_batch(self) except -1:
        if self.is_within_batch:
            raise ValueError("the chunk is full within a batch: finish it and resume the batch first")
        return 0

    cdef int leave_batch(self) except -1:
        self.is_within_batch = False
        PyBuffer_Release(&self.view)
        return 0

    cdef int reserve_rows(self, Py_ssize_t count, Py_ssize_t size) except -1:
        """Reserves space for ``count`` more records, whose keys, and whose values, have at most ``size`` bytes in
        total."""
        cdef Py_ssize_t rows = self.row_count + count
        size = max(size, <Py_ssize_t>0)
        if self.has_key:
            reserve_bytes(&self.key, rows, self.key.size + size, self.large)
        if self.has_value:
            reserve_bytes(&self.value, rows, self.value.size + size, self.large)
        if self.has_offset:
            reserve(&self.offset, 8 * rows)
        if self.has_timestamp:
            reserve(&self.timestamp, 8 * rows)
        if self.has_timestamp_type:
            reserve(&self.timestamp_type, 4 * rows)
        if self.has_headers:
            reserve_validity(&self.header_validity, rows)
            reserve(&self.header_offsets, 4 * (rows + 1))
            (<int32_t*>self.header_offsets.data)[0] = 0
        return 0

    cdef bint fill(self, bint check_rest) except -1:
        """Adds records until the chunk is full; returns whether the batch is done. After an error nothing is added.

        ``check_rest``: if the chunk is full, the remaining records are checked anyway.
        """
        cdef Walk walk = self.walk
        cdef Walk before
        cdef RecordView record
        cdef Py_ssize_t row = self.row_count, size = self.size, size_left = walk.stop - walk.at
        cdef Py_ssize_t wanted, row_stop, growth = 0
        cdef bint is_text = True
        cdef Py_ssize_t headerless_count = self.headerless_count, header_count = self.header_count
        cdef Py_ssize_t header_key_size = self.header_key.size, header_value_size = self.header_value.size
        cdef Py_ssize_t header_null_count = self.header_value.null_count
        cdef Bytes key, value
        cdef int64_t* offsets
        cdef int64_t* timestamps
        cdef int32_t* types
        cdef bint has_key = self.has_key, has_value = self.has_value, has_headers = self.has_headers
        cdef bint large = self.large, is_full = False
        cdef int32_t type_id = NO_TIMESTAMP_TYPE_ID if self.type_index == NO_TIMESTAMP_TYPE else self.type_index
        cdef int64_t timestamp
        if row:
            size_left = min(size_left, max(self.size_max - size, <Py_ssize_t>0))
        row_stop = row + min(<Py_ssize_t>(walk.count - walk.index), self.rows_max - row)
        self.reserve_rows(row_stop - row, size_left)
        # Copies that the compiler may keep in registers; the columns get them only if everything succeeds.
        key, value = self.key, self.value
        offsets = <int64_t*>self.offset.data if self.has_offset else NULL
        timestamps = <int64_t*>self.timestamp.data if self.has_timestamp else NULL
        types = <int32_t*>self.timestamp_type.data if self.has_timestamp_type else NULL
        try:
            while walk.index < walk.count:
                before.at, before.index, before.previous_delta = walk.at, walk.index, walk.previous_delta
                if unlikely(not next_record(&walk, &record)):
                    raise corrupt(&walk, &record)
                if not self.first_delta <= record.offset_delta < self.stop_delta:
                    continue
                wanted = self.row_size
                if has_key and record.key_size > 0:
                    wanted += record.key_size
                if has_value and record.value_size > 0:
                    wanted += record.value_size
                if has_headers and record.header_count:
                    # As stored here they are not smaller than their bytes in the columns, apart from the offsets.
                    wanted += (record.stop - record.headers) + record.header_count * <Py_ssize_t>(16 if large else 8)
                    is_text = True
                    growth = self.key_growth(&record, &is_text)
                    wanted += growth
                    if unlikely(record.header_count > INT32_MAX - self.header_count):
                        wanted = INT64_MAX
                if unlikely(row == self.rows_max or (row and wanted > self.size_max - size)):
                    is_full = True
                    break
                if has_key:
                    put_bytes(&key, row, record.key, record.key_size, large)
                if has_value:
                    put_bytes(&value, row, record.value, record.value_size, large)
                if offsets != NULL:
                    offsets[row] = self.base_offset + record.offset_delta
                if timestamps != NULL:
                    if self.type_index == LOG_APPEND_TIME:
                        timestamp = self.append_time
                    else:
                        timestamp = timestamp_of(self.base_timestamp, &record)
                    timestamps[row] = scaled(timestamp, self.timestamp_factor)
                if types != NULL:
                    types[row] = type_id
                if has_headers:
                    if record.header_count:
                        self.put_headers(&record, row, growth, is_text)
                    else:
                        self.put_no_headers(row)
                row += 1
                size += wanted
            if is_full:
                # ``walk`` continues to the end; ``before`` is where the next chunk begins.
                before.buffer, before.stop, before.count = walk.buffer, walk.stop, walk.count
                before.last_offset_delta = walk.last_offset_delta
                while check_rest and walk.index < walk.count:
                    if unlikely(not next_record(&walk, &record)):
                        raise corrupt(&walk, &record)
            if check_rest or not is_full:
                end_walk(&walk)
        except:
            # The copies are dropped; what was written through to the columns is reverted.
            row_stop = min(row + 1, row_stop)
            if has_key:
                set_bits(self.key.validity.data, self.row_count, row_stop)
            if has_value:
                set_bits(self.value.validity.data, self.row_count, row_stop)
            if has_headers:
                set_bits(self.header_validity.data, self.row_count, row_stop)
                if self.header_value.validity.data != NULL:
                    set_bits(self.header_value.validity.data, header_count, self.header_count)
            self.headerless_count = headerless_count
            self.header_count = header_count
            self.header_key.size, self.header_value.size = header_key_size, header_value_size
            self.header_value.null_count = header_null_count
            raise
        self.key, self.value = key, value
        self.row_count = row
        self.size = size
        self.walk = before if is_full else walk
        return not is_full

    cdef int put_no_headers(self, Py_ssize_t row) except -1:
        clear_bit(self.header_validity.data, row)
        self.headerless_count += 1
        (<int32_t*>self.header_offsets.data)[row + 1] = <int32_t>self.header_count
        return 0

    cdef Py_ssize_t key_growth(self, RecordView* record, bint* is_text) except -1:
        """By how much the keys of a record's headers become larger as text; ``is_text`` becomes False if one is none."""
        cdef const uint8_t* at = record.headers
        cdef const uint8_t* header_value = NULL
        cdef Py_ssize_t value_size = 0, size = 0, keys_size = 0
        cdef int32_t i, key_size = 0
        if not self.text_keys:
            return 0
        for i in range(record.header_count):
            at = get_varint(at, record.stop, &key_size)
            size += text_size(at, key_size, is_text)
            keys_size += key_size
            at = get_field(record, at + key_size, record.stop, &header_value, &value_size)
        if unlikely(size > INT32_MAX and not self.large):
            raise CorruptRecordError(f"header keys of {size} bytes as text, expected at most {INT32_MAX} in a column")
        return size - keys_size

    cdef int put_headers(self, RecordView* record, Py_ssize_t row, Py_ssize_t growth, bint is_text) except -1:
        """Stores the headers of a record that ``next_record`` and ``key_growth`` have just checked; nothing has run
        since."""
        cdef const uint8_t* at = record.headers
        cdef const uint8_t* header_value = NULL
        cdef Py_ssize_t value_size = 0, index = self.header_count, size = record.stop - record.headers
        cdef int32_t i, key_size = 0
        cdef uint8_t* end
        reserve_bytes(&self.header_key, index + record.header_count, self.header_key.size + size + growth, self.large)
        reserve_bytes(&self.header_value, index + record.header_count, self.header_value.size + size, self.large)
        for i in range(record.header_count):
            at = get_varint(at, record.stop, &key_size)
            if is_text:
                put_bytes(&self.header_key, index, at, key_size, self.large)
            else:
                end = put_text(self.header_key.data.data + self.header_key.size, at, key_size)
                self.header_key.size = end - self.header_key.data.data
                put_end(&self.header_key, index, self.large)
            at = get_field(record, at + key_size, record.stop, &header_value, &value_size)
            put_bytes(&self.header_value, index, header_value, value_size, self.large)
            index += 1
        self.header_count = index
        (<int32_t*>self.header_offsets.data)[row + 1] = <int32_t>index
        return 0
