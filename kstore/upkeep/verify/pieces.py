"""Verifies one log in pieces, a segment each, possibly on several machines: for logs too large for one process.

A piece takes the producers and open transactions of its predecessors from the snapshot at its first offset. Without a
snapshot, producers are not checked in that piece; ``verify_log`` always checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kstore.config import LogConfig
from kstore.errors import KstoreError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_name
from kstore.record._runs import Run
from kstore.record.batch import Batch
from kstore.rules.losses import NO_LOSSES, LossRanges
from kstore.scan.visits import Visitor, no_advance
from kstore.types import NO_OFFSET, NO_TIMESTAMP, OFFSET_MAX, AbortedTransaction
from kstore.upkeep.verify.changing import Sight, generation_of, is_live, look, look_again, settled_bases
from kstore.upkeep.verify.findings import Finding, LogVerification
from kstore.upkeep.verify.partition import EpochOrder, LogHead, lost_batches
from kstore.upkeep.verify.producers import NOT_LISTED, ProducerCheck, transaction_finding
from kstore.upkeep.verify.segment_files import SegmentFiles, verify_segment


class SegmentToVerify(NamedTuple):
    """A segment of the log in ``directory``; offsets at or above ``offset_stop`` belong to the next one.

    ``snapshots`` are the offsets of the snapshots from its first offset to its last; ``start_offset`` is the log's.
    """

    directory: str
    base_offset: int
    offset_stop: int
    is_first: bool
    is_live: bool
    snapshots: tuple[int, ...]
    losses: LossRanges = NO_LOSSES
    known_end: int = 0
    start_offset: int = 0

    @property
    def is_last(self) -> bool:
        return self.offset_stop == OFFSET_MAX


@dataclass(slots=True)
class PieceVerification:
    """The result for a piece: ``log`` covers this segment alone.

    ``knows_producers``: whether the producers before it are known. ``epochs``: the leader epoch of its first batch,
    that batch's offset, and the greatest epoch. ``open_records`` and ``unlisted``: see ``ProducerCheck``. ``sight``:
    its files before they were read.
    """

    log: LogVerification
    knows_producers: bool
    epochs: tuple[int, int, int]
    open_records: dict[int, int]
    unlisted: list[AbortedTransaction]
    sight: Sight


def pieces_of(head: LogHead, *, is_live: bool = False) -> list[SegmentToVerify]:
    """The pieces of a log, in order; ``is_live``: a writer may have it open."""
    bases = head.bases
    found = []
    for number, base_offset in enumerate(bases):
        stop = bases[number + 1] if number + 1 < len(bases) else OFFSET_MAX
        is_first = number == 0
        snapshots = tuple(at for at in head.snapshots if at <= stop and (is_first or at >= base_offset))
        live_end = is_live and stop == OFFSET_MAX
        found.append(
            SegmentToVerify(
                head.log.path,
                base_offset,
                stop,
                is_first,
                live_end,
                snapshots,
                head.losses,
                head.known_end,
                head.log.start_offset,
            )
        )
    return found


def verify_piece(
    piece: SegmentToVerify, *, fs: FileSystem = SYSTEM_FS, config: LogConfig | None = None
) -> PieceVerification:
    """Reads one segment with its indexes and snapshots; unreadable data is damage too.

    A segment that another program replaces meanwhile is not checked, which is a note. What looks damaged in the last
    one, and may have been cut meanwhile, is read once more.
    """
    found = _verified(piece, fs, config)
    may_be_cut = piece.is_last and found.sight.generation != generation_of(fs, Path(piece.directory))
    return _verified(piece, fs, config) if found.log.damages and may_be_cut else found


def _verified(piece: SegmentToVerify, fs: FileSystem, config: LogConfig | None) -> PieceVerification:
    directory = Path(piece.directory)
    before = look(fs, directory, piece.base_offset, piece.offset_stop)
    log = LogVerification(piece.directory, start_offset=piece.base_offset, end_offset=piece.base_offset)
    limit = (config or LogConfig()).max_batch_bytes_uncompressed
    path = f"{piece.directory}/{segment_name(piece.base_offset, LOG_SUFFIX)}"
    first, epochs = _FirstEpoch(), EpochOrder(piece.directory)
    knows_producers = piece.base_offset == 0 or piece.base_offset in piece.snapshots
    unstable: int | None = None
    open_records: dict[int, int] = {}
    unlisted: list[AbortedTransaction] = []
    try:
        live = is_live(fs, directory)
        producers = ProducerCheck(fs, directory, piece.snapshots, piece.base_offset, piece.start_offset, is_live=live)
        span = (piece.base_offset, piece.offset_stop)
        files = SegmentFiles(fs, directory, *span, piece.is_live, limit, piece.losses, piece.known_end)
        log.end_offset = verify_segment(files, log, no_advance, first, producers, epochs)
        if lost_batches(log):
            producers.lose_track()
        producers.end_segment(piece.base_offset)
        producers.end(log.end_offset if piece.is_last else piece.offset_stop)
        unstable = producers.first_unstable_offset
        open_records, unlisted = producers.open_records, producers.unlisted
        own = f"{piece.directory}/{segment_name(piece.base_offset, SNAPSHOT_SUFFIX)}"
        # The snapshot at its start is the end of the previous piece, which has reported it.
        log.findings += [each for each in producers.findings if piece.is_first or each.path != own]
    except KstoreError as error:
        log.findings.append(Finding("damage", "batch", path, f"cannot be read: {error}", first=piece.base_offset))
    log.findings += epochs.findings
    if log.damages and _was_replaced(piece, before, fs):
        reason = "another program replaced the segment while it was read: not checked"
        log.findings = [Finding("note", "name", path, reason, first=piece.base_offset)]
        knows_producers, unstable, open_records, unlisted = False, None, {}, []
    log.last_stable_offset = log.end_offset if unstable is None else min(unstable, log.end_offset)
    return PieceVerification(log, knows_producers, (*first.found, epochs.last), open_records, unlisted, before)


class _FirstEpoch(Visitor):
    """The leader epoch of the first batch, and that batch's offset."""

    found = (-1, NO_OFFSET)

    def note(self, position: int, batch: Batch) -> None:
        if self.found[1] == NO_OFFSET:
            self.found = (batch.leader_epoch, batch.base_offset)

    def note_run(self, run: Run) -> None:
        if self.found[1] == NO_OFFSET:
            self.note(*next(run.batches()))


