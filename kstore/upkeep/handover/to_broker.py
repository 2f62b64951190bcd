"""To a broker: closes the logs cleanly, then writes the broker's own files, the marker of a clean stop last.

A crash in the middle leaves a directory without the marker: the next kstore or broker that opens it recovers. Order:

    1  the marker is removed if a log was not closed cleanly: it would be false
    2  every log is opened for writing and closed, and read whole; damage ends it here
    3  the marker is removed in any case
    4  the checkpoints in the root: above all the log starts, which kstore keeps in kstore.state
    5  in each partition: wrong indexes are rebuilt, everything is synced, topic id and leader epochs are written,
       and kstore.state is removed: it would be out of date after the broker's first append
    6  the marker
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.engine.directory import directory_mode, is_log
from kstore.engine.writer import LogWriter
from kstore.errors import CorruptFileError, FileMissingError
from kstore.files.checkpoint import (
    NO_BROKER_EPOCH,
    read_leader_epochs,
    read_topic_id,
    write_clean_shutdown,
    write_leader_epochs,
    write_topic_id,
)
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.modes import access, set_mode
from kstore.files.paths import (
    CLEAN_SHUTDOWN,
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    REPLICATION_OFFSETS,
    TopicPartition,
    segment_name,
)
from kstore.rules.handover import broker_chokes_on, choose_topic_ids, format_topic_id
from kstore.types import CorruptRange
from kstore.upkeep.handover.partition import Facts, Partition
from kstore.upkeep.handover.store import HandoverReport, HandoverStore, PartitionReport

GROUP_WRITES = 0o060


class Ready(NamedTuple):
    """A cleanly closed and fully read partition, with its topic's id."""

    partition: Partition
    facts: Facts
    topic_id: uuid.UUID


def to_broker(
    directory: str | os.PathLike[str],
    *,
    topic_ids: Mapping[str, uuid.UUID] | None = None,
    mode: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    fs: FileSystem = SYSTEM_FS,
    clock: Clock = SYSTEM_CLOCK,
) -> HandoverReport:
    """Turns a store of kstore's, or one partition in it, into one that a stopped broker opens and serves.

    Args:
        topic_ids: the cluster's id of each topic; a missing one is taken from a ``partition.metadata``.
        mode: the mode of every file from now on, for a broker that runs as another user.
        force: hand over damaged logs too.
        dry_run: change nothing, and list the changes.

    The report's ``refused`` says why nothing was handed over. Raises: LockedError (a writer or a broker has the store
    open), LogNotFoundError, DiskFullError, SyncFailedError, StorageError.
    """
    store = HandoverStore(fs, directory, "to-broker", dry_run=dry_run, mode=mode)
    report = store.report
    with store.locked():
        ids = _choose_ids(store, topic_ids or {})
        _look_for_obstacles(store)
        if report.refused:
            return report
        marker_epoch = store.broker_epoch()
        partitions = [
            Partition(fs, clock, owner, store.path(owner), store.log_mode(store.path(owner))) for owner in store.owners
        ]
        _close_in_order(store, partitions)
        ready = _read(store, partitions, ids, force=force)
        if report.refused:
            return report
        if store.fs.exists(store.marker):
            store.remove(store.marker, "not true while files change")
        _write_checkpoints(store, ready)
        for one in ready:
            _write_partition(store, one)
        _set_modes(store)
        _mark(store, marker_epoch)
        _advise(store)
    return report


def _choose_ids(store: HandoverStore, given: Mapping[str, uuid.UUID]) -> dict[str, uuid.UUID]:
    found: dict[TopicPartition, uuid.UUID] = {}
    for owner in store.names.partitions:
        path = store.path(owner) / PARTITION_METADATA
        try:
            found[owner] = read_topic_id(store.fs, path)
        except FileMissingError:
            pass
        except CorruptFileError as error:
            store.report.notes.append(f"{error}: it counts as missing")
    chosen = choose_topic_ids((owner.topic for owner in store.owners), given, found)
    store.report.refused += chosen.problems
    return chosen.ids


def _look_for_obstacles(store: HandoverStore) -> None:
    """Records names at which a broker would exit, or which it would delete, and what is not a log."""
    report = store.report
    report.refused += [f"{store.root / name}: a broker exits at a directory of this name" for name in store.names.odd]
    for owner in store.owners:
        path = store.path(owner)
        partition = Partition(store.fs, SYSTEM_CLOCK, owner, path, 0o600)
        if not is_log(partition.names):
            report.refused.append(f"{path}: not a log: it holds no segment")
        report.refused += [f"{path}: {line}" for line in broker_chokes_on(partition.names.others)]
    report.left += [str(store.root / name) for name in (*store.names.marked, *store.names.brokers)]


