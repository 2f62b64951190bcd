"""Statistics of logs on disk: sizes, times, batches, codecs, transactions; with ``deep`` also keys and ratios.

Only headers are read, so it is fast but finds little damage: ``upkeep.verify`` checks whether every byte is as written.
With ``deep`` each batch is checked, decompressed and counted record by record. Nothing is written and no lock is taken.
Memory and time are bounded by the files' sizes, whatever their contents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from kstore.errors import CorruptDataError, CorruptRecordError, FileMissingError, KstoreError, StorageError
from kstore.files.fs import File, FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import KSTORE_STATE, LOG_SUFFIX, SEGMENT_SUFFIXES, DirectoryNames, classify, segment_name
from kstore.record._codec import Record, RecordCursor
from kstore.record._runs import Run, RunCounts, walk_run
from kstore.record.batch import BATCH_HEADER_BYTES, MAGIC_V2, Batch, RecordBatch
from kstore.record.control import ControlRecordType, parse_control_type
from kstore.record.headers import CHUNK_BYTES as HEADER_CHUNK_BYTES
from kstore.record.headers import LARGE_BATCH_BYTES, READ_BATCH_BYTES_MAX, walk_headers
from kstore.record.parse import parse_batch
from kstore.record.walk import Damage
from kstore.rules.losses import LOST, NO_LOSSES, LossRanges, span_size
from kstore.scan.visits import Advance, Lost, Progress, Visitor, no_advance, visit
from kstore.state.kafka_marks import elsewhere, read_kafka_marks, remote_start
from kstore.state.log_state import losses_of, read_state
from kstore.types import LOG_APPEND_TIME, NO_OFFSET, NO_TIMESTAMP, OFFSET_MAX, TIMESTAMP_TYPES
from kstore.upkeep.distribution import Distribution
from kstore.upkeep.observed.observations import Observations
from kstore.upkeep.verify import Finding
from kstore.upkeep.verify.changing import has_changed, is_live, look, settled_bases, with_swaps_ended
from kstore.upkeep.verify.findings import split_loss

# A completely damaged log must not fill the memory with findings.
FINDINGS_MAX = 100
# One read, and one run, where batches need no decision.
CHUNK_BYTES = 4 << 20
RUN_BYTES = 1 << 20
RECORDS_AT_A_TIME = 4096

# The fields of a distribution (``RunCounts.spreads``).
Spread = tuple[int, int, int, int, dict[int, int]]


@dataclass(slots=True)
class CodecStats:
    """The batches of one codec. The sizes of their records are 0 if unknown (without ``deep``; formats 0, 1).

    ``size``: bytes of whole batches; ``records_size``: of their records as stored; ``uncompressed_size``: before
    compression.
    """

    batch_count: int = 0
    size: int = 0
    records_size: int = 0
    uncompressed_size: int = 0

    @property
    def ratio(self) -> float | None:
        """How many times smaller compression made the records; None if unknown."""
        return self.uncompressed_size / self.records_size if self.records_size else None

    def merge(self, other: CodecStats) -> None:
        self.batch_count += other.batch_count
        self.size += other.size
        self.records_size += other.records_size
        self.uncompressed_size += other.uncompressed_size


@dataclass(slots=True)
class RecordStats:
    """Records counted one by one, except those of control batches. A tombstone has a key, and no value."""

    record_count: int = 0
    keyed_count: int = 0
    tombstone_count: int = 0
    header_count: int = 0
    key_sizes: Distribution = field(default_factory=Distribution)
    value_sizes: Distribution = field(default_factory=Distribution)

    def note(self, records: Iterable[Record]) -> None:
        """Counts records, some thousands at a time: a batch may have millions."""
        rest = iter(records)
        while some := list(islice(rest, RECORDS_AT_A_TIME)):
            keys = [record.key for record in some]
            values = [record.value for record in some]
            self.record_count += len(some)
            self.keyed_count += len(some) - keys.count(None)
            self.tombstone_count += [
                (key is None, value is None) for key, value in zip(keys, values, strict=True)
            ].count((False, True))
            self.header_count += sum([len(record.headers) for record in some])
            for sizes, parts in ((self.key_sizes, keys), (self.value_sizes, values)):
                for size, count in Counter([len(part) for part in parts if part is not None]).items():
                    sizes.add(size, count)

    def take(self, counts: RunCounts, key_sizes: Spread, value_sizes: Spread) -> None:
        """Adds what was counted, with its distributions."""
        self.record_count += counts.counted_count
        self.keyed_count += counts.keyed_count
        self.tombstone_count += counts.tombstone_count
        self.header_count += counts.header_count
        self.key_sizes.merge_counts(*key_sizes)
        self.value_sizes.merge_counts(*value_sizes)

    def merge(self, other: RecordStats) -> None:
        self.record_count += other.record_count
        self.keyed_count += other.keyed_count
        self.tombstone_count += other.tombstone_count
        self.header_count += other.header_count
        self.key_sizes.merge(other.key_sizes)
        self.value_sizes.merge(other.value_sizes)


@dataclass(slots=True)
class Stats:
    """The counts of a segment, a log, or all logs together. Sizes are bytes, times ms since the epoch.

    ``record_count`` is that of the batches' headers, including markers of transactions. ``start_offset`` and
    ``end_offset``, after the last batch, are NO_OFFSET if unknown, and for several logs together. ``records`` is None
    without ``deep``. ``fenced_count``, ``lost_count`` and ``accepted_count`` are offsets: those in damaged batches,
    those of durable records that no batch holds, and those whose loss the user has accepted. ``findings`` are the first
    FINDINGS_MAX of ``damage_count``. ``elsewhere`` says which records a broker keeps in remote storage, or is empty.
    ``segments`` are in offset order, and empty unless requested.
    """

    path: str
    log_count: int = 0
    segment_count: int = 0
    size: int = 0
    # By the suffix of the file: the segments' small files, and "" for files to be removed or set aside.
    side_sizes: dict[str, int] = field(default_factory=dict)
    start_offset: int = NO_OFFSET
    end_offset: int = NO_OFFSET
    first_timestamp: int = NO_TIMESTAMP
    last_timestamp: int = NO_TIMESTAMP
    batch_count: int = 0
    empty_batch_count: int = 0
    record_count: int = 0
    producer_batch_count: int = 0
    transactional_batch_count: int = 0
    control_batch_count: int = 0
    commit_count: int = 0
    abort_count: int = 0
    formats: dict[int, int] = field(default_factory=dict)
    codecs: dict[str, CodecStats] = field(default_factory=dict)
    segment_sizes: Distribution = field(default_factory=Distribution)
    batch_sizes: Distribution = field(default_factory=Distribution)
    batch_records: Distribution = field(default_factory=Distribution)
    records: RecordStats | None = None
    fenced_count: int = 0
    lost_count: int = 0
    accepted_count: int = 0
    damage_count: int = 0
    findings: list[Finding] = field(default_factory=list)
    elsewhere: str = ""
    segments: list[Stats] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether no damage was found; without ``deep`` that means little."""
        return not self.damage_count

    def add_finding(self, finding: Finding) -> None:
        self.damage_count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def forget_damage(self) -> None:
        """Drops what was found to be damaged or lost."""
        self.damage_count = self.lost_count = self.fenced_count = 0
        self.findings = []

    def add_loss(self, finding: Finding, losses: LossRanges) -> None:
        """Counts damaged or lost batches, except accepted ones."""
        for part in split_loss(finding, losses):
            if part.severity == "damage":
                self.add_finding(part)
                count = max(part.last, part.first) - part.first + 1
                if part.kind == "lost":
                    self.lost_count += count
                else:
                    self.fenced_count += count

    def note(self, batch: Batch, record_count: int, codec: str, first_timestamp: int) -> None:
        """Counts a batch."""
        size = batch.size
        self.batch_count += 1
        self.record_count += record_count
        self.batch_sizes.add(size)
        self.batch_records.add(record_count)
        self.formats[batch.magic] = self.formats.get(batch.magic, 0) + 1
        known = self.codecs.get(codec)
        if known is None:
            known = self.codecs[codec] = CodecStats()
        known.batch_count += 1
        known.size += size
        if not record_count:
            self.empty_batch_count += 1
        if batch.producer_id >= 0:
            self.producer_batch_count += 1
        if batch.is_transactional:
            self.transactional_batch_count += 1
        self._note_times(first_timestamp, batch.max_timestamp)
        if self.start_offset == NO_OFFSET:
            self.start_offset = batch.base_offset
        self.end_offset = batch.last_offset + 1

    def take(self, counts: RunCounts) -> None:
        """Adds what was counted of plain batches of version 2; the caller sets the offsets."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(counts, name))
        self.control_batch_count += counts.commit_count + counts.abort_count
        batch_sizes, batch_records, key_sizes, value_sizes = counts.spreads()
        self.batch_sizes.merge_counts(*batch_sizes)
        self.batch_records.merge_counts(*batch_records)
        self._note_times(counts.first_timestamp, counts.last_timestamp)
        if counts.batch_count:
            self.formats[MAGIC_V2] = self.formats.get(MAGIC_V2, 0) + counts.batch_count
            size = 0 if self.records is None else counts.records_size
            plain = CodecStats(counts.batch_count, counts.size, size, size)
            self.codecs.setdefault("none", CodecStats()).merge(plain)
        if self.records is not None:
            self.records.take(counts, key_sizes, value_sizes)

    def _note_times(self, first: int, last: int) -> None:
        if first >= 0 and (self.first_timestamp == NO_TIMESTAMP or first < self.first_timestamp):
            self.first_timestamp = first
        if last > self.last_timestamp:
            self.last_timestamp = last

    def merge(self, other: Stats) -> None:
        """Adds the counts of another segment or log; the caller sets the offsets."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in DISTRIBUTIONS:
            getattr(self, name).merge(getattr(other, name))
        for suffix, size in other.side_sizes.items():
            self.side_sizes[suffix] = self.side_sizes.get(suffix, 0) + size
        for magic, count in other.formats.items():
            self.formats[magic] = self.formats.get(magic, 0) + count
        for codec, found in other.codecs.items():
            self.codecs.setdefault(codec, CodecStats()).merge(found)
        self._note_times(other.first_timestamp, other.last_timestamp)
        if other.records is not None:
            self.records = self.records or RecordStats()
            self.records.merge(other.records)
        self.findings.extend(other.findings[: FINDINGS_MAX - len(self.findings)])


