"""Topics that clients make, grow, change and delete: CreateTopics, CreatePartitions, IncrementalAlterConfigs,
DeleteTopics, DeleteRecords.

Each topic of a request has its own outcome. A store has one copy of each log, so any number of replicas is accepted:
scripts ask for three. Settings of Kafka that mean nothing without replicas, or with this store, are accepted too, and
not kept; any other unknown one is refused.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kstore.config import RULES
from kstore.door import errors
from kstore.door.call import Call, Message
from kstore.door.cluster import is_reserved
from kstore.door.describing import LIST, OTHER_TYPES, rows_of
from kstore.door.errors import code_of
from kstore.errors import ConfigError, KstoreError, RequestError, TopicExistsError, TopicNotFoundError
from kstore.files.paths import METADATA_TOPIC, validate_topic
from kstore.rules.topics import collision, kept_settings
from kstore.store import Store, parts_of

logger = logging.getLogger(__name__)

# Kafka: QuotaManager's limit for one request, since each is a directory.
PARTITIONS_MAX = 10_000
DEFAULT = -1
HIGH_WATERMARK = -1
TOPIC = 2
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
# From this version on, CreateTopics shows the settings of what it made.
CONFIGS_VERSION = 5

# By Kafka's name, kstore's.
SETTINGS = {rule.kafka_name: name for name, rule in RULES.items() if rule.kafka_name}
WITHOUT_MEANING = frozenset(
    {
        "compression.lz4.level",
        "errors.deadletterqueue.group.enable",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "message.downconversion.enable",
        "message.format.version",
        "min.insync.replicas",
        "preallocate",
        "remote.copy.disable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
)


class Refused(Exception):
    """One topic of a request cannot be served: the code, and what was found and expected."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(reason)


def create_topics(call: Call) -> Message:
    return {"topics": _outcomes(call.body["topics"], partial(_create, call))}


def _outcomes(asked: Sequence[Message], act: Callable[[Message], Message]) -> list[Message]:
    """An answer for each topic. One that is given twice is refused, with one answer, as by a broker."""
    counts = Counter(topic["name"] for topic in asked)
    outcomes = []
    for topic in {topic["name"]: topic for topic in asked}.values():
        name = topic["name"]
        twice = {"errorCode": errors.INVALID_REQUEST, "errorMessage": "the topic is given twice"}
        outcomes.append({"name": name} | (_outcome(partial(act, topic)) if counts[name] == 1 else twice))
    return outcomes


def _create(call: Call, topic: Message) -> Message:
    store, name = call.door.store, topic["name"]
    _check_name(name)
    if is_reserved(name):
        if name == METADATA_TOPIC:
            raise Refused(errors.INVALID_REQUEST, f"{name} is no topic of clients")
        code = errors.TOPIC_ALREADY_EXISTS if parts_of(store).topics.count(name) else errors.INVALID_TOPIC_EXCEPTION
        raise Refused(code, f"the name {name} is reserved")
    count = _partition_count(call, topic)
    factor = topic["replicationFactor"]
    if factor < DEFAULT or factor == 0:
        raise Refused(errors.INVALID_REPLICATION_FACTOR, f"a replication factor of {factor}, expected 1")
    settings = _settings((config["name"], config["value"]) for config in topic["configs"])
    kept = kept_settings(settings)
    topics = parts_of(store).topics
    config, _ = topics.settings.effective(name, kept)
    if call.body["validateOnly"]:
        if topics.count(name):
            raise TopicExistsError(f"there is a topic {name}")
        if (other := collision(name, topics.directory.topics)) is not None:
            raise Refused(errors.INVALID_TOPIC_EXCEPTION, f"it differs from {other} only in '.' and '_'")
    else:
        try:
            store.create_topic(name, count, **settings)
        except TopicExistsError as error:
            if not topics.count(name):
                raise Refused(errors.INVALID_TOPIC_EXCEPTION, str(error)) from None
            raise
        if factor > 1:
            logger.info("topic %s has one copy of each partition, not %d", name, factor)
    made = store.summary(name).topic_id if topics.count(name) else None
    return {
        "numPartitions": count,
        "replicationFactor": 1,
        "configs": rows_of(config, kept) if call.version >= CONFIGS_VERSION else [],
        "errorMessage": None,
        **({} if made is None else {"topicId": made.bytes}),
    }


