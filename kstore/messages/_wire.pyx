# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""Reads Kafka's messages from bytes, and writes them. No I/O here.

fixed       string: int16 length, UTF-8      bytes, array: int32 length or count      -1: null
flexible    lengths and counts are unsigned varints of one more than their value, 0: null
            a structure ends with its tagged fields: count, then tag, size, bytes of each, by increasing tags

``schema`` says which fields a message has. A ``StructPlan`` is what that means in one version. Every request and answer
of a door passes here, so this is compiled.

The bytes are a stranger's. Only ``MessageReader`` has a pointer to them, and checks each position before it reads there.
How deep structures are nested is the schema's choice, never the bytes'.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_CheckExact, PyDict_GetItemWithError
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from collections.abc import Mapping

from kstore.messages.primitives import INT32, NUMBERS, STRING_BYTES_MAX, UUID_SIZE, MessageError, TooManyElementsError, Uuid

__all__ = ["MessageReader", "MessageWriter", "StructPlan"]

cdef extern from "Python.h":
    double PyFloat_Unpack8(const char* data, int is_little_endian) except? -1
    int PyFloat_Pack8(double value, char* data, int is_little_endian) except -1

cdef enum:
    # The size of a length, or of the count of an array, in a version that is not flexible.
    OF_STRING = 2
    OF_ARRAY = 4
    UVARINT_SIZE_MAX = 10

# Types of fields; those from STRING on may be null where the schema says so.
cdef enum:
    INTEGER, FLOAT, BOOL, UUID, STRUCT, STRING, BYTES, RECORDS

cdef dict KINDS = {
    "float64": FLOAT, "bool": BOOL, "uuid": UUID, "struct": STRUCT, "string": STRING, "bytes": BYTES, "records": RECORDS
}
cdef int64_t NO_LIMIT = INT64_MAX


