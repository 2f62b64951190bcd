"""``stats``: sizes, rates, and how batches and keys are distributed, over time; a segment a task.

``upkeep.stats`` counts, from the headers of batches alone, or with ``deep`` record by record. A batch counts for the
interval of its latest record.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.errors import ConfigError
from kstore.files.paths import LOG_SUFFIX, segment_name, topic_partition
from kstore.record.batch import Batch
from kstore.spark.jobs.command import DAMAGED, OK, Work, job_parser, note_deprecated, run, storage_options, summary
from kstore.spark.jobs.frames import frame_of, ranges_of
from kstore.spark.jobs.logs import LogAt, Segment, find_all_logs, places_of, segments_of, writer_at_work
from kstore.spark.jobs.spread import TASK_BYTES, grouped, spread_objects
from kstore.spark.option_values import to_duration_ms
from kstore.types import NO_TIMESTAMP
from kstore.upkeep.distribution import Distribution
from kstore.upkeep.stats import RecordStats, Stats, segment_stats
from kstore.upkeep.verify import Finding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SCHEMA", "LogStatistics", "main", "stats"]

# For a log with scattered times, this many intervals are kept apart: memory stays bounded.
INTERVALS_MAX = 100_000

DISTRIBUTION = "struct<min: bigint, p50: bigint, p90: bigint, p99: bigint, max: bigint, mean: double>"
SCHEMA = (
    "topic string, partition int, log string, time timestamp, batches bigint, records bigint, bytes bigint,"
    " records_per_second double, bytes_per_second double,"
    f" batch_bytes {DISTRIBUTION}, batch_records {DISTRIBUTION}, codecs map<string, bigint>,"
    " transactional_batches bigint, aborts bigint,"
    f" keyed bigint, tombstones bigint, key_bytes {DISTRIBUTION}, value_bytes {DISTRIBUTION}"
)

# In docs/spark.md.
RECIPE = "The keys with the most records"

EXAMPLES = """
examples:
  kstore spark stats data/
  kstore spark stats --every 15m --deep --out stats/ data/
  spark-submit kstore/spark/jobs/stats.py data/

exit status:
  0  everything was counted
  1  damage: unreadable data is not counted
  2  bad usage
"""


class _Item(NamedTuple):
    at: LogAt
    segment: Segment
    is_live_end: bool
    every_ms: int
    deep: bool


class _Counted(NamedTuple):
    """The counts of one segment, by the interval's number; -1: without a time."""

    intervals: dict[int, Stats]
    findings: list[Finding]


@dataclass
class LogStatistics:
    """The counts for each log and interval."""

    spark: SparkSession
    every_ms: int
    counted: dict[tuple[str, int], Stats]
    findings: list[Finding]

    @cached_property
    def frame(self) -> DataFrame:
        """A row for each log and interval: SCHEMA. ``time`` is its start; null for data without a time."""
        rows = [
            _row(log, None if number < 0 else number * self.every_ms, self.every_ms, counted)
            for (log, number), counted in sorted(self.counted.items())
        ]
        return self.spark.createDataFrame(rows, SCHEMA)


def stats(
    spark: SparkSession,
    urls: Sequence[str],
    *,
    every_ms: int = 3_600_000,
    deep: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    task_bytes: int = TASK_BYTES,
) -> LogStatistics:
    """Counts the logs at ``urls``, each a log or a directory of logs, in intervals of ``every_ms``.

    Raises: ConfigError, NotALogError, StorageError if a directory cannot be listed.
    """
    if every_ms <= 0:
        raise ConfigError(f"every_ms is {every_ms}, expected 1 or more")
    items = []
    for at in find_all_logs(urls, dict(storage_options or {})):
        location = at.location
        segments = segments_of(location)
        is_live = writer_at_work(location)
        items += [_Item(at, segment, is_live and segment is segments[-1], every_ms, deep) for segment in segments]
    found = spread_objects(spark, grouped(items, lambda item: item.segment.size, task_bytes), _count)
    counted: dict[tuple[str, int], Stats] = {}
    findings: list[Finding] = []
    for item, result in zip(items, found, strict=True):
        findings += result.findings
        for number, part in result.intervals.items():
            counted.setdefault((item.at.shown, number), Stats(item.at.shown)).merge(part)
    return LogStatistics(spark, every_ms, counted, findings)


