"""From a stopped broker: kstore opens and closes every log, then the broker's marker is removed.

A broker keeps in its checkpoints the recovery point, which with the marker is the log's end, and the log start offset.
A ``kstore.state`` from before the broker's time is out of date and is removed first. Logs that were closed cleanly come
first, while the marker is still valid; the others are recovered without it. After a crash in the middle this can be
repeated for the directory.
"""

from __future__ import annotations

import os

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.engine.directory import is_log
from kstore.engine.writer import LogWriter
from kstore.errors import CorruptFileError, FileMissingError
from kstore.files.checkpoint import read_topic_id
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import (
    CHECKPOINTS,
    CLEAN_SHUTDOWN,
    KSTORE_GROUPS,
    KSTORE_STATE,
    LEADER_EPOCHS,
    LOCK,
    META_PROPERTIES,
    PARTITION_METADATA,
    PRODUCER_IDS,
)
from kstore.rules.handover import format_topic_id, is_broker_last
from kstore.rules.topics import KSTORE_TOPICS
from kstore.state.compaction_state import KSTORE_COMPACTION
from kstore.upkeep.handover.partition import Partition
from kstore.upkeep.handover.store import HandoverReport, HandoverStore, PartitionReport

KNOWN_IN_ROOT = frozenset(
    {*CHECKPOINTS, META_PROPERTIES, CLEAN_SHUTDOWN, LOCK, "bootstrap.checkpoint", KSTORE_TOPICS, PRODUCER_IDS}
)
KNOWN_IN_PARTITION = frozenset(
    {KSTORE_STATE, KSTORE_COMPACTION, KSTORE_GROUPS, LEADER_EPOCHS, PARTITION_METADATA, LOCK}
)


def from_broker(
    directory: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    fs: FileSystem = SYSTEM_FS,
    clock: Clock = SYSTEM_CLOCK,
) -> HandoverReport:
    """Turns the store of a stopped broker, or one partition in it, into kstore's.

    ``dry_run`` changes nothing, and lists the changes. Raises: LockedError (a broker or a writer has the store open),
    LogNotFoundError, DiskFullError, SyncFailedError, StorageError. Damage does not raise: the report has it.
    """
    store = HandoverStore(fs, directory, "from-broker", dry_run=dry_run, mode=None)
    report = store.report
    with store.locked():
        if report.refused:
            return report
        partitions = []
        for owner in store.owners:
            partition = Partition(fs, clock, owner, store.path(owner), store.log_mode(store.path(owner)))
            if is_log(partition.names):
                partitions.append(partition)
            else:
                report.left.append(f"{partition.path}: not a log")
        for partition in partitions:
            _forget_old_state(store, partition)
        closed = [partition for partition in partitions if _is_closed(store, partition)]
        for partition in closed:
            _take_over(store, partition, "closed cleanly: nothing to recover")
        if fs.exists(store.marker):
            store.remove(store.marker, "kstore will change files")
            if not store.is_whole:
                report.notes.append(
                    f"the marker covered the other logs of {store.root} too: they are checked when opened"
                )
        for partition in partitions:
            if partition not in closed:
                _take_over(store, partition, "not closed cleanly: recover it")
        report.partitions.sort()
        _list_what_is_left(store, partitions)
    return report


def _is_out_of_date(partition: Partition) -> bool:
    if partition.state() is None:
        return False
    marks = partition.marks()
    return is_broker_last(
        state_fits=partition.state_fits(),
        marker=marks.clean,
        recovery_point=marks.recovery_point,
        end_offset=partition.end_in_files(),
    )


def _forget_old_state(store: HandoverStore, partition: Partition) -> None:
    if _is_out_of_date(partition):
        store.report.losses += partition.losses()
        store.remove(partition.path / KSTORE_STATE, "older than what the broker wrote")


def _is_closed(store: HandoverStore, partition: Partition) -> bool:
    # In a dry run the outdated state still exists.
    return partition.is_closed() or (store.dry_run and _is_out_of_date(partition))


def _take_over(store: HandoverStore, partition: Partition, detail: str) -> None:
    """Opens and closes one log; its start is the later of kstore's and the broker's."""
    report = store.report
    checkpoint = partition.marks().log_start_offset or 0
    seen = [checkpoint, 0]

    def action() -> None:
        def raise_start(writer: LogWriter) -> None:
            if writer.ends.start_offset < checkpoint <= writer.ends.end_offset:
                writer.delete_records(checkpoint)
            seen[:] = writer.ends.start_offset, writer.ends.end_offset

        found = partition.open_and_close(raise_start)
        report.damage += found.corrupt
        report.cut += found.cut

    store.do("open", partition.path, f"{detail}; writes {KSTORE_STATE}", action)
    if store.dry_run:
        facts = partition.look()
        seen = [max(facts[0], min(checkpoint, facts[1])), facts[1]]
    try:
        topic_id = format_topic_id(read_topic_id(store.fs, partition.path / PARTITION_METADATA))
    except (FileMissingError, CorruptFileError):
        topic_id = ""
    report.partitions.append(PartitionReport(str(partition.owner), seen[0], seen[1], topic_id))


def _list_what_is_left(store: HandoverStore, partitions: list[Partition]) -> None:
    """Names what stays unchanged: the broker's own files, and unknown ones."""
    report = store.report
    for name in (*CHECKPOINTS, META_PROPERTIES):
        if store.fs.exists(store.root / name):
            report.left.append(f"{store.root / name}: the broker's")
    report.left += [f"{store.root / name}: the broker's" for name in (*store.names.brokers, *store.names.marked)]
    unknown = [store.root / name for name in (*store.names.odd, *store.files) if name not in KNOWN_IN_ROOT]
    for partition in partitions:
        unknown += [partition.path / name for name in partition.names.others if name not in KNOWN_IN_PARTITION]
    report.left += [f"{path}: unknown" for path in unknown]
    if any(store.fs.exists(store.root / name) for name in CHECKPOINTS):
        report.notes.append(
            "the broker's checkpoints are out of date from the next append: kstore handover --to-broker"
            " must rewrite them before the broker starts again"
        )