# --- the logs ---------------------------------------------------------------------------------------------------------


def _close_in_order(store: HandoverStore, partitions: list[Partition]) -> None:
    unclosed = {partition.owner for partition in partitions if not partition.is_closed()}
    if unclosed and store.fs.exists(store.marker):
        store.remove(store.marker, f"{min(unclosed)} was not closed cleanly")
    for partition in partitions:
        detail = "was not closed cleanly: recover and close it" if partition.owner in unclosed else "open and close it"

        def action(partition: Partition = partition) -> None:
            found = partition.open_and_close()
            store.report.damage += found.corrupt
            store.report.cut += found.cut

        store.do("open", partition.path, detail, action)
    if unclosed and store.dry_run:
        store.report.notes.append(
            "logs that were not closed cleanly are recovered first: their ends and damage may then differ"
        )


def _read(
    store: HandoverStore, partitions: list[Partition], ids: Mapping[str, uuid.UUID], *, force: bool
) -> list[Ready]:
    """Reads every log whole, and refuses damage, unless forced."""
    report = store.report
    ready: list[Ready] = []
    for partition in partitions:
        facts = partition.read_through()
        known = {(found.path, found.position) for found in report.damage}
        report.damage += [found for found in facts.damage if (found.path, found.position) not in known]
        ready.append(Ready(partition, facts, ids[partition.owner.topic]))
    if report.damage and not force:
        report.refused += [
            f"{found.path}: offsets {found.first} to {found.last} are damaged at position {found.position}:"
            f" {found.reason}; a broker that recovers the log cuts it there"
            for found in report.damage
        ]
        return []
    ready = [_roll_if_due(store, one, report.damage) for one in ready]
    report.notes += [
        f"{one.partition.path}: segment {base_offset} is empty: a broker's search by time finds nothing from there on"
        for one in ready
        for base_offset in one.facts.empty
    ]
    report.notes += [
        f"{one.partition.path}: no batch holds the last offsets, {one.facts.batch_end} to {one.facts.end_offset - 1}:"
        f" until the next record is written, a consumer stays at {one.facts.batch_end}, and one that waits until its"
        f" position is the end offset, {one.facts.end_offset}, waits for that record"
        for one in ready
        if one.facts.batch_end < one.facts.end_offset
    ]
    report.partitions += [
        PartitionReport(
            str(one.partition.owner), one.facts.start_offset, one.facts.end_offset, format_topic_id(one.topic_id)
        )
        for one in ready
    ]
    return ready


def _roll_if_due(store: HandoverStore, ready: Ready, damage: list[CorruptRange]) -> Ready:
    """Starts a new segment if the last one does not end with the last offset: a broker would continue at its end, and
    assign offsets a second time."""
    partition, facts, topic_id = ready
    newest = max(partition.names.bases[LOG_SUFFIX], default=0)
    lost = [found for found in damage if found.path == str(partition.path / segment_name(newest, LOG_SUFFIX))]
    end_offset = max([facts.end_offset, *(found.last + 1 for found in lost)])
    if facts.whole_end == end_offset and not lost:
        return ready
    detail = f"a new segment at {end_offset}: in the last one a broker would continue at {facts.whole_end}"
    store.do("roll", partition.path, detail, lambda: partition.open_and_close(LogWriter.roll))
    if store.dry_run:
        return ready._replace(facts=facts._replace(end_offset=end_offset))
    return Ready(partition, partition.read_through(), topic_id)


# --- the broker's files -----------------------------------------------------------------------------------------------


def _write_checkpoints(store: HandoverStore, ready: list[Ready]) -> None:
    facts = {one.partition.owner: one.facts for one in ready}
    # A broker has entries there only for logs that start inside a segment.
    starts = {
        owner: found.start_offset if found.start_offset > found.first_base else None for owner, found in facts.items()
    }
    ends = {owner: found.end_offset for owner, found in facts.items()}
    store.update_checkpoint(LOG_START_OFFSETS, starts)
    store.update_checkpoint(REPLICATION_OFFSETS, ends)
    store.update_checkpoint(RECOVERY_POINTS, ends)


def _write_partition(store: HandoverStore, ready: Ready) -> None:
    partition, facts, topic_id = ready
    fs, path = store.fs, partition.path
    with ExitStack() as stack:
        if not store.dry_run:
            stack.enter_context(partition.take(facts.end_offset))
        for base_offset in facts.misindexed:
            detail = f"the indexes of segment {base_offset}, one of which is wrong or missing"
            store.do("rebuild", path, detail, lambda base=base_offset: partition.rebuild_indexes(base))  # type: ignore[misc]
        if not store.dry_run:
            partition.sync()
        metadata = path / PARTITION_METADATA
        if _topic_id(fs, metadata) != topic_id:
            mode = store.mode_for(metadata)
            detail = f"topic id {format_topic_id(topic_id)}"
            store.do("write", metadata, detail, lambda: write_topic_id(fs, metadata, topic_id, mode=mode))
        _write_epochs(store, ready)
        store.report.losses += partition.losses()
        store.remove(path / KSTORE_STATE, "out of date after the broker's first append")


