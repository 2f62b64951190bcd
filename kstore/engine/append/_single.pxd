"""The parts of the short path of an append that other ways share."""

from cpython cimport array
from libc.stdint cimport int64_t

from kstore.engine._fields cimport LogFields


cdef class LogAppends:
    cdef LogFields files
    cdef object take, give_back, clock, durability, rolls, growth, counters
    cdef array.array appended
    cdef bint is_system_clock

    cdef void count(self, int64_t appends, int64_t batches, int64_t records, int64_t size) noexcept
    cdef int64_t now_ms(self) except? -1
    # See ``wake_followers``.
    cdef int wake(self) except -1


cdef class SingleAppends(LogAppends):
    cdef bint needs_key
    # Of a batch.
    cdef Py_ssize_t size_max
    cdef int forks

    # As ``append``, which is ``timed``; without the timestamp if it is not.
    cdef object counted(self, object value, object key, bint timed)
    # Whether a record may take this path. Its batch may still be too large.
    cdef bint is_plain(self, object value, object key) noexcept
