"""Rebuilds lost and damaged indexes of an open log, each at the first lookup that needs it.

The segment is scanned outside the log's lock, once however many threads wait for the result, which is used from memory
at once. A writable log then replaces the old files under its lock, if the segment is still the same. A log that cannot,
because it is read-only or the disk is full, keeps up to ``KEPT_BYTES_MAX`` in memory.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kstore.engine.segments import LogSegments
from kstore.errors import CorruptDataError, StorageError
from kstore.files._locks import OwnedLock
from kstore.files.checkpoint import replace_file
from kstore.files.fs import File, read_file
from kstore.files.handles import MEMORY_BYTES_MAX
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from kstore.index import OffsetIndex, TimeIndex
from kstore.indexes.rebuild import IndexBuilder, RebuiltIndexes
from kstore.record.walk import walk_runs
from kstore.scan.visits import visit
from kstore.segment import LogSegment
from kstore.types import OFFSET_MAX

logger = logging.getLogger(__name__)

# Together with the indexes in the log's cache of handles: 64 MiB, the offsets of 32 GiB of log.
KEPT_BYTES_MAX = (64 << 20) - MEMORY_BYTES_MAX


class ScannedSegment(NamedTuple):
    """The result of scanning one segment, and the segment's identity: the inode and size of its ``.log``.

    ``replaced`` has the new content of each file that is missing or wrong, by suffix; ``found`` the old one, or None.
    """

    inode: int
    size: int
    rebuilt: RebuiltIndexes
    replaced: Mapping[str, bytes]
    found: Mapping[str, bytes | None]


class IndexOwner(Protocol):
    """The log whose indexes are repaired: a writer or a view, which are built on this module and cannot be imported
    here."""

    @property
    def segments(self) -> LogSegments: ...

    def repairs_index_of(self, segment: LogSegment) -> bool:
        """Whether no append writes to the segment's indexes."""
        ...

    def write_indexes(self, segment: LogSegment, scanned: ScannedSegment, cut_count: int) -> bool:
        """Replaces the old files by the rebuilt ones; False if they must stay in memory. Never raises a KstoreError:
        the lookup continues."""
        ...

    @property
    def cut_count(self) -> int:
        """Changes whenever a segment may have been cut."""
        ...


class IndexRepairs:
    """The repairs of one open log. Thread-safe; never called under the log's lock, which a repair may take."""

    def __init__(self) -> None:
        self._owner: IndexOwner | None = None
        # One scan at a time; the lock has no other purpose.
        self._scanning = OwnedLock()
        self._lock = OwnedLock()
        # Guarded by ``_lock``; the least recently rebuilt comes first.
        self._kept: OrderedDict[LogSegment, dict[str, OffsetIndex | TimeIndex]] = OrderedDict()
        self._kept_bytes = 0

    def serve(self, owner: IndexOwner) -> None:
        """Enables repairs for ``owner``."""
        self._owner = owner

    @property
    def kept_bytes(self) -> int:
        """Bytes of rebuilt indexes that are kept in memory."""
        return self._kept_bytes

    def kept(self, segment: LogSegment, suffix: str) -> OffsetIndex | TimeIndex | None:
        """The rebuilt index of a segment, if it is kept in memory."""
        with self._lock:
            return self._kept.get(segment, {}).get(suffix)

    def forget(self, segment: LogSegment) -> None:
        """Drops a segment that has changed, after its ``change_count`` shows that."""
        with self._lock:
            segment.is_examined = False  # first: an interrupt may come before the next step
            self._drop(segment)

    def repair(self, segment: LogSegment) -> bool:
        """Checks the indexes of ``segment`` against its batches; rebuilds what is missing or wrong.

        False if that is impossible: the caller walks without them. Raises: StorageError if the ``.log`` cannot be read.
        """
        owner = self._owner
        if owner is None or not owner.repairs_index_of(segment):
            return False
        with self._scanning:
            if segment.is_examined:
                return True  # another thread has done it
            cut_count, change_count = owner.cut_count, segment.change_count
            following = owner.segments.higher(segment.base_offset)
            scanned = scan_segment(segment, following.base_offset if following is not None else OFFSET_MAX)
            if scanned.replaced and not _has_same_files(segment, scanned):
                return False
            self._keep(segment, scanned, change_count)
        if scanned.replaced:
            written = owner.write_indexes(segment, scanned, cut_count)
            logger.warning(
                "%s: missing or wrong (%s): rebuilt%s",
                segment.path(LOG_SUFFIX),
                ", ".join(sorted(scanned.replaced)),
                "" if written else " in memory",
            )
            if written:
                with self._lock:
                    self._drop(segment)  # the files have it
        return True

    def _keep(self, segment: LogSegment, scanned: ScannedSegment, change_count: int) -> None:
        indexes: dict[str, OffsetIndex | TimeIndex] = {}
        for kind in (OffsetIndex, TimeIndex):
            data = scanned.replaced.get(kind.suffix)
            if data is not None:
                indexes[kind.suffix] = kind.from_bytes(data, segment.base_offset, path=segment.path(kind.suffix))
        with self._lock:
            if segment.change_count != change_count:
                return  # written to, cut or replaced since: the next lookup checks again
            self._drop(segment)
            if indexes:
                self._kept[segment] = indexes
                self._kept_bytes += sum(index.memory_bytes for index in indexes.values())
            # Only now: after an interrupt before it, the next lookup rebuilds them again.
            segment.examined(scanned.rebuilt, scanned.size)
            while self._kept_bytes > KEPT_BYTES_MAX:
                evicted = next(iter(self._kept))
                evicted.is_examined = False
                self._drop(evicted)

    def _drop(self, segment: LogSegment) -> None:
        indexes = self._kept.pop(segment, None)
        if indexes is not None:
            self._kept_bytes -= sum(index.memory_bytes for index in indexes.values())


