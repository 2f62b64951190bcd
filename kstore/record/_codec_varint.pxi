"""Varints, zigzag and little-endian in groups of 7 bits, and Kafka's hash of a key. Part of _codec.pyx."""


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    """For a 32-bit value the same number as its 32-bit zigzag."""
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline Py_ssize_t size_of_unsigned(uint64_t value) noexcept nogil:
    """Bytes of ``value`` in groups of 7 bits: ceil(bits / 7), which 9 * bits / 64 rounds to for 1 to 64 bits."""
    return ((64 - __builtin_clzll(value | 1)) * 9 + 64) >> 6


cdef inline Py_ssize_t size_of_varint(int64_t value) noexcept nogil:
    return size_of_unsigned(zigzag(value))


cdef inline uint8_t* put_unsigned(uint8_t* to, uint64_t value) noexcept nogil:
    """Writes at most 10 bytes, 5 for a 32-bit value; returns the position after them."""
    while value >= 0x80:
        to[0] = <uint8_t>(value | 0x80)
        to += 1
        value >>= 7
    to[0] = <uint8_t>value
    return to + 1


cdef inline uint8_t* put_varint(uint8_t* to, int64_t value) noexcept nogil:
    return put_unsigned(to, zigzag(value))


cdef inline const uint8_t* get_unsigned(
    const uint8_t* at, const uint8_t* stop, int shift_max, uint64_t* value
) noexcept nogil:
    """The position after the groups at ``at``, or NULL if they do not end before ``stop`` or with ``shift_max``."""
    cdef uint64_t result
    cdef uint8_t group
    cdef int shift = 7
    if unlikely(at >= stop):
        return NULL
    result = at[0]
    at += 1
    if result >= 0x80:
        result &= 0x7F
        while True:
            if unlikely(at >= stop or shift > shift_max):
                return NULL
            group = at[0]
            at += 1
            result |= <uint64_t>(group & 0x7F) << shift
            if group < 0x80:
                break
            shift += 7
    value[0] = result
    return at


cdef inline const uint8_t* get_varint(const uint8_t* at, const uint8_t* stop, int32_t* value) noexcept nogil:
    """The position after the varint at ``at``, or NULL if it does not end before ``stop`` or in 5 bytes.

    As in Kafka, bits of the fifth byte beyond the 32nd are dropped: only a sixth byte is an error.
    """
    cdef uint64_t wide = 0
    cdef uint32_t result
    at = get_unsigned(at, stop, 28, &wide)
    result = <uint32_t>wide
    value[0] = <int32_t>((result >> 1) ^ (0 - (result & 1)))
    return at


cdef inline const uint8_t* get_varlong(const uint8_t* at, const uint8_t* stop, int64_t* value) noexcept nogil:
    """The position after the varlong at ``at``, or NULL if it does not end before ``stop`` or in 10 bytes."""
    cdef uint64_t result = 0
    at = get_unsigned(at, stop, 63, &result)
    value[0] = <int64_t>((result >> 1) ^ (0 - (result & 1)))
    return at


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
    cdef const uint8_t[::1] view = data
    cdef const uint8_t* start = NULL
    cdef const uint8_t* behind = NULL
    cdef int32_t value = 0
    if 0 <= position < view.shape[0]:
        start = &view[0]
        behind = get_varint(start + position, start + view.shape[0], &value)
    if behind == NULL:
        raise CorruptRecordError("no varint of at most 5 bytes", position=position)
    return value, behind - start


def decode_varlong(data, Py_ssize_t position=0):
    """(value, position after it) of the varlong at ``position``; CorruptRecordError if it is too long or cut off."""
    cdef const uint8_t[::1] view = data
    cdef const uint8_t* start = NULL
    cdef const uint8_t* behind = NULL
    cdef int64_t value = 0
    if 0 <= position < view.shape[0]:
        start = &view[0]
        behind = get_varlong(start + position, start + view.shape[0], &value)
    if behind == NULL:
        raise CorruptRecordError("no varlong of at most 10 bytes", position=position)
    return value, behind - start


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
    cdef const uint8_t[::1] view = data
    return murmur2_of(&view[0] if view.shape[0] else NULL, view.shape[0])
