"""Putting a new segment in the place of those it was made from, in an order that a crash may cut anywhere.

    1  <base>.log.cleaned, its indexes            written, each synced; the directory synced
    2  the indexes, then the .log, become .swap   the .log's rename is the commit; the directory synced
    -  kstore.state has the new transaction index in its sum, and the old ones no more (``LogState.txn_bytes``)
    3  the replaced segments but the first go     and the indexes lose .swap; the directory synced: nothing of the
                                                  old segments is ever seen next to the new one
    4  the .log loses .swap                       in place of the first one's; the directory synced

An open that finds a ``.log.swap`` repeats 3 and 4, since 2 was reached; otherwise it undoes everything.
``kstore.compaction``, written before 2, names the replaced segments; after a swap by another program they are those
that begin within the new segment, as in Kafka. A rename puts the new segment in the first one's place, so a ``.log`` or
``.log.swap`` of that base always exists. (Kafka: LocalLog.replaceSegments, LogLoader.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from kstore.errors import StorageError
from kstore.files.fs import FileSystem
from kstore.files.paths import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    DirectoryNames,
    segment_name,
)
from kstore.record.walk import walk
from kstore.scan.visits import Damages, visit
from kstore.segment import SegmentContext
from kstore.state.compaction_state import KSTORE_COMPACTION, read_compaction_state

logger = logging.getLogger(__name__)

INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
# The .log decides: it comes last when a segment is put in place, and first when one is removed.
FORWARD = (*INDEX_SUFFIXES, LOG_SUFFIX)
BACKWARD = (LOG_SUFFIX, *INDEX_SUFFIXES)


def begin_swap(fs: FileSystem, directory: Path, base_offset: int) -> None:
    """Step 2. Raises: StorageError; then only the directory tells whether it is committed."""
    for suffix in FORWARD:
        _rename(fs, directory, base_offset, suffix + CLEANED_SUFFIX, suffix + SWAP_SUFFIX)
    fs.sync_dir(directory)


def begin_swaps(fs: FileSystem, directory: Path, bases: Sequence[int]) -> None:
    """Step 2 for several segments that replace one; ``bases`` rise, and the first is the replaced segment's.

    Its rename is the commit: before it the names of all others are durable (Kafka: LocalLog.splitOverflowedSegment).
    """
    for base_offset in reversed(bases[1:]):
        for suffix in FORWARD:
            _rename(fs, directory, base_offset, suffix + CLEANED_SUFFIX, suffix + SWAP_SUFFIX)
    fs.sync_dir(directory)
    begin_swap(fs, directory, bases[0])


def complete_swap(fs: FileSystem, directory: Path, base_offset: int, replaced: Iterable[int]) -> None:
    """Steps 3 and 4; may be repeated from any point."""
    others = sorted((base for base in replaced if base != base_offset), reverse=True)
    for base in others:
        for suffix in BACKWARD:
            _unlink(fs, directory, base, suffix)
    for suffix in INDEX_SUFFIXES:
        _rename(fs, directory, base_offset, suffix + SWAP_SUFFIX, suffix)
    # While a .log.swap exists all of this is repeated: the new .log is never next to a segment that it replaces,
    # or next to an index of the old one.
    fs.sync_dir(directory)
    _rename(fs, directory, base_offset, LOG_SUFFIX + SWAP_SUFFIX, LOG_SUFFIX)
    # An empty index was written only to replace an old one.
    path = directory / segment_name(base_offset, TXN_INDEX_SUFFIX)
    if fs.exists(path) and not fs.stat(path).size:
        fs.unlink(path)
    fs.sync_dir(directory)


def swapped_index_bytes(fs: FileSystem, directory: Path, base_offset: int) -> int:
    """The size of the transaction index of a segment that is committed but not in place yet."""
    try:
        return fs.stat(directory / segment_name(base_offset, TXN_INDEX_SUFFIX + SWAP_SUFFIX)).size
    except FileNotFoundError:
        return 0


def discard(fs: FileSystem, directory: Path, base_offset: int, state: str) -> None:
    """Removes the files of a new segment that is not in place, the ``.log`` first."""
    for suffix in BACKWARD:
        _unlink(fs, directory, base_offset, suffix + state)


def swapped_bases(names: DirectoryNames) -> list[int]:
    """The bases of the segments whose swap is committed, rising."""
    # A .cleaned file that is left (Kafka's splits write several) shows that its swap was not completely written.
    unwritten = min((name.base_offset for name in names.unfinished if name.state == CLEANED_SUFFIX), default=None)
    return sorted(
        name.base_offset
        for name in names.unfinished
        if name.suffix == LOG_SUFFIX
        and name.state == SWAP_SUFFIX
        and (unwritten is None or name.base_offset < unwritten)
    )


def replaced_by(context: SegmentContext, base_offset: int, bases: Sequence[int]) -> list[int]:
    """Which of the segments ``bases`` the new segment at ``base_offset`` replaces."""
    state = read_compaction_state(context.fs, context.directory / KSTORE_COMPACTION)
    if state is not None and state.swap and state.swap[0] == base_offset:
        named = set(state.swap)
        return [base for base in bases if base in named]
    next_offset, _ = _examine(context, base_offset)
    return [base for base in bases if base_offset <= base < next_offset or base == base_offset]


def undoes_swap(context: SegmentContext, base_offset: int, bases: Sequence[int]) -> bool:
    """Whether the new segment is damaged while all that it replaces still exists: then the old ones stay.

    Raises: StorageError if it is damaged and nothing records what it replaces.
    """
    if not _examine(context, base_offset)[1]:
        return False
    state = read_compaction_state(context.fs, context.directory / KSTORE_COMPACTION)
    if state is not None and state.swap[:1] == (base_offset,):
        return set(state.swap) <= set(bases)
    if base_offset in bases:
        return True
    name = segment_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX)
    reason = f"{name} is left from a compaction that did not end, and is damaged: what it replaces is not known"
    raise StorageError(None, reason, str(context.directory))


def finish_swaps(context: SegmentContext, names: DirectoryNames) -> bool:
    """Finishes or undoes every swap that a crash has interrupted; returns whether any was found. Raises:
    StorageError."""
    fs, directory = context.fs, context.directory
    swapped = swapped_bases(names)
    undone = [name for name in names.unfinished if name.state == SWAP_SUFFIX and name.base_offset not in swapped]
    for name in undone:
        _unlink(fs, directory, name.base_offset, name.suffix + SWAP_SUFFIX)
    if undone:
        # Before a .cleaned file is removed: these files tell an unwritten swap from a committed one.
        fs.sync_dir(directory)
    bases = names.bases[LOG_SUFFIX]
    for base in swapped:
        if undoes_swap(context, base, bases):
            logger.warning("%s: the compacted segment %d is damaged: what it was made from stays", directory, base)
            discard(fs, directory, base, SWAP_SUFFIX)
            continue
        # What was read may exist only in memory: the new segment's name must be durable before anything is removed.
        fs.sync_dir(directory)
        complete_swap(fs, directory, base, replaced_by(context, base, bases))
    return bool(swapped)


def _examine(context: SegmentContext, base_offset: int) -> tuple[int, bool]:
    """The end offset of the last whole batch of a segment being swapped in, and whether the segment is damaged."""
    file = context.fs.open(context.directory / segment_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX))
    damages = Damages()
    next_offset = visit(walk(file, 0, file.size(), next_offset=base_offset), damages, base_offset=base_offset)
    return next_offset, bool(damages.found)


def _rename(fs: FileSystem, directory: Path, base_offset: int, old: str, new: str) -> None:
    try:
        fs.rename(directory / segment_name(base_offset, old), directory / segment_name(base_offset, new))
    except FileNotFoundError:
        pass  # usually there is no transaction index; or a crash came after its rename


def _unlink(fs: FileSystem, directory: Path, base_offset: int, suffix: str) -> None:
    try:
        fs.unlink(directory / segment_name(base_offset, suffix))
    except FileNotFoundError:
        pass  # as above