def _partition_count(call: Call, topic: Message) -> int:
    assignments = topic["assignments"]
    count: int = topic["numPartitions"]
    if assignments:
        if count != DEFAULT or topic["replicationFactor"] != DEFAULT:
            raise Refused(errors.INVALID_REQUEST, "assignments, and a count of partitions or replicas, expected -1")
        if {one["partitionIndex"] for one in assignments} != set(range(len(assignments))):
            raise Refused(errors.INVALID_REPLICA_ASSIGNMENT, "partitions that are not numbered from 0 without gaps")
        if any(one["brokerIds"] != [call.door.node_id] for one in assignments):
            raise Refused(errors.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {call.door.node_id}")
        return len(assignments)
    if count == DEFAULT:
        return call.door.settings.auto_create_partitions or 1
    if count < 1:
        raise Refused(errors.INVALID_PARTITIONS, f"{count} partitions, expected 1 or more")
    if count > PARTITIONS_MAX:
        raise Refused(errors.POLICY_VIOLATION, f"{count} partitions, expected at most {PARTITIONS_MAX} in one request")
    return count


def _check_name(name: str) -> None:
    try:
        validate_topic(name)
    except ConfigError as error:
        raise Refused(errors.INVALID_TOPIC_EXCEPTION, str(error)) from None


def _settings(configs: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
    """The settings of a topic by kstore's names."""
    settings: dict[str, Any] = {}
    for name, value in configs:
        if name in WITHOUT_MEANING:
            continue
        if name not in SETTINGS:
            raise Refused(errors.INVALID_CONFIG, f"there is no setting {name[:80]!r} of a topic here")
        if value is None:
            raise Refused(errors.INVALID_CONFIG, f"{name} has no value")
        settings[SETTINGS[name]] = _typed(value)
    return settings


def _typed(text: str) -> object:
    """A number if the text is one: each setting's rule checks it."""
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            pass
    return text


def create_partitions(call: Call) -> Message:
    return {"results": _outcomes(call.body["topics"], partial(_grow, call))}


def _grow(call: Call, topic: Message) -> Message:
    name, wanted = topic["name"], topic["count"]
    if is_reserved(name):
        raise Refused(errors.INVALID_TOPIC_EXCEPTION, f"the name {name} is reserved")
    count = len(call.door.store.partitions(name))
    if wanted <= count:
        raise Refused(errors.INVALID_PARTITIONS, f"{wanted} partitions, and the topic has {count}")
    if wanted - count > PARTITIONS_MAX:
        raise Refused(errors.POLICY_VIOLATION, f"{wanted - count} more partitions, expected at most {PARTITIONS_MAX}")
    assignments = topic["assignments"]
    if assignments is not None and len(assignments) != wanted - count:
        reason = f"{len(assignments)} assignments for {wanted - count} more partitions"
        raise Refused(errors.INVALID_REPLICA_ASSIGNMENT, reason)
    for assignment in assignments or ():
        if assignment["brokerIds"] != [call.door.node_id]:
            raise Refused(errors.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {call.door.node_id}")
    if not call.body["validateOnly"]:
        call.door.store.add_partitions(name, wanted)
    return {}


def alter_configs(call: Call) -> Message:
    responses = []
    counts = Counter((resource["resourceType"], resource["resourceName"]) for resource in call.body["resources"])
    for resource in call.body["resources"]:
        if counts[resource["resourceType"], resource["resourceName"]] > 1:
            outcome: Message = {"errorCode": errors.INVALID_REQUEST, "errorMessage": "the resource is given twice"}
        else:
            outcome = _outcome(partial(_alter, call, resource))
        responses.append(
            {"resourceType": resource["resourceType"], "resourceName": resource["resourceName"], "errorMessage": None}
            | outcome
        )
    return {"responses": responses}


def _alter(call: Call, resource: Message) -> Message:
    if resource["resourceType"] != TOPIC:
        raise Refused(errors.INVALID_REQUEST, "only settings of topics can be changed")
    name = resource["resourceName"]
    if not name:
        raise Refused(errors.INVALID_REQUEST, "no name of a topic")
    _check_name(name)
    if is_reserved(name):
        raise Refused(errors.INVALID_TOPIC_EXCEPTION, f"the name {name} is reserved")
    if len({config["name"] for config in resource["configs"]}) < len(resource["configs"]):
        raise Refused(errors.INVALID_REQUEST, "a setting is given twice")
    store = call.door.store
    new: list[tuple[str, str]] = []
    reset: list[str] = []
    for config in resource["configs"]:
        key, operation, value = config["name"], config["configOperation"], config["value"]
        if operation == DELETE:
            # An unknown one has no value here either.
            reset += [SETTINGS[key]] if key in SETTINGS else []
        elif operation not in (SET, APPEND, SUBTRACT):
            raise Refused(errors.INVALID_REQUEST, f"operation {operation}, expected 0 to 3")
        elif value is None:
            raise Refused(errors.INVALID_REQUEST, f"{key} has no value")
        else:
            new.append((key, value if operation == SET else _changed_list(store, name, key, operation, value)))
    settings = _settings(new)
    if call.body["validateOnly"]:
        own = {**store.summary(name).settings, **kept_settings(settings)}
        parts_of(store).topics.settings.effective(name, own)
    else:
        store.alter_topic(name, reset=reset, **settings)
    return {}


def _changed_list(store: Store, topic: str, key: str, operation: int, value: str) -> str:
    """The value of a list of a topic with more items, or with fewer."""
    if OTHER_TYPES.get(key) != LIST:
        raise Refused(errors.INVALID_CONFIG, f"{key} is no list")
    now = [item for item in str(getattr(parts_of(store).topics.config(topic), SETTINGS[key])).split(",") if item]
    items = value.split(",")
    if operation == SUBTRACT:
        return ",".join(item for item in now if item not in items)
    return ",".join(dict.fromkeys([*now, *items]))


def delete_topics(call: Call) -> Message:
    return {"responses": _outcomes([{"name": name} for name in call.body["topicNames"]], partial(_delete, call))}


def _delete(call: Call, topic: Message) -> Message:
    name = topic["name"]
    if is_reserved(name):
        raise Refused(errors.TOPIC_AUTHORIZATION_FAILED, f"{name} is an internal topic")
    call.door.store.delete_topic(name)
    return {}


def delete_records(call: Call) -> Message:
    topics = [
        {
            "name": topic["name"],
            "partitions": [
                _forgotten(call, topic["name"], partition["partitionIndex"], partition["offset"])
                for partition in topic["partitions"]
            ],
        }
        for topic in call.body["topics"]
    ]
    return {"topics": topics}


def _forgotten(call: Call, topic: str, number: int, before: int) -> Message:
    def delete() -> Message:
        if is_reserved(topic):
            raise Refused(errors.TOPIC_AUTHORIZATION_FAILED, f"{topic} is an internal topic")
        if number not in call.door.store.partitions(topic):
            raise TopicNotFoundError(f"{topic} has no partition {number}")
        if before < HIGH_WATERMARK:
            raise Refused(errors.OFFSET_OUT_OF_RANGE, f"offset {before}")
        if "delete" not in parts_of(call.door.store).topics.config(topic).cleanup_policy:
            raise Refused(errors.POLICY_VIOLATION, f"records of {topic} are only compacted")
        log = call.door.store.log(topic, number)
        return {"lowWatermark": log.delete_records(log.high_watermark if before == HIGH_WATERMARK else before)}

    return {"partitionIndex": number, "lowWatermark": -1} | _outcome(delete)


def _outcome(act: Callable[[], Message]) -> Message:
    """What ``act`` says, or the code and the message of its error."""
    try:
        return {"errorCode": errors.NONE, **act()}
    except Refused as error:
        return {"errorCode": error.code, "errorMessage": str(error)}
    except RequestError as error:
        return {"errorCode": code_of(error), "errorMessage": str(error)}
    except KstoreError as error:
        # With a path of this machine, which is not the client's business.
        logger.warning("a change of a topic failed: %s", error)
        return {"errorCode": code_of(error), "errorMessage": type(error).__name__}
