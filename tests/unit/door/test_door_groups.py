"""The groups of a door beside the store's own consumers, in a read-only store, at its close; and their bounds."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import TopicPartition
from kstore.door import errors as codes
from kstore.door import groups as door_groups
from kstore.door.door import Door
from kstore.errors import GroupInUseError
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.door_group_stage import EMPTY, PREPARING, STABLE, TOPIC, Stage
from tests.support.lives.door_parts import opened

T0 = TopicPartition(TOPIC, 0)


def stage_of(door: Door, stack: ExitStack, group: str = "g") -> Stage:
    return Stage("127.0.0.1", door.port, group, stack, lambda *_: None)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with kstore.open(tmp_path / "store", durability="os", background=False) as store:
        store.create_topic(TOPIC)
        yield store


# --- members of one kind ----------------------------------------------------------------------------------------------


def test_while_clients_are_members_the_stores_own_consumers_and_commits_are_refused(store: Store) -> None:
    with opened(store) as (door, _), ExitStack() as stack:
        one = stage_of(door, stack).alone()
        assert one.commit(5) == 0
        with pytest.raises(GroupInUseError):
            store.consumer(TOPIC, group="g")
        with store.consumer(group="g") as simple:
            simple.assign([T0])
            with pytest.raises(GroupInUseError):
                simple.commit({T0: 1})
        one.leave()
        with store.consumer(TOPIC, group="g") as mine:
            assert mine.committed(T0)[T0].offset == 5


def test_while_the_stores_own_consumers_are_members_clients_are_refused(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(store) as (door, _), ExitStack() as stack:
        stage = stage_of(door, stack)
        client = stage.client("c")
        with store.consumer(TOPIC, group="g") as mine:
            with caplog.at_level(logging.WARNING, "kstore.door.groups"):
                assert client.join()["errorCode"] == codes.INCONSISTENT_GROUP_PROTOCOL
            assert "group 'g' has consumers of this process as members" in caplog.text
            assert client.commit(1) == codes.UNKNOWN_MEMBER_ID
            found = stage.description()
            assert (found["groupState"], found["protocolType"]) == (STABLE, "consumer")
            [group] = client.ask("ListGroups", 4)["groups"]
            assert (group["groupId"], group["groupState"]) == ("g", STABLE)
            [result] = client.ask("DeleteGroups", 2, groupsNames=["g"])["results"]
            assert result["errorCode"] == codes.NON_EMPTY_GROUP
            mine.commit({T0: 3})
        assert client.committed()["committedOffset"] == 3
        assert client.join()["errorCode"] == codes.MEMBER_ID_REQUIRED


def test_an_id_that_was_given_out_does_not_keep_the_stores_own_consumers_out(store: Store) -> None:
    with opened(store) as (door, _), ExitStack() as stack:
        client = stage_of(door, stack).client("c")
        assert client.join()["errorCode"] == codes.MEMBER_ID_REQUIRED
        with store.consumer(TOPIC, group="g"):
            assert client.join()["errorCode"] == codes.INCONSISTENT_GROUP_PROTOCOL


def test_a_door_that_closes_gives_its_groups_up(store: Store) -> None:
    with ExitStack() as stack:
        with opened(store) as (door, _):
            stage_of(door, stack).alone()
        with store.consumer(TOPIC, group="g"):
            pass


# --- restarts and closes ----------------------------------------------------------------------------------------------


def test_offsets_outlive_the_door_and_members_do_not(tmp_path: Path) -> None:
    for offset in (-1, 7):
        with (
            kstore.open(tmp_path / "store", durability="os", background=False) as store,
            opened(store) as (door, _),
            ExitStack() as stack,
        ):
            store.topic(TOPIC)
            stage = stage_of(door, stack)
            if offset < 0:
                one = stage.alone()
                assert one.commit(7) == 0
                known = one.member_id
            else:
                late = stage.client("c")
                late.member_id, late.generation = known, 1
                assert late.heartbeat() == codes.UNKNOWN_MEMBER_ID
                assert late.join()["errorCode"] == codes.UNKNOWN_MEMBER_ID
            assert stage.client("c").committed()["committedOffset"] == 7


def test_a_door_that_closes_answers_the_joins_and_syncs_that_wait(store: Store) -> None:
    with ExitStack() as stack:
        with opened(store) as (door, _):
            stage = stage_of(door, stack)
            one, two = stage.pair()
            one.send_join()
            stage.until(PREPARING)
            two.send_join()
            one.joined(), two.joined()
            two.send_sync()
            other = stage.client("other")
            other.group = "another"
            other.enter()
            other.joined()
            third = stage.client("third")
            third.group = "another"
            third.enter()
            again = stage_of(door, stack, "another")
            again.until(PREPARING, members=2)
        assert two.talk.answer()["errorCode"] == codes.COORDINATOR_NOT_AVAILABLE
        assert third.joined()["errorCode"] == codes.COORDINATOR_NOT_AVAILABLE


def test_a_member_whose_connection_ends_while_its_join_waits_stays_a_member(store: Store) -> None:
    with opened(store) as (door, _), ExitStack() as stack:
        stage = stage_of(door, stack)
        one = stage.alone()
        lost = stage.client("lost")
        lost.enter()
        stage.until(PREPARING, members=2)
        lost.talk.socket.close()
        one.send_join()
        assert len(one.joined()["members"]) == 2


# --- a read-only store ------------------------------------------------------------------------------------------------


def test_the_door_of_a_read_only_store_keeps_offsets_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with kstore.open(path, durability="os", background=False) as store:
        store.create_topic(TOPIC, partitions=2)
        store.consumer_offsets.commit("g", {T0: 3, TopicPartition(TOPIC, 1): 4})
    before = {each: each.stat().st_mtime_ns for each in path.rglob("*")}
    with kstore.open(path, read_only=True) as store, opened(store) as (door, _), ExitStack() as stack:
        stage = stage_of(door, stack)
        one = stage.alone()
        assert one.committed()["committedOffset"] == 3
        assert one.commit(9) == 0
        assert [one.committed(partition=number)["committedOffset"] for number in (0, 1)] == [9, 4]
        one.group = "new"
        one.member_id, one.generation = "", -1
        assert one.commit(1) == 0
        assert {group["groupId"] for group in one.ask("ListGroups", 4)["groups"]} == {"g", "new"}
    assert {each: each.stat().st_mtime_ns for each in path.rglob("*")} == before


def test_the_door_of_a_read_only_store_keeps_a_bounded_number_of_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_groups, "KEPT_MAX", 1)
    path = tmp_path / "store"
    with kstore.open(path, durability="os", background=False) as store:
        store.create_topic(TOPIC)
    with kstore.open(path, read_only=True) as store, opened(store) as (door, _), ExitStack() as stack:
        one = stage_of(door, stack).client("c")
        assert one.commit(1) == 0
        one.group = "another"
        assert one.commit(1) == codes.POLICY_VIOLATION
        assert one.committed()["committedOffset"] == -1


# --- bounds and failures ----------------------------------------------------------------------------------------------


def test_what_members_have_sent_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_groups, "MEMBER_BYTES_MAX", 10_000)
    with opened(store) as (door, _), ExitStack() as stack:
        stage = stage_of(door, stack)
        large = [{"name": "range", "metadata": bytes(6000)}]
        one = stage.alone(protocols=large)
        assert stage.client("two").join(protocols=large)["errorCode"] == codes.GROUP_MAX_SIZE_REACHED
        one.leave()
        assert stage.client("three").join(protocols=large)["errorCode"] == codes.MEMBER_ID_REQUIRED


def test_a_member_that_joins_again_may_not_send_more_than_the_bound(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_groups, "MEMBER_BYTES_MAX", 10_000)
    with opened(store) as (door, _), ExitStack() as stack:
        one = stage_of(door, stack).alone()
        assert one.join(protocols=[{"name": "range", "metadata": bytes(9_999)}])["errorCode"] == (
            codes.GROUP_MAX_SIZE_REACHED
        )
        assert one.join()["errorCode"] == codes.NONE


def test_a_group_that_is_deleted_takes_nothing_of_the_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_groups, "MEMBER_BYTES_MAX", 5_000)
    with opened(store) as (door, _), ExitStack() as stack:
        client = stage_of(door, stack).client("c")
        for _ in range(10):
            client.member_id = ""
            assert client.join()["errorCode"] == codes.MEMBER_ID_REQUIRED
            [result] = client.ask("DeleteGroups", 2, groupsNames=["g"])["results"]
            assert result["errorCode"] == 0


def test_of_many_groups_without_members_the_oldest_is_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_groups, "IDLE_GROUPS_MAX", 2)
    with opened(store) as (door, _), ExitStack() as stack:
        stages = [stage_of(door, stack, name) for name in "abc"]
        stages[0].alone().leave()
        stages[1].alone()
        stages[2].alone()
        assert [stage.state for stage in stages] == ["Dead", STABLE, STABLE]


def test_members_that_send_anything_as_their_subscription_are_served(store: Store) -> None:
    with opened(store) as (door, _), ExitStack() as stack:
        stage = stage_of(door, stack)
        one = stage.alone(protocols=[{"name": "range", "metadata": b"\xff\xff\xff"}])
        assert one.commit(3) == 0
        places = [{"name": TOPIC, "partitions": [{"partitionIndex": 0}]}]
        answer = one.ask("OffsetDelete", 0, groupId="g", topics=places)
        assert answer["topics"][0]["partitions"][0]["errorCode"] == codes.GROUP_SUBSCRIBED_TO_TOPIC


def test_a_negative_offset_is_refused(store: Store) -> None:
    with opened(store) as (door, _), ExitStack() as stack:
        one = stage_of(door, stack).client("c")
        assert one.commit(-2) == codes.INVALID_REQUEST
        assert one.committed()["committedOffset"] == -1


def test_the_first_generation_of_a_group_waits_for_members_if_the_door_says_so(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        kstore.open(tmp_path / "store", durability="os", background=False, clock=clock) as store,
        opened(store, rebalance_delay_ms=300) as (door, _),
        ExitStack() as stack,
    ):
        stage = stage_of(door, stack)
        one, two = stage.client("one"), stage.client("two")
        one.enter()
        stage.until(PREPARING, members=1)
        two.enter()
        stage.until(PREPARING, members=2)
        clock.advance(600)
        door._served.groups.run_due()  # a member has come: once more
        clock.advance(300)
        door._served.groups.run_due()
        answers = one.joined(), two.joined()
        assert [answer["generationId"] for answer in answers] == [1, 1]
        assert stage.state != EMPTY


def test_offsets_are_kept_until_the_retention_is_over_for_the_commit_the_members_and_the_door(tmp_path: Path) -> None:
    clock = ManualClock()
    minute = 60_000
    with kstore.open(tmp_path / "store", durability="os", background=False, clock=clock) as store:
        store.create_topic(TOPIC)
        store.consumer_offsets.commit("old", {T0: 1})
        clock.advance(100 * minute)
        with opened(store) as (door, _):
            clock.advance(100 * minute)
            door._served.groups.run_due()
            assert store.consumer_offsets.offset_at("old", T0) == 1, "kept for ever by default"
        with opened(store, offsets_retention_minutes=10) as (door, _), ExitStack() as stack:
            groups = door._served.groups
            one = stage_of(door, stack, "members").alone(sessionTimeoutMs=1_800_000)
            assert one.commit(2) == 0
            groups.expire_offsets()
            assert store.consumer_offsets.groups() == ["members", "old"], "the door is young"
            clock.advance(10 * minute)
            store.consumer_offsets.commit("new", {T0: 3})
            groups.expire_offsets()
            assert store.consumer_offsets.groups() == ["members", "new"]
            one.leave()
            groups.expire_offsets()
            assert store.consumer_offsets.groups() == ["members", "new"], "its member has only just left"
            clock.advance(10 * minute)
            groups.expire_offsets()
            assert store.consumer_offsets.groups() == []


def test_an_offset_in_an_open_transaction_is_unstable(store: Store) -> None:
    with opened(store) as (door, _), ExitStack() as stack:
        client = stage_of(door, stack).client("c")
        client.commit(1)

        def fetched(require_stable: bool) -> tuple[int, int]:
            asked = [{"groupId": "g", "topics": [{"name": TOPIC, "partitionIndexes": [0]}]}]
            answer = client.ask("OffsetFetch", 9, groups=asked, requireStable=require_stable)
            part = answer["groups"][0]["topics"][0]["partitions"][0]
            return part["committedOffset"], part["errorCode"]

        with store.producer(transactional_id="p") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_offsets({T0: 8}, "g")
            assert fetched(False) == (1, 0)
            assert fetched(True) == (-1, codes.UNSTABLE_OFFSET_COMMIT)
            producer.commit_transaction()
        assert fetched(True) == (8, 0)
