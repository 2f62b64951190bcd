"""``kstore serve`` under the load of four clients, killed at any moment and started again: no promise is broken.

Two producers, one of them idempotent, and two members of a group run in processes of their own, with librdkafka, and
outlive the server. What it acknowledged is there, once if the producer is idempotent; committed offsets never go back,
and never pass what was read.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import kstore
from tests.support.harness.evidence import Crashed, Hung, Lost, Wrong
from tests.support.harness.selection import tries
from tests.support.lives.door_parts import WireClient

pytest.importorskip("confluent_kafka")

ROOT = Path(__file__).parents[2]
GROUP = "g"
PARTITIONS = 2
OWNERS = [(topic, number) for topic in ("once", "often") for number in range(PARTITIONS)]
CLIENTS = ("once", "often", "member", "member")
# Small, so that segments are rolled, and producers' snapshots written, all the time.
SEGMENT_BYTES = 32 << 10
# They hang if they make no progress for this long, even on a busy machine.
STALL_SECONDS = 300

Owner = tuple[str, int]


class Journal:
    """What the clients noted so far, checked line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 0
        path.touch()
        self.acknowledged: dict[str, set[int]] = {"once": set(), "often": set()}
        # All below was handed out, to one member or another.
        self.read_end: Counter[Owner] = Counter()
        self.committed: Counter[Owner] = Counter()
        # By member: what had been committed when it asked; and where it reads next, by partition.
        self._asked: dict[str, Counter[Owner]] = {}
        self._next: dict[tuple[str, str, int], int] = {}

    def take(self) -> None:
        """Takes in the whole lines that are new. Raises: Wrong, Lost."""
        with self.path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._at += len(data)
        for line in data.decode().splitlines():
            word, name, *rest = line.split()
            if word == "A":
                self.acknowledged[name].add(int(rest[0]))
            elif word == "ask":
                self._asked[name] = self.committed.copy()
            else:
                topic, partition, offset = rest[0], int(rest[1]), int(rest[2])
                self._heard(line, word, name, (topic, partition), offset)

    def _heard(self, line: str, word: str, name: str, owner: Owner, offset: int) -> None:
        key = (name, *owner)
        if word == "got":
            self.check_committed(owner, offset, self._asked[name])
            self._next[key] = offset
        elif word == "R":
            if offset != self._next[key]:
                raise Wrong(f"{line}: the next record is {self._next[key]}")
            self._next[key] = offset + 1
            self.read_end[owner] = max(self.read_end[owner], offset + 1)
        else:
            self.check_committed(owner, offset, Counter())
            self.committed[owner] = max(self.committed[owner], offset)

    def check_committed(self, owner: Owner, offset: int, before: Counter[Owner]) -> None:
        """Checks what a server says is committed, where ``before`` had been before it was asked."""
        if offset < before[owner]:
            raise Lost(f"{owner}: {offset} is committed, and {before[owner]} had been")
        if offset > self.read_end[owner]:
            raise Wrong(f"{owner}: {offset} is committed, and {self.read_end[owner]} was never read")


