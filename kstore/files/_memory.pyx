# cython: language_level=3, binding=False
"""Memory that is shared with a file. It needs no descriptor: the system's mapping outlives the one it was made from.

Python's own ``mmap`` keeps a duplicate of the descriptor (until Python 3.13, which can avoid it). Every method but
``sync`` holds the interpreter's lock from its check to its last access, so a reader cannot lose the memory.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport errno
from libc.string cimport memcpy

import os

cdef extern from *:
    """
    #include <stdatomic.h>
    #define kstore_keep_order() atomic_thread_fence(memory_order_release)
    """
    void keep_order "kstore_keep_order"() nogil

cdef enum:
    # What a processor stores at once.
    STORE_SIZE = 8

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t size, int protection, int flags, int fd, long long offset)
    int munmap(void* address, size_t size)
    int msync(void* address, size_t size, int flags)
    int PROT_READ
    int PROT_WRITE
    int MAP_SHARED
    int MS_SYNC
    void* MAP_FAILED


cdef class SharedMemory:
    """The first ``size`` bytes of the file ``fd``, which is at least that long. Thread-safe."""

    def __cinit__(self, int fd, Py_ssize_t size):
        """Raises: ValueError for a size below 1; OSError."""
        self._is_closed = True
        if size <= 0:
            raise ValueError(f"a mapping of {size} bytes")
        cdef void* start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if start == MAP_FAILED:
            raise OSError(errno, os.strerror(errno))
        self._start = <char*>start
        self._size = size
        self._is_closed = False

    def __dealloc__(self):
        if self._start != NULL:
            munmap(self._start, self._size)

    @property
    def closed(self):
        return self._is_closed

    def read(self, Py_ssize_t start, Py_ssize_t stop):
        """The bytes from ``start`` to ``stop``, fewer at the end of the memory. Raises: ValueError when closed."""
        if self._is_closed:
            raise ValueError("the memory is closed")
        start = min(max(start, 0), self._size)
        stop = min(max(stop, start), self._size)
        return PyBytes_FromStringAndSize(self._start + start, stop - start)

    def store(self, Py_ssize_t position, bytes data not None):
        """Copies ``data`` to ``position``. Raises: ValueError when closed, IndexError if it does not fit.

        In order, so that another process that finds some of these bytes also finds those before them.
        """
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef const char* source = PyBytes_AS_STRING(data)
        cdef Py_ssize_t at = 0
        if self._is_closed:
            raise ValueError("the memory is closed")
        if position < 0 or position > self._size or size > self._size - position:
            raise IndexError(f"{size} bytes at {position} of {self._size}")
        while size - at > STORE_SIZE:
            memcpy(self._start + position + at, source + at, STORE_SIZE)
            keep_order()
            at += STORE_SIZE
        memcpy(self._start + position + at, source + at, size - at)

    def sync(self):
        """Waits until the memory is on disk. Raises: ValueError when closed, OSError."""
        cdef int failed
        cdef int code = 0
        if self._is_closed:
            raise ValueError("the memory is closed")
        self._sync_count += 1
        with nogil:
            failed = msync(self._start, self._size, MS_SYNC)
            if failed:
                code = errno
        self._sync_count -= 1
        self._unmap_if_unused()
        if failed:
            raise OSError(code, os.strerror(code))

    def close(self):
        """Ends all use at once; the memory is freed when no ``sync`` needs it any more. A second call does nothing."""
        self._is_closed = True
        self._unmap_if_unused()

    cdef void _unmap_if_unused(self) noexcept:
        if self._is_closed and self._sync_count == 0 and self._start != NULL:
            munmap(self._start, self._size)
            self._start = NULL
