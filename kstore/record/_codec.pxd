"""The parts of the codec that other compiled modules may call without a Python call in between."""

cimport cython
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t


cdef class Record:
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly bytes key
    cdef readonly bytes value
    # (str, bytes or None) tuples; of a key that is not UTF-8, its bytes.
    cdef tuple stored_headers
    cdef readonly int32_t leader_epoch
    cdef int8_t timestamp_type_index
    # Its topic and partition, for a ConsumerRecord; None for any other.
    cdef tuple origin

    cdef int fill(self, object offset, object timestamp, str timestamp_type, object leader_epoch) except -1
    cdef tuple fields(self)


cdef class ConsumerRecord(Record):
    pass


cdef class DeserializedRecord(ConsumerRecord):
    cdef object made_key
    cdef object made_value


cdef class BatchBuffer:
    cdef uint8_t* data
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t capacity
    cdef Py_ssize_t export_count
    cdef bint is_writing
    # Kept while the buffer lives, for its lender.
    cdef public object loan

    cdef int make_room(self, Py_ssize_t size) except -1
    cdef int claim(self) except -1
    cdef int refuse_while_writing(self) except -1


cdef class OpenBatch:
    cdef readonly BatchBuffer buffer
    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t size_max
    cdef readonly int32_t record_count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t last_offset_delta
    cdef int32_t max_timestamp_delta_offset
    cdef bint has_base_timestamp
    cdef readonly bint is_open
    # The bytes that the last refused record would have needed.
    cdef Py_ssize_t refused_size

    # 1: appended, 0: no space. The batch is open, the fields are exact bytes or None, ``headers`` is the result of
    # ``checked_headers``, the timestamp is -1 or more, the delta is above the last one.
    cdef int append_checked(
        self, bytes value, bytes key, tuple headers, int64_t timestamp, int64_t offset_delta
    ) except -1
    # Appends values[index:count] of a list or a tuple while they are bytes and fit into the batch and the memory of its
    # buffer; returns the index of the first that is left. The batch is open, the timestamp is -1 or more.
    cdef Py_ssize_t append_values(self, object values, Py_ssize_t index, Py_ssize_t count, int64_t timestamp) noexcept
    cdef int finish(self, int timestamp_type, int64_t append_time) except -1


# ``made()`` and ``made.__new__(made)`` raise TypeError from then on: only compiled code makes complete objects of this type.
cdef int forbid_new(type made) except -1
# A topic and a partition as what ``Record.origin`` may be, or None.
cdef tuple checked_origin(object given)
# Sets the two fields outside the CRC in the header of the batch at ``position``. Raises ValueError if none is there.
cdef int put_place(BatchBuffer buffer, Py_ssize_t position, int64_t base_offset, int32_t leader_epoch) except -1
# Sets the producer's fields, and the CRC, of the batch of ``size`` bytes at ``position``; raises as ``put_place``.
cdef int put_producer(
    BatchBuffer buffer, Py_ssize_t position, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence
) except -1
cdef int put_crc(BatchBuffer buffer, Py_ssize_t position, Py_ssize_t size) except -1
# ``made(*fields)``, a named tuple, whose own constructor is Python code; all fields must be given.
cdef object named_tuple(type made, tuple fields)
cdef bytes as_bytes(object value, str field)
cdef tuple checked_headers(object headers)
# ``sequence[index]`` of a list or a tuple; RuntimeError, which says ``name``, if it has become shorter.
cdef object item(object sequence, Py_ssize_t index, str name)
cdef int32_t murmur2_of(const uint8_t* data, Py_ssize_t size) noexcept nogil
# The bytes of a batch of one record without headers, uncompressed. The caller bounds the sizes of value and key, which may
# be None, to 1 GiB each.
cdef Py_ssize_t single_size(bytes value, bytes key) noexcept
# Puts that batch, complete, into the ``size`` bytes at ``batch``. ``timestamp`` is in ms, 0 or more.
cdef void put_single(
    uint8_t* batch, Py_ssize_t size, bytes value, bytes key, int64_t timestamp, int64_t offset, int32_t leader_epoch
) noexcept
