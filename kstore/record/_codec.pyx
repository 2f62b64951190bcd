# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False
"""The compiled loops over the records of a batch (version 2), with the varints and the hash they need. No I/O here.

    record    length varint | attributes int8 | timestamp delta varlong | offset delta varint | key | value
              | header count varint | headers
    key       length varint (negative: null) | bytes          value likewise
    header    key length varint (>= 0) | UTF-8 | value length varint (negative: null) | bytes

Varints are zigzag and little-endian in groups of 7 bits: at most 5 bytes (varint), 10 (varlong).

Everything that is read may be hostile: a length is compared with the bytes that remain before it is used, and each
pass over records does so again, because the bytes of a mutable buffer may have changed since an earlier pass. Nothing
here releases the GIL, and a loop that holds borrowed references calls nothing that could run Python code.
"""

from array import array as _array
from collections import namedtuple

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Clear, PyErr_ExceptionMatches
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cimport cython

from kstore.errors import CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordError
from kstore.types import TIMESTAMP_TYPES as _TIMESTAMP_TYPES

__all__ = [
    "BatchBuffer",
    "EncodedBatch",
    "OpenBatch",
    "Record",
    "RecordCursor",
    "RecordsSummary",
    "check_records",
    "decode_offsets_timestamps",
    "decode_values",
    "decode_varint",
    "decode_varlong",
    "encode_batch",
    "encode_varint",
    "encode_varlong",
    "murmur2",
    "patch_crc",
    "patch_header",
    "patch_producer",
]

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define KSTORE_PREFETCH(address) __builtin_prefetch(address)
    #define KSTORE_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
    #else
    #define KSTORE_PREFETCH(address) ((void)(address))
    #define KSTORE_UNLIKELY(condition) (condition)
    #endif
    #define KSTORE_PUT_BE(bits)                                                             \\
        static CYTHON_INLINE void kstore_put_be##bits(unsigned char *to, uint##bits##_t v) {  \\
            int shift;                                                                      \\
            for (shift = bits - 8; shift >= 0; shift -= 8) *to++ = (unsigned char)(v >> shift); \\
        }
    KSTORE_PUT_BE(16)
    KSTORE_PUT_BE(32)
    KSTORE_PUT_BE(64)
    """
    void KSTORE_PREFETCH(const void* address) nogil
    bint KSTORE_UNLIKELY(bint condition) nogil
    void kstore_put_be16(unsigned char* to, int16_t v) nogil
    void kstore_put_be32(unsigned char* to, uint32_t v) nogil
    void kstore_put_be64(unsigned char* to, int64_t v) nogil

cdef extern from "Python.h":
    # Borrowed references, and nothing that can run Python code.
    bint PyBytes_CheckExact(PyObject* o)
    bint PyLong_CheckExact(PyObject* o)
    Py_ssize_t PyBytes_SIZE "PyBytes_GET_SIZE"(PyObject* o)
    char* PyBytes_DATA "PyBytes_AS_STRING"(PyObject* o)
    Py_ssize_t PySequence_Fast_GET_SIZE(object o)
    PyObject** PySequence_Fast_ITEMS(object o)
    int64_t PyLong_AsLongLong(PyObject* o) except? -1
    const char* PyUnicode_AsUTF8AndSize(object o, Py_ssize_t* size) except NULL
    PyObject* PyUnicode_DecodeUTF8_raw "PyUnicode_DecodeUTF8"(const char* s, Py_ssize_t size, const char* errors)
    object PyUnicode_DecodeUTF8(const char* s, Py_ssize_t size, const char* errors)
    object PyUnicode_FromObject(object o)
    void Py_DECREF_raw "Py_DECREF"(PyObject* o)
    PyObject* Py_None

cdef enum:
    HEADER_SIZE = 61
    # What a batch's size field leaves out: the base offset and itself.
    LOG_OVERHEAD = 12
    MAGIC = 2
    # length, attributes, two deltas, two null or empty fields, header count: one byte each.
    RECORD_SIZE_MIN = 7
    # A value's memory is asked for this many records before it is copied: 10 to 15 % of an encode with cold values.
    PREFETCH_AHEAD = 8
    BUFFER_CAPACITY_MIN = 4096
    LOG_APPEND_TIME = 1
    ATTRIBUTE_LOG_APPEND_TIME = 0x08

cdef tuple TIMESTAMP_TYPES = _TIMESTAMP_TYPES
cdef array.array INT64_TEMPLATE = _array("q")

EncodedBatch = namedtuple(
    "EncodedBatch",
    "stop position size record_count base_timestamp max_timestamp max_timestamp_delta_offset",
    module=__name__,
)
RecordsSummary = namedtuple(
    "RecordsSummary",
    "first_offset_delta last_offset_delta max_timestamp max_timestamp_offset_delta min_timestamp null_key_count",
    module=__name__,
)


# --- varints ----------------------------------------------------------------------------------------------------------


cdef inline uint32_t zigzag32(int32_t value) noexcept nogil:
    return (<uint32_t>value << 1) ^ <uint32_t>(value >> 31)


cdef inline uint64_t zigzag64(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)


cdef inline Py_ssize_t size_of_unsigned(uint64_t value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t* put_unsigned(uint8_t* to, uint64_t value) noexcept nogil:
    while value >= 0x80:
        to[0] = <uint8_t>(value | 0x80)
        to += 1
        value >>= 7
    to[0] = <uint8_t>value
    return to + 1


cdef inline const uint8_t* get_varint(const uint8_t* at, const uint8_t* stop, int32_t* value) noexcept nogil:
    """The position behind the varint at ``at``, or NULL if it does not end before ``stop`` or in 5 bytes."""
    cdef uint32_t result
    cdef uint8_t group
    cdef int shift
    if KSTORE_UNLIKELY(at >= stop):
        return NULL
    result = at[0]
    at += 1
    if result >= 0x80:
        result &= 0x7F
        shift = 7
        while True:
            if KSTORE_UNLIKELY(at >= stop or shift > 28):
                return NULL
            # As in Kafka, bits beyond the 32nd are dropped: only a sixth byte is an error.
            group = at[0]
            at += 1
            result |= <uint32_t>(group & 0x7F) << shift
            if group < 0x80:
                break
            shift += 7
    value[0] = <int32_t>(result >> 1) ^ -<int32_t>(result & 1)
    return at


cdef inline const uint8_t* get_varlong(const uint8_t* at, const uint8_t* stop, int64_t* value) noexcept nogil:
    """The position behind the varlong at ``at``, or NULL if it does not end before ``stop`` or in 10 bytes."""
    cdef uint64_t result
    cdef uint8_t group
    cdef int shift
    if KSTORE_UNLIKELY(at >= stop):
        return NULL
    result = at[0]
    at += 1
    if result >= 0x80:
        result &= 0x7F
        shift = 7
        while True:
            if KSTORE_UNLIKELY(at >= stop or shift > 63):
                return NULL
            group = at[0]
            at += 1
            result |= <uint64_t>(group & 0x7F) << shift
            if group < 0x80:
                break
            shift += 7
    value[0] = <int64_t>(result >> 1) ^ -<int64_t>(result & 1)
    return at


def encode_varint(int32_t value):
    """The bytes of a 32-bit ``value`` (Kafka: ByteUtils.writeVarint)."""
    cdef uint8_t to[5]
    return PyBytes_FromStringAndSize(<char*>to, put_unsigned(to, zigzag32(value)) - to)


def encode_varlong(int64_t value):
    """The bytes of a 64-bit ``value`` (Kafka: ByteUtils.writeVarlong)."""
    cdef uint8_t to[10]
    return PyBytes_FromStringAndSize(<char*>to, put_unsigned(to, zigzag64(value)) - to)


def decode_varint(data, Py_ssize_t position=0):
    """(value, position behind it) of the varint at ``position``; CorruptRecordError if it is too long or cut off."""
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
    """(value, position behind it) of the varlong at ``position``; CorruptRecordError if it is too long or cut off."""
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


def murmur2(data):
    """Kafka's hash of a key: 32-bit murmur2 with its seed, as the signed integer that Java has."""
    cdef const uint8_t[::1] view = data
    cdef Py_ssize_t size = view.shape[0]
    cdef const uint8_t* at = &view[0] if size else NULL
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t k
    while size >= 4:
        k = at[0] | (<uint32_t>at[1] << 8) | (<uint32_t>at[2] << 16) | (<uint32_t>at[3] << 24)
        k *= <uint32_t>0x5BD1E995
        k ^= k >> 24
        h = (h * <uint32_t>0x5BD1E995) ^ (k * <uint32_t>0x5BD1E995)
        at += 4
        size -= 4
    if size >= 3:
        h ^= <uint32_t>at[2] << 16
    if size >= 2:
        h ^= <uint32_t>at[1] << 8
    if size >= 1:
        h = (h ^ at[0]) * <uint32_t>0x5BD1E995
    h = (h ^ (h >> 13)) * <uint32_t>0x5BD1E995
    return <int32_t>(h ^ (h >> 15))


