"""Recovery: finds the end of a log that was not closed cleanly, and what in it cannot be served.

In every segment not known to be flushed, each batch and record is checked, and the indexes are rebuilt. Runs of plain
batches are checked by compiled code, and so is what they mean for indexes, producers and leader epochs. Everything else
(damage, compressed batches, old versions, a gap that the bytes at hand cannot judge) goes batch by batch; both ways
write the same bytes.

``rules/recover`` decides what damage means. Nothing that held a whole batch is removed: it is set aside, durably,
before anything is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from kstore.engine.files import Loaded
from kstore.engine.open.evidence import find_evidence, keep_copies
from kstore.engine.open.segment_end import segment_end
from kstore.engine.open.transaction_rebuild import TransactionRebuild
from kstore.errors import CorruptDataError, DiskFullError, StorageError
from kstore.files.checkpoint import EpochEntry
from kstore.files.fs import File, FileSystem
from kstore.files.paths import INDEX_SUFFIX, LEADER_EPOCHS, LOG_SUFFIX, cut_name
from kstore.files.platform import boot_id
from kstore.index import OffsetIndex
from kstore.record._runs import Run, epoch_starts
from kstore.record.batch import LOG_OVERHEAD_BYTES, MAGIC_V2, Batch
from kstore.record.legacy import SIZE_MIN
from kstore.record.parse import entry_size
from kstore.record.scan import SearchBudget, find_next_batch
from kstore.record.walk import walk_runs
from kstore.rules.evidence import Evidence
from kstore.rules.losses import LossRanges, holes, joined
from kstore.rules.recover import Decision, Doubt, SegmentFindings, decide
from kstore.scan.visits import Damages, RecordCheck, Visitor, visit
from kstore.segment import LogSegment
from kstore.segments.places import START
from kstore.segments.tail import Indexing
from kstore.state.kafka_marks import KafkaMarks
from kstore.state.log_state import LOST_MAX, UNCONFIRMED_MAX, LogState
from kstore.types import OFFSET_MAX, CorruptRange, CutRange, RecoveryReport

CHUNK_BYTES = 1 << 20
COPY_BYTES = 1 << 20


def recover(loaded: Loaded, state: LogState | None, marks: KafkaMarks, advance: Callable[[int], None] | None) -> None:
    """Finds the end of the log and the damage in it; cuts what must go, and sets aside the whole batches in that."""
    report = loaded.report
    report.clean = False
    evidence = Evidence()
    first = loaded.segments.first.base_offset
    if state is not None:
        suffix_only = state.durability != "sync" and state.boot_id != boot_id()
        is_gapless = state.durability == "sync"
        doubt = Doubt(max(state.recovery_point, first), state.durable_end, suffix_only, is_gapless)
    elif marks.clean and marks.recovery_point is not None and _ends_at(loaded, marks.recovery_point):
        report.clean = True
        loaded.end_offset = loaded.recovery_point = marks.recovery_point
        loaded.position = loaded.segments.last.size
        return
    else:
        evidence = find_evidence(
            loaded.context, loaded.segments, loaded.producers.snapshot_offsets, marks.recovery_point
        )
        _keep_evidence(loaded, evidence)
        doubt = Doubt(first, max(first, evidence.proven_end), False)
        if marks.recovery_point is not None and marks.recovery_point > first:
            report.notes.append("a Kafka checkpoint does not fit: the whole log is checked")
    started = loaded.context.clock.monotonic()
    scanned = loaded.segments.range(doubt.recovery_point, OFFSET_MAX)
    transactions = TransactionRebuild(loaded.producers)
    epochs = EpochStarts()
    findings = []
    for segment in scanned:
        found = _scan(
            segment,
            loaded.segments.higher(segment.base_offset),
            known_end=doubt.known_end,
            max_bytes_uncompressed=loaded.context.config.max_batch_bytes_uncompressed,
            transactions=transactions,
            epochs=epochs,
            report=report,
        )
        findings.append(found)
        if segment is not scanned[-1]:
            # At once: three files of every scanned segment would be more than a process may have open. This removes
            # nothing that was found in the log; ``_cut`` opens the segment again if the cut is in it.
            segment.seal(sync=True)
        if advance is not None:
            advance(found.size)
    decision = decide(findings, doubt)
    if decision.cut is not None:
        _cut(loaded, scanned, findings, decision)
    batches_end = max((found.next_offset for found in findings if found.batch_count), default=first)
    decision = _with_evidence(loaded, decision, evidence, batches_end)
    _take_losses(loaded, decision)
    report.corrupt.extend(lost for lost in decision.fenced if lost.last >= loaded.start_offset)
    _take_accepted(report, loaded.losses)
    last = loaded.segments.last
    loaded.end_offset = loaded.recovery_point = decision.end_offset
    loaded.position = last.size
    loaded.seal = decision.seal
    if loaded.end_offset < loaded.start_offset:
        # All records were deleted, and a truncation took the last batch: nothing below the start is assigned again.
        loaded.end_offset = loaded.recovery_point = loaded.start_offset
        loaded.seal = True
    loaded.producers.truncate_to(loaded.end_offset)
    _recover_epochs(loaded, [entry for entry in epochs.found if entry.start_offset < loaded.end_offset])
    report.seconds = loaded.context.clock.monotonic() - started
    # The names of rebuilt indexes must be durable before the state says that the log is sound.
    loaded.context.fs.sync_dir(loaded.context.directory)
    loaded.store()


def _keep_evidence(loaded: Loaded, evidence: Evidence) -> None:
    """Makes what ``evidence`` shows durable, before the scan replaces the files that show it.

    If the process ends meanwhile, the next open finds these offsets in the state: it neither assigns them nor takes
    the log for whole. Raises: DiskFullError, StorageError.
    """
    if not evidence.missing:
        return
    if evidence.is_loss:
        loaded.report.notes.append(f"{evidence.proof} proves that the log reached offset {evidence.proven_end}")
        copies = keep_copies(loaded.context, evidence, loaded.segments.bases, loaded.producers.snapshot_offsets)
        if copies:
            loaded.report.notes.append(f"what proves a loss is kept as {', '.join(copies)}")
    before = loaded.end_offset, loaded.recovery_point, loaded.losses
    loaded.recovery_point, loaded.end_offset = loaded.segments.first.base_offset, max(evidence.end, evidence.log_end)
    losses = loaded.losses.with_lost(evidence.missing, LOST_MAX)
    for first, last in evidence.untold:
        losses = losses.with_accepted(first, last)
    loaded.losses = losses
    loaded.store()
    loaded.end_offset, loaded.recovery_point, loaded.losses = before


def _with_evidence(loaded: Loaded, decision: Decision, evidence: Evidence, batches_end: int) -> Decision:
    """Adds to ``decision`` what ``evidence`` shows and the scan cannot know: lost ends of sealed segments, and offsets
    that were used above everything that is known to have been durable. ``batches_end``: where the scan's last whole
    batch ends."""
    known = joined((gone.first, gone.last) for gone in decision.fenced)
    fenced, lost = list(decision.fenced), list(decision.lost)
    for first, last, base_offset, what in evidence.holes:
        segment = loaded.segments.floor(base_offset)
        if segment is None or segment.base_offset != base_offset:
            continue  # it was cut
        for part in holes(first, last, known):
            reason = f"the segment ends at offset {first}, but {what} shows that it had more"
            fenced.append(CorruptRange(*part, segment.size, reason, str(segment.path(LOG_SUFFIX))))
            lost.append(part)
    decision = decision._replace(fenced=sorted(fenced), lost=lost)
    # The batches may end below the base of an empty last segment.
    log_end = max(evidence.log_end, batches_end)
    first, last = max(min(decision.end_offset, log_end), loaded.start_offset), evidence.end - 1
    if first > last:
        return decision
    segment = loaded.segments.last
    reason = f"{evidence.sign} shows that these offsets were used, and nothing that they were ever synced"
    for part in holes(first, last, joined((gone.first, gone.last) for gone in fenced)):
        loaded.report.skipped.append(CorruptRange(*part, segment.size, reason, str(segment.path(LOG_SUFFIX))))
        # Readers pass over them, as over a loss that was accepted: no promise covers them.
        loaded.losses = loaded.losses.with_accepted(*part)
        lost.append(part)
    return decision._replace(lost=lost, end_offset=max(evidence.end, decision.end_offset), seal=True)


def _scan(
    segment: LogSegment,
    following: LogSegment | None,
    *,
    known_end: int,
    max_bytes_uncompressed: int,
    transactions: TransactionRebuild,
    epochs: EpochStarts,
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
    # The system reads ahead while a chunk is checked; after this advice, twice as far. A thread that does so costs more
    # than it gains.
    tail.file.advise(0, 0, "sequential")
    path = str(segment.path(LOG_SUFFIX))

    def refuse(position: int, batch: Batch, reason: str) -> None:
        # Its CRC holds: it was written like this, no crash made it. It stays, and is never served.
        report.corrupt.append(CorruptRange(batch.base_offset, batch.last_offset, position, reason, path))

    damages, check = Damages(), RecordCheck(max_bytes_uncompressed, refuse)
    transactions.begin(segment)
    next_offset = visit(
        walk_runs(
            tail.file,
            0,
            tail.position,
            next_offset=segment.base_offset,
            offset_stop=following.base_offset if following else OFFSET_MAX,
            known_end=known_end,
            hints=hints,
            chunk_bytes=CHUNK_BYTES,
            run_bytes=CHUNK_BYTES,
        ),
        damages,
        check,
        Indexing(tail),
        transactions,
        epochs,
        base_offset=segment.base_offset,
    )
    tail.file.advise(0, 0, "normal")
    transactions.finish()
    report.segments_scanned += 1
    report.bytes_scanned += tail.position
    report.batches_scanned += check.batch_count
    report.records_scanned += check.record_count
    report.rebuilt.append(path)
    size_now = tail.file.size()
    return SegmentFindings(
        path, segment.base_offset, tail.position, next_offset, damages.found, check.batch_count, size_now
    )


def _indexed_positions(segment: LogSegment) -> Callable[[], Sequence[int]]:
    """Returns the positions that a segment's index has now, before it is rebuilt.

    After damage recovery must find what readers have found, which look there too.
    """
    path = segment.files.path_text(INDEX_SUFFIX)
    try:
        index = OffsetIndex.open_read_only(segment.context.fs, path, segment.base_offset, live=True)
    except (StorageError, CorruptDataError):
        return tuple
    return lambda: [entry.position for entry in index.entries()]


def _take_losses(loaded: Loaded, decision: Decision) -> None:
    """Adds the losses to ``loaded``. A log that ended with a loss before still does: its durable end says so."""
    losses = loaded.losses.with_lost(decision.lost, LOST_MAX)
    unconfirmed = [(fenced.first, fenced.last) for fenced in decision.fenced if fenced.is_unconfirmed]
    losses = losses.with_unconfirmed(unconfirmed, UNCONFIRMED_MAX)
    # What was cut, or is below the start, is not a loss: a truncation may have ended in the middle.
    loaded.losses = losses.within(loaded.start_offset, decision.end_offset)


def _take_accepted(report: RecoveryReport, losses: LossRanges) -> None:
    """Moves damage whose loss is accepted from the damage in ``report`` to its notes."""
    found, report.corrupt = report.corrupt, []
    for damage in found:
        report.corrupt += losses.judged(damage)
        if losses.unaccepted(damage.first, damage.last) != ((damage.first, damage.last),):
            report.notes.append(f"the loss of offsets in {damage.first} to {damage.last} is accepted: {damage.reason}")


def _ends_at(loaded: Loaded, offset: int) -> bool:
    """Whether the last segment ends with a whole batch, and the next offset is ``offset``."""
    last = loaded.segments.last
    return segment_end(last, last.size)[:2] == (offset, last.size)


def _cut(
    loaded: Loaded, scanned: Sequence[LogSegment], findings: Sequence[SegmentFindings], decision: Decision
) -> None:
    """Sets aside and removes everything from the cut on; what held no whole batch is just removed.

    The copies are durable before anything is removed, and the last segment goes first: a crash on the way leaves a
    log that the next open cuts again.
    """
    assert decision.cut is not None
    fs, directory = loaded.context.fs, loaded.context.directory
    number, position = decision.cut
    segment, found = scanned[number], findings[number]
    for later in reversed(scanned[number + 1 :]):
        reason = f"follows a cut: {decision.cut_reason}"
        path, later_size = str(later.path(LOG_SUFFIX)), later.size
        if _holds_batch(later.log_file(), 0, later_size):
            aside = _free_name(fs, directory, later.base_offset, 0)
            later.set_aside(aside)
            loaded.report.cut.append(CutRange(path, 0, later_size, reason, aside.name))
        else:
            later.delete()
            if later_size:
                loaded.report.cut.append(CutRange(path, 0, later_size, reason))
        loaded.segments.remove([later.base_offset])
    size = found.size - position
    tail = segment.activate()
    saved = ""
    if size and _holds_batch(tail.file, position, found.size):
        saved = _copy(loaded, tail.file, segment.base_offset, position, found.size).name
    # The names of what is set aside: a power cut must not take the copy, and keep the cut.
    fs.sync_dir(directory)
    tail.truncate_to(decision.end_offset, position)
    sizes = loaded.producers.index_sizes
    sizes.note(segment.base_offset, segment.files.truncate_transactions_to(decision.end_offset))
    sizes.drop(later.base_offset for later in scanned[number + 1 :])
    if size:
        loaded.report.cut.append(CutRange(found.path, position, size, decision.cut_reason, saved))


def _holds_batch(file: File, position: int, stop: int) -> bool:
    """Whether bytes from ``position`` on hold a whole batch, damaged or not; a torn write does not leave one."""
    head = file.pread(LOG_OVERHEAD_BYTES, position)
    if len(head) == LOG_OVERHEAD_BYTES and SIZE_MIN[0] <= entry_size(head) <= stop - position:
        return True
    budget = SearchBudget(stop - position)
    # What was not searched may hold one.
    return find_next_batch(file, position, stop, next_offset=0, budget=budget) is not None or budget.is_spent


def _free_name(fs: FileSystem, directory: Path, base_offset: int, position: int) -> Path:
    """A name for what is cut at ``position``; if an earlier cut has that name, the next free number."""
    while fs.exists(directory / cut_name(base_offset, position)):
        position += 1
    return directory / cut_name(base_offset, position)


def _copy(loaded: Loaded, source: File, base_offset: int, position: int, stop: int) -> Path:
    """Copies bytes to a file of their own; the caller makes its name durable. Raises DiskFullError: nothing was cut."""
    fs, directory = loaded.context.fs, loaded.context.directory
    path = _free_name(fs, directory, base_offset, position)
    try:
        target = fs.open(path, write=True, create=True, mode=loaded.context.config.file_mode)
        for at in range(position, stop, COPY_BYTES):
            target.write_all([source.pread(min(COPY_BYTES, stop - at), at)], at - position)
        target.fsync()
    except DiskFullError as error:
        with suppress(StorageError):
            fs.unlink(path)  # it may not even have been created
        raise DiskFullError(
            error.errno, f"no room to set aside {stop - position} damaged bytes: nothing was cut", str(path)
        ) from error
    return path


def _recover_epochs(loaded: Loaded, found: list[EpochEntry]) -> None:
    """Updates the epochs with those ``found`` in the part of the log that was read."""
    epochs = loaded.epochs
    if found and found[-1].epoch > 0 and not epochs.entries:
        loaded.report.notes.append(f"{LEADER_EPOCHS} is lost, and rebuilt")
        epochs.replace(epochs_in(loaded.segments))
    elif epochs.entries:
        for entry in found:
            if entry.epoch > (epochs.latest_epoch or 0):
                epochs.assign(*entry)


def epochs_in(segments: Iterable[LogSegment]) -> list[EpochEntry]:
    """The leader epochs of a log's batches. Raises: StorageError."""
    epochs = EpochStarts()
    for segment in segments:
        # Not by a lookup, which may have an index repaired: one of the writers of a shared log has its lock here.
        visit(segment.runs_from(START, segment.size), epochs, base_offset=segment.base_offset)
    return epochs.found


class EpochStarts(Visitor):
    """The leader epochs of a log's batches, each with the offset of its first one (LogSegment.recover)."""

    def __init__(self) -> None:
        self.found: list[EpochEntry] = []

    def note(self, position: int, batch: Batch) -> None:
        if batch.magic >= MAGIC_V2 and batch.leader_epoch > (self.found[-1].epoch if self.found else -1):
            self.found.append(EpochEntry(batch.leader_epoch, batch.base_offset))

    def note_run(self, run: Run) -> None:
        latest = self.found[-1].epoch if self.found else -1
        if run.leader_epoch_max > latest:
            self.found += [EpochEntry(*start) for start in epoch_starts(run, latest)]
