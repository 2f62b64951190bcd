"""The memory of columns: it grows while they are filled, and is then handed over. Part of _columns.pyx."""

include "_huge_pages.pxi"


cdef enum:
    # Twice a huge page: a block of that size has room for one, wherever it begins.
    HUGE_MIN = 4 << 20


cdef struct Memory:
    uint8_t* data
    Py_ssize_t capacity
    # How much the previous chunk needed: this much is allocated at once.
    Py_ssize_t hint


cdef struct Bytes:
    Memory validity
    Memory offsets
    Memory data
    Py_ssize_t size
    Py_ssize_t null_count


cdef int reserve(Memory* memory, Py_ssize_t size) except -1:
    """Makes the capacity at least ``size`` bytes, and at least one; the content stays."""
    cdef Py_ssize_t capacity
    cdef uint8_t* data
    if size <= memory.capacity and memory.data != NULL:
        return 0
    capacity = max(max(size, memory.capacity + memory.capacity // 2), max(memory.hint, <Py_ssize_t>CAPACITY_MIN))
    data = <uint8_t*>PyMem_RawRealloc(memory.data, capacity)
    if data == NULL:
        raise MemoryError(f"no memory for a column of {capacity} bytes")
    if capacity >= HUGE_MIN:
        kstore_advise_huge(data, capacity)
    memory.data = data
    memory.capacity = capacity
    return 0


cdef int reserve_validity(Memory* memory, Py_ssize_t count) except -1:
    """``reserve`` for ``count`` bits; new bits mean "not null"."""
    cdef Py_ssize_t before = memory.capacity
    reserve(memory, (count + 7) >> 3)
    memset(memory.data + before, 0xFF, memory.capacity - before)
    return 0


cdef inline void clear_bit(uint8_t* bits, Py_ssize_t index) noexcept nogil:
    bits[index >> 3] &= <uint8_t>~(1 << (index & 7))


cdef void set_bits(uint8_t* bits, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(start, stop):
        bits[index >> 3] |= <uint8_t>(1 << (index & 7))


cdef int reserve_bytes(Bytes* column, Py_ssize_t count, Py_ssize_t size, bint large) except -1:
    """Reserves space for ``count`` values of ``size`` bytes in total."""
    reserve_validity(&column.validity, count)
    reserve(&column.offsets, (count + 1) * (8 if large else 4))
    reserve(&column.data, size)
    put_end(column, -1, large)
    return 0


cdef inline void put_end(Bytes* column, Py_ssize_t index, bint large) noexcept nogil:
    """Stores where the value ``index`` ends; -1 for the start of the first one."""
    if index < 0:
        if large:
            (<int64_t*>column.offsets.data)[0] = 0
        else:
            (<int32_t*>column.offsets.data)[0] = 0
    elif large:
        (<int64_t*>column.offsets.data)[index + 1] = column.size
    else:
        (<int32_t*>column.offsets.data)[index + 1] = <int32_t>column.size


cdef inline void put_bytes(
    Bytes* column, Py_ssize_t index, const uint8_t* data, Py_ssize_t size, bint large
) noexcept nogil:
    """Stores the value ``index``, for which space is reserved; a size below 0 is null."""
    if size < 0:
        clear_bit(column.validity.data, index)
        column.null_count += 1
    else:
        memcpy(column.data.data + column.size, data, size)
        column.size += size
    put_end(column, index, large)


cdef inline int64_t scaled(int64_t timestamp, int64_t factor) noexcept nogil:
    """``timestamp`` * ``factor`` (positive), or the nearest 64-bit number."""
    if factor == 1:
        return timestamp
    if timestamp > INT64_MAX // factor:
        return INT64_MAX
    if timestamp < -(INT64_MAX // factor):
        return INT64_MIN
    return timestamp * factor


@cython.final
cdef class ColumnBuffer:
    """Memory of a finished column: read-only, by the buffer protocol; ``size`` in bytes."""

    cdef uint8_t* data
    cdef readonly Py_ssize_t size
    # How many bits it holds, if it is a validity bitmap.
    cdef Py_ssize_t bit_count

    cdef void take(self, Memory* memory) noexcept:
        """Takes the first ``size`` bytes, which are there; the memory starts empty again."""
        cdef uint8_t* smaller
        if self.bit_count & 7:
            memory.data[self.bit_count >> 3] &= <uint8_t>((1 << (self.bit_count & 7)) - 1)
        self.data = memory.data
        # No more than may stay unused below: what is cut off costs the C library the block, and us its pages, each time.
        memory.hint = min(memory.capacity, self.size + self.size // 4)
        if memory.capacity - self.size > self.size // 4 + 4096:
            smaller = <uint8_t*>PyMem_RawRealloc(memory.data, max(self.size, <Py_ssize_t>CAPACITY_MIN))
            if smaller != NULL:
                self.data = smaller
        memory.data = NULL
        memory.capacity = 0

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)

    def __len__(self):
        return self.size


cdef ColumnBuffer buffer_for(Memory* memory, Py_ssize_t size):
    """An empty buffer, which can then ``take`` the first ``size`` bytes without an error."""
    cdef ColumnBuffer buffer
    reserve(memory, max(size, <Py_ssize_t>CAPACITY_MIN))
    buffer = ColumnBuffer.__new__(ColumnBuffer)
    buffer.size = size
    return buffer


cdef ColumnBuffer buffer_for_validity(Memory* memory, Py_ssize_t count, Py_ssize_t null_count):
    cdef ColumnBuffer buffer
    if null_count == 0:
        # Every bit is set, so it can be used unchanged.
        return None
    buffer = buffer_for(memory, (count + 7) >> 3)
    buffer.bit_count = count
    return buffer


cdef object column_for(Bytes* column, Py_ssize_t count, bint large):
    """A BytesColumn of empty buffers, for ``take_bytes``."""
    reserve_bytes(column, count, 0, large)
    return BytesColumn(
        buffer_for_validity(&column.validity, count, column.null_count),
        column.null_count,
        buffer_for(&column.offsets, (count + 1) * (8 if large else 4)),
        buffer_for(&column.data, column.size),
    )


cdef void take_bytes(object made, Bytes* column) noexcept:
    take_memory(<object>PyTuple_GET_ITEM(made, 0), &column.validity)
    take_memory(<object>PyTuple_GET_ITEM(made, 2), &column.offsets)
    take_memory(<object>PyTuple_GET_ITEM(made, 3), &column.data)
    column.size = column.null_count = 0


cdef inline void take_memory(object buffer, Memory* memory) noexcept:
    if buffer is not None:
        (<ColumnBuffer>buffer).take(memory)


cdef void free_bytes(Bytes* column) noexcept nogil:
    PyMem_RawFree(column.validity.data)
    PyMem_RawFree(column.offsets.data)
    PyMem_RawFree(column.data.data)
