"""Peers that send and take slowly: what they cost is limited, and the others keep their speed."""

from __future__ import annotations

import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.door import inbox
from kstore.door.connection import ELEMENT_BYTES, UNCOUNTED_ELEMENTS
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.setting_rules import MIB
from tests.support.harness.selection import tries
from tests.support.lives.door_parts import SECONDS_MAX, WireClient, frame_of, opened

PARTITION_BYTES = 4 * MIB
ROUNDS = 50
# What a machine that does something else may add to an answer.
BUSY_SECONDS = 0.05
FETCH = {"maxWaitMs": 0, "minBytes": 1, "maxBytes": PARTITION_BYTES, "isolationLevel": 0}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.open(tmp_path / "store", durability="os") as store:
        store.create_topic("orders", 2)
        store.log("orders", 1).append_many([b"x" * 1000] * (PARTITION_BYTES // 1000))
        yield store


def produced(size: int, count: int = 1) -> bytes:
    """A Produce request with a batch of ``count`` values."""
    batch = build_batch([Record(number, 1_700_000_000_000, value=b"x" * size) for number in range(count)])
    topics = [{"name": "orders", "partitionData": [{"index": 0, "records": batch}]}]
    return frame_of("Produce", 9, {"acks": 1, "timeoutMs": 1000, "topicData": topics})


def fetch(partition: int, offset: int = 0) -> bytes:
    part = {"partition": partition, "fetchOffset": offset, "partitionMaxBytes": PARTITION_BYTES}
    return frame_of("Fetch", 11, {**FETCH, "topics": [{"topic": "orders", "partitions": [part]}]})


def slow_reader(port: int) -> socket.socket:
    """It has asked for megabytes, and takes none."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(("127.0.0.1", port))
    peer.sendall(fetch(1))
    return peer


def slow_writer(port: int, size: int) -> socket.socket:
    """It has sent half of a batch."""
    peer = socket.create_connection(("127.0.0.1", port))
    request = produced(size)
    peer.sendall(request[: min(len(request) // 2, 64 << 10)])
    return peer


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline


def seconds_of_answers(client: WireClient) -> float:
    """The median of a fast client's time for a small batch, and to read it back."""
    request, taken = produced(100), []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        client.socket.sendall(request)
        client.frame()
        client.socket.sendall(fetch(0))
        client.frame()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


@pytest.mark.parametrize("count", [tries(100, quick=20), pytest.param(500, marks=pytest.mark.long)])
def test_slow_peers_leave_another_client_its_speed(store: kstore.Store, count: int) -> None:
    with opened(store) as (door, client), ExitStack() as stack:
        alone = seconds_of_answers(client)
        for number in range(count):
            peer = slow_writer(door.port, 128 << 10) if number % 2 else slow_reader(door.port)
            stack.enter_context(closing(peer))
        wait_for(lambda: door.metrics()["connections"] == count + 1)
        beside = seconds_of_answers(client)
        assert beside < 5 * alone + BUSY_SECONDS
        # They are still there, and not just refused.
        assert door.metrics()["connections"] == count + 1


def test_peers_that_hold_the_memory_and_send_slowly_give_way(
    store: kstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "GRACE_SECONDS", 0.05)
    with opened(store, memory_max=MIB) as (door, client), closing(slow_writer(door.port, 900 << 10)) as slow:
        wait_for(lambda: door.metrics()["taken_bytes"] == MIB // 2)
        client.socket.sendall(produced(1000, 400))
        [error_code] = struct.unpack_from(">h", client.frame(), 4 + 1 + 1 + 1 + 6 + 1 + 4)
        assert error_code == 0
        slow.settimeout(20)
        assert slow.recv(1) == b""


def test_a_request_of_many_elements_takes_memory_for_them(store: kstore.Store) -> None:
    taken: dict[int, object] = {}
    with opened(store, admin=False) as (door, client):

        def noted(api: Any, call: Any) -> Any:
            taken[len(call.body["topics"])] = door.metrics()["taken_bytes"]
            return api.handle(call)

        door._served.handled = noted
        for count in (UNCOUNTED_ELEMENTS, 2 * UNCOUNTED_ELEMENTS):
            client.ask("Metadata", 1, {"topics": [{"name": f"none-{number}"} for number in range(count)]})
        assert taken == {UNCOUNTED_ELEMENTS: 0, 2 * UNCOUNTED_ELEMENTS: 2 * UNCOUNTED_ELEMENTS * ELEMENT_BYTES}
        wait_for(lambda: door.metrics()["taken_bytes"] == 0)


def test_the_memory_of_a_large_frame_is_used_again(store: kstore.Store) -> None:
    buffers = []
    with opened(store) as (door, client):

        def noted(api: Any, call: Any) -> Any:
            buffers.append(call.body["topicData"][0]["partitionData"][0]["records"].obj)
            return api.handle(call)

        door._served.handled = noted
        for _ in range(2):
            client.socket.sendall(produced(200 << 10))
            client.frame()
    assert buffers[0] is buffers[1]
