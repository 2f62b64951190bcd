"""The columns of a topic in Spark: names, order and types of Spark's own Kafka source.

    key            binary
    value          binary                                       null: a tombstone
    topic          string
    partition      int
    offset         long
    timestamp      timestamp
    timestampType  int                                          0 CreateTime, 1 LogAppendTime
    headers        array<struct<key: string, value: binary>>    with includeHeaders; null if the record has none;
                                                                with headerKeys=binary the key is binary

Spark compares the schema of the result exactly with the requested one: ``arrow_schema`` is that.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kstore.errors import ConfigError
from kstore.record.columns import HeaderKeys
from kstore.setting_rules import shown
from kstore.spark.option_values import hint

HEADERS = "headers"

KEY_TYPES: dict[HeaderKeys, tuple[DataType, pa.DataType]] = {
    "string": (StringType(), pa.string()),
    "binary": (BinaryType(), pa.binary()),
}
HEADERS_TYPES: dict[HeaderKeys, DataType] = {
    name: ArrayType(StructType([StructField("key", kind), StructField("value", BinaryType())]))
    for name, (kind, _) in KEY_TYPES.items()
}

SPARK_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: HEADERS_TYPES["string"],
}
COLUMNS = tuple(SPARK_TYPES)
# Columns that may be null; all others always have a value.
NULLABLE = ("key", "value", HEADERS)

ARROW_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
}


def _arrow_headers(key: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", pa.struct([pa.field("key", key), pa.field("value", pa.binary())])))


def spark_schema(
    columns: Sequence[str] | None = None, *, include_headers: bool = False, header_keys: HeaderKeys = "string"
) -> StructType:
    """The schema of a read: ``columns`` in their order, or all of them, then ``headers`` only with ``include_headers``.

    ``header_keys`` is the type of the headers' keys.

    Raises: ConfigError for a column that does not exist, or appears twice.
    """
    if columns is None:
        columns = COLUMNS if include_headers else tuple(name for name in COLUMNS if name != HEADERS)
    types = {**SPARK_TYPES, HEADERS: HEADERS_TYPES[header_keys]}
    return StructType([StructField(name, types[name]) for name in _named(columns)])


def check_columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a user gave: any of ours, in any order, with our types.

    Raises: ConfigError.
    """
    names = _named(schema.names)
    for field in schema.fields:
        expected = SPARK_TYPES[field.name]
        if field.dataType != expected and not (field.name == HEADERS and field.dataType in HEADERS_TYPES.values()):
            raise ConfigError(
                f"column {field.name!r} of the schema is {field.dataType.simpleString()}, expected "
                f"{expected.simpleString()}: cast it after the read"
            )
        if not field.nullable and field.name in NULLABLE:
            raise ConfigError(f"column {field.name!r} of the schema is NOT NULL, but a record may have none")
    return names


def place_columns(topic: str, partition: int, count: int) -> dict[str, pa.Array]:
    """The columns that have the same value in all ``count`` records of a log."""
    values = {"topic": pa.scalar(topic, pa.string()), "partition": pa.scalar(partition, pa.int32())}
    return {name: pa.repeat(value, count) for name, value in values.items()}


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that every record batch must have for Spark's ``schema``, which ``check_columns`` has accepted."""
    types = dict(ARROW_TYPES)
    if HEADERS in schema.names:
        types[HEADERS] = _arrow_headers(KEY_TYPES[header_keys_of(schema)][1])
    return pa.schema([pa.field(field.name, types[field.name], nullable=field.nullable) for field in schema])


def header_keys_of(schema: StructType) -> HeaderKeys:
    """The type of the headers' keys in a schema with that column, which ``check_columns`` has accepted."""
    return "binary" if schema[HEADERS].dataType == HEADERS_TYPES["binary"] else "string"


def _named(columns: Sequence[str]) -> tuple[str, ...]:
    if not columns:
        raise ConfigError(f"no columns were requested: there are {', '.join(COLUMNS)}")
    for name in columns:
        if name not in SPARK_TYPES:
            raise ConfigError(f"there is no column {shown(name)}{hint(name, COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise ConfigError(f"a column was requested twice: {', '.join(columns)}")
    return tuple(columns)
