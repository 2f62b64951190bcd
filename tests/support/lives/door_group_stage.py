"""``Stage``: a fresh group on one server, and its clients with a connection each, for the rules of groups."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from kstore.door import errors as codes
from kstore.messages.primitives import INT16
from kstore.messages.schema import load_messages
from tests.support.lives.door_parts import WireClient

Body = dict[str, Any]
# It exists, with partition 0.
TOPIC = "rows"
# The shortest session that a broker allows.
SESSION_MS = 6000
STABLE, PREPARING, COMPLETING, EMPTY = "Stable", "PreparingRebalance", "CompletingRebalance", "Empty"
# A state that does not come is a failure.
SECONDS_MAX = 60.0


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer's member, as clients write it."""
    message = load_messages("consumer")["ConsumerProtocolSubscription"]
    return INT16.pack(0) + message.write({"topics": list(topics), "userData": None}, 0)


METADATA = subscription(TOPIC)


class Client:
    """One client of the row's group."""

    def __init__(self, talk: WireClient, group: str) -> None:
        self.talk = talk
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.leader = ""
        self.protocol_type = "consumer"
        self.protocol = "range"

    def ask(self, api: str, version: int, **body: Any) -> Body:
        return self.talk.ask(api, version, body)

    def send_join(self, version: int = 9, **given: Any) -> None:
        body = {
            "groupId": self.group,
            "sessionTimeoutMs": SESSION_MS,
            "rebalanceTimeoutMs": 60_000,
            "memberId": self.member_id,
            "protocolType": "consumer",
            "protocols": [{"name": "range", "metadata": METADATA}],
        }
        self.talk.send("JoinGroup", version, body | given)

    def joined(self) -> Body:
        """The answer to ``send_join``; the next requests use what it says."""
        answer = self.talk.answer()
        if answer["errorCode"] in (0, codes.MEMBER_ID_REQUIRED):
            self.member_id = answer["memberId"]
        if answer["errorCode"] == 0:
            self.generation, self.leader = answer["generationId"], answer["leader"]
            self.protocol_type = answer.get("protocolType") or self.protocol_type
            self.protocol = answer["protocolName"]
        return answer

    def join(self, version: int = 9, **given: Any) -> Body:
        self.send_join(version, **given)
        return self.joined()

    def enter(self, version: int = 9, **given: Any) -> None:
        """A dynamic member's join, up to the request that may wait."""
        assert self.join(version, **given)["errorCode"] == codes.MEMBER_ID_REQUIRED
        self.send_join(version, **given)

    def send_sync(self, version: int = 5, *, to: dict[str, bytes] | None = None, **given: Any) -> None:
        body = {
            "groupId": self.group,
            "generationId": self.generation,
            "memberId": self.member_id,
            "protocolType": self.protocol_type,
            "protocolName": self.protocol,
            "assignments": [{"memberId": name, "assignment": what} for name, what in (to or {}).items()],
        }
        self.talk.send("SyncGroup", version, body | given)

    def sync(self, version: int = 5, *, to: dict[str, bytes] | None = None, **given: Any) -> Body:
        self.send_sync(version, to=to, **given)
        return self.talk.answer()

    def heartbeat(self, version: int = 4, **given: Any) -> int:
        body = {"groupId": self.group, "generationId": self.generation, "memberId": self.member_id}
        return self.ask("Heartbeat", version, **body | given)["errorCode"]  # type: ignore[no-any-return]

    def leave(self, *members: Body, version: int = 5) -> Body:
        gone = list(members) or [{"memberId": self.member_id}]
        return self.ask("LeaveGroup", version, groupId=self.group, members=gone)

    def commit(self, offset: int = 1, topic: str = TOPIC, partition: int = 0, version: int = 9, **given: Any) -> int:
        place = {
            "partitionIndex": partition,
            "committedOffset": offset,
            "committedMetadata": given.pop("metadata", "m"),
        }
        body = {
            "groupId": self.group,
            "generationIdOrMemberEpoch": self.generation,
            "memberId": self.member_id,
            "topics": [{"name": topic, "partitions": [place]}],
        }
        answer = self.ask("OffsetCommit", version, **body | given)
        return answer["topics"][0]["partitions"][0]["errorCode"]  # type: ignore[no-any-return]

    def committed(self, topic: str = TOPIC, partition: int = 0) -> Body:
        """What OffsetFetch says of one partition."""
        asked = [{"name": topic, "partitionIndexes": [partition]}]
        answer = self.ask("OffsetFetch", 9, groups=[{"groupId": self.group, "topics": asked}])
        [group] = answer["groups"]
        assert group["errorCode"] == 0
        return group["topics"][0]["partitions"][0]  # type: ignore[no-any-return]


