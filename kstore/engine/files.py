"""The files of one log, as an open finds them (``Loaded``) and open for writing (``LogFiles``), and their state: the
ends, the segments, the open tail, the record.

Each step is in an order that a crash may interrupt anywhere; DESIGN.md explains why. A step of unknown outcome poisons
the log: it then serves what is known to be durable and accepts no writes.
"""

from __future__ import annotations

import errno
import logging
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kstore.config import LogConfig
from kstore.engine._fields import LogFields
from kstore.engine.ends import Ends, ends_of
from kstore.engine.others import Others
from kstore.engine.producers import LogProducers
from kstore.engine.segments import LogSegments
from kstore.errors import PoisonedError, StorageError, SyncFailedError
from kstore.files._locks import OwnedLock, block
from kstore.files.descriptors import OPEN_TAILS
from kstore.files.fs import replaced_failed_sync
from kstore.files.paths import DELETED_SUFFIX, TXN_INDEX_SUFFIX
from kstore.files.platform import boot_id
from kstore.metrics import LogCounters
from kstore.rules.losses import NO_LOSSES, LossRanges
from kstore.segment import LogSegment, SegmentContext
from kstore.segments.files import SUFFIXES
from kstore.segments.tail import SegmentTail
from kstore.state.kafka_marks import forget_clean_shutdown
from kstore.state.leader_epoch import LeaderEpochCache
from kstore.state.log_state import LogState, StateFile
from kstore.types import OFFSET_MAX, Durability, RecoveryReport

logger = logging.getLogger(__name__)

SUFFIXES_WITHOUT_TRANSACTIONS = tuple(suffix for suffix in SUFFIXES if suffix != TXN_INDEX_SUFFIX)


@dataclass(slots=True)
class Loaded:
    """An open log, before anything is written to it. ``position`` is the end of the last segment, in bytes."""

    context: SegmentContext
    durability: Durability
    segments: LogSegments
    producers: LogProducers
    state_file: StateFile
    start_offset: int
    end_offset: int
    position: int
    recovery_point: int
    epochs: LeaderEpochCache
    seal: bool
    report: RecoveryReport
    losses: LossRanges = NO_LOSSES
    # What recovery has left is on disk; what other processes have appended may not be.
    durable_end: int = OFFSET_MAX

    @property
    def ends(self) -> Ends:
        """Where it begins and ends."""
        return ends_of(
            start_offset=self.start_offset,
            recovery_point=self.recovery_point,
            durable_end=self.durable_end,
            end_offset=self.end_offset,
            base_offset=self.segments.last.base_offset,
            position=self.position,
            is_sync=self.durability == "sync",
        )

    def store(self) -> None:
        """Stores what is known of the log in ``kstore.state``, durably. Raises: StorageError."""
        sizes = self.producers.index_sizes
        txn_bytes = sizes.total(self.segments.bases, self.start_offset, self.recovery_point)
        self.state_file.store(_record(self.durability, self.ends, self.losses, self.epochs, txn_bytes))


def _record(
    durability: Durability, ends: Ends, losses: LossRanges, epochs: LeaderEpochCache, txn_bytes: int, **mark: Any
) -> LogState:
    """What ``kstore.state`` says of a log in this state; ``mark`` are the fields of the clean mark."""
    lost, accepted, unconfirmed = losses
    return LogState(
        durability=durability,
        recovery_point=ends.recovery_point,
        log_start_offset=ends.start_offset,
        durable_end=ends.durable_end,
        boot_id=boot_id(),
        lost=lost,
        accepted=accepted,
        unconfirmed=unconfirmed,
        has_epochs=bool(epochs.entries),
        txn_bytes=txn_bytes,
        **mark,
    )


