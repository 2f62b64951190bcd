"""A segment's bytes from some position on: its batches, what its indexes say of them, and damage.

A page never reads the whole of a large segment. It starts at an index entry that its batch confirms, and ends after
some batches or some bytes. The search for a batch after damage is bounded too: the next page continues where it ends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kstore.errors import CorruptDataError
from kstore.files.fs import File, FileSystem
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from kstore.index import OffsetIndex, TimeIndex
from kstore.indexes.entry_index import INDEX_FAILURES
from kstore.record.batch import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, Batch
from kstore.record.headers import READ_BATCH_BYTES_MAX
from kstore.record.parse import entry_size, parse_batch
from kstore.record.walk import Damage, walk
from kstore.types import OFFSET_MAX
from kstore.upkeep.verify.changing import is_live
from kstore.upkeep.verify.partition import LogHead

# A page ends after this many batches, or after a batch that reaches this many bytes.
BATCHES_MAX = 100
WINDOW_BYTES = 4 << 20
# How far before a position the walk to it may begin; the indexes of a sound segment have an entry every few KiB.
SEEK_BYTES = 4 << 20
# How far a page searches, unless it begins with a larger batch. Garbage is searched at some 25 MB/s.
SEARCH_BYTES = 16 << 20
# Where a search has ended in damage, the next page begins this much earlier: a batch may reach across the border.
OVERLAP_BYTES = 1 << 20
SMALL_CHUNK_BYTES = 64 << 10
# The most on one page. A damaged index may have any number.
ENTRIES_MAX = 2000


class Entry(NamedTuple):
    """An entry of an index: ``slot`` is its place in the file, ``value`` a position or a timestamp."""

    slot: int
    offset: int
    value: int


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one index of a segment as far as they rise; ``problem`` says why there are not more, or is empty.

    ``values`` are the positions of an offset index, the timestamps of a time index. A large segment has some 100,000.
    """

    base_offset: int
    deltas: array[int]
    values: array[int]
    problem: str = ""

    def __len__(self) -> int:
        return len(self.deltas)

    def entry(self, slot: int) -> Entry:
        return Entry(slot, self.base_offset + self.deltas[slot], self.values[slot])

    def before(self, value: int) -> list[Entry]:
        """The last two entries up to ``value``, the nearest one first."""
        slot = bisect_right(self.values, value)
        return [self.entry(at) for at in range(slot - 1, max(slot - 3, -1), -1)]

    def with_values(self, start: int, stop: int) -> list[Entry]:
        """The entries with values from ``start`` on and below ``stop``."""
        return self._some(bisect_left(self.values, start), bisect_left(self.values, stop))

    def with_offsets(self, first: int, last: int) -> list[Entry]:
        """The entries of offsets ``first`` to ``last``."""
        base = self.base_offset
        return self._some(bisect_left(self.deltas, first - base), bisect_right(self.deltas, last - base))

    def sampled(self, count: int) -> list[Entry]:
        """At most ``count`` entries, from everywhere."""
        step = max(-(-len(self) // count), 1)
        return [self.entry(slot) for slot in range(0, len(self), step)]

    def _some(self, start: int, stop: int) -> list[Entry]:
        return [self.entry(slot) for slot in range(start, min(stop, start + ENTRIES_MAX))]


@dataclass(slots=True)
class Window:
    """What lies from position ``start`` to ``stop``. ``next_position`` is None at the segment's end.

    ``is_open``: the last damage may reach further than this page has searched.
    """

    start: int
    stop: int = 0
    batches: list[tuple[int, Batch]] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    next_position: int | None = None
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment at one moment; offsets at or above ``offset_stop`` belong to the next one.

    ``is_live``: it is the last one, and a writer may be writing to it.
    """

    fs: FileSystem
    directory: Path
    base_offset: int
    offset_stop: int
    is_live: bool
    known_end: int
    file: File
    size: int

    @property
    def is_last(self) -> bool:
        return self.offset_stop == OFFSET_MAX

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        return f"{self.directory}/{segment_name(self.base_offset, suffix)}"

    def offset_entries(self) -> Entries:
        """The entries of the offset index."""
        try:
            index = OffsetIndex.open_read_only(self.fs, self.path(INDEX_SUFFIX), self.base_offset, live=True)
            rows = index.rows()
        except INDEX_FAILURES as error:
            return self._no_entries(error)
        return Entries(self.base_offset, rows[::2], rows[1::2], _disorder(len(rows) // 2, index.entry_count))

    def time_entries(self) -> Entries:
        """The entries of the time index."""
        try:
            index = TimeIndex.open_read_only(self.fs, self.path(TIME_INDEX_SUFFIX), self.base_offset, live=True)
            rows = index.rows()
        except INDEX_FAILURES as error:
            return self._no_entries(error)
        return Entries(self.base_offset, rows[1::2], rows[::2], _disorder(len(rows) // 2, index.entry_count))

    def _no_entries(self, error: Exception) -> Entries:
        return Entries(self.base_offset, array("q"), array("q"), f"cannot be read: {error}")

    def window(self, position: int, entries: Entries, *, batches_max: int = 0) -> Window:
        """What lies at ``position``, and after it, up to ``batches_max`` batches (default: a page's).

        ``entries`` are those of the offset index. Raises: StorageError.
        """
        batches_max = batches_max or BATCHES_MAX
        position = min(position, self.size)
        start, next_offset = self._start(position, entries)
        stop = min(self.size, max(position + SEARCH_BYTES, self._claimed_stop(position) + WINDOW_BYTES))
        window = Window(position, position)
        chunk_bytes = SMALL_CHUNK_BYTES if batches_max == 1 else WINDOW_BYTES // 4
        for item in walk(
            self.file,
            start,
            stop,
            next_offset=next_offset,
            offset_stop=self.offset_stop,
            known_end=self.known_end,
            hints=lambda: [entry.value for entry in entries.with_values(start + 1, stop)],
            chunk_bytes=chunk_bytes,
        ):
            at, end = (item.position, item.stop) if isinstance(item, Damage) else (item[0], item[0] + item[1].size)
            if end <= position:
                continue
            if not window.batches and not window.damages:
                window.start = at
            if isinstance(item, Damage):
                if item.torn and stop < self.size and window.batches:
                    window.next_position = at  # the batch continues after what was to be searched
                    break
                window.damages.append(item)
                window.is_open = item.next_offset is None and stop < self.size
            else:
                window.batches.append(item)
            window.stop = end
            if len(window.batches) >= batches_max or end - position >= WINDOW_BYTES:
                window.next_position = end
                break
        if window.is_open:
            window.next_position = window.stop - OVERLAP_BYTES
        if window.next_position is not None and window.next_position >= self.size:
            window.next_position = None
        return window

    def _start(self, position: int, entries: Entries) -> tuple[int, int]:
        """Where a walk to ``position`` begins, and the offset expected there."""
        for entry in entries.before(position):
            if position - entry.value > SEEK_BYTES:
                break
            batch = self.batch_at(entry.value)
            if batch is not None and batch.last_offset == entry.offset:
                return entry.value, max(batch.base_offset, self.base_offset)
        if position <= SEEK_BYTES:
            return 0, self.base_offset
        # Without an index the way here is too long. A page's own links lead to where a batch starts, or should.
        return position, self.base_offset

    def before(self, position: int, entries: Entries) -> int | None:
        """Where the batch, or the damage, that ends at ``position`` begins; None if no index leads near it.

        Raises: StorageError.
        """
        start, next_offset = self._start(position - 1, entries)
        found = None
        if start < position - 1 or start == 0:
            for item in walk(
                self.file,
                start,
                position,
                next_offset=next_offset,
                offset_stop=self.offset_stop,
                known_end=self.known_end,
            ):
                found = item.position if isinstance(item, Damage) else item[0]
        return found

    def batch_at(self, position: int) -> Batch | None:
        """The whole batch at ``position``, None if the bytes there are not one. Raises: StorageError."""
        try:
            head = parse_batch(self.file.pread(BATCH_HEADER_BYTES, position), header_only=True)
            if head.size > min(self.size - position, READ_BATCH_BYTES_MAX):
                return None
            batch = parse_batch(self.file.pread(head.size, position))
            batch.ensure_valid()
        except CorruptDataError:
            return None
        return batch

    def entry_bytes(self, position: int, size_min: int) -> bytes:
        """The bytes that the size field at ``position`` claims, if they can be there, and at least ``size_min``."""
        stop = max(self._claimed_stop(position), position + size_min)
        return self.file.pread(min(stop, self.size) - position, position)

    def _claimed_stop(self, position: int) -> int:
        """Where the entry at ``position`` ends, if its size field can be right; else ``position``."""
        head = self.file.pread(min(LOG_OVERHEAD_BYTES, self.size - position), position)
        size = entry_size(head) if len(head) == LOG_OVERHEAD_BYTES else 0
        return position + size if 0 < size <= min(self.size - position, READ_BATCH_BYTES_MAX) else position


def _disorder(count: int, every: int) -> str:
    return "" if count == every else f"entry {count} of {every} does not follow the one before it"


def segment_of(fs: FileSystem, head: LogHead, directory: Path, base_offset: int) -> Segment | None:
    """The segment with this base offset, None if the log has no such segment. Raises: StorageError."""
    bases = head.bases
    at = bisect_left(bases, base_offset)
    if at == len(bases) or bases[at] != base_offset:
        return None
    offset_stop = bases[at + 1] if at + 1 < len(bases) else OFFSET_MAX
    live = offset_stop == OFFSET_MAX and is_live(fs, directory)
    file = fs.open(f"{directory}/{segment_name(base_offset, LOG_SUFFIX)}")
    return Segment(fs, directory, base_offset, offset_stop, live, head.known_end, file, file.size())
