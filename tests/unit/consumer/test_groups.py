"""Groups: how members share partitions, in one process and through files of several; and which may commit."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore import CommitFailedError, ConfigError, TopicPartition
from kstore.clock import SYSTEM_CLOCK
from kstore.consumer.consumer import Consumer, abandon
from kstore.consumer.group_files import FORM, FileGroup, decode_state, encode_state
from kstore.consumer.group_state import GroupMember, GroupState
from kstore.consumer.groups import LOOK_COUNT, Membership, MemoryGroup
from kstore.errors import CorruptFileError
from kstore.files.local import SYSTEM_FS
from kstore.store import Store, parts_of
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Hung

T = [TopicPartition("t", number) for number in range(4)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["one process", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    shared = request.param == "files"
    with kstore.open(tmp_path / "s", durability="os", shared=shared, clock=clock, background=False) as store:
        store.create_topic("t", partitions=4)
        yield store


class Noting:
    """A listener that notes its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("assigned", [number for _, number in partitions]))

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("revoked", [number for _, number in partitions]))

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("lost", [number for _, number in partitions]))


def join(store: Store, **settings: Any) -> Consumer:
    return store.consumer("t", **{"group": "g", "iteration_timeout_ms": 0, **settings})


def settle(*consumers: Consumer) -> list[set[int]]:
    """Each member's partitions after enough polls by all; what they read does not matter."""
    for _ in range(3):
        for consumer in consumers:
            consumer.poll(max_records=1)
    return [{number for _, number in consumer.assignment()} for consumer in consumers]


def test_members_share_the_partitions(store: Store) -> None:
    with join(store) as a:
        assert settle(a) == [{0, 1, 2, 3}]
        with join(store) as b:
            assert settle(a, b) == [{0, 1}, {2, 3}]
            with join(store) as c:
                assert settle(a, b, c) == [{0, 1}, {2}, {3}]
            assert settle(a, b) == [{0, 1}, {2, 3}]
        assert settle(a) == [{0, 1, 2, 3}]


def test_round_robin_is_another_way_to_share(store: Store) -> None:
    with (
        join(store, partition_assignment_strategy="round_robin") as a,
        join(store, partition_assignment_strategy="round_robin") as b,
    ):
        assert settle(a, b) == [{0, 2}, {1, 3}]
        with pytest.raises(ConfigError, match="expected 'round_robin'"):
            join(store)
        assert settle(a, b) == [{0, 2}, {1, 3}]


def test_groups_know_nothing_of_each_other(store: Store) -> None:
    with join(store) as a, join(store, group="other") as b:
        assert settle(a, b) == [{0, 1, 2, 3}, {0, 1, 2, 3}]


def crowd(store: Store, count: int) -> list[Consumer]:
    members = [join(store) for _ in range(count)]
    settle(*members)
    return members


