"""Opening a log for writing: lock, list, believe or recover.

    clean      ``kstore.state`` carries a clean mark that fits the active ``.log``: nothing is scanned
    foreign    no ``kstore.state``: the store's Kafka checkpoints and clean marker, believed if the log ends there
    otherwise  every segment not known to be flushed is synced, dropped from the page cache, read again, and checked
               batch by batch and record by record; its indexes are rebuilt on the way

What damage means is decided by ``rules/recover``; nothing that held a whole batch is removed, it is set aside.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kstore.engine.ends import Ends
from kstore.engine.producers import LogProducers, TransactionRebuild
from kstore.engine.recovery_scan import epochs_in, scan_segment
from kstore.engine.segment_end import segment_end
from kstore.engine.segments import LogSegments
from kstore.engine.split import overflowing, split_segment
from kstore.engine.swap import finish_swaps, swapped_bases, swapped_index_bytes
from kstore.errors import (
    CorruptFileError,
    DiskFullError,
    FileInTheWayError,
    NotALogError,
    StorageError,
    SyncFailedError,
)
from kstore.files.boot import boot_id
from kstore.files.checkpoint import EpochEntry, read_leader_epochs
from kstore.files.fs import File, FileSystem
from kstore.files.paths import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    KSTORE_GROUPS,
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOCK,
    LOG_SUFFIX,
    PARTITION_METADATA,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    DirectoryNames,
    classify,
    cut_name,
    parse_segment_name,
)
from kstore.indexes.transaction_sizes import TransactionIndexSizes
from kstore.record.batch import LOG_OVERHEAD_BYTES
from kstore.record.legacy import SIZE_MIN
from kstore.record.parse import entry_size
from kstore.record.scan import SearchBudget, find_next_batch
from kstore.rules.losses import NO_LOSSES, LossRanges
from kstore.rules.recover import Decision, Doubt, SegmentFindings, decide
from kstore.segment import LogSegment, SegmentContext
from kstore.state.compaction_state import KSTORE_COMPACTION, read_compaction_state
from kstore.state.kafka_marks import KafkaMarks, read_kafka_marks
from kstore.state.leader_epoch import LeaderEpochCache
from kstore.state.log_state import LOST_MAX, UNCONFIRMED_MAX, UNKNOWN_TXN_BYTES, LogState, StateFile
from kstore.types import OFFSET_MAX, CutRange, Durability, RecoveryReport

__all__ = [
    "LACKING_INDEX",
    "Loaded",
    "ensure_log_directory",
    "is_log",
    "load",
    "losses_of",
    "make_directory",
    "read_epochs",
]

logger = logging.getLogger(__name__)

LACKING_INDEX = "segments lack an index: the first lookup in each rebuilds it"
COPY_BYTES = 1 << 20
# Names that make a directory a log even without a segment: creating one may have been interrupted.
MARKS = frozenset({KSTORE_STATE, PARTITION_METADATA, LEADER_EPOCHS})
OWN_NAMES = MARKS | {LOCK, KSTORE_COMPACTION, KSTORE_GROUPS}


@dataclass(slots=True)
class Loaded:
    """An open log, before anything is written to it. ``position`` is the end of the last segment, in bytes."""

    context: SegmentContext
    durability: Durability
    segments: LogSegments
    producers: LogProducers
    state_file: StateFile
    start_offset: int
    end_offset: int
    position: int
    recovery_point: int
    epochs: LeaderEpochCache
    seal: bool
    report: RecoveryReport
    losses: LossRanges = NO_LOSSES

    @property
    def ends(self) -> Ends:
        """Where it begins and ends; all that is left in it is on disk."""
        end = self.end_offset
        return Ends(
            self.start_offset,
            min(self.recovery_point, end),
            end,
            end,
            end,
            self.segments.last.base_offset,
            self.position,
        )

    @property
    def leader_epoch(self) -> int:
        """The epoch of what is appended: the latest of the directory, 0 where there is none."""
        return self.epochs.latest_epoch or 0


def is_log(names: DirectoryNames) -> bool:
    """Whether a listing is that of a log; an empty directory is none."""
    return bool(names.bases[LOG_SUFFIX]) or not MARKS.isdisjoint(names.others)


def ensure_directory(fs: FileSystem, path: Path) -> None:
    """Raises: NotALogError for anything but a directory."""
    if not fs.stat(path, follow_symlinks=True).is_dir:
        raise NotALogError(errno.ENOTDIR, "not a directory", str(path))


def ensure_log_directory(fs: FileSystem, directory: Path, *, mode: int, is_lone: bool) -> None:
    """Makes sure that ``directory`` is there, with a durable name, and is a log or a place where one may be created.

    ``is_lone`` is False for a partition, whose directory the store has made and synced.

    Raises: NotALogError for anything else; StorageError.
    """
    if fs.exists(directory / KSTORE_STATE):
        ensure_directory(fs, directory)
        return  # the common case, and no second listing of thousands of names
    if is_lone or not fs.exists(directory):
        make_directory(fs, directory, mode=mode)
    ensure_directory(fs, directory)
    names = classify(fs.list(directory))
    foreign = sorted(name for name in names.others if name != LOCK)
    if foreign and not is_log(names):
        held = ", ".join(foreign[:3])
        raise NotALogError(errno.ENOTDIR, f"not a log: it holds {held}, and no segment", str(directory))


def make_directory(fs: FileSystem, directory: Path, *, mode: int) -> None:
    """Creates ``directory`` with its missing parents. All their names are durable on return.

    Several processes may do this at the same time. The name of a directory that is there already is synced too: the
    process that has just made it may not have come to that yet.
    """
    missing = []
    path = directory
    while not fs.exists(path):
        missing.append(path)
        path = path.parent
    try:
        fs.sync_dir(path.parent)
    except StorageError as error:
        # A directory that this process cannot open, or change, is not one in which it, or its like, makes names.
        if isinstance(error, SyncFailedError) and error.errno != errno.EROFS:
            raise
    for path in reversed(missing):
        try:
            fs.mkdir(path, mode)
        except FileInTheWayError:
            ensure_directory(fs, path)  # another process was quicker
        # Until the parent is synced too, a crash may lose the new directory with all that is in it.
        fs.sync_dir(path.parent)


def load(
    context: SegmentContext,
    durability: Durability,
    *,
    advance: Callable[[int], None] | None = None,
    marks: KafkaMarks | None = None,
) -> Loaded:
    """Opens the log in ``context.directory``, whose lock the caller holds.

    ``marks`` are what Kafka's files beside it say; where they are not given they are read.
    ``advance`` hears how many more bytes a recovery has checked.

    Raises: StorageError (nothing that cannot be read is taken for damage), DiskFullError where there is
    no room to set aside what must be cut.
    """
    fs, directory, config = context.fs, context.directory, context.config
    names = classify(fs.list(directory))
    state_known = KSTORE_STATE in names.others
    state_file = StateFile.open(fs, directory / KSTORE_STATE, mode=config.file_mode)
    try:
        _store_swap(state_file, directory, fs, names)
        state = state_file.current
        report = RecoveryReport(ignored=sorted(name for name in names.others if name not in OWN_NAMES))
        if state is not None:
            marks = KafkaMarks()
        elif marks is None:
            marks = read_kafka_marks(fs, directory)
        if state is None and state_known:
            report.notes.append(f"{KSTORE_STATE} is damaged: the whole log is checked")
        start_offset = state.log_start_offset if state is not None else (marks.log_start_offset or 0)
        is_new = not (state_known or marks.recovery_point or names.unfinished or any(names.bases.values()))
        segments = _tidy(context, names, start_offset, is_new=is_new)
        index_sizes = TransactionIndexSizes.found(fs, directory, _indexed(names, segments))
        producers = LogProducers(context, segments, names.bases[".snapshot"], index_sizes)
        epochs = read_epochs(context, report)
        if state is not None and state.has_epochs and LEADER_EPOCHS not in names.others:
            # Else what is appended next would have an epoch below that of what is there.
            epochs = None
            report.notes.append(f"{LEADER_EPOCHS} is lost, and rebuilt from the log")
        loaded = Loaded(
            context=context,
            durability=durability,
            segments=segments,
            producers=producers,
            state_file=state_file,
            start_offset=max(start_offset, segments.first.base_offset),
            end_offset=segments.last.base_offset,
            position=0,
            recovery_point=0,
            epochs=LeaderEpochCache(fs, directory / LEADER_EPOCHS, epochs or (), mode=config.file_mode),
            seal=False,
            report=report,
            losses=losses_of(state),
        )
        fits = state is not None and state.fits(segments.last.base_offset, fs.stat(segments.last.path(LOG_SUFFIX)))
        if state is not None:
            _check_transaction_indexes(loaded, state, fits=fits)
        if state is not None and fits:
            loaded.end_offset = loaded.recovery_point = state.durable_end
            loaded.position = state.clean_size
        elif is_new:
            # Nothing was ever in it, so nothing is to be checked. The record goes to disk with the names of all files.
            segments.last.activate(empty_indexes=True)
            loaded.recovery_point = loaded.end_offset
            _store(loaded)
        else:
            _recover(loaded, state, marks, advance)
            if report.clean:
                _repair_transaction_indexes(loaded, segments)
        if epochs is None:
            loaded.epochs.replace(epochs_in(loaded.segments))
        # One that begins where the log ends is the one that writes next.
        loaded.epochs.truncate_from_end(loaded.end_offset + 1)
        producers.remove_strays(loaded.end_offset)
        _split_overflowing(loaded)
        if lacking := sum(segment.lacks_index for segment in loaded.segments):
            report.notes.append(f"{lacking} {LACKING_INDEX}")
        return loaded
    except BaseException:
        state_file.close()
        raise


def losses_of(state: LogState | None) -> LossRanges:
    """What ``kstore.state`` says of the log's losses."""
    return NO_LOSSES if state is None else LossRanges(state.lost, state.accepted, state.unconfirmed)


