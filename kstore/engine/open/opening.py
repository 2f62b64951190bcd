"""Opening a log for writing: lock, list, believe or recover.

    clean      ``kstore.state`` carries a clean mark that fits the active ``.log``: nothing is scanned
    foreign    no ``kstore.state``: the store's Kafka checkpoints and clean marker, believed if the log ends there
    otherwise  every segment not known to be flushed is synced, dropped from the page cache, read again, and checked
               batch by batch and record by record; its indexes are rebuilt on the way (``recovery``)

Work that a crash has left half done is finished first: swaps, deletions, splits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from kstore.engine.directory import OWN_NAMES
from kstore.engine.files import Loaded
from kstore.engine.open.recovery import epochs_in, recover
from kstore.engine.open.split import overflowing, split_segment
from kstore.engine.open.swap import finish_swaps, swapped_bases, swapped_index_bytes
from kstore.engine.open.transaction_rebuild import rebuild_transaction_indexes
from kstore.engine.producers import LogProducers
from kstore.engine.segments import LogSegments
from kstore.errors import CorruptFileError
from kstore.files.checkpoint import EpochEntry, read_leader_epochs
from kstore.files.fs import FileSystem
from kstore.files.paths import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    DirectoryNames,
    classify,
    parse_segment_name,
)
from kstore.indexes.transaction_index import TransactionIndexSizes
from kstore.segment import LogSegment, SegmentContext
from kstore.state.compaction_state import KSTORE_COMPACTION, read_compaction_state
from kstore.state.kafka_marks import KafkaMarks, read_kafka_marks
from kstore.state.leader_epoch import LeaderEpochCache
from kstore.state.log_state import UNKNOWN_TXN_BYTES, LogState, StateFile, losses_of
from kstore.types import Durability, RecoveryReport

logger = logging.getLogger(__name__)

LACKING_INDEX = "segments lack an index: the first lookup in each rebuilds it"


class _Found(NamedTuple):
    """What the directory says of a log, before anything in it is changed."""

    names: DirectoryNames
    state_file: StateFile
    state: LogState | None
    marks: KafkaMarks
    start_offset: int
    # It has never held anything.
    is_new: bool
    report: RecoveryReport


def load(
    context: SegmentContext,
    durability: Durability,
    *,
    advance: Callable[[int], None] | None = None,
    marks: KafkaMarks | None = None,
) -> Loaded:
    """Opens the log in ``context.directory``, whose lock the caller holds.

    ``marks`` are what Kafka's files next to it say; None: they are read here. ``advance`` is called with the number of
    bytes that a recovery has checked since the last call.

    Raises: StorageError (a failed read does not count as damage), DiskFullError if there is no space to set aside what
    must be cut.
    """
    names = classify(context.fs.list(context.directory))
    state_file = StateFile.open(context.fs, context.directory / KSTORE_STATE, mode=context.config.file_mode)
    try:
        found = _found(context, names, state_file, marks)
        segments = _tidy(context, found)
        epochs = _epochs_of(context, found)
        loaded = _unchecked(context, durability, found, segments, epochs or ())
        _find_end(loaded, found, advance)
        _complete(loaded, rebuilds_epochs=epochs is None)
    except BaseException:
        state_file.close()
        raise
    return loaded


# --- the steps of an open, in their order -----------------------------------------------------------------------------


def _found(context: SegmentContext, names: DirectoryNames, state_file: StateFile, marks: KafkaMarks | None) -> _Found:
    """Reads what ``names`` and the record say of the log. Raises: StorageError."""
    fs, directory = context.fs, context.directory
    if names.unfinished:
        _store_swap(state_file, directory, fs, names)
    state = state_file.current
    state_known = KSTORE_STATE in names.others
    report = RecoveryReport(ignored=sorted(name for name in names.others if name not in OWN_NAMES))
    if state is not None:
        marks = KafkaMarks()
    elif marks is None:
        marks = read_kafka_marks(fs, directory)
    if state is None and state_known:
        report.notes.append(f"{KSTORE_STATE} is damaged: the whole log is checked")
    return _Found(
        names=names,
        state_file=state_file,
        state=state,
        marks=marks,
        start_offset=state.log_start_offset if state is not None else (marks.log_start_offset or 0),
        is_new=not (state_known or marks.recovery_point or names.unfinished or any(names.bases.values())),
        report=report,
    )


def _tidy(context: SegmentContext, found: _Found) -> LogSegments:
    """Finishes or undoes what earlier work left half done, and makes the map of segments; a log has at least one.

    The name of the first segment of a log that is new is left for the caller to sync.
    """
    fs, directory, names = context.fs, context.directory, found.names
    if names.unfinished:
        has_swapped = finish_swaps(context, names)
        for name in names.unfinished:
            if name.state in (DELETED_SUFFIX, CLEANED_SUFFIX):
                fs.unlink(directory / str(name))
        if has_swapped:
            names = classify(fs.list(directory))
    for other in names.others:
        # Left by the replacement of a segment's file, usually an index.
        if other.endswith(TEMPORARY_SUFFIX) and parse_segment_name(other.removesuffix(TEMPORARY_SUFFIX)) is not None:
            fs.unlink(directory / other)
    bases = names.bases[LOG_SUFFIX]
    known = set(bases)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        for base_offset in set(names.bases[suffix]) - known:
            fs.unlink(directory / f"{base_offset:020d}{suffix}")
    # Segments wholly below the start were being deleted when the writer died, or an unlink came back after a crash.
    first = max((number for number, base in enumerate(bases) if base <= found.start_offset), default=0)
    for base_offset in bases[:first]:
        LogSegment(context, base_offset).delete()
    del bases[:first]
    if len(bases) > 1 and found.state is not None and bases[-2] < found.state.recovery_point:
        emptied = LogSegment(context, bases[-2])
        if not emptied.size:
            # A truncation has emptied it and rolled, and its writer died before it had removed all of its files.
            emptied.delete()
            del bases[-2]
    indexed = names.indexed
    segments = LogSegments(LogSegment(context, base, lacks_index=base not in indexed) for base in bases)
    if not len(segments):
        segment = LogSegment(context, found.start_offset)
        segment.create()
        if not found.is_new:
            fs.sync_dir(directory)
        segments.add(segment)
    return segments


def _epochs_of(context: SegmentContext, found: _Found) -> list[EpochEntry] | None:
    """The epochs of the log, so far as their file has them; None if they must be rebuilt from its batches."""
    if LEADER_EPOCHS in found.names.others:
        return read_epochs(context, found.report)
    if found.state is not None and found.state.has_epochs:
        # Otherwise the next append would have a lower epoch than the existing batches.
        found.report.notes.append(f"{LEADER_EPOCHS} is lost, and rebuilt from the log")
        return None
    return []


def _unchecked(
    context: SegmentContext, durability: Durability, found: _Found, segments: LogSegments, epochs: Sequence[EpochEntry]
) -> Loaded:
    """The log, as if its last segment were empty: nothing of it has been read yet."""
    fs, directory = context.fs, context.directory
    index_sizes = TransactionIndexSizes.found(fs, directory, _indexed(found.names, segments))
    return Loaded(
        context=context,
        durability=durability,
        segments=segments,
        producers=LogProducers(context, segments, found.names.bases[SNAPSHOT_SUFFIX], index_sizes),
        state_file=found.state_file,
        start_offset=max(found.start_offset, segments.first.base_offset),
        end_offset=segments.last.base_offset,
        position=0,
        recovery_point=0,
        epochs=LeaderEpochCache(fs, directory / LEADER_EPOCHS, epochs, mode=context.config.file_mode),
        seal=False,
        report=found.report,
        losses=losses_of(found.state),
    )


def _find_end(loaded: Loaded, found: _Found, advance: Callable[[int], None] | None) -> None:
    """Gives ``loaded`` its end: believed if the clean mark fits, or found by a recovery, which may cut."""
    state, last = found.state, loaded.segments.last
    if state is not None:
        fits = state.clean and state.fits(last.base_offset, loaded.context.fs.stat(last.files.path_text(LOG_SUFFIX)))
        _check_transaction_indexes(loaded, state, fits=fits)
        if fits:
            loaded.end_offset = loaded.recovery_point = state.durable_end
            loaded.position = state.clean_size
            return
    if found.is_new:
        # Nothing to check. The record is synced with the names of all files.
        last.activate(empty_indexes=True)
        loaded.recovery_point = loaded.end_offset
        loaded.store()
        return
    recover(loaded, state, found.marks, advance)
    if loaded.report.clean:
        _repair_transaction_indexes(loaded, loaded.segments)


def _complete(loaded: Loaded, *, rebuilds_epochs: bool) -> None:
    """Brings what belongs to the log into line with its end, which is known now."""
    if rebuilds_epochs:
        loaded.epochs.replace(epochs_in(loaded.segments))
    # An epoch that begins where the log ends is that of the next append.
    loaded.epochs.truncate_from_end(loaded.end_offset + 1)
    loaded.producers.remove_strays(loaded.end_offset)
    _split_overflowing(loaded)
    if lacking := sum(segment.lacks_index for segment in loaded.segments):
        loaded.report.notes.append(f"{lacking} {LACKING_INDEX}")


# --- what they need ---------------------------------------------------------------------------------------------------


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
    state_file.store(state._replace(txn_bytes=max(state.txn_bytes + change, 0)))


def _indexed(names: DirectoryNames, segments: LogSegments) -> list[int]:
    """The segments that may have a transaction index, of ``names`` or swapped in since."""
    swapped = {name.base_offset for name in names.unfinished if name.suffix == TXN_INDEX_SUFFIX}
    return sorted((swapped | set(names.bases[TXN_INDEX_SUFFIX])) & set(segments.bases))


def _check_transaction_indexes(loaded: Loaded, state: LogState, *, fits: bool) -> None:
    """Rebuilds the transaction indexes that recovery does not look at, if one is lost or has another size."""
    segments, sizes = loaded.segments, loaded.producers.index_sizes
    start, stop = state.log_start_offset, None if state.clean else state.recovery_point
    found = sizes.total(segments.bases, start, stop)
    if not found and state.txn_bytes in (0, UNKNOWN_TXN_BYTES):
        return  # none is there, and none is missed
    first_scanned = segments.floor(state.recovery_point) or segments.first
    believed = [segment for segment in segments if fits or segment.base_offset < first_scanned.base_offset]
    if state.txn_bytes == UNKNOWN_TXN_BYTES or state.txn_bytes == found:
        _repair_transaction_indexes(loaded, believed)
        return
    paths = rebuild_transaction_indexes(loaded.producers, segments, believed)
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
        loaded.state_file.store(state._replace(txn_bytes=rebuilt))


def _repair_transaction_indexes(loaded: Loaded, segments: Iterable[LogSegment]) -> None:
    """Rebuilds those transaction indexes of ``segments`` that cannot be right."""
    sizes = loaded.producers.index_sizes
    for path in loaded.producers.repair_indexes(segment for segment in segments if segment.base_offset in sizes):
        loaded.report.notes.append(f"a transaction index cannot be right, and is rebuilt: {path}")


def _split_overflowing(loaded: Loaded) -> None:
    """Splits the segments whose offsets are too far apart for their indexes, except for one that is open."""
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
            + (f"it is not split: {refused}" if refused else "it is split, as Kafka does")
        )
        if not refused and base_offset in producers.index_sizes:
            bases = segments.range(base_offset, stop)
            found = TransactionIndexSizes.found(context.fs, context.directory, [one.base_offset for one in bases])
            for one in bases:
                producers.index_sizes.note(one.base_offset, found.total([one.base_offset], one.base_offset, None))
    if is_split:
        # The clean mark may be that of a segment that was split.
        loaded.position = segments.last.size
        loaded.store()


def read_epochs(context: SegmentContext, report: RecoveryReport) -> list[EpochEntry] | None:
    """The epochs of the directory's checkpoint; None if they cannot be read."""
    try:
        return read_leader_epochs(context.fs, context.directory / LEADER_EPOCHS)
    except CorruptFileError as error:
        report.notes.append(f"{LEADER_EPOCHS} is rebuilt: {error.reason}")
        return None
