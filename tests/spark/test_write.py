"""Writes with a real session: written rows are read back, errors have Spark's texts, a stream's rows arrive once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kstore.producer.partitioner import partition_for_key
from kstore.store import Store
from tests.support.lives.spark_sink import committed_values, staged_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with Store(path, background=False) as store:
        store.create_topic("orders", 3)
    return path


def sorted_values(path: Path, topic: str = "orders") -> list[bytes]:
    return sorted(value for values in committed_values(path, topic).values() for value in values if value is not None)


def numbered(spark: SparkSession, count: int, tasks: int = 4) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) as value", "concat('k', id % 10) as key")


def save(frame: DataFrame, path: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("kstore").mode(mode).options(**options).save(str(path))


def test_a_batch_write_is_read_back(spark: SparkSession, path: Path) -> None:
    save(numbered(spark, 5000), path, topic="orders", partitions="9")
    found = committed_values(path)
    assert sorted(int(value or b"") for values in found.values() for value in values) == list(range(5000))
    for partition, values in found.items():
        assert {partition_for_key(b"k%d" % (int(value or b"") % 10), 3) for value in values} <= {partition}
    assert staged_names(path) == []
    back = spark.read.format("kstore").load(str(path))
    assert back.selectExpr("count(*)", "count(distinct value)").first() == (5000, 5000)


def test_what_was_read_can_be_written(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    with Store(path, background=False) as store:
        log = store.log("orders", 1)
        log.append(b"a", key=b"k", headers=[("h", b"1"), ("n", None)], timestamp=1234)
        log.append(None, key=b"k", timestamp=5678)
    save(spark.read.format("kstore").option("includeHeaders", True).load(str(path)), tmp_path / "copy", partitions="3")
    with Store(tmp_path / "copy", read_only=True) as store:
        found = list(store.log("orders", 1).read())
    assert [(each.value, each.key, each.headers, each.timestamp) for each in found] == [
        (b"a", b"k", (("h", b"1"), ("n", None)), 1234),
        (None, b"k", (), 5678),
    ]


ROW = "cast('1' as binary) as value"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            [ROW],
            {},
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.",
        ),
        (["'k' as key"], {"topic": "orders"}, "Required attribute 'value' not found"),
        (
            ["1 as value"],
            {"topic": "orders"},
            "value attribute unsupported type int. value must be a(n) string or binary",
        ),
        (
            [ROW, "1L as key"],
            {"topic": "orders"},
            "key attribute unsupported type bigint. key must be a(n) string or binary",
        ),
        ([ROW, "1 as topic"], {}, "topic attribute unsupported type int. topic must be a(n) string"),
        (
            [ROW, "'1' as partition"],
            {"topic": "orders"},
            "partition attribute unsupported type string. partition must be a(n) int",
        ),
        (
            [ROW, "array('h') as headers"],
            {"topic": "orders"},
            "headers attribute unsupported type array<string>. "
            "headers must be a(n) array<struct<key:string,value:binary>>",
        ),
        (
            [ROW, "cast(null as string) as topic"],
            {},
            "null topic present in the data. Use the topic option for setting a default topic.",
        ),
        ([ROW], {"topic": "new"}, "there is no topic 'new' in"),
        ([ROW], {"topic": "orders", "partition": "3"}, "did you mean 'partitions'?"),
        ([ROW, "7 as partition"], {"topic": "orders"}, "row 0: partition 7, and the topic has 0 to 2"),
    ],
)
@pytest.mark.sampled(2)
def test_what_is_wrong_is_said_as_spark_says_it(
    spark: SparkSession, path: Path, columns: list[str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception) as caught:
        save(spark.range(1).selectExpr(*columns), path, **options)
    assert message in str(caught.value)
    assert sorted_values(path) == []
    assert staged_names(path) == []


@pytest.mark.long
def test_a_remote_path_and_an_unconfirmed_overwrite_are_refused(spark: SparkSession, path: Path) -> None:
    frame = numbered(spark, 10)
    for url in ("s3://bucket/store", "memory://store", "hdfs://nn/store"):
        with pytest.raises(Exception, match="cannot be written to: appending to a log needs"):
            frame.write.format("kstore").mode("append").option("topic", "orders").save(url)
    with pytest.raises(Exception, match="would delete every record"):
        save(frame, path, "overwrite", topic="orders")
    save(frame, path, topic="orders")
    save(numbered(spark, 3), path, "overwrite", topic="orders", overwrite="truncate")
    assert sorted_values(path) == [b"0", b"1", b"2"]


@pytest.mark.long
def test_a_store_that_is_open_elsewhere_is_named_as_locked(spark: SparkSession, path: Path) -> None:
    with Store(path, background=False), pytest.raises(Exception, match="needs the store for itself"):
        save(numbered(spark, 10), path, topic="orders", lockTimeout="0")


@pytest.mark.long
def test_a_failed_task_leaves_nothing(spark: SparkSession, path: Path) -> None:
    frame = spark.range(0, 100_000, 1, 4).selectExpr(
        "cast(if(id = 99999, raise_error('no more'), id) as string) as value"
    )
    with pytest.raises(Exception, match="no more"):
        save(frame, path, topic="orders", batchBytes="1k")
    assert sorted_values(path) == []


def stream(spark: SparkSession, source: Path, path: Path, checkpoint: Path, **options: str) -> Any:
    frame = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    query = (
        frame.writeStream.format("kstore")
        .option("checkpointLocation", str(checkpoint))
        .options(topic="orders", **options)
        .trigger(availableNow=True)
        .start(str(path))
    )
    query.awaitTermination()
    return query


@pytest.mark.long
def test_a_stream_goes_on_where_it_was(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.txt").write_text("".join(f"{number}-{row}\n" for row in range(100)))
    stream(spark, source, path, checkpoint)
    (source / "3.txt").write_text("".join(f"3-{row}\n" for row in range(100)))
    # Spark died after the sink's commit and before noting it: the last batch comes again.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    stream(spark, source, path, checkpoint)
    assert sorted_values(path) == sorted(b"%d-%d" % (number, row) for number in range(4) for row in range(100))
    assert staged_names(path) == []


@pytest.mark.long
def test_a_complete_aggregate_is_replaced_as_a_whole(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.txt").write_text("a\nb\n")
    counted = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source)).groupBy("value").count()
    query = (
        counted.selectExpr("value as key", "cast(count as string) as value")
        .writeStream.format("kstore")
        .outputMode("complete")
        .options(topic="orders", overwrite="truncate", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(path))
    )
    query.awaitTermination()
    assert sorted_values(path) == [b"2", b"2"]
