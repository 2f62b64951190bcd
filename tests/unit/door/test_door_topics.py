"""Topics that clients create, grow, change and delete through a door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.support.lives.door_parts import WireClient, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.open(tmp_path / "store", durability="os") as store:
        store.create_topic("orders", 2)
        yield store


@pytest.fixture
def client(store: kstore.Store) -> Iterator[WireClient]:
    with opened(store) as (_, client):
        yield client


def topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "numPartitions": partitions, "replicationFactor": factor, **more}


def configs(**settings: str | None) -> list[dict[str, str | None]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in settings.items()]


@pytest.mark.parametrize("version", range(2, 7))
def test_a_topic_is_created_in_every_version(store: kstore.Store, client: WireClient, version: int) -> None:
    settings = configs(retention_ms="60000", cleanup_policy="compact", min_cleanable_dirty_ratio="0.25")
    [answer] = client.ask("CreateTopics", version, {"topics": [topic("new", 3, configs=settings)]})["topics"]
    assert (answer["name"], answer["errorCode"], answer["errorMessage"] or "") == ("new", 0, "")
    if version >= 5:
        assert (answer["numPartitions"], answer["replicationFactor"]) == (3, 1)
    described = store.describe_topic("new")
    assert len(described.partitions) == 3
    assert described.settings == {"retention_ms": 60000, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.25}


def test_each_topic_of_a_request_has_its_own_outcome(store: kstore.Store, client: WireClient) -> None:
    topics = [
        topic("orders"),
        topic("good", factor=3),
        topic("none", 0),
        topic("factor", factor=0),
        topic("many", 10_001),
        topic("a b"),
        topic("__consumer_offsets"),
        topic("__queue_q"),
        topic("good_"),
        topic("config", configs=configs(no_such="1")),
        topic("value", configs=configs(retention_ms="soon")),
        topic("empty", configs=configs(retention_ms=None)),
        topic("kept", configs=configs(min_insync_replicas="2")),
        topic("own", configs=[{"name": "file_mode", "value": "0777"}]),
        topic("twice"),
        topic("twice"),
        topic("placed", -1, -1, assignments=[{"partitionIndex": n, "brokerIds": [0]} for n in (1, 0)]),
        topic("gap", -1, -1, assignments=[{"partitionIndex": 1, "brokerIds": [0]}]),
        topic("elsewhere", -1, -1, assignments=[{"partitionIndex": 0, "brokerIds": [0, 1]}]),
        topic("default", -1, -1),
    ]
    codes = {one["name"]: one["errorCode"] for one in client.ask("CreateTopics", 5, {"topics": topics})["topics"]}
    refused = {
        "orders": 36,
        "none": 37,
        "factor": 38,
        "many": 44,
        "a b": 17,
        "__consumer_offsets": 17,
        "__queue_q": 17,
        "config": 40,
        "value": 40,
        "empty": 40,
        "own": 40,
        "twice": 42,
        "gap": 39,
        "elsewhere": 39,
    }
    made = ["default", "good", "good_", "kept", "placed"]
    assert codes == {**refused, **dict.fromkeys(made, 0)}
    assert store.topics(internal=True) == sorted([*made, "orders"])
    assert len(store.partitions("placed")) == 2


def test_a_topic_whose_name_collides_is_invalid(store: kstore.Store, client: WireClient) -> None:
    store.create_topic("a.b")
    for check_only in (True, False):
        body = {"topics": [topic("a_b")], "validateOnly": check_only}
        assert client.ask("CreateTopics", 5, body)["topics"][0]["errorCode"] == 17


def test_what_is_only_validated_is_not_created(store: kstore.Store, client: WireClient) -> None:
    topics = [topic("new", 2), topic("orders"), topic("bad", configs=configs(segment_bytes="1"))]
    answer = client.ask("CreateTopics", 5, {"topics": topics, "validateOnly": True})
    assert [one["errorCode"] for one in answer["topics"]] == [0, 36, 40]
    assert store.topics() == ["orders"]


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows(store: kstore.Store, client: WireClient, version: int) -> None:
    def grow(name: str, count: int, *, check_only: bool = False) -> int:
        body = {"topics": [{"name": name, "count": count, "assignments": None}], "validateOnly": check_only}
        return int(client.ask("CreatePartitions", version, body)["results"][0]["errorCode"])

    assert grow("orders", 4, check_only=True) == 0
    assert store.partitions("orders") == [0, 1]
    assert grow("orders", 4) == 0
    assert store.partitions("orders") == [0, 1, 2, 3]
    assert [grow("orders", 4), grow("orders", 1), grow("none", 4), grow("orders", 20_000)] == [37, 37, 3, 44]


@pytest.mark.parametrize("version", range(1, 6))
def test_a_topic_is_deleted(store: kstore.Store, client: WireClient, version: int) -> None:
    answer = client.ask("DeleteTopics", version, {"topicNames": ["orders", "none", "__consumer_offsets"]})
    assert [one["errorCode"] for one in answer["responses"]] == [0, 3, 29]
    assert store.topics() == []
    # The name is free at once.
    [again] = client.ask("CreateTopics", 2, {"topics": [topic("orders")]})["topics"]
    assert again["errorCode"] == 0


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_up_to_an_offset(store: kstore.Store, client: WireClient, version: int) -> None:
    log = store.log("orders", 1)
    log.append_many([b"x"] * 10)

    def delete(partition: int, offset: int, name: str = "orders") -> tuple[int, int]:
        partitions = [{"partitionIndex": partition, "offset": offset}]
        answer = client.ask("DeleteRecords", version, {"topics": [{"name": name, "partitions": partitions}]})
        [found] = answer["topics"][0]["partitions"]
        return found["errorCode"], found["lowWatermark"]

    assert delete(1, 4) == (0, 4)
    assert delete(1, 3) == (0, 4)
    assert delete(1, 11) == (1, -1)
    assert delete(1, -2) == (1, -1)
    assert delete(1, -1) == (0, 10)
    assert delete(2, 0) == delete(-1, 0) == delete(0, 0, "none") == (3, -1)
    assert delete(0, 0, "__consumer_offsets") == (29, -1)
    assert (log.start_offset, log.end_offset) == (10, 10)


@pytest.mark.parametrize("version", range(2))
def test_settings_are_changed_and_reset(store: kstore.Store, client: WireClient, version: int) -> None:
    def alter(name: str, *changes: tuple[int, str, str | None], kind: int = 2, check_only: bool = False) -> int:
        named = [{"configOperation": one, "name": setting, "value": value} for one, setting, value in changes]
        resources = [{"resourceType": kind, "resourceName": name, "configs": named}]
        answer = client.ask("IncrementalAlterConfigs", version, {"resources": resources, "validateOnly": check_only})
        return int(answer["responses"][0]["errorCode"])

    assert alter("orders", (0, "retention.ms", "5000"), (0, "segment.bytes", "1048576"), check_only=True) == 0
    assert store.summary("orders").settings == {}
    assert alter("orders", (0, "retention.ms", "5000"), (0, "segment.bytes", "1048576")) == 0
    assert store.summary("orders").settings == {"retention_ms": 5000, "segment_bytes": 1048576}
    assert alter("orders", (1, "retention.ms", None)) == 0
    assert store.summary("orders").settings == {"segment_bytes": 1048576}
    assert alter("orders", (0, "segment.bytes", "x"), check_only=True) == 40
    assert alter("orders", (0, "no.such", "1")) == 40
    assert alter("orders", (1, "no.such", None)) == 0
    assert alter("orders", (0, "retention.ms", None)) == alter("orders", (9, "retention.ms", "1")) == 42
    assert alter("orders", (0, "retention.ms", "1"), (0, "retention.ms", "2")) == alter("") == 42
    assert alter("orders", (2, "retention.ms", "1")) == 40
    assert alter("orders", (2, "cleanup.policy", "compact")) == 0
    assert set(str(store.summary("orders").settings["cleanup_policy"]).split(",")) == {"compact", "delete"}
    assert alter("orders", (3, "cleanup.policy", "delete")) == 0
    assert store.summary("orders").settings["cleanup_policy"] == "compact"
    assert (alter("none"), alter("0", kind=4)) == (3, 42)


def test_a_topic_or_resource_that_is_given_twice_is_refused_with_one_answer(
    store: kstore.Store, client: WireClient
) -> None:
    new = topic("new")
    created = client.ask("CreateTopics", 5, {"topics": [new, new]})["topics"]
    grown = client.ask("CreatePartitions", 3, {"topics": [{"name": "orders", "count": 9, "assignments": None}] * 2})
    deleted = client.ask("DeleteTopics", 5, {"topicNames": ["orders", "orders"]})["responses"]
    change = {"resourceType": 2, "resourceName": "orders", "configs": []}
    altered = client.ask("IncrementalAlterConfigs", 1, {"resources": [change, change]})["responses"]
    assert [one["errorCode"] for one in (*created, *grown["results"], *deleted, *altered)] == [42] * 5
    assert store.topics() == ["orders"]


def test_what_a_broker_refuses_of_new_topics(store: kstore.Store, client: WireClient) -> None:
    def code(**fields: Any) -> int:
        [answer] = client.ask("CreateTopics", 5, {"topics": [topic("new") | fields], "validateOnly": True})["topics"]
        return int(answer["errorCode"])

    node = client.ask("Metadata", 9, {"topics": []})["controllerId"]
    assignments = [{"partitionIndex": 0, "brokerIds": [node]}]
    assert code(assignments=assignments) == 42
    assert code(assignments=assignments, numPartitions=-1, replicationFactor=-1) == 0
    assert code(name="__consumer_offsets") == 17
    store.create_topic("__consumer_offsets", 1)
    assert code(name="__consumer_offsets") == 36
    assert code(name="__cluster_metadata") == 42


def test_a_new_topic_is_answered_with_its_settings(client: WireClient) -> None:
    for validate in (True, False):
        given = topic("new") | {"configs": [{"name": "segment.bytes", "value": "2097152"}]}
        [made] = client.ask("CreateTopics", 5, {"topics": [given], "validateOnly": validate})["topics"]
        found = {each["name"]: (each["value"], each["configSource"]) for each in made["configs"]}
        assert (made["errorCode"], made["errorMessage"]) == (0, None)
        assert (found["segment.bytes"], found["cleanup.policy"]) == (("2097152", 1), ("delete", 5))


def test_more_partitions_need_as_many_assignments(client: WireClient) -> None:
    node = client.ask("Metadata", 9, {"topics": []})["controllerId"]

    def code(name: str, *nodes: int) -> int:
        asked = {"name": name, "count": 9, "assignments": [{"brokerIds": [one]} for one in nodes] if nodes else None}
        return int(
            client.ask("CreatePartitions", 3, {"topics": [asked], "validateOnly": True})["results"][0]["errorCode"]
        )

    assert (code("orders", node), code("orders"), code("none"), code("a b")) == (39, 0, 3, 3)


def test_records_of_a_log_that_is_only_compacted_are_not_deleted(store: kstore.Store, client: WireClient) -> None:
    store.create_topic("kept", cleanup_policy="compact")
    store.log("kept").append(b"value", key=b"key")
    part = {"partitionIndex": 0, "offset": 1}
    answer = client.ask("DeleteRecords", 2, {"topics": [{"name": "kept", "partitions": [part]}]})
    assert answer["topics"][0]["partitions"][0]["errorCode"] == 44
    assert store.log("kept").start_offset == 0


def test_a_door_without_administration_closes_a_connection_that_asks_for_it(store: kstore.Store) -> None:
    with opened(store, admin=False) as (_, client):
        client.send("CreateTopics", 5, {"topics": [topic("new")]})
        assert client.is_closed_by_peer()
    assert store.topics() == ["orders"]
