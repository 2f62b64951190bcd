"""The numbers of an active segment's end, for compiled modules that read them without a Python call in between."""

from libc.stdint cimport int64_t

cimport cython


@cython.final
cdef class TailNumbers:
    cdef readonly int64_t base_offset
    # The file's end, in bytes, and the end of the blocks that are allocated for it.
    cdef public int64_t position
    cdef public int64_t allocated
    # The greatest timestamp of the first batch; the greatest of all, and the last offset of the batch with it.
    cdef public int64_t first_timestamp
    cdef public int64_t max_timestamp
    cdef public int64_t offset_of_max_timestamp
    # The bytes since the last index entry, and how many may be between two.
    cdef public int64_t since_entry
    cdef public int64_t index_interval_bytes
    # How many entries more both indexes have room for: without any, the next batch needs a new segment.
    cdef public int64_t entry_room
    # The limits of the segment: its bytes, and the ms from its first timestamp on, or without an append.
    cdef public int64_t segment_bytes
    cdef public int64_t segment_ms
    cdef readonly int64_t last_offset_max

    cdef bint count(self, int64_t position, int64_t size, int64_t last_offset, int64_t max_timestamp) noexcept
