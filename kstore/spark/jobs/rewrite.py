"""Writes DataFrames of records as a new store: a partition a task; the store appears when it is complete.

The tasks write next to the place of the store, in ``OUT.part``, so driver and executors must share that file system:
one machine, or a mount. A stopped run leaves ``OUT.part``, which the next one replaces.
"""

from __future__ import annotations

import errno
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from kstore.engine.directory import make_directory
from kstore.errors import ConfigError, FileInTheWayError, StorageError
from kstore.files.local import SYSTEM_FS
from kstore.files.lock import DirectoryLock
from kstore.files.paths import TopicPartition
from kstore.files.remote import is_remote, open_remote
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.setting_rules import UNLIMITED
from kstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The column that names a record's target.
SLOT = "slot"
# The directory in which the new store is built, and the name in it that marks it as ours.
PART_SUFFIX = ".part"
PART_MARK = ".kstore-spark-job"
ATTEMPTS = ".attempts"
BATCH_BYTES = 256 << 10
BATCH_RECORDS = 5000
RESULT_SCHEMA = "slot int, directory string, records bigint, size bigint"
# A log takes everything that another one held: its times, and its largest record.
TAKES_ALL = {"message_timestamp_after_max_ms": UNLIMITED, "max_message_bytes": 2**30, "retention_ms": -1}


class PartitionToWrite(NamedTuple):
    """A partition to write. With ``start`` and ``stop`` records keep their offsets, and these bound the log."""

    owner: TopicPartition
    start: int | None = None
    stop: int | None = None


class Written(NamedTuple):
    """A written partition."""

    owner: TopicPartition
    records: int
    size: int


def written_fields(written: Sequence[Written], out: str) -> dict[str, Any]:
    """What the summary of a job says of the store that it wrote."""
    return {
        "partitions": len(written),
        "records": sum(each.records for each in written),
        "bytes": sum(each.size for each in written),
        "store": str(Path(out)),
    }


def check_out(out: str) -> Path:
    """The path for a new store. Raises: ConfigError if it exists, or for a URL."""
    if is_remote(out):
        raise ConfigError(f"{out} is not a local path: logs are written in place, which only disks support")
    path = open_remote(out).path
    if SYSTEM_FS.exists(path) and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(f"{path} exists already: a new store needs a directory of its own")
    return path


def write_store(
    frame: DataFrame, out: Path, targets: Sequence[PartitionToWrite], order: Sequence[str], settings: Mapping[str, Any]
) -> list[Written]:
    """Writes the rows to the ``targets`` that SLOT names, in the order of the columns ``order``, as the store ``out``.

    Columns besides SLOT and ``order``: key, value, timestamp (ms), headers, and offset where targets keep them.

    Raises: ConfigError, LockedError if another job writes there; StorageError if the executors write to another place.
    An error in a task is pyspark's PythonException.
    """
    part = out.with_name(out.name + PART_SUFFIX)
    _begin(part)
    with DirectoryLock(part / ATTEMPTS, kind="rewrite"):
        rows = (
            frame.repartitionById(len(targets), SLOT)
            .sortWithinPartitions(SLOT, *order)
            .mapInArrow(partial(_write_slots, str(part / ATTEMPTS), list(targets), dict(settings)), RESULT_SCHEMA)
            .collect()
        )
        done = {row["slot"]: row for row in rows}
        written = []
        for slot, target in enumerate(targets):
            row = done.get(slot)
            attempt = _write_nothing(part, target, settings) if row is None else Path(row["directory"])
            if not attempt.is_dir():
                raise StorageError(
                    errno.ENOENT,
                    "an executor wrote it where the driver does not see it: the new store must be on a file system"
                    " that both share",
                    str(attempt),
                )
            SYSTEM_FS.rename(attempt, part / str(target.owner))
            written.append(Written(target.owner, row["records"] if row else 0, row["size"] if row else 0))
    shutil.rmtree(part / ATTEMPTS)
    _adopt(part, targets, settings)
    if SYSTEM_FS.exists(out):
        out.rmdir()
    SYSTEM_FS.rename(part, out)
    SYSTEM_FS.sync_dir(out.parent)
    (out / PART_MARK).unlink()
    return written


def _begin(part: Path) -> None:
    """An empty directory to write in; removes what an earlier run left there."""
    if SYSTEM_FS.exists(part):
        if not (part / PART_MARK).exists():
            raise FileInTheWayError(errno.EEXIST, "expected nothing, or what a stopped job left", str(part))
        if (part / ATTEMPTS).exists():
            DirectoryLock(part / ATTEMPTS, kind="rewrite").release()  # no job is at work there
        shutil.rmtree(part)
    make_directory(SYSTEM_FS, part, mode=0o700)
    (part / PART_MARK).touch()
    make_directory(SYSTEM_FS, part / ATTEMPTS, mode=0o700)