# --- one record as an object ------------------------------------------------------------------------------------------


cdef bytes as_bytes(object value, str field):
    """``value`` as exact bytes or None: only these can go into a Record, which the garbage collector never sees."""
    if value is None or type(value) is bytes:
        return value
    if not PyObject_CheckBuffer(value):
        raise TypeError(f"{field} must be bytes or None, not {type(value).__name__}")
    return bytes(memoryview(value))


cdef bint is_header(object pair):
    """Whether ``pair`` can go into a record as it is."""
    return (
        type(pair) is tuple
        and len(<tuple>pair) == 2
        and type((<tuple>pair)[0]) is str
        and ((<tuple>pair)[1] is None or type((<tuple>pair)[1]) is bytes)
    )


cdef tuple plain_header(object pair):
    key, value = pair
    if not isinstance(key, str):
        raise TypeError(f"a header's key must be str, not {type(key).__name__}")
    return PyUnicode_FromObject(key), as_bytes(value, "a header's value")


cdef tuple checked_headers(object headers):
    """``headers``, an iterable of (str, bytes or None) pairs or None, as a tuple of exactly such tuples."""
    if headers is None:
        return ()
    if type(headers) is dict:
        raise TypeError("headers must be an iterable of (key, value) pairs, not dict: pass dict.items()")
    cdef tuple pairs = tuple(headers)
    for pair in pairs:
        if not is_header(pair):
            return tuple([plain_header(pair) for pair in pairs])
    return pairs


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Record:
    """One record of a log, immutable.

    Attributes: ``offset``, ``timestamp`` (ms since the epoch, -1 none), ``timestamp_type`` ("CreateTime",
    "LogAppendTime", "NoTimestampType"), ``key`` and ``value`` (bytes or None), ``headers`` (a tuple of
    (str, bytes or None) tuples, a key may repeat), ``leader_epoch`` (-1 none).

    It has no garbage-collector header: with its fields' types fixed it can be part of no cycle.
    """

    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly bytes key
    cdef readonly bytes value
    cdef readonly tuple headers
    cdef readonly int32_t leader_epoch
    cdef int8_t timestamp_type_index

    def __init__(
        self,
        int64_t offset,
        int64_t timestamp,
        str timestamp_type="CreateTime",
        key=None,
        value=None,
        headers=(),
        int32_t leader_epoch=-1,
    ):
        if timestamp_type not in TIMESTAMP_TYPES:
            raise ValueError(f"timestamp_type {timestamp_type!r}, expected one of {', '.join(TIMESTAMP_TYPES)}")
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type_index = TIMESTAMP_TYPES.index(timestamp_type)
        self.key = as_bytes(key, "key")
        self.value = as_bytes(value, "value")
        self.headers = checked_headers(headers)
        self.leader_epoch = leader_epoch

    @property
    def timestamp_type(self):
        return TIMESTAMP_TYPES[self.timestamp_type_index]

    cdef tuple fields(self):
        return (
            self.offset,
            self.timestamp,
            TIMESTAMP_TYPES[self.timestamp_type_index],
            self.key,
            self.value,
            self.headers,
            self.leader_epoch,
        )

    def __eq__(self, other):
        if type(other) is not Record:
            return NotImplemented
        return self.fields() == (<Record>other).fields()

    def __hash__(self):
        return hash(self.fields())

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, timestamp_type={self.timestamp_type!r}, "
            f"key={self.key!r}, value={self.value!r}, headers={self.headers!r}, leader_epoch={self.leader_epoch})"
        )

    def __reduce__(self):
        return Record, self.fields()


# --- reading ----------------------------------------------------------------------------------------------------------


