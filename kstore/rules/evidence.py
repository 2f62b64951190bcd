"""What a log's small files prove of offsets that no batch holds any more: pure functions over their bytes and names.

A log that has lost ``kstore.state``, or never had it, has other witnesses. None of them is read where the batches reach
as far. Believed is:

    an offset or time index   if its entries are whole and increase as they must; zeros may follow them
    a transaction index       if its entries have the known version, increase, and belong to the segment
    a producer snapshot       if its bytes are whole and name no offset above its own name
    the leader epochs         if they increase: an epoch begins where the log once ended
    a recovery point          of the store's checkpoint

A *proof* was written after a sync of the records that it speaks of: what is missing below it was durable, so the disk
has lost it. These are: the recovery point; the indexes of a sealed segment; a snapshot at which no segment begins,
which a clean close wrote. Above a known recovery point a snapshot is no proof: a clean close would have stored a later
point. Everything else tells only that the offsets were used: they are not used again. An index of the last segment is
no proof, though it may be trimmed: a roll trims it too, and nothing need be on disk then. Nor are the indexes of the
segment before the last one if that has no batch: the power may have been cut at the roll.

Nothing may claim an offset more than 2^31 above the base of the last segment, which no record of it can have. So
garbage never uses up the space of offsets.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from kstore.rules.losses import OffsetSpans, joined

# The offsets that one segment can hold.
SPAN_MAX = 1 << 31
INDEX_ENTRY_BYTES = 8
TIME_ENTRY = struct.Struct(">qi")
TRANSACTION_ENTRY = struct.Struct(">hqqqq")
assert (TIME_ENTRY.size, TRANSACTION_ENTRY.size) == (12, 34)


class Trace(NamedTuple):
    """What one file says: offsets below ``end`` were used. ``is_proof``: they were on disk when it was written."""

    end: int
    what: str
    is_proof: bool = False


class SegmentTraces(NamedTuple):
    """What a segment's indexes say beyond its batches, which end at ``next_offset``; ``traces`` are not yet judged.

    ``stop``: the base of the next segment, or None for the last one.
    """

    base_offset: int
    stop: int | None
    next_offset: int
    traces: Sequence[Trace]


class Evidence(NamedTuple):
    """The verdict. Offsets below ``proven_end`` were durable, offsets below ``end`` were used; the batches end at
    ``log_end``.

    ``holes`` are the offsets that sealed segments have lost at their ends, with the reason: first, last, base, why.
    ``proof`` and ``sign`` say what shows the two ends.
    """

    log_end: int = 0
    proven_end: int = 0
    end: int = 0
    proof: str = ""
    sign: str = ""
    holes: tuple[tuple[int, int, int, str], ...] = ()

    @property
    def is_loss(self) -> bool:
        """Whether records that were durable are gone."""
        return bool(self.holes) or self.proven_end > self.log_end

    @property
    def missing(self) -> OffsetSpans:
        """All offsets that are gone."""
        return joined(((first, last) for first, last, _, _ in self.holes), ((self.log_end, self.end - 1),))

    @property
    def untold(self) -> OffsetSpans:
        """Those of ``missing`` at the end of the log, of which nothing shows that they were durable."""
        return joined(((max(self.log_end, self.proven_end), self.end - 1),))


def judge(
    segments: Sequence[SegmentTraces], log_traces: Iterable[Trace], *, recovery_point: int | None = None
) -> Evidence:
    """Weighs what was found of ``segments``, all of a log, in order, and ``log_traces``, of the files that belong to
    none of them. Ends at or below that of the batches prove nothing that is missing, and are left out."""
    last = segments[-1]
    end_known = max(last.next_offset, last.base_offset)
    found: list[Trace] = []
    holes = []
    for segment in segments[:-1]:
        assert segment.stop is not None, "only the last segment has no next one"
        ends = [trace for trace in segment.traces if segment.next_offset < trace.end <= segment.stop]
        if ends:
            latest = max(ends)
            is_at_roll = segment is segments[-2] and last.next_offset <= last.base_offset
            if is_at_roll and (recovery_point is None or recovery_point <= segment.next_offset):
                end_known = segment.next_offset
                found.append(Trace(last.base_offset, latest.what))
                continue
            # The segment held what its index names. It is damaged, so no gap before the next one is believed either.
            holes.append((segment.next_offset, segment.stop - 1, segment.base_offset, latest.what))
            found.append(Trace(segment.stop, latest.what, True))
    found += last.traces
    for trace in log_traces:
        is_late = recovery_point is not None and trace.end > recovery_point
        found.append(trace._replace(is_proof=trace.is_proof and not is_late))
    limit = last.base_offset + SPAN_MAX
    believed = [trace for trace in found if end_known < trace.end <= limit]
    # A hole in the middle is proven, wherever the log ends.
    proofs = [trace for trace in found if trace.is_proof and trace.end <= limit and (holes or trace.end > end_known)]
    proof, sign = max(proofs, default=Trace(0, "")), max(believed, default=Trace(0, ""))
    return Evidence(end_known, proof.end, max(proof.end, sign.end), proof.what, sign.what, tuple(holes))


def recovery_point_trace(offset: int | None) -> list[Trace]:
    """That of a store's checkpoint."""
    return [] if offset is None else [Trace(offset, f"the store's recovery point {offset}", True)]


