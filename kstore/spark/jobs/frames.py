"""Records of logs as DataFrames for jobs that rewrite them: the data source's columns, and a stable order.

A job that writes a store copies timestamps as Kafka's milliseconds, since Spark's own type does not hold all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from kstore.errors import FileMissingError
from kstore.files.paths import LOG_SUFFIX, segment_name
from kstore.files.remote import open_remote
from kstore.record.headers import walk_headers
from kstore.scan.visits import whole_batches
from kstore.spark.jobs.logs import Stretch, readable, segments_of, stretches_of
from kstore.spark.jobs.spread import TASK_BYTES, grouped, spread, spread_objects
from kstore.spark.places import LogPlace, open_place
from kstore.spark.schema import arrow_schema, place_columns, spark_schema
from kstore.spark.timestamps import Timestamps, first_out_of_range
from kstore.types import NO_TIMESTAMP, IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# The latest time of a partition's records up to this one: partitions mix by it, and each keeps its own order.
ORDER_TIME = "orderTime"


class Range(NamedTuple):
    """Offsets ``start`` to ``stop`` of a log: all of it that can be read."""

    place: LogPlace
    start: int
    stop: int


class _Reading(NamedTuple):
    """A stretch, and the latest time before it."""

    stretch: Stretch
    before_ms: int


def ranges_of(
    places: Sequence[LogPlace], storage_options: Mapping[str, Any], isolation_level: IsolationLevel
) -> list[Range]:
    """What can be read of each log, fixed now. Raises: StorageError, NotALogError."""
    return [Range(place, *readable(place, storage_options, isolation_level)) for place in places]


def frame_of(
    spark: SparkSession,
    ranges: Sequence[Range],
    columns: Sequence[str],
    *,
    isolation_level: IsolationLevel,
    storage_options: Mapping[str, Any],
    timestamps_ms: bool = False,
    with_order_time: bool = False,
    task_bytes: int = TASK_BYTES,
) -> DataFrame:
    """The records of ``ranges`` with ``columns`` of the data source's, and ORDER_TIME (ms) if requested.

    Keys of headers are binary. With ``timestamps_ms`` a timestamp is a bigint; otherwise it has Spark's type, and a
    task raises InvalidRecordError at one that does not fit.
    """
    stretches = [
        stretch
        for each in ranges
        for stretch in stretches_of(each.place, storage_options, each.start, each.stop, size_max=task_bytes)
    ]
    readings = [_Reading(stretch, NO_TIMESTAMP) for stretch in stretches]
    if with_order_time:
        groups = grouped(stretches, lambda stretch: stretch.size, task_bytes)
        latest = spread_objects(spark, groups, partial(_latest_time, dict(storage_options)))
        readings = _with_times(stretches, latest)
    work = partial(_read, tuple(columns), isolation_level, dict(storage_options), timestamps_ms, with_order_time)
    types = {field.name: field.dataType.simpleString() for field in _schema(columns)}
    if timestamps_ms and "timestamp" in types:
        types["timestamp"] = "bigint"
    schema = ", ".join(f"{name} {type_}" for name, type_ in types.items())
    if with_order_time:
        schema += f", {ORDER_TIME} bigint"
    return spread(spark, grouped(readings, lambda each: each.stretch.size, task_bytes), work, schema)


def _schema(columns: Sequence[str]) -> StructType:
    """A job copies the keys of headers as they are."""
    return spark_schema(columns, header_keys="binary")


def _with_times(stretches: Sequence[Stretch], latest: Sequence[int]) -> list[_Reading]:
    readings: list[_Reading] = []
    before: dict[LogPlace, int] = {}
    for stretch, time in zip(stretches, latest, strict=True):
        known = before.get(stretch.place, NO_TIMESTAMP)
        readings.append(_Reading(stretch, known))
        before[stretch.place] = max(known, time)
    return readings


def _latest_time(storage_options: dict[str, Any], stretch: Stretch) -> int:
    """In a task: the latest time of a stretch, from the headers of its batches."""
    location = open_remote(stretch.place.url, storage_options=storage_options)
    latest = NO_TIMESTAMP
    for segment in segments_of(location):
        if not stretch.start < segment.offset_stop or segment.base_offset >= stretch.stop:
            continue
        try:
            file = location.reading.open(f"{location.path}/{segment_name(segment.base_offset, LOG_SUFFIX)}")
        except FileMissingError:
            continue  # retention deleted it: reading will report that
        headers = walk_headers(file, file.size(), next_offset=segment.base_offset, offset_stop=segment.offset_stop)
        latest = max(latest, max((batch.max_timestamp for _, batch in whole_batches(headers)), default=latest))
    return latest


def _read(
    columns: tuple[str, ...],
    isolation_level: IsolationLevel,
    storage_options: dict[str, Any],
    timestamps_ms: bool,
    with_order_time: bool,
    reading: _Reading,
) -> Iterator[pa.RecordBatch]:
    """In a task: one stretch."""
    stretch, before_ms = reading
    place = stretch.place
    schema = arrow_schema(_schema(columns))
    if timestamps_ms and "timestamp" in columns:
        schema = schema.set(schema.get_field_index("timestamp"), pa.field("timestamp", pa.int64()))
    timestamps = Timestamps(place, "clamp" if timestamps_ms or "timestamp" not in columns else "error")
    names = [name for name in columns if name not in ("topic", "partition")]
    if with_order_time and "timestamp" not in names:
        names.append("timestamp")
    with open_place(place, storage_options) as log:
        first_bad = partial(first_out_of_range, log, stretch.start, stretch.stop, isolation_level)
        for batch in log.to_arrow_batches(
            stretch.start,
            stretch.stop,
            columns=names or ["offset"],
            isolation_level=isolation_level,
            header_keys="binary",
            timestamp_unit="ms" if timestamps_ms else "us",
            max_records=20_000,
        ):
            timestamps.checked(batch, first_bad)
            found = {name: batch.column(name) for name in names}
            found |= place_columns(place.topic, place.partition, batch.num_rows)
            arrays = [found[name].cast(schema.field(name).type) for name in columns]
            if not with_order_time:
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                continue
            times = found["timestamp"].cast(pa.int64()).to_numpy()
            if not timestamps_ms:
                times = times // 1000
            order = np.maximum.accumulate(np.maximum(times, before_ms))
            before_ms = int(order[-1]) if len(order) else before_ms
            fields = schema.append(pa.field(ORDER_TIME, pa.int64()))
            yield pa.RecordBatch.from_arrays([*arrays, pa.array(order, pa.int64())], schema=fields)
