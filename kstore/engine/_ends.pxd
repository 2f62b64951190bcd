"""For compiled modules that make a log's ends."""


cdef class EndsMaker:
    cdef type ends_type

    # ``before``, after the log has grown to ``end_offset``, which is readable: what is on disk stays the same. Raises:
    # TypeError, MemoryError.
    cdef object grown_from(self, object before, object end_offset, object base_offset, object position)
    # The first three fields are those of ``on_disk``.
    cdef object filled(self, object on_disk, object high_watermark, object end_offset, object base_offset, object position)
