"""Recovery: finds the end of a log that was not closed cleanly, and what in it cannot be served.

Every segment not known to be flushed is scanned (``recovery_scan``), and ``rules/recover`` decides what damage means.
Nothing that held a whole batch is removed: it is set aside, durably, before anything is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from kstore.engine.loaded import Loaded, store_loaded
from kstore.engine.recovery_scan import epochs_in, scan_segment
from kstore.engine.segment_end import segment_end
from kstore.engine.transaction_rebuild import TransactionRebuild
from kstore.errors import DiskFullError, StorageError
from kstore.files.boot import boot_id
from kstore.files.checkpoint import EpochEntry
from kstore.files.fs import File, FileSystem
from kstore.files.paths import LEADER_EPOCHS, LOG_SUFFIX, cut_name
from kstore.record.batch import LOG_OVERHEAD_BYTES
from kstore.record.legacy import SIZE_MIN
from kstore.record.parse import entry_size
from kstore.record.scan import SearchBudget, find_next_batch
from kstore.rules.losses import LossRanges
from kstore.rules.recover import Decision, Doubt, SegmentFindings, decide
from kstore.segment import LogSegment
from kstore.state.kafka_marks import KafkaMarks
from kstore.state.log_state import LOST_MAX, UNCONFIRMED_MAX, LogState
from kstore.types import OFFSET_MAX, CutRange, RecoveryReport

__all__ = ["recover"]

COPY_BYTES = 1 << 20


def recover(loaded: Loaded, state: LogState | None, marks: KafkaMarks, advance: Callable[[int], None] | None) -> None:
    """Finds the end of the log and the damage in it; cuts what must go, and sets aside the whole batches in that."""
    report = loaded.report
    report.clean = False
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
        doubt = Doubt(first, first, False)
        if marks.recovery_point is not None and marks.recovery_point > first:
            report.notes.append("a Kafka checkpoint does not fit: the whole log is checked")
    started = loaded.context.clock.monotonic()
    scanned = loaded.segments.range(doubt.recovery_point, OFFSET_MAX)
    transactions = TransactionRebuild(loaded.producers)
    epochs: list[EpochEntry] = []
    findings = []
    for segment in scanned:
        found = scan_segment(
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
    _recover_epochs(loaded, [entry for entry in epochs if entry.start_offset < loaded.end_offset])
    report.seconds = loaded.context.clock.monotonic() - started
    # The names of rebuilt indexes must be durable before the state says that the log is sound.
    loaded.context.fs.sync_dir(loaded.context.directory)
    store_loaded(loaded)


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
    """Copies bytes to a file of their own, durably. Raises DiskFullError, and then nothing has been cut."""
    fs, directory = loaded.context.fs, loaded.context.directory
    path = _free_name(fs, directory, base_offset, position)
    try:
        target = fs.open(path, write=True, create=True, mode=loaded.context.config.file_mode)
        for at in range(position, stop, COPY_BYTES):
            target.write_all([source.pread(min(COPY_BYTES, stop - at), at)], at - position)
        target.fsync()
        fs.sync_dir(directory)
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
