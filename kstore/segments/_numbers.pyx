# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False
"""The numbers of an active segment's end, and what they decide for one batch.

Every append passes here, so this is compiled. Signals are served between the byte codes of Python functions, never in
here: each call happens as a whole or not at all.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t

from kstore.record._codec cimport BatchBuffer, put_place

from kstore.record._codec import EncodedBatch
from kstore.types import RECORD_OFFSET_MAX as _RECORD_OFFSET_MAX, RELATIVE_OFFSET_MAX as _RELATIVE_OFFSET_MAX

__all__ = ["TailNumbers"]

cdef enum:
    NO_OFFSET = -1
    NO_TIMESTAMP = -1

cdef int64_t RECORD_OFFSET_MAX = _RECORD_OFFSET_MAX
cdef int64_t RELATIVE_OFFSET_MAX = _RELATIVE_OFFSET_MAX

assert EncodedBatch._fields[1:4] == ("position", "size", "record_count"), EncodedBatch._fields
assert EncodedBatch._fields[5:] == ("max_timestamp", "max_timestamp_delta_offset"), EncodedBatch._fields

# The fields of an EncodedBatch that say where it is, and where it goes.
cdef struct Shape:
    int64_t position
    int64_t size
    int64_t record_count
    int64_t max_timestamp
    int64_t delta_of_max


cdef int take_shape(object batch, Shape* shape) except -1:
    if not PyTuple_Check(batch) or PyTuple_GET_SIZE(batch) != 7:
        raise TypeError(f"{batch!r:.80}, expected an EncodedBatch")
    shape.position = <object>PyTuple_GET_ITEM(batch, 1)
    shape.size = <object>PyTuple_GET_ITEM(batch, 2)
    shape.record_count = <object>PyTuple_GET_ITEM(batch, 3)
    shape.max_timestamp = <object>PyTuple_GET_ITEM(batch, 5)
    shape.delta_of_max = <object>PyTuple_GET_ITEM(batch, 6)
    return 0


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

    cdef bint takes_single(
        self, Py_ssize_t size, int64_t offset, int64_t now_ms, int64_t last_append_ms
    ) noexcept:
        return (
            0 <= now_ms
            and now_ms - last_append_ms <= self.segment_ms
            and size <= self.allocated - self.position
            and self.has_room(self.position, size, offset, now_ms)
        )

    def place(
        self,
        buffers not None,
        list batches not None,
        int64_t offset,
        int32_t leader_epoch,
        int64_t now_ms,
        int64_t last_append_ms,
    ):
        """Gives EncodedBatches the offsets from ``offset`` on, if the segment certainly takes all of them at its end.

        ``buffers``: the one that holds them all, or a list of one for each. Returns None, and changes nothing, if the
        segment may have to roll first, or if the batches in one buffer do not follow one another; otherwise the bytes
        to write, their size, the number of records, the greatest timestamp, and the offset of the first record that has
        it. The log was last appended to at ``last_append_ms``. Raises ValueError if a batch is not in its buffer.
        """
        cdef Py_ssize_t at, start = 0, stop = 0
        cdef Py_ssize_t count = PyList_GET_SIZE(batches)
        cdef BatchBuffer buffer = None
        cdef int64_t position = self.position
        cdef int64_t next_offset = offset
        cdef int64_t max_timestamp = NO_TIMESTAMP
        cdef int64_t offset_of_max = NO_OFFSET
        cdef Shape shape
        cdef list views = []
        if type(buffers) is list and PyList_GET_SIZE(buffers) != count:
            raise ValueError(f"{len(buffers)} buffers, expected one for each of the {count} batches")
        if count == 0 or now_ms - last_append_ms > self.segment_ms:
            return None
        for at in range(count):
            take_shape(<object>PyList_GET_ITEM(batches, at), &shape)
            if shape.record_count - 1 > self.last_offset_max - next_offset:
                return None
            if not self.has_room(position, shape.size, next_offset + shape.record_count - 1, shape.max_timestamp):
                return None
            if at > 0 and type(buffers) is not list and shape.position != stop:
                return None
            stop = shape.position + shape.size
            if shape.max_timestamp > max_timestamp:
                max_timestamp, offset_of_max = shape.max_timestamp, next_offset + shape.delta_of_max
            position += shape.size
            next_offset += shape.record_count
        next_offset = offset
        for at in range(count):
            take_shape(<object>PyList_GET_ITEM(batches, at), &shape)
            if at == 0 or type(buffers) is list:
                buffer = <object>PyList_GET_ITEM(buffers, at) if type(buffers) is list else buffers
                start = shape.position
            put_place(buffer, shape.position, next_offset, leader_epoch)
            next_offset += shape.record_count
            stop = shape.position + shape.size
            if at == count - 1 or type(buffers) is list:
                views.append(buffer.view(start, stop))
        return views, position - self.position, next_offset - offset, max_timestamp, offset_of_max

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
