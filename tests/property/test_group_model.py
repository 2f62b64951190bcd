"""A group of consumers against a plain model: members join, leave, fall silent and are killed, the store is reopened.

The model knows how many records each partition has, what was committed of it, and what each member has had since it got
the partition. Nothing is lost: at the end every record was handed out. Order is kept: what a member gets of a partition
goes on where it was, and begins at what was committed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

import kstore
from kstore import CommitFailedError, TopicPartition
from kstore.consumer.consumer import Consumer
from kstore.store import Store
from tests.evidence import Lost, Wrong
from tests.fake_clock import ManualClock

MEMBERS_MAX, PARTITIONS_MAX = 4, 8
LIMIT_MS = 60_000
MEMORY = "/dev/shm"
MEMBER = st.integers(0, 11)
COUNT = st.integers(1, 12)


class Member:
    """A consumer, and where the model has it. As its listener it hears of partitions that come and go."""

    def __init__(self, model: GroupModel, *, commits_when_revoked: bool, strategy: str) -> None:
        self.model = model
        self.commits_when_revoked = commits_when_revoked
        # By partition: the offset that comes next.
        self.next: dict[int, int] = {}
        # What it has is others', perhaps, and it does not know.
        self.was_silent = False
        self.consumer: Consumer = model.store.consumer(
            group="g",
            iteration_timeout_ms=0,
            max_poll_interval_ms=LIMIT_MS,
            max_poll_records=7,
            partition_assignment_strategy=strategy,
        )
        self.consumer.subscribe(["t"], listener=self)

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        for _, number in partitions:
            self.next[number] = self.model.committed.get(number, 0)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        if self.commits_when_revoked:
            offsets = {owner: self.next[owner.partition] for owner in partitions}
            self.consumer.commit(offsets)
            self.model.committed.update((owner.partition, offset) for owner, offset in offsets.items())
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        for _, number in partitions:
            del self.next[number]

    def got(self, owner: TopicPartition | None, offset: int) -> None:
        assert owner is not None
        number = owner.partition
        if self.next.get(number) != offset:
            raise Wrong(f"{owner} gave offset {offset}, expected {self.next.get(number)}")
        self.next[number] = offset + 1
        self.model.seen[number].add(offset)


class GroupModel(RuleBasedStateMachine):
    shared = False
    count_steps: Callable[[str, int], None]

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="kstore-group-", dir=MEMORY if Path(MEMORY).is_dir() else None))
        self.clock = ManualClock()
        self.copies = 0
        self.members: list[Member] = []
        self.ends: list[int] = []
        self.seen: list[set[int]] = []
        self.committed: dict[int, int] = {}

    @initialize(
        partitions=st.integers(1, 5), strategy=st.sampled_from(["range", "round_robin"]), members=st.integers(1, 3)
    )
    def begin(self, partitions: int, strategy: str, members: int) -> None:
        self.strategy = strategy
        self.open("0")
        self.store.create_topic("t", partitions=partitions)
        # One partition in place of fifty.
        self.store.create_topic("__consumer_offsets", cleanup_policy="compact")
        self.ends = [0] * partitions
        self.seen = [set() for _ in range(partitions)]
        for number in range(partitions):
            self.append(number, 10)
        for _ in range(members):
            self.join(commits_when_revoked=True)

    def picked(self, at: int) -> Member:
        return self.members[at % len(self.members)]

    def open(self, name: str) -> None:
        self.store: Store = kstore.open(
            self.directory / name, durability="os", shared=self.shared, clock=self.clock, background=False
        )

    # --- what happens -----------------------------------------------------------------------------------------------

    @rule(at=st.integers(0, 9), count=COUNT)
    def append(self, at: int, count: int) -> None:
        number = at % len(self.ends)
        self.store.log("t", number).append_many([b"x"] * count)
        self.ends[number] += count

    @precondition(lambda self: len(self.members) < MEMBERS_MAX)
    @rule(commits_when_revoked=st.booleans())
    def join(self, commits_when_revoked: bool) -> None:
        self.members.append(Member(self, commits_when_revoked=commits_when_revoked, strategy=self.strategy))

    @precondition(lambda self: self.members)
    @rule(at=MEMBER, how=st.sampled_from(["leaves", "is killed"]))
    def part(self, at: int, how: str) -> None:
        member = self.picked(at)
        self.members.remove(member)
        if how == "leaves":
            member.consumer.close()
        else:
            member.consumer.abandon()

    @precondition(lambda self: self.members)
    @rule(at=MEMBER, count=COUNT)
    def poll(self, at: int, count: int) -> None:
        member = self.picked(at)
        for owner, records in member.consumer.poll(max_records=count).items():
            for record in records:
                member.got(owner, record.offset)
        member.was_silent = False

    @precondition(lambda self: self.members)
    @rule(at=MEMBER, count=COUNT)
    def iterate(self, at: int, count: int) -> None:
        member = self.picked(at)
        for record in member.consumer:
            member.got(member.consumer.current, record.offset)
            count -= 1
            if not count:
                break
        member.was_silent = False

    @precondition(lambda self: self.members)
    @rule(at=MEMBER)
    def commit(self, at: int) -> None:
        member = self.picked(at)
        positions = {owner.partition: offset for owner, offset in member.consumer.positions().items()}
        for number, offset in positions.items():
            if member.next[number] != offset:
                raise Wrong(f"the position in partition {number} is {offset}, expected {member.next[number]}")
        try:
            member.consumer.commit()
        except CommitFailedError:
            if not member.was_silent:
                raise
        else:
            for other in self.members:
                if other is not member and not other.was_silent and other.next.keys() & positions.keys():
                    raise Wrong(f"committed {positions}, and another member has {sorted(other.next)}")
            self.committed.update(positions)

    @rule(what=st.sampled_from(["grow", "grow", "fall silent", "reopen", "kill the process"]))
    def disturb(self, what: str) -> None:
        getattr(self, what.replace(" ", "_"))()

    def grow(self) -> None:
        if len(self.ends) < PARTITIONS_MAX:
            self.ends.append(0)
            self.seen.append(set())
            self.store.add_partitions("t", len(self.ends))
            self.clock.advance(6000)  # where nobody tells of topics they are looked for now and then

    def fall_silent(self) -> None:
        """Everybody: whoever asks first takes the others for dead."""
        self.clock.advance(LIMIT_MS + 1)
        for member in self.members:
            member.was_silent = True

    def reopen(self) -> None:
        for member in self.members:
            member.consumer.close()
        self.members.clear()
        self.store.close()
        self.open(self.store.path.name)

    def kill_the_process(self) -> None:
        self.copies += 1
        copy = self.directory / str(self.copies)
        shutil.copytree(self.store.path, copy)
        for member in self.members:
            member.consumer.abandon()
        self.members.clear()
        self.store.close()
        self.open(copy.name)

    # --- what holds -------------------------------------------------------------------------------------------------

    @invariant()
    def committed_offsets_are_those_of_the_model(self) -> None:
        if self.ends:
            found = {owner.partition: one.offset for owner, one in self.store.consumer_offsets.committed("g").items()}
            if found != self.committed:
                raise Wrong(f"committed {found}, expected {self.committed}")

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned: set[TopicPartition] = set()
        for member in self.members:
            if not member.was_silent:
                assert not owned & member.consumer.assignment()
                owned |= member.consumer.assignment()

    def teardown(self) -> None:
        try:
            if self.ends:
                self.count_steps("reads", sum(map(len, self.seen)))
                self.all_is_handed_out()
        finally:
            if self.ends:
                for member in self.members:
                    member.consumer.abandon()
                self.store.close()
            shutil.rmtree(self.directory)

    def all_is_handed_out(self) -> None:
        for member in self.members:
            member.consumer.abandon()
        self.members.clear()
        last = Member(self, commits_when_revoked=False, strategy=self.strategy)
        self.clock.advance(3001)
        for record in last.consumer:
            last.got(last.consumer.current, record.offset)
        last.consumer.close()
        for number, end in enumerate(self.ends):
            missing = set(range(end)) - self.seen[number]
            if missing:
                raise Lost(f"partition {number}: offsets {sorted(missing)[:10]} were never handed out")


def run(shared: bool, examples: int, steps: int, tried: Callable[[str, int], None]) -> None:
    class Model(GroupModel):
        pass

    Model.shared = shared
    Model.count_steps = staticmethod(tried)
    run_machine(
        Model,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


KINDS = [
    pytest.param(False, id="one process"),
    pytest.param(True, id="files", marks=pytest.mark.skipif(sys.platform != "linux", reason="shared on Linux only")),
]


@pytest.mark.parametrize("shared", KINDS)
def test_a_group_is_what_the_model_says(shared: bool, tried: Callable[[str, int], None]) -> None:
    run(shared, 40, 40, tried)


@pytest.mark.soak
@pytest.mark.parametrize("shared", KINDS)
def test_a_group_is_what_the_model_says_for_long(shared: bool, tried: Callable[[str, int], None]) -> None:
    run(shared, 500, 50, tried)
