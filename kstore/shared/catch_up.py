"""Applies what the other writers of a shared log have done, at the beginning of a turn.

the record is unchanged, and the ``.log`` as long as it says: nothing to do
the end has moved: the tail and the published ends follow; no file is read
segments came or went (``change_count``): the directory is listed again
the record is torn or announces an unfinished change, or the ``.log`` has another length: its writer died during
    its turn, or a full disk or a limit made it leave, and the log is recovered, as when it is opened after a crash
a sync has failed, which the record says too: no process writes any more
"""

from __future__ import annotations

import logging

from kstore.engine.ends import ends_of
from kstore.engine.files import Loaded, LogFiles
from kstore.engine.open.opening import load, read_epochs
from kstore.engine.others import Others
from kstore.engine.producers import LogProducers
from kstore.engine.segments import LogSegments
from kstore.errors import ConfigError, CorruptIndexError, StorageError
from kstore.files.paths import KSTORE_STATE, LEADER_EPOCHS, LOG_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, classify
from kstore.indexes.transaction_index import TransactionIndexSizes
from kstore.segment import LogSegment, SegmentContext
from kstore.segments.tail import SegmentTail
from kstore.shared.telling import tell
from kstore.state.leader_epoch import LeaderEpochCache
from kstore.state.log_state import StateFile, losses_of
from kstore.state.shared_slot import CHANGING, POISONED, SEALED, TAIL_KNOWN, SharedState
from kstore.types import Durability, RecoveryReport

logger = logging.getLogger(__name__)


class CatchUp:
    """Applies the changes of other processes. Needs the turn, except for ``is_due``."""

    def __init__(self, files: LogFiles, others: Others, seen: SharedState | None) -> None:
        """``seen``: the content of the record when the log was opened, if it was used for that."""
        self._files = files
        self._others = others
        if seen is None:
            files.take_over_tail()

    def is_due(self) -> bool:
        """Whether other processes have changed something, or are about to announce a change. A reader that a write has
        woken waits for that."""
        if self.is_told():
            return True
        try:
            return self._active_size() != self._others.seen.position
        except FileNotFoundError:
            return True

    def is_told(self) -> bool:
        """Whether other processes have announced a change, or are about to, unless one died while it did."""
        return self._others.slot.read() != self._others.seen_data

    def catch_up(self) -> None:
        """Applies what other processes have done since the lock was last released."""
        files, others = self._files, self._others
        data = others.slot.read()
        if data != others.seen_data:
            seen, before = others.slot.load(data), others.seen
            if seen is not None and seen.flags & POISONED:
                if seen.change_count == before.change_count:
                    self._take_in(seen, before)  # the durable part stays readable
                others.seen, others.seen_data = seen, data
                files.poison(StorageError("another process that shares the log was poisoned"))
                return
            if seen is None or seen.flags & CHANGING:
                self._recover("a change of it was not brought to its end")
                return
            if seen.change_count != before.change_count:
                self._attach(seen)
            else:
                self._take_in(seen, before)
            others.seen, others.seen_data = seen, data
        size = self._active_size()
        if size != others.seen.position:
            self._recover(f"its active segment has {size} bytes, expected {others.seen.position}")

    def _active_size(self) -> int:
        files = self._files
        if files.tail is not None:
            return files.tail.file.size()
        return files.context.fs.stat(files.segments.last.path(LOG_SUFFIX)).size

    def _take_in(self, seen: SharedState, before: SharedState) -> None:
        """Applies an end that moved within the same segment since ``before``."""
        files = self._files
        if seen.generation != before.generation:
            self._reload_state()
        if seen.epoch != before.epoch:
            files.epochs = _epochs(files.context)
        if files.tail is None or not self._takes_in(files.tail, seen):
            files.drop_tail()
            files.segments.last.resize(seen.position)
        files.last_append_ms = max(files.last_append_ms, seen.last_append_ms)
        self._show(seen)

    def _takes_in(self, tail: SegmentTail, seen: SharedState) -> bool:
        """Whether the open tail can continue from the record; if not, the next append opens it again."""
        if not seen.flags & TAIL_KNOWN:
            return False
        try:
            tail.take_in(seen.position, seen.known)
        except CorruptIndexError as error:
            directory = self._files.context.directory
            logger.warning("%s: an index is not what other processes left: %s", directory, error)
            return False
        return True

    def _show(self, seen: SharedState) -> None:
        files = self._files
        files.publish(
            ends_of(
                start_offset=files.ends.start_offset,
                recovery_point=files.ends.recovery_point,
                durable_end=seen.durable_end,
                end_offset=seen.end_offset,
                base_offset=seen.base_offset,
                position=seen.position,
                is_sync=files.is_sync,
            )
        )

    def _reload_state(self) -> None:
        files = self._files
        files.state_file.reload()
        state = files.state_file.current
        if state is None:
            raise StorageError(None, "its record cannot be read any more", str(files.state_file.path))
        files.publish(files.ends._replace(start_offset=state.log_start_offset, recovery_point=state.recovery_point))
        files.losses = losses_of(state)

    def _attach(self, seen: SharedState) -> None:
        """Segments came or went: lists the directory again."""
        files = self._files
        cuts = seen.cut_count != self._others.seen.cut_count
        # Without a cut no index has changed: no writer that shares a log ends a transaction. After one, older sizes
        # would have the next open rebuild all of them.
        known = None if cuts else files.producers.index_sizes
        files.adopt(listed(files.context, files.durability, seen, known), cuts=cuts)
        files.last_append_ms = max(files.last_append_ms, seen.last_append_ms)

    def _recover(self, why: str) -> None:
        """Recovers the log after a writer died in its turn, which may have left half a change."""
        files, others = self._files, self._others
        directory = files.context.directory
        logger.warning("%s: a process that shares the log died or left: %s", directory, why)
        others.leap(files.context.clock.now_ms())
        others.announce_change(cuts=True)
        # If the next steps fail, this process's next turn finds the unfinished change, too.
        others.seen_data = b""
        files.drop_tail()
        loaded = load(files.context, files.durability)
        if lost := loaded.report.summary():
            logger.warning("%s: recovery: %s", directory, lost)
        files.adopt(loaded, cuts=True)
        files.take_over_tail()
        tell(files, others)


def listed(
    context: SegmentContext, durability: Durability, seen: SharedState, known: TransactionIndexSizes | None = None
) -> Loaded:
    """The log as its files show it, with the end that the other processes have announced. Needs the turn.

    ``known`` are sizes of transaction indexes that need not be looked up again.
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
        durable_end=seen.durable_end,
    )


def _epochs(context: SegmentContext) -> LeaderEpochCache:
    entries = read_epochs(context, RecoveryReport()) or ()
    return LeaderEpochCache(context.fs, context.directory / LEADER_EPOCHS, entries, mode=context.config.file_mode)
