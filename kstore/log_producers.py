"""A log's producer state over time: loaded from the newest snapshot when first needed, and written as snapshots.

A log that no producer ever wrote to pays nothing for it: nothing is read before a producer's batch comes, or somebody
asks for the last stable offset.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kstore.errors import CorruptDataError, StorageError
from kstore.files.checkpoint import replace_file
from kstore.files.fs import read_file
from kstore.files.paths import SNAPSHOT_SUFFIX, segment_name
from kstore.index import TransactionIndex
from kstore.record.batch import Batch
from kstore.record.walk import Damage
from kstore.segment import LogSegment, SegmentContext
from kstore.segments import LogSegments
from kstore.state.producer_snapshot import decode_snapshot, encode_snapshot
from kstore.state.producer_state import ProducerState
from kstore.types import AbortedTransaction

__all__ = ["LogProducers", "TransactionRebuild"]

logger = logging.getLogger(__name__)


class LogProducers:
    """The producers of one log. The log's lock guards changes; a read-only log uses it from one thread at a time."""

    def __init__(self, context: SegmentContext, segments: LogSegments, snapshots: Sequence[int]) -> None:
        self._context = context
        self._segments = segments
        self._snapshots = sorted(snapshots)
        self._state: ProducerState | None = None
        self._next_offset = 0
        # Whether the state says more than the newest snapshot.
        self._changed = False
        # Whether a producer ever wrote to the log, as far as known.
        self.in_use = bool(snapshots)
        # Ended in what was read since the snapshot: beside a live writer an index may not list them yet.
        self._seen_aborted: list[AbortedTransaction] = []
        # Indexes with entries that are not on disk yet, by base offset; kept open, since errors are told to who wrote.
        self._unsynced: dict[int, TransactionIndex] = {}

    def up_to(self, end: int, position: int) -> ProducerState:
        """The state at offset ``end``, byte ``position`` of the last segment; reads what is new since the last call."""
        if self._state is None or self._next_offset > end:
            self._next_offset, self._state = self._newest_snapshot(end)
            self._changed = False
            self._seen_aborted = []
        if self._next_offset < end:
            for segment in self._segments.range(self._next_offset, end):
                stop = position if segment is self._segments.last else segment.size
                self._seen_aborted += self._replay(segment, stop, end)
            self._next_offset = end
        return self._state

    def extend_to(self, end: int, position: int) -> None:
        """Takes in what was just appended; an abort among it is added to its segment's transaction index."""
        assert self._state is not None, "producers are loaded before a producer's batch is written"
        for segment in self._segments.range(self._next_offset, end):
            stop = position if segment is self._segments.last else segment.size
            aborted = self._replay(segment, stop, end)
            if aborted:
                index = self._unsynced.get(segment.base_offset)
                if index is None:
                    index = self._unsynced[segment.base_offset] = segment.transaction_index(writable=True)
                for transaction in aborted:
                    index.append(transaction)
        self._next_offset = end

    def _replay(self, segment: LogSegment, stop: int, end: int) -> Sequence[AbortedTransaction]:
        assert self._state is not None
        aborted = []
        for item in segment.walk_from(segment.locate(max(self._next_offset, segment.base_offset), stop), stop):
            if isinstance(item, Damage):
                continue
            _, batch = item
            if batch.producer_id >= 0 and self._next_offset <= batch.base_offset < end:
                ended = self._state.update(batch)
                self._changed = self.in_use = True
                if ended is not None:
                    aborted.append(ended)
        return aborted

    def note_use(self) -> None:
        """A producer's batch was seen."""
        self.in_use = True

    def _newest_snapshot(self, end: int) -> tuple[int, ProducerState]:
        for offset in reversed([offset for offset in self._snapshots if offset <= end]):
            path = self._context.directory / segment_name(offset, SNAPSHOT_SUFFIX)
            try:
                return offset, ProducerState(decode_snapshot(read_file(self._context.fs, path)))
            except (CorruptDataError, StorageError) as error:
                logger.warning("%s: passed over, the producers are read from the log: %s", path, error)
        return 0, ProducerState()

    def snapshot(self, offset: int) -> None:
        """Writes the state at ``offset``, the log's end, where a producer's batch came since it was loaded."""
        if self._state is None or not self._changed:
            return
        path = self._context.directory / segment_name(offset, SNAPSHOT_SUFFIX)
        entries = list(self._state.entries.values())
        replace_file(self._context.fs, path, encode_snapshot(entries), mode=self._context.config.file_mode)
        if offset not in self._snapshots:
            self._snapshots = sorted([*self._snapshots, offset])
        self._changed = False

    def secure(self, base_offset: int) -> None:
        """Before the segments below ``base_offset`` go: what only their batches tell goes into a snapshot there."""
        if not self.in_use or base_offset in self._snapshots:
            return
        below = LogProducers(self._context, self._segments, [at for at in self._snapshots if at <= base_offset])
        below._changed = bool(below.up_to(base_offset, 0).entries)
        below.snapshot(base_offset)
        self._snapshots = sorted({*self._snapshots, *below._snapshots})

    def take_unsynced(self) -> list[TransactionIndex]:
        """The transaction indexes that are not on disk: the caller syncs them, and then their names."""
        taken, self._unsynced = self._unsynced, {}
        return list(taken.values())

    def truncate_to(self, end: int) -> None:
        """Forgets what lies behind ``end``, the end of the last batch that is left; its snapshots too, durably."""
        removed = [at for at in self._snapshots if at > end]
        self._remove(removed)
        if removed:
            # One that came back after a power cut would tell of batches that others have replaced.
            self._context.fs.sync_dir(self._context.directory)
        self._state = None
        self._unsynced.clear()

    def delete_before(self, base_offset: int) -> None:
        """Removes the snapshots below the first segment, but for the newest: batches from it on may be all there is."""
        self._remove([at for at in self._snapshots[:-1] if at < base_offset])

    def remove_strays(self, end: int) -> None:
        """Removes snapshots beyond ``end`` and those that no segment begins with, but for the newest.

        Every close leaves one; without this they would become more with each life of the log.
        """
        newest = max((at for at in self._snapshots if at <= end), default=-1)
        kept = {newest, *self._segments.bases}
        self._remove([at for at in self._snapshots if at > end or at not in kept])

    def _remove(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            try:
                self._context.fs.unlink(self._context.directory / segment_name(offset, SNAPSHOT_SUFFIX))
            except FileNotFoundError:
                pass  # somebody tidied up
            self._snapshots.remove(offset)

    def aborted_transactions(self, start: int, stop: int) -> Sequence[AbortedTransaction]:
        """The aborted transactions that overlap offsets ``start`` to ``stop``, which is exclusive (UnifiedLog)."""
        found: list[AbortedTransaction] = []
        for segment in self._segments.range(start, 2**63 - 1):
            result = segment.transaction_index().collect_aborted(start, stop)
            found.extend(result.transactions)
            if result.is_complete:
                return found
        missing = [aborted for aborted in self._seen_aborted if aborted not in found]
        return found + [gone for gone in missing if gone.last_offset >= start and gone.first_offset < stop]


class TransactionRebuild:
    """Makes transaction indexes anew from the batches that recovery passes by, segment after segment."""

    def __init__(self, producers: LogProducers) -> None:
        self._producers = producers
        self._state: ProducerState | None = None
        self._aborted: list[AbortedTransaction] = []

    def note(self, segment: LogSegment, batch: Batch) -> None:
        """Takes in the next batch; what came before the first segment is read from snapshots when it is needed."""
        if batch.producer_id < 0:
            return
        if self._state is None:
            self._state = self._producers.up_to(segment.base_offset, 0)
            self._producers.note_use()
        try:
            ended = self._state.update(batch)
        except CorruptDataError as error:
            logger.warning("%s: a marker at offset %d is passed over: %s", segment, batch.base_offset, error)
            return
        if ended is not None:
            self._aborted.append(ended)

    def finish(self, segment: LogSegment) -> None:
        """Writes the segment's index, unless it says the same already."""
        aborted, self._aborted = self._aborted, []
        index = segment.transaction_index()
        try:
            if list(index.entries()) == aborted:
                return
        except CorruptDataError as error:
            logger.warning("%s: rebuilt: %s", index.path, error)
        finally:
            index.close()
        # At once: a reader in another process believes what it finds.
        segment.replace_transaction_index(aborted)