cdef enum:
    BAD_VARINT = 1
    BAD_RECORD_SIZE
    BAD_OFFSET
    BAD_FIELD_SIZE
    BAD_HEADER_COUNT
    BAD_HEADER_KEY_SIZE
    BAD_HEADER_KEY
    BAD_END

cdef dict PROBLEMS = {
    BAD_VARINT: "a varint is longer than its type, or than the record",
    BAD_RECORD_SIZE: "record size {found}, expected at most the {limit} bytes that remain",
    BAD_OFFSET: "offset delta {found}, expected more than the one before and at most {limit}",
    BAD_FIELD_SIZE: "a field of {found} bytes, expected at most the {limit} that remain of the record",
    BAD_HEADER_COUNT: "{found} headers, expected 0 to what {limit} bytes can hold",
    BAD_HEADER_KEY_SIZE: "a header key of {found} bytes, expected 0 to the {limit} that remain of the record",
    BAD_HEADER_KEY: "a header key of {found} bytes that is not UTF-8",
    BAD_END: "its fields leave {found} bytes of the record, expected {limit}",
}

# The fields of one record, pointing into the payload, or what is wrong with it. A size of -1 is null.
cdef struct RecordView:
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t header_count
    Py_ssize_t key_size
    Py_ssize_t value_size
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers
    const uint8_t* stop
    int problem
    int64_t found
    int64_t limit
    const uint8_t* problem_at


cdef inline const uint8_t* fail(RecordView* record, int problem, const uint8_t* at, int64_t found, int64_t limit) noexcept:
    record.problem = problem
    record.problem_at = at
    record.found = found
    record.limit = limit
    return NULL


cdef inline const uint8_t* get_field(
    RecordView* record, const uint8_t* at, const uint8_t* stop, const uint8_t** data, Py_ssize_t* size
) noexcept:
    """The position behind a nullable field, or NULL. Kafka reads any negative size as null."""
    cdef int32_t field_size = 0
    cdef const uint8_t* start = get_varint(at, stop, &field_size)
    if KSTORE_UNLIKELY(start == NULL):
        return fail(record, BAD_VARINT, at, 0, 0)
    data[0] = start
    if field_size < 0:
        size[0] = -1
        return start
    if KSTORE_UNLIKELY(field_size > stop - start):
        return fail(record, BAD_FIELD_SIZE, at, field_size, stop - start)
    size[0] = field_size
    return start + field_size


