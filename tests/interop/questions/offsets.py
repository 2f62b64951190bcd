"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from tests.interop.questions.side import NOW, Side, batch, question, versions


@question
def list_offsets_with_each_version(side: Side) -> None:
    topic, empty = side.topic(), side.topic("empty")
    for number in (0, 20, 10):
        side.put(topic, batch(b"a", b"b", time_ms=NOW + number))
    part = [{"partitionIndex": 0, "offset": 1}]
    side.quiet("DeleteRecords", 2, topics=[{"name": topic, "partitions": part}], timeoutMs=30_000)
    for version in versions("ListOffsets"):
        times = (-1, -2, -3, -4, -5, -6, -7, -99, 0, NOW, NOW + 1, NOW + 10, NOW + 20, NOW + 21, NOW + 22, 2**62)
        side.offsets(topic, *times, version=version)
        side.offsets(empty, -1, -2, -3, -4, 0, NOW, version=version)


@question
def list_offsets_of_unknown_partitions(side: Side) -> None:
    topic = side.topic()
    for version in (1, 4, 8):
        for name, number in ((topic, 1), (topic, -1), ("no-such-topic", 0), ("a b", 0), ("", 0)):
            asked = [{"partitionIndex": number, "timestamp": -1}]
            side.ask("ListOffsets", version, replicaId=-1, topics=[{"name": name, "partitions": asked}])
    asked = [{"partitionIndex": 0, "timestamp": -1}] * 2
    side.ask("ListOffsets", 8, replicaId=-1, topics=[{"name": topic, "partitions": asked}])
    side.ask("ListOffsets", 8, replicaId=-1, topics=[])


@question
def list_offsets_with_leader_epochs_and_levels(side: Side) -> None:
    topic = side.topic()
    side.put(topic, batch(b"a"))
    for epoch in (-1, 0, 1, 99):
        side.offsets(topic, -1, -2, NOW, currentLeaderEpoch=epoch)
    for level in (1, 2, -1):
        for when in (-1, -2, -3, NOW):
            asked = [{"partitionIndex": 0, "timestamp": when}]
            side.ask(
                "ListOffsets", 8, replicaId=-1, isolationLevel=level, topics=[{"name": topic, "partitions": asked}]
            )


@question
def ends_of_leader_epochs(side: Side) -> None:
    topic = side.topic()
    side.put(topic, batch(b"a"))
    for version in versions("OffsetForLeaderEpoch"):
        for name, number, current, epoch in (
            (topic, 0, -1, 0),
            (topic, 0, 0, 0),
            (topic, 0, 1, 0),
            (topic, 0, -1, 1),
            (topic, 0, -1, -1),
            (topic, 7, -1, 0),
            ("no-such-topic", 0, -1, 0),
        ):
            asked = [{"partition": number, "currentLeaderEpoch": current, "leaderEpoch": epoch}]
            side.ask("OffsetForLeaderEpoch", version, replicaId=-1, topics=[{"topic": name, "partitions": asked}])
