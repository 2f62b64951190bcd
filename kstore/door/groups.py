"""``Groups``: the groups of a door: their locks, the requests that wait, sessions that end, and their offsets.

The rules are in ``group.py``. A group has members of one kind: its name is claimed from the store while clients are
members, and the store's own consumers and commits are refused; a client is refused while those have members.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kstore.clock import Clock
from kstore.door import errors as codes
from kstore.door.group import Answer, ClassicMember, Group, GroupPhase, Join, Joined, Leaver, Sync, Synced
from kstore.door.waiting import Waiter
from kstore.errors import KstoreError
from kstore.files._locks import Attempt, OwnedLock, block
from kstore.files.paths import TopicPartition
from kstore.files.threads import start_thread
from kstore.messages._wire import MessageReader
from kstore.messages.primitives import MessageError
from kstore.messages.schema import load_messages
from kstore.store import Store, parts_of
from kstore.transactions.group_records import OffsetAndMetadata

logger = logging.getLogger(__name__)

# Groups without members stay for their state and type, which tools show; the oldest of them go.
IDLE_GROUPS_MAX = 10_000
# What the members of all groups have sent, at most; groups that are there then may still be assigned partitions.
MEMBER_BYTES_MAX = 40 << 20
SYNC_BYTES = 10 << 20
# A waiting request looks at least this often.
LOOK_SECONDS = 60.0
# Kafka: offsets.retention.check.interval.ms.
EXPIRY_SECONDS = 600.0
# The most partitions whose commits a read-only door keeps.
KEPT_MAX = 20_000
# The kind of groups that consumers have, and how those of the store itself are shown.
CONSUMER = "consumer"
# The state of a group that does not exist.
DEAD = "Dead"
SUBSCRIPTION = load_messages("consumer")["ConsumerProtocolSubscription"]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits for its answer. The group's lock guards ``answer``."""

    waiter: Waiter
    answer: Joined | Synced | None = None


@dataclass(slots=True, eq=False)
class _Entry:
    """One group; the lock guards it."""

    group: Group
    lock: OwnedLock = field(default_factory=OwnedLock)
    # A lower bound of the group's deadline: what members do mostly moves it up.
    due_at: float = math.inf
    # When the last member left.
    left_at: float = -math.inf
    byte_count: int = 0
    is_claimed: bool = False
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """What tools show of a group; without a protocol unless it is stable."""

    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[ClassicMember, ...] = ()


