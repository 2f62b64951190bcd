"""Dumps the indexes of a segment, and compares each entry with the log; and the snapshots of producers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kstore.cli.dump.batches import V2DumpBatch, read_batch
from kstore.cli.dump.entries import Entry, EntryWalk, read_entry
from kstore.cli.dump.job import DumpJob, FileProblem, base_offset_of
from kstore.cli.dump.printer import FileReport, Mismatch
from kstore.errors import CorruptDataError
from kstore.files.fs import File
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX
from kstore.record.batch import MAGIC_V2, RecordBatch
from kstore.state.producer_snapshot import SnapshotCrcError, decode_snapshot
from kstore.types import NO_OFFSET, NO_TIMESTAMP, AbortedTransaction

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = struct.Struct(">hqqqq")
TXN_VERSION = 0
# A lookup starts with the entries in the last 8 KiB. In an unsorted index this decides what it finds.
WARM_ENTRY_COUNT = 8192 // OFFSET_ENTRY.size
WINDOW_BYTES = 1 << 16


def dump_offset_index(job: DumpJob, path: str) -> None:
    """A line for each entry, after checking the batch it points at. Raises FileProblem."""
    index = _OffsetIndex(job.read(path), _base_offset(path))
    log = job.open(job.sibling(path, LOG_SUFFIX))
    if not index.count:
        job.printer.empty_index(path)
    elif job.options.index_sanity_check:
        last_offset, _ = index.entry(index.count - 1)
        _check_last_offset(last_offset, index.base_offset)
        job.printer.sanity_passed(path)
    else:
        _dump_offset_entries(job, path, index, log)
    _check_length(job, path, index.size, OFFSET_ENTRY.size)


def dump_time_index(job: DumpJob, path: str) -> None:
    """A line for each entry, after checking the batch with its offset. Raises FileProblem."""
    base_offset = _base_offset(path)
    data = job.read(path)
    if job.options.index_sanity_check:
        _check_time_index(data, base_offset)
        job.printer.sanity_passed(path)
        return
    log = job.open(job.sibling(path, LOG_SUFFIX))
    index = _OffsetIndex(job.read(job.sibling(path, INDEX_SUFFIX)), base_offset)
    _dump_time_entries(job, path, data, index, log)
    _check_length(job, path, len(data), TIME_ENTRY.size)


def dump_transaction_index(job: DumpJob, path: str) -> None:
    """A line for each aborted transaction."""
    data = job.read(path)
    for number, (version, *fields) in enumerate(_entries(TXN_ENTRY, data)):
        # Kafka's tool shows the first of the two bytes as the version.
        job.printer.aborted_transaction(version >> 8, AbortedTransaction(*fields))
        if version != TXN_VERSION:
            job.damage(path, f"entry {number} has version {version}, expected {TXN_VERSION}", number * TXN_ENTRY.size)
    _check_length(job, path, len(data), TXN_ENTRY.size)


class _OffsetIndex:
    """The entries of a .index as stored, including those after a crash."""

    def __init__(self, data: bytes, base_offset: int) -> None:
        self._data = data
        self.base_offset = base_offset
        self.size = len(data)
        self.count = self.size // OFFSET_ENTRY.size

    def entry(self, slot: int) -> tuple[int, int]:
        """Offset and position."""
        relative, position = OFFSET_ENTRY.unpack_from(self._data, slot * OFFSET_ENTRY.size)
        return self.base_offset + relative, position

    def lookup(self, offset: int) -> int:
        """The position from which Kafka would search for ``offset``, also among unsorted entries."""
        if not self.count:
            return 0
        first_warm = max(0, self.count - 1 - WARM_ENTRY_COUNT)
        if self.entry(first_warm)[0] < offset:
            return self._search(offset, first_warm, self.count - 1)
        return 0 if self.entry(0)[0] > offset else self._search(offset, 0, first_warm)

    def _search(self, offset: int, low: int, high: int) -> int:
        while low < high:
            middle = (low + high + 1) // 2
            found, position = self.entry(middle)
            if found == offset:
                return position
            low, high = (low, middle - 1) if found > offset else (middle, high)
        return self.entry(low)[1]


class _Log:
    """The headers of a .log, for lookups at or from a position."""

    def __init__(self, file: File) -> None:
        self._window = _Window(file)
        self._file = file
        self.size = file.size()
        self._walk_start = self._walk_offset = self._walk_position = 0

    def entry_at(self, position: int, size_max: int) -> Entry:
        """The whole entry at ``position``. Raises FileProblem if none of at most ``size_max`` bytes is there."""
        self._check(position)
        stop = min(self.size, position + size_max)
        entry = read_entry(self._window, position, stop)
        if entry is None:
            raise FileProblem(f"no whole batch of at most {size_max} bytes at position {position} of the log")
        return entry

    def find(self, offset: int, position: int) -> tuple[Entry, int] | None:
        """The first entry at or after ``position`` whose last offset is ``offset`` or above, with that offset."""
        self._check(position)
        start = position
        if start == self._walk_start and offset >= self._walk_offset:
            position = self._walk_position  # every earlier entry ends below the offset of the last search
        while (entry := read_entry(self._window, position, self.size)) is not None:
            last_offset = read_batch(entry, self._file).last_offset
            if last_offset >= offset:
                self._walk_start, self._walk_offset, self._walk_position = start, offset, position
                return entry, last_offset
            position += entry.size
        return None

    def check_sizes(self, position: int) -> None:
        """Walks over all entries from ``position``. Raises CorruptBatchError, FileProblem."""
        self._check(position)
        while (entry := read_entry(self._window, position, self.size)) is not None:
            position += entry.size

    def max_timestamp(self, entry: Entry) -> int:
        """The greatest timestamp of an entry's records, -1 without any. Raises CorruptDataError."""
        whole = next(iter(EntryWalk(self._file, entry.position, entry.position + entry.size)), entry)
        batch = read_batch(whole, self._file)
        if not isinstance(batch, V2DumpBatch):
            return max([message.record.timestamp for message in batch.messages()], default=NO_TIMESTAMP)
        if batch.entry.magic == MAGIC_V2 and whole.is_whole:
            try:
                _, timestamps = RecordBatch(whole.data, whole.at, batch.header).offsets_and_timestamps()
                return max(timestamps, default=NO_TIMESTAMP)
            except CorruptDataError:
                pass  # perhaps invalid only for readers that check more than the structure
        return max([record.timestamp for record in batch.salvaged_records()], default=NO_TIMESTAMP)

    def _check(self, position: int) -> None:
        if not 0 <= position <= self.size:
            raise FileProblem(f"position {position} of the log, which has {self.size} bytes")


