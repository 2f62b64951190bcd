"""The buffer in which batches are built. Part of _codec.pyx."""

cdef enum:
    BUFFER_CAPACITY_MIN = 4096


@cython.final
cdef class BatchBuffer:
    """A growable, reusable buffer in which batches are built. Not thread-safe.

    It has the buffer protocol; while a view of it is alive it refuses to grow (BufferError), because growing may move
    its memory. ``clear`` and ``truncate`` are allowed then: a view shows whatever the memory holds now.

    ``size`` is the size of its content, ``capacity`` that of its memory, both in bytes. ``loan`` is any object: it is
    dropped with the buffer.
    """

    def __cinit__(self, Py_ssize_t capacity=0):
        self.capacity = max(capacity, <Py_ssize_t>BUFFER_CAPACITY_MIN)
        self.data = <uint8_t*>PyMem_RawMalloc(self.capacity)
        if self.data == NULL:
            raise MemoryError(f"no memory for a buffer of {self.capacity} bytes")

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    cdef int make_room(self, Py_ssize_t size) except -1:
        """Makes the capacity at least ``size`` bytes; the content stays."""
        cdef Py_ssize_t capacity
        cdef uint8_t* data
        if size <= self.capacity:
            return 0
        if self.export_count:
            raise BufferError(f"a buffer of {self.capacity} bytes cannot grow to {size} while a view of it is alive")
        capacity = max(size, self.capacity * 2)
        data = <uint8_t*>PyMem_RawRealloc(self.data, capacity)
        if data == NULL:
            raise MemoryError(f"no memory for a buffer of {capacity} bytes")
        self.data = data
        self.capacity = capacity
        return 0

    cdef int refuse_while_writing(self) except -1:
        if self.is_writing:
            raise BufferError("a batch is being written to the buffer: close or abort it first")
        return 0

    cdef int claim(self) except -1:
        """Claims the buffer for one batch: until that is closed or aborted nothing else may change the size."""
        self.refuse_while_writing()
        self.is_writing = True
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)
        self.export_count += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.export_count -= 1

    def __len__(self):
        return self.size

    def view(self, Py_ssize_t start=0, stop=None):
        """Bytes ``start`` to ``stop`` (default: the end) as a memoryview, without a copy."""
        return memoryview(self)[start:stop]

    def clear(self):
        """Empties the buffer; its memory stays."""
        self.truncate(0)

    def truncate(self, Py_ssize_t size):
        """Drops everything after the first ``size`` bytes. Raises ValueError if there are fewer."""
        self.refuse_while_writing()
        if not 0 <= size <= self.size:
            raise ValueError(f"size {size}, expected 0 to the {self.size} bytes of the buffer")
        self.size = size

    def extend(self, data):
        """Appends a copy of ``data`` (bytes-like, another object's)."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.refuse_while_writing()
            self.make_room(self.size + view.len)
            memcpy(self.data + self.size, view.buf, view.len)
            self.size += view.len
        finally:
            PyBuffer_Release(&view)

    def reserve(self, Py_ssize_t size):
        """Makes sure that ``size`` more bytes fit without growing."""
        if size > 0:
            self.make_room(self.size + size)


cdef inline void put_big_endian(uint8_t* to, int64_t value, int size) noexcept nogil:
    """The low ``size`` bytes of ``value``."""
    while size:
        size -= 1
        to[size] = <uint8_t>value
        value >>= 8


cdef uint8_t* header_at(BatchBuffer buffer, Py_ssize_t position) except NULL:
    if buffer is None:
        raise TypeError("None, expected a BatchBuffer")
    if not 0 <= position <= buffer.size - HEADER_SIZE:
        raise ValueError(f"position {position}, expected a batch in the {buffer.size} bytes of the buffer")
    return buffer.data + position


cdef int put_place(BatchBuffer buffer, Py_ssize_t position, int64_t base_offset, int32_t leader_epoch) except -1:
    cdef uint8_t* header = header_at(buffer, position)
    put_big_endian(header, base_offset, 8)
    put_big_endian(header + 12, leader_epoch, 4)
    return 0


def patch_header(BatchBuffer buffer not None, Py_ssize_t position, int64_t base_offset, int32_t leader_epoch):
    """Sets the two fields outside the CRC in the header of the batch at ``position``."""
    put_place(buffer, position, base_offset, leader_epoch)


cdef int put_producer(
    BatchBuffer buffer, Py_ssize_t position, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence
) except -1:
    cdef uint8_t* header = header_at(buffer, position)
    put_big_endian(header + 43, producer_id, 8)
    put_big_endian(header + 51, producer_epoch, 2)
    put_big_endian(header + 53, base_sequence, 4)
    return 0


def patch_producer(
    BatchBuffer buffer not None, Py_ssize_t position, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence
):
    """Sets the producer's fields in the header of the batch at ``position``; the CRC comes after."""
    put_producer(buffer, position, producer_id, producer_epoch, base_sequence)


def patch_crc(BatchBuffer buffer not None, Py_ssize_t position, uint32_t crc):
    """Sets the CRC in the header of the batch at ``position``."""
    put_big_endian(header_at(buffer, position) + 17, crc, 4)
