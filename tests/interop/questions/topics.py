"""Topics, their settings, the cluster and its disk."""

from __future__ import annotations

from typing import Any

from kstore.messages.primitives import Uuid
from tests.interop.questions.side import NO_ID, Body, Side, batch, question, versions


@question
def metadata_of_topics(side: Side) -> None:
    topic = side.topic(partitions=3)
    for version in versions("Metadata"):
        fields = {
            "includeTopicAuthorizedOperations": version % 2 == 0,
            "includeClusterAuthorizedOperations": version % 2 == 0,
            "allowAutoTopicCreation": False,
        }
        side.ask("Metadata", version, topics=[{"name": topic}], **fields)
    side.ask("Metadata", 9, topics=[{"name": topic}, {"name": topic}], allowAutoTopicCreation=False)


@question
def metadata_of_no_topics(side: Side) -> None:
    side.ask_all("Metadata", range(1, 13), topics=[])


@question
def metadata_of_unknown_topics(side: Side) -> None:
    for version in range(4, 13):
        side.ask("Metadata", version, topics=[{"name": "no-such-topic"}], allowAutoTopicCreation=False)


@question
def metadata_of_bad_names(side: Side) -> None:
    for name in ("", ".", "..", "a b", "ä", "a" * 250, "a/b"):
        side.ask("Metadata", 1, topics=[{"name": name}])
        side.ask("Metadata", 9, topics=[{"name": name}], allowAutoTopicCreation=False)
        side.ask("Metadata", 12, topics=[{"name": name}], allowAutoTopicCreation=True)


@question
def metadata_by_id(side: Side) -> None:
    for version in (10, 11, 12):
        for name in (None, "no-such-topic"):
            for topic_id in (NO_ID, Uuid(b"0123456789abcdef")):
                asked = [{"name": name, "topicId": topic_id}]
                side.ask("Metadata", version, topics=asked, allowAutoTopicCreation=False)


@question
def metadata_of_a_topic_that_it_makes(side: Side) -> None:
    for version in (0, 1, 4, 12):
        name = f"{side.row}-{version}"
        side.ask("Metadata", version, topics=[{"name": name}], allowAutoTopicCreation=True)
        side.until(lambda name=name: side.is_there(name, 1))  # type: ignore[misc]
        side.ask("Metadata", version, topics=[{"name": name}], allowAutoTopicCreation=True)
    for name in ("with.dots", "with_dots"):
        side.ask("Metadata", 12, topics=[{"name": f"{side.row}-{name}"}], allowAutoTopicCreation=True)


@question
def create_a_topic(side: Side) -> None:
    for version in versions("CreateTopics"):
        name = f"{side.row}-{version}"
        asked = [{"name": name, "numPartitions": 2, "replicationFactor": 1}]
        side.ask("CreateTopics", version, topics=asked, timeoutMs=30_000, validateOnly=True)
        side.ask("CreateTopics", version, topics=asked, timeoutMs=30_000)
        side.until(lambda name=name: side.is_there(name, 2))  # type: ignore[misc]
        for validate in (True, False):
            side.ask("CreateTopics", version, topics=asked, timeoutMs=30_000, validateOnly=validate)


TOPICS: dict[str, Body] = {
    "no partitions": {"numPartitions": 0},
    "minus two partitions": {"numPartitions": -2},
    "default partitions": {"numPartitions": -1, "replicationFactor": -1},
    "no replica": {"replicationFactor": 0},
    "minus two replicas": {"replicationFactor": -2},
    "three replicas": {"replicationFactor": 3},
    "unknown config": {"configs": [{"name": "no.such.config", "value": "1"}]},
    "config that is no number": {"configs": [{"name": "retention.ms", "value": "soon"}]},
    "config below its minimum": {"configs": [{"name": "segment.bytes", "value": "1"}]},
    "config without a value": {"configs": [{"name": "retention.ms", "value": None}]},
    "unknown policy": {"configs": [{"name": "cleanup.policy", "value": "burn"}]},
    "good configs": {
        "configs": [
            {"name": "cleanup.policy", "value": "compact,delete"},
            {"name": "retention.ms", "value": "86400000"},
            {"name": "min.insync.replicas", "value": "1"},
            {"name": "compression.type", "value": "zstd"},
            {"name": "message.timestamp.type", "value": "LogAppendTime"},
        ]
    },
    "assignments": {
        "numPartitions": -1,
        "replicationFactor": -1,
        "assignments": [{"partitionIndex": number, "brokerIds": ["NODE"]} for number in (0, 1)],
    },
    "assignments and partitions": {"assignments": [{"partitionIndex": 0, "brokerIds": ["NODE"]}]},
    "assignments to another node": {
        "numPartitions": -1,
        "replicationFactor": -1,
        "assignments": [{"partitionIndex": 0, "brokerIds": [77]}],
    },
    "assignments with a gap": {
        "numPartitions": -1,
        "replicationFactor": -1,
        "assignments": [{"partitionIndex": number, "brokerIds": ["NODE"]} for number in (0, 2)],
    },
}
BAD_NAMES = ("", ".", "..", "a b", "a/b", "a" * 250, "__consumer_offsets", "__cluster_metadata")


