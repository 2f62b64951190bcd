"""``export``: the records of logs as Parquet files by date or hour, each once, however often it is stopped and rerun.

The directories are named as Hive's, so Spark reads the whole as one table with the columns ``date`` and ``hour``, and
Delta Lake takes it over unchanged. A run exports what is new since the last one. For its bookkeeping see
``export_state``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from kstore.errors import ConfigError, DataLossError, OffsetOutOfRangeError
from kstore.files.remote import open_remote
from kstore.spark.jobs.command import (
    DAMAGED,
    OK,
    Work,
    add_isolation_level,
    job_parser,
    key_values,
    run,
    size_of,
    storage_options,
    summary,
)
from kstore.spark.jobs.export_files import By, ExportTask, export_stretch
from kstore.spark.jobs.export_state import ExportState, Planned
from kstore.spark.jobs.logs import local_or_url, places_of, readable, stretches_of
from kstore.spark.jobs.spread import TASK_BYTES, grouped, spread_objects
from kstore.spark.option_values import to_columns
from kstore.spark.places import LogPlace
from kstore.spark.schema import COLUMNS, spark_schema
from kstore.types import IsolationLevel, OnCorrupt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Export", "export", "main"]

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")

EXAMPLES = """
examples:
  kstore spark export --by date data/ lake/              run it again to add new records
  kstore spark export --by hour --topic orders --columns offset,timestamp,value data/ hdfs://name-node:8020/lake
  spark-submit kstore/spark/jobs/export.py --by date data/ lake/

The result is a table: spark.read.parquet("lake/"). For Delta Lake:
  CONVERT TO DELTA parquet.`lake/` PARTITIONED BY (date DATE)                --by date
  CONVERT TO DELTA parquet.`lake/` PARTITIONED BY (date DATE, hour INT)      --by hour

A stopped run continues where it was when it is started again with the same options.

exit status:
  0  everything up to the logs' ends is exported
  1  damage was skipped (--on-corrupt skip); or it failed, and another run continues
  2  bad usage
"""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How records are exported; raises ConfigError for an invalid combination."""

    by: By = "date"
    columns: tuple[str, ...] = COLUMNS
    isolation_level: IsolationLevel = "read_committed"
    on_corrupt: OnCorrupt = "raise"
    compression: str = "zstd"
    topics: tuple[str, ...] = ()
    fail_on_data_loss: bool = True
    task_bytes: int = TASK_BYTES

    def __post_init__(self) -> None:
        spark_schema(self.columns)
        for name, value, known in (
            ("by", self.by, get_args(By)),
            ("isolation_level", self.isolation_level, get_args(IsolationLevel)),
            ("on_corrupt", self.on_corrupt, ("raise", "skip")),
            ("compression", self.compression, COMPRESSIONS),
        ):
            if value not in known:
                raise ConfigError(f"{name} is {value!r}, expected one of {', '.join(map(repr, known))}")

    def kept(self) -> dict[str, Any]:
        """The settings that all runs of an export must share."""
        return {
            "by": self.by,
            "columns": list(self.columns),
            "isolation_level": self.isolation_level,
            "topics": sorted(self.topics),
        }


class Export(NamedTuple):
    """The results of a run. ``resumed`` of its stretches were done before; ``corrupt``: the skipped damage, a line
    each."""

    run: int
    stretches: int
    resumed: int
    files: int
    records: int
    size: int
    corrupt: list[str]
    lost: list[str]


def export(
    spark: SparkSession,
    urls: Sequence[str],
    out: str,
    options: ExportOptions | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    out_storage_options: Mapping[str, Any] | None = None,
) -> Export:
    """Exports what the logs at ``urls`` have and ``out`` lacks; first completes an earlier run.

    Raises: ConfigError; LockedError if another export works in ``out``; DataLossError if records were removed before
    they were exported; NotALogError, StorageError. An error in a task is pyspark's PythonException.
    """
    options = options or ExportOptions()
    from_options, to_options = dict(storage_options or {}), dict(out_storage_options or {})
    places = {(each.topic, each.partition): each for each in places_of(urls, from_options, options.topics)}
    out = local_or_url(out)
    state = ExportState(open_remote(out, storage_options=to_options))
    lost: list[str] = []
    try:
        state.begin(options.kept())
        if state.plan is None:
            plan = _plan(places.values(), state.next_offsets, options, from_options, lost)
            if not plan:
                return Export(state.run, 0, 0, 0, 0, 0, [], lost)
            state.fix(plan)
        assert state.plan is not None, "it was just made"
        tasks = []
        for number, planned in enumerate(state.plan):
            place = places.get((planned.topic, planned.partition))
            if number in state.receipts:
                continue
            if place is None:
                raise ConfigError(
                    f"{planned.topic}-{planned.partition} is missing, although an export of it was started"
                )
            tasks.append(
                ExportTask(
                    state.run,
                    number,
                    planned,
                    place,
                    out,
                    options.columns,
                    options.by,
                    options.isolation_level,
                    options.on_corrupt,
                    options.compression,
                    from_options,
                    to_options,
                )
            )
        done = spread_objects(spark, grouped(tasks, lambda task: task.planned.size, options.task_bytes), export_stretch)
        receipts = {**state.receipts, **{receipt.number: receipt for receipt in done}}
        number, resumed = state.run, len(state.receipts)
        state.commit(receipts)
    finally:
        state.end()
    files = [file for receipt in receipts.values() for file in receipt.files]
    return Export(
        number,
        len(receipts),
        resumed,
        len(files),
        sum(file.rows for file in files),
        sum(file.size for file in files),
        [line for _, receipt in sorted(receipts.items()) for line in receipt.corrupt],
        lost,
    )