cdef bint is_utf8(const uint8_t* data, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    cdef uint8_t seen = 0
    cdef PyObject* text
    for i in range(size):
        seen |= data[i]
    if seen < 0x80:
        return True
    text = PyUnicode_DecodeUTF8_raw(<const char*>data, size, NULL)
    if text == NULL:
        PyErr_Clear()
        return False
    Py_DECREF_raw(text)
    return True


cdef const uint8_t* get_headers(RecordView* record, const uint8_t* at, const uint8_t* stop) noexcept:
    """The position behind ``header_count`` headers, each of them checked, or NULL."""
    cdef int32_t i, key_size = 0
    cdef const uint8_t* key
    cdef const uint8_t* value
    cdef Py_ssize_t value_size
    for i in range(record.header_count):
        key = get_varint(at, stop, &key_size)
        if key == NULL:
            return fail(record, BAD_VARINT, at, 0, 0)
        if key_size < 0 or key_size > stop - key:
            return fail(record, BAD_HEADER_KEY_SIZE, at, key_size, stop - key)
        if not is_utf8(key, key_size):
            return fail(record, BAD_HEADER_KEY, key, key_size, 0)
        at = get_field(record, key + key_size, stop, &value, &value_size)
        if at == NULL:
            return NULL
    return at


cdef inline const uint8_t* get_record(
    RecordView* record, const uint8_t* at, const uint8_t* stop, int32_t previous_delta, int32_t last_offset_delta
) noexcept:
    """The position behind the record at ``at``, whose every field was checked, or NULL with ``record.problem`` set."""
    cdef int32_t size = 0
    cdef const uint8_t* start = at
    cdef const uint8_t* next_field = get_varint(at, stop, &size)
    if KSTORE_UNLIKELY(next_field == NULL):
        return fail(record, BAD_VARINT, start, 0, 0)
    at = next_field
    if KSTORE_UNLIKELY(size < RECORD_SIZE_MIN - 1 or size > stop - at):
        return fail(record, BAD_RECORD_SIZE, start, size, stop - at)
    stop = at + size
    # The attributes byte is there (size was checked) and means nothing yet.
    next_field = get_varlong(at + 1, stop, &record.timestamp_delta)
    if KSTORE_UNLIKELY(next_field == NULL):
        return fail(record, BAD_VARINT, at + 1, 0, 0)
    at = get_varint(next_field, stop, &record.offset_delta)
    if KSTORE_UNLIKELY(at == NULL):
        return fail(record, BAD_VARINT, next_field, 0, 0)
    if KSTORE_UNLIKELY(record.offset_delta <= previous_delta or record.offset_delta > last_offset_delta):
        return fail(record, BAD_OFFSET, next_field, record.offset_delta, last_offset_delta)
    at = get_field(record, at, stop, &record.key, &record.key_size)
    if KSTORE_UNLIKELY(at == NULL):
        return NULL
    at = get_field(record, at, stop, &record.value, &record.value_size)
    if KSTORE_UNLIKELY(at == NULL):
        return NULL
    next_field = get_varint(at, stop, &record.header_count)
    if KSTORE_UNLIKELY(next_field == NULL):
        return fail(record, BAD_VARINT, at, 0, 0)
    # A header is two bytes at least.
    if KSTORE_UNLIKELY(record.header_count < 0 or record.header_count > (stop - next_field) // 2):
        return fail(record, BAD_HEADER_COUNT, at, record.header_count, stop - next_field)
    record.headers = at = next_field
    if record.header_count:
        at = get_headers(record, at, stop)
        if KSTORE_UNLIKELY(at == NULL):
            return NULL
    if KSTORE_UNLIKELY(at != stop):
        return fail(record, BAD_END, at, stop - at, 0)
    record.stop = stop
    return stop


cdef object corrupt(RecordView* record, const uint8_t* start, int64_t index):
    reason = PROBLEMS[record.problem].format(found=record.found, limit=record.limit)
    return CorruptRecordError(f"record {index}: {reason}", position=record.problem_at - start)


cdef int check_window(Py_buffer* data, Py_ssize_t position, Py_ssize_t stop, int32_t count, int32_t last_offset_delta) except -1:
    """Checks what every pass over a payload takes for granted."""
    if not 0 <= position <= stop <= data.len:
        raise CorruptRecordError(f"records at {position} to {stop} of a buffer of {data.len} bytes", position=position)
    if count < 0 or last_offset_delta < -1 or count > <int64_t>last_offset_delta + 1:
        raise CorruptRecordError(
            f"a record count of {count}, expected 0 to last offset delta + 1 ({last_offset_delta + 1})", position=position
        )
    if count > (stop - position) // RECORD_SIZE_MIN:
        raise CorruptRecordError(
            f"a record count of {count}, expected at most what {stop - position} bytes can hold", position=position
        )
    return 0


cdef int check_end(const uint8_t* at, const uint8_t* stop, const uint8_t* start, int32_t count) except -1:
    if at != stop:
        raise CorruptRecordError(f"{stop - at} bytes left behind record {count - 1}, expected none", position=at - start)
    return 0


cdef struct Summary:
    int32_t first_delta
    int32_t last_delta
    int32_t max_timestamp_delta_offset
    int32_t null_key_count
    int64_t max_timestamp
    int64_t min_timestamp


cdef int check_payload(
    Py_buffer* data,
    Py_ssize_t position,
    Py_ssize_t stop,
    int32_t count,
    int32_t last_offset_delta,
    int64_t base_timestamp,
    Summary* summary,
) except -1:
    """Checks every record of a payload; see ``check_records``."""
    check_window(data, position, stop, count, last_offset_delta)
    cdef const uint8_t* start = <const uint8_t*>data.buf
    cdef const uint8_t* at = start + position
    cdef const uint8_t* end = start + stop
    cdef const uint8_t* behind
    cdef RecordView record
    cdef int32_t index, previous_delta = -1, null_key_count = 0
    cdef int64_t timestamp, max_timestamp = INT64_MIN, min_timestamp = INT64_MAX
    summary.first_delta = -1
    summary.max_timestamp_delta_offset = -1
    for index in range(count):
        behind = get_record(&record, at, end, previous_delta, last_offset_delta)
        if KSTORE_UNLIKELY(behind == NULL):
            raise corrupt(&record, start, index)
        at = behind
        if previous_delta < 0:
            summary.first_delta = record.offset_delta
        previous_delta = record.offset_delta
        null_key_count += record.key_size < 0
        timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>record.timestamp_delta)
        if timestamp > max_timestamp:
            max_timestamp = timestamp
            summary.max_timestamp_delta_offset = previous_delta
        if timestamp < min_timestamp:
            min_timestamp = timestamp
    check_end(at, end, start, count)
    summary.last_delta = previous_delta
    summary.null_key_count = null_key_count
    summary.max_timestamp = max_timestamp if count else -1
    summary.min_timestamp = min_timestamp if count else -1
    return 0


def check_records(
    data, Py_ssize_t position, Py_ssize_t stop, int32_t count, int32_t last_offset_delta, int64_t base_timestamp=0
):
    """Checks the structure of all ``count`` records in bytes ``position`` to ``stop`` of ``data``, making no objects.

    Every length against the bytes that remain, varints against their types, offset deltas (rising, at most
    ``last_offset_delta``), header keys (UTF-8), and that records and bytes end together.

    Returns a RecordsSummary; its timestamps are ``base_timestamp`` + delta, everything is -1 where there is no record.
    Raises CorruptRecordError with the position in ``data``.
    """
    cdef Py_buffer view
    cdef Summary summary
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        check_payload(&view, position, stop, count, last_offset_delta, base_timestamp, &summary)
    finally:
        PyBuffer_Release(&view)
    return RecordsSummary(
        summary.first_delta,
        summary.last_delta,
        summary.max_timestamp,
        summary.max_timestamp_delta_offset,
        summary.min_timestamp,
        summary.null_key_count,
    )


cdef inline bytes field_object(const uint8_t* data, Py_ssize_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>data, size)


cdef tuple header_objects(RecordView* record):
    """The headers of a record that ``get_record`` has just checked."""
    cdef tuple headers = PyTuple_New(record.header_count)
    cdef const uint8_t* at = record.headers
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t value_size = 0
    cdef int32_t i, key_size = 0
    for i in range(record.header_count):
        at = get_varint(at, record.stop, &key_size)
        key = PyUnicode_DecodeUTF8(<const char*>at, key_size, NULL)
        at = get_field(record, at + key_size, record.stop, &value, &value_size)
        pair = (key, field_object(value, value_size))
        Py_INCREF(pair)
        PyTuple_SET_ITEM(headers, i, pair)
    return headers


cdef int64_t clamp_delta(int64_t offset, int64_t base_offset) noexcept:
    """``offset`` relative to ``base_offset`` (not negative), cut to what an offset delta can compare with."""
    if offset <= base_offset:
        return 0
    return min(offset - base_offset, <int64_t>INT32_MAX + 1)


cdef int check_base(int64_t base_offset, int32_t last_offset_delta, int timestamp_type) except -1:
    # The end offset behind the last record is an offset too.
    if base_offset < 0 or base_offset >= INT64_MAX - last_offset_delta:
        raise CorruptRecordError(f"a base offset of {base_offset}, expected 0 to 2^63 - 2 - {last_offset_delta}")
    if not 0 <= timestamp_type < len(TIMESTAMP_TYPES):
        raise ValueError(f"timestamp type {timestamp_type}, expected an index into TIMESTAMP_TYPES")
    return 0


@cython.final
cdef class RecordCursor:
    """An iterator of the Records of one batch whose offsets are in [first_offset, stop_offset). Not thread-safe.

    The whole payload is checked before the first record is given, whatever the window (``check_records``).

    Arguments: the payload is bytes ``position`` to ``stop`` of ``data`` with ``count`` records; ``timestamp_type``
    is an index into TIMESTAMP_TYPES, and where it is LogAppendTime every record has ``append_time``.
    Raises CorruptRecordError.
    """

    cdef Py_buffer view
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef int32_t remaining
    cdef int32_t previous_delta
    cdef int32_t last_offset_delta
    cdef int64_t first_delta
    cdef int64_t stop_delta
    cdef int64_t base_offset
    cdef int64_t base_timestamp
    cdef int64_t append_time
    cdef int32_t leader_epoch
    cdef int8_t timestamp_type

    def __cinit__(
        self,
        data,
        Py_ssize_t position,
        Py_ssize_t stop,
        int32_t count,
        int64_t base_offset,
        int64_t base_timestamp,
        int32_t last_offset_delta,
        int timestamp_type,
        int64_t append_time,
        int32_t leader_epoch,
        int64_t first_offset=INT64_MIN,
        int64_t stop_offset=INT64_MAX,
    ):
        cdef Summary summary
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        check_base(base_offset, last_offset_delta, timestamp_type)
        check_payload(&self.view, position, stop, count, last_offset_delta, base_timestamp, &summary)
        self.at = <const uint8_t*>self.view.buf + position
        self.end = <const uint8_t*>self.view.buf + stop
        self.remaining = count
        self.previous_delta = -1
        self.last_offset_delta = last_offset_delta
        self.base_offset = base_offset
        self.base_timestamp = base_timestamp
        self.append_time = append_time
        self.leader_epoch = leader_epoch
        self.timestamp_type = timestamp_type
        self.first_delta = clamp_delta(first_offset, base_offset)
        self.stop_delta = clamp_delta(stop_offset, base_offset)

    def __dealloc__(self):
        self.release()

    cdef void release(self) noexcept:
        """Lets the buffer go: an exhausted cursor must not keep a bytearray from being resized."""
        self.remaining = 0
        PyBuffer_Release(&self.view)

    def __iter__(self):
        return self

    def __next__(self):
        cdef RecordView view
        cdef const uint8_t* behind
        cdef Record record
        while self.remaining > 0:
            behind = get_record(&view, self.at, self.end, self.previous_delta, self.last_offset_delta)
            if KSTORE_UNLIKELY(behind == NULL):
                # Only a buffer that was changed after the constructor's check gets here.
                error = corrupt(&view, <const uint8_t*>self.view.buf, -1)
                self.release()
                raise error
            self.remaining -= 1
            self.at = behind
            self.previous_delta = view.offset_delta
            if view.offset_delta >= self.stop_delta:
                break
            if view.offset_delta < self.first_delta:
                continue
            record = Record.__new__(Record)
            record.offset = self.base_offset + view.offset_delta
            record.timestamp_type_index = self.timestamp_type
            if self.timestamp_type == LOG_APPEND_TIME:
                record.timestamp = self.append_time
            else:
                record.timestamp = <int64_t>(<uint64_t>self.base_timestamp + <uint64_t>view.timestamp_delta)
            record.leader_epoch = self.leader_epoch
            record.key = field_object(view.key, view.key_size)
            record.value = field_object(view.value, view.value_size)
            record.headers = () if view.header_count == 0 else header_objects(&view)
            return record
        self.release()
        raise StopIteration


def decode_values(
    data,
    Py_ssize_t position,
    Py_ssize_t stop,
    int32_t count,
    int64_t base_offset,
    int32_t last_offset_delta,
    int64_t first_offset=INT64_MIN,
    int64_t stop_offset=INT64_MAX,
):
    """The values (bytes or None) of the records whose offsets are in [first_offset, stop_offset), as a list.

    The whole payload is checked, whatever the window; CorruptRecordError as in ``check_records``.
    """
    cdef Py_buffer view
    cdef RecordView record
    cdef const uint8_t* at
    cdef const uint8_t* behind
    cdef const uint8_t* start
    cdef int32_t index, previous_delta = -1
    cdef Py_ssize_t taken = 0
    cdef int64_t first_delta, stop_delta
    cdef bytes value
    cdef list values
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        check_base(base_offset, last_offset_delta, 0)
        check_window(&view, position, stop, count, last_offset_delta)
        start = <const uint8_t*>view.buf
        at = start + position
        first_delta = clamp_delta(first_offset, base_offset)
        stop_delta = clamp_delta(stop_offset, base_offset)
        values = PyList_New(count)
        for index in range(count):
            behind = get_record(&record, at, start + stop, previous_delta, last_offset_delta)
            if KSTORE_UNLIKELY(behind == NULL):
                raise corrupt(&record, start, index)
            at = behind
            previous_delta = record.offset_delta
            if first_delta <= previous_delta < stop_delta:
                value = field_object(record.value, record.value_size)
                Py_INCREF(value)
                PyList_SET_ITEM(values, taken, value)
                taken += 1
        check_end(at, start + stop, start, count)
    finally:
        PyBuffer_Release(&view)
    if taken < count:
        del values[taken:]
    return values


def decode_offsets_timestamps(
    data,
    Py_ssize_t position,
    Py_ssize_t stop,
    int32_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    int32_t last_offset_delta,
    int timestamp_type,
    int64_t append_time,
    int64_t first_offset=INT64_MIN,
    int64_t stop_offset=INT64_MAX,
):
    """(offsets, timestamps in ms), two ``array('q')``, of the records with offsets in [first_offset, stop_offset).

    The whole payload is checked, whatever the window; CorruptRecordError as in ``check_records``.
    """
    cdef Py_buffer view
    cdef RecordView record
    cdef const uint8_t* at
    cdef const uint8_t* behind
    cdef const uint8_t* start
    cdef int32_t index, previous_delta = -1
    cdef Py_ssize_t taken = 0
    cdef int64_t offset
    cdef array.array offsets, timestamps
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        check_base(base_offset, last_offset_delta, timestamp_type)
        check_window(&view, position, stop, count, last_offset_delta)
        start = <const uint8_t*>view.buf
        at = start + position
        offsets = array.clone(INT64_TEMPLATE, count, False)
        timestamps = array.clone(INT64_TEMPLATE, count, False)
        for index in range(count):
            behind = get_record(&record, at, start + stop, previous_delta, last_offset_delta)
            if KSTORE_UNLIKELY(behind == NULL):
                raise corrupt(&record, start, index)
            at = behind
            previous_delta = record.offset_delta
            offset = base_offset + previous_delta
            if first_offset <= offset < stop_offset:
                offsets.data.as_longlongs[taken] = offset
                if timestamp_type == LOG_APPEND_TIME:
                    timestamps.data.as_longlongs[taken] = append_time
                else:
                    timestamps.data.as_longlongs[taken] = <int64_t>(
                        <uint64_t>base_timestamp + <uint64_t>record.timestamp_delta
                    )
                taken += 1
        check_end(at, start + stop, start, count)
    finally:
        PyBuffer_Release(&view)
    array.resize(offsets, taken)
    array.resize(timestamps, taken)
    return offsets, timestamps


# --- writing ----------------------------------------------------------------------------------------------------------


@cython.final
cdef class BatchBuffer:
    """A growable buffer that batches are built in, and that is reused. Not thread-safe.

    It has the buffer protocol; while a view of it is alive it refuses to grow (BufferError), because growing may move
    its memory. ``clear`` and ``truncate`` are allowed then: a view shows whatever the memory holds now.

    ``size`` is what is in it, ``capacity`` what it has memory for, both in bytes.
    """

    def __cinit__(self, Py_ssize_t capacity=0):
        self.capacity = max(capacity, <Py_ssize_t>BUFFER_CAPACITY_MIN)
        self.data = <unsigned char*>PyMem_RawMalloc(self.capacity)
        if self.data == NULL:
            raise MemoryError(f"no memory for a buffer of {self.capacity} bytes")

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    cdef int make_room(self, Py_ssize_t size) except -1:
        """Makes the capacity at least ``size`` bytes; the content stays."""
        cdef Py_ssize_t capacity
        cdef unsigned char* data
        if size <= self.capacity:
            return 0
        if self.export_count:
            raise BufferError(f"a buffer of {self.capacity} bytes cannot grow to {size} while a view of it is alive")
        capacity = max(size, self.capacity * 2)
        data = <unsigned char*>PyMem_RawRealloc(self.data, capacity)
        if data == NULL:
            raise MemoryError(f"no memory for a buffer of {capacity} bytes")
        self.data = data
        self.capacity = capacity
        return 0

    cdef int begin_writing(self) except -1:
        """Claims the buffer for one batch that is being written: until then everything else is refused."""
        if self.is_writing:
            raise BufferError("a batch is being written to the buffer: close or abort it first")
        self.is_writing = True
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)
        self.export_count += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.export_count -= 1

    def __len__(self):
        return self.size

    def view(self, Py_ssize_t start=0, stop=None):
        """Bytes ``start`` to ``stop`` (default: the end) as a memoryview, without a copy."""
        return memoryview(self)[start:stop]

    def clear(self):
        """Empties the buffer; its memory stays."""
        self.truncate(0)

    def truncate(self, Py_ssize_t size):
        """Drops what is behind the first ``size`` bytes. ValueError if there are fewer."""
        if self.is_writing:
            raise BufferError("a batch is being written to the buffer: close or abort it first")
        if not 0 <= size <= self.size:
            raise ValueError(f"size {size}, expected 0 to the {self.size} bytes of the buffer")
        self.size = size

    def extend(self, data):
        """Appends a copy of ``data`` (bytes-like)."""
        cdef Py_buffer view
        if self.is_writing:
            raise BufferError("a batch is being written to the buffer: close or abort it first")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.make_room(self.size + view.len)
            memcpy(self.data + self.size, view.buf, view.len)
            self.size += view.len
        finally:
            PyBuffer_Release(&view)

    def reserve(self, Py_ssize_t size):
        """Makes sure that ``size`` more bytes fit without growing."""
        if size > 0:
            self.make_room(self.size + size)


