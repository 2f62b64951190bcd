"""``GroupPlace``: a consumer's place in its group, from the first topic that it subscribes to until it leaves."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from kstore.consumer.config import ConsumerConfig
from kstore.consumer.groups import Membership
from kstore.consumer.of_store import StoreGroups
from kstore.consumer.waiting import LogWaiter
from kstore.errors import ConsumerStateError
from kstore.files.paths import TopicPartition
from kstore.logs.topics import Topics


class GroupMetadata(NamedTuple):
    """A consumer's place in its group: ``member_id`` is "", ``generation`` -1 before it has joined."""

    group: str
    generation: int
    member_id: str
    client_id: str


class GroupPlace:
    """``membership`` is None without a group, and while the consumer subscribes to nothing."""

    def __init__(
        self,
        group: str | None,
        client_id: str,
        config: ConsumerConfig,
        topics: Topics,
        groups: StoreGroups,
        waiter: LogWaiter,
    ) -> None:
        self.group = group
        self.membership: Membership | None = None
        self._client_id = client_id
        self._config = config
        self._topics = topics
        self._groups = groups
        self._waiter = waiter

    def required_group(self) -> str:
        """Raises: ConsumerStateError without a group."""
        if self.group is None:
            raise ConsumerStateError("this consumer is of no group: nothing is committed")
        return self.group

    def enter(self) -> None:
        """Becomes a member, if there is a group. Raises: ReadOnlyError."""
        if self.group is None or self.membership is not None:
            return
        self.membership = Membership(
            self._groups.box(self.group),
            self._client_id,
            self._config.partition_assignment_strategy,
            self._topics.clock,
            partitions_of=self._topics.partitions,
            wake=self._waiter.wake,
            heartbeat_seconds=self._config.heartbeat_interval_ms / 1000,
            limit_ms=self._config.max_poll_interval_ms,
        )

    def leave(self) -> None:
        """Leaves the group, and notifies the other members. Raises: StorageError."""
        if self.membership is not None:
            self.membership.leave()

    def abandon(self) -> None:
        """Leaves without notice: the other members find this one dead."""
        if self.membership is not None:
            self.membership.abandon()

    def fenced(self, partitions: Collection[TopicPartition]) -> AbstractContextManager[None]:
        """A block in which no other member may have ``partitions``. Raises: CommitFailedError if one has."""
        return nullcontext() if self.membership is None else self.membership.fenced(partitions)

    def metadata(self) -> GroupMetadata:
        """For any thread. Raises: ConsumerStateError without a group."""
        membership = self.membership
        if membership is None:
            return GroupMetadata(self.required_group(), -1, "", self._client_id)
        return GroupMetadata(self.required_group(), membership.generation, membership.member_id, self._client_id)
