"""Opens a log that several processes write to: the first one recovers it, later ones join."""

from __future__ import annotations

import logging

from kstore.engine.change.durability import WriteBehind
from kstore.engine.directory import directory_mode, ensure_log_directory
from kstore.engine.files import Loaded, LogFiles
from kstore.engine.open.opening import load
from kstore.engine.others import Others
from kstore.engine.writer import LogWriter, StoreTies
from kstore.errors import PoisonedError
from kstore.files.lock import DirectoryLock
from kstore.files.log_lock import lock_log, lock_past_lone_writers
from kstore.files.paths import KSTORE_STATE
from kstore.files.unmapped import unmapped
from kstore.segment import SegmentContext
from kstore.shared.catch_up import CatchUp, listed
from kstore.shared.durability import NameFlush, SyncAfterTurn
from kstore.shared.turn import SharedTurn
from kstore.state.log_state import VERSION, stored_version
from kstore.state.shared_slot import CHANGING, POISONED, SharedSlot, SharedState, in_use_by_others
from kstore.types import Durability

logger = logging.getLogger(__name__)


def open_shared_writer(context: SegmentContext, durability: Durability, ties: StoreTies | None = None) -> LogWriter:
    """Opens one more writer of the log in ``context.directory``, which is created or recovered as needed.

    Raises: as ``open_writer``; LockedError if another process has it alone, or shares it with another version of the
    format; ConfigError if it is shared with another durability; PoisonedError if a sync has failed in one of the
    processes.
    """
    context = context._replace(fs=unmapped(context.fs))
    fs, directory = context.fs, context.directory
    ensure_log_directory(fs, directory, mode=directory_mode(context.config.file_mode), is_lone=ties is None)
    lock_it = lock_log if ties is None else lock_past_lone_writers
    lock = lock_it(directory, kind="shared-log", mode=context.config.file_mode, shared=True)
    try:
        lock.take_turn()
        if lock.others_live():
            writer, turn = _next(context, durability, lock, ties)
        else:
            writer, turn = _first(context, durability, lock, ties)
        lock.go_live()
        turn.leave_turn()
        return writer
    except BaseException:
        lock.release()
        raise


def _first(
    context: SegmentContext, durability: Durability, lock: DirectoryLock, ties: StoreTies | None
) -> tuple[LogWriter, SharedTurn]:
    """Opens the log as if it were not shared: no process has it open."""
    loaded = load(context, durability, marks=None if ties is None else ties.marks)
    if lost := loaded.report.summary():
        logger.warning("%s: recovery: %s", context.directory, lost)
    parts = _Parts(loaded, lock, SharedSlot(context.fs, context.directory / KSTORE_STATE), None, ties)
    # The mark stops being true when another process appends.
    parts.files.store(parts.files.ends)
    return parts.writer, parts.turn


def _next(
    context: SegmentContext, durability: Durability, lock: DirectoryLock, ties: StoreTies | None
) -> tuple[LogWriter, SharedTurn]:
    path = context.directory / KSTORE_STATE
    version = stored_version(context.fs, path)
    if version not in (None, VERSION):
        raise in_use_by_others(version, path)  # before a record of version 1 is replaced
    slot = SharedSlot(context.fs, path)
    seen = slot.load(slot.read())
    if seen is not None and seen.flags & POISONED:
        raise PoisonedError(
            None, "a sync failed in a process that shares the log: all of them must close it", str(context.directory)
        )
    if seen is None or seen.flags & CHANGING:
        loaded, seen = load(context, durability), None
    else:
        loaded = listed(context, durability, seen)
    parts = _Parts(loaded, lock, slot, seen, ties)
    if seen is None:
        parts.others.leap(context.clock.now_ms())
    else:
        parts.catch_up.catch_up()
    return parts.writer, parts.turn


class _Parts:
    """The parts of a shared log's writer. The caller has the turn of the processes."""

    def __init__(
        self, loaded: Loaded, lock: DirectoryLock, slot: SharedSlot, seen: SharedState | None, ties: StoreTies | None
    ) -> None:
        """``seen``: the content of the slot from which ``loaded`` was made, if any."""
        self.others = others = Others(slot, seen)
        self.files = files = LogFiles(loaded, others, has_kafka_marks=ties is None)
        self.catch_up = CatchUp(files, others, seen)
        self.turn = turn = SharedTurn(files, others, self.catch_up, lock)
        flush = NameFlush(files, others, turn)
        durability = (
            SyncAfterTurn(files, others, turn, flush)
            if files.is_sync
            else WriteBehind(files, flush, is_prompt=files.durability == "interval")
        )
        self.writer = LogWriter(files, turn, flush, durability, loaded.report, ties)
