"""The rules of a group, by its state machine alone: what needs much time, and random lives of groups."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kstore.door import errors as codes
from kstore.door.group import Answer, Group, GroupPhase, Join, Joined, Leaver, Sync, Synced
from tests.support.harness.selection import tries

SESSION, REBALANCE = 10.0, 60.0


def numbered() -> Callable[[str], str]:
    """Makes ids that a test can predict."""
    counts: Counter[str] = Counter()

    def new_id(prefix: str) -> str:
        counts[prefix] += 1
        return f"{prefix}-{counts[prefix]}"

    return new_id


def group(**given: Any) -> Group:
    return Group("g", new_id=numbered(), **given)


def join(member_id: str = "", instance_id: str | None = None, **given: Any) -> Join:
    plain = Join(member_id, instance_id, "c", "/127.0.0.1", "consumer", (("range", b"m"),), SESSION, REBALANCE)
    return plain._replace(**given)


def only(answers: list[Answer]) -> Joined | Synced:
    [answer] = answers
    return answer.value


def joined(answers: list[Answer], ticket: object) -> Joined:
    [value] = [answer.value for answer in answers if answer.ticket == ticket]
    assert isinstance(value, Joined)
    return value


def synced(answers: list[Answer], ticket: object) -> Synced:
    [value] = [answer.value for answer in answers if answer.ticket == ticket]
    assert isinstance(value, Synced)
    return value


def member(one: Group, now: float = 0.0, **given: Any) -> str:
    """A new member's join in one phase; its answer is not looked at."""
    before = set(one.members)
    one.join(object(), join(is_two_phase=False, **given), now)
    [member_id] = set(one.members) - before
    return member_id


# --- the first rebalance ----------------------------------------------------------------------------------------------


def test_an_empty_group_waits_for_more_members_before_its_first_generation() -> None:
    one = group(initial_delay_seconds=3.0)
    assert one.join(1, join(is_two_phase=False), 0.0) == []
    assert one.join(2, join(is_two_phase=False), 2.0) == []
    assert one.deadline == 3.0
    assert one.run_due(3.0) == [], "a member came: the wait is longer"
    assert one.deadline == 6.0
    answers = one.run_due(6.0)
    assert {joined(answers, ticket).generation for ticket in (1, 2)} == {1}


def test_the_first_wait_is_never_longer_than_the_rebalance_timeout() -> None:
    one = group(initial_delay_seconds=3.0)
    one.join(1, join(is_two_phase=False, rebalance_seconds=7.0), 0.0)
    now, count = 0.0, 1
    while one.phase == GroupPhase.PREPARING:
        count += 1
        assert count < 100
        one.join(count, join(is_two_phase=False, rebalance_seconds=7.0), now)
        now = one.deadline
        one.run_due(now)
    assert now == 7.0


def test_a_group_whose_members_leave_during_the_first_wait_is_empty_after_it() -> None:
    one = group(initial_delay_seconds=3.0)
    only(one.join(1, join(), 0.0))
    one.join(2, join("c-1"), 0.0)
    [error], answers = one.leave([Leaver("c-1")], 1.0)
    assert error == 0
    assert joined(answers, 2).error == codes.UNKNOWN_MEMBER_ID
    assert one.run_due(3.0) == []
    assert one.phase == GroupPhase.EMPTY
    assert one.is_idle


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_new_member_whose_join_waits_for_five_minutes_is_dropped() -> None:
    one = group()
    member(one, rebalance_seconds=900.0, session_seconds=1000.0)
    assert one.join(1, join(is_two_phase=False, rebalance_seconds=900.0), 0.0) == []
    assert one.run_due(299.0) == []
    assert joined(one.run_due(300.0), 1).error == codes.UNKNOWN_MEMBER_ID


def test_a_heartbeat_moves_the_end_of_a_session() -> None:
    one = group()
    member_id = member(one)
    one.sync(1, Sync(member_id, None, 1), 0.0)
    assert one.heartbeat(member_id, None, 1, 9.0) == 0
    one.run_due(18.9)
    assert member_id in one.members
    one.run_due(19.0)
    assert one.is_idle


def test_a_leader_that_lives_and_brings_no_assignments_is_dropped() -> None:
    one = group()
    leader = member(one)
    assert one.join(1, join(is_two_phase=False), 0.0) == []
    follower = joined(one.join(2, join(leader), 0.0), 1).member_id
    assert one.sync(3, Sync(follower, None, 2), 1.0) == []
    now = 0.0
    while now < REBALANCE - 1:
        now += 1.0
        assert one.heartbeat(leader, None, 2, now) == 0
        assert one.run_due(now) == []
    assert synced(one.run_due(REBALANCE), 3).error == codes.REBALANCE_IN_PROGRESS
    assert list(one.members) == [follower]