def scan_segment(segment: LogSegment, offset_stop: int) -> ScannedSegment:
    """Builds both indexes of a sealed segment, and checks the old ones against its batches; changes nothing.

    Offsets at or above ``offset_stop`` belong to the next segment. Raises: StorageError.
    """
    file = segment.log_file()
    stat = file.stat()
    old = {suffix: _content(segment, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)}
    builder = IndexBuilder(
        segment.base_offset,
        index_interval_bytes=segment.context.config.index_interval_bytes,
        old_offsets=old[INDEX_SUFFIX],
        old_times=old[TIME_INDEX_SUFFIX],
    )
    hints = OffsetIndex.from_bytes(old[INDEX_SUFFIX] or b"", segment.base_offset, live=True)
    rebuilt = built_indexes(
        builder,
        file,
        stat.size,
        segment.base_offset,
        offset_stop,
        # After damage the scan must find the batches that readers find, which use these hints too.
        hints=lambda: [entry.position for entry in hints.entries()],
    )
    replaced = {}
    if not rebuilt.has_sound_offsets:
        replaced[INDEX_SUFFIX] = rebuilt.offsets
    if not rebuilt.has_sound_times:
        replaced[TIME_INDEX_SUFFIX] = rebuilt.times
    found = {suffix: old[suffix] for suffix in replaced}
    return ScannedSegment(stat.inode, stat.size, rebuilt, replaced, found)


def _has_same_files(segment: LogSegment, scanned: ScannedSegment) -> bool:
    """Whether the files are those that were scanned. A cleaner replaces them one by one, and leaves a ``.log`` next to
    the indexes of another one for a moment: that is no damage."""
    try:
        stat = segment.context.fs.stat(segment.path(LOG_SUFFIX))
    except StorageError:
        return False
    if stat.inode != scanned.inode:
        return False
    return all(_content(segment, suffix) == content for suffix, content in scanned.found.items())


def built_indexes(
    builder: IndexBuilder,
    file: File,
    size: int,
    base_offset: int,
    offset_stop: int = OFFSET_MAX,
    hints: Callable[[], Sequence[int]] = tuple,
) -> RebuiltIndexes:
    """What ``builder`` makes of the first ``size`` bytes of a ``.log``; ``hints`` as for ``walk``. Raises:
    StorageError."""
    walked = walk_runs(file, 0, size, next_offset=base_offset, offset_stop=offset_stop, hints=hints)
    visit(walked, builder, base_offset=base_offset)
    return builder.finish()


def replace_indexes(segment: LogSegment, scanned: ScannedSegment) -> bool:
    """Replaces the index files of ``segment`` if its ``.log`` is the one that was scanned. Needs the log's lock.

    Raises: StorageError; each file is then the old or the new one.
    """
    fs = segment.context.fs
    stat = fs.stat(segment.path(LOG_SUFFIX))
    if segment.tail is not None or (stat.inode, stat.size) != (scanned.inode, scanned.size):
        return False
    for suffix, data in scanned.replaced.items():
        replace_file(fs, segment.path(suffix), data, mode=segment.context.config.file_mode)
    return True


def _content(segment: LogSegment, suffix: str) -> bytes | None:
    """The bytes of an index file, or None."""
    try:
        return read_file(segment.context.fs, segment.path(suffix))
    except (StorageError, CorruptDataError):
        return None
