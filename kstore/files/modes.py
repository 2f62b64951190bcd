"""The owner and the mode of a file: for a handover to a broker that runs as another user."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from kstore.errors import PathLike
from kstore.files.fs import storage_error


class Access(NamedTuple):
    """The owner, the group and the mode bits of a file."""

    uid: int
    gid: int
    mode: int

    def lets(self, uid: int, gid: int) -> bool:
        """Whether the user with this group may read and write; ignores the user's other groups."""
        if uid in (0, self.uid):
            return uid == 0 or self.mode & 0o600 == 0o600
        shift = 3 if gid == self.gid else 0
        return self.mode >> shift & 0o6 == 0o6


def access(path: PathLike) -> Access:
    """The access of the file named ``path``, even if it is a link. Raises: FileMissingError, StorageError."""
    try:
        found = os.lstat(path)
    except OSError as error:
        raise storage_error(error, path) from error
    return Access(found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))


def set_mode(path: PathLike, mode: int) -> None:
    """Raises: ReadOnlyError if another user owns the file; StorageError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
    except OSError as error:
        raise storage_error(error, path, writing=True) from error