@cython.final
cdef class MessageReader:
    """A position in untrusted bytes: whatever does not fit is a MessageError.

    ``text_errors`` decides about a string that is not UTF-8: "strict" raises, "replace" shows it as Java does.
    ``elements_max`` limits the elements of all arrays, and the tagged fields, together: each costs memory and time.

    The bytes cannot move or go away while the reader lives: it holds a buffer of ``data``.
    """

    cdef object _data
    cdef Py_buffer _view
    cdef const uint8_t* _bytes
    # 0 <= _position <= _stop <= the size of the bytes; _stop is the end of the tagged field that is being read.
    cdef Py_ssize_t _position, _stop
    cdef int64_t _elements_left
    cdef bint _replaces

    def __cinit__(self, data, *, str text_errors not None="strict", elements_max=None):
        self._elements_left = NO_LIMIT if elements_max is None else elements_max
        self._replaces = text_errors == "replace"
        PyObject_GetBuffer(data, &self._view, PyBUF_SIMPLE)
        self._data = data
        self._bytes = <const uint8_t*>self._view.buf
        self._stop = self._view.len

    def __dealloc__(self):
        PyBuffer_Release(&self._view)

    @property
    def remaining(self):
        """The number of remaining bytes."""
        return self._stop - self._position

    @property
    def elements_left(self):
        """How many elements the rest may have; None without a limit."""
        return None if self._elements_left == NO_LIMIT else self._elements_left

    def int16(self):
        return self.integer(2, True)

    def skip_tagged(self):
        """Passes the tagged fields of a structure, whatever they are."""
        cdef int64_t count = self.uvarint()
        self.count_elements(count)
        for _ in range(count):
            self.uvarint()
            self.advance(self.uvarint())

    cdef Py_ssize_t advance(self, int64_t size) except -1:
        """Passes the next ``size`` bytes; returns where they start."""
        cdef Py_ssize_t start = self._position
        if not 0 <= size <= self._stop - start:
            raise MessageError(f"a length of {size}, expected at most the {self._stop - start} bytes that remain")
        self._position = start + <Py_ssize_t>size
        return start

    cpdef object take(self, int64_t size):
        """The next ``size`` bytes, as a slice of what the reader was given."""
        cdef Py_ssize_t start = self.advance(size)
        return self._data[start : self._position]

    cdef bytes copy(self, int64_t size):
        cdef Py_ssize_t start = self.advance(size)
        return PyBytes_FromStringAndSize(<const char*>self._bytes + start, self._position - start)

    cdef int64_t integer(self, int size, bint is_signed) except? -1:
        """The next integer of at most 8 bytes; unsigned ones have less than 8."""
        cdef Py_ssize_t start = self.advance(size)
        cdef int unused_bits = 64 - 8 * size
        cdef uint64_t value = 0
        cdef Py_ssize_t at
        for at in range(start, self._position):
            value = value << 8 | self._bytes[at]
        return <int64_t>(value << unused_bits) >> unused_bits if is_signed else <int64_t>value

    cdef double float64(self) except? -1:
        cdef Py_ssize_t start = self.advance(8)
        return PyFloat_Unpack8(<const char*>self._bytes + start, False)

    cpdef int64_t uvarint(self) except -1:
        """The next unsigned varint of 32 bits."""
        cdef Py_ssize_t at = self._position
        cdef uint64_t value = 0
        cdef uint8_t byte
        cdef int shift
        for shift in range(0, 35, 7):
            if at >= self._stop:
                raise MessageError("a length of 1, expected at most the 0 bytes that remain")
            byte = self._bytes[at]
            at += 1
            value |= <uint64_t>(byte & 0x7F) << shift
            if byte < 0x80:
                self._position = at
                return <int64_t>(value & 0xFFFFFFFF)
        raise MessageError("a varint of more than 5 bytes")

    cdef int64_t length(self, bint is_flexible, int size) except -2:
        """The next length or count, -1 for null."""
        cdef int64_t value = self.uvarint() - 1 if is_flexible else self.integer(size, True)
        return value if value >= 0 else -1

    cpdef object string(self, bint is_flexible):
        cdef int64_t size = self.length(is_flexible, OF_STRING)
        cdef Py_ssize_t start
        if size < 0:
            return None
        start = self.advance(size)
        try:
            return PyUnicode_DecodeUTF8(
                <char*>self._bytes + start, self._position - start, "replace" if self._replaces else "strict"
            )
        except UnicodeDecodeError as error:
            raise MessageError("a string that is not UTF-8") from error

    cdef int count_elements(self, int64_t count) except -1:
        """Raises: TooManyElementsError if that is more than are left."""
        if count > self._elements_left:
            raise TooManyElementsError(f"{count} elements, expected at most {self._elements_left} more in this message")
        if count > 0 and self._elements_left != NO_LIMIT:
            self._elements_left -= count
        return 0


