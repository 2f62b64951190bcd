# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Takes staged batches into a buffer: read, compared with the table, and stamped with their producer.

Each byte of a write passes here once on its way into a log, so this is compiled, and runs without the interpreter's lock:
one read, one CRC over what was read, one write. To have the kernel copy from file to file would not save the read, since
nothing is appended that was not compared; and between the copy and the stamps a log would hold batches that no transaction
knows of. A stamp changes only the header. What it does to the CRC depends on the header and on the number of the bytes
that follow, so those are not read again.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from libc.errno cimport EINTR, errno
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kstore.files._direct cimport descriptor_of
from kstore.record._codec cimport BatchBuffer, named_tuple
from kstore.record._layout cimport ATTRIBUTE_TRANSACTIONAL, CRC_START, HEADER_SIZE, LOG_OVERHEAD

import os

from kstore.errors import CorruptFileError
from kstore.files.fs import storage_error
from kstore.record._codec import EncodedBatch

__all__ = ["ROW_BYTES", "take"]

cdef extern from "<unistd.h>" nogil:
    ctypedef long long off_t
    Py_ssize_t pread(int fd, void* data, size_t size, off_t position)

cdef enum:
    CODEC_MAX = 4
    # A row of the table: position (8), size, number of records, delta of the greatest timestamp, CRC.
    ROW_SIZE = 24
    NO_EPOCH = -1
    # The outcome of a read; below READ_END it is an error number, negated.
    READ_END = 0
    READ_WHOLE = 1

ROW_BYTES = ROW_SIZE

include "../record/_crc.pxi"

# What 2**n zero bytes make of a CRC, as polynomials.
cdef uint32_t[31] zeros
# One byte: x to the power 8, with the highest bit for x to the power 0.
zeros[0] = <uint32_t>1 << 23
cdef int power
for power in range(1, 31):
    zeros[power] = product(zeros[power - 1], zeros[power - 1])


cdef uint32_t product(uint32_t left, uint32_t right) noexcept nogil:
    """The product of two polynomials, modulo that of CRC-32C."""
    cdef uint32_t found = 0
    cdef uint32_t bit = <uint32_t>1 << 31
    while bit:
        if left & bit:
            found ^= right
        right = right >> 1 ^ (<uint32_t>0x82F63B78 if right & 1 else 0)
        bit >>= 1
    return found


cdef uint32_t followed(uint32_t difference, Py_ssize_t size) noexcept nogil:
    """The difference of two CRCs after the same ``size`` bytes more."""
    cdef int power = 0
    while size:
        if size & 1:
            difference = product(zeros[power], difference)
        size >>= 1
        power += 1
    return difference


cdef struct Row:
    int64_t position
    int64_t size
    int32_t record_count
    int32_t delta_of_max
    uint32_t crc


cdef inline uint64_t big_endian(const uint8_t* at, int size) noexcept nogil:
    cdef uint64_t value = 0
    while size:
        value = value << 8 | at[0]
        at += 1
        size -= 1
    return value


cdef inline void put_big_endian(uint8_t* to, int64_t value, int size) noexcept nogil:
    while size:
        size -= 1
        to[size] = <uint8_t>value
        value >>= 8


cdef inline Row row_at(const uint8_t* rows, Py_ssize_t index) noexcept nogil:
    cdef const uint8_t* at = rows + index * ROW_SIZE
    cdef Row row
    row.position = <int64_t>big_endian(at, 8)
    row.size = <int32_t>big_endian(at + 8, 4)
    row.record_count = <int32_t>big_endian(at + 12, 4)
    row.delta_of_max = <int32_t>big_endian(at + 16, 4)
    row.crc = <uint32_t>big_endian(at + 20, 4)
    return row


cdef inline bint is_sound(const Row* row) noexcept nogil:
    return 0 <= row.position < <int64_t>1 << 60 and row.size > HEADER_SIZE and 0 <= row.delta_of_max < row.record_count


cdef int read_whole(int fd, uint8_t* to, Py_ssize_t size, int64_t position) noexcept nogil:
    cdef Py_ssize_t got
    while size:
        got = pread(fd, to, size, position)
        if got == 0:
            return READ_END
        if got > 0:
            to += got
            size -= got
            position += got
        elif errno != EINTR:
            return -errno
    return READ_WHOLE


cdef bint is_staged(const uint8_t* batch, const Row* row) noexcept nogil:
    """Whether a batch of ``row.size`` bytes is what a task has staged for the row, with every byte of it."""
    return (
        big_endian(batch, 8) == 0
        and <int32_t>big_endian(batch + 8, 4) == row.size - LOG_OVERHEAD
        and <int32_t>big_endian(batch + 12, 4) == NO_EPOCH
        and batch[16] == 2
        and <uint32_t>big_endian(batch + 17, 4) == row.crc
        and big_endian(batch + 21, 2) <= CODEC_MAX  # nothing but a codec
        and <int32_t>big_endian(batch + 23, 4) == row.record_count - 1
        and <int32_t>big_endian(batch + 57, 4) == row.record_count
        and small_crc(batch + CRC_START, row.size - CRC_START) == row.crc
    )


