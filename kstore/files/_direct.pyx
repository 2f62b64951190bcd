# cython: language_level=3, binding=False
"""The one write that compiled code makes itself, to a file of this system.

A file of any other file system has no descriptor here, as in tests, which record and fail every operation: what is
written to it goes through ``File``. So does what the system refuses: ``File`` then says why.
"""

from kstore.files.local import OsFile
from kstore.files.unmapped import UnmappedFile

cdef extern from "<unistd.h>" nogil:
    ctypedef long long off_t
    Py_ssize_t pwrite(int fd, const void* data, size_t size, off_t position)
    int ftruncate(int fd, off_t size)


cdef int descriptor_of(object file) except -2:
    if type(file) is UnmappedFile:
        file = file.file
    return file._fd if type(file) is OsFile else -1


cdef bint write_whole(int fd, const char* data, Py_ssize_t size, int64_t position) noexcept nogil:
    cdef Py_ssize_t written = pwrite(fd, data, size, position)
    if 0 <= written < size:
        # In here: an interrupt, or another error, may come before the caller can cut it.
        ftruncate(fd, position)
    return written == size
