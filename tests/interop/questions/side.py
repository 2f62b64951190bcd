"""``Side``: one server that is asked, what it has answered, and what the rows of questions need beside.

A row asks one ``Side`` and notes every field of every answer. ``test_door_differential.py`` asks a broker and a door
the same, and compares. The rules of groups have a table of their own (``door_group_rows``), which it asks too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from kstore.messages.primitives import Uuid
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tests.support.lives.door_group_stage import METADATA, SESSION_MS
from tests.support.lives.door_parts import WireClient

Body = dict[str, Any]
Question = Callable[["Side"], None]
QUESTIONS: dict[str, Question] = {}

NOW = int(time.time() * 1000)
HOUR_MS = 3_600_000
SECONDS_MAX = 60.0
# What a server answers until it has made the topics of its coordinators, and has read them.
NOT_YET = (14, 15, 16)
CLOSED = {"connection": "closed"}
RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NO_ID = Uuid(16)
# The fields that name the node, and those whose words are each server's own.
NODES = {"nodeId", "leaderId", "replicaNodes", "isrNodes", "controllerId", "brokerId"}
WORDS = {"errorMessage", "batchIndexErrorMessage", "documentation"}


def joining(group: str) -> Body:
    """A JoinGroup of a new member."""
    return {
        "groupId": group,
        "sessionTimeoutMs": SESSION_MS,
        "rebalanceTimeoutMs": 60_000,
        "memberId": "",
        "protocolType": "consumer",
        "protocols": [{"name": "range", "metadata": METADATA}],
    }


def question(test: Question) -> Question:
    QUESTIONS[test.__name__] = test
    return test


class Plain:
    """Answers without what differs between any two servers: ids, addresses, the clock, and the words of messages."""

    def __init__(self, host: str, port: int, node: int) -> None:
        self._own: dict[str, Callable[[Any], bool]] = {
            **dict.fromkeys(NODES, lambda value: value == node),
            **dict.fromkeys(WORDS, bool),
            "host": lambda value: value == host,
            "port": lambda value: value == port,
            "clusterId": bool,
            "logDir": bool,
            "topicId": lambda value: value != NO_ID,
            "producerId": lambda value: value >= 0,
            "logAppendTimeMs": lambda value: value >= NOW,
            "sessionId": lambda value: value > 0,
            "totalBytes": lambda value: value > 0,
            "usableBytes": lambda value: value > 0,
            "finalizedFeaturesEpoch": lambda value: value >= 0,
        }

    def __call__(self, value: Any, name: str = "") -> Any:
        if isinstance(value, Mapping):
            return {field: self(each, field) for field, each in value.items()}
        if isinstance(value, list):
            return [self(each, name) for each in value]
        if name in self._own and self._own[name](value):
            return f"its own {name}"
        if isinstance(value, str):
            return RANDOM.sub("RANDOM", value)
        return bytes(value) if isinstance(value, memoryview) else value


class Side:
    """One server, and what it has answered to a row. Names of topics and groups are those of the row."""

    def __init__(self, host: str, port: int, row: str, stack: ExitStack) -> None:
        self.row = row
        self.answers: list[tuple[str, Any]] = []
        self._address = host, port
        self._stack = stack
        self._client: WireClient | None = None
        self._quiet = self.client()
        self.node: int = self.quiet("Metadata", 9, topics=[])["controllerId"]
        self._plain = Plain(host, port, self.node)

    # --- asking -------------------------------------------------------------------------------------------------------

    def client(self, name: str = "client") -> WireClient:
        host, port = self._address
        return self._stack.enter_context(WireClient(port, host, client_id=name))

    def ask(self, api: str, version: int, **body: Any) -> Any:
        """Asks, and notes the answer, or that the connection ends without one."""
        return self.ask_as(f"{api} v{version}", api, version, **body)

    def ask_as(self, what: str, api: str, version: int, **body: Any) -> Any:
        """Asks, and notes the answer by another name."""
        if self._client is None:
            self._client = self.client()
        try:
            answer = self._client.ask(api, version, body)
        except ConnectionError:
            answer, self._client = CLOSED, None
        self.note(what, answer)
        return answer

    def ask_all(self, api: str, versions: Iterable[int], **body: Any) -> None:
        for version in versions:
            self.ask(api, version, **body)

    def send_raw(self, what: str, data: bytes) -> None:
        """Sends bytes on a connection of its own, and notes whether it ends."""
        with self.client() as client:
            client.socket.sendall(data)
            self.note(what, CLOSED if client.is_closed_by_peer() else {"connection": "answers"})

    def quiet(self, api: str, version: int, **body: Any) -> Any:
        """Asks without a note."""
        return self._quiet.ask(api, version, body)

    def note(self, what: str, answer: Any) -> None:
        self.answers.append((what, self._plain(answer)))

    # --- what rows need -----------------------------------------------------------------------------------------------

    def topic(self, name: str = "", partitions: int = 1, **configs: str) -> str:
        """A new topic that can be written to. ``configs`` in Kafka's names, with "_" for "."."""
        topic = f"{self.row}{'-' if name else ''}{name}"
        given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        asked = {"name": topic, "numPartitions": partitions, "replicationFactor": 1, "configs": given}
        [made] = self.quiet("CreateTopics", 4, topics=[asked], timeoutMs=30_000)["topics"]
        assert made["errorCode"] == 0, made
        self.until(lambda: self.is_there(topic, partitions))
        return topic

    def is_there(self, topic: str, partitions: int) -> bool:
        asked = [{"partitionIndex": number, "timestamp": -1} for number in range(partitions)]
        found = self.quiet("ListOffsets", 1, replicaId=-1, topics=[{"name": topic, "partitions": asked}])
        return not any(each["errorCode"] for each in found["topics"][0]["partitions"])

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def put(self, topic: str, data: bytes, partition: int = 0) -> int:
        """Appends a batch; its base offset."""
        part = {"index": partition, "records": data}
        topics = [{"name": topic, "partitionData": [part]}]
        answer = self.quiet("Produce", 9, acks=-1, timeoutMs=30_000, topicData=topics)
        [found] = answer["responses"][0]["partitionResponses"]
        assert found["errorCode"] == 0, found
        return found["baseOffset"]  # type: ignore[no-any-return]

    def produce(
        self, topic: str, data: bytes | None, version: int = 11, partition: int = 0, what: str = "", **fields: Any
    ) -> Any:
        part = {"index": partition, "records": data}
        body = {"acks": -1, "timeoutMs": 30_000, "topicData": [{"name": topic, "partitionData": [part]}]}
        return self.ask_as(f"Produce v{version}{what}", "Produce", version, **body | fields)

    def fetch(self, *asked: Body, version: int = 12, **fields: Any) -> Any:
        """``asked``: the partitions, each with its ``topic``."""
        topics = [
            {"topic": one["topic"], "partitions": [{"partition": 0, "partitionMaxBytes": 1 << 20, **one}]}
            for one in asked
        ]
        return self.ask(
            "Fetch", version, **{"maxWaitMs": 0, "minBytes": 1, "maxBytes": 1 << 20, "topics": topics, **fields}
        )

    def offsets(self, topic: str, *timestamps: int, version: int = 8, **fields: Any) -> None:
        for when in timestamps:
            asked = [{"partitionIndex": 0, "timestamp": when, **fields}]
            self.ask("ListOffsets", version, replicaId=-1, topics=[{"name": topic, "partitions": asked}])

    def producer_id(self) -> int:
        """A new one of an idempotent producer."""
        found: list[int] = []

        def is_there() -> bool:
            answer = self.quiet("InitProducerId", 4, transactionalId=None, transactionTimeoutMs=60_000)
            assert answer["errorCode"] in (0, *NOT_YET), answer
            found[:] = [answer["producerId"]]
            return not answer["errorCode"]

        self.until(is_there)
        return found[0]

    def group(self, name: str = "") -> str:
        """The name of a group whose coordinator is ready."""
        group = f"{self.row}{'-' if name else ''}{name}"

        def is_ready() -> bool:
            answer = self.quiet("FindCoordinator", 2, key=group)
            found: int = answer["errorCode"]
            if not found:
                found = self.quiet("OffsetFetch", 5, groupId=group, topics=[])["errorCode"]
            assert found in (0, *NOT_YET), found
            return not found

        self.until(is_ready)
        return group

    def commit(self, group: str, topic: str, offset: int = 1, version: int = 9, **fields: Any) -> Any:
        part = {"partitionIndex": 0, "committedOffset": offset, "committedMetadata": "m"}
        part |= {name: fields.pop(name) for name in list(fields) if name in (*part, "committedLeaderEpoch")}
        body = {"groupId": group, "topics": [{"name": topic, "partitions": [part]}]}
        return self.ask("OffsetCommit", version, **body | fields)

    def member(self, group: str, **given: Any) -> tuple[str, int]:
        """The only member of a stable group, without a note: its id and generation."""
        joined = joining(group) | given
        answer = self.quiet("JoinGroup", 3, **joined)
        assert answer["errorCode"] == 0, answer
        member, generation = answer["memberId"], answer["generationId"]
        own = {"groupId": group, "generationId": generation, "memberId": member}
        synced = self.quiet("SyncGroup", 2, **own, assignments=[{"memberId": member, "assignment": b"all"}])
        assert synced["errorCode"] == 0, synced
        return member, generation


def batch(*values: bytes, time_ms: int = NOW, key: bytes | None = b"key", **fields: Any) -> bytes:
    records = [Record(number, time_ms + number, key=key, value=value) for number, value in enumerate(values)]
    return bytes(build_batch(records, **fields))


def versions(api: str) -> range:
    """Those that a door serves."""
    return range(*SERVED[api])


# From section 3 of what docs/door.md lists; the first, and one after the last.
SERVED = {
    "Produce": (3, 12),
    "Fetch": (4, 13),
    "ListOffsets": (1, 9),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 10),
    "OffsetFetch": (1, 10),
    "FindCoordinator": (0, 5),
    "JoinGroup": (0, 10),
    "Heartbeat": (0, 5),
    "LeaveGroup": (0, 6),
    "SyncGroup": (0, 6),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "ApiVersions": (0, 5),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 3),
    "InitProducerId": (0, 5),
    "OffsetForLeaderEpoch": (2, 5),
    "DescribeConfigs": (1, 5),
    "DescribeLogDirs": (1, 5),
    "CreatePartitions": (0, 4),
    "DeleteGroups": (0, 3),
    "IncrementalAlterConfigs": (0, 2),
    "OffsetDelete": (0, 1),
    "DescribeCluster": (0, 2),
}
