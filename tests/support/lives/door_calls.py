"""Calls a handler of a door as a connection does, without one: a request is written and read by the codec."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from kstore import Store
from kstore.door.apis import find
from kstore.door.call import Call
from kstore.door.fetch_part import Seen
from kstore.door.frames import Head, read_request, response_bytes, wire_of
from kstore.door.memory import Budget
from kstore.door.served import Served
from kstore.door.waiting import Waiter
from kstore.engine.read.fetch import FetchSlice
from kstore.messages._wire import MessageReader
from kstore.setting_rules import MIB

ELEMENTS_MAX = 100_000


def served(store: Store, **fields: Any) -> Served:
    return Served(store, "a-cluster", 1, "localhost", 9092, **fields)


class CollectingSender:
    """A socket that takes everything."""

    def __init__(self) -> None:
        self.data = b""
        self.slices: list[FetchSlice] = []

    def write(self, data: bytes | memoryview, *, more: bool = False) -> None:
        self.data += data

    def send_slice(self, part: FetchSlice, count: int) -> None:
        self.slices.append(part)
        self.data += part.read()[:count]


class Caller:
    """One client of a door."""

    def __init__(self, door: Served) -> None:
        self.door = door
        self.waiter = Waiter()
        self.seen = Seen(Budget(MIB).seen)
        self.armed = threading.Event()  # set at the first wait of a request

    def _waiter(self) -> Waiter:
        self.armed.set()
        return self.waiter

    def call(self, name: str, version: int, body: dict[str, Any]) -> Any:
        """The response to a request; None for a request without one."""
        wire = wire_of(name)
        head = Head(wire.request.key, version, 7)
        tagged = b"\0" if version in wire.request.flexible else b""
        frame = b"".join(
            (*(number.to_bytes(2, "big") for number in head[:2]), (7).to_bytes(4, "big"), b"\0\1c", tagged)
        ) + wire.request.write(body, version)
        request = read_request(wire, memoryview(frame), elements_max=ELEMENTS_MAX)
        api = find(self.door, head.api)
        assert api is not None, name
        assert api.lowest <= version <= api.highest
        answer = api.handle(
            Call(head.api, version, request.body, "c", "127.0.0.1", None, self.door, self._waiter, self.seen)
        )
        if answer is None:
            return None
        if isinstance(answer, dict):
            data = response_bytes(wire, head, answer)[8 + (version in wire.response.flexible) :]
        else:
            sender = CollectingSender()
            answer.send(sender)
            assert len(sender.data) == answer.length
            data = sender.data
        reader = MessageReader(data)
        response = wire.response.read(reader, version)
        assert not reader.remaining
        assert wire.response.write(response, version) == data, "what is written by hand is what the codec writes"
        return response

    def fetch(self, *asked: tuple[str, int, int], version: int = 11, **fields: Any) -> list[dict[str, Any]]:
        """The partitions of a Fetch of (topic, partition, offset); ``fields`` are those of the request or of each
        partition."""
        own: dict[str, Any] = {"maxWaitMs": 0, "minBytes": 1, "maxBytes": 1 << 20, "isolationLevel": 0}
        each = {"partitionMaxBytes": 1 << 20, "currentLeaderEpoch": -1, "lastFetchedEpoch": -1}
        for name, value in fields.items():
            (each if name in each else own)[name] = value
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, partition, offset in asked:
            topics.setdefault(topic, []).append({"partition": partition, "fetchOffset": offset, **each})
        own["topics"] = [{"topic": topic, "partitions": parts} for topic, parts in topics.items()]
        response = self.call("Fetch", version, own)
        assert response["errorCode"] == 0
        assert response["sessionId"] == 0
        return [part for topic in response["responses"] for part in topic["partitions"]]

    def records(self, part: dict[str, Any]) -> bytes:
        return bytes(part["records"])


def sizes(parts: Sequence[dict[str, Any]]) -> list[int]:
    return [len(part["records"]) for part in parts]
