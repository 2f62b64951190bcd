"""DescribeConfigs and DescribeLogDirs: what tools and pages show about topics, the node and its disk."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from kstore.config import RULES, LogConfig
from kstore.door import errors
from kstore.door.call import Call, Message
from kstore.door.cluster import shown_topics
from kstore.door.errors import code_of
from kstore.errors import ConfigError, FileMissingError, KstoreError
from kstore.files.fs import FileSystem
from kstore.files.paths import LOG_SUFFIX, TopicPartition, validate_topic
from kstore.logs.topics import Topics
from kstore.store import LOG_DEFAULTS, parts_of

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
# Where a value comes from: the topic's own settings, those of the store, nowhere.
OF_TOPIC, OF_STORE, DEFAULT = 1, 4, 5
# The type of a value, as Kafka numbers them.
TYPES: Final[dict[type, int]] = {bool: 1, str: 2, int: 5, float: 6}
LIST: Final = 7
INT: Final = 3
# By Kafka's name, of types that the Python type does not tell.
OTHER_TYPES: Final[dict[str, int]] = {
    "broker.id": INT,
    "node.id": INT,
    "num.partitions": INT,
    "socket.request.max.bytes": INT,
    "cleanup.policy": LIST,
    "segment.bytes": INT,
    "segment.index.bytes": INT,
    "index.interval.bytes": INT,
    "max.message.bytes": INT,
    "compression.gzip.level": INT,
    "compression.lz4.level": INT,
    "compression.zstd.level": INT,
}
# The settings of topics that Kafka has too, by kstore's name.
SHOWN: Final[dict[str, str]] = {
    field.name: RULES[field.name].kafka_name for field in fields(LogConfig) if RULES[field.name].kafka_name
}
DEFAULTS: Final = LogConfig(**LOG_DEFAULTS)


def describe_configs(call: Call) -> Message:
    """Answers DescribeConfigs, for topics and for this node."""
    # Each once, so that the answer is not larger than what is there.
    named = {(resource["resourceType"], resource["resourceName"]): resource for resource in call.body["resources"]}
    return {"results": [_described(call, resource) for resource in named.values()]}


def _described(call: Call, resource: Message) -> Message:
    kind, name = resource["resourceType"], resource["resourceName"]
    answer: Message = {"resourceType": kind, "resourceName": name, "errorMessage": ""}
    try:
        if kind == TOPIC_RESOURCE:
            rows = rows_of_topic(parts_of(call.door.store).topics, name)
        elif kind == BROKER_RESOURCE and name == str(call.door.node_id):
            rows = _of_node(call)
        else:
            reason = f"resource {name!r:.80} of type {kind}, expected a topic (2), or node {call.door.node_id} (4)"
            return answer | {"errorCode": errors.INVALID_REQUEST, "errorMessage": reason}
    except ConfigError as error:
        return answer | {"errorCode": errors.INVALID_TOPIC_EXCEPTION, "errorMessage": str(error)}
    except KstoreError as error:
        return answer | {"errorCode": code_of(error), "errorMessage": str(error)}
    # No names are all names, as for a broker.
    wanted = resource["configurationKeys"] or None
    with_synonyms, with_documentation = call.body["includeSynonyms"], call.body["includeDocumentation"]
    configs = []
    for row in rows:
        if wanted is None or row["name"] in wanted:
            documentation = row.pop("documentation", None)
            row["documentation"] = documentation if with_documentation else None
            if with_synonyms:
                row["synonyms"] = [{"name": row["name"], "value": row["value"], "source": row["configSource"]}]
            configs.append(row)
    return answer | {"configs": configs}


def rows_of_topic(topics: Topics, name: str) -> Iterable[Message]:
    """The rows of a topic. Raises: ConfigError for a name that no topic has, TopicNotFoundError, StorageError."""
    validate_topic(name)
    return rows_of(topics.config(name), topics.summary(name).settings)


def rows_of(config: LogConfig, own: Collection[str]) -> list[Message]:
    """The rows of a topic of this configuration; ``own`` are the settings that it has itself."""
    rows = []
    for setting, kafka_name in SHOWN.items():
        value = getattr(config, setting)
        source = OF_TOPIC if setting in own else DEFAULT if value == getattr(DEFAULTS, setting) else OF_STORE
        rows.append(_row(kafka_name, value, source) | {"documentation": RULES[setting].doc})
    return rows


def _of_node(call: Call) -> Iterator[Message]:
    door = call.door
    values = {
        "advertised.listeners": f"PLAINTEXT://{door.host}:{door.port}",
        "auto.create.topics.enable": door.auto_create_partitions > 0,
        "broker.id": door.node_id,
        "delete.topic.enable": door.admin and not door.read_only,
        "log.dirs": str(door.store.path.absolute()),
        "node.id": door.node_id,
        "num.partitions": max(door.auto_create_partitions, 1),
        "socket.request.max.bytes": door.settings.request_bytes_max,
    }
    for name, value in values.items():
        yield _row(name, value, OF_STORE) | {"readOnly": True}


def _row(name: str, value: Any, source: int) -> Message:
    return {
        "name": name,
        "value": str(value).lower() if isinstance(value, bool) else str(value),
        "readOnly": False,
        "isSensitive": False,
        "configSource": source,
        "configType": OTHER_TYPES.get(name, TYPES[type(value)]),
    }


def describe_log_dirs(call: Call) -> Message:
    """Answers DescribeLogDirs: the store's directory, and the bytes of each partition's segments. Opens no log."""
    topics = parts_of(call.door.store).topics
    answer: Message = {"logDir": str(topics.directory.path)}
    try:
        found = [_sized(topics, *one) for one in _asked(call, topics)]
    except KstoreError as error:
        return {"results": [answer | {"errorCode": code_of(error)}]}
    with suppress(OSError):  # no file system of this machine
        disk = shutil.disk_usage(topics.directory.path)
        answer |= {"totalBytes": disk.total, "usableBytes": disk.free}
    return {"results": [answer | {"topics": found}]}


def _asked(call: Call, topics: Topics) -> Iterator[tuple[str, Sequence[int]]]:
    """Topics with the partitions that exist: those of the request, or all."""
    asked = call.body["topics"]
    if asked is None:
        for name in shown_topics(call.door):
            yield name, topics.numbers(name)
        return
    topics.refresh()
    for topic in asked:
        numbers = [number for number in topics.numbers(topic["topic"]) if number in topic["partitions"]]
        if numbers:
            yield topic["topic"], numbers


def _sized(topics: Topics, name: str, numbers: Iterable[int]) -> Message:
    directory = topics.directory
    return {
        "name": name,
        "partitions": [
            {
                "partitionIndex": number,
                "partitionSize": _log_bytes(directory.fs, directory.partition_path(TopicPartition(name, number))),
            }
            for number in numbers
        ],
    }


def _log_bytes(fs: FileSystem, path: Path) -> int:
    """The bytes of all ``.log`` files in a partition's directory; 0 for one that was just removed."""
    size = 0
    try:
        for name in fs.list(path):
            if name.endswith(LOG_SUFFIX):
                with suppress(FileMissingError):
                    size += fs.stat(path / name).size
    except FileMissingError:
        return 0
    return size
