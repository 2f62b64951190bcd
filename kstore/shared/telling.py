"""Stores what this process knows of a shared log in the record that all of its processes map."""

from __future__ import annotations

from kstore.engine.files import LogFiles
from kstore.engine.others import Others
from kstore.errors import DiskFullError, KstoreError, SyncFailedError
from kstore.state.shared_slot import POISONED, SEALED, TAIL_KNOWN, SharedState, shared_state

# The record's values for the active segment if nothing is known of it.
NOTHING_KNOWN = SharedState().known


def is_alone_in(error: BaseException) -> bool:
    """Whether ``error``, which has poisoned the log, is no matter of the others: a limit of file sizes or a quota of
    this process, or a full disk.

    Then it leaves half a change, as its death would, and recovery knows what to do with that. After a failed sync no
    process knows what is on disk: that poisons the log in all of them.
    """
    if not isinstance(error, DiskFullError):
        return False
    each: BaseException | None = error
    while each is not None:
        # An OSError without a type and a name may be a failed sync's (``replaced_failed_sync``), but not a full disk's.
        if isinstance(each, SyncFailedError) or (
            isinstance(each, OSError) and not isinstance(each, KstoreError) and each.filename is None
        ):
            return False
        cause = each.__cause__ if isinstance(each, DiskFullError) else None
        each = (cause or each).__context__
    return True


def tell(files: LogFiles, others: Others) -> None:
    """Stores the ends of the log, and what is known of its tail, at the end of a turn."""
    ends, before, tail = files.ends, others.seen, files.tail
    if files.poisoned is not None:
        if others.has_given_up:
            if files.syncs.has_failed:
                others.warn_of_failed_sync()  # one that was under way
            return
        if is_alone_in(files.poisoned) and not before.flags & POISONED and not files.syncs.has_failed:
            others.give_up()
            return
    if tail is not None and tail.base_offset != ends.base_offset and files.poisoned is None:
        # An interrupt came between a roll and its publication.
        ends = ends._replace(base_offset=tail.base_offset, position=tail.position)
        files.publish(ends)
    state, epoch = files.state_file.current, files.epochs.latest_epoch
    flags = (POISONED if files.poisoned is not None else 0) | (SEALED if files.seal_before_append else 0)
    if tail is not None:
        flags |= TAIL_KNOWN
        known = tail.known
    elif (before.base_offset, before.position) == (ends.base_offset, ends.position):
        # Unchanged since another process, or this one before it closed an idle tail, described it.
        flags |= before.flags & TAIL_KNOWN
        known = before.known
    else:
        known = NOTHING_KNOWN
    others.store(
        shared_state(
            (
                flags,
                others.change_count,
                before.cut_count,
                0 if state is None else state.generation,
                -1 if epoch is None else epoch,
                ends.end_offset,
                ends.base_offset,
                ends.position,
                ends.durable_end,
                *known,
                files.last_append_ms,
            )
        )
    )
