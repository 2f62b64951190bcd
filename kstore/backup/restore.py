"""``restore``: a new store from a backup, whole or not at all.

1. The files are written to a directory next to the new one, each checked by size and CRC.
2. The store there is recovered: the active segment of each log is checked batch by batch, and must end where the
   manifest says. Logs are cut at the offsets that are asked for (``cuts``). Decided transactions get their missing
   markers, open ones are aborted, and every log is closed.
3. That directory is renamed to the new one.

A kill before step 3 leaves a directory named ``.<name>.restore-<hex>``, which may be removed.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from kstore.archive.manifest import LogEntry, Manifest, StoredFile
from kstore.archive.restored import ROOT_FILES, restored_state
from kstore.archive.target import BackupTarget, check_outside_stores
from kstore.backup.cuts import Cuts, checked_offsets, plan_cuts
from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import ConfigError, CorruptFileError, FileInTheWayError, FileMissingError, KstoreError, PathLike
from kstore.files.checkpoint import replace_file, write_leader_epochs, write_topic_id
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import (
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    PARTITION_METADATA,
    TopicPartition,
    segment_name,
)
from kstore.files.remote import put_file
from kstore.logs.scheduler import Scheduler
from kstore.logs.topics import Topics
from kstore.rules.internal_topics import TRANSACTION_STATE
from kstore.rules.topics import KSTORE_TOPICS, TopicEntry, decode_topics
from kstore.state.log_state import state_file_bytes
from kstore.transactions.of_store import StoreCoordinator


class RestoreResult(NamedTuple):
    """A restored store: the time of its backup, and what was written."""

    time_ms: int
    log_count: int
    file_count: int
    total_bytes: int


def restore(
    target: PathLike,
    directory: str | os.PathLike[str],
    *,
    at_ms: int | None = None,
    at_offsets: Mapping[TopicPartition, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
    fs: FileSystem = SYSTEM_FS,
    clock: Clock = SYSTEM_CLOCK,
) -> RestoreResult:
    """Makes a new store in ``directory`` from the last backup in ``target``: all of it, on disk, or nothing.

    The store is that of the backup's moment: records, topics with their settings, committed offsets, queues, producers.
    Transactions that were not decided at that moment are aborted. It opens without recovery.

    With ``at_offsets`` some logs end earlier. A transaction that loses a record, or its end, is aborted in all logs,
    with the offsets that it committed; committed offsets beyond the new ends are lowered to them. All other logs keep
    what they have. A batch is not split: if the offset is in one, no record of it is restored.

    Args:
        target: where the backups are: a directory, or a URL.
        directory: it must be missing or empty, and its parent must exist; not inside a store.
        at_ms: take the last backup at or before this time, in ms since the epoch.
        at_offsets: by partition, the first offset that is not restored, from the start to the end that the backup has.
        storage_options: those of fsspec, or of HDFS.
        progress: called with the number of bytes that were just written.
        fs, clock: for tests.

    Raises: LogNotFoundError if there is no such backup; FileInTheWayError if ``directory`` holds anything, is a mount
    point or is inside a store; FileMissingError if its parent does not exist; CorruptFileError, TruncatedFileError,
    FileMissingError if the backup is damaged; ConfigError for a wrong type; DiskFullError, StorageError. For
    ``at_offsets``: TopicNotFoundError and OffsetOutOfRangeError for one outside the backup; ConfigError for a queue or
    an internal topic; InvalidTransactionStateError if a cut transaction of an old Kafka client cannot be told from its
    next ones.
    """
    if at_ms is not None and (isinstance(at_ms, bool) or not isinstance(at_ms, int)):
        raise ConfigError(f"at_ms is {at_ms!r:.80}, expected ms since the epoch as an int")
    if not isinstance(at_offsets or {}, Mapping):
        raise ConfigError(f"at_offsets is {at_offsets!r:.80}, expected offsets by TopicPartition")
    place = BackupTarget(target, storage_options=storage_options, fs=fs)
    path = Path(directory).expanduser().absolute()
    manifest = place.last_at(at_ms)
    ends = checked_offsets(manifest, at_offsets or {})
    _check_free(fs, path)
    _check_parent(fs, path)
    making = path.parent / f".{path.name}.restore-{uuid.uuid4().hex}"
    try:
        fs.mkdir(making)
        _write(fs, making, place, manifest, progress)
        cuts = plan_cuts(fs, making, manifest, ends)
        for log in manifest.logs:
            _write_state(fs, making / str(log.owner), log, cuts.changed.get(log.owner, log.segments[-1].base))
        _recover(fs, making, manifest, cuts, clock)
        fs.sync_dir(making)
        _check_free(fs, path)
        if fs.exists(path):
            fs.rmdir(path)
        fs.rename(making, path)
        try:
            fs.sync_dir(path.parent)
        except BaseException:
            with suppress(KstoreError):
                fs.rename(path, making)
            raise
    except BaseException:
        with suppress(KstoreError):
            _remove(fs, making)
        raise
    files = [file for log in manifest.logs for file in log.files]
    return RestoreResult(manifest.time_ms, len(manifest.logs), len(files), sum(file.size for file in files))


def _check_free(fs: FileSystem, path: Path) -> None:
    if fs.exists(path) and not (fs.stat(path).is_dir and not fs.list(path)):
        raise FileInTheWayError(errno.EEXIST, "it exists: a restore never writes over anything", str(path))


def _check_parent(fs: FileSystem, path: Path) -> None:
    """Whether a directory made next to ``path`` could take its name."""
    if not fs.exists(path.parent):
        raise FileMissingError(errno.ENOENT, "there is no such directory to restore into", str(path.parent))
    check_outside_stores(fs, path)
    if fs.exists(path) and fs.stat(path).device != fs.stat(path.parent, follow_symlinks=True).device:
        reason = "a mount point, which a restore cannot replace, expected a new directory, such as one inside it"
        raise FileInTheWayError(errno.EBUSY, reason, str(path))


def _remove(fs: FileSystem, path: Path) -> None:
    if not fs.exists(path):
        return
    for name in fs.list(path):
        if fs.stat(path / name).is_dir:
            _remove(fs, path / name)
        else:
            fs.unlink(path / name)
    fs.rmdir(path)


# --- the files --------------------------------------------------------------------------------------------------------


def _write(
    fs: FileSystem, root: Path, place: BackupTarget, manifest: Manifest, progress: Callable[[int], None] | None
) -> None:
    topics = decode_topics(manifest.topics, root / KSTORE_TOPICS)
    for log in manifest.logs:
        _write_log(fs, root / str(log.owner), place, log, topics[log.owner.topic], progress)
    for name, data in manifest.root.items():
        if name in ROOT_FILES:
            replace_file(fs, root / name, data)
    replace_file(fs, root / KSTORE_TOPICS, manifest.topics)


def _write_log(
    fs: FileSystem,
    path: Path,
    place: BackupTarget,
    log: LogEntry,
    entry: TopicEntry,
    progress: Callable[[int], None] | None,
) -> None:
    fs.mkdir(path)
    times = {segment.base: segment.mtime_ns for segment in log.segments}
    parts: dict[tuple[int, str], list[StoredFile]] = {}
    for file in log.files:
        parts.setdefault((file.base, file.suffix), []).append(file)
    for (base, suffix), files in parts.items():
        chunks = chain.from_iterable(place.chunks(log.owner, file) for file in files)
        mtime_ns = times[base] if suffix == LOG_SUFFIX else 0
        put_file(fs, path / segment_name(base, suffix), chunks, mtime_ns=mtime_ns)
        if progress is not None:
            progress(sum(file.size for file in files))
    if log.epochs:
        write_leader_epochs(fs, path / LEADER_EPOCHS, log.epochs)
    if entry.topic_id is not None:
        write_topic_id(fs, path / PARTITION_METADATA, entry.topic_id)


def _write_state(fs: FileSystem, path: Path, log: LogEntry, recovery_point: int) -> None:
    state = restored_state(fs, path, log, recovery_point)
    replace_file(fs, path / KSTORE_STATE, state_file_bytes(state))
    fs.sync_dir(path)


# --- the store --------------------------------------------------------------------------------------------------------


def _recover(fs: FileSystem, root: Path, manifest: Manifest, cuts: Cuts, clock: Clock) -> None:
    """Checks every log, cuts some, ends the transactions, and closes everything cleanly."""
    scheduler = Scheduler(clock, threads=False)
    topics = Topics(root, {}, "sync", scheduler, read_only=False, shared=False, create=False, fs=fs, clock=clock)
    try:
        for log in manifest.logs:
            with topics.logs.borrowed(log.owner) as opened:
                found = opened.start_offset, opened.end_offset
                if found != (log.start, log.end):
                    raise CorruptFileError(
                        f"it has offsets {found[0]} to {found[1]}, expected {log.start} to {log.end} (exclusive)",
                        path=str(log.owner),
                    )
        cuts.apply(topics)
        coordinator = StoreCoordinator(topics, scheduler)
        if topics.directory.is_used(TRANSACTION_STATE.name) and topics.count(TRANSACTION_STATE.name):
            coordinator.get()
            coordinator.close()
        cuts.clip(topics, clock)
        for log in manifest.logs:
            with topics.logs.borrowed(log.owner) as opened:
                opened.flush()  # a write to a transaction index may have poisoned it, without an error
        owners = topics.logs.shut()
        for owner in owners:
            topics.logs.close(owner)
        topics.mark_clean(owners)
    finally:
        for owner in topics.logs.shut():
            with suppress(KstoreError):
                topics.logs.close(owner)
        topics.life.closed = True
        topics.directory.close()
        scheduler.stop()
