"""Gathers what a log's files say beyond its batches, for a log without ``kstore.state``; keeps it before it is lost.

``rules/evidence`` says what is believed, and what it proves. Recovery empties the indexes and removes the snapshots of
offsets that the log no longer has, so what they prove is stored first, durably: in ``kstore.state``, and where records
were lost, as copies of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kstore.engine.open.segment_end import segment_end
from kstore.engine.segments import LogSegments
from kstore.errors import CorruptDataError, DiskFullError, FileMissingError, StorageError
from kstore.files.checkpoint import read_leader_epochs, replace_file
from kstore.files.fs import read_file
from kstore.files.paths import (
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    aside_name,
    segment_name,
)
from kstore.rules.evidence import (
    Evidence,
    SegmentTraces,
    Trace,
    epochs_trace,
    index_end,
    judge,
    recovery_point_trace,
    snapshot_trace,
    time_index_end,
    transaction_index_end,
)
from kstore.segment import LogSegment, SegmentContext
from kstore.state.producer_snapshot import decode_snapshot
from kstore.types import OFFSET_MAX

READERS = ((INDEX_SUFFIX, index_end), (TIME_INDEX_SUFFIX, time_index_end), (TXN_INDEX_SUFFIX, transaction_index_end))


def find_evidence(
    context: SegmentContext, segments: LogSegments, snapshots: Sequence[int], recovery_point: int | None
) -> Evidence:
    """What the files of a log prove beyond its batches; changes nothing.

    ``snapshots`` are the offsets of its producer snapshots, ``recovery_point`` that of the store's checkpoint.
    Raises: StorageError if a ``.log`` cannot be read.
    """
    bases = segments.bases
    found = [
        _segment_traces(context, segment, stop) for segment, stop in zip(segments, [*bases[1:], None], strict=True)
    ]
    end_known = max(found[-1].next_offset, bases[-1])
    traces = recovery_point_trace(recovery_point)
    for offset in snapshots:
        if offset > end_known and (trace := _snapshot_trace(context, offset, bases)) is not None:
            traces.append(trace)
    with suppress(CorruptDataError, StorageError):
        traces += epochs_trace(read_leader_epochs(context.fs, context.directory / LEADER_EPOCHS))
    return judge(found, traces, recovery_point=recovery_point)


def _segment_traces(context: SegmentContext, segment: LogSegment, stop: int | None) -> SegmentTraces:
    traces = []
    base_offset = segment.base_offset
    for suffix, end_of in READERS:
        try:
            data = read_file(context.fs, segment.files.path_text(suffix))
        except StorageError:
            continue  # missing, or out of reach: it says nothing
        end = end_of(base_offset, data)
        if end is not None:
            traces.append(Trace(end, f"an entry of {segment_name(base_offset, suffix)}"))
    size = segment.size
    end = segment_end(segment, size, offset_stop=OFFSET_MAX if stop is None else stop).offset
    return SegmentTraces(base_offset, stop, end, traces)


def _snapshot_trace(context: SegmentContext, offset: int, bases: Sequence[int]) -> Trace | None:
    try:
        entries = decode_snapshot(read_file(context.fs, context.directory / segment_name(offset, SNAPSHOT_SUFFIX)))
    except (CorruptDataError, StorageError):
        return None
    return snapshot_trace(offset, (entry.last_offset for entry in entries), bases)


def keep_copies(
    context: SegmentContext, evidence: Evidence, bases: Sequence[int], snapshots: Sequence[int]
) -> list[str]:
    """Copies the files that prove a loss, durably, to names that no broker reads; returns these.

    Recovery is about to rewrite the indexes, and to remove the snapshots. Raises: DiskFullError, StorageError; then
    nothing has been changed.
    """
    damaged = {base for _, _, base, _ in evidence.holes} | {bases[-1]}
    names = [segment_name(base, suffix) for base in sorted(damaged) for suffix, _ in READERS]
    names += [segment_name(offset, SNAPSHOT_SUFFIX) for offset in snapshots if offset > bases[-1]]
    kept = []
    for name in names:
        try:
            data = read_file(context.fs, context.directory / name)
        except FileMissingError:
            continue
        data = data.rstrip(b"\0") if not name.endswith(SNAPSHOT_SUFFIX) else data
        if not data:
            continue
        number = 0
        while context.fs.exists(context.directory / aside_name(name, number)):
            number += 1
        copy = aside_name(name, number)
        try:
            replace_file(context.fs, context.directory / copy, data, mode=context.config.file_mode)
        except DiskFullError as error:
            path = str(context.directory / copy)
            raise DiskFullError(
                error.errno, "no room to set aside what proves a loss: nothing was cut", path
            ) from error
        kept.append(copy)
    return kept
