"""Batch queries in a real session: what Kafka's consumer read, in SQL, with filters, and with errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException

import kstore
from kstore.log import Log
from kstore.spark import read
from kstore.spark.schema import spark_schema
from kstore.spark.session import FILTER_PUSHDOWN
from kstore.types import TIMESTAMP_TYPES, IsolationLevel
from tests.golden.test_golden_reads import expected_records
from tests.support.harness.evidence import Wrong
from tests.support.harness.golden_data import golden_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TREES = ("clean", "crashed", "recovered", "old")
LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")


def load(spark: SparkSession, path: str | Path | list[str], **options: object) -> DataFrame:
    text = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    source = spark.read.format("kstore").options(**text)
    return source.load(path if isinstance(path, list) else str(path))


def found_records(frame: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """By partition, as ``expected_records`` has them."""
    found: dict[str, list[dict[str, Any]]] = {}
    as_ms = frame.selectExpr("* except (timestamp)", "unix_millis(timestamp) as timestamp")
    for row in as_ms.orderBy("topic", "partition", "offset").collect():
        found.setdefault(f"{row.topic}-{row.partition}", []).append(
            {
                "offset": row.offset,
                "timestamp": row.timestamp,
                "timestamp_type": TIMESTAMP_TYPES[row.timestampType],
                "key": None if row.key is None else bytes(row.key),
                "value": None if row.value is None else bytes(row.value),
                "headers": [(header.key, header.value) for header in row.headers or ()],
            }
        )
    return found


def consumed(tree: str, *, committed: bool) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for path in sorted((golden_root() / f"{tree}.consumed").glob("*.jsonl")):
        name = path.name.removesuffix(".jsonl")
        if name.endswith(".read_committed") or name.startswith("__"):
            continue
        other = path.with_name(f"{name}.read_committed.jsonl")
        records = expected_records(other if committed and other.exists() else path)[1]
        if records:
            without = [{key: value for key, value in record.items() if key != "epoch"} for record in records]
            found[name] = without
    return found


@contextmanager
def pushdown(spark: SparkSession, on: bool) -> Iterator[None]:
    before = spark.conf.get(FILTER_PUSHDOWN) or "false"
    spark.conf.set(FILTER_PUSHDOWN, str(on).lower())
    try:
        yield
    finally:
        spark.conf.set(FILTER_PUSHDOWN, before)


# --- the same records -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "level"), [*((tree, "read_committed") for tree in TREES), ("clean", "read_uncommitted")]
)
@pytest.mark.sampled(1)
def test_a_broker_directory_is_what_its_consumers_read(spark: SparkSession, tree: str, level: str) -> None:
    options = {} if level == "read_committed" else {"isolationLevel": level}
    frame = load(spark, golden_root() / tree, includeHeaders=True, **options)
    found, expected = found_records(frame), consumed(tree, committed=level == "read_committed")
    # Without a consumer's output there is nothing to compare with.
    for name, records in expected.items():
        if found.get(name) != records:
            raise Wrong(f"{tree}, {name}")


def test_a_log_of_kstore_is_what_kstore_reads_while_its_writer_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store") as store:
        store.create_topic("orders", partitions=2, segment_bytes=4096)
        with store.producer(transactional_id="t", compression_type="lz4") as producer:
            producer.init_transactions()
            for round in range(6):
                producer.begin_transaction()
                for number in range(100):
                    producer.send("orders", b"%d-%d" % (round, number), key=b"%d" % number)
                if round % 3 == 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
            at = tmp_path / "store"
            for level in LEVELS:
                frame = load(spark, at, includeHeaders=True, isolationLevel=level, maxPartitionBytes="4k")
                found = found_records(frame)
                for partition in range(2):
                    with Log(at / f"orders-{partition}", read_only=True) as log:
                        expected = [record.value for record in log.read(isolation_level=level)]
                    assert [row["value"] for row in found[f"orders-{partition}"]] == expected
            # A frame stays as it was planned.
            before = load(spark, at)
            count = before.count()
            with producer.transaction():
                producer.send("orders", b"later")
            assert (before.count(), load(spark, at).count()) == (count, count + 1)


# --- what it looks like -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics of three partitions with a thousand records each, in many segments, a second between records."""
    path = tmp_path_factory.mktemp("events")
    for topic in ("events", "users"):
        for partition in range(3):
            with Log(path / f"{topic}-{partition}", durability="os", segment_bytes=8192, index_interval_bytes=0) as log:
                for first in range(0, 1000, 20):
                    numbers = range(first, first + 20)
                    log.append_many(
                        [b"value %d" % number for number in numbers],
                        keys=[b"k%d" % (number % 7) for number in numbers],
                        timestamps=[1_767_225_600_000 + 1000 * number for number in numbers],
                    )
    return path