def test_a_poll_costs_as_much_in_a_large_group_as_in_a_small_one(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each heartbeat a member checks a few others; after enough heartbeats it has checked all."""
    members = crowd(store, 3 * LOOK_COUNT)
    box = parts_of(store).groups.box("g")
    dead, looks = box.dead, []

    def noted(suspects: Any) -> set[str]:
        looks.append(set(suspects))
        return dead(suspects)

    monkeypatch.setattr(box, "dead", noted)
    clock.advance(3000)
    for member in members:
        member.poll()
    assert max(map(len, looks)) <= LOOK_COUNT
    assert len(looks) == len(members)
    # Together they have checked everyone.
    assert {name for look in looks for name in look} == box.look()[1].members.keys()
    looks.clear()
    for _ in range(3):
        clock.advance(3000)
        members[0].poll()
    assert len(set().union(*looks)) == len(members) - 1
    for member in members:
        member.close()


def test_any_dead_member_of_a_large_group_is_found(store: Store, clock: ManualClock) -> None:
    """Even if all but one are silent: within as many heartbeats as checking everyone takes."""
    members = crowd(store, 3 * LOOK_COUNT)
    clock.advance(members[0].config.max_poll_interval_ms + 1)
    for _ in range(4):
        members[0].poll()
        clock.advance(3000)
    assert members[0].assignment() == set(T)
    for member in members:
        member.close()


def test_a_member_that_was_dropped_is_found_at_once_in_a_large_group(store: Store) -> None:
    members = crowd(store, 3 * LOOK_COUNT)
    abandon(members[1])
    members[-1].poll()
    members[-1].poll()
    assert len(parts_of(store).groups.box("g").look()[1].members) == len(members) - 1
    for member in members:
        member.close()


def test_no_member_reads_a_partition_before_its_owner_has_released_it(store: Store) -> None:
    with join(store) as a, join(store) as b:
        assert a.assignment() == set(T)
        b.poll()
        assert b.assignment() == set()
        a.poll()
        assert a.assignment() == {*T[:2]}
        b.poll()
        assert b.assignment() == {*T[2:]}


def test_a_new_owner_goes_on_where_the_old_one_has_committed(store: Store) -> None:
    for owner in T:
        store.log(*owner).append_many([b""] * 10)
    with join(store, enable_auto_commit=True) as a:
        seen = {owner: [record.offset for record in found] for owner, found in a.poll(max_records=25).items()}
        with join(store) as b:
            for _ in range(5):
                for consumer in (b, a):
                    for owner, found in consumer.poll().items():
                        seen.setdefault(owner, []).extend(record.offset for record in found)
    # Revoked partitions are committed first, so nothing comes twice.
    assert seen == {owner: list(range(10)) for owner in T}


def test_listeners_are_notified(store: Store) -> None:
    first, second = Noting(), Noting()
    with join(store, listener=first) as a:
        with join(store, listener=second) as b:
            settle(a, b)
        settle(a)
    assert first.told == [("assigned", [0, 1, 2, 3]), ("revoked", [2, 3]), ("assigned", [2, 3])]
    assert second.told == [("assigned", [2, 3])]


def test_a_listener_may_commit_and_seek(store: Store) -> None:
    for owner in T:
        store.log(*owner).append_many([b""] * 10)

    class Committing(Noting):
        consumer: Consumer

        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            self.consumer.commit(dict.fromkeys(partitions, 7))

    listener = Committing()
    with store.consumer(group="g") as a:
        listener.consumer = a
        a.subscribe(["t"], listener=listener)
        with join(store) as b:
            settle(a)
            b.poll(max_records=1)
            assert b.position(T[3]) == 7


def test_a_member_that_requests_nothing_for_too_long_loses_its_partitions(store: Store, clock: ManualClock) -> None:
    for owner in T:
        store.log(*owner).append_many([b""] * 10)
    noting = Noting()
    with join(store, max_poll_interval_ms=60_000, listener=noting) as a, join(store) as b:
        settle(a, b)
        a.poll()
        clock.advance(60_001)
        b.poll(max_records=1)
        assert b.assignment() == set(T)
        with pytest.raises(CommitFailedError, match="took it for dead"):
            a.commit()
        assert noting.told[-1] == ("revoked", [2, 3])
        a.poll(max_records=1)
        assert noting.told[-1] == ("lost", [0, 1])
        assert settle(a, b) == [{2, 3}, {0, 1}]


def test_a_forgotten_member_is_dead(store: Store, clock: ManualClock) -> None:
    consumers = [join(store)]
    with join(store) as b:
        settle(consumers[0], b)
        with pytest.warns(ResourceWarning, match="unclosed"):
            consumers.clear()
        clock.advance(3001)
        assert settle(b) == [{0, 1, 2, 3}]


def test_a_commit_of_what_others_have_is_refused(store: Store) -> None:
    with join(store) as a, join(store) as b:
        settle(a, b)
        a.commit({T[0]: 1})
        with pytest.raises(CommitFailedError, match="does not have t-2 in generation"):
            a.commit({T[0]: 2, T[2]: 2})
        assert {owner: found.offset for owner, found in b.committed(*T).items() if found.offset} == {T[0]: 1}


def test_partitions_assigned_by_hand_are_committed_past_the_group(store: Store) -> None:
    with join(store) as a, store.consumer(group="g") as b:
        settle(a)
        b.assign([T[0]])
        b.commit({T[0]: 3})
        assert a.committed(T[0])[T[0]].offset == 3


def test_a_consumer_that_cannot_be_made_is_no_member(store: Store) -> None:
    class Failing(Noting):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            raise KeyError("assigned")

    with pytest.raises(KeyError):
        join(store, listener=Failing())
    with join(store) as other:
        assert settle(other) == [{0, 1, 2, 3}]


def test_members_may_want_different_topics(store: Store) -> None:
    store.create_topic("u")
    with store.consumer("t", "u", group="g") as a, store.consumer("u", group="g") as b:
        settle(a, b)
        assert a.assignment() == {*T, TopicPartition("u", 0)}
        assert b.assignment() == set()
        a.subscribe(["t"])
        settle(a, b)
        assert b.assignment() == {TopicPartition("u", 0)}
        b.unsubscribe()
        a.subscribe(["t", "u"])
        settle(a)
        assert a.assignment() == {*T, TopicPartition("u", 0)}


def test_new_partitions_are_shared_too(store: Store, clock: ManualClock) -> None:
    with join(store) as a, join(store) as b:
        settle(a, b)
        store.add_partitions("t", 6)
        clock.advance(5001)
        assert settle(a, b) == [{0, 1, 2}, {3, 4, 5}]


def test_a_member_knows_its_identity(store: Store) -> None:
    with join(store, client_id="me") as a:
        before = a.group_metadata()
        assert (before.group, before.client_id) == ("g", "me")
        assert before.member_id.startswith("me-")
        with join(store) as b:
            settle(a, b)
            after = a.group_metadata()
            assert after.member_id == before.member_id
            assert after.generation > before.generation
            assert after.generation == b.group_metadata().generation


@pytest.mark.parametrize("kind", ["one process", "files"])
def test_a_member_declared_dead_just_before_it_wants_other_topics_owns_nothing(
    kind: str, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = MemoryGroup("g", clock) if kind == "one process" else FileGroup(SYSTEM_FS, tmp_path / "o" / "g", "g", clock)
    a, b = (
        Membership(
            box,
            name,
            "range",
            clock,
            partitions_of=lambda topic: range(4),
            wake=lambda: None,
            heartbeat_seconds=3,
            limit_ms=1000,
        )
        for name in "ab"
    )
    a.sync(["t"])
    assert a.take() == {*T}

    look, has_looked = box.look, False

    def stopped_after_the_look() -> tuple[int, GroupState]:
        nonlocal has_looked
        found = look()
        if not has_looked:
            has_looked = True
            clock.advance(5000)
            b.sync(["t"])
            assert b.take() == {*T}
        return found

    monkeypatch.setattr(box, "look", stopped_after_the_look)
    change = a.sync(["t", "u"])
    monkeypatch.undo()
    assert change == (frozenset(T), frozenset())
    assert not a.owned
    look()[1].check()
    with pytest.raises(CommitFailedError), a.fenced(T[:1]):
        pass
    with b.fenced(T):
        pass
    # The two go on, and share.
    b.release(b.sync(["t"], has_changed=True).surplus)
    a.sync(["t", "u"], has_changed=True)
    a.take()
    look()[1].check()
    assert {*T} <= a.owned | b.owned
    a.leave()
    b.leave()


@pytest.mark.parametrize("kind", ["one process", "files"])
def test_commits_do_not_overtake_a_change_of_the_group(kind: str, tmp_path: Path, clock: ManualClock) -> None:
    box = MemoryGroup("g", clock) if kind == "one process" else FileGroup(SYSTEM_FS, tmp_path / "o" / "g", "g", clock)
    changed, stopped = threading.Event(), threading.Event()
    turns = [threading.Event(), threading.Event()]

    def commit(me: int) -> None:
        """Commits without pause: each commit lasts until the other one has begun, if that may begin."""
        while not stopped.is_set():
            with box.committing():
                turns[me].set()
                turns[1 - me].wait(0.05)
                turns[1 - me].clear()

    def change() -> None:
        with box.changing():
            changed.set()

    threads = [threading.Thread(target=commit, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    turns[1].wait(300)
    threads.append(threading.Thread(target=change))
    threads[-1].start()
    is_done = changed.wait(300)
    stopped.set()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    if not is_done:
        raise Hung("a change waits while others commit")


# --- the files --------------------------------------------------------------------------------------------------------


ONE, OTHER = (f"{client}-12345678-0000-0000-0000-00000000000{number}" for number, client in enumerate("a\u0431"))
STATE = GroupState(
    3,
    {ONE: GroupMember("c", ("t", "u"), "range", 5, frozenset(T[:2])), OTHER: GroupMember("d", (), "range", 5)},
    {ONE: tuple(T), OTHER: ()},
)


def test_the_state_in_a_file_is_read_as_it_was_written() -> None:
    assert decode_state(encode_state("g", STATE), Path("members")) == STATE


def test_a_damaged_state_is_detected_and_the_group_is_shared_again(tmp_path: Path) -> None:
    data = encode_state("g", STATE)
    for place in range(0, len(data), 7):
        broken = bytearray(data)
        broken[place] ^= 1
        with pytest.raises(CorruptFileError):
            decode_state(bytes(broken), Path("members"))
    with pytest.raises(CorruptFileError):
        decode_state(data[:40], Path("members"))
    for name in ("", "a", "x" * 36, "/../../../../../../../../../../../../../x", "\0" * 36, "\ud800" * 36):
        # Their directories would be elsewhere, or cannot exist.
        members, target = {name: STATE.members[ONE]}, {name: STATE.target[ONE]}
        with pytest.raises(CorruptFileError, match="is not the id of a member"):
            decode_state(encode_state("g", GroupState(3, members, target)), Path("members"))
    body = data[data.index(b"\n") + 1 :]
    for sound, hostile in (
        (b'"generation": 3', b'"generation": Infinity'),
        (b'"strategy": "range"', b'"strategy": "all"'),
    ):
        assert sound in body
        with pytest.raises(CorruptFileError, match="not the members of a group"):
            decode_state(FORM.encode(body.replace(sound, hostile)), Path("members"))
    # A number that can be read, while the next one has more digits than Python writes.
    endless = FORM.encode(body.replace(b'"generation": 3', b'"generation": ' + b"9" * sys.get_int_max_str_digits()))
    after = decode_state(endless, Path("members")).without(STATE.members.keys(), {})
    assert decode_state(encode_state("g", after), Path("members")).members == {}
    box = FileGroup(SYSTEM_FS, tmp_path / "a", "g", SYSTEM_CLOCK)
    with box.changing() as draft:
        draft.state = STATE
    (tmp_path / "a" / "members").write_bytes(b"garbage")
    version, state = box.look()
    assert (state.members, state.generation) == ({}, STATE.generation + 1)
    assert version > 0


def test_a_change_is_seen_whatever_the_file_system_says_of_the_file(tmp_path: Path) -> None:
    """Changes come faster than its clock ticks, have the same size, and the next file reuses the inode."""
    writer, reader = (FileGroup(SYSTEM_FS, tmp_path / "g", "g", SYSTEM_CLOCK) for _ in range(2))
    with writer.changing() as draft:
        draft.state = STATE
    os.utime(tmp_path / "g" / "members", (1, 1))
    version, _ = reader.look()
    for generation in range(4, 9):
        for each in (9, generation):
            with writer.changing() as draft:
                draft.state = replace(STATE, generation=each)
        os.utime(tmp_path / "g" / "members", (1, 1))
        before, (version, state) = version, reader.look()
        assert state.generation == generation
        assert version > before
        assert reader.look() == (version, state)


def test_a_group_leaves_no_directories_of_members_behind(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os", shared=True) as store:
        store.create_topic("t", partitions=4)
        with join(store) as a, join(store) as b:
            settle(a, b)
            (group,) = tmp_path.glob("s/__consumer_offsets-*/kstore.groups/*")
            assert len([path for path in group.iterdir() if path.is_dir()]) == 2
        assert sorted(path.name for path in group.iterdir()) == ["gate", "lock", "members"]
        assert (
            store.log(
                group.parent.parent.name.rpartition("-")[0], int(group.parent.parent.name.rpartition("-")[2])
            ).recovery.ignored
            == []
        )


# --- a call that fails half way ---------------------------------------------------------------------------------------


def shares(*consumers: Consumer) -> list[set[int]]:
    """What each member reads after enough polls: exactly what it has."""
    found = settle(*consumers)
    owned = [parts.membership.owned for parts in (consumer._place for consumer in consumers) if parts.membership]
    assert [{number for _, number in have} for have in owned] == found
    return found


def failing_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, before: bool) -> None:
    """Makes the method ``name`` of ``owner`` fail once, ``before`` or after it has done everything."""
    real = getattr(owner, name)

    def method(*arguments: Any) -> object:
        monkeypatch.undo()
        if not before:
            real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, method)


def test_a_member_that_cannot_rejoin_at_once_gives_up_what_it_had(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on to read what the others have."""
    with join(store) as a, join(store) as b:
        settle(a, b)
        clock.advance(10_000_000)
        assert settle(b) == [{0, 1, 2, 3}]
        failing_once(monkeypatch, parts_of(store).groups.box("g"), "enter", before=True)
        with pytest.raises(KeyboardInterrupt):
            a.poll(max_records=1)
        assert shares(b, a) == [{0, 1}, {2, 3}]


@pytest.mark.parametrize("what", ["released", "taken"])
def test_a_change_that_is_interrupted_at_its_end_counts(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The group knew it, the member did not: two read a partition, or none did."""
    with join(store) as a:
        settle(a)
        with join(store) as b:
            changing, calls = Membership.release if what == "released" else Membership.take, list[bool]()
            member = a if what == "released" else b
            membership: Any = member._place.membership
            box = membership._box
            real = type(box).changing

            class Interrupted:
                def __init__(self) -> None:
                    self.block = real(box)

                def __enter__(self) -> Any:
                    return self.block.__enter__()

                def __exit__(self, *error: Any) -> None:
                    self.block.__exit__(*error)
                    raise KeyboardInterrupt

            def once(self: Membership, *arguments: Any) -> Any:
                if self is membership and not calls and (what == "released" or box.look()[1].due(self.member_id)):
                    calls.append(True)
                    with monkeypatch.context() as patch:
                        patch.setattr(box, "changing", Interrupted)
                        return changing(self, *arguments)
                return changing(self, *arguments)

            monkeypatch.setattr(Membership, changing.__name__, once)
            interrupted = 0
            for _ in range(3):
                for consumer in (a, b):
                    try:
                        consumer.poll(max_records=1)
                    except KeyboardInterrupt:
                        interrupted += 1
            assert interrupted == 1
            assert shares(a, b) == [{0, 1}, {2, 3}]
