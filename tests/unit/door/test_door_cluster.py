"""What a door says about its cluster: Metadata and DescribeCluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.files.checkpoint import EpochEntry, write_leader_epochs
from kstore.files.local import SYSTEM_FS
from tests.support.lives.door_parts import WireClient, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.open(tmp_path / "store", durability="os") as store:
        store.create_topic("orders", 3)
        yield store


@pytest.fixture
def client(store: kstore.Store) -> Iterator[WireClient]:
    with opened(store) as (_, client):
        yield client


@pytest.mark.parametrize("version", range(13))
def test_all_topics_are_listed_in_every_version(store: kstore.Store, client: WireClient, version: int) -> None:
    answer = client.ask("Metadata", version, {"topics": None if version else []})
    [topic] = answer["topics"]
    assert (topic["name"], topic["errorCode"], topic["isInternal"]) == ("orders", 0, False)
    assert [partition["partitionIndex"] for partition in topic["partitions"]] == [0, 1, 2]
    assert [partition["isrNodes"] for partition in topic["partitions"]] == [[0]] * 3
    assert {partition["leaderId"] for partition in topic["partitions"]} == {0}
    [broker] = answer["brokers"]
    assert (broker["nodeId"], broker["host"], broker["rack"]) == (0, "127.0.0.1", None)
    if version >= 10:
        topic_id = store.summary("orders").topic_id
        assert topic_id is not None
        assert topic["topicId"] == topic_id.bytes


def test_an_empty_list_asks_for_the_brokers_alone(client: WireClient) -> None:
    answer = client.ask("Metadata", 1, {"topics": []})
    assert (len(answer["brokers"]), answer["topics"]) == (1, [])


def test_an_unknown_topic_is_not_created_unless_that_is_allowed(store: kstore.Store, client: WireClient) -> None:
    asked = {"topics": [{"name": "new"}], "allowAutoTopicCreation": False}
    [topic] = client.ask("Metadata", 4, asked)["topics"]
    assert (topic["errorCode"], topic["name"], topic["partitions"]) == (3, "new", [])
    [topic] = client.ask("Metadata", 4, asked | {"allowAutoTopicCreation": True})["topics"]
    assert (topic["errorCode"], len(topic["partitions"])) == (0, 1)
    assert store.topics() == ["new", "orders"]
    # The first versions do not ask.
    [topic] = client.ask("Metadata", 0, {"topics": [{"name": "old"}]})["topics"]
    assert topic["errorCode"] == 0


def test_a_door_may_create_no_topics_or_more_partitions(store: kstore.Store) -> None:
    with opened(store, auto_create_partitions=0) as (_, client):
        assert client.ask("Metadata", 1, {"topics": [{"name": "new"}]})["topics"][0]["errorCode"] == 3
    with opened(store, auto_create_partitions=4) as (_, client):
        assert len(client.ask("Metadata", 1, {"topics": [{"name": "new"}]})["topics"][0]["partitions"]) == 4


@pytest.mark.parametrize("name", ["", "..", "a b", "x" * 250, "ord/ers", "ä"])
def test_a_name_that_no_topic_can_have_is_invalid(client: WireClient, name: str) -> None:
    [topic] = client.ask("Metadata", 9, {"topics": [{"name": name}]})["topics"]
    assert topic["errorCode"] == 17


def test_a_name_that_differs_in_dots_and_underscores_only_is_invalid(store: kstore.Store, client: WireClient) -> None:
    store.create_topic("a.b")
    [topic] = client.ask("Metadata", 9, {"topics": [{"name": "a_b"}]})["topics"]
    assert topic["errorCode"] == 17


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__queue_q", "__cluster_metadata"])
def test_a_reserved_topic_is_not_created_by_its_name(store: kstore.Store, client: WireClient, name: str) -> None:
    [topic] = client.ask("Metadata", 9, {"topics": [{"name": name}]})["topics"]
    assert topic["errorCode"] == 3
    assert store.topics(internal=True) == ["orders"]


def test_queues_are_shown_only_when_they_are_named(store: kstore.Store, client: WireClient) -> None:
    store.queue("jobs").put(b"x")
    assert [topic["name"] for topic in client.ask("Metadata", 1, {"topics": None})["topics"]] == ["orders"]
    [topic] = client.ask("Metadata", 1, {"topics": [{"name": "jobs"}]})["topics"]
    assert topic["errorCode"] == 0


def test_internal_topics_are_marked(store: kstore.Store, client: WireClient) -> None:
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
    topics = client.ask("Metadata", 1, {"topics": None})["topics"]
    assert {topic["name"]: topic["isInternal"] for topic in topics} == {"__transaction_state": True, "orders": False}


def test_the_leader_epoch_is_the_log_s_own(store: kstore.Store) -> None:
    path = store.path / "orders-1" / "leader-epoch-checkpoint"
    write_leader_epochs(SYSTEM_FS, path, [EpochEntry(2, 0), EpochEntry(5, 10)])
    with opened(store) as (_, client):
        [topic] = client.ask("Metadata", 7, {"topics": None})["topics"]
    assert [partition["leaderEpoch"] for partition in topic["partitions"]] == [0, 5, 0]


def test_allowed_operations_are_told_only_when_asked(client: WireClient) -> None:
    answer = client.ask("Metadata", 8, {"topics": None})
    unknown = -(2**31)
    assert answer["clusterAuthorizedOperations"] == answer["topics"][0]["topicAuthorizedOperations"] == unknown
    asked = {"topics": None, "includeClusterAuthorizedOperations": True, "includeTopicAuthorizedOperations": True}
    answer = client.ask("Metadata", 8, asked)
    assert answer["clusterAuthorizedOperations"] & 1 << 8
    assert answer["topics"][0]["topicAuthorizedOperations"] & 1 << 3


def test_the_cluster_is_the_store_s_own_and_stays_the_same(store: kstore.Store) -> None:
    meta = dict(line.split("=") for line in (store.path / "meta.properties").read_text().splitlines() if "=" in line)
    for _ in range(2):
        with opened(store) as (_, client):
            answer = client.ask("DescribeCluster", 1)
            assert answer["clusterId"] == meta["cluster.id"]
            assert [broker["brokerId"] for broker in answer["brokers"]] == [0]
            assert client.ask("DescribeCluster", 1, {"endpointType": 2})["errorCode"] == 114
            assert client.ask("DescribeCluster", 1, {"endpointType": 3})["errorCode"] == 115


def test_a_directory_without_ids_gets_those_of_its_path_and_no_file(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store") as store:
        store.create_topic("orders")
    (tmp_path / "store" / "meta.properties").unlink()
    before = sorted(tmp_path.rglob("*"))
    ids = set()
    for _ in range(2):
        with kstore.open(tmp_path / "store", read_only=True) as store, opened(store) as (_, client):
            answer = client.ask("Metadata", 9, {"topics": [{"name": "orders"}, {"name": "new"}]})
            ids.add(answer["clusterId"])
            assert [topic["errorCode"] for topic in answer["topics"]] == [0, 3]
    assert len(ids) == 1
    assert len(ids.pop()) == 22
    assert sorted(tmp_path.rglob("*")) == before
