"""The commit of what tasks have staged: all of it in one transaction of the store, and never twice.

    1  the batch was committed before: nothing to do      the committed offset of group spark-<txnAppId> says so
    2  a producer id for the writer                       fences its predecessor, aborts what that left open
    3  the staged batches, into each partition's log      stamped with the producer (``appending``)
    4  the batch's number, as an offset of the group      in the same transaction
    5  the decision                                       one record; from here it is committed, whatever happens
    6  an overwrite: the records before it are deleted    step 4 records where they end, in case this is repeated
    7  staged files are removed, orphans swept

A process that dies before 5 leaves a transaction that the next open aborts. One that dies after 5 leaves a transaction
that the next open completes, and a batch that step 1 drops when Spark repeats it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import KstoreError, TopicNotFoundError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.files.threads import side_by_side
from kstore.log import Log
from kstore.spark.appending import StagedRows, append_staged
from kstore.spark.staging import (
    Rows,
    StagedFile,
    check_release,
    open_staged,
    read_head,
    read_rows,
    remove,
    sweep,
)
from kstore.spark.target import make_topic, open_store
from kstore.spark.write_options import WriteOptions
from kstore.store import Store, coordinator_of

logger = logging.getLogger(__name__)

# The number of the last committed batch is an offset of this name, which no topic has.
BATCH_ID = TopicPartition("spark-batch-id", 0)
# The name of unnamed batch writes: they take turns, since each needs the store for itself.
UNNAMED = "spark"
# How many logs are appended to at the same time.
THREADS = 4
# Nothing aborts the transaction in the meantime: the store is open without background work.
TRANSACTION_TIMEOUT_MS = 900_000


# A staged file, and where one partition's rows are in it.
InFile = tuple[StagedFile, Rows]


class Writer(NamedTuple):
    """The writer: ``writer_id`` names its staged files. ``app_id`` None: repeated batches are not recognised."""

    writer_id: str
    app_id: str | None = None


class Outcome(NamedTuple):
    """``is_dropped``: the batch had been committed before."""

    record_count: int = 0
    is_dropped: bool = False


def group_of(app_id: str) -> str:
    """The group for which a writer's batches are committed, and its transactional id."""
    return f"spark-{app_id}"


def commit(
    options: WriteOptions,
    writer: Writer,
    batch_id: int,
    staged: Sequence[StagedFile],
    *,
    fs: FileSystem = SYSTEM_FS,
    clock: Clock = SYSTEM_CLOCK,
    threads: int = THREADS,
) -> Outcome:
    """Commits a batch: on return all of it is on disk; after an exception, all of it or nothing.

    Raises: LockedError; FileMissingError (the driver does not see a staged file), CorruptFileError; TopicNotFoundError;
    what an append raises; StorageError.
    """
    directory = Path(options.path)
    if not staged and not options.truncates:
        return Outcome()
    store = open_store(options, fs=fs, clock=clock)
    try:
        committed = _committed(store, writer)
        is_dropped = batch_id <= committed
        if is_dropped:
            logger.warning(
                "%s: batch %d of %s was committed before, and is skipped", directory, batch_id, writer.app_id
            )
            _delete_before(store, _boundaries(store, writer) if options.truncates else {})
        else:
            _Transaction(store, options, writer, batch_id, fs, threads).run(staged)
    except BaseException:
        # Aborts what is open. If that fails too, the next open does it.
        try:
            store.close()
        except KstoreError as error:
            logger.warning("%s: not closed cleanly after a failed commit: %s", directory, error)
        raise
    remove(fs, directory, (one.name for one in staged))
    sweep(
        fs,
        directory,
        writer_id=writer.writer_id,
        committed=max(committed, batch_id),
        now_ms=clock.now_ms(),
        retention_ms=options.staging_retention_ms,
    )
    try:
        store.close()
    except KstoreError as error:
        # It is committed: this must not make Spark repeat it.
        logger.warning("%s: not closed cleanly after a commit: %s", directory, error)
    return Outcome(0 if is_dropped else _count(staged), is_dropped)


def discard(options: WriteOptions, staged: Iterable[StagedFile], *, fs: FileSystem = SYSTEM_FS) -> None:
    """Removes staged files that will not be committed, as far as possible."""
    remove(fs, Path(options.path), (one.name for one in staged))


def _count(staged: Iterable[StagedFile]) -> int:
    return sum(one.record_count for one in staged)


def _committed(store: Store, writer: Writer) -> int:
    """The number of the last committed batch, -1 for none."""
    if writer.app_id is None:
        return -1
    found = coordinator_of(store).committed(group_of(writer.app_id), [BATCH_ID]).get(BATCH_ID)
    return -1 if found is None else found.offset


