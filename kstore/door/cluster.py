"""The cluster of one broker that a door shows: Metadata and DescribeCluster."""

from __future__ import annotations

from kstore.door import errors
from kstore.door.call import Call, Message
from kstore.door.errors import code_of
from kstore.door.served import Served
from kstore.errors import ConfigError, KstoreError, TopicExistsError, TopicNotFoundError
from kstore.files.checkpoint import read_leader_epochs
from kstore.files.paths import LEADER_EPOCHS, METADATA_TOPIC, TopicPartition, validate_topic
from kstore.logs.topics import Topics
from kstore.messages.primitives import Uuid
from kstore.rules.internal_topics import INTERNAL_TOPICS, QUEUE_JOURNAL, is_internal, journal_of
from kstore.store import parts_of

BROKER_ENDPOINTS, CONTROLLER_ENDPOINTS = 1, 2
# Bits of the operations that are allowed: without an authorizer, all of them (Kafka: AclOperation).
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
UNKNOWN_OPERATIONS = -(2**31)
NO_TOPIC_ID = Uuid(16)
# From this version on, Metadata may ask by a topic's id.
BY_ID_VERSION = 12


def metadata(call: Call) -> Message:
    door, body = call.door, call.body
    asked = body["topics"]
    if asked is None or (call.version == 0 and not asked):
        topics = [_described(call, name) for name in shown_topics(door)]
    elif any(_is_by_id(call, topic) for topic in asked):
        # As for each error of a whole request, a broker says nothing else.
        refused = [{**topic, "name": topic["name"] or "", "errorCode": errors.INVALID_REQUEST} for topic in asked]
        return {"brokers": [], "clusterId": None, "topics": refused}
    else:
        # Each once, as a broker does: else a small request would get an answer of any size.
        named = dict.fromkeys((topic["name"], topic["topicId"]) for topic in asked)
        topics = [_asked(call, *one) for one in named]
    return {
        "brokers": [_broker(door)],
        "clusterId": door.cluster_id,
        "controllerId": door.node_id,
        "topics": topics,
        "clusterAuthorizedOperations": (
            CLUSTER_OPERATIONS if body["includeClusterAuthorizedOperations"] else UNKNOWN_OPERATIONS
        ),
    }


def _is_by_id(call: Call, topic: Message) -> bool:
    """Whether a topic has no name, or an id in a version whose requests cannot ask by id yet."""
    if topic["topicId"] == NO_TOPIC_ID:
        return topic["name"] is None
    return call.version < BY_ID_VERSION


def describe_cluster(call: Call) -> Message:
    door, body = call.door, call.body
    kind = body["endpointType"]
    if kind != BROKER_ENDPOINTS:
        is_known = kind == CONTROLLER_ENDPOINTS
        return {
            "errorCode": errors.MISMATCHED_ENDPOINT_TYPE if is_known else errors.UNSUPPORTED_ENDPOINT_TYPE,
            "errorMessage": f"endpoint type {kind}, expected {BROKER_ENDPOINTS}: brokers",
        }
    operations = CLUSTER_OPERATIONS if body["includeClusterAuthorizedOperations"] else UNKNOWN_OPERATIONS
    broker = _broker(door)
    broker["brokerId"] = broker.pop("nodeId")
    return {
        "clusterId": door.cluster_id,
        "controllerId": door.node_id,
        "brokers": [broker],
        "clusterAuthorizedOperations": operations,
    }


def _broker(door: Served) -> Message:
    return {"nodeId": door.node_id, "host": door.host, "port": door.port, "rack": None}


# --- topics -----------------------------------------------------------------------------------------------------------


def is_hidden(topics: Topics, name: str) -> bool:
    """Whether a topic is left out of lists: one of a queue, whose items are given out by the queue alone."""
    return name.startswith(QUEUE_JOURNAL) or journal_of(name) in topics.directory.topics


def is_reserved(name: str) -> bool:
    """Whether clients may not create, delete or write to a topic of this name."""
    return is_internal(name) or name == METADATA_TOPIC


def shown_topics(door: Served) -> list[str]:
    """All topics that a client sees in a list."""
    topics = parts_of(door.store).topics
    return [name for name in topics.names(internal=True) if name != METADATA_TOPIC and not is_hidden(topics, name)]


def _asked(call: Call, name: str | None, topic_id: Uuid) -> Message:
    """A topic that the client names. None is found by its id: no other request of a door could use one."""
    if topic_id != NO_TOPIC_ID:
        return {"errorCode": errors.UNKNOWN_TOPIC_ID, "name": None, "topicId": topic_id}
    if not name:
        return _failed("", errors.INVALID_TOPIC_EXCEPTION)
    try:
        validate_topic(name)
    except ConfigError:
        return _failed(name, errors.INVALID_TOPIC_EXCEPTION)
    described = _described(call, name)
    if described["errorCode"] != errors.UNKNOWN_TOPIC_OR_PARTITION:
        return described
    count = call.door.auto_create_partitions
    if not (count and call.body["allowAutoTopicCreation"]) or is_reserved(name):
        return described
    try:
        call.door.store.create_topic(name, count, exist_ok=True)
    except TopicExistsError:  # one that differs in "." and "_" only
        return _failed(name, errors.INVALID_TOPIC_EXCEPTION)
    except KstoreError as error:
        return _failed(name, code_of(error))
    return _described(call, name)


def _failed(name: str, code: int) -> Message:
    return {"errorCode": code, "name": name, "isInternal": name in INTERNAL_TOPICS}


def _described(call: Call, name: str) -> Message:
    topics = parts_of(call.door.store).topics
    try:
        topics.refresh()
        entry, numbers = topics.directory.topic(name)
    except TopicNotFoundError:
        return _failed(name, errors.UNKNOWN_TOPIC_OR_PARTITION)
    except KstoreError as error:
        return _failed(name, code_of(error))
    node = call.door.node_id
    partitions = [
        {
            "partitionIndex": number,
            "leaderId": node,
            "leaderEpoch": leader_epoch(topics, TopicPartition(name, number)) if call.version >= 7 else -1,
            "replicaNodes": [node],
            "isrNodes": [node],
        }
        for number in numbers
    ]
    return {
        "errorCode": errors.NONE,
        "name": name,
        "topicId": NO_TOPIC_ID if entry.topic_id is None else Uuid(entry.topic_id.bytes),
        "isInternal": name in INTERNAL_TOPICS,
        "partitions": partitions,
        "topicAuthorizedOperations": (
            TOPIC_OPERATIONS if call.body["includeTopicAuthorizedOperations"] else UNKNOWN_OPERATIONS
        ),
    }


def leader_epoch(topics: Topics, owner: TopicPartition) -> int:
    """The latest leader epoch of a log, 0 if it has none. No log is opened."""
    directory = topics.directory
    try:
        entries = read_leader_epochs(directory.fs, directory.partition_path(owner) / LEADER_EPOCHS)
    except KstoreError:  # damaged, or being removed: opening the log repairs it, or raises
        return 0
    return entries[-1].epoch if entries else 0
