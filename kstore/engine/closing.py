"""Closes a log cleanly, so that the next open scans nothing."""

from __future__ import annotations

from kstore.engine.files import LogFiles
from kstore.engine.flush import Flush, sync_indexes
from kstore.files.paths import LOG_SUFFIX

__all__ = ["close_in_order"]


def close_in_order(files: LogFiles, flush: Flush) -> None:
    """Puts everything on disk, and stores the clean mark last; with the turn.

    Raises: SyncFailedError, StorageError.
    """
    current, last = files.state_file.current, files.segments.last
    is_clean = current is not None and current.clean
    if files.others is not None and files.tail is None and not is_clean and not files.seal_before_append:
        # Records of other processes are sealed too.
        files.tail = last.activate()
    is_same = current is not None and current.txn_bytes == files.transaction_index_bytes(files.ends, clean=True)
    if current is not None and current.clean and last.tail is None and is_same:
        return  # nothing changed since the last clean close
    if last.tail is not None and files.tail is None:
        files.tail = last.tail  # recovery left it open
    flush.sync_to_close()
    files.producers.snapshot_at_close(files.ends.end_offset, files.ends.position)
    files.syncs.alone(lambda: sync_indexes(files, files.producers.unsynced()))
    last.seal(sync=True)
    files.unflushed.clear()
    end = files.ends.end_offset
    files.ends = files.ends._replace(recovery_point=end, durable_end=end)
    if files.seal_before_append:
        return  # the log ends with fenced damage: only recovery knows that nothing may be appended after it
    stat = files.context.fs.stat(last.path(LOG_SUFFIX))
    files.store(
        files.ends,
        clean=True,
        clean_base=last.base_offset,
        clean_inode=stat.inode,
        clean_size=stat.size,
        clean_mtime_ns=stat.mtime_ns,
    )
