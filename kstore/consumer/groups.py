"""How the members of a group share its state, and what each of them does with it.

A ``GroupBox`` keeps the ``GroupState`` of one group: in memory for the consumers of one process (``MemoryGroup``), in
files for those of several (``group_files``). A ``Membership`` is one consumer's side of it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from kstore.clock import Clock
from kstore.consumer.group_state import GroupMember, GroupState
from kstore.errors import CommitFailedError, GroupInUseError, TopicNotFoundError
from kstore.files._locks import Condition, block
from kstore.files.paths import TopicPartition

NOTHING: frozenset[TopicPartition] = frozenset()
# A member checks this many others at each heartbeat, in turn: a check must not cost more in a larger group.
LOOK_COUNT = 16


class Draft:
    """A group's state while one member changes it."""

    __slots__ = ("state",)

    def __init__(self, state: GroupState) -> None:
        self.state: GroupState = state


class GroupBox(Protocol):
    """The state of one group, and which members live. Thread-safe."""

    @property
    def name(self) -> str: ...

    @property
    def look_seconds(self) -> float:
        """How often a member must check whether the state has changed, since there is no notification."""
        ...

    def look(self) -> tuple[int, GroupState]:
        """The current state, with a number that changes whenever the state may have changed."""
        ...

    def changing(self) -> AbstractContextManager[Draft]:
        """A block in which no other member changes the state, or commits; the draft at its end is the new state.

        A member that waits for this blocks new commits: it waits only for those in progress.
        """
        ...

    def committing(self) -> AbstractContextManager[GroupState]:
        """A block in which no member changes the state; others may commit."""
        ...

    def enter(self, member_id: str, wake: Callable[[], None]) -> None:
        """Registers a living member; ``wake`` is called when the state changes. Raises: GroupInUseError."""
        ...

    def beat(self, member_id: str) -> None:
        """Notes that the member lives."""
        ...

    def dead(self, members: Mapping[str, GroupMember]) -> set[str]:
        """Those of ``members`` that are dead, or have not beaten for longer than allowed."""
        ...

    def exit(self, member_id: str) -> None:
        """Notes that the member is dead. May be called from anywhere, even by the garbage collector."""
        ...

    @property
    def exited(self) -> Set[str]:
        """Members that are known to be dead without a check, because they were in this process."""
        ...


class MemoryGroup:
    """A group whose members are all in this process."""

    look_seconds: float = float("inf")

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        # Guards the following. Reentrant: a garbage collection inside may end a member's life.
        self._lock = threading.RLock()
        self._changed = Condition(self._lock)
        self._state = GroupState()
        self._version = 0
        self._changing_count = 0
        # One token for each commit in progress.
        self._committing: set[object] = set()
        # For each living member: how to wake it, and the time of its last beat.
        self._wakes: dict[str, Callable[[], None]] = {}
        self._beats: dict[str, float] = {}
        self._exited: frozenset[str] = frozenset()
        self._is_claimed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def has_members(self) -> bool:
        """Whether a member lives, or enters now."""
        with self._lock:
            members = self._state.members
            return bool((members.keys() | self._wakes.keys()) - self.dead(members))

    def claim(self) -> bool:
        """Keeps all members out from now on, and returns True; or False, if it has a living one.

        It waits for the commits in progress. A member that was silent for too long is dropped, as by another member.
        """
        with self.changing() as draft:
            if self.has_members:
                return False
            draft.state = draft.state.without(set(draft.state.members), {})
            self._is_claimed = True
            self._wakes.clear()
            return True

    def unclaim(self) -> None:
        """Lets members in again."""
        with self._lock:
            self._is_claimed = False

    def look(self) -> tuple[int, GroupState]:
        return self._version, self._state

    @block
    def changing(self) -> Iterator[Draft]:
        with self._lock:
            self._changing_count += 1
            try:
                self._changed.wait_for(lambda: not self._committing)
                draft = Draft(self._state)
                yield draft
                if draft.state is not self._state:
                    self._state = draft.state
                    self._exited &= self._state.members.keys()
                    self._tell()
            finally:
                self._changing_count -= 1
                self._changed.notify_all()

    @block
    def committing(self) -> Iterator[GroupState]:
        token = object()
        try:
            with self._lock:
                self._changed.wait_for(lambda: not self._changing_count)
                self._committing.add(token)
                state = self._state
            yield state
        finally:
            try:
                self._committed(token)
            except BaseException:
                self._committed(token)  # an interrupt came before the commit ended
                raise

    def _committed(self, token: object) -> None:
        """Lets changes continue; a second call does nothing."""
        with self._lock:
            self._committing.discard(token)
            self._changed.notify_all()

    def _tell(self) -> None:
        self._version += 1
        for wake in list(self._wakes.values()):
            wake()

    def enter(self, member_id: str, wake: Callable[[], None]) -> None:
        with self._lock:
            if self._is_claimed:
                raise GroupInUseError(self._name)
            self._beats[member_id] = self._clock.monotonic()
            self._wakes[member_id] = wake

    def beat(self, member_id: str) -> None:
        if member_id in self._beats:
            self._beats[member_id] = self._clock.monotonic()

    def dead(self, members: Mapping[str, GroupMember]) -> set[str]:
        now = self._clock.monotonic()
        with self._lock:
            return {
                name
                for name, member in members.items()
                if name not in self._wakes or now - self._beats[name] > member.limit_ms / 1000
            }

    def exit(self, member_id: str) -> None:
        with self._lock:
            self._wakes.pop(member_id, None)
            self._beats.pop(member_id, None)
            self._exited |= {member_id}
            self._tell()

    @property
    def exited(self) -> Set[str]:
        return self._exited


