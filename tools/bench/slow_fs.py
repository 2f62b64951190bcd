"""A file system whose syncs take longer by a given time: a slow disk on a fast one."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kstore.errors import PathLike
from kstore.files import platform
from kstore.files.local import OsFile, OsFileSystem

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SlowSyncFile(OsFile):
    """A file whose syncs sleep, without the interpreter's lock, like a wait for a disk."""

    __slots__ = ("_seconds",)

    def __init__(self, fd: int, path: str, seconds: float) -> None:
        super().__init__(fd, path)
        self._seconds = seconds

    def write_and_sync(self, buffers: Sequence[Buffer], position: int) -> None:
        super().write_and_sync(buffers, position)
        if platform.DSYNC_FLAG:
            time.sleep(self._seconds)
        # If a write cannot be durable itself, an fdatasync followed it, and slept.

    def fdatasync(self) -> None:
        super().fdatasync()
        time.sleep(self._seconds)

    def fsync(self) -> None:
        super().fsync()
        time.sleep(self._seconds)


class SlowSyncFs(OsFileSystem):
    """This machine's file system, with ``seconds`` more for each sync of a file."""

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> OsFile:
        file = super().open(path, write=write, create=create, mode=mode)
        slow = SlowSyncFile(os.dup(file.fileno()), file.path, self._seconds)
        file.close()
        return slow