class Groups:
    """The groups of one door. Thread-safe.

    In a read-only store, what clients commit is kept in memory.
    """

    def __init__(self, store: Store, *, rebalance_delay_ms: int = 0, offsets_retention_minutes: int = 0) -> None:
        parts = parts_of(store)
        self._clock: Clock = parts.topics.clock
        self._library = parts.groups
        self._read_only = store.read_only
        self._delay_seconds = rebalance_delay_ms / 1000
        # Guards the following. Taken while a group's lock is held, never the other way round.
        self._mutex = OwnedLock()
        self._entries: dict[str, _Entry] = {}
        self._byte_count = 0
        # What was committed through the door of a read-only store.
        self._kept: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self._is_closed = False
        self._retention_seconds = offsets_retention_minutes * 60.0
        self._began_at = self._clock.monotonic()
        self._expiry_at = self._began_at + EXPIRY_SECONDS if offsets_retention_minutes else math.inf

    # --- members ----------------------------------------------------------------------------------------------------

    def join(self, name: str, request: Join, waiter: Waiter) -> Joined:
        """A client joins; returns when its answer is there."""
        waiting = _Waiting(waiter)
        with self._held(name, create=not request.member_id) as entry:
            if entry is None:
                return Joined(self._absent(codes.UNKNOWN_MEMBER_ID), request.member_id)
            if not self._claim(entry):
                return Joined(codes.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
            member = entry.group.members.get(request.member_id)
            more = _size_of(request.protocols) - (0 if member is None else _size_of(member.protocols))
            # A member that joins again has its place, unless it has grown.
            if (member is None or more > 0) and self._byte_count + more > MEMBER_BYTES_MAX:
                answers = [Answer(waiting, Joined(codes.GROUP_MAX_SIZE_REACHED, ""))]
            else:
                answers = entry.group.join(waiting, request, self._clock.monotonic())
            self._settle(entry, answers)
        answer = self._answer(entry, waiting)
        return answer if isinstance(answer, Joined) else Joined(codes.COORDINATOR_NOT_AVAILABLE, request.member_id)

    def sync(self, name: str, request: Sync, waiter: Waiter) -> Synced:
        """A client asks for its assignment; returns when that is there."""
        waiting = _Waiting(waiter)
        with self._held(name) as entry:
            if entry is None:
                return Synced(self._absent(codes.UNKNOWN_MEMBER_ID))
            if self._byte_count + sum(map(len, request.assignments.values())) > MEMBER_BYTES_MAX + SYNC_BYTES:
                return Synced(codes.GROUP_MAX_SIZE_REACHED)
            self._settle(entry, entry.group.sync(waiting, request, self._clock.monotonic()))
        answer = self._answer(entry, waiting)
        return answer if isinstance(answer, Synced) else Synced(codes.COORDINATOR_NOT_AVAILABLE)

    def heartbeat(self, name: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """A member lives. Returns the error to answer."""
        with self._held(name) as entry:
            if entry is None:
                return self._absent(codes.UNKNOWN_MEMBER_ID)
            return entry.group.heartbeat(member_id, instance_id, generation, self._clock.monotonic())

    def leave(self, name: str, leavers: Sequence[Leaver]) -> list[int]:
        """Members leave. Returns the error for each."""
        with self._held(name) as entry:
            if entry is None:
                return [self._absent(codes.UNKNOWN_MEMBER_ID)] * len(leavers)
            errors, answers = entry.group.leave(leavers, self._clock.monotonic())
            self._settle(entry, answers)
            return errors

    def run_due(self, _now: float = 0.0) -> None:
        """Ends sessions and waits that are over, by the store's clock. A group that is busy gets its turn next time."""
        now = self._clock.monotonic()
        with self._mutex:
            due = [entry for entry in self._entries.values() if entry.due_at <= now]
        for entry in due:
            with Attempt(entry.lock) as is_mine:
                if is_mine and not entry.is_gone:
                    self._settle(entry, entry.group.run_due(now))
        if now >= self._expiry_at and not self._read_only:
            self._expiry_at = now + EXPIRY_SECONDS
            # Not here: it reads and writes files.
            start_thread(self.expire_offsets, name="kstore-door-offsets")

    def close(self) -> None:
        """Answers all waiting requests; from now on there are no groups."""
        with self._mutex:
            self._is_closed = True
            entries = list(self._entries.values())
            self._entries.clear()
        for entry in entries:
            with entry.lock:
                self._deliver(entry.group.dismiss(codes.COORDINATOR_NOT_AVAILABLE))
                entry.is_gone = True
                self._unclaim(entry)

    # --- offsets ----------------------------------------------------------------------------------------------------

    def prepare(self, name: str) -> None:
        """Makes the place on disk for a group's offsets. Raises: as ``GroupOffsets.commit``."""
        if not self._read_only:
            self._library.offsets.place(name)

    def commit(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> int:
        """Commits offsets, if this client may: nothing comes between the check and the commit. Returns the error.

        Raises: as ``GroupOffsets.commit``.
        """
        is_known = generation < 0 or (name not in self._entries and bool(self.committed(name)))
        with self._held(name, create=is_known) as entry:
            if entry is None:
                return self._absent(codes.GROUP_ID_NOT_FOUND)
            if error := entry.group.commit_error(member_id, instance_id, generation, self._clock.monotonic()):
                return error
            if not entry.group.members and self._library.has_members(name):
                return codes.UNKNOWN_MEMBER_ID
            if not offsets:
                return 0
            if self._read_only:
                with self._mutex:
                    if sum(map(len, self._kept.values())) + len(offsets) > KEPT_MAX:
                        return codes.POLICY_VIOLATION
                    self._kept.setdefault(name, {}).update(offsets)
            else:
                self._library.offsets.commit(name, offsets, is_claimant=True)
            return 0

    def committed(self, name: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed. Raises: StorageError."""
        found = self._library.offsets.committed(name)
        with self._mutex:
            return {**found, **self._kept.get(name, {})}

    def unstable(self, name: str) -> set[TopicPartition]:
        """The partitions with a commit in an open transaction."""
        return self._library.offsets.unstable(name)

    def forget(self, name: str, partitions: Iterable[TopicPartition]) -> tuple[int, set[str]]:
        """Removes committed offsets, except those of topics that members read.

        Returns the error, and the topics that were left alone; without members of the consumer protocol a group cannot
        say which it reads, so then all of it is refused. Raises: as ``GroupOffsets.forget``.
        """
        with self._held(name) as entry:
            known = self.committed(name)
            if entry is None and not known:
                return self._absent(codes.GROUP_ID_NOT_FOUND), set()
            if self._library.has_members(name):
                return codes.NON_EMPTY_GROUP, set()
            wanted = {owner for owner in partitions if owner in known}
            read: set[str] = set()
            if entry is not None and entry.group.phase != GroupPhase.EMPTY:
                if entry.group.protocol_type != CONSUMER:
                    return codes.NON_EMPTY_GROUP, set()
                subscribed = subscribed_topics(entry.group)
                read = {owner.topic for owner in partitions if subscribed is None or owner.topic in subscribed}
            self._library.offsets.forget(name, [owner for owner in wanted if owner.topic not in read], is_claimant=True)
            return 0, read

    def delete(self, name: str) -> int:
        """Removes a group without members, and what it has committed. Returns the error.

        Raises: as ``GroupOffsets.forget``.
        """
        with self._held(name) as entry:
            known = self.committed(name)
            if entry is None and not known:
                return self._absent(codes.GROUP_ID_NOT_FOUND)
            if (entry is not None and entry.group.phase != GroupPhase.EMPTY) or self._library.has_members(name):
                return codes.NON_EMPTY_GROUP
            self._library.offsets.forget(name, known, is_claimant=True)
            if entry is not None:
                entry.is_gone = True
                with self._mutex:
                    self._entries.pop(name, None)
                    # What the ids took that were given out.
                    self._byte_count -= entry.byte_count
            return 0

    def expire_offsets(self) -> None:
        """Removes what groups without members have committed, if all of this is longer ago than the retention: the
        commit, their last member, and the opening of the door. A failure is logged."""
        try:
            for name in self._library.offsets.groups():
                self._expire(name)
        except KstoreError as error:
            if not self._is_closed:
                logger.warning("committed offsets that are too old cannot be removed: %s", error)

    def _expire(self, name: str) -> None:
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        with self._held(name, create=True) as entry:
            if entry is None or entry.group.phase != GroupPhase.EMPTY or self._library.has_members(name):
                return
            if now - max(self._began_at, entry.left_at) < self._retention_seconds:
                return
            unstable = self.unstable(name)
            old = [
                owner
                for owner, committed in self._library.offsets.committed(name).items()
                if now_ms - committed.commit_timestamp >= self._retention_seconds * 1000 and owner not in unstable
            ]
            self._library.offsets.forget(name, old, is_claimant=True)
            if old:
                logger.info("group %r: %d committed offsets were too old and are removed", name, len(old))

    # --- what tools show --------------------------------------------------------------------------------------------

    def describe(self, name: str) -> GroupDescription:
        """The present state of a group; "Dead" for one that does not exist. Raises: StorageError."""
        with self._held(name) as entry:
            if entry is not None and (entry.group.members or not self._library.has_members(name)):
                group = entry.group
                is_stable = group.phase == GroupPhase.STABLE
                return GroupDescription(
                    group.phase,
                    group.protocol_type or "",
                    (is_stable and group.protocol) or "",
                    tuple(
                        replace(member) if is_stable else replace(member, assignment=b"", protocols=())
                        for member in group.members.values()
                    ),
                )
        if self._library.has_members(name):
            return GroupDescription(GroupPhase.STABLE, CONSUMER)
        return GroupDescription(GroupPhase.EMPTY if self.committed(name) else DEAD)

    def counts(self) -> tuple[int, int]:
        """How many groups have clients as members, and how many members these are."""
        with self._mutex:
            members = [len(entry.group.members) for entry in self._entries.values()]
        return sum(map(bool, members)), sum(members)

    def names(self) -> list[str]:
        """All groups: those of clients, of the store's own consumers, and those that have committed offsets.

        Raises: StorageError.
        """
        with self._mutex:
            found = {*self._entries, *self._kept}
        return sorted(found.union(self._library.offsets.groups(), self._library.names()))

    # --- locks, and what waits --------------------------------------------------------------------------------------

    @block
    def _held(self, name: str, *, create: bool = False) -> Iterator[_Entry | None]:
        """A block with the group's lock; None if the group does not exist."""
        while (entry := self._entry(name, create=create)) is not None:
            with entry.lock:
                if not entry.is_gone:
                    yield entry
                    return
        yield None

    def _entry(self, name: str, *, create: bool) -> _Entry | None:
        with self._mutex:
            found = self._entries.get(name)
            if found is None and create and not self._is_closed:
                self._drop_idle()
                group = Group(name, new_id=_new_id, initial_delay_seconds=self._delay_seconds)
                found = self._entries[name] = _Entry(group)
            return found

    def _drop_idle(self) -> None:
        """Makes room for one more group. Needs the mutex."""
        if len(self._entries) < IDLE_GROUPS_MAX:
            return
        for name, entry in self._entries.items():
            with Attempt(entry.lock) as is_mine:
                if is_mine and entry.group.is_idle:
                    entry.is_gone = True
                    del self._entries[name]
                    self._kept.pop(name, None)
                    return

    def _claim(self, entry: _Entry) -> bool:
        """Whether the group may have clients as members. Needs its lock."""
        if not entry.is_claimed and not self._read_only:
            if not self._library.claim(entry.group.name):
                logger.warning(
                    "group %r has consumers of this process as members: a client that wants to join is refused",
                    entry.group.name,
                )
                return False
            entry.is_claimed = True
        return True

    def _unclaim(self, entry: _Entry) -> None:
        if entry.is_claimed:
            entry.is_claimed = False
            entry.left_at = self._clock.monotonic()
            self._library.unclaim(entry.group.name)

    def _settle(self, entry: _Entry, answers: Sequence[Answer]) -> None:
        """After an event: delivers its answers, and notes what has changed. Needs the group's lock."""
        self._deliver(answers)
        group = entry.group
        entry.due_at = group.deadline
        before, entry.byte_count = entry.byte_count, group.byte_count
        with self._mutex:
            self._byte_count += entry.byte_count - before
        if not group.members:
            self._unclaim(entry)

    def _deliver(self, answers: Iterable[Answer]) -> None:
        for ticket, value in answers:
            assert isinstance(ticket, _Waiting)
            ticket.answer = value
            ticket.waiter.wake()

    def _answer(self, entry: _Entry, waiting: _Waiting) -> Joined | Synced | None:
        """The answer, when it is there; None if the peer has left before."""
        while waiting.answer is None and not waiting.waiter.gone:
            seconds = min(entry.due_at - self._clock.monotonic(), LOOK_SECONDS)
            waiting.waiter.wait(time.monotonic() + seconds)
            with entry.lock:
                if waiting.answer is None and not entry.is_gone:
                    self._settle(entry, entry.group.run_due(self._clock.monotonic()))
        return waiting.answer

    def _absent(self, error: int) -> int:
        return codes.COORDINATOR_NOT_AVAILABLE if self._is_closed else error


def subscribed_topics(group: Group) -> set[str] | None:
    """The topics that the members read; None if one does not say it in a form that is known."""
    topics: set[str] = set()
    for member in group.members.values():
        try:
            reader = MessageReader(member.metadata(group.protocol))
            version = min(reader.int16(), SUBSCRIPTION.versions.highest)
            found = SUBSCRIPTION.read(reader, version)["topics"]
        except MessageError:
            return None
        assert isinstance(found, list)
        topics.update(map(str, found))
    return topics


def _new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4()}"


def _size_of(protocols: Iterable[tuple[str, bytes]]) -> int:
    return sum(len(metadata) for _, metadata in protocols)
