"""A group whose members are a door's clients is claimed: the store's own consumers and commits are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.errors import GroupInUseError
from kstore.store import Store, coordinator_of, parts_of
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.consumer_helpers import T0, consumer, fill


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with kstore.open(tmp_path / "store", durability="os", background=False, clock=clock) as store:
        store.create_topic("t", partitions=3)
        yield store


def test_a_claimed_group_refuses_members_and_commits_until_it_is_free(store: Store) -> None:
    groups = parts_of(store).groups
    coordinator = coordinator_of(store)
    coordinator.commit_offsets("g", {T0: 3})
    assert groups.claim("g")
    with pytest.raises(GroupInUseError, match="'g' has members that are clients"):
        consumer(store, "t", group="g")
    with consumer(store, group="g") as simple:
        simple.assign([T0])
        with pytest.raises(GroupInUseError):
            simple.commit({T0: 5})
    with pytest.raises(GroupInUseError):
        coordinator.commit_offsets("g", {T0: 5})
    with pytest.raises(GroupInUseError):
        groups.offsets.forget("g", [T0])
    assert store.consumer_offsets.offset_at("g", T0) == 3
    with consumer(store, "t", group="another") as other:
        other.commit({T0: 1})
    groups.unclaim("g")
    with consumer(store, "t", group="g") as member:
        member.commit({T0: 7})
    assert store.consumer_offsets.offset_at("g", T0) == 7


def test_offsets_in_a_transaction_are_refused_and_it_can_be_aborted(store: Store) -> None:
    assert parts_of(store).groups.claim("g")
    with store.producer(transactional_id="p") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(GroupInUseError):
            producer.send_offsets({T0: 1}, "g")
        producer.abort_transaction()


def test_a_claimant_commits_and_forgets(store: Store) -> None:
    assert parts_of(store).groups.claim("g")
    store.consumer_offsets.commit("g", {T0: 4}, is_claimant=True)
    assert store.consumer_offsets.offset_at("g", T0) == 4
    store.consumer_offsets.forget("g", [T0], is_claimant=True)
    assert store.consumer_offsets.offset_at("g", T0) is None


def test_a_topic_of_a_claimed_group_can_be_deleted(store: Store) -> None:
    coordinator_of(store).commit_offsets("g", {T0: 3})
    assert parts_of(store).groups.claim("g")
    store.delete_topic("t")
    assert store.consumer_offsets.committed("g") == {}


def test_a_group_with_a_living_member_cannot_be_claimed(store: Store) -> None:
    groups = parts_of(store).groups
    with consumer(store, "t", group="g"):
        assert groups.has_members("g")
        assert groups.names() == ["g"]
        assert not groups.claim("g")
    assert not groups.has_members("g")
    assert groups.claim("g")


def test_a_member_that_was_silent_for_too_long_finds_its_group_taken(store: Store, clock: ManualClock) -> None:
    groups = parts_of(store).groups
    fill(store, T0, 3)
    with consumer(store, "t", group="g", max_poll_interval_ms=1000, enable_auto_commit=False) as slow:
        slow.poll(0)
        clock.advance(2000)
        assert groups.claim("g")
        with pytest.raises(GroupInUseError):
            slow.poll(0)
        assert not groups.has_members("g")
        groups.unclaim("g")
        slow.poll(0)
        assert groups.has_members("g")