def _boundaries(store: Store, writer: Writer) -> dict[TopicPartition, int]:
    """Where the records of the last overwriting batch start."""
    if writer.app_id is None:
        return {}
    found = coordinator_of(store).committed(group_of(writer.app_id))
    return {owner: committed.offset for owner, committed in found.items() if owner != BATCH_ID}


def _delete_before(store: Store, boundaries: Mapping[TopicPartition, int]) -> None:
    for owner, offset in boundaries.items():
        try:
            log = store.log(*owner)
        except TopicNotFoundError:
            continue
        if log.start_offset < offset <= log.high_watermark:
            log.delete_records(offset)


class _Transaction:
    """One commit in an open store."""

    def __init__(
        self, store: Store, options: WriteOptions, writer: Writer, batch_id: int, fs: FileSystem, threads: int
    ) -> None:
        self._store = store
        self._fs = fs
        self._directory = Path(options.path)
        self._threads = threads
        self._options = options
        self._app_id = writer.app_id
        self._id = UNNAMED if writer.app_id is None else group_of(writer.app_id)
        self._batch_id = batch_id
        self._producer = (-1, -1)

    def run(self, staged: Sequence[StagedFile]) -> None:
        store, coordinator = self._store, coordinator_of(self._store)
        batches = self._batches(staged)
        for topic in sorted({owner.topic for owner in batches} - set(store.topics(internal=True))):
            make_topic(store, self._options, topic)
        logs = {owner: self._log(owner) for owner in sorted(batches)}
        boundaries = self._ends(batches)
        if not logs and self._app_id is None:
            _delete_before(store, boundaries)
            return
        self._producer = coordinator.init_producer_id(self._id, TRANSACTION_TIMEOUT_MS)
        coordinator.add_partitions(self._id, *self._producer, logs)
        firsts = self._append_all(logs, batches)
        boundaries.update({owner: first for owner, first in firsts.items() if owner in boundaries})
        if self._app_id is not None:
            offsets = {BATCH_ID: self._batch_id, **boundaries}
            coordinator.add_offsets(self._id, *self._producer, group_of(self._app_id), offsets)
        self._end()
        _delete_before(store, boundaries)

    def _batches(self, staged: Sequence[StagedFile]) -> dict[TopicPartition, list[InFile]]:
        """The location of each partition's rows, in append order; all files exist, and have the head that was staged.

        Kept are neither the rows, 200 KB for each GiB, nor the files open, one for each task.
        """
        found: dict[TopicPartition, list[InFile]] = {}
        for one in staged:
            check_release(one)
            file = open_staged(self._fs, self._directory, one)
            try:
                for owner, rows in read_head(file, one).items():
                    found.setdefault(owner, []).append((one, rows))
            finally:
                file.close()
        return found

    def _read(self, batches: Iterable[InFile]) -> Iterator[StagedRows]:
        for one, rows in batches:
            file = open_staged(self._fs, self._directory, one)
            try:
                yield StagedRows(one, file, read_rows(file, rows))
            finally:
                file.close()

    def _log(self, owner: TopicPartition) -> Log:
        try:
            return self._store.log(*owner)
        except TopicNotFoundError as error:
            raise TopicNotFoundError(f"{error}: it has changed since the tasks looked at it") from error

    def _ends(self, spans: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """For an overwrite: the end of each partition that it covers."""
        if not self._options.truncates:
            return {}
        topics = {owner.topic for owner in spans}
        if self._options.topic is not None and self._options.topic in self._store.topics():
            topics.add(self._options.topic)
        owners = [TopicPartition(topic, number) for topic in topics for number in self._store.partitions(topic)]
        return {owner: self._store.log(*owner).high_watermark for owner in sorted(owners)}

    def _append_all(
        self, logs: Mapping[TopicPartition, Log], batches: Mapping[TopicPartition, Sequence[InFile]]
    ) -> dict[TopicPartition, int]:
        """Appends to several logs at a time, since each waits for the disk. The first offset in each of them."""
        if min(self._threads, len(logs)) <= 1:
            return {
                owner: append_staged(log, self._read(batches[owner]), self._producer) for owner, log in logs.items()
            }
        firsts: dict[TopicPartition, int] = {}

        def append(owner: TopicPartition) -> None:
            firsts[owner] = append_staged(logs[owner], self._read(batches[owner]), self._producer)

        side_by_side(append, logs, count=self._threads, name="kstore-spark-commit")
        return firsts

    def _end(self) -> None:
        end = coordinator_of(self._store).end
        try:
            end(self._id, *self._producer, commit=True)
        except KstoreError as error:
            # If it was decided, repeating completes it.
            logger.warning("%s: the end of a transaction is repeated: %s", self._options.path, error)
            end(self._id, *self._producer, commit=True)