def test_a_member_that_lives_and_does_not_join_again_is_dropped() -> None:
    one = group()
    leader = member(one)
    one.sync(1, Sync(leader, None, 1), 0.0)
    assert one.join(2, join(is_two_phase=False), 0.0) == []
    now = 0.0
    while now < REBALANCE - 1:
        now += 1.0
        assert one.heartbeat(leader, None, 1, now) == codes.REBALANCE_IN_PROGRESS
        assert one.run_due(now) == []
    answer = joined(one.run_due(REBALANCE), 2)
    assert [name for name, _, _ in answer.members] == list(one.members) == [answer.member_id]


def test_static_members_that_do_not_come_back_stay_until_their_sessions_end() -> None:
    one = group()
    answers = one.join(1, join(instance_id="s", rebalance_seconds=1.0, session_seconds=30.0), 0.0)
    static = joined(answers, 1).member_id
    one.sync(2, Sync(static, None, 1, assignments={static: b"a"}), 0.0)
    assert one.join(3, join(is_two_phase=False, rebalance_seconds=1.0), 1.0) == []
    answer = joined(one.run_due(2.0), 3)
    assert [name for name, _, _ in answer.members] == [static, answer.member_id]
    assert answer.leader == answer.member_id, "the old leader has not joined"


def test_a_group_in_which_nobody_came_back_does_not_look_all_the_time() -> None:
    one = group()
    for name in ("s", "t"):
        one.join(name, join(instance_id=name, rebalance_seconds=0.0, session_seconds=30.0), 0.0)
    looks, now = 0, 0.0
    while one.members:
        now = max(now, one.deadline)
        one.run_due(now)
        looks += 1
        assert looks < 100
    assert now <= 31.0


def test_a_rebalance_waits_for_an_id_until_that_ends() -> None:
    one = group()
    leader = member(one)
    one.sync(1, Sync(leader, None, 1), 0.0)
    assert only(one.join(2, join(session_seconds=5.0), 1.0))[:2] == (codes.MEMBER_ID_REQUIRED, "c-2")
    assert one.join(3, join(leader), 2.0) == []
    assert joined(one.run_due(6.0), 3).generation == 2


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_group_has_a_limit_of_members_and_ids() -> None:
    one = group(size_max=2)
    member_id = member(one)
    assert only(one.join(1, join(), 0.0))[0] == codes.MEMBER_ID_REQUIRED
    assert only(one.join(2, join(), 0.0))[0] == codes.GROUP_MAX_SIZE_REACHED
    assert only(one.join(3, join(member_id), 0.0))[0] == 0, "a member has its place"


def test_a_static_member_that_comes_back_to_a_full_group_has_its_place() -> None:
    one = group(size_max=1)
    first = only(one.join(1, join(instance_id="s"), 0.0))
    assert only(one.join(2, join(instance_id="t"), 0.0))[0] == codes.GROUP_MAX_SIZE_REACHED
    again = only(one.join(3, join(instance_id="s"), 0.0))
    assert (first[0], again[0]) == (0, 0)


def test_an_id_that_was_given_out_has_its_place() -> None:
    one = group(size_max=1)
    first = only(one.join(1, join(), 0.0))
    assert isinstance(first, Joined)
    assert only(one.join(2, join(first.member_id), 0.0))[0] == 0


def test_a_second_join_of_one_member_answers_the_first() -> None:
    one = group()
    member(one)
    other = member(one)
    answers = one.join(8, join(other, protocols=(("range", b"n"),)), 0.0)
    assert [answer.value.error for answer in answers] == [codes.REBALANCE_IN_PROGRESS]
    assert one.members[other].joining == 8


def test_an_id_that_was_given_out_cannot_become_a_static_member() -> None:
    one = group()
    first = only(one.join(1, join(), 0.0))
    assert isinstance(first, Joined)
    assert only(one.join(2, join(first.member_id, "s"), 0.0))[0] == codes.UNKNOWN_MEMBER_ID


# --- random lives -----------------------------------------------------------------------------------------------------

STEPS = tries(100_000, quick=12_000)
STEPS_IN_SOAK = 1_000_000
STEPS_OF_A_LIFE = 400
PARTITIONS = 6


