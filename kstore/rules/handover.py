"""The decisions of a handover between kstore and a Kafka broker, over names and numbers; no I/O here.

How a broker (4.x) reacts at its start:

    a directory in its root that is not a partition's        it exits
    a partition without a topic id, or of an unknown topic  it renames the directory to ...-stray
    a segment file's suffix after anything but an offset    it exits
    a name that ends in .deleted                            it deletes the file
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kstore.files.checkpoint import EpochEntry
from kstore.files.paths import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    METADATA_TOPIC,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    marked_topic_partition,
    topic_partition,
)

REMOTE_INDEX_CACHE = "remote-log-index-cache"

# A broker parses the part before these as an offset, or exits.
NUMBERED_SUFFIXES = (
    LOG_SUFFIX,
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    CLEANED_SUFFIX,
    SWAP_SUFFIX,
)
METADATA_DELETED_SUFFIX = ".checkpoint" + DELETED_SUFFIX

TOPIC_ID = re.compile(r"[a-zA-Z0-9_-]{22}", re.ASCII)


class StoreNames(NamedTuple):
    """The directories of a store, sorted by kind.

    ``partitions`` are handed over; ``marked`` are arriving or leaving; ``brokers`` are the broker's own; ``odd`` are
    those at which a broker exits.
    """

    partitions: list[TopicPartition]
    marked: list[str]
    brokers: list[str]
    odd: list[str]


class TopicIds(NamedTuple):
    """The id of each topic that has one, and the obstacles to a handover."""

    ids: dict[str, uuid.UUID]
    problems: list[str]


def sort_store(directories: Iterable[str]) -> StoreNames:
    """Sorts the names of a store's directories by kind."""
    names = StoreNames([], [], [], [])
    for name in sorted(directories):
        owner = topic_partition(name)
        if name == REMOTE_INDEX_CACHE or (owner is not None and owner.topic == METADATA_TOPIC):
            names.brokers.append(name)
        elif owner is not None:
            names.partitions.append(owner)
        elif marked_topic_partition(name) is not None:
            names.marked.append(name)
        else:
            names.odd.append(name)
    return names


def broker_chokes_on(others: Iterable[str]) -> list[str]:
    """What a broker would do to names in a partition's directory that are not segment files: a line for each."""
    lines = []
    for name in sorted(others):
        if name.endswith(NUMBERED_SUFFIXES):
            lines.append(f"{name} is not a segment's file: a broker parses its start as an offset, or exits")
        elif name.endswith(DELETED_SUFFIX) and not name.endswith(METADATA_DELETED_SUFFIX):
            lines.append(f"{name} would be deleted by the broker")
    return lines


def parse_topic_id(text: str) -> uuid.UUID:
    """The id that Kafka's tools print: 22 characters of URL-safe base64. Raises: ValueError."""
    try:
        if TOPIC_ID.fullmatch(text) is None:
            raise ValueError
        topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (ValueError, binascii.Error):
        raise ValueError(f"topic id {text!r}, expected 22 characters of A-Z, a-z, 0-9, '_' and '-'") from None
    if topic_id.int == 0:
        raise ValueError("the zero topic id, which no topic has")
    return topic_id


def format_topic_id(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode("ascii")


def choose_topic_ids(
    topics: Iterable[str], given: Mapping[str, uuid.UUID], found: Mapping[TopicPartition, uuid.UUID]
) -> TopicIds:
    """The id for each of ``topics``: the ``given`` one, else the one ``found`` in one of its directories."""
    ids: dict[str, uuid.UUID] = {}
    problems: list[str] = []
    wanted = sorted(set(topics))
    for topic in sorted(set(given) - set(wanted)):
        problems.append(f"a topic id is given for {topic}, but none of its partitions is handed over")
    for topic in wanted:
        present = {topic_id for owner, topic_id in found.items() if owner.topic == topic}
        if topic in given:
            ids[topic] = given[topic]
        elif len(present) == 1:
            ids[topic] = present.pop()
        elif present:
            texts = ", ".join(sorted(format_topic_id(topic_id) for topic_id in present))
            problems.append(f"the directories of topic {topic} have different ids: {texts}; give the correct one")
        else:
            problems.append(
                f"topic {topic} has no id, and a broker renames a directory without one to ...-stray: create the topic"
                f" in the cluster, stop the broker, and give its id with --topic-id {topic}=ID"
                " (kafka-topics --describe prints it; the broker keeps it in partition.metadata)"
            )
    return TopicIds(ids, problems)


def is_broker_last(*, state_fits: bool, marker: bool, recovery_point: int | None, end_offset: int | None) -> bool:
    """Whether a ``kstore.state`` is out of date: a broker has closed the log cleanly since it was written.

    ``end_offset`` is where the files end with a whole batch, None if they do not.
    """
    return not state_fits and marker and recovery_point is not None and recovery_point == end_offset


class EpochTrack:
    """The leader epochs of a log's batches, noted in offset order (LogSegment.recover)."""

    def __init__(self) -> None:
        self._entries: list[EpochEntry] = []
        # By epoch: where its last batch starts.
        self._last_base_offset: dict[int, int] = {}

    def note(self, magic: int, epoch: int, base_offset: int) -> None:
        """Adds one batch; the old formats have no epoch, and discard what came before them."""
        if magic < 2:
            self._entries.clear()
        elif epoch >= 0 and (not self._entries or epoch > self._entries[-1].epoch):
            self._entries.append(EpochEntry(epoch, base_offset))
        if self._entries and epoch == self._entries[-1].epoch:
            self._last_base_offset[epoch] = base_offset

    def entries(self, start_offset: int, end_offset: int, stored: Sequence[EpochEntry]) -> list[EpochEntry]:
        """The entries for a log of [start_offset, end_offset): the ``stored`` ones, if the batches agree with them.

        They may contain more: the first batches of an epoch may have been compacted away, and a leader that has not
        written yet has an entry at the end.
        """
        below = [entry for entry in self._entries if entry.start_offset <= start_offset]
        above = [entry for entry in self._entries if entry.start_offset > start_offset]
        entries = [EpochEntry(below[-1].epoch, start_offset), *above] if below else above
        return list(stored) if self._agree(entries, end_offset, stored) else entries

    def _agree(self, entries: Sequence[EpochEntry], end_offset: int, stored: Sequence[EpochEntry]) -> bool:
        """Whether the first and the last batch of each epoch are where ``stored`` places the epoch."""
        starts = [entry.start_offset for entry in stored]
        if sorted(set(stored)) != list(stored) or starts != sorted(starts) or (starts and starts[-1] > end_offset):
            return False
        bounds = [(epoch, first) for epoch, first in entries]
        bounds += [(epoch, max(first, self._last_base_offset[epoch])) for epoch, first in entries]
        return all((at := bisect_right(starts, offset)) and stored[at - 1].epoch == epoch for epoch, offset in bounds)
