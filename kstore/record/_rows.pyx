# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Encodes the rows of Arrow columns into the batches of a topic's partitions: no Python object for a row.

The buffers are not trusted: a column's offsets are compared with the existing bytes before the first row is read. What
decides where a row's bytes are, and how many, is copied first: the memory may be a mapped file, or another thread's, and
change at any time. No I/O here, no pyarrow: ``rows.py`` takes the buffers out of record batches.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cimport cython

from kstore.record._codec cimport OpenBatch, murmur2_of

from kstore.errors import CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordError, RecordTooLargeError

cdef extern from *:
    int __builtin_clzll(uint64_t value) nogil
    bint unlikely(bint condition) nogil

include "_codec_varint.pxi"


@cython.final
cdef class Memory:
    """The bytes of a buffer, held while this object lives; no bytes for None."""

    cdef Py_buffer view
    cdef bint is_held
    cdef uint8_t* copied
    cdef const uint8_t* data
    cdef Py_ssize_t size

    def __cinit__(self, given):
        self.data = NULL
        self.size = 0
        if given is not None:
            PyObject_GetBuffer(given, &self.view, PyBUF_SIMPLE)
            self.is_held = True
            self.data = <const uint8_t*>self.view.buf
            self.size = self.view.len

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.view)
        PyMem_Free(self.copied)

    cdef int expect(self, Py_ssize_t size) except -1:
        if self.size < size:
            raise InvalidRecordError(f"an Arrow buffer of {self.size} bytes, expected at least {size}")
        return 0

    cdef int copy(self, Py_ssize_t start, Py_ssize_t stop) except -1:
        """Replaces the memory by a copy of its bytes from ``start`` to ``stop``, which no other thread can change."""
        self.expect(stop)
        self.copied = <uint8_t*>PyMem_Malloc(stop - start)
        if self.copied == NULL:
            raise MemoryError
        memcpy(self.copied, self.data + start, stop - start)
        self.data = self.copied
        self.size = stop - start
        return 0


cdef inline bint is_null(const uint8_t* bits, Py_ssize_t index) noexcept nogil:
    return bits != NULL and not (bits[index >> 3] >> (index & 7)) & 1


cdef Memory validity_of(Py_ssize_t count, Py_ssize_t first, given):
    """A copy of the bits of rows; that of the first one is ``first & 7``."""
    cdef Memory memory = Memory(given)
    if given is not None:
        memory.copy(first >> 3, (first + count + 7) >> 3)
    return memory


cdef int check_rows(Py_ssize_t count, Py_ssize_t first) except -1:
    if count < 0 or first < 0 or first > (<Py_ssize_t>1 << 40) or count > (<Py_ssize_t>1 << 31):
        raise InvalidRecordError(f"{count} rows from {first}")
    return 0


@cython.final
cdef class Ends:
    """The 32-bit offsets at which each of ``count`` values ends; ``first`` is the array's own start."""

    cdef Memory memory
    cdef const int32_t* at
    cdef int32_t last

    def __cinit__(self, Py_ssize_t count, Py_ssize_t first, offsets):
        cdef Py_ssize_t index
        cdef const int32_t* at
        cdef int goes_back = 0
        check_rows(count, first)
        self.memory = Memory(offsets)
        self.at = NULL
        self.last = 0
        if count == 0:
            return  # an array without values may have no offsets
        self.memory.copy(first * 4, (first + count + 1) * 4)
        self.at = <const int32_t*>self.memory.data
        if self.at[0] < 0:
            raise InvalidRecordError("the offsets of an Arrow column begin below 0")
        # Without a branch in the loop: the compiler then compares several at a time.
        at = self.at
        for index in range(count):
            goes_back |= at[index + 1] < at[index]
        if goes_back:
            raise InvalidRecordError("the offsets of an Arrow column go back")
        self.last = self.at[count]


