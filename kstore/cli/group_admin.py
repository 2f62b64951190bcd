"""Examines groups from outside: their committed offsets and their lag; and resets the offsets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from kstore.engine.read.times import TimePoint
from kstore.errors import ConsumerStateError, KstoreError, TopicNotFoundError
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.store import Store, coordinator_of


class GroupOffset(NamedTuple):
    """A group's state in a partition. None: no commit, or no such log; ``member`` is "" if no member reads it."""

    owner: TopicPartition
    committed: int | None
    start_offset: int | None
    end_offset: int | None
    metadata: str = ""
    member: str = ""

    @property
    def lag(self) -> int | None:
        """The number of offsets before it."""
        if self.end_offset is None:
            return None
        begin = self.start_offset or 0 if self.committed is None else self.committed
        return max(self.end_offset - begin, 0)


class Reset(NamedTuple):
    """A committed offset, or None, and its replacement."""

    owner: TopicPartition
    before: int | None
    after: int


def describe_group(store: Store, group: str) -> list[GroupOffset]:
    """The group's state in every partition that it has committed, or that one of its members reads; sorted.

    Raises: StorageError.
    """
    offsets = store.consumer_offsets
    committed = offsets.committed(group)
    if not committed and group in offsets.groups():  # a directory may have a part of a broker's partitions
        committed = offsets.committed(group)
    members = store.group_members(group)
    found = []
    for owner in sorted({*committed, *members}):
        start = end = None
        with suppress(KstoreError):
            log = store.log(*owner)
            start, end = log.start_offset, log.high_watermark
        one = committed.get(owner)
        found.append(
            GroupOffset(
                owner,
                None if one is None else one.offset,
                start,
                end,
                "" if one is None else one.metadata,
                members.get(owner, ""),
            )
        )
    return found


def planned_reset(
    store: Store, group: str, topics: Mapping[str, Collection[int]], target: Callable[[Log, int | None], int]
) -> list[Reset]:
    """What a reset would change: all partitions of ``topics``, or without topics all committed ones.

    ``target`` computes the new offset from the log and the committed one; it is kept within the log. Raises:
    StorageError,
    TopicNotFoundError.
    """
    committed = store.consumer_offsets.committed(group)
    owners = [
        TopicPartition(topic, number)
        for topic, numbers in topics.items()
        for number in numbers or store.partitions(topic)
    ] or sorted(committed)
    planned = []
    for owner in owners:
        try:
            log = store.log(*owner)
        except TopicNotFoundError:
            if topics:
                raise
            continue  # the topic was deleted, so there is no offset to go to
        one = committed.get(owner)
        before = None if one is None else one.offset
        after = min(max(target(log, before), log.start_offset), log.high_watermark)
        planned.append(Reset(owner, before, after))
    return planned


def reset_offsets(store: Store, group: str, planned: Collection[Reset]) -> None:
    """Commits what was planned. Raises: ConsumerStateError while the group has living members; ReadOnlyError,
    StorageError."""
    if members := sorted(set(store.group_members(group).values())):
        raise ConsumerStateError(f"group {group!r} has members: {', '.join(members)}; stop them first")
    if planned:
        coordinator_of(store).commit_offsets(group, {reset.owner: reset.after for reset in planned})


def target_offset(
    *, offset: int | None = None, when: TimePoint | None = None, shift: int | None = None
) -> Callable[[Log, int | None], int]:
    """The function for ``planned_reset``: a number, the offset of a time or an end, or a distance from the
    committed."""

    def target(log: Log, committed: int | None) -> int:
        if offset is not None:
            return offset
        if when is not None:
            found = log.offset_for_time(when)
            return log.high_watermark if found is None else found
        return (log.start_offset if committed is None else committed) + (shift or 0)

    return target
