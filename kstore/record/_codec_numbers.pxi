"""Varints, and Kafka's hash of a key, for Python. Part of _codec.pyx."""


def encode_varint(int32_t value):
    """The bytes of a 32-bit ``value`` (Kafka: ByteUtils.writeVarint)."""
    cdef uint8_t to[5]
    return PyBytes_FromStringAndSize(<char*>to, put_varint(to, value) - to)


def encode_varlong(int64_t value):
    """The bytes of a 64-bit ``value`` (Kafka: ByteUtils.writeVarlong)."""
    cdef uint8_t to[10]
    return PyBytes_FromStringAndSize(<char*>to, put_varint(to, value) - to)


def decode_varint(data, Py_ssize_t position=0):
    """(value, position after it) of the varint at ``position``; CorruptRecordError if it is too long or cut off."""
    cdef Py_buffer view
    cdef const uint8_t* start
    cdef const uint8_t* after = NULL
    cdef Py_ssize_t end = 0
    cdef int32_t value = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if 0 <= position < view.len:
        start = <const uint8_t*>view.buf
        after = get_varint(start + position, start + view.len, &value)
        end = after - start
    PyBuffer_Release(&view)
    if after == NULL:
        raise CorruptRecordError("no varint of at most 5 bytes", position=position)
    return value, end


def decode_varlong(data, Py_ssize_t position=0):
    """(value, position after it) of the varlong at ``position``; CorruptRecordError if it is too long or cut off."""
    cdef Py_buffer view
    cdef const uint8_t* start
    cdef const uint8_t* after = NULL
    cdef Py_ssize_t end = 0
    cdef int64_t value = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if 0 <= position < view.len:
        start = <const uint8_t*>view.buf
        after = get_varlong(start + position, start + view.len, &value)
        end = after - start
    PyBuffer_Release(&view)
    if after == NULL:
        raise CorruptRecordError("no varlong of at most 10 bytes", position=position)
    return value, end


cdef int32_t murmur2_of(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t k
    while size >= 4:
        k = data[0] | (<uint32_t>data[1] << 8) | (<uint32_t>data[2] << 16) | (<uint32_t>data[3] << 24)
        k *= m
        k ^= k >> 24
        h = (h * m) ^ (k * m)
        data += 4
        size -= 4
    if size >= 3:
        h ^= <uint32_t>data[2] << 16
    if size >= 2:
        h ^= <uint32_t>data[1] << 8
    if size >= 1:
        h = (h ^ data[0]) * m
    h = (h ^ (h >> 13)) * m
    return <int32_t>(h ^ (h >> 15))


def murmur2(data):
    """Kafka's hash of a key (bytes-like): 32-bit murmur2 with its seed, as the signed integer that Java has."""
    cdef Py_buffer view
    cdef int32_t value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    value = murmur2_of(<const uint8_t*>view.buf, view.len)
    PyBuffer_Release(&view)
    return value
