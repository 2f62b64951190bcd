"""Verifies what a log's files say about producers and transactions, against the batches themselves.

Snapshots and transaction indexes are made from the batches, so the batches determine their contents. The snapshot at
the first segment, if one remains, tells what precedes it. Compaction removes data of aborted transactions, then their
entries in the index, then their markers. So an index may list more than the batches still show, but never a transaction
that ended differently, and it may lack one without remaining records; and a transaction that a snapshot shows as open
may have ended where offsets are missing.

Nothing below the log's start is read. A broker that recovers a log rebuilds its producers from the segment that holds
the start, and a transaction across the start then begins in that segment, or at its first record above the start. The
index and the snapshots may say so, or name the place where the transaction really began.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kstore.errors import CorruptDataError, FileMissingError, StorageError
from kstore.files.fs import FileSystem, read_file
from kstore.files.paths import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_name
from kstore.index import TransactionIndex
from kstore.record._runs import Run, pass_producers
from kstore.record.batch import Batch, parse_v2
from kstore.record.control import ControlRecordType, parse_end_transaction_marker
from kstore.rules.sequence import KnownProducer
from kstore.scan.visits import Visitor
from kstore.state.producer_snapshot import ProducerEntry, decode_snapshot
from kstore.state.producer_state import ProducerState
from kstore.types import NO_OFFSET, OFFSET_MAX, AbortedTransaction
from kstore.upkeep.verify.changing import read_settled
from kstore.upkeep.verify.findings import Finding

NOT_LISTED = "is not in the index"
# At each marker of an abort, at most this many open transactions are examined. If all of them may have ended, the rest
# may have too.
OPEN_LOOKED_AT_MAX = 100


class _Expected(NamedTuple):
    """What the index should say of an aborted transaction, as far as the batches tell.

    Records below the log's start do not count: the index may name offsets up to ``first_max`` and ``stable_max``
    instead. Below ``gap_end`` compaction may have removed batches, also the first ones of this transaction, but not
    those up to ``previous_end``, where the producer's previous transaction ended.
    """

    aborted: AbortedTransaction
    first_max: int
    stable_max: int
    gap_end: int
    previous_end: int

    def fits(self, listed: AbortedTransaction) -> bool:
        producer_id, first_offset, last_offset, stable_offset = self.aborted
        first_min = first_offset if listed.first_offset >= self.gap_end else self.previous_end + 1
        stable_min = stable_offset if listed.last_stable_offset >= self.gap_end else 0
        return (
            (listed.producer_id, listed.last_offset) == (producer_id, last_offset)
            and first_min <= listed.first_offset <= self.first_max
            and stable_min <= listed.last_stable_offset <= self.stable_max
        )


class ProducerCheck(Visitor):
    """Follows the batches of one log in order, and checks snapshots and transaction indexes against them."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        snapshots: Sequence[int],
        first_base: int,
        start_offset: int = 0,
        *,
        is_live: bool = False,
    ) -> None:
        """``first_base``: that of the first segment read here. ``start_offset``: the log's, inside it or anywhere.
        ``is_live``: a writer may be writing a snapshot."""
        self._fs = fs
        self._directory = directory
        self._first_base = first_base
        self._start_offset = start_offset
        self.findings: list[Finding] = []
        self._snapshots: OrderedDict[int, list[ProducerEntry]] = OrderedDict()
        for offset in snapshots:
            path = self._path(offset, SNAPSHOT_SUFFIX)
            try:
                self._snapshots[offset] = read_settled(lambda path=path: decode_snapshot(read_file(fs, path)), is_live)  # type: ignore[misc]
            except CorruptDataError as error:
                self.findings.append(Finding("damage", "snapshot", path, str(error.reason)))
            except FileMissingError:
                pass  # removed since it was listed
            except StorageError as error:
                self.findings.append(Finding("damage", "snapshot", path, error.strerror or str(error)))
        self._state = ProducerState(self._snapshots.get(first_base, ()))
        self._is_known = first_base == 0 or first_base in self._snapshots
        # The same without the batches below the log's start, if there are some.
        self._visible = ProducerState() if start_offset > first_base else self._state
        # Transactions aborted in the current segment, with and without records that were read.
        self._aborted: list[_Expected] = []
        self._emptied: list[AbortedTransaction] = []
        # For each producer whose open transaction has visible records read here: the offset of the last of them.
        self.open_records: dict[int, int] = {}
        # Aborted transactions that started before the first segment read here, have no records in what was read, and
        # are not in the index: with records in an earlier segment that is damage.
        self.unlisted: list[AbortedTransaction] = []
        # Where the last gap in the offsets ended, and where the next batch is expected.
        self._gap_end = -1
        self._next_offset = first_base
        self._ends: dict[int, tuple[int, ControlRecordType]] = {}
        # For each producer: the offset of its last marker.
        self._last_ends: dict[int, int] = {}

    def copy(self) -> ProducerCheck:
        """The same at this moment, to go back to."""
        other = copy(self)
        other._state = self._state.copy()
        other._visible = self._visible.copy() if self._visible is not self._state else other._state
        other._snapshots, other._ends, other._last_ends = (
            self._snapshots.copy(),
            self._ends.copy(),
            self._last_ends.copy(),
        )
        other._aborted, other._emptied = self._aborted.copy(), self._emptied.copy()
        other.findings, other.unlisted = self.findings.copy(), self.unlisted.copy()
        other.open_records = self.open_records.copy()
        return other

    def _path(self, offset: int, suffix: str) -> str:
        return f"{self._directory}/{segment_name(offset, suffix)}"

    @property
    def first_unstable_offset(self) -> int | None:
        return self._state.first_unstable_offset

    def note(self, position: int, batch: Batch) -> None:
        """Adds the next batch."""
        if batch.base_offset > self._next_offset or not batch.record_count:
            self._gap_end = batch.last_offset
        self._next_offset = batch.last_offset + 1
        if batch.producer_id < 0:
            return
        self._compare_snapshots(batch.base_offset)
        is_visible = batch.last_offset >= self._start_offset
        try:
            aborted = visible = self._state.update(batch)
            if is_visible and self._visible is not self._state:
                visible = self._visible.update(batch)
            has_records = batch.producer_id in self.open_records
            previous_end = self._last_ends.get(batch.producer_id, NO_OFFSET)
            if batch.is_control:
                self._note_end(batch)
            elif batch.is_transactional and batch.record_count and is_visible:
                self.open_records[batch.producer_id] = batch.last_offset
        except CorruptDataError:
            return  # the batch itself was reported
        if aborted is not None and has_records:
            first_max = (visible or aborted).first_offset
            stable_max = self._latest_stable(batch.last_offset)
            self._aborted.append(_Expected(aborted, first_max, stable_max, self._gap_end, previous_end))
        elif aborted is not None:
            self._emptied.append(aborted)

    def note_run(self, run: Run) -> None:
        """Adds the batches of the next run."""
        at = run.start
        while at < run.stop:
            first = at
            at, self._next_offset, self._gap_end = pass_producers(
                run,
                at,
                self._next_offset,
                self._gap_end,
                next(iter(self._snapshots), OFFSET_MAX),
                self._start_offset,
                self.open_records,
                self._ends,
                self._last_ends,
            )
            if run.has_producers:
                self._state.update_run(run, first, at)
                # All of them are visible, or none.
                if self._visible is not self._state and self._next_offset > self._start_offset:
                    self._visible.update_run(run, first, at)
            if at < run.stop:
                batch = parse_v2(run.data, at)
                self.note(run.position + at, batch)
                at += batch.size

    def _latest_stable(self, last_offset: int) -> int:
        """The last stable offset after a marker at ``last_offset``, if every transaction has ended that may have."""
        for one in islice(self._visible.open_transactions, OPEN_LOOKED_AT_MAX):
            if one.last_offset >= self._gap_end:
                return one.current_txn_first_offset
        return last_offset + 1

    def _note_end(self, batch: Batch) -> None:
        marker = next(iter(batch.records()), None)
        end = parse_end_transaction_marker(marker.key, marker.value) if marker is not None else None
        if end is not None:
            self._ends[batch.last_offset] = (batch.producer_id, end.type)
            self.open_records.pop(batch.producer_id, None)
            self._last_ends[batch.producer_id] = batch.last_offset

    def lose_track(self) -> None:
        """Called for damaged batches: their contents are unknown, so nothing more can be checked against them."""
        self._is_known = False

    def end_segment(self, base_offset: int) -> None:
        """Checks the transaction index of the segment that was just read against its markers."""
        path = self._path(base_offset, TXN_INDEX_SUFFIX)
        expected, self._aborted = self._aborted, []
        emptied, self._emptied = self._emptied, []
        ends, self._ends = self._ends, {}
        index = TransactionIndex.open(self._fs, path, base_offset)
        try:
            found = list(index.entries())
            index.check_versions()
        except CorruptDataError as error:
            self.findings.append(Finding("damage", "txnindex", path, str(error.reason)))
            return
        finally:
            index.close()
        by_end = {(each.producer_id, each.last_offset): each for each in found}
        fitting = set()
        for each in expected:
            listed = by_end.get((each.aborted.producer_id, each.aborted.last_offset))
            if listed is not None and each.fits(listed):
                fitting.add(listed)
            elif self._is_known:
                self._transaction(path, each.aborted, NOT_LISTED)
        if self._is_known:
            self.unlisted += [each for each in emptied if each not in found and each.first_offset < self._first_base]
        for listed in set(found) - fitting:
            end = ends.get(listed.last_offset)
            if end is not None and end != (listed.producer_id, ControlRecordType.ABORT):
                self._transaction(path, listed, f"is listed, but the marker at its end is {end[1].name} of {end[0]}")

    def _transaction(self, path: str, aborted: AbortedTransaction, what: str) -> None:
        self.findings.append(transaction_finding(path, aborted, what))

    def end(self, end_offset: int) -> None:
        """Called at the end of the log: compares the snapshots up to it."""
        if end_offset > self._next_offset:
            self._gap_end = end_offset
        self._compare_snapshots(end_offset)
        behind = sorted(self._snapshots)
        if behind:
            reason = f"snapshots lie after the log's end at {end_offset}: {len(behind)}, the first at {behind[0]}"
            self.findings.append(Finding("note", "snapshot", self._path(behind[0], SNAPSHOT_SUFFIX), reason))

    def _compare_snapshots(self, next_offset: int) -> None:
        """Compares the snapshots that are valid up to ``next_offset``, if nothing came since the last batch."""
        while (offset := next(iter(self._snapshots), OFFSET_MAX)) <= next_offset and self._snapshots:
            entries = self._snapshots.pop(offset)
            if not self._is_known or offset <= self._first_base:
                continue
            compacted: dict[int, ProducerEntry] = {}
            for entry in entries:
                known = self._state.producers.get(entry.producer_id)
                if known is None or self._starts_later(known, entry):
                    continue
                if _is_compacted(known, entry, self._gap_end):
                    compacted[entry.producer_id] = entry
                elif _contradicts(known, entry):
                    reason = f"{_text(entry)}, but the log has {_text(known)}"
                    self.findings.append(Finding("damage", "snapshot", self._path(offset, SNAPSHOT_SUFFIX), reason))
            if compacted:
                self._replace(compacted)

    def _starts_later(self, known: KnownProducer, entry: ProducerEntry) -> bool:
        """Whether they differ only by where a transaction across the log's start begins, which a broker's recovery
        looks for above the start."""
        first_offset, latest = entry.current_txn_first_offset, self._start_offset
        visible = self._visible.producers.get(entry.producer_id)
        if visible is not None and visible.is_in_transaction:
            latest = visible.current_txn_first_offset
        if not (known.is_in_transaction and known.current_txn_first_offset <= first_offset <= latest):
            return False
        return not _contradicts(known._replace(current_txn_first_offset=first_offset), entry)

    def _replace(self, entries: Mapping[int, ProducerEntry]) -> None:
        """Takes producers as a snapshot has them, since compaction has removed batches of their open transactions."""
        is_split = self._visible is not self._state
        self._state = _replaced(self._state, entries)
        if not is_split:
            self._visible = self._state
        else:
            ended = {one: entry for one, entry in entries.items() if entry.current_txn_first_offset == NO_OFFSET}
            self._visible = _replaced(self._visible, ended)


