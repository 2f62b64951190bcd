"""The hash of a key: SipHash-2-4 with 128 bits of output. Part of _compact.pyx."""


cdef inline uint64_t rotated(uint64_t value, int by) noexcept nogil:
    return (value << by) | (value >> (64 - by))


cdef inline void sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = rotated(v[1], 13) ^ v[0]
    v[3] = rotated(v[3], 16) ^ v[2]
    v[0] = rotated(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = rotated(v[1], 17) ^ v[2]
    v[3] = rotated(v[3], 21) ^ v[0]
    v[2] = rotated(v[2], 32)


cdef inline uint64_t little_endian(const uint8_t* at) noexcept nogil:
    return (
        <uint64_t>at[0] | <uint64_t>at[1] << 8 | <uint64_t>at[2] << 16 | <uint64_t>at[3] << 24
        | <uint64_t>at[4] << 32 | <uint64_t>at[5] << 40 | <uint64_t>at[6] << 48 | <uint64_t>at[7] << 56
    )


cdef void hash_key(
    const uint8_t* data, Py_ssize_t size, const uint64_t* secret, uint64_t* first, uint64_t* second
) noexcept nogil:
    """SipHash-2-4 with 128 bits of output (Aumasson, Bernstein)."""
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef Py_ssize_t left = size
    cdef int i
    v[0] = <uint64_t>0x736F6D6570736575 ^ secret[0]
    v[1] = <uint64_t>0x646F72616E646F6D ^ secret[1] ^ 0xEE
    v[2] = <uint64_t>0x6C7967656E657261 ^ secret[0]
    v[3] = <uint64_t>0x7465646279746573 ^ secret[1]
    while left >= 8:
        word = little_endian(data)
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
        data += 8
        left -= 8
    word = <uint64_t>size << 56
    for i in range(<int>left):
        word |= <uint64_t>data[i] << (8 * i)
    v[3] ^= word
    sip_round(v)
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xEE
    for i in range(4):
        sip_round(v)
    first[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for i in range(4):
        sip_round(v)
    second[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


def siphash128(bytes key not None, bytes secret not None):
    """The 16 bytes of SipHash-2-4's longer form; for tests."""
    cdef uint64_t words[2]
    cdef uint64_t first, second
    if PyBytes_GET_SIZE(secret) != 16:
        raise ValueError("a secret of 16 bytes is expected")
    words[0] = little_endian(<const uint8_t*>PyBytes_AS_STRING(secret))
    words[1] = little_endian(<const uint8_t*>PyBytes_AS_STRING(secret) + 8)
    hash_key(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), words, &first, &second)
    return int(first).to_bytes(8, "little") + int(second).to_bytes(8, "little")
