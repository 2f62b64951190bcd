"""The scan of a segment that may not be whole: every batch and record is checked, and its indexes are rebuilt.

Runs of plain batches are checked by compiled code, and so is what their batches mean for indexes, producers and leader
epochs. Everything else (damage, compressed batches, old versions, a gap that the bytes at hand cannot judge) goes batch
by batch. Both ways write the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kstore.engine.transaction_rebuild import TransactionRebuild
from kstore.errors import CorruptDataError, StorageError
from kstore.files.checkpoint import EpochEntry
from kstore.files.paths import LOG_SUFFIX
from kstore.record._runs import Run, epoch_starts
from kstore.record.batch import MAGIC_V2, Batch
from kstore.record.walk import Damage, walk_runs
from kstore.rules.recover import SegmentFindings
from kstore.segment import LogSegment
from kstore.segments.places import START
from kstore.types import OFFSET_MAX, CorruptRange, RecoveryReport

__all__ = ["epochs_in", "scan_segment"]

CHUNK_BYTES = 1 << 20


def scan_segment(
    segment: LogSegment,
    following: LogSegment | None,
    *,
    known_end: int,
    max_bytes_uncompressed: int,
    transactions: TransactionRebuild,
    epochs: list[EpochEntry],
    report: RecoveryReport,
) -> SegmentFindings:
    """Checks every batch and record of a segment as they are on disk, and rebuilds its indexes. It stays active.

    ``following`` is the next segment. ``known_end``: everything below it was durable (``walk``). What is found is added
    to ``transactions``, ``epochs`` and ``report``. Raises: StorageError.
    """
    hints = _indexed_positions(segment)
    tail = segment.activate(empty_indexes=True)
    # What a failed writeback left in the page cache may be newer than what is on disk: ask the disk.
    tail.file.fsync()
    tail.file.advise(0, 0, "dontneed")
    damages: list[Damage] = []
    next_offset = segment.base_offset
    batch_count = record_count = 0
    path = str(segment.path(LOG_SUFFIX))
    # The system reads ahead while a chunk is checked. A thread that does, or advice, costs more than it gains.
    for item in walk_runs(
        tail.file,
        0,
        tail.position,
        next_offset=next_offset,
        offset_stop=following.base_offset if following else OFFSET_MAX,
        known_end=known_end,
        hints=hints,
        chunk_bytes=CHUNK_BYTES,
        run_bytes=CHUNK_BYTES,
    ):
        if isinstance(item, Damage):
            damages.append(item)
            tail.note_damage()
            transactions.note_damage(item)
            continue
        if isinstance(item, Run):
            tail.note_run(item)
            transactions.note_run(segment, item)
            _note_epochs(epochs, item)
            batch_count += item.batch_count
            record_count += item.record_count
            next_offset = item.next_offset
        else:
            position, batch = item
            try:
                batch.check(max_bytes_uncompressed)
            except CorruptDataError as error:
                # Its CRC holds: it was written like this, no crash made it. It stays, and is never served.
                report.corrupt.append(CorruptRange(batch.base_offset, batch.last_offset, position, error.reason, path))
            tail.note(position, batch.size, batch.last_offset, batch.max_timestamp)
            transactions.note(segment, batch)
            _note_epoch(epochs, batch)
            batch_count += 1
            record_count += batch.record_count
            next_offset = batch.last_offset + 1
    transactions.finish(segment)
    report.segments_scanned += 1
    report.bytes_scanned += tail.position
    report.batches_scanned += batch_count
    report.records_scanned += record_count
    report.rebuilt.append(path)
    size_now = tail.file.size()
    return SegmentFindings(path, segment.base_offset, tail.position, next_offset, damages, batch_count, size_now)


def _indexed_positions(segment: LogSegment) -> Callable[[], Sequence[int]]:
    """Returns the positions that a segment's index has now, before it is rebuilt.

    After damage recovery must find what readers have found, which look there too.
    """
    try:
        index = segment.offset_index()
    except (StorageError, CorruptDataError):
        return tuple
    return lambda: [entry.position for entry in index.entries()]


def epochs_in(segments: Iterable[LogSegment]) -> list[EpochEntry]:
    """The leader epochs of a log's batches. Raises: StorageError."""
    found: list[EpochEntry] = []
    for segment in segments:
        # Not by a lookup, which may have an index repaired: one of the writers of a shared log has its lock here.
        for item in segment.runs_from(START, segment.size):
            if isinstance(item, Run):
                _note_epochs(found, item)
            elif not isinstance(item, Damage):
                _note_epoch(found, item[1])
    return found


def _note_epochs(found: list[EpochEntry], run: Run) -> None:
    latest = found[-1].epoch if found else -1
    if run.leader_epoch_max > latest:
        found += [EpochEntry(*start) for start in epoch_starts(run, latest)]


def _note_epoch(found: list[EpochEntry], batch: Batch) -> None:
    """Adds the epoch of a log's next batch, if it is a new one (LogSegment.recover)."""
    if batch.magic >= MAGIC_V2 and batch.leader_epoch > (found[-1].epoch if found else -1):
        found.append(EpochEntry(batch.leader_epoch, batch.base_offset))
