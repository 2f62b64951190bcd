"""The second look at a segment that seems damaged: another program may have replaced its files while they were read.

A broker's cleaner, or kstore's in another process, gives the names of segments to other files. One file compared with
the replacement of another looks damaged. So the files are examined before and after: if they, or the segment that
follows, were replaced meanwhile, the findings mean nothing, and the segment is read again. A truncation leaves the last
segment's file in place; kstore gives the log's record a new generation before it, though for other reasons too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple, TypeVar

from kstore.archive.view import BackupFs
from kstore.engine.open.swap import finish_swaps
from kstore.errors import CorruptDataError, FileMissingError, LockedError, StorageError, UnsupportedFormatError
from kstore.files.fs import FileSystem
from kstore.files.log_lock import probe_log
from kstore.files.overlay import OverlayFs
from kstore.files.paths import (
    INDEX_SUFFIX,
    KSTORE_STATE,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    DirectoryNames,
    classify,
    segment_name,
)
from kstore.files.remote import RemoteFiles
from kstore.segment import SegmentContext
from kstore.state.log_state import read_state
from kstore.types import OFFSET_MAX

Result = TypeVar("Result")

# A segment that is another one at each of this many tries is reported as it was found.
TRIES_MAX = 10
# A swap takes milliseconds; one that does not end was left by a crash.
SWAP_SECONDS_MAX = 1.0
PAUSE_SECONDS = 0.002

SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class Sight(NamedTuple):
    """The files of a segment at one moment, None for a missing one, and where the next segment starts.

    ``generation`` is the one of the log's record, for the last segment.
    """

    files: tuple[tuple[int, ...] | None, ...]
    following: int
    generation: int = -1

    def has_same_files(self, other: Sight) -> bool:
        return self._replace(generation=-1) == other._replace(generation=-1)


def is_live(fs: FileSystem, directory: Path) -> bool:
    """Whether kstore or a broker has a partition's directory open for writing, as far as can be known."""
    if isinstance(fs, RemoteFiles | BackupFs):
        return False  # nothing is locked there, and the same path on this machine is another file
    try:
        probe_log(directory)
    except LockedError:
        return True
    except StorageError:
        pass  # the locks are out of reach
    return False


def look(fs: FileSystem, directory: Path, base_offset: int, following: int, *, may_grow: bool = True) -> Sight:
    """The segment before the one at ``following``. A writer may be writing to the last one: unless ``may_grow`` is
    False, only which files it has counts, and not their sizes and times. Raises: StorageError."""
    is_last = may_grow and following == OFFSET_MAX
    found: list[tuple[int, ...] | None] = []
    for suffix in SUFFIXES:
        try:
            stat = fs.stat(directory / segment_name(base_offset, suffix))
        except FileMissingError:
            found.append(None)
        else:
            found.append((stat.inode,) if is_last else (stat.inode, stat.size, stat.mtime_ns))
    return Sight(tuple(found), following, generation_of(fs, directory) if is_last else -1)


def generation_of(fs: FileSystem, directory: Path) -> int:
    """The generation of the log's ``kstore.state``; -1 if it has none that can be read."""
    try:
        state = read_state(fs, directory / KSTORE_STATE)
    except (StorageError, UnsupportedFormatError):
        return -1
    return -1 if state is None else state.generation


def look_again(fs: FileSystem, directory: Path, base_offset: int, bases: Sequence[int]) -> Sight | None:
    """The segment as it is now; None if it is not among the present ones, ``bases``. Raises: StorageError."""
    at = bisect_right(bases, base_offset)
    if not at or bases[at - 1] != base_offset:
        return None
    return look(fs, directory, base_offset, bases[at] if at < len(bases) else OFFSET_MAX)


def has_changed(fs: FileSystem, directory: Path, before: Sight, base_offset: int, bases: Sequence[int]) -> bool:
    """Whether a segment, of which ``bases`` are the present ones, is no longer the one that was seen ``before``."""
    return look_again(fs, directory, base_offset, bases) != before


def settled_bases(fs: FileSystem, directory: Path, *, waits: bool = True) -> list[int]:
    """The base offsets of the segments; ``waits`` until a swap is over if a writer is at work. Raises: StorageError."""
    names = classify(fs.list(directory))
    if waits and _has_swap(names) and is_live(fs, directory):
        deadline = monotonic() + SWAP_SECONDS_MAX
        while _has_swap(names) and monotonic() < deadline:
            sleep(PAUSE_SECONDS)
            names = classify(fs.list(directory))
    return names.bases[LOG_SUFFIX]


def _has_swap(names: DirectoryNames) -> bool:
    return any(name.state == SWAP_SUFFIX for name in names.unfinished)


def with_swaps_ended(fs: FileSystem, directory: Path) -> FileSystem:
    """``fs`` as the next open of the log will leave it: compactions that a crash has interrupted after their commit are
    in place, others are undone. Nothing is changed. ``fs`` itself if nothing was interrupted. Raises: StorageError."""
    names = classify(fs.list(directory))
    if not _has_swap(names):
        return fs
    overlay = OverlayFs(fs)
    finish_swaps(SegmentContext.alone(overlay, directory), names)
    return overlay


def read_settled(read: Callable[[], Result], is_live: bool) -> Result:
    """What ``read`` returns; of a file that a writer may be writing, once it is whole. Raises: as ``read``."""
    for _ in range(TRIES_MAX if is_live else 0):
        try:
            return read()
        except CorruptDataError:
            sleep(PAUSE_SECONDS)
    return read()
