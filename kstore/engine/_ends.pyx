# cython: language_level=3, binding=False
"""Makes a log's ends, once per append: a named tuple's own constructor takes five times as long."""

from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject* type, Py_ssize_t size)

cdef enum:
    FIELD_COUNT = 7
    # Those before it say what is on disk; those from it on, where the log ends.
    HIGH_WATERMARK = 3


cdef class EndsMaker:
    """Makes values of ``ends_type``, the named tuple of a log's ends."""

    def __cinit__(self, type ends_type not None):
        fields = getattr(ends_type, "_fields", ())
        last = ("high_watermark", "end_offset", "base_offset", "position")
        if not issubclass(ends_type, tuple) or len(fields) != FIELD_COUNT or fields[HIGH_WATERMARK:] != last:
            raise TypeError(f"{ends_type!r}, expected the named tuple of a log's ends")
        self.ends_type = ends_type

    cdef object grown_from(self, object before, object end_offset, object base_offset, object position):
        if type(before) is not self.ends_type or PyTuple_GET_SIZE(before) != FIELD_COUNT:
            raise TypeError(f"a {type(before).__name__}, expected a log's ends")
        return self.filled(before, end_offset, end_offset, base_offset, position)

    cdef object filled(self, object on_disk, object high_watermark, object end_offset, object base_offset, object position):
        cdef Py_ssize_t at
        cdef object made = PyType_GenericAlloc(<PyTypeObject*>self.ends_type, FIELD_COUNT)
        for at in range(HIGH_WATERMARK):
            put(made, at, <object>PyTuple_GET_ITEM(on_disk, at))
        put(made, HIGH_WATERMARK, high_watermark)
        put(made, HIGH_WATERMARK + 1, end_offset)
        put(made, HIGH_WATERMARK + 2, base_offset)
        put(made, HIGH_WATERMARK + 3, position)
        return made


cdef inline void put(object made, Py_ssize_t at, object field) noexcept:
    """Sets a field that is not set yet."""
    Py_INCREF(field)
    PyTuple_SET_ITEM(made, at, field)
