"""The topics that Kafka and kstore keep for themselves: their names, and how many partitions they are made with."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["OFFSETS", "TRANSACTION_STATE", "InternalTopic", "is_internal", "journal_of"]


class InternalTopic(NamedTuple):
    """A topic of the coordinator's own; ``partition_count`` is what it is made with."""

    name: str
    partition_count: int


# One log: every transaction of a store ends in it, so that those that end at the same time share a sync. A broker uses
# the count that it finds.
TRANSACTION_STATE = InternalTopic("__transaction_state", 1)
# Kafka's default: a group lies where a broker looks for it, also where the broker's own topic has the default.
OFFSETS = InternalTopic("__consumer_offsets", 50)

# kstore's own: the journal of a queue's items is the topic with this prefix before the queue's name.
QUEUE_JOURNAL = "__queue_"

INTERNAL_TOPICS = frozenset({TRANSACTION_STATE.name, OFFSETS.name, "__share_group_state"})


def is_internal(topic: str) -> bool:
    """Whether ``topic`` is one that Kafka, or kstore, keeps for itself."""
    return topic in INTERNAL_TOPICS or topic.startswith(QUEUE_JOURNAL)


def journal_of(queue: str) -> str:
    """The topic that keeps what became of the items of ``queue``."""
    return QUEUE_JOURNAL + queue
