# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The numbers of an active segment's end, and what they decide for one batch. No I/O here.

Every append passes here, so this is compiled. Signals are served between the byte codes of Python functions, never in
here: each call happens as a whole or not at all.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t

cimport cython

from kstore.record._codec cimport single_batch

__all__ = ["TailNumbers"]

cdef enum:
    NO_OFFSET = -1
    NO_TIMESTAMP = -1


@cython.final
cdef class TailNumbers:
    """Where a segment ends, what its indexes lack, and the limits at which it must roll. The log's lock guards it."""

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
    # Whether the next index entry needs a new segment.
    cdef public bint indexes_full
    # The limits of the segment: its bytes, and the ms from its first timestamp on, or without an append.
    cdef public int64_t segment_bytes
    cdef public int64_t segment_ms
    cdef readonly int64_t last_offset_max

    def __init__(self, int64_t base_offset, int64_t position):
        self.position = self.allocated = position
        self.last_offset_max = base_offset + ((<int64_t>1 << 31) - 1)
        self.clear_timestamps()
        self.first_timestamp = NO_TIMESTAMP

    def clear_timestamps(self):
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = NO_OFFSET

    cdef bint has_room(self, int64_t position, int64_t size, int64_t last_offset, int64_t max_timestamp) noexcept:
        return (
            size <= self.segment_bytes - position
            and last_offset <= self.last_offset_max
            and self.first_timestamp >= 0
            and max_timestamp - self.first_timestamp <= self.segment_ms
            and not self.indexes_full
        )

    def takes(self, int64_t position, int64_t size, int64_t last_offset, int64_t max_timestamp):
        """Whether a batch certainly belongs here, because no condition for a roll can hold. False means: check
        closer."""
        return self.has_room(position, size, last_offset, max_timestamp)

    def single(
        self,
        bytes value not None,
        bytes key,
        int64_t offset,
        int32_t leader_epoch,
        int64_t now_ms,
        int64_t last_append_ms,
    ):
        """The batch of one record with the time ``now_ms``, ready to be written at the end; None if the segment may
        have to roll first. The log was last appended to at ``last_append_ms``."""
        cdef bytes data
        if now_ms < 0 or now_ms - last_append_ms > self.segment_ms:
            return None
        data = single_batch(value, key, now_ms, offset, leader_epoch)
        return data if self.has_room(self.position, PyBytes_GET_SIZE(data), offset, now_ms) else None

    def wrote(self, int64_t size, int64_t offset, int64_t timestamp):
        """Moves the end over a ``single`` batch that was written there, and counts it as ``note`` does."""
        cdef int64_t position = self.position
        self.position += size
        return self.count(position, size, offset, timestamp)

    def note_timestamp(self, int64_t last_offset, int64_t max_timestamp):
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset

    def note(self, int64_t position, int64_t size, int64_t last_offset, int64_t max_timestamp):
        """Counts one written batch; True, and its bytes are not counted, if it needs an index entry first."""
        return self.count(position, size, last_offset, max_timestamp)

    cdef bint count(self, int64_t position, int64_t size, int64_t last_offset, int64_t max_timestamp) noexcept:
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self.since_entry > self.index_interval_bytes:
            return True
        self.since_entry += size
        return False
