"""Varints, zigzag and little-endian in groups of 7 bits. Part of each module that reads or writes records."""


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
