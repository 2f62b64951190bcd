"""The compiled append, for compiled modules that call it without a Python call in between."""

from cpython cimport array
from libc.stdint cimport int32_t, int64_t

cimport cython

from kstore.engine._fields cimport LogFields
from kstore.engine.append._group cimport GroupCommit, PendingBatches
from kstore.record._codec cimport BatchBuffer
from kstore.segments._numbers cimport TailNumbers


cdef enum:
    # More batches than this need memory of their own.
    FEW_PARTS = 4


cdef struct Part:
    # Of one batch.
    int64_t size
    int64_t last_offset
    int64_t max_timestamp


@cython.final
cdef class Plan:
    cdef object before, tail, ends, producer, checked
    cdef list group, results, views
    cdef TailNumbers numbers
    # The part of a buffer that is to be the last of ``views``.
    cdef BatchBuffer buffer
    cdef Py_ssize_t start, stop
    cdef int64_t now_ms
    # The log's end before the append, and after it.
    cdef int64_t first
    cdef readonly int64_t end
    # The end of the segment; ``size`` more bytes are to be written there.
    cdef int64_t position, size
    # Of the segment, as they are once that is written. At least ``entry_room`` index entries fit then.
    cdef readonly int64_t first_timestamp
    cdef int64_t since_entry, entry_room
    # What the append adds to the log's counts. Refused and repeated appends do not count.
    cdef public int64_t append_count
    cdef int64_t batch_count, record_count, byte_count
    # Where reads of committed records end if the append fails once it is published.
    cdef public int64_t stable_offset
    # The batches to be written.
    cdef Part few[FEW_PARTS]
    cdef Part* parts
    cdef Py_ssize_t part_count, part_room
    cdef public bint with_producers
    cdef bint is_published, is_whole

    cdef int go_on(self, object tail, TailNumbers numbers) except -1
    cdef void clear(self) noexcept
    cdef bint takes(self, int64_t size, int64_t last_offset, int64_t max_timestamp) noexcept
    cdef int put(self, int64_t size, int64_t record_count, int64_t last_offset, int64_t max_timestamp) except -1
    cdef bint add_batch(
        self, BatchBuffer buffer, object batch, int64_t base_offset, int64_t last_offset, int32_t epoch, bint keeps
    ) except -1
    cdef int end_view(self) except -1


@cython.final
cdef class AppendPath:
    cdef LogFields files
    cdef GroupCommit group
    cdef object appends, take, give_back, clock, durability, rolls, growth, counters
    cdef array.array appended
    # The log's lock guards the next two: for groups of records, and a plan that was used.
    cdef BatchBuffer buffer
    cdef Plan spare
    # Of a batch of one plain record.
    cdef Py_ssize_t size_max
    cdef bint needs_key, is_system_clock, is_shared, is_sync, syncs_writes, is_prompt
    cdef int forks

    # As ``append``, which is ``timed``; without the timestamp if it is not.
    cdef object counted(self, object value, object key, bint timed)
    cdef bint is_plain(self, object value, object key) noexcept
    cdef object in_turn(self, object appends, bytes value, bytes key, bint timed)
    cdef object commit_singles(self, list singles, bytes value, bytes key, bint timed)
    cdef bint commit_batches(self, PendingBatches append) except -1
    cdef bint carry_out(self, Plan plan, int fd, const char* data) except -1
    cdef Plan begin(self)
    cdef int start(self, Plan plan, int64_t now_ms) except -1
    cdef int make_ends(self, Plan plan) except -1
    cdef bint write_directly(self, Plan plan, int fd, const char* data) except -1
    cdef int write_views(self, Plan plan) except -1
    cdef int note(self, Plan plan) except -1
    cdef int show(self, Plan plan) except -1
    cdef int note_producers(self, Plan plan) except -1
    cdef int undo(self, Plan plan, object error) except -1
    cdef int64_t now_ms(self) except? -1
    cpdef object wake(self)