COUNTED = (
    "batch_count",
    "empty_batch_count",
    "record_count",
    "producer_batch_count",
    "transactional_batch_count",
    "commit_count",
    "abort_count",
)
SUMS = (
    "log_count",
    "segment_count",
    "size",
    *COUNTED,
    "control_batch_count",
    "fenced_count",
    "lost_count",
    "accepted_count",
    "damage_count",
)
DISTRIBUTIONS = ("segment_sizes", "batch_sizes", "batch_records")


def total(logs: Iterable[Stats], path: str = "") -> Stats:
    """The sum of ``logs``, without their segments."""
    every = Stats(path)
    for log in logs:
        every.merge(log)
    return every


def log_stats(
    directory: Path,
    *,
    deep: bool = False,
    with_segments: bool = False,
    fs: FileSystem = SYSTEM_FS,
    advance: Advance = no_advance,
    observations: Observations | None = None,
) -> Stats:
    """Statistics of the log in ``directory``, a partition's, which may be in use.

    Unreadable parts become findings, and do not prevent the rest.

    Args:
        deep: also check, decompress and count every record.
        with_segments: keep those of each segment too.
        advance: receives the number of further ``.log`` bytes processed.
        observations: receives what is counted.
    """
    log = Stats(str(directory), log_count=1)
    try:
        if not is_live(fs, directory):
            fs = with_swaps_ended(fs, directory)
        names = classify(fs.list(directory))
    except StorageError as error:
        log.add_finding(Finding("damage", "name", str(directory), str(error)))
        return log
    bases = names.bases[LOG_SUFFIX]
    losses = _losses(fs, directory, names, log)
    if bases and bases[0] and KSTORE_STATE not in names.others:
        start = remote_start(read_kafka_marks(fs, directory).log_start_offset, bases[0], has_state=False)
        log.elsewhere = "" if start is None else elsewhere(start, bases[0])
    log.side_sizes = {
        suffix: sum(_size(fs, f"{directory}/{segment_name(base, suffix)}") for base in names.bases[suffix])
        for suffix in SEGMENT_SUFFIXES
        if suffix != LOG_SUFFIX
    }
    log.side_sizes[""] = sum(_size(fs, f"{directory}/{name}") for name in (*map(str, names.unfinished), *names.cuts))
    for base_offset, following in zip(bases, [*bases[1:], OFFSET_MAX], strict=False):
        is_live_end = following == OFFSET_MAX and is_live(fs, directory)
        path = f"{directory}/{segment_name(base_offset, LOG_SUFFIX)}"
        before = look(fs, directory, base_offset, following)
        if observations is not None:
            observations.begin_segment(is_last=following == OFFSET_MAX)
        segment = segment_stats(
            fs,
            path,
            base_offset=base_offset,
            offset_stop=following,
            is_live_end=is_live_end,
            deep=deep,
            losses=losses,
            advance=advance,
            observations=observations,
        )
        if segment is None:
            continue
        if segment.damage_count:
            bases_now = settled_bases(fs, directory)
            if has_changed(fs, directory, before, base_offset, bases_now):
                # What was cut or replaced while it was read looks damaged; what is damaged still is.
                stop = next((base for base in bases_now if base > base_offset), OFFSET_MAX)
                again = segment_stats(
                    fs,
                    path,
                    base_offset=base_offset,
                    offset_stop=stop,
                    is_live_end=is_live_end,
                    deep=deep,
                    losses=losses,
                )
                if again is None or not again.damage_count:
                    segment.forget_damage()
        log.merge(segment)
        if segment.start_offset != NO_OFFSET:
            if log.start_offset == NO_OFFSET:
                log.start_offset = segment.start_offset
            log.end_offset = segment.end_offset
        if with_segments:
            log.segments.append(segment)
    return log