cdef inline const char* raw_field(bytes field, Py_ssize_t* size) noexcept:
    if field is None:
        size[0] = -1
        return NULL
    size[0] = PyBytes_GET_SIZE(field)
    return PyBytes_AS_STRING(field)


cdef inline uint8_t* put_field(uint8_t* to, const char* data, Py_ssize_t size) noexcept:
    """A nullable field, whose size was checked against the batch's before: it fits an int32."""
    to = put_unsigned(to, zigzag64(size))
    if size > 0:
        memcpy(to, data, size)
        to += size
    return to


cdef inline Py_ssize_t size_of_field(Py_ssize_t size) noexcept:
    return size_of_unsigned(zigzag64(size)) + (size if size > 0 else 0)


cdef Py_ssize_t size_of_headers(tuple headers) except -1:
    """The bytes that ``headers`` take without their count."""
    cdef Py_ssize_t total = 0, size = 0
    for pair in headers:
        PyUnicode_AsUTF8AndSize((<tuple>pair)[0], &size)
        total += size_of_field(size)
        raw_field(<bytes>(<tuple>pair)[1], &size)
        total += size_of_field(size)
    return total


cdef uint8_t* put_headers(uint8_t* to, tuple headers) except NULL:
    cdef const char* data
    cdef Py_ssize_t size = 0
    for pair in headers:
        # The object keeps its UTF-8 since its size was taken: this allocates nothing and cannot fail.
        data = PyUnicode_AsUTF8AndSize((<tuple>pair)[0], &size)
        to = put_field(to, data, size)
        data = raw_field(<bytes>(<tuple>pair)[1], &size)
        to = put_field(to, data, size)
    return to


