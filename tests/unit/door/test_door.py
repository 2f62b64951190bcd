"""A door and its connections: what it answers, whom it refuses, and how it ends."""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.door import connection, guard, inbox
from kstore.door.apis import APIS, BY_KEY, Api
from kstore.door.call import Call
from kstore.door.memory import Memory, Spares
from kstore.door.waiting import Waiter
from kstore.errors import ClosedError, ConfigError, LockedError, SharedLogError, StorageError
from kstore.record._codec import Record
from kstore.record.batch import CRC_START
from kstore.record.builder import build_batch
from tests.support.lives.door_parts import WireClient, frame_of, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.open(tmp_path / "store", durability="os") as store:
        yield store


# --- ApiVersions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_what_the_door_serves(store: kstore.Store, version: int) -> None:
    with opened(store) as (_, client):
        body = {"clientSoftwareName": "a-client", "clientSoftwareVersion": "1.2"}
        answer = client.ask("ApiVersions", version, body)
    assert answer["errorCode"] == 0
    assert {api["apiKey"]: api["maxVersion"] for api in answer["apiKeys"]} == {api.key: api.highest for api in APIS}
    assert (answer["finalizedFeatures"], answer["finalizedFeaturesEpoch"]) == ([], -1)


def test_a_version_of_api_versions_that_is_too_high_gets_the_answer_of_version_0(store: kstore.Store) -> None:
    with opened(store) as (_, client):
        for version in (5, 9, 32767):
            client.socket.sendall(bytes.fromhex("0000000b 0012") + struct.pack(">h", version) + b"\0\0\0\7\xff\xff\0")
            assert client.frame() == bytes.fromhex("00000007 0023 00000001 0012 0000 0004")
        # The connection goes on, in the version that it was told.
        assert client.ask("ApiVersions", 0)["errorCode"] == 0


@pytest.mark.parametrize("name", ["", "-x", "x y", "x-", "ä"])
def test_software_without_a_proper_name_is_an_invalid_request(store: kstore.Store, name: str) -> None:
    with opened(store) as (_, client):
        body = {"clientSoftwareName": name, "clientSoftwareVersion": "1"}
        assert client.ask("ApiVersions", 3, body)["errorCode"] == 42


def test_a_read_only_store_s_door_lists_only_what_reads(store: kstore.Store) -> None:
    with kstore.open(store.path, read_only=True) as copy, opened(copy) as (_, client):
        listed = {api["apiKey"] for api in client.ask("ApiVersions", 0)["apiKeys"]}
    assert listed == {api.key for api in APIS if api.in_read_only}


def test_a_read_only_store_s_door_refuses_each_batch_and_goes_on(store: kstore.Store) -> None:
    """librdkafka fetches only from brokers that list Produce."""
    store.create_topic("orders")
    partition = {"index": 0, "records": b"x" * 61}
    body = {"acks": -1, "topicData": [{"name": "orders", "partitionData": [partition]}]}
    with kstore.open(store.path, read_only=True) as copy, opened(copy) as (_, client):
        assert {"apiKey": 0, "minVersion": 0, "maxVersion": 11} in client.ask("ApiVersions", 0)["apiKeys"]
        [topic] = client.ask("Produce", 9, body)["responses"]
        assert topic["partitionResponses"][0]["errorCode"] == 44
        assert client.ask("Metadata", 1, {"topics": []})["topics"] == []
    assert store.log("orders").end_offset == 0


def test_a_door_without_administration_lists_none(store: kstore.Store) -> None:
    with opened(store, admin=False) as (_, client):
        listed = {api["apiKey"] for api in client.ask("ApiVersions", 0)["apiKeys"]}
    assert listed == {api.key for api in APIS if not api.is_admin}


# --- connections ------------------------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_requests(store: kstore.Store) -> None:
    with opened(store) as (_, client):
        for version in (0, 4, 9, 12, 1):
            client.send("Metadata", version, {"topics": [{"name": "none"}], "allowAutoTopicCreation": version < 4})
        assert [len(client.answer()["topics"]) for _ in range(5)] == [1] * 5


