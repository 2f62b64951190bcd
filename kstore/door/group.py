"""``Group``: the members of one consumer group, by the rules of Kafka's classic protocol. No I/O, no threads, no clock.

    Empty                no members; anyone may commit offsets
    PreparingRebalance   waits until the members have joined again, or until the time for that is over
    CompletingRebalance  the members know the generation, and wait for the leader's assignments
    Stable               the assignments are known

Each call is one event at the time ``now``, in monotonic seconds, and returns the answers that it makes possible: some
are for requests that waited. A request that waits is a *ticket*, any object of the caller. Every ticket is answered
exactly once, by a later event or by ``run_due``, which the caller owes at ``deadline``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kstore.door import errors as codes

# How long a new member's join may wait. It cannot send heartbeats yet, so its session tells nothing (as Kafka).
NEW_MEMBER_SECONDS = 300.0
NEVER = math.inf
# About what a member takes without what it has sent.
MEMBER_SIZE = 1000


class GroupPhase(StrEnum):
    """The state of a group, in Kafka's words."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Join(NamedTuple):
    """A request to join. ``member_id`` is "" for a new member, ``instance_id`` the name of a static one.

    ``protocols`` are names with the member's metadata, best first. ``is_two_phase``: a new member is first told its id,
    and joins with that. ``can_skip_assignment``: the member understands ``Joined.skip_assignment``.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_seconds: float
    rebalance_seconds: float
    is_two_phase: bool = True
    can_skip_assignment: bool = True


class Sync(NamedTuple):
    """A request for the member's assignment; from the leader with those of all. A type or name of None is unchecked."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = {}


class Leaver(NamedTuple):
    """A member that leaves: by its id, or by the name of a static one without an id."""

    member_id: str
    instance_id: str | None = None


