"""The fields of a record that ``next_record`` has checked, as Python objects. Part of _codec.pyx."""


cdef inline bytes field_object(const uint8_t* data, Py_ssize_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>data, size)


cdef object header_key(const char* data, Py_ssize_t size):
    """A header's key as text, or as bytes if it is not UTF-8."""
    try:
        return PyUnicode_DecodeUTF8(data, size, NULL)
    except UnicodeDecodeError:
        return PyBytes_FromStringAndSize(data, size)


cdef tuple header_objects(RecordView* record):
    """The headers of a record that ``next_record`` has just checked, as ``Record.stored_headers`` has them."""
    cdef tuple headers = PyTuple_New(record.header_count)
    cdef const uint8_t* at = record.headers
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t value_size = 0
    cdef int32_t i, key_size = 0
    for i in range(record.header_count):
        # Making these objects may run the garbage collector, and with it code that changes the buffer: checked again.
        at = get_varint(at, record.stop, &key_size)
        if at == NULL or key_size < 0 or key_size > record.stop - at:
            raise CorruptRecordError(f"header {i} changed while it was read")
        key = header_key(<const char*>at, key_size)
        at = get_field(record, at + key_size, record.stop, &value, &value_size)
        if at == NULL:
            raise CorruptRecordError(f"header {i} changed while it was read")
        pair = (key, field_object(value, value_size))
        Py_INCREF(pair)
        PyTuple_SET_ITEM(headers, i, pair)
    return headers