def _losses(fs: FileSystem, directory: Path, names: DirectoryNames, log: Stats) -> LossRanges:
    """The log's record of its losses."""
    losses = NO_LOSSES
    if KSTORE_STATE in names.others:
        try:
            losses = losses_of(read_state(fs, directory / KSTORE_STATE))
        except KstoreError as error:
            log.add_finding(Finding("damage", "state", f"{directory}/{KSTORE_STATE}", f"cannot be read: {error}"))
    log.accepted_count = span_size(losses.accepted)
    return losses


def _size(fs: FileSystem, path: str) -> int:
    """A file's size; 0 if it has disappeared or is out of reach."""
    try:
        return fs.stat(path).size
    except StorageError:
        return 0


def segment_stats(
    fs: FileSystem,
    path: str,
    *,
    base_offset: int,
    offset_stop: int,
    is_live_end: bool,
    deep: bool = False,
    losses: LossRanges = NO_LOSSES,
    part_of: Callable[[Batch], Stats] | None = None,
    advance: Advance = no_advance,
    observations: Observations | None = None,
) -> Stats | None:
    """Statistics of the segment whose ``.log`` is ``path``; None if it has just been removed.

    Unreadable parts become findings, and do not prevent the rest.

    Args:
        base_offset, offset_stop: its first offset, and the next segment's (OFFSET_MAX for the last one).
        is_live_end: a writer is open, so an incomplete end is no damage.
        deep: also check, decompress and count every record.
        losses: the log's record of its losses.
        part_of: chooses the statistics that count a batch; by default the segment's own.
        advance: receives the number of further bytes processed.
        observations: receives what is counted.
    """
    segment = Stats(path, segment_count=1)
    if deep:
        segment.records = RecordStats()
    try:
        file = fs.open(path)
        segment.size = file.size()
        segment.segment_sizes.add(segment.size)
        counting = _Counting(segment, file, offset_stop, is_live_end, losses, part_of, observations)
        start, expected = 0, base_offset
        if part_of is None and not losses.lost:
            start, expected = counting.count_runs(base_offset, advance)
        progress = Progress(advance, start=start)
        visit(
            walk_headers(file, segment.size, start=start, next_offset=expected, offset_stop=offset_stop),
            counting,
            base_offset=expected,
            offset_stop=offset_stop,
            size=segment.size,
            losses=losses,
            first_offset_of=_first_offset,
            progress=progress,
        )
        progress.reach(segment.size)
    except FileMissingError:
        return None
    except KstoreError as error:
        segment.add_finding(Finding("damage", "batch", path, f"cannot be read: {error}"))
    return segment


