"""Committed offsets: where groups continue, and how those above the end of a log are corrected.

A committed offset is the next record that its group reads. Its place is ``__consumer_offsets``, which a broker reads
and writes too (``transactions.group_offsets``). A store that is open for reading can read it, also in the directory of
a broker that runs or not::

    offsets = store.consumer_offsets                       # a GroupOffsets
    offsets.committed("billing")                           # {TopicPartition("orders", 0): OffsetAndMetadata(42, ...)}

After a crash a log may end below a committed offset: with durability "interval" or "os" the offsets may reach the disk
before the records. The offset would then skip the records appended next, so the next open sets it back and reports this
in ``store.notes``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from kstore.files.paths import TopicPartition
from kstore.transactions.group_offsets import GroupOffsets
from kstore.transactions.group_records import OffsetAndMetadata

logger = logging.getLogger(__name__)

# The input: a number, or one with metadata.
Offsets: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]


class SetBack(NamedTuple):
    """A committed offset that was above its log's end."""

    group: str
    owner: TopicPartition
    committed: int
    end_offset: int

    def __str__(self) -> str:
        return (
            f"group {self.group!r} has committed offset {self.committed} of {self.owner}, which ends at "
            f"{self.end_offset}: set back to that"
        )


def offsets_above_end(
    offsets: GroupOffsets, owners: Iterable[TopicPartition], end_of: Callable[[TopicPartition], int]
) -> list[SetBack]:
    """The committed offsets of ``owners`` above the ends of their logs. Raises: StorageError."""
    ends: dict[TopicPartition, int] = {}
    wanted = set(owners)
    found = []
    for group in offsets.groups():
        for owner, committed in offsets.committed(group).items():
            if owner not in wanted:
                continue
            if owner not in ends:
                ends[owner] = end_of(owner)
            if committed.offset > ends[owner]:
                found.append(SetBack(group, owner, committed.offset, ends[owner]))
    return found


def set_back(
    offsets: GroupOffsets, owners: Iterable[TopicPartition], end_of: Callable[[TopicPartition], int]
) -> list[SetBack]:
    """Commits the end of the log instead of each offset above it, and warns; returns what was set back.

    Raises: StorageError.
    """
    found = offsets_above_end(offsets, owners, end_of)
    for one in found:
        metadata = offsets.committed(one.group)[one.owner].metadata
        offsets.commit(one.group, {one.owner: OffsetAndMetadata(one.end_offset, metadata)})
        logger.warning("%s", one)
    return found
