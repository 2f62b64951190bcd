"""A door and a broker are asked the same, and each field of each answer is compared.

The questions are those of ``questions`` and the rules of groups (``door_group_rows``). What may differ, and why,
is in ``door_differences`` and in docs/door.md; everything else is a defect of the door.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

import kstore
from tests.interop.conftest import Kafka
from tests.interop.questions import QUESTIONS
from tests.interop.questions.side import Plain, Side
from tests.support.lives.door_differences import DIFFERENCES
from tests.support.lives.door_group_rows import ROWS
from tests.support.lives.door_group_stage import TOPIC, Client, Stage
from tests.support.lives.door_parts import WireClient

pytestmark = pytest.mark.interop

# The fields that identify an item of a list; the order of the items has no meaning.
KEYS = ("name", "topic", "groupId", "key", "partitionIndex", "partition", "index", "apiKey", "resourceName", "memberId")
ABSENT = "absent"
Answers = list[tuple[str, Any]]


class Found(NamedTuple):
    """One field that differs."""

    place: str
    broker: Any
    door: Any

    def is_listed(self, where: str) -> bool:
        """Whether the difference of this pattern is this one."""
        if re.fullmatch(where, self.place):
            # Words beside a code are more than none; none instead of a broker's are not listed.
            return not where.endswith("rrorMessage)") or bool(self.door and not self.broker)
        return re.fullmatch(where, f"{self.place} broker {self.broker}") is not None


def compare(place: str, broker: Any, door: Any) -> Iterator[Found]:
    """The fields that differ; a list whose items differ in number or in name is one field, with "#"."""
    if isinstance(broker, dict) and isinstance(door, dict):
        for name in sorted(broker.keys() | door.keys()):
            yield from compare(f"{place}.{name}", broker.get(name, ABSENT), door.get(name, ABSENT))
    elif isinstance(broker, list) and isinstance(door, list):
        ones, others = named(broker), named(door)
        if ones.keys() != others.keys():
            yield Found(f"{place}#", sorted(ones.keys() - others.keys()), sorted(others.keys() - ones.keys()))
        for name in sorted(ones.keys() & others.keys()):
            yield from compare(f"{place}[{name}]", ones[name], others[name])
    elif broker != door:
        yield Found(place, broker, door)


def named(items: list[Any]) -> dict[str, Any]:
    """The items of a list by their names, or by their numbers."""
    if items and isinstance(items[0], dict):
        keys = [key for key in KEYS if key in items[0]]
        by_name = {" ".join(str(item[key]) for key in keys): item for item in items}
        if len(by_name) == len(items):
            return by_name
    return {f"{number:03}": item for number, item in enumerate(items)}


class Server(NamedTuple):
    host: str
    port: int


class Both(NamedTuple):
    broker: Server
    door: Server

    def differences(self, row: str, ask: Callable[[Server], Answers]) -> list[Found]:
        at_broker, at_door = ask(self.broker), ask(self.door)
        assert [what for what, _ in at_broker] == [what for what, _ in at_door]
        return [
            found
            for (what, broker), (_, door) in zip(at_broker, at_door, strict=True)
            for found in compare(f"{row}: {what}: ", broker, door)
        ]


@pytest.fixture(scope="module")
def both(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    broker = kafka.broker(tmp_path_factory.mktemp("differential"))
    broker.extra_properties = "auto.create.topics.enable=true\n"
    broker.life_seconds_max = 900
    directory = tmp_path_factory.mktemp("differential-store")
    # The broker's node: absent ids are 0.
    (directory / "meta.properties").write_text("version=1\ncluster.id=ab12cd34ef56gh78ij90kl\nnode.id=1\n")
    with (
        broker.running(),
        kstore.open(directory, durability="os") as store,
        kstore.Door(store, port=0) as door,
    ):
        host, _, port = broker.server.partition(":")
        yield Both(Server(host, int(port)), Server("127.0.0.1", door.port))


@pytest.fixture(scope="module")
def found(both: Both) -> dict[str, list[Found]]:
    """The differences of each question."""
    run = uuid.uuid4().hex[:4]

    def answers(server: Server, name: str) -> Answers:
        with ExitStack() as stack:
            side = Side(*server, f"{name}-{run}", stack)
            QUESTIONS[name](side)
            return side.answers

    return {name: both.differences(name, lambda server: answers(server, name)) for name in QUESTIONS}  # noqa: B023


def unlisted(differences: list[Found]) -> list[Found]:
    return [one for one in differences if not any(one.is_listed(listed.where) for listed in DIFFERENCES)]


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_door_answers_as_a_broker(found: dict[str, list[Found]], name: str) -> None:
    assert unlisted(found[name]) == []


def test_each_listed_difference_is_one(found: dict[str, list[Found]]) -> None:
    every = [one for differences in found.values() for one in differences]
    assert [listed for listed in DIFFERENCES if not any(one.is_listed(listed.where) for one in every)] == []


# --- the rules of groups ----------------------------------------------------------------------------------------------


class NotedClient(WireClient):
    """A connection of which every answer is kept."""

    def __init__(self, server: Server, name: str) -> None:
        super().__init__(server.port, server.host, client_id=name)
        self.answers: list[tuple[str, dict[str, Any]]] = []

    def answer(self) -> dict[str, Any]:
        message, version, _ = self._asked[0]
        body = super().answer()
        self.answers.append((f"{message.name.removesuffix('Response')} v{version}", body))
        return body


class NotedStage(Stage):
    """A stage whose clients keep all answers. Its first one, which looks at states as often as it takes, does not."""

    def __init__(self, server: Server, group: str, stack: ExitStack) -> None:
        self.noted: list[NotedClient] = []
        super().__init__(server.host, server.port, group, stack, needs_time)

    def client(self, name: str) -> Client:
        if name == "watcher":
            return super().client(name)
        talk = NotedClient(Server(*self._address), name)
        self._stack.callback(talk.socket.close)
        self.noted.append(talk)
        client = Client(talk, self.group)
        self._clients.append(client)
        return client


class NeedsTimeError(Exception):
    """A row waits for seconds to pass: ``test_group_rules.py`` has its codes."""


def needs_time(seconds: float, group: str, unanswered: int) -> None:
    raise NeedsTimeError


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_the_answers_of_a_rule_of_groups_are_those_of_a_broker(both: Both, name: str) -> None:
    group = f"{name}-{uuid.uuid4().hex[:6]}"

    def answers(server: Server) -> Answers:
        with ExitStack() as stack:
            side = Side(*server, group, stack)
            for topic in (TOPIC, "other"):
                asked = {"name": topic, "numPartitions": 1, "replicationFactor": 1}
                side.quiet("CreateTopics", 4, topics=[asked], timeoutMs=30_000)
                side.until(lambda topic=topic: side.is_there(topic, 1))  # type: ignore[misc]
            stage = NotedStage(server, group, stack)
            try:
                ROWS[name](stage)
            except NeedsTimeError:
                pytest.skip("it waits")
            plain = Plain(server.host, server.port, side.node)
            # Which other groups there are is for other rows to say.
            noted = [one for client in stage.noted for one in client.answers if not one[0].startswith("ListGroups")]
            return [(what, plain(answer)) for what, answer in noted]

    assert unlisted(both.differences(name, answers)) == []
