# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False
"""The compiled loops over an index: its search, and many entries as bytes and as numbers. No I/O here.

Nothing releases the GIL.
"""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

cdef enum:
    # A row of numbers: last offset of a batch, its position, greatest timestamp so far, and the offset of that.
    ROW_SIZE = 4
    OFFSET_ENTRY_SIZE = 8
    TIME_ENTRY_SIZE = 12

cdef array.array NUMBERS = array.array("q")


def floor_slot(data, Py_ssize_t entries, Py_ssize_t entry_size, bytes key, Py_ssize_t key_at):
    """The last of ``entries`` slots of ``data`` whose column at byte ``key_at`` is <= ``key``, or -1.

    Raises ValueError if ``data`` is shorter than its entries, or the column is not inside an entry.
    """
    cdef Py_buffer view
    cdef Py_ssize_t key_size = len(key), low = -1, high = entries, middle
    cdef const char* wanted = key
    cdef const char* start
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if entry_size <= 0 or not 0 <= key_at <= entry_size - key_size or not 0 <= entries <= view.len // entry_size:
            raise ValueError(f"{entries} entries of {entry_size} bytes in {view.len}, keys at {key_at}")
        start = <const char*>view.buf + key_at
        while high - low > 1:
            middle = low + (high - low) // 2
            if memcmp(start + middle * entry_size, wanted, key_size) <= 0:
                low = middle
            else:
                high = middle
    finally:
        PyBuffer_Release(&view)
    return low


def entries_around(bytes data not None, Py_ssize_t entries, int64_t base_offset, int64_t offset):
    """``OffsetIndex.around`` for ``offset``, among the first ``entries`` of an offset index.

    None unless there are an entry below it and two from it on, and none of their numbers is negative. Raises ValueError
    if ``data`` is shorter than its entries.
    """
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* at
    cdef Py_ssize_t low = -1, high = entries, middle
    cdef int64_t floor, ceiling, floor_position, ceiling_position, stop
    cdef uint32_t delta
    if not 0 <= entries <= PyBytes_GET_SIZE(data) // OFFSET_ENTRY_SIZE:
        raise ValueError(f"{entries} entries of {OFFSET_ENTRY_SIZE} bytes in {PyBytes_GET_SIZE(data)}")
    # No difference that could overflow. The entry below ``offset`` is not above it by one.
    if not 0 <= base_offset <= INT64_MAX - INT32_MAX or offset <= base_offset or offset - base_offset - 1 > INT32_MAX:
        return None
    delta = <uint32_t>(offset - base_offset - 1)
    while high - low > 1:
        middle = low + (high - low) // 2
        # As bytes are compared: a negative number counts as a large one.
        if <uint32_t>load_32(start + middle * OFFSET_ENTRY_SIZE) <= delta:
            low = middle
        else:
            high = middle
    if low < 0 or low + 2 >= entries:
        return None
    at = start + low * OFFSET_ENTRY_SIZE
    floor, floor_position = load_32(at), load_32(at + 4)
    ceiling, ceiling_position = load_32(at + 8), load_32(at + 12)
    stop = load_32(at + 20)
    if floor < 0 or floor_position < 0 or ceiling < 0 or ceiling_position < 0 or stop < 0:
        return None
    return base_offset + floor, floor_position, base_offset + ceiling, ceiling_position, stop


cdef inline uint8_t* store_32(uint8_t* at, uint32_t value) noexcept:
    at[0], at[1], at[2], at[3] = value >> 24, value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF
    return at + 4


cdef const long long* rows_of(array.array rows, Py_ssize_t start, Py_ssize_t stop) except? NULL:
    if rows.ob_descr.typecode != c"q" or not 0 <= start <= stop <= len(rows) // ROW_SIZE:
        raise ValueError(f"rows {start} to {stop}, expected an array('q') that holds them")
    return rows.data.as_longlongs + ROW_SIZE * start


cdef inline int64_t relative(int64_t value, int64_t base) except -1:
    if not base <= value or <uint64_t>value - <uint64_t>base > INT32_MAX:
        raise ValueError(f"{value}, expected {base} to 2^31 - 1 above it")
    return value - base


def offset_entries(array.array rows not None, Py_ssize_t start, Py_ssize_t stop, int64_t base_offset):
    """The bytes of the offset index's entries for rows ``start`` to ``stop``.

    A row is four numbers: the last offset of a batch, its position, the segment's greatest timestamp up to it, and the
    last offset of the batch that first had it. Raises ValueError where a number does not fit an entry.
    """
    cdef const long long* row = rows_of(rows, start, stop)
    cdef bytes entries = PyBytes_FromStringAndSize(NULL, (stop - start) * OFFSET_ENTRY_SIZE)
    cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(entries)
    cdef Py_ssize_t number
    for number in range(stop - start):
        at = store_32(at, <uint32_t>relative(row[0], base_offset))
        at = store_32(at, <uint32_t>relative(row[1], 0))
        row += ROW_SIZE
    return entries


def time_entries(
    array.array rows not None, Py_ssize_t start, Py_ssize_t stop, int64_t base_offset, int64_t last_timestamp
):
    """The bytes of the time index's entries for such rows: those whose timestamp is above the last entry's."""
    cdef const long long* row = rows_of(rows, start, stop)
    cdef bytearray entries = bytearray((stop - start) * TIME_ENTRY_SIZE)
    cdef uint8_t* first = entries
    cdef uint8_t* at = first
    cdef Py_ssize_t number
    for number in range(stop - start):
        if row[2] > last_timestamp:
            last_timestamp = row[2]
            at = store_32(at, <uint32_t>(<uint64_t>last_timestamp >> 32))
            at = store_32(at, <uint32_t>last_timestamp)
            at = store_32(at, <uint32_t>relative(row[3], base_offset))
        row += ROW_SIZE
    return bytes(entries[: at - first])


cdef inline int64_t load_32(const uint8_t* at) noexcept:
    return <int32_t>(<uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3])


cdef array.array rows_in_order(data, Py_ssize_t entry_size):
    """Both numbers of each entry, up to the first that is out of order. The first ones rise, and so do positions; of the
    entries of a time index several may have one offset."""
    cdef Py_buffer view
    cdef array.array rows
    cdef const uint8_t* at
    cdef long long* row
    cdef Py_ssize_t number, count
    cdef int64_t first = -1, least = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*>view.buf
        count = view.len // entry_size
        rows = array.clone(NUMBERS, 2 * count, zero=False)
        row = rows.data.as_longlongs
        for number in range(count):
            row[0] = load_32(at)
            if entry_size == TIME_ENTRY_SIZE:
                row[0] = <int64_t>(<uint64_t>row[0] << 32 | <uint32_t>load_32(at + 4))
            row[1] = load_32(at + entry_size - 4)
            if row[0] <= first or row[1] < least:
                array.resize(rows, 2 * number)
                break
            first = row[0]
            least = row[1] + (entry_size == OFFSET_ENTRY_SIZE)
            row += 2
            at += entry_size
    finally:
        PyBuffer_Release(&view)
    return rows


def offset_rows(data):
    """An ``array("q")`` of delta and position of each entry of an offset index, up to the first that is out of order."""
    return rows_in_order(data, OFFSET_ENTRY_SIZE)


def time_rows(data):
    """An ``array("q")`` of timestamp and delta of each entry of a time index, up to the first that is out of order."""
    return rows_in_order(data, TIME_ENTRY_SIZE)
