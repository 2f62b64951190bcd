"""What a path on the command line stands for: a segment file, a log, or a directory of logs."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NamedTuple

from kstore.errors import FileMissingError, LogNotFoundError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX
from kstore.files.stray import StrayFs
from kstore.log import Log
from kstore.upkeep.verify import find_logs

__all__ = ["LogPlace", "log_bytes", "log_places", "open_place"]


class LogPlace(NamedTuple):
    """A log, and the file system that shows it."""

    path: Path
    fs: FileSystem

    @property
    def is_stray(self) -> bool:
        """Whether it is a segment file by itself."""
        return isinstance(self.fs, StrayFs)


def log_places(path: str) -> list[LogPlace]:
    """The logs that ``path`` stands for, by name.

    Raises: LogNotFoundError for a path that does not exist, NotALogError for anything else; StorageError.
    """
    place = Path(path)
    if place.is_file():
        return [LogPlace(place, StrayFs(place, SYSTEM_FS))]
    try:
        return [LogPlace(log, SYSTEM_FS) for log in find_logs(place)]
    except FileMissingError:
        if place.exists():
            raise
        raise LogNotFoundError(errno.ENOENT, "no such file or directory", path) from None


def open_place(place: LogPlace) -> Log:
    """The log for reading. Raises: as ``Log``."""
    return Log(place.path, read_only=True, fs=place.fs)


def log_bytes(log: Path) -> int:
    """Bytes of the log's segments; one that disappears meanwhile counts as 0."""
    size = 0
    for path in [log] if log.is_file() else log.glob(f"*{LOG_SUFFIX}"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            pass
    return size