class Joined(NamedTuple):
    """The answer to a join; only the leader gets ``members``: id, instance id, metadata."""

    error: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The answer to a sync."""

    error: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Answer(NamedTuple):
    """What the request of ``ticket`` gets."""

    ticket: object
    value: Joined | Synced


@dataclass(slots=True, eq=False)
class ClassicMember:
    """One member. ``joining`` and ``syncing`` are the tickets of its waiting requests, None without one."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocols: tuple[tuple[str, bytes], ...]
    session_seconds: float
    rebalance_seconds: float
    expires_at: float
    assignment: bytes = b""
    joining: object = None
    syncing: object = None
    # It has not been told a generation yet.
    is_new: bool = True
    has_synced: bool = False

    def metadata(self, protocol: str | None) -> bytes:
        """What the member sent for ``protocol``."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Iterable[str]) -> str:
        """The candidate that the member likes best."""
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def deadline(self) -> float:
        """When it is dead unless it is heard of. A waiting request keeps it alive, but that of a new one not forever:
        a client that was cut off and tries again would leave more and more of them."""
        return self.expires_at if self.is_new or (self.joining is None and self.syncing is None) else NEVER


class Group:
    """One group. For one thread at a time."""

    def __init__(
        self, name: str, *, new_id: Callable[[str], str], initial_delay_seconds: float = 0.0, size_max: int = 10_000
    ) -> None:
        """An empty group.

        Args:
            new_id: makes a unique member id that begins with its argument.
            initial_delay_seconds: how long an empty group waits for more members after each one, so that its first
                generation has them all.
            size_max: members, and ids that were given out, at most.
        """
        self.name = name
        self.phase: GroupPhase = GroupPhase.EMPTY
        self.generation: int = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str = ""
        # By id, in the order in which they came.
        self.members: dict[str, ClassicMember] = {}
        self._new_id = new_id
        self._delay_seconds = initial_delay_seconds
        self._size_max = size_max
        self._static: dict[str, str] = {}
        # Ids that were given out and not used yet, with the ends of their times.
        self._pending: dict[str, float] = {}
        # When the wait for joins, or for syncs, ends.
        self._phase_ends_at = NEVER
        # How much longer an empty group's first rebalance may be extended, and whether someone came since the
        # last extension. None in other rebalances.
        self._extendable_seconds: float | None = None
        self._has_newcomers = False

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """When ``run_due`` is due; ``math.inf`` if nothing is."""
        times = [self._phase_ends_at, *self._pending.values()]
        return min(times + [member.deadline for member in self.members.values()])

    @property
    def byte_count(self) -> int:
        """Roughly the memory that the members take."""
        sent = sum(
            len(member.assignment) + sum(len(metadata) for _, metadata in member.protocols)
            for member in self.members.values()
        )
        return sent + MEMBER_SIZE * (len(self.members) + len(self._pending))

    @property
    def is_idle(self) -> bool:
        """Whether it has no members, and expects none."""
        return not self.members and not self._pending and self.phase == GroupPhase.EMPTY

    def error_of(self, member_id: str, instance_id: str | None) -> int:
        """0 for a member; what a broker answers to anyone else."""
        if instance_id is not None:
            current = self._static.get(instance_id)
            if current is not None and current != member_id:
                return codes.FENCED_INSTANCE_ID
            if current is None:
                return codes.UNKNOWN_MEMBER_ID
        return 0 if member_id in self.members else codes.UNKNOWN_MEMBER_ID

    # --- joining ----------------------------------------------------------------------------------------------------

    def join(self, ticket: object, request: Join, now: float) -> list[Answer]:
        """A client joins, or joins again."""
        member = self.members.get(request.member_id)
        if not self._has_room(request):
            return [Answer(ticket, Joined(codes.GROUP_MAX_SIZE_REACHED, ""))]
        if not self._supports(request):
            return [Answer(ticket, Joined(codes.INCONSISTENT_GROUP_PROTOCOL, request.member_id))]
        if not request.member_id:
            return self._join_unknown(ticket, request, now)
        if request.member_id in self._pending and request.instance_id is None:
            return self._add(ticket, request, request.member_id, now)
        if error := self.error_of(request.member_id, request.instance_id):
            return [Answer(ticket, Joined(error, request.member_id))]
        assert member is not None
        _renew(member, now)
        is_unchanged = member.protocols == request.protocols
        # In a stable group a leader joins to have partitions assigned again.
        if is_unchanged and (
            self.phase == GroupPhase.COMPLETING
            or (self.phase == GroupPhase.STABLE and request.member_id != self.leader)
        ):
            return [Answer(ticket, self._joined(member))]
        answers = self._update(ticket, member, request)
        return answers + self._rebalance(now)

    def _join_unknown(self, ticket: object, request: Join, now: float) -> list[Answer]:
        if request.instance_id is not None:
            member_id = self._new_id(request.instance_id)
            if request.instance_id in self._static:
                return self._replace(ticket, request, member_id, now)
            return self._add(ticket, request, member_id, now)
        member_id = self._new_id(request.client_id)
        if request.is_two_phase:
            self._pending[member_id] = now + request.session_seconds
            return [Answer(ticket, Joined(codes.MEMBER_ID_REQUIRED, member_id))]
        return self._add(ticket, request, member_id, now)

    def _has_room(self, request: Join) -> bool:
        is_known = request.member_id in self.members or request.member_id in self._pending
        return (
            is_known or request.instance_id in self._static or len(self.members) + len(self._pending) < self._size_max
        )

    def _supports(self, request: Join) -> bool:
        """Whether the group can have a member with these protocols."""
        names = {name for name, _ in request.protocols}
        if self.phase == GroupPhase.EMPTY:
            return bool(request.protocol_type and names)
        return request.protocol_type == self.protocol_type and not names.isdisjoint(self._candidates(names))

    def _candidates(self, names: set[str]) -> set[str]:
        """Those of ``names`` that all members have."""
        for member in self.members.values():
            names = names.intersection(name for name, _ in member.protocols)
        return names

    def _add(self, ticket: object, request: Join, member_id: str, now: float) -> list[Answer]:
        self._pending.pop(member_id, None)
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = ClassicMember(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.protocols,
            request.session_seconds,
            request.rebalance_seconds,
            now + NEW_MEMBER_SECONDS,
            joining=ticket,
        )
        if request.instance_id is not None:
            self._static[request.instance_id] = member_id
        self.leader = self.leader or member_id
        self._has_newcomers = True
        return self._rebalance(now)

    def _update(self, ticket: object, member: ClassicMember, request: Join) -> list[Answer]:
        """A member's join waits from now on, in place of an earlier one of its own."""
        answers = []
        if member.joining is not None:
            answers.append(Answer(member.joining, Joined(codes.REBALANCE_IN_PROGRESS, member.member_id)))
        member.joining = ticket
        member.protocols = request.protocols
        member.session_seconds, member.rebalance_seconds = request.session_seconds, request.rebalance_seconds
        member.client_id, member.client_host = request.client_id, request.client_host
        return answers

    def _replace(self, ticket: object, request: Join, member_id: str, now: float) -> list[Answer]:
        """A static member is there again, as after a restart: it takes its place over, with a new id."""
        assert request.instance_id is not None
        old_id = self._static[request.instance_id]
        member = self.members[old_id]
        answers = _dismissed(member, codes.FENCED_INSTANCE_ID, member.member_id)
        member.member_id = self._static[request.instance_id] = member_id
        # In the old one's place, so that the order stays.
        self.members = {one.member_id: one for one in self.members.values()}
        old_leader = self.leader
        if self.leader == old_id:
            self.leader = member_id
        _renew(member, now)
        self._update(ticket, member, request)
        if self.phase == GroupPhase.STABLE and self._elected() == self.protocol:
            member.joining, joined = None, self._joined(member)
            if not request.can_skip_assignment:
                # It must not take itself for the leader: that would assign again, and all others would not know.
                joined = joined._replace(leader=old_leader, members=())
            return [*answers, Answer(ticket, joined._replace(skip_assignment=bool(joined.members)))]
        return answers + self._rebalance(now)

    # --- a rebalance ------------------------------------------------------------------------------------------------

    def _rebalance(self, now: float) -> list[Answer]:
        """Begins one, or ends the present one if it waits for nothing more."""
        if self.phase == GroupPhase.PREPARING:
            return self._end_if_complete(now)
        answers = []
        for member in self.members.values() if self.phase == GroupPhase.COMPLETING else ():
            member.assignment = b""
            if member.syncing is not None:
                answers.append(Answer(member.syncing, Synced(codes.REBALANCE_IN_PROGRESS)))
                member.syncing = None
        is_first, self.phase = self.phase == GroupPhase.EMPTY, GroupPhase.PREPARING
        self._has_newcomers = False
        self._extendable_seconds = None
        seconds = self._rebalance_seconds
        if is_first and self._delay_seconds:
            self._extendable_seconds = max(seconds - self._delay_seconds, 0.0)
            seconds = self._delay_seconds
        self._phase_ends_at = now + seconds
        # The first member of an empty group does not wait for ids that were given out: they may never be used.
        return answers + (self._complete(now) if is_first and not self._delay_seconds else self._end_if_complete(now))

    @property
    def _rebalance_seconds(self) -> float:
        return max((member.rebalance_seconds for member in self.members.values()), default=0.0)

    def _end_if_complete(self, now: float) -> list[Answer]:
        if self._extendable_seconds is not None or (self._pending and self.members):
            return []
        is_complete = all(member.joining is not None for member in self.members.values())
        return self._complete(now) if is_complete else []

    def _end_wait(self, now: float) -> list[Answer]:
        """The time to join is over."""
        if self._extendable_seconds and self._has_newcomers:
            self._phase_ends_at = now + min(self._delay_seconds, self._extendable_seconds)
            self._extendable_seconds = max(self._extendable_seconds - self._delay_seconds, 0.0)
            self._has_newcomers = False
            return []
        return self._complete(now)

    def _complete(self, now: float) -> list[Answer]:
        """The next generation: all that have joined, and static members, which may be restarting."""
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._remove(member)
        joined = [member.member_id for member in self.members.values() if member.joining is not None]
        self._phase_ends_at = now + self._rebalance_seconds
        if self.members and not joined:
            # Until one of them comes back, or their sessions end. Not at once, whatever time they asked for.
            self._phase_ends_at = max(self._phase_ends_at, now + 1.0)
            return []
        self._extendable_seconds = None
        self.generation += 1
        if not self.members:
            self.phase, self.protocol, self._phase_ends_at = GroupPhase.EMPTY, None, NEVER
            return []
        if self.leader not in joined:
            self.leader = joined[0]
        self.phase, self.protocol = GroupPhase.COMPLETING, self._elected()
        answers = []
        for member in self.members.values():
            member.has_synced = False
            if member.joining is not None:
                answers.append(Answer(member.joining, self._joined(member)))
                member.joining, member.is_new = None, False
                _renew(member, now)
        return answers

    def _elected(self) -> str:
        """The protocol with most votes among those that all have; the leader's choice if there are several."""
        leader = self.members[self.leader]
        candidates = self._candidates({name for name, _ in leader.protocols})
        votes = Counter(member.vote(candidates) for member in self.members.values())
        most = max(votes.values())
        return leader.vote([name for name in candidates if votes[name] == most])

    def _joined(self, member: ClassicMember) -> Joined:
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                (one.member_id, one.instance_id, one.metadata(self.protocol)) for one in self.members.values()
            )
        return Joined(0, member.member_id, self.generation, self.protocol_type, self.protocol, self.leader, members)

    # --- assignments ------------------------------------------------------------------------------------------------

    def sync(self, ticket: object, request: Sync, now: float) -> list[Answer]:
        """A member asks for its assignment; the leader brings them all."""
        if error := self._sync_error(request):
            return [Answer(ticket, Synced(error))]
        member = self.members[request.member_id]
        member.has_synced = True
        _renew(member, now)
        answers = []
        if self.phase == GroupPhase.COMPLETING:
            if member.syncing is not None:
                answers.append(Answer(member.syncing, Synced(codes.REBALANCE_IN_PROGRESS)))
            member.syncing = ticket
            if member.member_id == self.leader:
                answers += self._assign(request.assignments, now)
        else:
            answers.append(Answer(ticket, self._synced(member)))
        if self.phase == GroupPhase.STABLE and all(one.has_synced for one in self.members.values()):
            self._phase_ends_at = NEVER
        return answers

    def _sync_error(self, request: Sync) -> int:
        if error := self._generation_error(request.member_id, request.instance_id, request.generation):
            return error
        given = (request.protocol_type, self.protocol_type), (request.protocol, self.protocol)
        if any(asked is not None and known is not None and asked != known for asked, known in given):
            return codes.INCONSISTENT_GROUP_PROTOCOL
        return codes.REBALANCE_IN_PROGRESS if self.phase == GroupPhase.PREPARING else 0

    def _generation_error(self, member_id: str, instance_id: str | None, generation: int) -> int:
        error = self.error_of(member_id, instance_id)
        return error or (codes.ILLEGAL_GENERATION if generation != self.generation else 0)

    def _assign(self, assignments: Mapping[str, bytes], now: float) -> list[Answer]:
        self.phase = GroupPhase.STABLE
        answers = []
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.syncing is not None:
                answers.append(Answer(member.syncing, self._synced(member)))
                member.syncing = None
                _renew(member, now)
        return answers

    def _synced(self, member: ClassicMember) -> Synced:
        return Synced(0, self.protocol_type, self.protocol, member.assignment)

    # --- signs of life ----------------------------------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> int:
        """A member lives. Returns the error to answer."""
        if error := self._generation_error(member_id, instance_id, generation):
            return error
        _renew(self.members[member_id], now)
        return codes.REBALANCE_IN_PROGRESS if self.phase == GroupPhase.PREPARING else 0

    def commit_error(
        self, member_id: str, instance_id: str | None, generation: int, now: float, *, is_transactional: bool = False
    ) -> int:
        """0 if this client may commit offsets now, which is also a sign of life; else the error to answer."""
        is_empty = self.phase == GroupPhase.EMPTY
        if generation < 0 and is_empty:
            return 0
        if generation < 0 and not member_id and instance_id is None:
            # The commit of a consumer without a membership, or of a tool.
            if not is_transactional:
                return codes.UNKNOWN_MEMBER_ID
        elif error := self._generation_error(member_id, instance_id, generation):
            return error
        if self.phase == GroupPhase.COMPLETING and not is_transactional:
            return codes.REBALANCE_IN_PROGRESS
        if member_id in self.members:
            _renew(self.members[member_id], now)
        return 0

    # --- the end of members -----------------------------------------------------------------------------------------

    def leave(self, leavers: Sequence[Leaver], now: float) -> tuple[list[int], list[Answer]]:
        """Members leave. Returns the error for each, and the answers."""
        answers: list[Answer] = []
        count = len(self.members)
        errors = [self._leave(leaver, answers) for leaver in leavers]
        if len(self.members) < count or self.phase == GroupPhase.PREPARING:
            answers += self._rebalance(now)
        return errors, answers

    def _leave(self, leaver: Leaver, answers: list[Answer]) -> int:
        member_id = leaver.member_id
        if not member_id and leaver.instance_id is not None:
            # A tool removes a static member by its name.
            member_id = self._static.get(leaver.instance_id, "")
        if self._pending.pop(member_id, None) is not None:
            return 0
        if error := self.error_of(member_id, leaver.instance_id):
            return error
        answers += self._remove(self.members[member_id])
        return 0

    def _remove(self, member: ClassicMember) -> list[Answer]:
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), "")
        # A broker does not repeat the id that is gone.
        return _dismissed(member, codes.UNKNOWN_MEMBER_ID, "")

    def run_due(self, now: float) -> list[Answer]:
        """What time alone brings: sessions that end, and waits that are over."""
        answers: list[Answer] = []
        late_ids = [member_id for member_id, until in self._pending.items() if until <= now]
        for member_id in late_ids:
            del self._pending[member_id]
        late = [member for member in self.members.values() if member.deadline <= now]
        is_over = self._phase_ends_at <= now
        if is_over and self.phase in (GroupPhase.COMPLETING, GroupPhase.STABLE):
            # They know the generation and have not asked for their assignments.
            late += [one for one in self.members.values() if not one.has_synced and one not in late]
            self._phase_ends_at, is_over = NEVER, False
        for member in late:
            answers += self._remove(member)
        if late or (late_ids and self.phase == GroupPhase.PREPARING):
            answers += self._rebalance(now)
        if is_over and self.phase == GroupPhase.PREPARING and self._phase_ends_at <= now:
            answers += self._end_wait(now)
        return answers

    def dismiss(self, error: int) -> list[Answer]:
        """Answers every waiting request with ``error``: the group's server ends."""
        return [answer for member in self.members.values() for answer in _dismissed(member, error, member.member_id)]


def _renew(member: ClassicMember, now: float) -> None:
    """The member was heard of."""
    member.expires_at = now + (NEW_MEMBER_SECONDS if member.is_new else member.session_seconds)


def _dismissed(member: ClassicMember, error: int, member_id: str) -> list[Answer]:
    """The answers to the waiting requests of a member that loses its place; ``member_id`` is in a join's."""
    answers = []
    if member.joining is not None:
        answers.append(Answer(member.joining, Joined(error, member_id)))
    if member.syncing is not None:
        answers.append(Answer(member.syncing, Synced(error)))
    member.joining = member.syncing = None
    return answers
