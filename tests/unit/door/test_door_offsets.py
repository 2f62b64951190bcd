"""ListOffsets and OffsetForLeaderEpoch, called without a connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import Store
from kstore.door import errors
from kstore.files.paths import LEADER_EPOCHS
from tests.support.lives.door_calls import Caller, served

TIMES = [1000, 3000, 2000, 3000]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kstore.open(tmp_path / "store", durability="os", background=False) as store:
        store.create_topic("orders", 2)
        for time in TIMES:
            store.log("orders").append(b"value", timestamp=time)
    (tmp_path / "store" / "orders-0" / LEADER_EPOCHS).write_text("0\n2\n0 0\n4 2\n")
    with kstore.open(tmp_path / "store", durability="os", background=False) as store:
        yield store


def asked(caller: Caller, timestamp: int, *, version: int = 8, topic: str = "orders", partition: int = 0) -> Any:
    body = {
        "replicaId": -1,
        "isolationLevel": 0,
        "topics": [
            {
                "name": topic,
                "partitions": [{"partitionIndex": partition, "currentLeaderEpoch": -1, "timestamp": timestamp}],
            }
        ],
    }
    [part] = caller.call("ListOffsets", version, body)["topics"][0]["partitions"]
    return part["errorCode"], part["offset"], part["timestamp"], part["leaderEpoch"]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (0, 4, -1, 4)),
        (-2, (0, 0, -1, 0)),
        (-3, (0, 1, 3000, 0)),
        (-4, (0, 0, -1, 0)),
        (-5, (errors.UNSUPPORTED_VERSION, -1, -1, -1)),
        (-99, (errors.UNSUPPORTED_VERSION, -1, -1, -1)),
        (0, (0, 0, 1000, 0)),
        (1001, (0, 1, 3000, 0)),
        (3000, (0, 1, 3000, 0)),
        (3001, (0, -1, -1, -1)),
    ],
)
def test_what_a_time_or_a_special_value_means(
    store: Store, timestamp: int, expected: tuple[int, ...], read_only: bool
) -> None:
    if not read_only:
        assert asked(Caller(served(store)), timestamp) == expected
        return
    with kstore.open(store.path, read_only=True) as view:
        assert asked(Caller(served(view)), timestamp) == expected


@pytest.mark.parametrize(("timestamp", "since"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8)])
def test_a_special_value_of_a_later_version_is_refused(store: Store, timestamp: int, since: int) -> None:
    caller = Caller(served(store))
    for version in range(1, 9):
        error, *_ = asked(caller, timestamp, version=version)
        assert error == (errors.NONE if version >= since else errors.UNSUPPORTED_VERSION)


def test_an_empty_partition_begins_and_ends_at_0(store: Store) -> None:
    caller = Caller(served(store))
    assert asked(caller, -2, partition=1) == asked(caller, -1, partition=1) == (0, 0, -1, 0)
    assert asked(caller, -3, partition=1) == asked(caller, 5, partition=1) == (0, -1, -1, -1)


@pytest.mark.parametrize(("topic", "partition"), [("nowhere", 0), ("orders", 2), ("orders", -1)])
def test_an_unknown_partition_has_its_own_error(store: Store, topic: str, partition: int) -> None:
    found = asked(Caller(served(store)), -1, topic=topic, partition=partition)
    assert found == (errors.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)


def test_with_read_committed_the_end_is_where_the_open_transaction_begins(store: Store) -> None:
    caller = Caller(served(store))
    with store.producer(transactional_id="one") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"open", partition=0, timestamp=9000)
        producer.flush()
        ends = []
        for level in (0, 1):
            found = []
            for when in (-1, 9000):
                topics = [{"name": "orders", "partitions": [{"partitionIndex": 0, "timestamp": when}]}]
                answer = caller.call("ListOffsets", 8, {"replicaId": -1, "isolationLevel": level, "topics": topics})
                found.append(answer["topics"][0]["partitions"][0]["offset"])
            ends.append(found)
        producer.abort_transaction()
    assert ends == [[5, 4], [4, -1]]


def test_a_partition_that_is_asked_for_twice_is_refused_once(store: Store) -> None:
    partitions = [{"partitionIndex": number, "timestamp": -1} for number in (0, 1, 0)]
    body = {"replicaId": -1, "topics": [{"name": "orders", "partitions": partitions}]}
    found = Caller(served(store)).call("ListOffsets", 8, body)["topics"][0]["partitions"]
    assert {part["partitionIndex"]: part["errorCode"] for part in found} == {0: errors.INVALID_REQUEST, 1: 0}
    assert len(found) == 2


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, (0, 2)), (1, (0, 2)), (3, (0, 2)), (4, (4, 4)), (5, (-1, -1)), (-1, (-1, -1))]
)
def test_an_epoch_ends_where_the_next_one_begins(store: Store, epoch: int, expected: tuple[int, int]) -> None:
    for version in (2, 3, 4):
        partition = {"partition": 0, "currentLeaderEpoch": 4, "leaderEpoch": epoch}
        body = {"replicaId": -1, "topics": [{"topic": "orders", "partitions": [partition]}]}
        [found] = Caller(served(store)).call("OffsetForLeaderEpoch", version, body)["topics"][0]["partitions"]
        assert (found["errorCode"], found["leaderEpoch"], found["endOffset"]) == (0, *expected)


def test_a_log_without_recorded_epochs_has_epoch_0(store: Store) -> None:
    body = {"topics": [{"topic": "orders", "partitions": [{"partition": 1, "leaderEpoch": 0}, {"partition": 7}]}]}
    one, unknown = Caller(served(store)).call("OffsetForLeaderEpoch", 4, body)["topics"][0]["partitions"]
    assert (one["errorCode"], one["leaderEpoch"], one["endOffset"]) == (0, 0, 0)
    assert (unknown["errorCode"], unknown["leaderEpoch"]) == (errors.UNKNOWN_TOPIC_OR_PARTITION, -1)
