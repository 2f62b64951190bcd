"""The topics that Kafka and kstore use internally: their names, and their initial partition counts."""

from __future__ import annotations

from typing import NamedTuple


class InternalTopic(NamedTuple):
    """A topic of the coordinator; ``partition_count`` is for its creation."""

    name: str
    partition_count: int


# One log: all transactions of a store end in it, so those that end at the same time share a sync. A broker uses the
# count that it finds.
TRANSACTION_STATE = InternalTopic("__transaction_state", 1)
# Kafka's default: a broker then looks for a group in the same partition, also in a topic of its own.
OFFSETS = InternalTopic("__consumer_offsets", 50)

# kstore's own: the journal of a queue has this prefix and the queue's name.
QUEUE_JOURNAL = "__queue_"

INTERNAL_TOPICS = frozenset({TRANSACTION_STATE.name, OFFSETS.name, "__share_group_state"})


def is_internal(topic: str) -> bool:
    """Whether Kafka or kstore uses ``topic`` internally."""
    return topic in INTERNAL_TOPICS or topic.startswith(QUEUE_JOURNAL)


def journal_of(queue: str) -> str:
    """The topic that records the state of the items of ``queue``."""
    return QUEUE_JOURNAL + queue
