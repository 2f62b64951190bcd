"""Queries of which only the format changes: Spark's Kafka source over a live broker, and kstore over its directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.interop.conftest import Kafka
from tools.interop import java
from tools.interop.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.long]

Options = dict[str, str]
Rows = list[tuple[Any, ...]]

TOPIC_SETTINGS = {"internal.segment.bytes": "8192", "index.interval.bytes": "256"}
EVENTS, MONEY = 300, 200
# About forty queries of each source.
LIFE_SECONDS_MAX = 900
# A release compares 10,000,000.
MANY = int(os.environ.get("KSTORE_SOAK_KAFKA_RECORDS", "100000"))
MANY_PARTITIONS = 8
# As a time, after every record.
LATE = "4102444800000"


class Both(NamedTuple):
    """A session with both sources, a live broker, and its directory."""

    spark: SparkSession
    server: str
    directory: Path
    broker: Broker

    def kafka(self, options: Options, *, stream: bool = False) -> DataFrame:
        reader = self.spark.readStream if stream else self.spark.read
        return reader.format("kafka").option("kafka.bootstrap.servers", self.server).options(**options).load()

    def kstore(self, options: Options, *, stream: bool = False) -> DataFrame:
        # The same options, even those for a broker's client: only the format and the path are new.
        reader = self.spark.readStream if stream else self.spark.read
        given = {"kafka.bootstrap.servers": self.server, **options}
        return reader.format("kstore").options(**given).load(str(self.directory))


@pytest.fixture(scope="module")
def both(kafka: Kafka, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    try:
        jars = java.fetch_jars(java.SPARK_KAFKA_POM)
    except java.Unavailable as reason:
        pytest.skip(str(reason))
    for jar in sorted(jars.glob("*.jar")):
        spark.sql(f"ADD JAR '{jar}'")
    broker = kafka.broker(tmp_path_factory.mktemp("kafka-source"))
    broker.life_seconds_max = LIFE_SECONDS_MAX + MANY // 2000
    with broker.running():
        broker.create_topics(
            {
                "events": {**TOPIC_SETTINGS, "partitions": "3"},
                **dict.fromkeys(("events-old", "money", "empty"), TOPIC_SETTINGS),
            }
        )
        broker.client([f"produce\tevents-old\t{EVENTS}\tzstd\t0", f"produce\tmoney\t{MONEY}\tlz4\t8"])
        rows = spark.range(3 * EVENTS).selectExpr(
            "'events' as topic",
            "cast(id % 3 as int) as partition",
            "concat('k', id) as key",
            "repeat('v', 20) as value",
        )
        # On a slow machine batches would grow to the default 16 KiB, which a segment of 8 KiB refuses.
        kafka_options = {"kafka.bootstrap.servers": broker.server, "kafka.batch.size": "1000"}
        rows.write.format("kafka").options(**kafka_options).save()
        yield Both(spark, broker.server, broker.data, broker)


def rows_of(frame: DataFrame) -> Rows:
    """Every field of every record, in order."""
    return sorted((tuple(_plain(value) for value in row) for row in frame.collect()), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [tuple(_plain(field) for field in each) for each in value]
    return value


OFFSETS = '{"events":{"0":100,"1":-2,"2":290}}'
ENDS = '{"events":{"0":150,"1":30,"2":-1}}'
COMMITTED = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}

MATRIX: dict[str, Options] = {
    "subscribe": {"subscribe": "events"},
    "several topics": {"subscribe": "events, events-old,empty"},
    "an empty topic": {"subscribe": "empty"},
    "a pattern for a part of the name": {"subscribePattern": "vent"},
    "a pattern for the end": {"subscribePattern": "old$"},
    "a pattern for the whole name": {"subscribePattern": "^events$"},
    "a pattern without a match": {"subscribePattern": "nothing"},
    "assign": {"assign": '{"events":[0,2],"events-old":[0]}'},
    "starting offsets": {"subscribe": "events", "startingOffsets": OFFSETS},
    "ending offsets": {"subscribe": "events", "endingOffsets": ENDS},
    "both": {"subscribe": "events", "startingOffsets": OFFSETS, "endingOffsets": '{"events":{"0":101,"1":5,"2":291}}'},
    "nothing between": {
        "assign": '{"events":[0]}',
        "startingOffsets": '{"events":{"0":7}}',
        "endingOffsets": '{"events":{"0":7}}',
    },
    "a starting time": {"subscribe": "events,events-old", "startingTimestamp": "0"},
    "an ending time": {"subscribe": "events", "endingTimestamp": "1"},
    "an ending time after all": {"subscribe": "events", "endingTimestamp": LATE},
    "times": {"assign": '{"events":[1]}', "startingOffsetsByTimestamp": '{"events":{"1":5}}'},
    "a time after all": {
        "subscribe": "events",
        "startingTimestamp": LATE,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "headers": {"subscribe": "events,events-old", "includeHeaders": "true"},
    "partitions": {"subscribe": "events", "minPartitions": "11"},
    "records of a partition": {"subscribe": "events", "maxRecordsPerPartition": "17"},
    "data loss": {"subscribe": "events", "failOnDataLoss": "false"},
    "committed": {"subscribe": "money", **COMMITTED},
    "uncommitted": {"subscribe": "money", "includeHeaders": "true", **UNCOMMITTED},
    "for a client": {
        "subscribe": "events",
        "groupIdPrefix": "mine",
        "fetchOffset.numRetries": "4",
        "kafkaConsumer.pollTimeoutMs": "60000",
        "kafka.client.id": "me",
    },
    "names in any case": {"SUBSCRIBE": "events", "STARTINGOFFSETS": "earliest"},
}


@pytest.mark.parametrize("case", MATRIX)
@pytest.mark.sampled(8)
def test_a_batch_returns_the_same_rows(both: Both, case: str) -> None:
    options = MATRIX[case]
    theirs, ours = both.kafka(options), both.kstore(options)
    assert ours.schema == theirs.schema
    assert rows_of(ours) == rows_of(theirs)


REFUSED: dict[str, Options] = {
    "two ways to name topics": {"subscribe": "events", "subscribePattern": "e"},
    "latest as a start": {"subscribe": "events", "startingOffsets": "latest"},
    "earliest as an end": {"subscribe": "events", "endingOffsets": "earliest"},
    "a partition without an offset": {"subscribe": "events", "startingOffsets": '{"events":{"0":1}}'},
    "a start after its end": {
        "assign": '{"events":[0]}',
        "startingOffsets": '{"events":{"0":9}}',
        "endingOffsets": '{"events":{"0":8}}',
    },
    "a start after the log": {"assign": '{"events":[0]}', "startingOffsets": '{"events":{"0":999}}'},
    "a start after all times": {"subscribe": "events", "startingTimestamp": LATE},
    "a missing topic": {"subscribe": "nowhere"},
    "no JSON": {"subscribe": "events", "startingOffsets": "{"},
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.sampled(2)
def test_both_refuse(both: Both, case: str) -> None:
    for load in (both.kafka, both.kstore):
        with pytest.raises(Exception, match=r"\S"):
            load(REFUSED[case]).collect()


STREAMS: dict[str, Options] = {
    "from the start": {"subscribe": "events", "startingOffsets": "earliest"},
    "from offsets": {"subscribe": "events", "startingOffsets": OFFSETS},
    "in small batches": {"subscribePattern": "vents", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "400"},
    "from the end": {"subscribe": "events"},
    "committed": {"subscribe": "money", "startingOffsets": "earliest", **COMMITTED},
    "uncommitted": {"subscribe": "money", "startingOffsets": "earliest", **UNCOMMITTED},
}


@pytest.mark.parametrize("case", STREAMS)
@pytest.mark.sampled(2)
def test_a_stream_returns_the_same_rows_and_ends_at_the_same_offsets(both: Both, case: str) -> None:
    theirs = run(both, both.kafka(STREAMS[case], stream=True), "theirs")
    ours = run(both, both.kstore(STREAMS[case], stream=True), "ours")
    assert ours == theirs


def run(both: Both, frame: DataFrame, name: str) -> tuple[Rows, Any]:
    """A stream's rows until now, and the offsets at its end."""
    query = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
        progress = [each for each in query.recentProgress if each["sources"][0]["endOffset"] is not None]
        return rows_of(both.spark.table(name)), json.loads(
            progress[-1]["sources"][0]["endOffset"]
        ) if progress else None
    finally:
        query.stop()
        both.spark.catalog.dropTempView(name)


