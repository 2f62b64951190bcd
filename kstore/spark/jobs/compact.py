"""``compact``: the last record of each key, as new logs next to the old ones; deprecated: as a DataFrame, as Parquet.

Keys are those of one partition, as everywhere in Kafka. The last record of a key is found from keys and offsets alone;
values move once. New logs keep the offsets and have the old start and end, so consumers' positions hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kstore.rules.deprecated import deprecated
from kstore.spark.jobs.command import (
    OK,
    Work,
    add_config,
    add_isolation_level,
    instead,
    job_parser,
    note_deprecated,
    run,
    settings_of,
    storage_options,
    summary,
)
from kstore.spark.jobs.frames import Range, frame_of, ranges_of
from kstore.spark.jobs.logs import local_or_url, places_of
from kstore.spark.jobs.rewrite import SLOT, PartitionToWrite, Written, check_out, write_store, written_fields
from kstore.spark.schema import COLUMNS
from kstore.types import IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["compact", "compact_into", "main"]

# In docs/spark.md.
RECIPE = "The last record of each key"

EXAMPLES = """
examples:
  kstore spark compact --topic customers data/ compacted/
  spark-submit kstore/spark/jobs/compact.py data/ compacted/

"kstore compact" does it in place, for logs that one machine can handle.

exit status:
  0  done
  1  it failed: nothing is left at OUT
  2  bad usage
"""


def _compact(
    spark: SparkSession,
    urls: Sequence[str],
    *,
    topics: Sequence[str] = (),
    isolation_level: IsolationLevel = "read_committed",
    keep_tombstones: bool = False,
    keep_keyless: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Deprecated. The last record of each key of each partition, with all columns of the data source; in no order.

    Args:
        keep_tombstones: keep the last record of a key even if it has no value.
        keep_keyless: keep all records without a key.

    A timestamp that Spark cannot hold is an error of the task that reads it.
    """
    options = dict(storage_options or {})
    ranges = ranges_of(places_of(urls, options, topics), options, isolation_level)
    return _compacted(spark, ranges, isolation_level, keep_tombstones, keep_keyless, options, timestamps_ms=False)


compact = deprecated("kstore.spark.jobs.compact.compact", instead(RECIPE), _compact)


def _compacted(
    spark: SparkSession,
    ranges: Sequence[Range],
    isolation_level: IsolationLevel,
    keep_tombstones: bool,
    keep_keyless: bool,
    options: Mapping[str, Any],
    *,
    timestamps_ms: bool,
) -> DataFrame:
    from pyspark.sql import functions as f

    def frame(columns: Sequence[str]) -> DataFrame:
        return frame_of(
            spark,
            ranges,
            columns,
            isolation_level=isolation_level,
            storage_options=options,
            timestamps_ms=timestamps_ms,
        )

    owner = ["topic", "partition"]
    keys = frame([*owner, "key", "offset"]).where("key is not null")
    last = keys.groupBy(*owner, "key").agg(f.max("offset").alias("offset")).select(*owner, "offset")
    records = frame(COLUMNS)
    # By offsets, which are short, not by keys.
    found = records.where("key is not null").join(last, [*owner, "offset"], "left_semi").select(*COLUMNS)
    if not keep_tombstones:
        found = found.where("value is not null")
    if keep_keyless:
        found = found.unionByName(records.where("key is null"))
    return found


def compact_into(
    spark: SparkSession,
    urls: Sequence[str],
    out: str,
    *,
    topics: Sequence[str] = (),
    isolation_level: IsolationLevel = "read_committed",
    keep_tombstones: bool = False,
    keep_keyless: bool = True,
    settings: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Written]:
    """Writes the last record of each key as the new store ``out``, with the topics and partitions of the old one.

    Raises: as ``rewrite.write_store``.
    """
    options = dict(storage_options or {})
    path = check_out(out)
    ranges = ranges_of(places_of(urls, options, topics), options, isolation_level)
    found = _compacted(spark, ranges, isolation_level, keep_tombstones, keep_keyless, options, timestamps_ms=True)
    targets = [PartitionToWrite(each.place.owner, each.start, each.stop) for each in ranges]
    slots = spark.createDataFrame(
        [(each.place.topic, each.place.partition, number) for number, each in enumerate(ranges)],
        f"topic string, partition int, {SLOT} int",
    )
    from pyspark.sql import functions as f

    return write_store(
        found.join(f.broadcast(slots), ["topic", "partition"]),
        path,
        targets,
        ["offset"],
        dict(settings or {}),
    )


# --- the command ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("compact", "Write the last record of each key in the logs at PATHS to OUT.", EXAMPLES)
    add = parser.add_argument
    add("out", metavar="OUT", help="A directory that does not exist: a new store, or a table.")
    add("--to", choices=("store", "parquet"), default="store", help="The kind of OUT; parquet is deprecated.")
    add("--topic", action="append", default=[], help="This topic; repeatable. Default: all.")
    add_isolation_level(parser)
    add("--keep-tombstones", action="store_true", help="Keep the tombstone of a deleted key.")
    add("--drop-keyless", action="store_true", help="Leave out records without a key; by default they stay.")
    add_config(parser, "new topics")
    return parser


def _prepared(options: argparse.Namespace) -> Work:
    given = storage_options(options)
    places_of(options.paths, given, options.topic)
    settings = settings_of("--config", options.config)
    if options.to == "store":
        check_out(options.out)
    else:
        note_deprecated("kstore spark compact --to parquet", RECIPE)
    shared: dict[str, Any] = {
        "topics": options.topic,
        "isolation_level": options.isolation_level,
        "keep_tombstones": options.keep_tombstones,
        "keep_keyless": not options.drop_keyless,
        "storage_options": given,
    }

    def work(spark: SparkSession) -> int:
        if options.to == "store":
            written = compact_into(spark, options.paths, options.out, settings=settings, **shared)
            summary(options.format, "compact", written_fields(written, options.out))
            return OK
        _compact(spark, options.paths, **shared).write.parquet(local_or_url(options.out))
        records = spark.read.parquet(local_or_url(options.out)).count()
        summary(options.format, "compact", {"records": records, "table": options.out})
        return OK

    return work


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; the exit status."""
    return run(_parser(), arguments, _prepared)


if __name__ == "__main__":
    # Imported by name, so that executors find pickled functions by their module.
    from kstore.spark.jobs import compact as job

    sys.exit(job.main())
