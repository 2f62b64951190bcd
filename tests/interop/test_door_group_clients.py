"""Groups of one and two members, with clients of several libraries, each in a process of its own, at a door."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import kstore
from kstore import TopicPartition

pytestmark = pytest.mark.interop

PROGRAM = Path(__file__).with_name("group_member.py")
SECONDS_MAX = 60.0
# The library and the package that it is imported as.
LIBRARIES = {"kafka-python": "kafka", "confluent-kafka": "confluent_kafka", "aiokafka": "aiokafka"}


class Member:
    """A process that is a member of group "g"; a thread notes what it prints."""

    def __init__(self, library: str, server: str, *more: str) -> None:
        self.has: list[int] = []
        self.read: list[tuple[int, int]] = []
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), library, server, "g", "t", *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._note)
        self._thread.start()

    def _note(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, *numbers = line.split()
            if kind == "has":
                self.has = [int(number) for number in numbers]
            elif kind == "read":
                self.read.append((int(numbers[0]), int(numbers[1])))

    def leave(self) -> None:
        """Ends it in order. Raises: AssertionError if it fails."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(SECONDS_MAX) == 0
        self.end()

    def end(self) -> None:
        """Kills it, if it still runs."""
        self.process.kill()
        self.process.wait()
        self._thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX:g} s: {what}"
        time.sleep(0.02)


class Served:
    def __init__(self, store: kstore.Store, door: kstore.Door, library: str, stack: ExitStack) -> None:
        self.store, self._door, self._library, self._stack = store, door, library, stack
        self.ends = [0, 0]

    def put(self, count: int) -> None:
        for number in (0, 1):
            self.store.log("t", number).append_many([b"x"] * count)
            self.ends[number] += count

    def member(self, *more: str) -> Member:
        member = Member(self._library, self._door.bootstrap_servers, *more)
        self._stack.callback(member.end)
        return member

    def all_read(self, *members: Member) -> bool:
        """Whether they have read every record, together."""
        wanted = {(number, offset) for number in (0, 1) for offset in range(self.ends[number])}
        return {each for member in members for each in list(member.read)} == wanted

    def committed(self) -> list[int | None]:
        return [self.store.consumer_offsets.offset_at("g", TopicPartition("t", number)) for number in (0, 1)]


@pytest.fixture(params=LIBRARIES)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    if importlib.util.find_spec(LIBRARIES[request.param]) is None:
        pytest.skip(f"{request.param} is not installed")
    with opened(tmp_path / "store", request.param) as served:
        yield served


@contextmanager
def opened(path: Path, library: str) -> Iterator[Served]:
    with kstore.open(path, durability="os") as store, kstore.Door(store, port=0) as door, ExitStack() as stack:
        store.create_topic("t", 2)
        yield Served(store, door, library, stack)


def test_members_share_partitions_and_continue_where_the_others_stopped(served: Served) -> None:
    served.put(10)
    one = served.member()
    wait_for("all is read", lambda: served.all_read(one))
    two = served.member()
    wait_for("each has one", lambda: len(one.has) == len(two.has) == 1 and one.has != two.has)
    served.put(10)
    wait_for("all is read", lambda: served.all_read(one, two))
    assert two.read
    two.leave()
    wait_for("one has both", lambda: one.has == [0, 1])
    served.put(5)
    wait_for("all is read", lambda: served.all_read(one, two))
    one.leave()
    assert served.committed() == served.ends
    served.put(3)
    three = served.member()
    wait_for("the rest is read", lambda: served.all_read(one, two, three))
    three.leave()
    assert min(offset for _, offset in three.read) == 25


def test_a_member_that_is_killed_loses_its_partitions_to_the_other(served: Served) -> None:
    served.put(10)
    one, two = served.member(), served.member()
    wait_for("each has one", lambda: len(one.has) == len(two.has) == 1 and one.has != two.has)
    two.end()
    wait_for("one has both", lambda: one.has == [0, 1])
    served.put(10)
    wait_for("all is read", lambda: served.all_read(one, two))
    one.leave()
    assert served.committed() == served.ends


def test_a_static_member_comes_back_to_its_partitions(served: Served) -> None:
    served.put(10)
    one, two = served.member("first"), served.member("second")
    wait_for("each has one", lambda: len(one.has) == len(two.has) == 1 and one.has != two.has)
    had, kept = two.has, one.has
    two.end()
    again = served.member("second")
    wait_for("it is back", lambda: again.has == had)
    assert one.has == kept
    served.put(5)
    wait_for("all is read", lambda: served.all_read(one, two, again))
    one.leave()