cdef void stamp(
    uint8_t* batch, const Row* row, int64_t producer_id, int16_t producer_epoch, int32_t sequence
) noexcept nogil:
    cdef uint32_t before = small_crc(batch + CRC_START, HEADER_SIZE - CRC_START)
    cdef uint32_t after
    batch[22] |= ATTRIBUTE_TRANSACTIONAL
    put_big_endian(batch + 43, producer_id, 8)
    put_big_endian(batch + 51, producer_epoch, 2)
    put_big_endian(batch + 53, sequence, 4)
    after = small_crc(batch + CRC_START, HEADER_SIZE - CRC_START)
    put_big_endian(batch + 17, row.crc ^ followed(before ^ after, row.size - HEADER_SIZE), 4)


def take(
    file not None,
    bytes rows not None,
    Py_ssize_t index,
    Py_ssize_t size_max,
    BatchBuffer buffer not None,
    list batches not None,
    set codecs not None,
    int64_t producer_id,
    int16_t producer_epoch,
    int32_t sequence,
):
    """Takes the batches of ``rows`` from number ``index`` on, as long as ``buffer`` does not exceed ``size_max`` bytes; a
    first one always.

    Each gets the next sequence number, and an EncodedBatch in ``batches``; ``codecs`` gets the numbers of their codecs.
    Returns the number of the next row, and the next sequence number. Raises: CorruptFileError, StorageError; then the
    buffer holds what it held before.
    """
    cdef Py_ssize_t count = PyBytes_GET_SIZE(rows) // ROW_SIZE
    cdef const uint8_t* table = <const uint8_t*>PyBytes_AS_STRING(rows)
    cdef Py_ssize_t start = buffer.size
    cdef Py_ssize_t at, size
    cdef Py_ssize_t first = index
    cdef Py_ssize_t bad = -1
    cdef Py_ssize_t known = PyList_GET_SIZE(batches)
    cdef int fd
    cdef int outcome = READ_WHOLE
    cdef int32_t next_sequence = sequence
    cdef int64_t position
    cdef uint8_t* to
    cdef bytes data
    cdef Row row
    buffer.refuse_while_writing()
    if not 0 <= index < count or PyBytes_GET_SIZE(rows) % ROW_SIZE:
        raise ValueError(f"row {index}, expected one of a table of {len(rows)} bytes")
    fd = descriptor_of(file)
    while index < count and bad < 0:
        # Batches that follow one another in the file, as far as there is room, are read at once.
        first = index
        row = row_at(table, index)
        position, size = row.position, 0
        while is_sound(&row) and row.position == position + size:
            if start + size + row.size > size_max and start + size:
                break
            size += row.size
            index += 1
            if index == count:
                break
            row = row_at(table, index)
        if index == first:
            if not is_sound(&row):
                bad = first
            break
        buffer.make_room(start + size)
        to = buffer.data + start
        if fd >= 0:
            with nogil:
                outcome = read_whole(fd, to, size, position)
            if outcome < READ_END:
                raise storage_error(OSError(-outcome, os.strerror(-outcome)), file.path)
        else:
            data = <bytes?>file.pread(size, position)
            outcome = READ_WHOLE if PyBytes_GET_SIZE(data) == size else READ_END
            if outcome == READ_WHOLE:
                memcpy(to, PyBytes_AS_STRING(data), size)
        if outcome != READ_WHOLE:
            bad = first
            break
        with nogil:
            for at in range(first, index):
                row = row_at(table, at)
                if not is_staged(to, &row):
                    bad = at
                    break
                stamp(to, &row, producer_id, producer_epoch, next_sequence)
                next_sequence = <int32_t>((<int64_t>next_sequence + row.record_count) & INT32_MAX)
                to += row.size
        if bad >= 0:
            break
        for at in range(first, index):
            row = row_at(table, at)
            to = buffer.data + start
            codecs.add(to[22] & ~ATTRIBUTE_TRANSACTIONAL)
            batches.append(named_tuple(EncodedBatch, (
                row.record_count, start, row.size, row.record_count,
                <int64_t>big_endian(to + 27, 8), <int64_t>big_endian(to + 35, 8), row.delta_of_max,
            )))
            start += row.size
    if bad >= 0:
        del batches[known:]
        row = row_at(table, bad)
        raise CorruptFileError("not the batch that was staged", path=file.path, position=row.position)
    buffer.size = start
    return index, next_sequence