@cython.final
cdef class BytesRows:
    """A column of bytes or text: ``validity`` (None without nulls), 32-bit ``offsets``, ``data``, as in Arrow.

    ``first`` is the position of the first of the ``count`` rows in them.
    """

    cdef readonly Py_ssize_t count
    cdef Memory validity
    cdef Memory data
    cdef Ends ends
    # The bit of the first row in ``validity``.
    cdef Py_ssize_t first

    def __cinit__(self, Py_ssize_t count, Py_ssize_t first, validity, offsets, data):
        self.count = count
        self.first = first & 7
        self.ends = Ends(count, first, offsets)
        self.validity = validity_of(count, first, validity)
        self.data = Memory(data)
        self.data.expect(self.ends.last)

    cdef inline Py_ssize_t get(self, Py_ssize_t row, const uint8_t** data) noexcept nogil:
        """The size of the value of a row, -1 for null."""
        data[0] = NULL
        if is_null(self.validity.data, self.first + row):
            return -1
        if self.data.data != NULL:
            data[0] = self.data.data + self.ends.at[row]
        return self.ends.at[row + 1] - self.ends.at[row]


@cython.final
cdef class NumberRows:
    """A column of whole numbers of ``width`` 4 or 8 bytes."""

    cdef readonly Py_ssize_t count
    cdef Memory validity
    cdef Memory data
    cdef Py_ssize_t first
    cdef int width

    def __cinit__(self, Py_ssize_t count, Py_ssize_t first, validity, data, int width):
        check_rows(count, first)
        if width != 4 and width != 8:
            raise ValueError(f"a width of {width}, expected 4 or 8")
        self.count = count
        self.first = first
        self.width = width
        self.validity = Memory(validity)
        self.data = Memory(data)
        if validity is not None:
            self.validity.expect((first + count + 7) >> 3)
        self.data.expect((first + count) * width)

    cdef inline bint get(self, Py_ssize_t row, int64_t* number) noexcept nogil:
        """False for null."""
        if is_null(self.validity.data, self.first + row):
            return False
        if self.width == 4:
            number[0] = (<const int32_t*>self.data.data)[self.first + row]
        else:
            number[0] = (<const int64_t*>self.data.data)[self.first + row]
        return True


@cython.final
cdef class HeaderRows:
    """A column of lists of headers: the end of each row's in ``keys`` and ``values``, which hold those of all rows."""

    cdef readonly Py_ssize_t count
    cdef Memory validity
    cdef Ends ends
    cdef BytesRows keys
    cdef BytesRows values
    # The bit of the first row in ``validity``.
    cdef Py_ssize_t first

    def __cinit__(
        self, Py_ssize_t count, Py_ssize_t first, validity, offsets, BytesRows keys not None, BytesRows values not None
    ):
        self.count = count
        self.first = first & 7
        self.ends = Ends(count, first, offsets)
        self.validity = validity_of(count, first, validity)
        if self.ends.last > min(keys.count, values.count):
            raise InvalidRecordError(f"{self.ends.last} headers in an Arrow column, and only {keys.count} keys")
        self.keys = keys
        self.values = values

    cdef Py_ssize_t measure(self, Py_ssize_t row, Py_ssize_t* start, Py_ssize_t* count) except -1:
        """The headers of a row, and their bytes without their count."""
        cdef Py_ssize_t index, size, total = 0
        cdef const uint8_t* data
        start[0] = count[0] = 0
        if is_null(self.validity.data, self.first + row):
            return 0
        start[0] = self.ends.at[row]
        count[0] = self.ends.at[row + 1] - start[0]
        for index in range(start[0], start[0] + count[0]):
            size = self.keys.get(index, &data)
            if size < 0:
                raise refused(row, "a header without a key")
            total += size_of_field(size) + size_of_field(self.values.get(index, &data))
        return total

    cdef uint8_t* put(self, uint8_t* to, Py_ssize_t start, Py_ssize_t count) noexcept nogil:
        cdef Py_ssize_t index, size
        cdef const uint8_t* data
        for index in range(start, start + count):
            size = self.keys.get(index, &data)
            to = put_field(to, data, size)
            size = self.values.get(index, &data)
            to = put_field(to, data, size)
        return to