@cython.final
cdef class OpenBatch:
    """A batch that takes records one by one, at the end of a BatchBuffer that it holds until ``close`` or ``abort``.

    ``base_timestamp`` (ms): what timestamps are stored relative to, by default the first record's. ``position`` is where it begins in the buffer, ``size`` what it has so far (header included, bytes), at most
    ``size_max``. Nothing of it is in ``buffer.size`` before ``close``. Not thread-safe.
    """

    def __cinit__(self, BatchBuffer buffer not None, int64_t size_max, base_timestamp=None):
        if size_max < HEADER_SIZE:
            raise ValueError(f"size_max {size_max}, expected at least the {HEADER_SIZE} bytes of a header")
        self.has_base_timestamp = base_timestamp is not None
        self.base_timestamp = -1 if base_timestamp is None else base_timestamp
        buffer.begin_writing()
        self.buffer = buffer
        self.is_open = True
        self.position = buffer.size
        self.size = HEADER_SIZE
        self.size_max = min(size_max, <int64_t>INT32_MAX)
        self.last_offset_delta = -1
        self.max_timestamp = -1
        self.max_timestamp_delta_offset = -1

    def __dealloc__(self):
        if self.is_open:
            self.buffer.is_writing = False

    cdef int append_checked(
        self, bytes value, bytes key, tuple headers, int64_t timestamp, int64_t offset_delta
    ) except -1:
        cdef Py_ssize_t key_size = 0, value_size = 0, body_size, size
        cdef const char* key_data = raw_field(key, &key_size)
        cdef const char* value_data = raw_field(value, &value_size)
        cdef Py_ssize_t header_count = len(headers)
        cdef uint64_t timestamp_delta = 0
        cdef uint8_t* to
        if self.record_count or self.has_base_timestamp:
            timestamp_delta = zigzag64(<int64_t>(<uint64_t>timestamp - <uint64_t>self.base_timestamp))
        body_size = (
            1
            + size_of_unsigned(timestamp_delta)
            + size_of_unsigned(zigzag64(offset_delta))
            + size_of_field(key_size)
            + size_of_field(value_size)
            + size_of_unsigned(zigzag64(header_count))
            + (size_of_headers(headers) if header_count else 0)
        )
        size = size_of_unsigned(zigzag64(body_size)) + body_size
        if size > self.size_max - self.size:
            self.refused_size = size
            return 0
        self.buffer.make_room(self.position + self.size + size)
        to = self.buffer.data + self.position + self.size
        to = put_unsigned(to, zigzag64(body_size))
        to[0] = 0
        to = put_unsigned(to + 1, timestamp_delta)
        to = put_unsigned(to, zigzag64(offset_delta))
        to = put_field(to, key_data, key_size)
        to = put_field(to, value_data, value_size)
        to = put_unsigned(to, zigzag64(header_count))
        if header_count:
            put_headers(to, headers)
        self.size += size
        if self.record_count == 0 and not self.has_base_timestamp:
            self.base_timestamp = timestamp
        if self.record_count == 0 or timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_delta_offset = <int32_t>offset_delta
        self.last_offset_delta = offset_delta
        self.record_count += 1
        return 1

    def append(self, value, key=None, headers=(), timestamp=-1, offset_delta=None):
        """Appends one record; False if it does not fit into ``size_max`` any more, and then nothing has changed.

        Arguments as in Record; ``offset_delta`` must be above the last record's (default: one above).
        """
        # First everything that may run the caller's code, then the buffer.
        cdef bytes checked_value = as_bytes(value, "value")
        cdef bytes checked_key = as_bytes(key, "key")
        cdef tuple checked = checked_headers(headers)
        cdef int64_t timestamp_ms = timestamp
        cdef int64_t delta = self.last_offset_delta + 1 if offset_delta is None else offset_delta
        if not self.is_open:
            raise ValueError("the batch is closed")
        if not self.last_offset_delta < delta <= INT32_MAX:
            raise ValueError(f"offset delta {delta}, expected above {self.last_offset_delta} and at most {INT32_MAX}")
        check_timestamp(timestamp_ms, self.record_count)
        return self.append_checked(checked_value, checked_key, checked, timestamp_ms, delta) == 1

    def close(self, int timestamp_type=0, int64_t append_time=-1):
        """Writes the header and makes the batch part of the buffer; returns its EncodedBatch.

        The header has base offset 0, no leader epoch, no producer and no CRC: ``patch_header``, ``patch_producer``,
        ``patch_crc``. ``timestamp_type`` is an index into TIMESTAMP_TYPES; LogAppendTime stores ``append_time`` (ms).
        """
        if not self.is_open:
            raise ValueError("the batch is closed")
        self.buffer.make_room(self.position + self.size)
        self.finish(timestamp_type, append_time)
        return encoded(self, self.record_count)

    def abort(self):
        """Gives the buffer back as it was."""
        if self.is_open:
            self.is_open = False
            self.buffer.is_writing = False

    cdef void finish(self, int timestamp_type, int64_t append_time):
        cdef unsigned char* to = self.buffer.data + self.position
        if timestamp_type == LOG_APPEND_TIME:
            self.max_timestamp = append_time
            self.max_timestamp_delta_offset = 0
        kstore_put_be64(to, 0)
        kstore_put_be32(to + 8, <uint32_t>(self.size - LOG_OVERHEAD))
        kstore_put_be32(to + 12, <uint32_t>-1)
        to[16] = MAGIC
        kstore_put_be32(to + 17, 0)
        kstore_put_be16(to + 21, ATTRIBUTE_LOG_APPEND_TIME if timestamp_type == LOG_APPEND_TIME else 0)
        kstore_put_be32(to + 23, <uint32_t>self.last_offset_delta)
        kstore_put_be64(to + 27, self.base_timestamp)
        kstore_put_be64(to + 35, self.max_timestamp)
        kstore_put_be64(to + 43, -1)
        kstore_put_be16(to + 51, -1)
        kstore_put_be32(to + 53, <uint32_t>-1)
        kstore_put_be32(to + 57, <uint32_t>self.record_count)
        self.is_open = False
        self.buffer.size = self.position + self.size
        self.buffer.is_writing = False


