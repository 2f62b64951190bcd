"""A blocking lock on a file: exclusive, or shared. The system frees it when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

from kstore.errors import PathLike
from kstore.files._locks import block
from kstore.files.fs import storage_error


@block
def file_locked(path: PathLike, *, shared: bool, mode: int = 0o600) -> Iterator[None]:
    """Holds the lock of ``path``, which is created with ``mode`` if missing; also excludes other threads.

    Raises: StorageError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags, mode)
    except OSError as error:
        raise storage_error(error, path, writing=True) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError as error:
            raise storage_error(error, path) from error
        try:
            yield
        finally:
            # Explicitly, not only by a close: a process forked in the meantime has a copy of the descriptor.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)
