"""The sizes, positions and bits of a batch of version 2 and of its records, for every compiled module.

``batch.py`` has the table of the fields, and the same numbers for Python. A test compares the two.
"""

cdef enum:
    MAGIC = 2
    MAGIC_POSITION = 16
    CRC_START = 21
    HEADER_SIZE = 61
    # What a batch's size field leaves out: the base offset and itself.
    LOG_OVERHEAD = 12
    ATTRIBUTE_CODEC = 0x07
    ATTRIBUTE_LOG_APPEND_TIME = 0x08
    ATTRIBUTE_TRANSACTIONAL = 0x10
    ATTRIBUTE_CONTROL = 0x20
    ATTRIBUTE_DELETE_HORIZON = 0x40
    # length, attributes, two deltas, two null or empty fields, header count: one byte each.
    RECORD_SIZE_MIN = 7
