"""What compaction cleans and keeps: pure decisions over values.

    clean     [first segment, first dirty offset)   holds each key once, as far as earlier passes went
    dirty     [first dirty, first uncleanable)      the next pass reads its keys
    the rest  the active segment, open transactions, records younger than min_compaction_lag_ms

A record stays if its key has no later one in the dirty part. A tombstone stays until the delete horizon of its batch,
which the first pass that meets it sets. So does a transaction's marker, once none of the transaction's data is left.
(Kafka: LogCleaner, LogCleanerManager, CleanedTransactionMetadata.)
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from kstore.config import LogConfig
from kstore.record.batch import Batch
from kstore.record.control import ControlRecordType, parse_control_type
from kstore.types import NO_OFFSET, NO_TIMESTAMP, RELATIVE_OFFSET_MAX, AbortedTransaction

Name = TypeVar("Name")


class SegmentFacts(NamedTuple):
    """One segment: ``stop_offset`` is the next one's base; sizes are bytes, times ms, ``mtime_ms`` of its file."""

    base_offset: int
    stop_offset: int
    size: int
    index_size: int = 0
    time_index_size: int = 0
    first_timestamp: int = NO_TIMESTAMP
    largest_timestamp: int = NO_TIMESTAMP
    mtime_ms: int = 0


class Dirt(NamedTuple):
    """How much of a log is clean and how much is cleanable, in bytes; the times of the oldest dirty record, ms."""

    clean_bytes: int
    cleanable_bytes: int
    oldest_timestamp: int

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


# --- when -------------------------------------------------------------------------------------------------------------


def start_of_dirt(remembered: int | None, *, start_offset: int, end_offset: int) -> int:
    """The first dirty offset; a remembered one outside the log is ignored."""
    if remembered is None or not start_offset <= remembered <= end_offset:
        return start_offset
    return remembered


def first_uncleanable(
    sealed: Sequence[SegmentFacts],
    first_dirty: int,
    *,
    stable_offset: int,
    durable_offset: int,
    min_lag_ms: int,
    now_ms: int,
) -> int:
    """Where cleaning must stop: before open transactions, unsynced data, and young records.

    ``sealed`` are all segments except the active one, which is never cleaned; a segment is young if its largest
    timestamp is.
    """
    stop = min(stable_offset, durable_offset, sealed[-1].stop_offset if sealed else 0)
    if min_lag_ms > 0:
        for segment in sealed:
            if segment.stop_offset > first_dirty and segment.largest_timestamp > now_ms - min_lag_ms:
                stop = min(stop, segment.base_offset)
                break
    return max(stop, first_dirty)


def measure_dirt(sealed: Iterable[SegmentFacts], first_dirty: int, uncleanable: int) -> Dirt:
    """Counts whole segments, as Kafka does: the one with the first dirty offset is dirty.

    A segment that ends after ``uncleanable`` does not count: a pass leaves part of it, so it would always be due.
    """
    clean = cleanable = 0
    oldest = NO_TIMESTAMP
    for segment in sealed:
        if segment.stop_offset <= first_dirty:
            clean += segment.size
        elif segment.stop_offset <= uncleanable:
            cleanable += segment.size
            if segment.size and segment.first_timestamp > NO_TIMESTAMP:
                first = segment.first_timestamp
                oldest = first if oldest == NO_TIMESTAMP else min(oldest, first)
    return Dirt(clean, cleanable, oldest)


def is_due(dirt: Dirt, config: LogConfig, now_ms: int) -> bool:
    """Whether a log is dirty enough, or has dirt that is too old; records from the future are never old."""
    if not dirt.cleanable_bytes:
        return False
    if dirt.ratio > config.min_cleanable_dirty_ratio:
        return True
    return dirt.oldest_timestamp > NO_TIMESTAMP and now_ms - dirt.oldest_timestamp > config.max_compaction_lag_ms


def filthiest(dirt: Mapping[Name, Dirt]) -> Name:
    """The log with the largest share of dirt; the first of equal ones."""
    return max(dirt, key=lambda name: dirt[name].ratio)


# --- which segments become one ----------------------------------------------------------------------------------------


def group_segments(
    segments: Sequence[SegmentFacts], *, segment_bytes: int, segment_index_bytes: int
) -> list[list[SegmentFacts]]:
    """Consecutive segments that can become one: together their files are no larger than one segment's may be.

    An empty segment joins at any distance, so that none remains every 2^31 offsets.
    """
    groups: list[list[SegmentFacts]] = []
    size = index_size = time_index_size = 0
    for segment in segments:
        joins = (
            bool(groups)
            and size + segment.size <= segment_bytes
            and index_size + segment.index_size <= segment_index_bytes
            and time_index_size + segment.time_index_size <= segment_index_bytes
            and (segment.size == 0 or segment.stop_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX)
        )
        if joins:
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size = index_size = time_index_size = 0
        size += segment.size
        index_size += segment.index_size
        time_index_size += segment.time_index_size
    return groups


