"""A client of a door, of which tests see every byte: one connection, and requests by the names of their APIs."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kstore
from kstore.door.frames import API_VERSIONS, wire_of
from kstore.messages._wire import MessageReader
from kstore.messages.schema import Message

# A test that hangs fails.
SECONDS_MAX = 20.0


@contextmanager
def opened(store: kstore.Store, **settings: Any) -> Iterator[tuple[kstore.Door, WireClient]]:
    """A door of a store on a free port, and a client that is connected to it."""
    with kstore.Door(store, port=0, **settings) as door, WireClient(door.port) as client:
        yield door, client


class WireClient:
    """Not thread-safe. ``ask`` sends a request and reads its answer; ``send`` and ``answer`` do each alone."""

    def __init__(self, port: int, host: str = "127.0.0.1", client_id: str = "test") -> None:
        self.socket = socket.create_connection((host, port), timeout=SECONDS_MAX)
        self.client_id = client_id
        self._asked: list[tuple[Message, int, int]] = []
        self._number = 0

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, api: str, version: int, body: dict[str, Any] | None = None) -> dict[str, Any]:
        self.send(api, version, body)
        return self.answer()

    def send(self, api: str, version: int, body: dict[str, Any] | None = None) -> None:
        self._number += 1
        self.socket.sendall(frame_of(api, version, body or {}, self._number, self.client_id))
        self._asked.append((wire_of(api).response, version, self._number))

    @property
    def unanswered_count(self) -> int:
        """How many requests were sent whose answers were not read yet."""
        return len(self._asked)

    def answer(self) -> dict[str, Any]:
        """The answer to the oldest request without one."""
        message, version, number = self._asked.pop(0)
        reader = MessageReader(self.frame())
        assert struct.unpack(">i", reader.take(4)) == (number,)
        if flexible_header(message, version):
            assert reader.take(1) == b"\0"
        body = message.read(reader, version)
        assert reader.remaining == 0
        return body

    def frame(self) -> bytes:
        """The next frame, without its size."""
        [size] = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            got = self.socket.recv(size - len(data))
            if not got:
                raise ConnectionResetError(f"the connection ended after {len(data)} of {size} bytes")
            data += got
        return data

    def is_closed_by_peer(self) -> bool:
        """Waits for the end of the connection; False if something else comes."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


def frame_of(api: str, version: int, body: dict[str, Any], number: int = 1, client_id: str | None = "test") -> bytes:
    """A whole request, with its size."""
    message = wire_of(api).request
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id.encode())) + client_id.encode()
    tagged = b"\0" if version in message.flexible else b""
    data = struct.pack(">hhi", message.key, version, number) + name + tagged + message.write(body, version)
    return struct.pack(">i", len(data)) + data


def flexible_header(response: Message, version: int) -> bool:
    return version in response.flexible and response.key != API_VERSIONS