@cython.final
cdef class MessageWriter:
    """Appends primitives to ``data``."""

    cdef readonly bytearray data

    def __cinit__(self):
        self.data = bytearray()

    def number(self, form, value):
        """Raises: struct.error for a value that ``form`` does not hold."""
        self.data += form.pack(value)

    def length(self, int64_t length, *, bint is_flexible, form):
        """A length or count, -1 for null."""
        if is_flexible:
            self.uvarint(length + 1)
        else:
            self.data += form.pack(length)

    cdef char* room(self, Py_ssize_t size) except NULL:
        """``size`` bytes after the others, which the caller fills before anything else happens."""
        cdef Py_ssize_t end = PyByteArray_GET_SIZE(self.data)
        PyByteArray_Resize(self.data, end + size)
        return PyByteArray_AS_STRING(self.data) + end

    cdef int put_integer(self, int64_t value, int size) except -1:
        cdef char* target = self.room(size)
        cdef int at
        for at in range(size):
            target[at] = <char>(<uint64_t>value >> 8 * (size - 1 - at) & 0xFF)
        return 0

    cpdef object uvarint(self, uint64_t value):
        cdef uint8_t[UVARINT_SIZE_MAX] found
        cdef int size = 0
        while value >= 0x80:
            found[size] = <uint8_t>(value & 0x7F | 0x80)
            value >>= 7
            size += 1
        found[size] = <uint8_t>value
        memcpy(self.room(size + 1), found, size + 1)

    cdef int put_length(self, int64_t length, bint is_flexible, int size) except -1:
        if is_flexible:
            self.uvarint(<uint64_t>(length + 1))
        elif length > INT32_MAX:
            # Raises: struct.error.
            INT32.pack(length)
        else:
            self.put_integer(length, size)
        return 0

    cpdef object string(self, text, bint is_flexible):
        """Text, or None for null. Raises: ValueError for text that no message can hold."""
        cdef bytes data
        if text is None:
            self.put_length(-1, is_flexible, OF_STRING)
            return
        if not isinstance(text, str):
            raise ValueError(f"{text!r:.80}, expected a str")
        data = PyUnicode_AsUTF8String(text)
        if len(data) > STRING_BYTES_MAX:
            raise ValueError(f"a string of {len(data)} bytes, expected at most {STRING_BYTES_MAX}")
        self.put_length(len(data), is_flexible, OF_STRING)
        self.data += data

    cdef int binary(self, data, bint is_flexible) except -1:
        if data is None:
            return self.put_length(-1, is_flexible, OF_ARRAY)
        if not isinstance(data, (bytes, memoryview)):
            raise ValueError(f"{data!r:.80}, expected bytes")
        self.put_length(len(data), is_flexible, OF_ARRAY)
        self.data += data
        return 0

    cdef int uuid(self, value) except -1:
        if not isinstance(value, bytes) or len(value) != UUID_SIZE:
            raise ValueError(f"{value!r:.80}, expected the {UUID_SIZE} bytes of a UUID")
        self.data += value
        return 0