def _store_swap(state_file: StateFile, directory: Path, fs: FileSystem, names: DirectoryNames) -> None:
    """Stores what a swap changes in the size of the transaction indexes, if its writer died before it came to that.

    All files of the old segments are still there then: they go only after this. Raises: StorageError.
    """
    state, swapped = state_file.current, swapped_bases(names)
    if state is None or state.txn_bytes == UNKNOWN_TXN_BYTES or not swapped:
        return
    compaction = read_compaction_state(fs, directory / KSTORE_COMPACTION)
    if compaction is None or compaction.generation != state.generation or compaction.swap[:1] != tuple(swapped):
        return
    replaced = TransactionIndexSizes.found(fs, directory, compaction.swap)
    old = replaced.total(compaction.swap, state.log_start_offset, None)
    change = swapped_index_bytes(fs, directory, swapped[0]) - old
    # A sum that did not fit before does not fit after it either, and every index is rebuilt.
    state_file.store(replace(state, txn_bytes=max(state.txn_bytes + change, 0)))


def _indexed(names: DirectoryNames, segments: LogSegments) -> list[int]:
    """The segments that may have a transaction index, of ``names`` or swapped in since."""
    swapped = {name.base_offset for name in names.unfinished if name.suffix == TXN_INDEX_SUFFIX}
    return sorted((swapped | set(names.bases[TXN_INDEX_SUFFIX])) & set(segments.bases))


