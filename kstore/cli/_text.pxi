"""Text that is put together in memory: bytes, numbers, and whether bytes are UTF-8. Part of _json_lines.pyx and
dump/_lines.pyx, which import PyMem_RawRealloc, memcpy and the integers."""

cdef enum:
    # A sign and 19 digits, or 20 digits.
    NUMBER_SIZE_MAX = 20

# A buffer that grows: its bytes so far are [start, at), its room ends at ``stop``.
cdef struct Text:
    char* start
    char* at
    char* stop


cdef bint make_room(Text* text, Py_ssize_t size) noexcept nogil:
    """Makes room for ``size`` bytes more; False if there is no memory."""
    cdef Py_ssize_t used = text.at - text.start
    cdef Py_ssize_t wanted
    cdef char* moved
    if text.stop - text.at >= size:
        return True
    wanted = 2 * (used + size)
    moved = <char*>PyMem_RawRealloc(text.start, wanted)
    if moved == NULL:
        return False
    text.start, text.at, text.stop = moved, moved + used, moved + wanted
    return True


# The functions below need room: ``size`` bytes, or NUMBER_SIZE_MAX.
cdef inline void put_bytes(Text* text, const char* data, Py_ssize_t size) noexcept nogil:
    memcpy(text.at, data, size)
    text.at += size


cdef inline void put_number(Text* text, int64_t number) noexcept nogil:
    cdef char[NUMBER_SIZE_MAX] digits
    cdef int at = NUMBER_SIZE_MAX
    cdef uint64_t rest = <uint64_t>number
    if number < 0:
        text.at[0] = b"-"
        text.at += 1
        rest = 0 - rest
    while True:
        at -= 1
        digits[at] = <char>(48 + rest % 10)
        rest //= 10
        if rest == 0:
            break
    put_bytes(text, digits + at, NUMBER_SIZE_MAX - at)


cdef bint is_utf8(const uint8_t* at, const uint8_t* stop) noexcept nogil:
    """Whether Java and Python read it as the same text (RFC 3629)."""
    cdef uint8_t first
    cdef uint8_t second
    cdef int more
    while at < stop:
        first = at[0]
        at += 1
        if first < 0x80:
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if stop - at < more:
            return False
        second = at[0]
        # Longer than it need be, a surrogate, beyond the last code point.
        if (
            first == 0xE0 and second < 0xA0 or first == 0xED and second > 0x9F
            or first == 0xF0 and second < 0x90 or first == 0xF4 and second > 0x8F
        ):
            return False
        while more:
            if at[0] & 0xC0 != 0x80:
                return False
            at += 1
            more -= 1
    return True
