"""The writers that Spark asks for: ``write`` in the tasks, ``commit`` and ``abort`` on the driver.

A writer holds only plain values: it is created in one process on the driver, pickled, and used in others. A stream's
commit runs on yet another object, which knows only the options, the messages and the batch's number; the messages carry
the writer's identity.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import ConfigError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.record.columns import import_pyarrow
from kstore.record.rows import PartitionedEncoder, rows_of, times_of
from kstore.spark.commit import Writer, commit, discard
from kstore.spark.notes import note_ignored
from kstore.spark.sentences import without_causes
from kstore.spark.staging import StagedFile, StagingFile, staged_name
from kstore.spark.target import StoreTarget, check_is_seen, plan_target
from kstore.spark.write_options import WriteOptions, check_sink_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# What Spark tells only a task of a stream.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """A task's message to the driver: the writer, and what it has staged, None for no rows."""

    writer_id: str
    file: StagedFile | None


class Task(NamedTuple):
    """A task in Spark's numbers; ``query_id`` and ``batch_id`` only in a stream."""

    partition: int
    attempt: int
    query_id: str | None = None
    batch_id: int | None = None


def current_task() -> Task:
    context = TaskContext.get()
    if context is None:
        return Task(0, 0)
    batch_id = context.getLocalProperty(BATCH_ID)
    return Task(
        context.partitionId(),
        context.taskAttemptId(),
        context.getLocalProperty(QUERY_ID),
        None if batch_id is None else int(batch_id),
    )


class KStoreWriter(DataSourceArrowWriter):
    """``df.write.format("kstore").mode("append")``: writes all rows by the time it returns, or none."""

    @without_causes()
    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """Raises: ConfigError, TopicNotFoundError, LogNotFoundError, LockedError, StorageError."""
        self._options = WriteOptions.parse(options, streaming=False, overwrite=overwrite)
        self._columns = check_sink_columns(schema, topic=self._options.topic)
        self._target = plan_target(self._options)
        self._writer = Writer(self._options.app_id or str(uuid.uuid4()), self._options.app_id)

    @without_causes()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = current_task()
        name = staged_name(self._writer.writer_id, self._batch_id, task.partition, task.attempt)
        return Staged(
            self._writer.writer_id, stage(iterator, self._options, self._columns, self._target, name, task.partition)
        )

    @without_causes()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        note_ignored(self._options.ignored)
        commit(self._options, self._writer, self._batch_id, _files(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard(self._options, _files(messages))

    @property
    def _batch_id(self) -> int:
        return self._options.version or 0


class KStoreStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("kstore")``: writes each row of a query once, whatever dies at any time."""

    @without_causes()
    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        """Raises: as ``KStoreWriter``."""
        self._options = WriteOptions.parse(options, streaming=True, overwrite=overwrite)
        self._columns = check_sink_columns(schema, topic=self._options.topic)
        self._target = plan_target(self._options)

    @without_causes()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = current_task()
        writer_id = self._options.app_id or task.query_id
        if writer_id is None or task.batch_id is None:
            raise ConfigError(f"Spark does not say which batch of which query this is ({QUERY_ID}, {BATCH_ID})")
        name = staged_name(writer_id, task.batch_id, task.partition, task.attempt)
        return Staged(writer_id, stage(iterator, self._options, self._columns, self._target, name, task.partition))

    @without_causes()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # Without messages there were no rows, and nothing to repeat.
        writer_ids = {message.writer_id for message in messages if isinstance(message, Staged)}
        if len(writer_ids) > 1:
            raise ConfigError(f"one batch of {len(writer_ids)} queries")
        if batchId == 0:
            # Once for a query: each batch has its own writer.
            note_ignored(self._options.ignored)
        for writer_id in writer_ids:
            commit(self._options, Writer(writer_id, writer_id), batchId, _files(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        discard(self._options, _files(messages))


def _files(messages: Iterable[WriterCommitMessage | None]) -> list[StagedFile]:
    """What was staged, in the order of the tasks; failed ones have no message."""
    return [message.file for message in messages if isinstance(message, Staged) and message.file is not None]


def stage(
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions,
    columns: Sequence[str],
    target: StoreTarget,
    name: str,
    task_partition: int,
    *,
    fs: FileSystem = SYSTEM_FS,
    clock: Clock = SYSTEM_CLOCK,
) -> StagedFile | None:
    """Encodes a task's rows and stages them under ``name``; None if there are none.

    Raises: InvalidRecordError, RecordTooLargeError, TopicNotFoundError, DiskFullError, StorageError; then nothing
    remains.
    """
    check_is_seen(target, fs=fs)
    staging = StagingFile(fs, Path(target.path), name)
    encoders: dict[str, PartitionedEncoder] = {}

    def encoder_of(topic: str | None) -> PartitionedEncoder:
        found = encoders.get(topic) if topic is not None else None
        if found is None:
            known = target.topic(topic)
            assert topic is not None
            found = encoders[topic] = PartitionedEncoder(
                known.partition_count,
                lambda partition, data, batch: staging.add(TopicPartition(topic, partition), data, batch),
                batch_bytes=options.batch_bytes,
                size_max=known.size_max,
                codec=known.codec,
                level=known.level,
                # Not all tasks start with the same one.
                first_partition=task_partition,
            )
        return found

    try:
        for batch in batches:
            for topic, rows in _by_topic(batch, options.topic):
                if rows.num_rows:
                    used, now_ms = _used(rows, columns), clock.now_ms()
                    _note(staging, used, now_ms)
                    encoder_of(topic).append(rows_of(used, now_ms))
        for encoder in encoders.values():
            encoder.close()
        return staging.close()
    except BaseException:
        staging.discard()
        raise


def _note(staging: StagingFile, rows: pa.RecordBatch, now_ms: int) -> None:
    """What the driver needs to know of the rows to append their batches without decoding them."""
    names = rows.schema.names
    times = times_of(rows.column("timestamp"), now_ms) if "timestamp" in names else None
    has_every_key = "key" in names and rows.column("key").null_count == 0
    staging.note(times or (now_ms, now_ms), has_every_key=has_every_key)


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The rows for each topic, in order."""
    if topic is not None:
        yield topic, batch
        return
    pa = import_pyarrow()
    import pyarrow.compute as compute

    column = batch.column("topic")
    names = compute.unique(column).to_pylist()
    if len(names) == 1:
        yield names[0], batch
        return
    for name in names:
        mask = compute.is_null(column) if name is None else compute.equal(column, pa.scalar(name, column.type))
        yield name, batch.filter(mask)


def _used(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Only the columns that are written, with a time in seconds as a timestamp."""
    pa = import_pyarrow()
    rows = batch.select([name for name in columns if name != "topic"])
    if "timestamp" in columns and pa.types.is_floating(rows.column("timestamp").type):
        import pyarrow.compute as compute

        us = compute.round(compute.multiply(rows.column("timestamp"), 1e6)).cast(pa.int64(), safe=False)
        rows = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", us.cast(pa.timestamp("us")))
    return rows
