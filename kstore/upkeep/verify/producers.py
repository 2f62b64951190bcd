"""Verifies what a log's files say about producers and transactions, against the batches themselves.

Snapshots and transaction indexes are made from the batches, so the batches determine their contents. The snapshot at
the first segment, if one remains, tells what precedes it. Compaction removes data of aborted transactions, then their
entries in the index, then their markers. So an index may list more than the batches still show, but never a transaction
that ended differently, and it may lack one without remaining records; and a transaction that a snapshot shows as open
may have ended where offsets are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kstore.errors import CorruptDataError, StorageError
from kstore.files.fs import FileSystem, read_file
from kstore.files.paths import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_name
from kstore.index import TransactionIndex
from kstore.record.batch import Batch
from kstore.record.control import ControlRecordType, parse_end_transaction_marker
from kstore.rules.sequence import Producer
from kstore.state.producer_snapshot import ProducerEntry, decode_snapshot
from kstore.state.producer_state import ProducerState
from kstore.types import NO_OFFSET, AbortedTransaction
from kstore.upkeep.verify.findings import Finding

__all__ = ["NOT_LISTED", "ProducerCheck", "transaction_finding"]

NOT_LISTED = "is not in the index"


class ProducerCheck:
    """Follows the batches of one log in order, and checks snapshots and transaction indexes against them."""

    def __init__(self, fs: FileSystem, directory: Path, snapshots: Sequence[int], first_base: int) -> None:
        self._fs = fs
        self._directory = directory
        self._first_base = first_base
        self.findings: list[Finding] = []
        self._snapshots: dict[int, list[ProducerEntry]] = {}
        for offset in snapshots:
            path = self._path(offset, SNAPSHOT_SUFFIX)
            try:
                self._snapshots[offset] = decode_snapshot(read_file(fs, path))
            except CorruptDataError as error:
                self.findings.append(Finding("damage", "snapshot", path, str(error.reason)))
            except StorageError as error:
                self.findings.append(Finding("damage", "snapshot", path, error.strerror or str(error)))
        self._state = ProducerState(self._snapshots.get(first_base, ()))
        self._is_known = first_base == 0 or first_base in self._snapshots
        # Transactions aborted in the current segment, with and without records that were read.
        self._aborted: list[AbortedTransaction] = []
        self._emptied: list[AbortedTransaction] = []
        # For each producer whose open transaction has records read here: the offset of the last of them.
        self.open_records: dict[int, int] = {}
        # Aborted transactions that started before the first segment read here, have no records in what was read, and
        # are not in the index: with records in an earlier segment that is damage.
        self.unlisted: list[AbortedTransaction] = []
        # Where the last gap in the offsets ended, and where the next batch is expected.
        self._gap_end = -1
        self._next_offset = first_base
        self._ends: dict[int, tuple[int, ControlRecordType]] = {}

    def _path(self, offset: int, suffix: str) -> str:
        return f"{self._directory}/{segment_name(offset, suffix)}"

    @property
    def first_unstable_offset(self) -> int | None:
        return self._state.first_unstable_offset

    def note(self, batch: Batch) -> None:
        """Adds the next batch."""
        if batch.base_offset > self._next_offset or not batch.record_count:
            self._gap_end = batch.last_offset
        self._next_offset = batch.last_offset + 1
        if batch.producer_id < 0:
            return
        self._compare_snapshots(batch.base_offset)
        try:
            aborted = self._state.update(batch)
            has_records = batch.producer_id in self.open_records
            if batch.is_control:
                self._note_end(batch)
            elif batch.is_transactional and batch.record_count:
                self.open_records[batch.producer_id] = batch.last_offset
        except CorruptDataError:
            return  # the batch itself was reported
        if aborted is not None:
            (self._aborted if has_records else self._emptied).append(aborted)

    def _note_end(self, batch: Batch) -> None:
        marker = next(iter(batch.records()), None)
        end = parse_end_transaction_marker(marker.key, marker.value) if marker is not None else None
        if end is not None:
            self._ends[batch.last_offset] = (batch.producer_id, end.type)
            self.open_records.pop(batch.producer_id, None)

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
        except CorruptDataError as error:
            self.findings.append(Finding("damage", "txnindex", path, str(error.reason)))
            return
        finally:
            index.close()
        for aborted in set(expected).difference(found) if self._is_known else ():
            self._transaction(path, aborted, NOT_LISTED)
        if self._is_known:
            self.unlisted += [each for each in emptied if each not in found and each.first_offset < self._first_base]
        for listed in set(found).difference(expected):
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
            reason = f"{len(behind)} snapshots lie after the log's end at {end_offset}, the first at {behind[0]}"
            self.findings.append(Finding("note", "snapshot", self._path(behind[0], SNAPSHOT_SUFFIX), reason))

    def _compare_snapshots(self, next_offset: int) -> None:
        """Compares the snapshots that are valid up to ``next_offset``, if nothing came since the last batch."""
        for offset in [offset for offset in self._snapshots if offset <= next_offset]:
            entries = self._snapshots.pop(offset)
            if not self._is_known or offset <= self._first_base:
                continue
            for entry in entries:
                known = self._state.producers.get(entry.producer_id)
                if known is None:
                    continue
                if _is_compacted(known, entry, self._gap_end):
                    self._state = ProducerState(
                        [entry if one.producer_id == entry.producer_id else one for one in self._state.entries()]
                    )
                elif _contradicts(known, entry):
                    reason = f"{_text(entry)}, but the log has {_text(known)}"
                    self.findings.append(Finding("damage", "snapshot", self._path(offset, SNAPSHOT_SUFFIX), reason))


def transaction_finding(path: str, aborted: AbortedTransaction, what: str) -> Finding:
    """Damage of a transaction index: ``what`` is wrong with its entry for an aborted transaction."""
    reason = f"the aborted transaction of producer {aborted.producer_id} {what}"
    return Finding("damage", "txnindex", path, reason, first=aborted.first_offset, last=aborted.last_offset)


def _is_compacted(known: Producer, entry: ProducerEntry, gap_end: int) -> bool:
    """Whether they differ only by the open transaction, as after compaction has removed its first batches or its
    marker; the last gap in the offsets ends at ``gap_end``."""
    first_offset = entry.current_txn_first_offset
    if known.last_offset != entry.last_offset or not known.is_in_transaction:
        return False
    if _contradicts(known._replace(current_txn_first_offset=first_offset), entry):
        return False
    has_ended = first_offset == NO_OFFSET and gap_end > known.last_offset
    return has_ended or 0 <= first_offset < min(known.current_txn_first_offset, gap_end)


def _contradicts(known: Producer, entry: ProducerEntry) -> bool:
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


def _text(entry: ProducerEntry | Producer) -> str:
    return (
        f"producer {entry.producer_id}: epoch {entry.producer_epoch}, last sequence {entry.last_sequence}"
        f" at offset {entry.last_offset}, open transaction {entry.current_txn_first_offset}"
    )