@question
def create_topics_of_all_kinds(side: Side) -> None:
    for what, fields in TOPICS.items():
        topic = {"name": f"{side.row}-{what.replace(' ', '-')}", "numPartitions": 1, "replicationFactor": 1, **fields}
        topic["assignments"] = [
            {**one, "brokerIds": [side.node if each == "NODE" else each for each in one["brokerIds"]]}
            for one in fields.get("assignments", ())
        ]
        for validate in (True, False):
            answer = side.quiet("CreateTopics", 6, topics=[topic], timeoutMs=30_000, validateOnly=validate)
            side.note(f"CreateTopics v6, {what}", answer)
            if not validate and not answer["topics"][0]["errorCode"]:
                side.until(lambda: side.is_there(topic["name"], answer["topics"][0]["numPartitions"]))  # noqa: B023


@question
def create_topics_of_bad_names(side: Side) -> None:
    side.group()  # makes __consumer_offsets
    for name in BAD_NAMES:
        asked = {"name": name, "numPartitions": 1, "replicationFactor": 1}
        for validate in (True, False):
            side.ask("CreateTopics", 6, topics=[asked], timeoutMs=30_000, validateOnly=validate)


@question
def create_topics_that_are_given_twice_or_collide(side: Side) -> None:
    def topic(name: str) -> Body:
        return {"name": f"{side.row}.{name}", "numPartitions": 1, "replicationFactor": 1}

    side.ask("CreateTopics", 6, topics=[topic("a"), topic("a"), topic("b")], timeoutMs=30_000)
    side.until(lambda: side.is_there(f"{side.row}.b", 1))
    side.ask("CreateTopics", 6, topics=[topic("b") | {"name": f"{side.row}_b"}], timeoutMs=30_000)
    side.ask("CreateTopics", 6, topics=[topic("b") | {"name": f"{side.row}_b"}], timeoutMs=30_000, validateOnly=True)
    side.ask("CreateTopics", 6, topics=[], timeoutMs=30_000)


@question
def create_partitions(side: Side) -> None:
    topic = side.topic(partitions=2)
    count = 2
    for version in versions("CreatePartitions"):
        asked = {"name": topic, "count": count + 1, "assignments": None}
        side.ask("CreatePartitions", version, topics=[asked], timeoutMs=30_000, validateOnly=True)
        side.ask("CreatePartitions", version, topics=[asked], timeoutMs=30_000)
        count += 1
        side.until(lambda count=count: side.is_there(topic, count))  # type: ignore[misc]
        for other in (count, count - 1, 0, -1):
            side.ask("CreatePartitions", version, topics=[asked | {"count": other}], timeoutMs=30_000)
    for name in ("no-such-topic", "", "a b"):
        side.ask("CreatePartitions", 3, topics=[{"name": name, "count": 2, "assignments": None}], timeoutMs=30_000)
    for nodes in ([side.node], [77], []):
        asked = {"name": topic, "count": count + 1, "assignments": [{"brokerIds": nodes}]}
        side.ask("CreatePartitions", 3, topics=[asked], timeoutMs=30_000, validateOnly=True)
    two = [{"brokerIds": [side.node]}, {"brokerIds": [side.node]}]
    asked = {"name": topic, "count": count + 1, "assignments": two}
    side.ask("CreatePartitions", 3, topics=[asked], timeoutMs=30_000, validateOnly=True)
    twice = {"name": topic, "count": count + 1, "assignments": None}
    side.ask("CreatePartitions", 3, topics=[twice, twice], timeoutMs=30_000, validateOnly=True)


