"""Hostile bytes for a door: no request makes it fail, hang or forget its other clients."""

from __future__ import annotations

import logging
import random
import struct
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore.door.apis import APIS
from kstore.door.frames import SIZE, read_request
from kstore.messages.primitives import MessageError
from tests.interop.decoder_logs import encode_random
from tests.support.harness.selection import tries
from tests.support.lives.door_parts import WireClient, opened

PARSED = tries(400_000, quick=4_000)
SENT = tries(20_000, quick=200)
# Names that exist, so that more than the first check of a handler is reached.
NAMES = (b"orders", b"jobs", b"__consumer_offsets", b"a-group")


def hostile_frame(rng: random.Random) -> bytes:
    """A request with random fields, without its size; at times cut, or with changed bytes."""
    api = rng.choice(APIS)
    version = rng.randint(api.lowest, api.highest)
    flexible = version in api.wire.request.flexible
    body = encode_random(api.wire.request, version, rng)
    if rng.random() < 0.5:
        name = rng.choice(NAMES)
        # The name of a topic or a group, in both encodings.
        for known in (b"topic-name", b"a"):
            old = (bytes([len(known) + 1]) if flexible else struct.pack(">h", len(known))) + known
            body = body.replace(old, (bytes([len(name) + 1]) if flexible else struct.pack(">h", len(name))) + name)
    data = bytearray(struct.pack(">hhih", api.key, version, 7, 1) + b"c" + (b"\0" if flexible else b"") + body)
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


def test_hostile_requests_harm_no_other_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tried: Callable[[str, int], None]
) -> None:
    rng = random.Random(44)
    caplog.set_level(logging.ERROR)
    with kstore.open(tmp_path, durability="os") as store:
        store.create_topic("orders", 2)
        store.log("orders").append_many([b"x"] * 10)
        store.queue("jobs").put(b"x")
        # The owner of a socket that is closed at once is not known any more.
        with opened(store, same_user=False) as (door, other):
            attackers: list[WireClient] = []
            pause = threading.Event()
            for number in range(SENT):
                attacker = WireClient(door.port)
                data = hostile_frame(rng)
                sent = SIZE.pack(len(data)) + data
                attacker.socket.sendall(sent[: rng.randrange(len(sent) + 1)] if rng.random() < 0.1 else sent)
                attackers.append(attacker)
                if len(attackers) == 20:
                    for attacker in attackers:
                        attacker.socket.close()
                    attackers.clear()
                if number % 10 == 0:
                    assert other.ask("ApiVersions", 0)["errorCode"] == 0
            for attacker in attackers:
                attacker.socket.close()
            assert other.ask("Metadata", 1, {"topics": []})["topics"] == []
            while door._server.connection_count > 1:
                pause.wait(0.01)
        counters = door._served.counters
        # Most are parsed, and handled.
        assert sum(counters.requests.values()) > SENT // 3
        assert len(counters.requests) > len(APIS) // 2
        assert door._server.connection_count == 0
    assert [record.getMessage() for record in caplog.records] == []
    tried("fuzz inputs", SENT)