def _check_transaction_indexes(loaded: Loaded, state: LogState, *, fits: bool) -> None:
    """Rebuilds the transaction indexes that recovery does not look at, if one is lost or has another size."""
    segments, sizes = loaded.segments, loaded.producers.index_sizes
    start, stop = state.log_start_offset, None if state.clean else state.recovery_point
    found = sizes.total(segments.bases, start, stop)
    first_scanned = segments.floor(state.recovery_point) or segments.first
    believed = [segment for segment in segments if fits or segment.base_offset < first_scanned.base_offset]
    if state.txn_bytes == UNKNOWN_TXN_BYTES or state.txn_bytes == found:
        _repair_transaction_indexes(loaded, believed)
        return
    paths = loaded.producers.rebuild_indexes(believed)
    loaded.report.clean = False
    note = (
        f"a transaction index is lost or damaged ({found} bytes in all, expected {state.txn_bytes}):"
        f" all are rebuilt from the log, {len(paths)} of them differ"
    )
    logger.warning("%s: %s", loaded.context.directory, note)
    loaded.report.notes.append(note)
    loaded.report.rebuilt.extend(paths)
    rebuilt = sizes.total(segments.bases, start, stop)
    if fits and rebuilt != state.txn_bytes:
        loaded.state_file.store(replace(state, txn_bytes=rebuilt))


