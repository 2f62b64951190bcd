"""Groups and their offsets; the rules of membership are in ``door_group_rows``."""

from __future__ import annotations

from typing import Any

from tests.interop.questions.side import Body, Side, joining, question, versions
from tests.support.lives.door_group_stage import METADATA, subscription


@question
def find_coordinators(side: Side) -> None:
    group = side.group()
    for version in versions("FindCoordinator"):
        many = [group, f"{group}-other"]
        side.ask("FindCoordinator", version, key=group, keyType=0, coordinatorKeys=many)
    for version in (1, 4):
        for kind in (2, 3, -1):
            side.ask("FindCoordinator", version, key=group, keyType=kind, coordinatorKeys=[group])
        side.ask("FindCoordinator", version, key="", keyType=0, coordinatorKeys=[""])
    side.ask("FindCoordinator", 4, keyType=0, coordinatorKeys=[])


@question
def a_life_of_a_group_with_each_version(side: Side) -> None:
    for version in range(10):
        group = side.group(str(version))
        join = {
            "groupId": group,
            "sessionTimeoutMs": 30_000,
            "rebalanceTimeoutMs": 60_000,
            "memberId": "",
            "protocolType": "consumer",
            "protocols": [{"name": "range", "metadata": METADATA}, {"name": "other", "metadata": b"m"}],
        }
        answer = side.ask("JoinGroup", version, **join)
        if version >= 4:
            answer = side.ask("JoinGroup", version, **join | {"memberId": answer["memberId"]})
        own = {"groupId": group, "generationId": answer["generationId"], "memberId": answer["memberId"]}
        given = [{"memberId": own["memberId"], "assignment": b"all"}]
        sync = min(version, 5)
        named = {"protocolType": "consumer", "protocolName": "range"}
        side.ask("SyncGroup", sync, **own, **named, assignments=given)
        side.ask("Heartbeat", min(version, 4), **own)
        for asked in (True, False):
            side.ask("DescribeGroups", min(version, 5), groups=[group], includeAuthorizedOperations=asked)
        side.ask("SyncGroup", sync, **own, **named, assignments=[])
        leave = {"groupId": group, "memberId": own["memberId"], "members": [{"memberId": own["memberId"]}]}
        side.ask("LeaveGroup", min(version, 5), **leave)
        side.ask("LeaveGroup", min(version, 5), **leave)
        side.ask("Heartbeat", min(version, 4), **own)
        side.ask("SyncGroup", sync, **own, **named, assignments=[])
        side.ask("DescribeGroups", min(version, 5), groups=[group])


@question
def joins_that_are_refused(side: Side) -> None:
    group = side.group()
    good = joining(group)
    for version in (0, 3, 6, 9):
        changes: tuple[Body, ...] = (
            {"groupId": ""},
            {"memberId": "stranger"},
            {"sessionTimeoutMs": 5_999},
            {"sessionTimeoutMs": 1_800_001},
            {"protocols": []},
            {"protocolType": ""},
        )
        for change in changes:
            side.ask("JoinGroup", version, **good | change)
    for number, name in enumerate(("", ".", "a b", "a" * 250)):
        side.ask("JoinGroup", 5, **good | {"groupId": side.group(str(number)), "groupInstanceId": name})


@question
def requests_of_strangers(side: Side) -> None:
    group = side.group()
    for named in ("", group, f"{group}-other"):
        for member, generation in (("", -1), ("stranger", 1), ("stranger", -1)):
            own = {"groupId": named, "generationId": generation, "memberId": member}
            for version in (0, 3, 4):
                side.ask("Heartbeat", version, **own)
            for version in (0, 3, 5):
                side.ask("SyncGroup", version, **own, protocolType="consumer", protocolName="range")
                leave = {
                    "memberId": member,
                    "members": [{"memberId": member}, {"memberId": "b", "groupInstanceId": "i"}],
                }
                side.ask("LeaveGroup", version, groupId=named, **leave)


@question
def commits_with_each_version(side: Side) -> None:
    topic, group = side.topic(partitions=2), side.group()
    for version in versions("OffsetCommit"):
        side.commit(group, topic, version, version, committedLeaderEpoch=0)
        committed_of(side, group, topic)
        side.commit(group, "no-such-topic", 1, version)
        side.commit(group, topic, 1, version, committedMetadata="a" * 4097)
        side.commit(group, topic, 1, version, committedMetadata=None)
        committed_of(side, group, topic)
        side.commit(group, topic, 1, version, committedMetadata="a" * 4096)
        side.commit(group, topic, 1 << 60, version)
        side.commit(group, topic, 1, version, memberId="stranger", generationIdOrMemberEpoch=1)
        side.commit(group, topic, 1, version, memberId="", generationIdOrMemberEpoch=1)
        side.commit(group, topic, 1, version, memberId="stranger")
        side.commit("", topic, 1, version)
        side.commit(f"{group}-{version}", topic, 1, version, memberId="stranger", generationIdOrMemberEpoch=1)
    parts = [{"partitionIndex": number, "committedOffset": 1, "committedMetadata": ""} for number in (0, 1, 7)]
    side.ask("OffsetCommit", 9, groupId=group, topics=[{"name": topic, "partitions": parts}])
    side.ask("OffsetCommit", 9, groupId=group, topics=[])
    side.ask("OffsetCommit", 9, groupId="", topics=[])