@cython.final
cdef class FieldPlan:
    """How one field is read and written in one version. Never changes."""

    cdef str name
    cdef object tag, default
    cdef int kind
    cdef bint is_flexible, is_array, is_nullable
    # Of an integer: its bytes and its range. ``form`` is its struct, also of a FLOAT.
    cdef object form
    cdef int size
    cdef int64_t lowest, highest
    # Of a STRUCT.
    cdef StructPlan structure

    def __cinit__(self, field, int version, bint is_flexible, bint fills_in):
        self.name, self.tag, self.default = field.name, field.tag, field.default
        self.kind = KINDS.get(field.type, INTEGER)
        self.is_flexible = is_flexible
        self.is_array = field.is_array
        self.is_nullable = version in field.nullable
        self.form = NUMBERS.get(field.type)
        if self.kind == INTEGER:
            self.size = self.form.size
            # Python's numbers: C's would be too short.
            bits = 8 * self.form.size
            self.lowest = 0 if field.type.startswith("u") else -1 << (bits - 1)
            self.highest = (1 << bits - (self.lowest < 0)) - 1
        elif self.kind == STRUCT:
            self.structure = StructPlan(field.fields, version, is_flexible=is_flexible, fills_in=fills_in)

    cdef object read(self, MessageReader reader):
        cdef object value
        if self.is_array:
            value = self.read_array(reader)
        elif self.kind == STRUCT and self.is_nullable:
            return self.structure.read_from(reader) if self.has_structure(reader) else None
        else:
            value = self.read_value(reader)
        if value is None and not self.is_nullable:
            raise MessageError(f"{self.name}: null, expected a value")
        return value

    cdef bint has_structure(self, MessageReader reader) except -1:
        if self.tag is None:
            # A leading byte says whether the structure exists.
            return reader.integer(1, True) >= 0
        # In a tagged field an unsigned varint says it, which Java reads as an int32: 0 or less is null.
        return 0 < reader.uvarint() <= INT32_MAX

    cdef list read_array(self, MessageReader reader):
        cdef int64_t count = reader.length(self.is_flexible, OF_ARRAY)
        cdef list values = []
        # Each element takes at least a byte: a hostile count fails before anything is allocated for it.
        if count > reader._stop - reader._position:
            raise MessageError(
                f"{self.name}: {count} elements, expected at most the {reader.remaining} bytes that remain"
            )
        reader.count_elements(count)
        if count < 0:
            return None
        for _ in range(count):
            values.append(self.read_value(reader))
        if self.kind >= STRING and None in values:
            raise MessageError(f"{self.name}: null among its elements, expected values")
        return values

    cdef object read_value(self, MessageReader reader):
        """One value of the field's type, which is the whole field or one element of it."""
        cdef int64_t size
        if self.kind == INTEGER:
            return reader.integer(self.size, self.lowest < 0)
        if self.kind == STRING:
            return reader.string(self.is_flexible)
        if self.kind == STRUCT:
            return self.structure.read_from(reader)
        if self.kind == BOOL:
            return reader.integer(1, False) != 0
        if self.kind == UUID:
            return Uuid(reader.copy(UUID_SIZE))
        if self.kind == FLOAT:
            return reader.float64()
        size = reader.length(self.is_flexible, OF_ARRAY)
        if size < 0:
            return None
        # Records are not copied if the reader was given a memoryview.
        return reader.take(size) if self.kind == RECORDS else reader.copy(size)

    cdef int write(self, MessageWriter writer, value) except -1:
        if self.is_array:
            return self.write_array(writer, value)
        if self.kind == STRUCT and self.is_nullable:
            if self.tag is None:
                writer.put_integer(-1 if value is None else 1, 1)
            else:
                writer.uvarint(value is not None)
            if value is None:
                return 0
        elif self.kind >= STRING and value is None and not self.is_nullable:
            raise ValueError(f"{self.name}: None, expected a value")
        return self.write_value(writer, value)

    cdef int write_array(self, MessageWriter writer, value) except -1:
        if value is None and self.is_nullable:
            return writer.put_length(-1, self.is_flexible, OF_ARRAY)
        if not isinstance(value, list):
            raise ValueError(f"{self.name}: {value!r:.80}, expected a list")
        writer.put_length(len(value), self.is_flexible, OF_ARRAY)
        for element in <list>value:
            if element is None:
                raise ValueError(f"{self.name}: None among its elements, expected values")
        for element in <list>value:
            self.write_value(writer, element)
        return 0

    cdef int write_value(self, MessageWriter writer, value) except -1:
        cdef long long number
        cdef int overflow = 0
        if self.kind == STRING:
            writer.string(value, self.is_flexible)
        elif self.kind == STRUCT:
            self.structure.write_to(writer, value)
        elif self.kind >= BYTES:
            writer.binary(value, self.is_flexible)
        elif self.kind == BOOL:
            writer.put_integer(1 if value else 0, 1)
        elif self.kind == UUID:
            writer.uuid(value)
        elif self.kind == FLOAT and PyFloat_CheckExact(value):
            PyFloat_Pack8(PyFloat_AS_DOUBLE(value), writer.room(8), False)
        else:
            if self.kind == INTEGER and PyLong_CheckExact(value):
                number = PyLong_AsLongLongAndOverflow(value, &overflow)
                if overflow == 0 and self.lowest <= number <= self.highest:
                    return writer.put_integer(number, self.size)
            # Other objects may be numbers too. This raises if they are not, or are too large.
            writer.number(self.form, value)
        return 0

    cdef bytearray written(self, value):
        cdef MessageWriter writer = MessageWriter()
        self.write(writer, value)
        return writer.data


