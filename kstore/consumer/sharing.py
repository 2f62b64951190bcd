"""What a consumer reads, with whom it shares that, and what it commits: all of ``Consumer`` except reading."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from kstore.consumer.config import ConsumerConfig, next_client_id
from kstore.consumer.consumer_metrics import ConsumerCounters
from kstore.consumer.deserializers import Deserializers
from kstore.consumer.fetching import PartitionReader
from kstore.consumer.groups import Membership
from kstore.consumer.of_store import StoreGroups
from kstore.consumer.offsets import Offsets
from kstore.consumer.pieces import Piece
from kstore.consumer.reading import Reading
from kstore.consumer.waiting import LogWaiter
from kstore.consumer.wanted import RebalanceListener, Wanted, topic_partition, topic_partitions
from kstore.errors import ClosedError, ConfigError, ConsumerStateError, KstoreError, WakeupError
from kstore.files.fork import ForkGuard
from kstore.files.paths import TopicPartition
from kstore.logs.topics import Topics
from kstore.messages.primitives import check_string

__all__ = ["GroupMetadata", "Sharing"]

logger = logging.getLogger(__name__)

# The longest sleep of a consumer before it checks whether there is something else to do.
WAIT_SECONDS_MAX = 60.0
# An open transaction decides about an offset: there is no notification of its end.
UNSTABLE_WAIT_SECONDS = 0.05


class GroupMetadata(NamedTuple):
    """A consumer's place in its group: ``member_id`` is "", ``generation`` -1 before it has joined."""

    group: str
    generation: int
    member_id: str
    client_id: str


class _TopicNews:
    """Receives changes of topics. The store holds it instead of the consumer, which may be forgotten."""

    def __init__(self, waiter: LogWaiter) -> None:
        self.has_changed = True
        self._waiter = waiter

    def note(self, topic: str) -> None:
        self.has_changed = True
        self._waiter.wake()


