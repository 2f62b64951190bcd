"""The second look at a segment that seems damaged: another program may have replaced its files while they were read.

A broker's cleaner, or kstore's in another process, gives the names of segments to other files. One file compared with
the replacement of another looks damaged. So the files are examined before and after: if they, or the segment that
follows, were replaced meanwhile, the findings mean nothing, and the segment is read again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple, TypeVar

from kstore.errors import CorruptDataError, FileMissingError
from kstore.files.fs import FileSystem
from kstore.files.paths import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    classify,
    segment_name,
)

__all__ = ["TRIES_MAX", "Sight", "look", "read_settled", "settled_bases"]

Result = TypeVar("Result")

# A segment that is another one at each of this many tries is reported as it was found.
TRIES_MAX = 10
# A swap takes milliseconds; one that does not end was left by a crash.
SWAP_SECONDS_MAX = 1.0
PAUSE_SECONDS = 0.002

SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class Sight(NamedTuple):
    """The files of a segment at one moment, None for a missing one, and where the next segment starts."""

    files: tuple[tuple[int, ...] | None, ...]
    following: int


def look(fs: FileSystem, directory: Path, base_offset: int, following: int, *, is_last: bool) -> Sight:
    """``is_last``: a writer may be writing to it, so its files may grow. Raises: StorageError."""
    found: list[tuple[int, ...] | None] = []
    for suffix in SUFFIXES:
        try:
            stat = fs.stat(directory / segment_name(base_offset, suffix))
        except FileMissingError:
            found.append(None)
        else:
            found.append((stat.inode,) if is_last else (stat.inode, stat.size, stat.mtime_ns))
    return Sight(tuple(found), following)


def settled_bases(fs: FileSystem, directory: Path, *, is_live: bool) -> list[int]:
    """The base offsets of the segments; waits until a swap is over if a writer ``is_live``. Raises: StorageError."""
    names = classify(fs.list(directory))
    if is_live:
        deadline = monotonic() + SWAP_SECONDS_MAX
        while any(name.state == SWAP_SUFFIX for name in names.unfinished) and monotonic() < deadline:
            sleep(PAUSE_SECONDS)
            names = classify(fs.list(directory))
    return names.bases[LOG_SUFFIX]


def read_settled(read: Callable[[], Result], is_live: bool) -> Result:
    """What ``read`` returns; of a file that a writer may be writing, once it is whole. Raises: as ``read``."""
    for _ in range(TRIES_MAX if is_live else 0):
        try:
            return read()
        except CorruptDataError:
            sleep(PAUSE_SECONDS)
    return read()