def committed_of(side: Side, group: str, topic: str) -> None:
    asked = [{"name": topic, "partitionIndexes": [0]}]
    side.ask("OffsetFetch", 9, groups=[{"groupId": group, "topics": asked}])


@question
def a_negative_commit(side: Side) -> None:
    topic, group = side.topic(), side.group()
    side.commit(group, topic, -5)


@question
def commits_of_members(side: Side) -> None:
    topic, group = side.topic(), side.group()
    member, generation = side.member(group)
    for version in (2, 5, 9):
        for name, number in ((member, generation), (member, generation + 1), (member, -1), ("", -1), ("stranger", 1)):
            side.commit(group, topic, 5, version, memberId=name, generationIdOrMemberEpoch=number)
    committed_of(side, group, topic)


@question
def fetch_offsets_with_each_version(side: Side) -> None:
    topic, group = side.topic(partitions=3), side.group()
    side.commit(group, topic, 3, committedLeaderEpoch=2)

    def ask(version: int, name: str, topics: list[Body] | None, **fields: Any) -> None:
        if version < 8:
            side.ask("OffsetFetch", version, groupId=name, topics=topics, **fields)
        else:
            side.ask("OffsetFetch", version, groups=[{"groupId": name, "topics": topics}], **fields)

    for version in versions("OffsetFetch"):
        for name in (group, f"{group}-other", ""):
            ask(version, name, [{"name": topic, "partitionIndexes": [0, 1, 7]}])
            ask(version, name, [{"name": "no-such-topic", "partitionIndexes": [0]}])
            ask(version, name, [])
            if version >= 2:
                ask(version, name, None)
            if version >= 7:
                ask(version, name, [{"name": topic, "partitionIndexes": [0]}], requireStable=True)
    both = [{"groupId": name, "topics": None} for name in (group, f"{group}-other")]
    side.ask("OffsetFetch", 9, groups=both)
    side.ask("OffsetFetch", 9, groups=[])


@question
def fetch_offsets_as_a_member(side: Side) -> None:
    topic, group = side.topic(), side.group()
    asked = [{"name": topic, "partitionIndexes": [0]}]
    for member, epoch in (("stranger", 1), ("", -1), (None, -1), ("stranger", -1)):
        given = {"groupId": group, "topics": asked, "memberId": member, "memberEpoch": epoch}
        side.ask("OffsetFetch", 9, groups=[given])


@question
def describe_groups(side: Side) -> None:
    topic, group = side.topic(), side.group()
    side.commit(group, topic)
    for version in versions("DescribeGroups"):
        side.ask("DescribeGroups", version, groups=[group, f"{group}-other", ""], includeAuthorizedOperations=True)
    side.ask("DescribeGroups", 5, groups=[])
    side.ask("DescribeGroups", 5, groups=[group, group])


@question
def list_groups(side: Side) -> None:
    topic, group = side.topic(), side.group()
    side.commit(group, topic)
    members = side.group("members")
    side.member(members)

    def ask(version: int, *states: str) -> None:
        answer = side.quiet("ListGroups", version, statesFilter=list(states))
        # Others are of other rows.
        answer["groups"] = [each for each in answer["groups"] if each["groupId"] in (group, members)]
        side.note(f"ListGroups v{version} {states}", answer)

    for version in versions("ListGroups"):
        ask(version)
    for states in (("Stable",), ("Empty",), ("stable", "EMPTY"), ("Dead",), ("NoSuchState",), ("",)):
        ask(4, *states)


@question
def delete_groups(side: Side) -> None:
    topic = side.topic()
    for version in versions("DeleteGroups"):
        group, members = side.group(str(version)), side.group(f"{version}-members")
        side.commit(group, topic)
        side.member(members)
        side.ask("DeleteGroups", version, groupsNames=[group, members, f"{group}-other", ""])
        side.ask("DeleteGroups", version, groupsNames=[group])
        committed_of(side, group, topic)
        side.ask("DescribeGroups", 5, groups=[group])
    side.ask("DeleteGroups", 2, groupsNames=[])
    twice = side.group("twice")
    side.commit(twice, topic)
    side.ask("DeleteGroups", 2, groupsNames=[twice, twice])


@question
def delete_offsets(side: Side) -> None:
    topic, other, group = side.topic(partitions=2), side.topic("other"), side.group()
    side.commit(group, topic)
    side.commit(group, other)

    def ask(name: str, *places: tuple[str, int]) -> None:
        topics = [{"name": each, "partitions": [{"partitionIndex": number}]} for each, number in places]
        side.ask("OffsetDelete", 0, groupId=name, topics=topics)

    ask(group, (topic, 0))
    committed_of(side, group, topic)
    ask(group, (topic, 0), (topic, 7), ("no-such-topic", 0))
    ask(f"{group}-other", (topic, 0))
    ask("", (topic, 0))
    ask(group)
    side.commit(group, topic)
    side.member(group, protocols=[{"name": "range", "metadata": subscription(topic)}])
    ask(group, (topic, 0), (other, 0))
    committed_of(side, group, topic)
    broken = side.group("broken")
    side.commit(broken, topic)
    side.member(broken, protocols=[{"name": "range", "metadata": b"??"}])
    ask(broken, (topic, 0))
    connect = side.group("connect")
    side.commit(connect, topic)
    side.member(connect, protocolType="connect", protocols=[{"name": "range", "metadata": b"??"}])
    ask(connect, (topic, 0))