def _repair_transaction_indexes(loaded: Loaded, segments: Iterable[LogSegment]) -> None:
    """Rebuilds those transaction indexes of ``segments`` that cannot be right."""
    sizes = loaded.producers.index_sizes
    for path in loaded.producers.repair_indexes(segment for segment in segments if segment.base_offset in sizes):
        loaded.report.notes.append(f"a transaction index cannot be right, and is made anew: {path}")


def _split_overflowing(loaded: Loaded) -> None:
    """Splits the segments whose offsets are too far apart for their indexes, all but one that recovery has open."""
    segments, report = loaded.segments, loaded.report
    context, producers = loaded.context, loaded.producers
    is_split = False
    for base_offset, stop in overflowing(segments, loaded.end_offset):
        segment = segments.floor(base_offset)
        assert segment is not None, "it is in the map"
        if segment.tail is not None:
            continue  # the next append begins a segment of its own
        refused = split_segment(segments, segment, stop)
        is_split |= not refused
        report.notes.append(
            f"segment {base_offset} spans more offsets than its indexes can hold: "
            + (f"not split: {refused}" if refused else "split, as Kafka does")
        )
        if not refused and base_offset in producers.index_sizes:
            bases = segments.range(base_offset, stop)
            found = TransactionIndexSizes.found(context.fs, context.directory, [one.base_offset for one in bases])
            for one in bases:
                producers.index_sizes.note(one.base_offset, found.total([one.base_offset], one.base_offset, None))
    if is_split:
        # The clean mark may be that of a segment that was split.
        loaded.position = segments.last.size
        _store(loaded)


def read_epochs(context: SegmentContext, report: RecoveryReport) -> list[EpochEntry] | None:
    """The epochs of the directory's checkpoint, None where they cannot be read."""
    try:
        return read_leader_epochs(context.fs, context.directory / LEADER_EPOCHS)
    except CorruptFileError as error:
        report.notes.append(f"{LEADER_EPOCHS} is made anew: {error.reason}")
        return None


def _recover_epochs(loaded: Loaded, found: list[EpochEntry]) -> None:
    """Brings the epochs up to what was ``found`` in the part of the log that was read."""
    epochs = loaded.epochs
    if found and found[-1].epoch > 0 and not epochs.entries:
        loaded.report.notes.append(f"{LEADER_EPOCHS} is lost, and made anew")
        epochs.replace(epochs_in(loaded.segments))
    elif epochs.entries:
        for entry in found:
            if entry.epoch > (epochs.latest_epoch or 0):
                epochs.assign(*entry)


