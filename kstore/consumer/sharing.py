"""``Sharing``: the partitions of a consumer: what it requests, what of that exists, and what its group assigns."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from kstore.consumer.commits import Commits
from kstore.consumer.config import ConsumerConfig
from kstore.consumer.consumer_metrics import ConsumerCounters
from kstore.consumer.groups import Membership
from kstore.consumer.place import GroupPlace
from kstore.consumer.reading import Positions, Reading
from kstore.consumer.waiting import LogWaiter
from kstore.consumer.wanted import RebalanceListener, Wanted, topic_partitions
from kstore.errors import ConfigError, ConsumerStateError
from kstore.files.paths import TopicPartition
from kstore.logs.topics import Topics

# The shortest interval between two looks for new topics.
METADATA_SECONDS_MIN = 0.01


class _TopicNews:
    """Receives changes of topics. The store refers to it and not to the consumer, so that can be collected."""

    def __init__(self, waiter: LogWaiter) -> None:
        self.has_changed = True
        self._waiter = waiter

    def note(self, topic: str) -> None:
        self.has_changed = True
        self._waiter.wake()


class Sharing:
    """The partitions that a consumer reads, alone or with other members of its group. For its thread."""

    def __init__(
        self,
        topics: Topics,
        place: GroupPlace,
        reading: Reading,
        positions: Positions,
        commits: Commits,
        waiter: LogWaiter,
        config: ConsumerConfig,
        counters: ConsumerCounters,
    ) -> None:
        self._topics = topics
        self._place = place
        self._reading = reading
        self._positions = positions
        self._commits = commits
        self._waiter = waiter
        self._counters = counters
        self._clock = topics.clock
        self._max_age_seconds = config.metadata_max_age_ms / 1000
        self._news = _TopicNews(waiter)
        self._wanted = Wanted()
        self._assigned: list[TopicPartition] | None = None
        self._listener: RebalanceListener | None = None
        # The subscribed topics that exist now.
        self._topics_now: tuple[str, ...] = ()
        self._looked_at = 0.0

    def begin(self) -> None:
        """Makes the store report changes of its topics from now on."""
        self._topics.watch(self._news.note)

    def end(self) -> None:
        """Ends these reports."""
        self._topics.unwatch(self._news.note)

    # --- what it asks for -------------------------------------------------------------------------------------------

    def subscribe(
        self, topics: Collection[str], pattern: str | re.Pattern[str] | None, listener: RebalanceListener | None
    ) -> None:
        """See ``Consumer.subscribe``."""
        if self._assigned is not None:
            raise ConsumerStateError("partitions are assigned by hand: unsubscribe before you subscribe")
        if bool(topics) == (pattern is not None):
            if topics:
                raise ConfigError("topics and pattern both say what to read: give one")
            self.unsubscribe()
            return
        wanted = Wanted(topics, pattern)
        wanted.ensure_found(self._topics)
        self._positions.recall()
        self._place.enter()
        self._wanted, self._listener = wanted, listener
        self._news.has_changed = True
        self.share()

    def assign(self, partitions: Collection[tuple[str, int]]) -> None:
        """See ``Consumer.assign``."""
        if self._wanted:
            raise ConsumerStateError("topics are subscribed to: unsubscribe before you assign")
        owners = topic_partitions(partitions)
        self._positions.recall()
        self._reading.drop(self._closed())
        self._reading.add(owners)
        self._reading.drop(self._reading.readers.keys() - set(owners))
        self._assigned = owners or None
        self._settle()

    def unsubscribe(self) -> None:
        """See ``Consumer.unsubscribe``."""
        self._positions.recall()
        self._commits.auto_commit()
        try:
            self._place.leave()
        finally:
            self._place.abandon()  # if an interrupt came first
            self._place.membership = None
            self._assigned, self._wanted, self._listener = None, Wanted(), None
            self._reading.drop(self._reading.readers.keys())
            self._settle()

    def subscription(self) -> set[str]:
        """See ``Consumer.subscription``."""
        return set(self._wanted.topics(self._topics))

    def check(self) -> None:
        """Raises: ConsumerStateError if there is no subscription or assignment."""
        if self._assigned is None and not self._wanted:
            raise ConsumerStateError("nothing to read: subscribe to topics, or assign partitions")

    # --- what it has ------------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether the next ``share`` applies a change of topics."""
        return self._assigned is None and self._news.has_changed

    @property
    def wait_seconds(self) -> float:
        """How many seconds until ``share`` is due again."""
        seconds = math.inf
        if not self._topics.tells_changes:
            seconds = max(self._max_age_seconds, METADATA_SECONDS_MIN)
        membership = self._place.membership
        return seconds if membership is None else min(membership.wait_seconds, seconds)

    def share(self) -> None:
        """Applies changes of the topics, and of the group, unless partitions were assigned."""
        if self._assigned is None:
            self._share_topics()
        if self._reading.has_changed:  # also by a call that was interrupted
            self._settle()

    def _share_topics(self) -> None:
        has_changed = self._news.has_changed
        if not self._topics.tells_changes:
            now = self._clock.monotonic()
            if now >= self._looked_at + self._max_age_seconds or not self._looked_at:
                self._looked_at = now
                has_changed = True
        self._news.has_changed = False
        try:
            self._share(has_changed=has_changed)
        except BaseException:
            # The next call retries a change that failed, for example because a log could not be opened.
            self._news.has_changed = True
            raise

    def _share(self, *, has_changed: bool) -> None:
        if has_changed:
            self._topics_now = self._wanted.topics(self._topics)
            if closed := self._closed():
                self._reading.drop(closed)
                self._tell("on_partitions_lost", closed)
        membership = self._place.membership
        if membership is not None:
            self._share_with_group(membership, has_changed=has_changed)
        elif has_changed:
            owners = set(self._wanted.partitions(self._topics))
            gone, come = self._reading.readers.keys() - owners, owners - self._reading.readers.keys()
            if gone:
                self._tell("on_partitions_lost", gone)
                self._reading.drop(gone)
            self._gain(come)

    def _closed(self) -> list[TopicPartition]:
        """Those with the logs of a deleted topic, which may exist again since."""
        return [owner for owner, reader in self._reading.readers.items() if reader.log.closed]

    def _share_with_group(self, membership: Membership, *, has_changed: bool) -> None:
        before = membership.owned
        change = membership.sync(self._topics_now, has_changed=has_changed)
        lost = change.lost
        if has_changed:  # as after a call that failed before it dropped them
            lost |= self._reading.readers.keys() - membership.owned
        if lost:
            self._reading.drop(lost)
            self._tell("on_partitions_lost", lost)
        if change.surplus:
            self._commits.auto_commit(change.surplus)
            self._tell("on_partitions_revoked", change.surplus)
            self._reading.drop(change.surplus)
            membership.release(change.surplus)
        if not membership.is_settled:
            self._gain(membership.take())
        if has_changed and (unread := membership.owned - self._reading.readers.keys()):
            self._gain(unread)
        if membership.owned != before or lost:
            self._counters.rebalances += 1

    def _gain(self, owners: Collection[TopicPartition]) -> None:
        if owners:
            self._reading.add(sorted(owners))
            self._tell("on_partitions_assigned", owners)

    def _settle(self) -> None:
        """Counts the present partitions, and listens to exactly these."""
        self._reading.count()
        self._waiter.listen(reader.log for reader in self._reading.readers.values())
        self._reading.has_changed = False

    def _tell(self, what: str, owners: Collection[TopicPartition]) -> None:
        listener = getattr(self._listener, what, None)
        if listener is not None:
            listener(sorted(owners))
