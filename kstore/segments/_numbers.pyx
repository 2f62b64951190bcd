# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The numbers of an active segment's end, and what one more batch makes of them.

Every append passes here, so this is compiled. Signals are served between the byte codes of Python functions, never in
here: each call happens as a whole or not at all.
"""

from libc.stdint cimport int64_t

from kstore.types import RECORD_OFFSET_MAX as _RECORD_OFFSET_MAX, RELATIVE_OFFSET_MAX as _RELATIVE_OFFSET_MAX

cdef enum:
    NO_OFFSET = -1
    NO_TIMESTAMP = -1

cdef int64_t RECORD_OFFSET_MAX = _RECORD_OFFSET_MAX
cdef int64_t RELATIVE_OFFSET_MAX = _RELATIVE_OFFSET_MAX


cdef class TailNumbers:
    """Where a segment ends, what its indexes lack, and the limits at which it must roll. The log's lock guards it."""

    def __init__(self, int64_t base_offset, int64_t position):
        self.base_offset = base_offset
        self.position = self.allocated = position
        self.last_offset_max = min(base_offset, RECORD_OFFSET_MAX - RELATIVE_OFFSET_MAX) + RELATIVE_OFFSET_MAX
        self.clear_timestamps()
        self.first_timestamp = NO_TIMESTAMP

    def clear_timestamps(self):
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = NO_OFFSET

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
