"""Looking at groups from outside: what they have committed, how far behind they are, and setting that anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from kstore.engine.times import TimePoint
from kstore.errors import ConsumerStateError, KstoreError, TopicNotFoundError
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.store import Store

__all__ = ["GroupOffset", "Reset", "describe_group", "planned_reset", "reset_offsets", "target_offset"]


class GroupOffset(NamedTuple):
    """Where a group is in a partition. None: nothing committed, no such log; ``member`` "" where nobody reads it."""

    owner: TopicPartition
    committed: int | None
    start_offset: int | None
    end_offset: int | None
    metadata: str = ""
    member: str = ""

    @property
    def lag(self) -> int | None:
        """How many offsets lie before it."""
        if self.end_offset is None:
            return None
        begin = self.start_offset or 0 if self.committed is None else self.committed
        return max(self.end_offset - begin, 0)


class Reset(NamedTuple):
    """A committed offset, None for none, and what takes its place."""

    owner: TopicPartition
    before: int | None
    after: int


def describe_group(store: Store, group: str) -> list[GroupOffset]:
    """Where the group is in every partition that it has committed, or that one of its members reads; sorted.

    Raises: StorageError.
    """
    committed = store.consumer_offsets.committed(group)
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
    """What a reset would change: of ``topics``, with no partitions given all of them, else of all that are committed.

    ``target`` gives the new offset by the log and the committed one; it is kept within the log. Raises: StorageError,
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
            continue  # of a topic that was deleted there is nothing to go to
        one = committed.get(owner)
        before = None if one is None else one.offset
        after = min(max(target(log, before), log.start_offset), log.high_watermark)
        planned.append(Reset(owner, before, after))
    return planned


def reset_offsets(store: Store, group: str, planned: Collection[Reset]) -> None:
    """Commits what was planned. Raises: ConsumerStateError while the group has members that live; ReadOnlyError,
    StorageError."""
    if members := sorted(set(store.group_members(group).values())):
        raise ConsumerStateError(f"group {group!r} has members: {', '.join(members)}; stop them first")
    if planned:
        store.coordinator.commit_offsets(group, {reset.owner: reset.after for reset in planned})


def target_offset(
    *, offset: int | None = None, when: TimePoint | None = None, shift: int | None = None
) -> Callable[[Log, int | None], int]:
    """What ``planned_reset`` asks for: a number, the offset of a time or of an end, or so many from the committed."""

    def target(log: Log, committed: int | None) -> int:
        if offset is not None:
            return offset
        if when is not None:
            found = log.offset_for_time(when)
            return log.high_watermark if found is None else found
        return (log.start_offset if committed is None else committed) + (shift or 0)

    return target
