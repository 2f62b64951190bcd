"""Taking in what the other writers of a shared log have done, at the beginning of a turn.

the record is as it was, and the ``.log`` as long as it says: nothing to take in
the end has moved: so do the tail and what is published; no file is read
segments came or went (``change_count``): the directory is listed again
the record is not whole, or says that a change was under way, or the ``.log`` has another length: its writer died
while it had the turn, and the log is recovered, as when it is opened after a crash
a sync has failed, which the record says too: nobody writes any more
"""

from __future__ import annotations

import logging

from kstore.engine.ends import Ends
from kstore.engine.opening import Loaded, load, losses_of, read_epochs
from kstore.engine.producers import LogProducers
from kstore.engine.segments import LogSegments
from kstore.engine.writer import StoreTies
from kstore.errors import ConfigError, CorruptIndexError, FileMissingError, StorageError
from kstore.files.lock import DirectoryLock
from kstore.files.paths import (
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    classify,
)
from kstore.indexes.transaction_sizes import TransactionIndexSizes
from kstore.segment import LogSegment, SegmentContext
from kstore.segment_tail import SegmentTail
from kstore.shared.turn import TurnTaker
from kstore.state.leader_epoch import LeaderEpochCache
from kstore.state.log_state import StateFile
from kstore.state.shared_slot import CHANGING, POISONED, SEALED, TAIL_KNOWN, SharedSlot, SharedState
from kstore.types import Durability, RecoveryReport

__all__ = ["CatchingUp", "listed"]

logger = logging.getLogger(__name__)

# Further than changes were counted while one process was not looking.
LEAP = 1 << 32


class CatchingUp(TurnTaker):
    """A writer that begins each turn with what the others did."""

    def __init__(
        self, loaded: Loaded, lock: DirectoryLock, slot: SharedSlot, seen: SharedState | None, ties: StoreTies | None
    ) -> None:
        super().__init__(loaded, lock, slot, seen, ties)
        if seen is not None:
            self._show(seen)
        else:
            self._take_over_tail()

    def catch_up(self) -> None:
        """Takes in what other processes have done since the lock was last given back. Needs the turn."""
        data = self._slot.read()
        if data != self._seen_data:
            seen = self._slot.load(data)
            if seen is not None and seen.flags & POISONED:
                if seen.change_count == self._seen.change_count:
                    self._take_in(seen)  # what is durable may still be read
                self._seen, self._seen_data = seen, data
                self._poison(StorageError("another process that shares the log was poisoned"))
                return
            if seen is None or seen.flags & CHANGING:
                self._recover("a change of it was not brought to its end")
                return
            if seen.change_count != self._seen.change_count:
                self._attach(seen)
            else:
                self._take_in(seen)
            self._seen, self._seen_data = seen, data
        size = self._active_size()
        if size != self._seen.position:
            self._recover(f"its active segment has {size} bytes, expected {self._seen.position}")

    def _active_size(self) -> int:
        if self._tail is not None:
            return self._tail.file.size()
        return self.context.fs.stat(self.segments.last.path(LOG_SUFFIX)).size

    def _take_in(self, seen: SharedState) -> None:
        """The end has moved, in the same segment."""
        if seen.generation != self._seen.generation:
            self._reload_state()
        if seen.epoch != self._seen.epoch:
            self.loaded.epochs = _epochs(self.context)
        if self._tail is None or not self._takes_in(self._tail, seen):
            self._drop_tail()
            self.segments.last.resize(seen.position)
        self._last_append_ms = max(self._last_append_ms, seen.last_append_ms)
        self._show(seen)

    def _takes_in(self, tail: SegmentTail, seen: SharedState) -> bool:
        """Whether the open tail can go on from what was told of it; if not, the next append opens it again."""
        if not seen.flags & TAIL_KNOWN:
            return False
        try:
            tail.take_in(seen.position, seen.known)
        except CorruptIndexError as error:
            logger.warning("%s: an index is not what other processes left: %s", self.context.directory, error)
            return False
        return True

    def _begin(self) -> SegmentTail:
        """Opens the active segment for appending.

        Where the others, or this process before it closed an idle tail, have told of the tail, no file is changed and
        nothing is read that grows with the segment: all other processes wait meanwhile. Anything else is announced.
        ``kstore.state`` needs no new record: it says that the log is open since the first one opened it.
        """
        if self._seal_before_append:
            return self._roll(self.ends.end_offset)
        last, seen = self.segments.last, self._seen
        tail = last.tail  # left open by recovery
        is_known = seen.flags & TAIL_KNOWN and seen.base_offset == last.base_offset
        if tail is None and is_known and seen.position == self.ends.position:
            try:
                tail = last.join(seen.position, seen.known)
            except (CorruptIndexError, FileMissingError) as error:
                logger.warning("%s: the indexes of the active segment are rebuilt: %s", self.context.directory, error)
                self._begin_change()
                tail = last.rebuild()
        elif tail is None:
            self._begin_change()
            tail = last.activate()
        self._check_end(tail)
        self._tail = tail
        return tail

    def _show(self, seen: SharedState) -> None:
        start, recovery_point, end = self.ends.start_offset, self.ends.recovery_point, seen.end_offset
        durable_end = min(seen.durable_end, end)
        high_watermark = max(durable_end if self._sync else end, start)
        self.ends = Ends(
            start, min(recovery_point, end), durable_end, high_watermark, end, seen.base_offset, seen.position
        )

    def _reload_state(self) -> None:
        self._state_file.reload()
        state = self._state_file.current
        if state is None:
            raise StorageError(None, "its record cannot be read any more", str(self._state_file.path))
        self.ends = self.ends._replace(start_offset=state.log_start_offset, recovery_point=state.recovery_point)
        self.losses = losses_of(state)

    def _drop_tail(self) -> None:
        """Forgets the open end; who reads from it goes on, and the files are closed behind the last of them."""
        last = self.segments.last
        if last.tail is not None:
            last.tail = None
            last.resize(-1)
        self._tail = None

    def _attach(self, seen: SharedState) -> None:
        """Segments have come or gone: looks for them."""
        cuts = seen.cut_count != self._seen.cut_count
        # Without a cut no index has changed since: no writer that shares a log ends a transaction.
        known = None if cuts else self.producers.index_sizes
        loaded = listed(self.context, self._durability, seen, known)
        loaded.report = self.loaded.report
        self._adopt(loaded, cuts=cuts)
        self._last_append_ms = max(self._last_append_ms, seen.last_append_ms)
        self._show(seen)

    def _recover(self, why: str) -> None:
        """A writer died while it had the lock: what it was about may be half done."""
        logger.warning("%s: a process that shares the log died: %s", self.context.directory, why)
        self._leap()
        self._begin_change(cuts=True)
        # Should what follows fail: in its next turn this process, too, finds that the change has no end.
        self._seen_data = b""
        self._drop_tail()
        loaded = load(self.context, self._durability)
        if lost := loaded.report.summary():
            logger.warning("%s: recovery: %s", self.context.directory, lost)
        self._adopt(loaded, cuts=True)
        self._take_over_tail()
        self._tell()

    def _take_over_tail(self) -> None:
        """Goes on with the tail that recovery left open, if it did and something may be appended to it.

        The others are told of it then, and need not read the segment to append.
        """
        if not self._seal_before_append:
            self._tail = self.segments.last.tail

    def _leap(self) -> None:
        """Counts on from where nobody has counted to: what the record said may be lost."""
        told = SharedState.decode(self._slot.read()) or self._seen
        count = max(told.change_count, told.cut_count, self._seen.change_count, self._clock.now_ms() << 20) + LEAP
        self._seen = self._seen._replace(change_count=count, cut_count=count)

    def _adopt(self, loaded: Loaded, *, cuts: bool) -> None:
        # Before and behind it: a reader that meets half of it knows by that what it met.
        self.truncation_count += cuts
        self._drop_tail()
        self.context.handles.clear()
        self._state_file.close()
        self.loaded, self.segments, self.producers = loaded, loaded.segments, loaded.producers
        self._state_file = loaded.state_file
        self.ends = loaded.ends
        self.losses = loaded.losses
        self._seal_before_append = loaded.seal
        self._unflushed.clear()
        self.truncation_count += cuts
        self.cut_count += cuts


