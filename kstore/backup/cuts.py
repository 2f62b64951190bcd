"""A restore that ends some logs at earlier offsets than the backup: what that means for all its logs.

A transaction is cut if an offset removes a record or the end marker of it from one log. It is then aborted in all:

1. The cut logs are read. A commit marker that is removed, and whose transaction has records, names a cut transaction by
   its producer id and epoch: each transaction has an epoch of its own (KIP-890).
2. In all other logs, ``__consumer_offsets`` among them, its commit markers become abort markers, in place.
3. The store is recovered; it rebuilds the indexes of aborted transactions from the first changed segment on. Then the
   cut logs are truncated, what that leaves open is aborted, and so is what was decided but not marked everywhere.
4. Committed offsets beyond the new ends are lowered to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kstore.archive.manifest import LogEntry, Manifest
from kstore.clock import Clock
from kstore.errors import (
    ConfigError,
    CorruptBatchError,
    CorruptDataError,
    InvalidTransactionStateError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from kstore.files.fs import FileSystem
from kstore.files.paths import LOG_SUFFIX, TopicPartition, segment_name
from kstore.logs.topics import Topics
from kstore.record._codec import Record
from kstore.record.batch import Batch
from kstore.record.control import ControlRecordType, as_abort_marker, parse_end_transaction_marker
from kstore.record.walk import walk
from kstore.rules.internal_topics import OFFSETS, TRANSACTION_STATE, is_internal, journal_of
from kstore.scan.visits import whole_batches
from kstore.transactions.group_offsets import GroupOffsets
from kstore.transactions.metadata import TransactionMetadata, TransactionState
from kstore.transactions.state_log import StateLog
from kstore.transactions.transaction_records import decode_transaction_key, decode_transaction_value


class _Place(NamedTuple):
    """A batch, and where it is."""

    base: int
    position: int
    batch: Batch


class _Ends(NamedTuple):
    """What an offset cuts off one log: end markers of committed transactions, by producer id and epoch, and
    transactions that have no end; and the producers whose transactions it leaves open, if it leaves them records."""

    committed: frozenset[tuple[int, int]]
    unended: frozenset[tuple[int, int]]
    producers: frozenset[int]


class Cuts(NamedTuple):
    """``ends``: by log, its new end. ``producers``: by log, those whose open transactions are aborted there.
    ``decided``: commits that were decided, and are aborts now. ``changed``: by log, the first segment with a marker
    that has changed."""

    ends: Mapping[TopicPartition, int]
    producers: Mapping[TopicPartition, frozenset[int]]
    decided: tuple[TransactionMetadata, ...]
    changed: Mapping[TopicPartition, int]

    def apply(self, topics: Topics) -> None:
        """Truncates the logs of a recovered store, before its transactions are ended. Raises: StorageError."""
        for owner, end in self.ends.items():
            with topics.logs.borrowed(owner) as log:
                log.truncate_to(end)
                for found in log.transactions():
                    if found.producer_id in self.producers[owner]:
                        log.abort_transaction(found.producer_id)
        states = StateLog(topics)
        for metadata in self.decided:
            states.append(replace(metadata, state=TransactionState.PREPARE_ABORT))

    def clip(self, topics: Topics, clock: Clock) -> None:
        """Lowers the committed offsets beyond the new ends, after all transactions are ended. Raises: StorageError."""
        if not self.ends or not topics.directory.is_used(OFFSETS.name):
            return
        offsets = GroupOffsets(topics, clock)
        for group in offsets.groups():
            found = offsets.committed(group)
            lowered = {
                owner: found[owner]._replace(offset=end, leader_epoch=-1)
                for owner, end in self.ends.items()
                if owner in found and found[owner].offset > end
            }
            if lowered:
                offsets.commit(group, lowered)


def checked_offsets(manifest: Manifest, at_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offsets, by the logs of the backup.

    Raises: TopicNotFoundError, OffsetOutOfRangeError; ConfigError for a queue, an internal topic, or no offset.
    """
    logs = {log.owner: log for log in manifest.logs}
    topics = {owner.topic for owner in logs}
    checked = {}
    for given, offset in at_offsets.items():
        if not (isinstance(given, tuple) and len(given) == 2):
            raise ConfigError(f"at_offsets names {given!r:.80}, expected a TopicPartition")
        owner = TopicPartition(*given)
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise ConfigError(f"the offset of {owner} is {offset!r:.80}, expected an int")
        if owner not in logs:
            raise TopicNotFoundError(f"{owner} is not in the backup")
        if is_internal(owner.topic):
            raise ConfigError(
                f"{owner} is internal, expected a topic of records: a restore cuts it where that is needed"
            )
        if journal_of(owner.topic) in topics:
            raise ConfigError(f"{owner} is a queue, expected a topic of records: a queue has no state at an offset")
        log = logs[owner]
        if not log.start <= offset <= log.end:
            raise OffsetOutOfRangeError(offset, start_offset=log.start, end_offset=log.end)
        checked[owner] = offset
    return checked


def plan_cuts(fs: FileSystem, root: Path, manifest: Manifest, ends: Mapping[TopicPartition, int]) -> Cuts:
    """Reads the files of a store that is being restored below ``root``, and aborts the transactions that are cut.

    Raises: InvalidTransactionStateError if it is unknown which records of other logs belong to a cut transaction;
    StorageError.
    """
    logs = {log.owner: log for log in manifest.logs}
    found = {owner: _ends_in(fs, root, logs[owner], end) for owner, end in ends.items()}
    cut = {key for one in found.values() for key in one.committed}
    unended = {key for one in found.values() for key in one.unended}
    decided = []
    for metadata in _decided_commits(fs, root, manifest) if found else ():
        key = metadata.producer_id, metadata.producer_epoch
        if key in unended:
            raise _shared_epoch(str(TRANSACTION_STATE.name), *key)
        if key in cut or (metadata.producer_id, metadata.producer_epoch - 1) in unended:
            cut.add(key)
            decided.append(metadata)
    changed = {}
    for log in manifest.logs if cut else ():
        base = _abort_in(fs, root, log, cut)
        if base is not None:
            changed[log.owner] = base
    return Cuts(ends, {owner: one.producers for owner, one in found.items()}, tuple(decided), changed)


