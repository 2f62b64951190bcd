"""Shows the batches of one segment, and what stands in place of batches, to visitors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kstore.errors import CorruptDataError
from kstore.files.fs import File
from kstore.record._runs import Run
from kstore.record.batch import Batch
from kstore.record.walk import Damage
from kstore.rules.losses import NO_LOSSES, LossRanges, clipped
from kstore.types import NO_TIMESTAMP, OFFSET_MAX

# Receives the number of further bytes examined.
Advance = Callable[[int], None]
# Long reads drop what they have read, and report progress, in steps of this size.
STEP_BYTES = 8 << 20


def no_advance(size: int) -> None:
    """Reports no progress."""


class Lost(NamedTuple):
    """Offsets ``first`` to ``last``, which were durable, and which no batch holds; ``position`` is where they would be.

    ``before_ms`` is the greatest timestamp of the batch that follows, or NO_TIMESTAMP.
    """

    first: int
    last: int
    position: int
    before_ms: int = NO_TIMESTAMP


class Visitor:
    """Sees one segment in the order of its bytes. What a visitor does not need, it leaves as it is here."""

    def note(self, position: int, batch: Batch) -> None:
        """Takes the next whole batch, or its header if the walk reads no more."""

    def note_run(self, run: Run) -> None:
        """Takes the next run: ``note`` for each of its batches, unless compiled code can do it at once."""
        for position, batch in run.batches():
            self.note(position, batch)

    def note_damage(self, damage: Damage) -> None:
        """Takes bytes in which no batch was found."""

    def note_lost(self, lost: Lost) -> None:
        """Takes known lost offsets, before the batch that follows them."""


def visit(
    items: Iterable[Run | tuple[int, Batch] | Damage],
    *visitors: Visitor,
    base_offset: int,
    offset_stop: int = OFFSET_MAX,
    size: int = 0,
    losses: LossRanges = NO_LOSSES,
    first_offset_of: Callable[[Batch], int] = lambda batch: batch.base_offset,
    progress: Progress | None = None,
) -> int:
    """Shows ``visitors``, each of them in turn, what a walk finds. Returns the offset after the last whole batch.

    Args:
        items: the walk; a run that has a gap is taken apart if offsets are known to be lost.
        base_offset: the first offset that is expected.
        offset_stop: where the next segment starts: known losses count up to there, at position ``size``.
        losses: the log's record of its losses.
        first_offset_of: the first offset of a batch, where a header alone does not tell it.
        progress: learns how far the scan is.

    Raises: what the walk and the visitors raise.
    """
    next_offset = expected = base_offset
    lost = losses.lost
    if lost:
        items = _apart(items)
    # A visitor is not called where it has nothing to do: for many small batches that would take longer than the rest.
    note_each = [each.note for each in visitors if _has_own(each, "note")]
    note_run_each = [each.note_run for each in visitors if _has_own(each, "note") or _has_own(each, "note_run")]
    due = OFFSET_MAX if progress is None else progress.due
    for item in items:
        # First, and not by ``isinstance``, which is slow where it does not hold: there may be many small batches.
        if type(item) is tuple:
            position: int = item[0]
            batch: Batch = item[1]  # type: ignore[assignment]  # only a Damage has a number there
            if position >= due and progress is not None:
                due = progress.reach(position)
            if lost:
                for span in clipped(lost, expected, first_offset_of(batch)):
                    _show_lost(visitors, Lost(*span, position, batch.max_timestamp))
            for note in note_each:
                note(position, batch)
            next_offset = expected = batch.last_offset + 1
        elif isinstance(item, Run):
            if item.position + item.start >= due and progress is not None:
                due = progress.reach(item.position + item.start)
            for note_run in note_run_each:
                note_run(item)
            next_offset = expected = item.next_offset
        elif isinstance(item, Damage):
            for visitor in visitors:
                visitor.note_damage(item)
            expected = offset_stop if item.next_offset is None else item.next_offset
    for span in clipped(lost, expected, offset_stop):
        _show_lost(visitors, Lost(*span, size))
    return next_offset


def _apart(items: Iterable[Run | tuple[int, Batch] | Damage]) -> Iterator[Run | tuple[int, Batch] | Damage]:
    """The same with the batches of runs that have a gap, which may be lost offsets."""
    for item in items:
        if isinstance(item, Run) and item.has_gap:
            yield from item.batches()
        else:
            yield item


def _has_own(visitor: Visitor, name: str) -> bool:
    return getattr(type(visitor), name) is not getattr(Visitor, name)


def _show_lost(visitors: Iterable[Visitor], lost: Lost) -> None:
    for visitor in visitors:
        visitor.note_lost(lost)


def whole_batches(items: Iterable[Run | tuple[int, Batch] | Damage]) -> Iterator[tuple[int, Batch]]:
    """What a walk finds, without the damage: for questions that damage does not change."""
    for item in items:
        if isinstance(item, Run):
            yield from item.batches()
        elif not isinstance(item, Damage):
            yield item


def first_timestamp(items: Iterable[tuple[int, Batch] | Damage]) -> int:
    """The greatest timestamp of the first batch; NO_TIMESTAMP without a batch, or if damage comes first."""
    first = next(iter(items), None)
    return NO_TIMESTAMP if first is None or isinstance(first, Damage) else first[1].max_timestamp


class Damages(Visitor):
    """The damage, in order."""

    def __init__(self) -> None:
        self.found: list[Damage] = []

    def note_damage(self, damage: Damage) -> None:
        self.found.append(damage)


class Progress:
    """Reports in steps how far a scan is, and drops what it has read from the page cache.

    Data that is read once should not evict what others read often.
    """

    def __init__(self, advance: Advance = no_advance, *, dropped_from: File | None = None, start: int = 0) -> None:
        """``dropped_from``: the ``.log``; None while a writer is at work, whose readers want the end of its log again.
        ``start``: how far the caller has reported."""
        self._advance = advance
        self._file = dropped_from
        self._told = start

    @property
    def due(self) -> int:
        """Where to report next."""
        return self._told + STEP_BYTES

    def reach(self, position: int) -> int:
        """Reports that everything before ``position`` was read; returns where to report next."""
        size = position - self._told
        if self._file is not None and size > 0:
            self._file.advise(self._told, size, "dontneed")
        self._told = position
        self._advance(size)
        return self.due


class RecordCheck(Visitor):
    """Counts batches, and checks their records: what a run of plain batches has shown is not read again.

    ``record_count`` is what the headers say.
    """

    def __init__(self, max_bytes_uncompressed: int, refuse: Callable[[int, Batch, str], None]) -> None:
        """``refuse`` receives the position of a batch that cannot be read, the batch, and why."""
        self._max_bytes_uncompressed = max_bytes_uncompressed
        self._refuse = refuse
        self.batch_count = self.record_count = 0

    def note(self, position: int, batch: Batch) -> None:
        self.batch_count += 1
        self.record_count += batch.record_count
        try:
            batch.check(self._max_bytes_uncompressed)
        except CorruptDataError as error:
            self._refuse(position, batch, error.reason)

    def note_run(self, run: Run) -> None:
        if run.is_compressed:
            for position, batch in run.batches():
                self.note(position, batch)
        else:
            self.batch_count += run.batch_count
            self.record_count += run.record_count