# --- many records -----------------------------------------------------------------------------------------------------


def test_very_many_records_are_the_same_also_in_a_store_that_spark_wrote(both: Both, tmp_path: Path) -> None:
    partitions = {"partitions": str(MANY_PARTITIONS)}
    both.broker.create_topics({"many": partitions})
    rows = both.spark.range(MANY, numPartitions=MANY_PARTITIONS * 4).selectExpr(
        "'many' as topic",
        f"cast(id % {MANY_PARTITIONS} as int) as partition",
        "if(id % 11 = 0, null, concat('key-', id % 99991)) as key",
        "if(id % 13 = 0, null, concat(id, '-', repeat('v', cast(id % 40 as int)))) as value",
    )
    in_large_batches = {"kafka.linger.ms": "50", "kafka.batch.size": "500000", "kafka.buffer.memory": "67108864"}
    rows.write.format("kafka").option("kafka.bootstrap.servers", both.server).options(**in_large_batches).save()
    wanted = {"subscribe": "many", **COMMITTED}
    theirs = both.kafka(wanted)
    expected = digest(theirs)
    assert expected["records"] == MANY
    assert digest(both.kstore(wanted)) == expected
    for name, frame in {"theirs": theirs, "ours": both.kstore(wanted)}.items():
        path = str(tmp_path / name)
        frame.write.format("kstore").mode("append").options(topic="many", **partitions).save(path)
        # The tasks follow each other as the records do, so the offsets are the same.
        assert digest(both.spark.read.format("kstore").option("subscribe", "many").load(path)) == expected