def _was_replaced(piece: SegmentToVerify, before: Sight, fs: FileSystem) -> bool:
    """Whether another program has replaced the segment of ``piece`` since the log was listed."""
    directory = Path(piece.directory)
    now = look_again(fs, directory, piece.base_offset, settled_bases(fs, directory))
    if now is None:
        return before.files[0] is not None or is_live(fs, directory)
    return not before.has_same_files(now)


def _have_changed(head: LogHead, pieces: Sequence[PieceVerification], fs: FileSystem) -> bool:
    """Whether another program has replaced segments since they were read: then their records may be those of different
    moments, and say nothing about what the indexes of others lack."""
    directory = Path(head.log.path)
    return any(
        not piece.sight.has_same_files(look(fs, directory, base_offset, piece.sight.following))
        for base_offset, piece in zip(head.bases, pieces, strict=True)
    )


def join(head: LogHead, pieces: Sequence[PieceVerification], *, fs: FileSystem = SYSTEM_FS) -> LogVerification:
    """The whole log, from the results of its pieces, in order; adds what only all of them together show."""
    log = head.log
    log.end_offset = log.last_stable_offset = log.start_offset
    epochs = EpochOrder(log.path)
    # As in ``ProducerCheck``, for the pieces so far.
    open_records: dict[int, int] = {}
    has_changed = any(piece.unlisted for piece in pieces) and _have_changed(head, pieces, fs)
    for piece, base_offset in zip(pieces, head.bases, strict=True):
        epoch, offset, last_epoch = piece.epochs
        epochs.take(epoch, offset)
        epochs.take(last_epoch, offset)
        found = piece.log
        log.segment_count += found.segment_count
        log.batch_count += found.batch_count
        log.record_count += found.record_count
        log.size += found.size
        log.last_ms = found.last_ms if found.last_ms != NO_TIMESTAMP else log.last_ms
        log.end_offset = found.end_offset
        log.last_stable_offset = max(found.last_stable_offset, log.start_offset)
        log.findings += found.findings
        path = f"{log.path}/{segment_name(base_offset, TXN_INDEX_SUFFIX)}"
        log.findings += [
            transaction_finding(path, aborted, NOT_LISTED)
            for aborted in piece.unlisted
            if open_records.get(aborted.producer_id, -1) >= aborted.first_offset and not has_changed
        ]
        open_records |= piece.open_records
    if not pieces:
        producers = ProducerCheck(fs, Path(log.path), head.snapshots, 0)
        producers.end(log.end_offset)
        log.findings += producers.findings
    log.findings += epochs.findings
    head.hold_against_end(fs)
    return log
