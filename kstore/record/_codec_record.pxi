"""A record as a Python object. Part of _codec.pyx."""


cdef bytes as_bytes(object value, str field):
    """``value`` (bytes-like or None) as exact bytes or None: only these may go into a Record (see there)."""
    if value is None or type(value) is bytes:
        return value
    if not PyObject_CheckBuffer(value):
        raise TypeError(f"{field} must be bytes or None, not {type(value).__name__}")
    return bytes(memoryview(value))


cdef tuple checked_header(object pair):
    """``pair``, a (str, bytes-like or None) tuple or list, as exactly a tuple of str and bytes or None."""
    cdef Py_ssize_t size
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"a header must be a (str, bytes or None) tuple, not {type(pair).__name__}")
    key, value = pair
    if not isinstance(key, str):
        raise TypeError(f"a header's key must be str, not {type(key).__name__}")
    if type(pair) is not tuple or type(key) is not str or not (value is None or type(value) is bytes):
        key = PyUnicode_FromObject(key)
        pair = (key, as_bytes(value, "a header's value"))
    if PyUnicode_AsUTF8AndSize(<PyObject*>key, &size) == NULL:
        PyErr_Clear()
        raise InvalidRecordError("a header's key has characters that UTF-8 cannot encode")
    return pair


cdef tuple checked_headers(object headers):
    """``headers``, an iterable of (str, bytes-like or None) pairs or None, as a tuple of checked headers."""
    if headers is None:
        return ()
    if isinstance(headers, (str, bytes, dict)):
        raise TypeError(f"headers must be an iterable of (str, bytes or None) tuples, not {type(headers).__name__}")
    return tuple([checked_header(pair) for pair in headers])


@cython.no_gc
@cython.freelist(64)
cdef class Record:
    """One record of a log, immutable.

    Attributes: ``offset``, ``timestamp`` (ms since the epoch, -1 none), ``timestamp_type`` ("CreateTime",
    "LogAppendTime", "NoTimestampType"), ``key`` and ``value`` (bytes or None), ``headers`` (a tuple of
    (str, bytes or None) tuples; a key may repeat), ``leader_epoch`` (-1 none).

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
        if self.headers is not None:
            raise TypeError("a Record is immutable")
        if timestamp_type not in TIMESTAMP_TYPES:
            raise ValueError(f"timestamp_type {timestamp_type!r}, expected one of {', '.join(TIMESTAMP_TYPES)}")
        # Not an implicit conversion, which would truncate a float.
        self.offset = PyNumber_Index(offset)
        self.timestamp = PyNumber_Index(timestamp)
        self.timestamp_type_index = TIMESTAMP_TYPES.index(timestamp_type)
        self.key = as_bytes(key, "key")
        self.value = as_bytes(value, "value")
        self.leader_epoch = PyNumber_Index(leader_epoch)
        self.headers = checked_headers(headers)

    @property
    def timestamp_type(self):
        return TIMESTAMP_TYPES[self.timestamp_type_index]

    cdef tuple fields(self):
        return (self.offset, self.timestamp, self.timestamp_type, self.key, self.value, self.headers, self.leader_epoch)

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