@dataclass(slots=True)
class _Counting(Visitor):
    """Counts the batches of one segment, from their headers; what is damaged or lost is a loss of the segment."""

    segment: Stats
    file: File
    offset_stop: int
    is_live_end: bool
    losses: LossRanges
    part_of: Callable[[Batch], Stats] | None
    observations: Observations | None

    def count_runs(self, next_offset: int, advance: Advance) -> tuple[int, int]:
        """Counts batches and records in compiled code up to the first that needs a decision.

        If records are not wanted, it ends at large batches too: of those the headers alone are read.

        Returns the position of that batch, and the offset expected there. Raises: KstoreError.
        """
        segment, file = self.segment, self.file
        counts = RunCounts()
        chunk_bytes = HEADER_CHUNK_BYTES if segment.records is None else CHUNK_BYTES
        position = start = 0
        data = b""
        try:
            while position + start < segment.size:
                size_left = segment.size - position - start
                run = walk_run(
                    data, start, size_left, position, next_offset, RUN_BYTES, self.offset_stop, 0, OFFSET_MAX
                )
                if run.batch_count:
                    if segment.start_offset == NO_OFFSET:
                        segment.start_offset = run.base_offset
                    others = counts.add(run)
                    if self.observations is not None:
                        _show(run, others, self.observations)
                    for at in others:
                        self.note(position + at, parse_batch(run.data, at))
                    start, next_offset = run.stop, run.next_offset
                    segment.end_offset = next_offset
                    if segment.records is None and run.stop - run.start >= LARGE_BATCH_BYTES * run.batch_count:
                        break
                elif (start < len(data) and run.reason != "cut") or (start == 0 and data):
                    break
                else:
                    advance(start)
                    position += start
                    start = 0
                    data = file.pread(min(chunk_bytes, segment.size - position), position)
                    if not data:
                        break  # the file was cut meanwhile
        finally:
            segment.take(counts)
            advance(start)
        return position + start, next_offset

    def note(self, position: int, batch: Batch) -> None:
        try:
            counted = self._counted(self.segment if self.part_of is None else self.part_of(batch), position, batch)
        except CorruptDataError as error:
            self._lose("batch", error.reason, position, _first_offset(batch), batch.last_offset)
            return
        if self.observations is not None:
            self.observations.note(position, counted)

    def note_damage(self, damage: Damage) -> None:
        is_last = damage.next_offset is None and self.offset_stop == OFFSET_MAX
        if damage.next_offset is None and (self.is_live_end or (damage.is_space and is_last)):
            return
        first, kind, last = damage.first_offset, "tail", NO_OFFSET
        if not is_last:
            stop = self.offset_stop if damage.next_offset is None else damage.next_offset
            kind, last = "batch", max(stop - 1, first)
        self._lose(kind, damage.reason, damage.position, first, last)

    def note_lost(self, lost: Lost) -> None:
        self._lose("lost", LOST, lost.position, lost.first, lost.last)

    def _lose(self, kind: str, reason: str, position: int, first: int, last: int) -> None:
        segment = self.segment
        segment.add_loss(Finding("damage", kind, segment.path, reason, position, first, last), self.losses)

    def _counted(self, part: Stats, position: int, header: Batch) -> Batch:
        """Counts a batch of which only the header was read; returns as much of it as was needed.

        Raises: CorruptDataError; then nothing was counted.
        """
        batch, records = header, part.records
        if records is not None or header.magic != MAGIC_V2 or header.is_control:
            # The number of messages in a compressed set, and the type of a marker, are in their records.
            batch = _whole(self.file, position, header)
        codec = batch.codec
        first_timestamp = batch.max_timestamp
        if not isinstance(batch, RecordBatch):
            batch.check(READ_BATCH_BYTES_MAX)
            part.note(batch, batch.record_count, codec, first_timestamp)
            if records is not None:
                records.note(batch.records())
            return batch
        if batch.delete_horizon_ms is None and batch.timestamp_type != LOG_APPEND_TIME:
            first_timestamp = batch.base_timestamp
        if batch.is_control:
            kinds = [parse_control_type(record.key) for record in batch.records()]
            part.control_batch_count += 1
            part.commit_count += kinds.count(ControlRecordType.COMMIT)
            part.abort_count += kinds.count(ControlRecordType.ABORT)
        elif records is not None:
            records_size, uncompressed_size = _note_records(records, batch, self.observations)
            part.note(batch, batch.record_count, codec, first_timestamp)
            part.codecs[codec].records_size += records_size
            part.codecs[codec].uncompressed_size += uncompressed_size
            return batch
        part.note(batch, batch.record_count, codec, first_timestamp)
        return batch


