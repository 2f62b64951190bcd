"""Spark on logs that lie on a real HDFS, by hdfs-native and over WebHDFS: batches, streams and jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kstore
from kstore.files.remote import Location, open_remote
from kstore.types import IsolationLevel
from tests.interop.on_hdfs import PARTITIONS, put_broker_s, put_files
from tools.interop.dfs import USER, Dfs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.long]

Row = tuple[Any, ...]


def rows_of(frame: DataFrame) -> list[Row]:
    """The fields of a record, in order."""
    chosen = frame.selectExpr("topic", "partition", "offset", "key", "value", "unix_millis(timestamp)", "timestampType")
    return sorted(
        tuple(bytes(each) if isinstance(each, bytearray) else each for each in row) for row in chosen.collect()
    )


def rows_here(source: Path, isolation_level: IsolationLevel) -> list[Row]:
    rows: list[Row] = []
    for name in PARTITIONS:
        topic, _, partition = name.rpartition("-")
        with kstore.Log(source / name, read_only=True) as log:
            rows += [
                (topic, int(partition), each.offset, each.key, each.value, each.timestamp, kind_of(each))
                for each in log.read(isolation_level=isolation_level)
            ]
    return sorted(rows)


def kind_of(record: kstore.Record) -> int:
    return 1 if record.timestamp_type == "LogAppendTime" else 0


def load(spark: SparkSession, at: Location, **options: str) -> DataFrame:
    return spark.read.format("kstore").options(**options).load(url_of(at))


def url_of(at: Location) -> str:
    return at.fs.url_of(at.path)


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_broker_s_logs_are_the_same_rows_there_as_here(spark: SparkSession, at: Location) -> None:
    source = put_broker_s(at)
    levels: tuple[IsolationLevel, ...] = ("read_uncommitted", "read_committed")
    for level in levels:
        assert rows_of(load(spark, at, isolationLevel=level)) == rows_here(source, level)
    # Through a glob, in splits of a few KiB, and filtered.
    frame = load(spark, at / "*-0", maxPartitionBytes="16k", isolationLevel="read_uncommitted")
    assert frame.rdd.getNumPartitions() > len(PARTITIONS)
    kept = [row for row in rows_here(source, "read_uncommitted") if row[0] == "rolled" and 50 <= row[2] < 90]
    assert kept
    assert rows_of(frame.where("topic = 'rolled' and offset >= 50 and offset < 90")) == kept


def test_storage_options_reach_the_tasks(spark: SparkSession, dfs: Dfs) -> None:
    at = open_remote(f"{dfs.webhdfs}/options")
    source = put_broker_s(at)
    url = f"{dfs.http.replace('http', 'webhdfs', 1)}/options"
    frame = spark.read.format("kstore").option("storage_options.user", USER).load(url)
    assert rows_of(frame) == rows_here(source, "read_committed")


def test_a_missing_directory_is_reported(spark: SparkSession, at: Location) -> None:
    with pytest.raises(Exception, match=r"LogNotFoundError.*nowhere"):
        load(spark, at / "nowhere").count()


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_with_what_came_since(spark: SparkSession, at: Location, tmp_path: Path) -> None:
    def run() -> list[int]:
        query = (
            spark.readStream.format("kstore")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 30)
            .load(url_of(at))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(120)
        return sorted(row.offset for row in spark.read.parquet(str(tmp_path / "out")).select("offset").collect())

    with kstore.Log(tmp_path / "data" / "a-0", segment_bytes=2_000) as log:
        for count in (50, 120):
            for number in range(log.end_offset, count):
                log.append(b"%d" % number * 20)
            put_files(log.path, at / "a-0")
            assert run() == list(range(count))


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_verify_passes_what_is_whole_and_finds_what_is_not(spark: SparkSession, at: Location) -> None:
    from kstore.spark.jobs.verify import verify

    source = put_broker_s(at)
    found = verify(spark, [url_of(at)])
    assert found.is_sound, found.findings
    assert len(found.logs) == len(PARTITIONS)
    assert found.segments.count() == sum(len(list((source / name).glob("*.log"))) for name in PARTITIONS)

    segment = next((source / "lz4-0").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    at.fs.put(at.path / "lz4-0" / segment.name, [data])
    found = verify(spark, [url_of(at)])
    assert not found.is_sound
    report = found.report.where("severity = 'damage'").collect()
    assert report
    assert all(segment.name in row.path and "lz4-0" in row.log for row in report)


def test_export_writes_each_record_once_there(spark: SparkSession, at: Location, tmp_path: Path) -> None:
    from kstore.spark.jobs.export import export

    source = put_broker_s(at / "data")
    wanted = rows_here(source, "read_committed")
    lake = url_of(at / "lake")
    assert export(spark, [url_of(at / "data")], lake).records == len(wanted)
    assert export(spark, [url_of(at / "data")], lake).records == 0
    # Spark itself cannot read webhdfs://, so its files are fetched.
    fetch(at / "lake", tmp_path / "lake")
    frame = spark.read.parquet(str(tmp_path / "lake"))
    assert rows_of(frame) == wanted


def test_an_export_on_hdfs_is_a_table_for_spark(spark: SparkSession, dfs: Dfs) -> None:
    from kstore.spark.jobs.export import export

    at = open_remote(f"{dfs.hdfs}/table")
    source = put_broker_s(at / "data")
    export(spark, [url_of(at / "data")], url_of(at / "lake"))
    assert rows_of(spark.read.parquet(url_of(at / "lake"))) == rows_here(source, "read_committed")


def fetch(source: Location, target: Path) -> None:
    """Copies a tree from HDFS."""
    target.mkdir()
    for name, stat in source.fs.list_stats(source.path).items():
        if stat.is_dir:
            fetch(source / name, target / name)
        else:
            file = source.fs.open(source.path / name)
            (target / name).write_bytes(file.pread(stat.size, 0))
            file.close()
