# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled search of an index: one loop over memory. No I/O here. Nothing releases the GIL."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcmp

__all__ = ["floor_slot"]


def floor_slot(data, Py_ssize_t entries, Py_ssize_t entry_size, bytes key, Py_ssize_t key_at):
    """The last of ``entries`` slots of ``data`` whose column at byte ``key_at`` is <= ``key``, or -1.

    Raises ValueError if ``data`` is shorter than its entries, or the column is not inside an entry.
    """
    cdef Py_buffer view
    cdef Py_ssize_t key_size = len(key), low = -1, high = entries, middle
    cdef const char* wanted = key
    cdef const char* start
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if entry_size <= 0 or not 0 <= key_at <= entry_size - key_size or not 0 <= entries <= view.len // entry_size:
            raise ValueError(f"{entries} entries of {entry_size} bytes in {view.len}, keys at {key_at}")
        start = <const char*>view.buf + key_at
        while high - low > 1:
            middle = low + (high - low) // 2
            if memcmp(start + middle * entry_size, wanted, key_size) <= 0:
                low = middle
            else:
                high = middle
    finally:
        PyBuffer_Release(&view)
    return low
