"""The rules of groups: a row each, with its requests and the codes that a broker answers.

The same requests get the same answers from a door (``unit/door/test_door_group_rows.py``) and from a broker
(``interop/test_group_rules.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kstore.door import errors as codes
from tests.support.lives.door_group_stage import (
    COMPLETING,
    EMPTY,
    METADATA,
    PREPARING,
    SESSION_MS,
    STABLE,
    TOPIC,
    Body,
    Stage,
    subscription,
)

Row = Callable[[Stage], None]
ROWS: dict[str, Row] = {}


def row(test: Row) -> Row:
    ROWS[test.__name__] = test
    return test


# --- joining ----------------------------------------------------------------------------------------------------------


@row
def a_new_member_is_told_its_id_and_joins_with_it(stage: Stage) -> None:
    one = stage.client("cid")
    answer = one.join()
    assert answer["errorCode"] == codes.MEMBER_ID_REQUIRED
    assert answer["memberId"].startswith("cid-")
    assert (answer["generationId"], answer["protocolName"], answer["leader"], answer["members"]) == (-1, None, "", [])
    stage.until(EMPTY)
    answer = one.join()
    assert (answer["errorCode"], answer["generationId"]) == (0, 1)
    assert answer["leader"] == answer["memberId"] == one.member_id
    assert (answer["protocolType"], answer["protocolName"]) == ("consumer", "range")
    assert answer["members"] == [{"memberId": one.member_id, "groupInstanceId": None, "metadata": METADATA}]
    stage.until(COMPLETING)


@row
def a_member_of_an_early_version_joins_at_once(stage: Stage) -> None:
    for version in (0, 1, 2, 3):
        one = stage.client(f"v{version}")
        one.group = f"{stage.group}-{version}"
        answer = one.join(version)
        assert (answer["errorCode"], answer["generationId"], answer["protocolName"]) == (0, 1, "range")
        assert answer["memberId"].startswith(f"v{version}-")
        assert answer["leader"] == one.member_id


@row
def a_static_member_joins_at_once(stage: Stage) -> None:
    one = stage.client("cid")
    answer = one.join(groupInstanceId="inst")
    assert (answer["errorCode"], answer["generationId"]) == (0, 1)
    assert answer["memberId"].startswith("inst-")
    assert answer["members"][0]["groupInstanceId"] == "inst"


@row
def an_unknown_member_id_does_not_join(stage: Stage) -> None:
    one = stage.client("cid")
    answer = one.join(memberId="stranger")
    assert (answer["errorCode"], answer["memberId"]) == (codes.UNKNOWN_MEMBER_ID, "stranger")
    stage.alone()
    assert one.join(memberId="stranger")["errorCode"] == codes.UNKNOWN_MEMBER_ID


@row
def an_empty_group_id_is_refused(stage: Stage) -> None:
    one = stage.client("cid")
    one.group = ""
    assert one.join()["errorCode"] == codes.INVALID_GROUP_ID
    assert one.sync()["errorCode"] == codes.INVALID_GROUP_ID
    assert one.heartbeat() == codes.INVALID_GROUP_ID
    assert one.leave({"memberId": "x"})["errorCode"] == codes.INVALID_GROUP_ID
    assert one.ask("LeaveGroup", 1, groupId="", memberId="x")["errorCode"] == codes.INVALID_GROUP_ID
    assert one.ask("OffsetDelete", 0, groupId="", topics=[])["errorCode"] == codes.INVALID_GROUP_ID


@row
def an_empty_group_id_may_commit(stage: Stage) -> None:
    one = stage.client("cid")
    one.group = ""
    assert one.commit(7) == 0
    assert one.committed()["committedOffset"] == 7
    [result] = one.ask("DeleteGroups", 2, groupsNames=[""])["results"]
    assert result["errorCode"] == 0
    assert one.committed()["committedOffset"] == -1


@row
def a_session_out_of_range_is_refused(stage: Stage) -> None:
    one = stage.client("cid")
    for session_ms in (0, -1, 5999, 1_800_001):
        assert one.join(sessionTimeoutMs=session_ms)["errorCode"] == codes.INVALID_SESSION_TIMEOUT
    assert one.join(sessionTimeoutMs=1_800_000)["errorCode"] == codes.MEMBER_ID_REQUIRED


@row
def no_protocols_are_refused(stage: Stage) -> None:
    one = stage.client("cid")
    assert one.join(protocols=[])["errorCode"] == codes.INCONSISTENT_GROUP_PROTOCOL
    assert one.join(protocolType="")["errorCode"] == codes.INCONSISTENT_GROUP_PROTOCOL


@row
def another_protocol_type_is_refused(stage: Stage) -> None:
    stage.alone()
    answer = stage.client("other").join(protocolType="connect")
    assert (answer["errorCode"], answer["memberId"]) == (codes.INCONSISTENT_GROUP_PROTOCOL, "")


@row
def a_protocol_that_not_all_have_is_refused(stage: Stage) -> None:
    stage.alone()
    other = stage.client("other")
    answer = other.join(protocols=[{"name": "sticky", "metadata": b""}])
    assert answer["errorCode"] == codes.INCONSISTENT_GROUP_PROTOCOL
    both = [{"name": "sticky", "metadata": b""}, {"name": "range", "metadata": METADATA}]
    assert other.join(protocols=both)["errorCode"] == codes.MEMBER_ID_REQUIRED


@row
def a_sole_member_cannot_change_to_protocols_without_the_old_one(stage: Stage) -> None:
    one = stage.alone()
    answer = one.join(protocols=[{"name": "sticky", "metadata": b""}])
    assert answer["errorCode"] == codes.INCONSISTENT_GROUP_PROTOCOL


@row
def the_members_vote_for_the_protocol(stage: Stage) -> None:
    def choice(*names: str) -> list[Body]:
        return [{"name": name, "metadata": name.encode()} for name in names]

    one, two, three = (stage.client(f"c{number}") for number in range(3))
    one.enter(protocols=choice("a", "b", "c"))
    assert one.joined()["protocolName"] == "a"
    two.enter(protocols=choice("b", "a"))
    three.enter(protocols=choice("b", "c", "a"))
    stage.until(PREPARING, members=3)
    one.send_join(protocols=choice("a", "b", "c"))
    answers = [one.joined(), two.joined(), three.joined()]
    assert [answer["protocolName"] for answer in answers] == ["b", "b", "b"]
    assert [member["metadata"] for member in answers[0]["members"]] == [b"b", b"b", b"b"]


@row
def a_join_begins_a_rebalance_that_ends_when_all_have_joined(stage: Stage) -> None:
    one = stage.alone()
    two = stage.client("two")
    two.enter()
    stage.until(PREPARING, members=2)
    assert one.heartbeat() == codes.REBALANCE_IN_PROGRESS
    assert one.sync()["errorCode"] == codes.REBALANCE_IN_PROGRESS
    assert one.commit() == 0
    one.send_join()
    mine, theirs = one.joined(), two.joined()
    assert mine["generationId"] == theirs["generationId"] == 2
    assert mine["leader"] == theirs["leader"] == one.member_id
    assert sorted(member["memberId"] for member in mine["members"]) == sorted([one.member_id, two.member_id])
    assert theirs["members"] == []


@row
def a_follower_that_joins_unchanged_gets_the_present_generation(stage: Stage) -> None:
    _, two = stage.pair()
    answer = two.join()
    assert (answer["errorCode"], answer["generationId"], answer["members"]) == (0, 2, [])
    stage.until(STABLE)
    assert two.sync()["assignment"] == b"2"


@row
def a_follower_that_joins_changed_begins_a_rebalance(stage: Stage) -> None:
    one, two = stage.pair()
    two.send_join(protocols=[{"name": "range", "metadata": subscription(TOPIC, "other")}])
    stage.until(PREPARING)
    one.send_join()
    assert one.joined()["generationId"] == two.joined()["generationId"] == 3


@row
def a_leader_that_joins_begins_a_rebalance(stage: Stage) -> None:
    one, two = stage.pair()
    one.send_join()
    stage.until(PREPARING)
    assert two.heartbeat() == codes.REBALANCE_IN_PROGRESS
    two.send_join()
    assert one.joined()["generationId"] == two.joined()["generationId"] == 3


@row
def a_join_between_join_and_sync_gets_the_same_answer_again(stage: Stage) -> None:
    one = stage.client("cid")
    one.enter()
    first = one.joined()
    assert one.join() == first
    stage.until(COMPLETING)


@row
def a_changed_join_between_join_and_sync_begins_a_rebalance(stage: Stage) -> None:
    one, two = stage.pair()
    one.send_join()
    stage.until(PREPARING)
    two.send_join()
    one.joined(), two.joined()
    two.send_sync()
    other = stage.client("other")
    other.member_id = one.member_id
    other.send_join(protocols=[{"name": "range", "metadata": subscription("other")}])
    assert two.talk.answer()["errorCode"] == codes.REBALANCE_IN_PROGRESS
    two.send_join()
    assert other.joined()["generationId"] == two.joined()["generationId"] == 4


@row
def a_member_that_does_not_join_again_is_dropped_after_the_rebalance_timeout(stage: Stage) -> None:
    one, two = stage.pair(rebalanceTimeoutMs=1000, sessionTimeoutMs=60_000)
    one.send_join(rebalanceTimeoutMs=1000, sessionTimeoutMs=60_000)
    stage.until(PREPARING)
    stage.wait(1.5)
    answer = one.joined()
    assert [member["memberId"] for member in answer["members"]] == [one.member_id]
    assert answer["generationId"] == 3
    assert two.heartbeat() == codes.UNKNOWN_MEMBER_ID


@row
def a_member_that_does_not_sync_is_dropped_after_the_rebalance_timeout(stage: Stage) -> None:
    one, two = stage.pair(rebalanceTimeoutMs=1000, sessionTimeoutMs=60_000)
    one.send_join(rebalanceTimeoutMs=1000, sessionTimeoutMs=60_000)
    stage.until(PREPARING)
    two.send_join(rebalanceTimeoutMs=1000, sessionTimeoutMs=60_000)
    one.joined(), two.joined()
    two.send_sync()
    stage.wait(1.5)
    # The leader is gone, so the follower joins again.
    assert two.talk.answer()["errorCode"] == codes.REBALANCE_IN_PROGRESS
    assert one.heartbeat() == codes.UNKNOWN_MEMBER_ID
    answer = two.join()
    assert (answer["generationId"], answer["leader"]) == (4, two.member_id)


# --- syncs and heartbeats ---------------------------------------------------------------------------------------------


@row
def a_member_that_the_leader_did_not_name_gets_an_empty_assignment(stage: Stage) -> None:
    one, two = stage.pair()
    one.send_join()
    stage.until(PREPARING)
    two.send_join()
    one.joined(), two.joined()
    two.send_sync()
    assert one.sync(to={one.member_id: b"all"})["assignment"] == b"all"
    answer = two.talk.answer()
    assert (answer["errorCode"], answer["assignment"]) == (0, b"")
    assert (answer["protocolType"], answer["protocolName"]) == ("consumer", "range")


@row
def a_sync_is_refused_for_the_wrong_generation_member_or_protocol(stage: Stage) -> None:
    one = stage.alone()
    assert one.sync(generationId=0)["errorCode"] == codes.ILLEGAL_GENERATION
    assert one.sync(generationId=2)["errorCode"] == codes.ILLEGAL_GENERATION
    assert one.sync(memberId="stranger")["errorCode"] == codes.UNKNOWN_MEMBER_ID
    assert one.sync(memberId="stranger", generationId=7)["errorCode"] == codes.UNKNOWN_MEMBER_ID
    assert one.sync(protocolType="connect")["errorCode"] == codes.INCONSISTENT_GROUP_PROTOCOL
    assert one.sync(protocolName="sticky")["errorCode"] == codes.INCONSISTENT_GROUP_PROTOCOL
    assert one.sync(groupInstanceId="inst")["errorCode"] == codes.UNKNOWN_MEMBER_ID
    # From version 5 on both must be given.
    assert one.sync(protocolName=None)["errorCode"] == codes.INCONSISTENT_GROUP_PROTOCOL
    assert one.sync(protocolType=None, memberId="x")["errorCode"] == codes.INCONSISTENT_GROUP_PROTOCOL
    answer = one.sync(4)
    assert (answer["errorCode"], answer["assignment"]) == (0, b"all")


@row
def a_heartbeat_is_refused_for_the_wrong_generation_or_member(stage: Stage) -> None:
    one = stage.alone()
    assert one.heartbeat() == 0
    assert one.heartbeat(generationId=0) == codes.ILLEGAL_GENERATION
    assert one.heartbeat(memberId="stranger") == codes.UNKNOWN_MEMBER_ID
    assert one.heartbeat(memberId="stranger", generationId=9) == codes.UNKNOWN_MEMBER_ID
    assert one.heartbeat(groupInstanceId="inst") == codes.UNKNOWN_MEMBER_ID


@row
def a_heartbeat_between_join_and_sync_is_fine(stage: Stage) -> None:
    one = stage.client("cid")
    one.enter()
    one.joined()
    assert one.heartbeat() == 0


@row
def a_group_that_does_not_exist_has_no_members(stage: Stage) -> None:
    one = stage.client("cid")
    assert one.sync(memberId="x", generationId=1)["errorCode"] == codes.UNKNOWN_MEMBER_ID
    assert one.heartbeat(memberId="x", generationId=1) == codes.UNKNOWN_MEMBER_ID
    answer = one.leave({"memberId": "x"}, {"memberId": "", "groupInstanceId": "s1"})
    assert answer["errorCode"] == 0
    assert [each["errorCode"] for each in answer["members"]] == [codes.UNKNOWN_MEMBER_ID] * 2
    assert one.ask("LeaveGroup", 2, groupId=one.group, memberId="x")["errorCode"] == codes.UNKNOWN_MEMBER_ID
    assert stage.state == "Dead"


@row
def a_session_that_ends_removes_the_member(stage: Stage) -> None:
    one = stage.alone()
    stage.wait(SESSION_MS / 1000 + 1)
    assert one.heartbeat() == codes.UNKNOWN_MEMBER_ID
    stage.until(EMPTY)


@row
def a_session_that_ends_begins_a_rebalance(stage: Stage) -> None:
    one, two = stage.pair()
    for _ in range(2):
        stage.wait(SESSION_MS / 2000 + 0.5)
        two.heartbeat()
    stage.until(PREPARING, members=1)
    answer = two.join()
    assert (answer["leader"], answer["generationId"]) == (two.member_id, 3)
    assert one.heartbeat() == codes.UNKNOWN_MEMBER_ID


@row
def each_request_of_a_member_renews_its_session(stage: Stage) -> None:
    one = stage.alone()
    for ask in (one.heartbeat, one.commit, lambda: one.sync()["errorCode"]):
        stage.wait(SESSION_MS / 1000 - 2)
        assert ask() == 0


@row
def a_waiting_join_keeps_its_member_alive(stage: Stage) -> None:
    one, two = stage.pair()
    one.send_join()
    stage.until(PREPARING)
    for _ in range(3):
        stage.wait(SESSION_MS / 2000)
        assert two.heartbeat() == codes.REBALANCE_IN_PROGRESS
    two.send_join()
    answer = one.joined()
    assert len(answer["members"]) == 2
    assert two.joined()["errorCode"] == 0


@row
def an_id_that_is_not_used_ends_with_its_session(stage: Stage) -> None:
    one = stage.client("cid")
    assert one.join()["errorCode"] == codes.MEMBER_ID_REQUIRED
    stage.wait(SESSION_MS / 1000 + 1)
    assert one.join()["errorCode"] == codes.UNKNOWN_MEMBER_ID


@row
def a_rebalance_waits_for_an_id_that_was_given_out(stage: Stage) -> None:
    one = stage.alone(sessionTimeoutMs=30_000)
    two = stage.client("two")
    assert two.join(sessionTimeoutMs=30_000)["errorCode"] == codes.MEMBER_ID_REQUIRED
    assert one.heartbeat() == 0
    one.send_join(sessionTimeoutMs=30_000)
    stage.until(PREPARING)
    two.send_join(sessionTimeoutMs=30_000)
    assert len(one.joined()["members"]) == 2
    assert two.joined()["errorCode"] == 0


# --- leaving ----------------------------------------------------------------------------------------------------------


@row
def the_last_member_leaves_an_empty_group(stage: Stage) -> None:
    one = stage.alone()
    answer = one.leave()
    assert answer["errorCode"] == 0
    assert answer["members"] == [{"memberId": one.member_id, "groupInstanceId": None, "errorCode": 0}]
    assert one.heartbeat() == codes.UNKNOWN_MEMBER_ID
    found = stage.description()
    assert (found["groupState"], found["protocolType"], found["protocolData"]) == (EMPTY, "consumer", "")
    again = stage.alone("again")
    assert again.generation == 3


@row
def a_member_that_leaves_begins_a_rebalance(stage: Stage) -> None:
    one, two = stage.pair()
    assert one.leave()["errorCode"] == 0
    assert two.heartbeat() == codes.REBALANCE_IN_PROGRESS
    answer = two.join()
    assert (answer["leader"], answer["generationId"]) == (two.member_id, 3)


@row
def a_leave_of_an_early_version_has_one_code(stage: Stage) -> None:
    one = stage.alone()
    assert one.ask("LeaveGroup", 1, groupId=one.group, memberId="stranger")["errorCode"] == codes.UNKNOWN_MEMBER_ID
    assert one.ask("LeaveGroup", 1, groupId=one.group, memberId=one.member_id)["errorCode"] == 0
    stage.until(EMPTY)


@row
def each_member_of_a_leave_has_its_code(stage: Stage) -> None:
    one = stage.static("s1")
    answer = one.leave(
        {"memberId": "stranger"},
        {"memberId": "", "groupInstanceId": "s2"},
        {"memberId": "stranger", "groupInstanceId": "s1"},
        {"memberId": "", "groupInstanceId": "s1"},
    )
    assert answer["errorCode"] == 0
    assert [each["errorCode"] for each in answer["members"]] == [
        codes.UNKNOWN_MEMBER_ID,
        codes.UNKNOWN_MEMBER_ID,
        codes.FENCED_INSTANCE_ID,
        0,
    ]
    stage.until(EMPTY)


@row
def an_id_that_was_given_out_can_leave(stage: Stage) -> None:
    one = stage.client("cid")
    one.join()
    assert one.leave()["members"][0]["errorCode"] == 0
    assert one.join()["errorCode"] == codes.UNKNOWN_MEMBER_ID


@row
def a_member_that_leaves_twice_is_unknown_the_second_time(stage: Stage) -> None:
    one = stage.alone()
    me = {"memberId": one.member_id}
    assert [each["errorCode"] for each in one.leave(me, me)["members"]] == [0, codes.UNKNOWN_MEMBER_ID]
    assert one.leave(me)["members"][0]["errorCode"] == codes.UNKNOWN_MEMBER_ID


@row
def an_id_that_was_given_out_is_no_member_yet(stage: Stage) -> None:
    stage.alone()
    two = stage.client("two")
    two.join()
    assert two.heartbeat(generationId=1) == codes.UNKNOWN_MEMBER_ID
    assert two.sync(generationId=1)["errorCode"] == codes.UNKNOWN_MEMBER_ID
    assert two.commit(generationIdOrMemberEpoch=1) == codes.UNKNOWN_MEMBER_ID


@row
def a_partition_twice_in_a_commit_has_the_last_offset(stage: Stage) -> None:
    one = stage.client("cid")
    places = [{"partitionIndex": 0, "committedOffset": offset, "committedMetadata": ""} for offset in (1, 2)]
    topics = [{"name": TOPIC, "partitions": places}, {"name": "missing", "partitions": places[:1]}]
    answer = one.ask("OffsetCommit", 9, groupId=one.group, memberId="", topics=topics)
    found = {topic["name"]: [each["errorCode"] for each in topic["partitions"]] for topic in answer["topics"]}
    assert found == {TOPIC: [0, 0], "missing": [codes.UNKNOWN_TOPIC_OR_PARTITION]}
    assert one.committed()["committedOffset"] == 2


@row
def a_join_of_a_member_that_leaves_is_answered(stage: Stage) -> None:
    one, two = stage.pair()
    one.send_join()
    stage.until(PREPARING)
    assert two.leave({"memberId": one.member_id})["errorCode"] == 0
    assert one.joined()["errorCode"] == codes.UNKNOWN_MEMBER_ID
    assert two.join()["generationId"] == 3


# --- static members ---------------------------------------------------------------------------------------------------


@row
def a_static_member_that_comes_back_takes_its_place_without_a_rebalance(stage: Stage) -> None:
    old = stage.static()
    new = stage.client("static")
    answer = new.join(groupInstanceId="s1")
    assert (answer["errorCode"], answer["generationId"]) == (0, 1)
    assert new.member_id != old.member_id
    assert (answer["leader"], answer["skipAssignment"]) == (new.member_id, True)
    assert [member["memberId"] for member in answer["members"]] == [new.member_id]
    stage.until(STABLE)
    assert new.sync(groupInstanceId="s1")["assignment"] == b"all"
    assert old.heartbeat(groupInstanceId="s1") == codes.FENCED_INSTANCE_ID
    assert old.heartbeat() == codes.UNKNOWN_MEMBER_ID
    assert old.sync(groupInstanceId="s1")["errorCode"] == codes.FENCED_INSTANCE_ID
    assert old.commit(groupInstanceId="s1") == codes.FENCED_INSTANCE_ID
    assert old.join(groupInstanceId="s1")["errorCode"] == codes.FENCED_INSTANCE_ID
    assert new.heartbeat(groupInstanceId="s1") == new.heartbeat() == 0


@row
def a_static_leader_of_an_early_version_that_comes_back_is_told_of_the_old_leader(stage: Stage) -> None:
    old = stage.static()
    answer = stage.client("static").join(8, groupInstanceId="s1")
    assert (answer["errorCode"], answer["generationId"]) == (0, 1)
    assert (answer["leader"], answer["members"]) == (old.member_id, [])


@row
def a_static_member_whose_protocol_is_another_begins_a_rebalance(stage: Stage) -> None:
    both = [{"name": "range", "metadata": METADATA}, {"name": "sticky", "metadata": METADATA}]
    stage.static(protocols=both)
    answer = stage.client("static").join(groupInstanceId="s1", protocols=both[::-1])
    assert (answer["errorCode"], answer["generationId"], answer["protocolName"]) == (0, 2, "sticky")


@row
def a_static_member_that_comes_back_between_join_and_sync_begins_a_rebalance(stage: Stage) -> None:
    old = stage.client("static")
    assert old.join(groupInstanceId="s1")["errorCode"] == 0
    new = stage.client("static")
    answer = new.join(groupInstanceId="s1")
    assert (answer["errorCode"], answer["generationId"], answer["leader"]) == (0, 2, new.member_id)


@row
def a_waiting_join_of_a_static_member_is_fenced_by_its_successor(stage: Stage) -> None:
    stage.alone()
    old, new = stage.client("static"), stage.client("static")
    old.send_join(groupInstanceId="s1")
    stage.until(PREPARING, members=2)
    new.send_join(groupInstanceId="s1")
    assert old.joined()["errorCode"] == codes.FENCED_INSTANCE_ID


# --- offsets ----------------------------------------------------------------------------------------------------------


@row
def a_simple_commit_is_for_a_group_without_members(stage: Stage) -> None:
    simple = stage.client("simple")
    assert simple.commit(41) == 0
    assert simple.committed()["committedOffset"] == 41
    found = stage.description()
    assert (found["groupState"], found["protocolType"], found["members"]) == (EMPTY, "", [])
    one = stage.alone()
    assert simple.commit(42) == codes.UNKNOWN_MEMBER_ID
    assert simple.committed()["committedOffset"] == 41
    one.leave()
    assert simple.commit(43) == 0


@row
def a_commit_is_refused_for_the_wrong_generation_or_member(stage: Stage) -> None:
    one = stage.alone()
    assert one.commit(generationIdOrMemberEpoch=0) == codes.ILLEGAL_GENERATION
    assert one.commit(memberId="stranger") == codes.UNKNOWN_MEMBER_ID
    assert one.commit(memberId="") == codes.UNKNOWN_MEMBER_ID
    assert one.commit(generationIdOrMemberEpoch=-1) == codes.ILLEGAL_GENERATION
    assert one.commit(groupInstanceId="inst") == codes.UNKNOWN_MEMBER_ID
    assert one.commit() == 0


@row
def a_commit_with_a_generation_to_no_group_is_refused(stage: Stage) -> None:
    one = stage.client("cid")
    for version in (2, 5, 8):
        assert one.commit(version=version, memberId="x", generationIdOrMemberEpoch=1) == codes.ILLEGAL_GENERATION
    assert one.commit(version=9, memberId="x", generationIdOrMemberEpoch=1) == codes.GROUP_ID_NOT_FOUND
    assert stage.state == "Dead"
    # Without a generation the group comes into being.
    assert one.commit(memberId="x", groupInstanceId="i") == 0
    assert one.commit(memberId="x", generationIdOrMemberEpoch=1) == codes.UNKNOWN_MEMBER_ID


@row
def a_commit_with_a_generation_to_an_empty_group_is_refused(stage: Stage) -> None:
    one = stage.alone()
    one.leave()
    assert one.commit() == codes.UNKNOWN_MEMBER_ID


@row
def a_commit_between_join_and_sync_is_refused(stage: Stage) -> None:
    one = stage.client("cid")
    one.enter()
    one.joined()
    assert one.commit() == codes.REBALANCE_IN_PROGRESS


@row
def a_commit_of_long_metadata_or_an_unknown_partition_is_refused(stage: Stage) -> None:
    one = stage.client("cid")
    assert one.commit(metadata="x" * 4096) == 0
    assert one.commit(metadata="x" * 4097) == codes.OFFSET_METADATA_TOO_LARGE
    assert one.commit(topic="missing") == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert one.commit(partition=99) == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert one.commit(2**62) == 0
    assert one.commit(metadata=None) == 0
    assert one.committed()["metadata"] == ""


@row
def what_was_never_committed_is_minus_one(stage: Stage) -> None:
    one = stage.client("cid")
    nothing = {
        "partitionIndex": 0,
        "committedOffset": -1,
        "committedLeaderEpoch": -1,
        "metadata": "",
        "errorCode": 0,
    }
    assert one.committed() == nothing
    assert one.committed("missing") == nothing
    assert one.commit(7, committedLeaderEpoch=0) == 0
    assert one.committed("missing") == nothing


@row
def offsets_are_fetched_in_every_version(stage: Stage) -> None:
    one = stage.client("cid")
    one.commit(7)
    asked = [{"name": TOPIC, "partitionIndexes": [0, 5]}]
    for version in range(1, 8):
        answer = one.ask("OffsetFetch", version, groupId=one.group, topics=asked)
        found = [part["committedOffset"] for part in answer["topics"][0]["partitions"]]
        assert (answer["errorCode"], found) == (0, [7, -1])
        if version > 1:
            answer = one.ask("OffsetFetch", version, groupId=one.group, topics=None)
            assert [topic["name"] for topic in answer["topics"]] == [TOPIC]
    for version in (8, 9):
        both = [{"groupId": one.group, "topics": None}, {"groupId": f"{one.group}-2", "topics": asked}]
        first, second = one.ask("OffsetFetch", version, groups=both)["groups"]
        assert [part["committedOffset"] for part in first["topics"][0]["partitions"]] == [7]
        assert [part["committedOffset"] for part in second["topics"][0]["partitions"]] == [-1, -1]


@row
def offsets_are_deleted(stage: Stage) -> None:
    one = stage.client("cid")

    def delete(topic: str = TOPIC, partition: int = 0) -> Body:
        places = [{"partitionIndex": partition}]
        return one.ask("OffsetDelete", 0, groupId=one.group, topics=[{"name": topic, "partitions": places}])

    def code(answer: Body) -> int:
        assert answer["errorCode"] == 0
        return answer["topics"][0]["partitions"][0]["errorCode"]  # type: ignore[no-any-return]

    assert delete()["errorCode"] == codes.GROUP_ID_NOT_FOUND
    one.commit(7)
    assert code(delete("missing")) == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert code(delete(partition=77)) == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert code(delete()) == 0
    assert one.committed()["committedOffset"] == -1
    member = stage.alone()
    assert member.commit(8) == 0
    assert code(delete()) == codes.GROUP_SUBSCRIBED_TO_TOPIC
    assert code(delete("other")) == 0
    assert one.committed()["committedOffset"] == 8


@row
def offsets_of_members_of_another_type_are_not_deleted(stage: Stage) -> None:
    stage.alone(protocolType="connect")
    one = stage.client("cid")
    places = [{"partitionIndex": 0}]
    answer = one.ask("OffsetDelete", 0, groupId=one.group, topics=[{"name": TOPIC, "partitions": places}])
    assert answer["errorCode"] == codes.NON_EMPTY_GROUP


# --- tools ------------------------------------------------------------------------------------------------------------


@row
def a_stable_group_is_described_with_its_members(stage: Stage) -> None:
    one = stage.alone("cid")
    found = stage.description()
    assert (found["errorCode"], found["groupState"]) == (0, STABLE)
    assert (found["protocolType"], found["protocolData"]) == ("consumer", "range")
    [member] = found["members"]
    assert (member["memberId"], member["groupInstanceId"], member["clientId"]) == (one.member_id, None, "cid")
    assert member["clientHost"] == "/127.0.0.1"
    assert (member["memberMetadata"], member["memberAssignment"]) == (METADATA, b"all")
    for version in range(5):
        [group] = one.ask("DescribeGroups", version, groups=[one.group])["groups"]
        assert (group["errorCode"], group["groupState"]) == (0, STABLE)


@row
def a_group_in_a_rebalance_is_described_without_metadata(stage: Stage) -> None:
    one = stage.client("cid")
    one.enter()
    one.joined()
    found = stage.description()
    assert (found["groupState"], found["protocolType"], found["protocolData"]) == (COMPLETING, "consumer", "")
    [member] = found["members"]
    assert (member["memberMetadata"], member["memberAssignment"]) == (b"", b"")


@row
def groups_are_listed_by_state(stage: Stage) -> None:
    one = stage.alone()
    simple = stage.client("simple")
    simple.group = f"{stage.group}-simple"
    simple.commit(1)

    def listed(version: int, **body: Any) -> dict[str, Body]:
        answer = one.ask("ListGroups", version, **body)
        assert answer["errorCode"] == 0
        return {group["groupId"]: group for group in answer["groups"]}

    for version in range(5):
        found = listed(version)
        assert found[one.group]["protocolType"] == "consumer"
        assert found[simple.group]["protocolType"] == ""
    assert (found[one.group]["groupState"], found[simple.group]["groupState"]) == (STABLE, EMPTY)
    found = listed(4, statesFilter=["stable"])
    assert one.group in found
    assert simple.group not in found
    assert simple.group in listed(4, statesFilter=["Empty", "Dead"])


@row
def a_group_is_deleted_when_it_is_empty(stage: Stage) -> None:
    one = stage.alone()
    one.commit(5)

    def delete(version: int = 2) -> int:
        [result] = one.ask("DeleteGroups", version, groupsNames=[one.group])["results"]
        assert result["groupId"] == one.group
        return result["errorCode"]  # type: ignore[no-any-return]

    assert delete() == codes.NON_EMPTY_GROUP
    one.leave()
    assert delete() == 0
    assert stage.state == "Dead"
    assert one.committed()["committedOffset"] == -1
    assert delete(0) == codes.GROUP_ID_NOT_FOUND


@row
def the_coordinator_is_this_node(stage: Stage) -> None:
    one = stage.client("cid")
    metadata = one.ask("Metadata", 1, topics=[])
    [broker] = metadata["brokers"]
    address = broker["nodeId"], broker["host"], broker["port"]
    for version in range(5):
        asked = {"key": one.group} if version < 4 else {"coordinatorKeys": [one.group, "other"]}
        answer = one.ask("FindCoordinator", version, **asked)
        for found in [answer] if version < 4 else answer["coordinators"]:
            assert found["errorCode"] == 0
            assert (found["nodeId"], found["host"], found["port"]) == address
    answer = one.ask("FindCoordinator", 3, key=one.group, keyType=7)
    assert (answer["errorCode"], answer["nodeId"], answer["port"]) == (codes.INVALID_REQUEST, -1, -1)
    [found] = one.ask("FindCoordinator", 4, coordinatorKeys=[one.group], keyType=2)["coordinators"]
    assert (found["errorCode"], found["nodeId"], found["port"]) == (codes.INVALID_REQUEST, -1, -1)
