"""A log's producer state over time: loaded from the newest snapshot when first needed, and written as snapshots.

A log that no producer ever wrote to pays nothing for it: nothing is read until a producer's batch is appended or a
caller asks for the last stable offset.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kstore.engine.head_search import HeadSearch
from kstore.engine.segments import LogSegments
from kstore.errors import CorruptDataError, DuplicateSequenceError, StorageError
from kstore.files.checkpoint import replace_file
from kstore.files.fs import read_file
from kstore.files.paths import SNAPSHOT_SUFFIX, segment_name
from kstore.files.remote import RemoteFile
from kstore.index import TransactionIndex
from kstore.indexes.transaction_index import TransactionIndexSizes
from kstore.record.batch import Batch
from kstore.record.heads import skip_plain
from kstore.record.parse import parse_batch
from kstore.record.walk import Damage
from kstore.rules.sequence import (
    REMEMBERED_MAX,
    KnownProducer,
    RememberedBatch,
    SequencedBatch,
    after,
    check_end,
    check_next,
    follows,
    producer_batch,
    repeats,
    seen,
)
from kstore.scan.visits import whole_batches
from kstore.segment import LogSegment, SegmentContext
from kstore.segments.places import Located
from kstore.state.producer_snapshot import decode_snapshot, encode_snapshot
from kstore.state.producer_state import ProducerState
from kstore.types import OFFSET_MAX, AbortedTransaction

logger = logging.getLogger(__name__)

# How often (ms) producers that have written nothing for too long are dropped, as in Kafka.
EXPIRY_INTERVAL_MS = 600_000
# How much of a log is searched for batches that its snapshots leave out.
RECALL_BYTES_MAX = 256 << 20


class UnsyncedIndex(NamedTuple):
    """A transaction index that is not on disk, and its entry count at the time of the question."""

    transactions: TransactionIndex
    entry_count: int


class _Searched(NamedTuple):
    """Everything below ``offset`` comes before ``position`` in a segment."""

    segment: LogSegment
    offset: int
    position: int


class _Begun(NamedTuple):
    """The first batch of a transaction."""

    offset: int
    segment: LogSegment
    position: int
    size: int


class LogProducers:
    """The producers of one log. The log's lock guards changes; a read-only log uses it from one thread at a time."""

    def __init__(
        self,
        context: SegmentContext,
        segments: LogSegments,
        snapshots: Sequence[int],
        index_sizes: TransactionIndexSizes | None = None,
        *,
        shows_expired: bool = False,
        search: HeadSearch | None = None,
    ) -> None:
        """``index_sizes`` are those of the existing transaction indexes; a reader need not know them.

        ``shows_expired``: nothing is appended, so producers that appends would have expired stay known. ``search``:
        only transactions are asked for, and found by headers.
        """
        self.index_sizes: TransactionIndexSizes = TransactionIndexSizes() if index_sizes is None else index_sizes
        self._context = context
        self._segments = segments
        self._snapshots = sorted(snapshots)
        self._shows_expired = shows_expired
        self.search: HeadSearch | None = search
        # Where that search ended, and the first batch of each transaction that it has met.
        self._searched: _Searched | None = None
        self._begun: dict[int, _Begun] = {}
        self._state: ProducerState | None = None
        self._next_offset = 0
        # Whether the log was searched for batches that the snapshot leaves out (``recall``).
        self._is_recalled = False
        # When producers were last expired.
        self._expired_ms = 0
        # Whether the state knows more than the newest snapshot.
        self._changed = False
        # Whether a producer ever wrote to the log, as far as known.
        self.in_use: bool = bool(snapshots)
        # Aborted transactions read since the snapshot: with a live writer an index may not list them yet.
        self._seen_aborted: list[AbortedTransaction] = []
        # Indexes with entries that are not on disk yet, by base offset. They stay open, because the system reports a
        # failed writeback only to descriptors that were open at the time.
        self._unsynced: dict[int, TransactionIndex] = {}

    def use(self, context: SegmentContext) -> None:
        """Continues with other settings."""
        self._context = context

    def up_to(self, end: int, position: int) -> ProducerState:
        """The state at offset ``end``, byte ``position`` of the last segment; reads what was appended since the last
        call."""
        state, self._state = self._state, None
        # Until the end there is no state: a failed replay leaves half of one, and the next call begins again. A batch
        # that is applied twice changes where the transaction of an earlier marker began.
        if state is None or self._next_offset > end:
            self._next_offset, state = self._newest_snapshot(end)
            self._changed = False
            self._is_recalled = self._next_offset == 0
            self._seen_aborted = []
            self._searched, self._begun = None, {}
        if self._next_offset < end:
            if self.search is not None:
                self.search.begin(self._segments, self._next_offset, end, position)
            for segment in self._segments.range(self._next_offset, end):
                stop = position if segment is self._segments.last else segment.size
                self._seen_aborted += self._replay(state, segment, stop, end)
            self._next_offset = end
            if self.search is not None and not self._is_borne_out(state):
                self.search = None
                return self.up_to(end, position)
        self._state = state
        return state

    def _is_borne_out(self, state: ProducerState) -> bool:
        """Whether the first batch of the oldest open transaction is whole, if only its header was read.

        A flipped bit in a header may show a transaction that no producer has begun, and that nothing ends.
        """
        producer = next(state.open_transactions, None)
        begun = self._begun.get(producer.producer_id) if producer is not None else None
        if producer is None or begun is None or begun.offset != producer.current_txn_first_offset:
            return True
        del self._begun[producer.producer_id]  # it need not be read again
        data = begun.segment.log_file().pread(begun.size, begun.position)
        if self.search is not None:
            self.search.note(len(data))
        try:
            batch = parse_batch(data)
            batch.ensure_valid()
        except CorruptDataError as error:
            logger.warning("%s at position %d: the batches are read whole: %s", begun.segment, begun.position, error)
            return False
        return batch.base_offset == begun.offset

    def known(self, end: int, position: int) -> tuple[KnownProducer, ...]:
        """Every known producer at offset ``end``, as ``up_to``, sorted by id."""
        assert self.search is None, "a search by headers knows only transactions"
        producers = self.up_to(end, position).producers
        return tuple(producers[producer_id] for producer_id in sorted(producers))

    @property
    def known_to(self) -> int:
        """The offset up to which the producers are known; 0 if nothing was read yet."""
        return self._next_offset if self._state is not None else 0

    @property
    def snapshot_offsets(self) -> Sequence[int]:
        """The offsets of the log's snapshots, increasing."""
        return self._snapshots

    def apart(self) -> LogProducers:
        """A second, empty object for the same log: it reads without changing this one. See ``adopt``."""
        return LogProducers(self._context, self._segments, self._snapshots, self.index_sizes)

    def adopt(self, other: LogProducers) -> None:
        """Takes over what ``other``, made by ``apart``, has read, if that is more."""
        if other.known_to > self.known_to:
            self._next_offset, self._state = other._next_offset, other._state
            self._seen_aborted = other._seen_aborted
            self._is_recalled, self._changed = other._is_recalled, other._changed
            self.in_use = self.in_use or other.in_use

    def passed(self, before: int, end: int) -> None:
        """No producer's batch was appended from ``before`` to ``end``, so that part need not be read."""
        if self._state is not None and self._next_offset == before:
            self._next_offset = end

    def take_in(self, batches: Sequence[SequencedBatch], end: int) -> None:
        """Adds batches that were just appended; an aborted transaction is also added to its segment's index."""
        state = self._state
        assert state is not None, "producers are loaded before a producer's batch is written"
        self._changed = self.in_use = True
        for batch in batches:
            aborted = state.apply(batch)
            self._next_offset = batch.last_offset + 1
            if aborted is not None:
                index = self._transaction_index_at(batch.first_offset)
                index.append(aborted)
                self.index_sizes.note(index.base_offset, index.size)
        self._next_offset = end

    def take_in_run(self, producer: KnownProducer, end: int) -> None:
        """Adds the producer after batches that were appended up to ``end``: see ``_path.continued``."""
        assert self._state is not None, "the producer was known"
        self._changed = self.in_use = True
        self._state.producers[producer.producer_id] = producer
        self._next_offset = end

    def _transaction_index_at(self, offset: int) -> TransactionIndex:
        segment = self._segments.floor(offset)
        assert segment is not None
        index = self._unsynced.get(segment.base_offset)
        if index is None:
            index = self._unsynced[segment.base_offset] = segment.files.transaction_index(writable=True)
        return index

    def expire(self, now_ms: int) -> int:
        """Drops producers that have written nothing for ``producer_id_expiration_ms``; returns their number."""
        if self._state is None:
            return 0
        self._expired_ms = now_ms
        count = self._state.expire(now_ms, self._context.config.producer_id_expiration_ms)
        self._changed = self._changed or count > 0
        return count

    def pending(self, end: int, position: int, now_ms: int) -> PendingProducers:
        """Checks appends to a log that ends at ``end``."""
        is_new = self._state is None
        state = self.up_to(end, position)
        if is_new or not 0 <= now_ms - self._expired_ms < EXPIRY_INTERVAL_MS:
            self.expire(now_ms)
        return PendingProducers(self, state)

    def recall(self) -> None:
        """Reads the batches that snapshots leave out: a snapshot has only the newest of each producer's last batches.

        It searches the newest segments first, at most ``RECALL_BYTES_MAX`` bytes, and only once: a second search would
        find the same. Raises: StorageError.
        """
        state = self._state
        if state is None or self._is_recalled:
            return
        searched: list[LogSegment] = []
        size = 0
        for segment in reversed(self._segments.range(0, self._next_offset)):
            searched.insert(0, segment)
            size += segment.size
            if size >= RECALL_BYTES_MAX:
                break
        earlier: dict[int, deque[RememberedBatch]] = {}
        for segment in searched:
            start = segment.locate(segment.base_offset, segment.size, repair=False)
            for _, batch in whole_batches(segment.walk_from(start, segment.size)):
                known = state.producers.get(batch.producer_id)
                if (
                    known is not None
                    and known.batches
                    and batch.producer_epoch == known.producer_epoch
                    and batch.last_offset < known.batches[0].first_offset
                    and not batch.is_control
                ):
                    batches = earlier.setdefault(batch.producer_id, deque(maxlen=REMEMBERED_MAX))
                    batches.append(seen(producer_batch(batch)))
        for producer_id, batches in earlier.items():
            state.recall(producer_id, batches)
        self._is_recalled = True

    def _replay(self, state: ProducerState, segment: LogSegment, stop: int, end: int) -> Sequence[AbortedTransaction]:
        aborted = []
        searched, self._searched = self._searched, None
        is_later = False
        if searched is not None and (searched.segment, searched.offset) == (segment, self._next_offset):
            start = Located(searched.position, 0, searched.offset)
        elif self._next_offset <= segment.base_offset:
            start = Located(0, 0, segment.base_offset)
        else:
            start = segment.locate(self._next_offset, stop, repair=False)
        if self.search is not None:
            batches = self.search.batches(segment, start, stop)
        else:
            batches = segment.walk_from(skip_without_producers(segment, start, stop), stop)
        for item in batches:
            if isinstance(item, Damage):
                continue
            position, batch = item
            is_later = is_later or batch.base_offset >= end
            if batch.producer_id >= 0 and self._next_offset <= batch.base_offset < end:
                self._changed = self.in_use = True
                try:
                    ended = state.update(batch)
                except CorruptDataError as error:
                    skip_marker(segment, batch, error)
                    continue
                if ended is not None:
                    aborted.append(ended)
                if self.search is not None:
                    self._note_begun(state.producers.get(batch.producer_id), segment, position, batch)
        if self.search is not None and not is_later:
            self._searched = _Searched(segment, end, stop)
        return aborted

    def _note_begun(self, producer: KnownProducer | None, segment: LogSegment, position: int, batch: Batch) -> None:
        if producer is None:
            return  # a marker of no known kind
        if producer.current_txn_first_offset == batch.base_offset:
            self._begun[producer.producer_id] = _Begun(batch.base_offset, segment, position, batch.size)
        elif not producer.is_in_transaction:
            self._begun.pop(producer.producer_id, None)

    def note_use(self) -> None:
        """Notes that a producer's batch was seen."""
        self.in_use = True

    def note_snapshots(self, offsets: Sequence[int]) -> None:
        """Replaces the known snapshots, for a reader: its writer creates and removes them."""
        self._snapshots = sorted(offsets)
        self.in_use = self.in_use or bool(offsets)

    def _newest_snapshot(self, end: int) -> tuple[int, ProducerState]:
        for offset in reversed([offset for offset in self._snapshots if offset <= end]):
            path = self._context.directory / segment_name(offset, SNAPSHOT_SUFFIX)
            try:
                state = ProducerState(decode_snapshot(read_file(self._context.fs, path)))
            except (CorruptDataError, StorageError) as error:
                logger.warning("%s: passed over, the producers are read from the log: %s", path, error)
            else:
                if not self._shows_expired:
                    # Kafka: ProducerStateManager.loadFromSnapshot. An expired producer must not come back with its next
                    # batch.
                    state.expire(self._context.clock.now_ms(), self._context.config.producer_id_expiration_ms)
                return offset, state
        return 0, ProducerState()

    def snapshot(self, offset: int) -> None:
        """Writes the state at ``offset``, the log's end, if it is known and the newest snapshot is older.

        It is written even if no producer writes any more: the next load then need not read this part.
        """
        if self._state is None or self._next_offset != offset:
            return
        if not self._changed and (not self._snapshots or self._snapshots[-1] >= offset):
            return
        path = self._context.directory / segment_name(offset, SNAPSHOT_SUFFIX)
        data = encode_snapshot(self._state.entries())
        replace_file(self._context.fs, path, data, mode=self._context.config.file_mode)
        if offset not in self._snapshots:
            self._snapshots = sorted([*self._snapshots, offset])
        self._changed = False

    def snapshot_at_close(self, end: int, position: int) -> None:
        """Writes the snapshot of a clean close. A log with producers always gets one: a broker that finds no snapshot
        after a clean stop assumes that there are no producers."""
        if self.in_use and not self._snapshots:
            self.up_to(end, position)
        self.snapshot(end)

    def secure(self, base_offset: int) -> None:
        """Called before the segments below ``base_offset`` are removed: keeps what only they say in a snapshot
        there."""
        if not self.in_use or base_offset in self._snapshots:
            return
        below = LogProducers(self._context, self._segments, [at for at in self._snapshots if at <= base_offset])
        below._changed = bool(below.up_to(base_offset, 0).producers)
        below.snapshot(base_offset)
        self._snapshots = sorted({*self._snapshots, *below._snapshots})

    def open_at(self, base_offset: int) -> frozenset[int]:
        """The producers with a transaction open at ``base_offset``, where the log's first segment begins."""
        if not self.in_use:
            return frozenset()
        before = LogProducers(self._context, self._segments, [at for at in self._snapshots if at <= base_offset])
        return frozenset(known.producer_id for known in before.up_to(base_offset, 0).open_transactions)

    def repair_indexes(self, segments: Iterable[LogSegment]) -> list[str]:
        """Rebuilds those transaction indexes of ``segments`` that cannot be right, from their batches; their paths."""
        repaired = []
        for segment in segments:
            index = segment.files.transaction_index()
            try:
                index.check()
            except CorruptDataError as error:
                logger.warning("%s: rebuilt: %s", index.path, error)
                aborted = self._aborted_in(segment)
                segment.files.replace_transaction_index(aborted)
                self.index_sizes.note(segment.base_offset, len(aborted) * TransactionIndex.entry_size)
                repaired.append(str(index.path))
            finally:
                index.close()
        return repaired

    def remove_snapshot(self, offset: int) -> bool:
        """Removes an impossible snapshot, durably; the next older one and the log replace it. False if it is gone."""
        if offset not in self._snapshots:
            return False
        self._remove([offset])
        self._context.fs.sync_dir(self._context.directory)
        self._state = None
        return True

    def _aborted_in(self, segment: LogSegment) -> Sequence[AbortedTransaction]:
        """The aborted transactions whose end is in ``segment``, according to its batches."""
        base_offset = segment.base_offset
        before = LogProducers(self._context, self._segments, [at for at in self._snapshots if at <= base_offset])
        state = before.up_to(base_offset, 0)
        following = self._segments.higher(base_offset)
        return before._replay(state, segment, segment.size, following.base_offset if following else OFFSET_MAX)

    def sync_indexes(self) -> None:
        """Puts the transaction indexes on disk, and their names. Raises: SyncFailedError, StorageError."""
        for index in self._unsynced.values():
            index.flush()
        if self._unsynced:
            self._context.fs.sync_dir(self._context.directory)
            self._unsynced.clear()

    def unsynced(self) -> list[UnsyncedIndex]:
        """The transaction indexes that are not on disk. The caller syncs them, then their names, and calls ``synced``:
        until then they count as unsynced, for other flushes and after a failure too."""
        return [UnsyncedIndex(index, index.entry_count) for index in self._unsynced.values()]

    def synced(self, indexes: Iterable[UnsyncedIndex]) -> None:
        """Notes that ``indexes`` are on disk, with their names. One that has grown since stays unsynced."""
        for index, entry_count in indexes:
            if self._unsynced.get(index.base_offset) is index and index.entry_count == entry_count:
                del self._unsynced[index.base_offset]

    def truncate_to(self, end: int) -> None:
        """Forgets everything after ``end``, the end of the last batch that stays; removes later snapshots, durably."""
        removed = [at for at in self._snapshots if at > end]
        self._remove(removed)
        if removed:
            # A snapshot that came back after a power cut would describe batches that were replaced.
            self._context.fs.sync_dir(self._context.directory)
        self._state = None
        # Indexes of the segments that stay are still unsynced; that of the cut segment is synced after the cut.
        last = self._segments.floor(end)
        self._unsynced = {
            base_offset: index
            for base_offset, index in self._unsynced.items()
            if last is not None and base_offset < last.base_offset
        }

    def delete_before(self, base_offset: int) -> None:
        """Removes the snapshots below the first segment except the newest: only batches after it may still exist."""
        self._remove([at for at in self._snapshots[:-1] if at < base_offset])

    def remove_strays(self, end: int) -> None:
        """Removes snapshots beyond ``end``, and, except for the newest, those at which no segment begins.

        Every close leaves one, so without this they would accumulate.
        """
        newest = max((at for at in self._snapshots if at <= end), default=-1)
        kept = {newest, *self._segments.bases}
        removed = [at for at in self._snapshots if at > end or at not in kept]
        self._remove(removed)
        if removed and removed[-1] > end:
            # As in truncate_to.
            self._context.fs.sync_dir(self._context.directory)

    def _remove(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            try:
                self._context.fs.unlink(self._context.directory / segment_name(offset, SNAPSHOT_SUFFIX))
            except FileNotFoundError:
                pass  # already removed by another program
            self._snapshots.remove(offset)

    def aborted_transactions(self, start: int, stop: int) -> Sequence[AbortedTransaction]:
        """The aborted transactions that overlap offsets ``start`` to ``stop``, which is exclusive (UnifiedLog).

        ``stop`` is at most a last stable offset that was requested before.
        """
        if not self.in_use:
            return ()  # without opening an index of any segment
        found: list[AbortedTransaction] = []
        for segment in self._segments.range(start, OFFSET_MAX):
            # This writer knows the entries of an index that it appends to: half an entry that could not be cut off may
            # follow them.
            index = self._unsynced.get(segment.base_offset) or segment.files.transaction_index()
            result = index.collect_aborted(start, stop)
            found.extend(result.transactions)
            if result.is_complete:
                return found
        listed = set(found)
        missing = [aborted for aborted in self._seen_aborted if aborted not in listed]
        return found + [gone for gone in missing if gone.last_offset >= start and gone.first_offset < stop]


class PendingProducers:
    """The producers as they will be when one write is published; each append of the write is checked against it.

    A write that fails is dropped with this object.
    """

    def __init__(self, producers: LogProducers, state: ProducerState) -> None:
        self._producers = producers
        self._state = state
        self._changed: dict[int, KnownProducer] = {}
        self.batches: list[SequencedBatch] = []

    @property
    def first_unstable_offset(self) -> int | None:
        """That of the published state."""
        return self._state.first_unstable_offset

    def take(
        self, batches: Iterable[Batch], spans: Iterable[tuple[int, int]], *, checked: bool
    ) -> list[RememberedBatch]:
        """Checks the batches of one append, whose offsets will be ``spans``; returns the batches that they repeat.

        Either the append is new, and the list is empty, or each of its batches repeats one that the log has. Unless
        ``checked``, the batches are accepted as they are.

        Raises: CorruptDataError, and as ``rules.sequence``; then nothing was taken.
        """
        changed: dict[int, KnownProducer] = {}
        taken: list[SequencedBatch] = []
        repeated: list[tuple[RememberedBatch, SequencedBatch]] = []
        batch_count = 0
        for batch, (first_offset, _) in zip(batches, spans, strict=True):
            batch_count += 1
            if batch.producer_id < 0:
                continue
            sent = producer_batch(batch, first_offset)
            known = changed.get(sent.producer_id) or self._known(sent.producer_id)
            again = self._check(known, sent) if checked else None
            if again is not None:
                repeated.append((again, sent))
                continue
            changed[sent.producer_id] = after(known, sent)
            taken.append(sent)
        if repeated and len(repeated) < batch_count:
            # Half of the append would be new, and one result cannot carry the offsets of both halves.
            sent = repeated[0][1]
            raise DuplicateSequenceError(sent.producer_id, sent.producer_epoch, sent.first_sequence, None)
        self._changed.update(changed)
        self.batches += taken
        return [again for again, _ in repeated]

    def take_run(self, run: SequencedBatch | None) -> bool:
        """Takes the batches of one append together, if they are certainly the next ones of their producer."""
        if run is None:
            return False
        known = self._known(run.producer_id)
        if not follows(known, run):
            return False
        self._changed[run.producer_id] = after(known, run)
        self.batches.append(run)
        return True

    def _known(self, producer_id: int) -> KnownProducer | None:
        return self._changed.get(producer_id) or self._state.producers.get(producer_id)

    def _check(self, known: KnownProducer | None, sent: SequencedBatch) -> RememberedBatch | None:
        """The batch that ``sent`` repeats, or None."""
        if sent.is_control:
            check_end(known, sent)
            return None
        again = repeats(known, sent)
        if again is not None:
            return again
        try:
            check_next(known, sent)
        except DuplicateSequenceError:
            self._producers.recall()
            again = repeats(self._state.producers.get(sent.producer_id), sent)
            if again is None:
                raise
        return again


def skip_without_producers(segment: LogSegment, located: Located, stop: int) -> Located:
    """Skips the batches without producers that start at ``located``, faster than a walk would."""
    file = segment.log_file()
    if isinstance(file, RemoteFile):
        return located  # many small remote reads cost more than a large one
    found = skip_plain(file, located.position, stop)
    return located if found is None else Located(found[0], 0, max(found[1], located.next_offset))


def skip_marker(segment: LogSegment, batch: Batch, error: CorruptDataError) -> None:
    """Reports a marker that is left out because it cannot be read."""
    logger.warning("%s: a marker at offset %d is passed over: %s", segment, batch.base_offset, error)