def _count(item: _Item) -> _Counted:
    """In a task: one segment."""
    location = item.at.location
    segment = item.segment
    path = f"{location.path}/{segment_name(segment.base_offset, LOG_SUFFIX)}"
    intervals: dict[int, Stats] = {}

    def interval_of(batch: Batch) -> Stats:
        number = batch.max_timestamp // item.every_ms if batch.max_timestamp >= 0 else -1
        if number not in intervals and len(intervals) >= INTERVALS_MAX:
            number = -1
        counted = intervals.get(number)
        if counted is None:
            counted = intervals[number] = Stats(path)
            counted.records = RecordStats() if item.deep else None
        return counted

    counted = segment_stats(
        location.reading,
        path,
        base_offset=segment.base_offset,
        offset_stop=segment.offset_stop,
        is_live_end=item.is_live_end,
        part_of=interval_of,
    )
    if counted is None:
        return _Counted(intervals, [Finding("damage", "batch", path, "cannot be read: it has gone")])
    return _Counted(intervals, counted.findings)


def _row(log: str, time_ms: int | None, every_ms: int, counted: Stats) -> tuple[Any, ...]:
    owner = topic_partition(log.rstrip("/").rpartition("/")[2])
    seconds = every_ms / 1000
    records = counted.records
    return (
        owner.topic if owner else None,
        owner.partition if owner else None,
        log,
        _time(time_ms),
        counted.batch_count,
        counted.record_count,
        counted.batch_sizes.sum,
        None if time_ms is None else counted.record_count / seconds,
        None if time_ms is None else counted.batch_sizes.sum / seconds,
        _spread_of(counted.batch_sizes),
        _spread_of(counted.batch_records),
        {name: codec.batch_count for name, codec in sorted(counted.codecs.items())},
        counted.transactional_batch_count,
        counted.abort_count,
        records.keyed_count if records else None,
        records.tombstone_count if records else None,
        _spread_of(records.key_sizes) if records else None,
        _spread_of(records.value_sizes) if records else None,
    )


def _time(time_ms: int | None) -> datetime | None:
    try:
        return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None  # not a year of four digits


def _spread_of(values: Distribution) -> tuple[Any, ...] | None:
    if not values.count:
        return None
    percentiles = [values.percentile(percent) for percent in (50, 90, 99)]
    return (values.minimum, *percentiles, values.maximum, values.sum / values.count)


