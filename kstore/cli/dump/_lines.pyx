# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The lines of Kafka's DumpLogSegments for plain batches, those of a run. No I/O here.

It prints what needs no decision, and ends before the first batch that does: a control batch, text that is not UTF-8, a
number that no writer produces. ``text.py`` prints that batch; tests hold the two together.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kstore.record._layout cimport (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_SIZE,
    LOG_OVERHEAD,
)

__all__ = ["CONTENTS", "METADATA", "RECORDS", "UNKNOWN", "plain_lines"]

cdef extern from *:
    # gcc's and clang's, and Cython's own. Only _codec_varint.pxi asks for these.
    int __builtin_clzll(uint64_t value) nogil
    bint unlikely(bint condition) nogil

include "../../record/_codec_varint.pxi"
include "../_text.pxi"

cdef enum:
    SEQUENCE_MAX = 0x7FFFFFFF
    # More than the words and numbers of one line: 400 bytes of words in a batch's, 15 numbers of up to 20 digits.
    LINE_SIZE_MAX = 1024
    # A larger batch costs so much that the way to its lines does not matter.
    BATCH_SIZE_MAX = 1 << 20
    # When the lines are returned, so that they need little memory.
    TEXT_SIZE = 1 << 18

# What is printed: the records too, with their metadata, with their keys and values.
RECORDS = 1
METADATA = 2
CONTENTS = 4
# The offset before one that follows nothing known.
UNKNOWN = INT64_MIN
cdef enum:
    PRINTS_RECORDS = 1
    PRINTS_METADATA = 2
    PRINTS_CONTENTS = 4

# Two times below it have a sum that fits.
cdef int64_t TIME_MAX = <int64_t>1 << 60


cdef inline bint put_text(Text* text, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """False if it is not UTF-8."""
    cdef uint8_t all_bits = 0
    cdef Py_ssize_t at
    for at in range(size):
        all_bits |= data[at]
    put_bytes(text, <const char*>data, size)
    return all_bits < 0x80 or is_utf8(data, data + size)


cdef inline uint64_t number_64(const uint8_t* at) noexcept nogil:
    return <uint64_t>number_32(at) << 32 | number_32(at + 4)


cdef inline uint32_t number_32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3]


cdef inline int32_t sequence_after(int32_t sequence, int64_t by) noexcept nogil:
    return -1 if sequence < 0 else <int32_t>((sequence + by) & SEQUENCE_MAX)


cdef inline void put_batch(Text* text, const uint8_t* at, int64_t position) noexcept nogil:
    cdef int64_t base_offset = <int64_t>number_64(at)
    cdef int16_t attributes = <int16_t>(at[21] << 8 | at[22])
    cdef int32_t delta = <int32_t>number_32(at + 23)
    cdef int32_t sequence = <int32_t>number_32(at + 53)
    put_bytes(text, b"baseOffset: ", 12)
    put_number(text, base_offset)
    put_bytes(text, b" lastOffset: ", 13)
    put_number(text, base_offset + delta)
    put_bytes(text, b" count: ", 8)
    put_number(text, <int32_t>number_32(at + 57))
    put_bytes(text, b" baseSequence: ", 15)
    put_number(text, sequence)
    put_bytes(text, b" lastSequence: ", 15)
    put_number(text, sequence_after(sequence, delta))
    put_bytes(text, b" producerId: ", 13)
    put_number(text, <int64_t>number_64(at + 43))
    put_bytes(text, b" producerEpoch: ", 16)
    put_number(text, <int16_t>(at[51] << 8 | at[52]))
    put_bytes(text, b" partitionLeaderEpoch: ", 23)
    put_number(text, <int32_t>number_32(at + 12))
    if attributes & ATTRIBUTE_TRANSACTIONAL:
        put_bytes(text, b" isTransactional: true isControl: false deleteHorizonMs: ", 57)
    else:
        put_bytes(text, b" isTransactional: false isControl: false deleteHorizonMs: ", 58)
    if attributes & ATTRIBUTE_DELETE_HORIZON:
        put_bytes(text, b"OptionalLong[", 13)
        put_number(text, <int64_t>number_64(at + 27))
        put_bytes(text, b"] position: ", 12)
    else:
        put_bytes(text, b"OptionalLong.empty position: ", 29)
    put_number(text, position)
    if attributes & ATTRIBUTE_LOG_APPEND_TIME:
        put_bytes(text, b" LogAppendTime: ", 16)
    else:
        put_bytes(text, b" CreateTime: ", 13)
    put_number(text, <int64_t>number_64(at + 35))
    put_bytes(text, b" size: ", 7)
    put_number(text, <int64_t><int32_t>number_32(at + 8) + LOG_OVERHEAD)
    put_bytes(text, b" magic: 2 compresscodec: none crc: ", 35)
    put_number(text, number_32(at + 17))
    put_bytes(text, b" isvalid: true\n", 15)


