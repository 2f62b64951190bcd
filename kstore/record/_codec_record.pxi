"""A record as a Python object. Part of _codec.pyx."""


cdef PyObject* refuse_new(PyTypeObject* made, PyObject* arguments, PyObject* named) except NULL:
    raise TypeError(f"only compiled code makes a {(<type><PyObject*>made).__name__}")


cdef int forbid_new(type made) except -1:
    (<PyTypeObject*>made).tp_new = refuse_new
    (<PyTypeObject*>made).tp_vectorcall = NULL
    PyType_Modified(<PyTypeObject*>made)
    return 0


cdef tuple checked_origin(object given):
    if given is None:
        return None
    topic, partition = given
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    # The exact types, so that no record can be part of a cycle.
    return PyUnicode_FromObject(topic), int(PyNumber_Index(partition))


cdef bytes as_bytes(object value, str field):
    """``value`` (bytes-like or None) as exact bytes or None: only these may go into a Record (see there)."""
    if value is None or type(value) is bytes:
        return value
    if not PyObject_CheckBuffer(value):
        raise TypeError(f"{field} must be bytes or None, not {type(value).__name__}")
    return bytes(memoryview(value))


def java_string(bytes data not None):
    """The text of Java's ``new String(data, UTF_8)``: U+FFFD in place of what is not UTF-8."""
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(<PyObject*>data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(<PyObject*>data)
    cdef Py_ssize_t mended_size
    cdef bytes mended
    cdef bint is_text = True
    try:
        return PyUnicode_DecodeUTF8(<const char*>start, size, NULL)
    except UnicodeDecodeError:
        mended_size = text_size(start, size, &is_text)
    mended = PyBytes_FromStringAndSize(NULL, mended_size)
    put_text(<uint8_t*>PyBytes_AS_STRING(<PyObject*>mended), start, size)
    return PyUnicode_DecodeUTF8(PyBytes_AS_STRING(<PyObject*>mended), mended_size, NULL)


cdef tuple text_headers(tuple stored):
    """``stored`` itself if the keys are all text, as almost always."""
    cdef Py_ssize_t at
    if stored is None:
        return None
    for at in range(len(stored)):
        if not PyUnicode_CheckExact(PySequence_Fast_ITEMS(PySequence_Fast_ITEMS(<PyObject*>stored)[at])[0]):
            return text_copy(stored)
    return stored


cdef tuple text_copy(tuple stored):
    cdef list made = []
    for key, value in stored:
        made.append((java_string(key) if type(key) is bytes else key, value))
    return tuple(made)


cdef tuple checked_header(object pair):
    """``pair``, a (str or bytes-like, bytes-like or None) tuple or list, as a stored header."""
    cdef Py_ssize_t size
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"a header must be a (str or bytes, bytes or None) tuple, not {type(pair).__name__}")
    key, value = pair
    if not isinstance(key, str):
        if key is None or not PyObject_CheckBuffer(key):
            raise TypeError(f"a header's key must be str or bytes, not {type(key).__name__}")
        raw = as_bytes(key, "a header's key")
        return header_key(PyBytes_AS_STRING(<PyObject*>raw), len(raw)), as_bytes(value, "a header's value")
    if type(pair) is not tuple or type(key) is not str or not (value is None or type(value) is bytes):
        key = PyUnicode_FromObject(key)
        pair = (key, as_bytes(value, "a header's value"))
    try:
        utf8_of(<PyObject*>key, &size)
    except UnicodeEncodeError:
        raise InvalidRecordError("a header's key has characters that UTF-8 cannot encode") from None
    return pair


cdef tuple checked_headers(object headers):
    """``headers``, a mapping or an iterable of (str or bytes-like, bytes-like or None) pairs, or None, as stored headers."""
    cdef list checked = []
    if headers is None:
        return ()
    if type(headers) is not tuple and type(headers) is not list:
        if isinstance(headers, (str, bytes)) or not hasattr(headers, "__iter__"):
            raise TypeError(
                "headers must be a mapping or an iterable of (str or bytes, bytes or None) tuples, "
                f"not {type(headers).__name__}"
            )
        if isinstance(headers, _Mapping):
            headers = headers.items()
    for pair in headers:
        checked.append(checked_header(pair))
    return tuple(checked)


def as_headers(given):
    """Headers as callers may give them, as a tuple of (str, bytes or None) pairs; a key that is not UTF-8 is bytes.

    Raises: TypeError, InvalidRecordError.
    """
    return checked_headers(given)


