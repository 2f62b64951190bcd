"""Verifies one segment: every batch of its ``.log``, and both searchable indexes against them.

An index entry is wrong if it would mislead a lookup. Brokers before 3.x wrote one entry for a whole append, so the
batch that an entry points at may end before the entry's offset; it must not start after it. Brokers before 2.0 wrote
the first offset where later ones write the last: a lookup finds the same records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from kstore.errors import FileMissingError
from kstore.files.fs import FileSystem, read_file
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from kstore.index import OffsetIndex, TimeIndex
from kstore.record._runs import OffsetCheck, Run, TimeCheck
from kstore.record.batch import Batch
from kstore.record.scan import RUN_BYTES_MAX
from kstore.record.walk import Damage, walk_runs
from kstore.rules.losses import LOST, NO_LOSSES, LossRanges
from kstore.scan.visits import Advance, Lost, Progress, RecordCheck, Visitor, visit
from kstore.types import NO_OFFSET, NO_TIMESTAMP, OFFSET_MAX, OffsetPosition, TimestampOffset
from kstore.upkeep.verify.findings import Finding, LogVerification, Severity

# An offset index's entry that misleads no lookup (``OffsetCheck``).
NAMES_FIRST = "first"
# What contradicts an entry (``OffsetCheck``, ``TimeCheck``).
CONTRADICTIONS = {
    "no start": ", where no batch starts",
    "above": ", where the batch of offsets {} to {} starts",
    "no end": ", but no batch ends there",
    "earlier": "an earlier record has {}",
    "other": "its batch has at most {}",
}


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """A segment's files; offsets at or above ``offset_stop`` belong to the next one.

    ``is_live``: it is the last one, and a writer may be writing to it. ``known_end``: everything below it was durable,
    as ``kstore.state`` says.
    """

    fs: FileSystem
    directory: Path
    base_offset: int
    offset_stop: int
    is_live: bool
    max_batch_bytes_uncompressed: int
    losses: LossRanges = NO_LOSSES
    known_end: int = 0

    @property
    def is_last(self) -> bool:
        return self.offset_stop == OFFSET_MAX

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{segment_name(self.base_offset, suffix)}"


def verify_segment(files: SegmentFiles, log: LogVerification, advance: Advance, *visitors: Visitor) -> int:
    """Adds the findings to ``log``, and shows ``visitors`` the segment. Returns the offset after the last batch.

    Raises: StorageError.
    """
    # The indexes first: entries that a live writer adds from now on point at bytes that are not examined.
    offsets = _OffsetEntries(files)
    times = _TimeEntries(files)
    file = files.fs.open(files.path(LOG_SUFFIX))
    size = file.size()
    progress = Progress(advance, dropped_from=None if files.is_live else file)
    gone = _Gone(files, log, times, size)
    check = RecordCheck(files.max_batch_bytes_uncompressed, gone.add_unreadable)
    next_offset = visit(
        walk_runs(
            file,
            0,
            size,
            next_offset=files.base_offset,
            offset_stop=files.offset_stop,
            known_end=files.known_end,
            hints=offsets.positions,
            run_bytes=RUN_BYTES_MAX,
            with_compressed=True,
        ),
        gone,
        check,
        offsets,
        times,
        *visitors,
        base_offset=files.base_offset,
        offset_stop=files.offset_stop,
        size=size,
        losses=files.losses,
        progress=progress,
    )
    progress.reach(size)
    log.findings.extend(offsets.findings(size))
    log.findings.extend(times.findings())
    log.segment_count += 1
    log.batch_count += check.batch_count
    log.record_count += check.record_count
    log.size += size
    if times.max_timestamp != NO_TIMESTAMP:
        log.last_ms = times.max_timestamp
    return next_offset


class _Gone(Visitor):
    """Damaged and lost batches, as findings."""

    def __init__(self, files: SegmentFiles, log: LogVerification, times: _TimeEntries, size: int) -> None:
        self._files = files
        self._log = log
        self._times = times
        self._size = size
        # The findings of the damage before the next batch, whose timestamp they lack.
        self._damaged = range(0)

    def note(self, position: int, batch: Batch) -> None:
        if self._damaged:
            for number in self._damaged:
                self._log.findings[number] = self._log.findings[number]._replace(before_ms=batch.max_timestamp)
            self._damaged = range(0)

    def note_run(self, run: Run) -> None:
        if self._damaged:
            self.note(*next(run.batches()))

    def note_damage(self, damage: Damage) -> None:
        count = len(self._log.findings)
        self._add(_damage(self._files, damage, self._size)._replace(after_ms=self._times.max_timestamp))
        self._damaged = range(count, len(self._log.findings))

    def note_lost(self, lost: Lost) -> None:
        first, last, position, before_ms = lost
        after_ms, path = self._times.max_timestamp, self._files.path(LOG_SUFFIX)
        self._add(Finding("damage", "lost", path, LOST, position, first, last, after_ms, before_ms))

    def add_unreadable(self, position: int, batch: Batch, reason: str) -> None:
        """Adds a batch with records that cannot be read."""
        path, first, last = self._files.path(LOG_SUFFIX), batch.base_offset, batch.last_offset
        self._add(Finding("damage", "batch", path, reason, position, first, last))

    def _add(self, finding: Finding) -> None:
        self._log.add_loss(finding, self._files.losses)


def _damage(files: SegmentFiles, damage: Damage, size: int) -> Finding:
    """Damage between batches, or a tail: no whole batch at the end. A live writer may be writing it; zeros there are
    space, unless durable offsets are missing."""
    path = files.path(LOG_SUFFIX)
    if damage.next_offset is None and files.is_last:
        reason = f"{size - damage.position} bytes after the last whole batch: {damage.reason}"
        end_offset = max(files.losses.end_after(damage.first_offset, OFFSET_MAX), files.known_end)
        is_known = end_offset > damage.first_offset
        last = end_offset - 1 if is_known else NO_OFFSET
        severity: Severity = "note" if (files.is_live or damage.is_space) and not is_known else "damage"
        return Finding(severity, "tail", path, reason, damage.position, damage.first_offset, last)
    last = (damage.next_offset if damage.next_offset is not None else files.offset_stop) - 1
    return Finding("damage", "batch", path, damage.reason, damage.position, damage.first_offset, last)


def _read(files: SegmentFiles, suffix: str) -> bytes | None:
    try:
        return read_file(files.fs, files.path(suffix))
    except FileMissingError:
        return None


def _shape(data: bytes | None, entry_size: int, files: SegmentFiles) -> Iterator[tuple[Severity, str]]:
    """The problems shown by the size of an index, and by its end. A broker creates those of a new segment late, and
    allocates space for all entries of its active segment, which a crash, or a copy, leaves there."""
    if data is None:
        yield "note" if files.is_live else "damage", "is missing"
        return
    room = len(data) - len(data.rstrip(b"\0"))
    if len(data) % entry_size > room:
        yield "damage", f"{len(data)} bytes, expected a multiple of {entry_size}"
    if room > 2 * entry_size and not files.is_last:
        yield "note", f"{room} zero bytes at the end: space for entries that was not released"


class _OffsetEntries(Visitor):
    """The entries of the offset index, checked against the batches as they pass."""

    def __init__(self, files: SegmentFiles) -> None:
        self._path = files.path(INDEX_SUFFIX)
        self._base_offset = files.base_offset
        data = _read(files, INDEX_SUFFIX)
        self._findings = [Finding(severity, "index", self._path, reason) for severity, reason in _shape(data, 8, files)]
        index = OffsetIndex.from_bytes(data or b"", files.base_offset, path=self._path, live=True)
        self._rows = index.rows()
        self._count = len(self._rows) // 2
        for entry in islice(index.entries(), self._count, self._count + 1):
            self._add(f"{_place(entry)} does not follow the previous entry", self._count)
        self._check = OffsetCheck(self._rows, files.base_offset)
        # The entries that name the first offset of their batch, not its last.
        self._first_count = 0

    def positions(self) -> Sequence[int]:
        """The positions of batches according to the entries, while these are in order."""
        return self._rows[1::2]

    def _entry(self, slot: int) -> OffsetPosition:
        return OffsetPosition(self._base_offset + self._rows[2 * slot], self._rows[2 * slot + 1])

    def _add(self, reason: str, slot: int) -> None:
        self._findings.append(Finding("damage", "index", self._path, reason, slot * 8))

    def note_damage(self, damage: Damage) -> None:
        """Skips entries that point into damage: nothing can be checked against them."""
        self._tell(self._check.skip(damage.position, damage.stop))

    def note(self, position: int, batch: Batch) -> None:
        """Holds the entries against the next batch."""
        # The first offset of an old compressed batch may be anything up to its last one.
        base_offset = max(batch.base_offset, self._base_offset)
        self._tell(self._check.add(position, base_offset, batch.last_offset))

    def note_run(self, run: Run) -> None:
        """Holds the entries against the batches of a run."""
        self._tell(self._check.add_run(run))

    def _tell(self, found: Sequence[tuple[int, str, int, int]]) -> None:
        for slot, what, base_offset, last_offset in found:
            if what == NAMES_FIRST:
                self._first_count += 1
                continue
            self._add(f"{_place(self._entry(slot))}{CONTRADICTIONS[what].format(base_offset, last_offset)}", slot)

    def findings(self, size: int) -> Sequence[Finding]:
        """All findings, after the last batch."""
        slot = self._check.position_slot
        left = self._count - slot
        if left:
            more = f", and {left - 1} more entries" if left > 1 else ""
            self._add(f"{_place(self._entry(slot))}, after the last batch of {size} bytes{more}", slot)
        if self._first_count:
            reason = f"{self._first_count} entries name the first offset of a batch, as those of Kafka before 2.0 do"
            self._findings.append(Finding("note", "index", self._path, reason))
        return self._findings


def _place(entry: OffsetPosition) -> str:
    return f"offset {entry.offset} points at position {entry.position}"


class _TimeEntries(Visitor):
    """The entries of the time index, checked against the batches as they pass."""

    def __init__(self, files: SegmentFiles) -> None:
        self._path = files.path(TIME_INDEX_SUFFIX)
        self._base_offset = files.base_offset
        data = _read(files, TIME_INDEX_SUFFIX)
        self._findings = [
            Finding(severity, "timeindex", self._path, reason) for severity, reason in _shape(data, 12, files)
        ]
        index = TimeIndex.from_bytes(data or b"", files.base_offset, path=self._path, live=True)
        self._rows = index.rows()
        number = len(self._rows) // 2
        for entry in islice(index.entries(), number, number + 1):
            self._add(f"entry {number} ({entry.timestamp}, {entry.offset}) does not follow the previous one", number)
        self._check = TimeCheck(self._rows, files.base_offset)
        # A sealed index ends with the greatest timestamp; searches by time believe its last entry, if it has one.
        self._must_be_whole = not (files.is_last or self._findings)

    @property
    def max_timestamp(self) -> int:
        """The greatest one of the batches so far; NO_TIMESTAMP before the first."""
        return self._check.max_timestamp

    def _entry(self, slot: int) -> TimestampOffset:
        return TimestampOffset(self._rows[2 * slot], self._base_offset + self._rows[2 * slot + 1])

    def _add(self, reason: str, number: int) -> None:
        self._findings.append(Finding("damage", "timeindex", self._path, reason, number * 12))

    def note_damage(self, damage: Damage) -> None:
        """Skips entries for damaged batches."""
        first_offset, next_offset = damage.first_offset, damage.next_offset
        self._must_be_whole = False
        slot, count = self._check.slot, len(self._rows) // 2
        kept = self._rows[: 2 * slot]
        for timestamp, offset in map(self._entry, range(slot, count)):
            if offset < first_offset or (next_offset is not None and offset >= next_offset):
                kept.extend((timestamp, offset - self._base_offset))
        self._rows = kept
        self._check.replace(kept)

    def note(self, position: int, batch: Batch) -> None:
        """Holds the entries against the next batch."""
        base_offset = max(batch.base_offset, self._base_offset)
        self._tell(self._check.add(base_offset, batch.last_offset, batch.max_timestamp))

    def note_run(self, run: Run) -> None:
        """Holds the entries against the batches of a run."""
        self._tell(self._check.add_run(run))

    def _tell(self, found: Sequence[tuple[int, str, int]]) -> None:
        for slot, what, other in found:
            timestamp, offset = self._entry(slot)
            self._add(f"{timestamp} ms at offset {offset}, but {CONTRADICTIONS[what].format(other)}", slot)

    def findings(self) -> Sequence[Finding]:
        """All findings, after the last batch."""
        slot, count = self._check.slot, len(self._rows) // 2
        if slot < count:
            more = f", and {count - slot - 1} more entries" if count - slot > 1 else ""
            timestamp, offset = self._entry(slot)
            self._add(f"{timestamp} ms at offset {offset}, after the last batch{more}", slot)
        largest = self._check.max_timestamp
        # An entry cannot hold an offset far from the base.
        if self._must_be_whole and not self._check.is_far and count and self._entry(count - 1).timestamp < largest:
            last = self._entry(count - 1).timestamp
            reason = f"ends with {last} ms, but the segment's greatest timestamp is {largest}"
            self._add(reason, count - 1)
        return self._findings
