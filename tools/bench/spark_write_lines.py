"""Writing with Spark: kstore's sink beside Parquet, of the same rows.

Each task reads its 1,000,000 rows from a Parquet table, at the same cost for both. When a write to kstore returns, all
of it is on disk and committed. What Spark writes as Parquet is compressed with snappy, and not synced.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import kstore
from tools.bench.logs import fresh
from tools.bench.measure import MILLION, Line, Run, all_in_turn, seconds_of
from tools.bench.spark_lines import CORES, ROUNDS_MAX, WARM_UP, Source, session, share
from tools.bench.spark_logs import BATCH_COUNT, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_ROWS = int(MILLION)
WRITE_MIN = 0.7
COLUMNS = ("key", "value", "timestamp")


def spark_write(run: Run) -> list[Line]:
    """A task for each core."""
    rows, rounds = CORES * TASK_ROWS, min(run.rounds, ROUNDS_MAX)
    with fresh(run.root, "spark") as root, session(run.root) as found:
        frame = frame_of(found, root, tasks=CORES, task_rows=TASK_ROWS)
        writes: dict[str, Callable[[], float]] = {
            "parquet": lambda: write_parquet(frame(), root / "out.parquet"),
            "plain": lambda: write_kstore(frame(), root / "store", CORES, "none"),
            "zstd": lambda: write_kstore(frame(), root / "store", CORES, "zstd"),
        }
        taken = all_in_turn(list(writes.values()), rounds=rounds, warm_up=WARM_UP)
    seconds = {name: statistics.median(each) for name, each in zip(writes, taken, strict=True)}
    return [
        share("a write of 1,000,000 rows a task", "plain", "parquet", seconds, rows, WRITE_MIN),
        share("the same, compressed with zstd", "zstd", "parquet", seconds, rows, WRITE_MIN),
    ]


def frame_of(found: SparkSession, root: Path, *, tasks: int, task_rows: int) -> Callable[[], DataFrame]:
    """Creates the frame to write, with the rows of a Parquet table that this writes below ``root``."""
    log, table = root / "source" / "orders-0", str(root / "source.parquet")
    fill(log, tasks * task_rows // BATCH_COUNT)
    # As many splits, and so files, as tasks.
    split = Source(found, log).load(COLUMNS, maxRecordsPerPartition=task_rows, maxPartitionBytes="1g")
    split.write.parquet(table)
    return lambda: found.read.parquet(table).coalesce(tasks)


def write_parquet(frame: DataFrame, path: Path) -> float:
    shutil.rmtree(path, ignore_errors=True)
    return seconds_of(lambda: frame.write.parquet(str(path)))


def write_kstore(frame: DataFrame, path: Path, partitions: int, codec: str) -> float:
    shutil.rmtree(path, ignore_errors=True)
    with kstore.open(path) as store:
        store.create_topic("orders", partitions)
    writer = frame.write.format("kstore").mode("append").options(topic="orders", compressionType=codec)
    return seconds_of(lambda: writer.save(str(path.absolute())))
