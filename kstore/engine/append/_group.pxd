"""Group commit, for compiled modules that append without a Python call in between."""

from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t

cimport cython


cdef class Pending:
    cdef public object result, error
    # Whether its thread commits, and whether it waits until ``wake`` is released.
    cdef bint leads, waits
    # That submitted it.
    cdef unsigned long thread
    cdef PyThread_type_lock wake
    # The next one in the queue.
    cdef Pending next

    cdef int be_woken(self) except -1
    cdef void release(self) noexcept
    # Raises the error, or says that there is no outcome.
    cdef int raise_error(self) except -1


@cython.final
cdef class PendingSingle(Pending):
    cdef readonly bytes value, key
    cdef public int64_t timestamp


# The fields of a PendingAppend, which describes them.
cdef class PendingBatches(Pending):
    cdef public object buffer, spans, stamp, repeated
    cdef public list batches, buffers
    cdef public str source_codec, target_codec
    cdef public int64_t append_time_ms
    cdef public bint offsets_monotonic, with_producers


# A PendingSingle; a call of the type takes three times as long.
cdef PendingSingle single_of(bytes value, bytes key)


cdef class GroupCommit:
    cdef object commit, clock
    # The log's, which ``commit`` takes; None in tests.
    cdef object lock
    # The leader's thread.
    cdef unsigned long leading
    cdef Pending first, last
    # How many wait in the queue.
    cdef readonly Py_ssize_t waiting_count
    # Whether a thread commits, or is about to.
    cdef readonly bint is_led
    cdef Py_ssize_t last_count
    cdef double commit_seconds
    # Released when as many wait as ``last_count``, if ``gathers``.
    cdef PyThread_type_lock gathered
    cdef bint gathers

    # ``submit``, which leaves the error to its caller.
    cdef int run(self, Pending item) except -1
    cdef int refuse_inside(self, unsigned long me) except -1
    cdef int enqueue(self, Pending item) except -1
    cdef void withdraw(self, Pending item) noexcept
    cdef int lead(self, Pending leader) except -1
    cdef int gather(self) except -1
    cdef list take(self)
    cdef void end(self, list group, Pending leader) noexcept
    cdef void pass_on(self, Pending leader) noexcept