def listed(
    context: SegmentContext, durability: Durability, seen: SharedState, known: TransactionIndexSizes | None = None
) -> Loaded:
    """The log as its files have it, and as the others say that it ends. Needs the turn.

    ``known`` are sizes of transaction indexes that are not to be looked up again.
    """
    fs, directory = context.fs, context.directory
    names = classify(fs.list(directory))
    state_file = StateFile.open(fs, directory / KSTORE_STATE, mode=context.config.file_mode)
    state = state_file.current
    bases = names.bases[LOG_SUFFIX]
    if state is None or not bases or bases[-1] != seen.base_offset:
        state_file.close()
        last = bases[-1] if bases else "none"
        raise StorageError(None, f"its last segment is {last}, expected {seen.base_offset}", str(directory))
    if state.durability != durability:
        state_file.close()
        raise ConfigError(f"durability is {durability!r}, expected {state.durability!r}, as others have it open")
    indexed = names.indexed
    segments = LogSegments(LogSegment(context, base, lacks_index=base not in indexed) for base in bases)
    segments.last.resize(seen.position)
    return Loaded(
        context=context,
        durability=durability,
        segments=segments,
        producers=LogProducers(
            context,
            segments,
            names.bases[SNAPSHOT_SUFFIX],
            TransactionIndexSizes.found(fs, directory, set(names.bases[TXN_INDEX_SUFFIX]) & set(bases), known),
        ),
        state_file=state_file,
        start_offset=max(state.log_start_offset, bases[0]),
        end_offset=seen.end_offset,
        position=seen.position,
        recovery_point=state.recovery_point,
        epochs=_epochs(context),
        seal=bool(seen.flags & SEALED),
        report=RecoveryReport(),
        losses=losses_of(state),
    )


def _epochs(context: SegmentContext) -> LeaderEpochCache:
    entries = read_epochs(context, RecoveryReport()) or ()
    return LeaderEpochCache(context.fs, context.directory / LEADER_EPOCHS, entries, mode=context.config.file_mode)