class GroupChange(NamedTuple):
    """The change of a member's partitions: ``lost`` are others' already, ``surplus`` must be given up."""

    lost: frozenset[TopicPartition] = NOTHING
    surplus: frozenset[TopicPartition] = NOTHING


class Membership:
    """One consumer as a member of its group; for one thread."""

    def __init__(
        self,
        box: GroupBox,
        client_id: str,
        strategy: str,
        clock: Clock,
        *,
        partitions_of: Callable[[str], Sequence[int]],
        wake: Callable[[], None],
        heartbeat_seconds: float,
        limit_ms: int,
    ) -> None:
        self._box = box
        self._client_id = client_id
        self._strategy = strategy
        self._clock = clock
        self._partitions_of = partitions_of
        self._wake = wake
        self._heartbeat_seconds = heartbeat_seconds
        self._limit_ms = limit_ms
        self._version = -1
        self._look_at = 0.0
        # The next check of other members begins after this one.
        self._looked_at = ""
        self._topics: tuple[str, ...] = ()
        self.member_id: str = ""
        self.generation: int = -1
        self.owned: frozenset[TopicPartition] = NOTHING
        # Whether it owns exactly its target.
        self.is_settled: bool = False

    @property
    def group(self) -> str:
        return self._box.name

    @property
    def wait_seconds(self) -> float:
        """How long it may sleep before it must check the others."""
        return min(self._heartbeat_seconds, self._limit_ms / 2000, self._box.look_seconds)

    def join(self, topics: Collection[str]) -> None:
        """Joins the group, or changes the topics that it wants. Raises: ConfigError, GroupInUseError, StorageError."""
        self._topics = tuple(sorted(topics))
        try:
            if not self.member_id:
                self.member_id = f"{self._client_id}-{uuid.uuid4()}"
                self._box.enter(self.member_id, self._wake)
            with self._box.changing() as draft:
                draft.state = self._without_dead(draft.state)
                # A member that was declared dead since its last check owns nothing: others may have taken its
                # partitions.
                owned = self.owned if self.member_id in draft.state.members else NOTHING
                me = GroupMember(self._client_id, self._topics, self._strategy, self._limit_ms, owned)
                draft.state = draft.state.joined(self.member_id, me, self._partitions(draft.state))
                self.is_settled = False
            self.owned = owned
        except BaseException:
            self._box.exit(self.member_id)
            self.member_id = ""
            raise

    def sync(self, topics: Collection[str], *, has_changed: bool = False) -> GroupChange:
        """Reports that this member lives, and reads the state of the group.

        ``has_changed``: the partitions may differ from before.
        """
        self._box.beat(self.member_id)
        now = self._clock.monotonic()
        version, state = self._box.look()
        if version == self._version and now < self._look_at and not has_changed and tuple(topics) == self._topics:
            return GroupChange()
        self._look_at = now + self._heartbeat_seconds
        if self.member_id in state.members and (has_changed or self._box.dead(self._suspects(state))):
            with self._box.changing() as draft:
                found = self._without_dead(draft.state)
                draft.state = found.rebalanced(self._partitions(found)) if has_changed else found
            version, state = self._box.look()
        lost = NOTHING
        if self.member_id and self.member_id not in state.members:
            # The others have declared it dead.
            lost, self.owned = self.owned, NOTHING
            self._box.exit(self.member_id)
            self.member_id = ""
        if not self.member_id or tuple(sorted(topics)) != self._topics:
            before = self.owned
            self.join(topics)
            lost |= before - self.owned
            version, state = self._box.look()
        self._version = version
        self.generation = state.generation
        if self.member_id not in state.members:
            self._version = -1  # another member was faster: the next check shows how
            return GroupChange(lost)
        # The group's state is what counts: a call that failed may have changed it.
        self.owned = state.members[self.member_id].owned
        self.is_settled = state.is_settled(self.member_id)
        return GroupChange(lost, state.surplus(self.member_id))

    def _suspects(self, state: GroupState) -> dict[str, GroupMember]:
        """Some of the other members, the next ones at each call, and those that are known to be dead.

        The first are those that joined after this one, so members that check at the same time check different members,
        and together all of them.
        """
        names = list(state.members)
        after = self._looked_at if self._looked_at in state.members else self.member_id
        start = names.index(after) + 1
        chosen = (names[start:] + names[:start])[:LOOK_COUNT] if len(names) > LOOK_COUNT else names
        self._looked_at = chosen[-1]
        chosen = [*chosen, *(state.members.keys() & self._box.exited)]
        return {name: state.members[name] for name in chosen if name != self.member_id}

    def _others(self, state: GroupState) -> dict[str, GroupMember]:
        return {name: member for name, member in state.members.items() if name != self.member_id}

    def _without_dead(self, state: GroupState) -> GroupState:
        gone = self._box.dead(self._others(state))
        return state.without(gone, self._partitions(state)) if gone else state

    def _partitions(self, state: GroupState) -> dict[str, Sequence[int]]:
        wanted = {topic for member in state.members.values() for topic in member.topics}
        found: dict[str, Sequence[int]] = {}
        for topic in wanted.union(self._topics):
            try:
                found[topic] = self._partitions_of(topic)
            except TopicNotFoundError:
                continue
        return found

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Gives partitions up: other members may take them from now on."""
        with self._box.changing() as draft:
            if self.member_id in draft.state.members:
                draft.state = draft.state.released(self.member_id, partitions)
        self.owned -= frozenset(partitions)

    def take(self) -> frozenset[TopicPartition]:
        """Takes the partitions of its target that no other member owns; returns the new ones."""
        _, state = self._box.look()
        if self.member_id not in state.members or not state.due(self.member_id):
            return NOTHING
        with self._box.changing() as draft:
            if self.member_id not in draft.state.members:
                return NOTHING
            gained = draft.state.due(self.member_id)
            draft.state = draft.state.taken(self.member_id, gained)
            self.is_settled = draft.state.is_settled(self.member_id)
        self.owned |= gained
        return gained

    @block
    def fenced(self, partitions: Collection[TopicPartition]) -> Iterator[None]:
        """A block in which ``partitions`` belong to this member. Raises: CommitFailedError if they do not."""
        with self._box.committing() as state:
            me = state.members.get(self.member_id)
            if me is None:
                raise CommitFailedError(
                    f"{self._client_id} is not in group {self.group!r} any more: it asked for nothing for so long that "
                    "the others took it for dead (max_poll_interval_ms)"
                )
            if others := sorted(frozenset(partitions) - me.owned):
                raise CommitFailedError(
                    f"{self._client_id} does not have {others[0]} in generation {state.generation} of group "
                    f"{self.group!r}: its offset is another member's to commit"
                )
            yield

    def leave(self) -> None:
        """Leaves the group at once, so that the others need not wait."""
        if not self.member_id:
            return
        try:
            with self._box.changing() as draft:
                draft.state = draft.state.without({self.member_id}, self._partitions(draft.state))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Counts as dead from now on; the others notice soon."""
        name, self.member_id, self.owned = self.member_id, "", NOTHING
        if name:
            self._box.exit(name)
