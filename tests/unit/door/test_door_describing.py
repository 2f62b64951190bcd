"""DescribeConfigs and DescribeLogDirs, called without a connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import Store
from kstore.door import errors
from tests.support.lives.door_calls import Caller, served

TOPIC, BROKER, GROUP = 2, 4, 32


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kstore.open(tmp_path / "store", durability="os", background=False, retention_ms=5000) as opened:
        opened.create_topic("orders", 2, cleanup_policy="compact,delete", segment_bytes=1 << 20)
        yield opened


def described(
    store: Store, kind: int, name: str, *, keys: list[str] | None = None, version: int = 4, **flags: bool
) -> dict[str, Any]:
    resource = {"resourceType": kind, "resourceName": name, "configurationKeys": keys}
    [found] = Caller(served(store)).call("DescribeConfigs", version, {"resources": [resource], **flags})["results"]
    assert (found["resourceType"], found["resourceName"]) == (kind, name)
    return dict(found)


def values(found: dict[str, Any]) -> dict[str, tuple[str, int, int]]:
    return {row["name"]: (row["value"], row["configSource"], row["configType"]) for row in found["configs"]}


def test_a_topic_shows_its_own_settings_the_stores_and_the_defaults(store: Store) -> None:
    found = values(described(store, TOPIC, "orders"))
    assert found["cleanup.policy"] == ("compact,delete", 1, 7)
    assert found["segment.bytes"] == ("1048576", 1, 3)
    assert found["retention.ms"] == ("5000", 4, 5)
    assert found["compression.type"] == ("producer", 5, 2)
    assert found["min.cleanable.dirty.ratio"] == ("0.5", 5, 6)
    assert all("." in name for name in found), "Kafka's names, and nothing that Kafka lacks"


@pytest.mark.parametrize("version", range(1, 5))
def test_only_the_settings_that_are_asked_for_are_shown(store: Store, version: int) -> None:
    found = described(store, TOPIC, "orders", keys=["retention.ms", "nothing"], version=version, includeSynonyms=True)
    [row] = found["configs"]
    assert row["synonyms"] == [{"name": "retention.ms", "value": "5000", "source": 4}]
    assert not row["documentation"]


def test_documentation_is_there_if_it_is_asked_for(store: Store) -> None:
    [row] = described(store, TOPIC, "orders", keys=["segment.bytes"], includeDocumentation=True)["configs"]
    assert row["documentation"]


def test_the_node_shows_where_it_is(store: Store) -> None:
    found = described(store, BROKER, "1")
    assert values(found)["advertised.listeners"][0] == "PLAINTEXT://localhost:9092"
    assert values(found)["log.dirs"][0] == str(store.path.absolute())
    assert all(row["readOnly"] for row in found["configs"])


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nowhere", errors.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "2", errors.INVALID_REQUEST),
        (GROUP, "g", errors.INVALID_REQUEST),
    ],
)
def test_what_does_not_exist_has_an_error_of_its_own(store: Store, kind: int, name: str, error: int) -> None:
    found = described(store, kind, name)
    assert (found["errorCode"], found["configs"]) == (error, [])
    assert found["errorMessage"]


def sizes(store: Store, topics: Any, version: int = 4) -> dict[tuple[str, int], int]:
    [found] = Caller(served(store)).call("DescribeLogDirs", version, {"topics": topics})["results"]
    assert (found["errorCode"], found["logDir"]) == (0, str(store.path.absolute()))
    return {
        (topic["name"], part["partitionIndex"]): part["partitionSize"]
        for topic in found["topics"]
        for part in topic["partitions"]
    }


@pytest.mark.parametrize("version", range(1, 5))
def test_each_partition_has_the_bytes_of_its_segments(store: Store, version: int) -> None:
    store.log("orders", 1).append(b"value", key=b"key")
    store.log("orders", 1).roll()
    store.log("orders", 1).append(b"value", key=b"key")
    size = sum(path.stat().st_size for path in store.log("orders", 1).path.glob("*.log"))
    assert size > 0
    assert sizes(store, None, version) == {("orders", 0): 0, ("orders", 1): size}
    assert sizes(store, [{"topic": "orders", "partitions": [1, 9]}, {"topic": "x", "partitions": [0]}]) == {
        ("orders", 1): size
    }


def test_a_queues_journal_is_not_listed(store: Store) -> None:
    store.queue("jobs").put(b"item")
    assert {topic for topic, _ in sizes(store, None)} == {"orders"}