def _ends_in(fs: FileSystem, root: Path, log: LogEntry, end: int) -> _Ends:
    # By producer id: the epoch of its open transaction; and those that have a record that is not deleted.
    is_open: dict[int, int] = {}
    with_records = set()
    committed, producers, touched = set(), set(), set()
    for _, _, batch in _batches(fs, root, log):
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if not batch.is_transactional:
            continue
        is_cut = batch.last_offset >= end
        if not batch.is_control:
            is_open.setdefault(producer_id, epoch)
            if batch.last_offset >= log.start:
                with_records.add(producer_id)
            if is_cut:
                touched.add(producer_id)
            continue
        kind = _end_of(batch)
        began = is_open.pop(producer_id, None) if kind is not None else None
        if began is None:
            continue
        has_records = producer_id in with_records
        with_records.discard(producer_id)
        if not is_cut:
            continue
        producers.add(producer_id)
        if has_records and kind == ControlRecordType.COMMIT:
            if began == epoch:
                raise _shared_epoch(f"{log.owner} at offset {batch.base_offset}", producer_id, epoch)
            committed.add((producer_id, epoch))
    unended = {(producer_id, epoch) for producer_id, epoch in is_open.items() if producer_id in touched}
    producers.update(producer_id for producer_id, _ in unended)
    return _Ends(frozenset(committed), frozenset(unended), frozenset(producers))


def _shared_epoch(where: str, producer_id: int, epoch: int) -> InvalidTransactionStateError:
    return InvalidTransactionStateError(
        f"{where}: the transaction of producer {producer_id} has epoch {epoch}, which its next one may share: which"
        " records of other logs belong to it is unknown, expected an offset that does not cut it"
    )


def _decided_commits(fs: FileSystem, root: Path, manifest: Manifest) -> list[TransactionMetadata]:
    """The commits of which a marker may be missing."""
    known: dict[str, TransactionMetadata] = {}
    for log in manifest.logs:
        if log.owner.topic != TRANSACTION_STATE.name:
            continue
        for _, _, batch in _batches(fs, root, log):
            for record in _readable_records(batch):
                try:
                    name = decode_transaction_key(record.key or b"")
                    if name is not None and record.value is None:
                        known.pop(name, None)
                    elif name is not None and record.value is not None:
                        known[name] = decode_transaction_value(name, record.value)
                except CorruptDataError:
                    continue  # the coordinator skips it too, and says so
    return [one for one in known.values() if one.state == TransactionState.PREPARE_COMMIT]


def _readable_records(batch: Batch) -> Iterable[Record]:
    """The records of a batch; none of a control batch, or of one that cannot be read: the coordinator skips it too."""
    try:
        return () if batch.is_control else batch.records()
    except CorruptDataError:
        return ()


def _abort_in(fs: FileSystem, root: Path, log: LogEntry, cut: set[tuple[int, int]]) -> int | None:
    """Turns the commit markers of these transactions into abort markers, on disk; returns the first segment with one.

    Raises: CorruptBatchError, StorageError.
    """
    changed: dict[int, list[_Place]] = {}
    for place in _batches(fs, root, log):
        batch = place.batch
        is_cut = batch.is_control and (batch.producer_id, batch.producer_epoch) in cut
        if is_cut and _end_of(batch) == ControlRecordType.COMMIT:
            changed.setdefault(place.base, []).append(place)
    # The file keeps the time of this change: with that of the backup, and with an inode that is used again, the next
    # backup into the same place would take it for the file that the place has.
    for base, places in changed.items():
        path = root / str(log.owner) / segment_name(base, LOG_SUFFIX)
        file = fs.open(path, write=True)
        try:
            for place in places:
                try:
                    marker = as_abort_marker(place.batch.data)
                except CorruptBatchError as error:
                    first, last = place.batch.base_offset, place.batch.last_offset
                    raise CorruptBatchError(
                        error.reason, path=path, position=place.position, first_offset=first, last_offset=last
                    ) from error
                file.write_all([marker], place.position)
            file.fdatasync()
        finally:
            file.close()
    return min(changed, default=None)


def _end_of(batch: Batch) -> ControlRecordType | None:
    """ABORT or COMMIT; None for a control batch that ends no transaction, or that cannot be read."""
    try:
        for record in batch.records():
            marker = parse_end_transaction_marker(record.key, record.value)
            return None if marker is None else marker.type
    except CorruptDataError:
        pass
    return None


def _batches(fs: FileSystem, root: Path, log: LogEntry) -> Iterator[_Place]:
    """The sound batches of a log; damage is skipped, as readers skip it."""
    bases = [*(segment.base for segment in log.segments[1:]), log.end]
    for segment, stop in zip(log.segments, bases, strict=True):
        if not segment.log_size:
            continue
        file = fs.open(root / str(log.owner) / segment_name(segment.base, LOG_SUFFIX))
        try:
            walked = walk(file, 0, segment.log_size, next_offset=segment.base, offset_stop=stop)
            for position, batch in whole_batches(walked):
                if batch.is_valid():
                    yield _Place(segment.base, position, batch)
        finally:
            file.close()
