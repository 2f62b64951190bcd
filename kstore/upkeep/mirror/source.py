"""What a mirror copies of one log: its segments and small files, at one moment, up to the readable end.

A live local log is read as every reader reads it: up to its high watermark, without a lock. A log in an object store
has no writer, so all of its segments count as sealed.
"""

from __future__ import annotations

from typing import NamedTuple

from kstore.engine.view import LogView
from kstore.files.fs import File, FileStat
from kstore.files.paths import (
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    classify,
    segment_name,
)
from kstore.files.remote import Location
from kstore.rules.mirror import SegmentFile
from kstore.segment import SegmentContext
from kstore.segments.pin import FilePin
from kstore.types import OFFSET_MAX

# In the order in which they are copied, before the ``.log``.
INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
SMALL_FILES = (LEADER_EPOCHS, PARTITION_METADATA)
TXN_ENTRY_SIZE = 34
OPEN_FILES_MAX = 8


class NamedFile(NamedTuple):
    """A file that is copied whole: its name, size and time."""

    name: str
    size: int
    mtime_ns: int


class SourceLog:
    """One log, examined once. ``segments`` end with the active one, cut to the high watermark, or omit it."""

    def __init__(self, at: Location, *, with_active: bool) -> None:
        """Raises: LogNotFoundError, NotALogError, StorageError; FileMissingError if retention was faster."""
        self.at = at
        view = LogView(SegmentContext.alone(at.reading, at.path, open_files_max=OPEN_FILES_MAX))
        self._view = view
        self._cut_count = view.cut_count
        self.start_offset = view.ends.start_offset
        self.end_offset = view.ends.high_watermark
        self.losses = view.losses
        self._stats = at.fs.list_stats(at.path)
        self._names = classify(self._stats)
        self.segments = self._segments()
        self.active_left_out = False
        if not with_active and self.segments and not self.segments[-1].sealed:
            self.end_offset = self.segments.pop().base_offset
            self.active_left_out = True
        self.losses = self.losses.within(self.start_offset, self.end_offset)

    def _segments(self) -> list[SegmentFile]:
        view = self._view
        bases = [base for base in view.segments.bases if base <= self.end_offset]
        found = []
        for base in bases:
            stat = self._stats.get(segment_name(base, LOG_SUFFIX)) or self.at.fs.stat(self.path(base, LOG_SUFFIX))
            found.append(SegmentFile(base, stat.size, stat.mtime_ns))
        if found and self.at.local is not None:
            base = bases[-1]
            found[-1] = SegmentFile(base, self._readable_size(base), found[-1].mtime_ns, sealed=False)
        return found

    def _readable_size(self, base: int) -> int:
        """Bytes of the last segment that are below the high watermark."""
        ends = self._view.ends
        segment = self._view.segments.floor(base)
        assert segment is not None
        limit = ends.limit_of(segment)
        if ends.high_watermark == ends.end_offset:
            return limit
        batch = segment.batch_at(ends.high_watermark, limit)
        return limit if batch is None else batch.position

    @property
    def closed(self) -> bool:
        """Whether no writer is open and the log was closed cleanly, so that the last indexes are whole too."""
        return self._view.report.clean

    def was_cut(self) -> bool:
        """Whether the log was cut, or segments of it replaced, since it was examined. Raises: StorageError."""
        if self.at.local is None:
            return False  # only sealed segments are there, which nothing replaces in place
        self._view.settle()
        return self._view.cut_count != self._cut_count

    def path(self, base_offset: int, suffix: str) -> str:
        return f"{self.at.path}/{segment_name(base_offset, suffix)}"

    def open(self, name: str) -> File:
        """Raises: FileMissingError, also if the name is another file's than when the log was examined, as after a
        broker has compacted the segment: its size would be applied to the wrong file."""
        opened = self.at.fs.open(f"{self.at.path}/{name}")
        listed = self._stats.get(name)
        if listed is not None and name.endswith(LOG_SUFFIX):
            pin = FilePin()
            pin.hold(listed, opened.path)
            pin.hold(opened.stat(), opened.path)
        return opened

    def indexes(self, segment: SegmentFile) -> list[NamedFile]:
        """The files that accompany a segment. For an active one only the aborted transactions, which a reader of the
        copy needs; recovery builds the rest."""
        found = []
        for suffix in INDEXES:
            stat = self._stats.get(name := segment_name(segment.base_offset, suffix))
            if stat is None:
                continue
            if segment.sealed or self.closed:
                found.append(NamedFile(name, stat.size, stat.mtime_ns))
            elif suffix == TXN_INDEX_SUFFIX:
                # Its writer may be adding an entry.
                found.append(NamedFile(name, stat.size // TXN_ENTRY_SIZE * TXN_ENTRY_SIZE, 0))
        return found

    def snapshots(self) -> list[NamedFile]:
        """The producers' snapshots within the copied part."""
        names = self._names.bases[SNAPSHOT_SUFFIX]
        return [self._named(segment_name(at, SNAPSHOT_SUFFIX)) for at in names if at <= self.end_offset]

    def small_files(self) -> list[NamedFile]:
        return [self._named(name) for name in SMALL_FILES if name in self._stats]

    def _named(self, name: str) -> NamedFile:
        stat: FileStat = self._stats[name]
        return NamedFile(name, stat.size, stat.mtime_ns)

    def position_of(self, base_offset: int, offset: int, size: int) -> int:
        """Where in a segment of ``size`` bytes the batch of ``offset`` starts, or would; found through the index."""
        segment = self._view.segments.floor(base_offset)
        assert segment is not None
        return segment.locate(offset, size).position

    def offset_stop(self, base_offset: int) -> int:
        """The start of the next segment: batches of this one end below it."""
        following = self._view.segments.higher(base_offset)
        return following.base_offset if following is not None else OFFSET_MAX

    def close(self) -> None:
        self._view.close()