class Stage:
    """One fresh group on one server."""

    def __init__(
        self, host: str, port: int, group: str, stack: ExitStack, wait: Callable[[float, str, int], None]
    ) -> None:
        """``wait`` lets so many seconds pass for a group that has been sent so many requests without an answer yet."""
        self.group = group
        self._wait = wait
        self._address = host, port
        self._stack = stack
        self._clients: list[Client] = []
        self._watcher = self.client("watcher")
        # A broker answers 15 until its own topic is there, and 14 or 16 until the group's partition of it is loaded.
        while self.coordinator_error():
            time.sleep(0.05)

    def coordinator_error(self) -> int:
        answer = self._watcher.ask("FindCoordinator", 4, keyType=0, coordinatorKeys=[self.group])
        found: int = answer["coordinators"][0]["errorCode"]
        return found or self._watcher.ask("ListGroups", 4)["errorCode"] or self.description()["errorCode"]

    def client(self, name: str) -> Client:
        host, port = self._address
        client = Client(self._stack.enter_context(WireClient(port, host, client_id=name)), self.group)
        self._clients.append(client)
        return client

    def wait(self, seconds: float) -> None:
        """After all that was sent has arrived."""
        self._wait(seconds, self.group, sum(client.talk.unanswered_count for client in self._clients))

    def description(self) -> Body:
        [group] = self._watcher.ask("DescribeGroups", 5, groups=[self.group])["groups"]
        return group  # type: ignore[no-any-return]

    @property
    def state(self) -> str:
        return self.description()["groupState"]  # type: ignore[no-any-return]

    def until(self, state: str, *, members: int | None = None) -> None:
        """Until requests of other connections have arrived."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            found = self.description()
            if found["groupState"] == state and members in (None, len(found["members"])):
                return
            assert time.monotonic() < deadline, f"{found['groupState']}, expected {state}"

    def alone(self, name: str = "alone", **given: Any) -> Client:
        """The only member of a stable group."""
        one = self.client(name)
        one.enter(**given)
        assert one.joined()["errorCode"] == 0
        assert one.sync(to={one.member_id: b"all"})["errorCode"] == 0
        return one

    def pair(self, **given: Any) -> tuple[Client, Client]:
        """The two members of a stable group, its leader first."""
        one = self.alone("one", **given)
        two = self.client("two")
        two.enter(**given)
        self.until(PREPARING, members=2)
        one.send_join(**given)
        assert one.joined()["errorCode"] == two.joined()["errorCode"] == 0
        assert one.leader == two.leader == one.member_id
        two.send_sync()
        assert one.sync(to={one.member_id: b"1", two.member_id: b"2"})["assignment"] == b"1"
        assert two.talk.answer()["assignment"] == b"2"
        return one, two

    def static(self, name: str = "s1", **given: Any) -> Client:
        """The only member of a stable group, a static one."""
        one = self.client("static")
        assert one.join(groupInstanceId=name, **given)["errorCode"] == 0
        assert one.sync(to={one.member_id: b"all"}, groupInstanceId=name)["errorCode"] == 0
        return one