def test_the_schema_is_that_of_sparks_kafka_source(spark: SparkSession, events: Path) -> None:
    assert load(spark, events).schema == spark_schema()
    assert load(spark, events, includeHeaders=True).schema == spark_schema(include_headers=True)
    assert load(spark, events, columns="offset,value").columns == ["offset", "value"]


@pytest.mark.long
def test_columns_and_a_schema_of_ones_own_are_projections(spark: SparkSession, events: Path) -> None:
    by_option = load(spark, events, columns="offset, topic")
    by_schema = spark.read.format("kstore").schema("offset long, topic string").load(str(events))
    assert by_option.schema == by_schema.schema
    assert by_option.count() == by_schema.count() == 6000
    assert by_schema.selectExpr("sum(offset)").first()[0] == 6 * sum(range(1000))
    assert spark.read.format("kstore").schema("topic string").load(str(events)).distinct().count() == 2


@pytest.mark.long
def test_globs_lists_and_single_partitions(spark: SparkSession, events: Path) -> None:
    assert load(spark, events / "users-*").count() == 3000
    assert load(spark, events / "{users-0,events-[12]}").count() == 3000
    assert load(spark, [str(events / "users-0"), str(events / "events-*")]).count() == 4000
    assert load(spark, f"file://{events}/users-0").count() == 1000
    assert load(spark, events, assign='{"events":[0],"users":[1]}').count() == 2000
    assert load(spark, events, subscribePattern="use.*").count() == 3000


@pytest.mark.long
def test_sql_reads_a_view(spark: SparkSession, events: Path) -> None:
    spark.sql(f"create or replace temporary view events using kstore options (path '{events}', subscribe 'events')")
    try:
        row = spark.sql("select count(*) as n, max(offset) as last, count(distinct key) as k from events").first()
        assert row is not None
        assert (row.n, row.last, row.k) == (3000, 999, 7)
    finally:
        spark.catalog.dropTempView("events")


@pytest.mark.long
def test_a_few_rows_are_read_without_the_rest(spark: SparkSession, events: Path) -> None:
    rows = load(spark, events, maxPartitionBytes="8k").take(5)
    assert [row.offset for row in rows] == [0, 1, 2, 3, 4]


@pytest.mark.long
def test_an_empty_store_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    assert load(spark, tmp_path).count() == 0
    Log(tmp_path / "a-0").close()
    assert load(spark, tmp_path).collect() == []


# --- filters ----------------------------------------------------------------------------------------------------------

QUERIES = {
    "offset >= 990": 60,
    "offset between 100 and 109 and topic = 'users'": 30,
    "offset in (3, 7, 2000)": 12,
    "offset <=> 5": 6,
    "offset < 0": 0,
    "partition = 1 and not (topic = 'users')": 1000,
    "partition in (0, 2)": 4000,
    "topic like 'us%'": 3000,
    "topic > 'f'": 3000,
    "partition = 1 or offset = 5": 2004,
    "timestamp >= timestamp'2026-01-01 00:16:30'": 60,
    "timestamp > timestamp'2026-01-01 00:16:30' and timestamp < timestamp'2026-01-01 00:16:35'": 24,
    "timestamp = timestamp'2026-01-01 00:16:30.5'": 0,
    "to_date(timestamp) = date'2026-01-01'": 6000,
    "timestamp >= date'2026-01-02'": 0,
    "key = X'6B33' and offset % 2 = 1": 6 * 72,
    "cast(value as string) = 'value 17'": 6,
    "isnull(key)": 0,
}


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.long
def test_filters_give_the_same_with_pushdown_on_and_off(spark: SparkSession, events: Path, on: bool) -> None:
    # If nothing is pushed down, one query is like another.
    queries = QUERIES if on else dict(list(QUERIES.items())[:4])
    with pushdown(spark, on):
        found = {where: load(spark, events, filterPushdown=True).where(where).count() for where in queries}
    assert found == queries


