"""Opening a log that several processes write to: the first one recovers what is there, the next ones join it."""

from __future__ import annotations

import logging

from kstore.engine.opening import ensure_log_directory, load
from kstore.engine.writer import StoreTies, directory_mode
from kstore.errors import PoisonedError
from kstore.files.lock import DirectoryLock
from kstore.files.log_lock import lock_log, lock_past_lone_writers
from kstore.files.paths import KSTORE_STATE
from kstore.files.unmapped import unmapped
from kstore.segment import SegmentContext
from kstore.shared.catch_up import listed
from kstore.shared.writer import SharedWriter
from kstore.state.log_state import VERSION, stored_version
from kstore.state.shared_slot import CHANGING, POISONED, SharedSlot, in_use_by_others
from kstore.types import Durability

__all__ = ["open_shared_writer"]

logger = logging.getLogger(__name__)


def open_shared_writer(context: SegmentContext, durability: Durability, ties: StoreTies | None = None) -> SharedWriter:
    """One more writer of the log in ``context.directory``, which is created or recovered as needed.

    Raises: as ``open_writer``; LockedError while another process has it alone, or those that share it use another
    version of the format; ConfigError where the others have it with another durability, PoisonedError where a sync has
    failed one of them.
    """
    context = context._replace(fs=unmapped(context.fs))
    fs, directory = context.fs, context.directory
    ensure_log_directory(fs, directory, mode=directory_mode(context.config.file_mode), is_lone=ties is None)
    lock_it = lock_log if ties is None else lock_past_lone_writers
    lock = lock_it(directory, kind="shared-log", mode=context.config.file_mode, shared=True)
    try:
        lock.take_turn()
        writer = _first(context, durability, lock, ties) if not lock.others_live() else None
        if writer is None:
            writer = _next(context, durability, lock, ties)
        lock.go_live()
        writer.leave_turn()
        return writer
    except BaseException:
        lock.release()
        raise


def _first(
    context: SegmentContext, durability: Durability, lock: DirectoryLock, ties: StoreTies | None
) -> SharedWriter:
    """Nobody has it open: as when it is opened alone."""
    loaded = load(context, durability, marks=None if ties is None else ties.marks)
    if lost := loaded.report.summary():
        logger.warning("%s: recovery: %s", context.directory, lost)
    writer = SharedWriter(loaded, lock, SharedSlot(context.fs, context.directory / KSTORE_STATE), None, ties)
    # What the mark says is not so any more as soon as another one appends.
    writer._store_state(writer.ends)
    return writer


def _next(context: SegmentContext, durability: Durability, lock: DirectoryLock, ties: StoreTies | None) -> SharedWriter:
    path = context.directory / KSTORE_STATE
    version = stored_version(context.fs, path)
    if version not in (None, VERSION):
        raise in_use_by_others(version, path)  # before a record of version 1 is replaced
    slot = SharedSlot(context.fs, path)
    seen = slot.load(slot.read())
    if seen is None or seen.flags & CHANGING:
        loaded, seen = load(context, durability), None
    elif seen.flags & POISONED:
        raise PoisonedError(
            None, "a sync has failed one of those who share it: all must close it", str(context.directory)
        )
    else:
        loaded = listed(context, durability, seen)
    writer = SharedWriter(loaded, lock, slot, seen, ties)
    if seen is None:
        writer._leap()
    else:
        writer.catch_up()
    return writer
