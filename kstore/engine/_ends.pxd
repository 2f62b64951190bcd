"""For compiled modules that make a log's ends."""


cdef class EndsMaker:
    cdef type ends_type

    # See ``grown``. Raises: TypeError, MemoryError.
    cdef object grown_from(self, object before, object end_offset, object base_offset, object position)
    cdef object filled(self, object on_disk, object high_watermark, object end_offset, object base_offset, object position)