def _show(run: Run, others: list[int], observations: Observations) -> None:
    """Shows a run, except its batches at ``others``."""
    if not others:
        observations.note_run(run)
        return
    for position, batch in run.batches():
        if position - run.position not in others:
            observations.note(position, batch)


def _first_offset(batch: Batch) -> int:
    """The first offset, without reading records: a compressed message set knows only its last one."""
    return batch.base_offset if batch.magic == MAGIC_V2 else batch.last_offset


def _whole(file: File, position: int, header: Batch) -> Batch:
    """The batch with its records. Raises: CorruptDataError."""
    if header.size > READ_BATCH_BYTES_MAX:
        raise CorruptRecordError(
            f"a batch of {header.size} bytes, of which at most {READ_BATCH_BYTES_MAX} are examined"
        )
    batch = parse_batch(file.pread(header.size, position))
    batch.ensure_valid()
    return batch


def _note_records(records: RecordStats, batch: RecordBatch, observations: Observations | None) -> tuple[int, int]:
    """Counts the records of a batch, and their bytes as stored and before compression."""
    header = batch.header
    stored = batch.data[BATCH_HEADER_BYTES:]
    data, start, stop = batch.payload(READ_BATCH_BYTES_MAX)
    payload = memoryview(data)[start:stop]
    counts = RunCounts()
    if counts.add_records(payload, header.record_count, header.last_offset_delta):
        records.take(counts, *counts.spreads()[2:])
        if observations is not None:
            observations.note_payload(payload, header.record_count, header.last_offset_delta)
        return len(stored), len(payload)
    records.note(
        RecordCursor(
            payload,
            0,
            len(payload),
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            header.last_offset_delta,
            TIMESTAMP_TYPES.index(batch.timestamp_type),
            header.max_timestamp,
            header.leader_epoch,
        )
    )
    return len(stored), len(payload)


def is_deleted(log: Stats, fs: FileSystem = SYSTEM_FS) -> bool:
    """Whether what seems to be damage of ``log`` comes from its deletion, after it was found. Raises: StorageError."""
    return not log.is_sound and not fs.exists(log.path)