class _Window:
    """A file from which small consecutive pieces are read."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._data = b""
        self._start = 0

    def pread(self, size: int, position: int) -> bytes:
        at = position - self._start
        if not 0 <= at <= len(self._data) - size:
            self._data, self._start, at = self._file.pread(max(size, WINDOW_BYTES), position), position, 0
        return self._data[at : at + size]


def _dump_offset_entries(job: DumpJob, path: str, index: _OffsetIndex, file: File) -> None:
    log, report, options = _Log(file), job.reports.of(path), job.options
    for slot in range(index.count):
        offset, position = index.entry(slot)
        # An index that was preallocated and never trimmed ends in zeros.
        if offset == index.base_offset and slot > 0:
            return
        try:
            batch = read_batch(log.entry_at(position, options.max_message_size), file)
        except (FileProblem, CorruptDataError) as error:
            job.damage(path, f"entry {slot} (offset {offset}, position {position}): {error.reason}")
            if not options.past_damage:
                return
        else:
            if batch.last_offset != offset:
                report.index_offsets[offset] = batch.last_offset
                # Up to 2.8 an entry had the last offset of all that was appended with the batch.
                job.is_damaged |= isinstance(batch, V2DumpBatch) or batch.last_offset > offset
        if not options.verify_index_only:
            job.printer.index_entry(offset, position)


def _dump_time_entries(job: DumpJob, path: str, data: bytes, index: _OffsetIndex, file: File) -> None:
    log, report, options = _Log(file), job.reports.of(path), job.options
    previous = NO_TIMESTAMP
    for slot, (timestamp, relative) in enumerate(_entries(TIME_ENTRY, data)):
        offset = index.base_offset + relative
        if relative == 0 and slot > 0:
            return
        try:
            if slot == 0:
                # Each lookup of Kafka's tool walks to the end of the log, and so ends at unrelated damage.
                log.check_sizes(index.lookup(offset))
            times = Mismatch(timestamp, previous)
            job.is_damaged |= _compare_time_entry(report, times, offset, log, index.lookup(offset))
        except (FileProblem, CorruptDataError) as error:
            job.damage(path, f"entry {slot} (timestamp {timestamp}, offset {offset}): {error.reason}")
            if not options.past_damage:
                return
        if not options.verify_index_only:
            job.printer.time_index_entry(timestamp, offset)
        previous = timestamp


def _compare_time_entry(report: FileReport, times: Mismatch, offset: int, log: _Log, position: int) -> bool:
    """Reports problems of an entry, and returns whether it is damage.

    ``times`` are its timestamp and the previous entry's. Raises FileProblem and CorruptDataError.
    """
    found = log.find(offset, position)
    if found is None:
        report.missing_offsets.append(Mismatch(offset, NO_OFFSET))
        return True
    entry, last_offset = found
    if last_offset != offset:
        report.missing_offsets.append(Mismatch(offset, last_offset))
        # Up to 2.8 an entry could have the offset of a record within a compressed message.
        return entry.magic >= MAGIC_V2
    timestamp = log.max_timestamp(entry)
    if timestamp != times.found:
        report.timestamps.append(Mismatch(times.found, timestamp))
    if times.expected >= times.found:
        report.unordered_timestamps.append(times)
    return timestamp != times.found or times.expected >= times.found


def _check_time_index(data: bytes, base_offset: int) -> None:
    """The check of a time index that a broker makes when it starts. Raises FileProblem."""
    count = len(data) // TIME_ENTRY.size
    if count:
        first, _ = TIME_ENTRY.unpack_from(data)
        last, relative = TIME_ENTRY.unpack_from(data, (count - 1) * TIME_ENTRY.size)
        if last < first:
            raise FileProblem(f"the last timestamp is {last}, expected at least the first, {first}")
        _check_last_offset(base_offset + relative, base_offset)
    if len(data) % TIME_ENTRY.size:
        raise FileProblem(f"{len(data)} bytes, expected a multiple of {TIME_ENTRY.size}")


def _check_last_offset(last_offset: int, base_offset: int) -> None:
    if last_offset < base_offset:
        raise FileProblem(f"the last entry has offset {last_offset}, expected at least the base, {base_offset}")


def _check_length(job: DumpJob, path: str, size: int, entry_size: int) -> None:
    """Kafka's tool cuts half an entry off the file; this one reports it."""
    if size % entry_size:
        job.damage(path, f"{size} bytes, expected a multiple of {entry_size}", size - size % entry_size)


def _entries(form: struct.Struct, data: bytes) -> Iterator[tuple[int, ...]]:
    return form.iter_unpack(data[: len(data) - len(data) % form.size])


def _base_offset(path: str) -> int:
    base_offset = base_offset_of(path)
    if base_offset is None:
        raise FileProblem("the name does not begin with an offset, which the entries are relative to")
    return base_offset


def dump_producer_snapshot(job: DumpJob, path: str) -> None:
    """A line for each producer, or one that describes the file's problem. Raises CorruptDataError."""
    try:
        entries = decode_snapshot(job.read(path))
    except SnapshotCrcError as error:
        job.is_damaged = True
        job.printer.snapshot_crc(error.stored, error.computed)
        return
    for entry in entries:
        job.printer.producer(entry)