@question
def delete_topics(side: Side) -> None:
    side.group()
    for version in versions("DeleteTopics"):
        topic = side.topic(str(version))
        side.ask("DeleteTopics", version, topicNames=[topic, "no-such-topic"], timeoutMs=30_000)
        side.until(lambda topic=topic: not side.is_there(topic, 1))  # type: ignore[misc]
        side.ask("DeleteTopics", version, topicNames=[topic], timeoutMs=30_000)
    for names in ([], ["", "a b"]):
        side.ask("DeleteTopics", 5, topicNames=names, timeoutMs=30_000)
    topic = side.topic("twice")
    side.ask("DeleteTopics", 5, topicNames=[topic, topic], timeoutMs=30_000)


@question
def delete_records(side: Side) -> None:
    topic = side.topic(partitions=2)
    for number in range(10):
        side.put(topic, batch(b"%d" % number))

    def ask(version: int, offset: int, name: str = topic, partition: int = 0) -> None:
        part = {"partitionIndex": partition, "offset": offset}
        side.ask("DeleteRecords", version, topics=[{"name": name, "partitions": [part]}], timeoutMs=30_000)

    for version in versions("DeleteRecords"):
        for offset in (version + 1, 0, 11, -2):
            ask(version, offset)
    ask(2, 0, partition=7)
    ask(2, 0, partition=-1)
    ask(2, 0, "no-such-topic")
    ask(2, 0, "a b")
    ask(2, -1)
    ask(2, -1)
    ask(2, 0, partition=1)
    ask(2, -1, partition=1)
    side.ask("DeleteRecords", 2, topics=[], timeoutMs=30_000)
    compacted = side.topic("compacted", cleanup_policy="compact")
    side.put(compacted, batch(b"a"))
    ask(2, 1, compacted)


# Those that both have.
CONFIGS = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
)


@question
def describe_the_configs_of_a_topic(side: Side) -> None:
    topic = side.topic(segment_bytes="2097152", cleanup_policy="compact")
    for version in versions("DescribeConfigs"):
        asked = {"resourceType": 2, "resourceName": topic, "configurationKeys": list(CONFIGS)}
        side.ask("DescribeConfigs", version, resources=[asked], includeDocumentation=version == 4)
    for keys in (["no.such.config"], ["segment.bytes", "no.such.config"]):
        asked = {"resourceType": 2, "resourceName": topic, "configurationKeys": keys}
        side.ask("DescribeConfigs", 4, resources=[asked])
    asked = {"resourceType": 2, "resourceName": topic, "configurationKeys": ["segment.bytes"]}
    side.ask("DescribeConfigs", 4, resources=[asked], includeSynonyms=True)
    for every in (None, list[str]()):
        asked = {"resourceType": 2, "resourceName": topic, "configurationKeys": every}
        [found] = side.quiet("DescribeConfigs", 4, resources=[asked])["results"]
        names = [{"name": each["name"]} for each in found["configs"]]
        side.note("DescribeConfigs v4 of all", {"results": [{"configs": names}]})


@question
def describe_the_configs_of_others(side: Side) -> None:
    for kind in (0, 1, 2, 3, 5, 127):
        for name in ("", "a b", "no-such-topic", "77"):
            asked = {"resourceType": kind, "resourceName": name, "configurationKeys": ["no.such.config"]}
            side.ask("DescribeConfigs", 4, resources=[asked])
    for name in ("77", "no number", str(side.node)):
        asked = {"resourceType": 4, "resourceName": name, "configurationKeys": ["node.id"]}
        answer = side.quiet("DescribeConfigs", 4, resources=[asked])
        answer["results"][0]["resourceName"] = ""
        side.note("DescribeConfigs v4 of a node", answer)
    side.ask("DescribeConfigs", 4, resources=[])


