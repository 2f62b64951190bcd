"""A walk over the batches of one segment that continues after damage, and reports what it had to skip.

A batch is served only if its CRC is correct and its offsets fit. The CRC does not cover the base offset, so a flipped
bit there is found by its surroundings: offsets never decrease, and where they leave a gap (compaction, or a log written
that way) the batch after the gap, or the segment's end, must agree with it. Two kinds of gaps are accepted only with
one of the two: a gap beyond what a segment's indexes can hold, which old brokers wrote, and one that reaches across an
offset at which the log is known to have ended. The second rule also applies after damage, if the damaged bytes are one
entry: no batch reaches across that offset either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

from kstore.errors import CorruptDataError
from kstore.record._runs import Run
from kstore.record.batch import BATCH_HEADER_BYTES, MAGIC_V2, Batch
from kstore.record.parse import parse_batch
from kstore.record.scan import (
    RUN_BYTES_FIRST,
    RunBounds,
    SearchBudget,
    Source,
    find_next_batch,
    is_zero,
    offset_after_damage,
    scan,
)
from kstore.types import INT64_MAX, OFFSET_MAX, RELATIVE_OFFSET_MAX

# The offsets of a segment are stored relative to its base, as int32.
OFFSET_COUNT_MAX = RELATIVE_OFFSET_MAX + 1
# After damage, further damage may follow soon.
FIRST_BYTES_BEHIND = 1 << 12
SPACE = "all zeros, as in a file that was allocated ahead"
NOT_SEARCHED = "; there is so much damage that the rest was not searched"


class Damage(NamedTuple):
    """Bytes ``position`` to ``stop`` in which no whole, fitting batch was found.

    ``first_offset`` is the offset expected there; ``next_offset`` the base of the whole batch at ``stop``, or None at
    the walk's end. ``torn``: the bytes end before the entry that starts at ``position``. ``is_space``: they are the
    end, and all zeros, as in a file that was allocated ahead; nothing was lost unless offsets are known to be missing.
    """

    position: int
    stop: int
    first_offset: int
    next_offset: int | None
    reason: str
    torn: bool
    is_space: bool = False


def walk(
    source: Source,
    start: int,
    stop: int,
    *,
    next_offset: int,
    offset_stop: int = OFFSET_MAX,
    known_end: int = 0,
    hints: Callable[[], Sequence[int]] = tuple,
    chunk_bytes: int = 1 << 20,
) -> Iterator[tuple[int, Batch] | Damage]:
    """Yields (position, batch) and, between them, ``Damage``, over bytes ``start`` to ``stop`` of ``source``.

    Args:
        next_offset: no batch may start below it.
        offset_stop: no batch may end at or above it: the next segment's base, or the log's end. Without it a gap of
            OFFSET_COUNT_MAX offsets is accepted only if another batch follows it.
        known_end: the log once ended there, and everything below it was on disk. So no gap within a segment reaches
            across it: a batch after such a gap is believed only if another batch follows it.
        hints: positions at which batches may start after damage, from an index; called once, when needed.

    Whatever the damage, the bytes that are checksummed for it are bounded (``SearchBudget``).
    """
    items = _walk(source, start, stop, next_offset, offset_stop, known_end, hints, chunk_bytes, None, 0, 0)
    return cast("Iterator[tuple[int, Batch] | Damage]", items)


def walk_runs(
    source: Source,
    start: int,
    stop: int,
    *,
    next_offset: int,
    offset_stop: int = OFFSET_MAX,
    base_stop: int = OFFSET_MAX,
    known_end: int = 0,
    hints: Callable[[], Sequence[int]] = tuple,
    chunk_bytes: int = 1 << 20,
    run_batch_bytes: int = INT64_MAX,
    run_bytes: int = RUN_BYTES_FIRST,
    with_compressed: bool = False,
) -> Iterator[Run | tuple[int, Batch] | Damage]:
    """``walk``, with runs in place of the plain batches that begin below ``base_stop``.

    No run begins with a batch of more than ``run_batch_bytes``: checking a large batch before decoding it costs more
    than its turn in Python. ``with_compressed``: there are also runs of compressed batches, of which only headers, CRCs
    and offsets are checked. The first run has ``run_bytes``, and so have all others if that is much. Nothing else may
    change the memory that the source's ``pread`` returns.
    """
    runs = RunBounds(offset_stop, known_end, base_stop, with_compressed)
    sizes = run_batch_bytes, run_bytes
    return _walk(source, start, stop, next_offset, offset_stop, known_end, hints, chunk_bytes, runs, *sizes)


def _walk(
    source: Source,
    start: int,
    stop: int,
    next_offset: int,
    offset_stop: int,
    known_end: int,
    hints: Callable[[], Sequence[int]],
    chunk_bytes: int,
    runs: RunBounds | None,
    run_batch_bytes: int,
    run_bytes: int,
) -> Iterator[Run | tuple[int, Batch] | Damage]:
    budget = SearchBudget(stop - start)
    positions: Sequence[int] | None = None
    first_bytes = chunk_bytes
    while True:
        scanned = scan(
            source,
            start,
            stop,
            next_offset=next_offset,
            chunk_bytes=chunk_bytes,
            first_bytes=first_bytes,
            runs=runs,
            run_batch_bytes=run_batch_bytes,
            run_bytes=run_bytes,
        )
        wasted_bytes = 0
        damage: tuple[int, str, bool] | None = None
        try:
            for step in scanned.steps:
                if isinstance(step, Run):
                    yield step
                    next_offset = step.next_offset
                    continue
                position, batch = step
                if batch.base_offset != next_offset or batch.last_offset >= offset_stop:
                    reason = _misplaced(source, position, stop, batch, next_offset, offset_stop, known_end)
                    if reason:
                        damage = (position, reason, False)
                        wasted_bytes = batch.size
                        break
                yield step
                next_offset = batch.last_offset + 1
            else:
                end = scanned.stop
                assert end is not None, "a finished scan says why"
                if end.kind == "end":
                    return
                damage = (end.position, end.reason, end.kind == "torn")
                wasted_bytes = end.entry_size
        finally:
            scanned.close()
        position, reason, torn = damage
        if positions is None:
            positions = sorted(hints())
        after = None
        if budget.entries.take(wasted_bytes):
            entry = (position, position + wasted_bytes)
            after = _next_fitting(source, entry, stop, next_offset, offset_stop, known_end, positions, budget)
        if after is None:
            yield last_damage(source, position, stop, next_offset, reason + NOT_SEARCHED * budget.is_spent, torn)
            return
        first_bytes = FIRST_BYTES_BEHIND
        start, base_offset = after
        yield Damage(position, start, next_offset, base_offset, reason, False)
        next_offset = base_offset


def last_damage(source: Source, position: int, stop: int, first_offset: int, reason: str, torn: bool) -> Damage:
    """The damage after which no whole batch was found."""
    is_space = is_zero(source, position, stop)
    return Damage(position, stop, first_offset, None, SPACE if is_space else reason, torn, is_space)


def _misplaced(
    source: Source, position: int, stop: int, batch: Batch, next_offset: int, offset_stop: int, known_end: int
) -> str | None:
    """Why the base offset of a batch with a good CRC cannot be right, or None."""
    if batch.last_offset >= offset_stop:
        return f"batch of offsets {batch.base_offset} to {batch.last_offset}, expected below {offset_stop}"
    alone = None
    if is_far(batch.last_offset, next_offset, offset_stop):
        alone = (
            f"batch of offsets {batch.base_offset} to {batch.last_offset}, expected {next_offset}, and no batch follows"
            " that confirms it"
        )
    elif next_offset < known_end <= batch.last_offset:
        alone = (
            f"batch of offsets {batch.base_offset} to {batch.last_offset}, expected {next_offset}: the log was durable"
            f" up to {known_end}, and no batch follows that bears it out"
        )
    successor = position + batch.size
    if successor >= stop:
        return alone
    try:
        after = parse_batch(source.pread(min(BATCH_HEADER_BYTES, stop - successor), successor), 0, header_only=True)
        if after.magic != MAGIC_V2:
            # Only the messages of a compressed set tell where it starts.
            after = parse_batch(source.pread(min(after.size, stop - successor), successor))
    except CorruptDataError:
        return alone  # no header there could confirm it
    after_offset = after.base_offset
    if next_offset <= after_offset <= batch.last_offset:
        return (
            f"batch of offsets {batch.base_offset} to {batch.last_offset}, "
            f"expected {next_offset} and below {after_offset}, where the next batch starts"
        )
    return alone if after_offset < next_offset else None


def is_far(last_offset: int, next_offset: int, offset_stop: int) -> bool:
    """Whether a batch is further from the expected offset than one segment reaches, without an ``offset_stop`` as a
    bound."""
    return offset_stop == OFFSET_MAX and last_offset >= next_offset + OFFSET_COUNT_MAX


def _next_fitting(
    source: Source,
    entry: tuple[int, int],
    stop: int,
    next_offset: int,
    offset_stop: int,
    known_end: int,
    hints: Sequence[int],
    budget: SearchBudget,
) -> tuple[int, int] | None:
    """Position and base offset of the next whole batch after the damaged ``entry``, or None.

    ``entry`` is where the damaged entry starts, and where its size claims that it ends.
    """
    near_stop = min(offset_stop, next_offset + OFFSET_COUNT_MAX)
    position, entry_stop = entry
    # An offset that the indexes cannot hold is accepted, but only below a bound, and if nothing nearer is found.
    for offset_max in (near_stop,) if offset_stop in (near_stop, OFFSET_MAX) else (near_stop, offset_stop):
        start = position
        while not budget.is_spent:
            found = find_next_batch(
                source,
                start + 1,
                stop,
                next_offset=offset_after_damage(next_offset),
                last_offset_max=offset_max - 1,
                hints=hints,
                entry_stop=entry_stop,
                budget=budget,
            )
            if found is None:
                break
            start = found
            try:
                size = parse_batch(source.pread(min(BATCH_HEADER_BYTES, stop - found), found), header_only=True).size
                batch = parse_batch(source.pread(size, found))
                base_offset = batch.base_offset
            except CorruptDataError:
                continue  # the file was cut there since it was found
            # The log ended at the known end, so a batch starts there or nothing does: not within the damaged entry.
            leaps = next_offset < known_end < base_offset and found == entry_stop
            straddles = base_offset < known_end <= batch.last_offset
            known = known_end if leaps or straddles else 0
            if not _misplaced(source, found, stop, batch, next_offset, offset_stop, known):
                return found, base_offset
    return None
