"""Hostile bytes for a door: no request makes it fail, hang or forget its other clients."""

from __future__ import annotations

import logging
import random
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import kstore
from kstore.door.apis import APIS
from kstore.door.frames import SIZE, read_request
from kstore.messages.primitives import MessageError
from kstore.setting_rules import MIB
from tests.support.harness.selection import tries
from tests.support.lives.door_parts import WireClient, opened
from tools.fuzz.door import random_frame, resident_bytes

PARSED = tries(400_000, quick=4_000)
SENT = [pytest.param(tries(20_000, quick=200), id="some"), pytest.param(100_000, id="many", marks=pytest.mark.soak)]
# How many connections are open at a time.
TOGETHER = 200
# What the process may take more, whatever was sent, beside ``memory_max``.
MEMORY_MAX, MEMORY_BYTES_MAX = MIB, 64 * MIB


def hostile_frame(rng: random.Random) -> bytes:
    """A request with random fields, without its size; at times cut, or with changed bytes."""
    data = bytearray(random_frame(rng))
    chance = rng.random()
    if chance < 0.2:
        del data[rng.randrange(8, len(data) + 1) :]
    elif chance < 0.5:
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(8, len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(data)


def test_hostile_requests_are_parsed_or_a_typed_error(tried: Callable[[str, int], None]) -> None:
    rng = random.Random(43)
    by_key = {api.key: api for api in APIS}
    outcomes: Counter[str] = Counter()
    for _ in range(PARSED):
        data = hostile_frame(rng)
        api = by_key[int.from_bytes(data[:2], "big")]
        try:
            read_request(api.wire, memoryview(data), elements_max=1000)
            outcomes["read"] += 1
        except MessageError:
            outcomes["refused"] += 1
    assert min(outcomes["read"], outcomes["refused"]) > PARSED // 20
    tried("fuzz inputs", PARSED)


def read_to_the_end(client: WireClient) -> None:
    with client, suppress(ConnectionError):
        while client.socket.recv(1 << 16):
            pass


@pytest.mark.parametrize("count", SENT)
def test_hostile_requests_harm_no_other_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int, tried: Callable[[str, int], None]
) -> None:
    rng = random.Random(44)
    before = resident_bytes()
    caplog.set_level(logging.ERROR)
    with kstore.open(tmp_path, durability="os") as store:
        store.create_topic("orders", 2)
        store.log("orders").append_many([b"x"] * 10)
        store.queue("jobs").put(b"x")
        # The owner of a socket that is closed at once is not known any more.
        with opened(store, same_user=False, memory_max=MEMORY_MAX) as (door, other):
            for first in range(0, count, TOGETHER):
                attackers = [WireClient(door.port) for _ in range(min(TOGETHER, count - first))]
                for attacker in attackers:
                    data = hostile_frame(rng)
                    sent = SIZE.pack(len(data)) + data
                    with suppress(OSError):  # it may be closed before it has sent all
                        attacker.socket.sendall(sent[: rng.randrange(len(sent) + 1)] if rng.random() < 0.3 else sent)
                        attacker.socket.shutdown(socket.SHUT_WR)
                assert other.ask("ApiVersions", 0)["errorCode"] == 0
                for attacker in attackers:
                    # Each connection ends: what waits is woken.
                    read_to_the_end(attacker)
            assert other.ask("Metadata", 1, {"topics": []})["topics"] == []
        counters = door._served.counters
        # Most are parsed, and handled.
        assert sum(counters.requests.values()) > count // 4
        assert len(counters.requests) > len(APIS) // 2
        assert door._server.connection_count == 0
    assert resident_bytes() - before < MEMORY_MAX + MEMORY_BYTES_MAX
    assert [record.getMessage() for record in caplog.records] == []
    tried("fuzz inputs", count)
