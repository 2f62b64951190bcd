"""The Spark benchmark: every way reads the same records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kstore
from tools.bench.spark_lines import fill_all, frames_of
from tools.bench.spark_logs import BATCH_COUNT, FIRST_MS, fill
from tools.bench.spark_write_lines import frame_of, write_kstore, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 20
RECORDS = BATCHES * BATCH_COUNT


@pytest.mark.long
def test_every_way_reads_the_same_records(spark: SparkSession, tmp_path: Path) -> None:
    fill_all(tmp_path, BATCHES)
    frames = frames_of(spark, tmp_path, RECORDS)
    found = {
        name: tuple(frame().selectExpr("count(*)", "sum(offset)").first() or ())
        for name, frame in frames.items()
        if not name.startswith("aggregate")
    }
    whole = (RECORDS, sum(range(RECORDS)))
    kept = (RECORDS // 100, sum(range(RECORDS // 2, RECORDS // 2 + RECORDS // 100)))
    assert found == {name: kept if name.startswith("filter") else whole for name in found}
    assert frames["aggregate"]().collect() == frames["aggregate, parquet"]().collect()


@pytest.mark.long
def test_what_is_written_are_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    frame = frame_of(spark, tmp_path, tasks=2, task_rows=3000)
    assert frame().rdd.getNumPartitions() == 2
    write_parquet(frame(), tmp_path / "out.parquet")
    write_kstore(frame(), tmp_path / "store", 2, "zstd")
    columns = ["key", "value", "timestamp"]
    theirs, ours = (
        spark.read.format(kind).load(str(tmp_path / name)).select(columns)
        for kind, name in (("parquet", "out.parquet"), ("kstore", "store"))
    )
    assert theirs.count() == ours.count() == 6000
    assert theirs.exceptAll(ours).count() == 0


@pytest.mark.long
def test_a_log_has_batches_of_the_size_that_is_measured(tmp_path: Path) -> None:
    for count in (10, 1000, 2000):
        fill(tmp_path / f"of-{count}-0", 4, batch_count=count, roll_after=2)
        fill(tmp_path / f"of-{count}-0", 1, batch_count=count, start=4)
        with kstore.Log(tmp_path / f"of-{count}-0", read_only=True) as log:
            assert [record.timestamp - FIRST_MS for record in log.read()] == list(range(5000))
            assert {len(list(batch.records())) for batch in log.fetch(0, 1 << 20).batches()} == {count}