@dataclass
class Client:
    """One client, as those of Kafka behave, and as broken ones do."""

    name: str
    instance_id: str | None
    session: float
    rebalance: float
    protocols: tuple[tuple[str, bytes], ...]
    is_two_phase: bool
    member_id: str = ""
    generation: int = -1
    # What it is doing: nothing, joining, syncing, member.
    waits_for: object = None
    must_sync: bool = False
    is_member: bool = False
    leads: tuple[str, ...] = ()
    owned: frozenset[int] = frozenset()
    beat_at: float = 0.0


@dataclass
class Life:
    """A random life of one group, and what must hold at each step."""

    seed: int
    now: float = 0.0
    tickets: dict[object, tuple[Client, float]] = field(default_factory=dict)
    answered: set[object] = field(default_factory=set)
    clients: list[Client] = field(default_factory=list)
    generations: dict[int, tuple[str, frozenset[str]]] = field(default_factory=dict)
    assigned: dict[int, dict[str, frozenset[int]]] = field(default_factory=dict)
    # What clients owned before they joined again: their last commits may still be on the way.
    late: list[Client] = field(default_factory=list)
    steps: int = 0
    rebalances: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        delay = self.random.choice([0.0, 0.0, 0.5, 3.0])
        self.group = Group("g", new_id=numbered(), initial_delay_seconds=delay, size_max=self.random.choice([3, 50]))

    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()
            self.steps += 1
        # Nothing waits forever: time alone answers all requests.
        for _ in range(1000):
            if not self.tickets:
                break
            assert self.group.deadline < float("inf"), f"{self.tickets} would wait forever; {self}"
            self.now = max(self.now, self.group.deadline)
            self.deliver(self.group.run_due(self.now))
        assert not self.tickets, f"seed {self.seed}: {self.tickets} are not answered"

    def step(self) -> None:
        kind = self.random.choices(
            [self.come, self.act, self.pass_time, self.leave, self.break_something], [4, 60, 25, 3, 8]
        )
        kind[0]()
        self.check()

    # --- what clients do ----------------------------------------------------------------------------------------------

    def come(self) -> None:
        if len(self.clients) < 8:
            names = self.random.choice([("range",), ("range", "sticky"), ("sticky", "range")])
            self.clients.append(
                Client(
                    f"c{len(self.clients)}",
                    self.random.choice([None, None, "s1", "s2"]),
                    self.random.choice([6.0, 10.0, 45.0]),
                    self.random.choice([0.0, 2.0, 20.0, 300.0]),
                    tuple((name, b"m") for name in names),
                    self.random.random() < 0.7,
                )
            )

    def act(self) -> None:
        free = [client for client in self.clients if client.waits_for is None]
        if not free:
            return
        client = self.random.choice(free)
        if client.is_member and not client.must_sync:
            if self.random.random() < 0.1:
                self.join(client)  # as for new topics
            else:
                self.heartbeat(client)
        elif client.must_sync:
            self.sync(client)
        else:
            self.join(client)

    def pass_time(self) -> None:
        self.now += self.random.choice([0.01, 0.3, 1.0, 5.0, 11.0])
        if self.group.deadline <= self.now:
            self.deliver(self.group.run_due(self.now))

    def leave(self) -> None:
        if self.clients:
            client = self.random.choice(self.clients)
            _, answers = self.group.leave([Leaver(client.member_id, client.instance_id)], self.now)
            self.deliver(answers)

    def break_something(self) -> None:
        """A client dies without a word, or a request comes twice or late."""
        if not self.clients:
            return
        client = self.random.choice(self.clients)
        match self.random.randrange(4):
            case 0:
                self.clients.remove(client)
            case 1:
                self.join(client)
            case 2:
                self.sync(client)
            case 3:
                client.member_id = "stranger"
                client.is_member = client.must_sync = False

    def join(self, client: Client) -> None:
        if client.owned:
            self.late = [*self.late[-5:], replace(client)]
            client.owned = frozenset()  # it gives up everything first
        ticket = self.ticket(client)
        request = Join(
            client.member_id,
            client.instance_id,
            client.name,
            "/127.0.0.1",
            "consumer",
            client.protocols,
            client.session,
            client.rebalance,
            client.is_two_phase,
        )
        self.deliver(self.group.join(ticket, request, self.now))

    def sync(self, client: Client) -> None:
        ticket = self.ticket(client)
        shares: dict[str, bytes] = {}
        if client.leads:
            numbers = list(range(PARTITIONS))
            self.random.shuffle(numbers)
            found = {name: numbers[at :: len(client.leads)] for at, name in enumerate(client.leads)}
            shares = {name: bytes(share) for name, share in found.items()}
        request = Sync(client.member_id, client.instance_id, client.generation, "consumer", None, shares)
        self.deliver(self.group.sync(ticket, request, self.now))

    def heartbeat(self, client: Client) -> None:
        error = self.group.heartbeat(client.member_id, client.instance_id, client.generation, self.now)
        self.lose(client, error)

    def lose(self, client: Client, error: int) -> None:
        if error in (codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID, codes.ILLEGAL_GENERATION):
            client.member_id, client.owned = "", frozenset()
        if error:
            client.is_member = client.must_sync = False
            client.leads = ()

    # --- answers ------------------------------------------------------------------------------------------------------

    def ticket(self, client: Client) -> object:
        ticket = object()
        client.waits_for = ticket
        self.tickets[ticket] = client, self.now
        return ticket

    def deliver(self, answers: list[Answer]) -> None:
        for ticket, value in answers:
            assert ticket not in self.answered, f"seed {self.seed}: a second answer"
            self.answered.add(ticket)
            client, _ = self.tickets.pop(ticket)
            if client.waits_for is ticket:
                client.waits_for = None
                self.learn(client, value)
            else:
                self.note(value, client)  # its connection is gone

    def learn(self, client: Client, value: Joined | Synced) -> None:
        self.note(value, client)
        if isinstance(value, Joined):
            if value.error == codes.MEMBER_ID_REQUIRED:
                client.member_id = value.member_id
            elif value.error:
                self.lose(client, value.error)
            else:
                client.member_id, client.generation = value.member_id, value.generation
                client.must_sync, client.is_member = True, True
                client.leads = tuple(name for name, _, _ in value.members) if not value.skip_assignment else ()
        elif value.error:
            self.lose(client, value.error)
        else:
            client.must_sync = False
            client.owned = frozenset(value.assignment)

    def note(self, value: Joined | Synced, client: Client) -> None:
        """One generation has one leader and one protocol, and each member one share of it."""
        if isinstance(value, Joined) and not value.error:
            assert value.generation == self.group.generation
            protocol = value.protocol or ""
            known = self.generations.setdefault(value.generation, (protocol, frozenset()))
            assert known[0] == protocol, f"seed {self.seed}: two protocols in one generation"
            assert value.member_id in self.group.members
            if value.members:
                assert value.leader == value.member_id
            self.rebalances = max(self.rebalances, value.generation)
        elif isinstance(value, Synced) and not value.error:
            assert self.group.phase == GroupPhase.STABLE

    # --- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        here = f"seed {self.seed}, step {self.steps}"
        one = self.group
        waiting = [each.joining for each in one.members.values() if each.joining is not None]
        waiting += [each.syncing for each in one.members.values() if each.syncing is not None]
        assert set(waiting) == set(self.tickets), f"{here}: a request is lost, or waits though it was answered"
        assert (one.phase == GroupPhase.EMPTY) <= (not one.members), here
        assert one.leader in one.members or not one.members, f"{here}: no leader"
        assert (not waiting) or one.deadline < float("inf"), f"{here}: nothing ends the wait"
        if one.phase == GroupPhase.COMPLETING:
            leader = one.members[one.leader]
            assert leader.syncing is None, f"{here}: the leader has brought the assignments"
        if one.phase == GroupPhase.STABLE:
            assert not waiting, f"{here}: a stable group has an answer for everyone"
        # Each partition has one owner among those whose commits are accepted.
        owners: dict[int, str] = {}
        for client in [*self.clients, *self.late]:
            if client.owned and self.may_commit(client):
                for number in client.owned:
                    other = owners.setdefault(number, client.member_id)
                    assert other == client.member_id, f"{here}: a partition has two owners"

    def may_commit(self, client: Client) -> bool:
        member = self.group.members.get(client.member_id)
        before = member.expires_at if member is not None else 0.0
        error = self.group.commit_error(client.member_id, client.instance_id, client.generation, self.now)
        if member is not None:
            member.expires_at = before  # a look is no sign of life
        return not error


def live(steps: int, first_seed: int) -> None:
    rebalances = 0
    for seed in range(first_seed, first_seed + steps // STEPS_OF_A_LIFE):
        life = Life(seed)
        life.run(STEPS_OF_A_LIFE)
        rebalances += life.rebalances
    assert rebalances > steps // 60, "the lives are too quiet to show anything"


def test_random_lives_keep_one_generation_one_owner_and_answer_every_request_once() -> None:
    live(STEPS, first_seed=0)


@pytest.mark.soak
@pytest.mark.long
def test_a_million_steps_of_random_lives() -> None:
    live(STEPS_IN_SOAK, first_seed=1_000_000)
