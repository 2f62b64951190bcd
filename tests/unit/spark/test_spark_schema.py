"""The columns: names, order and types of Spark's Kafka source, and the same for Arrow to the last bit."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kstore.errors import ConfigError
from kstore.spark.schema import COLUMNS, arrow_schema, check_columns, spark_schema

KAFKA = "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
HEADERS = "headers:array<struct<key:string,value:binary>>"


def struct(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, data_type) for name, data_type in fields])


def test_without_headers_it_is_that_of_sparks_kafka_source() -> None:
    schema = spark_schema()
    assert schema.simpleString() == KAFKA + ">"
    assert all(field.nullable for field in schema)


def test_headers_come_last() -> None:
    schema = spark_schema(include_headers=True)
    assert schema.simpleString() == f"{KAFKA},{HEADERS}>"
    assert tuple(schema.names) == COLUMNS


def test_header_keys_may_be_binary() -> None:
    schema = spark_schema(include_headers=True, header_keys="binary")
    assert schema.simpleString() == f"{KAFKA},headers:array<struct<key:binary,value:binary>>>"
    assert check_columns(schema) == COLUMNS


def test_chosen_columns_keep_their_order() -> None:
    assert spark_schema(("offset", "value")).names == ["offset", "value"]
    assert spark_schema(("headers",)).simpleString() == f"struct<{HEADERS}>"


@pytest.mark.parametrize(
    "schema",
    [
        spark_schema(),
        spark_schema(include_headers=True),
        spark_schema(include_headers=True, header_keys="binary"),
        *(spark_schema((name,)) for name in COLUMNS),
    ],
    ids=lambda schema: ",".join(schema.names),
)
def test_the_arrow_schema_is_the_one_that_spark_compares_with(schema: StructType) -> None:
    assert arrow_schema(schema).equals(to_arrow_schema(schema, timezone="UTC"))


def test_what_always_has_a_value_may_be_asked_for_without_nulls() -> None:
    schema = StructType([StructField("offset", LongType(), nullable=False)])
    assert check_columns(schema) == ("offset",)
    assert arrow_schema(schema).equals(to_arrow_schema(schema, timezone="UTC"))


def test_a_schema_of_the_user_picks_columns() -> None:
    headers = spark_schema(("headers",))["headers"].dataType
    schema = struct(("offset", LongType()), ("headers", headers), ("value", BinaryType()))
    assert check_columns(schema) == ("offset", "headers", "value")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([("offsets", LongType())], r"there is no column 'offsets', did you mean 'offset'\?"),
        ([("timestamptype", IntegerType())], r"there is no column 'timestamptype', did you mean 'timestampType'\?"),
        (
            [("customer", StringType())],
            r"there is no column 'customer': there are key, value, topic, partition, offset",
        ),
        ([("offset", IntegerType())], r"column 'offset' of the schema is int, expected bigint: cast it after the read"),
        ([("value", StringType())], r"column 'value' of the schema is string, expected binary"),
        (
            [("headers", MapType(StringType(), BinaryType()))],
            r"column 'headers' of the schema is map<string,binary>, expected array<struct",
        ),
        ([("offset", LongType()), ("offset", LongType())], r"a column was requested twice: offset, offset"),
    ],
)
def test_a_schema_that_is_none_of_a_log(fields: list[tuple[str, DataType]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_columns(struct(*fields))


def test_columns_that_may_be_null_are_not_promised_without() -> None:
    schema = StructType([StructField("key", spark_schema()["key"].dataType, nullable=False)])
    with pytest.raises(ConfigError, match="column 'key' of the schema is NOT NULL, but a record may have none"):
        check_columns(schema)


def test_no_columns_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no columns were requested"):
        spark_schema(())
    with pytest.raises(ConfigError, match="did you mean 'value'"):
        spark_schema(("valu",))