def top_keys(spark: SparkSession, urls: Sequence[str], count: int, options: Mapping[str, Any]) -> DataFrame:
    """The ``count`` keys of each topic with the most records: topic, key, records, bytes."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    ranges = ranges_of(places_of(urls, options), options, "read_committed")
    frame = frame_of(
        spark, ranges, ["topic", "key", "value"], isolation_level="read_committed", storage_options=options
    )
    read = frame.where("key is not null")
    sizes = f.sum(f.length("key") + f.coalesce(f.length("value"), f.lit(0)))
    keys = read.groupBy("topic", "key").agg(f.count("*").alias("records"), sizes.alias("bytes"))
    order = Window.partitionBy("topic").orderBy(f.desc("records"), "key")
    return keys.withColumn("rank", f.row_number().over(order)).where(f.col("rank") <= count).orderBy("topic", "rank")


# --- the command ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("stats", "Count what the logs at PATHS contain, over time.", EXAMPLES)
    add = parser.add_argument
    add("--every", metavar="DURATION", default="1h", help="The length of an interval: 15m, 1h, 1d.")
    add("--deep", action="store_true", help="Check, decompress and count every record too: keys, values, tombstones.")
    add(
        "--top-keys",
        type=int,
        default=0,
        metavar="N",
        help="Deprecated: also list the N keys of each topic with the most records.",
    )
    add("--out", metavar="DIR", help="Write the table there, as Parquet; by Spark, to any file system.")
    return parser


def _prepared(options: argparse.Namespace) -> Work:
    every_ms = to_duration_ms("--every", options.every)
    if every_ms <= 0:
        raise ConfigError(f"--every is {options.every!r}, expected a time above 0")
    if options.top_keys < 0:
        raise ConfigError(f"--top-keys is {options.top_keys}, expected 0 or more")
    given = storage_options(options)
    find_all_logs(options.paths, given)
    if options.top_keys:
        note_deprecated("kstore spark stats --top-keys", RECIPE)

    def work(spark: SparkSession) -> int:
        found = stats(spark, options.paths, every_ms=every_ms, deep=options.deep, storage_options=given)
        if options.out is not None:
            found.frame.coalesce(1).write.mode("overwrite").parquet(options.out)
        _print_intervals(found, options.format)
        if options.top_keys:
            _print_keys(top_keys(spark, options.paths, options.top_keys, given), options.format)
        for finding in found.findings:
            print(f"damage: {finding.path} at position {finding.position}: {finding.reason}", file=sys.stderr)
        summary(options.format, "stats", _fields(found))
        return DAMAGED if found.findings else OK

    return work


def _print_intervals(found: LogStatistics, form: str) -> None:
    """A line for each interval, over all logs."""
    intervals: dict[int, Stats] = {}
    for (_, number), part in found.counted.items():
        intervals.setdefault(number, Stats("")).merge(part)
    for number, part in sorted(intervals.items()):
        time = "none" if number < 0 else str(_time(number * found.every_ms) or number * found.every_ms)
        if form == "json":
            line = {"type": "interval", "time": time, "batches": part.batch_count, "records": part.record_count}
            print(json.dumps({**line, "bytes": part.batch_sizes.sum}))
        else:
            print(
                f"{time}  {part.record_count:,} records  {part.batch_count:,} batches  {part.batch_sizes.sum:,} bytes"
            )


def _print_keys(keys: DataFrame, form: str) -> None:
    for row in keys.collect():
        key = bytes(row["key"]).decode("utf-8", "backslashreplace")
        if form == "json":
            print(json.dumps({"type": "key", "topic": row["topic"], "key": key, "records": row["records"]}))
        else:
            print(f"{row['topic']}: {row['records']:,} records, {row['bytes']:,} bytes: {key:.100}")


def _fields(found: LogStatistics) -> dict[str, Any]:
    every = Stats("")
    for part in found.counted.values():
        every.merge(part)
    fields: dict[str, Any] = {
        "logs": len({log for log, _ in found.counted}),
        "batches": every.batch_count,
        "records": every.record_count,
        "bytes": every.batch_sizes.sum,
        "batch_bytes_p50": every.batch_sizes.percentile(50),
        "batch_bytes_p99": every.batch_sizes.percentile(99),
        "damages": len(found.findings),
    }
    if every.last_timestamp != NO_TIMESTAMP:
        fields["first_time"], fields["last_time"] = _time(every.first_timestamp), _time(every.last_timestamp)
    if every.records is not None:
        fields["keyed"], fields["tombstones"] = every.records.keyed_count, every.records.tombstone_count
        fields["key_bytes_p50"] = every.records.key_sizes.percentile(50)
        fields["value_bytes_p50"] = every.records.value_sizes.percentile(50)
    return fields


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; the exit status."""
    return run(_parser(), arguments, _prepared)


if __name__ == "__main__":
    # Imported by name, so that executors find pickled functions by their module.
    from kstore.spark.jobs import stats as job

    sys.exit(job.main())
