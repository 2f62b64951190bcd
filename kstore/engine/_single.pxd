"""The short path of an append, for the one of appends that are synced."""

from cpython cimport array
from libc.stdint cimport int64_t


cdef class LogFields:
    cdef public object tail, ends, epochs, producers, closed, poisoned
    cdef public int64_t last_append_ms, flush_messages


cdef class SingleAppends:
    cdef LogFields files
    cdef object take, give_back, clock, durability, rolls, growth, counters
    cdef array.array appended
    cdef bint is_system_clock, needs_key
    # Of a batch.
    cdef Py_ssize_t size_max
    cdef int forks

    # As ``append``, which is ``timed``; without the timestamp if it is not.
    cdef object counted(self, object value, object key, bint timed)
    # Whether a record may take this path. Its batch may still be too large.
    cdef bint is_plain(self, object value, object key) noexcept
    # Counts appends of one record each.
    cdef void count(self, int64_t records, int64_t size) noexcept
    cdef int64_t now_ms(self) except? -1
