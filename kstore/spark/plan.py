"""The division of a read: ``Split``s, one Spark partition each, made of pieces of logs.

A large segment is cut where its index knows that a batch starts; small segments and small logs are combined. In a store
far away, where the indexes of a large log are many requests and gigabytes, it is cut into equal numbers of offsets. The
byte size of a piece serves only for an even division; offsets alone decide what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappush, heapreplace
from itertools import pairwise
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from kstore.errors import StorageError
from kstore.files.fs import FileStat
from kstore.indexes.entry_index import INDEX_FAILURES
from kstore.indexes.offset_index import OffsetIndex
from kstore.log import Log, reads_of
from kstore.spark.places import LogPlace
from kstore.spark.ranges import Held
from kstore.types import AbortedTransaction

# Calls a function for each of some places.
EachPlace = Callable[[Callable[[LogPlace], object], Iterable[LogPlace]], None]

# The cost of opening one more log, in bytes that could be read in the meantime (Spark: openCostInBytes).
OPEN_BYTES = 4 << 20
# More than any log has.
ALL_BYTES = 1 << 62


class SplitPiece(NamedTuple):
    """Offsets ``start`` to ``stop`` (exclusive) of one log, about ``size`` bytes of its files.

    ``aborted`` are the transactions whose records a committed read skips: known when the read is planned, so that no
    task has to read a log to its end for them. ``topic_id`` and ``topic_file`` are those of ``Held``.
    """

    place: LogPlace
    start: int
    stop: int
    size: int = 0
    aborted: tuple[AbortedTransaction, ...] = ()
    topic_id: str | None = None
    topic_file: FileStat | None = None

    @property
    def offset_count(self) -> int:
        return self.stop - self.start


class Split(InputPartition):
    """What one task reads, piece after piece. Plain values: it is sent to where the task runs."""

    def __init__(self, pieces: Sequence[SplitPiece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def offset_count(self) -> int:
        return sum(piece.offset_count for piece in self.pieces)


def plan_splits(
    ranges: Iterable[tuple[LogPlace, int, int]],
    log_of: Callable[[LogPlace], Log],
    *,
    max_partition_bytes: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
    task_per_partition: bool = False,
    committed: bool = True,
    sizes_of: Callable[[LogPlace], Mapping[int, int]] = lambda place: {},
    held: Iterable[Held] = (),
    each: EachPlace | None = None,
) -> list[Split]:
    """The splits that read ``ranges``: for each place the offsets from the first number to below the second.

    Args:
        log_of: the open log of a place; it need not stay open beyond the next call.
        max_partition_bytes: the most that one reads, if the log can be cut there.
        min_partitions: the least number of splits, if the offsets suffice.
        max_records: the largest number of offsets in one.
        task_per_partition: each place is one split, whatever its size, unless the two above divide it.
        committed: aborted transactions are skipped; no range ends above its log's last stable offset.
        sizes_of: the sizes of a place's segments, if they were listed, as in a store far away.
        held: names the topic of each place; tasks check that they find the same.
        each: calls a function for each place, for many far away at a time.

    Raises: StorageError.
    """
    topics = {log.place: (log.topic_id, log.topic_file) for log in held}
    wholes = {
        place: SplitPiece(place, start, stop, 0, (), *topics.get(place, (None, None)))
        for place, start, stop in ranges
        if start < stop
    }
    if committed:
        _find_aborted(wholes, log_of, each)
    spans: list[SplitPiece] = []
    for place, whole in wholes.items():
        spans += _segments(log_of(place), whole, sizes_of(place))
    size_max = ALL_BYTES if task_per_partition else max_partition_bytes
    if min_partitions is not None:
        size_max = max(min(size_max, -(-sum(span.size for span in spans) // min_partitions)), 1)
    pieces: list[SplitPiece] = []
    for span in spans:
        if span.size <= size_max:
            parts = [span]
        elif sizes_of(span.place):
            parts = _even(span, -(-span.size // size_max))
        else:
            parts = _cut(log_of(span.place), span, size_max)
        for part in parts:
            pieces += _even(part, -(-part.offset_count // max_records) if max_records else 1)
    splits = _together(pieces, size_max, max_records, across_places=not task_per_partition)
    if min_partitions is not None and len(splits) < min_partitions:
        splits = [Split([piece]) for piece in _at_least(pieces, min_partitions)]
    return splits


# --- what exists ----------------------------------------------------------------------------------------------------


def _find_aborted(
    wholes: dict[LogPlace, SplitPiece], log_of: Callable[[LogPlace], Log], each: EachPlace | None
) -> None:
    """Adds the aborted transactions that reach into each piece."""

    def find(place: LogPlace) -> None:
        log, whole = log_of(place), wholes[place]
        log.last_stable_offset  # noqa: B018  # also finds those that no index lists yet
        aborted = tuple(reads_of(log).aborted_transactions(whole.start, whole.stop))
        wholes[place] = whole._replace(aborted=aborted)

    if each is not None:
        each(find, list(wholes))
    else:
        for place in wholes:
            find(place)


def _segments(log: Log, whole: SplitPiece, sizes: Mapping[int, int]) -> Iterator[SplitPiece]:
    """The parts of a range, each within one segment."""
    start = whole.start
    end_offset = reads_of(log).read_bound(committed=False).end_offset
    while start < whole.stop:
        found = reads_of(log).segment_for(start)
        if found is None:
            yield whole._replace(start=start)  # its reader finds out what became of it
            return
        segment, segment_stop = found
        stop = min(segment_stop, whole.stop)
        size = sizes.get(segment.base_offset)
        try:
            size = segment.size if size is None else size
        except StorageError:
            size = 0  # it has just disappeared
        # As if all records had one size: good enough for a division.
        share = (stop - start) / max(min(segment_stop, end_offset) - segment.base_offset, 1)
        yield _part(whole, start, stop, int(size * min(share, 1.0)))
        start = stop


def _part(whole: SplitPiece, start: int, stop: int, size: int) -> SplitPiece:
    aborted = tuple(each for each in whole.aborted if each.first_offset < stop and each.last_offset >= start)
    return whole._replace(start=start, stop=stop, size=size, aborted=aborted)


# --- cutting ----------------------------------------------------------------------------------------------------------


def _cut(log: Log, span: SplitPiece, size_max: int) -> list[SplitPiece]:
    """The parts of a segment, of about one size; a single part without an index to cut by."""
    found = reads_of(log).segment_for(span.start)
    if found is None:
        return [span]
    try:
        return _cut_by(found[0].offset_index(), found[0].base_offset, span, size_max)
    except INDEX_FAILURES:  # also if it was closed in the meantime
        return [span]


def _cut_by(index: OffsetIndex, base_offset: int, span: SplitPiece, size_max: int) -> list[SplitPiece]:
    first = index.lookup(span.start).position if span.start > base_offset else 0
    above = index.ceiling(span.stop)
    # Without an entry at its end it is the size reported before.
    last = above[0].position if above is not None else first + span.size
    count = max(-(-(last - first) // size_max), 1)
    parts = []
    start, position = span.start, first
    for number in range(1, count):
        entry = index.upper_bound(first + (last - first) * number // count)
        # An entry names the last offset of its batch: the next batch starts after it.
        if entry is None or entry.offset + 1 >= span.stop:
            break
        if entry.offset + 1 > start:
            parts.append(_part(span, start, entry.offset + 1, entry.position - position))
            start, position = entry.offset + 1, entry.position
    parts.append(_part(span, start, span.stop, max(last - position, 0)))
    return parts


def _even(piece: SplitPiece, count: int) -> list[SplitPiece]:
    """``piece`` in ``count`` parts of equally many offsets, or fewer parts if it has fewer offsets."""
    count = max(min(count, piece.offset_count), 1)
    bounds = [piece.start + piece.offset_count * number // count for number in range(count + 1)]
    return [_part(piece, start, stop, piece.size // count) for start, stop in pairwise(bounds)]


def _at_least(pieces: Sequence[SplitPiece], count: int) -> list[SplitPiece]:
    """``pieces`` with the longest ones halved until there are ``count``, or each has one offset."""
    # By length; the place in the list and the start keep the order.
    heap = [(-piece.offset_count, number, piece.start, piece) for number, piece in enumerate(pieces)]
    heapify(heap)
    while heap and len(heap) < count and heap[0][3].offset_count > 1:
        _, number, _, longest = heap[0]
        halves = _even(longest, 2)
        heapreplace(heap, (-halves[0].offset_count, number, halves[0].start, halves[0]))
        heappush(heap, (-halves[1].offset_count, number, halves[1].start, halves[1]))
    return [piece for _, _, _, piece in sorted(heap, key=lambda one: (one[1], one[2]))]


# --- putting together -------------------------------------------------------------------------------------------------


def _together(
    pieces: Iterable[SplitPiece], size_max: int, max_records: int | None, *, across_places: bool
) -> list[Split]:
    """Splits of neighbouring pieces, each filled as far as possible."""
    splits: list[list[SplitPiece]] = []
    size = offset_count = 0
    for piece in pieces:
        is_next = bool(splits) and _follows(splits[-1][-1], piece)
        cost = piece.size + (0 if is_next else OPEN_BYTES)
        fits = size + cost <= size_max and (max_records is None or offset_count + piece.offset_count <= max_records)
        if not splits or not fits or not (across_places or splits[-1][-1].place == piece.place):
            splits.append([piece])
            size, offset_count = piece.size, piece.offset_count
            continue
        size, offset_count = size + cost, offset_count + piece.offset_count
        if is_next:
            splits[-1][-1] = _joined(splits[-1][-1], piece)
        else:
            splits[-1].append(piece)
    return [Split(each) for each in splits]


def _follows(piece: SplitPiece, following: SplitPiece) -> bool:
    return piece.place == following.place and piece.stop == following.start


def _joined(piece: SplitPiece, following: SplitPiece) -> SplitPiece:
    aborted = dict.fromkeys((*piece.aborted, *following.aborted))
    return piece._replace(stop=following.stop, size=piece.size + following.size, aborted=tuple(aborted))
