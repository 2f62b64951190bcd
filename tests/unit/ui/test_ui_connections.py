"""``kstore ui``: connections without a request end, and the server's own answers have the same headers as ours."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest
import uvicorn

import kstore
from kstore.ui import connections
from kstore.ui.guard import HEADERS
from kstore.ui.server import serve

SECONDS = 60
REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Served:
    """A server in a thread, and the log that it shows."""

    def __init__(self, log: kstore.Log, address: str) -> None:
        self.log = log
        port, self.token = re.findall(r":(\d+)/\?token=(\S+)", address)[0]
        self._port = int(port)

    def connect(self, sent: bytes = b"") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port), timeout=SECONDS)
        made.sendall(sent)
        return made

    def ask(self, sent: bytes) -> bytes:
        """An answer, to its end or until the connection is closed."""
        with self.connect(sent) as made:
            return answer_of(made)


def answer_of(made: socket.socket) -> bytes:
    found = b""
    while not (end := re.search(rb"(?s)content-length: (\d+)\r\n.*?\r\n\r\n", found)) or len(found) < end.end() + int(
        end[1]
    ):
        if not (part := made.recv(65536)):
            break
        found += part
    return found


def headers_of(answer: bytes) -> dict[str, str]:
    lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    servers: list[Any] = []
    announced: Queue[str] = Queue()

    class Kept(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    monkeypatch.setattr(uvicorn, "Server", Kept)
    with kstore.Log(tmp_path / "orders-0") as log:
        log.append(b"one")
        named = {"port": 0, "deep": False, "announce": announced.put}
        thread = Thread(target=serve, args=([log.path],), kwargs=named)
        thread.start()
        try:
            yield Served(log, announced.get(timeout=SECONDS))
        finally:
            servers[0].should_exit = True
            thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", REQUEST + b"GET / HTTP/1.1\r\n"],
    ids=["nothing", "half a line", "half a head", "half a second head"],
)
def test_a_connection_without_a_whole_request_is_closed(
    served: Served, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    with served.connect(sent) as made:
        if sent.startswith(REQUEST):
            assert answer_of(made).startswith(b"HTTP/1.1 403 ")
        assert made.recv(1) == b""


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", REQUEST[:-2] + b"Content-Length: 1000000\r\n\r\n"],
    ids=["head", "body"],
)
def test_sending_a_little_from_time_to_time_is_not_enough(
    served: Served, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    end = time.monotonic() + SECONDS
    with served.connect(sent) as made:
        while time.monotonic() < end:
            try:
                made.sendall(b"x")
            except OSError:
                break
            time.sleep(0.02)
        else:
            pytest.fail("it is still open")


def test_requests_that_come_in_time_and_an_answer_that_takes_longer_are_left_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = headers_of(served.ask(f"GET /?token={served.token}".encode() + REQUEST[5:]))["set-cookie"]
    cookie = cookie.partition(";")[0]
    monkeypatch.setattr(connections, "HEAD_SECONDS", 3.0)
    lines = REQUEST[:-2] + f"Cookie: {cookie}\r\n\r\n".encode()
    with served.connect() as made, served.connect(lines.replace(b"/", b"/logs/0/orders/0/live/events", 1)) as follower:
        for _ in range(4):
            made.sendall(REQUEST)
            assert answer_of(made).startswith(b"HTTP/1.1 403 ")
            time.sleep(1)
        served.log.append(b"two")
        found = b""
        while b"data: " not in found:
            part = follower.recv(65536)
            assert part, "closed"
            found += part


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"], ids=["nothing", "half a request"])
def test_the_connection_that_waits_longest_for_a_request_gives_way(
    served: Served, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(connections, "HEAD_SECONDS", SECONDS * 10)
    waiting = []
    try:
        for _ in range(3):
            waiting.append(served.connect(sent))
            assert served.ask(REQUEST).startswith(b"HTTP/1.1 403 ")
        waiting.append(served.connect(sent))
        with suppress(ConnectionResetError):
            assert waiting[0].recv(1) == b""
        # The others are still served.
        waiting[3].sendall(REQUEST[len(sent) :])
        assert answer_of(waiting[3]).startswith(b"HTTP/1.1 403 ")
    finally:
        for each in waiting:
            each.close()


def test_connections_that_are_answered_are_not_dropped_and_more_are_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = headers_of(served.ask(f"GET /?token={served.token}".encode() + REQUEST[5:]))["set-cookie"]
    lines = REQUEST[:-2] + f"Cookie: {cookie.partition(';')[0]}\r\n\r\n".encode()
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 3)
    followers = [served.connect(lines.replace(b"/", b"/logs/0/orders/0/live/events", 1)) for _ in range(3)]
    try:
        for each in followers:
            assert each.recv(12) == b"HTTP/1.1 200"
        refused = served.ask(REQUEST)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert HEADERS.items() <= headers_of(refused).items()
    finally:
        for each in followers:
            each.close()


def test_seven_hundred_half_requests_do_not_keep_the_user_out_of_a_real_server(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "orders-0") as log:
        log.append(b"one")
    command = [sys.executable, "-m", "kstore", "ui", "--port", "0", str(tmp_path / "orders-0")]
    half: list[socket.socket] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(line for line in process.stdout if "token=" in line)
            port, token = re.findall(r":(\d+)/\?token=(\S+)", address)[0]
            for _ in range(700):
                half.append(socket.create_connection(("127.0.0.1", int(port)), timeout=SECONDS))
                half[-1].sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            with socket.create_connection(("127.0.0.1", int(port)), timeout=SECONDS) as owner:
                owner.sendall(f"GET /?token={token} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                assert re.match(rb"HTTP/1.1 (200|30[0-9]) ", answer_of(owner))
        finally:
            for each in half:
                each.close()
            process.terminate()


@pytest.mark.parametrize(
    "ask",
    [
        lambda served: served.ask(b"GARBAGE\r\n\r\n"),
        lambda served: served.ask(REQUEST[:-2] + b"Host: 127.0.0.1\r\n\r\n"),
    ],
    ids=["garbage", "two hosts"],
)
def test_a_request_that_is_none_is_refused_with_the_same_headers(
    served: Served, ask: Callable[[Served], bytes]
) -> None:
    answer = ask(served)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert HEADERS.items() <= headers_of(answer).items()
