"""Bytes as text, as Java's ``new String(bytes, UTF_8)`` reads them. Part of each module that shows header keys as text.

Unicode's maximal subparts (table 3-8): one U+FFFD for the bytes that begin a character and do not complete it, and for
any other byte. Java differs in one case: of a surrogate, ED A0 to ED BF, all bytes there are count as one, and Python
replaces each of them. So what is not UTF-8 is mended here, before Python sees it.
"""

cdef const char* REPLACEMENT = b"\xef\xbf\xbd"

cdef enum:
    REPLACEMENT_SIZE = 3

cdef uint64_t HIGH_BITS = 0x8080808080808080


cdef inline Py_ssize_t piece_size(const uint8_t* at, const uint8_t* stop, bint* is_sound) noexcept nogil:
    """The bytes of the next character, or of what one U+FFFD replaces; ``at`` is below ``stop``."""
    cdef uint8_t first = at[0], low = 0x80, high = 0xBF
    cdef Py_ssize_t size = 1, wanted
    is_sound[0] = first < 0x80
    if first < 0x80:
        return 1
    if 0xC2 <= first <= 0xDF:
        wanted = 2
    elif 0xE0 <= first <= 0xEF:
        wanted = 3
        low = 0xA0 if first == 0xE0 else 0x80
    elif 0xF0 <= first <= 0xF4:
        wanted = 4
        low = 0x90 if first == 0xF0 else 0x80
        high = 0x8F if first == 0xF4 else 0xBF
    else:
        return 1
    while size < wanted and at + size < stop and low <= at[size] <= high:
        low, high = 0x80, 0xBF
        size += 1
    # Complete, and no surrogate.
    is_sound[0] = size == wanted and not (first == 0xED and at[1] > 0x9F)
    return size


cdef Py_ssize_t text_size(const uint8_t* at, Py_ssize_t size, bint* is_text) noexcept nogil:
    """The size of the text as UTF-8; ``is_text`` becomes False if the bytes are not that already."""
    cdef const uint8_t* stop = at + size
    cdef Py_ssize_t piece, found = 0
    cdef bint is_sound = False
    cdef uint64_t word
    while at < stop:
        if stop - at >= 8:
            memcpy(&word, at, 8)
            if not word & HIGH_BITS:
                at += 8
                found += 8
                continue
        piece = piece_size(at, stop, &is_sound)
        if is_sound:
            found += piece
        else:
            found += REPLACEMENT_SIZE
            is_text[0] = False
        at += piece
    return found


cdef uint8_t* put_text(uint8_t* to, const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Writes the text as UTF-8, ``text_size`` bytes, and returns their end."""
    cdef const uint8_t* stop = at + size
    cdef Py_ssize_t piece
    cdef bint is_sound = False
    while at < stop:
        piece = piece_size(at, stop, &is_sound)
        if is_sound:
            memcpy(to, at, piece)
            to += piece
        else:
            memcpy(to, REPLACEMENT, REPLACEMENT_SIZE)
            to += REPLACEMENT_SIZE
        at += piece
    return to