@cython.no_gc
@cython.freelist(64)
cdef class Record:
    """One record of a log, immutable.

    Attributes: ``offset``, ``timestamp`` (ms since the epoch, -1 none), ``timestamp_type`` ("CreateTime",
    "LogAppendTime", "NoTimestampType"), ``key`` and ``value`` (bytes or None), ``headers`` (a tuple of
    (str, bytes or None) tuples; a key may repeat), ``leader_epoch`` (-1 none).

    In a header's key, U+FFFD stands for what is not UTF-8, as in Java; ``header_bytes`` has the keys as they are. Records
    with different keys are not equal, even if ``headers`` shows them alike.

    It has no garbage-collector header, which makes reading twice as fast. That is safe because its fields have exactly
    these types, so it cannot be part of a cycle.
    """

    def __init__(
        self,
        offset,
        timestamp,
        str timestamp_type="CreateTime",
        key=None,
        value=None,
        headers=(),
        leader_epoch=-1,
    ):
        self.fill(offset, timestamp, timestamp_type, leader_epoch)
        self.key = as_bytes(key, "key")
        self.value = as_bytes(value, "value")
        self.stored_headers = checked_headers(headers)

    cdef int fill(self, object offset, object timestamp, str timestamp_type, object leader_epoch) except -1:
        if self.stored_headers is not None:
            raise TypeError(f"a {type(self).__name__} is immutable")
        if timestamp_type not in TIMESTAMP_TYPES:
            raise ValueError(f"timestamp_type {timestamp_type!r}, expected one of {', '.join(TIMESTAMP_TYPES)}")
        # Not an implicit conversion, which would truncate a float.
        self.offset = PyNumber_Index(offset)
        self.timestamp = PyNumber_Index(timestamp)
        self.timestamp_type_index = TIMESTAMP_TYPES.index(timestamp_type)
        self.leader_epoch = PyNumber_Index(leader_epoch)
        return 0

    @property
    def headers(self):
        return text_headers(self.stored_headers)

    @property
    def header_bytes(self):
        """The headers with keys as bytes: (bytes, bytes or None) tuples, for any copy of the record."""
        cdef list made = []
        for key, value in self.stored_headers:
            made.append((key.encode() if type(key) is str else key, value))
        return tuple(made)

    @property
    def timestamp_type(self):
        return TIMESTAMP_TYPES[self.timestamp_type_index]

    cdef tuple fields(self):
        return (
            self.offset, self.timestamp, self.timestamp_type, self.key, self.value, self.stored_headers,
            self.leader_epoch,
        )

    def __eq__(self, other):
        if type(other) is not type(self):
            return NotImplemented
        return self.fields() == (<Record>other).fields()

    def __hash__(self):
        return hash(self.fields())

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, timestamp_type={self.timestamp_type!r}, "
            f"key={self.key!r}, value={self.value!r}, headers={self.stored_headers!r}, leader_epoch={self.leader_epoch})"
        )

    def __reduce__(self):
        return type(self), self.fields()


@cython.no_gc
cdef class ConsumerRecord(Record):
    """A record from a consumer: a ``Record`` that also has a ``topic`` and a ``partition``.

    With deserializers, ``key`` and ``value`` are what they made.
    """

    # No field of its own, since it shares the freelist of Record.

    def __init__(
        self,
        topic,
        partition,
        offset,
        timestamp,
        str timestamp_type="CreateTime",
        key=None,
        value=None,
        headers=(),
        leader_epoch=-1,
    ):
        self.fill(offset, timestamp, timestamp_type, leader_epoch)
        self.origin = checked_origin((topic, partition))
        self.key = as_bytes(key, "key")
        self.value = as_bytes(value, "value")
        self.stored_headers = checked_headers(headers)

    @property
    def topic(self):
        return None if self.origin is None else self.origin[0]

    @property
    def partition(self):
        return None if self.origin is None else self.origin[1]

    def deserialized(self, key, value):
        """The same record with ``key`` and ``value``, which may be anything, in place of its own."""
        cdef DeserializedRecord made = DeserializedRecord.__new__(DeserializedRecord)
        made.origin = self.origin
        made.offset = self.offset
        made.timestamp = self.timestamp
        made.timestamp_type_index = self.timestamp_type_index
        made.stored_headers = self.stored_headers
        made.leader_epoch = self.leader_epoch
        made.made_key = key
        made.made_value = value
        return made

    cdef tuple fields(self):
        return (self.topic, self.partition, *Record.fields(self))

    def __repr__(self):
        # A subclass has another key and value.
        topic, partition, offset, timestamp, timestamp_type, key, value, headers, leader_epoch = self.fields()
        return (
            f"ConsumerRecord(topic={topic!r}, partition={partition}, offset={offset}, timestamp={timestamp}, "
            f"timestamp_type={timestamp_type!r}, key={key!r}, value={value!r}, headers={headers!r}, "
            f"leader_epoch={leader_epoch})"
        )


cdef class DeserializedRecord(ConsumerRecord):
    """A ConsumerRecord whose key and value are any objects. It may be part of a cycle, and so has a collector header."""

    def __init__(self, *arguments, **named):
        raise TypeError("use ConsumerRecord.deserialized")

    @property
    def key(self):
        return self.made_key

    @property
    def value(self):
        return self.made_value

    cdef tuple fields(self):
        return (
            self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type, self.made_key,
            self.made_value, self.stored_headers, self.leader_epoch,
        )

    def __reduce__(self):
        plain = (self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type)
        return _deserialized, plain + (self.made_key, self.made_value, self.stored_headers, self.leader_epoch)


def _deserialized(topic, partition, offset, timestamp, timestamp_type, key, value, headers, leader_epoch):
    """Unpickles a DeserializedRecord."""
    record = ConsumerRecord(topic, partition, offset, timestamp, timestamp_type, None, None, headers, leader_epoch)
    return record.deserialized(key, value)


# Python code cannot subclass them: such records could be part of a cycle, without a collector header.
(<PyTypeObject*>Record).tp_flags &= ~Py_TPFLAGS_BASETYPE
(<PyTypeObject*>ConsumerRecord).tp_flags &= ~Py_TPFLAGS_BASETYPE
(<PyTypeObject*>DeserializedRecord).tp_flags &= ~Py_TPFLAGS_BASETYPE
