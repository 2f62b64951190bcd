"""A group of consumers against a plain model: members join, leave, fall silent and are killed, the store is reopened.

The model knows how many records each partition has, its committed offset, what each member has had since it got the
partition, and which members the others take for dead. Nothing is lost: at the end every record was handed out. Order is
kept: a member's records of a partition begin at the committed offset and have no gaps. Only a partition's owner
commits, and only what it was given. Planted faults test that the model finds all this.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

import kstore
from kstore import CommitFailedError, TopicPartition
from kstore.consumer.commits import Commits
from kstore.consumer.consumer import Consumer, abandon
from kstore.consumer.fetching import PartitionReader
from kstore.consumer.group_files import FileGroup
from kstore.consumer.group_state import GroupState
from kstore.consumer.groups import Membership, MemoryGroup
from kstore.consumer.of_store import StoreGroups
from kstore.consumer.reading import Reading
from kstore.store import Store
from kstore.transactions.group_records import OffsetAndMetadata
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Lost, Wrong
from tests.support.harness.selection import tries

MEMBERS_MAX, PARTITIONS_MAX = 4, 8
LIMIT_MS = 60_000
MEMORY = "/dev/shm"
MEMBER = st.integers(0, 11)
COUNT = st.integers(1, 12)
COMMITS = st.sampled_from(["asked", "revoked", "seldom", "always"])


class Member:
    """A consumer and its state in the model. It is its own listener for partitions that come and go."""

    def __init__(self, model: GroupModel, *, commits: str, strategy: str) -> None:
        self.model = model
        # When it commits: if "asked"; also if "revoked"; by itself at the end too, "seldom"; or "always", at each poll.
        self.commits = commits
        # By partition: the next offset.
        self.next: dict[int, int] = {}
        self.beat = model.clock.monotonic()
        # The others take it for dead: they own its partitions, and it does not know.
        self.is_expelled = False
        self.consumer: Consumer = model.store.consumer(
            group="g",
            iteration_timeout_ms=0,
            max_poll_interval_ms=LIMIT_MS,
            max_poll_records=7,
            enable_auto_commit=commits in ("seldom", "always"),
            auto_commit_interval_ms=0 if commits == "always" else "1000d",
            partition_assignment_strategy=strategy,
        )
        self.consumer.subscribe(["t"], listener=self)

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        for _, number in partitions:
            self.next[number] = self.model.committed.get(number, 0)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        offsets = {owner: self.next[owner.partition] for owner in partitions}
        if self.commits == "revoked":
            self.consumer.commit(offsets)
        if self.commits != "asked":
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
        partitions=st.integers(1, 5),
        strategy=st.sampled_from(["range", "round_robin"]),
        members=st.lists(COMMITS, min_size=1, max_size=3),
    )
    def begin(self, partitions: int, strategy: str, members: list[str]) -> None:
        self.strategy = strategy
        self.open("0")
        self.store.create_topic("t", partitions=partitions)
        # One partition instead of fifty.
        self.store.create_topic("__consumer_offsets", cleanup_policy="compact")
        self.ends = [0] * partitions
        self.seen = [set() for _ in range(partitions)]
        for number in range(partitions):
            self.append(number, 10)
        for commits in members:
            self.join(commits)

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

    def looks(self, member: Member) -> None:
        """It polls or joins, and takes members that were silent for too long for dead."""
        now = self.clock.monotonic()
        member.beat, member.is_expelled = now, False
        for other in self.members:
            other.is_expelled |= now - other.beat > LIMIT_MS / 1000

    @precondition(lambda self: len(self.members) < MEMBERS_MAX)
    @rule(commits=COMMITS)
    def join(self, commits: str) -> None:
        member = Member(self, commits=commits, strategy=self.strategy)
        self.looks(member)
        self.members.append(member)

    @precondition(lambda self: 0 < len(self.members) < MEMBERS_MAX)
    @rule(commits=COMMITS, count=COUNT)
    def join_those_who_read(self, commits: str, count: int) -> None:
        """Members that have read without committing give up some partitions."""
        for number in range(len(self.ends)):
            self.append(number, count)
        for member in self.members:
            self.polls(member, count)
        self.join(commits)
        self.all_poll(count)

    @precondition(lambda self: self.members)
    @rule(at=MEMBER, how=st.sampled_from(["leaves", "is killed"]))
    def part(self, at: int, how: str) -> None:
        self.ends_life(self.picked(at), how)

    def ends_life(self, member: Member, how: str) -> None:
        self.members.remove(member)
        if how == "leaves":
            if member.commits in ("seldom", "always") and not member.is_expelled:
                self.committed.update(member.next)
            member.consumer.close()
        else:
            abandon(member.consumer)

    @precondition(lambda self: self.members)
    @rule(at=MEMBER, count=COUNT)
    def poll(self, at: int, count: int) -> None:
        self.polls(self.picked(at), count)

    def polls(self, member: Member, count: int) -> None:
        if member.commits == "always" and not member.is_expelled:
            self.committed.update(member.next)
        self.looks(member)
        for owner, records in member.consumer.poll(max_records=count).items():
            for record in records:
                member.got(owner, record.offset)

    @precondition(lambda self: self.members)
    @rule(count=COUNT)
    def all_poll(self, count: int) -> None:
        """All poll twice: then every member has its target."""
        for member in self.members * 2:
            self.polls(member, count)

    @precondition(lambda self: self.members)
    @rule(at=MEMBER, count=COUNT)
    def iterate(self, at: int, count: int) -> None:
        member = self.picked(at)
        if member.commits == "always" and not member.is_expelled:
            self.committed.update(member.next)
        self.looks(member)
        for record in member.consumer:
            member.got(member.consumer.current, record.offset)
            count -= 1
            if not count:
                break
        if member.commits == "always":
            # It may have polled, and committed, any number of times in between.
            for number, offset in self.found().items():
                if self.committed.get(number, 0) <= offset <= member.next.get(number, 0):
                    self.committed[number] = offset

    @precondition(lambda self: self.members)
    @rule(at=MEMBER)
    def commit(self, at: int) -> None:
        self.asks_to_commit(self.picked(at))

    def asks_to_commit(self, member: Member) -> None:
        positions = {owner.partition: offset for owner, offset in member.consumer.positions().items()}
        for number, offset in positions.items():
            if member.next[number] != offset:
                raise Wrong(f"the position in partition {number} is {offset}, expected {member.next[number]}")
        try:
            member.consumer.commit()
        except CommitFailedError:
            if not member.is_expelled:
                raise
        else:
            # An expelled member with nothing new to commit gets no error.
            if not member.is_expelled:
                self.committed.update(positions)

    @precondition(lambda self: self.members)
    @rule(at=MEMBER, number=st.integers(0, PARTITIONS_MAX - 1))
    def commit_what_is_anothers(self, at: int, number: int) -> None:
        member = self.picked(at)
        number %= len(self.ends)
        if number in member.next and not member.is_expelled:
            return
        try:
            member.consumer.commit({TopicPartition("t", number): 1})
        except CommitFailedError:
            return
        raise Wrong(f"a member without partition {number} has committed its offset")

    @rule(what=st.sampled_from(["grow", "fall silent", "reopen", "kill the process"]))
    def disturb(self, what: str) -> None:
        getattr(self, what.replace(" ", "_"))()

    @precondition(lambda self: len(self.members) > 1)
    @rule(at=MEMBER, then=st.sampled_from(["commits", "leaves", "polls"]))
    def one_falls_silent(self, at: int, then: str) -> None:
        """It raises an error if others have its partitions."""
        silent = self.picked(at)
        for _ in range(3):
            self.clock.advance(LIMIT_MS // 2)
            for member in self.members:
                if member is not silent:
                    self.polls(member, 3)
        if then == "commits":
            self.asks_to_commit(silent)
        elif then == "leaves":
            self.ends_life(silent, "leaves")
        else:
            self.polls(silent, 3)

    def grow(self) -> None:
        if len(self.ends) < PARTITIONS_MAX:
            self.ends.append(0)
            self.seen.append(set())
            self.store.add_partitions("t", len(self.ends))
            self.clock.advance(6000)  # unless reported, topic changes are noticed from time to time

    def fall_silent(self) -> None:
        """All members fall silent: the first to poll takes the others for dead."""
        self.clock.advance(LIMIT_MS + 1)

    def reopen(self) -> None:
        for member in list(self.members):
            self.ends_life(member, "leaves")
        self.store.close()
        self.open(self.store.path.name)

    def kill_the_process(self) -> None:
        self.copies += 1
        copy = self.directory / str(self.copies)
        shutil.copytree(self.store.path, copy)
        for member in self.members:
            abandon(member.consumer)
        self.members.clear()
        self.store.close()
        self.open(copy.name)

    # --- what holds -------------------------------------------------------------------------------------------------

    def found(self) -> dict[int, int]:
        committed = self.store.consumer_offsets.committed("g")
        return {owner.partition: one.offset for owner, one in committed.items() if one.offset}

    @invariant()
    def committed_offsets_are_those_of_the_model(self) -> None:
        if self.ends:
            # A commit of offset 0 counts as none.
            expected = {number: offset for number, offset in self.committed.items() if offset}
            if self.found() != expected:
                raise Wrong(f"committed {self.found()}, expected {expected}")

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned: set[TopicPartition] = set()
        for member in self.members:
            if not member.is_expelled:
                mine = member.consumer.assignment()
                if {number for _, number in mine} != member.next.keys():
                    raise Wrong(f"a member has {sorted(mine)}, but its listener got {sorted(member.next)}")
                if both := owned & mine:
                    raise Wrong(f"{sorted(both)} have two owners")
                owned |= mine

    def teardown(self) -> None:
        try:
            if self.ends:
                self.count_steps("reads", sum(map(len, self.seen)))
                self.all_is_handed_out()
        finally:
            if self.ends:
                for member in self.members:
                    abandon(member.consumer)
                self.store.close()
            shutil.rmtree(self.directory)

    def all_is_handed_out(self) -> None:
        for member in self.members:
            abandon(member.consumer)
        self.members.clear()
        last = Member(self, commits="asked", strategy=self.strategy)
        self.clock.advance(3001)
        for record in last.consumer:
            last.got(last.consumer.current, record.offset)
        last.consumer.close()
        for number, end in enumerate(self.ends):
            missing = set(range(end)) - self.seen[number]
            if missing:
                raise Lost(f"partition {number}: offsets {sorted(missing)[:10]} were never handed out")


def run(
    shared: bool,
    examples: int,
    steps: int,
    tried: Callable[[str, int], None],
    phases: Collection[Phase] = (Phase.generate, Phase.shrink),
) -> None:
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
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


KINDS = [
    pytest.param(False, id="one process"),
    pytest.param(True, id="files", marks=pytest.mark.skipif(sys.platform != "linux", reason="shared on Linux only")),
]


@pytest.mark.parametrize("shared", KINDS)
def test_a_group_is_what_the_model_says(shared: bool, tried: Callable[[str, int], None]) -> None:
    run(shared, tries(50, quick=5), 40, tried)


# --- that the model finds faults --------------------------------------------------------------------------------------


def commits_are_not_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "fenced", lambda self, partitions: nullcontext())


def who_gives_a_partition_up_reads_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reading, "drop", lambda self, owners: None)


def two_own_a_partition(patch: pytest.MonkeyPatch) -> None:
    def due(state: GroupState, member_id: str) -> frozenset[TopicPartition]:
        return frozenset(state.target[member_id]) - state.members[member_id].owned

    patch.setattr(GroupState, "due", due)


def nobody_is_dead(patch: pytest.MonkeyPatch) -> None:
    for box in (MemoryGroup, FileGroup):
        patch.setattr(box, "dead", lambda self, members: set())


def an_offset_is_committed_back(patch: pytest.MonkeyPatch) -> None:
    commit = StoreGroups.commit

    def back(self: StoreGroups, group: str, offsets: dict[TopicPartition, int]) -> None:
        commit(self, group, {owner: max(offset - 1, 0) for owner, offset in offsets.items()})

    patch.setattr(StoreGroups, "commit", back)


def a_close_commits_nothing(patch: pytest.MonkeyPatch) -> None:
    close = Consumer.close
    patch.setattr(Consumer, "close", lambda self, commit=True: close(self, commit=False))


def what_is_revoked_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    commit = Commits.auto_commit
    patch.setattr(Commits, "auto_commit", lambda self, only=None: None if only else commit(self))


def a_new_owner_passes_over_a_record(patch: pytest.MonkeyPatch) -> None:
    begin = Reading._begin_at

    def beyond(self: Reading, reader: PartitionReader, committed: OffsetAndMetadata) -> None:
        begin(self, reader, committed._replace(offset=committed.offset + 1))

    patch.setattr(Reading, "_begin_at", beyond)


FAULTS = [
    commits_are_not_fenced,
    who_gives_a_partition_up_reads_on,
    two_own_a_partition,
    nobody_is_dead,
    an_offset_is_committed_back,
    a_close_commits_nothing,
    what_is_revoked_is_not_committed,
    a_new_owner_passes_over_a_record,
]


@pytest.mark.parametrize("shared", KINDS)
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
@pytest.mark.sampled(1)
def test_the_model_finds_a_fault(
    fault: Callable[[pytest.MonkeyPatch], None], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises((Wrong, Lost)):
        run(shared, 50, 40, lambda kind, count: None, phases=[Phase.generate])


# --- for long ---------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("shared", KINDS)
def test_a_group_is_what_the_model_says_for_long(shared: bool, tried: Callable[[str, int], None]) -> None:
    run(shared, 500, 50, tried)