cdef inline Py_ssize_t size_of_field(Py_ssize_t size) noexcept nogil:
    return size_of_varint(size) + (size if size > 0 else 0)


cdef inline uint8_t* put_field(uint8_t* to, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    to = put_varint(to, size)
    if size > 0:
        memcpy(to, data, size)
        to += size
    return to


cdef object refused(Py_ssize_t row, str message):
    return InvalidRecordError(f"row {row}: {message}", [RecordError(row, message)])


@cython.final
cdef class Rows:
    """The rows of one record batch; each column but ``value`` may be None.

    ``timestamps`` are divided by ``per_ms``, rounded down; a missing one becomes ``now_ms``.
    """

    cdef readonly Py_ssize_t count
    cdef BytesRows value
    cdef BytesRows key
    cdef HeaderRows headers
    cdef NumberRows timestamps
    cdef NumberRows partitions
    cdef int64_t per_ms
    cdef int64_t now_ms

    def __cinit__(
        self,
        BytesRows value not None,
        BytesRows key,
        HeaderRows headers,
        NumberRows timestamps,
        NumberRows partitions,
        int64_t per_ms,
        int64_t now_ms,
    ):
        if per_ms < 1 or now_ms < 0:
            raise ValueError(f"per_ms {per_ms} and now_ms {now_ms}, expected at least 1 and 0")
        for column in (key, headers, timestamps, partitions):
            if column is not None and column.count != value.count:
                raise InvalidRecordError(f"columns of {value.count} and {column.count} rows")
        self.count = value.count
        self.value = value
        self.key = key
        self.headers = headers
        self.timestamps = timestamps
        self.partitions = partitions
        self.per_ms = per_ms
        self.now_ms = now_ms

    cdef int64_t timestamp(self, Py_ssize_t row) except? -2:
        cdef int64_t number = 0
        cdef int64_t divided
        if self.timestamps is None or not self.timestamps.get(row, &number):
            return self.now_ms
        divided = number // self.per_ms
        # C rounds towards zero.
        if number < 0 and divided * self.per_ms != number:
            divided -= 1
        if divided < -1:
            message = f"a timestamp of {divided} ms, expected 0 to 2^63 - 1, or -1 for none"
            raise InvalidTimestampError(f"row {row}: {message}", [RecordError(row, message)])
        return divided


@cython.final
cdef class RowEncoder:
    """The open batches of a topic's partitions, and the partition of the next row.

    ``batches`` has an OpenBatch or None for each partition; the caller of ``append`` opens, closes and replaces them.
    """

    cdef readonly list batches
    cdef readonly Py_ssize_t sticky
    cdef readonly Py_ssize_t batch_bytes

    def __cinit__(self, Py_ssize_t partition_count, Py_ssize_t batch_bytes, Py_ssize_t sticky=0):
        """``batch_bytes``: a batch accepts no more rows beyond it; ``sticky``: the partition of the first rows without
        keys."""
        if partition_count < 1 or sticky < 0:
            raise ValueError(f"{partition_count} partitions, and {sticky} is next: expected at least 1 and 0")
        self.batches = [None] * partition_count
        self.batch_bytes = batch_bytes
        self.sticky = sticky % partition_count

    def append(self, Rows rows not None, Py_ssize_t row):
        """Appends rows, starting with ``row``; returns the first that was left out, and its partition, or -1.

        That partition has no open batch, or its batch is full and must be closed and removed. A row without a partition
        and a key then goes to the next one.

        Raises: InvalidRecordError, InvalidTimestampError, RecordTooLargeError; the earlier rows stay appended.
        """
        cdef Py_ssize_t count = PyList_GET_SIZE(self.batches)
        cdef Py_ssize_t partition, key_size
        cdef const uint8_t* key = NULL
        cdef bint is_sticky
        cdef int64_t number = 0
        cdef object batch
        if row < 0 or not self.sticky < count:
            raise ValueError(f"row {row} and partition {self.sticky} of {count}, expected 0 or more, and one of them")
        while row < rows.count:
            key_size = -1 if rows.key is None else rows.key.get(row, &key)
            is_sticky = False
            if rows.partitions is not None and rows.partitions.get(row, &number):
                if not 0 <= number < count:
                    raise refused(row, f"partition {number}, and the topic has 0 to {count - 1}")
                partition = number
            elif count == 1:
                partition = 0
            elif key_size >= 0:
                partition = (murmur2_of(key, key_size) & 0x7FFFFFFF) % count
            else:
                partition = self.sticky
                is_sticky = True
            batch = <object>PyList_GET_ITEM(self.batches, partition)
            if batch is None:
                return row, partition
            if count == 1 and rows.partitions is None:
                if rows.key is None and rows.timestamps is None and rows.headers is None:
                    row = self.put_values(<OpenBatch?>batch, rows, row)
                else:
                    row = self.put_plain(<OpenBatch?>batch, rows, row)
                if row == rows.count:
                    break
                key_size = -1 if rows.key is None else rows.key.get(row, &key)
            if not self.put(<OpenBatch?>batch, rows, row, key, key_size):
                if is_sticky:
                    self.sticky = (partition + 1) % count
                return row, partition
            row += 1
        return row, -1

    cdef Py_ssize_t put_values(self, OpenBatch batch, Rows rows, Py_ssize_t row) noexcept:
        """As ``put_plain`` of rows that have nothing but values, and so all the same time.

        What the loop needs is in local variables: a byte that is written could be part of any object, and all of them
        would be read again for each row.
        """
        cdef const int32_t* ends = rows.value.ends.at
        cdef const uint8_t* data = rows.value.data.data
        cdef const uint8_t* validity = rows.value.validity.data
        cdef Py_ssize_t first = rows.value.first, count = rows.count, start = row
        cdef Py_ssize_t room, size, body_size, value_size
        cdef int64_t offset_delta = batch.last_offset_delta
        cdef uint8_t* begin
        cdef uint8_t* to
        if not batch.is_open or batch.record_count == 0 or rows.now_ms != batch.base_timestamp:
            return row
        begin = to = batch.buffer.data + batch.position + batch.size
        room = min(self.batch_bytes, batch.size_max, batch.buffer.capacity - batch.position) - batch.size
        while row < count:
            value_size = -1 if is_null(validity, first + row) else ends[row + 1] - ends[row]
            # Attributes, timestamp delta 0, key null, no headers: one byte each.
            body_size = 4 + size_of_varint(offset_delta + 1) + size_of_field(value_size)
            size = size_of_varint(body_size) + body_size
            if size > room:
                break
            room -= size
            offset_delta += 1
            to = put_varint(to, body_size)
            to[0] = 0
            to[1] = 0
            to = put_varint(to + 2, offset_delta)
            to[0] = 1
            to = put_field(to + 1, data + ends[row], value_size)
            to[0] = 0
            to += 1
            row += 1
        if row > start:
            if rows.now_ms > batch.max_timestamp:
                batch.max_timestamp = rows.now_ms
                batch.max_timestamp_delta_offset = <int32_t>(batch.last_offset_delta + 1)
            batch.size += to - begin
            batch.last_offset_delta = offset_delta
            batch.record_count += <int32_t>(row - start)
        return row

    cdef Py_ssize_t put_plain(self, OpenBatch batch, Rows rows, Py_ssize_t row) noexcept:
        """Appends rows without headers after the first one of a batch, while they fit into it and into its memory.

        Returns the first that was left out, for ``put``: it does not fit, or something is wrong with it.
        """
        cdef const uint8_t* value = NULL
        cdef const uint8_t* key = NULL
        cdef Py_ssize_t value_size, key_size = -1
        cdef int64_t timestamp = rows.now_ms, offset_delta = batch.last_offset_delta
        cdef int64_t body_size, size, room, number = 0
        cdef uint64_t timestamp_delta
        cdef uint8_t* to
        if not batch.is_open or batch.record_count == 0 or rows.headers is not None:
            return row
        room = min(self.batch_bytes, batch.size_max, batch.buffer.capacity - batch.position) - batch.size
        to = batch.buffer.data + batch.position + batch.size
        while row < rows.count:
            value_size = rows.value.get(row, &value)
            if rows.key is not None:
                key_size = rows.key.get(row, &key)
            if rows.timestamps is not None:
                timestamp = rows.now_ms
                if rows.timestamps.get(row, &number):
                    if number < 0:
                        break
                    timestamp = number if rows.per_ms == 1 else number // rows.per_ms
            timestamp_delta = zigzag(<int64_t>(<uint64_t>timestamp - <uint64_t>batch.base_timestamp))
            offset_delta += 1
            # Attributes, and no headers: one byte each.
            body_size = (
                2
                + size_of_unsigned(timestamp_delta)
                + size_of_varint(offset_delta)
                + size_of_field(key_size)
                + size_of_field(value_size)
            )
            size = size_of_varint(body_size) + body_size
            if size > room:
                break
            room -= size
            to = put_varint(to, body_size)
            to[0] = 0
            to = put_unsigned(to + 1, timestamp_delta)
            to = put_varint(to, offset_delta)
            to = put_field(to, key, key_size)
            to = put_field(to, value, value_size)
            to[0] = 0
            to += 1
            batch.size += size
            if timestamp > batch.max_timestamp:
                batch.max_timestamp = timestamp
                batch.max_timestamp_delta_offset = <int32_t>offset_delta
            batch.last_offset_delta = offset_delta
            batch.record_count += 1
            row += 1
        return row

    cdef int put(
        self, OpenBatch batch, Rows rows, Py_ssize_t row, const uint8_t* key, Py_ssize_t key_size
    ) except -1:
        """Appends a row to a batch; returns 1, or 0 if it is full."""
        cdef const uint8_t* value = NULL
        cdef Py_ssize_t value_size = rows.value.get(row, &value)
        cdef Py_ssize_t header_start = 0, header_count = 0, headers_size = 0
        cdef Py_ssize_t body_size, size, room
        cdef int64_t timestamp = rows.timestamp(row)
        cdef int64_t offset_delta = batch.last_offset_delta + 1
        cdef uint64_t timestamp_delta = 0
        cdef uint8_t* to
        if not batch.is_open:
            raise ValueError("the batch is closed")
        if batch.record_count:
            timestamp_delta = zigzag(<int64_t>(<uint64_t>timestamp - <uint64_t>batch.base_timestamp))
        if rows.headers is not None:
            headers_size = rows.headers.measure(row, &header_start, &header_count)
        body_size = (
            1
            + size_of_unsigned(timestamp_delta)
            + size_of_varint(offset_delta)
            + size_of_field(key_size)
            + size_of_field(value_size)
            + size_of_varint(header_count)
            + headers_size
        )
        size = size_of_varint(body_size) + body_size
        room = (self.batch_bytes if batch.record_count else batch.size_max) - batch.size
        if size > room or size > batch.size_max - batch.size:
            if batch.record_count:
                return 0
            raise RecordTooLargeError(batch.size + size, batch.size_max, f"row {row} in a batch of its own,")
        batch.buffer.make_room(batch.position + batch.size + size)
        to = batch.buffer.data + batch.position + batch.size
        to = put_varint(to, body_size)
        to[0] = 0
        to = put_unsigned(to + 1, timestamp_delta)
        to = put_varint(to, offset_delta)
        to = put_field(to, key, key_size)
        to = put_field(to, value, value_size)
        to = put_varint(to, header_count)
        if header_count:
            rows.headers.put(to, header_start, header_count)
        batch.size += size
        if batch.record_count == 0:
            batch.base_timestamp = timestamp
        if batch.record_count == 0 or timestamp > batch.max_timestamp:
            batch.max_timestamp = timestamp
            batch.max_timestamp_delta_offset = <int32_t>offset_delta
        batch.last_offset_delta = offset_delta
        batch.record_count += 1
        return 1