def transaction_finding(path: str, aborted: AbortedTransaction, what: str) -> Finding:
    """Damage of a transaction index: ``what`` is wrong with its entry for an aborted transaction."""
    reason = f"the aborted transaction of producer {aborted.producer_id} {what}"
    return Finding("damage", "txnindex", path, reason, first=aborted.first_offset, last=aborted.last_offset)


def _replaced(state: ProducerState, entries: Mapping[int, ProducerEntry]) -> ProducerState:
    return ProducerState([entries.get(one.producer_id, one) for one in state.entries()])


def _is_compacted(known: KnownProducer, entry: ProducerEntry, gap_end: int) -> bool:
    """Whether they differ only by the open transaction, as after compaction has removed its first batches or its
    marker; the last gap in the offsets ends at ``gap_end``."""
    first_offset = entry.current_txn_first_offset
    if entry.last_offset == first_offset == NO_OFFSET and entry.producer_epoch > known.producer_epoch:
        # A marker with the next epoch, after which nothing came (KIP-890).
        return gap_end > known.last_offset
    if known.last_offset != entry.last_offset or not known.is_in_transaction:
        return False
    if _contradicts(known._replace(current_txn_first_offset=first_offset), entry):
        return False
    has_ended = first_offset == NO_OFFSET and gap_end > known.last_offset
    return has_ended or 0 <= first_offset < min(known.current_txn_first_offset, gap_end)


def _contradicts(known: KnownProducer, entry: ProducerEntry) -> bool:
    """Whether the batches cannot have led to ``entry``; those that compaction or retention removed prove nothing."""
    if known.last_offset < entry.last_offset:
        return False
    if known.last_offset > entry.last_offset:
        return True
    return (known.producer_epoch, known.last_sequence, known.current_txn_first_offset) != (
        entry.producer_epoch,
        entry.last_sequence,
        entry.current_txn_first_offset,
    )


def _text(entry: ProducerEntry | KnownProducer) -> str:
    return (
        f"producer {entry.producer_id}: epoch {entry.producer_epoch}, last sequence {entry.last_sequence}"
        f" at offset {entry.last_offset}, open transaction {entry.current_txn_first_offset}"
    )
