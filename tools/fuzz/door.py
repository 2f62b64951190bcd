"""The target of a door: any bytes as a request, parsed and carried out on a small store, without sockets.

An input is a frame without its size. What is answered must be whole, and must be what the schema says.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import resource
import shutil
import socket
import struct
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kstore.door.apis import APIS, fallback_versions, find
from kstore.door.call import ConnectionEnded
from kstore.door.config import DoorConfig
from kstore.door.connection import Connection
from kstore.door.frames import API_VERSIONS, HEAD, SIZE, Head, read_head
from kstore.door.memory import Budget
from kstore.door.served import Served
from kstore.door.waiting import Waiter
from kstore.engine.read.fetch import FetchSlice
from kstore.messages._wire import MessageReader
from kstore.messages.primitives import MessageError
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.setting_rules import MIB
from kstore.store import Store
from tests.interop.decoder_logs import encode_random
from tests.support.lives.door_parts import flexible_header, frame_of
from tools.fuzz.files import scratch
from tools.fuzz.findings import expect
from tools.fuzz.mutate import mutate

# After so many inputs the store is made again: by then topics of it are gone, and it has many others.
LIFE_INPUTS = 2_000
TICK_INPUTS = 50
# What the process may take more at the end of a life than at its start.
MEMORY_BYTES_MAX = 64 * MIB
SEEDS_PER_VERSION = 3
# Names that exist, so that more than the first check of a handler is reached.
NAMES = (b"orders", b"jobs", b"__consumer_offsets", b"a-group")
TIME = 1_700_000_000_000


def random_frame(rng: random.Random, key: int | None = None, version: int | None = None) -> bytes:
    """A request with random fields, without its size; of any API and version unless they are given."""
    api = rng.choice(APIS) if key is None else next(api for api in APIS if api.key == key)
    chosen = rng.randint(api.lowest, api.highest) if version is None else version
    flexible = chosen in api.wire.request.flexible
    body = encode_random(api.wire.request, chosen, rng)
    if rng.random() < 0.5:
        name = rng.choice(NAMES)
        # The name of a topic or a group, in both encodings.
        for known in (b"topic-name", b"a"):
            old = (bytes([len(known) + 1]) if flexible else struct.pack(">h", len(known))) + known
            body = body.replace(old, (bytes([len(name) + 1]) if flexible else struct.pack(">h", len(name))) + name)
    return struct.pack(">hhih", api.key, chosen, 7, 1) + b"c" + (b"\0" if flexible else b"") + body


def frame_seeds() -> list[bytes]:
    """Requests of each API and version with random fields, and some that are carried out."""
    rng = random.Random(1)
    rows = [(api.key, version) for api in APIS for version in range(api.lowest, api.highest + 1)]
    found = [random_frame(rng, *row) for row in rows for _ in range(SEEDS_PER_VERSION)]
    return found + [
        frame_of(name, version, body)[SIZE.size :] for name, versions, body in _works() for version in versions
    ]


def _works() -> list[tuple[str, tuple[int, ...], dict[str, Any]]]:
    batch = build_batch([Record(number, TIME, value=b"x" * 20) for number in range(3)])
    fetched = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1000}
    owner = {"name": "orders", "partitionIndexes": [0, 1]}
    offset = {"partitionIndex": 0, "committedOffset": 3, "committedMetadata": ""}
    return [
        ("Produce", (3, 9), {"acks": 1, "topicData": [{"name": "orders", "partitionData": [{"records": batch}]}]}),
        (
            "Fetch",
            (4, 12),
            {"maxWaitMs": 5, "maxBytes": 4000, "topics": [{"topic": "orders", "partitions": [fetched]}]},
        ),
        (
            "ListOffsets",
            (1, 8),
            {"topics": [{"name": "orders", "partitions": [{"timestamp": -1}, {"timestamp": TIME}]}]},
        ),
        ("Metadata", (1, 12), {"topics": [{"name": "orders"}]}),
        ("OffsetCommit", (2, 9), {"groupId": "g", "topics": [{"name": "orders", "partitions": [offset]}]}),
        ("OffsetFetch", (1, 7), {"groupId": "g", "topics": [owner]}),
        (
            "JoinGroup",
            (0, 3, 9),
            {
                "groupId": "a-group",
                "sessionTimeoutMs": 6000,
                "protocolType": "consumer",
                "protocols": [{"name": "range"}],
            },
        ),
        ("DeleteRecords", (0, 2), {"topics": [{"name": "orders", "partitions": [{"offset": 2}]}]}),
        ("InitProducerId", (0, 4), {"transactionTimeoutMs": 1000}),
    ]


def mutate_frame(data: bytes, rng: random.Random, pool: Sequence[bytes]) -> bytes:
    """Mostly with a head that names an API and a version that are served."""
    if rng.random() < 0.05:
        return mutate(data, rng, pool)
    return data[: HEAD.size] + mutate(data[HEAD.size :], rng, [rng.choice(pool)[HEAD.size :]])


class _Answer(Connection):
    """A connection whose bytes stay here, and whose requests do not wait."""

    def __init__(self, door: Served, budget: Budget) -> None:
        super().__init__(socket.socket(), door, budget)
        self.socket.close()
        self.sent = bytearray()

    def _new_waiter(self) -> Waiter:
        waiter = Waiter()
        waiter.leave()
        return waiter

    def write(self, data: bytes | memoryview, *, more: bool = False) -> None:
        self.sent += data

    def send_slice(self, part: FetchSlice, count: int) -> None:
        data = part.read()
        expect(len(data) == count, f"a slice of {len(data)} bytes, announced were {count}")
        self.sent += data


class _Life:
    """One store and its door, for some inputs."""

    def __init__(self) -> None:
        self.path = scratch() / "door"
        shutil.rmtree(self.path, ignore_errors=True)
        self.store = Store(self.path, durability="os", background=False)
        self.store.create_topic("orders", 2)
        self.store.log("orders").append_many([b"x"] * 10)
        self.store.queue("jobs").put(b"x")
        self.door = Served(self.store, "cluster", 0, "127.0.0.1", 9092, settings=DoorConfig())
        self.budget = Budget(self.door.settings.memory_max)
        self.connection = _Answer(self.door, self.budget)
        self.input_count = 0
        self.byte_count = resident_bytes()

    def end(self) -> None:
        self.connection._seen.end()
        taken = self.budget.taken + self.budget.seen.taken
        expect(taken == 0, f"{taken} bytes were lent and not given back")
        grown = resident_bytes() - self.byte_count
        expect(grown < MEMORY_BYTES_MAX, f"{grown} bytes more are taken after {self.input_count} requests")
        self.door.closing = True
        self.door.groups.close()
        self.store.close()


_lives: dict[int, _Life] = {}


def _life() -> _Life:
    """The life of this process, made again where it is over."""
    life = _lives.get(os.getpid())
    if life is not None and life.input_count >= LIFE_INPUTS:
        del _lives[os.getpid()]
        life.end()
        life = None
    if life is None:
        logging.disable()
        if not _lives:
            atexit.register(_end)
        life = _lives[os.getpid()] = _Life()
    return life


def _end() -> None:
    for life in _lives.values():
        life.store.close()


def frames(data: bytes) -> None:
    """One request: it is refused as a whole, or answered with what the schema says."""
    if len(data) < HEAD.size:
        return
    life = _life()
    life.input_count += 1
    if life.input_count % TICK_INPUTS == 0:
        life.door.groups.run_due(time.monotonic())
    head = read_head(data)
    api = find(life.door, head.api)
    if api is None or len(data) > life.door.settings.other_request_bytes_max:
        return
    # The same for a whole life: it remembers what its last Fetch has seen.
    connection = life.connection
    connection.sent.clear()
    try:
        size, _ = connection._handled(api, head, memoryview(bytearray(data)))
    except (ConnectionEnded, MessageError):
        return
    expect(size == len(connection.sent), f"{len(connection.sent)} bytes sent, {size} were counted")
    if size:
        _check(head, api.name, connection.sent)


def _check(head: Head, name: str, sent: bytearray) -> None:
    """An answer is read to its end."""
    reader = MessageReader(memoryview(sent))
    [size] = SIZE.unpack(reader.take(SIZE.size))
    expect(size == reader.remaining, f"a frame of {size} bytes with {reader.remaining}")
    [number] = SIZE.unpack(reader.take(SIZE.size))
    expect(number == head.correlation_id, f"the answer to {number}, expected {head.correlation_id}")
    version = head.version
    if head.api == API_VERSIONS and fallback_versions(version) is not None:
        version = 0
    response = _responses()[head.api]
    if flexible_header(response, version):
        expect(reader.take(1) == b"\0", "tagged fields in a header")
    response.read(reader, version)
    expect(reader.remaining == 0, f"{reader.remaining} bytes after an answer of {name}")


@cache
def _responses() -> dict[int, Any]:
    return {api.key: api.wire.response for api in APIS}


def resident_bytes() -> int:
    """What the process takes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
