"""Verifies one segment: every batch of its ``.log``, and both searchable indexes against them.

An index entry is wrong if it would mislead a lookup. Brokers before 3.x wrote one entry for a whole append, so the
batch that an entry points at may end before the entry's offset; it must not start after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kstore.errors import CorruptDataError, FileMissingError
from kstore.files.fs import FileSystem, read_file
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from kstore.index import OffsetIndex, TimeIndex
from kstore.record._runs import Run
from kstore.record.batch import Batch
from kstore.record.walk import Damage, walk_runs
from kstore.rules.losses import LOST, NO_LOSSES, LossRanges, clipped
from kstore.types import NO_OFFSET, NO_TIMESTAMP, OFFSET_MAX, RELATIVE_OFFSET_MAX, OffsetPosition, TimestampOffset
from kstore.upkeep.verify.findings import Advance, Finding, LogVerification, Severity

__all__ = ["SegmentFiles", "verify_segment"]

# Long reads drop what they have read, and report progress, in steps of this size.
STEP_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """A segment's files; offsets at or above ``offset_stop`` belong to the next one.

    ``is_last``: of its log; ``is_live``: and a writer may be writing to it. ``known_end``: everything below it was
    durable, as ``kstore.state`` says.
    """

    fs: FileSystem
    directory: Path
    base_offset: int
    offset_stop: int
    is_last: bool
    is_live: bool
    max_batch_bytes_uncompressed: int
    losses: LossRanges = NO_LOSSES
    known_end: int = 0

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{segment_name(self.base_offset, suffix)}"


def verify_segment(
    files: SegmentFiles, log: LogVerification, advance: Advance, on_batch: Callable[[Batch], None]
) -> int:
    """Adds the findings to ``log``; passes each whole batch to ``on_batch``. Returns the offset after the last one.

    Raises: StorageError.
    """
    # The indexes first: entries that a live writer adds from now on point at bytes that are not examined.
    offsets = _OffsetEntries(files)
    times = _TimeEntries(files)
    file = files.fs.open(files.path(LOG_SUFFIX))
    size = file.size()
    next_offset = expected = files.base_offset
    dropped = 0
    for item in walk_runs(
        file,
        0,
        size,
        next_offset=next_offset,
        offset_stop=files.offset_stop,
        known_end=files.known_end,
        hints=offsets.positions,
    ):
        if isinstance(item, Damage):
            log.add_loss(_damage(files, item, size), files.losses)
            expected = files.offset_stop if item.next_offset is None else item.next_offset
            offsets.skip(item.position, item.stop)
            times.skip(item.first_offset, item.next_offset)
            continue
        # The batches of a run are checked with all their records.
        is_run = isinstance(item, Run)
        for position, batch in item.batches() if isinstance(item, Run) else (item,):
            if position - dropped >= STEP_BYTES:
                if not files.is_last:
                    # Data that is read once should not evict what others read often.
                    file.advise(dropped, position - dropped, "dontneed")
                advance(position - dropped)
                dropped = position
            if not is_run:
                _check_records(files, log, position, batch)
            if batch.base_offset > expected:
                _add_lost(files, log, expected, batch.base_offset, position)
            offsets.note(position, batch)
            times.note(batch)
            on_batch(batch)
            log.batch_count += 1
            log.record_count += batch.record_count
            next_offset = expected = batch.last_offset + 1
    advance(size - dropped)
    _add_lost(files, log, expected, files.offset_stop, size)
    log.findings.extend(offsets.findings(size))
    log.findings.extend(times.findings())
    log.segment_count += 1
    log.size += size
    return next_offset


def _check_records(files: SegmentFiles, log: LogVerification, position: int, batch: Batch) -> None:
    """Adds a batch with records that cannot be read."""
    try:
        batch.check(files.max_batch_bytes_uncompressed)
    except CorruptDataError as error:
        path, first, last = files.path(LOG_SUFFIX), batch.base_offset, batch.last_offset
        log.add_loss(Finding("damage", "batch", path, error.reason, position, first, last), files.losses)


def _add_lost(files: SegmentFiles, log: LogVerification, start: int, stop: int, position: int) -> None:
    """Adds known lost offsets that no batch holds; ``position`` is where they would be."""
    for first, last in clipped(files.losses.lost, start, stop):
        log.add_loss(Finding("damage", "lost", files.path(LOG_SUFFIX), LOST, position, first, last), files.losses)


def _damage(files: SegmentFiles, damage: Damage, size: int) -> Finding:
    """Damage between batches, or a tail: no whole batch at the end. A live writer may be writing it."""
    path = files.path(LOG_SUFFIX)
    if damage.next_offset is None and files.is_last:
        reason = f"{size - damage.position} bytes after the last whole batch: {damage.reason}"
        end_offset = max(files.losses.end_after(damage.first_offset, OFFSET_MAX), files.known_end)
        is_known = end_offset > damage.first_offset
        last = end_offset - 1 if is_known else NO_OFFSET
        severity: Severity = "note" if files.is_live and not is_known else "damage"
        return Finding(severity, "tail", path, reason, damage.position, damage.first_offset, last)
    last = (damage.next_offset if damage.next_offset is not None else files.offset_stop) - 1
    return Finding("damage", "batch", path, damage.reason, damage.position, damage.first_offset, last)


def _read(files: SegmentFiles, suffix: str) -> bytes | None:
    try:
        return read_file(files.fs, files.path(suffix))
    except FileMissingError:
        return None


def _shape(data: bytes | None, entry_size: int, *, is_live: bool) -> Iterator[tuple[Severity, str]]:
    """The problems shown by the size of an index, and by its end. A broker creates those of a new segment late."""
    if data is None:
        yield "note" if is_live else "damage", "is missing"
        return
    room = len(data) - len(data.rstrip(b"\0"))
    if len(data) % entry_size > room:
        yield "damage", f"{len(data)} bytes, expected a multiple of {entry_size}"
    if room > 2 * entry_size:
        yield "note", f"{room} zero bytes at the end: space for entries that was not released"


class _OffsetEntries:
    """The entries of the offset index, checked against the batches as they pass."""

    def __init__(self, files: SegmentFiles) -> None:
        self._path = files.path(INDEX_SUFFIX)
        data = _read(files, INDEX_SUFFIX)
        self._findings = [
            Finding(severity, "index", self._path, reason)
            for severity, reason in _shape(data, 8, is_live=files.is_live)
        ]
        entries = list(OffsetIndex.from_bytes(data or b"", files.base_offset, path=self._path, live=True).entries())
        previous = OffsetPosition(files.base_offset - 1, -1)
        self._entries: list[OffsetPosition] = []
        for number, entry in enumerate(entries):
            if entry.offset <= previous.offset or entry.position <= previous.position:
                self._add(f"{_place(entry)} does not follow the previous entry", number)
                break
            self._entries.append(entry)
            previous = entry
        # The slots up to which positions, and offsets, were checked against batches.
        self._position_slot = self._offset_slot = 0

    def positions(self) -> Sequence[int]:
        """The positions of batches according to the entries, while these are in order."""
        return [entry.position for entry in self._entries]

    def _add(self, reason: str, slot: int) -> None:
        self._findings.append(Finding("damage", "index", self._path, reason, slot * 8))

    def skip(self, start: int, stop: int) -> None:
        """Skips entries that point into damage: nothing can be checked against them."""
        entries = self._entries
        while self._position_slot < len(entries) and entries[self._position_slot].position < stop:
            if entries[self._position_slot].position < start:
                self._add(f"{_place(entries[self._position_slot])}, where no batch starts", self._position_slot)
            self._position_slot += 1
        self._offset_slot = max(self._offset_slot, self._position_slot)

    def note(self, position: int, batch: Batch) -> None:
        entries = self._entries
        while self._position_slot < len(entries) and entries[self._position_slot].position <= position:
            entry = entries[self._position_slot]
            if entry.position < position:
                self._add(f"{_place(entry)}, where no batch starts", self._position_slot)
            elif batch.base_offset > entry.offset:
                self._add(
                    f"{_place(entry)}, where the batch of offsets {batch.base_offset} to {batch.last_offset} starts",
                    self._position_slot,
                )
            self._position_slot += 1
        while self._offset_slot < len(entries) and entries[self._offset_slot].offset <= batch.last_offset:
            if entries[self._offset_slot].offset < batch.last_offset and self._offset_slot < self._position_slot:
                self._add(f"{_place(entries[self._offset_slot])}, but no batch ends there", self._offset_slot)
            self._offset_slot += 1

    def findings(self, size: int) -> Sequence[Finding]:
        """All findings, after the last batch."""
        left = self._entries[self._position_slot :]
        if left:
            more = f", and {len(left) - 1} more entries" if len(left) > 1 else ""
            self._add(f"{_place(left[0])}, after the last batch of {size} bytes{more}", self._position_slot)
        return self._findings


def _place(entry: OffsetPosition) -> str:
    return f"offset {entry.offset} points at position {entry.position}"


class _TimeEntries:
    """The entries of the time index, checked against the batches as they pass."""

    def __init__(self, files: SegmentFiles) -> None:
        self._path = files.path(TIME_INDEX_SUFFIX)
        data = _read(files, TIME_INDEX_SUFFIX)
        self._findings = [
            Finding(severity, "timeindex", self._path, reason)
            for severity, reason in _shape(data, 12, is_live=files.is_live)
        ]
        entries = list(TimeIndex.from_bytes(data or b"", files.base_offset, path=self._path, live=True).entries())
        self._entries: list[TimestampOffset] = []
        previous = TimestampOffset(NO_TIMESTAMP, files.base_offset)
        for number, entry in enumerate(entries):
            if entry.timestamp <= previous.timestamp or entry.offset < previous.offset:
                self._add(
                    f"entry {number} ({entry.timestamp}, {entry.offset}) does not follow the previous one", number
                )
                break
            self._entries.append(entry)
            previous = entry
        self._at = 0
        self._largest = NO_TIMESTAMP
        self._base_offset = files.base_offset
        # A sealed index ends with the greatest timestamp; searches by time believe its last entry, if it has one.
        self._must_be_whole = not (files.is_last or self._findings)

    def _add(self, reason: str, number: int) -> None:
        self._findings.append(Finding("damage", "timeindex", self._path, reason, number * 12))

    def skip(self, first_offset: int, next_offset: int | None) -> None:
        """Skips entries for damaged batches."""
        self._must_be_whole = False
        self._entries[self._at :] = [
            entry
            for entry in self._entries[self._at :]
            if entry.offset < first_offset or (next_offset is not None and entry.offset >= next_offset)
        ]

    def note(self, batch: Batch) -> None:
        while self._at < len(self._entries) and self._entries[self._at].offset <= batch.last_offset:
            timestamp, offset = self._entries[self._at]
            if self._largest >= timestamp:
                self._add(f"{timestamp} ms at offset {offset}, but an earlier record has {self._largest}", self._at)
            elif batch.base_offset <= offset and batch.max_timestamp != timestamp:
                self._add(
                    f"{timestamp} ms at offset {offset}, but its batch has at most {batch.max_timestamp}", self._at
                )
            self._at += 1
        self._largest = max(self._largest, batch.max_timestamp)
        if batch.last_offset - self._base_offset > RELATIVE_OFFSET_MAX:
            self._must_be_whole = False  # no entry can hold this offset

    def findings(self) -> Sequence[Finding]:
        """All findings, after the last batch."""
        left = self._entries[self._at :]
        if left:
            more = f", and {len(left) - 1} more entries" if len(left) > 1 else ""
            self._add(f"{left[0].timestamp} ms at offset {left[0].offset}, after the last batch{more}", self._at)
        if self._must_be_whole and self._entries and self._entries[-1].timestamp < self._largest:
            last = self._entries[-1].timestamp
            reason = f"ends with {last} ms, but the segment's greatest timestamp is {self._largest}"
            self._add(reason, len(self._entries) - 1)
        return self._findings