def _plan(
    places: Iterable[LogPlace],
    next_offsets: Mapping[tuple[str, int], int],
    options: ExportOptions,
    from_options: Mapping[str, Any],
    lost: list[str],
) -> list[Planned]:
    """The stretches from the end of the last run; what retention has removed before is an error, or goes to
    ``lost``."""
    plan: list[Planned] = []
    for place in places:
        known = next_offsets.get((place.topic, place.partition))
        start, end = readable(place, from_options, options.isolation_level)
        begin = start if known is None else known
        if begin > end:
            raise OffsetOutOfRangeError(begin, start_offset=start, end_offset=end)
        if begin < start:
            text = f"{place.topic}-{place.partition}: offsets {begin} to {start - 1} were removed before their export"
            if options.fail_on_data_loss:
                raise DataLossError(f"{text}; --allow-data-loss continues without them")
            lost.append(text)
        found = stretches_of(place, from_options, max(begin, start), end, size_max=options.task_bytes)
        plan += [Planned(place.topic, place.partition, each.start, each.stop, each.size) for each in found]
    return plan


# --- the command ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("export", "Write the records of the logs at PATHS to Parquet files in OUT.", EXAMPLES)
    add = parser.add_argument
    add("out", metavar="OUT", help="The directory of the export; local, or a URL.")
    add("--by", choices=get_args(By), default="date", help="A directory for each date, or date and hour, in UTC.")
    add("--topic", action="append", default=[], help="This topic; repeatable. Default: all.")
    add("--columns", metavar="NAME,...", default=",".join(COLUMNS), help="Which columns.")
    add_isolation_level(parser)
    add("--on-corrupt", choices=("raise", "skip"), default="raise", help="At damage: stop, or continue after it.")
    add("--allow-data-loss", action="store_true", help="Continue if records were removed before they were exported.")
    add("--compression", choices=COMPRESSIONS, default="zstd", help="The codec of Parquet.")
    add("--task-size", metavar="SIZE", default="128m", help="How much of the logs a task, and its files, cover.")
    add(
        "--out-storage-option", action="append", default=[], metavar="KEY=VALUE", help="Like --storage-option, for OUT."
    )
    return parser


def _prepared(options: argparse.Namespace) -> Work:
    wanted = ExportOptions(
        by=cast(By, options.by),
        columns=to_columns("--columns", options.columns),
        isolation_level=options.isolation_level,
        on_corrupt=options.on_corrupt,
        compression=options.compression,
        topics=tuple(options.topic),
        fail_on_data_loss=not options.allow_data_loss,
        task_bytes=size_of("--task-size", options.task_size),
    )
    from_options = storage_options(options)
    to_options: dict[str, Any] = dict(key_values("--out-storage-option", options.out_storage_option))
    places_of(options.paths, from_options, wanted.topics)
    open_remote(options.out, storage_options=to_options)

    def work(spark: SparkSession) -> int:
        done = export(
            spark, options.paths, options.out, wanted, storage_options=from_options, out_storage_options=to_options
        )
        for line in [*done.lost, *done.corrupt]:
            print(f"lost: {line}", file=sys.stderr)
        fields = {
            "run": done.run,
            "stretches": done.stretches,
            "done_before": done.resumed,
            "files": done.files,
            "records": done.records,
            "bytes": done.size,
            "damages": len(done.corrupt),
        }
        summary(options.format, "export", fields)
        return DAMAGED if done.corrupt else OK

    return work


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; the exit status."""
    return run(_parser(), arguments, _prepared)


if __name__ == "__main__":
    # Imported by name, so that executors find pickled functions by their module.
    from kstore.spark.jobs import export as job

    sys.exit(job.main())