@cython.final
cdef class StructPlan:
    """How the structure of these fields is read and written in one version. Never changes.

    ``fills_in``: all fields of all versions are there when it is read, and one that is missing when it is written takes
    its default.
    """

    # The fields that this version has, those with tags by increasing tags, and all names in the schema's order.
    cdef tuple _plain, _names
    cdef dict _tagged, _absent
    cdef bint _is_flexible, _fills_in

    def __cinit__(self, fields, int version, *, bint is_flexible, bint fills_in):
        cdef list plain = [], names = []
        cdef dict tagged = {}
        self._absent = {}
        self._is_flexible, self._fills_in = is_flexible, fills_in
        for field in fields:
            if version in field.versions:
                plan = FieldPlan(field, version, is_flexible, fills_in)
                names.append(field.name)
                if field.tag is None:
                    plain.append(plan)
                else:
                    tagged[field.tag] = plan
            if fills_in and (version not in field.versions or field.tag is not None):
                self._absent[field.name] = field.default
        self._plain, self._tagged, self._names = tuple(plain), dict(sorted(tagged.items())), tuple(names)

    def read(self, MessageReader reader not None):
        """The fields in the schema's order. Raises: MessageError."""
        return self.read_from(reader)

    def write(self, values):
        """The bytes of a structure with these values. Raises: ValueError, struct.error, KeyError."""
        cdef MessageWriter writer = MessageWriter()
        self.write_to(writer, values)
        return bytes(writer.data)

    cdef dict read_from(self, MessageReader reader):
        cdef dict values = {}
        cdef FieldPlan field
        for field in self._plain:
            values[field.name] = field.read(reader)
        if self._is_flexible:
            values = self._with_tagged(values, reader)
        for name, default in self._absent.items():
            if name not in values:
                values[name] = copied(default)
        return values

    cdef dict _with_tagged(self, dict values, MessageReader reader):
        """All fields that the bytes have, without tagged ones that have their default."""
        cdef int64_t count = reader.uvarint(), tag
        cdef Py_ssize_t start, outer_stop = reader._stop
        cdef dict ordered = {}
        cdef FieldPlan field
        reader.count_elements(count)
        if count == 0:
            return values
        for _ in range(count):
            tag = reader.uvarint()
            start = reader.advance(reader.uvarint())
            field = self._tagged.get(tag)
            if field is None:
                continue
            reader._position, reader._stop = start, reader._position
            try:
                value = field.read(reader)
                if reader._position != reader._stop:
                    raise MessageError(f"{field.name}: {reader.remaining} bytes more than the field takes")
            finally:
                reader._stop = outer_stop
            if value != field.default:
                values[field.name] = value
        for name in self._names:
            if name in values:
                ordered[name] = values[name]
        return ordered

    cdef int write_to(self, MessageWriter writer, values) except -1:
        cdef FieldPlan field
        cdef bytearray content
        cdef list sections = []
        if not PyDict_CheckExact(values) and not isinstance(values, Mapping):
            raise ValueError(f"{values!r:.80}, expected a structure")
        for field in self._plain:
            field.write(writer, value_of(values, field, self._fills_in))
        if not self._is_flexible:
            return 0
        for tag, field in self._tagged.items():
            value = value_of(values, field, True)
            if value != field.default:
                content = field.written(value)
                # A structure may leave out fields with their defaults.
                if not isinstance(value, Mapping) or content != field.written(field.default):
                    sections.append((tag, content))
        writer.uvarint(len(sections))
        for tag, content in sections:
            writer.uvarint(tag)
            writer.uvarint(len(content))
            writer.data += content
        return 0


cdef object value_of(values, FieldPlan field, bint fills_in):
    """The field in a dict or another mapping; if it is not there, its default, or KeyError."""
    cdef PyObject* found
    if not PyDict_CheckExact(values):
        return values.get(field.name, field.default) if fills_in else values[field.name]
    found = PyDict_GetItemWithError(values, field.name)
    if found != NULL:
        return <object>found
    if not fills_in:
        raise KeyError(field.name)
    return field.default


cdef object copied(default):
    """A default that the caller may change."""
    cdef dict copy
    if isinstance(default, dict):
        copy = {}
        for name, value in (<dict>default).items():
            copy[name] = copied(value)
        return copy
    return [] if isinstance(default, list) else default
