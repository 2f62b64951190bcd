# cython: language_level=3, binding=False
"""The calls that compiled code makes itself, for a file of this system: two writes, and a look at its name.

A file of any other file system has no descriptor here, as in tests, which record and fail every operation: what is
written to it goes through ``File``. So does what the system refuses: ``File`` then says why.
"""

from libc.errno cimport errno

from kstore.files.local import OsFile
from kstore.files.unmapped import UnmappedFile

cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(object text)

cdef extern from "<unistd.h>" nogil:
    ctypedef long long off_t
    Py_ssize_t pwrite(int fd, const void* data, size_t size, off_t position)
    int ftruncate(int fd, off_t size)
    off_t lseek(int fd, off_t position, int whence)
    int SEEK_END

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/uio.h>

    static Py_ssize_t kstore_write_synced(int fd, const void *data, size_t size, long long position) {
    #ifdef RWF_DSYNC
        struct iovec all = {(void *)data, size};
        return pwritev2(fd, &all, 1, position, RWF_DSYNC);
    #else
        errno = ENOTSUP;
        return -1;
    #endif
    }
    """
    Py_ssize_t pwrite_synced "kstore_write_synced"(int fd, const void* data, size_t size, off_t position) nogil


cdef int descriptor_of(object file) except -2:
    if type(file) is UnmappedFile:
        file = file.file
    return file._fd if type(file) is OsFile else -1


cdef extern from *:
    """
    #include <fcntl.h>
    #include <sys/stat.h>

    static long long kstore_inode_of(const char *path) {
        struct stat found;
        return lstat(path, &found) == 0 ? (long long)found.st_ino : -1;
    }
    """
    long long inode_of "kstore_inode_of"(const char* path) nogil


def is_named(file, inode):
    """Whether the name of ``file`` stands for ``inode``, in a third of the time of ``FileSystem.stat``.

    False also for a file of another file system, and if the name stands for nothing or cannot be looked up.
    """
    cdef bytes path
    cdef const char* at
    cdef long long found
    if type(file) is UnmappedFile:
        file = file.file
    if type(file) is not OsFile:
        return False
    path = PyUnicode_EncodeFSDefault(file.path)
    at = path
    with nogil:
        found = inode_of(at)
    return found >= 0 and found == inode


cdef bint has_failed_sync(object file) except -1:
    if type(file) is UnmappedFile:
        file = file.file
    return type(file) is OsFile and file._has_failed_sync


cdef bint write_whole(int fd, const char* data, Py_ssize_t size, int64_t position) noexcept nogil:
    cdef Py_ssize_t written = pwrite(fd, data, size, position)
    if 0 <= written < size:
        # In here: an interrupt, or another error, may come before the caller can cut it.
        ftruncate(fd, position)
    return written == size


cdef int write_synced(int fd, const char* data, Py_ssize_t size, int64_t position) noexcept nogil:
    cdef Py_ssize_t written = pwrite_synced(fd, data, size, position)
    cdef int code = errno
    if written == size:
        return 0
    if written >= 0:
        ftruncate(fd, position)
        return -1
    # A failed write adds no byte. If only the sync fails, the file has grown.
    return -1 if 0 <= lseek(fd, 0, SEEK_END) <= position else code