cdef object encoded(OpenBatch batch, Py_ssize_t stop):
    return EncodedBatch(
        stop,
        batch.position,
        batch.size,
        batch.record_count,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.max_timestamp_delta_offset,
    )


cdef int check_timestamp(int64_t timestamp, Py_ssize_t index) except -1:
    if timestamp < -1:
        message = f"a timestamp of {timestamp} ms, expected 0 or more, or -1 for none"
        raise InvalidTimestampError(f"record {index}: {message}", [RecordError(index, message)])
    return 0


cdef object item(object sequence, Py_ssize_t index, str name):
    """``sequence[index]``, a new reference; the caller's code may have shrunk the sequence since it was checked."""
    if index >= PySequence_Fast_GET_SIZE(sequence):
        raise RuntimeError(f"{name} lost items while they were encoded")
    return <object>PySequence_Fast_ITEMS(sequence)[index]


cdef int append_any(
    OpenBatch batch, object values, object keys, object timestamps, object headers, Py_ssize_t index, int64_t now_ms
) except -1:
    """Appends record ``index`` of parallel sequences, whatever bytes-like, integer and iterable types it has."""
    cdef bytes value, key = None
    cdef tuple pairs = ()
    cdef int64_t timestamp = now_ms
    try:
        value = as_bytes(item(values, index, "values"), "value")
        if keys is not None:
            key = as_bytes(item(keys, index, "keys"), "key")
        if headers is not None:
            pairs = checked_headers(item(headers, index, "headers"))
            size_of_headers(pairs)
    except TypeError as error:
        raise TypeError(f"record {index}: {error}") from None
    except UnicodeEncodeError as error:
        message = f"a header key that UTF-8 cannot encode ({error.reason})"
        raise InvalidRecordError(f"record {index}: {message}", [RecordError(index, message)]) from None
    if timestamps is not None:
        given = item(timestamps, index, "timestamps")
        if given is not None:
            try:
                timestamp = given
            except (TypeError, OverflowError) as error:
                raise type(error)(f"record {index}: a timestamp must be an int of 64 bits or None ({error})") from None
    check_timestamp(timestamp, index)
    return batch.append_checked(value, key, pairs, timestamp, batch.last_offset_delta + 1)


