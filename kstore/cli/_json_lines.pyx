# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Records as lines of JSON. No I/O here.

It makes the lines of records whose keys and values are UTF-8 or null. The others need fields in base64: ``record_json.py``
makes their lines, and tests hold the two together.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, strlen

from kstore.record._codec cimport Record

__all__ = ["kcat_line", "plain_line"]

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char* data, Py_ssize_t size, const char* errors)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    # A sign and 19 digits.
    NUMBER_SIZE_MAX = 20

cdef uint64_t LOW_BITS = 0x0101010101010101
cdef uint64_t HIGH_BITS = 0x8080808080808080
cdef const char* HEX = "0123456789abcdef"


# Where the next byte of a line goes; a first pass, without a buffer, only counts.
cdef struct Line:
    char* at
    Py_ssize_t size


cdef inline void put(Line* line, const char* data, Py_ssize_t size) noexcept:
    if line.at != NULL:
        memcpy(line.at, data, size)
        line.at += size
    line.size += size


cdef inline void put_text(Line* line, const char* text) noexcept:
    put(line, text, strlen(text))


cdef inline void put_bytes(Line* line, bytes data) noexcept:
    put(line, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef void put_number(Line* line, int64_t number) noexcept:
    cdef char[NUMBER_SIZE_MAX] digits
    cdef int at = NUMBER_SIZE_MAX
    cdef uint64_t rest = <uint64_t>0 - <uint64_t>number if number < 0 else <uint64_t>number
    while True:
        at -= 1
        digits[at] = <char>(c"0" + rest % 10)
        rest //= 10
        if rest == 0:
            break
    if number < 0:
        at -= 1
        digits[at] = c"-"
    put(line, digits + at, NUMBER_SIZE_MAX - at)


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


cdef bint put_string(Line* line, const uint8_t* data, Py_ssize_t size) except -1:
    """Puts bytes as a string; False if they are not UTF-8."""
    cdef Py_ssize_t at = 0, plain
    cdef bint is_ascii = True
    cdef uint8_t byte
    cdef char[6] escape
    put_text(line, b'"')
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
    put_text(line, b'"')
    if not is_ascii and line.at == NULL:
        try:
            PyUnicode_DecodeUTF8(<const char*>data, size, NULL)
        except UnicodeDecodeError:
            return False
    return True


cdef bint put_field(Line* line, const char* name, bytes data) except -1:
    put_text(line, name)
    if data is None:
        put_text(line, b"null")
        return True
    return put_string(line, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef bint put_headers(Line* line, tuple headers) except -1:
    cdef Py_ssize_t size
    cdef const char* name
    cdef bint is_first = True
    put_text(line, b',"headers":[')
    for key, value in headers:
        put_text(line, b'{"key":' if is_first else b',{"key":')
        is_first = False
        name = PyUnicode_AsUTF8AndSize(key, &size)
        put_string(line, <const uint8_t*>name, size)
        if not put_field(line, b',"value":', value):
            return False
        put_text(line, b"}")
    put_text(line, b"]")
    return True


cdef bint put_record(Line* line, Record record, bytes head, bytes kind, bint as_kcat) except -1:
    put_bytes(line, head)
    put_text(line, b'"offset":')
    put_number(line, record.offset)
    if as_kcat:
        put_text(line, b',"tstype":"')
        put_bytes(line, kind)
        put_text(line, b'","ts":')
        put_number(line, record.timestamp)
        if not put_headers(line, record.headers):
            return False
    else:
        put_text(line, b',"timestamp":')
        put_number(line, record.timestamp)
        put_text(line, b',"timestamp_type":"')
        put_bytes(line, kind)
        put_text(line, b'"')
    if not put_field(line, b',"key":', record.key):
        return False
    if not put_field(line, b',"payload":' if as_kcat else b',"value":', record.value):
        return False
    if not as_kcat and not put_headers(line, record.headers):
        return False
    put_text(line, b"}\n")
    return True


cdef bytes line_of(Record record, bytes head, bytes kind, bint as_kcat):
    cdef Line line
    cdef bytes text
    line.at = NULL
    line.size = 0
    if not put_record(&line, record, head, kind, as_kcat):
        return None
    text = PyBytes_FromStringAndSize(NULL, line.size)
    line.at = PyBytes_AS_STRING(text)
    put_record(&line, record, head, kind, as_kcat)
    return text


def plain_line(Record record not None, bytes head not None, bytes kind not None):
    """The line that begins with ``head``, of what ``record_fields`` tells of a record; ``kind`` is its timestamp type.

    None if a key, a value or a header's value is not UTF-8.
    """
    return line_of(record, head, kind, as_kcat=False)


def kcat_line(Record record not None, bytes head not None, bytes kind not None):
    """The same with kcat's names, in its order."""
    return line_of(record, head, kind, as_kcat=True)