def _topic_id(fs: FileSystem, path: os.PathLike[str]) -> uuid.UUID | None:
    try:
        return read_topic_id(fs, path)
    except (FileMissingError, CorruptFileError):
        return None


def _write_epochs(store: HandoverStore, ready: Ready) -> None:
    """Writes the leader epochs of the batches: followers use them to find where logs diverge."""
    partition, facts, _ = ready
    path = partition.path / LEADER_EPOCHS
    try:
        stored = read_leader_epochs(store.fs, path)
        is_readable = store.fs.exists(path)
    except CorruptFileError:
        stored, is_readable = [], False
    entries = facts.epochs.entries(facts.start_offset, facts.end_offset, stored)
    if entries == stored and is_readable:
        return
    mode = store.mode_for(path)
    detail = ", ".join(f"epoch {epoch} from {offset}" for epoch, offset in entries[-4:]) or "no epochs"
    store.do("write", path, detail, lambda: write_leader_epochs(store.fs, path, entries, mode=mode))


def _set_modes(store: HandoverStore) -> None:
    if store.mode is None:
        return
    mode, dir_mode = store.mode, directory_mode(store.mode)
    for owner in store.owners:
        directory = store.path(owner)
        names = [directory / name for name in store.fs.list(directory)]
        files = [path for path in names if store.fs.stat(path).is_file and access(path).mode != mode]
        if not files and access(directory).mode == dir_mode:
            continue

        def action(directory: os.PathLike[str] = directory, files: list[os.PathLike[str]] = files) -> None:  # type: ignore[assignment]
            for path in files:
                set_mode(path, mode)
            set_mode(directory, dir_mode)

        store.do("mode", directory, f"{mode:04o} for its files, {dir_mode:04o} for the directory", action)
    for name in (LOG_START_OFFSETS, REPLICATION_OFFSETS, RECOVERY_POINTS):
        path = store.root / name
        if store.fs.exists(path) and access(path).mode != mode:
            store.do("mode", path, f"{mode:04o}", lambda path=path: set_mode(path, mode))  # type: ignore[misc]


def _mark(store: HandoverStore, marker_epoch: int | None) -> None:
    """Writes the marker, if it is true for every log in the root."""
    if not store.is_whole and marker_epoch is None:
        store.report.notes.append(
            f"{store.root} holds other logs, which may not be closed: no marker is written, and the broker recovers"
            " from the recovery points"
        )
        return
    epoch = NO_BROKER_EPOCH if marker_epoch is None else marker_epoch
    mode = store.mode_for(store.marker)
    detail = "closed cleanly: the broker recovers nothing"

    def action() -> None:
        write_clean_shutdown(store.fs, store.marker, epoch, mode=mode)
        if store.mode is not None:
            set_mode(store.marker, mode)

    store.do("write", store.marker, detail, action)


def _advise(store: HandoverStore) -> None:
    """Notes what the user must do before the broker starts."""
    notes = store.report.notes
    meta = store.root / META_PROPERTIES
    if not store.fs.exists(meta):
        notes.append(
            f"{store.root} has no meta.properties, without which a broker exits: run kafka-storage format, or move the"
            " partitions' directories to a broker's own log directory"
        )
    notes.append("the cluster must know the topics by these ids, or the broker renames the directories to ...-stray")
    if store.mode is not None and store.mode & GROUP_WRITES != GROUP_WRITES:
        notes.append(f"mode {store.mode:04o} lets only the owner write: a broker of another user needs 0660")
    _note_private_names(store, meta if store.fs.exists(meta) else store.root)


def _note_private_names(store: HandoverStore, brokers: Path) -> None:
    """Notes names that the owner of ``brokers``, as which the broker will run, could not open."""
    user = access(brokers)
    names = [store.root / name for name in (LOG_START_OFFSETS, REPLICATION_OFFSETS, RECOVERY_POINTS, CLEAN_SHUTDOWN)]
    for owner in store.owners:
        directory = store.path(owner)
        names += [directory, *(directory / name for name in store.fs.list(directory))]
    private = Counter(
        found.uid for path in names if store.fs.exists(path) and not (found := access(path)).lets(user.uid, user.gid)
    )
    store.report.notes += [
        f"{count} names belong to user {uid}, and user {user.uid}, who owns {brokers}, cannot write them: change their"
        " owner, or hand over with --mode 0660"
        for uid, count in sorted(private.items())
    ]
