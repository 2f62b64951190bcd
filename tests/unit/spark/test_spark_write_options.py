"""The options of a write: their values, and their errors."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

from kstore.errors import ConfigError
from kstore.spark.write_options import WriteOptions, check_sink_columns


def parsed(options: dict[str, str] | None = None, *, streaming: bool = False, overwrite: bool = False) -> WriteOptions:
    return WriteOptions.parse({"path": "/data", **(options or {})}, streaming=streaming, overwrite=overwrite)


def test_the_defaults() -> None:
    found = parsed()
    assert found == WriteOptions("/data")
    assert (found.topic, found.partitions, found.truncates, found.app_id) == (None, None, False, None)
    assert (found.batch_bytes, found.codec, found.lock_timeout_ms) == (128 << 10, "none", 10_000)
    assert found.staging_retention_ms == 7 * 86_400_000
    assert pickle.loads(pickle.dumps(found)) == found


def test_every_option_is_taken_whatever_its_case() -> None:
    assert parsed(
        {
            "TOPIC": "orders",
            "partitions": "4",
            "batchbytes": "64k",
            "compressiontype": "ZSTD",
            "txnappid": "job",
            "txnVersion": "0",
            "locktimeout": "2s",
            "stagingRetention": "1d",
            "checkpointlocation": "/c",
            "queryName": "q",
        }
    ) == WriteOptions(
        "/data",
        "orders",
        4,
        batch_bytes=65536,
        codec="zstd",
        app_id="job",
        version=0,
        lock_timeout_ms=2000,
        staging_retention_ms=86_400_000,
    )
    assert parsed({"path": "file:///d"}).path == "/d"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": " "}, "there is no path"),
        ({"paths": '["/a"]'}, "no option 'paths', did you mean 'path'"),
        ({"path": "s3://bucket/data"}, "s3:// cannot be written to: appending to a log needs"),
        ({"topic": "a/b"}, "topic name 'a/b'"),
        ({"topic": "__consumer_offsets"}, "belongs to kstore"),
        ({"partitions": "0"}, "partitions must be positive"),
        ({"partitions": "many"}, "partitions is 'many', expected a whole number"),
        ({"batchBytes": "1g"}, "batchBytes"),
        ({"compressionType": "rar"}, "compressionType is 'rar', expected one of none, gzip"),
        ({"overwrite": "yes"}, "overwrite is 'yes', expected one of truncate"),
        ({"txnAppId": "job"}, "txnAppId and txnVersion are both needed"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion are both needed"),
        ({"txnAppId": "", "txnVersion": "1"}, "txnAppId is ''"),
        ({"txnAppId": "x" * 1001, "txnVersion": "1"}, "1 to 1000 bytes"),
        ({"txnAppId": "job", "txnVersion": "-1"}, "txnVersion is '-1', expected a whole number, at least 0"),
        ({"txnAppId": "job", "txnVersion": str(2**63)}, "txnVersion"),
        ({"txnAppId": "job", "txnVersion": "9" * 5000}, "txnVersion"),
        ({"lockTimeout": "soon"}, "lockTimeout"),
        ({"startingoffsets": "latest"}, "the kstore sink has no option 'startingoffsets'"),
    ],
)
def test_what_cannot_be_is_said_with_its_option(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(options)
    assert message in str(caught.value)


def test_a_stream_has_a_name_and_no_version() -> None:
    assert parsed({"txnAppId": "job"}, streaming=True).app_id == "job"
    with pytest.raises(ConfigError, match="txnVersion is for batch writes"):
        parsed({"txnAppId": "job", "txnVersion": "1"}, streaming=True)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_overwrite_needs_its_confirmation(streaming: bool) -> None:
    assert parsed({"Overwrite": "TRUNCATE"}, streaming=streaming, overwrite=True).truncates
    assert not parsed({"Overwrite": "truncate"}, streaming=streaming).truncates
    with pytest.raises(ConfigError, match="would delete every record of the topic"):
        parsed(streaming=streaming, overwrite=True)


def test_columns_that_are_not_written_are_passed_over() -> None:
    schema = StructType(
        [
            StructField("offset", LongType()),
            StructField("value", StringType()),
            StructField("topic", IntegerType()),
            StructField("timestamp", DoubleType()),
            StructField("anything", DoubleType()),
        ]
    )
    assert check_sink_columns(schema, topic="orders") == ("value", "timestamp")
    with pytest.raises(ConfigError, match=r"topic attribute unsupported type int. topic must be a"):
        check_sink_columns(schema, topic=None)