def digest(frame: DataFrame) -> dict[str, Any]:
    """How many records there are, and a sum over a hash of all fields of each."""
    hashed = "xxhash64(key, value, topic, partition, offset, timestamp, timestampType)"
    counts = ("count(*) as records", "count(key) as keys", "count(value) as values")
    found = frame.selectExpr(*counts, f"sum(cast({hashed} as decimal(38, 0))) as hashes").first()
    assert found is not None
    return dict(found.asDict())


# --- where they differ, as docs/spark.md says -------------------------------------------------------------------------


def test_the_default_isolation_level_differs(both: Both) -> None:
    options = {"subscribe": "money"}
    theirs, ours = rows_of(both.kafka(options)), rows_of(both.kstore(options))
    assert (len(theirs), len(ours)) == (MONEY, MONEY // 2)
    assert theirs == rows_of(both.kstore({**options, **UNCOMMITTED}))


def test_all_topics_are_read_only_here_if_none_is_named(both: Both) -> None:
    with pytest.raises(Exception, match=r"(?i)one of the following options must be specified"):
        both.kafka({}).collect()
    topics = {row.topic for row in both.kstore({}).select("topic").distinct().collect()}
    # The longest test may have made its own.
    assert topics - {"many"} == {"events", "events-old", "money"}


def test_an_unknown_option_is_an_error_only_here(both: Both) -> None:
    options = {"subscribe": "events", "startingOffset": "earliest"}
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        both.kstore(options).collect()
    assert both.kafka(options).count() == 3 * EVENTS
