# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False
"""The compiled loops over the records of a batch (version 2). No I/O here.

    record    length varint | attributes int8 | timestamp delta varlong | offset delta varint | key | value
              | header count varint | headers
    key       length varint (negative: null) | bytes          value likewise
    header    key length varint (>= 0) | bytes, UTF-8 by convention | value length varint (negative: null) | bytes

One module in several files, so that the compiler sees all of it: varints and the hash (_codec_varint.pxi, _numbers), a
record as an object (_text, _record), reading and checking (_read, _check), making objects (_objects, _decode), the buffer (_buffer),
the CRC of a small batch (_crc), writing (_write).

Everything that is read may be hostile: a length is compared with the bytes that remain before it is used, and each
pass over records does so again, because the bytes of a mutable buffer may have changed since an earlier pass. Nothing
here releases the GIL, and code that holds borrowed references calls nothing that could run Python code.
"""

from array import array as _array
from collections import namedtuple
from collections.abc import Mapping as _Mapping

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cimport cython

from kstore.record._layout cimport ATTRIBUTE_LOG_APPEND_TIME, CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC, RECORD_SIZE_MIN

from kstore.errors import CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordError
from kstore.record.crc import crc32c as _crc32c
from kstore.types import TIMESTAMP_TYPES as _TIMESTAMP_TYPES

cdef extern from *:
    # gcc's and clang's, and Cython's own.
    int __builtin_clzll(uint64_t value) nogil
    void __builtin_prefetch(const void* address) nogil
    bint unlikely(bint condition) nogil

cdef extern from "Python.h":
    # Borrowed references, and nothing that can run Python code.
    PyObject* Py_None
    ctypedef struct PyTypeObject:
        unsigned long tp_flags
        PyObject* (*tp_new)(PyTypeObject* made, PyObject* arguments, PyObject* named) except NULL
        void* tp_vectorcall
    void PyType_Modified(PyTypeObject* changed)
    unsigned long Py_TPFLAGS_BASETYPE
    bint PyBytes_CheckExact(PyObject* o)
    Py_ssize_t PyBytes_GET_SIZE(PyObject* o)
    char* PyBytes_AS_STRING(PyObject* o)
    bint PyLong_CheckExact(PyObject* o)
    long long PyLong_AsLongLong(PyObject* o)
    bint PyTuple_CheckExact(PyObject* o)
    bint PyList_CheckExact(PyObject* o)
    bint PyUnicode_CheckExact(PyObject* o)
    const char* PyUnicode_AsUTF8AndSize(PyObject* o, Py_ssize_t* size)
    const char* utf8_of "PyUnicode_AsUTF8AndSize"(PyObject* o, Py_ssize_t* size) except NULL
    Py_ssize_t PySequence_Fast_GET_SIZE(PyObject* o)
    PyObject** PySequence_Fast_ITEMS(PyObject* o)
    # New references.
    object PyUnicode_DecodeUTF8(const char* data, Py_ssize_t size, const char* errors)
    object PyUnicode_FromObject(object o)

cdef enum:
    # Index into TIMESTAMP_TYPES.
    LOG_APPEND_TIME = 1

cdef tuple TIMESTAMP_TYPES = _TIMESTAMP_TYPES
assert TIMESTAMP_TYPES[LOG_APPEND_TIME] == "LogAppendTime"

include "_codec_varint.pxi"
include "_codec_numbers.pxi"
include "_codec_text.pxi"
include "_codec_record.pxi"
include "_codec_read.pxi"
include "_codec_check.pxi"
include "_codec_objects.pxi"
include "_codec_decode.pxi"
include "_codec_buffer.pxi"
include "_crc.pxi"
include "_codec_write.pxi"
