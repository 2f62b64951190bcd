"""``repartition``: a topic with another number of partitions, in a new store; keys go where Kafka's clients send them.

Records of one old partition keep their order, so those of a key do; records of several mix by time. Offsets are new.
Records without a key go in runs to all partitions in turn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kstore.errors import ConfigError
from kstore.files.paths import TopicPartition
from kstore.producer.partitioner import partition_for_key
from kstore.rules.deprecated import deprecated
from kstore.rules.topics import PARTITIONS_MAX
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
from kstore.spark.jobs.frames import ORDER_TIME, frame_of, ranges_of
from kstore.spark.jobs.logs import places_of
from kstore.spark.jobs.rewrite import SLOT, PartitionToWrite, Written, check_out, write_store, written_fields
from kstore.spark.schema import COLUMNS
from kstore.types import IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["main", "repartition", "slot_of"]

# In docs/spark.md.
RECIPE = "Another number of partitions"
# How many consecutive records without a key go into one partition: batches stay large.
KEYLESS_RUN = 1000
TYPES = {
    "key": "binary",
    "value": "binary",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "bigint",
    "headers": "array<struct<key: binary, value: binary>>",
    ORDER_TIME: "bigint",
}

EXAMPLES = """
examples:
  kstore spark repartition --topic orders --partitions 12 data/ wider/
  kstore spark repartition --topic orders --partitions 12 --config compression_type=zstd data/ wider/
  spark-submit kstore/spark/jobs/repartition.py --topic orders --partitions 12 data/ wider/

exit status:
  0  done
  1  it failed: nothing is left at OUT
  2  bad usage
"""


def _repartition(
    spark: SparkSession,
    urls: Sequence[str],
    out: str,
    *,
    topic: str,
    partitions: int,
    isolation_level: IsolationLevel = "read_committed",
    settings: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Written]:
    """Deprecated. Writes ``topic`` of the logs at ``urls`` as the new store ``out`` with ``partitions`` partitions.

    Timestamps stay and become the records' creation times; ``settings`` are the new topic's own.

    Raises: ConfigError; and as ``rewrite.write_store``.
    """
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise ConfigError(f"partitions is {partitions}, expected 1 to {PARTITIONS_MAX}")
    options = dict(storage_options or {})
    path = check_out(out)
    ranges = ranges_of(places_of(urls, options, [topic]), options, isolation_level)
    frame = frame_of(
        spark,
        ranges,
        [name for name in COLUMNS if name in TYPES],
        isolation_level=isolation_level,
        storage_options=options,
        timestamps_ms=True,
        with_order_time=True,
    )
    schema = ", ".join(f"{name} {TYPES[name]}" for name in frame.columns) + f", {SLOT} int"
    slotted = frame.mapInArrow(partial(_with_slots, partitions), schema)
    targets = [PartitionToWrite(TopicPartition(topic, number)) for number in range(partitions)]
    return write_store(slotted, path, targets, [ORDER_TIME, "partition", "offset"], dict(settings or {}))


repartition = deprecated("kstore.spark.jobs.repartition.repartition", instead(RECIPE), _repartition)


def slot_of(key: bytes | None, partition: int, offset: int, partitions: int) -> int:
    """The new partition of a record that was at ``offset`` of ``partition``."""
    if key is not None:
        return partition_for_key(key, partitions)
    return (offset // KEYLESS_RUN + partition) % partitions


def _with_slots(partitions: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task."""
    for batch in batches:
        rows = zip(*(batch.column(name).to_pylist() for name in ("key", "partition", "offset")), strict=True)
        slots = [slot_of(key, partition, offset, partitions) for key, partition, offset in rows]
        yield batch.append_column(SLOT, pa.array(slots, pa.int32()))


# --- the command ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "repartition", "Deprecated: rewrite a topic of the logs at PATHS as the new store OUT.", EXAMPLES
    )
    add = parser.add_argument
    add("out", metavar="OUT", help="A directory that does not exist.")
    add("--topic", required=True, help="Which topic.")
    add("--partitions", type=int, required=True, metavar="N", help="The new number of partitions.")
    add_isolation_level(parser)
    add_config(parser, "new topic")
    return parser


def _prepared(options: argparse.Namespace) -> Work:
    if not 1 <= options.partitions <= PARTITIONS_MAX:
        raise ConfigError(f"--partitions is {options.partitions}, expected 1 to {PARTITIONS_MAX}")
    given = storage_options(options)
    places_of(options.paths, given, [options.topic])
    check_out(options.out)
    note_deprecated("kstore spark repartition", RECIPE)
    settings = settings_of("--config", options.config)

    def work(spark: SparkSession) -> int:
        written = _repartition(
            spark,
            options.paths,
            options.out,
            topic=options.topic,
            partitions=options.partitions,
            isolation_level=options.isolation_level,
            settings=settings,
            storage_options=given,
        )
        for each in written:
            if options.format == "text":
                print(f"{each.owner}: {each.records:,} records, {each.size:,} bytes")
        summary(options.format, "repartition", written_fields(written, options.out))
        return OK

    return work


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; the exit status."""
    return run(_parser(), arguments, _prepared)


if __name__ == "__main__":
    # Imported by name, so that executors find pickled functions by their module.
    from kstore.spark.jobs import repartition as job

    sys.exit(job.main())
