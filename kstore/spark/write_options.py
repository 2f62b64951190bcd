"""The options of a write and the columns of its DataFrame, checked, as plain values.

Columns are those of Spark's own Kafka sink, and so are the texts of their errors::

    value       string or binary                                required
    key         string or binary
    topic       string                                          required without the option topic, which wins
    partition   int
    headers     array<struct<key:string,value:binary>>, or with binary keys
    timestamp   timestamp, or double (seconds)

All other columns are ignored, so that what was read can be written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from kstore.errors import ConfigError
from kstore.files.paths import validate_topic
from kstore.files.remote import is_remote, open_remote
from kstore.record.compression import CODECS_BY_NAME
from kstore.rules.internal_topics import is_internal
from kstore.setting_rules import shown
from kstore.spark.option_values import Options, check_names, to_choice, to_duration_ms, to_int, to_size
from kstore.spark.schema import HEADERS, HEADERS_TYPES
from kstore.types import INT32_MAX, INT64_MAX

NAMES = (
    "path",
    "topic",
    "partitions",
    "overwrite",
    "batchBytes",
    "compressionType",
    "txnAppId",
    "txnVersion",
    "lockTimeout",
    "stagingRetention",
    # Spark's own, of every stream.
    "checkpointLocation",
    "queryName",
)
TRUNCATE = "truncate"

# A batch of records, before compression: a seek decodes one, and a task holds one for each partition.
BATCH_BYTES = 128 << 10
BATCH_BYTES_MAX = 64 << 20
# For the commit of a killed driver, which may outlive it for a moment.
LOCK_TIMEOUT_MS = 10_000
# Longer than any job runs: an older staged file has no owner.
STAGING_RETENTION_MS = 7 * 86_400_000
TXN_APP_ID_BYTES_MAX = 1000

TYPES: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    HEADERS: tuple(HEADERS_TYPES.values()),
    "partition": (IntegerType(),),
    "timestamp": (DoubleType(), TimestampType()),
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. ``partitions`` None: topics are not created; ``topic`` None: each row names its own.

    ``truncates``: what an overwrite means. ``app_id``: the name under which repeated batches are recognised, by default
    that of the query; a batch write has none, or one with a ``version``. ``codec`` is for topics that accept the
    producer's codec. ``ignored``: the given options that only a broker needs.
    """

    path: str
    topic: str | None = None
    partitions: int | None = None
    truncates: bool = False
    batch_bytes: int = BATCH_BYTES
    codec: str = "none"
    app_id: str | None = None
    version: int | None = None
    lock_timeout_ms: int = LOCK_TIMEOUT_MS
    staging_retention_ms: int = STAGING_RETENTION_MS
    ignored: tuple[str, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool, overwrite: bool = False) -> Self:
        """Parses and checks all options; the keys ignore case; ``overwrite`` is what Spark asks for.

        Raises: ConfigError for an unknown option, an invalid value, options that contradict each other, an unconfirmed
        overwrite, and a place that cannot be written to.
        """
        given = Options(options)
        ignored = check_names(given.names(), NAMES, whose="the kstore sink")
        topic = given.text("topic")
        if topic is not None:
            check_topic(topic)
        truncates = given.get("overwrite", to_choice((TRUNCATE,)), "") == TRUNCATE
        if overwrite and not truncates:
            asked = 'outputMode("complete")' if streaming else 'mode("overwrite")'
            append = 'outputMode("append")' if streaming else 'mode("append")'
            raise ConfigError(
                f"{asked} would delete every record of the topic: write with {append}, or confirm it with the "
                f'option "overwrite" set to "{TRUNCATE}"'
            )
        return cls(
            path=_path(given),
            topic=topic,
            partitions=given.get("partitions", partial(to_int, most=INT32_MAX), None),
            truncates=overwrite,
            batch_bytes=given.get("batchBytes", partial(to_size, most=BATCH_BYTES_MAX), BATCH_BYTES),
            codec=given.get("compressionType", to_choice(tuple(CODECS_BY_NAME)), "none"),
            app_id=_app_id(given, streaming=streaming),
            version=given.get("txnVersion", _to_version, None),
            lock_timeout_ms=given.get("lockTimeout", to_duration_ms, LOCK_TIMEOUT_MS),
            staging_retention_ms=given.get("stagingRetention", to_duration_ms, STAGING_RETENTION_MS),
            ignored=ignored,
        )


def _path(given: Options) -> str:
    path = given.text("path")
    if path is None or not path.strip():
        raise ConfigError(
            'there is no path: give the store\'s directory to save() or start(), or set the option "path"'
        )
    if is_remote(path):
        scheme = path.partition("://")[0]
        raise ConfigError(
            f"{scheme}:// cannot be written to: appending to a log needs a file system that appends and syncs in "
            "place, with locks, as a local or shared disk does. Write to such a path, and copy it with kstore mirror"
        )
    return str(open_remote(path).path)


def check_topic(topic: str) -> None:
    """Raises: ConfigError for a name that no topic has, or that a write never creates."""
    validate_topic(topic)
    if is_internal(topic):
        raise ConfigError(f"topic {shown(topic)} belongs to kstore and cannot be written to")


def _app_id(given: Options, *, streaming: bool) -> str | None:
    app_id = given.text("txnAppId")
    if streaming and "txnVersion" in given:
        raise ConfigError("txnVersion is for batch writes: a stream's batches are numbered by Spark")
    if not streaming and (app_id is None) != ("txnVersion" not in given):
        raise ConfigError("txnAppId and txnVersion are both needed for a batch write that may be repeated")
    if app_id is not None and not 0 < len(app_id.encode("utf-8", "replace")) <= TXN_APP_ID_BYTES_MAX:
        raise ConfigError(f"txnAppId is {shown(app_id)}, expected a text of 1 to {TXN_APP_ID_BYTES_MAX} bytes")
    return app_id


def _to_version(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text.strip()) or int(text) > INT64_MAX:
        raise ConfigError(f"{name} is {shown(text)}, expected a whole number, at least 0")
    return int(text)


def check_sink_columns(schema: StructType, *, topic: str | None) -> tuple[str, ...]:
    """The columns of a DataFrame that a write uses. Raises: ConfigError with the text of Spark's Kafka sink."""
    fields = {field.name: field.dataType for field in schema.fields}
    if topic is None and "topic" not in fields:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in fields:
        raise ConfigError("Required attribute 'value' not found")
    used = tuple(name for name in TYPES if name in fields and not (name == "topic" and topic is not None))
    for name in used:
        given, desired = fields[name].simpleString(), [kind.simpleString() for kind in TYPES[name]]
        if given not in desired:
            raise ConfigError(f"{name} attribute unsupported type {given}. {name} must be a(n) {' or '.join(desired)}")
    return used
