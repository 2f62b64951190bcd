"""What compiled code may do with a file of this system without a Python call in between."""

from libc.stdint cimport int64_t

# The descriptor of ``file``, or -1 if it is not a file of this system, and open.
cdef int descriptor_of(object file) except -2
# Whether a sync of ``file``, or of a write to it, has failed, also if an interrupt has replaced its error.
cdef bint has_failed_sync(object file) except -1
# Writes ``data`` into the page cache; False, and nothing of it is in the file, if the system takes less. ``position`` is
# the file's end.
cdef bint write_whole(int fd, const char* data, Py_ssize_t size, int64_t position) noexcept nogil
# Writes ``data`` so that it is on disk, and returns 0. -1: nothing of it is in the file, because the system takes less or
# refuses it. Else it was written, and its sync failed with the error that is returned. ``position`` is the file's end.
cdef int write_synced(int fd, const char* data, Py_ssize_t size, int64_t position) noexcept nogil