@pytest.mark.long
def test_a_filter_plans_only_what_may_pass_where_it_is_pushed(spark: SparkSession, events: Path) -> None:
    for on, asked, partition_count in ((True, True, 1), (False, True, 6), (True, False, 6)):
        with pushdown(spark, on):
            frame = load(spark, events, maxRecordsPerPartition=1000, filterPushdown=asked)
            narrow = frame.where("topic = 'users' and partition = 2 and offset >= 500")
            assert narrow.rdd.getNumPartitions() == partition_count
            assert narrow.count() == 500


@pytest.mark.long
def test_a_frame_that_is_used_again_has_all_its_rows(spark: SparkSession, events: Path) -> None:
    with pushdown(spark, True):
        frame = load(spark, events)
        users, others = frame.where("topic = 'users'"), frame.where("topic = 'events'")
        assert users.count() == 3000
        assert frame.count() == 6000
        assert frame.where("topic = 'users' or offset = 5").count() == 3003
        assert users.union(others).count() == 6000
        assert users.alias("a").join(others.alias("b"), ["partition", "offset"]).count() == 3000


@pytest.mark.long
def test_read_returns_what_passes_the_condition_and_its_frame_can_be_used_again(
    spark: SparkSession, events: Path
) -> None:
    found = {where: read(spark, events, columns=["offset"], where=where).count() for where in QUERIES}
    assert found == QUERIES
    with pushdown(spark, True):
        frame = read(spark, [events], columns=["offset", "topic"], where="topic = 'users' and offset >= 100")
        assert frame.columns == ["offset", "topic"]
        assert frame.where("offset < 200").count() == 300
        assert frame.count() == 2700
        assert frame.where("offset < 200").union(frame).count() == 3000


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_load_of_nothing_says_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    for options, text in (
        ({}, "there is no path"),
        ({"path": str(tmp_path / "nowhere")}, "there is no log, and no directory of logs"),
        ({"path": str(tmp_path), "subscribe": "orders"}, "there is no topic orders"),
        ({"path": str(tmp_path), "subscirbe": "orders"}, "did you mean 'subscribe'"),
        ({"path": str(tmp_path), "columns": "offest"}, "did you mean 'offset'"),
    ):
        with pytest.raises(AnalysisException, match=text):
            spark.read.format("kstore").options(**options).load().collect()


@pytest.mark.long
def test_a_schema_that_is_not_ours_is_refused(spark: SparkSession, events: Path) -> None:
    with pytest.raises(AnalysisException, match="column 'offset' of the schema is string, expected bigint"):
        spark.read.format("kstore").schema("offset string").load(str(events)).collect()


def test_damage_fails_the_query_with_file_position_and_offsets_or_is_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Log(tmp_path / "a-0", durability="os") as log:
        for first in range(0, 100, 10):
            log.append_many([b"value %d" % number for number in range(first, first + 10)])
    (segment,) = (tmp_path / "a-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    at = data.index(b"value 45")
    data[at] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(PythonException) as caught:
        load(spark, tmp_path).collect()
    text = str(caught.value)
    assert f"{segment}: " in text
    assert "(offsets 40 to 49) at position" in text
    assert "failOnDataLoss=false" in text
    for option in ("failOnDataLoss", "checkCrcs"):
        assert load(spark, tmp_path, **{option: False}).count() == 90


@pytest.mark.long
def test_offsets_that_are_gone_fail_the_query_or_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    with Log(tmp_path / "a-0", durability="os") as log:
        log.append_many([b"v"] * 100)
        log.delete_records(30)
    with pytest.raises(AnalysisException, match="Some data may have been lost"):
        load(spark, tmp_path, startingOffsets='{"a":{"0":10}}').count()
    assert load(spark, tmp_path, startingOffsets='{"a":{"0":10}}', failOnDataLoss=False).count() == 70