class LogFiles(LogFields):
    """The open files of one log. The log's turn guards it; readers read ``ends``, ``losses``, ``segments``, the counts
    and ``closed`` without it: each is replaced by one store.
    """

    def __init__(
        self,
        loaded: Loaded,
        others: Others | None = None,
        *,
        parks_under: OwnedLock | None = None,
        has_kafka_marks: bool = True,
    ) -> None:
        """
        Args:
            others: the other writers of a shared log.
            parks_under: the log's lock, if an idle tail may be closed for other logs.
            has_kafka_marks: a broker's clean marker may be next to the log, and no store handles it.
        """
        self.context: SegmentContext = loaded.context
        # Each append needs it.
        self.flush_messages: int = loaded.context.config.flush_messages
        self.counters: LogCounters = loaded.context.counters
        self.durability: Durability = loaded.durability
        self.is_sync: bool = loaded.durability == "sync"
        self.others = others
        self.syncs: Syncs = Syncs()
        self._take(loaded)
        # The end of the active segment, open for appends.
        self.tail: SegmentTail | None = None
        # When the log was last appended to, by this process or another one.
        self.last_append_ms: int = loaded.context.clock.now_ms()
        # Sealed since the last flush. Their descriptors stay open, because a failed writeback is reported only to
        # those that wrote.
        self.unflushed: list[SegmentTail] = []
        # The first segment whose indexes may not be on disk: from there on, the next open checks them.
        self._unsynced_from: int | None = None
        # Deleted segments under their other name, the ``monotonic`` time after which they may be removed, and the
        # suffixes of their files.
        self._deleted: deque[tuple[float, LogSegment, Sequence[str]]] = deque()
        self.closed: Exception | None = None
        self.poisoned: Exception | None = None
        # Why, if a sync in the background failed and no caller knows yet: then ``close`` raises it.
        self.untold: SyncFailedError | None = None
        self._is_told = False
        self._has_ended_reads = False
        self._parks_under = parks_under
        self._has_kafka_marks = has_kafka_marks

    def _take(self, loaded: Loaded) -> None:
        self.segments: LogSegments = loaded.segments
        self.producers: LogProducers = loaded.producers
        self.epochs: LeaderEpochCache = loaded.epochs
        self.state_file: StateFile = loaded.state_file
        self.publish(loaded.ends)
        self.losses: LossRanges = loaded.losses
        # The next batch must go into a new segment: the last one ends with fenced damage or missing offsets.
        self.seal_before_append: bool = loaded.seal

    def adopt(self, loaded: Loaded, *, cuts: bool) -> None:
        """Continues with the contents of the directory, which other processes have changed."""
        # Before and after the change: it reveals the change to a reader that met half of it.
        self.publish(self.ends, cuts=cuts)
        self.drop_tail()
        self.context.handles.clear()
        self.state_file.close()
        self._take(loaded)
        self.unflushed.clear()
        self.publish(self.ends, cuts=cuts)

    @property
    def leader_epoch(self) -> int:
        """The epoch of new batches: the latest of the directory, 0 if it has none."""
        return self.epochs.latest_epoch or 0

    def use(self, config: LogConfig) -> None:
        """Continues with other settings."""
        self.context = context = self.context._replace(config=config)
        self.flush_messages = config.flush_messages
        self.producers.use(context)
        for segment in self.segments:
            segment.use(context)

    # --- state --------------------------------------------------------------------------------------------------------

    def ensure_writable(self) -> None:
        """Raises what prevents a write: ClosedError, ForkedError, PoisonedError."""
        if self.closed is not None:
            raise self.closed
        if self.poisoned is not None:
            self.end_reads()  # unless an interrupt came before it
            self.untold, self._is_told = None, True
            raise PoisonedError(
                getattr(self.poisoned, "errno", None),
                f"no writes since a failure of unknown outcome ({self.poisoned}): reopen the log to recover",
                str(self.context.directory),
            ) from self.poisoned

    def keep_failure(self, error: SyncFailedError) -> None:
        """Keeps the error of a sync in the background for ``close``, unless a call has raised it; with the turn."""
        if not self._is_told:
            self.untold = error

    def end_reads(self) -> None:
        """The rest of ``poison``: reads end at the durable end. A second call does nothing."""
        if not self._has_ended_reads:
            self.publish(self.ends.poisoned())
            self._has_ended_reads = True
            end = self.ends.high_watermark
            logger.error("%s: poisoned: %s; reads end at offset %d", self.context.directory, self.poisoned, end)

    @block
    def poisoned_by_syncs(self) -> Iterator[None]:
        """A block in which a failed sync poisons the log, whatever was synced, and whatever has replaced its error."""
        outer = sys.exception()
        try:
            yield
        except BaseException as error:
            if isinstance(error, SyncFailedError) or replaced_failed_sync(error, outer):
                self.poison(error)
            raise

    @block
    def changing(self) -> Iterator[None]:
        """A block that changes the files of a writable log; needs the turn."""
        with self.poisoned_by_syncs():
            self.ensure_writable()
            yield

    # --- the other writers --------------------------------------------------------------------------------------------

    def announce(self, *, moves_files: bool = False) -> None:
        """Announces to the other writers, if there may be any, that files are about to change: see ``Others``."""
        if self.others is not None:
            self.others.announce(moves_files=moves_files)

    def announce_change(self, *, cuts: bool = False) -> None:
        """Announces to the other writers a change of the active segment: see ``Others``."""
        if self.others is not None:
            self.others.announce_change(cuts=cuts)

    # --- the record ---------------------------------------------------------------------------------------------------

    def change(self, ends: Ends, losses: LossRanges | None = None) -> None:
        """Stores ``ends`` and ``losses``, durably, and only then shows them to readers.

        Raises: StorageError; then nothing has changed.
        """
        self.store(ends, losses=losses)
        # In this order: an interrupt between the two must not hide a loss above the start.
        self.publish(ends)
        if losses is not None:
            self.losses = losses

    def change_losses(self, losses: LossRanges) -> None:
        """``change``, for the losses only."""
        current = self.state_file.current
        if current is not None and current.clean:
            # Nothing was written since the log was closed cleanly, so its mark still holds.
            self.announce()
            self.state_file.store(current._replace(**losses._asdict()))
            self.losses = losses
        else:
            self.change(self.ends, losses)

    def store(
        self,
        ends: Ends,
        *,
        clean: bool = False,
        losses: LossRanges | None = None,
        if_changed: bool = False,
        **clean_mark: Any,
    ) -> None:
        """Stores ``ends`` in the record, durably; not as clean, nor recovered, what ``note_sealed`` has kept.

        Raises: StorageError; the previous record is then still valid.
        """
        if self._unsynced_from is not None:
            ends = ends._replace(recovery_point=min(ends.recovery_point, self._unsynced_from))
            clean, clean_mark = False, {}
        # If other processes do not know the record, readers ignore the durable end that those publish.
        self.announce()
        if not clean and self._has_kafka_marks:
            forget_clean_shutdown(self.context.fs, self.context.directory)
            self._has_kafka_marks = False
        txn_bytes = self.transaction_index_bytes(ends, clean=clean)
        state = _record(
            self.durability,
            ends,
            self.losses if losses is None else losses,
            self.epochs,
            txn_bytes,
            clean=clean,
            **clean_mark,
        )
        if not (if_changed and self.state_file.says(state)):
            self.state_file.store(state)

    def note_sealed(self, tail: SegmentTail | None) -> None:
        """Keeps in mind that the indexes of a sealed segment may not be on disk, if their sync has failed."""
        if tail is not None and tail.has_unsynced_indexes:
            first = tail.base_offset if self._unsynced_from is None else self._unsynced_from
            self._unsynced_from = min(first, tail.base_offset)

    def transaction_index_bytes(self, ends: Ends, *, clean: bool) -> int:
        """The size of the indexes that the next open finds, or must rebuild: of all segments, or of those that recovery
        does not check."""
        recovery_point = None if clean else ends.recovery_point
        return self.producers.index_sizes.total(self.segments.bases, ends.start_offset, recovery_point)

    # --- the tail -----------------------------------------------------------------------------------------------------

    def activate(self, segment: LogSegment) -> SegmentTail:
        """Opens ``segment`` for appending."""
        self.admit()
        return segment.activate()

    def admit(self) -> None:
        """Closes idle tails of other logs, before this log opens one."""
        # The tail of a shared log stays open: another process may continue where it ends.
        if self._parks_under is not None:
            OPEN_TAILS.admit(self)

    def admit_open_tail(self) -> None:
        """Counts a tail that recovery has left open."""
        if self.segments.last.tail is not None:
            self.admit()

    def check_end(self, tail: SegmentTail) -> None:
        """Raises: StorageError if a tail that was just opened does not end where the log does."""
        if tail.position != self.ends.position:
            raise StorageError(
                None, f"the log ends at {tail.position} bytes, expected {self.ends.position}", str(tail.file.path)
            )

    def drop_tail(self) -> None:
        """Drops the open end. A reader that has it open continues with it, and the last one closes the files."""
        last = self.segments.last
        if last.tail is not None:
            last.tail = None
            last.resize(-1)
        self.tail = None

    def take_over_tail(self) -> None:
        """Continues with the tail that recovery left open, if it did and the tail can be appended to.

        The other writers then learn about the tail from the record, and need not read the segment to append.
        """
        if not self.seal_before_append:
            self.tail = self.segments.last.tail

    @property
    def last_use(self) -> object:
        """See ``files.descriptors.Tail``: each append publishes another value."""
        return self.ends

    def park(self) -> bool:
        """Closes the tail of an inactive log; its next append opens it again, without a scan.

        Everything written is then on disk, also with "os", because a failed writeback is reported only to descriptors
        that were open. A sync that fails poisons the log. Returns False if the log is active.
        """
        # A thread that holds a lock here requests another only if that is free now. This cannot deadlock: in a cycle
        # each lock would have been taken after the one before it. A flush syncs outside the log's lock, and may request
        # a park itself if it finds no descriptor for a directory.
        lock = self._parks_under
        assert lock is not None, "only what was admitted is parked"
        if lock.locked() or self.syncs.lock.locked():
            return False
        with lock:
            tail = self.segments.last.tail
            if self.closed is not None or tail is None or tail.open_file is None:
                return True
            try:
                self._sync_to_park(tail)
                tail.park(self.context.fs, _admitting(self))
            except StorageError as error:
                logger.debug("%s: not parked: %s", self.context.directory, error)
                return False
            return True

    def _sync_to_park(self, tail: SegmentTail) -> None:
        if self.poisoned is not None:
            return  # a failed sync is never repeated

        def sync() -> None:
            if not self.is_sync:
                tail.file.fdatasync()
            self.producers.sync_indexes()

        try:
            self.syncs.alone(sync)
        except SyncFailedError as error:
            self.poison(error)
            self.keep_failure(error)

    # --- segments that go ---------------------------------------------------------------------------------------------

    def drop(self, segments: Iterable[LogSegment], *, delay_ms: int = 0) -> None:
        """Removes segments from the log; with a delay their files are renamed first, and readers continue with them."""
        dropped = list(segments)
        gone = {segment.base_offset for segment in dropped}
        suffixes = {segment.base_offset: self._suffixes_of(segment) for segment in dropped}
        self.segments.remove(gone)
        self.producers.index_sizes.drop(gone)
        self.unflushed = [tail for tail in self.unflushed if tail.base_offset not in gone]
        due = self.context.clock.monotonic() + delay_ms / 1000
        with self.state_file.renaming():
            for segment in dropped:
                existing = suffixes[segment.base_offset]
                if delay_ms:
                    segment.rename(DELETED_SUFFIX, existing)
                    segment.state = DELETED_SUFFIX
                    self._deleted.append((due, segment, existing))
                else:
                    segment.delete(existing)
        self.counters.segments_deleted += len(dropped)
        if dropped:
            self.context.fs.sync_dir(self.context.directory)

    def _suffixes_of(self, segment: LogSegment) -> Sequence[str]:
        """The suffixes of the files that a segment may have: few have a transaction index, and looking for it takes as
        long as removing a file."""
        if self.others is not None or segment.base_offset in self.producers.index_sizes:
            return SUFFIXES
        return SUFFIXES_WITHOUT_TRANSACTIONS

    def remove_deleted(self, *, at_once: bool = False) -> int:
        """Removes the files of segments that were deleted long enough ago; returns how many segments."""
        now = self.context.clock.monotonic()
        count = 0
        if self._deleted:
            self.announce()
        while self._deleted and (at_once or self._deleted[0][0] <= now):
            _, segment, suffixes = self._deleted[0]
            segment.delete(suffixes)
            self._deleted.popleft()
            count += 1
        return count

    # --- close --------------------------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Closes all files unchanged."""
        self.tail = None
        for segment in self.segments:
            # A flush that is under way in another thread must not change a file that another writer may now open.
            segment.keep_spare()
            if segment.tail is not None:
                segment.tail.abandon()
                segment.tail = None
        OPEN_TAILS.forget(self)
        self.context.handles.clear()
        self.state_file.close()


