"""The Spark benchmark: every way reads the same records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.bench.spark_lines import fill_all, frames_of
from tools.bench.spark_logs import BATCH_COUNT

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