cdef bint put_record(
    Text* text, const uint8_t* batch, const uint8_t* at, const uint8_t* stop, int what, int64_t* offset
) noexcept nogil:
    """The line of the record in [``at``, ``stop``), after its length; False if Python must print it."""
    cdef int64_t time_delta = 0
    cdef int64_t base_time = <int64_t>number_64(batch + 27)
    cdef int32_t offset_delta = 0
    cdef int32_t key_size = 0
    cdef int32_t value_size = 0
    cdef int32_t header_count = 0
    cdef int32_t size = 0
    cdef int32_t number
    cdef const uint8_t* key
    cdef const uint8_t* value
    cdef bint appended = batch[22] & ATTRIBUTE_LOG_APPEND_TIME
    if at >= stop:
        return False
    at = get_varlong(at + 1, stop, &time_delta)
    if at == NULL:
        return False
    at = get_varint(at, stop, &offset_delta)
    if at == NULL:
        return False
    at = get_varint(at, stop, &key_size)
    if at == NULL or key_size > stop - at:
        return False
    key = at
    at = get_varint(at + max(key_size, 0), stop, &value_size)
    if at == NULL or value_size > stop - at:
        return False
    value = at
    at = get_varint(at + max(value_size, 0), stop, &header_count)
    if at == NULL or header_count < 0:
        return False
    if not (-TIME_MAX < base_time < TIME_MAX and -TIME_MAX < time_delta < TIME_MAX):
        return False
    offset[0] = <int64_t>number_64(batch) + offset_delta
    if what & PRINTS_METADATA:
        put_bytes(text, b"| offset: ", 10)
        put_number(text, offset[0])
        if appended:
            put_bytes(text, b" LogAppendTime: ", 16)
            put_number(text, <int64_t>number_64(batch + 35))
        else:
            put_bytes(text, b" CreateTime: ", 13)
            put_number(text, base_time + time_delta)
        put_bytes(text, b" keySize: ", 10)
        put_number(text, max(key_size, -1))
        put_bytes(text, b" valueSize: ", 12)
        put_number(text, max(value_size, -1))
        put_bytes(text, b" sequence: ", 11)
        put_number(text, sequence_after(<int32_t>number_32(batch + 53), offset_delta))
        put_bytes(text, b" headerKeys: [", 14)
    elif what & PRINTS_CONTENTS and (key_size >= 0 or value_size >= 0):
        text.at[0] = b"|"
        text.at += 1
    for number in range(header_count):
        at = get_varint(at, stop, &size)
        if at == NULL or size < 0 or size > stop - at:
            return False
        if what & PRINTS_METADATA:
            if number:
                text.at[0] = b","
                text.at += 1
            if not put_text(text, at, size):
                return False
        at = get_varint(at + size, stop, &size)
        if at == NULL or size > stop - at:
            return False
        at += max(size, 0)
    if at != stop:
        return False
    if what & PRINTS_METADATA:
        text.at[0] = b"]"
        text.at += 1
    if what & PRINTS_CONTENTS:
        if key_size >= 0:
            put_bytes(text, b" key: ", 6)
            if not put_text(text, key, key_size):
                return False
        if value_size >= 0:
            put_bytes(text, b" payload: ", 10)
            if not put_text(text, value, value_size):
                return False
    text.at[0] = b"\n"
    text.at += 1
    return True


def plain_lines(
    bytes data not None, Py_ssize_t at, Py_ssize_t stop, int64_t position, int what, int64_t last_offset, list gaps
):
    """The lines of the batches in ``data[at:stop]``, which a run has found whole, plain and right.

    ``position``: where ``data`` begins in its file. ``what``: RECORDS, METADATA, CONTENTS added up; 0 for the batches
    alone. ``last_offset``: of the record before these, UNKNOWN before the first. Appends to ``gaps`` (previous offset,
    offset) of records that do not follow each other.

    Returns (text, where it ends, last offset). It ends early where Python must print a batch, and after about 256 KiB.
    Raises MemoryError.
    """
    cdef const uint8_t* start = <const uint8_t*><const char*>data
    cdef const uint8_t* batch
    cdef const uint8_t* record
    cdef const uint8_t* end
    cdef Text text
    cdef Py_ssize_t batch_start
    cdef int64_t size
    cdef int64_t offset = 0
    cdef int64_t last
    cdef int32_t record_size = 0
    cdef int32_t count
    cdef int32_t number
    cdef bint is_plain
    cdef Py_ssize_t gap_count
    if not 0 <= at <= stop <= len(data):
        raise ValueError(f"{at} to {stop} of {len(data)} bytes")
    text.start = <char*>PyMem_RawMalloc(2 * LINE_SIZE_MAX)
    if text.start == NULL:
        raise MemoryError
    text.at = text.start
    text.stop = text.start + 2 * LINE_SIZE_MAX
    try:
        while stop - at >= HEADER_SIZE and text.at - text.start < TEXT_SIZE:
            batch = start + at
            size = <int64_t><int32_t>number_32(batch + 8) + LOG_OVERHEAD
            count = <int32_t>number_32(batch + 57)
            if (
                size < HEADER_SIZE or size > stop - at or count < 0 or batch[22] & ATTRIBUTE_CONTROL
                or <int32_t>number_32(batch + 53) < -1 or what and size > BATCH_SIZE_MAX
            ):
                break
            if not make_room(&text, LINE_SIZE_MAX):
                raise MemoryError
            batch_start = text.at - text.start
            put_batch(&text, batch, position + at)
            is_plain = True
            last, gap_count = last_offset, len(gaps)
            if what:
                record, end = batch + HEADER_SIZE, batch + size
                for number in range(count):
                    record = get_varint(record, end, &record_size)
                    is_plain = record != NULL and 0 <= record_size <= end - record
                    if not is_plain:
                        break
                    # Each header's name may have a comma.
                    if not make_room(&text, LINE_SIZE_MAX + 2 * <Py_ssize_t>record_size):
                        raise MemoryError
                    is_plain = put_record(&text, batch, record, record + record_size, what, &offset)
                    if not is_plain:
                        break
                    if last != INT64_MIN and offset != last + 1:
                        gaps.append((last, offset))
                    last = offset
                    record += record_size
                is_plain = is_plain and record == end
            if not is_plain:
                text.at = text.start + batch_start
                del gaps[gap_count:]
                break
            last_offset = last
            at += size
        return PyUnicode_DecodeUTF8(text.start, text.at - text.start, NULL), at, last_offset
    finally:
        PyMem_RawFree(text.start)
