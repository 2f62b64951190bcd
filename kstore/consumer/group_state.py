"""The state of a group of consumers at one moment, and its changes: values and pure functions.

Every change of the members, or of the partitions, makes a new *generation* with a new *target*: which member gets which
partitions. What a member *owns* follows: at its next request for records it gives up what is not in its target, and it
takes what is once no other member owns it. So no partition ever has two owners, and a partition that stays where it is
is read without a pause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kstore.consumer.assignor import assign
from kstore.errors import ConfigError
from kstore.files.paths import TopicPartition

Partitions = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One consumer of a group: what it wants, how long it may be silent, and what it owns."""

    client_id: str
    topics: tuple[str, ...]
    strategy: str
    limit_ms: int
    owned: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group. ``members`` are in the order in which they joined; ``target`` has an entry for each."""

    generation: int = 0
    members: Mapping[str, GroupMember] = field(default_factory=dict)
    target: Mapping[str, tuple[TopicPartition, ...]] = field(default_factory=dict)

    # --- its members ------------------------------------------------------------------------------------------------

    def joined(self, member_id: str, member: GroupMember, partitions: Partitions) -> GroupState:
        """The group with another member, or with one that now wants other topics. Raises: ConfigError."""
        for other_id, other in self.members.items():
            if other_id != member_id and other.strategy != member.strategy:
                raise ConfigError(
                    f"partition_assignment_strategy is {member.strategy!r}, expected {other.strategy!r} as of the "
                    "group's other members"
                )
        return self._with({**self.members, member_id: member}, partitions)

    def without(self, member_ids: Collection[str], partitions: Partitions) -> GroupState:
        """The group after these members have left or died."""
        kept = {name: member for name, member in self.members.items() if name not in member_ids}
        return self if len(kept) == len(self.members) else self._with(kept, partitions)

    def rebalanced(self, partitions: Partitions) -> GroupState:
        """The group with the present partitions; unchanged if they make no difference."""
        changed = self._with(dict(self.members), partitions)
        return self if changed.target == self.target else changed

    def _with(self, members: dict[str, GroupMember], partitions: Partitions) -> GroupState:
        wanted = {name: member.topics for name, member in members.items()}
        strategy = next((member.strategy for member in members.values()), "range")
        return GroupState(self.generation + 1, members, assign(strategy, wanted, partitions))

    # --- their partitions ---------------------------------------------------------------------------------------------

    def surplus(self, member_id: str) -> frozenset[TopicPartition]:
        """What a member owns and must give up."""
        return self.members[member_id].owned - frozenset(self.target[member_id])

    def due(self, member_id: str) -> frozenset[TopicPartition]:
        """The partitions that a member should have and may take, because no other member owns them."""
        wanted = frozenset(self.target[member_id]) - self.members[member_id].owned
        for member in self.members.values() if wanted else ():
            wanted -= member.owned
        return wanted

    def is_settled(self, member_id: str) -> bool:
        """Whether a member owns exactly its target."""
        return self.members[member_id].owned == frozenset(self.target[member_id])

    def released(self, member_id: str, partitions: Iterable[TopicPartition]) -> GroupState:
        return self._owning(member_id, self.members[member_id].owned - frozenset(partitions))

    def taken(self, member_id: str, partitions: Iterable[TopicPartition]) -> GroupState:
        return self._owning(member_id, self.members[member_id].owned | frozenset(partitions))

    def _owning(self, member_id: str, owned: frozenset[TopicPartition]) -> GroupState:
        member = replace(self.members[member_id], owned=owned)
        return replace(self, members={**self.members, member_id: member})

    def check(self) -> None:
        """Asserts that no partition has two owners, and that the target names each one once."""
        for shares in ([member.owned for member in self.members.values()], list(self.target.values())):
            every = [owner for share in shares for owner in share]
            assert len(set(every)) == len(every), f"a partition twice in {every}"
        assert self.target.keys() == self.members.keys(), f"{self.target.keys()}, {self.members.keys()}"
