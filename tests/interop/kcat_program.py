"""What kcat sees at SERVER: ``python -m tests.interop.kcat_program SERVER``. Prints a line for each step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

TOPIC, GROUP, PARTITIONS, COUNT, FIRST_MS = "orders", "billing", 3, 30, 1_767_225_600_000
FORMAT = r"%p %o %k %s %h" + "\n"
SECONDS_MAX = 60.0
ASSIGNED = re.compile(r"% Group billing rebalanced \(memberid \S+\): (assigned|revoked): ?(.*)")


def kcat(server: str, *arguments: str, given: str = "") -> list[str]:
    done = subprocess.run(
        ["kcat", "-b", server, "-q", *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"kcat {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout.splitlines()


class Member:
    """A kcat that is a member of the group; threads note what it prints."""

    def __init__(self, server: str, stack: ExitStack) -> None:
        self.owned: list[str] = []
        self.lines: list[str] = []
        options = {
            "auto.offset.reset": "earliest",
            "session.timeout.ms": "10000",
            "heartbeat.interval.ms": "200",
            "topic.metadata.refresh.interval.ms": "1000",
        }
        settings = [word for name, value in options.items() for word in ("-X", f"{name}={value}")]
        self.process = subprocess.Popen(
            ["kcat", "-b", server, *settings, "-u", "-f", FORMAT, "-G", GROUP, TOPIC],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._end)
        self._threads = [threading.Thread(target=work) for work in (self._note_records, self._note_partitions)]
        for thread in self._threads:
            thread.start()

    def _note_records(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def _note_partitions(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if (found := ASSIGNED.match(line)) is not None:
                self.owned = re.findall(r"orders \[\d+\]", found[2]) if found[1] == "assigned" else []

    def leave(self) -> None:
        """Ends it in order: it commits, and leaves the group."""
        self.process.terminate()
        self.process.wait(SECONDS_MAX)
        self._end()

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {SECONDS_MAX:g} s: {what}")
        time.sleep(0.02)


def make_topic(server: str) -> None:
    """kcat makes no topics."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server})
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        made.result(SECONDS_MAX)


def send(server: str, first: int, *, codec: str) -> None:
    for partition in range(PARTITIONS):
        numbers = range(first + partition, first + COUNT, PARTITIONS)
        lines = "".join(f"key {number}=value {number}\n" for number in numbers)
        options = ("-X", "enable.idempotence=true", "-z", codec, "-H", "from=kcat", "-K", "=", "-p", str(partition))
        kcat(server, "-P", "-t", TOPIC, *options, given=lines)


def steps(server: str, stack: ExitStack) -> Iterator[tuple[Any, ...]]:
    make_topic(server)
    [line] = kcat(server, "-L", "-J", "-t", TOPIC)
    shown = json.loads(line)
    node = shown["brokers"][0]["id"]
    yield "brokers", [each["name"] == server for each in shown["brokers"]], shown["controllerid"] == node
    [topic] = shown["topics"]
    for each in sorted(topic["partitions"], key=lambda each: each["partition"]):
        places = [[copy["id"] == node for copy in each[name]] for name in ("replicas", "isrs")]
        yield "partition", each["partition"], each["leader"] == node, *places
    send(server, 0, codec="zstd")
    for when in ("-1", "-2", "1", str(FIRST_MS * 2)):
        asked = [word for number in range(PARTITIONS) for word in ("-t", f"{TOPIC}:{number}:{when}")]
        yield "offsets", when, sorted(kcat(server, "-Q", *asked))
    yield "tail", kcat(server, "-C", "-t", TOPIC, "-p", "1", "-o", "-2", "-e", "-f", FORMAT)
    yield "middle", kcat(server, "-C", "-t", TOPIC, "-p", "2", "-o", "4", "-c", "3", "-f", FORMAT)
    for line in sorted(kcat(server, "-C", "-t", TOPIC, "-e", "-f", FORMAT)):
        yield "read", line

    one = Member(server, stack)
    until("all is read", lambda: len(one.lines) == COUNT)
    yield "alone", one.owned
    two = Member(server, stack)
    until(
        "both have a share",
        lambda: len(one.owned) + len(two.owned) == PARTITIONS and 0 < len(one.owned) < PARTITIONS,
    )
    yield "shared", sorted([len(one.owned), len(two.owned)])
    send(server, COUNT, codec="lz4")
    until("all is read", lambda: len(one.lines) + len(two.lines) == 2 * COUNT)
    two.leave()
    until("one has all", lambda: len(one.owned) == PARTITIONS)
    one.leave()
    yield "both have read", bool(one.lines), bool(two.lines)
    for line in sorted(one.lines + two.lines):
        yield "in the group", line
    send(server, 2 * COUNT, codec="gzip")
    last = Member(server, stack)
    until("the rest is read", lambda: len(last.lines) == COUNT)
    last.leave()
    for line in sorted(last.lines):
        yield "later", line


def main(server: str) -> None:
    with ExitStack() as stack:
        for step in steps(server, stack):
            print(*step, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