def _admitting(files: LogFiles) -> Callable[[], None]:
    """Lets ``files`` be admitted again, without a strong reference: the two would keep each other alive."""
    reference = weakref.ref(files)

    def admit() -> None:
        found = reference()
        if found is not None:
            found.admit()

    return admit


class Syncs:
    """Thread-safe. The lock is held while files are synced. Where the log's lock is held too, it is taken first."""

    def __init__(self) -> None:
        self.lock: OwnedLock = OwnedLock()
        self._failure: SyncFailedError | None = None  # guarded by the lock

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def alone(self, sync: Callable[[], None]) -> None:
        """Calls ``sync``. The system reports a failed writeback once to each descriptor, so a concurrent sync would
        conclude that everything is on disk.

        A call, and no context manager made of a generator: an interrupt on the way into one of these leaves the lock
        held for as long as its traceback lives.

        Raises: what ``sync`` raises; SyncFailedError after a failure.
        """
        with self.lock:
            before = self._failure
            if before is not None:
                reason = "a sync has failed before, and is not repeated"
                raise SyncFailedError(before.errno, reason, before.filename) from before
            outer = sys.exception()
            try:
                sync()
            except SyncFailedError as error:
                self._failure = error
                raise
            except BaseException as error:
                if replaced_failed_sync(error, outer):
                    self._failure = SyncFailedError(errno.EIO, f"a sync failed, and then: {error!r}")
                raise
