"""Rebuilds the transaction indexes of a log from its batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kstore.engine.producers import LogProducers, skip_marker, skip_without_producers
from kstore.engine.segments import LogSegments
from kstore.errors import CorruptDataError
from kstore.files.paths import TXN_INDEX_SUFFIX
from kstore.index import TransactionIndex
from kstore.record._runs import Run
from kstore.record.batch import Batch
from kstore.record.walk import Damage
from kstore.scan.visits import Visitor, visit
from kstore.segment import LogSegment
from kstore.segments.places import START
from kstore.state.producer_state import ProducerState
from kstore.types import OFFSET_MAX, AbortedTransaction

logger = logging.getLogger(__name__)


def rebuild_transaction_indexes(
    producers: LogProducers, all_segments: LogSegments, segments: Iterable[LogSegment]
) -> list[str]:
    """Rebuilds the transaction indexes of ``segments``, in their order, from their batches.

    Returns the paths of those that changed, each of them durable. Raises: StorageError.
    """
    # A separate state: that of ``producers`` would apply the batches twice.
    own = producers.apart()
    rebuild = TransactionRebuild(own)
    changed = []
    for segment in segments:
        following = all_segments.higher(segment.base_offset)
        start = skip_without_producers(segment, START, segment.size)
        stop = following.base_offset if following else OFFSET_MAX
        rebuild.begin(segment)
        visit(segment.runs_from(start, segment.size, offset_stop=stop), rebuild, base_offset=segment.base_offset)
        if rebuild.finish():
            changed.append(str(segment.path(TXN_INDEX_SUFFIX)))
    if own.in_use:
        producers.note_use()
    return changed


class TransactionRebuild(Visitor):
    """Rebuilds transaction indexes from the batches of a scan, segment after segment."""

    _segment: LogSegment

    def __init__(self, producers: LogProducers) -> None:
        self._producers = producers
        self._state: ProducerState | None = None
        self._aborted: list[AbortedTransaction] = []
        self._damages: list[Damage] = []

    def begin(self, segment: LogSegment) -> None:
        """Takes the next segment. The state before the first one is loaded from snapshots when it is needed."""
        self._segment = segment

    def note_damage(self, damage: Damage) -> None:
        # Only the old index knows which transactions ended there.
        self._damages.append(damage)

    def note(self, position: int, batch: Batch) -> None:
        if batch.producer_id < 0:
            return
        try:
            ended = self._state_before().update(batch)
        except CorruptDataError as error:
            skip_marker(self._segment, batch, error)
            return
        if ended is not None:
            self._aborted.append(ended)

    def note_run(self, run: Run) -> None:
        if run.has_producers:
            aborted, unreadable = self._state_before().update_run(run)
            self._aborted += aborted
            for batch in unreadable:
                self.note(run.position, batch)  # as a batch by itself, which says why

    def _state_before(self) -> ProducerState:
        if self._state is None:
            self._state = self._producers.up_to(self._segment.base_offset, 0)
            self._producers.note_use()
        return self._state

    def finish(self) -> bool:
        """Puts the segment's index on disk, written again unless it is right; returns whether it was."""
        segment = self._segment
        aborted, self._aborted = self._aborted, []
        damages, self._damages = self._damages, []
        found, is_whole = self._found_in(segment)
        # An unreadable marker has ended its transaction nevertheless.
        ended = {transaction.last_offset for transaction in aborted}
        unread = [one for one in found if one.last_offset not in ended and _is_in(damages, one.last_offset)]
        aborted = sorted([*aborted, *unread], key=lambda transaction: transaction.last_offset)
        self._producers.index_sizes.note(segment.base_offset, len(aborted) * TransactionIndex.entry_size)
        if is_whole and found == aborted:
            if found:
                # The process that wrote it may have been killed before it synced it.
                segment.files.sync_transaction_index()
            return False
        # At once: readers in other processes trust the index.
        segment.files.replace_transaction_index(aborted)
        return True

    def _found_in(self, segment: LogSegment) -> tuple[list[AbortedTransaction], bool]:
        """What the segment's old index says, and whether it can be read to its end; nothing if there is no index."""
        found: list[AbortedTransaction] = []
        if segment.base_offset not in self._producers.index_sizes:
            return found, True
        index = segment.files.transaction_index()
        try:
            for transaction in index.entries():
                found.append(transaction)
            index.check_versions()
        except CorruptDataError as error:
            logger.warning("%s: rebuilt: %s", index.path, error)
            return found, False
        finally:
            index.close()
        return found, True


def _is_in(damages: Iterable[Damage], offset: int) -> bool:
    """Whether a batch with ``offset`` may have been in the damaged range."""
    return any(
        damage.first_offset <= offset and (damage.next_offset is None or offset < damage.next_offset)
        for damage in damages
    )