def test_a_frame_in_single_bytes_is_read(store: kstore.Store) -> None:
    with opened(store) as (_, client):
        for byte in frame_of("ApiVersions", 0, {}):
            client.socket.sendall(bytes([byte]))
        assert client.frame()[:6] == b"\0\0\0\1\0\0"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes|API 12064"),
        (struct.pack(">i", 0), "a frame of 0 bytes, expected at least 8"),
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (struct.pack(">ihhi", 2_000_000, 3, 0, 1), "a frame of 2000000 bytes, expected at most 1048576 for Metadata"),
        (struct.pack(">ihhi", 10, 99, 0, 1) + b"\xff\xff", "API 99, which this door does not serve"),
        (struct.pack(">ihhi", 10, 3, 13, 1) + b"\xff\xff", "Metadata version 13, expected 0 to 12"),
        (struct.pack(">ihhi", 10, 3, -1, 1) + b"\xff\xff", "Metadata version -1"),
        (struct.pack(">ihhihi", 14, 3, 1, 1, -1, 5), "topics: 5 elements, expected at most the 0 bytes that remain"),
    ],
    ids=["http", "empty", "negative", "large", "unknown", "version", "negative version", "truncated"],
)
def test_what_is_no_request_ends_its_connection_with_a_line_and_harms_no_other(
    store: kstore.Store, sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(store) as (door, other), WireClient(door.port) as client:
        client.socket.sendall(sent)
        assert client.is_closed_by_peer()
        assert other.ask("ApiVersions", 0)["errorCode"] == 0
    caplog.records[:] = [one for one in caplog.records if one.name.startswith("kstore.door")]
    assert len(caplog.records) == 1
    assert caplog.text
    import re

    assert re.search(reason, caplog.records[0].getMessage())


def test_more_elements_than_the_limit_end_the_connection(store: kstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    count = connection.ELEMENTS_MAX + 1
    data = struct.pack(">hhih", 3, 9, 1, -1) + b"\0" + b"\xa2\x8d\x06" + b"\1\0" * count + b"\0\0\0\0"
    with opened(store) as (_, client):
        client.socket.sendall(struct.pack(">i", len(data)) + data)
        assert client.is_closed_by_peer()
    assert f"{count} elements, expected at most {count - 1}" in caplog.text


def test_refusals_of_one_peer_are_a_line_a_second(store: kstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    with opened(store) as (door, _):
        for _ in range(20):
            with WireClient(door.port) as client:
                client.socket.sendall(struct.pack(">i", 0))
                assert client.is_closed_by_peer()
        assert door._served.refusals.count == 20
    assert 1 <= len(caplog.records) < 10


def test_a_peer_that_sends_too_slowly_is_closed(store: kstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "RATE_SECONDS", 0.05)
    with opened(store) as (_, client):
        client.socket.sendall(struct.pack(">i", 50))
        assert client.is_closed_by_peer()


def test_a_peer_that_takes_no_answer_is_closed(
    store: kstore.Store, handled: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SEND_SECONDS", 0.05)
    ended = threading.Event()

    class Large:
        length = 64 << 20

        def send(self, sender: Any) -> None:
            try:
                sender.write(bytes(self.length))
            finally:
                ended.set()

    handled["handle"] = lambda call: Large()
    with opened(store) as (_, client):
        client.send("Heartbeat", 0)
        assert ended.wait(20)
        with pytest.raises(ConnectionResetError):
            client.answer()


def test_an_idle_connection_is_closed(store: kstore.Store) -> None:
    with opened(store, idle_ms=50) as (_, client):
        assert client.is_closed_by_peer()


def test_connections_above_the_limit_are_closed_at_once(store: kstore.Store) -> None:
    with opened(store, connections_max=1) as (door, client):
        assert client.ask("ApiVersions", 0)["errorCode"] == 0
        with WireClient(door.port) as another:
            assert another.is_closed_by_peer()
        assert client.ask("ApiVersions", 0)["errorCode"] == 0


def test_a_connection_that_cannot_be_accepted_leaves_the_door_open(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(connection.Connection):
        def __init__(self, *arguments: Any) -> None:
            monkeypatch.setattr("kstore.door.server.Connection", connection.Connection)
            raise MemoryError

    monkeypatch.setattr("kstore.door.server.Connection", Failing)
    with kstore.Door(store, port=0) as door:
        with WireClient(door.port) as first:
            assert first.is_closed_by_peer()
        with WireClient(door.port) as second:
            assert second.ask("ApiVersions", 0)["errorCode"] == 0
    assert "MemoryError" in caplog.text


def test_a_store_that_was_closed_under_a_request_is_a_line_and_no_traceback(
    store: kstore.Store, handled: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(call: Call) -> dict[str, Any]:
        raise ClosedError("the store is closed")

    handled["handle"] = fail
    with opened(store) as (_, client):
        client.send("Heartbeat", 4)
        assert client.is_closed_by_peer()
    [record] = caplog.records
    assert record.exc_info is None
    assert "the store is closed" in record.getMessage()


def test_a_handler_that_fails_closes_its_connection_and_logs_the_failure(
    store: kstore.Store, handled: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(call: Call) -> dict[str, Any]:
        raise ZeroDivisionError

    handled["handle"] = fail
    with opened(store) as (door, client), WireClient(door.port) as other:
        client.send("Heartbeat", 4)
        assert client.is_closed_by_peer()
        assert other.ask("ApiVersions", 0)["errorCode"] == 0
    assert "ZeroDivisionError" in caplog.text


def test_a_handler_without_an_answer_sends_no_byte(store: kstore.Store, handled: dict[str, Any]) -> None:
    handled["handle"] = lambda call: None
    with opened(store) as (_, client):
        client.socket.sendall(frame_of("Heartbeat", 4, {}, 1) + frame_of("Heartbeat", 3, {}, 2))
        client.send("ApiVersions", 0)
        assert client.answer()["errorCode"] == 0


def test_a_reply_sends_its_own_bytes_after_the_header(store: kstore.Store, handled: dict[str, Any]) -> None:
    class Own:
        length = 4

        def send(self, sender: Any) -> None:
            sender.write(b"ab", more=True)
            sender.write(memoryview(b"cd"))

    handled["handle"] = lambda call: Own()
    with opened(store) as (_, client):
        client.socket.sendall(frame_of("Heartbeat", 4, {}, 7))
        assert client.frame() == b"\0\0\0\7\0abcd"


def test_a_call_says_who_asks(store: kstore.Store, handled: dict[str, Any]) -> None:
    calls: list[Call] = []

    def note(call: Call) -> dict[str, Any]:
        calls.append(call)
        return {"errorCode": 27}

    handled["handle"] = note
    with opened(store) as (door, client):
        assert client.ask("Heartbeat", 3, {"groupId": "g"})["errorCode"] == 27
    assert door.metrics()["errors"] == {"27": 1}
    [call] = calls
    assert (call.api, call.version, call.client_id, call.client_host) == (12, 3, "test", "127.0.0.1")
    assert (call.body["groupId"], call.user, call.door.store) == ("g", None, store)


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Heartbeat, with the handler of a test."""
    own: dict[str, Any] = {}
    api = Api(12, "Heartbeat", 0, 4, lambda call: own["handle"](call), in_read_only=True)
    monkeypatch.setitem(BY_KEY, api.key, api)
    return own


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_request_that_waits_is_woken_when_its_peer_leaves(store: kstore.Store, handled: dict[str, Any]) -> None:
    waiting, ended = threading.Event(), threading.Event()

    def wait(call: Call) -> dict[str, Any]:
        waiter = call.waiter()
        waiting.set()
        while not waiter.gone:
            waiter.wait(time.monotonic() + 20)
        ended.set()
        return {}

    handled["handle"] = wait
    with opened(store) as (_, client):
        client.send("Heartbeat", 0)
        assert waiting.wait(20)
        client.socket.close()
        assert ended.wait(20)


def test_a_wake_before_the_wait_is_not_lost_and_counts_once() -> None:
    waiter = Waiter()
    waiter.wake()
    waiter.wake()
    waiter.wait(time.monotonic() + 20)
    before = time.monotonic()
    waiter.wait(before + 0.01)
    assert time.monotonic() >= before + 0.009
    waiter.leave()
    waiter.wait(time.monotonic() + 20)
    waiter.wait(time.monotonic() + 20)
    assert waiter.gone


# --- memory -----------------------------------------------------------------------------------------------------------


def test_memory_that_is_given_back_goes_to_the_request_that_waits() -> None:
    memory = Memory(100)
    got = threading.Event()

    def take() -> None:
        with memory.lent(60, 20) as loan:
            assert loan
            got.set()

    with memory.lent(80, 0) as first:
        thread = threading.Thread(target=take)
        thread.start()
        with memory.lent(30, 0) as refused:
            assert not refused
        first.keep(40)
        assert got.wait(20)
    thread.join()
    assert memory.taken == 0


def test_large_batches_of_clients_that_write_at_once_are_not_mixed(store: kstore.Store) -> None:
    """Their frames are received in buffers that others had before."""
    batches = {
        size: bytes(build_batch([Record(0, 1_700_000_000_000, value=bytes([size]) * size * 10_000)]))
        for size in range(7, 27)
    }
    store.create_topic("orders", 3)
    with kstore.Door(store, port=0) as door:

        def write(partition: int) -> None:
            with WireClient(door.port) as client:
                for data in batches.values():
                    parts = [{"index": partition, "records": data}]
                    body = {"acks": 1, "timeoutMs": 1000, "topicData": [{"name": "orders", "partitionData": parts}]}
                    [topic] = client.ask("Produce", 9, body)["responses"]
                    assert topic["partitionResponses"][0]["errorCode"] == 0

        threads = [threading.Thread(target=write, args=(partition,)) for partition in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for partition in range(3):
            found = [
                bytes(batch.data[CRC_START:]) for batch in store.log("orders", partition).fetch(0, 8 << 20).batches()
            ]
            assert found == [data[CRC_START:] for data in batches.values()]


def test_a_request_above_the_whole_memory_is_served_alone() -> None:
    memory = Memory(100)
    with memory.lent(1000, 0) as loan:
        assert loan.size == 100
        with memory.lent(1, 0) as refused:
            assert not refused
    memory.end()
    with memory.lent(1, 20) as refused:
        assert not refused


def test_buffers_that_were_given_back_are_taken_again_and_bounded() -> None:
    spares = Spares(1 << 20)
    first = spares.take(70_000)
    assert len(first) >= 70_000
    spares.give(first)
    assert spares.take(len(first) + 1) is not first
    assert spares.take(70_010) is first, "frames of one client differ by a few bytes"
    assert spares.take(70_000) is not first, "it is in use"
    large = spares.take(300 << 10)
    spares.give(large)
    assert spares.take(300 << 10) is not large, "it is more than a quarter of what is kept"
    kept = [spares.take(size << 10) for size in (256, 128, 256, 192, 256, 256)]
    for buffer in kept:
        spares.give(buffer)
    assert len(spares.take(70_000)) == 128 << 10, "a small frame that comes slowly must not hold a large buffer"
    taken = [spares.take(256 << 10) for _ in range(5)]
    assert [any(one is buffer for buffer in kept) for one in taken] == [True] * 4 + [False], "the largest are kept"


# --- who may connect --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not guard.CAN_ASK, reason="who a connection belongs to is known on Linux only")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("found", ["netlink", "table"])
def test_the_owner_of_a_peer_is_found(host: str, found: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError as error:
            pytest.skip(f"no {host} here: {error}")
        listener.listen()
        own = listener.getsockname()[:2]
        with socket.create_connection(own) as peer:
            address = peer.getsockname()[:2]
            ask = guard._asked if found == "netlink" else guard._listed
            try:
                owner = ask(address, own)
            except OSError as error:
                pytest.skip(f"no netlink here: {error}")
            assert owner is not None
            assert (owner.uid, owner.inode) == (os.geteuid(), os.fstat(peer.fileno()).st_ino)
            accepted, _ = listener.accept()
            with accepted:
                assert guard.is_own_user(accepted)
                peer.close()
                # The kernel takes a socket without a process for root's.
                assert not guard.is_own_user(accepted)


@pytest.mark.skipif(not guard.CAN_ASK, reason="who a connection belongs to is known on Linux only")
@pytest.mark.parametrize(
    "owner",
    [None, guard.Owner(os.geteuid() + 1, 7), guard.Owner(0, 0), guard.Owner(os.geteuid(), 0)],
    ids=["not found", "another", "closed", "own but closed"],
)
def test_another_user_s_process_is_refused(
    store: kstore.Store, owner: guard.Owner | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "owner_of_peer", lambda peer, own: owner)
    with opened(store) as (_, client):
        assert client.is_closed_by_peer()
    assert "another user's process" in caplog.text
    with opened(store, same_user=False) as (_, client):
        assert client.ask("ApiVersions", 0)["errorCode"] == 0


def test_an_address_that_others_reach_is_refused_unless_it_is_said_to_be_insecure(store: kstore.Store) -> None:
    with pytest.raises(ConfigError, match="insecure"):
        kstore.Door(store, host="0.0.0.0", port=0)
    with pytest.raises(ConfigError, match="advertised"):
        kstore.Door(store, host="0.0.0.0", port=0, insecure=True)
    with opened(store, host="0.0.0.0", advertised="here.example:1234", insecure=True) as (door, _):
        assert door.bootstrap_servers == "here.example:1234"


def test_metadata_names_the_advertised_address(store: kstore.Store) -> None:
    with kstore.Door(store, port=0, advertised="[::1]:77") as door:
        assert door.bootstrap_servers == "[::1]:77"
        with WireClient(door.port) as client:
            [broker] = client.ask("Metadata", 1, {"topics": []})["brokers"]
    assert (broker["host"], broker["port"]) == ("::1", 77)


@pytest.mark.parametrize("advertised", ["host", "host:", ":1", "host:0", "host:65536", "host:x", ""])
def test_an_advertised_address_without_a_port_is_a_mistake(store: kstore.Store, advertised: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        kstore.Door(store, port=0, advertised=advertised)


@pytest.mark.parametrize(("name", "value"), [("memory_max", "1"), ("idle_ms", "soon"), ("connections_max", 0)])
def test_a_wrong_setting_is_named(store: kstore.Store, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        kstore.Door(store, port=0, **{name: value})


# --- its life ---------------------------------------------------------------------------------------------------------


def test_a_store_has_one_door_at_a_time(store: kstore.Store) -> None:
    with kstore.Door(store, port=0), pytest.raises(LockedError, match="a door already"):
        kstore.Door(store, port=0)
    with kstore.Door(store, port=0):
        pass


def test_a_port_in_use_is_a_storage_error_that_names_it(store: kstore.Store) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StorageError, match=f"127.0.0.1:{port}"):
            kstore.Door(store, port=port)


def test_a_store_that_is_shared_or_closed_gets_no_door(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "shared", shared=True) as store, pytest.raises(SharedLogError):
        kstore.Door(store, port=0)
    store = kstore.open(tmp_path / "closed")
    store.close()
    with pytest.raises(ClosedError):
        kstore.Door(store, port=0)


def test_a_store_closes_its_door_first(tmp_path: Path) -> None:
    store = kstore.open(tmp_path)
    door = kstore.Door(store, port=0)
    with WireClient(door.port) as client:
        client.ask("ApiVersions", 0)
        store.close()
        assert client.is_closed_by_peer()
    assert door.closed
    door.close()
    with pytest.raises(ConnectionRefusedError):
        WireClient(door.port)


def test_a_request_that_is_being_handled_is_answered_before_the_door_closes(
    store: kstore.Store, handled: dict[str, Any]
) -> None:
    waiting = threading.Event()

    def wait(call: Call) -> dict[str, Any]:
        waiter = call.waiter()
        waiting.set()
        while not waiter.gone:
            waiter.wait(time.monotonic() + 20)
        return {"errorCode": 15}

    handled["handle"] = wait
    with opened(store) as (door, client):
        client.send("Heartbeat", 0)
        client.send("Heartbeat", 0)
        assert waiting.wait(20)
        door.close()
        assert client.answer()["errorCode"] == 15
        # The next one had not begun.
        assert client.is_closed_by_peer()


def test_a_dropped_door_closes_itself_and_says_so(store: kstore.Store) -> None:
    door = kstore.Door(store, port=0)
    server = door._server
    with WireClient(door.port) as client:
        with pytest.warns(ResourceWarning, match="unclosed Door"):
            del door
        assert client.is_closed_by_peer()
    server.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_has_no_door_and_its_parent_serves_on(store: kstore.Store) -> None:
    with opened(store) as (door, client):
        client.ask("ApiVersions", 0)
        listener = door._server._listener.fileno()

        def look(results: Any) -> None:
            try:
                os.fstat(listener)
                results.put("open")
            except OSError:
                results.put("closed")
            door.close()

        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        child = context.Process(target=look, args=(results,))
        child.start()
        child.join(20)
        assert child.exitcode == 0
        assert results.get() == "closed"
        assert client.ask("ApiVersions", 0)["errorCode"] == 0
        with WireClient(door.port) as another:
            assert another.ask("ApiVersions", 0)["errorCode"] == 0


# --- its page ---------------------------------------------------------------------------------------------------------


def test_the_guide_lists_what_is_served() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "door.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \| (.*?) ?\|$", page, re.MULTILINE)
    said = {(int(key), name, int(low), int(high)): notes for key, name, low, high, notes in rows}
    assert said.keys() == {(api.key, api.name, api.lowest, api.highest) for api in APIS}
    for api in APIS:
        notes = said[api.key, api.name, api.lowest, api.highest]
        assert ("read-only" in notes, "admin" in notes) == (not api.in_read_only, api.is_admin)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_served_version_is_a_version_of_the_protocol(api: Api) -> None:
    assert (api.key, api.key) == (api.wire.request.key, api.wire.response.key)
    for message in api.wire:
        assert message.versions.lowest <= api.lowest <= api.highest <= message.versions.highest