def _tidy(context: SegmentContext, names: DirectoryNames, start_offset: int, *, is_new: bool) -> LogSegments:
    """Finishes or undoes what earlier work left half done, and makes the map of segments; a log has at least one.

    The name of the first segment of a log that ``is_new`` is left for the caller to sync.
    """
    fs, directory = context.fs, context.directory
    has_swapped = finish_swaps(context, names)
    for name in names.unfinished:
        if name.state in (DELETED_SUFFIX, CLEANED_SUFFIX):
            fs.unlink(directory / str(name))
    if has_swapped:
        names = classify(fs.list(directory))
    for other in names.others:
        # Of a file of a segment that was being replaced, an index as a rule.
        if other.endswith(TEMPORARY_SUFFIX) and parse_segment_name(other.removesuffix(TEMPORARY_SUFFIX)) is not None:
            fs.unlink(directory / other)
    bases = names.bases[LOG_SUFFIX]
    known = set(bases)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        for base_offset in set(names.bases[suffix]) - known:
            fs.unlink(directory / f"{base_offset:020d}{suffix}")
    # Segments wholly below the start were being deleted when the writer died, or an unlink came back after a crash.
    first = max((number for number, base in enumerate(bases) if base <= start_offset), default=0)
    for base_offset in bases[:first]:
        LogSegment(context, base_offset).delete()
    indexed = names.indexed
    segments = LogSegments(LogSegment(context, base, lacks_index=base not in indexed) for base in bases[first:])
    if not len(segments):
        segment = LogSegment(context, start_offset)
        segment.create()
        if not is_new:
            fs.sync_dir(directory)
        segments.add(segment)
    return segments


def _recover(loaded: Loaded, state: LogState | None, marks: KafkaMarks, advance: Callable[[int], None] | None) -> None:
    """Finds the end of the log, and what in it cannot be served; cuts and sets aside what must go."""
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
        # All records were deleted, and a truncation took the last batch: nothing below the start is given out again.
        loaded.end_offset = loaded.recovery_point = loaded.start_offset
        loaded.seal = True
    loaded.producers.truncate_to(loaded.end_offset)
    _recover_epochs(loaded, [entry for entry in epochs if entry.start_offset < loaded.end_offset])
    report.seconds = loaded.context.clock.monotonic() - started
    # The names of indexes that were missing, before anything says that all is in order.
    loaded.context.fs.sync_dir(loaded.context.directory)
    _store(loaded)


def _take_losses(loaded: Loaded, decision: Decision) -> None:
    """Takes what is lost into ``loaded``. A log that ended with a loss before still does: its durable end says so."""
    losses = loaded.losses.with_lost(decision.lost, LOST_MAX)
    unconfirmed = [(fenced.first, fenced.last) for fenced in decision.fenced if fenced.is_unconfirmed]
    losses = losses.with_unconfirmed(unconfirmed, UNCONFIRMED_MAX)
    # What was cut, or lies below the start, is no loss: a truncation may have ended in the middle.
    loaded.losses = losses.within(loaded.start_offset, decision.end_offset)


def _take_accepted(report: RecoveryReport, losses: LossRanges) -> None:
    """Makes notes of the damage whose loss is accepted: it is not reported as damage again."""
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
    """Whether bytes from ``position`` on hold a whole batch, damaged or not: what a torn write leaves is none."""
    head = file.pread(LOG_OVERHEAD_BYTES, position)
    if len(head) == LOG_OVERHEAD_BYTES and SIZE_MIN[0] <= entry_size(head) <= stop - position:
        return True
    budget = SearchBudget(stop - position)
    # What was not searched may hold one.
    return find_next_batch(file, position, stop, next_offset=0, budget=budget) is not None or budget.is_spent


def _free_name(fs: FileSystem, directory: Path, base_offset: int, position: int) -> Path:
    """A name for what is cut at ``position``; where an earlier cut has it, the next number that is free."""
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


def _store(loaded: Loaded) -> None:
    loaded.state_file.store(
        LogState(
            durability=loaded.durability,
            recovery_point=loaded.recovery_point,
            log_start_offset=loaded.start_offset,
            durable_end=loaded.end_offset,
            boot_id=boot_id(),
            lost=loaded.losses.lost,
            accepted=loaded.losses.accepted,
            unconfirmed=loaded.losses.unconfirmed,
            has_epochs=bool(loaded.epochs.entries),
            txn_bytes=loaded.producers.index_sizes.total(
                loaded.segments.bases, loaded.start_offset, loaded.recovery_point
            ),
        )
    )
