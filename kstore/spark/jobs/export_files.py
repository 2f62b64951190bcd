"""The work of an ``export`` task: the records of one stretch to Parquet files, one or more for each date or hour."""

from __future__ import annotations

import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kstore.files.remote import OBJECT_STORES, Location, open_remote
from kstore.spark.jobs.export_state import STATE_DIRECTORY, ExportedFile, Planned, Receipt, file_name, write_receipt
from kstore.spark.places import LogPlace, open_place
from kstore.spark.schema import arrow_schema, place_columns, spark_schema
from kstore.spark.timestamps import Timestamps, first_out_of_range
from kstore.types import CorruptRange, IsolationLevel, OnCorrupt

By = Literal["none", "date", "hour"]

HOUR_US = 3_600_000_000
UNIT_US = {"date": 24 * HOUR_US, "hour": HOUR_US}
# Hive's name for no value: for records without a timestamp, and for times outside the calendar.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS_MAX_US = int((datetime(9999, 12, 31, 23, tzinfo=UTC) - EPOCH) / timedelta(microseconds=1))
# Records of many days in one stretch must not use all files that a process may have open.
OPEN_FILES_MAX = 64
ROW_GROUP_RECORDS = 1 << 17
COPY_BYTES = 8 << 20


class ExportTask(NamedTuple):
    """Stretch ``number`` of run ``run``, and how it is written."""

    run: int
    number: int
    planned: Planned
    place: LogPlace
    out: str
    columns: tuple[str, ...]
    by: By
    isolation_level: IsolationLevel
    on_corrupt: OnCorrupt
    compression: str
    storage_options: dict[str, Any]
    out_storage_options: dict[str, Any]


def export_stretch(task: ExportTask) -> Receipt:
    """Writes the files of a stretch, moves them to their places, and then writes the receipt.

    A repetition replaces the files with ones of the same records. Raises: CorruptBatchError with ``on_corrupt``
    "raise", OffsetOutOfRangeError if records were removed since planning; StorageError.
    """
    out = open_remote(task.out, storage_options=task.out_storage_options)
    with tempfile.TemporaryDirectory(prefix="kstore-export-") as scratch:
        files = _Files(Path(scratch), task)
        corrupt = _write(task, files)
        done = [_put(out, task.planned, each) for each in files.close()]
    receipt = Receipt(task.number, done, corrupt)
    write_receipt(out, task.run, receipt)
    return receipt


def _write(task: ExportTask, files: _Files) -> list[str]:
    """Reads the stretch; returns the skipped damage."""
    wanted = [name for name in task.columns if name not in ("topic", "partition")]
    names = wanted if task.by == "none" or "timestamp" in wanted else [*wanted, "timestamp"]
    with open_place(task.place, task.storage_options) as log:
        batches = log.to_arrow_batches(
            task.planned.start,
            task.planned.stop,
            columns=names or ["offset"],
            isolation_level=task.isolation_level,
            on_corrupt=task.on_corrupt,
            timestamp_unit="us",
        )
        timestamps = Timestamps(task.place, "error" if "timestamp" in wanted else "clamp")
        first_bad = partial(first_out_of_range, log, task.planned.start, task.planned.stop, task.isolation_level)
        for batch in batches:
            timestamps.checked(batch, first_bad)
            for directory, rows in by_time(batch, task.by):
                files.add(directory, rows)
        return [_line(lost) for lost in batches.corrupt]


def _line(lost: CorruptRange) -> str:
    return f"{lost.path} at position {lost.position}, offsets {lost.first} to {lost.last}: {lost.reason}"


