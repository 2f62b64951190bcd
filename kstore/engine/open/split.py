"""Splitting a segment whose offsets are too far apart for its indexes (Kafka: LocalLog.splitOverflowedSegment).

Old brokers wrote such segments when they compacted: an index holds an offset as an int32 above the segment's base. The
batches are copied unchanged into new segments, which replace the old one through compaction's swap (``swap``): a crash
leaves the old segment or the new ones. A segment with damage is not split, because the damage may hide records of
either part. It stays readable, and nothing is appended to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from kstore.engine.open.segment_end import segment_end
from kstore.engine.open.swap import begin_swaps, complete_swap, discard
from kstore.engine.segments import LogSegments
from kstore.errors import DiskFullError, StorageError
from kstore.files.paths import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, TXN_INDEX_SUFFIX, segment_name
from kstore.record.walk import OFFSET_COUNT_MAX, Damage, walk
from kstore.segment import LogSegment
from kstore.state.compaction_state import KSTORE_COMPACTION, read_compaction_state, write_compaction_state
from kstore.types import AbortedTransaction


def overflowing(segments: LogSegments, end_offset: int) -> list[tuple[int, int]]:
    """The base of each segment that spans too many offsets, with the offset at which it ends.

    Examines only segments that end far enough from their base.
    """
    bases = segments.bases
    found = []
    for segment, stop in zip(segments, [*bases[1:], end_offset], strict=True):
        if stop - segment.base_offset > OFFSET_COUNT_MAX:
            # Any gap below the next base is believed; recovery has already judged the log's end.
            end = segment_end(segment, segment.size, offset_stop=stop)
            if end.offset - segment.base_offset > OFFSET_COUNT_MAX:
                found.append((segment.base_offset, stop))
    return found


def split_segment(segments: LogSegments, segment: LogSegment, offset_stop: int) -> str:
    """Replaces ``segment`` durably by as many segments as its offsets need; returns why it cannot, "" after a split.

    Needs the log's lock. Raises: StorageError if the new segments are committed but not all in place: the next open
    finishes the swap.
    """
    context = segment.context
    fs, directory = context.fs, context.directory
    parts: list[LogSegment] = []
    refused = ""
    try:
        for part in _parts(segment, offset_stop):
            parts.append(part)
        _share_transactions(segment, parts)
        fs.sync_dir(directory)
        _forget_swap(segment)
        begin_swaps(fs, directory, [part.base_offset for part in parts])
    except _DamagedError as error:
        refused = str(error)
    except DiskFullError as error:
        refused = f"there is no room: {error}"
    except BaseException:
        if not fs.exists(directory / segment_name(segment.base_offset, LOG_SUFFIX + SWAP_SUFFIX)):
            _discard(segment, parts)
        raise
    if refused:
        _discard(segment, parts)
        return refused
    segment.retire()
    for part in parts:
        complete_swap(fs, directory, part.base_offset, (segment.base_offset,) if part is parts[0] else ())
    kept = [one for one in segments if one is not segment]
    segments.replace([*kept, *(LogSegment(context, part.base_offset) for part in parts)])
    return ""


class _DamagedError(Exception):
    """The segment has damage."""


def _parts(segment: LogSegment, offset_stop: int) -> Iterator[LogSegment]:
    """Writes the new segments as ``.cleaned`` files, and syncs each before it begins the next."""
    context = segment.context
    file, size = segment.log_file(), segment.size
    mtime_ns = file.stat().mtime_ns
    part: LogSegment | None = None
    for item in walk(file, 0, size, next_offset=segment.base_offset, offset_stop=offset_stop):
        if isinstance(item, Damage):
            raise _DamagedError(f"position {item.position}: {item.reason}")
        _, batch = item
        if part is None or batch.last_offset - part.base_offset >= OFFSET_COUNT_MAX:
            if part is not None:
                _finish(part, mtime_ns)
            # The first one has the name of the segment that it replaces.
            base_offset = segment.base_offset if part is None else batch.base_offset
            if batch.last_offset - base_offset >= OFFSET_COUNT_MAX:
                raise _DamagedError(
                    f"a first batch up to offset {batch.last_offset}, which no segment of its base holds"
                )
            discard(context.fs, context.directory, base_offset, CLEANED_SUFFIX)
            part = LogSegment(context, base_offset, state=CLEANED_SUFFIX)
            part.create()
            tail = part.activate()
            yield part
        tail = part.activate()
        position = tail.position
        tail.write([batch.data], batch.size, sync=False)
        tail.note(position, batch.size, batch.last_offset, batch.max_timestamp)
    if part is not None:
        _finish(part, mtime_ns)


def _finish(part: LogSegment, mtime_ns: int) -> None:
    tail = part.activate()
    tail.file.fsync()
    part.seal(sync=True)
    part.context.fs.set_mtime(part.path(LOG_SUFFIX), mtime_ns)


def _share_transactions(segment: LogSegment, parts: list[LogSegment]) -> None:
    """Gives each part the aborted transactions that end in it; the first part's index replaces the old one."""
    if not segment.context.fs.exists(segment.path(TXN_INDEX_SUFFIX)):
        return
    index = segment.files.transaction_index()
    try:
        entries = list(index.entries())
    finally:
        index.close()
    stops = [*(part.base_offset for part in parts[1:]), None]
    for part, stop in zip(parts, stops, strict=True):
        own: list[AbortedTransaction] = [
            one for one in entries if one.last_offset >= part.base_offset and (stop is None or one.last_offset < stop)
        ]
        if own or part is parts[0]:
            part.files.replace_transaction_index(own)


def _forget_swap(segment: LogSegment) -> None:
    """Drops what an earlier compaction replaced: it does not apply to the segments that come now."""
    context = segment.context
    path = context.directory / KSTORE_COMPACTION
    state = read_compaction_state(context.fs, path)
    if state is not None and state.swap:
        write_compaction_state(context.fs, path, state._replace(swap=()), mode=context.config.file_mode)


def _discard(segment: LogSegment, parts: list[LogSegment]) -> None:
    context = segment.context
    for part in parts:
        if part.tail is not None:
            part.tail.abandon()
            part.tail = None
        for state in (SWAP_SUFFIX, CLEANED_SUFFIX):
            with suppress(StorageError):
                discard(context.fs, context.directory, part.base_offset, state)