cdef Py_ssize_t encode_values(OpenBatch batch, object values, Py_ssize_t index, int64_t now_ms) except -1:
    """Appends values[index:] while they fit; the index of the first that does not."""
    cdef BatchBuffer buffer = batch.buffer
    cdef Py_ssize_t size, body_size, room, count
    cdef int64_t offset_delta
    cdef PyObject** items
    cdef PyObject* value
    cdef uint8_t* to
    while True:
        count = PySequence_Fast_GET_SIZE(values)
        items = PySequence_Fast_ITEMS(values)
        offset_delta = batch.last_offset_delta
        room = batch.size_max - batch.size
        to = buffer.data + batch.position + batch.size
        # No Python code runs in this loop: the items stay where they are, and alive.
        while index < count:
            if index + PREFETCH_AHEAD < count:
                KSTORE_PREFETCH(items[index + PREFETCH_AHEAD])
            value = items[index]
            if not PyBytes_CheckExact(value):
                break
            size = PyBytes_SIZE(value)
            offset_delta += 1
            body_size = 4 + size_of_unsigned(zigzag64(offset_delta)) + size_of_unsigned(zigzag64(size)) + size
            size = size_of_unsigned(zigzag64(body_size)) + body_size
            if size > room or to + size > buffer.data + buffer.capacity:
                break
            to = put_unsigned(to, zigzag64(body_size))
            to[0] = 0
            to[1] = 0
            to = put_unsigned(to + 2, zigzag64(offset_delta))
            to[0] = 1
            to = put_field(to + 1, PyBytes_DATA(value), PyBytes_SIZE(value))
            to[0] = 0
            to += 1
            room -= size
            index += 1
            batch.record_count += 1
            batch.last_offset_delta = offset_delta
        if batch.record_count:
            batch.size = to - buffer.data - batch.position
            batch.base_timestamp = batch.max_timestamp = now_ms
            batch.max_timestamp_delta_offset = 0
        if index >= count:
            return index
        # A null, another type, a full batch or a full buffer: the slow way says which, and grows the buffer.
        if append_any(batch, values, None, None, None, index, now_ms) == 0:
            return index
        index += 1


cdef Py_ssize_t encode_fields(
    OpenBatch batch, object values, object keys, object timestamps, object headers, Py_ssize_t index, int64_t now_ms
) except -1:
    """Appends the records from ``index`` while they fit; the index of the first that does not."""
    while index < PySequence_Fast_GET_SIZE(values):
        if append_any(batch, values, keys, timestamps, headers, index, now_ms) == 0:
            break
        index += 1
    return index


cdef int check_parallel(object sequence, str name, Py_ssize_t count) except -1:
    if not isinstance(sequence, (list, tuple)):
        raise TypeError(f"{name} must be a list or a tuple, not {type(sequence).__name__}")
    if len(sequence) != count:
        raise ValueError(f"{len(sequence)} {name}, expected one for each of the {count} values")
    return 0


def encode_batch(
    BatchBuffer buffer not None,
    values,
    keys,
    timestamps,
    headers,
    Py_ssize_t start,
    int64_t now_ms,
    int64_t size_max,
    int timestamp_type=0,
):
    """Appends one batch to ``buffer`` with the records from ``start``, as many as fit into ``size_max`` bytes.

    Arguments are parallel lists or tuples: ``values`` and ``keys`` of bytes-like or None, ``timestamps`` of ms or None
    (then ``now_ms``), ``headers`` of iterables of (str, bytes or None) or None; all but ``values`` may be None as a
    whole. ``timestamp_type`` is an index into TIMESTAMP_TYPES; for LogAppendTime the batch gets ``now_ms``.

    Returns an EncodedBatch: ``stop`` is the index of the first record not taken. Where not even the first fits,
    ``stop == start``, nothing was written, and ``size`` is what the batch would have needed. Its header is as
    ``OpenBatch.close`` leaves it. Raises TypeError, ValueError, InvalidRecordError; then nothing was written either.
    """
    check_parallel(values, "values", len(values))
    cdef Py_ssize_t count = len(values), stop
    if not 0 <= start <= count:
        raise ValueError(f"start {start}, expected 0 to the {count} values")
    if keys is not None:
        check_parallel(keys, "keys", count)
    if timestamps is not None:
        check_parallel(timestamps, "timestamps", count)
    if headers is not None:
        check_parallel(headers, "headers", count)
    check_timestamp(now_ms, start)
    cdef OpenBatch batch = OpenBatch(buffer, size_max)
    try:
        buffer.make_room(batch.position + HEADER_SIZE)
        if keys is None and timestamps is None and headers is None:
            stop = encode_values(batch, values, start, now_ms)
        else:
            stop = encode_fields(batch, values, keys, timestamps, headers, start, now_ms)
        if stop == start:
            batch.size += batch.refused_size
        else:
            batch.finish(timestamp_type, now_ms)
    finally:
        batch.abort()
    return encoded(batch, stop)


cdef unsigned char* header_at(BatchBuffer buffer, Py_ssize_t position) except NULL:
    if not 0 <= position <= buffer.size - HEADER_SIZE:
        raise ValueError(f"position {position}, expected a batch in the {buffer.size} bytes of the buffer")
    return buffer.data + position


def patch_header(BatchBuffer buffer not None, Py_ssize_t position, int64_t base_offset, int32_t leader_epoch):
    """Sets the two fields outside the CRC in the header of the batch at ``position``."""
    cdef unsigned char* header = header_at(buffer, position)
    kstore_put_be64(header, base_offset)
    kstore_put_be32(header + 12, <uint32_t>leader_epoch)


def patch_producer(
    BatchBuffer buffer not None, Py_ssize_t position, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence
):
    """Sets the producer's fields in the header of the batch at ``position``; the CRC comes after."""
    cdef unsigned char* header = header_at(buffer, position)
    kstore_put_be64(header + 43, producer_id)
    kstore_put_be16(header + 51, producer_epoch)
    kstore_put_be32(header + 53, <uint32_t>base_sequence)


def patch_crc(BatchBuffer buffer not None, Py_ssize_t position, uint32_t crc):
    """Sets the CRC in the header of the batch at ``position``."""
    kstore_put_be32(header_at(buffer, position) + 17, crc)
