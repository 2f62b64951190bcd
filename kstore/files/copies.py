"""Bytes from one open file to another, copied by the kernel if both are on this machine's disks.

That takes half the time of reading and writing them, and on file systems that share blocks (btrfs, XFS) none.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from kstore.errors import TruncatedFileError
from kstore.files.fs import File, storage_error
from kstore.files.local import OsFile
from kstore.record.crc import crc32c

PIECE_BYTES = 1 << 20
# What a kernel, or a pair of file systems, answers if it cannot copy; then the bytes are read and written.
UNSUPPORTED_ERRNOS = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM, errno.ETXTBSY}
)


class FileRange(NamedTuple):
    """``size`` bytes of an open file, from ``position`` on."""

    file: File
    position: int
    size: int

    def pieces(self, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[int, bytes]]:
        """(position, bytes) of each piece. Raises: TruncatedFileError if the file ends before; StorageError."""
        stop = self.position + self.size
        for position in range(self.position, stop, piece_bytes):
            data = self.file.pread(min(piece_bytes, stop - position), position)
            if len(data) != min(piece_bytes, stop - position):
                raise TruncatedFileError(errno.EAGAIN, f"it ends before {stop} bytes", self.file.path)
            yield position, data


def copy_range(source: FileRange, target: File) -> None:
    """Copies the bytes to the same position. Raises: TruncatedFileError, DiskFullError, StorageError."""
    file, position, size = source
    if isinstance(file, OsFile) and isinstance(target, OsFile) and hasattr(os, "copy_file_range"):
        position = _in_kernel(file, target, position, position + size)
    rest = FileRange(file, position, source.position + size - position)
    for at, data in rest.pieces():
        target.write_all([data], at)


def _in_kernel(source: OsFile, target: OsFile, position: int, stop: int) -> int:
    """Copies as far as the kernel can; returns the position that it has reached."""
    while position < stop:
        try:
            count = os.copy_file_range(source.fileno(), target.fileno(), stop - position, position, position)
        except OSError as error:
            if error.errno in UNSUPPORTED_ERRNOS:
                return position
            raise storage_error(error, target.path, writing=True) from error
        if not count:
            return position  # the source ends, or its file system cannot say
        position += count
    return position


def crc_of(source: FileRange, crc: int = 0) -> int:
    """The CRC-32C of the bytes; ``crc`` covers those before them. Raises: TruncatedFileError, StorageError."""
    for _, data in source.pieces():
        crc = crc32c(data, crc)
    return crc