def snapshot_trace(offset: int, last_offsets: Iterable[int], bases: Iterable[int]) -> Trace | None:
    """That of a whole snapshot named ``offset``; None if it contradicts itself. ``bases`` are those of the segments."""
    if any(last >= offset for last in last_offsets):
        return None
    return Trace(offset, f"the producer snapshot of offset {offset}", offset not in bases)


def epochs_trace(entries: Sequence[tuple[int, int]]) -> list[Trace]:
    """That of the leader epochs, pairs of epoch and start offset."""
    if not entries or any(two[0] <= one[0] or two[1] < one[1] for one, two in pairwise(entries)):
        return []
    epoch, start = entries[-1]
    return [Trace(start, f"leader epoch {epoch}, which begins at offset {start}")]


def index_end(base_offset: int, data: bytes) -> int | None:
    """The offset after the last entry of an offset index; None if it has none that can be believed."""
    rows = _rows(data, INDEX_ENTRY_BYTES)
    if rows is None:
        return None
    offsets, positions = rows[::2], rows[1::2]
    if offsets[0] < 0 or positions[0] < 0 or not (_rises(offsets) and _rises(positions)):
        return None
    return base_offset + offsets[-1] + 1


def time_index_end(base_offset: int, data: bytes) -> int | None:
    """``index_end`` of a time index."""
    rows = _entries(data, TIME_ENTRY)
    if rows is None:
        return None
    # The first time may be any; a segment without a time has no entry.
    if rows[0][1] < 0 or any(two[0] <= one[0] or two[1] < one[1] for one, two in pairwise(rows)):
        return None
    return base_offset + int(rows[-1][1]) + 1


def transaction_index_end(base_offset: int, data: bytes) -> int | None:
    """``index_end`` of a transaction index, whose last offsets are those of markers in its segment."""
    rows = _entries(data, TRANSACTION_ENTRY)
    if rows is None:
        return None
    lasts = [row[3] for row in rows]
    if any(row[0] or row[1] < 0 or not 0 <= row[2] <= row[3] or row[4] < 0 for row in rows) or not _rises(lasts):
        return None
    return lasts[-1] + 1 if lasts[0] >= base_offset and lasts[-1] - base_offset < SPAN_MAX else None


def _rows(data: bytes, entry_size: int) -> array[int] | None:
    """The int32 numbers of the entries before the zeros; None without any, or with half an entry."""
    used = _used(data, entry_size)
    if not used:
        return None
    rows = array("i")
    assert rows.itemsize == 4
    rows.frombytes(data[:used])
    if sys.byteorder == "little":
        rows.byteswap()
    return rows


def _entries(data: bytes, entry: struct.Struct) -> list[tuple[int, ...]] | None:
    used = _used(data, entry.size)
    return list(entry.iter_unpack(data[:used])) if used else None


def _used(data: bytes, entry_size: int) -> int:
    """The size of the entries without the zeros after them."""
    size = len(data.rstrip(b"\0"))
    used = -(-size // entry_size) * entry_size
    return used if used <= len(data) else 0


def _rises(numbers: Sequence[int]) -> bool:
    return all(one < two for one, two in pairwise(numbers))