def by_time(batch: pa.RecordBatch, by: By) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each date, or hour, with their directory; their order is kept."""
    if by == "none" or not batch.num_rows:
        yield "", batch
        return
    times = batch.column("timestamp").cast(pa.int64()).to_numpy()
    units = np.where((times < 0) | (times >= YEARS_MAX_US), -1, times // UNIT_US[by])
    borders = np.flatnonzero(np.diff(units)) + 1
    found = np.unique(units)
    if len(found) == len(borders) + 1:
        # The usual case: times increase, and a batch covers one or two hours.
        starts = [0, *borders.tolist()]
        for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            yield directory_of(int(units[start]), by), batch.slice(start, stop - start)
        return
    for unit in found.tolist():
        yield directory_of(unit, by), batch.filter(pa.array(units == unit))


def directory_of(unit: int, by: By) -> str:
    """The directory of the ``unit``-th date or hour since 1970, as Hive, Spark and Delta name partitions."""
    if unit < 0:
        return f"date={NO_VALUE}" + (f"/hour={NO_VALUE}" if by == "hour" else "")
    time = EPOCH + timedelta(microseconds=unit * UNIT_US[by])
    return f"date={time:%Y-%m-%d}" + (f"/hour={time.hour}" if by == "hour" else "")


class _Written(NamedTuple):
    """A file that is being written, for ``directory`` of the export."""

    path: Path
    directory: str
    part: int
    rows: int


class _Open:
    """A Parquet file that is being written."""

    def __init__(self, path: Path, directory: str, part: int, schema: pa.Schema, compression: str) -> None:
        self.path = path
        self.directory = directory
        self.part = part
        self.rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, compression=compression)

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self.rows += rows.num_rows
        if self._waiting_rows >= ROW_GROUP_RECORDS or sum(each.nbytes for each in self._waiting) >= COPY_BYTES * 4:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting, self._waiting_rows = [], 0

    def close(self) -> _Written:
        self._flush()
        self._writer.close()
        return _Written(self.path, self.directory, self.part, self.rows)


class _Files:
    """The files of one stretch, in a directory of the task's own."""

    def __init__(self, scratch: Path, task: ExportTask) -> None:
        self._scratch = scratch
        self._task = task
        self._schema = arrow_schema(spark_schema(task.columns))
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._written: list[_Written] = []
        self._parts: dict[str, int] = {}

    def add(self, directory: str, rows: pa.RecordBatch) -> None:
        file = self._open.pop(directory, None)
        if file is None:
            if len(self._open) == OPEN_FILES_MAX:
                self._written.append(self._open.popitem(last=False)[1].close())
            part = self._parts.get(directory, 0)
            self._parts[directory] = part + 1
            path = self._scratch / f"{len(self._written) + len(self._open)}.parquet"
            file = _Open(path, directory, part, self._schema, self._task.compression)
        self._open[directory] = file
        file.add(self._completed(rows))

    def _completed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Adds the requested columns, in their order."""
        place = self._task.place
        more = place_columns(place.topic, place.partition, rows.num_rows)
        columns = [more[name] if name in more else rows.column(name) for name in self._task.columns]
        types = [field.type for field in self._schema]
        return pa.RecordBatch.from_arrays(
            [column.cast(kind) for column, kind in zip(columns, types, strict=True)], schema=self._schema
        )

    def close(self) -> Sequence[_Written]:
        while self._open:
            self._written.append(self._open.popitem(last=False)[1].close())
        return self._written


def _put(out: Location, planned: Planned, written: _Written) -> ExportedFile:
    """Moves a file to its place, atomically."""
    fs = out.fs
    name = file_name(planned, written.part)
    target = out / written.directory / name if written.directory else out / name
    fs.make_dirs(target.path.parent)
    if out.local is None and out.url.partition("://")[0] in OBJECT_STORES:
        # An upload there is invisible until its end.
        size = fs.put(target.path, _chunks(written.path))
    else:
        # Not next to its place: readers would take the rest of a killed task for a file of records.
        waiting = out / STATE_DIRECTORY / f"{name}.{uuid.uuid4().hex}"
        size = fs.put(waiting.path, _chunks(written.path))
        fs.rename(waiting.path, target.path)
        if out.local is not None:
            out.local.sync_dir(target.path.parent)
    path = f"{written.directory}/{name}" if written.directory else name
    return ExportedFile(path, written.rows, size)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(COPY_BYTES):
            yield chunk
