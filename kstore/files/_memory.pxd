"""Shared memory, for compiled modules that look at it without a Python call in between."""


cdef class SharedMemory:
    # Only while it is not closed. A caller holds the interpreter's lock from the check to its last access.
    cdef char* _start
    cdef Py_ssize_t _size
    cdef int _sync_count
    cdef bint _is_closed

    cdef void _unmap_if_unused(self) noexcept