def _adopt(part: Path, targets: Sequence[PartitionToWrite], settings: Mapping[str, Any]) -> None:
    """Turns the directory of logs into a cleanly closed store, with the requested settings of its topics."""
    with Store(part, background=False) as store:
        if settings:
            for topic in sorted({target.owner.topic for target in targets}):
                store.alter_topic(topic, **settings)


def _write_nothing(part: Path, target: PartitionToWrite, settings: Mapping[str, Any]) -> Path:
    """Writes a partition without records."""
    writer = _PartitionWriter(part / ATTEMPTS, target, settings)
    writer.close()
    return writer.directory


# --- in a task --------------------------------------------------------------------------------------------------------


def _write_slots(
    directory: str, targets: list[PartitionToWrite], settings: dict[str, Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Writes the rows, which are sorted by slot, each to the log of its slot."""
    writer: _PartitionWriter | None = None
    current = -1
    results = []
    try:
        for batch in batches:
            slots = batch.column(SLOT).to_pylist()
            start = 0
            while start < len(slots):
                stop = start + 1
                while stop < len(slots) and slots[stop] == slots[start]:
                    stop += 1
                if slots[start] != current:
                    if writer is not None:
                        results.append((current, writer))
                        writer.close()
                    current = slots[start]
                    writer = _PartitionWriter(Path(directory), targets[current], settings)
                assert writer is not None, "there is one for each slot"
                writer.add(batch.slice(start, stop - start))
                start = stop
        if writer is not None:
            results.append((current, writer))
            writer.close()
            writer = None
    finally:
        if writer is not None:
            writer.abandon()
    yield pa.record_batch(
        {
            "slot": pa.array([slot for slot, _ in results], pa.int32()),
            "directory": pa.array([str(done.directory) for _, done in results], pa.string()),
            "records": pa.array([done.records for _, done in results], pa.int64()),
            "size": pa.array([done.size for _, done in results], pa.int64()),
        }
    )


class _PartitionWriter:
    """A new log for one target, in a directory of this attempt's own."""

    def __init__(self, parent: Path, target: PartitionToWrite, settings: Mapping[str, Any]) -> None:
        self.directory = parent / f"{uuid.uuid4().hex}" / str(target.owner)
        self.records = 0
        self.size = 0
        self._target = target
        settings = {**TAKES_ALL, **settings}
        self._codec = str(settings.get("compression_type", "none"))
        self._log = Log(self.directory, durability="os", **settings)
        if target.start is not None:
            writer_of(self._log).truncate_fully_and_start_at(target.start)

    def add(self, rows: pa.RecordBatch) -> None:
        """Appends the rows, in batches of about BATCH_BYTES."""
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        times = rows.column("timestamp").to_pylist()
        headers = [
            [(each["key"], each["value"]) for each in listed or ()] for listed in rows.column("headers").to_pylist()
        ]
        offsets = rows.column("offset").to_pylist() if self._target.start is not None else None
        start = size = 0
        for at in range(len(values)):
            size += len(keys[at] or b"") + len(values[at] or b"") + 16
            if size >= BATCH_BYTES or at - start + 1 >= BATCH_RECORDS or at + 1 == len(values):
                stop = at + 1
                if offsets is None:
                    info = self._log.append_many(
                        values[start:stop],
                        keys=keys[start:stop],
                        timestamps=times[start:stop],
                        headers=headers[start:stop],
                    )
                else:
                    records = [
                        Record(offsets[n], times[n], key=keys[n], value=values[n], headers=headers[n])
                        for n in range(start, stop)
                    ]
                    data = build_batch(records, codec=self._codec if self._codec in CODECS else "none")
                    info = self._log.append_batches(data, assign_offsets=False)
                self.size += info.size
                start, size = stop, 0
        self.records += len(values)

    def close(self) -> None:
        """Puts everything on disk. The log ends where its source ends."""
        stop = self._target.stop
        if stop is not None and self._log.end_offset < stop:
            self._log.append_batches(build_batch([], base_offset=stop - 1), assign_offsets=False)
        self._log.close()

    def abandon(self) -> None:
        """Removes it: the task failed."""
        self._log.close()
        shutil.rmtree(self.directory.parent, ignore_errors=True)


CODECS = ("gzip", "snappy", "lz4", "zstd")
