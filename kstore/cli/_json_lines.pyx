# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Records as lines of JSON. No I/O here.

It makes the lines of records whose keys and values are UTF-8 or null. The others need fields in base64: ``record_json.py``
makes their lines, and tests hold the two together.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, strlen

from kstore.record._codec cimport Record

__all__ = ["kcat_line", "plain_line"]

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

include "_text.pxi"

cdef enum:
    # Names, numbers and quotes of a line; headers and escapes need more.
    LINE_SIZE = 160

cdef uint64_t LOW_BITS = 0x0101010101010101
cdef uint64_t HIGH_BITS = 0x8080808080808080
cdef const char* HEX = "0123456789abcdef"


cdef inline bint put(Text* line, const char* data, Py_ssize_t size) except -1:
    if not make_room(line, size):
        raise MemoryError
    put_bytes(line, data, size)
    return True


cdef inline bint put_words(Text* line, const char* words) except -1:
    return put(line, words, strlen(words))


cdef inline bint put_given(Text* line, bytes data) except -1:
    return put(line, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline bint put_integer(Text* line, int64_t number) except -1:
    if not make_room(line, NUMBER_SIZE_MAX):
        raise MemoryError
    put_number(line, number)
    return True


cdef inline Py_ssize_t plain_size(const uint8_t* data, Py_ssize_t size, bint* is_ascii) noexcept:
    """How many bytes from the start need no escape."""
    cdef Py_ssize_t at = 0
    cdef uint64_t word, quotes, slashes
    while size - at >= 8:
        memcpy(&word, data + at, 8)
        quotes = word ^ (LOW_BITS * 0x22)
        slashes = word ^ (LOW_BITS * 0x5C)
        # A byte below 0x20, a quote, a backslash: a false one may follow a true one, and is looked at below.
        if ((word - LOW_BITS * 0x20) | (quotes - LOW_BITS) | (slashes - LOW_BITS)) & ~word & HIGH_BITS:
            break
        if word & HIGH_BITS:
            is_ascii[0] = False
        at += 8
    while at < size and data[at] >= 0x20 and data[at] != 0x22 and data[at] != 0x5C:
        if data[at] >= 0x80:
            is_ascii[0] = False
        at += 1
    return at


cdef bint put_string(Text* line, const uint8_t* data, Py_ssize_t size) except -1:
    """Puts bytes as a string; False if they are not UTF-8."""
    cdef Py_ssize_t at = 0, plain
    cdef bint is_ascii = True
    cdef uint8_t byte
    cdef char[6] escape
    put_words(line, b'"')
    while True:
        plain = plain_size(data + at, size - at, &is_ascii)
        put(line, <const char*>data + at, plain)
        at += plain
        if at == size:
            break
        byte = data[at]
        at += 1
        escape[0] = c"\\"
        escape[1] = (
            c"n" if byte == 0x0A else c"r" if byte == 0x0D else c"t" if byte == 0x09 else c"b" if byte == 0x08
            else c"f" if byte == 0x0C else c"u" if byte < 0x20 else <char>byte
        )
        if escape[1] == c"u":
            escape[2] = escape[3] = c"0"
            escape[4], escape[5] = HEX[byte >> 4], HEX[byte & 15]
        put(line, escape, 6 if escape[1] == c"u" else 2)
    put_words(line, b'"')
    return is_ascii or is_utf8(data, data + size)


cdef bint put_field(Text* line, const char* name, bytes data) except -1:
    put_words(line, name)
    if data is None:
        put_words(line, b"null")
        return True
    return put_string(line, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef bint put_headers(Text* line, tuple headers) except -1:
    cdef Py_ssize_t size
    cdef const char* name
    cdef bint is_first = True
    put_words(line, b',"headers":[')
    for key, value in headers:
        put_words(line, b'{"key":' if is_first else b',{"key":')
        is_first = False
        name = PyUnicode_AsUTF8AndSize(key, &size)
        put_string(line, <const uint8_t*>name, size)
        if not put_field(line, b',"value":', value):
            return False
        put_words(line, b"}")
    put_words(line, b"]")
    return True


cdef bint put_record(Text* line, Record record, bytes head, bytes kind, bint as_kcat) except -1:
    put_given(line, head)
    put_words(line, b'"offset":')
    put_integer(line, record.offset)
    if as_kcat:
        put_words(line, b',"tstype":"')
        put_given(line, kind)
        put_words(line, b'","ts":')
        put_integer(line, record.timestamp)
        if not put_headers(line, record.headers):
            return False
    else:
        put_words(line, b',"timestamp":')
        put_integer(line, record.timestamp)
        put_words(line, b',"timestamp_type":"')
        put_given(line, kind)
        put_words(line, b'"')
    if not put_field(line, b',"key":', record.key):
        return False
    if not put_field(line, b',"payload":' if as_kcat else b',"value":', record.value):
        return False
    if not as_kcat and not put_headers(line, record.headers):
        return False
    put_words(line, b"}\n")
    return True


cdef bytes line_of(Record record, bytes head, bytes kind, bint as_kcat):
    cdef Text line
    cdef Py_ssize_t size = LINE_SIZE + PyBytes_GET_SIZE(head)
    size += 0 if record.key is None else PyBytes_GET_SIZE(record.key)
    size += 0 if record.value is None else PyBytes_GET_SIZE(record.value)
    line.start = line.at = line.stop = NULL
    try:
        # Most lines fit, and are not moved.
        if not make_room(&line, size):
            raise MemoryError
        if not put_record(&line, record, head, kind, as_kcat):
            return None
        return PyBytes_FromStringAndSize(line.start, line.at - line.start)
    finally:
        PyMem_RawFree(line.start)


def plain_line(Record record not None, bytes head not None, bytes kind not None):
    """The line that begins with ``head``, of what ``record_fields`` tells of a record; ``kind`` is its timestamp type.

    None if a key, a value or a header's value is not UTF-8.
    """
    return line_of(record, head, kind, as_kcat=False)


def kcat_line(Record record not None, bytes head not None, bytes kind not None):
    """The same with kcat's names, in its order."""
    return line_of(record, head, kind, as_kcat=True)