class Serve:
    """``kstore serve`` of one store, on one port, again and again."""

    def __init__(self, path: Path, port: int, draw: random.Random) -> None:
        self._path, self.port, self._draw = path, port, draw
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        durability = self._draw.choice(("os", "sync", "interval"))
        command = [sys.executable, "-W", "ignore", "-m", "kstore", "serve", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--durability", durability, str(self._path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def listens(self) -> None:
        """Returns when clients can connect. Raises: Crashed."""
        assert self.process is not None
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != b"127.0.0.1:%d" % self.port:
            self.ensure_alive()
            raise Crashed("it does not say where it listens")

    def ensure_alive(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise Crashed(self.process.communicate()[1].decode())

    def kill(self) -> None:
        """Ends it. Raises: Crashed if it had logged a failure."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGKILL)
        _, said = self.process.communicate()
        self.process = None
        if b"Traceback" in said:
            raise Crashed(said.decode())


@contextmanager
def running_clients(server: str, journal: Path, log: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    clients: list[subprocess.Popen[bytes]] = []
    try:
        for number, what in enumerate(CLIENTS):
            arguments = [what, server, str(journal), f"{what}-{number}"]
            with (log / f"{what}-{number}").open("wb") as errors:
                clients.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.crash.door_client", *arguments],
                        cwd=ROOT,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                    )
                )
        yield clients
    finally:
        for client in clients:
            with suppress(OSError):
                os.kill(client.pid, signal.SIGKILL)
            client.communicate()


def ensure_alive(clients: list[subprocess.Popen[bytes]], log: Path) -> None:
    """Raises: Crashed if a client has ended, unless it was in order."""
    for number, (what, client) in enumerate(zip(CLIENTS, clients, strict=True)):
        if client.poll():
            raise Crashed(f"{what}: status {client.returncode}: {(log / f'{what}-{number}').read_text()}")


def committed(port: int) -> dict[Owner, int]:
    """What the server says is committed; 0 where nothing is."""
    topics = [{"name": topic, "partitionIndexes": list(range(PARTITIONS))} for topic in ("once", "often")]
    with WireClient(port) as client:
        # A server that starts again reads all commits first: it never lives long enough for a compaction.
        client.socket.settimeout(STALL_SECONDS)
        body = client.ask("OffsetFetch", 5, {"groupId": GROUP, "topics": topics})
    found = {}
    for topic in body["topics"]:
        for part in topic["partitions"]:
            assert part["errorCode"] == 0, part
            found[topic["name"], part["partitionIndex"]] = max(part["committedOffset"], 0)
    return found


def ends(port: int) -> dict[Owner, int]:
    """Where each partition ends."""
    asked = [{"partitionIndex": number, "timestamp": -1} for number in range(PARTITIONS)]
    topics = [{"name": topic, "partitions": asked} for topic in ("once", "often")]
    with WireClient(port) as client:
        body = client.ask("ListOffsets", 1, {"topics": topics})
    return {
        (topic["name"], part["partitionIndex"]): part["offset"]
        for topic in body["topics"]
        for part in topic["partitions"]
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="the owner of a connection is known on Linux only")
@pytest.mark.parametrize(
    "kills", [pytest.param(tries(12, quick=2), id="some"), pytest.param(1_000, id="many", marks=pytest.mark.soak)]
)
@pytest.mark.promise("killed: sync", "killed: os", "killed: interval")
def test_a_killed_server_keeps_what_it_has_told_its_clients(
    tmp_path: Path, seed: int, kills: int, tried: Callable[[str, int], None]
) -> None:
    path, log = tmp_path / "store", tmp_path / "errors"
    log.mkdir()
    journal = Journal(tmp_path / "journal")
    draw = random.Random(seed)
    with kstore.open(path, durability="os") as store:
        for topic in ("once", "often"):
            store.create_topic(topic, PARTITIONS, segment_bytes=SEGMENT_BYTES)
    serve = Serve(path, free_port(), draw)
    try:
        serve.spawn()
        serve.listens()
        with running_clients(f"127.0.0.1:{serve.port}", journal.path, log) as clients:
            for number in range(kills):
                kill_once(serve, journal, draw, is_first=number == 0)
                ensure_alive(clients, log)
                tried("kills", 1)
            finish(serve, journal, clients, log)
    finally:
        serve.kill()
    check(path, journal)


def kill_once(serve: Serve, journal: Journal, draw: random.Random, *, is_first: bool) -> None:
    """Lets the server run for a while, kills it, starts it again, and asks it for what is committed."""
    if is_first:
        # The clients have begun.
        deadline = time.monotonic() + STALL_SECONDS
        while not (journal.committed and all(journal.acknowledged.values())):
            if time.monotonic() > deadline:
                raise Hung("no client gets an answer")
            time.sleep(0.02)
            journal.take()
    time.sleep(draw.uniform(0, draw.choice((0.05, 0.5, 1.5))))
    serve.ensure_alive()
    serve.kill()
    if draw.random() < 0.1:
        # Also while it starts, and recovers.
        serve.spawn()
        time.sleep(draw.uniform(0, 0.5))
        serve.kill()
    serve.spawn()
    serve.listens()
    journal.take()
    before = journal.committed.copy()
    found = committed(serve.port)
    journal.take()
    for owner, offset in found.items():
        journal.check_committed(owner, offset, before)


def finish(serve: Serve, journal: Journal, clients: list[subprocess.Popen[bytes]], log: Path) -> None:
    """Lets the producers deliver everything, the members read it, and all leave in order. Raises: Hung, Crashed."""
    for what, client in zip(CLIENTS, clients, strict=True):
        if what in ("once", "often"):
            out, _ = client.communicate(timeout=2 * STALL_SECONDS)
            ensure_alive(clients, log)
            journal.take()
            if journal.acknowledged[what] != set(range(int(out))):
                raise Wrong(f"{what}: {out!r} sent, and {len(journal.acknowledged[what])} acknowledged")
    wanted = ends(serve.port)
    limit, before = time.monotonic() + STALL_SECONDS, -1
    while (there := committed(serve.port)) != wanted:
        if sum(there.values()) > before:
            # They may be slow on a busy machine, as long as they make progress.
            limit, before = time.monotonic() + STALL_SECONDS, sum(there.values())
        if time.monotonic() > limit:
            raise Hung(f"{there} is committed, expected {wanted}")
        time.sleep(0.05)
    for what, client in zip(CLIENTS, clients, strict=True):
        if what == "member":
            client.communicate(timeout=STALL_SECONDS)
    ensure_alive(clients, log)
    journal.take()
    for owner, offset in wanted.items():
        if journal.read_end[owner] != offset:
            raise Lost(f"{owner}: {journal.read_end[owner]} was never handed out, and the log ends at {offset}")


def check(path: Path, journal: Journal) -> None:
    """Checks what is in the store against what was acknowledged. Raises: Lost, Wrong."""
    with kstore.open(path, read_only=True) as store:
        for topic, acknowledged in journal.acknowledged.items():
            found: Counter[int] = Counter()
            for number in range(PARTITIONS):
                values = [int(record.value or b"") for record in store.log(topic, number).read()]
                found.update(values)
                if topic == "once" and values != sorted(values):
                    raise Wrong(f"{topic}-{number}: records of an idempotent producer are in another order")
            if missing := acknowledged - found.keys():
                raise Lost(f"{topic}: {sorted(missing)[:10]} were acknowledged")
            if others := found.keys() - acknowledged:
                raise Wrong(f"{topic}: {sorted(others)[:10]} were never acknowledged, and all were")
            if topic == "once" and (twice := [number for number, count in found.items() if count > 1]):
                raise Wrong(f"{topic}: {twice[:10]} are there twice")