class Sharing:
    """The state of a consumer, and everything except reading. One thread at a time."""

    def __init__(
        self,
        topics: Topics,
        groups: StoreGroups,
        *,
        group: str | None = None,
        **settings: Any,
    ) -> None:
        """See ``Consumer``. Raises: ConfigError."""
        self._closed = True  # until it is open
        self._guard = ForkGuard()
        self._topics = topics
        self._groups = groups
        self.config = ConsumerConfig.from_settings(**settings)
        if group is not None:
            check_string("group", group)
        self.group = group
        self.client_id = next_client_id(self.config, group)
        if self.config.enable_auto_commit and group is None:
            raise ConfigError("enable_auto_commit is True, expected False without a group")
        self._deserializers = Deserializers(self.config.key_deserializer, self.config.value_deserializer)
        self._clock = topics.clock
        self._counters = ConsumerCounters(self._clock.monotonic())
        self._waiter = self._made_waiter()
        self._reading = Reading(topics, groups, self.config, group)
        self._wanted = Wanted()
        self._assigned: list[TopicPartition] | None = None
        self._listener: RebalanceListener | None = None
        self._membership: Membership | None = None
        # Reentrant: listeners are called while it is held.
        self._in_use = threading.RLock()
        self._woken = False
        # What an iteration has handed out.
        self._piece: Piece | None = None
        self._news = _TopicNews(self._waiter)
        # The subscribed topics that exist now.
        self._topics_now: tuple[str, ...] = ()
        self._looked_at = 0.0
        self._commit_due = self._clock.monotonic() + self.config.auto_commit_interval_ms / 1000
        topics.watch(self._news.note)
        self._closed = False

    def _made_waiter(self) -> LogWaiter:
        """Wakes it."""
        return LogWaiter(self._clock)

    # --- what it reads ----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Reads these topics from now on, or those whose whole name matches ``pattern``, including later ones.

        Without a group all partitions are this consumer's. With one they are shared with its other members: each must
        poll, or iterate, before it gives up another's partitions.

        Raises: ConfigError, TopicNotFoundError, ConsumerStateError (partitions are assigned: ``unsubscribe`` first),
        ReadOnlyError (a group's members must be able to commit).
        """
        with self._used():
            if self._assigned is not None:
                raise ConsumerStateError("partitions are assigned by hand: unsubscribe before you subscribe")
            if bool(topics) == (pattern is not None):
                if topics:
                    raise ConfigError("topics and pattern both say what to read: give one")
                self.unsubscribe()
                return
            wanted = Wanted(topics, pattern)
            wanted.ensure_found(self._topics)
            self._recall()
            if self.group is not None and self._membership is None:
                self._membership = self._made_membership(self.group)
            self._wanted, self._listener = wanted, listener
            self._news.has_changed = True
            self._share()

    def assign(self, partitions: Collection[tuple[str, int]]) -> None:
        """Reads exactly these partitions from now on, none for nothing; ignores what others of the group read.

        Partitions that stay keep their position. Raises: ConfigError, TopicNotFoundError, ConsumerStateError.
        """
        with self._used():
            if self._wanted:
                raise ConsumerStateError("topics are subscribed to: unsubscribe before you assign")
            owners = topic_partitions(partitions)
            self._recall()
            self._reading.add(owners)
            self._reading.drop(self._reading.readers.keys() - set(owners))
            self._assigned = owners or None
            self._listen()

    def unsubscribe(self) -> None:
        """Stops reading, and leaves the group."""
        with self._used():
            self._recall()
            self._auto_commit()
            try:
                if self._membership is not None:
                    self._membership.leave()
            finally:
                self._membership, self._assigned, self._wanted, self._listener = None, None, Wanted(), None
                self._reading.drop(self._reading.readers.keys())
                self._listen()

    def subscription(self) -> set[str]:
        """The subscribed topics that exist now."""
        return set(self._wanted.topics(self._topics))

    def assignment(self) -> set[TopicPartition]:
        """Its partitions; in a group they may change at each poll."""
        return set(self._reading.readers)

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Every partition of a topic. Raises: TopicNotFoundError."""
        return [TopicPartition(topic, number) for number in self._topics.partitions(topic)]

    def group_metadata(self) -> GroupMetadata:
        """Raises: ConsumerStateError without a group."""
        membership = self._membership
        if membership is None:
            return GroupMetadata(self._required_group(), -1, "", self.client_id)
        return GroupMetadata(self._required_group(), membership.generation, membership.member_id, self.client_id)

    def _made_membership(self, group: str) -> Membership:
        return Membership(
            self._groups.box(group),
            self.client_id,
            self.config.partition_assignment_strategy,
            self._clock,
            partitions_of=self._topics.partitions,
            wake=self._waiter.wake,
            heartbeat_seconds=self.config.heartbeat_interval_ms / 1000,
            limit_ms=self.config.max_poll_interval_ms,
        )

    # --- sharing ----------------------------------------------------------------------------------------------------

    def _share(self) -> None:
        """Applies changes of the topics, and of the group."""
        has_changed = self._news.has_changed
        if not self._topics.tells_changes:
            now = self._clock.monotonic()
            if now >= self._looked_at + self.config.metadata_max_age_ms / 1000 or not self._looked_at:
                self._looked_at = now
                has_changed = True
        self._news.has_changed = False
        try:
            self._share_now(has_changed=has_changed)
        except BaseException:
            # A change that failed, such as a log that cannot be opened, is tried again by the next call.
            self._news.has_changed = True
            raise

    def _share_now(self, *, has_changed: bool) -> None:
        if has_changed:
            self._topics_now = self._wanted.topics(self._topics)
            # Of a topic that was deleted, and perhaps created again since.
            closed = [owner for owner, reader in self._reading.readers.items() if reader.log.closed]
            if closed:
                self._reading.drop(closed)
                self._tell("on_partitions_lost", closed)
        if self._membership is not None:
            self._share_with_group(self._membership, has_changed=has_changed)
        elif has_changed:
            owners = set(self._wanted.partitions(self._topics))
            gone, come = self._reading.readers.keys() - owners, owners - self._reading.readers.keys()
            if gone:
                self._tell("on_partitions_lost", gone)
                self._reading.drop(gone)
            self._gain(come)

    def _share_with_group(self, membership: Membership, *, has_changed: bool) -> None:
        before = membership.owned
        change = membership.sync(self._topics_now, has_changed=has_changed)
        if change.lost:
            self._reading.drop(change.lost)
            self._tell("on_partitions_lost", change.lost)
        if change.surplus:
            self._auto_commit(change.surplus)
            self._tell("on_partitions_revoked", change.surplus)
            self._reading.drop(change.surplus)
            membership.release(change.surplus)
        if not membership.is_settled:
            self._gain(membership.take())
        elif change.lost or change.surplus:
            self._listen()
        if has_changed and (anew := membership.owned - self._reading.readers.keys()):
            self._gain(anew)
        if membership.owned != before or change.lost:
            self._counters.rebalances += 1

    def _gain(self, owners: Collection[TopicPartition]) -> None:
        self._reading.add(sorted(owners))
        self._listen()
        if owners:
            self._tell("on_partitions_assigned", owners)

    def _listen(self) -> None:
        self._waiter.listen(reader.log for reader in self._reading.readers.values())

    def _tell(self, what: str, owners: Collection[TopicPartition]) -> None:
        listener = getattr(self._listener, what, None)
        if listener is not None:
            listener(sorted(owners))

    # --- commit -----------------------------------------------------------------------------------------------------

    def positions(self) -> dict[TopicPartition, int]:
        """Of every partition that it has and has begun to read."""
        with self._used():
            return {
                owner: self._position(reader)
                for owner, reader in self._reading.readers.items()
                if reader.position is not None
            }

    def _position(self, reader: PartitionReader) -> int:
        piece = self._piece
        if piece is not None and piece.reader is reader and (offset := piece.position()) is not None:
            return offset
        while not self._reading.begin(reader):
            self._waiter.wait((), UNSTABLE_WAIT_SECONDS)
            self._check_woken()
        assert reader.position is not None
        return reader.position

    def _commit(self, offsets: Offsets | None, only: Collection[TopicPartition] | None, producer: Any = None) -> None:
        group = self._required_group()
        if offsets is None:
            positions = {owner: offset for owner, offset in self.positions().items() if only is None or owner in only}
            offsets = {
                owner: offset for owner, offset in positions.items() if self._reading.readers[owner].committed != offset
            }
        elif not isinstance(offsets, Mapping):
            raise ConfigError(f"offsets are {offsets!r:.80}, expected a mapping of partitions to offsets")
        else:
            offsets = {topic_partition(owner): offset for owner, offset in offsets.items()}
        if not offsets:
            return
        counters, started = self._counters, self._clock.monotonic()
        counters.commits += 1
        try:
            membership = self._membership
            with membership.fenced(offsets) if membership is not None else nullcontext():
                if producer is not None:
                    producer.send_offsets(offsets, group)
                    return
                self._groups.commit(group, offsets)
        except BaseException:
            counters.commit_errors += 1
            raise
        finally:
            counters.commit_seconds += self._clock.monotonic() - started
        for owner, committed in offsets.items():
            reader = self._reading.readers.get(owner)
            if reader is not None:
                reader.committed = committed if isinstance(committed, int) else committed.offset

    def _auto_commit(self, only: Collection[TopicPartition] | None = None) -> None:
        if not self.config.enable_auto_commit:
            return
        self._commit_due = self._clock.monotonic() + self.config.auto_commit_interval_ms / 1000
        try:
            self._commit(None, only)
        except KstoreError as error:
            # The next one may succeed; what is not committed is read again.
            logger.warning("%s: positions cannot be committed: %s", self.client_id, error)

    def _required_group(self) -> str:
        if self.group is None:
            raise ConsumerStateError("this consumer is of no group: nothing is committed")
        return self.group

    def _recall(self) -> None:
        """What an iteration has not given out yet is read again."""
        piece, self._piece = self._piece, None
        if piece is not None:
            piece.end()

    # --- end --------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._closed = True
        self._topics.unwatch(self._news.note)
        self._piece = None
        self._reading.drop(self._reading.readers.keys())
        self._waiter.close()

    def abandon(self) -> None:
        """The store is closed, or this object was dropped: it reads nothing, and its place in the group is free."""
        self._closed = True
        self._topics.unwatch(self._news.note)
        if self._membership is not None:
            self._membership.abandon()
        self._waiter.wake()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """One thread at a time."""
        self._check_open()
        if not self._in_use.acquire(blocking=False):
            raise ConsumerStateError(f"{self.client_id} is used by another thread: only wakeup is for any")
        try:
            yield
        finally:
            self._in_use.release()

    def _check_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError(f"{self.client_id} was woken up")

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.client_id} is closed")
        if self._guard.forked:
            self._guard.check(f"{self.client_id}")