@question
def alter_configs(side: Side) -> None:
    topic = side.topic()

    def ask(
        version: int, *configs: tuple[str, int, str | None], kind: int = 2, name: str = topic, **fields: Any
    ) -> None:
        given = [{"name": key, "configOperation": how, "value": value} for key, how, value in configs]
        asked = {"resourceType": kind, "resourceName": name, "configs": given}
        side.ask("IncrementalAlterConfigs", version, resources=[asked], **fields)

    def shown() -> None:
        names = ["delete.retention.ms", "cleanup.policy", "segment.bytes"]
        asked = {"resourceType": 2, "resourceName": topic, "configurationKeys": names}
        side.ask("DescribeConfigs", 4, resources=[asked])

    for version in versions("IncrementalAlterConfigs"):
        ask(version, ("delete.retention.ms", 0, "3600000"), validateOnly=True)
        shown()
        ask(version, ("delete.retention.ms", 0, "3600000"), ("segment.bytes", 0, "2097152"))
        side.until(lambda: config_of(side, topic, "delete.retention.ms") == "3600000")
        shown()
        ask(version, ("delete.retention.ms", 1, None), ("segment.bytes", 1, None))
        side.until(lambda: config_of(side, topic, "delete.retention.ms") == "86400000")
        shown()
    ask(1, ("delete.retention.ms", 1, None))
    ask(1, ("no.such.config", 0, "1"))
    ask(1, ("no.such.config", 1, None))
    ask(1, ("delete.retention.ms", 0, "soon"))
    ask(1, ("delete.retention.ms", 0, None))
    ask(1, ("delete.retention.ms", 9, "1"))
    ask(1, ("delete.retention.ms", 2, "1"))
    ask(1, ("segment.bytes", 0, "1"))
    ask(1, ("delete.retention.ms", 0, "1000"), ("delete.retention.ms", 0, "2000"))
    ask(1, ("min.insync.replicas", 0, "1"))
    ask(1)
    ask(1, ("delete.retention.ms", 0, "1000"), name="no-such-topic")
    ask(1, ("delete.retention.ms", 0, "1000"), name="a b")
    ask(1, ("delete.retention.ms", 0, "1000"), name="")
    for kind in (0, 1, 127):
        ask(1, ("delete.retention.ms", 0, "1000"), kind=kind)
    side.ask("IncrementalAlterConfigs", 1, resources=[])
    given = [{"name": "delete.retention.ms", "configOperation": 0, "value": "1000"}]
    twice = {"resourceType": 2, "resourceName": topic, "configs": given}
    side.ask("IncrementalAlterConfigs", 1, resources=[twice, twice])


@question
def append_to_a_config(side: Side) -> None:
    topic = side.topic(cleanup_policy="delete")
    for how, value in ((2, "compact"), (3, "delete")):
        given = [{"name": "cleanup.policy", "configOperation": how, "value": value}]
        asked = {"resourceType": 2, "resourceName": topic, "configs": given}
        side.ask("IncrementalAlterConfigs", 1, resources=[asked])
        side.until(lambda how=how: ("delete" in config_of(side, topic, "cleanup.policy")) == (how == 2))  # type: ignore[misc]
        side.note("cleanup.policy", {"value": sorted(config_of(side, topic, "cleanup.policy").split(","))})


def config_of(side: Side, topic: str, name: str) -> Any:
    asked = {"resourceType": 2, "resourceName": topic, "configurationKeys": [name]}
    [config] = side.quiet("DescribeConfigs", 4, resources=[asked])["results"][0]["configs"]
    return config["value"]


@question
def describe_the_cluster(side: Side) -> None:
    for operations in (True, False):
        side.ask("DescribeCluster", 0, includeClusterAuthorizedOperations=operations)
        side.ask("DescribeCluster", 1, includeClusterAuthorizedOperations=operations)
    for endpoint in (0, 2, 3, -1):
        side.ask("DescribeCluster", 1, endpointType=endpoint)


@question
def describe_log_dirs(side: Side) -> None:
    topic = side.topic(partitions=2)
    side.put(topic, batch(b"a" * 100))
    for version in versions("DescribeLogDirs"):
        side.ask("DescribeLogDirs", version, topics=[{"topic": topic, "partitions": [0, 1]}])
    for asked in (
        [{"topic": topic, "partitions": [1, 7]}],
        [{"topic": topic, "partitions": []}],
        [{"topic": "no-such-topic", "partitions": [0]}],
        [],
    ):
        side.ask("DescribeLogDirs", 4, topics=asked)