# --- what stays of a batch --------------------------------------------------------------------------------------------


class BatchVerdict(enum.Enum):
    """What happens to the records of a batch."""

    CHOOSE = "record by record"
    KEEP = "all stay"
    DROP = "none stays"


class LastRecord(NamedTuple):
    """For a live producer: the last offset of its last data (NO_OFFSET: it ended with a marker), and its epoch."""

    last_offset: int
    producer_epoch: int


def batch_verdict(batch: Batch, *, discardable: bool, deletes_expire: bool, now_ms: int) -> BatchVerdict:
    """``discardable``: aborted data, or the marker of a transaction without remaining data.

    ``deletes_expire`` is False after a segment that could not be cleaned: tombstones that may hide its records stay.
    """
    if not batch.is_control:
        return BatchVerdict.DROP if discardable else BatchVerdict.CHOOSE
    horizon = batch.delete_horizon_ms
    expired = deletes_expire and horizon is not None and horizon <= now_ms
    return BatchVerdict.DROP if discardable and expired else BatchVerdict.KEEP


def keeps_empty(batch: Batch, last_records: dict[int, LastRecord], uncleanable: int) -> bool:
    """Whether a batch stays as an empty one when all its records are removed.

    The last one of a live producer stays for its sequence or epoch, the last cleaned one for its last offset.
    """
    if batch.last_offset + 1 == uncleanable:
        return True
    last = last_records.get(batch.producer_id) if batch.producer_id >= 0 else None
    if last is None:
        return False
    if last.last_offset != NO_OFFSET:
        return batch.last_offset == last.last_offset
    return batch.is_control and batch.producer_epoch == last.producer_epoch


# --- transactions -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Aborted:
    transaction: AbortedTransaction
    has_data: bool = False


@dataclass(slots=True)
class CleanedTransactions:
    """Tracks which data was aborted, and of which transactions a pass has met data; fed each batch, in offset order.

    ``aborted`` are all that overlap the offsets of the pass, sorted by their first offset. ``open_before`` are the
    producers whose transaction started before the log's first segment and is open there, by its snapshot: their next
    marker stays, or a reader of that snapshot would wait for it forever. ``kept`` collects transactions whose marker
    came while some of their data remains: the new segment's index must list them.
    """

    aborted: Sequence[AbortedTransaction]
    open_before: frozenset[int] = frozenset()
    kept: list[AbortedTransaction] = field(default_factory=list)
    _next: int = 0
    _open_aborted: dict[int, _Aborted] = field(default_factory=dict)
    _open_committed: set[int] = field(default_factory=set)
    # Those of ``open_before`` whose marker has come.
    _ended_since: set[int] = field(default_factory=set)

    def copy(self) -> CleanedTransactions:
        """A copy of the present state, for going back."""
        opened = {producer: replace(aborted) for producer, aborted in self._open_aborted.items()}
        return CleanedTransactions(
            self.aborted,
            self.open_before,
            list(self.kept),
            self._next,
            opened,
            set(self._open_committed),
            set(self._ended_since),
        )

    def take_kept(self) -> list[AbortedTransaction]:
        kept, self.kept = self.kept, []
        return kept

    def is_discardable(self, batch: Batch) -> bool:
        """Whether the batch is aborted data, or the marker of a transaction of which no data was met.

        Raises: CorruptDataError for a marker that cannot be read.
        """
        while self._next < len(self.aborted) and self.aborted[self._next].first_offset <= batch.last_offset:
            transaction = self.aborted[self._next]
            self._open_aborted.setdefault(transaction.producer_id, _Aborted(transaction))
            self._next += 1
        if batch.is_control:
            return self._ends(batch)
        if not batch.is_transactional:
            return False
        aborted = self._open_aborted.get(batch.producer_id)
        if aborted is None:
            self._open_committed.add(batch.producer_id)
            return False
        aborted.has_data = True
        return True

    def _ends(self, batch: Batch) -> bool:
        record = next(iter(batch.records()), None)
        if record is None:
            return True  # emptied by an earlier pass
        kind = parse_control_type(record.key)
        if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            return False
        was_open_before = batch.producer_id in self.open_before and batch.producer_id not in self._ended_since
        if was_open_before:
            self._ended_since.add(batch.producer_id)
        if kind == ControlRecordType.ABORT:
            aborted = self._open_aborted.pop(batch.producer_id, None)
            if aborted is None or not aborted.has_data:
                return not was_open_before
            self.kept.append(aborted.transaction)
            return False
        had_data = batch.producer_id in self._open_committed
        self._open_committed.discard(batch.producer_id)
        return not had_data and not was_open_before
