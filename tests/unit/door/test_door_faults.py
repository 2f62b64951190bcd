"""What a door does wrong on purpose, for tests of clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.door.apis import APIS
from kstore.door.errors import NOT_LEADER_OR_FOLLOWER
from kstore.door.faults import CODES, PLACES, Faults, refusal
from kstore.door.frames import wire_of
from kstore.errors import ConfigError
from kstore.messages._wire import MessageReader
from tests.support.lives.door_parts import WireClient, opened

# Answers with no place for an error of the whole request.
WITHOUT_A_PLACE = {("DescribeLogDirs", 1), ("DescribeLogDirs", 2), ("OffsetFetch", 1)}
METADATA = {"topics": [{"name": "orders"}], "allowAutoTopicCreation": False}


@pytest.fixture
def door(tmp_path: Path) -> Iterator[kstore.Door]:
    with kstore.open(tmp_path / "store", durability="os") as store:
        store.create_topic("orders", partitions=2)
        with opened(store) as (door, _):
            yield door


@pytest.fixture
def client(door: kstore.Door) -> Iterator[WireClient]:
    with WireClient(door.port) as client:
        yield client


def error_of(answer: dict[str, Any]) -> int:
    [topic] = answer["topics"]
    return int(topic["errorCode"])


def test_the_next_requests_fail_and_those_after_them_do_not(door: kstore.Door, client: WireClient) -> None:
    door.faults.fail_next("Metadata", "LEADER_NOT_AVAILABLE", count=2)
    door.faults.fail_next("Metadata", 3)
    codes = [error_of(client.ask("Metadata", 9, METADATA)) for _ in range(4)]
    assert codes == [5, 5, 3, 0]


def test_a_failure_is_for_its_api_alone(door: kstore.Door, client: WireClient) -> None:
    door.faults.fail_next("DescribeCluster", "CLUSTER_AUTHORIZATION_FAILED")
    assert error_of(client.ask("Metadata", 9, METADATA)) == 0
    assert client.ask("DescribeCluster", 0)["errorCode"] == 31


def test_an_answer_is_lost_after_the_request_was_carried_out(door: kstore.Door, client: WireClient) -> None:
    handled = []
    before = Faults.answer

    def watched(self: Faults, *given: Any) -> Any:
        handled.append(given)
        return before(self, *given)

    door.faults.lose_next_answer("Metadata")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door._served, "handled", lambda *given: watched(door.faults, *given))
        client.send("Metadata", 9, METADATA)
        assert client.is_closed_by_peer()
    assert len(handled) == 1
    with WireClient(door.port) as second:
        assert error_of(second.ask("Metadata", 9, METADATA)) == 0


def test_a_delayed_request_is_answered_later_and_no_other_one_waits(door: kstore.Door, client: WireClient) -> None:
    door.faults.delay("Metadata", 3_600_000)
    client.send("Metadata", 9, METADATA)
    with WireClient(door.port) as other:
        assert other.ask("DescribeCluster", 0)["errorCode"] == 0
    door.close()  # which does not wait for the hour
    assert client.is_closed_by_peer()


def test_a_delay_ends(door: kstore.Door, client: WireClient) -> None:
    door.faults.delay("Metadata", 1)
    assert error_of(client.ask("Metadata", 9, METADATA)) == 0


@pytest.mark.parametrize("partition", [None, ("orders", 1)])
def test_a_request_without_an_answer_gets_it_when_the_faults_end(
    door: kstore.Door, client: WireClient, partition: tuple[str, int] | None
) -> None:
    door.faults.stop_answering("ListOffsets", partition)
    asked = {"replicaId": -1, "topics": [{"name": "orders", "partitions": [{"partitionIndex": 1, "timestamp": -1}]}]}
    client.send("ListOffsets", 5, asked)
    asking = threading.Thread(target=door.faults.clear)
    client.socket.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.socket.recv(1)
    client.socket.settimeout(20)
    asking.start()
    [topic] = client.answer()["topics"]
    asking.join()
    assert topic["partitions"][0]["errorCode"] == 0


def test_requests_that_do_not_name_the_partition_are_answered(door: kstore.Door, client: WireClient) -> None:
    door.faults.stop_answering("ListOffsets", ("orders", 1))
    asked = {"replicaId": -1, "topics": [{"name": "orders", "partitions": [{"partitionIndex": 0, "timestamp": -1}]}]}
    [topic] = client.ask("ListOffsets", 5, asked)["topics"]
    assert topic["partitions"][0]["errorCode"] == 0


def test_a_client_that_leaves_ends_its_silent_request(door: kstore.Door, client: WireClient) -> None:
    door.faults.stop_answering("Metadata")
    client.send("Metadata", 9, METADATA)
    client.socket.close()
    while door._server.connection_count > 1:  # the fixture's own client stays
        threading.Event().wait(0.01)


def test_unknown_names_are_refused_with_a_suggestion(door: kstore.Door) -> None:
    with pytest.raises(ConfigError, match="did you mean 'Metadata'"):
        door.faults.fail_next("metadata", 3)
    with pytest.raises(ConfigError, match="did you mean 'NOT_LEADER_OR_FOLLOWER'"):
        door.faults.fail_next("Metadata", "NOT_LEADER_OR_FOLOWER")
    with pytest.raises(ConfigError, match="requests of Metadata name no partitions"):
        door.faults.stop_answering("Metadata", ("orders", 0))


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_a_refusal_can_be_written_and_has_its_error_in_every_version(api: Any) -> None:
    wire = wire_of(api.name)
    for version in range(api.lowest, api.highest + 1):
        body = {places.asked: [_element(places)] for places in PLACES.get(api.name, ())}
        data = wire.response.write(refusal(api.name, body, NOT_LEADER_OR_FOLLOWER), version)
        read = wire.response.read(MessageReader(data), version)
        found = list(_codes(read))
        if (api.name, version) not in WITHOUT_A_PLACE and api.name != "ApiVersions":
            assert NOT_LEADER_OR_FOLLOWER in found, version


def _element(places: Any) -> Any:
    if places.fields[0][0] == "":
        return "name"
    element: dict[str, Any] = {
        here: 1 if here in ("index", "partition", "partitionIndex", "resourceType") else "name"
        for here, _ in places.fields
    }
    if places.parts is not None:
        element[places.parts.asked] = [_element(places.parts)]
    return element


def _codes(found: Any) -> Iterator[int]:
    if isinstance(found, dict):
        for name, value in found.items():
            if name == "errorCode":
                yield value
            yield from _codes(value)
    elif isinstance(found, list):
        for each in found:
            yield from _codes(each)


def test_every_error_has_kafka_s_name() -> None:
    assert CODES["UNKNOWN_TOPIC_OR_PARTITION"] == 3
    assert CODES["COORDINATOR_NOT_AVAILABLE"] == 15
    assert "NONE" not in CODES
