"""The topics that Kafka and kstore use internally: names, initial partition counts, and what is in which partition.

A transactional id or a group belongs to one partition of its topic, by Kafka's rule:

partition = abs(hash) % count     hash: Java's String.hashCode; abs of the least int is 0 (Kafka: Utils.abs)
"""

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


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, in 32 signed bits."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (value * 31 + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(name: str, count: int) -> int:
    """The partition of ``count`` to which a transactional id or a group belongs."""
    hashed = java_hash(name)
    return 0 if hashed == -(1 << 31) else abs(hashed) % count
